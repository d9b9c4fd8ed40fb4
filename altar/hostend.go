// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package altar

import (
	"cmp"
	"slices"
	"time"
)

// An ending is how a call ends: with a result, or with the last chunk of a
// stream.
type ending struct {
	result *ToolResult
	chunk  *StreamChunk
	err    *Error         // of either
	record bool           // the outcome is kept for repeats (ALT-D22)
	before []*StreamChunk // that are retained besides, for the store
}

// toolResult is the answer of a Runtime (ALT-077).
func (h *Host) toolResult(hc *hostConn, m *ToolResult, now time.Time) {
	c := h.answerFor(hc, m, m.InvocationID, true)
	if c == nil {
		return
	}
	c.answered = true
	if _, waiting := c.asm.Waiting(); c.asm.Expected() > 0 || waiting {
		err := m.Error
		if err == nil {
			err = NewError(ErrInternal, ReasonResultAfterChunk, "the Runtime sent a result after a part of a stream")
		}
		h.fail(c, err, "", now)
		return
	}
	h.end(c, ending{result: m, err: m.Error, record: true}, now)
}

// answerFor returns the running call that a Runtime may answer, or nil.
func (h *Host) answerFor(hc *hostConn, m Message, id string, final bool) *hostCall {
	c := h.calls[id]
	if c == nil || c.rt != hc || c.state < callRunning {
		h.dropped(hc, m, "not a call of this Runtime")
		return nil
	}
	if c.state > callRunning {
		if final { // the id is free for other sessions now
			delete(h.calls, id)
			delete(hc.unanswered, id)
		}
		h.dropped(hc, m, "the call has ended")
		return nil
	}
	return c
}

// fail ends a call with an error that the Host makes, and records it.
func (h *Host) fail(c *hostCall, err *Error, cancel string, now time.Time) {
	h.finish(c, err, cancel, true, now)
}

// finish ends a call with an error: with a ToolResult before the first forwarded chunk, and with
// the final chunk after it (ALT-D28). A Runtime with the capability gets the reason (ALT-D32).
func (h *Host) finish(c *hostCall, err *Error, cancel string, record bool, now time.Time) {
	e := ending{err: err, record: record}
	if c.asm.Expected() > 0 {
		e.chunk = &StreamChunk{InvocationID: c.id, ChunkID: c.asm.Expected(), Error: err, IsFinal: true}
	} else {
		e.result = &ToolResult{InvocationID: c.id, Error: err}
	}
	if c.state == callRunning && c.rt.remote != nil {
		c.rt.remote.cancel(&ForwardCancelledError{cmp.Or(cancel, "cancelled")})
	} else if cancel != "" && c.state == callRunning && c.rt.can(CapCancellation) {
		h.send(c.rt, &CancelCall{InvocationID: c.id, SessionID: c.s.id, Reason: cancel, Header: Header{CorrelationID: c.corr}})
	}
	h.end(c, e, now)
}

// end ends a call. The Runtime is released at once; waiting callers get the outcome after it was
// recorded.
func (h *Host) end(c *hostCall, e ending, now time.Time) {
	h.finishRuntime(c, e.err, now)
	if c.claim == nil || c.s.isEnded || h.closed {
		h.announceEnd(c, e, now)
		return
	}
	if e.chunk != nil {
		e.before = slices.Clone(c.chunks)
	} else {
		e.result.Header = Header{}
	}
	cl := c.claim
	c.state, cl.end = callEnding, e
	if before := h.lastEnd; before != nil && !before.left {
		if before.announced == nil {
			before.announced = make(chan struct{})
		}
		cl.after = before.announced
	}
	h.lastEnd = cl
	if !cl.pending { // otherwise the pending write continues with recordEnd
		h.background(func() { h.recordEnd(c, cl) })
	}
}

