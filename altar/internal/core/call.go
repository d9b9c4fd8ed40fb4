// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package core

import "time"

// A CallState is a state of a [Call].
type CallState int

// The states, in the order in which a call has them. A call may go back from Running to Held.
const (
	Claiming CallState = iota // its record is being looked for
	Held                      // no Runtime runs it
	Running
	Ending // its outcome is being recorded
	Done
)

// A CallResult is the end of a call as its Runtime is judged by it.
type CallResult int

// The results.
const (
	Succeeded CallResult = iota
	Erred                // the tool, or the caller
	BadAnswer            // one that breaks the protocol or the contract
	TimedOut
	Unavailable
)

// CallLimits are the bounds of a call (ALT-D25) and the properties of its contract.
type CallLimits struct {
	Limit        time.Duration // of the contract; of a stream: for its silence
	Bound        time.Duration // of the caller, for the call as a whole; zero: none
	IsIdempotent bool
	IsPinned     bool // to a Runtime
	Params       int  // bytes of the parameters
}

// callCost is the memory of a call besides its parameters, about.
const callCost = 2 << 10

// A Call is the state of one invocation (section e, call): its Runtime, its timers, its stream, its readers and
// the bytes that it holds. The caller picks the Runtime, and sends the messages that follow from an
// event.
type Call struct {
	Stream    *Stream // nil if the contract does not stream
	Collected int     // bytes of collected results

	// The timers of the call. Gap is that of a missing chunk or, of a held call, of an absent Runtime.
	Deadline, Gap, Grace Timer

	Data any // opaque

	id      string
	session *Session   // nil: the call was not entered
	seq     uint64     // in the session, in order of arrival
	arrival link[Call] // likewise

	limits        CallLimits
	timers        *Timers
	state         CallState
	rt            *Runtime // once dispatched
	start         time.Time
	readers       int
	hasFailedOver bool
	isAnswered    bool // the final message of the Runtime came
	isOwed        bool // it did not, and the call has ended
	isTrial       bool // tests whether the Runtime has recovered
	isShort       bool // the time of the caller is what ended the call
}

func arrivalOf(c *Call) *link[Call] { return &c.arrival }

// NewCall returns a held call. Without timers it is one that has ended.
func NewCall(l CallLimits, stream *Stream, timers *Timers) Call {
	c := Call{limits: l, Stream: stream, timers: timers, state: Held}
	if timers == nil {
		c.state = Done
	}
	return c
}

// State returns the state.
func (c *Call) State() CallState { return c.state }

// Seq returns the number of the call in its session.
func (c *Call) Seq() uint64 { return c.seq }

// Runtime returns the Runtime that the call was dispatched to last, or nil.
func (c *Call) Runtime() *Runtime { return c.rt }

// IsAt reports whether a Runtime runs the call.
func (c *Call) IsAt(rt *Runtime) bool { return c.state == Running && c.rt == rt }

// Start returns when the call was dispatched first, or zero.
func (c *Call) Start() time.Time { return c.start }

// HasFailedOver reports whether the call has lost a Runtime.
func (c *Call) HasFailedOver() bool { return c.hasFailedOver }

// Bytes returns the memory of the call.
func (c *Call) Bytes() int64 {
	n := int64(callCost + c.limits.Params + c.Collected)
	if c.Stream != nil {
		n += int64(c.Stream.Bytes())
	}
	return n
}

// Claim makes a held call wait for its record.
func (c *Call) Claim() {
	c.unhold()
	c.state = Claiming
}

// Continue makes a call with its record continue. One that was cut off elsewhere has lost a Runtime.
func (c *Call) Continue(hasFailedOver bool) {
	c.state, c.hasFailedOver = Held, c.hasFailedOver || hasFailedOver
}

// Wait makes a held call wait for an absent Runtime. At a time of zero nothing happens.
func (c *Call) Wait(until time.Time) {
	if !until.IsZero() {
		c.timers.Set(&c.Gap, until)
	}
}

// Choose bounds the time in which a Runtime is chosen for the call.
func (c *Call) Choose(now time.Time) {
	c.unhold()
	c.timers.Stop(&c.Gap)
	c.state, c.rt = Held, nil
	c.timers.Set(&c.Deadline, now.Add(c.limits.Limit))
}

// EndChoice ends the time of Choose.
func (c *Call) EndChoice() { c.timers.Stop(&c.Deadline) }

// Dispatch makes a Runtime run the call.
func (c *Call) Dispatch(rt *Runtime, now time.Time) {
	c.unhold()
	c.timers.Stop(&c.Gap)
	c.state, c.rt = Running, rt
	if rt.calls == nil {
		rt.calls = make(map[*Call]bool, 1)
	}
	rt.calls[c] = true
	c.isTrial = !c.limits.IsPinned && rt.Breaker.Begin()
	if c.start.IsZero() {
		c.start = now
	}
	if c.Stream != nil {
		c.Stream.Restart()
	}
	if c.Stream != nil || !c.Deadline.IsSet() {
		c.setDeadline(now)
	}
}

// setDeadline sets the timer of a running call. That of a stream begins at each dispatch and chunk, and is
// stopped while the Runtime has no credit.
func (c *Call) setDeadline(now time.Time) {
	due := now.Add(c.limits.Limit)
	isSilent := c.Stream == nil || c.Stream.HasCredit() || !c.rt.TakesCredit
	if end := c.start.Add(c.limits.Bound); c.limits.Bound > 0 && (!isSilent || end.Before(due)) {
		isSilent, due = true, end
	}
	if isSilent {
		c.timers.Set(&c.Deadline, due)
	} else {
		c.timers.Stop(&c.Deadline)
	}
}

