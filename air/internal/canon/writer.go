// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package canon makes the canonical form of JSON texts (RFC 8785, with string values in NFC). A [Writer] makes
// the text, a [Reader] finds the parts of an envelope in it.
package canon

import (
	"bytes"
	"slices"
)

// MaxDepth bounds the nesting of containers, including the outermost (AIR-D08).
const MaxDepth = 64

// maxText bounds any text whatever the caller allows, so that offsets fit.
const maxText = 1 << 30

// A Writer makes canonical text: members sorted by the UTF-16 code units of their names, no white space, the
// fewest escapes, string values in NFC, integers unchanged. It reads a text once. A syntax error ends it. Other
// errors are findings, because their order is fixed and a text with a float may prove to be invalid JSON further
// on (section f).
type Writer struct {
	Findings
	Top []Member // of the text, if it is an object

	mem  []Member // members of all open objects
	keys []byte   // texts of the escaped names in the output
	tmp  []byte
	str  []byte
	nfc  []byte

	isVerbatim bool    // keep string values as they are
	reader     *Reader // of an envelope, or nil
}

// Findings are what a [Writer] has found in the last text.
type Findings struct {
	IsObject     bool // the text is an object
	HasDuplicate bool // an object has a name twice, perhaps in two spellings (AIR-D05)
	HasFloat     bool
	IsAmbiguous  bool // code point order and UTF-16 order differ (AIR-D01)
	Nulls        int  // for an envelope, except the top-level signature and in_reply_to
	EmptyArrays  int
}

// A Member is a member of an object in canonical text: the quoted name from NameAt to NameEnd, a colon, and the
// value up to End. The text of an escaped name is keys[ts:te].
type Member struct{ NameAt, NameEnd, End, ts, te int32 }

// Size returns the size of the scratch space.
func (w *Writer) Size() int {
	return cap(w.tmp) + cap(w.str) + cap(w.keys) + 64*cap(w.mem)
}

// Append appends the canonical form of text to dst and reports whether it is valid JSON.
func (w *Writer) Append(dst, text []byte) ([]byte, bool) { return w.append(dst, text, false) }

// AppendVerbatim is like Append, but leaves string values as they are, without NFC.
func (w *Writer) AppendVerbatim(dst, text []byte) ([]byte, bool) { return w.append(dst, text, true) }

func (w *Writer) append(dst, text []byte, isVerbatim bool) ([]byte, bool) {
	w.Findings, w.isVerbatim = Findings{}, isVerbatim
	w.mem, w.keys, w.Top = w.mem[:0], w.keys[:0], w.Top[:0]
	if len(text)+len(dst) > maxText {
		return dst, false
	}
	base := len(dst)
	out, i := w.value(dst, text, 0, 0)
	if i < 0 || Space(text, i) != len(text) {
		return dst, false
	}
	w.IsObject = out[base] == '{'
	if base > 0 {
		for k := range w.Top {
			w.Top[k].shift(base)
		}
	}
	return out, true
}

func (m *Member) shift(base int) {
	m.NameAt -= int32(base)
	m.NameEnd -= int32(base)
	m.End -= int32(base)
}

func (w *Writer) value(out, s []byte, i, depth int) ([]byte, int) {
	i = Space(s, i)
	if i >= len(s) {
		return out, -1
	}
	switch s[i] {
	case '"':
		return w.text(out, s, i, !w.isVerbatim)
	case '{':
		if depth >= MaxDepth {
			return out, -1
		}
		return w.members(out, s, i, depth)
	case '[':
		if depth >= MaxDepth {
			return out, -1
		}
		return w.elements(out, s, i, depth)
	case 't':
		return literal(out, s, i, "true")
	case 'f':
		return literal(out, s, i, "false")
	case 'n':
		w.Nulls++
		return literal(out, s, i, "null")
	}
	return w.number(out, s, i)
}

func literal(out, s []byte, i int, word string) ([]byte, int) {
	if len(s)-i < len(word) || string(s[i:i+len(word)]) != word {
		return out, -1
	}
	return append(out, word...), i + len(word)
}

// number copies a number token. Only the spelling makes it a float (AIR-D02); minus zero is an
// integer and becomes 0 (AIR-D06).
func (w *Writer) number(out, s []byte, i int) ([]byte, int) {
	st := i
	if s[i] == '-' {
		i++
	}
	d := i
	for i < len(s) && s[i]-'0' < 10 {
		i++
	}
	if i == d || s[d] == '0' && i > d+1 {
		return out, -1
	}
	if i >= len(s) || s[i] != '.' && s[i]|0x20 != 'e' {
		if s[d] == '0' {
			return append(out, '0'), i
		}
		return append(out, s[st:i]...), i
	}
	w.HasFloat = true
	if i = fractionEnd(s, i); i < 0 {
		return out, -1
	}
	return append(out, s[st:i]...), i
}

