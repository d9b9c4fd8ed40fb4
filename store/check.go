// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"fmt"
	"strings"
	"time"
	"unicode/utf8"
)

// checkText refuses what [MaxKey] and its neighbours rule out. The text itself
// is left out of the error: it may be long and it may be a secret.
func checkText(what, s string) error {
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

// checkName is checkText for what must not be empty: keys and stream names.
func checkName(what, s string) error {
	if s == "" {
		return fmt.Errorf("%w: empty %s", ErrInvalid, what)
	}
	return checkText(what, s)
}

func checkValue(value []byte) error {
	if len(value) > MaxValue {
		return fmt.Errorf("%w: value of %d bytes, over %d", ErrInvalid, len(value), MaxValue)
	}
	return nil
}

// checkTTL refuses a negative ttl. It is mostly a deadline that has passed, and
// one more nanosecond of it would have meant for ever.
func checkTTL(ttl time.Duration) error {
	if ttl < 0 {
		return fmt.Errorf("%w: negative ttl %v", ErrInvalid, ttl)
	}
	return nil
}
