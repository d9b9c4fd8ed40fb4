// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package storetest

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// add is an event that appends text to the state, and sees is one that reads it.
func add(text string, call, done int64) event[string] {
	return event[string]{what: "add " + text, call: call, done: done, act: func(now string) (string, bool) { return now + text, true }}
}

func sees(want string, call, done int64) event[string] {
	return event[string]{what: "sees " + want, call: call, done: done, looks: true, act: func(now string) (string, bool) { return now, now == want }}
}

func TestExplain(t *testing.T) {
	for _, tt := range []struct {
		name   string
		events []event[string]
		ok     bool
	}{
		{"nothing", nil, true},
		{"one after the other", []event[string]{add("a", 1, 2), add("b", 3, 4), sees("ab", 5, 6)}, true},
		{"against their order", []event[string]{add("a", 1, 2), add("b", 3, 4), sees("ba", 5, 6)}, false},
		{"at once", []event[string]{add("a", 1, 4), add("b", 2, 3), sees("ba", 5, 6)}, true},
		{"an old state", []event[string]{add("a", 1, 2), sees("", 3, 4)}, false},
		{"what is under way", []event[string]{add("a", 1, 4), sees("a", 2, 3)}, true},
		{"and gone again", []event[string]{add("a", 1, 6), sees("a", 2, 3), sees("", 4, 5)}, false},
		{"no answer, and done late", []event[string]{add("a", 1, never), sees("", 2, 3), sees("a", 4, 5)}, true},
		{"no answer, and never done", []event[string]{add("a", 1, never), sees("", 2, 3)}, true},
		{"no answer, and done before it was asked for", []event[string]{sees("a", 1, 2), add("a", 3, never)}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			require.Equal(t, tt.ok, explain("", tt.events) == "")
		})
	}
}

// TestExplainNot: a failure shows the possible order found.
func TestExplainNot(t *testing.T) {
	events := []event[string]{add("a", 1, 2), sees("b", 3, 4)}
	for i := range int64(100) {
		events = append(events, add("c", 5+2*i, 6+2*i))
	}
	require.Equal(t, `no order of these explains them; at most 1 of 102 were in their place (marked +):
+     1 to     2  add a
      3 to     4  sees b
and 100 that came later
`, explain("", events))
}

// TestExplainGivesUp: what may have happened in any of many orders ends the
// search in time, and it does not say that there is no order.
func TestExplainGivesUp(t *testing.T) {
	var events []event[string]
	for i := range int64(12) {
		events = append(events, add(fmt.Sprint(i, " "), 1+i, never))
	}
	trouble := explain("", append(events, sees("what is never there", 20, 21)))
	require.True(t, strings.HasPrefix(trouble, "gave up"), trouble)
	require.Less(t, strings.Count(trouble, "\n"), 20)
}
