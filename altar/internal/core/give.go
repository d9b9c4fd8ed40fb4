// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package core

import "slices"

func seatOf(r *Reader) *link[Reader] { return &r.seat }

// attach makes a connection wait for a call. It returns false if chunks that it wants are not kept.
func (sh *Shard) attach(c *Call, e *Event) bool {
	r := e.Reader
	r.call, r.from, r.stall.Event = c, e.N, r
	credit := e.Credit
	if r.Collector != nil {
		credit = NoCredit
	}
	if !c.attach(r, e.N, credit, sh.now) {
		return false
	}
	sh.touch(c)
	place := &r.Conn.seats[sh.index]
	if *place == nil {
		*place = &seat{}
	}
	(*place).readers.push(r, seatOf)
	return true
}

// unseat takes a reader from its connection.
func (sh *Shard) unseat(r *Reader) {
	if place := r.Conn.seats[sh.index]; place != nil {
		place.readers.remove(r, seatOf)
	}
}

// Waits reports whether a connection waits for a call with an id.
func (sh *Shard) Waits(conn *Conn, id string) bool {
	place := conn.seats[sh.index]
	if place == nil {
		return false
	}
	for r := place.readers.first; r != nil; r = r.seat.next {
		if r.call.id == id {
			return true
		}
	}
	return false
}

// detach takes a connection from a call.
func (sh *Shard) detach(r *Reader) {
	c := r.call
	sh.timers.Stop(&r.stall)
	sh.unseat(r)
	c.detach(r, sh.env.Limits.ClientGrace, sh.now)
	sh.touch(c)
	c.collected -= r.collected
	r.collected = 0
	if len(c.readers) == 0 && c.session.tails[c] {
		sh.linger(c)
	}
}

// closeConn detaches a connection from all its calls (ALT-D33).
func (sh *Shard) closeConn(conn *Conn) {
	place := conn.seats[sh.index]
	if place == nil {
		return
	}
	for r := place.readers.first; r != nil; r = place.readers.first {
		sh.detach(r)
	}
}

// slow ends the stream of a connection that does not read (ALT-D37), and the call with the last one.
func (sh *Shard) slow(r *Reader) {
	c, err := r.call, sh.fault(CauseSlow)
	sh.audit(c, "stream.slow", err)
	sh.endAt(r, err)
	sh.detach(r)
	if len(c.readers) == 0 && c.state < Ending {
		sh.abort(c, err, Erred, causeReason[CauseSlow])
	}
}

// endAt sends the end of a call to one connection, in place of the chunks that wait for it.
func (sh *Shard) endAt(r *Reader, err any) {
	var m any
	if r.Collector != nil || r.place == 0 {
		m = sh.env.Messages.Result(r.call, err)
	} else {
		m = sh.env.Messages.Last(r.call, r.place, err)
	}
	sh.emit(Effect{Kind: GiveMessage, Session: r.call.session, Reader: r, Data: m})
}

// pumpAll is pump for all connections of a call.
func (sh *Shard) pumpAll(c *Call) {
	for i := 0; i < len(c.readers); {
		r := c.readers[i]
		sh.pump(r)
		if i < len(c.readers) && c.readers[i] == r { // else it has got the end
			i++
		}
	}
}

// pump gives a connection the chunks that its credit and its queue permit.
func (sh *Shard) pump(r *Reader) {
	c := r.call
	if c.Stream == nil || c.state == Ending && c.end.drops {
		return
	}
	for own, ok := c.Stream.Peek(r); ok; own, ok = c.Stream.Peek(r) {
		if r.Collector == nil && !r.Conn.Queue.Take(sh.index, own.Size) {
			r.isStalled = true
			break
		}
		if own.Data == nil {
			own.Data = sh.env.Messages.Chunk(c, own.ID, own.Payload)
		}
		c.Stream.Take(r, sh.now)
		sh.touch(c)
		if !sh.give(r, &own) {
			return
		}
		if own.Final {
			sh.detach(r)
			return
		}
	}
	sh.watch(r)
}

// watch sets the timer of a connection that takes no chunk.
func (sh *Shard) watch(r *Reader) {
	since, isStalled := r.call.Stream.Stalled(r)
	due := since.Add(sh.env.Limits.SlowReader)
	switch {
	case !isStalled:
		sh.timers.Stop(&r.stall)
	case !r.stall.IsSetTo(due):
		sh.timers.Set(&r.stall, due)
	}
}

// resume continues the streams of a connection that has space for messages again.
func (sh *Shard) resume(conn *Conn) {
	place := conn.seats[sh.index]
	if place == nil {
		return
	}
	var list []*Reader
	for r := place.readers.first; r != nil; r = r.seat.next {
		if r.isStalled {
			r.isStalled = false
			list = append(list, r)
		}
	}
	for _, r := range list {
		if slices.Contains(r.call.readers, r) {
			sh.pump(r)
		}
	}
}

