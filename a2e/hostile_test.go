// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package a2e_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/a2e"
	"github.com/fivewire/fivewire/a2e/a2etest"
	"github.com/fivewire/fivewire/a2e/subagents"
	"github.com/fivewire/fivewire/internal/kit"
	"github.com/fivewire/fivewire/internal/race"
)

// Ten thousand sessions of strangers, from many addresses, delay no agent with a token.
func TestTenThousandStrangers(t *testing.T) {
	h := a2etest.NewHost(t, &a2e.HostOptions{Logger: slog.New(slog.DiscardHandler),
		Auth: a2e.Auth{Authenticator: a2etest.KeyAuthenticator("s3cret")}}, repeating())
	handler := a2etest.Must(a2e.NewHTTPHandler(h, nil))
	web := httptest.NewServer(handler)
	defer web.Close()
	defer h.Close()
	var created atomic.Int64
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var strangers sync.WaitGroup
	each := 1250
	if race.Enabled {
		each = 250
	}
	for worker := range 8 {
		strangers.Go(func() {
			for i := 0; i < each && ctx.Err() == nil; i++ {
				r := httptest.NewRequest(http.MethodPost, "/session", nil)
				r.RemoteAddr = fmt.Sprintf("198.51.%d.%d:1000", i>>5, worker<<5|i&31)
				w := httptest.NewRecorder()
				handler.ServeHTTP(w, r)
				if w.Code == http.StatusOK {
					created.Add(1)
				}
			}
		})
	}
	var took []time.Duration
	for range 9 {
		start := time.Now()
		for isConnected := false; !isConnected; { // hundreds of strangers may come between the request and its handshake
			c := a2etest.Must(a2e.NewClient(dialHTTP(t, web.URL), &a2e.ClientOptions{Token: "s3cret", Capabilities: []string{"demo"}}))
			_, err := c.Connect(t.Context())
			isConnected = err == nil
			require.True(t, isConnected || errors.Is(err, a2e.ErrClosed), "%v", err)
			require.NoError(t, c.Close())
		}
		took = append(took, time.Since(start))
	}
	strangers.Wait()
	slices.Sort(took)
	require.Less(t, took[len(took)/2], time.Second)
	require.Greater(t, created.Load(), int64(8*each-100), "a session may be closed before its own answer")
	require.LessOrEqual(t, len(h.Sessions()), 256)
}

// heapGrowth returns by how much f increases the live heap.
func heapGrowth(f func()) int64 {
	before := kit.Heap()
	f()
	return kit.Heap() - before
}

// A thousand calls to a host that reads nothing hold at most 64 MiB and end with the cause.
func TestThousandCallsToSilentHost(t *testing.T) {
	for _, parallel := range []int{4, 1000} {
		synctest.Test(t, func(t *testing.T) {
			agent, host := net.Pipe() // holds nothing
			c := a2etest.Must(a2e.NewClient(agent, &a2e.ClientOptions{Logger: slog.New(slog.DiscardHandler), Timing: a2e.ClientTiming{WriteTimeout: 5 * time.Second}}))
			go func() {
				m := a2etest.Must(a2e.NewCodec().Decode(firstLine(host)))
				_, _ = io.WriteString(host, message("handshake/resp", "h", fmt.Sprintf(`,"req_id":%q,"max_parallel":%d`, m.ID, parallel))+"\n")
			}()
			_, err := c.Connect(t.Context())
			require.NoError(t, err)
			var members a2e.Members
			require.NoError(t, members.Set("text", strings.Repeat("x", 32_000)))
			errs := make(chan error, 1000)
			growth := heapGrowth(func() {
				for range 1000 {
					go func() {
						_, err := c.Call(t.Context(), "demo/ask/req", members, &a2e.CallOptions{Timeout: time.Hour})
						errs <- err
					}()
				}
				synctest.Wait()
			})
			require.Less(t, growth, int64(64<<20), "parallel %d", parallel)
			for range 1000 {
				err := <-errs
				require.Equal(t, "stall", causeOf(t, err).Kind)
				require.ErrorContains(t, err, "no progress of a write")
			}
			require.NoError(t, c.Close())
			_ = host.Close()
		})
	}
}

