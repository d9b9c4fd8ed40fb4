// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package altar

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/internal/kit"
)

// tokens is the issuer and the verifier of tokens that are valid for five minutes.
type tokens struct {
	mu      sync.Mutex
	expires map[string]time.Time
	bad     map[int]bool // attempts that get an invalid token
	failed  map[int]bool // attempts that get an error
	n       int
}

func (k *tokens) Token(context.Context) (string, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.n++
	switch {
	case k.failed[k.n]:
		return "", errors.New("no token")
	case k.bad[k.n]:
		return "bad", nil
	}
	token := NewID()
	k.expires[token] = time.Now().Add(5 * time.Minute)
	return token, nil
}

func (k *tokens) verify(_ context.Context, token string) (*Principal, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	expires, ok := k.expires[token]
	if !ok || !time.Now().Before(expires) {
		return nil, errBadCredentials
	}
	return &Principal{ID: "user", Expires: expires}, nil
}

func (k *tokens) issued() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.n
}

func newTokens() *tokens { return &tokens{expires: make(map[string]time.Time)} }

func (k *tokens) authenticator() Authenticator {
	return BearerAuthenticator(TokenVerifierFunc(k.verify))
}

// renewed records the renewals of a Host.
type renewed struct {
	mu sync.Mutex
	n  int
}

func (r *renewed) audit(_ context.Context, e *AuditRecord) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if e.Operation == "auth.renewed" {
		r.n++
	}
}

func (r *renewed) count() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.n
}

// A client and a Runtime with a token source keep their connections for an hour although each token is valid
// for five minutes, and their calls in flight are not disturbed (ALT-D40). Refused tokens and errors of the source
// are followed by another attempt before the token has expired.
func TestTokenSourceKeepsConnections(t *testing.T) {
	for _, over := range []network{{"pipe", pipeTransport}, {"direct", directTransport}} {
		t.Run(over.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				source, log := newTokens(), &renewed{}
				h := testHost(t, &HostOptions{Auth: Auth{Authenticator: source.authenticator()}, Audit: log.audit})
				require.NoError(t, h.ReplaceManifest(must(DecodeManifest([]byte(strings.ReplaceAll(testManifest, "60000", "7200000"))))))
				dials := 0
				dialer := over.dial(t, h)(nil)
				dial := func(ctx context.Context) (Conn, error) {
					dials++
					return dialer(ctx)
				}
				ctx, stop := context.WithCancel(t.Context())
				done := make(chan error, 1)
				rt := testRuntime("r1", &RuntimeOptions{TokenSource: source})
				go func() { done <- rt.RunWithReconnect(ctx, dial) }()
				synctest.Wait()
				c := must(NewClient(dial, &ClientOptions{TokenSource: source}))
				defer func() { require.NoError(t, c.Close()) }()
				s, err := c.CreateSession(ctx, &CreateSessionParams{TTL: 3 * time.Hour})
				require.NoError(t, err)
				source.mu.Lock()
				source.bad, source.failed = map[int]bool{4: true}, map[int]bool{6: true, 7: true}
				source.mu.Unlock()
				out, err := CallAs[string](ctx, s, "wait", waitIn{int64(time.Hour / time.Millisecond)}, nil)
				require.NoError(t, err)
				require.Equal(t, "waited", out)
				require.Equal(t, 2, dials)
				require.InDelta(t, 30, log.count(), 4)
				require.LessOrEqual(t, source.issued(), 40)
				stop()
				require.NoError(t, <-done)
			})
		})
	}
}

