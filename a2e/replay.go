// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package a2e

import (
	"bytes"
	"context"
	"sync"

	"github.com/fivewire/fivewire/internal/sendq"
)

// Bounds of a [replay], in addition to those of the number of messages.
const (
	replayKept   = 8 << 20  // bytes above which received messages are dropped
	replayFresh  = 1 << 20  // unread bytes above which handlers wait
	replayUnread = 64 << 20 // unread bytes above which the session ends
)

// A replay keeps the messages of an HTTP session: the unread ones, and the last received ones for
// readers that lost them (A2E-D42).
type replay struct {
	keepAll  bool   // until move
	keep     int    // number of messages kept, below replayKept
	limit    int    // number of unread messages above which the session ends
	overflow func() // ends the session

	mu           sync.Mutex
	lines        [][]byte
	bytes        int    // of all lines
	fresh        int    // of the unread lines
	first        uint64 // id of lines[0]; ids begin at 1
	unread       uint64 // id of the first unread line
	finished     bool
	isOverflowed bool
	change       chan struct{} // closed at the next change; nil without waiters
}

func newReplay(keep, limit int) *replay {
	return &replay{keep: keep, limit: limit, first: 1, unread: 1}
}

// notifyLocked wakes the waiters. r.mu must be held.
func (r *replay) notifyLocked() {
	if r.change != nil {
		close(r.change)
		r.change = nil
	}
}

// changeLocked returns a channel that is closed at the next change. r.mu must be held.
func (r *replay) changeLocked() chan struct{} {
	if r.change == nil {
		r.change = make(chan struct{})
	}
	return r.change
}

// nextLocked returns the id of the next line. r.mu must be held.
func (r *replay) nextLocked() uint64 { return r.first + uint64(len(r.lines)) }

// put queues a line for a handler. The handler reserves space while the agent does not read.
func (r *replay) put(line []byte, space sendq.Reservation) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.finished, r.isOverflowed:
		return ErrClosed
	case space == 0 && !r.hasSpaceLocked():
		return sendq.ErrFull
	}
	r.appendLocked(line)
	return nil
}

// putControl queues a line, or ends the session of an agent that does not read.
func (r *replay) putControl(line []byte, _ bool) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.finished, r.isOverflowed:
		return ErrClosed
	case r.keepAll && len(r.lines) >= r.limit, int(r.nextLocked()-r.unread) >= r.limit || r.fresh > 0 && r.fresh+len(line) > replayUnread:
		r.isOverflowed = true
		go r.overflow() // it locks the session, whose lock is held here
		return ErrClosed
	}
	r.appendLocked(line)
	return nil
}

// hasSpaceLocked reports whether a handler may queue a line. r.mu must be held.
func (r *replay) hasSpaceLocked() bool {
	return int(r.nextLocked()-r.unread) < r.keep && r.fresh < replayFresh
}

// appendLocked adds a line without its LF. r.mu must be held.
func (r *replay) appendLocked(line []byte) {
	line = bytes.Clone(line[:len(line)-1])
	r.lines = append(r.lines, line)
	r.bytes += len(line)
	r.fresh += len(line)
	r.trimLocked()
	r.notifyLocked()
}

// trimLocked drops received lines above the bounds. r.mu must be held.
func (r *replay) trimLocked() {
	for (len(r.lines) > r.keep || r.bytes > replayKept) && r.first < r.unread && !r.keepAll {
		r.bytes -= len(r.lines[0])
		r.lines[0] = nil
		r.lines = r.lines[1:]
		r.first++
	}
}

func (r *replay) reserve(ctx context.Context, _ int) (sendq.Reservation, error) {
	for {
		r.mu.Lock()
		if r.hasSpaceLocked() || r.finished || r.isOverflowed {
			r.mu.Unlock()
			return 1, nil
		}
		change := r.changeLocked()
		r.mu.Unlock()
		select {
		case <-change:
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		}
	}
}

func (r *replay) release(sendq.Reservation) {}

// move ends r and returns its lines, which continue elsewhere.
func (r *replay) move() [][]byte {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.finished = true
	r.notifyLocked()
	return r.lines
}

func (r *replay) finish() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.finished = true
	r.notifyLocked()
}

// rewind makes the kept lines after an id unread. The reader has the line with that id, even if its
// connection was replaced before the handler recorded it.
func (r *replay) rewind(after uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if after == r.unread && r.unread < r.nextLocked() {
		r.takeLocked()
	}
	for after+1 < r.unread && r.first < r.unread {
		r.unread--
		r.fresh += len(r.lines[r.unread-r.first])
	}
}

// peek returns the first unread line, or a channel that is closed at the next change. End means
// that no line will follow the one with that id.
func (r *replay) peek() (id uint64, line []byte, wait <-chan struct{}, end bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.unread < r.nextLocked():
		return r.unread, r.lines[r.unread-r.first], nil, false
	case r.finished:
		return r.unread - 1, nil, nil, true
	}
	return 0, nil, r.changeLocked(), false
}

// took records that a reader received the line with that id.
func (r *replay) took(id uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if id == r.unread {
		r.takeLocked()
	}
}

// takeLocked marks the first unread line as received. r.mu must be held.
func (r *replay) takeLocked() {
	r.fresh -= len(r.lines[r.unread-r.first])
	r.unread++
	r.trimLocked()
	r.notifyLocked()
}

// drained reports whether no line is unread and none will follow.
func (r *replay) drained() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.finished && r.unread == r.nextLocked()
}
