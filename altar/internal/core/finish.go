// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package core

import (
	"slices"
	"unique"
)

// receiveResult is the answer of a Runtime (ALT-077).
func (sh *Shard) receiveResult(c *Call, e *Event) {
	if c.acceptResult() {
		sh.endWith(c, ending{result: e.Data, err: e.Err, hasOutcome: true}, e.Result)
		return
	}
	if e.Err != nil { // it ends the stream
		sh.finish(c, ending{err: e.Err, hasOutcome: true}, e.Result, "")
		return
	}
	sh.fail(c, CauseResultInStream)
}

// receiveChunk is a part of an answer (ALT-083, ALT-D28).
func (sh *Shard) receiveChunk(c *Call, chunk Chunk) {
	verdict, final, isGranted := c.receive(chunk, sh.now)
	switch verdict {
	case Unexpected:
		sh.fail(c, CauseUnexpected)
		return
	case Gap:
		sh.fail(c, CauseGap)
		return
	case Late:
		sh.drop("late or doubled")
		return
	}
	sh.Counts.Chunks++
	stream := c.Stream
	sh.pumpAll(c)
	stream.fresh = nil
	if verdict == Final {
		last := final // so that final stays on the stack
		sh.endWith(c, ending{chunk: &last, err: final.Err, hasOutcome: true}, final.Result)
		return
	}
	sh.bound(c, isGranted)
}

// bound ends the connections that are farthest behind while a stream holds too much. Chunks within the credit of the
// Runtime are bounded by it.
func (sh *Shard) bound(c *Call, isGranted bool) {
	for c.state == Running && (!isGranted && c.Stream.Unread() > sh.env.Limits.StreamBuffer || sh.charge(c) != nil) {
		slowest := c.Stream.Lowest()
		if slowest == nil {
			sh.abort(c, sh.fault(CauseSlow), Erred, causeReason[CauseSlow])
			return
		}
		sh.slow(slowest)
	}
}

// charge charges the bytes that a call holds now. Without space it drops the chunks that are kept for repeats.
func (sh *Shard) charge(c *Call) (err any) {
	n := c.cost()
	if n == c.charged {
		return nil
	}
	if err = c.Account.Resize(n); err != nil && c.Stream != nil && c.Stream.Forget() {
		n = c.cost()
		err = c.Account.Resize(n)
	}
	if err == nil {
		sh.hasFreed = sh.hasFreed || n < c.charged
		c.charged = n
	}
	return err
}

// fail ends a call for a cause, and records it.
func (sh *Shard) fail(c *Call, cause Cause) {
	sh.finish(c, ending{err: sh.env.Messages.Fault(cause, c), hasOutcome: true}, cause.result(), causeReason[cause])
}

// abort ends a call with an error, and records it. The connections of a stream get the error in place of the chunks
// that wait for them.
func (sh *Shard) abort(c *Call, err any, r CallResult, reason string) {
	sh.finish(c, ending{err: err, hasOutcome: true, drops: true}, r, reason)
}

// finish ends a call with an error: with a result before the first chunk, and with the final chunk after it
// (ALT-D28). A Runtime with the capability gets the reason (ALT-D32).
func (sh *Shard) finish(c *Call, e ending, r CallResult, reason string) {
	if e.drops && c.Stream != nil {
		c.Stream.Truncate()
	}
	if c.Stream != nil && c.Stream.Next() > 0 {
		id := c.Stream.Next()
		last := sh.env.Messages.Last(c, id, e.err)
		e.chunk = &Chunk{ID: id, Size: sh.env.Messages.Size(last), Final: true, Err: e.err, Data: last}
	} else {
		e.result = sh.env.Messages.Result(c, e.err)
	}
	if c.state == Running && reason != "" {
		sh.emit(Effect{Kind: SendCancel, Runtime: c.rt, Call: c, Text: reason})
	}
	sh.endWith(c, e, r)
}

