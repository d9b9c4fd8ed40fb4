// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package air_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/air"
	"github.com/fivewire/fivewire/air/relay"
	"github.com/fivewire/fivewire/store"
)

// A relayCaller sends requests from one address.
type relayCaller struct {
	h    http.Handler
	addr string
}

func (c relayCaller) do(method, path, body string) *httptest.ResponseRecorder {
	req := httptest.NewRequest(method, path, strings.NewReader(body))
	req.RemoteAddr = c.addr + ":1"
	rec := httptest.NewRecorder()
	c.h.ServeHTTP(rec, req)
	return rec
}

// push sends a forged envelope of about 1 KB to the mailbox with a number.
func (c relayCaller) push(mailbox int) *httptest.ResponseRecorder {
	to := fmt.Sprintf("did:wba:agentidentityregistry.org:agents:AIR-TEST-%04d-%04d", mailbox/10_000, mailbox%10_000)
	return c.do("POST", "/inbox/"+to, fmt.Sprintf(`{"body":{"type":"note","text":"%s"},"from":"did:wba:x.example:agents:AIR-TEST-0000-0001",`+
		`"id":"%s","nonce":"n234567890123456","signature":"z","thread_id":"%s","timestamp":"2026-05-28T09:00:00.000Z","to":"%s"}`,
		strings.Repeat("x", 700), air.NewID(), air.NewID(), to))
}

// fill pushes to one mailbox after the other, or to the first one, until a push is refused, and
// returns the number of stored envelopes.
func (c relayCaller) fill(t *testing.T, first, next int) (n int) {
	t.Helper()
	for ; n < 10_000; n++ {
		rec := c.push(first + n*next)
		if rec.Code == 202 {
			continue
		}
		require.Equal(t, 429, rec.Code, rec.Body)
		require.Equal(t, "60", rec.Header().Get("Retry-After"))
		require.Contains(t, rec.Body.String(), `"error":"Rate Limited"`)
		return n
	}
	t.Fatal("no push is refused")
	return n
}

// empty acknowledges the mail of a mailbox.
func (c relayCaller) empty(t *testing.T, mailbox int) {
	t.Helper()
	path := fmt.Sprintf("/inbox/AIR-TEST-%04d-%04d", mailbox/10_000, mailbox%10_000)
	for {
		page := pull(t, c.h, path+"/pull")
		if len(page.Envelopes) == 0 {
			return
		}
		var ids []string
		for _, e := range page.Envelopes {
			ids = append(ids, idOf(t, e))
		}
		require.Equal(t, 200, c.do("POST", path+"/ack", ackBody(ids...)).Code)
	}
}

// One address that fills a bound leaves room for another one, and acknowledged mail no longer counts
// (AIR-D86).
func TestRelayBoundsPushedMail(t *testing.T) {
	tests := []struct {
		name            string
		limits          relay.Limits
		next            int // mailbox
		want            int // envelopes
		resource, scope string
	}{
		{"bytes of a principal", relay.Limits{MaxMemoryPerPrincipal: 20_000, MaxStoragePerPrincipal: 20_000}, 1, 18, "bytes", "principal"},
		{"bytes of a mailbox", relay.Limits{MaxMemoryPerSession: 20_000, MaxStoragePerSession: 20_000}, 0, 18, "bytes", "session"},
		{"bytes in all", relay.Limits{MaxMemory: 80_000, MaxStorage: 80_000}, 1, 18, "bytes", "principal"},
		{"mailboxes of a principal", relay.Limits{MaxItemsPerPrincipal: 20}, 1, 20, "items", "principal"},
		{"mailboxes in all", relay.Limits{MaxItems: 80}, 1, 20, "items", "principal"},
		{"envelopes of a mailbox", relay.Limits{QueueLimitPerSession: 20}, 0, 20, "waiting", "session"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			eachStore(t, func(t *testing.T, st func() store.Store) {
				tt.limits.RateLimit, tt.limits.AddressRateLimit = -1, -1
				opts := &relay.ServerOptions{Limits: tt.limits, Persistence: relay.Persistence{Store: st()}}
				r := newRelay(t, opts)
				resource := tt.resource
				if resource == "bytes" {
					resource = map[bool]string{true: "memory", false: "storage"}[opts.Persistence.Store == nil]
				}
				hostile, honest := relayCaller{r, "192.0.2.1"}, relayCaller{r, "192.0.2.2"}
				require.Equal(t, tt.want, hostile.fill(t, 0, tt.next))
				require.NotZero(t, usageOf(t, r, resource, tt.scope))
				require.Equal(t, 202, honest.push(5000).Code)
				honest.empty(t, 5000)
				for i := range tt.want {
					honest.empty(t, i*tt.next)
				}
				for _, u := range r.Usage() {
					require.Zero(t, u.Used, "%+v after all mail was acknowledged", u)
				}
				require.Equal(t, tt.want, hostile.fill(t, 0, tt.next))
			})
		})
	}
}

