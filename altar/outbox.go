// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package altar

import (
	"context"
	"sync"
)

// An outbox is the queue of messages that a Host has for one connection.
// Putting never blocks: who puts looks at the length first where there is a
// choice.
type outbox struct {
	mu       sync.Mutex
	list     []Message
	first    int
	isEnded  bool          // nothing comes any more; what is in the queue goes out
	cut      bool          // nothing goes out any more
	readable chan struct{} // has room for one; for the reader of the queue
	room     chan struct{} // has room for one; for who waits for room
	closed   chan struct{} // closed by cut
}

func newOutbox() *outbox {
	return &outbox{readable: make(chan struct{}, 1), room: make(chan struct{}, 1), closed: make(chan struct{})}
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// put adds a message, unless nothing may come any more.
func (o *outbox) put(m Message) {
	o.mu.Lock()
	if !o.isEnded {
		if o.first > 64 && 2*o.first > len(o.list) { // do not grow behind a slow reader
			n := copy(o.list, o.list[o.first:])
			clear(o.list[n:])
			o.list, o.first = o.list[:n], 0
		}
		o.list = append(o.list, m)
	}
	o.mu.Unlock()
	signal(o.readable)
}

func (o *outbox) len() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.list) - o.first
}

// end lets out what is in the queue, then ends it.
func (o *outbox) end() {
	o.mu.Lock()
	o.isEnded = true
	o.mu.Unlock()
	signal(o.readable)
}

// close ends the queue at once.
func (o *outbox) close() {
	o.mu.Lock()
	o.isEnded = true
	if !o.cut {
		o.cut = true
		o.list, o.first = nil, 0
		close(o.closed)
	}
	o.mu.Unlock()
}

// take moves everything that is in the queue to buf, waiting until there is
// something. It returns false at the end.
func (o *outbox) take(ctx context.Context, buf []Message) ([]Message, bool) {
	for {
		o.mu.Lock()
		if n := len(o.list) - o.first; n > 0 && !o.cut {
			buf = append(buf, o.list[o.first:]...)
			clear(o.list)
			o.list, o.first = o.list[:0], 0
			if cap(o.list) > 1024 {
				o.list = nil
			}
			o.mu.Unlock()
			signal(o.room)
			return buf, true
		}
		isEnded := o.isEnded
		o.mu.Unlock()
		if isEnded {
			return buf, false
		}
		select {
		case <-o.readable:
		case <-o.closed:
		case <-ctx.Done():
			return buf, false
		}
	}
}

// pop takes one message out, waiting until there is one.
func (o *outbox) pop(ctx context.Context) (Message, bool) {
	for {
		o.mu.Lock()
		if o.first < len(o.list) && !o.cut {
			m := o.list[o.first]
			o.list[o.first] = nil
			if o.first++; o.first == len(o.list) {
				o.list, o.first = o.list[:0], 0
			}
			o.mu.Unlock()
			signal(o.room)
			return m, true
		}
		isEnded := o.isEnded
		o.mu.Unlock()
		if isEnded {
			return nil, false
		}
		select {
		case <-o.readable:
		case <-o.closed:
		case <-ctx.Done():
			return nil, false
		}
	}
}

// waitRoom waits until the queue is shorter than most or ended.
func (o *outbox) waitRoom(limit int) { o.waitRoomContext(context.Background(), limit) }

// waitRoomContext is waitRoom, but no longer than ctx lasts.
func (o *outbox) waitRoomContext(ctx context.Context, limit int) {
	for {
		o.mu.Lock()
		n, isEnded := len(o.list)-o.first, o.isEnded
		o.mu.Unlock()
		if n < limit || isEnded {
			signal(o.room) // there may be room for others that wait, too
			return
		}
		select {
		case <-o.room:
		case <-o.closed:
			return
		case <-ctx.Done():
			return
		}
	}
}
