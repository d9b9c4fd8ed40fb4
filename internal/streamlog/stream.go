// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package streamlog

import (
	"bytes"
	"cmp"
	"context"
	"io"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/fivewire/fivewire/internal/lease"
)

// slowTicks is the number of equal parts of SlowTimeout in which a stream checks its readers.
const slowTicks = 4

// A stream is shared by its writer and the readers attached to it.
type stream struct {
	t         *Table
	key       string
	principal string
	o         Options
	log       *storedLog // nil without a store
	writer    Writer
	done      chan struct{} // closed when end or isLost is set

	mu       sync.Mutex // guards all below
	ring                // with a store, the newest items
	visible  uint64     // the last item that readers may take: with a store, the last stored one
	floor    uint64     // the lowest cursor; without any, the last one
	cursors  []*cursor  // of the attached readers
	only     [1]*cursor // memory of cursors
	end      *ending    // nil while items are accepted
	ending   ending     // memory of end
	isEnded  bool       // readers may take the end
	isLost   bool       // the stream is not written here; its readers follow the store
	loss     error      // lease.ErrLost, with its cause; nil unless isLost
	isUsed   bool       // a reader was attached
	items    signal     // to readers
	space    signal     // to writers
	timer    *time.Timer
	deadline time.Time // of a stream without readers
	expiry   time.Time // of an ended stream
}

// A cursor is the position of an attached reader. The mutex of its stream guards it.
type cursor struct {
	peer   string // id of a reader in another process
	at     uint64 // the last item that it took
	missed int    // checks since its last Next, while it could take another item
	err    error  // of the next Next; it is not attached
}

// An ending is the end of a stream. Its cause is nil after Finish.
type ending struct {
	n     uint64 // the last position of the stream
	cause error
}

// err returns the error that readers get.
func (e *ending) err() error {
	if e.cause == nil {
		return io.EOF
	}
	return &CutError{N: e.n, Cause: e.cause}
}

// A Writer appends to a stream. Its methods are safe for concurrent use.
type Writer struct{ s *stream }

// Append adds an item and returns its number. It waits while the stream has no space for it, but not
// until it is stored: Finish does. After an end it returns a [*CutError] or [ErrClosed], and
// lease.ErrLost if another process may write the stream.
//
// An item that fills half of its capacity is kept without a copy: it must not be changed, nor be the
// end of a larger buffer.
func (w *Writer) Append(ctx context.Context, item []byte) (uint64, error) {
	if ctx.Err() != nil {
		return 0, context.Cause(ctx)
	}
	s, item := w.s, compact(item)
	for {
		s.mu.Lock()
		err := s.refusalLocked()
		if err == nil && s.spaceLocked(len(item)+overhead) > 0 {
			s.pushLocked(item)
			n := s.last
			s.mu.Unlock()
			return n, nil
		}
		space := s.space.wait()
		s.mu.Unlock()
		if err != nil {
			return 0, err
		}
		select {
		case <-space:
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		}
	}
}

// compact returns item without a larger buffer.
func compact(item []byte) []byte {
	if cap(item) > 2*len(item) {
		return bytes.Clone(item)
	}
	return item
}

// Finish ends the stream, with the last item final unless that is nil, and waits until the end is
// stored. If ctx ends first, storing continues. Readers get io.EOF after the last item. After a Cut
// Finish waits too, and returns the [*CutError].
func (w *Writer) Finish(ctx context.Context, final []byte) error {
	s, final := w.s, compact(final)
	s.mu.Lock()
	err := s.refusalLocked()
	if err == nil && final != nil {
		s.pushLocked(final)
	}
	s.endLocked(nil)
	s.mu.Unlock()
	if err := s.await(ctx, func() bool { return s.isEnded || s.isLost }); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err == nil && (s.isLost || s.end.cause != nil) {
		return s.refusalLocked()
	}
	return err
}

