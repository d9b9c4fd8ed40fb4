// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package streamlog

import (
	"cmp"
	"context"
	"encoding/json"
	"time"

	"github.com/fivewire/fivewire/internal/lease"
	"github.com/fivewire/fivewire/internal/randid"
	"github.com/fivewire/fivewire/store"
)

const (
	noticeInterval = time.Second      // while the reader takes items
	idleInterval   = 10 * time.Second // otherwise, or less if SlowTimeout is short
	leaseInterval  = time.Second      // between checks of the lease of the writer
)

// A Reader reads a stream. It is for one goroutine.
type Reader struct {
	t         *Table
	key       string
	principal string
	s         *stream   // nil if the stream is not written here
	cursor              // guarded by the mutex of s
	f         *follower // of the store

	id     string // for the owner of the stream in another process
	sent   uint64 // the position in the last notice
	sentAt time.Time
	bytes  int // taken since then
}

// A notice informs the owner of a stream about a reader in another process.
type notice struct {
	Key      []byte
	Reader   string
	At       uint64
	IsClosed bool
}

// Next waits for the items after those that the reader has taken, and returns them in buf, as far as
// its capacity permits. After the last item it returns [io.EOF] or a [*CutError].
//
// These errors, [*GapError], [ErrSlowReader] and [ErrClosed] are final. After the end of ctx or an
// error of the store Next can be called again.
func (r *Reader) Next(ctx context.Context, buf []Item) ([]Item, error) {
	if cap(buf) == 0 {
		buf = make([]Item, 0, batchItems)
	}
	for r.s != nil {
		items, wait, err := r.take(buf[:0])
		if err != nil || len(items) > 0 {
			return items, err
		}
		if wait == nil {
			break
		}
		select {
		case <-wait:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	return r.follow(ctx, buf[:0])
}

// Close ends the reader.
func (r *Reader) Close() {
	isRemote := r.s == nil && r.err == nil
	r.detach(ErrClosed)
	if isRemote && r.f != nil {
		r.notify(context.Background())
	}
}

// take reads from memory. It returns nothing if the items are in the store only.
func (r *Reader) take(buf []Item) ([]Item, <-chan struct{}, error) {
	s := r.s
	s.mu.Lock()
	defer s.mu.Unlock()
	r.missed = 0
	switch {
	case r.err != nil:
		return nil, nil, r.err
	case s.isLost:
		r.s = nil
		return nil, nil, nil
	case r.at+1 < s.first:
		return nil, nil, nil
	case r.at < s.visible:
		buf = s.take(buf, r.at, s.visible)
		s.moveLocked(&r.cursor, buf[len(buf)-1].N)
		return buf, nil, nil
	case s.isEnded:
		s.detachLocked(&r.cursor, s.end.err())
		return nil, nil, r.err
	}
	return nil, s.items.wait(), nil
}

// detach sets the error of the next Next, unless the reader has one.
func (r *Reader) detach(err error) {
	if s := r.s; s != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.detachLocked(&r.cursor, err)
	}
	r.err = cmp.Or(r.err, err)
}

// follow reads from the store.
func (r *Reader) follow(ctx context.Context, buf []Item) (_ []Item, err error) {
	if r.err == nil && (r.f == nil || r.f.at != r.at) {
		r.f, err = r.t.follow(ctx, r.key, r.principal, r.at)
	}
	for err == nil && r.err == nil {
		buf = r.f.take(buf)
		switch {
		case len(buf) > 0:
			r.move(ctx, buf)
			return buf, nil
		case r.f.err != nil:
			r.detach(r.f.err)
		default:
			err = r.load(ctx)
		}
	}
	return nil, cmp.Or(r.err, err)
}

// load loads the next record or waits for it.
func (r *Reader) load(ctx context.Context) error {
	isFound, err := r.f.load(ctx)
	switch {
	case err != nil || isFound:
		return err
	case r.s != nil: // memory begins behind the end of the log
		r.f.err = &GapError{r.at + 1, r.at + 2}
		return nil
	}
	return r.wait(ctx)
}

// move notes that the reader has taken items from the store. It notifies the owner each second and
// each half window.
func (r *Reader) move(ctx context.Context, items []Item) {
	if s := r.s; s != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.moveLocked(&r.cursor, r.f.at)
		return
	}
	r.at = r.f.at
	for _, item := range items {
		r.bytes += max(len(item.Data)+overhead, windowItem)
	}
	if r.bytes >= r.f.o.Window/2 || time.Since(r.sentAt) >= noticeInterval {
		r.notify(ctx)
	}
}

// notify sends a notice. The owner drops a reader without notices like a slow one.
func (r *Reader) notify(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, noticeInterval)
	defer cancel()
	r.id = cmp.Or(r.id, randid.New(""))
	r.sent, r.sentAt, r.bytes = r.at, time.Now(), 0
	data, err := json.Marshal(notice{[]byte(r.key), r.id, r.at, r.err != nil})
	if err == nil {
		_ = r.t.lease.Tell(ctx, r.f.owner, kind, data)
	}
}

