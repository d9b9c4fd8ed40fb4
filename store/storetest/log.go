// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package storetest

import (
	"fmt"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fivewire/fivewire/store"
)

var logTests = []test{
	{"AppendRead", testAppendRead},
	{"Cursor", testCursor},
	{"Limit", testLimit},
	{"Apart", testStreamsApart},
	{"Concurrent", testConcurrentAppend},
	{"Ack", testAck},
	{"AckOfOthers", testAckOfOthers},
	{"Drain", testDrain},
	{"Positions", testPositions},
	{"Expiry", testRecordExpiry},
	{"ExpiryMixed", testRecordExpiryMixed},
	{"Expire", testExpire},
	{"ExpireNow", testExpireNow},
}

func testAppendRead(e *env) {
	same(e, "records of an unknown stream", len(e.read("s", 0, 10)), 0)
	called := time.Now()
	first := e.append("s", "id-1", "one", 0)
	second := e.append("s", "", "two", time.Hour)
	returned := time.Now()
	if second <= first {
		e.Errorf("positions %d, %d do not rise", first, second)
	}
	for range 2 { // reading takes nothing away
		records := e.read("s", 0, 10)
		if len(records) != 2 {
			e.Fatalf("Read returns %d records, want 2", len(records))
		}
		for i, want := range []store.Record{{Seq: first, ID: "id-1", Value: []byte("one")}, {Seq: second, Value: []byte("two")}} {
			same(e, "position", records[i].Seq, want.Seq)
			same(e, "id", records[i].ID, want.ID)
			same(e, "value", string(records[i].Value), string(want.Value))
			e.near("record is of", records[i].Time, called, returned)
		}
		e.expiresAt("record", records[0].Expires, called, returned, 0)
		e.expiresAt("record", records[1].Expires, called, returned, time.Hour)
	}
}

func testCursor(e *env) {
	var all []uint64
	for i := range 10 {
		all = append(all, e.append("s", "", fmt.Sprint(i), 0))
		e.append("noise", "", "x", 0)
	}
	for i := range all {
		records := e.read("s", all[i], 100)
		same(e, "records after the cursor", len(records), len(all)-1-i)
		for j, r := range records {
			same(e, "position", r.Seq, all[i+1+j])
			same(e, "value", string(r.Value), fmt.Sprint(i+1+j))
		}
		// Between two positions nothing is skipped.
		if records := e.read("s", all[i]-1, 1); len(records) != 1 || records[0].Seq != all[i] {
			e.Errorf("Read after %d: got %v, want the record at %d", all[i]-1, records, all[i])
		}
	}
	for _, after := range []uint64{all[9] + 1, all[9] + 1_000_000, math.MaxInt64 - 1, math.MaxInt64, math.MaxInt64 + 1, math.MaxUint64 - 1, math.MaxUint64} {
		if after > all[9] {
			same(e, "records after the end", len(e.read("s", after, 100)), 0)
		}
	}
	var seen []uint64
	for after := uint64(0); ; {
		records := e.read("s", after, 3)
		if len(records) == 0 {
			break
		}
		for _, r := range records {
			seen = append(seen, r.Seq)
		}
		after = seen[len(seen)-1]
	}
	sameAll(e, "positions seen page by page", seen, all)
}

func testLimit(e *env) {
	var all []uint64
	for range 105 {
		all = append(all, e.append("s", "", "x", 0))
	}
	for limit, want := range map[int]int{
		1: 1, 2: 2, 99: 99, 100: 100, 101: 101, 105: 105, 106: 105, 1_000_000: 105, math.MaxInt: 105,
		0: 100, -1: 100, math.MinInt: 100,
	} {
		records := e.read("s", 0, limit)
		if len(records) != want {
			e.Errorf("Read with limit %d returns %d records, want %d", limit, len(records), want)
			continue
		}
		same(e, "first position", records[0].Seq, all[0])
	}
	// Acknowledged records do not count.
	e.ack("s", all[:50]...)
	if records := e.read("s", 0, 5); len(records) != 5 || records[0].Seq != all[50] {
		e.Errorf("Read with limit 5 behind what is acknowledged returns %v", records)
	}
}

func testStreamsApart(e *env) {
	names := []string{"a", "a/b", "a/", "A", "a b", "b", "a\u00e9", "ae\u0301", "*", ">", "a.*", "%"}
	for i, name := range names {
		e.create(name, "key", 0)
		e.append(name, "same id", fmt.Sprint(i), 0)
	}
	for i, name := range names {
		records := e.read(name, 0, 10)
		if len(records) != 1 || string(records[0].Value) != fmt.Sprint(i) {
			e.Errorf("stream %q: got %v, want one record with value %d", name, records, i)
		}
		same(e, "value of the key named like the stream", string(e.get(name).Value), "key")
	}
	e.expire("a", 0)
	e.delete("b", 0)
	same(e, "records of the emptied stream", len(e.read("a", 0, 10)), 0)
	same(e, "records of another stream", len(e.read("a/", 0, 10)), 1)
	same(e, "records of the stream named like a deleted key", len(e.read("b", 0, 10)), 1)
	same(e, "value of the key named like the emptied stream", string(e.get("a").Value), "key")
	same(e, "number of keys", len(e.keys("")), len(names)-1)
}

