// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package accp

import "unicode/utf8"

// A TokenCounter counts the tokens of a text for a model. It must be safe for concurrent use and
// return equal counts for equal texts.
type TokenCounter interface {
	Count(text string) int
}

// A TokenCounterFunc is a function that counts.
type TokenCounterFunc func(text string) int

// Count calls f.
func (f TokenCounterFunc) Count(text string) int { return f(text) }

// A boundedCounter limits the counts of a TokenCounter to 0 and the bytes of the text (ACCP-D39).
type boundedCounter struct{ TokenCounter }

// Count counts within the bounds.
func (c boundedCounter) Count(text string) int {
	return min(max(c.TokenCounter.Count(text), 0), len(text))
}

// An additiveCounter counts the lines of a text each by itself.
type additiveCounter struct{ ApproxCounter }

// CountBytes counts a text without a copy.
func (additiveCounter) CountBytes(text []byte) int { return approx(text) }

// countBytes counts a text, without a copy if that is possible.
func countBytes(c TokenCounter, text []byte) int {
	if a, ok := c.(additiveCounter); ok {
		return a.CountBytes(text)
	}
	return c.Count(string(text))
}

// clamped returns c with bounds. Nil means the approximation.
func clamped(c TokenCounter) TokenCounter {
	switch c.(type) {
	case nil, ApproxCounter:
		return additiveCounter{}
	case additiveCounter, boundedCounter:
		return c
	}
	return boundedCounter{c}
}

// ApproxCounter estimates tokens without a vocabulary, equally on all sides (ACCP-D39).
type ApproxCounter struct{}

// Count counts one token for each started 6 letters, 3 digits or 2 other ASCII characters of a run,
// one for white space other than a single space, and one for each other character, or two above
// U+FFFF.
func (ApproxCounter) Count(text string) int { return approx(text) }

// The kinds of characters that make a run.
const (
	runWide = iota // not ASCII, never a run
	runLetter
	runDigit
	runSpace
	runOther
)

var runKinds = func() (kinds [256]uint8) {
	for c := range utf8.RuneSelf {
		switch {
		case class[c]&cAlpha != 0:
			kinds[c] = runLetter
		case class[c]&cDigit != 0:
			kinds[c] = runDigit
		case isSpace(byte(c)):
			kinds[c] = runSpace
		default:
			kinds[c] = runOther
		}
	}
	return kinds
}()

func approx[T ~string | ~[]byte](s T) int {
	n := 0
	for i := 0; i < len(s); {
		start, k := i, runKinds[s[i]]
		for i < len(s) && runKinds[s[i]] == k && k != runWide {
			i++
		}
		switch run := i - start; k {
		case runLetter:
			n += (run + 5) / 6
		case runDigit:
			n += (run + 2) / 3
		case runOther:
			n += (run + 1) / 2
		case runSpace:
			if run != 1 || s[start] != ' ' {
				n++
			}
		default:
			r, size := utf8.DecodeRuneInString(string(s[i:min(i+utf8.UTFMax, len(s))]))
			n++
			if r > 0xFFFF {
				n++
			}
			i += size
		}
	}
	return n
}

// Soft and hard token limits of the draft.
const (
	softHeader, hardHeader = 5, 10
	softBody, hardBody     = 50, 200
	softMeta, hardMeta     = 10, 30
	softTotal, hardTotal   = 65, 240
)

// A FrameBudget has the tokens of the parts of a frame, and the limits that they exceed: "header",
// "body", "metadata", "total", in this order.
type FrameBudget struct {
	Header, Body, Metadata, Total int
	Soft, Hard                    []string
}

// MeasureFrame counts the tokens of a frame. Each part is counted separately, and the total is
// their sum (ACCP-D37). A nil counter is [ApproxCounter]. A frame that violates the strict grammar
// is an error.
func MeasureFrame(frame []byte, counter TokenCounter) (FrameBudget, error) {
	var c Codec
	var f tree
	if err := c.parse(frame, &f); err != nil {
		return FrameBudget{}, err
	}
	return f.measure(counter), nil
}

func (f *tree) measure(counter TokenCounter) FrameBudget {
	return measure(f.src, "", cut{body: int(f.body), meta: int(f.meta), end: len(f.src)}, counter)
}

// tokens returns the tokens of a frame with a text.
func (f *tree) tokens(text string, counter TokenCounter) int {
	c := clamped(counter)
	return c.Count(text[:f.body]) + c.Count(text[f.body:f.meta]) + c.Count(text[f.meta:])
}

// limitNames are the names of the limits of a frame, for each set of them.
var limitNames = func() (names [16][]string) {
	for set := range names {
		for i, name := range []string{"header", "body", "metadata", "total"} {
			if set&(1<<i) != 0 {
				names[set] = append(names[set], name)
			}
		}
	}
	return names
}()

// measure counts the tokens of a frame. The text, unless empty, is that of the frame.
func measure(frame []byte, text string, at cut, counter TokenCounter) FrameBudget {
	counter = clamped(counter)
	_, isApprox := counter.(additiveCounter)
	count := func(from, to int) int {
		if isApprox {
			return approx(frame[from:to]) // without a copy
		}
		if text != "" {
			return counter.Count(text[from:to])
		}
		return counter.Count(string(frame[from:to]))
	}
	b := FrameBudget{Header: count(at.start, at.body), Body: count(at.body, at.meta), Metadata: count(at.meta, at.end)}
	b.sum()
	return b
}

// sum sets the total and the exceeded limits.
func (b *FrameBudget) sum() {
	b.Total = b.Header + b.Body + b.Metadata
	soft, hard := 0, 0
	for i, x := range [4][3]int{{b.Header, softHeader, hardHeader}, {b.Body, softBody, hardBody}, {b.Metadata, softMeta, hardMeta}, {b.Total, softTotal, hardTotal}} {
		if x[0] > x[1] {
			soft |= 1 << i
		}
		if x[0] > x[2] {
			hard |= 1 << i
		}
	}
	b.Soft, b.Hard = limitNames[soft], limitNames[hard]
}
