// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package storetest

import (
	"bytes"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fivewire/fivewire/internal/race"
	"github.com/fivewire/fivewire/store"
)

var valueTests = []test{
	{"Names", testNames},
	{"Empty", testEmptyValues},
	{"Bytes", testBytes},
	{"Big", testBig},
	{"Copied", testCopied},
}

// oddNames are texts that a layer between the caller and a disk may change: each is a distinct
// name, and none may be trimmed, folded or normalised.
func oddNames(longest int) []string {
	return []string{
		"a", "A", " a", "a ", " a ", "  ", "a\t", "a\n", "\r\n", "\x01", "\x7f", "\u0085", "\u00a0", "\u200b", "\ufeff", "\ufeffa",
		"a%", "%", "%%", "%25", "%2F", "_", "a_", "*", "a*", "?", "[a]", ".", "..", "...", ".a", "a.", "a..b", "a.*", "a.>", ">", "$", "$KV", "$1", ":a", "@a", "?1",
		"/", "//", "/a", "a/", "a//b", "../a", "a/../b", "\\", "a\\b", "\\x00", "'", "''", "\"", "`", "a'b", "a\"b", "a;b", "--", "/*", "#", "~", "-", "+", "=", "a=b", "0", "00", "1", "-1", "1e3", "true", "null", "NULL", "nil",
		"\u00e9", "e\u0301", "\u00c5", "\u212b", "\u00df", "ss", "\u0130", "i", "I", "\u0131", "\u01c6", "\u4e2d\u6587", "\u05d0", "\u202eabc", "\ud7ff", "\ue000", "\ufffd", "\ufffe", "\uffff", "\U0001f600", "\U0001f468\u200d\U0001f469", "\U00010000", "\U0010fffe", "\U0010ffff",
		strings.Repeat("k", longest-1), strings.Repeat("k", longest), strings.Repeat("k", longest-1) + "l", strings.Repeat("K", longest), strings.Repeat("%", longest),
		strings.Repeat("/", longest), strings.Repeat("a/", longest/2), strings.Repeat(".", longest), strings.Repeat("*", longest),
		strings.Repeat("\u00e9", longest/2), strings.Repeat("\U0010ffff", longest/4),
	}
}

func testNames(e *env) {
	names := oddNames(store.MaxKey - e.behind)
	seqs := map[string]uint64{}
	for _, name := range names {
		// An id has no prefix, so that it may be as long as ever.
		seqs[name] = e.append("ids", name, "id "+name, 0)
	}
	// Several at once, since there are some thousand calls in all of this.
	each := func(do func(i int, name string)) {
		e.Helper()
		const callers = 8
		e.together(callers, func(i int) {
			for ; i < len(names); i += callers {
				do(i, names[i])
			}
		})
		if e.Failed() {
			e.FailNow()
		}
	}
	each(func(_ int, name string) {
		e.create(name, "key "+name, 0)
		e.append(name, "", "record "+name, 0)
	})
	each(func(_ int, name string) {
		if entry := e.get(name); entry.Key != name || string(entry.Value) != "key "+name {
			e.Errorf("key %q: got %q with value %q", name, entry.Key, entry.Value)
		}
		if records := e.read(name, 0, 10); len(records) != 1 || string(records[0].Value) != "record "+name {
			e.Errorf("stream %q: got %v, want one record", name, records)
		}
		e.requireKnown("ids", name, seqs[name])
		var want []string
		for _, other := range names {
			if strings.HasPrefix(other, name) {
				want = append(want, other)
			}
		}
		slices.Sort(want)
		if got := e.keys(name); !slices.Equal(got, want) {
			e.Errorf("List of %q: got %q, want %q", name, got, want)
		}
	})
	var ids []string
	for _, r := range e.read("ids", 0, 10_000) {
		ids = append(ids, r.ID)
	}
	if !slices.Equal(ids, names) {
		e.Errorf("ids of the stream: got %q, want %q", ids, names)
	}
	sorted := slices.Sorted(slices.Values(names))
	if got := e.keys(""); !slices.Equal(got, sorted) {
		e.Errorf("List: got %q, want %q", got, sorted)
	}
	// Half of them are removed. An engine that confuses two names loses one of the other half,
	// since neighbours are similar.
	remove := func(name string) {
		e.delete(name, 0)
		e.absent(name)
		e.expire(name, 0)
		e.holds(name)
	}
	var left []string
	for i := 1; i < len(names); i += 2 {
		left = append(left, names[i])
	}
	each(func(i int, name string) {
		if i%2 == 0 {
			remove(name)
		}
	})
	sorted = slices.Sorted(slices.Values(left))
	if got := e.keys(""); !slices.Equal(got, sorted) {
		e.Errorf("List when half is deleted: got %q, want %q", got, sorted)
	}
	each(func(i int, name string) {
		if i%2 == 1 {
			same(e, "records of a stream that stays", len(e.read(name, 0, 10)), 1)
			remove(name)
		}
	})
	sameAll(e, "List when all is deleted", e.keys(""), nil)
}

