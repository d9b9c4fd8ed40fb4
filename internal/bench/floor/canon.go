// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package floor

import (
	"bytes"
	"unicode/utf16"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

// A member lies in the output: its quoted key in [ks,ke), a colon at ke, its value
// up to ve.
type member struct {
	ks, ke, ve int32
}

// A Canon makes canonical JSON: the order and escapes of RFC 8785, integers of any size and no
// other numbers, no duplicate names, text in NFC. It holds reusable buffers; its zero value is
// ready for use, by one goroutine at a time.
type Canon struct {
	mem []member
	tmp []byte
	str []byte

	NullSig bool   // write null for the value of the top-level member "signature"
	Sig     []byte // the signature text, without quotes; aliases the input
}

// Append appends the canonical form of src to dst. On an error dst is returned as
// it was.
func (c *Canon) Append(dst, src []byte) ([]byte, error) {
	c.mem = c.mem[:0]
	out, i := c.value(dst, src, 0, 0)
	if i < 0 || ws(src, i) != len(src) {
		return dst, errJSON
	}
	return out, nil
}

// value appends the value at s[i] and returns the index just past it, or -1.
func (c *Canon) value(out, s []byte, i, depth int) ([]byte, int) {
	i = ws(s, i)
	if i >= len(s) || depth > 1000 {
		return out, -1
	}
	switch s[i] {
	case '"':
		return c.text(out, s, i)
	case '{':
		return c.object(out, s, i, depth)
	case '[':
		out = append(out, '[')
		i = ws(s, i+1)
		if i < len(s) && s[i] == ']' {
			return append(out, ']'), i + 1
		}
		for {
			if out, i = c.value(out, s, i, depth+1); i < 0 {
				return out, -1
			}
			if i = ws(s, i); i >= len(s) || s[i] != ',' && s[i] != ']' {
				return out, -1
			}
			out = append(out, s[i])
			i++
			if s[i-1] == ']' {
				return out, i
			}
		}
	case 't', 'f', 'n':
		e := Skip(s, i, 0)
		if e > 0 {
			out = append(out, s[i:e]...)
		}
		return out, e
	}
	e, integer := number(s, i)
	if e < 0 || !integer {
		return out, -1
	}
	if string(s[i:e]) == "-0" {
		return append(out, '0'), e
	}
	return append(out, s[i:e]...), e
}

// object appends the object at s[i]. Members are sorted only if they are not yet.
func (c *Canon) object(out, s []byte, i, depth int) ([]byte, int) {
	base, first := len(out), len(c.mem)
	out = append(out, '{')
	i = ws(s, i+1)
	if i < len(s) && s[i] == '}' {
		return append(out, '}'), i + 1
	}
	sorted := true
	for {
		if i = ws(s, i); i >= len(s) || s[i] != '"' {
			return out, -1
		}
		m := member{ks: int32(len(out))}
		if out, i = c.text(out, s, i); i < 0 {
			return out, -1
		}
		m.ke = int32(len(out))
		if n := len(c.mem); n > first && sorted {
			p := c.mem[n-1]
			switch cmp16(out[p.ks+1:p.ke-1], out[m.ks+1:m.ke-1]) {
			case 0:
				return out, -1
			case 1:
				sorted = false
			}
		}
		if i = ws(s, i); i >= len(s) || s[i] != ':' {
			return out, -1
		}
		out = append(out, ':')
		if c.NullSig && depth == 0 && string(out[m.ks:m.ke]) == `"signature"` {
			st := ws(s, i+1)
			if i = Skip(s, st, 0); i < 0 || s[st] != '"' {
				return out, -1
			}
			c.Sig = s[st+1 : i-1]
			out = append(out, "null"...)
		} else if out, i = c.value(out, s, i+1, depth+1); i < 0 {
			return out, -1
		}
		m.ve = int32(len(out))
		c.mem = append(c.mem, m)
		if i = ws(s, i); i >= len(s) || s[i] != ',' && s[i] != '}' {
			return out, -1
		}
		out = append(out, s[i])
		i++
		if s[i-1] == '}' {
			break
		}
	}
	if !sorted {
		ms := c.mem[first:]
		for a := 1; a < len(ms); a++ { // insertion sort: objects of an envelope are small
			for b := a; b > 0; b-- {
				r := cmp16(out[ms[b-1].ks+1:ms[b-1].ke-1], out[ms[b].ks+1:ms[b].ke-1])
				if r == 0 {
					return out, -1
				}
				if r < 0 {
					break
				}
				ms[b-1], ms[b] = ms[b], ms[b-1]
			}
		}
		c.tmp = append(c.tmp[:0], out[base:]...)
		out = out[:base]
		out = append(out, '{')
		for n, m := range ms {
			if n > 0 {
				out = append(out, ',')
			}
			out = append(out, c.tmp[int(m.ks)-base:int(m.ve)-base]...)
		}
		out = append(out, '}')
	}
	c.mem = c.mem[:first]
	return out, i
}

// cmp16 orders two escaped keys by UTF-16 code units. Keys without escapes and
// without bytes >= 0xEE order alike in UTF-8 and in UTF-16.
func cmp16(a, b []byte) int {
	for _, s := range [2][]byte{a, b} {
		for _, x := range s {
			if x >= 0xee || x == '\\' {
				return cmpSlow(a, b)
			}
		}
	}
	return bytes.Compare(a, b)
}

func cmpSlow(a, b []byte) int {
	ua, ub := utf16.Encode([]rune(string(unescape(nil, a)))), utf16.Encode([]rune(string(unescape(nil, b))))
	for i := 0; i < len(ua) && i < len(ub); i++ {
		if ua[i] != ub[i] {
			if ua[i] < ub[i] {
				return -1
			}
			return 1
		}
	}
	return min(1, max(-1, len(ua)-len(ub)))
}

// text appends the string at s[i] with its quotes.
func (c *Canon) text(out, s []byte, i int) ([]byte, int) {
	e, esc, wide := strEnd(s, i+1)
	if e < 0 {
		return out, -1
	}
	raw := s[i+1 : e-1]
	if !esc && !wide {
		return append(out, s[i:e]...), e
	}
	if esc {
		c.str = unescape(c.str[:0], raw)
		raw = c.str
	}
	if !utf8.Valid(raw) {
		return out, -1
	}
	if !QuickNFC(raw) && !norm.NFC.IsNormal(raw) {
		raw = norm.NFC.Bytes(raw)
	}
	out = append(out, '"')
	st := 0
	for k, x := range raw {
		if x >= 0x20 && x != '"' && x != '\\' {
			continue
		}
		out = append(out, raw[st:k]...)
		st = k + 1
		switch x {
		case '"', '\\':
			out = append(out, '\\', x)
		case '\b':
			out = append(out, '\\', 'b')
		case '\t':
			out = append(out, '\\', 't')
		case '\n':
			out = append(out, '\\', 'n')
		case '\f':
			out = append(out, '\\', 'f')
		case '\r':
			out = append(out, '\\', 'r')
		default:
			out = append(out, '\\', 'u', '0', '0', "0123456789abcdef"[x>>4], "0123456789abcdef"[x&15])
		}
	}
	out = append(out, raw[st:]...)
	return append(out, '"'), e
}

func hex4(s []byte) rune {
	return rune(unhex[s[0]])<<12 | rune(unhex[s[1]])<<8 | rune(unhex[s[2]])<<4 | rune(unhex[s[3]])
}

// unescape appends the text of the valid escaped string s. A lone surrogate
// becomes an invalid byte, so that the UTF-8 check refuses it.
func unescape(dst, s []byte) []byte {
	for i := 0; i < len(s); i++ {
		if s[i] != '\\' {
			dst = append(dst, s[i])
			continue
		}
		i++
		switch s[i] {
		case 'b':
			dst = append(dst, '\b')
		case 'f':
			dst = append(dst, '\f')
		case 'n':
			dst = append(dst, '\n')
		case 'r':
			dst = append(dst, '\r')
		case 't':
			dst = append(dst, '\t')
		case 'u':
			r := hex4(s[i+1:])
			i += 4
			if utf16.IsSurrogate(r) {
				if i+6 < len(s) && s[i+1] == '\\' && s[i+2] == 'u' {
					if r2 := utf16.DecodeRune(r, hex4(s[i+3:])); r2 != utf8.RuneError {
						dst = utf8.AppendRune(dst, r2)
						i += 6
						continue
					}
				}
				dst = append(dst, 0xff)
				continue
			}
			dst = utf8.AppendRune(dst, r)
		default:
			dst = append(dst, s[i])
		}
	}
	return dst
}

// QuickNFC reports whether the valid UTF-8 text s is certainly NFC, since it consists of
// U+0000..U+02FF, precomposed Hangul U+AC00..U+D7A3 and CJK U+4E00..U+9FFF only. If it reports
// false, package norm decides.
func QuickNFC(s []byte) bool {
	for i := 0; i < len(s); {
		c := s[i]
		if c < 0x80 {
			i++
			continue
		}
		if c >= 0xc2 && c <= 0xcb {
			i += 2
			continue
		}
		if c < 0xe4 || c > 0xed || i+2 >= len(s) {
			return false
		}
		r := rune(c&15)<<12 | rune(s[i+1]&63)<<6 | rune(s[i+2]&63)
		if r < 0x4e00 || r > 0xd7a3 || r > 0x9fff && r < 0xac00 {
			return false
		}
		i += 3
	}
	return true
}
