// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package core

import (
	"sync/atomic"
	"time"
)

// A Timer is an event at a point in time. It is a field of the struct that it belongs to.
type Timer struct {
	Event any // opaque

	due   time.Time
	seq   uint64
	place int // in the heap, from 1; 0: not set
}

// IsSet reports whether t is set and has not fired.
func (t *Timer) IsSet() bool { return t.place > 0 }

// IsSetTo reports whether t is set to a point in time.
func (t *Timer) IsSetTo(due time.Time) bool { return t.IsSet() && t.due.Equal(due) }

// Due returns when t fires, or when it was to fire last.
func (t *Timer) Due() time.Time { return t.due }

// Timers is a heap of the timers that are set. Timers of one moment fire in the order in which
// they were set, also in other heaps with the same counter. The zero value is empty.
type Timers struct {
	heap []*Timer
	seq  *atomic.Uint64 // nil: that of this heap alone
}

func (ts *Timers) less(i, j int) bool {
	a, b := ts.heap[i], ts.heap[j]
	order := a.due.Compare(b.due)
	return order < 0 || order == 0 && a.seq < b.seq
}

func (ts *Timers) swap(i, j int) {
	ts.heap[i], ts.heap[j] = ts.heap[j], ts.heap[i]
	ts.heap[i].place, ts.heap[j].place = i+1, j+1
}

func (ts *Timers) up(i int) {
	for i > 0 && ts.less(i, (i-1)/2) {
		ts.swap(i, (i-1)/2)
		i = (i - 1) / 2
	}
}

func (ts *Timers) down(i int) {
	for {
		smallest := i
		for _, child := range [2]int{2*i + 1, 2*i + 2} {
			if child < len(ts.heap) && ts.less(child, smallest) {
				smallest = child
			}
		}
		if smallest == i {
			return
		}
		ts.swap(i, smallest)
		i = smallest
	}
}

// Set starts or restarts a timer.
func (ts *Timers) Set(t *Timer, due time.Time) {
	if ts.seq == nil {
		ts.seq = new(atomic.Uint64)
	}
	t.due, t.seq = due, ts.seq.Add(1)
	if t.place == 0 {
		ts.heap = append(ts.heap, t)
		t.place = len(ts.heap)
	} else {
		ts.down(t.place - 1)
	}
	ts.up(t.place - 1)
}

// Stop stops a timer.
func (ts *Timers) Stop(t *Timer) {
	i := t.place - 1
	if i < 0 {
		return
	}
	last := len(ts.heap) - 1
	ts.swap(i, last)
	ts.heap[last] = nil
	ts.heap = ts.heap[:last]
	t.place = 0
	if i < last {
		ts.down(i)
		ts.up(i)
	}
}

// First returns when the first timer fires, and its number.
func (ts *Timers) First() (due time.Time, seq uint64, isSet bool) {
	if len(ts.heap) == 0 {
		return time.Time{}, 0, false
	}
	return ts.heap[0].due, ts.heap[0].seq, true
}

// NewTimers returns an empty heap whose timers are numbered by a counter.
func NewTimers(seq *atomic.Uint64) Timers { return Timers{seq: seq} }

// Next stops and returns the first timer that is due at now, or nil.
func (ts *Timers) Next(now time.Time) *Timer {
	if len(ts.heap) == 0 || ts.heap[0].due.After(now) {
		return nil
	}
	t := ts.heap[0]
	ts.Stop(t)
	return t
}
