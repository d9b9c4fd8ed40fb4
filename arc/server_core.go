// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package arc

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/fivewire/fivewire/internal/randid"
	"github.com/fivewire/fivewire/internal/strictjson"
)

// An ServerRequest is a request as a transport received it.
type ServerRequest struct {
	Data []byte // one envelope; not changed, and kept by the handler's call

	// The values of the HTTP headers Authorization, Traceparent, X-ARC-Path and
	// Last-Event-ID.
	Authorization string
	Traceparent   string
	AgentPath     string
	LastEventID   string
}

// An EventSink receives the events of a streamed response. Send must not retain
// data. An error of Send means that the reader has disconnected.
type EventSink interface {
	Send(ctx context.Context, name, id string, data []byte) error

	// Discard ends the stream and returns true if nothing was sent to the reader,
	// keep-alive comments included. Otherwise the stream stays usable.
	Discard() bool
}

// An ServerResponse is what a transport sends back.
type ServerResponse struct {
	// Data is the envelope of the response. It is nil if the answer went to the
	// sink.
	Data []byte

	// Error is the error in the envelope, or the error that ended the stream.
	Error *Error

	// RetryAfter is the delay before a retry, if the error has one.
	RetryAfter time.Duration

	// Authenticate tells that a token was sent and is not valid.
	InvalidToken bool
}

// An exchange is the state of one request in the server.
type exchange struct {
	req       Request
	call      Call
	in        *ServerRequest
	open      func() EventSink // nil over HTTP, and if the transport cannot stream
	web       webCall          // over HTTP
	ctx       callCtx          // of the handler
	a         ServerResponse
	startTime time.Time

	agent      string // the answering agent
	retryAfter time.Duration
	badToken   bool
	streamed   bool
	legacy     bool
	keeps      bool // a task has taken over the place at the agent
	sent       int  // bytes of the streamed answer
}

// ServeMessage answers one request; it is what [Server.ServeHTTP] does apart
// from HTTP (ARC-011). When a streamed answer is about to begin, open is called
// for where its events go; a transport that cannot stream passes nil, and its
// callers get all in one answer.
//
// Cancelling ctx ends the work of the handler, but not the task that a
// task.create has begun (ARC-D16).
func (s *Server) ServeMessage(ctx context.Context, in *ServerRequest, open func() EventSink) *ServerResponse {
	return s.exchange(ctx, &exchange{in: in, open: open})
}

// exchange answers the request of x.
func (s *Server) exchange(ctx context.Context, x *exchange) *ServerResponse {
	x.agent = s.opts.ID
	if s.opts.Audit != nil {
		x.startTime = time.Now()
	}
	principal, fault := s.authenticate(ctx, x)
	decodeFault := x.req.decode(x.in.Data)
	if decodeFault != nil && s.opts.LegacyErrors && decodeFault.Code != ErrParse {
		decodeFault.Code = ErrInvalidRequest
	}
	if fault == nil {
		fault = decodeFault
	}
	var a *ServerResponse
	if fault != nil {
		a = s.failure(x, fault)
	} else {
		a = s.serve(ctx, x, principal)
	}
	if s.opts.Audit != nil {
		s.audit(ctx, x, a)
	}
	if x.keeps {
		// The context of the task leads here: it must not hold the request, which
		// may be large.
		x.call.Params, x.req.Params, x.in = nil, nil, nil
		x.web = webCall{answer: x.web.answer}
	}
	return a
}

