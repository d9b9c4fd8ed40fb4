// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package arc

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"time"

	"github.com/fivewire/fivewire/arc/internal/engine"
	"github.com/fivewire/fivewire/internal/audit"
	"github.com/fivewire/fivewire/internal/auth"
	"github.com/fivewire/fivewire/internal/budget"
	"github.com/fivewire/fivewire/internal/guard"
	"github.com/fivewire/fivewire/internal/strictjson"
)

// A Principal is the authenticated caller.
type Principal struct {
	ID      string         `json:"id"`               // owns the tasks and chats that it begins (ARC-D36); must not be empty
	Tenant  string         `json:"tenant,omitempty"` // the customer that it belongs to, for the program
	AgentID string         `json:"agent,omitempty"`  // the only agent that it may speak as; empty means any (ARC-D53)
	Scopes  []string       `json:"scopes"`           // what it may do; see [ParseScopes]
	Claims  map[string]any `json:"claims,omitempty"` // of its token, or nil
	Expires time.Time      `json:"-"`                // the end of its streams; zero means none
}

// encodePrincipal returns a principal as JSON, without invalid claims, or nil. The token is not part of it.
func encodePrincipal(p *Principal) []byte {
	if p == nil {
		return nil
	}
	text, err := guard.Encode(p)
	if err != nil {
		p = &Principal{ID: p.ID, Tenant: p.Tenant, AgentID: p.AgentID, Scopes: p.Scopes}
		text, _ = guard.Encode(p) // texts only
	}
	return text
}

func decodePrincipal(b []byte) *Principal {
	var p *Principal
	if len(b) == 0 || strictjson.Decode(b, &p) != nil {
		return nil
	}
	return p
}

// An Authenticator authenticates the caller of a request. The errors
// [ErrAuthenticationFailed], [ErrTokenExpired] and [ErrTokenInvalid], wrapped or not,
// refuse it with their code. Any other error, and a nil principal, is a failure of the
// authenticator: the request fails with an internal error. The context ends with the
// request.
type Authenticator interface {
	Authenticate(ctx context.Context, r *ServerRequest) (*Principal, error)
}

// An AuthenticatorFunc is a function that serves as an [Authenticator].
type AuthenticatorFunc func(ctx context.Context, r *ServerRequest) (*Principal, error)

// Authenticate calls f.
func (f AuthenticatorFunc) Authenticate(ctx context.Context, r *ServerRequest) (*Principal, error) {
	return f(ctx, r)
}

// A TokenVerifier verifies access tokens. The errors [ErrTokenExpired] and
// [ErrTokenInvalid], wrapped or not, reject a token. Any other error is a failure of
// the verifier: the request fails with an internal error. The context ends with the
// request.
type TokenVerifier interface {
	VerifyToken(ctx context.Context, token string) (*Principal, error)
}

// A TokenVerifierFunc is a function that serves as a [TokenVerifier].
type TokenVerifierFunc func(ctx context.Context, token string) (*Principal, error)

// VerifyToken calls f.
func (f TokenVerifierFunc) VerifyToken(ctx context.Context, token string) (*Principal, error) {
	return f(ctx, token)
}

// BearerAuthenticator returns an [Authenticator] of callers with an access token in the
// header Authorization (ARC-006).
func BearerAuthenticator(v TokenVerifier) Authenticator {
	return AuthenticatorFunc(func(ctx context.Context, r *ServerRequest) (*Principal, error) {
		token, ok := auth.Bearer(r.Authorization)
		if !ok {
			return nil, ErrAuthenticationFailed
		}
		if v == nil {
			return nil, errors.New("arc: no TokenVerifier")
		}
		return v.VerifyToken(ctx, token)
	})
}

// APIKeyAuthenticator returns an [Authenticator] of callers with one of the given keys as
// their access token. Keys must be random and may not be empty.
func APIKeyAuthenticator(keys map[string]*Principal) (Authenticator, error) {
	table, err := auth.NewKeys(keys, func(p *Principal) string { return p.ID })
	if err != nil {
		return nil, fmt.Errorf("arc: %w", err)
	}
	return BearerAuthenticator(TokenVerifierFunc(func(_ context.Context, token string) (*Principal, error) {
		p := table.Find(token)
		if p == nil {
			return nil, ErrTokenInvalid
		}
		return p, nil
	})), nil
}

