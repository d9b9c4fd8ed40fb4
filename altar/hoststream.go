// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package altar

import (
	"time"
)

// streamChunk is a part of an answer (ALT-083, ALT-D28).
func (h *Host) streamChunk(hc *hostConn, m *StreamChunk, now time.Time) {
	c := h.answerFor(hc, m, m.InvocationID, m.IsFinal)
	if c == nil {
		return
	}
	if m.IsFinal {
		c.answered = true
	}
	if !c.contract.Streaming {
		h.fail(c, NewError(ErrInternal, ReasonUnexpectedStream,
			"the contract "+c.contract.Name+" does not have streaming set, but the Runtime sent a part of a stream"), "protocol_error", now)
		return
	}
	if c.asm.inOrder(m) {
		h.accepted(c, now)
		h.deliver(c, m, now)
		return
	}
	ok, err := c.asm.Add(m, now)
	switch {
	case err != nil:
		h.fail(c, errChunkGap(), "protocol_error", now)
		return
	case !ok:
		h.dropped(hc, m, "late or doubled")
		return
	}
	h.accepted(c, now)
	for chunk := c.asm.Next(now); chunk != nil; chunk = c.asm.Next(now) {
		h.deliver(c, chunk, now)
	}
	if c.state != callRunning {
		return
	}
	if until, waiting := c.asm.Waiting(); !waiting {
		h.timers.stop(&c.gap)
	} else if c.gap.index < 0 || !c.gap.due.Equal(until) {
		h.timers.set(&c.gap, until)
	}
}

// accepted restarts the clock of a stream (ALT-D25).
func (h *Host) accepted(c *hostCall, now time.Time) {
	h.stats.Chunks++
	h.timers.set(&c.deadline, now.Add(c.limit))
	h.renewIntent(c, now)
}

// deliver forwards a chunk that is due, and ends the call if it is the last.
func (h *Host) deliver(c *hostCall, m *StreamChunk, now time.Time) {
	m.Header = Header{}
	if m.IsFinal {
		h.end(c, ending{chunk: m, err: m.Error, record: true}, now)
		return
	}
	h.retain(c, m)
	for i := 0; i < len(c.at); {
		a := c.at[i]
		if h.slow(a, m, now) {
			continue // it was removed from the list
		}
		h.forward(a, m)
		i++
	}
}

// retain keeps a chunk for repeats, at the cost of the oldest (ALT-D22).
func (h *Host) retain(c *hostCall, m *StreamChunk) {
	size := func(m *StreamChunk) int { return len(m.Payload) + 64 }
	c.chunks = append(c.chunks, m)
	c.retained += size(m)
	drop := 0
	for c.retained > h.opts.Limits.MaxStoredChunks && drop < len(c.chunks)-1 {
		c.retained -= size(c.chunks[drop])
		c.chunks[drop] = nil
		drop++
	}
	c.chunks = c.chunks[drop:]
}

// slow ends the stream of a client that does not read (ALT-D28), and reports
// whether it did.
func (h *Host) slow(a *attachment, m *StreamChunk, now time.Time) bool {
	if a.collect || a.hc.out.len() < a.hc.limit+a.replayed {
		return false
	}
	err := NewError(ErrInternal, ReasonSlowConsumer, "the client does not read the stream")
	if a.sent {
		h.send(a.hc, &StreamChunk{InvocationID: a.c.id, ChunkID: m.ChunkID, Error: err, IsFinal: true, Header: Header{CorrelationID: a.corr}})
	} else {
		h.send(a.hc, &ToolResult{InvocationID: a.c.id, Error: err, Header: Header{CorrelationID: a.corr}})
	}
	h.detach(a, now)
	return true
}

// forward gives a chunk to one connection.
func (h *Host) forward(a *attachment, m *StreamChunk) {
	if a.collect {
		h.collect(a, m)
		return
	}
	if m.ChunkID < a.from && !m.IsFinal {
		return
	}
	a.sent = true
	if a.corr != "" {
		own := *m
		own.Header = Header{CorrelationID: a.corr}
		m = &own
	}
	h.send(a.hc, m)
}

// collect gathers the payloads of a stream (ALT-D29).
func (h *Host) collect(a *attachment, m *StreamChunk) {
	if m.Payload != nil && m.ChunkID >= a.from {
		if a.size += len(m.Payload) + 1; a.size > h.opts.Limits.MaxMessage {
			a.parts = nil // it will not be sent
		} else {
			a.parts = append(a.parts, m.Payload)
		}
	}
	if !m.IsFinal {
		return
	}
	out := &ToolResult{InvocationID: a.c.id, Error: m.Error, Header: Header{CorrelationID: a.corr}}
	if m.Error == nil {
		payload := append(make([]byte, 0, a.size+2), '[')
		for i, part := range a.parts {
			if i > 0 {
				payload = append(payload, ',')
			}
			payload = append(payload, part...)
		}
		out.Payload = append(payload, ']')
		if a.size > h.opts.Limits.MaxMessage || !fits(out, h.opts.Limits.MaxMessage) {
			out.Payload = nil
			out.Error = NewError(ErrInternal, ReasonMessageTooLarge, "the result is too large for one message")
		}
	}
	a.parts = nil
	h.send(a.hc, out)
}

func fits(m *ToolResult, limit int) bool {
	if len(m.Payload)+1024 < limit {
		return true
	}
	out, err := appendMessage(nil, m, true)
	return err == nil && len(out) <= limit
}
