// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package storetest

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/fivewire/fivewire/store"
)

var modelTests = []test{
	{"Random", testRandom},
	{"Concurrent", testConcurrent},
}

// A model is a store too simple to be wrong: it keeps everything and scans everything.
type model struct {
	entries   map[string]store.Entry
	revisions map[string]map[store.Revision]bool // all that a key ever had
	streams   map[string][]*modelRecord          // all that was ever appended
}

type modelRecord struct {
	store.Record
	acked bool
}

func alive(expires, now time.Time) bool { return expires.IsZero() || now.Before(expires) }

func (m *model) get(key string, now time.Time) (store.Entry, bool) {
	entry, ok := m.entries[key]
	return entry, ok && alive(entry.Expires, now)
}

// known returns the record whose id the stream knows.
func (m *model) find(stream, id string, now time.Time) *modelRecord {
	for _, r := range m.streams[stream] {
		if r.ID == id && id != "" && alive(r.Expires, now) && !(r.acked && r.Expires.IsZero()) {
			return r
		}
	}
	return nil
}

func (m *model) read(stream string, after uint64, limit int, now time.Time) []store.Record {
	var records []store.Record
	for _, r := range m.streams[stream] {
		if r.Seq > after && !r.acked && alive(r.Expires, now) && len(records) < limit {
			records = append(records, r.Record)
		}
	}
	return records
}

// testRandom runs random calls, one after another, and compares each result with that of the model.
// Where time is exact, entries expire between the calls.
func testRandom(e *env) {
	e.ctx = e.Context() // the bound of the other tests is for a few waits
	random := rand.New(rand.NewPCG(e.Seed, 0))
	m := &model{map[string]store.Entry{}, map[string]map[store.Revision]bool{}, map[string][]*modelRecord{}}
	steps := rounds(1600)
	if e.Virtual {
		steps *= 5
	}
	var history []string
	for range steps {
		if e.Virtual {
			time.Sleep(time.Duration(random.IntN(3)) * e.TTL / 16)
		}
		what := m.step(e, random, time.Now())
		if history = append(history, what); e.Failed() {
			e.Fatalf("with seed %d, after %d steps, the last of them:\n%s", e.Seed, len(history), strings.Join(history[max(0, len(history)-30):], "\n"))
		}
	}
}

