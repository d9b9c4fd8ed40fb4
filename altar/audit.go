// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package altar

import "time"

// An AuditRecord is one decision of a Host.
type AuditRecord struct {
	Time time.Time

	// Operation is one of "runtime.accepted", "runtime.refused", "runtime.gone",
	// "fulfillment.accepted", "fulfillment.refused", "session.created",
	// "session.refused", "session.over", "call.refused", "call.dispatched",
	// "call.done".
	Operation string

	Principal     string // the name of the identity
	Tenant        string
	RuntimeID     string
	SessionID     string
	InvocationID  string
	CorrelationID string
	Contract      string
	Error         *Error // why not; of "call.done" how it failed

	// Of "call.done": how long the call took since it was dispatched first, and
	// how many chunks it had.
	Duration time.Duration
	Chunks   int64
}

// Stats are counters of a [Host] and the sizes of its tables.
type Stats struct {
	Connections   int
	Runtimes      int // connected
	Sessions      int // live
	InFlight      int // calls held or running
	StoredResults int // calls whose outcome or invocation id is still kept

	Dispatched    uint64 // calls sent to a Runtime, failovers included
	Rejected      uint64 // calls refused before that
	Succeeded     uint64
	Failed        uint64 // dispatched calls that ended with an error
	Chunks        uint64 // accepted
	Dropped       uint64 // messages of peers without any effect: late, doubled, unknown
	InvalidFrames uint64
}

// Stats returns how the Host is doing.
func (h *Host) Stats() Stats {
	h.lock()
	defer h.unlock()
	s := h.stats
	s.Connections = len(h.conns)
	s.Runtimes = len(h.order)
	s.Sessions = h.sessions.own
	s.StoredResults = h.doneCalls.n
	return s
}

// audit keeps an event until the lock is given back.
func (h *Host) audit(now time.Time, e *AuditRecord, id *Principal) {
	e.Time = now
	if id != nil {
		e.Principal, e.Tenant = id.ID, id.Tenant
	}
	h.events = append(h.events, e)
}

func (h *Host) runAudit(e *AuditRecord) {
	_ = h.guard("Audit", func() error {
		h.opts.Audit(e)
		return nil
	})
}

// dropped counts a message that has no effect.
func (h *Host) dropped(c *hostConn, m Message, why string) {
	h.stats.Dropped++
	h.opts.Logger.Debug("altar: message dropped", "type", m.Type(), "runtime", c.runtimeID, "reason", why)
}
