// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package core

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

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
	r         *Record
	principal string
	scope     *RecordScope
	rt        *Runtime // that owes a final message
	isKept    bool     // for repeats
	payload   int      // bytes; -1: dropped
	isShort   bool
}

func (n *naiveRecord) cost() int64 {
	if n.isShort {
		return 16
	}
	return 128 + int64(max(n.payload, 0))
}

// naiveRecords is the text of ALT-D22 over a list in order of end.
type naiveRecords struct {
	list []*naiveRecord
	seq  map[string]int // of the first record since a principal had none
	n    int
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
			r.isShort = true
		} else {
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
			scopes[i] = &RecordScope{Principal: fmt.Sprint("p", i%3)}
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
			case n == 3 && len(model.list) > 0: // another attempt of a call
				m := model.list[r.IntN(len(model.list))]
				records.Forget(m.r)
				m.isKept, m.rt = false, nil
				model.clean()
			case n == 4: // time passes
				now = now.Add(time.Duration(r.IntN(200)) * time.Second)
				next, isAny := records.Expire(now, ttl)
				for _, m := range model.list {
					if !m.r.EndedAt.Add(ttl).After(now) {
						m.isKept, m.rt = false, nil
					}
				}
				model.clean()
				require.Equal(t, len(model.list) > 0, isAny)
				if isAny {
					require.Equal(t, model.list[0].r.EndedAt.Add(ttl), next)
				}
			default: // a call ends
				model.n++
				m := &naiveRecord{principal: scopes[k].Principal.(string), scope: scopes[k], payload: r.IntN(3) * r.IntN(600)}
				m.isKept = !isEnded[k] && r.IntN(4) > 0
				if r.IntN(3) == 0 {
					m.rt = rts[r.IntN(len(rts))]
				}
				m.isShort = !m.isKept
				m.r = &Record{Scope: scopes[k], ID: fmt.Sprint(model.n), Print: Fingerprint{Tool: "t"}, Payload: "payload", Size: m.payload, EndedAt: now}
				if m.isKept || m.rt != nil {
					model.list = append(model.list, m)
					if model.seq[m.principal] == 0 {
						model.seq[m.principal] = model.n
					}
				}
				records.Add(m.r, m.isKept, m.rt)
				model.bound(limit)
			}
			if model.total("") != records.Bytes() || len(model.list) != records.Len() {
				t.Fatalf("seed %d: %d records of %d bytes, want %d of %d", seed, records.Len(), records.Bytes(), len(model.list), model.total(""))
			}
			kept := make(map[*RecordScope]int)
			for i, m := range model.list {
				isWhole := m.r.Payload != nil && m.r.Print.Tool != ""
				isFound, isOpen := m.scope.Find(m.r.ID) == m.r, records.Open(m.r.ID) == m.r
				if isFound != m.isKept || isOpen != (m.rt != nil) || m.r.isShort != m.isShort || isWhole != (!m.isShort && m.payload >= 0) {
					t.Fatalf("seed %d: record %d is %+v, want %+v", seed, i, m.r, m)
				}
				if m.isKept {
					kept[m.scope]++
				}
			}
			for _, sc := range scopes {
				if len(sc.byID) != kept[sc] {
					t.Fatalf("seed %d: a session has %d records, want %d", seed, len(sc.byID), kept[sc])
				}
			}
		}
	}
}

// With many principals the records stay below the limit.
func TestRecordsOfManyPrincipals(t *testing.T) {
	const limit = 64 << 10
	records := NewRecords(limit)
	scopes := make([]RecordScope, 200)
	for i := range scopes {
		scopes[i].Principal = i
	}
	for i := range 5000 {
		records.Add(&Record{Scope: &scopes[i%len(scopes)], ID: fmt.Sprint(i), Payload: "p", Size: i % 500}, true, nil)
		require.LessOrEqual(t, records.Bytes(), int64(limit))
	}
	require.Greater(t, records.Bytes(), int64(limit*15/16))
	last := scopes[4999%len(scopes)].Find("4999")
	require.Equal(t, "p", last.Payload, "the newest record is kept")
}
