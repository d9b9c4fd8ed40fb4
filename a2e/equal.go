// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package a2e

import (
	"encoding/json"

	"github.com/fivewire/fivewire/internal/strictjson"
)

// EqualJSON reports whether two JSON texts say the same: numbers by their exact
// value, strings by their text, members in any order. Text that is no strict
// JSON equals nothing.
func EqualJSON(a, b json.RawMessage) bool {
	x, err1 := strictjson.Check(a, strictjson.Options{MaxDepth: 10000})
	y, err2 := strictjson.Check(b, strictjson.Options{MaxDepth: 10000})
	return err1 == nil && err2 == nil && equalValues(x, y)
}

func equalValues(a, b strictjson.Value) bool {
	if a.Kind() != b.Kind() {
		return false
	}
	switch a.Kind() {
	case '"':
		x, _ := a.TextBytes()
		y, _ := b.TextBytes()
		return string(x) == string(y)
	case '0':
		return strictjson.EqualNumbers(a, b)
	case '[':
		x, y := a.Elements(), b.Elements()
		for x.Next() {
			if !y.Next() || !equalValues(x.Value, y.Value) {
				return false
			}
		}
		return !y.Next()
	case '{':
		rest := make(map[string]strictjson.Value)
		for m := b.Members(); m.Next(); {
			rest[string(m.Name)] = m.Value
		}
		for m := a.Members(); m.Next(); {
			v, ok := rest[string(m.Name)]
			if !ok || !equalValues(m.Value, v) {
				return false
			}
			delete(rest, string(m.Name))
		}
		return len(rest) == 0
	}
	return true
}
