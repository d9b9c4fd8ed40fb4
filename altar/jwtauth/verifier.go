// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package jwtauth

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"github.com/fivewire/fivewire/altar"
	"github.com/fivewire/fivewire/internal/jwt"
)

// AnyAudience is the [Issuer.Audience] that accepts every token of the issuer, tokens for other
// services included. It is for issuers that serve nothing else.
const AnyAudience = jwt.AnyAudience

// An Issuer is an authorization server whose tokens are accepted.
type Issuer struct {
	// URL equals the iss claim. It is required and has no "#". Unless KeysURL is set, the discovery
	// document of the issuer names the URL of the keys. An https issuer must name an https URL.
	URL string

	// Audience is an element of the aud claim, or [AnyAudience]. It is required.
	Audience string

	// KeysURL is the URL of the key set (JWKS).
	KeysURL string

	// Algorithms are the accepted signature algorithms. Nil means RS256, RS384, RS512, PS256, PS384,
	// PS512, ES256, ES384, ES512 and EdDSA. Symmetric algorithms and "none" are refused.
	Algorithms []string
}

// VerifierOptions adjust a [Verifier].
type VerifierOptions struct {
	// HTTPClient fetches discovery documents and keys. Issuers choose the URLs, private addresses
	// included. Redirects are not followed, and a fetch takes at most 10 s. Nil means a private client.
	HTTPClient *http.Client

	// AllowInsecure permits http to hosts other than this host.
	AllowInsecure bool

	// MinRefreshInterval is the minimum time between two fetches for one issuer, at most half of
	// KeyTTL. Forged tokens cannot cause more, and a new key may be unknown for as long. Zero means
	// 30 s. A negative value removes the minimum.
	MinRefreshInterval time.Duration

	// KeyTTL is the lifetime of fetched keys, after which withdrawn keys are refused. After half of
	// it they are fetched again in the background. Zero means 1 h. With a negative value keys do not
	// expire.
	KeyTTL time.Duration

	// Confirm is called with the cnf claim of a valid token that is bound to a key (RFC 8705,
	// RFC 9449), and returns an error unless the request proves possession of the key. The context
	// is that of VerifyToken. Nil refuses such tokens.
	Confirm func(ctx context.Context, cnf json.RawMessage) error

	// Principal returns the principal for the claims of a valid token, a JSON object. Nil means: ID
	// is the issuer, "#" and sub; Tenant is tenant_id; Roles are roles, a list of strings. Expires is
	// set if it is zero.
	Principal func(claims json.RawMessage) (*altar.Principal, error)

	// Logger receives skipped keys and failed refreshes. Nil means slog.Default().
	Logger *slog.Logger
}

// Errors of refused tokens.
var (
	ErrTokenInvalid = jwt.ErrInvalid
	ErrTokenExpired = jwt.ErrExpired // wraps ErrTokenInvalid
)

// A Verifier is an [altar.TokenVerifier] for signed JWTs. It is safe for concurrent use.
type Verifier struct {
	tokens *jwt.Verifier[altar.Principal]
}

// NewVerifier returns a Verifier for tokens of the issuers. It does no I/O: the first token of an
// issuer fetches its keys.
func NewVerifier(issuers []Issuer, opts *VerifierOptions) (*Verifier, error) {
	tokens, err := jwt.New(issuers, (*jwt.Options[altar.Principal])(opts), jwt.Profile[altar.Principal]{
		Principal: principal, Expires: func(p *altar.Principal) *time.Time { return &p.Expires },
	})
	if err != nil {
		return nil, fmt.Errorf("jwtauth: %w", err)
	}
	return &Verifier{tokens: tokens}, nil
}

// VerifyToken verifies the signature, issuer, audience and times of a token, with a tolerance of
// 60 s for exp, nbf and iat. It returns [ErrTokenExpired] or [ErrTokenInvalid], wrapped, for a refused
// token. If the keys cannot be fetched, the error is an [*altar.Error] with INTERNAL_ERROR, so that
// the caller may retry.
func (v *Verifier) VerifyToken(ctx context.Context, token string) (*altar.Principal, error) {
	p, err := v.tokens.Verify(ctx, token)
	if errors.Is(err, jwt.ErrUnavailable) {
		e := altar.Errorf(altar.ErrInternal, "", "the caller cannot be authenticated now")
		e.Cause = fmt.Errorf("jwtauth: %w", err)
		return nil, e
	}
	return p, err
}

// principal returns the default principal. A tenant_id that is not a string is refused: otherwise all
// such tenants would be equal.
func principal(t *jwt.Token) (*altar.Principal, error) {
	tenant, err := t.Text("tenant_id")
	return &altar.Principal{ID: t.Principal, Tenant: tenant, Roles: t.Strings("roles"), Expires: t.Expires}, err
}
