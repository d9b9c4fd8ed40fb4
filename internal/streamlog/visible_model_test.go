// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package streamlog

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/internal/testkit"
)

const maxModelItems = 3

// A modelState is a writer with at most one append in transit, a reader in its process, and a
// survivor that takes the writer for failed and ends the stream.
type modelState struct {
	items    int  // batches in the log, of one item each
	isEnded  bool // the record behind them is the end
	accepted int  // items that the writer accepted
	stored   int  // items whose append has returned
	transit  int  // the record of the append in transit; zero: none
	isLanded bool // it is in the log
	isFenced bool // it found another record there
	local    int  // items that the reader has
	survivor int  // the record that the survivor is about to append; zero: it has to read
}

func (s modelState) records() int {
	if s.isEnded {
		return s.items + 1
	}
	return s.items
}

// next returns the states after one step. With the rule the reader gets stored items only.
func (s modelState) next(hasRule bool) (states []modelState) {
	step := func(isPossible bool, change func(s *modelState)) {
		if isPossible {
			after := s
			change(&after)
			states = append(states, after)
		}
	}
	visible := s.accepted
	if hasRule {
		visible = s.stored
	}
	isIdle := s.transit == 0 && !s.isFenced
	isFree := s.records() == s.transit-1
	step(s.accepted < maxModelItems && !s.isFenced, func(s *modelState) { s.accepted++ })
	step(isIdle && s.stored < s.accepted, func(s *modelState) { s.transit = s.stored + 1 })
	step(s.transit > 0 && !s.isLanded && isFree, func(s *modelState) { s.isLanded, s.items = true, s.items+1 })
	step(s.isLanded, func(s *modelState) { s.isLanded, s.transit, s.stored = false, 0, s.stored+1 })
	step(s.transit > 0 && !s.isLanded && !isFree, func(s *modelState) { s.transit, s.isFenced = 0, true })
	step(s.local < visible, func(s *modelState) { s.local++ })
	step(s.survivor == 0 && !s.isEnded, func(s *modelState) { s.survivor = s.records() + 1 })
	step(s.survivor > 0 && s.records() == s.survivor-1, func(s *modelState) { s.survivor, s.isEnded = 0, true })
	step(s.survivor > 0 && s.records() >= s.survivor, func(s *modelState) { s.survivor = 0 })
	return states
}

// checkModel visits all states and returns the first in which the reader has more than the stream.
func checkModel(hasRule bool) (visited int, violation error) {
	return testkit.Explore(modelState{}, func(s modelState) []modelState { return s.next(hasRule) }, func(s modelState) error {
		if s.isEnded && s.local > s.items {
			return fmt.Errorf("a reader has %d items of a stream with %d", s.local, s.items)
		}
		return nil
	})
}

func TestModelReaderOfStoredItemsHasStreamOnly(t *testing.T) {
	visited, err := checkModel(true)
	require.NoError(t, err)
	require.Greater(t, visited, 100)
}

func TestModelReaderOfAcceptedItemsHasMoreThanStream(t *testing.T) {
	_, err := checkModel(false)
	require.Error(t, err, "the rule is not needed")
}
