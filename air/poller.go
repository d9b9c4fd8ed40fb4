// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package air

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net/http"
	"time"

	"github.com/fivewire/fivewire/air/internal/core"
	"github.com/fivewire/fivewire/air/internal/server"
	"github.com/fivewire/fivewire/internal/guard"
	"github.com/fivewire/fivewire/internal/life"
	"github.com/fivewire/fivewire/internal/option"
	"github.com/fivewire/fivewire/internal/randid"
	"github.com/fivewire/fivewire/internal/retry"
)

// PollerOptions adjusts a [Poller]. The zero value is right for production.
type PollerOptions struct {
	// Dialect is the dialect of the relay. Empty means DialectSpec.
	Dialect Dialect

	// AgentSecret is the secret sent to the relay. Empty means none.
	AgentSecret string

	// HTTPClient sends the requests. Nil means a client that connects to public addresses only.
	// Redirects are never followed.
	HTTPClient *http.Client

	// PollInterval is the time between two polls, with 20 % jitter. It doubles with every further
	// failure, up to a minute. Zero means 5 s (7.5); a negative value means no delay, and 5 s after a
	// failure.
	PollInterval time.Duration

	// MaxConcurrent is the number of envelopes that are handled at a time, those of one sender and thread
	// one after the other (AIR-D78). Zero means 8; a negative value removes the bound.
	MaxConcurrent int

	// MaxPages is the number of pages after which a drain ends; the next one continues there
	// (AIR-D65). Zero means 100; a negative value removes the bound.
	MaxPages int

	// EnableStream opens the event stream of a relay with DialectDeployed, so that envelopes arrive
	// at once. If the stream fails, the poller polls.
	EnableStream bool

	// AllowLoopback, AllowPrivate and Transport are as in [ResolverOptions].
	AllowLoopback bool
	AllowPrivate  bool
	Transport     func(*http.Transport)

	// Logger receives failures that are not returned, such as those of a relay. Nil means
	// slog.Default().
	Logger *slog.Logger

	random  func() float64             // numbers from 0 up to 1 for the jitter; nil means math/rand
	secrets func(origin string) string // of an Agent; nil means AgentSecret
}

// A Poller fetches envelopes from a relay and passes them to an [Inbox]. It acknowledges those with
// a final outcome; the relay delivers the others again (AIR-D63). Run must be called once; Drain
// may be called concurrently and waits for its turn.
type Poller struct {
	inbox   *Inbox
	opts    PollerOptions
	log     *slog.Logger
	life    *life.Life
	streams server.LogLevels
	slots   chan struct{} // of handlers

	turn      chan struct{}             // full during requests and deliveries; a caller waits within its context
	mailbox   mailbox                   // guarded by turn
	at        core.Poll                 // guarded by turn
	unsettled memo[replayKey, struct{}] // ids of the unsettled mail of the round; guarded by turn
	stuck     *time.Timer               // of a page without progress; guarded by turn
	failures  int                       // consecutive failed drains; guarded by turn
	failure   string                    // kind of the last logged failure; guarded by turn
}

// Failed polls (AIR-D87).
const (
	pollInterval  = 5 * time.Second
	maxPollDelay  = time.Minute
	maxPermanents = 3
)

// NewPoller returns a poller of the mailbox at an endpoint, the address for pushes. It does no I/O.
func NewPoller(in *Inbox, endpoint string, opts *PollerOptions) (*Poller, error) {
	if in == nil { // of an Agent without a handler
		return nil, errors.New("air: poller: inbox missing")
	}
	p := &Poller{inbox: in, turn: make(chan struct{}, 1)}
	if opts != nil {
		p.opts = *opts
	}
	o := &p.opts
	if err := checkWord("dialect", o.Dialect, DialectSpec, DialectDeployed, DialectAuto); err != nil {
		return nil, err
	}
	o.MaxConcurrent = option.Count(o.MaxConcurrent, 8)
	o.MaxPages = option.Count(o.MaxPages, 100)
	if o.MaxConcurrent < option.None {
		p.slots = make(chan struct{}, o.MaxConcurrent)
	}
	o.PollInterval = option.Or(o.PollInterval, pollInterval, 0)
	if o.random == nil {
		o.random = randid.Rand().Float64
	}
	if err := p.mailbox.open(endpoint, o, &in.self); err != nil {
		return nil, err
	}
	p.log = logger(o.Logger)
	p.life = life.New(life.Options{Closed: ErrClosed, Logger: p.log})
	return p, nil
}

