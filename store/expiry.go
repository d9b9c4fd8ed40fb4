// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"slices"
	"time"
)

// A mortal is what an [expiries] can hold.
type mortal interface {
	comparable
	expiry() time.Time // zero: never, or gone already
}

// alive reports whether e has not expired.
func alive(e interface{ expiry() time.Time }, now time.Time) bool {
	at := e.expiry()
	return at.IsZero() || now.Before(at)
}

// expiries finds expired elements: a heap by time. An element that is removed
// early, or gets another time, stays in the heap as a stale entry, because an
// index in the elements would cost a cold write for each move. A heap that is
// half stale is rebuilt, so memory follows the number of elements in use. The
// zero value is ready.
type expiries[T mortal] struct {
	heap  []expiring[T]
	stale int
	start time.Time // what the heap counts from, with a monotonic reading
}

type expiring[T mortal] struct {
	at time.Duration // since start; half the size of a time
	of T
}

func (x *expiries[T]) isStale(e expiring[T]) bool {
	at := e.of.expiry()
	return at.IsZero() || at.Sub(x.start) != e.at
}

// push adds e, which has a time of expiry.
func (x *expiries[T]) push(e T) {
	if x.start.IsZero() {
		x.start = time.Now()
	}
	n := expiring[T]{e.expiry().Sub(x.start), e}
	i := len(x.heap)
	x.heap = append(fitted(x.heap), n)
	for i > 0 {
		parent := (i - 1) / 2
		if n.at >= x.heap[parent].at {
			break
		}
		x.heap[i] = x.heap[parent]
		i = parent
	}
	x.heap[i] = n
}

// markStale counts an entry whose element lost its time of expiry.
func (x *expiries[T]) markStale() {
	x.stale++
	x.tidy()
}

// tidy rebuilds a heap of which more than half is stale.
func (x *expiries[T]) tidy() {
	if x.stale <= len(x.heap)/2 || len(x.heap) < 64 {
		return
	}
	x.heap = fitted(slices.DeleteFunc(x.heap, x.isStale))
	x.stale = 0
	for i := len(x.heap)/2 - 1; i >= 0; i-- {
		x.down(i)
	}
}

// pop takes out one element that has expired by now, if there is any.
func (x *expiries[T]) pop(now time.Time) (e T, ok bool) {
	for since := now.Sub(x.start); len(x.heap) > 0 && x.heap[0].at <= since; {
		top := x.heap[0]
		last := len(x.heap) - 1
		x.heap[0] = x.heap[last]
		x.heap[last] = expiring[T]{}
		x.heap = fitted(x.heap[:last])
		x.down(0)
		if !x.isStale(top) {
			x.tidy() // while top counts as alive
			return top.of, true
		}
		x.stale = max(0, x.stale-1) // a time that came back hides a stale one
	}
	return e, false
}

// down moves the element at i to where it belongs below.
func (x *expiries[T]) down(i int) {
	h := x.heap
	if i >= len(h) {
		return
	}
	e := h[i]
	for {
		child := 2*i + 1
		if child >= len(h) {
			break
		}
		if child+1 < len(h) && h[child+1].at < h[child].at {
			child++
		}
		if h[child].at >= e.at {
			break
		}
		h[i] = h[child]
		i = child
	}
	h[i] = e
}
