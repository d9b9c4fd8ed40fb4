// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package testkit

import (
	"fmt"
	"testing"
	"testing/synctest"

	"github.com/fivewire/fivewire/internal/race"
	"pgregory.net/rapid"
)

// CheckInBubble checks a property in virtual time, each run in a separate bubble, because rapid
// needs the real time. With the race detector it makes 30 runs unless one of them fails.
func CheckInBubble(t *testing.T, property func(t *rapid.T)) {
	t.Helper()
	runs, isFailed := 0, false
	rapid.Check(t, func(rt *rapid.T) {
		if runs++; race.Enabled && runs > 30 && !isFailed {
			return
		}
		var failure any // the panic by which rapid ends a run
		synctest.Test(t, func(*testing.T) {
			defer func() { failure = recover() }()
			property(rt)
		})
		switch fmt.Sprintf("%T", failure) {
		case "<nil>":
		case "rapid.invalidData": // rapid distinguishes panics by their line
			panic(failure)
		default:
			isFailed = true
			panic(failure)
		}
	})
}

// Explore visits all states that can be reached from a start, in the order of their distance. It
// returns the number of known states and the first error of check.
func Explore[S comparable](start S, next func(S) []S, check func(S) error) (states int, violation error) {
	isKnown := map[S]bool{start: true}
	for queue := []S{start}; len(queue) > 0; queue = queue[1:] {
		if err := check(queue[0]); err != nil {
			return len(isKnown), fmt.Errorf("%w: %+v", err, queue[0])
		}
		for _, after := range next(queue[0]) {
			if !isKnown[after] {
				isKnown[after] = true
				queue = append(queue, after)
			}
		}
	}
	return len(isKnown), nil
}
