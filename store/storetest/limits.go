// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package storetest

import (
	"context"
	"errors"
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
