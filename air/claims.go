// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package air

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/fivewire/fivewire/store"
)

// claims decide which of several copies of an envelope is handled. The window is
// the answer of this process; the store, if there is one, is that of all
// processes and survives them.
//
// In the store a triple is first claimed, with the time at which the claim ends by
// itself, and then done. A process that dies in between leaves a claim that
// somebody else may take over after that time: nothing is lost, and what was done
// is never done again (AIR-116).
type claims struct {
	window ReplayWindow
	kv     store.KV // nil: this process only
	prefix string
	owner  string
	lease  time.Duration

	mu     sync.Mutex
	loaded bool                // the window holds what the store held at the start; guarded by mu
	active map[replayKey]*held // by triple and by id, what is being handled; guarded by mu
}

// A claim is a triple in the store.
type claim struct {
	done   bool
	lease  int64 // until when an unfinished claim holds, in Unix milliseconds
	until  int64 // until when the entry is alive, likewise
	keys   due
	owner  string
	exists bool
}

const (
	claimOpen = 'c'
	claimDone = 'd'
)

func (c claim) bytes() []byte {
	state := byte(claimOpen)
	if c.done {
		state = claimDone
	}
	b := []byte{state}
	b = binary.BigEndian.AppendUint64(b, uint64(c.lease))
	b = binary.BigEndian.AppendUint64(b, uint64(c.until))
	b = append(b, c.keys.triple[:]...)
	b = append(b, c.keys.id[:]...)
	b = append(b, c.keys.thread[:]...)
	return append(b, c.owner...)
}

func parseClaim(b []byte) (c claim, ok bool) {
	if len(b) < 17+48 {
		return c, false
	}
	c.done = b[0] == claimDone
	c.lease = int64(binary.BigEndian.Uint64(b[1:]))
	c.until = int64(binary.BigEndian.Uint64(b[9:]))
	copy(c.keys.triple[:], b[17:])
	copy(c.keys.id[:], b[33:])
	copy(c.keys.thread[:], b[49:])
	c.owner = string(b[65:])
	return c, true
}

// A held claim is finished by commit or by rollback.
type held struct {
	c      *claims
	claim  claim
	rev    store.Revision // of the triple
	idRev  store.Revision
	retake bool // somebody else began with it and died

	ended     chan struct{} // closed in the end
	forgotten bool          // nothing came of it; to be read once ended is closed
}

// errElsewhere reports a copy of an envelope that is being handled right now: it
// is a replay, but nobody knows yet how the first one ends.
var errElsewhere = errors.New("another copy of the envelope is being handled")

// errLost reports a claim that another process took over, because it had ended.
var errLost = errors.New("air: another process has taken the envelope over")

// take claims an envelope. With wait it waits for a copy that this process is
// handling, but no longer than a handler may take, and takes over if that fails.
func (c *claims) take(ctx context.Context, e *Envelope, until time.Time, wait bool) (*held, error) {
	h := &held{c: c, claim: claim{keys: replayKeys(e.From, e.ThreadID, e.Nonce, e.ID), until: until.UnixMilli(), owner: c.owner}}
	if c.kv != nil {
		if err := c.load(ctx); err != nil {
			return nil, err
		}
	}
	var late <-chan time.Time
	for {
		other, err := c.begin(h, until)
		switch {
		case err == nil && c.kv == nil:
			return h, nil
		case err == nil:
			if err := h.store(ctx); err != nil {
				return nil, err
			}
			return h, nil
		case other == nil && err == error(errReplayed):
			return nil, c.replayed(ctx, h)
		case other == nil:
			return nil, exhausted(e, err)
		case !wait:
			return nil, ErrReplay.because(errReplayed.Message, errElsewhere)
		}
		if late == nil {
			late = time.After(c.lease)
		}
		select {
		case <-other.ended:
			if !other.forgotten { // even if its time is over by now
				return nil, c.replayed(ctx, h)
			}
		case <-late:
			return nil, ErrReplay.because(errReplayed.Message, errElsewhere)
		case <-ctx.Done():
			return nil, ErrReplay.because(errReplayed.Message, errElsewhere)
		}
	}
}

// begin claims an envelope within this process. If a copy, or another envelope with
// its id, is being handled, it returns that.
func (c *claims) begin(h *held, until time.Time) (other *held, err error) {
	k := &h.claim.keys
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	if now.UnixMilli() > until.UnixMilli() {
		return nil, stale() // since the clock was checked; a copy that was handled is forgotten
	}
	if err = c.window.record(*k, until, now, true); err != nil {
		if err != error(errReplayed) {
			return nil, err
		}
		if other = c.active[k.triple]; other == nil {
			other = c.active[k.id]
		}
		return other, err
	}
	if c.active == nil {
		c.active = make(map[replayKey]*held)
	}
	h.ended = make(chan struct{})
	c.active[k.triple], c.active[k.id] = h, h
	return nil, nil
}

