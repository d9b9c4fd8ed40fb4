// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package air

import (
	"container/list"
	"context"
	"sync"
	"time"

	"github.com/fivewire/fivewire/internal/budget"
	"github.com/fivewire/fivewire/store"
)

// threadBytes is added to the bytes of a thread in the budget.
const threadBytes = 512

// A threadLedger counts the threads that this process has changed for their peers: open ones as items, and the bytes of all. If
// there is no room, the closed ones are removed, oldest first.
type threadLedger struct {
	kv       store.KV
	ttl      time.Duration // zero means no end
	resource budget.Resource
	budget   *budget.Budget

	mu      sync.Mutex // guards all below
	threads map[string]*countedThread
	open    list.List             // the oldest first
	closed  list.List             // the oldest first
	ofPeer  map[string]*list.List // closed ones of a peer, the oldest first
}

// A countedThread is a thread of a [threadLedger], whose lock guards it.
type countedThread struct {
	key, peer string

	mu          sync.Mutex // held by the one of several changes in progress that uses the holds
	item, bytes budget.Hold

	changes       int // in progress; without one the thread is in a list
	isClosed      bool
	size          int64
	rev           store.Revision // zero means not stored
	changed       time.Time
	inAll, inPeer *list.Element
}

func newThreadLedger(kv store.KV, ttl time.Duration, r budget.Resource) *threadLedger {
	l := &threadLedger{kv: kv, ttl: ttl, resource: r, threads: make(map[string]*countedThread), ofPeer: make(map[string]*list.List)}
	l.budget = budget.New(budget.Limits{}, l.evict)
	return l
}

// begin begins a change of a thread. The caller ends it.
func (l *threadLedger) begin(key, peer string) *countedThread {
	l.sweep()
	l.mu.Lock()
	defer l.mu.Unlock()
	c := l.threads[key]
	if c == nil {
		c = &countedThread{key: key, peer: peer}
		l.threads[key] = c
	}
	l.unlistLocked(c)
	c.changes++
	return c
}

// reserve takes the room for the new value of a thread, or returns a [*budget.Error].
func (l *threadLedger) reserve(c *countedThread, size int, isClosed bool) (err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	scope, n := l.budget.Scope(c.peer, ""), int64(size)+threadBytes
	if c.item == (budget.Hold{}) && !isClosed {
		if c.item, err = scope.Reserve(budget.Items, 1); err != nil {
			return err
		}
	}
	if c.bytes == (budget.Hold{}) {
		c.bytes, err = scope.Reserve(l.resource, n)
	} else {
		err = c.bytes.Resize(n)
	}
	return err
}

// end ends a change. The revision is zero if it was not made, and the size if the thread was removed.
func (l *threadLedger) end(c *countedThread, size int, isClosed bool, rev store.Revision) {
	l.mu.Lock()
	defer l.mu.Unlock()
	c.changes--
	switch {
	case size == 0:
		c.rev = 0
	case rev > c.rev:
		c.rev, c.isClosed, c.size, c.changed = rev, isClosed, int64(size)+threadBytes, time.Now()
	}
	if c.changes > 0 {
		return
	}
	if c.rev == 0 {
		l.forgetLocked(c)
		return
	}
	if !c.isClosed {
		c.inAll = l.open.PushBack(c)
		return
	}
	c.item.Release()
	c.item = budget.Hold{}
	if l.ofPeer[c.peer] == nil {
		l.ofPeer[c.peer] = list.New()
	}
	c.inAll, c.inPeer = l.closed.PushBack(c), l.ofPeer[c.peer].PushBack(c)
}

func (c *countedThread) release() {
	c.item.Release()
	c.bytes.Release()
}

// unlistLocked removes a thread from the lists. l.mu must be held.
func (l *threadLedger) unlistLocked(c *countedThread) {
	switch {
	case c.inPeer != nil:
		l.closed.Remove(c.inAll)
		l.ofPeer[c.peer].Remove(c.inPeer)
		if l.ofPeer[c.peer].Len() == 0 {
			delete(l.ofPeer, c.peer)
		}
	case c.inAll != nil:
		l.open.Remove(c.inAll)
	}
	c.inAll, c.inPeer = nil, nil
}

// forgetLocked ends the count of a thread. l.mu must be held.
func (l *threadLedger) forgetLocked(c *countedThread) {
	l.unlistLocked(c)
	delete(l.threads, c.key)
	c.release()
}

// sweep ends the count of expired threads.
func (l *threadLedger) sweep() {
	if l.ttl == 0 {
		return
	}
	expired := time.Now().Add(-l.ttl)
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, queue := range []*list.List{&l.open, &l.closed} {
		for e := queue.Front(); e != nil && !e.Value.(*countedThread).changed.After(expired); e = queue.Front() {
			l.forgetLocked(e.Value.(*countedThread))
		}
	}
}

// evict removes the oldest closed threads of a peer or, if it is empty, of all until n bytes are free. It returns about how many
// are.
func (l *threadLedger) evict(r budget.Resource, peer string, n int64) (freed int64) {
	if r != l.resource {
		return 0
	}
	var removed []*countedThread
	l.mu.Lock()
	queue := &l.closed
	if peer != "" {
		queue = l.ofPeer[peer]
	}
	for queue != nil && queue.Len() > 0 && freed < n {
		c := queue.Front().Value.(*countedThread)
		l.forgetLocked(c)
		removed = append(removed, c)
		freed += c.size
	}
	l.mu.Unlock()
	ctx, cancel := storeContext(context.Background())
	defer cancel()
	for _, c := range removed {
		_ = l.kv.Delete(ctx, c.key, c.rev) // it expires, or another process has changed it
	}
	return freed
}

// hasRoom returns a [*budget.Error] if there is no room for the thread with an id and a peer.
func (t *ThreadStore) hasRoom(threadID, peer string) error {
	l := t.ledger
	l.mu.Lock()
	isCounted := l.threads[t.key(threadID, peer)] != nil
	l.mu.Unlock()
	if isCounted {
		return nil
	}
	h, err := l.budget.Scope(peer, "").Reserve(budget.Items, 1)
	h.Release()
	return err
}
