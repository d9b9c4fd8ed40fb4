// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"fmt"
	"strings"
	"time"
	"unicode/utf8"
)

// ValidateID is for engines. It refuses an id or a prefix outside the limits at
// [MaxKey] with [ErrInvalid]. The error contains what, the name of the argument,
// but not the text, which may be long or secret.
func ValidateID(what, s string) error {
	switch {
	case len(s) > MaxKey:
		return fmt.Errorf("%w: %s of %d bytes, over %d", ErrInvalid, what, len(s), MaxKey)
	case strings.IndexByte(s, 0) >= 0:
		return fmt.Errorf("%w: %s with NUL", ErrInvalid, what)
	case !utf8.ValidString(s):
		return fmt.Errorf("%w: %s is not UTF-8", ErrInvalid, what)
	}
	return nil
}

// ValidateName is [ValidateID] for keys and stream names, which must not be empty.
func ValidateName(what, s string) error {
	if s == "" {
		return fmt.Errorf("%w: empty %s", ErrInvalid, what)
	}
	return ValidateID(what, s)
}

func checkValue(value []byte) error {
	if len(value) > MaxValue {
		return fmt.Errorf("%w: value of %d bytes, over %d", ErrInvalid, len(value), MaxValue)
	}
	return nil
}

// ValidateTTL is for engines. It refuses a negative ttl with [ErrInvalid]: such a
// ttl mostly comes from an expired deadline.
func ValidateTTL(ttl time.Duration) error {
	if ttl < 0 {
		return fmt.Errorf("%w: negative ttl %v", ErrInvalid, ttl)
	}
	return nil
}
