// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"container/list"
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fivewire/fivewire/internal/budget"
)

// An objectKind is a kind of object that callers make and the store keeps.
type objectKind uint8

const (
	taskObject objectKind = iota // with its subscriptions
	chatObject
	streamObject // resumable
	numKinds
)

const (
	baseBytes = 1 << 10 // of an object in the store, apart from its items
	itemBytes = 64      // of an item, apart from its content
)

// A ledger counts the tasks, chats, subscriptions and streams of an engine and their bytes against the
// budgets of their callers, until the store removes them. Ended objects are evicted, oldest first,
// if their room is needed. Each process counts its own objects.
type ledger struct {
	c        *core
	resource budget.Resource                                               // of the bytes
	remove   func(ctx context.Context, kind objectKind, name string) error // deletes an ended object

	mu      sync.Mutex
	objects map[objectKey]*object    // guarded by mu, like all below
	expiry  [2 * numKinds]list.List  // open objects of a kind, then ended ones; the next to expire first
	queues  map[objectKey]*list.List // by kind and principal, of ended objects, in the same order
}

// An objectKey is a kind with the key of an object or the name of a principal.
type objectKey struct {
	kind objectKind
	name string
}

type object struct {
	objectKey
	principal string
	items     budget.Hold
	bytes     budget.Hold
	expires   time.Time     // zero means never; guarded by ledger.mu
	isEnded   bool          // guarded by ledger.mu
	inExpiry  *list.Element // guarded by ledger.mu
	inEnded   *list.Element // guarded by ledger.mu

	mu            sync.Mutex   // held while n changes
	n             atomic.Int64 // bytes
	subscriptions int64        // to a task; guarded by mu
	attached      int64        // their bytes; guarded by mu
}

func newLedger(c *core) *ledger {
	l := &ledger{c: c, resource: budget.Memory, objects: map[objectKey]*object{}, queues: map[objectKey]*list.List{}}
	if c.isShared {
		l.resource = budget.Storage
	}
	return l
}

// add counts a new object with n bytes of content. A task is counted as an item by its run, and a stream as work.
func (l *ledger) add(kind objectKind, key string, q *Request, n int) error {
	l.sweep()
	o := &object{objectKey: objectKey{kind, key}, principal: q.Account}
	o.n.Store(baseBytes + int64(n))
	scope := l.c.budget.Scope(o.principal, "")
	var err error
	if kind == chatObject {
		o.items, err = scope.Reserve(budget.Items, 1)
	}
	if err == nil {
		o.bytes, err = scope.Reserve(l.resource, o.n.Load())
	}
	if err != nil {
		o.items.Release()
		return Refused(q.Target, err)
	}
	l.mu.Lock()
	old := l.objects[o.objectKey]
	if old != nil { // expired
		l.removeLocked(old)
	}
	l.objects[o.objectKey] = o
	l.mu.Unlock()
	old.release()
	return nil
}

func (o *object) release() {
	if o != nil {
		o.items.Release()
		o.bytes.Release()
	}
}

func (l *ledger) lookup(kind objectKind, key string) *object {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.objects[objectKey{kind, key}]
}

