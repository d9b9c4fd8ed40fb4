// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package accp_test

import (
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/fivewire/fivewire/accp"
)

// The simplest codec that still does the whole job: the floor that the benchmarks
// compare with.

var errFloor = errors.New("bad frame")

const (
	floorString byte = iota
	floorInt
	floorDec
	floorBool
	floorNull
	floorRef
	floorArray
	floorMap
)

type floorPair struct {
	Key, Val []byte // Val is the escaped text; it aliases the input
	Kind     byte
}

// floorFrame is a parsed frame that aliases its input; Params and Meta are used
// again.
type floorFrame struct {
	Agent, Intent, Op []byte
	Params, Meta      []floorPair
}

const (
	floorDelim = 1 << iota // : | { } [ ] , \ and everything except VCHAR
	floorIdent             // ALPHA DIGIT _ -
	floorPlain             // in a string as it is
	floorFirst             // may begin another type
)

var floorClass = func() (t [256]byte) {
	for i := range t {
		c := byte(i)
		if c <= ' ' || c >= 0x7f {
			t[i] = floorDelim
		}
		if c == '_' || c == '-' || c == '.' || c-'0' < 10 || c|0x20 >= 'a' && c|0x20 <= 'z' {
			t[i] |= floorIdent
		}
	}
	for _, c := range `:|{}[],\` {
		t[c] |= floorDelim
	}
	for i := range t {
		if t[i]&floorDelim == 0 && strings.IndexByte(`@>$~`, byte(i)) < 0 {
			t[i] |= floorPlain
		}
		if strings.IndexByte(`-0123456789tfn`, byte(i)) >= 0 {
			t[i] |= floorFirst
		}
	}
	return
}()

func floorWord(s []byte, i int) int {
	for i < len(s) && floorClass[s[i]]&floorIdent != 0 {
		i++
	}
	return i
}

// floorParse is the floor of a strict decoder: one pass, typed values, nesting limit, no allocation when f is used again.
func floorParse(s []byte, f *floorFrame) error {
	f.Params, f.Meta = f.Params[:0], f.Meta[:0]
	if len(s) == 0 || s[0] != '@' {
		return errFloor
	}
	i := floorWord(s, 1)
	if i == 1 || i >= len(s) || s[i] != '>' {
		return errFloor
	}
	f.Agent = s[1:i]
	st := i + 1
	if i = floorWord(s, st); i == st || i >= len(s) || s[i] != ':' {
		return errFloor
	}
	f.Intent = s[st:i]
	st = i + 1
	if i = floorWord(s, st); i == st || i >= len(s) || s[i] != '{' {
		return errFloor
	}
	f.Op = s[st:i]
	if i++; i < len(s) && s[i] == '}' {
		i++
	} else if f.Params, i = floorPairs(s, i, '|', '}', f.Params); i < 0 {
		return errFloor
	}
	if i < len(s) && s[i] == '[' {
		if f.Meta, i = floorPairs(s, i+1, ',', ']', f.Meta); i < 0 {
			return errFloor
		}
	}
	if i != len(s) {
		return errFloor
	}
	return nil
}

func floorPairs(s []byte, i int, sep, end byte, kvs []floorPair) ([]floorPair, int) {
	for {
		st := i
		if i = floorWord(s, i); i == st || i >= len(s) || s[i] != ':' {
			return kvs, -1
		}
		kv := floorPair{Key: s[st:i]}
		st = i + 1
		if i, kv.Kind = floorValue(s, st, 0); i < 0 || i >= len(s) {
			return kvs, -1
		}
		kv.Val = s[st:i]
		kvs = append(kvs, kv)
		if s[i] == end {
			return kvs, i + 1
		}
		if s[i] != sep {
			return kvs, -1
		}
		i++
	}
}

func floorValue(s []byte, i, depth int) (int, byte) {
	if i >= len(s) || depth > 5 {
		return -1, 0
	}
	switch s[i] {
	case '[':
		if i++; i < len(s) && s[i] == ']' {
			return i + 1, floorArray
		}
		for {
			if i, _ = floorValue(s, i, depth+1); i < 0 || i >= len(s) {
				return -1, 0
			}
			if s[i] == ']' {
				return i + 1, floorArray
			}
			if s[i] != ',' {
				return -1, 0
			}
			i++
		}
	case '{':
		if i++; i < len(s) && s[i] == '}' {
			return i + 1, floorMap
		}
		for {
			st := i
			if i = floorWord(s, i); i == st || i >= len(s) || s[i] != ':' {
				return -1, 0
			}
			if i, _ = floorValue(s, i+1, depth+1); i < 0 || i >= len(s) {
				return -1, 0
			}
			if s[i] == '}' {
				return i + 1, floorMap
			}
			if s[i] != ',' {
				return -1, 0
			}
			i++
		}
	}
	st, dots, digits := i, 0, 0
	for i < len(s) {
		c := s[i]
		if floorClass[c]&floorDelim == 0 {
			if c == '.' {
				dots++
			} else if c-'0' < 10 {
				digits++
			}
			i++
			continue
		}
		if c != '\\' {
			break
		}
		if i+1 >= len(s) || floorClass[s[i+1]]&floorDelim == 0 || s[i+1] <= ' ' || s[i+1] >= 0x7f {
			return -1, 0
		}
		i += 2
	}
	v := s[st:i]
	if len(v) == 0 {
		return -1, 0
	}
	switch {
	case v[0] == '$':
		return i, floorRef
	case string(v) == "~":
		return i, floorNull
	case string(v) == "true" || string(v) == "false":
		return i, floorBool
	}
	n := len(v)
	if v[0] == '-' {
		n--
	}
	if digits == n && n > 0 {
		return i, floorInt
	}
	if digits == n-1 && dots == 1 && v[len(v)-1] != '.' && digits > 1 {
		return i, floorDec
	}
	return i, floorString
}

// A floorValueIn is a value to be written.
type floorValueIn struct {
	Kind byte
	Text string // of a scalar, unescaped
	List []floorPairIn
}

type floorPairIn struct {
	Key string
	Val floorValueIn
}

// A floorMessage is a message to be written.
type floorMessage struct {
	From, Intent, Op string
	Params, Meta     []floorPairIn
}

// floorAppend is the floor of a strict encoder: it checks names, numbers and UTF-8, orders the keys, and escapes.
func floorAppend(b []byte, m *floorMessage) ([]byte, bool) {
	if !floorName(m.From) || !floorName(m.Intent) || !floorName(m.Op) {
		return b, false
	}
	b = append(append(b, '@'), m.From...)
	b = append(append(b, '>'), m.Intent...)
	b = append(append(b, ':'), m.Op...)
	b, ok := floorWrite(append(b, '{'), m.Params, '|', true)
	b = append(b, '}')
	if ok && len(m.Meta) > 0 {
		b, ok = floorWrite(append(b, '['), m.Meta, ',', false)
		b = append(b, ']')
	}
	return b, ok
}

func floorName(s string) bool { return len(s) <= 64 && len(s) > 0 && floorWordIn(s) == len(s) }

func floorWordIn(s string) int {
	for i := range len(s) {
		if floorClass[s[i]]&floorIdent == 0 {
			return i
		}
	}
	return len(s)
}

// floorWrite writes pairs: sorted, unless they are those of the metadata, which have a fixed order.
func floorWrite(b []byte, list []floorPairIn, sep byte, isOrdered bool) ([]byte, bool) {
	var small [16]int
	order := small[:0]
	for i := range list {
		order = append(order, i)
		for k := len(order) - 1; isOrdered && k > 0; k-- {
			if list[order[k]].Key == list[order[k-1]].Key {
				return b, false
			}
			if list[order[k]].Key > list[order[k-1]].Key {
				break
			}
			order[k], order[k-1] = order[k-1], order[k]
		}
	}
	for n, i := range order {
		if n > 0 {
			b = append(b, sep)
		}
		if !floorName(list[i].Key) {
			return b, false
		}
		b = append(append(b, list[i].Key...), ':')
		var ok bool
		if b, ok = floorPut(b, &list[i].Val, isOrdered); !ok {
			return b, false
		}
	}
	return b, true
}

func floorPut(b []byte, v *floorValueIn, isMarked bool) ([]byte, bool) {
	switch v.Kind {
	case floorArray:
		b = append(b, '[')
		for i := range v.List {
			if i > 0 {
				b = append(b, ',')
			}
			var ok bool
			if b, ok = floorPut(b, &v.List[i].Val, true); !ok {
				return b, false
			}
		}
		return append(b, ']'), true
	case floorMap:
		b, ok := floorWrite(append(b, '{'), v.List, ',', true)
		return append(b, '}'), ok
	case floorRef:
		return append(append(b, '$'), v.Text...), floorName(v.Text)
	case floorNull:
		return append(b, '~'), true
	case floorBool:
		return append(b, v.Text...), v.Text == "true" || v.Text == "false"
	case floorInt, floorDec:
		return append(b, v.Text...), floorKind(v.Text) == v.Kind
	}
	i := 0
	for i < len(v.Text) && floorClass[v.Text[i]]&floorPlain != 0 {
		i++
	}
	if isMarked && i == len(v.Text) && (i == 0 || floorClass[v.Text[0]]&floorFirst != 0 && floorLooks(v.Text)) {
		b = append(b, `\e`...)
	}
	if i == len(v.Text) {
		return append(b, v.Text...), true
	}
	return floorEscape(b, v.Text), utf8.ValidString(v.Text)
}

func floorLooks(s string) bool {
	return floorKind(s) != floorString || s == "true" || s == "false" || s == "null"
}

// floorKind returns the type of a text that is not escaped.
func floorKind(s string) byte {
	i, dots := 0, 0
	if i < len(s) && s[i] == '-' {
		i++
	}
	start := i
	for ; i < len(s); i++ {
		switch {
		case s[i] == '.' && i > start && dots == 0 && i < len(s)-1:
			dots++
		case s[i]-'0' > 9:
			return floorString
		}
	}
	switch {
	case i == start:
		return floorString
	case dots > 0:
		return floorDec
	}
	return floorInt
}

func floorEscape(b []byte, s string) []byte {
	start, space := 0, strings.IndexByte(s, ' ') >= 0
	if space {
		b = append(b, `\_`...)
	}
	for i := range len(s) {
		c := s[i]
		isDelim := floorClass[c]&floorDelim != 0 && c < utf8.RuneSelf || c == '@' || c == '>' || c == '$' || c == '~'
		if !isDelim && !(space && c == '_') {
			continue
		}
		b = append(b, s[start:i]...)
		start = i + 1
		switch {
		case c == ' ':
			b = append(b, '_')
		case c < ' ' || c == 0x7f:
			b = fmt.Appendf(b, `\u{%X}`, c)
		default:
			b = append(b, '\\', c)
		}
	}
	return append(b, s[start:]...)
}

// floorOf returns a message with the keys that a frame has.
func floorOf(m *accp.Message) *floorMessage {
	out := &floorMessage{From: m.From, Intent: string(m.Intent), Op: m.Op, Params: floorList(m.Params)}
	add := func(key, text string) {
		out.Meta = append(out.Meta, floorPairIn{key, floorValueIn{Kind: floorString, Text: text}})
	}
	add("mid", m.Meta.MID)
	add("seq", fmt.Sprint(m.Meta.Seq.N))
	add("ts", fmt.Sprint(m.Meta.TS.N))
	add("cid", m.Meta.CID)
	add("sid", m.Meta.SID)
	return out
}

func floorList(p accp.Params) (list []floorPairIn) {
	for _, x := range p {
		list = append(list, floorPairIn{x.Key, floorOfValue(x.Value)})
	}
	return list
}

func floorOfValue(v accp.Value) floorValueIn {
	text, _ := v.Text()
	switch v.Kind() {
	case accp.KindMap:
		return floorValueIn{Kind: floorMap, List: floorList(v.Entries())}
	case accp.KindArray:
		out := floorValueIn{Kind: floorArray}
		for _, x := range v.Elements() {
			out.List = append(out.List, floorPairIn{Val: floorOfValue(x)})
		}
		return out
	case accp.KindInt:
		number, _ := v.Number()
		return floorValueIn{Kind: floorInt, Text: number}
	case accp.KindDecimal:
		number, _ := v.Number()
		return floorValueIn{Kind: floorDec, Text: number}
	case accp.KindBool:
		isSet, _ := v.Bool()
		return floorValueIn{Kind: floorBool, Text: fmt.Sprint(isSet)}
	case accp.KindRef:
		ref, _ := v.Ref()
		return floorValueIn{Kind: floorRef, Text: ref}
	}
	return floorValueIn{Kind: floorString, Text: text}
}
