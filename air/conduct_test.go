// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package air_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/air"
	"github.com/fivewire/fivewire/air/registry"
	"github.com/fivewire/fivewire/air/relay"
)

func TestRelayRunsMiddlewareInOrder(t *testing.T) {
	var order []string
	note := func(name string) relay.Middleware {
		return func(next relay.Handler) relay.Handler {
			return relay.HandlerFunc(func(w http.ResponseWriter, r *http.Request) error {
				order = append(order, name)
				switch r.URL.Query().Get(name) {
				case "forbidden":
					return air.Errorf(air.ErrForbidden, "not today")
				case "remote":
					return fmt.Errorf("asking: %w", &air.Error{Code: air.ErrUnauthorized, Message: "of another server", Remote: true})
				}
				return next.ServeRelay(w, r)
			})
		}
	}
	r := newRelay(t, &relay.ServerOptions{Middleware: []relay.Middleware{note("a"), note("b")},
		Auth: relay.Auth{InboxSecret: func(string) string { return "s" }}})
	pull := func(query string, headers ...string) (int, string) {
		order = nil
		status, body, _ := do(t, r, "GET", "/pull/"+airIDOf(1)+query, "", headers...)
		return status, body
	}
	status, _ := pull("", "X-Agent-Secret", "s")
	require.Equal(t, 200, status)
	require.Equal(t, []string{"a", "b"}, order)
	status, body := pull("?a=forbidden", "X-Agent-Secret", "s")
	require.Equal(t, 403, status)
	require.JSONEq(t, `{"error":"Forbidden","detail":"not today"}`, body)
	require.Equal(t, []string{"a"}, order)
	status, body = pull("?b=remote", "X-Agent-Secret", "s")
	require.Equal(t, 500, status)
	require.JSONEq(t, `{"error":"Relay Error"}`, body)
	status, _ = pull("")
	require.Equal(t, 401, status)
	require.Empty(t, order, "before authentication")

	_, err := relay.NewServer(&relay.ServerOptions{AnyRecipient: true, Auth: relay.Auth{AllowAnonymous: true},
		Middleware: []relay.Middleware{func(relay.Handler) relay.Handler { return nil }}})
	require.ErrorContains(t, err, "middleware")
}

func TestRelayRefusalsHaveAuditRecords(t *testing.T) {
	var records []*air.AuditRecord
	r := newRelay(t, &relay.ServerOptions{
		Audit:  func(_ context.Context, r *air.AuditRecord) { records = append(records, r) },
		Auth:   relay.Auth{PushSecret: "s", InboxSecret: func(string) string { return "s" }},
		Limits: relay.Limits{MaxItems: 1, MaxMemoryPerSession: 1},
	})
	box := "/inbox/" + airIDOf(1)
	w := newWorld(t, nil)
	alice, bob := w.join(t, 9), w.join(t, 1)
	for _, tt := range []struct{ method, path, origin, secret, operation, code, principal string }{
		{"GET", "/unknown", "", "", "unknown", "not_found", ""},
		{"PUT", box, "", "", "push", "method_not_allowed", ""},
		{"POST", box, "https://evil.example", "s", "push", "forbidden", ""},
		{"POST", box, "", "", "push", "unauthorized", ""},
		{"POST", box, "", "s", "push", "too_large", airIDOf(1)},
		{"GET", "/inbox/none/pull", "", "s", "pull", "unauthorized", ""},
		{"GET", box + "/pull?limit=x", "", "s", "pull", "bad_request", airIDOf(1)},
		{"POST", box + "/ack", "", "s", "ack", "bad_request", airIDOf(1)},
	} {
		records = nil
		headers := []string{"X-Agent-Secret", tt.secret}
		if tt.origin != "" {
			headers = append(headers, "Origin", tt.origin)
		}
		do(t, r, tt.method, tt.path, string(signedOffer(t, alice, bob.DID(), nil)), headers...)
		require.Len(t, records, 1, "%+v", tt)
		require.Equal(t, tt.operation, records[0].Operation, "%+v", tt)
		require.Equal(t, tt.code, records[0].Code, "%+v", tt)
		require.Equal(t, "refused", records[0].Outcome, "%+v", tt)
		require.Equal(t, tt.principal, records[0].Principal, "%+v", tt)
	}
}

