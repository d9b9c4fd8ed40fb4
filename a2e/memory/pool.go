// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package memory

import (
	"math"
	"time"
)

// The bytes that an entry needs in memory besides its own, and a tier besides its entries.
const (
	entryBytes = 256
	shelfBytes = 1024
)

// A pool counts the bytes of the episodic and semantic tiers in memory, by owner and in all. It is guarded by the lock
// of the keeper.
type pool struct {
	used    int64 // and reserved
	owners  map[string]int64
	counted time.Time // all shelves
}

// capacity is twice the bytes of a full tier.
func (o *Options) capacity() int64 {
	const unbounded = math.MaxInt64 / 8
	entries := min(int64(o.MaxEntries), unbounded/entryBytes)
	return 2 * (shelfBytes + min(int64(o.MaxBytes), unbounded) + entries*entryBytes)
}

func (p *pool) add(owner string, n int64) {
	if p.owners == nil {
		p.owners = map[string]int64{}
	}
	p.used += n
	if p.owners[owner] += n; p.owners[owner] == 0 {
		delete(p.owners, owner)
	}
}

// reserve reserves n bytes for an owner, or fewer: it leaves as much free for others as it has.
func (k *keeper) reserve(owner string, n int64) int64 {
	k.mu.Lock()
	defer k.mu.Unlock()
	free := func() int64 { return max((k.opts.capacity()-k.pool.used-k.pool.owners[owner])/2, 0) }
	if free() < n && time.Since(k.pool.counted) > time.Second {
		k.pool.counted = time.Now()
		for _, s := range k.shelves { // entries may have expired
			k.recountLocked(s)
		}
	}
	n = min(n, free())
	k.pool.add(owner, n)
	return n
}

// recount counts the entries of a shelf, and releases n reserved bytes.
func (k *keeper) recount(s *shelf, n int64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.pool.add(s.owner, -n)
	k.recountLocked(s)
}

// recountLocked counts the entries of a shelf. It removes an empty shelf without a session. k.mu must be held.
func (k *keeper) recountLocked(s *shelf) {
	count, size := s.use()
	used := int64(0)
	if count > 0 {
		used = shelfBytes + size + int64(count)*entryBytes
	}
	k.pool.add(s.owner, used-s.bytes)
	s.bytes = used
	if used == 0 && s.users == 0 {
		delete(k.shelves, s.prefix)
	}
}
