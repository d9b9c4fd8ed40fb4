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
	idleInterval   = 10 * time.Second // otherwise; less if SlowTimeout is less
)

// A Reader reads a stream. It is for one goroutine.
type Reader struct {
	t         *Table
	key       string
	principal string
	s         *stream // nil if the stream is not written here
	cursor            // guarded by the mutex of s
	f         *follower

	id         string // for the owner of the stream, if that is another process
	noticed    uint64 // the position in the last notice
	noticeTime time.Time
	bytes      int // taken since then
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
// After [*GapError], [ErrSlowReader] and [ErrClosed] the reader has ended too. After the end of ctx or
// an error of the store Next can be called again.
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
			r.pause()
			return nil, context.Cause(ctx)
		}
	}
	defer r.pause()
	return r.follow(ctx, buf[:0])
}

// Close ends the reader.
func (r *Reader) Close() {
	isOpen := r.f != nil && r.s == nil && r.err == nil
	r.detach(ErrClosed)
	if isOpen {
		r.notify(context.Background())
	}
}

// take reads from memory.
func (r *Reader) take(buf []Item) ([]Item, <-chan struct{}, error) {
	s := r.s
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.isLost && r.err == nil {
		r.s = nil
		return nil, nil, nil
	}
	return s.takeLocked(&r.cursor, buf)
}

// pause notes that Next has returned without an item.
func (r *Reader) pause() {
	if s := r.s; s != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		r.isReading = false
	}
}

// detach ends the reader, unless that has happened, with the error of the next Next.
func (r *Reader) detach(err error) {
	if s := r.s; s != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.detachLocked(&r.cursor, err)
	}
	r.err = cmp.Or(r.err, err)
}

// follow reads from the store.
func (r *Reader) follow(ctx context.Context, buf []Item) (items []Item, err error) {
	if r.err != nil {
		return nil, r.err
	}
	if r.f == nil || r.f.taken != r.at {
		r.f, err = r.t.follow(ctx, r.key, r.principal, r.at)
	}
	for err == nil {
		if n := min(len(r.f.items), cap(buf)); n > 0 {
			buf = append(buf, r.f.items[:n]...)
			r.f.items, r.f.taken = r.f.items[n:], buf[n-1].N
			r.move(ctx, buf)
			return buf, nil
		}
		if r.f.err != nil {
			r.detach(r.f.err)
			return nil, r.err
		}
		isMore := false
		isMore, err = r.f.load(ctx)
		switch {
		case err == nil && !isMore && r.s != nil: // memory has the items behind the log
			r.f.err = &GapError{r.at + 1, r.at + 2}
		case err == nil && !isMore:
			err = r.wait(ctx)
		}
	}
	return nil, err
}

// move notes that the reader has taken items from the store, and notifies the owner after a second
// and after half a window.
func (r *Reader) move(ctx context.Context, items []Item) {
	last := items[len(items)-1].N
	if s := r.s; s != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.moveLocked(&r.cursor, last)
		return
	}
	r.at = last
	for _, item := range items {
		r.bytes += max(len(item.Data)+overhead, windowItem)
	}
	if r.bytes >= r.f.o.Window/2 || time.Since(r.noticeTime) >= noticeInterval {
		r.notify(ctx)
	}
}

// notify sends a notice. Without one for SlowTimeout the owner does not wait for the reader.
func (r *Reader) notify(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, noticeInterval)
	defer cancel()
	r.id = cmp.Or(r.id, randid.New(""))
	data, err := json.Marshal(notice{[]byte(r.key), r.id, r.at, r.err != nil})
	if err == nil {
		_ = r.t.lease.Tell(ctx, r.f.owner, kind, data)
	}
	r.noticed, r.noticeTime, r.bytes = r.at, time.Now(), 0
}

// wait waits for another record, or until a notice is due, and sends that.
func (r *Reader) wait(ctx context.Context) error {
	interval := noticeInterval
	if r.at == r.noticed {
		interval = min(idleInterval, r.f.o.SlowTimeout/3)
	}
	if left := interval - time.Since(r.noticeTime); left > 0 {
		waitCtx, cancel := context.WithTimeout(ctx, left)
		defer cancel()
		err := r.t.db.Wait(waitCtx, r.f.name, r.f.pos)
		if ctx.Err() == nil && waitCtx.Err() != nil {
			return nil
		}
		return cmp.Or(context.Cause(ctx), err)
	}
	r.notify(ctx)
	page, err := r.t.db.Read(ctx, r.f.name, 0, 1)
	if err == nil && len(page) == 0 {
		r.f.err = ErrUnknown // the log has expired
	}
	return err
}

// A follower reads a stream from the store.
type follower struct {
	db    store.Log
	name  string
	o     Options
	owner lease.Owner    // that wrote the last record
	pos   uint64         // of the last record
	k     uint64         // of the last record; zero before
	last  uint64         // the last item of the last record
	taken uint64         // the last item that the reader took
	page  []store.Record // not loaded yet
	items []Item         // not taken yet
	err   error          // after items
}

// follow returns a follower after an item. It bisects the positions: the records that precede the
// searched one begin with lower numbers.
func (t *Table) follow(ctx context.Context, key, principal string, after uint64) (*follower, error) {
	f := &follower{db: t.db, name: t.prefix + key, last: after, taken: after}
	low, err := f.recordAfter(ctx, 0)
	if err != nil {
		return nil, err
	}
	if low == nil || low.Opening == nil || string(low.Opening.Principal) != principal {
		return nil, ErrUnknown
	}
	f.o = low.Opening.Options
	var next *record // the first record that begins after the wanted item
	for step, high := uint64(1), uint64(0); high == 0 || low.pos < high; step *= 2 {
		pos := low.pos + step
		if high != 0 {
			pos = low.pos + (high-low.pos)/2
		}
		r, err := f.recordAfter(ctx, pos)
		switch {
		case err != nil:
			return nil, err
		case r != nil && r.First <= after+1:
			low = r
		default:
			next, high = r, pos
		}
	}
	end := low.last()
	if low.IsEnd {
		end = low.ending().n
	}
	switch {
	case after > end && next == nil:
		if still, err := f.recordAfter(ctx, 0); err != nil || still == nil {
			return nil, cmp.Or(err, ErrUnknown) // the log has expired since
		}
		return nil, ErrAhead
	case after >= low.last() && next != nil:
		return nil, &GapError{after + 1, next.First}
	}
	f.accept(low)
	return f, nil
}

func (f *follower) recordAfter(ctx context.Context, pos uint64) (*record, error) {
	page, err := f.db.Read(ctx, f.name, pos, 1)
	if err != nil || len(page) == 0 {
		return nil, err
	}
	return decode(page[0])
}

// load reads the next record and reports whether it exists.
func (f *follower) load(ctx context.Context) (bool, error) {
	if len(f.page) == 0 {
		page, err := f.db.Read(ctx, f.name, f.pos, pageSize)
		if err != nil || len(page) == 0 {
			return false, err
		}
		f.page = page
	}
	r, err := decode(f.page[0])
	f.page = f.page[1:]
	if err != nil {
		f.err = err
		return true, nil
	}
	f.accept(r)
	return true, nil
}

// accept takes the items of the next record.
func (f *follower) accept(r *record) {
	switch {
	case r.First > f.last+1:
		f.err = &GapError{f.last + 1, r.First}
		return
	case f.k != 0 && r.k != f.k+1: // of a later stream with the same id
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
