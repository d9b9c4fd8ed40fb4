// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package jwtauth

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

	"github.com/fivewire/fivewire/altar"
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
	// timeout of 10 seconds.
	HTTPClient *http.Client

	// MinRefresh bounds how often the keys of an issuer are fetched, which
	// otherwise any caller with a forged token could cause. A key that is new
	// may take as long to be known. Zero means 30 seconds.
	MinRefresh time.Duration

	// MaxAge is after how long keys are fetched again, so that those that were
	// withdrawn are forgotten. Zero means an hour.
	MaxAge time.Duration

	// Identity makes the identity of the claims of a valid token, a JSON object.
	// Nil means: the name is sub, or iss and sub with several issuers; the
	// tenant is tenant_id; the roles are roles, a list of strings.
	Identity func(claims json.RawMessage) (*altar.Identity, error)
}

// Errors of tokens, to be tested with [errors.Is].
var (
	// ErrInvalid reports a token that proves nothing.
	ErrInvalid = errors.New("jwtauth: the token is not valid")

	// ErrExpired reports a token whose time is over.
	ErrExpired = fmt.Errorf("%w any more", ErrInvalid)
)

// A Verifier checks bearer tokens that are signed JWTs. It is an
// [altar.TokenVerifier], and may be used by several goroutines.
type Verifier struct {
	issuers map[string]*issuer
	opts    VerifierOptions
}

// NewVerifier returns a Verifier for tokens of the issuers. It does no I/O.
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
	if o.MaxAge <= 0 {
		o.MaxAge = time.Hour
	}
	if len(issuers) == 0 {
		return nil, errors.New("jwtauth: a verifier needs an issuer")
	}
	for _, i := range issuers {
		if i.URL == "" || v.issuers[i.URL] != nil {
			return nil, fmt.Errorf("jwtauth: issuer %q is empty or given twice", i.URL)
		}
		if i.Algorithms == nil {
			i.Algorithms = []string{oidc.RS256, oidc.RS384, oidc.RS512, oidc.PS256, oidc.PS384, oidc.PS512,
				oidc.ES256, oidc.ES384, oidc.ES512, oidc.EdDSA}
		}
		for _, a := range i.Algorithms {
			if strings.HasPrefix(a, "HS") || strings.EqualFold(a, "none") {
				return nil, fmt.Errorf("jwtauth: algorithm %s is not accepted", a)
			}
		}
		client := *o.HTTPClient
		client.Transport = &sparing.Transport{Next: client.Transport, Pause: o.MinRefresh}
		v.issuers[i.URL] = &issuer{Issuer: i, client: &client, maxAge: o.MaxAge}
	}
	return v, nil
}

// maxToken bounds a token in bytes.
const maxToken = 64 << 10

// VerifyToken checks the signature, the issuer, the audience and the times of a
// token. It returns [ErrExpired] or [ErrInvalid], wrapped, for a token that is
// not valid. When the keys cannot be had, the error is an [*altar.Error] with
// INTERNAL_ERROR, so that the caller learns that it may try again.
func (v *Verifier) VerifyToken(ctx context.Context, token string) (*altar.Identity, error) {
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
	if v.opts.Identity != nil {
		return v.opts.Identity(json.RawMessage(claims))
	}
	id := &altar.Identity{}
	if id.Name, _ = claims.Get("sub").Text(); id.Name == "" {
		return nil, invalid("no subject")
	}
	if len(v.issuers) > 1 {
		id.Name = name + " " + id.Name
	}
	id.Tenant, _ = claims.Get("tenant_id").Text()
	if roles := claims.Get("roles"); roles.IsArray() {
		for e := roles.Elements(); e.Next(); {
			if role, ok := e.Value.Text(); ok {
				id.Roles = append(id.Roles, role)
			}
		}
	}
	return id, nil
}

func invalid(why string) error { return fmt.Errorf("%w: %s", ErrInvalid, why) }

// unavailable is the error of keys that cannot be had.
func unavailable(err error) error {
	e := altar.NewError(altar.ErrInternal, "", "the caller cannot be authenticated now")
	e.Cause = fmt.Errorf("jwtauth: %w", err)
	return e
}

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
	maxAge time.Duration

	mu       sync.Mutex
	verifier *oidc.IDTokenVerifier // nil until discovery succeeded; guarded by mu
	made     time.Time             // guarded by mu
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
		return ErrExpired
	case ctx.Err() != nil:
		return unavailable(context.Cause(ctx))
	case strings.Contains(err.Error(), "fetching keys"):
		return unavailable(err)
	}
	return invalid(err.Error())
}

// ready returns the verifier, after discovery if that is needed.
func (i *issuer) ready(ctx context.Context) (*oidc.IDTokenVerifier, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.verifier != nil && time.Since(i.made) < i.maxAge {
		return i.verifier, nil
	}
	keysURL := i.KeysURL
	if keysURL == "" {
		provider, err := oidc.NewProvider(oidc.ClientContext(ctx, i.client), i.URL)
		if err != nil {
			return nil, unavailable(fmt.Errorf("discovery of %s: %w", i.URL, err))
		}
		var document struct {
			KeysURL string `json:"jwks_uri"`
		}
		if err := provider.Claims(&document); err != nil {
			return nil, unavailable(fmt.Errorf("discovery of %s: %w", i.URL, err))
		}
		keysURL = document.KeysURL
	}
	// The key set outlives the request that made it.
	keys := oidc.NewRemoteKeySet(oidc.ClientContext(context.Background(), i.client), keysURL)
	i.verifier = oidc.NewVerifier(i.URL, keys, &oidc.Config{ClientID: i.Audience, SkipClientIDCheck: i.Audience == "",
		SupportedSigningAlgs: i.Algorithms})
	i.made = time.Now()
	return i.verifier, nil
}
