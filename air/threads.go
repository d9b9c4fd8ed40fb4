// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package air

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"github.com/fivewire/fivewire/internal/option"
	"github.com/fivewire/fivewire/internal/strictjson"
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
}

// NewThreadStore returns the thread store of the agent self, a DID.
func NewThreadStore(self string, opts *ThreadStoreOptions) (*ThreadStore, error) {
	if _, err := ParseDID(self, ProfileDeployed); err != nil {
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
	e, err := t.kv.Get(ctx, t.key(threadID, peer))
	switch {
	case errors.Is(err, store.ErrNotFound):
		return Thread{State: ThreadPending}, nil
	case err == nil:
		e, err = store.Content(e)
	}
	if err != nil {
		return Thread{}, fmt.Errorf("air: loading a thread: %w", err)
	}
	return unmarshalThread(e.Value)
}

// change applies f to the stored thread, and returns it before and after. f is called again after each
// conflict with another writer. A change in doubt is repeated for 10 s, whatever becomes of ctx.
func (t *ThreadStore) change(ctx context.Context, threadID, peer string, f func(*Thread) error) (before, after Thread, err error) {
	ctx, cancel := storeContext(ctx)
	defer cancel()
	var refused error
	_, err = store.Modify(ctx, t.kv, t.key(threadID, peer), t.ttl, func(old store.Entry, found bool) ([]byte, error) {
		before = Thread{State: ThreadPending}
		if found {
			var err error
			if before, err = unmarshalThread(old.Value); err != nil {
				return nil, err
			}
		}
		after = before
		if refused = f(&after); refused != nil {
			return nil, refused
		}
		return marshalThread(&after), nil
	})
	switch {
	case err == nil:
		return before, after, nil
	case refused != nil:
		return before, before, refused
	}
	return before, before, fmt.Errorf("air: saving a thread: %w", err)
}

// sumOf is a hash of a message, which all its forms share (AIR-D83). The id does not suffice: ids are
// compared only as long as nonces are stored, and threads live longer.
func sumOf(id, inReplyTo string, body Body) messageSum {
	h := sha256.New()
	h.Write([]byte(id + "\x00" + inReplyTo + "\x00"))
	h.Write(body.appendJSON(nil))
	return messageSum(h.Sum(nil)[:16])
}

// apply applies the message of the envelope e. A repetition, after sending it or after a crash,
// counts once.
func (t *ThreadStore) apply(ctx context.Context, e *Envelope, by Party, body Body) (before, after Thread, err error) {
	peer := e.From
	if by == PartySelf {
		peer = e.To
	}
	sum := sumOf(e.ID, e.InReplyTo, body)
	return t.change(ctx, e.ThreadID, peer, func(th *Thread) error {
		if th.applied(by, sum) {
			return nil // the write ends a revert in doubt
		}
		moves := len(th.Moves)
		if err := th.Apply(by, e.ID, e.InReplyTo, body); err != nil {
			return err
		}
		th.lastBy, th.lastSum = by, sum
		if len(th.Moves) > moves {
			th.Moves[moves].sum = sum
		}
		return nil
	})
}

// revert undoes a message whose handling failed, unless another one followed.
func (t *ThreadStore) revert(ctx context.Context, e *Envelope, body Body, before Thread) error {
	sum := sumOf(e.ID, e.InReplyTo, body)
	_, _, err := t.change(ctx, e.ThreadID, e.From, func(th *Thread) error {
		if th.lastSum != sum {
			return store.ErrUnchanged
		}
		*th = before
		return nil
	})
	return err
}

func (th *Thread) applied(by Party, sum messageSum) bool {
	if th.lastSum == sum && th.lastBy == by {
		return true
	}
	for i := range th.Moves {
		if th.Moves[i].sum == sum && th.Moves[i].Party == by {
			return true
		}
	}
	return false
}

func marshalThread(t *Thread) []byte {
	b := strictjson.AppendString([]byte(`{"state":`), string(t.State))
	b = append(b, `,"last":`...)
	b = strictjson.AppendString(b, t.LastMessageID)
	b = append(b, `,"by":`...)
	b = strictjson.AppendString(b, string(t.lastBy))
	b = t.lastSum.appendJSON(b)
	if t.State == ThreadAccepted {
		b = t.Agreed.appendJSON(append(b, `,"agreed":`...))
	}
	b = append(b, `,"moves":[`...)
	for i, m := range t.Moves {
		if i > 0 {
			b = append(b, ',')
		}
		b = strictjson.AppendString(append(b, `{"id":`...), m.ID)
		b = strictjson.AppendString(append(b, `,"by":`...), string(m.Party))
		b = m.Price.appendJSON(append(b, `,"price":`...))
		b = append(m.sum.appendJSON(b), '}')
	}
	return append(b, "]}"...)
}

func (s messageSum) appendJSON(b []byte) []byte {
	return append(hex.AppendEncode(append(b, `,"sum":"`...), s[:]), '"')
}

func parseSum(text string) (s messageSum) {
	if b, err := hex.DecodeString(text); err == nil && len(b) == len(s) {
		s = messageSum(b)
	}
	return s
}

func unmarshalThread(text []byte) (Thread, error) {
	v, err := strictjson.Check(text, strictjson.Options{})
	if err != nil {
		return Thread{}, fmt.Errorf("air: loading a thread: invalid record: %w", err)
	}
	str := func(v strictjson.Value) string { s, _ := v.Text(); return s }
	t := Thread{State: ThreadState(str(v.Get("state"))), LastMessageID: str(v.Get("last")), lastBy: Party(str(v.Get("by"))), lastSum: parseSum(str(v.Get("sum")))}
	t.Agreed, _ = parseMoney(string(v.Get("agreed")))
	for e := v.Get("moves").Elements(); e.Next(); {
		price, _ := parseMoney(string(e.Value.Get("price")))
		t.Moves = append(t.Moves, Move{ID: str(e.Value.Get("id")), Party: Party(str(e.Value.Get("by"))), Price: price, sum: parseSum(str(e.Value.Get("sum")))})
	}
	return t, nil
}