// serve handles a request whose envelope is in order. The checks come in the
// order of ARC-D07.
func (s *Server) serve(ctx context.Context, x *exchange, principal *Principal) *ServerResponse {
	req, call := &x.req, &x.call
	*call = Call{ID: req.ID, Method: req.Method, RequestAgent: req.RequestAgent, TargetAgent: req.TargetAgent,
		TraceID: req.TraceID, Params: req.Params, Extra: req.Extra, Principal: principal, out: x}
	if s.opts.LegacyMethods {
		x.translate()
	}
	if x.in.AgentPath != "" {
		call.AgentPath = parsePath(x.in.AgentPath)
	}
	if s.limiter != nil {
		if wait := s.limiter.wait(call); wait > 0 {
			x.retryAfter = wait
			return s.failure(x, &Error{Code: ErrRateLimitExceeded, Message: ErrRateLimitExceeded.Message()})
		}
	}
	if fault := s.permit(ctx, call); fault != nil {
		return s.failure(x, fault)
	}
	if s.opts.RejectCycles && visited(call.AgentPath, call.TargetAgent) {
		return s.failure(x, agentFault(ErrCircularReference, call.TargetAgent))
	}
	isKnown, entry, method := s.registry.method(call.TargetAgent, call.Method)
	if !isKnown {
		return s.failure(x, agentFault(ErrAgentNotFound, call.TargetAgent))
	}
	x.agent = call.TargetAgent
	if method == nil {
		return s.failure(x, methodFault(call.TargetAgent, call.Method))
	}
	follows := followsUp(call.Method)
	k := newWork
	if follows {
		k = question
	}
	if !s.begin(k) {
		x.retryAfter = 5 * time.Second
		return s.failure(x, agentFault(ErrAgentNotAvailable, call.TargetAgent))
	}
	defer s.end(k)
	call.entry, call.method = entry, method
	if done, fault := s.place(ctx, call, follows); fault != nil {
		return s.failure(x, fault)
	} else if done != nil {
		defer done()
	}
	x.agent = call.Agent
	x.ctx = callCtx{Context: ctx, call: call}
	return s.answer(&x.ctx, x)
}

// followsUp reports whether a method is about existing work: such a call needs no
// free place and is answered while the server drains.
func followsUp(method string) bool {
	switch method {
	case MethodTaskSend, MethodTaskInfo, MethodTaskCancel, MethodTaskSubscribe, MethodChatEnd, MethodTaskNotification:
		return true
	}
	return false
}

func methodFault(agent, method string) *Error {
	d, _ := encode(func(w *writer) { // texts can always be written
		w.open()
		w.text("agentId", agent)
		w.text("method", method)
		w.close()
	})
	return &Error{Code: ErrMethodNotFound, Message: ErrMethodNotFound.Message(), Details: d}
}

// place finds the instance that handles a call. The function it returns, if any,
// gives the place back.
func (s *Server) place(ctx context.Context, call *Call, follows bool) (func(), *Error) {
	router := s.registry.router
	e := call.entry
	if e.AgentID == call.TargetAgent { // no group
		call.Agent = e.AgentID
		if follows {
			return nil, nil
		}
		if _, err := router.take(e.AgentID, "", true); err != nil {
			return nil, asError(err)
		}
		return s.occupied(call), nil
	}
	kind, key := workOf(call)
	bound := ""
	if key != "" {
		var err error
		if bound, err = s.boundTo(ctx, call, kind, key); err != nil {
			return nil, s.internal(ctx, call, err)
		}
	}
	id, err := router.take(call.TargetAgent, bound, !follows)
	if err != nil {
		return nil, asError(err)
	}
	call.Agent = id
	done := func() {}
	if !follows {
		done = s.occupied(call)
	}
	if call.entry = s.registry.lookup(id); call.entry != nil {
		call.method = (*call.entry.methods.Load())[call.Method]
	}
	if call.entry == nil || call.method == nil {
		done()
		return nil, methodFault(call.TargetAgent, call.Method)
	}
	return done, nil
}

// occupied returns the function that releases the place of a call. A started task
// keeps its place until its end.
func (s *Server) occupied(call *Call) func() {
	id := call.Agent
	return func() {
		if !call.out.keeps {
			s.registry.router.Done(id)
		}
	}
}

// workOf returns the task or chat of a call to a group. Params have no other
// influence on routing (ARC-008).
func workOf(call *Call) (kind, key string) {
	v, err := checkJSON(call.Params)
	if err != nil {
		return "", ""
	}
	for _, kind := range []string{"taskId", "chatId"} {
		if id, _ := v.Get(kind).Text(); id != "" && len(id) <= maxIDLen {
			return kind, id
		}
	}
	return "", ""
}

// groupKey makes the key of a group's binding: work is bound per caller.
func groupKey(call *Call, kind, id string) string { return kind + ":" + hashOf(call.principalID(), id) }

func (c *Call) principalID() string {
	if c.Principal == nil {
		return ""
	}
	return c.Principal.ID
}

// boundTo returns the instance that owns the work that a call to a group is
// about.
func (s *Server) boundTo(ctx context.Context, call *Call, kind, id string) (string, error) {
	owner, err := s.registry.router.owner(ctx, call.TargetAgent, groupKey(call, kind, id))
	if err != nil || owner != "" || kind != "taskId" {
		return owner, err
	}
	// A task that was started under the name of its agent.
	agent, err := s.tasks.agentOf(ctx, id)
	if err != nil || agent == "" {
		return "", err
	}
	if e := s.registry.lookup(agent); e != nil && e.Group == call.TargetAgent {
		return agent, nil
	}
	return "", nil
}

