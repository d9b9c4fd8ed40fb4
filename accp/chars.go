// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package accp

// Character classes, looked up once per byte.
const (
	cPlain   = 1 << iota // ordinary in a value: printable ASCII without the delimiters
	cBare                // @ > : $ ~, ordinary inside a value for the lenient reader only
	cComma               // the comma, ordinary where it does not end the value (lenient)
	cName                // letters, digits and underscore (ACCP-D01)
	cNameExt             // - and ., in names for the lenient reader only
	cAlpha               // letters
	cDigit
	cDelim // the twelve delimiters (ACCP-D02)
)

// class is the table of the classes. Other bytes have none.
var class = [256]uint8{
	'!': cPlain, '"': cPlain, '#': cPlain, '$': cBare | cDelim, '%': cPlain, '&': cPlain, '\'': cPlain,
	'(': cPlain, ')': cPlain, '*': cPlain, '+': cPlain, ',': cComma | cDelim, '-': cPlain | cNameExt,
	'.': cPlain | cNameExt, '/': cPlain,
	'0': cPlain | cName | cDigit, '1': cPlain | cName | cDigit, '2': cPlain | cName | cDigit,
	'3': cPlain | cName | cDigit, '4': cPlain | cName | cDigit, '5': cPlain | cName | cDigit,
	'6': cPlain | cName | cDigit, '7': cPlain | cName | cDigit, '8': cPlain | cName | cDigit,
	'9': cPlain | cName | cDigit,
	':': cBare | cDelim, ';': cPlain, '<': cPlain, '=': cPlain, '>': cBare | cDelim, '?': cPlain, '@': cBare | cDelim,
	'A': cPlain | cName | cAlpha, 'B': cPlain | cName | cAlpha, 'C': cPlain | cName | cAlpha, 'D': cPlain | cName | cAlpha,
	'E': cPlain | cName | cAlpha, 'F': cPlain | cName | cAlpha, 'G': cPlain | cName | cAlpha, 'H': cPlain | cName | cAlpha,
	'I': cPlain | cName | cAlpha, 'J': cPlain | cName | cAlpha, 'K': cPlain | cName | cAlpha, 'L': cPlain | cName | cAlpha,
	'M': cPlain | cName | cAlpha, 'N': cPlain | cName | cAlpha, 'O': cPlain | cName | cAlpha, 'P': cPlain | cName | cAlpha,
	'Q': cPlain | cName | cAlpha, 'R': cPlain | cName | cAlpha, 'S': cPlain | cName | cAlpha, 'T': cPlain | cName | cAlpha,
	'U': cPlain | cName | cAlpha, 'V': cPlain | cName | cAlpha, 'W': cPlain | cName | cAlpha, 'X': cPlain | cName | cAlpha,
	'Y': cPlain | cName | cAlpha, 'Z': cPlain | cName | cAlpha,
	'[': cDelim, '\\': cDelim, ']': cDelim, '^': cPlain, '_': cPlain | cName, '`': cPlain,
	'a': cPlain | cName | cAlpha, 'b': cPlain | cName | cAlpha, 'c': cPlain | cName | cAlpha, 'd': cPlain | cName | cAlpha,
	'e': cPlain | cName | cAlpha, 'f': cPlain | cName | cAlpha, 'g': cPlain | cName | cAlpha, 'h': cPlain | cName | cAlpha,
	'i': cPlain | cName | cAlpha, 'j': cPlain | cName | cAlpha, 'k': cPlain | cName | cAlpha, 'l': cPlain | cName | cAlpha,
	'm': cPlain | cName | cAlpha, 'n': cPlain | cName | cAlpha, 'o': cPlain | cName | cAlpha, 'p': cPlain | cName | cAlpha,
	'q': cPlain | cName | cAlpha, 'r': cPlain | cName | cAlpha, 's': cPlain | cName | cAlpha, 't': cPlain | cName | cAlpha,
	'u': cPlain | cName | cAlpha, 'v': cPlain | cName | cAlpha, 'w': cPlain | cName | cAlpha, 'x': cPlain | cName | cAlpha,
	'y': cPlain | cName | cAlpha, 'z': cPlain | cName | cAlpha,
	'{': cDelim, '|': cDelim, '}': cDelim, '~': cBare | cDelim,
}

