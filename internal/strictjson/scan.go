// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package strictjson

import (
	"encoding/binary"
	"hash/maphash"
	"math"
	"math/bits"
	"unicode/utf8"
)

// A Shape describes a checked text, so that a writer can copy the text
// where nothing has to change. False means that it is not known to be so.
type Shape struct {
	Compact bool // there is no white space between its parts
	Plain   bool // its strings hold ASCII only, without escapes
}

// A Span is the place of a member of an object in the text of the object: the
// name with its quotes in [Name, NameEnd), the value in [Value, ValueEnd). It is
// small because many of them are made and thrown away.
type Span struct {
	Name, NameEnd, Value, ValueEnd uint32
	Escaped                        bool // the name has escapes
}

// Survey is [Check] that tells more in the same pass: the shape of the text, and,
// if it is an object and spans is not nil, its members in order, appended to spans.
func Survey(data []byte, o Options, spans []Span) (Value, Shape, []Span, error) {
	if o.MaxBytes > 0 && len(data) > o.MaxBytes {
		return nil, Shape{}, spans, &Error{Kind: TooLarge, Offset: o.MaxBytes}
	}
	var s scanner
	s.reset(o)
	found, start, end := s.all(data, spans)
	if end < 0 {
		return nil, Shape{}, spans, s.refusal(data)
	}
	return Value(data[start:end]), Shape{Compact: !s.spaced, Plain: !s.escaped && !s.wide}, found, nil
}

// Objects with more members than this find equal names by hashing them; in smaller
// ones each name is compared with all before it.
const maxCompared = 32

// A scanner goes over a text once. It accepts the texts that jsontext accepts and no
// others: a fuzz test holds it to that. Its time is linear in the length of the text.
type scanner struct {
	limit    int  // of the depth
	maxNames int  // of one object; 0: no bound
	maxName  int  // bytes of a name as it is written; 0: no bound
	maxTotal int  // of the names of all objects; 0: no bound
	total    int  // names so far
	lone     bool // unpaired surrogates are accepted

	reason Kind // of the refusal, if it is not one of the grammar
	at     int  // where the refused name or bracket begins

	spaced, escaped, wide bool // what was met

	few     [2 * maxCompared]name // of the objects that are open, one behind the other
	many    []name                // all of them while few is too small
	top     int
	decoded []byte // text of the names with escapes

	tables []table // of the open objects with many names
	spare  []uint32
	seed   maphash.Seed
}

// A name is text[start:end], without its quotes, or in scanner.decoded if it
// was written with escapes.
type name struct{ start, end uint32 }

// decodedName marks the start of a name in scanner.decoded. Texts are shorter.
const decodedName = 1 << 31

// A table finds the names of one object by their hash. A slot holds one more than the
// index of the name among those of the object.
type table struct{ slots []uint32 }

// A scope is the state of an object while its members are scanned.
type scope struct{ first, decoded int }

// reset makes s ready for a text. The names of an earlier one stay, but are not read.
func (s *scanner) reset(o Options) {
	s.limit = o.MaxDepth
	if s.limit <= 0 {
		s.limit = defaultDepth
	}
	s.limit = min(s.limit, jsontextDepth)
	s.maxNames, s.maxName, s.lone = max(0, o.MaxNames), max(0, o.MaxName), o.LoneSurrogates
	s.maxTotal, s.total = max(0, o.MaxTotal), 0
	s.reason, s.at, s.top = 0, 0, 0
	s.spaced, s.escaped, s.wide = false, false, false
	s.many, s.decoded, s.tables, s.spare = nil, nil, nil, nil
}

// all returns where the only value of data begins and ends, end -1 if data is not
// valid. If spans is not nil, it gets the members of an object.
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

