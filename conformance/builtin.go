// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

// Builtin returns the protocols of this module with the operations of its
// packages. Every call returns new values, which a caller may change.
func Builtin() []Protocol {
	return []Protocol{ARC(), AIR(), A2E(), Altar(), ACCP()}
}
