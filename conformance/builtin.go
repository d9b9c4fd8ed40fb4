// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

// Builtin returns the protocols of this module with the operations of its own
// packages, made anew at every call, so that a caller may change them.
func Builtin() []Protocol {
	return []Protocol{ARC(), AIR(), A2E(), Altar(), ACCP()}
}
