// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package core

import "time"

// starvedRetry is how long a stream gets no credit while no call of its shard frees memory.
const starvedRetry = time.Second

// Step takes one event at a time, and appends what follows from it. An event of all shards goes to each of them;
// its JudgeCall effects become CallJudged events in the order of [Compare].
func (sh *Shard) Step(now time.Time, e *Event, out []Effect) []Effect {
	sh.now, sh.out = now, out
	switch {
	case e.Kind <= SessionEnded:
		sh.sessionEvent(e)
	case e.Kind <= RuntimeChosen:
		sh.callEvent(e)
	case e.Kind <= CallLost:
		sh.answerEvent(e)
	case e.Kind <= SpaceFreed:
		sh.clientEvent(e)
	default:
		sh.otherEvent(e)
	}
	sh.grantAll()
	out, sh.out = sh.out, nil
	return out
}

func (sh *Shard) emit(e Effect) { sh.out = append(sh.out, e) }

func (sh *Shard) sessionEvent(e *Event) {
	switch e.Kind {
	case SessionOpened:
		sh.open(e.Session, e.Runtimes, e.At)
	case SessionProlonged:
		if !e.Session.isEnded {
			sh.timers.Set(&e.Session.expiry, e.At)
		}
	case SessionEnded:
		if !e.Session.isEnded {
			sh.endSession(e.Session, e.Text)
		}
	}
}

func (sh *Shard) callEvent(e *Event) {
	switch e.Kind {
	case CallReceived:
		sh.receiveCall(e)
	case CallClaimed:
		sh.claimed(e)
	case CallRecorded:
		sh.recorded(e)
	case CallJudged:
		sh.judgeAgain(e.Call)
	case RuntimeChosen:
		sh.chosen(e.Call, e.Runtime)
	}
}

func (sh *Shard) answerEvent(e *Event) {
	c := e.Call
	if e.Kind == AnswerClosed {
		sh.closeAnswer(c, e.Runtime)
		return
	}
	if !c.IsAt(e.Runtime) {
		if c.rt == e.Runtime && (e.Kind == ResultReceived || e.Kind == ChunkReceived && e.Chunk.Final) {
			sh.closeAnswer(c, e.Runtime)
		}
		sh.drop("the call has ended")
		return
	}
	switch e.Kind {
	case ResultReceived:
		sh.receiveResult(c, e)
	case ChunkReceived:
		sh.receiveChunk(c, e.Chunk)
	case AnswerBroken:
		sh.fail(c, CauseInvalid)
	case CallRefused:
		sh.refusedBy(c, e.Data)
	case CallLost:
		sh.lost(c)
	}
}

func (sh *Shard) clientEvent(e *Event) {
	switch e.Kind {
	case CreditReceived:
		sh.credit(e)
	case CallCancelled:
		sh.cancel(e.Session, e.ID, e.Text)
	case ConnClosed:
		sh.closeConn(e.Conn)
	case SpaceFreed:
		sh.resume(e.Conn)
	}
}

func (sh *Shard) otherEvent(e *Event) {
	switch e.Kind {
	case FulfillmentAsked:
		sh.fulfillmentAsked(e)
	case Fulfilled:
		sh.fulfilled(e)
	case RuntimeLost:
		sh.deferAll(sh.lose(e.Runtime))
	case TimerFired:
		if t := sh.timers.Next(sh.now); t != nil {
			sh.fire(t)
		}
	}
}

// fulfillmentAsked asks a Runtime for its fulfilments, in all sessions one by one unless it is a standing one.
func (sh *Shard) fulfillmentAsked(e *Event) {
	if e.N > 0 { // a standing Runtime
		sh.expect(nil, e.Runtime)
		return
	}
	for s := range sh.All() {
		sh.ask(s, e.Runtime)
	}
}

