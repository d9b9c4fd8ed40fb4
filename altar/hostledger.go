// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package altar

import (
	"context"
	"crypto/sha256"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/fivewire/fivewire/altar/internal/core"
	"github.com/fivewire/fivewire/altar/internal/ledger"
	"github.com/fivewire/fivewire/internal/once"
)

// A claim is the part of a call in the store, from its begin to the record of its outcome. It is
// guarded by the lock of the Host.
type claim struct {
	refusal   *Error // what the call gets unless it is a repeat
	isQuery   bool   // no Runtime can take the call yet: nothing is written
	isGranted bool   // this Host has the claim
	isEnding  bool   // end is set
	end       ending
	done      chan struct{}      // closed when the call has ended
	cancel    context.CancelFunc // ends the wait for another Host that runs the call
	late      *time.Timer        // calls cancel

	// Calls that end under one lock are announced in the order of their ends: announced is closed
	// after the announcement, and after is the announced channel of the previous call. Both are nil
	// for a call that ends alone.
	after, announced chan struct{}
	left             bool // announced or not, it has ended

	// Calls that are claimed under one lock continue in this order: behind is closed before this one,
	// and decided after it.
	behind, decided chan struct{}
}

const (
	// decisionWait bounds the wait for the claim of an earlier call, which another Host may run.
	decisionWait = 20 * time.Millisecond
	// claimWait is how long a call that has ended waits for its claim.
	claimWait = 250 * time.Millisecond
)

func errStore() *Error {
	return Errorf(ErrInternal, "", "the Host cannot record the call")
}

// background runs f in a goroutine that Close waits for. h.mu must be held.
func (h *Host) background(f func()) {
	if h.closed {
		return // everything ends
	}
	_ = h.life.Go("store", func(context.Context) { f() })
}

// claims reports whether a call needs a record in the store.
func (h *Host) claims(c *hostCall) bool {
	return h.ledger != nil && c.s.Kind == core.OwnSession
}

// claimCall checks in the store whether a call is a repeat, and records the intent to run it before
// its dispatch. h.mu must be held.
func (h *Host) claimCall(c *hostCall, refusal *Error, now time.Time) {
	c.Claim()
	cl := &claim{refusal: refusal, done: make(chan struct{}), decided: make(chan struct{})}
	_, unplaced := h.place(c, now)
	cl.isQuery = unplaced != nil
	if h.lastClaim != nil {
		cl.behind = h.lastClaim.decided
	}
	c.claim, h.lastClaim = cl, cl
	ctx, cancel := context.WithCancel(h.ctx)
	cl.cancel = cancel
	h.background(func() {
		defer cancel()
		h.runClaim(ctx, c, cl)
	})
}

// finish makes the claim of a call that has ended continue. h.mu must be held.
func (cl *claim) finish() {
	select {
	case <-cl.done:
		return
	default:
	}
	close(cl.done)
	if !cl.isGranted {
		cl.late = time.AfterFunc(claimWait, cl.cancel)
	}
}

// awaitTurn waits for the calls that were claimed before under the same lock.
func (cl *claim) awaitTurn(ctx context.Context) {
	if cl.behind == nil {
		return
	}
	late := time.NewTimer(decisionWait)
	defer late.Stop()
	select {
	case <-cl.behind:
	case <-late.C:
	case <-ctx.Done():
	}
}

