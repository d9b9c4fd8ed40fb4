// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package air

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fivewire/fivewire/air/internal/core"
	"github.com/fivewire/fivewire/internal/budget"
	"github.com/fivewire/fivewire/internal/option"
	"github.com/fivewire/fivewire/internal/state"
	"github.com/fivewire/fivewire/store"
)

// ThreadStoreOptions adjusts [ThreadStore]. The zero value is right for production.
type ThreadStoreOptions struct {
	// Store keeps the threads. Nil means the memory of this process.
	Store store.KV

	// Retention is the lifetime of a thread after its last message, unless it is closed and there is no room. Zero means 30 days; a
	// negative value means no end.
	Retention time.Duration
}

// A ThreadStore keeps all negotiations of one agent. Share it between the [Inbox] and the [Client]
// of the agent, so that sent and received moves form one thread. All methods are safe for
// concurrent use and, with a shared store, across processes.
//
// A peer has at most 10,000 open threads, and 64 MiB of threads, or 1 GiB with a Store. In memory all have at most the lesser of
// 256 MiB and a third of GOMEMLIMIT. Closed threads make room for others, oldest first, then moves are refused as [ErrRateLimited].
// Each process counts the threads that it has changed since its start, so several processes, or a restart, permit more.
type ThreadStore struct {
	self string
	kv   store.KV
	ttl  time.Duration

	ledger *threadLedger
	outbox atomic.Pointer[outboxStore] // of the last client with one

	mu      sync.Mutex
	sending map[string]ownMove // moves with a delivery in progress, by id; guarded by mu
}

// An ownMove is a move that the agent sends.
type ownMove struct {
	to, threadID string
	message      core.Message
}

// send notes a move while it is delivered. The caller calls the result.
func (t *ThreadStore) send(d *Draft, body Body) (end func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.sending == nil {
		t.sending = make(map[string]ownMove)
	}
	t.sending[d.ID] = ownMove{d.To, d.ThreadID, messageOf(true, d.ID, d.InReplyTo, body)}
	return func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		delete(t.sending, d.ID)
	}
}

// NewThreadStore returns the thread store of the agent self, a DID.
func NewThreadStore(self string, opts *ThreadStoreOptions) (*ThreadStore, error) {
	if _, err := parseDID(self, ProfileDeployed); err != nil {
		return nil, err
	}
	t := &ThreadStore{self: self}
	if opts != nil {
		t.kv, t.ttl = opts.Store, opts.Retention
	}
	resource := budget.Storage
	if t.kv == nil {
		t.kv, resource = store.NewMemory(), budget.Memory
	}
	t.ttl = option.Or(t.ttl, 30*24*time.Hour, 0) // a store keeps an entry with a ttl of 0 without end
	t.ledger = newThreadLedger(t.kv, t.ttl, resource)
	return t, nil
}

// check returns an error if the threads are those of another agent than did.
func (t *ThreadStore) check(did string) error {
	if t != nil && t.self != did {
		return fmt.Errorf("air: ThreadStore of %s for agent %s", t.self, did)
	}
	return nil
}

// key identifies a thread by its id and the two parties: the same id with another agent is another
// thread (AIR-D52).
func (t *ThreadStore) key(threadID, peer string) string {
	sum := sha256.Sum256([]byte(t.self + "\x00" + peer + "\x00" + threadID))
	return "air/thread/" + hex.EncodeToString(sum[:])
}

// Get returns the current state of a thread. An unknown thread is pending.
func (t *ThreadStore) Get(ctx context.Context, threadID, peer string) (Thread, error) {
	th := core.Thread{State: core.Pending}
	e, err := t.kv.Get(ctx, t.key(threadID, peer))
	if err == nil {
		e, err = store.Content(e)
	}
	if err == nil {
		err = state.Decode(e.Value, &th)
	}
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return Thread{}, fmt.Errorf("air: loading a thread: %w", err)
	}
	return threadOf(th), nil
}

