// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package accp

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/fivewire/fivewire/store"
)

// This file keeps what a session must not forget when its process ends, and what
// processes that share it must agree on: numbers, replays, cancelled chains, the
// count of checkpoints and the shared state. It lies in the store of the session,
// if that was given one, in one record that changes by compare-and-set. Only the
// newest marks of the windows are in the record; older ones lie in pages beside it.

const pageSize = 256 // marks of a page

var (
	errRecord    = errors.New("accp: malformed session record")
	errUnchanged = errors.New("accp: nothing to write")
)

// durable reports whether the session keeps a record.
func (s *Session) durable() bool { return s.opts.Store != nil && s.id != "" }

func (s *Session) recordKey() string {
	return s.private().space(s.id, "session") + s.self
}

func (s *Session) pageKey(window string, page int64) string {
	return s.recordKey() + "/" + window + "/" + strconv.FormatInt(page, 10)
}

// refresh takes over what other processes, or an earlier one, made of the session.
func (s *Session) refresh(ctx context.Context) error {
	if !s.durable() || s.loaded && !s.dirty {
		return nil // if others changed it, commit will be told
	}
	e, err := s.opts.Store.Get(ctx, s.recordKey())
	switch {
	case errors.Is(err, store.ErrNotFound):
		if s.loaded { // it was removed, or never written
			s.forget()
		}
		s.loaded = true
		return nil
	case err != nil:
		return &Error{Code: ErrInternal, Message: "reading the session", Cause: err}
	}
	if life, ok := lifeOf(e.Value); ok && s.loaded && life != s.life {
		s.forget() // it was removed, and made anew by somebody else
		s.loaded = false
	}
	if err := s.load(ctx, e.Value); err != nil {
		s.dirty = true
		return &Error{Code: ErrInternal, Message: "reading the session", Cause: err}
	}
	s.rev, s.dirty, s.loaded = e.Revision, false, true
	s.seenDone, s.cancelDone = s.seen.count, s.cancelled.count
	for chain := range s.running {
		if s.cancelled.has(markOf(chain)) {
			s.stop(chain)
		}
	}
	return nil
}

// Reload takes over what other processes, or an earlier one, made of the session.
// Every frame that is sent or received does that by itself, so this is for who
// asks for [Session.State], [Session.ModelContext], [Session.Checkpoints],
// [Session.IsCancelled] or [Session.Budget] before, and for who waits in
// [Session.ChainContext] for a cancel that another process takes. Without a Store it does
// nothing.
func (s *Session) Reload(ctx context.Context) error {
	leave, err := s.enter(ctx)
	if err != nil {
		return err
	}
	defer leave()
	s.dirty = true
	return s.refresh(ctx)
}

// forget makes the session a new one.
func (s *Session) forget() {
	s.life, s.pagesAt = life{}, 0
	s.rev, s.dirty, s.started, s.high = 0, false, false, 0
	s.last = fifo[int64]{max: maxSenders}
	s.seen, s.cancelled = window{max: s.seen.max}, window{max: s.cancelled.max}
	s.seenPages, s.cancelPages, s.seenDone, s.cancelDone = 0, 0, 0, 0
	s.made, s.looked, s.missing, s.checkpoints = 0, 0, nil, nil
	s.version, s.versioned, s.state, s.stateText = 0, false, nil, nil
	s.hotAt, s.hotUsed = 0, 0
	for _, f := range s.hot {
		s.hotUsed += f.tokens
	}
}

// commit writes what changed since refresh. [store.ErrConflict] means that somebody
// else was faster: the caller refreshes and decides again.
func (s *Session) commit(ctx context.Context) error {
	if !s.durable() {
		return nil
	}
	s.dirty = true // until the store says otherwise
	if s.rev == 0 && s.life == (life{}) {
		rand.Read(s.life[:])
	}
	if err := s.renewPages(ctx); err != nil {
		return err
	}
	seenPages, err := s.pages(ctx, "seen", &s.seen, s.seenPages)
	if err != nil {
		return err
	}
	cancelPages, err := s.pages(ctx, "cancelled", &s.cancelled, s.cancelPages)
	if err != nil {
		return err
	}
	data := s.appendRecord(nil, seenPages, cancelPages)
	var rev store.Revision
	if s.rev == 0 {
		rev, err = s.opts.Store.Create(ctx, s.recordKey(), data, s.keepRecord())
	} else {
		rev, err = s.opts.Store.Update(ctx, s.recordKey(), data, s.rev, s.keepRecord())
	}
	switch {
	case errors.Is(err, store.ErrExists), errors.Is(err, store.ErrConflict), errors.Is(err, store.ErrNotFound):
		return store.ErrConflict
	case err != nil:
		return &Error{Code: ErrInternal, Message: "writing the session", Cause: err}
	}
	s.rev, s.dirty = rev, false
	s.seenPages, s.cancelPages = seenPages, cancelPages
	s.seenDone, s.cancelDone = s.seen.count, s.cancelled.count
	return nil
}

