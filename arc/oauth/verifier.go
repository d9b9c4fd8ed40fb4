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
	// HTTPClient fetches discovery documents and keys. Where they are is up to the
	// issuers, private addresses included. A redirect from https to http is an
	// error. Nil means a client of its own, and a timeout of zero one of 10 seconds.
	HTTPClient *http.Client

	// MinRefreshInterval bounds how often the keys of an issuer are fetched, which
	// otherwise any caller with a forged token could cause. A key that is new
	// may take as long to be known, and an issuer that was down as long to be
	// asked again. Zero means 30 seconds.
	MinRefreshInterval time.Duration

	// KeyTTL is for how long keys are believed after they were fetched, so that
	// those that were withdrawn are forgotten. From half of that time on they are
	// fetched again, and meanwhile the old ones serve. Zero means an hour.
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
// token: one may come up to five minutes before its nbf claim, since clocks
// differ, and not a moment after its exp. It returns [arc.ErrTokenExpired] or [arc.ErrTokenInvalid], wrapped, for
// a token that is none, and another error when the keys cannot be had.
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
		// One that cannot be compared binds to nobody, and must not let speak as anybody (ARC-D53).
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
