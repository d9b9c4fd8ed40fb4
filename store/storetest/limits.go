// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package storetest

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/fivewire/fivewire/store"
)

var limitTests = []test{
	{"Names", testBadNames},
	{"IDs", testBadIDs},
	{"Prefix", testBadPrefix},
	{"Value", testBadValue},
	{"TTL", testBadTTL},
	{"ShortTTL", testShortTTL},
	{"LongTTL", testLongTTL},
	{"Revision", testExtremeRevision},
}

// badTexts are no keys, stream names, ids or prefixes.
func badTexts() []string {
	return []string{
		strings.Repeat("k", store.MaxKey+1), strings.Repeat("k", 1<<16), strings.Repeat("\u00e9", store.MaxKey/2+1),
		"\x00", "a\x00", "a\x00b", "\xff", "a\xff", "\xc3", "\xc3(", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xc0\x80",
	}
}

// A call is one method of a store, with arguments of which one is wrong or
// nothing is.
type call struct {
	name string
	do   func(ctx context.Context, s store.Store) error
}

// byName is every method that takes a key or a stream name.
func byName(name string) []call {
	return []call{
		{"Get", func(ctx context.Context, s store.Store) error { _, err := s.Get(ctx, name); return err }},
		{"Create", func(ctx context.Context, s store.Store) error { _, err := s.Create(ctx, name, nil, 0); return err }},
		{"Update", func(ctx context.Context, s store.Store) error { _, err := s.Update(ctx, name, nil, 1, 0); return err }},
		{"Delete", func(ctx context.Context, s store.Store) error { return s.Delete(ctx, name, 0) }},
		{"Append", func(ctx context.Context, s store.Store) error { _, err := s.Append(ctx, name, "", nil, 0); return err }},
		{"Read", func(ctx context.Context, s store.Store) error { _, err := s.Read(ctx, name, 0, 1); return err }},
		{"Ack", func(ctx context.Context, s store.Store) error { return s.Ack(ctx, name, 1) }},
		{"Wait", func(ctx context.Context, s store.Store) error { return s.Wait(ctx, name, 0) }},
		{"Expire", func(ctx context.Context, s store.Store) error { return s.Expire(ctx, name, 0) }},
	}
}

// listing is List of a prefix; it checks that an error is the last of it.
func listing(e *env, prefix string) call {
	return call{"List", func(ctx context.Context, s store.Store) (err error) {
		for entry, next := range s.List(ctx, prefix) {
			if err != nil {
				e.Errorf("List yields %q, %v after an error", entry.Key, next)
			}
			if err = next; err != nil && (entry.Key != "" || entry.Value != nil || entry.Revision != 0 || !entry.Expires.IsZero()) {
				e.Errorf("List yields %q with an error", entry.Key)
			}
		}
		return err
	}}
}

// refused checks that a call is rejected for its arguments.
func (e *env) refused(what string, c call) {
	e.Helper()
	if err := c.do(e.ctx, e.s); !errors.Is(err, store.ErrInvalid) {
		e.Errorf("%s of %s: got error %v, want %v", c.name, what, err, store.ErrInvalid)
	}
}

// short makes a long text printable.
func short(s string) string {
	if len(s) > 40 {
		return s[:40] + "..."
	}
	return s
}

func testBadNames(e *env) {
	names := badTexts()
	if e.behind == 0 { // else it is not empty
		names = append(names, "")
	}
	for _, name := range names {
		for _, c := range byName(name) {
			if e.refused("the name "+short(name), c); e.ctx.Err() != nil {
				e.Fatalf("%s waited instead", c.name)
			}
		}
	}
	sameAll(e, "what is there", e.keys(""), nil)
}

func testBadIDs(e *env) {
	for _, id := range badTexts() {
		e.refused("the id "+short(id), call{"Append", func(ctx context.Context, s store.Store) error {
			_, err := s.Append(ctx, "s", id, nil, 0)
			return err
		}})
	}
	e.holds("s")
}

func testBadPrefix(e *env) {
	e.create("a", "x", 0)
	for _, prefix := range badTexts() {
		e.refused("the prefix "+short(prefix), listing(e, prefix))
	}
	// A stop at the first keeps an engine from yielding into a loop that ended.
	for _, err := range e.s.List(e.ctx, "\xff") {
		e.is("List of a bad prefix", err, store.ErrInvalid)
		break
	}
}

func testBadValue(e *env) {
	rev := e.create("k", "x", 0)
	value := make([]byte, e.MaxValue+1)
	for _, c := range []call{
		{"Create", func(ctx context.Context, s store.Store) error { _, err := s.Create(ctx, "new", value, 0); return err }},
		{"Create of a present key", func(ctx context.Context, s store.Store) error { _, err := s.Create(ctx, "k", value, 0); return err }},
		{"Update", func(ctx context.Context, s store.Store) error {
			_, err := s.Update(ctx, "k", value, rev, 0)
			return err
		}},
		{"Append", func(ctx context.Context, s store.Store) error {
			_, err := s.Append(ctx, "s", "id", value, 0)
			return err
		}},
	} {
		e.refused("a value that is too long", c)
	}
	e.has("k", "x", rev)
	e.absent("new")
	e.holds("s")
	e.append("s", "id", "not known from the vain attempt", 0)
}