// hidden reports whether r is white space, a control or an invisible character. A frame never
// contains these raw, so that no text is invisible to a reader of the frame (ACCP-D05). The list is
// fixed and independent of the Unicode version.
func hidden(r rune) bool {
	switch {
	case r <= 0x20, r >= 0x7F && r <= 0xA0:
		return true
	case r < 0x34F:
		return r == 0xAD
	case r < 0x2000:
		return hiddenLetter(r)
	case r < 0xFE00:
		return hiddenMark(r)
	}
	return hiddenHigh(r)
}

// hiddenLetter is hidden for U+034F to U+1FFF.
func hiddenLetter(r rune) bool {
	return r == 0x34F || r == 0x61C || r == 0x115F || r == 0x1160 || r == 0x1680 ||
		r == 0x17B4 || r == 0x17B5 || r >= 0x180B && r <= 0x180F
}

// hiddenMark is hidden for U+2000 to U+FDFF.
func hiddenMark(r rune) bool {
	return r <= 0x200F || r >= 0x2028 && r <= 0x202F || r >= 0x205F && r <= 0x206F || r == 0x3000 || r == 0x3164
}

// hiddenHigh is hidden from U+FE00 on.
func hiddenHigh(r rune) bool {
	if r <= 0xFFFF {
		return r <= 0xFE0F || r == 0xFEFF || r == 0xFFA0 || r >= 0xFFF0 && r <= 0xFFFB
	}
	return r >= 0x1BCA0 && r <= 0x1BCA3 || r >= 0x1D173 && r <= 0x1D17A || r >= 0xE0000 && r <= 0xE0FFF
}

const maxName = 64 // bytes of a name or an intent (ACCP-D01, ACCP-D18)

// validName reports whether s is valid as an agent-id, operation or key (ACCP-D01).
func validName(s string) bool {
	if len(s) == 0 || len(s) > maxName {
		return false
	}
	for i := 0; i < len(s); i++ {
		if class[s[i]]&cName == 0 {
			return false
		}
	}
	return true
}

// validRef reports whether s is a ref-key: names joined by dots, the first of which starts with a
// letter (ACCP-D11).
func validRef[T ~string | ~[]byte](s T) bool {
	if len(s) == 0 || class[s[0]]&cAlpha == 0 {
		return false
	}
	dot := false
	for i := 0; i < len(s); i++ {
		switch {
		case class[s[i]]&cName != 0:
			dot = false
		case s[i] == '.' && !dot:
			dot = true
		default:
			return false
		}
	}
	return !dot
}

// numberForm returns KindInt for -?[0-9]+, KindDecimal for -?[0-9]+\.[0-9]+, and KindString for any
// other text.
func numberForm[T ~string | ~[]byte](s T) Kind {
	i := 0
	if len(s) > 0 && s[0] == '-' {
		i = 1
	}
	start := i
	for i < len(s) && class[s[i]]&cDigit != 0 {
		i++
	}
	if i == start {
		return KindString
	}
	if i == len(s) {
		return KindInt
	}
	if s[i] != '.' {
		return KindString
	}
	start = i + 1
	for i = start; i < len(s) && class[s[i]]&cDigit != 0; i++ {
	}
	if i == start || i < len(s) {
		return KindString
	}
	return KindDecimal
}

// looksTyped reports whether a bare string would be decoded as another type by the strict or the
// lenient reader (ACCP-D06, ACCP-D10).
func looksTyped(s string) bool {
	switch s {
	case "true", "false", "null":
		return true
	}
	return numberForm(s) != KindString
}
