// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package air

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"time"

	"github.com/fivewire/fivewire/air/internal/core"
	"github.com/fivewire/fivewire/internal/budget"
	"github.com/fivewire/fivewire/internal/guard"
	"github.com/fivewire/fivewire/internal/lazy"
	"github.com/fivewire/fivewire/internal/once"
	"github.com/fivewire/fivewire/internal/seen"
	"github.com/fivewire/fivewire/store"
)

// An attempt is the handling of a message while this process has its claim.
type attempt struct {
	*receiver
	*arrival
	names   names
	before  core.Received   // what earlier attempts left
	epoch   context.Context // of the lease
	isFull  bool            // the window has no room for the names
	outcome once.Result     // of run, also if the handler ends its goroutine

	isMisplaced bool // the thread has refused the move
	isRejected  bool // the handler has, so that it does not count
	isConcluded bool // the handler has ended, and outcome is set
}

// handle handles an envelope that passed all checks, unless the ledger knows its message. A pushed copy of one that is
// being handled waits for its outcome; a queued one waits for its turn.
func (r *receiver) handle(ctx context.Context, a *arrival) error {
	t := &attempt{receiver: r, arrival: a, names: namesOf(a.env), epoch: context.Background()}
	table, err := r.ledger.table(ctx)
	if err != nil {
		return retryable(ErrRelay.because("", err))
	}
	if r.instance != nil {
		t.epoch = r.instance.lease.Context()
	}
	key := keyOf(a.env.From, &t.names)
	key.NoWait, key.Exit = a.via != viaQueue, &t.outcome
	for {
		data, isDone, err := table.Do(ctx, key, once.Repeat, t.run)
		isRunning := errors.Is(err, once.ErrBusy)
		switch {
		case isRunning && a.via == viaPush:
			if isDone, err = t.join(ctx, table, key); isDone {
				return err
			}
		case isRunning:
			return elsewhere()
		case err != nil:
			return retryable(ErrRelay.because("", err))
		case isDone && a.via == viaPush:
			return t.repeated(ctx, data)
		case isDone:
			return replayed()
		default:
			return t.err
		}
	}
}

// join waits for the copy that is being handled, and returns its outcome (AIR-D80). If that left nothing, for example
// after a failure of the store, it reports false, so that this copy is handled.
func (t *attempt) join(ctx context.Context, table *once.Table, key once.Key) (isDone bool, outcome error) {
	state, c, data, err := table.Wait(ctx, key)
	r, _, invalid := received(&c, t.names.id)
	switch {
	case err != nil || invalid != nil:
		return true, ErrRelay.because(core.ErrElsewhere.Error(), errors.Join(err, invalid))
	case state == once.StateRunning && c.Kept && r.Attempts > 0:
		return true, ErrRelay.err("the first copy of the envelope failed")
	case state == once.StateAbsent || state == once.StateRunning:
		return false, nil
	case len(data) == 0:
		return true, errCopy
	}
	return true, refusalOf(data)
}

// repeated returns the error of a pushed copy of a message that is done. A move that the thread has refused is refused
// again while its outcome is kept, and then by repeat: its sender would take a replay for a delivery if the first answer
// was lost.
func (t *attempt) repeated(ctx context.Context, outcome []byte) error {
	var s storedRefusal
	switch {
	case len(outcome) == 0 || json.Unmarshal(outcome, &s) != nil:
		return replayed()
	case s.IsRejected:
		return t.repeat(ctx)
	case s.IsMove:
		return s.error()
	}
	return replayed()
}

// A storedRefusal is the outcome of a message that was refused, for the copies that wait for it.
type storedRefusal struct {
	Code         Code
	Message      string          `json:",omitempty"`
	Details      json.RawMessage `json:",omitempty"`
	AIRID        string          `json:",omitempty"`
	IsBadRequest bool            `json:",omitempty"`
	IsMove       bool            `json:",omitempty"` // refused by the thread
	IsRejected   bool            `json:",omitempty"` // a move that does not count, since the handler has refused it
}

func refusalOf(data []byte) error {
	var s storedRefusal
	if err := json.Unmarshal(data, &s); err != nil {
		return ErrRelay.because("", err)
	}
	return s.error()
}

func (s *storedRefusal) error() *Error {
	return &Error{Code: s.Code, Message: s.Message, Details: s.Details, AIRID: s.AIRID, isBadRequest: s.IsBadRequest}
}

// done ends the attempts of a message with an outcome for the copies that wait. The window keeps its names.
func (t *attempt) done(err error) once.Result {
	t.err = err
	if t.round != nil {
		t.round.add(t.env, t.names)
	}
	if err == nil {
		return once.Result{}
	}
	e := asError(err)
	s := storedRefusal{Code: e.Code, Message: e.Message, AIRID: e.AIRID, IsBadRequest: e.isBadRequest, IsMove: t.isMisplaced, IsRejected: t.isRejected}
	if json.Valid(e.Details) {
		s.Details = e.Details
	}
	data, failed := json.Marshal(s)
	if failed != nil { // a text that is not JSON
		data, _ = json.Marshal(storedRefusal{Code: e.Code, IsMove: t.isMisplaced, IsRejected: t.isRejected})
	}
	return once.Result{Data: data}
}

