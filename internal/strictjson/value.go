// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package strictjson

import (
	"bytes"
	stdjson "encoding/json"
	"strconv"
)

// A Value is the text of one JSON value that went through [Check], with no white
// space around it. Only values that Check returned, and values inside them, may
// be read with the methods below. A nil Value stands for an absent one.
type Value []byte

// Kind returns the first byte of the text, with '0' for every number, 't' and
// 'f' for the booleans, 'n' for null, and 0 for an absent value.
func (v Value) Kind() byte {
	if len(v) == 0 {
		return 0
	}
	if c := v[0]; c == '-' || c-'0' < 10 {
		return '0'
	}
	return v[0]
}

// Absent reports whether v is missing or null, which are the same thing for
// optional members.
func (v Value) Absent() bool { return len(v) == 0 || v[0] == 'n' }

// IsObject reports whether v is an object.
func (v Value) IsObject() bool { return len(v) > 0 && v[0] == '{' }

// IsArray reports whether v is an array.
func (v Value) IsArray() bool { return len(v) > 0 && v[0] == '[' }

// Text returns the text of a string, lone surrogates as U+FFFD, and whether v is
// a string.
func (v Value) Text() (string, bool) {
	if len(v) < 2 || v[0] != '"' {
		return "", false
	}
	in := v[1 : len(v)-1]
	if bytes.IndexByte(in, '\\') < 0 {
		return string(in), true
	}
	return string(appendText(nil, v)), true
}

// TextBytes is like [Value.Text] but shares the memory of v where it can.
func (v Value) TextBytes() ([]byte, bool) {
	if len(v) < 2 || v[0] != '"' {
		return nil, false
	}
	return unquoted(v), true
}

func unquoted(quoted []byte) []byte {
	in := quoted[1 : len(quoted)-1]
	if bytes.IndexByte(in, '\\') < 0 {
		return in[:len(in):len(in)]
	}
	return appendText(nil, quoted)
}

// AppendText appends the text of a string, lone surrogates as U+FFFD. Of any other
// value it appends nothing.
func (v Value) AppendText(dst []byte) []byte {
	if len(v) < 2 || v[0] != '"' {
		return dst
	}
	if in := v[1 : len(v)-1]; bytes.IndexByte(in, '\\') < 0 {
		return append(dst, in...)
	}
	return appendText(dst, v)
}

// Bool returns a boolean and whether v is one.
func (v Value) Bool() (value, ok bool) {
	k := v.Kind()
	return k == 't', k == 't' || k == 'f'
}

// Int returns an integer that fits into 64 bits, in whatever way it is written
// (7, 7.0, 70e-1), and whether v is one.
func (v Value) Int() (int64, bool) {
	if v.Kind() != '0' {
		return 0, false
	}
	if n, err := strconv.ParseInt(string(v), 10, 64); err == nil {
		return n, true // also -0
	}
	d, ok := parseDecimal(v)
	switch {
	case !ok || d.exp < 0 || d.exp > 18:
		return 0, false
	case d.digits == "":
		return 0, true
	}
	text := d.digits + "0000000000000000000"[:d.exp]
	if d.neg {
		text = "-" + text
	}
	n, err := strconv.ParseInt(text, 10, 64)
	return n, err == nil
}

// Any returns v as the types of encoding/json: nil, bool, string, []any,
// map[string]any, and [stdjson.Number] for numbers, so that they stay exact. It goes
// over the text once, however deep that is.
func (v Value) Any() any {
	if len(v) == 0 {
		return nil
	}
	a, _ := anyAt(v, 0)
	return a
}

// anyAt returns the value that begins at s[i], and where it ends.
func anyAt(s Value, i int) (any, int) {
	switch {
	case i >= len(s):
		return nil, i
	case s[i] == '{':
		o := map[string]any{}
		for i = space(s, i+1); i < len(s) && !closing(s[i]); i = following(s, i) {
			end := stringEnd(s, i)
			name := string(unquoted(s[i:end]))
			o[name], i = anyAt(s, space(s, space(s, end)+1)) // behind the colon
		}
		return o, min(i+1, len(s))
	case s[i] == '[':
		a := []any{}
		for i = space(s, i+1); i < len(s) && !closing(s[i]); i = following(s, i) {
			var e any
			e, i = anyAt(s, i)
			a = append(a, e)
		}
		return a, min(i+1, len(s))
	}
	end := valueEnd(s, i)
	v := s[i:end]
	switch v.Kind() {
	case '"':
		text, _ := v.Text()
		return text, end
	case '0':
		return stdjson.Number(v), end
	case 't', 'f':
		b, _ := v.Bool()
		return b, end
	}
	return nil, end
}

