// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package core

import (
	"cmp"
	"iter"
	"maps"
	"slices"
	"strings"
	"time"
)

// inquiryWait is the time for which a call waits for responses to RequestFulfillment (ALT-D15).
const inquiryWait = time.Second

// GeneratedPrefix begins the ids that a Host generates, and that no client can suggest. They do not
// return, so they need no tombstone.
const GeneratedPrefix = "s-"

// A Principal is the owner of sessions.
type Principal struct{ Tenant, Name string }

// A SessionKind tells whose a session is.
type SessionKind int

// The kinds.
const (
	OwnSession   SessionKind = iota
	GuestSession             // of another Host
	ProbeSession             // of the Host itself
)

// A Session isolates fulfilments, calls and records (ALT-006, ALT-012). The data is opaque.
type Session struct {
	ID        string
	Principal Principal
	Kind      SessionKind
	TTL       time.Duration
	Expiry    Timer
	Records   RecordScope
	Data      any

	all       *Sessions
	own       *Registry             // fulfilments of the session; nil: those of all sessions
	turns     map[string]uint64     // dispatches by bare name, by contract
	inquiries map[*Runtime]*Inquiry // open
	calls     map[string]*Call      // in flight
	arrivals  chain[Call]           // likewise, in order of arrival
	arrived   uint64                // number of calls
	waiting   map[*Call]bool        // wait for a Runtime
	tails     map[*Call]bool        // ended, but chunks wait for connections
	isEnded   bool

	seq   uint64        // in order of creation
	place link[Session] // likewise
}

func placeOf(s *Session) *link[Session] { return &s.place }

// IsEnded reports whether the session has ended.
func (s *Session) IsEnded() bool { return s.isEnded }

// Registry returns the fulfilments in a session. Most sessions have those of all sessions.
func (s *Session) Registry() *Registry {
	if s.own != nil {
		return s.own
	}
	return s.all.registry
}

// Turn returns the number of dispatches of a contract by bare name.
func (s *Session) Turn(contract string) uint64 { return s.turns[contract] }

// CountTurn counts a dispatch by bare name.
func (s *Session) CountTurn(contract string) {
	if s.turns == nil {
		s.turns = make(map[string]uint64)
	}
	s.turns[contract]++
}

// Call returns the call in flight with an id, or nil.
func (s *Session) Call(id string) *Call { return s.calls[id] }

// First returns the call in flight that arrived first, or nil.
func (s *Session) First() *Call { return s.arrivals.first }

// Enter adds a call. Its id is in use from now on, unless a call of another session has it.
func (s *Session) Enter(c *Call, id string) {
	c.session, c.id = s, id
	s.calls[id] = c
	if s.all.inUse[id] == nil {
		s.all.inUse[id] = c
	}
	s.arrived++
	c.seq = s.arrived
	s.arrivals.push(c, arrivalOf)
}

// Leave removes a call whose outcome was sent.
func (s *Session) Leave(c *Call) {
	s.arrivals.remove(c, arrivalOf)
	c.freeID()
	if s.calls[c.id] == c {
		delete(s.calls, c.id)
	}
}

// freeID makes the id of a call free for other sessions.
func (c *Call) freeID() {
	if c.session != nil && c.session.all.inUse[c.id] == c {
		delete(c.session.all.inUse, c.id)
	}
}

// Hold makes a call wait for a Runtime, until it is dispatched or ends.
func (s *Session) Hold(c *Call) {
	if s.waiting == nil {
		s.waiting = make(map[*Call]bool)
	}
	s.waiting[c], s.all.holding[s] = true, true
}

func (c *Call) unhold() {
	if s := c.session; s != nil && s.waiting[c] {
		delete(s.waiting, c)
		if len(s.waiting) == 0 {
			delete(s.all.holding, s)
		}
	}
}

// Held returns the held calls in order of arrival.
func (s *Session) Held() []*Call { return inOrder(slices.Collect(maps.Keys(s.waiting))) }

// inOrder sorts calls by the creation of their sessions, then by arrival, and removes duplicates.
func inOrder(list []*Call) []*Call {
	slices.SortFunc(list, func(a, b *Call) int {
		return cmp.Or(cmp.Compare(a.session.seq, b.session.seq), cmp.Compare(a.seq, b.seq))
	})
	return slices.Compact(list)
}

// Linger keeps an ended call while chunks wait for its connections.
func (s *Session) Linger(c *Call) {
	if s.tails == nil {
		s.tails = make(map[*Call]bool)
	}
	if !s.tails[c] {
		s.tails[c] = true
		s.all.tails++
	}
}

// IsLingering reports whether an ended call is kept.
func (s *Session) IsLingering(c *Call) bool { return s.tails[c] }

