// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package air

import (
	"crypto/ecdh"
	"crypto/ed25519"
	"crypto/sha512"

	"filippo.io/edwards25519"
)

// A KeyKind says what a multibase text holds: the first of its two bytes of
// multicodec.
type KeyKind byte

// The two kinds of keys that the protocol knows.
const (
	KeyEd25519 KeyKind = 0xed // signs; its text begins with z6Mk
	KeyX25519  KeyKind = 0xec // agrees on secrets; its text begins with z6LS
)

// EncodeKey returns the multibase text of a public key: z and the base58btc of
// two bytes of multicodec and 32 bytes of key (5.1, 14.5). It returns "" for a
// key of another length.
func EncodeKey(kind KeyKind, key []byte) string {
	if len(key) != 32 {
		return ""
	}
	var b [34]byte
	b[0], b[1] = byte(kind), 1
	copy(b[2:], key)
	return string(appendBase58([]byte{'z'}, b[:]))
}

// DecodeKey reads what [EncodeKey] writes and nothing else. An Ed25519 key must be
// the canonical encoding of a point of the prime-order subgroup, an X25519 key a
// number below the prime (AIR-D31, AIR-D36); otherwise the error is
// [ErrBadKey].
func DecodeKey(kind KeyKind, text string) ([]byte, error) {
	key, ok := decodeMultikey(kind, text)
	if !ok {
		return nil, ErrBadKey.err("not the multibase text of a key of this kind")
	}
	if kind == KeyEd25519 {
		if _, err := decodePoint(key); err != nil {
			return nil, err
		}
	} else if !reducedX25519(key) {
		return nil, ErrBadKey.err("not a reduced coordinate")
	}
	return key, nil
}

func decodeMultikey(kind KeyKind, text string) ([]byte, bool) {
	var b [34]byte
	if len(text) < 2 || text[0] != 'z' || !decodeBase58(b[:], text[1:]) || b[0] != byte(kind) || b[1] != 1 {
		return nil, false
	}
	return b[2:], true
}

// decodePoint checks an Ed25519 key. What libsodium's conversion demands is
// demanded here of every key, and that the encoding is the canonical one too.
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
	// The order of p divides l just if (l-1)p = -p, and l-1 is -1 as a scalar.
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

// A PublicKey is the checked Ed25519 key of an agent, with its Montgomery form
// for sealing to it. It may be used by several goroutines.
type PublicKey struct {
	ed ed25519.PublicKey
	x  *ecdh.PublicKey
}

// NewPublicKey checks an Ed25519 key as [DecodeKey] does.
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

// ParsePublicKey reads the multibase text of an Ed25519 key.
func ParsePublicKey(text string) (*PublicKey, error) {
	key, ok := decodeMultikey(KeyEd25519, text)
	if !ok {
		return nil, ErrBadKey.err("not the multibase text of an Ed25519 key")
	}
	return NewPublicKey(key)
}

// Bytes returns the 32 bytes of the key.
func (k *PublicKey) Bytes() []byte { return append([]byte(nil), k.ed...) }

// X25519 returns the 32 bytes of the Montgomery form (14.2).
func (k *PublicKey) X25519() []byte { return k.x.Bytes() }

// String returns the multibase text.
func (k *PublicKey) String() string { return EncodeKey(KeyEd25519, k.ed) }

// Equal reports whether both are the same key.
func (k *PublicKey) Equal(o *PublicKey) bool { return o != nil && k.ed.Equal(o.ed) }

// A BoxKey opens sealed bodies: the X25519 form of an Ed25519 seed (14.2). It
// may be used by several goroutines.
type BoxKey struct{ x *ecdh.PrivateKey }

// NewBoxKey derives the key from the 32 bytes of an Ed25519 seed.
func NewBoxKey(seed []byte) (*BoxKey, error) {
	if len(seed) != ed25519.SeedSize {
		return nil, ErrBadKey.err("a seed has 32 bytes")
	}
	h := sha512.Sum512(seed)
	x, err := ecdh.X25519().NewPrivateKey(clamp(h[:32]))
	if err != nil {
		return nil, ErrBadKey.because("no key", err)
	}
	return &BoxKey{x: x}, nil
}

func clamp(b []byte) []byte {
	b[0] &= 248
	b[31] = b[31]&127 | 64
	return b
}

// Bytes returns the clamped scalar. It is as secret as the seed.
func (k *BoxKey) Bytes() []byte { return k.x.Bytes() }

// PublicBytes returns the public coordinate, equal to what others compute from the
// Ed25519 key.
func (k *BoxKey) PublicBytes() []byte { return k.x.PublicKey().Bytes() }
