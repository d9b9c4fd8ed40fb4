// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package floor

import (
	"encoding/binary"
	"errors"
	"math/bits"
	"unicode/utf8"
)

var errJSON = errors.New("floor: bad JSON")

// The lowest and the highest bit of each of eight bytes.
const (
	lo = 0x0101010101010101
	hi = 0x8080808080808080
)

// strEnd returns the index just past the closing quote of the string whose first
// byte after the opening quote is s[i], or -1 for a bad string. It reports whether
// the string has an escape, and whether it may have a byte >= 0x80.
func strEnd(s []byte, i int) (end int, esc, wide bool) {
	for {
		// Eight bytes at a time up to the first quote, backslash or control
		// character: the lowest bit of m is exact, only higher ones may lie.
		for i+8 <= len(s) {
			w := binary.LittleEndian.Uint64(s[i:])
			q := w ^ (lo * '"')
			b := w ^ (lo * '\\')
			m := (q - lo) &^ q & hi
			m |= (b - lo) &^ b & hi
			m |= (w - lo*0x20) &^ w & hi
			if w&hi != 0 {
				wide = true
			}
			if m != 0 {
				i += bits.TrailingZeros64(m) / 8
				break
			}
			i += 8
		}
		if i >= len(s) {
			return -1, esc, wide
		}
		switch c := s[i]; {
		case c == '"':
			return i + 1, esc, wide
		case c == '\\':
			esc = true
			i++
			if i >= len(s) {
				return -1, esc, wide
			}
			switch s[i] {
			case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
				i++
			case 'u':
				if i+5 > len(s) {
					return -1, esc, wide
				}
				for _, h := range s[i+1 : i+5] {
					if unhex[h] == 0xff {
						return -1, esc, wide
					}
				}
				i += 5
			default:
				return -1, esc, wide
			}
		case c < 0x20:
			return -1, esc, wide
		default:
			wide = wide || c >= 0x80
			i++
		}
	}
}

// unhex holds the value of each hexadecimal digit, 0xff for all else.
var unhex = func() (t [256]byte) {
	for i := range t {
		t[i] = 0xff
	}
	for i := byte(0); i < 10; i++ {
		t['0'+i] = i
	}
	for i := byte(0); i < 6; i++ {
		t['a'+i], t['A'+i] = 10+i, 10+i
	}
	return
}()

// ws returns the index of the next byte that is not white space.
func ws(s []byte, i int) int {
	for i < len(s) && (s[i] == ' ' || s[i] == '\n' || s[i] == '\t' || s[i] == '\r') {
		i++
	}
	return i
}

// number returns the index just past the number at s[i], or -1, and whether it is
// written as an integer.
func number(s []byte, i int) (end int, integer bool) {
	if i < len(s) && s[i] == '-' {
		i++
	}
	st := i
	for i < len(s) && s[i]-'0' < 10 {
		i++
	}
	if i == st || s[st] == '0' && i > st+1 {
		return -1, false
	}
	integer = true
	if i < len(s) && s[i] == '.' {
		integer = false
		st = i + 1
		for i++; i < len(s) && s[i]-'0' < 10; i++ {
		}
		if i == st {
			return -1, false
		}
	}
	if i < len(s) && s[i]|0x20 == 'e' {
		integer = false
		i++
		if i < len(s) && (s[i] == '+' || s[i] == '-') {
			i++
		}
		st = i
		for i < len(s) && s[i]-'0' < 10 {
			i++
		}
		if i == st {
			return -1, false
		}
	}
	return i, integer
}

// Skip returns the index just past the value at s[i], white space before it allowed, or -1 if the
// value is invalid JSON or nested in more than 1000 others from depth on.
func Skip(s []byte, i, depth int) int {
	i = ws(s, i)
	if i >= len(s) || depth > 1000 {
		return -1
	}
	switch c := s[i]; c {
	case '"':
		e, _, wide := strEnd(s, i+1)
		if wide && e > 0 && !utf8.Valid(s[i:e]) {
			return -1
		}
		return e
	case '{', '[':
		closer := c + 2
		i = ws(s, i+1)
		if i < len(s) && s[i] == closer {
			return i + 1
		}
		for {
			if c == '{' {
				i = ws(s, i)
				if i >= len(s) || s[i] != '"' {
					return -1
				}
				if i = Skip(s, i, depth+1); i < 0 {
					return -1
				}
				if i = ws(s, i); i >= len(s) || s[i] != ':' {
					return -1
				}
				i++
			}
			if i = Skip(s, i, depth+1); i < 0 {
				return -1
			}
			if i = ws(s, i); i >= len(s) {
				return -1
			}
			if s[i] == closer {
				return i + 1
			}
			if s[i] != ',' {
				return -1
			}
			i++
		}
	case 't':
		return lit(s, i, "true")
	case 'f':
		return lit(s, i, "false")
	case 'n':
		return lit(s, i, "null")
	}
	e, _ := number(s, i)
	return e
}

func lit(s []byte, i int, l string) int {
	if len(s)-i >= len(l) && string(s[i:i+len(l)]) == l {
		return i + len(l)
	}
	return -1
}

// Valid reports whether s is one JSON value in valid UTF-8. It is the floor of
// every decoder.
func Valid(s []byte) bool {
	i := Skip(s, 0, 0)
	return i >= 0 && ws(s, i) == len(s)
}
