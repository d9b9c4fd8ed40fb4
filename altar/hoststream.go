// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package altar

import (
	"encoding/json"
	"time"

	"github.com/fivewire/fivewire/altar/internal/core"
	"github.com/fivewire/fivewire/internal/budget"
)

// streamChunk is a part of an answer (ALT-083, ALT-D28).
func (h *Host) streamChunk(hc *hostConn, m *StreamChunk, now time.Time) {
	c := h.answerFor(hc, m, m.InvocationID, m.IsFinal)
	if c == nil {
		return
	}
	m.header = header{}
	verdict, final, isGranted := c.Receive(chunkOf(m), now)
	switch verdict {
	case core.Unexpected:
		h.fail(c, Errorf(ErrInternal, reasonUnexpectedStream,
			"the contract %s does not have streaming set, but the Runtime sent a part of a stream", c.contract.Name), "protocol_error", now)
		return
	case core.Gap:
		h.fail(c, errChunkGap(), "protocol_error", now)
		return
	case core.Late:
		h.dropped(hc, m, "late or doubled")
		return
	}
	h.stats.Chunks++
	h.pumpAll(c, now)
	if verdict == core.Final {
		last := final.Data.(*StreamChunk)
		h.end(c, ending{chunk: last, err: last.Error, record: true}, now)
		return
	}
	h.bound(c, isGranted, now)
}

// chunkOf returns a chunk as the core sees it.
func chunkOf(m *StreamChunk) core.Chunk {
	return core.Chunk{ID: m.ChunkID, Size: len(m.Payload), Final: m.IsFinal, Data: m}
}

// bound ends the connections that are farthest behind while a stream holds too much. Chunks within
// the credit of the Runtime are bounded by it.
func (h *Host) bound(c *hostCall, isGranted bool, now time.Time) {
	for c.State() == core.Running && (!isGranted && c.Stream.Unread() > h.opts.Limits.MaxStreamBuffer || c.charge() != nil) {
		var slowest *attachment
		for _, a := range c.at {
			if &a.reader == c.Stream.Lowest() {
				slowest = a
			}
		}
		if slowest == nil {
			h.abort(c, errSlowConsumer(), string(reasonSlowConsumer), now)
			return
		}
		h.slow(slowest, now)
	}
}

// fired ends an attachment whose connection takes no chunk.
func (a *attachment) fired(now time.Time) { a.c.h.slow(a, now) }

// slow ends the stream of a connection that does not read (ALT-D37), and the call with the last one.
func (h *Host) slow(a *attachment, now time.Time) {
	c, err := a.c, errSlowConsumer()
	h.auditLocked(now, c.event("stream.slow", err), nil)
	h.endAt(a, err)
	h.detach(a, now)
	if len(c.at) == 0 && c.State() < core.Ending {
		h.abort(c, err, string(reasonSlowConsumer), now)
	}
}

// endAt sends the end of a call to one connection, in place of the chunks that wait for it.
func (h *Host) endAt(a *attachment, err *Error) {
	header := header{CorrelationID: a.corr}
	if a.collect || a.reader.Place() == 0 {
		h.send(a.hc, &ToolResult{InvocationID: a.id, Error: err, header: header})
	} else {
		h.send(a.hc, &StreamChunk{InvocationID: a.id, ChunkID: a.reader.Place(), Error: err, IsFinal: true, header: header})
	}
}

// pumpAll is pump for all connections of a call.
func (h *Host) pumpAll(c *hostCall, now time.Time) {
	for i := 0; i < len(c.at); {
		a := c.at[i]
		h.pump(a, now)
		if i < len(c.at) && c.at[i] == a { // else it has got the end
			i++
		}
	}
}

// pump gives a connection the chunks that its credit and its queue permit.
func (h *Host) pump(a *attachment, now time.Time) {
	c := a.c
	if c.Stream == nil || c.State() == core.Ending && c.claim.end.drops {
		return
	}
	for chunk := c.Stream.Peek(&a.reader); chunk != nil; chunk = c.Stream.Peek(&a.reader) {
		if !a.collect && !a.hc.out.hasSpace(a.hc.limit, chunk.Size) {
			h.awaitSpace(a)
			if !a.hc.out.hasSpace(a.hc.limit, chunk.Size) { // the peer has not emptied the queue before
				break
			}
		}
		m := chunk.Data.(*StreamChunk)
		c.Stream.Take(&a.reader, now)
		h.touch(c)
		if !h.forward(a, m, now) {
			return
		}
		if m.IsFinal {
			h.detach(a, now)
			return
		}
	}
	since, isStalled := c.Stream.Stalled(&a.reader)
	switch {
	case !isStalled:
		h.timers.Stop(&a.stall)
	case !a.stall.IsSetTo(since.Add(h.opts.Timing.SlowReaderTimeout)):
		h.timers.Set(&a.stall, since.Add(h.opts.Timing.SlowReaderTimeout))
	}
}

