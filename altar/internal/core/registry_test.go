// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package core

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A naiveRegistry is the fulfilments of one contract as a list of Runtimes that have fulfilled it, in order.
type naiveRegistry struct {
	list []*Runtime
	left map[*Runtime]time.Time
}

// with is the text of ALT-D15 and ALT-D24: a new fulfilment of a Runtime removes its old registrations.
func (n *naiveRegistry) with(rt *Runtime, isFulfilled, replace bool) {
	isOld := func(o *Runtime) bool {
		return o.ID == rt.ID && (o != rt || !n.left[o].IsZero() || replace && !isFulfilled)
	}
	for _, o := range n.list {
		if isOld(o) {
			defer delete(n.left, o)
		}
	}
	n.list = slices.DeleteFunc(n.list, isOld)
	if isFulfilled && !slices.Contains(n.list, rt) {
		n.list = append(n.list, rt)
		delete(n.left, rt)
	}
}

func (n *naiveRegistry) withdraw(rt *Runtime, now time.Time) {
	if slices.Contains(n.list, rt) && n.left[rt].IsZero() {
		n.left[rt] = now
	}
}

func (n *naiveRegistry) isConnected(rt *Runtime) bool { return rt.IsConnected && n.left[rt].IsZero() }

// route is the text of ALT-D24: the call goes to candidate k mod n, or to the next that is not avoided.
func (n *naiveRegistry) route(d *Demand) (*Runtime, Lack) {
	var all, free []*Runtime
	isAbsent := false
	for _, rt := range n.list {
		switch {
		case d.Pin != "" && rt.ID != d.Pin:
		case n.isConnected(rt):
			all = append(all, rt)
		default:
			isAbsent = isAbsent || !rt.IsConnected
		}
	}
	switch {
	case len(all) == 0 && isAbsent:
		return nil, NotConnected
	case len(all) == 0:
		return nil, NotFulfilled
	}
	for i := range all {
		rt := all[(int(d.Turn)+i)%len(all)]
		if d.HasSpace(rt) {
			free = append(free, rt)
		}
	}
	for _, rt := range free {
		if d.Pin != "" || !rt.Breaker.IsOpen(d.Now) {
			return rt, NoLack
		}
	}
	if len(free) > 0 {
		return free[0], NoLack
	}
	return nil, NoSpace
}

func TestRegistryModel(t *testing.T) {
	start := time.Date(2025, 1, 1, 0, 0, 0, 0, time.UTC)
	lacks := map[Lack]int{}
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 5))
		reg, model := &Registry{}, &naiveRegistry{left: map[*Runtime]time.Time{}}
		current := map[string]*Runtime{}
		for i := range 60 {
			now := start.Add(time.Duration(i) * time.Second)
			id := fmt.Sprint("r", r.IntN(4))
			rt := current[id]
			switch n := r.IntN(8); {
			case rt == nil || n == 0 && !rt.IsConnected:
				current[id] = &Runtime{ID: id, IsConnected: true}
			case n < 2:
				rt.IsConnected, rt.LostAt = false, now
			case n == 2:
				ids, next := reg.Connected("tool"), reg.Withdraw(rt, now)
				require.Equal(t, ids, reg.Connected("tool"), "seed %d: a change of a Registry is visible in the former one", seed)
				reg = next
				model.withdraw(rt, now)
			case n == 3:
				rt.Breaker.End(Failure, false, 1, 10*time.Second, now)
			case rt.IsConnected:
				isFulfilled, replace := r.IntN(4) > 0, r.IntN(2) == 0
				names := []string{"other"}
				if isFulfilled {
					names = append(names, "tool")
				}
				reg = reg.With(rt, names, replace)
				model.with(rt, isFulfilled, replace)
			}
			full := fmt.Sprint("r", r.IntN(6))
			d := &Demand{Contract: "tool", Turn: r.Uint64N(9), Now: now, HasSpace: func(rt *Runtime) bool { return rt.ID != full }}
			if r.IntN(3) == 0 {
				d.Pin = fmt.Sprint("r", r.IntN(4))
			}
			got, lack := reg.Route(d)
			want, wantLack := model.route(d)
			require.Equal(t, wantLack, lack, "seed %d step %d", seed, i)
			require.Same(t, want, got, "seed %d step %d", seed, i)
			lacks[lack]++
			var latest time.Time
			for _, rt := range model.list {
				if model.isConnected(rt) || d.Pin != "" && rt.ID != d.Pin {
					continue
				}
				for _, at := range []time.Time{model.left[rt], rt.LostAt} {
					if at.After(latest) && (at == model.left[rt] || !rt.IsConnected) {
						latest = at
					}
				}
			}
			require.Equal(t, latest, reg.AbsentSince("tool", d.Pin), "seed %d step %d", seed, i)
		}
	}
	require.Len(t, lacks, 4, "all results occur")
}

func TestOffers(t *testing.T) {
	all := []Offer{
		{"self", "a", []string{"x"}, []string{"1"}},
		{"h1", "b", []string{"x", "y"}, []string{"1", "2"}},
		{"h2", "c", []string{"x", "unknown"}, []string{"1", "1"}},
		{"h2", "d", []string{"x"}, nil},
	}
	offers, unlike := Match(all, "self", func(contract string) string { return map[string]string{"x": "1", "y": "other"}[contract] })
	require.Equal(t, [][2]string{{"h1", "y"}, {"h2", "x"}}, unlike)
	next := func(d Demand, tried ...Offer) string {
		o, _ := offers.Next(&d, tried)
		return o.RuntimeID
	}
	require.Equal(t, "b", next(Demand{Contract: "x"}))
	require.Equal(t, "c", next(Demand{Contract: "x", Turn: 1}))
	require.Equal(t, "c", next(Demand{Contract: "x"}, all[1]))
	require.Equal(t, "c", next(Demand{Contract: "x", Pin: "c", Turn: 2}))
	require.Empty(t, next(Demand{Contract: "x", Pin: "a"}))
	require.Empty(t, next(Demand{Contract: "y"}))
}

func TestRegistriesShareNoList(t *testing.T) {
	base := &Registry{}
	for i := range 3 {
		base = base.With(&Runtime{ID: fmt.Sprint(i), IsConnected: true}, []string{"tool"}, false)
	}
	first := base.With(&Runtime{ID: "first", IsConnected: true}, []string{"tool"}, false)
	base.With(&Runtime{ID: "second", IsConnected: true}, []string{"tool"}, false)
	require.Equal(t, []string{"0", "1", "2", "first"}, first.Connected("tool"))
}