func testBadTTL(e *env) {
	rev := e.create("k", "x", 0)
	seq := e.append("s", "id", "x", 0)
	for _, ttl := range []time.Duration{-1, -time.Hour, -1 << 63} {
		for _, c := range []call{
			{"Create", func(ctx context.Context, s store.Store) error { _, err := s.Create(ctx, "new", nil, ttl); return err }},
			{"Update", func(ctx context.Context, s store.Store) error {
				_, err := s.Update(ctx, "k", nil, rev, ttl)
				return err
			}},
			{"Append", func(ctx context.Context, s store.Store) error {
				_, err := s.Append(ctx, "s", "new", nil, ttl)
				return err
			}},
			{"Expire", func(ctx context.Context, s store.Store) error { return s.Expire(ctx, "s", ttl) }},
		} {
			e.refused("a negative ttl", c)
		}
	}
	e.has("k", "x", rev)
	e.absent("new")
	e.holds("s", seq)

	// The longest ttl means no expiry, and does not wrap around.
	const longest = 1<<63 - 1
	e.has("long", "x", e.create("long", "x", longest))
	last := e.append("s", "long", "x", longest)
	e.holds("s", seq, last)
	e.expire("s", longest)
	e.holds("s", seq, last)
	e.requireKnown("s", "long", last)
	e.create("mortal", "x", e.TTL)
	e.outlive(e.TTL)
	sameAll(e, "List", e.keys(""), []string{"k", "long"})
	e.holds("s", seq, last)
}

// testShortTTL: an entry with the shortest ttl expires, whatever the unit of the engine is.
func testShortTTL(e *env) {
	for _, ttl := range []time.Duration{1, 999, 1001} {
		name := fmt.Sprint("name-", int64(ttl))
		created := e.create("created "+name, "x", ttl)
		updated := e.update("updated "+name, "x", e.create("updated "+name, "x", 0), ttl)
		read, acked := e.append(name, "read", "x", ttl), e.append(name, "acked", "x", ttl)
		e.ack(name, acked)
		other := e.append("ended "+name, "id", "x", 0)
		e.expire("ended "+name, ttl)
		e.outlive(ttl)
		sameAll(e, "List", e.keys(""), nil)
		for key, rev := range map[string]store.Revision{"created " + name: created, "updated " + name: updated} {
			e.absent(key)
			_, err := e.s.Update(e.ctx, key, nil, rev, 0)
			e.is("Update of an expired key", err, store.ErrNotFound)
			e.delete(key, rev)
		}
		e.holds(name)
		e.holds("ended " + name)
		if e.isKnown(name, "read", read) || e.isKnown(name, "acked", acked) || e.isKnown("ended "+name, "id", other) {
			e.Errorf("an id is known after its ttl of %v", ttl)
		}
	}
}

// lastNano is the last moment in nanoseconds since 1970. An engine may count in them, and end there what expires later.
var lastNano = time.Unix(0, math.MaxInt64)

func testLongTTL(e *env) {
	const year = 365 * 24 * time.Hour
	for _, ttl := range []time.Duration{10 * year, 10*year + 1, 68 * year, 100 * year, 290 * year, math.MaxInt64 - 1, math.MaxInt64} {
		name := ttl.String()
		check := func(what string, got, called, returned time.Time) {
			if returned.Add(ttl).Before(lastNano) {
				e.expiresAt(what, got, called, returned, ttl)
			} else if got.Before(lastNano.Add(-e.slack())) {
				e.Errorf("%s with a ttl of %v: expires %v", what, ttl, got)
			}
		}
		called := time.Now()
		e.update(name, "x", e.create(name, "x", ttl), ttl)
		seq := e.append(name, "id", "x", ttl)
		other := e.append("ended "+name, "id", "x", time.Hour)
		e.expire("ended "+name, ttl)
		returned := time.Now()
		check("entry", e.get(name).Expires, called, returned)
		check("record", e.first(name).Expires, called, returned)
		check("record after Expire", e.first("ended "+name).Expires, called, returned)
		e.ack(name, seq)
		e.ack("ended "+name, other)
		e.requireKnown(name, "id", seq)
		e.requireKnown("ended "+name, "id", other)
	}
}

func testExtremeRevision(e *env) {
	rev := e.create("k", "x", 0)
	for _, wrong := range []store.Revision{math.MaxInt64, math.MaxInt64 + 1, math.MaxUint64} {
		_, err := e.s.Update(e.ctx, "k", nil, wrong, 0)
		e.is("Update at another revision", err, store.ErrConflict)
		_, err = e.s.Update(e.ctx, "absent", nil, wrong, 0)
		e.is("Update of an absent key", err, store.ErrNotFound)
		e.is("Delete at another revision", e.s.Delete(e.ctx, "k", wrong), store.ErrConflict)
		e.delete("absent", wrong)
	}
	e.has("k", "x", rev)
}
