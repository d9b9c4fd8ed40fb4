// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package wire holds functions shared by package a2e and the namespaces of A2E.
package wire

import (
	"cmp"
	"encoding/json"
	"strings"
	"time"

	"github.com/fivewire/fivewire/internal/strictjson"
)

// CheckJSON checks a JSON text with a depth of at most 10,000. The limits of messages are narrower.
func CheckJSON(text []byte) (strictjson.Value, error) {
	return strictjson.Check(text, strictjson.Options{MaxDepth: 10000})
}

// Timestamp returns t as Unix seconds, as the members created_at and the like hold them.
func Timestamp(t time.Time) float64 { return float64(t.UnixMicro()) / 1e6 }

// EqualJSON reports whether two JSON texts have the same value: numbers by their exact value,
// strings by their text, members in any order. Text that is not strict JSON equals nothing.
func EqualJSON(a, b json.RawMessage) bool {
	x, err1 := CheckJSON(a)
	y, err2 := CheckJSON(b)
	return err1 == nil && err2 == nil && strictjson.Equal(x, y)
}

// Clip bounds what an answer repeats of a request (A2E-D51).
func Clip(s string) string {
	if len(s) <= 200 {
		return s
	}
	return strings.ToValidUTF8(s[:200], "")
}

// Seconds returns a time limit as a duration, at most the longest one, and 0 for one of 0.
func Seconds[L ~int64](n, unset L) time.Duration {
	n = max(cmp.Or(n, unset), 0)
	return time.Duration(min(int64(n), int64(1<<62/time.Second))) * time.Second
}

// Violation returns the text of a violation with the wanted and the received type or value, either of
// which may be empty.
func Violation(text, want, got string) string {
	if want != "" {
		text += ", want " + Clip(want)
	}
	if got != "" {
		text += ", got " + Clip(got)
	}
	return text
}

// KindName returns the name of the JSON type of a value.
func KindName(v strictjson.Value) string {
	switch v.Kind() {
	case '{':
		return "object"
	case '[':
		return "array"
	case '"':
		return "string"
	case '0':
		return "number"
	case 't', 'f':
		return "boolean"
	case 'n':
		return "null"
	}
	return "nothing"
}
