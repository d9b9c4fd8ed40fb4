// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package altar

import (
	"cmp"
	"context"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/fivewire/fivewire/internal/audit"
)

// An AuditRecord is one decision of a Host (ALT-D41).
type AuditRecord struct {
	Seq       uint64 // from 1, without gaps
	Time      time.Time
	Principal string
	Peer      string // network address, if it is known

	// Operation is one of "auth.refused", "auth.renewed", "auth.expired", "runtime.accepted",
	// "runtime.refused", "runtime.replaced", "runtime.gone", "fulfillment.accepted", "fulfillment.refused",
	// "session.created", "session.refused", "session.over", "request.refused", "call.refused",
	// "call.dispatched", "call.joined", "call.replayed", "call.done", "stream.slow", "manifest.reloaded".
	Operation string

	Object   string        // id of the session, Runtime or call, or name of the contract
	Outcome  string        // "ok", "refused" (before a handler ran), "failed" or "canceled"
	Code     string        // of Error
	Duration time.Duration // of "call.done": since the first dispatch
	Bytes    int64         // of "call.done": parameters

	Tenant        string
	RuntimeID     string
	SessionID     string
	InvocationID  string
	CorrelationID string
	Contract      string
	Error         *Error // the reason of a refusal or failure
	Chunks        int64  // of "call.done"
}

// LogValue groups the record for [log/slog].
func (r *AuditRecord) LogValue() slog.Value {
	return audit.Value(r, slog.String("tenant", r.Tenant), slog.String("runtime", r.RuntimeID),
		slog.String("session", r.SessionID), slog.String("contract", r.Contract))
}

// AuditLog returns a function for [HostOptions].Audit that logs each record at Info. Nil means
// [slog.Default].
func AuditLog(log *slog.Logger) func(context.Context, *AuditRecord) {
	return audit.Log[*AuditRecord](log, "altar")
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
	h.lockAll()
	s := Stats{Runtimes: len(h.fleet.order), Dropped: h.dropCount.Load(), InvalidFrames: h.invalidFrames.Load()}
	for i := range h.shards {
		c := &h.shards[i].core.Counts
		s.Sessions += c.Sessions
		s.InFlight += c.InFlight
		s.Dispatched += c.Dispatched
		s.Rejected += c.Rejected
		s.Succeeded += c.Succeeded
		s.Failed += c.Failed
		s.Chunks += c.Chunks
		s.Dropped += c.Dropped
	}
	h.unlockAll()
	s.Connections, s.StoredResults = h.conns.len(), h.outcomes.len()
	return s
}

// audit numbers a record of a connection, which may be nil, and queues it for the hook. The shard must be locked: a
// cause has a lower number than its effects.
func (h *Host) audit(sh *shard, now time.Time, e *AuditRecord, hc *hostConn) {
	if h.opts.Audit == nil {
		return
	}
	e.Time = now
	e.describe(hc)
	if h.audits.put(e) {
		sh.after = append(sh.after, h.startAudit)
	}
}

// auditOne is audit without a lock.
func (h *Host) auditOne(e *AuditRecord, hc *hostConn) {
	if h.opts.Audit == nil {
		return
	}
	e.Time = time.Now()
	e.describe(hc)
	if h.audits.put(e) {
		h.startAudit()
	}
}

// startAudit starts the goroutine of the hook.
func (h *Host) startAudit() {
	if h.life.Go("audit", h.runAudit) != nil {
		h.runAudit(h.ctx)
	}
}

// describe sets the fields of a record that follow from the others and from a connection, which may be nil.
func (e *AuditRecord) describe(hc *hostConn) {
	if hc != nil {
		e.Peer = hc.addr
		if id := hc.principal(); id != nil {
			e.Principal, e.Tenant = id.ID, id.Tenant
		}
	}
	e.SessionID, e.Contract = clipped(e.SessionID), clipped(e.Contract)
	e.Object = cmp.Or(e.InvocationID, e.SessionID, e.RuntimeID)
	if strings.HasPrefix(e.Operation, "fulfillment.") {
		e.Object = e.Contract
	}
	e.Outcome = "ok"
	if e.Error == nil {
		return
	}
	e.Code = string(e.Error.Code)
	switch reason := e.Error.Reason(); {
	case strings.HasSuffix(e.Operation, ".refused"):
		e.Outcome = "refused"
	case e.Operation == "session.over":
	case reason == ReasonCancelled || reason == reasonClientGone || reason == reasonSessionDestroyed:
		e.Outcome = "canceled"
	default:
		e.Outcome = "failed"
	}
}

// maxAuditText bounds a text of a peer in a record, in bytes. No name of a session or contract is longer.
const maxAuditText = 512

func clipped(s string) string {
	if len(s) <= maxAuditText {
		return s
	}
	return strings.ToValidUTF8(s[:maxAuditText], "") + "…"
}

// maxAudit is the number of waiting records at which requests wait, too.
const maxAudit = 4096

// An auditor holds the records that wait for the hook.
type auditor struct {
	mu        sync.Mutex
	seq       uint64 // number of the last record
	list      []*AuditRecord
	isRunning bool
	space     chan struct{} // closed when the list has space; nil: no request waits
}

// put numbers and adds a record, and reports whether the caller must start the goroutine of the hook.
func (q *auditor) put(e *AuditRecord) (isIdle bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.seq++
	e.Seq = q.seq
	q.list = append(q.list, e)
	isIdle = !q.isRunning
	q.isRunning = true
	return isIdle
}

// take returns the first record. Without any the goroutine ends.
func (q *auditor) take() (r *AuditRecord) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.isRunning = len(q.list) > 0; q.isRunning {
		r, q.list = q.list[0], q.list[1:]
	}
	if q.space != nil && len(q.list) < maxAudit {
		close(q.space)
		q.space = nil
	}
	return r
}

// wait waits while the queue is full.
func (q *auditor) wait(ctx context.Context) {
	for {
		q.mu.Lock()
		if len(q.list) < maxAudit {
			q.mu.Unlock()
			return
		}
		if q.space == nil {
			q.space = make(chan struct{})
		}
		space := q.space
		q.mu.Unlock()
		select {
		case <-space:
		case <-ctx.Done():
			return
		}
	}
}

// runAudit calls the hook with the waiting records, one at a time and in order.
func (h *Host) runAudit(context.Context) {
	isOver := false
	defer func() {
		if !isOver { // the hook has ended the goroutine
			_ = h.life.Go("audit", h.runAudit)
		}
	}()
	for e := h.audits.take(); e != nil; e = h.audits.take() {
		_ = h.guard("Audit", func() error {
			h.opts.Audit(h.ctx, e)
			return nil
		})
	}
	isOver = true
}
