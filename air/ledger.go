// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package air

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/fivewire/fivewire/air/internal/core"
	"github.com/fivewire/fivewire/internal/lease"
	"github.com/fivewire/fivewire/internal/seen"
	"github.com/fivewire/fivewire/internal/state"
	"github.com/fivewire/fivewire/store"
)

// An entry is the record of a message: of a sender and an id.
type entry struct {
	core.Received
	owner  lease.Owner // of a running attempt
	triple replayKey   // of the last form
}

// Lifetimes of stored records.
const (
	doneTTL   = 8 * 24 * time.Hour // the lifetime of mail at a relay, and a day
	failedTTL = 30 * 24 * time.Hour
)

// notBegun returns the error of an attempt that must not begin.
func notBegun(err error) error {
	switch {
	case errors.Is(err, core.ErrDone):
		return replayed()
	case errors.Is(err, core.ErrElsewhere):
		return ErrReplay.because(errReplayed.Message, err)
	case errors.Is(err, core.ErrUsedUp):
		return holdable(ErrHandlerFailed.because("", err))
	}
	return err
}

func (e *entry) bytes() []byte {
	b := []byte{state.Format, byte(e.Phase), 0}
	if e.Redelivered {
		b[2] = 1
	}
	b = binary.BigEndian.AppendUint32(b, uint32(e.Attempts))
	b = binary.BigEndian.AppendUint64(b, uint64(e.Next.UnixMilli()))
	b = append(b, e.triple[:]...)
	return append(b, e.owner...)
}

func parseEntry(value []byte) (e entry, err error) {
	b, err := state.Data(value)
	if err != nil || len(b) < 30 {
		return e, errors.Join(errors.New("air: invalid record of a message"), err)
	}
	e.Phase, e.Redelivered = core.Phase(b[0]), b[1] == 1
	e.Attempts = int(binary.BigEndian.Uint32(b[2:]))
	e.Next = time.UnixMilli(int64(binary.BigEndian.Uint64(b[6:])))
	copy(e.triple[:], b[14:])
	e.owner = lease.Owner(b[30:])
	return e, nil
}

type replayKey [16]byte

// names are the hashed names of a message: of its form (sender, thread and nonce), and of sender and
// id.
type names struct{ triple, id replayKey }

// hashKey is half of SHA-256: 128 bits are collision resistant enough.
func hashKey(kind byte, a, b, c string) replayKey {
	var array [384]byte // sufficient for usual names
	t := append(array[:0], kind)
	t = append(append(t, a...), 0)
	t = append(append(t, b...), 0)
	t = append(t, c...)
	sum := sha256.Sum256(t)
	return replayKey(sum[:16])
}

// namesOf returns the names of an envelope. A DID and a thread id have no NUL, so the parts are
// unambiguous.
func namesOf(e *Envelope) names {
	return names{triple: hashKey('n', e.From, e.ThreadID, e.Nonce), id: hashKey('i', e.From, e.ID, "")}
}

// A replayWindow stores nonces and ids until the clock check rejects their envelopes (8.4, AIR-D43).
type replayWindow struct {
	nonces *seen.Window // triples, bounded for each sender and thread
	ids    *seen.Window
}

func newReplayWindow(l *Limits) replayWindow {
	total, perSender := int(min(l.MaxItems, math.MaxInt32)), int(min(l.MaxItemsPerPrincipal, math.MaxInt32))
	return replayWindow{
		nonces: seen.New(seen.Options{Total: total, PerPrincipal: perSender, PerScope: l.MaxReplayEntries}),
		ids:    seen.New(seen.Options{Total: total, PerPrincipal: perSender, PerScope: -1}),
	}
}

// record stores both names until the given time, inclusive. It returns seen.ErrSeen if either is stored
// already, which changes nothing, and seen.ErrExhausted if the window is full. Its calls and those of
// forget must not run at the same time.
func (w *replayWindow) record(from, threadID string, k *names, until time.Time) error {
	err := w.nonces.Add(from, threadID, k.triple, until)
	if err == nil {
		if err = w.ids.Add(from, "", k.id, until); err != nil {
			w.nonces.Forget(from, k.triple)
		}
	}
	return err
}

func (w *replayWindow) forget(from string, k *names) {
	w.nonces.Forget(from, k.triple)
	w.ids.Forget(from, k.id)
}

var errReplayed = &Error{Code: ErrReplay, Message: "the nonce or the id was seen before"}

