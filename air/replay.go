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
	DefaultThreadCapacity = 10_000
	DefaultReplayCapacity = 1_000_000
)

// A ReplayWindow remembers nonces and ids until their envelopes could not pass the
// clock any more. It never evicts one before: when it is full it refuses. The
// zero value is ready for use with the default capacities, and all methods may be
// called from several goroutines.
type ReplayWindow struct {
	PerThread int // entries per sender and thread; zero means DefaultThreadCapacity
	Total     int // entries altogether; zero means DefaultReplayCapacity

	mu      sync.Mutex
	seen    map[replayKey]int64   // until when, in Unix milliseconds
	threads map[replayKey]*thread // those with live entries
	due     map[int64]*bucket     // what ends in a second, by that second
	oldest  int64                 // no bucket is older; 0: there is none
	last    *bucket               // the one used last, which is mostly the next one too
	free    []*bucket             // empty ones, to be used again
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
	thread     *thread
}

type bucket struct {
	second  int64
	entries []entry
}

// hashKey is half of SHA-256: two inputs with the same 128 bits are not to be
// found, and those are enough to tell envelopes apart.
func hashKey(kind byte, a, b, c string) replayKey {
	var room [1024]byte
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
	errReplayed  = &Error{Code: ErrReplay, Detail: "the nonce or the id was seen before"}
	errExhausted = &Error{Code: ErrReplayWindowExhausted, Detail: "no room for another nonce of this thread"}
)

func (w *ReplayWindow) record(k due, until, now time.Time, limited bool) error {
	perThread, total := w.PerThread, w.Total
	if perThread <= 0 {
		perThread = DefaultThreadCapacity
	}
	if total <= 0 {
		total = DefaultReplayCapacity
	}
	end, at := until.UnixMilli(), now.UnixMilli()
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.seen == nil {
		w.seen, w.threads, w.due = make(map[replayKey]int64), make(map[replayKey]*thread), make(map[int64]*bucket)
	}
	w.expire(at)
	t1, ok1 := w.seen[k.triple]
	t2, ok2 := w.seen[k.id]
	switch {
	case ok1 && t1 >= at || ok2 && t2 >= at:
		return errReplayed
	case ok1 || ok2:
		w.sweep(at)
	}
	th := w.threads[k.thread]
	if full := func() bool { return th != nil && th.live >= perThread || len(w.seen) >= 2*total }; limited && full() {
		w.sweep(at)
		if th = w.threads[k.thread]; full() {
			return errExhausted
		}
	}
	if th == nil {
		th = &thread{key: k.thread}
		w.threads[k.thread] = th
	}
	th.live++
	w.seen[k.triple], w.seen[k.id] = end, end
	b := w.bucketOf(end/1000 + 1)
	b.entries = append(b.entries, entry{k.triple, k.id, th})
	return nil
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
	for _, e := range b.entries {
		if w.seen[e.triple] < now {
			w.drop(&e)
		} else {
			kept = append(kept, e)
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
	for i := range b.entries {
		w.drop(&b.entries[i])
	}
	delete(w.due, b.second)
	if w.last == b {
		w.last = nil
	}
	clear(b.entries)
	b.entries = b.entries[:0]
	if len(w.free) < 64 {
		w.free = append(w.free, b)
	}
}

// drop forgets an entry; its bucket is the caller's matter.
func (w *ReplayWindow) drop(e *entry) {
	delete(w.seen, e.triple)
	delete(w.seen, e.id)
	if e.thread.live--; e.thread.live == 0 {
		delete(w.threads, e.thread.key)
	}
}

func (w *ReplayWindow) forget(k due) {
	w.mu.Lock()
	defer w.mu.Unlock()
	end, ok := w.seen[k.triple]
	if !ok {
		return
	}
	b := w.due[end/1000+1]
	for i := len(b.entries) - 1; i >= 0; i-- { // it is near the end
		if b.entries[i].triple == k.triple {
			w.drop(&b.entries[i])
			b.entries = slices.Delete(b.entries, i, i+1)
			return
		}
	}
}

// Len returns how many envelopes are remembered.
func (w *ReplayWindow) Len() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.seen) / 2
}
