// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"sync/atomic"
	"time"

	"github.com/fivewire/fivewire/air"
	"github.com/fivewire/fivewire/air/internal/server"
	"github.com/fivewire/fivewire/internal/budget"
	"github.com/fivewire/fivewire/internal/debugpage"
	"github.com/fivewire/fivewire/internal/guard"
	"github.com/fivewire/fivewire/internal/httpx"
	"github.com/fivewire/fivewire/internal/life"
	"github.com/fivewire/fivewire/internal/netguard"
	"github.com/fivewire/fivewire/internal/option"
	"github.com/fivewire/fivewire/internal/seen"
)

// A Server stores envelopes for agents until they fetch and acknowledge them (section 7). It is an
// [http.Handler] with the paths of the specification and those of the deployed relay, for the same
// mailboxes (AIR-D60):
//
//	POST /inbox/{r}        push
//	GET  /inbox/{r}/pull   pull      GET  /pull/{r}   (a stream with ?stream=1)
//	POST /inbox/{r}/ack    ack       POST /ack/{r}
//	GET  /health           200, and 503 once a shutdown has begun
//
// where r is an AIR ID or a DID. It returns envelopes byte for byte as received and verifies no
// signatures (10.1). Its methods are safe for concurrent use.
type Server struct {
	opts     ServerOptions
	boxes    boxes
	budget   *budget.Budget
	output   *budget.Budget // memory of responses in progress, and streams as work
	stats    stats
	proxies  server.ProxyWarning
	origins  httpx.Origins
	handler  Handler
	guests   *server.Guests
	life     *life.Life
	records  atomic.Uint64 // audit records
	refusals server.LogLevels
	nonces   *seen.Window // of signed requests

	refetches *seen.Window // agents whose document was fetched again after a signature did not verify
	public    *url.URL
}

