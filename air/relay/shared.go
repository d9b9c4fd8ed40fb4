// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"math"
	"slices"
	"time"

	"github.com/fivewire/fivewire/air"
	"github.com/fivewire/fivewire/internal/budget"
	"github.com/fivewire/fivewire/store"
)

// reconcileLocked drops queued envelopes that other processes have acknowledged. It reads the oldest
// envelope of the store and one page, and the next call the page after it, so that a push to a full
// mailbox does not read all of it. The turn of mb must be held.
func (b *boxes) reconcileLocked(ctx context.Context, mb *mailbox, now time.Time) error {
	mb.tested = now
	if _, err := b.comparePageLocked(ctx, mb, 0, 1); err != nil {
		return err
	}
	next, err := b.comparePageLocked(ctx, mb, mb.check, therePage)
	mb.check = next
	return err
}

// comparePageLocked drops queued envelopes that are missing in a page of the store, and returns the
// position before the next page, 0 after the last one. The turn of mb must be held.
func (b *boxes) comparePageLocked(ctx context.Context, mb *mailbox, after uint64, limit int) (next uint64, err error) {
	recs, err := b.store.Read(ctx, mb.stream, after, limit)
	if err != nil {
		return 0, because(air.ErrRelay, "", err)
	}
	from, to := after+1, uint64(math.MaxUint64)
	if len(recs) == limit {
		next = recs[limit-1].Seq
		to = next
	}
	var missing []uint64
	for seq := range mb.queued {
		if seq < from || seq > to {
			continue
		}
		_, found := slices.BinarySearchFunc(recs, seq, func(r store.Record, seq uint64) int { return cmp.Compare(r.Seq, seq) })
		if !found {
			missing = append(missing, seq)
		}
	}
	for _, seq := range missing {
		mb.dropLocked(seq)
	}
	if len(missing) > 0 {
		mb.compactAllLocked()
	}
	return next, nil
}

// buildLocked builds the index unless it is usable. The turn of mb must be held.
func (b *boxes) buildLocked(ctx context.Context, mb *mailbox, now time.Time) error {
	if mb.seqs != nil && !mb.isStale.Load() && now.Sub(mb.built) <= boxMaxAge {
		return nil
	}
	return b.rebuildLocked(ctx, mb)
}

// rebuildLocked builds a new index from the store, which drops expired entries and those that others
// acknowledged. The turn of mb must be held.
func (b *boxes) rebuildLocked(ctx context.Context, mb *mailbox) error {
	old := mb.queued
	mb.seqs, mb.others, mb.queued = make(map[mailSum]uint64), nil, make(map[uint64]queuedEntry)
	mb.used.Store(0)
	mb.count.Store(0)
	mb.isStale.Store(false)
	mb.last, mb.built, mb.check = 0, time.Now(), 0
	clear(mb.shares)
	err := b.scanLocked(ctx, mb, old)
	for seq, e := range old {
		if err != nil { // still counts
			mb.addLocked(seq, &mail{queuedEntry: e, guest: e.guest()})
			continue
		}
		e.hold.Release()
	}
	if err != nil {
		mb.seqs = nil // rebuilt by the next call
	}
	return err
}

// scanLocked adds the positions after the last scanned one, for example those of other processes.
// Those of old keep their holds; of others, the sender is unknown, and the recipient is charged. The
// turn of mb must be held.
func (b *boxes) scanLocked(ctx context.Context, mb *mailbox, old map[uint64]queuedEntry) error {
	for {
		recs, err := b.store.Read(ctx, mb.stream, mb.last, scanPage)
		if err != nil {
			mb.isStale.Store(true)
			return because(air.ErrRelay, "", err)
		}
		for _, rec := range recs {
			m, err := parseRecord(rec)
			if err != nil {
				mb.isStale.Store(true)
				return because(air.ErrRelay, "", err)
			}
			mb.last = rec.Seq
			if _, ok := mb.queued[rec.Seq]; ok {
				continue
			}
			m.open()
			if e, ok := old[rec.Seq]; ok {
				m.queuedEntry, m.guest = e, e.guest()
			} else {
				m.size = int64(len(m.data)) + perMail
				// The store has the mail, so the index has it even over a bound.
				_ = b.reserve(mb.name, &m, mb.place == budget.Hold{})
			}
			delete(old, rec.Seq)
			if m.ends = math.MaxInt64; !rec.Expires.IsZero() {
				m.ends = rec.Expires.UnixNano()
			}
			mb.addLocked(rec.Seq, &m)
			m.release()
		}
		mb.pushed = 0
		if len(recs) < scanPage {
			return nil
		}
	}
}

