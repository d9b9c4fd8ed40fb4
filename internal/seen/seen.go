// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package seen remembers keys, to refuse repeated messages.
package seen

import (
	"errors"
	"hash/maphash"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fivewire/fivewire/internal/option"
)

// Errors of Add.
var (
	ErrSeen      = errors.New("seen: key repeated")
	ErrExhausted = errors.New("seen: no room for another key of the principal")
)

const (
	lookEvery  = 16   // additions to a shard for one look at the clock
	smallShard = 1024 // keys that each refusal may look at
)

// Options bound a Window. Zero means the default; a negative value removes the bound.
type Options struct {
	Total        int // keys; zero means 1,000,000
	PerPrincipal int // keys of one principal; zero means a sixteenth of Total
	PerScope     int // keys of one scope of a principal; zero means 10,000
}

// A Window is a set of keys for each principal, each key until a time. It evicts no
// key earlier. A principal may not hold more than the rest that stays free for all.
// All methods are safe for concurrent use.
type Window struct {
	total, perPrincipal, perScope int64

	seed   maphash.Seed
	now    func() int64 // Unix time in ms
	count  atomic.Int64
	shards [16]shard // by principal
}

// A shard holds its keys in a ring of two maps. The older map expires as a whole.
type shard struct {
	mu              sync.Mutex
	keys, old       map[key]entry
	until, oldUntil int64 // of all in the map
	adds            int
	nextSweep       int64
	owners          map[uint64]*owner // by hash
	free            *owner            // a list by parent
}

type key struct {
	principal uint64 // a hash
	key       [16]byte
}

type entry struct {
	until int64
	scope *owner
}

// An owner is a principal or a scope of one.
type owner struct {
	hash   uint64
	parent *owner // the principal of a scope
	count  int64
}

// New returns an empty window.
func New(opts Options) *Window {
	w := &Window{
		total:    int64(option.Count(opts.Total, 1_000_000)),
		perScope: int64(option.Count(opts.PerScope, 10_000)),
	}
	w.perPrincipal = int64(option.Count(opts.PerPrincipal, int(max(1, w.total/16))))
	w.seed = maphash.MakeSeed()
	w.now = func() int64 { return time.Now().UnixMilli() }
	return w
}

// Add holds a key until a time, inclusive. If it is held, Add returns [ErrSeen]; if
// there is no room, [ErrExhausted]. Of concurrent calls for one key, exactly one
// returns nil. In a large window an expired key may take up room for a second.
func (w *Window) Add(principal, scope string, k [16]byte, until time.Time) error {
	id := key{maphash.String(w.seed, principal), k}
	scopeHash := id.principal ^ maphash.String(w.seed, scope)*0x9e3779b97f4a7c15
	end := until.UnixMilli()
	s := &w.shards[id.principal%16]
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.adds++; s.owners == nil {
		s.keys, s.old, s.owners = map[key]entry{}, map[key]entry{}, map[uint64]*owner{}
	}
	if s.adds%lookEvery == 0 {
		w.rotateLocked(s)
	}
	e, ok := s.keys[id]
	if !ok {
		e, ok = s.old[id]
	}
	if ok && e.until >= w.now() {
		return ErrSeen
	}
	if ok {
		w.removeLocked(s, id)
	}
	o := w.chargeLocked(s, id.principal, scopeHash)
	if o == nil {
		w.sweepAllLocked(s)
		o = w.chargeLocked(s, id.principal, scopeHash)
	}
	if o == nil {
		return ErrExhausted
	}
	s.keys[id] = entry{end, o}
	s.until = max(s.until, end)
	return nil
}

