// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package a2e

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/fivewire/fivewire/internal/auth"
	"github.com/fivewire/fivewire/internal/guard"
	"github.com/fivewire/fivewire/internal/life"
)

// A Principal is an authenticated agent.
type Principal struct {
	ID     string         // identifies the agent; never empty
	Tenant string         // its organization
	Roles  []string       // what it may do, for an [Authorizer]
	Claims map[string]any // of the token

	// Expires ends the sessions of the agent. The zero time means never.
	Expires time.Time
}

// An Authenticator checks the handshake of an agent. An error refuses it with the reason
// auth_failed; the text is logged and never sent. It may be called concurrently.
type Authenticator interface {
	Authenticate(ctx context.Context, r *HandshakeRequest) (*Principal, error)
}

// An AuthenticatorFunc is a function that serves as an [Authenticator].
type AuthenticatorFunc func(ctx context.Context, r *HandshakeRequest) (*Principal, error)

// Authenticate calls f.
func (f AuthenticatorFunc) Authenticate(ctx context.Context, r *HandshakeRequest) (*Principal, error) {
	return f(ctx, r)
}

// A TokenVerifier checks a token, such as a JWT.
type TokenVerifier interface {
	VerifyToken(ctx context.Context, token string) (*Principal, error)
}

// A TokenVerifierFunc is a function that serves as a [TokenVerifier].
type TokenVerifierFunc func(ctx context.Context, token string) (*Principal, error)

// VerifyToken calls f.
func (f TokenVerifierFunc) VerifyToken(ctx context.Context, token string) (*Principal, error) {
	return f(ctx, token)
}

// BearerAuthenticator returns an [Authenticator] that passes the token of the handshake to v. It
// refuses handshakes without a token.
func BearerAuthenticator(v TokenVerifier) Authenticator {
	return AuthenticatorFunc(func(ctx context.Context, r *HandshakeRequest) (*Principal, error) {
		if r.AuthToken == "" {
			return nil, errors.New("a2e: handshake without a token")
		}
		if v == nil {
			return nil, errors.New("a2e: no TokenVerifier")
		}
		return v.VerifyToken(ctx, r.AuthToken)
	})
}

// APIKeyAuthenticator returns an [Authenticator] of agents with one of the given keys as their token
// (A2E-D22). Keys must be random and may not be empty. Several keys of one principal are valid during
// a replacement.
func APIKeyAuthenticator(keys map[string]*Principal) (Authenticator, error) {
	table, err := auth.NewKeys(keys, func(p *Principal) string { return p.ID })
	if err != nil {
		return nil, fmt.Errorf("a2e: %w", err)
	}
	return BearerAuthenticator(TokenVerifierFunc(func(_ context.Context, token string) (*Principal, error) {
		p := table.Find(token)
		if p == nil {
			return nil, errors.New("a2e: unknown token")
		}
		return p, nil
	})), nil
}

// An Authorizer decides whether an agent may send a request. An error refuses it: an [*Error] is
// sent as it is, any other one as unauthorized. It may be called concurrently.
type Authorizer interface {
	Authorize(ctx context.Context, call *Call) error
}

// An AuthorizerFunc is a function that serves as an [Authorizer].
type AuthorizerFunc func(ctx context.Context, call *Call) error

// Authorize calls f.
func (f AuthorizerFunc) Authorize(ctx context.Context, call *Call) error { return f(ctx, call) }

// Auth is a group of [HostOptions].
type Auth struct {
	// Authenticator checks the handshakes. Nil needs AllowAnonymous.
	Authenticator Authenticator

	// Authorizer decides about each request before its handler. Nil allows all requests.
	Authorizer Authorizer

	// AllowAnonymous admits every agent without an Authenticator. With an Authenticator, it admits
	// also each agent without a token. The [Principal] of such an agent is nil.
	AllowAnonymous bool

	// SkipHandshake serves requests before the handshake, with all capabilities. It has no effect
	// with an Authenticator (A2E-D21).
	SkipHandshake bool
}

// check returns the mistake of a configuration (A2E-D22).
func (a *Auth) check() error {
	if a.Authenticator == nil && !a.AllowAnonymous {
		return errors.New("a2e: new host: no Authenticator; AllowAnonymous admits every agent")
	}
	return nil
}

// callAuthenticator calls the authenticator. It does not wait for one that ignores the end of ctx.
func (h *Host) callAuthenticator(ctx context.Context, r *HandshakeRequest) (*Principal, error) {
	work, err := h.life.Start(ctx, life.Idle)
	if err != nil {
		return nil, err
	}
	type result struct {
		principal *Principal
		err       error
	}
	results := make(chan result, 1)
	var own result
	go work.Run("authenticator", func(ctx context.Context) (err error) {
		own.principal, err = h.opts.Auth.Authenticator.Authenticate(ctx, r)
		return err
	}, func(err error) {
		own.err = err
		results <- own
	})
	select {
	case got := <-results:
		return got.principal, got.err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// authenticate checks a handshake (A2E-D22).
func (h *Host) authenticate(ctx context.Context, r *HandshakeRequest) (*Principal, bool) {
	auth := &h.opts.Auth
	if auth.AllowAnonymous && (auth.Authenticator == nil || r.AuthToken == "") {
		return nil, true
	}
	p, err := h.callAuthenticator(ctx, r)
	switch {
	case err != nil:
		logFailure(ctx, h.log, slog.LevelWarn, "a2e: handshake refused", err, "agent", clip(r.AgentID, 100), "reason", RejectAuthFailed)
		return nil, false
	case p == nil || p.ID == "":
		h.log.ErrorContext(ctx, "a2e: handshake refused", "agent", clip(r.AgentID, 100), "reason", "principal without id")
		return nil, false
	case !p.Expires.IsZero() && !p.Expires.After(time.Now()):
		h.log.WarnContext(ctx, "a2e: handshake refused", "agent", clip(r.AgentID, 100), "reason", "expired")
		return nil, false
	}
	return p, true
}

// authorize asks the Authorizer about a request.
func (h *Host) authorize(ctx context.Context, c *Call) error {
	if h.opts.Auth.Authorizer == nil {
		return nil
	}
	err := guard.Call("authorizer", func() error { return h.opts.Auth.Authorizer.Authorize(ctx, c) })
	var own *Error
	if err == nil || errors.As(err, &own) {
		return err
	}
	var panicked *guard.PanicError
	if errors.As(err, &panicked) {
		return err
	}
	refused := Errorf(ErrUnauthorized, "not allowed")
	refused.Cause = fmt.Errorf("a2e: authorize: %w", err)
	return refused
}
