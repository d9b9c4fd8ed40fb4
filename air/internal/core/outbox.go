// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package core

import "time"

// OutboxTTL is how long a message is queued, and how long a failed one is listed (AIR-D84).
const OutboxTTL = 30 * 24 * time.Hour

// A Sent is the state of a message in the outbox (AIR-D84).
type Sent struct {
	Queued    time.Time
	Attempts  int       // requests to the recipient
	Attempted bool      // a request may have reached the recipient
	Failed    time.Time // when it was refused permanently; zero if it is queued
	Code      string    // of the last failure
}

// Queue returns the message when Send stores it. A new message is later than the last one.
func (s Sent) Queue(now, last time.Time) Sent {
	switch {
	case !s.Queued.IsZero():
		return s.Retry(now)
	case !now.After(last):
		now = last.Add(1)
	}
	s.Queued = now
	return s
}

// At returns the message at a time, and whether it is in the outbox still. A message that was queued for
// OutboxTTL has failed.
func (s Sent) At(now time.Time) (_ Sent, isKept bool) {
	if s.Failed.IsZero() && now.Sub(s.Queued) >= OutboxTTL {
		s.Code, s.Failed = "expired", s.Queued.Add(OutboxTTL)
	}
	return s, s.Failed.IsZero() || now.Sub(s.Failed) < OutboxTTL
}

// End returns the message after a delivery with some requests and the code of its failure. isRepeat is set if an
// earlier delivery, whose end may not be stored, may have reached the recipient.
func (s Sent) End(now time.Time, isRepeat bool, requests int, code string) Sent {
	s.Attempts += requests
	s.Attempted, s.Code, s.Failed = isRepeat || s.Attempts > 0, code, time.Time{}
	if !mayBecomeGood(code) {
		s.Failed = now
	}
	return s
}

// Retry returns the message in the queue. The time there of one that was queued for OutboxTTL begins again.
func (s Sent) Retry(now time.Time) Sent {
	s.Failed = time.Time{}
	if now.Sub(s.Queued) >= OutboxTTL {
		s.Queued = now
	}
	return s
}

// mayBecomeGood reports whether a message that failed with a code stays queued.
func mayBecomeGood(code string) bool {
	switch code {
	case "delivery_failed", "resolve_failed", "rate_limited", "bad_gateway", "unauthorized", "not_found", "unreachable", "bad_endpoint", "stale_key":
		return true
	}
	return false
}
