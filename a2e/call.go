// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package a2e

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fivewire/fivewire/internal/budget"
	"github.com/fivewire/fivewire/internal/guard"
	"github.com/fivewire/fivewire/internal/life"
	"github.com/fivewire/fivewire/internal/sendq"
)

// NoResponse is returned by a handler of a request that is answered on failure
// only, such as SUBAGENT_CANCEL_REQ.
const NoResponse = noAnswer(true)

type noAnswer bool

// A Call is one message that a host handles, most often a request.
type Call struct {
	Message *Message
	Session *Session

	arrived    time.Time
	in         int // length of the line
	capability string
	routes     []boundRoute
	keys       []string
	key        string // in Session.calls: the id of a request
	lane       lane
	silent     bool // an event: no answer goes out
	mayPass    bool // the catch-all: it may leave a request without answer

	state atomic.Pointer[any] // of the plugin that handles it at the moment

	work *life.Work // and its context; nil before it is queued
	line *[]byte    // the answer of the handler; nil for none

	body *keptBody // that holds a request of a durable session

	scope *budget.Scope // of the session, since the call was queued
	hold  requestHold
	place budget.Hold // of the running handler

	// guarded by the session's mu
	deadline time.Time
	started  bool
	answered bool
	seq      int64 // of the next event
}

// ID returns the id of the message.
func (c *Call) ID() string { return c.Message.ID }

// CorrelationID returns the caller's trace id, or the id of the message if it
// has none.
func (c *Call) CorrelationID() string {
	if s := textMember(c.Message, "correlation_id"); s != "" {
		return s
	}
	return c.Message.ID
}

// StringMember returns a member of the message that is a string, by its name on the
// wire, or "".
func (c *Call) StringMember(name string) string { return textMember(c.Message, name) }

// Streaming reports whether the agent requested events.
func (c *Call) Streaming() bool { return wantsEvents(c.Message) }

// PluginState returns the state of the handling plugin for this session.
func (c *Call) PluginState() any {
	if p := c.state.Load(); p != nil {
		return *p
	}
	return nil
}

func (c *Call) setState(state any) {
	if state == nil {
		c.state.Store(nil)
		return
	}
	kept := state // the parameter itself stays off the heap
	c.state.Store(&kept)
}

// Emit sends an event about the call, in the event type of its namespace, with data, a map or a
// struct, by the rules of encoding/json. It does nothing if the agent has not requested events, and
// blocks while the agent does not read. After the answer it returns [ErrClosed].
func (c *Call) Emit(kind string, data any) error {
	if !c.Streaming() {
		return nil
	}
	raw, err := toObject(data)
	if err != nil {
		return err
	}
	namespace, _, _ := strings.Cut(c.Message.Type, "/")
	name := namespace + "/event"
	if c.Session.host.codec.Types.Lookup(name) == nil {
		name = TypeEvent
	}
	return c.emit(name, func(seq int64) any {
		return &EventBody{Kind: kind, ReqID: c.Message.ID, Data: raw, Seq: seq}
	})
}

// EmitBody sends an event with its own model, which body makes from the number of the event. If
// several goroutines emit at once, body may be called again with another number. Otherwise it is
// like [Call.Emit].
func (c *Call) EmitBody(msgType string, body func(seq int64) any) error {
	if !c.Streaming() {
		return nil
	}
	return c.emit(msgType, body)
}

func (c *Call) emit(msgType string, body func(seq int64) any) error {
	s := c.Session
	for {
		s.mu.Lock()
		seq := c.seq
		s.unlock()
		line, err := s.boundedLine(NewMessage(msgType, body(seq)))
		if err != nil {
			return err
		}
		isNext := true
		err = s.post(c.work, *line, func() error {
			if c.answered {
				return ErrClosed
			}
			if isNext = c.seq == seq; !isNext {
				return errRepeat
			}
			return nil
		}, func(int) { c.seq++ })
		freeLine(line)
		if isNext {
			return err
		}
	}
}

// errRepeat ends an attempt to send an event whose number another event has.
var errRepeat = errors.New("a2e: number of the event is used")

