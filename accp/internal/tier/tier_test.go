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

// factLine returns the line of a fact, and its tokens.
func factLine(f Fact, counter Counter) (string, int) {
	w := lineWriter{counter: counter, buf: []byte("before")}
	w.additive, _ = counter.(AdditiveCounter)
	n := w.add(f)
	return string(w.buf[len("before"):]), n
}

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
		got, n := factLine(f, words{})
		require.Equal(t, want, got)
		require.Equal(t, words{}.Count(got), n)
		require.True(t, utf8.ValidString(want))
	})
}

func TestSummaryKeepsNewestFacts(t *testing.T) {
	var facts []Fact
	for i := range 50 {
		facts = append(facts, Fact{"a", fmt.Sprint("op.k", i), strings.Repeat("v", 40)})
	}
	text := Summarize(facts, words{}, new([]byte))
	require.LessOrEqual(t, words{}.Count(text), SummaryMax)
	require.True(t, strings.HasSuffix(text, "a:op.k49="+strings.Repeat("v", 40)))
	require.Equal(t, []Fact{{"b", "x", "1"}, {"a", "x", "2"}}, Newest([]Fact{{"a", "x", "1"}, {"b", "x", "1"}, {"a", "x", "2"}}))
}

// commit makes a checkpoint of hot state.
func commit(s *State, c Checkpoint, tokens, maximum int) []*Checkpoint {
	return s.Apply(&Change{After: &c, AfterTokens: tokens, Maximum: maximum})
}

// Every list of a state is bounded, and its sums are those of its entries (ACCP-D76).
func TestStateIsBounded(t *testing.T) {
	var s State
	for i := range 3000 {
		id := fmt.Sprint("cp", i)
		s.Apply(&Change{Hot: &Message{Text: "frame", Tokens: 1}, After: &Checkpoint{Summary: Summary{ID: id, Text: "summary"}, Bytes: 10}, AfterTokens: 3,
			Maximum: 256, Peer: &Announcement{Hash: "h", ID: id, Summary: "text"}, Void: id})
	}
	require.Len(t, s.Checkpoints, 256)
	require.Len(t, s.Peers, maxIDs)
	require.Len(t, s.Void, maxIDs)
	require.Len(t, s.Dropped, maxDropped)
	require.Equal(t, 3, s.Used)
	require.Empty(t, s.Hot)
	requireSizes(t, &s)
	_, stored := s.Sizes()
	require.EqualValues(t, 2560, stored)
}

// requireSizes requires that the sizes of a state are those of its lists.
func requireSizes(t require.TestingT, s *State) {
	memory, stored := s.Sizes()
	counted := *s
	counted.Recount()
	m, c := counted.Sizes()
	require.Equal(t, []int64{m, c}, []int64{memory, stored})
}

func TestIDsNameOneContent(t *testing.T) {
	var s State
	a := Announcement{Hash: "h", ID: "cp12345678", Summary: "x"}
	other := Announcement{Hash: "h", ID: "cp12345678", Summary: "y"}
	require.True(t, s.IsFree(a))
	s.Apply(&Change{Peer: &a})
	s.Apply(&Change{Peer: &a})
	require.Len(t, s.Peers, 1)
	require.True(t, s.IsFree(a))
	require.False(t, s.IsFree(other))
	sum := [32]byte{0x12, 0x34, 0x56, 0x78, 0xab, 0xcd}
	require.Equal(t, "cp12345678", s.Free("h", sum, "x"))
	require.Equal(t, "cp12345678abcd", s.Free("h", sum, "y"))
	s.Apply(&Change{Void: "cp12345678"})
	require.False(t, s.IsFree(a))
	commit(&s, Checkpoint{Summary: Summary{ID: "cp2", Text: "x"}, Hash: "h"}, 1, 10)
	s.Apply(&Change{Refine: "cp9", Refined: &Summary{ID: "cp3"}})
	_, c := s.Own("cp3")
	require.Nil(t, c)
	s.Apply(&Change{Refine: "cp2", Refined: &Summary{ID: "cp3", Text: "better"}})
	own, c := s.Own("cp3")
	require.NotNil(t, c)
	require.Equal(t, Announcement{Hash: "h", ID: "cp3", Summary: "better"}, own)
	require.Equal(t, "cp2", s.ByHash("h"))
	require.Equal(t, []Announcement{own}, s.References([]string{"warm.cp3", "cold.cp2", "warm.s.cp9", "warm."}, "s"))
	require.Equal(t, []Announcement{own}, s.References([]string{"warm.s.cp3", "warm.other.cp3"}, "s"))
}