func (s *scanner) refuse(reason Kind, at int) int {
	if s.reason == 0 {
		s.reason, s.at = reason, at
	}
	return -1
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

// skip skips white space.
func (s *scanner) skip(b []byte, i int) int {
	if i < len(b) && b[i] > ' ' {
		return i
	}
	j := space(b, i)
	s.spaced = s.spaced || j > i
	return j
}

// open begins an object; close ends it. Nothing is closed after a refusal.
func (s *scanner) open() scope { return scope{s.top, len(s.decoded)} }

func (s *scanner) close(l scope) {
	if s.top-l.first > maxCompared {
		last := len(s.tables) - 1
		if used := s.tables[last].slots; len(used) > len(s.spare) {
			s.spare = used
		}
		s.tables = s.tables[:last]
	}
	s.top = l.first
	s.decoded = s.decoded[:l.decoded]
}

// object returns the index just past the object at b[i], or -1. If spans is not
// nil, it gets the members, counted from base.
func (s *scanner) object(b []byte, i, depth int, spans []Span, base int) ([]Span, int) {
	if depth > s.limit {
		return nil, s.refuse(Depth, i)
	}
	l := s.open()
	keep := spans != nil
	if i = s.skip(b, i+1); i < len(b) && b[i] == '}' {
		return spans, i + 1
	}
	for {
		start := i
		value, end, plain := s.member(b, i, l)
		if value < 0 {
			return nil, -1
		}
		if i = s.value(b, value, depth); i < 0 {
			return nil, -1
		}
		if keep {
			spans = append(spans, Span{uint32(start - base), uint32(end - base), uint32(value - base), uint32(i - base), !plain})
		}
		if i = s.skip(b, i); i >= len(b) {
			return nil, -1
		}
		switch b[i] {
		case '}':
			s.close(l)
			return spans, i + 1
		case ',':
			i = s.skip(b, i+1)
		default:
			return nil, -1
		}
	}
}

// member reads the name at b[i] and the colon behind it. It returns where the value
// begins, or -1, where the name ends, and whether the name has no escapes.
func (s *scanner) member(b []byte, i int, l scope) (value, end int, plain bool) {
	if i >= len(b) || b[i] != '"' {
		return -1, -1, false
	}
	end, plain = s.text(b, i)
	if end < 0 || !s.note(b, i, end, plain, l) {
		return -1, -1, false
	}
	colon := s.skip(b, end)
	if colon >= len(b) || b[colon] != ':' {
		return -1, -1, false
	}
	return s.skip(b, colon+1), end, plain
}

// note adds the name with quotes in b[i:end] to those of its object, and reports
// whether it is the first of its kind there.
func (s *scanner) note(b []byte, i, end int, plain bool, l scope) bool {
	s.total++
	if s.maxNames > 0 && s.top-l.first >= s.maxNames || s.maxName > 0 && end-i-2 > s.maxName ||
		s.maxTotal > 0 && s.total > s.maxTotal {
		s.refuse(Count, i)
		return false
	}
	n := name{uint32(i) + 1, uint32(end) - 1}
	if !plain || s.top-l.first >= maxCompared || s.top >= len(s.few) || len(s.decoded) > l.decoded {
		return s.noteSlowly(b, i, n, plain, l)
	}
	size := n.end - n.start
	for _, other := range s.few[l.first:s.top] {
		if other.end-other.start == size && string(b[other.start:other.end]) == string(b[n.start:n.end]) {
			s.refuse(Duplicate, i)
			return false
		}
	}
	s.few[s.top] = n
	s.top++
	return true
}

// noteSlowly is note for names with escapes, and for objects with many names or deep
// inside of others.
func (s *scanner) noteSlowly(b []byte, i int, n name, plain bool, l scope) bool {
	if !plain {
		mark := len(s.decoded)
		s.decoded = appendText(s.decoded, b[n.start-1:n.end+1])
		n = name{uint32(mark) | decodedName, uint32(len(s.decoded))}
	}
	isNew := false
	if s.top-l.first < maxCompared {
		isNew = s.isNew(b, n, l.first)
	} else {
		isNew = s.isNewHashed(b, n, l.first)
	}
	if !isNew {
		s.refuse(Duplicate, i)
		return false
	}
	if s.top < len(s.few) {
		s.few[s.top] = n
	} else {
		if s.top == len(s.few) { // many replaces few from here on
			s.many = append(s.many[:0], s.few[:]...)
		}
		s.many = append(s.many[:s.top], n)
	}
	s.top++
	return true
}

// names returns the names of the open objects from first on.
func (s *scanner) names(first int) []name {
	if s.top > len(s.few) {
		return s.many[first:s.top]
	}
	return s.few[first:s.top]
}

func (s *scanner) nameText(b []byte, n name) []byte {
	if n.start&decodedName != 0 {
		return s.decoded[n.start&^decodedName : n.end]
	}
	return b[n.start:n.end]
}

func (s *scanner) isNew(b []byte, n name, first int) bool {
	text := s.nameText(b, n)
	for _, other := range s.names(first) {
		size := int(other.end) - int(other.start&^decodedName)
		if size == len(text) && string(s.nameText(b, other)) == string(text) {
			return false
		}
	}
	return true
}

// isNewHashed is isNew for an object that has maxCompared names or more.
func (s *scanner) isNewHashed(b []byte, n name, first int) bool {
	names := s.names(first)
	if len(names) == maxCompared {
		s.tables = append(s.tables, table{})
	}
	t := &s.tables[len(s.tables)-1]
	if 2*len(names) >= len(t.slots) {
		s.grow(b, t, names)
	}
	text := s.nameText(b, n)
	slot, found := s.slot(b, t, names, text)
	if found {
		return false
	}
	t.slots[slot] = uint32(len(names)) + 1
	return true
}

// slot returns where a name is or belongs in a table.
func (s *scanner) slot(b []byte, t *table, names []name, text []byte) (slot int, found bool) {
	mask := len(t.slots) - 1
	slot = int(maphash.Bytes(s.seed, text)) & mask
	for t.slots[slot] != 0 {
		if string(s.nameText(b, names[t.slots[slot]-1])) == string(text) {
			return slot, true
		}
		slot = (slot + 1) & mask
	}
	return slot, false
}

func (s *scanner) grow(b []byte, t *table, names []name) {
	if s.seed == (maphash.Seed{}) {
		s.seed = maphash.MakeSeed()
	}
	size := max(8*maxCompared, 2*len(t.slots))
	if len(s.spare) >= size && len(s.spare) <= 16*size { // to clear it costs less than to grow
		t.slots, s.spare = s.spare, nil
		clear(t.slots)
	} else {
		t.slots = make([]uint32, size)
	}
	for i, n := range names {
		slot, _ := s.slot(b, t, names, s.nameText(b, n))
		t.slots[slot] = uint32(i) + 1
	}
}

func (s *scanner) array(b []byte, i, depth int) int {
	if depth > s.limit {
		return s.refuse(Depth, i)
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
// no escapes. It reads eight bytes at a time: of m, whose bits mark quotes,
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
			if i = escape(b, i, s.lone); i < 0 {
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
// it is one of a pair, or -1. Without a second half it is valid only if lone is set.
func escape(b []byte, i int, lone bool) int {
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
	r := hex4(b, i+2)
	if r < 0xd800 || r > 0xdfff {
		if r < 0 {
			return -1
		}
		return i + 6
	}
	if r <= 0xdbff && i+7 < len(b) && b[i+6] == '\\' && b[i+7] == 'u' {
		if low := hex4(b, i+8); low >= 0xdc00 && low <= 0xdfff {
			return i + 12
		}
	}
	if lone {
		return i + 6
	}
	return -1
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
