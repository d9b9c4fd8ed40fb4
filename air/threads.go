// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package air

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/fivewire/fivewire/air/internal/core"
	"github.com/fivewire/fivewire/internal/option"
	"github.com/fivewire/fivewire/internal/state"
	"github.com/fivewire/fivewire/store"
)

// ThreadStoreOptions adjusts [ThreadStore]. The zero value is right for production.
type ThreadStoreOptions struct {
	// Store keeps the threads. Nil means the memory of this process.
	Store store.KV

	// Retention is the lifetime of a thread after its last message. Zero means 30 days; a
	// negative value means no end.
	Retention time.Duration
}

// A ThreadStore keeps all negotiations of one agent. Share it between the [Inbox] and the [Client]
// of the agent, so that sent and received moves form one thread. All methods are safe for
// concurrent use and, with a shared store, across processes.
type ThreadStore struct {
	self string
	kv   store.KV
	ttl  time.Duration

	outbox atomic.Pointer[outboxStore] // of the last client with one
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
	if t.kv == nil {
		t.kv = store.NewMemory()
	}
	t.ttl = option.Or(t.ttl, 30*24*time.Hour, 0) // a store keeps an entry with a ttl of 0 without end
	return t, nil
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
// conflict with another writer. A change in doubt is repeated for 10 s, whatever becomes of ctx.
func (t *ThreadStore) change(ctx context.Context, threadID, peer string, f func(core.Thread) (core.Thread, error)) (before, after core.Thread, err error) {
	ctx, cancel := storeContext(ctx)
	defer cancel()
	var refusal error
	_, err = store.Modify(ctx, t.kv, t.key(threadID, peer), t.ttl, func(old store.Entry, found bool) ([]byte, error) {
		before = core.Thread{State: core.Pending}
		if found {
			if err := state.Decode(old.Value, &before); err != nil {
				return nil, err
			}
		}
		if after, refusal = f(before); refusal != nil {
			return nil, refusal
		}
		return state.Encode(after)
	})
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
	return t.change(ctx, e.ThreadID, peer, func(th core.Thread) (core.Thread, error) { return th.Apply(m) })
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
	_, _, err := t.change(ctx, e.ThreadID, e.From, func(th core.Thread) (core.Thread, error) {
		if th.LastSum != sum {
			return th, store.ErrUnchanged
		}
		return before, nil
	})
	return err
}
