// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package budget bounds the use of resources by sessions, by principals and in total.
package budget

import (
	"context"
	"hash/maphash"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"
	"weak"
)

const maxEvictions = 4 // for one reservation

// A Budget counts the held resources and refuses reservations over a bound.
//
// New principals find room: a principal may not hold more than the rest that stays
// free for all, so used + n ≤ free - n. Only a last single unit goes to a principal
// that holds nothing. Anonymous principals share half of the total by the same rule
// or, without a total, the bound of one principal. All methods are safe for
// concurrent use.
type Budget struct {
	evict  func(r Resource, principal string, n int64) int64
	limits Limits
	bounds [5][numResources]int64 // of a session, a principal, all, the anonymous; none
	start  time.Time
	seed   maphash.Seed

	mu         sync.Mutex // guards all below, and scopes
	all        account
	anonymous  account // a child of all
	principals map[string]weak.Pointer[account]
	scopes     map[scopeKey]weak.Pointer[Scope]
	waiting    [2][]*account // principals with waiters, the next in turn first: the anonymous, and the others
	turns      uint64
	free       *entry // a list, reused
	seq        uint64
	records    map[record]bool // logged in this period
	nextPeriod time.Duration
	buckets    map[uint64]time.Duration // of principals, for requests: when each is full
	nextSweep  time.Duration            // of buckets
}

// An account is the use of a session, of a principal, of the anonymous or of all.
type account struct {
	scope   string
	parent  *account
	bounds  *[numResources]int64
	use     [numResources]tally
	waiters []*waiter // of a principal
	turn    uint64    // of a principal with waiters
}

// A tally is the use of a resource, and what happened since it last rose over a
// quarter of the bound.
type tally struct {
	used, freed int64
	since       time.Duration // after Budget.start
}

type scopeKey struct{ principal, session string }

// A Scope is a session of a principal. It has no end: the garbage collector takes a
// scope without holds.
type Scope struct {
	account
	b         *Budget
	principal string
}

// A Hold is the result of a reservation. The zero Hold holds nothing. The units of a
// lost Hold stay in use.
type Hold struct {
	b     *Budget
	entry *entry
	seq   uint64
}

type entry struct {
	seq      uint64 // of its hold; zero means free
	scope    *Scope
	resource Resource
	n        int64
	next     *entry // free
}

// New returns a budget. A reservation over a bound calls evict, if not nil and with
// no lock held, to release n units held for ended or idle things, oldest first: of
// the principal, or of any if principal is empty. It returns the number of units.
func New(l Limits, evict func(r Resource, principal string, n int64) int64) *Budget {
	b := &Budget{evict: evict, start: time.Now(), seed: maphash.MakeSeed()}
	b.bounds = l.withDefaults()
	b.limits = l
	b.all = account{scope: "all", bounds: &b.bounds[2]}
	b.anonymous = account{scope: "all", bounds: &b.bounds[3], parent: &b.all}
	b.principals, b.scopes = map[string]weak.Pointer[account]{}, map[scopeKey]weak.Pointer[Scope]{}
	b.records, b.buckets = map[record]bool{}, map[uint64]time.Duration{}
	return b
}

// Scope returns the scope of a session; without one, only the bounds of principals
// and of all apply. A principal is an authenticated name or the result of [Anonymous].
func (b *Budget) Scope(principal, session string) *Scope {
	b.mu.Lock()
	defer b.mu.Unlock()
	if s := b.scopes[scopeKey{principal, session}].Value(); s != nil {
		return s
	}
	principal, session = strings.Clone(principal), strings.Clone(session)
	p := b.principals[principal].Value()
	if p == nil {
		p = &account{scope: "principal", bounds: &b.bounds[1], parent: &b.all}
		if strings.HasPrefix(principal, anonymous) {
			p.parent = &b.anonymous
		}
		keepLocked(b, b.principals, principal, p)
	}
	s := &Scope{b: b, principal: principal, account: account{scope: "session", bounds: &b.bounds[0], parent: p}}
	if session == "" {
		s.bounds = &b.bounds[4]
	}
	keepLocked(b, b.scopes, scopeKey{principal, session}, s)
	return s
}

// keepLocked adds v to m until the garbage collector takes it. b.mu must be held.
func keepLocked[K comparable, V any](b *Budget, m map[K]weak.Pointer[V], key K, v *V) {
	m[key] = weak.Make(v)
	budget := weak.Make(b) // evict may lead to v
	runtime.AddCleanup(v, func(key K) {
		b := budget.Value()
		if b == nil {
			return
		}
		b.mu.Lock()
		defer b.mu.Unlock()
		if m[key].Value() == nil {
			delete(m, key)
		}
	}, key)
}

