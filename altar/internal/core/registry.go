// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package core

import (
	"iter"
	"maps"
	"slices"
	"time"
)

// A Registry lists the Runtimes that fulfil each contract, in one session or in all sessions with
// equal fulfilments. It is immutable: a change makes a copy, so that thousands of sessions
// share one Registry. The zero value is empty.
type Registry struct {
	byContract map[string][]registration
}

// A registration is one fulfilment. Its Runtime is absent from the loss of its connection, or from
// its leave, until the reconnected Runtime has announced its fulfilments (ALT-D24).
type registration struct {
	rt   *Runtime
	left time.Time // zero: it has not taken leave

	isReplaced bool // a later registration of the contract is one of the same id at another Host
}

func (g registration) isConnected() bool { return g.rt.IsConnected && g.left.IsZero() }

// isOf reports whether a fulfilment is one of a Runtime, also of an earlier connection. Runtimes of other Hosts do not
// return.
func (g registration) isOf(rt *Runtime) bool {
	return g.rt == rt || g.rt.ID == rt.ID && !g.rt.IsRemote && !rt.IsRemote
}

// absentSince returns when a Runtime was lost.
func (g registration) absentSince() time.Time {
	if g.rt.IsConnected || g.left.After(g.rt.LostAt) {
		return g.left
	}
	return g.rt.LostAt
}

// With returns a Registry in which a Runtime fulfils the contracts, besides those it did before or
// instead of them (ALT-D15).
func (r *Registry) With(rt *Runtime, contracts []string, replace bool) *Registry {
	out := r.filter(func(name string, g registration) bool {
		return !g.isOf(rt) || g.rt == rt && g.left.IsZero() && (!replace || slices.Contains(contracts, name))
	})
	for _, name := range contracts {
		if !out.Has(name, rt) {
			out.byContract[name] = append(slices.Clip(out.byContract[name]), registration{rt: rt})
			markReplaced(out.byContract[name], rt)
		}
	}
	return out
}

// markReplaced notes which registrations of the id of a Runtime a later one at another Host has replaced. It is called after
// rt was added or removed: other Hosts still offer the Runtimes of a failed one when those have connected elsewhere.
func markReplaced(list []registration, rt *Runtime) {
	if !rt.IsRemote {
		return
	}
	isReplaced := false
	for i := range slices.Backward(list) {
		if g := &list[i]; g.rt.IsRemote && g.rt.ID == rt.ID {
			g.isReplaced, isReplaced = isReplaced, true
		}
	}
}

// WithAbsent returns a Registry in which an absent Runtime fulfils the contracts, unless it is known to.
func (r *Registry) WithAbsent(rt *Runtime, contracts []string) *Registry {
	out := r.filter(func(string, registration) bool { return true })
	for _, name := range contracts {
		if !slices.ContainsFunc(out.byContract[name], func(g registration) bool { return g.isOf(rt) }) {
			out.byContract[name] = append(slices.Clip(out.byContract[name]), registration{rt: rt})
		}
	}
	return out
}

// Withdraw returns a Registry in which a Runtime has taken leave.
func (r *Registry) Withdraw(rt *Runtime, now time.Time) *Registry {
	out := &Registry{maps.Clone(r.byContract)}
	for name, list := range r.byContract {
		if i := slices.IndexFunc(list, func(g registration) bool { return g.rt == rt && g.left.IsZero() }); i >= 0 {
			list = slices.Clone(list)
			list[i].left = now
			out.byContract[name] = list
		}
	}
	return out
}

// Without returns a Registry without a Runtime, also of an earlier connection.
func (r *Registry) Without(rt *Runtime) *Registry {
	return r.filter(func(_ string, g registration) bool { return !g.isOf(rt) })
}

// Keep returns a Registry of the contracts that are left.
func (r *Registry) Keep(has func(contract string) bool) *Registry {
	return r.filter(func(name string, _ registration) bool { return has(name) })
}

// filter returns a Registry of the registrations that stay. It shares the lists that do not change.
func (r *Registry) filter(stays func(contract string, g registration) bool) *Registry {
	out := &Registry{make(map[string][]registration, len(r.byContract))}
	for name, list := range r.byContract {
		goes := func(g registration) bool { return !stays(name, g) }
		if slices.ContainsFunc(list, goes) {
			former := list
			list = slices.DeleteFunc(slices.Clone(list), goes)
			for _, g := range former {
				if goes(g) {
					markReplaced(list, g.rt)
				}
			}
		}
		if len(list) > 0 {
			out.byContract[name] = list
		}
	}
	return out
}

// Equal reports whether two Registries have the same fulfilments in the same order.
func (r *Registry) Equal(o *Registry) bool {
	return maps.EqualFunc(r.byContract, o.byContract, slices.Equal[[]registration])
}

// Has reports whether a Runtime has a fulfilment of a contract.
func (r *Registry) Has(contract string, rt *Runtime) bool {
	return slices.ContainsFunc(r.byContract[contract], func(g registration) bool { return g.rt == rt })
}

// RemoveFulfilling removes the Runtimes that have a fulfilment of any contract from a set.
func (r *Registry) RemoveFulfilling(set map[*Runtime]bool) {
	for _, list := range r.byContract {
		for _, g := range list {
			if delete(set, g.rt); len(set) == 0 {
				return
			}
		}
	}
}

// CanTake reports whether a Runtime is a connected one of a contract.
func (r *Registry) CanTake(contract string, rt *Runtime) bool {
	return slices.ContainsFunc(r.byContract[contract], func(g registration) bool { return g.rt == rt && g.isConnected() })
}

