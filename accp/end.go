// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package accp

import (
	"context"
	"errors"
	"strings"

	"github.com/fivewire/fivewire/store"
)

// ErrSessionEnded reports the use of a session after [Session.End].
var ErrSessionEnded = errors.New("accp: the session has ended")

func errEnded() error {
	return &Error{Code: ErrInternal, Message: "the session has ended", Cause: ErrSessionEnded}
}

// EndSessionOptions adjusts [Session.End].
type EndSessionOptions struct {
	// DeleteShared removes the texts that were moved to the shared store as well,
	// whoever moved them. It is for who knows that no other side needs them any
	// more; they expire by themselves if [SessionOptions].Keep says so.
	DeleteShared bool
}

// End ends the session for good: work of its chains is cancelled, and what it
// stored is removed, numbers and replays included, so that the name begins anew.
// The tiers stay as long as another side of the session has a record in the same
// store; the last one to end takes them along. Hot state is gone without another
// checkpoint. A handler that ends its session answers before.
//
// From then on every method that processes frames or reaches the store returns
// [ErrSessionEnded]. After an error End can be called again, also on a new session of the
// same name after a restart. Other processes that serve the session must have
// stopped, else they begin it anew.
func (s *Session) End(ctx context.Context, opts *EndSessionOptions) error {
	leave, err := s.turn(ctx)
	if err != nil {
		return err
	}
	defer leave()
	s.ended.Store(true)
	defer func() { // at last, since ctx may be that of one of its chains
		for chain := range s.running {
			s.stop(chain)
		}
	}()
	s.parts, s.hot, s.owed = nil, nil, nil
	s.forget()
	if opts != nil && opts.DeleteShared && s.opts.SharedStore != nil {
		if err := removeAll(ctx, s.opts.SharedStore, s.shared().root(s.id)); err != nil {
			return err
		}
	}
	if !s.durable() {
		s.memory = func() store.KV { return store.NewMemory() }
		return nil
	}
	return s.remove(ctx)
}

// remove removes what this side has in its store: the record first, so that of
// several that end at once the last one sees that it is.
func (s *Session) remove(ctx context.Context) error {
	kv, t := s.opts.Store, s.private()
	if err := kv.Delete(ctx, s.recordKey(), 0); err != nil {
		return &Error{Code: ErrInternal, Message: "removing the session", Cause: err}
	}
	for _, prefix := range []string{s.recordKey() + "/", t.space(s.id, s.scopeInfo())} {
		if err := removeAll(ctx, kv, prefix); err != nil {
			return err
		}
	}
	records := t.space(s.id, "session")
	for e, err := range kv.List(ctx, records) {
		if err != nil {
			return &Error{Code: ErrInternal, Message: "removing the session", Cause: err}
		}
		if !strings.Contains(strings.TrimPrefix(e.Key, records), "/") {
			return nil // a record of another side
		}
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

// settle makes a checkpoint of what hot state holds, if that can be lost and nobody
// said that checkpoints are not made by themselves.
func (s *Session) settle(ctx context.Context) error {
	leave, err := s.enter(ctx)
	if err != nil {
		return err
	}
	defer leave()
	if !s.durable() || s.opts.DisableAutoCheckpoint || len(s.hot) == 0 {
		return nil
	}
	_, err = s.checkpoint(ctx, []string{"phase"})
	return err
}
