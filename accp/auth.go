// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package accp

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"github.com/fivewire/fivewire/internal/audit"
	"github.com/fivewire/fivewire/internal/auth"
	"github.com/fivewire/fivewire/internal/budget"
	"github.com/fivewire/fivewire/internal/guard"
)

// A Principal is the authenticated caller.
type Principal struct {
	ID      string         // must not be empty
	Tenant  string         // the customer that it belongs to, for the program
	Roles   []string       // what it may do, for the program
	Claims  map[string]any // of its token, or nil
	Expires time.Time      // the end of its connections; zero means none
}

// An Authenticator authenticates the caller of an HTTP request or of a WebSocket handshake. An
// error refuses the request with status 401. It must be safe for concurrent use.
type Authenticator interface {
	Authenticate(r *http.Request) (*Principal, error)
}

// An AuthenticatorFunc is a function that serves as an [Authenticator].
type AuthenticatorFunc func(r *http.Request) (*Principal, error)

// Authenticate calls f.
func (f AuthenticatorFunc) Authenticate(r *http.Request) (*Principal, error) { return f(r) }

// A TokenVerifier verifies access tokens. An error rejects a token.
type TokenVerifier interface {
	VerifyToken(ctx context.Context, token string) (*Principal, error)
}

// A TokenVerifierFunc is a function that serves as a [TokenVerifier].
type TokenVerifierFunc func(ctx context.Context, token string) (*Principal, error)

// VerifyToken calls f.
func (f TokenVerifierFunc) VerifyToken(ctx context.Context, token string) (*Principal, error) {
	return f(ctx, token)
}

var errNoToken = errors.New("accp: no bearer token")

// BearerAuthenticator returns an [Authenticator] of callers with an access token in the header
// Authorization.
func BearerAuthenticator(v TokenVerifier) Authenticator {
	return AuthenticatorFunc(func(r *http.Request) (*Principal, error) {
		token, ok := auth.Bearer(r.Header.Get("Authorization"))
		if !ok {
			return nil, errNoToken
		}
		if v == nil {
			return nil, fmt.Errorf("%w: nil TokenVerifier", errPrincipal)
		}
		return v.VerifyToken(r.Context(), token)
	})
}

// APIKeyAuthenticator returns an [Authenticator] of callers with one of the given keys as
// their access token. Keys must be random and may not be empty.
func APIKeyAuthenticator(keys map[string]*Principal) (Authenticator, error) {
	table, err := auth.NewKeys(keys, func(p *Principal) string { return p.ID })
	if err != nil {
		return nil, fmt.Errorf("accp: %w", err)
	}
	return BearerAuthenticator(TokenVerifierFunc(func(_ context.Context, token string) (*Principal, error) {
		p := table.Find(token)
		if p == nil {
			return nil, errors.New("accp: unknown API key")
		}
		return p, nil
	})), nil
}

// An Authorizer decides whether the caller may send a message. The message has its sender, its
// intent, its operation and in Meta its session id, but keys as written and references unresolved
// (ACCP-D55). An error is sent as [ErrPolicyDenied]. [PrincipalFromContext] returns the caller.
type Authorizer interface {
	Authorize(ctx context.Context, m *Message) error
}

// An AuthorizerFunc is a function that serves as an [Authorizer].
type AuthorizerFunc func(ctx context.Context, m *Message) error

// Authorize calls f.
func (f AuthorizerFunc) Authorize(ctx context.Context, m *Message) error { return f(ctx, m) }

type principalKey struct{}

// PrincipalFromContext returns the authenticated caller of a message to a [Server], or nil.
func PrincipalFromContext(ctx context.Context) *Principal {
	p, _ := ctx.Value(principalKey{}).(*Principal)
	return p
}

// A caller is the other side of a request or a connection.
type caller struct {
	principal *Principal // nil if anonymous
	peer      string     // its address
	name      string     // in the budget
}

// newCaller returns a caller at an address, with its principal or nil.
func newCaller(peer string, p *Principal) *caller {
	c := &caller{principal: p, peer: peer}
	if p == nil {
		c.name = budget.Anonymous(peer)
	} else {
		c.name = auth.Name(p.Tenant, p.ID)
	}
	return c
}

// id returns the ID of the principal, or "".
func (c *caller) id() string {
	if c.principal == nil {
		return ""
	}
	return c.principal.ID
}

// errPrincipal reports a failure of an [Authenticator], as opposed to a refusal.
var errPrincipal = errors.New("accp: authenticator returned no principal")

// authenticate returns the caller of a request. The error of a failed authentication is a
// *budget.Error, a failure of the authenticator, or a refusal.
func (s *Server) authenticate(r *http.Request) (*caller, error) {
	c := newCaller(r.RemoteAddr, nil)
	if s.opts.Auth.Authenticator == nil {
		return c, nil
	}
	place, err := s.budget.Scope(c.name, "").Reserve(budget.Unauthenticated, 1)
	if err != nil {
		return c, err
	}
	defer place.Release()
	var p *Principal
	err = guard.Call("authenticator", func() (err error) {
		p, err = s.opts.Auth.Authenticator.Authenticate(r)
		return err
	})
	switch {
	case err != nil:
		return c, err
	case p == nil || p.ID == "":
		return c, errPrincipal
	case !p.Expires.IsZero() && !time.Now().Before(p.Expires):
		return c, errors.New("accp: authentication expired")
	}
	return newCaller(r.RemoteAddr, p), nil
}

