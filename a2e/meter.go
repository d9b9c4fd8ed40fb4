// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package a2e

import (
	"bytes"
	"io"

	"github.com/fivewire/fivewire/internal/budget"
)

// meteredLine is the length above which an incomplete line is in the budget of its principal.
const meteredLine = 64 << 10

// A lineMeter reads the stream of a session, and reserves the memory of its incomplete line. A line without memory is
// refused, and its rest is skipped.
type lineMeter struct {
	r     io.Reader
	scope func() *budget.Scope
	lines *lineReader // of this stream

	length   int         // of the incomplete line
	hold     budget.Hold // the zero value unless reserved is positive
	reserved int
	full     error // why the line is refused, or nil
}

// Read reads, after it has reserved the buffer of a long line.
func (m *lineMeter) Read(p []byte) (int, error) {
	need := m.length + len(p)
	switch limit := m.lines.limit; {
	case m.full != nil || m.length <= meteredLine:
	case limit > 0 && m.length > limit:
		m.release() // the line is skipped
	case need > m.reserved:
		m.reserve(need)
	}
	n, err := m.r.Read(p)
	if i := bytes.LastIndexByte(p[:n], '\n'); i >= 0 {
		m.release()
		m.length = n - i - 1
	} else {
		m.length += n
	}
	return n, err
}

func (m *lineMeter) reserve(n int) {
	if m.reserved == 0 {
		m.hold, m.full = m.scope().Reserve(budget.Memory, int64(n))
	} else {
		m.full = m.hold.Resize(int64(n))
	}
	if m.full != nil {
		m.hold.Release()
		m.lines.r.SetMax(meteredLine)
		return
	}
	m.reserved = n
}

// release ends the reservation and the refusal of a line.
func (m *lineMeter) release() {
	m.hold.Release()
	m.hold, m.reserved = budget.Hold{}, 0
	if m.full != nil {
		m.full = nil
		m.lines.r.SetMax(m.lines.limit)
	}
}

// refusal returns the error of a line without memory, or nil.
func (m *lineMeter) refusal() *Error {
	if m == nil || m.full == nil {
		return nil
	}
	e, _ := overBudget(m.full).(*Error)
	return e
}
