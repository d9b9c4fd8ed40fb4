// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package altar

import (
	"cmp"
	"slices"
	"time"

	"github.com/fivewire/fivewire/altar/internal/core"
)

// An ending is how a call ends: with a result, or with the last chunk of a
// stream.
type ending struct {
	result *ToolResult
	chunk  *StreamChunk
	err    *Error         // of either
	record bool           // the outcome is kept for repeats (ALT-D22)
	drops  bool           // the chunks that wait for connections are dropped (ALT-D37)
	before []*StreamChunk // that are retained besides, for the store
}

// toolResult is the answer of a Runtime (ALT-077).
func (h *Host) toolResult(hc *hostConn, m *ToolResult, now time.Time) {
	c := h.answerFor(hc, m, m.InvocationID, true)
	if c == nil {
		return
	}
	c.answered = true
	if c.stream != nil && !c.stream.Order().IsEmpty() {
		err := m.Error
		if err == nil {
			err = Errorf(ErrInternal, reasonResultAfterChunk, "the Runtime sent a result after a part of a stream")
		}
		h.fail(c, err, "", now)
		return
	}
	h.end(c, ending{result: m, err: m.Error, record: true}, now)
}

// answerFor returns the running call that a Runtime may answer, or nil.
func (h *Host) answerFor(hc *hostConn, m Message, id string, final bool) *hostCall {
	c, o := h.calls[id], h.records.Open(id)
	switch {
	case c != nil && c.rt == hc && c.state == callRunning:
		return c
	case c != nil && c.rt == hc && c.state > callRunning:
		if final { // the id is free for other sessions now
			c.open = false
			delete(h.calls, id)
		}
	case o != nil && o.IsOwedBy(&hc.runtime):
		if final {
			h.records.Answered(o)
		}
	default:
		h.dropped(hc, m, "not a call of this Runtime")
		return nil
	}
	h.dropped(hc, m, "the call has ended")
	return nil
}

// fail ends a call with an error that the Host makes, and records it.
func (h *Host) fail(c *hostCall, err *Error, cancel string, now time.Time) {
	h.finish(c, ending{err: err, record: true}, cancel, now)
}

// abort is fail, but the connections of a stream get the error in place of the chunks that wait for
// them.
func (h *Host) abort(c *hostCall, err *Error, cancel string, now time.Time) {
	h.finish(c, ending{err: err, record: true, drops: true}, cancel, now)
}

// finish ends a call with an error: with a ToolResult before the first chunk, and with the final
// chunk after it (ALT-D28). A Runtime with the capability gets the reason (ALT-D32).
func (h *Host) finish(c *hostCall, e ending, cancel string, now time.Time) {
	if e.drops && c.stream != nil {
		c.stream.Truncate()
	}
	if c.stream != nil && c.stream.Next() > 0 {
		e.chunk = &StreamChunk{InvocationID: c.id, ChunkID: c.stream.Next(), Error: e.err, IsFinal: true}
	} else {
		e.result = &ToolResult{InvocationID: c.id, Error: e.err}
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
	h.finishRuntime(c, e, now)
	if c.claim == nil || c.s.isEnded || h.closed {
		h.announceEnd(c, e, now)
		return
	}
	if e.chunk != nil {
		c.stream.Chunks(func(chunk *core.Chunk) { e.before = append(e.before, chunk.Data.(*StreamChunk)) })
	} else {
		e.result.Header = Header{}
	}
	cl := c.claim
	c.state, cl.end, cl.isEnding = callEnding, e, true
	if before := h.lastEnd; before != nil && !before.left {
		if before.announced == nil {
			before.announced = make(chan struct{})
		}
		cl.after = before.announced
	}
	h.lastEnd = cl
	cl.finish()
}

// announceEnd sends the outcome of a call to its waiting callers.
func (h *Host) announceEnd(c *hostCall, e ending, now time.Time) {
	c.state = callDone
	switch {
	case e.drops && c.stream != nil:
		for _, a := range c.at {
			h.endAt(a, e.err)
		}
		h.leaveAll(c)
		if c.result = e.result; e.chunk != nil {
			c.stream.End(chunkOf(e.chunk), now)
		}
	case e.chunk != nil:
		c.stream.End(chunkOf(e.chunk), now)
		h.pumpAll(c, now)
	default:
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
			h.sendResult(c.s, a.hc, out)
		}
		h.leaveAll(c)
	}
	h.removeCall(c, e.record, now)
}

// finishRuntime ends a call for its Runtime.
func (h *Host) finishRuntime(c *hostCall, end ending, now time.Time) {
	err := end.err
	h.timers.Stop(&c.deadline)
	h.timers.Stop(&c.gap)
	h.timers.Stop(&c.grace)
	h.unhold(c)
	c.routing = nil
	open := false // the Runtime still owes a final message
	if c.state == callRunning {
		c.rt.runtime.Running--
		delete(c.rt.calls, c)
		c.rt.runtime.Breaker.End(outcomeOf(c, err), c.isTrial, h.opts.Limits.BreakerThreshold, h.opts.Timing.BreakerCooldown, now)
		if err == nil {
			h.stats.Succeeded++
		} else {
			h.stats.Failed++
		}
		open = !c.answered && c.rt.runtime.IsConnected
	}
	if isHeld := c.state < callRunning && end.record; h.opts.Audit != nil && (c.state == callRunning || isHeld) {
		e := c.event("call.done", err)
		e.Bytes = int64(len(c.normal))
		if !c.start.IsZero() {
			e.Duration = now.Sub(c.start)
		}
		if c.stream != nil {
			e.Chunks = c.stream.Order().Expected()
		}
		h.auditLocked(now, e, nil)
	}
	if c.open = open; !open && h.calls[c.id] == c {
		delete(h.calls, c.id)
	}
}