// suspend ends an attempt of a message that is to be received again.
func (t *attempt) suspend(r core.Received, err error) once.Result {
	t.err = err
	if !t.isFull {
		t.ledger.window.forget(t.env.From, &t.names)
	}
	return kept(t.names.id, r)
}

// run is the work of the claim. A panic, for example of a store, leaves the message as it was.
func (t *attempt) run(ctx context.Context, c once.Claim) (once.Result, error) {
	before, isOther, err := received(&c, t.names.id)
	if err != nil || isOther { // the claim is not changed
		t.err = elsewhere()
		if err != nil {
			t.err = retryable(ErrRelay.because("", err))
		}
		return once.Result{Retry: true, Data: c.State}, nil
	}
	t.before, t.attempts, t.isFull = before, before.Attempts, true // so far the window has not the names
	guard.Run("inbox", func() error {
		t.outcome = t.begin(ctx)
		return nil
	}, func(err error) {
		if err != nil && !t.isConcluded {
			t.reports.panicked(ctx, err)
			t.outcome = t.suspend(t.before, retryable(ErrRelay.because("", err)))
		}
	})
	return t.outcome, nil
}

// begin takes the place of the message in the window.
func (t *attempt) begin(ctx context.Context) once.Result {
	err := t.before.Begin(core.Attempt{Now: time.Now(), MaxAttempts: t.opts.Limits.MaxAttempts, IsForced: t.isForced()})
	switch {
	case errors.Is(err, core.ErrUsedUp):
		return t.suspend(t.before, holdable(ErrHandlerFailed.because("", err)))
	case err != nil:
		return t.suspend(t.before, retryable(ErrRelay.because("", err)))
	case t.round != nil && t.round.has(&t.names):
		return t.done(replayed())
	}
	err = t.ledger.window.record(t.env.From, t.env.ThreadID, &t.names, t.until())
	t.isFull = errors.Is(err, seen.ErrExhausted)
	switch {
	case errors.Is(err, seen.ErrSeen):
		return t.done(t.repeat(ctx))
	case t.isFull && !t.before.IsKnown: // one that was accepted before needs no place
		return t.suspend(t.before, &Error{Code: ErrReplayWindowExhausted, Message: "no room for another nonce of this thread", ThreadID: t.env.ThreadID})
	}
	if t.d.Body == nil {
		if err := t.opener.open(t.arrival); isCode(err, ErrStaleKey) {
			return t.suspend(t.before, err)
		} else if err != nil {
			return t.done(err)
		}
	}
	t.d.Redelivered = t.before.Redelivered
	return t.deliver(ctx)
}

// repeat returns the error of a copy of a message that is done and whose outcome is not kept. A pushed move that the thread
// does not have was refused. If it fits, it counts from now on, as for its sender, which takes a replay for a delivery; else it is
// refused again.
func (t *attempt) repeat(ctx context.Context) error {
	if t.via != viaPush || t.d.Body == nil && t.opener.open(t.arrival) != nil || !isMove(t.d.Body) {
		return replayed()
	}
	th, err := t.threads.Get(ctx, t.env.ThreadID, t.env.From)
	isSame := func(m Move) bool { return m.ID == t.env.ID }
	if err != nil || th.LastMessageID == t.env.ID || slices.ContainsFunc(th.Moves, isSame) {
		return replayed()
	}
	_, _, err = t.threads.receive(ctx, t.env, t.d.Body)
	var refusal *Error
	if errors.As(err, &refusal) {
		t.isMisplaced = true
		return err
	}
	return replayed()
}

// until returns how long the window has the names of the message. A drain keeps those of its messages longer.
func (t *attempt) until() time.Time {
	until := t.env.Time.Add(max(core.MaxAge, t.opts.Timing.MaxPullAge))
	if t.via != viaPush {
		until = later(until, time.Now().Add(core.MaxAge))
	}
	return until
}

// deliver advances the thread and calls the handler. If the handler fails, the change of the thread is
// undone and the message is handled again later.
func (t *attempt) deliver(ctx context.Context) once.Result {
	d := t.d
	if t.slots != nil {
		select {
		case t.slots <- struct{}{}:
			defer func() { <-t.slots }()
		case <-ctx.Done():
			return t.suspend(t.before, retryable(ErrRelay.because("", context.Cause(ctx))))
		}
	}
	if err := t.checkPushed(ctx); err != nil {
		return t.suspend(t.before, retryable(ErrRelay.because("", err)))
	}
	var thread core.Thread // before the message
	if isMove(d.Body) && !t.opts.ignoresThreads {
		d.Expired = isExpired(d.Body, time.Now())
		if d.Expired && t.opts.RejectExpired {
			return t.done(ErrInvalidEnvelope.err("expires_at has passed"))
		}
		before, after, err := t.threads.receive(ctx, t.env, d.Body)
		var refusal *Error
		var full *budget.Error
		switch {
		case errors.As(err, &full):
			return t.suspend(t.before, retryable(overBudget(err)))
		case errors.As(err, &refusal):
			t.isMisplaced = true
			return t.done(err)
		case err != nil:
			before := t.before
			before.IsKnown = before.IsKnown || errors.Is(err, store.ErrUnknown) // the thread may have the message
			return t.suspend(before, retryable(ErrRelay.because("", err)))
		}
		th := threadOf(after)
		thread, d.Thread = before, &th
	}
	t.call(ctx, func(err error) {
		t.outcome = t.conclude(ctx, thread, err)
		t.isConcluded = true
	})
	return t.outcome
}