// An Authorizer decides about a call. Its error is sent if it is an [*Error] or a
// [Code], and is [ErrPermissionDenied] otherwise.
type Authorizer interface {
	Authorize(ctx context.Context, call *Call) error
}

// An AuthorizerFunc is a function that serves as an [Authorizer].
type AuthorizerFunc func(ctx context.Context, call *Call) error

// Authorize calls f.
func (f AuthorizerFunc) Authorize(ctx context.Context, call *Call) error { return f(ctx, call) }

// authenticate authenticates every request before any other check (ARC-168, ARC-D54).
func (s *Server) authenticate(ctx context.Context, x *exchange) (*Principal, *Error) {
	if s.opts.Auth.Authenticator == nil {
		return nil, nil
	}
	if c := x.in.caller; c != nil && c.server == s {
		x.badToken = c.badToken
		return c.principal, c.fault
	}
	place, err := s.engine.Scope(budget.Anonymous(x.in.RemoteAddr)).Reserve(budget.Unauthenticated, 1)
	if err != nil {
		return nil, asError(engine.Refused(x.call.TargetAgent, err))
	}
	defer place.Release()
	var p *Principal
	err = guard.Call("authenticator", func() (err error) {
		p, err = s.opts.Auth.Authenticator.Authenticate(ctx, x.in)
		return err
	})
	for _, code := range []Code{ErrTokenExpired, ErrTokenInvalid, ErrAuthenticationFailed} {
		if errors.Is(err, code) {
			x.badToken = code != ErrAuthenticationFailed
			s.opts.Logger.WarnContext(ctx, "arc: authentication refused", "peer", x.in.RemoteAddr, "err", err)
			return nil, &Error{Code: code, Message: code.Message(), Cause: err}
		}
	}
	if err == nil && (p == nil || p.ID == "") {
		err = errors.New("arc: authenticator returned no principal")
	}
	if err != nil {
		return nil, s.internal(ctx, nil, err)
	}
	if !p.Expires.IsZero() && !time.Now().Before(p.Expires) {
		x.badToken = true
		return nil, &Error{Code: ErrTokenExpired, Message: ErrTokenExpired.Message()}
	}
	return p, nil
}

// permit checks who speaks, and whether they may call the method, in the order
// of ARC-D07.
func (s *Server) permit(ctx context.Context, call *Call) *Error {
	if p := call.Principal; p != nil {
		if p.AgentID != "" && p.AgentID != call.RequestAgent {
			return agentFault(ErrAgentAuthenticationFailed, call.RequestAgent)
		}
		if f := checkScopes(call.Method, p.Scopes); f != nil {
			return f
		}
	}
	if s.opts.Auth.Authorizer == nil {
		return nil
	}
	err := guard.Call("authorizer", func() error { return s.opts.Auth.Authorizer.Authorize(ctx, call) })
	var e *Error
	var c Code
	var p *guard.PanicError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &p):
		return s.internal(ctx, call, err)
	case errors.As(err, &e) && !e.Remote:
		return e
	case e == nil && errors.As(err, &c):
		return &Error{Code: c, Message: c.Message(), Cause: err}
	}
	return &Error{Code: ErrPermissionDenied, Message: ErrPermissionDenied.Message(), Cause: err}
}

// scope returns the budget of the caller.
func (s *Server) scope(call *Call) *budget.Scope { return s.engine.Scope(call.x.account()) }

// account returns the name of the caller in the budget.
func (x *exchange) account() string {
	if x.principal != nil {
		return x.principal.ID
	}
	if x.anonymous == "" {
		x.anonymous = budget.Anonymous(x.in.RemoteAddr)
	}
	return x.anonymous
}

