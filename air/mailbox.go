// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package air

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/fivewire/fivewire/store"
)

// boxes are the mailboxes of a relay. The mail itself is in the store; here is only
// what finds it faster, and everything here can be had from the store again.
type boxes struct {
	store store.Store
	ttl   time.Duration
	max   int

	// private tells that nobody else can see the store and that it ends with this
	// process. What only others would ask for, or a process that comes after this
	// one, need not be in it then.
	private bool

	// alone tells that no other process uses the store at the same time, so that
	// nobody else asks for what was handed out.
	alone bool

	most int // mailboxes that are open; 0 means maxBoxes

	mu   sync.Mutex
	open map[string]*mailbox // by AIR ID; guarded by mu
}

// A mailbox knows where the envelopes of one recipient are. Its index never lacks
// what is in the store, but for what others did since it looked; it may have what
// is not there any more, because it expired or others acknowledged it.
type mailbox struct {
	stream, spans string // names in the store

	mu     sync.Mutex
	closed bool                // no longer in boxes.open; guarded by mu, as all that follows
	seqs   map[string]uint64   // positions by envelope id
	others map[string][]uint64 // further ones of an id that was used again (AIR-D61)
	count  int                 // positions in both
	pushed int                 // how many of them were added since the last scan
	last   uint64              // nothing up to here is missing from seqs
	built  time.Time           // when seqs was begun
	ends   time.Time           // nothing in seqs expires before
	handed spans               // positions that were handed out
	rev    store.Revision      // of handed in the store; 0: not there
	read   bool                // handed was read from the store
	known  known               // only if the store is private; otherwise it knows
	found  []uint64            // for use by ack
}

const (
	maxBoxes  = 100_000
	boxMaxAge = time.Hour   // after which the index forgets what expired in the store
	fullAge   = time.Second // after which one that is full looks what others made room for
	scanPage  = 500
	therePage = 64 // as these are read for their positions only
)

func (b *boxes) get(box string) *mailbox {
	b.mu.Lock()
	defer b.mu.Unlock()
	m, ok := b.open[box]
	if !ok {
		b.makeRoom()
		m = &mailbox{stream: "air/mail/" + box, spans: "air/handed/" + box}
		b.open[box] = m
	}
	return m
}

// makeRoom closes one of a few mailboxes, where there are too many of them. One in a
// private store that remembers something stays: nobody else does, and it takes less
// than its mail.
func (b *boxes) makeRoom() {
	most, looked := b.most, 0
	if most == 0 {
		most = maxBoxes
	}
	for name, m := range b.open {
		if len(b.open) < most || looked == 8 {
			return
		}
		looked++
		if !m.mu.TryLock() {
			continue
		}
		if !b.private || m.known.empty(time.Now()) {
			m.closed = true
			delete(b.open, name)
		}
		m.mu.Unlock()
	}
}

// lock returns a mailbox for the caller to unlock.
func (b *boxes) lock(box string) *mailbox { return b.lockOr(b.get(box), box) }

// lockOr locks a mailbox that get has returned, or what took its place.
func (b *boxes) lockOr(mb *mailbox, box string) *mailbox {
	for {
		mb.mu.Lock()
		if !mb.closed {
			return mb
		}
		mb.mu.Unlock()
		mb = b.get(box)
	}
}

// push stores an envelope. The same bytes again are stored once (AIR-D61).
func (b *boxes) push(ctx context.Context, box string, m *mail) (uint64, error) {
	hash := sha256.Sum256(m.data)
	sum := replayKey(hash[:16]) // half of it is enough: nobody finds other bytes with the same half
	buf := records.Get().(*[]byte)
	record := m.record((*buf)[:0])
	defer func() {
		if cap(record) <= maxRecord {
			*buf = record
			records.Put(buf)
		}
	}()
	if b.private {
		return b.keep(ctx, box, m.id, sum, record)
	}
	stream, seq, err := b.checkRoom(ctx, box, m)
	if err != nil || seq != 0 {
		return seq, err
	}
	ends := time.Now().Add(b.ttl)
	// Not under the lock, so that a durable store can write several at once.
	seq, err = b.store.Append(ctx, stream, hex.EncodeToString(sum[:]), record, b.ttl)
	if errors.Is(err, store.ErrDuplicate) {
		return seq, nil
	}
	if err != nil {
		return 0, ErrRelay.because("", err)
	}
	mb := b.lock(box)
	defer mb.mu.Unlock()
	if mb.seqs != nil && seq > mb.last { // otherwise a scan has seen it, or will
		mb.add(m.id, seq, ends)
		mb.pushed++
	}
	return seq, nil
}

