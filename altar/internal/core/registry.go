// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package core

import (
	"maps"
	"slices"
	"time"
)

// A Runtime is what decides about the calls of a Runtime. The data is opaque.
type Runtime struct {
	ID          string
	IsConnected bool
	LostAt      time.Time // when its connection ended
	Breaker     Breaker
	TakesCredit bool // its streams wait for credit
	Data        any

	calls      map[*Call]bool     // running
	inquiries  map[*Session]bool  // with an open inquiry
	unanswered map[string]*Record // whose final message it owes; by id
}

// Running returns the number of running calls.
func (rt *Runtime) Running() int { return len(rt.calls) }

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
}

func (g registration) isConnected() bool { return g.rt.IsConnected && g.left.IsZero() }

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
		return g.rt.ID != rt.ID || g.rt == rt && g.left.IsZero() && (!replace || slices.Contains(contracts, name))
	})
	for _, name := range contracts {
		if !out.Has(name, rt) {
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

// Without returns a Registry without a Runtime.
func (r *Registry) Without(id string) *Registry {
	return r.filter(func(_ string, g registration) bool { return g.rt.ID != id })
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
			list = slices.DeleteFunc(slices.Clone(list), goes)
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

// Fulfils reports whether a Runtime has a fulfilment of any contract.
func (r *Registry) Fulfils(rt *Runtime) bool {
	for contract := range r.byContract {
		if r.Has(contract, rt) {
			return true
		}
	}
	return false
}

// CanTake reports whether a Runtime is a connected one of a contract.
func (r *Registry) CanTake(contract string, rt *Runtime) bool {
	return slices.ContainsFunc(r.byContract[contract], func(g registration) bool { return g.rt == rt && g.isConnected() })
}

// Connected returns the ids of the connected Runtimes of a contract.
func (r *Registry) Connected(contract string) (ids []string) {
	for _, g := range r.byContract[contract] {
		if g.isConnected() {
			ids = append(ids, g.rt.ID)
		}
	}
	return ids
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
	HasSpace func(rt *Runtime) bool
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

// Route returns the Runtime for a call, in turn for each contract and session (ALT-D24).
func (r *Registry) Route(d *Demand) (*Runtime, Lack) {
	list := r.byContract[d.Contract]
	if d.Pin != "" {
		return d.pinned(list)
	}
	n := 0
	isAbsent := false
	for _, g := range list {
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
	first := 0 // the registration whose turn it is
	for skip := d.Turn % uint64(n); !list[first].isConnected() || skip > 0; first++ {
		if list[first].isConnected() {
			skip--
		}
	}
	for _, isAny := range []bool{false, true} {
		for i := range list {
			if g := list[(first+i)%len(list)]; d.accepts(g, isAny) {
				return g.rt, NoLack
			}
		}
	}
	return nil, NoSpace
}

// pinned returns the Runtime with the id of the pin.
func (d *Demand) pinned(list []registration) (*Runtime, Lack) {
	i := slices.IndexFunc(list, func(g registration) bool { return g.rt.ID == d.Pin })
	switch {
	case i < 0 || list[i].rt.IsConnected && !list[i].isConnected():
		return nil, NotFulfilled
	case !list[i].isConnected():
		return nil, NotConnected
	case !d.HasSpace(list[i].rt):
		return nil, NoSpace
	}
	return list[i].rt, NoLack
}

// Candidates returns the Runtimes among which Route chooses, in order of fulfilment.
func (r *Registry) Candidates(d *Demand) (candidates []*Runtime) {
	for _, isAny := range []bool{false, true} {
		for _, g := range r.byContract[d.Contract] {
			if d.accepts(g, isAny) {
				candidates = append(candidates, g.rt)
			}
		}
		if len(candidates) > 0 {
			break
		}
	}
	return candidates
}

// accepts reports whether a Runtime can take a call without a pin: one that has not failed, or any. If all
// candidates fail, none is avoided: a call is never refused for that.
func (d *Demand) accepts(g registration, isAny bool) bool {
	return g.isConnected() && d.HasSpace(g.rt) && (isAny || !g.rt.Breaker.IsOpen(d.Now))
}

// An Offer is a Runtime of a Host with the contracts that it fulfils, in the order of the manifest, and the
// digests of the contracts: lower-case hex SHA-256 (ALT-D39).
type Offer struct {
	HostID, RuntimeID  string
	Contracts, Digests []string
}

func (o *Offer) isSame(p Offer) bool { return o.HostID == p.HostID && o.RuntimeID == p.RuntimeID }

// Offers are the Runtimes of other Hosts by contract.
type Offers map[string][]Offer

// Match returns the offers of other Hosts than self for contracts with the same digest (ALT-D39), and the
// Hosts and contracts of those with another digest. The digest of an unknown contract is empty.
func Match(all []Offer, self string, digest func(contract string) string) (same Offers, unlike [][2]string) {
	same = make(Offers)
	for _, o := range all {
		for i, name := range o.Contracts {
			own := digest(name)
			switch {
			case o.HostID == self || own == "":
			case i < len(o.Digests) && o.Digests[i] == own:
				same[name] = append(same[name], o)
			default:
				unlike = append(unlike, [2]string{o.HostID, name})
			}
		}
	}
	return same, unlike
}

// Next returns the offer for a call, in turn, but none that it has tried.
func (o Offers) Next(d *Demand, tried []Offer) (Offer, bool) {
	rest := slices.DeleteFunc(slices.Clone(o[d.Contract]), func(p Offer) bool {
		return d.Pin != "" && p.RuntimeID != d.Pin || slices.ContainsFunc(tried, p.isSame)
	})
	if len(rest) == 0 {
		return Offer{}, false
	}
	return rest[d.Turn%uint64(len(rest))], true
}