// pages writes the pages that can leave the record, and returns how many there
// are then. The newest page stays: its marks may not be those that the store will
// accept, while all of the one before are in the record that is there.
func (s *Session) pages(ctx context.Context, name string, w *window, written int64) (int64, error) {
	for ; w.count-written*pageSize >= 2*pageSize; written++ {
		if err := s.writePage(ctx, name, w, written); err != nil {
			return written, err
		}
	}
	return written, nil
}

// writePage writes a page, unless a later one lies in its place already: then this
// side knows too little of the session, which is [store.ErrConflict].
func (s *Session) writePage(ctx context.Context, name string, w *window, page int64) error {
	data := binary.BigEndian.AppendUint64(append([]byte(nil), s.life[:]...), uint64(page))
	for _, m := range w.from(page * pageSize)[:pageSize] {
		data = append(data, m[:]...)
	}
	key := s.pageKey(name, page%(int64(w.max)/pageSize))
	ttl := time.Duration(0)
	if s.opts.Retention > 0 {
		ttl = saturated(s.opts.Retention, s.keepRecord())
	}
	err := replace(ctx, s.opts.Store, key, data, ttl, func(old []byte) error {
		if n, ok := s.pageOf(old); ok && n > page {
			return store.ErrConflict
		}
		return nil
	})
	if err != nil && !errors.Is(err, store.ErrConflict) {
		err = &Error{Code: ErrInternal, Message: "writing the session", Cause: err}
	}
	return err
}

const pageHead = 8 + 8 // the life of the record and the number of the page

// pageOf returns the number of a page, if it is one of this record.
func (s *Session) pageOf(data []byte) (int64, bool) {
	if len(data) != pageHead+16*pageSize || life(data) != s.life {
		return 0, false
	}
	return int64(binary.BigEndian.Uint64(data[8:])), true
}

// keepRecord returns how long the record lives after a frame. What else the session
// stored before that frame is gone by then, so that a later session of the same
// name finds nothing of this one.
func (s *Session) keepRecord() time.Duration {
	if s.opts.Retention <= 0 {
		return 0
	}
	return saturated(s.opts.Retention, 2*expiredFor)
}

func saturated(a, b time.Duration) time.Duration {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}

// renewPages writes the pages again before they expire, since each is written once
// and has to live as long as the record: they are kept for Keep longer, and here
// renewed when half of that is over.
func (s *Session) renewPages(ctx context.Context) error {
	now := time.Now().UnixMilli()
	if s.opts.Retention <= 0 || s.pagesAt != 0 && now-s.pagesAt < s.opts.Retention.Milliseconds()/2 {
		return nil
	}
	for _, w := range []struct {
		name string
		*window
		pages int64
	}{{"seen", &s.seen, s.seenPages}, {"cancelled", &s.cancelled, s.cancelPages}} {
		for page := max(0, (w.count-int64(len(w.ring))+pageSize-1)/pageSize); page < w.pages; page++ {
			if err := s.writePage(ctx, w.name, w.window, page); err != nil {
				return err
			}
		}
	}
	s.pagesAt = now
	return nil
}

// overwrite puts a value under a key, whatever is there.
func overwrite(ctx context.Context, kv store.KV, key string, data []byte, ttl time.Duration) error {
	return replace(ctx, kv, key, data, ttl, func([]byte) error { return nil })
}

// replace puts a value under a key, unless may has an error about what is there.
func replace(ctx context.Context, kv store.KV, key string, data []byte, ttl time.Duration, may func(old []byte) error) error {
	for {
		_, err := kv.Create(ctx, key, data, ttl)
		if !errors.Is(err, store.ErrExists) {
			return err
		}
		e, err := kv.Get(ctx, key)
		if err == nil {
			if err := may(e.Value); err != nil {
				return err
			}
			_, err = kv.Update(ctx, key, data, e.Revision, ttl)
		}
		if !errors.Is(err, store.ErrNotFound) && !errors.Is(err, store.ErrConflict) {
			return err // somebody else changed it if it is one of these; every round somebody succeeds
		}
	}
}

const recordVersion = 2

// A life tells a record from one of the same name that was removed.
type life [8]byte

// lifeOf returns the life of a record, if it has one.
func lifeOf(data []byte) (l life, ok bool) {
	if len(data) < 1+len(l) || data[0] != recordVersion {
		return l, false
	}
	return life(data[1:]), true
}

func (s *Session) appendRecord(b []byte, seenPages, cancelPages int64) []byte {
	b = append(b, recordVersion)
	b = append(b, s.life[:]...)
	b = append(b, flag(s.started), flag(s.versioned))
	b = binary.AppendUvarint(b, uint64(s.pagesAt))
	b = binary.AppendUvarint(b, uint64(s.high))
	b = binary.AppendUvarint(b, uint64(s.made))
	b = binary.AppendVarint(b, s.version) // of a peer, which may begin below zero
	keys := s.last.keys()
	b = binary.AppendUvarint(b, uint64(len(keys)))
	for _, k := range keys {
		n, _ := s.last.get(k)
		b = binary.AppendUvarint(b, uint64(len(k)))
		b = append(b, k...)
		b = binary.AppendUvarint(b, uint64(n))
	}
	for _, w := range []struct {
		*window
		pages int64
	}{{&s.seen, seenPages}, {&s.cancelled, cancelPages}} {
		b = binary.AppendUvarint(b, uint64(w.count))
		b = binary.AppendUvarint(b, uint64(w.pages))
		for _, m := range w.from(w.pages * pageSize) {
			b = append(b, m[:]...)
		}
	}
	return append(b, s.stateText...)
}

