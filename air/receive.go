// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package air

import (
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"github.com/fivewire/fivewire/air/internal/core"
	"github.com/fivewire/fivewire/internal/guard"
	"github.com/fivewire/fivewire/internal/life"
	"github.com/fivewire/fivewire/internal/outbox"
)

// A receiver runs the steps of 6.2 for the envelopes of one agent.
type receiver struct {
	self     *self
	opts     *InboxOptions
	life     *life.Life
	reports  *reports
	verifier verifier
	opener   opener
	pulls    pullTimes
	ledger   ledger
	letters  letters
	threads  *ThreadStore
	handler  Handler
	instance *instance // nil without a Store
}

// receive receives an envelope as one piece of work, and completes its audit record.
func (r *receiver) receive(ctx context.Context, a *arrival) *ReceiveResult {
	w, err := r.life.Start(ctx, life.Request)
	if err != nil {
		a.release()
		return r.finish(ctx, a, err)
	}
	defer w.Finish()
	err = guard.Call("inbox", func() error { return r.prepare(w, a) })
	if p, ok := errors.AsType[*guard.PanicError](err); ok && p.What == "inbox" { // user code has its own guard
		r.reports.panicked(w, err)
	}
	if err == nil && a.via == viaPush {
		return r.handlePush(w, a)
	}
	if err == nil {
		r.complete(w, a)
		return a.result
	}
	defer a.release()
	return r.finish(w, a, err)
}

// complete handles an envelope and sets its result, also if the handler ends its goroutine.
func (r *receiver) complete(ctx context.Context, a *arrival) {
	isReturned := false
	var err error
	defer a.release()
	defer func() {
		if !isReturned {
			err = cmp.Or(a.err, retryable(ErrRelay.because("", guard.ErrGoexit)))
		}
		a.result = r.finish(ctx, a, err)
	}()
	err = r.handle(ctx, a)
	isReturned = true
}

// handlePush handles a pushed envelope in its own context, which outlives the request (AIR-D80).
func (r *receiver) handlePush(ctx context.Context, a *arrival) *ReceiveResult {
	work, err := r.life.Start(context.WithoutCancel(ctx), life.Part)
	if err != nil {
		defer a.release()
		return r.finish(ctx, a, err)
	}
	done := make(chan struct{})
	go work.Run("handler", func(ctx context.Context) error {
		defer close(done)
		r.complete(ctx, a)
		return nil
	}, func(error) {})
	if err := r.await(ctx, a, done); err != nil {
		return &ReceiveResult{Class: ClassLater, Err: err, Envelope: a.env}
	}
	select {
	case <-done:
		if a.isWaiting && r.queue(ctx, a) == nil {
			break // the inbox owns it
		}
		return a.result
	default:
	}
	return &ReceiveResult{Class: ClassLater, Envelope: a.env}
}

// await waits for the end of a handler or, with a Store, until the inbox has queued the envelope.
func (r *receiver) await(ctx context.Context, a *arrival, done <-chan struct{}) *Error {
	limit := r.opts.Timing.HandlerTimeout + 5*time.Second
	if r.instance != nil {
		limit = r.opts.Timing.PushWait
	}
	timer := time.NewTimer(limit)
	defer timer.Stop()
	for {
		select {
		case <-done:
			return nil
		case <-ctx.Done():
			return ErrRelay.because("", context.Cause(ctx))
		case <-timer.C:
			if r.instance == nil {
				return ErrRelay.err(core.ErrElsewhere.Error())
			}
		}
		err := r.queue(ctx, a)
		if err == nil {
			return nil
		}
		r.reports.log.WarnContext(ctx, "air: envelope not queued", "id", a.env.ID, "err", err)
		timer.Reset(limit)
	}
}