// runClaim is the rest of claimCall, without the lock. It returns when the call has ended and its
// outcome is recorded.
func (h *Host) runClaim(ctx context.Context, c *hostCall, cl *claim) {
	decided := sync.OnceFunc(func() { close(cl.decided) })
	defer decided()
	call := &ledger.Call{Session: c.s.ID, ID: c.id, Digest: sha256.Sum256(append([]byte(c.toolName+"\x00"), c.print.Sum[:]...))}
	if cl.isQuery || cl.refusal != nil {
		state, err := h.ledger.Find(call)
		if err != nil || state == once.StateAbsent {
			h.decline(c, cl, err)
			return
		}
	}
	policy := once.AtMostOnce
	if mayRepeat(c) {
		policy = once.Repeat
	}
	isRefused := false
	data, replayed, err := h.ledger.Do(ctx, call, policy, func(_ context.Context, k once.Claim) (once.Result, error) {
		switch {
		case k.Attempt > 2 || k.Attempt > 1 && cl.refusal != nil:
			return once.Result{Data: h.encodeOutcome(&storedOutcome{result: disconnectedResult(c.id)})}, nil
		case cl.refusal != nil:
			isRefused = true
			return once.Result{Forget: true}, nil
		}
		h.granted(c, cl, k.Attempt > 1)
		decided()
		select {
		case <-cl.done:
		case <-h.ctx.Done():
		}
		return h.claimResult(c, cl, k, policy), nil
	})
	h.mu.Lock()
	isGranted := cl.isGranted
	h.mu.Unlock()
	switch {
	case isGranted:
		h.recorded(c, cl, data, replayed, err)
	case isRefused:
		h.decline(c, cl, nil)
	default:
		out, fault := h.replayedOutcome(c, data, err)
		if cl.awaitTurn(h.ctx); fault != nil {
			h.claimed(c, cl, fault)
		} else {
			h.adopt(c, cl, out)
		}
	}
}

// decline continues a call that has no record, and gets none now.
func (h *Host) decline(c *hostCall, cl *claim, err error) {
	cl.awaitTurn(h.ctx)
	switch {
	case err != nil:
		_, fault := h.replayedOutcome(c, nil, err)
		h.claimed(c, cl, fault)
	case cl.refusal != nil:
		h.claimed(c, cl, cl.refusal)
	default:
		h.unclaimed(c, cl)
	}
}

// mayRepeat reports whether a call that may have run may run again elsewhere.
func mayRepeat(c *hostCall) bool {
	return c.contract.Idempotent && !c.contract.Streaming && c.pin == ""
}

// claimResult returns the outcome of a call that this Host has claimed. That of a call that Close has
// cut off is the same as after a crash. The end of a session is the outcome of a dispatched call: a Host that has
// not noticed the end must not run it again.
func (h *Host) claimResult(c *hostCall, cl *claim, k once.Claim, p once.Policy) once.Result {
	h.mu.Lock()
	isEnding, isOver, end, isDispatched := cl.isEnding, c.s.IsEnded(), cl.end, !c.Start().IsZero()
	h.mu.Unlock()
	out := &storedOutcome{result: end.result}
	switch {
	case isEnding && !end.record:
		return once.Result{Forget: true}
	case !isEnding && (p == once.Repeat || isOver && !isDispatched):
		mayHaveRun := k.Redelivered || isDispatched // a repeat is another attempt (ALT-D24)
		return once.Result{Forget: !mayHaveRun, Retry: mayHaveRun}
	case !isEnding && isOver:
		out.result = &ToolResult{InvocationID: c.id, Error: errUnknownSession()}
	case !isEnding:
		out.result = disconnectedResult(c.id)
	case end.chunk != nil:
		out.chunks = append(end.before, end.chunk)
	}
	return once.Result{Data: h.encodeOutcome(out)}
}

func disconnectedResult(id string) *ToolResult {
	return &ToolResult{InvocationID: id, Error: errDisconnected()}
}

// replayedOutcome returns the outcome of an earlier run, or the error of the call.
func (h *Host) replayedOutcome(c *hostCall, data []byte, err error) (*storedOutcome, *Error) {
	switch {
	case errors.Is(err, once.ErrReused):
		return nil, errReused()
	case errors.Is(err, once.ErrBusy):
		return nil, errOverloaded()
	case errors.Is(err, once.ErrNotRetained):
		return &storedOutcome{result: &ToolResult{InvocationID: c.id, Error: errNotRetained()}}, nil
	case errors.Is(err, once.ErrLost):
		return &storedOutcome{result: disconnectedResult(c.id)}, nil
	}
	var out *storedOutcome
	if err == nil {
		out, err = decodeOutcome(data)
	}
	if err != nil {
		if h.ctx.Err() == nil {
			h.opts.Logger.ErrorContext(h.ctx, "altar: call not claimed", "session", c.s.ID, "invocation_id", c.id, "err", err)
		}
		return nil, errStore()
	}
	return out, nil
}