// outcomeOf returns the end of a call as the breaker of its Runtime counts it. A shorter time of the caller does not
// count.
func outcomeOf(c *hostCall, err *Error) core.Outcome {
	isFailure := false
	if err != nil {
		switch err.Reason() {
		case reasonInvalidResult, reasonChunkGap, reasonUnexpectedStream, reasonResultAfterChunk:
			isFailure = true
		default:
			isFailure = err.Code == ErrExecutionTimeout && !c.answered && !c.isShort || err.Code == ErrRuntimeUnavailable && c.answered
		}
	}
	switch {
	case isFailure:
		return core.Failure
	case c.answered:
		return core.Success
	}
	return core.Neutral
}

// removeCall removes a call from the tables of calls in flight after its outcome was sent.
func (h *Host) removeCall(c *hostCall, record bool, now time.Time) {
	if cl := c.claim; cl != nil {
		cl.left = true
		if cl.announced != nil {
			close(cl.announced)
		}
		cl.finish()
	}
	c.state, c.claim = callDone, nil
	c.s.active.remove(c)
	c.work.Release()
	if h.calls[c.id] == c {
		delete(h.calls, c.id)
	}
	if c.s.calls[c.id] == c {
		delete(c.s.calls, c.id)
	}
	h.stats.InFlight--
	h.record(c, record, now)
	c.normal, c.metadata = nil, nil
	h.linger(c)
	h.checkIdle()
}

// leaveAll takes all connections from a call. They have its end.
func (h *Host) leaveAll(c *hostCall) {
	for _, a := range c.at {
		h.timers.Stop(&a.stall)
		delete(a.hc.waiting, c.id)
		if c.stream != nil {
			c.stream.Detach(&a.reader)
		}
		a.hc, a.parts = nil, nil
	}
	clear(c.at)
	c.at = c.at[:0]
}

// linger keeps an ended call while chunks or its end wait for connections, and frees it otherwise.
func (h *Host) linger(c *hostCall) {
	if len(c.at) > 0 && !c.s.isEnded {
		if c.s.tails == nil {
			c.s.tails = make(map[*hostCall]bool)
		}
		if !c.s.tails[c] {
			c.s.tails[c] = true
			h.tails++
		}
		if c.charge() == nil {
			return
		}
		for _, a := range c.at { // the budget is used up
			h.endAt(a, errSlowConsumer())
		}
	}
	h.leaveAll(c)
	if c.s.tails[c] {
		delete(c.s.tails, c)
		h.tails--
	}
	c.memory.Release()
	c.stream = nil
}

// dropTail ends an ended call for the connections that do not have its end.
func (h *Host) dropTail(c *hostCall, err *Error) {
	for _, a := range c.at {
		h.endAt(a, err)
	}
	h.leaveAll(c)
	h.linger(c)
}

// cancelCall ends a call for its client (ALT-D32). Invalid cancellations are ignored.
func (h *Host) cancelCall(hc *hostConn, m *CancelCall, now time.Time) {
	s, err := h.own(hc, m.SessionID), errUnknownSession()
	if hc.identity == nil && !h.opts.Auth.AllowAnonymous {
		s, err = nil, errUnauthenticated()
	}
	if s == nil {
		h.auditLocked(now, &AuditRecord{Operation: "request.refused", SessionID: m.SessionID, InvocationID: m.InvocationID,
			CorrelationID: m.CorrelationID, Error: err}, hc)
	} else {
		if c := s.calls[m.InvocationID]; c != nil && c.state < callEnding {
			h.abort(c, errCallCancelled(), "cancelled", now)
			return
		}
		for c := range s.tails {
			if c.id == m.InvocationID {
				h.dropTail(c, errCallCancelled())
				h.checkIdle()
			}
		}
	}
	h.dropped(hc, m, "no such call")
}

func errCallCancelled() *Error {
	return Errorf(ErrExecutionFailed, ReasonCancelled, "the call was cancelled")
}

// clientGone detaches a connection from all its calls (ALT-D33).
func (h *Host) clientGone(hc *hostConn, now time.Time) {
	for _, a := range sortedWaiting(hc.waiting) {
		h.detach(a, now)
	}
	hc.waiting = nil
}

func (h *Host) detach(a *attachment, now time.Time) {
	c := a.c
	delete(a.hc.waiting, c.id)
	h.timers.Stop(&a.stall)
	if i := slices.Index(c.at, a); i >= 0 {
		c.at = slices.Delete(c.at, i, i+1)
	}
	if c.stream != nil {
		c.stream.Detach(&a.reader)
		h.touch(c)
	}
	c.collected -= a.size
	a.hc, a.parts, a.size = nil, nil, 0
	switch {
	case len(c.at) > 0:
	case c.state < callEnding:
		h.timers.Set(&c.grace, now.Add(h.opts.Timing.ClientGracePeriod))
	case c.s.tails[c]:
		h.linger(c)
		h.checkIdle()
	}
}