// conclude ends an attempt after its handler. The argument thread is the state before the message.
func (t *attempt) conclude(ctx context.Context, thread core.Thread, err error) once.Result {
	rejected, isRejected := errors.AsType[*rejection](err)
	switch {
	case err == nil:
		return t.done(nil)
	case isRejected:
		return t.reject(ctx, rejected.err, thread)
	}
	if t.d.Thread != nil && t.epoch.Err() == nil { // else another process may have applied it
		err = errors.Join(err, t.threads.revert(ctx, t.env, t.d.Body, thread))
	}
	return t.fail(ctx, err)
}

// reject ends the attempts of a message that the handler refuses. A pushed move does not count then, as for its sender, which gets
// the refusal, unless it was answered with 202. It counts once a copy of it is answered as a replay.
func (t *attempt) reject(ctx context.Context, refusal *Error, thread core.Thread) once.Result {
	if refusal.Code == ErrStaleKey {
		refusal.AIRID = t.self.id.Load().airID
	}
	if t.via == viaPush && t.d.Thread != nil && t.epoch.Err() == nil {
		isQueued, err := t.isQueued(ctx, t.env.From, t.env.ID)
		if err == nil && !isQueued {
			t.isRejected = true
			err = t.threads.revert(ctx, t.env, t.d.Body, thread)
		}
		if err != nil {
			return t.fail(ctx, err)
		}
	}
	return t.done(&classError{refusal, ClassRefused})
}

// checkPushed returns an error if a pushed Withdraw is to wait for the message that it names, which is not handled yet: it
// is queued, its handler runs, or the change of the thread was in doubt. Without a Store nothing is in doubt, and the
// Withdraw could not be queued.
func (t *attempt) checkPushed(ctx context.Context) error {
	w, isWithdraw := t.d.Body.(*Withdraw)
	if !isWithdraw || t.via != viaPush || t.instance == nil {
		return nil
	}
	th, err := t.threads.Get(ctx, t.env.ThreadID, t.env.From)
	switch {
	case err != nil || th.state.IsClosed():
		return err
	case th.state.IsUnseen(messageOf(false, t.env.ID, "", w)):
		var isQueued bool
		if isQueued, err = t.isQueued(ctx, t.env.From, w.WithdrawnID); isQueued {
			err = errUnhandled()
		}
	default:
		err = t.checkHandled(ctx, t.env.From, w.WithdrawnID, time.Since(t.arrived))
	}
	t.isWaiting = isEarly(err)
	return err
}

// A repeatedKey is the key of the envelope in the context of a handler that may have been called for it before.
type repeatedKey struct{}

// call calls the handler, and then done with its error.
func (t *attempt) call(ctx context.Context, done func(err error)) {
	ctx, cancel := lazy.WithTimeout(ctx, t.opts.Timing.HandlerTimeout)
	defer cancel()
	t.d.isHandled = true
	if t.before.IsKnown {
		ctx = context.WithValue(ctx, repeatedKey{}, t.env)
	}
	guard.Run("handler", func() error { return t.handler.ServeAIR(ctx, t.d) }, func(err error) {
		t.reports.panicked(ctx, err)
		done(err)
	})
}

// fail ends an attempt whose handler failed, or was cut off by the end of the process or its caller.
func (t *attempt) fail(ctx context.Context, err error) once.Result {
	if ctx.Err() != nil {
		return t.suspend(t.before.Cut(), retryable(ErrRelay.because("", errors.Join(context.Cause(ctx), err))))
	}
	t.reports.log.WarnContext(ctx, "air: handler failed", "id", t.env.ID, "err", err)
	after, class := t.before.Fail(time.Now(), t.opts.Limits.MaxAttempts, t.via == viaPush)
	t.attempts, t.failures = after.Attempts, 1
	if class == core.ClassHeld {
		return t.suspend(after, holdable(ErrHandlerFailed.because("", err)))
	}
	return t.suspend(after, retryable(ErrRelay.because("", err)))
}

func isExpired(b Body, now time.Time) bool {
	switch b := b.(type) {
	case *Offer:
		return now.After(b.Expires)
	case *Counter:
		return now.After(b.Expires)
	}
	return false
}
