// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package record is the log of a session in a store. Processes that share a session append to one
// log; the number of an entry decides which of them is first.
package record

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/fivewire/fivewire/store"
)

// A Kind is the kind of an entry.
type Kind byte

// The kinds of entries. First and Snapshot begin a state; an Event changes it.
const (
	Event    Kind = 'e'
	First    Kind = 'f' // an event of the empty state
	Snapshot Kind = 's'
)

const (
	format   = 1
	minBytes = 64 << 10 // of events before a snapshot
	batch    = 1000     // entries that are read at once
)

// Errors of a Log.
var (
	ErrConflict = errors.New("record: another process has appended an entry") // Load, then decide again
	ErrDamaged  = errors.New("record: damaged entry")
)

// A Log is the log of one session. It is for one goroutine at a time.
type Log struct {
	db     store.Log
	stream string
	keep   time.Duration // lifetime of the state after the last entry

	next     uint64    // number of the next entry
	after    uint64    // position of the last entry
	isBegun  bool      // the state has a beginning
	size     int       // bytes of the last snapshot
	bytes    int       // of the events after it
	written  time.Time // of the last snapshot
	obsolete []uint64  // positions up to the last entry
}

// New returns the log in a stream. The state exists for at least keep after its last entry, and for
// at most twice as long.
func New(db store.Log, stream string, keep time.Duration) *Log {
	return &Log{db: db, stream: stream, keep: keep, next: 1}
}

// Load reads the entries since the last call and passes them to apply.
func (l *Log) Load(ctx context.Context, apply func(kind Kind, data []byte) error) error {
	isWhole := true
	var replaced []uint64 // by a snapshot whose process did not remove them
	for {
		records, err := l.db.Read(ctx, l.stream, l.after, batch)
		if err != nil {
			return err
		}
		for _, r := range records {
			n, kind, err := header(r)
			if err != nil {
				return err
			}
			switch {
			case kind != Event:
				isWhole = true
				replaced = append(replaced, l.obsolete...)
				l.obsolete = nil
				l.size, l.bytes, l.written, l.isBegun = len(r.Value), 0, r.Time, true
			case n != l.next || !l.isBegun:
				isWhole = false // a later snapshot replaces the entries that are missing
			default:
				l.bytes += len(r.Value)
			}
			if isWhole {
				if err := apply(kind, r.Value[2:]); err != nil {
					return err
				}
			}
			l.next, l.after = n+1, r.Seq
			l.obsolete = append(l.obsolete, r.Seq)
		}
		if len(records) < batch {
			break
		}
	}
	if len(replaced) > 0 && l.db.Ack(ctx, l.stream, replaced...) != nil {
		l.obsolete = append(replaced, l.obsolete...) // the next snapshot removes them
	}
	if !isWhole && l.isBegun {
		return fmt.Errorf("%w: entries before %d are missing", ErrDamaged, l.next)
	}
	return nil
}

// header returns the number and the kind of an entry.
func header(r store.Record) (uint64, Kind, error) {
	n, err := strconv.ParseUint(r.ID, 10, 64)
	switch {
	case err != nil || len(r.Value) < 2:
		return 0, 0, fmt.Errorf("%w at position %d", ErrDamaged, r.Seq)
	case r.Value[0] != format:
		return 0, 0, fmt.Errorf("%w: format %d, want %d", ErrDamaged, r.Value[0], format)
	}
	return n, Kind(r.Value[1]), nil
}

// Append appends an entry. After ErrConflict, and after any other error, the caller loads.
func (l *Log) Append(ctx context.Context, kind Kind, data []byte) error {
	if kind == Event && !l.isBegun {
		kind = First
	}
	value := append([]byte{format, byte(kind)}, data...)
	seq, err := l.db.Append(ctx, l.stream, strconv.FormatUint(l.next, 10), value, 2*l.keep)
	if errors.Is(err, store.ErrDuplicate) {
		return ErrConflict
	}
	if err != nil {
		return err
	}
	if kind != Event {
		l.size, l.bytes, l.written, l.isBegun = len(value), 0, time.Now(), true
	} else {
		l.bytes += len(value)
	}
	l.next, l.after = l.next+1, seq
	l.obsolete = append(l.obsolete, seq)
	return nil
}

// IsDue reports whether a snapshot is to be written.
func (l *Log) IsDue() bool {
	return l.isBegun && (l.bytes > max(l.size, minBytes) || time.Since(l.written) > l.keep)
}

// Compact appends a snapshot and removes the entries before it.
func (l *Log) Compact(ctx context.Context, data []byte) error {
	before := l.obsolete
	if err := l.Append(ctx, Snapshot, data); err != nil {
		return err
	}
	if err := l.db.Ack(ctx, l.stream, before...); err != nil {
		return err
	}
	l.obsolete = []uint64{l.after}
	return nil
}

// IsEmpty reports whether the next entry begins the state.
func (l *Log) IsEmpty() bool { return !l.isBegun }

// Remove removes all entries.
func (l *Log) Remove(ctx context.Context) error {
	l.next, l.after, l.isBegun, l.obsolete = 1, 0, false, nil
	return l.db.Expire(ctx, l.stream, 0)
}