// Mail without a reader leaves the budget when it expires.
func TestRelayReleasesExpiredMail(t *testing.T) {
	eachStore(t, func(t *testing.T, st func() store.Store) {
		synctest.Test(t, func(t *testing.T) {
			r := newRelay(t, &relay.ServerOptions{Persistence: relay.Persistence{Store: st()},
				Limits: relay.Limits{MaxItemsPerPrincipal: 5, RateLimit: -1, AddressRateLimit: -1}})
			caller := relayCaller{r, "192.0.2.1"}
			require.Equal(t, 5, caller.fill(t, 0, 1))
			time.Sleep(7*24*time.Hour + time.Second)
			require.Equal(t, 5, caller.fill(t, 100, 1))
			require.EqualValues(t, 5, usageOf(t, r, "items", "all"))
		})
	})
}

// Mail of an earlier process counts once its mailbox is used.
func TestRelayCountsStoredMail(t *testing.T) {
	st := store.NewMemory()
	opts := &relay.ServerOptions{Persistence: relay.Persistence{Store: st}}
	caller := relayCaller{newRelay(t, opts), "192.0.2.1"}
	for range 3 {
		require.Equal(t, 202, caller.push(0).Code)
	}
	want := usageOf(t, caller.h.(*relay.Server), "storage", "all")
	r := newRelay(t, opts)
	require.Zero(t, usageOf(t, r, "storage", "all"))
	caller.h = r
	require.Equal(t, 202, caller.push(0).Code)
	require.Equal(t, want/3*4, usageOf(t, r, "storage", "all"))
	require.EqualValues(t, 4, usageOf(t, r, "waiting", "session"))
	require.EqualValues(t, 1, usageOf(t, r, "items", "all"))
}

// Requests that wait for the directory, or for the secret of a mailbox, are bounded for each address.
func TestRelayBoundsConcurrentRequests(t *testing.T) {
	for _, kind := range []string{"work", "unauthenticated"} {
		synctest.Test(t, func(t *testing.T) {
			release := make(chan struct{})
			opts := &relay.ServerOptions{Limits: relay.Limits{MaxConcurrent: 40, MaxConcurrentPerPrincipal: 4, MaxUnauthenticatedPerAddress: 4}}
			opts.Auth.InboxSecret = func(string) string { return "s" }
			method := "POST"
			if kind == "work" {
				opts.Directory = relay.DirectoryFunc(func(context.Context, string) (string, error) {
					<-release
					return "", air.ErrNotFound
				})
			} else {
				method = "GET"
				opts.Auth.InboxSecret = func(string) string { <-release; return "s" }
			}
			r := newRelay(t, opts)
			path := map[string]string{"GET": "/pull/" + airIDOf(1), "POST": "/inbox/" + airIDOf(1)}[method]
			var mu sync.Mutex
			codes := make(map[string]map[int]int)
			for _, addr := range []string{"192.0.2.1", "192.0.2.2"} {
				mu.Lock()
				codes[addr] = make(map[int]int)
				mu.Unlock()
				for range 6 {
					go func() {
						code := relayCaller{r, addr}.do(method, path, "").Code
						mu.Lock()
						defer mu.Unlock()
						codes[addr][code]++
					}()
				}
			}
			synctest.Wait()
			want := map[string]map[int]int{"192.0.2.1": {429: 2}, "192.0.2.2": {429: 2}}
			require.Equal(t, want, codes)
			require.EqualValues(t, 8, usageOf(t, r, kind, "all"))
			close(release)
			synctest.Wait()
			require.Zero(t, usageOf(t, r, kind, "all"))
		})
	}
}

