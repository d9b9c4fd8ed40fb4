// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package storetest

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/fivewire/fivewire/store"
)

var contextTests = []test{
	{"Ended", testEndedContext},
	{"ListCancelled", testListCancelled},
}

func testEndedContext(e *env) {
	rev := e.create("k", "x", 0)
	seq := e.append("s", "id", "x", 0)
	cancelled, cancel := context.WithCancel(e.ctx)
	cancel()
	late, cancel := context.WithDeadline(e.ctx, time.Now().Add(-time.Second))
	defer cancel()
	calls := append(byName("k"), byName("s")...)
	calls = append(calls, byName("new")...)
	calls = append(calls, byName("a\x00")...) // the context comes before the arguments
	calls = append(calls, listing(e, ""), listing(e, "k"), listing(e, "nothing"), listing(e, "\xff"),
		call{"Update at the revision", func(ctx context.Context, s store.Store) error { _, err := s.Update(ctx, "k", nil, rev, 0); return err }},
		call{"Ack of a record", func(ctx context.Context, s store.Store) error { return s.Ack(ctx, "s", seq) }},
		call{"Ack of nothing", func(ctx context.Context, s store.Store) error { return s.Ack(ctx, "s") }},
	)
	for _, c := range calls {
		for ctx, want := range map[context.Context]error{cancelled: context.Canceled, late: context.DeadlineExceeded} {
			done := make(chan error, 1)
			go func() { done <- c.do(ctx, e.s) }()
			e.is(c.name+" with a context that has ended", e.result(done), want)
		}
	}
	e.has("k", "x", rev)
	e.holds("s", seq)
	e.requireKnown("s", "id", seq)
	sameAll(e, "List", e.keys(""), []string{"k"})
	e.holds("new")
}

// testListCancelled: a caller that cancels List in the middle gets the rest or the error, never a
// truncated list without an error.
func testListCancelled(e *env) {
	n := rounds(1200)
	var keys []string
	for i := range n {
		keys = append(keys, fmt.Sprintf("key-%05d", i))
	}
	e.createAll(keys)
	ctx, cancel := context.WithCancel(e.ctx)
	defer cancel()
	seen := 0
	var failed error
	for _, err := range e.s.List(ctx, "key-") {
		if failed = err; err != nil {
			break
		}
		if seen++; seen == n/2 {
			cancel()
		}
	}
	switch {
	case failed != nil && !errors.Is(failed, context.Canceled):
		e.Errorf("List cancelled in the loop: got error %v, want %v", failed, context.Canceled)
	case failed == nil && seen != n:
		e.Errorf("List cancelled in the loop ends without error after %d of %d entries", seen, n)
	}
	same(e, "entries of the next List", len(e.keys("key-")), n)
}