// endWith ends a call. The Runtime is released at once; waiting callers get the outcome after it was recorded.
func (sh *Shard) endWith(c *Call, e ending, r CallResult) {
	isHeld := c.state < Running && e.hasOutcome
	c.isChosen = false
	if c.state == Running {
		sh.leaveLane(c)
	}
	isRunning := c.release(r, sh.now)
	switch {
	case isRunning && e.err == nil:
		sh.Counts.Succeeded++
	case isRunning:
		sh.Counts.Failed++
	}
	if sh.env.HasAudit && (isRunning || isHeld) {
		done := Effect{Kind: FinishCall, Call: c, Data: e.err}
		if c.Stream != nil {
			done.N = c.Stream.Order().Expected()
		}
		sh.emit(done)
	}
	isClaiming := c.state == Claiming
	c.end = e
	switch {
	case !c.isClaimed && !isClaiming:
		sh.announce(c)
	case c.session.isEnded: // no caller waits for the outcome
		sh.emit(Effect{Kind: AbandonCall, Call: c})
		sh.announce(c)
	default:
		c.state = Ending
		sh.emit(Effect{Kind: RecordCall, Call: c})
	}
}

// Ending returns the outcome of a call that is being recorded: a result, or the last chunk of its stream, and whether
// it is kept for repeats.
func (c *Call) Ending() (result any, last *Chunk, isKept bool) {
	return c.end.result, c.end.chunk, c.end.hasOutcome
}

// recorded announces the end of a call whose outcome was recorded.
func (sh *Shard) recorded(e *Event) {
	c := e.Call
	switch {
	case c.state != Ending: // the session has ended
	case e.Claim == ClaimReplayed: // the lease had expired, and another Host answered this call
		sh.adopt(c, e.Data, true)
	case e.Claim == ClaimFailed: // another attempt may give another result
		c.end = ending{result: sh.env.Messages.Result(c, e.Data), err: e.Data}
		sh.announce(c)
	default:
		sh.announce(c)
	}
}

// announce sends the outcome of a call to its waiting callers.
func (sh *Shard) announce(c *Call) {
	c.state = Done
	e := &c.end
	switch {
	case e.isRefused:
		for _, r := range c.readers {
			sh.emit(Effect{Kind: RefuseCall, Reader: r, Session: c.session, Text: c.id, Data: e.err, IsAtOnce: c.refusal != nil})
		}
		sh.leaveAll(c)
	case e.drops && c.Stream != nil:
		for _, r := range c.readers {
			sh.endAt(r, e.err)
		}
		sh.leaveAll(c)
		if c.result = e.result; e.chunk != nil {
			c.Stream.End(*e.chunk, sh.now)
		}
	case e.chunk != nil:
		c.Stream.End(*e.chunk, sh.now)
		sh.pumpAll(c)
	default:
		sh.giveResult(c, e.result)
	}
	sh.remove(c)
}

// giveResult gives all connections of a call its result.
func (sh *Shard) giveResult(c *Call, result any) {
	c.result = result
	for _, r := range c.readers {
		sh.emit(Effect{Kind: GiveMessage, Session: c.session, Reader: r, Data: result})
	}
	sh.leaveAll(c)
}

// A Replay is the outcome of a call in the store: a result, or the chunks that were kept.
type Replay struct {
	Result any
	Chunks []Chunk
}

// adopt ends a call with the outcome that the store has. The store expires it, but for a call of this Host.
func (sh *Shard) adopt(c *Call, outcome any, isOwn bool) {
	out := outcome.(*Replay)
	c.state = Done
	c.end = ending{hasOutcome: isOwn}
	if out.Result != nil {
		sh.giveResult(c, out.Result)
	} else {
		sh.restream(c, out.Chunks)
	}
	sh.remove(c)
}

// restream gives the connections of a call the chunks of the store.
func (sh *Shard) restream(c *Call, chunks []Chunk) {
	c.Stream = Restored(chunks)
	last := c.Stream.Last()
	for _, r := range slices.Clone(c.readers) {
		from := max(r.from, r.place)
		if r.Collector != nil && last.Err != nil {
			from = last.ID
		}
		if !c.Stream.Attach(r, from, r.credit, sh.now) {
			sh.emit(Effect{Kind: GiveMessage, Reader: r, Data: sh.env.Messages.Result(c, sh.fault(CauseNotRetained))})
			sh.detach(r)
			continue
		}
		sh.pump(r)
	}
}

// remove removes a call from the tables of calls in flight after its outcome was sent.
func (sh *Shard) remove(c *Call) {
	c.state, c.isClaimed = Done, false
	sh.record(c) // before the id is free
	c.session.release(c)
	sh.Counts.InFlight--
	sh.Counts.Busy--
	sh.linger(c)
}

