// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package jwt verifies access tokens that are signed JWTs (RFC 7519, RFC 9068) with the published
// keys of their issuers.
//
// A token is three parts of base64url in compact form. Its header selects a published key by kid;
// keys and URLs of keys in the header (jwk, jku, x5c, x5u) are not used. Symmetric algorithms and "none" are always
// refused. Claims have exact names and one reading: duplicate names and names that differ from a
// registered claim in case only are refused.
package jwt

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net/http"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/go-jose/go-jose/v4"

	"github.com/fivewire/fivewire/internal/guard"
	"github.com/fivewire/fivewire/internal/httpx"
	"github.com/fivewire/fivewire/internal/strictjson"
)

// AnyAudience is the [Issuer.Audience] that accepts every token of the issuer, tokens for other
// services included.
const AnyAudience = "*"

// Errors of [Verifier.Verify]. Any other error is one of Options.Principal, or a panic of a hook.
var (
	ErrInvalid     = errors.New("jwt: invalid token")
	ErrExpired     = fmt.Errorf("%w: expired", ErrInvalid)
	ErrUnavailable = errors.New("jwt: keys unavailable") // the token may be valid
)

// An Issuer is an authorization server whose tokens are accepted.
type Issuer struct {
	URL        string   // equal to the iss claim; required, without "#"
	Audience   string   // an element of the aud claim, or AnyAudience; required
	KeysURL    string   // of the key set; empty means the one of the discovery document
	Algorithms []string // of signatures; empty means all supported ones
}

// Options adjust a [Verifier].
type Options[P any] struct {
	// HTTPClient fetches discovery documents and key sets. Redirects are not followed. Nil means a
	// private client.
	HTTPClient *http.Client

	// AllowInsecure permits http to hosts other than this host.
	AllowInsecure bool

	// MinRefreshInterval is the minimum time between two fetches for one issuer. Zero means 30 s. A
	// negative value removes the minimum.
	MinRefreshInterval time.Duration

	// KeyTTL is the lifetime of fetched keys. After half of it they are fetched again in the
	// background. Zero means 1 h. With a negative value keys do not expire.
	KeyTTL time.Duration

	// Confirm is called with the cnf claim (RFC 7800) of a valid token that is bound to a key. An
	// error refuses the token: the caller has not proved possession of the key. Nil refuses all
	// tokens that have the claim.
	Confirm func(ctx context.Context, cnf json.RawMessage) error

	// Principal returns the principal for the claims of a valid token, a JSON object. Nil means the
	// one of the profile.
	Principal func(claims json.RawMessage) (*P, error)

	// Logger receives skipped keys and failed refreshes. Nil means slog.Default().
	Logger *slog.Logger
}

func (o Options[P]) withDefaults() Options[P] {
	o.MinRefreshInterval = cmp.Or(o.MinRefreshInterval, 30*time.Second)
	o.KeyTTL = cmp.Or(o.KeyTTL, time.Hour)
	if o.KeyTTL < 0 {
		o.KeyTTL = math.MaxInt64
	}
	// A longer interval would refuse all tokens from the end of KeyTTL to its own end.
	o.MinRefreshInterval = min(max(o.MinRefreshInterval, 0), o.KeyTTL/2)
	o.Logger = cmp.Or(o.Logger, slog.Default())
	return o
}

// A Profile adapts a [Verifier] to a protocol. Its functions are required.
type Profile[P any] struct {
	// Principal returns the principal of a token with a sub claim. An error makes the token invalid.
	Principal func(t *Token) (*P, error)

	// Expires returns the field for the end of the authentication.
	Expires func(p *P) *time.Time

	// Invalid and Expired, if set, are wrapped by the errors of such tokens.
	Invalid, Expired error
}

// A Verifier verifies tokens and returns principals of type P. It is safe for concurrent use.
type Verifier[P any] struct {
	opts    Options[P]
	profile Profile[P]
	issuers map[string]*source
}

// An issuer is [Issuer], or a type that another package declares with the same fields.
type issuer interface {
	~struct {
		URL        string
		Audience   string
		KeysURL    string
		Algorithms []string
	}
}

// algorithms are the supported signatures: only a private key can make them.
const algorithms = "RS256 RS384 RS512 PS256 PS384 PS512 ES256 ES384 ES512 EdDSA"

// New returns a Verifier for tokens of the issuers. It does no I/O: the first token of an issuer
// fetches its keys.
func New[P any, I issuer](issuers []I, opts *Options[P], profile Profile[P]) (*Verifier[P], error) {
	v := &Verifier[P]{profile: profile, issuers: map[string]*source{}}
	if opts != nil {
		v.opts = *opts
	}
	v.opts = v.opts.withDefaults()
	if len(issuers) == 0 {
		return nil, errors.New("jwt: no issuer")
	}
	client := httpx.NewClient(&httpx.ClientOptions{
		HTTPClient: v.opts.HTTPClient, AllowInsecure: v.opts.AllowInsecure, MaxResponse: maxDocument,
	})
	for _, i := range issuers {
		s := &source{
			issuer: Issuer(i), client: client, now: time.Now, logger: v.opts.Logger,
			allowInsecure: v.opts.AllowInsecure, interval: v.opts.MinRefreshInterval, ttl: v.opts.KeyTTL,
		}
		err := s.init()
		if err == nil && v.issuers[s.issuer.URL] != nil {
			err = errors.New("duplicate")
		}
		if err != nil {
			return nil, fmt.Errorf("jwt: issuer %q: %w", s.issuer.URL, err)
		}
		v.issuers[s.issuer.URL] = s
	}
	return v, nil
}

