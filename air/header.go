// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package air

// A Header has the members of an envelope that a relay needs.
type Header struct{ ID, From, To string }

// DecodeHeader validates what a relay validates (section g): the top-level members as in
// [ProfileInterop], and the body as JSON with a type only. It verifies no signature. The error is
// an [*Error].
func DecodeHeader(data []byte) (*Header, error) {
	c := getCanon()
	defer putCanon(c)
	c.envelope = true
	out, ok := c.append(c.out[:0], data)
	c.out = out
	if err := c.refuse(ok); err != nil {
		return nil, err
	}
	if !c.object {
		return nil, ErrInvalidEnvelope.err("not an object")
	}
	for i, m := range c.top {
		if i != c.sigAt && string(out[m.ke+1:m.ve]) == "null" && string(out[m.ks:m.ke]) != `"in_reply_to"` {
			return nil, ErrNullForbidden.err("null is not allowed")
		}
	}
	e := Envelope{text: string(out)}
	if err := e.readFields(fields{e.text, c.top}, c, ProfileInterop); err != nil {
		return nil, err
	}
	body := fields{e.text[e.bodyAt:e.bodyEnd], c.body}
	if _, ok := body.str("type"); !ok {
		return nil, ErrInvalidEnvelope.err("the body has no type")
	}
	if e.Signature == "" {
		return nil, ErrInvalidEnvelope.err("signature is missing")
	}
	return &Header{ID: e.ID, From: e.From, To: e.To}, nil
}