// replayed returns a new error, because callers may modify it.
func replayed() error { return &Error{Code: ErrReplay, Message: errReplayed.Message} }

// A ledger records the outcome of each message, so that it is handled once. The window covers this
// process; the store, if set, covers all processes and restarts. An entry of a process without a lease
// is free.
type ledger struct {
	window replayWindow
	shared *shared // nil: this process only

	mu      sync.Mutex
	active  map[replayKey]*hold     // messages being handled, by triple and by id
	failed  memo[replayKey, entry]  // by id; unused with a store
	handled memo[replayKey, *names] // by id; done, but the store did not take it
}

// A shared is the store of a ledger.
type shared struct {
	db     store.Store
	prefix string
	ttl    time.Duration // of messages that are done
	lease  func(ctx context.Context) (*lease.Lease, error)
}

// A hold is the claim of this process on a message. It ends with commit, fail or drop.
type hold struct {
	l         *ledger
	env       *Envelope
	names     names
	until     time.Time // in the window
	prior     entry     // before this attempt
	mine      entry     // as stored by claim
	isFull    bool      // the window has no room
	isClaimed bool      // in the store

	isReleased bool          // guarded by l.mu
	isDone     bool          // guarded by l.mu
	done       chan struct{} // closed by release
	outcome    error         // for waiting copies; valid once done is closed
}

// enter begins an attempt within this process. If a copy of the message is being handled, it returns
// its hold.
func (l *ledger) enter(env *Envelope, until time.Time) (h, other *hold, err error) {
	h = &hold{l: l, env: env, names: namesOf(env), until: until}
	k := &h.names
	l.mu.Lock()
	defer l.mu.Unlock()
	if other = l.active[k.triple]; other == nil {
		other = l.active[k.id]
	}
	if other != nil {
		return nil, other, nil
	}
	h.prior, _ = l.failed.get(k.id)
	_, isUnrecorded := l.handled.get(k.id)
	err = l.window.record(env.From, env.ThreadID, k, until)
	switch {
	case errors.Is(err, seen.ErrSeen) && !isUnrecorded:
		return nil, nil, replayed()
	case errors.Is(err, seen.ErrExhausted):
		h.isFull = true
	}
	if l.active == nil {
		l.active = make(map[replayKey]*hold)
	}
	h.done = make(chan struct{})
	l.active[k.triple], l.active[k.id] = h, h
	return h, nil, nil
}

// exhausted returns the error of a message that the window has no room for. One that was accepted
// before needs none.
func (h *hold) exhausted() error {
	if !h.isFull || h.prior.Phase != core.New {
		return nil
	}
	return &Error{Code: ErrReplayWindowExhausted, Message: "no room for another nonce of this thread", ThreadID: h.env.ThreadID}
}

// release ends the hold; only the first call counts. The window keeps the names if the message is done.
func (h *hold) release(isDone bool, outcome error) {
	l, k := h.l, &h.names
	l.mu.Lock()
	defer l.mu.Unlock()
	if h.isReleased {
		return
	}
	h.isReleased, h.isDone = true, isDone
	if !isDone && !h.isFull {
		l.window.forget(h.env.From, k)
	}
	for _, name := range []replayKey{k.triple, k.id} {
		if l.active[name] == h {
			delete(l.active, name)
		}
	}
	h.outcome = outcome
	close(h.done)
}

// A round are the messages of a drain.
type round struct {
	mu    sync.Mutex
	holds []*hold
}

func (r *round) add(h *hold) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.holds = append(r.holds, h)
}

