// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package arc

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/fivewire/fivewire/internal/budget"
	"github.com/fivewire/fivewire/internal/guard"
	"github.com/fivewire/fivewire/internal/life"
	"github.com/fivewire/fivewire/internal/randid"
	"github.com/fivewire/fivewire/internal/strictjson"
)

// A ServerRequest is a request as a transport received it.
type ServerRequest struct {
	Data []byte // one envelope; not changed, and kept by the handler's call

	// The values of the HTTP headers Authorization, Traceparent, X-ARC-Path and
	// Last-Event-ID.
	Authorization string
	Traceparent   string
	AgentPath     string
	LastEventID   string

	// Header is the complete header of an HTTP request, for an [Authenticator]; nil with
	// another transport. RemoteAddr is the address of the client, with or without a port.
	Header     http.Header
	RemoteAddr string

	// RequestKey, if not empty, identifies the request among those of its principal to an agent,
	// for transports with another request id. A repeated request gets the stored response, also
	// without a ResultTTL. One with the same key and other content is refused with
	// [ErrInvalidParams].
	RequestKey string

	caller *caller // of a front; nil if not authenticated
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

	// InvalidToken reports that the request has a token that is not valid.
	InvalidToken bool
}

// An exchange is the state of one request in the server.
type exchange struct {
	req       Request
	call      Call
	in        *ServerRequest
	open      func() EventSink // nil over HTTP, and if the transport cannot stream
	web       webCall          // over HTTP
	work      life.Work
	ctx       callCtx // of the handler
	a         ServerResponse
	startTime time.Time

	principal  *Principal
	profile    Profile
	isRun      bool   // a handler has started
	isLate     bool   // it ignored the end of its context
	agent      string // the answering agent
	retryAfter time.Duration
	badToken   bool
	streamed   bool
	place      string // the agent with a place for the call
	holds      holds  // of the call
	claim      *streamClaim
	body       budget.Hold
	keeps      bool // a task has taken over the place
	isLeft     bool // the reader of the stream has disconnected
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
	x.startTime = time.Now()
	x.agent = s.opts.ID
	var authFault *Error
	x.principal, authFault = s.authenticate(ctx, x)
	return s.decodeAndServe(ctx, x, authFault)
}

// maxUnauthenticated bounds the body of a refused caller, which is searched for its id only.
const maxUnauthenticated = 64 << 10

// decodeAndServe decodes and answers a request after its authentication. A refused request is
// only searched for its id.
func (s *Server) decodeAndServe(ctx context.Context, x *exchange, fault *Error) *ServerResponse {
	switch {
	case fault == nil:
		fault = s.decode(ctx, x)
	case len(x.in.Data) <= maxUnauthenticated:
		x.req.search(x.in.Data)
	}
	var a *ServerResponse
	if fault != nil {
		a = s.failure(x, fault)
	} else {
		a = s.serve(ctx, x)
	}
	s.audit(ctx, x, a)
	if x.keeps {
		// The context of the task leads here: it must not hold the request, which
		// may be large.
		x.call.Params, x.req.Params, x.in = nil, nil, nil
		x.web = webCall{answer: x.web.answer}
	}
	return a
}

// decode reads the envelope of a request and chooses the profile of its caller.
func (s *Server) decode(ctx context.Context, x *exchange) *Error {
	fault, isCallerKnown := x.req.decode(x.in.Data)
	if isCallerKnown && s.opts.ProfileFor != nil {
		s.hook(ctx, "ProfileFor", func(context.Context) { x.profile = s.opts.ProfileFor(x.in.Header, x.req.RequestAgent) })
	}
	if fault != nil && s.opts.LegacyErrors && fault.Code != ErrParse {
		fault.Code = ErrInvalidRequest
	}
	return fault
}

