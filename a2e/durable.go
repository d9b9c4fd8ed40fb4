// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package a2e

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/fivewire/fivewire/a2e/internal/session"
	"github.com/fivewire/fivewire/internal/budget"
	"github.com/fivewire/fivewire/internal/lazy"
	"github.com/fivewire/fivewire/internal/lease"
	"github.com/fivewire/fivewire/internal/randid"
	"github.com/fivewire/fivewire/internal/retry"
	"github.com/fivewire/fivewire/internal/state"
	"github.com/fivewire/fivewire/internal/streamlog"
	"github.com/fivewire/fivewire/store"
)

const (
	storePrefix  = "a2e/"
	storeOutage  = 10 * time.Second    // of one attempt of a change
	storeKeep    = 30 * 24 * time.Hour // lifetime of the data of a session
	sessionKind  = "session"           // of index entries and notices
	streamWindow = 1 << 20             // bytes that a stored stream is ahead of its reader
)

// errStore reports that the store failed or that the host has no lease yet.
var errStore = errors.New("a2e: store unavailable")

// A durable is the part of a host whose sessions survive it (A2E-D67). Its sessions are those that
// this process owns. The key of a session is the SHA-256 of its secret.
//
// A session is a record, a log of received bodies, a log of claims, and a stream of messages. A body
// stays in its log until its requests are answered and the answers are stored. A claim precedes the
// handler of a request. So the survivor of a failed owner finds what to answer, and what to run.
type durable struct {
	host     *Host
	db       store.Store
	ctx      context.Context // ends with the host
	cancel   context.CancelFunc
	start    sync.Once
	acquired chan struct{} // closed when the lease is acquired and sessions are taken over
	work     sync.WaitGroup
	storage  storage

	mu       sync.Mutex               // guards everything below
	lease    *lease.Lease             // nil until it is acquired
	streams  *streamlog.Table         // set with lease
	sessions map[string]*kept         // owned here, by key
	readers  map[string]*streamReader // of any session, by key
	isClosed bool                     // no goroutine is started
}

func newDurable(h *Host, db store.Store) *durable {
	d := &durable{host: h, db: state.Guard(db), acquired: make(chan struct{}), sessions: map[string]*kept{}, readers: map[string]*streamReader{},
		storage: storage{bodies: map[string][]*storedBody{}, polled: map[string]bool{}}}
	d.ctx, d.cancel = context.WithCancel(context.Background())
	return d
}

// A sessionRecord is what the store keeps of a session besides its logs.
type sessionRecord struct {
	Owner     lease.Owner
	Term      int `json:",omitempty"` // counts the take-overs
	ID        string
	AgentID   string
	OwnerID   string     `json:",omitempty"`
	Peer      string     `json:",omitempty"`
	Principal *Principal `json:",omitempty"`
	Names     []string   // the agreed capabilities, flags and extensions
	Reads     [2]int     // bounds of the agent
	IsEnded   bool       `json:",omitempty"`
	Last      uint64     `json:",omitempty"` // of an ended session: its last message

	scope *budget.Scope // of a session that this process owns
}

func sessionKey(secret string) string {
	sum := sha256.Sum256([]byte(secret))
	return hex.EncodeToString(sum[:])
}

func recordKey(key string) string { return storePrefix + "session/" + key }
func inboxName(key string) string { return storePrefix + "in/" + key }
func claimName(key string) string { return storePrefix + "claim/" + key }
func offerKey(key string) string  { return storePrefix + "offered/" + key }

// begin acquires the lease of the process, in the background until that succeeds.
func (d *durable) begin() {
	d.start.Do(func() {
		d.spawn(func() {
			policy := retry.Policy{Base: time.Second, Max: 10 * time.Second, Logger: d.host.log, Subject: "a2e: lease"}
			_ = retry.Loop(d.ctx, policy, func(ctx context.Context, _ func()) error { return d.acquire(ctx) })
		})
	})
}

func (d *durable) acquire(ctx context.Context) error {
	p := &d.host.opts.Persistence
	l, err := lease.Acquire(ctx, d.db, lease.Options{Prefix: storePrefix, InstanceID: p.InstanceID, TTL: p.LeaseTTL, Private: p.SingleInstance, Logger: d.host.log,
		OnLost: func(context.Context) { _ = d.host.Close() }})
	if err != nil {
		return err
	}
	l.Listen(sessionKind, func(key []byte) {
		if k := d.local(string(key)); k != nil {
			k.touch()
		}
	})
	d.mu.Lock()
	d.lease, d.streams = l, streamlog.New(d.db, l, storePrefix)
	d.mu.Unlock()
	l.Adopt(sessionKind, d.adopt)
	close(d.acquired)
	return nil
}