// claimed ends a call that will not run here. An end recorded in between takes precedence.
func (h *Host) claimed(c *hostCall, cl *claim, err *Error) {
	now := h.lock()
	defer h.unlock()
	switch {
	case c.claim != cl:
	case c.State() == core.Claiming:
		c.claim = nil
		h.turnDown(c, err, now)
	case c.State() == core.Ending:
		end := cl.end
		end.record = false
		h.announceEnd(c, end, now)
	}
}

// unclaimed continues a call that has no record and no Runtime yet.
func (h *Host) unclaimed(c *hostCall, cl *claim) {
	now := h.lock()
	defer h.unlock()
	switch {
	case c.claim != cl:
	case c.State() == core.Claiming:
		c.Continue(false)
		c.claim = nil
		h.judgeCall(c, now)
	case c.State() == core.Ending:
		end := cl.end
		end.record = false
		h.announceEnd(c, end, now)
	}
}

// granted continues a call that this Host has claimed.
func (h *Host) granted(c *hostCall, cl *claim, isFailover bool) {
	cl.awaitTurn(h.ctx)
	now := h.lock()
	defer h.unlock()
	cl.isGranted = true
	if cl.late != nil {
		cl.late.Stop()
	}
	if c.claim == cl && c.State() == core.Claiming {
		c.Continue(isFailover)
		h.judgeCall(c, now)
	}
}

// adopt ends a call with the outcome in the store.
func (h *Host) adopt(c *hostCall, cl *claim, out *storedOutcome) {
	now := h.lock()
	defer h.unlock()
	switch {
	case c.claim != cl: // the session has ended
		return
	case c.State() == core.Claiming:
		h.finishRuntime(c, ending{}, now)
	case c.State() != core.Ending:
		return
	}
	h.auditLocked(now, c.event("call.replayed", nil), nil)
	h.announceRecorded(c, out, false, now) // the store expires the record
}

// announceRecorded ends a call with the outcome that the store has.
func (h *Host) announceRecorded(c *hostCall, out *storedOutcome, record bool, now time.Time) {
	c.End(core.Done)
	if out.result == nil {
		h.restream(c, out.chunks, now)
	} else {
		c.result = out.result
		for _, a := range c.at {
			own := *out.result
			own.header = header{CorrelationID: a.corr}
			h.sendResult(c.s, a.hc, &own)
		}
		h.leaveAll(c)
	}
	h.removeCall(c, record, now)
}

// restream gives the connections of a call the chunks of the store.
func (h *Host) restream(c *hostCall, chunks []*StreamChunk, now time.Time) {
	var all []core.Chunk
	for _, chunk := range chunks {
		all = append(all, chunkOf(chunk))
	}
	c.Stream = core.Restored(all)
	last := chunks[len(chunks)-1]
	for _, a := range slices.Clone(c.at) {
		from := max(a.from, a.reader.Place())
		if a.collect && last.Error != nil {
			from = last.ChunkID
		}
		if !c.Stream.Attach(&a.reader, from, a.reader.Credit(), now) {
			h.send(a.hc, &ToolResult{InvocationID: a.id, Error: errNotRetained(), header: header{CorrelationID: a.corr}})
			h.detach(a, now)
			continue
		}
		h.pump(a, now)
	}
}

// recorded announces the end of a call that was claimed here. If the store does not answer, its
// outcome is written in the background; the intent in the store prevents a second run.
func (h *Host) recorded(c *hostCall, cl *claim, data []byte, replayed bool, err error) {
	var other *storedOutcome
	if replayed { // the lease had expired, and another Host answered this call
		other, _ = h.replayedOutcome(c, data, err)
	} else if err != nil && h.ctx.Err() == nil {
		h.opts.Logger.ErrorContext(h.ctx, "altar: call outcome not recorded", "session", c.s.ID, "invocation_id", c.id, "err", err)
	}
	if cl.after != nil {
		select {
		case <-cl.after:
		case <-h.ctx.Done():
		}
	}
	now := h.lock()
	defer h.unlock()
	switch {
	case c.claim != cl || c.State() != core.Ending: // the session has ended
	case other != nil:
		h.announceRecorded(c, other, true, now)
	case err != nil && mayRepeat(c): // another attempt may give another result
		fault := errStore()
		h.announceEnd(c, ending{result: &ToolResult{InvocationID: c.id, Error: fault}, err: fault}, now)
	default:
		h.announceEnd(c, cl.end, now)
	}
}
