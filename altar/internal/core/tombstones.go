// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package core

import (
	"container/heap"
	"time"
)

// Tombstones are ids that must not be used again until a time, each of a principal. There are at most so many of a
// principal, and in all. Beyond that the oldest is forgotten: of the principal, or of the principal with the largest number.
type Tombstones struct {
	perPrincipal, max int
	byID              map[string]tombstone
	queues            map[Principal]*idQueue
	bySize            queueHeap // the queues, the largest first
	all               idQueue
	seq               uint64
}

type tombstone struct {
	p     Principal
	until time.Time
	seq   uint64
}

// An idQueue holds ids in order. Ids that are not in the table any longer are skipped.
type idQueue struct {
	ids  []queuedID
	live int

	oldest uint64 // seq of the first id of a principal
	place  int    // in bySize
}

// A queueHeap is a [heap.Interface]: the queue with the most ids is the first, of several the one with the oldest id.
type queueHeap []*idQueue

func (h queueHeap) Len() int { return len(h) }

func (h queueHeap) Less(i, j int) bool {
	return h[i].live > h[j].live || h[i].live == h[j].live && h[i].oldest < h[j].oldest
}

func (h queueHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].place, h[j].place = i, j
}

func (h *queueHeap) Push(x any) {
	q := x.(*idQueue)
	q.place = len(*h)
	*h = append(*h, q)
}

func (h *queueHeap) Pop() any {
	last := len(*h) - 1
	q := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	return q
}

type queuedID struct {
	id  string
	seq uint64 // of the tombstone
}

// NewTombstones returns an empty table.
func NewTombstones(perPrincipal, limit int) *Tombstones {
	return &Tombstones{perPrincipal: perPrincipal, max: limit, byID: make(map[string]tombstone), queues: make(map[Principal]*idQueue)}
}

// Len returns the number of ids.
func (t *Tombstones) Len() int { return len(t.byID) }

// Add remembers an id, and returns the id that was forgotten for it, or "".
func (t *Tombstones) Add(id string, p Principal, until time.Time) (forgotten string) {
	t.Remove(id)
	q := t.queues[p]
	if q == nil {
		q = &idQueue{oldest: t.seq + 1}
		t.queues[p] = q
		heap.Push(&t.bySize, q)
	}
	t.seq++
	t.byID[id] = tombstone{p, until, t.seq}
	for _, q := range []*idQueue{q, &t.all} {
		q.ids = append(q.ids, queuedID{id, t.seq})
		q.live++
	}
	heap.Fix(&t.bySize, q.place)
	switch {
	case q.live > t.perPrincipal:
		forgotten = t.removeFirst(q)
	case t.all.live > t.max:
		forgotten = t.removeFirst(t.bySize[0])
	}
	t.compact(q)
	t.compact(&t.all)
	return forgotten
}

// first returns the oldest tombstone of a queue.
func (t *Tombstones) first(q *idQueue) (one tombstone, ok bool) {
	for ; len(q.ids) > 0; q.ids = q.ids[1:] {
		if one = t.byID[q.ids[0].id]; one.seq == q.ids[0].seq {
			return one, true
		}
	}
	return tombstone{}, false
}

// removeFirst forgets the oldest id of a queue, and returns it.
func (t *Tombstones) removeFirst(q *idQueue) (id string) {
	if _, ok := t.first(q); ok {
		id = q.ids[0].id
		t.Remove(id)
	}
	return id
}

// Remove forgets an id.
func (t *Tombstones) Remove(id string) {
	one, ok := t.byID[id]
	if !ok {
		return
	}
	delete(t.byID, id)
	t.all.live--
	if q := t.queues[one.p]; q != nil {
		if q.live--; q.live == 0 {
			delete(t.queues, one.p)
			heap.Remove(&t.bySize, q.place)
			return
		}
		first, _ := t.first(q)
		q.oldest = first.seq
		heap.Fix(&t.bySize, q.place)
	}
}

// compact removes skipped ids when they are more than half of a queue.
func (t *Tombstones) compact(q *idQueue) {
	if len(q.ids) < 64 || len(q.ids) < 2*q.live {
		return
	}
	kept := make([]queuedID, 0, q.live)
	for _, one := range q.ids {
		if t.byID[one.id].seq == one.seq {
			kept = append(kept, one)
		}
	}
	q.ids = kept
}

// Has reports whether an id is remembered.
func (t *Tombstones) Has(id string, now time.Time) bool {
	for t.Expire(now) != "" {
		continue
	}
	_, ok := t.byID[id]
	return ok
}

// Expire forgets one expired id, and returns it, or "".
func (t *Tombstones) Expire(now time.Time) string {
	if due, ok := t.Due(); !ok || now.Before(due) {
		return ""
	}
	return t.removeFirst(&t.all)
}

// Due returns when the first id expires.
func (t *Tombstones) Due() (due time.Time, isSet bool) {
	one, ok := t.first(&t.all)
	return one.until, ok
}
