// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package altar

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/altar/internal/core"
	"github.com/fivewire/fivewire/altar/internal/transport"
	"github.com/fivewire/fivewire/internal/kit"
	"github.com/fivewire/fivewire/internal/race"
	"github.com/fivewire/fivewire/store"
)

// TestAllocs bounds the allocations of a call in client, Host and Runtime together, in one process
// and over two byte streams.
func TestAllocs(t *testing.T) {
	if race.Enabled {
		t.Skip("the race detector allocates")
	}
	c, err := DecodeContract([]byte(benchContract))
	require.NoError(t, err)
	v, err := newValidator(c, validation{})
	require.NoError(t, err)
	buf, in := make([]byte, 0, 1024), []byte(benchParams)
	require.Zero(t, testing.AllocsPerRun(100, func() {
		if _, err := v.Append(buf, in); err != nil {
			panic(err)
		}
	}), "parameters that fit")

	for _, tt := range []struct {
		network
		state               store.Store
		call, stream, bytes float64
	}{
		{network{"direct", directTransport}, nil, 8, 131, 0},
		{network{"direct with a store", directTransport}, store.NewMemory(), 60, 0, 0},
		{network{"mem", pipeTransport}, nil, 20, 262, 0},
		{network{"WebSocket", webSocketTransport}, nil, 20, 0, 5 << 10},
		{network{"WebSocket with a store", webSocketTransport}, store.NewMemory(), 72, 0, 12 << 10},
	} {
		rt := testRuntime("r1", nil)
		rt.names["math/add"].tool = HandlerFunc(func(_ context.Context, call *ToolCall) (any, error) { return call.Parameters, nil })
		s := start(t, tt.dial, &HostOptions{Persistence: Persistence{Store: tt.state, ResultTTL: time.Second}, Timing: Timing{CallTimeout: time.Hour}}, rt)
		sess, err := s.c.CreateSession(t.Context(), nil)
		require.NoError(t, err)
		// Encoded, since what encoding/json allocates depends on the release of Go.
		params, limit := json.RawMessage(`{"a":1,"b":2}`), json.RawMessage(`{"n":100}`)
		allocs, bytes := perRun(5000, func() {
			if _, err := sess.Call(t.Context(), "math/add", params, nil); err != nil {
				panic(err)
			}
		})
		t.Logf("a call over %s: %.1f, %.0f bytes", tt.name, allocs, bytes)
		require.Less(t, allocs, tt.call+1, "a call over %s", tt.name)
		if tt.bytes > 0 {
			require.LessOrEqual(t, bytes, tt.bytes, "bytes of a call over %s", tt.name)
		}
		if tt.stream == 0 {
			continue
		}
		allocs, _ = perRun(50, func() {
			n := 0
			for _, err := range sess.Stream(t.Context(), "count", limit, nil) {
				if err != nil {
					panic(err)
				}
				n++
			}
			if n != 100 {
				panic(n)
			}
		})
		t.Logf("a stream of 100 over %s: %.1f", tt.name, allocs)
		require.Less(t, allocs, tt.stream+1, "a stream of 100 over %s", tt.name)
	}
}

// perRun returns the allocations and their bytes of one of n runs of f, after one that is not counted. It counts three times
// and takes the least, since goroutines that a busy machine holds up make others allocate.
func perRun(n int, f func()) (allocs, bytes float64) {
	allocs, bytes = math.MaxFloat64, math.MaxFloat64
	for range 3 {
		a, b := countRuns(n, f)
		allocs, bytes = min(allocs, a), min(bytes, b)
	}
	return allocs, bytes
}

func countRuns(n int, f func()) (allocs, bytes float64) {
	f()
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range n {
		f()
	}
	runtime.ReadMemStats(&after)
	return float64(after.Mallocs-before.Mallocs) / float64(n), float64(after.TotalAlloc-before.TotalAlloc) / float64(n)
}

// Routing allocates nothing, with ten thousand sessions too.
func TestRouteAllocatesNothing(t *testing.T) {
	if race.Enabled {
		t.Skip("the race detector allocates")
	}
	h := testHost(t, nil)
	attachRuntime(t, h, testService, "r1", "math/add")
	w := connect(t, h, testUser)
	ids := make([]string, 10_000)
	for i := range ids {
		ids[i] = fmt.Sprint("s", i)
		w.session(ids[i])
	}
	i := 0
	require.Zero(t, testing.AllocsPerRun(1000, func() {
		route(h, ids[i*7%len(ids)], i)
		i++
	}))
}

