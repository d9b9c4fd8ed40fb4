// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package strictjson

import (
	"maps"
	"slices"
	"strconv"
)

// AppendCanonical appends a text of a checked value that is the same for all values that are [Equal]: members
// in the order of their names, strings and numbers in one form. Numbers with exponents of more than
// 18 digits keep their text.
func AppendCanonical(dst []byte, v Value) []byte {
	if len(v) == 0 {
		return dst
	}
	return appendNode(dst, parseNode(v))
}

func appendNode(dst []byte, n node) []byte {
	switch n.text.Kind() {
	case '{':
		dst = append(dst, '{')
		for _, name := range slices.Sorted(maps.Keys(n.members)) {
			dst = append(AppendString(dst, name), ':')
			dst = append(appendNode(dst, n.members[name]), ',')
		}
		return append(dst, '}')
	case '[':
		dst = append(dst, '[')
		for _, e := range n.elements {
			dst = append(appendNode(dst, e), ',')
		}
		return append(dst, ']')
	case '"':
		return AppendString(dst, unquoted(n.text))
	case '0':
		return appendDecimal(dst, n.text)
	}
	return append(dst, n.text...)
}

func appendDecimal(dst []byte, text Value) []byte {
	d, ok := parseDecimal(text)
	if !ok {
		return append(dst, text...)
	}
	if d.neg {
		dst = append(dst, '-')
	}
	dst = append(append(dst, '0'), d.digits...)
	return strconv.AppendInt(append(dst, 'e'), d.exp, 10)
}
