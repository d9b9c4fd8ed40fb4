// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package air_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"reflect"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/air"
	"github.com/fivewire/fivewire/air/registry"
	"github.com/fivewire/fivewire/air/relay"
	"github.com/fivewire/fivewire/internal/kit"
	"github.com/fivewire/fivewire/internal/testkit"
)

func TestOptionsTakeZeroAndNegativeBounds(t *testing.T) {
	w := newWorld(t, nil)
	alice, bob := w.join(t, 1), w.join(t, 2)
	testkit.Numbers(t, func() *air.InboxOptions {
		return &air.InboxOptions{Resolver: w.resolver(t)}
	}, func(t *testing.T, o *air.InboxOptions) {
		in, err := air.NewInbox(bob, air.HandlerFunc(func(context.Context, *air.Delivery) error { return nil }), o)
		require.NoError(t, err)
		status, body := pushTo(t, in, signedOffer(t, alice, bob.DID(), nil))
		require.Equal(t, 200, status, body)
		require.NoError(t, in.Close())
	})
	testkit.Numbers(t, func() *air.ClientOptions {
		return &air.ClientOptions{Resolver: w.resolver(t), HTTPClient: w.http()}
	}, func(t *testing.T, o *air.ClientOptions) {
		c, err := air.NewClient(alice, o)
		require.NoError(t, err)
		_, err = c.Send(t.Context(), &air.Draft{To: bob.DID(), Body: offer(1)}, nil)
		require.NoError(t, err)
		require.NoError(t, c.Close())
	})
	testkit.Numbers(t, func() *air.ResolverOptions {
		return &air.ResolverOptions{HTTPClient: w.http()}
	}, func(t *testing.T, o *air.ResolverOptions) {
		r, err := air.NewResolver(o)
		require.NoError(t, err)
		_, err = r.Resolve(t.Context(), bob.DID())
		require.NoError(t, err)
	})
	testkit.Numbers(t, func() *air.PollerOptions {
		return &air.PollerOptions{HTTPClient: w.http()}
	}, func(t *testing.T, o *air.PollerOptions) {
		p, err := air.NewPoller(w.inbox(t, bob, air.InboxOptions{}).Inbox, w.endpoint(bob), o)
		require.NoError(t, err)
		_, err = p.Drain(t.Context())
		require.NoError(t, err)
	})
	testkit.Numbers(t, func() *air.ThreadStoreOptions { return &air.ThreadStoreOptions{} }, func(t *testing.T, o *air.ThreadStoreOptions) {
		_, err := air.NewThreadStore(bob.DID(), o)
		require.NoError(t, err)
	})
	testkit.Numbers(t, func() *registry.Options { return &registry.Options{} }, func(t *testing.T, o *registry.Options) {
		_, err := registry.NewClient(o)
		require.NoError(t, err)
	})
	testkit.Numbers(t, func() *relay.ServerOptions {
		return &relay.ServerOptions{AnyRecipient: true, Auth: relay.Auth{AllowAnonymous: true}}
	}, func(t *testing.T, o *relay.ServerOptions) {
		r, err := relay.NewServer(o)
		require.NoError(t, err)
		status, body := pushTo(t, r, signedOffer(t, alice, bob.DID(), nil))
		require.Equal(t, 202, status, body)
		require.NoError(t, r.Close())
	})
}

// usageOf returns the use of a resource in a scope.
func usageOf(t *testing.T, s interface{ Usage() []air.Usage }, resource, scope string) int64 {
	t.Helper()
	for _, u := range s.Usage() {
		if u.Resource == resource && u.Scope == scope {
			return u.Used
		}
	}
	t.Fatalf("no use of %s by %s in %v", resource, scope, s.Usage())
	return 0
}

// pushTo posts an envelope.
func pushTo(t *testing.T, h http.Handler, envelope []byte) (status int, body string) {
	t.Helper()
	e, err := air.DecodeEnvelope(envelope, nil)
	require.NoError(t, err)
	rec := httptest.NewRecorder()
	h.ServeHTTP(rec, httptest.NewRequest(http.MethodPost, "/inbox/"+e.To, strings.NewReader(string(envelope))))
	return rec.Code, rec.Body.String()
}

