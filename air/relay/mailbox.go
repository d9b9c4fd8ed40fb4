// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"maps"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fivewire/fivewire/air"
	"github.com/fivewire/fivewire/internal/budget"
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

// A mailbox is the index of the envelopes of one recipient. It has every stored envelope, except
// changes by other processes since the last scan. It may have expired envelopes and those that
// other processes acknowledged.
type mailbox struct {
	stream, cursor string // names in the store
	name           string // AIR ID

	used, count atomic.Int64 // bytes and envelopes in queued
	isStale     atomic.Bool  // a stored envelope is missing in the index

	// turn is full while a caller uses the fields below. Callers wait within their contexts, since
	// its holder may use the store.
	turn    chan struct{}
	closed  bool                   // removed from boxes.open
	seqs    map[mailSum]uint64     // positions by the hash of the envelope id; nil before the first scan
	others  map[mailSum][]uint64   // further positions of a repeated id (AIR-D61)
	queued  map[uint64]queuedEntry // all positions in both
	place   budget.Hold            // of a mailbox with mail
	pushed  int                    // positions added since the last scan
	last    uint64                 // all positions up to this one are in seqs
	built   time.Time              // time of the last rebuild
	ends    int64                  // earliest expiry in queued, in Unix nanoseconds
	expired time.Time              // when expired mail was dropped for a push
	handed  uint64                 // all positions up to this one were handed out
	read    bool                   // handed was read from the store
	shares  map[string]*share      // of the senders of queued mail without a secret
	check   uint64                 // position up to which reconcileLocked has compared
	tested  time.Time              // time of its last call
	ids     []mailSum              // scratch space of ack
	found   []uint64               // scratch space of ack
	there   []uint64               // scratch space of presentLocked
}

// A queuedEntry is an envelope in the index.
type queuedEntry struct {
	size  int64
	ends  int64 // time of expiry in Unix nanoseconds
	hold  budget.Hold
	share *share // of its sender; nil for one with a secret or of another process
}

// guest returns the address of a sender without a secret, "" for others.
func (e *queuedEntry) guest() string {
	if e.share == nil {
		return ""
	}
	return e.share.addr
}

// A share is what an address without a secret has in a mailbox.
type share struct {
	addr        string
	size, count int64
}

