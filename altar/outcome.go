// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package altar

import (
	"bytes"
	"errors"
)

// A storedOutcome is the outcome of a call in the store: messages in wire form, one a line.
type storedOutcome struct {
	result *ToolResult    // or
	chunks []*StreamChunk // those that are retained
}

var errBadOutcome = errors.New("altar: store: malformed outcome")

// encodeOutcome returns the record of an outcome.
func (h *Host) encodeOutcome(o *storedOutcome) []byte {
	data, err := o.encode()
	if err != nil { // no peer gets it; that the call ran stays known
		h.opts.Logger.ErrorContext(h.ctx, "altar: outcome not encoded", "err", err)
		data, _ = (&storedOutcome{result: &ToolResult{InvocationID: "x", Error: errNotRetained()}}).encode()
	}
	return data
}

func (o *storedOutcome) encode() (out []byte, err error) {
	if o.result != nil {
		own := *o.result
		own.header = header{}
		return appendMessage(nil, &own, true)
	}
	for i, c := range o.chunks {
		if i > 0 {
			out = append(out, '\n')
		}
		if out, err = appendMessage(out, c, true); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func decodeOutcome(data []byte) (*storedOutcome, error) {
	o := &storedOutcome{}
	var line []byte
	for len(data) > 0 {
		line, data, _ = bytes.Cut(data, []byte{'\n'})
		m, err := DecodeMessage(line, len(line))
		if err != nil {
			return nil, errors.Join(errBadOutcome, err)
		}
		switch m := m.(type) {
		case *ToolResult:
			o.result = m
		case *StreamChunk:
			o.chunks = append(o.chunks, m)
		}
	}
	if n := len(o.chunks); o.result == nil && (n == 0 || !o.chunks[n-1].IsFinal) {
		return nil, errBadOutcome
	}
	return o, nil
}
