// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package core

import (
	"cmp"
	"maps"
	"slices"
	"time"
)

// GeneratedPrefix begins the ids that a Host generates, and that no client can suggest. They do not
// return, so they need no tombstone.
const GeneratedPrefix = "s-"

// A Principal is the owner of sessions.
type Principal struct{ Tenant, Name string }

// A Session isolates fulfilments, calls and records (ALT-006, ALT-012). The data is opaque.
type Session struct {
	RecordScope // its principal and its records

	ID       string
	TTL      time.Duration
	Slides   bool // each call prolongs it
	IsShared bool // another Host may prolong it
	IsLink   bool // it has the calls of another Host, which records them
	isEnded  bool
	Seq      uint64 // in order of creation in all shards
	Data     any

	sh        *Shard
	expiry    Timer
	own       *Registry             // fulfilments of the session; nil: those of all sessions
	turns     map[string]uint64     // dispatches by bare name, by contract
	inquiries map[*Runtime]*Inquiry // open
	calls     map[string]*Call      // in flight
	arrivals  chain[Call]           // likewise, in order of arrival
	waiting   map[*Call]bool        // wait for a Runtime
	tails     map[*Call]bool        // ended, but chunks wait for connections

	place link[Session] // in order of creation
}

func placeOf(s *Session) *link[Session] { return &s.place }

// Shard returns the index of the shard that the session was opened in.
func (s *Session) Shard() int { return s.sh.index }

// IsEnded reports whether the session has ended.
func (s *Session) IsEnded() bool { return s.isEnded }

// Expires returns when the session expires, or zero.
func (s *Session) Expires() time.Time { return s.expiry.Due() }

// Registry returns the fulfilments in a session. Most sessions have those of all sessions.
func (s *Session) Registry() *Registry {
	if s.own != nil {
		return s.own
	}
	return s.sh.registry
}

// Turn returns the number of dispatches of a contract by bare name.
func (s *Session) Turn(contract string) uint64 { return s.turns[contract] }

// countTurn counts a dispatch by bare name.
func (s *Session) countTurn(contract string) {
	if s.turns == nil {
		s.turns = make(map[string]uint64)
	}
	s.turns[contract]++
}

// Call returns the call in flight with an id, or nil.
func (s *Session) Call(id string) *Call { return s.calls[id] }

// enter adds a call.
func (s *Session) enter(c *Call, id string) {
	if s.calls == nil {
		s.calls = make(map[string]*Call)
	}
	c.session, c.id = s, id
	s.calls[id] = c
	s.sh.arrived++
	c.seq = s.sh.arrived
	s.arrivals.push(c, arrivalOf)
}

// release removes a call whose outcome was sent.
func (s *Session) release(c *Call) {
	s.arrivals.remove(c, arrivalOf)
	c.freeID()
	if s.calls[c.id] == c {
		delete(s.calls, c.id)
	}
}

// freeID makes the id of a call free for other sessions.
func (c *Call) freeID() {
	if c.hasID {
		c.hasID = false
		c.session.sh.env.IDs.Free(c.id, c)
	}
}

// hold makes a call wait for a Runtime, until it is dispatched or ends.
func (s *Session) hold(c *Call) {
	if s.waiting == nil {
		s.waiting = make(map[*Call]bool)
	}
	s.waiting[c], s.sh.holding[s] = true, true
}

func (c *Call) unhold() {
	if s := c.session; s != nil && s.waiting[c] {
		delete(s.waiting, c)
		if len(s.waiting) == 0 {
			delete(s.sh.holding, s)
		}
	}
}

// heldCalls returns the held calls in order of arrival.
func (s *Session) heldCalls() []*Call { return inOrder(slices.Collect(maps.Keys(s.waiting))) }

// inOrder sorts calls by the creation of their sessions, then by arrival, and removes duplicates.
func inOrder(list []*Call) []*Call {
	slices.SortFunc(list, Compare)
	return slices.Compact(list)
}

// Compare orders the calls of all shards by the creation of their sessions, then by arrival (ALT-D24).
func Compare(a, b *Call) int {
	return cmp.Or(cmp.Compare(a.session.Seq, b.session.Seq), cmp.Compare(a.seq, b.seq))
}

// linger keeps an ended call while chunks wait for its connections.
func (s *Session) linger(c *Call) {
	if s.tails == nil {
		s.tails = make(map[*Call]bool)
	}
	if !s.tails[c] {
		s.tails[c] = true
		s.sh.Counts.Busy++
	}
}

// dismiss ends linger.
func (s *Session) dismiss(c *Call) {
	if s.tails[c] {
		delete(s.tails, c)
		s.sh.Counts.Busy--
	}
}

// isExpected reports whether an open inquiry could provide a Runtime for a call.
func (s *Session) isExpected(pin string) bool {
	for _, table := range []map[*Runtime]*Inquiry{s.inquiries, s.sh.inquiries} {
		for rt := range table {
			if pin == "" || rt.ID == pin {
				return true
			}
		}
	}
	return false
}
