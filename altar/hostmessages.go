// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package altar

import (
	"encoding/json"
	"errors"
	"time"

	"github.com/fivewire/fivewire/altar/internal/core"
	"github.com/fivewire/fivewire/internal/budget"
	"github.com/fivewire/fivewire/internal/strictjson"
)

// isOutcome reports whether a message is an answer of a Runtime to a call.
func isOutcome(m Message) bool {
	switch m.(type) {
	case *ToolResult, *StreamChunk:
		return true
	}
	return false
}

// isRequest reports whether a message may have a response. Others are handled even if the peer does
// not read.
func isRequest(m Message, bad *badFrame) bool {
	if bad != nil {
		return true
	}
	switch m.(type) {
	case *StreamCredit, *CancelCall:
		return false
	case *ToolCall:
		return true
	}
	return !isOutcome(m) && !isAnswer(typeOf(m))
}

// asBadFrame returns the error of one bad frame, nil if there is none, and false
// for any other error.
func asBadFrame(err error) (bad *badFrame, ok bool) {
	if err == nil {
		return nil, true
	}
	var e *badFrame
	ok = errors.As(err, &e)
	return e, ok
}

// handle processes one message or one invalid frame, and reports whether the connection continues.
// Either m or bad is nil.
func (h *Host) handle(hc *hostConn, m Message, bad *badFrame) bool {
	if hc.is() == roleRuntime && !isOutcome(m) { // answered notes an outcome
		hc.received(time.Now())
	}
	if bad != nil {
		if bad.salvaged == nil || hc.is() != roleRuntime { // the role is settled before any answer
			return h.handleBad(hc, bad)
		}
		m = bad.salvaged
	}
	hc.clearInvalid()
	if err := h.prepare(hc, m); err != nil {
		h.unavailable(hc, m, err)
		return !hc.isClosed.Load()
	}
	h.audits.wait(h.ctx)
	if hc.isClosed.Load() {
		return false
	}
	if h.isThrottled(hc, m) {
		return !hc.isClosed.Load()
	}
	h.handleMessage(hc, m)
	return !hc.isClosed.Load()
}

// clearInvalid ends a sequence of invalid frames.
func (hc *hostConn) clearInvalid() {
	if hc.invalid.Load() != 0 {
		hc.invalid.Store(0)
	}
}

// handleMessage processes a message of a live connection.
func (h *Host) handleMessage(hc *hostConn, m Message) {
	switch m := m.(type) {
	case *ToolCall:
		h.toolCall(hc, m, nil)
	case *forwardedCall:
		h.receiveForwarded(hc, m)
	case *ToolResult, *StreamChunk:
		h.answered(hc, m)
	case *Authenticate:
		h.authenticate(hc, m)
	case *FulfillTools:
		h.fulfill(hc, m)
	case *AnnounceRuntime:
		h.announce(hc, m)
	case *CreateSession, *ListTools, *DestroySession:
		h.handleRequest(hc, m)
	default:
		h.handleOther(hc, m)
	}
}

// handleRequest processes a request of a client other than a call. Its answer is queued before a Host that shuts down
// closes the connection.
func (h *Host) handleRequest(hc *hostConn, m Message) {
	if !h.drain.enter() {
		h.answer(hc, m, errDraining())
		return
	}
	defer h.drain.add(-1)
	switch m := m.(type) {
	case *CreateSession:
		h.createSession(hc, m)
	case *ListTools:
		h.listTools(hc, m)
	case *DestroySession:
		h.destroySession(hc, m)
	}
}

// handleOther processes a message that needs no hook.
func (h *Host) handleOther(hc *hostConn, m Message) {
	switch m := m.(type) {
	case *CancelCall:
		if hc.is() == roleRuntime {
			h.dropped(m, "a Runtime cancels nothing")
			return
		}
		hc.become(roleClient)
		h.cancelCall(hc, m)
	case *StreamCredit:
		h.streamCredit(hc, m)
	case *SessionDestroyed:
		h.endedElsewhere(hc, m)
	case *hostOffers:
		h.setOffers(hc, m)
	case *ErrorMessage:
		h.refusedByPeer(hc, m)
	case *Ping:
		h.reply(hc, m, &Pong{})
	case *RequestFulfillment:
		h.answer(hc, m, formFault(reasonWrongDirection, "", "only a Host sends this message"))
	case *Pong:
	default:
		h.dropped(m, "nobody waits for it")
	}
}

// prepare loads the session that a message needs from the ledger, see summon.
func (h *Host) prepare(hc *hostConn, m Message) *Error {
	if hc.isPeer() || hc.principal() == nil && !h.opts.Auth.AllowAnonymous {
		return nil
	}
	return h.summon(sessionIDOf(m))
}

// unavailable answers a message whose session could not be loaded.
func (h *Host) unavailable(hc *hostConn, m Message, err *Error) {
	switch m := m.(type) {
	case *ToolCall:
		sh := h.shardOf(m.SessionID)
		now := h.lock(sh)
		h.refused(sh, hc, m, nil, err, now)
		h.unlock(sh)
	case *CancelCall:
		h.dropped(m, "the session cannot be loaded")
	default:
		h.answer(hc, m, err)
	}
}