func flag(b bool) byte {
	if b {
		return 1
	}
	return 0
}

// load takes a record over. What it finds malformed leaves the session as it was,
// but for what the next load sets again.
func (s *Session) load(ctx context.Context, data []byte) error {
	r := recordReader{data: data}
	if v := r.take(1); r.bad {
		return errRecord
	} else if v[0] != recordVersion {
		return fmt.Errorf("accp: session record of format %d, which is not %d", v[0], recordVersion)
	}
	copy(s.life[:], r.take(int64(len(s.life))))
	flags := r.take(2)
	s.started, s.versioned = flags[0] == 1, flags[1] == 1
	s.pagesAt, s.high, s.made, s.version = r.number(), r.number(), r.number(), r.signed()
	s.last = fifo[int64]{max: maxSenders}
	for n := r.number(); n > 0 && !r.bad; n-- {
		name := string(r.take(r.number()))
		s.last.add(name, r.number())
	}
	for _, w := range []struct {
		name      string
		win       *window
		pages     *int64
		committed int64
	}{{"seen", &s.seen, &s.seenPages, s.seenDone}, {"cancelled", &s.cancelled, &s.cancelPages, s.cancelDone}} {
		count, pages := r.number(), r.number()
		if r.bad || pages > count/pageSize || count-pages*pageSize > int64(len(r.data))/16 {
			return errRecord
		}
		marks := make([]mark, count-pages*pageSize)
		for i := range marks {
			copy(marks[i][:], r.take(16))
		}
		// What this side added since its last commit was not accepted, so that
		// is taken back first. If it then has all that is in pages, only what
		// is in the record is new.
		old := w.win.from(0)
		if back := w.win.count - w.committed; back > 0 && back <= int64(len(old)) {
			old = old[:int64(len(old))-back]
		}
		if from := pages * pageSize; s.loaded && w.committed >= from && w.committed <= count {
			marks = marks[w.committed-from:]
		} else {
			var err error
			if old, err = s.readPages(ctx, w.name, pages, int64(w.win.max)/pageSize); err != nil {
				return err
			}
		}
		w.win.reset(append(old, marks...), count)
		*w.pages = pages
	}
	if r.bad {
		return errRecord
	}
	s.state, s.stateText = nil, nil
	if len(r.data) > 0 {
		v, err := storedCodec().DecodeValue(r.data)
		if err != nil {
			return errRecord
		}
		s.state, s.stateText = v.Entries(), r.data
	}
	return s.loadCheckpoints(ctx)
}

// readPages returns the marks of the pages before number n, as far as they are
// kept and there.
func (s *Session) readPages(ctx context.Context, name string, n, most int64) ([]mark, error) {
	var out []mark
	for page := max(0, n-most); page < n; page++ {
		e, err := s.opts.Store.Get(ctx, s.pageKey(name, page%most))
		if errors.Is(err, store.ErrNotFound) {
			out = out[:0] // marks follow one another without a gap
			continue
		}
		if err != nil {
			return nil, err
		}
		if n, ok := s.pageOf(e.Value); !ok || n != page {
			out = out[:0]
			continue
		}
		for i := range pageSize {
			out = append(out, mark(e.Value[pageHead+16*i:]))
		}
	}
	return out, nil
}

type recordReader struct {
	data []byte
	bad  bool
}

func (r *recordReader) take(n int64) []byte {
	if r.bad || n < 0 || n > int64(len(r.data)) {
		r.bad = true
		return make([]byte, min(max(n, 0), 16))
	}
	out := r.data[:n]
	r.data = r.data[n:]
	return out
}

func (r *recordReader) signed() int64 {
	v, n := binary.Varint(r.data)
	if r.bad || n <= 0 {
		r.bad = true
		return 0
	}
	r.data = r.data[n:]
	return v
}

func (r *recordReader) number() int64 {
	v, n := binary.Uvarint(r.data)
	if r.bad || n <= 0 || int64(v) < 0 {
		r.bad = true
		return 0
	}
	r.data = r.data[n:]
	return int64(v)
}

// change makes a change of the record, deciding again as often as somebody else
// changes it at the same time.
func (s *Session) change(ctx context.Context, decide func() error) error {
	for {
		if err := s.refresh(ctx); err != nil {
			return err
		}
		if err := decide(); err != nil {
			return err
		}
		if err := s.commit(ctx); !errors.Is(err, store.ErrConflict) {
			return err
		}
	}
}

// setState makes p the shared state.
func (s *Session) setState(version int64, p Params) error {
	text, err := storedCodec().AppendValue(nil, Value{kind: KindMap, list: p})
	if err != nil {
		return err
	}
	s.version, s.versioned, s.state, s.stateText = version, true, p, text
	return nil
}
