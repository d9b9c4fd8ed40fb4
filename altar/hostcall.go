// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package altar

import (
	"cmp"
	"encoding/json"
	"time"

	"github.com/fivewire/fivewire/altar/internal/core"
	"github.com/fivewire/fivewire/internal/budget"
)

// A hostCall is one invocation in one session, from the moment that all checks
// have passed until its outcome is forgotten (section e, call).
type hostCall struct {
	core.Call

	h        *Host
	s        *session
	contract *contract
	id       string
	pin      string // runtime id that the caller asked for
	toolName string
	print    core.Fingerprint // of the parameters as received; a repeat has the same one
	normal   json.RawMessage  // as they are dispatched
	metadata map[string]string
	corr     string // of the first request

	claim     *claim        // nil without a store
	isCounted bool          // as a turn, before the dispatch
	routing   *routing      // while the Router chooses
	attempt   int           // of another Host, see cluster.Call
	tried     []core.Offer  // that refused it
	isTouched bool          // the base of the stream may have moved, see Host.grant
	at        []*attachment // also after the end, while readers do not have all chunks
	first     attachment    // the first of at, and the list with it alone
	firstAt   [1]*attachment

	result  *ToolResult // how it ended, if not with a chunk
	work    budget.Hold // of one call
	memory  budget.Hold // of the bytes of the call
	charged int64       // bytes of memory
}

// callOf returns the call of the core with its additions.
func callOf(c *core.Call) *hostCall {
	if c == nil {
		return nil
	}
	return c.Data.(*hostCall)
}

// rt returns the connection of the Runtime that the call was dispatched to last, or nil.
func (c *hostCall) rt() *hostConn {
	if c.Runtime() == nil {
		return nil
	}
	return connOf(c.Runtime())
}

// An attachment is a connection that waits for a call.
type attachment struct {
	hc       *hostConn
	c        *hostCall
	id       string // of c
	corr     string
	from     int64 // chunks before are not wanted
	reader   core.Reader
	stall    core.Timer // runs while a chunk waits for the connection
	isQueued bool       // in hc.stalled
	collect  bool       // chunks become one result (ALT-D29)
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
	c.Expire(now)
	h.fail((*hostCall)(c), Errorf(ErrExecutionTimeout, ReasonDeadline, "the tool did not finish in time"), "timeout", now)
}

func (c *callGap) fired(now time.Time) {
	h := c.h
	if c.State() == core.Held { // it waits for an absent Runtime
		h.judgeCall((*hostCall)(c), now)
		return
	}
	h.fail((*hostCall)(c), errChunkGap(), "protocol_error", now)
}

func (c *callGone) fired(now time.Time) {
	h := c.h
	h.fail((*hostCall)(c), Errorf(ErrExecutionFailed, reasonClientGone, "the call has no waiting client"), string(reasonClientGone), now)
}

// toolCall makes the checks of ALT-D23 and dispatches, holds or answers a call.
func (h *Host) toolCall(hc *hostConn, m *ToolCall) {
	now := h.lock()
	hc.lastReceived = now
	s, c, pin, err := h.resolveCall(hc, m, now)
	if hc.isClosed || err != nil {
		h.refused(hc, m, c, err, now)
		h.unlock()
		return
	}
	h.unlock()
	made := &struct { // allocated together
		request AuthorizeRequest
		call    hostCall
	}{
		AuthorizeRequest{Principal: hc.identity, Session: s.info, Contract: c.Contract, RuntimeID: pin},
		hostCall{h: h, s: s, contract: c, id: m.InvocationID, pin: pin, toolName: m.ToolName, metadata: m.Metadata, corr: m.CorrelationID},
	}
	call := &made.call
	normal, unfit := c.check.normalized(m.Parameters)
	if unfit == nil {
		made.request.Parameters = normal
	}
	if hc.peer != nil { // another Host has asked its own Authorizer
		call.toolName, call.attempt = hc.peer.ToolName, hc.peer.Attempt
	} else if denied := h.guard("Authorizer", func() error { return h.opts.Auth.Authorizer.Authorize(h.ctx, &made.request) }); denied != nil {
		err = h.refusal("Authorizer", denied, ReasonDenied, "the caller may not use this tool in this session")
	}
	call.normal, call.print = normal, h.fingerprint(call.toolName, m.Parameters)

	now = h.lock()
	defer h.unlock()
	isRepeat := false
	switch {
	case hc.isClosed:
		return
	case s.IsEnded():
		err = errUnknownSession()
	case err == nil:
		isRepeat, err = h.repeatOf(hc, call, m, now)
	}
	switch {
	case err != nil:
		h.refused(hc, m, c, err, now)
	case isRepeat:
		h.slide(s, now)
	default:
		h.startCall(hc, call, m, unfit, now)
	}
}