// A page ends before MaxOutput, but has an envelope.
func TestRelayBoundsOutput(t *testing.T) {
	for max, want := range map[int]int{1: 1, 2500: 2, 0: 5} {
		r := newRelay(t, &relay.ServerOptions{Limits: relay.Limits{MaxOutput: max}})
		caller := relayCaller{r, "192.0.2.1"}
		for range 5 {
			require.Equal(t, 202, caller.push(0).Code)
		}
		page := pull(t, r, "/inbox/AIR-TEST-0000-0000/pull")
		require.Len(t, page.Envelopes, want, "MaxOutput %d", max)
		require.Equal(t, want < 5, page.HasMore)
		if want < 5 {
			require.NotEmpty(t, pull(t, r, "/inbox/AIR-TEST-0000-0000/pull?since="+page.Cursor).Envelopes)
		}
	}
	// A response counts while it is made, apart from the mail: a full relay can be emptied.
	r := newRelay(t, &relay.ServerOptions{Limits: relay.Limits{MaxMemoryPerPrincipal: 3500}})
	require.Equal(t, 3, relayCaller{r, "192.0.2.1"}.fill(t, 0, 0))
	require.Equal(t, 200, relayCaller{r, "192.0.2.1"}.do("GET", "/pull/AIR-TEST-0000-0000", "").Code)
	pushed := relayCaller{r, "192.0.2.2"}.push(0)
	require.Equal(t, 202, pushed.Code)
	var last struct {
		ID string `json:"envelope_id"`
	}
	require.NoError(t, json.Unmarshal(pushed.Body.Bytes(), &last))
	page := relayCaller{r, "192.0.2.1"}.do("GET", "/pull/AIR-TEST-0000-0000", "")
	require.Equal(t, 200, page.Code)
	require.Contains(t, page.Body.String(), `"has_more":true`)
	acked := relayCaller{r, "192.0.2.1"}.do("POST", "/ack/AIR-TEST-0000-0000", ackBody(last.ID))
	require.JSONEq(t, `{"status":"acked","acked_count":0,"requested":1}`, acked.Body.String(), "an envelope without room is not handed out")
	require.Equal(t, 200, relayCaller{r, "192.0.2.1"}.do("GET", "/pull/AIR-TEST-0000-0000?limit=3", "").Code)
	require.Zero(t, usageOf(t, r, "output", "all"))
}

// A blockedWriter is a response that no client reads until its channel is closed.
type blockedWriter struct {
	http.ResponseWriter
	unblocked chan struct{}
}

func (w *blockedWriter) Write(data []byte) (int, error) {
	if bytes.Contains(data, []byte("event: envelope")) {
		<-w.unblocked
	}
	return len(data), nil
}

func (w *blockedWriter) FlushError() error { return nil }

// The pages of streams without a reading client count as responses, so slow readers take bounded memory, and
// each of them gets its mail once it reads.
func TestRelayBoundsPagesOfSlowStreams(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRelay(t, &relay.ServerOptions{Limits: relay.Limits{MaxMemoryPerPrincipal: 400_000, RateLimit: -1}})
		require.Greater(t, relayCaller{r, "192.0.2.1"}.fill(t, 0, 0), 200)
		ctx, cancel := context.WithCancel(t.Context())
		unblocked := make(chan struct{})
		var wg sync.WaitGroup
		for range 64 {
			req := httptest.NewRequestWithContext(ctx, "GET", "/pull/AIR-TEST-0000-0000?stream=1", nil)
			req.RemoteAddr = "192.0.2.2:1"
			wg.Go(func() { r.ServeHTTP(&blockedWriter{httptest.NewRecorder(), unblocked}, req) })
		}
		time.Sleep(time.Second)
		used := usageOf(t, r, "output", "all")
		require.Positive(t, used)
		require.LessOrEqual(t, used, int64(400_000))
		close(unblocked)
		time.Sleep(20 * time.Second)
		require.Zero(t, usageOf(t, r, "output", "all"))
		cancel()
		wg.Wait()
		require.NoError(t, r.Close())
	})
}

