// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package altar

import (
	"encoding/json"
	"fmt"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/altar/internal/core"
	"github.com/fivewire/fivewire/internal/race"
	"github.com/fivewire/fivewire/store"
)

// announce makes a connection that of a Runtime, which fulfils contracts in all sessions.
func (w *wire) announce(id string, contracts ...string) {
	w.t.Helper()
	w.send(&AnnounceRuntime{RuntimeID: id, ProtocolVersion: "1.0.0", Capabilities: []string{capStanding}})
	next[*AcknowledgeRuntime](w)
	w.send(&FulfillTools{SessionID: allSessions, ToolNames: contracts})
	next[*AcknowledgeFulfillment](w)
}

// ALT-D34: a Router that blocks delays its call only. The call ends at its time, with its session, or
// with a cancellation.
func TestRouterBlocks(t *testing.T) {
	for _, hasStore := range []bool{false, true} {
		t.Run(fmt.Sprint("store=", hasStore), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				gate := make(chan struct{})
				opts := &HostOptions{Router: Router(func(r *RouteRequest, c []Candidate) int {
					if r.Contract == "math/add" {
						<-gate
					}
					return 1
				})}
				if hasStore {
					opts.Persistence.Store = store.NewMemory()
				}
				h := testHost(t, opts)
				r1, r2 := connect(t, h, testService), connect(t, h, testService)
				r1.announce("r1", "math/add", "get")
				r2.announce("r2", "math/add", "get")
				c := connect(t, h, testUser)
				c.session("s")
				c.session("ended")
				for _, id := range []string{"first", "cancelled", "late"} {
					c.send(add(id, "s"))
				}
				c.send(add("over", "ended"))
				synctest.Wait()
				require.Equal(t, 4, h.Stats().InFlight)

				c.send(&ToolCall{InvocationID: "other", SessionID: "s", ToolName: "get", Parameters: json.RawMessage(`{"key":"k"}`)})
				require.Equal(t, "other", next[*ToolCall](r2).InvocationID, "the second candidate")
				r2.send(&ToolResult{InvocationID: "other", Payload: json.RawMessage("1")})
				require.Equal(t, "1", string(next[*ToolResult](c).Payload))
				c.send(&CancelCall{SessionID: "s", InvocationID: "cancelled"})
				require.ErrorIs(t, next[*ToolResult](c).Error, ReasonCancelled)
				c.send(&DestroySession{SessionID: "ended"})
				require.ErrorIs(t, next[*ToolResult](c).Error, reasonSessionDestroyed)
				next[*SessionDestroyed](c)

				close(gate)
				for range 2 {
					call := next[*ToolCall](r2)
					require.Contains(t, []string{"first", "late"}, call.InvocationID)
					r2.send(&ToolResult{InvocationID: call.InvocationID, Payload: json.RawMessage("3")})
					require.Equal(t, "3", string(next[*ToolResult](c).Payload))
				}
				synctest.Wait()
				require.Zero(t, h.Stats().InFlight)

				gate = make(chan struct{})
				start := time.Now()
				c.send(add("timed", "s"))
				require.ErrorIs(t, next[*ToolResult](c).Error, ReasonDeadline)
				require.Equal(t, 30*time.Second, time.Since(start).Round(time.Second))
				close(gate)
			})
		})
	}
}

// A Runtime that leaves while the Router chooses it gets no call.
func TestRouterChoosesAbsentRuntime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gate, n := make(chan struct{}), 0
		h := testHost(t, &HostOptions{Router: Router(func(*RouteRequest, []Candidate) int {
			if n++; n == 1 {
				<-gate
			}
			return 0
		})})
		r1, r2 := connect(t, h, testService), connect(t, h, testService)
		r1.announce("r1", "math/add")
		r2.announce("r2", "math/add")
		c := connect(t, h, testUser)
		c.session("s")
		c.send(add("i", "s"))
		synctest.Wait()
		require.NoError(t, r1.conn.Close())
		synctest.Wait()
		close(gate)
		require.Equal(t, "i", next[*ToolCall](r2).InvocationID)
		require.Equal(t, 2, n)
	})
}

// A queue whose limits are off, or as large as a number may be, disconnects no Runtime.
func TestRuntimeQueueWithoutLimit(t *testing.T) {
	for _, limit := range []int{-1, math.MaxInt} {
		synctest.Test(t, func(t *testing.T) {
			h := testHost(t, &HostOptions{Limits: Limits{RuntimeQueueLimit: limit, MaxRuntimeQueue: limit}})
			rt, c := connect(t, h, testService), connect(t, h, testUser)
			rt.announce("r", "math/add")
			for i := range 5 {
				c.session(fmt.Sprint("s", i))
				c.send(add(fmt.Sprint("i", i), fmt.Sprint("s", i)))
			}
			synctest.Wait()
			require.Equal(t, []string{"r"}, h.runtimeIDs())
			for i := range 5 {
				require.Equal(t, fmt.Sprint("i", i), next[*ToolCall](rt).InvocationID)
			}
		})
	}
}