// heapOf returns the bytes of heap and stacks that remain of each of n things that f makes.
func heapOf(n int, f func()) int64 {
	before := kit.HeapAndStacks()
	f()
	return (kit.HeapAndStacks() - before) / int64(n)
}

// The memory of an idle session and of a call in flight is bounded.
func TestMemory(t *testing.T) {
	if race.Enabled {
		t.Skip("the race detector needs memory")
	}
	h := testHost(t, &HostOptions{Limits: Limits{MaxItemsPerPrincipal: -1, MaxConcurrentPerSession: -1, MaxConcurrentPerPrincipal: -1, MaxConcurrentPerRuntime: -1, RuntimeQueueLimit: -1, MaxMemoryPerSession: -1, MaxMemoryPerPrincipal: -1}, Timing: Timing{CallTimeout: time.Hour}})
	attachRuntime(t, h, testService, "r1", "math/add")
	w := connect(t, h, testUser)
	w.session("s")
	const n = 20_000
	sessions := heapOf(n, func() {
		for i := range n {
			w.session(fmt.Sprint("s", i))
		}
	})
	require.LessOrEqual(t, sessions, int64(512), "an idle session")
	calls := heapOf(n, func() {
		for i := range n {
			w.send(add(fmt.Sprint("i", i), "s"))
		}
		require.Eventually(t, func() bool { return h.Stats().InFlight == n }, time.Minute, time.Millisecond)
	})
	t.Logf("%d bytes of a session, %d of a call", sessions, calls)
	require.LessOrEqual(t, calls, int64(1664), "a call in flight, which the budget counts as 2 KiB and its parameters")
}

// An idle connection is small at the Host, with its buffers and stacks.
func TestMemoryOfConnections(t *testing.T) {
	if race.Enabled {
		t.Skip("the race detector needs memory")
	}
	const n = 300
	h := testHost(t, &HostOptions{Auth: Auth{Authenticator: keys()}, Limits: Limits{MaxUnauthenticatedPerAddress: -1}})
	ts := server(t, h)
	plain, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var served sync.WaitGroup
	served.Go(func() {
		for {
			c, err := plain.Accept()
			if err != nil {
				return
			}
			served.Go(func() { _ = h.Serve(context.Background(), NewStreamConn(c, nil), testUser) })
		}
	})
	conns := make([]net.Conn, 0, 2*n)
	defer func() {
		for _, c := range conns {
			_ = c.Close()
		}
		_ = plain.Close()
		served.Wait()
	}()
	// open makes connections of which each has sent a message and got its answer.
	open := func(address, first, ping string, answered func(r *bufio.Reader) error) int64 {
		return heapOf(n, func() {
			r := bufio.NewReader(nil)
			for range n {
				c, err := net.Dial("tcp", address)
				require.NoError(t, err)
				conns = append(conns, c)
				_, err = io.WriteString(c, first+ping)
				require.NoError(t, err)
				r.Reset(c)
				require.NoError(t, answered(r))
			}
		})
	}
	line := open(plain.Addr().String(), "", `{"type":"Ping"}`+"\n", func(r *bufio.Reader) error {
		_, err := r.ReadString('\n')
		return err
	})
	web := open(ts.Listener.Addr().String(), "GET "+WebSocketPath+" HTTP/1.1\r\nHost: "+ts.Listener.Addr().String()+"\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"+
		"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Protocol: "+transport.Subprotocol+"\r\n"+APIKeyHeader+": key-user\r\n\r\n",
		"\x81\x8f\x00\x00\x00\x00"+`{"type":"Ping"}`, func(r *bufio.Reader) error {
			for {
				text, err := r.ReadString('\n')
				if err != nil || text == "\r\n" {
					break
				}
			}
			_, err := r.Discard(2 + len(`{"type":"Pong"}`))
			return err
		})
	t.Logf("%d bytes of a byte stream, %d of a WebSocket", line, web)
	require.LessOrEqual(t, line, int64(24<<10))
	require.LessOrEqual(t, web, int64(36<<10))
}

// route finds the Runtime of a call in a session.
func route(h *Host, id string, turn int) {
	sh := h.shardOf(id)
	now := h.lock(sh)
	defer h.unlock(sh)
	name, _, err := resolveTool(h.manifest.Load().has, "math/add")
	if err != nil {
		panic(err)
	}
	d := core.Demand{Contract: name, Turn: uint64(turn), Now: now}
	if _, lack := sh.core.Find(id).Registry().Route(&d); lack != core.NoLack {
		panic(lack)
	}
}
