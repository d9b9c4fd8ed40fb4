// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package a2e

import (
	"context"
	"sync"
)

// turns bring the calls of a session into the order of their starts (A2E-D27), whatever the order in which their
// goroutines run. The zero value is ready for turn 0.
type turns struct {
	mu      sync.Mutex
	next    uint64
	waiting map[uint64]chan struct{} // by turn
	passed  map[uint64]struct{}      // turns that ended before they were next
}

// wait waits until all earlier turns have passed, or ctx ends.
func (t *turns) wait(ctx context.Context, turn uint64) error {
	t.mu.Lock()
	if t.next >= turn {
		t.mu.Unlock()
		return nil
	}
	ready := make(chan struct{})
	if t.waiting == nil {
		t.waiting = map[uint64]chan struct{}{}
	}
	t.waiting[turn] = ready
	t.mu.Unlock()
	select {
	case <-ready:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// pass ends a turn.
func (t *turns) pass(turn uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if turn != t.next {
		if t.passed == nil {
			t.passed = map[uint64]struct{}{}
		}
		t.passed[turn] = struct{}{}
		return
	}
	t.next++
	for {
		if _, isPassed := t.passed[t.next]; !isPassed {
			break
		}
		delete(t.passed, t.next)
		t.next++
	}
	if ready := t.waiting[t.next]; ready != nil {
		delete(t.waiting, t.next)
		close(ready)
	}
}

// A callTurn is the turn of a call. The zero value passes at once.
type callTurn struct {
	turns     *turns
	number    uint64
	hasPassed bool
}

// wait waits until all earlier turns have passed, or ctx ends.
func (t *callTurn) wait(ctx context.Context) error {
	if t.turns == nil {
		return nil
	}
	return t.turns.wait(ctx, t.number)
}

// isNext reports whether all earlier turns have passed.
func (t *callTurn) isNext() bool {
	if t.turns == nil {
		return true
	}
	t.turns.mu.Lock()
	defer t.turns.mu.Unlock()
	return t.turns.next == t.number
}

// pass ends the turn. Further calls have no effect.
func (t *callTurn) pass() {
	if t.turns != nil && !t.hasPassed {
		t.hasPassed = true
		t.turns.pass(t.number)
	}
}
