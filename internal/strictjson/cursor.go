// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package strictjson

import (
	"bytes"
	"cmp"
	"hash/maphash"
	"math"
	"strconv"
	"strings"
)

// A Cursor reads a text forward and checks it in the same pass. It refuses the texts that [Check]
// refuses, and objects with more than Options.MaxNames names.
//
//	c.Reset(text, strictjson.Options{})
//	for c.Object(); c.Name(); {
//		switch string(c.Key()) {
//		case "id":
//			id, ok := c.Text()
//	...
//	err := c.Err() // of the whole text
//
// A method that reads a value returns false for a value of another type and leaves it
// in place, so that another method can read it; a value that is not read at all is
// skipped. After a refusal all methods return false. The values are right only if the
// whole text is valid: if Err returns nil.
//
// A Cursor is for one goroutine. Its zero value reads an empty text.
type Cursor struct {
	text  []byte
	i     int
	key   []byte // shares the memory of the text or of s.decoded
	state cursorState

	scanner scanner
	stack   []container
	shallow [8]container // the first part of the stack
	strings *Strings
}

type cursorState uint8

const (
	stateValue  cursorState = iota // a value begins at i
	stateBegin                     // just behind the bracket of an object or array
	stateBehind                    // behind a member or an element
	stateEnd                       // behind the outermost value
	stateFailed
	stateTooLarge
)

// A container is an open object or array.
type container struct {
	names scope
	list  bool
}

// Defaults of the bounds of a Cursor.
const (
	cursorMaxNames = 1000
	cursorMaxName  = 1 << 10
)

// NewCursor returns a cursor at the beginning of data; see [Cursor.Reset].
func NewCursor(data []byte, o Options) *Cursor {
	c := new(Cursor)
	c.Reset(data, o)
	return c
}

// Reset puts the cursor at the beginning of data, which must not change while values
// that share its memory are in use.
func (c *Cursor) Reset(data []byte, o Options) {
	o.MaxNames = cmp.Or(o.MaxNames, cursorMaxNames)
	o.MaxName = cmp.Or(o.MaxName, cursorMaxName)
	c.text, c.key, c.state, c.strings = data, nil, stateValue, nil
	c.scanner.reset(o)
	if c.stack == nil {
		c.stack = c.shallow[:0]
	}
	c.stack = c.stack[:0]
	if o.MaxBytes > 0 && len(data) > o.MaxBytes || len(data) > math.MaxInt32 {
		c.state = stateTooLarge
		c.i = min(cmp.Or(max(o.MaxBytes, 0), math.MaxInt32), math.MaxInt32)
		return
	}
	c.i = space(data, 0)
}

// Share makes [Cursor.Text] take equal strings from s. Reset ends it.
func (c *Cursor) Share(s *Strings) { c.strings = s }

// Err skips the unread part and returns why the cursor refuses the text, or nil. Every
// error is an [*Error]; [Check] returns the same one for the same bounds.
func (c *Cursor) Err() error {
	for c.state < stateEnd {
		switch last := len(c.stack) - 1; {
		case c.state == stateValue:
			if !c.Skip() {
				c.fail()
			}
		case c.stack[last].list:
			c.Element()
		default:
			c.Name()
		}
	}
	switch c.state {
	case stateFailed:
		return c.scanner.refusal(c.text)
	case stateTooLarge:
		return &Error{Kind: TooLarge, Offset: c.i}
	}
	return nil
}

// Offset returns the place of the current value, for [Cursor.Since].
func (c *Cursor) Offset() int { return c.i }

// Since returns the text of the value that began at an offset and was just read.
func (c *Cursor) Since(offset int) Value {
	if c.Failed() {
		return nil
	}
	return Value(bytes.TrimRight(c.text[offset:c.i:c.i], " \t\r\n"))
}

// Failed reports whether the cursor met an error so far. It looks for no reason.
func (c *Cursor) Failed() bool { return c.state >= stateFailed }

func (c *Cursor) fail() bool {
	if c.state < stateFailed {
		c.state = stateFailed
	}
	return false
}

// Kind returns the type of the current value like [Value.Kind]: the first byte, with '0'
// for every number. It is 0 where no value begins.
func (c *Cursor) Kind() byte {
	if c.state != stateValue || c.i >= len(c.text) {
		return 0
	}
	k := c.text[c.i]
	if k == '-' || k-'0' < 10 {
		return '0'
	}
	return k
}

