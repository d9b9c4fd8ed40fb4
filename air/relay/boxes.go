// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fivewire/fivewire/air"
	"github.com/fivewire/fivewire/internal/budget"
	"github.com/fivewire/fivewire/internal/lazy"
	"github.com/fivewire/fivewire/store"
)

// boxes are the mailboxes of a relay. The mail is in the store; the index here is rebuilt from it.
type boxes struct {
	store store.Store
	ttl   time.Duration

	budget   *budget.Budget
	resource budget.Resource // of the bytes of mail
	max      int64           // envelopes in one mailbox
	maxBytes int64           // of one mailbox
	maxPage  int             // bytes of a page

	// positions has the handed-out positions for the other processes that share the mailboxes. It is
	// nil without such.
	positions store.KV

	maxOpen int          // above it, mailboxes without mail are closed
	swept   atomic.Int64 // time of the last sweep, in Unix nanoseconds

	mu   sync.Mutex
	open map[string]*mailbox // by AIR ID; guarded by mu
}

// init sets up the mailboxes of a relay, except for the budget.
func (b *boxes) init(o *ServerOptions) {
	p, l := &o.Persistence, &o.Limits
	b.store, b.ttl, b.max, b.maxPage = p.Store, p.Retention, l.QueueLimitPerSession, l.MaxOutput
	b.resource, b.maxBytes = budget.Storage, l.MaxStoragePerSession
	switch {
	case p.Store == nil:
		b.store, b.resource, b.maxBytes = newMemory(maxHistory), budget.Memory, l.MaxMemoryPerSession
	case !p.SingleInstance:
		b.positions = p.Store
	}
	b.maxOpen, b.open = maxBoxes, make(map[string]*mailbox)
}

const (
	maxBoxes     = 100_000
	boxMaxAge    = time.Hour   // maximum age of an index, which has entries that others acknowledged
	fullAge      = time.Second // minimum time between two comparisons of a full mailbox, which others may empty
	sweepAge     = time.Second // minimum time between two sweeps
	scanPage     = 500
	therePage    = 64               // smaller, since the values are not needed
	storeTimeout = time.Second      // of the store, while the mailbox is locked
	doubtTime    = 70 * time.Second // within which a change in doubt has taken effect or never will
	thereReads   = 8                // maximum number of reads to count acknowledged envelopes
	maxSameID    = 8                // envelopes with the id of a pushed one that are compared with it

	// The share of an address in a mailbox, however full that is.
	minShare      = 1000
	minShareBytes = 4 << 20
	perMail       = 64 // added to the bytes of an envelope (AIR-D86)
)

func (b *boxes) get(box string) *mailbox {
	b.mu.Lock()
	defer b.mu.Unlock()
	m, ok := b.open[box]
	if !ok {
		b.makeRoomLocked()
		m = &mailbox{name: box, stream: "air/mail/" + box, cursor: "air/cursor/" + box, turn: make(chan struct{}, 1)}
		b.open[box] = m
	}
	return m
}

// makeRoomLocked closes mailboxes without mail if too many are open. b.mu must be held.
func (b *boxes) makeRoomLocked() {
	tries := 0
	for name, m := range b.open {
		if len(b.open) < b.maxOpen || tries == 8 {
			return
		}
		tries++
		if !m.tryLock() {
			continue
		}
		if m.count.Load() == 0 {
			m.closed = true
			delete(b.open, name)
		}
		m.unlock()
	}
}

// fresh returns the open mailboxes, whose expired mail is removed at most once in sweepAge.
func (b *boxes) fresh() []*mailbox {
	b.evict(b.resource, "", 0)
	return b.list()
}

// list returns the open mailboxes.
func (b *boxes) list() []*mailbox {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Collect(maps.Values(b.open))
}

// fullest returns the highest number of bytes and of envelopes in a mailbox.
func (b *boxes) fullest() (size, count int64) {
	for _, mb := range b.fresh() {
		size, count = max(size, mb.used.Load()), max(count, mb.count.Load())
	}
	return size, count
}

// evict removes expired mail from the index, which makes room in the budget, at most once in
// sweepAge. It returns the number of released units.
func (b *boxes) evict(r budget.Resource, _ string, _ int64) (n int64) {
	now, last := time.Now().UnixNano(), b.swept.Load()
	if r != b.resource && r != budget.Items || now-last < int64(sweepAge) || !b.swept.CompareAndSwap(last, now) {
		return 0
	}
	for _, mb := range b.list() {
		if !mb.tryLock() {
			continue
		}
		size, isPlaced := mb.expireLocked(now), mb.place != budget.Hold{}
		mb.unlock()
		switch {
		case r == b.resource:
			n += size
		case isPlaced && mb.count.Load() == 0:
			n++
		}
	}
	return n
}

