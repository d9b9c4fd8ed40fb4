// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package strictjson

import (
	"bytes"
	"encoding/binary"
	"math"
	"math/bits"
	"unicode/utf8"
)

// A Shape tells what a checked text is like, so that whoever writes it again can
// copy it where nothing has to change. False means that it is not known to be so.
type Shape struct {
	Compact bool // there is no white space between its parts
	Plain   bool // its strings hold ASCII only, without escapes
}

// A Span says where a member of an object stands in the text of the object: the
// name with its quotes in [Name, NameEnd), the value in [Value, ValueEnd). It is
// small because many of them are made and thrown away.
type Span struct {
	Name, NameEnd, Value, ValueEnd uint32
	Escaped                        bool // the name has escapes
}

// Survey is [Check] that tells more in the same pass: the shape of the text, and,
// if it is an object and spans is not nil, its members in order, appended to spans.
// Texts of 4 GiB and more are too large for it.
func Survey(data []byte, o Options, spans []Span) (Value, Shape, []Span, error) {
	if o.MaxBytes <= 0 || len(data) <= o.MaxBytes {
		limit := o.MaxDepth
		if limit <= 0 {
			limit = defaultDepth
		}
		s := scanner{limit: min(limit, jsontextDepth)}
		if found, start, end := s.all(data, spans); end >= 0 {
			return Value(data[start:end]), Shape{Compact: !s.spaced, Plain: !s.escaped && !s.wide}, found, nil
		}
	}
	if len(data) > math.MaxUint32 {
		return nil, Shape{}, spans, &Error{Kind: TooLarge, Offset: math.MaxUint32}
	}
	v, err := Check(data, o)
	if err != nil {
		return nil, Shape{}, spans, err
	}
	if spans != nil {
		spans = v.Spans(spans)
	}
	return v, Shape{}, spans, nil
}

// Spans appends where the members of an object stand to spans. Of any other value
// there are none.
func (v Value) Spans(spans []Span) []Span {
	if !v.IsObject() {
		return spans
	}
	for at := 1; ; {
		i := next(v[at:])
		if i < 0 {
			return spans
		}
		start := at + i
		end := stringEnd(v, start)
		value := space(v, space(v, end)+1) // behind the colon
		at = valueEnd(v, value)
		spans = append(spans, Span{uint32(start), uint32(end), uint32(value), uint32(at), bytes.IndexByte(v[start:end], '\\') >= 0})
	}
}

// surelyValid reports whether data passes [Check] with these bounds. It is several
// times as fast as asking jsontext, and may say no where it would take too long to
// say yes: to objects with many members, and to names with escapes.
func surelyValid(data []byte, limit int) bool {
	s := scanner{limit: limit}
	_, _, end := s.all(data, nil)
	return end >= 0
}

// Objects with more members than this are left to jsontext, which finds equal
// names by hashing them; here each is held against all before it.
const maxCompared = 32

// A scanner goes over a text once. What it accepts, jsontext accepts too: the
// fuzz test holds it to that.
type scanner struct {
	limit int

	spaced, escaped, wide bool // what was met

	names [2 * maxCompared]name // of the objects that are open, one behind the other
	top   int
}

// A name stands in text[start:end], without its quotes.
type name struct{ start, end uint32 }

// all returns where the only value of data begins and ends, end -1 if data is not
// surely valid. If spans is not nil, it gets the members of an object.
func (s *scanner) all(data []byte, spans []Span) (found []Span, start, end int) {
	if len(data) > math.MaxInt32 { // names are noted by short numbers
		return nil, 0, -1
	}
	start = space(data, 0)
	if spans != nil && start < len(data) && data[start] == '{' {
		spans, end = s.object(data, start, 1, spans, start)
	} else {
		end = s.value(data, start, 0)
	}
	if end < 0 || space(data, end) != len(data) {
		return nil, 0, -1
	}
	return spans, start, end
}

// value returns the index just past the value at b[i], or -1.
func (s *scanner) value(b []byte, i, depth int) int {
	if i >= len(b) {
		return -1
	}
	switch b[i] {
	case '"':
		end, _ := s.text(b, i)
		return end
	case '{':
		_, end := s.object(b, i, depth+1, nil, 0)
		return end
	case '[':
		return s.array(b, i, depth+1)
	case 't':
		return literal(b, i, "true")
	case 'f':
		return literal(b, i, "false")
	case 'n':
		return literal(b, i, "null")
	}
	return number(b, i)
}

func literal(b []byte, i int, word string) int {
	if len(b)-i < len(word) || string(b[i:i+len(word)]) != word {
		return -1
	}
	return i + len(word)
}

// skip passes over white space.
func (s *scanner) skip(b []byte, i int) int {
	if i < len(b) && b[i] > ' ' {
		return i
	}
	j := space(b, i)
	s.spaced = s.spaced || j > i
	return j
}

