// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package core

import (
	"slices"
	"time"
)

// receiveCall makes the checks of ALT-D23 from the repeat on, and starts a call.
func (sh *Shard) receiveCall(e *Event) {
	c, s := e.Call, e.Session
	if s.isEnded {
		sh.refuse(e, sh.fault(CauseUnknownSession))
		return
	}
	if before := s.calls[e.ID]; before != nil {
		sh.repeat(before, e)
		return
	}
	if sh.env.Outcomes.Find(&s.RecordScope, e.ID, &sh.found) {
		r := sh.found
		sh.replay(&r, e)
		sh.found = Record{}
		return
	}
	c.session, c.id = s, e.ID // an answer finds the call by its id
	c.refusal = e.Data
	if c.refusal == nil {
		c.refusal = sh.admit(c)
		c.isTaken = c.refusal != nil && e.N == 0
	}
	if c.refusal == nil && e.N > 0 {
		c.refusal = sh.fault(CauseUnknownCall)
	}
	if c.refusal == nil {
		c.refusal = c.reserve()
	}
	c.timers = &sh.timers
	c.deadline.Event, c.gap.Event, c.grace.Event = (*callDeadline)(c), (*callGap)(c), (*callGrace)(c)
	s.enter(c, e.ID)
	sh.Counts.InFlight++
	sh.Counts.Busy++
	sh.attach(c, e)
	sh.claim(c)
}

// admit takes the id of a call.
func (sh *Shard) admit(c *Call) (refusal any) {
	if other := sh.env.IDs.Use(c.id, c); other != nil {
		return sh.fault(CauseInUse)
	}
	c.hasID = true
	if sc := sh.env.Outcomes.OwedTo(c.id); sc != nil && sc != &c.session.RecordScope {
		c.freeID()
		return sh.fault(CauseInUse)
	}
	return nil
}

// admitContinued admits a call whose id was in use on its arrival. That may have been its first run, for a Host that
// has failed since: a Runtime of this one ran it.
func (sh *Shard) admitContinued(c *Call) (refusal any) {
	if refusal = sh.admit(c); refusal == nil {
		refusal = c.reserve()
	}
	return refusal
}

func (sh *Shard) fault(cause Cause) any { return sh.env.Messages.Fault(cause, nil) }

// refuse answers a request for a call that is not started.
func (sh *Shard) refuse(e *Event, err any) {
	sh.Counts.Rejected++
	sh.emit(Effect{Kind: RefuseCall, Reader: e.Reader, Session: e.Session, Text: e.ID, IsNew: true, IsAtOnce: true, Data: err})
}

// slide prolongs a session that is used, if it is that kind (ALT-D19).
func (sh *Shard) slide(s *Session) {
	if s.Slides && !s.isEnded {
		sh.timers.Set(&s.expiry, sh.now.Add(s.TTL))
		sh.emit(Effect{Kind: ProlongSession, Session: s})
	}
}

// repeat attaches the second request with an invocation id in its session (ALT-D22).
func (sh *Shard) repeat(c *Call, e *Event) {
	switch {
	case c.Print != e.Call.Print:
		sh.refuse(e, sh.fault(CauseReused))
		return
	case slices.ContainsFunc(c.readers, func(r *Reader) bool { return r.Conn == e.Conn }):
		sh.drop("a repeat on the same connection")
	case !sh.attach(c, e):
		sh.refuse(e, sh.fault(CauseNotRetained))
		return
	default:
		e.Call.Account.Release() // the first call has the parameters
		sh.emit(Effect{Kind: AuditCall, Call: c, Reader: e.Reader, Text: "call.joined"})
		sh.pump(e.Reader)
	}
	sh.slide(e.Session)
}

// replay answers a request with an invocation id that was used before.
func (sh *Shard) replay(r *Record, e *Event) {
	s, c := e.Session, e.Call
	c.id = e.ID
	switch {
	case r.isShort:
		sh.refuse(e, sh.fault(CauseNotRetained))
		return
	case r.Print != c.Print.Short():
		sh.refuse(e, sh.fault(CauseReused))
		return
	case s.hasTail(e.ID, e.Conn):
		sh.drop("a repeat on the same connection")
	case !r.isStream || r.Kept == "":
		result := r.Payload
		switch {
		case r.Kept != "":
			result = sh.env.Messages.Kept(c, r.Kept)
		case result == nil:
			result = sh.env.Messages.Result(c, sh.fault(CauseNotRetained))
		}
		e.Reader.call = c
		sh.emit(Effect{Kind: AuditReplay, Session: s, Record: r, Reader: e.Reader, Text: e.ID})
		sh.emit(Effect{Kind: GiveMessage, Session: s, Reader: e.Reader, Data: result})
	case !sh.replayStream(Restored(sh.env.Messages.KeptStream(c, r.Kept)), r, e):
		sh.refuse(e, sh.fault(CauseNotRetained))
		return
	}
	sh.slide(s)
}

