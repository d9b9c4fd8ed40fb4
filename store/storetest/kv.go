// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package storetest

import (
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fivewire/fivewire/store"
)

var kvTests = []test{
	{"CreateGet", testCreateGet},
	{"CreateRace", testCreateRace},
	{"Update", testUpdate},
	{"UpdateRace", testUpdateRace},
	{"Counter", testCounter},
	{"Delete", testDelete},
	{"DeleteRace", testDeleteRace},
	{"Revisions", testRevisions},
	{"Expiry", testExpiry},
	{"ExpiredIsAbsent", testExpiredIsAbsent},
	{"ExpiredRace", testExpiredRace},
	{"UpdateTTL", testUpdateTTL},
}

func testCreateGet(e *env) {
	e.absent("a")
	rev := e.create("a", "one", 0)
	e.has("a", "one", rev)
	if at := e.get("a").Expires; !at.IsZero() {
		e.Errorf("entry without ttl expires %v", at)
	}
	_, err := e.s.Create(e.ctx, "a", []byte("two"), time.Hour)
	e.is("Create of a present key", err, store.ErrExists)
	e.has("a", "one", rev)
	e.absent("b")

	called := time.Now()
	e.create("b", "mortal", time.Hour)
	e.expiresAt("entry", e.get("b").Expires, called, time.Now(), time.Hour)
}

func testCreateRace(e *env) {
	for round := range rounds(40) {
		key := fmt.Sprint("key-", round)
		e.oneCreates(key)
	}
}

// oneCreates lets many create key, which is absent, at once.
func (e *env) oneCreates(key string) {
	e.Helper()
	var winners atomic.Int32
	var value string
	var revision store.Revision
	e.together(16, func(i int) {
		mine := fmt.Sprint("value-", i)
		rev, err := e.at(i).Create(e.ctx, key, []byte(mine), 0)
		switch {
		case err == nil && winners.Add(1) == 1:
			value, revision = mine, rev
		case err != nil && !errors.Is(err, store.ErrExists):
			e.Errorf("Create: %v", err)
		}
	})
	if n := winners.Load(); n != 1 {
		e.Fatalf("%d of 16 callers created the same key, want 1", n)
	}
	e.has(key, value, revision)
}

func testUpdate(e *env) {
	_, err := e.s.Update(e.ctx, "a", []byte("x"), 1, 0)
	e.is("Update of an absent key", err, store.ErrNotFound)
	_, err = e.s.Update(e.ctx, "a", []byte("x"), 0, 0)
	e.is("Update of an absent key at revision zero", err, store.ErrNotFound)
	e.absent("a")

	first := e.create("a", "one", 0)
	second := e.update("a", "two", first, 0)
	if first == second {
		e.Error("Update returned the revision it replaced")
	}
	e.has("a", "two", second)

	_, err = e.s.Update(e.ctx, "a", []byte("x"), first, 0)
	e.is("Update at an old revision", err, store.ErrConflict)
	_, err = e.s.Update(e.ctx, "a", []byte("x"), 0, 0)
	e.is("Update at revision zero", err, store.ErrConflict)
	_, err = e.s.Update(e.ctx, "a", []byte("x"), second+1_000_000, 0)
	e.is("Update at a revision to come", err, store.ErrConflict)
	e.has("a", "two", second)

	third := e.update("a", "two", second, 0)
	if third == second {
		e.Error("Update with an equal value kept the revision")
	}
	other := e.create("b", "one", 0)
	e.update("b", "two", other, 0)
	e.has("a", "two", third)
}

func testUpdateRace(e *env) {
	rev := e.create("a", "start", 0)
	for range rounds(40) {
		var mu sync.Mutex
		var next []store.Revision
		var value string
		e.together(16, func(i int) {
			mine := fmt.Sprint("value-", i)
			got, err := e.at(i).Update(e.ctx, "a", []byte(mine), rev, 0)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil:
				next = append(next, got)
				value = mine
			case !errors.Is(err, store.ErrConflict):
				e.Errorf("Update: %v", err)
			}
		})
		if len(next) != 1 {
			e.Fatalf("%d of 16 callers updated the same revision, want 1", len(next))
		}
		rev = next[0]
		e.has("a", value, rev)
	}
}

// testCounter counts with many hands: a lost update is a lost count.
func testCounter(e *env) {
	const callers = 8
	each := rounds(40)
	e.create("n", "0", 0)
	var revisions sync.Map
	e.together(callers, func(i int) {
		for done, tries := 0, 0; done < each; tries++ {
			if tries > callers*each { // each vain one is the success of another
				e.Error("Update at the current revision keeps failing")
				return
			}
			entry, err := e.at(i).Get(e.ctx, "n")
			if err != nil {
				e.Errorf("Get: %v", err)
				return
			}
			n, err := strconv.Atoi(string(entry.Value))
			if err != nil {
				e.Errorf("value: %v", err)
				return
			}
			rev, err := e.at(i).Update(e.ctx, "n", []byte(strconv.Itoa(n+1)), entry.Revision, 0)
			switch {
			case err == nil:
				if _, twice := revisions.LoadOrStore(rev, true); twice {
					e.Errorf("revision %d came twice", rev)
				}
				done++
			case !errors.Is(err, store.ErrConflict):
				e.Errorf("Update: %v", err)
				return
			}
		}
	})
	same(e, "count", string(e.get("n").Value), strconv.Itoa(callers*each))
}

