// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package outbox

import "time"

const maxText = 1 << 10 // bytes of a stored error

// A Verdict is the outcome of an attempt. The zero Verdict is Retry after a second.
type Verdict struct {
	kind   verdictKind
	after  time.Duration
	reason string
	err    error
	text   string // of err
}

type verdictKind uint8

const (
	verdictRetry verdictKind = 1 + iota
	verdictDone
	verdictLater
	verdictDead
	verdictGone
)

// Done means that the item was sent.
func Done() Verdict { return Verdict{kind: verdictDone} }

// Retry means that the attempt failed with err and is repeated after a delay. Attempts and delay
// are stored. A delay of zero or less means 1 s.
func Retry(after time.Duration, err error) Verdict {
	return Verdict{kind: verdictRetry, after: after, err: err}
}

// Later means that no attempt was made because of err, for example an open circuit breaker. The
// function is called again after a delay. Zero or less means 1 s.
func Later(after time.Duration, err error) Verdict {
	return Verdict{kind: verdictLater, after: after, err: err}
}

// Dead means that the item becomes a dead letter. A nil err keeps that of the last Retry.
func Dead(reason string, err error) Verdict {
	return Verdict{kind: verdictDead, reason: reason, err: err}
}

// Gone means that the receiver of the stream has ended: all items in the queue become dead
// letters, and the sender ends.
func Gone(err error) Verdict {
	return Verdict{kind: verdictGone, reason: "stream closed", err: err}
}