// wait waits for another record until a notice or a check of the lease of the writer is due. It ends the
// stream of a failed writer, before a round of the lease does.
func (r *Reader) wait(ctx context.Context) error {
	interval := noticeInterval
	if r.at == r.sent {
		interval = min(idleInterval, r.f.o.SlowTimeout/3)
	}
	waitCtx, cancel := context.WithTimeout(ctx, min(leaseInterval, interval-time.Since(r.sentAt)))
	defer cancel()
	err := r.t.db.Wait(waitCtx, r.f.name, r.f.pos)
	if err == nil || ctx.Err() != nil || waitCtx.Err() == nil {
		return cmp.Or(context.Cause(ctx), err)
	}
	isAlive, err := r.t.lease.Alive(ctx, r.f.owner)
	if err == nil && !isAlive && !r.f.o.Movable {
		_, err = r.t.adopt(ctx, r.key, r.f.owner, r.t.lease.Owner())
	}
	if err != nil || time.Since(r.sentAt) < interval {
		return err
	}
	r.notify(ctx) // also after adopt, so that the next wait is not over at once
	first, err := r.f.recordAfter(ctx, 0)
	if err == nil && first == nil {
		r.f.err = ErrUnknown // the log has expired
	}
	return err
}

// A follower reads a stream from the store.
type follower struct {
	db    store.Log
	name  string
	o     Options
	first string         // writer of the opening, which identifies the stream
	at    uint64         // the last item that was taken
	last  uint64         // the last item that was loaded
	pos   uint64         // of the last loaded record
	k     uint64         // of the last loaded record, or zero
	owner lease.Owner    // of the last loaded record
	page  []store.Record // not loaded yet
	items []Item         // loaded and not taken
	err   error          // after items
}

// follow returns a follower after an item.
func (t *Table) follow(ctx context.Context, key, principal string, after uint64) (*follower, error) {
	f := &follower{db: t.db, name: t.prefix + key, at: after, last: after}
	first, err := f.recordAfter(ctx, 0)
	if err != nil {
		return nil, err
	}
	if first == nil || first.Opening == nil || string(first.Opening.Principal) != principal {
		return nil, ErrUnknown
	}
	f.o, f.first = first.Opening.Options, first.Writer
	r, next, err := f.search(ctx, first, after+1)
	switch {
	case err != nil:
		return nil, err
	case next != nil && after >= r.last():
		return nil, &GapError{after + 1, next.First}
	case next == nil && after > r.ending().n:
		first, err = f.recordAfter(ctx, 0)
		if err == nil && first == nil { // the log has expired since
			err = ErrUnknown
		}
		return nil, cmp.Or(err, ErrAhead)
	}
	f.accept(r)
	return f, nil
}

// search returns the last record that begins at item n or before, and the next record or nil. It
// bisects the positions after low, since records begin with rising numbers.
func (f *follower) search(ctx context.Context, low *record, n uint64) (_, next *record, err error) {
	for step, high := uint64(1), uint64(0); high == 0 || low.pos < high; step *= 2 {
		pos := low.pos + step
		if high > 0 {
			pos = low.pos + (high-low.pos)/2
		}
		r, err := f.recordAfter(ctx, pos)
		if err != nil {
			return nil, nil, err
		}
		if r != nil && r.First <= n {
			low = r
		} else {
			next, high = r, pos
		}
	}
	return low, next, nil
}

// recordAfter returns the first record after a position, or nil.
func (f *follower) recordAfter(ctx context.Context, pos uint64) (*record, error) {
	page, err := f.db.Read(ctx, f.name, pos, 1)
	if err != nil || len(page) == 0 {
		return nil, err
	}
	return decode(page[0])
}

// load loads the next record and reports whether it exists.
func (f *follower) load(ctx context.Context) (isFound bool, err error) {
	if len(f.page) == 0 {
		f.page, err = f.db.Read(ctx, f.name, f.pos, pageSize)
	}
	if err != nil || len(f.page) == 0 {
		return false, err
	}
	r, err := decode(f.page[0])
	if err != nil {
		f.err = err
		return true, nil
	}
	if r.k > f.k+1 && r.First <= f.last+1 { // the records between are trimmed, unless the id has a later stream
		first, err := f.recordAfter(ctx, 0)
		if err != nil {
			return false, err
		}
		if first != nil && first.Writer == f.first {
			f.k = r.k - 1
		}
	}
	f.page = f.page[1:]
	f.accept(r)
	return true, nil
}

// accept takes the items of the next record.
func (f *follower) accept(r *record) {
	switch {
	case r.First > f.last+1:
		f.err = &GapError{f.last + 1, r.First}
		return
	case f.k > 0 && r.k != f.k+1: // of a later stream with the same id
		f.err = ErrUnknown
		return
	}
	for i, data := range r.items {
		if n := r.First + uint64(i); n > f.last {
			f.items = append(f.items, Item{n, data})
		}
	}
	f.pos, f.k, f.owner, f.last = r.pos, r.k, r.Owner, max(f.last, r.last())
	if r.IsEnd {
		f.err = r.ending().err()
	}
}

// take moves items to buf as far as its capacity permits.
func (f *follower) take(buf []Item) []Item {
	n := min(len(f.items), cap(buf))
	buf = append(buf, f.items[:n]...)
	f.items = f.items[n:]
	f.at += uint64(n)
	return buf
}