// await waits until isDone, which is called with s.mu held, reports true.
func (s *stream) await(ctx context.Context, isDone func() bool) error {
	for {
		s.mu.Lock()
		isAwaited, space := !isDone(), s.space.wait()
		s.mu.Unlock()
		if !isAwaited {
			return nil
		}
		select {
		case <-space:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// Sync waits until the items appended before are stored, and returns the number of the last one. If
// they are not stored, it returns the error of the next Append.
func (w *Writer) Sync(ctx context.Context) (uint64, error) {
	s := w.s
	s.mu.Lock()
	n := s.last
	s.mu.Unlock()
	for {
		s.mu.Lock()
		isStored, space := s.visible >= n, s.space.wait()
		isRefused := s.isLost || s.end != nil && s.end.n <= n && s.end.cause != nil // see reject
		err := s.refusalLocked()
		s.mu.Unlock()
		switch {
		case isStored:
			return n, nil
		case isRefused:
			return 0, err
		}
		select {
		case <-space:
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		}
	}
}

// Cut ends the stream with a cause, which readers get after the last item. It does not wait. After
// another end it has no effect.
func (w *Writer) Cut(cause error) {
	if cause == nil {
		cause = io.ErrUnexpectedEOF
	}
	w.s.mu.Lock()
	defer w.s.mu.Unlock()
	w.s.endLocked(cause)
}

// Credit returns how many items the window of the slowest reader has space for.
func (w *Writer) Credit() int {
	w.s.mu.Lock()
	defer w.s.mu.Unlock()
	if w.s.refusalLocked() != nil {
		return 0
	}
	return w.s.spaceLocked(overhead)
}

// Size returns the number of bytes that the stream keeps in the store.
func (w *Writer) Size() int64 {
	w.s.mu.Lock()
	defer w.s.mu.Unlock()
	if w.s.log == nil {
		return 0
	}
	return int64(w.s.log.total - w.s.log.base)
}

// Done is closed when the stream accepts no items: after its end or its loss.
func (w *Writer) Done() <-chan struct{} { return w.s.done }

// refusalLocked returns why the stream accepts no item. s.mu must be held.
func (s *stream) refusalLocked() error {
	switch {
	case s.isLost:
		return s.loss
	case s.end != nil && s.end.cause != nil:
		return s.end.err()
	case s.end != nil:
		return ErrClosed
	}
	return nil
}

// spaceLocked returns how many items the stream can take now if the first has a size. It lets
// floor follow the cursors. s.mu must be held.
func (s *stream) spaceLocked(size int) int {
	for i, c := range s.cursors {
		if i == 0 || c.at < s.floor {
			s.floor = c.at
		}
	}
	n := s.spaceAfterLocked(s.visible, size, s.o.Window, s.o.Window/windowItem)
	if len(s.cursors) > 0 {
		return min(n, s.spaceAfterLocked(s.floor, size, s.o.Window, s.o.Window/windowItem))
	}
	return min(n, s.spaceAfterLocked(s.floor, size, cmp.Or(s.o.Retain, s.o.Window), math.MaxInt))
}

// spaceAfterLocked returns how many items fit between item n and limits. s.mu must be held.
func (s *stream) spaceAfterLocked(n uint64, size, limit, items int) int {
	start := s.endOf(n)
	if n+1 < s.first && s.log != nil {
		start = s.log.endOf(n)
	}
	switch {
	case n == s.last:
		return max(1, items)
	case int(s.endOf(s.last)-start) > limit-size:
		return 0
	}
	return max(0, items-int(s.last-n))
}

// pushLocked adds an item. s.mu must be held.
func (s *stream) pushLocked(item []byte) {
	s.push(item)
	if s.log != nil {
		s.startFlushLocked()
		return
	}
	s.visible = s.last
	s.items.raise()
	s.trim(s.floor, s.o.Retain)
}

// endLocked ends the stream unless it has ended. s.mu must be held.
func (s *stream) endLocked(cause error) {
	if s.refusalLocked() != nil {
		return
	}
	s.ending = ending{n: s.last, cause: cause}
	s.end = &s.ending
	if cause != nil {
		s.end.n++
	}
	close(s.done)
	s.space.raise()
	if s.log != nil {
		s.startFlushLocked()
		return
	}
	s.showEndLocked()
}

// showEndLocked makes the end visible. s.mu must be held.
func (s *stream) showEndLocked() {
	s.isEnded, s.expiry = true, time.Now().Add(s.o.Retention)
	s.items.raise()
	s.space.raise()
	s.resetLocked()
}

// admit attaches a reader if its position exists.
func (s *stream) admit(c *cursor, principal string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	first, last := s.first, s.visible
	if s.log != nil {
		first = s.log.trimmed + 1
	}
	if s.isEnded {
		last = s.end.n
	}
	switch {
	case principal != s.principal:
		return ErrUnknown
	case s.isLost:
		return lease.ErrLost
	case c.at > last:
		return ErrAhead
	case c.at+1 < first:
		return &GapError{c.at + 1, first}
	}
	s.attachLocked(c)
	return nil
}

// attachLocked adds a reader. s.mu must be held.
func (s *stream) attachLocked(c *cursor) {
	s.isUsed = true
	s.cursors = append(s.cursors, c)
	if len(s.cursors) == 1 {
		s.floor = c.at
		s.resetLocked()
	}
	s.floor = min(s.floor, c.at)
	s.space.raise()
}

// detachLocked removes a reader, which gets err from then on. s.mu must be held.
func (s *stream) detachLocked(c *cursor, err error) {
	i := slices.Index(s.cursors, c)
	if i < 0 {
		return
	}
	c.err = err
	s.cursors = slices.Delete(s.cursors, i, i+1)
	if len(s.cursors) == 0 {
		s.floor = c.at
		s.resetLocked()
	}
	s.items.raise()
	s.space.raise()
}

// moveLocked notes that a reader has taken the items through n. s.mu must be held.
func (s *stream) moveLocked(c *cursor, n uint64) {
	c.at, c.missed = n, 0
	s.space.raise()
}

// resetLocked starts the timer again: for the next check of the readers, or, without a reader, for
// the cut of the stream or its removal. A lost stream has no timer, which would keep it. s.mu must be held.
func (s *stream) resetLocked() {
	d := s.o.Grace
	switch {
	case s.isLost:
		s.timer.Stop()
		return
	case len(s.cursors) > 0:
		d = max(1, s.o.SlowTimeout/slowTicks)
	case s.isEnded && s.isUsed && !s.o.Resumable:
		d = 0
	case s.isEnded:
		d = max(0, time.Until(s.expiry))
	case d == 0 && !s.isUsed:
		d = 5 * time.Minute
	}
	if d == 0 {
		s.restLocked()
		return
	}
	s.deadline = time.Now().Add(d)
	s.timer.Reset(d)
}

// restLocked cuts a stream without readers, or removes it after its end. s.mu must be held.
func (s *stream) restLocked() {
	if s.isEnded {
		s.timer.Stop()
		s.t.remove(s)
		return
	}
	s.endLocked(ErrNoReader)
}

// expire drops slow readers, cuts a stream without readers, and removes it after its end.
func (s *stream) expire() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if time.Now().Before(s.deadline) {
		return // the timer was reset
	}
	if len(s.cursors) == 0 {
		s.restLocked()
		return
	}
	for _, c := range slices.Clone(s.cursors) {
		c.missed++
		if c.peer == "" && c.at == s.visible && !s.isEnded {
			c.missed = 0
		}
		if c.missed > slowTicks {
			s.detachLocked(c, ErrSlowReader)
		}
	}
	if len(s.cursors) > 0 {
		s.resetLocked()
	}
}
