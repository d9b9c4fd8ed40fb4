// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package oauth

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"github.com/fivewire/fivewire/arc"
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
	// is the issuer, "#" and sub; AgentID is agent_id (ARC-D53); Scopes are those of
	// [arc.ParseScopes]. Expires is set if it is zero.
	Principal func(claims json.RawMessage) (*arc.Principal, error)

	// Logger receives skipped keys and failed refreshes. Nil means slog.Default().
	Logger *slog.Logger
}

// A Verifier is an [arc.TokenVerifier] for signed JWTs. It is safe for concurrent use.
type Verifier struct {
	tokens *jwt.Verifier[arc.Principal]
}

// NewVerifier returns a Verifier for tokens of the issuers. It does no I/O: the first token of an
// issuer fetches its keys.
func NewVerifier(issuers []Issuer, opts *VerifierOptions) (*Verifier, error) {
	tokens, err := jwt.New(issuers, (*jwt.Options[arc.Principal])(opts), jwt.Profile[arc.Principal]{
		Principal: principal, Expires: func(p *arc.Principal) *time.Time { return &p.Expires },
		Invalid: arc.ErrTokenInvalid, Expired: arc.ErrTokenExpired,
	})
	if err != nil {
		return nil, fmt.Errorf("oauth: %w", err)
	}
	return &Verifier{tokens: tokens}, nil
}

// VerifyToken verifies the signature, issuer, audience and times of a token, with a tolerance of
// 60 s for exp, nbf and iat. It returns [arc.ErrTokenExpired] or [arc.ErrTokenInvalid], wrapped, for
// a refused token, and another error if the keys cannot be fetched.
func (v *Verifier) VerifyToken(ctx context.Context, token string) (*arc.Principal, error) {
	p, err := v.tokens.Verify(ctx, token)
	if err != nil {
		return nil, fmt.Errorf("oauth: %w", err)
	}
	return p, nil
}

// principal returns the default principal. An agent_id of another type cannot be compared and must
// not permit every agent (ARC-D53).
func principal(t *jwt.Token) (*arc.Principal, error) {
	agent, err := t.Text("agent_id")
	if err == nil && agent == "" && !t.Claims.Get("agent_id").Absent() {
		err = errors.New("empty agent_id")
	}
	claims, _ := t.Claims.Any().(map[string]any)
	scopes := arc.ParseScopes(json.RawMessage(t.Claims))
	return &arc.Principal{ID: t.Principal, AgentID: agent, Scopes: scopes, Claims: claims, Expires: t.Expires}, err
}