// end ends what begin began. What is to be forgotten is so for everybody at the same
// moment.
func (h *held) end(forget bool) {
	c, k := h.c, &h.claim.keys
	c.mu.Lock()
	defer c.mu.Unlock()
	if forget {
		c.window.forget(*k)
	}
	for _, name := range []replayKey{k.triple, k.id} {
		if c.active[name] == h {
			delete(c.active, name)
		}
	}
	h.forgotten = forget
	close(h.ended)
}

func exhausted(e *Envelope, err error) error {
	if err == error(errExhausted) {
		return &Error{Code: ErrReplayWindowExhausted, Message: errExhausted.Message, ThreadID: e.ThreadID}
	}
	if err == error(errReplayed) {
		return replayed()
	}
	return err
}

// replayed tells a finished replay from one whose first copy is still being
// handled, or was left behind by a process that died.
func (c *claims) replayed(ctx context.Context, h *held) error {
	if c.kv == nil {
		return replayed()
	}
	key := h.key('n', h.claim.keys.triple)
	old, rev, err := c.get(ctx, key)
	if err != nil || !old.exists || old.done {
		return replayed() // the window knows enough
	}
	if old.owner == c.owner { // handled, but that could not be written down
		old.done = true
		if _, err := c.kv.Update(ctx, key, old.bytes(), rev, ttlOf(old.until)); err == nil {
			return replayed()
		}
	}
	return ErrReplay.because(errReplayed.Message, errElsewhere)
}

// replayed returns a new error, because callers may keep and change theirs.
func replayed() error { return &Error{Code: ErrReplay, Message: errReplayed.Message} }

func (h *held) key(kind byte, k replayKey) string {
	return h.c.prefix + string(kind) + "/" + hex.EncodeToString(k[:])
}

func (c *claims) get(ctx context.Context, key string) (claim, store.Revision, error) {
	e, err := c.kv.Get(ctx, key)
	if errors.Is(err, store.ErrNotFound) {
		return claim{}, 0, nil
	}
	if err != nil {
		return claim{}, 0, fmt.Errorf("air: looking up a nonce: %w", err)
	}
	old, ok := parseClaim(e.Value)
	if !ok {
		return claim{}, 0, errors.New("air: a stored nonce is damaged")
	}
	old.exists = true
	return old, e.Revision, nil
}

// store claims the triple and then the id for all processes. What is begun is
// finished even if the caller goes meanwhile, or it would have to be taken back.
func (h *held) store(ctx context.Context) error {
	err := ctx.Err()
	var seen *claim
	if err == nil {
		seen, err = h.put(context.WithoutCancel(ctx))
	}
	if err == nil && seen == nil {
		return nil
	}
	h.end(true)
	if err != nil {
		return err
	}
	if !seen.done {
		return ErrReplay.because(errReplayed.Message, errElsewhere)
	}
	// What was seen is known from now on, but not what it was seen with.
	_ = h.c.window.record(seen.keys, time.UnixMilli(seen.until), time.Now(), false)
	return replayed()
}

// put writes the two keys, or returns what stands in the way.
func (h *held) put(ctx context.Context) (seen *claim, err error) {
	now := time.Now()
	h.claim.lease = now.Add(h.c.lease).UnixMilli()
	if h.rev, seen, err = h.putKey(ctx, h.key('n', h.claim.keys.triple), now); err != nil || seen != nil {
		return seen, err
	}
	if h.idRev, seen, err = h.putKey(ctx, h.key('i', h.claim.keys.id), now); err != nil || seen != nil {
		return seen, errors.Join(err, h.drop(ctx))
	}
	return nil, nil
}

// ttlOf is how long an entry is kept in the store: one second longer than it lives.
// Whether it does is told by its own time, not by the store's clock.
func ttlOf(until int64) time.Duration {
	return max(0, time.Until(time.UnixMilli(until))) + time.Second
}

