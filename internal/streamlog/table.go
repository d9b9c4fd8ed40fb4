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

	"github.com/fivewire/fivewire/internal/lease"
	"github.com/fivewire/fivewire/internal/randid"
	"github.com/fivewire/fivewire/internal/statekey"
	"github.com/fivewire/fivewire/store"
)

const (
	kind       = "streamlog" // of index entries, notices and keys
	maxReaders = 1024        // attached ones, beyond which those of other processes are not attached
)

// A Table holds the streams of a process. Its methods are safe for concurrent use.
type Table struct {
	db     store.Log // nil: streams are kept in memory
	lease  *lease.Lease
	prefix string

	mu      sync.Mutex
	streams map[string]*stream // written here; guarded by mu
}

// New returns a table of streams in db, under names that begin with prefix. The lease must be on the
// same store, and have one table only. If db and l are nil, streams are kept in memory.
func New(db store.Log, l *lease.Lease, prefix string) *Table {
	t := &Table{db: db, lease: l, prefix: prefix + kind + "/", streams: map[string]*stream{}}
	if db != nil {
		l.Listen(kind, t.receive)
		l.Adopt(kind, t.adopt)
	}
	return t
}

// Create begins a stream that the principal may read. If the id is in use, it returns
// [store.ErrExists], unless the stream is Movable and open: then it continues the stream, and other
// writers of it fail with lease.ErrLost.
func (t *Table) Create(ctx context.Context, id, principal string, o Options) (*Writer, error) {
	s := t.newStream(t.key(id))
	s.principal, s.o = principal, o.withDefaults(t.db != nil)
	if t.db != nil {
		if err := s.open(ctx); err != nil {
			return nil, err
		}
	}
	s.mu.Lock()
	s.timer = time.AfterFunc(never, s.expire)
	s.resetLocked()
	s.mu.Unlock()
	t.mu.Lock()
	old := t.streams[s.key]
	if old != nil && t.db == nil {
		t.mu.Unlock()
		return nil, store.ErrExists
	}
	t.streams[s.key] = s
	if s.log != nil {
		s.log.renewal = time.AfterFunc(keep/2, s.renew)
		s.log.stop = context.AfterFunc(s.log.epoch, s.lose)
	}
	t.mu.Unlock()
	if old != nil {
		old.lose()
	}
	return &Writer{s}, nil
}

// Read attaches a reader after an item, zero for all of them. It returns [ErrUnknown], [ErrAhead] or
// a [*GapError] if there is no such position.
func (t *Table) Read(ctx context.Context, id, principal string, after uint64) (*Reader, error) {
	r := &Reader{t: t, key: t.key(id), principal: principal, cursor: cursor{at: min(after, math.MaxUint64-1)}}
	t.mu.Lock()
	s := t.streams[r.key]
	t.mu.Unlock()
	if s != nil {
		err := s.admit(&r.cursor, principal)
		if err == nil {
			r.s = s
			return r, nil
		}
		isDoubtful := errors.Is(err, lease.ErrLost) || errors.Is(err, ErrAhead) // another process may write it
		if !isDoubtful {
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

// key returns the name of a stream in the table.
func (t *Table) key(id string) string {
	if t.db == nil {
		return id
	}
	return statekey.Join(id)
}

func (t *Table) newStream(key string) *stream {
	s := &stream{t: t, key: key, done: make(chan struct{})}
	s.first = 1
	if t.db != nil {
		s.log = &storedLog{db: t.db, name: t.prefix + key, writer: randid.New("")}
	}
	return s
}

// open begins a stream in the store, or continues a Movable one.
func (s *stream) open(ctx context.Context) (err error) {
	l := s.log
	l.epoch, l.owner = s.t.lease.Context(), s.t.lease.Owner()
	if s.o.Movable {
		return s.begin(ctx)
	}
	if l.owner, err = s.t.lease.Start(ctx, kind, s.key); err != nil {
		return err
	}
	err = s.begin(ctx)
	if err != nil && !errors.Is(err, store.ErrUnknown) {
		_ = s.t.lease.Finish(ctx, l.owner, kind, s.key) // a survivor removes an entry that is left
	}
	return err
}

// begin appends the first record, or a fence to the log of a Movable stream.
func (s *stream) begin(ctx context.Context) error {
	principal, isMovable := s.principal, s.o.Movable
	if s.log.epoch.Err() != nil { // the owner may be that of the next epoch
		return lease.ErrLost
	}
	err := s.log.append(ctx, &record{First: 1, Opening: &opening{[]byte(principal), s.o}})
	if !errors.Is(err, store.ErrDuplicate) {
		return err
	}
	if !isMovable {
		return store.ErrExists
	}
	if _, err := s.readLog(ctx); err != nil {
		return err
	}
	if s.principal != principal || !s.o.Movable || s.end != nil {
		return store.ErrExists
	}
	if err = s.fence(ctx, &record{}); err == nil && s.end != nil {
		return store.ErrExists
	}
	return err
}

// adopt ends a stream of a failed process.
func (t *Table) adopt(ctx context.Context, key string, _, to lease.Owner) (lease.Found, error) {
	s := t.newStream(key)
	s.log.owner = to
	owner, err := s.readLog(ctx)
	if err == nil && s.log.k == 0 {
		return lease.Absent, nil
	}
	if err == nil && s.end == nil {
		isAlive, err := t.lease.Alive(ctx, owner)
		if err != nil || isAlive {
			return lease.Held, err
		}
		r := &record{}
		r.end(lease.ErrLost)
		if err := s.fence(ctx, r); err != nil {
			return lease.Held, err
		}
	}
	if err == nil {
		err = s.expireLog(ctx, s.o.Retention)
	}
	return lease.Ended, err
}

// receive handles a notice of a reader in another process.
func (t *Table) receive(data []byte) {
	var n notice
	if json.Unmarshal(data, &n) != nil || n.Reader == "" {
		return
	}
	t.mu.Lock()
	s := t.streams[string(n.Key)]
	t.mu.Unlock()
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
		s.moveLocked(s.cursors[i], at)
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
