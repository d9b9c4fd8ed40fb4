// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package altar

import (
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/fivewire/fivewire/altar/internal/core"
	"github.com/fivewire/fivewire/altar/internal/ledger"
)

// A fleet has the Runtimes of a Host. It changes with all shards locked, and is read with any of them locked.
type fleet struct {
	owners     map[string]*owner // by runtime id
	order      []*hostConn       // connected Runtimes in order of handshake
	perSession []*core.Runtime   // those of them with an inquiry for each session
	left       *core.Tombstones  // ids that are not connected (ALT-D16)
	forget     core.Timer        // of left
}

// An owner is the principal and connection of a runtime id (ALT-D16).
type owner struct {
	id        string
	principal core.Principal
	conn      *hostConn // nil: not connected
}

// The numbers of ids without a connection that are kept (ALT-D16).
const (
	maxAbsent    = 1_000 // of a principal
	maxAllAbsent = 100_000
)

func newFleet() fleet {
	return fleet{owners: make(map[string]*owner), left: core.NewTombstones(maxAbsent, maxAllAbsent)}
}

// A gate admits calls to one Runtime.
type gate struct {
	hc *hostConn

	mu   sync.Mutex
	load core.Load // guarded by mu
}

// Check implements [core.Gate].
func (g *gate) Check(bytes int, now time.Time) (hasSpace, isAvoided bool) {
	g.mu.Lock()
	hasSpace, isAvoided = g.load.Check(bytes, now)
	g.mu.Unlock()
	return hasSpace && g.hc.out.hasSpace(g.hc.queueLimit(), bytes), isAvoided
}

// Admit implements [core.Gate].
func (g *gate) Admit(bytes int, isPinned bool, now time.Time) (isTrial, ok bool) {
	if !g.hc.out.hasSpace(g.hc.queueLimit(), bytes) {
		return false, false
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.load.Admit(bytes, isPinned, now)
}

// Release implements [core.Gate].
func (g *gate) Release(o core.Outcome, isTrial bool, now time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.load.Release(o, isTrial, now)
}

// Running implements [core.Gate].
func (g *gate) Running() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.load.Running()
}

// newRuntime makes a connection that of a Runtime.
func (h *Host) newRuntime(hc *hostConn, id string, isRemote bool) {
	load := core.Load{Limit: h.opts.Limits.MaxConcurrentPerRuntime, Threshold: h.opts.Limits.BreakerThreshold, Cooldown: h.opts.Timing.BreakerCooldown}
	hc.runtime = core.Runtime{ID: id, IsRemote: isRemote, IsConnected: true, TakesCredit: hc.can(capCredit), Gate: &gate{hc: hc, load: load}, Data: hc}
	hc.limit.Store(&h.runtimeQueue)
}

// connOf returns the connection of a Runtime.
func connOf(rt *core.Runtime) *hostConn { return rt.Data.(*hostConn) }

// announce is the handshake of a Runtime (ALT-110), its checks in the order of ALT-D16.
func (h *Host) announce(hc *hostConn, m *AnnounceRuntime) {
	var err *Error
	switch {
	case hc.is() == roleRuntime:
		h.answer(hc, m, formFault(reasonAlreadyAnnounced, "", "the Runtime has announced itself already"))
		return
	case hc.is() == roleClient:
		h.answer(hc, m, formFault(reasonWrongRole, "", "a client cannot announce a Runtime"))
		return
	case hc.principal() == nil:
		err = errUnauthenticated()
	case h.drain.isStarted.Load():
		err = errDraining()
	case h.opts.Auth.RuntimeAuthorizer != nil:
		fault := h.guard("RuntimeAuthorizer", func() error { return h.opts.Auth.RuntimeAuthorizer(h.ctx, hc.principal(), m) })
		if fault != nil {
			err = h.refusal("RuntimeAuthorizer", fault, reasonNotARuntime, "the caller may not announce a Runtime")
		}
	}
	mine := true
	if err == nil {
		mine, err = h.storeOwner(hc, m)
	}

	hc.isRuntime.Store(true) // before isClosed is read
	now := h.lockAll()
	defer h.unlockAll()
	if hc.isClosed.Load() {
		return
	}
	if err == nil {
		err = h.runtimeFault(hc, m, mine)
	}
	if err != nil {
		h.audit(&h.shards[0], now, &AuditRecord{Operation: "runtime.refused", RuntimeID: m.RuntimeID, Error: err}, hc)
		h.answer(hc, m, err)
		h.expel(hc, goodbyeRefused(err.Code), nil, now)
		return
	}
	h.acceptRuntime(hc, m, now)
}

