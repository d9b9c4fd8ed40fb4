// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package memory

import (
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/internal/kit"
	"github.com/fivewire/fivewire/internal/race"
	"github.com/fivewire/fivewire/store"
)

// sampleEntry returns an entry of about n bytes with words of a vocabulary.
func sampleEntry(rng *rand.Rand, i, n, vocabulary int) string {
	var b strings.Builder
	fmt.Fprintf(&b, `{"key":{"id":%d},"content":"`, i)
	for b.Len() < n-80 {
		word := rng.IntN(vocabulary)
		word = min(word, rng.IntN(vocabulary)) // some words are frequent
		fmt.Fprintf(&b, "%s ", wordNumber(word))
	}
	fmt.Fprintf(&b, `everywhere","tier":"semantic","tags":["t%d"]}`, i%100)
	return b.String()
}

func wordNumber(n int) string {
	const letters = "etaoinshrdlu"
	text := []byte{letters[n%7], letters[n%5+5]}
	for n > 0 {
		text = append(text, letters[n%len(letters)])
		n /= len(letters)
	}
	return string(text)
}

func fillShelf(t testing.TB, kv store.KV, isShared bool, n int, vocabulary int) *shelf {
	k := &keeper{}
	s := newShelf(kv, "shelf", isShared)
	rng := rand.New(rand.NewPCG(1, 2))
	o := &Options{MaxEntries: n + 1000, MaxBytes: 1 << 30}
	for i := 0; i < n; i += 1000 {
		var writes []numberedWrite
		for j := i; j < min(i+1000, n); j++ {
			_, w, err := k.newWrite([]byte(sampleEntry(rng, j, 500, vocabulary)))
			require.NoError(t, err)
			writes = append(writes, numberedWrite{w, j})
		}
		refused, err := s.store(t.Context(), writes, o, math.MaxInt64)
		require.NoError(t, err)
		require.Empty(t, refused)
	}
	return s
}

// An index takes at most twice the bytes of the entries, with words of a vocabulary and with words that
// are all different (A2E-D65).
func TestIndexIsAtMostTwiceTheEntries(t *testing.T) {
	if race.Enabled {
		t.Skip("the race detector changes sizes")
	}
	for _, vocabulary := range []int{20000, 1 << 30} {
		kv := store.NewMemory()
		s := fillShelf(t, kv, false, 3000, vocabulary)
		size := s.size()
		before := kit.Heap()
		s.index = nil
		used := before - kit.Heap()
		t.Logf("%d words: %d bytes of entries, %d bytes of the index, %.2f", vocabulary, size, used, float64(used)/float64(size))
		require.Less(t, used, 2*size)
		runtime.KeepAlive(kv)
		started := time.Now()
		require.NoError(t, s.refresh(t.Context()))
		used = kit.Heap() - before + used
		t.Logf("loaded in %v: %.2f", time.Since(started), float64(used)/float64(size))
		require.Less(t, used, 2*size)
		runtime.KeepAlive(s)
	}
}

// Storing, replacing and finding by key allocate the same with 100 times the entries.
func TestAllocsOfLargeMemories(t *testing.T) {
	if race.Enabled {
		t.Skip("the race detector allocates")
	}
	k := &keeper{}
	measure := func(n int) (add, replace, get float64) {
		s := fillShelf(t, store.NewMemory(), false, n, 20000)
		rng := rand.New(rand.NewPCG(3, 4))
		o := &Options{MaxEntries: 1 << 30, MaxBytes: 1 << 30}
		put := func(i int) {
			_, w, err := k.newWrite([]byte(sampleEntry(rng, i, 500, 20000)))
			require.NoError(t, err)
			_, err = s.store(t.Context(), []numberedWrite{{w, 0}}, o, math.MaxInt64)
			require.NoError(t, err)
		}
		next := n
		add = testing.AllocsPerRun(100, func() { next++; put(next) })
		replace = testing.AllocsPerRun(100, func() { put(n / 2) })
		r := &RetrieveRequest{Limit: 10}
		get = testing.AllocsPerRun(100, func() {
			r.Keys = append(r.Keys[:0], fmt.Appendf(nil, `{"id":%d}`, rng.IntN(n)))
			found, err := byKey(t.Context(), []*shelf{s}, r)
			require.NoError(t, err)
			require.EqualValues(t, 1, found.Total)
		})
		return add, replace, get
	}
	large := 5000
	if os.Getenv("FIVEWIRE_LONG") != "" {
		large = 100000
	}
	store1, replace1, get1 := measure(large / 100)
	store2, replace2, get2 := measure(large)
	t.Logf("store %.0f %.0f, replace %.0f %.0f, get %.0f %.0f", store1, store2, replace1, replace2, get1, get2)
	require.InDelta(t, store1, store2, store1/4)
	require.InDelta(t, replace1, replace2, replace1/4)
	require.InDelta(t, get1, get2, get1/4)
}

// The first candidates are those of the sorted list.
func TestFirstCandidates(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 8))
	for range 300 {
		list := make([]candidate, 1+rng.IntN(50))
		for i := range list {
			list[i] = candidate{doc: uint32(i), position: int64(i), score: float64(rng.IntN(5))}
		}
		rng.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
		n := 1 + rng.IntN(60)
		sorted := slices.SortedFunc(slices.Values(list), candidate.order)
		require.Equal(t, sorted[:min(n, len(list))], first(list, n))
	}
}
