// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package storetest

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/fivewire/fivewire/store"
)

var waitTests = []test{
	{"There", testWaitThere},
	{"Wakes", testWaitWakes},
	{"Cursor", testWaitCursor},
	{"Many", testWaitMany},
	{"ManyStreams", testWaitManyStreams},
	{"Silent", testWaitSilent},
	{"Cancel", testWaitCancel},
	{"CancelOne", testWaitCancelOne},
	{"Expired", testWaitExpired},
	{"Duplicate", testWaitDuplicate},
	{"PingPong", testWaitPingPong},
}

// waits starts to wait and returns where the result will come.
func (e *env) waits(ctx context.Context, s store.Store, stream string, after uint64) <-chan error {
	done := make(chan error, 1)
	go func() { done <- s.Wait(ctx, stream, after) }()
	return done
}

// These stand for the answer of a Wait that gives none, or too late. Every
// context here ends with that of the test at the latest.
var (
	errStuck = errors.New("does not return although its context has ended")
	errLate  = errors.New("returns only when its context has ended")
)

// result returns the error of Wait.
func (e *env) result(done <-chan error) error {
	select {
	case err := <-done:
		if err == nil && e.ctx.Err() != nil {
			return errLate
		}
		return err
	case <-time.After(2 * e.Patience):
		return errStuck
	}
}

// wait waits until the context of the test ends.
func (e *env) wait(s store.Store, stream string, after uint64) error {
	return e.result(e.waits(e.ctx, s, stream, after))
}

// wakes checks that waiting for that ends well.
func (e *env) wakes(what string, done <-chan error) {
	e.Helper()
	if err := e.result(done); err != nil {
		e.Errorf("%s: Wait: %v", what, err)
	}
}

// silent checks that Wait does not return for a while.
func (e *env) silent(what, stream string, after uint64) {
	e.Helper()
	ctx, cancel := context.WithTimeout(e.ctx, e.TTL/4)
	defer cancel()
	if err := e.result(e.waits(ctx, e.s, stream, after)); err == nil {
		e.Errorf("%s: Wait returned without a record", what)
	} else {
		e.is(what, err, context.DeadlineExceeded)
	}
}

func testWaitThere(e *env) {
	first := e.append("s", "", "one", 0)
	second := e.append("s", "", "two", time.Hour)
	for range 2 {
		e.no("Wait for what is there", e.wait(e.s, "s", 0))
		e.no("Wait for what is there", e.wait(e.s, "s", first))
	}
	e.ack("s", first)
	e.no("Wait for what is there", e.wait(e.s, "s", 0))
	same(e, "records that Wait left", len(e.read("s", 0, 10)), 1)
	e.ack("s", second)
	e.silent("after the last is acknowledged", "s", 0)
}

func testWaitWakes(e *env) {
	done := e.waits(e.ctx, e.s, "s", 0)
	e.moment()
	seq, err := e.peer.Append(e.ctx, "s", "", []byte("one"), 0)
	e.no("Append", err)
	e.wakes("record appended while waiting", done)
	e.holds("s", seq)

	// The same again, now that the stream has been empty twice.
	e.ack("s", seq)
	done = e.waits(e.ctx, e.peer, "s", 0)
	e.moment()
	e.append("s", "id", "two", time.Hour)
	e.wakes("record appended to a stream emptied before", done)
}

func testWaitCursor(e *env) {
	last := e.append("s", "", "one", 0)
	done := e.waits(e.ctx, e.s, "s", last)
	e.moment()
	select {
	case err := <-done:
		e.Fatalf("Wait after the last position returned %v", err)
	default:
	}
	e.append("s", "", "two", 0)
	e.wakes("record after the cursor", done)

	// Records at lower positions do not reach a cursor ahead of the stream.
	ctx, cancel := context.WithTimeout(e.ctx, e.TTL/4)
	defer cancel()
	done = e.waits(ctx, e.s, "s", math.MaxUint64)
	e.moment()
	e.append("s", "", "before the cursor", 0)
	e.is("Wait after a position ahead", e.result(done), context.DeadlineExceeded)
}

func testWaitMany(e *env) {
	var all []<-chan error
	for i := range 50 {
		all = append(all, e.waits(e.ctx, e.at(i), "s", 0))
	}
	e.moment()
	e.append("s", "", "one", 0)
	for _, done := range all {
		e.wakes("one of 50 who wait", done)
	}
}

