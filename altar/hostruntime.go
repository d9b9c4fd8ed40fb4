// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package altar

import (
	"slices"
	"time"

	"github.com/fivewire/fivewire/altar/internal/core"
)

// An owner is the principal and connection of a runtime id (ALT-D16).
type owner struct {
	id        string
	principal core.Principal
	conn      *hostConn  // nil: not connected
	forget    core.Timer // runs while it is not connected
}

// announce is the handshake of a Runtime (ALT-110), its checks in the order of
// ALT-D16.
func (h *Host) announce(hc *hostConn, m *AnnounceRuntime) {
	h.lock()
	isNew, err := h.announceFault(hc, m)
	h.unlock()
	if !isNew {
		return
	}
	if err == nil && h.opts.Auth.RuntimeAuthorizer != nil {
		fault := h.guard("RuntimeAuthorizer", func() error { return h.opts.Auth.RuntimeAuthorizer(h.ctx, hc.identity, m) })
		if fault != nil {
			err = h.refusal("RuntimeAuthorizer", fault, reasonNotARuntime, "the caller may not announce a Runtime")
		}
	}
	mine := true
	if err == nil && h.ledger != nil {
		mine, err = h.storeOwner(hc, m)
	}

	now := h.lock()
	defer h.unlock()
	if hc.isClosed {
		return
	}
	if err == nil {
		err = h.runtimeFault(hc, m, mine)
	}
	if err != nil {
		h.auditLocked(now, &AuditRecord{Operation: "runtime.refused", RuntimeID: m.RuntimeID, Error: err}, hc)
		h.refuse(hc, m, err, now)
		return
	}
	h.acceptRuntime(hc, m, now)
}

// announceFault answers a Runtime that cannot announce itself on its connection. Otherwise the connection
// isNew, and the error ends it.
func (h *Host) announceFault(hc *hostConn, m *AnnounceRuntime) (isNew bool, err *Error) {
	switch {
	case hc.isClosed:
	case hc.role == roleRuntime:
		h.answer(hc, m, formFault(reasonAlreadyAnnounced, "", "the Runtime has announced itself already"))
	case hc.role == roleClient:
		h.answer(hc, m, formFault(reasonWrongRole, "", "a client cannot announce a Runtime"))
	case hc.identity == nil:
		return true, errUnauthenticated()
	case h.draining:
		return true, errDraining()
	default:
		return true, nil
	}
	return false, nil
}

// runtimeFault returns the error of a Runtime that is not accepted.
func (h *Host) runtimeFault(hc *hostConn, m *AnnounceRuntime, mine bool) *Error {
	own := h.runtimes[m.RuntimeID]
	_, fault := negotiate(h.opts.ProtocolVersion, m.ProtocolVersion)
	switch {
	case fault != nil:
		return asError(fault)
	case h.manifest.reserved(m.RuntimeID):
		return Errorf(ErrInvalidParameters, reasonReservedRuntimeID, "the names of this Runtime would be ambiguous")
	case !mine || own != nil && own.principal != hc.identity.principal():
		return Errorf(ErrAuthorizationFailed, reasonRuntimeIDTaken, "the runtime id belongs to another identity")
	}
	return nil
}

// acceptRuntime makes a connection that of a Runtime.
func (h *Host) acceptRuntime(hc *hostConn, m *AnnounceRuntime, now time.Time) {
	own := h.runtimes[m.RuntimeID]
	if own == nil {
		own = &owner{id: m.RuntimeID, principal: hc.identity.principal()}
		own.forget = core.Timer{Event: own.forgetter(h)}
		h.runtimes[m.RuntimeID] = own
	}
	if old := own.conn; old != nil { // the newer one wins, and the older one must not return
		err := Errorf(ErrAuthorizationFailed, ReasonReplaced, "another Runtime with this id has connected")
		h.auditLocked(now, &AuditRecord{Operation: "runtime.replaced", RuntimeID: m.RuntimeID, Error: err}, old)
		h.send(old, &ErrorMessage{Err: err})
		h.expel(old, goodbyeReplaced, now)
	}
	h.timers.Stop(&own.forget)
	own.conn = hc
	hc.role, hc.runtime = roleRuntime, core.Runtime{ID: m.RuntimeID, IsConnected: true, Data: hc}
	hc.limit = queueLimit{h.opts.Limits.RuntimeQueueLimit, h.opts.Limits.MaxRuntimeQueue}
	hc.lastReceived = now
	hc.capabilities = h.agreed(m.Capabilities)
	hc.runtime.TakesCredit = hc.can(capCredit)
	h.order = append(h.order, hc)
	h.handshakes++
	h.reply(hc, m, &AcknowledgeRuntime{HostID: h.opts.ID, ProtocolVersion: h.opts.ProtocolVersion, Capabilities: hc.capabilities})
	h.auditLocked(now, &AuditRecord{Operation: "runtime.accepted", RuntimeID: m.RuntimeID}, hc)
	h.requestAll(hc, false, now)
	if hc.can(capHeartbeat) {
		h.timers.Set(&hc.heartbeat, now.Add(h.opts.Timing.Heartbeat))
	}
}

func (o *owner) forgetter(h *Host) timerFunc {
	return timerCall(func(time.Time) {
		delete(h.runtimes, o.id)
		h.sessions.Forget(o.id)
	})
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

// runtimeGone takes a Runtime out: its registrations are down, its calls fail or
// go elsewhere, in order of session creation, then of arrival (ALT-D24).
func (h *Host) runtimeGone(hc *hostConn, now time.Time) {
	h.auditLocked(now, &AuditRecord{Operation: "runtime.gone", RuntimeID: hc.runtime.ID}, hc)
	list := h.sessions.Lost(&hc.runtime, now)
	h.timers.Stop(&hc.heartbeat)
	h.handshakes++
	h.order = slices.DeleteFunc(h.order, func(o *hostConn) bool { return o == hc })
	if own := h.runtimes[hc.runtime.ID]; own != nil && own.conn == hc {
		own.conn = nil
		if h.ledger != nil {
			h.background(func() { h.ledger.HoldOwner(hc.runtime.ID, 0) })
		}
		h.timers.Set(&own.forget, now.Add(h.opts.Persistence.TombstoneTTL))
	}
	h.records.Disconnected(&hc.runtime)
	for _, c := range list {
		switch {
		case c.IsAt(&hc.runtime):
			h.lost(callOf(c), now)
		case c.State() == core.Held:
			h.judgeCall(callOf(c), now)
		}
	}
}

// beat is the heartbeat of a Runtime (ALT-D36).
func (hc *hostConn) beat(now time.Time) {
	h := hc.h
	if hc.isClosed {
		return
	}
	if now.Sub(hc.lastReceived)/3 >= h.opts.Timing.Heartbeat {
		h.opts.Logger.WarnContext(h.ctx, "altar: silent Runtime disconnected", "runtime", hc.runtime.ID)
		h.disconnect(hc, now)
		h.background(hc.cut)
		return
	}
	h.send(hc, &Ping{})
	h.timers.Set(&hc.heartbeat, now.Add(h.opts.Timing.Heartbeat))
}

// Runtimes returns the ids of the connected Runtimes in order of handshake.
func (h *Host) Runtimes() []string {
	h.lock()
	defer h.unlock()
	ids := make([]string, len(h.order))
	for i, hc := range h.order {
		ids[i] = hc.runtime.ID
	}
	return ids
}
