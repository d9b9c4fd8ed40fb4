// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package altar

import (
	"encoding/json"
	"time"
)

type callState int

const (
	callClaiming callState = iota // see claimCall; only with a store
	callHeld
	callRunning
	callEnding // its outcome is being recorded; only with a store
	callDone
)

// A hostCall is one invocation in one session, from the moment that all checks
// have passed until its outcome is forgotten (section e, call).
type hostCall struct {
	h        *Host
	s        *session
	contract *contract
	id       string
	pin      string // runtime id that the caller asked for
	toolName string
	params   json.RawMessage // as received; a repeat has equal parameters
	normal   json.RawMessage // as they are dispatched
	metadata map[string]string
	corr     string // of the first request

	state      callState
	claim      *claim    // nil without a store
	rt         *hostConn // once dispatched
	failedOver bool
	attempt    int            // of another Host, see [ForwardedCall]
	tried      []RuntimeOffer // that refused it
	open       bool           // ended without the final message of the Runtime
	answered   bool           // the final message of the Runtime came
	limit      time.Duration  // allotted time
	start      time.Time      // dispatched first
	asm        assembler
	at         []*attachment
	first      attachment // the first of at, and the list with it alone
	firstAt    [1]*attachment

	chunks   []*StreamChunk // delivered and retained, the last ones
	retained int            // their size
	result   *ToolResult    // how it ended, if not with a chunk
	endedAt  time.Time

	deadline, gap, grace timer
	seq                  uint64    // in the session, in order of arrival
	prev, next           *hostCall // in the list of active calls of the session
	later                *hostCall // in the queue of ended calls
	size                 int       // of the recorded outcome
}

// An attachment is a connection that waits for a call.
type attachment struct {
	hc       *hostConn
	c        *hostCall
	corr     string
	from     int64 // chunks before are not wanted
	sent     bool  // a chunk was forwarded
	replayed int
	collect  bool // chunks become one result (ALT-D29)
	parts    []json.RawMessage
	size     int
}

// The three timers of a call.
type (
	callDeadline hostCall
	callGap      hostCall
	callGone     hostCall
)

func (c *callDeadline) fired(now time.Time) {
	h := c.h
	h.fail((*hostCall)(c), NewError(ErrExecutionTimeout, ReasonDeadline, "the tool did not finish in time"), "timeout", now)
}

func (c *callGap) fired(now time.Time) {
	h := c.h
	h.fail((*hostCall)(c), errChunkGap(), "protocol_error", now)
}

func (c *callGone) fired(now time.Time) {
	h := c.h
	h.fail((*hostCall)(c), NewError(ErrExecutionFailed, ReasonClientGone, "nobody waits for the call any more"), string(ReasonClientGone), now)
}

