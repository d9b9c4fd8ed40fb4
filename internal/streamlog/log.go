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
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/fivewire/fivewire/internal/guard"
	"github.com/fivewire/fivewire/internal/lease"
	"github.com/fivewire/fivewire/internal/state"
	"github.com/fivewire/fivewire/store"
)

const (
	keep      = 30 * 24 * time.Hour // time to live of the log of an open stream
	outage    = 10 * time.Second    // time of one attempt of a change
	maxFences = 100                 // attempts to append behind another writer
	pageSize  = 4                   // records of one Read
)

// A record is the opening of a stream, a batch of items, a fence, or the end with the last items. Its
// number k is its deduplication id. So an append is a compare-and-set on the end of the log, and a
// writer that finds a record of another writer there is fenced.
type record struct {
	Writer  string      `json:"w"` // random
	Owner   lease.Owner `json:"o"` // of the writer
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

// setEnd makes r the end of the stream.
func (r *record) setEnd(cause error) {
	r.IsEnd = true
	if cause != nil {
		r.Cause = cmp.Or(cause.Error(), "unknown cause")
	}
}

// ending returns the end of a stream whose last record is r.
func (r *record) ending() *ending {
	e := &ending{n: r.last()}
	switch r.Cause {
	case "":
		return e
	case ErrNoReader.Error():
		e.cause = ErrNoReader
	case lease.ErrLost.Error():
		e.cause = lease.ErrLost
	default:
		e.cause = errors.New(r.Cause)
	}
	e.n++
	return e
}

// encode returns the format byte, the JSON of r and its items, each after its length.
func (r *record) encode() ([]byte, error) {
	head, err := json.Marshal(r)
	b := []byte{state.Format}
	for _, part := range slices.Insert(slices.Clone(r.items), 0, head) {
		b = append(binary.AppendUvarint(b, uint64(len(part))), part...)
	}
	return b, err
}

// decode returns a stored record, whose items share the memory of its value.
func decode(stored store.Record) (*record, error) {
	r := &record{pos: stored.Seq}
	data, err := state.Data(stored.Value)
	for err == nil && len(data) > 0 {
		size, n := binary.Uvarint(data)
		if n <= 0 || size > uint64(len(data)-n) {
			err = errors.New("truncated")
			break
		}
		end := n + int(size)
		r.items, data = append(r.items, data[n:end:end]), data[end:]
	}
	if err == nil {
		r.k, err = strconv.ParseUint(stored.ID, 10, 64)
	}
	if err == nil && len(r.items) > 0 {
		err = json.Unmarshal(r.items[0], r)
		r.items = r.items[1:]
	}
	if err == nil && r.First == 0 {
		err = errors.New("no number")
	}
	if err != nil {
		return nil, fmt.Errorf("streamlog: record %q at position %d: %w", stored.ID, stored.Seq, err)
	}
	return r, nil
}

// A storedLog is the log of a stream in the store.
type storedLog struct {
	db      store.Log
	name    string
	writer  string
	owner   lease.Owner
	epoch   context.Context // of owner
	stop    func() bool     // of the end of epoch
	renewal *time.Timer
	k       uint64 // of the last record

	isFlushing bool      // guarded, as all below, by the mutex of the stream
	segments   []segment // the records that are not trimmed, without the opening
	base       uint64    // bytes counted before segments
	total      uint64    // bytes counted through segments
	trimmed    uint64    // the last item before segments
}

// A segment is one record: its position, its last item, and the bytes counted through it.
type segment struct{ pos, last, end uint64 }

// endOf returns the bytes counted through the last record that ends at item n or before.
func (l *storedLog) endOf(n uint64) uint64 {
	i, _ := slices.BinarySearchFunc(l.segments, n+1, func(g segment, n uint64) int { return cmp.Compare(g.last, n) })
	if i == 0 {
		return l.base
	}
	return l.segments[i-1].end
}

// addLocked notes a stored record. The mutex of the stream must be held.
func (l *storedLog) addLocked(r *record) {
	for _, item := range r.items {
		l.total += uint64(len(item) + overhead)
	}
	if l.k = r.k; r.Opening == nil {
		l.segments = append(l.segments, segment{r.pos, r.last(), l.total})
	}
}

// excessLocked returns the positions of records through an item that exceed Retain or RetainItems by
// a sixteenth, but not the last one. The mutex of the stream must be held.
func (l *storedLog) excessLocked(n uint64, o *Options) (positions []uint64) {
	if len(l.segments) == 0 {
		return nil
	}
	last, limit, items := l.segments[len(l.segments)-1].last, o.Retain, uint64(cmp.Or(o.RetainItems, math.MaxInt))
	if int(l.total-l.base)-limit <= limit/16 && last-l.trimmed <= items+items/16 {
		return nil
	}
	start := l.base
	for _, g := range l.segments[:len(l.segments)-1] {
		if g.last > n || int(l.total-start) <= limit && last-g.last < items {
			break
		}
		positions, start, l.trimmed = append(positions, g.pos), g.end, g.last
	}
	return positions
}

func (l *storedLog) expire(ctx context.Context, ttl time.Duration) error {
	return state.Change(ctx, func(ctx context.Context) error { return l.db.Expire(ctx, l.name, ttl) })
}

// append appends r after the last record. store.ErrDuplicate means that another writer has done so.
func (l *storedLog) append(ctx context.Context, r *record) error {
	r.Writer, r.Owner, r.k = l.writer, l.owner, l.k+1
	value, err := r.encode()
	if err != nil {
		return err
	}
	pos, isFirst, err := state.Append(ctx, l.db, l.name, strconv.FormatUint(r.k, 10), value, keep)
	if err == nil && !isFirst {
		err = store.ErrDuplicate
	}
	if err == nil {
		r.pos = pos
	}
	return err
}

// readLog reads the log to its end, where the stream continues, and returns the last record or nil.
// The stream is not shared yet.
func (s *stream) readLog(ctx context.Context) (last *record, err error) {
	l := s.log
	l.segments, l.base, l.total, l.trimmed, s.ring = nil, 0, 0, 0, ring{first: 1}
	for pos := uint64(0); ; pos = last.pos {
		page, err := l.db.Read(ctx, l.name, pos, pageSize)
		if err != nil || len(page) == 0 {
			s.visible, s.floor, s.base = s.last, l.trimmed, l.total
			return last, err
		}
		for _, stored := range page {
			if last, err = decode(stored); err != nil {
				return nil, err
			}
			if last.Opening != nil {
				s.principal, s.o = string(last.Opening.Principal), last.Opening.Options
			} else if last.First > s.last+1 {
				l.trimmed = last.First - 1
			}
			l.addLocked(last)
			s.first, s.last = last.last()+1, last.last()
		}
	}
}

// fence appends r behind the records of other writers. It reports false if the stream has ended.
func (s *stream) fence(ctx context.Context, r *record) (isOpen bool, err error) {
	for range maxFences {
		r.First = s.last + 1
		err := s.log.append(ctx, r)
		if err == nil {
			s.log.addLocked(r)
		}
		if !errors.Is(err, store.ErrDuplicate) {
			return true, err
		}
		last, err := s.readLog(ctx)
		if err != nil || last == nil || last.IsEnd {
			return false, err
		}
	}
	return true, store.ErrConflict
}

// startFlushLocked starts to store the items unless that is running. s.mu must be held.
func (s *stream) startFlushLocked() {
	if s.log.isFlushing {
		return
	}
	s.log.isFlushing = true
	go guard.Run("store", s.flush, func(err error) { // also if the store ends the goroutine
		if err != nil {
			s.lose(err)
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.isEnded || s.isLost {
			s.log.isFlushing = false
			s.space.raise()
		}
	})
}

// flush stores the items and the end. An error means that the stream is lost.
func (s *stream) flush() error {
	l := s.log
	for r := s.nextRecord(); r != nil; r = s.nextRecord() {
		err := l.append(l.epoch, r)
		switch {
		case errors.Is(err, store.ErrInvalid) && len(r.items) > 0:
			s.reject(err)
			continue
		case err != nil:
			return err
		}
		s.trimLog(s.publish(r))
		if !r.IsEnd {
			continue
		}
		err = l.expire(l.epoch, s.o.Retention)
		if err == nil && !s.o.Movable {
			err = s.t.lease.Finish(l.epoch, l.owner, kind, s.key)
		}
		s.t.remove(s)
		return err
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
		r.setEnd(s.end.cause)
	}
	return r
}

// publish makes a stored record visible, and returns the positions of records to trim.
func (s *stream) publish(r *record) []uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.visible = r.last()
	s.log.addLocked(r)
	s.trim(min(s.floor, s.visible), min(ringRetain, s.o.Retain))
	s.trim(s.visible, ringRetain)
	s.items.raise()
	s.space.raise()
	if r.IsEnd {
		s.showEndLocked()
	}
	return s.log.excessLocked(s.floor, &s.o)
}

// trimLog removes the first records. After an error they are removed with later ones.
func (s *stream) trimLog(positions []uint64) {
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

// renew extends the life of the log of a stream that is open for long.
func (s *stream) renew() {
	if s.log.expire(s.log.epoch, keep) == nil {
		s.log.renewal.Reset(keep / 2)
	}
}

// lose ends the writing of the stream here. Its readers follow the store. The cause is nil if another process may write it.
func (s *stream) lose(cause error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.isEnded || s.isLost {
		return
	}
	if s.end == nil {
		close(s.done)
	}
	s.isLost, s.cursors, s.loss = true, nil, lease.ErrLost
	if cause != nil && s.log.epoch.Err() == nil && !errors.Is(cause, store.ErrDuplicate) {
		s.loss = fmt.Errorf("%w: %w", lease.ErrLost, cause)
	}
	s.resetLocked()
	s.items.raise()
	s.space.raise()
	s.t.remove(s)
}
