// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"errors"
	"fmt"
	"strings"
)

// ErrCorrupt reports that an engine found its own data damaged or missing. Every
// [CorruptError] and [LossError] matches it. A repetition returns the same error.
var ErrCorrupt = errors.New("store: damaged data")

// A CorruptError names data that differs from the stored data. The engine returns it in
// place of the data, and never a changed value. Empty fields are unknown.
type CorruptError struct {
	corrupt

	Path     string // the file, schema or JetStream stream
	Stream   string // of a damaged record
	Key      string // of a damaged entry
	Position uint64 // of a damaged record, or the revision of an entry
	Cause    error  // what the database reported; may be nil
}

// Error names the place of the damage.
func (e *CorruptError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "store: damaged data in %s", e.Path)
	if e.Stream != "" {
		fmt.Fprintf(&b, ": stream %q", e.Stream)
	}
	if e.Key != "" {
		fmt.Fprintf(&b, ": key %q", e.Key)
	}
	if e.Position != 0 {
		fmt.Fprintf(&b, ": position %d", e.Position)
	}
	if e.Cause != nil {
		fmt.Fprintf(&b, ": %v", e.Cause)
	}
	return b.String()
}

// A LossError reports that data ends before the high-water mark: it was truncated, or
// replaced by an older copy.
type LossError struct {
	corrupt

	Path string // the file, schema or JetStream stream
	Have uint64 // the highest position or revision of the data
	Want uint64 // the highest one that was acknowledged; zero if the mark itself is missing
}

// Error names the missing positions.
func (e *LossError) Error() string {
	if e.Want == 0 {
		return fmt.Sprintf("store: data lost in %s: the high-water mark is missing, and the data ends at position %d", e.Path, e.Have)
	}
	return fmt.Sprintf("store: data lost in %s: positions %d to %d are missing", e.Path, e.Have+1, e.Want)
}

// corrupt makes an error match ErrCorrupt.
type corrupt struct{}

func (corrupt) Unwrap() error { return ErrCorrupt }
