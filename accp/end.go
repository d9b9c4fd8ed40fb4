// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package accp

import (
	"context"
	"errors"
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
	s.isEnded.Store(true)
	s.forget()
	s.refiner.stop()
	defer func() {
		_ = s.fit(ctx, &s.holds.memory, 0)
		_ = s.fit(ctx, &s.holds.storage, 0)
		s.chains.stopIf(func(string) bool { return true }) // last, since ctx may be the context of a chain
	}()
	if opts != nil && opts.DeleteShared && s.refs.shared.kv != nil {
		if err := removeAll(ctx, s.refs.shared, s.id); err != nil {
			return err
		}
	}
	if s.record == nil {
		return nil
	}
	return s.guarded(ctx, func() error {
		hasOther, err := s.record.Remove(ctx)
		switch {
		case err != nil:
			return &Error{Code: ErrInternal, Message: "removing the session", Cause: err}
		case hasOther:
			return nil
		}
		return removeAll(ctx, s.refs.private, s.id)
	})
}

// removeAll removes the entries of a session.
func removeAll(ctx context.Context, t entries, sid string) error {
	for e, err := range t.kv.List(ctx, t.root(sid)) {
		if err == nil {
			err = t.kv.Delete(ctx, e.Key, 0)
		}
		if err != nil {
			return &Error{Code: ErrInternal, Message: "removing the session", Cause: err}
		}
	}
	return nil
}