// waitRecovered waits for the lease, and for a round of take-over that begins after the call.
func (d *durable) waitRecovered(ctx context.Context) error {
	select {
	case <-d.acquired:
	case <-d.ctx.Done():
		return ErrClosed
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	l, _, err := d.parts()
	if err == nil {
		err = l.WaitRecovered(ctx)
	}
	return err
}

// keep makes the session durable with its first handshake, or stores a later one.
func (s *Session) keep(a *handshakeAttempt) (err error) {
	s.mu.Lock()
	state, k, agent := s.core.State(), s.kept, s.agentID
	s.mu.Unlock()
	isRefused := a.refusal != session.Accepted || state == session.StateActive && agent != a.request.AgentID
	if s.promote == nil || isRefused {
		return nil
	}
	r := sessionRecord{AgentID: a.request.AgentID, OwnerID: ownerID(a.principal, a.request), Peer: s.peer, Principal: a.principal,
		Names: a.offer.names()}
	if slices.Contains(a.offer.agreed, featureLimits) {
		b := announced(a.message)
		r.Reads = [2]int{b.bytes, b.depth}
	}
	switch {
	case state == session.StateNew:
		r.ID = randid.UUID4Hex()
		hold, full := a.scope.Reserve(budget.Storage, baseStorage)
		if full != nil {
			return full
		}
		if a.kept, err = s.promote(s.ctx, r); err != nil {
			hold.Release()
		} else {
			a.kept.hold = hold
		}
	case state == session.StateActive && k != nil:
		err = k.durable.modify(s.ctx, k.key, k.owner, storeKeep, func(old *sessionRecord) {
			old.OwnerID, old.Principal, old.Names, old.Reads = r.OwnerID, r.Principal, r.Names, r.Reads
		})
	}
	if err != nil {
		s.host.log.WarnContext(s.ctx, "a2e: session not stored", "err", err)
	}
	return err
}

// moveLocked passes the messages so far to the stream of a session that becomes durable. s.mu must be
// held.
func (s *Session) moveLocked(k *kept) {
	s.conn.mu.Lock()
	if r, ok := s.conn.out.(*replay); ok {
		k.out.seed(r.move())
	}
	s.conn.out = k.out
	s.conn.mu.Unlock()
	s.kept = k
	k.attachLocked(s)
	k.durable.add(k)
}

// spawn starts a goroutine that close waits for, unless close was called.
func (d *durable) spawn(f func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.isClosed {
		d.work.Go(f)
	}
}

// parts returns the lease and the streams, or errStore.
func (d *durable) parts() (*lease.Lease, *streamlog.Table, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.lease == nil {
		return nil, nil, errStore
	}
	return d.lease, d.streams, nil
}

// close releases the lease, so that other processes continue the sessions at once.
func (d *durable) close(ctx context.Context) {
	d.cancel()
	d.mu.Lock()
	d.isClosed = true
	d.mu.Unlock()
	stopped := make(chan struct{})
	go func() {
		d.work.Wait()
		close(stopped)
	}()
	select {
	case <-stopped:
	case <-ctx.Done():
	}
	d.storage.close()
	if l, _, err := d.parts(); err == nil {
		_ = l.Release(ctx)
	}
}

// local returns a session that this process owns, or nil.
func (d *durable) local(key string) *kept {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.sessions[key]
}

func (d *durable) add(k *kept) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.sessions[k.key] = k
}

func (d *durable) remove(k *kept) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.sessions[k.key] == k {
		delete(d.sessions, k.key)
	}
}

// change repeats a change until its outcome is known or ctx ends.
func (d *durable) change(ctx context.Context, op func(ctx context.Context) error) error {
	return store.Persist(ctx, func(ctx context.Context) error {
		ctx, cancel := lazy.WithTimeout(ctx, storeOutage)
		defer cancel()
		return op(ctx)
	})
}

// load returns the record of a session, or store.ErrNotFound.
func (d *durable) load(ctx context.Context, key string) (r sessionRecord, err error) {
	ctx, cancel := lazy.WithTimeout(ctx, storeOutage)
	defer cancel()
	e, err := d.db.Get(ctx, recordKey(key))
	if err == nil {
		e, err = store.Content(e)
	}
	if err == nil {
		err = r.decode(e.Value)
	}
	return r, err
}

func (r *sessionRecord) decode(value []byte) error {
	if err := state.Decode(value, r); err != nil {
		return fmt.Errorf("a2e: record of a session: %w", err)
	}
	return nil
}

