// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package air

import (
	"sync"
	"time"
)

// An index summarizes the entries under a prefix of a store, by key. Changes of other processes are in it after the next read.
type index[E any] struct {
	mu      sync.Mutex // guards all below, and the totals of the owner
	entries map[string]E
	read    time.Time
	reads   int                     // begun
	changed map[int]map[string]bool // keys that have changed since a read began: it may have found old entries for them
}

// changeLocked reports a change of the entry with a key. x.mu must be held.
func (x *index[E]) changeLocked(key string) {
	for _, changed := range x.changed {
		changed[key] = true
	}
}

// refresh reads the entries if they are older than maxAge. It calls use, with the lock held, before they replace the old ones.
func (x *index[E]) refresh(maxAge time.Duration, list func() (map[string]E, error), use func(map[string]E)) error {
	x.mu.Lock()
	if x.entries != nil && time.Since(x.read) < maxAge {
		x.mu.Unlock()
		return nil
	}
	x.reads++
	read, changed := x.reads, make(map[string]bool)
	if x.changed == nil {
		x.changed = make(map[int]map[string]bool)
	}
	x.changed[read] = changed
	x.mu.Unlock()
	found, err := list()
	x.mu.Lock()
	defer x.mu.Unlock()
	delete(x.changed, read)
	if err != nil {
		return err
	}
	for key := range changed {
		delete(found, key)
		if e, ok := x.entries[key]; ok {
			found[key] = e
		}
	}
	use(found)
	x.entries, x.read = found, time.Now()
	return nil
}