// Renew holds a key until another time, inclusive, if it is held, and reports that.
func (w *Window) Renew(principal string, k [16]byte, until time.Time) bool {
	id := key{maphash.String(w.seed, principal), k}
	end := until.UnixMilli()
	s := &w.shards[id.principal%16]
	s.mu.Lock()
	defer s.mu.Unlock()
	e, ok := s.keys[id]
	if !ok {
		e, ok = s.old[id]
	}
	if !ok || e.until < w.now() {
		return false
	}
	delete(s.old, id)
	s.keys[id] = entry{end, e.scope}
	s.until = max(s.until, end)
	return true
}

// Forget removes a key, so that it can be added again.
func (w *Window) Forget(principal string, k [16]byte) {
	id := key{maphash.String(w.seed, principal), k}
	s := &w.shards[id.principal%16]
	s.mu.Lock()
	defer s.mu.Unlock()
	w.removeLocked(s, id)
}

// removeLocked removes a key, if present. s.mu must be held.
func (w *Window) removeLocked(s *shard, id key) {
	for _, m := range []map[key]entry{s.keys, s.old} {
		if e, ok := m[id]; ok {
			delete(m, id)
			w.dischargeLocked(s, e.scope)
		}
	}
}

// rotateLocked empties the older map if all its keys expired. s.mu must be held.
func (w *Window) rotateLocked(s *shard) {
	if w.now() <= s.oldUntil {
		return
	}
	for _, e := range s.old {
		w.dischargeLocked(s, e.scope)
	}
	if len(s.old) > 8*len(s.keys)+1024 {
		s.old, s.free = map[key]entry{}, nil // returns the memory
	}
	clear(s.old)
	s.keys, s.old = s.old, s.keys
	s.until, s.oldUntil = 0, s.until
}

// sweepAllLocked removes expired keys from all shards that it can lock, from each
// large one at most once a second. s.mu must be held.
func (w *Window) sweepAllLocked(s *shard) {
	for i := range w.shards {
		t := &w.shards[i]
		if t == s {
			w.sweepLocked(t)
		} else if t.mu.TryLock() {
			w.sweepLocked(t)
			t.mu.Unlock()
		}
	}
}

// sweepLocked removes the expired keys of a shard, of a large one at most once a
// second. s.mu must be held.
func (w *Window) sweepLocked(s *shard) {
	now := w.now()
	if len(s.keys)+len(s.old) > smallShard && now < s.nextSweep && s.nextSweep <= now+1000 {
		return
	}
	s.nextSweep = now + 1000
	for _, m := range []map[key]entry{s.keys, s.old} {
		for id, e := range m {
			if e.until < now {
				delete(m, id)
				w.dischargeLocked(s, e.scope)
			}
		}
	}
}

// chargeLocked counts one more key of a scope, or returns nil. s.mu must be held.
func (w *Window) chargeLocked(s *shard, principal, scope uint64) *owner {
	o := s.owners[scope]
	if o == nil {
		o = s.ownerLocked(scope, s.ownerLocked(principal, nil))
	}
	p := o.parent
	free := w.total - w.count.Add(1)
	o.count++
	p.count++
	if o.count > w.perScope || p.count > w.perPrincipal || free < 0 || free < p.count && p.count > 1 {
		w.dischargeLocked(s, o)
		return nil
	}
	return o
}

// ownerLocked returns the owner with a hash. s.mu must be held.
func (s *shard) ownerLocked(hash uint64, parent *owner) *owner {
	o := s.owners[hash]
	if o != nil {
		return o
	}
	if o = s.free; o == nil {
		o = &owner{}
	}
	s.free = o.parent
	*o = owner{hash: hash, parent: parent}
	s.owners[hash] = o
	return o
}

// dischargeLocked counts one key less of a scope. s.mu must be held.
func (w *Window) dischargeLocked(s *shard, o *owner) {
	w.count.Add(-1)
	for next := o; next != nil; {
		o, next = next, next.parent
		o.count--
		if o.count == 0 {
			delete(s.owners, o.hash)
			o.parent, s.free = s.free, o
		}
	}
}

// Len returns the number of keys, of which some may have expired.
func (w *Window) Len() int { return int(w.count.Load()) }