// An agent that opens streams without end leaves some to others.
func TestRelayStreamsLeaveRoomForOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRelay(t, &relay.ServerOptions{Limits: relay.Limits{MaxStreams: 10},
			Auth: relay.Auth{InboxSecret: func(string) string { return "secret" }}})
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		open := func(mailbox int) *httptest.ResponseRecorder {
			req := httptest.NewRequestWithContext(ctx, "GET", fmt.Sprintf("/pull/AIR-TEST-0000-%04d?stream=1", mailbox), nil)
			req.Header.Set("X-Agent-Secret", "secret")
			rec := httptest.NewRecorder()
			wg.Go(func() { r.ServeHTTP(rec, req) })
			synctest.Wait()
			return rec
		}
		for range 5 {
			require.Equal(t, http.StatusOK, open(1).Code)
		}
		refused := open(1)
		require.Equal(t, http.StatusTooManyRequests, refused.Code)
		require.NotEmpty(t, refused.Header().Get("Retry-After"))
		require.Equal(t, http.StatusOK, open(2).Code)
		require.EqualValues(t, 6, usageOf(t, r, "streams", "all"))
		cancel()
		wg.Wait()
		require.Zero(t, usageOf(t, r, "streams", "all"))
		require.NoError(t, r.Close())
	})
}

// The counters name no agent. Requests that a proxy forwards without ClientAddr log one warning.
func TestRelayStats(t *testing.T) {
	var text strings.Builder
	r := newRelay(t, &relay.ServerOptions{Limits: relay.Limits{MaxMessage: 2000}, Logger: slog.New(slog.NewTextHandler(&text, nil))})
	require.Equal(t, relay.Stats{}, r.Stats())
	caller := relayCaller{r, "192.0.2.1"}
	require.Equal(t, 202, caller.push(0).Code)
	require.Equal(t, 413, caller.do("POST", "/inbox/AIR-TEST-0000-0000", strings.Repeat(" ", 2001)).Code)
	require.Equal(t, 404, caller.do("GET", "/unknown", "").Code)
	require.Equal(t, 200, caller.do("GET", "/pull/AIR-TEST-0000-0000", "").Code)
	got := r.Stats()
	require.Positive(t, got.QueuedBytes)
	got.QueuedBytes = 0
	require.Equal(t, relay.Stats{Pushes: 1, Pulls: 1, Queued: 1, Mailboxes: 1,
		Refusals: map[air.Code]int64{air.ErrTooLarge: 1, air.ErrNotFound: 1}}, got)
	require.NotContains(t, text.String(), "ClientAddr")
	for range 2 {
		req := httptest.NewRequest("GET", "/pull/AIR-TEST-0000-0000", nil)
		req.Header.Set("X-Forwarded-For", "198.51.100.1")
		r.ServeHTTP(httptest.NewRecorder(), req)
	}
	require.Equal(t, 1, strings.Count(text.String(), "ClientAddr"))
}

// hangingStore is a store whose reads hang until their contexts end.
type hangingStore struct{ store.Store }

func (s hangingStore) Read(ctx context.Context, _ string, _ uint64, _ int) ([]store.Record, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

// A caller that waits for a mailbox behind a store that hangs leaves with its context, and the other
// mailboxes and Usage do not wait.
func TestRelayStoreHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRelay(t, &relay.ServerOptions{Persistence: relay.Persistence{Store: hangingStore{store.NewMemory()}}})
		ctx, cancel := context.WithCancel(t.Context())
		request := func(ctx context.Context) <-chan int {
			code := make(chan int, 1)
			go func() {
				req := httptest.NewRequestWithContext(ctx, "POST", "/ack/"+airIDOf(1), strings.NewReader(ackBody("x")))
				rec := httptest.NewRecorder()
				r.ServeHTTP(rec, req)
				code <- rec.Code
			}()
			synctest.Wait()
			return code
		}
		first := request(ctx)
		short, end := context.WithTimeout(t.Context(), time.Second)
		defer end()
		start := time.Now()
		require.Equal(t, 500, <-request(short))
		require.Equal(t, time.Second, time.Since(start))
		require.NotEmpty(t, r.Usage())
		cancel()
		require.Equal(t, 500, <-first)
	})
}