// Principal returns the name of the principal.
func (s *Scope) Principal() string { return s.principal }

// Reserve takes n units of a resource, or none and returns an *[Error]. It does not
// wait. For requests, the Hold is empty.
func (s *Scope) Reserve(r Resource, n int64) (Hold, error) {
	b := s.b
	if n <= 0 {
		return Hold{}, nil
	}
	if r == Requests {
		return Hold{}, b.countRequests(s, n)
	}
	for round := 0; ; round++ {
		b.mu.Lock()
		h, full := b.reserveLocked(s, r, n)
		if full == nil {
			b.mu.Unlock()
			return h, nil
		}
		e, lack := b.refuseLocked(s, full, r, n)
		b.mu.Unlock()
		if round == maxEvictions || !b.makeRoom(s, full, r, lack) {
			return Hold{}, b.logged(s, e)
		}
	}
}

func (b *Budget) makeRoom(s *Scope, full *account, r Resource, lack int64) bool {
	if b.evict == nil {
		return false
	}
	n := b.evict(r, s.principal, lack)
	if n < lack && full.scope == "all" {
		n += b.evict(r, "", lack-n)
	}
	return n > 0
}

// reserveLocked takes n units in all scopes, or none and returns the account that
// lacks room. b.mu must be held.
func (b *Budget) reserveLocked(s *Scope, r Resource, n int64) (Hold, *account) {
	if full := s.fullLocked(r, n); full != nil {
		return Hold{}, full
	}
	for a := &s.account; a != nil; a = a.parent {
		t, quarter := &a.use[r], a.bounds[r]/4
		if t.used <= quarter && t.used+n > quarter {
			t.since, t.freed = time.Since(b.start), 0
		}
		t.used += n
	}
	e := b.free
	if e == nil {
		e = &entry{}
	}
	b.free = e.next
	b.seq++
	*e = entry{seq: b.seq, scope: s, resource: r, n: n}
	return Hold{b: b, entry: e, seq: b.seq}, nil
}

// fullLocked returns the account without room for n units, if any. b.mu must be held.
func (s *Scope) fullLocked(r Resource, n int64) *account {
	for a := &s.account; a != nil; a = a.parent {
		if n > a.bounds[r]-a.use[r].used {
			return a
		}
	}
	p := s.parent
	used := p.use[r].used
	if used == 0 && n == 1 || p.bounds[r] == none {
		return nil
	}
	for a := p.parent; a != nil; a = a.parent {
		if n > (a.bounds[r]-a.use[r].used-used)/2 {
			return a
		}
	}
	return nil
}

// Room returns how many units a reservation would get now, and whether less than a
// quarter of a bound, or of the share of the principal in all units, is free.
func (s *Scope) Room(r Resource) (free int64, isLow bool) {
	s.b.mu.Lock()
	defer s.b.mu.Unlock()
	free = none
	p := s.parent
	used := p.use[r].used
	for a := &s.account; a != nil; a = a.parent {
		n, bound := a.bounds[r]-a.use[r].used, a.bounds[r]
		if a != &s.account && a != p && p.bounds[r] != none {
			n = (n - used) / 2
			bound = n + used
		}
		free, isLow = min(free, max(n, 0)), isLow || n < bound/4
	}
	return free, isLow
}

// Resize changes the number of held bytes or items, and may evict to find room for more. Without
// room it returns an *[Error] and changes nothing. The zero Hold and a released one stay so.
func (h Hold) Resize(n int64) error {
	if h.b == nil {
		return nil
	}
	h.b.mu.Lock()
	e := *h.entry
	if e.seq == h.seq && n < e.n {
		h.entry.n = max(n, 0)
		e.scope.freeLocked(e.resource, e.n-h.entry.n)
	}
	h.b.mu.Unlock()
	if e.seq != h.seq || n <= e.n {
		return nil
	}
	more, err := e.scope.Reserve(e.resource, n-e.n)
	if err != nil {
		return err
	}
	h.b.mu.Lock()
	defer h.b.mu.Unlock()
	if h.entry.seq == h.seq {
		h.entry.n += more.entry.n
		more.entry.n = 0
	}
	h.b.releaseLocked(more)
	return nil
}

// freeLocked returns units of a resource in all scopes. b.mu must be held.
func (s *Scope) freeLocked(r Resource, n int64) {
	for a := &s.account; a != nil; a = a.parent {
		a.use[r].used -= n
		a.use[r].freed += n
	}
}

