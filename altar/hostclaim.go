// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package altar

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"time"

	"github.com/fivewire/fivewire/internal/backoff"
	"github.com/fivewire/fivewire/store"
)

// An ending is how a call ends: with a result, or with the last chunk of a
// stream.
type ending struct {
	result *ToolResult
	chunk  *StreamChunk
	err    *Error         // of either
	record bool           // it can be had again (D-22)
	before []*StreamChunk // that are retained besides, for the store
}

// A claim is what a call has in the store.
type claim struct {
	pending bool          // it is being written, or that of another Host is waited for
	refusal *Error        // what the call gets unless it is a repeat
	keep    time.Duration // how long the intent is kept: as long as the call may run
	params  json.RawMessage
	digest  string         // of its parameters
	key     string         // of its record
	rev     store.Revision // of the record, once it is written
	end     ending         // how the call ends, once the claim is no more pending

	// What ends at one moment is announced in the order in which it ended:
	// announced is closed then, after is that of the one before. There are none
	// for calls that end alone.
	after, announced chan struct{}
	left             bool // announced or not, it has ended
}

func errStore() *Error {
	return NewError(ErrInternal, "", "the Host cannot record the call")
}

// background runs f in a goroutine that Close waits for. It is called with the
// lock held.
func (h *Host) background(f func()) {
	if h.closed {
		return // everything ends
	}
	h.wg.Add(1)
	go func() {
		defer h.wg.Done()
		f()
	}()
}

// end ends a call: its Runtime is done with it at once, those who wait for it
// learn of it when the outcome is recorded.
func (h *Host) end(c *hostCall, e ending, now time.Time) {
	h.settle(c, e.err, now)
	if c.claim == nil || c.s.over || h.closed {
		h.announceEnd(c, e, now)
		return
	}
	if e.chunk != nil {
		e.before = slices.Clone(c.chunks)
	} else {
		e.result.Header = Header{}
	}
	cl := c.claim
	c.state, cl.end = callEnding, e
	if before := h.lastEnd; before != nil && !before.left {
		if before.announced == nil {
			before.announced = make(chan struct{})
		}
		cl.after = before.announced
	}
	h.lastEnd = cl
	if !cl.pending { // else takeClaim goes on
		h.wg.Add(1) // the Host is not closed
		go h.recordEnd(c, cl)
	}
}

// claimCall finds out in the store whether a call is a repeat, and writes down
// that it will run, before it does. It is called with the lock held.
func (h *Host) claimCall(c *hostCall, refusal *Error) {
	c.state = callClaiming
	cl := &claim{pending: true, refusal: refusal, params: c.params}
	if !h.opts.SlidingTTL { // else nobody knows
		cl.keep = max(time.Until(c.s.expiry.due), 0) + h.opts.RecordFor
	}
	c.claim = cl
	if !h.closed { // else everything ends
		h.wg.Add(1)
		go h.takeClaim(c, cl)
	}
}

// takeClaim is the rest of claimCall, without the lock.
func (h *Host) takeClaim(c *hostCall, cl *claim) {
	defer h.wg.Done()
	cl.key = callKey(c.s.id, c.id)
	cl.digest = digest(cl.params)
	cl.params = nil
	pause := backoff.Backoff{Base: 10 * time.Millisecond, Max: 250 * time.Millisecond, Jitter: 0.2}
	for attempt := 1; ; attempt++ {
		r, rev, err := h.state.claim(c, cl)
		switch {
		case err != nil:
			h.opts.Logger.Error("altar: a call could not be claimed", "err", err)
			h.claimed(c, errStore())
			return
		case r == nil && rev == 0: // there is no such call, and there will not be
			h.claimed(c, cl.refusal)
			return
		case r == nil || r.Attempt > 0 && !r.Ended && r.Instance == h.state.instance:
			h.granted(c, cl, rev, r != nil)
			return
		case r.Tool != c.toolName || r.Digest != cl.digest:
			h.claimed(c, errReused())
			return
		case r.Ended:
			h.adopt(c, r)
			return
		}
		// Another Host runs it: wait for its outcome, or its death.
		over := false
		h.lock()
		over = c.state != callClaiming
		h.unlock()
		if over || pause.Wait(h.ctx, min(attempt, 20)) != nil {
			h.claimed(c, errStore())
			return
		}
	}
}

// claimed ends a call that will not run here. What else has ended it meanwhile
// goes first.
func (h *Host) claimed(c *hostCall, err *Error) {
	now := h.lock()
	defer h.unlock()
	switch c.state {
	case callClaiming:
		c.claim = nil
		h.turnDown(c, err, now)
	case callEnding:
		end := c.claim.end
		end.record = false
		h.announceEnd(c, end, now)
	}
}

// granted goes on with a call that belongs to this Host now.
func (h *Host) granted(c *hostCall, cl *claim, rev store.Revision, again bool) {
	now := h.lock()
	defer h.unlock()
	cl.pending, cl.rev = false, rev
	switch c.state {
	case callClaiming:
		c.state, c.failedOver = callHeld, again
		h.judgeCall(c, now)
	case callEnding:
		if !h.closed {
			h.wg.Add(1)
			go h.recordEnd(c, cl)
		}
	}
}

// adopt makes a call the one whose outcome the store has.
func (h *Host) adopt(c *hostCall, r *callRecord) {
	now := h.lock()
	defer h.unlock()
	switch c.state {
	case callClaiming:
		h.settle(c, nil, now)
	case callEnding:
	default:
		return // the session is over
	}
	h.announceRecorded(c, r, now)
}

// announceRecorded ends a call with the outcome that the store has.
func (h *Host) announceRecorded(c *hostCall, r *callRecord, now time.Time) {
	c.result, c.chunks = r.result, r.chunks
	for _, a := range c.at {
		h.replay(a)
	}
	h.leave(c, true, now)
}

