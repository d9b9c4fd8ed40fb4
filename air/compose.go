// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package air

import (
	"crypto"
	"math"
	"time"
	"unicode/utf8"

	"github.com/fivewire/fivewire/air/internal/canon"
	"github.com/fivewire/fivewire/internal/option"
)

// A Draft is a message before it is signed. [Client.Send] fills in empty fields: ids, the nonce,
// the time and the sender.
type Draft struct {
	ID        string
	From, To  string // DIDs
	Time      time.Time
	Timestamp string // Timestamp as the caller spells it; empty for the usual spelling
	InReplyTo string // "" for none
	ThreadID  string
	Nonce     string
	Body      Body
}

// EnvelopeOptions adjusts [NewEnvelope].
type EnvelopeOptions struct {
	// Profile selects validation and signature form. Empty means ProfileSpec.
	Profile Profile

	// BodyTypes are the body types besides those of the specification.
	BodyTypes []string

	// MaxMessage bounds the envelope. Zero means 65,536; a negative value removes the
	// bound.
	MaxMessage int
}

// NewEnvelope returns a signed envelope of a draft, with a new nonce if it has none: validated by the profile, signed in
// its form, in canonical form. An empty InReplyTo is omitted in [ProfileSpec] and sent as null in
// [ProfileDeployed], as the deployed peers expect (AIR-D20).
func NewEnvelope(d *Draft, signer crypto.Signer, opts *EnvelopeOptions) (*Envelope, error) {
	if d == nil {
		d = &Draft{}
	}
	timestamp := d.Timestamp
	if timestamp == "" {
		timestamp = formatTime(d.Time)
	}
	var o EnvelopeOptions
	if opts != nil {
		o = *opts
	}
	p := o.Profile.or(ProfileSpec)
	nonce := d.Nonce
	if nonce == "" {
		nonce = newNonce()
	}
	for _, s := range []string{d.ID, d.From, d.To, timestamp, d.InReplyTo, d.ThreadID, nonce} {
		if !utf8.ValidString(s) {
			return nil, ErrInvalidJSON.err("a field is not UTF-8")
		}
	}
	if isMissing(d.Body) {
		return nil, ErrInvalidEnvelope.err("body is missing")
	}
	// Canonicalized separately, so that no text of a body can become a member of the envelope.
	body, err := Canonicalize(d.Body.appendJSON(nil))
	if err != nil {
		return nil, err
	}
	text := make([]byte, 0, len(body)+640)
	text = append(append(text, `{"body":`...), body...)
	field := func(name, value string) {
		text = append(append(append(text, `,"`...), name...), `":`...)
		text = canon.AppendQuoted(text, value)
	}
	field("from", d.From)
	field("id", d.ID)
	switch {
	case d.InReplyTo != "":
		field("in_reply_to", d.InReplyTo)
	case p == ProfileDeployed:
		text = append(text, `,"in_reply_to":null`...)
	}
	field("nonce", nonce)
	text = append(text, `,"signature":null`...)
	field("thread_id", d.ThreadID)
	field("timestamp", timestamp)
	field("to", d.To)
	text = append(text, '}')

	limit := option.Or(o.MaxMessage, defaultMaxMessage, math.MaxInt32)
	e, err := DecodeEnvelope(text, &DecodeOptions{Profile: p, BodyTypes: o.BodyTypes, MaxMessage: limit})
	if err != nil {
		return nil, err
	}
	if p == ProfileSpec && e.Type == bodyTypeOffer && e.InReplyTo != "" {
		return nil, ErrInvalidEnvelope.err("in_reply_to on the first message of a thread (AIR-038)")
	}
	if err := e.sign(signer, p.signedForm()); err != nil {
		return nil, err
	}
	if len(e.text)-len("null")+len(e.Signature)+2 > limit {
		return nil, errTooLarge()
	}
	return e, nil
}
