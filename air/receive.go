// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package air

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/fivewire/fivewire/air/internal/core"
	"github.com/fivewire/fivewire/internal/budget"
	"github.com/fivewire/fivewire/internal/guard"
	"github.com/fivewire/fivewire/internal/life"
	"github.com/fivewire/fivewire/internal/outbox"
)

// A Class is the kind of outcome of a received envelope (AIR-D73).
type Class string

// The classes.
const (
	ClassDone    Class = core.ClassDone    // the handler took it, now or earlier
	ClassRefused Class = core.ClassRefused // it can never become good
	ClassHeld    Class = core.ClassHeld    // authentic, but only a person or a changed configuration can help
	ClassLater   Class = core.ClassLater   // to be received again
)

// A ReceiveResult is the outcome of a received envelope.
type ReceiveResult struct {
	Class    Class
	Delivery *Delivery // nil unless the handler took it now
	Err      *Error    // why the handler did not take it now; nil also for a push that is queued

	// Final reports whether a relay may forget the envelope. Held mail is final only with a Store.
	Final bool

	Data      []byte    // as received; nil if it was too large
	Envelope  *Envelope // nil if it could not be decoded
	FromRelay bool

	failures int  // of the handler in this attempt
	isCopy   bool // of an envelope that the handler took during the wait of the copy
}

// A classError is an error with another class than that of its code.
type classError struct {
	err   error
	class Class
}

func (e *classError) Error() string { return e.err.Error() }
func (e *classError) Unwrap() error { return e.err }

func holdable(err error) error  { return &classError{err, ClassHeld} }
func retryable(err error) error { return &classError{err, ClassLater} }

// classify returns the error and the class of an attempt that failed.
func classify(err error, via via) (*Error, Class) {
	e, given := asError(err), ""
	isElsewhere := errors.Is(e, core.ErrElsewhere)
	var c *classError
	switch {
	case errors.As(err, &c):
		given = string(c.class)
	case isElsewhere:
		given = core.ClassLater
	}
	if isElsewhere && via == viaPush {
		// A sender reads a replay as a success (AIR-D46), but the first copy may still fail.
		e = ErrRelay.because(core.ErrElsewhere.Error(), e)
	}
	return e, Class(core.ClassOf(string(e.Code), given, via == viaPush))
}

// A via is the way of an envelope to the inbox.
type via byte

const (
	viaPush   via = iota
	viaPull       // from a relay
	viaQueue      // a push that was answered with 202 (AIR-D80)
	viaLetter     // a dead letter
)

// An arrival is a received envelope. Its holds are those of a push over HTTP.
type arrival struct {
	data    []byte
	via     via
	arrived time.Time // the age of the envelope counts until then (AIR-D68)
	pulled  time.Time // when it was first pulled
	record  *AuditRecord

	env   *Envelope     // decoded data, if not nil
	round *round        // of a pulled envelope
	slots chan struct{} // of handlers; nil means no bound

	after        string // the id of the dead letter that the envelope waits for
	attempts     int    // failed calls of the handler
	failures     int    // of those, in this attempt
	work, memory budget.Hold
	unverified   budget.Hold // until the signature has verified
}

func (a *arrival) release() {
	a.work.Release()
	a.memory.Release()
	a.unverified.Release()
}

// isForced reports whether the attempt does not wait until it is due (AIR-D75).
func (a *arrival) isForced() bool { return a.via == viaPush || a.via == viaLetter }

// isRepeated reports whether an envelope without a final outcome is received again by itself. Its waits count
// from the first time in this process, whatever the clock of the store and the downtime (AIR-D81).
func (a *arrival) isRepeated() bool { return a.via == viaPull || a.via == viaQueue }

// A pullTime is what is remembered of an envelope from its first pull on.
type pullTime struct{ arrived, pulled time.Time }

// recall sets the times of the first pull.
func (in *Inbox) recall(a *arrival, env *Envelope) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if !a.isRepeated() || len(in.pulls.entries) == 0 {
		return
	}
	if t, ok := in.pulls.get(pullKey(env)); ok {
		a.arrived, a.pulled = t.arrived, t.pulled
	}
}