// resolveCall finds the session and the contract of a call, and the Runtime that it is pinned to.
func (h *Host) resolveCall(hc *hostConn, m *ToolCall, now time.Time) (s *session, c *contract, pin string, err *Error) {
	if hc.peer != nil {
		s, err = h.guest(hc.peer, now)
	} else if err = h.clientFault(hc); err == nil {
		if s = h.own(hc, m.SessionID); s == nil {
			err = errUnknownSession()
		}
	}
	if err != nil {
		return nil, nil, "", err
	}
	name, pin, fault := resolveTool(h.manifest.has, m.ToolName)
	if fault != nil {
		return nil, nil, "", asError(fault)
	}
	return s, h.manifest.byName[name], pin, nil
}

// repeatOf answers a call whose invocation id was used before in its session, and reports whether it was.
func (h *Host) repeatOf(hc *hostConn, c *hostCall, m *ToolCall, now time.Time) (isRepeat bool, err *Error) {
	if before := callOf(c.s.Call(c.id)); before != nil {
		return true, h.repeat(hc, before, m, c.print, now)
	}
	if old := c.s.Records.Find(c.id); old != nil && !h.superseded(hc, old) {
		return true, h.replayRecord(hc, c.s, old, m, c.print, now)
	}
	return false, nil
}

// startCall dispatches, holds or refuses a call whose invocation id is new.
func (h *Host) startCall(hc *hostConn, c *hostCall, m *ToolCall, unfit error, now time.Time) {
	err := h.admitCall(hc, c.s, m, unfit)
	stored := h.claims(c) && hc.peer == nil
	finds := stored && hc.waiting[c.id] == nil // a record in the store precedes any other error (ALT-D23)
	if err == nil || finds {
		h.initCall(c, m)
		err = cmp.Or(err, h.reserveCall(c))
	}
	if err != nil && !finds {
		h.refused(hc, m, c.contract, err, now)
		return
	}
	var to choice
	if !stored {
		if to, err = h.place(c, now); err != nil && (err.Reason() == ReasonOverloaded || !h.waits(c, now)) {
			c.work.Release()
			c.memory.Release()
			h.refused(hc, m, c.contract, err, now)
			return
		}
	}
	c.s.Enter(&c.Call, c.id)
	h.stats.InFlight++
	h.slide(c.s, now)
	h.attach(hc, c, m, now)
	switch {
	case stored:
		h.claimCall(c, err, now)
	case to.rt != nil || to.among != nil:
		h.assign(c, to, now)
	default:
		c.s.Hold(&c.Call)
	}
}

// initCall makes a new call a held one.
func (h *Host) initCall(c *hostCall, m *ToolCall) {
	var stream *core.Stream
	if c.contract.Streaming {
		stream = core.NewStream(h.opts.Limits.MaxStoredChunks)
		stream.IsForwarded = c.s.Kind == core.GuestSession
	}
	c.Call = core.NewCall(core.CallLimits{
		Limit: cmp.Or(c.contract.Timeout, h.opts.Timing.CallTimeout), Bound: time.Duration(min(m.TimeoutMS, maxTimeout.Milliseconds())) * time.Millisecond,
		IsIdempotent: c.contract.Idempotent, IsPinned: c.pin != "", Params: len(c.normal),
	}, stream, &h.timers)
	c.Data, c.Deadline.Event, c.Gap.Event, c.Grace.Event = c, (*callDeadline)(c), (*callGap)(c), (*callGone)(c)
}

