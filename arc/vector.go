// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package arc

import (
	"context"
	"errors"
	"io"
	"net/netip"

	"github.com/fivewire/fivewire/arc/internal/hook"
	"github.com/fivewire/fivewire/internal/vector"
)

func init() {
	hook.Vector = vectors.Run
	hook.Webhooks = func(opts any, lookup func(context.Context, string, string) ([]netip.Addr, error)) {
		if o, ok := opts.(*WebhookOptions); ok {
			o.exact, o.lookup = true, lookup
		}
	}
}

// vectors are the operations of the test vectors on parts of this package that are not exported.
var vectors = vector.Ops{
	"error_family": vector.New(func(in struct{ Code Code }) (any, error) { return in.Code.family(), nil }),
	"sse_decode":   vector.New(vectorSSEDecode),
}

// A cutReader returns its data in pieces that end at the given offsets.
type cutReader struct {
	data []byte
	cuts []int
	at   int
}

func (r *cutReader) Read(p []byte) (int, error) {
	if r.at >= len(r.data) {
		return 0, io.EOF
	}
	for len(r.cuts) > 0 && r.cuts[0] <= r.at {
		r.cuts = r.cuts[1:]
	}
	end := len(r.data)
	if len(r.cuts) > 0 && r.cuts[0] < end {
		end = r.cuts[0]
	}
	n := copy(p, r.data[r.at:end])
	r.at += n
	return n, nil
}

func vectorSSEDecode(in struct {
	Wire     []byte
	Cuts     []int
	MaxEvent int
}) (any, error) {
	r := newStreamReader(&cutReader{data: in.Wire, cuts: in.Cuts}, in.MaxEvent, nil)
	events := []any{}
	text, status, end := "", "", ""
	for end == "" || end == "error" {
		ev, err := r.Next()
		var e *Error
		switch {
		case errors.As(err, &e):
			events = append(events, map[string]any{"kind": "error", "code": e.Code, "message": e.Message})
			end = "error"
			continue
		case end == "error" && err != nil:
			return vectorStream(events, text, r.ChatID(), status, end), nil
		case errors.Is(err, ErrTruncated):
			end = "truncated"
		case errors.Is(err, ErrMalformedEvent):
			end = "malformed"
		case errors.Is(err, ErrTooLarge):
			end = "too_large"
		case err != nil:
			return nil, err
		case ev.Done:
			events = append(events, map[string]any{"kind": "done", "chatId": ev.ChatID, "status": ev.Status})
			status = string(ev.Status)
			if end == "" {
				end = "done"
			}
		default:
			events = append(events, map[string]any{"kind": "chunk", "chatId": ev.ChatID, "message": ev.Message})
			text += ev.Text
		}
	}
	return vectorStream(events, text, r.ChatID(), status, end), nil
}

func vectorStream(events []any, text, chatID, status, end string) any {
	return map[string]any{"events": events, "text": text, "chatId": chatID, "status": status, "end": end}
}
