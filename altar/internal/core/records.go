// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package core

import (
	"cmp"
	"crypto/sha256"
	"time"
)

// A Record is what is known of an ended call (ALT-D22).
type Record struct {
	Scope     *RecordScope
	ID        string
	Print     Fingerprint
	Contract  string // for the audit, as RuntimeID
	RuntimeID string
	Payload   any // opaque; nil once it was dropped
	Size      int // bytes of the payload
	EndedAt   time.Time

	cost    int
	isShort bool     // only the use of the id is known
	rt      *Runtime // that owes a final message, or nil

	rank, share link[Record] // in the chains of the Records and of the principal
}

func rankOf(r *Record) *link[Record] { return &r.rank }

func shareOf(r *Record) *link[Record] { return &r.share }

// A Fingerprint identifies the tool and the parameters of a call.
type Fingerprint struct {
	Tool string
	Sum  [sha256.Size]byte
}

// A RecordScope is a session with its records.
type RecordScope struct {
	Principal any // comparable

	byID map[string]*Record
}

// Find returns the record that a repeat with an id gets, or nil.
func (sc *RecordScope) Find(id string) *Record { return sc.byID[id] }

const (
	costWhole = 128 // of a record besides its payload
	costShort = 16  // without a payload and a fingerprint
)

// Records are the records of all principals. Beyond the limit the principal that holds most loses its
// oldest payloads, then its oldest fingerprints, then its oldest ids.
type Records struct {
	limit  int64
	total  int64
	n      int
	list   chain[Record] // in order of end
	shares map[any]*recordShare
	seq    uint64
	open   map[string]*Record // whose Runtimes owe a final message; by id
}

// A recordShare is the part of a principal.
type recordShare struct {
	seq   uint64
	total int64
	list  chain[Record] // in order of end
	bulky *Record       // the first that may have a payload
	whole *Record       // the first that may have a fingerprint
}

// NewRecords returns Records with a limit in bytes.
func NewRecords(limit int64) *Records {
	return &Records{limit: limit, shares: make(map[any]*recordShare), open: make(map[string]*Record)}
}

// Len returns the number of records.
func (l *Records) Len() int { return l.n }

// Bytes returns the counted bytes of the records.
func (l *Records) Bytes() int64 { return l.total }

// Open returns the record of a call whose Runtime owes a final message, or nil.
func (l *Records) Open(id string) *Record { return l.open[id] }

// Add adds the record of a call that has ended. One that is not for repeats is kept only as long as
// its Runtime rt owes a final message, because the id must not be used before that. Without rt
// none is owed.
func (l *Records) Add(r *Record, isForRepeats bool, rt *Runtime) {
	switch {
	case isForRepeats:
		r.cost = costWhole + r.Size
		if r.Scope.byID == nil {
			r.Scope.byID = make(map[string]*Record)
		}
		r.Scope.byID[r.ID] = r
	case rt != nil:
		r.cost = costWhole
		l.shorten(r)
	default:
		return
	}
	if rt != nil {
		r.rt = rt
		l.open[r.ID] = r
		if rt.unanswered == nil {
			rt.unanswered = make(map[string]*Record)
		}
		rt.unanswered[r.ID] = r
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
func (l *Records) resize(r *Record, cost int) {
	l.total += int64(cost - r.cost)
	l.shares[r.Scope.Principal].total += int64(cost - r.cost)
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
	if sh.list.first == nil {
		delete(l.shares, r.Scope.Principal)
	}
}

// bound enforces the limit.
func (l *Records) bound() {
	target := l.limit
	for l.total > target {
		for sh := l.largest(); ; {
			if !l.shrink(sh) {
				l.Forget(sh.list.first)
			}
			if len(l.shares) > 64 { // the search for the largest one takes time
				target = l.limit - l.limit/64
			}
			if len(l.shares) <= 64 || l.total <= target || sh.list.first == nil {
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
			r.Payload = nil
			l.resize(r, costWhole)
			return true
		}
	}
	for r := sh.whole; r != nil; r = sh.whole {
		if sh.whole = r.share.next; !r.isShort {
			l.resize(r, costShort)
			l.shorten(r)
			return true
		}
	}
	return false
}

// shorten drops all of a record but its id.
func (l *Records) shorten(r *Record) {
	r.Print, r.Payload, r.isShort, r.cost = Fingerprint{}, nil, true, costShort
}

// Forget removes a record.
func (l *Records) Forget(r *Record) {
	if r.Scope.byID[r.ID] == r {
		delete(r.Scope.byID, r.ID)
	}
	l.close(r)
	l.remove(r)
}

// close ends the wait for the final message of a Runtime.
func (l *Records) close(r *Record) {
	if r.rt == nil {
		return
	}
	delete(l.open, r.ID)
	delete(r.rt.unanswered, r.ID)
	r.rt = nil
}

// Answered notes the final message of a Runtime for an ended call.
func (l *Records) Answered(r *Record) {
	l.close(r)
	if r.Scope.byID[r.ID] != r {
		l.remove(r)
	}
}

// Owing returns the Runtime that owes the final message of the call, or nil.
func (r *Record) Owing() *Runtime { return r.rt }

// Disconnected notes that a Runtime sends no more messages.
func (l *Records) Disconnected(rt *Runtime) {
	for _, r := range rt.unanswered {
		l.Answered(r)
	}
}

// EndScope drops the records of a session that has ended, but not ids that a Runtime may still
// answer.
func (l *Records) EndScope(sc *RecordScope) {
	all := sc.byID
	sc.byID = nil
	for _, r := range all {
		if r.rt == nil {
			l.remove(r)
			continue
		}
		l.resize(r, costShort)
		l.shorten(r)
	}
}

// Expire drops the records of calls that ended a lifetime ago. It returns when the next one expires.
func (l *Records) Expire(now time.Time, ttl time.Duration) (next time.Time, isAny bool) {
	for r := l.list.first; r != nil; r = l.list.first {
		if due := r.EndedAt.Add(ttl); now.Before(due) {
			return due, true
		}
		l.Forget(r)
	}
	return time.Time{}, false
}