func testWaitManyStreams(e *env) {
	const streams = 100
	var all []<-chan error
	for i := range streams {
		all = append(all, e.waits(e.ctx, e.at(i), fmt.Sprint("s-", i), 0))
	}
	e.moment()
	for i := range streams {
		e.append(fmt.Sprint("s-", (i*37)%streams), "", "x", 0)
	}
	for _, done := range all {
		e.wakes("one of 100 streams", done)
	}
}

func testWaitSilent(e *env) {
	e.silent("unknown stream", "s", 0)
	ctx, cancel := context.WithTimeout(e.ctx, e.TTL/4)
	defer cancel()
	done := e.waits(ctx, e.s, "s", 0)
	e.moment()
	e.append("other", "", "x", 0)
	e.append("s/", "", "x", 0)
	e.append("S", "", "x", 0)
	e.create("s", "x", 0)
	e.is("Wait while others are written", e.result(done), context.DeadlineExceeded)
	e.expire("other", 0)
	e.silent("emptied stream", "other", 0)
}

func testWaitCancel(e *env) {
	ctx, cancel := context.WithCancel(e.ctx)
	done := e.waits(ctx, e.s, "s", 0)
	e.moment()
	cancel()
	e.is("Wait with a context cancelled meanwhile", e.result(done), context.Canceled)

	ctx, cancel = context.WithTimeout(e.ctx, e.TTL/4)
	defer cancel()
	called := time.Now()
	e.is("Wait with a deadline", e.result(e.waits(ctx, e.s, "s", 0)), context.DeadlineExceeded)
	if took := time.Since(called); took < e.TTL/4 {
		e.Errorf("Wait returned after %v, before its deadline", took)
	}
	e.append("s", "", "x", 0)
	e.no("Wait for what is there", e.wait(e.s, "s", 0))
}

// testWaitCancelOne checks that a cancelled waiter does not affect the others.
func testWaitCancelOne(e *env) {
	ctx, cancel := context.WithCancel(e.ctx)
	defer cancel()
	first := e.waits(ctx, e.s, "s", 0)
	e.moment()
	second := e.waits(e.ctx, e.s, "s", 0)
	e.moment()
	cancel()
	e.is("cancelled Wait", e.result(first), context.Canceled)
	third := e.waits(e.ctx, e.s, "s", 0)
	e.moment()
	e.append("s", "", "x", 0)
	e.wakes("waiting beside one that gave up", second)
	e.wakes("waiting since one gave up", third)
}

func testWaitExpired(e *env) {
	e.append("s", "id", "mortal", e.TTL)
	e.outlive(e.TTL)
	e.silent("stream with nothing but what expired", "s", 0)

	done := e.waits(e.ctx, e.s, "s", 0)
	e.moment()
	e.append("s", "id", "x", 0)
	e.wakes("record after one that expired", done)
}

// testWaitDuplicate: a duplicate notifies no waiter.
func testWaitDuplicate(e *env) {
	seq := e.append("s", "id", "x", time.Hour)
	e.ack("s", seq)
	ctx, cancel := context.WithTimeout(e.ctx, e.TTL/4)
	defer cancel()
	done := e.waits(ctx, e.s, "s", 0)
	e.moment()
	e.requireKnown("s", "id", seq)
	e.is("Wait while a duplicate is refused", e.result(done), context.DeadlineExceeded)
}

// testWaitPingPong has two answer each other. One wake-up lost between a look
// and the wait, and it stops.
func testWaitPingPong(e *env) {
	n := rounds(100)
	if e.Virtual { // and so fast
		n *= 5
	}
	e.together(2, func(i int) {
		s, mine, other := e.at(i), fmt.Sprint("s-", i), fmt.Sprint("s-", 1-i)
		after := uint64(0)
		for round := range n {
			if i == 0 {
				if _, err := s.Append(e.ctx, other, "", nil, 0); err != nil {
					e.Errorf("Append: %v", err)
					return
				}
			}
			if err := e.wait(s, mine, after); err != nil {
				e.Errorf("round %d: Wait: %v", round, err)
				return
			}
			records, err := s.Read(e.ctx, mine, after, 10)
			if err != nil || len(records) != 1 {
				e.Errorf("round %d: Read returns %d records and error %v, want 1", round, len(records), err)
				return
			}
			after = records[0].Seq
			if i == 1 {
				if _, err := s.Append(e.ctx, other, "", nil, 0); err != nil {
					e.Errorf("Append: %v", err)
					return
				}
			}
		}
	})
}
