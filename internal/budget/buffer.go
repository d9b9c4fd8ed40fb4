// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package budget

// A Buffer is memory whose size changes. It is for one goroutine at a time.
type Buffer struct {
	Scope func() *Scope // called when the Buffer holds nothing; required

	hold Hold
}

// Reserve changes the number of held bytes; 0 releases all. Without room it returns an *[Error] and changes nothing.
func (b *Buffer) Reserve(bytes int) (err error) {
	switch {
	case bytes <= 0:
		b.hold.Release()
		b.hold = Hold{}
	case b.hold.b == nil:
		b.hold, err = b.Scope().Reserve(Memory, int64(bytes))
	default:
		err = b.hold.Resize(int64(bytes))
	}
	return err
}