// Details of a handler's error reach the sender, those of internal failures do not.
func TestErrorDetailsReachPeer(t *testing.T) {
	w := newWorld(t, nil)
	alice, bob := w.join(t, 1), w.join(t, 2)
	answer := air.Reject(air.ErrConflict, "")
	var rejected *air.Error
	require.ErrorAs(t, answer, &rejected)
	rejected.Details = json.RawMessage(`{"slot":7}`)
	in, err := air.NewInbox(bob, air.HandlerFunc(func(context.Context, *air.Delivery) error { return answer }), &air.InboxOptions{Resolver: w.resolver(t)})
	require.NoError(t, err)
	w.direct = in
	w.registry.Register(bob, "https://direct.example/")
	c := w.client(t, alice, air.ClientOptions{Retry: &air.RetryPolicy{MaxAttempts: -1}})
	send := func() *air.Error {
		_, err := c.Send(t.Context(), &air.Draft{To: bob.DID(), Body: offer(1)}, nil)
		var e *air.Error
		require.ErrorAs(t, err, &e)
		return e
	}
	e := send()
	require.True(t, e.Remote)
	require.JSONEq(t, `{"slot":7}`, string(e.Details))
	answer = &air.Error{Code: air.ErrConflict, Details: json.RawMessage(`{"slot":7}`)}
	require.Empty(t, send().Details)
	require.Equal(t, `{"error":"Conflict"}`, string((&air.Error{Code: air.ErrConflict, Details: json.RawMessage(`{"a"`)}).HTTPBody()))
}

// hangingPeer never answers, and ignores the end of the request if it is deaf.
func hangingPeer(isDeaf bool, end <-chan struct{}) *http.Client {
	return &http.Client{Transport: roundTripper(func(r *http.Request) (*http.Response, error) {
		if isDeaf {
			<-end
			return nil, context.Canceled
		}
		<-r.Context().Done()
		return nil, r.Context().Err()
	})}
}

// Close ends the running calls: at once, or after a second if the transport does not return.
func TestClientCloseEndsDeliveries(t *testing.T) {
	for _, isDeaf := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, nil)
			alice, bob := w.join(t, 1), w.join(t, 2)
			end := make(chan struct{})
			c := w.client(t, alice, air.ClientOptions{HTTPClient: hangingPeer(isDeaf, end)})
			result := make(chan error, 1)
			go func() {
				_, err := c.Send(t.Context(), &air.Draft{To: bob.DID(), Body: offer(1)}, nil)
				result <- err
			}()
			synctest.Wait()
			start := time.Now()
			require.NoError(t, c.Close())
			want := map[bool]time.Duration{false: 0, true: time.Second}[isDeaf]
			require.Equal(t, want, time.Since(start))
			close(end)
			require.ErrorIs(t, <-result, air.ErrClosed)
			_, err := c.Send(t.Context(), &air.Draft{To: bob.DID(), Body: offer(1)}, nil)
			require.ErrorIs(t, err, air.ErrClosed)
		})
	}
}

// The other clients hold nothing that Close could wait for.
func TestClientsCloseAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		end := make(chan struct{})
		resolver, err := air.NewResolver(&air.ResolverOptions{HTTPClient: hangingPeer(true, end)})
		require.NoError(t, err)
		names, err := registry.NewClient(&registry.Options{HTTPClient: hangingPeer(true, end)})
		require.NoError(t, err)
		go func() { _, _ = resolver.Resolve(t.Context(), airIDOf(1)) }()
		go func() { _, _ = names.GetAgent(t.Context(), airIDOf(1)) }()
		synctest.Wait()
		start := time.Now()
		require.NoError(t, resolver.Close())
		require.NoError(t, names.Close())
		require.Zero(t, time.Since(start))
		close(end)
	})
}