// toolCall makes the checks of ALT-D23 and dispatches, holds or answers a call.
func (h *Host) toolCall(hc *hostConn, m *ToolCall) {
	now := h.lock()
	hc.lastReceived = now
	var s *session
	var c *contract
	var pin string
	var err *Error
	if hc.peer != nil {
		s, err = h.guest(hc.peer, now)
	} else if err = h.clientFault(hc); err == nil {
		if s = h.own(hc, m.SessionID); s == nil {
			err = errUnknownSession()
		}
	}
	if err == nil {
		var name string
		var fault error
		if name, pin, fault = ResolveTool(h.manifest.has, m.ToolName); fault != nil {
			err = fault.(*Error)
		} else {
			c = h.manifest.byName[name]
		}
	}
	if hc.isClosed || err != nil {
		h.refused(hc, m, c, err, now)
		h.unlock()
		return
	}
	request := AuthorizeRequest{Principal: hc.identity, Session: s.info, Contract: c.Contract, RuntimeID: pin}
	h.unlock()

	normal, unfit := c.check.normalized(m.Parameters)
	if unfit == nil {
		request.Parameters = normal
	}
	var denied error
	if hc.peer == nil { // another Host has asked its own
		denied = h.guard("Authorizer", func() error { return h.auth.Authorize(h.ctx, &request) })
	}
	if denied != nil {
		err = h.refusal("Authorizer", denied, ReasonDenied, "the caller may not use this tool in this session")
	}

	now = h.lock()
	defer h.unlock()
	var repeated *hostCall
	switch {
	case hc.isClosed:
		return
	case s.isEnded:
		err = errUnknownSession()
	case err != nil:
	default:
		if repeated = s.calls[m.InvocationID]; repeated != nil && !h.superseded(hc, repeated) {
			if err = h.repeat(hc, repeated, m); err == nil {
				h.slide(s, now)
				return
			}
		}
	}
	if err == nil {
		err = h.admitCall(hc, s, m, unfit)
	} else {
		h.refused(hc, m, c, err, now)
		return
	}
	// A record in the store precedes any other error of the call (ALT-D23).
	stored := h.state != nil && s.kind == ownSession && hc.peer == nil
	if err != nil && (!stored || hc.waiting[m.InvocationID] != nil) {
		h.refused(hc, m, c, err, now)
		return
	}
	var rt *hostConn
	if !stored {
		if rt, err = h.place(s, c, pin, nil); err != nil && (err.Reason() == ReasonOverloaded || !s.outstanding(pin)) {
			h.refused(hc, m, c, err, now)
			return
		}
	}
	call := &hostCall{
		h: h, s: s, contract: c, id: m.InvocationID, pin: pin, toolName: m.ToolName, params: m.Parameters, normal: normal,
		metadata: m.Metadata, corr: m.CorrelationID, limit: h.limit(c, m), state: callHeld,
	}
	if hc.peer != nil {
		call.attempt, call.toolName = hc.peer.Attempt, hc.peer.ToolName
	}
	call.deadline = timer{index: -1, fire: (*callDeadline)(call)}
	call.gap = timer{index: -1, fire: (*callGap)(call)}
	call.grace = timer{index: -1, fire: (*callGone)(call)}
	s.calls[call.id] = call
	if h.calls[call.id] == nil { // else it is only looked for in the store
		h.calls[call.id] = call
	}
	s.active.push(call)
	s.flights++
	h.stats.InFlight++
	h.slide(s, now)
	h.attach(hc, call, m)
	switch {
	case stored:
		h.claimCall(call, err)
	case rt != nil:
		h.dispatch(call, rt, now)
	}
}

// admitCall makes the checks after that for a repeat.
func (h *Host) admitCall(hc *hostConn, s *session, m *ToolCall, unfit error) *Error {
	if unfit != nil {
		return unfit.(*Error)
	}
	if other := h.calls[m.InvocationID]; other != nil && other.s != s {
		return formFault(ReasonInvocationIDInUse, "", "the invocation id is in use elsewhere")
	}
	if m.ResumeFrom > 0 || hc.peer != nil && hc.peer.Join {
		return formFault(ReasonUnknownInvocation, "", "there is no such call to resume")
	}
	if h.draining || h.recorded > h.opts.Limits.MaxStoredResults || h.opts.Limits.MaxConcurrentPerSession > 0 && s.flights >= h.opts.Limits.MaxConcurrentPerSession {
		return errOverloaded()
	}
	return nil
}

func (h *Host) limit(c *contract, m *ToolCall) time.Duration {
	limit := c.Timeout
	if limit == 0 {
		limit = h.opts.Timing.CallTimeout
	}
	if m.TimeoutMS > 0 && m.TimeoutMS < limit.Milliseconds() {
		limit = time.Duration(m.TimeoutMS) * time.Millisecond
	}
	return limit
}

// slide prolongs a session that is used, if it is that kind (ALT-D19).
func (h *Host) slide(s *session, now time.Time) {
	if h.opts.Timing.SlidingSessionTTL {
		h.timers.set(&s.expiry, now.Add(s.ttl))
		h.prolong(s)
	}
}

// refused answers a call that was not accepted. A nil error means that no response is due.
func (h *Host) refused(hc *hostConn, m *ToolCall, c *contract, err *Error, now time.Time) {
	if err == nil || hc.isClosed {
		return
	}
	h.stats.Rejected++
	if h.opts.Audit != nil {
		e := &AuditRecord{Operation: "call.refused", SessionID: m.SessionID, InvocationID: m.InvocationID, CorrelationID: m.CorrelationID, Error: err}
		if c != nil {
			e.Contract = c.Name
		}
		h.audit(now, e, hc.identity)
	}
	h.refuseCall(hc, m.InvocationID, m.Header, err)
}

// refuseCall picks the carrier: a ToolResult would end the wrong call if this
// connection waits for one with that id (ALT-D02).
func (h *Host) refuseCall(hc *hostConn, id string, header Header, err *Error) {
	if hc.waiting[id] != nil || hc.peer != nil {
		h.send(hc, &ErrorMessage{Err: err, Header: header})
		return
	}
	h.send(hc, &ToolResult{InvocationID: id, Error: err, Header: Header{CorrelationID: header.CorrelationID}})
}