// remember keeps the times of the first pull until the outcome of the envelope is final.
func (in *Inbox) remember(a *arrival, env *Envelope, isFinal bool) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if !a.isRepeated() || env == nil || isFinal && len(in.pulls.entries) == 0 {
		return
	}
	k := pullKey(env)
	t, ok := in.pulls.get(k)
	switch {
	case isFinal:
		in.pulls.remove(k)
	case !ok || a.pulled.Before(t.pulled):
		in.pulls.put(k, pullTime{a.arrived, a.pulled})
	}
}

// pullKey identifies an envelope with its signature.
func pullKey(env *Envelope) replayKey {
	sum := sha256.Sum256(env.appendTo(nil))
	return replayKey(sum[:16])
}

// Receive runs the steps of 6.2 for one pushed or pulled envelope, and waits for the handler. A pushed
// one is queued if the handler takes long and the inbox has a Store.
func (in *Inbox) Receive(ctx context.Context, data []byte, pulled bool) *ReceiveResult {
	r, now := &AuditRecord{Time: time.Now(), Operation: "push", Bytes: int64(len(data))}, time.Now()
	a := &arrival{data: data, arrived: now, pulled: now, record: r}
	if !pulled {
		return in.receiveAs(ctx, a)
	}
	return in.receivePulled(ctx, a)
}

// receivePulled receives an envelope as a drain.
func (in *Inbox) receivePulled(ctx context.Context, a *arrival) *ReceiveResult {
	a.via, a.record.Operation, a.round = viaPull, "pull", &round{}
	defer in.ledger.keep(a.round)
	return in.receiveAs(ctx, a)
}

// A claimed is an envelope that passed all checks.
type claimed struct {
	d *Delivery
	h *hold
}

// receiveAs receives an envelope as one piece of work, and completes its audit record.
func (in *Inbox) receiveAs(ctx context.Context, a *arrival) *ReceiveResult {
	w, err := in.life.Start(ctx, life.Request)
	if err != nil {
		a.release()
		return in.finish(ctx, a, &ReceiveResult{}, nil, err)
	}
	defer w.Finish()
	o, c := &ReceiveResult{}, claimed{}
	err = guard.Call("inbox", func() (err error) {
		o.Envelope, c, err = in.prepare(w, a)
		return err
	})
	if err != nil {
		var p *guard.PanicError
		if errors.As(err, &p) && p.What == "inbox" { // user code has its own guard
			in.logPanic(w, err)
		}
	}
	if err != nil || a.via != viaPush {
		defer a.release()
		if err == nil {
			err = in.handle(w, a, c)
		}
		return in.finish(w, a, o, c.d, err)
	}
	return in.handlePush(w, a, o, c)
}

// handlePush handles a pushed envelope in its own context, which outlives the request (AIR-D80).
func (in *Inbox) handlePush(ctx context.Context, a *arrival, o *ReceiveResult, c claimed) *ReceiveResult {
	work, err := in.life.Start(context.WithoutCancel(ctx), life.Part)
	if err != nil {
		defer a.release()
		return in.finish(ctx, a, o, nil, errors.Join(err, c.h.drop(ctx, err)))
	}
	done := make(chan struct{})
	go work.Run("handler", func(ctx context.Context) error {
		defer close(done)
		defer a.release()
		in.finish(ctx, a, o, c.d, in.handle(ctx, a, c))
		return nil
	}, func(error) {})
	if err := in.await(ctx, a, c.d.Envelope, done); err != nil {
		return &ReceiveResult{Class: ClassLater, Err: err, Envelope: c.d.Envelope}
	}
	select {
	case <-done:
		return o
	default:
		return &ReceiveResult{Class: ClassLater, Envelope: c.d.Envelope}
	}
}

// await waits for the end of a handler or, with a Store, until the inbox has queued the envelope.
func (in *Inbox) await(ctx context.Context, a *arrival, env *Envelope, done <-chan struct{}) *Error {
	limit := in.opts.Timing.HandlerTimeout + 5*time.Second
	if in.instance != nil {
		limit = in.opts.Timing.PushWait
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
			if in.instance == nil {
				return ErrRelay.err(core.ErrElsewhere.Error())
			}
		}
		err := in.queue(ctx, a, env)
		if err == nil {
			return nil
		}
		in.log.WarnContext(ctx, "air: envelope not queued", "id", env.ID, "err", err)
		timer.Reset(limit)
	}
}

