// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package budget

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/internal/bench/pair"
	"github.com/fivewire/fivewire/internal/race"
)

func newBenchScope() *Scope {
	s := New(Limits{}, nil).Scope("alice", "session")
	_, _ = s.Reserve(Items, 1) // a live session
	return s
}

// The base is a free mutex.
func BenchmarkPairReserve(b *testing.B) {
	s := newBenchScope()
	var mu sync.Mutex
	n := 0
	pair.Ratio(b, pair.Loop(func() {
		h, err := s.Reserve(Memory, 1000)
		if err != nil {
			b.Fatal(err)
		}
		h.Release()
	}), pair.Loop(func() {
		mu.Lock()
		n++
		mu.Unlock()
	}))
}

// The base is one caller: the ratio is at most 2 if many callers have half its rate.
func BenchmarkPairReserveCallers64(b *testing.B) {
	s := newBenchScope()
	op := func() {
		h, err := s.Reserve(Memory, 1000)
		if err != nil {
			b.Fatal(err)
		}
		h.Release()
	}
	pair.Ratio(b, func(n int) {
		var wg sync.WaitGroup
		for range 64 {
			wg.Go(func() {
				for range n/64 + 1 {
					op()
				}
			})
		}
		wg.Wait()
	}, pair.Loop(op))
}

func TestReserveAllocatesNothing(t *testing.T) {
	if race.Enabled {
		t.Skip("the race detector allocates")
	}
	b := New(Limits{RequestRate: 1e9}, nil)
	s := b.Scope("alice", "session")
	require.Zero(t, testing.AllocsPerRun(1000, func() {
		h, _ := s.Reserve(Memory, 1000)
		place, _ := s.Acquire(t.Context())
		_, _ = s.Reserve(Requests, 1)
		_ = b.Scope("alice", "session")
		place.Release()
		h.Release()
	}))
}
