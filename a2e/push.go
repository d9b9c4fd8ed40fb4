// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package a2e

import (
	"context"
	"log/slog"
	"slices"
	"sync"

	"github.com/fivewire/fivewire/internal/guard"
)

// Bounds of the messages that wait for the functions of OnPush (A2E-D56).
const (
	maxPushes    = 1024
	maxPushBytes = 8 << 20
)

// A pusher is a function for messages that belong to no call.
type pusher struct {
	fn       func(m *Message)
	isInline bool // it never blocks, and the goroutine that reads the connection calls it
}

// A push is a message for functions.
type push struct {
	message *Message
	size    int
	list    []*pusher
}

// pushes calls the functions for messages that belong to no call, one after the other, while the client reads on.
type pushes struct {
	log    *slog.Logger
	onDrop func(ctx context.Context, n int) // may be nil

	mu         sync.Mutex // guards everything below
	byType     map[string][]*pusher
	rest       []*pusher // for messages that no other function handles
	queue      []push
	size       int
	droppedNow int           // pushes, since the last call of onDrop
	done       chan struct{} // closed when the queue is empty; nil while it is
}

// add registers a function for a type, or for the rest with an empty type.
func (q *pushes) add(msgType string, p *pusher) (remove func()) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.changeLocked(msgType, func(list []*pusher) []*pusher { return append(slices.Clip(list), p) })
	return func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		q.changeLocked(msgType, func(list []*pusher) []*pusher {
			return slices.DeleteFunc(slices.Clone(list), func(other *pusher) bool { return other == p })
		})
	}
}

// changeLocked changes the list for a type. q.mu must be held.
func (q *pushes) changeLocked(msgType string, change func(list []*pusher) []*pusher) {
	if msgType == "" {
		q.rest = change(q.rest)
		return
	}
	if q.byType == nil {
		q.byType = map[string][]*pusher{}
	}
	q.byType[msgType] = change(q.byType[msgType])
}

// find returns the functions for a message.
func (q *pushes) find(msgType string) []*pusher {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, name := range [...]string{msgType, canonicalType(msgType)} {
		if list := q.byType[name]; len(list) > 0 {
			return list
		}
	}
	return q.rest
}

// put queues a message for functions, and reports false if there is no space.
func (q *pushes) put(ctx context.Context, m *Message, size int, list []*pusher) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.queue) >= maxPushes || q.size+size > maxPushBytes && len(q.queue) > 0 {
		q.droppedNow++
		return false
	}
	q.queue = append(q.queue, push{m, size, list})
	q.size += size
	if q.done == nil {
		q.done = make(chan struct{})
		go q.run(context.WithoutCancel(ctx))
	}
	return true
}

// run calls the functions until the queue is empty.
func (q *pushes) run(ctx context.Context) {
	isEmpty := false
	defer func() {
		if !isEmpty { // a function has ended the goroutine
			go q.run(ctx)
		}
	}()
	for {
		q.mu.Lock()
		dropped := q.droppedNow
		q.droppedNow = 0
		if len(q.queue) == 0 && dropped == 0 {
			isEmpty = true
			close(q.done)
			q.done, q.queue = nil, nil
			q.mu.Unlock()
			return
		}
		var p push
		if len(q.queue) > 0 {
			p = q.queue[0]
			q.queue[0] = push{}
			q.queue = q.queue[1:]
			q.size -= p.size
		}
		q.mu.Unlock()
		if dropped > 0 {
			q.reportDrop(ctx, dropped)
		}
		for _, f := range p.list {
			q.call(ctx, f, p.message)
		}
	}
}

func (q *pushes) reportDrop(ctx context.Context, n int) {
	q.log.WarnContext(ctx, "a2e: messages dropped", "reason", "slow_reader", "count", n)
	if q.onDrop == nil {
		return
	}
	if err := guard.Call("OnDrop", func() error { q.onDrop(ctx, n); return nil }); err != nil {
		logFailure(ctx, q.log, slog.LevelWarn, "a2e: OnDrop failed", err)
	}
}

func (q *pushes) call(ctx context.Context, p *pusher, m *Message) {
	err := guard.Call("push function", func() error { p.fn(m); return nil })
	if err != nil {
		logFailure(ctx, q.log, slog.LevelWarn, "a2e: push not handled", err, "type", m.Type)
	}
}

// wait waits for the functions, until ctx ends.
func (q *pushes) wait(ctx context.Context) {
	q.mu.Lock()
	done := q.done
	q.mu.Unlock()
	if done == nil {
		return
	}
	select {
	case <-done:
	case <-ctx.Done():
	}
}

// push passes a message that belongs to no call to the functions for it.
func (c *Client) push(m *Message, size int) {
	list := c.pushes.find(m.Type)
	if len(list) == 0 {
		c.log.DebugContext(c.ctx, "a2e: message dropped", "reason", "no_handler", "type", clip(m.Type, 100))
		c.conn.dropped.Add(1)
		return
	}
	isAnyQueued := false
	for _, p := range list {
		if p.isInline {
			c.pushes.call(c.ctx, p, m)
		}
		isAnyQueued = isAnyQueued || !p.isInline
	}
	if !isAnyQueued {
		return
	}
	queued := slices.DeleteFunc(slices.Clone(list), func(p *pusher) bool { return p.isInline })
	if !c.pushes.put(c.ctx, m, size, queued) {
		c.conn.dropped.Add(1)
	}
}
