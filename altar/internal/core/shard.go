// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package core

import (
	"iter"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"time"
)

// inquiryWait is the time for which a call waits for responses to RequestFulfillment (ALT-D15).
const inquiryWait = time.Second

// Counts are counters of a shard.
type Counts struct {
	Sessions int // live, without those of other Hosts
	InFlight int // calls held or running
	Busy     int // these, and ended calls whose chunks wait for connections

	Dispatched, Rejected, Succeeded, Failed, Chunks, Dropped uint64
}

// A Shard has the live sessions of some ids, with their calls, and the fulfilments in all sessions. It changes by
// steps only.
type Shard struct {
	Counts Counts

	index     int
	env       *Env
	now       time.Time
	out       []Effect
	timers    Timers
	byID      map[string]*Session
	live      chain[Session]
	arrived   uint64 // number of calls
	looks     map[string]*Look
	registry  *Registry             // of all sessions
	special   map[*Session]bool     // with separate fulfilments
	inquiries map[*Runtime]*Inquiry // to standing Runtimes
	holding   map[*Session]bool     // with held calls
	lanes     map[*Runtime]*lane
	touched   []*Call // whose streams may get credit at the end of the event
	starved   []*Call // whose streams got none because the budget is used up, in this order
	starvedAt Timer
	hasFreed  bool     // memory, in this event
	found     Record   // of the event
	slab      []Record // to be used
	keeping   []byte
	block     strings.Builder // of kept results
}

// A lane is the part of one Runtime in a shard.
type lane struct {
	calls     map[*Call]bool    // running
	inquiries map[*Session]bool // with an open inquiry
}

// NewShard returns a shard without sessions. Seq numbers the timers of all shards.
func NewShard(index int, env *Env, seq *atomic.Uint64) *Shard {
	sh := &Shard{
		index: index, env: env, timers: Timers{seq: seq}, registry: env.Registry, byID: make(map[string]*Session), looks: make(map[string]*Look),
		special: make(map[*Session]bool), inquiries: make(map[*Runtime]*Inquiry), holding: make(map[*Session]bool), lanes: make(map[*Runtime]*lane),
	}
	sh.starvedAt.Event = (*starving)(sh)
	return sh
}

// Find returns a live session, or nil.
func (sh *Shard) Find(id string) *Session { return sh.byID[id] }

// All yields the live sessions in order of creation. The body of the loop must not end one.
func (sh *Shard) All() iter.Seq[*Session] {
	return func(yield func(*Session) bool) {
		for s := sh.live.first; s != nil && yield(s); s = s.place.next {
		}
	}
}

// Due returns when the first timer fires, and its number in all shards.
func (sh *Shard) Due() (due time.Time, seq uint64, isSet bool) { return sh.timers.First() }

func (sh *Shard) lane(rt *Runtime) *lane {
	l := sh.lanes[rt]
	if l == nil {
		l = &lane{calls: make(map[*Call]bool)}
		sh.lanes[rt] = l
	}
	return l
}

// open enters a session, and sends the inquiries for it.
func (sh *Shard) open(s *Session, runtimes []*Runtime, expires time.Time) {
	s.sh, s.expiry.Event = sh, s
	sh.byID[s.ID] = s
	if !s.IsLink {
		sh.Counts.Sessions++
	}
	sh.live.push(s, placeOf)
	if !expires.IsZero() {
		sh.timers.Set(&s.expiry, expires)
	}
	for _, rt := range runtimes {
		sh.ask(s, rt)
	}
}

// A Look counts the accesses to the ledger in progress for one session id.
type Look struct {
	n           int
	isReserved  bool
	isDestroyed bool
}

// Look starts an access to the ledger for a session that is not in the table. A reserved id is that of a new session.
func (sh *Shard) Look(id string, isReserved bool) *Look {
	l := sh.looks[id]
	if l == nil {
		l = &Look{}
		sh.looks[id] = l
	}
	l.n++
	l.isReserved = l.isReserved || isReserved
	return l
}

// Looked ends an access to the ledger, and reports whether the session was destroyed during it.
func (sh *Shard) Looked(id string, l *Look) (isDestroyed bool) {
	if l.n--; l.n == 0 {
		delete(sh.looks, id)
	}
	return l.isDestroyed
}

// Destroyed notes that another Host has destroyed a session: what is being read of it may be older.
func (sh *Shard) Destroyed(id string) {
	if l := sh.looks[id]; l != nil {
		l.isDestroyed = true
	}
}

