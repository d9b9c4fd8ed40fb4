// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package altar

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/fivewire/fivewire/internal/guard"
	"github.com/fivewire/fivewire/internal/randid"
)

// A renewal authenticates one connection of a client or Runtime with the tokens of a source, and
// again before the authentication expires (ALT-D40). A nil renewal does nothing.
type renewal struct {
	source  TokenSource
	link    *link
	log     *slog.Logger
	id      string       // request id of each Authenticate
	answers chan Message // capacity 1
}

const (
	minRenewal   = time.Second // between two attempts
	renewalRetry = time.Minute // after a refusal, while no expiry is known
)

// newRenewal returns the renewal of a connection that was just dialed. Without a source it is
// that of the dial options. Over HTTP each request has a token.
func newRenewal(source TokenSource, conn Conn, l *link, log *slog.Logger) *renewal {
	switch c := conn.(type) {
	case *httpConn:
		return nil
	case *wireConn:
		if source == nil {
			source = c.source
		}
	}
	if source == nil {
		return nil
	}
	return &renewal{source: source, link: l, log: log, id: randid.UUID4(), answers: make(chan Message, 1)}
}

// send sends a new token.
func (r *renewal) send(ctx context.Context) error {
	if r == nil {
		return nil
	}
	var token string
	err := guard.CallApart("TokenSource", func() (err error) {
		token, err = r.source.Token(ctx)
		return err
	})
	if err != nil {
		return fmt.Errorf("altar: token source: %w", err)
	}
	return r.link.send(ctx, &Authenticate{Token: token, header: header{RequestID: r.id}})
}

// take takes the answer to an Authenticate, and reports whether m is one.
func (r *renewal) take(m Message) bool {
	if r == nil || m.head().RequestID != r.id {
		return false
	}
	select {
	case r.answers <- m:
	default: // an unexpected one
	}
	return true
}

// run renews the authentication until the connection has ended, or ctx.
func (r *renewal) run(ctx context.Context, done <-chan struct{}) {
	if r == nil {
		return
	}
	var expires time.Time
	for {
		delay, err := renewalRetry, error(nil)
		select {
		case <-done:
			return
		case <-ctx.Done():
			return
		case m := <-r.answers:
			switch m := m.(type) {
			case *Authenticated:
				if m.ExpiresIn == nil {
					return
				}
				left := time.Duration(min(*m.ExpiresIn, int64(maxTimeout/time.Second))) * time.Second
				expires, delay = time.Now().Add(left), left/5*4
			case *ErrorMessage:
				err = remote(m.Err)
			}
		}
		for isSent := false; !isSent; {
			if err != nil {
				r.log.WarnContext(ctx, "altar: authentication not renewed", "err", err)
				if !expires.IsZero() {
					delay = time.Until(expires) / 2
				}
			}
			t := time.NewTimer(max(delay, minRenewal))
			select {
			case <-done:
			case <-ctx.Done():
			case <-t.C:
				err = r.send(ctx)
				isSent = err == nil
				continue
			}
			t.Stop()
			return
		}
	}
}

// An unrenewedError is the refusal of a token that the source may replace (ALT-D46).
type unrenewedError struct{ error }

func (e *unrenewedError) Unwrap() error { return e.error }
