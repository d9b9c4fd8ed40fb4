// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package air

import (
	"bytes"
	"crypto/ecdh"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"io"
	"strings"

	"golang.org/x/crypto/chacha20poly1305"

	"github.com/fivewire/fivewire/air/internal/canon"
)

const (
	sealSuite = "x25519-hkdf-sha256-chacha20poly1305"
	sealInfo  = "air-msg/e2e/v1"
)

// A Binding identifies the envelope of a sealed body. A box does not open in another envelope
// (14.3).
type Binding struct{ ID, From, To, ThreadID string }

// appendAAD appends the four fields, separated by NUL. An empty field or one with a NUL would be
// ambiguous (AIR-152).
func (b Binding) appendAAD(dst []byte) ([]byte, error) {
	for i, s := range [...]string{b.ID, b.From, b.To, b.ThreadID} {
		if s == "" || strings.IndexByte(s, 0) >= 0 {
			return dst, errBadAAD.err("id, from, to and thread_id must not be empty or hold a NUL")
		}
		if i > 0 {
			dst = append(dst, 0)
		}
		dst = append(dst, s...)
	}
	return dst, nil
}

func (e *Envelope) binding() Binding {
	return Binding{ID: e.ID, From: e.From, To: e.To, ThreadID: e.ThreadID}
}

// Seal encrypts a body for one recipient and one envelope and returns the body of type encrypted as
// JSON (section 14). The error is [ErrBadKey] without a key, bad_aad for an empty or ambiguous field, one of
// [Canonicalize], [ErrInvalidEnvelope] if the body is not an object, or for a body of a negotiation
// [ErrNullForbidden] or [ErrEmptyArray].
func Seal(to *PublicKey, b Binding, body []byte) ([]byte, error) {
	return sealWith(rand.Reader, to, b, body)
}

// sealWith is like [Seal] with the given source of randomness: 32 bytes for the ephemeral key and
// then 12 bytes for the nonce. Neither may be used twice. It is meant for tests with known answers.
func sealWith(random io.Reader, to *PublicKey, b Binding, body []byte) ([]byte, error) {
	if err := to.check(); err != nil {
		return nil, err
	}
	var array [512]byte
	aad, err := b.appendAAD(array[:0])
	if err != nil {
		return nil, err
	}
	c := getScratch()
	defer putScratch(c)
	out, ok := c.Append(c.out[:0], body)
	c.out = out
	if err := c.refuse(ok); err != nil {
		return nil, err
	}
	if !c.IsObject {
		return nil, ErrInvalidEnvelope.err("the body is no object")
	}
	if t := memberText(out, c.Top, "type"); isNegotiation(t) { // AIR-D37
		if err := c.refuseEmpty(ProfileSpec); err != nil {
			return nil, err
		}
	}
	var seed [44]byte
	if _, err := io.ReadFull(random, seed[:]); err != nil {
		return nil, err
	}
	eph, err := ecdh.X25519().NewPrivateKey(seed[:32])
	if err != nil {
		return nil, err
	}
	z, err := eph.ECDH(to.x)
	if err != nil {
		return nil, ErrBadKey.because("no agreement with this key", err)
	}
	epk := eph.PublicKey().Bytes()
	key := deriveKey(z, epk)
	aead, err := chacha20poly1305.New(key[:])
	if err != nil {
		return nil, err
	}
	nonce := seed[32:]
	c.form = aead.Seal(c.form[:0], nonce, out, aad)

	var multikey [34]byte
	multikey[0], multikey[1] = byte(keyX25519), 1
	copy(multikey[2:], epk)
	enc := base64.RawURLEncoding
	dst := make([]byte, 0, 192+enc.EncodedLen(len(c.form)))
	dst = append(dst, `{"alg":"`+sealSuite+`","ct":"`...)
	dst = enc.AppendEncode(dst, c.form)
	dst = append(dst, `","epk":"z`...)
	dst = appendBase58(dst, multikey[:])
	dst = append(dst, `","nonce":"`...)
	dst = enc.AppendEncode(dst, nonce)
	return append(dst, `","type":"encrypted","v":1}`...), nil
}

func memberText(s []byte, ms []canon.Member, name string) string {
	for _, m := range ms {
		if string(s[m.NameAt+1:m.NameEnd-1]) == name {
			t, _ := textOf(string(s[m.NameEnd+1 : m.End]))
			return t
		}
	}
	return ""
}

// errSealed is the error of every invalid box. The cause must not be visible (AIR-D39).
func errSealed() *Error { return ErrDecryptFailed.err("decryption failed") }

// Open decrypts the body of an envelope of type encrypted, with the current key or a retired one. It
// returns the plaintext as sealed: a JSON object, perhaps not in canonical form. Verify the
// signature of the envelope first. The error is always [ErrDecryptFailed].
func (id *Identity) Open(e *Envelope) ([]byte, error) {
	if id.isZero() || e == nil {
		return nil, errSealed()
	}
	plain, _, err := id.open(e.binding(), e.BodyJSON())
	return plain, err
}