// recordHandedLocked records the last handed-out position. Every round begins at the first position and
// continues at a recorded one, so all before it were handed out or acknowledged: positions become
// visible in order. The turn of mb must be held.
func (b *boxes) recordHandedLocked(ctx context.Context, mb *mailbox, last uint64) error {
	if last <= mb.handed {
		return nil
	}
	if b.positions != nil {
		ctx, cancel := context.WithTimeout(ctx, storeTimeout)
		defer cancel()
		_, err := store.Modify(ctx, b.positions, mb.cursor, b.ttl, func(old store.Entry, found bool) ([]byte, error) {
			if found {
				stored, err := parseHanded(old.Value)
				if err != nil {
					return nil, err
				}
				if stored >= last {
					return nil, store.ErrUnchanged
				}
			}
			return binary.AppendUvarint(nil, last), nil
		})
		if err != nil {
			return because(air.ErrRelay, "", err)
		}
	}
	mb.handed = last
	return nil
}

func parseHanded(value []byte) (uint64, error) {
	last, n := binary.Uvarint(value)
	if n <= 0 || n != len(value) {
		return 0, errors.New("air: reading a position: invalid record")
	}
	return last, nil
}

func (b *boxes) loadHandedLocked(ctx context.Context, mb *mailbox, refresh bool) error {
	if b.positions == nil || mb.read && !refresh {
		return nil
	}
	e, err := b.positions.Get(ctx, mb.cursor)
	if errors.Is(err, store.ErrNotFound) {
		mb.read = true
		return nil
	}
	if err == nil {
		e, err = store.Content(e)
	}
	var stored uint64
	if err == nil {
		stored, err = parseHanded(e.Value)
	}
	if err != nil {
		return because(air.ErrRelay, "", err)
	}
	mb.handed, mb.read = max(mb.handed, stored), true
	return nil
}

// issued reports whether a page can have ended at this position.
func (b *boxes) issued(ctx context.Context, box string, seq uint64) (bool, error) {
	mb, err := b.lock(ctx, box)
	if err != nil {
		return false, err
	}
	defer mb.unlock()
	if err := b.loadHandedLocked(ctx, mb, false); err != nil {
		return false, err
	}
	if seq <= mb.handed {
		return true, nil
	}
	err = b.loadHandedLocked(ctx, mb, true)
	return seq <= mb.handed, err
}

// updateLocked updates the index before envelopes are acknowledged. It must run before any removal,
// or a removed position would be added again. The turn of mb must be held.
func (b *boxes) updateLocked(ctx context.Context, mb *mailbox, ids []mailSum) error {
	now := time.Now()
	if err := b.buildLocked(ctx, mb, now); err != nil {
		return err
	}
	mb.expireLocked(now.UnixNano())
	if b.positions == nil && mb.knowsLocked(ids) {
		return nil
	}
	// An envelope may have been pushed or handed out by another process.
	return errors.Join(b.scanLocked(ctx, mb, nil), b.loadHandedLocked(ctx, mb, true))
}

func contains(sorted []uint64, seq uint64) bool {
	_, found := slices.BinarySearch(sorted, seq)
	return found
}

// presentLocked returns the handed-out positions of these ids that are still in the store: neither
// acknowledged by other processes nor expired. Without other processes, or beyond thereReads reads,
// positions of the index count as present. The turn of mb must be held.
func (b *boxes) presentLocked(ctx context.Context, mb *mailbox, ids []mailSum) ([]uint64, error) {
	seqs := mb.there[:0]
	for _, id := range ids {
		seqs = mb.findLocked(seqs, id)
	}
	mb.there = seqs
	slices.Sort(seqs)
	seqs = slices.Compact(seqs)
	present := seqs[:0] // overwrites positions that were read only
	for reads, batch := 0, therePage; len(seqs) > 0; reads++ {
		if reads == thereReads || b.positions == nil {
			return append(present, seqs...), nil
		}
		recs, err := b.store.Read(ctx, mb.stream, seqs[0]-1, min(batch, len(seqs)))
		if err != nil {
			return nil, because(air.ErrRelay, "", err)
		}
		if len(recs) == 0 {
			break
		}
		before := len(present)
		for _, rec := range recs {
			i, found := slices.BinarySearch(seqs, rec.Seq)
			if found {
				present = append(present, rec.Seq)
				i++
			}
			seqs = seqs[i:]
		}
		// Consecutive positions are read in large batches, scattered ones in small batches.
		batch = min(2*(len(present)-before)+1, therePage)
	}
	return present, nil
}
