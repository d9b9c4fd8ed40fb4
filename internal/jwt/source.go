// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package jwt

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-jose/go-jose/v4"

	"github.com/fivewire/fivewire/internal/guard"
	"github.com/fivewire/fivewire/internal/httpx"
	"github.com/fivewire/fivewire/internal/netguard"
	"github.com/fivewire/fivewire/internal/strictjson"
)

const (
	maxDocument  = 1 << 20 // bytes of a key set or discovery document
	fetchTimeout = 10 * time.Second
)

// A source is an [Issuer] with its keys. Keys are used for KeyTTL; from half of it they are fetched
// again in the background. A token that no key verifies starts a fetch too, at most one per
// MinRefreshInterval. The age of keys is measured with the monotonic clock.
type source struct {
	issuer        Issuer
	algorithms    []jose.SignatureAlgorithm
	client        *httpx.Client
	allowInsecure bool
	interval      time.Duration // MinRefreshInterval
	ttl           time.Duration // KeyTTL
	logger        *slog.Logger
	now           func() time.Time

	keysURL      string    // from the discovery document; owned by the running fetch
	discoveredAt time.Time // owned by the running fetch

	mu       sync.Mutex
	set      *keySet // latest; nil before the first
	running  *fetch  // or nil
	finished time.Time
	err      error // of the latest fetch
	fetches  int
	failures int
}

// A fetch is a fetch of keys.
type fetch struct {
	isBackground bool
	done         chan struct{} // closed after the other fields are set
	set          *keySet
	err          error
}

// verify verifies the signature of a token.
func (s *source) verify(ctx context.Context, t *token) error {
	set, err := s.current(ctx)
	if err != nil {
		return err
	}
	isValid, isKnown := set.verify(t)
	if isValid {
		return nil
	}
	next, err := s.newer(ctx, set)
	switch {
	case err == nil:
		if isValid, _ = next.verify(t); isValid {
			return nil
		}
	case errors.Is(err, errInterval): // the keys are recent
	case !isKnown || ctx.Err() != nil:
		return err // a new key may have signed the token
	}
	return invalid("no published key verifies the signature")
}

// current returns keys that have not expired.
func (s *source) current(ctx context.Context) (*keySet, error) {
	s.mu.Lock()
	set := s.set
	if set != nil {
		age := s.now().Sub(set.fetched)
		switch {
		case age >= 0 && age < s.ttl/2:
			s.mu.Unlock()
			return set, nil
		case age >= 0 && age < s.ttl:
			_, _ = s.startLocked(true) // run logs its error
			s.mu.Unlock()
			return set, nil
		}
	}
	f, err := s.startLocked(false)
	s.mu.Unlock()
	if err != nil {
		return nil, err
	}
	return f.wait(ctx)
}

// newer returns keys that were fetched after the given ones. The error is [errInterval] if no fetch
// is due.
func (s *source) newer(ctx context.Context, old *keySet) (*keySet, error) {
	s.mu.Lock()
	if s.set != old {
		defer s.mu.Unlock()
		return s.set, nil
	}
	f, err := s.startLocked(false)
	s.mu.Unlock()
	if err != nil {
		return nil, err
	}
	return f.wait(ctx)
}

// errInterval reports that the latest fetch succeeded within MinRefreshInterval.
var errInterval = fmt.Errorf("%w: fetched a moment ago", ErrUnavailable)

// startLocked returns the running fetch or starts one. Before the end of MinRefreshInterval it
// returns the error of the previous fetch. A negative time since then, of a clock that jumped, does
// not count. s.mu must be held.
func (s *source) startLocked(isBackground bool) (*fetch, error) {
	if s.running != nil {
		return s.running, nil
	}
	since := s.now().Sub(s.finished)
	if s.fetches > 0 && since >= 0 && since < s.interval {
		if s.err != nil {
			return nil, s.err
		}
		return nil, errInterval
	}
	s.running = &fetch{isBackground: isBackground, done: make(chan struct{})}
	go s.run(s.running)
	return s.running, nil
}

func (f *fetch) wait(ctx context.Context) (*keySet, error) {
	select {
	case <-f.done:
		return f.set, f.err
	case <-ctx.Done():
		return nil, fmt.Errorf("%w: %w", ErrUnavailable, context.Cause(ctx))
	}
}