// prepare runs the steps before the ledger.
func (r *receiver) prepare(ctx context.Context, a *arrival) (err error) {
	if a.env == nil {
		if a.env, err = r.opener.decode(a.data, a.via != viaPush); err != nil {
			return err
		}
	}
	if a.env.To != r.self.did {
		return ErrWrongRecipient.err("the envelope is addressed to another agent")
	}
	var sig [64]byte
	if err := decodeSignature(&sig, a.env.Signature); err != nil {
		return err
	}
	r.pulls.recall(a)
	form, key, err := r.verifier.verify(ctx, a)
	if err != nil {
		return err
	}
	a.unverified.Release()
	a.record.Principal = a.env.From
	a.d = &Delivery{Envelope: a.env, Form: form, FromRelay: a.isFromRelay()}
	if a.via == viaPush {
		return r.checkPush(ctx, a, key)
	}
	err = r.checkPulled(ctx, a, key)
	if err == nil && !a.isRemembered {
		return nil
	}
	return r.checkLedger(ctx, a, err)
}

// checkLedger returns why a pulled envelope is not handled now. The state of its message in the ledger precedes err.
func (r *receiver) checkLedger(ctx context.Context, a *arrival, err error) error {
	earlier, failed := r.ledger.peek(ctx, a.env)
	a.attempts = earlier.Attempts
	if failed == nil {
		failed = earlier.Begin(core.Attempt{Now: time.Now(), MaxAttempts: r.opts.Limits.MaxAttempts, IsForced: a.isForced()})
	}
	var clock *clockError
	switch {
	case errors.Is(failed, core.ErrUsedUp):
		return holdable(ErrHandlerFailed.because("", failed))
	case failed != nil:
		return failed
	case errors.As(err, &clock) && earlier.IsKnown: // it was accepted before
		return nil
	}
	return err
}

// A clockError is that of an envelope outside the clock window.
type clockError struct{ error }

func (e *clockError) Unwrap() error { return e.error }

// checkPush checks the key policy and the clock for a pushed envelope.
func (r *receiver) checkPush(ctx context.Context, a *arrival, key *PublicKey) error {
	if err := r.verifier.authorize(ctx, a.env.From, key); err != nil {
		return err
	}
	age := a.arrived.Sub(a.env.Time)
	if (core.Received{}).CheckClock(true, age, time.Until(a.env.Time), 0) != "" {
		return stale(age, core.MaxAge)
	}
	return nil
}

// checkPulled checks the key policy, the type of the body, the clock and the place in the thread for a pulled
// envelope, and opens it.
func (r *receiver) checkPulled(ctx context.Context, a *arrival, key *PublicKey) error {
	if err := r.verifier.authorize(ctx, a.env.From, key); err != nil {
		return err
	}
	if r.opts.Profile != ProfileDeployed && !knownBody(a.env.Type, r.opts.BodyTypes) {
		return holdable(unsupported(a.env.Type))
	}
	if a.via == viaPull { // else accepted by the clock of the push or by the owner
		age := a.arrived.Sub(a.env.Time)
		class := (core.Received{}).CheckClock(false, age, time.Until(a.env.Time), r.opts.Timing.MaxPullAge)
		if class != "" {
			return &clockError{&classError{stale(age, r.opts.Timing.MaxPullAge), Class(class)}}
		}
	}
	if err := r.opener.open(a); err != nil {
		return err
	}
	return r.checkEarly(ctx, a)
}

func stale(age, allowed time.Duration) *Error {
	if age < 0 {
		return ErrStaleTimestamp.err(fmt.Sprintf("%d s ahead, %d s allowed", -age/time.Second, core.MaxSkew/time.Second))
	}
	return ErrStaleTimestamp.err(fmt.Sprintf("%d s old, %d s allowed", age/time.Second, allowed/time.Second))
}

