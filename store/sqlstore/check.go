// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package sqlstore

import (
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/fivewire/fivewire/store"
)

func checkWrite(what, name string, value []byte, ttl time.Duration) error {
	if err := store.ValidateName(what, name); err != nil {
		return err
	}
	if len(value) > store.MaxValue {
		return fmt.Errorf("%w: value of %d bytes, over %d", store.ErrInvalid, len(value), store.MaxValue)
	}
	return store.ValidateTTL(ttl)
}

// micros is ttl in the unit of both databases, rounded up so that nothing that
// is mortal becomes immortal.
func micros(ttl time.Duration) int64 {
	n := ttl.Microseconds()
	if ttl%time.Microsecond > 0 {
		n++
	}
	return n
}

// highest is above every name: longer than any, of the highest letter only.
var highest = strings.Repeat(string(utf8.MaxRune), store.MaxKey/utf8.UTFMax+1)

// above returns the lowest text that is above all which begin with prefix. It
// stays valid UTF-8, since PostgreSQL takes nothing else, and in that the order
// of letters is that of bytes.
func above(prefix string) string {
	for prefix != "" {
		r, size := utf8.DecodeLastRuneInString(prefix)
		prefix = prefix[:len(prefix)-size]
		if r == utf8.MaxRune {
			continue
		}
		if r++; r == 0xd800 { // surrogates are no letters
			r = 0xe000
		}
		return prefix + string(r)
	}
	return highest
}

// after returns the lowest name above name: no name has the letter zero.
func after(name string) string { return name + "\x01" }