// A Runtime gets messages that are larger than its queue, one at a time.
func TestRuntimeQueueTakesOneMessageOfAnySize(t *testing.T) {
	for _, limit := range []int{1, 1000} {
		synctest.Test(t, func(t *testing.T) {
			h := newTextHost(t, Limits{MaxRuntimeQueue: limit})
			rt, c := connect(t, h, testService), connect(t, h, testUser)
			rt.announce("r1", "echo")
			c.session("s")
			c.send(textCall("i", "s", 3000))
			c.send(textCall("refused", "s", 3000))
			synctest.Wait()
			require.Equal(t, []string{"r1"}, h.runtimeIDs())
			require.ErrorIs(t, next[*ToolResult](c).Error, ReasonOverloaded)
			for _, id := range []string{"i", "j"} {
				require.Equal(t, id, next[*ToolCall](rt).InvocationID)
				rt.send(&ToolResult{InvocationID: id, Payload: []byte("1")})
				require.Nil(t, next[*ToolResult](c).Error)
				c.send(textCall("j", "s", 3000))
			}
		})
	}
}

// The cost of a Runtime that leaves and returns depends on its own calls, not on those of others or on
// the sessions.
func TestRuntimeLeavesAmongManyCalls(t *testing.T) {
	sessions, calls := 1_000, 100_000
	if race.Enabled || testing.Short() {
		calls = 10_000
	}
	cost := func(sessions, calls int) time.Duration {
		h := testHost(t, &HostOptions{Limits: Limits{MaxConcurrent: -1, MaxConcurrentPerPrincipal: -1, MaxConcurrentPerRuntime: -1, MaxMemoryPerPrincipal: -1, MaxMemory: -1,
			RuntimeQueueLimit: 1 << 20, MaxRuntimeQueue: 1 << 30}})
		busy := connect(t, h, testService)
		busy.announce("busy", "math/add")
		c := connect(t, h, testUser)
		for i := range sessions {
			c.session(fmt.Sprint("s", i))
		}
		for i := range calls {
			c.send(add(fmt.Sprint("i", i), fmt.Sprint("s", i%sessions)))
		}
		for range calls {
			next[*ToolCall](busy)
		}
		shortest := time.Hour
		for i := range 20 {
			rt := connect(t, h, testService)
			rt.announce("idle", "get")
			h.lockAll()
			hc := h.fleet.owners["idle"].conn
			h.unlockAll()
			id := fmt.Sprint("own", i)
			c.send(&ToolCall{InvocationID: id, SessionID: "s0", ToolName: "get", Parameters: json.RawMessage(`{"key":"k"}`)})
			next[*ToolCall](rt)
			now := h.lockAll()
			start := time.Now()
			h.disconnect(hc, now)
			shortest = min(shortest, time.Since(start))
			h.unlockAll()
			c.send(&CancelCall{SessionID: "s0", InvocationID: id})
			require.ErrorIs(t, next[*ToolResult](c).Error, ReasonCancelled, "it waited for another attempt")
			_ = rt.conn.Close()
		}
		return shortest
	}
	few, many := cost(1, 10), cost(sessions, calls)
	t.Logf("%v among 10 calls, %v among %d", few, many, calls)
	require.Less(t, many, 20*few+200*time.Microsecond)
}

// A change of the fulfilments in all sessions is made once, not in each shard.
func TestFulfillmentsChangeOnce(t *testing.T) {
	h := testHost(t, nil)
	attachRuntime(t, h, testService, "r1", "math/add")
	rt := attachRuntime(t, h, testService, "r2", "math/add", "get")
	require.NoError(t, h.ReplaceManifest(must(DecodeManifest([]byte(testManifest)))))
	require.NoError(t, rt.conn.Close())
	connect(t, h, testUser).session("s")
	changes := 0
	now := h.lockAll()
	defer h.unlockAll()
	h.broadcast(now, &core.Event{Kind: core.Fulfilled, Change: func(r *core.Registry) *core.Registry {
		changes++
		return r.Keep(func(string) bool { return true })
	}})
	require.Equal(t, 1, changes)
	require.Equal(t, []string{"r1"}, h.shardOf("s").core.Find("s").Registry().Connected("math/add"))
}
