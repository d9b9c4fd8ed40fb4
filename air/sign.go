// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package air

import (
	"crypto"
	"crypto/ed25519"
	"crypto/rand"

	"github.com/fivewire/fivewire/air/internal/canon"
)

// A Form is one of the two signing inputs of an envelope (AIR-D10). Where signatures are verified, the empty form
// means both.
type Form string

// The forms. No text belongs to both: the first always has a top-level member signature, the second
// never has it.
const (
	FormSpec     Form = "spec"     // with the member signature, which is null
	FormDeployed Form = "deployed" // without that member
)

func (f Form) has(form Form) bool { return f == "" || f == form }

// signedForm returns the form in which a profile signs.
func (p Profile) signedForm() Form {
	if p == ProfileDeployed {
		return FormDeployed
	}
	return FormSpec
}

// accepts returns the form that a profile verifies, or "" for both (AIR-D27).
func (p Profile) accepts() Form {
	if p == ProfileInterop || p == ProfileDeployed {
		return ""
	}
	return FormSpec
}

// signingInput returns the signed bytes of any JSON object. It applies the rules of [Canonicalize]
// only (AIR-D11) and ignores a signature.
func signingInput(envelope []byte, form Form) ([]byte, error) {
	c := getScratch()
	defer putScratch(c)
	if err := c.signable(envelope); err != nil {
		return nil, err
	}
	return c.AppendSigned(nil, c.out, form != FormDeployed), nil
}

// signable returns the canonical form of an object without a signature.
func (c *scratch) signable(envelope []byte) error {
	out, ok := c.AppendEnvelope(c.out[:0], envelope)
	c.out = out
	if err := c.refuse(ok); err != nil {
		return err
	}
	if !c.IsObject {
		return ErrInvalidEnvelope.err("not an object")
	}
	return nil
}

// Sign signs a JSON object and returns its canonical form with the signature set.
// An object whose signature is neither absent nor null is refused with
// [ErrAlreadySigned]. The signer must hold an Ed25519 key.
func Sign(envelope []byte, signer crypto.Signer, form Form) ([]byte, error) {
	if err := checkWord("form", form, FormSpec, FormDeployed); err != nil {
		return nil, err
	}
	return appendSigned(nil, envelope, signer, form)
}

// appendSigned is like [Sign] and appends to dst.
func appendSigned(dst, envelope []byte, signer crypto.Signer, form Form) ([]byte, error) {
	c := getScratch()
	defer putScratch(c)
	if err := c.signable(envelope); err != nil {
		return dst, err
	}
	if c.SignatureAt >= 0 && string(c.Signature) != "null" {
		return dst, ErrAlreadySigned.err("the envelope carries a signature")
	}
	in := c.out
	if form == FormDeployed && c.SignatureAt >= 0 || form != FormDeployed && c.SignatureAt < 0 {
		c.form = c.AppendSigned(c.form[:0], c.out, form != FormDeployed)
		in = c.form
	}
	sig, err := signBytes(signer, in)
	if err != nil {
		return dst, err
	}
	var text [92]byte
	value := append(appendBase58(append(text[:0], '"', 'z'), sig), '"')
	if c.SignatureAt < 0 {
		return c.InsertSignature(dst, c.out, string(value)), nil
	}
	m := c.Top[c.SignatureAt]
	dst = append(dst, c.out[:m.NameEnd+1]...)
	dst = append(dst, value...)
	return append(dst, c.out[m.End:]...), nil
}

func signBytes(signer crypto.Signer, text []byte) ([]byte, error) {
	if key, ok := signer.(ed25519.PrivateKey); ok && len(key) == ed25519.PrivateKeySize {
		return ed25519.Sign(key, text), nil
	}
	if signer == nil {
		return nil, ErrBadKey.err("signer missing")
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
// error is [ErrBadKey] without a key, [ErrBadSignature], one of [Canonicalize], or [ErrInvalidEnvelope] for a
// text that is not an object or whose signature is neither a string nor null. It allocates nothing.
func Verify(envelope []byte, key *PublicKey, accept Form) (Form, error) {
	if err := key.check(); err != nil {
		return "", err
	}
	c := getScratch()
	defer putScratch(c)
	if err := c.signable(envelope); err != nil {
		return "", err
	}
	var sig [64]byte
	switch {
	case c.SignatureAt < 0 || c.Signature[0] == 'n':
		return "", ErrBadSignature.err(detailNoSignature)
	case c.Signature[0] != '"':
		return "", ErrInvalidEnvelope.err("signature is malformed")
	}
	if err := decodeSignature(&sig, c.Signature[1:len(c.Signature)-1]); err != nil {
		return "", err
	}
	if accept.has(FormSpec) && ed25519.Verify(key.ed, c.out, sig[:]) {
		return FormSpec, nil
	}
	if accept.has(FormDeployed) {
		c.form = c.AppendSigned(c.form[:0], c.out, false)
		if ed25519.Verify(key.ed, c.form, sig[:]) {
			return FormDeployed, nil
		}
	}
	return "", ErrBadSignature.err(detailNotVerified)
}

// Verify verifies the signature of the envelope and returns the form in which it was signed. The
// error is [ErrBadSignature], or [ErrBadKey] without a key.
func (e *Envelope) Verify(key *PublicKey, accept Form) (Form, error) {
	if err := key.check(); err != nil {
		return "", err
	}
	var sig [64]byte
	if err := decodeSignature(&sig, e.Signature); err != nil {
		return "", err
	}
	c := getScratch()
	defer putScratch(c)
	for _, form := range [...]Form{FormSpec, FormDeployed} {
		if accept.has(form) && ed25519.Verify(key.ed, e.signed(c, form), sig[:]) {
			return form, nil
		}
	}
	return "", ErrBadSignature.err(detailNotVerified)
}

// signed returns the text that a signature covers in a form, in the memory of c.
func (e *Envelope) signed(c *scratch, form Form) []byte {
	if form == FormDeployed {
		c.form = canon.AppendWithout(c.form[:0], e.text, e.sigPrev, e.sigNext, e.sigAt, e.sigEnd)
	} else {
		c.form = append(c.form[:0], e.text...)
	}
	return c.form
}

// sign signs an envelope whose signature is null.
func (e *Envelope) sign(signer crypto.Signer, form Form) error {
	c := getScratch()
	defer putScratch(c)
	sig, err := signBytes(signer, e.signed(c, form))
	if err != nil {
		return err
	}
	var text [90]byte
	e.Signature = string(appendBase58(append(text[:0], 'z'), sig))
	return nil
}
