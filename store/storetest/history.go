// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package storetest

import (
	"fmt"
	"math"
	"slices"
	"strings"
)

// An event is one call in a history, or one thing that a call has told, with
// what it does to a state that is simple enough to be right. A state is any
// value that can be compared.
type event[S comparable] struct {
	what string

	// The moments of the call and of its return, of one count for all callers. A
	// call without an answer may act at any moment after it began, or never:
	// done is then never.
	call, done int64

	// act returns the state afterwards, or false if the event cannot have been
	// as it was told in that state. Who looks leaves the state as it is.
	act   func(S) (S, bool)
	looks bool
}

const never = math.MaxInt64

// searchMost bounds how many states a search looks at, and so its time and
// memory. Histories of an engine, sound or not, take some hundreds at most.
const searchMost = 1 << 17

// explain looks for an order of the events in which each happened at one moment
// between its call and its return. It returns nothing if there is one, and
// otherwise tells how far it got.
func explain[S comparable](first S, events []event[S]) (trouble string) {
	events = slices.Clone(events)
	slices.SortStableFunc(events, func(a, b event[S]) int { return int(a.call - b.call) })
	s := search[S]{events: events, seen: map[node[S]]bool{}, left: searchMost}
	for _, ev := range events {
		if ev.done != never {
			s.due++
		}
	}
	if s.from(first, make([]byte, (len(events)+7)/8), 0) {
		return ""
	}
	var b strings.Builder
	if s.left == 0 {
		fmt.Fprintf(&b, "gave up to look for an order of these after %d states", searchMost)
	} else {
		b.WriteString("no order of these explains them")
	}
	fmt.Fprintf(&b, "; at most %d of %d were in their place (marked +):\n", s.most, s.due)
	is := func(i int) bool { return s.best[i/8]>>(i%8)&1 == 1 }
	limit := s.limit(is)
	for i, ev := range events {
		if ev.call > limit { // and so was not to be tried yet
			fmt.Fprintf(&b, "and %d that came later\n", len(events)-i)
			break
		}
		mark, done := ' ', fmt.Sprint(ev.done)
		if is(i) {
			mark = '+'
		}
		if ev.done == never {
			done = "?"
		}
		fmt.Fprintf(&b, "%c %5d to %5s  %s\n", mark, ev.call, done, ev.what)
	}
	return b.String()
}

type search[S comparable] struct {
	events []event[S] // in the order of their calls
	due    int        // how many have an answer and must have their place
	seen   map[node[S]]bool
	left   int // states that may still be looked at

	most int // of those due that had their place at once
	best []byte
}

// A node is a set of events that have happened and what came of them.
type node[S comparable] struct {
	placed string
	state  S
}

// from goes on where n of those due have their place.
func (s *search[S]) from(state S, placed []byte, n int) bool {
	placed = slices.Clone(placed)
	is := func(i int) bool { return placed[i/8]>>(i%8)&1 == 1 }
	// Who only looks, and sees what is there, may as well do it now: nothing that
	// comes later makes that easier, and nobody is kept from anything.
	for again := true; again; {
		again = false
		limit := s.limit(is)
		for i, ev := range s.events {
			if ev.call > limit {
				break
			}
			if !ev.looks || is(i) {
				continue
			}
			if _, ok := ev.act(state); ok {
				placed[i/8] |= 1 << (i % 8)
				n++
				again = true
			}
		}
	}
	if n > s.most || s.best == nil {
		s.most, s.best = n, slices.Clone(placed)
	}
	if n == s.due {
		return true
	}
	here := node[S]{string(placed), state}
	if s.seen[here] || s.left == 0 {
		return false
	}
	s.seen[here] = true
	s.left--
	limit := s.limit(is)
	for i, ev := range s.events {
		if ev.call > limit {
			break
		}
		if ev.looks || is(i) {
			continue
		}
		next, ok := ev.act(state)
		if !ok || ev.done == never && next == state {
			continue
		}
		placed[i/8] |= 1 << (i % 8)
		more := n
		if ev.done != never {
			more++
		}
		if s.from(next, placed, more) {
			return true
		}
		placed[i/8] &^= 1 << (i % 8)
	}
	return false
}

// limit is the first return of those without a place: what was called after it
// has to come after it.
func (s *search[S]) limit(is func(int) bool) int64 {
	limit := int64(never)
	for i, ev := range s.events {
		if ev.call > limit {
			break
		}
		if !is(i) {
			limit = min(limit, ev.done)
		}
	}
	return limit
}
