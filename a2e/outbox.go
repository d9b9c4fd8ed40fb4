// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package a2e

import (
	"context"
	"io"
	"sync"
	"time"
)

const (
	outboxRoom   = 1 << 20          // bytes after which writers have to wait
	outboxSpare  = 64 << 10         // buffer that is kept between batches
	defaultStall = 30 * time.Second // one write call may take this long
)

// An outbox writes lines to a stream, in order and one write call at a time, so
// that nobody who has something to say is held up by a peer that does not read.
// It takes what comes; who can wait, asks for room first. A peer that takes
// nothing for too long is cut off.
//
// A goroutine of its own writes, unless somebody who may be held up helps: that
// saves waking it.
type outbox struct {
	w     io.WriteCloser
	stall time.Duration

	mu       sync.Mutex
	pending  []byte
	spare    []byte
	writing  bool          // somebody is in a write call, or about to be
	finished bool          // nothing more may come
	dead     bool          // nothing more can go
	wake     chan struct{} // tells the writer; holds one token
	room     chan struct{} // closed when there is room again; nil if nobody waits
	broken   func()        // called once if the stream takes nothing any more; may be nil
	timer    *time.Timer   // strikes when a write call takes too long; for who is writing

	done chan struct{} // closed when the writer has ended
}

func newOutbox(w io.WriteCloser, stall time.Duration) *outbox {
	if stall == 0 {
		stall = defaultStall
	}
	o := &outbox{w: w, stall: stall, wake: make(chan struct{}, 1), done: make(chan struct{})}
	go o.run()
	return o
}

// put takes a line. It never blocks.
func (o *outbox) put(line []byte) {
	o.leave(line)
	o.signal()
}

// leave is put for somebody who calls help next.
func (o *outbox) leave(line []byte) {
	o.mu.Lock()
	if !o.finished && !o.dead {
		o.pending = append(append(o.pending, line...), '\n')
	}
	o.mu.Unlock()
}

// help writes what waits, unless somebody does already.
func (o *outbox) help() {
	o.mu.Lock()
	if o.writing || o.dead || len(o.pending) == 0 {
		o.mu.Unlock()
		return
	}
	broken := o.write()
	rest := len(o.pending) > 0 || o.finished || o.dead
	o.mu.Unlock()
	if rest {
		o.signal()
	}
	broken()
}

func (o *outbox) signal() {
	select {
	case o.wake <- struct{}{}:
	default:
	}
}

// wait returns when there is room, or nothing goes out any more, or with the
// error of ctx.
func (o *outbox) wait(ctx context.Context) error {
	for {
		o.mu.Lock()
		if len(o.pending) < outboxRoom || o.finished || o.dead {
			o.mu.Unlock()
			return nil
		}
		if o.room == nil {
			o.room = make(chan struct{})
		}
		room := o.room
		o.mu.Unlock()
		select {
		case <-room:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// finish lets everything go out that was taken, then closes the stream. It does
// not wait for that; done does.
func (o *outbox) finish() {
	o.mu.Lock()
	o.finished = true
	o.mu.Unlock()
	o.signal()
}

// kill closes the stream at once.
func (o *outbox) kill() {
	o.mu.Lock()
	o.dead = true
	o.pending = nil
	o.mu.Unlock()
	o.abandon()
	o.signal()
}

// abandon ends the stream without a goodbye that nobody would read.
func (o *outbox) abandon() {
	if w, ok := o.w.(interface{ abandon() }); ok {
		w.abandon()
		return
	}
	_ = o.w.Close()
}

func (o *outbox) run() {
	defer close(o.done)
	defer o.w.Close()
	for o.next() {
		broken := o.write()
		o.mu.Unlock()
		broken()
	}
}

// next waits for lines to write, and returns with mu held if there are some.
func (o *outbox) next() bool {
	for {
		o.mu.Lock()
		switch {
		case o.dead:
			o.makeRoom()
			o.mu.Unlock()
			return false
		case o.writing: // the helper tells when it is done
		case len(o.pending) > 0:
			return true
		case o.finished:
			o.dead = true
			o.mu.Unlock()
			return false
		}
		o.mu.Unlock()
		<-o.wake
	}
}

// write writes what waits in one call. It is called with mu held and lets go of it
// meanwhile. The returned function is to be called without it.
func (o *outbox) write() (broken func()) {
	batch := o.pending
	o.pending, o.spare = o.spare, nil
	o.writing = true
	o.mu.Unlock()
	switch {
	case o.timer != nil:
		o.timer.Reset(o.stall)
	case o.stall > 0:
		o.timer = time.AfterFunc(o.stall, o.abandon)
	}
	_, err := o.w.Write(batch)
	if o.timer != nil {
		o.timer.Stop()
	}
	o.mu.Lock()
	o.writing = false
	if cap(batch) <= outboxSpare {
		o.spare = batch[:0]
	}
	broken = func() {}
	if err != nil {
		if o.broken != nil && !o.dead {
			broken = o.broken
		}
		o.dead = true
		o.pending = nil
	}
	o.makeRoom()
	return broken
}

// onBroken calls f if the peer takes nothing any more: whoever works for it
// can stop.
func (o *outbox) onBroken(f func()) {
	o.mu.Lock()
	o.broken = f
	o.mu.Unlock()
}

// makeRoom is called with mu held.
func (o *outbox) makeRoom() {
	if o.room != nil && (len(o.pending) < outboxRoom || o.dead) {
		close(o.room)
		o.room = nil
	}
}
