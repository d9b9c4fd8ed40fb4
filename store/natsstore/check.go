// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package natsstore

import (
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/fivewire/fivewire/store"
)

// checkText refuses what store.MaxKey and its neighbours rule out. The text is
// left out of the error: it may be long and it may be a secret.
func checkText(what, s string) error {
	switch {
	case len(s) > store.MaxKey:
		return fmt.Errorf("%w: %s of %d bytes, over %d", store.ErrInvalid, what, len(s), store.MaxKey)
	case strings.IndexByte(s, 0) >= 0:
		return fmt.Errorf("%w: %s with NUL", store.ErrInvalid, what)
	case !utf8.ValidString(s):
		return fmt.Errorf("%w: %s is not UTF-8", store.ErrInvalid, what)
	}
	return nil
}

// checkName is checkText for what must not be empty: keys and stream names.
func checkName(what, s string) error {
	if s == "" {
		return fmt.Errorf("%w: empty %s", store.ErrInvalid, what)
	}
	return checkText(what, s)
}

func (s *Store) checkValue(value []byte) error {
	if most := s.MaxValue(); len(value) > most {
		return fmt.Errorf("%w: value of %d bytes, over %d", store.ErrInvalid, len(value), most)
	}
	return nil
}

func checkTTL(ttl time.Duration) error {
	if ttl < 0 {
		return fmt.Errorf("%w: negative ttl %v", store.ErrInvalid, ttl)
	}
	return nil
}
