// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package a2e_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/a2e"
	"github.com/fivewire/fivewire/a2e/a2etest"
	"github.com/fivewire/fivewire/a2e/tools"
	"github.com/fivewire/fivewire/internal/kit"
	"github.com/fivewire/fivewire/internal/race"
)

// loadCalls returns the number of concurrent calls of one session.
func loadCalls() int64 {
	if race.Enabled {
		return 250
	}
	return 1000
}

// loadHost runs a thousand calls at a time. Its tool "rank" answers after the arrival of the last
// call, in reverse order.
func loadHost() *a2e.Host {
	var mu sync.Mutex
	gates := map[int64]chan struct{}{}
	gate := func(n int64) chan struct{} {
		mu.Lock()
		defer mu.Unlock()
		if gates[n] == nil {
			gates[n] = make(chan struct{})
		}
		return gates[n]
	}
	var arrived atomic.Int64
	set := a2etest.Must(tools.NewSet(nil))
	tools.AddTool(set, "rank", "", func(ctx context.Context, call *a2e.Call, in struct {
		N int64 `json:"n"`
	}) (int64, error) {
		if err := call.Emit(a2e.EventProgress, map[string]int{"pct": 0}); err != nil {
			return 0, err
		}
		if arrived.Add(1) == loadCalls() {
			close(gate(loadCalls()))
		}
		select {
		case <-gate(in.N + 1):
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		}
		defer close(gate(in.N))
		return in.N, call.Emit(a2e.EventProgress, map[string]int{"pct": 100})
	}, nil)
	d := new(tools.Definition)
	d.Name = "wait"
	set.Add(tools.Tool{Definition: *d, Run: func(ctx context.Context, _ *a2e.Call, _ json.RawMessage) (any, error) {
		if arrived.Add(1) == loadCalls() {
			close(gate(loadCalls()))
		}
		<-ctx.Done()
		return nil, ctx.Err()
	}})
	ready := new(tools.Definition)
	ready.Name = "ready"
	set.Add(tools.Tool{Definition: *ready, Run: func(ctx context.Context, _ *a2e.Call, _ json.RawMessage) (any, error) {
		select {
		case <-gate(loadCalls()):
			return nil, nil
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}})
	return a2etest.Must(a2e.NewHost(&a2e.HostOptions{Auth: a2e.Auth{Authenticator: a2etest.KeyAuthenticator("s3cret")}, Limits: a2e.Limits{MaxConcurrentPerSession: loadCalls() + 1, MaxConcurrentPerPrincipal: -1, MaxConcurrent: -1, MaxReplayEvents: 4 * int(loadCalls())}})).
		AddPlugin(set.Plugin())
}

// A thousand calls run at once over one session, and are answered in the reverse
// order, with events of all of them in between: every answer and every event
// finds its call, on every transport.
func TestLoad(t *testing.T) {
	t.Setenv("A2E_TEST_HOST", "load")
	for _, tr := range transports() {
		t.Run(tr.name, func(t *testing.T) {
			c := dial(t, tr, loadHost(), &a2e.ClientOptions{Timing: a2e.ClientTiming{CloseTimeout: 50 * time.Millisecond}})
			var all sync.WaitGroup
			for i := range int(loadCalls()) {
				all.Go(func() {
					n := strconv.Itoa(i)
					got, events, err := echo(t.Context(), c, "rank", n, true)
					if err != nil || got != n || events != 2 {
						t.Errorf("call %d: %q, %d events, %v", i, got, events, err)
					}
				})
			}
			all.Wait()
			require.Zero(t, c.Stats().Dropped)
		})
	}
}

// A host that is killed with a thousand calls in flight fails all of them at once with a clear
// error, and leaks nothing.
func TestLoadHostKilled(t *testing.T) {
	t.Setenv("A2E_TEST_HOST", "load")
	for _, tr := range transports() {
		t.Run(tr.name, func(t *testing.T) {
			before := runtime.NumGoroutine()
			ctx, kill := context.WithCancel(t.Context())
			defer kill()
			h := loadHost()
			rw := tr.dial(ctx, t, h)
			c := a2etest.Must(a2e.NewClient(rw, &a2e.ClientOptions{Token: "s3cret", Capabilities: []string{"tools"}, Types: tools.Types(), Timing: a2e.ClientTiming{CloseTimeout: 50 * time.Millisecond}}))
			_, err := c.Connect(t.Context())
			require.NoError(t, err)
			var all sync.WaitGroup
			for i := range int(loadCalls()) {
				all.Go(func() {
					r := new(tools.CallRequest)
					r.ToolName, r.Arguments, r.Timeout = "wait", json.RawMessage(`{}`), 60
					_, err := c.Call(t.Context(), "tool/call/req", r, nil)
					if !errors.Is(err, a2e.ErrClosed) && !errors.Is(err, a2e.ErrTimeout) { // cut off, or answered at the last moment
						t.Errorf("call %d: %v", i, err)
					}
				})
			}
			_, _, err = echo(t.Context(), c, "ready", "0", false)
			require.NoError(t, err)
			if child, ok := rw.(*a2e.Command); ok {
				p, err := os.FindProcess(child.PID())
				require.NoError(t, err)
				require.NoError(t, p.Kill())
			} else {
				kill()
			}
			if tr.name == "http" { // over HTTP a killed host looks like an unreachable one
				require.NoError(t, c.Close())
				require.NoError(t, h.Close())
			}
			all.Wait()
			require.NoError(t, c.Close())
			_, _, err = echo(t.Context(), c, "ready", "0", false)
			require.ErrorIs(t, err, a2e.ErrClosed)
			require.Eventually(t, func() bool { return len(h.Sessions()) == 0 && runtime.NumGoroutine() <= before+10 },
				10*time.Second, 5*time.Millisecond)
		})
	}
}

// A silentAgent has a host whose answers and events are long, and floods it with calls
// without ever reading.
type silentAgent struct {
	host *a2e.Host
	rw   io.ReadWriteCloser
	sent chan struct{} // closed when it could send nothing more
}

func newSilentAgent(t *testing.T, stall time.Duration) *silentAgent {
	big := strings.Repeat("x", 100_000)
	set := a2etest.Must(tools.NewSet(nil))
	tools.AddTool(set, "big", "", func(context.Context, *a2e.Call, struct{}) (string, error) { return big, nil }, nil)
	tools.AddTool(set, "flood", "", func(ctx context.Context, call *a2e.Call, _ struct{}) (any, error) {
		for {
			if err := call.Emit(a2e.EventLog, map[string]string{"message": big}); err != nil {
				return nil, err
			}
		}
	}, nil)
	a := &silentAgent{sent: make(chan struct{}), host: a2etest.Must(a2e.NewHost(&a2e.HostOptions{Auth: a2e.Auth{Authenticator: a2etest.KeyAuthenticator("s3cret")},
		Timing: a2e.Timing{WriteTimeout: stall, SessionIdleTimeout: time.Second}})).AddPlugin(set.Plugin())}
	t.Cleanup(func() { require.NoError(t, a.host.Close()) })
	return a
}

func (a *silentAgent) flood(t *testing.T, tr transport) {
	a.rw = tr.dial(t.Context(), t, a.host)
	go func() {
		defer close(a.sent)
		if _, err := io.WriteString(a.rw, message("handshake/req", "h", `,"auth_token":"s3cret","agent_caps":["tools"]`)+"\n"); err != nil {
			return
		}
		for i := range 1000 {
			tool := []string{"big", "flood"}[i%2]
			line := message("tool/call/req", fmt.Sprint("c", i), `,"tool_name":"`+tool+`","arguments":{},"streaming":true,"timeout":60`)
			if _, err := io.WriteString(a.rw, line+"\n"); err != nil {
				return
			}
		}
	}()
	require.Eventually(t, func() bool { return len(a.host.Sessions()) == 1 }, time.Minute, time.Millisecond)
}

// end closes the connection. Close may fail because the host has closed it.
func (a *silentAgent) end() {
	_ = a.rw.Close()
	<-a.sent
}

// An agent that floods its session with calls and stops reading costs the host at most the bounds,
// and delays no other agent.
func TestLoadSilentAgent(t *testing.T) {
	for _, tr := range transports() {
		if tr.name == "child" {
			continue // its memory is not ours
		}
		t.Run(tr.name, func(t *testing.T) {
			a := newSilentAgent(t, -1) // a limit would be that of the other agent too, however loaded the machine is
			before := kit.Heap()
			a.flood(t, tr)
			other := dial(t, transports()[0], a.host, nil)
			for range 20 {
				_, _, err := echo(t.Context(), other, "big", "0", false)
				require.NoError(t, err, "others are served")
			}
			require.Less(t, kit.Heap()-before, int64(64<<20))
			a.end()
		})
	}
}

// Such an agent is cut off in time.
func TestSilentAgentIsCutOff(t *testing.T) {
	for _, tr := range transports() {
		if tr.name == "child" {
			continue // its sessions are not ours
		}
		t.Run(tr.name, func(t *testing.T) {
			t.Parallel() // it waits most of the time
			a := newSilentAgent(t, 300*time.Millisecond)
			a.flood(t, tr)
			if tr.name == "http" {
				require.NoError(t, a.rw.Close()) // an unread session waits for a reader, and expires
			}
			require.Eventually(t, func() bool { return len(a.host.Sessions()) == 0 }, time.Minute, 5*time.Millisecond, "it is cut off")
			a.end()
		})
	}
}