// AppendCompact appends the text of v without its white space and changes
// nothing else. The result has no line breaks.
func AppendCompact(dst []byte, v Value) []byte {
	from := 0
	for i := 0; i < len(v); {
		switch v[i] {
		case '"':
			i = stringEnd(v, i)
		case ' ', '\t', '\r', '\n':
			dst = append(dst, v[from:i]...)
			i = space(v, i)
			from = i
		default:
			i++
		}
	}
	return append(dst, v[from:]...)
}

func closing(c byte) bool { return c == '}' || c == ']' }

// following returns where the next part begins if one ends at s[i], or where
// their container ends.
func following(s []byte, i int) int {
	if i = space(s, i); i < len(s) && s[i] == ',' {
		i = space(s, i+1)
	}
	return i
}

// Get returns the member of an object with that name, or nil.
func (v Value) Get(name string) Value {
	for m := v.Members(); m.Next(); {
		if string(m.Name) == name {
			return m.Value
		}
	}
	return nil
}

// Members walks over the members of an object in the order of the text. Of any
// other value there are none.
func (v Value) Members() Members {
	if !v.IsObject() {
		return Members{}
	}
	return Members{rest: v[1:]}
}

// Members is a walk over an object; see [Value.Members].
type Members struct {
	Name  []byte // the decoded name; shares the memory of the object where it can
	Key   Value  // the name as it is written, with its quotes
	Value Value

	rest []byte
}

// Next goes to the next member and reports whether there is one.
func (m *Members) Next() bool {
	i := next(m.rest)
	if i < 0 {
		m.rest = nil
		return false
	}
	s := m.rest
	e := stringEnd(s, i)
	m.Key = Value(s[i:e:e])
	m.Name = unquoted(m.Key)
	i = space(s, e) + 1 // the colon
	i = space(s, i)
	e = valueEnd(s, i)
	m.Value = Value(s[i:e:e])
	m.rest = s[e:]
	return true
}

// Elements walks over the elements of an array. Of any other value there are
// none.
func (v Value) Elements() Elements {
	if !v.IsArray() {
		return Elements{}
	}
	return Elements{rest: v[1:]}
}

// Elements is a walk over an array; see [Value.Elements].
type Elements struct {
	Value Value

	rest []byte
}

// Next goes to the next element and reports whether there is one.
func (a *Elements) Next() bool {
	i := next(a.rest)
	if i < 0 {
		a.rest = nil
		return false
	}
	e := valueEnd(a.rest, i)
	a.Value = Value(a.rest[i:e:e])
	a.rest = a.rest[e:]
	return true
}

// next returns where the next name or element begins, or -1 at the end.
func next(s []byte) int {
	i := space(s, 0)
	if i < len(s) && s[i] == ',' {
		i = space(s, i+1)
	}
	if i >= len(s) || closing(s[i]) {
		return -1
	}
	return i
}

func space(s []byte, i int) int {
	for i < len(s) && (s[i] == ' ' || s[i] == '\n' || s[i] == '\t' || s[i] == '\r') {
		i++
	}
	return i
}

// stringEnd returns where the string that begins at s[i] ends: at the first quote
// with an even number of backslashes before it.
func stringEnd(s []byte, i int) int {
	for from := i + 1; ; {
		n := bytes.IndexByte(s[from:], '"')
		if n < 0 {
			return len(s)
		}
		end := from + n
		slashes := 0
		for s[end-1-slashes] == '\\' { // ends at the opening quote at the latest
			slashes++
		}
		if from = end + 1; slashes%2 == 0 {
			return from
		}
	}
}

// valueEnd returns where the value that begins at s[i] ends.
func valueEnd(s []byte, i int) int {
	if i >= len(s) {
		return len(s)
	}
	switch s[i] {
	case '"':
		return stringEnd(s, i)
	case '{', '[':
		return containerEnd(s, i)
	}
	for i < len(s) {
		switch s[i] {
		case ',', '}', ']', ' ', '\t', '\r', '\n':
			return i
		}
		i++
	}
	return i
}

// containerEnd returns where the object or array that begins at s[i] ends.
func containerEnd(s []byte, i int) int {
	for d := 0; i < len(s); i++ {
		switch s[i] {
		case '"':
			i = stringEnd(s, i) - 1
		case '{', '[':
			d++
		case '}', ']':
			if d--; d == 0 {
				return i + 1
			}
		}
	}
	return len(s)
}
