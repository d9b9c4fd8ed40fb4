// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package retry decides which failed operations are repeated, and repeats them.
package retry

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"math"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/fivewire/fivewire/internal/randid"
)

// A Class specifies whether a failed operation may be repeated. An error type of another
// package declares its class with a method RetryClass() Class.
type Class uint8

const (
	Permanent Class = iota // another attempt fails alike, or a handler failed: never retried
	Unsent                 // the peer surely did not receive the operation: retried
	Refused                // the peer reports that it did not process the operation: retried
	Unknown                // the peer may have processed the operation: retried if idempotent
)

type marked struct {
	error
	class  Class
	after  time.Duration // delay that the peer requests
	status int           // of HTTP, or 0
}

func (m *marked) Unwrap() error     { return m.error }
func (m *marked) RetryClass() Class { return m.class }

// Mark returns err with a class, which overrides any other class of err, and with the delay
// that the peer requests; 0 keeps the delay of err. Mark of nil is nil.
func Mark(err error, class Class, after time.Duration) error {
	if err == nil {
		return nil
	}
	m, _ := inspect(err)
	return &marked{error: err, class: class, after: cmp.Or(after, m.after)}
}

// MarkStatus returns err, which is not nil, with the class and Retry-After of an HTTP response.
// 503 without Retry-After is Unknown: a proxy sends it if a connection breaks after the request.
func MarkStatus(err error, status int, header http.Header) error {
	m := &marked{error: err, status: status}
	text := header.Get("Retry-After")
	seconds, _ := strconv.ParseUint(text, 10, 31)
	at, _ := http.ParseTime(text)
	m.after = max(time.Duration(seconds)*time.Second, time.Until(at))
	switch {
	case status == 425, status == 429, status == 503 && text != "":
		m.class = Refused
	case status == 408, status >= 500 && status != 501 && status != 505:
		m.class = Unknown
	}
	return m
}

// IsAway reports whether an HTTP status is that of a server that shuts down or is overloaded, or of its proxy.
func IsAway(status int) bool {
	switch status {
	case http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return true
	}
	return false
}

// ClassOf returns the declared class of an error, else Permanent for a bad URL or address and
// a failed TLS verification, Unsent for a failed dial, Unknown for a broken connection or a
// time-out, and Permanent for all other errors: they are answers.
func ClassOf(err error) Class {
	m, _ := inspect(err)
	return m.class
}

// After returns the delay that a peer requests with an error, or that of an open circuit breaker.
func After(err error) time.Duration {
	m, _ := inspect(err)
	return max(m.after, 0)
}

// inspect returns the facts of an error, and false if nothing shows that a transport made it.
func inspect(err error) (marked, bool) {
	var declared interface{ RetryClass() Class }
	isDeclared := errors.As(err, &declared)
	m, isMarked := declared.(*marked)
	u, isURL := errors.AsType[*url.Error](err)
	op, isOp := errors.AsType[*net.OpError](err)
	switch {
	case isMarked:
		return *m, true
	case isDeclared:
		return marked{class: declared.RetryClass()}, true
	case isURL && !isUsable(u.URL), has[*net.AddrError](err), has[net.UnknownNetworkError](err),
		has[tls.RecordHeaderError](err), has[*tls.CertificateVerificationError](err), errors.Is(err, http.ErrSchemeMismatch):
		return marked{class: Permanent}, true
	case isOp && slices.Contains([]string{"dial", "proxyconnect", "socks connect"}, op.Op), has[*net.DNSError](err):
		return marked{class: Unsent}, true
	case isOp, isURL, slices.ContainsFunc([]error{io.EOF, io.ErrUnexpectedEOF, io.ErrClosedPipe, net.ErrClosed,
		syscall.EPIPE, context.DeadlineExceeded, context.Canceled}, func(e error) bool { return errors.Is(err, e) }):
		return marked{class: Unknown}, true
	}
	return marked{}, false
}