// The checkpoint of the messages before another one precedes it, and that of both follows it (ACCP-D40).
func TestChangesApplyInOrder(t *testing.T) {
	s := State{Hot: []Message{{Text: "a", Tokens: 300}}, Used: 300}
	b := &Message{Text: "b", Tokens: 250}
	require.True(t, s.IsFull(b))
	require.False(t, s.IsFull(&Message{Text: "c", Tokens: 200}))
	require.False(t, (&State{}).IsFull(&Message{Text: "c", Tokens: 900}), "without messages nothing is a checkpoint")
	dropped := s.Apply(&Change{Before: &Checkpoint{Summary: Summary{ID: "cp1"}}, BeforeTokens: 7, Hot: b, Maximum: 1})
	require.Empty(t, dropped)
	require.Equal(t, []Message{*b}, s.Hot)
	require.Equal(t, 257, s.Used)
	dropped = s.Apply(&Change{Hot: &Message{Text: "c", Tokens: 1}, After: &Checkpoint{Summary: Summary{ID: "cp2"}}, AfterTokens: 8, Maximum: 1})
	require.Len(t, dropped, 1)
	require.Equal(t, "cp1", dropped[0].Summary.ID)
	require.Empty(t, s.Hot)
	require.Equal(t, 8, s.Used)
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

// modelBegin is the beginning of a view by the words of ACCP-D69: all sums are computed from scratch.
func modelBegin(summaries, hot []string, maximum, keep int) []string {
	filled := func(lists ...[]string) (out []string) {
		for _, line := range slices.Concat(lists...) {
			if line != "" {
				out = append(out, line)
			}
		}
		return out
	}
	for len(hot) > 0 && (words{}).tokens(filled(hot)) > maximum {
		hot = hot[1:]
	}
	first := len(summaries)
	for first > 0 && (words{}).tokens(filled(summaries[first-1:], hot)) <= keep {
		first--
	}
	return filled(summaries[first:], hot)
}

// A view begins with the messages within the maximum, and before them with the newest summaries that
// fit into keep. Lines of an earlier answer stay as they were (ACCP-D69).
func TestViewAgreesWithModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var v View
		var want, last, answer []string
		line := rapid.SampledFrom([]string{"", "a", "four", "seven chars", "a line of some length"})
		for range rapid.IntRange(1, 30).Draw(t, "steps") {
			if rapid.IntRange(0, 2).Draw(t, "step") == 0 {
				summaries, hot := rapid.SliceOfN(line, 0, 5).Draw(t, "summaries"), rapid.SliceOfN(line, 0, 5).Draw(t, "hot")
				maximum := rapid.IntRange(0, 30).Draw(t, "maximum")
				keep := rapid.IntRange(0, maximum).Draw(t, "keep")
				v.Begin(summaries, hot, words{}, maximum, keep)
				want = modelBegin(summaries, hot, maximum, keep)
			} else {
				l := line.Draw(t, "line")
				v.Append(l, words{})
				if l != "" {
					want = append(slices.Clone(want), l)
				}
			}
			_ = append(answer, "of the caller")
			require.Equal(t, words{}.tokens(want), v.Tokens())
			size := 0
			for _, l := range want {
				size += len(l) + itemBytes
			}
			require.Equal(t, size, v.Bytes())
			if rapid.Bool().Draw(t, "answer") {
				lines, stable := v.Answer()
				require.True(t, slices.Equal(want, lines))
				same := 0
				for same < min(len(last), len(lines)) && last[same] == lines[same] {
					same++
				}
				require.Equal(t, same, stable)
				require.True(t, slices.Equal(last, answer), "an answer never changes")
				last, answer = slices.Clone(lines), lines
			}
		}
	})
}

