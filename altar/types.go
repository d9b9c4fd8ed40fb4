// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package altar

import "strings"

// A Kind is one of the seven types of the specification without its arrays.
type Kind string

// The primitive types, and object. There are no others (ALT-005).
const (
	KindString  Kind = "string"  // UTF-8 text
	KindInteger Kind = "integer" // 64-bit signed
	KindFloat   Kind = "float"   // 64-bit IEEE 754
	KindBoolean Kind = "boolean"
	KindBinary  Kind = "binary" // bytes, base64 in JSON
	KindObject  Kind = "object"
)

// maxTypeDepth bounds the depth of a parameter, arrays and properties counted
// together (ALT-D07).
const maxTypeDepth = 32

// A ParamType is the type of a parameter: a base, inside of so many arrays.
type ParamType struct {
	Base Kind
	Dims int
}

// ParseParamType reads a type as it is written in a contract, such as
// array[integer] (ALT-D07). The errors are invalid_type and too_deep.
func ParseParamType(s string) (ParamType, error) {
	rest := s
	dims := 0
	for strings.HasPrefix(rest, "array[") {
		rest = rest[len("array["):]
		dims++
	}
	base, ok := strings.CutSuffix(rest, strings.Repeat("]", dims))
	if !ok {
		return ParamType{}, &ContractError{Reason: reasonInvalidType}
	}
	switch Kind(base) {
	case KindString, KindInteger, KindFloat, KindBoolean, KindBinary, KindObject:
	default:
		return ParamType{}, &ContractError{Reason: reasonInvalidType}
	}
	if 1+dims > maxTypeDepth {
		return ParamType{}, &ContractError{Reason: reasonTooDeep}
	}
	return ParamType{Base: Kind(base), Dims: dims}, nil
}

// String returns the type as it is written in a contract.
func (t ParamType) String() string {
	return strings.Repeat("array[", t.Dims) + string(t.Base) + strings.Repeat("]", t.Dims)
}