const (
	maxBoxes     = 100_000
	boxMaxAge    = time.Hour   // maximum age of an index, which has entries that others acknowledged
	fullAge      = time.Second // minimum time between two comparisons of a full mailbox, which others may empty
	sweepAge     = time.Second // minimum time between two sweeps
	scanPage     = 500
	therePage    = 64          // smaller, since the values are not needed
	storeTimeout = time.Second // of the store, while the mailbox is locked
	thereReads   = 8           // maximum number of reads to count acknowledged envelopes
	maxSameID    = 8           // envelopes with the id of a pushed one that are compared with it

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

// list returns the open mailboxes.
func (b *boxes) list() []*mailbox {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Collect(maps.Values(b.open))
}

// fullest returns the highest number of bytes and of envelopes in a mailbox.
func (b *boxes) fullest() (size, count int64) {
	for _, mb := range b.list() {
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
		select {
		case mb.turn <- struct{}{}:
		case <-ctx.Done():
			return nil, because(air.ErrRelay, "", context.Cause(ctx))
		}
		if !mb.closed {
			return mb, nil
		}
		mb.unlock()
	}
}

func (mb *mailbox) tryLock() bool {
	select {
	case mb.turn <- struct{}{}:
		return true
	default:
		return false
	}
}

func (mb *mailbox) unlock() {
	if len(mb.queued) == 0 {
		clear(mb.shares)
		mb.place.Release()
		mb.place = budget.Hold{}
	}
	<-mb.turn
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
	if errors.Is(err, store.ErrDuplicate) {
		return seq, nil
	}
	if err != nil {
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
	if !b.hasRoomLocked(mb, m) {
		return limited("the mailbox is full", fullDelay)
	}
	return nil
}

// hasRoomLocked reports whether a mailbox has room for an envelope. An address without a secret may have
// at most as much of it as stays free for others, so that one address leaves half of a mailbox and the
// next half of the rest (AIR-D71). The turn of mb must be held.
func (b *boxes) hasRoomLocked(mb *mailbox, m *mail) bool {
	count, used := mb.count.Load()+1, mb.used.Load()+m.size
	if count > b.max || used > b.maxBytes {
		return false
	}
	var own share
	if s := mb.shares[m.guest]; s != nil {
		own = *s
	}
	return m.guest == "" || own.count < max(minShare, b.max-count) && own.size+m.size <= max(minShareBytes, b.maxBytes-used)
}

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

// addLocked adds an envelope and takes its holds. The turn of mb must be held.
func (mb *mailbox) addLocked(seq uint64, m *mail) {
	if _, ok := mb.queued[seq]; ok {
		return
	}
	if len(mb.queued) == 0 || m.ends < mb.ends {
		mb.ends = m.ends
	}
	if m.guest != "" {
		m.share = mb.shareLocked(m.guest)
	}
	if s := m.share; s != nil {
		s.size, s.count = s.size+m.size, s.count+1
	}
	mb.queued[seq] = m.queuedEntry
	mb.used.Add(m.size)
	mb.count.Add(1)
	m.hold = budget.Hold{}
	if mb.place == (budget.Hold{}) {
		mb.place, m.place = m.place, budget.Hold{}
	}
	id := sumID(m.id)
	if _, ok := mb.seqs[id]; !ok {
		mb.seqs[id] = seq
		return
	}
	if mb.others == nil {
		mb.others = make(map[mailSum][]uint64)
	}
	mb.others[id] = append(mb.others[id], seq)
}

// shareLocked returns the share of an address. The turn of mb must be held.
func (mb *mailbox) shareLocked(addr string) *share {
	s := mb.shares[addr]
	if s == nil {
		if mb.shares == nil {
			mb.shares = make(map[string]*share)
		}
		s = &share{addr: addr}
		mb.shares[addr] = s
	}
	return s
}

// dropLocked removes an envelope from queued. The turn of mb must be held.
func (mb *mailbox) dropLocked(seq uint64) (size int64) {
	e, ok := mb.queued[seq]
	if !ok {
		return 0
	}
	delete(mb.queued, seq)
	mb.used.Add(-e.size)
	mb.count.Add(-1)
	e.hold.Release()
	if s := e.share; s != nil {
		s.size, s.count = s.size-e.size, s.count-1
		if s.count == 0 && mb.shares[s.addr] == s {
			delete(mb.shares, s.addr)
		}
	}
	return e.size
}

// expireLocked removes expired envelopes and returns their bytes. The turn of mb must be held.
func (mb *mailbox) expireLocked(now int64) (size int64) {
	if len(mb.queued) == 0 || now < mb.ends {
		return 0
	}
	mb.ends = math.MaxInt64
	for seq, e := range mb.queued {
		if e.ends <= now {
			size += mb.dropLocked(seq)
		} else {
			mb.ends = min(mb.ends, e.ends)
		}
	}
	mb.compactAllLocked()
	return size
}

// compactAllLocked removes the positions that are not queued. The turn of mb must be held.
func (mb *mailbox) compactAllLocked() {
	for id := range mb.seqs {
		mb.compactLocked(id)
	}
}

// compactLocked removes the positions of an id that are not queued. The turn of mb must be held.
func (mb *mailbox) compactLocked(id mailSum) {
	if len(mb.others[id]) == 0 {
		if _, ok := mb.queued[mb.seqs[id]]; !ok {
			delete(mb.seqs, id)
		}
		return
	}
	kept := slices.DeleteFunc(append([]uint64{mb.seqs[id]}, mb.others[id]...), func(seq uint64) bool {
		_, ok := mb.queued[seq]
		return !ok
	})
	delete(mb.seqs, id)
	delete(mb.others, id)
	if len(kept) > 0 {
		mb.seqs[id] = kept[0]
	}
	if len(kept) > 1 {
		mb.others[id] = kept[1:]
	}
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

// pull returns records after a position, marks them as handed out, and reports whether there are
// more.
func (b *boxes) pull(ctx context.Context, box string, after uint64, limit int) ([]store.Record, bool, error) {
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
	if len(recs) == 0 {
		return nil, false, nil
	}
	for _, rec := range recs {
		if _, err = parseRecord(rec); err != nil {
			return nil, false, because(air.ErrRelay, "", err)
		}
	}
	mb, err := b.lock(ctx, box)
	if err != nil {
		return nil, false, err
	}
	defer mb.unlock()
	return recs, more, b.recordHandedLocked(ctx, mb, recs[len(recs)-1].Seq)
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
		return 0, because(air.ErrRelay, "", err)
	}
	return acked, nil
}

// repeatAck repeats an acknowledgement in doubt: one that takes effect later would leave its mail in the
// index.
func (b *boxes) repeatAck(ctx context.Context, stream string, seqs []uint64) error {
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	return store.Persist(ctx, func(ctx context.Context) error { return b.store.Ack(ctx, stream, seqs...) })
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

// knowsLocked reports whether each id has a handed-out position. The turn of mb must be held.
func (mb *mailbox) knowsLocked(ids []mailSum) bool {
	for _, id := range ids {
		if len(mb.findLocked(mb.found[:0], id)) == 0 {
			return false
		}
	}
	return true
}

// findLocked appends the handed-out positions of an id. The turn of mb must be held.
func (mb *mailbox) findLocked(found []uint64, id mailSum) []uint64 {
	if seq, ok := mb.seqs[id]; ok && seq <= mb.handed {
		found = append(found, seq)
	}
	for _, seq := range mb.others[id] {
		if seq <= mb.handed {
			found = append(found, seq)
		}
	}
	return found
}

func (b *boxes) wait(ctx context.Context, box string, after uint64) error {
	return b.store.Wait(ctx, b.get(box).stream, after)
}