// Dismiss ends Linger.
func (s *Session) Dismiss(c *Call) {
	if s.tails[c] {
		delete(s.tails, c)
		s.all.tails--
	}
}

// Tails returns the ended calls that are kept.
func (s *Session) Tails() []*Call { return slices.Collect(maps.Keys(s.tails)) }

// IsExpected reports whether an open inquiry could provide a Runtime for a call.
func (s *Session) IsExpected(pin string) bool {
	for _, table := range []map[*Runtime]*Inquiry{s.inquiries, s.all.inquiries} {
		for rt := range table {
			if pin == "" || rt.ID == pin {
				return true
			}
		}
	}
	return false
}

// An Inquiry is a RequestFulfillment without a response, or the handshake of a standing Runtime. It is the
// event of a timer, see [Sessions.Expired].
type Inquiry struct {
	s     *Session // nil: all
	rt    *Runtime
	timer Timer
}

// Sessions are the live sessions of a Host in order of creation, the tombstones of ended ids, and the
// fulfilments in all sessions.
type Sessions struct {
	timers     *Timers
	byID       map[string]*Session
	live       chain[Session]
	own        int
	seq        uint64
	tombstones tombstones
	looks      map[string]*Look

	registry  *Registry             // of all sessions
	special   map[*Session]bool     // with separate fulfilments
	inquiries map[*Runtime]*Inquiry // to standing Runtimes
	holding   map[*Session]bool     // with held calls
	inUse     map[string]*Call      // calls in flight of all sessions
	tails     int
}

// NewSessions returns a table without sessions.
func NewSessions(timers *Timers) *Sessions {
	return &Sessions{
		timers: timers, registry: &Registry{}, tombstones: newTombstones(10_000, 100_000),
		byID: make(map[string]*Session), looks: make(map[string]*Look), special: make(map[*Session]bool),
		inquiries: make(map[*Runtime]*Inquiry), holding: make(map[*Session]bool), inUse: make(map[string]*Call),
	}
}

// Find returns a live session, or nil.
func (t *Sessions) Find(id string) *Session { return t.byID[id] }

// Len returns the number of live sessions.
func (t *Sessions) Len() int { return len(t.byID) }

// Own returns the number of live sessions of clients of this Host.
func (t *Sessions) Own() int { return t.own }

// Remembered returns the number of tombstones.
func (t *Sessions) Remembered() int { return len(t.tombstones.byID) }

// Tails returns the number of ended calls whose chunks wait for connections.
func (t *Sessions) Tails() int { return t.tails }

// InUse returns the call in flight with an id that no other session may use, or nil.
func (t *Sessions) InUse(id string) *Call { return t.inUse[id] }

// Calls returns the number of ids in use.
func (t *Sessions) Calls() int { return len(t.inUse) }

// All yields the live sessions in order of creation. The body of the loop must not end one.
func (t *Sessions) All() iter.Seq[*Session] {
	return func(yield func(*Session) bool) {
		for s := t.live.first; s != nil && yield(s); s = s.place.next {
		}
	}
}

// IsUsed reports whether an id is live or has a tombstone (ALT-D18).
func (t *Sessions) IsUsed(id string, now time.Time) bool {
	return t.byID[id] != nil || t.tombstones.has(id, now)
}

// PickID returns the requested id, or a generated one if it is taken or invalid (ALT-D18). It
// returns "" if all generated ids are taken.
func (t *Sessions) PickID(requested string, isValid func(string) bool, generate func() string, now time.Time) string {
	if isValid(requested) && !strings.HasPrefix(requested, GeneratedPrefix) && !t.IsUsed(requested, now) {
		return requested
	}
	for range 1 << 20 {
		if id := generate(); isValid(id) && !t.IsUsed(id, now) {
			return id
		}
	}
	return ""
}

// Init makes a session without entering it. At a time of zero it does not expire.
func (t *Sessions) Init(s *Session, expires time.Time, event any) {
	s.all, s.calls, s.Records.Principal, s.Expiry.Event = t, make(map[string]*Call), s.Principal, event
	if !expires.IsZero() {
		t.timers.Set(&s.Expiry, expires)
	}
}

// Add enters a session.
func (t *Sessions) Add(s *Session) {
	t.byID[s.ID] = s
	t.seq++
	s.seq = t.seq
	if s.Kind == OwnSession {
		t.own++
	}
	t.live.push(s, placeOf)
}

// Adopt makes the session of another Host one of this Host, too.
func (t *Sessions) Adopt(s *Session) {
	t.remove(s)
	s.Kind = OwnSession
	t.Add(s)
}

func (t *Sessions) remove(s *Session) {
	delete(t.byID, s.ID)
	if s.Kind == OwnSession {
		t.own--
	}
	t.live.remove(s, placeOf)
}

