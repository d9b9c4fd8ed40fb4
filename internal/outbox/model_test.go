// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package outbox_test

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// A senderRule is the rule of Put and of the end of a sender, or one that lacks a part.
type senderRule struct{ hasTouch, hasLock bool }

const putAppend, putRead, putStart, putCreate, putTouch, putAccepted = 0, 1, 2, 3, 4, 5
const senderNone, senderLook, senderSend, senderEnd = 0, 1, 2, 3

var putters = [3]int{0, 0, 1} // the process of each put

// A senderState is one stream and two processes, of which process 0 may crash. The record has a
// revision that rises with each change.
type senderState struct {
	put, putRev       [3]int // step, and the revision that was read
	isQueued          [3]bool
	owner, rev        int // of the record; 2 means that it is absent
	sender, senderRev [2]int
	hasEntry          bool // of process 0 in the index
	starts, finishes  int  // of process 0: without Finish, and to be finished
	isCrashed         bool
}

// next returns the states after one step.
func (s senderState) next(r senderRule) (list []senderState) {
	for i, q := range putters {
		step, a := s.put[i], s
		a.put[i]++
		switch {
		case step == putAccepted || q == 0 && s.isCrashed:
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
			a.owner, a.rev, a.sender[q], a.put[i] = q, s.rev+1, senderLook, putAccepted
		case step == putCreate && q == 0:
			a.put[i], a.starts, a.hasEntry = putRead, s.starts-1, s.starts > 1 && r.hasLock
		case step == putTouch && s.rev == s.putRev[i]:
			a.rev++
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
		case step == senderLook:
			a.sender[q], a.senderRev[q] = senderSend, s.rev
		case step == senderSend && s.isQueued == [3]bool{}:
			a.sender[q] = senderEnd
		case step == senderSend:
			a.isQueued = [3]bool{}
		case s.rev != s.senderRev[q]:
			a.sender[q] = senderLook
		default:
			a.owner, a.rev, a.sender[q], a.finishes = 2, s.rev+1, senderNone, s.finishes+1-q
		}
		list = append(list, a)
	}
	if s.finishes > 0 && !s.isCrashed {
		a := s
		a.finishes, a.starts, a.hasEntry = s.finishes-1, s.starts-1, s.starts > 1 && r.hasLock
		list = append(list, a)
	}
	if s.isCrashed && s.hasEntry && s.owner == 0 { // process 1 adopts
		s.hasEntry, s.owner, s.rev, s.sender[1] = false, 1, s.rev+1, senderLook
		list = append(list, s)
	}
	return list
}

// exploreSender returns the number of states, and of those in which an accepted item waits and no
// process has a step left.
func exploreSender(r senderRule) (states, lost int) {
	seen, queue := map[senderState]bool{}, []senderState{{owner: 2}}
	for ; len(queue) > 0; queue = queue[1:] {
		s := queue[0]
		if !seen[s] {
			seen[s] = true
			next := s.next(r)
			for i, step := range s.put {
				if s.isQueued[i] && step == putAccepted && len(next) == 0 {
					lost++
				}
			}
			s.isCrashed = true
			queue = append(append(queue, next...), s)
		}
	}
	return len(seen), lost
}

func TestSenderModelLosesNoItem(t *testing.T) {
	states, lost := exploreSender(senderRule{hasTouch: true, hasLock: true})
	require.Zero(t, lost, "states with a lost item")
	require.Greater(t, states, 1000, "states")
}

func TestSenderModelLosesItemsWithoutTouch(t *testing.T) {
	_, lost := exploreSender(senderRule{hasLock: true})
	require.NotZero(t, lost, "got no lost item, want one if Put does not change the record")
}

func TestSenderModelLosesItemsWithoutLock(t *testing.T) {
	_, lost := exploreSender(senderRule{hasTouch: true})
	require.NotZero(t, lost, "got no lost item, want one if a sender deletes the entry of a new record")
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
	seen, queue := map[idState]bool{}, []idState{{hasTTL: hasTTL}}
	for ; len(queue) > 0; queue = queue[1:] {
		if s := queue[0]; !seen[s] {
			seen[s] = true
			sent = max(sent, s.sent)
			queue = append(queue, s.next()...)
		}
	}
	return len(seen), sent
}

func TestIDModelSendsOnce(t *testing.T) {
	states, sent := exploreID(true)
	require.Equal(t, 1, sent, "times that the item was sent in %d states", states)
}

func TestIDModelSendsTwiceWithoutTTL(t *testing.T) {
	_, sent := exploreID(false)
	require.Greater(t, sent, 1, "times that the item was sent, if Ack ends the id")
}
