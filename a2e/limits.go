// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package a2e

import (
	"cmp"
	"errors"
	"log/slog"
	"math"
	"net/http"
	"sync"
	"time"

	"github.com/fivewire/fivewire/internal/budget"
	"github.com/fivewire/fivewire/internal/debugpage"
	"github.com/fivewire/fivewire/internal/option"
)

// Limits is a group of [HostOptions]. Zero means the default; a negative value removes the bound. A
// request over a bound is refused with runtime_error and the reason overloaded, and an HTTP request
// with status 503; both name the time to retry after (A2E-D56). Anonymous agents of a network are
// principals by their address. A principal leaves as much free for others as it holds.
type Limits struct {
	// Bytes of unanswered requests, and of bodies and long lines that arrive. Zero means the lesser of 256 MiB and a
	// third of GOMEMLIMIT in all, 64 MiB for a principal and 48 MiB for a session. The bytes that plugins keep for
	// sessions have the same bounds apart from these, see [Session.Reserve].
	MaxMemory, MaxMemoryPerPrincipal, MaxMemoryPerSession int64

	// Bytes of durable sessions in the store: unanswered bodies, and messages for readers. Zero means
	// no bound in all, 1 GiB for a principal and 256 MiB for a session. Over a bound the messages of
	// ended sessions are removed, bodies get status 503, and messages wait as for a slow reader.
	MaxStorage, MaxStoragePerPrincipal, MaxStoragePerSession int64

	// Sessions after their handshake. Zero means 1,024 in all and for a principal.
	// MaxItemsPerSession has no effect.
	MaxItems, MaxItemsPerPrincipal, MaxItemsPerSession int64

	// Running requests. Zero means 1,024 in all, 256 for a principal and 4 for a session, which the
	// handshake announces.
	MaxConcurrent, MaxConcurrentPerPrincipal, MaxConcurrentPerSession int64

	// Waiting requests. Zero means 8,192 in all, 1,024 for a principal and 64 for a session.
	QueueLimit, QueueLimitPerPrincipal, QueueLimitPerSession int64

	// Sessions before their handshake. Zero means 256 in all and 16 for an address. One more closes
	// the oldest of them (A2E-D61).
	MaxUnauthenticated, MaxUnauthenticatedPerAddress int64

	// Requests per second of a principal, and how many of them at once. Zero means no bound and
	// those of one second.
	RequestRate  float64
	RequestBurst int

	MaxWaiting           int64         // requests of a session that wait for other work, see Route: 64
	MaxMessage           int           // bytes of a received message: 16 MiB
	MaxOutput            int           // bytes of a sent message: 64 MiB
	MaxDepth             int           // nesting of a received message: 256; never more than 10,000
	MaxCallTimeout       time.Duration // of one request: 1 h
	MaxHandshakeAttempts int           // 3
	MaxReplayEvents      int           // messages kept for HTTP readers that reconnect: 256; negative: 1
}

func (l Limits) withDefaults() Limits {
	l.MaxMemoryPerSession = cmp.Or(l.MaxMemoryPerSession, 48<<20)
	l.MaxItems = cmp.Or(l.MaxItems, 1024)
	l.MaxItemsPerPrincipal = cmp.Or(l.MaxItemsPerPrincipal, 1024)
	l.MaxConcurrentPerSession = option.Bytes(l.MaxConcurrentPerSession, 4)
	l.QueueLimitPerSession = option.Bytes(l.QueueLimitPerSession, 64)
	l.MaxWaiting = option.Bytes(l.MaxWaiting, 64)
	l.MaxMessage = cmp.Or(l.MaxMessage, defaultMaxMessage) // negative for Codec
	l.MaxDepth = cmp.Or(l.MaxDepth, defaultDepth)          // negative for Codec
	l.MaxCallTimeout = option.Duration(l.MaxCallTimeout, time.Hour)
	l.MaxHandshakeAttempts = option.Count(l.MaxHandshakeAttempts, 3)
	l.MaxReplayEvents = max(cmp.Or(l.MaxReplayEvents, 256), 1)
	return l
}

// unread is the number of messages for an HTTP reader above which a session ends.
func (l *Limits) unread() int { return l.MaxReplayEvents + int(min(l.QueueLimitPerSession, 1<<20)) }

// budget returns the bounds that a session does not enforce itself.
func (l *Limits) budget(log *slog.Logger) budget.Limits {
	return budget.Limits{
		Memory:          budget.Limit{Session: l.MaxMemoryPerSession, Principal: l.MaxMemoryPerPrincipal, All: l.MaxMemory},
		Storage:         budget.Limit{Session: l.MaxStoragePerSession, Principal: l.MaxStoragePerPrincipal, All: l.MaxStorage},
		Items:           budget.Limit{Session: -1, Principal: l.MaxItemsPerPrincipal, All: l.MaxItems},
		Work:            budget.Limit{Session: l.MaxConcurrentPerSession, Principal: l.MaxConcurrentPerPrincipal, All: l.MaxConcurrent},
		Waiting:         budget.Limit{Session: -1, Principal: l.QueueLimitPerPrincipal, All: l.QueueLimit},
		Unauthenticated: budget.Limit{Session: -1, Principal: l.MaxUnauthenticatedPerAddress, All: l.MaxUnauthenticated},
		RequestRate:     l.RequestRate, RequestBurst: l.RequestBurst, Logger: log,
	}
}

