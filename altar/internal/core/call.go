// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package core

import (
	"slices"
	"time"
)

// A CallState is a state of a [Call].
type CallState uint8

// The states, in the order in which a call has them. A call may go back from Running to Held.
const (
	Claiming CallState = iota // its record is being looked for
	Held                      // no Runtime runs it
	Running
	Ending // its outcome is being recorded
	Done
)

// A CallResult is the end of a call as its Runtime is judged by it.
type CallResult uint8

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
	Params       int  // bytes of the parameters and the metadata
}

// callCost is the memory of a call besides its parameters, about.
const callCost = 2 << 10

// A Call is the state of one invocation (section e, call): its Runtime, its timers, its stream, its readers, the
// bytes that it holds and its outcome.
type Call struct {
	Contract string
	Pin      string // runtime id that the caller asked for
	Print    Fingerprint
	Account  Account
	Stream   *Stream // nil if the contract does not stream
	Data     any     // opaque

	// The timers of the call. Gap is that of a missing chunk or, of a held call, of an absent Runtime.
	deadline, gap, grace Timer

	id      string
	session *Session   // nil: the call was not entered
	seq     uint64     // in order of arrival
	arrival link[Call] // likewise

	limits        CallLimits
	timers        *Timers
	rt            *Runtime // once dispatched
	start         time.Time
	state         CallState
	hasFailedOver bool
	isAnswered    bool // the final message of the Runtime came
	isOwed        bool // it did not, and the call has ended
	isTrial       bool // tests whether the Runtime has recovered
	isShort       bool // the time of the caller is what ended the call

	hasID      bool       // the id is in use
	isClaimed  bool       // its record was made before the dispatch
	isCounted  bool       // as a turn, before the dispatch
	isChosen   bool       // a Runtime is being chosen
	isTouched  bool       // the base of the stream may have moved
	isStarved  bool       // there was no memory for a chunk
	isTaken    bool       // the refusal is that another call has the id
	refusal    any        // what the call gets unless it has an outcome
	tried      []*Runtime // that are lost with their Host, and then those that refused it
	avoided    int        // number of the former
	avoidsFrom time.Time  // when they were noted
	collected  int        // bytes of collected results
	charged    int64      // bytes of the Account
	end        ending     // once it is Ending
	result     any        // how it ended, if not with a chunk
	readers    []*Reader  // also after the end, while they do not have all chunks
	first      [1]*Reader // the first array of readers
}

// An ending is how a call ends: with a result, or with the last chunk of a stream.
type ending struct {
	result     any    // or
	chunk      *Chunk // the last one of a stream
	err        any    // of either
	hasOutcome bool   // it is kept for repeats (ALT-D22)
	drops      bool   // the chunks that wait for connections are dropped (ALT-D37)
	isRefused  bool   // the call did not run
}

func arrivalOf(c *Call) *link[Call] { return &c.arrival }

// Init makes a call a held one with limits.
func (c *Call) Init(l CallLimits) { c.limits, c.state = l, Held }

// State returns the state.
func (c *Call) State() CallState { return c.state }

// ID returns the invocation id.
func (c *Call) ID() string { return c.id }

// Session returns the session of the call.
func (c *Call) Session() *Session { return c.session }

// Runtime returns the Runtime that the call was dispatched to last, or nil.
func (c *Call) Runtime() *Runtime { return c.rt }

// IsAt reports whether a Runtime runs the call.
func (c *Call) IsAt(rt *Runtime) bool { return c.state == Running && c.rt == rt }

// Start returns when the call was dispatched first, or zero.
func (c *Call) Start() time.Time { return c.start }

// Bytes returns the memory of the call.
func (c *Call) Bytes() int64 {
	n := int64(callCost + c.limits.Params + c.collected)
	if c.Stream != nil {
		n += int64(c.Stream.Bytes())
	}
	return n
}

// cost is what the Account of the call is charged: its memory, and that of the chunks that its Runtime may send.
func (c *Call) cost() int64 {
	n := c.Bytes()
	if c.Stream != nil {
		n += int64(c.Stream.Reserved())
	}
	return n
}

// claim makes a held call wait for its record.
func (c *Call) claim() {
	c.unhold()
	c.timers.Stop(&c.gap)
	c.state = Claiming
}

// proceed makes a call whose record was looked for a held one. One that was cut off elsewhere has lost a Runtime.
func (c *Call) proceed(hasFailedOver bool) {
	c.state, c.hasFailedOver = Held, c.hasFailedOver || hasFailedOver
}

// avoid keeps the call from Runtimes that are lost with their Host, which no other event has reported. Those that fulfil
// its contract are waited for like absent ones.
func (c *Call) avoid(lost []*Runtime, now time.Time) {
	for _, rt := range lost {
		if c.session.Registry().CanTake(c.Contract, rt) {
			c.tried, c.avoidsFrom = append(c.tried, rt), now
		}
	}
	c.avoided = len(c.tried)
}

// choose bounds the time in which a Runtime is chosen for the call.
func (c *Call) choose(now time.Time) {
	c.unhold()
	c.timers.Stop(&c.gap)
	c.state, c.rt, c.isChosen = Held, nil, true
	c.timers.Set(&c.deadline, now.Add(c.limits.Limit))
}

// endChoice ends the time of choose.
func (c *Call) endChoice() {
	c.isChosen = false
	c.timers.Stop(&c.deadline)
}