// bindWork remembers which instance of a group has the work that a call began.
func (s *Server) bindWork(ctx context.Context, call *Call, kind, id string) error {
	if call.Agent == call.TargetAgent || id == "" {
		return nil
	}
	owner, err := s.registry.router.bind(ctx, call.TargetAgent, groupKey(call, kind, id), call.Agent)
	if err == nil && owner != call.Agent && kind == "chatId" {
		return chatTaken() // another instance was faster
	}
	return err
}

// backToOwner routes a repeated request to the instance of a group that started its
// chat.
func (s *Server) backToOwner(ctx context.Context, call *Call, chatID string) error {
	if !call.isDuplicate || call.Agent == call.TargetAgent {
		return nil
	}
	owner, err := s.boundTo(ctx, call, "chatId", chatID)
	if err != nil || owner == "" || owner == call.Agent {
		return err
	}
	if e := s.registry.lookup(owner); e != nil && e.ChatHandler != nil {
		call.Agent, call.entry, call.out.agent = owner, e, owner
	}
	return nil
}

// answer runs the handler, or repeats what it answered before.
func (s *Server) answer(ctx context.Context, x *exchange) *ServerResponse {
	if s.replays != nil && !x.mayStream() {
		return s.replays.do(ctx, s, x, func() *ServerResponse { return s.run(ctx, x) })
	}
	return s.run(ctx, x)
}

// mayStream reports whether the answer goes to the sink, which cannot be played
// again.
func (x *exchange) mayStream() bool {
	if x.call.Method != MethodChatStart && x.call.Method != MethodChatMessage {
		return false
	}
	v, err := checkJSON(x.call.Params)
	if err != nil {
		return false
	}
	stream, _ := v.Get("stream").Bool()
	return stream
}

// run runs the handler.
func (s *Server) run(ctx context.Context, x *exchange) *ServerResponse {
	call := &x.call
	if call.method.builtin != ofTasks {
		var release func()
		ctx, release = s.serverContext(ctx)
		defer release()
	}
	result, err := s.invoke(ctx, call)
	if x.streamed {
		if err != nil {
			x.a.Error = s.faultOf(ctx, call, err)
		}
		return &x.a
	}
	var body []byte
	if err == nil {
		body, err = resultBytes(result)
	}
	if err == nil && call.Agent != call.TargetAgent && call.method.builtin == custom {
		err = s.bindResult(ctx, call, body)
	}
	if err != nil {
		return s.failure(x, s.faultOf(ctx, call, err))
	}
	if x.legacy {
		body = legacyResult(body)
	}
	var w writer
	if x.web.rw != nil && s.replays == nil {
		x.web.answer = newReady()
		w.b = x.web.answer.b
	}
	x.a.Data = x.envelope(w, body, nil)
	if x.web.answer != nil {
		x.web.answer.b = x.a.Data
	}
	if r, ours := result.(*ready); ours && call.method.direct {
		r.free()
	}
	return &x.a
}

// bindResult binds the work that a custom handler of an instance began.
func (s *Server) bindResult(ctx context.Context, call *Call, body []byte) error {
	v := strictjson.Value(body)
	for _, kind := range [][2]string{{"task", "taskId"}, {"chat", "chatId"}} {
		if id, _ := v.Get(kind[0]).Get(kind[1]).Text(); id != "" {
			return s.bindWork(ctx, call, kind[1], id)
		}
	}
	return nil
}

// A panicError is what a handler panicked with.
type panicError struct {
	value any
	stack []byte
}

func (e *panicError) Error() string { return fmt.Sprintf("panic: %v", e.value) }

func recovered(err *error) {
	if p := recover(); p != nil {
		*err = &panicError{value: p, stack: debug.Stack()}
	}
}

func (s *Server) invoke(ctx context.Context, call *Call) (result any, err error) {
	defer recovered(&err)
	return call.method.handler.ServeARC(ctx, call)
}

var errNoObject = errors.New("arc: the handler's result is no JSON object")

// resultBytes makes the result of a handler what the envelope carries.
func resultBytes(result any) ([]byte, error) {
	switch r := result.(type) {
	case nil:
		return []byte("{}"), nil
	case *ready:
		return r.b, nil
	case *Task:
		return taskResult(r)
	case *Chat:
		return chatResult(r)
	case *Subscription:
		return subscriptionResult(r)
	case json.RawMessage:
		return objectBytes(r)
	}
	b, err := strictjson.Encode(result)
	if err != nil {
		return nil, fmt.Errorf("arc: result: %w", err)
	}
	return objectBytes(b)
}

