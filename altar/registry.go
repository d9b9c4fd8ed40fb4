// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package altar

import (
	"slices"
	"time"

	"github.com/fivewire/fivewire/altar/internal/core"
)

// waits reports whether a call that no Runtime can take waits for one, and makes it be judged again.
func (h *Host) waits(c *hostCall, now time.Time) bool {
	until, waits := h.waitsUntil(c, now)
	c.Wait(until)
	return waits
}

// waitsUntil reports whether a call that no Runtime can take waits for one, and until when it waits for an
// absent one.
func (h *Host) waitsUntil(c *hostCall, now time.Time) (until time.Time, waits bool) {
	until = c.s.Registry().AbsentSince(c.contract.Name, c.pin).Add(h.opts.Timing.RuntimeGracePeriod)
	if until.After(now) {
		return until, true
	}
	return time.Time{}, c.s.IsExpected(c.pin)
}

// A Candidate is a Runtime that could take a call.
type Candidate struct {
	RuntimeID string
	InFlight  int // calls it is running
}

// A RouteRequest is the call that a [Router] chooses a Runtime for.
type RouteRequest struct {
	SessionID     string
	Contract      string
	DispatchCount uint64 // calls of this session and contract that were routed before (ALT-D24)
}

// A Router chooses a Runtime for a call by bare name. It is called concurrently, and the call waits
// for it, at most for the time that its contract allots. An index out of range means 0. Index 0 is the same
// Runtime for each call of a session and contract, while that Runtime is a candidate.
type Router func(r *RouteRequest, candidates []Candidate) int

// roundRobin chooses each Runtime in turn, for each session and contract.
func roundRobin(r *RouteRequest, candidates []Candidate) int {
	return int(r.DispatchCount % uint64(len(candidates)))
}

// LeastBusyRouter is a [Router] that takes the Runtime with the fewest calls
// in flight, in turn where several have equally few.
func LeastBusyRouter(r *RouteRequest, candidates []Candidate) int {
	start := roundRobin(r, candidates)
	best := start
	for i := range candidates {
		if k := (start + i) % len(candidates); candidates[k].InFlight < candidates[best].InFlight {
			best = k
		}
	}
	return best
}

// A choice is the Runtime for a call, or those among which the Router chooses.
type choice struct {
	rt    *hostConn
	among []*core.Runtime
}

// place chooses the Runtime for a call: one of this Host or, if there is none, one of another Host. The error
// is the reason if there is no candidate.
func (h *Host) place(c *hostCall, now time.Time) (choice, *Error) {
	d := core.Demand{Contract: c.contract.Name, Pin: c.pin, Turn: c.s.Turn(c.contract.Name), Now: now}
	d.HasSpace = func(rt *core.Runtime) bool { return h.hasSpace(connOf(rt), c) }
	rt, lack := c.s.Registry().Route(&d)
	switch {
	case rt != nil && c.pin == "" && h.opts.Router != nil:
		return choice{among: c.s.Registry().Candidates(&d)}, nil
	case rt != nil:
		return choice{rt: connOf(rt)}, nil
	}
	if c.s.Kind != core.GuestSession {
		if offer, ok := h.offers.Next(&d, c.tried); ok {
			return choice{rt: h.remoteConn(offer)}, nil
		}
	}
	switch lack {
	case core.NotConnected:
		return choice{}, errRuntimeDown()
	case core.NoSpace:
		return choice{}, errOverloaded()
	}
	return choice{}, errNotFulfilled()
}

// connOf returns the connection of a connected Runtime.
func connOf(rt *core.Runtime) *hostConn { return rt.Data.(*hostConn) }

// hasSpace reports whether a Runtime takes a further call.
func (h *Host) hasSpace(hc *hostConn, c *hostCall) bool {
	return hc.runtime.Running() < h.opts.Limits.MaxConcurrentPerRuntime && hc.out.hasSpace(hc.limit, len(c.normal))
}

// A routing is a call that the Router chooses a Runtime for, without the lock of the Host.
type routing struct {
	c          *hostCall
	among      []*core.Runtime
	request    RouteRequest
	candidates []Candidate
}