// pass moves behind the value that ends at i.
func (c *Cursor) pass(i int) bool {
	if i < 0 {
		return c.fail()
	}
	c.i = i
	c.state = stateBehind
	if len(c.stack) == 0 {
		if c.i = space(c.text, i); c.i != len(c.text) {
			return c.fail()
		}
		c.state = stateEnd
	}
	return true
}

// enter opens the current object or array.
func (c *Cursor) enter(list bool) bool {
	if len(c.stack) >= c.scanner.limit {
		c.scanner.refuse(Depth, c.i)
		return c.fail()
	}
	c.stack = append(c.stack, container{c.scanner.open(), list})
	c.i++
	c.state = stateBegin
	return true
}

// Object enters the current object. [Cursor.Name] then goes through its members.
func (c *Cursor) Object() bool { return c.Kind() == '{' && c.enter(false) }

// Array enters the current array. [Cursor.Element] then goes through its elements.
func (c *Cursor) Array() bool { return c.Kind() == '[' && c.enter(true) }

// next moves to the next part of the container that was entered last. It returns false
// at the end, and leaves the container.
func (c *Cursor) next(list bool) bool {
	if c.state == stateValue && len(c.stack) > 0 {
		c.Skip()
	}
	last := len(c.stack) - 1
	if last < 0 || c.state != stateBegin && c.state != stateBehind || c.stack[last].list != list {
		return false
	}
	i := c.scanner.skip(c.text, c.i)
	if i >= len(c.text) {
		return c.fail()
	}
	end := byte('}')
	if list {
		end = ']'
	}
	switch {
	case c.text[i] == end:
		c.scanner.close(c.stack[last].names)
		c.stack = c.stack[:last]
		c.pass(i + 1)
		return false
	case c.state == stateBehind && c.text[i] != ',':
		return c.fail()
	case c.state == stateBehind:
		i = c.scanner.skip(c.text, i+1)
	}
	c.i = i
	c.state = stateValue
	return true
}

// Name moves to the next member of the object and reports whether there is one; its name
// is Key. At the end it leaves the object.
func (c *Cursor) Name() bool {
	if !c.next(false) {
		return false
	}
	value, end, plain := c.scanner.member(c.text, c.i, c.stack[len(c.stack)-1].names)
	if value < 0 {
		return c.fail()
	}
	if plain {
		c.key = c.text[c.i+1 : end-1]
	} else {
		n := c.scanner.names(c.scanner.top - 1)
		c.key = c.scanner.nameText(c.text, n[0])
	}
	c.i = value
	return true
}

// Key returns the name of the current member, which is valid until the next call of Name.
func (c *Cursor) Key() []byte { return c.key }

// Element moves to the next element of the array and reports whether there is one. At the
// end it leaves the array.
func (c *Cursor) Element() bool { return c.next(true) }

// Text reads a string, lone surrogates as U+FFFD.
func (c *Cursor) Text() (string, bool) {
	b, ok := c.TextBytes()
	return c.String(b), ok
}

// String returns text as a string, as [Cursor.Text] does.
func (c *Cursor) String(text []byte) string {
	if c.strings != nil {
		return c.strings.get(text)
	}
	return string(text)
}

// TextBytes is like [Cursor.Text] but shares the memory of the text where it can.
func (c *Cursor) TextBytes() ([]byte, bool) {
	if c.Kind() != '"' {
		return nil, false
	}
	start := c.i
	end, plain := c.scanner.text(c.text, start)
	if !c.pass(end) {
		return nil, false
	}
	if plain {
		return c.text[start+1 : end-1 : end-1], true
	}
	return appendText(nil, c.text[start:end]), true
}

// Bool reads a boolean.
func (c *Cursor) Bool() (value, ok bool) {
	switch c.Kind() {
	case 't':
		return true, c.pass(literal(c.text, c.i, "true"))
	case 'f':
		return false, c.pass(literal(c.text, c.i, "false"))
	}
	return false, false
}

// Null reads a null.
func (c *Cursor) Null() bool {
	return c.Kind() == 'n' && c.pass(literal(c.text, c.i, "null"))
}

// Number reads a number. The value shares the memory of the text.
func (c *Cursor) Number() (Value, bool) {
	if c.Kind() != '0' {
		return nil, false
	}
	start := c.i
	end := number(c.text, start)
	if !c.pass(end) {
		return nil, false
	}
	return Value(c.text[start:end:end]), true
}

