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

// A Phase is the phase of a received message (AIR-D74).
type Phase byte

// The phases.
const (
	New     Phase = iota
	Running       // being handled by its owner
	Failed        // will be handled again
	Done          // handled, refused or discarded
)

// A Received is the state of a received message, of a sender and an id, for all its copies.
type Received struct {
	Phase       Phase
	Attempts    int       // failed ones
	Next        time.Time // of a failed message: when it may be handled again (AIR-D75)
	Redelivered bool      // a process failed while it was handling the message
}

// An Owner is the process that began the running attempt of a message.
type Owner byte

// The owners.
const (
	Lost  Owner = iota // it has no lease, or there is no running attempt
	Self               // this process, which has given the attempt up
	Other              // another process with a lease
)

// An Attempt is an event of a received message: a copy of it is to be handled.
type Attempt struct {
	Now         time.Time
	Owner       Owner
	MaxAttempts int
	IsForced    bool // it waits for no delay, as a push
}

// Why an attempt must not begin now, besides [EarlyError].
var (
	ErrDone      = errors.New("the message is done")
	ErrElsewhere = errors.New("another copy of the envelope is being handled")
	ErrUsedUp    = errors.New("attempts used up")
)

// An EarlyError reports a copy that arrived before the next attempt is due.
type EarlyError struct{ Wait time.Duration }

// Error returns the text.
func (e *EarlyError) Error() string { return fmt.Sprintf("the next attempt is due in %v", e.Wait) }

// Begin returns the message during an attempt, or why none may begin.
func (r Received) Begin(a Attempt) (Received, error) {
	switch {
	case r.Phase == Done:
		return r, ErrDone
	case r.Phase == Running && a.Owner == Other:
		return r, ErrElsewhere
	case r.Phase == Running && a.Owner == Lost:
		r.Redelivered = true
	case r.Phase != Failed || a.IsForced:
	case r.Attempts >= a.MaxAttempts:
		return r, ErrUsedUp
	case a.Now.Before(r.Next):
		return r, &EarlyError{r.Next.Sub(a.Now)}
	}
	r.Phase, r.Next = Running, time.Time{}
	return r, nil
}

// Fail returns the message after a failed attempt, and the class of its copy. The attempts of a push are
// not bounded: its sender repeats it.
func (r Received) Fail(now time.Time, maxAttempts int, isPush bool) (Received, string) {
	delay := min(math.Ldexp(float64(HandlerDelay), r.Attempts), float64(maxHandlerDelay))
	r.Phase, r.Attempts, r.Next = Failed, r.Attempts+1, now.Add(time.Duration(delay))
	if !isPush && r.Attempts >= maxAttempts {
		return r, ClassHeld
	}
	return r, ClassLater
}

// IsOpen reports whether the message is being handled or will be handled again. One whose attempt does not
// come for half an hour is not: the sender's key has changed, so that the message is refused. waited is how
// long the copy of the other message has waited.
func (r Received) IsOpen(now time.Time, waited time.Duration, o Owner) bool {
	switch r.Phase {
	case Running:
		return o == Other || waited < maxDueWait
	case Failed:
		return now.Before(r.Next.Add(maxDueWait))
	}
	return false
}

// CheckClock returns the class of a copy that is outside the clock window, and "" for one that is inside.
// age is that at its arrival, ahead is how far it is ahead of the clock now. A message that the
// clock accepted earlier is not judged again.
func (r Received) CheckClock(isPush bool, age, ahead, maxPullAge time.Duration) string {
	switch {
	case isPush && (age > MaxAge || ahead > MaxSkew):
		return ClassRefused
	case isPush, r.Phase != New:
		return ""
	case age > maxPullAge, ahead > maxAhead:
		return ClassHeld
	case ahead > MaxSkew:
		return ClassLater
	}
	return ""
}

// ClassOf returns the class of a copy with an error: of the given class, or else of a code.
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