// step runs one call and returns its description.
func (m *model) step(e *env, random *rand.Rand, now time.Time) (what string) {
	pick := func(n int) int { return random.IntN(n) }
	key := []string{"a", "b", "c", "d/a", "d/b", "d/c", "d0", "e"}[pick(8)]
	stream := []string{"s", "t", "u"}[pick(3)]
	id := []string{"", "", "1", "2", "3", "4", "5", "6"}[pick(8)]
	value := fmt.Append(nil, pick(1000))
	var ttl time.Duration
	if pick(2) == 0 {
		ttl = 24 * time.Hour
		if e.Virtual {
			ttl = time.Duration(1+pick(16)) * e.TTL / 4
		}
	}
	var expires time.Time
	if ttl != 0 {
		expires = now.Add(ttl)
	}
	entry, present := m.get(key, now)
	rev := entry.Revision
	if pick(4) == 0 { // another that the key had, or one before or after all these, or none
		rev = 0
		for other := range m.revisions[key] {
			rev = max(rev, other)
		}
		rev = []store.Revision{rev - min(rev, 1), rev, rev + 1, 0}[pick(4)]
	}
	switch pick(12) {
	case 0, 1:
		got, err := e.s.Create(e.ctx, key, value, ttl)
		if what = fmt.Sprintf("Create %q %s %v", key, value, ttl); present {
			e.is(what, err, store.ErrExists)
		} else {
			m.set(e, what, key, value, got, err, expires)
		}
	case 2, 3:
		got, err := e.s.Update(e.ctx, key, value, rev, ttl)
		switch what = fmt.Sprintf("Update %q %s at %d of %d %v", key, value, rev, entry.Revision, ttl); {
		case !present:
			e.is(what, err, store.ErrNotFound)
		case rev != entry.Revision:
			e.is(what, err, store.ErrConflict)
		default:
			m.set(e, what, key, value, got, err, expires)
		}
	case 4:
		err := e.s.Delete(e.ctx, key, rev)
		if what = fmt.Sprintf("Delete %q at %d of %d", key, rev, entry.Revision); present && rev != 0 && rev != entry.Revision {
			e.is(what, err, store.ErrConflict)
		} else {
			e.is(what, err, nil)
			delete(m.entries, key)
		}
	case 5:
		got, err := e.s.Get(e.ctx, key)
		if what = fmt.Sprintf("Get %q", key); !present {
			e.is(what, err, store.ErrNotFound)
		} else {
			e.is(what, err, nil)
			m.sameEntry(e, what, got, entry)
		}
	case 6:
		prefix := []string{"", "a", "d", "d/", "d/b", "x"}[pick(6)]
		what = fmt.Sprintf("List %q", prefix)
		got := e.list(prefix)
		var want []store.Entry
		for _, key := range slices.Sorted(maps.Keys(m.entries)) {
			if entry, ok := m.get(key, now); ok && strings.HasPrefix(key, prefix) {
				want = append(want, entry)
			}
		}
		if same(e, what+": entries", len(got), len(want)); !e.Failed() {
			for i := range got {
				m.sameEntry(e, what, got[i], want[i])
			}
		}
	case 7, 8:
		record := m.find(stream, id, now)
		got, err := e.s.Append(e.ctx, stream, id, value, ttl)
		if what = fmt.Sprintf("Append %q id %q %s %v: %d", stream, id, value, ttl, got); record != nil {
			e.is(what, err, store.ErrDuplicate)
			same(e, what+": position", got, record.Seq)
			break
		}
		e.is(what, err, nil)
		if all := m.streams[stream]; len(all) > 0 && got <= all[len(all)-1].Seq {
			e.Errorf("%s: after %d", what, all[len(all)-1].Seq)
		}
		m.streams[stream] = append(m.streams[stream], &modelRecord{Record: store.Record{Seq: got, ID: id, Value: value, Time: now, Expires: expires}})
	case 9:
		limit := 1 + pick(8)
		after := m.anySeq(random, stream)
		got := e.read(stream, after, limit)
		want := m.read(stream, after, limit, now)
		what = fmt.Sprintf("Read %q after %d limit %d", stream, after, limit)
		if same(e, what+": records", len(got), len(want)); !e.Failed() {
			for i := range got {
				m.sameRecord(e, what, got[i], want[i])
			}
		}
		if len(want) > 0 {
			ctx, cancel := context.WithTimeout(e.ctx, e.Patience)
			e.is("Wait for what Read returns", e.s.Wait(ctx, stream, after), nil)
			cancel()
		}
	case 10:
		seqs := []uint64{m.anySeq(random, stream), m.anySeq(random, stream)}
		what = fmt.Sprintf("Ack %q %d", stream, seqs)
		e.is(what, e.s.Ack(e.ctx, stream, seqs...), nil)
		for _, r := range m.streams[stream] {
			if slices.Contains(seqs, r.Seq) {
				r.acked = true
			}
		}
	case 11:
		if pick(4) > 0 {
			return "nothing"
		}
		what = fmt.Sprintf("Expire %q %v", stream, ttl)
		e.is(what, e.s.Expire(e.ctx, stream, ttl), nil)
		for _, r := range m.streams[stream] {
			if alive(r.Expires, now) && !(r.acked && r.Expires.IsZero()) {
				r.Expires = now.Add(ttl) // with zero it expires now
			}
		}
	}
	return what
}

// set notes what a key got.
func (m *model) set(e *env, what, key string, value []byte, rev store.Revision, err error, expires time.Time) {
	if e.is(what, err, nil); rev == 0 || m.revisions[key][rev] {
		e.Errorf("%s: revision %d", what, rev)
	}
	if m.revisions[key] == nil {
		m.revisions[key] = map[store.Revision]bool{}
	}
	m.revisions[key][rev] = true
	m.entries[key] = store.Entry{Key: key, Value: value, Revision: rev, Expires: expires}
}

// anySeq picks a position that the stream has or had, or zero.
func (m *model) anySeq(random *rand.Rand, stream string) uint64 {
	all := m.streams[stream]
	i := random.IntN(min(len(all), 12) + 1) // of recent ones, since most others are acknowledged
	if i == 0 {
		return 0
	}
	return all[len(all)-i].Seq
}

func (m *model) sameEntry(e *env, what string, got, want store.Entry) {
	same(e, what+": key", got.Key, want.Key)
	same(e, what+": value", string(got.Value), string(want.Value))
	same(e, what+": revision", got.Revision, want.Revision)
	m.sameTime(e, what, got.Expires, want.Expires)
}

func (m *model) sameRecord(e *env, what string, got, want store.Record) {
	same(e, what+": position", got.Seq, want.Seq)
	same(e, what+": id", got.ID, want.ID)
	same(e, what+": value", string(got.Value), string(want.Value))
	m.sameTime(e, what, got.Expires, want.Expires)
}

func (m *model) sameTime(e *env, what string, got, want time.Time) {
	if got.IsZero() != want.IsZero() {
		e.Errorf("%s: expires %v, want %v", what, got, want)
	} else if !want.IsZero() {
		e.near(what+" expires", got, want, want.Add(e.Tolerance))
	}
}
