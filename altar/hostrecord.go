// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package altar

import (
	"time"

	"github.com/fivewire/fivewire/internal/strictjson"
)

// repeat is the second coming of an invocation id in its session (ALT-D22).
func (h *Host) repeat(hc *hostConn, c *hostCall, m *ToolCall) *Error {
	name := m.ToolName
	if hc.peer != nil {
		name = hc.peer.ToolName
	}
	if c.toolName != name || !equalJSON(strictjson.Value(c.params), strictjson.Value(m.Parameters)) {
		return errReused()
	}
	if hc.waiting[c.id] != nil {
		h.dropped(hc, m, "a repeat on the same connection")
		return nil
	}
	if c.state == callDone {
		h.replay(&attachment{hc: hc, c: c, corr: m.CorrelationID, from: m.ResumeFrom, collect: m.CollectChunks})
		return nil
	}
	if n := len(c.chunks); n > 0 && m.ResumeFrom < c.chunks[0].ChunkID || n == 0 && c.asm.Expected() > m.ResumeFrom {
		return errNotRetained()
	}
	a := h.attach(hc, c, m)
	for _, chunk := range c.chunks {
		if chunk.ChunkID >= m.ResumeFrom {
			a.replayed++
			h.forward(a, chunk)
		}
	}
	return nil
}

// replay sends the recorded outcome of a call to an attachment.
func (h *Host) replay(a *attachment) {
	c := a.c
	if c.result != nil {
		out := *c.result
		out.Header = Header{CorrelationID: a.corr}
		h.send(a.hc, &out)
		return
	}
	last := c.chunks[len(c.chunks)-1]
	from := min(a.from, last.ChunkID) // at least the final chunk
	if a.collect && last.Error != nil {
		from = last.ChunkID // the parts are dropped anyway
	}
	if from < c.chunks[0].ChunkID {
		h.send(a.hc, &ToolResult{InvocationID: c.id, Error: errNotRetained(), Header: Header{CorrelationID: a.corr}})
		return
	}
	for _, chunk := range c.chunks {
		if chunk.ChunkID >= from {
			h.forward(a, chunk)
		}
	}
}

func errReused() *Error {
	return formFault(ReasonInvocationIDReused, "", "the invocation id was used for another call")
}

func errNotRetained() *Error {
	return NewError(ErrInternal, ReasonNotRetained, "what the call yielded is not kept any more")
}

// superseded drops the outcome of a forwarded call of which another attempt
// comes, and reports whether it did.
func (h *Host) superseded(hc *hostConn, c *hostCall) bool {
	if hc.peer == nil || hc.peer.Attempt <= c.attempt || c.state != callDone {
		return false
	}
	delete(c.s.calls, c.id)
	if c.open { // a late answer is not mistaken for that of another Runtime
		c.open = false
		if h.calls[c.id] == c { // otherwise the final message was received, and the id may belong to another call
			delete(h.calls, c.id)
			delete(c.rt.unanswered, c.id)
		}
	}
	return true
}

// recordCost is what an outcome costs besides its payload, about.
const recordCost = 1 << 10

// recordHere keeps the outcome of a call. Above the limit, the oldest payloads are dropped; the
// fact that a call ran is kept (ALT-D22).
func (h *Host) recordHere(c *hostCall) {
	c.size = recordCost + len(c.params) + c.retained
	if c.result != nil {
		c.size += len(c.result.Payload) + len(c.result.RuntimeMetadata)
	}
	h.doneCalls.push(c)
	h.recorded += int64(c.size)
	if h.bulky == nil {
		h.bulky = c
	}
	for h.recorded > h.opts.Limits.MaxStoredResults && h.bulky != nil {
		old := h.bulky
		h.bulky = old.later
		if old.result != nil && len(old.result.Payload)+len(old.result.RuntimeMetadata) == 0 || old.result == nil && old.chunks == nil {
			continue
		}
		small := recordCost + len(old.params)
		h.recorded -= int64(old.size - small)
		old.size, old.retained, old.chunks = small, 0, nil
		old.result = &ToolResult{InvocationID: old.id, Error: errNotRetained()}
	}
}

// forgetCalls drops outcomes and invocation ids that were kept long enough.
func (h *Host) forgetCalls(now time.Time) {
	for c := h.doneCalls.first; c != nil; c = h.doneCalls.first {
		due := c.endedAt.Add(h.opts.Persistence.ResultTTL)
		if now.Before(due) {
			h.timers.set(&h.endedAt, due)
			return
		}
		h.doneCalls.pop()
		h.recorded -= int64(c.size)
		if h.bulky == c {
			h.bulky = h.doneCalls.first
		}
		if c.s.calls[c.id] == c {
			delete(c.s.calls, c.id)
		}
		if h.calls[c.id] == c {
			delete(h.calls, c.id)
			delete(c.rt.unanswered, c.id)
		}
	}
}
