// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package air

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/fivewire/fivewire/air/internal/server"
	"github.com/fivewire/fivewire/internal/guard"
)

// reports informs the operator of received envelopes by the options OnOutcome and Audit, and the log.
type reports struct {
	opts   *InboxOptions
	log    *slog.Logger
	levels server.LogLevels
	seq    atomic.Uint64 // audit records
}

// audit completes and reports a record.
func (p *reports) audit(ctx context.Context, r *AuditRecord, e *Error, isHandled bool) {
	if p.opts.Audit == nil {
		return
	}
	done := *r // which the hook may keep
	r = &done
	r.Seq, r.Duration, r.Outcome = p.seq.Add(1), time.Since(r.Time), outcomeOK
	if e != nil {
		r.Code = string(e.Code)
		switch {
		case !isHandled:
			r.Outcome = outcomeRefused
		case ctx.Err() != nil:
			r.Outcome = outcomeCanceled
		default:
			r.Outcome = outcomeFailed
		}
	}
	p.panicked(ctx, guard.Call("Audit", func() error {
		p.opts.Audit(ctx, r)
		return nil
	}))
}

// refusal logs an envelope that is not delivered: a dead letter as a warning, and of the others the
// first with its code in a minute, as information if it can never become good or was delivered before (AIR-D73).
func (p *reports) refusal(ctx context.Context, r *AuditRecord, o *ReceiveResult) {
	e, level := o.Err, slog.LevelWarn
	if o.Class != ClassHeld {
		level = p.levels.Level(string(o.Err.Code))
	}
	if o.Class == ClassRefused || o.Class == ClassDone {
		level = min(level, slog.LevelInfo)
	}
	p.log.Log(ctx, level, "air: envelope not delivered", "class", string(o.Class),
		"operation", r.Operation, "id", r.Object, "agent", r.Principal, "peer", r.Peer, "code", e.Code, "err", e)
}

// warn logs a failure as a warning, if it is the first of its kind in a minute.
func (p *reports) warn(ctx context.Context, kind, message string, args ...any) {
	p.log.Log(ctx, p.levels.Level(kind), message, args...)
}

// outcome informs OnOutcome.
func (p *reports) outcome(ctx context.Context, o *ReceiveResult) {
	if p.opts.OnOutcome == nil {
		return
	}
	p.panicked(ctx, guard.Call("OnOutcome", func() error {
		p.opts.OnOutcome(ctx, o)
		return nil
	}))
}

// panicked logs a panic of user code, with its stack.
func (p *reports) panicked(ctx context.Context, err error) { logPanic(ctx, p.log, err) }

func logPanic(ctx context.Context, log *slog.Logger, err error) {
	if err == nil {
		return
	}
	var p *guard.PanicError
	if errors.As(err, &p) {
		log.ErrorContext(ctx, "air: "+p.What+" panicked", "err", err, "stack", string(p.Stack))
	}
}
