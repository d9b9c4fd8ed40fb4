// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package air

import (
	"context"
	"log/slog"
	"time"

	"github.com/fivewire/fivewire/internal/audit"
)

// An AuditRecord describes one finished request of an [Inbox] or a relay, without bodies and secrets.
// Its texts come from the caller: write them quoted, as slog does.
type AuditRecord struct {
	Seq       uint64    // number of the record, from 1
	Time      time.Time // when the request was received
	Principal string    // the DID of the verified sender, or the AIR ID of a relay's authenticated caller; else empty
	Peer      string    // address of the caller of a request; else empty
	Operation string    // "push", "pull", "ack", "stream", "queue" (a further attempt for a push answered with 202), "redeliver", or "unknown"
	Object    string    // id of the envelope, or the mailbox
	Outcome   string    // "ok", "refused" (before a handler ran), "failed" or "canceled"
	Code      string    // of the error
	Duration  time.Duration
	Bytes     int64 // size of the request
}

// Outcomes of an AuditRecord.
const (
	outcomeOK       = "ok"
	outcomeRefused  = "refused"
	outcomeFailed   = "failed"
	outcomeCanceled = "canceled"
)

// LogValue groups the record for [log/slog].
func (r *AuditRecord) LogValue() slog.Value { return audit.Value(r) }

// AuditLog returns a function for the option Audit that logs each record at Info. Nil means
// [slog.Default].
func AuditLog(log *slog.Logger) func(context.Context, *AuditRecord) {
	return audit.Log[*AuditRecord](log, "air")
}

// A Usage is the use of a resource of a server in one scope: by the session or the principal with the
// highest use, or by all. A Limit of -1 means no bound.
type Usage struct {
	Resource, Scope string
	Used, Limit     int64
}
