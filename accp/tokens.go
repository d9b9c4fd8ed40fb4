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

// clamped returns c with bounds. Nil means the approximation.
func clamped(c TokenCounter) TokenCounter {
	if c == nil {
		return ApproxCounter{}
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
	runLetter = iota
	runDigit
	runSpace
	runOther
	runWide // not ASCII, never a run
)

func runOf(c byte) int {
	switch {
	case class[c]&cAlpha != 0:
		return runLetter
	case class[c]&cDigit != 0:
		return runDigit
	case isSpace(c):
		return runSpace
	case c < utf8.RuneSelf:
		return runOther
	}
	return runWide
}

func approx[T ~string | ~[]byte](s T) int {
	n := 0
	for i := 0; i < len(s); {
		k := runOf(s[i])
		if k == runWide {
			r, size := rune(utf8.RuneError), 1
			r, size = utf8.DecodeRuneInString(string(s[i:min(i+utf8.UTFMax, len(s))]))
			n++
			if r > 0xFFFF {
				n++
			}
			i += size
			continue
		}
		start := i
		for i < len(s) && runOf(s[i]) == k {
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
	var f Frame
	if err := c.DecodeFrame(frame, &f); err != nil {
		return FrameBudget{}, err
	}
	return f.measure(counter), nil
}

func (f *Frame) measure(counter TokenCounter) FrameBudget {
	return measure(f.src, cut{body: int(f.body), meta: int(f.meta), end: len(f.src)}, counter)
}

func measure(frame []byte, at cut, counter TokenCounter) FrameBudget {
	count := func(s []byte) int {
		if _, isApprox := counter.(ApproxCounter); isApprox || counter == nil {
			return approx(s) // without a copy
		}
		return counter.Count(string(s))
	}
	b := FrameBudget{
		Header:   count(frame[at.start:at.body]),
		Body:     count(frame[at.body:at.meta]),
		Metadata: count(frame[at.meta:at.end]),
	}
	b.Total = b.Header + b.Body + b.Metadata
	check := func(name string, n, soft, hard int) {
		if n > soft && b.Soft == nil {
			b.Soft = make([]string, 0, 4)
		}
		if n > soft {
			b.Soft = append(b.Soft, name)
		}
		if n > hard {
			b.Hard = append(b.Hard, name)
		}
	}
	check("header", b.Header, softHeader, hardHeader)
	check("body", b.Body, softBody, hardBody)
	check("metadata", b.Metadata, softMeta, hardMeta)
	check("total", b.Total, softTotal, hardTotal)
	return b
}
