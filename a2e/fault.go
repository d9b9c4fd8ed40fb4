// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package a2e

import (
	"bytes"
	"unicode/utf8"

	"github.com/fivewire/fivewire/internal/strictjson"
)

// textFault finds out what is wrong with a line that the strict reader refused.
// One pass goes through the text and stops at what comes first: a syntax error,
// the bracket that is one too deep, or the end of a repeated name (A2E-D15).
func textFault(line []byte, maxDepth int) *Error {
	if !utf8.Valid(line) {
		return reasoned(ErrParse, ReasonInvalidUTF8, "line is not valid UTF-8")
	}
	s := scanner{text: line, maxDepth: maxDepth}
	s.space()
	reason := s.value(0)
	if reason == "" {
		if s.space(); s.at < len(s.text) {
			reason = ReasonInvalidJSON
		}
	}
	switch reason {
	case ReasonTooDeep:
		return reasoned(ErrInvalidMessage, reason, "message is nested too deep")
	case ReasonDuplicateKey:
		return reasoned(ErrInvalidMessage, reason, "a member name stands twice in one object")
	}
	return reasoned(ErrParse, ReasonInvalidJSON, "line is not valid JSON")
}

// A scanner walks over text of which nothing is known but that it is UTF-8.
type scanner struct {
	text     []byte
	at       int
	maxDepth int
	repeats  bool // repeated names are nothing to stop at
}

func (s *scanner) space() {
	for s.at < len(s.text) {
		switch s.text[s.at] {
		case ' ', '\t', '\r', '\n':
			s.at++
		default:
			return
		}
	}
}

func (s *scanner) peek() byte {
	if s.at < len(s.text) {
		return s.text[s.at]
	}
	return 0
}

// value passes over one value, inside depth brackets, and returns the reason why
// it cannot.
func (s *scanner) value(depth int) string {
	switch c := s.peek(); c {
	case '{', '[':
		if depth >= s.maxDepth {
			return ReasonTooDeep
		}
		s.at++
		if c == '{' {
			return s.object(depth + 1)
		}
		return s.array(depth + 1)
	case '"':
		_, reason := s.str()
		return reason
	default:
		start := s.at
		for s.at < len(s.text) && !bytes.ContainsRune([]byte(",]} \t\r\n:\"[{"), rune(s.text[s.at])) {
			s.at++
		}
		if _, err := strictjson.Check(s.text[start:s.at], strictjson.Options{}); err != nil {
			return ReasonInvalidJSON
		}
		return ""
	}
}

func (s *scanner) object(depth int) string {
	names := map[string]bool{}
	for first := true; ; first = false {
		s.space()
		if s.peek() == '}' && first {
			s.at++
			return ""
		}
		if s.peek() != '"' {
			return ReasonInvalidJSON
		}
		name, reason := s.str()
		if reason != "" {
			return reason
		}
		if names[name] && !s.repeats {
			return ReasonDuplicateKey
		}
		names[name] = true
		s.space()
		if s.peek() != ':' {
			return ReasonInvalidJSON
		}
		s.at++
		s.space()
		if reason := s.value(depth); reason != "" {
			return reason
		}
		s.space()
		switch s.peek() {
		case ',':
			s.at++
		case '}':
			s.at++
			return ""
		default:
			return ReasonInvalidJSON
		}
	}
}

func (s *scanner) array(depth int) string {
	for first := true; ; first = false {
		s.space()
		if s.peek() == ']' && first {
			s.at++
			return ""
		}
		if reason := s.value(depth); reason != "" {
			return reason
		}
		s.space()
		switch s.peek() {
		case ',':
			s.at++
		case ']':
			s.at++
			return ""
		default:
			return ReasonInvalidJSON
		}
	}
}

// str passes over a string and returns its text. The strict reader judges it.
func (s *scanner) str() (string, string) {
	start := s.at
	for s.at++; s.at < len(s.text); s.at++ {
		switch c := s.text[s.at]; {
		case c == '\\':
			s.at++
		case c < ' ':
			return "", ReasonInvalidJSON
		case c == '"':
			s.at++
			v, err := strictjson.Check(s.text[start:s.at], strictjson.Options{})
			if err != nil {
				return "", ReasonInvalidJSON
			}
			text, _ := v.Text()
			return text, ""
		}
	}
	return "", ReasonInvalidJSON
}

// dropNonFinite replaces the three tokens that some writers emit for floats that
// JSON cannot hold. It looks outside of strings only and leaves everything else
// to the strict reader.
func dropNonFinite(line []byte) []byte {
	out := make([]byte, 0, len(line))
	for i := 0; i < len(line); {
		if line[i] == '"' {
			end, _ := stringEnd(line, i, false)
			out = append(out, line[i:end]...)
			i = end
			continue
		}
		rest := line[i:]
		replaced := false
		for _, token := range [...]string{"NaN", "-Infinity", "Infinity"} {
			if bytes.HasPrefix(rest, []byte(token)) {
				out = append(out, "null"...)
				i += len(token)
				replaced = true
				break
			}
		}
		if !replaced {
			out = append(out, line[i])
			i++
		}
	}
	return out
}
