// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package accp

import (
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// AppendRaw appends m as one frame to dst, in canonical form with the keys as given: params and map keys
// ascend, metadata follows the order of the envelope (ACCP-D12). Every error is an [*Error].
func (c *Codec) AppendRaw(dst []byte, m *Message) ([]byte, error) {
	if m == nil {
		return dst, errNoMessage()
	}
	out, _, err := c.appendFrame(dst, m, nil)
	if err != nil {
		return dst, err
	}
	return out, nil
}

// AppendValue appends the canonical text of v as a payload contains it.
func (c *Codec) AppendValue(dst []byte, v Value) ([]byte, error) {
	e := encoder{c: c, limits: c.FrameLimits.withDefaults()}
	out := e.value(dst, &v, 0)
	if err := e.result(len(out)); err != nil {
		return dst, err
	}
	return out, nil
}

// An encoder appends to the given slices. As in the parser, an error of the grammar precedes an
// unknown intent, and that precedes a wrong type.
type encoder struct {
	c      *Codec
	limits FrameLimits
	values int
	bad    *Error // ErrParse
	intent *Error // ErrInvalidIntent
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

// result returns the first error, or the error for a text of this size.
func (e *encoder) result(size int) error {
	switch {
	case e.bad != nil:
		return e.bad
	case e.intent != nil:
		return e.intent
	case e.typ != nil:
		return e.typ
	case size > e.limits.MaxFrame:
		return &Error{Code: ErrParse, Message: "frame too long"}
	}
	return nil
}

// A cut has the offsets of the parts of a written frame, and the number of its values.
type cut struct{ start, body, meta, end, values int }

// appendFrame appends a frame. If keys is not nil, it has the key to write for each param; a param
// with an empty key is omitted.
func (c *Codec) appendFrame(dst []byte, m *Message, keys []string) ([]byte, cut, error) {
	e := encoder{c: c, limits: c.FrameLimits.withDefaults()}
	at := cut{start: len(dst)}
	out := e.name(append(dst, '@'), m.From, "agent-id")
	if !m.Intent.valid() {
		if !alpha(string(m.Intent)) {
			e.fault("malformed intent " + quoted(m.Intent))
		}
		e.intent = &Error{Code: ErrInvalidIntent, Message: "unknown intent " + quoted(m.Intent)}
	}
	out = append(append(out, '>'), m.Intent...)
	at.body = len(out)
	out = e.name(append(out, ':'), m.Op, "operation")
	out = e.params(append(out, '{'), m.Params, keys, '|', 0, e.limits.MaxParams)
	out = append(out, '}')
	at.meta = len(out)
	if !m.Meta.empty() {
		out = e.meta(out, m.Meta)
	}
	at.end, at.values = len(out), e.values
	if err := e.result(at.end - at.start); err != nil {
		return dst, at, err
	}
	return out, at, nil
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

func (e *encoder) name(dst []byte, s, what string) []byte {
	switch {
	case s == "":
		e.fault("no " + what)
	case !validName(s):
		e.fault("invalid " + what + " " + quoted(s))
	}
	return append(dst, s...)
}

// params writes key:value pairs in ascending order of the keys.
func (e *encoder) params(dst []byte, list Params, keys []string, sep byte, depth, limit int) []byte {
	if len(list) > limit {
		e.fault("too many pairs")
		return dst
	}
	if !ascending(list, keys) {
		return e.unsorted(dst, list, keys, sep, depth)
	}
	first := true
	for i := range list {
		k := list[i].Key
		if keys != nil {
			if k = keys[i]; k == "" {
				continue
			}
		}
		if !first {
			dst = append(dst, sep)
		}
		first = false
		dst = e.name(dst, k, "key")
		dst = e.value(append(dst, ':'), &list[i].Value, depth)
	}
	return dst
}

// ascending reports whether the written keys ascend strictly.
func ascending(list Params, keys []string) bool {
	last := ""
	for i := range list {
		k := list[i].Key
		if keys != nil {
			if k = keys[i]; k == "" {
				continue
			}
		}
		if k <= last && i > 0 {
			return false
		}
		last = k
	}
	return true
}

// unsorted is params for a list in any order.
func (e *encoder) unsorted(dst []byte, list Params, keys []string, sep byte, depth int) []byte {
	var buf [24]int32
	key := func(i int32) string {
		if keys != nil {
			return keys[i]
		}
		return list[i].Key
	}
	last, isFirst := "", true
	for _, i := range ascendingOrder(buf[:0], len(list), key) {
		k := key(i)
		if keys != nil && k == "" {
			continue
		}
		if !isFirst {
			dst = append(dst, sep)
			if last == k {
				e.fault("key " + quoted(k) + " given twice")
			}
		}
		last, isFirst = k, false
		dst = e.name(dst, k, "key")
		dst = e.value(append(dst, ':'), &list[i].Value, depth)
	}
	return dst
}

// ascendingOrder appends the numbers below n to buf in the order of their keys.
func ascendingOrder(buf []int32, n int, key func(i int32) string) []int32 {
	start := len(buf)
	for i := range n {
		buf = append(buf, int32(i))
	}
	order := buf[start:]
	if n > 12 { // fewer without allocating
		slices.SortFunc(order, func(a, b int32) int { return strings.Compare(key(a), key(b)) })
		return buf
	}
	for i := 1; i < n; i++ {
		for j := i; j > 0 && key(order[j]) < key(order[j-1]); j-- {
			order[j], order[j-1] = order[j-1], order[j]
		}
	}
	return buf
}

func (e *encoder) value(dst []byte, v *Value, depth int) []byte {
	if e.values++; e.values > e.limits.MaxValues {
		e.fault("too many values")
		return dst
	}
	if depth > e.limits.MaxDepth {
		e.fault("nested too deep")
		return dst
	}
	switch v.kind {
	case KindNull:
		dst = append(dst, '~')
	case KindBool:
		dst = append(dst, v.text...)
	case KindInt:
		dst = e.number(dst, v.text)
	case KindDecimal:
		dst = e.decimal(dst, v.text)
	case KindString:
		dst = e.text(dst, v.text, true)
	case KindRef:
		if !validRef(v.text) {
			e.wrongType("malformed reference " + quoted("$"+v.text))
		}
		dst = append(append(dst, '$'), v.text...)
	case KindArray:
		dst = append(dst, '[')
		for i := range v.list {
			if i > 0 {
				dst = append(dst, ',')
			}
			dst = e.value(dst, &v.list[i].Value, depth+1)
			if e.bad != nil {
				break
			}
		}
		dst = append(dst, ']')
	case KindMap:
		dst = e.params(append(dst, '{'), v.list, nil, ',', depth+1, e.limits.MaxValues)
		dst = append(dst, '}')
	}
	return dst
}

func (e *encoder) number(dst []byte, s string) []byte {
	if len(s) > e.limits.MaxNumber {
		e.fault("number too long")
	}
	return append(dst, s...)
}

func (e *encoder) decimal(dst []byte, s string) []byte {
	if e.c.anyPlaces || len(s)-strings.IndexByte(s, '.')-1 <= decimalPlaces { // no rounding
		return e.number(dst, s)
	}
	text, lost := roundDecimal(s)
	if lost && e.c.RejectRounding {
		e.wrongType("more than six decimal places")
	}
	return e.number(dst, text)
}

// text writes a string. If mark is set, a string that looks like another type is marked; strings of
// the envelope need no mark (ACCP-D20).
func (e *encoder) text(dst []byte, s string, mark bool) []byte {
	i := 0
	for i < len(s) && class[s[i]]&cPlain != 0 {
		i++
	}
	switch {
	case i == len(s) && s != "":
		if mark && !e.c.Portable {
			if c := s[0]; (c <= '9' || c == 't' || c == 'f' || c == 'n') && looksTyped(s) {
				dst = append(dst, `\e`...)
			}
		}
		return append(dst, s...)
	case e.c.Portable:
		return e.portable(dst, s)
	case s == "":
		return append(dst, `\e`...)
	}
	return e.escaped(dst, s, i)
}

// escaped writes a string of which only the first i bytes are plain.
func (e *encoder) escaped(dst []byte, s string, i int) []byte {
	space := strings.IndexByte(s[i:], ' ') >= 0
	dst = slices.Grow(dst, len(s)+len(s)/2+4)
	if space {
		dst = append(dst, `\_`...)
		i = 0 // underscores may precede it
	} else {
		dst = append(dst, s[:i]...)
	}
	for i < len(s) {
		c := s[i]
		if class[c]&cPlain != 0 && (c != '_' || !space) {
			dst = append(dst, c)
			i++
			continue
		}
		if c >= utf8.RuneSelf {
			r, n := utf8.DecodeRuneInString(s[i:])
			switch {
			case r == utf8.RuneError && n == 1:
				e.wrongType("string is not UTF-8")
			case hidden(r):
				dst = appendEscape(dst, r)
			default:
				dst = append(dst, s[i:i+n]...)
			}
			i += n
			continue
		}
		i++
		switch {
		case c == '_' || class[c]&cDelim != 0:
			dst = append(dst, '\\', c)
		case c == ' ':
			dst = append(dst, '_')
		default:
			dst = appendControl(dst, c)
		}
	}
	return dst
}

func appendControl(dst []byte, c byte) []byte {
	switch c {
	case '\n':
		return append(dst, '\\', 'n')
	case '\r':
		return append(dst, '\\', 'r')
	case '\t':
		return append(dst, '\\', 't')
	}
	return appendEscape(dst, rune(c))
}

func appendEscape(dst []byte, r rune) []byte {
	dst = append(dst, `\u{`...)
	start := len(dst)
	dst = strconv.AppendUint(dst, uint64(r), 16)
	for i := start; i < len(dst); i++ {
		if dst[i] >= 'a' {
			dst[i] -= 'a' - 'A'
		}
	}
	return append(dst, '}')
}

// portable writes a string for peers that support the escapes of delimiters only (ACCP-D03).
func (e *encoder) portable(dst []byte, s string) []byte {
	if s == "" {
		e.wrongType("the empty string has no portable form")
	}
	for i := 0; i < len(s); i++ {
		switch c := s[i]; {
		case c == ' ':
			dst = append(dst, '_')
		case class[c]&cPlain != 0:
			dst = append(dst, c)
		case class[c]&cDelim != 0:
			dst = append(dst, '\\', c)
		default:
			e.wrongType("character without portable form")
		}
	}
	return dst
}

// meta writes a metadata block that is not empty. Each field starts with a comma; the first comma
// is then replaced by the bracket.
func (e *encoder) meta(dst []byte, m *Meta) []byte {
	start := len(dst)
	count := len(m.Ext)
	if m.MID != "" {
		count++
		mid := m.MID
		if hasUpper(mid) && isHex12(mid) {
			mid = strings.ToLower(mid) // ACCP-D21
		}
		dst = e.text(append(dst, ",mid:"...), mid, false)
	}
	if m.Seq.Set {
		count++
		dst = e.integer(append(dst, ",seq:"...), m.Seq.N)
	}
	if m.TS.Set {
		count++
		dst = e.integer(append(dst, ",ts:"...), m.TS.N)
	}
	if m.CID != "" {
		count++
		dst = e.text(append(dst, ",cid:"...), m.CID, false)
	}
	if m.AID != "" {
		count++
		dst = e.text(append(dst, ",aid:"...), m.AID, false)
	}
	if m.SID != "" {
		count++
		dst = e.text(append(dst, ",sid:"...), m.SID, false)
	}
	if m.TTL.Set {
		count++
		dst = e.integer(append(dst, ",ttl:"...), m.TTL.N)
	}
	e.values += count - len(m.Ext)
	if len(m.Ext) > 0 {
		for i := range m.Ext {
			key := []byte(m.Ext[i].Key)
			if metaField(key, false) != 0 || m.isSet(metaField(key, true)) {
				e.fault("metadata field " + quoted(m.Ext[i].Key) + " given twice")
			}
		}
		dst = e.params(append(dst, ','), m.Ext, nil, ',', 0, e.limits.MaxMeta)
	}
	if count > e.limits.MaxMeta {
		e.fault("too many metadata fields")
	}
	dst[start] = '['
	return append(dst, ']')
}

// integer writes a number of the envelope.
func (e *encoder) integer(dst []byte, n int64) []byte {
	if n < 0 {
		e.wrongType("negative number in the metadata")
	}
	return strconv.AppendInt(dst, n, 10)
}

func hasUpper(s string) bool {
	for i := 0; i < len(s); i++ {
		if s[i] >= 'A' && s[i] <= 'F' {
			return true
		}
	}
	return false
}
