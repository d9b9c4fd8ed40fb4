// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"bytes"
	"context"
	"hash/maphash"
	"math"
	"strings"
	"sync"
	"time"
)

const (
	// defaultRead is the limit that Read takes for one below 1.
	defaultRead = 100

	// slabSize is the number of records allocated at once. One old record keeps
	// the memory of its whole slab, so it is small.
	slabSize = 8

	// freeStreams is the number of empty streams that a shard keeps for reuse: a
	// queue that is read as fast as it is filled empties often.
	freeStreams = 64
)

// A logShard holds the streams of one hash value.
type logShard struct {
	mu       sync.Mutex // guards all below
	streams  table[*stream]
	expiries expiries[*record]
	last     uint64           // highest position of all streams
	waits    map[string]*wait // by stream, which need not exist
	slab     []record         // unused records
	free     []*stream        // empty, for use by another name
}

// A stream exists as long as it has records or known ids.
type stream struct {
	name    string
	records sorted[uint64, *record] // not acknowledged
	ids     table[*record]          // known, acknowledged or not
}

// A record is in its stream's records, or in ids, or in both.
type record struct {
	Record
	stream *stream
}

func (r *record) key() uint64       { return r.Seq }
func (r *record) expiry() time.Time { return r.Expires }

// A wait is shared by all callers that wait for the next Append to one stream.
type wait struct {
	ch chan struct{} // closed by Append
	n  int           // number of waiting callers
}

func (m *Memory) logOf(stream string) *logShard {
	return &m.log[maphash.String(m.seed, stream)%shardCount]
}

func (s *logShard) stream(name string) *stream {
	st, _ := s.streams.get(name)
	return st
}

// open returns the stream of that name and creates it if it is missing.
func (s *logShard) open(name string) *stream {
	if st := s.stream(name); st != nil {
		return st
	}
	var st *stream
	if n := len(s.free); n > 0 {
		st = s.free[n-1]
		s.free = s.free[:n-1]
	} else {
		st = &stream{}
	}
	st.name = strings.Clone(name)
	s.streams.put(st.name, st)
	return st
}

// recycle removes st if it is empty.
func (s *logShard) recycle(st *stream) {
	if !st.records.empty() || len(st.ids.m) > 0 {
		return
	}
	s.streams.remove(st.name)
	if len(s.free) == freeStreams || st.ids.peak > chunkSize || cap(st.records.chunks) > 4 {
		return // a large stream would pin its memory
	}
	st.name = ""
	s.free = append(s.free, st)
}

func (s *logShard) newRecord() *record {
	if len(s.slab) == 0 {
		s.slab = make([]record, slabSize)
	}
	r := &s.slab[0]
	s.slab = s.slab[1:]
	return r
}

// forget removes r and its id. With expired set, its entry in expiries is already
// removed.
func (s *logShard) forget(r *record, expired bool) {
	st := r.stream
	st.records.remove(r.Seq)
	if r.ID != "" {
		st.ids.remove(r.ID)
	}
	mortal := !r.Expires.IsZero()
	*r = record{} // before markStale, which drops entries of cleared records
	if mortal && !expired {
		s.expiries.markStale()
	}
	s.recycle(st)
}

// trim removes up to limit expired records.
func (s *logShard) trim(now time.Time, limit int) {
	for range limit {
		r, ok := s.expiries.pop(now)
		if !ok {
			return
		}
		s.forget(r, true)
	}
}

// Append implements [Log].
func (m *Memory) Append(ctx context.Context, stream, id string, value []byte, ttl time.Duration) (uint64, error) {
	if err := checkWrite(ctx, "stream name", stream, value, ttl); err != nil {
		return 0, err
	}
	if err := ValidateID("id", id); err != nil {
		return 0, err
	}
	value = bytes.Clone(value)
	s := m.logOf(stream)
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	s.trim(now, trimMost)
	if st := s.stream(stream); st != nil && id != "" {
		if r, ok := st.ids.get(id); ok {
			if alive(r, now) {
				return r.Seq, ErrDuplicate
			}
			s.forget(r, false)
		}
	}
	st := s.open(stream)
	s.last++
	r := s.newRecord()
	*r = record{Record{Seq: s.last, ID: strings.Clone(id), Value: value, Time: now, Expires: deadline(now, ttl)}, st}
	st.records.insert(r)
	if id != "" {
		st.ids.put(r.ID, r)
	}
	if ttl != 0 {
		s.expiries.push(r)
	}
	if w := s.waits[stream]; w != nil {
		delete(s.waits, stream)
		close(w.ch)
	}
	return r.Seq, nil
}

