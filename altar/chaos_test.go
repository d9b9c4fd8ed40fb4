// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package altar

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// Connections of clients and Runtimes are closed at random while calls and streams run. Every call
// ends once, with its correct result or with an error; no tool runs twice for one call unless its
// contract permits it; and no state is left at the Host after all peers have disconnected.
func TestChaos(t *testing.T) {
	seeds := 12
	if testing.Short() {
		seeds = 3
	}
	if n, err := strconv.Atoi(os.Getenv("ALTAR_CHAOS")); err == nil {
		seeds = n // for longer runs
	}
	for seed := range uint64(seeds) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { chaos(t, seed) })
		})
	}
}

func chaos(t *testing.T, seed uint64) {
	random := rand.New(rand.NewPCG(seed, 1))
	s := start(t, pipeTransport, nil)
	var mu sync.Mutex
	runs := map[int64]int{} // by the number of the call
	var plugs []*plug
	for i := range 3 {
		rt := must(NewRuntime(fmt.Sprintf("r%d", i), nil))
		AddTool(rt, "wait", func(ctx context.Context, in waitIn) (int64, error) {
			mu.Lock()
			runs[in.MS]++
			mu.Unlock()
			select {
			case <-time.After(time.Duration(in.MS%700) * time.Millisecond):
				return in.MS, nil
			case <-ctx.Done():
				return 0, ctx.Err()
			}
		})
		AddStreamTool(rt, "count", func(ctx context.Context, in countIn, out *ChunkWriter) error {
			for i := range in.N {
				time.Sleep(20 * time.Millisecond)
				if err := out.Send(i); err != nil {
					return err
				}
			}
			return nil
		})
		plugs = append(plugs, runPlugged(t, s, rt))
	}
	var clients []*Client
	for range 3 {
		p := &plug{dial: s.dial(testUser)}
		plugs = append(plugs, p)
		c := must(NewClient(p.Dial, nil))
		require.NoError(t, c.Ping(t.Context()))
		clients = append(clients, c)
	}
	sess, err := clients[0].CreateSession(t.Context(), nil)
	require.NoError(t, err)
	synctest.Wait()

	var wg sync.WaitGroup
	var good, bad atomic.Int64
	expected := func(err error) {
		bad.Add(1)
		var e *Error
		if !errors.As(err, &e) {
			t.Errorf("a call ended with %v", err)
			return
		}
		switch e.Reason() {
		case ReasonDisconnected, ReasonRuntimeDown, ReasonNotFulfilled:
		default:
			t.Errorf("a call ended with %v", e)
		}
	}
	for i := range 60 {
		one := clients[i%3].Session(sess.ID())
		delay := time.Duration(random.IntN(4000)) * time.Millisecond
		wg.Go(func() {
			time.Sleep(delay)
			if i%2 == 0 {
				got, err := CallAs[int64](t.Context(), one, "wait", waitIn{int64(1000 + i)}, nil)
				if err != nil {
					expected(err)
				} else if good.Add(1); got != int64(1000+i) {
					t.Errorf("call %d got %d", i, got)
				}
				return
			}
			want := int64(0)
			for n, err := range StreamAs[int64](t.Context(), one, "count", countIn{50}, nil) {
				if err != nil {
					expected(err)
					return
				}
				if n != want {
					t.Errorf("stream %d got %d in place of %d", i, n, want)
				}
				want++
			}
			if good.Add(1); want != 50 {
				t.Errorf("stream %d ended after %d", i, want)
			}
		})
	}
	for range 25 {
		time.Sleep(time.Duration(random.IntN(300)) * time.Millisecond)
		plugs[random.IntN(len(plugs))].pull()
	}
	wg.Wait()
	mu.Lock() // a handler may outlast its caller
	for call, n := range runs {
		if n > 1 {
			t.Errorf("call %d ran %d times", call, n)
		}
	}
	mu.Unlock()
	require.Equal(t, int64(60), good.Load()+bad.Load())
	require.Greater(t, good.Load(), int64(10), "most of it works in spite of all")
	for _, c := range clients {
		require.NoError(t, c.Close())
	}
	time.Sleep(10 * time.Minute)
	st := s.h.Stats()
	require.Zero(t, st.InFlight)
	require.Zero(t, st.StoredResults)
	require.Zero(t, s.h.drain.count())
	requireNoIDs(t, s.h)
}