// openBody decrypts the body, given as JSON, of the envelope with binding b.
func (k *boxKey) openBody(b Binding, body []byte) ([]byte, error) {
	c := getScratch()
	defer putScratch(c)
	out, ok := c.Append(c.out[:0], body)
	c.out = out
	if c.refuse(ok) != nil || !c.IsObject {
		return nil, errSealed()
	}
	var box sealed
	for _, m := range c.Top {
		v := out[m.NameEnd+1 : m.End]
		switch string(out[m.NameAt+1 : m.NameEnd-1]) {
		case "type":
			box.isComplete = box.isComplete || string(v) == `"`+bodyTypeEncrypted+`"`
		case "alg":
			box.suite = string(v) == `"`+sealSuite+`"`
		case "v":
			box.version = string(v) == "1"
		case "epk":
			box.epk = v
		case "nonce":
			box.nonce = v
		case "ct":
			box.ct = v
		}
	}
	plain, ok := k.open(c, &box, b)
	if !ok {
		return nil, errSealed()
	}
	if c.out, ok = c.AppendVerbatim(c.out[:0], plain); !ok || c.HasDuplicate || !c.IsObject {
		return nil, errSealed()
	}
	return plain, nil
}

// sealed has the members of a sealed body; the last three as JSON.
type sealed struct {
	isComplete, suite, version bool
	epk, nonce, ct             []byte
}

// A boxSpace is the space of the opening of a box, so that it does not allocate.
type boxSpace struct {
	aad      []byte
	nonce    [12]byte
	multikey [34]byte
	key      [32]byte // wiped after use
}

func (k *boxKey) open(c *scratch, box *sealed, b Binding) ([]byte, bool) {
	if !box.isComplete || !box.suite || !box.version {
		return nil, false
	}
	multikey := &c.box.multikey
	if !decodeEphemeral(multikey, box.epk) {
		return nil, false
	}
	nonce, ok := decodeBase64(c.box.nonce[:0], box.nonce)
	if !ok || len(nonce) != chacha20poly1305.NonceSize {
		return nil, false
	}
	ct, ok := decodeBase64(c.form[:0], box.ct)
	if !ok || len(ct) < chacha20poly1305.Overhead {
		return nil, false
	}
	c.form = ct
	aad, err := b.appendAAD(c.box.aad[:0])
	if err != nil {
		return nil, false
	}
	c.box.aad = aad
	pub, err := ecdh.X25519().NewPublicKey(multikey[2:])
	if err != nil {
		return nil, false
	}
	z, err := k.x.ECDH(pub) // refuses a shared secret of zeros (AIR-D36)
	if err != nil {
		return nil, false
	}
	c.box.key = deriveKey(z, multikey[2:])
	aead, err := chacha20poly1305.New(c.box.key[:])
	c.box.key = [32]byte{}
	if err != nil {
		return nil, false
	}
	plain, err := aead.Open(make([]byte, 0, len(ct)), nonce, ct, aad)
	return plain, err == nil
}

// decodeEphemeral decodes the canonical text of a sender's key.
func decodeEphemeral(multikey *[34]byte, value []byte) bool {
	epk, ok := plainText(value)
	return ok && len(epk) >= 2 && epk[0] == 'z' && decodeBase58(multikey[:], epk[1:]) &&
		multikey[0] == byte(keyX25519) && multikey[1] == 1 && reducedX25519(multikey[2:])
}

// plainText returns the content of a canonical string without escapes.
func plainText(value []byte) ([]byte, bool) {
	if len(value) < 2 || value[0] != '"' || bytes.IndexByte(value, '\\') >= 0 {
		return nil, false
	}
	return value[1 : len(value)-1], true
}

// decodeBase64 decodes base64url without padding and without unused bits. Line breaks, which the
// standard decoder ignores, are escapes in JSON and thus refused.
func decodeBase64(dst, value []byte) ([]byte, bool) {
	text, ok := plainText(value)
	if !ok {
		return nil, false
	}
	dst, err := base64.RawURLEncoding.Strict().AppendDecode(dst, text)
	return dst, err == nil
}

// deriveKey is HKDF-SHA256 of the shared secret with an empty salt and the info of 14.3. It does
// not allocate, unlike that of the standard library.
func deriveKey(z, epk []byte) [32]byte {
	var salt [32]byte
	prk := hmacSHA256(&salt, z)
	var array [64]byte
	info := append(append(array[:0], sealInfo...), epk...)
	return hmacSHA256(&prk, append(info, 1))
}

// hmacSHA256 supports messages of up to 64 bytes.
func hmacSHA256(key *[32]byte, msg []byte) [32]byte {
	var in [128]byte
	var out [96]byte
	for i := range 64 {
		var k byte
		if i < 32 {
			k = key[i]
		}
		in[i], out[i] = k^0x36, k^0x5c
	}
	n := copy(in[64:], msg)
	h := sha256.Sum256(in[:64+n])
	copy(out[64:], h[:])
	return sha256.Sum256(out[:])
}