// authorize calls the authorizer.
func (s *Server) authorize(ctx context.Context, m *Message) error {
	if s.opts.Auth.Authorizer == nil {
		return nil
	}
	err := guard.Call("authorizer", func() error { return s.opts.Auth.Authorizer.Authorize(ctx, m.clone()) })
	var p *guard.PanicError
	if errors.As(err, &p) {
		return s.panicked(ctx, p)
	}
	if err != nil {
		return &Error{Code: ErrPolicyDenied, Message: "not authorized", Cause: err}
	}
	return nil
}

// permit calls the authorizer for a frame of a connection. The session refuses a malformed frame.
func (s *Server) permit(ctx context.Context, frame []byte) error {
	if s.opts.Auth.Authorizer == nil {
		return nil
	}
	m, err := s.decode(frame)
	if err != nil {
		return nil
	}
	return s.authorize(ctx, m)
}

// Outcomes of an [AuditRecord].
const (
	outcomeOK       = "ok"
	outcomeRefused  = "refused"
	outcomeFailed   = "failed"
	outcomeCanceled = "canceled"
)

// An AuditRecord describes one received frame, or a request that was refused before its frame was
// read. It contains neither tokens nor params. Its texts come from the caller: write them quoted,
// as slog does.
type AuditRecord struct {
	Seq       uint64    // number of the record, from 1
	Time      time.Time // when the frame was received
	Principal string    // empty without authentication
	Peer      string    // address of the client, as the transport reports it
	Operation string    // intent and operation, such as req:fetch
	Object    string    // session id
	Outcome   string    // "ok", "refused" (before a handler ran), "failed" or "canceled"
	Code      string    // of the error, or the HTTP status of a request without a frame
	Duration  time.Duration
	Bytes     int64 // size of the frame

	Sender string // agent-id of the sender
	Chain  string
}

// LogValue groups the record for [log/slog].
func (r *AuditRecord) LogValue() slog.Value {
	return audit.Value(r, slog.String("agent", r.Sender), slog.String("chain", r.Chain))
}

// AuditLog returns a function for [ServerOptions].Audit that logs each record at Info. Nil means
// [slog.Default].
func AuditLog(log *slog.Logger) func(context.Context, *AuditRecord) {
	return audit.Log[*AuditRecord](log, "accp")
}

// audited returns a record of a frame that s.audit completes. It is nil without an audit, like those below.
func (s *responder) audited(c *caller, frame []byte) *AuditRecord {
	if s.auditor == nil {
		return nil
	}
	return &AuditRecord{Time: time.Now(), Principal: c.id(), Peer: c.peer, Outcome: outcomeOK, Bytes: int64(len(frame))}
}

// describe adds the names of a message.
func (r *AuditRecord) describe(m *Message) {
	if r == nil {
		return
	}
	r.Operation, r.Sender = string(m.Intent)+":"+m.Op, m.From
	if m.Meta != nil {
		r.Object, r.Chain = m.Meta.SID, m.Chain()
	}
}

// end sets the outcome of a record.
func (r *AuditRecord) end(outcome string, err error) {
	if r == nil {
		return
	}
	r.Outcome = outcome
	if err != nil {
		r.Code = string(codeOf(err))
	}
}

// auditRefusal reports a refusal that concerns no frame.
func (s *responder) auditRefusal(ctx context.Context, c *caller, operation, code string) {
	if record := s.audited(c, nil); record != nil {
		record.Operation, record.Outcome, record.Code = operation, outcomeRefused, code
		s.audit(ctx, record)
	}
}

// audit reports a record.
func (s *responder) audit(ctx context.Context, r *AuditRecord) {
	if r != nil {
		s.auditor(ctx, r)
	}
}

// callAudit completes a record and calls Audit.
func (s *Server) callAudit(ctx context.Context, r *AuditRecord) {
	r.Seq = s.records.Add(1)
	r.Duration = time.Since(r.Time)
	err := guard.Call("audit", func() error {
		s.opts.Audit(context.WithoutCancel(ctx), r)
		return nil
	})
	var p *guard.PanicError
	if errors.As(err, &p) {
		_ = s.panicked(ctx, p)
	}
}

// panicked logs a panic of user code and returns the error for the peer.
func (s *responder) panicked(ctx context.Context, p *guard.PanicError) error {
	s.log.ErrorContext(ctx, "accp: panic recovered", "err", p, "stack", string(p.Stack))
	return &Error{Code: ErrInternal, Message: p.What + " panicked", Cause: fmt.Errorf("%w", p)}
}