// A panic in code of the user is the failure of one request, with an answer and an audit record.
func TestPanicOfOptionFailsOneRequest(t *testing.T) {
	w := newWorld(t, nil)
	alice, bob := w.join(t, 1), w.join(t, 2)
	var records atomic.Int64
	note := func(context.Context, *air.AuditRecord) { records.Add(1) }
	check := func(t *testing.T, hook *testkit.Hook, h interface {
		http.Handler
		Close() error
	}) {
		records.Store(0)
		rec := httptest.NewRecorder()
		req := httptest.NewRequest(http.MethodPost, "/inbox/"+bob.AIRID(), strings.NewReader(string(signedOffer(t, alice, bob.DID(), nil))))
		if hook.Path == "Auth.InboxSecret" {
			req = httptest.NewRequest(http.MethodGet, "/pull/"+bob.AIRID(), nil)
		}
		if hook.Path == "Unwrap" {
			req.Header.Set("Content-Type", "application/didcomm")
		}
		h.ServeHTTP(rec, req)
		isInforming := hook.Path == "Audit" || hook.Path == "OnOutcome"
		require.Equal(t, isInforming, rec.Code < 400, "status %d", rec.Code)
		if hook.Path != "Audit" {
			require.EqualValues(t, 1, records.Load())
		}
		start := time.Now()
		require.NoError(t, h.Close())
		require.Less(t, time.Since(start), time.Second)
	}
	testkit.Hooks(t, func() *air.InboxOptions {
		return &air.InboxOptions{Resolver: w.resolver(t), Audit: note}
	}, func(t *testing.T, o *air.InboxOptions, hook *testkit.Hook) {
		synctest.Test(t, func(t *testing.T) { // a store that panics is tried again for a while
			in, err := air.NewInbox(bob, air.HandlerFunc(func(context.Context, *air.Delivery) error { return nil }), o)
			require.NoError(t, err)
			check(t, hook, in)
		})
	}, reflect.TypeFor[air.HandlerFunc](), reflect.TypeFor[air.KeyPolicyFunc]())
	testkit.Hooks(t, func() *relay.ServerOptions {
		return &relay.ServerOptions{AnyRecipient: true, Auth: relay.Auth{AllowAnonymous: true}, Audit: note}
	}, func(t *testing.T, o *relay.ServerOptions, hook *testkit.Hook) {
		synctest.Test(t, func(t *testing.T) {
			r, err := relay.NewServer(o)
			require.NoError(t, err)
			check(t, hook, r)
		})
	}, reflect.TypeFor[relay.DirectoryFunc](), reflect.TypeFor[relay.HandlerFunc]())
}

func TestClientTurnsPanicOfInterceptorIntoError(t *testing.T) {
	w := newWorld(t, nil)
	alice, bob := w.join(t, 1), w.join(t, 2)
	c := w.client(t, alice, air.ClientOptions{Interceptors: []air.Interceptor{func(air.SendFunc) air.SendFunc {
		return func(context.Context, *air.Draft, *air.SendOptions) (*air.Receipt, error) { panic("interceptor") }
	}}})
	_, err := c.Send(t.Context(), &air.Draft{To: bob.DID(), Body: offer(1)}, nil)
	require.ErrorContains(t, err, "interceptor")
}

func TestSendEachReportsInterceptorThatExits(t *testing.T) {
	w := newWorld(t, nil)
	alice, bob := w.join(t, 1), w.join(t, 2)
	c := w.client(t, alice, air.ClientOptions{Interceptors: []air.Interceptor{func(air.SendFunc) air.SendFunc {
		return func(context.Context, *air.Draft, *air.SendOptions) (*air.Receipt, error) {
			runtime.Goexit()
			return nil, nil
		}
	}}})
	results := c.SendEach(t.Context(), []string{bob.DID()}, &air.Draft{Body: offer(1)}, nil)
	require.Len(t, results, 1)
	require.Equal(t, bob.DID(), results[0].To)
	require.Error(t, results[0].Err)
}

