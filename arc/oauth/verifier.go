// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package oauth

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"

	"github.com/fivewire/fivewire/arc"
	"github.com/fivewire/fivewire/internal/sparing"
	"github.com/fivewire/fivewire/internal/strictjson"
)

// An Issuer is an authorization server whose tokens are accepted.
type Issuer struct {
	// URL is the issuer, exactly as the iss claim has it. Unless KeysURL is set,
	// its discovery document names where the keys are.
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
	// HTTPClient fetches discovery documents and keys. Nil means one with a
	// timeout of 10 s.
	HTTPClient *http.Client

	// MinRefresh bounds how often the keys of an issuer are fetched, which
	// otherwise any caller with a forged token could cause. Zero means 30 s.
	MinRefresh time.Duration

	// Principal makes the principal of the claims of a valid token, a JSON object. Nil
	// means: ID is sub, or iss and sub with several issuers; AgentID is agent_id
	// (D-53); Scopes are those of [arc.ScopesOf].
	Principal func(claims json.RawMessage) (*arc.Principal, error)
}

// A Verifier checks access tokens that are signed JWTs. It is an
// [arc.TokenVerifier], and may be used by several goroutines.
type Verifier struct {
	issuers map[string]*issuer
	opts    VerifierOptions
}

// NewVerifier returns a Verifier for tokens of the issuers. It does no I/O: keys
// are fetched when the first token comes.
func NewVerifier(issuers []Issuer, opts *VerifierOptions) (*Verifier, error) {
	v := &Verifier{issuers: map[string]*issuer{}}
	if opts != nil {
		v.opts = *opts
	}
	o := &v.opts
	if o.HTTPClient == nil {
		o.HTTPClient = &http.Client{Timeout: 10 * time.Second}
	}
	if o.MinRefresh <= 0 {
		o.MinRefresh = 30 * time.Second
	}
	if len(issuers) == 0 {
		return nil, errors.New("oauth: a verifier needs an issuer")
	}
	for _, i := range issuers {
		if i.URL == "" || v.issuers[i.URL] != nil {
			return nil, fmt.Errorf("oauth: issuer %q is empty or given twice", i.URL)
		}
		if i.Algorithms == nil {
			i.Algorithms = []string{oidc.RS256, oidc.RS384, oidc.RS512, oidc.PS256, oidc.PS384, oidc.PS512,
				oidc.ES256, oidc.ES384, oidc.ES512, oidc.EdDSA}
		}
		for _, a := range i.Algorithms {
			if strings.HasPrefix(a, "HS") || strings.EqualFold(a, "none") {
				return nil, fmt.Errorf("oauth: algorithm %s is not accepted", a)
			}
		}
		client := *o.HTTPClient
		client.Transport = &sparing.Transport{Next: client.Transport, Pause: o.MinRefresh}
		v.issuers[i.URL] = &issuer{Issuer: i, client: &client}
	}
	return v, nil
}

// maxToken bounds a token in bytes.
const maxToken = 64 << 10

// VerifyToken checks the signature, the issuer, the audience and the times of a
// token. It returns [arc.ErrTokenExpired] or [arc.ErrTokenInvalid], wrapped, for
// a token that is none, and another error when the keys cannot be had.
func (v *Verifier) VerifyToken(ctx context.Context, token string) (*arc.Principal, error) {
	claims, err := claimsOf(token)
	if err != nil {
		return nil, err
	}
	name, _ := claims.Get("iss").Text()
	is := v.issuers[name]
	if is == nil {
		return nil, invalid("unknown issuer")
	}
	if err := is.verify(ctx, token); err != nil {
		return nil, err
	}
	if v.opts.Principal != nil {
		return v.opts.Principal(json.RawMessage(claims))
	}
	id, _ := claims.Get("sub").Text()
	if id == "" {
		return nil, invalid("no subject")
	}
	if len(v.issuers) > 1 {
		id = name + " " + id
	}
	agent, _ := claims.Get("agent_id").Text()
	return &arc.Principal{ID: id, AgentID: agent, Scopes: arc.ScopesOf(json.RawMessage(claims)), Claims: json.RawMessage(claims)}, nil
}

func invalid(why string) error { return fmt.Errorf("oauth: %s: %w", why, arc.ErrTokenInvalid) }

// claimsOf reads the claims of a token that is not verified yet.
func claimsOf(token string) (strictjson.Value, error) {
	// Compact form only. The JSON form, which the library would take too, may hold
	// full stops wherever its sender likes, so that other claims than the signed
	// ones would be read here.
	parts := strings.Split(token, ".")
	if len(token) > maxToken || len(parts) != 3 || strings.ContainsFunc(token, foreign) {
		return nil, invalid("not a signed JWT")
	}
	text, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		return nil, invalid("not a signed JWT")
	}
	claims, err := strictjson.Check(text, strictjson.Options{MaxDepth: 32})
	if err != nil || !claims.IsObject() {
		return nil, invalid("the claims are no JSON object")
	}
	return claims, nil
}

// foreign reports whether a JWT in compact form does not have r.
func foreign(r rune) bool {
	return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '-' && r != '_' && r != '.'
}

// issuer is an [Issuer] with its keys.
type issuer struct {
	Issuer
	client *http.Client

	mu       sync.Mutex
	verifier *oidc.IDTokenVerifier // nil until discovery succeeded; guarded by mu
}

func (i *issuer) verify(ctx context.Context, token string) error {
	verifier, err := i.ready(ctx)
	if err != nil {
		return err
	}
	_, err = verifier.Verify(oidc.ClientContext(ctx, i.client), token)
	var expired *oidc.TokenExpiredError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &expired):
		return fmt.Errorf("oauth: %w", arc.ErrTokenExpired)
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case strings.Contains(err.Error(), "fetching keys"):
		return fmt.Errorf("oauth: keys of %s: %w", i.URL, err)
	}
	return invalid(err.Error())
}

// ready returns the verifier, after discovery if that is needed.
func (i *issuer) ready(ctx context.Context) (*oidc.IDTokenVerifier, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.verifier != nil {
		return i.verifier, nil
	}
	keysURL := i.KeysURL
	if keysURL == "" {
		provider, err := oidc.NewProvider(oidc.ClientContext(ctx, i.client), i.URL)
		if err != nil {
			return nil, fmt.Errorf("oauth: discovery of %s: %w", i.URL, err)
		}
		var document struct {
			KeysURL string `json:"jwks_uri"`
		}
		if err := provider.Claims(&document); err != nil {
			return nil, fmt.Errorf("oauth: discovery of %s: %w", i.URL, err)
		}
		keysURL = document.KeysURL
	}
	// The key set outlives the request that made it.
	keys := oidc.NewRemoteKeySet(oidc.ClientContext(context.Background(), i.client), keysURL)
	i.verifier = oidc.NewVerifier(i.URL, keys, &oidc.Config{ClientID: i.Audience, SkipClientIDCheck: i.Audience == "",
		SupportedSigningAlgs: i.Algorithms})
	return i.verifier, nil
}