// lock takes the turn of a mailbox. The caller unlocks it.
func (b *boxes) lock(ctx context.Context, box string) (*mailbox, error) {
	for {
		mb := b.get(box)
		if !mb.tryLock() {
			select {
			case mb.turn <- struct{}{}:
			case <-ctx.Done():
				return nil, because(air.ErrRelay, "", context.Cause(ctx))
			}
		}
		if !mb.closed {
			return mb, nil
		}
		mb.unlock()
	}
}

// push stores an envelope. The same bytes again are stored once (AIR-D61), also by a mailbox that has
// no room for others.
func (b *boxes) push(ctx context.Context, box string, m *mail) (uint64, error) {
	defer m.release() // what the mailbox has not taken
	mb, seq, err := b.admit(ctx, box, m)
	if err != nil || seq != 0 {
		return seq, err
	}
	buf := records.Get().(*[]byte)
	record := m.record(append((*buf)[:0], box...))
	defer func() {
		if cap(record) <= maxRecord {
			*buf = record
			records.Put(buf)
		}
	}()
	hash := sha256.Sum256(record)
	var id [32]byte
	hex.Encode(id[:], hash[:16]) // half of SHA-256 is collision resistant enough
	// Without the turn, so that a durable store can group writes.
	seq, err = b.store.Append(ctx, mb.stream, string(id[:]), record[len(box):], b.ttl)
	switch {
	case errors.Is(err, store.ErrDuplicate):
		return seq, nil
	case errors.Is(err, store.ErrInvalid): // over the limit of the store, which may be below MaxMessage
		return 0, because(air.ErrTooLarge, "the store has no room for an envelope of this size", err)
	case err != nil:
		return 0, because(air.ErrRelay, "", err)
	}
	stored := mb
	if mb, err = b.lock(ctx, box); err != nil {
		stored.isStale.Store(true)
		return seq, nil
	}
	defer mb.unlock()
	if mb.seqs != nil && seq > mb.last { // otherwise a scan adds it
		mb.addLocked(seq, m)
		mb.pushed++
	}
	return seq, nil
}

// admit reserves what a new envelope needs and returns its mailbox. For an envelope that is queued, it
// returns the position of that.
func (b *boxes) admit(ctx context.Context, box string, m *mail) (*mailbox, uint64, error) {
	mb, err := b.lock(ctx, box)
	if err != nil {
		return nil, 0, err
	}
	defer mb.unlock()
	now := time.Now()
	if err := b.buildLocked(ctx, mb, now); err != nil {
		return nil, 0, err
	}
	m.queuedEntry = queuedEntry{size: int64(len(m.data)) + perMail, ends: now.Add(b.ttl).UnixNano()}
	err = b.checkCapacityLocked(ctx, mb, m, now)
	if seq, found := b.findDuplicateLocked(ctx, mb, m); found {
		return mb, seq, nil
	}
	if err != nil {
		return nil, 0, err
	}
	return mb, 0, b.reserve(cmp.Or(m.payer, mb.name), m, mb.count.Load() == 0)
}

// reserve charges an envelope, and its mailbox if that has no other mail, to a principal.
func (b *boxes) reserve(principal string, m *mail, isFirst bool) (err error) {
	scope := b.budget.Scope(principal, "")
	if isFirst {
		if m.place, err = scope.Reserve(budget.Items, 1); err != nil {
			return overBudget(err)
		}
	}
	if m.hold, err = scope.Reserve(b.resource, m.size); err != nil {
		return overBudget(err)
	}
	return nil
}

// findDuplicateLocked searches an envelope among the first positions of its id. The turn of mb must be
// held.
func (b *boxes) findDuplicateLocked(ctx context.Context, mb *mailbox, m *mail) (uint64, bool) {
	id := sumID(m.id)
	first, ok := mb.seqs[id]
	if !ok {
		return 0, false
	}
	others := mb.others[id]
	for _, seq := range append([]uint64{first}, others[:min(len(others), maxSameID-1)]...) {
		recs, err := b.store.Read(ctx, mb.stream, seq-1, 1)
		if err != nil || len(recs) == 0 {
			continue
		}
		if old, err := parseRecord(recs[0]); err == nil && bytes.Equal(old.data, m.data) {
			return old.seq, true
		}
	}
	return 0, false
}