// A thousand calls of an agent that reads no answer hold at most 64 MiB, and the session ends with the
// cause.
func TestThousandCallsOfSilentAgent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		answer := json.RawMessage(`{"text":"` + strings.Repeat("x", 100_000) + `"}`)
		var log strings.Builder
		h := a2etest.NewHost(t, &a2e.HostOptions{Logger: slog.New(slog.NewTextHandler(&log, nil)), Timing: a2e.Timing{WriteTimeout: 5 * time.Second},
			Limits: a2e.Limits{QueueLimitPerSession: 1000}}, &a2e.Plugin{
			Name: "demo", Capability: "demo", Routes: []a2e.Route{
				a2e.NewRoute("demo/ask/req", func(context.Context, *a2e.Call, *struct{}) (*largeAnswer, error) {
					return &largeAnswer{Data: answer}, nil
				})}})
		r := open(t, h)
		r.shake(`"demo"`)
		growth := heapGrowth(func() {
			for i := range 1000 {
				r.send(message("demo/ask/req", fmt.Sprint("q", i), ""))
			}
			synctest.Wait()
		})
		require.Less(t, growth, int64(64<<20))
		start := time.Now()
		require.Equal(t, &a2e.CloseError{Kind: "stall"}, <-r.done)
		require.LessOrEqual(t, time.Since(start), 7*time.Second)
		require.Contains(t, log.String(), `msg="a2e: session ended"`)
		require.Contains(t, log.String(), "slow reader")
		r.done <- nil
		require.NoError(t, h.Close())
		for _, u := range h.Usage() {
			require.Zero(t, u.Used, "%+v", u)
		}
	})
}

type largeAnswer struct {
	ReqID string          `json:"req_id,omitzero" jsonmap:"always"`
	Data  json.RawMessage `json:"data"`
}

// Neither a hundred handlers, nor the functions Close of plugins, nor runners of subagents, nor an authenticator
// that ignore their contexts delay the end of a host (A2E-D58).
func TestShutdownWithHundredDeafHandlers(t *testing.T) {
	for _, name := range []string{"shutdown", "close"} {
		synctest.Test(t, func(t *testing.T) {
			var returned atomic.Int32
			admits := a2etest.KeyAuthenticator("s3cret")
			auth := a2e.AuthenticatorFunc(func(ctx context.Context, r *a2e.HandshakeRequest) (*a2e.Principal, error) {
				if r.AuthToken == "deaf" {
					time.Sleep(time.Minute)
					return nil, errors.New("too late")
				}
				return admits.Authenticate(ctx, r)
			})
			h := a2etest.NewHost(t, &a2e.HostOptions{Logger: slog.New(slog.DiscardHandler), Auth: a2e.Auth{Authenticator: auth}}, &a2e.Plugin{
				Name: "demo", Capability: "demo",
				Open:  func(*a2e.Session) (any, error) { return 1, nil },
				Close: func(any) { time.Sleep(time.Minute) },
				Routes: []a2e.Route{a2e.NewRoute("demo/tidy/req", func(context.Context, *a2e.Call, *struct{}) (*struct{}, error) {
					time.Sleep(time.Minute)
					return nil, nil
				})}}, a2etest.Must(subagents.NewPlugin(subagents.RunnerFunc(func(context.Context, *subagents.Agent, *subagents.Task) (json.RawMessage, error) {
				time.Sleep(time.Minute)
				returned.Add(1)
				return nil, nil
			}), nil)))
			var agents []*raw
			for i := range 26 {
				r := open(t, h)
				agents = append(agents, r)
				if i == 25 {
					r.send(message("handshake/req", "h", `,"agent_id":"t","agent_caps":["demo"],"auth_token":"deaf"`))
					break
				}
				r.shake(`"demo","multi_agent"`)
				r.send(message("multi_agent/spawn", "s", `,"name":"n","role":"r"`))
				id, _ := json.Marshal(r.next().Body.(*subagents.SpawnResponse).SubagentID)
				r.send(message("multi_agent/delegate", "d", `,"subagent_id":`+string(id)+`,"task_name":"t","instruction":"i"`))
				require.Equal(t, subagents.StatusRunning, r.next().Body.(*subagents.DelegateResponse).Status)
				for n := range 4 {
					r.send(message("demo/tidy/req", fmt.Sprint(n), ""))
				}
			}
			synctest.Wait()
			start := time.Now()
			if name == "shutdown" {
				ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
				defer cancel()
				require.ErrorIs(t, h.Shutdown(ctx), context.DeadlineExceeded)
				require.Equal(t, 3*time.Second, time.Since(start))
			} else {
				require.NoError(t, h.Close())
				require.LessOrEqual(t, time.Since(start), time.Second)
			}
			end := time.Now()
			for _, r := range agents {
				<-r.done
				r.done <- nil
			}
			require.LessOrEqual(t, time.Since(end), time.Second, "Serve returns")
			time.Sleep(2 * time.Second)
			stuck := 0
			for _, s := range h.Stuck() {
				if s.Type == "demo/tidy/req" {
					stuck++
				}
			}
			require.Equal(t, 100, stuck)
			require.Zero(t, returned.Load())
			time.Sleep(5 * time.Minute)
			require.EqualValues(t, 25, returned.Load())
			require.Empty(t, h.Stuck())
		})
	}
}