// keep ends a drain: the window holds the names of its messages as long as a copy could pass the clock
// that was handed out in the drain, or after an acknowledgement that failed (AIR-D74).
func (l *ledger) keep(r *round) {
	until := time.Now().Add(core.MaxAge)
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, h := range r.holds {
		if h.isDone && l.active[h.names.id] == nil && l.active[h.names.triple] == nil {
			l.window.forget(h.env.From, &h.names)
			_ = l.window.record(h.env.From, h.env.ThreadID, &h.names, later(until, h.env.Time.Add(core.MaxAge)))
		}
	}
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// load reads the entry of the message, and returns why the attempt must not begin.
func (h *hold) load(ctx context.Context, maxAttempts int, isForced bool) error {
	s := h.l.shared
	if s == nil {
		_, err := h.prior.Begin(core.Attempt{Now: time.Now(), MaxAttempts: maxAttempts, IsForced: isForced})
		return notBegun(err)
	}
	if h.isUnrecorded() {
		if err := h.commit(ctx); err != nil {
			return err
		}
		return replayed()
	}
	err := h.checkTriple(ctx)
	if err == nil {
		h.prior, err = s.get(ctx, h.names.id)
	}
	if err != nil {
		return err
	}
	_, err = h.begin(ctx, &h.prior, maxAttempts, isForced)
	return err
}

// isUnrecorded reports whether the message is done and the store does not know it.
func (h *hold) isUnrecorded() bool {
	h.l.mu.Lock()
	defer h.l.mu.Unlock()
	_, ok := h.l.handled.get(h.names.id)
	return ok
}

// begin returns a message during an attempt of this process, or why none may begin.
func (h *hold) begin(ctx context.Context, e *entry, maxAttempts int, isForced bool) (core.Received, error) {
	owner, err := h.l.shared.ownerOf(ctx, e)
	if err != nil {
		return e.Received, err
	}
	r, err := e.Begin(core.Attempt{Now: time.Now(), Owner: owner, MaxAttempts: maxAttempts, IsForced: isForced})
	return r, notBegun(err)
}

// ownerOf returns the kind of the owner of a message.
func (s *shared) ownerOf(ctx context.Context, e *entry) (core.Owner, error) {
	if e.Phase != core.Running {
		return core.Lost, nil
	}
	l, err := s.lease(ctx)
	if err != nil {
		return core.Lost, err
	}
	if e.owner == l.Owner() {
		return core.Self, nil
	}
	isAlive, err := l.Alive(ctx, e.owner)
	if err != nil || !isAlive {
		return core.Lost, err
	}
	return core.Other, nil
}

// checkTriple returns an error if another message has the triple and is done or being handled.
func (h *hold) checkTriple(ctx context.Context) error {
	s := h.l.shared
	e, err := s.db.Get(ctx, s.key('n', h.names.triple))
	if errors.Is(err, store.ErrNotFound) {
		return nil
	}
	if err == nil {
		e, err = store.Content(e)
	}
	if err != nil {
		return fmt.Errorf("air: reading a nonce: %w", err)
	}
	return h.checkOther(ctx, e.Value)
}

func (h *hold) checkOther(ctx context.Context, value []byte) error {
	id, err := state.Data(value)
	if err != nil || len(id) != len(replayKey{}) {
		return errors.Join(errors.New("air: invalid record of a nonce"), err)
	}
	if replayKey(id) == h.names.id {
		return nil
	}
	other, err := h.l.shared.get(ctx, replayKey(id))
	if err != nil {
		return err
	}
	_, err = h.begin(ctx, &other, math.MaxInt, true)
	return err
}

// isOpen reports whether a message is being handled or will be handled again. One whose attempt does not come
// for maxDueWait is not: the sender's key has changed, so that the message is refused. pulled is when the message
// that depends on it was first pulled.
func (l *ledger) isOpen(ctx context.Context, id replayKey, pulled time.Time) (bool, error) {
	l.mu.Lock()
	e, _ := l.failed.get(id)
	_, isDone := l.handled.get(id)
	isActive := l.active[id] != nil
	l.mu.Unlock()
	if isActive || isDone || l.shared == nil {
		return isActive || !isDone && e.IsOpen(time.Now(), time.Since(pulled), core.Lost), nil
	}
	e, err := l.shared.get(ctx, id)
	if err != nil {
		return false, err
	}
	owner, err := l.shared.ownerOf(ctx, &e)
	return e.IsOpen(time.Now(), time.Since(pulled), owner), err
}

// claim records that this process handles the message.
func (h *hold) claim(ctx context.Context, maxAttempts int, isForced bool) error {
	s := h.l.shared
	if s == nil {
		return nil
	}
	l, err := s.lease(ctx)
	if err != nil {
		return err
	}
	if err := context.Cause(l.Context()); err != nil {
		return err
	}
	ctx, cancel := storeContext(ctx)
	defer cancel()
	h.mine = entry{owner: l.Owner(), triple: h.names.triple}
	_, err = store.Modify(ctx, s.db, s.key('i', h.names.id), failedTTL, func(old store.Entry, found bool) ([]byte, error) {
		h.prior = entry{}
		if found {
			var err error
			if h.prior, err = parseEntry(old.Value); err != nil {
				return nil, err
			}
		}
		var err error
		if h.mine.Received, err = h.begin(ctx, &h.prior, maxAttempts, isForced); err != nil {
			return nil, err
		}
		return h.mine.bytes(), nil
	})
	if err != nil {
		return err
	}
	h.isClaimed = true
	_, err = store.Modify(ctx, s.db, s.key('n', h.names.triple), max(s.ttl, failedTTL), func(old store.Entry, found bool) ([]byte, error) {
		if found {
			if err := h.checkOther(ctx, old.Value); err != nil {
				return nil, err
			}
		}
		return state.Value(string(h.names.id[:])), nil
	})
	return err
}

// storeTimeout bounds a change of the ledger.
const storeTimeout = 10 * time.Second

// storeContext returns the context of a change that must not be left half done.
func storeContext(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), storeTimeout)
}

