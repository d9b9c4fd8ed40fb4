// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package a2e

import (
	"bytes"
	"context"
	"sync"
)

// Bounds on what a [replay] holds, beside those on how many messages.
const (
	replayKept   = 8 << 20  // bytes, above which no messages are kept that were taken
	replayUnread = 64 << 20 // bytes not taken, above which the session ends
)

// A replay keeps the messages of an HTTP session: those that no reader has taken
// yet, and the last ones that were taken, for readers that lost them (A2E-D42).
type replay struct {
	keep     int    // so many are kept at least, if they are not long
	most     int    // more than so many unread end the session
	overflow func() // ends it

	mu       sync.Mutex
	lines    [][]byte
	bytes    int    // of all lines
	fresh    int    // of those that were not taken
	first    uint64 // id of lines[0]; ids begin at 1
	unread   uint64 // id of the first that was not taken
	finished bool
	over     bool
	change   chan struct{} // closed and replaced at every change; nil if nobody waits
}

func newReplay(keep, queue int) *replay {
	return &replay{keep: keep, most: keep + queue, first: 1, unread: 1}
}

func (r *replay) changed() {
	if r.change != nil {
		close(r.change)
		r.change = nil
	}
}

func (r *replay) changing() chan struct{} {
	if r.change == nil {
		r.change = make(chan struct{})
	}
	return r.change
}

func (r *replay) next() uint64 { return r.first + uint64(len(r.lines)) }

func (r *replay) put(line []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.finished || r.over {
		return
	}
	if int(r.next()-r.unread) >= r.most || r.fresh > 0 && r.fresh+len(line) > replayUnread {
		r.over = true
		go r.overflow() // it takes the lock of the session, which is held here
		return
	}
	r.lines = append(r.lines, bytes.Clone(line))
	r.bytes += len(line)
	r.fresh += len(line)
	r.trim()
	r.changed()
}

func (r *replay) leave(line []byte) { r.put(line) }
func (r *replay) help()             {}

// trim forgets what was taken and is too old.
func (r *replay) trim() {
	for (len(r.lines) > r.keep || r.bytes > replayKept) && r.first < r.unread {
		r.bytes -= len(r.lines[0])
		r.lines[0] = nil
		r.lines = r.lines[1:]
		r.first++
	}
}

func (r *replay) wait(ctx context.Context) error {
	for {
		r.mu.Lock()
		if int(r.next()-r.unread) < r.keep && r.fresh < outboxRoom || r.finished || r.over {
			r.mu.Unlock()
			return nil
		}
		change := r.changing()
		r.mu.Unlock()
		select {
		case <-change:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func (r *replay) finish() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.finished = true
	r.changed()
}

// rewind makes what came after an id be read again, as far as it is kept. The
// reader has that one itself, even if the connection on which it got it was
// replaced before its handler could say so.
func (r *replay) rewind(after uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if after == r.unread && r.unread < r.next() {
		r.take()
	}
	for after+1 < r.unread && r.first < r.unread {
		r.unread--
		r.fresh += len(r.lines[r.unread-r.first])
	}
}

// peek returns the first line that was not taken, or a channel that is closed
// when there may be one. End means that there will be none.
func (r *replay) peek() (id uint64, line []byte, wait <-chan struct{}, end bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.unread < r.next():
		return r.unread, r.lines[r.unread-r.first], nil, false
	case r.finished:
		return 0, nil, nil, true
	}
	return 0, nil, r.changing(), false
}

// took says that a reader took the line of that id.
func (r *replay) took(id uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if id == r.unread {
		r.take()
	}
}

func (r *replay) take() {
	r.fresh -= len(r.lines[r.unread-r.first])
	r.unread++
	r.trim()
	r.changed()
}

// drained reports whether nothing is left to read and nothing will come.
func (r *replay) drained() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.finished && r.unread == r.next()
}
