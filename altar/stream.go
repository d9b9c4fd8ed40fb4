// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package altar

import "time"

const (
	// chunkWindow is the maximum distance of a chunk from the next expected one (ALT-D28).
	chunkWindow = 16

	// gapWait is how long a missing chunk is waited for.
	gapWait = time.Second
)

// An assembler puts the chunks of one call in order (ALT-D28). The zero value waits
// for chunk 0. It is for one goroutine at a time.
type assembler struct {
	next     int64
	final    int64 // id of the final chunk, if known
	hasFinal bool
	done     bool
	waiting  []waitingChunk // a ring by id; nil while everything is in order
	count    int
	moved    time.Time // when next rose last while chunks were waiting
}

type waitingChunk struct {
	chunk *StreamChunk
	came  time.Time
}

// Add stores a chunk, and reports whether it was accepted: it is not late and not a duplicate. A
// chunk outside the window is the error INTERNAL_ERROR chunk_gap. The caller then gets the
// deliverable chunks from next.
func (a *assembler) Add(c *StreamChunk, now time.Time) (accepted bool, err error) {
	switch ahead := c.ChunkID - a.next; {
	case a.done || ahead < 0 || a.hasFinal && c.ChunkID > a.final:
		return false, nil
	case ahead > chunkWindow:
		return false, errChunkGap()
	}
	if a.waiting == nil {
		a.waiting = make([]waitingChunk, chunkWindow+1)
	}
	slot := &a.waiting[c.ChunkID%(chunkWindow+1)]
	if slot.chunk != nil {
		return false, nil
	}
	*slot = waitingChunk{c, now}
	a.count++
	if c.IsFinal && (!a.hasFinal || c.ChunkID < a.final) {
		a.hasFinal, a.final = true, c.ChunkID
	}
	return true, nil
}

// add is Add for the common case that nothing waits and c is the next chunk: it
// keeps no ring.
func (a *assembler) inOrder(c *StreamChunk) bool {
	if a.done || a.count > 0 || c.ChunkID != a.next {
		return false
	}
	a.next++
	a.done = c.IsFinal
	return true
}

// Next returns the next chunk to deliver, or nil if it has not come yet.
func (a *assembler) Next(now time.Time) *StreamChunk {
	if a.done || a.count == 0 {
		return nil
	}
	slot := &a.waiting[a.next%(chunkWindow+1)]
	c := slot.chunk
	if c == nil {
		return nil
	}
	*slot = waitingChunk{}
	a.count--
	a.next++
	a.moved = now
	if c.IsFinal {
		a.done = true
		a.waiting, a.count = nil, 0
	}
	return c
}

// Expected returns the id of the next chunk to deliver.
func (a *assembler) Expected() int64 { return a.next }

// Done reports whether the final chunk was delivered.
func (a *assembler) Done() bool { return a.done }

// Waiting reports whether chunks wait for a missing one, and until when.
func (a *assembler) Waiting() (until time.Time, waiting bool) {
	if a.count == 0 {
		return time.Time{}, false
	}
	var oldest time.Time
	for i := range a.waiting {
		if w := &a.waiting[i]; w.chunk != nil && (oldest.IsZero() || w.came.Before(oldest)) {
			oldest = w.came
		}
	}
	if a.moved.After(oldest) {
		oldest = a.moved
	}
	return oldest.Add(gapWait), true
}

func errChunkGap() *Error {
	return fault(ErrInternal, ReasonChunkGap, "", "a part of the stream is missing")
}