// admitRequest counts a request of the caller (ARC-170).
func (s *Server) admitRequest(x *exchange, call *Call) *Error {
	if s.opts.Limits.RequestRate <= 0 {
		return nil
	}
	scope := s.scope(call)
	if key := s.opts.Limits.RateKey; key != nil {
		var name string
		if err := guard.Call("rate key", func() error { name = key(call); return nil }); err != nil {
			return s.internal(context.Background(), call, err)
		}
		scope = s.engine.Scope("key " + name)
	}
	if _, err := scope.Reserve(budget.Requests, 1); err != nil {
		return asError(engine.Refused(x.call.TargetAgent, err))
	}
	return nil
}

// Outcomes of an [AuditRecord].
const (
	outcomeOK       = "ok"
	outcomeRefused  = "refused"
	outcomeFailed   = "failed"
	outcomeCanceled = "canceled"
)

// An AuditRecord describes one finished request. It contains neither tokens nor
// message content (ARC-D70). Its texts come from the caller: write them quoted, as
// slog does.
type AuditRecord struct {
	Seq       uint64    // number of the record, from 1
	Time      time.Time // when the request was received
	Principal string    // empty without authentication
	Peer      string    // address of the client, as the transport reports it
	Operation string    // the method
	Object    string    // id of the task or chat in the params
	Outcome   string    // "ok", "refused" (before a handler ran), "failed" or "canceled"
	Code      string    // name or number of the error
	Duration  time.Duration
	Bytes     int64 // size of the request

	ID            ID
	RequestAgent  string
	TargetAgent   string
	HandledBy     string // the handling agent
	TraceID       string
	ResponseBytes int64 // with the events of a stream
	Streaming     bool
}

// LogValue groups the record for [log/slog].
func (r *AuditRecord) LogValue() slog.Value {
	return audit.Value(r, slog.String("request_id", string(r.ID)), slog.String("request_agent", r.RequestAgent),
		slog.String("target_agent", r.TargetAgent), slog.String("agent", r.HandledBy), slog.String("trace_id", r.TraceID),
		slog.Int64("response_bytes", r.ResponseBytes), slog.Bool("streaming", r.Streaming))
}

// AuditLog returns a function for [ServerOptions.Audit] that logs each record at Info. Nil means
// [slog.Default].
func AuditLog(log *slog.Logger) func(context.Context, *AuditRecord) {
	return audit.Log[*AuditRecord](log, "arc")
}

// audit reports a finished request.
func (s *Server) audit(ctx context.Context, x *exchange, a *ServerResponse) {
	if s.opts.Audit == nil {
		return
	}
	r := &AuditRecord{Seq: s.records.Add(1), Time: x.startTime, Duration: time.Since(x.startTime),
		Principal: x.call.principalID(), Peer: x.in.RemoteAddr, Operation: x.req.Method, Outcome: outcomeOK,
		Bytes: int64(len(x.in.Data)), ID: x.req.ID, RequestAgent: x.req.RequestAgent, TargetAgent: x.req.TargetAgent,
		HandledBy: x.agent, TraceID: x.req.TraceID, ResponseBytes: int64(len(a.Data) + x.sent), Streaming: x.streamed}
	_, r.Object = workOf(&x.call)
	if x.principal != nil {
		r.Principal = x.principal.ID
	}
	if x.isLeft {
		r.Outcome = outcomeCanceled
	}
	if e := a.Error; e != nil {
		r.Code = cmp.Or(e.Code.Name(), strconv.FormatInt(int64(e.Code), 10))
		switch {
		case !x.isRun:
			r.Outcome = outcomeRefused
		case ctx.Err() != nil:
			r.Outcome = outcomeCanceled
		default:
			r.Outcome = outcomeFailed
		}
	}
	s.hook(ctx, "audit", func(ctx context.Context) { s.opts.Audit(ctx, r) })
}

// hook calls a function of the user that only informs. Its panic is logged.
func (s *Server) hook(ctx context.Context, what string, f func(ctx context.Context)) {
	ctx = context.WithoutCancel(ctx)
	err := guard.Call(what, func() error {
		f(ctx)
		return nil
	})
	var p *guard.PanicError
	if errors.As(err, &p) {
		s.opts.Logger.ErrorContext(ctx, "arc: panic recovered", "err", err, "stack", string(p.Stack))
	}
}
