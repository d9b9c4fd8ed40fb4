// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package accp

import (
	"cmp"
	"context"
	"errors"

	"github.com/fivewire/fivewire/internal/guard"
)

// Sync sets the shared state of the session, as a whole: of several writers the last one wins. It
// sends the difference to the last state, nothing without a difference, or the whole state if the
// peer missed an earlier one. After three rounds in which the peer had a newer state, the error is
// [ErrDuplicate] (ACCP-D46). A client with several sessions has no shared state.
func (c *Client) Sync(ctx context.Context, state Params) error {
	return c.converge(ctx, func(s *Session) error { return c.replace(ctx, s, state) })
}

// Update changes the shared state of the session by f, which returns the next state. If the peer has a
// newer state, it calls f again on that, until ctx ends, so no change of another writer is lost. A change
// is applied once: if its answer is lost, the server recognizes the repeated frame. After an error whose
// MayHaveRun is true, the peer may have applied the change, or a later change may carry it.
func (c *Client) Update(ctx context.Context, f func(state Params) (Params, error)) error {
	return c.converge(ctx, func(s *Session) error { return c.update(ctx, s, f) })
}

// converge calls f with the session of the shared state.
func (c *Client) converge(ctx context.Context, f func(s *Session) error) error {
	if len(c.all) > 1 {
		return errors.New("accp: a client of several sessions has no shared state")
	}
	a := c.newAttempt(ctx, &Message{Intent: IntentSync, Op: opState}, c.opts.Timing.Timeout)
	s, err := c.take(ctx, a.timeout)
	if err == nil {
		defer func() { c.free <- s }()
		err = c.transport.prepare(a, s)
	}
	if err == nil {
		err = f(s)
	}
	if err != nil {
		return c.final(ctx, a, err)
	}
	return nil
}

// replace is Sync in a session.
func (c *Client) replace(ctx context.Context, s *Session, state Params) error {
	for range 3 {
		isRepeat := false // the peer may not have what this side sent
		err := c.sendState(ctx, s, false, func() (*SendResult, error) {
			sent, err := s.Sync(ctx, state)
			if err == nil && len(sent.Frames) == 0 && (isRepeat || c.unsure.Load()) {
				return s.Snapshot(ctx)
			}
			isRepeat = true
			return sent, err
		})
		if errors.Is(err, ErrSequenceGap) {
			err = c.sendState(ctx, s, false, func() (*SendResult, error) { return s.Snapshot(ctx) })
		}
		c.unsure.Store(err != nil)
		if errors.Is(err, ErrDuplicate) {
			_, err = c.queryState(ctx, s)
			c.unsure.Store(err != nil)
			err = cmp.Or(err, errNewerState())
		}
		if !isOtherState(err) {
			return err
		}
	}
	return errNewerState()
}

// update is Update in a session. A refused or unanswered change is taken back, so that it is never sent as
// part of a later state.
func (c *Client) update(ctx context.Context, s *Session, f func(Params) (Params, error)) error {
	for {
		before, next, err := edit(ctx, s, f)
		if err != nil {
			return c.recovered(ctx, err)
		}
		chain := ""
		err = c.sendState(ctx, s, true, func() (*SendResult, error) {
			if err := s.takeBack(ctx, chain); err != nil { // the peer has refused the frame
				return nil, err
			}
			sent, err := syncAfter(ctx, s, before, next)
			if err == nil && sent.Message != nil {
				chain = sent.Message.Chain()
			}
			return sent, err
		})
		if errors.Is(err, errStateChanged) {
			continue
		}
		if err = c.finishChange(ctx, s, chain, err); !isOtherState(err) {
			return err
		}
		isOwnNewer, err := c.queryState(ctx, s)
		if isOwnNewer { // the peer has lost its state
			err = c.sendState(ctx, s, false, func() (*SendResult, error) { return s.Snapshot(ctx) })
		}
		if err != nil && !isOtherState(err) {
			return err
		}
	}
}

// finishChange takes back a change that the peer has not applied, and returns the error of the change. If this
// side may still have it, so that a later change carries it, the error reports that it may have run.
func (c *Client) finishChange(ctx context.Context, s *Session, chain string, err error) error {
	if e, ok := errors.AsType[*Error](err); err == nil || ok && e.isApplied {
		return nil
	}
	terr := s.takeBack(context.WithoutCancel(ctx), chain)
	if terr == nil && (chain != "" || !errors.Is(err, ErrInternal)) {
		return err
	}
	return &CallError{Intent: IntentSync, Op: opState, Peer: c.peer(), MayHaveRun: true,
		Cause: &Error{Code: ErrInternal, Message: "not taken back after: " + err.Error(), Cause: terr}}
}

// edit calls f with the present state, also if that is of an earlier process or another one.
func edit(ctx context.Context, s *Session, f func(Params) (Params, error)) (before *sharedState, next Params, err error) {
	if err := s.Reload(ctx); err != nil {
		return nil, nil, err
	}
	before = s.current()
	err = guard.Call("update", func() (err error) {
		next, err = f(applyDelta(before.params, nil))
		return err
	})
	return before, next, err
}

func errNewerState() error { return fail(ErrDuplicate, "the peer has a newer state") }

// isOtherState reports whether err is the refusal of a state that does not follow that of the peer.
func isOtherState(err error) bool {
	return errors.Is(err, ErrSequenceGap) || errors.Is(err, ErrDuplicate)
}

// queryState takes the state of the peer, unless the own one is newer.
func (c *Client) queryState(ctx context.Context, s *Session) (isOwnNewer bool, err error) {
	err = c.exchange(c.newAttempt(ctx, &Message{Intent: IntentQry, Op: opState}, c.opts.Timing.Timeout), s)
	if e, ok := errors.AsType[*Error](err); ok && !e.Remote && e.Code == ErrDuplicate {
		return true, nil
	}
	return false, err
}

// sendState sends the frames of the shared state and waits for the answer.
func (c *Client) sendState(ctx context.Context, s *Session, isChange bool, send func() (*SendResult, error)) error {
	a := c.newAttempt(ctx, &Message{Intent: IntentSync, Op: opState}, c.opts.Timing.Timeout)
	a.isSync, a.isChange = true, isChange
	a.encode = send
	err := c.exchange(a, s)
	if err != nil && !isOtherState(err) {
		return c.final(ctx, a, err)
	}
	return err
}
