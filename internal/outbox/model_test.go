// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package outbox_test

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// A senderRule is the rule of Put and of the end of a sender, or one that lacks a part.
type senderRule struct{ hasTouch, hasLock, hasFence bool }

const putAppend, putRead, putStart, putCreate, putTouch, putDoubt, putAccepted, putFailed = 0, 1, 2, 3, 4, 5, 6, 7
const senderNone, senderLook, senderSend, senderEnd = 0, 1, 2, 3

var putters = [3]int{0, 0, 1} // the process of each put

// A senderState is one stream and two processes, of which process 0 may crash. The record has a
// revision that rises with each change.
type senderState struct {
	put, putRev       [3]int // step, and the revision that was read
	isQueued          [3]bool
	owner, rev        int // of the record; 2 means that it has ended
	sender, senderRev [2]int
	starts, finishes  int  // of process 0: without Finish, and to be finished
	senderStarts      int  // starts that the sender of process 0 finishes at its end
	hasEntry          bool // of process 0 in the index
	isNotified        bool // process 0, of a change of its record
	isCrashed         bool
}

// next returns the states after one step.
func (s senderState) next(r senderRule) (list []senderState) {
	for i, q := range putters {
		step, a := s.put[i], s
		a.put[i]++
		switch {
		case step == putDoubt: // the change in transit lands, also after a crash
			a.put[i] = putFailed
			if s.owner == 2 && s.rev == s.putRev[i] {
				a.owner, a.rev = q, s.rev+1
			}
		case step >= putAccepted || q == 0 && s.isCrashed:
			continue
		case step == putAppend:
			a.isQueued[i] = true
		case step == putRead && s.owner < 2 && !r.hasTouch:
			a.put[i] = putAccepted
		case step == putRead && s.owner < 2:
			a.put[i], a.putRev[i] = putTouch, s.rev
		case step == putStart && q == 0:
			a.hasEntry, a.starts = true, s.starts+1
		case step == putCreate && s.owner == 2:
			a.sender[q], a.senderStarts = senderLook, s.senderStarts+1-q
			if q == 0 { // the store does not answer
				a.put[i], a.putRev[i] = putDoubt, s.rev
				list = append(list, a)
			}
			a.owner, a.rev, a.put[i] = q, s.rev+1, putAccepted
		case step == putCreate && q == 0:
			a.put[i], a.starts, a.hasEntry = putRead, s.starts-1, s.starts > 1 && r.hasLock
		case step == putTouch && s.rev == s.putRev[i]:
			a.rev, a.put[i], a.isNotified = s.rev+1, putAccepted, s.owner == 0 && s.sender[0] == senderNone
		case step >= putCreate:
			a.put[i] = putRead
		}
		list = append(list, a)
	}
	for q, step := range s.sender {
		a := s
		switch {
		case step == senderNone || q == 0 && s.isCrashed:
			continue
		case step == senderLook && s.owner != q:
			a.sender[q], a.finishes, a.senderStarts = senderNone, s.finishes+s.senderStarts*(1-q), s.senderStarts*q
			if s.owner == 2 && r.hasFence {
				a.rev++
			}
		case step == senderLook:
			a.sender[q], a.senderRev[q] = senderSend, s.rev
		case step == senderSend && s.isQueued != [3]bool{}:
			a.isQueued, a.sender[q] = [3]bool{}, senderLook
		case step == senderSend:
			a.sender[q] = senderEnd
		case s.rev != s.senderRev[q]:
			a.sender[q] = senderLook
		default:
			a.owner, a.rev, a.sender[q], a.finishes, a.senderStarts = 2, s.rev+1, senderNone, s.finishes+s.senderStarts*(1-q), s.senderStarts*q
		}
		list = append(list, a)
	}
	a := s
	switch {
	case s.isCrashed && s.hasEntry && s.owner == 0: // process 1 adopts
		a.hasEntry, a.owner, a.rev, a.sender[1] = false, 1, s.rev+1, senderLook
		return append(list, a)
	case s.isCrashed:
		return list
	case s.finishes > 0:
		a.finishes, a.starts, a.hasEntry = s.finishes-1, s.starts-1, s.starts > 1 && r.hasLock
		list = append(list, a)
	}
	if s.isNotified {
		a = s
		a.isNotified, a.sender[0] = false, max(s.sender[0], senderLook)
		list = append(list, a)
	}
	s.isCrashed = true
	return append(list, s)
}

// explore calls visit for each state that follows from start.
func explore[S comparable](start S, next func(S) []S, visit func(s S, next []S)) (states int) {
	seen, queue := map[S]bool{}, []S{start}
	for ; len(queue) > 0; queue = queue[1:] {
		s := queue[0]
		if !seen[s] {
			seen[s] = true
			list := next(s)
			visit(s, list)
			queue = append(queue, list...)
		}
	}
	return len(seen)
}

// exploreSender returns the number of states, and of those in which an accepted item waits and no
// process has a step left but to crash.
func exploreSender(r senderRule) (states, lost int) {
	next := func(s senderState) []senderState { return s.next(r) }
	states = explore(senderState{owner: 2}, next, func(s senderState, next []senderState) {
		isOver := len(next) == 0 || len(next) == 1 && next[0].isCrashed && !s.isCrashed
		for i, step := range s.put {
			if s.isQueued[i] && step == putAccepted && isOver {
				lost++
			}
		}
	})
	return states, lost
}

func TestSenderModelLosesNoItem(t *testing.T) {
	states, lost := exploreSender(senderRule{hasTouch: true, hasLock: true, hasFence: true})
	require.Zero(t, lost, "states with a lost item")
	require.Greater(t, states, 1000, "states")
}

func TestSenderModelLosesItemsWithoutEachRule(t *testing.T) {
	for name, r := range map[string]senderRule{
		"touch": {hasLock: true, hasFence: true},  // Put changes the record
		"lock":  {hasTouch: true, hasFence: true}, // a sender keeps the entry of a new record
		"fence": {hasTouch: true, hasLock: true},  // a sender without a record excludes its creation
	} {
		t.Run(name, func(t *testing.T) {
			_, lost := exploreSender(r)
			require.NotZero(t, lost, "got no lost item, want one without the rule")
		})
	}
}

// An idState is the one append of a put that repeats it after a lost answer, or after a crash of
// its caller, and a sender. With a ttl the id outlives Ack.
type idState struct {
	hasTTL          bool
	queued, sent    int
	isKnown, isDone bool
	appends         int // at most 3
}

func (s idState) next() (list []idState) {
	if s.queued > 0 { // sent, with Ack
		acked := s
		acked.queued--
		acked.sent++
		acked.isKnown = s.hasTTL
		list = append(list, acked)
	}
	if s.isDone || s.appends == 3 {
		return list
	}
	s.appends++
	if !s.isKnown {
		s.queued, s.isKnown = s.queued+1, true
	}
	list = append(list, s) // the answer is lost
	s.isDone = true
	return append(list, s)
}

// exploreID returns the number of states and the highest number of times that the item was sent.
func exploreID(hasTTL bool) (states, sent int) {
	states = explore(idState{hasTTL: hasTTL}, idState.next, func(s idState, _ []idState) { sent = max(sent, s.sent) })
	return states, sent
}

func TestIDModelSendsOnce(t *testing.T) {
	states, sent := exploreID(true)
	require.Equal(t, 1, sent, "times that the item was sent in %d states", states)
}

func TestIDModelSendsTwiceWithoutTTL(t *testing.T) {
	_, sent := exploreID(false)
	require.Greater(t, sent, 1, "times that the item was sent, if Ack ends the id")
}
