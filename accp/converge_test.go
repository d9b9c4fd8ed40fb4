// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package accp_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/fivewire/fivewire/accp"
	"github.com/fivewire/fivewire/store"
)

// An inProcess is a transport to a server that can be replaced. It loses the next requests before or after the server
// has them.
type inProcess struct {
	server *accp.Server
	losses []string // "before", "after" or "" for each request
}

func (p *inProcess) RoundTrip(r *http.Request) (*http.Response, error) {
	loss := ""
	if len(p.losses) > 0 {
		loss, p.losses = p.losses[0], p.losses[1:]
	}
	if loss == "before" {
		return nil, errLost
	}
	w := httptest.NewRecorder()
	p.server.ServeHTTP(w, r)
	if loss == "after" {
		return nil, errLost
	}
	return w.Result(), nil
}

// A twoSides has a client and a server that write one state.
type twoSides struct {
	t       *rapid.T
	network *inProcess
	client  *accp.Client
}

func (s *twoSides) startServer() {
	server, err := accp.NewServer("server", &accp.ServerOptions{Auth: accp.Auth{AllowAnonymous: true}, Logger: slog.New(slog.DiscardHandler)})
	require.NoError(s.t, err)
	if s.network.server != nil {
		require.NoError(s.t, s.network.server.Close())
	}
	s.network.server = server
}

func (s *twoSides) startClient() {
	c, err := accp.NewClient("http://localhost"+accp.FramesPath, "client", &accp.ClientOptions{SessionID: "s1", HTTPClient: &http.Client{Transport: s.network},
		Retry: &accp.RetryPolicy{Base: -1}, Timing: accp.ClientTiming{Timeout: 10 * time.Second}, Logger: slog.New(slog.DiscardHandler)})
	require.NoError(s.t, err)
	if s.client != nil {
		require.NoError(s.t, s.client.Close())
	}
	s.client = c
}

func (s *twoSides) state() (out accp.Params) {
	for _, key := range []string{"x", "y", "z"} {
		if n := rapid.IntRange(0, 4).Draw(s.t, key); n > 0 {
			out = append(out, accp.Param{Key: key, Value: accp.Int(int64(n))})
		}
	}
	return out
}

// serverSession returns the session of the server, or nil before its first frame.
func (s *twoSides) serverSession() *accp.Session {
	session, _ := s.network.server.Session("s1")
	return session
}

// After any sequence of losses, restarts without memory and writes of both sides, a successful Sync of one side, and then one of
// the other, which the next Sync of the client carries, leave both with one version and content (ACCP-D45, ACCP-D46).
func TestSyncConverges(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		ctx := context.Background()
		s := &twoSides{t: rt, network: &inProcess{}}
		s.startServer()
		s.startClient()
		defer func() {
			require.NoError(rt, s.client.Close())
			require.NoError(rt, s.network.server.Close())
		}()
		serverWrites := func() {
			if session := s.serverSession(); session != nil {
				_, err := session.Sync(ctx, s.state())
				require.NoError(rt, err)
			}
		}
		equal := func(want accp.Params) {
			version, state := s.client.Session().State()
			v, got := s.serverSession().State()
			require.Equal(rt, version, v)
			require.True(rt, got.Equal(state), "client %v, server %v", state, got)
			require.True(rt, got.Equal(want), "want %v, got %v", want, got)
		}
		for range rapid.IntRange(0, 20).Draw(rt, "steps") {
			switch rapid.SampledFrom([]string{"sync", "sync", "update", "server writes", "server restarts", "client restarts"}).Draw(rt, "step") {
			case "sync":
				s.network.losses = rapid.SliceOfN(rapid.SampledFrom([]string{"", "", "before", "after"}), 0, 6).Draw(rt, "losses")
				_ = s.client.Sync(ctx, s.state())
			case "update":
				s.network.losses = rapid.SliceOfN(rapid.SampledFrom([]string{"", "", "before", "after"}), 0, 6).Draw(rt, "losses")
				_ = s.client.Update(ctx, func(accp.Params) (accp.Params, error) { return s.state(), nil })
			case "server writes":
				serverWrites()
			case "server restarts":
				s.startServer()
			case "client restarts":
				s.startClient()
			}
		}
		s.network.losses = nil
		want := append(s.state(), accp.Param{Key: "end", Value: accp.Int(1)})
		require.NoError(rt, s.client.Sync(ctx, want))
		equal(want)
		serverWrites()
		want = append(s.state(), accp.Param{Key: "end", Value: accp.Int(2)})
		require.NoError(rt, s.client.Sync(ctx, want))
		equal(want)
	})
}

