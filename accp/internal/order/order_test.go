// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package order

import (
	"fmt"
	"math"
	"runtime"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/fivewire/fivewire/internal/kit"
	"github.com/fivewire/fivewire/internal/race"
)

// A window agrees with a list of the last marks.
func TestWindowAgreesWithModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		maximum := rapid.IntRange(1, 40).Draw(t, "maximum")
		w, want := NewWindow(maximum), []Mark{}
		for range rapid.IntRange(0, 200).Draw(t, "steps") {
			m := Mark(rapid.IntRange(1, 60).Draw(t, "mark"))
			require.Equal(t, slices.Contains(want, m), w.Has(m))
			if w.Add(m); !slices.Contains(want, m) {
				want = append(want, m)
				want = want[max(0, len(want)-maximum):]
			}
			require.Equal(t, want, w.Marks())
			require.Equal(t, len(want), w.Len())
		}
	})
}

func TestMarksDiffer(t *testing.T) {
	seen := map[Mark]string{}
	for _, id := range []string{"", "a", "000000000000", "00000000000a", "00000000000A", "0000000000_a", "+0000000000a", "00000000000g", "0a", "abcdefabcdef"} {
		m := MarkOf(id)
		require.NotZero(t, m)
		require.Equal(t, "", seen[m], id)
		require.Equal(t, m, MarkOf(id))
		seen[m] = id
	}
}

// The whole window of a session takes at most 1.2 MiB, and adding to it allocates nothing.
func TestWindowIsSmall(t *testing.T) {
	if race.Enabled {
		t.Skip("the race detector allocates")
	}
	before := kit.Heap()
	w := NewWindow(65536)
	n := 0
	for ; n < 200_000; n++ {
		w.Add(MarkOf(fmt.Sprintf("%012x", n)))
	}
	require.Less(t, kit.Heap()-before, int64(1200<<10))
	require.Equal(t, 65536, w.Len())
	next := MarkOf("n")
	require.Zero(t, testing.AllocsPerRun(1000, func() {
		next++
		w.Add(next)
	}))
	runtime.KeepAlive(&w)
}

// The order of frames is that of the table in ACCP-D24 and ACCP-D25.
func TestCheckFollowsTheTable(t *testing.T) {
	for name, x := range map[string]struct {
		isPerSender, isBase bool
		before              []int64 // numbers of a, then 7 of b
		n                   int64
		ok, isUsed          bool
	}{
		"first":                   {n: 5000, ok: true, isUsed: true},
		"next":                    {before: []int64{3}, n: 8, ok: true, isUsed: true},
		"between":                 {before: []int64{3}, n: 5, ok: true, isUsed: true},
		"repeated":                {before: []int64{3}, n: 3},
		"gap":                     {before: []int64{3}, n: 9, isUsed: true},
		"largest gap":             {before: []int64{3}, n: 7 + 1001, isUsed: true},
		"larger gap":              {before: []int64{3}, n: 7 + 1002},
		"base":                    {before: []int64{3}, n: 7 + 5000, isBase: true, ok: true, isUsed: true},
		"late base":               {before: []int64{3}, n: 2, isBase: true},
		"own numbers, first":      {isPerSender: true, n: 900, ok: true, isUsed: true},
		"own numbers, next":       {isPerSender: true, before: []int64{3}, n: 4, ok: true, isUsed: true},
		"own numbers, gap":        {isPerSender: true, before: []int64{3}, n: 5, isUsed: true},
		"own numbers, larger gap": {isPerSender: true, before: []int64{3}, n: 3 + 1002},
	} {
		s := New(16, x.isPerSender)
		for _, n := range x.before {
			s.Use("a", n, false)
			s.Use("b", 7, false)
			s.IsStarted = true
		}
		ok, isUsed := s.Check("a", x.n, x.isBase)
		require.Equal(t, [2]bool{x.ok, x.isUsed}, [2]bool{ok, isUsed}, name)
	}
	s := New(16, false)
	s.Use("a", math.MaxInt64, false)
	_, ok := s.Next("a")
	require.False(t, ok)
	s.Use("a", 4, true)
	n, ok := s.Next("a")
	require.True(t, ok)
	require.EqualValues(t, 5, n)
}

// The numbers of the last 4,096 senders are kept.
func TestSendersAreBounded(t *testing.T) {
	s := New(16, true)
	for i := range 3 * maxSenders {
		s.Use(fmt.Sprint("agent", i), int64(i), false)
	}
	_, ok := s.Last.Get(fmt.Sprint("agent", 2*maxSenders-1))
	require.False(t, ok)
	n, ok := s.Last.Get(fmt.Sprint("agent", 2*maxSenders))
	require.True(t, ok)
	require.EqualValues(t, 2*maxSenders, n)
	require.Len(t, s.Last.names, maxSenders)
	require.Less(t, s.Bytes(), maxSenders*200)
}
