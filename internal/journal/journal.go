// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package journal records the steps of a run, so that another process can continue it: the handler
// runs again from the beginning and gets the recorded results.
//
// A run is a stream of entries. The first entry of a key counts, whichever process appended it. So an
// owner that was paused and its successor may overlap; a compare-and-set on the record of the work,
// which the caller keeps, decides whose end counts. A handler that uses no steps gets its inputs in
// order and emits each item once, but its own side effects may repeat.
//
// A run that waits for an input or for a time is parked when its process shuts down. Its next owner
// keeps it without a goroutine until the wait has ended. A run that waits always continues; whether work
// that a failure cut off runs again or fails is a decision of the caller of [Table.Adopt].
package journal

import (
	"cmp"
	"context"
	"errors"
	"iter"
	"log/slog"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fivewire/fivewire/internal/guard"
	"github.com/fivewire/fivewire/internal/lease"
	"github.com/fivewire/fivewire/internal/randid"
	"github.com/fivewire/fivewire/internal/state"
	"github.com/fivewire/fivewire/store"
)

var (
	// ErrBusy reports a second Await or a second use of a name at once, or a run that is open already.
	ErrBusy = errors.New("journal: in use")

	// ErrChanged reports a name that the journal has for another kind of call.
	ErrChanged = errors.New("journal: program changed")

	// ErrClosed reports the use of a Run after Close.
	ErrClosed = errors.New("journal: run closed")

	// ErrParked ends the context of a run that waits. The record of its work must stay as it is.
	ErrParked = errors.New("journal: run parked")

	// ErrTooLarge reports an entry or a run over a limit. The work fails.
	ErrTooLarge = errors.New("journal: too large")
)

const (
	topic    = "journal"
	keep     = 30 * 24 * time.Hour // time to live of the journal of a live run
	pageSize = 32                  // entries of one Read

	maxEntry   = 1 << 20 // bytes of data
	maxEntries = 10_000  // of a run
	maxBytes   = 64 << 20
	overhead   = 64 // bytes that an entry counts in addition to its data

	never = time.Duration(math.MaxInt64 / 2)
	toEnd = math.MaxUint64
)

// A Table holds the runs of a process. Its methods are safe for concurrent use.
type Table struct {
	db        store.Log
	lease     *lease.Lease
	prefix    string
	logger    *slog.Logger
	isParking atomic.Bool

	mu   sync.Mutex
	runs map[string]*Run // open or parked, by stream; guarded by mu
}

// New returns the Table of an instance, with streams under a prefix, for example "arc/". A lease has one Table.
// A nil logger means slog.Default().
func New(db store.Log, l *lease.Lease, prefix string, logger *slog.Logger) *Table {
	t := &Table{db: state.GuardLog(db), lease: l, prefix: prefix, logger: cmp.Or(logger, slog.Default()), runs: map[string]*Run{}}
	l.Listen(topic, t.notify)
	return t
}

func (t *Table) stream(id string) string { return t.prefix + "journal/" + state.Join(id) }

// Open opens a run for its owner, after the record of the work names the owner. The run ends with ctx,
// which derives from the Context of the lease. The caller passes [Run.Context] to the handler and calls
// Close after its return. If that context has ended by then, the record must not be ended.
func (t *Table) Open(ctx context.Context, id string, o RunOptions) (*Run, error) {
	r := t.newRun(ctx, id, o, nil)
	defer r.release()
	if err := r.loadLocked(); err != nil {
		return nil, err
	}
	return r, nil
}

// Adopt reads a run of a failed owner, after the record of the work names the new one. If the run
// waits, isParked is true, and rerun is called once in its own goroutine when the wait has ended, for the
// caller to run the handler again; the table keeps the run until then, or until ctx ends, which is that
// of the function of lease.Adopt. Otherwise the run was cut off, and hasEntries reports whether it
// had called any method. ErrBusy means that its earlier handler has not returned here.
func (t *Table) Adopt(ctx context.Context, id string, rerun func()) (isParked, hasEntries bool, err error) {
	r := t.newRun(ctx, id, RunOptions{}, rerun)
	defer r.release() // after the decision, so that a notice waits for it
	err = r.loadLocked()
	switch {
	case r.err != nil: // Open returns it, and the work fails
		return false, true, nil
	case err != nil || r.isWaiting():
		return err == nil, true, err
	}
	r.end(ErrClosed)
	return false, r.last != nil, nil
}

