// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package a2e

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fivewire/fivewire/a2e/internal/plugin"
	"github.com/fivewire/fivewire/a2e/internal/session"
	"github.com/fivewire/fivewire/internal/budget"
	"github.com/fivewire/fivewire/internal/calls"
	"github.com/fivewire/fivewire/internal/life"
)

// A Session is the session of one agent on a host, from its first byte to its last.
type Session struct {
	host     *Host
	conn     conn
	promote  func(ctx context.Context, r sessionRecord) (*kept, error) // nil unless the session may become durable
	ctx      context.Context                                           // ends with the session
	cancel   context.CancelFunc
	onEnd    []func(end session.End) // when all messages are sent
	returned chan struct{}           // closed when all handlers have returned after the end
	saved    chan struct{}           // closed when the snapshots after that are saved
	finished chan struct{}           // closed when the states of the plugins are closed
	work     sync.WaitGroup          // started handlers
	todo     chan *Call              // received by idle workers
	idle     atomic.Int32            // number of idle workers
	states   plugin.States[*Plugin]

	stateMemory stateHold

	seats      turns  // of calls that take a place in the host
	starts     turns  // of handlers
	peer       string // its address; empty without a network
	number     uint64 // of the session in its host
	created    time.Time
	extensions []string    // that the host serves here
	isPending  atomic.Bool // before the handshake that the host demands

	// of the goroutine that feeds the session
	hold requestHold // for the message that is processed
	body *keptBody   // that is fed

	mu        sync.Mutex // guards everything below
	core      *session.Session
	end       session.End // of a closed session
	started   uint64      // calls that have a turn
	kept      *kept       // nil unless the session is durable
	scope     *budget.Scope
	place     budget.Hold // among the sessions before or after the handshake
	id        string      // assigned by the first successful handshake
	agentID   string
	ownerID   string
	principal *Principal
	features  []string    // feature flags, and agreed extensions
	timer     *time.Timer // for the deadlines of core
	due       time.Time   // when it fires, or zero
}

// answeredIDs is the number of recorded ids of answered requests (A2E-D13).
const answeredIDs = 1024

// maxSearched is the length of a request in which the name of a process or subagent is looked up. A longer one counts
// as having it.
const maxSearched = 64 << 10

// unmeasured is the length of a request up to which its decoded members are not counted as memory.
const unmeasured = 4 << 10

// maxControls is the number of control requests of a session that run at once (A2E-D55).
const maxControls = 16

// newSession returns the next session of a host. h.mu must be held.
func newSession(h *Host, out sink, peer string) *Session {
	s := &Session{host: h, peer: peer, number: h.number, returned: make(chan struct{}), saved: make(chan struct{}), finished: make(chan struct{}),
		todo: make(chan *Call), created: time.Now()}
	s.states.Gates = &h.gates
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.conn = conn{codec: h.codec, log: h.log, ctx: s.ctx, dropped: &h.dropped, out: out, replies: calls.New[*pending](calls.Options{}),
		overflow: func() { s.abort(session.EndCut) }}
	limits, timing := &h.opts.Limits, &h.opts.Timing
	handshake, open := time.Time{}, h.openCapabilities()
	if open == nil {
		handshake = s.created.Add(timing.HandshakeTimeout)
		s.isPending.Store(true)
	}
	s.core = session.New(session.Limits{MaxConcurrent: limits.MaxConcurrentPerSession, MaxControl: maxControls,
		MaxWaiting: limits.MaxWaiting, QueueLimit: limits.QueueLimitPerSession, MaxAttempts: limits.MaxHandshakeAttempts,
		MaxAnswered: answeredIDs, CallTimeout: limits.MaxCallTimeout, DrainTimeout: timing.DrainTimeout}, open, handshake)
	return s
}

// atEnd adds a function to be called when the session has ended and all messages are queued, at once if it has.
func (s *Session) atEnd(f func(end session.End)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.core.State() == session.StateClosed {
		go f(s.end)
		return
	}
	s.onEnd = append(s.onEnd, f)
}

