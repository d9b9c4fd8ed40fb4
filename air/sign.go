// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package air

import (
	"crypto"
	"crypto/ed25519"
	"crypto/rand"
)

// A Form is one of the two signing inputs of an envelope (AIR-D10).
type Form string

// The forms. No text belongs to both: the first always has a top-level member signature, the second
// never has it.
const (
	FormSpec     Form = "spec"     // with the member signature, which is null
	FormDeployed Form = "deployed" // without that member
)

// A FormSet is the set of signature forms that are accepted.
type FormSet string

// The sets of forms. The empty one means both.
const (
	FormSetAny      FormSet = "both"
	FormSetSpec     FormSet = "spec"
	FormSetDeployed FormSet = "deployed"
)

// An unknown word accepts no form.
func (a FormSet) spec() bool     { return a == "" || a == FormSetAny || a == FormSetSpec }
func (a FormSet) deployed() bool { return a == "" || a == FormSetAny || a == FormSetDeployed }

// signedForm returns the form in which a profile signs.
func (p Profile) signedForm() Form {
	if p == ProfileDeployed {
		return FormDeployed
	}
	return FormSpec
}

// accepts returns the forms that a profile verifies (AIR-D27).
func (p Profile) accepts() FormSet {
	if p == ProfileInterop || p == ProfileDeployed {
		return FormSetAny
	}
	return FormSetSpec
}

// signingInput returns the signed bytes of any JSON object. It applies the rules of [Canonicalize]
// only (AIR-D11) and ignores a signature.
func signingInput(envelope []byte, form Form) ([]byte, error) {
	c := getCanon()
	defer putCanon(c)
	if err := c.signable(envelope); err != nil {
		return nil, err
	}
	return c.appendForm(nil, c.out, form), nil
}

// signable returns the canonical form of an object without a signature.
func (c *canon) signable(envelope []byte) error {
	c.envelope = true
	out, ok := c.append(c.out[:0], envelope)
	c.out = out
	if err := c.refuse(ok); err != nil {
		return err
	}
	if !c.object {
		return ErrInvalidEnvelope.err("not an object")
	}
	return nil
}

// appendForm appends one of the two forms of the canonical text s, in which a signature is null.
func (c *canon) appendForm(dst, s []byte, form Form) []byte {
	k := c.sigAt
	switch {
	case form != FormDeployed && k >= 0, form == FormDeployed && k < 0:
		return append(dst, s...)
	case form == FormDeployed:
		prev, next := int32(-1), int32(-1)
		if k > 0 {
			prev = c.top[k-1].ve
		}
		if k < len(c.top)-1 {
			next = c.top[k+1].ks
		}
		return appendWithout(dst, s, prev, next, c.top[k].ks, c.top[k].ve)
	}
	return c.insertSignature(dst, s, "null")
}

// appendWithout appends s without the member from ks to ve and without one of its adjacent commas.
func appendWithout[T string | []byte](dst []byte, s T, prev, next, ks, ve int32) []byte {
	switch {
	case next >= 0:
		dst = append(dst, s[:ks]...)
		return append(dst, s[next:]...)
	case prev >= 0:
		dst = append(dst, s[:prev]...)
	default:
		dst = append(dst, s[:ks]...)
	}
	return append(dst, s[ve:]...)
}

// insertSignature appends s with a member signature at its sorted position.
func (c *canon) insertSignature(dst, s []byte, value string) []byte {
	k := 0
	for k < len(c.top) && compareUTF16(c.name(s, &c.top[k]), []byte("signature")) < 0 {
		k++
	}
	at := int32(len(s) - 1)
	if k < len(c.top) {
		at = c.top[k].ks
	}
	dst = append(dst, s[:at]...)
	if k > 0 && k == len(c.top) {
		dst = append(dst, ',')
	}
	dst = append(dst, `"signature":`...)
	dst = append(dst, value...)
	if k < len(c.top) {
		dst = append(dst, ',')
	}
	return append(dst, s[at:]...)
}

// Sign signs a JSON object and returns its canonical form with the signature set.
// An object whose signature is neither absent nor null is refused with
// [ErrAlreadySigned]. The signer must hold an Ed25519 key.
func Sign(envelope []byte, signer crypto.Signer, form Form) ([]byte, error) {
	return appendSigned(nil, envelope, signer, form)
}