// A Usage is the use of a resource in one scope: by the principal or the session with the highest
// use, or by all. A Limit of -1 means no bound.
type Usage struct {
	Resource, Scope string
	Used, Limit     int64
}

// Usage returns the present use of the resources of [Limits].
func (h *Host) Usage() []Usage {
	rows := debugpage.Table[Usage](h.budget.Usage())
	for _, u := range debugpage.Table[Usage](h.states.Usage()) {
		if u.Resource == budget.Memory.String() {
			u.Resource = "plugin_memory"
			rows = append(rows, u)
		}
	}
	return rows
}

// DebugHandler returns a handler that shows an operator the result of Ready, the [Usage] table and
// the handlers that ignore the end of their context. Its status is 503 unless the host is ready.
// It authenticates no caller: serve it on an address that only operators reach.
func (h *Host) DebugHandler() http.Handler {
	return debugpage.Handler(debugpage.Server{
		Name: "a2e", Ready: h.Ready, Usage: debugpage.Rows(h.Usage), Stuck: h.life.Stuck,
	})
}

// overBudget returns the error for the agent of a *budget.Error, and any other error as it is.
func overBudget(err error) error {
	if b, ok := errors.AsType[*budget.Error](err); ok {
		return errOverloaded(b)
	}
	return err
}

func errOverloaded(b *budget.Error) *Error {
	e := reasoned(ErrRuntime, ReasonOverloaded, "over the limit of "+b.Resource.String()).With("resource", b.Resource.String())
	return e.With("scope", b.Scope).With("retry_after", retrySeconds(b))
}

// retrySeconds returns the time after which an agent may retry.
func retrySeconds(b *budget.Error) int64 { return int64(math.Ceil(b.RetryAfter.Seconds())) }

// A stateHold holds the memory that the plugins keep for a session.
type stateHold struct {
	mu      sync.Mutex // guards everything below; no other lock is taken before it
	hold    budget.Hold
	size    int64
	isEnded bool
}

// Reserve adds n bytes to the memory that plugins keep for the session in their states, or fails with an [*Error]
// over a bound of [Limits]. A negative n releases bytes, and the end of the session releases all. A plugin calls it
// without a lock, because a refusal is logged.
func (s *Session) Reserve(n int64) error {
	m := &s.stateMemory
	m.mu.Lock()
	defer m.mu.Unlock()
	size := max(m.size+n, 0)
	if n > 0 && m.isEnded {
		return ErrClosed
	}
	err := m.hold.Resize(size)
	if m.hold == (budget.Hold{}) {
		m.hold, err = s.host.states.Scope(s.account(s.Principal())).Reserve(budget.Memory, size)
	}
	if err != nil {
		return overBudget(err)
	}
	m.size = size
	return nil
}

// release releases all.
func (m *stateHold) release() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.isEnded, m.size = true, 0
	m.hold.Release()
}

// A requestHold holds memory, and a place in the queue until it starts.
type requestHold struct {
	memory, waiting budget.Hold
	err             error // why it holds nothing
}

// reserveRequest reserves what a request of n bytes needs.
func reserveRequest(s *budget.Scope, n int) (r requestHold) {
	if _, r.err = s.Reserve(budget.Requests, 1); r.err != nil {
		return r
	}
	if r.memory, r.err = s.Reserve(budget.Memory, int64(n)+64); r.err != nil {
		return r
	}
	if r.waiting, r.err = s.Reserve(budget.Waiting, 1); r.err != nil {
		r.memory.Release()
	}
	return r
}

func (r *requestHold) release() {
	r.memory.Release()
	r.waiting.Release()
}

// Timing is a group of [HostOptions]. Zero means the default in the comment of the field; a negative
// value disables the limit.
type Timing struct {
	// HandshakeTimeout is the time limit of the first handshake of a session: 10 s.
	HandshakeTimeout time.Duration

	// WriteTimeout is the time limit of one write to an agent that does not read; then the session
	// ends: 30 s.
	WriteTimeout time.Duration

	// DrainTimeout bounds the time that a shutdown message may request for the running requests:
	// 1 min. A negative value ends them at once.
	DrainTimeout time.Duration

	// SessionIdleTimeout ends an HTTP session that is not used: 15 min.
	SessionIdleTimeout time.Duration
}

const defaultIdle = 15 * time.Minute

func (t Timing) withDefaults() Timing {
	t.HandshakeTimeout = option.Duration(t.HandshakeTimeout, 10*time.Second)
	t.WriteTimeout = cmp.Or(t.WriteTimeout, defaultStall)
	t.DrainTimeout = max(cmp.Or(t.DrainTimeout, time.Minute), 0)
	t.SessionIdleTimeout = cmp.Or(t.SessionIdleTimeout, defaultIdle)
	return t
}
