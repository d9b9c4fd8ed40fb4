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

// sortedWaiting returns the attachments of a connection in the order in which
// their calls came, session by session.
func sortedWaiting(m map[string]*attachment) []*attachment {
	return slices.SortedFunc(maps.Values(m), func(a, b *attachment) int {
		return cmp.Or(cmp.Compare(a.c.s.id, b.c.s.id), cmp.Compare(a.c.seq, b.c.seq))
	})
}

// inOrder sorts calls by the creation of their sessions, then by arrival.
func inOrder(list []*hostCall) []*hostCall {
	slices.SortFunc(list, func(a, b *hostCall) int { return cmp.Or(cmp.Compare(a.s.seq, b.s.seq), cmp.Compare(a.seq, b.seq)) })
	return list
}

// hold adds a call to the waiting calls of its session.
func (h *Host) hold(c *hostCall) {
	if c.s.waiters == nil {
		c.s.waiters = make(map[*hostCall]bool)
	}
	c.s.waiters[c], h.heldIn[c.s], c.isHeld = true, true, true
}

func (h *Host) unhold(c *hostCall) {
	if !c.isHeld {
		return
	}
	c.isHeld = false
	delete(c.s.waiters, c)
	if len(c.s.waiters) == 0 {
		delete(h.heldIn, c.s)
	}
}

// appendSettled ends all inquiries to a Runtime, and appends the calls that waited for them.
func (h *Host) appendSettled(list []*hostCall, rt *hostConn) []*hostCall {
	for s := range rt.inquiries {
		h.removeInquiry(s.inquiries, rt)
		list = slices.AppendSeq(list, maps.Keys(s.waiters))
	}
	if h.removeInquiry(h.inquiries, rt) {
		for s := range h.heldIn {
			list = slices.AppendSeq(list, maps.Keys(s.waiters))
		}
	}
	return list
}

// count counts a dispatch by bare name.
func (s *session) count(contract string) {
	if s.counts == nil {
		s.counts = make(map[string]uint64)
	}
	s.counts[contract]++
}