func testDelete(e *env) {
	e.delete("a", 0)
	e.delete("a", 7)

	first := e.create("a", "one", 0)
	second := e.update("a", "two", first, 0)
	e.is("Delete at an old revision", e.s.Delete(e.ctx, "a", first), store.ErrConflict)
	e.has("a", "two", second)
	e.create("b", "other", 0)
	e.delete("a", second)
	e.absent("a")
	_, err := e.s.Update(e.ctx, "a", []byte("x"), second, 0)
	e.is("Update of a deleted key", err, store.ErrNotFound)
	e.delete("a", second)

	e.create("a", "three", 0)
	e.delete("a", 0)
	e.absent("a")
	sameAll(e, "what is left", e.keys(""), []string{"b"})
}

func testDeleteRace(e *env) {
	for round := range rounds(40) {
		key := fmt.Sprint("key-", round)
		rev := e.create(key, "start", 0)
		var updated, deleted atomic.Int32
		e.together(8, func(i int) {
			if i%4 < 2 {
				switch err := e.at(i).Delete(e.ctx, key, rev); {
				case err == nil:
					deleted.Add(1)
				case !errors.Is(err, store.ErrConflict):
					e.Errorf("Delete: %v", err)
				}
				return
			}
			switch _, err := e.at(i).Update(e.ctx, key, []byte("changed"), rev, 0); {
			case err == nil:
				updated.Add(1)
			case !errors.Is(err, store.ErrConflict) && !errors.Is(err, store.ErrNotFound):
				e.Errorf("Update: %v", err)
			}
		})
		// Of several Deletes all may succeed, since the later find nothing.
		if u, d := updated.Load(), deleted.Load(); u > 1 || (u == 1) == (d > 0) {
			e.Fatalf("of one revision %d were updated and %d deleted, want one update or only deletions", u, d)
		}
		same(e, "key is there", e.isThere(key)(), updated.Load() == 1)
	}
}

// testRevisions checks that no revision is used twice, so that a caller with an old revision cannot
// change a newer key.
func testRevisions(e *env) {
	seen := map[store.Revision]bool{}
	note := func(rev store.Revision) store.Revision {
		e.Helper()
		if seen[rev] {
			e.Fatalf("revision %d came twice", rev)
		}
		seen[rev] = true
		return rev
	}
	var old store.Revision
	for i := range 10 {
		rev := note(e.create("a", "one", 0))
		if i > 0 {
			_, err := e.s.Update(e.ctx, "a", []byte("x"), old, 0)
			e.is("Update at a revision before the deletion", err, store.ErrConflict)
			e.is("Delete at a revision before the deletion", e.s.Delete(e.ctx, "a", old), store.ErrConflict)
			e.has("a", "one", rev)
		}
		old = rev
		if i%2 == 0 {
			old = note(e.update("a", "two", rev, 0))
		}
		e.delete("a", old)
	}
	note(e.create("a", "mortal", e.TTL))
	e.outlive(e.TTL)
	note(e.create("a", "again", 0))
}

func testExpiry(e *env) {
	e.create("for ever", "x", 0)
	e.create("for long", "x", e.Patience)
	e.lives("created key", e.TTL, func() { e.create("a", "one", e.TTL) }, e.isThere("a"))
	e.lives("created key in a list", e.TTL, func() { e.create("b", "one", e.TTL) }, func() bool { return len(e.list("b")) > 0 })
	e.lives("key created when expired", e.TTL, func() { e.create("a", "two", e.TTL) }, e.isThere("a"))
	sameAll(e, "what is left", e.keys(""), []string{"for ever", "for long"})
}

func testExpiredIsAbsent(e *env) {
	var revs []store.Revision
	for _, key := range []string{"a", "b", "c"} {
		revs = append(revs, e.create(key, "one", e.TTL))
	}
	e.outlive(e.TTL)
	e.absent("a")
	_, err := e.s.Update(e.ctx, "a", []byte("x"), revs[0], 0)
	e.is("Update of an expired key", err, store.ErrNotFound)
	e.delete("b", revs[1])
	e.delete("b", revs[1]+1_000_000)
	sameAll(e, "List", e.keys(""), nil)
	e.has("c", "two", e.create("c", "two", 0))
}

func testExpiredRace(e *env) {
	const keys = 8
	for i := range keys {
		e.create(fmt.Sprint("key-", i), "old", e.TTL)
	}
	e.outlive(e.TTL)
	for i := range keys {
		e.oneCreates(fmt.Sprint("key-", i))
	}
}

func testUpdateTTL(e *env) {
	var rev store.Revision
	e.lives("key given a ttl by Update", e.TTL, func() {
		rev = e.update("a", "two", e.create("a", "one", 0), e.TTL)
	}, e.isThere("a"))

	rev = e.create("a", "one", e.Patience)
	e.lives("key given a shorter ttl by Update", e.TTL, func() { e.update("a", "two", rev, e.TTL) }, e.isThere("a"))

	// Two at once, one second of waiting for both.
	called := time.Now()
	long := e.create("long", "one", e.TTL)
	ever := e.create("ever", "one", e.TTL)
	_, err := e.s.Update(e.ctx, "long", []byte("two"), long, e.Patience)
	_, err2 := e.s.Update(e.ctx, "ever", []byte("two"), ever, 0)
	if err = errors.Join(err, err2); err != nil {
		// On a slow machine the keys may have expired by now.
		if time.Since(called) < e.TTL-e.Tolerance {
			e.Fatalf("Update: %v", err)
		}
		e.Skip("too slow for the TTL")
	}
	e.expiresAt("entry given a longer ttl", e.get("long").Expires, called, time.Now(), e.Patience)
	e.expiresAt("entry whose ttl was taken away", e.get("ever").Expires, called, time.Now(), 0)
	e.outlive(e.TTL)
	same(e, "value of the key given a longer ttl", string(e.get("long").Value), "two")
	same(e, "value of the key whose ttl was taken away", string(e.get("ever").Value), "two")
}