// A summary has the newest lines that fit, also after one that does not (ACCP-D42).
func TestSummaryAgreesWithModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		counter := rapid.SampledFrom([]Counter{words{}, free{}, lines{}}).Draw(t, "counter")
		facts := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) Fact {
			return Fact{"a", rapid.SampledFrom([]string{"op.k", strings.Repeat("r", 90), strings.Repeat("r", 1500)}).Draw(t, "relationship"),
				strings.Repeat("v", rapid.SampledFrom([]int{0, 1, 50, 5000}).Draw(t, "length"))}
		}), 0, 12).Draw(t, "facts")
		var kept []string
		for _, f := range slices.Backward(facts) {
			line, _ := factLine(f, counter)
			lines := append([]string{line}, kept...)
			text := strings.Join(lines, "\n")
			if counter.Count(text) <= 100 && len(text) <= 4096 {
				kept = lines
			}
		}
		require.Equal(t, strings.Join(kept, "\n"), Summarize(facts, counter, new([]byte)))
	})
}

// lines counts each line by itself.
type lines struct{}

func (lines) Count(text string) (n int) {
	for i, line := range strings.Split(text, "\n") {
		n += words{}.Count(line) + min(i, 1)
	}
	return n
}

func (lines) CountBytes(text []byte) int { return words{}.Count(string(text)) }

// free counts no tokens.
type free struct{}

func (free) Count(string) int { return 0 }

// The triggers of a message are listed in one order, with those of a checkpoint that failed (ACCP-D40).
func TestTriggersInOrder(t *testing.T) {
	require.Empty(t, Kinds{}.Triggers(HotTrigger, nil), "400 tokens are within the limit")
	require.Equal(t, []string{"hot_tokens"}, Kinds{}.Triggers(HotTrigger+1, nil))
	require.Equal(t, []string{"done"}, Kinds{IsDone: true}.Triggers(5, nil))
	require.Equal(t, []string{"done", "hot_tokens"}, Kinds{IsDone: true}.Triggers(HotTrigger+1, nil))
	require.Equal(t, []string{"done", "hot_tokens", "esc", "comp"}, Kinds{true, true, true}.Triggers(HotTrigger+1, nil))
	require.Equal(t, []string{"done", "hot_tokens", "comp"}, Kinds{IsComp: true}.Triggers(HotTrigger+1, []string{"done", "comp"}))
	require.Equal(t, []string{"esc"}, Kinds{}.Triggers(5, []string{"esc"}))
}

// A modelState has checkpoints and announcements as plain lists.
type modelState struct {
	checkpoints []*Checkpoint
	peers       []Announcement
	dropped     []string
	hot         []Message
	used        int
}

func (m *modelState) own(id string) (a Announcement, ok bool) {
	for _, c := range m.checkpoints {
		if c.Summary.ID == id {
			return Announcement{c.Hash, id, c.Summary.Text}, true
		}
		if c.Refined.ID == id {
			return Announcement{c.Hash, id, c.Refined.Text}, true
		}
	}
	return a, false
}

func (m *modelState) drop() *Checkpoint {
	c := m.checkpoints[0]
	m.checkpoints = m.checkpoints[1:]
	m.dropped = append(m.dropped, c.Summary.ID)
	if c.Refined.ID != "" {
		m.dropped = append(m.dropped, c.Refined.ID)
	}
	return c
}

