// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package altar

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/fivewire/fivewire/internal/backoff"
	"github.com/fivewire/fivewire/store"
)

// A claim is what a call has in the store.
type claim struct {
	pending bool          // it is being written, or that of another Host is waited for
	refusal *Error        // what the call gets unless it is a repeat
	keep    time.Duration // how long the intent is kept, see keepIntent
	written time.Time     // when it was written last
	params  json.RawMessage
	digest  string         // of its parameters
	number  int64          // of this claim in the store
	unsure  bool           // it may have been written, nobody knows
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

// claimCall finds out in the store whether a call is a repeat, and writes down
// that it will run, before it does. It is called with the lock held.
func (h *Host) claimCall(c *hostCall, refusal *Error) {
	now := time.Now()
	c.state = callClaiming
	cl := &claim{pending: true, refusal: refusal, params: c.params, keep: h.keepIntent(c, now), written: now}
	c.claim = cl
	h.background(func() { h.takeClaim(c, cl) })
}

// keepIntent returns how long the intent to run a call is kept. Should the Host die
// the call has failed, and what is recorded is kept for RecordFor after the end
// (ALT-D22): no call runs longer than its session, nor than its allotted time from
// its dispatch or from its last chunk. Where sessions slide only the latter is
// known; renewIntent goes on from there.
func (h *Host) keepIntent(c *hostCall, now time.Time) time.Duration {
	if !h.opts.Timing.SlidingSessionTTL {
		return max(c.s.expiry.due.Sub(now), 0) + h.opts.Persistence.ResultTTL
	}
	return holdFor + c.limit + h.opts.Persistence.LeaseTTL + 2*h.opts.Persistence.ResultTTL
}

// renewIntent writes the intent of a call anew that goes on for long in a session
// that slides, so that it is always kept for RecordFor after the call could have
// ended. It is called with the lock held, at each dispatch and each chunk.
func (h *Host) renewIntent(c *hostCall, now time.Time) {
	cl := c.claim
	if cl == nil || cl.pending || !h.opts.Timing.SlidingSessionTTL || now.Sub(cl.written) < h.opts.Persistence.ResultTTL || h.closed {
		return
	}
	cl.pending, cl.written = true, now // who ends the call waits until it is written
	attempt := 0
	if c.failedOver {
		attempt = 1
	}
	h.background(func() {
		rev, err := h.state.renewIntent(c, cl, attempt)
		if err != nil {
			h.opts.Logger.Error("altar: the intent to run a call could not be renewed", "session", c.s.id, "invocation", c.id, "err", err)
			rev = cl.rev
		}
		h.lock()
		defer h.unlock()
		h.written(c, cl, rev)
	})
}

// written notes that a claim is not pending any more.
func (h *Host) written(c *hostCall, cl *claim, rev store.Revision) {
	cl.pending, cl.rev = false, rev
	if c.state == callEnding {
		h.background(func() { h.recordEnd(c, cl) })
	}
}

// takeClaim is the rest of claimCall, without the lock.
func (h *Host) takeClaim(c *hostCall, cl *claim) {
	cl.key = callKey(c.s.id, c.id)
	cl.digest = digest(cl.params)
	cl.params = nil
	cl.number = h.state.claims.Add(1)
	pause := backoff.Backoff{Base: 10 * time.Millisecond, Max: 250 * time.Millisecond, Jitter: 0.2}
	for attempt := 1; ; attempt++ {
		r, rev, err := h.state.claim(c, cl)
		switch {
		case err != nil:
			h.opts.Logger.Error("altar: a call could not be claimed", "err", err)
			if cl.unsure { // before anybody is told to try again
				h.state.doubts.Store(cl.number, true)
			}
			h.claimed(c, errStore())
			if cl.unsure {
				h.state.unclaim(cl)
			}
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
		isEnded := false
		h.lock()
		isEnded = c.state != callClaiming
		h.unlock()
		if isEnded || pause.Wait(h.ctx, min(attempt, 20)) != nil {
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
func (h *Host) granted(c *hostCall, cl *claim, rev store.Revision, isFailover bool) {
	now := h.lock()
	defer h.unlock()
	h.written(c, cl, rev)
	if c.state == callClaiming {
		c.state, c.failedOver = callHeld, isFailover
		h.judgeCall(c, now)
	}
}

// adopt makes a call the one whose outcome the store has.
func (h *Host) adopt(c *hostCall, r *callRecord) {
	now := h.lock()
	defer h.unlock()
	switch c.state {
	case callClaiming:
		h.finishRuntime(c, nil, now)
	case callEnding:
	default:
		return // the session is over
	}
	h.announceRecorded(c, r, false, now) // the store forgets it when it is time
}

// announceRecorded ends a call with the outcome that the store has.
func (h *Host) announceRecorded(c *hostCall, r *callRecord, record bool, now time.Time) {
	c.result, c.chunks = r.result, r.chunks
	for _, a := range c.at {
		h.replay(a)
	}
	h.removeCall(c, record, now)
}

// recordEnd writes the outcome of a call and announces it then. A store that
// fails keeps nobody from the outcome: the intent in the store is enough that
// the call never runs again. But those who repeat it at other Hosts wait, so it
// is tried again for as long as the outcome is kept here.
func (h *Host) recordEnd(c *hostCall, cl *claim) {
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
	isEnded := c.s.isEnded
	switch {
	case c.state != callEnding: // the session is over
	case other != nil: // we were thought dead, and this was said to those who asked
		h.announceRecorded(c, other, true, now)
	default:
		h.announceEnd(c, cl.end, now)
	}
	h.unlock()
	pause := backoff.Backoff{Base: 100 * time.Millisecond, Max: 5 * time.Second, Jitter: 0.2}
	for attempt := 1; err != nil && !isEnded && time.Since(now) < h.opts.Persistence.ResultTTL; attempt++ {
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
// (ALT-D24), which is told by a record of this Host with an attempt.
func (s *state) claim(c *hostCall, cl *claim) (*callRecord, store.Revision, error) {
	ctx, cancel := s.context()
	defer cancel()
	if err := s.begin(ctx); err != nil {
		return nil, 0, err
	}
	key := cl.key
	mine := &callRecord{Host: s.h.opts.ID, Instance: s.instance, Tool: c.toolName, Digest: cl.digest, Claim: cl.number}
	for {
		if cl.refusal == nil {
			value, err := mine.encode()
			if err != nil {
				return nil, 0, err
			}
			rev, err := s.db().Create(ctx, key, value, cl.keep)
			if !errors.Is(err, store.ErrExists) {
				cl.unsure = err != nil
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
		next, ttl := *r, s.h.opts.Persistence.ResultTTL
		switch idle := s.doubted(r); {
		case idle && cl.refusal == nil:
			next, ttl = *mine, cl.keep
			next.Attempt = r.Attempt
		case idle && r.Attempt == 0:
			return nil, 0, nil // unclaim takes it back
		case cl.refusal == nil && c.contract.Idempotent && !c.contract.Streaming && c.pin == "" && r.Attempt == 0:
			next, ttl = *mine, cl.keep
			next.Attempt = 1
		default:
			next.Ended, next.result = true, &ToolResult{InvocationID: c.id, Error: errDisconnected()}
		}
		value, err := next.encode()
		if err != nil {
			return nil, 0, err
		}
		rev, err := s.db().Update(ctx, key, value, e.Revision, ttl)
		switch {
		case err == nil && !next.Ended && next.Attempt == 0:
			return nil, rev, nil
		case err == nil:
			return &next, rev, nil
		case !changed(err):
			cl.unsure = true
			return nil, 0, err
		}
	}
}

// doubted tells whether a record is a claim of this Host whose call did not run.
func (s *state) doubted(r *callRecord) bool {
	_, ok := s.doubts.Load(r.Claim)
	return ok && r.Instance == s.instance
}

// unclaim takes back a claim that may have been written although the store said
// otherwise, or nothing: its call did not run, and who asks for it again shall not
// wait for it.
func (s *state) unclaim(cl *claim) {
	defer s.doubts.Delete(cl.number)
	pause := backoff.Backoff{Base: 50 * time.Millisecond, Max: 5 * time.Second, Jitter: 0.2}
	start := time.Now()
	for attempt := 1; time.Since(start) < s.h.opts.Persistence.LeaseTTL; attempt++ {
		if pause.Wait(s.h.ctx, attempt) != nil || s.tryUnclaim(cl) {
			return
		}
	}
}

// tryUnclaim reports whether the claim is certainly not there any more. One that
// is not there may still come.
func (s *state) tryUnclaim(cl *claim) bool {
	ctx, cancel := s.context()
	defer cancel()
	e, err := s.db().Get(ctx, cl.key)
	if err != nil {
		return false
	}
	r, err := readCallRecord(e.Value)
	if err != nil || r.Ended || r.Instance != s.instance || r.Claim != cl.number {
		return true // another one's
	}
	return s.db().Delete(ctx, cl.key, e.Revision) == nil
}

// renewIntent writes the intent to run a call anew, so that it is kept for as long
// as it was first. If it got lost meanwhile it is made again, unless another Host
// was faster.
func (s *state) renewIntent(c *hostCall, cl *claim, attempt int) (store.Revision, error) {
	ctx, cancel := s.context()
	defer cancel()
	r := &callRecord{Host: s.h.opts.ID, Instance: s.instance, Tool: c.toolName, Digest: cl.digest, Attempt: attempt, Claim: cl.number}
	value, err := r.encode()
	if err != nil {
		return 0, err
	}
	for rev := cl.rev; ; {
		written, err := s.db().Update(ctx, cl.key, value, rev, cl.keep)
		switch {
		case errors.Is(err, store.ErrNotFound):
			return s.db().Create(ctx, cl.key, value, cl.keep)
		case !errors.Is(err, store.ErrConflict):
			return written, err
		}
		// Perhaps it was this Host, and the answer got lost.
		_, own, lost := s.judged(ctx, cl.key, nil)
		if own == 0 || lost != nil {
			return 0, errors.Join(err, lost)
		}
		rev = own
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
			_, err = s.db().Update(ctx, key, value, cl.rev, s.h.opts.Persistence.ResultTTL)
		} else {
			err = s.db().Delete(ctx, key, cl.rev)
		}
		switch {
		case err == nil:
			return nil, nil
		case errors.Is(err, store.ErrConflict):
			other, rev, err := s.judged(ctx, key, value)
			if rev == 0 || err != nil || !cl.end.record {
				return other, err
			}
			cl.rev = rev // of a renewal of which no answer came
			attempt = 0
			continue
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

// judged returns the outcome that another Host wrote, or the revision of the intent
// if it is still that of this Host.
func (s *state) judged(ctx context.Context, key string, mine []byte) (*callRecord, store.Revision, error) {
	e, err := s.db().Get(ctx, key)
	if err != nil || string(e.Value) == string(mine) { // written after all
		return nil, 0, err
	}
	r, err := readCallRecord(e.Value)
	switch {
	case err != nil:
		return nil, 0, err
	case r.Ended:
		return r, 0, nil
	case r.Instance == s.instance:
		return nil, e.Revision, nil
	}
	return nil, 0, nil
}