// Rest returns the remaining time of a dispatched call as a whole, or zero.
func (c *Call) Rest(now time.Time) time.Duration {
	switch {
	case c.Stream == nil:
		return max(time.Millisecond, c.Deadline.Due().Sub(now))
	case c.limits.Bound > 0:
		return max(time.Millisecond, c.start.Add(c.limits.Bound).Sub(now))
	}
	return 0
}

// Expire notes that the deadline has passed.
func (c *Call) Expire(now time.Time) {
	bound := c.limits.Bound
	c.isShort = bound > 0 && !now.Before(c.start.Add(bound)) && (c.Stream != nil || bound < c.limits.Limit)
}

// Receive takes a chunk of the Runtime. A chunk within the credit of the Runtime is granted.
func (c *Call) Receive(chunk Chunk, now time.Time) (v Verdict, final Chunk, isGranted bool) {
	c.isAnswered = c.isAnswered || chunk.Final
	if c.Stream == nil {
		return Unexpected, Chunk{}, false
	}
	isGranted = c.rt.TakesCredit && chunk.ID < c.Stream.Credit()
	if v, final = c.Stream.Accept(chunk, now); v != Accepted {
		return v, final, isGranted
	}
	c.setDeadline(now)
	if until, isWaiting := c.Stream.Order().Waiting(); !isWaiting {
		c.timers.Stop(&c.Gap)
	} else if !c.Gap.IsSetTo(until) {
		c.timers.Set(&c.Gap, until)
	}
	return v, final, isGranted
}

// AcceptResult takes the result of the Runtime, and reports whether the call may have one: after a chunk
// of a stream it may not.
func (c *Call) AcceptResult() bool {
	c.isAnswered = true
	return c.Stream == nil || c.Stream.Order().IsEmpty()
}

// CanFailOver reports whether the call may run again after the loss of its Runtime (ALT-D24).
func (c *Call) CanFailOver() bool {
	return c.limits.IsIdempotent && !c.limits.IsPinned && !c.hasFailedOver && (c.Stream == nil || c.Stream.Given() == 0)
}

// FailOver takes a call from its lost Runtime.
func (c *Call) FailOver() {
	c.timers.Stop(&c.Gap)
	c.hasFailedOver = true
	c.requeue()
}

// Refuse takes a call from a Runtime that does not run it.
func (c *Call) Refuse() { c.requeue() }

func (c *Call) requeue() {
	delete(c.rt.calls, c)
	c.rt.Breaker.End(Neutral, c.isTrial, 0, 0, time.Time{})
	c.state, c.rt, c.isAnswered = Held, nil, false
}

// Release ends a call for its Runtime, and reports whether that ran it.
func (c *Call) Release(r CallResult, tripsAfter int, pause time.Duration, now time.Time) (isRunning bool) {
	c.unhold()
	c.timers.Stop(&c.Deadline)
	c.timers.Stop(&c.Gap)
	c.timers.Stop(&c.Grace)
	c.isOwed = false
	if c.state != Running {
		c.freeID()
		return false
	}
	delete(c.rt.calls, c)
	c.rt.Breaker.End(c.outcome(r), c.isTrial, tripsAfter, pause, now)
	if c.isOwed = !c.isAnswered && c.rt.IsConnected; !c.isOwed {
		c.freeID()
	}
	return true
}

// outcome returns the end of a call as the breaker of its Runtime counts it. A shorter time of the caller does
// not count.
func (c *Call) outcome(r CallResult) Outcome {
	switch {
	case r == BadAnswer, r == TimedOut && !c.isAnswered && !c.isShort, r == Unavailable && c.isAnswered:
		return Failure
	case c.isAnswered:
		return Success
	}
	return Neutral
}

// Owing returns the Runtime that owes the final message of the ended call, or nil.
func (c *Call) Owing() *Runtime {
	if c.isOwed && c.rt.IsConnected {
		return c.rt
	}
	return nil
}

// IsOwed reports whether the Runtime of the ended call owed its final message.
func (c *Call) IsOwed() bool { return c.isOwed }

// CloseAnswer notes that no final message of the Runtime will come. The id of an ended call is free then.
func (c *Call) CloseAnswer() {
	c.isAnswered, c.isOwed = true, false
	if c.state > Running {
		c.freeID()
	}
}

// End moves a released call to Ending or to Done.
func (c *Call) End(s CallState) { c.state = s }

// Attach adds a reader, and reports false if the chunks from an id on are not kept.
func (c *Call) Attach(r *Reader, from, credit int64, now time.Time) bool {
	if c.Stream != nil && !c.Stream.Attach(r, from, credit, now) {
		return false
	}
	c.readers++
	c.timers.Stop(&c.Grace)
	return true
}

// Detach removes a reader. Without one, a call that has not ended continues for the grace period.
func (c *Call) Detach(r *Reader, grace time.Duration, now time.Time) {
	if c.Stream != nil {
		c.Stream.Detach(r)
	}
	c.readers--
	if c.readers == 0 && c.state < Ending {
		c.timers.Set(&c.Grace, now.Add(grace))
	}
}

// TakesCredit reports whether the call is a running one whose Runtime waits for credit.
func (c *Call) TakesCredit() bool { return c.state == Running && c.Stream != nil && c.rt.TakesCredit }

// Raise raises the credit of the Runtime at the end of an event.
func (c *Call) Raise(now time.Time) (credit int64, isRaised bool) {
	hadCredit := c.Stream.HasCredit()
	credit, isRaised = c.Stream.Raise()
	if isRaised && !hadCredit {
		c.setDeadline(now)
	}
	return credit, isRaised
}
