// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package once_test

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// A world is a state of the exhaustive model: one key under Repeat and two instances,
// each of which calls the key once. The bytes of an outcome are the number of the attempt.
type world struct {
	owner, attempt int // of the running claim; owner 0: none
	done           int // the recorded bytes
	instances      [3]instance
	given          [4]bool // the bytes that callers have
}

type instance struct {
	attempt  int  // whose claim it has; 0: none
	ran      bool // the attempt has ended
	finished bool // its caller has an outcome
	expired  bool // its lease
}

// steps returns the states that follow w. Without recordFirst a caller gets an outcome
// that the store has not taken.
func (w world) steps(recordFirst bool) (next []world) {
	add := func(i int, change func(w *world, in *instance)) {
		n := w
		change(&n, &n.instances[i])
		next = append(next, n)
	}
	for i := 1; i <= 2; i++ {
		in := w.instances[i]
		if !in.expired {
			add(i, func(w *world, in *instance) { in.expired = true })
		}
		mayClaim := w.owner == 0 || w.instances[w.owner].expired && w.owner != i && w.attempt < 3
		if in.attempt == 0 && !in.finished && !in.expired && w.done == 0 && mayClaim {
			add(i, func(w *world, in *instance) {
				w.owner, w.attempt = i, w.attempt+1
				in.attempt = w.attempt
			})
		}
		if in.attempt != 0 && !in.ran {
			add(i, func(w *world, in *instance) { in.ran = true })
		}
		isOwner := w.owner == i && w.attempt == in.attempt && w.done == 0
		if in.ran && isOwner && !in.finished {
			add(i, func(w *world, in *instance) { w.done = in.attempt }) // the answer may be lost
		}
		if in.ran && !in.finished && !recordFirst {
			add(i, func(w *world, in *instance) { in.finished, w.given[in.attempt] = true, true })
		}
		if !in.finished && w.done != 0 { // read from the store
			add(i, func(w *world, in *instance) { in.finished, w.given[w.done] = true, true })
		}
	}
	return next
}

// explore returns the number of reachable states, and the shortest trace to a state in
// which two callers have other bytes.
func explore(recordFirst bool) (states int, trace []world) {
	from := map[world]world{{}: {}}
	queue := []world{{}}
	for len(queue) > 0 {
		w := queue[0]
		queue = queue[1:]
		if w.given[1] && (w.given[2] || w.given[3]) || w.given[2] && w.given[3] {
			for ; w != (world{}); w = from[w] {
				trace = append(trace, w)
			}
			return len(from), trace
		}
		for _, n := range w.steps(recordFirst) {
			if _, isKnown := from[n]; !isKnown {
				from[n] = w
				queue = append(queue, n)
			}
		}
	}
	return len(from), nil
}

func TestModelOfRepeatGivesOneOutcomeIfRecordedFirst(t *testing.T) {
	states, trace := explore(true)
	require.Empty(t, trace, "a trace to two outcomes")
	require.Greater(t, states, 50)
}

func TestModelOfRepeatGivesTwoOutcomesIfNotRecordedFirst(t *testing.T) {
	_, trace := explore(false)
	require.NotEmpty(t, trace, "the rule has no effect in the model")
}