// serve handles a request whose envelope is in order. The checks come in the
// order of ARC-D07.
func (s *Server) serve(ctx context.Context, x *exchange) *ServerResponse {
	call := &x.call
	if fault := s.checkCall(ctx, x); fault != nil {
		return s.failure(x, fault)
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
	kind := life.Request
	if follows {
		kind = life.Query
	}
	work := &x.work
	if err := work.Start(ctx, s.life, kind); err != nil {
		return s.failure(x, s.draining(x))
	}
	defer work.Finish()
	call.entry, call.method = entry, method
	if fault := s.reserve(&x.holds, x, call, follows); fault != nil {
		return s.failure(x, fault)
	}
	defer x.holds.release()
	fault := s.place(ctx, call, follows)
	defer s.releasePlace(x)
	if fault != nil {
		return s.failure(x, fault)
	}
	x.agent = call.Agent
	x.ctx = callCtx{Context: work, call: call}
	if follows && method.direct && method.builtin != other {
		return s.answer(&x.ctx, x) // no code of the user
	}
	return s.work(work, x)
}

// checkCall makes the call of a request, and checks what concerns the caller.
func (s *Server) checkCall(ctx context.Context, x *exchange) *Error {
	req, call := &x.req, &x.call
	*call = Call{ID: req.ID, Method: req.Method, RequestAgent: req.RequestAgent, TargetAgent: req.TargetAgent,
		TraceID: req.TraceID, Params: req.Params, Extra: req.Extra, Principal: x.principal, peer: x.in.RemoteAddr, out: x}
	if x.in.AgentPath != "" {
		call.AgentPath = parsePath(x.in.AgentPath)
	}
	if fault := s.admitRequest(x, call); fault != nil {
		return fault
	}
	if fault := s.permit(ctx, call); fault != nil {
		return fault
	}
	if s.opts.Auth.RejectCycles && visited(call.AgentPath, call.TargetAgent) {
		return agentFault(ErrCircularReference, call.TargetAgent)
	}
	return nil
}

// draining returns the error of a server that is being shut down.
func (s *Server) draining(x *exchange) *Error {
	x.retryAfter = 5 * time.Second
	return agentFault(ErrAgentNotAvailable, cmp.Or(x.call.TargetAgent, x.req.TargetAgent))
}

// work answers a call. The answer of a handler that ignored the end of its context in a
// shutdown is dropped.
func (s *Server) work(work *life.Work, x *exchange) *ServerResponse {
	x.isLate = true
	var a *ServerResponse
	work.Run(x.call.Method, func(context.Context) error {
		a = s.answer(&x.ctx, x)
		return nil
	}, func(error) { x.isLate = false })
	if x.isLate && !x.streamed && a != nil && a.Error == nil {
		return s.failure(x, s.draining(x))
	}
	return a
}

// holds are reservations of a call or a running task.
type holds [2]budget.Hold

func (h *holds) release() {
	h[0].Release()
	h[1].Release()
}

// reserve takes the resources of a running task.
func (h *holds) reserve(scope *budget.Scope) (err error) {
	h[0], err = scope.Reserve(budget.Items, 1)
	if err == nil {
		h[1], err = scope.Reserve(budget.Memory, runBytes)
	}
	if err != nil {
		h.release()
	}
	return err
}

// small is the size of a body that belongs to the memory of a connection.
const small = 4 << 10

// reserve takes the memory of the request, unless its body has it, and a place for the handler, until the end of
// the call. An unfinished task counts as an item until its end.
func (s *Server) reserve(h *holds, x *exchange, call *Call, follows bool) *Error {
	if follows && len(x.in.Data) <= small {
		return nil
	}
	scope := s.scope(call)
	var err error
	if len(x.in.Data) > small && x.body == (budget.Hold{}) {
		h[0], err = scope.Reserve(budget.Memory, int64(len(x.in.Data))+64)
	}
	switch {
	case err != nil:
	case follows || call.method.builtin == other:
	case call.Method == MethodTaskCreate && call.method.builtin == ofTasks:
		err = call.run.reserve(scope)
	default:
		h[1], err = scope.Reserve(budget.Work, 1)
	}
	if err != nil {
		h.release()
		return overBudget(call.TargetAgent, err)
	}
	return nil
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

// place finds the instance that handles a call, and may take a place there.
func (s *Server) place(ctx context.Context, call *Call, follows bool) *Error {
	router := s.registry.router
	e := call.entry
	if e.AgentID == call.TargetAgent { // no group
		call.Agent = e.AgentID
		if follows {
			return nil
		}
		if _, err := router.take(e.AgentID, "", true); err != nil {
			return asError(err)
		}
		call.out.place = e.AgentID
		return nil
	}
	kind, key := workOf(call)
	bound := ""
	if key != "" {
		var err error
		if bound, err = s.boundTo(ctx, call, kind, key); err != nil {
			return s.internal(ctx, call, err)
		}
	}
	id, err := router.take(call.TargetAgent, bound, !follows)
	if err != nil {
		return asError(err)
	}
	call.Agent = id
	if !follows {
		call.out.place = id
	}
	if call.entry = s.registry.lookup(id); call.entry != nil {
		call.method = (*call.entry.methods.Load())[call.Method]
	}
	if call.entry == nil || call.method == nil {
		return methodFault(call.TargetAgent, call.Method)
	}
	return nil
}

// releasePlace releases the place of a call. A started task keeps its place until its end.
func (s *Server) releasePlace(x *exchange) {
	if x.place != "" && !x.keeps {
		s.registry.router.Done(x.place)
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

// answer runs the handler, or repeats what it answered before.
func (s *Server) answer(ctx context.Context, x *exchange) *ServerResponse {
	if (s.hasWindow() || x.in.RequestKey != "") && !x.mayStream() {
		return s.answerOnce(ctx, x)
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
	x.isRun = true
	if p := call.Principal; p != nil && !p.Expires.IsZero() && x.mayStream() {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadlineCause(ctx, p.Expires, &Error{Code: ErrTokenExpired, Message: ErrTokenExpired.Message()})
		defer cancel()
	}
	result, err := s.invoke(ctx, call)
	x.claim.end(true) // no stream began
	if !x.keeps {
		call.run.release()
	}
	x.isLeft = errors.Is(err, errNoReader)
	if x.streamed || x.isLeft {
		if err != nil && !x.isLeft {
			x.a.Error = s.faultOf(ctx, call, err)
		}
		return &x.a
	}
	var body []byte
	if err == nil {
		body, err = resultBytes(result, x.profile)
	}
	if err == nil && call.Agent != call.TargetAgent && call.method.builtin == custom {
		err = s.bindResult(ctx, call, body)
	}
	if err != nil {
		return s.failure(x, s.faultOf(ctx, call, err))
	}
	var w writer
	if x.web.rw != nil && !s.hasWindow() {
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

func (s *Server) invoke(ctx context.Context, call *Call) (result any, err error) {
	if call.method.direct {
		return call.method.handler.ServeARC(ctx, call) // guards the code of the user itself
	}
	err = guard.Call("handler", func() (err error) {
		result, err = call.method.handler.ServeARC(ctx, call)
		return err
	})
	return result, err
}

var errNoObject = errors.New("arc: the handler's result is no JSON object")

// resultBytes makes the result of a handler what the envelope carries.
func resultBytes(result any, p Profile) ([]byte, error) {
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
		return subscriptionResult(r, p)
	case json.RawMessage:
		return objectBytes(r)
	}
	var b []byte
	err := guard.Call("result", func() (err error) {
		b, err = strictjson.Encode(result)
		return err
	})
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

// faultOf makes an error of a handler what the caller reads (ARC-D56). An error of
// another server is an internal error, unless the handler wraps it in an [Error].
func (s *Server) faultOf(ctx context.Context, call *Call, err error) *Error {
	var e *Error
	if errors.As(err, &e) {
		if e.Remote { // an error of another server is not one of this server
			return s.internal(ctx, call, err)
		}
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

// internal logs an error that is not for the caller, who gets its number only. That a
// caller has disconnected is no failure.
func (s *Server) internal(ctx context.Context, call *Call, err error) *Error {
	id := randid.New("err-")
	level := slog.LevelError
	isLeft := ctx.Err() != nil || call != nil && call.out != nil && call.out.ctx.Context != nil && call.out.ctx.Err() != nil
	if isLeft && (errors.Is(err, context.Canceled) || errors.Is(err, context.Cause(ctx))) || errors.Is(err, errNoReader) {
		level = slog.LevelDebug
	}
	attrs := []slog.Attr{slog.String("error_id", id), slog.Any("err", err)}
	if call != nil {
		attrs = append(attrs, slog.String("agent", call.Agent), slog.String("method", call.Method),
			slog.String("request_agent", call.RequestAgent), slog.String("trace_id", call.TraceID))
	}
	var p *guard.PanicError
	if errors.As(err, &p) {
		level = slog.LevelError
		attrs = append(attrs, slog.String("stack", string(p.Stack)))
	}
	s.opts.Logger.LogAttrs(context.WithoutCancel(ctx), level, "arc: request failed", attrs...)
	e := idFault(ErrInternal, "errorId", id)
	e.Cause = err
	return e
}

// failure is the answer that carries an error.
func (s *Server) failure(x *exchange, e *Error) *ServerResponse {
	if b, ok := errors.AsType[*budget.Error](e.Cause); ok && x.retryAfter == 0 {
		x.retryAfter = b.RetryAfter
	}
	if x.retryAfter == 0 && (e.Code == ErrAgentNotAvailable || e.Code == ErrAgentCapacityExceeded) {
		x.retryAfter = 5 * time.Second // the end of work is not known (ARC-D15)
	}
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
