// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package a2e

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/internal/bench/pair"
)

func somePending(n int) []*pending {
	list := make([]*pending, n)
	for i := range list {
		list[i] = &pending{}
		list[i].msg.stamp("x/y/req", nil)
	}
	return list
}

// The table is a map that knows the order in which things came, whatever goes in
// between.
func TestCallTable(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	all := somePending(50)
	table := newCallTable()
	var model []*pending
	for range 5000 {
		p := all[r.IntN(len(all))]
		i := slices.Index(model, p)
		switch {
		case i < 0 && r.IntN(2) == 0:
			table.add(p)
			model = append(model, p)
		default:
			require.Equal(t, i >= 0, table.remove(p))
			if i >= 0 {
				model = slices.Delete(model, i, i+1)
			}
		}
		require.Equal(t, slices.Contains(model, p), table.get(p.msg.ID) == p)
		require.True(t, slices.Equal(model, slices.Collect(table.all())))
	}
	for p := range table.all() {
		require.True(t, table.remove(p))
	}
	require.Nil(t, table.first)
	require.Nil(t, table.last)
	table.add(all[0])
	table.add(all[1])
	for range table.all() {
		break
	}
	twin := &pending{}
	twin.msg.Message = all[0].msg.Message
	require.False(t, table.remove(twin), "another call of the same id")
}

// ring is the floor: a map of ids and a ring that says which comes next.
type ring struct {
	ids  map[string]int
	ring [64]string
	next int
}

func (r *ring) turn(id string) bool {
	delete(r.ids, r.ring[r.next])
	r.ring[r.next] = id
	r.ids[id] = r.next
	r.next = (r.next + 1) % len(r.ring)
	_, ok := r.ids[id]
	return ok
}

// correlate registers, matches and removes calls while 64 are pending.
func correlate() (table, floor func()) {
	list := somePending(128)
	t := newCallTable()
	f := &ring{ids: map[string]int{}}
	for i := range 64 {
		t.add(list[i])
		f.turn(list[i].msg.ID)
	}
	i, j := 0, 0
	return func() {
			t.add(list[(i+64)%128])
			if !t.remove(t.get(list[i].msg.ID)) {
				panic("lost")
			}
			i = (i + 1) % 128
		}, func() {
			if !f.turn(list[(j+64)%128].msg.ID) {
				panic("lost")
			}
			j = (j + 1) % 128
		}
}

func TestCorrelateAllocs(t *testing.T) {
	table, _ := correlate()
	require.Zero(t, testing.AllocsPerRun(1000, table))
}

func BenchmarkCorrelate(b *testing.B) {
	table, floor := correlate()
	for name, f := range map[string]func(){"sdk": table, "floorMapRing": floor} {
		b.Run("lib="+name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				f()
			}
		})
	}
}

func BenchmarkPairCorrelate(b *testing.B) {
	table, floor := correlate()
	pair.Ratio(b, pair.Loop(table), pair.Loop(floor))
}
