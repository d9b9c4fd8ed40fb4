// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package core

import "time"

// A tombstones holds ids that must not be used again until a time: at most so many of a principal, and
// in all. Beyond that the oldest is forgotten, of the principal or of all.
type tombstones struct {
	perPrincipal, max int
	byID              map[string]tombstone
	queues            map[Principal]*idQueue
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
}

type queuedID struct {
	id  string
	seq uint64 // of the tombstone
}

func newTombstones(perPrincipal, limit int) tombstones {
	return tombstones{perPrincipal: perPrincipal, max: limit, byID: make(map[string]tombstone), queues: make(map[Principal]*idQueue)}
}

func (t *tombstones) add(id string, p Principal, until time.Time) {
	t.forget(id)
	q := t.queues[p]
	if q == nil {
		q = &idQueue{}
		t.queues[p] = q
	}
	t.seq++
	t.byID[id] = tombstone{p, until, t.seq}
	for _, q := range []*idQueue{q, &t.all} {
		q.ids = append(q.ids, queuedID{id, t.seq})
		q.live++
	}
	if q.live > t.perPrincipal {
		t.forgetFirst(q)
	}
	if t.all.live > t.max {
		t.forgetFirst(&t.all)
	}
	t.compact(q)
	t.compact(&t.all)
}

// forgetFirst forgets the oldest id of a queue.
func (t *tombstones) forgetFirst(q *idQueue) {
	for len(q.ids) > 0 {
		first := q.ids[0]
		q.ids = q.ids[1:]
		if t.byID[first.id].seq == first.seq {
			t.forget(first.id)
			return
		}
	}
}

func (t *tombstones) forget(id string) {
	one, ok := t.byID[id]
	if !ok {
		return
	}
	delete(t.byID, id)
	t.all.live--
	if q := t.queues[one.p]; q != nil {
		if q.live--; q.live == 0 {
			delete(t.queues, one.p)
		}
	}
}

// compact removes skipped ids when they are more than half of a queue.
func (t *tombstones) compact(q *idQueue) {
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

// has reports whether an id is remembered, and forgets the expired ones.
func (t *tombstones) has(id string, now time.Time) bool {
	for len(t.all.ids) > 0 {
		first := t.all.ids[0]
		one := t.byID[first.id]
		if one.seq == first.seq && now.Before(one.until) {
			break
		}
		if one.seq == first.seq {
			t.forget(first.id)
		}
		t.all.ids = t.all.ids[1:]
	}
	_, ok := t.byID[id]
	return ok
}
