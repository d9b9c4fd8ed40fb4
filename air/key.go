// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package air

import (
	"crypto/ecdh"
	"crypto/ed25519"
	"crypto/sha512"

	"filippo.io/edwards25519"
)

// A keyKind is the type of a multibase key: the first of its two bytes of multicodec.
type keyKind byte

// The kinds of keys of the protocol.
const (
	keyEd25519 keyKind = 0xed // signs; its text begins with z6Mk
	keyX25519  keyKind = 0xec // key agreement; its text begins with z6LS
)

// encodeKey returns the multibase text of a public key: z and the base58btc of
// two bytes of multicodec and 32 bytes of key (5.1, 14.5). It returns "" for a
// key of another length.
func encodeKey(kind keyKind, key []byte) string {
	if len(key) != 32 {
		return ""
	}
	var b [34]byte
	b[0], b[1] = byte(kind), 1
	copy(b[2:], key)
	return string(appendBase58([]byte{'z'}, b[:]))
}

// decodeKey parses a text of [encodeKey]. An Ed25519 key must be the canonical encoding of a point
// of the prime-order subgroup, an X25519 key a number below the prime (AIR-D31, AIR-D36). Otherwise
// the error is [ErrBadKey].
func decodeKey(kind keyKind, text string) ([]byte, error) {
	key, ok := decodeMultikey(kind, text)
	if !ok {
		return nil, ErrBadKey.err("not the multibase text of a key of this kind")
	}
	if kind == keyEd25519 {
		if _, err := decodePoint(key); err != nil {
			return nil, err
		}
	} else if !reducedX25519(key) {
		return nil, ErrBadKey.err("not a reduced coordinate")
	}
	return key, nil
}

func decodeMultikey(kind keyKind, text string) ([]byte, bool) {
	var b [34]byte
	if len(text) < 2 || text[0] != 'z' || !decodeBase58(b[:], text[1:]) || b[0] != byte(kind) || b[1] != 1 {
		return nil, false
	}
	return b[2:], true
}

// decodePoint validates an Ed25519 key: canonically encoded, and with the conditions of libsodium's
// conversion to X25519.
func decodePoint(key []byte) (*edwards25519.Point, error) {
	if len(key) != 32 {
		return nil, ErrBadKey.err("not 32 bytes")
	}
	p, err := new(edwards25519.Point).SetBytes(key)
	if err != nil {
		return nil, ErrBadKey.err("not a point of the curve")
	}
	if string(p.Bytes()) != string(key) {
		return nil, ErrBadKey.err("not the canonical encoding")
	}
	// The order of p divides l if and only if (l-1)p = -p, and l-1 is -1 as a scalar.
	one := make([]byte, 32)
	one[0] = 1
	s, err := new(edwards25519.Scalar).SetCanonicalBytes(one)
	if err != nil {
		return nil, ErrBadKey.because("no scalar", err)
	}
	q := new(edwards25519.Point).ScalarMult(s.Negate(s), p)
	if p.Equal(edwards25519.NewIdentityPoint()) == 1 || q.Equal(new(edwards25519.Point).Negate(p)) != 1 {
		return nil, ErrBadKey.err("not in the prime-order subgroup")
	}
	return p, nil
}

// reducedX25519 reports whether the coordinate is below 2^255-19.
func reducedX25519(u []byte) bool {
	if len(u) != 32 || u[31] > 0x7f {
		return false
	}
	if u[31] < 0x7f || u[0] < 0xed {
		return true
	}
	for _, b := range u[1:31] {
		if b != 0xff {
			return true
		}
	}
	return false
}

// A PublicKey is the validated Ed25519 key of an agent, with its Montgomery form for sealing. It is
// safe for concurrent use.
type PublicKey struct {
	ed ed25519.PublicKey
	x  *ecdh.PublicKey
}

// NewPublicKey returns the key of 32 bytes, which must be the canonical encoding of a point of the
// prime-order subgroup (AIR-D31, AIR-D36). Otherwise the error is [ErrBadKey].
func NewPublicKey(key []byte) (*PublicKey, error) {
	p, err := decodePoint(key)
	if err != nil {
		return nil, err
	}
	x, err := ecdh.X25519().NewPublicKey(p.BytesMontgomery())
	if err != nil {
		return nil, ErrBadKey.because("no Montgomery form", err)
	}
	return &PublicKey{ed: ed25519.PublicKey(append([]byte(nil), key...)), x: x}, nil
}

// ParsePublicKey parses the multibase text of an Ed25519 key.
func ParsePublicKey(text string) (*PublicKey, error) {
	key, ok := decodeMultikey(keyEd25519, text)
	if !ok {
		return nil, ErrBadKey.err("not the multibase text of an Ed25519 key")
	}
	return NewPublicKey(key)
}

// check returns [ErrBadKey] if there is no key.
func (k *PublicKey) check() error {
	if k == nil || k.x == nil {
		return ErrBadKey.err("the key is missing")
	}
	return nil
}

// Bytes returns the 32 bytes of the key.
func (k *PublicKey) Bytes() []byte { return append([]byte(nil), k.ed...) }

// String returns the multibase text.
func (k *PublicKey) String() string { return encodeKey(keyEd25519, k.ed) }

// Equal reports whether both are the same key.
func (k *PublicKey) Equal(o *PublicKey) bool { return o != nil && k.ed.Equal(o.ed) }

// A boxKey opens sealed bodies: the X25519 form of an Ed25519 seed (14.2). It is safe for
// concurrent use.
type boxKey struct{ x *ecdh.PrivateKey }

// newBoxKey derives the key from the 32 bytes of an Ed25519 seed.
func newBoxKey(seed []byte) (*boxKey, error) {
	if len(seed) != ed25519.SeedSize {
		return nil, ErrBadKey.err("a seed has 32 bytes")
	}
	h := sha512.Sum512(seed)
	x, err := ecdh.X25519().NewPrivateKey(clamp(h[:32]))
	if err != nil {
		return nil, ErrBadKey.because("no key", err)
	}
	return &boxKey{x: x}, nil
}

func clamp(b []byte) []byte {
	b[0] &= 248
	b[31] = b[31]&127 | 64
	return b
}