// isOwned reports whether no other process can have taken the message over.
func (h *hold) isOwned(ctx context.Context) bool {
	if h.l.shared == nil {
		return true
	}
	l, err := h.l.shared.lease(ctx)
	return err == nil && l.Owner() == h.mine.owner && l.Context().Err() == nil
}

// commit makes the message done. It ignores the end of ctx.
func (h *hold) commit(ctx context.Context) error { return h.end(ctx, nil) }

// end is commit with the outcome for waiting copies.
func (h *hold) end(ctx context.Context, outcome error) (err error) {
	defer func() { h.release(true, outcome) }()
	l := h.l
	if l.shared != nil {
		done := entry{Received: core.Received{Phase: core.Done}, triple: h.names.triple}
		err = h.write(ctx, done, l.shared.ttl)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.failed.remove(h.names.id)
	if err != nil {
		l.handled.put(h.names.id, &h.names)
		return fmt.Errorf("air: recording a message: %w", err)
	}
	l.handled.remove(h.names.id)
	return nil
}

// fail records a failed attempt, and returns the message after it and the class of this copy.
func (h *hold) fail(ctx context.Context, outcome error, maxAttempts int, isPush bool) (after entry, class string, err error) {
	defer h.release(false, outcome)
	after = h.mine
	if h.l.shared == nil {
		after = h.prior
	}
	after.owner = ""
	after.Received, class = after.Fail(time.Now(), maxAttempts, isPush)
	if h.l.shared == nil {
		h.l.mu.Lock()
		h.l.failed.put(h.names.id, after)
		h.l.mu.Unlock()
	} else if err = h.write(ctx, after, failedTTL); err != nil {
		err = fmt.Errorf("air: recording a message: %w", err)
	}
	return after, class, err
}

// drop ends an attempt whose handler was not called, and leaves the ledger as it was.
func (h *hold) drop(ctx context.Context, outcome error) error {
	h.l.mu.Lock()
	isEnded := h.isReleased
	h.l.mu.Unlock()
	if isEnded {
		return nil
	}
	defer h.release(false, outcome)
	if !h.isClaimed {
		return nil
	}
	if err := h.write(ctx, h.prior, failedTTL); err != nil {
		return fmt.Errorf("air: releasing a message: %w", err)
	}
	return nil
}

// write replaces the claim in the store, or deletes it. An entry that another process owns stays; a
// message that was handled becomes done, also if another process owns it.
func (h *hold) write(ctx context.Context, e entry, ttl time.Duration) error {
	ctx, cancel := storeContext(ctx)
	defer cancel()
	s := h.l.shared
	change := func(old store.Entry, found bool) ([]byte, error) {
		if found && e.Phase != core.Done {
			now, err := parseEntry(old.Value)
			switch {
			case err != nil:
				return nil, err
			case now.Phase != core.Running || now.owner != h.mine.owner:
				return nil, store.ErrUnchanged
			}
		}
		if e.Phase == core.New {
			return nil, nil
		}
		return e.bytes(), nil
	}
	// Also a read that fails is repeated: other processes would take the claim for a running one.
	return store.Persist(ctx, func(ctx context.Context) error {
		_, err := store.Modify(ctx, s.db, s.key('i', h.names.id), ttl, change)
		return err
	})
}

func (s *shared) key(kind byte, k replayKey) string {
	return s.prefix + string(kind) + "/" + hex.EncodeToString(k[:])
}

func (s *shared) get(ctx context.Context, id replayKey) (entry, error) {
	e, err := s.db.Get(ctx, s.key('i', id))
	if errors.Is(err, store.ErrNotFound) {
		return entry{}, nil
	}
	if err == nil {
		e, err = store.Content(e)
	}
	if err != nil {
		return entry{}, fmt.Errorf("air: reading a message: %w", err)
	}
	return parseEntry(e.Value)
}
