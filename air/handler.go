// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package air

import (
	"context"
	"net/http"
)

// A Delivery is a verified envelope for the application. Its content comes from the canonical form
// that the sender signed.
type Delivery struct {
	Envelope *Envelope
	Body     Body // decrypted if Sealed is set
	Sealed   bool
	Form     Form // of the signature

	// BodyJSON is the body as canonical JSON. Sealed bodies of application types may have floats,
	// which keep their spelling.
	BodyJSON []byte

	// Thread is the negotiation after this message; nil for other bodies.
	Thread *Thread

	// Expired reports whether the expires_at of an Offer or a Counter has passed.
	Expired bool

	// FromRelay reports whether the envelope was pulled from a relay.
	FromRelay bool

	// Redelivered reports whether a process crashed while it was handling this envelope. The
	// application may have seen it. A handler that must act at most once uses Envelope.ID as a key
	// of its actions.
	Redelivered bool

	isHandled bool // the handler was called
}

// A Handler is the application of an [Inbox]. It is called concurrently. An error of [Reject] refuses
// the envelope permanently. Every other error is a failure: the handler is called again with the next
// copy or, for pulled and queued mail, after 5 s, twice as long after each failure, until the envelope
// becomes a dead letter (AIR-D74, AIR-D75).
type Handler interface {
	ServeAIR(ctx context.Context, d *Delivery) error
}

// HandlerFunc makes a function a [Handler].
type HandlerFunc func(ctx context.Context, d *Delivery) error

// ServeAIR calls f.
func (f HandlerFunc) ServeAIR(ctx context.Context, d *Delivery) error { return f(ctx, d) }

// Middleware wraps a [Handler].
type Middleware func(Handler) Handler

// BlockSenders returns a middleware that silently drops envelopes of blocked senders. blocked is
// called with each DID after the signature has verified.
func BlockSenders(blocked func(did string) bool) Middleware {
	return func(next Handler) Handler {
		return HandlerFunc(func(ctx context.Context, d *Delivery) error {
			if blocked(d.Envelope.From) {
				return nil
			}
			return next.ServeAIR(ctx, d)
		})
	}
}

// Reject returns the error with which a [Handler] refuses an envelope permanently. A sender that pushes
// gets the code and the detail, with status 400 if the code has none, 429, or a status of 500 or above.
// A pushed move that is refused does not count in its thread. The error wraps an [*Error], whose Details may be set.
func Reject(code Code, detail string) error {
	e := code.err(detail)
	status, _ := code.wire()
	e.isBadRequest = status == http.StatusTooManyRequests || status >= http.StatusInternalServerError
	return &rejection{e}
}

// A rejection is an error of Reject.
type rejection struct{ err *Error }

func (r *rejection) Error() string { return r.err.Error() }
func (r *rejection) Unwrap() error { return r.err }
