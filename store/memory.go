// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"bytes"
	"context"
	"hash/maphash"
	"iter"
	"slices"
	"strings"
	"sync"
	"time"
)

const (
	// shardCount spreads the load of many callers over so many locks.
	shardCount = 16

	// trimMost bounds how many expired elements one write removes. Above 1 it
	// is enough for memory to follow what is alive; this high, little is left
	// after a burst and a write still takes microseconds.
	trimMost = 16

	// listMost bounds how many entries List copies under one lock.
	listMost = 256
)

// A Memory is the [Store] that keeps everything in the memory of the process.
// It is lost when the process ends. [NewMemory] makes one. All its methods may
// be called from any number of goroutines; none of them starts one, so nothing
// needs to be closed.
//
// Memory is not bounded: it holds what it is given until that is deleted,
// acknowledged or expired. What expired is removed by later calls that write to
// the same shard (one of 16, by the hash of the key), a few elements by each, so
// a steady load finds a steady size; a store that nobody writes to keeps its
// garbage.
//
// What a call costs does not depend on how much is stored, but for a logarithm,
// with two exceptions. List first sorts the keys that were created since the
// List before; a store that is never listed never sorts. Then it looks at what
// begins with the prefix and at nothing else, copies up to 256 entries of a
// shard at a time, and holds no lock while its loop runs. Expire touches every
// record of its stream.
type Memory struct {
	seed maphash.Seed
	kv   [shardCount]kvShard
	log  [shardCount]logShard
}

// NewMemory returns an empty store in memory.
func NewMemory() *Memory {
	return &Memory{seed: maphash.MakeSeed()}
}

var _ Store = (*Memory)(nil)

// An item is one key. Its fields change under the lock of its shard only.
type item struct {
	Entry
	place place
}

// A place says which list of the shard holds an item.
type place uint8

const (
	inFresh place = iota
	inOrder
	nowhere // deleted; fresh may hold it for a while
)

func (it *item) key() string       { return it.Key }
func (it *item) expiry() time.Time { return it.Expires }

// A kvShard holds the keys of one hash value.
type kvShard struct {
	mu       sync.Mutex // guards all below
	items    table[*item]
	order    sorted[string, *item] // all items but the fresh ones
	fresh    []*item               // not in order yet: nobody has listed since
	gone     int                   // how many of fresh are deleted
	expiries expiries[*item]
	last     Revision // so none comes twice, whatever is deleted
}

func (m *Memory) kvOf(key string) *kvShard {
	return &m.kv[maphash.String(m.seed, key)%shardCount]
}

// find returns what is alive under key. The methods read the clock before they
// lock, since that takes as long as all they do under the lock; so now may be a
// little past, but never before the call.
func (s *kvShard) find(key string, now time.Time) *item {
	if it, ok := s.items.get(key); ok && alive(it, now) {
		return it
	}
	return nil
}

// set gives it a new value and time to live.
func (s *kvShard) set(it *item, value []byte, ttl time.Duration, now time.Time) Revision {
	s.last++
	it.Value, it.Revision = value, s.last
	old := it.Expires
	it.Expires = deadline(now, ttl)
	if it.Expires.Equal(old) {
		return s.last
	}
	if !old.IsZero() {
		s.expiries.leave()
	}
	if ttl != 0 {
		s.expiries.push(it)
	}
	return s.last
}

// forget removes it. Its place among the expiries is already free if expired.
func (s *kvShard) forget(it *item, expired bool) {
	s.items.remove(it.Key)
	if it.place == inOrder {
		s.order.remove(it.Key)
	}
	mortal, wasFresh := !it.Expires.IsZero(), it.place == inFresh
	*it = item{place: nowhere}
	if mortal && !expired {
		s.expiries.leave()
	}
	if wasFresh { // and still is, until enough of fresh is gone to be worth a pass
		if s.gone++; s.gone > 64 && s.gone > len(s.fresh)/2 {
			s.fresh = fitted(slices.DeleteFunc(s.fresh, func(it *item) bool { return it.place == nowhere }))
			s.gone = 0
		}
	}
}

// sort moves the fresh items to where List finds them. That waits for a List
// since most stores hold mostly what is never listed, such as replay windows,
// and to keep the order of a million keys costs more than all the rest.
func (s *kvShard) sort() {
	if len(s.fresh) == 0 {
		return
	}
	slices.SortFunc(s.fresh, func(a, b *item) int { return strings.Compare(a.Key, b.Key) })
	for _, it := range s.fresh {
		if it.place == inFresh {
			it.place = inOrder
			s.order.insert(it)
		}
	}
	clear(s.fresh)
	s.fresh, s.gone = fitted(s.fresh[:0]), 0
}

