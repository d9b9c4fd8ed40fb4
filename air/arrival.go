// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package air

import (
	"errors"
	"time"

	"github.com/fivewire/fivewire/air/internal/core"
	"github.com/fivewire/fivewire/internal/budget"
)

// A Class is the kind of outcome of a received envelope (AIR-D73).
type Class string

// The classes.
const (
	ClassDone    Class = core.ClassDone    // the handler took it, now or earlier
	ClassRefused Class = core.ClassRefused // it can never become good
	ClassHeld    Class = core.ClassHeld    // authentic, but only a person or a changed configuration can help
	ClassLater   Class = core.ClassLater   // to be received again
)

// A ReceiveResult is the outcome of a received envelope.
type ReceiveResult struct {
	Class    Class
	Delivery *Delivery // nil unless the handler took it now
	Err      *Error    // why the handler did not take it now; nil also for a push that is queued

	// Final reports whether a relay may forget the envelope. Held mail is final only with a Store.
	Final bool

	Data      []byte    // as received; nil if it was too large
	Envelope  *Envelope // nil if it could not be decoded
	FromRelay bool

	isCopy bool // of an envelope that the handler took during the wait of the copy
}

// A classError is an error with another class than that of its code.
type classError struct {
	err   error
	class Class
}

func (e *classError) Error() string { return e.err.Error() }
func (e *classError) Unwrap() error { return e.err }

func holdable(err error) error  { return &classError{err, ClassHeld} }
func retryable(err error) error { return &classError{err, ClassLater} }

// errCopy is no error for the sender.
var errCopy = errors.New("the handler took another copy")

// classify returns the error and the class of an attempt that failed.
func classify(err error, via via) (*Error, Class) {
	e, given := asError(err), ""
	isElsewhere := errors.Is(e, core.ErrElsewhere)
	var c *classError
	switch {
	case errors.As(err, &c):
		given = string(c.class)
	case isElsewhere:
		given = core.ClassLater
	}
	if isElsewhere && via == viaPush {
		// A sender reads a replay as a success (AIR-D46), but the first copy may still fail.
		e = ErrRelay.because(core.ErrElsewhere.Error(), e)
	}
	return e, Class(core.ClassOf(string(e.Code), given, via == viaPush))
}

// A via is the way of an envelope to the inbox.
type via byte

const (
	viaPush   via = iota
	viaPull       // from a relay
	viaQueue      // a push that was answered with 202 (AIR-D80)
	viaLetter     // a dead letter
)

// An arrival is a received envelope before its handler has taken it. Its holds are those of a push over HTTP.
type arrival struct {
	data    []byte
	via     via
	arrived time.Time // the age of the envelope counts until then (AIR-D68)
	pulled  time.Time // when it was first pulled
	record  AuditRecord

	env   *Envelope     // decoded data, if not nil
	d     *Delivery     // once the signature has verified
	round *round        // of a pulled envelope
	slots chan struct{} // of handlers; nil means no bound

	isRemembered bool   // it was pulled before and is unsettled
	isOpen       bool   // an attempt may have changed the thread, and is not at its end
	isWaiting    bool   // it withdraws a pushed message that is not handled yet
	after        string // the id of the dead letter that the envelope waits for
	attempts     int    // failed calls of the handler
	failures     int    // of those, in this attempt

	err    error          // of the attempt
	result *ReceiveResult // of complete

	work, memory budget.Hold
	unverified   budget.Hold // until the signature has verified
}

func (a *arrival) release() {
	a.work.Release()
	a.memory.Release()
	a.unverified.Release()
}

// isFromRelay reports whether the envelope was pulled. A dead letter counts as pulled, since it does not record its way.
func (a *arrival) isFromRelay() bool { return a.via == viaPull || a.via == viaLetter }

// isForced reports whether the attempt does not wait until it is due (AIR-D75).
func (a *arrival) isForced() bool { return a.via == viaPush || a.via == viaLetter }

// isRepeated reports whether an envelope without a final outcome is received again by itself. Its waits count
// from the first time in this process, whatever the clock of the store and the downtime (AIR-D81).
func (a *arrival) isRepeated() bool { return a.via == viaPull || a.via == viaQueue }