// A shutdown ends with its context although a handler ignores it, and Close within a second.
func TestInboxShutdownWithHandlerThatIgnoresContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, nil)
		alice, bob := w.join(t, 1), w.join(t, 2)
		started, end := make(chan struct{}), make(chan struct{})
		in, err := air.NewInbox(bob, air.HandlerFunc(func(context.Context, *air.Delivery) error {
			close(started)
			<-end
			return nil
		}), &air.InboxOptions{Resolver: w.resolver(t)})
		require.NoError(t, err)
		require.NoError(t, in.Ready())
		done := make(chan struct{})
		go func() {
			defer close(done)
			in.Receive(t.Context(), signedOffer(t, alice, bob.DID(), nil), false)
		}()
		<-started
		require.Zero(t, usageOf(t, in, "work", "all"), "only pushes over HTTP count")
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		start := time.Now()
		require.ErrorIs(t, in.Shutdown(ctx), context.DeadlineExceeded)
		require.Equal(t, 3*time.Second, time.Since(start))
		require.NoError(t, in.Close())
		require.Equal(t, 4*time.Second, time.Since(start))
		require.ErrorIs(t, in.Ready(), air.ErrClosed)
		o := in.Receive(t.Context(), signedOffer(t, alice, bob.DID(), nil), true)
		require.ErrorIs(t, o.Err, air.ErrClosed)
		require.False(t, o.Final, "a closed inbox acknowledged mail")
		close(end)
		<-done
	})
}

func TestParseEndpointRefusesAddressesThatAreNotPublic(t *testing.T) {
	for _, host := range []string{
		"100.64.0.1", "198.18.0.1", "192.0.0.1", "240.0.0.1", "[64:ff9b::a00:1]", "0.0.0.0", "10.0.0.1", "169.254.1.1",
		"127.1", "2130706433", "0x7f.1", "printer.local", "[fe80::1]", "[::1]", "localhost",
	} {
		_, err := air.ParseEndpoint("https://"+host+"/inbox", nil)
		require.ErrorIs(t, err, air.ErrBadEndpoint, host)
	}
	for _, text := range []string{"http://relay.example/inbox", "wss://relay.example/inbox", "https://u:p@relay.example/", "https://relay.example:0/"} {
		_, err := air.ParseEndpoint(text, &air.EndpointOptions{AllowPrivate: true, AllowLoopback: true})
		require.ErrorIs(t, err, air.ErrBadEndpoint, text)
	}
}

// The health of a relay is that of a server that accepts requests, while a shutdown waits for a request and after it.
func TestRelayHealthEndsWithShutdown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		r := newRelay(t, &relay.ServerOptions{Middleware: []relay.Middleware{func(relay.Handler) relay.Handler {
			return relay.HandlerFunc(func(http.ResponseWriter, *http.Request) error {
				<-release
				return nil
			})
		}}})
		health := func() int {
			status, _, _ := do(t, r, http.MethodGet, "/health", "")
			return status
		}
		before := health()
		var wg sync.WaitGroup
		wg.Go(func() { do(t, r, http.MethodGet, "/inbox/"+airIDOf(1)+"/pull", "") })
		synctest.Wait()
		wg.Go(func() { _ = r.Shutdown(context.Background()) })
		synctest.Wait()
		during := health()
		close(release)
		wg.Wait()
		require.Equal(t, []int{http.StatusOK, http.StatusServiceUnavailable, http.StatusServiceUnavailable}, []int{before, during, health()})
	})
}

// A client whose request is refused in a shutdown reaches another server, not this one on the same connection.
func TestShutdownEndsConnections(t *testing.T) {
	w := newWorld(t, nil)
	in := w.inbox(t, w.join(t, 1), air.InboxOptions{}).Inbox
	kit.CheckLeaves(t, in, "/inbox", in.Shutdown)
	r := newRelay(t, &relay.ServerOptions{})
	kit.CheckLeaves(t, r, "/inbox", r.Shutdown)
}