// fractionEnd returns the end of the fraction and the exponent of a number, which begin at s[i], or -1.
func fractionEnd(s []byte, i int) int {
	if s[i] == '.' {
		if i = digitsEnd(s, i+1); i < 0 {
			return -1
		}
	}
	if i >= len(s) || s[i]|0x20 != 'e' {
		return i
	}
	i++
	if i < len(s) && (s[i] == '+' || s[i] == '-') {
		i++
	}
	return digitsEnd(s, i)
}

// digitsEnd returns the end of one or more digits, or -1.
func digitsEnd(s []byte, i int) int {
	first := i
	for i < len(s) && s[i]-'0' < 10 {
		i++
	}
	if i == first {
		return -1
	}
	return i
}

func (w *Writer) elements(out, s []byte, i, depth int) ([]byte, int) {
	out = append(out, '[')
	i = Space(s, i+1)
	if i < len(s) && s[i] == ']' {
		w.EmptyArrays++
		return append(out, ']'), i + 1
	}
	for {
		if out, i = w.value(out, s, i, depth+1); i < 0 {
			return out, -1
		}
		if i = Space(s, i); i >= len(s) || s[i] != ',' && s[i] != ']' {
			return out, -1
		}
		out = append(out, s[i])
		i++
		if s[i-1] == ']' {
			return out, i
		}
	}
}

// An object is an open object of the text.
type object struct {
	base, first, keys       int // lengths at its begin: of the output, of mem and of keys
	isSorted, isHigh, isOdd bool
}

func (w *Writer) members(out, s []byte, i, depth int) ([]byte, int) {
	o := object{base: len(out), first: len(w.mem), keys: len(w.keys), isSorted: true}
	out = append(out, '{')
	i = Space(s, i+1)
	if i < len(s) && s[i] == '}' {
		return append(out, '}'), i + 1
	}
	for {
		if out, i = w.member(out, s, i, depth, &o); i < 0 {
			return out, -1
		}
		if i = Space(s, i); i >= len(s) || s[i] != ',' && s[i] != '}' {
			return out, -1
		}
		out = append(out, s[i])
		i++
		if s[i-1] == '}' {
			return w.end(out, depth, &o), i
		}
	}
}

// member copies one member of an object.
func (w *Writer) member(out, s []byte, i, depth int, o *object) ([]byte, int) {
	if i = Space(s, i); i >= len(s) || s[i] != '"' {
		return out, -1
	}
	m := Member{NameAt: int32(len(out))}
	if out, i = w.memberName(out, s, i, &m, o); i < 0 {
		return out, -1
	}
	name := w.name(out, &m)
	if n := len(w.mem); n > o.first && o.isSorted {
		order := compareUTF16(w.name(out, &w.mem[n-1]), name)
		w.HasDuplicate = w.HasDuplicate || order == 0
		o.isSorted = order <= 0
	}
	if i = Space(s, i); i >= len(s) || s[i] != ':' {
		return out, -1
	}
	out = append(out, ':')
	if depth == 0 && w.reader != nil {
		out, i = w.reader.member(out, s, i+1, string(name))
	} else {
		out, i = w.value(out, s, i+1, depth+1)
	}
	if i >= 0 {
		m.End = int32(len(out))
		w.mem = append(w.mem, m)
	}
	return out, i
}

// memberName copies the name of a member.
func (w *Writer) memberName(out, s []byte, i int, m *Member, o *object) ([]byte, int) {
	e, hasEscape, isWide := StringEnd(s, i+1)
	switch {
	case e < 0:
		return out, -1
	case !hasEscape && !isWide: // the usual case
		out = append(out, s[i:e]...)
		m.NameEnd = int32(len(out))
		return out, e
	}
	if out, i = w.longName(out, s, i, m); i >= 0 {
		high, safe := nameKind(w.name(out, m))
		o.isHigh, o.isOdd = o.isHigh || high, o.isOdd || !safe
	}
	return out, i
}

// end sorts the members of an object.
func (w *Writer) end(out []byte, depth int, o *object) []byte {
	ms := w.mem[o.first:]
	if !o.isSorted {
		out = w.sort(out, o.base, ms)
	}
	if o.isOdd {
		w.sameInNFC(out, ms)
	}
	if o.isHigh {
		w.checkOrder(out, ms)
	}
	w.keep(ms, o.base, depth)
	w.mem = w.mem[:o.first]
	if depth > 0 {
		w.keys = w.keys[:o.keys]
	}
	return out
}

