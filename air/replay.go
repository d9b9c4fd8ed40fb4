// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package air

import (
	"crypto/sha256"
	"slices"
	"sync"
	"time"
)

// ReplayWindow limits that hold where the options name none (8.4, AIR-D43).
const (
	defaultThreadCapacity = 10_000
	defaultReplayCapacity = 1_000_000
)

// A ReplayWindow remembers nonces and ids until their envelopes could not pass the
// clock any more. It never evicts one before: when it is full it refuses. The
// zero value is ready for use with the default capacities, and all methods may be
// called from several goroutines.
type ReplayWindow struct {
	PerThread int // entries per sender and thread; zero means DefaultThreadCapacity
	Total     int // entries altogether; zero means DefaultReplayCapacity

	mu      sync.Mutex
	seen    replayTable       // triples and ids: the index of their entry, and one
	names   replayTable       // threads with live entries: their index, and one
	entries slab[entry]       // envelopes
	threads slab[thread]      // those in names
	due     map[int64]*bucket // what ends in a second, by that second
	oldest  int64             // no bucket is older; 0: there is none
	last    *bucket           // the one used last, which is mostly the next one too
	free    []*bucket         // empty ones, to be used again
}

type replayKey [16]byte

// The names under which an envelope is remembered, and what it counts against.
type due struct {
	triple, id, thread replayKey
}

type thread struct {
	key  replayKey
	live int
}

type entry struct {
	triple, id replayKey
	until      int64 // in Unix milliseconds
	thread     uint32
}

type bucket struct {
	second  int64
	entries []uint32
}

// A slab holds things by their index, and uses the place of what was given back
// again.
type slab[T any] struct {
	all  []T
	free []uint32
}

func (s *slab[T]) add(v T) uint32 {
	if n := len(s.free); n > 0 {
		i := s.free[n-1]
		s.free = s.free[:n-1]
		s.all[i] = v
		return i
	}
	s.all = append(s.all, v)
	return uint32(len(s.all) - 1)
}

// remove gives a place back, and all of them when nothing is left.
func (s *slab[T]) remove(i uint32) {
	s.free = append(s.free, i)
	if len(s.free) == len(s.all) && len(s.all) > 1024 {
		s.all, s.free = nil, nil
	}
}

func (s *slab[T]) len() int { return len(s.all) - len(s.free) }

// hashKey is half of SHA-256: two inputs with the same 128 bits are not to be
// found, and those are enough to tell envelopes apart.
func hashKey(kind byte, a, b, c string) replayKey {
	var room [384]byte // enough for what is usual
	t := append(room[:0], kind)
	t = append(append(t, a...), 0)
	t = append(append(t, b...), 0)
	t = append(t, c...)
	sum := sha256.Sum256(t)
	return replayKey(sum[:16])
}

// The three names under which an envelope is remembered. A DID and a thread id
// hold no NUL, so the last part cannot run into the others.
func replayKeys(from, threadID, nonce, id string) (k due) {
	k.triple = hashKey('n', from, threadID, nonce)
	k.id = hashKey('i', from, id, "")
	k.thread = hashKey('t', from, threadID, "")
	return k
}

// Record remembers the triple and the id of an envelope until the given time
// inclusive. It returns [ErrReplay] if either is known, which changes nothing,
// and [ErrReplayWindowExhausted] if there is no room. Of several callers with the
// same envelope exactly one gets nil.
func (w *ReplayWindow) Record(from, threadID, nonce, id string, until time.Time) error {
	return w.record(replayKeys(from, threadID, nonce, id), until, time.Now(), true)
}

// Forget takes back what Record remembered, after the envelope could not be
// handled.
func (w *ReplayWindow) Forget(from, threadID, nonce, id string) {
	w.forget(replayKeys(from, threadID, nonce, id))
}

var (
	errReplayed  = &Error{Code: ErrReplay, Message: "the nonce or the id was seen before"}
	errExhausted = &Error{Code: ErrReplayWindowExhausted, Message: "no room for another nonce of this thread"}
)

