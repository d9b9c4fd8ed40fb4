// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package altar

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/fivewire/fivewire/altar/internal/core"
	"github.com/fivewire/fivewire/altar/internal/form"
	"github.com/fivewire/fivewire/altar/internal/ledger"
	"github.com/fivewire/fivewire/internal/budget"
	"github.com/fivewire/fivewire/internal/guard"
	"github.com/fivewire/fivewire/internal/httpx"
	"github.com/fivewire/fivewire/internal/life"
	"github.com/fivewire/fivewire/internal/randid"
)

// A Host routes tool calls from clients to Runtimes (ALT-010). It keeps the contracts, and checks,
// authorizes and records every call. All methods are safe for concurrent use.
type Host struct {
	opts    HostOptions
	origins httpx.Origins
	ctx     context.Context // of the hooks; ends with Close
	ledger  *ledger.Ledger  // nil without a store
	stop    context.CancelFunc
	life    *life.Life // connections and goroutines
	budget  *budget.Budget
	scratch sync.Pool // of *[]byte, for fingerprints

	mu        sync.Mutex // guards everything below, and the state of all parts
	closed    bool
	draining  bool
	idle      chan struct{} // closed when the last call ends while draining
	startedAt time.Time
	manifest  *contracts
	conns     map[*hostConn]bool
	runtimes  map[string]*owner // by runtime id
	order     []*hostConn       // connected Runtimes in order of handshake
	routings  []*routing        // for the Router, after unlock
	sessions  *core.Sessions
	records   *core.Records
	lastEnd   *claim      // of the last call that ended under this lock
	lastClaim *claim      // the last one under this lock
	touched   []*hostCall // whose streams may get credit at the end of the event
	starved   []*hostCall // whose streams got none because the budget is used up
	stats     Stats
	audited   uint64         // number of the last record
	events    []*AuditRecord // for Audit, passed after unlock
	audits    auditQueue     // has its own lock
	overs     []sessionOver  // for the Cluster, passed after unlock

	probe         *session // the session in which Runtimes offer tools to other Hosts
	handshakes    uint64   // how often a Runtime came or went
	offered0      offersState
	offersChanged chan struct{}      // closed and replaced at every change
	allOffers     []core.Offer       // of other Hosts
	offers        core.Offers        // those with the same contract, by contract
	unlike        map[[2]string]bool // Hosts and contracts with another digest that were logged

	timers    core.Timers
	wakeup    *time.Timer
	wakeAt    time.Time  // zero: wakeup is not set
	endedAt   core.Timer // of the first of records
	starvedAt core.Timer // of starved
}

// contracts is a manifest made ready.
type contracts struct {
	list   []*contract
	byName map[string]*contract
}

type contract struct {
	*Contract
	check   *validator
	returns *field // nil: anything
	digest  string
}

// NewHost returns a Host that trusts the contracts of a manifest. It fails if the
// manifest or an option is invalid, and if [Auth] lacks an Authorizer, or both an
// Authenticator and AllowAnonymous.
func NewHost(m *Manifest, opts *HostOptions) (*Host, error) {
	h := &Host{
		conns:    make(map[*hostConn]bool),
		runtimes: make(map[string]*owner),
	}
	h.startedAt = time.Now()
	if opts != nil {
		h.opts = *opts
	}
	if err := h.opts.Auth.validate(); err != nil {
		return nil, err
	}
	h.opts.withDefaults()
	if _, ok := parseSemver(h.opts.ProtocolVersion); !ok {
		return nil, fmt.Errorf("altar: invalid version %q", h.opts.ProtocolVersion)
	}
	var err error
	if h.manifest, err = h.load(m); err != nil {
		return nil, err
	}
	h.origins = httpx.Origins{AllowedOrigins: h.opts.AllowedOrigins, AllowedHosts: h.opts.AllowedHosts}
	h.records = core.NewRecords(h.opts.Limits.MaxStoredResults)
	h.budget = budget.New(h.opts.Limits.budget(h.opts.Logger), nil)
	h.sessions = core.NewSessions(&h.timers)
	h.endedAt = core.Timer{Event: timerCall(func(now time.Time) { h.forgetCalls(now) })}
	h.starvedAt = core.Timer{Event: timerCall(func(time.Time) { h.retryStarved() })}
	h.ctx, h.stop = context.WithCancel(context.Background())
	h.life = life.New(life.Options{Logger: h.opts.Logger, Closed: ErrClosed})
	if h.opts.Persistence.Store != nil {
		h.ledger = ledger.New(h.ctx, h.ledgerOptions())
		_ = h.life.Go("store", func(context.Context) { h.ledger.Run() })
	}
	if h.opts.Cluster != nil {
		h.offersChanged = make(chan struct{})
		h.probe = h.newSession(randid.New("offers-"), core.Principal{}, core.ProbeSession, 0, h.startedAt)
		h.sessions.Add(&h.probe.Session)
		_ = h.life.Go("offers", h.watchOffers)
	}
	return h, nil
}

