// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package altar

import "time"

// A breaker keeps calls away from a Runtime that fails one after the other
// (ALT-142). It belongs to one connection and is guarded by the lock of the Host.
type breaker struct {
	failures int       // in a row
	until    time.Time // no calls before
	trial    *hostCall // the call that tests whether the Runtime has recovered
}

// open reports whether calls should use another Runtime.
func (b *breaker) open(now time.Time) bool {
	return !b.until.IsZero() && (b.trial != nil || now.Before(b.until))
}

// begin notes a call.
func (b *breaker) begin(c *hostCall) {
	if !b.until.IsZero() && b.trial == nil {
		b.trial = c
	}
}

// end records the outcome of a call. Only errors caused by the Runtime count.
func (b *breaker) end(c *hostCall, err *Error, after int, pause time.Duration, now time.Time) {
	trial := b.trial == c
	if trial {
		b.trial = nil
	}
	switch {
	case err == nil || err.Code == ErrExecutionFailed && c.answered:
		b.failures, b.until = 0, time.Time{}
	case err.Code == ErrExecutionTimeout, err.Code == ErrInternal, err.Code == ErrRuntimeUnavailable:
		if b.failures++; trial || b.failures >= after {
			b.until = now.Add(pause)
		}
	}
}
