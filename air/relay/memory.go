// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"sync"
	"time"

	"github.com/fivewire/fivewire/store"
)

// maxHistory bounds the known envelopes of a relay without a store, acknowledged ones included.
const maxHistory = 1_000_000

// A memory is the store of a relay without Persistence.Store. It bounds the known ids, of which a
// [store.Memory] keeps all that have not expired. Above the bound, the oldest id is dropped.
type memory struct {
	*store.Memory
	max int

	mu   sync.Mutex
	seqs map[mailSum]uint64 // positions by id; guarded by mu

	// Entries in the order of expiry, in chunks so that growth copies nothing; guarded by mu. In the
	// first chunk, the entries before head were dropped. Nothing here has pointers that the garbage
	// collector must scan.
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

func newMemory(max int) *memory {
	return &memory{Memory: store.NewMemory(), max: max, seqs: make(map[mailSum]uint64)}
}

// Append implements [store.Log]. The id is a mailSum in hexadecimal digits; no two streams have the
// same, and ttl is the same in every call.
func (s *memory) Append(ctx context.Context, stream, id string, value []byte, ttl time.Duration) (uint64, error) {
	var sum mailSum
	if _, err := hex.Decode(sum[:], []byte(id)); err != nil {
		return 0, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	for len(s.order) > 0 && s.order[0][s.head].until <= now.UnixNano() {
		s.popLocked()
	}
	if seq, found := s.seqs[sum]; found {
		return seq, store.ErrDuplicate
	}
	seq, err := s.Memory.Append(ctx, stream, "", value, ttl)
	if err != nil {
		return 0, err
	}
	s.seqs[sum] = seq
	n := len(s.order)
	if n == 0 || len(s.order[n-1]) == dedupChunk {
		s.order = append(s.order, make([]dedupEntry, 0, dedupChunk))
	}
	last := &s.order[len(s.order)-1]
	*last = append(*last, dedupEntry{sum, now.Add(ttl).UnixNano()})
	if len(s.seqs) > s.max {
		s.popLocked()
	}
	return seq, nil
}

// popLocked drops the oldest id. s.mu must be held.
func (s *memory) popLocked() {
	delete(s.seqs, s.order[0][s.head].sum)
	if s.head++; s.head == len(s.order[0]) {
		s.order[0] = nil // release the memory
		s.order, s.head = s.order[1:], 0
	}
}
