// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package streamlog

import (
	"cmp"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/fivewire/fivewire/internal/guard"
	"github.com/fivewire/fivewire/internal/lease"
	"github.com/fivewire/fivewire/internal/statekey"
	"github.com/fivewire/fivewire/store"
)

const (
	keep      = 30 * 24 * time.Hour // time to live of the log of an open stream
	outage    = 10 * time.Second    // time of one attempt of a change
	maxFences = 100                 // attempts to append before a writer that appends too
	pageSize  = 4                   // records of one Read
)

// A record is the opening of a stream, a batch of items, a fence, or the end. It is stored under its
// number k as deduplication id, so an append is a compare-and-set on the end of the log: a writer that
// finds the record of another one is fenced.
type record struct {
	Writer  string      `json:"w"` // random; of its writer
	Owner   lease.Owner `json:"o"` // of its writer
	First   uint64      `json:"n"` // number of the first item, or of the next one
	Opening *opening    `json:"b,omitempty"`
	IsEnd   bool        `json:"e,omitempty"`
	Cause   string      `json:"c,omitempty"` // of a cut
	items   [][]byte
	pos, k  uint64
}

// An opening is the first record, which is never trimmed.
type opening struct {
	Principal []byte
	Options   Options
}

// last returns the number of the last item.
func (r *record) last() uint64 { return r.First + uint64(len(r.items)) - 1 }

// ending returns the end, or nil.
func (r *record) ending() *ending {
	switch {
	case !r.IsEnd:
		return nil
	case r.Cause == "":
		return &ending{n: r.last()}
	}
	for _, cause := range []error{ErrNoReader, lease.ErrLost} {
		if r.Cause == cause.Error() {
			return &ending{r.last() + 1, cause}
		}
	}
	return &ending{r.last() + 1, errors.New(r.Cause)}
}

// end makes r the end of the stream.
func (r *record) end(cause error) {
	r.IsEnd = true
	if cause != nil {
		r.Cause = cmp.Or(cause.Error(), "unknown cause")
	}
}

// encode returns the format byte, the JSON of r and its items, each after its length.
func (r *record) encode() ([]byte, error) {
	head, err := json.Marshal(r)
	b := []byte{statekey.Format}
	for _, part := range slices.Insert(slices.Clone(r.items), 0, head) {
		b = append(binary.AppendUvarint(b, uint64(len(part))), part...)
	}
	return b, err
}

// decode returns a stored record, whose items share the memory of its value.
func decode(stored store.Record) (*record, error) {
	r := &record{pos: stored.Seq}
	data, err := statekey.Data(stored.Value)
	for isHead := true; err == nil && (isHead || len(data) > 0); isHead = false {
		size, n := binary.Uvarint(data)
		if n <= 0 || size > uint64(len(data)-n) {
			err = errors.New("truncated")
			break
		}
		part := data[n : n+int(size) : n+int(size)]
		data = data[n+int(size):]
		if isHead {
			err = json.Unmarshal(part, r)
			continue
		}
		r.items = append(r.items, part)
	}
	if err == nil {
		r.k, err = strconv.ParseUint(stored.ID, 10, 64)
	}
	if err == nil && r.First == 0 {
		err = errors.New("no number")
	}
	if err != nil {
		return nil, fmt.Errorf("streamlog: record %q at position %d: %w", stored.ID, stored.Seq, err)
	}
	return r, nil
}

// A storedLog appends the records of a stream.
type storedLog struct {
	db      store.Log
	name    string
	writer  string
	owner   lease.Owner
	epoch   context.Context // of owner
	renewal *time.Timer
	stop    func() bool // of the end of epoch
	k       uint64      // of the last record

	isFlushing bool      // guarded, as all below, by the mutex of the stream
	segments   []segment // the records in the store
	base       uint64    // bytes counted before segments
	trimmed    uint64    // the last item before segments
}

// A segment is one record: its position, its last item, and the bytes counted through that.
type segment struct{ pos, last, end uint64 }

// endOf returns the bytes counted through the last record that ends at item n or before.
func (l *storedLog) endOf(n uint64) uint64 {
	i, _ := slices.BinarySearchFunc(l.segments, n+1, func(g segment, n uint64) int { return cmp.Compare(g.last, n) })
	if i == 0 {
		return l.base
	}
	return l.segments[i-1].end
}

// append appends the next record. store.ErrDuplicate means that another writer has appended it.
func (l *storedLog) append(ctx context.Context, r *record) error {
	r.Writer, r.Owner, r.k = l.writer, l.owner, l.k+1
	value, err := r.encode()
	if err != nil {
		return err
	}
	id, writer := strconv.FormatUint(r.k, 10), l.writer
	var pos uint64
	err = store.Persist(ctx, func(ctx context.Context) (err error) {
		ctx, cancel := context.WithTimeout(ctx, outage)
		defer cancel()
		pos, err = l.db.Append(ctx, l.name, id, value, keep)
		if !errors.Is(err, store.ErrDuplicate) {
			return err
		}
		found, readErr := l.db.Read(ctx, l.name, pos-1, 1)
		if readErr != nil {
			return readErr
		}
		for _, stored := range found {
			if own, _ := decode(stored); own != nil && own.pos == pos && own.Writer == writer {
				return nil
			}
		}
		return err
	})
	if err == nil {
		r.pos = pos
		l.k++
	}
	return err
}