func (w *ReplayWindow) record(k due, until, now time.Time, limited bool) error {
	perThread, total := w.PerThread, w.Total
	if perThread <= 0 {
		perThread = defaultThreadCapacity
	}
	if total <= 0 {
		total = defaultReplayCapacity
	}
	end, at := until.UnixMilli(), now.UnixMilli()
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.due == nil {
		w.due = make(map[int64]*bucket)
		w.seen.start()
		w.names.start()
	}
	w.expire(at)
	p1, s1 := w.seen.slot(&k.triple)
	p2, s2 := w.seen.slot(&k.id)
	if s1.value|s2.value != 0 {
		if w.alive(s1.value, at) || w.alive(s2.value, at) {
			return errReplayed
		}
		w.sweep(at)
		s1 = nil
	}
	th := w.names.get(&k.thread)
	if full := func() bool {
		return th != 0 && w.threads.all[th-1].live >= perThread || w.entries.len() >= total
	}; limited && full() {
		w.sweep(at)
		s1 = nil
		if th = w.names.get(&k.thread); full() {
			return errExhausted
		}
	}
	if th == 0 {
		th = w.threads.add(thread{key: k.thread}) + 1
		w.names.put(&k.thread, th)
	}
	w.threads.all[th-1].live++
	i := w.entries.add(entry{k.triple, k.id, end, th - 1})
	if s1 != nil && s1 != s2 {
		p1.set(s1, &k.triple, i+1)
		p2.set(s2, &k.id, i+1)
	} else { // the slots moved, or it is the same one
		w.seen.put(&k.triple, i+1)
		w.seen.put(&k.id, i+1)
	}
	b := w.bucketOf(end/1000 + 1)
	b.entries = append(b.entries, i)
	return nil
}

// alive reports whether a number in seen is that of an entry that has not ended.
func (w *ReplayWindow) alive(n uint32, at int64) bool {
	return n != 0 && w.entries.all[n-1].until >= at
}

// bucketOf returns the bucket of what ends before that second.
func (w *ReplayWindow) bucketOf(second int64) *bucket {
	if w.last != nil && w.last.second == second {
		return w.last
	}
	b := w.due[second]
	if b == nil {
		if n := len(w.free); n > 0 {
			b, w.free = w.free[n-1], w.free[:n-1]
		} else {
			b = &bucket{}
		}
		b.second = second
		w.due[second] = b
		if w.oldest == 0 || second < w.oldest {
			w.oldest = second
		}
	}
	w.last = b
	return b
}

// sweep removes what has ended within the current second. Otherwise such entries
// stay until the second is over, which is harmless as long as they are in
// nobody's way.
func (w *ReplayWindow) sweep(now int64) {
	b := w.due[now/1000+1]
	if b == nil {
		return
	}
	kept := b.entries[:0]
	for _, i := range b.entries {
		if w.alive(i+1, now) {
			kept = append(kept, i)
		} else {
			w.drop(i)
		}
	}
	b.entries = kept
}

// expire removes the buckets that have ended.
func (w *ReplayWindow) expire(now int64) {
	if w.oldest == 0 || w.oldest > now/1000 {
		return
	}
	if now/1000-w.oldest > int64(2*len(w.due)) { // a long pause: do not count through it
		w.oldest = 0
		for second, b := range w.due {
			if second <= now/1000 {
				w.end(b)
			} else if w.oldest == 0 || second < w.oldest {
				w.oldest = second
			}
		}
		return
	}
	for ; w.oldest <= now/1000 && len(w.due) > 0; w.oldest++ {
		if b := w.due[w.oldest]; b != nil {
			w.end(b)
		}
	}
	if len(w.due) == 0 {
		w.oldest = 0
	}
}

// end removes a bucket and all that is in it.
func (w *ReplayWindow) end(b *bucket) {
	for _, i := range b.entries {
		w.drop(i)
	}
	delete(w.due, b.second)
	if w.last == b {
		w.last = nil
	}
	b.entries = b.entries[:0]
	if len(w.free) < 64 {
		w.free = append(w.free, b)
	}
}

// drop forgets an entry; its bucket is the caller's matter.
func (w *ReplayWindow) drop(i uint32) {
	e := &w.entries.all[i]
	w.seen.remove(&e.triple)
	w.seen.remove(&e.id)
	th := &w.threads.all[e.thread]
	if th.live--; th.live == 0 {
		w.names.remove(&th.key)
		w.threads.remove(e.thread)
	}
	w.entries.remove(i)
}

func (w *ReplayWindow) forget(k due) {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := w.seen.get(&k.triple)
	if n == 0 {
		return
	}
	b := w.due[w.entries.all[n-1].until/1000+1]
	for i := len(b.entries) - 1; i >= 0; i-- { // it is near the end
		if b.entries[i] == n-1 {
			b.entries = slices.Delete(b.entries, i, i+1)
			break
		}
	}
	w.drop(n - 1)
}

// Len returns how many envelopes are remembered.
func (w *ReplayWindow) Len() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.entries.len()
}
