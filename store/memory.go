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
	// shardCount is the number of locks that spread the load of many callers.
	shardCount = 16

	// trimMost bounds the expired elements that one write removes. Any value
	// above 1 lets memory follow the number of unexpired elements; this one
	// leaves little after a burst, and a write still takes microseconds.
	trimMost = 16

	// listMost bounds the entries that List copies under one lock.
	listMost = 256
)

// A Memory is the [Store] that keeps everything in the memory of the process.
// It is lost when the process ends. [NewMemory] makes one. All methods are safe
// for concurrent use. None starts a goroutine, so a Memory needs no closing.
//
// Memory is not bounded: it holds values until they are deleted, acknowledged or
// expired. Later writes to the same shard (one of 16, by the hash of the key)
// remove expired elements, a few by each write, so a steady load has a steady
// size. A store without writes keeps its expired elements.
//
// The cost of a call grows with the logarithm of the stored number, with two
// exceptions. List first sorts the keys created since the previous List; a store
// that is never listed never sorts. Then it reads only keys with the prefix,
// copies up to 256 entries of a shard at a time, and holds no lock while its loop
// runs. Expire touches every record of its stream.
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

// An item is one key. Its fields change only under the lock of its shard.
type item struct {
	Entry
	place place
}

// A place is the list of the shard that holds an item.
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
	mu           sync.Mutex // guards all below
	items        table[*item]
	order        sorted[string, *item] // all items but the fresh ones
	fresh        []*item               // not yet sorted: created since the last List
	deletedFresh int                   // number of deleted items in fresh
	expiries     expiries[*item]
	last         Revision // never used twice, also after deletions
}

func (m *Memory) kvOf(key string) *kvShard {
	return &m.kv[maphash.String(m.seed, key)%shardCount]
}

// find returns the unexpired item of key. The methods read the clock before they
// lock, because that takes as long as the work under the lock. So now may be
// slightly old, but never before the call.
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
		s.expiries.markStale()
	}
	if ttl != 0 {
		s.expiries.push(it)
	}
	return s.last
}

// forget removes it. With expired set, its entry in expiries is already removed.
func (s *kvShard) forget(it *item, expired bool) {
	s.items.remove(it.Key)
	if it.place == inOrder {
		s.order.remove(it.Key)
	}
	mortal, wasFresh := !it.Expires.IsZero(), it.place == inFresh
	*it = item{place: nowhere}
	if mortal && !expired {
		s.expiries.markStale()
	}
	if wasFresh { // fresh is compacted when more than half of it is deleted
		if s.deletedFresh++; s.deletedFresh > 64 && s.deletedFresh > len(s.fresh)/2 {
			s.fresh = fitted(slices.DeleteFunc(s.fresh, func(it *item) bool { return it.place == nowhere }))
			s.deletedFresh = 0
		}
	}
}

// sort moves the fresh items into the order that List reads. It runs at the next
// List, because most keys, such as those of replay windows, are never listed, and
// keeping a million keys in order costs more than all other work.
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
	s.fresh, s.deletedFresh = fitted(s.fresh[:0]), 0
}

// trim removes up to limit expired items.
func (s *kvShard) trim(now time.Time, limit int) {
	for range limit {
		it, ok := s.expiries.pop(now)
		if !ok {
			return
		}
		s.forget(it, true)
	}
}

// deadline returns the time of expiry for ttl; zero means never.
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
		// The key may be part of a long message, which it must not pin.
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
		err := ctx.Err()
		if err == nil {
			err = ValidateID("prefix", prefix)
		}
		if err != nil {
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

// A run is the rest of one shard that List has to yield.
type run struct {
	shard       *kvShard
	prefix      string
	next        string  // first key of the shard that is not read
	entries     []Entry // read and not yielded
	isExhausted bool    // the shard has no further entries
}

// fill loads entries if it is empty and reports false at the end.
func (r *run) fill() bool {
	if len(r.entries) > 0 || r.isExhausted {
		return len(r.entries) > 0
	}
	s := r.shard
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sort()
	now := time.Now()
	passed := 0
	r.entries, r.isExhausted = r.entries[:0], true
	s.order.ascend(r.next, func(it *item) bool {
		switch {
		case !strings.HasPrefix(it.Key, r.prefix):
			return false
		case !alive(it, now):
			passed++
		case len(r.entries) == listMost:
			r.isExhausted = false
			r.next = it.Key
			return false
		default:
			r.entries = append(r.entries, it.Entry)
		}
		return true
	})
	// A reader removes as many expired items as it skipped, so none is skipped often.
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
