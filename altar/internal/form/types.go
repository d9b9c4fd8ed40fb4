// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package form

import "strings"

// The types of parameters without their arrays (ALT-005).
const (
	KindString  = "string"  // UTF-8 text
	KindInteger = "integer" // 64-bit signed
	KindFloat   = "float"   // 64-bit IEEE 754
	KindBoolean = "boolean"
	KindBinary  = "binary" // bytes, base64 in JSON
	KindObject  = "object"
)

// MaxTypeDepth bounds the depth of a parameter, arrays and properties counted together (ALT-D07).
const MaxTypeDepth = 32

// A Type is the type of a parameter: one of the kinds, inside of so many arrays.
type Type struct {
	Base string
	Dims int
}

// ParseType reads a type as a contract has it, such as array[string] (ALT-D07). The reason is empty
// without a failure.
func ParseType(s string) (t Type, reason string) {
	rest := s
	for strings.HasPrefix(rest, "array[") {
		rest = rest[len("array["):]
		t.Dims++
	}
	var ok bool
	t.Base, ok = strings.CutSuffix(rest, strings.Repeat("]", t.Dims))
	if !ok {
		return Type{}, InvalidType
	}
	switch t.Base {
	case KindString, KindInteger, KindFloat, KindBoolean, KindBinary, KindObject:
	default:
		return Type{}, InvalidType
	}
	if 1+t.Dims > MaxTypeDepth {
		return Type{}, TooDeep
	}
	return t, ""
}

// String returns the type as a contract has it.
func (t Type) String() string {
	return strings.Repeat("array[", t.Dims) + t.Base + strings.Repeat("]", t.Dims)
}
