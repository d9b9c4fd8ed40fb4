// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package accp

import (
	"context"
	"errors"
	"sync"
	"time"
)

// Bounds of what waits for the reader of one call.
const (
	callMessages = 4096
	callBytes    = 8 << 20
)

var (
	errSlow       = errors.New("accp: answers came faster than they were read")
	errSameChain  = errors.New("accp: another call of this chain waits for answers")
	errConnClosed = errors.New("accp: connection closed")
)

// A callTable holds the calls of a connection that wait for answers, by chain. A
// nil table has none.
type callTable struct {
	mu     sync.Mutex
	open   map[string]*call
	parts  map[string]*call // by the ids of further frames of the message that was sent
	closed bool
}

// A call waits for the messages of one chain. It has room for a burst; if its
// reader does not keep up it is given up, since other calls share the connection.
type call struct {
	chain string
	more  []string
	ready chan struct{} // holds a token when something changed

	mu    sync.Mutex // guards the following
	queue []queued
	bytes int
	err   error // what follows the queue
}

type queued struct {
	r    *ReceiveResult
	size int
}

// has reports whether a call of the chain waits.
func (t *callTable) has(chain string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.open[chain] != nil
}

// add makes the call for a chain that has none, whose message was sent in several
// frames of which more are the ids but for the first.
func (t *callTable) add(chain string, more []string) *call {
	t.mu.Lock()
	defer t.mu.Unlock()
	k := &call{chain: chain, more: more, ready: make(chan struct{}, 1)}
	if t.closed {
		k.err = errConnClosed
		return k
	}
	t.open[chain] = k
	for _, id := range more {
		t.parts[id] = k
	}
	return k
}

func (t *callTable) remove(k *call) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.open, k.chain)
	for _, id := range k.more {
		delete(t.parts, id)
	}
}

func (t *callTable) close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closed = true
	for _, k := range t.open {
		k.end(errConnClosed)
	}
}

// deliver gives a message that came in so many bytes to the call that waits for
// it, and reports whether there is one.
func (t *callTable) deliver(r *ReceiveResult, size int) bool {
	if t == nil {
		return false
	}
	chain := r.Message.Chain()
	t.mu.Lock()
	k := t.open[chain]
	part := t.parts[chain]
	t.mu.Unlock()
	switch {
	case k != nil:
		k.put(r, size)
	case part == nil:
		return false
	case r.Message.Intent == IntentFail: // a part was refused, and the whole with it
		part.put(r, size)
	}
	return true
}

func (k *call) put(r *ReceiveResult, size int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case k.err != nil:
		return
	case len(k.queue) >= callMessages, k.bytes+size > callBytes && len(k.queue) > 0:
		k.err = errSlow
	default:
		k.queue = append(k.queue, queued{r, size})
		k.bytes += size
	}
	k.wake()
}

func (k *call) end(err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.err == nil {
		k.err = err
	}
	k.wake()
}

func (k *call) wake() {
	select {
	case k.ready <- struct{}{}:
	default:
	}
}

// take returns what came first, then the error.
func (k *call) take() (*ReceiveResult, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.queue) == 0 {
		return nil, k.err
	}
	q := k.queue[0]
	k.queue[0] = queued{}
	k.queue = k.queue[1:]
	k.bytes -= q.size
	return q.r, nil
}

// next waits for the next message. What came goes before the end.
func (k *call) next(ctx context.Context, timeout time.Duration) (*ReceiveResult, error) {
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	for {
		r, err := k.take()
		switch {
		case r != nil:
			return r, nil
		case errors.Is(err, errConnClosed):
			return nil, &Error{Code: ErrTimeout, Message: "connection lost", Cause: err}
		case err != nil:
			return nil, err
		}
		select {
		case <-k.ready:
		case <-timer.C:
			return nil, fail(ErrTimeout, "no answer in time")
		case <-ctx.Done():
			return nil, &Error{Code: ErrTimeout, Message: "no answer in time", Cause: ctx.Err()}
		}
	}
}
