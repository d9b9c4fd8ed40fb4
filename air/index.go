// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package air

import (
	"context"
	"sync"
	"time"
)

// An index summarizes the entries under a prefix of a store, by key. Changes of other processes are in it after the next read.
type index[E any] struct {
	isAlone bool // no other process changes the entries; some expire

	mu      sync.Mutex // guards all below, and the totals of the owner
	entries map[string]E
	read    time.Time
	took    time.Duration   // by the last read
	reading *reading        // nil without a read in progress
	changed map[string]bool // keys that have changed since it began: it may have found old entries for them
}

// A reading is a read in progress, which all callers share. Its error is set before done is closed.
type reading struct {
	done       chan struct{}
	err        error
	isCanceled bool // by the context of its caller: another caller reads
}

// changeLocked reports a change of the entry with a key. x.mu must be held.
func (x *index[E]) changeLocked(key string) {
	if x.reading != nil {
		x.changed[key] = true
	}
}

// An indexAge is how old the entries may be: max, or a number of times the duration of a read, if that is longer.
type indexAge struct {
	max   time.Duration
	reads int
}

const aloneIndexAge = time.Minute // without other processes

// refresh reads the entries if they are older than age, or waits for the read in progress: the entries may be many. It
// calls use, with the lock held, before they replace the old ones.
func (x *index[E]) refresh(ctx context.Context, age indexAge, list func() (map[string]E, error), use func(map[string]E)) error {
	if x.isAlone {
		age.max = aloneIndexAge
	}
	for {
		x.mu.Lock()
		if x.entries != nil && time.Since(x.read) < max(age.max, time.Duration(age.reads)*x.took) {
			x.mu.Unlock()
			return nil
		}
		r := x.reading
		if r == nil {
			r = &reading{done: make(chan struct{}), isCanceled: true} // also if a panic ends it
			x.reading, x.changed = r, make(map[string]bool)
			x.mu.Unlock()
			return x.readAll(ctx, r, list, use)
		}
		x.mu.Unlock()
		select {
		case <-r.done:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		if r.err != nil && !r.isCanceled {
			return r.err
		}
	}
}

// readAll makes the read r.
func (x *index[E]) readAll(ctx context.Context, r *reading, list func() (map[string]E, error), use func(map[string]E)) error {
	defer func() {
		x.mu.Lock()
		defer x.mu.Unlock()
		x.reading = nil
		close(r.done)
	}()
	begin := time.Now()
	found, err := list()
	r.err, r.isCanceled = err, err != nil && ctx.Err() != nil
	if err != nil {
		return err
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	for key := range x.changed {
		delete(found, key)
		if e, ok := x.entries[key]; ok {
			found[key] = e
		}
	}
	use(found)
	x.entries, x.read, x.took = found, time.Now(), time.Since(begin)
	return nil
}