// Run fetches envelopes until ctx ends, and returns its error, or [ErrClosed] once the poller or the
// inbox is closed. It returns the error of the third consecutive poll with a permanent failure, such
// as a wrong secret or an unknown path (AIR-D87). An envelope that is being handled when Run returns
// is finished or left to the next process.
func (p *Poller) Run(ctx context.Context) error {
	w, err := p.life.Start(ctx, life.Idle)
	if err != nil {
		return err
	}
	defer w.Finish()
	for permanents := 0; ; {
		next, err := p.Drain(w)
		if permanents++; err == nil || retry.ClassOf(err) != retry.Permanent {
			permanents = 0
		}
		switch {
		case w.Err() != nil:
			return context.Cause(w)
		case p.inbox.life.Ready() != nil:
			return ErrClosed
		case err == nil && p.opts.EnableStream:
			if err := p.stream(w); w.Err() == nil && p.life.Ready() == nil {
				p.log.Log(w, p.streams.Level("stream"), "air: stream ended", "endpoint", p.mailbox.url, "err", err)
			}
		case permanents == maxPermanents:
			return err
		}
		if retry.Sleep(w, next) != nil {
			return context.Cause(w)
		}
	}
}

// Shutdown ends Run and the drains after the running handlers, whose envelopes it acknowledges. The other envelopes
// stay at the relay. If ctx ends first, it cuts the handlers and returns the error of ctx at once.
func (p *Poller) Shutdown(ctx context.Context) error {
	if err := p.life.Shutdown(ctx); err != nil {
		p.mailbox.client.Close()
		return err
	}
	return p.Close()
}

// Close ends Run and the drains, waits for them at most one second, and closes the idle connections.
func (p *Poller) Close() error {
	err := p.life.Close()
	p.mailbox.client.Close()
	return err
}

// Drain fetches, handles and acknowledges envelopes until the relay has no more or the drain reaches a
// limit, and returns the delay before the next call, which doubles with every consecutive failure. After
// three consecutive refusals of a cursor the next call has none, as after a restart: the relay then hands out
// unacknowledged envelopes again, and the inbox drops replays.
func (p *Poller) Drain(ctx context.Context) (next time.Duration, err error) {
	w, err := p.life.Start(ctx, life.Idle) // a shutdown does not wait for the relay
	if err != nil {
		return p.opts.PollInterval, err
	}
	defer w.Finish()
	if err := p.take(w); err != nil {
		return p.opts.PollInterval, err
	}
	defer p.release()
	next = p.opts.PollInterval + time.Duration((2*p.opts.random()-1)*0.2*float64(p.opts.PollInterval))
	var d drain
	err = guard.Call("HTTP client", func() error { return p.drainLocked(w, &d) })
	p.inbox.receiver.ledger.keep(&d.round)
	if err == nil {
		p.failures, p.failure = 0, ""
		if p.at.IsBehind && d.hasNew {
			next = 0
		}
		return next, nil
	}
	logPanic(w, p.log, err)
	return p.failedLocked(w, next, err)
}

// take waits for the turn. The caller releases it.
func (p *Poller) take(ctx context.Context) error {
	select {
	case p.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (p *Poller) release() { <-p.turn }

// failedLocked counts and classifies the failure of a drain, and returns the delay before the next one
// (AIR-D87). p.turn must be held.
func (p *Poller) failedLocked(ctx context.Context, next time.Duration, err error) (time.Duration, error) {
	if ctx.Err() != nil || errors.Is(err, ErrClosed) {
		return next, cmp.Or(context.Cause(ctx), err)
	}
	var e *Error
	class, kind := retry.Unknown, "unreachable"
	if errors.As(err, &e) {
		kind = fmt.Sprint(e.Code, e.RemoteStatus)
		if isPermanentStatus(e.RemoteStatus) {
			class = retry.Permanent
		}
	}
	level := slog.LevelDebug
	if kind != p.failure {
		level, p.failure = slog.LevelWarn, kind
	}
	p.log.Log(ctx, level, "air: poll failed", "endpoint", p.mailbox.url, "err", err)
	next = cmp.Or(next, pollInterval)
	next = time.Duration(min(math.Ldexp(float64(next), p.failures), float64(max(next, maxPollDelay))))
	p.failures++
	if e != nil && e.Code == ErrRateLimited && e.RetryAfter > 0 {
		next = min(e.RetryAfter, time.Hour)
	}
	return next, retry.Mark(err, class, 0)
}

// isPermanentStatus reports whether a repeated pull would meet the same refusal.
func isPermanentStatus(status int) bool {
	switch status {
	case http.StatusBadRequest, http.StatusRequestTimeout, http.StatusTooEarly, http.StatusTooManyRequests:
		return false
	}
	return status >= 400 && status <= 499
}
