// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package bpe

import (
	_ "embed"
	"unicode/utf8"
)

// A Class is the class of a character in the split rules.
type Class uint8

// The classes.
const (
	Other    Class = iota // neither letter nor number nor white space, nor a mark
	Upper                 // Lu, Lt
	Lower                 // Ll
	Neither               // Lm, Lo
	Combines              // M
	Numeric               // N
	Space                 // white space except newlines
	Newline               // LF, CR
)

// The sets of the rules.
const (
	letters = 1<<Upper | 1<<Lower | 1<<Neither
	uppers  = 1<<Upper | 1<<Neither | 1<<Combines
	lowers  = 1<<Lower | 1<<Neither | 1<<Combines
	both    = 1<<Neither | 1<<Combines
	symbols = 1<<Other | 1<<Combines
	spaces  = 1<<Space | 1<<Newline
	leading = 1<<Other | 1<<Combines | 1<<Space // neither letter nor number nor newline
)

func (c Class) in(set uint) bool { return 1<<c&set != 0 }

// UnicodeVersion is the Unicode version of the classes.
const UnicodeVersion = "15.0.0"

// classes has the block number of each 256 characters in two bytes, followed by the blocks.
//
//go:embed classes.bin
var classes string

const blocks = (utf8.MaxRune + 1) >> 8

// ClassOf returns the class of a character.
func ClassOf(r rune) Class {
	block := int(load16(classes, int(r>>8)*2))
	return Class(classes[2*blocks+block<<8+int(r&0xFF)])
}

// at returns the class of the character at i and the index of the next one. At the end of the text
// that index is i. An invalid byte is one character.
func at(s string, i int) (Class, int) {
	if i >= len(s) {
		return 0, i
	}
	if c := s[i]; c < utf8.RuneSelf {
		return Class(classes[2*blocks+int(c)]), i + 1 // block 0 comes first
	}
	r, size := utf8.DecodeRuneInString(s[i:])
	return ClassOf(r), i + size
}

// run returns the end of the run of characters of a set that starts at i.
func run(s string, i int, set uint) int {
	for {
		c, next := at(s, i)
		if next == i || !c.in(set) {
			return i
		}
		i = next
	}
}

// contraction returns the end of 's 't 're 've 'm 'll 'd, in either case, that starts at i, or i
// without one.
func contraction(s string, i int) int {
	if i+1 >= len(s) || s[i] != '\'' {
		return i
	}
	switch s[i+1] | 0x20 {
	case 's', 't', 'm', 'd':
		return i + 2
	}
	if i+2 < len(s) {
		switch [2]byte{s[i+1] | 0x20, s[i+2] | 0x20} {
		case [2]byte{'r', 'e'}, [2]byte{'v', 'e'}, [2]byte{'l', 'l'}:
			return i + 3
		}
	}
	return i
}

// O200k returns the end of the first piece of s, which must not be empty, by the rule of
// o200k_base:
//
//	[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?
//	|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?
//	|\p{N}{1,3}
//	| ?[^\s\p{L}\p{N}]+[\r\n/]*
//	|\s*[\r\n]+|\s+(?!\S)|\s+
func O200k(s string) int {
	c, next := at(s, 0)
	end := 0
	switch {
	case c.in(letters):
		end = word(s, 0)
	case c == Numeric:
		return number(s)
	case c == Combines: // may precede a word or start it
		if end = lowerWord(s, next); end == 0 {
			end = lowerWord(s, 0) // never 0: the mark alone is a word
		}
	case c.in(leading):
		end = word(s, next)
	}
	if end > 0 {
		return contraction(s, end)
	}
	if end = symbolRun(s, c, next); end > 0 {
		for end < len(s) && (s[end] == '\r' || s[end] == '\n' || s[end] == '/') {
			end++
		}
		return end
	}
	return blank(s)
}

// word returns the end of the word that starts at i by the first applicable rule of the two for
// words, or 0.
func word(s string, i int) int {
	if end := lowerWord(s, i); end > 0 {
		return end
	}
	// No small letter follows, so the second rule ends here too.
	if end := run(s, i, uppers); end > i {
		return end
	}
	return 0
}

// lowerWord returns the end of a word of any number of capitals and then at least one small letter,
// or 0. Characters that are neither count as both.
func lowerWord(s string, i int) int {
	last := 0 // after the last character that can be the small letter
	for {
		c, next := at(s, i)
		switch {
		case next == i:
			return last
		case c == Lower:
			return run(s, next, lowers)
		case !c.in(uppers):
			return last
		case c.in(both):
			last = next
		}
		i = next
	}
}

// CL100k is the rule of cl100k_base:
//
//	(?i:'s|'t|'re|'ve|'m|'ll|'d)
//	|[^\r\n\p{L}\p{N}]?\p{L}+
//	|\p{N}{1,3}
//	| ?[^\s\p{L}\p{N}]+[\r\n]*
//	|\s*[\r\n]+|\s+(?!\S)|\s+
func CL100k(s string) int {
	if end := contraction(s, 0); end > 0 {
		return end
	}
	c, next := at(s, 0)
	switch {
	case c.in(letters):
		return run(s, next, letters)
	case c == Numeric:
		return number(s)
	case c.in(leading):
		if end := run(s, next, letters); end > next {
			return end
		}
	}
	if end := symbolRun(s, c, next); end > 0 {
		for end < len(s) && (s[end] == '\r' || s[end] == '\n') {
			end++
		}
		return end
	}
	return blank(s)
}

// number returns the end of the one to three digits at the start of s.
func number(s string) int {
	i := 0
	for range 3 {
		c, next := at(s, i)
		if next == i || c != Numeric {
			break
		}
		i = next
	}
	return i
}

// symbolRun returns the end of the symbols that start with a character of class c before next,
// after an optional space, or 0.
func symbolRun(s string, c Class, next int) int {
	if c.in(symbols) {
		return run(s, next, symbols)
	}
	if s[0] == ' ' {
		if end := run(s, next, symbols); end > next {
			return end
		}
	}
	return 0
}

// blank returns the end of the first piece of white space: after its last newline, or without one
// before its last character, which belongs to the next piece.
func blank(s string) int {
	newline, last, i := 0, 0, 0
	for {
		c, next := at(s, i)
		if next == i {
			last = i // nothing follows
			break
		}
		if !c.in(spaces) {
			break
		}
		if c == Newline {
			newline = next
		}
		last, i = i, next
	}
	switch {
	case newline > 0:
		return newline
	case last > 0:
		return last
	}
	return i
}
