// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package air

import "time"

// A known is what a mailbox remembers of the envelopes it was given, to store the
// same bytes once (AIR-D61), when the mail is in the memory of its relay alone. It
// holds no pointers, so that the garbage collector passes over it however much
// there is of it. The zero value is ready for use.
type known struct {
	seqs map[replayKey]uint64 // positions by half of the hash of the envelope

	// What ends next, in chunks, so that nothing is copied as it grows. Of the
	// first chunk, what is before head has ended.
	order [][]knownUntil
	head  int
}

type knownUntil struct {
	sum   replayKey
	until int64 // from then on it is forgotten; in Unix nanoseconds
}

const knownChunk = 256

// forget drops what has ended.
func (k *known) forget(now time.Time) {
	for at := now.UnixNano(); len(k.order) > 0 && k.order[0][k.head].until <= at; {
		delete(k.seqs, k.order[0][k.head].sum)
		if k.head++; k.head == len(k.order[0]) {
			k.order[0] = nil // so that it can go
			k.order, k.head = k.order[1:], 0
		}
	}
}

// empty reports whether nothing is remembered any more.
func (k *known) empty(now time.Time) bool {
	k.forget(now)
	return len(k.order) == 0
}

// seq returns where an envelope is or was.
func (k *known) seq(sum replayKey, now time.Time) (uint64, bool) {
	k.forget(now)
	seq, ok := k.seqs[sum]
	return seq, ok
}

// add remembers an envelope that is not known yet. The times do not fall from call
// to call.
func (k *known) add(sum replayKey, seq uint64, until time.Time) {
	if k.seqs == nil {
		k.seqs = make(map[replayKey]uint64)
	}
	k.seqs[sum] = seq
	n := len(k.order)
	switch {
	case n == 0:
		k.order = append(k.order, nil) // grows: most mailboxes are small
	case len(k.order[n-1]) == knownChunk:
		k.order = append(k.order, make([]knownUntil, 0, knownChunk))
	}
	last := &k.order[len(k.order)-1]
	*last = append(*last, knownUntil{sum, until.UnixNano()})
}