// assign dispatches a call to the chosen Runtime, or makes the Router choose after unlock.
func (h *Host) assign(c *hostCall, to choice, now time.Time) {
	if to.rt != nil {
		h.dispatch(c, to.rt, now)
		return
	}
	r := &routing{c: c, among: to.among, request: RouteRequest{c.s.ID, c.contract.Name, c.s.Turn(c.contract.Name)}}
	for _, rt := range to.among {
		r.candidates = append(r.candidates, Candidate{rt.ID, rt.Running()})
	}
	c.routing = r
	c.s.CountTurn(c.contract.Name)
	c.Choose(now)
	h.routings = append(h.routings, r)
}

// askRouter calls the Router for a call, and dispatches the call. If the Runtime has left by then,
// the call is routed again.
func (h *Host) askRouter(r *routing) {
	i := 0
	_ = h.guard("Router", func() error {
		i = h.opts.Router(&r.request, r.candidates)
		return nil
	})
	if i < 0 || i >= len(r.among) {
		i = 0
	}
	now := h.lock()
	defer h.unlock()
	c, rt := r.c, r.among[i]
	if c.State() != core.Held || c.routing != r {
		return // the call has ended
	}
	c.EndChoice()
	c.routing = nil
	if !c.s.Registry().CanTake(c.contract.Name, rt) || !h.hasSpace(connOf(rt), c) {
		h.judgeCall(c, now)
		return
	}
	c.isCounted = true
	h.dispatch(c, connOf(rt), now)
}

func errRuntimeDown() *Error {
	return Errorf(ErrRuntimeUnavailable, ReasonRuntimeDown, "the Runtime of this tool is not connected")
}

func errNotFulfilled() *Error {
	return Errorf(ErrToolNotFound, ReasonNotFulfilled, "no Runtime fulfils this tool in this session")
}

func errOverloaded() *Error {
	return Errorf(ErrRuntimeUnavailable, ReasonOverloaded, "too many calls are running")
}

// refulfillDelay is the time until a Host requests the fulfilments that it could not store.
const refulfillDelay = 2 * time.Second

// requestAgain requests the fulfilments of a Runtime after a failure of the store.
func (hc *hostConn) requestAgain(now time.Time) {
	if hc.runtime.IsConnected && !hc.isClosed {
		hc.h.requestAll(hc, true, now)
	}
}

// fulfill registers the fulfilments of a Runtime (ALT-132, ALT-D15).
func (h *Host) fulfill(hc *hostConn, m *FulfillTools) {
	h.lock()
	if !hc.runtime.IsConnected {
		h.unlock()
		return
	}
	if m.SessionID != allSessions && h.sessions.Find(m.SessionID) == nil {
		h.refuseRequest(hc, m, m.SessionID, errUnknownSession(), time.Now())
		h.unlock()
		return
	}
	manifest := h.manifest
	h.unlock()
	names, ack := h.checkFulfillments(hc, m, manifest)
	err := h.keepFulfillment(hc, m, names)
	now := h.lock()
	defer h.unlock()
	switch {
	case err != nil:
		h.answer(hc, m, err)
		if hc.runtime.IsConnected && !hc.isClosed {
			h.timers.Set(&hc.refulfill, now.Add(refulfillDelay))
		}
	case hc.runtime.IsConnected:
		h.register(hc, m, names, ack, now)
	}
}

// checkFulfillments decides about the names of a fulfilment. It is called without h.mu, because of the hook.
func (h *Host) checkFulfillments(hc *hostConn, m *FulfillTools, manifest *contracts) (names []string, ack *AcknowledgeFulfillment) {
	ack = &AcknowledgeFulfillment{SessionID: m.SessionID, Fulfilled: []string{}, Rejected: []RejectedTool{}}
	seen := make(map[string]bool, len(m.ToolNames))
	for _, tool := range m.ToolNames {
		c, err := h.checkFulfillment(hc, m.SessionID, manifest, tool)
		switch {
		case err != nil:
			if !seen["!"+tool] {
				seen["!"+tool] = true
				ack.Rejected = append(ack.Rejected, RejectedTool{ToolName: tool, Error: err})
			}
		case !seen[c.Name]:
			seen[c.Name] = true
			names = append(names, c.Name)
			ack.Fulfilled = append(ack.Fulfilled, namespaced(hc.runtime.ID, c.Name))
		}
	}
	return names, ack
}