func has[E error](err error) bool {
	_, ok := errors.AsType[E](err)
	return ok
}

func isUsable(address string) bool {
	u, err := url.Parse(address)
	return err == nil && u.Host != "" && slices.Contains([]string{"http", "https", "ws", "wss"}, u.Scheme)
}

// A Policy specifies how an operation is repeated: after random delays below a doubling bound.
type Policy struct {
	MaxAttempts   int                        // of Do; zero means 4, a negative value disables retries
	Base          time.Duration              // first bound; zero means 200 ms, a negative value disables delays
	Max           time.Duration              // largest bound; zero means 10 s, a negative value removes it
	MaxNow        func() time.Duration       // replaces Max, for each delay
	MaxRetryAfter time.Duration              // longest delay that a peer requests; zero means 60 s, a negative value 0 s
	Renew         func(context.Context) bool // after a 401: whether one more attempt has another token
	Limiter       *Limiter                   // of the client; nil means that MaxAttempts alone bounds the retries
	Logger        *slog.Logger               // receives retries at Warn; nil means slog.Default()
	Subject       string                     // begins log messages: "arc: request"
}

func (p Policy) withDefaults() Policy {
	p.MaxAttempts = cmp.Or(p.MaxAttempts, 4)
	p.Base = max(cmp.Or(p.Base, 200*time.Millisecond), 0)
	p.Max = cmp.Or(p.Max, 10*time.Second)
	p.MaxRetryAfter = max(cmp.Or(p.MaxRetryAfter, time.Minute), 0)
	p.Logger = cmp.Or(p.Logger, slog.Default())
	return p
}

func (p *Policy) delay(failures int, requested time.Duration) time.Duration {
	bound := p.Max
	if p.MaxNow != nil {
		bound = p.MaxNow()
	}
	d := min(math.Ldexp(float64(p.Base), failures-1), float64(uint64(bound)), 1<<61) // also if bound is negative
	return max(time.Duration(randid.Rand().Int64N(int64(d)+1)), requested)
}

func (p *Policy) renews(ctx context.Context, m marked) bool {
	return m.status == 401 && p.Renew != nil && p.Renew(ctx)
}

// Do calls f until it succeeds or its error is not retryable, and returns the last error. An Unknown
// error is retried only if idempotent, one without a class never, and none if ctx ends before.
func Do(ctx context.Context, p Policy, idempotent bool, f func(ctx context.Context, attempt int) error) error {
	p = p.withDefaults()
	p.Limiter.spend(-1)
	var last error
	for attempt, failures := 1, 0; ctx.Err() == nil; attempt++ {
		last = f(ctx, attempt)
		if last == nil {
			return nil
		}
		m, _ := inspect(last)
		if p.renews(ctx, m) {
			p.Renew = nil
			continue
		}
		failures++
		delay := p.delay(failures, m.after)
		end, hasEnd := ctx.Deadline()
		if m.class == Permanent || m.class == Unknown && !idempotent || m.after > p.MaxRetryAfter ||
			failures >= p.MaxAttempts || hasEnd && time.Until(end) <= delay || ctx.Err() != nil || !p.Limiter.spend(10) {
			return last
		}
		p.Logger.WarnContext(ctx, p.Subject+" retried", "attempt", attempt, "delay", delay, "err", last)
		_ = Sleep(ctx, delay) // the loop checks ctx
	}
	return errors.Join(context.Cause(ctx), last)
}