// isThrottled refuses a request of a client that does not read its answers, or whose principal sends
// too many requests (ALT-D38), and reports whether it did.
func (h *Host) isThrottled(hc *hostConn, m Message) bool {
	switch m.(type) {
	case *ToolCall, *CreateSession, *ListTools:
	default:
		return false
	}
	var err *Error
	if hc.isSlow {
		err = errOverloaded("ClientQueueLimit")
	} else if h.opts.Limits.RequestRate > 0 {
		_, full := h.budget.Scope(hc.budgetKey(), "").Reserve(budget.Requests, 1)
		err = overBudget(ErrRuntimeUnavailable, ReasonOverloaded, full)
	}
	if err == nil {
		return false
	}
	if call, ok := m.(*ToolCall); ok {
		sh := h.shardOf(call.SessionID)
		now := h.lock(sh)
		h.refused(sh, hc, call, nil, err, now)
		h.unlock(sh)
	} else {
		h.auditOne(&AuditRecord{Operation: "request.refused", CorrelationID: m.head().CorrelationID, Error: err}, hc)
		h.answer(hc, m, err)
	}
	return true
}

// clientOnly checks the role and the principal of a request (ALT-D23).
func (h *Host) clientOnly(hc *hostConn, m Message) bool {
	err := h.clientFault(hc)
	if err == nil {
		return true
	}
	if err.Reason() == ReasonUnauthenticated {
		operation := "request.refused"
		if _, ok := m.(*CreateSession); ok {
			operation = "session.refused"
		}
		h.auditOne(&AuditRecord{Operation: operation, SessionID: sessionIDOf(m), CorrelationID: m.head().CorrelationID, Error: err}, hc)
	}
	h.answer(hc, m, err)
	return false
}

func (h *Host) clientFault(hc *hostConn) *Error {
	if hc.is() == roleRuntime {
		return formFault(reasonWrongRole, "", "a Runtime cannot make requests of a client")
	}
	hc.become(roleClient)
	if hc.principal() == nil && !h.opts.Auth.AllowAnonymous {
		return errUnauthenticated()
	}
	return nil
}

func errUnauthenticated() *Error {
	return Errorf(ErrAuthorizationFailed, ReasonUnauthenticated, "the caller is not authenticated")
}

func (h *Host) runtimeOnly(hc *hostConn, m Message) bool {
	switch hc.is() {
	case roleClient:
		h.answer(hc, m, formFault(reasonWrongRole, "", "a client cannot fulfil tools"))
		return false
	case roleNew:
		h.answer(hc, m, formFault(reasonNotAnnounced, "", "the Runtime has not announced itself"))
		return false
	}
	return true
}

// handleBad processes an invalid frame (section f).
func (h *Host) handleBad(hc *hostConn, bad *badFrame) bool {
	if hc.isClosed.Load() {
		return false
	}
	header := header{RequestID: bad.RequestID, CorrelationID: bad.CorrelationID}
	if bad.InvalidFrame {
		h.invalidFrames.Add(1)
		switch bad.Err.Reason() {
		case reasonMalformedJSON, reasonNotAnObject, reasonInvalidUnicode:
			hc.invalid.Add(1)
		case reasonMessageTooLarge: // what it was is not known
		default:
			hc.clearInvalid()
		}
		h.send(hc, &ErrorMessage{Err: bad.Err})
		if int(hc.invalid.Load()) >= h.opts.Limits.MaxInvalidFrames {
			h.expelNow(hc, goodbyeRefused(bad.Err.Code))
			return false
		}
		return true
	}
	hc.clearInvalid()
	switch {
	case bad.Type == "ToolResult" || bad.Type == "StreamChunk":
		h.toCall(hc, bad.InvocationID, false, nil, &core.Event{Kind: core.AnswerBroken})
	case isAnswer(bad.Type), bad.Type == "CancelCall", bad.Type == "StreamCredit":
		h.dropCount.Add(1)
	case bad.Type == "ToolCall" && bad.InvocationID != "":
		sh := &h.shards[0]
		h.lock(sh)
		h.refuseCall(sh, hc, bad.InvocationID, header, bad.Err)
		h.unlock(sh)
	default:
		h.send(hc, &ErrorMessage{Err: bad.Err, header: header})
	}
	return true
}

// dropped counts a message that has no effect.
func (h *Host) dropped(m Message, why string) {
	h.dropCount.Add(1)
	h.opts.Logger.DebugContext(h.ctx, "altar: message dropped", "type", typeOf(m), "reason", why)
}

