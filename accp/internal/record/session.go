// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package record

import (
	"context"
	"errors"
	"time"

	"github.com/fivewire/fivewire/internal/jsonmap"
	"github.com/fivewire/fivewire/store"
)

// Errors of a Session.
var (
	ErrConflict = errors.New("record: another process has appended an entry") // Load, then decide again
	ErrDamaged  = errors.New("record: damaged entry")
)

// Options describe the record of one side of a session.
type Options struct {
	Stream string        // of its entries
	Sides  string        // prefix of a key for each side with a record in the store
	Self   string        // the agent-id of this side
	Keep   time.Duration // lifetime of the state after the last entry, at most twice as long
}

// A Machine has the state that a record restores.
type Machine interface {
	Reset()                                       // begins with the empty state
	Restore(s *Snapshot, hasGap bool) (err error) // of a record; a gap has events that were not applied
	Apply(e *Event) (err error)                   // of a record
}

// A Session is the record of one side of a session. It is for one goroutine at a time.
type Session struct {
	log  log
	kv   store.KV
	o    Options
	read bool // the state of the machine is that of the record
}

// New returns the record in a store. It does no I/O.
func New(db store.Store, o Options) *Session {
	return &Session{log: newLog(db, o.Stream, o.Keep), kv: db, o: o}
}

// Load brings a machine up to date if another process may have changed the record, and reports whether it did. A change by another
// process is noticed by the next Append, or after Invalidate.
func (s *Session) Load(ctx context.Context, m Machine) (isLoaded bool, err error) {
	if s.read {
		return false, nil
	}
	err = s.log.load(ctx, func(k kind, data []byte) error {
		if k == kindSnapshot {
			var all Snapshot
			if err := decode(data, &all); err != nil {
				return err
			}
			return m.Restore(&all, s.log.hasGap)
		}
		var e Event
		if err := decode(data, &e); err != nil {
			return err
		}
		if k == kindFirst {
			m.Reset()
		}
		return m.Apply(&e)
	})
	s.read = err == nil
	return true, err
}

// Invalidate makes the next Load read the changes of other processes.
func (s *Session) Invalidate() { s.read = false }

// Append appends an event. After an error the caller loads before the next event.
func (s *Session) Append(ctx context.Context, e *Event) error {
	value, err := jsonmap.Append(entry(kindEvent), e)
	if err == nil && !s.log.isBegun {
		err = s.mark(ctx)
	}
	if err == nil {
		err = s.log.append(ctx, value)
	}
	s.read = err == nil
	return err
}

// IsDue reports whether a snapshot is to be written.
func (s *Session) IsDue() bool { return s.log.isDue() }

// Compact replaces the entries by a snapshot.
func (s *Session) Compact(ctx context.Context, all *Snapshot) error {
	value, err := jsonmap.Append(entry(kindSnapshot), all)
	if err == nil {
		err = s.mark(ctx)
	}
	if err == nil {
		err = s.log.compact(ctx, value)
	}
	s.read = err == nil
	return err
}

// mark writes the key that shows the record to other sides.
func (s *Session) mark(ctx context.Context) error {
	return Overwrite(ctx, s.kv, s.o.Sides+s.o.Self, nil, 2*s.o.Keep)
}

// Remove removes the record, and reports whether another side has one. The key is removed after the
// record, so that the last of several sides finds no other key.
func (s *Session) Remove(ctx context.Context) (hasOther bool, err error) {
	s.read = false
	if err := s.log.remove(ctx); err != nil {
		return false, err
	}
	if err := s.kv.Delete(ctx, s.o.Sides+s.o.Self, 0); err != nil {
		return false, err
	}
	for _, err := range s.kv.List(ctx, s.o.Sides) {
		return err == nil, err
	}
	return false, nil
}

// Overwrite stores a value under a key, replacing any other.
func Overwrite(ctx context.Context, kv store.KV, key string, data []byte, ttl time.Duration) error {
	for {
		_, err := kv.Create(ctx, key, data, ttl)
		if !errors.Is(err, store.ErrExists) {
			return err
		}
		e, err := kv.Get(ctx, key)
		if err == nil {
			_, err = kv.Update(ctx, key, data, e.Revision, ttl)
		}
		if !errors.Is(err, store.ErrNotFound) && !errors.Is(err, store.ErrConflict) {
			return err // after either error another process has succeeded, so the loop makes progress
		}
	}
}