// durable returns the part of a durable session that is stored, or nil.
func (s *Session) durable() *kept {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.kept
}

// start starts the time limit of the handshake.
func (s *Session) start() { s.step(func(*session.Session, time.Time) {}) }

// A pendingStep is what is to be done after a step, without the lock.
type pendingStep struct {
	few  [4]session.Effect
	n    int // used ones of few
	more []session.Effect
}

func (p *pendingStep) add(e session.Effect) {
	if p.n < len(p.few) {
		p.few[p.n] = e
		p.n++
		return
	}
	p.more = append(p.more, e)
}

// step changes the state of the session, and carries out the effects.
func (s *Session) step(change func(core *session.Session, now time.Time)) {
	var after pendingStep
	now := time.Now()
	s.mu.Lock()
	change(s.core, now)
	s.noteLocked(&after, now)
	s.mu.Unlock()
	s.finishStep(&after, false)
}

// noteLocked queues the messages of the effects, in the order of the steps, and notes the effects in after. s.mu must
// be held.
func (s *Session) noteLocked(after *pendingStep, now time.Time) {
	for _, e := range s.core.Effects() {
		c, _ := ownerOf(e.Call)
		switch e.Do {
		case session.DoStart:
			s.work.Add(1)
			if c.core.Lane != session.LaneControl {
				c.seat, c.start = callTurn{turns: &s.seats, number: s.started}, callTurn{turns: &s.starts, number: s.started}
				s.started++
			}
		case session.DoRefuse:
			s.refuseLocked(c, e.Reason, OutcomeRefused)
		case session.DoFail:
			outcome := OutcomeFailed
			if e.Reason == session.ReasonCancelled {
				outcome = OutcomeCanceled
			}
			s.refuseLocked(c, e.Reason, outcome)
		case session.DoFinish:
			if c.body != nil && e.Reason != session.ReasonInterrupted {
				k := s.kept
				s.conn.add(item{then: func(int) { k.finish(c) }})
			}
		case session.DoDrop:
			s.host.dropped.Add(1)
			continue
		case session.DoClose:
			s.closeLocked(e.End)
		}
		after.add(e)
	}
	s.armLocked(now)
}

// armLocked sets the timer for the next deadline. s.mu must be held.
func (s *Session) armLocked(now time.Time) {
	if due := s.core.Due(); !due.IsZero() && (s.due.IsZero() || due.Before(s.due)) {
		s.due = due
		if s.timer == nil {
			s.timer = time.AfterFunc(due.Sub(now), s.tick)
		} else {
			s.timer.Reset(due.Sub(now))
		}
	}
}

func ownerOf(c *session.Call) (*Call, bool) {
	if c == nil {
		return nil, false
	}
	own, ok := c.Owner.(*Call)
	return own, ok
}

// finishStep carries out the effects that need no order. The reader of the session may run inline handlers.
func (s *Session) finishStep(after *pendingStep, isReader bool) {
	for i := range after.n {
		s.carryOut(&after.few[i], isReader)
	}
	for i := range after.more {
		s.carryOut(&after.more[i], isReader)
	}
	s.conn.flush()
}

func (s *Session) carryOut(e *session.Effect, isReader bool) {
	c, _ := ownerOf(e.Call)
	switch e.Do {
	case session.DoStart:
		s.startCall(c, isReader)
	case session.DoFail:
		c.work.Cut(cause(e.Reason))
	case session.DoFinish:
		c.work.Cut(ErrClosed)
		if !c.core.IsStarted() {
			c.hold.release()
			c.work.Finish()
		}
	case session.DoClose:
		s.close()
	}
}

// tick carries out what is due.
func (s *Session) tick() {
	s.step(func(core *session.Session, now time.Time) {
		s.due = time.Time{}
		core.Tick(now)
	})
}

