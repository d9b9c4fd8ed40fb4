// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package core

import "time"

const (
	// orderWindow is the maximum distance of a chunk from the next expected one (ALT-D28).
	orderWindow = 16

	// gapWait is the time after which a missing chunk is lost.
	gapWait = time.Second
)

// A Chunk is one part of a stream. The data is opaque.
type Chunk struct {
	ID      int64
	Size    int // bytes of the payload, and of the error
	Payload []byte
	Data    any
	Err     any        // of a final chunk: the error, or nil
	Result  CallResult // likewise
	Final   bool
}

// A Verdict is the result of a received chunk.
type Verdict int

// The verdicts.
const (
	Accepted   Verdict = iota
	Late               // dropped: it is a duplicate, or follows the final chunk
	Gap                // the stream is broken
	Final              // accepted, and the final chunk is due
	Unexpected         // the contract does not stream
)

// An Order puts the chunks of one stream in order (ALT-D28). The zero value expects
// chunk 0.
type Order struct {
	next     int64
	final    int64 // id of the final chunk, if known
	hasFinal bool
	isDone   bool
	waiting  []waitingChunk // a ring by id; nil while everything is in order
	count    int
	moved    time.Time // when next rose last while chunks were waiting
}

type waitingChunk struct {
	chunk Chunk
	at    time.Time
	isSet bool
}

// Add takes a chunk. After Accepted the caller gets the deliverable chunks from Next.
func (o *Order) Add(c Chunk, now time.Time) Verdict {
	switch ahead := c.ID - o.next; {
	case o.isDone || ahead < 0 || o.hasFinal && c.ID > o.final:
		return Late
	case ahead > orderWindow:
		return Gap
	}
	if o.waiting == nil {
		o.waiting = make([]waitingChunk, orderWindow+1)
	}
	slot := &o.waiting[c.ID%(orderWindow+1)]
	if slot.isSet {
		return Late
	}
	*slot = waitingChunk{c, now, true}
	o.count++
	if c.Final && (!o.hasFinal || c.ID < o.final) {
		o.hasFinal, o.final = true, c.ID
	}
	return Accepted
}

// AddNext is Add and Next for the common case that nothing waits and the chunk is the
// expected one. It reports whether that is so.
func (o *Order) AddNext(id int64, isFinal bool) bool {
	if o.isDone || o.count > 0 || id != o.next {
		return false
	}
	o.next++
	o.isDone, o.hasFinal = isFinal, isFinal
	return true
}

// Next returns the next chunk in order, if it was received.
func (o *Order) Next(now time.Time) (c Chunk, ok bool) {
	if o.isDone || o.count == 0 {
		return Chunk{}, false
	}
	slot := &o.waiting[o.next%(orderWindow+1)]
	if !slot.isSet {
		return Chunk{}, false
	}
	c = slot.chunk
	*slot = waitingChunk{}
	o.count--
	o.next++
	o.moved = now
	if c.Final {
		o.isDone = true
		o.waiting, o.count = nil, 0
	}
	return c, true
}

// Expected returns the id of the next chunk.
func (o *Order) Expected() int64 { return o.next }

// IsEmpty reports whether no chunk was accepted.
func (o *Order) IsEmpty() bool { return o.next == 0 && o.count == 0 }

// Waiting reports whether chunks wait for a missing one, and until when.
func (o *Order) Waiting() (until time.Time, isWaiting bool) {
	if o.count == 0 {
		return time.Time{}, false
	}
	var oldest time.Time
	for i := range o.waiting {
		if w := &o.waiting[i]; w.isSet && (oldest.IsZero() || w.at.Before(oldest)) {
			oldest = w.at
		}
	}
	if o.moved.After(oldest) {
		oldest = o.moved
	}
	return oldest.Add(gapWait), true
}

// end returns the id after the highest accepted chunk, and the bytes of the waiting chunks.
func (o *Order) end() (id int64, bytes int) {
	id = o.next
	if o.count == 0 {
		return id, 0
	}
	for i := range o.waiting {
		if w := &o.waiting[i]; w.isSet {
			id = max(id, w.chunk.ID+1)
			bytes += w.chunk.cost()
		}
	}
	return id, bytes
}