// Takers yields the connected Runtimes of a contract.
func (r *Registry) Takers(contract string) iter.Seq[*Runtime] {
	return func(yield func(*Runtime) bool) {
		for _, g := range r.byContract[contract] {
			if g.isConnected() && !yield(g.rt) {
				return
			}
		}
	}
}

// Connected returns the ids of the connected Runtimes of a contract: those of this Host before the others.
func (r *Registry) Connected(contract string) (ids []string) {
	list := r.byContract[contract]
	isListed := make(map[string]bool, len(list))
	for _, isRemote := range []bool{false, true} {
		for _, g := range list {
			if g.isConnected() && g.rt.IsRemote == isRemote && !isListed[g.rt.ID] {
				isListed[g.rt.ID] = true
				ids = append(ids, g.rt.ID)
			}
		}
	}
	return ids
}

// Contracts returns the contracts of which a connected Runtime has a fulfilment.
func (r *Registry) Contracts(rt *Runtime) (list []string) {
	for contract := range r.byContract {
		if r.CanTake(contract, rt) {
			list = append(list, contract)
		}
	}
	slices.Sort(list)
	return list
}

// AbsentSince returns when the latest absent Runtime of a contract was lost, of those with the id pin
// if there is one. Without an absent Runtime it is zero.
func (r *Registry) AbsentSince(contract, pin string) (latest time.Time) {
	for _, g := range r.byContract[contract] {
		if g.isConnected() || pin != "" && g.rt.ID != pin {
			continue
		}
		if since := g.absentSince(); since.After(latest) {
			latest = since
		}
	}
	return latest
}

// A Demand is what a call demands of a Runtime.
type Demand struct {
	Contract string
	Pin      string // id of the Runtime; empty: any
	Turn     uint64 // number of earlier dispatches of the contract in the session
	Now      time.Time
	Bytes    int        // of the parameters
	Tried    []*Runtime // that have refused the call
}

// A Lack is the reason why no Runtime can take a call.
type Lack int

// The lacks.
const (
	NoLack       Lack = iota
	NotFulfilled      // no Runtime fulfils the contract
	NotConnected      // a Runtime that does is absent
	NoSpace           // all have too many calls
)

// Route returns the Runtime for a call, in turn for each contract and session (ALT-D24): one of this Host or, if
// there is none, one of another Host (ALT-D39). A Runtime that several Hosts offer is called at the last one, unless that
// has refused the call.
func (r *Registry) Route(d *Demand) (*Runtime, Lack) {
	list := r.byContract[d.Contract]
	rt, lack := d.next(list, here)
	if lack == NoLack {
		return rt, NoLack
	}
	for _, k := range []kin{elsewhere, replaced} {
		remote, none := d.next(list, k)
		if none == NoLack || none == NoSpace {
			return remote, none
		}
	}
	return nil, lack
}

// A kin is a kind of registration: of a Runtime of this Host or of another one, or of one that a later registration has
// replaced.
type kin int

const (
	here kin = iota
	elsewhere
	replaced
)

func (g registration) kin() kin {
	switch {
	case g.isReplaced:
		return replaced
	case g.rt.IsRemote:
		return elsewhere
	}
	return here
}

// next returns the next Runtime of a kin.
func (d *Demand) next(list []registration, k kin) (*Runtime, Lack) {
	n, isAbsent := 0, false
	for _, g := range list {
		if !d.concerns(g, k) {
			continue
		}
		if g.isConnected() {
			n++
		}
		isAbsent = isAbsent || !g.rt.IsConnected
	}
	switch {
	case n == 0 && isAbsent:
		return nil, NotConnected
	case n == 0:
		return nil, NotFulfilled
	}
	first := d.first(list, k, d.Turn%uint64(n))
	for _, isAny := range []bool{false, true} {
		for i := range list {
			if g := list[(first+i)%len(list)]; d.concerns(g, k) && d.accepts(g, isAny) {
				return g.rt, NoLack
			}
		}
	}
	return nil, NoSpace
}

// first returns the place of the registration whose turn it is, after those to skip.
func (d *Demand) first(list []registration, k kin, skip uint64) int {
	for i, g := range list {
		if !d.concerns(g, k) || !g.isConnected() {
			continue
		}
		if skip == 0 {
			return i
		}
		skip--
	}
	return 0
}

// concerns reports whether a Runtime is one of a kin that the call may have.
func (d *Demand) concerns(g registration, k kin) bool {
	return g.kin() == k && (d.Pin == "" || g.rt.ID == d.Pin) && !slices.Contains(d.Tried, g.rt)
}

// Candidates returns the Runtimes among which Route chooses, in order of fulfilment.
func (r *Registry) Candidates(d *Demand) (candidates []*Runtime) {
	for _, isAny := range []bool{false, true} {
		for _, g := range r.byContract[d.Contract] {
			if d.concerns(g, here) && d.accepts(g, isAny) {
				candidates = append(candidates, g.rt)
			}
		}
		if len(candidates) > 0 {
			break
		}
	}
	return candidates
}

// accepts reports whether a Runtime can take a call: one that has not failed, or any. If all candidates fail, none is
// avoided: a call is never refused for that. A pin names the Runtime in spite of its failures.
func (d *Demand) accepts(g registration, isAny bool) bool {
	if !g.isConnected() {
		return false
	}
	hasSpace, isAvoided := g.rt.Gate.Check(d.Bytes, d.Now)
	return hasSpace && (isAny || !isAvoided || d.Pin != "")
}
