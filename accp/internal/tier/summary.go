// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package tier

import (
	"slices"
	"strings"
	"unicode/utf8"
)

// A Fact is one statement of a message.
type Fact struct{ Entity, Relationship, Value string }

// A fact is a type with the form of Fact.
type fact interface {
	~struct{ Entity, Relationship, Value string }
}

// Facts appends the facts in lines of the form entity:relationship=value.
func Facts[F fact](list []F, lines string) []F {
	for lines != "" {
		line, rest, _ := strings.Cut(lines, "\n")
		entity, statement, _ := strings.Cut(line, ":")
		relationship, value, _ := strings.Cut(statement, "=")
		list = append(list, F(Fact{entity, relationship, value}))
		lines = rest
	}
	return list
}

// A Counter counts the tokens of a text.
type Counter interface{ Count(text string) int }

// An AdditiveCounter counts the lines of a text each by itself, and one token for each line feed between them.
type AdditiveCounter interface {
	Counter
	CountBytes(text []byte) int
}

// Newest returns facts without those that a later one with the same entity and relationship
// replaces (ACCP-D41). It changes the list.
func Newest[F fact](facts []F) []F {
	isReplaced := func(i int) bool {
		f := Fact(facts[i])
		for _, x := range facts[i+1:] {
			if later := Fact(x); later.Relationship == f.Relationship && later.Entity == f.Entity {
				return true
			}
		}
		return false
	}
	if len(facts) > 32 {
		last := make(map[Fact]int, len(facts))
		name := func(f Fact) Fact { return Fact{Entity: f.Entity, Relationship: f.Relationship} }
		for i, f := range facts {
			last[name(Fact(f))] = i
		}
		isReplaced = func(i int) bool { return last[name(Fact(facts[i]))] != i }
	}
	kept := facts[:0]
	for i, f := range facts {
		if !isReplaced(i) {
			kept = append(kept, f)
		}
	}
	return kept
}

// Summarize returns the newest facts as lines in at most 100 tokens and 4,096 bytes, with long values
// truncated (ACCP-D42). It uses the memory of scratch.
func Summarize[F fact](facts []F, counter Counter, scratch *[]byte) string {
	w := lineWriter{counter: counter, buf: (*scratch)[:0]}
	w.additive, _ = counter.(AdditiveCounter)
	defer func() { *scratch = w.buf[:0] }()
	var list [32][2]int // the newest line first
	kept, size, tokens := list[:0], 0, 0
	for _, f := range slices.Backward(facts) {
		start := len(w.buf)
		n := w.add(Fact(f))
		length := len(w.buf) - start
		switch {
		case size+length > MaxSummaryBytes, w.additive != nil && tokens+n > SummaryMax,
			w.additive == nil && counter.Count(w.text(append(kept, [2]int{start, len(w.buf)}))) > SummaryMax:
			w.buf = w.buf[:start]
			continue
		}
		kept = append(kept, [2]int{start, len(w.buf)})
		size += length + 1
		tokens += n + 1
	}
	return w.text(kept)
}

// A lineWriter writes the lines of facts.
type lineWriter struct {
	counter  Counter
	additive AdditiveCounter // the counter, or nil
	buf      []byte
}

func (w *lineWriter) count(text []byte) int {
	if w.additive != nil {
		return w.additive.CountBytes(text)
	}
	return w.counter.Count(string(text))
}

// text joins lines, the last one first.
func (w *lineWriter) text(lines [][2]int) string {
	size := max(0, len(lines)-1)
	for _, at := range lines {
		size += at[1] - at[0]
	}
	var b strings.Builder
	b.Grow(size)
	for i, at := range slices.Backward(lines) {
		b.Write(w.buf[at[0]:at[1]])
		if i > 0 {
			b.WriteByte('\n')
		}
	}
	return b.String()
}

// add adds the line of a fact and returns its tokens. A value that is too long is cut to its longest prefix that fits.
func (w *lineWriter) add(f Fact) (tokens int) {
	start := len(w.buf)
	w.buf = append(append(w.buf, f.Entity...), ':')
	w.buf = append(append(w.buf, f.Relationship...), '=')
	head := len(w.buf)
	w.buf = append(w.buf, f.Value...)
	if tokens = w.count(w.buf[start:]); tokens <= lineMax {
		return tokens
	}
	cut := func(n int) []byte { return append(append(w.buf[:head], f.Value[:n]...), ".."...)[start:] }
	// A longer prefix never has fewer tokens: double the length while it fits, then search between.
	fits := func(n int) bool { return w.count(cut(n)) <= lineMax }
	low, high := 0, 64
	for high < len(f.Value) && fits(boundary(f.Value, high)) {
		low, high = boundary(f.Value, high), 2*high
	}
	high = min(high, len(f.Value))
	for low+1 < high { // a prefix of low bytes fits, or is empty
		n := boundary(f.Value, low+(high-low)/2)
		if n == low {
			n = following(f.Value, low)
			if n >= high {
				break
			}
		}
		if fits(n) {
			low = n
		} else {
			high = n
		}
	}
	w.buf = append(w.buf[:start], cut(low)...)
	return w.count(w.buf[start:])
}

// following returns the end of the character at byte n.
func following(s string, n int) int {
	for n++; n < len(s) && !utf8.RuneStart(s[n]); n++ {
	}
	return n
}

// boundary returns the start of the character at byte n.
func boundary(s string, n int) int {
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return n
}