func objectBytes(b []byte) ([]byte, error) {
	v, err := checkJSON(b)
	if err != nil {
		return nil, fmt.Errorf("arc: result: %w", err)
	}
	if !v.IsObject() {
		return nil, errNoObject
	}
	return strictjson.AppendCompact(make([]byte, 0, len(v)), v), nil
}

// faultOf makes an error of a handler what the caller reads (ARC-D56).
func (s *Server) faultOf(ctx context.Context, call *Call, err error) *Error {
	var e *Error
	if errors.As(err, &e) {
		if e.Details != nil {
			if _, bad := checkJSON(e.Details); bad != nil {
				return s.internal(ctx, call, fmt.Errorf("arc: details of an error: %w", bad))
			}
		}
		if e.Message == "" && e.Code.Message() != "" {
			e = &Error{Code: e.Code, Message: e.Code.Message(), Details: e.Details}
		}
		return e
	}
	var c Code
	if errors.As(err, &c) {
		return &Error{Code: c, Message: c.Message()}
	}
	return s.internal(ctx, call, err)
}

func asError(err error) *Error {
	var e *Error
	if errors.As(err, &e) {
		return e
	}
	return &Error{Code: ErrInternal, Message: ErrInternal.Message(), Cause: err}
}

// internal logs an error that is not for the caller, who gets its number only.
func (s *Server) internal(ctx context.Context, call *Call, err error) *Error {
	id := randid.New("err-")
	attrs := []slog.Attr{slog.String("errorId", id), slog.String("error", err.Error())}
	if call != nil {
		attrs = append(attrs, slog.String("agent", call.Agent), slog.String("method", call.Method),
			slog.String("requestAgent", call.RequestAgent), slog.String("traceId", call.TraceID))
	}
	var p *panicError
	if errors.As(err, &p) {
		attrs = append(attrs, slog.String("stack", string(p.stack)))
	}
	s.opts.Logger.LogAttrs(context.WithoutCancel(ctx), slog.LevelError, "arc: internal error", attrs...)
	e := idFault(ErrInternal, "errorId", id)
	e.Cause = err
	return e
}

// failure is the answer that carries an error.
func (s *Server) failure(x *exchange, e *Error) *ServerResponse {
	x.a = ServerResponse{Data: x.envelope(writer{}, nil, e), Error: e, RetryAfter: x.retryAfter, InvalidToken: x.badToken}
	return &x.a
}

// envelope writes the response: the result, a compact JSON object, or the error.
// Both members are present, the unused one null (ARC-D05).
func (x *exchange) envelope(w writer, result []byte, e *Error) []byte {
	id, target := string(x.req.ID), x.req.RequestAgent
	if id == "" {
		id = `"error"` // ARC-D03
	}
	if target == "" {
		target = "unknown"
	}
	w.b = slices.Grow(w.b, 128+len(id)+len(x.agent)+len(target)+len(x.req.TraceID)+len(result))
	w.b = append(w.b, `{"arc":"`+ProtocolVersion+`","id":`...)
	w.b = append(w.b, id...)
	w.text("responseAgent", x.agent)
	w.text("targetAgent", target)
	w.optText("traceId", x.req.TraceID)
	if e == nil {
		w.b = append(w.b, `,"result":`...)
		w.b = append(w.b, result...)
		w.b = append(w.b, `,"error":null}`...)
		return w.b
	}
	w.b = append(w.b, `,"result":null,"error":`...)
	w.error(e)
	return append(w.b, '}')
}

// maxPath is how many agents X-ARC-Path may name (ARC-D65).
const maxPath = 32

// parsePath reads the list of agents of X-ARC-Path.
func parsePath(header string) []string {
	var path []string
	for part := range strings.SplitSeq(header, ",") {
		if len(path) > maxPath {
			break
		}
		if id, err := unescapePath(strings.TrimSpace(part)); err == nil && id != "" {
			path = append(path, id)
		}
	}
	return path
}

// visited reports whether a workflow must not go on to an agent.
func visited(path []string, agent string) bool {
	if len(path) > maxPath {
		return true
	}
	for _, id := range path {
		if id == agent {
			return true
		}
	}
	return false
}
