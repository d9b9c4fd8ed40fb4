// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package a2e

import (
	"slices"
	"sync"
	"time"

	"github.com/fivewire/fivewire/internal/budget"
	"github.com/fivewire/fivewire/internal/lazy"
)

const (
	baseStorage = 4 << 10     // bytes of a durable session without messages
	itemStorage = 64          // bytes of an entry of a log besides its content
	maxPast     = 16 << 10    // ended sessions whose messages are kept
	storagePoll = time.Second // of a session over its budget, and of an inbox that is read elsewhere
)

// A storage counts what durable sessions keep in the store: their bodies until these are answered,
// and their messages. The messages of an ended session are removed if their space is needed, the oldest
// session first.
type storage struct {
	mu     sync.Mutex               // guards everything below
	bodies map[string][]*storedBody // of sessions by key
	polled map[string]bool          // the inboxes that are read elsewhere
	past   []pastSession            // the oldest first
	expiry *time.Timer              // of the oldest
}

// A storedBody is an entry of an inbox.
type storedBody struct {
	id   string
	pos  uint64 // 0 until it is stored
	hold budget.Hold
}

type pastSession struct {
	key, principal string
	hold           budget.Hold
	n              int64
	expires        time.Time
}

// addBody counts an entry of an inbox until release.
func (t *storage) addBody(key string, b *storedBody) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.bodies[key] = append(t.bodies[key], b)
}

// release ends the counting of the entries of an inbox that f selects, and reports whether others are
// left.
func (t *storage) release(key string, f func(b *storedBody) bool) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	rest := slices.DeleteFunc(t.bodies[key], func(b *storedBody) bool {
		isDone := f(b)
		if isDone {
			b.hold.Release()
		}
		return isDone
	})
	if t.bodies[key] = rest; len(rest) == 0 {
		delete(t.bodies, key)
		delete(t.polled, key)
	}
	return len(rest) > 0
}

func anyBody(*storedBody) bool { return true }

// pollInbox releases the entries that another process has removed from an inbox.
func (d *durable) pollInbox(key string, b *storedBody, pos uint64) {
	t := &d.storage
	t.mu.Lock()
	b.pos = pos
	isPolled := t.polled[key]
	t.polled[key] = true
	t.mu.Unlock()
	if isPolled {
		return
	}
	d.spawn(func() {
		for isLeft := true; isLeft; {
			select {
			case <-time.After(storagePoll):
			case <-d.ctx.Done():
				return
			}
			if page, err := d.db.Read(d.ctx, inboxName(key), 0, 1); err == nil {
				isLeft = t.release(key, func(b *storedBody) bool { return b.pos != 0 && (len(page) == 0 || b.pos < page[0].Seq) })
			}
		}
	})
}

// addPast counts the messages of an ended session until the store removes them.
func (d *durable) addPast(k *kept) {
	t, life, n := &d.storage, d.host.patience(), k.size()
	_ = k.hold.Resize(n)
	principal, _ := k.session.account(k.session.Principal())
	e := pastSession{k.key, principal, k.hold, n, time.Now().Add(life)}
	k.hold = budget.Hold{}
	t.mu.Lock()
	t.past = append(t.past, e)
	if t.expiry == nil {
		t.expiry = time.AfterFunc(life, t.expire)
	}
	isFull := len(t.past) > maxPast
	t.mu.Unlock()
	if isFull {
		d.evict("", 1)
	}
}

// expire releases the sessions whose messages the store has removed.
func (t *storage) expire() {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := 0
	for ; n < len(t.past) && !time.Now().Before(t.past[n].expires); n++ {
		t.past[n].hold.Release()
	}
	t.past = slices.Delete(t.past, 0, n)
	if t.expiry = nil; len(t.past) > 0 {
		t.expiry = time.AfterFunc(time.Until(t.past[0].expires), t.expire)
	}
}

// evict removes the messages of ended sessions of a principal, or of any, with n bytes or more.
func (d *durable) evict(principal string, n int64) (evicted int64) {
	t := &d.storage
	t.mu.Lock()
	var keys []string
	t.past = slices.DeleteFunc(t.past, func(e pastSession) bool {
		if evicted >= n || principal != "" && e.principal != principal {
			return false
		}
		e.hold.Release()
		keys, evicted = append(keys, e.key), evicted+e.n
		return true
	})
	t.mu.Unlock()
	_, streams, err := d.parts()
	if len(keys) == 0 || err != nil {
		return evicted
	}
	d.spawn(func() {
		ctx, cancel := lazy.WithTimeout(d.ctx, storeOutage)
		defer cancel()
		for _, key := range keys {
			_ = streams.Remove(ctx, key) // it expires otherwise
		}
	})
	return evicted
}

// close releases everything.
func (t *storage) close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, bodies := range t.bodies {
		for _, b := range bodies {
			b.hold.Release()
		}
	}
	for _, e := range t.past {
		e.hold.Release()
	}
	clear(t.bodies)
	t.past = nil
}

// discard ends a session whose handshake fails after it was stored.
func (k *kept) discard() {
	k.end()
	k.hold.Release()
	k.cancel()
}

// size returns the bytes of the session in the store besides its inbox.
func (k *kept) size() int64 {
	k.mu.Lock()
	defer k.mu.Unlock()
	return baseStorage + k.writer.Size() + k.claimBytes
}

// reserve waits until the budget has space for lines, and reports whether it has.
func (k *kept) reserve(lines [][]byte) bool {
	n := int64(0)
	for _, line := range lines {
		n += int64(len(line)) + itemStorage
	}
	for k.hold.Resize(k.size()+n) != nil {
		select {
		case <-time.After(storagePoll):
		case <-k.session.ctx.Done():
			return k.hold.Resize(k.size()+n) == nil
		case <-k.ctx.Done():
			return false
		}
	}
	return true
}