// modify changes the record of a session that an owner has, or creates it if owner is empty.
func (d *durable) modify(ctx context.Context, key string, owner lease.Owner, ttl time.Duration, change func(r *sessionRecord)) error {
	_, err := store.Modify(ctx, d.db, recordKey(key), ttl, func(old store.Entry, found bool) ([]byte, error) {
		var r sessionRecord
		if found {
			if err := r.decode(old.Value); err != nil {
				return nil, err
			}
		}
		if r.Owner != owner {
			return nil, lease.ErrLost
		}
		change(&r)
		return state.Encode(&r)
	})
	return err
}

// The kinds of entries of an inbox, behind the format byte.
const (
	inboxBody = 'b'
	inboxEnd  = 'e' // ends the session
)

// deliver stores an entry for the owner of a session, and notifies the owner.
func (d *durable) deliver(ctx context.Context, key string, scope *budget.Scope, kind byte, data []byte) error {
	l, _, err := d.parts()
	if err != nil {
		return err
	}
	value := append([]byte{state.Format, kind}, data...)
	b, pos := &storedBody{id: randid.New("")}, uint64(0)
	if kind == inboxBody {
		if b.hold, err = scope.Reserve(budget.Storage, int64(len(value)+itemStorage)); err != nil {
			return err
		}
		d.storage.addBody(key, b)
	}
	err = d.change(ctx, func(ctx context.Context) (err error) {
		pos, err = d.db.Append(ctx, inboxName(key), b.id, value, storeKeep)
		if errors.Is(err, store.ErrDuplicate) {
			return nil // an earlier attempt
		}
		return err
	})
	if err != nil {
		d.storage.release(key, func(other *storedBody) bool { return other == b })
		return err
	}
	// The entry is stored: it is announced to its owner even if the sender has disconnected.
	ctx, cancel := lazy.WithTimeout(context.WithoutCancel(ctx), storeOutage)
	defer cancel()
	if k := d.local(key); k != nil && k.ctx.Err() == nil {
		if isOwner, err := l.Alive(ctx, k.owner); err == nil && isOwner { // by the clock, which a stopped process sees first
			k.touch()
			return nil
		}
	}
	d.pollInbox(key, b, pos)
	r, err := d.load(ctx, key) // after the entry, because a new owner reads the entries after its change
	if err == nil && !r.IsEnded {
		err = l.Tell(ctx, r.Owner, sessionKind, []byte(key)) // a later owner reads the entries
	}
	return err
}

// open makes a session durable, with its handshake.
func (d *durable) open(ctx context.Context, key string, r sessionRecord) (*kept, error) {
	l, streams, err := d.parts()
	if err != nil {
		return nil, err
	}
	ctx, cancel := lazy.WithTimeout(ctx, storeOutage)
	defer cancel()
	epoch := l.Context() // before Start, so that the session never outlives its owner
	if r.Owner, err = l.Start(ctx, sessionKind, key); err != nil {
		return nil, err
	}
	k := &kept{durable: d, key: key, owner: r.Owner, id: r.ID}
	w, err := streams.Create(ctx, key, "", d.streamOptions())
	if err == nil && epoch.Err() != nil { // the stream may belong to a later owner
		w.Cut(lease.ErrLost)
		err = lease.ErrLost
	}
	if err == nil {
		err = d.modify(ctx, key, "", storeKeep, func(old *sessionRecord) { *old = r })
	}
	if err != nil {
		_ = l.Finish(ctx, r.Owner, sessionKind, key)
		return nil, err
	}
	k.init(epoch, w)
	return k, nil
}

func (d *durable) streamOptions() streamlog.Options {
	return streamlog.Options{Window: streamWindow, RetainItems: d.host.opts.Limits.unread(),
		SlowTimeout: d.host.opts.Timing.WriteTimeout, Resumable: true, Grace: -1, Retention: d.host.patience(), Movable: true}
}

// adopt takes over a session whose owner has failed.
func (d *durable) adopt(ctx context.Context, key string, _, to lease.Owner) (lease.Found, error) {
	if k := d.local(key); k != nil {
		if k.owner == to {
			return lease.Held, nil
		}
		return 0, errors.New("a2e: earlier handlers of the session still run here")
	}
	r, err := d.load(ctx, key)
	switch {
	case errors.Is(err, store.ErrNotFound):
		return lease.Absent, nil
	case err != nil:
		return 0, err
	case r.IsEnded:
		return lease.Ended, d.clear(ctx, key)
	}
	l, _, err := d.parts()
	if err != nil {
		return 0, err
	}
	if r.Owner != to {
		isAlive, err := l.Alive(ctx, r.Owner)
		if err != nil || isAlive {
			return lease.Held, err
		}
		if err = d.take(ctx, key, &r, to); err != nil {
			return 0, err
		}
	}
	return d.takeOver(ctx, key, &r)
}

