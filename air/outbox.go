// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package air

import (
	"bytes"
	"cmp"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/fivewire/fivewire/air/internal/core"
	"github.com/fivewire/fivewire/internal/lease"
	"github.com/fivewire/fivewire/internal/retry"
	"github.com/fivewire/fivewire/internal/state"
	"github.com/fivewire/fivewire/store"
)

// An OutboxMessage is a message of [Client.Outbox] (AIR-D84).
type OutboxMessage struct {
	ID, To, ThreadID, InReplyTo string
	Body                        json.RawMessage
	IsSealed                    bool

	Queued    time.Time // by Send
	Attempts  int       // requests to the recipient
	Attempted bool      // a request may have reached the recipient
	Failed    time.Time // when it was refused permanently; zero if it is sent by Resend
	Code      Code      // of the last failure; empty if none
}

// Bounds of an outbox.
const (
	maxOutboxMessages = 10_000
	maxOutboxBytes    = 64 << 20
	outboxIndexMaxAge = time.Second
	outboxIndexReads  = 10 // times the duration of a read: at most a tenth of the time is for reads

	// Resend waits for a Send of another process, longer than for the lease of a crashed one. A Send does not take
	// maxSendTime: after that its process has failed to store the outcome.
	maxSenderWait = 20 * time.Second
	maxSendTime   = time.Hour
)

// A queuedMessage is the stored form of a message. Sender is the lease of the process whose Send delivers it.
type queuedMessage struct {
	OutboxMessage
	Sender lease.Owner `json:",omitempty"`
}

// An outboxStore keeps messages from before their first attempt until they are delivered.
type outboxStore struct {
	kv       store.KV
	prefix   string
	instance *instance // nil: Send has no lease to name

	index[outboxEntry]
	bytes int                 // of the index
	heads map[replayKey]int   // numbers of queued messages in the index, by thread
	last  time.Time           // Queued of the last message
	turns map[replayKey]*turn // of threads with a delivery in progress

	answered map[string]bool // keys of messages with a delivery in progress that the recipient has answered

	served    map[string]bool // recipients that resendLoop serves; guarded by mu
	isListing atomic.Bool     // by a call of resendLoop
}

type outboxEntry struct {
	thread   replayKey
	queued   time.Time
	size     int
	isFailed bool
}

func (m *OutboxMessage) state() core.Sent {
	return core.Sent{Queued: m.Queued, Attempts: m.Attempts, Attempted: m.Attempted, Failed: m.Failed, Code: string(m.Code)}
}

func (m *OutboxMessage) set(s core.Sent) {
	m.Queued, m.Attempts, m.Attempted, m.Failed, m.Code = s.Queued, s.Attempts, s.Attempted, s.Failed, Code(s.Code)
}

func (m *OutboxMessage) entry() outboxEntry {
	return outboxEntry{m.thread(), m.Queued, len(m.Body) + 512, !m.Failed.IsZero()}
}

// setLocked replaces an entry of the index, or removes it. o.mu must be held.
func (o *outboxStore) setLocked(key string, e *outboxEntry) {
	o.changeLocked(key)
	if old, ok := o.entries[key]; ok {
		o.countLocked(&old, -1)
		delete(o.entries, key)
	}
	if e != nil {
		o.entries[key] = *e
		o.countLocked(e, 1)
	}
}

// countLocked counts n entries more, or -n fewer. o.mu must be held.
func (o *outboxStore) countLocked(e *outboxEntry, n int) {
	o.bytes += n * e.size
	if e.isFailed {
		return
	}
	if o.heads[e.thread] += n; o.heads[e.thread] == 0 {
		delete(o.heads, e.thread)
	}
}

func (m *OutboxMessage) thread() replayKey { return outboxThread(m.To, m.ThreadID) }

func outboxThread(to, threadID string) replayKey { return hashKey('q', to, threadID, "") }

func (o *outboxStore) key(id string) string {
	sum := hashKey('o', id, "", "") // an id may exceed the length of a key
	return o.prefix + hex.EncodeToString(sum[:])
}

// A turn is the delivery of the message with a key, which the later ones of its thread wait for.
type turn struct {
	key  string
	done chan struct{}
}