// hasTail reports whether an ended call still has chunks for a connection.
func (s *Session) hasTail(id string, conn *Conn) bool {
	for c := range s.tails {
		if c.id == id && slices.ContainsFunc(c.readers, func(r *Reader) bool { return r.Conn == conn }) {
			return true
		}
	}
	return false
}

// replayStream gives the chunks of an ended stream again, and reports false if they are not kept.
func (sh *Shard) replayStream(stream *Stream, r *Record, e *Event) bool {
	if last := stream.Last(); e.Reader.Collector != nil && last.Err != nil {
		e.N = last.ID // the parts are dropped anyway
	}
	c := e.Call
	c.Stream, c.session, c.id, c.timers, c.state = stream, e.Session, e.ID, &sh.timers, Done
	if !sh.attach(c, e) {
		return false
	}
	sh.emit(Effect{Kind: AuditReplay, Session: e.Session, Record: r, Reader: e.Reader, Text: e.ID})
	sh.pump(e.Reader)
	sh.linger(c) // the rest may wait
	return true
}

// claim looks for the record of a call, and makes it unless the call is refused.
func (sh *Shard) claim(c *Call) {
	c.claim()
	sh.emit(Effect{Kind: ClaimCall, Call: c, Data: c.refusal})
}

// CanRun reports whether a Runtime could take a call now.
func (sh *Shard) CanRun(c *Call) bool {
	d := sh.demand(c)
	_, lack := c.session.Registry().Route(&d)
	return lack == NoLack
}

// claimed continues a call whose record was looked for.
func (sh *Shard) claimed(e *Event) {
	c := e.Call
	if c.state == Ending { // it was ended in the meantime
		sh.endedEarly(c, e)
		return
	}
	if c.state != Claiming {
		return
	}
	c.proceed(e.Claim == ClaimContinued)
	c.avoid(e.Runtimes, sh.now)
	c.isClaimed = e.Claim == ClaimGranted || e.Claim == ClaimContinued
	if e.Claim == ClaimContinued && c.isTaken {
		c.refusal = sh.admitContinued(c)
	}
	switch {
	case e.Claim == ClaimReplayed:
		c.release(Succeeded, sh.now)
		sh.audit(c, "call.replayed", nil)
		sh.adopt(c, e.Data, false)
	case e.Claim == ClaimFailed:
		sh.turnDown(c, e.Data)
	case c.refusal != nil && e.Claim == ClaimContinued:
		sh.fail(c, CauseDisconnected) // its first run has not ended
	case c.refusal != nil:
		sh.turnDown(c, c.refusal)
	default:
		sh.slide(c.session)
		sh.route(c)
	}
}

// endedEarly announces the end of a call that ended before its claim.
func (sh *Shard) endedEarly(c *Call, e *Event) {
	switch e.Claim {
	case ClaimReplayed:
		sh.audit(c, "call.replayed", nil)
		sh.adopt(c, e.Data, false)
	case ClaimGranted, ClaimContinued:
		c.isClaimed = true // its end is being recorded
	default:
		c.end.hasOutcome = false
		sh.announce(c)
	}
}

// demand returns the requirements of a call for a Runtime.
func (sh *Shard) demand(c *Call) Demand {
	return Demand{Contract: c.Contract, Pin: c.Pin, Turn: c.session.Turn(c.Contract), Now: sh.now, Bytes: c.limits.Params, Tried: c.tried}
}

// route routes a held call, or makes it wait, or ends it.
func (sh *Shard) route(c *Call) {
	if c.isChosen {
		return
	}
	lack := sh.place(c)
	switch {
	case lack == NoLack:
	case lack != NoSpace && !c.session.IsLink && sh.waits(c): // the other Host finds another Runtime at once
		c.session.hold(c)
	case c.hasFailedOver:
		sh.fail(c, lackCause[lack]) // it has run
	default:
		sh.turnDown(c, sh.env.Messages.Fault(lackCause[lack], c))
	}
}

var lackCause = map[Lack]Cause{NotFulfilled: CauseNotFulfilled, NotConnected: CauseRuntimeDown, NoSpace: CauseOverloaded}