// post queues a line, after a wait for space if the agent does not read. The functions run with
// s.mu held: admit just before the line is queued, and queued, with the length of the line without
// its LF, just after.
func (s *Session) post(ctx context.Context, line []byte, admit func() error, queued func(n int)) error {
	var space sendq.Reservation
	for {
		s.mu.Lock()
		out := s.out
		err := admit()
		if err == nil {
			err = out.put(line, space)
		}
		if err == nil {
			s.recorder.line("out", line)
			queued(len(line) - 1)
			s.unlock()
			return nil
		}
		s.unlock()
		out.release(space)
		if !errors.Is(err, sendq.ErrFull) {
			return err
		}
		if space, err = out.reserve(ctx, len(line)); err != nil {
			return err
		}
	}
}

// enqueueLocked starts a call or queues it. s.mu must be held.
func (s *Session) enqueueLocked(c *Call) {
	limits := &s.host.opts.Limits
	c.key = c.Message.ID
	if c.silent {
		s.events++
		c.key = "\xff" + strconv.FormatUint(s.events, 10) // no id of a request, which is valid UTF-8
	} else {
		c.keys = orderKeys(c.Message)
	}
	if s.hold.err != nil {
		s.refuseWorkLocked(c, overBudget(s.hold.err))
		return
	}
	canRun := s.canStartLocked(c, s.queue)
	if !s.hasRoomLocked(c, canRun) {
		s.refuseWorkLocked(c, reasoned(ErrRuntime, ReasonOverloaded, "too many requests are waiting"))
		return
	}
	work, err := s.host.life.Start(s.ctx, life.Request)
	if err != nil {
		if !c.silent {
			s.rejectLocked(c, reasoned(ErrInvalidMessage, ReasonDraining, "the host is shutting down"))
		}
		return
	}
	c.scope, c.hold, s.hold = s.scope, s.hold, requestHold{}
	c.work = work
	limit := timeLimit(c.Message.Body)
	if limit <= 0 || limit > limits.MaxCallTimeout {
		limit = limits.MaxCallTimeout
	}
	c.deadline = c.arrived.Add(limit)
	s.armTimerLocked(c.deadline)
	s.calls[c.key] = c
	if s.body != nil {
		c.body = s.body
		c.body.open++
	}
	s.arrivals = append(s.arrivals, c)
	if canRun {
		s.startCallLocked(c)
		return
	}
	s.queue = append(s.queue, c)
}

// refuseWorkLocked refuses a call for which the host has no room. s.mu must be held.
func (s *Session) refuseWorkLocked(c *Call, err error) {
	e, ok := errors.AsType[*Error](err)
	if c.silent || !ok {
		s.host.dropped.Add(1)
		return
	}
	e.Capability = c.capability
	s.rejectLocked(c, e)
}

// armTimerLocked makes the timer of the session fire at t or earlier. One timer serves all calls,
// because nearly all of them are answered long before their deadline. s.mu must be held.
func (s *Session) armTimerLocked(t time.Time) {
	if !s.due.IsZero() && !t.Before(s.due) {
		return
	}
	s.due = t
	if s.clock == nil {
		s.clock = time.AfterFunc(time.Until(t), s.overdue)
		return
	}
	s.clock.Reset(time.Until(t))
}

// isBlockedLocked reports whether a running call uses an object of c. s.mu must be held.
func (s *Session) isBlockedLocked(c *Call) bool {
	return slices.ContainsFunc(c.keys, func(key string) bool { return s.busyKeys[key] })
}

// startCallLocked passes a call to a worker. s.mu must be held.
func (s *Session) startCallLocked(c *Call) {
	c.started = true
	c.hold.waiting.Release()
	s.running[c.lane]++
	for _, key := range c.keys {
		s.busyKeys[key] = true
	}
	select {
	case s.todo <- c:
	default:
		s.work.Add(1)
		go s.worker(c)
	}
}

// maxIdle is the number of workers of a session that wait for the next call. Workers are reused for
// their grown stacks.
const maxIdle = 4

// worker runs a call, and more if they come soon enough.
func (s *Session) worker(c *Call) {
	defer s.work.Done()
	for {
		s.run(c)
		if s.idle.Add(1) > maxIdle {
			s.idle.Add(-1)
			return
		}
		select {
		case c = <-s.todo:
			s.idle.Add(-1)
		case <-s.ctx.Done():
			return
		}
	}
}

// release frees the slot and the objects of a call whose handler has returned, also one that was
// answered before (A2E-D27).
func (s *Session) release(c *Call) {
	c.hold.release()
	c.place.Release()
	s.mu.Lock()
	defer s.unlock()
	s.running[c.lane]--
	for _, key := range c.keys {
		delete(s.busyKeys, key)
	}
	if s.state != stateClosed {
		s.scheduleLocked()
	}
}

