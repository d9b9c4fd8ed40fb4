// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package engine

import "slices"

// Limits bound the running and the waiting tasks of a principal and of all.
type Limits struct{ Running, RunningPerPrincipal, Waiting, WaitingPerPrincipal int }

// A Ticket is a task that waits for a place.
type Ticket struct {
	Principal string
	Priority  int    // tasks of a principal start by falling priority
	Start     func() // starts the task, which has a place; for the caller of Leave
}

// A Refusal names the bound that is reached: scope "principal" or "all".
type Refusal struct {
	Scope string
	Limit int
}

// Places admits tasks: at most those of Limits run, others wait. Principals take turns; the tasks of one
// principal are started by priority and then by age (ARC-D57, ARC-D80).
type Places struct {
	limits           Limits
	running, waiting int
	principals       map[string]account
	turns            []string  // principals with waiting tasks, the next first
	accepted         []*Ticket // of failed processes, before all others
}

type account struct {
	running int
	waiting []*Ticket
}

// NewPlaces returns Places without tasks.
func NewPlaces(l Limits) *Places {
	return &Places{limits: l, principals: map[string]account{}}
}

// Enter takes a place for a new task, and reports false if it has to wait.
func (p *Places) Enter(principal string) bool {
	a := p.principals[principal]
	if len(p.accepted)+len(a.waiting) > 0 || !p.isFree(a) {
		return false
	}
	p.add(principal, 1)
	return true
}

// Wait adds a task to the queue. Accepted work of a failed process is never refused and precedes all
// other.
func (p *Places) Wait(t *Ticket, isAccepted bool) *Refusal {
	a := p.principals[t.Principal]
	switch {
	case isAccepted:
		p.accepted = append(p.accepted, t)
		return nil
	case len(a.waiting) >= p.limits.WaitingPerPrincipal:
		return &Refusal{"principal", p.limits.WaitingPerPrincipal}
	case p.waiting >= p.limits.Waiting:
		return &Refusal{"all", p.limits.Waiting}
	}
	i := slices.IndexFunc(a.waiting, func(o *Ticket) bool { return o.Priority < t.Priority })
	if i < 0 {
		i = len(a.waiting)
	}
	a.waiting = slices.Insert(a.waiting, i, t)
	p.principals[t.Principal] = a
	p.waiting++
	if len(a.waiting) == 1 {
		p.turns = append(p.turns, t.Principal)
	}
	return nil
}

// Resume takes a place for a task that has had input: as many again may run (ARC-D76). Without
// a bound it always succeeds.
func (p *Places) Resume(principal string, isBounded bool) *Refusal {
	switch {
	case !isBounded:
	case p.principals[principal].running >= 2*p.limits.RunningPerPrincipal:
		return &Refusal{"principal", 2 * p.limits.RunningPerPrincipal}
	case p.running >= 2*p.limits.Running:
		return &Refusal{"all", 2 * p.limits.Running}
	}
	p.add(principal, 1)
	return nil
}

// Leave gives a place back and returns the task that gets it, if any.
func (p *Places) Leave(principal string) *Ticket {
	p.add(principal, -1)
	for _, t := range p.accepted {
		if p.isFree(p.principals[t.Principal]) {
			p.Remove(t)
			p.add(t.Principal, 1)
			return t
		}
	}
	for i, name := range p.turns {
		a := p.principals[name]
		if !p.isFree(a) {
			continue
		}
		t := a.waiting[0]
		p.turns = append(slices.Delete(p.turns, i, i+1), name)
		p.Remove(t)
		p.add(name, 1)
		return t
	}
	return nil
}

// Remove removes a waiting task, and reports false if it does not wait.
func (p *Places) Remove(t *Ticket) bool {
	if i := slices.Index(p.accepted, t); i >= 0 {
		p.accepted = slices.Delete(p.accepted, i, i+1)
		return true
	}
	a := p.principals[t.Principal]
	i := slices.Index(a.waiting, t)
	if i < 0 {
		return false
	}
	a.waiting = slices.Delete(a.waiting, i, i+1)
	p.waiting--
	if len(a.waiting) == 0 {
		a.waiting = nil
		p.turns = slices.DeleteFunc(p.turns, func(name string) bool { return name == t.Principal })
	}
	p.set(t.Principal, a)
	return true
}

func (p *Places) isFree(a account) bool {
	return p.running < p.limits.Running && a.running < p.limits.RunningPerPrincipal
}

func (p *Places) add(principal string, n int) {
	a := p.principals[principal]
	a.running += n
	p.running += n
	p.set(principal, a)
}

func (p *Places) set(principal string, a account) {
	if a.running == 0 && len(a.waiting) == 0 {
		delete(p.principals, principal)
		return
	}
	p.principals[principal] = a
}
