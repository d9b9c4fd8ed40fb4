// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"bytes"
	"context"
	"errors"
	"iter"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/fivewire/fivewire/store"
)

// A disk is the data of the store, with a clock that may be wrong. Positions and revisions come from
// one counter, so they have gaps.
type disk struct {
	w       *World
	rate    float64 // of the clock
	offset  time.Duration
	observe func(Change)

	mu      sync.Mutex // guards all below
	jumped  time.Duration
	last    uint64
	keys    map[string]store.Entry
	streams map[string]*stream
}

type stream struct {
	records []store.Record
	ids     map[string]store.Record // known; without value
	waiting []chan struct{}
}

// A Change is one change of a key of the store. Value is nil after a deletion.
type Change struct {
	Node, Key  string
	Old, Value []byte
	disk       *disk
}

func newDisk(w *World) *disk {
	d := &disk{w: w, rate: 1, keys: map[string]store.Entry{}, streams: map[string]*stream{}}
	if r := rand.New(rand.NewPCG(w.seed, 4)); w.IsClockWrong() {
		d.rate += (r.Float64() - 0.5) / 50
		d.offset = time.Duration(r.Int64N(int64(2*time.Hour))) - time.Hour
	}
	return d
}

// OnChange sets the function that is called after each change of a key, before its answer. It must not
// call the store. It has to be set before the first node.
func (w *World) OnChange(f func(c Change)) { w.disk.observe = f }

// Data returns a view of the store without faults and delays, for checks.
func (w *World) Data() store.Store { return direct{w.disk} }

func (d *disk) jump(by time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.jumped += by
}

// touch gives a key a new revision and nothing else.
func (d *disk) touch(key string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	e, err := d.getLocked(key)
	if err == nil {
		d.last++
		e.Revision = store.Revision(d.last)
		d.keys[key] = e
	}
	return err
}

// nowLocked returns the time of the clock. d.mu must be held.
func (d *disk) nowLocked() time.Time {
	return d.w.start.Add(d.offset + d.jumped + time.Duration(float64(d.w.Now())*d.rate))
}

func (d *disk) expiryLocked(ttl time.Duration) time.Time {
	if ttl == 0 {
		return time.Time{}
	}
	return d.nowLocked().Add(ttl)
}

func (d *disk) isAliveLocked(expires time.Time) bool {
	return expires.IsZero() || d.nowLocked().Before(expires)
}

// getLocked returns a key that has not expired. d.mu must be held.
func (d *disk) getLocked(key string) (store.Entry, error) {
	e, ok := d.keys[key]
	if !ok || !d.isAliveLocked(e.Expires) {
		delete(d.keys, key)
		return store.Entry{}, store.ErrNotFound
	}
	return e, nil
}

// setLocked writes a key. d.mu must be held.
func (d *disk) setLocked(node, key string, old, value []byte, ttl time.Duration) store.Revision {
	d.last++
	e := store.Entry{Key: key, Value: append([]byte{}, value...), Revision: store.Revision(d.last), Expires: d.expiryLocked(ttl)}
	d.keys[key] = e
	d.notifyLocked(node, key, old, e.Value)
	return e.Revision
}

func (d *disk) notifyLocked(node, key string, old, value []byte) {
	if d.observe != nil {
		d.observe(Change{Node: node, Key: key, Old: old, Value: value, disk: d})
	}
}

// streamLocked returns a stream without expired records. d.mu must be held.
func (d *disk) streamLocked(name string) *stream {
	s := d.streams[name]
	if s == nil {
		s = &stream{ids: map[string]store.Record{}}
		d.streams[name] = s
	}
	now := d.nowLocked()
	s.records = slices.DeleteFunc(s.records, func(r store.Record) bool { return !r.Expires.IsZero() && !now.Before(r.Expires) })
	return s
}

// A direct value is the store without delays.
type direct struct{ d *disk }

func check(ctx context.Context, name string, ttl time.Duration) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := store.ValidateName("name", name); err != nil {
		return err
	}
	return store.ValidateTTL(ttl)
}

func (s direct) Get(ctx context.Context, key string) (store.Entry, error) {
	if err := check(ctx, key, 0); err != nil {
		return store.Entry{}, err
	}
	s.d.mu.Lock()
	defer s.d.mu.Unlock()
	return s.d.getLocked(key)
}

func (s direct) Create(ctx context.Context, key string, value []byte, ttl time.Duration) (store.Revision, error) {
	return s.create(ctx, "", key, value, ttl)
}

func (s direct) create(ctx context.Context, node, key string, value []byte, ttl time.Duration) (store.Revision, error) {
	if err := check(ctx, key, ttl); err != nil {
		return 0, err
	}
	s.d.mu.Lock()
	defer s.d.mu.Unlock()
	if _, err := s.d.getLocked(key); err == nil {
		return 0, store.ErrExists
	}
	return s.d.setLocked(node, key, nil, value, ttl), nil
}

func (s direct) Update(ctx context.Context, key string, value []byte, rev store.Revision, ttl time.Duration) (store.Revision, error) {
	return s.update(ctx, "", store.Entry{Key: key, Value: value, Revision: rev}, ttl)
}

