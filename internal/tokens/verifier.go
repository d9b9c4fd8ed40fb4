// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package tokens

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/fivewire/fivewire/internal/strictjson"
)

// An Issuer is an authorization server whose tokens are accepted.
type Issuer struct {
	URL        string   // exactly as the iss claim has it
	Audience   string   // must be among the aud claim; empty accepts any
	KeysURL    string   // where the key set is; empty leaves it to discovery
	Algorithms []string // of signatures; none means all that are known here
}

// Options adjusts a [Verifier].
type Options struct {
	HTTPClient *http.Client  // fetches documents; nil means one that is used for nothing else
	MinRefresh time.Duration // between two requests for one document; zero means 30 s
	MaxAge     time.Duration // how long keys are believed; zero means an hour
}

// A Library checks signed JWTs. Its methods may be called from several
// goroutines.
type Library interface {
	// Keys returns the key set (JWKS) at a URL. It does no I/O: the client fetches
	// them when they are needed.
	Keys(client *http.Client, url string) KeySet

	// Check checks the algorithm, the signature, the issuer, the audience and the
	// times of a token in compact form. For one that is expired it returns
	// [Expired].
	Check(ctx context.Context, i Issuer, keys KeySet, token string) error
}

// A KeySet returns what a token says, if one of the keys has signed it. An error
// that wraps another one tells that the keys could not be had; one that wraps
// none, that they have not signed it.
type KeySet interface {
	VerifySignature(ctx context.Context, token string) ([]byte, error)
}

// Invalid is the error of a token that proves nothing, and says why. Any other
// error of [Verifier.Verify] means that nobody can say what the token is worth.
type Invalid string

// Error returns why.
func (i Invalid) Error() string { return string(i) }

// Expired is the error of a token whose time is over.
const Expired Invalid = "it is expired"

// A Verifier checks tokens. It may be used by several goroutines.
type Verifier struct {
	issuers map[string]*source
}

// algorithms are the signatures that keys of an issuer can make and nobody else:
// neither symmetric ones nor "none".
var algorithms = [...]string{"RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"}

// timeout bounds a request where the client does not: without a bound one that
// hangs would hold up all tokens for ever.
const timeout = 10 * time.Second

// New returns a Verifier for tokens of the issuers. It does no I/O: keys are
// fetched when the first token comes.
func New(issuers []Issuer, o Options, lib Library) (*Verifier, error) {
	if o.HTTPClient == nil {
		o.HTTPClient = &http.Client{}
	}
	if o.MinRefresh <= 0 {
		o.MinRefresh = 30 * time.Second
	}
	if o.MaxAge <= 0 {
		o.MaxAge = time.Hour
	}
	client := *o.HTTPClient
	client.CheckRedirect = secured(client.CheckRedirect)
	if client.Timeout <= 0 {
		client.Timeout = timeout
	}
	o.HTTPClient = &client
	if len(issuers) == 0 {
		return nil, errors.New("a verifier needs an issuer")
	}
	v := &Verifier{issuers: map[string]*source{}}
	for _, i := range issuers {
		if i.URL == "" || v.issuers[i.URL] != nil {
			return nil, fmt.Errorf("issuer %q is empty or given twice", i.URL)
		}
		if strings.Contains(i.URL, " ") { // which ends it in a subject
			return nil, fmt.Errorf("issuer %q is no URL", i.URL)
		}
		if i.Algorithms = slices.Clone(i.Algorithms); len(i.Algorithms) == 0 {
			i.Algorithms = slices.Clone(algorithms[:])
		}
		for _, a := range i.Algorithms {
			if !slices.Contains(algorithms[:], a) {
				return nil, fmt.Errorf("algorithm %q is not accepted", a)
			}
		}
		v.issuers[i.URL] = &source{issuer: i, opts: o, lib: lib}
	}
	return v, nil
}

// A Token is one that proved to be valid.
type Token struct {
	Subject string           // sub, or iss and sub where there are several issuers; empty if it names nobody
	Claims  strictjson.Value // all that it says, an object
}

// Verify checks a token, and returns what its issuer signed. The error is an
// [Invalid] for one that is not valid, and another when the keys cannot be had.
func (v *Verifier) Verify(ctx context.Context, token string) (*Token, error) {
	claims, err := read(token)
	if err != nil {
		return nil, err
	}
	name, _ := claims.Get("iss").Text()
	s := v.issuers[name]
	if s == nil {
		return nil, Invalid("unknown issuer")
	}
	signed, err := s.verify(ctx, token)
	if err != nil {
		return nil, err
	}
	if !bytes.Equal(bytes.TrimSpace(signed), claims) {
		return nil, Invalid("other claims than the signed ones")
	}
	t := &Token{Claims: claims}
	t.Subject, _ = claims.Get("sub").Text()
	if t.Subject != "" && len(v.issuers) > 1 {
		t.Subject = name + " " + t.Subject
	}
	return t, nil
}

// secured keeps requests that began with https from going on without it, and
// leaves everything else about redirects to next.
func secured(next func(*http.Request, []*http.Request) error) func(*http.Request, []*http.Request) error {
	return func(req *http.Request, via []*http.Request) error {
		if via[0].URL.Scheme == "https" && req.URL.Scheme != "https" {
			return fmt.Errorf("redirect from https to %s", req.URL.Scheme)
		}
		if next != nil {
			return next(req, via)
		}
		if len(via) >= 10 { // as net/http does
			return errors.New("too many redirects")
		}
		return nil
	}
}

// brief is an error whose text is short: those of libraries quote whole answers
// and tokens, which would then be written to a log for each request.
type brief struct{ error }

func (b brief) Error() string {
	text := b.error.Error()
	if len(text) > 300 {
		text = strings.ToValidUTF8(text[:300], "") + "..."
	}
	return text
}

func (b brief) Unwrap() error { return b.error }
