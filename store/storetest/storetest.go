// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package storetest is the test suite that every engine of package store passes. The author of an
// engine calls it from a test:
//
//	func TestEngine(t *testing.T) {
//		storetest.Run(t, func(t *testing.T) store.Store {
//			s, err := Open(t.TempDir())
//			if err != nil {
//				t.Fatal(err)
//			}
//			t.Cleanup(func() { s.Close() })
//			return s
//		})
//	}
//
// A [Suite] describes more of the engine, and so has more tested: that data survives, that several
// processes share it, that time is exact.
//
// The suite sleeps to let time pass and to let faults occur, never to decide: a required event is
// awaited for up to [Suite.Patience], and a premature event is judged by a clock read before and
// after the call.
package storetest

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fivewire/fivewire/store"
)

// A Suite is the test suite with the properties of the engine. The zero value is right for an
// engine that neither survives its process nor is shared.
type Suite struct {
	// Virtual is for an engine that lives in this process alone, with no I/O
	// and with the clock of package time: every test runs in a bubble of
	// testing/synctest, where waiting takes no time and expiry is exact.
	Virtual bool

	// TTL is the short time to live of entries that the suite lets expire. Zero means 500 ms.
	TTL time.Duration

	// Tolerance is how much earlier or later than asked something may expire.
	// It must be well below TTL. Zero means 50 ms, or nothing if Virtual.
	Tolerance time.Duration

	// Patience is how long one test waits for a required event, and the time to live of entries
	// that must not expire during a test. Zero means one minute, or 20 times TTL if that is more.
	Patience time.Duration

	// MaxValue is the longest value that the engine accepts, in bytes, if its
	// documentation says less than store.MaxValue, which is what zero means.
	MaxValue int

	// Seed is where the random part starts from; a failure prints it. Zero
	// means a new one every time.
	Seed uint64

	// Peer opens the data of s a second time, as another process would. The
	// tests of races then use both. Nil means that an engine is not shared.
	Peer func(t *testing.T, s store.Store) store.Store

	// Reopen ends s as the end of its process would, and opens its data again. Nil means that no
	// data survives, and that is not tested then.
	Reopen func(t *testing.T, s store.Store) store.Store

	// Damage copies the data of s, changes one bit of each occurrence of value in the copy, and opens
	// the copy until the end of the test. Nil means that damage is not tested.
	Damage func(t *testing.T, s store.Store, value []byte) (store.Store, error)

	// behind is how many bytes the store puts before each key and stream name.
	behind int
}

// Run tests the engine that open returns with the zero [Suite]. Each test opens a separate, empty
// store; open registers t.Cleanup for everything to close.
func Run(t *testing.T, open func(t *testing.T) store.Store) {
	t.Helper()
	Suite{}.Run(t, open)
}

// Run tests the engine that open returns, as the function [Run] does.
func (s Suite) Run(t *testing.T, open func(t *testing.T) store.Store) {
	t.Helper()
	if s.TTL == 0 {
		s.TTL = 500 * time.Millisecond
	}
	if s.Tolerance == 0 && !s.Virtual {
		s.Tolerance = 50 * time.Millisecond
	}
	if s.Patience == 0 {
		s.Patience = max(time.Minute, 20*s.TTL)
	}
	if s.MaxValue == 0 {
		s.MaxValue = store.MaxValue
	}
	if s.Seed == 0 {
		s.Seed = rand.Uint64()
	}
	for _, group := range []struct {
		name  string
		tests []test
	}{
		{"KV", kvTests},
		{"List", listTests},
		{"Log", logTests},
		{"IDs", idTests},
		{"Wait", waitTests},
		{"Values", valueTests},
		{"Limits", limitTests},
		{"Context", contextTests},
		{"Sub", subTests},
		{"Model", modelTests},
		{"Reopen", reopenTests},
		{"Damage", damageTests},
	} {
		t.Run(group.name, func(t *testing.T) {
			for _, test := range group.tests {
				t.Run(test.name, func(t *testing.T) { s.run(t, open, test.run) })
			}
		})
	}
}

type test struct {
	name string
	run  func(*env)
}

func (s Suite) run(t *testing.T, open func(t *testing.T) store.Store, run func(*env)) {
	one := func(t *testing.T) {
		// The deadline also ends a call that hangs, and the test reports the missing event.
		ctx, cancel := context.WithTimeout(t.Context(), s.Patience)
		defer cancel()
		e := &env{T: t, Suite: s, ctx: ctx, s: open(t)}
		e.peer = e.s
		if s.Peer != nil {
			e.peer = s.Peer(t, e.s)
		}
		run(e)
	}
	if s.Virtual {
		synctest.Test(t, one)
	} else {
		one(t)
	}
}

