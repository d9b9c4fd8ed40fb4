// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package accp

import (
	"context"
	"errors"

	"github.com/fivewire/fivewire/store"
)

// ErrSessionEnded reports the use of a session after [Session.End].
var ErrSessionEnded = errors.New("accp: session ended")

func errEnded() error {
	return &Error{Code: ErrInternal, Message: "the session has ended", Cause: ErrSessionEnded}
}

// EndSessionOptions adjusts [Session.End].
type EndSessionOptions struct {
	// DeleteShared also removes the texts of all sides from the shared store. Set it only if no
	// other side needs them; otherwise they expire after [SessionOptions].Retention.
	DeleteShared bool
}

// End ends the session permanently. It cancels the running work and removes the stored data,
// including numbers and replays, so that the id can be used for a new session. The tiers are
// removed when no other side has a record in the same store. Hot state is dropped without a
// checkpoint. A handler that ends its session must answer first.
//
// Afterwards every method that processes frames or uses the store returns [ErrSessionEnded]. After
// an error, End can be called again, also on a new session with the same id after a restart. Other
// processes must have stopped serving the session, or they create it again.
func (s *Session) End(ctx context.Context, opts *EndSessionOptions) error {
	if err := s.enter(ctx, true); err != nil {
		return err
	}
	defer s.exit()
	s.mu.Lock()
	s.isEnded.Store(true)
	s.core = s.core.reset()
	s.tiers = func() store.KV { return store.NewMemory() }
	s.view.isOpen, s.view.pending = false, nil
	s.mu.Unlock()
	s.refiner.stop()
	defer func() {
		_ = s.fit(ctx, &s.memory, 0)
		_ = s.fit(ctx, &s.storage, 0)
	}()
	s.entryBytes, s.movedBytes, s.entries = 0, 0, map[string]heldEntry{}
	defer func() { // deferred, since ctx may be the context of a chain
		s.mu.Lock()
		defer s.mu.Unlock()
		for chain := range s.running {
			s.stopLocked(chain)
		}
	}()
	s.parts, s.failed = nil, nil
	if opts != nil && opts.DeleteShared && s.opts.Persistence.SharedStore != nil {
		if err := removeAll(ctx, s.opts.Persistence.SharedStore, s.shared().root(s.id)); err != nil {
			return err
		}
	}
	if !s.durable() {
		return nil
	}
	return s.guarded(ctx, func() error { return s.remove(ctx) })
}

// remove removes the stored data of this side. Its key is removed first, so that the last of several
// ending sides finds no other key. The session must be entered.
func (s *Session) remove(ctx context.Context) error {
	kv, t := s.opts.Persistence.Store, s.private()
	sides := t.key(s.id, "side", "")
	err := s.log.Remove(ctx)
	if err == nil {
		err = kv.Delete(ctx, sides+s.self, 0)
	}
	if err != nil {
		return &Error{Code: ErrInternal, Message: "removing the session", Cause: err}
	}
	for _, err := range kv.List(ctx, sides) {
		if err != nil {
			return &Error{Code: ErrInternal, Message: "removing the session", Cause: err}
		}
		return nil // another side
	}
	return removeAll(ctx, kv, t.root(s.id))
}

func removeAll(ctx context.Context, kv store.KV, prefix string) error {
	for e, err := range kv.List(ctx, prefix) {
		if err == nil {
			err = kv.Delete(ctx, e.Key, 0)
		}
		if err != nil {
			return &Error{Code: ErrInternal, Message: "removing the session", Cause: err}
		}
	}
	return nil
}
