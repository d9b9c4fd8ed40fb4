// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package accp

import (
	"cmp"
	"context"
	"iter"
	"log/slog"
	"net/http"
	"time"

	"github.com/fivewire/fivewire/internal/option"
)

// A TokenSource supplies the access token of a request or of a WebSocket handshake. It must be safe
// for concurrent use. An empty token sends no header.
type TokenSource interface {
	Token(ctx context.Context) (string, error)
}

// A TokenSourceFunc is a function that serves as a [TokenSource].
type TokenSourceFunc func(ctx context.Context) (string, error)

// Token calls f.
func (f TokenSourceFunc) Token(ctx context.Context) (string, error) { return f(ctx) }

// A RetryPolicy specifies how a message is repeated: after delays that double, each up to a fifth longer or shorter
// at random.
type RetryPolicy struct {
	MaxAttempts   int           // posts of a frame, and frames; zero means 3 (ACCP-D29); a negative value disables retries
	Base          time.Duration // first delay; zero means 500 ms; a negative value disables delays of messages
	Max           time.Duration // longest delay; zero means 8 s; a negative value removes the bound
	MaxRetryAfter time.Duration // longest delay that a server requests; zero means 60 s; a negative value 0 s
}

// A CallFunc sends a message and yields the messages that answer it.
type CallFunc func(ctx context.Context, m *Message, opts *CallOptions) iter.Seq2[*Message, error]

// An Interceptor wraps the calls of a [Client].
type Interceptor func(next CallFunc) CallFunc

// CallOptions adjusts one call. Nil means the zero value.
type CallOptions struct {
	// Idempotent permits to run the message again if it may have run. Messages with intent qry,
	// sync, comp, ack and cancel always are idempotent (ACCP-D29).
	Idempotent bool

	// Timeout replaces that of the client unless zero.
	Timeout time.Duration

	// Schema is the schema of the message of [CallAs].
	Schema string
}

// ClientOptions adjusts a [Client]. The zero value is right for production.
type ClientOptions struct {
	Timing ClientTiming

	// SessionID is the id of the session. Empty means a random one.
	SessionID string

	// Session has the options of the session.
	Session SessionOptions

	// Handler handles the messages that the peer sends over a WebSocket connection outside of
	// calls, except heartbeats, ack, sync:registry and qry:state. Nil answers as [Server.Handle] does without
	// handlers.
	Handler Handler

	// MaxConcurrent is the maximum number of concurrent exchanges over HTTP. HTTP does not preserve
	// the order of frames that a session requires, so each exchange uses its own session:
	// SessionID, SessionID_2, SessionID_3 and so on. Zero and negative values mean 1; the most
	// is 65,536. Calls over a WebSocket connection share one session.
	MaxConcurrent int

	// HTTPClient sends the requests. Nil means a client with the proxy of the environment.
	// Redirects are never followed.
	HTTPClient *http.Client

	// AllowInsecure permits http and ws to other hosts than this host.
	AllowInsecure bool

	// Header is sent with every request.
	Header http.Header

	// TokenSource, if set, supplies the bearer token of each request and handshake. With it, a WebSocket connection
	// that ends when its token expires is opened again.
	TokenSource TokenSource

	// OnReconnect, if set, is called after a lost WebSocket connection was opened again.
	OnReconnect func(ctx context.Context)

	// MaxOutput is the maximum number of bytes of a frame that the peer accepts. A longer frame
	// is [ErrTooLarge] and not sent. Zero means 65,536; a negative value removes the bound.
	MaxOutput int

	// Retry is the policy for messages that were not processed, and for idempotent ones that may
	// have been. Nil means the defaults.
	Retry *RetryPolicy

	// Interceptors wrap every call. The first interceptor is outermost.
	Interceptors []Interceptor

	// Logger receives events that no error reports, such as retries. Nil means [slog.Default].
	Logger *slog.Logger

	skipGreeting bool // of package accptest
}

// ClientTiming is a group of [ClientOptions]. A negative value removes the bound.
type ClientTiming struct {
	// Timeout bounds the wait for the next message of an answer in each attempt, and the waits for a
	// WebSocket connection and for a free session. Zero means 30 s.
	Timeout time.Duration

	// Heartbeat is the interval of pings on a WebSocket connection. Zero means 30 s; a negative
	// value disables them.
	Heartbeat time.Duration

	// WriteTimeout is how long the peer of a WebSocket connection may take no bytes before the
	// connection ends. Zero means 10 s.
	WriteTimeout time.Duration
}

func (o ClientOptions) withDefaults() ClientOptions {
	o.SessionID = cmp.Or(o.SessionID, NewID())
	o.MaxConcurrent = max(o.MaxConcurrent, 1)
	o.Timing.Timeout = option.Duration(o.Timing.Timeout, 30*time.Second)
	o.Timing.Heartbeat = option.Duration(o.Timing.Heartbeat, 30*time.Second)
	o.Timing.WriteTimeout = option.Duration(o.Timing.WriteTimeout, 10*time.Second)
	o.Session.maxOutput = maxOutput(o.MaxOutput)
	o.Logger = cmp.Or(o.Logger, slog.Default())
	o.Session.Logger = cmp.Or(o.Session.Logger, o.Logger)
	var p RetryPolicy
	if o.Retry != nil {
		p = *o.Retry
	}
	p.MaxAttempts = cmp.Or(p.MaxAttempts, 3)
	p.Base = cmp.Or(p.Base, 500*time.Millisecond)
	p.Max = option.Duration(p.Max, 8*time.Second)
	p.MaxRetryAfter = max(0, cmp.Or(p.MaxRetryAfter, time.Minute))
	o.Retry = &p
	o.Header = o.Header.Clone()
	return o
}