// checkCapacityLocked refuses an envelope for a full mailbox. Concurrent pushes do not count, so the
// limit can be exceeded slightly. The turn of mb must be held.
func (b *boxes) checkCapacityLocked(ctx context.Context, mb *mailbox, m *mail, now time.Time) error {
	if now.Sub(mb.expired) >= sweepAge || !b.hasRoomLocked(mb, m) {
		mb.expireLocked(now.UnixNano())
		mb.expired = now
	}
	if int64(mb.pushed) >= b.max/32 { // other relays push too
		if err := b.scanLocked(ctx, mb, nil); err != nil {
			return err
		}
	}
	if !b.hasRoomLocked(mb, m) && now.Sub(mb.tested) >= fullAge {
		if err := b.reconcileLocked(ctx, mb, now); err != nil {
			return err
		}
	}
	switch {
	case b.hasRoomLocked(mb, m):
		return nil
	case !b.hasRoomLocked(&mailbox{}, m):
		return air.Errorf(air.ErrTooLarge, "no mailbox has room for an envelope of this size")
	}
	return limited("the mailbox is full", fullDelay)
}

// read returns records after a position, and reports whether there are more.
func (b *boxes) read(ctx context.Context, box string, after uint64, limit int) ([]store.Record, bool, error) {
	recs, err := b.store.Read(ctx, b.get(box).stream, after, limit+1)
	if err != nil {
		return nil, false, because(air.ErrRelay, "", err)
	}
	size, n := 0, 0
	for n < min(len(recs), limit) && (n == 0 || size+len(recs[n].Value) <= b.maxPage) {
		size += len(recs[n].Value)
		n++
	}
	more := len(recs) > n
	recs = recs[:n]
	for _, rec := range recs {
		if _, err = parseRecord(rec); err != nil {
			return nil, false, because(air.ErrRelay, "", err)
		}
	}
	return recs, more, nil
}

// hand marks a page as handed out, just before it is sent. A crash in between delays no mail: what is not acknowledged
// comes again, and the mark only permits an acknowledgement and a cursor (AIR-D62).
func (b *boxes) hand(ctx context.Context, box string, recs []store.Record) error {
	if len(recs) == 0 {
		return nil
	}
	mb, err := b.lock(ctx, box)
	if err != nil {
		return err
	}
	defer mb.unlock()
	return b.recordHandedLocked(ctx, mb, recs[len(recs)-1].Seq)
}

// ack removes the handed-out envelopes with these ids, and returns how many of the ids had one.
// Concurrent relays may count the same envelope.
func (b *boxes) ack(ctx context.Context, box string, names []string) (int, error) {
	mb, err := b.lock(ctx, box)
	if err != nil {
		return 0, err
	}
	defer mb.unlock()
	ids := mb.ids[:0]
	for _, name := range names {
		ids = append(ids, sumID(name))
	}
	mb.ids = ids
	if err := b.updateLocked(ctx, mb, ids); err != nil {
		return 0, err
	}
	there, err := b.presentLocked(ctx, mb, ids)
	if err != nil {
		return 0, err
	}
	seqs := mb.found[:0]
	defer func() { mb.found = seqs[:0] }()
	acked := 0
	for _, id := range ids {
		before := len(seqs)
		if seqs = mb.findLocked(seqs, id); len(seqs) == before {
			continue
		}
		for _, seq := range seqs[before:] {
			mb.dropLocked(seq)
		}
		mb.compactLocked(id)
		if slices.ContainsFunc(seqs[before:], func(seq uint64) bool { return contains(there, seq) }) {
			acked++
		}
	}
	if len(seqs) == 0 {
		return 0, nil
	}
	err = b.store.Ack(ctx, mb.stream, seqs...)
	if err != nil {
		err = b.repeatAck(ctx, mb.stream, slices.Clone(seqs))
	}
	if err != nil {
		mb.isStale.Store(true)
		b.rebuildLater(box, mb)
		return 0, because(air.ErrRelay, "", err)
	}
	return acked, nil
}

// rebuildLater rebuilds the index of a mailbox after an acknowledgement in doubt, which may take effect after the next
// use of the mailbox.
func (b *boxes) rebuildLater(box string, mb *mailbox) {
	if mb.isDoubtful.Swap(true) {
		return
	}
	time.AfterFunc(doubtTime, func() {
		mb.isDoubtful.Store(false)
		mb.isStale.Store(true) // if the rest fails, the next call rebuilds it
		ctx, cancel := lazy.WithTimeout(context.Background(), storeTimeout)
		defer cancel()
		mb, err := b.lock(ctx, box)
		if err != nil {
			return
		}
		defer mb.unlock()
		_ = b.buildLocked(ctx, mb, time.Now())
	})
}

// repeatAck repeats an acknowledgement in doubt: one that takes effect later would leave its mail in the
// index.
func (b *boxes) repeatAck(ctx context.Context, stream string, seqs []uint64) error {
	ctx, cancel := lazy.WithTimeout(ctx, storeTimeout)
	defer cancel()
	return store.Persist(ctx, func(ctx context.Context) error { return b.store.Ack(ctx, stream, seqs...) })
}

func (b *boxes) wait(ctx context.Context, box string, after uint64) error {
	return b.store.Wait(ctx, b.get(box).stream, after)
}
