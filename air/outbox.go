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
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fivewire/fivewire/air/internal/core"
	"github.com/fivewire/fivewire/internal/lease"
	"github.com/fivewire/fivewire/internal/life"
	"github.com/fivewire/fivewire/internal/once"
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

	mu    sync.Mutex
	index map[string]outboxEntry // by key; with changes of other processes after a second
	bytes int                    // of the index
	heads map[replayKey]int      // numbers of queued messages in the index, by thread
	read  time.Time              // of the index
	reads indexReads
	last  time.Time           // Queued of the last message
	turns map[replayKey]*turn // of threads with a delivery in progress

	answered map[string]bool // keys of messages with a delivery in progress that the recipient has answered

	served    map[string]bool // recipients that resendLoop serves; guarded by mu
	isListing atomic.Bool     // by a call of resendLoop
}

// indexReads has the reads of an index in progress, each with the keys that have changed since it began: the store may have
// returned old entries for them. The lock of the index guards it.
type indexReads struct {
	last    int
	changed map[int]map[string]bool // by the number of the read
}

func (r *indexReads) begin() (read int) {
	if r.changed == nil {
		r.changed = make(map[int]map[string]bool)
	}
	r.last++
	r.changed[r.last] = make(map[string]bool)
	return r.last
}

// change reports a change of the entry with a key.
func (r *indexReads) change(key string) {
	for _, changed := range r.changed {
		changed[key] = true
	}
}

