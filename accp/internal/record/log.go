// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package record

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/fivewire/fivewire/store"
)

// A kind is the kind of an entry.
type kind byte

// The kinds of entries. Two of them begin a state; an event changes it.
const (
	kindEvent    kind = 'e'
	kindFirst    kind = 'f' // an event of the empty state
	kindSnapshot kind = 's'
)

const (
	format   = 2
	minBytes = 64 << 10 // of events before a snapshot
	batch    = 1000     // entries that are read at once
)

// A log is the log of one session. It is for one goroutine at a time.
type log struct {
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
	hasGap   bool      // load has skipped entries before the present one
}

func newLog(db store.Log, stream string, keep time.Duration) log {
	return log{db: db, stream: stream, keep: keep, next: 1}
}

// load reads the entries since the last call and passes them to apply.
func (l *log) load(ctx context.Context, apply func(kind kind, data []byte) error) error {
	isWhole := true
	var replaced []uint64 // by a snapshot whose process did not remove them
	for {
		records, err := l.db.Read(ctx, l.stream, l.after, batch)
		if err != nil {
			return err
		}
		for _, r := range records {
			n, k, err := header(r)
			if err != nil {
				return err
			}
			l.hasGap = !isWhole || !l.isNext(n)
			switch {
			case k != kindEvent:
				isWhole = true
				replaced = append(replaced, l.obsolete...)
				l.obsolete = nil
				l.size, l.bytes, l.written, l.isBegun = len(r.Value), 0, r.Time, true
			case !l.isNext(n):
				isWhole = false // a later snapshot replaces the entries that are missing
			default:
				l.bytes += len(r.Value)
			}
			if isWhole {
				if err := apply(k, r.Value[2:]); err != nil {
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

// isNext reports whether the entry with a number follows the last one.
func (l *log) isNext(n uint64) bool { return l.isBegun && n == l.next }

// header returns the number and the kind of an entry.
func header(r store.Record) (uint64, kind, error) {
	n, err := strconv.ParseUint(r.ID, 10, 64)
	switch {
	case err != nil || len(r.Value) < 2:
		return 0, 0, fmt.Errorf("%w at position %d", ErrDamaged, r.Seq)
	case r.Value[0] != format:
		return 0, 0, fmt.Errorf("%w: format %d, want %d", ErrDamaged, r.Value[0], format)
	}
	return n, kind(r.Value[1]), nil
}

// entry returns the beginning of an entry.
func entry(k kind) []byte { return append(make([]byte, 0, 1024), format, byte(k)) }

// append appends an entry, whose kind it may change. After ErrConflict, and after any other error, the caller loads.
func (l *log) append(ctx context.Context, value []byte) error {
	if kind(value[1]) == kindEvent && !l.isBegun {
		value[1] = byte(kindFirst)
	}
	seq, err := l.db.Append(ctx, l.stream, strconv.FormatUint(l.next, 10), value, 2*l.keep)
	if errors.Is(err, store.ErrDuplicate) {
		return ErrConflict
	}
	if err != nil {
		return err
	}
	if kind(value[1]) != kindEvent {
		l.size, l.bytes, l.written, l.isBegun = len(value), 0, time.Now(), true
	} else {
		l.bytes += len(value)
	}
	l.next, l.after = l.next+1, seq
	l.obsolete = append(l.obsolete, seq)
	return nil
}

// isDue reports whether a snapshot is to be written.
func (l *log) isDue() bool {
	return l.isBegun && (l.bytes > max(l.size, minBytes) || time.Since(l.written) > l.keep)
}

// compact appends a snapshot and removes the entries before it. After an error, for example of a store that permits shorter
// values only, the next snapshot is due when the events have doubled, and the entries remain.
func (l *log) compact(ctx context.Context, value []byte) error {
	before := l.obsolete
	if err := l.append(ctx, value); err != nil {
		l.size = 2 * l.bytes
		if time.Since(l.written) > l.keep && l.db.Expire(ctx, l.stream, 2*l.keep) == nil {
			l.written = time.Now()
		}
		return err
	}
	if err := l.db.Ack(ctx, l.stream, before...); err != nil {
		return err
	}
	l.obsolete = []uint64{l.after}
	return nil
}

// remove removes all entries.
func (l *log) remove(ctx context.Context) error {
	l.next, l.after, l.isBegun, l.obsolete = 1, 0, false, nil
	return l.db.Expire(ctx, l.stream, 0)
}
