// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package storetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/fivewire/fivewire/store"
)

var listTests = []test{
	{"Prefix", testListPrefix},
	{"Entries", testListEntries},
	{"Many", testListMany},
	{"LongPrefix", testListLongPrefix},
	{"BigValues", testListBigValues},
	{"Break", testListBreak},
	{"CallsInside", testListCallsInside},
	{"WhileWriting", testListWhileWriting},
}

func testListPrefix(e *env) {
	sameAll(e, "List of an empty store", e.keys(""), nil)
	all := []string{
		"A", "B", "a", "a ", "a%", "a%b", "a.", "a.b", "a/", "a/b", "a/b/c", "a0", "aA", "a_", "a_b", "aa", "aab", "ab",
		"a\u00e9", "a\ud7ff", "a\ue000", "a\ufffd", "a\U00010000", "a\U0010ffff", "a\U0010ffffb", "b", "\U0010ffff", "\U0010ffff\U0010ffff",
	}
	slices.Sort(all)
	for i := range all {
		e.create(all[(i*11)%len(all)], "x", 0) // 11 and the number of keys have no common factor
	}
	for _, prefix := range append([]string{
		"", "a/b/", "a/b/c/", "A", "AA", "*", "%", "_", "a*", "a%b%", "a\U0010fffe", "zz", "c", "\U0010ffff\U0010ffff\U0010ffff",
	}, all...) {
		var want []string
		for _, key := range all {
			if strings.HasPrefix(key, prefix) {
				want = append(want, key)
			}
		}
		if got := e.keys(prefix); !slices.Equal(got, want) {
			e.Errorf("List of %q: got %q, want %q", prefix, got, want)
		}
	}
}

func testListEntries(e *env) {
	called := time.Now()
	one := e.create("k/1", "one", 0)
	two := e.create("k/2", "two", time.Hour)
	returned := time.Now()
	one = e.update("k/1", "uno", one, 0)
	entries := e.list("k/")
	if len(entries) != 2 {
		e.Fatalf("List yields %d entries, want 2", len(entries))
	}
	same(e, "key", entries[0].Key, "k/1")
	same(e, "value", string(entries[0].Value), "uno")
	same(e, "revision", entries[0].Revision, one)
	e.expiresAt("entry", entries[0].Expires, called, returned, 0)
	same(e, "key", entries[1].Key, "k/2")
	same(e, "value", string(entries[1].Value), "two")
	same(e, "revision", entries[1].Revision, two)
	e.expiresAt("entry", entries[1].Expires, called, returned, time.Hour)
}

func testListMany(e *env) {
	n := rounds(2000)
	var want, all []string
	for i := range n {
		want = append(want, fmt.Sprintf("many/%06d", i))
		all = append(all, fmt.Sprintf("many/%06d", (i*7919)%n), fmt.Sprintf("neighbour/%06d", i)) // 7919 is prime and no divisor of n
	}
	e.createAll(all)
	sameAll(e, "List", e.keys("many/"), want)
	same(e, "length of the whole", len(e.keys("")), 2*n)
	e.together(8, func(caller int) {
		for i := caller; i < n; i += 8 {
			if i%3 == 0 {
				continue
			}
			if err := e.s.Delete(e.ctx, want[i], 0); err != nil {
				e.Errorf("Delete: %v", err)
			}
		}
	})
	var left []string
	for i := 0; i < n; i += 3 {
		left = append(left, want[i])
	}
	sameAll(e, "List after deletions", e.keys("many/"), left)
}

// testListLongPrefix lists by prefixes as long as keys get, of letters whose
// successor is easily got wrong, among neighbours on both sides.
func testListLongPrefix(e *env) {
	longest := store.MaxKey - e.behind
	var all []string
	for _, letter := range []string{"a", "\x7f", "\u07ff", "\ud7ff", "\ue000", "\uffff", "\U0010ffff"} {
		long := strings.Repeat(letter, (longest-1)/len(letter))
		all = append(all, letter, long, long+"z", long[:len(long)-len(letter)], long[:len(long)-len(letter)]+"\x01")
	}
	e.createAll(all)
	slices.Sort(all)
	for _, prefix := range all {
		var want []string
		for _, key := range all {
			if strings.HasPrefix(key, prefix) {
				want = append(want, key)
			}
		}
		if got := e.keys(prefix); !slices.Equal(got, want) {
			e.Errorf("List of a prefix of %d bytes that begins with %q: %d keys, want %d", len(prefix), short(prefix), len(got), len(want))
		}
	}
}