// prepare runs the steps before the handler and claims the message.
func (in *Inbox) prepare(ctx context.Context, a *arrival) (env *Envelope, c claimed, err error) {
	if env = a.env; env == nil {
		if env, err = in.decode(a.data, a.via != viaPush); err != nil {
			return nil, c, err
		}
	}
	if env.To != in.did {
		return env, c, ErrWrongRecipient.err("the envelope is addressed to another agent")
	}
	var sig [64]byte
	if err := decodeSignature(&sig, env.Signature); err != nil {
		return env, c, err
	}
	in.recall(a, env)
	form, key, err := in.verify(ctx, a, env)
	if err != nil {
		return env, c, err
	}
	a.unverified.Release()
	a.record.Principal = env.From
	c.d = &Delivery{Envelope: env, Form: form, FromRelay: a.via != viaPush}
	if a.via == viaPush {
		err = in.checkPush(ctx, a, env, key)
	}
	if err == nil {
		c.h, err = in.enter(ctx, a, env)
	}
	if err != nil {
		return env, c, err
	}
	isEnded := false
	defer func() {
		if !isEnded {
			err = errors.Join(err, c.h.drop(ctx, err)) // also after a panic
		}
	}()
	isEnded, err = in.claim(ctx, a, c, key)
	return env, c, err
}

// claim runs the steps from the ledger to the claim. isEnded is set unless the caller has to drop the hold.
func (in *Inbox) claim(ctx context.Context, a *arrival, c claimed, key *PublicKey) (isEnded bool, err error) {
	if err := c.h.load(ctx, in.opts.Limits.MaxAttempts, a.isForced()); err != nil {
		a.attempts = c.h.prior.Attempts
		return false, err
	}
	if a.via != viaPush {
		if err := in.checkPulled(ctx, a, c, key); err != nil {
			return false, err
		}
	}
	if err := c.h.exhausted(); err != nil {
		return false, err
	}
	if err := in.unseal(c.d); err != nil {
		if a.via == viaPush && !isCode(err, ErrStaleKey) {
			return true, in.record(ctx, c.h, err)
		}
		return false, err
	}
	if err := in.checkEarly(ctx, a, c.d); err != nil {
		return false, err
	}
	if err := c.h.claim(ctx, in.opts.Limits.MaxAttempts, a.isForced()); err != nil {
		return false, err
	}
	c.d.Redelivered = c.h.mine.Redelivered
	return true, nil
}

// record records the outcome of an envelope that is refused permanently.
func (in *Inbox) record(ctx context.Context, h *hold, outcome error) error {
	if err := h.claim(ctx, in.opts.Limits.MaxAttempts, true); err != nil {
		return errors.Join(err, h.drop(ctx, err))
	}
	return recorded(outcome, h.end(ctx, outcome))
}

// recorded returns err, or a retryable error if the store could not record the outcome.
func recorded(err, stored error) error {
	if stored != nil {
		return retryable(ErrRelay.because("", errors.Join(stored, err)))
	}
	return err
}

// decode decodes an envelope. The type of the body of a pulled one is checked later (AIR-D73).
func (in *Inbox) decode(data []byte, anyBody bool) (*Envelope, error) {
	o := &in.opts
	opts := &DecodeOptions{Profile: o.Profile, BodyTypes: o.BodyTypes, MaxMessage: o.Limits.MaxMessage}
	if anyBody {
		opts.BodyTypes = anyBodyTypes
	}
	return DecodeEnvelope(data, opts)
}

var anyBodyTypes = []string{AnyBodyType}

