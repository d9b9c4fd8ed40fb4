// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"math"
	"slices"
	"sync/atomic"
	"time"

	"github.com/fivewire/fivewire/internal/budget"
)

// A mailbox is the index of the envelopes of one recipient. It has every stored envelope, except
// changes by other processes since the last scan. It may have expired envelopes and those that
// other processes acknowledged.
type mailbox struct {
	stream, cursor string // names in the store
	name           string // AIR ID

	used, count atomic.Int64 // bytes and envelopes in queued
	isStale     atomic.Bool  // a stored envelope is missing in the index
	isDoubtful  atomic.Bool  // rebuildLater will rebuild the index

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