// dispatch makes a Runtime run the call, whose Gate has admitted it.
func (c *Call) dispatch(rt *Runtime, isTrial bool, now time.Time) {
	c.unhold()
	c.timers.Stop(&c.gap)
	c.state, c.rt, c.isTrial = Running, rt, isTrial
	if c.start.IsZero() {
		c.start = now
	}
	if c.Stream != nil {
		c.Stream.Restart()
	}
	if c.Stream != nil || !c.deadline.IsSet() {
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
		c.timers.Set(&c.deadline, due)
	} else {
		c.timers.Stop(&c.deadline)
	}
}

// Rest returns the remaining time of a dispatched call as a whole, or zero.
func (c *Call) Rest(now time.Time) time.Duration {
	switch {
	case c.Stream == nil:
		return max(time.Millisecond, c.deadline.Due().Sub(now))
	case c.limits.Bound > 0:
		return max(time.Millisecond, c.start.Add(c.limits.Bound).Sub(now))
	}
	return 0
}

// expire notes that the deadline has passed.
func (c *Call) expire(now time.Time) {
	bound := c.limits.Bound
	c.isShort = bound > 0 && !now.Before(c.start.Add(bound)) && (c.Stream != nil || bound < c.limits.Limit)
}

// receive takes a chunk of the Runtime. A chunk within the credit of the Runtime is granted.
func (c *Call) receive(chunk Chunk, now time.Time) (v Verdict, final Chunk, isGranted bool) {
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
		c.timers.Stop(&c.gap)
	} else if !c.gap.IsSetTo(until) {
		c.timers.Set(&c.gap, until)
	}
	return v, final, isGranted
}

// acceptResult takes the result of the Runtime, and reports whether the call may have one: after a chunk
// of a stream it may not.
func (c *Call) acceptResult() bool {
	c.isAnswered = true
	return c.Stream == nil || c.Stream.Order().IsEmpty()
}

// reserve charges the bytes that the call holds at first.
func (c *Call) reserve() (refusal any) {
	c.charged = c.cost()
	return c.Account.Reserve(c.charged)
}

// IsTaken reports whether the call is refused since another call has its id.
func (c *Call) IsTaken() bool { return c.isTaken }

// canFailOver reports whether the call may run again after the loss of its Runtime (ALT-D24).
func (c *Call) canFailOver() bool {
	return c.limits.IsIdempotent && !c.limits.IsPinned && !c.hasFailedOver && (c.Stream == nil || c.Stream.Given() == 0)
}

// failOver takes a call from its lost Runtime.
func (c *Call) failOver(now time.Time) {
	c.timers.Stop(&c.gap)
	c.hasFailedOver = true
	c.requeue(now)
}

// requeue takes a call from a Runtime that does not run it.
func (c *Call) requeue(now time.Time) {
	c.rt.Gate.Release(Neutral, c.isTrial, now)
	c.state, c.rt, c.isAnswered = Held, nil, false
}

// release ends a call for its Runtime, and reports whether that ran it.
func (c *Call) release(r CallResult, now time.Time) (isRunning bool) {
	c.unhold()
	c.timers.Stop(&c.deadline)
	c.timers.Stop(&c.gap)
	c.timers.Stop(&c.grace)
	c.isOwed = false
	if c.state != Running {
		c.freeID()
		return false
	}
	c.rt.Gate.Release(c.outcome(r), c.isTrial, now)
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

// owing returns the Runtime that owes the final message of the ended call, or nil.
func (c *Call) owing() *Runtime {
	if c.isOwed && c.rt.IsConnected {
		return c.rt
	}
	return nil
}

// closeAnswer notes that no final message of the Runtime will come. The id of an ended call is free then.
func (c *Call) closeAnswer() {
	c.isAnswered, c.isOwed = true, false
	if c.state > Running {
		c.freeID()
	}
}

// attach adds a reader, and reports false if the chunks from an id on are not kept.
func (c *Call) attach(r *Reader, from, credit int64, now time.Time) bool {
	if c.Stream != nil && !c.Stream.Attach(r, from, credit, now) {
		return false
	}
	if c.readers == nil {
		c.readers = c.first[:0]
	}
	c.readers = append(c.readers, r)
	c.timers.Stop(&c.grace)
	return true
}

// detach removes a reader. Without one, a call that has not ended continues for the grace period.
func (c *Call) detach(r *Reader, grace time.Duration, now time.Time) {
	if c.Stream != nil {
		c.Stream.Detach(r)
	}
	if i := slices.Index(c.readers, r); i >= 0 {
		c.readers = slices.Delete(c.readers, i, i+1)
	}
	if len(c.readers) == 0 && c.state < Ending {
		c.timers.Set(&c.grace, now.Add(grace))
	}
}

// TakesCredit reports whether the call is a running one whose Runtime waits for credit.
func (c *Call) TakesCredit() bool { return c.state == Running && c.Stream != nil && c.rt.TakesCredit }

// raise raises the credit of the Runtime at the end of an event.
func (c *Call) raise(free int64, now time.Time) (credit int64, isRaised bool) {
	hadCredit := c.Stream.HasCredit()
	credit, isRaised = c.Stream.Raise(free)
	if isRaised && !hadCredit {
		c.setDeadline(now)
	}
	return credit, isRaised
}

// unraise takes back a raised credit that was not sent.
func (c *Call) unraise(old window, now time.Time) {
	c.Stream.window = old
	if !c.Stream.HasCredit() {
		c.setDeadline(now)
	}
}
