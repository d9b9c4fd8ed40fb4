// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package arc

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"sync"

	"github.com/fivewire/fivewire/internal/strictjson"
)

// maxDepth is how deep a message may be nested, the envelope included (ARC-D01).
const maxDepth = 128

// checkJSON checks text by ARC-D01. The error is a [*strictjson.Error].
func checkJSON(text []byte) (strictjson.Value, error) {
	return strictjson.Check(text, strictjson.Options{MaxDepth: maxDepth, LoneSurrogates: true})
}

// usualMembers is how many members of an envelope are found without an allocation.
const usualMembers = 12

// surveyJSON is checkJSON that also returns the positions of the members. It refuses more
// members of an object and of all objects than the bounds, if they are not zero.
func surveyJSON(text []byte, maxNames, maxTotal int, spans []strictjson.Span) (strictjson.Value, []strictjson.Span, error) {
	o := strictjson.Options{MaxDepth: maxDepth, LoneSurrogates: true, MaxNames: maxNames, MaxTotal: maxTotal}
	v, _, spans, err := strictjson.Survey(text, o, spans)
	return v, spans, err
}

// memberOf returns the name and the value of a member.
func memberOf(v strictjson.Value, s *strictjson.Span) (name []byte, value strictjson.Value) {
	name, value = v[s.Name+1:s.NameEnd-1], v[s.Value:s.ValueEnd:s.ValueEnd]
	if s.Escaped {
		name, _ = v[s.Name:s.NameEnd].TextBytes()
	}
	return name, value
}

// A reader turns checked JSON into messages. A strict reader, for requests, records
// the first error; a lenient reader, for responses, keeps members of other types as
// [Extra]. Its results share no memory with the input.
//
// It has its own stacks for the values of open objects and for their path, so that
// reading allocates only the message.
type reader struct {
	lenient bool
	fault   *Error
	texts   texts

	vals [maxMembers]strictjson.Value
	used int
	path [maxWay]step
	deep int
}

var readers = sync.Pool{New: func() any { return new(reader) }}

// newReader returns a reader to use once; free gives its memory back.
func newReader(lenient bool) *reader {
	r := readers.Get().(*reader)
	r.lenient = lenient
	return r
}

func (r *reader) free() {
	*r = reader{} // it must not keep the text alive
	readers.Put(r)
}

// texts cuts short strings out of common blocks. A string pins its block, so blocks
// are small and long strings are allocated separately.
type texts struct {
	size int // of a block
	b    strings.Builder
}

const (
	maxBlock  = 1 << 10
	maxInside = 256 // the longest text that shares a block
)

// text is [strictjson.Value.Text].
func (t *texts) text(v strictjson.Value) (string, bool) {
	if len(v) < 2 || v[0] != '"' || len(v) > maxInside || bytes.IndexByte(v, '\\') >= 0 {
		return v.Text()
	}
	in := v[1 : len(v)-1]
	if t.b.Cap()-t.b.Len() < len(in) {
		t.b.Reset() // the block stays allocated while strings of it are in use
		t.b.Grow(max(t.size, len(in)))
	}
	at := t.b.Len()
	t.b.Write(in) // never moves the block, and never changes what is in it
	return t.b.String()[at:], true
}

// shared is text, without memory if it is a string of the caller.
func (t *texts) shared(v strictjson.Value, s string) (string, bool) {
	if n := len(v) - 1; n > 0 && v[0] == '"' && string(v[1:n]) == s && strings.IndexByte(s, '\\') < 0 {
		return s, true
	}
	return t.text(v)
}

// maxMembers is enough for the params of task.notification with their data, the
// message in it and a part of that; maxWay is enough for the way there.
const (
	maxMembers = 48
	maxWay     = 8
)

// A step leads into a member, or, where it has no name, into an element.
type step struct {
	name  string
	index int
}

func (r *reader) enter(name string)  { r.push(step{name: name}) }
func (r *reader) enterElement(i int) { r.push(step{index: i}) }
func (r *reader) pop()               { r.deep-- }
func (r *reader) push(s step)        { r.path[r.deep] = s; r.deep++ }

// where returns the path of the value that is being read, or of its member name.
func (r *reader) where(name string) string {
	var b strings.Builder
	for _, s := range r.path[:r.deep] {
		switch {
		case s.name == "":
			fmt.Fprintf(&b, "[%d]", s.index)
		case b.Len() > 0:
			b.WriteString("." + s.name)
		default:
			b.WriteString(s.name)
		}
	}
	if name != "" {
		if b.Len() > 0 {
			b.WriteByte('.')
		}
		b.WriteString(name)
	}
	if b.Len() == 0 {
		return "params"
	}
	return b.String()
}

// fieldError is an error that names a member of the request (ARC-D06).
func fieldError(code Code, field, issue string) *Error {
	d := append([]byte(nil), `{"field":`...)
	d = strictjson.AppendString(d, field)
	d = append(d, `,"issue":`...)
	d = strictjson.AppendString(d, issue)
	return &Error{Code: code, Message: code.Message(), Details: append(d, '}')}
}

// fail refuses the member name of the object that is being read, or with an empty
// name the value itself.
func (r *reader) fail(name, issue string) { r.failWith(ErrInvalidParams, name, issue) }

func (r *reader) failWith(code Code, name, issue string) {
	if r.fault == nil && !r.lenient {
		r.fault = fieldError(code, r.where(name), issue)
	}
}

