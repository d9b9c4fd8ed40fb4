// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package form

// Reasons of faults in contracts and in forms of other peers.
const (
	DuplicateName         = "duplicate_name"
	InvalidName           = "invalid_name"
	InvalidType           = "invalid_type"
	InvalidValue          = "invalid_value"
	MissingField          = "missing_field"
	PropertiesNotAllowed  = "properties_not_allowed"
	TooDeep               = "too_deep"
	UnknownField          = "unknown_field"
	UnsupportedConstraint = "unsupported_constraint"
	WrongType             = "wrong_type"
)