// refuseLocked queues the error that answers a request. s.mu must be held.
func (s *Session) refuseLocked(c *Call, reason session.Reason, outcome string) {
	if c.core.IsEvent {
		return
	}
	f := failed{id: strings.Clone(c.Message.ID), msgType: strings.Clone(clip(c.Message.Type, 200)), capability: c.core.Capability,
		cause: c.hold.err}
	if reason == session.ReasonInterrupted {
		f.call = c
	}
	s.conn.add(item{fail: func() *Error { return f.error(reason) },
		then: s.auditLocked(c.Message, c.core.Arrived, c.in, outcome, string(failureTexts[reason].code))})
}

// evict closes a session without a handshake, and reports whether it had none.
func (s *Session) evict() (isEvicted bool) {
	s.step(func(core *session.Session, _ time.Time) { isEvicted = core.Evict(session.EndEvicted) })
	return isEvicted
}

// ID returns the session's id, empty before the handshake.
func (s *Session) ID() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.id
}

// AgentID returns the agent id of the handshake.
func (s *Session) AgentID() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.agentID
}

// Principal returns the result of the [Authenticator], or nil for an anonymous agent.
func (s *Session) Principal() *Principal {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.principal
}

// OwnerID identifies the owner of the data kept for the agent: the principal, or the token and the agent
// id of an anonymous agent (A2E-D22). It is empty before the handshake, and for an anonymous agent that
// names neither.
func (s *Session) OwnerID() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ownerID
}

// ownerID returns the owner of the data kept for an agent.
func ownerID(p *Principal, r *HandshakeRequest) string {
	switch {
	case p != nil:
		return fmt.Sprintf("principal %q %q", p.Tenant, p.ID)
	case r.AuthToken != "":
		return fmt.Sprintf("token %x agent %s", sha256.Sum256([]byte(r.AuthToken)), r.AgentID)
	case r.AgentID != "":
		return "agent " + r.AgentID
	}
	return ""
}

// HasCapability reports whether a capability was accepted, or a feature flag requested.
func (s *Session) HasCapability(name string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.core.Accepts(name) || slices.Contains(s.features, name)
}

// Context returns a context that ends with the session.
func (s *Session) Context() context.Context { return s.ctx }

func (s *Session) isClosed() bool { return s.ctx.Err() != nil }

func (s *Session) budgetScope() *budget.Scope {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.scope
}

// feed processes one line of the agent. It is called by one goroutine at a time.
func (s *Session) feed(line []byte) {
	arrived := time.Now()
	if s.body != nil && !s.body.arrived.IsZero() && s.body.arrived.Before(arrived) {
		arrived = s.body.arrived
	}
	s.conn.recordIn(line)
	m, err := s.host.codec.decode(line)
	switch {
	case err != nil:
		s.refuseLine(err, arrived, len(line))
	case s.body != nil && s.isReplied(m.ID): // by a failed host
	case m.Type == typeHandshakeRequest:
		s.shake(m, arrived, len(line))
	case m.Type == typePing:
		if !s.isClosed() {
			s.conn.add(item{isUrgent: true, message: NewMessage(typePong, &Pong{ReqID: m.ID, UptimeSeconds: time.Since(s.host.started).Seconds()})})
			s.conn.flush()
		}
	case m.Type == typeShutdown:
		timeout := int64(10)
		if b, ok := m.Body.(*shutdownBody); ok {
			timeout = max(int64(b.Timeout), 0)
		}
		limit := min(timeout, int64(s.host.opts.Timing.DrainTimeout/time.Second)+1)
		s.drain(time.Duration(limit)*time.Second, session.EndAgent)
	default:
		s.take(m, arrived, len(line))
	}
}

// feedLines processes the lines of a body, the last one with or without LF.
func (s *Session) feedLines(data []byte) {
	if n := len(data); n > 0 && data[n-1] != '\n' {
		data = append(slices.Clip(data), '\n')
	}
	_ = s.conn.readLines(newLineReader(bytes.NewReader(data), s.host.codec), s.neverClosed, s.feed, s.refuse)
}

func (s *Session) neverClosed() bool { return false }

func (s *Session) refuse(e *Error) { s.refuseLine(e, time.Now(), 0) }