// finish completes the result of an attempt: it keeps held mail, and reports the outcome.
func (r *receiver) finish(ctx context.Context, a *arrival, err error) *ReceiveResult {
	o := &ReceiveResult{Class: ClassDone, Data: a.data, Envelope: a.env, FromRelay: a.isFromRelay()}
	switch {
	case err == nil:
		o.Delivery = a.d
	case errors.Is(err, errCopy):
		o.Err, o.isCopy = asError(replayed()), true
	default:
		o.Err, o.Class = classify(err, a.via)
	}
	// Without an outcome of a verified message, its thread has to wait: the store failed, or another process is at it.
	isUnclear := isCode(err, ErrRelay) && a.failures == 0 && !isEarly(err) || errors.Is(err, core.ErrElsewhere)
	a.isOpen = o.Class == ClassLater && a.d != nil && isUnclear
	if o.Class == ClassHeld {
		r.hold(ctx, a, o)
	}
	o.Final = o.Class == ClassDone || o.Class == ClassRefused || o.Class == ClassHeld && r.instance != nil
	if o.Class != ClassHeld || !o.Final { // held mail is pulled again as long as another envelope with its id is not settled
		r.pulls.remember(a, o.Final)
	}
	if a.env != nil {
		a.record.Object = a.env.ID
	}
	r.report(ctx, a, o)
	return o
}

// report reports an attempt. A copy that has waited for a handled message is not refused. A queued copy is not reported if its
// message is handled, which has its own record, or if the next attempt is not due.
func (r *receiver) report(ctx context.Context, a *arrival, o *ReceiveResult) {
	isHandled := a.d != nil && a.d.isHandled
	var early *core.EarlyError
	isWaiting := o.Err != nil && (o.Err.Code == ErrReplay || errors.As(o.Err, &early))
	switch {
	case o.isCopy:
		r.reports.audit(ctx, &a.record, nil, false)
	case a.via == viaQueue && !isHandled && isWaiting:
	default:
		r.reports.audit(ctx, &a.record, o.Err, isHandled)
		if o.Err != nil {
			r.reports.refusal(ctx, &a.record, o)
			r.reports.outcome(ctx, o)
		}
	}
}

// hold makes an envelope a dead letter. If that fails, it is received later.
func (r *receiver) hold(ctx context.Context, a *arrival, o *ReceiveResult) {
	err := r.letters.put(ctx, DeadLetter{ID: letterID(a.env), Envelope: a.data, From: a.env.From, EnvelopeID: a.env.ID,
		Code: o.Err.Code, Detail: o.Err.Message, Arrived: a.arrived, Attempts: a.attempts, After: a.after})
	if err != nil {
		o.Class = ClassLater
		r.reports.warn(ctx, "letter", "air: dead letter not stored", "id", a.env.ID, "err", err)
	}
}

// queueKind is the kind of the streams of the outbox that hold accepted pushes.
const queueKind = "mail"

// queueOf returns the stream of the message of a sender with an id.
func queueOf(from, id string) string {
	k := idKey(from, id)
	return queueKind + "/" + hex.EncodeToString(k[:])
}

// queue makes the inbox the owner of a pushed envelope.
func (r *receiver) queue(ctx context.Context, a *arrival) error {
	if err := r.instance.wait(ctx); err != nil {
		return err
	}
	ctx, cancel := storeContext(ctx)
	defer cancel()
	return r.instance.box.Put(ctx, queueOf(a.env.From, a.env.ID), letterID(a.env), a.data)
}

// receiveQueued is an attempt for a queued envelope (AIR-D80).
func (r *receiver) receiveQueued(ctx context.Context, item outbox.Item) outbox.Verdict {
	record := AuditRecord{Time: time.Now(), Operation: "queue", Bytes: int64(len(item.Data))}
	a := &arrival{data: item.Data, via: viaQueue, arrived: item.First, pulled: time.Now(), record: record}
	o := r.receive(ctx, a)
	if o.Class != ClassLater {
		return outbox.Done()
	}
	delay := core.HandlerDelay
	var early *core.EarlyError
	switch {
	case errors.As(o.Err, &early):
		delay = max(early.Wait, time.Millisecond)
	case a.failures > 0:
		delay = time.Millisecond // the ledger has the time of the next attempt
	}
	return outbox.Later(delay, o.Err)
}
