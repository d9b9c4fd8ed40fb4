// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package a2e

import (
	"context"
	"errors"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
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
	key        string // in the books of the session: the id of a request
	silent     bool   // an event: no answer goes out
	mayPass    bool   // the catch-all: it may leave a request without answer

	state atomic.Pointer[any] // of the plugin that handles it at the moment

	ctx callContext

	// guarded by the session's mu
	deadline time.Time
	started  bool
	answered bool
	seq      int64
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

// Streaming reports whether the agent asked for events.
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
	kept := state // so that only this one is on the heap
	c.state.Store(&kept)
}

// Emit sends an event about the call, in the event type of its namespace, with
// data, a map or a struct, by the rules of encoding/json. It does nothing if the agent did not ask for
// events, and waits while the agent does not read. After the answer it returns
// [ErrClosed].
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

// EmitBody sends an event with a model of its own, which body makes from the
// number of the event. Otherwise it is like [Call.Emit].
func (c *Call) EmitBody(msgType string, body func(seq int64) any) error {
	if !c.Streaming() {
		return nil
	}
	return c.emit(msgType, body)
}

func (c *Call) emit(msgType string, body func(seq int64) any) error {
	s := c.Session
	if err := s.out.wait(&c.ctx); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.answered {
		return ErrClosed
	}
	m := NewMessage(msgType, body(c.seq))
	line, err := s.host.codec.line(m)
	if err != nil {
		return err
	}
	c.seq++
	s.out.put(*line)
	freeLine(line)
	return nil
}

// enqueue lets a call run now or later. It is called with mu held.
func (s *Session) enqueue(c *Call) {
	limits := &s.host.limits
	c.key = c.Message.ID
	if c.silent {
		s.events++
		c.key = "\xff" + strconv.FormatUint(s.events, 10) // no id of a request, which is valid UTF-8
	} else {
		c.keys = orderKeys(c.Message)
	}
	canRun := len(s.queue) == 0 && s.running < limits.MaxConcurrent && !s.blocked(c)
	if !canRun && len(s.queue) >= limits.QueueLimit {
		if c.silent {
			s.host.dropped.Add(1)
			return
		}
		err := reasoned(ErrRuntime, ReasonOverloaded, "too many requests are waiting")
		err.Capability = c.capability
		s.reject(c, err)
		return
	}
	limit := timeLimit(c.Message)
	if limit <= 0 || limit > limits.MaxCallTimeout {
		limit = limits.MaxCallTimeout
	}
	c.ctx.parent = s.ctx
	c.deadline = c.arrived.Add(limit)
	s.wakeAt(c.deadline)
	s.calls[c.key] = c
	s.arrivals = append(s.arrivals, c)
	if canRun {
		s.begin(c)
		return
	}
	s.queue = append(s.queue, c)
	s.schedule()
}