// trim removes up to most expired items.
func (s *kvShard) trim(now time.Time, most int) {
	for range most {
		it, ok := s.expiries.pop(now)
		if !ok {
			return
		}
		s.forget(it, true)
	}
}

// deadline returns when what gets ttl now expires; zero for never.
func deadline(now time.Time, ttl time.Duration) time.Time {
	if ttl == 0 {
		return time.Time{}
	}
	return now.Add(ttl)
}

// Get implements [KV].
func (m *Memory) Get(ctx context.Context, key string) (Entry, error) {
	if err := ctx.Err(); err != nil {
		return Entry{}, err
	}
	if err := ValidateName("key", key); err != nil {
		return Entry{}, err
	}
	s, now := m.kvOf(key), time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	it := s.find(key, now)
	if it == nil {
		return Entry{}, ErrNotFound
	}
	return it.Entry, nil
}

// Create implements [KV].
func (m *Memory) Create(ctx context.Context, key string, value []byte, ttl time.Duration) (Revision, error) {
	if err := checkWrite(ctx, "key", key, value, ttl); err != nil {
		return 0, err
	}
	value = bytes.Clone(value)
	s, now := m.kvOf(key), time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.trim(now, trimMost)
	it, ok := s.items.get(key)
	switch {
	case !ok:
		// A key may be a piece of a long message, which must not stay because of it.
		it = &item{Entry: Entry{Key: strings.Clone(key)}}
		s.items.put(it.Key, it)
		s.fresh = append(fitted(s.fresh), it)
	case alive(it, now):
		return 0, ErrExists
	}
	return s.set(it, value, ttl, now), nil
}

// Update implements [KV].
func (m *Memory) Update(ctx context.Context, key string, value []byte, rev Revision, ttl time.Duration) (Revision, error) {
	if err := checkWrite(ctx, "key", key, value, ttl); err != nil {
		return 0, err
	}
	value = bytes.Clone(value)
	s, now := m.kvOf(key), time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.trim(now, trimMost)
	it := s.find(key, now)
	switch {
	case it == nil:
		return 0, ErrNotFound
	case it.Revision != rev:
		return 0, ErrConflict
	}
	return s.set(it, value, ttl, now), nil
}

// Delete implements [KV].
func (m *Memory) Delete(ctx context.Context, key string, rev Revision) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := ValidateName("key", key); err != nil {
		return err
	}
	s, now := m.kvOf(key), time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.trim(now, trimMost)
	it := s.find(key, now)
	switch {
	case it == nil:
		return nil
	case rev != 0 && it.Revision != rev:
		return ErrConflict
	}
	s.forget(it, false)
	return nil
}

// List implements [KV].
func (m *Memory) List(ctx context.Context, prefix string) iter.Seq2[Entry, error] {
	return func(yield func(Entry, error) bool) {
		if err := ValidateID("prefix", prefix); err != nil {
			yield(Entry{}, err)
			return
		}
		var runs [shardCount]run
		for i := range runs {
			runs[i] = run{shard: &m.kv[i], next: prefix, prefix: prefix}
		}
		for {
			if err := ctx.Err(); err != nil {
				yield(Entry{}, err)
				return
			}
			var first *run
			for i := range runs {
				r := &runs[i]
				if r.fill() && (first == nil || r.entries[0].Key < first.entries[0].Key) {
					first = r
				}
			}
			if first == nil || !yield(first.take(), nil) {
				return
			}
		}
	}
}

// A run is what List still has to yield of one shard.
type run struct {
	shard   *kvShard
	prefix  string
	next    string  // entries of the shard from this key on are not read yet
	entries []Entry // read and not yet yielded
	ended   bool    // nothing is left in the shard
}

// fill makes sure that entries holds something and reports false at the end.
func (r *run) fill() bool {
	if len(r.entries) > 0 || r.ended {
		return len(r.entries) > 0
	}
	s := r.shard
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sort()
	now := time.Now()
	passed := 0
	r.entries, r.ended = r.entries[:0], true
	s.order.ascend(r.next, func(it *item) bool {
		switch {
		case !strings.HasPrefix(it.Key, r.prefix):
			return false
		case !alive(it, now):
			passed++
		case len(r.entries) == listMost:
			r.ended = false
			r.next = it.Key
			return false
		default:
			r.entries = append(r.entries, it.Entry)
		}
		return true
	})
	// Whoever meets the expired pays for their removal, so none is passed often.
	s.trim(now, passed)
	return len(r.entries) > 0
}

func (r *run) take() Entry {
	e := r.entries[0]
	r.entries = r.entries[1:]
	return e
}

func checkWrite(ctx context.Context, what, name string, value []byte, ttl time.Duration) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := ValidateName(what, name); err != nil {
		return err
	}
	if err := checkValue(value); err != nil {
		return err
	}
	return ValidateTTL(ttl)
}
