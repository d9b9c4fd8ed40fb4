// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package a2e

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"
	"time"

	"github.com/fivewire/fivewire/a2e/internal/session"
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

	core    session.Call // guarded by the mutex of the session
	in      int          // length of the line
	routes  []boundRoute
	mayPass bool // the fallback: it may leave a request without answer

	state      atomic.Pointer[any] // of the plugin that handles it at the moment
	work       life.Work           // and its context
	body       *keptBody           // that holds a request of a durable session
	scope      *budget.Scope       // of the session, since the call was queued
	hold       requestHold
	place      budget.Hold // of the running handler
	line       *[]byte     // the answer of the handler; nil for none
	outcome    string      // for the audit
	code       string      // of the error, for the audit
	seat       callTurn    // to take a place in the host, before later calls of the session
	start      callTurn    // to call the handler
	isInline   bool        // the reader of the session runs it
	isReturned bool        // the state of the session knows that the handler has returned
}

// newCall returns a call for a message that was received.
func (s *Session) newCall(m *Message, arrived time.Time, in int) *Call {
	c := &Call{Message: m, Session: s, in: in}
	c.core = session.Call{ID: m.ID, Capability: s.capabilityOf(m), Timeout: timeLimit(m.Body), Arrived: arrived, Owner: c,
		Objects: orderKeys(m), SessionID: textMember(m, "session_id")}
	return c
}

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
		name = typeEvent
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

// errRepeat ends an attempt to send an event whose number another event has.
var errRepeat = errors.New("a2e: number of the event is used")

func (c *Call) emit(msgType string, body func(seq int64) any) error {
	s := c.Session
	for {
		s.mu.Lock()
		seq := s.core.Seq(&c.core)
		s.mu.Unlock()
		line, err := s.conn.boundedLine(NewMessage(msgType, body(seq)), ErrRuntime)
		if err != nil {
			return err
		}
		err = s.conn.send(&c.work, line, func(space sendq.Reservation) error {
			s.mu.Lock()
			defer s.mu.Unlock()
			switch {
			case s.core.IsAnswered(&c.core):
				return ErrClosed
			case s.core.Seq(&c.core) != seq:
				return errRepeat
			}
			err := s.conn.put(line, space, nil)
			if err == nil {
				s.core.Emit(&c.core)
			}
			return err
		})
		if !errors.Is(err, errRepeat) {
			return err
		}
	}
}

// startCall passes a call to a worker. The reader of the session runs the handlers that never block itself.
func (s *Session) startCall(c *Call, isReader bool) {
	if isReader && c.runsInline() {
		c.isInline = true
		c.run()
		return
	}
	select {
	case s.todo <- c:
	default:
		go s.worker(c)
	}
}

// runsInline reports whether the reader may run a call: whether nothing before and behind the handler has to wait.
func (c *Call) runsInline() bool {
	s := c.Session
	if !c.routes[0].isInline || c.body != nil || s.host.opts.Auth.Authorizer != nil || c.Streaming() || !c.start.isNext() || !s.conn.isIdle() {
		return false
	}
	if c.core.Lane != session.LaneOrdinary {
		return true
	}
	c.hold.waiting.Release() // Acquire takes its own
	var err error
	c.place, err = c.scope.Acquire(s.host.done)
	return err == nil
}

// maxIdle is the number of workers of a session that wait for the next call. Workers are reused for
// their grown stacks.
const maxIdle = 4

