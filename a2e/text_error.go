// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package a2e

import (
	"bytes"
	"unicode/utf8"

	"github.com/fivewire/fivewire/internal/strictjson"
)

// textError returns the error of a line that the strict reader refused. One pass stops at the first
// error: a syntax error, the first bracket beyond the depth limit, or the end of a repeated name
// (A2E-D15).
func textError(line []byte, maxDepth int) *Error {
	if !utf8.Valid(line) {
		return reasoned(ErrParse, reasonInvalidUTF8, "line is not valid UTF-8")
	}
	s := scanner{text: line, maxDepth: maxDepth}
	s.space()
	reason := s.value(0)
	if reason == "" {
		if s.space(); s.at < len(s.text) {
			reason = reasonInvalidJSON
		}
	}
	switch reason {
	case ReasonTooDeep:
		return reasoned(ErrInvalidMessage, reason, "message is nested too deep")
	case reasonDuplicateKey:
		return reasoned(ErrInvalidMessage, reason, "a member name stands twice in one object")
	}
	return reasoned(ErrParse, reasonInvalidJSON, "line is not valid JSON")
}

// A scanner reads text that is valid UTF-8 but otherwise unchecked.
type scanner struct {
	text     []byte
	at       int
	maxDepth int
	repeats  bool // repeated names are not an error

	member func(name string, value []byte) // of the outermost object; may be nil
}

// headMembers returns the texts of id, type and req_id, if they are complete in the beginning of a
// line that is too long (A2E-D06). The first member of each name counts.
func headMembers(head []byte) (id, msgType, refID string) {
	end := 0
	for end < len(head) {
		r, n := utf8.DecodeRune(head[end:])
		if r == utf8.RuneError && n == 1 {
			break
		}
		end += n
	}
	found := map[string]string{}
	s := scanner{text: head[:end], maxDepth: maxDepth, repeats: true, member: func(name string, value []byte) {
		if _, isRepeated := found[name]; !isRepeated {
			found[name], _ = strictjson.Value(value).Text()
		}
	}}
	if s.space(); s.peek() == '{' {
		s.value(0)
	}
	if len(found["id"]) > maxName {
		delete(found, "id")
	}
	return found["id"], found["type"], found["req_id"]
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

// value skips one value inside depth brackets, and returns the reason of an error or "".
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
			return reasonInvalidJSON
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
			return reasonInvalidJSON
		}
		name, reason := s.str()
		if reason != "" {
			return reason
		}
		if names[name] && !s.repeats {
			return reasonDuplicateKey
		}
		names[name] = true
		s.space()
		if s.peek() != ':' {
			return reasonInvalidJSON
		}
		s.at++
		s.space()
		start := s.at
		if reason := s.value(depth); reason != "" {
			return reason
		}
		if s.member != nil && depth == 1 {
			s.member(name, s.text[start:s.at])
		}
		s.space()
		switch s.peek() {
		case ',':
			s.at++
		case '}':
			s.at++
			return ""
		default:
			return reasonInvalidJSON
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
			return reasonInvalidJSON
		}
	}
}

// str skips a string and returns its text. The strict reader checks its content.
func (s *scanner) str() (string, string) {
	start := s.at
	for s.at++; s.at < len(s.text); s.at++ {
		switch c := s.text[s.at]; {
		case c == '\\':
			s.at++
		case c < ' ':
			return "", reasonInvalidJSON
		case c == '"':
			s.at++
			v, err := strictjson.Check(s.text[start:s.at], strictjson.Options{})
			if err != nil {
				return "", reasonInvalidJSON
			}
			text, _ := v.Text()
			return text, ""
		}
	}
	return "", reasonInvalidJSON
}

// dropNonFinite replaces the three tokens of some writers for non-finite floats, outside strings
// only. The strict reader checks the rest.
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

// of notes the type and the req_id of the refused line.
func (e *Error) of(line []byte) *Error {
	v := strictjson.Value(bytes.Trim(line, " \t\r\n"))
	e.refID, _ = v.Get("req_id").Text()
	e.msgType, _ = v.Get("type").Text()
	return e
}
