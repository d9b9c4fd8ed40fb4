// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package altar

import (
	"context"
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/internal/kit"
	"github.com/fivewire/fivewire/internal/race"
	"github.com/fivewire/fivewire/store"
)

// Ten thousand calls in flight through one Host with fifty Runtimes: every call ends once, memory
// is bounded, sessions do not delay each other, and an unread stream does not delay other calls.
func TestLoad(t *testing.T) {
	t.Run("no store", func(t *testing.T) { load(t, nil) })
	t.Run("store", func(t *testing.T) { load(t, store.NewMemory()) })
}

func load(t *testing.T, state store.Store) {
	calls, runtimes, sessions := 10_000, 50, 20
	if race.Enabled && state != nil {
		calls = 2000
	}
	if testing.Short() {
		calls, runtimes = 1000, 10
	}
	release := make(chan struct{})
	var running atomic.Int64
	var all []*Runtime
	for i := range runtimes {
		rt := must(NewRuntime(fmt.Sprintf("r%d", i), nil))
		AddTool(rt, "math/add", func(ctx context.Context, in addIn) (int64, error) {
			running.Add(1)
			select {
			case <-release:
			case <-ctx.Done():
				return 0, ctx.Err()
			}
			return in.A + in.B, nil
		})
		rt.HandleStream("ticks", StreamHandlerFunc(func(ctx context.Context, _ *ToolCall, out *ChunkWriter) error {
			for ctx.Err() == nil {
				if err := out.Send("tick"); err != nil {
					return err
				}
			}
			return ctx.Err()
		}))
		all = append(all, rt)
	}
	s := start(t, directTransport, &HostOptions{Limits: Limits{MaxConcurrentPerPrincipal: -1, MaxConcurrentPerSession: -1}, Timing: Timing{CallTimeout: time.Hour, ClientGracePeriod: time.Millisecond}, Persistence: Persistence{Store: state}}, all...)
	before := kit.HeapAndStacks()

	// One client requests a stream and never reads it.
	lazy, err := s.h.Dial(testUser)
	require.NoError(t, err)
	require.NoError(t, lazy.Send(&CreateSession{SessionID: "lazy"}))
	require.NoError(t, lazy.Send(&ToolCall{InvocationID: "lazy", SessionID: "lazy", ToolName: "ticks"}))

	var wg sync.WaitGroup
	var mu sync.Mutex
	last := make([]time.Duration, sessions)
	var start time.Time
	for i := range sessions {
		sess, err := s.c.CreateSession(t.Context(), nil)
		require.NoError(t, err)
		for k := range calls / sessions {
			wg.Go(func() {
				got, err := CallAs[int64](t.Context(), sess, "math/add", addIn{int64(i), int64(k)}, nil)
				if err != nil || got != int64(i+k) {
					t.Errorf("%d %d: %d %v", i, k, got, err)
				}
				mu.Lock()
				last[i] = max(last[i], time.Since(start))
				mu.Unlock()
			})
		}
	}
	for running.Load() < int64(calls) && !t.Failed() {
		time.Sleep(time.Millisecond)
	}
	require.GreaterOrEqual(t, s.h.Stats().InFlight, calls)
	perCall := (kit.HeapAndStacks() - before) / int64(calls)
	t.Logf("%d bytes for each call in flight, client, Host, Runtime and their goroutines together", perCall)
	if !race.Enabled { // which allocates
		require.Less(t, perCall, int64(40<<10))
	}

	mu.Lock()
	start = time.Now()
	mu.Unlock()
	close(release)
	wg.Wait()
	t.Logf("%d calls answered in %v; the first session was done after %v, the last after %v", calls, time.Since(start), slices.Min(last), slices.Max(last))
	require.NoError(t, lazy.Close())
	st := s.h.Stats()
	require.Equal(t, uint64(calls), st.Succeeded)
	s.empty(t)
}

