// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package canon

import (
	"slices"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

// appendNFC appends the NFC form of the valid text s.
//
// The norm package makes stream-safe text: it puts U+034F into runs of more than
// 30 combining marks, which no other language does, and signatures would differ
// (AIR-D04). Texts with long runs are therefore normalized by [appendPlainNFC].
func appendNFC(dst, s []byte) []byte {
	if hasLongRun(s) {
		return appendPlainNFC(dst, s)
	}
	if norm.NFC.IsNormal(s) {
		return append(dst, s...)
	}
	return norm.NFC.Append(dst, s...)
}

// hasLongRun reports whether more than six characters in a row may combine with the preceding one.
// A character decomposes to at most four, so a shorter run yields fewer than 30 marks.
func hasLongRun(s []byte) bool {
	run := 0
	for i := 0; i < len(s); {
		if s[i] < utf8.RuneSelf {
			run = 0
			i++
			continue
		}
		p := norm.NFC.Properties(s[i:])
		if p.Size() == 0 {
			return true // appendPlainNFC handles all cases
		}
		i += p.Size()
		if p.BoundaryBefore() {
			run = 0
		} else if run++; run > 6 {
			return true
		}
	}
	return false
}

// appendPlainNFC implements the algorithm of the Unicode standard: decompose, order the marks,
// compose.
func appendPlainNFC(dst, s []byte) []byte {
	type char struct {
		r   rune
		ccc uint8
	}
	var text []char
	add := func(r rune) {
		text = append(text, char{r, norm.NFD.PropertiesString(string(r)).CCC()})
	}
	for len(s) > 0 {
		r, n := utf8.DecodeRune(s)
		if d := decomposition(s[:n]); d != nil {
			for len(d) > 0 {
				r, n := utf8.DecodeRune(d)
				add(r)
				d = d[n:]
			}
		} else {
			add(r)
		}
		s = s[n:]
	}
	for i := 0; i < len(text); {
		if text[i].ccc == 0 {
			i++
			continue
		}
		e := i
		for e < len(text) && text[e].ccc != 0 {
			e++
		}
		slices.SortStableFunc(text[i:e], func(a, b char) int { return int(a.ccc) - int(b.ccc) })
		i = e
	}
	starter, last := -1, uint8(0)
	out := text[:0]
	for _, c := range text {
		if starter >= 0 && (starter == len(out)-1 || last < c.ccc) { // not blocked
			if r, ok := composePair(out[starter].r, c.r); ok {
				out[starter].r = r
				continue
			}
		}
		if c.ccc == 0 {
			starter = len(out)
		}
		last = c.ccc
		out = append(out, c)
	}
	for _, c := range out {
		dst = utf8.AppendRune(dst, c.r)
	}
	return dst
}

// decomposition returns the full canonical decomposition of one character, nil
// if it has none.
func decomposition(char []byte) []byte {
	if r, _ := utf8.DecodeRune(char); r >= 0xac00 && r <= 0xd7a3 { // Hangul is computed, not listed
		s := r - 0xac00
		d := utf8.AppendRune(nil, 0x1100+s/588)
		d = utf8.AppendRune(d, 0x1161+s%588/28)
		if t := s % 28; t != 0 {
			d = utf8.AppendRune(d, 0x11a7+t)
		}
		return d
	}
	return norm.NFD.Properties(char).Decomposition()
}

// composePair returns the composition of a starter and the next character.
func composePair(a, b rune) (rune, bool) {
	var in, out [3 * utf8.UTFMax]byte
	pair := utf8.AppendRune(utf8.AppendRune(in[:0], a), b)
	got := norm.NFC.Append(out[:0], pair...)
	r, n := utf8.DecodeRune(got)
	return r, n == len(got)
}

// quickNFC reports whether s is certainly valid UTF-8 in NFC, by ranges in which no character
// combines with another: ASCII and Latin up to U+02FF, Cyrillic up to U+0482, punctuation from
// U+2010 to U+2027, kana without the voicing marks, CJK and Hangul syllables, and the planes of
// emoji. False means that it is unknown.
func quickNFC(s []byte) bool {
	for i := 0; i < len(s); {
		c := s[i]
		if c < utf8.RuneSelf {
			i++
			continue
		}
		if i+1 >= len(s) || s[i+1]&0xc0 != 0x80 {
			return false
		}
		if c < 0xe0 {
			switch {
			case c >= 0xc2 && c <= 0xcb, c == 0xd0, c == 0xd1:
			default:
				return false
			}
			i += 2
			continue
		}
		if i+2 >= len(s) || s[i+2]&0xc0 != 0x80 {
			return false
		}
		if c == 0xf0 && isEmoji(s[i:]) {
			i += 4
			continue
		}
		if c >= 0xf0 || !isQuick(rune(c&0x0f)<<12|rune(s[i+1]&0x3f)<<6|rune(s[i+2]&0x3f)) {
			return false
		}
		i += 3
	}
	return true
}

// isEmoji reports whether a text begins with a character from U+1F300 to U+1FFFF. It has three bytes or more.
func isEmoji(s []byte) bool {
	return s[1] == 0x9f && s[2] >= 0x8c && len(s) > 3 && s[3]&0xc0 == 0x80
}

// isQuick reports whether a character from U+0800 to U+FFFF is in the ranges of quickNFC.
func isQuick(r rune) bool {
	switch {
	case r >= 0x4e00:
		return r <= 0x9fff || r >= 0xac00 && r <= 0xd7a3
	case r >= 0x3000:
		return r <= 0x3011 || r >= 0x3040 && r <= 0x3096 || r >= 0x309b && r <= 0x30ff
	}
	return r >= 0x2010 && r <= 0x2027
}