// A Runtime whose token is refused dials again, with another token (ALT-D46).
func TestRuntimeReplacesRefusedToken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source := newTokens()
		source.bad = map[int]bool{1: true, 2: true}
		h := testHost(t, &HostOptions{
			Auth: Auth{Authenticator: source.authenticator(), RuntimeAuthorizer: func(_ context.Context, id *Principal, _ *AnnounceRuntime) error {
				if id == nil {
					return errUnauthenticated()
				}
				return nil
			}}})
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error, 1)
		rt := testRuntime("r1", &RuntimeOptions{TokenSource: source})
		go func() { done <- rt.RunWithReconnect(ctx, pipeTransport(t, h)(nil)) }()
		time.Sleep(time.Minute)
		require.Len(t, h.runtimeIDs(), 1)
		require.Equal(t, 3, source.issued()-int(time.Minute/(4*time.Minute)))
		stop()
		require.NoError(t, <-done)
		err := testRuntime("r2", &RuntimeOptions{TokenSource: TokenSourceFunc(func(context.Context) (string, error) { return "bad", nil })}).
			Run(t.Context(), must(pipeTransport(t, h)(nil)(t.Context())))
		require.ErrorIs(t, err, ReasonUnauthenticated)
	})
}

// A Runtime and a client whose Dialer has a new token for each WebSocket dial again when the token expires
// (ALT-D40, ALT-D46).
func TestExpiredWebSocketIsDialedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source := newTokens()
		h := testHost(t, &HostOptions{Auth: Auth{Authenticator: source.authenticator()}})
		srv := kit.Serve(t, "altar", h)
		dial := func(ctx context.Context) (Conn, error) {
			token, err := source.Token(ctx)
			if err != nil {
				return nil, err
			}
			return DialWebSocket(ctx, "ws://localhost", &WebSocketDialOptions{HTTPClient: srv.Client, Header: http.Header{"Authorization": {"Bearer " + token}}})
		}
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- testRuntime("r1", nil).RunWithReconnect(ctx, dial) }()
		synctest.Wait()
		c := must(NewClient(dial, nil))
		s, err := c.CreateSession(ctx, &CreateSessionParams{TTL: 3 * time.Hour})
		require.NoError(t, err)
		for range 5 {
			time.Sleep(4*time.Minute + 10*time.Second)
			sum, err := CallAs[int64](ctx, s, "math/add", addIn{1, 2}, nil)
			require.NoError(t, err)
			require.Equal(t, int64(3), sum)
		}
		require.GreaterOrEqual(t, source.issued(), 8)
		require.NoError(t, c.Close())
		stop()
		require.NoError(t, <-done)
	})
}

// An error of the source fails the connection.
func TestTokenSourceFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := testHost(t, nil)
		failed := errors.New("no token")
		source := TokenSourceFunc(func(context.Context) (string, error) { return "", failed })
		c := must(NewClient(pipeTransport(t, h)(testUser), &ClientOptions{TokenSource: source}))
		_, err := c.CreateSession(t.Context(), nil)
		require.ErrorIs(t, err, failed)
		require.NoError(t, c.Close())
		require.ErrorIs(t, testRuntime("r1", &RuntimeOptions{TokenSource: source}).Run(t.Context(), must(pipeTransport(t, h)(testService)(t.Context()))), failed)
		synctest.Wait()
		require.Zero(t, h.Stats().Connections)
	})
}

// A WebSocket is kept authenticated by the source of its handshake, which gets a second attempt after a refusal.
func TestWebSocketTokenSource(t *testing.T) {
	source, log := newTokens(), &renewed{}
	source.bad = map[int]bool{1: true}
	h := testHost(t, &HostOptions{Auth: Auth{Authenticator: source.authenticator()}, Audit: log.audit})
	srv := httptest.NewServer(h)
	defer srv.Close()
	url := "ws" + strings.TrimPrefix(srv.URL, "http") + WebSocketPath
	c := must(NewClient(func(ctx context.Context) (Conn, error) {
		return DialWebSocket(ctx, url, &WebSocketDialOptions{TokenSource: source})
	}, nil))
	require.NoError(t, c.Ping(t.Context()))
	require.Eventually(t, func() bool { return log.count() == 1 }, time.Minute, time.Millisecond)
	require.NoError(t, c.Close())

	refused := 0
	bad := TokenSourceFunc(func(context.Context) (string, error) { refused++; return "bad", nil })
	_, err := DialWebSocket(t.Context(), url, &WebSocketDialOptions{TokenSource: bad})
	require.ErrorIs(t, err, ReasonUnauthenticated)
	require.Equal(t, 2, refused)
}
