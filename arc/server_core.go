// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package arc

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/fivewire/fivewire/arc/internal/engine"
	"github.com/fivewire/fivewire/arc/internal/wire"
	"github.com/fivewire/fivewire/internal/budget"
	"github.com/fivewire/fivewire/internal/guard"
	"github.com/fivewire/fivewire/internal/httpx"
	"github.com/fivewire/fivewire/internal/life"
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

	// RequestKey, if not empty, identifies the request among those of its principal, or of the
	// address of an anonymous caller, to an agent, for transports with another request id. A repeated
	// request gets the stored response for a day, or for a longer ResultTTL. One with the same key and
	// other content is refused with [ErrInvalidParams].
	RequestKey string

	caller  *caller              // of a front; nil if not authenticated
	webhook *engine.Subscription // of a front, that the request adds; nil without one
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
	isLeft     bool // the reader of the stream has disconnected
	sent       int  // bytes of the streamed answer
	body       budget.Hold
	output     budget.Hold    // of a large response
	isHurried  bool           // there was no memory for the response
	isWatched  bool           // by WatchTask
	watch      budget.Hold    // of the watcher
	place      engine.Place   // of the call
	q          engine.Request // the call
	attempt    engine.Attempt // within the window of ARC-D48
	info       wire.TaskInfo  // params
	scratch    [640]byte      // of a short result
	out        [640]byte      // of a short response
	stamp      string         // of the message
	result     ready
	anonymous  string // of account
}

// request returns the call as package engine takes it.
func (x *exchange) request(call *Call) *engine.Request {
	x.q = engine.Request{Method: call.Method, Agent: call.Agent, Target: call.TargetAgent, Caller: call.RequestAgent, ID: string(call.ID),
		TraceID: call.TraceID, Principal: call.principalID(), Params: call.Params, Attempt: x.attempt, Place: &x.place, Webhook: x.in.webhook}
	if call.Method != MethodTaskInfo { // which counts nothing
		x.q.Account = x.account()
	}
	return &x.q
}

// ServeMessage answers one request; it is what [Server.ServeHTTP] does apart
// from HTTP (ARC-011). When a streamed answer is about to begin, open is called
// for where its events go; a transport that cannot stream passes nil, and its
// callers get all in one answer.
//
// Cancelling ctx ends the work of the handler, but not the task that a
// task.create has begun (ARC-D16).
func (s *Server) ServeMessage(ctx context.Context, in *ServerRequest, open func() EventSink) *ServerResponse {
	return s.exchange(ctx, &exchange{in: orZero(in), open: open})
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
		a = s.reserveOutput(x, s.serve(ctx, x))
	}
	s.audit(ctx, x, a)
	if x.place.IsKept() && x.web.sink.w == nil {
		// The context of the task leads here: it must not hold the request, which
		// may be large.
		x.call.Params, x.call.Header, x.req.Params, x.q.Params, x.in, x.web = nil, nil, nil, nil, nil, webCall{}
	}
	return a
}

// reserveOutput takes the memory of a response over HTTP. Without it, a read is refused, and a call that has had an
// effect is answered in haste.
func (s *Server) reserveOutput(x *exchange, a *ServerResponse) *ServerResponse {
	if x.web.rw == nil || len(a.Data) <= httpx.LargeOutput {
		return a
	}
	var err error
	if x.output, err = s.output.Scope(x.account(), "").Reserve(budget.Memory, int64(len(a.Data))); err == nil {
		return a
	}
	if x.call.Method == MethodTaskInfo {
		return s.failure(x, asError(engine.Refused(x.call.TargetAgent, err)))
	}
	x.isHurried = true
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
	defer x.place.Release()
	fault := s.reserve(x, follows)
	if fault == nil {
		fault = s.route(ctx, call, follows)
	}
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
		TraceID: req.TraceID, Params: req.Params, Extra: req.Extra, Header: x.in.Header, Principal: x.principal, x: x}
	if x.in.AgentPath != "" {
		call.AgentPath = parsePath(x.in.AgentPath)
	}
	if fault := s.admitRequest(x, call); fault != nil {
		return fault
	}
	if fault := s.permit(ctx, call); fault != nil {
		return fault
	}
	if x.in.webhook != nil {
		if fault := s.permitSubscription(ctx, call); fault != nil {
			return fault
		}
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

// work answers a call. The answer of a custom handler that ignored the end of its context in a
// shutdown is dropped. That of another one reports a change that was made.
func (s *Server) work(work *life.Work, x *exchange) *ServerResponse {
	x.isLate = true
	var a *ServerResponse
	var failure error
	work.Run(x.call.Method, func(context.Context) error {
		a = s.answer(&x.ctx, x)
		return nil
	}, func(err error) { x.isLate, failure = false, err })
	if a == nil { // a panic of the transport
		return s.failure(x, s.internal(work, &x.call, failure))
	}
	isCustom := x.call.method.builtin == custom
	if x.isLate && isCustom && !x.streamed && a.Error == nil {
		return s.failure(x, s.draining(x))
	}
	return a
}

// small is the size of a body that belongs to the memory of a connection.
const small = 4 << 10

// reserve takes the memory of the request, unless its body has it, and a place for the handler, until the end of
// the call. An unfinished task counts as an item until its end.
func (s *Server) reserve(x *exchange, follows bool) *Error {
	call := &x.call
	if x.isWatched && (call.Method == MethodTaskCreate || call.Method == MethodTaskSend) {
		if fault := s.reserveWatch(x); fault != nil {
			return fault
		}
	}
	if follows && len(x.in.Data) <= small {
		return nil
	}
	scope := s.scope(call)
	var err error
	if len(x.in.Data) > small && x.body == (budget.Hold{}) {
		x.body, err = scope.Reserve(budget.Memory, int64(len(x.in.Data))+64)
	}
	switch {
	case err != nil:
	case follows || call.method.builtin == other:
	case call.Method == MethodTaskCreate && call.method.builtin == ofTasks:
		err = x.place.ReserveRun(scope)
	default:
		err = x.place.Reserve(scope, budget.Work, 1)
	}
	if err != nil {
		return asError(engine.Refused(call.TargetAgent, err))
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

// answer runs the handler, or repeats what it answered before.
func (s *Server) answer(ctx context.Context, x *exchange) *ServerResponse {
	if (s.engine.Claims.HasWindow() || x.in.RequestKey != "") && !x.mayStream() {
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
	v, err := wire.Check(x.call.Params)
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
	if x.mayStream() {
		var cancel context.CancelFunc
		ctx, cancel = x.untilExpiry(ctx)
		defer cancel()
	}
	result, err := s.invoke(ctx, call)
	x.isLeft = errors.Is(err, engine.ErrNoReader)
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
	x.a.Data = x.envelope(body, nil)
	return &x.a
}

// untilExpiry returns the context of the work that ends with the token of the caller.
func (x *exchange) untilExpiry(ctx context.Context) (context.Context, context.CancelFunc) {
	p := x.principal
	if p == nil || p.Expires.IsZero() {
		return ctx, func() {}
	}
	return context.WithDeadlineCause(ctx, p.Expires, errExpired)
}

// errExpired ends what a token has begun.
var errExpired error = &Error{Code: ErrTokenExpired, Message: ErrTokenExpired.Message()}

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

func (c *Call) principalID() string {
	if c.Principal == nil {
		return ""
	}
	return c.Principal.ID
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
		if id, err := url.PathUnescape(strings.TrimSpace(part)); err == nil && id != "" {
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