// admitCall makes the checks after that for a repeat.
func (h *Host) admitCall(hc *hostConn, s *session, m *ToolCall, unfit error) *Error {
	switch {
	case h.draining:
		return errDraining()
	case unfit != nil:
		return asError(unfit)
	}
	other, open := callOf(h.sessions.InUse(m.InvocationID)), h.records.Open(m.InvocationID)
	if other != nil && other.s != s || open != nil && open.Scope != &s.Records {
		return formFault(reasonInvocationIDInUse, "", "the invocation id is in use elsewhere")
	}
	if m.ResumeFrom > 0 || hc.peer != nil && hc.peer.Join {
		return formFault(reasonUnknownInvocation, "", "there is no such call to resume")
	}
	return nil
}

// reserveCall charges a call to its session.
func (h *Host) reserveCall(c *hostCall) *Error {
	work, err := c.s.scope.Reserve(budget.Work, 1)
	if err != nil {
		return overBudget(ErrRuntimeUnavailable, ReasonOverloaded, err)
	}
	c.charged = c.Bytes()
	memory, err := c.s.scope.Reserve(budget.Memory, c.charged)
	if err != nil {
		work.Release()
		return overBudget(ErrRuntimeUnavailable, ReasonOverloaded, err)
	}
	c.work, c.memory = work, memory
	return nil
}

// charge charges the bytes that a call holds now.
func (c *hostCall) charge() *Error {
	n := c.Bytes()
	if n == c.charged {
		return nil
	}
	if err := c.memory.Resize(n); err != nil {
		return overBudget(ErrRuntimeUnavailable, ReasonOverloaded, err)
	}
	c.charged = n
	return nil
}

func errDraining() *Error { return Errorf(ErrInternal, ReasonDraining, "the Host is shutting down") }

// slide prolongs a session that is used, if it is that kind (ALT-D19).
func (h *Host) slide(s *session, now time.Time) {
	if h.opts.Timing.SlidingSessionTTL {
		h.timers.Set(&s.Expiry, now.Add(s.TTL))
		h.prolong(s)
	}
}

// refused answers a call that was not accepted. A nil error means that no response is due.
func (h *Host) refused(hc *hostConn, m *ToolCall, c *contract, err *Error, now time.Time) {
	if err == nil || hc.isClosed {
		return
	}
	h.stats.Rejected++
	if h.opts.Audit != nil && err.Reason() != reasonWrongRole {
		e := &AuditRecord{Operation: "call.refused", SessionID: m.SessionID, InvocationID: m.InvocationID, CorrelationID: m.CorrelationID, Error: err}
		if c != nil {
			e.Contract = c.Name
		}
		h.auditLocked(now, e, hc)
	}
	h.refuseCall(hc, m.InvocationID, m.header, err)
}

// refuseCall picks the carrier: a ToolResult would end the wrong call if this
// connection waits for one with that id (ALT-D02).
func (h *Host) refuseCall(hc *hostConn, id string, of header, err *Error) {
	isHTTP := hc.conn == nil && !hc.inProcess
	if hc.waiting[id] != nil || hc.peer != nil || isHTTP && err.Reason() == ReasonDraining {
		h.send(hc, &ErrorMessage{Err: err, header: of})
		return
	}
	h.send(hc, &ToolResult{InvocationID: id, Error: err, header: header{CorrelationID: of.CorrelationID}})
}

// attach makes a connection wait for a call. It returns nil if chunks that it wants are not kept.
func (h *Host) attach(hc *hostConn, c *hostCall, m *ToolCall, now time.Time) *attachment {
	a := &c.first
	if a.c != nil {
		a = &attachment{}
	}
	*a = attachment{hc: hc, c: c, id: c.id, corr: m.CorrelationID, from: m.ResumeFrom, collect: m.CollectChunks}
	a.stall = core.Timer{Event: a}
	credit := int64(core.NoCredit)
	if m.Credit != nil && !m.CollectChunks {
		credit = *m.Credit
	}
	if !c.Attach(&a.reader, m.ResumeFrom, credit, now) {
		return nil
	}
	h.touch(c)
	if a == &c.first {
		c.at = c.firstAt[:0]
	}
	if hc.waiting == nil {
		hc.waiting = make(map[string]*attachment)
	}
	hc.waiting[c.id] = a
	c.at = append(c.at, a)
	return a
}

