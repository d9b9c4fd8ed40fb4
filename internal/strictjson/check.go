// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package strictjson

import (
	"bytes"
	"fmt"
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
}

// A Kind says what is wrong with a text.
type Kind int

// The kinds of faults, in the order in which they are looked for.
const (
	TooLarge  Kind = iota + 1 // longer than MaxBytes
	UTF8                      // not UTF-8
	Syntax                    // not JSON, or no value at all
	Trailing                  // something follows the value
	Duplicate                 // a name stands twice in one object
	Depth                     // nested deeper than MaxDepth
)

// String says in words what is wrong.
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
// length of data, and for texts that are refused at most some times more.
func Check(data []byte, o Options) (Value, error) {
	if o.MaxDepth <= 0 {
		o.MaxDepth = defaultDepth
	}
	if o.MaxBytes > 0 && len(data) > o.MaxBytes {
		return nil, &Error{Kind: TooLarge, Offset: o.MaxBytes}
	}
	if surelyValid(data, min(o.MaxDepth, jsontextDepth)) {
		return Value(bytes.Trim(data, " \t\r\n")), nil
	}
	// Nearly every text passes the strict check, so the more lenient one, which
	// has to look at the encoding by itself, is for the others.
	if !valid(data, false) && !(o.LoneSurrogates && utf8.Valid(data) && valid(data, true)) {
		if !utf8.Valid(data) {
			return nil, badUTF8(data)
		}
		return nil, fault(data, o.LoneSurrogates)
	}
	// Counting is many times as fast as following the nesting, and nearly every
	// message has fewer brackets in all than it may have levels.
	if bytes.Count(data, []byte{'{'})+bytes.Count(data, []byte{'['}) > o.MaxDepth {
		if d := depth(data, o.MaxDepth); d > o.MaxDepth {
			return nil, &Error{Kind: Depth, Offset: depthAt(data, o.MaxDepth)}
		}
	}
	return Value(bytes.Trim(data, " \t\r\n")), nil
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

// depth returns how deep the brackets of a text go, looking no further once they
// are deeper than limit. The text is valid as far as it goes.
func depth(data []byte, limit int) int {
	most := 0
	follow(data, func(d, _ int) bool {
		most = max(most, d)
		return most <= limit
	})
	return most
}

// depthAt returns where the first bracket beyond limit stands.
func depthAt(data []byte, limit int) (at int) {
	follow(data, func(d, i int) bool {
		at = i
		return d <= limit
	})
	return at
}

func follow(data []byte, open func(depth, offset int) bool) {
	d := 0
	for i := 0; i < len(data); i++ {
		switch data[i] {
		case '"':
			i = stringEnd(data, i) - 1
		case '{', '[':
			if d++; !open(d, i) {
				return
			}
		case '}', ']':
			d--
		}
	}
}
