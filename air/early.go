// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package air

import (
	"context"
	"errors"
	"time"

	"github.com/fivewire/fivewire/air/internal/core"
)

// maxEarlyWait is how long a pulled move waits for the earlier message of its thread (AIR-D77).
const maxEarlyWait = 10 * time.Minute

// An earlyError is that of a move that waits for an earlier message of its thread.
type earlyError struct{ error }

func (e *earlyError) Unwrap() error { return e.error }

// checkEarly lets a pulled or queued move wait that names a message which the thread has not seen, and a Withdraw
// until the message that it names is handled (AIR-D77).
func (r *receiver) checkEarly(ctx context.Context, a *arrival) error {
	if a.via == viaPush || r.opts.ignoresThreads || !isMove(a.d.Body) {
		return nil
	}
	env, isLate := a.env, time.Since(a.pulled) >= maxEarlyWait
	if w, ok := a.d.Body.(*Withdraw); ok && w.WithdrawnID != env.ID {
		if err := r.checkWithdrawn(ctx, a, w.WithdrawnID, isLate); err != nil {
			return err
		}
	}
	// A larger message than half of the letters could wait for room without end.
	if a.via == viaLetter || isLate && !r.letters.isFull(env.From, min(r.opts.Limits.MaxMessage, maxLetterBytes/2)) {
		return nil
	}
	th, err := r.threads.Get(ctx, env.ThreadID, env.From)
	if err != nil {
		return ErrRelay.because("", err)
	}
	m := messageOf(r.self.did == env.From, env.ID, env.InReplyTo, a.d.Body)
	if !th.state.IsUnseen(m) {
		return nil
	}
	isConfirmed, err := r.threads.confirm(ctx, env, th.state)
	switch {
	case err != nil:
		return ErrRelay.because("", err)
	case isConfirmed:
		return nil
	}
	if _, err := th.state.Apply(m); err != nil {
		return &earlyError{retryable(refused(err))}
	}
	return nil
}

// checkWithdrawn lets a Withdraw wait for the message with an id. Once it has waited for long enough, it becomes a dead
// letter behind a dead letter, instead of being refused.
func (r *receiver) checkWithdrawn(ctx context.Context, a *arrival, id string, isLate bool) error {
	from := a.env.From
	if a.via == viaLetter || isLate {
		waiting, err := r.letters.find(ctx, from, func(l letterInfo) bool { return l.envelopeID == id })
		if err != nil {
			return ErrRelay.because("", err)
		}
		if len(waiting) > 0 {
			a.after = id
			return holdable(ErrConflict.err("the message to withdraw is a dead letter"))
		}
	}
	return r.checkHandled(ctx, from, id, time.Since(a.pulled))
}

// checkHandled returns an earlyError if the message of a sender with an id will be handled again. Its Withdraw has waited
// for some time.
func (r *receiver) checkHandled(ctx context.Context, from, id string, waited time.Duration) error {
	earlier, claim, err := r.ledger.find(ctx, from, id)
	if err != nil {
		return ErrRelay.because("", err)
	}
	if earlier.IsOpen(time.Now(), waited, claim) {
		return errUnhandled()
	}
	return nil
}

// isQueued reports whether the message of a sender with an id is queued.
func (r *receiver) isQueued(ctx context.Context, from, id string) (bool, error) {
	if r.instance == nil {
		return false, nil
	}
	return r.instance.box.Has(ctx, queueOf(from, id))
}

func errUnhandled() error {
	return &earlyError{retryable(ErrConflict.err("the message to withdraw is not handled yet"))}
}

// isEarly reports whether a copy waits for something else than the next attempt to pass it to the handler: its thread,
// or the time of the next attempt.
func isEarly(err error) bool {
	var early *core.EarlyError
	var move *earlyError
	return errors.As(err, &early) || errors.As(err, &move)
}
