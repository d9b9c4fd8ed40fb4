// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package altar

import (
	"maps"
	"slices"
	"time"
)

// A registry lists the Runtimes that fulfil each contract, in one session (ALT-113) or in all
// sessions with equal fulfilments. It is immutable: a change makes a copy (see with), so that
// thousands of sessions share one registry.
type registry struct {
	byContract map[string][]registration
}

// A registration is one fulfilment. Its Runtime is absent from the loss of its connection, or from
// its leave, until the reconnected Runtime has announced its fulfilments (ALT-D24).
type registration struct {
	rt   *hostConn
	left time.Time // zero: it has not taken leave
}

// isConnected reports whether the Runtime can take calls.
func (g registration) isConnected() bool { return g.rt.alive && g.left.IsZero() }

// absentSince returns when a Runtime was lost.
func (g registration) absentSince() time.Time {
	if g.rt.alive || g.left.After(g.rt.lostAt) {
		return g.left
	}
	return g.rt.lostAt
}

// with returns a registry in which a Runtime fulfils the contracts, besides
// those it did before or instead of them (ALT-D15).
func (r *registry) with(rt *hostConn, names []string, replace bool) *registry {
	out := &registry{byContract: make(map[string][]registration, len(r.byContract)+len(names))}
	maps.Copy(out.byContract, r.byContract)
	for name, list := range r.byContract {
		stays := func(g registration) bool {
			return g.rt.runtimeID != rt.runtimeID || g.rt == rt && g.left.IsZero() && (!replace || slices.Contains(names, name))
		}
		if !slices.ContainsFunc(list, func(g registration) bool { return !stays(g) }) {
			continue
		}
		var kept []registration
		for _, g := range list {
			if stays(g) {
				kept = append(kept, g)
			}
		}
		out.set(name, kept)
	}
	for _, name := range names {
		list := out.byContract[name]
		if !slices.ContainsFunc(list, func(g registration) bool { return g.rt == rt }) {
			out.byContract[name] = append(slices.Clip(list), registration{rt: rt})
		}
	}
	return out
}

// withdraw returns a registry in which a Runtime has taken leave.
func (r *registry) withdraw(rt *hostConn, now time.Time) *registry {
	out := &registry{byContract: maps.Clone(r.byContract)}
	for name, list := range r.byContract {
		if i := slices.IndexFunc(list, func(g registration) bool { return g.rt == rt && g.left.IsZero() }); i >= 0 {
			list = slices.Clone(list)
			list[i].left = now
			out.byContract[name] = list
		}
	}
	return out
}

// without returns a copy of the registry without a Runtime.
func (r *registry) without(id string) *registry {
	out := &registry{byContract: make(map[string][]registration, len(r.byContract))}
	for name, list := range r.byContract {
		out.set(name, slices.DeleteFunc(slices.Clone(list), func(g registration) bool { return g.rt.runtimeID == id }))
	}
	return out
}

// keep returns a registry of those contracts that are left.
func (r *registry) keep(c *contracts) *registry {
	out := &registry{byContract: make(map[string][]registration, len(r.byContract))}
	for name, list := range r.byContract {
		if c.has(name) {
			out.byContract[name] = list
		}
	}
	return out
}

func (r *registry) set(name string, list []registration) {
	if len(list) == 0 {
		delete(r.byContract, name)
	} else {
		r.byContract[name] = list
	}
}

func (r *registry) equal(o *registry) bool {
	return maps.EqualFunc(r.byContract, o.byContract, slices.Equal[[]registration])
}

// connected returns how many of the Runtimes of a contract are connected.
func connected(list []registration) int {
	n := 0
	for _, g := range list {
		if g.isConnected() {
			n++
		}
	}
	return n
}

// waitsUntil returns until when a call waits for an absent Runtime: a period from the latest loss.
func (h *Host) waitsUntil(c *hostCall) (until time.Time) {
	for _, g := range c.s.registry().byContract[c.contract.Name] {
		if g.isConnected() || c.pin != "" && g.rt.runtimeID != c.pin {
			continue
		}
		if end := g.absentSince().Add(h.opts.Timing.RuntimeGracePeriod); end.After(until) {
			until = end
		}
	}
	return until
}

