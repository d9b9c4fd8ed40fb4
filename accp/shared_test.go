// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package accp_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/accp"
)

// A serverLife is a server between two restarts, with the number of runs of each call.
type serverLife struct {
	*accp.Server
	mu   sync.Mutex
	runs map[string]int
}

func newServerLife(t testing.TB) *serverLife {
	s, err := accp.NewServer("server", &accp.ServerOptions{Auth: accp.Auth{AllowAnonymous: true}, Logger: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	l := &serverLife{Server: s, runs: map[string]int{}}
	s.Handle(accp.IntentReq, "work", accp.HandlerFunc(func(_ context.Context, w *accp.ReplyWriter, m *accp.Message) error {
		l.mu.Lock()
		l.runs[m.Params.Text("call")]++
		l.mu.Unlock()
		return w.SendResult(m.Params)
	}))
	return l
}

// Agents of one session call over HTTP and WebSocket while all of them and the server, which has no store, restart. Every call
// ends with its own result or an error, and in one life of the server no handler runs twice (ACCP-D24, ACCP-D29).
func TestAgentsOfOneSessionRestart(t *testing.T) {
	for _, n := range []struct{ http, websocket int }{{2, 0}, {3, 0}, {8, 0}, {0, 2}, {3, 2}} {
		t.Run(fmt.Sprintf("http=%d,websocket=%d", n.http, n.websocket), func(t *testing.T) {
			const calls = 30
			var current atomic.Pointer[serverLife]
			current.Store(newServerLife(t))
			lives := []*serverLife{current.Load()}
			ts := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { current.Load().ServeHTTP(w, r) }))
			defer ts.Close()
			var total, succeeded atomic.Int64
			restart := make(chan struct{}, 1)
			agent := func(i int, url string) {
				r := rand.New(rand.NewPCG(uint64(i), 5))
				name := fmt.Sprint("agent", i)
				open := func() *accp.Client {
					c, err := accp.NewClient(url, name, &accp.ClientOptions{SessionID: "shared", Retry: &accp.RetryPolicy{Base: time.Millisecond, Max: 5 * time.Millisecond},
						Timing: accp.ClientTiming{Timeout: 5 * time.Second}, Logger: slog.New(slog.DiscardHandler)})
					if err != nil {
						t.Error(err)
					}
					return c
				}
				c := open()
				for k := range calls {
					id := fmt.Sprint(name, "_", k)
					ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
					answer, err := c.Call(ctx, msg("req", "work", text("call", id)), nil)
					if errors.Is(ctx.Err(), context.DeadlineExceeded) {
						t.Errorf("call %s has not ended", id)
					}
					cancel()
					if err == nil {
						succeeded.Add(1)
						if got := answer.Params.Text("call"); got != id {
							t.Errorf("call %s got the result of %s", id, got)
						}
					}
					if total.Add(1)%20 == 0 {
						select {
						case restart <- struct{}{}:
						default:
						}
					}
					if r.IntN(6) == 0 {
						_ = c.Close()
						c = open()
					}
				}
				_ = c.Close()
			}
			var agents, restarts sync.WaitGroup
			for i := range n.http + n.websocket {
				url := ts.URL + accp.FramesPath
				if i >= n.http {
					url = strings.Replace(ts.URL, "http:", "ws:", 1) + accp.WebSocketPath
				}
				agents.Go(func() { agent(i, url) })
			}
			restarts.Go(func() {
				for range restart {
					old, next := current.Load(), newServerLife(t)
					lives = append(lives, next)
					current.Store(next)
					_ = old.Close()
				}
			})
			agents.Wait()
			close(restart)
			restarts.Wait()
			require.NoError(t, current.Load().Close())
			require.Greater(t, len(lives), 2)
			for _, l := range lives {
				for call, runs := range l.runs {
					require.Equal(t, 1, runs, call)
				}
			}
			t.Logf("%d of %d calls got a result in %d lives", succeeded.Load(), total.Load(), len(lives))
			require.Greater(t, succeeded.Load(), total.Load()*2/3)
		})
	}
}
