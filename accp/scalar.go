// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package accp

import (
	"strings"
	"unicode/utf8"
)

// scalar reads a value that is not a container. With raw set it distinguishes only strings, null
// and references, because the field determines the type (ACCP-D20).
func (p *parser) scalar(in site, key [2]int32, raw bool) bool {
	s := p.s
	start := p.i
	mask := p.plain(in)
	i := start
	for i < len(s) && class[s[i]]&mask != 0 {
		i++
	}
	if i == start || i < len(s) && isUnusual(s[i]) || class[s[start]]&cPlain == 0 {
		return p.unusual(key, raw, mask)
	}
	p.i = i
	nd := p.f.add()
	*nd = node{key: key[0], keyEnd: key[1], val: int32(start), end: int32(i), kind: KindString}
	if c := s[start]; raw || c > '9' && c != 't' && c != 'f' && c != 'n' || c < '-' {
		return true // a string
	}
	return p.classify(s[start:i], start, nd)
}

// plain returns the classes of the characters that a value may have as they are.
func (p *parser) plain(in site) uint8 {
	switch {
	case !p.lenient:
		return cPlain
	case in == inPayload || in == alone:
		return cPlain | cBare | cComma
	}
	return cPlain | cBare
}

// isUnusual reports whether a character that is not plain does not end a value.
func isUnusual(c byte) bool { return c == '\\' || c >= utf8.RuneSelf }

// unusual is scalar for a text with escapes, with characters that are not ASCII, or that is not a string or a number.
func (p *parser) unusual(key [2]int32, raw bool, mask uint8) bool {
	s, start := p.s, p.i
	i := start
	if i >= len(s) {
		return p.fault(i, "frame ends early")
	}
	hasSigil := s[i] == '$' || s[i] == '~'
	if hasSigil {
		i++ // checked at the end
	}
	fm := asIs
	i, ok := p.text(i, start, mask, &fm)
	if !ok {
		return false
	}
	if i == start {
		return p.noValue(i)
	}
	p.i = i
	nd := p.f.add()
	*nd = node{key: key[0], keyEnd: key[1], val: int32(start), end: int32(i), kind: KindString, form: fm}
	switch {
	case hasSigil:
		return p.sigil(s[start:i], start, nd)
	case raw || fm != asIs:
		return true
	}
	return p.classify(s[start:i], start, nd)
}

// text reads the characters of a value that starts at start, from i on, and returns its end.
func (p *parser) text(i, start int, mask uint8, fm *form) (end int, ok bool) {
	s := p.s
	for {
		for i < len(s) && class[s[i]]&mask != 0 {
			i++
		}
		if i >= len(s) {
			return i, true
		}
		c := s[i]
		if c == '\\' {
			n, ok := p.escape(i, start, fm)
			if !ok {
				return i, false
			}
			i += n
			continue
		}
		if c < utf8.RuneSelf {
			return i, true
		}
		r, n := utf8.DecodeRune(s[i:])
		if r == utf8.RuneError && n == 1 {
			return i, p.fault(i, "not UTF-8")
		}
		if hidden(r) {
			return i, p.fault(i, "white space, control or invisible character")
		}
		i += n
	}
}

// noValue reports the missing value at i.
func (p *parser) noValue(i int) bool {
	if i < len(p.s) && (isSpace(p.s[i]) || p.s[i] < ' ' || p.s[i] == 0x7F) {
		return p.fault(i, "white space, control or invisible character")
	}
	return p.fault(i, "expected a value")
}

// classify sets the kind of a value by its text.
func (p *parser) classify(text []byte, start int, nd *node) bool {
	switch first := text[0]; {
	case first <= '9' && (first >= '0' || first == '-'):
		return p.number(text, start, nd)
	case first == 't' && string(text) == "true", first == 'f' && string(text) == "false":
		nd.kind = KindBool
	case p.lenient && first == 'n' && string(text) == "null":
		nd.kind = KindNull // L5
	}
	return true
}

// sigil classifies a text that starts with $ or ~.
func (p *parser) sigil(text []byte, start int, nd *node) bool {
	isRef := text[0] == '$'
	switch {
	case nd.form != asIs:
		return p.lenient || p.fault(start, "unescaped delimiter")
	case isRef && validRef(text[1:]):
		nd.kind = KindRef
		nd.val++
	case !isRef && len(text) == 1:
		nd.kind = KindNull
	case p.lenient:
	case isRef:
		return p.fault(start, "malformed reference")
	default:
		return p.fault(start, "text after null")
	}
	return true
}