// A timerFunc is the event of a timer. It is called with the lock of the Host held.
type timerFunc interface{ fired(now time.Time) }

// timerCall is a [timerFunc] for timers of which there are few.
type timerCall func(now time.Time)

func (f timerCall) fired(now time.Time) { f(now) }

func (h *Host) load(m *Manifest) (*contracts, error) {
	if err := m.Validate(); err != nil {
		return nil, err
	}
	out := &contracts{byName: make(map[string]*contract, len(m.Contracts))}
	for i, c := range m.Contracts {
		if c.Streaming && h.opts.Level < 2 {
			return nil, &ContractError{Reason: reasonInvalidValue, Path: form.PointerIndex("/contracts", i) + "/streaming"}
		}
		own := *c
		v, err := newValidator(&own, validation{h.opts.DropUnknown, h.opts.AllowNonFinite})
		if err != nil {
			return nil, err
		}
		returns, err := h.loadReturns(own.Name)
		if err != nil {
			return nil, err
		}
		made := &contract{Contract: &own, check: v, returns: returns, digest: own.digest()}
		out.list = append(out.list, made)
		out.byName[own.Name] = made
	}
	return out, nil
}

func (c *contracts) has(name string) bool { return c.byName[name] != nil }

// reserved reports whether a runtime id would make names ambiguous (ALT-D14).
func (c *contracts) reserved(id string) bool {
	for _, k := range c.list {
		if len(k.Name) > len(id) && k.Name[len(id)] == '/' && k.Name[:len(id)] == id && c.has(k.Name[len(id)+1:]) {
			return true
		}
	}
	return false
}

// ReplaceManifest replaces the whole manifest, or fails and keeps the old one. Calls in flight keep
// their old contract. Fulfilments of removed contracts are dropped, and all Runtimes get new
// fulfilment requests for all sessions (ALT-D12).
func (h *Host) ReplaceManifest(m *Manifest) error {
	next, err := h.load(m)
	if err != nil {
		return err
	}
	now := h.lock()
	h.auditLocked(now, &AuditRecord{Operation: "manifest.reloaded"}, nil)
	h.manifest = next
	unlike := h.matchOffers()
	h.sessions.Change(nil, func(r *core.Registry) *core.Registry { return r.Keep(next.has) })
	for _, rt := range h.order {
		h.requestAll(rt, true, now)
	}
	h.unlock()
	h.logUnlike(unlike)
	return nil
}

// lock locks h.mu and fires the timers that are due, so that no expired state is visible.
func (h *Host) lock() time.Time {
	h.mu.Lock()
	now := time.Now()
	h.runDue(now)
	return now
}

func (h *Host) runDue(now time.Time) {
	for t := h.timers.Next(now); t != nil; t = h.timers.Next(now) {
		if a, ok := t.Event.(*core.Inquiry); ok {
			h.routeAgain(h.sessions.Expired(a), now)
		} else {
			t.Event.(timerFunc).fired(now)
		}
		h.grant(now)
	}
}

// unlock sets the wake-up for the next timer, releases h.mu, and then calls the Cluster, the Router
// and the audit hook for the collected events.
func (h *Host) unlock() {
	if len(h.touched) > 0 {
		h.grant(time.Now())
	}
	h.setWakeup()
	h.noteOffers()
	events, overs, routings := h.events, h.overs, h.routings
	h.events, h.overs, h.routings, h.lastEnd, h.lastClaim = nil, nil, nil, nil, nil
	isIdle := len(events) > 0 && h.audits.put(events)
	h.mu.Unlock()
	for _, o := range overs {
		_ = h.guard("Cluster.SessionEnded", func() error {
			h.opts.Cluster.SessionEnded(o.id, o.how)
			return nil
		})
	}
	for _, r := range routings {
		_ = h.life.Go("router", func(context.Context) { h.askRouter(r) })
	}
	if isIdle && h.life.Go("audit", h.runAudit) != nil {
		h.runAudit(h.ctx)
	}
}

