// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package core

import (
	"cmp"
	"crypto/sha256"
	"hash/maphash"
	"math"
	"slices"
	"time"
	"unique"
)

// A Record is what is known of an ended call (ALT-D22).
type Record struct {
	Scope   *RecordScope
	Print   ShortPrint
	Run     unique.Handle[Run]
	Payload any    // opaque; nil once it was dropped
	Kept    string // in place of Payload; see [Messages]
	EndedAt int64  // Unix nanoseconds

	hash     uint64 // of the id
	cost     uint32
	isStream bool  // Kept is one
	isShort  bool  // only the use of the id is known
	debt     *debt // of a Runtime, or nil

	rank, share link[Record] // in the chains of the Records and of the principal
}

// A Run says for the audit what ran. Many records share one.
type Run struct{ Contract, RuntimeID string }

// A debt is the final message that a Runtime owes for an ended call.
type debt struct {
	record *Record
	rt     *Runtime
	link   link[debt] // in the chain of rt
}

func rankOf(r *Record) *link[Record] { return &r.rank }

func shareOf(r *Record) *link[Record] { return &r.share }

func debtLinkOf(d *debt) *link[debt] { return &d.link }

// A Fingerprint identifies the tool and the parameters of a call.
type Fingerprint [sha256.Size]byte

// A ShortPrint is the first half of a [Fingerprint].
type ShortPrint [sha256.Size / 2]byte

// Short returns the first half of a fingerprint.
func (f *Fingerprint) Short() ShortPrint { return ShortPrint(f[:]) }

// A RecordScope is a session with its records.
type RecordScope struct {
	Principal Principal

	byID map[uint64]*Record // by hash of the id
}

// An idEpoch has the ids of ended calls of a session that are all that is left of their records (ALT-D22). They are
// forgotten together.
type idEpoch struct {
	scope       *RecordScope
	first, last int64               // ends of calls; Unix nanoseconds
	used        map[uint64]struct{} // hashes of ids
}

const (
	costWhole = 128 // of a record besides its payload, also if it is short
	costShort = 16  // of an id in an epoch
)

const (
	epochSpan  = 10 * time.Second // of the ends of the calls of an epoch
	epochShare = 80               // parts of the limit, of which an epoch has at most one; its map is then nearly full

	searchInterval = time.Second // the shortest time between two searches for epochs that have expired
)

// Records are the records of all principals. Beyond the limit the principal that holds most loses its
// oldest payloads, then its oldest fingerprints, then its oldest ids.
type Records struct {
	limit  int64
	total  int64
	n      int
	list   chain[Record] // in order of end
	shares map[Principal]*recordShare
	seq    uint64
	open   map[uint64]*Record // whose Runtimes owe a final message; by hash of the id

	seed     maphash.Seed
	used     int // ids without a record
	epochs   map[*RecordScope][]*idEpoch
	oldest   time.Time // not after the end of the calls of these
	searched time.Time // the last search for expired ones
}

// A recordShare is the part of a principal.
type recordShare struct {
	seq   uint64
	total int64
	list  chain[Record] // in order of end
	bulky *Record       // the first that may have a payload
	whole *Record       // the first that may have a fingerprint
	used  []*idEpoch    // in order of their begin
}

// NewRecords returns Records with a limit in bytes.
func NewRecords(limit int64) *Records {
	return &Records{limit: limit, shares: make(map[Principal]*recordShare), open: make(map[uint64]*Record),
		seed: maphash.MakeSeed(), epochs: make(map[*RecordScope][]*idEpoch)}
}

// Find returns the record that a repeat with an id gets, or nil.
func (l *Records) Find(sc *RecordScope, id string) *Record {
	hash := l.hash(id)
	if r := sc.byID[hash]; r != nil {
		return r
	}
	for _, e := range l.epochs[sc] {
		if _, ok := e.used[hash]; ok {
			return &Record{isShort: true}
		}
	}
	return nil
}

// hash stands for an id. The seed is random, so that two ids have one hash with a probability of 2^-64.
func (l *Records) hash(id string) uint64 { return maphash.String(l.seed, id) }

// Len returns the number of records.
func (l *Records) Len() int { return l.n }

// Bytes returns the counted bytes of the records.
func (l *Records) Bytes() int64 { return l.total }

// Open returns the record of a call whose Runtime owes a final message, or nil.
func (l *Records) Open(id string) *Record { return l.open[l.hash(id)] }