func (s *Session) run(c *Call) {
	defer s.release(c) // also after runtime.Goexit
	c.work.Run(c.Message.Type, func(ctx context.Context) error {
		body, err := s.admit(ctx, c)
		if err != nil || c.silent || body == NoResponse || c.mayPass && body == nil {
			return err
		}
		c.line, err = s.boundedLine(s.response(c, body))
		if err != nil && !isOverBound(err) {
			s.host.log.ErrorContext(s.ctx, "a2e: answer not encoded", "type", c.Message.Type, "err", err)
			err = reasoned(ErrRuntime, ReasonInternal, "internal error")
		}
		return err
	}, func(err error) { s.conclude(c, err) })
}

// conclude answers a call with the result of its handler. While the agent does not read, it waits,
// and the call keeps its place (A2E-D56).
func (s *Session) conclude(c *Call, err error) {
	line, outcome, code := c.line, OutcomeOK, ""
	c.line = nil
	if err != nil && !c.silent {
		e := s.wireError(c, err)
		e.ReqID = c.Message.ID
		line, outcome, code = s.encode(errorMessage(e)), failure(e), string(e.Code)
	}
	if line == nil {
		s.mu.Lock()
		defer s.unlock()
		if !c.answered {
			s.finishCallLocked(c)
		}
		return
	}
	err = s.post(c.work, *line, func() error {
		if c.answered {
			return ErrClosed
		}
		return nil
	}, func(n int) {
		s.auditLocked(c.Message, c.arrived, c.in, n, outcome, code)
		s.finishCallLocked(c)
	})
	freeLine(line)
	if err != nil {
		s.host.log.DebugContext(s.ctx, "a2e: answer dropped", "request_id", c.Message.ID, "err", err)
	}
}

// admit calls the handler when there is a place for it in the host.
func (s *Session) admit(ctx context.Context, c *Call) (body any, err error) {
	if c.lane == laneOrdinary {
		if c.place, err = c.scope.Acquire(ctx); err != nil {
			return nil, overBudget(err)
		}
	}
	if c.body != nil {
		if err := c.Session.kept.claim(ctx, c); err != nil {
			return nil, err
		}
	}
	return s.handle(ctx, c)
}

// handle calls the plugins in turn (A2E-D34).
func (s *Session) handle(ctx context.Context, c *Call) (body any, err error) {
	if err := s.host.authorize(ctx, c); err != nil {
		return nil, err
	}
	for i := range c.routes {
		r := &c.routes[i]
		state, err := s.stateOf(ctx, r.plugin)
		if err != nil {
			return nil, err
		}
		c.setState(state)
		body, err := r.handler.ServeA2E(ctx, c)
		if !errors.Is(err, ErrNextPlugin) {
			s.saveDurable(ctx, r.plugin)
			return body, err
		}
		if r.plugin.Exclusive && i == 0 {
			break
		}
	}
	if c.silent || c.mayPass {
		return nil, nil
	}
	return nil, unsupported(c.Message.Type)
}

// A pluginState is what a plugin keeps for a session.
type pluginState struct {
	ready chan struct{} // closed with value or err set
	value any
	err   error
	place snapshotPlace

	saves sync.Mutex
	saved []byte // the last object; guarded by saves
}