// After the server has lost the state, Update gives it that of the client at once, over both bindings.
func TestUpdateAfterServerLostState(t *testing.T) {
	for scheme, path := range map[string]string{"http": accp.FramesPath, "ws": accp.WebSocketPath} {
		t.Run(scheme, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newPipe()
				var server atomic.Pointer[accp.Server]
				start := func() {
					s, err := accp.NewServer("server", &accp.ServerOptions{Auth: accp.Auth{AllowAnonymous: true}, Logger: slog.New(slog.DiscardHandler)})
					require.NoError(t, err)
					if old := server.Swap(s); old != nil {
						require.NoError(t, old.Close())
					}
				}
				start()
				stop := p.serve(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { server.Load().ServeHTTP(w, r) }))
				c, err := accp.NewClient(scheme+"://localhost"+path, "client", &accp.ClientOptions{SessionID: "s1", HTTPClient: p.client(),
					Logger: slog.New(slog.DiscardHandler)})
				require.NoError(t, err)
				for n := range 3 {
					began := time.Now()
					require.NoError(t, c.Update(t.Context(), func(state accp.Params) (accp.Params, error) {
						return state.Set(fmt.Sprint("k", n), accp.Int(1)), nil
					}))
					require.Less(t, time.Since(began), 5*time.Second, "no wait but that for the connection")
					session, _ := server.Load().Session("s1")
					_, state := session.State()
					require.Len(t, state, n+1)
					start()
				}
				require.NoError(t, c.Close())
				require.NoError(t, server.Load().Close())
				stop()
			})
		})
	}
}

// Update begins with the state in the store of the client, also if the client was started again or another process has
// changed the state. No change is lost.
func TestUpdateBeginsWithStoredState(t *testing.T) {
	for _, scheme := range []string{"http", "ws"} {
		t.Run(scheme, func(t *testing.T) {
			d := newDesk(t, &accp.ServerOptions{Logger: slog.New(slog.DiscardHandler)})
			db := store.NewMemory()
			start := func() *accp.Client {
				path := map[string]string{"http": accp.FramesPath, "ws": accp.WebSocketPath}[scheme]
				c, err := accp.NewClient(scheme+strings.TrimPrefix(d.ts.URL, "http")+path, "client", &accp.ClientOptions{SessionID: "s1",
					HTTPClient: d.client, Logger: slog.New(slog.DiscardHandler), Session: accp.SessionOptions{Persistence: accp.Persistence{Store: db}}})
				require.NoError(t, err)
				t.Cleanup(func() { require.NoError(t, c.Close()) })
				return c
			}
			set := func(c *accp.Client, key string) {
				require.NoError(t, c.Update(t.Context(), func(state accp.Params) (accp.Params, error) { return state.Set(key, accp.Int(1)), nil }))
			}
			first := start()
			set(first, "a")
			if scheme == "ws" { // the connection of another process would replace that of the first
				require.NoError(t, first.Close())
			}
			second := start()
			set(second, "b")
			session, _ := d.Session("s1")
			_, state := session.State()
			require.Len(t, state, 2)
			if scheme == "ws" {
				return
			}
			set(first, "c")
			var once sync.Once
			require.NoError(t, second.Update(t.Context(), func(state accp.Params) (accp.Params, error) {
				once.Do(func() { set(first, "d") }) // in the middle of another change
				return state.Set("e", accp.Int(1)), nil
			}))
			_, state = session.State()
			require.Len(t, state, 5)
		})
	}
}

// If the store of the client fails, so that a change cannot be taken back, or may be stored, the error of Update reports
// that it may run.
func TestUpdateWithoutStoreMayRun(t *testing.T) {
	server, err := accp.NewServer("server", &accp.ServerOptions{Auth: accp.Auth{AllowAnonymous: true}, Logger: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	defer func() { require.NoError(t, server.Close()) }()
	network := &inProcess{server: server}
	isDown := false
	db := &meddler{store.NewMemory(), func(string, string) error {
		if isDown || len(network.losses) == 1 { // the frame was sent
			return errors.New("disk failed")
		}
		return nil
	}}
	c, err := accp.NewClient("http://localhost"+accp.FramesPath, "client", &accp.ClientOptions{HTTPClient: &http.Client{Transport: network},
		Session: accp.SessionOptions{Persistence: accp.Persistence{Store: db}}, Retry: &accp.RetryPolicy{MaxAttempts: -1}, Logger: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	defer func() { require.NoError(t, c.Close()) }()
	set := func(key string) error {
		return c.Update(t.Context(), func(state accp.Params) (accp.Params, error) { return state.Set(key, accp.Int(1)), nil })
	}
	require.NoError(t, set("a"))
	mayHaveRun := func(err error) bool {
		var failed *accp.CallError
		require.ErrorAs(t, err, &failed)
		require.ErrorIs(t, err, accp.ErrInternal)
		return failed.MayHaveRun
	}
	network.losses = []string{"before", "before"}
	require.True(t, mayHaveRun(set("b")))
	network.losses = nil
	isDown = true
	require.True(t, mayHaveRun(set("c")))
	isDown = false
	require.NoError(t, set("d"))
	version, state := c.Session().State()
	session, _ := server.Session(c.Session().ID())
	v, got := session.State()
	require.Equal(t, version, v)
	require.True(t, got.Equal(state))
}