func (h *Host) attach(hc *hostConn, c *hostCall, m *ToolCall) *attachment {
	a := &c.first
	if a.c != nil {
		a = &attachment{}
	} else {
		c.at = c.firstAt[:0]
	}
	*a = attachment{hc: hc, c: c, corr: m.CorrelationID, from: m.ResumeFrom, collect: m.CollectChunks}
	if hc.waiting == nil {
		hc.waiting = make(map[string]*attachment)
	}
	hc.waiting[c.id] = a
	c.at = append(c.at, a)
	h.timers.stop(&c.grace)
	return a
}

// dispatch sends a call to a Runtime (ALT-116).
func (h *Host) dispatch(c *hostCall, rt *hostConn, now time.Time) {
	if c.pin == "" {
		if c.s.counts == nil {
			c.s.counts = make(map[string]uint64)
		}
		c.s.counts[c.contract.Name]++
	}
	c.state, c.rt, c.asm = callRunning, rt, assembler{}
	rt.running++
	rt.breaker.begin(c)
	h.stats.Dispatched++
	if c.start.IsZero() {
		c.start = now
	}
	if c.deadline.index < 0 {
		h.timers.set(&c.deadline, now.Add(c.limit))
	}
	h.renewIntent(c, now)
	if rt.remote != nil {
		h.forwardCall(c, rt, now)
	} else {
		h.sendCall(c, rt, now)
	}
	if h.opts.Audit != nil {
		h.audit(now, c.event("call.dispatched", nil), nil)
	}
}

func (h *Host) sendCall(c *hostCall, rt *hostConn, now time.Time) {
	out := &ToolCall{
		InvocationID: c.id, SessionID: c.s.id, ToolName: rt.toolName(c.contract.Name), Parameters: c.normal, Metadata: c.metadata,
		Header: Header{CorrelationID: c.corr},
	}
	if rt.can(CapDeadlines) {
		out.TimeoutMS = max(1, c.deadline.due.Sub(now).Milliseconds())
	}
	h.send(rt, out)
}

func (c *hostCall) event(kind string, err *Error) *AuditRecord {
	e := &AuditRecord{Operation: kind, Principal: c.s.principal.name, Tenant: c.s.principal.tenant, SessionID: c.s.id,
		InvocationID: c.id, CorrelationID: c.corr, Contract: c.contract.Name, Error: err}
	if c.rt != nil {
		e.RuntimeID = c.rt.runtimeID
	}
	return e
}

// toolName returns the namespaced name of a contract, made once.
func (hc *hostConn) toolName(contract string) string {
	if s, ok := hc.names[contract]; ok {
		return s
	}
	if hc.names == nil {
		hc.names = make(map[string]string)
	}
	s := namespaced(hc.runtimeID, contract)
	hc.names[contract] = s
	return s
}

// judgeHeld routes the held calls of a session again.
func (h *Host) judgeHeld(s *session, now time.Time) {
	for c := s.active.first; c != nil; {
		next := c.next
		if c.state == callHeld {
			h.judgeCall(c, now)
		}
		c = next
	}
}

func (h *Host) judgeCall(c *hostCall, now time.Time) {
	rt, err := h.place(c.s, c.contract, c.pin, c.tried)
	switch {
	case err == nil:
		h.dispatch(c, rt, now)
	case err.Reason() == ReasonOverloaded || !c.s.outstanding(c.pin):
		h.turnDown(c, err, now)
	}
}

// turnDown ends a call that does not run.
func (h *Host) turnDown(c *hostCall, err *Error, now time.Time) {
	h.stats.Rejected++
	if h.opts.Audit != nil {
		h.audit(now, c.event("call.refused", err), nil)
	}
	h.finish(c, err, "", false, now)
}

// lost handles a call whose Runtime has disconnected (ALT-D24).
func (h *Host) lost(c *hostCall, now time.Time) {
	if c.contract.Idempotent && c.pin == "" && c.asm.Expected() == 0 && !c.failedOver {
		if c.rt.remote != nil {
			c.tried = append(c.tried, c.rt.remote.to)
		}
		if rt, err := h.place(c.s, c.contract, "", c.tried); err == nil {
			c.failedOver = true
			h.timers.stop(&c.gap)
			h.dispatch(c, rt, now)
			return
		}
	}
	h.fail(c, errDisconnected(), "", now)
}

func errDisconnected() *Error {
	return NewError(ErrRuntimeUnavailable, ReasonDisconnected, "the Runtime of the call is gone")
}
