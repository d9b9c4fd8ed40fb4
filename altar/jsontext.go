// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package altar

import (
	"bytes"
	"errors"
	"strconv"
	"strings"

	"github.com/fivewire/fivewire/internal/strictjson"
)

// maxDepth bounds the nesting of every text from outside; the outermost object
// has depth 1 (ALT-D06).
const maxDepth = 64

// check reads untrusted text as an object. Its reasons are those of section d of the reference. A
// depth of 0 means maxDepth.
func check(data []byte, depth int) (strictjson.Value, Reason) {
	if depth <= 0 {
		depth = maxDepth
	}
	v, err := strictjson.Check(data, strictjson.Options{MaxDepth: depth})
	if err == nil {
		if !v.IsObject() {
			return nil, ReasonNotAnObject
		}
		return v, ""
	}
	var fault *strictjson.Error
	if !errors.As(err, &fault) {
		return nil, ReasonMalformedJSON
	}
	switch fault.Kind {
	case strictjson.UTF8:
		return nil, ReasonInvalidUnicode
	case strictjson.Duplicate:
		return nil, ReasonDuplicateKey
	case strictjson.Depth:
		return nil, ReasonTooDeep
	case strictjson.Syntax:
		// An unpaired surrogate has a separate reason: check whether it is the only defect.
		_, err = strictjson.Check(data, strictjson.Options{MaxDepth: depth, LoneSurrogates: true})
		if err == nil {
			return nil, ReasonInvalidUnicode
		}
		if errors.As(err, &fault) && (fault.Kind == strictjson.Duplicate || fault.Kind == strictjson.Depth) {
			return nil, ReasonInvalidUnicode
		}
	}
	return nil, ReasonMalformedJSON
}

// appendString appends s as a JSON string with the least escapes.
func appendString(dst []byte, s string) []byte {
	for i := range len(s) {
		if c := s[i]; c < 0x20 || c == '"' || c == '\\' || c >= 0x80 {
			return strictjson.AppendString(dst, s)
		}
	}
	dst = append(dst, '"')
	dst = append(dst, s...)
	return append(dst, '"')
}

// appendText appends a checked value without white space and with the least
// escapes in its strings. Numbers stay as they are written.
func appendText(dst []byte, v []byte) []byte {
	for i := 0; i < len(v); {
		switch c := v[i]; c {
		case '"':
			end := i + 1
			escaped := false
			for {
				j := bytes.IndexByte(v[end:], '"')
				if j < 0 {
					return append(dst, v[i:]...) // not reached with a checked value
				}
				part := v[end : end+j]
				end += j + 1
				n := 0
				for len(part) > n && part[len(part)-1-n] == '\\' {
					n++
				}
				escaped = escaped || bytes.IndexByte(part, '\\') >= 0
				if n%2 == 0 {
					break
				}
			}
			if escaped {
				dst = appendValueString(dst, strictjson.Value(v[i:end]))
			} else {
				dst = append(dst, v[i:end]...)
			}
			i = end
		case ' ', '\t', '\n', '\r':
			i++
		default:
			start := i
			for i < len(v) && v[i] != '"' && v[i] > ' ' {
				i++
			}
			dst = append(dst, v[start:i]...)
		}
	}
	return dst
}

// appendValueString appends a checked string with the least escapes.
func appendValueString(dst []byte, v strictjson.Value) []byte {
	if bytes.IndexByte(v, '\\') < 0 {
		return append(dst, v...)
	}
	b, _ := v.TextBytes()
	return strictjson.AppendString(dst, b)
}

func appendInt(dst []byte, n int64) []byte { return strconv.AppendInt(dst, n, 10) }

// pointer appends a member name to a JSON Pointer.
func pointer(path, name string) string {
	if strings.ContainsAny(name, "~/") {
		name = strings.NewReplacer("~", "~0", "/", "~1").Replace(name)
	}
	return path + "/" + name
}

func pointerIndex(path string, i int) string { return path + "/" + strconv.Itoa(i) }

// equalJSON compares two checked values: numbers exactly, members in any order.
func equalJSON(a, b strictjson.Value) bool {
	if bytes.Equal(a, b) {
		return true
	}
	if a.Kind() != b.Kind() {
		return false
	}
	switch a.Kind() {
	case '"':
		x, _ := a.TextBytes()
		y, _ := b.TextBytes()
		return bytes.Equal(x, y)
	case '0':
		return strictjson.EqualNumbers(a, b)
	case '[':
		x, y := a.Elements(), b.Elements()
		for x.Next() {
			if !y.Next() || !equalJSON(x.Value, y.Value) {
				return false
			}
		}
		return !y.Next()
	case '{':
		left := make(map[string]strictjson.Value)
		for m := a.Members(); m.Next(); {
			left[string(m.Name)] = m.Value
		}
		for m := b.Members(); m.Next(); {
			v, ok := left[string(m.Name)]
			if !ok || !equalJSON(v, m.Value) {
				return false
			}
			delete(left, string(m.Name))
		}
		return len(left) == 0
	}
	return true // true, false and null are their kind
}
