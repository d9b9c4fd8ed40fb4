// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package storetest

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/fivewire/fivewire/store"
)

var idTests = []test{
	{"Duplicate", testDuplicate},
	{"DuplicateRace", testDuplicateRace},
	{"Empty", testEmptyID},
	{"ForgottenByAck", testForgottenByAck},
	{"KnownAfterAck", testKnownAfterAck},
	{"ForgottenByExpiry", testForgottenByExpiry},
	{"ForgottenRace", testForgottenRace},
	{"TTLOfFirst", testTTLOfFirst},
	{"Expire", testExpireIDs},
	{"ExpireLater", testExpireIDsLater},
	{"ExpireWhileAcked", testExpireWhileAcked},
	{"ExpireWhileUsedAgain", testExpireWhileUsedAgain},
}

func testDuplicate(e *env) {
	first := e.append("s", "id", "one", 0)
	e.requireKnown("s", "id", first)
	second := e.append("s", "id2", "two", time.Hour)
	third := e.append("s", "ID", "three", 0)
	for range 3 {
		e.requireKnown("s", "id", first)
		e.requireKnown("s", "id2", second)
		e.requireKnown("s", "ID", third)
	}
	e.holds("s", first, second, third)
	same(e, "value", string(e.first("s").Value), "one")
	e.append("other", "id", "x", 0)
}

func testDuplicateRace(e *env) {
	for round := range rounds(40) {
		e.oneAppends("s", fmt.Sprint("id-", round))
	}
	same(e, "records in the stream", len(e.read("s", 0, 1000)), rounds(40))
}

// oneAppends lets many append with one id, which is not known, at once.
func (e *env) oneAppends(stream, id string) {
	e.Helper()
	var mu sync.Mutex
	var winners, duplicates []uint64
	e.together(16, func(i int) {
		seq, err := e.at(i).Append(e.ctx, stream, id, fmt.Append(nil, i), time.Hour)
		mu.Lock()
		defer mu.Unlock()
		switch {
		case err == nil:
			winners = append(winners, seq)
		case errors.Is(err, store.ErrDuplicate):
			duplicates = append(duplicates, seq)
		default:
			e.Errorf("Append: %v", err)
		}
	})
	if len(winners) != 1 {
		e.Fatalf("%d of 16 callers appended the same id, want 1", len(winners))
	}
	for _, seq := range duplicates {
		same(e, "position of the duplicate", seq, winners[0])
	}
}

func testEmptyID(e *env) {
	a, b, c := e.append("s", "", "x", 0), e.append("s", "", "x", 0), e.append("s", "", "x", time.Hour)
	e.holds("s", a, b, c)
}

func testForgottenByAck(e *env) {
	first := e.append("s", "id", "one", 0)
	e.requireKnown("s", "id", first)
	e.ack("s", first)
	second := e.append("s", "id", "two", 0)
	if second <= first {
		e.Errorf("position %d after %d", second, first)
	}
	e.requireKnown("s", "id", second)
	e.ack("s", first) // does not affect the second
	e.requireKnown("s", "id", second)
	e.holds("s", second)
}

func testKnownAfterAck(e *env) {
	var seq uint64
	e.lives("id of an acknowledged record", e.TTL, func() {
		seq = e.append("s", "id", "one", e.TTL)
		e.ack("s", seq)
	}, func() bool {
		e.holds("s")
		return e.isKnown("s", "id", seq)
	})
}

// isKnown reports whether the stream knows id as that of the record at seq. It leaves no record in
// the stream.
func (e *env) isKnown(stream, id string, seq uint64) bool {
	e.Helper()
	got, err := e.s.Append(e.ctx, stream, id, nil, 0)
	if errors.Is(err, store.ErrDuplicate) {
		same(e, "position of a known id", got, seq)
		return true
	}
	e.no("Append", err)
	if got <= seq {
		e.Errorf("position %d after %d", got, seq)
	}
	e.ack(stream, got)
	return false
}

func testForgottenByExpiry(e *env) {
	var seq uint64
	e.lives("id of a record", e.TTL, func() { seq = e.append("s", "id", "one", e.TTL) }, func() bool { return e.isKnown("s", "id", seq) })
	e.holds("s")
	e.lives("id used again", e.TTL, func() { seq = e.append("s", "id", "two", e.TTL) }, func() bool { return e.isKnown("s", "id", seq) })
	e.holds("s")
}

func testForgottenRace(e *env) {
	for i := range 8 {
		e.append("s", fmt.Sprint("id-", i), "old", e.TTL)
	}
	e.outlive(e.TTL)
	for i := range 8 {
		e.oneAppends("s", fmt.Sprint("id-", i))
	}
}

