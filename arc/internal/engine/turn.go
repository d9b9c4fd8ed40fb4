// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package engine

import "slices"

// A Phase is the state of the turn of a chat within a process (ARC-D46).
type Phase int

// The phases.
const (
	Free      Phase = iota
	Starting        // a chat.start has the turn, and nothing is stored yet
	Answering       // a message has it
	Pausing         // the chat is paused at the end of the turn
	Canceling       // the chat was ended during the turn
	Ended           // the chat was ended, and no message has the turn
)

// A turnEvent is something that happens to the turn of a chat.
type turnEvent int

const (
	turnOpen  turnEvent = iota // chat.start
	turnEnter                  // a message
	turnPause                  // by the handler
	turnLeave                  // the end of a turn
	turnEnd                    // chat.end
)

// turnTable is the whole machine of turns. An event without an entry changes nothing: a message waits, and chat.start is
// refused.
var turnTable = map[Phase]map[turnEvent]Phase{
	Free:      {turnOpen: Starting, turnEnter: Answering, turnEnd: Ended},
	Starting:  {turnPause: Pausing, turnLeave: Free, turnEnd: Canceling},
	Answering: {turnPause: Pausing, turnLeave: Free, turnEnd: Canceling},
	Pausing:   {turnLeave: Free, turnEnd: Canceling},
	Canceling: {turnLeave: Ended},
}

// A turn is the turn of a chat and the messages that wait for it, in order. T identifies a message.
type turn[T comparable] struct {
	Phase   Phase
	waiting []T
}

// step moves the turn, and reports whether the event changes anything.
func (t *turn[T]) step(e turnEvent) bool {
	next, ok := turnTable[t.Phase][e]
	if ok {
		t.Phase = next
	}
	return ok
}

// IsTaken reports whether a message has the turn.
func (t *turn[T]) IsTaken() bool { return t.Phase != Free && t.Phase != Ended }

// MayBeNew reports whether the turn may be that of a chat.start whose chat is not stored.
func (t *turn[T]) MayBeNew() bool { return t.Phase == Starting || t.Phase == Pausing }

// Open gives the turn to a chat.start, and reports false if another message has it.
func (t *turn[T]) Open() bool { return t.step(turnOpen) }

// Enter gives the turn to a message, and reports false if it has to wait.
func (t *turn[T]) Enter() bool { return t.step(turnEnter) }

// Wait adds a message to the waiting ones, and reports false if there are as many as limit.
func (t *turn[T]) Wait(m T, limit int) bool {
	if len(t.waiting) >= limit {
		return false
	}
	t.waiting = append(t.waiting, m)
	return true
}

// Pause pauses the chat at the end of the turn.
func (t *turn[T]) Pause() { t.step(turnPause) }

// End ends the chat. The turn that a message has is to be cut off.
func (t *turn[T]) End() { t.step(turnEnd) }

// IsEnded reports whether the chat was ended.
func (t *turn[T]) IsEnded() bool { return t.Phase == Canceling || t.Phase == Ended }

// Leave ends a turn. The next waiting message, if there is one, has it then.
func (t *turn[T]) Leave() (next T, isNext bool) {
	t.step(turnLeave)
	if len(t.waiting) == 0 || !t.step(turnEnter) {
		return next, false
	}
	next, t.waiting = t.waiting[0], t.waiting[1:]
	return next, true
}

// Remove removes a waiting message, and reports false if it has got the turn.
func (t *turn[T]) Remove(m T) bool {
	i := slices.Index(t.waiting, m)
	if i >= 0 {
		t.waiting = slices.Delete(t.waiting, i, i+1)
	}
	return i >= 0
}