// fulfilled changes the fulfilments in one session, or in all, and routes the calls that waited for them.
func (sh *Shard) fulfilled(e *Event) {
	sh.change(e.Session, e.Change)
	switch {
	case e.Runtime == nil: // no Runtime has responded
	case e.Session != nil:
		for _, c := range sh.responded(e.Session, e.Runtime) {
			sh.judgeAgain(c)
		}
	default:
		sh.deferAll(sh.responded(nil, e.Runtime))
	}
}

// deferAll makes calls be judged in the order of all shards.
func (sh *Shard) deferAll(list []*Call) {
	for _, c := range list {
		sh.emit(Effect{Kind: JudgeCall, Call: c})
	}
}

// judgeAgain handles a call whose Runtime was lost, or that waits for one.
func (sh *Shard) judgeAgain(c *Call) {
	switch {
	case c.state == Running && !c.rt.IsConnected:
		sh.lost(c)
	case c.state == Held:
		sh.route(c)
	}
}

// The events of the timers of a call, and that of a shard.
type (
	callDeadline Call
	callGap      Call
	callGrace    Call
	starving     Shard
)

// fire handles a timer.
func (sh *Shard) fire(t *Timer) {
	switch t := t.Event.(type) {
	case *callDeadline:
		c := (*Call)(t)
		c.expire(sh.now)
		sh.fail(c, CauseDeadline)
	case *callGap:
		if c := (*Call)(t); c.state == Held { // it waits for an absent Runtime
			sh.route(c)
		} else {
			sh.fail(c, CauseGap)
		}
	case *callGrace:
		sh.fail((*Call)(t), CauseClientGone)
	case *Reader:
		sh.slow(t)
	case *Session:
		if t.IsShared && t.Slides {
			sh.emit(Effect{Kind: ExpireSession, Session: t})
		} else {
			sh.endSession(t, "expired")
		}
	case *Inquiry:
		for _, c := range sh.expired(t) {
			sh.judgeAgain(c)
		}
	case *starving:
		list := sh.starved
		sh.starved = nil
		for _, c := range list {
			c.isStarved = false
			sh.touch(c)
		}
	}
}

// endSession ends a session and everything in it (ALT-D19). Its id is free for the shard.
func (sh *Shard) endSession(s *Session, how string) {
	cause := CauseSessionDestroyed
	if how == "expired" {
		cause = CauseSessionExpired
	}
	s.isEnded = true
	sh.timers.Stop(&s.expiry)
	delete(sh.byID, s.ID)
	if !s.IsLink {
		sh.Counts.Sessions--
	}
	sh.live.remove(s, placeOf)
	for rt := range s.inquiries {
		sh.endInquiry(s, rt)
	}
	delete(sh.special, s)
	err := sh.env.Messages.Fault(cause, nil)
	sh.emit(Effect{Kind: AuditSession, Session: s, Text: "session.over", Data: err})
	for c := s.arrivals.first; c != nil; c = s.arrivals.first {
		if c.state == Ending { // ended before; recording it is unnecessary
			sh.announce(c)
		} else {
			sh.abort(c, err, Erred, causeReason[cause])
		}
	}
	for c := range s.tails {
		sh.dropTail(c, err)
	}
	sh.env.Outcomes.EndScope(&s.RecordScope)
	sh.emit(Effect{Kind: AnnounceEnd, Session: s, Text: how})
}

// causeReason has the reasons that the Runtime of a cancelled call gets (ALT-D32).
var causeReason = map[Cause]string{
	CauseSessionDestroyed: "session_destroyed", CauseSessionExpired: "session_expired", CauseDeadline: "timeout",
	CauseGap: "protocol_error", CauseUnexpected: "protocol_error", CauseInvalid: "protocol_error",
	CauseClientGone: "client_gone", CauseSlow: "slow_consumer", CauseTooLarge: "too_large",
}

func (sh *Shard) drop(why string) {
	sh.Counts.Dropped++
	sh.emit(Effect{Kind: DropMessage, Text: why})
}