// enter claims the message in this process. A push waits for a copy that is being handled and has its
// outcome (AIR-D80).
func (in *Inbox) enter(ctx context.Context, a *arrival, env *Envelope) (*hold, error) {
	until := env.Time.Add(max(core.MaxAge, in.opts.Timing.MaxPullAge))
	switch a.via {
	case viaPull:
		until = later(until, time.Now().Add(doneTTL)) // until keep
	case viaQueue, viaLetter:
		until = later(until, time.Now().Add(core.MaxAge))
	}
	for {
		h, other, err := in.ledger.enter(env, until)
		switch {
		case err != nil:
			return nil, err
		case other == nil:
			if a.round != nil {
				a.round.add(h)
			}
			return h, nil
		case a.via == viaPull || a.via == viaLetter:
			return nil, ErrReplay.because(errReplayed.Message, core.ErrElsewhere)
		case a.via == viaQueue:
			select {
			case <-other.done:
				continue
			case <-ctx.Done():
				return nil, context.Cause(ctx)
			}
		}
		if err := in.await(ctx, a, env, other.done); err != nil {
			return nil, err
		}
		select {
		case <-other.done:
			if other.outcome != nil {
				return nil, other.outcome
			}
			return nil, errCopy
		default:
			return nil, errQueued
		}
	}
}

var (
	errCopy   = errors.New("the handler took another copy")
	errQueued = errors.New("queued")
)

// checkPush checks the key policy and the clock for a pushed envelope.
func (in *Inbox) checkPush(ctx context.Context, a *arrival, env *Envelope, key *PublicKey) error {
	if err := in.checkKey(ctx, env.From, key); err != nil {
		return err
	}
	age := a.arrived.Sub(env.Time)
	if (core.Received{}).CheckClock(true, age, time.Until(env.Time), 0) != "" {
		return stale(age, core.MaxAge)
	}
	return nil
}

// checkPulled checks the key policy, the type of the body and the clock for a pulled envelope.
func (in *Inbox) checkPulled(ctx context.Context, a *arrival, c claimed, key *PublicKey) error {
	env, o := c.d.Envelope, &in.opts
	if err := in.checkKey(ctx, env.From, key); err != nil {
		return err
	}
	if o.Profile != ProfileDeployed && !knownBody(env.Type, o.BodyTypes) {
		return holdable(unsupported(env.Type))
	}
	if a.via != viaPull {
		return nil // accepted by the clock of the push or by the owner
	}
	age := a.arrived.Sub(env.Time)
	if class := c.h.prior.CheckClock(false, age, time.Until(env.Time), o.Timing.MaxPullAge); class != "" {
		return &classError{stale(age, o.Timing.MaxPullAge), Class(class)}
	}
	return nil
}

func unsupported(bodyType string) *Error {
	return ErrUnsupportedBody.err(fmt.Sprintf("type %.64q is not in BodyTypes", bodyType))
}

func stale(age, allowed time.Duration) *Error {
	if age < 0 {
		return ErrStaleTimestamp.err(fmt.Sprintf("%d s ahead, %d s allowed", -age/time.Second, core.MaxSkew/time.Second))
	}
	return ErrStaleTimestamp.err(fmt.Sprintf("%d s old, %d s allowed", age/time.Second, allowed/time.Second))
}

// Limits of the wait for a sender's document and for the earlier message of a thread (AIR-D77, AIR-D81).
const (
	maxUnknownWait = 15 * time.Minute
	maxEarlyWait   = 10 * time.Minute
)

// verify resolves the sender and verifies the signature. Until it has returned, From has no other
// use (AIR-129).
func (in *Inbox) verify(ctx context.Context, a *arrival, env *Envelope) (Form, *PublicKey, error) {
	found, err := in.resolver.resolve(ctx, env.From, lookup{isReceived: true})
	if err != nil {
		return "", nil, in.unknown(ctx, a, err)
	}
	form, key, err := in.verifyWith(env, found)
	if isCode(err, ErrBadSignature) && time.Since(found.fetched) >= refetchAge {
		// The sender may have changed its key (AIR-D41).
		if found, err = in.resolver.resolve(ctx, env.From, lookup{isReceived: true, notBefore: found.fetched}); err != nil {
			return "", nil, in.unknown(ctx, a, err)
		}
		form, key, err = in.verifyWith(env, found)
	}
	switch {
	case isCode(err, ErrBadSignature) && a.via != viaPush && found.requested.Before(a.pulled):
		err = retryable(err)
	case isCode(err, ErrNotFound):
		err = in.unknown(ctx, a, err)
	}
	return form, key, err
}