// register makes a Runtime a candidate for the accepted contracts, and routes the waiting calls again.
func (h *Host) register(hc *hostConn, m *FulfillTools, names []string, ack *AcknowledgeFulfillment, now time.Time) {
	names = slices.DeleteFunc(names, func(name string) bool { return !h.manifest.has(name) }) // the manifest may have been replaced
	change := func(r *core.Registry) *core.Registry {
		if m.Replace && len(m.ToolNames) == 0 {
			return r.Withdraw(&hc.runtime, now)
		}
		return r.With(&hc.runtime, names, m.Replace)
	}
	one := h.sessions.Find(m.SessionID)
	if one == nil && m.SessionID != allSessions {
		h.refuseRequest(hc, m, m.SessionID, errUnknownSession(), now)
		return
	}
	hc.wildcard = hc.wildcard || one == nil
	h.sessions.Change(one, change)
	h.reply(hc, m, ack)
	h.auditFulfillment(hc, m, names, ack, now)
	h.routeAgain(h.sessions.Responded(one, &hc.runtime), now)
}

func (h *Host) auditFulfillment(hc *hostConn, m *FulfillTools, names []string, ack *AcknowledgeFulfillment, now time.Time) {
	if h.opts.Audit == nil {
		return
	}
	for _, name := range names {
		h.auditLocked(now, &AuditRecord{Operation: "fulfillment.accepted", RuntimeID: hc.runtime.ID, SessionID: m.SessionID, Contract: name}, hc)
	}
	for _, r := range ack.Rejected {
		h.auditLocked(now, &AuditRecord{Operation: "fulfillment.refused", RuntimeID: hc.runtime.ID, SessionID: m.SessionID, Contract: r.ToolName, Error: r.Error}, hc)
	}
}

// checkFulfillment decides about one name of a fulfilment.
func (h *Host) checkFulfillment(hc *hostConn, sessionID string, manifest *contracts, tool string) (*contract, *Error) {
	name, pin, err := resolveTool(manifest.has, tool)
	if err != nil {
		return nil, Errorf(ErrToolNotFound, ReasonUnknownContract, "no contract has this name")
	}
	if pin != "" && pin != hc.runtime.ID {
		return nil, Errorf(ErrAuthorizationFailed, reasonForeignNamespace, "the name belongs to another Runtime")
	}
	c := manifest.byName[name]
	if h.opts.Auth.FulfillmentAuthorizer != nil {
		err := h.guard("FulfillmentAuthorizer", func() error {
			return h.opts.Auth.FulfillmentAuthorizer(h.ctx, &FulfillmentRequest{Principal: hc.identity, RuntimeID: hc.runtime.ID, SessionID: sessionID, Contract: c.Contract})
		})
		if err != nil {
			return nil, h.refusal("FulfillmentAuthorizer", err, reasonNotPermitted, "the Runtime may not serve this tool")
		}
	}
	if c.Streaming && !hc.can(capStreaming) {
		return nil, Errorf(ErrInvalidParameters, reasonCapabilityMissing, "the Runtime did not announce streaming")
	}
	return c, nil
}

// requestAll requests the fulfilments of a Runtime in all sessions. A standing Runtime sends them
// after its handshake unasked (ALT-D15).
func (h *Host) requestAll(rt *hostConn, isReload bool, now time.Time) {
	if rt.can(capStanding) {
		if isReload {
			h.send(rt, &RequestFulfillment{SessionID: allSessions})
		}
		h.sessions.Expect(nil, &rt.runtime, now)
		return
	}
	for s := range h.sessions.All() {
		h.requestFulfillment(rt, s, now)
	}
}

// requestFulfillment requests the fulfilments of a Runtime in a session (ALT-111).
func (h *Host) requestFulfillment(rt *hostConn, s *core.Session, now time.Time) {
	h.send(rt, &RequestFulfillment{SessionID: s.ID})
	h.sessions.Expect(s, &rt.runtime, now)
}
