// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package altar

import "time"

// A timer is an action of a Host at a point in time. It is a field of the struct that it belongs
// to; index is -1 while it is not set.
type timer struct {
	due   time.Time
	seq   uint64
	index int
	fire  timerFunc
}

// A timerFunc is called with the lock of the Host held.
type timerFunc interface{ fired(now time.Time) }

// timers is a heap by due time, timers of one moment in the order in which they
// were set. It is guarded by the lock of the Host.
type timers struct {
	heap []*timer
	seq  uint64
}

func (ts *timers) less(i, j int) bool {
	a, b := ts.heap[i], ts.heap[j]
	if a.due.Equal(b.due) {
		return a.seq < b.seq
	}
	return a.due.Before(b.due)
}

func (ts *timers) swap(i, j int) {
	ts.heap[i], ts.heap[j] = ts.heap[j], ts.heap[i]
	ts.heap[i].index, ts.heap[j].index = i, j
}

func (ts *timers) up(i int) {
	for i > 0 && ts.less(i, (i-1)/2) {
		ts.swap(i, (i-1)/2)
		i = (i - 1) / 2
	}
}

func (ts *timers) down(i int) {
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

// set sets or resets a timer, which must have been made with newTimer.
func (ts *timers) set(t *timer, due time.Time) {
	ts.stop(t)
	ts.seq++
	t.due, t.seq, t.index = due, ts.seq, len(ts.heap)
	ts.heap = append(ts.heap, t)
	ts.up(t.index)
}

func (ts *timers) stop(t *timer) {
	i := t.index
	if i < 0 {
		return
	}
	last := len(ts.heap) - 1
	ts.swap(i, last)
	ts.heap[last] = nil
	ts.heap = ts.heap[:last]
	t.index = -1
	if i < last {
		ts.down(i)
		ts.up(i)
	}
}

// next takes the first timer that is due, or returns nil.
func (ts *timers) next(now time.Time) *timer {
	if len(ts.heap) == 0 || ts.heap[0].due.After(now) {
		return nil
	}
	t := ts.heap[0]
	ts.stop(t)
	return t
}