// init checks the issuer. It refuses "#", which separates issuer and subject in the id of a
// principal.
func (s *source) init() error {
	i := &s.issuer
	unfit := func(r rune) bool {
		return r == '#' || r > unicode.MaxASCII || unicode.IsSpace(r) || unicode.IsControl(r)
	}
	switch {
	case i.URL == "":
		return errors.New("empty URL")
	case strings.ContainsFunc(i.URL, unfit):
		return errors.New("not a URL without a fragment")
	case strings.TrimSpace(i.Audience) == "":
		return errors.New("empty audience")
	}
	if _, err := s.parseURL(cmp.Or(i.KeysURL, i.URL)); err != nil {
		return err
	}
	names := i.Algorithms
	if len(names) == 0 {
		names = strings.Fields(algorithms)
	}
	for _, name := range names {
		if !slices.Contains(strings.Fields(algorithms), name) {
			return fmt.Errorf("algorithm %q is not supported", name)
		}
		s.algorithms = append(s.algorithms, jose.SignatureAlgorithm(name))
	}
	return nil
}

// A Token is a verified token.
type Token struct {
	// Principal is the issuer, "#" and the sub claim.
	Principal string

	// Claims are all claims, a JSON object.
	Claims strictjson.Value

	// Expires is the time of the exp claim. For a token that is accepted after this time, because
	// clocks differ, it is the end of the tolerance.
	Expires time.Time
}

// Text returns a claim that is absent, null or a string; anything else is an error.
func (t *Token) Text(name string) (string, error) {
	s, ok := text(t.Claims, name)
	if !ok {
		return "", errors.New(name + " is not a string")
	}
	return s, nil
}

// Strings returns the strings of a claim that is an array.
func (t *Token) Strings(name string) []string {
	var list []string
	for e := t.Claims.Get(name).Elements(); e.Next(); {
		if s, ok := e.Value.Text(); ok {
			list = append(list, s)
		}
	}
	return list
}

// Verify verifies a token: first its form and its claims, with a tolerance of 60 s for exp, nbf and
// iat, then the signature, then its binding to a key. The context ends the wait for a fetch, not
// the fetch. The principal has the Expires of the token unless Options.Principal set another.
func (v *Verifier[P]) Verify(ctx context.Context, raw string) (*P, error) {
	t, err := v.verify(ctx, raw)
	var p *P
	if err == nil {
		p, err = v.principal(t)
	}
	switch {
	case errors.Is(err, ErrExpired) && v.profile.Expired != nil:
		return nil, fmt.Errorf("%w: %w", v.profile.Expired, err)
	case errors.Is(err, ErrInvalid) && v.profile.Invalid != nil:
		return nil, fmt.Errorf("%w: %w", v.profile.Invalid, err)
	case err != nil:
		return nil, err
	}
	return p, nil
}

func (v *Verifier[P]) verify(ctx context.Context, raw string) (*token, error) {
	t, err := parse(raw)
	if err != nil {
		return nil, err
	}
	s := v.issuers[t.issuer]
	if s == nil {
		return nil, invalid("unknown issuer")
	}
	if err := t.check(s.issuer.Audience, s.now()); err != nil {
		return nil, err
	}
	if t.jws, err = jose.ParseSignedCompact(raw, s.algorithms); err != nil {
		return nil, invalid("unsupported header")
	}
	if err := s.verify(ctx, t); err != nil {
		return nil, err
	}
	return t, v.confirm(ctx, t.claims.Get("cnf"))
}

// confirm checks the binding of a token to a key.
func (v *Verifier[P]) confirm(ctx context.Context, cnf strictjson.Value) error {
	switch {
	case cnf.Absent():
		return nil
	case v.opts.Confirm == nil:
		return invalid("bound to a key, and possession is not checked")
	}
	var refusal error
	err := guard.Call("Confirm", func() error {
		refusal = v.opts.Confirm(ctx, json.RawMessage(slices.Clone(cnf)))
		return nil
	})
	if refusal != nil {
		return fmt.Errorf("%w: %w", ErrInvalid, refusal)
	}
	return err
}

// principal returns the principal of a verified token.
func (v *Verifier[P]) principal(t *token) (*P, error) {
	if v.opts.Principal == nil {
		if t.subject == "" {
			return nil, invalid("no sub")
		}
		p, err := v.profile.Principal(&Token{Principal: t.issuer + "#" + t.subject, Claims: t.claims, Expires: t.expires})
		if err != nil {
			return nil, fmt.Errorf("%w: %w", ErrInvalid, err)
		}
		return p, nil
	}
	var p *P
	err := guard.Call("Principal", func() (err error) {
		p, err = v.opts.Principal(json.RawMessage(t.claims))
		return err
	})
	if err != nil || p == nil || !v.profile.Expires(p).IsZero() {
		return p, err
	}
	expiring := *p // which may be shared
	*v.profile.Expires(&expiring) = t.expires
	return &expiring, nil
}

// Stats are counters of a [Verifier] over all issuers.
type Stats struct {
	Keys        int // usable keys
	SkippedKeys int // keys that the current sets have besides
	Fetches     int // finished fetches
	Failures    int // failed fetches
}

// Stats returns the current counters.
func (v *Verifier[P]) Stats() Stats {
	var sum Stats
	for _, s := range v.issuers {
		n := s.stats()
		sum.Keys += n.Keys
		sum.SkippedKeys += n.SkippedKeys
		sum.Fetches += n.Fetches
		sum.Failures += n.Failures
	}
	return sum
}
