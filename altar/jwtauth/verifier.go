// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package jwtauth

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"

	"github.com/fivewire/fivewire/altar"
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

	// Algorithms are the accepted signature algorithms. Nil means RS256, RS384, RS512, PS256,
	// PS384, PS512, ES256, ES384, ES512 and EdDSA. Symmetric algorithms and "none" are always
	// refused.
	Algorithms []string
}

// VerifierOptions adjusts a [Verifier]. The zero value is right for production.
type VerifierOptions struct {
	// HTTPClient fetches discovery documents and keys. Issuers choose the URLs, private addresses
	// included. A redirect from https to http is an error. Nil means a default client; a timeout of
	// zero means 10 seconds.
	HTTPClient *http.Client

	// MinRefreshInterval is the minimum interval between fetches of the keys of an issuer. Without
	// it, any forged token could cause a fetch. A new key or a recovered issuer is detected after
	// this interval at the latest. Zero means 30 seconds.
	MinRefreshInterval time.Duration

	// KeyTTL is the lifetime of fetched keys, after which withdrawn keys are refused. Keys are
	// refreshed from half of that time, and the old keys remain valid during the refresh. Zero
	// means 1 hour.
	KeyTTL time.Duration

	// Principal returns the principal for the claims of a valid token, a JSON object. Nil means:
	// the ID is sub, or iss and sub with several issuers; the tenant is tenant_id; the roles are
	// roles, a list of strings.
	Principal func(claims json.RawMessage) (*altar.Principal, error)
}

// Errors of tokens, to be tested with [errors.Is].
var (
	// ErrTokenInvalid reports a token that failed verification.
	ErrTokenInvalid = errors.New("jwtauth: invalid token")

	// ErrTokenExpired reports an expired token. It wraps ErrTokenInvalid.
	ErrTokenExpired = fmt.Errorf("%w: expired", ErrTokenInvalid)
)

// A Verifier verifies bearer tokens that are signed JWTs. It is an [altar.TokenVerifier] and safe
// for concurrent use.
type Verifier struct {
	tokens *tokens.Verifier
	opts   VerifierOptions
}

// NewVerifier returns a Verifier for tokens of the issuers. It does no I/O.
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
		return nil, fmt.Errorf("jwtauth: %w", err)
	}
	return v, nil
}

// VerifyToken verifies the signature, issuer, audience and times of a token. To allow for clock
// skew, a token is valid from five minutes before its nbf claim; it is invalid from its exp. An
// invalid token is [ErrTokenExpired] or wraps [ErrTokenInvalid]. If the keys cannot be fetched, the
// error is an [*altar.Error] with INTERNAL_ERROR, so that the caller may retry.
func (v *Verifier) VerifyToken(ctx context.Context, token string) (*altar.Principal, error) {
	t, err := v.tokens.Verify(ctx, token)
	var why tokens.Invalid
	switch {
	case errors.Is(err, tokens.Expired):
		return nil, ErrTokenExpired
	case errors.As(err, &why):
		return nil, invalid(why)
	case err != nil:
		e := altar.NewError(altar.ErrInternal, "", "the caller cannot be authenticated now")
		e.Cause = fmt.Errorf("jwtauth: %w", err)
		return nil, e
	case v.opts.Principal != nil:
		return v.opts.Principal(json.RawMessage(t.Claims))
	case t.Subject == "":
		return nil, invalid("no subject")
	}
	id := &altar.Principal{ID: t.Subject}
	if tenant := t.Claims.Get("tenant_id"); !tenant.Absent() {
		var ok bool
		if id.Tenant, ok = tenant.Text(); !ok { // otherwise all such tenants would be equal
			return nil, invalid("tenant_id is not a string")
		}
	}
	if roles := t.Claims.Get("roles"); roles.IsArray() {
		for e := roles.Elements(); e.Next(); {
			if role, ok := e.Value.Text(); ok {
				id.Roles = append(id.Roles, role)
			}
		}
	}
	return id, nil
}

func invalid(why tokens.Invalid) error { return fmt.Errorf("%w: %s", ErrTokenInvalid, why) }

// library verifies tokens with go-oidc.
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