// Each push of an inbox has a place from before its body is read until it is handled. One address
// leaves places for others (AIR-D92).
func TestInboxBoundsPushesAtWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, nil)
		alice, bob := w.join(t, 1), w.join(t, 2)
		release := make(chan struct{})
		in, err := air.NewInbox(bob, air.HandlerFunc(func(context.Context, *air.Delivery) error {
			<-release
			return nil
		}), &air.InboxOptions{Resolver: w.resolver(t), Limits: air.Limits{MaxConcurrent: 8, MaxConcurrentPerPrincipal: 8}})
		require.NoError(t, err)
		var mu sync.Mutex
		codes := make(map[string]map[int]int)
		push := func(addr string, n int) {
			codes[addr] = make(map[int]int)
			for range n {
				data := string(signedOffer(t, alice, bob.DID(), nil))
				go func() {
					rec := relayCaller{in, addr}.do("POST", "/", data)
					mu.Lock()
					defer mu.Unlock()
					codes[addr][rec.Code]++
				}()
				synctest.Wait()
			}
		}
		push("192.0.2.1", 20)
		push("192.0.2.2", 1)
		require.Equal(t, map[string]map[int]int{"192.0.2.1": {429: 16}, "192.0.2.2": {}}, codes)
		require.EqualValues(t, 5, usageOf(t, in, "work", "all"))
		require.NotZero(t, usageOf(t, in, "memory", "all"))
		require.Zero(t, usageOf(t, in, "unauthenticated", "all"), "all are verified")
		close(release)
		synctest.Wait()
		require.Equal(t, map[string]map[int]int{"192.0.2.1": {429: 16, 200: 4}, "192.0.2.2": {200: 1}}, codes)
		for _, u := range in.Usage() {
			if u.Resource != "items" {
				require.Zero(t, u.Used, "%+v", u)
			}
		}
	})
}

// Forged pushes cannot take the lookups of others: those of one address are bounded, and so are the
// requests to the registry (AIR-D40).
func TestInboxBoundsLookups(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, nil)
		alice, bob := w.join(t, 1), w.join(t, 2)
		var mu sync.Mutex
		running, highest := 0, 0
		registry := roundTripper(func(r *http.Request) (*http.Response, error) {
			mu.Lock()
			running++
			highest = max(highest, running)
			mu.Unlock()
			time.Sleep(50 * time.Millisecond)
			mu.Lock()
			running--
			mu.Unlock()
			return w.RoundTrip(r)
		})
		resolver, err := air.NewResolver(&air.ResolverOptions{HTTPClient: &http.Client{Transport: registry}})
		require.NoError(t, err)
		in := w.inbox(t, bob, air.InboxOptions{Resolver: resolver, Limits: air.Limits{MaxConcurrent: 1000, MaxConcurrentPerPrincipal: 1000}})
		forged := func(addr string, n int) {
			mallory, err := air.GenerateIdentity(fmt.Sprintf("did:wba:agentidentityregistry.org:agents:AIR-FAKE-0000-%04d", n))
			require.NoError(t, err)
			data := string(signedOffer(t, mallory, bob.DID(), nil))
			go relayCaller{in, addr}.do("POST", "/", data)
		}
		for i := range 100 {
			forged("192.0.2.1", i)
		}
		synctest.Wait()
		require.EqualValues(t, 16, usageOf(t, in, "unauthenticated", "all"))
		for i := range 200 {
			forged(fmt.Sprintf("198.51.%d.%d", i/200, i%200), 100+i)
		}
		start := time.Now()
		rec := relayCaller{in, "192.0.2.2"}.do("POST", "/", string(signedOffer(t, alice, bob.DID(), nil)))
		require.Equal(t, 200, rec.Code, rec.Body)
		require.LessOrEqual(t, time.Since(start), 2*time.Second)
		time.Sleep(time.Second)
		mu.Lock()
		defer mu.Unlock()
		require.Equal(t, 16, highest)
	})
}

func TestInboxBoundsBytesAndNonces(t *testing.T) {
	w := newWorld(t, nil)
	alice, carol, bob := w.join(t, 1), w.join(t, 3), w.join(t, 2)
	in := w.inbox(t, bob, air.InboxOptions{Limits: air.Limits{MaxMemoryPerPrincipal: 100}})
	rec := relayCaller{in, "192.0.2.1"}.do("POST", "/", string(signedOffer(t, alice, bob.DID(), nil)))
	require.Equal(t, 429, rec.Code)
	require.Contains(t, rec.Body.String(), "resource memory, scope principal")

	in = w.inbox(t, bob, air.InboxOptions{Limits: air.Limits{MaxItemsPerPrincipal: 3}})
	for i := range 5 {
		rec := relayCaller{in, "192.0.2.1"}.do("POST", "/", string(signedOffer(t, alice, bob.DID(), nil)))
		require.Equal(t, map[bool]int{true: 200, false: 429}[i < 3], rec.Code)
	}
	rec = relayCaller{in, "192.0.2.1"}.do("POST", "/", string(signedOffer(t, carol, bob.DID(), nil)))
	require.Equal(t, 200, rec.Code)
	require.EqualValues(t, 4, usageOf(t, in, "items", "all"))
}