// An env is one test: a separate store, and the calls of the store as methods that end the test if
// they fail.
type env struct {
	*testing.T
	Suite
	ctx     context.Context
	s, peer store.Store
}

// at returns a handle for the caller number i of several.
func (e *env) at(i int) store.Store {
	if i%2 == 1 {
		return e.peer
	}
	return e.s
}

// together runs f in n goroutines that begin as much at once as possible, and
// returns when all have ended. They report with Errorf, not with Fatalf.
func (e *env) together(n int, f func(i int)) {
	var wg sync.WaitGroup
	start := make(chan struct{})
	for i := range n {
		wg.Go(func() {
			<-start
			f(i)
		})
	}
	close(start)
	wg.Wait()
}

// rounds is how often a race is tried.
func rounds(n int) int {
	if testing.Short() {
		return max(1, n/4)
	}
	return n
}

// no ends the test if err is not nil.
func (e *env) no(what string, err error) {
	e.Helper()
	if err != nil {
		e.Fatalf("%s: %v", what, err)
	}
}

// is reports an err that is not want.
func (e *env) is(what string, err, want error) {
	e.Helper()
	if !errors.Is(err, want) {
		e.Errorf("%s: got error %v, want %v", what, err, want)
	}
}

// same reports what differs.
func same[T comparable](e *env, what string, got, want T) {
	e.Helper()
	if got != want {
		e.Errorf("%s: got %v, want %v", what, got, want)
	}
}

// sameAll reports lists that differ.
func sameAll[T comparable](e *env, what string, got, want []T) {
	e.Helper()
	if !slices.Equal(got, want) {
		e.Errorf("%s: got %v, want %v", what, got, want)
	}
}

func (e *env) create(key, value string, ttl time.Duration) store.Revision {
	e.Helper()
	rev, err := e.s.Create(e.ctx, key, []byte(value), ttl)
	e.no("Create", err)
	if rev == 0 {
		e.Fatal("Create: revision is zero")
	}
	return rev
}

// createAll creates many keys that do not expire, with several concurrent callers, since an engine
// may wait for a disk at each call.
func (e *env) createAll(keys []string) {
	e.Helper()
	const callers = 16
	e.together(callers, func(i int) {
		for ; i < len(keys); i += callers {
			if _, err := e.s.Create(e.ctx, keys[i], []byte("x"), 0); err != nil {
				e.Errorf("Create: %v", err)
				return
			}
		}
	})
	if e.Failed() {
		e.FailNow()
	}
}

func (e *env) update(key, value string, rev store.Revision, ttl time.Duration) store.Revision {
	e.Helper()
	rev, err := e.s.Update(e.ctx, key, []byte(value), rev, ttl)
	e.no("Update", err)
	if rev == 0 {
		e.Fatal("Update: revision is zero")
	}
	return rev
}

func (e *env) get(key string) store.Entry {
	e.Helper()
	entry, err := e.s.Get(e.ctx, key)
	e.no("Get", err)
	return entry
}

// has checks that key is there with that value and revision.
func (e *env) has(key, value string, rev store.Revision) {
	e.Helper()
	entry := e.get(key)
	same(e, "key of the entry", entry.Key, key)
	same(e, "value of the entry", string(entry.Value), value)
	same(e, "revision of the entry", entry.Revision, rev)
}

// absent checks that the key does not exist.
func (e *env) absent(key string) {
	e.Helper()
	_, err := e.s.Get(e.ctx, key)
	e.is("Get of an absent key", err, store.ErrNotFound)
}

func (e *env) delete(key string, rev store.Revision) {
	e.Helper()
	e.no("Delete", e.s.Delete(e.ctx, key, rev))
}

// list returns the entries that List yields and checks their order.
func (e *env) list(prefix string) []store.Entry {
	e.Helper()
	var entries []store.Entry
	for entry, err := range e.s.List(e.ctx, prefix) {
		e.no("List", err)
		if !strings.HasPrefix(entry.Key, prefix) {
			e.Errorf("List of %q yields %q", prefix, entry.Key)
		}
		if n := len(entries); n > 0 && entries[n-1].Key >= entry.Key {
			e.Errorf("List yields %q after %q", entry.Key, entries[n-1].Key)
		}
		entries = append(entries, entry)
	}
	return entries
}

func (e *env) keys(prefix string) []string {
	e.Helper()
	var keys []string
	for _, entry := range e.list(prefix) {
		keys = append(keys, entry.Key)
	}
	return keys
}

func (e *env) append(stream, id, value string, ttl time.Duration) uint64 {
	e.Helper()
	seq, err := e.s.Append(e.ctx, stream, id, []byte(value), ttl)
	e.no("Append", err)
	if seq == 0 {
		e.Fatal("Append: position is zero")
	}
	return seq
}

