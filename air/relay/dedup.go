// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"crypto/sha256"
	"time"
)

// A dedupIndex maps the envelopes of a mailbox in a private store to their positions, so that the
// same bytes are stored once (AIR-D61). It has no pointers that the garbage collector must scan.
// The zero value is empty.
type dedupIndex struct {
	seqs map[mailSum]uint64 // positions by half of the hash of the envelope

	// Entries in the order of expiry, in chunks so that growth copies nothing. In the first chunk,
	// the entries before head have expired.
	order [][]dedupEntry
	head  int
}

type dedupEntry struct {
	sum   mailSum
	until int64 // time of expiry in Unix nanoseconds
}

// A mailSum is half of the hash of an envelope or of an id.
type mailSum [16]byte

func sumID(id string) mailSum {
	var array [256]byte
	sum := sha256.Sum256(append(array[:0], id...))
	return mailSum(sum[:16])
}

const dedupChunk = 256

// forget removes expired entries.
func (k *dedupIndex) forget(now time.Time) {
	for at := now.UnixNano(); len(k.order) > 0 && k.order[0][k.head].until <= at; {
		k.pop()
	}
}

// pop removes the oldest entry of an index that is not empty.
func (k *dedupIndex) pop() {
	delete(k.seqs, k.order[0][k.head].sum)
	if k.head++; k.head == len(k.order[0]) {
		k.order[0] = nil // release the memory
		k.order, k.head = k.order[1:], 0
	}
}

// empty reports whether all entries have expired.
func (k *dedupIndex) empty(now time.Time) bool {
	k.forget(now)
	return len(k.order) == 0
}

// seq returns the position of an envelope.
func (k *dedupIndex) seq(sum mailSum, now time.Time) (uint64, bool) {
	k.forget(now)
	seq, ok := k.seqs[sum]
	return seq, ok
}

// add adds an envelope that is not in the index. until must not decrease from call to call.
func (k *dedupIndex) add(sum mailSum, seq uint64, until time.Time) {
	if k.seqs == nil {
		k.seqs = make(map[mailSum]uint64)
	}
	k.seqs[sum] = seq
	n := len(k.order)
	switch {
	case n == 0:
		k.order = append(k.order, nil) // grows: most mailboxes are small
	case len(k.order[n-1]) == dedupChunk:
		k.order = append(k.order, make([]dedupEntry, 0, dedupChunk))
	}
	last := &k.order[len(k.order)-1]
	*last = append(*last, dedupEntry{sum, until.UnixNano()})
}
