// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package bpe

import "unicode"

// Classify returns the class of a character by the tables of package unicode, from which the
// embedded tables are generated.
func Classify(r rune) Class {
	switch {
	case r == '\n', r == '\r':
		return Newline
	case unicode.IsSpace(r):
		return Space
	case unicode.In(r, unicode.Lu, unicode.Lt):
		return Upper
	case unicode.Is(unicode.Ll, r):
		return Lower
	case unicode.In(r, unicode.Lm, unicode.Lo):
		return Neither
	case unicode.Is(unicode.M, r):
		return Combines
	case unicode.Is(unicode.N, r):
		return Numeric
	}
	return Other
}
