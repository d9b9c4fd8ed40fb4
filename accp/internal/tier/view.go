// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package tier

import "slices"

// A View is the list of lines that a model is given. Between two cuts it only grows (ACCP-D69). The
// zero value is empty.
type View struct {
	lines    []string
	sum      int      // of the tokens of the lines
	bytes    int      // of the lines
	answered []string // the last answer
	isGrown  bool     // the lines begin with the last answer
}

// Bytes returns the size of the lines.
func (v *View) Bytes() int { return v.bytes }

// Tokens returns the tokens of the lines, joined by line feeds.
func (v *View) Tokens() int { return v.sum + max(0, len(v.lines)-1) }

// Append adds the line of a message unless it is empty.
func (v *View) Append(line string, counter Counter) {
	if line != "" {
		v.lines = append(v.lines, line)
		v.sum += counter.Count(line)
		v.bytes += len(line) + itemBytes
	}
}

// Begin replaces the lines: by those of the hot messages, without the oldest ones if they exceed the
// maximum, preceded by the newest summaries that fit into keep.
func (v *View) Begin(summaries, hot []string, counter Counter, maximum, keep int) {
	*v = View{answered: v.answered}
	tokens := func(line string) int { return counter.Count(line) + 1 }
	total := -1 // line feeds are between lines
	sizes := make([]int, len(hot))
	for i, line := range hot {
		if line != "" {
			sizes[i] = tokens(line)
			total += sizes[i]
		}
	}
	for len(hot) > 0 && total > maximum {
		total -= sizes[0]
		hot, sizes = hot[1:], sizes[1:]
	}
	first := len(summaries)
	for i, line := range slices.Backward(summaries) {
		if line != "" {
			total += tokens(line)
		}
		if total > keep {
			break
		}
		first = i
	}
	for _, line := range append(slices.Clone(summaries[first:]), hot...) {
		v.Append(line, counter)
	}
}

// Answer returns the lines, and how many of them the last answer began with.
func (v *View) Answer() (lines []string, stable int) {
	if v.isGrown {
		stable = len(v.answered)
	} else {
		for stable < min(len(v.lines), len(v.answered)) && v.lines[stable] == v.answered[stable] {
			stable++
		}
	}
	v.answered, v.isGrown = slices.Clip(v.lines), true
	return v.answered, stable
}
