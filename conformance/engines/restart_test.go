// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package engines

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/a2e"
	"github.com/fivewire/fivewire/a2e/tools"
	"github.com/fivewire/fivewire/accp"
	"github.com/fivewire/fivewire/air"
	"github.com/fivewire/fivewire/altar"
	"github.com/fivewire/fivewire/arc"
	"github.com/fivewire/fivewire/conformance/fault"
	"github.com/fivewire/fivewire/store"
)

// allChild serves all protocols on one store.
func allChild(ctx context.Context, s store.Store) error {
	desk, err := accpDesk(s)
	if err != nil {
		return err
	}
	environment, err := a2eHost(ctx, store.Sub(s, "a2e/"))
	if err != nil {
		return err
	}
	host, err := altarHost(s)
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.Handle("/arc", arcServer(store.Sub(s, "arc/")))
	mux.Handle(accp.FramesPath, desk)
	mux.Handle("/", environment)
	mux.Handle(altar.WebSocketPath, host)
	mux.Handle("/inbox/", newRelay(s))
	return serveChild(mux)
}

// A caller makes calls of one protocol.
type caller struct {
	protocol string
	call     func(ctx context.Context, id string) (isAcknowledged bool)
	count    func(acked []string) map[string]int // the effects of these acknowledged calls

	mu    sync.Mutex
	calls int
	acked []string
	last  time.Time
}

// next makes a call, whose outcome is unknown if it is not acknowledged.
func (c *caller) next(ctx context.Context) {
	c.mu.Lock()
	c.calls++
	id := fmt.Sprint(c.protocol, "-", c.calls)
	c.mu.Unlock()
	if c.call(ctx, id) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.acked, c.last = append(c.acked, id), time.Now()
	}
}

func (c *caller) lastTime() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.last
}

// A process that serves all protocols is killed and started again every ten seconds for ten minutes. Nothing that it has acknowledged
// is lost or made twice, the callers do not grow, and each gets an answer soon after a start: the next process takes the work of
// the killed one over.
func TestRestarts(t *testing.T) {
	const patience = 5 * time.Second
	interval, d, slope := 2*time.Second, 6*time.Second, int64(-1)
	if os.Getenv("FIVEWIRE_LONG") != "" {
		interval, d, slope = 10*time.Second, 10*time.Minute, 4<<20 // the ids of calls stay
	}
	p := &place{name: "sqlite " + filepath.Join(t.TempDir(), "state.db")}
	t.Setenv(instanceEnv, "one")
	t.Setenv(altarHostEnv, "host")
	s, f := p.open(t), newFront(t)
	child := p.start(t, "all")
	f.put(child.address)
	host := &hostPlace{}
	host.address.Store(child.address)
	callers := []*caller{restartARC(t, s, f), restartA2E(t, s, f), restartALTAR(t, host), restartACCP(t, s, f), restartAIR(t, f)}
	rounds, slowest := 0, make(map[string]time.Duration)
	calling, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for sleep(calling, interval) {
			child.kill()
			child = p.start(t, "all")
			f.put(child.address)
			host.address.Store(child.address)
			rounds++
			started := time.Now()
			for _, c := range callers {
				silence := time.Duration(0)
				for c.lastTime().Before(started) && silence <= patience && sleep(calling, 10*time.Millisecond) {
					silence = time.Since(started)
				}
				slowest[c.protocol] = max(slowest[c.protocol], silence)
			}
		}
	}()
	fault.Soak(t, fault.Options{Callers: len(callers), For: d, HeapSlope: slope, Goroutines: 16, Files: 16}, func(i int) error {
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		callers[i].next(ctx)
		time.Sleep(65 * time.Millisecond) // an inbox keeps 10,000 nonces of a sender, and delays what exceeds them
		return nil
	})
	stop()
	<-done
	acknowledged := 0
	for _, c := range callers {
		require.LessOrEqual(t, slowest[c.protocol], patience, "%s: from a start to an answer", c.protocol)
		require.NotEmpty(t, c.acked, c.protocol)
		effects := c.count(c.acked)
		for _, id := range c.acked {
			require.Equal(t, 1, effects[id], id)
		}
		acknowledged += len(c.acked)
		t.Logf("%s: %d of %d calls acknowledged, %v from a start to an answer", c.protocol, len(c.acked), c.calls, slowest[c.protocol])
	}
	recordService(t, p, "all protocols", 1, fmt.Sprintf("kill -9 each %v for %v", interval, d), rounds, acknowledged)
}

// sleep reports false if ctx ends first.
func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}

