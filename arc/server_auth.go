// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package arc

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"math"
	"net/url"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// A Principal is the authenticated caller.
type Principal struct {
	ID      string          // owns the tasks and chats that it begins (ARC-D36); must not be empty
	AgentID string          // the only agent that it may speak as; empty means any (ARC-D53)
	Scopes  []string        // what it may do; see [ParseScopes]
	Claims  json.RawMessage // all that the token says, a JSON object, or nil
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

// authenticate verifies the token of every request before any other check (ARC-168,
// ARC-D54).
func (s *Server) authenticate(ctx context.Context, x *exchange) (*Principal, *Error) {
	if s.opts.Verifier == nil {
		return nil, nil
	}
	token, ok := bearer(x.in.Authorization)
	if !ok {
		return nil, &Error{Code: ErrAuthenticationFailed, Message: ErrAuthenticationFailed.Message()}
	}
	p, err := s.verify(ctx, token)
	switch {
	case errors.Is(err, ErrTokenExpired):
		x.badToken = true
		return nil, &Error{Code: ErrTokenExpired, Message: ErrTokenExpired.Message()}
	case errors.Is(err, ErrTokenInvalid):
		x.badToken = true
		return nil, &Error{Code: ErrTokenInvalid, Message: ErrTokenInvalid.Message()}
	case err != nil:
		return nil, s.internal(ctx, nil, err)
	case p == nil || p.ID == "":
		return nil, s.internal(ctx, nil, errors.New("arc: the token verifier returned no principal"))
	}
	return p, nil
}

func (s *Server) verify(ctx context.Context, token string) (p *Principal, err error) {
	defer recovered(&err)
	return s.opts.Verifier.VerifyToken(ctx, token)
}

// bearer returns the token of an Authorization header.
func bearer(header string) (string, bool) {
	scheme, token, _ := strings.Cut(header, " ")
	token = strings.Trim(token, " ")
	return token, strings.EqualFold(scheme, "Bearer") && token != ""
}

// permit checks who speaks, and whether they may call the method, in the order
// of ARC-D07.
func (s *Server) permit(ctx context.Context, call *Call) *Error {
	p := call.Principal
	if p != nil && p.AgentID != "" && p.AgentID != call.RequestAgent {
		return agentFault(ErrAgentAuthenticationFailed, call.RequestAgent)
	}
	if s.opts.BindAgent != nil {
		if err := s.opts.BindAgent(ctx, call); err != nil {
			return refusal(err, ErrAgentAuthenticationFailed)
		}
	}
	if p != nil {
		scopes := p.Scopes
		if s.opts.LegacyMethods {
			scopes = legacyScopes(scopes)
		}
		if f := checkScopes(call.Method, scopes); f != nil {
			return f
		}
	}
	if s.opts.Auth.Authorizer != nil {
		if err := s.opts.Auth.Authorizer(ctx, call); err != nil {
			return refusal(err, ErrPermissionDenied)
		}
	}
	return nil
}

// refusal is the error of a hook, or the code that stands for it: the cause may
// be nothing for the caller.
func refusal(err error, code Code) *Error {
	var e *Error
	if errors.As(err, &e) {
		return e
	}
	var c Code
	if errors.As(err, &c) {
		code = c
	}
	return &Error{Code: code, Message: code.Message(), Cause: err}
}

// A RateLimit bounds how many requests a caller may make (ARC-170): a bucket of
// Burst requests, into which Rate requests come back each second.
type RateLimit struct {
	PerSecond float64
	Burst     int

	// Key names the caller whose bucket a call takes from. Nil means the
	// principal where there is authentication, else the requestAgent, which
	// callers choose themselves.
	Key func(call *Call) string
}

// limiter holds the buckets of a [RateLimit].
type limiter struct {
	RateLimit
	mu      sync.Mutex
	buckets map[string]*rate.Limiter // guarded by mu
	sweep   time.Time                // when full buckets were last thrown away; guarded by mu
}

// maxBuckets is when buckets that are full again, and so tell nothing, are
// looked for even early.
const maxBuckets = 16 << 10

func newLimiter(l *RateLimit) *limiter {
	return &limiter{RateLimit: *l, buckets: map[string]*rate.Limiter{}, sweep: time.Now()}
}

// wait takes a request from the caller's bucket and returns zero, or how long
// until there is one.
func (l *limiter) wait(call *Call) time.Duration {
	key := ""
	switch {
	case l.Key != nil:
		key = l.Key(call)
	case call.Principal != nil:
		key = "p" + call.Principal.ID
	default:
		key = "a" + call.RequestAgent
	}
	at := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	b := l.buckets[key]
	if b == nil {
		l.clean(at)
		b = rate.NewLimiter(rate.Limit(l.PerSecond), l.Burst)
		l.buckets[key] = b
	}
	if b.AllowN(at, 1) {
		return 0
	}
	missing := 1 - b.TokensAt(at)
	seconds := missing / l.PerSecond
	if !(seconds < 3600) { // a rate of zero, too
		return time.Hour
	}
	return max(time.Duration(math.Ceil(seconds*1e9)), 1)
}

// clean forgets buckets that are full. If too many are left, because callers
// invent names faster than buckets fill, all are forgotten: bounded memory goes
// before exact bounds for them.
func (l *limiter) clean(at time.Time) {
	if at.Sub(l.sweep) < time.Minute && len(l.buckets) < maxBuckets {
		return
	}
	l.sweep = at
	for key, b := range l.buckets {
		if b.TokensAt(at) >= float64(l.Burst) {
			delete(l.buckets, key)
		}
	}
	if len(l.buckets) >= maxBuckets {
		clear(l.buckets)
	}
}

// retrySeconds is the value of Retry-After: whole seconds, at least 1 (ARC-D15).
func retrySeconds(d time.Duration) int64 {
	return max(1, int64((d+time.Second-1)/time.Second))
}

// An AuditRecord describes one finished request. It contains neither tokens nor
// message content (ARC-D70). Its texts come from the caller: write them quoted, as
// slog does.
type AuditRecord struct {
	Time         time.Time // when the request came
	Duration     time.Duration
	ID           ID
	Method       string
	RequestAgent string
	TargetAgent  string
	HandledBy    string // the handling agent
	TraceID      string
	Principal    string // empty without authentication
	Code         Code   // of the error; zero for success
	RequestSize  int    // bytes
	ResponseSize int    // bytes, the events of a stream included
	Streaming    bool
}

// LogValue groups the record for [log/slog].
func (r *AuditRecord) LogValue() slog.Value {
	return slog.GroupValue(
		slog.String("id", string(r.ID)), slog.String("method", r.Method),
		slog.String("requestAgent", r.RequestAgent), slog.String("targetAgent", r.TargetAgent),
		slog.String("agent", r.HandledBy), slog.String("traceId", r.TraceID), slog.String("principal", r.Principal),
		slog.Int64("code", int64(r.Code)), slog.Int("requestSize", r.RequestSize),
		slog.Int("responseSize", r.ResponseSize), slog.Bool("streamed", r.Streaming),
		slog.Duration("duration", r.Duration))
}

// AuditLog returns a function for [ServerOptions.Audit] that writes each record
// to log.
func AuditLog(log *slog.Logger) func(context.Context, *AuditRecord) {
	return func(ctx context.Context, r *AuditRecord) {
		log.LogAttrs(ctx, slog.LevelInfo, "arc request", slog.Any("arc", r))
	}
}

// audit reports a finished request.
func (s *Server) audit(ctx context.Context, x *exchange, a *ServerResponse) {
	r := &AuditRecord{Time: x.startTime, Duration: time.Since(x.startTime), ID: x.req.ID, Method: x.req.Method,
		RequestAgent: x.req.RequestAgent, TargetAgent: x.req.TargetAgent, HandledBy: x.agent, TraceID: x.req.TraceID,
		Principal: x.call.principalID(), RequestSize: len(x.in.Data), ResponseSize: len(a.Data) + x.sent, Streaming: x.streamed}
	if a.Error != nil {
		r.Code = a.Error.Code
	}
	s.opts.Audit(context.WithoutCancel(ctx), r)
}

func unescapePath(s string) (string, error) { return url.PathUnescape(s) }