// A session that saturates a Host does not delay another one beyond a fair share: a caller with one
// call at a time gets as many responses as each caller of the busy session. Thousands of unfinished
// calls and an unread stream do not change this.
func TestFairness(t *testing.T) {
	release := make(chan struct{})
	var all []*Runtime
	for i := range 5 {
		rt := testRuntime(fmt.Sprintf("r%d", i), nil)
		rt.names["fail"].tool = HandlerFunc(func(ctx context.Context, _ *ToolCall) (any, error) {
			select {
			case <-release:
			case <-ctx.Done():
			}
			return nil, ctx.Err()
		})
		rt.names["ticks"].stream = StreamHandlerFunc(func(ctx context.Context, _ *ToolCall, out *ChunkWriter) error {
			for ctx.Err() == nil {
				if err := out.Send("tick"); err != nil {
					return err
				}
			}
			return ctx.Err()
		})
		all = append(all, rt)
	}
	s := start(t, pipeTransport, &HostOptions{Limits: Limits{MaxConcurrentPerSession: -1}, Timing: Timing{CallTimeout: time.Minute, ClientGracePeriod: time.Millisecond}}, all...)
	lazy, err := s.dial(testUser)(t.Context())
	require.NoError(t, err)
	require.NoError(t, lazy.Send(&CreateSession{SessionID: "lazy"}))
	require.NoError(t, lazy.Send(&ToolCall{InvocationID: "lazy", SessionID: "lazy", ToolName: "ticks"}))

	busy, err := s.c.CreateSession(t.Context(), nil)
	require.NoError(t, err)
	const stuck, callers = 2000, 64
	calls := 300
	if race.Enabled {
		calls = 100
	}
	var wg sync.WaitGroup
	for range stuck {
		wg.Go(func() {
			if _, err := busy.Call(t.Context(), "fail", nil, nil); err != nil {
				t.Error(err)
			}
		})
	}
	for s.h.Stats().InFlight < stuck {
		time.Sleep(time.Millisecond)
	}
	var answered atomic.Int64
	done := make(chan struct{})
	for range callers {
		wg.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				if _, err := CallAs[int64](t.Context(), busy, "math/add", addIn{1, 2}, nil); err != nil {
					t.Error(err)
					return
				}
				answered.Add(1)
			}
		})
	}
	other := must(NewClient(s.dial(testUser), nil))
	quiet, err := other.CreateSession(t.Context(), nil)
	require.NoError(t, err)
	for answered.Load() < callers && !t.Failed() {
		time.Sleep(time.Millisecond)
	}
	before, start := answered.Load(), time.Now()
	for range calls {
		_, err := CallAs[int64](t.Context(), quiet, "math/add", addIn{1, 2}, nil)
		require.NoError(t, err)
	}
	each := float64(answered.Load()-before) / callers
	t.Logf("%d calls in %v, while each of %d other callers made %.0f", calls, time.Since(start), callers, each)
	require.Less(t, each, 5*float64(calls))
	require.GreaterOrEqual(t, s.h.Stats().InFlight, stuck)
	close(done)
	close(release)
	wg.Wait()
	require.NoError(t, other.Close())
	require.NoError(t, lazy.Close())
	s.empty(t)
}

// The heap of one caller at full speed is flat once the budget of the records is used up. In .ci/long it is the default one,
// and the caller calls for five minutes.
func TestHeapOfOneCallerIsFlat(t *testing.T) {
	if race.Enabled {
		t.Skip("the race detector needs memory")
	}
	limits, minute := Limits{MaxStoredResults: 1 << 20}, time.Second
	if os.Getenv("FIVEWIRE_LONG") != "" {
		limits, minute = Limits{}, time.Minute
	}
	s := start(t, directTransport, &HostOptions{Limits: limits}, testRuntime("r1", nil))
	sess, err := s.c.CreateSession(t.Context(), nil)
	require.NoError(t, err)
	calls := 0
	var heap []int64
	for range 5 {
		for begin := time.Now(); time.Since(begin) < minute; calls++ {
			sum, err := CallAs[int64](t.Context(), sess, "math/add", addIn{1, 2}, nil)
			require.NoError(t, err)
			require.Equal(t, int64(3), sum)
		}
		heap = append(heap, kit.Heap())
	}
	t.Logf("%d calls, heap %v", calls, heap)
	for _, n := range heap[3:] {
		require.Less(t, n-heap[2], int64(1<<20))
	}
}