// Raw reads a value of any type as text that shares the memory of the whole.
func (c *Cursor) Raw() (Value, Shape, bool) {
	if c.Kind() == 0 {
		return nil, Shape{}, false
	}
	s := &c.scanner
	s.spaced, s.escaped, s.wide = false, false, false
	start := c.i
	end := s.value(c.text, start, len(c.stack))
	if !c.pass(end) {
		return nil, Shape{}, false
	}
	return Value(c.text[start:end:end]), Shape{Compact: !s.spaced, Plain: !s.escaped && !s.wide}, true
}

// Skip skips the current value.
func (c *Cursor) Skip() bool {
	return c.state == stateValue && c.pass(c.scanner.value(c.text, c.i, len(c.stack)))
}

// Find returns the member of the current object with that name, and whether there is one.
// It does not move the cursor and does not check the text: the result is right if the text
// proves valid. It is for objects with one member that decides how to read the others.
func (c *Cursor) Find(name string) (Value, bool) {
	if c.Kind() != '{' {
		return nil, false
	}
	at := c.i + 1
	for {
		i := next(c.text[at:])
		if i < 0 || c.text[at+i] != '"' {
			return nil, false
		}
		start := at + i
		end := stringEnd(c.text, start)
		colon := space(c.text, end)
		if colon >= len(c.text) || c.text[colon] != ':' {
			return nil, false
		}
		value := space(c.text, colon+1)
		at = valueEnd(c.text, value)
		if isName(c.text[start:end], name) {
			return Value(c.text[value:at:at]), true
		}
	}
}

func isName(quoted []byte, name string) bool {
	if bytes.IndexByte(quoted, '\\') < 0 {
		return len(quoted) == len(name)+2 && string(quoted[1:len(quoted)-1]) == name
	}
	return string(unquoted(quoted)) == name
}

// Strings remembers recent strings, so that equal strings of later texts need no
// memory. It holds at most 64 strings of at most 256 bytes. It is for one goroutine; its
// zero value is empty.
type Strings struct {
	// Block, if it is not 0, makes strings of at most a quarter of that many bytes parts of
	// blocks of that many bytes instead. Reading then allocates once for many strings, but each
	// of them keeps its block in memory.
	Block int

	block  strings.Builder
	seed   maphash.Seed
	recent [32][2]string // by hash, the last used one first: two strings with one hash are both remembered
}

const maxRecent = 256

func (s *Strings) get(b []byte) string {
	if s.Block > 0 && len(b) <= s.Block/4 {
		if s.block.Cap()-s.block.Len() < len(b) {
			s.block.Reset()
			s.block.Grow(s.Block)
		}
		start := s.block.Len()
		s.block.Write(b)
		return s.block.String()[start:]
	}
	if len(b) == 0 || len(b) > maxRecent {
		return string(b)
	}
	if s.seed == (maphash.Seed{}) {
		s.seed = maphash.MakeSeed()
	}
	pair := &s.recent[maphash.Bytes(s.seed, b)%uint64(len(s.recent))]
	switch {
	case pair[0] == string(b):
	case pair[1] == string(b):
		pair[0], pair[1] = pair[1], pair[0]
	default:
		pair[0], pair[1] = string(b), pair[0]
	}
	return pair[0]
}

// Uint returns an integer from 0 to 2^64-1, in whatever way it is written, and whether v
// is one.
func (v Value) Uint() (uint64, bool) {
	if n, ok := v.Int(); ok {
		return uint64(n), n >= 0
	}
	if v.Kind() != '0' {
		return 0, false
	}
	d, ok := parseDecimal(v)
	if !ok || d.neg || d.exp < 0 || d.exp > 19 {
		return 0, false
	}
	n, err := strconv.ParseUint(d.digits+"0000000000000000000"[:d.exp], 10, 64)
	return n, err == nil
}

// IsIntegral reports whether v is a number without a fraction, in whatever way it is
// written and however large it is.
func (v Value) IsIntegral() bool {
	if v.Kind() != '0' {
		return false
	}
	d, ok := parseDecimal(v)
	if ok {
		return d.exp >= 0
	}
	if e, isKnown := d.exponent(v, false); isKnown {
		return e.Sign() >= 0
	}
	return bytes.IndexByte(v[bytes.IndexAny(v, "eE"):], '-') < 0
}