// storeOwner makes a runtime id that of its Runtime in the ledger, unless it will be refused for another reason, and
// reports whether it is (ALT-D16).
func (h *Host) storeOwner(hc *hostConn, m *AnnounceRuntime) (bool, *Error) {
	_, fault := negotiate(h.opts.ProtocolVersion, m.ProtocolVersion)
	if fault != nil || h.manifest.Load().reserved(m.RuntimeID) {
		return true, nil
	}
	p := hc.principal().principal()
	mine, err := h.ledger.Own(m.RuntimeID, p.Name, p.Tenant)
	if err != nil {
		h.logError("Runtime owner not recorded", err)
		return false, Errorf(ErrInternal, "", "the Host cannot read who owns the runtime id")
	}
	return mine, nil
}

// runtimeFault returns the error of a Runtime that is not accepted.
func (h *Host) runtimeFault(hc *hostConn, m *AnnounceRuntime, mine bool) *Error {
	own := h.fleet.owners[m.RuntimeID]
	_, fault := negotiate(h.opts.ProtocolVersion, m.ProtocolVersion)
	switch {
	case fault != nil:
		return asError(fault)
	case h.manifest.Load().reserved(m.RuntimeID):
		return Errorf(ErrInvalidParameters, reasonReservedRuntimeID, "the names of this Runtime would be ambiguous")
	case !mine || own != nil && own.principal != hc.principal().principal():
		return Errorf(ErrAuthorizationFailed, reasonRuntimeIDTaken, "the runtime id belongs to another identity")
	}
	return nil
}

// acceptRuntime makes a connection that of a Runtime. All shards must be locked.
func (h *Host) acceptRuntime(hc *hostConn, m *AnnounceRuntime, now time.Time) {
	f := &h.fleet
	own := f.owners[m.RuntimeID]
	if own == nil {
		own = &owner{id: m.RuntimeID, principal: hc.principal().principal()}
		f.owners[m.RuntimeID] = own
	}
	if old := own.conn; old != nil { // the newer one wins, and the older one must not return
		err := Errorf(ErrAuthorizationFailed, ReasonReplaced, "another Runtime with this id has connected")
		h.audit(&h.shards[0], now, &AuditRecord{Operation: "runtime.replaced", RuntimeID: m.RuntimeID, Error: err}, old)
		h.expel(old, goodbyeReplaced, &ErrorMessage{Err: err}, now)
	}
	f.left.Remove(m.RuntimeID)
	own.conn = hc
	hc.capabilities = h.agreed(m.Capabilities)
	hc.become(roleRuntime)
	h.newRuntime(hc, m.RuntimeID, false)
	hc.received(now)
	f.order = append(f.order, hc)
	h.updatePerSession()
	h.reply(hc, m, &AcknowledgeRuntime{HostID: h.opts.ID, ProtocolVersion: h.opts.ProtocolVersion, Capabilities: hc.capabilities})
	h.audit(&h.shards[0], now, &AuditRecord{Operation: "runtime.accepted", RuntimeID: m.RuntimeID}, hc)
	h.requestAll(hc, false, now)
	if hc.can(capHeartbeat) {
		h.setTimer(&hc.heartbeat, now.Add(h.opts.Timing.Heartbeat))
	}
}

// updatePerSession lists the Runtimes with an inquiry for each session: those that fulfil nothing in all sessions.
func (h *Host) updatePerSession() {
	var list []*core.Runtime // sessions may have the old list
	for _, hc := range h.fleet.order {
		if !hc.wildcard && !hc.can(capStanding) {
			list = append(list, &hc.runtime)
		}
	}
	h.fleet.perSession = list
}