// setWakeup sets the wake-up for the next timer. h.mu must be held.
func (h *Host) setWakeup() {
	due, isSet := h.timers.First()
	if !isSet || h.closed || !h.wakeAt.IsZero() && !due.Before(h.wakeAt) {
		return
	}
	h.wakeAt = due
	if h.wakeup == nil {
		h.wakeup = time.AfterFunc(time.Until(due), h.fireTimers)
	} else {
		h.wakeup.Reset(time.Until(due))
	}
}

func (h *Host) fireTimers() {
	h.mu.Lock()
	h.wakeAt = time.Time{}
	h.runDue(time.Now())
	h.unlock()
}

// guard runs a hook and turns its panic into an error (ALT-D34).
func (h *Host) guard(what string, hook func() error) error {
	err := guard.Call(what, hook)
	if err == nil {
		return nil
	}
	var p *guard.PanicError
	if errors.As(err, &p) {
		h.opts.Logger.ErrorContext(h.ctx, "altar: hook panicked", "hook", what, "err", p, "stack", string(p.Stack))
		return Errorf(ErrInternal, reasonHookPanic, "the Host failed")
	}
	return err
}

// refusal returns the error of a hook as it is sent.
func (h *Host) refusal(what string, err error, reason Reason, message string) *Error {
	var e *Error
	if errors.As(err, &e) && e.Remote {
		h.opts.Logger.WarnContext(h.ctx, "altar: hook returned the error of another server", "hook", what, "err", err)
		return Errorf(ErrInternal, "", "the Host failed at another server")
	}
	if e != nil {
		if _, bad := appendMessage(nil, &ErrorMessage{Err: e}, false); bad == nil {
			return e
		}
	}
	h.opts.Logger.InfoContext(h.ctx, "altar: request refused", "hook", what, "err", err)
	return &Error{Code: ErrAuthorizationFailed, Message: message, Details: appendDetails(nil, reason, ""), Cause: err}
}

// Shutdown refuses new calls, waits for the calls in flight, and closes the Host. If ctx ends
// first, the Host is closed at once and the error of ctx is returned.
func (h *Host) Shutdown(ctx context.Context) error {
	h.lock()
	if h.idle == nil {
		h.idle = make(chan struct{})
	}
	h.draining = true
	idle := h.idle
	h.checkIdle()
	h.unlock()
	var err error
	select {
	case <-idle:
		h.flush(ctx)
	case <-ctx.Done():
		err = ctx.Err()
	}
	return errors.Join(err, h.Close())
}

// checkIdle signals Shutdown when no call is in flight.
func (h *Host) checkIdle() {
	if h.draining && h.stats.InFlight == 0 && h.sessions.Tails() == 0 && h.idle != nil {
		select {
		case <-h.idle:
		default:
			close(h.idle)
		}
	}
}

// flush gives the connections the chance to send what is queued.
func (h *Host) flush(ctx context.Context) {
	h.lock()
	var all []*hostConn
	for c := range h.conns {
		c.out.end(goodbyeDraining)
		all = append(all, c)
	}
	h.unlock()
	for _, c := range all {
		select {
		case <-c.removed:
		case <-ctx.Done():
			return
		}
	}
}

// Ready returns [ErrClosed] once a shutdown has begun, and nil otherwise.
func (h *Host) Ready() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed || h.draining {
		return ErrClosed
	}
	return nil
}

// Close ends all connections at once and waits until no goroutine of the Host is
// left, for at most a second: it does not wait longer for a hook that ignores its
// context. It may be called more than once.
func (h *Host) Close() error {
	h.mu.Lock()
	h.closed = true
	if h.wakeup != nil {
		h.wakeup.Stop()
	}
	var all []*hostConn
	for c := range h.conns {
		// Stop the output first: a client must not receive an error about a Runtime that was
		// disconnected by Close itself.
		c.out.close()
		all = append(all, c)
	}
	h.mu.Unlock()
	h.stop()
	for _, c := range all {
		go c.cut() // a peer may take a second to close
	}
	return h.life.Close()
}
