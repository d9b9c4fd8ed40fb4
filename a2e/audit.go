// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package a2e

import (
	"io"
	"log/slog"
	"sync"
	"time"
)

// An AuditRecord tells of one handshake or one answered request (A2E-D45). It holds
// no payload and no secret.
type AuditRecord struct {
	Time          float64 `a2e:"ts"` // Unix seconds of the answer
	SessionID     string  `a2e:"session_id"`
	ReqID         string  `a2e:"req_id"`
	CorrelationID string  `a2e:"correlation_id"`
	Success       bool    `a2e:"success"`
	DurationMs    int64   `a2e:"duration_ms"` // from arrival to answer
	ErrorCode     *string `a2e:"error_code,null"`
	InputBytes    int64   `a2e:"input_bytes"`
	OutputBytes   int64   `a2e:"output_bytes"`
	Type          string  `a2e:"type"`
}

// MarshalJSON returns the record as the wire catalogue spells it.
func (r *AuditRecord) MarshalJSON() ([]byte, error) { return EncodeModel(r) }

// AuditLog returns an audit sink that writes each record as one line of JSON to
// w. What cannot be written is lost and logged: auditing never fails a request
// (A2E-145).
func AuditLog(w io.Writer, logger *slog.Logger) func(AuditRecord) {
	if logger == nil {
		logger = slog.New(slog.DiscardHandler)
	}
	var mu sync.Mutex
	return func(r AuditRecord) {
		line, err := r.MarshalJSON()
		if err == nil {
			mu.Lock()
			defer mu.Unlock()
			_, err = w.Write(append(line, '\n'))
		}
		if err != nil {
			logger.Warn("a2e: audit record lost", "req_id", r.ReqID, "err", err)
		}
	}
}

// newAudit fills in a record for the answer to a message.
func newAudit(sessionID string, m *Message, arrived time.Time, in, out int) AuditRecord {
	now := time.Now()
	r := AuditRecord{Time: Seconds(now), SessionID: sessionID, ReqID: m.ID, CorrelationID: m.ID, Success: true,
		DurationMs: now.Sub(arrived).Milliseconds(), InputBytes: int64(in), OutputBytes: int64(out), Type: m.Type}
	if c := correlation(m); c != "" {
		r.CorrelationID = c
	}
	return r
}

func (r *AuditRecord) failed(code string) {
	r.Success, r.ErrorCode = false, &code
}

// correlation returns the member correlation_id of a message.
func correlation(m *Message) string { return textMember(m, "correlation_id") }
