// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package canon

import (
	"encoding/binary"
	"math/bits"
	"unicode/utf16"
	"unicode/utf8"
)

// text copies the string that begins at s[i] in its shortest spelling.
func (w *Writer) text(out, s []byte, i int, nfc bool) ([]byte, int) {
	e, esc, wide := StringEnd(s, i+1)
	if e < 0 {
		return out, -1
	}
	if !esc && !wide {
		return append(out, s[i:e]...), e
	}
	raw := s[i+1 : e-1]
	if esc {
		w.str = Unescape(w.str[:0], raw)
		raw = w.str
	}
	if !quickNFC(raw) { // which says yes to valid text only
		if !utf8.Valid(raw) {
			return out, -1
		}
		if nfc {
			w.nfc = appendNFC(w.nfc[:0], raw)
			raw = w.nfc
		}
	}
	if !esc { // then nothing in it needs an escape
		out = append(out, '"')
		out = append(out, raw...)
		return append(out, '"'), e
	}
	return AppendQuoted(out, raw), e
}

// AppendQuoted appends valid UTF-8 as a JSON string with the escapes of RFC 8785.
func AppendQuoted[T string | []byte](out []byte, raw T) []byte {
	out = append(out, '"')
	st := 0
	for k := 0; k < len(raw); k++ {
		x := raw[k]
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
			out = append(out, '\\', 'u', '0', '0', hexDigits[x>>4], hexDigits[x&15])
		}
	}
	out = append(out, raw[st:]...)
	return append(out, '"')
}

const hexDigits = "0123456789abcdef"

const (
	lows  = 0x0101010101010101
	highs = 0x8080808080808080
)

// StringEnd returns the index after the closing quote of the string whose first byte after the
// quote is s[i], whether it has an escape, and whether it has a byte beyond ASCII. The index is -1
// for an invalid string. It reads eight bytes at a time.
func StringEnd(s []byte, i int) (end int, esc, wide bool) {
	for {
		for i+8 <= len(s) {
			w := binary.LittleEndian.Uint64(s[i:])
			q := w ^ (lows * '"')
			b := w ^ (lows * '\\')
			m := (q - lows) &^ q
			m |= (b - lows) &^ b
			m |= (w - lows*0x20) &^ w
			if m &= highs; m != 0 {
				n := bits.TrailingZeros64(m) // the lowest hit is exact
				wide = wide || w&highs&(1<<n-1) != 0
				i += n / 8
				break
			}
			wide = wide || w&highs != 0
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
			if i = escapeEnd(s, i+1); i < 0 {
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

// escapeEnd returns the end of an escape whose letter is s[i], or -1.
func escapeEnd(s []byte, i int) int {
	if i >= len(s) {
		return -1
	}
	switch s[i] {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		return i + 1
	case 'u':
		if i+5 <= len(s) && hex4(s[i+1:]) >= 0 {
			return i + 5
		}
	}
	return -1
}

// Space returns the index of the first byte from s[i] on that is not white space.
func Space(s []byte, i int) int {
	for i < len(s) && (s[i] == ' ' || s[i] == '\n' || s[i] == '\t' || s[i] == '\r') {
		i++
	}
	return i
}

// hex4 returns the value of four hexadecimal digits, or -1.
func hex4(s []byte) rune {
	var r rune
	for _, b := range s[:4] {
		switch {
		case b-'0' < 10:
			r = r<<4 | rune(b-'0')
		case b|0x20 >= 'a' && b|0x20 <= 'f':
			r = r<<4 | rune(b|0x20-'a'+10)
		default:
			return -1
		}
	}
	return r
}

// Unescape appends the text of an escaped string. A lone surrogate becomes an
// invalid byte, so that the check for UTF-8 refuses it (AIR-D07).
func Unescape(dst, s []byte) []byte {
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
			if !utf16.IsSurrogate(r) {
				dst = utf8.AppendRune(dst, r)
				continue
			}
			if i+6 < len(s) && s[i+1] == '\\' && s[i+2] == 'u' {
				if r = utf16.DecodeRune(r, hex4(s[i+3:])); r != utf8.RuneError {
					dst = utf8.AppendRune(dst, r)
					i += 6
					continue
				}
			}
			dst = append(dst, 0xff)
		default:
			dst = append(dst, s[i])
		}
	}
	return dst
}