// Loop keeps a connection: f connects, calls connected in its goroutine and serves the connection. A
// second call of connected means that the connection was of use: the delays begin again.
// Loop repeats f with backoff until it returns nil or a Permanent error, or until ctx ends, and
// returns the last error. Errors without a class are retried, and after the first connection 400,
// 404 and 405, which proxies send during a deployment. A failure is logged at most once a minute.
func Loop(ctx context.Context, p Policy, f func(ctx context.Context, connected func()) error) error {
	p = p.withDefaults()
	var last error
	var up, reported time.Time
	wasUp, renew, failures := false, p.Renew, 0
	for ctx.Err() == nil {
		up = time.Time{}
		err := f(ctx, func() {
			if !up.IsZero() {
				failures = 0
			}
			up, wasUp, p.Renew = time.Now(), true, renew
		})
		m, isTransport := inspect(err)
		if p.renews(ctx, m) {
			p.Renew = nil
			continue
		}
		if err == nil || isTransport && m.class == Permanent && !(wasUp && slices.Contains([]int{400, 404, 405}, m.status)) {
			return err
		}
		if last == nil || !up.IsZero() || ctx.Err() == nil { // else the attempt was interrupted
			last = err
		}
		if !up.IsZero() && time.Since(up) >= 10*time.Second {
			failures = 0
		}
		failures++
		delay := p.delay(failures, min(m.after, p.MaxRetryAfter))
		if ctx.Err() == nil && time.Since(reported) >= time.Minute {
			reported = time.Now()
			p.Logger.WarnContext(ctx, p.Subject+" failed", "failures", failures, "delay", delay, "err", err)
		}
		_ = Sleep(ctx, delay) // the loop checks ctx
	}
	return errors.Join(context.Cause(ctx), last)
}

// Delay returns the delay after failures in a row, the first being 1: base, doubled by each further failure up to
// limit, and spread by a fifth to both sides.
func Delay(failures int, base, limit time.Duration) time.Duration {
	d := min(math.Ldexp(float64(base), min(max(failures, 1)-1, 62)), float64(limit))
	return time.Duration(d * (0.8 + 0.4*randid.Rand().Float64()))
}

// Sleep waits for d, or until ctx ends. It returns why ctx has ended, or nil.
func Sleep(ctx context.Context, d time.Duration) error {
	if d > 0 && ctx.Err() == nil {
		t := time.NewTimer(d)
		defer t.Stop()
		select {
		case <-t.C:
		case <-ctx.Done():
		}
	}
	return context.Cause(ctx)
}

// ErrOpen reports an operation that a circuit breaker did not allow. Its class is Unsent.
var ErrOpen = errors.New("retry: circuit breaker open")

// A Limiter is shared by the operations of a client. Its token bucket limits retries to 10 %
// of the calls of Do, with a burst of 10. Its circuit breakers are closed for all keys but at
// most 1,024; the failure of another key closes them all. The zero value is ready for use.
type Limiter struct {
	mu       sync.Mutex
	spent    int // tenths of the tokens in the bucket
	circuits map[string]circuit
}

type circuit struct {
	failures int       // in a row
	last     time.Time // last failure or probe
}

// spend takes n tenths of a token, if the bucket has them. A nil Limiter has no bounds.
func (l *Limiter) spend(n int) bool {
	if l == nil {
		return true
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.spent+n > 100 {
		return false
	}
	l.spent = max(l.spent+n, 0)
	return true
}

// Breaker starts an operation with a key, such as an address; its outcome is passed to record.
// Success and Permanent errors, which are answers of the peer, close the breaker. After 5
// other errors in a row, one operation a minute is allowed; the others get ErrOpen.
func (l *Limiter) Breaker(key string) (record func(error), err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	c := l.circuits[key]
	wait := time.Until(c.last.Add(time.Minute))
	if c.failures >= 5 && wait > 0 {
		return nil, Mark(ErrOpen, Unsent, wait)
	}
	if c.failures >= 5 {
		l.circuits[key] = circuit{c.failures, time.Now()}
	}
	return func(err error) {
		class := ClassOf(err)
		if errors.Is(err, context.Canceled) { // proves nothing about the peer
			return
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		c := circuit{l.circuits[key].failures + 1, time.Now()}
		delete(l.circuits, key)
		if class == Permanent {
			return
		}
		if l.circuits == nil || len(l.circuits) >= 1024 {
			l.circuits = make(map[string]circuit)
		}
		l.circuits[key] = c
	}, nil
}
