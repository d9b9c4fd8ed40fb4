// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package air

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fivewire/fivewire/air"
	"github.com/fivewire/fivewire/internal/race"
	"github.com/fivewire/fivewire/internal/sim"
	"github.com/fivewire/fivewire/store"
)

func TestBrokenVariantsAreFound(t *testing.T) {
	variants := map[string]struct {
		invariant string
		defect    defect
	}{
		"a push is lost": {"M1", defect{client: replaced(http.MethodPost, "/inbox/", 202, "")}},
		"an ack is lost": {"M4", defect{client: replaced(http.MethodPost, "/ack", 200, "{}")}},
		"the ledger is lost": {"M2", defect{ // and acks, so that most mail comes again after a restart
			restarts: true,
			client:   replaced(http.MethodPost, "/ack", 200, "{}"),
			store:    without(func(key string) bool { return strings.Contains(key, "/once/") }),
		}},
		"a key is exchanged":     {"M3", defect{client: exchanged}},
		"a thread is not stored": {"M5", defect{store: without(isOddThread)}},
		"an Offer is lost":       {"M6", defect{client: withoutOffers}},
		"an Offer is overtaken":  {"M6", defect{handler: overtaken}},
		"an Offer is withheld":   {"M6", defect{client: withheld}},
		"a resource is over":     {"M9", defect{extraUse: 1 << 50}},
		"a Counter is ignored":   {"M10", defect{isSilent: true}},
	}
	for name, v := range variants {
		t.Run(name, func(t *testing.T) { sim.Broken(t, v.invariant, profile(v.defect)) })
	}
}

func TestMutantsAreFound(t *testing.T) {
	if race.Enabled || testing.Short() {
		t.Skip("builds the package with all mutants")
	}
	sim.Mutants(t, "../../..")
}

// A tripper is a function as a transport.
type tripper func(r *http.Request) (*http.Response, error)

func (f tripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// replaced answers the requests with a method and a part of their path instead of the server.
func replaced(method, path string, status int, body string) func(rt http.RoundTripper) http.RoundTripper {
	return func(rt http.RoundTripper) http.RoundTripper {
		return tripper(func(r *http.Request) (*http.Response, error) {
			isAck := strings.HasSuffix(r.URL.Path, "/ack")
			if r.Method != method || !strings.Contains(r.URL.Path, path) || isAck != (path == "/ack") {
				return rt.RoundTrip(r)
			}
			return &http.Response{StatusCode: status, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(body)), Request: r}, nil
		})
	}
}

// withoutOffers answers pushed Offers instead of the relay.
func withoutOffers(rt http.RoundTripper) http.RoundTripper {
	return tripper(func(r *http.Request) (*http.Response, error) {
		if r.Method != http.MethodPost || r.Body == nil {
			return rt.RoundTrip(r)
		}
		data, err := io.ReadAll(r.Body)
		_ = r.Body.Close()
		if err != nil {
			return nil, err
		}
		if bytes.Contains(data, []byte(`"description":"`+unanswered+`"`)) {
			return &http.Response{StatusCode: 202, Header: http.Header{}, Body: http.NoBody, Request: r}, nil
		}
		r = r.Clone(r.Context())
		r.Body = io.NopCloser(bytes.NewReader(data))
		return rt.RoundTrip(r)
	})
}

// withheld does not pull Offers for as long as the moves behind them wait.
func withheld(rt http.RoundTripper) http.RoundTripper {
	start := time.Now()
	return paged(rt, func(envelopes []json.RawMessage) []json.RawMessage {
		return slices.DeleteFunc(envelopes, func(e json.RawMessage) bool {
			return time.Since(start) < 20*time.Minute && bytes.Contains(e, []byte(`"description":"`+unanswered+`"`))
		})
	})
}

// overtaken handles Offers in the background.
func overtaken(next air.Handler) air.Handler {
	return air.HandlerFunc(func(ctx context.Context, d *air.Delivery) error {
		if _, isOffer := d.Body.(*air.Offer); !isOffer {
			return next.ServeAIR(ctx, d)
		}
		go func() {
			defer func() { _ = recover() }() // a panic of the handler
			time.Sleep(20 * time.Second)
			_ = next.ServeAIR(context.WithoutCancel(ctx), d)
		}()
		return nil
	})
}

// exchanged changes the text of pulled envelopes.
func exchanged(rt http.RoundTripper) http.RoundTripper {
	return tripper(func(r *http.Request) (*http.Response, error) {
		res, err := rt.RoundTrip(r)
		if err != nil || !strings.HasSuffix(r.URL.Path, "/pull") {
			return res, err
		}
		data, err := io.ReadAll(res.Body)
		_ = res.Body.Close()
		data = bytes.ReplaceAll(data, []byte(`"description":"less"`), []byte(`"description":"more"`))
		res.Body = io.NopCloser(bytes.NewReader(data))
		return res, err
	})
}

// A forgetful store does not make the changes of some keys.
type forgetful struct {
	store.Store
	isLost func(key string) bool
}

func without(isLost func(key string) bool) func(s store.Store) store.Store {
	return func(s store.Store) store.Store { return &forgetful{s, isLost} }
}

// isOddThread selects half of the threads, of which each party has its own.
func isOddThread(key string) bool {
	return strings.HasPrefix(key, "air/thread/") && key[len(key)-1]%2 == 1
}

func (f *forgetful) Update(ctx context.Context, key string, value []byte, rev store.Revision, ttl time.Duration) (store.Revision, error) {
	if f.isLost(key) {
		return rev, nil
	}
	return f.Store.Update(ctx, key, value, rev, ttl)
}

func (f *forgetful) Create(ctx context.Context, key string, value []byte, ttl time.Duration) (store.Revision, error) {
	if f.isLost(key) {
		return 1, nil
	}
	return f.Store.Create(ctx, key, value, ttl)
}
