// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package air

import (
	"sync"

	"github.com/fivewire/fivewire/air/internal/canon"
)

// Canonicalize returns the canonical form of a JSON text: members sorted by the UTF-16 code units
// of their names, no white space, the fewest escapes, string values in NFC, integers unchanged.
//
// The error is [ErrInvalidJSON], [ErrDuplicateKey] or [ErrFloatForbidden]. If several apply, the
// first of this order is returned, wherever in the text each of them occurs.
func Canonicalize(text []byte) ([]byte, error) {
	return appendCanonical(nil, text)
}

// appendCanonical is like [Canonicalize] and appends to dst, which must not overlap text. It does
// not allocate if dst has enough capacity.
func appendCanonical(dst, text []byte) ([]byte, error) {
	c := getScratch()
	defer putScratch(c)
	out, ok := c.Append(dst, text)
	if err := c.refuse(ok); err != nil {
		return dst, err
	}
	return out, nil
}

// A scratch is the reusable space of one operation.
type scratch struct {
	canon.Reader
	out, form []byte
	box       boxSpace
}

var scratches = sync.Pool{New: func() any { return new(scratch) }}

func getScratch() *scratch { return scratches.Get().(*scratch) }

func putScratch(c *scratch) {
	if c.Size()+cap(c.out)+cap(c.form) <= 1<<20 {
		scratches.Put(c)
	}
}

// refuse returns the first error that applies to every text.
func (c *scratch) refuse(ok bool) error {
	switch {
	case !ok:
		return ErrInvalidJSON.err("not valid JSON")
	case c.HasDuplicate:
		return ErrDuplicateKey.err("a member name stands twice in one object")
	case c.HasFloat:
		return ErrFloatForbidden.err("a number with a fraction or an exponent")
	}
	return nil
}