// take changes the record of a session for its next owner.
func (d *durable) take(ctx context.Context, key string, r *sessionRecord, to lease.Owner) error {
	return d.modify(ctx, key, r.Owner, storeKeep, func(stored *sessionRecord) {
		stored.Owner = to
		stored.Term++
		r.Owner, r.Term = to, stored.Term
	})
}

// takeOver is resume with more attempts, because it reads much.
func (d *durable) takeOver(ctx context.Context, key string, r *sessionRecord) (found lease.Found, err error) {
	policy := retry.Policy{MaxAttempts: 8, Base: 50 * time.Millisecond, Max: time.Second, Logger: d.host.log, Subject: "a2e: take-over"}
	err = retry.Do(ctx, policy, true, func(ctx context.Context, _ int) (err error) {
		found, err = d.resume(ctx, key, r)
		return retry.Mark(err, retry.Unknown, 0)
	})
	return found, err
}

// retake continues a session whose stream was lost although the lease was not.
func (d *durable) retake(k *kept) {
	if k.epoch.Err() != nil {
		return
	}
	r, err := d.load(k.epoch, k.key)
	if err == nil && r.Owner == k.owner && !r.IsEnded {
		if err = d.take(k.epoch, k.key, &r, k.owner); err == nil {
			_, err = d.takeOver(k.epoch, k.key, &r)
		}
	}
	if err != nil {
		d.host.log.ErrorContext(k.epoch, "a2e: session not continued", "session", k.id, "err", err)
	}
}

// clear removes the logs of an ended session. Its record and its stream expire.
func (d *durable) clear(ctx context.Context, key string) error {
	return errors.Join(
		d.change(ctx, func(ctx context.Context) error { return d.db.Expire(ctx, inboxName(key), 0) }),
		d.change(ctx, func(ctx context.Context) error { return d.db.Expire(ctx, claimName(key), 0) }))
}

// resume continues a session of a failed owner.
func (d *durable) resume(ctx context.Context, key string, r *sessionRecord) (lease.Found, error) {
	_, streams, err := d.parts()
	if err != nil {
		return 0, err
	}
	k := &kept{durable: d, key: key, owner: r.Owner, id: r.ID, term: r.Term}
	w, err := streams.Create(ctx, key, "", d.streamOptions())
	if errors.Is(err, store.ErrExists) { // the session had ended but for its record
		err = d.modify(ctx, key, r.Owner, d.host.patience(), func(r *sessionRecord) { r.IsEnded = true })
		return lease.Ended, cmp.Or(err, d.clear(ctx, key))
	}
	if err == nil {
		err = k.recover(ctx, streams, w)
	}
	if err != nil {
		return 0, err
	}
	k.init(ctx, w)
	if err := d.host.resumeSession(k, r); err != nil {
		k.hold.Release()
		k.cancel()
		return 0, err
	}
	d.add(k)
	k.run()
	return lease.Taken, nil
}

// resumeSession adds a session of a failed host.
func (h *Host) resumeSession(k *kept, r *sessionRecord) error {
	h.mu.Lock()
	h.number++
	s := newSession(h, k.out, r.Peer)
	h.mu.Unlock()
	s.isPending.Store(false)
	s.scope = h.budget.Scope(s.account(r.Principal))
	var err error
	if k.hold, err = s.scope.Reserve(budget.Storage, k.size()); err != nil {
		return err
	}
	if s.place, err = s.scope.Reserve(budget.Items, 1); err != nil {
		return err
	}
	s.kept, s.extensions = k, h.httpExtensions()
	n := s.negotiate(r.Names)
	s.id, s.agentID, s.ownerID, s.principal = r.ID, r.AgentID, r.OwnerID, r.Principal
	s.features = append(n.flags, n.agreed...)
	s.conn.setReads(bounds{r.Reads[0], r.Reads[1]})
	resumed := &session.Handshake{SessionID: r.ID, AgentID: r.AgentID, Accepted: n.accepted, Cancels: slices.Contains(n.agreed, featureCancel)}
	if r.Principal != nil {
		resumed.Expires = r.Principal.Expires
	}
	s.core.Resume(resumed, k.replied, k.claimed)
	k.attachLocked(s) // no other goroutine knows the session
	s.record()
	if err := h.add(s, false); err != nil {
		s.place.Release()
		return err
	}
	s.start()
	return nil
}