// appendSigned is like [Sign] and appends to dst.
func appendSigned(dst, envelope []byte, signer crypto.Signer, form Form) ([]byte, error) {
	c := getCanon()
	defer putCanon(c)
	if err := c.signable(envelope); err != nil {
		return dst, err
	}
	if c.sigAt >= 0 && string(c.sig) != "null" {
		return dst, ErrAlreadySigned.err("the envelope carries a signature")
	}
	in := c.out
	if form == FormDeployed && c.sigAt >= 0 || form != FormDeployed && c.sigAt < 0 {
		c.form = c.appendForm(c.form[:0], c.out, form)
		in = c.form
	}
	sig, err := signBytes(signer, in)
	if err != nil {
		return dst, err
	}
	var text [92]byte
	value := append(appendBase58(append(text[:0], '"', 'z'), sig), '"')
	if c.sigAt < 0 {
		return c.insertSignature(dst, c.out, string(value)), nil
	}
	m := c.top[c.sigAt]
	dst = append(dst, c.out[:m.ke+1]...)
	dst = append(dst, value...)
	return append(dst, c.out[m.ve:]...), nil
}

func signBytes(signer crypto.Signer, text []byte) ([]byte, error) {
	if key, ok := signer.(ed25519.PrivateKey); ok && len(key) == ed25519.PrivateKeySize {
		return ed25519.Sign(key, text), nil
	}
	sig, err := signer.Sign(rand.Reader, text, crypto.Hash(0))
	if err != nil {
		return nil, ErrBadKey.because("the signer failed", err)
	}
	if len(sig) != ed25519.SignatureSize {
		return nil, ErrBadKey.err("the signer does not make Ed25519 signatures")
	}
	return sig, nil
}

// Messages of a refused signature. The first two are in the text of 5.4 and 6.2.
const (
	detailNoSignature  = "signature field absent or null"
	detailNotVerified  = "signature does not verify"
	detailNotMultibase = "signature is not the multibase text of 64 bytes"
)

// decodeSignature decodes a signature, which has one spelling (AIR-D13).
func decodeSignature[T string | []byte](sig *[64]byte, text T) error {
	if len(text) == 0 {
		return ErrBadSignature.err(detailNoSignature)
	}
	if text[0] != 'z' || !decodeBase58(sig[:], text[1:]) {
		return ErrBadSignature.err(detailNotMultibase)
	}
	return nil
}

// Verify verifies the signature of any JSON object and returns the form in which it was signed. The
// error is [ErrBadSignature], one of [Canonicalize], or [ErrInvalidEnvelope] for a text that is not
// an object or whose signature is neither a string nor null. It allocates nothing.
func Verify(envelope []byte, key *PublicKey, accept FormSet) (Form, error) {
	c := getCanon()
	defer putCanon(c)
	if err := c.signable(envelope); err != nil {
		return "", err
	}
	var sig [64]byte
	switch {
	case c.sigAt < 0 || c.sig[0] == 'n':
		return "", ErrBadSignature.err(detailNoSignature)
	case c.sig[0] != '"':
		return "", ErrInvalidEnvelope.err("signature is malformed")
	}
	if err := decodeSignature(&sig, c.sig[1:len(c.sig)-1]); err != nil {
		return "", err
	}
	if accept.spec() && ed25519.Verify(key.ed, c.out, sig[:]) {
		return FormSpec, nil
	}
	if accept.deployed() {
		c.form = c.appendForm(c.form[:0], c.out, FormDeployed)
		if ed25519.Verify(key.ed, c.form, sig[:]) {
			return FormDeployed, nil
		}
	}
	return "", ErrBadSignature.err(detailNotVerified)
}

// Verify verifies the signature of the envelope and returns the form in which it was signed. The
// error is [ErrBadSignature].
func (e *Envelope) Verify(key *PublicKey, accept FormSet) (Form, error) {
	var sig [64]byte
	if err := decodeSignature(&sig, e.Signature); err != nil {
		return "", err
	}
	c := getCanon()
	defer putCanon(c)
	if accept.spec() {
		c.form = append(c.form[:0], e.text...)
		if ed25519.Verify(key.ed, c.form, sig[:]) {
			return FormSpec, nil
		}
	}
	if accept.deployed() {
		c.form = appendWithout(c.form[:0], e.text, e.sigPrev, e.sigNext, e.sigAt, e.sigEnd)
		if ed25519.Verify(key.ed, c.form, sig[:]) {
			return FormDeployed, nil
		}
	}
	return "", ErrBadSignature.err(detailNotVerified)
}
