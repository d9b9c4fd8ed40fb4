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

// A registration is one fulfilment. It is down from the loss of its connection until the
// reconnected Runtime has announced its fulfilments (ALT-D24).
type registration struct {
	rt *hostConn
}

// with returns a registry in which a Runtime fulfils the contracts, besides
// those it did before or instead of them (ALT-D15).
func (r *registry) with(rt *hostConn, names []string, replace bool) *registry {
	out := &registry{byContract: make(map[string][]registration, len(r.byContract)+len(names))}
	maps.Copy(out.byContract, r.byContract)
	for name, list := range r.byContract {
		stays := func(g registration) bool {
			return g.rt.runtimeID != rt.runtimeID || g.rt == rt && (!replace || slices.Contains(names, name))
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
			out.byContract[name] = append(slices.Clip(list), registration{rt})
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
		if g.rt.alive {
			n++
		}
	}
	return n
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

// A Router chooses a Runtime for a call by bare name. It is called with the lock of the Host held,
// so it must return quickly and must not call the Host. An index out of range means 0.
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

// route chooses a connected Runtime for a contract in a session (ALT-D24). The error is the reason
// if there is no candidate.
func (h *Host) route(s *session, c *contract, pin string) (*hostConn, *Error) {
	list := s.reg.byContract[c.Name]
	if pin != "" {
		for _, g := range list {
			if g.rt.runtimeID != pin {
				continue
			}
			switch {
			case !g.rt.alive:
				return nil, errRuntimeDown()
			case h.overloaded(g.rt):
				return nil, errOverloaded()
			}
			return g.rt, nil
		}
		return nil, errNotFulfilled()
	}
	n := connected(list)
	if n == 0 {
		if len(list) > 0 {
			return nil, errRuntimeDown()
		}
		return nil, errNotFulfilled()
	}
	free := n
	if h.opts.Limits.MaxConcurrentPerRuntime > 0 || h.opts.Router != nil || h.opts.Limits.BreakerThreshold > 0 {
		free = 0
		for _, g := range list {
			if g.rt.alive && !h.avoided(g.rt) {
				free++
			}
		}
		if free == 0 {
			return nil, errOverloaded()
		}
	}
	k := s.dispatched(c.Name)
	if h.opts.Router != nil {
		return h.custom(s, c, list, k), nil
	}
	if free == n {
		i := int(k % uint64(n))
		for _, g := range list {
			if !g.rt.alive {
				continue
			}
			if i == 0 {
				if h.avoided(g.rt) {
					break
				}
				return g.rt, nil
			}
			i--
		}
	}
	// Some have reached their limit: choose among the rest.
	var rest []*hostConn
	for _, g := range list {
		if g.rt.alive {
			rest = append(rest, g.rt)
		}
	}
	for i := range rest {
		if rt := rest[(int(k%uint64(n))+i)%n]; !h.avoided(rt) {
			return rt, nil
		}
	}
	return nil, errOverloaded()
}

func (h *Host) custom(s *session, c *contract, list []registration, k uint64) *hostConn {
	var conns []*hostConn
	var candidates []Candidate
	for _, g := range list {
		if g.rt.alive && !h.avoided(g.rt) {
			conns = append(conns, g.rt)
			candidates = append(candidates, Candidate{g.rt.runtimeID, g.rt.running})
		}
	}
	i := 0
	_ = h.guard("Router", func() error {
		i = h.opts.Router.Route(&RouteRequest{SessionID: s.id, Contract: c.Name, DispatchCount: k}, candidates)
		return nil
	})
	if i < 0 || i >= len(conns) {
		i = 0
	}
	return conns[i]
}

func (h *Host) overloaded(rt *hostConn) bool {
	return h.opts.Limits.MaxConcurrentPerRuntime > 0 && rt.running >= h.opts.Limits.MaxConcurrentPerRuntime || rt.out.len() >= h.opts.Limits.RuntimeQueueLimit
}

// avoided reports whether calls without a pinned Runtime should use another Runtime.
func (h *Host) avoided(rt *hostConn) bool {
	return h.overloaded(rt) || h.opts.Limits.BreakerThreshold > 0 && rt.breaker.open(time.Now())
}

func errRuntimeDown() *Error {
	return NewError(ErrRuntimeUnavailable, ReasonRuntimeDown, "the Runtime of this tool is not connected")
}

func errNotFulfilled() *Error {
	return NewError(ErrToolNotFound, ReasonNotFulfilled, "no Runtime fulfils this tool in this session")
}

func errOverloaded() *Error {
	return NewError(ErrRuntimeUnavailable, ReasonOverloaded, "too many calls are running")
}

// fulfill registers the fulfilments of a Runtime (ALT-132, ALT-D15).
func (h *Host) fulfill(hc *hostConn, m *FulfillTools) {
	h.lock()
	if !hc.alive {
		h.unlock()
		return
	}
	if m.SessionID != AllSessions && h.sessions.byID[m.SessionID] == nil {
		h.answer(hc, m, errUnknownSession())
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

	now := h.lock()
	defer h.unlock()
	if !hc.alive {
		return
	}
	names = slices.DeleteFunc(names, func(name string) bool { return !h.manifest.has(name) }) // the manifest may have been replaced
	one := h.sessions.byID[m.SessionID]
	switch {
	case m.SessionID == AllSessions:
		hc.wildcard = true
		before := h.wildcard
		h.wildcard = before.with(hc, names, m.Replace)
		for s := h.sessions.first; s != nil; s = s.next {
			if s.reg == before {
				s.reg = h.wildcard
			} else {
				s.reg = s.reg.with(hc, names, m.Replace)
			}
		}
	case one == nil:
		h.answer(hc, m, errUnknownSession())
		return
	default:
		one.reg = one.reg.with(hc, names, m.Replace)
	}
	h.reply(hc, m, ack)
	if h.opts.Audit != nil {
		for _, name := range names {
			h.audit(now, &AuditRecord{Operation: "fulfillment.accepted", RuntimeID: hc.runtimeID, SessionID: m.SessionID, Contract: name}, hc.identity)
		}
		for _, r := range ack.Rejected {
			h.audit(now, &AuditRecord{Operation: "fulfillment.refused", RuntimeID: hc.runtimeID, SessionID: m.SessionID, Contract: r.ToolName, Error: r.Error}, hc.identity)
		}
	}
	if one != nil {
		one.removeInquiry(hc)
		h.judgeHeld(one, now)
		return
	}
	for s := h.sessions.first; s != nil; s = s.next {
		s.removeInquiry(hc)
		h.judgeHeld(s, now)
	}
}

// checkFulfillment decides about one name of a fulfilment.
func (h *Host) checkFulfillment(hc *hostConn, sessionID string, manifest *contracts, tool string) (*contract, *Error) {
	name, pin, err := ResolveTool(manifest.has, tool)
	if err != nil {
		return nil, NewError(ErrToolNotFound, ReasonUnknownContract, "no contract has this name")
	}
	if pin != "" && pin != hc.runtimeID {
		return nil, NewError(ErrAuthorizationFailed, ReasonForeignNamespace, "the name belongs to another Runtime")
	}
	c := manifest.byName[name]
	if h.opts.Auth.FulfillmentAuthorizer != nil {
		err := h.guard("FulfillmentAuthorizer", func() error {
			return h.opts.Auth.FulfillmentAuthorizer(h.ctx, &FulfillmentRequest{Principal: hc.identity, RuntimeID: hc.runtimeID, SessionID: sessionID, Contract: c.Contract})
		})
		if err != nil {
			return nil, h.refusal("FulfillmentAuthorizer", err, ReasonNotPermitted, "the Runtime may not serve this tool")
		}
	}
	if c.Streaming && !hc.can(CapStreaming) {
		return nil, NewError(ErrInvalidParameters, ReasonCapabilityMissing, "the Runtime did not announce streaming")
	}
	return c, nil
}

// requestFulfillment requests the fulfilments of a Runtime in a session (ALT-111).
func (h *Host) requestFulfillment(rt *hostConn, s *session, now time.Time) {
	h.send(rt, &RequestFulfillment{SessionID: s.id})
	s.expect(h, rt, now)
}