// Release returns the held units. Further calls have no effect.
func (h Hold) Release() {
	if h.b == nil {
		return
	}
	h.b.mu.Lock()
	admitted := h.b.releaseLocked(h)
	h.b.mu.Unlock()
	for _, w := range admitted {
		close(w.ready)
	}
}

// releaseLocked returns the waiters that got a place. b.mu must be held; the caller
// closes their channels after unlocking.
func (b *Budget) releaseLocked(h Hold) []*waiter {
	e := h.entry
	if e.seq != h.seq {
		return nil
	}
	r := e.resource
	e.scope.freeLocked(r, e.n)
	*e = entry{next: b.free}
	b.free = e
	if r != Work || len(b.waiting[0])+len(b.waiting[1]) == 0 {
		return nil
	}
	return b.admitLocked()
}

// A waiter is a call of Acquire without a place.
type waiter struct {
	scope   *Scope
	ready   chan struct{} // closed once hold is a place
	hold    Hold
	waiting Hold
}

// Acquire returns a place for a running handler. If none is free, it takes a waiting
// place, or returns an *[Error], and waits until ctx ends. Principals get places in
// turn, the callers of each in order as far as the bounds of sessions permit.
func (s *Scope) Acquire(ctx context.Context) (Hold, error) {
	b := s.b
	b.mu.Lock()
	// No waiter may have a place before a release, so this overtakes none.
	h, full := b.reserveLocked(s, Work, 1)
	if full == nil {
		b.mu.Unlock()
		return h, nil
	}
	h, full = b.reserveLocked(s, Waiting, 1)
	if full != nil {
		e, _ := b.refuseLocked(s, full, Waiting, 1)
		b.mu.Unlock()
		return Hold{}, b.logged(s, e)
	}
	w := &waiter{scope: s, ready: make(chan struct{}), waiting: h}
	if len(s.parent.waiters) == 0 {
		b.enqueueLocked(s.parent)
	}
	s.parent.waiters = append(s.parent.waiters, w)
	b.mu.Unlock()
	select {
	case <-w.ready:
		return w.hold, nil
	case <-ctx.Done():
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if w.hold.b == nil {
		b.dequeueLocked(w)
		return Hold{}, ctx.Err()
	}
	return w.hold, nil
}

// queue returns the list that a principal with waiters is in.
func (b *Budget) queue(p *account) *[]*account {
	if p.parent == &b.anonymous {
		return &b.waiting[0]
	}
	return &b.waiting[1]
}

// enqueueLocked gives a principal the last turn. b.mu must be held.
func (b *Budget) enqueueLocked(p *account) {
	b.turns++
	p.turn = b.turns
	q := b.queue(p)
	*q = append(*q, p)
}

// dequeueLocked removes a waiter and its waiting place. b.mu must be held.
func (b *Budget) dequeueLocked(w *waiter) {
	p := w.scope.parent
	p.waiters = slices.DeleteFunc(p.waiters, func(v *waiter) bool { return v == w })
	if len(p.waiters) == 0 {
		q := b.queue(p)
		*q = slices.DeleteFunc(*q, func(v *account) bool { return v == p })
	}
	b.releaseLocked(w.waiting)
}

// admitLocked gives waiters the free places and returns these waiters. b.mu must be
// held.
func (b *Budget) admitLocked() (admitted []*waiter) {
	for w := b.nextLocked(); w != nil; w = b.nextLocked() {
		admitted = append(admitted, w)
		b.dequeueLocked(w)
		q := b.queue(w.scope.parent)
		if i := slices.Index(*q, w.scope.parent); i >= 0 {
			*q = slices.Delete(*q, i, i+1)
			b.enqueueLocked(w.scope.parent)
		}
	}
	return admitted
}

// nextLocked gives the next waiter in turn a place, if any may have one. b.mu must be
// held.
func (b *Budget) nextLocked() *waiter {
	isFull := func(a *account) bool { return a.use[Work].used >= a.bounds[Work] }
	anonymous, others := b.waiting[0], b.waiting[1]
	if isFull(&b.anonymous) { // they may be thousands
		anonymous = nil
	}
	for len(anonymous)+len(others) > 0 && !isFull(&b.all) {
		q := &others
		if len(others) == 0 || len(anonymous) > 0 && anonymous[0].turn < others[0].turn {
			q = &anonymous
		}
		p := (*q)[0]
		*q = (*q)[1:]
		for _, w := range p.waiters {
			h, full := b.reserveLocked(w.scope, Work, 1)
			if full == nil {
				w.hold = h
				return w
			}
			if full != &w.scope.account {
				break // holds for all waiters of p
			}
		}
	}
	return nil
}
