// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package storetest

import (
	"fmt"
	"time"

	"github.com/fivewire/fivewire/store"
)

var reopenTests = []test{
	{"KV", testReopenKV},
	{"Log", testReopenLog},
	{"Expiry", testReopenExpiry},
	{"Again", testReopenAgain},
}

// reopen ends the store and opens it again.
func (e *env) reopen() {
	e.Helper()
	if e.Reopen == nil {
		e.Skip("nothing survives")
	}
	e.s = e.Reopen(e.T, e.s)
	e.peer = e.s
}

func testReopenKV(e *env) {
	called := time.Now()
	first := e.create("kept", "one", 0)
	kept := first
	for range 5 { // so that a restarted counter has not reached this position
		kept = e.update("kept", "two", kept, 0)
	}
	e.create("mortal", "x", time.Hour)
	deleted := e.create("gone", "x", 0)
	e.delete("gone", deleted)
	e.create("big", string(make([]byte, min(1<<20, e.MaxValue))), 0)
	e.reopen()

	e.has("kept", "two", kept)
	same(e, "value", string(e.get("mortal").Value), "x")
	e.expiresAt("entry", e.get("mortal").Expires, called, time.Now(), time.Hour)
	e.absent("gone")
	same(e, "length of the big value", len(e.get("big").Value), min(1<<20, e.MaxValue))
	sameAll(e, "List", e.keys(""), []string{"big", "kept", "mortal"})
	_, err := e.s.Create(e.ctx, "kept", nil, 0)
	e.is("Create of a present key", err, store.ErrExists)
	if rev := e.create("gone", "again", 0); rev == deleted {
		e.Errorf("revision %d came twice", rev)
	}
	if rev := e.update("kept", "three", kept, 0); rev == kept || rev == first {
		e.Errorf("revision %d came twice", rev)
	}
}

func testReopenLog(e *env) {
	one := e.append("s", "one", "1", 0)
	two := e.append("s", "two", "2", time.Hour)
	three := e.append("s", "three", "3", 0)
	e.ack("s", two, three)
	emptied := e.append("emptied", "", "x", 0)
	e.ack("emptied", emptied)
	expired := e.append("expired", "id", "x", 0)
	e.expire("expired", 0)
	e.reopen()

	e.holds("s", one)
	r := e.first("s")
	same(e, "value", string(r.Value), "1")
	same(e, "id", r.ID, "one")
	e.requireKnown("s", "one", one)
	e.requireKnown("s", "two", two)
	e.no("Wait for what is there", e.wait(e.s, "s", 0))
	for stream, last := range map[string]uint64{"s": three, "emptied": emptied, "expired": expired} {
		if seq := e.append(stream, "three", "x", 0); seq <= last {
			e.Errorf("position %d after %d", seq, last)
		}
	}
	e.append("expired", "id", "x", 0)
	same(e, "records", len(e.read("s", 0, 10)), 2)
}

func testReopenExpiry(e *env) {
	called := time.Now()
	e.create("k", "x", e.TTL)
	e.append("s", "id", "x", e.TTL)
	e.reopen()
	if !e.isThere("k")() && time.Since(called) < e.TTL-e.Tolerance {
		e.Error("key expired early")
	}
	e.outlive(e.TTL)
	e.absent("k")
	e.holds("s")
	e.append("s", "id", "x", 0)
}

// testReopenAgain reopens often, with a reader that continues from its cursor and a counter: no
// number restarts, and no record appears twice.
func testReopenAgain(e *env) {
	var after uint64
	var seqs []uint64
	e.create("n", "0", 0)
	revisions := map[store.Revision]bool{}
	for i := range rounds(8) {
		entry := e.get("n")
		same(e, "count", string(entry.Value), fmt.Sprint(i))
		if revisions[entry.Revision] {
			e.Errorf("revision %d came twice", entry.Revision)
		}
		revisions[entry.Revision] = true
		e.update("n", fmt.Sprint(i+1), entry.Revision, 0)
		seqs = append(seqs, e.append("s", fmt.Sprint("id-", i), "x", time.Hour))
		e.ack("s", e.append("s", "", "gone", 0))
		e.reopen()
		done := e.waits(e.ctx, e.s, "s", after)
		e.wakes("record from before", done)
		records := e.read("s", after, 10)
		if len(records) != 1 || records[0].Seq != seqs[i] {
			e.Fatalf("Read after %d returns %v, want the record at %d", after, records, seqs[i])
		}
		after = records[0].Seq
		e.requireKnown("s", "id-0", seqs[0])
	}
	e.holds("s", seqs...)
}