// testConcurrentAppend runs readers that follow a stream with many writers. A reader would miss a
// record that became visible behind its cursor.
func testConcurrentAppend(e *env) {
	const writers, readers = 6, 3
	each := rounds(120)
	values := make([][]string, readers)
	seqs := make([][]uint64, readers)
	var mu sync.Mutex
	appended := map[string]uint64{}
	e.together(writers+readers, func(i int) {
		s := e.at(i)
		if i < writers {
			for n := range each {
				value := fmt.Sprintf("%d-%05d", i, n)
				seq, err := s.Append(e.ctx, "s", "", []byte(value), 0)
				if err != nil {
					e.Errorf("Append: %v", err)
					return
				}
				mu.Lock()
				appended[value] = seq
				mu.Unlock()
				if _, err := s.Append(e.ctx, fmt.Sprint("noise-", i), "", nil, 0); err != nil {
					e.Errorf("Append: %v", err)
					return
				}
			}
			return
		}
		me := i - writers
		for after := uint64(0); len(values[me]) < writers*each; {
			if err := e.wait(s, "s", after); err != nil {
				e.Errorf("reader has %d of %d records: Wait: %v", len(values[me]), writers*each, err)
				return
			}
			records, err := s.Read(e.ctx, "s", after, 7)
			if err != nil {
				e.Errorf("Read: %v", err)
				return
			}
			if len(records) == 0 {
				e.Errorf("Read after %d returns nothing, but Wait returned", after)
				return
			}
			for _, r := range records {
				if r.Seq <= after {
					e.Errorf("Read after %d returns position %d", after, r.Seq)
					return
				}
				after = r.Seq
				values[me] = append(values[me], string(r.Value))
				seqs[me] = append(seqs[me], r.Seq)
			}
		}
	})
	if e.Failed() {
		return
	}
	for me := range readers {
		last := map[byte]string{} // each writer's own order is kept
		for i, value := range values[me] {
			if last[value[0]] >= value {
				e.Fatalf("record %q comes after %q", value, last[value[0]])
			}
			last[value[0]] = value
			same(e, "position of "+value, seqs[me][i], appended[value])
		}
		sameAll(e, "what two readers saw", values[me], values[0])
	}
	e.holds("s", seqs[0]...)
}

func testAck(e *env) {
	var s []uint64
	for i := range 6 {
		s = append(s, e.append("s", "", fmt.Sprint(i), 0))
	}
	e.ack("s", s[2])
	e.holds("s", s[0], s[1], s[3], s[4], s[5])
	e.ack("s", s[5], s[0])
	e.holds("s", s[1], s[3], s[4])
	e.ack("s", s[5], s[0], s[2])
	e.ack("s", s[1], s[1])
	e.holds("s", s[3], s[4])
	e.ack("s")
	e.ack("s", 0)
	e.ack("s", s[5]+1_000_000, math.MaxInt64, math.MaxUint64)
	e.holds("s", s[3], s[4])
	if records := e.read("s", s[1], 10); len(records) != 2 || string(records[0].Value) != "3" {
		e.Errorf("Read after an acknowledged position returns %v", records)
	}
	e.ack("s", s[5]+1_000_000, s[4], s[3]) // a position without record does not stop the others
	e.holds("s")
	e.ack("s", s[0], s[5])
	e.ack("never seen", 1, 2, 3)

	var many []uint64
	n := rounds(500)
	for range n {
		many = append(many, e.append("s", "", "x", 0))
	}
	e.ack("s", many[n/5:n/5*4]...)
	e.holds("s", append(slices.Clone(many[:n/5]), many[n/5*4:]...)...)
	slices.Reverse(many)
	e.ack("s", many...)
	e.holds("s")
}

// testAckOfOthers checks that a position means nothing in another stream, also
// where positions are counted over all streams.
func testAckOfOthers(e *env) {
	var a, b []uint64
	for range 5 {
		a = append(a, e.append("a", "", "x", 0))
		b = append(b, e.append("b", "", "x", 0))
	}
	e.ack("a", b...)
	e.holds("b", b...)
	var left []uint64
	for _, seq := range a {
		if !slices.Contains(b, seq) {
			left = append(left, seq)
		}
	}
	e.holds("a", left...)
}

