// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package altar

import (
	"cmp"
	"maps"
	"slices"
)

// A callList holds calls in order. A removed call keeps its next pointer, so that an iteration can
// continue.
type callList struct {
	first, last *hostCall
	seq         uint64
}

func (l *callList) push(c *hostCall) {
	l.seq++
	c.seq = l.seq
	c.prev, c.next = l.last, nil
	if l.last != nil {
		l.last.next = c
	} else {
		l.first = c
	}
	l.last = c
}

func (l *callList) remove(c *hostCall) {
	if c.prev != nil {
		c.prev.next = c.next
	} else {
		l.first = c.next
	}
	if c.next != nil {
		c.next.prev = c.prev
	} else {
		l.last = c.prev
	}
	c.prev = nil
}

// A callQueue holds ended calls, first in first out.
type callQueue struct {
	first, last *hostCall
	n           int
}

func (q *callQueue) push(c *hostCall) {
	c.later = nil
	if q.last != nil {
		q.last.later = c
	} else {
		q.first = c
	}
	q.last = c
	q.n++
}

func (q *callQueue) pop() {
	c := q.first
	q.first = c.later
	c.later = nil
	if q.first == nil {
		q.last = nil
	}
	q.n--
}

// sortedWaiting returns the attachments of a connection in the order in which
// their calls came, session by session.
func sortedWaiting(m map[string]*attachment) []*attachment {
	return slices.SortedFunc(maps.Values(m), func(a, b *attachment) int {
		return cmp.Or(cmp.Compare(a.c.s.id, b.c.s.id), cmp.Compare(a.c.seq, b.c.seq))
	})
}