// announceEnd sends the outcome of a call to its waiting callers.
func (h *Host) announceEnd(c *hostCall, e ending, now time.Time) {
	if e.chunk != nil {
		h.retain(c, e.chunk)
		for _, a := range c.at {
			h.forward(a, e.chunk)
		}
	} else {
		c.result = e.result
		for i, a := range c.at {
			if a.hc.peer != nil && !e.record { // it did not run: the other Host may try elsewhere
				h.send(a.hc, &ErrorMessage{Err: e.err})
				continue
			}
			out := e.result
			if i > 0 || c.claim != nil { // with a claim it may be being written
				copied := *out
				out = &copied
			}
			out.Header = Header{CorrelationID: a.corr}
			h.send(a.hc, out)
		}
	}
	h.removeCall(c, e.record, now)
}

// finishRuntime ends a call for its Runtime.
func (h *Host) finishRuntime(c *hostCall, err *Error, now time.Time) {
	h.timers.stop(&c.deadline)
	h.timers.stop(&c.gap)
	h.timers.stop(&c.grace)
	open := false // the Runtime still owes a final message
	if c.state == callRunning {
		c.rt.running--
		if h.opts.Limits.BreakerThreshold > 0 {
			c.rt.breaker.end(c, err, h.opts.Limits.BreakerThreshold, h.opts.Timing.BreakerCooldown, now)
		}
		if err == nil {
			h.stats.Succeeded++
		} else {
			h.stats.Failed++
		}
		if open = !c.answered && c.rt.alive; open {
			c.rt.unanswered[c.id] = c
		}
		if h.opts.Audit != nil {
			e := c.event("call.done", err)
			e.Duration, e.Chunks = now.Sub(c.start), c.asm.Expected()
			h.audit(now, e, nil)
		}
	}
	if c.open = open; !open && h.calls[c.id] == c {
		delete(h.calls, c.id)
	}
}

// removeCall removes a call from the tables of calls in flight after its outcome was sent.
func (h *Host) removeCall(c *hostCall, record bool, now time.Time) {
	if cl := c.claim; cl != nil {
		cl.left = true
		if cl.announced != nil {
			close(cl.announced)
		}
	}
	c.state, c.endedAt, c.claim = callDone, now, nil
	c.s.active.remove(c)
	c.s.flights--
	h.stats.InFlight--
	h.checkIdle()
	for _, a := range c.at {
		delete(a.hc.waiting, c.id)
	}
	c.at, c.firstAt[0], c.normal, c.metadata, c.asm = nil, nil, nil, nil, assembler{}
	c.first.hc, c.first.parts = nil, nil
	if !record || c.s.isEnded {
		if c.s.calls[c.id] == c {
			delete(c.s.calls, c.id)
		}
		c.chunks, c.result, c.params = nil, nil, nil
		if !c.open {
			return
		}
	}
	h.recordHere(c)
	if h.endedAt.index < 0 {
		h.timers.set(&h.endedAt, now.Add(h.opts.Persistence.ResultTTL))
	}
}

// cancelCall ends a call for its client (ALT-D32). Invalid cancellations are ignored.
func (h *Host) cancelCall(hc *hostConn, m *CancelCall, now time.Time) {
	if hc.identity == nil && !h.opts.Auth.AllowAnonymous {
		return
	}
	if s := h.own(hc, m.SessionID); s != nil {
		if c := s.calls[m.InvocationID]; c != nil && c.state < callEnding {
			h.fail(c, NewError(ErrExecutionFailed, ReasonCancelled, "the call was cancelled"), "cancelled", now)
			return
		}
	}
	h.dropped(hc, m, "no such call")
}

// clientGone detaches a connection from all its calls (ALT-D33).
func (h *Host) clientGone(hc *hostConn, now time.Time) {
	for _, a := range sortedWaiting(hc.waiting) {
		h.detach(a, now)
	}
	hc.waiting = nil
}

func (h *Host) detach(a *attachment, now time.Time) {
	delete(a.hc.waiting, a.c.id)
	for i, other := range a.c.at {
		if other == a {
			a.c.at = append(a.c.at[:i:i], a.c.at[i+1:]...)
			break
		}
	}
	if len(a.c.at) == 0 && a.c.state < callEnding {
		h.timers.set(&a.c.grace, now.Add(h.opts.Timing.ClientGracePeriod))
	}
}