// answered passes an answer of a Runtime to its call (ALT-077, ALT-083).
func (h *Host) answered(hc *hostConn, m Message) {
	var e core.Event
	var id string
	isFinal := true
	var payload []byte
	switch m := m.(type) {
	case *ToolResult:
		id, payload = m.InvocationID, m.Payload
		m.header = header{}
		if isDraining(m) { // the client must not take it for the refusal of this Host (ALT-D45)
			m.RuntimeMetadata = json.RawMessage("{}")
		}
		e.Kind, e.Data, e.Result = core.ResultReceived, m, resultOf(m.Error)
		if m.Error != nil {
			e.Err, payload = m.Error, nil
			if hc.via != nil && m.Error.Code == ErrRuntimeUnavailable && m.Error.Reason() == ReasonDisconnected {
				e = core.Event{Kind: core.CallLost} // the Runtime at the other Host has disconnected
			}
		}
	case *StreamChunk:
		id, payload, isFinal = m.InvocationID, m.Payload, m.IsFinal
		m.header = header{}
		e.Kind, e.Chunk = core.ChunkReceived, chunkOf(m)
	}
	hc.received(h.toCall(hc, id, isFinal, payload, &e))
}

// toCall passes an event to a call of the Runtime of a connection, or of one of the Runtimes behind it. A payload is
// checked first. It returns the time.
func (h *Host) toCall(hc *hostConn, id string, isFinal bool, payload []byte, e *core.Event) time.Time {
	c := h.ids.get(id)
	if c == nil {
		if !isFinal || !h.outcomes.answered(id, hc.isOf) {
			h.dropCount.Add(1)
		}
		return time.Now()
	}
	if payload != nil && h.isStray(callOf(c).contract.returns, payload) {
		e = &core.Event{Kind: core.AnswerBroken}
	}
	sh := &h.shards[c.Session().Shard()]
	now := h.lock(sh)
	defer h.unlock(sh)
	if rt := c.Runtime(); rt != nil && hc.isOf(rt) {
		e.Call, e.Runtime = c, rt
		h.step(sh, now, e)
	} else {
		sh.core.Counts.Dropped++
	}
	return now
}

// isOf reports whether a Runtime answers over a connection.
func (hc *hostConn) isOf(rt *core.Runtime) bool {
	if rt == &hc.runtime {
		return true
	}
	via := connOf(rt).via
	return via != nil && via == hc.via
}

// unsent ends a call that cannot be sent to its Runtime.
func (h *Host) unsent(hc *hostConn, id string, err *Error) {
	h.toCall(hc, id, true, nil, &core.Event{Kind: core.ResultReceived, Data: &ToolResult{InvocationID: id, Error: err}, Err: err, Result: core.Erred})
}

// cancelCall ends a call for its client (ALT-D32). Invalid cancellations are ignored.
func (h *Host) cancelCall(hc *hostConn, m *CancelCall) {
	if hc.isPeer() {
		h.toSession(hc.session, core.Event{Kind: core.CallCancelled, ID: m.InvocationID, Text: m.Reason})
		return
	}
	sh := h.shardOf(m.SessionID)
	now := h.lock(sh)
	defer h.unlock(sh)
	s, err := h.own(sh, hc, m.SessionID), errUnknownSession()
	if hc.principal() == nil && !h.opts.Auth.AllowAnonymous {
		s, err = nil, errUnauthenticated()
	}
	if s == nil {
		h.audit(sh, now, &AuditRecord{Operation: "request.refused", SessionID: m.SessionID, InvocationID: m.InvocationID,
			CorrelationID: m.CorrelationID, Error: err}, hc)
		sh.core.Counts.Dropped++
		return
	}
	h.step(sh, now, &core.Event{Kind: core.CallCancelled, Session: &s.Session, ID: m.InvocationID, Text: "cancelled"})
}

// toSession passes an event to a session.
func (h *Host) toSession(s *session, e core.Event) {
	sh := h.shardOf(s.ID)
	now := h.lock(sh)
	e.Session = &s.Session
	h.step(sh, now, &e)
	h.unlock(sh)
}

// streamCredit takes the credit of a client. One that fits no stream of the connection is dropped.
func (h *Host) streamCredit(hc *hostConn, m *StreamCredit) {
	e := core.Event{Kind: core.CreditReceived, Conn: &hc.Conn, ID: m.InvocationID, N: m.Credit}
	if hc.isPeer() {
		h.toSession(hc.session, e)
		return
	}
	if hc.isHTTP() {
		h.dropped(m, "no stream of the connection")
		return
	}
	sh := h.shardOf(m.SessionID)
	now := h.lock(sh)
	defer h.unlock(sh)
	if s := sh.core.Find(m.SessionID); s != nil {
		e.Session = s
		h.step(sh, now, &e)
	} else {
		sh.core.Counts.Dropped++
	}
}

// isStray reports whether a payload is not what ResultTypes wants, so that a Runtime cannot smuggle content in. It is
// called without a lock, because results can be long.
func (h *Host) isStray(want *field, payload []byte) bool {
	if want == nil {
		return false
	}
	v, err := strictjson.Check(payload, strictjson.Options{MaxDepth: maxDepth})
	if err != nil {
		return true
	}
	n := normalizer{opts: validation{allowNonFinite: h.opts.AllowNonFinite, dropUnknown: h.opts.DropUnknown}}
	n.value(want, want.dims, v)
	return len(n.faults) > 0
}