// awaitSpace makes the connection continue a stream when its queue is shorter.
func (h *Host) awaitSpace(a *attachment) {
	if !a.isQueued {
		a.isQueued = true
		a.hc.stalled = append(a.hc.stalled, a)
		a.hc.isStalled.Store(true)
	}
}

// resume continues the streams of a connection that has space for messages again.
func (h *Host) resume(hc *hostConn) {
	now := h.lock()
	defer h.unlock()
	list := hc.stalled
	hc.stalled = nil
	hc.isStalled.Store(false)
	for _, a := range list {
		a.isQueued = false
		if !hc.isClosed && hc.waiting[a.id] == a {
			h.pump(a, now)
		}
	}
}

// forward gives a chunk to one connection. It reports false if that has ended the attachment.
func (h *Host) forward(a *attachment, m *StreamChunk, now time.Time) bool {
	if a.collect {
		return h.collect(a, m, now)
	}
	if a.corr != "" {
		own := *m
		own.header = header{CorrelationID: a.corr}
		m = &own
	}
	h.send(a.hc, m)
	return true
}

// collect gathers the payloads of a stream, and ends where they no longer fit (ALT-D29).
func (h *Host) collect(a *attachment, m *StreamChunk, now time.Time) bool {
	c := a.c
	out := &ToolResult{InvocationID: a.id, Error: m.Error, header: header{CorrelationID: a.corr}}
	if m.Error != nil {
		h.send(a.hc, out)
		return true
	}
	if m.Payload != nil {
		a.parts = append(a.parts, m.Payload)
		a.size += len(m.Payload) + 1
		c.Collected += len(m.Payload) + 1
	}
	isLarge := a.size+1024 >= h.opts.Limits.MaxMessage
	if isLarge || m.IsFinal {
		out.Payload = joined(a.parts, a.size)
	}
	err := c.charge()
	if isLarge && !fits(out, h.opts.Limits.MaxMessage) {
		err = Errorf(ErrInternal, reasonMessageTooLarge, "the result is too large for one message")
	}
	switch {
	case err != nil:
		h.endAt(a, err)
		h.detach(a, now)
		if len(c.at) == 0 && c.State() < core.Ending {
			h.fail(c, err, "too_large", now)
		}
		return false
	case m.IsFinal:
		h.send(a.hc, out)
	}
	return true
}

// joined returns a JSON array of the parts, of about this size.
func joined(parts []json.RawMessage, size int) json.RawMessage {
	payload := append(make([]byte, 0, size+2), '[')
	for i, part := range parts {
		if i > 0 {
			payload = append(payload, ',')
		}
		payload = append(payload, part...)
	}
	return append(payload, ']')
}

func fits(m *ToolResult, limit int) bool {
	out, err := appendMessage(nil, m, true)
	return err == nil && len(out) <= limit
}

// touch makes the end of the event raise the credit of the Runtime.
func (h *Host) touch(c *hostCall) {
	if !c.isTouched && c.TakesCredit() {
		c.isTouched = true
		h.touched = append(h.touched, c)
	}
}

// starvedRetry is how long a stream without memory gets no credit.
const starvedRetry = time.Second

// grant raises the credit of the Runtimes whose streams have moved, at the end of an event
// (ALT-D37). A stream without room in the budget gets none.
func (h *Host) grant(now time.Time) {
	list := h.touched
	h.touched = h.touched[:0]
	for i, c := range list {
		list[i] = nil
		c.isTouched = false
		if !c.TakesCredit() {
			continue
		}
		hold, err := c.s.scope.Reserve(budget.Memory, int64(c.Stream.Longest()))
		if err != nil {
			h.starved = append(h.starved, c)
			if !h.starvedAt.IsSet() {
				h.timers.Set(&h.starvedAt, now.Add(starvedRetry))
			}
			continue
		}
		hold.Release()
		if credit, isRaised := c.Raise(now); isRaised {
			h.sendCredit(c, credit)
		}
	}
}

// sendCredit gives a Runtime more credit, also one of another Host.
func (h *Host) sendCredit(c *hostCall, credit int64) {
	rt := c.rt()
	if rt.remote != nil {
		rt.remote.gate.raise(credit)
		return
	}
	h.send(rt, &StreamCredit{InvocationID: c.id, SessionID: c.s.ID, Credit: credit})
}

// retryStarved gives the streams that got no credit another chance.
func (h *Host) retryStarved() {
	list := h.starved
	h.starved = nil
	for _, c := range list {
		h.touch(c)
	}
}

// streamCredit takes the credit of a client. One that fits no stream of the connection is dropped.
func (h *Host) streamCredit(hc *hostConn, m *StreamCredit, now time.Time) {
	a := hc.waiting[m.InvocationID]
	if a == nil || a.c.s.ID != m.SessionID || a.c.Stream == nil || hc.isHTTP() {
		h.dropped(hc, m, "no stream of the connection")
		return
	}
	a.c.Stream.Grant(&a.reader, m.Credit)
	h.pump(a, now)
}