// recordEnd writes the outcome of a call and announces it then. A store that
// fails keeps nobody from the outcome: the intent in the store is enough that
// the call never runs again. But those who repeat it at other Hosts wait, so it
// is tried again for as long as the outcome is kept here.
func (h *Host) recordEnd(c *hostCall, cl *claim) {
	defer h.wg.Done()
	other, err := h.state.record(c, cl)
	if err != nil {
		h.opts.Logger.Error("altar: the outcome of a call could not be recorded", "session", c.s.id, "invocation", c.id, "err", err)
	}
	if cl.after != nil {
		select {
		case <-cl.after:
		case <-h.ctx.Done():
		}
	}
	now := h.lock()
	over := c.s.over
	switch {
	case c.state != callEnding: // the session is over
	case other != nil: // we were thought dead, and this was said to those who asked
		h.announceRecorded(c, other, now)
	default:
		h.announceEnd(c, cl.end, now)
	}
	h.unlock()
	pause := backoff.Backoff{Base: 100 * time.Millisecond, Max: 5 * time.Second, Jitter: 0.2}
	for attempt := 1; err != nil && !over && time.Since(now) < h.opts.RecordFor; attempt++ {
		if pause.Wait(h.ctx, attempt) != nil {
			return
		}
		_, err = h.state.record(c, cl)
	}
}

// claim makes a call that of this Host. It returns nothing and a revision if that
// worked, and else what the store knows of the call; if the call is to be refused
// anyway, nothing and no revision say that nothing is known. A call whose Host is
// dead is judged: it has failed, unless its contract lets it run again here
// (D-24), which is told by a record of this Host with an attempt.
func (s *state) claim(c *hostCall, cl *claim) (*callRecord, store.Revision, error) {
	ctx, cancel := s.context()
	defer cancel()
	if err := s.begin(ctx); err != nil {
		return nil, 0, err
	}
	key := cl.key
	mine := &callRecord{Host: s.h.opts.ID, Instance: s.instance, Tool: c.toolName, Digest: cl.digest}
	for {
		if cl.refusal == nil {
			value, err := mine.encode()
			if err != nil {
				return nil, 0, err
			}
			rev, err := s.db().Create(ctx, key, value, cl.keep)
			if !errors.Is(err, store.ErrExists) {
				return nil, rev, err
			}
		}
		e, err := s.db().Get(ctx, key)
		if errors.Is(err, store.ErrNotFound) {
			if cl.refusal != nil {
				return nil, 0, nil
			}
			continue // it expired just now
		}
		if err != nil {
			return nil, 0, err
		}
		r, err := readCallRecord(e.Value)
		if err != nil || r.Ended || r.Tool != mine.Tool || r.Digest != mine.Digest {
			return r, 0, err
		}
		if alive, err := s.alive(ctx, r); err != nil || alive {
			return r, 0, err
		}
		next, ttl := *r, s.h.opts.RecordFor
		if cl.refusal == nil && c.contract.Idempotent && !c.contract.Streaming && c.pin == "" && r.Attempt == 0 {
			next, ttl = *mine, cl.keep
			next.Attempt = 1
		} else {
			next.Ended, next.result = true, &ToolResult{InvocationID: c.id, Error: errDisconnected()}
		}
		value, err := next.encode()
		if err != nil {
			return nil, 0, err
		}
		rev, err := s.db().Update(ctx, key, value, e.Revision, ttl)
		if err == nil {
			return &next, rev, nil
		}
		if !changed(err) {
			return nil, 0, err
		}
	}
}

// record writes the outcome of a call, or takes its claim back if there is
// nothing to record. If another Host has judged the call meanwhile, its outcome
// is the one that counts.
func (s *state) record(c *hostCall, cl *claim) (*callRecord, error) {
	r := &callRecord{Host: s.h.opts.ID, Instance: s.instance, Tool: c.toolName, Digest: cl.digest, Ended: true, result: cl.end.result}
	if cl.end.chunk != nil {
		r.chunks = append(cl.end.before, cl.end.chunk)
	}
	if c.failedOver {
		r.Attempt = 1
	}
	value, err := r.encode()
	pause := backoff.Backoff{Base: 20 * time.Millisecond, Max: time.Second, Jitter: 0.2}
	ctx, cancel := s.context()
	defer cancel()
	key, small := cl.key, false
	for attempt := 1; err == nil; attempt++ {
		if cl.end.record {
			_, err = s.db().Update(ctx, key, value, cl.rev, s.h.opts.RecordFor)
		} else {
			err = s.db().Delete(ctx, key, cl.rev)
		}
		switch {
		case err == nil:
			return nil, nil
		case errors.Is(err, store.ErrConflict):
			return s.judged(ctx, key, value)
		case errors.Is(err, store.ErrNotFound):
			return nil, nil // it was kept long enough
		case errors.Is(err, store.ErrInvalid) && !small:
			// Too large for the engine. That it ran must be known all the same.
			small = true
			r.chunks, r.result = nil, &ToolResult{InvocationID: c.id, Error: errNotRetained()}
			value, err = r.encode()
			continue
		}
		if pause.Wait(ctx, attempt) != nil {
			return nil, err
		}
		err = nil
	}
	return nil, err
}

// judged returns the outcome that another Host wrote.
func (s *state) judged(ctx context.Context, key string, mine []byte) (*callRecord, error) {
	e, err := s.db().Get(ctx, key)
	if err != nil || string(e.Value) == string(mine) { // written after all
		return nil, err
	}
	r, err := readCallRecord(e.Value)
	if err != nil || !r.Ended {
		return nil, err
	}
	return r, nil
}