// turn waits until no other delivery of the thread is in progress. The caller calls the result.
func (o *outboxStore) turn(ctx context.Context, m *OutboxMessage) (end func(), err error) {
	thread, own := m.thread(), &turn{o.key(m.ID), make(chan struct{})}
	for {
		o.mu.Lock()
		busy := o.turns[thread]
		if busy == nil {
			if o.turns == nil {
				o.turns, o.answered = make(map[replayKey]*turn), make(map[string]bool)
			}
			o.turns[thread] = own
			o.mu.Unlock()
			return func() {
				o.mu.Lock()
				defer o.mu.Unlock()
				delete(o.answered, own.key)
				if o.turns[thread] == own {
					o.endTurnLocked(thread)
				}
			}, nil
		}
		o.mu.Unlock()
		select {
		case <-busy.done:
		case <-ctx.Done():
			return nil, ErrDeliveryFailed.because("ended before an attempt", ctx.Err())
		}
	}
}

// endTurnLocked ends the turn of a thread. o.mu must be held.
func (o *outboxStore) endTurnLocked(thread replayKey) {
	close(o.turns[thread].done)
	delete(o.turns, thread)
}

// pass lets later messages of a thread pass one that the recipient has answered, although its delivery has no result yet: that
// may wait for them.
func (o *outboxStore) pass(m *ownMove) {
	thread, key := outboxThread(m.to, m.threadID), o.key(m.message.ID)
	o.mu.Lock()
	defer o.mu.Unlock()
	if t := o.turns[thread]; t != nil && t.key == key {
		o.answered[key] = true
		o.endTurnLocked(thread)
	}
}

// list returns the readable messages, oldest first, and the error of an unreadable one. A message that was queued for 30
// days has failed.
func (o *outboxStore) list(ctx context.Context) (list []OutboxMessage, unreadable, err error) {
	queued, unreadable, err := readable(ctx, o.kv, o.prefix, parseOutboxMessage)
	if err != nil {
		return nil, nil, fmt.Errorf("air: reading the outbox: %w", err)
	}
	for _, m := range queued {
		s, isKept := m.state().At(time.Now())
		if m.set(s); isKept {
			list = append(list, m.OutboxMessage)
		}
	}
	slices.SortFunc(list, func(a, b OutboxMessage) int {
		return cmp.Or(a.Queued.Compare(b.Queued), strings.Compare(a.ID, b.ID))
	})
	return list, unreadable, nil
}

// readable returns the entries under a prefix that parse can read. unreadable is the error of another one, for example of a
// later version: it stays in the store and stops no other entry.
func readable[T any](ctx context.Context, kv store.KV, prefix string, parse func(store.Entry) (T, error)) (list []T, unreadable, err error) {
	for e, err := range kv.List(ctx, prefix) {
		if err != nil {
			return nil, nil, err
		}
		v, err := parse(e)
		if err != nil {
			unreadable = fmt.Errorf("%w: key %q", err, e.Key)
			continue
		}
		list = append(list, v)
	}
	return list, unreadable, nil
}

func parseOutboxMessage(e store.Entry) (*queuedMessage, error) {
	m := &queuedMessage{}
	if err := state.Decode(e.Value, m); err != nil {
		return nil, fmt.Errorf("air: invalid message of the outbox: %w", err)
	}
	return m, nil
}

// recall fills in what is stored of a message that Send was called with before. Another queued message with its id would be lost.
func (o *outboxStore) recall(ctx context.Context, m *OutboxMessage) error {
	old, err := o.get(ctx, m.ID)
	switch {
	case errors.Is(err, store.ErrNotFound):
		return nil
	case err != nil:
		return err
	case old.To == m.To && old.ThreadID == m.ThreadID && old.InReplyTo == m.InReplyTo && isSameJSON(old.Body, m.Body):
		m.set(old.state())
	case old.Failed.IsZero():
		return ErrInvalidEnvelope.err("the outbox has another message with this id")
	}
	return nil
}

// isSameJSON reports whether two texts are the same value. A stored text has other spaces and escapes.
func isSameJSON(a, b []byte) bool {
	first, err := Canonicalize(a)
	second, failed := Canonicalize(b)
	return err == nil && failed == nil && bytes.Equal(first, second)
}

