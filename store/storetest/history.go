// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package storetest

import (
	"fmt"
	"math"
	"slices"
	"strings"
)

// An event is one call in a history, or one result of a call, with its effect on a model state. The
// state may be any comparable value.
type event[S comparable] struct {
	what string

	// The moments of the call and of its return, of one count for all callers. A
	// call without an answer may act at any moment after it began, or never:
	// done is then never.
	call, done int64

	// act returns the state afterwards, or false if the event cannot have had its result in that
	// state. A read does not change the state.
	act   func(S) (S, bool)
	looks bool
}

const never = math.MaxInt64

// searchMost limits the number of states of a search, and so its time and memory. Histories of an
// engine, sound or not, take some hundreds at most.
const searchMost = 1 << 17

// explain searches for an order of the events in which each happened at one moment between its call
// and its return. It returns an empty text if an order exists, and otherwise the longest one found.
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
	fmt.Fprintf(&b, "; at most %d of %d were in their place (marked +):\n", s.bestCount, s.due)
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
	left   int // remaining number of states

	bestCount int // largest number of placed due events
	best      []byte
}

// A node is a set of events that have happened and the resulting state.
type node[S comparable] struct {
	placed string
	state  S
}

// from continues where n of the due events are placed.
func (s *search[S]) from(state S, placed []byte, n int) bool {
	placed = slices.Clone(placed)
	is := func(i int) bool { return placed[i/8]>>(i%8)&1 == 1 }
	// A read that matches the state is placed now: no later event makes that easier, and it
	// prevents no other event.
	for changed := true; changed; {
		changed = false
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
				changed = true
			}
		}
	}
	if n > s.bestCount || s.best == nil {
		s.bestCount, s.best = n, slices.Clone(placed)
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