// unknown returns the error for a sender without a usable document. Pulled mail waits for it, and a
// registry that does not know this agent either is the wrong one (AIR-D81).
func (in *Inbox) unknown(ctx context.Context, a *arrival, err error) error {
	var e *Error
	if a.via == viaPush || !errors.As(err, &e) || e.Code != ErrNotFound {
		return err
	}
	if e.Remote {
		if _, own := in.resolver.resolve(ctx, in.did, lookup{isReceived: true}); own != nil {
			return ErrBadGateway.because("the registry does not know this agent either", own)
		}
	}
	if time.Since(a.pulled) < maxUnknownWait {
		return retryable(err)
	}
	return err
}

func (in *Inbox) verifyWith(env *Envelope, found cached) (Form, *PublicKey, error) {
	key, err := found.key(env.From)
	if err != nil {
		if isCode(err, ErrBadKey) { // counts as an absent entry (AIR-D31)
			err = ErrNotFound.because("the sender's key entry is unusable", err)
		}
		return "", nil, err
	}
	form, err := env.Verify(key, in.opts.SignatureForms)
	return form, key, err
}

// checkKey asks the key policy (AIR-D82).
func (in *Inbox) checkKey(ctx context.Context, from string, key *PublicKey) error {
	policy := in.opts.Auth.KeyPolicy
	if policy == nil {
		return nil
	}
	err := guard.Call("key policy", func() error { return policy.AuthorizeKey(ctx, from, key) })
	switch {
	case err == nil:
		return nil
	case errors.Is(err, ErrKeyRefused):
		in.log.Log(ctx, in.refusals.Level("key"), "air: key refused", "agent", from, "err", err)
		return holdable(ErrUntrustedKey.because("the sender's key is not trusted here", err))
	}
	in.logPanic(ctx, err)
	return ErrRelay.because("", err)
}

// unseal fills in the body, decrypted if it is sealed.
func (in *Inbox) unseal(d *Delivery) error {
	env := d.Envelope
	if env.Type != bodyTypeEncrypted {
		d.BodyJSON = env.BodyJSON()
		d.Body = env.bodyOf(d.BodyJSON)
		return nil
	}
	plain, retired, err := in.id.Load().open(env.binding(), env.BodyJSON())
	if err != nil {
		return holdable(err)
	}
	if retired && !d.FromRelay {
		return &Error{Code: ErrStaleKey, Message: "sealed to a retired key", AIRID: in.id.Load().airID}
	}
	d.Sealed = true
	d.Body, d.BodyJSON, err = in.parseSealed(env, plain)
	return err
}

// parseSealed validates a decrypted body (AIR-D39).
func (in *Inbox) parseSealed(env *Envelope, plain []byte) (Body, []byte, error) {
	c := getScratch()
	defer putScratch(c)
	out, ok := c.Append(nil, plain)
	if !ok || c.HasDuplicate || !c.IsObject {
		return nil, nil, holdable(errSealed())
	}
	f := fields{string(out), c.Top}
	bodyType, hasType := f.str("type")
	switch {
	case hasType && isNegotiation(bodyType):
		body, err := c.parseBody(out, in.opts.Profile, true)
		if err != nil {
			return nil, nil, err
		}
		switch bodyType {
		case bodyTypeCounter, bodyTypeAccept, bodyTypeDecline:
			if env.InReplyTo == "" && in.opts.Profile != ProfileDeployed {
				return nil, nil, ErrInvalidEnvelope.err("in_reply_to is missing")
			}
		}
		return body, out, nil
	case bodyType == bodyTypeEncrypted:
		return nil, nil, unsupported(bodyType)
	case slices.Contains(in.opts.BodyTypes, AnyBodyType),
		hasType && (in.opts.Profile == ProfileDeployed || slices.Contains(in.opts.BodyTypes, bodyType)):
		return &Raw{Type: bodyType, JSON: out}, out, nil
	}
	return nil, nil, holdable(unsupported(bodyType))
}