// change applies f to the stored thread, and returns it before and after. f is called again after each
// conflict with another writer. A change in doubt is repeated for 10 s, whatever becomes of ctx. Without room for the thread the
// error is a [*budget.Error], unless the move is an own one or closes the thread, which can be removed then.
func (t *ThreadStore) change(ctx context.Context, threadID, peer string, isOwn bool, f func(core.Thread) (core.Thread, error)) (before, after core.Thread, err error) {
	ctx, cancel := storeContext(ctx)
	defer cancel()
	var refusal error
	key, size := t.key(threadID, peer), -1
	counted := t.ledger.begin(key, peer)
	e, err := store.Modify(ctx, t.kv, key, t.ttl, func(old store.Entry, found bool) ([]byte, error) {
		before = core.Thread{State: core.Pending}
		if found {
			if err := state.Decode(old.Value, &before); err != nil {
				return nil, err
			}
		}
		if after, refusal = f(before); refusal != nil {
			return nil, refusal
		}
		if size = 0; after.State == core.Pending {
			return nil, nil
		}
		value, err := state.Encode(after)
		if err != nil {
			return nil, err
		}
		size = len(value)
		if full := t.ledger.reserve(counted, size, after.IsClosed()); full != nil && !isOwn && !after.IsClosed() {
			refusal = full
			return nil, refusal
		}
		return value, nil
	})
	if err != nil {
		size = -1
	}
	t.ledger.end(counted, size, after.IsClosed(), e.Revision)
	switch {
	case err == nil:
		return before, after, nil
	case refusal != nil:
		return before, before, refused(refusal)
	}
	return before, before, fmt.Errorf("air: saving a thread: %w", err)
}

// apply applies the message of the envelope e. A repetition, after sending it or after a crash,
// counts once; its write ends a revert in doubt.
func (t *ThreadStore) apply(ctx context.Context, e *Envelope, isOwn bool, body Body) (before, after core.Thread, err error) {
	peer, m := e.From, messageOf(isOwn, e.ID, e.InReplyTo, body)
	if isOwn {
		peer = e.To
	}
	return t.change(ctx, e.ThreadID, peer, isOwn, func(th core.Thread) (core.Thread, error) { return th.Apply(m) })
}

// receive is apply for a received message.
func (t *ThreadStore) receive(ctx context.Context, e *Envelope, body Body) (before, after core.Thread, err error) {
	isOwn := t.self == e.From
	before, after, err = t.apply(ctx, e, isOwn, body)
	if _, isRefused := errors.AsType[*Error](err); !isRefused || isOwn {
		return before, after, err
	}
	isConfirmed, failed := t.confirm(ctx, e, before)
	switch {
	case failed != nil:
		return before, after, failed
	case isConfirmed:
		return t.apply(ctx, e, isOwn, body)
	}
	return before, after, err
}

// confirm applies the own message that a received one answers, if its delivery has no result yet: the answer is one. It reports
// whether it has applied one.
func (t *ThreadStore) confirm(ctx context.Context, e *Envelope, th core.Thread) (bool, error) {
	if th.IsClosed() || e.InReplyTo == "" {
		return false, nil
	}
	m, err := t.undelivered(ctx, e.InReplyTo)
	if err != nil || m.to != e.From || m.threadID != e.ThreadID {
		return false, err
	}
	_, _, err = t.change(ctx, e.ThreadID, e.From, true, func(th core.Thread) (core.Thread, error) { return th.Apply(m.message) })
	if _, isRefused := errors.AsType[*Error](err); isRefused {
		return false, nil
	}
	if o := t.outbox.Load(); o != nil && err == nil {
		o.pass(&m)
	}
	return err == nil, err
}

// undelivered returns an own move whose delivery has no result yet, or none.
func (t *ThreadStore) undelivered(ctx context.Context, id string) (ownMove, error) {
	t.mu.Lock()
	m, ok := t.sending[id]
	t.mu.Unlock()
	o := t.outbox.Load()
	if ok || o == nil {
		return m, nil
	}
	q, err := o.get(ctx, id)
	if errors.Is(err, store.ErrNotFound) {
		return m, nil
	}
	if err != nil {
		return m, err
	}
	body := moveOf(&Raw{JSON: q.Body})
	if !isMove(body) {
		return m, nil
	}
	return ownMove{q.To, q.ThreadID, messageOf(true, id, q.InReplyTo, body)}, nil
}

// revert undoes a message whose handling failed, unless another one followed or is queued in the outbox: it would not be valid
// then.
func (t *ThreadStore) revert(ctx context.Context, e *Envelope, body Body, before core.Thread) error {
	if o := t.outbox.Load(); o != nil {
		ctx, cancel := storeContext(ctx)
		defer cancel()
		if queued, err := o.queuedIn(ctx, outboxThread(e.From, e.ThreadID)); err != nil || len(queued) > 0 {
			return err
		}
	}
	sum := sumOf(e.ID, e.InReplyTo, body)
	_, _, err := t.change(ctx, e.ThreadID, e.From, true, func(th core.Thread) (core.Thread, error) {
		if th.LastSum != sum {
			return th, store.ErrUnchanged
		}
		return before, nil
	})
	return err
}
