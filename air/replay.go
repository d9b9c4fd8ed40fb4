// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package air

import (
	"crypto/sha256"
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
	seen    map[replayKey]int64 // until when, in Unix milliseconds
	threads map[replayKey]int32 // live entries
	due     map[int64][]due     // what ends in a second, by that second
	oldest  int64               // no bucket is older; 0: there is none
	free    [][]due             // empty buckets, to be used again
}

type replayKey [16]byte

type due struct {
	triple, id, thread replayKey
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
		w.seen, w.threads, w.due = make(map[replayKey]int64), make(map[replayKey]int32), make(map[int64][]due)
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
	if limited && w.full(k, perThread, total) {
		w.sweep(at)
		if w.full(k, perThread, total) {
			return errExhausted
		}
	}
	w.seen[k.triple], w.seen[k.id] = end, end
	w.threads[k.thread]++
	second := end/1000 + 1
	bucket, ok := w.due[second]
	if !ok && len(w.free) > 0 {
		bucket, w.free = w.free[len(w.free)-1], w.free[:len(w.free)-1]
	}
	w.due[second] = append(bucket, k)
	if w.oldest == 0 || second < w.oldest {
		w.oldest = second
	}
	return nil
}

func (w *ReplayWindow) full(k due, perThread, total int) bool {
	return int(w.threads[k.thread]) >= perThread || len(w.seen) >= 2*total
}

// sweep removes what has ended within the current second. Otherwise such entries
// stay until the second is over, which is harmless as long as they are in
// nobody's way.
func (w *ReplayWindow) sweep(now int64) {
	second := now/1000 + 1
	bucket := w.due[second]
	kept := bucket[:0]
	for _, k := range bucket {
		if w.seen[k.triple] < now {
			w.drop(k)
		} else {
			kept = append(kept, k)
		}
	}
	if len(bucket) > 0 {
		w.due[second] = kept
	}
}

// expire removes the buckets that have ended.
func (w *ReplayWindow) expire(now int64) {
	if w.oldest == 0 || w.oldest > now/1000 {
		return
	}
	if now/1000-w.oldest > int64(2*len(w.due)) { // a long pause: do not count through it
		for second := range w.due {
			w.expireBucket(second, now)
		}
		w.oldest = 0
		for second := range w.due {
			if w.oldest == 0 || second < w.oldest {
				w.oldest = second
			}
		}
		return
	}
	for ; w.oldest <= now/1000 && len(w.due) > 0; w.oldest++ {
		w.expireBucket(w.oldest, now)
	}
	if len(w.due) == 0 {
		w.oldest = 0
	}
}

func (w *ReplayWindow) expireBucket(second, now int64) {
	bucket, ok := w.due[second]
	if !ok || second > now/1000 {
		return
	}
	for _, k := range bucket {
		w.drop(k)
	}
	delete(w.due, second)
	if len(w.free) < 64 {
		w.free = append(w.free, bucket[:0])
	}
}

func (w *ReplayWindow) drop(k due) {
	if _, ok := w.seen[k.triple]; !ok {
		return // taken back before
	}
	delete(w.seen, k.triple)
	delete(w.seen, k.id)
	if n := w.threads[k.thread]; n > 1 {
		w.threads[k.thread] = n - 1
	} else {
		delete(w.threads, k.thread)
	}
}

func (w *ReplayWindow) forget(k due) {
	w.mu.Lock()
	defer w.mu.Unlock()
	end, ok := w.seen[k.triple]
	if !ok {
		return
	}
	w.drop(k)
	second := end/1000 + 1
	bucket := w.due[second]
	for i := len(bucket) - 1; i >= 0; i-- { // it is near the end
		if bucket[i] == k {
			bucket[i] = bucket[len(bucket)-1]
			w.due[second] = bucket[:len(bucket)-1]
			break
		}
	}
}

// Len returns how many envelopes are remembered.
func (w *ReplayWindow) Len() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.seen) / 2
}