// give gives a chunk to one connection. It reports false if that has ended the wait of the connection.
func (sh *Shard) give(r *Reader, chunk *Chunk) bool {
	switch {
	case r.Collector == nil:
		sh.emit(Effect{Kind: GiveMessage, Reader: r, Data: chunk.Data, IsTaken: true})
	case chunk.Err != nil:
		sh.emit(Effect{Kind: GiveMessage, Session: r.call.session, Reader: r, Data: sh.env.Messages.Result(r.call, chunk.Err)})
	default:
		return sh.collect(r, chunk)
	}
	return true
}

// collect gathers the payloads of a stream, and ends where they no longer fit (ALT-D29).
func (sh *Shard) collect(r *Reader, chunk *Chunk) bool {
	c := r.call
	n, fits := r.Collector.Add(chunk.Data)
	r.collected += n
	c.collected += n
	err := sh.charge(c)
	if !fits {
		err = sh.fault(CauseTooLarge)
	}
	switch {
	case err != nil:
		sh.stopCollecting(r, err)
		return false
	case chunk.Final:
		sh.emit(Effect{Kind: GiveMessage, Session: c.session, Reader: r, Data: r.Collector.Result()})
	}
	return true
}

// stopCollecting ends a collected stream for its connection, and the call with the last one.
func (sh *Shard) stopCollecting(r *Reader, err any) {
	c := r.call
	sh.endAt(r, err)
	sh.detach(r)
	if len(c.readers) == 0 && c.state < Ending {
		sh.finish(c, ending{err: err, hasOutcome: true}, Erred, causeReason[CauseTooLarge])
	}
}

// touch makes the end of the event raise the credit of the Runtime.
func (sh *Shard) touch(c *Call) {
	if !c.isTouched && c.TakesCredit() {
		c.isTouched = true
		sh.touched = append(sh.touched, c)
	}
}

// grantAll raises the credit of the Runtimes whose streams have moved, at the end of an event (ALT-D37). Then the streams
// that wait for memory get what the event has freed.
func (sh *Shard) grantAll() {
	for i := 0; i < len(sh.touched); i++ { // more may follow
		c := sh.touched[i]
		c.isTouched = false
		sh.grant(c)
	}
	clear(sh.touched)
	sh.touched = sh.touched[:0]
	for sh.hasFreed && len(sh.starved) > 0 && sh.grant(sh.starved[0]) {
		sh.starved[0].isStarved = false
		sh.starved = slices.Delete(sh.starved, 0, 1)
	}
	sh.hasFreed = false
}

// grant raises the credit of a Runtime by the chunks that the budget has memory for, and reports whether it has any.
func (sh *Shard) grant(c *Call) bool {
	if !c.TakesCredit() {
		return true
	}
	_ = sh.charge(c) // readers may have taken chunks
	free, isLow := c.Account.Room()
	if isLow { // the rest is for the first chunks of new streams, and for chunks one by one
		c.Stream.Forget()
		_ = sh.charge(c)
		free = 0
	}
	old := c.Stream.window
	credit, isRaised := c.raise(free, sh.now)
	if !isRaised {
		return true
	}
	if err := sh.charge(c); err != nil {
		c.unraise(old, sh.now)
		_ = sh.charge(c)
		sh.starve(c, err)
		return false
	}
	sh.emit(Effect{Kind: SendCredit, Runtime: c.rt, Call: c, N: credit})
	return true
}

// starve makes a stream wait for memory. A collected one ends: it would hold its memory while it waits for more.
func (sh *Shard) starve(c *Call, err any) {
	if !c.Stream.HasCredit() {
		for _, r := range slices.Clone(c.readers) {
			if r.Collector != nil {
				sh.stopCollecting(r, err)
			}
		}
	}
	if c.isStarved || !c.TakesCredit() {
		return
	}
	c.isStarved = true
	sh.starved = append(sh.starved, c)
	if !sh.starvedAt.IsSet() {
		sh.timers.Set(&sh.starvedAt, sh.now.Add(starvedRetry))
	}
}

// credit takes the credit of a client. One that fits no stream of the connection is dropped.
func (sh *Shard) credit(e *Event) {
	place := e.Conn.seats[sh.index]
	if place != nil {
		for r := place.readers.first; r != nil; r = r.seat.next {
			if c := r.call; c.id == e.ID && c.session == e.Session && c.Stream != nil {
				c.Stream.Grant(r, e.N)
				sh.pump(r)
				return
			}
		}
	}
	sh.drop("no stream of the connection")
}