// A shutdown of a relay ends with its context although a directory ignores it, and Close within a
// second; open streams hold up neither.
func TestRelayShutdownWithDirectoryThatIgnoresContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		end := make(chan struct{})
		r := newRelay(t, &relay.ServerOptions{Directory: relay.DirectoryFunc(func(context.Context, string) (string, error) {
			<-end
			return "", air.ErrNotFound
		})})
		go do(t, r, "GET", "/inbox/"+airIDOf(1)+"/pull", "")
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		start := time.Now()
		require.ErrorIs(t, r.Shutdown(ctx), context.DeadlineExceeded)
		require.Equal(t, 3*time.Second, time.Since(start))
		require.NoError(t, r.Close())
		require.Equal(t, 4*time.Second, time.Since(start))
		require.ErrorIs(t, r.Ready(), air.ErrClosed)
		status, _, _ := do(t, r, "GET", "/pull/"+airIDOf(1), "")
		require.Equal(t, 500, status)
		require.EqualValues(t, 1, usageOf(t, r, "work", "all"), "a stuck request keeps its place")
		close(end)
		synctest.Wait()
		require.Zero(t, usageOf(t, r, "work", "all"))
	})
}

func TestRelayCloseEndsStreams(t *testing.T) {
	for name, stop := range map[string]func(*relay.Server) error{
		"Close":    (*relay.Server).Close,
		"Shutdown": func(s *relay.Server) error { return s.Shutdown(context.Background()) },
	} {
		synctest.Test(t, func(t *testing.T) {
			r := newRelay(t, &relay.ServerOptions{})
			done := make(chan struct{})
			go func() {
				defer close(done)
				r.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/pull/"+airIDOf(1)+"?stream=1", nil))
			}()
			synctest.Wait()
			require.EqualValues(t, 1, usageOf(t, r, "streams", "all"))
			start := time.Now()
			require.NoError(t, stop(r), name)
			<-done
			require.Zero(t, time.Since(start), name)
		})
	}
}

// A refused message is a warning with the key err, once a minute for each code, so that a peer cannot
// fill the log.
func TestServersWarnOfRefusals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log strings.Builder
		logger := slog.New(slog.NewTextHandler(&log, nil))
		w := newWorld(t, nil)
		alice, bob := w.join(t, 1), w.join(t, 2)
		in := w.inbox(t, bob, air.InboxOptions{Logger: logger, Auth: air.Auth{KeyPolicy: air.KeyPolicyFunc(
			func(context.Context, string, *air.PublicKey) error { return air.ErrKeyRefused })}})
		r := newRelay(t, &relay.ServerOptions{Logger: logger, Auth: relay.Auth{PushSecret: "s"}})
		offer := string(signedOffer(t, alice, bob.DID(), nil))
		warnings := func() int { return strings.Count(log.String(), "level=WARN") }
		for range 5 {
			do(t, in, "POST", "/", "{}")
		}
		require.Zero(t, warnings(), log.String())
		require.Equal(t, 1, strings.Count(log.String(), "level=INFO"), log.String())
		do(t, in, "POST", "/", offer)
		require.Equal(t, 1, warnings(), "the refused key\n%s", log.String())
		require.Contains(t, log.String(), `msg="air: key refused" agent=`+alice.DID()+" err=")
		for range 5 {
			do(t, r, "POST", "/inbox/"+bob.AIRID(), offer)
		}
		require.Equal(t, 2, warnings(), log.String())
		time.Sleep(time.Minute)
		do(t, r, "POST", "/inbox/"+bob.AIRID(), offer)
		require.Equal(t, 3, warnings(), log.String())
		require.NotContains(t, log.String(), "level=ERROR")
		require.Equal(t, warnings()+2, strings.Count(log.String(), " err="))
	})
}

func TestResolverWarnsOfFailedLookups(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log strings.Builder
		w := newWorld(t, nil)
		w.registry.SetFailure(500)
		r, err := air.NewResolver(&air.ResolverOptions{HTTPClient: w.http(), Logger: slog.New(slog.NewTextHandler(&log, nil))})
		require.NoError(t, err)
		for i := range 5 {
			_, err := r.Resolve(t.Context(), airIDOf(i))
			require.ErrorIs(t, err, air.ErrBadGateway)
		}
		require.Equal(t, 1, strings.Count(log.String(), "level=WARN"), log.String())
	})
}
