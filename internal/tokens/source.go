// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package tokens

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/fivewire/fivewire/internal/sparing"
	"github.com/fivewire/fivewire/internal/strictjson"
)

// A source is an [Issuer] with its keys. No key is believed for longer than
// MaxAge after it was fetched, so that withdrawn ones are forgotten. At half of
// that time others are fetched, in the background, so that an issuer which is
// down for a while does no harm.
type source struct {
	issuer Issuer
	opts   Options
	lib    Library

	mu       sync.Mutex
	keys     *keys     // nil before the first token; guarded by mu
	renewing bool      // others are being fetched; guarded by mu
	tried    time.Time // when that ended last; guarded by mu
}

// verify returns what a valid token says.
func (s *source) verify(ctx context.Context, token string) ([]byte, error) {
	return s.current().verify(ctx, token)
}

// current returns the keys to be used now.
func (s *source) current() *keys {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	switch {
	case s.keys == nil || now.Sub(s.keys.began) >= s.opts.MaxAge:
		s.keys = s.begin(now)
	case now.Sub(s.keys.began) >= s.opts.MaxAge/2 && !s.renewing && now.Sub(s.tried) >= s.opts.MinRefresh:
		s.renewing = true
		go s.renew(s.begin(now))
	}
	return s.keys
}

// begin returns keys that are fetched from now on.
func (s *source) begin(now time.Time) *keys {
	client := *s.opts.HTTPClient
	client.Transport = &sparing.Transport{Next: client.Transport, Pause: s.opts.MinRefresh}
	return &keys{issuer: s.issuer, lib: s.lib, client: &client, began: now}
}

// renew puts other keys in the place of the present ones, once they are there. It
// ends with the timeout of the client at the latest.
func (s *source) renew(next *keys) {
	there := next.fetch()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.renewing, s.tried = false, time.Now()
	if there && next.began.After(s.keys.began) {
		s.keys = next
	}
}

// keys are those that an issuer has published since a moment.
type keys struct {
	issuer Issuer
	lib    Library
	client *http.Client
	began  time.Time

	mu      sync.Mutex
	set     KeySet     // nil until it is known where it is; guarded by mu
	finding *discovery // under way, or nil; guarded by mu
}

func (k *keys) verify(ctx context.Context, token string) ([]byte, error) {
	set, err := k.ready(ctx)
	if err != nil {
		return nil, err
	}
	seen := &witness{KeySet: set}
	err = k.lib.Check(ctx, k.issuer, seen, token)
	switch {
	case seen.fault != nil:
		return nil, fmt.Errorf("keys of %s: %w", k.issuer.URL, brief{seen.fault})
	case errors.Is(err, Expired):
		return nil, Expired
	case err != nil:
		return nil, Invalid(brief{err}.Error())
	}
	return seen.payload, nil
}

// A witness remembers what a KeySet said to a library.
type witness struct {
	KeySet
	payload []byte
	fault   error // the keys could not be had
}

// VerifySignature asks the KeySet.
func (w *witness) VerifySignature(ctx context.Context, token string) (payload []byte, err error) {
	payload, err = w.KeySet.VerifySignature(ctx, token)
	switch {
	case err == nil:
		w.payload = payload
	case errors.Unwrap(err) != nil:
		w.fault = err
	}
	return payload, err
}

// probe is a token that no key has signed, since its key has a name that none has:
// a key set looks for it at the issuer.
const probe = "eyJhbGciOiJFUzI1NiIsImtpZCI6Ij8ifQ.e30.AA" // {"alg":"ES256","kid":"?"}.{}

// fetch fetches the keys now, and reports whether it got them.
func (k *keys) fetch() bool {
	set, err := k.ready(context.Background())
	if err != nil {
		return false
	}
	seen := &witness{KeySet: set}
	_, err = seen.VerifySignature(context.Background(), probe)
	return err != nil && seen.fault == nil
}

// A discovery is an attempt to learn where the keys are.
type discovery struct {
	done chan struct{} // closed when the others are set
	set  KeySet
	err  error
}

// ready returns the key set, after discovery if that is needed. Those who ask at
// the same time wait for one attempt, which goes on when they go away.
func (k *keys) ready(ctx context.Context) (KeySet, error) {
	k.mu.Lock()
	if k.set == nil && k.issuer.KeysURL != "" {
		k.set = k.lib.Keys(k.client, k.issuer.KeysURL)
	}
	if k.set != nil {
		defer k.mu.Unlock()
		return k.set, nil
	}
	d := k.finding
	if d == nil {
		d = &discovery{done: make(chan struct{})}
		k.finding = d
		go k.find(d)
	}
	k.mu.Unlock()
	select {
	case <-d.done:
		return d.set, d.err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// find makes a discovery. It ends with the timeout of the client at the latest.
func (k *keys) find(d *discovery) {
	where, err := discover(k.client, k.issuer.URL)
	if err != nil {
		d.err = fmt.Errorf("discovery of %s: %w", k.issuer.URL, brief{err})
	} else {
		d.set = k.lib.Keys(k.client, where)
	}
	k.mu.Lock()
	k.set, k.finding = d.set, nil
	k.mu.Unlock()
	close(d.done)
}

// discover returns where the keys of an issuer are, by its discovery document
// (OpenID Connect Discovery 1.0, section 4).
func discover(client *http.Client, issuer string) (string, error) {
	res, err := client.Get(strings.TrimSuffix(issuer, "/") + "/.well-known/openid-configuration")
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body) // of bounded size
	if err != nil {
		return "", err
	}
	if res.StatusCode != http.StatusOK {
		return "", fmt.Errorf("status %d", res.StatusCode)
	}
	document, err := strictjson.Check(text, strictjson.Options{MaxDepth: 32})
	if err != nil {
		return "", err
	}
	if name, _ := document.Get("issuer").Text(); name != issuer {
		return "", fmt.Errorf("it is of issuer %q", name) // one that may not speak for this one
	}
	where, _ := document.Get("jwks_uri").Text()
	switch u, err := url.Parse(where); {
	case err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http":
		return "", fmt.Errorf("no place for keys: %q", where)
	case u.Scheme != "https" && strings.HasPrefix(issuer, "https:"):
		return "", fmt.Errorf("the keys are not at https: %q", where)
	}
	return where, nil
}
