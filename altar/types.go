// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package altar

import "strings"

// A Kind is one of the seven types of the specification without its arrays.
type Kind string

// The primitive types, and object. There are no others (ALT-005).
const (
	String  Kind = "string"  // UTF-8 text
	Integer Kind = "integer" // 64-bit signed
	Float   Kind = "float"   // 64-bit IEEE 754
	Boolean Kind = "boolean"
	Binary  Kind = "binary" // bytes, base64 in JSON
	Object  Kind = "object"
)

// maxTypeDepth bounds the depth of a parameter, arrays and properties counted
// together (D-07).
const maxTypeDepth = 32

// A Type is the type of a parameter: a base, inside of so many arrays.
type Type struct {
	Base Kind
	Dims int
}

// ParseType reads a type as it is written in a contract, such as
// array[integer] (D-07). The errors are invalid_type and too_deep.
func ParseType(s string) (Type, error) {
	rest := s
	dims := 0
	for strings.HasPrefix(rest, "array[") {
		rest = rest[len("array["):]
		dims++
	}
	base, ok := strings.CutSuffix(rest, strings.Repeat("]", dims))
	if !ok {
		return Type{}, &ContractError{Reason: ReasonInvalidType}
	}
	switch Kind(base) {
	case String, Integer, Float, Boolean, Binary, Object:
	default:
		return Type{}, &ContractError{Reason: ReasonInvalidType}
	}
	if 1+dims > maxTypeDepth {
		return Type{}, &ContractError{Reason: ReasonTooDeep}
	}
	return Type{Base: Kind(base), Dims: dims}, nil
}

// String returns the type as it is written in a contract.
func (t Type) String() string {
	return strings.Repeat("array[", t.Dims) + string(t.Base) + strings.Repeat("]", t.Dims)
}