// requestAll requests the fulfilments of a Runtime in all sessions. A standing Runtime sends them after its handshake
// unasked (ALT-D15). All shards must be locked.
func (h *Host) requestAll(rt *hostConn, isReload bool, now time.Time) {
	e := core.Event{Kind: core.FulfillmentAsked, Runtime: &rt.runtime}
	if rt.can(capStanding) {
		e.N = 1
		if isReload {
			h.send(rt, &RequestFulfillment{SessionID: allSessions})
		}
	}
	h.broadcast(now, &e)
}

// agreed returns the capabilities that both sides have (ALT-D17).
func (h *Host) agreed(announced []string) []string {
	out := []string{}
	for _, c := range announced {
		switch c {
		case capStreaming, capCredit:
			if h.opts.Level < 2 {
				continue
			}
		case capCancellation, capDeadlines, capSessionEvents, capHeartbeat, capStanding:
		default:
			continue
		}
		if !slices.Contains(out, c) {
			out = append(out, c)
		}
	}
	return out
}

// loseRuntime takes a Runtime out: its registrations are down, its calls fail or go elsewhere, in order of session
// creation, then of arrival (ALT-D24). All shards must be locked.
func (h *Host) loseRuntime(hc *hostConn, now time.Time) {
	f := &h.fleet
	if !hc.runtime.IsConnected {
		return // it was not accepted
	}
	h.audit(&h.shards[0], now, &AuditRecord{Operation: "runtime.gone", RuntimeID: hc.runtime.ID}, hc)
	hc.runtime.IsConnected, hc.runtime.LostAt = false, now
	h.stopTimer(&hc.heartbeat)
	f.order = slices.DeleteFunc(f.order, func(o *hostConn) bool { return o == hc })
	h.updatePerSession()
	h.outcomes.disconnected(&hc.runtime)
	if own := f.owners[hc.runtime.ID]; own != nil && own.conn == hc {
		own.conn = nil
		h.background(func() { h.ledger.HoldOwner(own.id, 0) })
		h.rememberRuntime(own.id, own.principal, now)
	}
	h.broadcast(now, &core.Event{Kind: core.RuntimeLost, Runtime: &hc.runtime})
}

// rememberRuntime keeps the fulfilments of a Runtime that is not connected (ALT-D16). All shards must be locked.
func (h *Host) rememberRuntime(id string, p core.Principal, now time.Time) {
	if forgotten := h.fleet.left.Add(id, p, now.Add(h.opts.Persistence.TombstoneTTL)); forgotten != "" {
		h.forgetRuntime(forgotten, now)
	}
	h.setForget()
}

// setForget sets the timer of the first id that is forgotten.
func (h *Host) setForget() {
	if due, isSet := h.fleet.left.Due(); isSet && !h.fleet.forget.IsSetTo(due) {
		h.setTimer(&h.fleet.forget, due)
	}
}

func (h *Host) forgetRuntimes(now time.Time) {
	for id := h.fleet.left.Expire(now); id != ""; id = h.fleet.left.Expire(now) {
		h.forgetRuntime(id, now)
	}
	h.setForget()
}

// forgetRuntime removes a Runtime that did not return. All shards must be locked.
func (h *Host) forgetRuntime(id string, now time.Time) {
	delete(h.fleet.owners, id)
	absent := &core.Runtime{ID: id}
	h.broadcast(now, &core.Event{Kind: core.Fulfilled, Change: func(r *core.Registry) *core.Registry { return r.Without(absent) }})
}

// beat is the heartbeat of a Runtime (ALT-D36).
func (hc *hostConn) beat(now time.Time) {
	h := hc.h
	if hc.isClosed.Load() {
		return
	}
	if now.Sub(hc.lastReceived())/3 >= h.opts.Timing.Heartbeat {
		h.opts.Logger.WarnContext(h.ctx, "altar: silent Runtime disconnected", "runtime", hc.runtime.ID)
		h.disconnect(hc, now)
		h.background(hc.cut)
		return
	}
	h.send(hc, &Ping{})
	h.setTimer(&hc.heartbeat, now.Add(h.opts.Timing.Heartbeat))
}