// End removes a session with its inquiries and fulfilments. Its id must not be used before a point in time,
// and its calls are still to be ended.
func (t *Sessions) End(s *Session, forget time.Time) {
	s.isEnded = true
	t.timers.Stop(&s.Expiry)
	t.remove(s)
	if !strings.HasPrefix(s.ID, GeneratedPrefix) {
		t.tombstones.add(s.ID, s.Principal, forget)
	}
	for rt := range s.inquiries {
		t.endInquiry(s, rt)
	}
	delete(t.special, s)
}

// A Look counts the accesses to the store in progress for one session id.
type Look struct {
	n           int
	isDestroyed bool
}

// Look starts an access to the store for a session that is not in the table.
func (t *Sessions) Look(id string) *Look {
	l := t.looks[id]
	if l == nil {
		l = &Look{}
		t.looks[id] = l
	}
	l.n++
	return l
}

// Looked ends an access to the store, and reports whether the session was destroyed during it.
func (t *Sessions) Looked(id string, l *Look) (isDestroyed bool) {
	if l.n--; l.n == 0 {
		delete(t.looks, id)
	}
	return l.isDestroyed
}

// Destroyed notes that another Host has destroyed a session: what is being read of it may be older.
func (t *Sessions) Destroyed(id string) {
	if l := t.looks[id]; l != nil {
		l.isDestroyed = true
	}
}

// Looks returns the number of ids with accesses to the store.
func (t *Sessions) Looks() int { return len(t.looks) }

// Change changes the fulfilments in a session, or in all without one.
func (t *Sessions) Change(s *Session, change func(r *Registry) *Registry) {
	if s != nil {
		t.set(s, change(s.Registry()))
		return
	}
	t.registry = change(t.registry)
	for s := range t.special {
		t.set(s, change(s.own))
	}
}

func (t *Sessions) set(s *Session, r *Registry) {
	if r == t.registry || r.Equal(t.registry) {
		s.own = nil
		delete(t.special, s)
		return
	}
	s.own = r
	t.special[s] = true
}

// Forget removes a Runtime that did not return from the fulfilments in all sessions.
func (t *Sessions) Forget(runtimeID string) { t.registry = t.registry.Without(runtimeID) }

// Expect notes that the fulfilments of a Runtime in a session, or in all without one, were requested.
func (t *Sessions) Expect(s *Session, rt *Runtime, now time.Time) {
	table := &t.inquiries
	if s != nil {
		table = &s.inquiries
		if rt.inquiries == nil {
			rt.inquiries = make(map[*Session]bool)
		}
		rt.inquiries[s] = true
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
	t.timers.Set(&a.timer, now.Add(inquiryWait))
}

// endInquiry ends an inquiry.
func (t *Sessions) endInquiry(s *Session, rt *Runtime) {
	table := t.inquiries
	if s != nil {
		table = s.inquiries
		delete(rt.inquiries, s)
	}
	if a := table[rt]; a != nil {
		t.timers.Stop(&a.timer)
		delete(table, rt)
	}
}

// Responded ends the inquiry to a Runtime in a session, or all without one. It returns the held calls that
// may have a Runtime now.
func (t *Sessions) Responded(s *Session, rt *Runtime) []*Call {
	if s != nil {
		t.endInquiry(s, rt)
		return s.Held()
	}
	for s := range rt.inquiries {
		t.endInquiry(s, rt)
	}
	t.endInquiry(nil, rt)
	return t.Held()
}

// Expired ends an inquiry without a response. It returns the held calls that may not wait any longer.
func (t *Sessions) Expired(a *Inquiry) []*Call {
	t.endInquiry(a.s, a.rt)
	if a.s != nil {
		return a.s.Held()
	}
	return t.Held()
}

// Held returns the held calls of all sessions.
func (t *Sessions) Held() []*Call { return inOrder(t.appendHeld(nil)) }

func (t *Sessions) appendHeld(list []*Call) []*Call {
	for s := range t.holding {
		list = slices.AppendSeq(list, maps.Keys(s.waiting))
	}
	return list
}

// Lost notes the loss of the connection of a Runtime. It returns the calls that it ran, and the held ones
// that waited for it.
func (t *Sessions) Lost(rt *Runtime, now time.Time) []*Call {
	rt.IsConnected, rt.LostAt = false, now
	list := slices.Collect(maps.Keys(rt.calls))
	for s := range rt.inquiries {
		t.endInquiry(s, rt)
		list = slices.AppendSeq(list, maps.Keys(s.waiting))
	}
	if t.inquiries[rt] != nil {
		t.endInquiry(nil, rt)
		list = t.appendHeld(list)
	}
	return inOrder(list)
}
