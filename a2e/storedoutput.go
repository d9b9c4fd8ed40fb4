// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package a2e

import (
	"bytes"
	"context"
	"slices"
	"sync"

	"github.com/fivewire/fivewire/internal/sendq"
)

// A storedOutput passes the messages of a session to its stream, as a [sink]. The size of a line in
// it is bounded as in a [replay].
type storedOutput struct {
	keep, limit int
	overflow    func()

	mu       sync.Mutex // guards everything below
	lines    [][]byte   // the first writing of them are being stored
	writing  int
	bytes    int
	count    uint64 // of the stored lines
	finished bool
	isCut    bool
	change   chan struct{}
}

func (o *storedOutput) notifyLocked() {
	if o.change != nil {
		close(o.change)
		o.change = nil
	}
}

func (o *storedOutput) changeLocked() chan struct{} {
	if o.change == nil {
		o.change = make(chan struct{})
	}
	return o.change
}

// seed adds lines without LF.
func (o *storedOutput) seed(lines [][]byte) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, line := range lines {
		o.lines = append(o.lines, line)
		o.bytes += len(line)
	}
	o.notifyLocked()
}

func (o *storedOutput) addLocked(line []byte) {
	line = bytes.Clone(line[:len(line)-1])
	o.lines = append(o.lines, line)
	o.bytes += len(line)
	o.notifyLocked()
}

func (o *storedOutput) hasSpaceLocked() bool { return len(o.lines) < o.keep && o.bytes < replayFresh }

func (o *storedOutput) put(line []byte, space sendq.Reservation) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case o.finished:
		return ErrClosed
	case space == 0 && !o.hasSpaceLocked():
		return sendq.ErrFull
	}
	o.addLocked(line)
	return nil
}

func (o *storedOutput) putControl(line []byte, _ bool) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case o.finished:
		return ErrClosed
	case len(o.lines) >= o.limit || o.bytes > 0 && o.bytes+len(line) > replayUnread:
		o.finished = true
		go o.overflow() // it locks the session, whose lock is held here
		return ErrClosed
	}
	o.addLocked(line)
	return nil
}

func (o *storedOutput) reserve(ctx context.Context, _ int) (sendq.Reservation, error) {
	for {
		o.mu.Lock()
		if o.hasSpaceLocked() || o.finished {
			o.mu.Unlock()
			return 1, nil
		}
		change := o.changeLocked()
		o.mu.Unlock()
		select {
		case <-change:
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		}
	}
}

func (o *storedOutput) release(sendq.Reservation) {}

// finish refuses further lines.
func (o *storedOutput) finish() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.finished = true
	o.notifyLocked()
}

// cut drops all lines.
func (o *storedOutput) cut() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.finished, o.isCut = true, true
	o.notifyLocked()
}

// take waits for lines and returns them, or nothing at the end.
func (o *storedOutput) take(ctx context.Context) [][]byte {
	for {
		o.mu.Lock()
		if o.isCut || o.finished && len(o.lines) == 0 {
			o.mu.Unlock()
			return nil
		}
		if len(o.lines) > 0 {
			defer o.mu.Unlock()
			o.writing = len(o.lines)
			return o.lines[:o.writing:o.writing]
		}
		change := o.changeLocked()
		o.mu.Unlock()
		select {
		case <-change:
		case <-ctx.Done():
			return nil
		}
	}
}

// store notes that the first n lines are stored.
func (o *storedOutput) store(n int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, line := range o.lines[:n] {
		o.bytes -= len(line)
	}
	o.lines = slices.Clone(o.lines[n:])
	o.count += uint64(n)
	o.notifyLocked()
}

// last returns the number of the last line, counted from the beginning of the output.
func (o *storedOutput) last() uint64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.count + uint64(len(o.lines))
}

// stored returns the number of stored lines.
func (o *storedOutput) stored() uint64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.count
}

// sync waits until the lines so far are stored.
func (o *storedOutput) sync(ctx context.Context) error {
	for n := o.last(); ; {
		o.mu.Lock()
		isStored, isCut, change := o.count >= n, o.isCut, o.changeLocked()
		o.mu.Unlock()
		switch {
		case isStored:
			return nil
		case isCut:
			return errStore
		}
		select {
		case <-change:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