// Add adds the record of a call that has ended, with its id and the bytes of its payload. One that is not for repeats
// is kept only as long as its Runtime rt owes a final message, because the id must not be used before that. Without rt
// none is owed.
func (l *Records) Add(id string, r *Record, size int, isForRepeats bool, rt *Runtime) {
	r.hash = l.hash(id)
	switch {
	case isForRepeats:
		r.cost = uint32(min(costWhole+int64(size), math.MaxUint32))
		if r.Scope.byID == nil {
			r.Scope.byID = make(map[uint64]*Record)
		}
		r.Scope.byID[r.hash] = r
	case rt != nil:
		r.cost = costWhole
		r.shorten()
	default:
		return
	}
	if rt != nil {
		r.debt = &debt{record: r, rt: rt}
		l.open[r.hash] = r
		rt.unanswered.push(r.debt, debtLinkOf)
	}
	l.push(r)
	l.bound()
}

func (l *Records) push(r *Record) {
	sh := l.shares[r.Scope.Principal]
	if sh == nil {
		l.seq++
		sh = &recordShare{seq: l.seq}
		l.shares[r.Scope.Principal] = sh
	}
	l.list.push(r, rankOf)
	sh.list.push(r, shareOf)
	sh.bulky, sh.whole = cmp.Or(sh.bulky, r), cmp.Or(sh.whole, r)
	l.n++
	l.total += int64(r.cost)
	sh.total += int64(r.cost)
}

// resize changes what a record counts.
func (l *Records) resize(r *Record, cost uint32) {
	more := int64(cost) - int64(r.cost)
	l.total += more
	l.shares[r.Scope.Principal].total += more
	r.cost = cost
}

func (l *Records) remove(r *Record) {
	sh := l.shares[r.Scope.Principal]
	if sh.bulky == r {
		sh.bulky = r.share.next
	}
	if sh.whole == r {
		sh.whole = r.share.next
	}
	l.resize(r, 0)
	l.list.remove(r, rankOf)
	sh.list.remove(r, shareOf)
	l.n--
	l.drop(sh, r.Scope)
}

// drop removes a share without records.
func (l *Records) drop(sh *recordShare, sc *RecordScope) {
	if sh.list.first == nil && len(sh.used) == 0 {
		delete(l.shares, sc.Principal)
	}
}

// use replaces a record by the use of its id.
func (l *Records) use(sh *recordShare, r *Record) {
	var e *idEpoch
	if list := l.epochs[r.Scope]; len(list) > 0 {
		e = list[len(list)-1]
	}
	if e == nil || int64(len(e.used)+1)*costShort > l.limit/epochShare || r.EndedAt-e.first >= int64(epochSpan) {
		e = &idEpoch{scope: r.Scope, first: r.EndedAt, used: make(map[uint64]struct{})}
		sh.used = append(sh.used, e)
		l.epochs[r.Scope] = append(l.epochs[r.Scope], e)
	}
	before := len(e.used)
	e.last, e.used[r.hash] = r.EndedAt, struct{}{}
	if at := time.Unix(0, r.EndedAt); l.used == 0 || at.Before(l.oldest) {
		l.oldest = at
	}
	l.countUsed(sh, len(e.used)-before)
	delete(r.Scope.byID, r.hash)
	l.remove(r)
}

// countUsed counts n more used ids.
func (l *Records) countUsed(sh *recordShare, n int) {
	l.used += n
	l.n += n
	l.total += int64(n * costShort)
	sh.total += int64(n * costShort)
}

// forgetEpoch removes the oldest epoch of a share, if there is one.
func (l *Records) forgetEpoch(sh *recordShare) bool {
	if len(sh.used) == 0 {
		return false
	}
	e := sh.used[0]
	sh.used = slices.Delete(sh.used, 0, 1)
	if list := slices.Delete(l.epochs[e.scope], 0, 1); len(list) > 0 {
		l.epochs[e.scope] = list
	} else {
		delete(l.epochs, e.scope)
	}
	l.countUsed(sh, -len(e.used))
	l.drop(sh, e.scope)
	return true
}

// expireEpochs removes the epochs whose last call ended a lifetime before now.
func (l *Records) expireEpochs(now time.Time, ttl time.Duration) {
	if now.Before(l.searchAt(ttl)) {
		return
	}
	l.searched, l.oldest = now, now
	for _, sh := range l.shares {
		for len(sh.used) > 0 && !now.Before(time.Unix(0, sh.used[0].last).Add(ttl)) {
			l.forgetEpoch(sh)
		}
		if len(sh.used) > 0 {
			l.oldest = earlier(l.oldest, time.Unix(0, sh.used[0].last))
		}
	}
}

