// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package tier

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// words counts the started runs of four bytes.
type words struct{}

func (words) Count(text string) int { return (len(text) + 3) / 4 }

// The line of a fact has the longest prefix of whole characters that fits (ACCP-D42).
func TestFactLineHasLongestPrefix(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := Fact{Entity: "a", Relationship: rapid.StringN(0, 100, 120).Draw(t, "relationship"),
			Value: rapid.StringOfN(rapid.SampledFrom([]rune("ab é😀")), 0, 400, -1).Draw(t, "value")}
		head := "a:" + f.Relationship + "="
		want := head + f.Value
		if (words{}).Count(want) > lineMax {
			want = head + ".."
			for i := range f.Value + "." {
				if i > 0 && (words{}).Count(head+f.Value[:i]+"..") <= lineMax {
					want = head + f.Value[:i] + ".."
				}
			}
		}
		require.Equal(t, want, factLine(f, words{}))
		require.True(t, utf8.ValidString(want))
	})
}

func TestSummaryKeepsNewestFacts(t *testing.T) {
	var facts []Fact
	for i := range 50 {
		facts = append(facts, Fact{"a", fmt.Sprint("op.k", i), strings.Repeat("v", 40)})
	}
	text := Summarize(facts, words{})
	require.LessOrEqual(t, words{}.Count(text), SummaryMax)
	require.True(t, strings.HasSuffix(text, "a:op.k49="+strings.Repeat("v", 40)))
	require.Equal(t, []Fact{{"b", "x", "1"}, {"a", "x", "2"}}, Newest([]Fact{{"a", "x", "1"}, {"b", "x", "1"}, {"a", "x", "2"}}))
}

// Every list of a state is bounded, and its sums are those of its entries (ACCP-D76).
func TestStateIsBounded(t *testing.T) {
	var s State
	for i := range 3000 {
		id := fmt.Sprint("cp", i)
		s.Add(Message{Text: "frame", Tokens: 1})
		s.Commit(Checkpoint{Summary: Summary{ID: id, Text: "summary"}, Bytes: 10}, 3, 256)
		s.Announce(Announcement{Hash: "h", ID: id, Summary: "text"})
		s.Forbid(id)
	}
	require.Len(t, s.Checkpoints, 256)
	require.Len(t, s.Peers, maxIDs)
	require.Len(t, s.Void, maxIDs)
	require.Len(t, s.Dropped, maxDropped)
	require.Equal(t, 3, s.Used)
	require.Empty(t, s.Hot)
	counted := s
	counted.Recount()
	require.Equal(t, []int64{counted.InfoBytes, counted.Stored, int64(counted.HotBytes)}, []int64{s.InfoBytes, s.Stored, int64(s.HotBytes)})
	require.EqualValues(t, 2560, s.Stored)
}

func TestIDsNameOneContent(t *testing.T) {
	var s State
	a := Announcement{Hash: "h", ID: "cp1", Summary: "x"}
	other := Announcement{Hash: "h", ID: "cp1", Summary: "y"}
	require.True(t, s.IsFree(a))
	s.Announce(a)
	s.Announce(a)
	require.Len(t, s.Peers, 1)
	require.True(t, s.IsFree(a))
	require.False(t, s.IsFree(other))
	s.Forbid("cp1")
	require.False(t, s.IsFree(a))
	s.Commit(Checkpoint{Summary: Summary{ID: "cp2", Text: "x"}, Hash: "h"}, 1, 10)
	require.False(t, s.Refine("cp9", Summary{ID: "cp3"}))
	require.True(t, s.Refine("cp2", Summary{ID: "cp3", Text: "better"}))
	own, ok := s.Own("cp3")
	require.True(t, ok)
	require.Equal(t, Announcement{Hash: "h", ID: "cp3", Summary: "better"}, own)
	require.Equal(t, "cp2", s.ByHash("h"))
}

// Between two cuts each answer of a view is a prefix of the next (ACCP-D69).
func TestViewGrowsBetweenCuts(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var v View
		var last []string
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			isCut := rapid.IntRange(0, 5).Draw(t, "step") == 0
			if isCut {
				v.Begin([]string{"summary"}, []string{"one", "", "two"}, words{}, 100, 50)
			} else {
				v.Append(rapid.SampledFrom([]string{"", "line", "other line"}).Draw(t, "line"), words{})
			}
			lines, stable := v.Answer()
			require.Equal(t, words{}.tokens(lines), v.Tokens())
			if !isCut {
				require.Equal(t, len(last), stable)
			}
			require.True(t, slices.Equal(last[:stable], lines[:stable]))
			last = slices.Clone(lines)
		}
	})
}

func (c words) tokens(lines []string) int {
	n := max(0, len(lines)-1)
	for _, l := range lines {
		n += c.Count(l)
	}
	return n
}