// runtimeIDs returns the ids of the connected Runtimes in order of handshake.
func (h *Host) runtimeIDs() []string {
	h.lockAll()
	defer h.unlockAll()
	ids := make([]string, len(h.fleet.order))
	for i, hc := range h.fleet.order {
		ids[i] = hc.runtime.ID
	}
	return ids
}

// refulfillDelay is the time until a Host requests the fulfilments that it could not store.
const refulfillDelay = 2 * time.Second

// requestAgain requests the fulfilments of a Runtime after a failure of the ledger.
func (hc *hostConn) requestAgain(now time.Time) {
	if hc.runtime.IsConnected && !hc.isClosed.Load() {
		hc.h.requestAll(hc, true, now)
	}
}

// fulfill registers the fulfilments of a Runtime (ALT-132, ALT-D15).
func (h *Host) fulfill(hc *hostConn, m *FulfillTools) {
	if !h.runtimeOnly(hc, m) {
		return
	}
	sh := h.shardOf(m.SessionID)
	now := h.lock(sh)
	if m.SessionID != allSessions && sh.core.Find(m.SessionID) == nil {
		h.refuseRequest(sh, hc, m, m.SessionID, errUnknownSession(), now)
		h.unlock(sh)
		return
	}
	manifest := h.manifest.Load()
	h.unlock(sh)
	names, ack := h.checkFulfillments(hc, m, manifest)
	err := h.keepFulfillment(hc, m, names)
	switch {
	case err != nil:
		h.answer(hc, m, err)
		h.setTimer(&hc.refulfill, time.Now().Add(refulfillDelay))
	case m.SessionID == allSessions:
		now = h.lockAll()
		h.register(&h.shards[0], hc, m, names, ack, nil, now)
		h.unlockAll()
	default:
		now = h.lock(sh)
		h.register(sh, hc, m, names, ack, sh.core.Find(m.SessionID), now)
		h.unlock(sh)
	}
}

// checkFulfillments decides about the names of a fulfilment. It is called without a lock, because of the hook.
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

// register makes a Runtime a candidate for the accepted contracts, and routes the waiting calls again. The shard of the
// session is locked, or all of them.
func (h *Host) register(sh *shard, hc *hostConn, m *FulfillTools, names []string, ack *AcknowledgeFulfillment, one *core.Session, now time.Time) {
	if !hc.runtime.IsConnected {
		return
	}
	if one == nil && m.SessionID != allSessions {
		h.refuseRequest(sh, hc, m, m.SessionID, errUnknownSession(), now)
		return
	}
	names = slices.DeleteFunc(names, func(name string) bool { return !h.manifest.Load().has(name) }) // it may have been replaced
	e := core.Event{Kind: core.Fulfilled, Runtime: &hc.runtime, Session: one, Change: func(r *core.Registry) *core.Registry {
		if m.Replace && len(m.ToolNames) == 0 {
			return r.Withdraw(&hc.runtime, now)
		}
		return r.With(&hc.runtime, names, m.Replace)
	}}
	h.reply(hc, m, ack)
	h.auditFulfillment(sh, hc, m, names, ack, now)
	if one != nil {
		h.step(sh, now, &e)
		i := slices.IndexFunc(h.accepted, func(o *hostConn) bool { return &o.session.Session == one })
		if i >= 0 { // it has the calls of another Host
			h.offer(h.accepted[i])
		}
		return
	}
	if !hc.wildcard {
		hc.wildcard = true
		h.updatePerSession()
	}
	h.broadcast(now, &e)
}