// keep stores an envelope in a private store.
func (b *boxes) keep(ctx context.Context, box, id string, sum replayKey, record []byte) (uint64, error) {
	mb := b.lock(box)
	defer mb.mu.Unlock()
	now := time.Now()
	if seq, ok := mb.known.seq(sum, now); ok {
		return seq, nil
	}
	if err := b.room(ctx, mb, now); err != nil {
		return 0, err
	}
	seq, err := b.store.Append(ctx, mb.stream, "", record, b.ttl)
	if err != nil {
		return 0, ErrRelay.because("", err)
	}
	mb.known.add(sum, seq, now.Add(b.ttl))
	mb.add(id, seq, now.Add(b.ttl))
	return seq, nil
}

// checkRoom returns the stream of a mailbox that has room, or the position of an
// envelope that a full one has already, which need not be stored.
func (b *boxes) checkRoom(ctx context.Context, box string, m *mail) (stream string, seq uint64, err error) {
	mb := b.lock(box)
	defer mb.mu.Unlock()
	err = b.room(ctx, mb, time.Now())
	if isCode(err, ErrRateLimited) {
		if seq, found := b.same(ctx, mb, m); found {
			return mb.stream, seq, nil
		}
	}
	return mb.stream, 0, err
}

// same looks for an envelope among those with its id, but not among so many that
// they must be an attack.
func (b *boxes) same(ctx context.Context, mb *mailbox, m *mail) (uint64, bool) {
	seqs := append([]uint64{mb.seqs[m.id]}, mb.others[m.id]...)
	for _, seq := range seqs[:min(len(seqs), 8)] {
		if seq == 0 {
			continue
		}
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

// room refuses an envelope for a mailbox that is full. What is being pushed at the
// same moment, to a durable store or through other relays, does not count, so there
// can be a few more than the limit.
func (b *boxes) room(ctx context.Context, mb *mailbox, now time.Time) error {
	if mb.seqs == nil || now.Sub(mb.built) > boxMaxAge {
		if err := b.rebuild(ctx, mb); err != nil {
			return err
		}
	}
	if !b.alone && mb.pushed >= b.max/32 { // from time to time, since others push too
		if err := b.scan(ctx, mb); err != nil {
			return err
		}
	}
	if mb.count < b.max {
		return nil
	}
	// Building the index again reads the whole mailbox: not for every envelope that is
	// refused.
	if b.alone && !now.Before(mb.ends) || !b.alone && now.Sub(mb.built) >= fullAge {
		if err := b.rebuild(ctx, mb); err != nil {
			return err
		}
	}
	if mb.count >= b.max {
		return &Error{Code: ErrRateLimited, Message: "the mailbox is full", RetryAfter: time.Minute}
	}
	return nil
}

func (mb *mailbox) add(id string, seq uint64, ends time.Time) {
	if mb.count == 0 || ends.Before(mb.ends) {
		mb.ends = ends
	}
	old, ok := mb.seqs[id]
	if ok && old != seq {
		if mb.others == nil {
			mb.others = make(map[string][]uint64)
		}
		for _, s := range mb.others[id] {
			if s == seq {
				return
			}
		}
		mb.others[id] = append(mb.others[id], seq)
		mb.count++
		return
	}
	if !ok {
		mb.seqs[id] = seq
		mb.count++
	}
}

// rebuild builds the index: the first time, and from time to time, so that it
// forgets what has expired in the store.
func (b *boxes) rebuild(ctx context.Context, mb *mailbox) error {
	mb.seqs, mb.others, mb.count = make(map[string]uint64), nil, 0
	mb.last, mb.built = 0, time.Now()
	return b.scan(ctx, mb)
}

// scan adds what came after the last position that it looked at, by other
// processes for example.
func (b *boxes) scan(ctx context.Context, mb *mailbox) error {
	for {
		recs, err := b.store.Read(ctx, mb.stream, mb.last, scanPage)
		if err != nil {
			mb.seqs = nil
			return ErrRelay.because("", err)
		}
		for _, rec := range recs {
			m, err := parseRecord(rec)
			if err != nil {
				return ErrRelay.because("", err)
			}
			m.open()
			mb.add(m.id, rec.Seq, rec.Expires)
			mb.last = rec.Seq
		}
		mb.pushed = 0
		if len(recs) < scanPage {
			return nil
		}
	}
}

// pull returns envelopes after a position, for parseRecord, and takes note that they
// were handed out, and whether there are more.
func (b *boxes) pull(ctx context.Context, box string, after uint64, limit int) ([]store.Record, bool, error) {
	mb := b.get(box)
	recs, err := b.store.Read(ctx, mb.stream, after, limit+1)
	if err != nil {
		return nil, false, ErrRelay.because("", err)
	}
	more := len(recs) > limit
	if more {
		recs = recs[:limit]
	}
	if len(recs) == 0 {
		return nil, false, nil
	}
	for _, rec := range recs {
		if _, err = parseRecord(rec); err != nil {
			return nil, false, ErrRelay.because("", err)
		}
	}
	mb = b.lockOr(mb, box)
	defer mb.mu.Unlock()
	s := span{after + 1, recs[len(recs)-1].Seq}
	if b.alone {
		mb.handed = mb.handed.grow(s)
		return recs, more, nil
	}
	return recs, more, b.hand(ctx, mb, s)
}

// hand notes in the store that a span of positions was handed out. What is
// missing in it was acknowledged before, since positions become visible in order.
func (b *boxes) hand(ctx context.Context, mb *mailbox, s span) error {
	for {
		if err := b.readHanded(ctx, mb, false); err != nil {
			return err
		}
		if mb.handed.covers(s) {
			return nil
		}
		next := mb.handed.with(s)
		var err error
		var rev store.Revision
		if mb.rev == 0 {
			rev, err = b.store.Create(ctx, mb.spans, next.bytes(), b.ttl)
		} else {
			rev, err = b.store.Update(ctx, mb.spans, next.bytes(), mb.rev, b.ttl)
		}
		switch {
		case err == nil:
			mb.handed, mb.rev = next, rev
			return nil
		case errors.Is(err, store.ErrExists), errors.Is(err, store.ErrConflict), errors.Is(err, store.ErrNotFound):
			mb.read = false // another process was first
		default:
			return ErrRelay.because("", err)
		}
	}
}

func (b *boxes) readHanded(ctx context.Context, mb *mailbox, again bool) error {
	if b.alone || mb.read && !again {
		return nil
	}
	e, err := b.store.Get(ctx, mb.spans)
	switch {
	case errors.Is(err, store.ErrNotFound):
		mb.handed, mb.rev = nil, 0
	case err != nil:
		return ErrRelay.because("", err)
	default:
		if mb.handed, err = parseSpans(e.Value); err != nil {
			return ErrRelay.because("", err)
		}
		mb.rev = e.Revision
	}
	mb.read = true
	return nil
}

// issued reports whether a page can have ended at this position: it was handed
// out, or with before set, something behind it was.
func (b *boxes) issued(ctx context.Context, box string, seq uint64, before bool) (bool, error) {
	mb := b.lock(box)
	defer mb.mu.Unlock()
	known := func() bool {
		return mb.handed.covers(span{seq, seq}) || before && len(mb.handed) > 0 && seq < mb.handed[len(mb.handed)-1].to
	}
	if err := b.readHanded(ctx, mb, false); err != nil {
		return false, err
	}
	if known() {
		return true, nil
	}
	err := b.readHanded(ctx, mb, true)
	return known(), err
}

// ack removes what was handed out with one of these ids, and returns how many of
// the ids led to something. Of several relays that are asked at the same moment,
// more than one may count the same.
func (b *boxes) ack(ctx context.Context, box string, ids []string) (int, error) {
	mb := b.lock(box)
	defer mb.mu.Unlock()
	if err := b.update(ctx, mb, ids); err != nil {
		return 0, err
	}
	var there []uint64
	if !b.alone {
		var err error
		if there, err = b.there(ctx, mb, ids); err != nil {
			return 0, err
		}
	}
	seqs := mb.found[:0]
	defer func() { mb.found = seqs[:0] }()
	acked := 0
	for _, id := range ids {
		before := len(seqs)
		if seqs = mb.find(seqs, id); len(seqs) == before {
			continue
		}
		mb.remove(id)
		if b.alone || slices.ContainsFunc(seqs[before:], func(seq uint64) bool { return contains(there, seq) }) {
			acked++
		}
	}
	if len(seqs) == 0 {
		return 0, nil
	}
	if err := b.store.Ack(ctx, mb.stream, seqs...); err != nil {
		mb.seqs = nil // to be built again
		return 0, ErrRelay.because("", err)
	}
	return acked, nil
}

// update makes sure that the index has what is to be acknowledged. That must be
// before anything is removed from it, or it would be found again.
func (b *boxes) update(ctx context.Context, mb *mailbox, ids []string) error {
	now := time.Now()
	if mb.seqs == nil || b.alone && mb.count > 0 && !now.Before(mb.ends) || !b.alone && now.Sub(mb.built) > boxMaxAge {
		if err := b.rebuild(ctx, mb); err != nil {
			return err
		}
	}
	if b.private || b.alone && mb.knows(ids) {
		return nil
	}
	// One may have been pushed a moment ago, or other processes may have done it.
	return errors.Join(b.scan(ctx, mb), b.readHanded(ctx, mb, true))
}

func contains(sorted []uint64, seq uint64) bool {
	_, found := slices.BinarySearch(sorted, seq)
	return found
}

// there returns where, of what was handed out with one of these ids, there still is
// something: others may have acknowledged it, and its time may be over.
func (b *boxes) there(ctx context.Context, mb *mailbox, ids []string) (there []uint64, err error) {
	var seqs []uint64
	for _, id := range ids {
		seqs = mb.find(seqs, id)
	}
	slices.Sort(seqs)
	seqs = slices.Compact(seqs)
	for most := therePage; len(seqs) > 0; {
		recs, err := b.store.Read(ctx, mb.stream, seqs[0]-1, min(most, len(seqs)))
		if err != nil {
			return nil, ErrRelay.because("", err)
		}
		if len(recs) == 0 {
			break
		}
		before := len(there)
		for _, rec := range recs {
			i, found := slices.BinarySearch(seqs, rec.Seq)
			if found {
				there = append(there, rec.Seq)
				i++
			}
			seqs = seqs[i:]
		}
		// Mostly they stand together, but if not, not everything between them is read.
		most = min(2*(len(there)-before)+1, therePage)
	}
	return there, nil
}

// knows reports whether something was handed out with each of the ids.
func (mb *mailbox) knows(ids []string) bool {
	for _, id := range ids {
		if len(mb.find(mb.found[:0], id)) == 0 {
			return false
		}
	}
	return true
}

// find appends the handed-out positions of an id.
func (mb *mailbox) find(found []uint64, id string) []uint64 {
	if seq, ok := mb.seqs[id]; ok && mb.handed.covers(span{seq, seq}) {
		found = append(found, seq)
	}
	for _, seq := range mb.others[id] {
		if mb.handed.covers(span{seq, seq}) {
			found = append(found, seq)
		}
	}
	return found
}

// remove forgets those.
func (mb *mailbox) remove(id string) {
	if len(mb.others[id]) == 0 {
		delete(mb.seqs, id)
		mb.count--
		return
	}
	var kept []uint64
	for _, seq := range append([]uint64{mb.seqs[id]}, mb.others[id]...) {
		if !mb.handed.covers(span{seq, seq}) {
			kept = append(kept, seq)
		}
	}
	mb.count -= 1 + len(mb.others[id])
	delete(mb.seqs, id)
	delete(mb.others, id)
	for _, seq := range kept {
		mb.add(id, seq, mb.ends)
	}
}

func (b *boxes) wait(ctx context.Context, box string, after uint64) error {
	return b.store.Wait(ctx, b.get(box).stream, after)
}
