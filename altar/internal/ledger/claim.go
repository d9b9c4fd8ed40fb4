// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/fivewire/fivewire/altar/internal/core"
	"github.com/fivewire/fivewire/internal/lazy"
	"github.com/fivewire/fivewire/internal/once"
	"github.com/fivewire/fivewire/internal/state"
)

const (
	// decisionWait bounds the wait for the claim of an earlier call, which another Host may run.
	decisionWait = 20 * time.Millisecond
	// claimWait is how long a call that has ended waits for its claim.
	claimWait = 250 * time.Millisecond
)

// A Claim is the part of a call in a ledger, from its begin to the record of its outcome.
type Claim struct {
	Session, ID string
	Digest      [32]byte // of the call; a repeat has the same one
	MayRepeat   bool     // the call may run again after the failure of its Host
	IsQuery     bool     // no Runtime can take the call yet: nothing is written
	IsRefused   bool     // an outcome is looked for, but the call does not run,
	IsTaken     bool     // since its id is in use: it may run when the Host that uses it has failed

	Call Call

	// Claims that are begun in one step are decided in this order, and those that end in one step are recorded so.
	Behind, After *Claim

	decided, recorded, settled chan struct{}
	outcome                    Outcome // before settled is closed
	isGranted                  atomic.Bool
	ctx                        lazy.Context // of the wait for another Host that runs the call
}

// A Call is a claimed call at its Host. Its methods are called in a goroutine.
type Call interface {
	Decided(v Verdict)  // by Claim
	Recorded(v Verdict) // by Record
	Lost() []byte       // returns the outcome of a call that was lost with its Host
	Cut() Outcome       // returns that of a call that has not ended when this Host does
}

// An Outcome is what is recorded of a call.
type Outcome struct {
	Encode func() []byte // called without a lock
	Forget bool          // nothing: the call did not run
	Retry  bool          // nothing: a repeat is another attempt
}

// A Verdict is the answer of a ledger to a claim or a record.
type Verdict struct {
	Result core.ClaimResult
	Data   []byte // of core.ClaimReplayed: an encoded outcome
	Err    error  // of core.ClaimFailed, or with ClaimReplayed without Data: one of package once
	Failed string // of core.ClaimContinued: the Owner that ran the call, if it has failed
}

// key returns the key of a call.
func (c *Claim) key() once.Key {
	return once.Key{Principal: c.Session, Scope: "call", ID: c.ID, Digest: c.Digest}
}

// CallKey returns the key of a call in the store.
func CallKey(session, id string) string {
	return prefix + state.Join("once", session, "call", id)
}

// Claim implements [Ledger].
func (l *Shared) Claim(c *Claim) (Verdict, bool) {
	c.decided, c.recorded, c.settled = make(chan struct{}), make(chan struct{}), make(chan struct{})
	c.ctx.Begin(l.ctx, 0, nil)
	l.opts.Go(func(context.Context) {
		defer c.ctx.End(&lazy.Canceled)
		defer close(c.recorded)
		l.run(&c.ctx, c)
	})
	return Verdict{}, false
}

// Record implements [Ledger].
func (l *Shared) Record(c *Claim, o Outcome) (Verdict, bool) {
	c.outcome = o
	close(c.settled)
	if !c.isGranted.Load() {
		time.AfterFunc(claimWait, func() {
			if !c.isGranted.Load() {
				c.ctx.End(&lazy.Canceled)
			}
		})
	}
	return Verdict{}, false
}

// awaitTurn waits for the claim that was begun before in the same step.
func (c *Claim) awaitTurn(ctx context.Context) {
	if c.Behind == nil {
		return
	}
	late := time.NewTimer(decisionWait)
	defer late.Stop()
	select {
	case <-c.Behind.decided:
	case <-late.C:
	case <-ctx.Done():
	}
	c.Behind = nil
}