// searchAt returns when an epoch may have expired.
func (l *Records) searchAt(ttl time.Duration) time.Time {
	at := l.oldest.Add(ttl)
	if next := l.searched.Add(searchInterval); next.After(at) {
		return next
	}
	return at
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// bound enforces the limit.
func (l *Records) bound() {
	target := l.limit
	for l.total > target {
		for sh := l.largest(); ; {
			if !l.shrink(sh) && !l.forgetEpoch(sh) {
				l.forget(sh.list.first)
			}
			if len(l.shares) > 64 { // the search for the largest one takes time
				target = l.limit - l.limit/64
			}
			if len(l.shares) <= 64 || l.total <= target || sh.list.first == nil && len(sh.used) == 0 {
				break
			}
		}
	}
}

// largest returns the share of the principal that holds most, of several the oldest.
func (l *Records) largest() (largest *recordShare) {
	for _, sh := range l.shares {
		if largest == nil || sh.total > largest.total || sh.total == largest.total && sh.seq < largest.seq {
			largest = sh
		}
	}
	return largest
}

// shrink frees memory of the oldest record of a share that has any, and reports false if only ids
// are left.
func (l *Records) shrink(sh *recordShare) bool {
	for r := sh.bulky; r != nil; r = sh.bulky {
		if sh.bulky = r.share.next; r.cost > costWhole {
			r.Payload, r.Kept = nil, ""
			l.resize(r, costWhole)
			return true
		}
	}
	for r := sh.whole; r != nil; r = sh.whole {
		sh.whole = r.share.next
		switch {
		case r.isShort:
		case r.debt == nil:
			l.use(sh, r)
			return true
		default: // its memory is still needed
			r.shorten()
		}
	}
	return false
}

// shorten drops all of a record but its id and its Runtime.
func (r *Record) shorten() {
	r.Print, r.Run, r.Payload, r.Kept, r.isShort = ShortPrint{}, unique.Handle[Run]{}, nil, "", true
}

// forget removes a record.
func (l *Records) forget(r *Record) {
	if r.Scope.byID[r.hash] == r {
		delete(r.Scope.byID, r.hash)
	}
	l.close(r)
	l.remove(r)
}

// close ends the wait for the final message of a Runtime.
func (l *Records) close(r *Record) {
	if r.debt == nil {
		return
	}
	delete(l.open, r.hash)
	r.debt.rt.unanswered.remove(r.debt, debtLinkOf)
	r.debt = nil
}

// Answered notes the final message of a Runtime for an ended call.
func (l *Records) Answered(r *Record) {
	l.close(r)
	if r.Scope.byID[r.hash] != r {
		l.remove(r)
	}
}

// Owing returns the Runtime that owes the final message of the call, or nil.
func (r *Record) Owing() *Runtime {
	if r.debt == nil {
		return nil
	}
	return r.debt.rt
}

// Disconnected notes that a Runtime sends no more messages.
func (l *Records) Disconnected(rt *Runtime) {
	for d := rt.unanswered.first; d != nil; d = rt.unanswered.first {
		l.Answered(d.record)
	}
}

// EndScope drops the records of a session that has ended, but not ids that a Runtime may still
// answer.
func (l *Records) EndScope(sc *RecordScope) {
	all := sc.byID
	sc.byID = nil
	if list := l.epochs[sc]; list != nil {
		delete(l.epochs, sc)
		sh := l.shares[sc.Principal]
		for _, e := range list {
			l.countUsed(sh, -len(e.used))
		}
		sh.used = slices.DeleteFunc(sh.used, func(e *idEpoch) bool { return e.scope == sc })
		l.drop(sh, sc)
	}
	for _, r := range all {
		if r.debt == nil {
			l.remove(r)
			continue
		}
		l.resize(r, costWhole)
		r.shorten()
	}
}

// Expire drops the records of calls that ended a lifetime ago. It returns when the next one expires.
func (l *Records) Expire(now time.Time, ttl time.Duration) (next time.Time, isAny bool) {
	l.expireEpochs(now, ttl)
	for r := l.list.first; r != nil; r = l.list.first {
		if next = time.Unix(0, r.EndedAt).Add(ttl); now.Before(next) {
			break
		}
		l.forget(r)
	}
	switch {
	case l.used > 0 && l.list.first == nil:
		next = l.searchAt(ttl)
	case l.used > 0:
		next = earlier(next, l.searchAt(ttl))
	}
	return next, l.n > 0
}