// take processes a message besides those of the base protocol.
func (s *Session) take(m *Message, arrived time.Time, in int) {
	if m.Type == typeCancel && s.cancels() {
		s.step(func(core *session.Session, now time.Time) { core.Cancel(now, textMember(m, "req_id")) })
		return
	}
	kind := s.kind(m.Type)
	if kind == KindResponse || kind == KindError {
		s.deliver(m.ReqID(), m, nil)
		return
	}
	size := in
	if in > unmeasured {
		size += heldBytes(reflect.ValueOf(m.Body))
	}
	s.hold = reserveRequest(s.budgetScope(), size)
	c := s.newCall(m, arrived, in)
	c.core.IsEvent, c.core.IsOverBudget = kind == KindEvent, s.hold.err != nil
	c.core.IsKnown = m.typ != nil || catalogued(s.typeName(m))
	if c.routes = s.host.routes[s.typeName(m)]; len(c.routes) == 0 && !c.core.IsKnown && s.host.fallback != nil {
		c.routes = []boundRoute{{plugin: &Plugin{}, handler: s.host.fallback}}
		c.mayPass = true
	}
	c.core.HasRoute = len(c.routes) > 0
	if c.core.HasRoute {
		c.core.Lane = c.routes[0].lane
	}
	if c.core.Lane == session.LaneControl {
		c.core.Names = objectNames(m)
	}
	if in <= maxSearched {
		c.core.Text = m.text
	}
	m.text = nil
	s.receive(c)
	s.hold.release() // unless the call took it
	s.hold = requestHold{}
}

// receive passes a message to the state of the session.
func (s *Session) receive(c *Call) {
	err := c.work.Start(s.ctx, s.host.life, life.Request)
	c.core.IsShutDown = err != nil
	var after pendingStep
	now, isAdmitted := time.Now(), false
	s.mu.Lock()
	if due := s.core.Due(); !due.IsZero() && !due.After(now) { // the timer is late after the sleep of a machine
		s.core.Tick(now)
	}
	c.scope, c.hold.err = s.scope, s.hold.err
	if isAdmitted = s.core.Receive(now, &c.core); isAdmitted {
		c.hold, s.hold = s.hold, requestHold{}
		if s.body != nil {
			c.body = s.body
			c.body.open++
		}
	}
	s.noteLocked(&after, now)
	s.mu.Unlock()
	if !isAdmitted && err == nil {
		c.work.Finish()
	}
	s.finishStep(&after, true)
}

func (s *Session) isReplied(id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.core.IsReplied(id)
}

func (s *Session) cancels() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.core.Cancels()
}

// refuseLine answers a line that cannot be decoded, unless its type gets no answer (A2E-D16).
func (s *Session) refuseLine(err *Error, arrived time.Time, in int) {
	if s.isClosed() {
		return
	}
	logMethod(s.ctx, s.host.log, err)
	if err.Code == ErrVersionMismatch && err.msgType == typeHandshakeRequest {
		s.finishHandshake(&handshakeAttempt{message: &Message{Type: err.msgType, ID: err.ReqID}, arrived: arrived, in: in,
			refusal: session.RefusedVersion})
		return
	}
	if err.msgType != "" {
		switch s.kind(err.msgType) {
		case KindResponse, KindError:
			s.deliver(err.refID, nil, err)
			return
		case KindEvent:
			s.host.dropped.Add(1)
			return
		}
	}
	s.conn.add(item{message: errorMessage(err)})
	s.conn.flush()
}

// deliver passes an answer of the agent, or the error of an invalid one, to its waiting call.
func (s *Session) deliver(reqID string, m *Message, err *Error) {
	p, isPending := s.conn.replies.Get(reqID)
	switch {
	case !isPending:
		s.host.dropped.Add(1)
	case err != nil:
		s.conn.failCall(reqID, fmt.Errorf("%w: %w", ErrInvalidResponse, err))
	default:
		s.conn.answer(reqID, p, m)
	}
}