// NewServer returns a relay. It starts no goroutines, but Close must end its streams. It returns an
// error without secrets unless anonymous callers are allowed, and without a directory unless any
// recipient is.
func NewServer(opts *ServerOptions) (*Server, error) {
	s := &Server{}
	if opts != nil {
		s.opts = *opts
	}
	o := &s.opts
	if err := o.check(); err != nil {
		return nil, err
	}
	o.withDefaults()
	s.boxes.init(o)
	s.budget = budget.New(o.Limits.budget(o.Logger), s.boxes.evict)
	s.boxes.budget = s.budget
	streams := server.UsageLimit(int64(o.Limits.MaxStreams), int64(option.None))
	s.output = budget.New(budget.Limits{Memory: o.Limits.budget(nil).Memory,
		Work: budget.Limit{Session: -1, Principal: streams, All: streams}, Logger: o.Logger}, nil)
	s.origins = server.Origins(o.AllowedOrigins, o.AllowedHosts)
	if err := netguard.CheckOrigins(o.AllowedOrigins); err != nil {
		return nil, fmt.Errorf("air: relay: %w", err)
	}
	s.nonces, s.refetches = seen.New(seen.Options{}), seen.New(seen.Options{})
	public, err := url.Parse(o.Auth.PublicURL)
	if err != nil || (public.Host == "") != (o.Auth.PublicURL == "") {
		return nil, errors.New("air: relay: Auth.PublicURL is not an absolute URL")
	}
	s.public = public
	err = guard.Call("middleware", func() error {
		s.handler = HandlerFunc(s.operate)
		for _, m := range slices.Backward(o.Middleware) {
			if m == nil {
				return errors.New("air: relay: nil Middleware")
			}
			if s.handler = m(s.handler); s.handler == nil {
				return errors.New("air: relay: middleware returned no handler")
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	s.guests = server.NewGuests(o.Limits.RateLimit, o.Limits.AddressRateLimit)
	s.life = life.New(life.Options{Closed: air.ErrClosed, Logger: o.Logger})
	return s, nil
}

// Shutdown refuses further requests, waits for the running ones and ends the streams. If ctx ends
// first, it cuts them and returns the error of ctx at once.
func (s *Server) Shutdown(ctx context.Context) error {
	if err := s.life.Shutdown(ctx); err != nil {
		return err
	}
	return s.life.Close()
}

// Close cuts all requests and streams, and waits for them at most one second.
func (s *Server) Close() error { return s.life.Close() }

// Ready returns [air.ErrClosed] once a shutdown has begun.
func (s *Server) Ready() error { return s.life.Ready() }

// Usage returns the present use of the resources of [Limits], the memory of responses as "output",
// and the open streams. The scope "session" is the fullest mailbox.
func (s *Server) Usage() []air.Usage {
	size, count := s.boxes.fullest()
	var list []air.Usage
	for _, u := range s.budget.Usage() {
		switch {
		case u.Scope != "session":
		case u.Resource == s.boxes.resource.String():
			u.Used, u.Limit = size, server.UsageLimit(s.boxes.maxBytes, option.NoBytes)
		case u.Resource == budget.Waiting.String():
			u.Used, u.Limit = count, server.UsageLimit(s.boxes.max, option.NoBytes)
		}
		list = append(list, air.Usage(u))
	}
	for _, u := range s.output.Usage() {
		switch {
		case u.Resource == budget.Memory.String() && u.Scope != "session":
			u.Resource = "output"
			list = append(list, air.Usage(u))
		case u.Resource == budget.Work.String() && u.Scope == "all":
			u.Resource = "streams"
			list = append(list, air.Usage(u))
		}
	}
	return list
}

// DebugHandler returns a handler that shows an operator the result of Ready, the [air.Usage] table and
// the handlers that ignore the end of their context. Its status is 503 unless the server is ready.
// It authenticates no caller: serve it on an address that only operators reach.
func (s *Server) DebugHandler() http.Handler {
	return debugpage.Handler(debugpage.Server{
		Name: "air: relay", Ready: s.Ready, Usage: debugpage.Rows(s.Usage), Stuck: s.life.Stuck,
	})
}

// ServeHTTP answers one request. The order of the checks is: path, method, secret, recipient, and
// then the parameters of the operation.
func (s *Server) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	httpx.LeaveIf(s.life.Ready(), w)
	httpx.Bound(w, req, s.opts.Timing.ReadTimeout)
	rt, isKnown := parseRoute(req.URL.EscapedPath())
	switch {
	case isKnown:
		if server.Preflight(&s.origins, w, req, rt.method) {
			return
		}
	case req.Method != http.MethodOptions: // every answer has the headers (AIR-D88)
		s.origins.CORS(w, req)
	}
	record := &air.AuditRecord{Time: time.Now(), Peer: req.RemoteAddr, Operation: cmp.Or(rt.name, "unknown"),
		Object: rt.recipient, Bytes: max(req.ContentLength, 0)}
	if rt.canStream && wantsStream(req) {
		record.Operation = "stream"
	}
	x := &call{route: rt}
	var err error
	switch {
	case !isKnown:
		err = air.Errorf(air.ErrNotFound, "no such path")
	case req.Method != rt.method:
		server.Allow(w, rt.method)
		err = air.Errorf(air.Code(server.CodeMethod), "the method is not allowed here")
	case rt.op == nil:
		s.serveHealth(w)
		return
	default:
		err = s.work(req, record.Operation, func(ctx context.Context) error {
			return s.serve(w, req.WithContext(ctx), x)
		})
		if x.isAuthenticated() {
			record.Principal = x.principal
		}
	}
	s.stats.count(rt.name, err)
	s.audit(req.Context(), record, err)
	if err != nil {
		s.logError(req.Context(), record, err)
	}
	if err != nil && !x.isAnswered {
		writeError(w, err)
	}
}

// serveHealth answers 503 once a shutdown has begun, so that an orchestrator sends no further callers.
func (s *Server) serveHealth(w http.ResponseWriter) {
	if s.Ready() != nil {
		server.WriteJSON(w, http.StatusServiceUnavailable, []byte(`{"status":"closing"}`))
		return
	}
	server.WriteJSON(w, http.StatusOK, []byte(`{"status":"ok"}`))
}

// work runs the operation of a request as a piece of work. A panic is its internal error.
func (s *Server) work(req *http.Request, operation string, f func(context.Context) error) error {
	kind := life.Request
	if operation == "stream" {
		kind = life.Idle
	}
	w, err := s.life.Start(req.Context(), kind)
	if err != nil {
		return because(air.ErrRelay, "", err)
	}
	defer w.Finish()
	err = guard.Call("relay", func() error { return f(w) })
	var e *air.Error
	if errors.As(err, &e) && e.Remote { // of a directory or a middleware
		return because(air.ErrRelay, "", err)
	}
	return err
}

// serve authorizes a request with a known path and method, and calls the handler.
func (s *Server) serve(w http.ResponseWriter, req *http.Request, x *call) error {
	if message, ok := server.CheckHeaders(req); !ok {
		return air.Errorf(air.ErrBadRequest, "%s", message)
	}
	if s.origins.Check(req) != nil {
		return air.Errorf(air.ErrForbidden, "the origin is not allowed")
	}
	isName, err := s.identify(w, req, x)
	if err != nil {
		return err
	}
	scope := s.budget.Scope(x.principal, "")
	if _, err := scope.Reserve(budget.Requests, 1); err != nil {
		return overBudget(err)
	}
	if !x.canStream || !wantsStream(req) { // MaxStreams bounds streams
		place, err := scope.Reserve(budget.Work, 1)
		if err != nil {
			return overBudget(err)
		}
		defer place.Release()
	}
	if !isName {
		return errNoMailbox()
	}
	if err := s.lookUp(req.Context(), x.to); err != nil {
		return err
	}
	if len(s.opts.Middleware) == 0 {
		return x.op(s, w, req, x)
	}
	return s.handler.ServeRelay(w, req.WithContext(context.WithValue(req.Context(), callKey{}, x)))
}

type callKey struct{}

// operate is the innermost handler.
func (s *Server) operate(w http.ResponseWriter, req *http.Request) error {
	x, ok := req.Context().Value(callKey{}).(*call)
	if !ok {
		return errors.New("air: relay: middleware replaced the context of the request")
	}
	return x.op(s, w, req, x)
}

// logError logs a failure as an error, the first refusal with a code in each minute as a warning, and the end of a
// request by its caller or by the end of the relay for debugging only: a caller must not fill the log.
func (s *Server) logError(ctx context.Context, r *air.AuditRecord, err error) {
	var p *guard.PanicError
	var e *air.Error
	level, message := slog.LevelError, "air: relay failed"
	attrs := []any{"operation", r.Operation, "mailbox", r.Object, "peer", r.Peer, "err", err}
	switch {
	case errors.As(err, &p):
		message, attrs = "air: "+p.What+" panicked", append(attrs, "stack", string(p.Stack))
	case errors.Is(err, air.ErrClosed), errors.Is(err, context.Canceled):
		level, message = slog.LevelDebug, "air: request ended"
	case errors.As(err, &e) && e.HTTPStatus() < http.StatusInternalServerError:
		level, message = s.refusals.Level(string(e.Code)), "air: request refused"
	}
	s.opts.Logger.Log(ctx, level, message, attrs...)
}

// audit completes and reports a record.
func (s *Server) audit(ctx context.Context, r *air.AuditRecord, err error) {
	if s.opts.Audit == nil {
		return
	}
	r.Seq, r.Duration, r.Outcome = s.records.Add(1), time.Since(r.Time), "ok"
	if err != nil {
		var e *air.Error
		if !errors.As(err, &e) {
			e = &air.Error{Code: air.ErrRelay}
		}
		r.Code, r.Outcome = string(e.Code), "refused"
		switch {
		case errors.Is(err, context.Canceled):
			r.Outcome = "canceled"
		case e.HTTPStatus() >= http.StatusInternalServerError:
			r.Outcome = "failed"
		}
	}
	if err := guard.Call("Audit", func() error {
		s.opts.Audit(ctx, r)
		return nil
	}); err != nil {
		s.logError(ctx, r, err)
	}
}

// overBudget returns the response to a *budget.Error.
func overBudget(err error) *air.Error {
	message, delay := server.OverBudget(err)
	return limited(message, delay)
}

func limited(message string, delay time.Duration) *air.Error {
	return &air.Error{Code: air.ErrRateLimited, Message: message, RetryAfter: delay}
}

// because returns an error with a cause, which is logged and never sent.
func because(code air.Code, message string, cause error) *air.Error {
	return &air.Error{Code: code, Message: message, Cause: cause}
}

// readBody reads the body of a request.
func readBody(w http.ResponseWriter, r *http.Request, limit int, timeout time.Duration) ([]byte, error) {
	data, refusal := server.ReadBody(w, r, limit, timeout)
	if refusal != nil {
		return nil, because(air.Code(refusal.Code), refusal.Message, refusal.Cause)
	}
	return data, nil
}

// writeError writes an error body of 9.3. An error other than an [*air.Error] is internal and has
// no details (AIR-124).
func writeError(w http.ResponseWriter, err error) {
	var e *air.Error
	if !errors.As(err, &e) {
		e = &air.Error{Code: air.ErrRelay}
	}
	if e.Code == air.ErrRateLimited {
		server.SetRetryAfter(w.Header(), e.RetryAfter)
	}
	server.WriteJSON(w, e.HTTPStatus(), e.HTTPBody())
}
