// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package altar

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"time"

	"github.com/fivewire/fivewire/internal/randid"
)

// A Host routes tool calls from clients to Runtimes (ALT-010). It keeps the contracts, and checks,
// authorizes and records every call. All methods are safe for concurrent use.
type Host struct {
	opts  HostOptions
	auth  Authorizer
	ctx   context.Context // of the hooks; ends with Close
	state *state          // nil without a store
	stop  context.CancelFunc
	wg    sync.WaitGroup // connections

	mu        sync.Mutex // guards everything below, and the state of all parts
	closed    bool
	draining  bool
	idle      chan struct{} // closed when the last call ends while draining
	manifest  *contracts
	conns     map[*hostConn]bool
	runtimes  map[string]*owner // by runtime id
	order     []*hostConn       // connected Runtimes in order of handshake
	wildcard  *registry         // of the "*" fulfilments
	sessions  sessionTable
	calls     map[string]*hostCall // held, running, or without a final message; by invocation id
	doneCalls callQueue            // ended calls in order of end
	bulky     *hostCall            // first of doneCalls that may have a payload
	recorded  int64                // size of doneCalls
	lastEnd   *claim               // of the last call that ended under this lock
	stats     Stats
	events    []*AuditRecord // for Audit, passed after unlock
	overs     []sessionOver  // for the Cluster, passed after unlock

	probe         *session // the session in which Runtimes offer tools to other Hosts
	handshakes    uint64   // how often a Runtime came or went
	offered0      offersState
	offersChanged chan struct{} // closed and replaced at every change

	timers  timers
	wakeup  *time.Timer
	wakeAt  time.Time // zero: wakeup is not set
	endedAt timer     // of the first of doneCalls
}

// contracts is a manifest made ready.
type contracts struct {
	list   []*contract
	byName map[string]*contract
}

type contract struct {
	*Contract
	check   *Validator
	returns *field // nil: anything
}

// NewHost returns a Host that trusts the contracts of a manifest and lets auth
// decide about every call. It fails if the manifest is not valid, and without auth:
// [RoleAuthorizer] makes one, and [AuthorizerFunc] of a function such as [AllowAll].
func NewHost(m *Manifest, auth Authorizer, opts *HostOptions) (*Host, error) {
	if auth == nil {
		return nil, errors.New("altar: missing Authorizer")
	}
	h := &Host{
		auth:     auth,
		conns:    make(map[*hostConn]bool),
		runtimes: make(map[string]*owner),
		wildcard: &registry{},
		calls:    make(map[string]*hostCall),
	}
	if opts != nil {
		h.opts = *opts
	}
	h.opts.fill()
	if _, ok := parseSemver(h.opts.ProtocolVersion); !ok {
		return nil, fmt.Errorf("altar: invalid version %q", h.opts.ProtocolVersion)
	}
	var err error
	if h.manifest, err = h.load(m); err != nil {
		return nil, err
	}
	h.sessions.init()
	h.endedAt = timer{index: -1, fire: timerCall(func(now time.Time) { h.forgetCalls(now) })}
	h.ctx, h.stop = context.WithCancel(context.Background())
	if h.opts.Persistence.Store != nil {
		h.state = newState(h)
		h.wg.Add(1)
		go h.state.run()
	}
	if h.opts.Cluster != nil {
		h.offersChanged = make(chan struct{})
		h.probe = &session{h: h, id: randid.New("offers-"), kind: probeSession, reg: h.wildcard}
		h.probe.expiry = timer{index: -1, fire: h.probe}
		h.sessions.add(h.probe)
	}
	return h, nil
}

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
			return nil, &ContractError{Reason: ReasonInvalidValue, Path: pointerIndex("/contracts", i) + "/streaming"}
		}
		own := *c
		v, err := NewValidator(&own, &h.opts.Validation)
		if err != nil {
			return nil, err
		}
		returns, err := h.loadReturns(own.Name)
		if err != nil {
			return nil, err
		}
		made := &contract{Contract: &own, check: v, returns: returns}
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
	defer h.unlock()
	h.manifest = next
	h.wildcard = h.wildcard.keep(next)
	for s := h.sessions.first; s != nil; s = s.next {
		s.reg = s.reg.keep(next)
		if s.reg.equal(h.wildcard) {
			s.reg = h.wildcard
		}
		for _, rt := range h.order {
			h.requestFulfillment(rt, s, now)
		}
	}
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
	for t := h.timers.next(now); t != nil; t = h.timers.next(now) {
		t.fire.fired(now)
	}
}

// unlock sets the wake-up for the next timer, releases h.mu, and then calls the Cluster and the
// audit hook with the collected events.
func (h *Host) unlock() {
	if len(h.timers.heap) > 0 && !h.closed {
		if due := h.timers.heap[0].due; h.wakeAt.IsZero() || due.Before(h.wakeAt) {
			h.wakeAt = due
			if h.wakeup == nil {
				h.wakeup = time.AfterFunc(time.Until(due), h.fireTimers)
			} else {
				h.wakeup.Reset(time.Until(due))
			}
		}
	}
	h.noteOffers()
	events, overs := h.events, h.overs
	h.events, h.overs, h.lastEnd = nil, nil, nil
	h.mu.Unlock()
	for _, o := range overs {
		_ = h.guard("Cluster.SessionEnded", func() error {
			h.opts.Cluster.SessionEnded(o.id, o.how)
			return nil
		})
	}
	for _, e := range events {
		h.runAudit(e)
	}
}

func (h *Host) fireTimers() {
	h.mu.Lock()
	h.wakeAt = time.Time{}
	h.runDue(time.Now())
	h.unlock()
}

// guard runs a hook and turns its panic into an error (ALT-D34).
func (h *Host) guard(what string, hook func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			h.opts.Logger.Error("altar: hook panicked", "hook", what, "err", p, "stack", string(debug.Stack()))
			err = NewError(ErrInternal, ReasonHookPanic, "the Host failed")
		}
	}()
	return hook()
}

// refusal returns the error of a hook as it is sent.
func (h *Host) refusal(what string, err error, reason Reason, message string) *Error {
	var e *Error
	if errors.As(err, &e) {
		if _, bad := appendMessage(nil, &ErrorMessage{Err: e}, false); bad == nil {
			return e
		}
	}
	h.opts.Logger.Info("altar: request refused", "hook", what, "err", err)
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
	if h.draining && h.stats.InFlight == 0 && h.idle != nil {
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
		c.out.end()
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

// Close ends all connections at once and waits until no goroutine of the Host is
// left. It may be called more than once.
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
		c.cut()
	}
	h.wg.Wait()
	return nil
}
