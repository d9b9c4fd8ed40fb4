// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package altar

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/fivewire/fivewire/internal/guard"
	"github.com/fivewire/fivewire/internal/option"
	"github.com/fivewire/fivewire/internal/retry"
	"github.com/fivewire/fivewire/internal/wsconn"
)

// ClientOptions adjusts a [Client]. The zero value is right for production.
type ClientOptions struct {
	// ReconnectTimeout is how long a call outlives a lost connection: the client
	// dials again and repeats the call under its old id, which never runs it
	// twice (ALT-D22). A call that a Host refuses because it shuts down is repeated
	// in the same way (ALT-D45). Zero means 25 seconds, a little less than a Host
	// waits. A negative value disables reconnecting.
	ReconnectTimeout time.Duration

	// Retry specifies the delays between the attempts to reconnect. Nil means the zero value.
	Retry *RetryPolicy

	// DialTimeout bounds one attempt to connect. Zero means 30 seconds; a negative
	// value removes the bound.
	DialTimeout time.Duration

	// Heartbeat is the interval of pings to the Host, except over HTTP. A connection without a
	// received message for three intervals is closed (ALT-D36). Zero means 15 seconds; a negative
	// value disables it.
	Heartbeat time.Duration

	// WriteTimeout is how long the Host may take no bytes before the connection is closed. Zero
	// means 30 seconds; a negative value removes the bound.
	WriteTimeout time.Duration

	// MaxQueue bounds the payloads of a stream that wait to be read, in bytes. The client requests
	// 16 of them at first, and then at most 64 and 1 MiB at a time (ALT-D37); from a Host that sends
	// unrequested ones, the stream is cancelled and ends with [ErrSlowReader]. Zero means 16 MiB; a
	// negative value removes the bound.
	MaxQueue int

	// TokenSource supplies the token that authenticates each new connection, and another token before the
	// authentication expires, so that calls in flight are not disturbed (ALT-D40). It is not used over
	// HTTP. Nil means the TokenSource of [WebSocketDialOptions], if that is set.
	TokenSource TokenSource

	// Interceptors wrap each call of [Session.Call]. The first is the outermost (ALT-D48).
	Interceptors []Interceptor

	// Logger receives errors that no call returns. Nil means slog.Default().
	Logger *slog.Logger
}

// A RetryPolicy specifies how a connection is restored: after random delays below a bound that
// doubles. An error that another attempt cannot change ends the attempts.
type RetryPolicy struct {
	MaxAttempts   int           // zero means no bound but time; a negative value disables retries
	Base          time.Duration // first bound; zero means 200 ms; a negative value disables delays
	Max           time.Duration // largest bound; zero means 10 s, of a Runtime 30 s; a negative value removes it
	MaxRetryAfter time.Duration // longest delay that a Host requests; zero means 60 s; a negative value 0 s
}

// withDefaults returns a copy of a policy, which may be nil.
func (p *RetryPolicy) withDefaults(longest time.Duration) *RetryPolicy {
	var o RetryPolicy
	if p != nil {
		o = *p
	}
	o.Base, o.Max = cmp.Or(o.Base, 200*time.Millisecond), cmp.Or(o.Max, longest)
	return &o
}

// loop calls connect until it returns nil or a permanent error, or ctx ends.
func (p *RetryPolicy) loop(ctx context.Context, log *slog.Logger, subject string, connect func(ctx context.Context, connected func()) error) error {
	policy := retry.Policy{Base: p.Base, Max: p.Max, MaxRetryAfter: p.MaxRetryAfter, Logger: log, Subject: subject}
	attempts := 0
	return retry.Loop(ctx, policy, func(ctx context.Context, connected func()) error {
		attempts++
		err := connect(ctx, func() {
			attempts = 0
			connected()
		})
		if _, isPanic := errors.AsType[*guard.PanicError](err); isPanic || isFinal(err) || p.MaxAttempts < 0 || p.MaxAttempts > 0 && attempts >= p.MaxAttempts {
			return retry.Mark(err, retry.Permanent, 0)
		}
		if _, isClosed := errors.AsType[*wsconn.CloseError](err); isClosed {
			return retry.Mark(err, retry.Unknown, 0) // 1008 after credentials_expired, too
		}
		return err
	})
}

func (o ClientOptions) withDefaults() ClientOptions {
	o.ReconnectTimeout = option.Or(o.ReconnectTimeout, 25*time.Second, 0)
	o.DialTimeout = option.Duration(o.DialTimeout, 30*time.Second)
	o.Heartbeat = option.Duration(o.Heartbeat, 15*time.Second)
	o.MaxQueue = option.Count(o.MaxQueue, 16<<20)
	o.Retry = o.Retry.withDefaults(10 * time.Second)
	o.Logger = cmp.Or(o.Logger, slog.Default())
	return o
}