// Read implements [Log].
func (m *Memory) Read(ctx context.Context, stream string, after uint64, limit int) ([]Record, error) {
	if err := checkRead(ctx, stream); err != nil {
		return nil, err
	}
	if limit < 1 {
		limit = defaultRead
	}
	s := m.logOf(stream)
	s.mu.Lock()
	defer s.mu.Unlock()
	st := s.stream(stream)
	if st == nil || after == math.MaxUint64 {
		return nil, nil
	}
	n := st.records.atLeast(after+1, limit)
	if n == 0 {
		return nil, nil
	}
	records := make([]Record, 0, n)
	s.each(st, after, func(r *record) bool {
		records = append(records, r.Record)
		return len(records) < limit
	})
	return records, nil
}

// each calls yield for the unexpired records of st after that position until it
// returns false.
func (s *logShard) each(st *stream, after uint64, yield func(*record) bool) {
	now := time.Now()
	passed := 0
	st.records.ascend(after+1, func(r *record) bool {
		if alive(r, now) {
			return yield(r)
		}
		passed++
		return true
	})
	// A reader removes as many expired records as it skipped, so none is skipped often.
	s.trim(now, passed)
}

// Ack implements [Log].
func (m *Memory) Ack(ctx context.Context, stream string, seqs ...uint64) error {
	if err := checkRead(ctx, stream); err != nil {
		return err
	}
	s := m.logOf(stream)
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	for _, seq := range seqs {
		st := s.stream(stream)
		if st == nil {
			break // the previous Ack emptied it
		}
		r, ok := st.records.get(seq)
		if !ok {
			continue
		}
		if r.ID == "" || r.Expires.IsZero() {
			s.forget(r, false)
			continue
		}
		st.records.remove(seq)
		r.Value = nil // only the id is needed
	}
	s.trim(now, trimMost)
	return nil
}

// Wait implements [Log].
func (m *Memory) Wait(ctx context.Context, stream string, after uint64) error {
	if err := checkRead(ctx, stream); err != nil {
		return err
	}
	s := m.logOf(stream)
	for {
		w := s.waitFor(stream, after)
		if w == nil {
			return nil
		}
		select {
		case <-w.ch:
		case <-ctx.Done():
			if s.stopWaiting(stream, w) {
				return ctx.Err()
			}
			// An Append came first, but select chose the context: check again.
		}
	}
}

// waitFor returns nil if the stream has a record after that position, else the
// wait that the next Append ends.
func (s *logShard) waitFor(stream string, after uint64) *wait {
	s.mu.Lock()
	defer s.mu.Unlock()
	found := false
	if st := s.stream(stream); st != nil && after != math.MaxUint64 {
		s.each(st, after, func(*record) bool {
			found = true
			return false
		})
	}
	if found {
		return nil
	}
	w := s.waits[stream]
	if w == nil {
		w = &wait{ch: make(chan struct{})}
		if s.waits == nil {
			s.waits = map[string]*wait{}
		}
		s.waits[stream] = w
	}
	w.n++
	return w
}

// leave gives up waiting for w, and reports false if that is over already.
func (s *logShard) stopWaiting(stream string, w *wait) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.waits[stream] != w {
		return false
	}
	if w.n--; w.n == 0 {
		delete(s.waits, stream)
	}
	return true
}

// Expire implements [Log].
func (m *Memory) Expire(ctx context.Context, stream string, ttl time.Duration) error {
	if err := checkRead(ctx, stream); err != nil {
		return err
	}
	if err := ValidateTTL(ttl); err != nil {
		return err
	}
	s := m.logOf(stream)
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	s.trim(now, trimMost)
	st := s.stream(stream)
	if st == nil {
		return nil
	}
	var all []*record
	st.records.ascend(0, func(r *record) bool {
		all = append(all, r)
		return true
	})
	for _, r := range st.ids.m { // those again that are not acknowledged
		all = append(all, r)
	}
	for _, r := range all {
		switch {
		case r.stream == nil: // forgotten a moment ago
		case ttl == 0 || !alive(r, now):
			s.forget(r, false)
		default:
			s.reset(r, now.Add(ttl))
		}
	}
	return nil
}

// reset gives r another time of expiry.
func (s *logShard) reset(r *record, expires time.Time) {
	old := r.Expires
	if expires.Equal(old) {
		return
	}
	r.Expires = expires
	s.expiries.push(r)
	if !old.IsZero() {
		s.expiries.markStale()
	}
}

func checkRead(ctx context.Context, stream string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return ValidateName("stream name", stream)
}