// testTTLOfFirst checks that a duplicate changes nothing.
func testTTLOfFirst(e *env) {
	var seq uint64
	e.lives("record with duplicates of longer ttl", e.TTL, func() { seq = e.append("s", "id", "one", e.TTL) }, func() bool {
		if !e.isRead("s", seq) {
			return false
		}
		got, err := e.s.Append(e.ctx, "s", "id", nil, e.Patience)
		if err == nil { // expired since it was read
			e.ack("s", got)
			return false
		}
		e.is("Append of a known id", err, store.ErrDuplicate)
		return true
	})
}

func testExpireIDs(e *env) {
	live, acked, mortal := e.append("s", "live", "x", 0), e.append("s", "acked", "x", e.Patience), e.append("s", "mortal", "x", time.Hour)
	e.ack("s", acked)
	e.requireKnown("s", "live", live)
	e.requireKnown("s", "acked", acked)
	e.requireKnown("s", "mortal", mortal)
	e.expire("s", 0)
	e.holds("s")
	for id, old := range map[string]uint64{"live": live, "acked": acked, "mortal": mortal} {
		if e.isKnown("s", id, old) {
			e.Errorf("id %q is known after Expire with ttl 0", id)
		}
	}

	// A record that got a ttl from Expire is one with a ttl.
	called := time.Now()
	seq := e.append("s", "given", "x", 0)
	e.expire("s", e.TTL)
	e.ack("s", seq)
	if !e.isKnown("s", "given", seq) && time.Since(called) < e.TTL-e.Tolerance {
		e.Error("id of a record that Expire gave a ttl is forgotten by Ack")
	}
}

func testExpireIDsLater(e *env) {
	acked := e.append("shorter", "id", "x", e.Patience)
	e.ack("shorter", acked)
	e.lives("id given a shorter ttl by Expire", e.TTL, func() { e.expire("shorter", e.TTL) }, func() bool { return e.isKnown("shorter", "id", acked) })

	called := time.Now()
	acked = e.append("longer", "id", "x", e.TTL)
	e.ack("longer", acked)
	e.expire("longer", e.Patience)
	if time.Since(called) >= e.TTL-e.Tolerance {
		e.Skip("too slow for the TTL")
	}
	e.outlive(e.TTL)
	e.requireKnown("longer", "id", acked)

	// Nothing that has expired comes back.
	expired := e.append("gone", "id", "x", e.TTL)
	stays := e.append("gone", "", "x", 0)
	e.outlive(e.TTL)
	e.expire("gone", e.Patience)
	e.holds("gone", stays)
	if e.isKnown("gone", "id", expired) {
		e.Error("Expire brought back an expired id")
	}
}

// testExpireWhileAcked: whichever comes first, an id is not known when a record
// was acknowledged and all was ended.
func testExpireWhileAcked(e *env) {
	for round := range rounds(40) {
		stream := fmt.Sprint("s-", round)
		var seqs []uint64
		for i := range 3 {
			seqs = append(seqs, e.append(stream, fmt.Sprint("id-", i), "x", time.Hour))
		}
		e.together(len(seqs)+1, func(i int) {
			err := error(nil)
			if i < len(seqs) {
				err = e.at(i).Ack(e.ctx, stream, seqs[i])
			} else {
				err = e.at(i).Expire(e.ctx, stream, 0)
			}
			if err != nil {
				e.Errorf("Ack or Expire: %v", err)
			}
		})
		e.holds(stream)
		for i, seq := range seqs {
			if e.isKnown(stream, fmt.Sprint("id-", i), seq) {
				e.Fatalf("round %d: id of a record is known after Ack and Expire", round)
			}
		}
	}
}

// testExpireWhileUsedAgain: of a record and its id, which was in use before, not
// one goes without the other.
func testExpireWhileUsedAgain(e *env) {
	n := rounds(40)
	name := func(i int) string { return fmt.Sprint("s-", i) }
	e.together(n, func(i int) {
		if _, err := e.s.Append(e.ctx, name(i), "id", nil, time.Millisecond); err != nil {
			e.Errorf("Append: %v", err)
		}
	})
	e.outlive(time.Millisecond)
	for i := range n {
		var seq uint64
		e.together(2, func(who int) {
			err := error(nil)
			if who == 0 {
				seq, err = e.s.Append(e.ctx, name(i), "id", nil, time.Hour)
			} else {
				err = e.peer.Expire(e.ctx, name(i), 0)
			}
			if err != nil {
				e.Errorf("Append or Expire: %v", err)
			}
		})
		if is := e.isRead(name(i), seq); e.isKnown(name(i), "id", seq) != is {
			e.Fatalf("stream %d: record exists: %v, and its id is known: %v", i, is, !is)
		}
	}
}
