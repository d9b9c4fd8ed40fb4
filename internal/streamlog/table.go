// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package streamlog

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/fivewire/fivewire/internal/guard"
	"github.com/fivewire/fivewire/internal/lease"
	"github.com/fivewire/fivewire/internal/randid"
	"github.com/fivewire/fivewire/internal/state"
	"github.com/fivewire/fivewire/store"
)

const (
	kind       = "streamlog" // of index entries, notices and names
	maxReaders = 1024        // of a stream, beyond which those of other processes are not attached
)

// A Table holds the streams of a process. Its methods are safe for concurrent use.
type Table struct {
	db     store.Log // nil: streams are kept in memory
	lease  *lease.Lease
	prefix string

	mu      sync.Mutex
	streams map[string]*stream // written here; guarded by mu
}

// New returns a table of streams in db, under names that begin with prefix. The lease l has to be in the
// same store, and has one table only. If db and l are nil, streams are kept in memory.
func New(db store.Log, l *lease.Lease, prefix string) *Table {
	t := &Table{db: state.GuardLog(db), lease: l, prefix: prefix + kind + "/", streams: map[string]*stream{}}
	if db != nil {
		l.Listen(kind, t.receive)
		l.Adopt(kind, t.adopt)
	}
	return t
}

// Create begins a stream that the principal may read. If the id is in use, it returns
// [store.ErrExists], unless the stream is Movable and open: then it continues the stream, and other
// writers fail with lease.ErrLost. If ctx ends during Create, the stream is cut.
func (t *Table) Create(ctx context.Context, id, principal string, o Options) (*Writer, error) {
	s := t.newStream(t.key(id))
	s.principal, s.o = principal, o.withDefaults(t.db != nil)
	s.timer = time.AfterFunc(never, s.expire)
	if err := s.open(ctx); err != nil {
		s.timer.Stop()
		return nil, err
	}
	t.mu.Lock()
	old := t.streams[s.key]
	if old != nil && t.db == nil {
		t.mu.Unlock()
		s.timer.Stop()
		return nil, store.ErrExists
	}
	t.streams[s.key] = s
	if s.log != nil {
		s.log.renewal = time.AfterFunc(keep/2, s.renew)
		s.log.stop = context.AfterFunc(s.log.epoch, func() { s.lose(nil) })
	}
	t.mu.Unlock()
	s.mu.Lock()
	s.resetLocked()
	s.mu.Unlock()
	if old != nil {
		old.lose(nil)
	}
	return &s.writer, nil
}

// Read attaches a reader after an item, zero for all of them. It returns [ErrUnknown], [ErrAhead] or
// a [*GapError] if there is no such position.
func (t *Table) Read(ctx context.Context, id, principal string, after uint64) (*Reader, error) {
	r := &Reader{t: t, key: t.key(id), principal: principal, cursor: cursor{at: min(after, math.MaxUint64-1)}}
	s := t.stream(r.key)
	if s != nil {
		err := s.admit(&r.cursor, principal)
		if err == nil {
			r.s = s
			return r, nil
		}
		mayContinue := errors.Is(err, lease.ErrLost) || errors.Is(err, ErrAhead) // in another process
		if t.db == nil || !mayContinue {
			return nil, err
		}
	}
	if t.db == nil {
		return nil, ErrUnknown
	}
	f, err := t.follow(ctx, r.key, principal, r.at)
	if err != nil {
		return nil, err
	}
	r.f = f
	r.notify(ctx)
	return r, nil
}

// Remove removes a stream that has ended, after the store has all that follows from its end. It leaves a stream that is
// open in this process.
func (t *Table) Remove(ctx context.Context, id string) error {
	s := t.stream(t.key(id))
	switch {
	case s != nil && s.isOpen():
		return nil
	case s != nil:
		isDone := func() bool { return s.log == nil || !s.log.isFlushing }
		if err := s.await(ctx, isDone); err != nil {
			return err
		}
	}
	if t.db != nil {
		return t.newStream(t.key(id)).log.expire(ctx, 0)
	}
	if s != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.restLocked()
	}
	return nil
}

// isOpen reports whether the stream accepts items.
func (s *stream) isOpen() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.refusalLocked() == nil
}

func (t *Table) key(id string) string {
	if t.db == nil {
		return id
	}
	return state.Join(id)
}

