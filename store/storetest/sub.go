// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package storetest

import (
	"strings"

	"github.com/fivewire/fivewire/store"
)

var subTests = []test{
	{"Apart", testSubApart},
	{"Nested", testSubNested},
	{"Limits", testSubLimits},
}

// in returns the test as it is in another store.
func (e *env) in(s store.Store) *env {
	other := *e
	other.s, other.peer = s, s
	return &other
}

func testSubApart(e *env) {
	a, b := e.in(store.Sub(e.s, "a/")), e.in(store.Sub(e.s, "a%/"))
	ra := a.create("k", "of a", 0)
	rb := b.create("k", "of b", 0)
	a.create("k/2", "of a", 0)
	a.has("k", "of a", ra)
	b.has("k", "of b", rb)
	e.has("a/k", "of a", ra)
	e.absent("k")
	sameAll(e, "List of a", a.keys(""), []string{"k", "k/2"})
	sameAll(e, "List of a with a prefix", a.keys("k/"), []string{"k/2"})
	sameAll(e, "List of b", b.keys("k"), []string{"k"})
	sameAll(e, "List of the whole", e.keys(""), []string{"a%/k", "a/k", "a/k/2"})
	a.has("k", "of a 2", a.update("k", "of a 2", ra, 0))
	a.delete("k", 0)
	a.absent("k")
	b.has("k", "of b", rb)

	sa := a.append("s", "id", "of a", 0)
	sb := b.append("s", "id", "of b", 0)
	a.requireKnown("s", "id", sa)
	b.requireKnown("s", "id", sb)
	e.holds("a/s", sa)
	e.holds("s")
	done := b.waits(b.ctx, b.s, "s", sb)
	e.moment()
	next := b.append("s", "", "of b", 0)
	e.wakes("record appended in the view", done)
	a.expire("s", 0)
	a.holds("s")
	b.holds("s", sb, next)
	b.ack("s", sb)
	b.holds("s", next)
}

func testSubNested(e *env) {
	outer := e.in(store.Sub(e.s, "a/"))
	inner := e.in(store.Sub(outer.s, "b/"))
	rev := inner.create("k", "x", 0)
	seq := inner.append("s", "", "x", 0)
	inner.has("k", "x", rev)
	outer.has("b/k", "x", rev)
	e.has("a/b/k", "x", rev)
	e.holds("a/b/s", seq)
	sameAll(e, "List of the inner view", inner.keys(""), []string{"k"})
	sameAll(e, "List of the outer view", outer.keys(""), []string{"b/k"})
	whole := e.in(store.Sub(e.s, ""))
	whole.has("a/b/k", "x", rev)
	sameAll(e, "List of the view without prefix", whole.keys(""), []string{"a/b/k"})
}

func testSubLimits(e *env) {
	const prefix = "prefix/"
	view := e.in(store.Sub(e.s, prefix))
	fits := strings.Repeat("k", store.MaxKey-e.behind-len(prefix))
	view.has(fits, "x", view.create(fits, "x", 0))
	view.holds(fits, view.append(fits, strings.Repeat("i", store.MaxKey), "x", 0))
	for _, c := range byName(fits + "k") {
		view.refused("a name too long with its prefix", c)
	}
	view.refused("a prefix too long with its prefix", listing(view, fits+"k"))
}