// putKey writes one of the two keys unless another envelope stands there, or the
// same one that is being handled or done.
func (h *held) putKey(ctx context.Context, key string, now time.Time) (rev store.Revision, seen *claim, err error) {
	value := h.claim.bytes()
	for {
		rev, err = h.c.kv.Create(ctx, key, value, ttlOf(h.claim.until))
		if !errors.Is(err, store.ErrExists) {
			return rev, nil, err
		}
		old, oldRev, err := h.c.get(ctx, key)
		if err != nil {
			return 0, nil, err
		}
		if !old.exists {
			continue
		}
		seen, err := h.seen(ctx, key, &old, now)
		if err != nil || seen != nil {
			return 0, seen, err
		}
		rev, err = h.c.kv.Update(ctx, key, value, oldRev, ttlOf(h.claim.until))
		if err == nil || unlessLost(err) != nil {
			if key[len(h.c.prefix)] == 'n' && old.until >= now.UnixMilli() {
				h.retake = true
			}
			return rev, nil, err
		}
	}
}

// seen returns what of an entry stands in the way, nil if it may be replaced.
func (h *held) seen(ctx context.Context, key string, old *claim, now time.Time) (*claim, error) {
	switch {
	case old.until < now.UnixMilli(): // no longer alive
		return nil, nil
	case old.keys == h.claim.keys && !old.done:
		if key[len(h.c.prefix)] == 'n' && old.owner != h.c.owner && old.lease >= now.UnixMilli() {
			return old, nil
		}
		return nil, nil // left behind
	case old.done || old.keys.triple == h.claim.keys.triple:
		return old, nil
	}
	// Another envelope with this id. How that ended is told by its triple; if that is
	// gone, it was taken back.
	first, _, err := h.c.get(ctx, h.key('n', old.keys.triple))
	if err != nil || !first.exists || first.keys != old.keys {
		return nil, err
	}
	return &first, nil
}

// drop takes the keys back, unless they are somebody else's by now. Those of an
// envelope that somebody began with before stay, for anybody to take over: that it
// may have been handled must not be forgotten.
func (h *held) drop(ctx context.Context) error {
	if h.retake {
		h.claim.lease = 0
		return unlessLost(h.update(ctx))
	}
	var err error
	if h.idRev != 0 {
		err = unlessLost(h.c.kv.Delete(ctx, h.key('i', h.claim.keys.id), h.idRev))
	}
	return errors.Join(err, unlessLost(h.c.kv.Delete(ctx, h.key('n', h.claim.keys.triple), h.rev)))
}

// update writes the triple anew, unless somebody else has changed it.
func (h *held) update(ctx context.Context) error {
	rev, err := h.c.kv.Update(ctx, h.key('n', h.claim.keys.triple), h.claim.bytes(), h.rev, ttlOf(h.claim.until))
	if err == nil {
		h.rev = rev
	}
	return err
}

// unlessLost is err, but nil if that only says that somebody else changed the key.
func unlessLost(err error) error {
	if errors.Is(err, store.ErrConflict) || errors.Is(err, store.ErrNotFound) {
		return nil
	}
	return err
}

// commit makes the claim final. Nothing may undo it, so it outlives the caller's
// context.
func (h *held) commit(ctx context.Context) error {
	defer h.end(false)
	if h.c.kv == nil {
		return nil
	}
	h.claim.done = true
	if err := h.update(context.WithoutCancel(ctx)); err != nil {
		return fmt.Errorf("air: recording a nonce: %w", err)
	}
	return nil
}

// renew makes sure that nobody has taken the claim over, and that nobody does while
// what was done under it is being undone. Otherwise it returns errLost.
func (h *held) renew(ctx context.Context) error {
	if h.c.kv == nil {
		return nil
	}
	h.claim.lease = time.Now().Add(h.c.lease).UnixMilli()
	err := h.update(context.WithoutCancel(ctx))
	switch {
	case err == nil:
		return nil
	case unlessLost(err) == nil:
		return errLost
	}
	return fmt.Errorf("air: taking a nonce back: %w", err)
}

// rollback forgets the claim, so that a retry is handled.
func (h *held) rollback(ctx context.Context) error {
	defer h.end(true)
	if h.c.kv == nil {
		return nil
	}
	return h.drop(context.WithoutCancel(ctx))
}

// load fills the window from the store, once: finished entries only, because an
// unfinished one of a dead process may be taken over.
func (c *claims) load(ctx context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.loaded {
		return nil
	}
	now := time.Now()
	for e, err := range c.kv.List(ctx, c.prefix+"n/") {
		if err != nil {
			return fmt.Errorf("air: loading the replay window: %w", err)
		}
		if old, ok := parseClaim(e.Value); ok && old.done && old.until >= now.UnixMilli() {
			_ = c.window.record(old.keys, time.UnixMilli(old.until), now, false) // twice is as good as once
		}
	}
	c.loaded = true
	return nil
}
