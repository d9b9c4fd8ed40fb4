// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package core

import "time"

// A Runtime runs calls: one that is connected to this Host or to another one. Its fields do not change, but for
// IsConnected and LostAt, which change only while no shard makes a step.
type Runtime struct {
	ID          string
	IsRemote    bool // one of another Host: it gets the calls that no other Runtime takes (ALT-D39)
	TakesCredit bool // its streams wait for credit
	Gate        Gate
	Data        any // opaque

	IsConnected bool
	LostAt      time.Time // when its connection ended

	unanswered chain[debt] // the final messages that it owes
}

// A Load is a [Gate] without a queue and without a lock.
type Load struct {
	Limit     int           // of calls
	Threshold int           // consecutive failures after which calls avoid the Runtime
	Cooldown  time.Duration // the time without calls

	breaker Breaker
	running int
}

// Check implements [Gate].
func (l *Load) Check(_ int, now time.Time) (hasSpace, isAvoided bool) {
	return l.running < l.Limit, l.breaker.IsOpen(now)
}

// Admit implements [Gate].
func (l *Load) Admit(_ int, isPinned bool, _ time.Time) (isTrial, ok bool) {
	if l.running >= l.Limit {
		return false, false
	}
	l.running++
	return !isPinned && l.breaker.Begin(), true
}

// Release implements [Gate].
func (l *Load) Release(o Outcome, isTrial bool, now time.Time) {
	l.running--
	l.breaker.End(o, isTrial, l.Threshold, l.Cooldown, now)
}

// Running implements [Gate].
func (l *Load) Running() int { return l.running }

// IsTripped reports whether the Runtime has failed and not recovered.
func (l *Load) IsTripped() bool { return l.breaker.IsTripped() }