// number classifies a text that starts like a number.
func (p *parser) number(text []byte, at int, nd *node) bool {
	k := numberForm(text)
	if k == KindString {
		return true
	}
	whole := text
	if text[0] == '-' {
		whole = text[1:]
	}
	zeros := len(whole) > 1 && whole[0] == '0' && whole[1] != '.'
	if zeros && p.lenient {
		return true // an identifier (ACCP-D07, ACCP-D08)
	}
	if len(text) > p.limits.MaxNumber {
		return p.fault(at, "number too long")
	}
	nd.kind = k
	if k == KindInt {
		switch {
		case zeros:
			p.wrongType(at, "leading zero")
		case text[0] == '-' && whole[0] == '0':
			if p.lenient {
				nd.form = negZero
			} else {
				p.wrongType(at, "negative zero")
			}
		}
		return true
	}
	p.decimal(text, whole, at, nd)
	return true
}

// decimal checks the form of a decimal.
func (p *parser) decimal(text, whole []byte, at int, nd *node) {
	isCanonical := canonicalBytes(text, whole)
	switch {
	case p.lenient && !isCanonical:
		nd.form = cutZeros
	case p.lenient:
	case !isCanonical, len(text)-indexDot(text)-1 > decimalPlaces && !p.places:
		p.wrongType(at, "decimal is not in canonical form")
	}
}

func indexDot(s []byte) int {
	for i, c := range s {
		if c == '.' {
			return i
		}
	}
	return len(s)
}

// canonicalBytes is canonicalDecimal for the bytes of a decimal; whole has the digits before the
// point.
func canonicalBytes(text, whole []byte) bool {
	if whole[0] == '0' && whole[1] != '.' {
		return false
	}
	n := len(whole)
	if whole[n-1] == '0' && whole[n-2] != '.' {
		return false
	}
	return !(len(text) != n && string(whole) == "0.0")
}

// escape checks the escape at s[i] in a value that starts at start, and returns its length
// (ACCP-D03).
func (p *parser) escape(i, start int, fm *form) (n int, ok bool) {
	s := p.s
	if i+1 >= len(s) {
		return 0, p.fault(i, "frame ends inside an escape")
	}
	if *fm == asIs {
		*fm = escaped
	}
	c := s[i+1]
	switch {
	case class[c]&cDelim != 0, c == 'n', c == 'r', c == 't':
		return 2, true
	case c == 'e':
		if i != start {
			return 0, p.fault(i, `\e inside a value`)
		}
		return 2, true
	case c == '_':
		if i == start {
			*fm = textMode
		} else if *fm != textMode {
			return 0, p.fault(i, `\_ inside a value without text mode`)
		}
		return 2, true
	case c == 'u':
		if _, n := codePoint(s[i:]); n > 0 {
			return n, true
		}
		return 0, p.fault(i, `malformed \u{}`)
	}
	return 0, p.fault(i, "unknown escape")
}

// codePoint reads \u{H…} at the start of s. The length is 0 if it is malformed.
func codePoint(s []byte) (r rune, n int) {
	if len(s) < 5 || s[2] != '{' {
		return 0, 0
	}
	i := 3
	for ; i < len(s) && s[i] != '}'; i++ {
		c := s[i]
		switch {
		case c >= '0' && c <= '9':
			c -= '0'
		case c|0x20 >= 'a' && c|0x20 <= 'f':
			c = c | 0x20 - 'a' + 10
		default:
			return 0, 0
		}
		if i == 9 {
			return 0, 0
		}
		r = r<<4 | rune(c)
	}
	if i == 3 || i == len(s) || !utf8.ValidRune(r) {
		return 0, 0
	}
	return r, i + 1
}

// writeUnescaped writes the text of a validated escaped string. It is never longer than s.
func writeUnescaped(b *strings.Builder, s []byte, fm form) {
	i := 0
	if fm == textMode {
		i = 2
	}
	for start := i; ; start = i {
		for i < len(s) && s[i] != '\\' && (s[i] != '_' || fm != textMode) {
			i++
		}
		b.Write(s[start:i])
		if i == len(s) {
			return
		}
		if s[i] == '_' {
			b.WriteByte(' ')
			i++
			continue
		}
		switch c := s[i+1]; c {
		case 'n':
			b.WriteByte('\n')
		case 'r':
			b.WriteByte('\r')
		case 't':
			b.WriteByte('\t')
		case 'e':
		case 'u':
			r, n := codePoint(s[i:])
			b.WriteRune(r)
			i += n - 2
		default: // a delimiter, or _ in text mode
			b.WriteByte(c)
		}
		i += 2
	}
}