func TestServersRefuseRepeatedHeaders(t *testing.T) {
	w := newWorld(t, nil)
	alice, bob := w.join(t, 1), w.join(t, 2)
	in := w.inbox(t, bob, air.InboxOptions{Auth: air.Auth{PushSecret: "s"}})
	r := newRelay(t, &relay.ServerOptions{Auth: relay.Auth{PushSecret: "s"}})
	for _, name := range []string{"X-Agent-Secret", "X-A2A-Version", "Content-Type", "Authorization", "Origin"} {
		for _, h := range []http.Handler{in, r} {
			req := httptest.NewRequest(http.MethodPost, "/inbox/"+bob.AIRID(), strings.NewReader(string(signedOffer(t, alice, bob.DID(), nil))))
			req.Header.Set("X-Agent-Secret", "s")
			req.Header[http.CanonicalHeaderKey(name)] = []string{"s", "s"}
			rec := httptest.NewRecorder()
			h.ServeHTTP(rec, req)
			require.Equal(t, 400, rec.Code, "%T with two %s", h, name)
		}
	}
}

// An error that a peer sent to a client in a handler is no answer to the sender.
func TestHandlerErrorOfPeerIsInternalError(t *testing.T) {
	w := newWorld(t, nil)
	alice, bob := w.join(t, 1), w.join(t, 2)
	w.direct = http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) {
		rw.WriteHeader(http.StatusUnauthorized)
		_, _ = rw.Write([]byte(`{"error":"Bad Signature"}`))
	})
	carol := w.join(t, 3)
	w.registry.Register(carol, "https://direct.example/")
	client := w.client(t, bob, air.ClientOptions{})
	in, err := air.NewInbox(bob, air.HandlerFunc(func(ctx context.Context, _ *air.Delivery) error {
		_, err := client.Send(ctx, &air.Draft{To: carol.DID(), Body: offer(1)}, nil)
		return fmt.Errorf("forwarding: %w", err)
	}), &air.InboxOptions{Resolver: w.resolver(t)})
	require.NoError(t, err)
	status, body := pushTo(t, in, signedOffer(t, alice, bob.DID(), nil))
	require.Equal(t, 500, status, body)
	require.JSONEq(t, `{"error":"Relay Error"}`, body)
}

func TestRelayNeedsGuard(t *testing.T) {
	secret := func(string) string { return "" }
	for _, auth := range []relay.Auth{
		{}, {PushSecret: "s"}, {InboxSecret: secret}, {AllowAnonymousPush: true},
	} {
		_, err := relay.NewServer(&relay.ServerOptions{AnyRecipient: true, Auth: auth})
		require.ErrorContains(t, err, "Auth.", "%+v", auth)
	}
	_, err := relay.NewServer(nil)
	require.Error(t, err)
	_, err = relay.NewServer(&relay.ServerOptions{Auth: relay.Auth{AllowAnonymous: true}})
	require.ErrorContains(t, err, "AnyRecipient")
	// An empty secret, as of an unset variable, opens no mailbox.
	r := newRelay(t, &relay.ServerOptions{Auth: relay.Auth{InboxSecret: secret}})
	rec := httptest.NewRecorder()
	r.ServeHTTP(rec, httptest.NewRequest(http.MethodGet, "/pull/"+airIDOf(1), nil))
	require.Equal(t, 401, rec.Code)
}

