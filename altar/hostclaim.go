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

// A claim is the state of a call in the store.
type claim struct {
	pending bool          // it is being written, or that of another Host is waited for
	refusal *Error        // what the call gets unless it is a repeat
	keep    time.Duration // how long the intent is kept, see keepIntent
	written time.Time     // when it was written last
	params  json.RawMessage
	digest  string         // of its parameters
	number  int64          // of this claim in the store
	unsure  bool           // the record may have been written; the outcome is unknown
	key     string         // of its record
	rev     store.Revision // of the record, once it is written
	end     ending         // how the call ends, once the claim is no more pending

	// Calls that end under one lock are announced in the order of their ends: announced is closed
	// after the announcement, and after is the announced channel of the previous call. Both are nil
	// for a call that ends alone.
	after, announced chan struct{}
	left             bool // announced or not, it has ended
}

func errStore() *Error {
	return NewError(ErrInternal, "", "the Host cannot record the call")
}

// background runs f in a goroutine that Close waits for. h.mu must be held.
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

// claimCall checks in the store whether a call is a repeat, and records the intent to run it before
// its dispatch. h.mu must be held.
func (h *Host) claimCall(c *hostCall, refusal *Error) {
	now := time.Now()
	c.state = callClaiming
	cl := &claim{pending: true, refusal: refusal, params: c.params, keep: h.keepIntent(c, now), written: now}
	c.claim = cl
	h.background(func() { h.takeClaim(c, cl) })
}

// keepIntent returns the retention of the intent to run a call. If the Host fails, the call has
// failed, and its record is kept for ResultTTL after its end (ALT-D22): no call outlasts its
// session, nor its call timeout from its dispatch or its last chunk. With a sliding session
// lifetime only the latter bound is known; renewIntent extends it.
func (h *Host) keepIntent(c *hostCall, now time.Time) time.Duration {
	if !h.opts.Timing.SlidingSessionTTL {
		return max(c.s.expiry.due.Sub(now), 0) + h.opts.Persistence.ResultTTL
	}
	return holdFor + c.limit + h.opts.Persistence.LeaseTTL + 2*h.opts.Persistence.ResultTTL
}

// renewIntent extends the intent of a long call in a session with a sliding lifetime, so that it is
// always kept for ResultTTL after the latest end of the call. It is called at each dispatch and
// each chunk. h.mu must be held.
func (h *Host) renewIntent(c *hostCall, now time.Time) {
	cl := c.claim
	if cl == nil || cl.pending || !h.opts.Timing.SlidingSessionTTL || now.Sub(cl.written) < h.opts.Persistence.ResultTTL || h.closed {
		return
	}
	cl.pending, cl.written = true, now // the end of the call waits for this write
	attempt := 0
	if c.failedOver {
		attempt = 1
	}
	h.background(func() {
		rev, err := h.state.renewIntent(c, cl, attempt)
		if err != nil {
			h.opts.Logger.Error("altar: call intent not renewed", "session", c.s.id, "invocation_id", c.id, "err", err)
			rev = cl.rev
		}
		h.lock()
		defer h.unlock()
		h.written(c, cl, rev)
	})
}

// written completes a pending write of a claim.
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
			h.opts.Logger.Error("altar: call not claimed", "err", err)
			if cl.unsure { // before the caller can repeat the call
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

// claimed ends a call that will not run here. An end recorded in between takes precedence.
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

// granted continues a call that this Host has claimed.
func (h *Host) granted(c *hostCall, cl *claim, rev store.Revision, isFailover bool) {
	now := h.lock()
	defer h.unlock()
	h.written(c, cl, rev)
	if c.state == callClaiming {
		c.state, c.failedOver = callHeld, isFailover
		h.judgeCall(c, now)
	}
}

// adopt ends a call with the outcome in the store.
func (h *Host) adopt(c *hostCall, r *callRecord) {
	now := h.lock()
	defer h.unlock()
	switch c.state {
	case callClaiming:
		h.finishRuntime(c, nil, now)
	case callEnding:
	default:
		return // the session has ended
	}
	h.announceRecorded(c, r, false, now) // the store expires the record
}

// announceRecorded ends a call with the outcome that the store has.
func (h *Host) announceRecorded(c *hostCall, r *callRecord, record bool, now time.Time) {
	c.result, c.chunks = r.result, r.chunks
	for _, a := range c.at {
		h.replay(a)
	}
	h.removeCall(c, record, now)
}

// recordEnd writes the outcome of a call and then announces it. A failed write does not withhold
// the outcome: the intent in the store prevents a second run. But repeats at other Hosts wait for
// the record, so the write is retried for as long as the outcome is kept here.
func (h *Host) recordEnd(c *hostCall, cl *claim) {
	other, err := h.state.record(c, cl)
	if err != nil {
		h.opts.Logger.Error("altar: call outcome not recorded", "session", c.s.id, "invocation_id", c.id, "err", err)
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
	case c.state != callEnding: // the session has ended
	case other != nil: // the lease had expired, and another Host answered this call
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

// claim claims a call for this Host. It returns a nil record and a revision on success, and
// otherwise the record of the call. If the call is to be refused, a nil record and revision 0 mean
// that the store has no record. If the Host in the record has failed, the call has failed too,
// unless its contract permits another run here (ALT-D24); a record of this Host with an attempt
// marks that run.
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

// doubted reports whether a record is a claim of this Host whose call did not run.
func (s *state) doubted(r *callRecord) bool {
	_, ok := s.doubts.Load(r.Claim)
	return ok && r.Instance == s.instance
}

// unclaim removes a claim whose write failed but may have been applied: its call did not run, and a
// repeat of the call must not wait for it.
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

// tryUnclaim reports whether the claim is certainly absent. A write in progress may still create
// it.
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

// renewIntent writes the intent to run a call again with its original retention. If the record has
// expired, it is created again, unless another Host has created one.
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

// record writes the outcome of a call, or removes its claim if there is no outcome to record. If
// another Host has recorded an outcome, that outcome is returned and takes precedence.
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
			cl.rev = rev // of a renewal without a response
			attempt = 0
			continue
		case errors.Is(err, store.ErrNotFound):
			return nil, nil // it was kept long enough
		case errors.Is(err, store.ErrInvalid) && !small:
			// Too large for the store. The record must still prove that the call ran.
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