// requireKnown checks that the stream still knows id, as that of the record at seq.
func (e *env) requireKnown(stream, id string, seq uint64) {
	e.Helper()
	got, err := e.s.Append(e.ctx, stream, id, []byte("a duplicate"), 0)
	e.is("Append of a known id", err, store.ErrDuplicate)
	same(e, "position of a known id", got, seq)
}

func (e *env) read(stream string, after uint64, limit int) []store.Record {
	e.Helper()
	records, err := e.s.Read(e.ctx, stream, after, limit)
	e.no("Read", err)
	last := after
	for _, r := range records {
		if r.Seq <= last {
			e.Fatalf("Read after %d: position %d follows %d", after, r.Seq, last)
		}
		last = r.Seq
	}
	return records
}

// first returns the first record of a stream that has one.
func (e *env) first(stream string) store.Record {
	e.Helper()
	records := e.read(stream, 0, 1)
	if len(records) != 1 {
		e.Fatalf("Read with limit 1 returns %d records, want 1", len(records))
	}
	return records[0]
}

// holds checks the positions of all records of a stream.
func (e *env) holds(stream string, want ...uint64) {
	e.Helper()
	var got []uint64
	for _, r := range e.read(stream, 0, 10_000) {
		got = append(got, r.Seq)
	}
	sameAll(e, "positions in the stream", got, want)
}

func (e *env) ack(stream string, seqs ...uint64) {
	e.Helper()
	e.no("Ack", e.s.Ack(e.ctx, stream, seqs...))
}

func (e *env) expire(stream string, ttl time.Duration) {
	e.Helper()
	e.no("Expire", e.s.Expire(e.ctx, stream, ttl))
}

// lives checks that an entry that act creates with a ttl exists until its expiry and not
// afterwards. The engine acted between the call and the return of act, and read between those of
// there.
func (e *env) lives(what string, ttl time.Duration, act func(), there func() bool) {
	e.Helper()
	called := time.Now()
	act()
	returned := time.Now()
	for {
		sent := time.Now()
		is := there()
		answered := time.Now()
		switch early, late := called.Add(ttl-e.Tolerance), returned.Add(ttl+e.Tolerance); {
		case is && sent.After(late):
			e.Errorf("%s: still there %v after it was given %v", what, sent.Sub(returned), ttl)
			return
		case !is && answered.Before(early):
			e.Errorf("%s: gone within %v after it was given %v", what, answered.Sub(called), ttl)
			return
		case !is:
			return
		}
		// The moments just before and after the expiry detect most faults.
		switch left := time.Until(called.Add(ttl)); {
		case left == 1:
			time.Sleep(2 * time.Nanosecond)
		case left > 1:
			time.Sleep(min(ttl/10, left-1))
		default:
			time.Sleep(ttl / 10)
		}
	}
}

// isThere returns a function that reports whether Get finds key.
func (e *env) isThere(key string) func() bool {
	return func() bool {
		_, err := e.s.Get(e.ctx, key)
		if !errors.Is(err, store.ErrNotFound) {
			e.no("Get", err)
		}
		return err == nil
	}
}

// isRead reports whether Read finds the position.
func (e *env) isRead(stream string, seq uint64) bool {
	return slices.ContainsFunc(e.read(stream, 0, 1000), func(r store.Record) bool { return r.Seq == seq })
}

// outlive waits until every entry that was given ttl before has expired.
func (e *env) outlive(ttl time.Duration) { time.Sleep(ttl + e.Tolerance + 1) }

// expiresAt checks the expiry of an entry that was given ttl between two moments.
func (e *env) expiresAt(what string, got, called, returned time.Time, ttl time.Duration) {
	e.Helper()
	if ttl != 0 {
		e.near(what+" expires", got, called.Add(ttl), returned.Add(ttl))
	} else if !got.IsZero() {
		e.Errorf("%s: expires %v, want never", what, got)
	}
}

// near checks a moment by the clock of the engine.
func (e *env) near(what string, got, from, to time.Time) {
	e.Helper()
	slack := e.slack()
	if got.Before(from.Add(-slack)) || got.After(to.Add(slack)) {
		e.Errorf("%s %v, want %v", what, got, from)
	}
}

// isNear reports whether an expiry is the wanted one, about.
func (e *env) isNear(got, want time.Time) bool {
	return got.IsZero() == want.IsZero() && got.Sub(want).Abs() <= e.slack()
}

// slack is the tolerance of a moment. The clock of a server may differ from the local one by more than the tolerance; then a
// check only excludes nonsense.
func (e *env) slack() time.Duration {
	if e.Virtual {
		return e.Tolerance
	}
	return e.Tolerance + 5*time.Minute
}

// moment gives other goroutines the time to come to where they wait. Nothing
// depends on their having done so.
func (e *env) moment() {
	if e.Virtual {
		synctest.Wait()
	} else {
		time.Sleep(20 * time.Millisecond)
	}
}