// worker runs a call, and more if they come soon enough.
func (s *Session) worker(c *Call) {
	for {
		c.run()
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

// run calls the handler and answers with its result.
func (c *Call) run() {
	defer c.Session.work.Done()
	defer c.release() // also after runtime.Goexit
	c.work.Run(c.Message.Type, c.serve, c.conclude)
}

// serve calls the handler and encodes its result.
func (c *Call) serve(ctx context.Context) error {
	body, err := c.admit(ctx)
	if err != nil || c.core.IsEvent || body == NoResponse || c.mayPass && body == nil {
		return err
	}
	c.line, err = c.Session.conn.boundedLine(c.response(body), ErrRuntime)
	if err != nil && !isOverBound(err) {
		logFailure(ctx, c.Session.host.log, slog.LevelError, "a2e: answer not encoded", err, "type", c.Message.Type)
		err = reasoned(ErrRuntime, ReasonInternal, "internal error")
	}
	return err
}

// release frees the slot and the objects of a call whose handler has returned.
func (c *Call) release() {
	c.seat.pass()
	c.start.pass()
	c.hold.release()
	c.place.Release()
	if !c.isReturned {
		c.Session.step(func(core *session.Session, now time.Time) { core.Return(now, &c.core) })
	}
}

// conclude answers a call with the result of its handler. While the agent does not read, it waits,
// and the call keeps its place (A2E-D56).
func (c *Call) conclude(err error) {
	s := c.Session
	c.outcome = OutcomeOK
	switch {
	case err == nil:
	case c.core.IsEvent:
		logFailure(&c.work, s.host.log, slog.LevelInfo, "a2e: handler failed", err, "type", c.Message.Type)
	default:
		e := c.wireError(err)
		e.ReqID = c.Message.ID
		c.line, c.outcome, c.code = s.conn.encode(&item{message: errorMessage(e)}), OutcomeFailed, string(e.Code)
		if e.Code == ErrCancelled {
			c.outcome = OutcomeCanceled
		}
	}
	var after pendingStep
	err = c.answer(0, &after)
	for errors.Is(err, sendq.ErrFull) {
		var space sendq.Reservation
		out := s.conn.sink()
		if space, err = out.reserve(&c.work, len(*c.line)); err != nil {
			break
		}
		if err = c.answer(space, &after); err != nil {
			out.release(space)
		}
	}
	if err != nil {
		freeLine(c.line)
		s.host.log.DebugContext(s.ctx, "a2e: answer dropped", "request_id", c.Message.ID, "err", err)
	}
	c.line = nil
	s.finishStep(&after, false)
}

// answer queues the answer of the handler, unless the call was answered before, and frees what the call holds.
func (c *Call) answer(space sendq.Reservation, after *pendingStep) error {
	s, now := c.Session, time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.line != nil {
		if s.core.IsAnswered(&c.core) {
			return ErrClosed
		}
		then := s.auditLocked(c.Message, c.core.Arrived, c.in, c.outcome, c.code)
		err := s.conn.put(c.line, space, then)
		if c.isInline && errors.Is(err, sendq.ErrFull) {
			s.conn.add(item{line: c.line, then: then}) // the reader does not wait
			err = nil
		}
		if err != nil {
			return err
		}
	}
	s.core.Answer(&c.core)
	c.hold.release()
	c.place.Release()
	s.core.Return(now, &c.core)
	c.isReturned = true
	s.noteLocked(after, now)
	return nil
}

// admit calls the handler when there is a place for it in the host, in the order of the starts.
func (c *Call) admit(ctx context.Context) (body any, err error) {
	if err := c.takePlace(ctx); err != nil {
		return nil, err
	}
	if c.body != nil {
		err = c.Session.durable().claim(ctx, c)
	}
	if err == nil {
		err = c.start.wait(ctx)
	}
	if err != nil {
		return nil, err
	}
	c.start.pass()
	if err := c.Session.host.authorize(ctx, c); err != nil {
		return nil, err
	}
	return c.handle(ctx)
}

// takePlace takes a place in the host. A later call of the session has none while an earlier one waits, so that no
// call waits for the turn of one without a place.
func (c *Call) takePlace(ctx context.Context) error {
	if err := c.seat.wait(ctx); err != nil {
		return err
	}
	defer c.seat.pass()
	c.hold.waiting.Release() // Acquire takes its own
	if c.core.Lane != session.LaneOrdinary || c.isInline {
		return nil
	}
	var err error
	c.place, err = c.scope.Acquire(ctx)
	return overBudget(err)
}

// handle calls the plugins in turn (A2E-D34).
func (c *Call) handle(ctx context.Context) (body any, err error) {
	for i := range c.routes {
		r := &c.routes[i]
		state, err := c.Session.stateOf(ctx, r.plugin)
		if err != nil {
			return nil, err
		}
		c.setState(state)
		body, err := r.handler.ServeA2E(ctx, c)
		if !errors.Is(err, ErrNextPlugin) {
			c.Session.saveDurable(r.plugin)
			return body, err
		}
		if r.plugin.Exclusive && i == 0 {
			break
		}
	}
	if c.core.IsEvent || c.mayPass {
		return nil, nil
	}
	return nil, unsupported(c.Message.Type)
}

// serveOther passes a message of the handler to the plugins of its type as if the agent had sent it: the
// session needs their capability, and the authorizer and the middleware see it. It takes no place.
func (c *Call) serveOther(ctx context.Context, msgType string, body any) (any, error) {
	s := c.Session
	m := NewMessage(msgType, body)
	m.typ = s.host.codec.Types.Lookup(msgType)
	other := &Call{Message: m, Session: s, routes: s.host.routes[msgType]}
	other.core.Capability = s.capabilityOf(m)
	if len(other.routes) == 0 || !s.HasCapability(other.routes[0].plugin.Capability) {
		return nil, unsupported(msgType)
	}
	if err := s.host.authorize(ctx, other); err != nil {
		return nil, err
	}
	body, err := other.handle(ctx)
	if answer, ok := body.(*Message); ok {
		body = answer.Body
	}
	return body, err
}

func unsupported(msgType string) *Error {
	return reasoned(ErrInvalidMessage, ReasonUnsupported, "nobody here serves this type").With("type", clip(msgType, 200))
}

// isIdempotent reports whether the route of a call permits a second execution.
func (c *Call) isIdempotent() (ok bool) {
	for i := range c.routes {
		if f := c.routes[i].idempotent; f != nil {
			_ = guard.Call("idempotent", func() error { ok = f(c.Message); return nil })
			return ok
		}
	}
	return false
}

// wireError converts the error of a handler into the error that the agent receives. An error of
// another peer is not passed on as an error of this host.
func (c *Call) wireError(err error) *Error {
	var e *Error
	var panicked *guard.PanicError
	switch {
	case errors.As(err, &panicked):
		e = reasoned(ErrRuntime, ReasonInternal, "internal error")
		e.Cause = err
	case errors.As(err, &e) && !e.Remote:
		copied := *e
		copied.Code = cmp.Or(e.Code, generalCode(c.core.Capability))
		e = &copied
	case e != nil:
		e = reasoned(ErrRuntime, ReasonInternal, "internal error")
		e.Cause = err
	default:
		e = Errorf(generalCode(c.core.Capability), "the handler failed")
		if e.Code != ErrRuntime { // the text of a tool or a skill is meant for the model
			e.Message = clip(err.Error(), 200)
		}
		e.Cause = err
	}
	if e.Cause != nil {
		logFailure(&c.work, c.Session.host.log, slog.LevelInfo, "a2e: handler failed", e.Cause, "type", c.Message.Type, "request_id", c.Message.ID, "code", string(e.Code))
	}
	if e.Capability == "" {
		e.Capability = c.core.Capability
	}
	return e
}

// response returns the message that answers a call.
func (c *Call) response(body any) *Message {
	if m, ok := body.(*Message); ok {
		if m.ReqID() == "" {
			setReqID(m, c.Message.ID)
		}
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
	m := NewMessage(name, bodyOf(body))
	setReqID(m, c.Message.ID)
	return m
}
