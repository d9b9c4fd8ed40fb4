// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package strictjson

import "bytes"

// Equal reports whether two checked values have the same content: numbers by their
// exact value, strings by their text, members in any order. Two absent values are
// equal. The time is linear in the length of both.
func Equal(a, b Value) bool { return equalBy(a, b, EqualNumbers) }

// EqualText is [Equal], but compares numbers by their text: 1 and 1.0 differ.
func EqualText(a, b Value) bool {
	return equalBy(a, b, func(x, y Value) bool { return bytes.Equal(x, y) })
}

func equalBy(a, b Value, numbers func(a, b Value) bool) bool {
	if bytes.Equal(a, b) {
		return true
	}
	if len(a) == 0 || len(b) == 0 {
		return false
	}
	return equalNodes(parseNode(a), parseNode(b), numbers)
}

// A node is a value with its parts, which are found in one pass.
type node struct {
	text     Value
	elements []node
	members  map[string]node
}

func parseNode(v Value) node {
	n, _ := nodeAt(v, 0)
	return n
}

// nodeAt returns the value that begins at s[i], and where it ends.
func nodeAt(s Value, i int) (node, int) {
	var n node
	start := i
	switch s[i] {
	case '{':
		n.members = map[string]node{}
		for i = space(s, i+1); !closing(s[i]); i = following(s, i) {
			end := stringEnd(s, i)
			name := string(unquoted(s[i:end]))
			n.members[name], i = nodeAt(s, space(s, space(s, end)+1)) // behind the colon
		}
		i++
	case '[':
		for i = space(s, i+1); !closing(s[i]); i = following(s, i) {
			var e node
			e, i = nodeAt(s, i)
			n.elements = append(n.elements, e)
		}
		i++
	default:
		i = valueEnd(s, i)
	}
	n.text = s[start:i]
	return n, i
}

func equalNodes(a, b node, numbers func(a, b Value) bool) bool {
	if a.text.Kind() != b.text.Kind() || len(a.elements) != len(b.elements) || len(a.members) != len(b.members) {
		return false
	}
	switch a.text.Kind() {
	case '"':
		return bytes.Equal(unquoted(a.text), unquoted(b.text))
	case '0':
		return numbers(a.text, b.text)
	}
	for i := range a.elements {
		if !equalNodes(a.elements[i], b.elements[i], numbers) {
			return false
		}
	}
	for name, x := range a.members {
		y, ok := b.members[name]
		if !ok || !equalNodes(x, y, numbers) {
			return false
		}
	}
	return true
}