// add stores a message, which sender delivers unless an earlier one of its thread is queued, as add reports. isRepeat
// reports that an earlier delivery may have arrived. Only a message with a new id, without one in the draft, has none.
func (o *outboxStore) add(ctx context.Context, m *OutboxMessage, sender lease.Owner, draft *Draft) (isRepeat, isBehind bool, err error) {
	age := indexAge{max: outboxIndexMaxAge}
	if draft.ThreadID == "" { // no other process has messages of a new thread
		age.reads = outboxIndexReads
	}
	if draft.ID != "" {
		err = o.recall(ctx, m)
	}
	if err == nil {
		err = o.refresh(ctx, age)
	}
	if err != nil {
		return false, false, err
	}
	key := o.key(m.ID)
	o.mu.Lock()
	m.set(m.state().Queue(time.Now(), o.last))
	isRepeat, isBehind = m.Attempted, o.isBehindLocked(key, m)
	m.Attempted = isRepeat || !isBehind
	old, isKnown := o.entries[key]
	entry := m.entry()
	if count, size := len(o.entries), o.bytes-old.size+entry.size; !isKnown && count >= maxOutboxMessages || size > maxOutboxBytes {
		defer o.mu.Unlock()
		return false, false, ErrOutboxFull.err(fmt.Sprintf("%d messages, %d bytes", count, o.bytes))
	}
	o.last = later(o.last, m.Queued)
	o.setLocked(key, &entry)
	o.mu.Unlock()
	if isBehind {
		sender = ""
	}
	if err := o.put(ctx, &queuedMessage{*m, sender}, true); err != nil {
		if !isKnown {
			o.forget(key)
		}
		return false, false, err
	}
	return isRepeat, isBehind, nil
}

// isBehindLocked reports whether an earlier message of the thread is queued. o.mu must be held.
func (o *outboxStore) isBehindLocked(key string, m *OutboxMessage) bool {
	thread := m.thread()
	if o.heads[thread] == 0 {
		return false
	}
	for other, e := range o.entries {
		if other != key && e.thread == thread && !e.isFailed && e.queued.Before(m.Queued) && !o.answered[other] {
			return true
		}
	}
	return false
}

// refresh reads the index if it is too old.
func (o *outboxStore) refresh(ctx context.Context, age indexAge) error {
	return o.index.refresh(ctx, age, func() (map[string]outboxEntry, error) {
		list, _, err := o.list(ctx)
		found := make(map[string]outboxEntry, len(list))
		for i := range list {
			found[o.key(list[i].ID)] = list[i].entry()
		}
		return found, err
	}, func(found map[string]outboxEntry) {
		o.heads, o.bytes = make(map[replayKey]int), 0
		for _, e := range found {
			o.countLocked(&e, 1)
			o.last = later(o.last, e.queued)
		}
	})
}

