// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package strictjson

import (
	"fmt"
	"math"
	"unicode/utf8"
)

// Options of [Check].
type Options struct {
	// MaxDepth bounds how deep arrays and objects may be nested; a value
	// without brackets has depth 0. Zero means 128, the most is 10,000.
	MaxDepth int

	// MaxBytes bounds the length of the text. Zero means no bound here,
	// because the reader of the transport has one already.
	MaxBytes int

	// LoneSurrogates accepts an escape like \ud800 without its other half. As
	// text it reads as U+FFFD.
	LoneSurrogates bool

	// MaxNames bounds the members of one object. Zero means 1,000 for a [Cursor]
	// and no bound for [Check]. A negative value removes the bound.
	MaxNames int

	// MaxTotal bounds the members of all objects of a text together. Zero and
	// negative values mean no bound.
	MaxTotal int

	// MaxName bounds a member name in bytes, as it is written. Zero means 1 KiB for
	// a [Cursor] and no bound for [Check]. A negative value removes the bound.
	MaxName int
}

// A Kind is the defect of a text.
type Kind int

// The kinds of faults, in the order in which they are looked for.
const (
	TooLarge  Kind = iota + 1 // longer than MaxBytes
	UTF8                      // not UTF-8
	Syntax                    // not JSON, or no value at all
	Trailing                  // something follows the value
	Duplicate                 // a name appears twice in one object
	Depth                     // nested deeper than MaxDepth
	Count                     // more names than MaxNames or MaxTotal, or one longer than MaxName
)

// String describes the defect.
func (k Kind) String() string {
	switch k {
	case TooLarge:
		return "text is too long"
	case UTF8:
		return "not valid UTF-8"
	case Syntax:
		return "not valid JSON"
	case Trailing:
		return "more than one value"
	case Duplicate:
		return "member name given twice"
	case Depth:
		return "nested too deep"
	case Count:
		return "too many or too long member names"
	}
	return "fault"
}

// An Error is why [Check] refused a text.
type Error struct {
	Kind    Kind
	Offset  int    // at or after which byte the fault lies
	Pointer string // the value around it as a JSON Pointer; empty where unknown or at the top
}

// Error names the kind and the offset. It never repeats the text itself.
func (e *Error) Error() string {
	return fmt.Sprintf("%s at byte %d", e.Kind, e.Offset)
}

// defaultDepth is what a MaxDepth of zero means.
const defaultDepth = 128

// Check returns data, without the white space around it, as a checked [Value]
// that shares its memory. Every error is an [*Error]. The time is linear in the
// length of data, and for texts that are refused at most some times more. Texts of
// 2 GiB and more are too large.
func Check(data []byte, o Options) (Value, error) {
	if o.MaxBytes > 0 && len(data) > o.MaxBytes {
		return nil, &Error{Kind: TooLarge, Offset: o.MaxBytes}
	}
	var s scanner
	s.reset(o)
	_, start, end := s.all(data, nil)
	if end < 0 {
		return nil, s.refusal(data)
	}
	return Value(data[start:end]), nil
}

// refusal returns the reason for which s refused data. An error of the encoding comes
// first, then the grammar, then a duplicate name, wherever they are, so that the
// answer does not depend on which of them the scanner meets first. Too many names
// end the scan at once.
func (s *scanner) refusal(data []byte) *Error {
	switch {
	case len(data) > math.MaxInt32:
		return &Error{Kind: TooLarge, Offset: math.MaxInt32}
	case s.reason == Count:
		return &Error{Kind: Count, Offset: s.at}
	}
	if !utf8.Valid(data) {
		return badUTF8(data)
	}
	if e := grammarError(data, s.lone); e != nil {
		return e
	}
	unbounded := scanner{limit: jsontextDepth, lone: s.lone}
	if _, _, end := unbounded.all(data, nil); end < 0 && unbounded.reason == Duplicate {
		return &Error{Kind: Duplicate, Offset: unbounded.at, Pointer: pointerAt(data, unbounded.at)}
	}
	if s.reason == 0 {
		return &Error{Kind: Syntax} // scanner and jsontext disagree: the text is refused
	}
	return &Error{Kind: s.reason, Offset: s.at}
}

func badUTF8(data []byte) *Error {
	i := 0
	for i < len(data) {
		r, n := utf8.DecodeRune(data[i:])
		if r == utf8.RuneError && n == 1 {
			break
		}
		i += n
	}
	return &Error{Kind: UTF8, Offset: i}
}