func TestRefusalsHaveAuditRecords(t *testing.T) {
	w := newWorld(t, nil)
	alice, bob := w.join(t, 1), w.join(t, 2)
	var records []*air.AuditRecord
	audit := func(_ context.Context, r *air.AuditRecord) { records = append(records, r) }
	fail := errors.New("disk on fire")
	result := error(nil)
	in, err := air.NewInbox(bob, air.HandlerFunc(func(context.Context, *air.Delivery) error { return result }), &air.InboxOptions{
		Resolver: w.resolver(t), Audit: audit, Auth: air.Auth{PushSecret: "s"},
	})
	require.NoError(t, err)
	push := func(secret string, data []byte) {
		req := httptest.NewRequest(http.MethodPost, "/", strings.NewReader(string(data)))
		req.Header.Set("X-Agent-Secret", secret)
		in.ServeHTTP(httptest.NewRecorder(), req)
	}
	good := signedOffer(t, alice, bob.DID(), nil)
	push("", good)
	push("s", []byte("{}"))
	push("s", good)
	push("s", good)
	result = fail
	push("s", signedOffer(t, alice, bob.DID(), nil))
	want := []struct{ principal, outcome, code string }{
		{"", "refused", "unauthorized"}, {"", "refused", "invalid_envelope"}, {alice.DID(), "ok", ""},
		{alice.DID(), "refused", "replay"}, {alice.DID(), "failed", "relay_error"},
	}
	require.Len(t, records, len(want))
	for i, r := range records {
		require.EqualValues(t, i+1, r.Seq)
		require.Equal(t, want[i].principal, r.Principal, "record %d", i)
		require.Equal(t, want[i].outcome, r.Outcome, "record %d", i)
		require.Equal(t, want[i].code, r.Code, "record %d", i)
		require.Equal(t, "push", r.Operation)
		require.NotEmpty(t, r.Peer)
	}
	var log strings.Builder
	air.AuditLog(slog.New(slog.NewTextHandler(&log, nil)))(t.Context(), records[0])
	require.Contains(t, log.String(), "air.code=unauthorized")

	records = nil
	r := newRelay(t, &relay.ServerOptions{Audit: audit, Auth: relay.Auth{PushSecret: "s"}})
	for _, path := range []string{"/inbox/" + bob.AIRID(), "/ack/" + bob.AIRID()} {
		r.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodPost, path, strings.NewReader("{}")))
	}
	require.Len(t, records, 2)
	require.Equal(t, "unauthorized", records[0].Code)
	require.Equal(t, "ack", records[1].Operation)
}

// One address cannot take the capacity of an inbox (AIR-D92).
func TestInboxBoundsAddress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, nil)
		alice, bob := w.join(t, 1), w.join(t, 2)
		in := w.inbox(t, bob, air.InboxOptions{Limits: air.Limits{RateLimit: 2, AddressRateLimit: 4}})
		try := func(addr, body string) (int, string) {
			req := httptest.NewRequest(http.MethodPost, "/", strings.NewReader(body))
			req.RemoteAddr = addr
			rec := httptest.NewRecorder()
			in.ServeHTTP(rec, req)
			return rec.Code, rec.Header().Get("Retry-After")
		}
		for range 2 {
			status, _ := try("192.0.2.1:1", string(signedOffer(t, alice, bob.DID(), nil)))
			require.Equal(t, 200, status)
		}
		status, after := try("192.0.2.1:2", string(signedOffer(t, alice, bob.DID(), nil)))
		require.Equal(t, 429, status)
		require.Equal(t, "60", after)
		status, _ = try("192.0.2.1:3", `{"from":"x"}`)
		require.Equal(t, 400, status)
		status, _ = try("192.0.2.1:3", `{"from":"y"}`)
		require.Equal(t, 429, status)
		status, _ = try("192.0.2.2:1", string(signedOffer(t, alice, bob.DID(), nil)))
		require.Equal(t, 200, status)
		time.Sleep(time.Minute)
		status, _ = try("192.0.2.1:4", string(signedOffer(t, alice, bob.DID(), nil)))
		require.Equal(t, 200, status)
	})
}

// The dialect is detected while Run logs a failure; the race detector sees unguarded fields.
func TestPollerRunWhileDrainDetectsDialect(t *testing.T) {
	w := newWorld(t, nil)
	bob := w.join(t, 2)
	in := w.inbox(t, bob, air.InboxOptions{})
	started, release := make(chan struct{}), make(chan struct{})
	pulls := 0 // the turn of the poller guards it
	client := &http.Client{Transport: roundTripper(func(*http.Request) (*http.Response, error) {
		pulls++
		if pulls == 1 {
			close(started)
			<-release
			return nil, errors.New("no connection")
		}
		rec := httptest.NewRecorder()
		rec.WriteHeader(http.StatusNotFound)
		return rec.Result(), nil
	})}
	opts := &air.PollerOptions{Dialect: air.DialectAuto, HTTPClient: client, PollInterval: time.Hour}
	p, err := air.NewPoller(in.Inbox, w.endpoint(bob), opts)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	var run, drains sync.WaitGroup
	run.Go(func() { _ = p.Run(ctx) })
	<-started
	for range 4 {
		drains.Go(func() { _, _ = p.Drain(ctx) })
	}
	close(release)
	drains.Wait()
	cancel()
	run.Wait()
	require.NoError(t, p.Close())
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }
