// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package core

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"
	"time"
	"unique"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/internal/kit"
	"github.com/fivewire/fivewire/internal/race"
)

// sequences is the number of random sequences of a model.
func sequences() uint64 {
	if race.Enabled {
		return 1000
	}
	return 10_000
}

// A naiveRecord is what ALT-D22 keeps of an ended call.
type naiveRecord struct {
	id        string
	r         *Record
	principal string
	scope     *RecordScope
	rt        *Runtime // that owes a final message
	isKept    bool     // for repeats
	payload   int      // bytes; -1: dropped
	isShort   bool
	epoch     *naiveEpoch // if only the use of the id is known
}

// A naiveEpoch is a time whose ids of a session are forgotten together.
type naiveEpoch struct {
	scope       *RecordScope
	first, last int64
	n           int
}

func (n *naiveRecord) cost() int64 {
	switch {
	case n.epoch != nil:
		return 16
	case n.isShort:
		return 128
	}
	return 128 + int64(max(n.payload, 0))
}

// naiveRecords is the text of ALT-D22 over a list in order of end.
type naiveRecords struct {
	list   []*naiveRecord
	epochs []*naiveEpoch
	seq    map[string]int // of the first record since a principal had none
	n      int
}

func (l *naiveRecords) total(principal string) (sum int64) {
	for _, r := range l.list {
		if principal == "" || r.principal == principal {
			sum += r.cost()
		}
	}
	return sum
}

func (l *naiveRecords) clean() {
	l.list = slices.DeleteFunc(l.list, func(r *naiveRecord) bool { return !r.isKept && r.rt == nil })
	for p := range l.seq {
		if !slices.ContainsFunc(l.list, func(r *naiveRecord) bool { return r.principal == p }) {
			delete(l.seq, p)
		}
	}
}

// use puts the id of a record into the last epoch of its session, or into a new one.
func (l *naiveRecords) use(r *naiveRecord, limit int64) {
	l.tidy()
	for _, e := range l.epochs {
		if e.scope == r.scope {
			r.epoch = e
		}
	}
	if e := r.epoch; e == nil || int64(e.n+1)*16 > limit/80 || r.r.EndedAt-e.first >= int64(10*time.Second) {
		r.epoch = &naiveEpoch{scope: r.scope, first: r.r.EndedAt}
		l.epochs = append(l.epochs, r.epoch)
	}
	r.epoch.last = r.r.EndedAt
	r.epoch.n++
}

// tidy drops the epochs without ids.
func (l *naiveRecords) tidy() {
	l.epochs = slices.DeleteFunc(l.epochs, func(e *naiveEpoch) bool {
		return !slices.ContainsFunc(l.list, func(r *naiveRecord) bool { return r.epoch == e })
	})
}

// oldest returns the oldest epoch of a principal, or nil.
func (l *naiveRecords) oldest(principal string) *naiveEpoch {
	l.tidy()
	for _, e := range l.epochs {
		if e.scope.Principal.Name == principal {
			return e
		}
	}
	return nil
}

// forget forgets the oldest epoch of a principal.
func (l *naiveRecords) forget(principal string) bool {
	e := l.oldest(principal)
	for _, r := range l.list {
		r.isKept = r.isKept && (e == nil || r.epoch != e)
	}
	l.clean()
	return e != nil
}

// bound makes the principal that holds most pay until all records fit.
func (l *naiveRecords) bound(limit int64) {
	for l.total("") > limit {
		largest := ""
		for p := range l.seq {
			if largest == "" || l.total(p) > l.total(largest) || l.total(p) == l.total(largest) && l.seq[p] < l.seq[largest] {
				largest = p
			}
		}
		first := func(match func(r *naiveRecord) bool) *naiveRecord {
			if i := slices.IndexFunc(l.list, func(r *naiveRecord) bool { return r.principal == largest && match(r) }); i >= 0 {
				return l.list[i]
			}
			return nil
		}
		if r := first(func(r *naiveRecord) bool { return !r.isShort && r.payload > 0 }); r != nil {
			r.payload = -1
		} else if r := first(func(r *naiveRecord) bool { return !r.isShort }); r != nil {
			if r.isShort = true; r.rt == nil {
				l.use(r, limit)
			}
		} else if !l.forget(largest) {
			r := first(func(*naiveRecord) bool { return true })
			r.isKept, r.rt = false, nil
		}
		l.clean()
	}
}

func TestRecordsModel(t *testing.T) {
	const ttl = 300 * time.Second
	start := time.Unix(0, 0)
	for seed := range sequences() {
		r := rand.New(rand.NewPCG(seed, 22))
		limit := int64(r.IntN(4000))
		records, model := NewRecords(limit), &naiveRecords{seq: map[string]int{}}
		scopes := make([]*RecordScope, 5)
		isEnded := make([]bool, len(scopes))
		for i := range scopes {
			scopes[i] = &RecordScope{Principal: Principal{Name: fmt.Sprint("p", i%3)}}
		}
		rts := []*Runtime{{ID: "a"}, {ID: "b"}}
		now := start
		for range 30 {
			k := r.IntN(len(scopes))
			switch n := r.IntN(12); {
			case n == 0: // a session ends
				isEnded[k] = true
				records.EndScope(scopes[k])
				for _, m := range model.list {
					if m.scope == scopes[k] {
						m.isKept, m.isShort = false, true
					}
				}
				model.clean()
			case n == 1: // a Runtime disconnects
				rt := rts[r.IntN(len(rts))]
				records.Disconnected(rt)
				for _, m := range model.list {
					if m.rt == rt {
						m.rt = nil
					}
				}
				model.clean()
			case n == 2 && len(model.list) > 0: // a final message is received
				if m := model.list[r.IntN(len(model.list))]; m.rt != nil {
					records.Answered(m.r)
					m.rt = nil
					model.clean()
				}
			case n == 4: // time passes
				now = now.Add(time.Duration(r.IntN(200)) * time.Second)
				next, isAny := records.Expire(now, ttl)
				due := now.Add(24 * time.Hour)
				for i := range 3 {
					p := fmt.Sprint("p", i)
					e := model.oldest(p)
					for ; e != nil && !time.Unix(0, e.last).Add(ttl).After(now); e = model.oldest(p) {
						model.forget(p)
					}
					if e != nil {
						due = earlier(due, time.Unix(0, e.last).Add(ttl))
					}
				}
				for _, m := range model.list {
					if at := endOf(m.r).Add(ttl); m.epoch == nil && !at.After(now) {
						m.isKept, m.rt = false, nil
					} else if m.epoch == nil {
						due = earlier(due, at)
					}
				}
				model.clean()
				require.Equal(t, len(model.list) > 0, isAny)
				if isAny {
					require.WithinRange(t, next, now.Add(1), due)
				}
			default: // a call ends
				model.n++
				m := &naiveRecord{principal: scopes[k].Principal.Name, scope: scopes[k], payload: r.IntN(3) * r.IntN(600)}
				m.isKept = !isEnded[k] && r.IntN(4) > 0
				if r.IntN(3) == 0 {
					m.rt = rts[r.IntN(len(rts))]
				}
				m.isShort = !m.isKept
				m.id = fmt.Sprint(model.n)
				m.r = &Record{Scope: scopes[k], Print: ShortPrint{1}, Payload: "payload", EndedAt: now.UnixNano()}
				if m.isKept || m.rt != nil {
					model.list = append(model.list, m)
					if model.seq[m.principal] == 0 {
						model.seq[m.principal] = model.n
					}
				}
				records.Add(m.id, m.r, m.payload, m.isKept, m.rt)
				model.bound(limit)
			}
			if model.total("") != records.Bytes() || len(model.list) != records.Len() {
				t.Fatalf("seed %d: %d records of %d bytes, want %d of %d", seed, records.Len(), records.Bytes(), len(model.list), model.total(""))
			}
			kept := make(map[*RecordScope]int)
			for i, m := range model.list {
				found, isOpen := records.Find(m.scope, m.id), records.Open(m.id) == m.r
				if m.epoch != nil {
					if !found.isShort || isOpen || m.scope.byID[records.hash(m.id)] != nil {
						t.Fatalf("seed %d: record %d is %+v, want %+v", seed, i, found, m)
					}
					kept[m.scope]++
					continue
				}
				isWhole, isFound := m.r.Payload != nil && m.r.Print[0] == 1, found == m.r
				if isFound != m.isKept || isOpen != (m.rt != nil) || m.r.isShort != m.isShort || isWhole != (!m.isShort && m.payload >= 0) {
					t.Fatalf("seed %d: record %d is %+v, want %+v", seed, i, m.r, m)
				}
				if m.isKept {
					kept[m.scope]++
				}
			}
			for _, sc := range scopes {
				n := len(sc.byID)
				for _, e := range records.epochs[sc] {
					n += len(e.used)
				}
				if n != kept[sc] {
					t.Fatalf("seed %d: a session has %d records, want %d", seed, n, kept[sc])
				}
			}
		}
	}
}