// endRead returns the entries that a read has found, except for the keys that have changed since: those have the old entries.
func endRead[E any](r *indexReads, read int, old, found map[string]E) map[string]E {
	for key := range r.changed[read] {
		delete(found, key)
		if e, ok := old[key]; ok {
			found[key] = e
		}
	}
	delete(r.changed, read)
	return found
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
	o.reads.change(key)
	if old, ok := o.index[key]; ok {
		o.bytes -= old.size
		if !old.isFailed {
			o.heads[old.thread]--
		}
		if o.heads[old.thread] == 0 {
			delete(o.heads, old.thread)
		}
		delete(o.index, key)
	}
	if e == nil {
		return
	}
	o.index[key] = *e
	o.bytes += e.size
	if !e.isFailed {
		o.heads[e.thread]++
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
// reports that an earlier delivery may have arrived. Only a message with a new id has none.
func (o *outboxStore) add(ctx context.Context, m *OutboxMessage, sender lease.Owner, isNew bool) (isRepeat, isBehind bool, err error) {
	if !isNew {
		err = o.recall(ctx, m)
	}
	if err == nil {
		err = o.refresh(ctx)
	}
	if err != nil {
		return false, false, err
	}
	key := o.key(m.ID)
	o.mu.Lock()
	m.set(m.state().Queue(time.Now(), o.last))
	isRepeat, isBehind = m.Attempted, o.isBehindLocked(key, m)
	m.Attempted = isRepeat || !isBehind
	old, isKnown := o.index[key]
	entry := m.entry()
	if count, size := len(o.index), o.bytes-old.size+entry.size; !isKnown && count >= maxOutboxMessages || size > maxOutboxBytes {
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
	for other, e := range o.index {
		if other != key && e.thread == thread && !e.isFailed && e.queued.Before(m.Queued) && !o.answered[other] {
			return true
		}
	}
	return false
}

// refresh reads the index if it is too old.
func (o *outboxStore) refresh(ctx context.Context) error {
	o.mu.Lock()
	if o.index != nil && time.Since(o.read) < outboxIndexMaxAge {
		o.mu.Unlock()
		return nil
	}
	read := o.reads.begin()
	o.mu.Unlock()
	list, _, err := o.list(ctx)
	found := make(map[string]outboxEntry)
	for i := range list {
		found[o.key(list[i].ID)] = list[i].entry()
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	found = endRead(&o.reads, read, o.index, found)
	if err != nil {
		return err
	}
	o.index, o.heads, o.bytes, o.read = make(map[string]outboxEntry), make(map[replayKey]int), 0, time.Now()
	for key, entry := range found {
		o.last = later(o.last, entry.queued)
		o.setLocked(key, &entry)
	}
	return nil
}

// queuedIn returns the keys of the queued messages of a thread.
func (o *outboxStore) queuedIn(ctx context.Context, thread replayKey) (keys []string, err error) {
	if err := o.refresh(ctx); err != nil {
		return nil, err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.heads[thread] == 0 {
		return nil, nil
	}
	for key, e := range o.index {
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
	if _, ok := o.index[o.key(m.ID)]; ok {
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

// Resend delivers each message of the outbox once, oldest first, except those that were refused
// permanently and those behind a message of their thread that stays. Up to eight recipients are served at a
// time, so that a silent recipient delays no other. It returns the number of delivered messages
// and the errors of the others. If the outbox is a [store.Store], calls of several processes make one delivery of
// each message in all. That of an [Agent] with a handler makes none
// during the Send of another such process. A silent recipient takes minutes for each of its messages, and
// Resend waits for all; ResendEvery serves the others in time.
func (c *Client) Resend(ctx context.Context) (delivered int, err error) {
	if c.outbox == nil {
		return 0, nil
	}
	return c.resendAll(ctx, false)
}

// resendAll is Resend, or a call by resendLoop, which omits the recipients that an earlier one serves.
func (c *Client) resendAll(ctx context.Context, isLoop bool) (delivered int, err error) {
	list, unreadable, err := c.listQueued(ctx, isLoop)
	if err != nil || len(list) == 0 {
		return 0, cmp.Or(err, unreadable)
	}
	claims, release, err := c.outbox.share(ctx, c.did, c.log)
	if err != nil {
		return 0, err
	}
	defer release()
	var order []string
	queued := make(map[string][]*OutboxMessage)
	for i := range list {
		m := &list[i]
		if queued[m.To] == nil {
			order = append(order, m.To)
		}
		queued[m.To] = append(queued[m.To], m)
	}
	var (
		mu    sync.Mutex
		wg    sync.WaitGroup
		errs  = []error{unreadable}
		slots = make(chan struct{}, maxRecipients)
		kind  = life.Request
	)
	if isLoop {
		kind = life.Idle // a shutdown does not wait, since the messages are in the outbox
	}
	for _, to := range order {
		slots <- struct{}{}
		if isLoop && !c.outbox.serve(to) {
			<-slots
			continue
		}
		wg.Go(func() {
			defer func() { <-slots }()
			if isLoop {
				defer c.outbox.endServe(to)
			}
			n, failures := c.resendTo(ctx, kind, claims, queued[to])
			mu.Lock()
			defer mu.Unlock()
			delivered, errs = delivered+n, append(errs, failures...)
		})
	}
	wg.Wait()
	return delivered, errors.Join(errs...)
}

// listQueued returns the messages to resend, none while an earlier call by resendLoop waits for the store.
func (c *Client) listQueued(ctx context.Context, isLoop bool) (list []OutboxMessage, unreadable, err error) {
	if isLoop {
		if !c.outbox.isListing.CompareAndSwap(false, true) {
			return nil, nil, nil
		}
		defer c.outbox.isListing.Store(false)
	}
	list, unreadable, err = c.outbox.list(ctx)
	isOmitted := func(m OutboxMessage) bool { return !m.Failed.IsZero() || isLoop && c.outbox.isServed(m.To) }
	list = slices.DeleteFunc(list, isOmitted)
	for i := range list {
		list[i].Body = nil // resend reads it: many calls may wait with a list
	}
	return list, unreadable, err
}

// share returns the claims of the threads that processes with the same store deliver at the moment. The caller calls
// release.
func (o *outboxStore) share(ctx context.Context, did string, log *slog.Logger) (claims *once.Table, release func(), err error) {
	db, isShared := o.kv.(store.Store)
	if !isShared {
		claims = once.New(nil, nil, once.Options{Logger: log})
		return claims, func() { _ = claims.Close() }, nil
	}
	prefix := "air/" + state.Join("resend", did) + "/"
	l, err := lease.Acquire(ctx, db, lease.Options{Prefix: prefix, Logger: log})
	if err != nil {
		return nil, nil, fmt.Errorf("air: claiming the outbox: %w", err)
	}
	claims = once.New(db, l, once.Options{Prefix: prefix, StoreTimeout: storeTimeout, Logger: log})
	return claims, func() {
		ctx, cancel := storeContext(ctx)
		defer cancel()
		_ = claims.Shutdown(ctx)
		_ = l.Release(ctx)
	}, nil
}

// maxRecipients is the number of recipients that Resend and SendEach serve at a time.
const maxRecipients = 8

// resendTo delivers the messages to one recipient.
func (c *Client) resendTo(ctx context.Context, kind life.Kind, claims *once.Table, list []*OutboxMessage) (
	delivered int, errs []error) {
	blocked := make(map[replayKey]bool)
	for _, m := range list {
		thread := m.thread()
		if blocked[thread] {
			continue
		}
		var r *Receipt
		var err error
		key := once.Key{Principal: c.did, Scope: "thread", ID: hex.EncodeToString(thread[:])}
		_, _, failed := claims.Do(ctx, key, once.Repeat, func(ctx context.Context, _ once.Claim) (once.Result, error) {
			r, err = c.guarded(ctx, kind, func(ctx context.Context) (*Receipt, error) { return c.resend(ctx, m) })
			return once.Result{Forget: true}, nil
		})
		m.Body = nil
		if err = errors.Join(err, failed); r != nil {
			delivered++
		}
		if err != nil {
			errs = append(errs, err)
			blocked[thread] = r == nil && m.Failed.IsZero()
		}
	}
	return delivered, errs
}

// resend makes one delivery of a message, unless another process has made one since it was listed.
func (c *Client) resend(ctx context.Context, m *OutboxMessage) (*Receipt, error) {
	end, err := c.outbox.turn(ctx, m)
	if err != nil {
		return nil, err
	}
	defer end()
	listed := m.Attempts
	stored, err := c.outbox.waitSender(ctx, m.ID)
	switch {
	case errors.Is(err, store.ErrNotFound): // delivered or discarded
		return nil, nil
	case err != nil:
		return nil, err
	}
	if *m = stored.OutboxMessage; m.Attempts != listed || !m.Failed.IsZero() {
		return nil, ErrDeliveryFailed.err("another process has made a delivery")
	}
	d := &Draft{ID: m.ID, From: c.did, To: m.To, ThreadID: m.ThreadID, InReplyTo: m.InReplyTo, Body: &Raw{JSON: m.Body}}
	body, err := DecodeBody(m.Body, ProfileDeployed)
	if err == nil {
		d.Body = body
	}
	isRepeat := m.Attempted
	if m.Attempted = true; !isRepeat { // stored before the first attempt, as by Send
		err := c.outbox.put(ctx, &queuedMessage{OutboxMessage: *m}, false)
		if errors.Is(err, store.ErrNotFound) {
			return nil, nil
		}
		if err != nil {
			return nil, err
		}
	}
	r, err := c.deliverDraft(ctx, d, m.IsSealed || c.opts.RequireSealed, nil, isRepeat)
	var unrecorded *unrecordedError
	if errors.As(err, &unrecorded) {
		return nil, err
	}
	return r, errors.Join(err, c.outbox.end(ctx, m, isRepeat, r, err))
}

// resendLoop calls resendAll until the client is closed. A call that takes long, because its recipients do not answer, does
// not delay the next one.
func (c *Client) resendLoop(ctx context.Context) {
	for retry.Sleep(ctx, c.opts.ResendEvery) == nil {
		_ = c.life.Go("resend", func(ctx context.Context) {
			if _, err := c.resendAll(ctx, true); err != nil && ctx.Err() == nil {
				c.log.Log(ctx, c.resends.Level("resend"), "air: messages not delivered", "err", err)
			}
		})
	}
}

func (o *outboxStore) isServed(to string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.served[to]
}

// maxServed is the number of recipients that all calls by resendLoop serve at a time.
const maxServed = 256

// serve reports whether resendLoop does not serve a recipient yet and may serve one more. The caller serves it then, and
// calls endServe.
func (o *outboxStore) serve(to string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.served == nil {
		o.served = make(map[string]bool)
	}
	isFree := !o.served[to] && len(o.served) < maxServed
	if isFree {
		o.served[to] = true
	}
	return isFree
}

func (o *outboxStore) endServe(to string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.served, to)
}