func (t *Table) stream(key string) *stream {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.streams[key]
}

func (t *Table) newStream(key string) *stream {
	s := &stream{t: t, key: key, done: make(chan struct{}), ring: ring{first: 1}}
	s.cursors, s.writer = s.only[:0], Writer{s}
	if t.db != nil {
		s.log = &storedLog{db: t.db, name: t.prefix + key, writer: randid.New("")}
	}
	return s
}

// open begins or continues a stream in the store. If ctx ends first, it cuts the stream afterwards.
func (s *stream) open(ctx context.Context) error {
	l, t := s.log, s.t
	if l == nil {
		return nil
	}
	l.epoch, l.owner = t.lease.Context(), t.lease.Owner()
	if !s.o.Movable {
		owner, err := t.lease.Start(ctx, kind, s.key)
		if err != nil {
			return err
		}
		l.owner = owner
	}
	opened := make(chan error, 1)
	go func() {
		err := guard.Call("store", s.begin)
		if err != nil && !s.o.Movable && !errors.Is(err, store.ErrUnknown) {
			_ = t.lease.Finish(l.epoch, l.owner, kind, s.key) // an entry that is left is removed with the epoch
		}
		opened <- err
	}()
	select {
	case err := <-opened:
		return err
	case <-ctx.Done():
		go func() {
			if <-opened == nil && !s.o.Movable {
				(&Writer{s}).Cut(context.Cause(ctx))
			}
		}()
		return context.Cause(ctx)
	}
}

// begin appends the opening, or a fence to the log of an open Movable stream.
func (s *stream) begin() error {
	ctx, principal, isMovable := s.log.epoch, s.principal, s.o.Movable
	if ctx.Err() != nil { // the owner may be that of the next epoch
		return lease.ErrLost
	}
	r := &record{First: 1, Opening: &opening{[]byte(principal), s.o}}
	err := s.log.append(ctx, r)
	if err == nil {
		s.log.addLocked(r)
	}
	if !errors.Is(err, store.ErrDuplicate) {
		return err
	}
	if !isMovable {
		return store.ErrExists
	}
	last, err := s.readLog(ctx)
	if err != nil {
		return err
	}
	isOpen := last != nil && !last.IsEnd && s.principal == principal && s.o.Movable
	if isOpen {
		isOpen, err = s.fence(ctx, &record{})
	}
	if err == nil && !isOpen {
		err = store.ErrExists
	}
	return err
}

// adopt ends a stream of a failed process.
func (t *Table) adopt(ctx context.Context, key string, _, to lease.Owner) (lease.Found, error) {
	s := t.newStream(key)
	s.log.owner = to
	last, err := s.readLog(ctx)
	if err != nil {
		return 0, err
	}
	if last == nil {
		return lease.Absent, nil
	}
	if !last.IsEnd {
		isAlive, err := t.lease.Alive(ctx, last.Owner)
		if err != nil || isAlive {
			return lease.Held, err
		}
		r := &record{}
		r.setEnd(lease.ErrLost)
		if _, err = s.fence(ctx, r); err != nil {
			return 0, err
		}
	}
	return lease.Ended, s.log.expire(ctx, s.o.Retention)
}

// receive handles a notice of a reader in another process.
func (t *Table) receive(data []byte) {
	var n notice
	if json.Unmarshal(data, &n) != nil || n.Reader == "" {
		return
	}
	s := t.stream(string(n.Key))
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	at := min(n.At, s.visible)
	i := slices.IndexFunc(s.cursors, func(c *cursor) bool { return c.peer == n.Reader })
	switch {
	case i >= 0 && n.IsClosed:
		s.detachLocked(s.cursors[i], ErrClosed)
	case i >= 0:
		s.moveLocked(s.cursors[i], max(at, s.cursors[i].at)) // notices in doubt may arrive late
	case !n.IsClosed && len(s.cursors) < maxReaders:
		s.attachLocked(&cursor{peer: n.Reader, at: at})
	}
}

// remove removes a stream that is not written here any longer.
func (t *Table) remove(s *stream) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.streams[s.key] == s {
		delete(t.streams, s.key)
	}
	if s.log != nil && s.log.stop != nil {
		s.log.stop()
		s.log.renewal.Stop()
	}
}
