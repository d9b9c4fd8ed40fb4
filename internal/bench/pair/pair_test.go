// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package pair

import (
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// In virtual time an operation takes exactly as long as it sleeps.
func takes(d time.Duration) func() { return func() { time.Sleep(d) } }

func TestRatio(t *testing.T) {
	tests := []struct {
		name    string
		f, base time.Duration
	}{
		{"slower", 30 * time.Microsecond, 10 * time.Microsecond},
		{"faster", 10 * time.Microsecond, 40 * time.Microsecond},
		{"slower than a batch", 20 * time.Millisecond, 10 * time.Millisecond},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				res := testing.Benchmark(func(b *testing.B) { Ratio(b, Loop(takes(tt.f)), Loop(takes(tt.base))) })
				require.InDelta(t, float64(tt.f)/float64(tt.base), res.Extra["ratio"], 1e-9)
				require.InDelta(t, float64(tt.f.Nanoseconds()), res.Extra["ns/f"], 1e-6)
				require.InDelta(t, float64(tt.base.Nanoseconds()), res.Extra["ns/base"], 1e-6)
			})
		})
	}
}

// A machine that is slow for a while does not change the ratio.
func TestRatioOnUnsteadyMachine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		slowdown := func() time.Duration { return 1 + 4*(time.Since(begin)/(20*time.Millisecond)%2) }
		res := testing.Benchmark(func(b *testing.B) {
			Ratio(b,
				Loop(func() { time.Sleep(30 * time.Microsecond * slowdown()) }),
				Loop(func() { time.Sleep(20 * time.Microsecond * slowdown()) }))
		})
		require.InDelta(t, 1.5, res.Extra["ratio"], 0.05)
	})
}

func TestRatioCallers(t *testing.T) {
	for _, c := range []int{1, 8} {
		synctest.Test(t, func(t *testing.T) {
			var mu sync.Mutex
			var busy, maxBusy int
			count := func(n int) {
				mu.Lock()
				defer mu.Unlock()
				busy += n
				maxBusy = max(maxBusy, busy)
			}
			op := func(d time.Duration) func(int64) error {
				return func(int64) error {
					count(1)
					time.Sleep(d)
					count(-1)
					return nil
				}
			}
			res := testing.Benchmark(func(b *testing.B) {
				RatioCallers(b, c, op(2*time.Millisecond), op(time.Millisecond))
			})
			require.InDelta(t, 2, res.Extra["ratio"], 0.2)
			require.InDelta(t, 2e6/float64(c), res.Extra["ns/f"], 2e5/float64(c))
			require.Equal(t, c, maxBusy)
		})
	}
}

// Every operation of a batch is done once.
func TestCallersShareTheWork(t *testing.T) {
	for _, c := range []int{1, 3, 8} {
		var sum, n atomic.Int64
		callers(nil, c, func(seq int64) error {
			sum.Add(seq)
			n.Add(1)
			return nil
		})(100)
		require.EqualValues(t, 100, n.Load())
		require.EqualValues(t, 99*100/2, sum.Load())
	}
}

func TestRatioCallersFails(t *testing.T) {
	boom := errors.New("server gone")
	for _, c := range []int{1, 4} {
		finished := false
		testing.Benchmark(func(b *testing.B) {
			RatioCallers(b, c, func(int64) error { return boom }, func(int64) error { return nil })
			finished = true
		})
		require.False(t, finished)
	}
}
