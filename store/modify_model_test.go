// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package store_test

import (
	"errors"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/internal/testkit"
)

// A modifyRule is the rule of Modify for a change without an answer, or one that lacks a part.
type modifyRule struct {
	reads bool // the writer reads instead of repeating the change
	kept  int  // ids in the value
	limit int  // changes since, beyond which the outcome is unknown
}

const (
	reading = iota // or giving up, as a change function does that returns an error
	writing
	checking
	made
	notMade
	unknown
)

// A modifyState is one entry and three writers, each with one change to make. The revision of
// the entry is the number of its changes.
type modifyState struct {
	at, base [3]int   // what the writer does, and the revision it read
	inDoubt  [3]bool  // an attempt at base had no answer
	transit  [3]uint8 // attempts that may still arrive: a set of revisions
	changes  [4]int   // the writer of each change
	rev      int
	lost     int // answers, at most 2
	crashes  int // at most 1
}

func (s modifyState) applied(i, base int) modifyState {
	if s.rev == base {
		s.changes[s.rev] = i
		s.rev++
	}
	return s
}

// next passes on each state after one step of writer i or of its attempts in transit.
func (s modifyState) next(r modifyRule, i int, yield func(modifyState)) {
	move := func(s modifyState, at int) {
		s.at[i] = at
		yield(s)
	}
	at, base := s.at[i], s.base[i]
	for b := range s.rev + 1 {
		if s.transit[i]&(1<<b) != 0 {
			move(s.applied(i, b), at)
		}
	}
	if at < made && s.crashes == 0 {
		s.crashes++
		move(s, unknown)
		s.crashes--
	}
	switch {
	case at == reading:
		move(s, notMade)
		s.base[i], s.inDoubt[i] = s.rev, false
		move(s, writing)
	case at == writing && s.rev == base:
		move(s.applied(i, base), made)
	case at == writing && s.inDoubt[i]:
		move(s, checking)
	case at == writing:
		move(s, reading)
	case at == checking && slices.Contains(s.changes[max(0, s.rev-r.kept):s.rev], i):
		move(s, made)
	case at == checking && s.rev-base > r.limit:
		move(s, unknown)
	case at == checking:
		move(s, reading)
	}
	if at == writing && s.lost < 2 { // an error before the change, after it, and long before it
		s.lost++
		s.inDoubt[i] = true
		late := s
		late.transit[i] |= 1 << base
		move(late, unknown) // its context ends, and the repetition is in transit
		then := writing
		if r.reads {
			then = checking
		}
		move(s, then)
		move(s.applied(i, base), then)
		move(late, then)
	}
}

// isBroken reports a result that does not agree with the changes.
func (s modifyState) isBroken() bool {
	var count [3]int
	for _, i := range s.changes[:s.rev] {
		count[i]++
	}
	for i, n := range count {
		if n > 1 || s.at[i] == made && n != 1 || s.at[i] == notMade && n != 0 {
			return true
		}
	}
	return false
}

// explore visits every state and returns the number of states and the fault of a broken one.
func explore(r modifyRule) (n int, fault error) {
	return testkit.Explore(modifyState{}, func(s modifyState) (list []modifyState) {
		for i := range s.at {
			s.next(r, i, func(s modifyState) { list = append(list, s) })
		}
		return list
	}, func(s modifyState) error {
		if s.isBroken() {
			return errors.New("wrong result")
		}
		return nil
	})
}

func TestModifyModelMakesEachChangeOnce(t *testing.T) {
	for _, r := range []modifyRule{{kept: 8, limit: 8}, {kept: 2, limit: 2}, {kept: 1, limit: 1}} {
		n, broken := explore(r)
		require.NoError(t, broken, "rule %+v: got a wrong result, want none", r)
		require.Greater(t, n, 10_000, "states: got %d, want all interleavings", n)
	}
}

func TestModifyModelFailsWithoutRepetition(t *testing.T) {
	_, broken := explore(modifyRule{reads: true, kept: 8, limit: 8})
	require.Error(t, broken, "got no wrong result, want one if a read replaces the repetition")
}

func TestModifyModelFailsWithOneID(t *testing.T) {
	for _, kept := range []int{1, 2} {
		_, broken := explore(modifyRule{kept: kept, limit: 8})
		require.Error(t, broken, "got no wrong result with %d ids, want a change made twice", kept)
	}
}
