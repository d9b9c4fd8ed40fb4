// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package altar

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/fivewire/fivewire/altar/internal/transport"
	"github.com/fivewire/fivewire/internal/budget"
	"github.com/fivewire/fivewire/internal/option"
)

// An outbox holds the messages to one peer of a Host, in order, until its reader takes them: a
// goroutine that writes to a connection, or the peer itself if it is in this process. put never
// blocks and has no limit; callers call hasSpace first. A message is kept as it is, so that the
// payload of a call is held once, however many connections wait for it.
type outbox struct {
	mu       sync.Mutex
	list     []item
	first    int
	bytes    int
	reserved int               // messages with space from reserve
	stalled  uint32            // the shards that reserve has refused space
	isEnded  bool              // no further message is accepted; queued messages are sent
	isCut    bool              // no further message is sent
	why      transport.Goodbye // how the connection ends after that
	write    func()            // a goroutine that takes messages until there are none; nil: the reader calls pop
	isBusy   bool              // write runs, or has taken the end
	inline   bool              // the caller of put runs write
	changed  chan struct{}     // capacity 1; for the reader
	space    chan struct{}     // capacity 1; for waitSpace
	closed   chan struct{}     // closed by close
}

type item struct {
	m    Message
	hold budget.Hold // of its bytes; often empty
}

func newOutbox() *outbox {
	return &outbox{changed: make(chan struct{}, 1), space: make(chan struct{}, 1), closed: make(chan struct{})}
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

const itemWeight = 64 // of a message besides its parts

// weight returns the bytes of a message in a queue.
func weight(m Message) int {
	n := itemWeight
	switch m := m.(type) {
	case *ToolCall:
		n += len(m.Parameters) + sizeOf(m.Metadata)
	case *ToolResult:
		n += len(m.Payload) + len(m.RuntimeMetadata) + m.Error.size()
	case *StreamChunk:
		n += len(m.Payload) + m.Error.size()
	case *ErrorMessage:
		n += m.Err.size()
	case *AcknowledgeFulfillment:
		for _, r := range m.Rejected {
			n += itemWeight + len(r.ToolName) + r.Error.size()
		}
	case *ToolList:
		for _, t := range m.Tools {
			n += 256 * (1 + len(t.Parameters))
		}
	}
	return n
}

// reserve takes space for a message of a weight. Without space, resumed returns the shard later.
func (o *outbox) reserve(l queueLimit, weight, shard int) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.hasSpaceLocked(l, weight) {
		o.stalled |= 1 << shard
		return false
	}
	o.reserved++
	o.bytes += weight
	return true
}

// resumed returns the shards that were refused space, if there is space now.
func (o *outbox) resumed(l queueLimit) (shards uint32) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.stalled != 0 && o.hasSpaceLocked(l, 0) {
		shards, o.stalled = o.stalled, 0
	}
	return shards
}

// put adds a message, unless the queue has ended. Its space may be taken. If it returns true, the caller has to run
// write without a lock.
func (o *outbox) put(m Message, hold budget.Hold, isTaken bool) (mustWrite bool) {
	o.mu.Lock()
	isAccepted := !o.isEnded
	if isTaken {
		o.reserved--
		o.bytes -= weight(m)
	}
	if isAccepted {
		if o.first > 64 && 2*o.first > len(o.list) { // do not grow behind a slow reader
			o.list, o.first = slices.Delete(o.list, 0, o.first), 0
		}
		o.list = append(o.list, item{m, hold})
		o.bytes += weight(m)
		if mustWrite = o.inline && !o.isBusy; mustWrite {
			o.isBusy = true
		} else {
			o.startLocked()
		}
	}
	isPopped := o.write == nil
	o.mu.Unlock()
	if !isAccepted {
		hold.Release()
	}
	if isPopped {
		signal(o.changed)
	}
	return mustWrite
}

// startLocked starts a goroutine for the queue unless it has one, or the reader calls pop. An idle
// connection has none. o.mu must be held.
func (o *outbox) startLocked() {
	if o.write != nil && !o.isBusy {
		o.isBusy = true
		go o.write()
	}
}

// startInline is start, but a caller of put runs write if no other goroutine does.
func (o *outbox) startInline(write func()) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.inline = true
	o.startWithLocked(write)
}