// raw copies the text of a value; an absent one is nil.
func raw(v strictjson.Value) json.RawMessage {
	if v.Absent() {
		return nil
	}
	return bytes.Clone(json.RawMessage(v))
}

// A fields is an object taken apart: the values of the members that the
// specification names, in its order, and the others.
type fields struct {
	r     *reader
	names []string
	vals  []strictjson.Value
	extra Extra
}

// object takes v apart. The caller ends with done.
func (r *reader) object(v strictjson.Value, names []string) fields {
	f := fields{r: r, names: names, vals: r.vals[r.used : r.used+len(names)]}
	r.used += len(names)
	clear(f.vals)
	if r.texts.size == 0 {
		r.texts.size = min(2*len(v)/3, maxBlock) // the texts without the names
	}
	if !v.IsObject() {
		r.fail("", "must be an object")
		return f
	}
next:
	for m := v.Members(); m.Next(); {
		for i, name := range names {
			if string(m.Name) == name {
				f.vals[i] = m.Value
				continue next
			}
		}
		f.keep(string(m.Name), m.Value)
	}
	return f
}

// done gives the memory for the values back.
func (f *fields) done() { f.r.used -= len(f.names) }

func (f *fields) keep(name string, v strictjson.Value) {
	if f.extra == nil {
		f.extra = Extra{}
	}
	f.extra[name] = bytes.Clone(json.RawMessage(v))
}

// misfit is called for a member of the wrong type.
func (f *fields) misfit(i int, issue string) {
	if f.r.lenient {
		f.keep(f.names[i], f.vals[i])
		return
	}
	f.r.fail(f.names[i], issue)
}

// require checks presence.
func (f *fields) require(i int) bool {
	if f.vals[i] == nil {
		f.r.fail(f.names[i], "is required")
		return false
	}
	return true
}

// text reads an optional string.
func (f *fields) text(i int) string {
	v := f.vals[i]
	if v.Absent() {
		return ""
	}
	s, ok := f.r.texts.text(v)
	if !ok {
		f.misfit(i, "must be a string")
	} else if s == "" {
		f.keep(f.names[i], v) // the field would not tell it from an absent one
	}
	return s
}

// peerText reads an unchecked string that only some peers send.
func (f *fields) peerText(i int) string {
	v := f.vals[i]
	if v.Absent() {
		return ""
	}
	s, ok := f.r.texts.text(v)
	if !ok || s == "" {
		f.keep(f.names[i], v)
	}
	return s
}

// needText reads a required string, which may be empty.
func (f *fields) needText(i int) string {
	if !f.require(i) {
		return ""
	}
	s, ok := f.r.texts.text(f.vals[i])
	if !ok {
		f.misfit(i, "must be a string")
	}
	return s
}

// id reads a required string of 1 to most bytes without control characters.
func (f *fields) id(i, limit int) string {
	s := f.needText(i)
	f.checkID(i, s, limit)
	return s
}

func (f *fields) checkID(i int, s string, limit int) {
	switch {
	case f.r.lenient:
	case s == "":
		f.r.fail(f.names[i], "must not be empty")
	case len(s) > limit:
		f.r.fail(f.names[i], "is too long")
	case hasControl(s):
		f.r.fail(f.names[i], "must not hold control characters")
	}
}

// hasControl reports whether s contains control characters, which must not get into
// a header, a log line or a line of a stream.
func hasControl(s string) bool {
	for i := range len(s) {
		if s[i] < 0x20 || s[i] == 0x7f {
			return true
		}
	}
	return false
}

// time reads an optional timestamp.
func (f *fields) time(i int) Timestamp {
	ts := Timestamp(f.text(i))
	if ts == "" && f.vals[i].Absent() {
		return ""
	}
	if _, err := ts.Time(); err != nil {
		f.r.fail(f.names[i], "must be an RFC 3339 time")
	}
	return ts
}

// peerTime reads an unchecked timestamp.
func (f *fields) peerTime(i int) Timestamp { return Timestamp(f.peerText(i)) }

// flag reads an optional boolean.
func (f *fields) flag(i int, otherwise bool) bool {
	v := f.vals[i]
	if v.Absent() {
		return otherwise
	}
	b, ok := v.Bool()
	if !ok {
		f.misfit(i, "must be a boolean")
		return otherwise
	}
	return b
}

// any reads an optional object unchanged.
func (f *fields) any(i int) json.RawMessage {
	v := f.vals[i]
	if !v.Absent() && !v.IsObject() {
		f.misfit(i, "must be an object")
		return nil
	}
	return raw(v)
}

// count reads an optional number that is not negative.
func (f *fields) count(i int) json.Number {
	v := f.vals[i]
	switch {
	case v.Absent():
		return ""
	case v.Kind() != '0':
		f.misfit(i, "must be a number")
		return ""
	case v[0] == '-' && !strictjson.EqualNumbers(v, strictjson.Value("0")):
		f.r.fail(f.names[i], "must not be negative")
	}
	return json.Number(v)
}

// peerNumber reads a number that only some peers send.
func (f *fields) peerNumber(i int) json.Number {
	v := f.vals[i]
	if v.Absent() {
		return ""
	}
	if v.Kind() != '0' {
		f.keep(f.names[i], v)
		return ""
	}
	return json.Number(v)
}