// checkEarly lets a pulled move wait that names a message which the thread has not seen, and a Withdraw
// until the message that it names is handled (AIR-D77).
func (in *Inbox) checkEarly(ctx context.Context, a *arrival, d *Delivery) error {
	if a.via != viaPull && a.via != viaLetter || !isMove(d.Body) {
		return nil
	}
	env := d.Envelope
	if w, ok := d.Body.(*Withdraw); ok && w.WithdrawnID != env.ID {
		if err := in.checkWithdrawn(ctx, a, env.From, w.WithdrawnID); err != nil {
			return err
		}
	}
	if a.via == viaLetter || time.Since(a.pulled) >= maxEarlyWait && !in.letters.isFull(env.From, in.opts.Limits.MaxMessage) {
		return nil
	}
	th, err := in.threads.Get(ctx, env.ThreadID, env.From)
	if err != nil {
		return ErrRelay.because("", err)
	}
	m := messageOf(in.isOwn(env), env.ID, env.InReplyTo, d.Body)
	if !th.state.IsUnseen(m) {
		return nil
	}
	if _, err := th.state.Apply(m); err != nil {
		return retryable(refused(err))
	}
	return nil
}

// checkWithdrawn lets a Withdraw wait for the message with an id: as a dead letter for a dead letter.
func (in *Inbox) checkWithdrawn(ctx context.Context, a *arrival, from, id string) error {
	isOpen, err := in.ledger.isOpen(ctx, hashKey('i', from, id, ""), a.pulled)
	if err != nil {
		return ErrRelay.because("", err)
	}
	waiting, err := in.letters.find(ctx, from, func(l letterInfo) bool { return l.envelopeID == id })
	switch {
	case err != nil:
		return ErrRelay.because("", err)
	case len(waiting) > 0:
		a.after = id
		return holdable(ErrConflict.err("the message to withdraw is a dead letter"))
	case isOpen:
		return retryable(ErrConflict.err("the message to withdraw is not handled yet"))
	}
	return nil
}

// isOwn reports whether the agent sent the envelope to itself (AIR-D72).
func (in *Inbox) isOwn(env *Envelope) bool { return env.From == in.did }

// handle advances the thread and calls the handler. If the handler fails, the change of the thread is
// undone and the message is handled again later.
func (in *Inbox) handle(ctx context.Context, a *arrival, c claimed) (err error) {
	d, h, env := c.d, c.h, c.d.Envelope
	defer func() { _ = h.drop(ctx, core.ErrElsewhere) }() // if a store panics
	var before core.Thread
	if isMove(d.Body) {
		if err := in.expired(d); err != nil {
			return recorded(err, h.end(ctx, err))
		}
		var after core.Thread
		before, after, err = in.threads.apply(ctx, env, in.isOwn(env), d.Body)
		var refusal *Error
		switch {
		case errors.As(err, &refusal):
			return recorded(err, h.end(ctx, err))
		case err != nil:
			err = ErrRelay.because("", err)
			return recorded(err, h.drop(ctx, err))
		}
		th := threadOf(after)
		d.Thread = &th
	}
	if err = in.call(ctx, a, d); err == nil {
		return recorded(nil, h.end(ctx, nil))
	}
	var r *rejection
	if errors.As(err, &r) {
		if r.err.Code == ErrStaleKey {
			r.err.AIRID = in.id.Load().airID
		}
		return recorded(&classError{r.err, ClassRefused}, h.end(ctx, r.err))
	}
	in.log.WarnContext(ctx, "air: handler failed", "id", env.ID, "err", err)
	if d.Thread != nil && h.isOwned(ctx) {
		err = errors.Join(err, in.threads.revert(ctx, env, d.Body, before))
	}
	failed := ErrRelay.because("", err)
	a.failures = 1
	after, class, lost := h.fail(ctx, failed, in.opts.Limits.MaxAttempts, a.via == viaPush)
	a.attempts = after.Attempts
	if class == core.ClassHeld {
		return holdable(ErrHandlerFailed.because("", errors.Join(err, lost)))
	}
	return recorded(retryable(failed), lost)
}