// object returns the index just past the object at b[i], or -1. If spans is not
// nil, it gets the members, counted from base.
func (s *scanner) object(b []byte, i, depth int, spans []Span, base int) ([]Span, int) {
	if depth > s.limit {
		return nil, -1
	}
	first := s.top // the names behind it are this object's; nothing is noted after a fault
	keep := spans != nil
	if i = s.skip(b, i+1); i < len(b) && b[i] == '}' {
		return spans, i + 1
	}
	for {
		if i >= len(b) || b[i] != '"' {
			return nil, -1
		}
		start := i
		end, plain := s.text(b, i)
		if end < 0 || !plain || !s.fresh(b, name{uint32(start) + 1, uint32(end) - 1}, first) {
			return nil, -1
		}
		if i = s.skip(b, end); i >= len(b) || b[i] != ':' {
			return nil, -1
		}
		value := s.skip(b, i+1)
		if i = s.value(b, value, depth); i < 0 {
			return nil, -1
		}
		if keep {
			spans = append(spans, Span{Name: uint32(start - base), NameEnd: uint32(end - base), Value: uint32(value - base), ValueEnd: uint32(i - base)})
		}
		if i = s.skip(b, i); i >= len(b) {
			return nil, -1
		}
		switch b[i] {
		case '}':
			s.top = first
			return spans, i + 1
		case ',':
			i = s.skip(b, i+1)
		default:
			return nil, -1
		}
	}
}

// fresh notes a name of an object whose names begin at first, and reports whether
// it is new there and can be compared at all.
func (s *scanner) fresh(b []byte, n name, first int) bool {
	if s.top-first >= maxCompared || s.top == len(s.names) {
		return false
	}
	size := n.end - n.start
	for _, other := range s.names[first:s.top] {
		if other.end-other.start == size && string(b[other.start:other.end]) == string(b[n.start:n.end]) {
			return false
		}
	}
	s.names[s.top] = n
	s.top++
	return true
}

func (s *scanner) array(b []byte, i, depth int) int {
	if depth > s.limit {
		return -1
	}
	if i = s.skip(b, i+1); i < len(b) && b[i] == ']' {
		return i + 1
	}
	for {
		if i = s.value(b, i, depth); i < 0 {
			return -1
		}
		if i = s.skip(b, i); i >= len(b) {
			return -1
		}
		switch b[i] {
		case ']':
			return i + 1
		case ',':
			i = s.skip(b, i+1)
		default:
			return -1
		}
	}
}

// The lowest and the highest bit of each of eight bytes.
const (
	lows  = 0x0101010101010101
	highs = 0x8080808080808080
)

// text returns the index just past the string at b[i], or -1, and whether it has
// no escapes. It looks at eight bytes at a time: of m, whose bits mark quotes,
// backslashes and control characters, the lowest bit is exact.
func (s *scanner) text(b []byte, i int) (end int, plain bool) {
	start := i
	i++
	wide := uint64(0)
	plain = true
	for {
		for i+8 <= len(b) {
			w := binary.LittleEndian.Uint64(b[i:])
			q, e := w^(lows*'"'), w^(lows*'\\')
			m := ((q-lows)&^q | (e-lows)&^e | (w-lows*' ')&^w) & highs
			if m != 0 {
				n := bits.TrailingZeros64(m) &^ 7 // bits before the byte that is marked
				wide |= w & (1<<n - 1)
				i += n / 8
				break
			}
			wide |= w
			i += 8
		}
		if i >= len(b) {
			return -1, false
		}
		switch c := b[i]; {
		case c == '"':
			if wide&highs != 0 {
				s.wide = true
				if !utf8.Valid(b[start:i]) {
					return -1, false
				}
			}
			return i + 1, plain
		case c == '\\':
			plain, s.escaped = false, true
			if i = escape(b, i); i < 0 {
				return -1, false
			}
		case c < ' ':
			return -1, false
		default:
			wide |= uint64(c)
			i++
		}
	}
}

// escape returns the index just past the escape at b[i], with its second half if
// it is one of a pair, or -1.
func escape(b []byte, i int) int {
	if i+1 >= len(b) {
		return -1
	}
	switch b[i+1] {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		return i + 2
	case 'u':
	default:
		return -1
	}
	switch r := hex4(b, i+2); {
	case r < 0, r >= 0xdc00 && r <= 0xdfff:
		return -1
	case r >= 0xd800 && r <= 0xdbff:
		if i+7 >= len(b) || b[i+6] != '\\' || b[i+7] != 'u' {
			return -1
		}
		if low := hex4(b, i+8); low < 0xdc00 || low > 0xdfff {
			return -1
		}
		return i + 12
	}
	return i + 6
}

func hex4(b []byte, i int) (r int) {
	if i+4 > len(b) {
		return -1
	}
	for _, c := range b[i : i+4] {
		switch {
		case c-'0' < 10:
			r = r<<4 | int(c-'0')
		case c|0x20 >= 'a' && c|0x20 <= 'f':
			r = r<<4 | int(c|0x20-'a'+10)
		default:
			return -1
		}
	}
	return r
}

// number returns the index just past the number at b[i], or -1.
func number(b []byte, i int) int {
	if i < len(b) && b[i] == '-' {
		i++
	}
	start := i
	if i = digits(b, i); i == start || b[start] == '0' && i > start+1 {
		return -1
	}
	if i < len(b) && b[i] == '.' {
		start = i + 1
		if i = digits(b, start); i == start {
			return -1
		}
	}
	if i < len(b) && b[i]|0x20 == 'e' {
		if i++; i < len(b) && (b[i] == '+' || b[i] == '-') {
			i++
		}
		start = i
		if i = digits(b, start); i == start {
			return -1
		}
	}
	return i
}

func digits(b []byte, i int) int {
	for i < len(b) && b[i]-'0' < 10 {
		i++
	}
	return i
}
