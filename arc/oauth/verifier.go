// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package oauth

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"

	"github.com/fivewire/fivewire/arc"
	"github.com/fivewire/fivewire/internal/tokens"
)

// An Issuer is an authorization server whose tokens are accepted.
type Issuer struct {
	// URL is the issuer, exactly as the iss claim has it. Unless KeysURL is set,
	// its discovery document names where the keys are; if URL begins with https,
	// they are there too.
	URL string

	// Audience must be among the aud claim. Empty accepts any audience, which is
	// for issuers that serve nothing else: a token that was made for another
	// service must not open this one.
	Audience string

	// KeysURL is where the key set (JWKS) is.
	KeysURL string

	// Algorithms are the signature algorithms that are accepted. Nil means
	// RS256, RS384, RS512, PS256, PS384, PS512, ES256, ES384, ES512 and EdDSA.
	// Symmetric ones and "none" never are.
	Algorithms []string
}

// VerifierOptions adjusts a [Verifier]. The zero value is right for production.
type VerifierOptions struct {
	// HTTPClient fetches discovery documents and keys. The issuers determine the
	// addresses, private ones included. A redirect from https to http is an
	// error. Nil means a private client; a timeout of zero means 10 s.
	HTTPClient *http.Client

	// MinRefreshInterval is the minimum time between two fetches of the keys of an
	// issuer, so that forged tokens cannot cause more. A new key may be unknown,
	// and a failed issuer not retried, for as long. Zero means 30 s.
	MinRefreshInterval time.Duration

	// KeyTTL is the lifetime of fetched keys, after which withdrawn keys are no
	// longer accepted. After half of it they are fetched again in the background.
	// Zero means 1 h.
	KeyTTL time.Duration

	// Principal makes the principal of the claims of a valid token, a JSON object. Nil
	// means: ID is sub, or iss and sub with several issuers; AgentID is agent_id
	// (ARC-D53); Scopes are those of [arc.ParseScopes].
	Principal func(claims json.RawMessage) (*arc.Principal, error)
}

// A Verifier checks access tokens that are signed JWTs. It is an
// [arc.TokenVerifier], and may be used by several goroutines.
type Verifier struct {
	tokens *tokens.Verifier
	opts   VerifierOptions
}

// NewVerifier returns a Verifier for tokens of the issuers. It does no I/O: keys
// are fetched when the first token comes.
func NewVerifier(issuers []Issuer, opts *VerifierOptions) (*Verifier, error) {
	v := &Verifier{}
	if opts != nil {
		v.opts = *opts
	}
	list := make([]tokens.Issuer, len(issuers))
	for n, i := range issuers {
		list[n] = tokens.Issuer(i)
	}
	var err error
	if v.tokens, err = tokens.New(list, tokens.Options{HTTPClient: v.opts.HTTPClient, MinRefresh: v.opts.MinRefreshInterval, MaxAge: v.opts.KeyTTL}, library{}); err != nil {
		return nil, fmt.Errorf("oauth: %w", err)
	}
	return v, nil
}

// VerifyToken checks the signature, the issuer, the audience and the times of a
// token. It accepts a token up to five minutes before its nbf claim, because clocks
// differ, but not after its exp claim. It returns [arc.ErrTokenExpired] or
// [arc.ErrTokenInvalid], wrapped, for a rejected token, and another error if the
// keys cannot be fetched.
func (v *Verifier) VerifyToken(ctx context.Context, token string) (*arc.Principal, error) {
	t, err := v.tokens.Verify(ctx, token)
	var why tokens.Invalid
	switch {
	case errors.Is(err, tokens.Expired):
		return nil, fmt.Errorf("oauth: %w", arc.ErrTokenExpired)
	case errors.As(err, &why):
		return nil, invalid(why)
	case err != nil:
		return nil, fmt.Errorf("oauth: %w", err)
	case v.opts.Principal != nil:
		return v.opts.Principal(json.RawMessage(t.Claims))
	case t.Subject == "":
		return nil, invalid("no subject")
	}
	p := &arc.Principal{ID: t.Subject, Scopes: arc.ParseScopes(json.RawMessage(t.Claims)), Claims: json.RawMessage(t.Claims)}
	if agent := t.Claims.Get("agent_id"); !agent.Absent() {
		// A claim of another type cannot be compared and must not permit every agent (ARC-D53).
		if p.AgentID, _ = agent.Text(); p.AgentID == "" {
			return nil, invalid("agent_id names no agent")
		}
	}
	return p, nil
}

func invalid(why tokens.Invalid) error { return fmt.Errorf("oauth: %w: %s", arc.ErrTokenInvalid, why) }

// library has go-oidc check tokens.
type library struct{}

func (library) Keys(client *http.Client, url string) tokens.KeySet {
	return oidc.NewRemoteKeySet(oidc.ClientContext(context.Background(), client), url)
}

func (library) Check(ctx context.Context, i tokens.Issuer, keys tokens.KeySet, token string) error {
	_, err := oidc.NewVerifier(i.URL, keys, &oidc.Config{ClientID: i.Audience, SkipClientIDCheck: i.Audience == "",
		SupportedSigningAlgs: i.Algorithms}).Verify(ctx, token)
	if expired := (*oidc.TokenExpiredError)(nil); errors.As(err, &expired) {
		return tokens.Expired
	}
	return err
}