func (in *Inbox) expired(d *Delivery) error {
	d.Expired = isExpired(d.Body, time.Now())
	if d.Expired && in.opts.RejectExpired {
		return ErrInvalidEnvelope.err("expires_at has passed")
	}
	return nil
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

func (in *Inbox) call(ctx context.Context, a *arrival, d *Delivery) error {
	if a.slots != nil {
		a.slots <- struct{}{}
		defer func() { <-a.slots }()
	}
	ctx, cancel := context.WithTimeout(ctx, in.opts.Timing.HandlerTimeout)
	defer cancel()
	d.isHandled = true
	err := guard.Call("handler", func() error { return in.handler.ServeAIR(ctx, d) })
	in.logPanic(ctx, err)
	return err
}

// finish completes the result of an attempt: it keeps held mail, and reports the outcome.
func (in *Inbox) finish(ctx context.Context, a *arrival, o *ReceiveResult, d *Delivery, err error) *ReceiveResult {
	o.Data, o.FromRelay, o.Class, o.failures = a.data, a.via != viaPush, ClassDone, a.failures
	switch {
	case err == nil:
		o.Delivery = d
	case errors.Is(err, errQueued):
		o.Class = ClassLater
	case errors.Is(err, errCopy):
		o.Err, o.isCopy = asError(replayed()), true
	default:
		o.Err, o.Class = classify(err, a.via)
	}
	if o.Class == ClassHeld {
		in.hold(ctx, a, o)
	}
	o.Final = o.Class == ClassDone || o.Class == ClassRefused || o.Class == ClassHeld && in.instance != nil
	in.remember(a, o.Envelope, o.Final)
	if o.Envelope != nil {
		a.record.Object = o.Envelope.ID
	}
	in.audit(ctx, a.record, o.Err, d != nil && d.isHandled)
	if o.Err != nil {
		in.logRefusal(ctx, a.record, o)
		in.report(ctx, o)
	}
	return o
}

// hold makes an envelope a dead letter. If that fails, it is received later.
func (in *Inbox) hold(ctx context.Context, a *arrival, o *ReceiveResult) {
	env := o.Envelope
	err := in.letters.put(ctx, DeadLetter{ID: letterID(env), Envelope: a.data, From: env.From, EnvelopeID: env.ID,
		Code: o.Err.Code, Detail: o.Err.Message, Arrived: a.arrived, Attempts: a.attempts, After: a.after})
	if err != nil {
		o.Class = ClassLater
		in.log.Log(ctx, in.refusals.Level("letter"), "air: dead letter not stored", "id", env.ID, "err", err)
	}
}

// report informs OnOutcome.
func (in *Inbox) report(ctx context.Context, o *ReceiveResult) {
	if in.opts.OnOutcome == nil {
		return
	}
	in.logPanic(ctx, guard.Call("OnOutcome", func() error {
		in.opts.OnOutcome(ctx, o)
		return nil
	}))
}

// queueKind is the kind of the streams of the outbox that hold accepted pushes, one each.
const queueKind = "mail"

// queue makes the inbox the owner of a pushed envelope.
func (in *Inbox) queue(ctx context.Context, a *arrival, env *Envelope) error {
	if err := in.instance.wait(ctx); err != nil {
		return err
	}
	ctx, cancel := storeContext(ctx)
	defer cancel()
	id := letterID(env)
	return in.instance.box.Put(ctx, queueKind+"/"+id, id, a.data)
}

// receiveQueued is an attempt for a queued envelope (AIR-D80).
func (in *Inbox) receiveQueued(ctx context.Context, item outbox.Item) outbox.Verdict {
	r := &AuditRecord{Time: time.Now(), Operation: "queue", Bytes: int64(len(item.Data))}
	o := in.receiveAs(ctx, &arrival{data: item.Data, via: viaQueue, arrived: item.First, pulled: time.Now(), record: r})
	if o.Class != ClassLater {
		return outbox.Done()
	}
	delay := core.HandlerDelay
	var early *core.EarlyError
	switch {
	case errors.As(o.Err, &early):
		delay = max(early.Wait, time.Millisecond)
	case o.failures > 0:
		delay = time.Millisecond // the ledger has the time of the next attempt
	}
	return outbox.Later(delay, o.Err)
}