// start makes write take the messages.
func (o *outbox) start(write func()) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.startWithLocked(write)
}

// startWithLocked is start. o.mu must be held.
func (o *outbox) startWithLocked(write func()) {
	o.write = write
	if o.isEnded || o.first < len(o.list) {
		o.startLocked()
	}
}

// A queueLimit bounds an outbox.
type queueLimit struct{ messages, bytes int }

// double returns twice the limit and n messages, or no limit.
func (l queueLimit) double(n int) queueLimit {
	return queueLimit{2*min(l.messages, option.None/4) + n, 2 * min(l.bytes, option.None)}
}

// hasSpace reports whether one more message of n bytes may be put. One message always may.
func (o *outbox) hasSpace(l queueLimit, n int) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.hasSpaceLocked(l, n)
}

// hasSpaceLocked is hasSpace. o.mu must be held.
func (o *outbox) hasSpaceLocked(l queueLimit, n int) bool {
	queued := len(o.list) - o.first + o.reserved
	return queued == 0 || o.isEnded || queued < l.messages && o.bytes+n <= l.bytes
}

// isOver reports whether the messages exceed a limit without the first one, which may be of any size.
func (o *outbox) isOver(l queueLimit) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.hasSpaceLocked(l, 0) {
		return false
	}
	return o.first == len(o.list) || !o.hasSpaceLocked(l, -weight(o.list[o.first].m))
}

func (o *outbox) len() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.list) - o.first
}

// end ends the queue after its messages were taken, the last one included, for the first given reason. last may be nil.
func (o *outbox) end(why transport.Goodbye, last Message) {
	o.mu.Lock()
	if !o.isEnded {
		o.isEnded, o.why = true, why
		if last != nil {
			o.list = append(o.list, item{m: last})
			o.bytes += weight(last)
		}
		o.startLocked()
	}
	o.mu.Unlock()
	signal(o.changed)
}

// goodbye returns the reason of end, or none if the queue was closed at once.
func (o *outbox) goodbye() transport.Goodbye {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.why
}

// close ends the queue at once.
func (o *outbox) close() {
	o.mu.Lock()
	isFirst := !o.isCut
	o.isEnded, o.isCut, o.why = true, true, transport.Goodbye{}
	dropped := o.list[o.first:]
	o.list, o.first, o.bytes, o.reserved = nil, 0, 0, 0
	o.startLocked()
	o.mu.Unlock()
	if isFirst {
		close(o.closed)
	}
	for _, i := range dropped {
		i.hold.Release()
	}
}

// pop takes one message and waits while the queue is empty. It also reports whether there are more.
// It returns nil at the end of the queue and of ctx.
func (o *outbox) pop(ctx context.Context) (m Message, more bool) {
	for {
		m, more, isOver := o.take()
		if m != nil || isOver {
			return m, more
		}
		select {
		case <-o.changed:
		case <-o.closed:
		case <-ctx.Done():
			return nil, false
		}
	}
}

// take is pop, but it does not wait. If the queue is empty and not over, the goroutine that writes ends, and
// the next message starts another one.
func (o *outbox) take() (m Message, more, isOver bool) {
	o.mu.Lock()
	if o.first == len(o.list) {
		isOver = o.isEnded
		o.isBusy = o.isEnded
		o.mu.Unlock()
		return nil, false, isOver
	}
	i := o.list[o.first]
	o.list[o.first] = item{}
	o.bytes -= weight(i.m)
	o.first++
	if more = o.first < len(o.list); !more {
		o.list, o.first = o.list[:0], 0
		if cap(o.list) > 1024 {
			o.list = nil
		}
	}
	o.mu.Unlock()
	i.hold.Release()
	signal(o.space)
	return i.m, more, false
}

// waitSpace waits until the queue has space or has ended, but not longer than a timeout. It reports
// whether there is space.
func (o *outbox) waitSpace(l queueLimit, timeout time.Duration) bool {
	if o.hasSpace(l, 0) {
		return true
	}
	t := time.NewTimer(timeout)
	defer t.Stop()
	for !o.hasSpace(l, 0) {
		select {
		case <-o.space:
		case <-o.closed:
		case <-t.C:
			return false
		}
	}
	signal(o.space) // for other waiting callers
	return true
}