// waits reports whether a call that no Runtime can take waits for one, and makes it be judged again.
func (h *Host) waits(c *hostCall, now time.Time) bool {
	until := h.waitsUntil(c)
	if until.After(now) {
		h.timers.set(&c.gap, until)
		return true
	}
	return c.s.outstanding(c.pin)
}

// fulfils reports whether a Runtime has a fulfilment here.
func (r *registry) fulfils(rt *hostConn) bool {
	for _, list := range r.byContract {
		for _, g := range list {
			if g.rt == rt {
				return true
			}
		}
	}
	return false
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
// for it, at most for the time that its contract allots. An index out of range means 0.
type Router interface {
	Route(r *RouteRequest, candidates []Candidate) int
}

// RouterFunc is an adapter of a function to a [Router].
type RouterFunc func(r *RouteRequest, candidates []Candidate) int

// Route calls f.
func (f RouterFunc) Route(r *RouteRequest, candidates []Candidate) int { return f(r, candidates) }

// RoundRobinRouter is the [RouterFunc] that a Host uses where no other is named:
// each in turn, for each session and contract.
func RoundRobinRouter(r *RouteRequest, candidates []Candidate) int {
	return int(r.DispatchCount % uint64(len(candidates)))
}

// LeastBusyRouter is a [RouterFunc] that takes the Runtime with the fewest calls
// in flight, in turn where several have equally few.
func LeastBusyRouter(r *RouteRequest, candidates []Candidate) int {
	start := RoundRobinRouter(r, candidates)
	best := start
	for i := range candidates {
		if k := (start + i) % len(candidates); candidates[k].InFlight < candidates[best].InFlight {
			best = k
		}
	}
	return best
}

// StickyRouter is a [RouterFunc] that keeps the same Runtime for a session and contract while it is
// a candidate.
func StickyRouter(*RouteRequest, []Candidate) int { return 0 }

// A choice is the Runtime for a call, or those among which the Router chooses.
type choice struct {
	rt    *hostConn
	among []*hostConn
}

// route chooses a connected Runtime for a contract in a session (ALT-D24). The error is the reason
// if there is no candidate.
func (h *Host) route(s *session, c *contract, pin string, size int) (choice, *Error) {
	list := s.registry().byContract[c.Name]
	if pin != "" {
		for _, g := range list {
			if g.rt.runtimeID != pin {
				continue
			}
			switch {
			case !g.rt.alive:
				return choice{}, errRuntimeDown()
			case !g.isConnected():
				return choice{}, errNotFulfilled()
			case h.overloaded(g.rt, size):
				return choice{}, errOverloaded()
			}
			return choice{rt: g.rt}, nil
		}
		return choice{}, errNotFulfilled()
	}
	n := connected(list)
	if n == 0 {
		if slices.ContainsFunc(list, func(g registration) bool { return !g.rt.alive }) {
			return choice{}, errRuntimeDown()
		}
		return choice{}, errNotFulfilled()
	}
	// If all candidates are avoided because they fail, none is: that is no reason to refuse a call.
	hasFailed := false // Runtimes that fail count, too
	free := h.available(list, size, hasFailed)
	if free == 0 {
		hasFailed = true
		free = h.available(list, size, hasFailed)
	}
	if free == 0 {
		return choice{}, errOverloaded()
	}
	k := s.dispatched(c.Name)
	if h.opts.Router != nil {
		return choice{among: h.candidates(list, size, hasFailed)}, nil
	}
	if free == n {
		i := int(k % uint64(n))
		for _, g := range list {
			if !g.isConnected() {
				continue
			}
			if i == 0 {
				if h.avoided(g.rt, size, hasFailed) {
					break
				}
				return choice{rt: g.rt}, nil
			}
			i--
		}
	}
	// Some have reached their limit: choose among the rest.
	var rest []*hostConn
	for _, g := range list {
		if g.isConnected() {
			rest = append(rest, g.rt)
		}
	}
	for i := range rest {
		if rt := rest[(int(k%uint64(n))+i)%n]; !h.avoided(rt, size, hasFailed) {
			return choice{rt: rt}, nil
		}
	}
	return choice{}, errOverloaded()
}

// available returns the number of Runtimes for a call with parameters of this size: of all that have
// space if hasFailed is set, else of those that are not avoided.
func (h *Host) available(list []registration, size int, hasFailed bool) int {
	n := 0
	for _, g := range list {
		if g.isConnected() && !h.avoided(g.rt, size, hasFailed) {
			n++
		}
	}
	return n
}

func (h *Host) candidates(list []registration, size int, hasFailed bool) []*hostConn {
	var conns []*hostConn
	for _, g := range list {
		if g.isConnected() && !h.avoided(g.rt, size, hasFailed) {
			conns = append(conns, g.rt)
		}
	}
	return conns
}

// A routing is a call that the Router chooses a Runtime for, without the lock of the Host.
type routing struct {
	c          *hostCall
	among      []*hostConn
	request    RouteRequest
	candidates []Candidate
}

// assign dispatches a call to the chosen Runtime, or makes the Router choose after unlock.
func (h *Host) assign(c *hostCall, to choice, now time.Time) {
	if to.rt != nil {
		h.dispatch(c, to.rt, now)
		return
	}
	r := &routing{c: c, among: to.among, request: RouteRequest{c.s.id, c.contract.Name, c.s.dispatched(c.contract.Name)}}
	for _, rt := range to.among {
		r.candidates = append(r.candidates, Candidate{rt.runtimeID, rt.running})
	}
	h.unhold(c)
	c.state, c.rt, c.routing = callHeld, nil, r
	c.s.count(c.contract.Name)
	h.timers.set(&c.deadline, now.Add(c.limit)) // of the Router
	h.routings = append(h.routings, r)
}

// askRouter calls the Router for a call, and dispatches the call. If the Runtime has left by then,
// the call is routed again.
func (h *Host) askRouter(r *routing) {
	i := 0
	_ = h.guard("Router", func() error {
		i = h.opts.Router.Route(&r.request, r.candidates)
		return nil
	})
	if i < 0 || i >= len(r.among) {
		i = 0
	}
	now := h.lock()
	defer h.unlock()
	c, rt := r.c, r.among[i]
	if c.state != callHeld || c.routing != r {
		return // the call has ended
	}
	h.timers.stop(&c.deadline)
	c.routing = nil
	isCandidate := slices.ContainsFunc(c.s.registry().byContract[c.contract.Name], func(g registration) bool {
		return g.rt == rt && g.isConnected()
	})
	if !isCandidate || h.overloaded(rt, len(c.normal)) {
		h.judgeCall(c, now)
		return
	}
	c.isCounted = true
	h.dispatch(c, rt, now)
}

func (h *Host) overloaded(rt *hostConn, size int) bool {
	return rt.running >= h.opts.Limits.MaxConcurrentPerRuntime || rt.remote == nil && !rt.out.hasSpace(rt.limit, size)
}

// avoided reports whether calls without a pinned Runtime should use another Runtime. If hasFailed is set,
// failures do not matter.
func (h *Host) avoided(rt *hostConn, size int, hasFailed bool) bool {
	return h.overloaded(rt, size) || !hasFailed && rt.breaker.IsTripped() && rt.breaker.IsOpen(time.Now())
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
	if hc.alive && !hc.isClosed {
		hc.h.requestAll(hc, true, now)
	}
}

// fulfill registers the fulfilments of a Runtime (ALT-132, ALT-D15).
func (h *Host) fulfill(hc *hostConn, m *FulfillTools) {
	h.lock()
	if !hc.alive {
		h.unlock()
		return
	}
	if m.SessionID != AllSessions && h.sessions.byID[m.SessionID] == nil {
		h.refuseRequest(hc, m, m.SessionID, errUnknownSession(), time.Now())
		h.unlock()
		return
	}
	manifest := h.manifest
	h.unlock()

	// Call the hook without h.mu.
	ack := &AcknowledgeFulfillment{SessionID: m.SessionID, Fulfilled: []string{}, Rejected: []RejectedTool{}}
	var names []string
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
			ack.Fulfilled = append(ack.Fulfilled, namespaced(hc.runtimeID, c.Name))
		}
	}

	if err := h.keepFulfillment(hc, m, names); err != nil {
		now := h.lock()
		h.answer(hc, m, err)
		if hc.alive && !hc.isClosed {
			h.timers.set(&hc.refulfill, now.Add(refulfillDelay))
		}
		h.unlock()
		return
	}
	now := h.lock()
	defer h.unlock()
	if !hc.alive {
		return
	}
	names = slices.DeleteFunc(names, func(name string) bool { return !h.manifest.has(name) }) // the manifest may have been replaced
	change := func(r *registry) *registry {
		if m.Replace && len(m.ToolNames) == 0 {
			return r.withdraw(hc, now)
		}
		return r.with(hc, names, m.Replace)
	}
	one := h.sessions.byID[m.SessionID]
	switch {
	case m.SessionID == AllSessions:
		hc.wildcard = true
		h.changeWildcard(change)
	case one == nil:
		h.refuseRequest(hc, m, m.SessionID, errUnknownSession(), now)
		return
	default:
		h.setRegistry(one, change(one.registry()))
	}
	h.reply(hc, m, ack)
	if h.opts.Audit != nil {
		for _, name := range names {
			h.auditLocked(now, &AuditRecord{Operation: "fulfillment.accepted", RuntimeID: hc.runtimeID, SessionID: m.SessionID, Contract: name}, hc)
		}
		for _, r := range ack.Rejected {
			h.auditLocked(now, &AuditRecord{Operation: "fulfillment.refused", RuntimeID: hc.runtimeID, SessionID: m.SessionID, Contract: r.ToolName, Error: r.Error}, hc)
		}
	}
	if one != nil {
		h.removeInquiry(one.inquiries, hc)
		h.judgeHeld(one, now)
		return
	}
	h.appendSettled(nil, hc)
	h.judgeAll(now)
}

