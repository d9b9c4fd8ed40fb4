// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package altar

import (
	"slices"
	"time"
)

// An owner is the principal and connection of a runtime id (ALT-D16).
type owner struct {
	id        string
	principal principal
	conn      *hostConn // nil: not connected
	forget    timer     // runs while it is not connected
}

// announce is the handshake of a Runtime (ALT-110), its checks in the order of
// ALT-D16.
func (h *Host) announce(hc *hostConn, m *AnnounceRuntime) {
	h.lock()
	var err *Error
	switch {
	case hc.isClosed:
		h.unlock()
		return
	case hc.role == roleRuntime:
		h.answer(hc, m, formFault(ReasonAlreadyAnnounced, "", "the Runtime has announced itself already"))
		h.unlock()
		return
	case hc.role == roleClient:
		h.answer(hc, m, formFault(ReasonWrongRole, "", "a client cannot announce a Runtime"))
		h.unlock()
		return
	case hc.identity == nil:
		err = errUnauthenticated()
	}
	h.unlock()

	if err == nil && h.opts.Auth.RuntimeAuthorizer != nil {
		fault := h.guard("RuntimeAuthorizer", func() error { return h.opts.Auth.RuntimeAuthorizer(h.ctx, hc.identity, m) })
		if fault != nil {
			err = h.refusal("RuntimeAuthorizer", fault, ReasonNotARuntime, "the caller may not announce a Runtime")
		}
	}
	mine := true
	if err == nil && h.state != nil {
		mine, err = h.storeOwner(hc, m)
	}

	now := h.lock()
	defer h.unlock()
	if hc.isClosed {
		return
	}
	own := h.runtimes[m.RuntimeID]
	if err == nil {
		_, fault := Negotiate(h.opts.ProtocolVersion, m.ProtocolVersion)
		switch {
		case fault != nil:
			err = fault.(*Error)
		case h.manifest.reserved(m.RuntimeID):
			err = NewError(ErrInvalidParameters, ReasonReservedRuntimeID, "the names of this Runtime would be ambiguous")
		case !mine || own != nil && own.principal != hc.identity.principal():
			err = NewError(ErrAuthorizationFailed, ReasonRuntimeIDTaken, "the runtime id belongs to another identity")
		}
	}
	if err != nil {
		if h.opts.Audit != nil {
			h.audit(now, &AuditRecord{Operation: "runtime.refused", RuntimeID: m.RuntimeID, Error: err}, hc.identity)
		}
		h.refuse(hc, m, err, now)
		return
	}
	if own == nil {
		own = &owner{id: m.RuntimeID, principal: hc.identity.principal()}
		own.forget = timer{index: -1, fire: own.forgetter(h)}
		h.runtimes[m.RuntimeID] = own
	}
	if old := own.conn; old != nil {
		old.out.close()
		h.disconnect(old, now)
		if old.conn != nil {
			_ = old.conn.Close()
		}
	}
	h.timers.stop(&own.forget)
	own.conn = hc
	hc.role, hc.alive, hc.runtimeID, hc.limit = roleRuntime, true, m.RuntimeID, h.opts.Limits.RuntimeQueueLimit
	hc.lastReceived = now
	hc.unanswered = make(map[string]*hostCall)
	hc.capabilities = h.agreed(m.Capabilities)
	h.order = append(h.order, hc)
	h.handshakes++
	h.reply(hc, m, &AcknowledgeRuntime{HostID: h.opts.ID, ProtocolVersion: h.opts.ProtocolVersion, Capabilities: hc.capabilities})
	if h.opts.Audit != nil {
		h.audit(now, &AuditRecord{Operation: "runtime.accepted", RuntimeID: m.RuntimeID}, hc.identity)
	}
	for s := h.sessions.first; s != nil; s = s.next {
		h.requestFulfillment(hc, s, now)
	}
	if h.opts.Timing.Heartbeat > 0 && hc.can(CapHeartbeat) {
		h.timers.set(&hc.heartbeat, now.Add(h.opts.Timing.Heartbeat))
	}
}

func (o *owner) forgetter(h *Host) timerFunc {
	return timerCall(func(time.Time) {
		delete(h.runtimes, o.id)
		before := h.wildcard
		h.wildcard = before.without(o.id)
		for s := h.sessions.first; s != nil; s = s.next {
			if s.reg == before {
				s.reg = h.wildcard
			}
		}
	})
}

// agreed returns the capabilities that both sides have (ALT-D17).
func (h *Host) agreed(announced []string) []string {
	out := []string{}
	for _, c := range announced {
		switch c {
		case CapStreaming:
			if h.opts.Level < 2 {
				continue
			}
		case CapCancellation, CapDeadlines, CapSessionEvents, CapHeartbeat:
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
	hc.alive = false
	h.timers.stop(&hc.heartbeat)
	h.handshakes++
	h.order = slices.DeleteFunc(h.order, func(o *hostConn) bool { return o == hc })
	if own := h.runtimes[hc.runtimeID]; own != nil && own.conn == hc {
		own.conn = nil
		if h.state != nil {
			h.background(func() { h.state.holdOwner(hc.runtimeID, 0) })
		}
		h.timers.set(&own.forget, now.Add(h.opts.Persistence.TombstoneTTL))
	}
	for id, c := range hc.unanswered {
		if h.calls[id] == c {
			delete(h.calls, id)
		}
	}
	hc.unanswered = nil
	for s := h.sessions.first; s != nil; s = s.next {
		settled := s.removeInquiry(hc)
		for c := s.active.first; c != nil; {
			next := c.next
			switch {
			case c.state == callRunning && c.rt == hc:
				h.lost(c, now)
			case c.state == callHeld && settled:
				h.judgeCall(c, now)
			}
			c = next
		}
	}
	if h.opts.Audit != nil {
		h.audit(now, &AuditRecord{Operation: "runtime.gone", RuntimeID: hc.runtimeID}, hc.identity)
	}
}

// beat is the heartbeat of a Runtime (ALT-D36).
func (hc *hostConn) beat(now time.Time) {
	h := hc.h
	if hc.isClosed {
		return
	}
	if now.Sub(hc.lastReceived) >= 3*h.opts.Timing.Heartbeat {
		h.opts.Logger.Warn("altar: silent Runtime disconnected", "runtime", hc.runtimeID)
		hc.out.close()
		h.disconnect(hc, now)
		if hc.conn != nil {
			_ = hc.conn.Close()
		}
		return
	}
	h.send(hc, &Ping{})
	h.timers.set(&hc.heartbeat, now.Add(h.opts.Timing.Heartbeat))
}

// Runtimes returns the ids of the connected Runtimes in order of handshake.
func (h *Host) Runtimes() []string {
	h.lock()
	defer h.unlock()
	ids := make([]string, len(h.order))
	for i, hc := range h.order {
		ids[i] = hc.runtimeID
	}
	return ids
}