// readLog reads the log to its end and makes the stream continue there. It returns the owner of the
// last record.
func (s *stream) readLog(ctx context.Context) (owner lease.Owner, err error) {
	l := s.log
	s.ring, l.segments, l.base, l.trimmed = ring{first: 1}, nil, 0, 0
	for pos := uint64(0); ; {
		page, err := l.db.Read(ctx, l.name, pos, pageSize)
		if err != nil || len(page) == 0 {
			s.visible, s.floor = s.last, l.trimmed
			return owner, err
		}
		for _, stored := range page {
			r, err := decode(stored)
			if err != nil {
				return "", err
			}
			if r.Opening != nil {
				s.principal, s.o = string(r.Opening.Principal), r.Opening.Options
			} else if r.First > s.last+1 {
				l.trimmed = r.First - 1
			}
			for _, item := range r.items {
				s.base += uint64(len(item) + overhead)
			}
			pos, l.k, owner, s.end = r.pos, r.k, r.Owner, r.ending()
			s.first, s.last = r.last()+1, r.last()
			s.addSegmentLocked(r)
		}
	}
}

// fence appends a record behind those of other writers, unless the stream has ended.
func (s *stream) fence(ctx context.Context, r *record) error {
	for range maxFences {
		r.First = s.last + 1
		err := s.log.append(ctx, r)
		if err == nil {
			s.addSegmentLocked(r)
		}
		if !errors.Is(err, store.ErrDuplicate) {
			return err
		}
		if _, err = s.readLog(ctx); err != nil || s.end != nil {
			return err
		}
	}
	return store.ErrConflict
}

// addSegmentLocked notes a stored record. s.mu must be held, or s not shared yet.
func (s *stream) addSegmentLocked(r *record) {
	if r.Opening == nil {
		s.log.segments = append(s.log.segments, segment{r.pos, r.last(), s.endOf(r.last())})
	}
}

// startFlushLocked starts to store the items unless that is running. s.mu must be held.
func (s *stream) startFlushLocked() {
	if s.log.isFlushing {
		return
	}
	s.log.isFlushing = true
	go func() {
		if guard.Call("store", s.flush) != nil {
			s.lose()
		}
	}()
}

// flush stores items and the end until none is left. An error means that the stream is lost.
func (s *stream) flush() error {
	for r := s.nextRecord(); r != nil; r = s.nextRecord() {
		err := s.log.append(s.log.epoch, r)
		if errors.Is(err, store.ErrInvalid) && len(r.items) > 0 {
			s.reject(err)
			continue
		}
		if err != nil {
			return err
		}
		s.trimStore(s.publish(r))
		if r.IsEnd {
			return s.conclude(s.log.epoch)
		}
	}
	return nil
}

// nextRecord returns the next record, or nil at the end of the flush.
func (s *stream) nextRecord() *record {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.isLost || s.visible == s.last && s.end == nil {
		s.log.isFlushing = false
		return nil
	}
	r := &record{First: s.visible + 1}
	for _, item := range s.take(make([]Item, 0, s.last-s.visible), s.visible, s.last) {
		r.items = append(r.items, item.Data)
	}
	if s.end != nil && r.last() == s.last {
		r.end(s.end.cause)
	}
	return r
}

// publish makes a stored record visible, and returns the positions of records that readers have
// passed and that exceed Retain by a sixteenth.
func (s *stream) publish(r *record) (old []uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l, retain := s.log, uint64(s.o.Retain)
	s.visible = r.last()
	s.addSegmentLocked(r)
	s.trim(min(s.floor, s.visible), min(ringRetain, s.o.Retain))
	s.trim(s.visible, ringRetain)
	s.items.raise()
	s.space.raise()
	if r.IsEnd {
		s.showEndLocked()
	}
	end, start := s.endOf(s.visible), l.base
	if end-start <= retain+retain/16 {
		return nil
	}
	for _, g := range l.segments[:len(l.segments)-1] {
		if g.last > s.floor || end-start <= retain {
			break
		}
		old, start, l.trimmed = append(old, g.pos), g.end, g.last
	}
	return old
}

// trimStore removes the first records. Records that are not removed now are removed later.
func (s *stream) trimStore(positions []uint64) {
	l, n := s.log, len(positions)
	ctx, cancel := context.WithTimeout(l.epoch, outage)
	defer cancel()
	if n == 0 || l.db.Ack(ctx, l.name, positions...) != nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	l.base, l.segments = l.segments[n-1].end, l.segments[n:]
}

// reject ends the stream instead of storing items that the store refuses.
func (s *stream) reject(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.end == nil {
		close(s.done)
	}
	s.last = s.visible
	s.end = &ending{s.last + 1, err}
	s.space.raise()
}

// conclude does what follows from the end in the log.
func (s *stream) conclude(ctx context.Context) error {
	err := s.expireLog(ctx, s.o.Retention)
	if err == nil && !s.o.Movable {
		err = s.t.lease.Finish(ctx, s.log.owner, kind, s.key)
	}
	s.t.remove(s)
	return err
}

func (s *stream) expireLog(ctx context.Context, ttl time.Duration) error {
	return store.Persist(ctx, func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, outage)
		defer cancel()
		return s.log.db.Expire(ctx, s.log.name, ttl)
	})
}

// renew extends the life of the log of a stream that is open for long.
func (s *stream) renew() {
	err := guard.Call("store", func() error { return s.expireLog(s.log.epoch, keep) })
	if err == nil {
		s.log.renewal.Reset(keep / 2)
	}
}

// lose ends the writing of the stream here.
func (s *stream) lose() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.isEnded || s.isLost {
		return
	}
	if s.end == nil {
		close(s.done)
	}
	s.isLost, s.cursors = true, nil
	s.items.raise()
	s.space.raise()
	s.t.remove(s)
}