// registry returns the fulfilments in a session.
func (s *session) registry() *registry {
	if s.own != nil {
		return s.own
	}
	return s.h.wildcard
}

// setRegistry sets the fulfilments in a session. Most sessions have those of all sessions.
func (h *Host) setRegistry(s *session, r *registry) {
	if r == h.wildcard || r.equal(h.wildcard) {
		s.own = nil
		delete(h.special, s)
		return
	}
	s.own = r
	h.special[s] = true
}

// changeWildcard changes the fulfilments in all sessions.
func (h *Host) changeWildcard(change func(r *registry) *registry) {
	h.wildcard = change(h.wildcard)
	for s := range h.special {
		h.setRegistry(s, change(s.own))
	}
}

// checkFulfillment decides about one name of a fulfilment.
func (h *Host) checkFulfillment(hc *hostConn, sessionID string, manifest *contracts, tool string) (*contract, *Error) {
	name, pin, err := resolveTool(manifest.has, tool)
	if err != nil {
		return nil, Errorf(ErrToolNotFound, ReasonUnknownContract, "no contract has this name")
	}
	if pin != "" && pin != hc.runtimeID {
		return nil, Errorf(ErrAuthorizationFailed, reasonForeignNamespace, "the name belongs to another Runtime")
	}
	c := manifest.byName[name]
	if h.opts.Auth.FulfillmentAuthorizer != nil {
		err := h.guard("FulfillmentAuthorizer", func() error {
			return h.opts.Auth.FulfillmentAuthorizer(h.ctx, &FulfillmentRequest{Principal: hc.identity, RuntimeID: hc.runtimeID, SessionID: sessionID, Contract: c.Contract})
		})
		if err != nil {
			return nil, h.refusal("FulfillmentAuthorizer", err, reasonNotPermitted, "the Runtime may not serve this tool")
		}
	}
	if c.Streaming && !hc.can(CapStreaming) {
		return nil, Errorf(ErrInvalidParameters, reasonCapabilityMissing, "the Runtime did not announce streaming")
	}
	return c, nil
}

// requestAll requests the fulfilments of a Runtime in all sessions. A standing Runtime sends them
// after its handshake unasked (ALT-D15).
func (h *Host) requestAll(rt *hostConn, isReload bool, now time.Time) {
	if rt.can(CapStanding) {
		if isReload {
			h.send(rt, &RequestFulfillment{SessionID: AllSessions})
		}
		h.expect(h.inquiries, nil, rt, now)
		return
	}
	for s := h.sessions.first; s != nil; s = s.next {
		h.requestFulfillment(rt, s, now)
	}
}

// requestFulfillment requests the fulfilments of a Runtime in a session (ALT-111).
func (h *Host) requestFulfillment(rt *hostConn, s *session, now time.Time) {
	h.send(rt, &RequestFulfillment{SessionID: s.id})
	s.expect(h, rt, now)
}