// grow counts n more bytes of an object, or fewer if n is negative.
func (l *ledger) grow(kind objectKind, key string, n int) error {
	o := l.lookup(kind, key)
	if o == nil || n == 0 {
		return nil
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.growLocked(int64(n))
}

// growLocked is grow with o.mu held.
func (o *object) growLocked(n int64) error {
	if err := o.bytes.Resize(o.n.Load() + n); err != nil {
		return Refused("", err)
	}
	o.n.Add(n)
	return nil
}

// attach counts subscriptions to a task, and their bytes. Both may be negative, also for one that another process has
// counted.
func (l *ledger) attach(task string, n int, subscriptions int64) error {
	o := l.lookup(taskObject, task)
	if o == nil {
		return nil
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	bytes, subscriptions := max(int64(n), -o.attached), max(subscriptions, -o.subscriptions)
	err := o.growLocked(bytes)
	switch {
	case err != nil:
		return err
	case subscriptions == 0:
	case o.items == (budget.Hold{}):
		o.items, err = l.c.budget.Scope(o.principal, "").Reserve(budget.Items, subscriptions)
	default:
		err = o.items.Resize(o.subscriptions + subscriptions)
	}
	if err != nil {
		_ = o.growLocked(-bytes) // never more
		return Refused("", err)
	}
	o.attached += bytes
	o.subscriptions += subscriptions
	return nil
}

// renew sets the lifetime of an open object; zero means no end.
func (l *ledger) renew(kind objectKind, key string, ttl time.Duration) {
	l.schedule(kind, key, ttl, false)
}

// end counts an object as ended, with the lifetime of its record. Without a lifetime it is kept,
// and not evicted.
func (l *ledger) end(kind objectKind, key string, ttl time.Duration) {
	l.schedule(kind, key, ttl, true)
}

func (l *ledger) schedule(kind objectKind, key string, ttl time.Duration, isEnded bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	o := l.objects[objectKey{kind, key}]
	if o == nil || o.isEnded {
		return
	}
	l.unlistLocked(o)
	o.isEnded = isEnded
	queue := &l.expiry[kind]
	if isEnded {
		o.items.Release()
		queue = &l.expiry[numKinds+kind]
	}
	if ttl <= 0 {
		return
	}
	o.expires = time.Now().Add(ttl)
	o.inExpiry = queue.PushBack(o)
	if isEnded {
		own := objectKey{kind, o.principal}
		if l.queues[own] == nil {
			l.queues[own] = list.New()
		}
		o.inEnded = l.queues[own].PushBack(o)
	}
}

// unlistLocked removes an object from the queues. l.mu must be held.
func (l *ledger) unlistLocked(o *object) {
	if o.inExpiry != nil {
		kind := o.kind
		if o.isEnded {
			kind += numKinds
		}
		l.expiry[kind].Remove(o.inExpiry)
		o.inExpiry = nil
	}
	if o.inEnded != nil {
		own := objectKey{o.kind, o.principal}
		l.queues[own].Remove(o.inEnded)
		o.inEnded = nil
		if l.queues[own].Len() == 0 {
			delete(l.queues, own)
		}
	}
}

// removeLocked forgets an object, which the caller releases. l.mu must be held.
func (l *ledger) removeLocked(o *object) {
	l.unlistLocked(o)
	delete(l.objects, o.objectKey)
}

// drop ends the count of an object.
func (l *ledger) drop(kind objectKind, key string) {
	l.mu.Lock()
	o := l.objects[objectKey{kind, key}]
	if o != nil {
		l.removeLocked(o)
	}
	l.mu.Unlock()
	o.release()
}

// close ends the count of all objects.
func (l *ledger) close() {
	l.mu.Lock()
	objects := l.objects
	l.objects, l.expiry, l.queues = map[objectKey]*object{}, [2 * numKinds]list.List{}, map[objectKey]*list.List{}
	l.mu.Unlock()
	for _, o := range objects {
		o.release()
	}
}

// sweep ends the count of expired objects, and returns how many there were.
func (l *ledger) sweep() int64 {
	var expired []*object
	now := time.Now()
	l.mu.Lock()
	for i := range l.expiry {
		for e := l.expiry[i].Front(); e != nil && !e.Value.(*object).expires.After(now); e = l.expiry[i].Front() {
			expired = append(expired, e.Value.(*object))
			l.removeLocked(e.Value.(*object))
		}
	}
	l.mu.Unlock()
	for _, o := range expired {
		o.release()
	}
	return int64(len(expired))
}

// evict releases n units of a resource: those of expired objects, then those of the oldest ended
// objects of a principal or, if it is empty, of all. It returns about how many it has released.
func (l *ledger) evict(r budget.Resource, principal string, n int64) int64 {
	released := l.sweep()
	if r != l.resource {
		return released
	}
	var victims []*object
	l.mu.Lock()
	for released < n {
		o := l.oldestLocked(principal)
		if o == nil {
			break
		}
		l.removeLocked(o)
		victims = append(victims, o)
		released += o.n.Load()
	}
	l.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	for _, o := range victims {
		if err := l.remove(ctx, o.kind, o.name); err != nil {
			l.c.log.WarnContext(ctx, "arc: evicted object not deleted", "key", o.name, "err", err)
		}
		o.release()
	}
	return released
}

// oldestLocked returns the ended object that expires first. l.mu must be held.
func (l *ledger) oldestLocked(principal string) (oldest *object) {
	for kind := range numKinds {
		queue := &l.expiry[numKinds+kind]
		if principal != "" {
			queue = l.queues[objectKey{kind, principal}]
		}
		if queue == nil || queue.Len() == 0 {
			continue
		}
		if o := queue.Front().Value.(*object); oldest == nil || o.expires.Before(oldest.expires) {
			oldest = o
		}
	}
	return oldest
}
