// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package accp

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"time"

	"github.com/fivewire/fivewire/internal/calls"
)

// Bounds of the received messages that calls hold for their readers.
const (
	callMessages = 4096    // of one call
	callBytes    = 8 << 20 // of all calls of a connection
	maxCalls     = 1024    // of a connection
)

var errSameChain = errors.New("accp: another call of this chain is open")

// A call receives the messages of one chain. It buffers a burst. If the buffer is full, the call
// fails, since other calls share the connection.
type call struct {
	conn   *wsConn
	entry  calls.Call[*call]
	isPart bool          // the entry of a frame after the first
	whole  *call         // of such an entry
	work   running       // in the chain
	ready  chan struct{} // holds a token after a change

	mu    sync.Mutex // guards the fields below
	queue []queued
	first [1]queued // memory of the queue
	err   error     // returned after the queue
}

type queued struct {
	m        *Message
	isCancel bool // of the chain
	size     int64
}

// addCall opens the call of a sent message, which must be the only one of its chain.
func (c *wsConn) addCall(sent *SendResult) (*call, error) {
	k := &call{conn: c, ready: make(chan struct{}, 1)}
	k.queue = k.first[:0]
	var err error
	if k.entry, err = c.calls.Add(sent.Message.Chain(), time.Time{}, k); c.ctx.Err() != nil {
		return nil, c.lost()
	} else if err != nil {
		return nil, err
	}
	for _, id := range sent.more { // without an entry, a refused part is not noticed
		_, _ = c.calls.Add(id, time.Time{}, &call{isPart: true, whole: k})
	}
	return k, nil
}

// removeCall ends the call k of a sent message.
func (c *wsConn) removeCall(sent *SendResult, k *call) {
	c.calls.Complete(sent.Message.Chain(), nil)
	_, _ = k.entry.Wait(c.ctx) // returns at once, and frees the entry
	for _, id := range sent.more {
		c.calls.Complete(id, nil)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.err = cmp.Or(k.err, errConnClosed) // refuses a message that is being delivered
	for _, q := range k.queue {
		c.buffered.Add(-q.size)
	}
	k.queue = nil
}

// deliver passes a message in a frame of n bytes to the open call of its chain. It reports whether
// there is one.
func (c *wsConn) deliver(r *ReceiveResult, n int) bool {
	if c.calls == nil {
		return false
	}
	q := queued{r.Message, r.Outcome == OutcomeCancelled, int64(n + r.Message.size())}
	k, ok := c.calls.Get(r.Message.Chain())
	switch {
	case !ok:
		return false
	case !k.isPart:
		k.put(q)
	case r.Message.Intent == IntentFail: // a refused part ends the whole message
		k.whole.put(q)
	}
	return true
}

// failCall ends the open call that a refused frame answers. A frame that the transport has doubled ends none, and after
// an error of this side the answer may be requested again.
func (c *wsConn) failCall(err error, frame []byte) {
	if e, ok := errors.AsType[*Error](err); c.calls == nil || ok && e.isReplay || codeOf(err) == ErrInternal {
		return
	}
	m, derr := c.s.decode(frame)
	if derr != nil {
		return
	}
	k, ok := c.calls.Get(m.Chain())
	if !ok {
		return
	}
	if k.isPart {
		k = k.whole
	}
	k.fail(refusedBy(err, &c.session.codec, frame))
}

// End ends the call when its chain has ended.
func (k *call) End(cause *error) { k.fail(*cause) }

// fail ends the call with an error, after its queue.
func (k *call) fail(err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.err = cmp.Or(k.err, err)
	k.notify()
}

// notify reports a change to the reader.
func (k *call) notify() {
	select {
	case k.ready <- struct{}{}:
	default:
	}
}

func (k *call) put(q queued) {
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case k.err != nil:
		return
	case len(k.queue) >= callMessages, len(k.queue) > 0 && k.conn.buffered.Load()+q.size > callBytes:
		k.err = ErrSlowReader
	default:
		k.queue = append(k.queue, q)
		k.conn.buffered.Add(q.size)
	}
	k.notify()
}

// take returns the first queued message; after the queue, the error.
func (k *call) take() (queued, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.queue) == 0 {
		return queued{}, k.err
	}
	q := k.queue[0]
	k.queue[0] = queued{}
	k.queue = k.queue[1:]
	k.conn.buffered.Add(-q.size)
	return q, nil
}

// next waits for the next message of a call. Queued messages precede the end of the connection.
func (c *wsConn) next(ctx context.Context, k *call, timeout time.Duration) (queued, error) {
	if q, err := k.take(); q.m != nil || err != nil {
		return q, err
	}
	timer := c.takeTimer(timeout)
	defer c.giveTimer(timer)
	for {
		isEnded := c.ctx.Err() != nil // nothing is delivered afterwards
		q, err := k.take()
		if q.m != nil || err != nil {
			return q, err
		}
		if isEnded {
			return queued{}, c.lost()
		}
		select {
		case <-k.ready:
		case <-c.ctx.Done():
		case <-timer.C:
			return queued{}, fail(ErrTimeout, "no answer in time")
		case <-ctx.Done():
			return queued{}, &Error{Code: ErrTimeout, Message: "no answer in time", Cause: context.Cause(ctx)}
		}
	}
}

const maxTimers = 64 // that a connection keeps

// takeTimer returns a timer, which giveTimer keeps for another wait.
func (c *wsConn) takeTimer(d time.Duration) *time.Timer {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := len(c.timers) - 1
	if n < 0 {
		return time.NewTimer(d)
	}
	timer := c.timers[n]
	c.timers = c.timers[:n]
	timer.Reset(d)
	return timer
}

func (c *wsConn) giveTimer(timer *time.Timer) {
	timer.Stop()
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.timers) < maxTimers {
		c.timers = append(c.timers, timer)
	}
}