// testDrain has several work on one queue, as relays and workers do.
func testDrain(e *env) {
	const producers, consumers = 4, 4
	each := rounds(60)
	var mu sync.Mutex
	seen := map[string]bool{}
	var done atomic.Bool
	var producing sync.WaitGroup
	producing.Add(producers)
	e.together(producers+consumers, func(i int) {
		s := e.at(i)
		if i < producers {
			for n := range each {
				if _, err := s.Append(e.ctx, "q", "", fmt.Appendf(nil, "%d-%d", i, n), 0); err != nil {
					e.Errorf("Append: %v", err)
				}
			}
			producing.Done()
			if i == 0 {
				producing.Wait()
				done.Store(true)
			}
			return
		}
		for turns := 0; ; {
			last := done.Load()
			records, err := s.Read(e.ctx, "q", 0, 3)
			if err != nil {
				e.Errorf("Read: %v", err)
				return
			}
			for _, r := range records {
				mu.Lock()
				seen[string(r.Value)] = true
				mu.Unlock()
				if err := s.Ack(e.ctx, "q", r.Seq); err != nil {
					e.Errorf("Ack: %v", err)
					return
				}
			}
			switch {
			case len(records) == 0 && last:
				return
			case len(records) == 0:
				time.Sleep(time.Millisecond)
			case turns > producers*each: // each turn acknowledges its first record
				e.Error("the queue does not empty")
				return
			default:
				turns++
			}
		}
	})
	same(e, "records seen", len(seen), producers*each)
	e.holds("q")
}

// testPositions checks that no position is used twice, even when the stream is empty: a reader's
// cursor outlives the records.
func testPositions(e *env) {
	last := uint64(0)
	next := func(ttl time.Duration) uint64 {
		e.Helper()
		seq := e.append("s", "", "x", ttl)
		if seq <= last {
			e.Fatalf("position %d after %d", seq, last)
		}
		last = seq
		return seq
	}
	for range 5 {
		e.ack("s", next(0))
		e.ack("s", next(0), next(0), next(0))
		next(0)
		e.expire("s", 0)
	}
	next(e.TTL)
	e.outlive(e.TTL)
	e.holds("s")
	next(0)
	e.holds("s", last)
}

func testRecordExpiry(e *env) {
	var seq uint64
	act := func() { seq = e.append("s", "", "mortal", e.TTL) }
	e.lives("record", e.TTL, act, func() bool { return e.isRead("s", seq) })
	ever := e.append("s", "", "for ever", 0)
	e.lives("record behind another", e.TTL, act, func() bool { return e.isRead("s", seq) })
	e.holds("s", ever)
	e.ack("s", seq)
	e.holds("s", ever)
}

func testRecordExpiryMixed(e *env) {
	var ever, long, short []uint64
	for range 4 {
		short = append(short, e.append("s", "", "short", e.TTL))
		ever = append(ever, e.append("s", "", "ever", 0))
		long = append(long, e.append("s", "", "long", e.Patience))
		short = append(short, e.append("s", "", "short", e.TTL))
	}
	e.outlive(e.TTL)
	left := slices.Concat(ever, long)
	slices.Sort(left)
	e.holds("s", left...)
	if records := e.read("s", 0, 3); len(records) != 3 {
		e.Errorf("Read with limit 3 among expired records returns %d", len(records))
	}
	e.ack("s", left[0], short[1], left[1])
	e.holds("s", left[2:]...)
}

func testExpire(e *env) {
	e.expire("unknown", e.TTL)
	same(e, "records of an unknown stream", len(e.read("unknown", 0, 10)), 0)

	for stream, ttl := range map[string]time.Duration{"for ever": 0, "for long": e.Patience} {
		var later uint64
		seq := e.append(stream, "", "x", ttl)
		e.lives("record given a ttl", e.TTL, func() { e.expire(stream, e.TTL) }, func() bool {
			if later == 0 {
				later = e.append(stream, "", "later", 0)
			}
			return e.isRead(stream, seq)
		})
		e.holds(stream, later)
	}

	// A longer life replaces a shorter one.
	called := time.Now()
	mortal := e.append("t", "", "mortal", e.TTL)
	e.expire("t", e.Patience)
	if returned := time.Now(); returned.Sub(called) >= e.TTL-e.Tolerance {
		e.Skip("too slow for the TTL")
	}
	e.outlive(e.TTL)
	e.holds("t", mortal)
	e.expiresAt("record", e.first("t").Expires, called, time.Now(), e.Patience)
	e.expire("t", 0)
	e.holds("t")
}

func testExpireNow(e *env) {
	e.expire("s", 0)
	first := e.append("s", "", "one", 0)
	e.append("s", "", "two", time.Hour)
	other := e.append("other", "", "x", 0)
	e.expire("s", 0)
	e.holds("s")
	e.holds("other", other)
	third := e.append("s", "", "three", 0)
	if third <= first {
		e.Errorf("position %d after %d", third, first)
	}
	e.holds("s", third)
	e.expire("s", 0)
	e.expire("s", 0)
	e.holds("s")
}
