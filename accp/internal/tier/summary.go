// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package tier

import (
	"slices"
	"sort"
	"unicode/utf8"
)

// A Fact is one statement of a message.
type Fact struct{ Entity, Relationship, Value string }

// A Counter counts the tokens of a text.
type Counter interface{ Count(text string) int }

// Newest returns facts without those that a later one with the same entity and relationship
// replaces (ACCP-D41).
func Newest(facts []Fact) []Fact {
	type key struct{ entity, relationship string }
	last := map[key]int{}
	for i, f := range facts {
		last[key{f.Entity, f.Relationship}] = i
	}
	var out []Fact
	for i, f := range facts {
		if last[key{f.Entity, f.Relationship}] == i {
			out = append(out, f)
		}
	}
	return out
}

// Summarize returns the newest facts as lines in at most 100 tokens and 4,096 bytes, with long values
// truncated (ACCP-D42).
func Summarize(facts []Fact, counter Counter) string {
	kept := ""
	for _, f := range slices.Backward(facts) {
		line := factLine(f, counter)
		if kept != "" {
			line += "\n" + kept
		}
		if len(line) <= MaxSummaryBytes && counter.Count(line) <= SummaryMax {
			kept = line
		}
	}
	return kept
}

func factLine(f Fact, counter Counter) string {
	head := f.Entity + ":" + f.Relationship + "="
	if line := head + f.Value; counter.Count(line) <= lineMax {
		return line
	}
	// A longer prefix never has fewer tokens: double the length while it fits, then search between.
	fits := func(n int) bool { return counter.Count(head+f.Value[:n]+"..") <= lineMax }
	low, high := 0, 64
	for high < len(f.Value) && fits(boundary(f.Value, high)) {
		low, high = boundary(f.Value, high), 2*high
	}
	ends := []int{low}
	for i := range f.Value[low:min(high, len(f.Value))] {
		if i > 0 {
			ends = append(ends, low+i)
		}
	}
	n := sort.Search(len(ends)-1, func(i int) bool { return !fits(ends[i+1]) })
	return head + f.Value[:ends[n]] + ".."
}

// boundary returns the start of the character at byte n.
func boundary(s string, n int) int {
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return n
}