// longName copies a name with escapes or characters beyond ASCII.
func (w *Writer) longName(out, s []byte, i int, m *Member) ([]byte, int) {
	if out, i = w.text(out, s, i, false); i < 0 {
		return out, -1
	}
	m.NameEnd = int32(len(out))
	if name := out[m.NameAt+1 : m.NameEnd-1]; bytes.IndexByte(name, '\\') >= 0 {
		m.ts = int32(len(w.keys))
		w.keys = Unescape(w.keys, name)
		m.te = int32(len(w.keys))
	}
	return out, i
}

// keep stores the members of the object that begins at base, if it is the text or the body of an envelope.
func (w *Writer) keep(ms []Member, base, depth int) {
	if depth == 0 {
		w.Top = append(w.Top[:0], ms...)
	} else if depth == 1 && w.reader != nil && w.reader.inBody {
		w.reader.keepBody(ms, base)
	}
}

func (w *Writer) name(out []byte, m *Member) []byte {
	if m.te > 0 {
		return w.keys[m.ts:m.te]
	}
	return out[m.NameAt+1 : m.NameEnd-1]
}

// sort sorts the members of the object that begins at base.
func (w *Writer) sort(out []byte, base int, ms []Member) []byte {
	if len(ms) <= 12 {
		for a := 1; a < len(ms); a++ {
			for b := a; b > 0; b-- {
				r := compareUTF16(w.name(out, &ms[b-1]), w.name(out, &ms[b]))
				if r == 0 {
					w.HasDuplicate = true
				}
				if r <= 0 {
					break
				}
				ms[b-1], ms[b] = ms[b], ms[b-1]
			}
		}
	} else {
		slices.SortStableFunc(ms, func(a, b Member) int {
			return compareUTF16(w.name(out, &a), w.name(out, &b))
		})
		for k := 1; k < len(ms); k++ {
			if bytes.Equal(w.name(out, &ms[k-1]), w.name(out, &ms[k])) {
				w.HasDuplicate = true
			}
		}
	}
	w.tmp = append(w.tmp[:0], out[base:]...)
	out = out[:base+1]
	for k := range ms {
		m := &ms[k]
		if k > 0 {
			out = append(out, ',')
		}
		st := int32(len(out))
		out = append(out, w.tmp[int(m.NameAt)-base:int(m.End)-base]...)
		m.NameEnd, m.End = m.NameEnd-m.NameAt+st, m.End-m.NameAt+st
		m.NameAt = st
	}
	return append(out, '}')
}

// sameInNFC reports two spellings of one name, of which two readers could pick different members
// (AIR-D05).
func (w *Writer) sameInNFC(out []byte, ms []Member) {
	seen := make(map[string]struct{}, len(ms))
	for k := range ms {
		n := string(appendNFC(nil, w.name(out, &ms[k])))
		if _, twice := seen[n]; twice {
			w.HasDuplicate = true
		}
		seen[n] = struct{}{}
	}
}

// checkOrder records an object whose order by code points differs. If the orders of any two members
// differ, those of two neighbors do.
func (w *Writer) checkOrder(out []byte, ms []Member) {
	for k := 1; k < len(ms); k++ {
		if bytes.Compare(w.name(out, &ms[k-1]), w.name(out, &ms[k])) > 0 {
			w.IsAmbiguous = true
		}
	}
}

// nameKind reports whether a name has a character from U+E000 on, and whether it is certainly NFC.
func nameKind(name []byte) (high, safe bool) {
	for i, b := range name {
		if b >= 0x80 {
			for _, b := range name[i:] {
				high = high || b >= 0xee
			}
			return high, quickNFC(name)
		}
	}
	return false, true
}

// compareUTF16 orders two texts in UTF-8 by their UTF-16 code units. That is the
// order of their bytes, except that U+E000 to U+FFFF come after everything
// beyond U+FFFF, which UTF-16 writes with surrogates. At the first difference
// both bytes begin a character or neither does.
func compareUTF16(a, b []byte) int {
	n := min(len(a), len(b))
	for i := range n {
		x, y := a[i], b[i]
		if x == y {
			continue
		}
		if x >= 0xee && y >= 0xee {
			x, y = rank16(x), rank16(y)
		}
		if x < y {
			return -1
		}
		return 1
	}
	switch {
	case len(a) < len(b):
		return -1
	case len(a) > len(b):
		return 1
	}
	return 0
}

func rank16(lead byte) byte {
	if lead < 0xf0 {
		return lead + 0x10
	}
	return lead
}
