// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package altar

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/fivewire/fivewire/altar/internal/cluster"
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
	if !c.AcceptResult() {
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
	c, o := callOf(h.sessions.InUse(id)), h.records.Open(id)
	switch {
	case c != nil && c.IsAt(&hc.runtime):
		return c
	case c != nil && c.Runtime() == &hc.runtime && c.State() > core.Running:
		if final { // the id is free for other sessions now
			c.CloseAnswer()
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
	if e.drops && c.Stream != nil {
		c.Stream.Truncate()
	}
	if c.Stream != nil && c.Stream.Next() > 0 {
		e.chunk = &StreamChunk{InvocationID: c.id, ChunkID: c.Stream.Next(), Error: e.err, IsFinal: true}
	} else {
		e.result = &ToolResult{InvocationID: c.id, Error: e.err}
	}
	if c.State() == core.Running {
		h.cancelAt(c.rt(), c, cancel)
	}
	h.end(c, e, now)
}

// cancelAt cancels a call at its Runtime.
func (h *Host) cancelAt(rt *hostConn, c *hostCall, reason string) {
	if rt.remote != nil {
		rt.remote.cancel(&cluster.CancelledError{Reason: cmp.Or(reason, "cancelled")})
		return
	}
	if reason != "" && rt.can(capCancellation) {
		h.send(rt, &CancelCall{InvocationID: c.id, SessionID: c.s.ID, Reason: reason, header: header{CorrelationID: c.corr}})
	}
}

// end ends a call. The Runtime is released at once; waiting callers get the outcome after it was
// recorded.
func (h *Host) end(c *hostCall, e ending, now time.Time) {
	h.finishRuntime(c, e, now)
	if c.claim == nil || c.s.IsEnded() || h.closed {
		h.announceEnd(c, e, now)
		return
	}
	if e.chunk != nil {
		c.Stream.Chunks(func(chunk *core.Chunk) { e.before = append(e.before, chunk.Data.(*StreamChunk)) })
	} else {
		e.result.header = header{}
	}
	cl := c.claim
	c.End(core.Ending)
	cl.end, cl.isEnding = e, true
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
	c.End(core.Done)
	switch {
	case e.drops && c.Stream != nil:
		for _, a := range c.at {
			h.endAt(a, e.err)
		}
		h.leaveAll(c)
		if c.result = e.result; e.chunk != nil {
			c.Stream.End(chunkOf(e.chunk), now)
		}
	case e.chunk != nil:
		c.Stream.End(chunkOf(e.chunk), now)
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
			out.header = header{CorrelationID: a.corr}
			h.sendResult(c.s, a.hc, out)
		}
		h.leaveAll(c)
	}
	h.removeCall(c, e.record, now)
}

// finishRuntime ends a call for its Runtime.
func (h *Host) finishRuntime(c *hostCall, end ending, now time.Time) {
	err := end.err
	c.routing = nil
	isHeld := c.State() < core.Running && end.record
	isRunning := c.Release(resultOf(err), h.opts.Limits.BreakerThreshold, h.opts.Timing.BreakerCooldown, now)
	if isRunning {
		if err == nil {
			h.stats.Succeeded++
		} else {
			h.stats.Failed++
		}
	}
	if h.opts.Audit != nil && (isRunning || isHeld) {
		e := c.event("call.done", err)
		e.Bytes = int64(len(c.normal))
		if !c.Start().IsZero() {
			e.Duration = now.Sub(c.Start())
		}
		if c.Stream != nil {
			e.Chunks = c.Stream.Order().Expected()
		}
		h.auditLocked(now, e, nil)
	}
}

// resultOf returns how a call has ended as the core counts it.
func resultOf(err *Error) core.CallResult {
	if err == nil {
		return core.Succeeded
	}
	switch err.Reason() {
	case reasonInvalidResult, reasonChunkGap, reasonUnexpectedStream, reasonResultAfterChunk:
		return core.BadAnswer
	}
	switch err.Code {
	case ErrExecutionTimeout:
		return core.TimedOut
	case ErrRuntimeUnavailable:
		return core.Unavailable
	}
	return core.Erred
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
	c.End(core.Done)
	c.claim = nil
	c.s.Leave(&c.Call)
	c.work.Release()
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
		c.Detach(&a.reader, 0, time.Time{}) // the call has ended: no grace period begins
		a.hc, a.parts = nil, nil
	}
	clear(c.at)
	c.at = c.at[:0]
}

// linger keeps an ended call while chunks or its end wait for connections, and frees it otherwise.
func (h *Host) linger(c *hostCall) {
	if len(c.at) > 0 && !c.s.IsEnded() {
		c.s.Linger(&c.Call)
		if c.charge() == nil {
			return
		}
		for _, a := range c.at { // the budget is used up
			h.endAt(a, errSlowConsumer())
		}
	}
	h.leaveAll(c)
	c.s.Dismiss(&c.Call)
	c.memory.Release()
	c.Stream = nil
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
		if c := callOf(s.Call(m.InvocationID)); c != nil && c.State() < core.Ending {
			h.abort(c, errCallCancelled(), "cancelled", now)
			return
		}
		for _, tail := range s.Tails() {
			if c := callOf(tail); c.id == m.InvocationID {
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

// sortedWaiting returns the attachments of a connection in the order in which
// their calls came, session by session.
func sortedWaiting(m map[string]*attachment) []*attachment {
	return slices.SortedFunc(maps.Values(m), func(a, b *attachment) int {
		return cmp.Or(cmp.Compare(a.c.s.ID, b.c.s.ID), cmp.Compare(a.c.Seq(), b.c.Seq()))
	})
}

func (h *Host) detach(a *attachment, now time.Time) {
	c := a.c
	delete(a.hc.waiting, c.id)
	h.timers.Stop(&a.stall)
	if i := slices.Index(c.at, a); i >= 0 {
		c.at = slices.Delete(c.at, i, i+1)
	}
	c.Detach(&a.reader, h.opts.Timing.ClientGracePeriod, now)
	h.touch(c)
	c.Collected -= a.size
	a.hc, a.parts, a.size = nil, nil, 0
	if len(c.at) == 0 && c.s.IsLingering(&c.Call) {
		h.linger(c)
		h.checkIdle()
	}
}
