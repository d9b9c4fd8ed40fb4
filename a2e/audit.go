// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package a2e

import (
	"cmp"
	"context"
	"log/slog"
	"strings"
	"time"

	"github.com/fivewire/fivewire/internal/audit"
	"github.com/fivewire/fivewire/internal/guard"
)

// Outcomes of an [AuditRecord].
const (
	OutcomeOK       = "ok"
	OutcomeRefused  = "refused"  // before a handler ran
	OutcomeFailed   = "failed"   // by a handler, a time limit or the end of the session
	OutcomeCanceled = "canceled" // by the agent
)

// An AuditRecord describes one handshake, one answered request, or one refused session (A2E-D45). It
// holds no payload and no secret.
type AuditRecord struct {
	Seq       uint64        // number of the record in its host, from 1
	Time      time.Time     // of the answer
	Principal string        // id of the principal; empty for anonymous agents
	Peer      string        // agent id of the handshake, which only a principal proves
	Operation string        // message type
	Object    string        // name of the tool or skill
	Outcome   string        // OutcomeOK, OutcomeRefused, OutcomeFailed or OutcomeCanceled
	Code      string        // error code, or reason of a refused handshake
	Duration  time.Duration // from arrival to answer
	Bytes     int64         // of the request

	SessionID     string
	RequestID     string
	CorrelationID string
	OutputBytes   int64 // of the answer
}

// An auditLine is a record as A2E-D45 spells it.
type auditLine struct {
	TS            float64 `json:"ts,omitzero" jsonmap:"always"` // Unix seconds
	SessionID     string  `json:"session_id,omitzero" jsonmap:"always"`
	ReqID         string  `json:"req_id,omitzero" jsonmap:"always"`
	CorrelationID string  `json:"correlation_id,omitzero" jsonmap:"always"`
	Success       bool    `json:"success,omitzero" jsonmap:"always"`
	DurationMs    int64   `json:"duration_ms,omitzero" jsonmap:"always"`
	ErrorCode     *string `json:"error_code,omitzero" jsonmap:"always"`
	InputBytes    int64   `json:"input_bytes,omitzero" jsonmap:"always"`
	OutputBytes   int64   `json:"output_bytes,omitzero" jsonmap:"always"`
	Type          string  `json:"type,omitzero" jsonmap:"always"`
}

// MarshalJSON returns the record as the catalogue spells it.
func (r *AuditRecord) MarshalJSON() ([]byte, error) {
	line := auditLine{TS: float64(r.Time.UnixMicro()) / 1e6, SessionID: r.SessionID, ReqID: r.RequestID,
		CorrelationID: r.CorrelationID, Success: r.Outcome == OutcomeOK, DurationMs: r.Duration.Milliseconds(),
		InputBytes: r.Bytes, OutputBytes: r.OutputBytes, Type: r.Operation}
	if r.Code != "" {
		line.ErrorCode = &r.Code
	}
	return EncodeModel(&line)
}

// LogValue groups the record for [log/slog].
func (r *AuditRecord) LogValue() slog.Value {
	return audit.Value(r, slog.String("session", r.SessionID), slog.String("request_id", r.RequestID))
}

// AuditLog returns a function for [HostOptions].Audit that logs each record at Info. Nil means
// [slog.Default].
func AuditLog(log *slog.Logger) func(context.Context, *AuditRecord) {
	return audit.Log[*AuditRecord](log, "a2e")
}

// auditLocked returns a function that passes a record of the response to a message on, when its length is known, or
// nil. s.mu must be held.
func (s *Session) auditLocked(m *Message, arrived time.Time, in int, outcome, code string) func(n int) {
	if s.host.opts.Audit == nil {
		return nil
	}
	r := &AuditRecord{Peer: s.agentID, Operation: strings.Clone(m.Type), Outcome: outcome, Code: code, RequestID: strings.Clone(m.ID),
		Bytes: int64(in), Object: strings.Clone(clip(objectOf(m), 200)),
		CorrelationID: strings.Clone(cmp.Or(textMember(m, "correlation_id"), m.ID))} // does not keep the message
	if s.principal != nil {
		r.Principal = s.principal.ID
	}
	if s.id != "" {
		r.SessionID = cmp.Or(s.host.opts.AuditSessionID, s.id)
	}
	return func(n int) {
		r.Time, r.OutputBytes = time.Now(), int64(n)
		r.Duration = r.Time.Sub(arrived)
		s.host.audit(s.ctx, r)
	}
}

// objectOf returns the name of the tool or skill that a message calls, or "".
func objectOf(m *Message) string {
	switch m.Type {
	case "tool/call/req":
		return textMember(m, "tool_name")
	case "skill/call/req":
		return textMember(m, "name")
	}
	return ""
}

// audit passes a record to the function of the options. Its panic fails nothing (A2E-145).
func (h *Host) audit(ctx context.Context, r *AuditRecord) {
	if h.opts.Audit == nil {
		return
	}
	r.Seq = h.auditSeq.Add(1)
	err := guard.CallApart("audit function", func() error { h.opts.Audit(ctx, r); return nil })
	if err != nil {
		logFailure(ctx, h.log, slog.LevelWarn, "a2e: audit record lost", err, "request_id", r.RequestID)
	}
}
