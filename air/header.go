// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package air

import "github.com/fivewire/fivewire/air/internal/hook"

// decodeHeader is hook.DecodeHeader.
func decodeHeader(data []byte) (*hook.Header, error) {
	c := getScratch()
	defer putScratch(c)
	out, ok := c.AppendEnvelope(c.out[:0], data)
	c.out = out
	if err := c.refuse(ok); err != nil {
		return nil, err
	}
	if !c.IsObject {
		return nil, ErrInvalidEnvelope.err("not an object")
	}
	for i, m := range c.Top {
		if i != c.SignatureAt && string(out[m.NameEnd+1:m.End]) == "null" && string(out[m.NameAt:m.NameEnd]) != `"in_reply_to"` {
			return nil, ErrNullForbidden.err("null is not allowed")
		}
	}
	e := Envelope{text: string(out)}
	if err := e.readFields(fields{e.text, c.Top}, c, ProfileInterop); err != nil {
		return nil, err
	}
	body := fields{e.text[e.bodyAt:e.bodyEnd], c.Body}
	if _, ok := body.str("type"); !ok {
		return nil, ErrInvalidEnvelope.err("the body has no type")
	}
	if e.Signature == "" {
		return nil, ErrInvalidEnvelope.err("signature is missing")
	}
	return &hook.Header{ID: e.ID, From: e.From, To: e.To}, nil
}
