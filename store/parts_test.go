// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

type number int

func (n number) key() int { return int(n) }

// TestSorted compares with a plain sorted slice.
func TestSorted(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var s sorted[int, number]
		var model []int
		all := func(from int) (got []int) {
			s.ascend(from, func(n number) bool {
				got = append(got, int(n))
				return true
			})
			return got
		}
		t.Repeat(map[string]func(*rapid.T){
			"insert many": func(t *rapid.T) { // or no chunk ever fills
				first, step := rapid.IntRange(-5000, 5000).Draw(t, "first"), rapid.SampledFrom([]int{1, -1, 3, 7}).Draw(t, "step")
				for i := range rapid.IntRange(1, 3*chunkSize).Draw(t, "n") {
					if n := first + i*step; !slices.Contains(model, n) {
						s.insert(number(n))
						model = append(model, n)
					}
				}
				slices.Sort(model)
			},
			"remove many": func(t *rapid.T) {
				if len(model) == 0 {
					return
				}
				from := rapid.IntRange(0, len(model)-1).Draw(t, "from")
				every := rapid.IntRange(1, 3).Draw(t, "every")
				total := rapid.IntRange(1, 4*chunkSize).Draw(t, "n")
				for i, n := range slices.Clone(model)[from:] {
					if i < total && i%every == 0 {
						require.True(t, s.remove(n))
						require.False(t, s.remove(n))
						at, _ := slices.BinarySearch(model, n)
						model = slices.Delete(model, at, at+1)
					}
				}
			},
			"look": func(t *rapid.T) {
				k := rapid.IntRange(-6000, 6000).Draw(t, "k")
				got, ok := s.get(k)
				at, there := slices.BinarySearch(model, k)
				require.Equal(t, there, ok)
				if there {
					require.Equal(t, number(k), got)
				}
				require.ElementsMatch(t, model[at:], all(k))
				limit := rapid.IntRange(0, 1000).Draw(t, "limit")
				require.Equal(t, min(limit, len(model)-at), s.atLeast(k, limit))
			},
			"": func(t *rapid.T) {
				require.True(t, slices.Equal(model, all(math.MinInt)), "%v, want %v", all(math.MinInt), model)
				require.Equal(t, len(model) == 0, s.empty())
				for _, chunk := range append(s.chunks, s.spare) {
					require.LessOrEqual(t, len(chunk), chunkSize)
					for _, n := range chunk[len(chunk):cap(chunk)] {
						require.Zero(t, n, "something removed is held")
					}
				}
				for _, chunk := range s.chunks {
					require.NotEmpty(t, chunk)
				}
			},
		})
	})
}

// TestSortedSparse: few elements are in few chunks, in whatever order the others
// went.
func TestSortedSparse(t *testing.T) {
	const n, stay = 100_000, 500
	for name, order := range map[string]func(i int) int{
		"ascending":  func(i int) int { return i },
		"descending": func(i int) int { return n - 1 - i },
		"mixed":      func(i int) int { return i * 7919 % n },
	} {
		t.Run(name, func(t *testing.T) {
			var s sorted[int, number]
			for i := range n {
				s.insert(number(i))
			}
			require.Len(t, s.chunks, (n+chunkSize-1)/chunkSize, "appended chunks are not full")
			for i := range n {
				if k := order(i); k%stay != 0 {
					require.True(t, s.remove(k))
				}
			}
			require.Equal(t, n/stay, s.atLeast(0, n))
			require.Less(t, len(s.chunks), 5*n/stay/chunkSize+2)
		})
	}
}

type due struct{ at time.Time }

func (d *due) expiry() time.Time { return d.at }

// TestExpiries compares with a map.
func TestExpiries(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var x expiries[*due]
		start := time.Now()
		now := start
		model := map[*due]bool{}
		any := func(t *rapid.T) *due {
			ordered := slices.SortedFunc(maps.Keys(model), func(a, b *due) int { return a.at.Compare(b.at) })
			return ordered[rapid.IntRange(0, len(ordered)-1).Draw(t, "which")]
		}
		later := func(t *rapid.T) time.Time {
			return now.Add(time.Duration(rapid.Int64Range(0, 50).Draw(t, "later")) * time.Second)
		}
		t.Repeat(map[string]func(*rapid.T){
			"push": func(t *rapid.T) {
				for range rapid.IntRange(1, 50).Draw(t, "n") {
					d := &due{later(t)}
					x.push(d)
					model[d] = true
				}
			},
			"leave": func(t *rapid.T) {
				for range rapid.IntRange(1, 50).Draw(t, "n") {
					if len(model) > 0 {
						d := any(t)
						d.at = time.Time{}
						x.markStale()
						delete(model, d)
					}
				}
			},
			"change": func(t *rapid.T) {
				if len(model) == 0 {
					return
				}
				if d, at := any(t), later(t); !d.at.Equal(at) {
					d.at = at
					x.push(d)
					x.markStale()
				}
			},
			"pop": func(t *rapid.T) {
				now = later(t)
				for {
					d, ok := x.pop(now)
					if !ok {
						break
					}
					require.True(t, model[d], "popped twice, or after it left")
					require.False(t, now.Before(d.at))
					d.at = time.Time{}
					delete(model, d)
				}
				for d := range model {
					require.True(t, now.Before(d.at), "left over")
				}
			},
			"": func(t *rapid.T) {
				require.GreaterOrEqual(t, len(x.heap), len(model))
				require.LessOrEqual(t, len(x.heap), len(model)+max(64, len(model)+1), "too much is stale")
			},
		})
	})
}

func TestExpiriesFarAway(t *testing.T) {
	var x expiries[*due]
	now := time.Now()
	for _, ttl := range []time.Duration{time.Second, 1<<63 - 1, time.Hour} {
		x.push(&due{now.Add(ttl)})
	}
	_, ok := x.pop(now)
	require.False(t, ok)
	for range 2 {
		_, ok = x.pop(now.Add(2 * time.Hour))
		require.True(t, ok)
	}
	_, ok = x.pop(now.Add(2 * time.Hour))
	require.False(t, ok)
}

func TestTable(t *testing.T) {
	var tab table[int]
	_, ok := tab.get("0")
	require.False(t, ok)
	tab.remove("0")
	const n = 10 * smallTable
	for i := range n {
		tab.put(fmt.Sprint(i), i)
	}
	for i := range n {
		got, ok := tab.get(fmt.Sprint(i))
		require.True(t, ok)
		require.Equal(t, i, got)
		tab.remove(fmt.Sprint(i))
		_, ok = tab.get(fmt.Sprint(i))
		require.False(t, ok)
		require.Len(t, tab.m, n-1-i)
		require.LessOrEqual(t, tab.peak, max(smallTable, 8*(n-i)))
	}
}