func (s direct) update(ctx context.Context, node string, next store.Entry, ttl time.Duration) (store.Revision, error) {
	if err := check(ctx, next.Key, ttl); err != nil {
		return 0, err
	}
	s.d.mu.Lock()
	defer s.d.mu.Unlock()
	e, err := s.d.getLocked(next.Key)
	switch {
	case err != nil:
		return 0, err
	case e.Revision != next.Revision:
		return 0, store.ErrConflict
	}
	return s.d.setLocked(node, next.Key, e.Value, next.Value, ttl), nil
}

func (s direct) Delete(ctx context.Context, key string, rev store.Revision) error {
	return s.remove(ctx, "", key, rev)
}

func (s direct) remove(ctx context.Context, node, key string, rev store.Revision) error {
	if err := check(ctx, key, 0); err != nil {
		return err
	}
	s.d.mu.Lock()
	defer s.d.mu.Unlock()
	e, err := s.d.getLocked(key)
	switch {
	case err != nil:
		return nil
	case rev != 0 && e.Revision != rev:
		return store.ErrConflict
	}
	delete(s.d.keys, key)
	s.d.notifyLocked(node, key, e.Value, nil)
	return nil
}

func (s direct) List(ctx context.Context, prefix string) iter.Seq2[store.Entry, error] {
	return func(yield func(store.Entry, error) bool) {
		s.d.mu.Lock()
		var keys []string
		for key := range s.d.keys {
			if strings.HasPrefix(key, prefix) {
				keys = append(keys, key)
			}
		}
		s.d.mu.Unlock()
		slices.Sort(keys)
		for _, key := range keys {
			e, err := s.Get(ctx, key)
			switch {
			case errors.Is(err, store.ErrNotFound):
				continue
			case !yield(e, err) || err != nil:
				return
			}
		}
	}
}

func (s direct) Append(ctx context.Context, name, id string, value []byte, ttl time.Duration) (uint64, error) {
	if err := check(ctx, name, ttl); err != nil {
		return 0, err
	}
	d := s.d
	d.mu.Lock()
	defer d.mu.Unlock()
	st := d.streamLocked(name)
	if r, ok := st.ids[id]; ok && id != "" && d.isAliveLocked(r.Expires) {
		return r.Seq, store.ErrDuplicate
	}
	d.last++
	r := store.Record{Seq: d.last, ID: id, Value: bytes.Clone(value), Time: d.nowLocked(), Expires: d.expiryLocked(ttl)}
	st.records = append(st.records, r)
	if id != "" {
		r.Value = nil
		st.ids[id] = r
	}
	for _, ch := range st.waiting {
		close(ch)
	}
	st.waiting = nil
	return r.Seq, nil
}

func (s direct) Read(ctx context.Context, name string, after uint64, limit int) ([]store.Record, error) {
	if err := check(ctx, name, 0); err != nil {
		return nil, err
	}
	if limit < 1 {
		limit = 100
	}
	s.d.mu.Lock()
	defer s.d.mu.Unlock()
	var page []store.Record
	for _, r := range s.d.streamLocked(name).records {
		if r.Seq > after && len(page) < limit {
			page = append(page, r)
		}
	}
	return page, nil
}

func (s direct) Ack(ctx context.Context, name string, seqs ...uint64) error {
	if err := check(ctx, name, 0); err != nil {
		return err
	}
	s.d.mu.Lock()
	defer s.d.mu.Unlock()
	st := s.d.streamLocked(name)
	st.records = slices.DeleteFunc(st.records, func(r store.Record) bool {
		isAcked := slices.Contains(seqs, r.Seq)
		if isAcked && r.Expires.IsZero() {
			delete(st.ids, r.ID)
		}
		return isAcked
	})
	return nil
}

func (s direct) Wait(ctx context.Context, name string, after uint64) error {
	for {
		page, err := s.Read(ctx, name, after, 1)
		if err != nil || len(page) > 0 {
			return err
		}
		ch := make(chan struct{})
		s.d.mu.Lock()
		st := s.d.streamLocked(name)
		st.waiting = append(st.waiting, ch)
		s.d.mu.Unlock()
		select {
		case <-ch:
		case <-ctx.Done():
			s.d.mu.Lock()
			st.waiting = slices.DeleteFunc(st.waiting, func(c chan struct{}) bool { return c == ch })
			s.d.mu.Unlock()
			return ctx.Err()
		}
	}
}

func (s direct) Expire(ctx context.Context, name string, ttl time.Duration) error {
	if err := check(ctx, name, ttl); err != nil {
		return err
	}
	s.d.mu.Lock()
	defer s.d.mu.Unlock()
	st := s.d.streamLocked(name)
	if ttl == 0 {
		st.records = nil
		clear(st.ids)
	}
	expires := s.d.expiryLocked(ttl)
	for i := range st.records {
		st.records[i].Expires = expires
	}
	for id, r := range st.ids {
		r.Expires = expires
		st.ids[id] = r
	}
	return nil
}

// Keys returns the present keys with a prefix and a suffix.
func (c Change) Keys(prefix, suffix string) (keys []string) {
	for key := range c.disk.keys {
		if strings.HasPrefix(key, prefix) && strings.HasSuffix(key, suffix) && c.Lookup(key) != nil {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	return keys
}

// Lookup returns the value of a present key, or nil.
func (c Change) Lookup(key string) []byte {
	e, _ := c.disk.getLocked(key)
	return e.Value
}
