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
	if !b.until.IsZero() && b.trial == nil && c.pin == "" {
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
	case isFailure(c, err):
		b.failures++
		if trial || b.failures >= after {
			b.until = now.Add(pause)
		}
	case c.answered:
		b.failures, b.until = 0, time.Time{}
	}
}

// isFailure reports whether the end of a call counts against its Runtime. A shorter time of the
// caller does not.
func isFailure(c *hostCall, err *Error) bool {
	if err == nil {
		return false
	}
	switch err.Reason() {
	case reasonInvalidResult, reasonChunkGap, reasonUnexpectedStream, reasonResultAfterChunk:
		return true
	}
	return err.Code == ErrExecutionTimeout && !c.answered && !c.isShort || err.Code == ErrRuntimeUnavailable && c.answered
}