// A message over the limit is refused before any request, and alone.
func TestClientRefusesOwnMessageOverLimit(t *testing.T) {
	w := newWorld(t, nil)
	alice, bob := w.join(t, 1), w.join(t, 2)
	c := w.client(t, alice, air.ClientOptions{MaxMessage: 1000, DisableSelfCheck: true})
	long := &air.Draft{To: bob.DID(), Body: &air.Offer{Description: strings.Repeat("x", 1000), Price: air.MinorUnits(1, "USD"), Expires: time.Now().Add(time.Hour)}}
	_, err := c.Send(t.Context(), long, nil)
	require.ErrorIs(t, err, air.ErrTooLarge)
	require.Empty(t, w.requests)
	_, err = c.Send(t.Context(), &air.Draft{To: bob.DID(), Body: offer(1)}, nil)
	require.NoError(t, err)
}

// Pages of other origins are refused, and preflight requests need no secret (AIR-D88).
func TestRelayRefusesForeignOrigins(t *testing.T) {
	r := newRelay(t, &relay.ServerOptions{AllowedOrigins: []string{"https://app.example"}, Auth: relay.Auth{PushSecret: "s"}})
	path := "/pull/" + airIDOf(1)
	status, _, h := do(t, r, "GET", path, "", "Origin", "https://evil.example")
	require.Equal(t, 403, status)
	require.Empty(t, h.Get("Access-Control-Allow-Origin"))
	require.Equal(t, "Origin", h.Get("Vary"))
	status, _, h = do(t, r, "GET", path, "", "Origin", "https://app.example")
	require.Equal(t, 200, status)
	require.Equal(t, "https://app.example", h.Get("Access-Control-Allow-Origin"))
	status, _, _ = do(t, r, "GET", path, "", "Origin", "http://relay.example")
	require.Equal(t, 200, status, "the origin of the relay")
	status, _, h = do(t, r, "OPTIONS", "/inbox/"+airIDOf(1), "", "Origin", "https://app.example", "Access-Control-Request-Method", "POST")
	require.Equal(t, 204, status)
	require.Contains(t, h.Get("Access-Control-Allow-Headers"), "X-Agent-Secret")
	require.Empty(t, h.Get("Access-Control-Allow-Credentials"))
	status, _, _ = do(t, r, "OPTIONS", "/unknown", "", "Origin", "https://app.example", "Access-Control-Request-Method", "POST")
	require.Equal(t, 404, status)
	status, _, h = do(t, r, "GET", "/unknown", "", "Origin", "https://app.example")
	require.Equal(t, 404, status)
	require.Equal(t, "https://app.example", h.Get("Access-Control-Allow-Origin"), "so that a page can read the error")
	require.Equal(t, "Origin", h.Get("Vary"))
}

func TestInboxAllowsOrigins(t *testing.T) {
	w := newWorld(t, nil)
	alice, bob := w.join(t, 1), w.join(t, 2)
	in := w.inbox(t, bob, air.InboxOptions{AllowedOrigins: []string{"https://app.example"}})
	data := string(signedOffer(t, alice, bob.DID(), nil))
	status, _, _ := do(t, in, "POST", "/", data, "Origin", "https://evil.example")
	require.Equal(t, 403, status)
	status, _, h := do(t, in, "OPTIONS", "/", "", "Origin", "https://app.example", "Access-Control-Request-Method", "POST")
	require.Equal(t, 204, status)
	require.Equal(t, "POST, OPTIONS", h.Get("Allow"))
	status, _, h = do(t, in, "POST", "/", data, "Origin", "https://app.example")
	require.Equal(t, 200, status)
	require.Equal(t, "https://app.example", h.Get("Access-Control-Allow-Origin"))
}

// Expired mail counts neither in Stats nor in Usage.
func TestRelayStatsWithoutExpiredMail(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRelay(t, &relay.ServerOptions{})
		require.Equal(t, 202, relayCaller{r, "192.0.2.1"}.push(0).Code)
		require.EqualValues(t, 1, r.Stats().Queued)
		time.Sleep(7 * 24 * time.Hour)
		require.Equal(t, relay.Stats{Pushes: 1}, r.Stats())
		require.Zero(t, usageOf(t, r, "memory", "all"))
		require.Zero(t, usageOf(t, r, "items", "all"))
	})
}
