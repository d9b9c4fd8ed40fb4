// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package calls holds the pending calls of one direction of a connection.
package calls

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fivewire/fivewire/internal/option"
)

// Errors of a Table.
var (
	ErrFull   = errors.New("calls: too many pending calls")
	ErrReused = errors.New("calls: id or call used twice")
	ErrClosed = errors.New("calls: closed")
)

// Options adjusts a Table. A negative number removes a bound.
type Options struct {
	MaxPending  int                          // slots; zero means 1,024
	HoldTimeout time.Duration                // of a slot without a response; zero means 5 minutes
	OnSlot      func(id string, isHeld bool) // held after a local end: sends the cancel; or free; must not block
}

// A Table holds calls by id. T is the response, or a pointer to the state of a call. A call that ends
// locally (deadline, context, Cancel) keeps its slot until the peer responds to it or to the cancel.
type Table[T any] struct {
	o     Options
	mu    sync.Mutex
	err   error // cause of FailAll
	calls map[string]*entry[T]
	free  []*entry[T] // at most 64; an entry is used again unless its call ended locally
	late  uint64
}

type entry[T any] struct {
	id              string
	value           T
	err             error
	deadline        time.Time     // of the call, or of the slot of a held call
	timer           *time.Timer   // may fire late, for an earlier call
	ready           chan struct{} // gets one token for each call
	uses            atomic.Uint64 // calls of Wait
	isEnded, isHeld bool          // isHeld: locally
}

// A Call is one pending call.
type Call[T any] struct {
	t    *Table[T]
	e    *entry[T]
	uses uint64
}

// New returns an empty table. All methods may be called concurrently.
func New[T any](o Options) *Table[T] {
	o.MaxPending = option.Count(o.MaxPending, 1024)
	o.HoldTimeout = option.Duration(o.HoldTimeout, 5*time.Minute)
	return &Table[T]{o: o, calls: make(map[string]*entry[T])}
}

// Add adds a call with a deadline, or without one if it is zero. The caller sends the request and
// calls Wait, or Fail if it cannot send. After FailAll, the error is its cause.
func (t *Table[T]) Add(id string, deadline time.Time, value T) (Call[T], error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.err != nil:
		return Call[T]{}, t.err
	case t.calls[id] != nil:
		return Call[T]{}, ErrReused
	case len(t.calls) >= t.o.MaxPending:
		return Call[T]{}, ErrFull
	}
	if len(t.free) == 0 {
		e := &entry[T]{ready: make(chan struct{}, 1)}
		e.timer = time.AfterFunc(math.MaxInt64, func() { t.end("", e, context.DeadlineExceeded, true) })
		t.free = append(t.free, e)
	}
	e := t.free[len(t.free)-1]
	t.free = t.free[:len(t.free)-1]
	e.id, e.value, e.isEnded = id, value, false
	t.calls[id] = e
	e.deadline = time.Now().Add(time.Until(cmp.Or(deadline, time.Now().Add(math.MaxInt64)))) // monotonic
	e.timer.Reset(time.Until(e.deadline))
	return Call[T]{t, e, e.uses.Load()}, nil
}

// Get returns the value of a pending call.
func (t *Table[T]) Get(id string) (value T, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	e := t.calls[id]
	if e == nil || e.isEnded {
		return value, false
	}
	return e.value, true
}

// Wait returns the response or the error of a call, once. If ctx ends, so does the call.
func (c Call[T]) Wait(ctx context.Context) (value T, err error) {
	value, _, err = c.WaitEvent(ctx, nil)
	return value, err
}

// WaitEvent is Wait, but returns false for a token from events, and may then be called again.
func (c Call[T]) WaitEvent(ctx context.Context, events <-chan struct{}) (value T, isEnded bool, err error) {
	if !c.e.uses.CompareAndSwap(c.uses, c.uses+1) {
		return value, true, ErrReused
	}
	select {
	case <-c.e.ready:
	case <-events:
		c.e.uses.Store(c.uses)
		return value, false, nil
	case <-ctx.Done():
		c.t.end("", c.e, context.Cause(ctx), false)
		<-c.e.ready // of this end, or of another one
	}
	c.t.mu.Lock()
	defer c.t.mu.Unlock()
	value, err, c.e.value = c.e.value, c.e.err, value
	if !c.e.isHeld && len(c.t.free) < 64 {
		c.t.free = append(c.t.free, c.e)
	}
	return value, true, err
}

// Complete ends a call with a response and frees its slot. It returns false if no call waits.
func (t *Table[T]) Complete(id string, value T) bool { return t.finish(id, value, nil, 1) }

// Fail is Complete with an error: of the peer, of sending, or in response to the cancel.
func (t *Table[T]) Fail(id string, err error) bool { return t.finish(id, *new(T), err, 1) }

func (t *Table[T]) finish(id string, value T, err error, responses uint64) bool {
	t.mu.Lock()
	e := t.calls[id]
	delete(t.calls, id)
	isPending := e != nil && !e.isEnded
	if isPending {
		e.value, e.err, e.isEnded = value, err, true
	} else {
		t.late += responses
	}
	if e != nil {
		e.timer.Stop()
	}
	t.mu.Unlock()
	if isPending {
		e.ready <- struct{}{}
	}
	if e != nil && t.o.OnSlot != nil {
		t.o.OnSlot(id, false)
	}
	return isPending
}

// FailAll ends all calls and the table with the reason why the connection ended, or ErrClosed.
func (t *Table[T]) FailAll(cause error) {
	t.mu.Lock()
	t.err = cmp.Or(t.err, cause, ErrClosed)
	cause, ids := t.err, slices.Sorted(maps.Keys(t.calls))
	t.mu.Unlock()
	for _, id := range ids {
		t.finish(id, *new(T), cause, 0)
	}
}

// Cancel ends a pending call with context.Canceled and sends the cancel.
func (t *Table[T]) Cancel(id string) bool { return t.end(id, nil, context.Canceled, false) }

// end ends a pending call locally: e, or that of the id. A timer frees the slot of a held call.
func (t *Table[T]) end(id string, e *entry[T], err error, isTimer bool) bool {
	t.mu.Lock()
	e = cmp.Or(e, t.calls[id])
	isValid := e != nil && t.calls[e.id] == e && !(isTimer && time.Until(e.deadline) > 0)
	isPending := isValid && !e.isEnded
	if isPending {
		id, e.err, e.isEnded, e.isHeld = e.id, err, true, true
		e.deadline = time.Now().Add(t.o.HoldTimeout)
		e.timer.Reset(t.o.HoldTimeout)
	} else if isValid && isTimer {
		delete(t.calls, e.id)
		id = e.id
	}
	t.mu.Unlock()
	if isPending {
		e.ready <- struct{}{}
	}
	if t.o.OnSlot != nil && (isPending || isValid && isTimer) {
		t.o.OnSlot(id, isPending)
	}
	return isPending
}

// Stats returns the number of slots in use and the number of responses without a pending call.
func (t *Table[T]) Stats() (inFlight int, late uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.calls), t.late
}