// queuedIn returns the keys of the queued messages of a thread.
func (o *outboxStore) queuedIn(ctx context.Context, thread replayKey) (keys []string, err error) {
	if err := o.refresh(ctx, indexAge{max: outboxIndexMaxAge}); err != nil {
		return nil, err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.heads[thread] == 0 {
		return nil, nil
	}
	for key, e := range o.entries {
		if e.thread == thread && !e.isFailed {
			keys = append(keys, key)
		}
	}
	return keys, nil
}

// queuedAnswer returns the queued message that answers a move of a peer, or nil.
func (o *outboxStore) queuedAnswer(ctx context.Context, peer, threadID, moveID string) (*queuedMessage, error) {
	keys, err := o.queuedIn(ctx, outboxThread(peer, threadID))
	for _, key := range keys {
		m, err := o.getKey(ctx, key)
		switch {
		case errors.Is(err, store.ErrNotFound): // delivered
		case err != nil:
			return nil, err
		case m.InReplyTo == moveID && m.Failed.IsZero():
			return m, nil
		}
	}
	return nil, err
}

// put stores a message. One that is not new must be present, else the error is store.ErrNotFound.
func (o *outboxStore) put(ctx context.Context, m *queuedMessage, isNew bool) error {
	value, err := state.Encode(m)
	if err == nil {
		ctx, cancel := storeContext(ctx)
		defer cancel()
		change := replace
		if isNew {
			change = overwrite
		}
		err = change(ctx, o.kv, o.key(m.ID), value, 2*core.OutboxTTL)
	}
	if err != nil {
		return fmt.Errorf("air: storing a message: %w", err)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if _, ok := o.entries[o.key(m.ID)]; ok || isNew { // a list may have ended before a new message was stored
		entry := m.entry()
		o.setLocked(o.key(m.ID), &entry)
	}
	return nil
}

// overwrite stores a value, whatever the key has.
func overwrite(ctx context.Context, kv store.KV, key string, value []byte, ttl time.Duration) error {
	err := store.Persist(ctx, func(ctx context.Context) error {
		_, err := kv.Create(ctx, key, value, ttl)
		return err
	})
	if errors.Is(err, store.ErrExists) {
		err = replace(ctx, kv, key, value, ttl)
	}
	return err
}

// replace stores a value for a key that has one, or returns store.ErrNotFound.
func replace(ctx context.Context, kv store.KV, key string, value []byte, ttl time.Duration) error {
	for {
		e, err := kv.Get(ctx, key)
		if err != nil {
			return err
		}
		err = store.Persist(ctx, func(ctx context.Context) error {
			_, err := kv.Update(ctx, key, value, e.Revision, ttl)
			return err
		})
		if !errors.Is(err, store.ErrConflict) {
			return err
		}
	}
}

func (o *outboxStore) forget(key string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.setLocked(key, nil)
}

func (o *outboxStore) remove(ctx context.Context, id string) error {
	ctx, cancel := storeContext(ctx)
	defer cancel()
	key := o.key(id)
	err := store.Persist(ctx, func(ctx context.Context) error { return o.kv.Delete(ctx, key, 0) })
	if err != nil {
		return fmt.Errorf("air: removing a message: %w", err)
	}
	o.forget(key)
	return nil
}

// owner returns the lease of this process, "" for none.
func (o *outboxStore) owner() lease.Owner {
	if o.instance == nil {
		return ""
	}
	select {
	case <-o.instance.ready:
		return o.instance.lease.Owner()
	default:
		return ""
	}
}

// waitSender returns a message once no Send in another process delivers it. The turn of the thread must be held.
func (o *outboxStore) waitSender(ctx context.Context, id string) (*queuedMessage, error) {
	for begin := time.Now(); ; {
		m, err := o.get(ctx, id)
		if err != nil || o.instance == nil || m.Sender == "" || m.Sender == o.owner() {
			return m, err
		}
		if err := o.instance.wait(ctx); err != nil {
			return nil, err
		}
		isAlive, err := o.instance.lease.Alive(ctx, m.Sender)
		switch {
		case err != nil || !isAlive || time.Since(m.Queued) >= maxSendTime:
			return m, err
		case time.Since(begin) >= maxSenderWait:
			return nil, ErrDeliveryFailed.err("another process makes a delivery")
		}
		if err := retry.Sleep(ctx, outboxIndexMaxAge); err != nil {
			return nil, err
		}
	}
}

// get returns a message, or store.ErrNotFound.
func (o *outboxStore) get(ctx context.Context, id string) (*queuedMessage, error) {
	return o.getKey(ctx, o.key(id))
}

func (o *outboxStore) getKey(ctx context.Context, key string) (*queuedMessage, error) {
	e, err := o.kv.Get(ctx, key)
	if err != nil {
		return nil, fmt.Errorf("air: reading a message: %w", err)
	}
	return parseOutboxMessage(e)
}

// end records the outcome of a delivery. isRepeat is set if an earlier delivery may have arrived.
func (o *outboxStore) end(ctx context.Context, m *OutboxMessage, isRepeat bool, r *Receipt, err error) error {
	if r != nil {
		return o.remove(ctx, m.ID)
	}
	e := asError(err)
	m.set(m.state().End(time.Now(), isRepeat, e.Attempts, string(e.Code)))
	if err := o.put(ctx, &queuedMessage{OutboxMessage: *m}, false); !errors.Is(err, store.ErrNotFound) {
		return err
	}
	return nil // discarded, or delivered by another process
}

// Outbox returns the messages that are not delivered, oldest first. If this version cannot read one of them, for example
// one that a later version stored, Outbox returns the others and an error that names it.
func (c *Client) Outbox(ctx context.Context) ([]OutboxMessage, error) {
	if c.outbox == nil {
		return nil, nil
	}
	list, unreadable, err := c.outbox.list(ctx)
	return list, cmp.Or(err, unreadable)
}

// Retry makes Resend send a message that was refused permanently or was queued for 30 days.
func (c *Client) Retry(ctx context.Context, id string) error {
	if c.outbox == nil {
		return store.ErrNotFound
	}
	m, err := c.outbox.get(ctx, id)
	if err != nil {
		return err
	}
	m.set(m.state().Retry(time.Now()))
	return c.outbox.put(ctx, m, false)
}

// Discard removes a message from the outbox.
func (c *Client) Discard(ctx context.Context, id string) error {
	if c.outbox == nil {
		return store.ErrNotFound
	}
	if _, err := c.outbox.get(ctx, id); err != nil {
		return err
	}
	return c.outbox.remove(ctx, id)
}
