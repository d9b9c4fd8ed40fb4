// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package lease

import (
	"cmp"
	"context"
	"fmt"

	"github.com/fivewire/fivewire/internal/statekey"
	"github.com/fivewire/fivewire/store"
)

// An entry is an index entry of an epoch, present in the store or not.
type entry struct {
	name   string // kind and id, as in the key
	id     string
	starts int            // Starts without Finish; guarded by Lease.mu
	from   Owner          // of an adoption with an unknown outcome; guarded by Lease.mu
	lock   chan struct{}  // full during changes in the store; capacity 1
	rev    store.Revision // zero if absent or in doubt; used by the holder of lock
}

// Start writes the index entry of a work item, before its record is created, and
// returns the owner that the record must name. It fails with ErrLost while no
// epoch is current; after an error the record must not be created.
//
// Starts of one item are counted: each successful Start, and each Adopt function
// that returned Taken, needs one Finish, and the last Finish deletes the entry. So
// a Start whose record exists already is undone by Finish, and a record that is
// created while another goroutine finishes the same id keeps its entry.
func (l *Lease) Start(ctx context.Context, kind, id string) (Owner, error) {
	e := l.current()
	if _, err := l.hold(ctx, e, statekey.Join(kind, id), id); err != nil {
		return "", fmt.Errorf("lease: start: %w", err)
	}
	return e.owner, nil
}

// Finish removes the index entry of a work item of owner, after the record ended
// and everything that follows from its end was done, or after the record was
// certainly not created. A deletion with an unknown outcome is repeated in the
// background. Finish of an epoch that has ended does nothing: take-over removes its
// entries.
func (l *Lease) Finish(ctx context.Context, owner Owner, kind, id string) error {
	l.mu.Lock()
	e := l.epoch
	it := e.entries[statekey.Join(kind, id)]
	isStarted := it != nil && it.starts > 0
	l.mu.Unlock()
	switch {
	case owner != e.owner || e.ctx.Err() != nil:
		return nil
	case !isStarted:
		return fmt.Errorf("lease: finish: %s %q not started", kind, id)
	}
	l.drop(ctx, e, it)
	return nil
}

// hold counts a Start and makes sure that the store has the entry. After a change
// in doubt the entry gets a new revision, which no earlier deletion removes.
func (l *Lease) hold(ctx context.Context, e *epoch, name, id string) (*entry, error) {
	l.mu.Lock()
	if !l.isLiveLocked(e) {
		l.mu.Unlock()
		return nil, cmp.Or(context.Cause(l.base), ErrLost)
	}
	it := e.entries[name]
	if it == nil {
		it = &entry{name: name, id: id, lock: make(chan struct{}, 1)}
		e.entries[name] = it
	}
	it.starts++
	delete(e.stale, name)
	l.mu.Unlock()
	err := l.locked(ctx, it, func() (err error) {
		if it.rev == 0 {
			it.rev, err = l.write(ctx, l.key("work", string(e.owner), name), id, 0)
		}
		return err
	})
	if err != nil {
		l.drop(ctx, e, it)
	}
	return it, err
}

// drop undoes hold.
func (l *Lease) drop(ctx context.Context, e *epoch, it *entry) {
	l.mu.Lock()
	it.starts--
	if it.starts == 0 {
		e.stale[it.name] = it
	}
	l.mu.Unlock()
	l.clean(ctx, e, it)
}

// clean deletes an unused entry by its revision. After an error it stays stale,
// and the next round repeats clean.
func (l *Lease) clean(ctx context.Context, e *epoch, it *entry) {
	key := l.key("work", string(e.owner), it.name)
	_ = l.locked(ctx, it, func() (err error) {
		l.mu.Lock()
		isUsed := it.starts > 0 || it.from != ""
		l.mu.Unlock()
		if isUsed {
			return nil
		}
		rev := it.rev
		it.rev = 0
		if rev == 0 {
			rev, err = l.write(ctx, key, it.id, 0)
		}
		if err == nil {
			err = l.db.Delete(ctx, key, rev)
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		if err == nil && it.starts == 0 {
			delete(e.entries, it.name)
			delete(e.stale, it.name)
		}
		return err
	})
}

// locked calls f with the lock of an entry.
func (l *Lease) locked(ctx context.Context, it *entry, f func() error) error {
	select {
	case it.lock <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	defer func() { <-it.lock }()
	return f()
}