// run is the rest of Claim and Record. It returns when the call has ended and its outcome is recorded.
func (l *Shared) run(ctx context.Context, c *Claim) {
	defer func() {
		if !c.isGranted.Load() {
			close(c.decided)
		}
	}()
	table, err := l.table()
	if err == nil && (c.IsQuery || c.IsRefused) {
		var state once.State
		if state, err = l.find(table, c); err == nil && state == once.StateAbsent {
			c.awaitTurn(l.ctx)
			c.Call.Decided(Verdict{Result: core.ClaimAbsent})
			return
		}
	}
	if err != nil {
		c.awaitTurn(l.ctx)
		c.Call.Decided(l.verdict(nil, err))
		return
	}
	policy := once.AtMostOnce
	if c.MayRepeat {
		policy = once.Repeat
	}
	isRefused := false
	data, replayed, err := table.Do(ctx, c.key(), policy, func(_ context.Context, k once.Claim) (once.Result, error) {
		switch {
		case k.Attempt > 2:
			return once.Result{Data: c.Call.Lost()}, nil
		case c.IsRefused && (k.Attempt == 1 || !c.IsTaken):
			isRefused = true
			return once.Result{Forget: true}, nil
		}
		l.grant(c, k)
		return l.result(c, k), nil
	})
	switch {
	case c.isGranted.Load():
		l.finish(c, data, replayed, err)
	case isRefused:
		c.awaitTurn(l.ctx)
		c.Call.Decided(Verdict{Result: core.ClaimAbsent})
	default:
		v := l.verdict(data, err)
		c.awaitTurn(l.ctx)
		c.Call.Decided(v)
	}
}

// grant tells the Host that it may run a call.
func (l *Shared) grant(c *Claim, k once.Claim) {
	c.awaitTurn(l.ctx)
	c.isGranted.Store(true)
	v := Verdict{Result: core.ClaimGranted}
	if k.Attempt > 1 {
		v.Result, v.Failed = core.ClaimContinued, string(k.Failed)
	}
	c.Call.Decided(v)
	close(c.decided)
}

// result waits for the end of a call, or of the Host.
func (l *Shared) result(c *Claim, k once.Claim) once.Result {
	var o Outcome
	select {
	case <-c.settled:
		o = c.outcome
	case <-l.ctx.Done():
		select {
		case <-c.settled:
			o = c.outcome
		default:
			o = c.Call.Cut()
		}
	}
	if o.Encode != nil {
		return once.Result{Data: o.Encode()}
	}
	mayHaveRun := o.Retry || k.Redelivered && !o.Forget // a repeat is another attempt (ALT-D24)
	return once.Result{Forget: !mayHaveRun, Retry: mayHaveRun}
}

// finish reports the record of a call that this Host has run.
func (l *Shared) finish(c *Claim, data []byte, replayed bool, err error) {
	v := Verdict{Result: core.ClaimGranted}
	switch {
	case replayed: // the lease had expired, and another Host answered this call
		if v = l.verdict(data, err); v.Result != core.ClaimReplayed {
			v = Verdict{Result: core.ClaimGranted}
		}
	case err != nil && l.ctx.Err() == nil:
		l.logError("call outcome not recorded", err)
		if c.MayRepeat { // another attempt may give another result
			v = Verdict{Result: core.ClaimFailed, Err: err}
		}
	}
	if c.After != nil {
		select {
		case <-c.After.recorded:
		case <-l.ctx.Done():
		}
		c.After = nil
	}
	c.Call.Recorded(v)
}

// verdict returns the outcome of an earlier run, or the error of the call.
func (l *Shared) verdict(data []byte, err error) Verdict {
	switch {
	case err == nil:
		return Verdict{Result: core.ClaimReplayed, Data: data}
	case errors.Is(err, once.ErrNotRetained), errors.Is(err, once.ErrLost):
		return Verdict{Result: core.ClaimReplayed, Err: err}
	case !errors.Is(err, once.ErrReused) && !errors.Is(err, once.ErrBusy) && l.ctx.Err() == nil:
		l.logError("call not claimed", err)
	}
	return Verdict{Result: core.ClaimFailed, Err: err}
}

// table returns the claims of calls.
func (l *Shared) table() (*once.Table, error) {
	select {
	case <-l.started:
		return l.calls, l.Ready()
	default:
	}
	ctx, cancel := l.bounded()
	defer cancel()
	if err := l.begin(ctx); err != nil {
		return nil, err
	}
	return l.calls, nil
}

// find returns the state of a call without a claim. It fails with once.ErrReused if the id was used for another call.
func (l *Shared) find(table *once.Table, c *Claim) (once.State, error) {
	ctx, cancel := l.bounded()
	defer cancel()
	state, _, err := table.Peek(ctx, c.key())
	return state, err
}
