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

	"github.com/fivewire/fivewire/internal/testkit"
)

// A naiveRegistry is the fulfilments of one contract as a list of Runtimes that have fulfilled it, in order.
type naiveRegistry struct {
	list []*Runtime
	left map[*Runtime]time.Time
}

// with is the text of ALT-D15 and ALT-D24: a new fulfilment of a Runtime removes its old registrations.
func (n *naiveRegistry) with(rt *Runtime, isFulfilled, replace bool) {
	isOld := func(o *Runtime) bool {
		return o.ID == rt.ID && (o == rt || !o.IsRemote && !rt.IsRemote) && (o != rt || !n.left[o].IsZero() || replace && !isFulfilled)
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

// without removes a Runtime of another Host.
func (n *naiveRegistry) without(rt *Runtime) {
	n.list = slices.DeleteFunc(n.list, func(o *Runtime) bool { return o == rt })
	delete(n.left, rt)
}

func (n *naiveRegistry) withdraw(rt *Runtime, now time.Time) {
	if slices.Contains(n.list, rt) && n.left[rt].IsZero() {
		n.left[rt] = now
	}
}

func (n *naiveRegistry) isConnected(rt *Runtime) bool { return rt.IsConnected && n.left[rt].IsZero() }

// isReplaced reports whether another Host has offered a Runtime later.
func (n *naiveRegistry) isReplaced(rt *Runtime) bool {
	later := n.list[slices.Index(n.list, rt)+1:]
	return rt.IsRemote && slices.ContainsFunc(later, func(o *Runtime) bool { return o.IsRemote && o.ID == rt.ID })
}

// route is the text of ALT-D24 and ALT-D39: the call goes to candidate k mod n, or to the next that is not avoided, of
// this Host or else of the others, and to the latest place of each.
func (n *naiveRegistry) route(d *Demand) (*Runtime, Lack) {
	rt, lack := n.routeTo(d, func(rt *Runtime) bool { return !rt.IsRemote })
	if lack == NoLack {
		return rt, lack
	}
	for _, isOld := range []bool{false, true} {
		rt, lack := n.routeTo(d, func(rt *Runtime) bool { return rt.IsRemote && n.isReplaced(rt) == isOld })
		if lack == NoLack || lack == NoSpace {
			return rt, lack
		}
	}
	return rt, lack
}

func (n *naiveRegistry) routeTo(d *Demand, isAmong func(rt *Runtime) bool) (*Runtime, Lack) {
	var all, free []*Runtime
	isAbsent := false
	for _, rt := range n.list {
		switch {
		case d.Pin != "" && rt.ID != d.Pin || !isAmong(rt) || slices.Contains(d.Tried, rt):
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
		if rt.Gate.(*Load).Limit > 0 {
			free = append(free, rt)
		}
	}
	for _, rt := range free {
		if d.Pin != "" || !rt.Gate.(*Load).breaker.IsOpen(d.Now) {
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
	lacks, refused := map[Lack]int{}, 0
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 5))
		reg, model := &Registry{}, &naiveRegistry{left: map[*Runtime]time.Time{}}
		current, former := map[string]*Runtime{}, []*Runtime(nil)
		for i := range 60 {
			now := start.Add(time.Duration(i) * time.Second)
			id := fmt.Sprint("r", r.IntN(4))
			rt := current[id]
			switch n := r.IntN(8); {
			case rt == nil || n == 0 && !rt.IsConnected:
				current[id] = newRuntime(id)
				current[id].IsRemote = r.IntN(3) == 0
			case rt.IsRemote && n == 0 && rt.IsConnected: // it is at another Host, too
				former = append(former, rt)
				current[id] = newRuntime(id)
				current[id].IsRemote = true
			case n == 1 && len(former) > 0:
				reg = reg.Without(former[0])
				model.without(former[0])
				former = former[1:]
			case rt.IsRemote && n < 3: // it is lost
				reg = reg.Without(rt)
				model.without(rt)
				delete(current, id)
			case n < 2:
				rt.IsConnected, rt.LostAt = false, now
			case n == 2:
				ids, next := reg.Connected("tool"), reg.Withdraw(rt, now)
				require.Equal(t, ids, reg.Connected("tool"), "seed %d: a change of a Registry is visible in the former one", seed)
				reg = next
				model.withdraw(rt, now)
			case n == 3:
				rt.Gate.(*Load).breaker.End(Failure, false, 1, 10*time.Second, now)
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
			for _, rt := range model.list {
				rt.Gate.(*Load).Limit = 100
				if rt.ID == full {
					rt.Gate.(*Load).Limit = 0
				}
			}
			d := &Demand{Contract: "tool", Turn: r.Uint64N(9), Now: now}
			if rt := current[fmt.Sprint("r", r.IntN(4))]; rt != nil && r.IntN(4) == 0 {
				d.Tried = append(d.Tried, rt)
			}
			if r.IntN(3) == 0 {
				d.Pin = fmt.Sprint("r", r.IntN(4))
			}
			got, lack := reg.Route(d)
			want, wantLack := model.route(d)
			require.Equal(t, wantLack, lack, "seed %d step %d", seed, i)
			require.Same(t, want, got, "seed %d step %d", seed, i)
			lacks[lack]++
			if got != nil && model.isReplaced(got) {
				refused++
			}
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
	require.Positive(t, refused, "calls that the latest place of a Runtime has refused")
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

// fulfilling returns how many of the Runtimes of a contract have a fulfilment of any.
func fulfilling(r *Registry, contract string) int {
	set := make(map[*Runtime]bool)
	for _, g := range r.byContract[contract] {
		set[g.rt] = true
	}
	n := len(set)
	r.RemoveFulfilling(set)
	return n - len(set)
}

// A list of the tools of a session, and its end, cost as much for each Runtime, however many there are.
func TestManyRuntimesAreListedOnce(t *testing.T) {
	for name, list := range map[string]func(*Registry) int{
		"tools": func(r *Registry) int { return len(r.Connected("tool")) },
		"end":   func(r *Registry) int { return fulfilling(r, "tool") },
	} {
		t.Run(name, func(t *testing.T) {
			testkit.RequireLess(t, 10, 50, 5000, func(runtimes int) time.Duration {
				reg := &Registry{byContract: make(map[string][]registration)}
				for i := range runtimes {
					rt := &Runtime{ID: fmt.Sprintf("runtime-%06d", i), IsConnected: true}
					for _, contract := range []string{"tool", fmt.Sprint("tool", i)} {
						reg.byContract[contract] = append(reg.byContract[contract], registration{rt: rt})
					}
				}
				start := time.Now()
				require.Equal(t, runtimes, list(reg))
				return time.Since(start) / time.Duration(runtimes)
			})
		})
	}
}

// The end of a session costs no walk over the contracts of Runtimes that fulfil many.
func TestManyContractsAreNotListed(t *testing.T) {
	testkit.RequireLess(t, 20, 10, 20_000, func(contracts int) time.Duration {
		reg := &Registry{byContract: make(map[string][]registration)}
		for i := range 10 {
			rt := &Runtime{ID: fmt.Sprint("runtime-", i), IsConnected: true}
			for c := range contracts {
				name := fmt.Sprint("tool", c)
				reg.byContract[name] = append(reg.byContract[name], registration{rt: rt})
			}
		}
		start := time.Now()
		for range 100 {
			require.Equal(t, 10, fulfilling(reg, "tool0"))
		}
		return time.Since(start)
	})
}
