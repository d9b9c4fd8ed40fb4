// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package core

import "time"

// A Breaker keeps calls away from a Runtime whose calls fail one after the other (ALT-142).
// The zero value has no failures.
type Breaker struct {
	failures int       // consecutive
	until    time.Time // no calls before; zero: no bound
	hasTrial bool      // a call tests whether the Runtime has recovered
}

// An Outcome tells a [Breaker] how a call has ended.
type Outcome int

// The outcomes. An error that is not caused by the Runtime is Neutral.
const (
	Neutral Outcome = iota
	Success
	Failure
)

// IsTripped reports whether the Runtime has failed and not recovered.
func (b *Breaker) IsTripped() bool { return !b.until.IsZero() }

// IsOpen reports whether calls should use another Runtime.
func (b *Breaker) IsOpen(now time.Time) bool {
	return b.IsTripped() && (b.hasTrial || now.Before(b.until))
}

// Begin notes a call that another Runtime could take, and reports whether it is the trial.
func (b *Breaker) Begin() (isTrial bool) {
	isTrial = b.IsTripped() && !b.hasTrial
	b.hasTrial = b.hasTrial || isTrial
	return isTrial
}

// End notes the outcome of a call. After so many consecutive failures, or that of the trial, the
// Runtime gets no calls until the pause has ended.
func (b *Breaker) End(o Outcome, isTrial bool, after int, pause time.Duration, now time.Time) {
	b.hasTrial = b.hasTrial && !isTrial
	switch o {
	case Failure:
		b.failures++
		if isTrial || b.failures >= after {
			b.until = now.Add(pause)
		}
	case Success:
		b.failures, b.until = 0, time.Time{}
	}
}