// stateOf returns the state of a plugin for this session, making it at first use.
func (s *Session) stateOf(ctx context.Context, p *Plugin) (any, error) {
	if p.Open == nil {
		return nil, nil
	}
	s.mu.Lock()
	state := s.states[p]
	switch {
	case state != nil:
		s.unlock()
	case s.state == stateClosed:
		s.unlock()
		return nil, ErrClosed
	default:
		state = &pluginState{ready: make(chan struct{})}
		s.states[p] = state
		s.unlock()
		s.openState(ctx, p, state)
	}
	select {
	case <-state.ready:
		return state.value, state.err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// openState makes a state. A state that fails is removed, so that the next request tries again.
func (s *Session) openState(ctx context.Context, p *Plugin, state *pluginState) {
	defer close(state.ready)
	defer func() {
		if state.err != nil {
			s.mu.Lock()
			delete(s.states, p)
			s.unlock()
		}
	}()
	state.err = guard.Call("plugin "+p.Name, func() (err error) {
		state.value, err = p.Open(s)
		return err
	})
	if state.err != nil {
		return
	}
	state.err = guard.Call("plugin "+p.Name, func() error { return s.restore(ctx, p, state) })
	if state.err != nil {
		s.closeState(p, state.value)
	}
}

// closeState closes a state. A panic of the plugin does not affect the other plugins.
func (s *Session) closeState(p *Plugin, value any) {
	if p.Close == nil {
		return
	}
	err := guard.Call("plugin "+p.Name, func() error { p.Close(value); return nil })
	if err != nil {
		logFailure(s.ctx, s.host.log, slog.LevelWarn, "a2e: plugin state not closed", err, "plugin", p.Name)
	}
}

// wireError converts the error of a handler into the error that the agent receives. An error of
// another peer is not passed on as an error of this host.
func (s *Session) wireError(c *Call, err error) *Error {
	var e *Error
	var panicked *guard.PanicError
	switch {
	case errors.As(err, &panicked):
		e = reasoned(ErrRuntime, ReasonInternal, "internal error")
		e.Cause = err
	case errors.As(err, &e) && !e.Remote:
		copied := *e
		e = &copied
	case e != nil:
		e = reasoned(ErrRuntime, ReasonInternal, "internal error")
		e.Cause = err
	default:
		e = Errorf(generalCode(c.capability), "the handler failed")
		if e.Code != ErrRuntime { // the text of a tool or a skill is meant for the model
			e.Message = clip(err.Error(), 200)
		}
		e.Cause = err
	}
	if e.Cause != nil {
		logFailure(c.work, s.host.log, slog.LevelInfo, "a2e: handler failed", e.Cause, "type", c.Message.Type, "request_id", c.Message.ID, "code", string(e.Code))
	}
	if e.Capability == "" {
		e.Capability = c.capability
	}
	return e
}

// response returns the message that answers a call.
func (s *Session) response(c *Call, body any) *Message {
	if m, ok := body.(*Message); ok {
		return m
	}
	name := c.Message.Type
	switch {
	case c.Message.typ != nil && c.Message.typ.Name == c.Message.Type:
		name = c.Message.typ.Response
	case name == "env/plan/resp": // a request in the type of the response (A2E-D20)
	default:
		name = responseType(name)
	}
	if name == "" {
		name = c.Message.Type + "/resp"
	}
	m := NewMessage(name, body)
	setReqID(m, c.Message.ID)
	return m
}

// rejectLocked answers a call that was never queued. s.mu must be held.
func (s *Session) rejectLocked(c *Call, err *Error) {
	err.ReqID = c.Message.ID
	s.answered.add(c.Message.ID)
	s.auditLocked(c.Message, c.arrived, c.in, s.sendLocked(errorMessage(err)), OutcomeRefused, string(err.Code))
}

// failLocked answers a call with an error. s.mu must be held.
func (s *Session) failLocked(c *Call, err *Error) {
	err.ReqID = c.Message.ID
	if !c.silent {
		s.auditLocked(c.Message, c.arrived, c.in, s.sendLocked(errorMessage(err)), failure(err), string(err.Code))
	}
	s.finishCallLocked(c)
}

// failure returns the outcome of a call that ends with an error.
func failure(err *Error) string {
	if err.Code == ErrCancelled {
		return OutcomeCanceled
	}
	return OutcomeFailed
}

// finishCallLocked removes an answered call from the session. s.mu must be held.
func (s *Session) finishCallLocked(c *Call) {
	c.answered = true
	s.kept.finishLocked(c)
	c.work.Cut(ErrClosed)
	delete(s.calls, c.key)
	if i := slices.Index(s.arrivals, c); i >= 0 {
		s.arrivals = slices.Delete(s.arrivals, i, i+1)
	}
	if !c.silent {
		s.answered.add(c.Message.ID)
	}
	if !c.started {
		c.hold.release()
		c.work.Finish()
		s.queue = slices.DeleteFunc(s.queue, func(q *Call) bool { return q == c })
	}
	if s.state == stateDraining && len(s.calls) == 0 {
		s.closeLocked()
		return
	}
	s.scheduleLocked()
}

// overdue answers the calls whose time limit has expired (A2E-D28).
func (s *Session) overdue() {
	s.mu.Lock()
	defer s.unlock()
	s.due = time.Time{}
	now := time.Now()
	isOverdue := func(c *Call) bool { return !c.deadline.After(now) }
	s.queue = slices.DeleteFunc(s.queue, isOverdue) // keeps these calls from starting below
	for _, c := range slices.Clone(s.arrivals) {
		if c.answered || !isOverdue(c) {
			continue
		}
		err := reasoned(ErrTimeout, ReasonDeadline, "the time limit of the call is over")
		err.Capability = c.capability
		c.work.Cut(context.DeadlineExceeded)
		s.failLocked(c, err)
	}
	for _, c := range s.arrivals { // empty if the session is closed
		s.armTimerLocked(c.deadline)
	}
}

// cancelCallLocked serves the cancel extension. s.mu must be held.
func (s *Session) cancelCallLocked(m *Message) {
	id := textMember(m, "req_id")
	c := s.calls[id]
	if c == nil {
		return
	}
	c.work.Cut(context.Canceled)
	err := Errorf(ErrCancelled, "cancelled by the agent")
	err.Capability = c.capability
	s.failLocked(c, err)
}

// startDrainLocked refuses new work and closes the session when the work in flight is done or the
// timeout has expired (A2E-D35). s.mu must be held.
func (s *Session) startDrainLocked(timeout time.Duration) {
	if s.state == stateClosed || s.state == stateDraining && timeout > 0 {
		return
	}
	if len(s.calls) == 0 {
		s.closeLocked()
		return
	}
	s.state = stateDraining
	if timeout <= 0 {
		s.cutOffLocked()
		return
	}
	if s.timer != nil {
		s.timer.Stop()
	}
	s.timer = time.AfterFunc(min(timeout, s.host.opts.Timing.DrainTimeout), func() {
		s.mu.Lock()
		defer s.unlock()
		if s.state == stateDraining {
			s.cutOffLocked()
		}
	})
}

// cutOffLocked answers every unfinished call in order of arrival, and closes the session. s.mu must
// be held.
func (s *Session) cutOffLocked() {
	s.queue = nil // keeps calls from starting below
	for _, c := range slices.Clone(s.arrivals) {
		if s.state == stateClosed {
			return // the last one closed the session
		}
		err := reasoned(ErrTimeout, ReasonShutdown, "the session is shut down")
		err.Capability = c.capability
		s.failLocked(c, err)
	}
	s.closeLocked()
}

// drain ends the session with its host, as a shutdown message does. Another process continues a
// durable session.
func (s *Session) drain(timeout time.Duration) {
	s.mu.Lock()
	defer s.unlock()
	s.handOverLocked()
	s.code = codeShutdown
	s.startDrainLocked(timeout)
}

// end drains the session after the end of its input. With an error it cuts the work in flight off.
func (s *Session) end(err error) {
	s.mu.Lock()
	defer s.unlock()
	if err != nil {
		s.startDrainLocked(0)
		return
	}
	s.startDrainLocked(10 * time.Second)
}

// abort ends the session at once.
func (s *Session) abort() {
	s.mu.Lock()
	defer s.unlock()
	s.startDrainLocked(0)
}

// closeLocked ends the session. s.mu must be held.
func (s *Session) closeLocked() {
	if s.state == stateClosed {
		return
	}
	s.state = stateClosed
	if s.timer != nil {
		s.timer.Stop()
	}
	if s.clock != nil {
		s.clock.Stop()
	}
	if s.expiry != nil {
		s.expiry.Stop()
	}
	s.cancel()
	if s.snapshotKey != "" {
		s.host.saves.begin(s.snapshotKey)
	}
	s.replies.FailAll(ErrClosed)
	s.host.forget(s)
	go s.cleanUp()
}

// cleanUp waits for the handlers and closes the states of the plugins.
func (s *Session) cleanUp() {
	defer close(s.finished)
	defer s.host.removeEnding(s)
	s.work.Wait()
	close(s.returned)
	if s.keepsSnapshots() {
		ctx, cancel := context.WithTimeout(context.Background(), snapshotTime)
		if err := s.SaveSnapshots(ctx); err != nil {
			s.host.log.ErrorContext(ctx, "a2e: snapshots not saved", "session", s.id, "err", err)
		}
		cancel()
	}
	if s.snapshotKey != "" {
		s.host.saves.end(s.snapshotKey)
	}
	for p, state := range s.states {
		s.closeState(p, state.value)
	}
	s.recorder.flush(handlerGrace)
}
