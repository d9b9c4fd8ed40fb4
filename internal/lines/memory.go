// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package lines

import "github.com/fivewire/fivewire/internal/budget"

// A Memory holds the memory of a buffer whose size changes. It is for one goroutine at a time.
type Memory struct {
	Scope func() *budget.Scope // called when the Memory holds nothing; required

	hold  budget.Hold
	isSet bool // hold is one
}

// Reserve changes the number of held bytes; 0 releases all. Without room it returns a [*budget.Error] and changes nothing.
func (m *Memory) Reserve(bytes int) (err error) {
	switch {
	case bytes <= 0:
		m.hold.Release()
		m.isSet = false
	case m.isSet:
		err = m.hold.Resize(int64(bytes))
	default:
		m.hold, err = m.Scope().Reserve(budget.Memory, int64(bytes))
		m.isSet = err == nil
	}
	return err
}
