// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package streamlog numbers the items of a stream, retains the newest of them, and gives them to
// any number of readers.
//
// A Writer appends items, which get the numbers 1, 2, 3 and so on. A Reader starts after any number
// and gets the following items without a gap, or an error at once. A reader that reads slows the
// writer down to the window; one that stops reading is dropped. Readers get io.EOF after Finish only.
//
// Without a store a stream is kept in memory. With a store it is also a log of records, which readers
// in every process follow. If the process of the writer fails, a surviving process ends the stream.
package streamlog

import (
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/fivewire/fivewire/internal/option"
)

var (
	// ErrAhead reports a position that the stream has not reached.
	ErrAhead = errors.New("streamlog: position ahead of the stream")

	// ErrClosed reports an Append after Finish, or a Next after Close.
	ErrClosed = errors.New("streamlog: closed")

	// ErrNoReader is the cause of a cut after Grace without a reader.
	ErrNoReader = errors.New("streamlog: no reader")

	// ErrSlowReader reports that the reader was dropped, because it took no item for SlowTimeout.
	ErrSlowReader = errors.New("streamlog: slow reader")

	// ErrUnknown reports a stream that does not exist or belongs to another principal.
	ErrUnknown = errors.New("streamlog: unknown stream")
)

// A GapError reports that item Want is not retained. First is the oldest retained item.
type GapError struct{ Want, First uint64 }

// Error implements the error interface.
func (e *GapError) Error() string {
	return fmt.Sprintf("streamlog: item %d is not retained, the first is %d", e.Want, e.First)
}

// A CutError reports a stream that ended otherwise than by Finish. N is the number of the end. A Cause
// from the store is [ErrNoReader], lease.ErrLost, or an error with the text of the original.
type CutError struct {
	N     uint64
	Cause error
}

// Error implements the error interface.
func (e *CutError) Error() string { return fmt.Sprintf("streamlog: stream cut: %v", e.Cause) }

// Unwrap returns the cause.
func (e *CutError) Unwrap() error { return e.Cause }

// An Item is one element of a stream. Data is shared by all readers and must not be changed.
type Item struct {
	N    uint64
	Data []byte
}

// Options configure one stream. An item counts its length and 64 bytes.
type Options struct {
	// Window is the number of bytes that the writer may be ahead of the slowest reader, and of the
	// store. Zero means 256 KiB; a negative value removes the bound. It permits one item for each 256
	// of its bytes, and always one item.
	Window int

	// Retain is the number of bytes kept for later readers. Without a reader it bounds the items that
	// no reader has taken. Zero means 1 MiB in memory and 16 MiB in a store; with a negative value
	// only the window is kept.
	Retain int

	// RetainItems is the number of items kept in a store after all readers have taken them. Zero means
	// that only Retain bounds them.
	RetainItems int

	// SlowTimeout is the time after which a reader that can take an item and does not is dropped, at
	// most a quarter later. Zero means 30 s; a negative value disables it.
	SlowTimeout time.Duration

	// Resumable means that readers may return. Otherwise an ended stream in memory is removed when
	// its last reader leaves.
	Resumable bool

	// Grace is the time without a reader after which the stream is cut. Zero means 5 min if it is
	// Resumable or had no reader yet, otherwise no time. A negative value disables the cut.
	Grace time.Duration

	// Retention is the time for which an ended stream can be read. Zero means 5 min; a negative value
	// means none in memory and 1 min in a store.
	Retention time.Duration

	// Movable means that the stream belongs to an object that another process can adopt. That process
	// calls Create again to continue the stream. Other streams end with their process.
	Movable bool
}

const (
	overhead   = 64       // bytes that an item counts in addition to its length
	windowItem = 256      // bytes of the window for each item that it permits
	maxBatch   = 64 << 10 // bytes of items in one record, and from one Next
	batchItems = 64       // items from one Next without a buffer
	ringRetain = 1 << 20  // bytes in memory
	never      = time.Duration(math.MaxInt64 / 2)
)

func (o Options) withDefaults(isStored bool) Options {
	retain, retention, grace := ringRetain, time.Duration(0), time.Duration(0)
	if isStored {
		retain, retention = 16<<20, time.Minute
	}
	if o.Resumable {
		grace = 5 * time.Minute
	}
	o.Window = option.Or(o.Window, 256<<10, math.MaxInt)
	o.Retain = option.Or(o.Retain, retain, 0)
	o.SlowTimeout = option.Or(o.SlowTimeout, 30*time.Second, never)
	o.Grace = option.Or(o.Grace, grace, never)
	o.Retention = max(retention, option.Or(o.Retention, 5*time.Minute, 0))
	return o
}