// Deliver adds an input to a run and reports whether that was its first delivery. The function owner reads the
// owner from the record of the work. After nil the input is never lost. After an error, it may be
// delivered; to find out, repeat Deliver with the same inputID. An empty one is always new.
func (t *Table) Deliver(ctx context.Context, id, inputID string, data []byte,
	owner func(ctx context.Context) (lease.Owner, error)) (first bool, err error) {
	inputID = cmp.Or(inputID, randid.New(""))
	e := &entry{Type: typeInput, Name: []byte(inputID), key: "input:" + state.Join(inputID), data: data}
	if err := e.check(); err != nil {
		return false, err
	}
	stream := t.stream(id)
	_, first, err = t.append(ctx, stream, e)
	if err != nil {
		return false, err
	}
	var to lease.Owner
	err = guard.Call("owner", func() (err error) {
		to, err = owner(ctx)
		return err
	})
	switch {
	case err != nil || to == "":
		return first, err
	case to == t.lease.Owner():
		t.notify([]byte(stream))
		return first, nil
	}
	return first, t.lease.Tell(ctx, to, topic, []byte(stream))
}

// Park parks each run that waits, and from then on each run that begins to wait. Other runs continue.
func (t *Table) Park() {
	t.isParking.Store(true)
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, r := range t.runs {
		r.park()
	}
}

// Expire sets the time for which a run that has ended can be read.
func (t *Table) Expire(ctx context.Context, id string, retention time.Duration) error {
	return t.expire(ctx, t.stream(id), retention)
}

// An Item is an input of a run or an emitted item. Data must not be changed.
type Item struct {
	Kind string // of an emitted item; an input has none
	ID   string
	N    int // among the inputs, or among the items of the kind; 1 or more
	Data []byte
}

// Read iterates over the inputs and the emitted items of a run in their order. An error comes once and
// last.
func (t *Table) Read(ctx context.Context, id string) iter.Seq2[Item, error] {
	return func(yield func(Item, error) bool) {
		h := newHistory(true)
		for {
			page, err := state.Page(ctx, t.db, t.stream(id), h.pos, pageSize)
			for _, rec := range page {
				e := h.add(rec)
				if e == nil {
					err = h.err
					break
				}
				isItem := e.Type == typeInput || e.Type == typeItem
				if isItem && !yield(Item{Kind: e.Kind, ID: string(e.Name), N: e.N, Data: e.take()}, nil) {
					return
				}
			}
			if err != nil {
				yield(Item{}, err)
			}
			if err != nil || len(page) == 0 {
				return
			}
		}
	}
}

// add adds a run unless the same run is open.
func (t *Table) add(r *Run) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	old := t.runs[r.stream]
	if old != nil && old.rerun == nil {
		return false
	}
	t.runs[r.stream] = r
	return true
}

// remove removes a run, and reports false if it was removed before.
func (t *Table) remove(r *Run) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.runs[r.stream] != r {
		return false
	}
	delete(t.runs, r.stream)
	return true
}

// notify handles the notice of an input. A parked run reads it in a goroutine, of which it has two at most.
func (t *Table) notify(stream []byte) {
	t.mu.Lock()
	r := t.runs[string(stream)]
	t.mu.Unlock()
	if r == nil {
		return
	}
	select {
	case r.notice <- struct{}{}:
		if r.rerun != nil {
			go r.receive()
		}
	default:
	}
}

// append appends an entry unless the stream has its key, and reports its position and whether it was appended
// by this call.
func (t *Table) append(ctx context.Context, stream string, e *entry) (pos uint64, first bool, err error) {
	e.Writer = randid.New("")
	return state.Append(ctx, t.db, stream, e.key, state.EncodeWith(e, e.data), keep)
}

func (t *Table) expire(ctx context.Context, stream string, ttl time.Duration) error {
	return state.Change(ctx, func(ctx context.Context) error { return t.db.Expire(ctx, stream, ttl) })
}