// dispatch sends a call to a Runtime (ALT-116).
func (h *Host) dispatch(c *hostCall, rt *hostConn, now time.Time) {
	if c.pin == "" && !c.isCounted {
		c.s.CountTurn(c.contract.Name)
	}
	c.isCounted = false
	c.Dispatch(&rt.runtime, now)
	h.stats.Dispatched++
	if rt.remote != nil {
		h.forwardCall(c, rt, now)
	} else {
		h.sendCall(c, rt, now)
	}
	if h.opts.Audit != nil {
		h.auditLocked(now, c.event("call.dispatched", nil), nil)
	}
}

func (h *Host) sendCall(c *hostCall, rt *hostConn, now time.Time) {
	out := &ToolCall{
		InvocationID: c.id, SessionID: c.s.ID, ToolName: rt.toolName(c.contract.Name), Parameters: c.normal, Metadata: c.metadata,
		header: header{CorrelationID: c.corr},
	}
	if rt.can(capDeadlines) {
		out.TimeoutMS = c.Rest(now).Milliseconds()
	}
	if c.TakesCredit() {
		credit := c.Stream.Credit()
		out.Credit = &credit
	}
	h.send(rt, out)
}

func (c *hostCall) event(kind string, err *Error) *AuditRecord {
	e := &AuditRecord{Operation: kind, Principal: c.s.Principal.Name, Tenant: c.s.Principal.Tenant, SessionID: c.s.ID,
		InvocationID: c.id, CorrelationID: c.corr, Contract: c.contract.Name, Error: err}
	if rt := c.Runtime(); rt != nil {
		e.RuntimeID = rt.ID
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
	s := namespaced(hc.runtime.ID, contract)
	hc.names[contract] = s
	return s
}

// routeAgain routes held calls again.
func (h *Host) routeAgain(list []*core.Call, now time.Time) {
	for _, c := range list {
		if c.State() == core.Held {
			h.judgeCall(callOf(c), now)
		}
	}
}

func (h *Host) judgeCall(c *hostCall, now time.Time) {
	if c.routing != nil {
		return
	}
	to, err := h.place(c, now)
	switch {
	case err == nil && h.claims(c) && c.claim == nil:
		h.claimCall(c, nil, now) // it has waited without a record
	case err == nil:
		h.assign(c, to, now)
	case err.Reason() != ReasonOverloaded && h.waits(c, now):
		c.s.Hold(&c.Call)
	case c.HasFailedOver():
		h.fail(c, err, "", now) // it has run
	default:
		h.turnDown(c, err, now)
	}
}

// turnDown ends a call that does not run.
func (h *Host) turnDown(c *hostCall, err *Error, now time.Time) {
	h.stats.Rejected++
	h.auditLocked(now, c.event("call.refused", err), nil)
	h.finish(c, ending{err: err}, "", now)
}

// lost handles a call whose Runtime has disconnected (ALT-D24).
func (h *Host) lost(c *hostCall, now time.Time) {
	if c.CanFailOver() {
		if rt := c.rt(); rt.remote != nil {
			c.tried = append(c.tried, rt.remote.to)
		}
		if to, err := h.place(c, now); err == nil {
			c.FailOver()
			h.assign(c, to, now)
			return
		}
		if until, waits := h.waitsUntil(c, now); waits {
			c.FailOver()
			c.Wait(until)
			c.s.Hold(&c.Call)
			return
		}
	}
	h.fail(c, errDisconnected(), "", now)
}

func errDisconnected() *Error {
	return Errorf(ErrRuntimeUnavailable, ReasonDisconnected, "the Runtime of the call has disconnected")
}
