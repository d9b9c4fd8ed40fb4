// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package a2e

import (
	"bytes"
	"encoding/binary"
	"math/bits"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/fivewire/fivewire/internal/strictjson"
)

const hexDigits = "0123456789abcdef"

// escape turns the JSON text behind start into the form of A2E-D19: strings with the escapes of
// appendText, no white space.
func escape(b []byte, start int, ascii bool) []byte {
	if isEscaped(b[start:], ascii) {
		return b
	}
	return appendCompact(b[:start], bytes.Clone(b[start:]), ascii)
}

// isEscaped reports whether text without white space has the escapes of A2E-D19.
func isEscaped(text []byte, ascii bool) bool {
	if !ascii && bytes.IndexByte(text, '\\') < 0 && isASCII(text) {
		return true
	}
	for i := 0; i < len(text); {
		i += usual(text[i:])
		if i == len(text) {
			break
		}
		switch c := text[i]; {
		case c == '\\':
			n := escapeLen(text[i:])
			if n == 0 {
				return false
			}
			i += n
			continue
		case ascii && c >= 0x7f, bytes.HasPrefix(text[i:], []byte("\u0085")),
			c == 0xe2 && (bytes.HasPrefix(text[i:], []byte("\u2028")) || bytes.HasPrefix(text[i:], []byte("\u2029"))):
			return false
		}
		i++
	}
	return true
}

func isASCII(text []byte) bool {
	for ; len(text) >= 32; text = text[32:] {
		w := binary.LittleEndian.Uint64(text) | binary.LittleEndian.Uint64(text[8:]) |
			binary.LittleEndian.Uint64(text[16:]) | binary.LittleEndian.Uint64(text[24:])
		if w&highs != 0 {
			return false
		}
	}
	for _, c := range text {
		if c >= utf8.RuneSelf {
			return false
		}
	}
	return true
}

// escapeLen returns the length of the escape at the beginning of text if appendText writes it, or 0.
func escapeLen(text []byte) int {
	switch c := text[1]; {
	case bytes.IndexByte([]byte(`"\bfnrt`), c) >= 0:
		return 2
	case c == 'u' && text[2] == '0' && text[3] == '0' && (text[4] == '1' || text[4] == '0' &&
		bytes.IndexByte([]byte("89acd"), text[5]) < 0) && (text[5] <= '9' || text[5] >= 'a'):
		return 6
	}
	return 0
}

// appendText appends s as a JSON string with the escapes of A2E-D19, and reports whether s is
// valid UTF-8: other strings cannot be sent (A2E-D10). The separators U+0085, U+2028 and U+2029 are
// escaped because deployed readers of event streams read them as line ends.
func appendText(dst, s []byte, ascii bool) ([]byte, bool) {
	dst = append(dst, '"')
	start := 0
	for i := usual(s); i < len(s); {
		c := s[i]
		if c < utf8.RuneSelf {
			if c >= ' ' && c != '"' && c != '\\' && (c != 0x7f || !ascii) {
				i++
				i += usual(s[i:])
				continue
			}
			dst = appendControl(append(dst, s[start:i]...), c)
			i++
			start = i
			continue
		}
		r, n := utf8.DecodeRune(s[i:])
		if r == utf8.RuneError && n == 1 {
			return dst, false
		}
		if ascii || r == '\u0085' || r == '\u2028' || r == '\u2029' {
			dst = append(dst, s[start:i]...)
			if r > 0xffff {
				hi, lo := utf16.EncodeRune(r)
				dst = appendEscape(appendEscape(dst, hi), lo)
			} else {
				dst = appendEscape(dst, r)
			}
			start = i + n
		}
		i += n
	}
	dst = append(dst, s[start:]...)
	return append(dst, '"'), true
}

// appendControl appends the escape of an ASCII character.
func appendControl(dst []byte, c byte) []byte {
	switch c {
	case '"', '\\':
		return append(dst, '\\', c)
	case '\b':
		return append(dst, '\\', 'b')
	case '\f':
		return append(dst, '\\', 'f')
	case '\n':
		return append(dst, '\\', 'n')
	case '\r':
		return append(dst, '\\', 'r')
	case '\t':
		return append(dst, '\\', 't')
	}
	return append(dst, '\\', 'u', '0', '0', hexDigits[c>>4], hexDigits[c&15])
}

// The lowest and the highest bit of each of eight bytes.
const (
	lows  = 0x0101010101010101
	highs = 0x8080808080808080
)

// usual returns the length of the prefix of s that is written unchanged: ASCII from blank to tilde
// without quote and backslash. It checks eight bytes at a time; only the lowest set bit of m is
// exact, and no other bit is used.
func usual(s []byte) int {
	i := 0
	for ; i+8 <= len(s); i += 8 {
		w := binary.LittleEndian.Uint64(s[i:])
		q, e := w^(lows*'"'), w^(lows*'\\')
		d := w ^ (lows * 0x7f)
		m := ((q-lows)&^q | (e-lows)&^e | (d-lows)&^d | (w-lows*' ')&^w | w) & highs
		if m != 0 {
			return i + bits.TrailingZeros64(m)/8
		}
	}
	return i
}

func appendEscape(dst []byte, r rune) []byte {
	return append(dst, '\\', 'u', hexDigits[r>>12&15], hexDigits[r>>8&15], hexDigits[r>>4&15], hexDigits[r&15])
}

// appendCompact appends a checked value without insignificant white space. Numbers keep their
// spelling; strings are escaped by appendString's rules.
func appendCompact(dst []byte, v strictjson.Value, ascii bool) []byte {
	for i := 0; i < len(v); {
		switch c := v[i]; c {
		case ' ', '\t', '\r', '\n':
			i++
		case '"':
			end, plain := stringEnd(v, i, ascii)
			if plain {
				dst = append(dst, v[i:end]...)
			} else {
				text, _ := v[i:end].TextBytes()
				dst, _ = appendText(dst, text, ascii) // checked text is valid UTF-8
			}
			i = end
		default:
			dst = append(dst, c)
			i++
		}
	}
	return dst
}

// stringEnd returns the end of the string that begins at v[i], and whether it can be copied
// unchanged.
func stringEnd(v []byte, i int, ascii bool) (end int, plain bool) {
	plain = true
	for i++; i < len(v); i++ {
		switch c := v[i]; {
		case c == '"':
			return i + 1, plain
		case c == '\\':
			plain = false
			i++
		case c == 0xc2, c == 0xe2: // may begin one of the separators
			plain = false
		case ascii && c >= 0x7f:
			plain = false
		}
	}
	return len(v), plain
}