// wakeAt makes the clock of the session strike at a time, or earlier. There is one
// for all calls: nearly all of them are answered long before their time is over.
func (s *Session) wakeAt(t time.Time) {
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

func (s *Session) blocked(c *Call) bool {
	return slices.ContainsFunc(c.keys, func(key string) bool { return s.held[key] })
}

// schedule starts what can start, strictly in the order of arrival (A2E-D27).
func (s *Session) schedule() {
	for len(s.queue) > 0 && s.running < s.host.limits.MaxConcurrent {
		c := s.queue[0]
		if s.blocked(c) || !c.deadline.After(time.Now()) { // the clock is about to answer it
			return
		}
		s.queue[0] = nil
		s.queue = s.queue[1:]
		s.begin(c)
	}
}

func (s *Session) begin(c *Call) {
	c.started = true
	s.running++
	for _, key := range c.keys {
		s.held[key] = true
	}
	select {
	case s.todo <- c:
	default:
		s.work.Add(1)
		go s.worker(c)
	}
}

// maxIdle is how many workers of a session wait for the next call. They are used
// again for their stacks: a new one would have to grow its own.
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

func (s *Session) run(c *Call) {
	body, err := s.handle(c)
	if s.conclude(c, body, err) {
		s.out.help()
	}
}

// conclude answers a call with what its handler returned, and reports whether
// nobody else is at work.
func (s *Session) conclude(c *Call, body any, err error) (alone bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	alone = s.running <= 1
	if c.answered {
		return alone
	}
	switch {
	case c.silent, err == nil && (body == NoResponse || c.mayPass && body == nil):
		s.settle(c)
	case err != nil:
		s.fail(c, s.wireError(c, err))
	default:
		s.answer(c, s.response(c, body))
	}
	return alone
}

// handle asks the plugins in turn (A2E-D34).
func (s *Session) handle(c *Call) (body any, err error) {
	defer func() {
		if p := recover(); p != nil {
			s.host.log.Error("a2e: handler panicked", "type", c.Message.Type, "panic", p, "stack", string(debug.Stack()))
			body, err = nil, reasoned(ErrRuntime, ReasonInternal, "internal error")
		}
	}()
	for i := range c.routes {
		r := &c.routes[i]
		state, err := s.stateOf(&c.ctx, r.plugin)
		if err != nil {
			return nil, err
		}
		c.setState(state)
		body, err := r.handler.ServeA2E(&c.ctx, c)
		if !errors.Is(err, ErrNextPlugin) {
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
		s.mu.Unlock()
	case s.state == stateClosed:
		s.mu.Unlock()
		return nil, ErrClosed
	default:
		state = &pluginState{ready: make(chan struct{})}
		s.states[p] = state
		s.mu.Unlock()
		s.openState(ctx, p, state)
	}
	select {
	case <-state.ready:
		return state.value, state.err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// openState makes a state. One that fails is forgotten, so that the next request
// tries again.
func (s *Session) openState(ctx context.Context, p *Plugin, state *pluginState) {
	defer close(state.ready)
	defer func() {
		if state.err != nil {
			s.mu.Lock()
			delete(s.states, p)
			s.mu.Unlock()
		}
	}()
	state.err = errors.New("a2e: the plugin panicked") // unless it gets to the end
	value, err := p.Open(s)
	if err != nil {
		state.err = err
		return
	}
	defer func() {
		if state.err != nil { // or it panicked
			s.closeState(p, value)
		}
	}()
	state.value, state.err = value, s.restore(ctx, p, value)
}

// closeState ends a state. A plugin that panics is nobody else's concern.
func (s *Session) closeState(p *Plugin, value any) {
	if p.Close == nil {
		return
	}
	defer func() {
		if e := recover(); e != nil {
			s.host.log.Error("a2e: plugin panicked", "plugin", p.Name, "panic", e, "stack", string(debug.Stack()))
		}
	}()
	p.Close(value)
}

// wireError turns what a handler returned into what the agent reads.
func (s *Session) wireError(c *Call, err error) *Error {
	var e *Error
	if errors.As(err, &e) {
		copied := *e
		e = &copied
	} else {
		e = NewError(generalCode(c.capability), "the handler failed")
		if e.Code != ErrRuntime { // what a tool or a skill has to say is meant for the model
			e.Message = clip(err.Error(), 200)
		}
		s.host.log.Info("a2e: handler failed", "type", c.Message.Type, "req_id", c.Message.ID, "err", err)
	}
	if e.Cause != nil {
		s.host.log.Info("a2e: handler failed", "type", c.Message.Type, "req_id", c.Message.ID, "err", e, "cause", e.Cause)
	}
	if e.Capability == "" {
		e.Capability = c.capability
	}
	return e
}

// response makes the message that answers a call.
func (s *Session) response(c *Call, body any) *Message {
	if m, ok := body.(*Message); ok {
		return m
	}
	name := c.Message.Type
	switch {
	case c.Message.typ != nil && c.Message.typ.Name == c.Message.Type:
		name = c.Message.typ.Response
	case name == "env/plan/resp": // asked in the type of the answer (A2E-D20)
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

// reject answers a call that was never let in.
func (s *Session) reject(c *Call, err *Error) {
	err.ReqID = c.Message.ID
	s.answered.add(c.Message.ID)
	record := newAudit(s.auditID(), c.Message, c.arrived, c.in, s.send(errorMessage(err)))
	record.failed(string(err.Code))
	s.audit(record)
}

// fail answers a call with an error. It is called with mu held.
func (s *Session) fail(c *Call, err *Error) {
	err.ReqID = c.Message.ID
	out := 0
	if !c.silent {
		out = s.send(errorMessage(err))
		if s.audited() {
			record := newAudit(s.auditID(), c.Message, c.arrived, c.in, out)
			record.failed(string(err.Code))
			s.audit(record)
		}
	}
	s.settle(c)
}

func (s *Session) answer(c *Call, m *Message) {
	line, err := s.host.codec.line(m)
	if err != nil {
		s.host.log.Error("a2e: answer cannot be encoded", "type", m.Type, "err", err)
		e := reasoned(ErrRuntime, ReasonInternal, "internal error")
		e.Capability = c.capability
		s.fail(c, e)
		return
	}
	if s.running > 1 { // more answers come soon, for one write call
		s.out.put(*line)
	} else {
		s.out.leave(*line)
	}
	if s.audited() {
		s.audit(newAudit(s.auditID(), c.Message, c.arrived, c.in, len(*line)))
	}
	freeLine(line)
	s.settle(c)
}

// settle takes an answered call out of the books. It is called with mu held.
func (s *Session) settle(c *Call) {
	c.answered = true
	c.ctx.end(ErrClosed)
	delete(s.calls, c.key)
	if i := slices.Index(s.arrivals, c); i >= 0 {
		s.arrivals = slices.Delete(s.arrivals, i, i+1)
	}
	if !c.silent {
		s.answered.add(c.Message.ID)
	}
	if c.started {
		s.running--
		for _, key := range c.keys {
			delete(s.held, key)
		}
	} else if i := slices.Index(s.queue, c); i >= 0 {
		s.queue = slices.Delete(s.queue, i, i+1)
	}
	if s.state == stateDraining && len(s.calls) == 0 {
		s.close()
		return
	}
	s.schedule()
}

// overdue answers the calls whose time limit is over (A2E-D28).
func (s *Session) overdue() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.due = time.Time{}
	now := time.Now()
	over := func(c *Call) bool { return !c.deadline.After(now) }
	s.queue = slices.DeleteFunc(s.queue, over) // so that none of them starts in between
	for _, c := range slices.Clone(s.arrivals) {
		if c.answered || !over(c) {
			continue
		}
		err := reasoned(ErrTimeout, ReasonDeadline, "the time limit of the call is over")
		err.Capability = c.capability
		c.ctx.end(context.DeadlineExceeded)
		s.fail(c, err)
	}
	for _, c := range s.arrivals { // of a closed session there are none
		s.wakeAt(c.deadline)
	}
}

// cancelCall serves the cancel extension.
func (s *Session) cancelCall(m *Message) {
	id := textMember(m, "req_id")
	c := s.calls[id]
	if c == nil {
		return
	}
	c.ctx.end(context.Canceled)
	err := NewError(ErrCancelled, "cancelled by the agent")
	err.Capability = c.capability
	s.fail(c, err)
}

// startDrain refuses new work and closes the session when the work in flight is
// done or the time is over (A2E-D35). It is called with mu held.
func (s *Session) startDrain(timeout time.Duration) {
	if s.state == stateClosed || s.state == stateDraining && timeout > 0 {
		return
	}
	if len(s.calls) == 0 {
		s.close()
		return
	}
	s.state = stateDraining
	if timeout <= 0 {
		s.cutOff()
		return
	}
	if s.timer != nil {
		s.timer.Stop()
	}
	s.timer = time.AfterFunc(min(timeout, s.host.limits.MaxDrain), func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.state == stateDraining {
			s.cutOff()
		}
	})
}

// cutOff answers every unfinished call in order of arrival, and closes.
func (s *Session) cutOff() {
	s.queue = nil // so that nothing starts in between
	for _, c := range slices.Clone(s.arrivals) {
		if s.state == stateClosed {
			return // the last one closed the session
		}
		err := reasoned(ErrTimeout, ReasonShutdown, "the session is shut down")
		err.Capability = c.capability
		s.fail(c, err)
	}
	s.close()
}

// drain ends the session as a shutdown message does.
func (s *Session) drain(timeout time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.startDrain(timeout)
}

// end tells the session that its input ended, with an error or not.
func (s *Session) end(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		s.startDrain(0)
		return
	}
	s.startDrain(10 * time.Second)
}

// abort ends the session at once.
func (s *Session) abort() { s.drain(0) }

// close ends the session. It is called with mu held.
func (s *Session) close() {
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
	s.cancel()
	if s.snapshotKey != "" {
		s.host.saves.begin(s.snapshotKey)
	}
	s.out.finish()
	s.host.forget(s)
	go s.cleanUp()
}

// cleanUp waits for the handlers and closes the states of the plugins.
func (s *Session) cleanUp() {
	defer close(s.finished)
	defer s.host.gone(s)
	s.work.Wait()
	if s.snapshotKey != "" {
		ctx, cancel := context.WithTimeout(context.Background(), snapshotTime)
		if err := s.SaveSnapshots(ctx); err != nil {
			s.host.log.Error("a2e: snapshots cannot be saved", "session_id", s.id, "err", err)
		}
		cancel()
		s.host.saves.end(s.snapshotKey)
	}
	for p, state := range s.states {
		s.closeState(p, state.value)
	}
}