// record keeps the outcome of a call. It keeps no buffer larger than the payload, and of the parameters only a
// fingerprint.
func (sh *Shard) record(c *Call) {
	isForRepeats := c.end.hasOutcome && !c.session.isEnded && !c.session.IsLink
	owing := c.owing()
	if !isForRepeats && owing == nil {
		return
	}
	if len(sh.slab) == 0 {
		sh.slab = make([]Record, 16)
	}
	r := &sh.slab[0]
	sh.slab = sh.slab[1:]
	run := Run{Contract: c.Contract}
	if c.rt != nil {
		run.RuntimeID = c.rt.ID
	}
	*r = Record{Scope: &c.session.RecordScope, Print: c.Print.Short(), Run: unique.Make(run), EndedAt: sh.now.UnixNano()}
	size := 0
	if isForRepeats {
		size = sh.keep(r, c)
	}
	sh.env.Outcomes.Add(c.id, r, size, isForRepeats, owing)
}

// keep enters what a call yielded in its record, and returns the bytes that it counts.
func (sh *Shard) keep(r *Record, c *Call) (size int) {
	buf, isSmall := sh.keeping[:0], true
	switch {
	case c.result != nil:
		size = sh.env.Messages.Size(c.result)
		buf, isSmall = sh.env.Messages.Keep(buf, c.result)
	case c.Stream != nil:
		size, r.isStream = c.Stream.Bytes(), true
		buf = sh.env.Messages.KeepStream(buf, c.Stream)
	}
	if isSmall {
		r.Kept = sh.text(buf)
	} else {
		r.Payload = c.result
	}
	if cap(buf) <= 64<<10 {
		sh.keeping = buf
	}
	return size
}

// textBlock is the size of a block of memory for short texts.
const textBlock = 4 << 10

// text returns a copy of b. A short one shares a block of memory with others. A long one does not, because its memory would
// remain while one of them is in use.
func (sh *Shard) text(b []byte) string {
	if len(b) > textBlock/8 {
		return string(b)
	}
	if sh.block.Cap()-sh.block.Len() < len(b) {
		sh.block.Reset()
		sh.block.Grow(textBlock)
	}
	start := sh.block.Len()
	sh.block.Write(b)
	return sh.block.String()[start:]
}

// leaveAll takes all connections from a call. They have its end.
func (sh *Shard) leaveAll(c *Call) {
	for _, r := range c.readers {
		sh.timers.Stop(&r.stall)
		sh.unseat(r)
		if c.Stream != nil {
			c.Stream.Detach(r)
		}
	}
	clear(c.readers)
	c.readers = c.readers[:0]
}

// linger keeps an ended call while chunks or its end wait for connections, and frees it otherwise.
func (sh *Shard) linger(c *Call) {
	if len(c.readers) > 0 && !c.session.isEnded {
		c.session.linger(c)
		if sh.charge(c) == nil {
			return
		}
		for _, r := range c.readers { // the budget is used up
			sh.endAt(r, sh.fault(CauseSlow))
		}
	}
	sh.leaveAll(c)
	c.session.dismiss(c)
	c.Account.Release()
	sh.hasFreed = true
	c.Stream = nil
}

// dropTail ends an ended call for the connections that do not have its end.
func (sh *Shard) dropTail(c *Call, err any) {
	for _, r := range c.readers {
		sh.endAt(r, err)
	}
	sh.leaveAll(c)
	sh.linger(c)
}

// cancel ends a call for its client (ALT-D32). The reason is for its Runtime.
func (sh *Shard) cancel(s *Session, id, reason string) {
	err := sh.fault(CauseCancelled)
	if c := s.calls[id]; c != nil && c.state < Ending {
		sh.abort(c, err, Erred, reason)
		return
	}
	for c := range s.tails {
		if c.id == id {
			sh.dropTail(c, err)
		}
	}
	sh.drop("no such call")
}

// closeAnswer notes that no final message of a Runtime will come for a call. The id of an ended call is free for other
// sessions then.
func (sh *Shard) closeAnswer(c *Call, rt *Runtime) {
	if c.rt != rt || c.state <= Running {
		return
	}
	c.closeAnswer()
	sh.env.Outcomes.Close(c.id, rt)
}
