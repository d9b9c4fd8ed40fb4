// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package journal

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/internal/testkit"
)

// A modelState is a run of a handler with two goroutines, each of which awaits one input and records in a
// step what it does with it. The first one always calls Await before the second. Two inputs were delivered.
// The process may fail once at any time, and then the handler runs again.
type modelState struct {
	goroutines [2]modelGoroutine
	consumed   int    // inputs, by this run of the handler
	steps      [2]int // recorded: the input that the goroutine has worked on
	failures   int
}

type modelGoroutine struct {
	isWaiting bool // in Await
	input     int
	isRefused bool // by an Await that was a second one
	isEnded   bool
}

func (g modelGoroutine) isFresh() bool { return g == modelGoroutine{} }

// next returns the states after one step. With the rule a second Await at once is refused.
func (s modelState) next(hasRule bool) (states []modelState) {
	step := func(isPossible bool, change func(s *modelState)) {
		if isPossible {
			after := s
			change(&after)
			states = append(states, after)
		}
	}
	for i, g := range s.goroutines {
		isFree := g.isFresh() && (i == 0 || !s.goroutines[0].isFresh())
		hasOther := s.goroutines[1-i].isWaiting
		step(isFree && hasOther && hasRule, func(s *modelState) { s.goroutines[i].isRefused = true })
		step(isFree && !(hasOther && hasRule), func(s *modelState) { s.goroutines[i].isWaiting = true })
		step(g.isWaiting, func(s *modelState) {
			s.consumed++
			s.goroutines[i].isWaiting, s.goroutines[i].input = false, s.consumed
		})
		// A recorded step returns its result without working on the input.
		step(g.input > 0 && !g.isEnded, func(s *modelState) {
			s.goroutines[i].isEnded = true
			if s.steps[i] == 0 {
				s.steps[i] = g.input
			}
		})
	}
	step(s.failures == 0, func(s *modelState) {
		s.goroutines, s.consumed, s.failures = [2]modelGoroutine{}, 0, 1
	})
	return states
}

// checkModel visits all states, and returns the first in which two steps have worked on the same input.
func checkModel(hasRule bool) (visited int, violation error) {
	return testkit.Explore(modelState{}, func(s modelState) []modelState { return s.next(hasRule) }, func(s modelState) error {
		if s.steps[0] != 0 && s.steps[0] == s.steps[1] {
			return fmt.Errorf("input %d is consumed twice", s.steps[0])
		}
		return nil
	})
}

func TestModelOfOneAwaitConsumesInputOnce(t *testing.T) {
	visited, err := checkModel(true)
	require.NoError(t, err)
	require.Greater(t, visited, 30)
}

func TestModelOfTwoAwaitsConsumesInputTwice(t *testing.T) {
	_, err := checkModel(false)
	require.Error(t, err, "the rule is not needed")
}
