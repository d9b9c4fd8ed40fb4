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
	loaded bool // the window holds what the store held at the start; guarded by mu
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
	rev    store.Revision
	retake bool // somebody else began with it and died
}

// errElsewhere reports an envelope that another process is handling right now: it
// is a replay, but nobody knows yet how it ends.
var errElsewhere = errors.New("another process is handling the envelope")

func (c *claims) take(ctx context.Context, e *Envelope, until time.Time) (*held, error) {
	h := &held{c: c, claim: claim{keys: replayKeys(e.From, e.ThreadID, e.Nonce, e.ID), until: until.UnixMilli(), owner: c.owner}}
	if c.kv == nil {
		return h, exhausted(e, c.window.record(h.claim.keys, until, time.Now(), true))
	}
	if err := c.load(ctx); err != nil {
		return nil, err
	}
	if err := c.window.record(h.claim.keys, until, time.Now(), true); err != nil {
		if err == error(errReplayed) {
			return nil, c.replayed(ctx, h)
		}
		return nil, exhausted(e, err)
	}
	if err := h.store(ctx); err != nil {
		if !errors.Is(err, ErrReplay) || errors.Is(err, errElsewhere) {
			c.window.forget(h.claim.keys)
		}
		return nil, err
	}
	return h, nil
}

func exhausted(e *Envelope, err error) error {
	if err == error(errExhausted) {
		return &Error{Code: ErrReplayWindowExhausted, Detail: errExhausted.Detail, ThreadID: e.ThreadID}
	}
	if err == error(errReplayed) {
		return replayed()
	}
	return err
}

// replayed tells a finished replay from one whose first copy is still being
// handled, or was left behind by a process that died.
func (c *claims) replayed(ctx context.Context, h *held) error {
	old, _, err := c.get(ctx, h.key('n', h.claim.keys.triple))
	if err == nil && old.exists && !old.done {
		return ErrReplay.because(errReplayed.Detail, errElsewhere)
	}
	return replayed()
}

// replayed returns a new error, because callers may keep and change theirs.
func replayed() error { return &Error{Code: ErrReplay, Detail: errReplayed.Detail} }

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

// store writes the triple and then the id.
func (h *held) store(ctx context.Context) error {
	now := time.Now()
	h.claim.lease = now.Add(h.c.lease).UnixMilli()
	rev, retake, err := h.put(ctx, h.key('n', h.claim.keys.triple), now)
	if err != nil {
		return err
	}
	h.rev, h.retake = rev, retake
	if _, _, err := h.put(ctx, h.key('i', h.claim.keys.id), now); err != nil {
		return errors.Join(err, h.delete(ctx, h.key('n', h.claim.keys.triple)))
	}
	return nil
}

// put writes one of the two keys unless a live entry stands there.
func (h *held) put(ctx context.Context, key string, now time.Time) (rev store.Revision, retake bool, err error) {
	value := h.claim.bytes()
	// One second longer than the entry lives: whether it does is told by its own
	// time, not by the store's clock.
	ttl := time.Duration(h.claim.until-now.UnixMilli())*time.Millisecond + time.Second
	for {
		rev, err = h.c.kv.Create(ctx, key, value, ttl)
		if !errors.Is(err, store.ErrExists) {
			return rev, retake, err
		}
		old, oldRev, err := h.c.get(ctx, key)
		if err != nil {
			return 0, false, err
		}
		if !old.exists {
			continue
		}
		switch {
		case old.until < now.UnixMilli(): // no longer alive
		case old.keys != h.claim.keys || old.done:
			return 0, false, replayed()
		case old.owner != h.c.owner && old.lease >= now.UnixMilli() && key[len(h.c.prefix)] == 'n':
			return 0, false, ErrReplay.because(errReplayed.Detail, errElsewhere)
		default:
			retake = true
		}
		rev, err = h.c.kv.Update(ctx, key, value, oldRev, ttl)
		if !errors.Is(err, store.ErrConflict) && !errors.Is(err, store.ErrNotFound) {
			return rev, retake, err
		}
	}
}

func (h *held) delete(ctx context.Context, key string) error {
	return h.c.kv.Delete(ctx, key, 0)
}

// commit makes the claim final. Nothing may undo it, so it outlives the caller's
// context.
func (h *held) commit(ctx context.Context) error {
	if h.c.kv == nil {
		return nil
	}
	h.claim.done = true
	ttl := time.Until(time.UnixMilli(h.claim.until)) + time.Second
	ctx = context.WithoutCancel(ctx)
	_, err := h.c.kv.Update(ctx, h.key('n', h.claim.keys.triple), h.claim.bytes(), h.rev, max(ttl, time.Second))
	if err != nil {
		return fmt.Errorf("air: recording a nonce: %w", err)
	}
	return nil
}

// rollback forgets the claim, so that a retry is handled.
func (h *held) rollback(ctx context.Context) error {
	h.c.window.forget(h.claim.keys)
	if h.c.kv == nil {
		return nil
	}
	ctx = context.WithoutCancel(ctx)
	return errors.Join(h.delete(ctx, h.key('i', h.claim.keys.id)), h.delete(ctx, h.key('n', h.claim.keys.triple)))
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
