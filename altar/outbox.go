// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package altar

import (
	"context"
	"sync"
)

// An outbox is the message queue of one connection. put never blocks and has no limit;
// callers compare len with their limit first.
type outbox struct {
	mu       sync.Mutex
	list     []Message
	first    int
	isEnded  bool          // no further message is accepted; queued messages are sent
	cut      bool          // no further message is sent
	readable chan struct{} // capacity 1; for the reader of the queue
	writable chan struct{} // capacity 1; for callers of waitRoom
	closed   chan struct{} // closed by cut
}

func newOutbox() *outbox {
	return &outbox{readable: make(chan struct{}, 1), writable: make(chan struct{}, 1), closed: make(chan struct{})}
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// put adds a message, unless the queue has ended.
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

// end ends the queue after its messages were sent.
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

// take moves all queued messages to buf and waits while the queue is empty. It returns false at the
// end.
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
			signal(o.writable)
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

// pop removes one message and waits while the queue is empty.
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
			signal(o.writable)
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

// waitRoom waits until the queue is shorter than limit or has ended.
func (o *outbox) waitRoom(limit int) { o.waitRoomContext(context.Background(), limit) }

// waitRoomContext is waitRoom, but returns when ctx ends.
func (o *outbox) waitRoomContext(ctx context.Context, limit int) {
	for {
		o.mu.Lock()
		n, isEnded := len(o.list)-o.first, o.isEnded
		o.mu.Unlock()
		if n < limit || isEnded {
			signal(o.writable) // there may be room for others that wait, too
			return
		}
		select {
		case <-o.writable:
		case <-o.closed:
			return
		case <-ctx.Done():
			return
		}
	}
}