// place finds a Runtime for a call and dispatches it, unless its record must be made or its Runtime be chosen first.
func (sh *Shard) place(c *Call) Lack {
	d := sh.demand(c)
	rt, lack := c.session.Registry().Route(&d)
	switch {
	case lack == NotFulfilled && !c.avoidsFrom.IsZero():
		return NotConnected
	case lack != NoLack:
		return lack
	}
	switch {
	case !c.isClaimed:
		sh.claim(c) // it has waited without a record
	case c.Pin == "" && sh.env.HasRouter && !rt.IsRemote:
		c.choose(sh.now)
		sh.emit(Effect{Kind: ChooseRuntime, Call: c, Runtimes: c.session.Registry().Candidates(&d), N: int64(d.Turn)})
		c.session.countTurn(c.Contract)
	default:
		isTrial, ok := rt.Gate.Admit(c.limits.Params, c.Pin != "", sh.now)
		if !ok { // another shard has taken the place
			return NoSpace
		}
		sh.dispatch(c, rt, isTrial)
	}
	return NoLack
}

// waits reports whether a call that no Runtime can take waits for one, and makes it be judged again.
func (sh *Shard) waits(c *Call) bool {
	until, waits := sh.waitsUntil(c)
	if !until.IsZero() {
		c.timers.Set(&c.gap, until)
	}
	return waits
}

// waitsUntil reports whether a call that no Runtime can take waits for one, and until when it waits for an absent one.
func (sh *Shard) waitsUntil(c *Call) (until time.Time, waits bool) {
	since := c.session.Registry().AbsentSince(c.Contract, c.Pin)
	if c.avoidsFrom.After(since) {
		since = c.avoidsFrom
	}
	until = since.Add(sh.env.Limits.RuntimeGrace)
	if until.After(sh.now) {
		return until, true
	}
	return time.Time{}, c.session.isExpected(c.Pin)
}

// dispatch sends a call to a Runtime that has admitted it (ALT-116).
func (sh *Shard) dispatch(c *Call, rt *Runtime, isTrial bool) {
	if c.Pin == "" && !c.isCounted {
		c.session.countTurn(c.Contract)
	}
	c.isCounted = false
	c.dispatch(rt, isTrial, sh.now)
	sh.lane(rt).calls[c] = true
	sh.Counts.Dispatched++
	sh.emit(Effect{Kind: SendCall, Call: c, Runtime: rt})
	sh.audit(c, "call.dispatched", nil)
}

func (sh *Shard) audit(c *Call, operation string, err any) {
	if sh.env.HasAudit {
		sh.emit(Effect{Kind: AuditCall, Call: c, Runtime: c.rt, Text: operation, Data: err})
	}
}

// chosen dispatches a call to the Runtime that was chosen for it. If the Runtime has left by then, the call is routed
// again.
func (sh *Shard) chosen(c *Call, rt *Runtime) {
	if c.state != Held || !c.isChosen {
		return // the call has ended
	}
	c.endChoice()
	if !c.session.Registry().CanTake(c.Contract, rt) {
		sh.route(c)
		return
	}
	isTrial, ok := rt.Gate.Admit(c.limits.Params, false, sh.now)
	if !ok {
		sh.route(c)
		return
	}
	c.isCounted = true
	sh.dispatch(c, rt, isTrial)
}

// leaveLane takes a call from its Runtime.
func (sh *Shard) leaveLane(c *Call) {
	if l := sh.lanes[c.rt]; l != nil {
		delete(l.calls, c)
	}
}

// lost handles a call whose Runtime has disconnected (ALT-D24).
func (sh *Shard) lost(c *Call) {
	if c.canFailOver() && sh.failOver(c) {
		return
	}
	sh.fail(c, CauseDisconnected)
}

// failOver gives a call to another Runtime, or makes it wait for one.
func (sh *Shard) failOver(c *Call) bool {
	if c.rt.IsRemote {
		c.tried = append(c.tried, c.rt)
	}
	canRun := sh.CanRun(c)
	if _, canWait := sh.waitsUntil(c); !canRun && !canWait {
		return false
	}
	sh.leaveLane(c)
	c.failOver(sh.now)
	switch {
	case canRun && sh.place(c) == NoLack:
	case sh.waits(c):
		c.session.hold(c)
	default:
		sh.fail(c, CauseDisconnected)
	}
	return true
}

// refusedBy routes a call again that its Runtime does not run. The call did not begin.
func (sh *Shard) refusedBy(c *Call, err any) {
	c.tried = append(c.tried, c.rt)
	sh.leaveLane(c)
	c.requeue(sh.now)
	lack := sh.place(c)
	switch {
	case lack == NoLack:
	case lack != NoSpace && sh.waits(c):
		c.tried = c.tried[:c.avoided] // each of the others may take the call when it is judged again
		c.session.hold(c)
	case c.hasFailedOver:
		sh.fail(c, CauseDisconnected)
	default:
		sh.turnDown(c, err)
	}
}

// turnDown ends a call that does not run.
func (sh *Shard) turnDown(c *Call, err any) {
	sh.Counts.Rejected++
	sh.audit(c, "call.refused", err)
	sh.endWith(c, ending{err: err, isRefused: true}, Erred)
}
