// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package altar

import (
	"crypto/sha256"
	"encoding/json"
	"time"

	"github.com/fivewire/fivewire/altar/internal/core"
	"github.com/fivewire/fivewire/internal/budget"
	"github.com/fivewire/fivewire/internal/strictjson"
)

// fingerprint returns that of a call. It is called without h.mu.
func (h *Host) fingerprint(tool string, params json.RawMessage) core.Fingerprint {
	buf, ok := h.scratch.Get().(*[]byte)
	if !ok {
		buf = new([]byte)
	}
	text := appendIdentity((*buf)[:0], strictjson.Value(params))
	f := core.Fingerprint{Tool: tool, Sum: sha256.Sum256(text)}
	if cap(text) <= 64<<10 {
		*buf = text
		h.scratch.Put(buf)
	}
	return f
}

// record keeps the outcome of a call. It keeps no buffer larger than the payload, and of the
// parameters only a fingerprint.
func (h *Host) record(c *hostCall, isForRepeats bool, now time.Time) {
	isForRepeats = isForRepeats && !c.s.IsEnded()
	r := &core.Record{Scope: &c.s.Records, ID: c.id, Print: c.print, Attempt: c.attempt, Contract: c.contract.Name, EndedAt: now}
	if rt := c.Runtime(); rt != nil {
		r.RuntimeID = rt.ID
	}
	owing := c.Owing()
	switch {
	case !isForRepeats && owing == nil:
		return
	case c.result != nil:
		r.Payload, r.Size = c.result, len(c.result.Payload)+len(c.result.RuntimeMetadata)
	case c.Stream != nil:
		r.Payload, r.Size = c.Stream, c.Stream.Bytes()
	}
	h.records.Add(r, isForRepeats, owing)
	if !h.endedAt.IsSet() {
		h.timers.Set(&h.endedAt, now.Add(h.opts.Persistence.ResultTTL))
	}
}

// forgetCalls drops outcomes and invocation ids that were kept long enough.
func (h *Host) forgetCalls(now time.Time) {
	if due, isAny := h.records.Expire(now, h.opts.Persistence.ResultTTL); isAny {
		h.timers.Set(&h.endedAt, due)
	}
}

// repeat attaches the second request with an invocation id in its session (ALT-D22).
func (h *Host) repeat(hc *hostConn, c *hostCall, m *ToolCall, print core.Fingerprint, now time.Time) *Error {
	if c.print != print {
		return errReused()
	}
	if hc.waiting[c.id] != nil {
		h.dropped(hc, m, "a repeat on the same connection")
		return nil
	}
	a := h.attach(hc, c, m, now)
	if a == nil {
		return errNotRetained()
	}
	e := c.event("call.joined", nil)
	e.CorrelationID = m.CorrelationID
	h.auditLocked(now, e, nil)
	h.pump(a, now)
	return nil
}

// replayRecord answers a request with an invocation id that was used before.
func (h *Host) replayRecord(hc *hostConn, s *session, r *core.Record, m *ToolCall, print core.Fingerprint, now time.Time) *Error {
	switch {
	case r.IsShort():
		return errNotRetained()
	case r.Print != print:
		return errReused()
	case hc.waiting[r.ID] != nil:
		h.dropped(hc, m, "a repeat on the same connection")
		return nil
	}
	stream, isStream := r.Payload.(*core.Stream)
	if !isStream {
		out := ToolResult{InvocationID: r.ID, Error: errNotRetained()}
		if kept, ok := r.Payload.(*ToolResult); ok {
			out = *kept
		}
		out.header = header{CorrelationID: m.CorrelationID}
		h.replayed(s, r, m, now)
		h.sendResult(s, hc, &out)
		return nil
	}
	own := *m
	if last := stream.Last().Data.(*StreamChunk); m.CollectChunks && last.Error != nil {
		own.ResumeFrom = last.ChunkID // the parts are dropped anyway
	}
	c := &hostCall{Call: core.NewCall(core.CallLimits{}, stream, nil), h: h, s: s, id: r.ID}
	c.Data = c
	a := h.attach(hc, c, &own, now)
	if a == nil {
		return errNotRetained()
	}
	h.replayed(s, r, m, now)
	h.pump(a, now)
	if len(c.at) > 0 { // the rest waits
		c.memory, _ = s.scope.Reserve(budget.Memory, 1)
		h.linger(c)
	}
	return nil
}

func (h *Host) replayed(s *session, r *core.Record, m *ToolCall, now time.Time) {
	h.auditLocked(now, &AuditRecord{Operation: "call.replayed", Principal: s.Principal.Name, Tenant: s.Principal.Tenant,
		SessionID: s.ID, InvocationID: r.ID, CorrelationID: m.CorrelationID, Contract: r.Contract, RuntimeID: r.RuntimeID}, nil)
}

func errReused() *Error {
	return formFault(reasonInvocationIDReused, "", "the invocation id was used for another call")
}

func errNotRetained() *Error {
	return Errorf(ErrInternal, ReasonNotRetained, "what the call yielded is no longer kept")
}

// superseded drops the outcome of a forwarded call of which another attempt
// comes, and reports whether it did.
func (h *Host) superseded(hc *hostConn, r *core.Record) bool {
	if hc.peer == nil || hc.peer.Attempt <= r.Attempt {
		return false
	}
	h.records.Forget(r) // a late answer is not mistaken for that of another Runtime
	return true
}