func endOf(r *Record) time.Time { return time.Unix(0, r.EndedAt) }

// With many principals the records stay below the limit.
func TestRecordsOfManyPrincipals(t *testing.T) {
	const limit = 64 << 10
	records := NewRecords(limit)
	scopes := make([]RecordScope, 200)
	for i := range scopes {
		scopes[i].Principal.Name = fmt.Sprint(i)
	}
	for i := range 5000 {
		records.Add(fmt.Sprint(i), &Record{Scope: &scopes[i%len(scopes)], Payload: "p"}, i%500, true, nil)
		require.LessOrEqual(t, records.Bytes(), int64(limit))
	}
	require.Greater(t, records.Bytes(), int64(limit*15/16))
	last := records.Find(&scopes[4999%len(scopes)], "4999")
	require.Equal(t, "p", last.Payload, "the newest record is kept")
}

// An id that a Runtime may still answer holds at most twice the memory that it counts, also if its record was dropped.
func TestUnansweredIDsAreSmall(t *testing.T) {
	for _, isKept := range []bool{false, true} {
		const limit = 2 << 20
		before := kit.Heap()
		records, scope, rt := NewRecords(limit), RecordScope{Principal: Principal{Name: "p"}}, &Runtime{}
		for i := range 40_000 {
			r := &Record{Scope: &scope, Run: unique.Make(Run{"math/add", "r1"}), Payload: new([64]byte), EndedAt: int64(i) * int64(time.Millisecond)}
			records.Add(fmt.Sprintf("%036d", i), r, 64, isKept, rt)
		}
		size := kit.Heap() - before
		require.Less(t, size, 2*records.Bytes()+limit/4, "with the free space of maps")
		require.LessOrEqual(t, records.Bytes(), int64(limit))
		require.Greater(t, records.Bytes(), int64(limit*9/10))
		require.NotNil(t, records.Open(fmt.Sprintf("%036d", 39_999)))
		records.Disconnected(rt)
		require.Nil(t, records.Open(fmt.Sprintf("%036d", 39_999)))
		require.Equal(t, isKept, records.Len() > 0)
	}
}

// An id whose record is forgotten holds little more memory than it counts.
func TestUsedIDsAreSmall(t *testing.T) {
	const limit = 1 << 20
	before := kit.Heap()
	records, scope := NewRecords(limit), RecordScope{Principal: Principal{Name: "p"}}
	for i := range 200_000 {
		records.Add(fmt.Sprintf("%036d", i), &Record{Scope: &scope, EndedAt: int64(i) * int64(time.Millisecond)}, 0, true, nil)
	}
	ids := records.Len()
	require.InDelta(t, limit/costShort, ids, limit/costShort/epochShare)
	require.Less(t, kit.Heap()-before, int64(ids*2*costShort))
	require.True(t, records.Find(&scope, fmt.Sprintf("%036d", 180_000)).isShort)
	records.Expire(time.Unix(400_000, 0), time.Minute)
	require.Zero(t, records.Len())
	require.Less(t, kit.Heap()-before, int64(limit))
}

// A short text does not keep the memory of a long one, whose record may have been dropped.
func TestShortTextsKeepNoLongOnes(t *testing.T) {
	sh, long := &Shard{}, make([]byte, 1<<20-100)
	before := kit.Heap()
	short := make([]string, 50)
	for i := range short {
		_ = sh.text(long)
		short[i] = sh.text([]byte("text"))
	}
	require.Less(t, kit.Heap()-before, int64(1<<20))
	runtime.KeepAlive(short)
}