// The tiers have the checkpoints, summaries and ids that a plain model has, and an id never means two
// contents (ACCP-D40, ACCP-D70, ACCP-D76).
func TestStateAgreesWithModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var s State
		var m modelState
		number := rapid.IntRange(0, 5)
		id := func(t *rapid.T) string { return fmt.Sprint("cp", number.Draw(t, "id")) }
		t.Repeat(map[string]func(*rapid.T){
			"add": func(t *rapid.T) {
				x := Message{Text: strings.Repeat("f", number.Draw(t, "length")), Tokens: number.Draw(t, "tokens")}
				s.Apply(&Change{Hot: &x})
				m.hot, m.used = append(m.hot, x), m.used+x.Tokens
			},
			"commit": func(t *rapid.T) {
				name := id(t)
				c := Checkpoint{Summary: Summary{ID: name, Text: "text of " + name}, Hash: fmt.Sprint("h", 3+(name[2]-48)%2), Bytes: 7}
				maximum := rapid.IntRange(1, 4).Draw(t, "maximum")
				var want []*Checkpoint
				m.checkpoints = slices.DeleteFunc(slices.Clone(m.checkpoints), func(o *Checkpoint) bool { return o.Summary.ID == name })
				m.checkpoints = append(m.checkpoints, &c)
				for len(m.checkpoints) > maximum {
					want = append(want, m.drop())
				}
				m.hot, m.used = nil, 3
				require.Equal(t, want, commit(&s, c, 3, maximum))
			},
			"drop": func(t *rapid.T) {
				if len(m.checkpoints) > 0 {
					require.Equal(t, []*Checkpoint{m.drop()}, s.Apply(&Change{Drop: true}))
				}
			},
			"refine": func(t *rapid.T) {
				name := id(t)
				r := Summary{ID: rapid.SampledFrom([]string{"r" + name, name}).Draw(t, "refined"), Text: "better"}
				i := slices.IndexFunc(m.checkpoints, func(c *Checkpoint) bool { return c.Summary.ID == name })
				isRefined := i >= 0 && r.ID != name
				if isRefined {
					m.checkpoints = slices.Clone(m.checkpoints)
					c := *m.checkpoints[i]
					c.Refined = r
					m.checkpoints[i] = &c
				}
				s.Apply(&Change{Refine: name, Refined: &r})
			},
			"announce": func(t *rapid.T) {
				name := id(t)
				a := Announcement{Hash: "h" + rapid.SampledFrom([]string{"3", "4", "x"}).Draw(t, "hash"), ID: name,
					Summary: rapid.SampledFrom([]string{"text of " + name, "other"}).Draw(t, "summary")}
				own, isOwn := m.own(name)
				isFree := !isOwn || own == a
				for _, p := range m.peers {
					isFree = isFree && (p.ID != name || p == a)
				}
				require.Equal(t, isFree, s.IsFree(a))
				if isFree {
					s.Apply(&Change{Peer: &a})
					if !slices.Contains(m.peers, a) {
						m.peers = append(m.peers, a)
					}
				}
			},
			"": func(t *rapid.T) {
				require.Equal(t, len(m.checkpoints), len(s.Checkpoints))
				for i := range m.checkpoints {
					require.Equal(t, m.checkpoints[i], s.Checkpoints[i])
				}
				require.Equal(t, m.dropped, s.Dropped)
				require.True(t, slices.Equal(m.hot, s.Hot))
				require.Equal(t, m.used, s.Used)
				for i := range 6 {
					name, hash := fmt.Sprint("cp", i), fmt.Sprint("h", i)
					for _, name := range []string{name, "r" + name} {
						want, wantOK := m.own(name)
						got, c := s.Own(name)
						require.Equal(t, wantOK, c != nil, name)
						require.Equal(t, want, got, name)
					}
					byHash, peer, adopted := "", "", Announcement{}
					for _, c := range m.checkpoints {
						if c.Hash == hash {
							byHash = c.Summary.ID // the newest
						}
					}
					for _, p := range m.peers {
						if p.ID == name {
							peer = p.Summary
						}
						if p.Hash == "hx" && p.ID != name {
							adopted = p
						}
					}
					require.Equal(t, byHash, s.ByHash(hash))
					got, _ := s.Peer(name)
					require.Equal(t, peer, got.Summary)
					announced, ok := s.Announced("hx", name)
					require.Equal(t, adopted, announced)
					require.Equal(t, adopted.ID != "", ok)
				}
				requireSizes(t, &s)
			},
		})
	})
}

func (c words) tokens(lines []string) int {
	n := max(0, len(lines)-1)
	for _, l := range lines {
		n += c.Count(l)
	}
	return n
}