func (h *Host) auditFulfillment(sh *shard, hc *hostConn, m *FulfillTools, names []string, ack *AcknowledgeFulfillment, now time.Time) {
	if h.opts.Audit == nil {
		return
	}
	for _, name := range names {
		h.audit(sh, now, &AuditRecord{Operation: "fulfillment.accepted", RuntimeID: hc.runtime.ID, SessionID: m.SessionID, Contract: name}, hc)
	}
	for _, r := range ack.Rejected {
		h.audit(sh, now, &AuditRecord{Operation: "fulfillment.refused", RuntimeID: hc.runtime.ID, SessionID: m.SessionID, Contract: r.ToolName, Error: r.Error}, hc)
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
			return h.opts.Auth.FulfillmentAuthorizer(h.ctx, &FulfillmentRequest{Principal: hc.principal(), RuntimeID: hc.runtime.ID, SessionID: sessionID, Contract: c.Contract})
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

// keepFulfillment stores the contracts that a Runtime fulfils, before that is acknowledged. A leave
// is not stored: calls wait for the Runtime after a restart, too.
func (h *Host) keepFulfillment(hc *hostConn, m *FulfillTools, names []string) *Error {
	if !h.ledger.IsShared() || m.Replace && len(m.ToolNames) == 0 {
		return nil
	}
	hc.keeping.Lock()
	defer hc.keeping.Unlock()
	all := names
	if !m.Replace {
		all = slices.Clone(hc.fulfilled[m.SessionID])
		for _, name := range names {
			if !slices.Contains(all, name) {
				all = append(all, name)
			}
		}
	}
	if slices.Equal(all, hc.fulfilled[m.SessionID]) {
		return nil
	}
	if err := h.ledger.PutFulfillment(m.SessionID, ledger.Fulfillment{RuntimeID: hc.runtime.ID, Contracts: all}); err != nil {
		h.logError("fulfilment not stored", err)
		return Errorf(ErrInternal, "", "the Host cannot store the fulfilment")
	}
	hc.keepFulfilled(m.SessionID, all)
	return nil
}

// keepFulfilled notes what is in the ledger, and now and then forgets the sessions that have ended. hc.keeping must be
// held.
func (hc *hostConn) keepFulfilled(session string, contracts []string) {
	if hc.fulfilled == nil {
		hc.fulfilled = make(map[string][]string)
	}
	hc.fulfilled[session] = contracts
	if len(hc.fulfilled) < hc.manyFulfilled {
		return
	}
	maps.DeleteFunc(hc.fulfilled, func(id string, _ []string) bool {
		sh := hc.h.shardOf(id)
		sh.mu.Lock()
		defer sh.mu.Unlock()
		return id != allSessions && sh.core.Find(id) == nil
	})
	hc.manyFulfilled = 2*len(hc.fulfilled) + 64
}

// restored returns the change of a Registry by a fulfilment of the ledger, of a Runtime that is absent or still to
// announce its fulfilments.
func (h *Host) restored(f ledger.Fulfillment) func(r *core.Registry) *core.Registry {
	manifest := h.manifest.Load()
	rt := &core.Runtime{ID: f.RuntimeID, LostAt: h.startedAt}
	names := slices.DeleteFunc(slices.Clone(f.Contracts), func(name string) bool { return !manifest.has(name) })
	return func(r *core.Registry) *core.Registry {
		if own := h.fleet.owners[f.RuntimeID]; own != nil && own.conn != nil {
			return r
		}
		return r.WithAbsent(rt, names)
	}
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

// LeastBusyRouter is a [Router] that takes the Runtime with the fewest calls
// in flight, in turn where several have equally few.
func LeastBusyRouter(r *RouteRequest, candidates []Candidate) int {
	start := int(r.DispatchCount % uint64(len(candidates)))
	best := start
	for i := range candidates {
		if k := (start + i) % len(candidates); candidates[k].InFlight < candidates[best].InFlight {
			best = k
		}
	}
	return best
}

// chooseLater makes the Router choose a Runtime for a call, without a lock.
func (h *Host) chooseLater(sh *shard, e *core.Effect) {
	c, among := e.Call, e.Runtimes
	r := &RouteRequest{SessionID: callOf(c).sessionID, Contract: c.Contract, DispatchCount: uint64(e.N)}
	candidates := make([]Candidate, len(among))
	for i, rt := range among {
		candidates[i] = Candidate{rt.ID, rt.Gate.Running()}
	}
	sh.after = append(sh.after, func() {
		h.background(func() {
			i := 0
			_ = h.guard("Router", func() error {
				i = h.opts.Router(r, candidates)
				return nil
			})
			if i < 0 || i >= len(among) {
				i = 0
			}
			now := h.lock(sh)
			defer h.unlock(sh)
			h.step(sh, now, &core.Event{Kind: core.RuntimeChosen, Call: c, Runtime: among[i]})
		})
	})
}