func restartARC(t *testing.T, s store.Store, f *front) *caller {
	c := arcClient(t, f.URL, &arc.ClientOptions{Idempotent: true, Retry: &arc.RetryPolicy{MaxAttempts: 8}})
	tasks := make(map[string]string)
	return &caller{protocol: "ARC",
		call: func(ctx context.Context, id string) bool {
			task, err := c.CreateTask(ctx, agent, &arc.CreateTaskParams{InitialMessage: arc.UserText("act")}, nil)
			if err == nil {
				tasks[id] = task.ID
			}
			return err == nil
		},
		count: func(acked []string) map[string]int {
			effects := map[string]int{}
			for _, id := range acked {
				soon(t, "the end of "+id, func() bool {
					task, err := c.GetTask(t.Context(), agent, &arc.TaskInfoParams{TaskID: tasks[id]}, nil)
					require.NoError(t, err)
					if task.Status == arc.TaskFailed { // its process ended before it stored the message: it has no effect
						require.ErrorIs(t, task.Error, arc.ErrTaskExecutionFailed)
						effects[id] = 1
					}
					return task.Status.Final()
				})
			}
			acts := count(t, store.Sub(s, "arc/"), "acts")
			for _, id := range acked {
				effects[id] += acts[tasks[id]]
			}
			return effects
		}}
}

func restartA2E(t *testing.T, s store.Store, f *front) *caller {
	rw, err := a2e.DialHTTP(t.Context(), f.URL, &a2e.HTTPDialOptions{HTTPClient: own(t), Logger: quiet})
	require.NoError(t, err)
	c, err := a2e.NewClient(rw, &a2e.ClientOptions{AgentID: "agent", Capabilities: []string{"tools"}, Types: tools.Types(), Logger: quiet})
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	_, err = c.Connect(t.Context())
	require.NoError(t, err)
	client, err := tools.NewClient(c)
	require.NoError(t, err)
	return &caller{protocol: "A2E",
		call: func(ctx context.Context, id string) bool {
			_, err := client.Call(ctx, &tools.CallRequest{ToolName: "work", Arguments: json.RawMessage(`{"id":"` + id + `"}`)}, nil)
			if refused, _ := errors.AsType[*a2e.Error](err); err != nil && (refused == nil || refused.Reason != "interrupted") {
				t.Errorf("%s: %v", id, err)
			}
			return err == nil
		},
		count: func(acked []string) map[string]int {
			ends, effects := count(t, store.Sub(s, "a2e/"), "ends"), map[string]int{}
			for _, id := range acked {
				effects[id] = ends[`{"id":"`+id+`"}`]
			}
			return effects
		}}
}

func restartALTAR(t *testing.T, host *hostPlace) *caller {
	log := &callLog{runs: map[string]int{}, outcomes: map[string]string{}, failed: map[string]bool{}}
	ctx, stop := context.WithCancel(t.Context())
	var runtime sync.WaitGroup
	rt := log.runtime(t, "runtime")
	runtime.Go(func() { _ = rt.RunWithReconnect(ctx, host.dial("service")) })
	t.Cleanup(runtime.Wait)
	t.Cleanup(stop)
	c, err := altar.NewClient(host.dial("alice"), &altar.ClientOptions{Logger: quiet})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	session, err := c.CreateSession(ctx, &altar.CreateSessionParams{ID: "s", TTL: time.Hour})
	require.NoError(t, err)
	soon(t, "its Runtime is known", func() bool {
		list, err := session.ListTools(ctx)
		return err == nil && len(list) == 3
	})
	return &caller{protocol: "ALTAR",
		call: func(ctx context.Context, id string) bool {
			_, err := session.Call(ctx, "once", nil, &altar.CallOptions{InvocationID: id})
			if errors.Is(err, altar.ErrToolNotFound) {
				t.Errorf("%s: %v", id, err)
			}
			return err == nil
		},
		count: func([]string) map[string]int { return log.runs }}
}

func restartACCP(t *testing.T, s store.Store, f *front) *caller {
	c, err := accpClient(s, "agent1", f.URL+accp.FramesPath, own(t))
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return &caller{protocol: "ACCP",
		call: func(ctx context.Context, id string) bool {
			_, err := pay(ctx, c, id)
			return err == nil
		},
		count: func([]string) map[string]int { return count(t, s, "runs") }}
}

func restartAIR(t *testing.T, f *front) *caller {
	w := newWorld(t)
	mailbox := f.URL + "/inbox/" + w.bob.AIRID()
	w.registry.Register(w.bob, mailbox)
	state, calls := store.NewMemory(), new(atomic.Int64)
	run(t, w.poller(t, state, mailbox, calls))
	envelopes := make(map[string]string)
	return &caller{protocol: "AIR",
		call: func(_ context.Context, id string) bool {
			wire := w.offer(t)
			e, err := air.DecodeEnvelope(wire, nil)
			require.NoError(t, err)
			envelopes[id] = e.ID
			return w.push(f.URL, wire) == http.StatusAccepted
		},
		count: func(acked []string) map[string]int {
			acts, effects := map[string]int{}, map[string]int{}
			for _, id := range acked {
				if acts[envelopes[id]] == 0 {
					soon(t, "the arrival of "+id, func() bool {
						acts = count(t, state, "acts")
						return acts[envelopes[id]] > 0
					})
				}
			}
			for _, id := range acked {
				effects[id] = acts[envelopes[id]]
			}
			return effects
		}}
}