// kind returns the kind of a type as read by a host.
func (s *Session) kind(name string) Kind {
	if t := s.host.codec.Types.lookup(name, true); t != nil {
		return t.Kind
	}
	return kindOf(hostReading(canonicalType(name)))
}

// typeName returns the canonical name under which a message is routed.
func (s *Session) typeName(m *Message) string {
	if m.typ != nil {
		return m.typ.Name
	}
	return hostReading(canonicalType(m.Type))
}

func (s *Session) capabilityOf(m *Message) string {
	if m.typ != nil && m.typ.Capability != "" {
		return m.typ.Capability
	}
	return capabilityOf(s.typeName(m))
}

// Send sends a message to the agent that belongs to no answer: an event of a process, a change of an environment. It
// waits while the agent does not read.
func (s *Session) Send(ctx context.Context, msgType string, body any) error {
	return s.conn.message(ctx, NewMessage(msgType, body), s.openError)
}

func (s *Session) openError() error {
	if s.isClosed() {
		return ErrClosed
	}
	return nil
}

// Call sends a request to the agent and waits for the answer (A2E-D39). An error message is
// returned as an [*Error], an answer that violates the protocol as [ErrInvalidResponse].
func (s *Session) Call(ctx context.Context, msgType string, body any) (*Message, error) {
	if err := s.conn.codec.checkRequestType(msgType); err != nil {
		return nil, err
	}
	m := NewMessage(msgType, body)
	return s.conn.call(ctx, m, func() error { return s.conn.message(ctx, m, s.openError) })
}

// drain ends the session when the admitted requests are answered, or after the timeout.
func (s *Session) drain(timeout time.Duration, end session.End) {
	s.step(func(core *session.Session, now time.Time) { core.Drain(now, timeout, end) })
}

// handOver drains the session with its host, and reports whether no call was in flight. Another process continues a
// durable session.
func (s *Session) handOver(timeout time.Duration) (isDrained bool) {
	s.step(func(core *session.Session, now time.Time) {
		if s.kept.handOverLocked() {
			core.HandOver()
		}
		isDrained = core.InFlight() == 0
		core.Drain(now, timeout, session.EndHost)
	})
	return isDrained
}

// endInput drains the session after the end of its input. With an error it cuts the work in flight off.
func (s *Session) endInput(err error) {
	if err != nil {
		s.abort(session.EndCut)
		return
	}
	s.drain(10*time.Second, session.EndAgent)
}

// abort ends the session at once.
func (s *Session) abort(end session.End) { s.drain(0, end) }

// closeLocked ends what the session holds in memory. s.mu must be held.
func (s *Session) closeLocked(end session.End) {
	s.end = end
	if s.timer != nil {
		s.timer.Stop()
	}
	switch end {
	case session.EndHandshake, session.EndEvicted:
		now := time.Now()
		s.conn.add(item{then: func(int) {
			s.host.audit(s.ctx, &AuditRecord{Time: now, Peer: s.peer, Operation: typeHandshakeRequest, Outcome: OutcomeRefused,
				Code: string(ErrTimeout), Duration: now.Sub(s.created)})
		}})
	case session.EndExpired:
		id := s.id
		s.conn.add(item{then: func(int) {
			s.host.log.WarnContext(s.ctx, "a2e: session ended", "session", id, "reason", "principal expired")
		}})
	}
	for _, f := range s.onEnd {
		s.conn.add(item{then: func(int) { f(end) }})
	}
}

// close ends the session for its handlers and its host.
func (s *Session) close() {
	s.states.Seal()
	s.cancel()
	s.conn.replies.FailAll(ErrClosed)
	s.host.forget(s)
	go s.cleanUp()
}

