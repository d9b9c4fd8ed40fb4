// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package core

import (
	"errors"
	"fmt"
	"math"
	"time"
)

// The classes of the outcome of a received envelope (AIR-D73).
const (
	ClassDone    = "done"
	ClassRefused = "refused"
	ClassHeld    = "held"
	ClassLater   = "later"
)

// The clock window of 6.2, inclusive, and how far ahead of the clock a pulled envelope may be to be
// received later (AIR-D68).
const (
	MaxAge   = 300 * time.Second
	MaxSkew  = 30 * time.Second
	maxAhead = time.Hour
)

// Delays between two calls of a handler (AIR-D75), and the limit of the wait for an attempt that is due
// (AIR-D77).
const (
	HandlerDelay    = 5 * time.Second
	maxHandlerDelay = 5 * time.Minute
	maxDueWait      = 30 * time.Minute
)

// A Received is what earlier attempts left of a message that is not done (AIR-D74). That one attempt runs at a time, and
// none after the last one, is the matter of its claim.
type Received struct {
	IsKnown     bool      // an earlier attempt has begun
	Attempts    int       // failed ones
	Next        time.Time // when the handler may be called again (AIR-D75)
	Redelivered bool      // an attempt was cut off, so that the handler may have acted
}

// An Attempt is an event of a received message: a copy of it is to be handled.
type Attempt struct {
	Now         time.Time
	MaxAttempts int
	IsForced    bool // it waits for no delay, as a push
}

// Why a message is not handled now, besides [EarlyError].
var (
	ErrElsewhere = errors.New("another copy of the envelope is being handled")
	ErrUsedUp    = errors.New("attempts used up")
)

// An EarlyError reports a copy that arrived before the next attempt is due.
type EarlyError struct{ Wait time.Duration }

// Error returns the text.
func (e *EarlyError) Error() string { return fmt.Sprintf("the next attempt is due in %v", e.Wait) }

// Begin returns why no attempt may begin, or nil.
func (r Received) Begin(a Attempt) error {
	switch {
	case a.IsForced:
	case r.Attempts > 0 && r.Attempts >= a.MaxAttempts:
		return ErrUsedUp
	case a.Now.Before(r.Next) && r.Next.Sub(a.Now) <= 2*delayAfter(r.Attempts-1): // else a clock was wrong
		return &EarlyError{r.Next.Sub(a.Now)}
	}
	return nil
}

// delayAfter returns the delay between two calls of the handler, the first of which follows some failures.
func delayAfter(failures int) time.Duration {
	return time.Duration(min(math.Ldexp(float64(HandlerDelay), failures), float64(maxHandlerDelay)))
}

// Fail returns the message after a failed attempt, and the class of its copy. The attempts of a push are
// not bounded: its sender repeats it.
func (r Received) Fail(now time.Time, maxAttempts int, isPush bool) (Received, string) {
	r.IsKnown, r.Attempts, r.Next = true, r.Attempts+1, now.Add(delayAfter(r.Attempts))
	if !isPush && r.Attempts >= maxAttempts {
		return r, ClassHeld
	}
	return r, ClassLater
}

// Cut returns the message after an attempt that was cut off and does not count as a failure (AIR-D75).
func (r Received) Cut() Received {
	r.IsKnown, r.Redelivered, r.Next = true, true, time.Time{}
	return r
}

// A Claim is who handles a message.
type Claim byte

// The claims.
const (
	Free    Claim = iota // no attempt runs
	Running              // an attempt runs
	Lost                 // the process of the attempt has failed
)

// IsOpen reports whether the message will be handled again. One whose attempt does not come for half an hour
// is not: the sender's key has changed, so that the message is refused. waited is how long the copy of the
// other message has waited.
func (r Received) IsOpen(now time.Time, waited time.Duration, c Claim) bool {
	switch c {
	case Running:
		return true
	case Lost:
		return waited < maxDueWait
	}
	return r.IsKnown && (now.Before(r.Next.Add(maxDueWait)) || r.Next.IsZero() && waited < maxDueWait)
}

// CheckClock returns the class of a copy that is outside the clock window, and "" for one that is inside.
// age is that at its arrival, ahead is how far it is ahead of the clock now. A message that the
// clock accepted earlier is not judged again.
func (r Received) CheckClock(isPush bool, age, ahead, maxPullAge time.Duration) string {
	switch {
	case isPush && (age > MaxAge || ahead > MaxSkew):
		return ClassRefused
	case isPush, r.IsKnown:
		return ""
	case age > maxPullAge, ahead > maxAhead:
		return ClassHeld
	case ahead > MaxSkew:
		return ClassLater
	}
	return ""
}

// ClassOf returns the class of a copy with an error: the given class, or else that of a code.
func ClassOf(code, given string, isPush bool) string {
	class := given
	if class == "" {
		switch code {
		case "replay":
			class = ClassDone
		case "bad_gateway", "relay_error", "replay_window_exhausted", "stale_key":
			class = ClassLater
		default:
			class = ClassRefused
		}
	}
	if isPush && class == ClassHeld {
		return ClassRefused // the sender has the message
	}
	return class
}