// testListBigValues: a page of entries must not be a page of memory of any size,
// nor end the list where it does.
func testListBigValues(e *env) {
	size := min(e.MaxValue, 512<<10)
	value := make([]byte, size)
	var want []string
	for i := range 30 {
		key := fmt.Sprintf("k/%02d", i)
		want = append(want, key)
		if i%3 == 2 {
			e.create(key, "small", 0)
			continue
		}
		_, err := e.s.Create(e.ctx, key, value, 0)
		e.no("Create", err)
	}
	var got []string
	for entry, err := range e.s.List(e.ctx, "k/") {
		e.no("List", err)
		got = append(got, entry.Key)
		if n := len(entry.Value); n != size && n != len("small") {
			e.Errorf("value of %d bytes, want %d", n, size)
		}
	}
	sameAll(e, "List of big values", got, want)
}

func testListBreak(e *env) {
	for i := range 10 {
		e.create(fmt.Sprint("key-", i), "x", 0)
	}
	for range 20 { // what a loop left early keeps open would run out
		n := 0
		for _, err := range e.s.List(e.ctx, "key-") {
			e.no("List", err)
			if n++; n == 3 {
				break
			}
		}
		same(e, "entries before the break", n, 3)
	}
	e.create("after", "x", 0)
}

// testListCallsInside would hang in an engine that holds a lock or its only
// connection while the loop runs.
func testListCallsInside(e *env) {
	for i := range 20 {
		e.create(fmt.Sprintf("key-%02d", i), "old", 0)
	}
	var seen []string
	for entry, err := range e.s.List(e.ctx, "key-") {
		e.no("List", err)
		seen = append(seen, entry.Key)
		switch len(seen) % 4 {
		case 0:
			e.delete(entry.Key, entry.Revision)
		case 1:
			e.update(entry.Key, "new", entry.Revision, 0)
		case 2:
			e.create("other-"+entry.Key, "x", 0)
			e.append("stream", "", "x", 0)
		case 3:
			e.get(entry.Key)
			for _, err := range e.s.List(e.ctx, "key-1") {
				e.no("List in a List", err)
			}
		}
	}
	same(e, "entries seen", len(seen), 20)
	same(e, "entries left", len(e.keys("key-")), 15)
	same(e, "entries added", len(e.keys("other-")), 5)
}

// testListWhileWriting lists permanent keys among others that are created and deleted concurrently.
func testListWhileWriting(e *env) {
	n := rounds(400)
	var stable []string
	for i := range n {
		stable = append(stable, fmt.Sprintf("k/%05d", i*2))
	}
	e.createAll(stable)
	ctx, stop := context.WithCancel(e.ctx)
	var listed atomic.Int32
	e.together(4, func(i int) {
		s := e.at(i)
		if i < 2 { // writes until the others have listed enough
			for round := 0; ctx.Err() == nil; round++ {
				passing := fmt.Sprintf("k/%05d", (round*37+i)%n*2+1)
				_, err := s.Create(e.ctx, passing, nil, 0)
				if err != nil && !errors.Is(err, store.ErrExists) {
					e.Errorf("Create: %v", err)
				}
				if err := s.Delete(e.ctx, fmt.Sprintf("k/%05d", (round*53+i)%n*2+1), 0); err != nil {
					e.Errorf("Delete: %v", err)
				}
				changing := stable[(round*41+i)%n]
				entry, err := s.Get(e.ctx, changing)
				if err != nil {
					e.Errorf("Get: %v", err)
					return
				}
				_, err = s.Update(e.ctx, changing, fmt.Append(nil, round), entry.Revision, 0)
				if err != nil && !errors.Is(err, store.ErrConflict) {
					e.Errorf("Update: %v", err)
				}
				time.Sleep(time.Nanosecond) // lets other calls run in between, and virtual time pass
			}
			return
		}
		for range 10 {
			var got []string
			last := ""
			for entry, err := range s.List(e.ctx, "k/") {
				if err != nil {
					e.Errorf("List: %v", err)
					break
				}
				if entry.Key <= last {
					e.Errorf("List yields %q after %q", entry.Key, last)
				}
				if last = entry.Key; (entry.Key[len(entry.Key)-1]-'0')%2 == 0 {
					got = append(got, entry.Key)
					if len(entry.Value) == 0 || entry.Revision == 0 {
						e.Errorf("List yields %q with value %q and revision %d", entry.Key, entry.Value, entry.Revision)
					}
				}
			}
			if !slices.Equal(got, stable) {
				e.Errorf("List while others write yields %d of the %d keys that stay", len(got), len(stable))
			}
		}
		if listed.Add(1) == 2 {
			stop()
		}
	})
	stop()
}