// run fetches keys. It ends after fetchTimeout, whatever the callers do.
func (s *source) run(f *fetch) {
	ctx, cancel := context.WithTimeout(context.Background(), fetchTimeout)
	defer cancel()
	started := s.now()
	guard.Run("HTTP client", func() (err error) {
		f.set, err = s.fetch(ctx)
		return err
	}, func(err error) {
		if err != nil {
			f.set, f.err = nil, fmt.Errorf("%w: issuer %s: %w", ErrUnavailable, s.issuer.URL, err)
		} else {
			f.set.fetched = started
		}
		s.finish(ctx, f)
	})
}

// finish publishes the outcome of a fetch.
func (s *source) finish(ctx context.Context, f *fetch) {
	s.mu.Lock()
	old := s.set
	s.running, s.finished, s.err = nil, s.now(), f.err
	s.fetches++
	if f.err != nil {
		s.failures++
	} else {
		s.set = f.set
	}
	s.mu.Unlock()
	defer close(f.done)
	if f.err != nil {
		if f.isBackground {
			s.logger.WarnContext(ctx, "jwt: keys not refreshed", "issuer", s.issuer.URL, "err", f.err)
		}
		return
	}
	total, reasons := f.set.reasons()
	var previous []string
	if old != nil {
		_, previous = old.reasons()
	}
	if total > 0 && !slices.Equal(reasons, previous) {
		s.logger.WarnContext(ctx, "jwt: keys skipped",
			"issuer", s.issuer.URL, "count", total, "reason", strings.Join(reasons, ", "))
	}
}

// fetch fetches the discovery document, if it is needed, and the keys.
func (s *source) fetch(ctx context.Context) (*keySet, error) {
	from := s.issuer.KeysURL
	if from == "" {
		age := s.now().Sub(s.discoveredAt)
		if s.keysURL == "" || age < 0 || age >= s.ttl/2 {
			if err := s.discover(ctx); err != nil {
				return nil, err
			}
		}
		from = s.keysURL
	}
	data, err := s.get(ctx, "fetch keys", from)
	var set *keySet
	if err == nil {
		set, err = parseKeys(data)
	}
	if err != nil {
		s.keysURL = "" // it may have moved
		return nil, err
	}
	return set, nil
}

// discover reads the URL of the keys from the discovery document (OpenID Connect Discovery 1.0,
// section 4).
func (s *source) discover(ctx context.Context) error {
	s.keysURL = ""
	data, err := s.get(ctx, "discovery", strings.TrimSuffix(s.issuer.URL, "/")+"/.well-known/openid-configuration")
	if err != nil {
		return err
	}
	document, err := strictjson.Check(data, strictjson.Options{MaxDepth: maxDepth})
	if err != nil {
		return fmt.Errorf("discovery document: %w", err)
	}
	if name, _ := document.Get("issuer").Text(); name != s.issuer.URL {
		return errors.New("discovery document names another issuer")
	}
	from, _ := document.Get("jwks_uri").Text()
	u, err := s.parseURL(from)
	if err != nil {
		return fmt.Errorf("jwks_uri: %w", err)
	}
	if u.Scheme != "https" && strings.HasPrefix(s.issuer.URL, "https:") {
		return errors.New("jwks_uri is not an https URL")
	}
	s.keysURL, s.discoveredAt = from, s.now()
	return nil
}

// parseURL checks a URL. The operator or the issuer names the hosts, so private addresses are
// allowed.
func (s *source) parseURL(raw string) (*url.URL, error) {
	hosts := netguard.Guard{AllowLoopback: true, AllowPrivate: true}
	u, err := hosts.URL(raw, s.allowInsecure)
	if err == nil && u.Scheme != "https" && u.Scheme != "http" {
		err = errors.New("not an http URL")
	}
	return u, err
}

// get fetches a document of at most 1 MiB.
func (s *source) get(ctx context.Context, op, from string) ([]byte, error) {
	u, err := s.parseURL(from)
	if err != nil {
		return nil, err
	}
	data, _, err := s.client.Fetch(ctx, &httpx.Request{Op: op, Method: http.MethodGet, URL: u,
		Header: http.Header{"Accept": {"application/json, application/jwk-set+json"}}})
	return data, err
}

func (s *source) stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := Stats{Fetches: s.fetches, Failures: s.failures}
	if s.set != nil {
		n.Keys = len(s.set.keys)
		n.SkippedKeys, _ = s.set.reasons()
	}
	return n
}