func testEmptyValues(e *env) {
	for key, value := range map[string][]byte{"nil": nil, "empty": {}} {
		rev, err := e.s.Create(e.ctx, key, value, 0)
		e.no("Create", err)
		e.has(key, "", rev)
		_, err = e.s.Create(e.ctx, key, []byte("x"), 0)
		e.is("Create of a key with an empty value", err, store.ErrExists)
		rev = e.update(key, "x", rev, 0)
		rev, err = e.s.Update(e.ctx, key, value, rev, 0)
		e.no("Update", err)
		e.has(key, "", rev)
		seq, err := e.s.Append(e.ctx, key, key, value, 0)
		e.no("Append", err)
		e.no("Wait for a record with an empty value", e.wait(e.s, key, 0))
		e.holds(key, seq)
		e.requireKnown(key, key, seq)
		same(e, "length of the value", len(e.first(key).Value), 0)
	}
	sameAll(e, "List", e.keys(""), []string{"empty", "nil"})
}

// testBytes: a value is bytes, not text.
func testBytes(e *env) {
	var all []byte
	for i := range 256 {
		all = append(all, byte(i))
	}
	for i, value := range []string{string(all), "\x00", "\x00\x00", "a\x00b", "\xff", "\xc3", "\xed\xa0\x80", "{}", "null", " x ", "x\n", "\\x41", "\ufeff"} {
		key := string(rune('a' + i))
		e.has(key, value, e.create(key, value, 0))
		e.append(key, "", value, 0)
		same(e, "value", string(e.first(key).Value), value)
	}
}

func testBig(e *env) {
	sizes := []int{1 << 20}
	if testing.Short() {
		sizes = append(sizes, 2<<20)
	} else {
		sizes = append(sizes, store.MaxValue)
	}
	block := make([]byte, 1<<20)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(block) // it never fails
	for i, size := range sizes {
		size = min(size, e.MaxValue)
		value := bytes.Repeat(block, size/len(block)+1)[:size]
		name, id := "k", ""
		if i > 0 { // what an engine may write in more bytes than it was given
			name, id = strings.Repeat("%", store.MaxKey-e.behind), strings.Repeat("%", store.MaxKey)
		}
		rev, err := e.s.Create(e.ctx, name, value, time.Hour)
		e.no("Create", err)
		entry := e.get(name)
		if entry.Revision != rev || !bytes.Equal(entry.Value, value) {
			e.Errorf("value of %d bytes comes back as another of %d", len(value), len(entry.Value))
		}
		_, err = e.s.Append(e.ctx, name, id, value, time.Hour)
		e.no("Append", err)
		records := e.read(name, 0, 10)
		if len(records) != 1 || records[0].ID != id || !bytes.Equal(records[0].Value, value) {
			e.Errorf("record of %d bytes does not come back", len(value))
		}
		if size < 64<<20 || !race.Enabled { // which takes a second for each such value
			for entry, err := range e.s.List(e.ctx, name) {
				e.no("List", err)
				same(e, "length of the listed value", len(entry.Value), len(value))
			}
		}
		value[0]++
		if size < 64<<20 || !race.Enabled {
			rev, err = e.s.Update(e.ctx, name, value, rev, time.Hour)
			e.no("Update", err)
			same(e, "length of the new value", len(e.get(name).Value), len(value))
		}
		e.update(name, "small", rev, 0)
		same(e, "value", string(e.get(name).Value), "small")
		e.delete(name, 0)
		e.expire(name, 0)
	}
}

// testCopied: what the caller does with its slice later changes nothing.
func testCopied(e *env) {
	value := []byte("first")
	rev, err := e.s.Create(e.ctx, "k", value, 0)
	e.no("Create", err)
	copy(value, "XXXXX")
	e.has("k", "first", rev)
	copy(value, "other")
	rev, err = e.s.Update(e.ctx, "k", value, rev, 0)
	e.no("Update", err)
	old := e.get("k")
	copy(value, "XXXXX")
	e.has("k", "other", rev)
	for entry, err := range e.s.List(e.ctx, "k") {
		e.no("List", err)
		same(e, "listed value", string(entry.Value), "other")
	}
	copy(value, "third")
	_, err = e.s.Append(e.ctx, "s", "", value, 0)
	e.no("Append", err)
	copy(value, "XXXXX")
	record := e.first("s")
	same(e, "value of the record", string(record.Value), "third")

	// And what was read stays as it was read.
	e.update("k", "newer", rev, 0)
	e.delete("k", 0)
	e.create("k", "again", 0)
	e.ack("s", record.Seq)
	e.append("s", "", "again", 0)
	same(e, "value read before the change", string(old.Value), "other")
	same(e, "record read before the change", string(record.Value), "third")
}
