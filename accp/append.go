// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package accp

import (
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Format writes m as one frame in canonical form, with the keys as given: params
// and the keys of maps ascending, metadata in the order of the envelope (D12).
// Every error is an [*Error].
func (c *Codec) Format(m *Message) ([]byte, error) { return c.AppendFrame(nil, m) }

// AppendFrame is like [Codec.Format] and appends to dst.
func (c *Codec) AppendFrame(dst []byte, m *Message) ([]byte, error) {
	out, _, err := c.appendFrame(dst, m, nil)
	if err != nil {
		return dst, err
	}
	return out, nil
}

// AppendValue appends the canonical text of v, as it stands in a payload.
func (c *Codec) AppendValue(dst []byte, v Value) ([]byte, error) {
	e := encoder{c: c, dst: dst, limits: c.Limits.withDefaults()}
	e.value(&v, 0)
	if err := e.result(0); err != nil {
		return dst, err
	}
	return e.dst, nil
}

// An encoder appends to dst. Like in the parser, faults of the grammar go before
// an unknown intent and that before a wrong type.
type encoder struct {
	c      *Codec
	dst    []byte
	limits Limits
	values int
	bad    *Error // ErrParse
	intent bool
	typ    *Error // ErrInvalidType
}

func (e *encoder) fault(what string) {
	if e.bad == nil {
		e.bad = &Error{Code: ErrParse, Message: what}
	}
}

func (e *encoder) wrongType(what string) {
	if e.typ == nil {
		e.typ = &Error{Code: ErrInvalidType, Message: what}
	}
}

func (e *encoder) result(start int) error {
	switch {
	case e.bad != nil:
		return e.bad
	case e.intent:
		return &Error{Code: ErrInvalidIntent, Message: "unknown intent"}
	case e.typ != nil:
		return e.typ
	case len(e.dst)-start > e.limits.Frame:
		return &Error{Code: ErrParse, Message: "frame too long"}
	}
	return nil
}

// cut says where the parts of a written frame begin.
type cut struct{ start, body, meta, end int }

// appendFrame writes a frame. Keys, if given, are those to write the params
// under; a param whose key is empty is left out.
func (c *Codec) appendFrame(dst []byte, m *Message, keys []string) ([]byte, cut, error) {
	e := encoder{c: c, dst: dst, limits: c.Limits.withDefaults()}
	at := cut{start: len(dst)}
	e.dst = append(e.dst, '@')
	e.name(m.From, "agent-id")
	e.dst = append(e.dst, '>')
	if !m.Intent.Valid() {
		if !alpha(string(m.Intent)) {
			e.fault("malformed intent")
		}
		e.intent = true
	}
	e.dst = append(e.dst, m.Intent...)
	at.body = len(e.dst)
	e.dst = append(e.dst, ':')
	e.name(m.Op, "operation")
	e.dst = append(e.dst, '{')
	e.params(m.Params, keys, '|', 0, e.limits.Params)
	e.dst = append(e.dst, '}')
	at.meta = len(e.dst)
	if !m.Meta.empty() {
		e.meta(m.Meta)
	}
	at.end = len(e.dst)
	if err := e.result(at.start); err != nil {
		return dst, at, err
	}
	return e.dst, at, nil
}

func alpha(s string) bool {
	if s == "" || len(s) > maxName {
		return false
	}
	for i := 0; i < len(s); i++ {
		if class[s[i]]&cAlpha == 0 {
			return false
		}
	}
	return true
}

func (e *encoder) name(s, what string) {
	if !validName(s) {
		e.fault("invalid " + what)
	}
	e.dst = append(e.dst, s...)
}

// params writes key:value pairs in ascending order of the keys.
func (e *encoder) params(list Params, keys []string, sep byte, depth, limit int) {
	if len(list) > limit {
		e.fault("too many pairs")
		return
	}
	var buf [24]int32
	order := buf[:0]
	if len(list) > len(buf) {
		order = make([]int32, 0, len(list))
	}
	key := func(i int32) string {
		if keys != nil {
			return keys[i]
		}
		return list[i].Key
	}
	sorted := true
	for i := range list {
		k := key(int32(i))
		if k == "" && keys != nil {
			continue
		}
		if n := len(order); n > 0 && sorted {
			sorted = key(order[n-1]) < k
		}
		order = append(order, int32(i))
	}
	if !sorted {
		if len(order) <= 12 { // few: without allocating
			for i := 1; i < len(order); i++ {
				for j := i; j > 0 && key(order[j]) < key(order[j-1]); j-- {
					order[j], order[j-1] = order[j-1], order[j]
				}
			}
		} else {
			slices.SortFunc(order, func(a, b int32) int {
				switch x, y := key(a), key(b); {
				case x < y:
					return -1
				case x > y:
					return 1
				}
				return 0
			})
		}
	}
	for n, i := range order {
		k := key(i)
		if n > 0 {
			e.dst = append(e.dst, sep)
			if key(order[n-1]) == k {
				e.fault("key given twice")
			}
		}
		e.name(k, "key")
		e.dst = append(e.dst, ':')
		e.value(&list[i].Value, depth)
	}
}

func (e *encoder) value(v *Value, depth int) {
	if e.values++; e.values > e.limits.Values {
		e.fault("too many values")
		return
	}
	if depth > e.limits.Depth {
		e.fault("nested too deep")
		return
	}
	switch v.kind {
	case KindNull:
		e.dst = append(e.dst, '~')
	case KindBool:
		e.dst = append(e.dst, v.text...)
	case KindInt:
		e.number(v.text)
	case KindDecimal:
		e.decimal(v.text)
	case KindString:
		e.text(v.text, true)
	case KindRef:
		if !validRef(v.text) {
			e.wrongType("malformed reference")
		}
		e.dst = append(e.dst, '$')
		e.dst = append(e.dst, v.text...)
	case KindArray:
		e.dst = append(e.dst, '[')
		for i := range v.list {
			if i > 0 {
				e.dst = append(e.dst, ',')
			}
			e.value(&v.list[i].Value, depth+1)
			if e.bad != nil {
				break
			}
		}
		e.dst = append(e.dst, ']')
	case KindMap:
		e.dst = append(e.dst, '{')
		e.params(v.list, nil, ',', depth+1, e.limits.Values)
		e.dst = append(e.dst, '}')
	}
}

func (e *encoder) number(s string) {
	if len(s) > e.limits.Number {
		e.fault("number too long")
	}
	e.dst = append(e.dst, s...)
}

func (e *encoder) decimal(s string) {
	if e.c.anyPlaces {
		e.number(s)
		return
	}
	if len(s)-strings.IndexByte(s, '.')-1 <= decimalPlaces { // no rounding
		e.number(s)
		return
	}
	text, lost := roundDecimal(s)
	if lost && e.c.ExactDecimals {
		e.wrongType("more than six decimal places")
	}
	e.number(text)
}

// text writes a string. With mark set it stays one even if it looks like another
// type; the strings of the envelope need no mark (D20).
func (e *encoder) text(s string, mark bool) {
	i := 0
	for i < len(s) && class[s[i]]&cPlain != 0 {
		i++
	}
	if i == len(s) && s != "" {
		if mark && !e.c.Portable {
			if c := s[0]; (c <= '9' || c == 't' || c == 'f' || c == 'n') && looksTyped(s) {
				e.dst = append(e.dst, `\e`...)
			}
		}
		e.dst = append(e.dst, s...)
		return
	}
	if e.c.Portable {
		e.portable(s)
		return
	}
	if s == "" {
		e.dst = append(e.dst, `\e`...)
		return
	}
	space := strings.IndexByte(s[i:], ' ') >= 0
	if space {
		e.dst = append(e.dst, `\_`...)
	}
	if !space {
		e.dst = append(e.dst, s[:i]...)
	} else {
		i = 0 // in front of it there may be underscores
	}
	for i < len(s) {
		c := s[i]
		if c >= utf8.RuneSelf {
			r, n := utf8.DecodeRuneInString(s[i:])
			switch {
			case r == utf8.RuneError && n == 1:
				e.wrongType("string is not UTF-8")
			case hidden(r):
				e.escape(r)
			default:
				e.dst = append(e.dst, s[i:i+n]...)
			}
			i += n
			continue
		}
		i++
		switch {
		case c == '_' && space:
			e.dst = append(e.dst, '\\', '_')
		case class[c]&cPlain != 0:
			e.dst = append(e.dst, c)
		case class[c]&cDelim != 0:
			e.dst = append(e.dst, '\\', c)
		case c == ' ':
			e.dst = append(e.dst, '_')
		case c == '\n':
			e.dst = append(e.dst, '\\', 'n')
		case c == '\r':
			e.dst = append(e.dst, '\\', 'r')
		case c == '\t':
			e.dst = append(e.dst, '\\', 't')
		default:
			e.escape(rune(c))
		}
	}
}

func (e *encoder) escape(r rune) {
	e.dst = append(e.dst, `\u{`...)
	start := len(e.dst)
	e.dst = strconv.AppendUint(e.dst, uint64(r), 16)
	for i := start; i < len(e.dst); i++ {
		if e.dst[i] >= 'a' {
			e.dst[i] -= 'a' - 'A'
		}
	}
	e.dst = append(e.dst, '}')
}

// portable writes a string for peers that know delimiters' escapes only (D03).
func (e *encoder) portable(s string) {
	if s == "" {
		e.wrongType("the empty string has no portable form")
	}
	for i := 0; i < len(s); i++ {
		switch c := s[i]; {
		case c == ' ':
			e.dst = append(e.dst, '_')
		case class[c]&cPlain != 0:
			e.dst = append(e.dst, c)
		case class[c]&cDelim != 0:
			e.dst = append(e.dst, '\\', c)
		default:
			e.wrongType("character without portable form")
		}
	}
}

// meta writes the metadata block.
func (e *encoder) meta(m *Meta) {
	open := byte('[')
	count := len(m.Ext)
	next := func(name string) {
		e.dst = append(e.dst, open)
		open = ','
		e.dst = append(e.dst, name...)
		e.dst = append(e.dst, ':')
		count++
		e.values++
	}
	str := func(name, s string) {
		if s != "" {
			next(name)
			e.text(s, false)
		}
	}
	num := func(name string, n Number) {
		if n.Set {
			next(name)
			if n.N < 0 {
				e.wrongType("negative number in the metadata")
			}
			e.dst = strconv.AppendInt(e.dst, n.N, 10)
		}
	}
	mid := m.MID
	if isHex12(mid) && hasUpper(mid) {
		b := []byte(mid)
		for i := range b {
			if b[i] >= 'A' && b[i] <= 'F' {
				b[i] |= 0x20
			}
		}
		mid = string(b) // D21
	}
	str("mid", mid)
	num("seq", m.Seq)
	num("ts", m.TS)
	str("cid", m.CID)
	str("aid", m.AID)
	str("sid", m.SID)
	num("ttl", m.TTL)
	if len(m.Ext) > 0 {
		for i := range m.Ext {
			if metaField([]byte(m.Ext[i].Key), false) != 0 {
				e.fault("metadata field given twice")
			}
		}
		e.dst = append(e.dst, open)
		e.params(m.Ext, nil, ',', 0, e.limits.Meta)
	}
	if count > e.limits.Meta {
		e.fault("too many metadata fields")
	}
	e.dst = append(e.dst, ']')
}

func hasUpper(s string) bool {
	for i := 0; i < len(s); i++ {
		if s[i] >= 'A' && s[i] <= 'F' {
			return true
		}
	}
	return false
}