// cleanUp closes the states of the plugins when the handlers have returned, at the latest after the grace of
// handlers (A2E-D58), and waits for the handlers.
func (s *Session) cleanUp() {
	defer close(s.finished)
	defer s.host.removeEnding(s)
	go func() {
		s.work.Wait()
		close(s.returned)
	}()
	select {
	case <-s.returned:
	case <-time.After(handlerGrace):
	}
	if s.keepsSnapshots() {
		ctx, cancel := context.WithTimeout(context.Background(), snapshotTime)
		if err := s.SaveSnapshots(ctx); err != nil {
			s.host.log.ErrorContext(ctx, "a2e: snapshots not saved", "session", s.ID(), "err", err)
		}
		cancel()
	}
	close(s.saved)
	s.states.Close()
	s.stateMemory.release()
	<-s.returned
	s.conn.recorder.flush(handlerGrace)
}

// waitEnd waits for the end of the session, but for its handlers and its plugins only until ctx ends.
func (s *Session) waitEnd(ctx context.Context) {
	select {
	case <-s.returned:
		<-s.saved
	case <-ctx.Done():
	}
	select {
	case <-s.finished:
	case <-ctx.Done():
	}
}

// A failureText is the error of a reason for which the state of a session refuses or fails a call.
type failureText struct {
	code         Code
	reason, text string
	hasNoSpace   bool // it names no capability (A2E-D26)
}

var failureTexts = [...]failureText{
	session.ReasonDraining:      {ErrInvalidMessage, ReasonDraining, "the session is shutting down", true},
	session.ReasonShutDown:      {ErrInvalidMessage, ReasonDraining, "the host is shutting down", true},
	session.ReasonDuplicateID:   {ErrInvalidMessage, reasonDuplicateID, "a request with this id was answered already", true},
	session.ReasonUnknownType:   {ErrInvalidMessage, reasonUnknownType, "nobody here knows this type", true},
	session.ReasonNoHandshake:   {ErrUnauthorized, reasonNoHandshake, "no handshake yet", false},
	session.ReasonNotNegotiated: {ErrCapabilityMissing, reasonNotNegotiated, "the capability was not negotiated", false},
	session.ReasonSessionID:     {ErrUnauthorized, reasonSessionID, "the request names another session", false},
	session.ReasonUnsupported:   {ErrInvalidMessage, ReasonUnsupported, "nobody here serves this type", false},
	session.ReasonOverBudget:    {ErrRuntime, ReasonOverloaded, "over the limit of the host", false},
	session.ReasonOverloaded:    {ErrRuntime, ReasonOverloaded, "too many requests are waiting", false},
	session.ReasonInterrupted:   {ErrRuntime, reasonInterrupted, "the host failed while the request was running", false},
	session.ReasonDeadline:      {ErrTimeout, ReasonDeadline, "the time limit of the call is over", false},
	session.ReasonEnd:           {ErrTimeout, ReasonShutdown, "the session is shut down", false},
	session.ReasonCancelled:     {ErrCancelled, "", "cancelled by the agent", false},
}

// A failed is a request that the state of a session refuses or fails. It does not keep the message, because its answer
// may wait for an agent that does not read.
type failed struct {
	id, msgType, capability string
	cause                   error // of the budget
	call                    *Call // of an interrupted request, else nil
}

// error returns the error for the agent. No lock is held.
func (f *failed) error(reason session.Reason) *Error {
	t := &failureTexts[reason]
	e := reasoned(t.code, t.reason, t.text)
	switch reason {
	case session.ReasonOverBudget:
		if own, ok := errors.AsType[*Error](overBudget(f.cause)); ok {
			e = own
		}
	case session.ReasonUnknownType, session.ReasonUnsupported:
		e = e.With("type", f.msgType)
	case session.ReasonNotNegotiated:
		e.Message = "the capability " + clip(f.capability, 100) + " was not negotiated; the agent asks for it in its handshake"
	case session.ReasonInterrupted:
		e.Retryable = f.call.isIdempotent()
	}
	if !t.hasNoSpace {
		e.Capability = f.capability
	}
	e.ReqID = f.id
	return e
}

// cause returns the cause of the end of the context of a failed call.
func cause(reason session.Reason) error {
	switch reason {
	case session.ReasonDeadline:
		return context.DeadlineExceeded
	case session.ReasonCancelled:
		return context.Canceled
	}
	return ErrClosed
}