// IsFree reports whether an id is that of no live session and of none that is being made.
func (sh *Shard) IsFree(id string) bool {
	l := sh.looks[id]
	return sh.byID[id] == nil && (l == nil || !l.isReserved)
}

// Looks returns the number of ids with accesses to the ledger.
func (sh *Shard) Looks() int { return len(sh.looks) }

// change changes the fulfilments in a session, or in all without one.
func (sh *Shard) change(s *Session, change func(r *Registry) *Registry) {
	if s != nil {
		sh.set(s, change(s.Registry()))
		return
	}
	sh.registry = change(sh.registry)
	for s := range sh.special {
		sh.set(s, change(s.own))
	}
}

func (sh *Shard) set(s *Session, r *Registry) {
	if r == sh.registry || r.Equal(sh.registry) {
		s.own = nil
		delete(sh.special, s)
		return
	}
	s.own = r
	sh.special[s] = true
}

// An Inquiry is a RequestFulfillment without a response, or the handshake of a standing Runtime.
type Inquiry struct {
	s     *Session // nil: all
	rt    *Runtime
	timer Timer
}

// ask requests the fulfilments of a Runtime in a session.
func (sh *Shard) ask(s *Session, rt *Runtime) {
	sh.emit(Effect{Kind: AskRuntime, Runtime: rt, Session: s})
	sh.expect(s, rt)
}

// expect notes that the fulfilments of a Runtime in a session, or in all without one, were requested.
func (sh *Shard) expect(s *Session, rt *Runtime) {
	table := &sh.inquiries
	if s != nil {
		table = &s.inquiries
		l := sh.lane(rt)
		if l.inquiries == nil {
			l.inquiries = make(map[*Session]bool)
		}
		l.inquiries[s] = true
	}
	if *table == nil {
		*table = make(map[*Runtime]*Inquiry)
	}
	a := (*table)[rt]
	if a == nil {
		a = &Inquiry{s: s, rt: rt}
		a.timer.Event = a
		(*table)[rt] = a
	}
	sh.timers.Set(&a.timer, sh.now.Add(inquiryWait))
}

// endInquiry ends an inquiry.
func (sh *Shard) endInquiry(s *Session, rt *Runtime) {
	table := sh.inquiries
	if s != nil {
		table = s.inquiries
		delete(sh.lane(rt).inquiries, s)
	}
	if a := table[rt]; a != nil {
		sh.timers.Stop(&a.timer)
		delete(table, rt)
	}
}

// responded ends the inquiry to a Runtime in a session, or all without one. It returns the held calls that may
// have a Runtime now.
func (sh *Shard) responded(s *Session, rt *Runtime) []*Call {
	if s != nil {
		sh.endInquiry(s, rt)
		return s.heldCalls()
	}
	for s := range sh.lane(rt).inquiries {
		sh.endInquiry(s, rt)
	}
	sh.endInquiry(nil, rt)
	return sh.heldCalls()
}

// expired ends an inquiry without a response. It returns the held calls that may not wait any longer.
func (sh *Shard) expired(a *Inquiry) []*Call {
	sh.endInquiry(a.s, a.rt)
	if a.s != nil {
		return a.s.heldCalls()
	}
	return sh.heldCalls()
}

// heldCalls returns the held calls of all sessions.
func (sh *Shard) heldCalls() []*Call { return inOrder(sh.appendHeld(nil)) }

func (sh *Shard) appendHeld(list []*Call) []*Call {
	for s := range sh.holding {
		list = slices.AppendSeq(list, maps.Keys(s.waiting))
	}
	return list
}

// lose ends the inquiries to a Runtime whose connection was lost. It returns the calls that it ran, and the held
// ones that waited for it.
func (sh *Shard) lose(rt *Runtime) []*Call {
	l := sh.lanes[rt]
	if l == nil {
		l = &lane{}
	}
	delete(sh.lanes, rt)
	list := slices.Collect(maps.Keys(l.calls))
	for s := range l.inquiries {
		sh.endInquiry(s, rt)
		list = slices.AppendSeq(list, maps.Keys(s.waiting))
	}
	if sh.inquiries[rt] != nil {
		sh.endInquiry(nil, rt)
		list = sh.appendHeld(list)
	}
	delete(sh.lanes, rt)
	return inOrder(list)
}

// An IDTable is an [IDs] without a lock.
type IDTable map[string]*Call

// Use implements [IDs].
func (t IDTable) Use(id string, c *Call) (other *Call) {
	if other = t[id]; other == nil {
		t[id] = c
	}
	return other
}

// Free implements [IDs].
func (t IDTable) Free(id string, c *Call) {
	if t[id] == c {
		delete(t, id)
	}
}
