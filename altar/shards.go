// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package altar

import (
	"cmp"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fivewire/fivewire/altar/internal/core"
	"github.com/fivewire/fivewire/altar/internal/ledger"
)

// A shard has a part of the sessions of a Host. The state of a shard changes with its lock held, and the state that all
// shards share, such as the connected Runtimes and the manifest, with all locks held.
type shard struct {
	index   int
	mu      sync.Mutex
	core    *core.Shard
	effects []core.Effect // of the step in progress
	after   []func()      // called once the lock is released
	inline  []*outbox     // whose messages are written then

	// The last claims that were begun and recorded under the present lock.
	lastBegin, lastRecord *ledger.Claim
}

// shardOf returns the shard of a session id.
func (h *Host) shardOf(session string) *shard {
	hash := uint32(2166136261)
	for i := range len(session) {
		hash = (hash ^ uint32(session[i])) * 16777619
	}
	return &h.shards[hash%core.Shards]
}

// lock locks a shard after the timers that are due have fired in all shards, so that no expired state is visible.
func (h *Host) lock(sh *shard) time.Time {
	for {
		sh.mu.Lock()
		now := time.Now()
		if !h.clock.isDue(now) {
			return now
		}
		sh.mu.Unlock()
		h.fireTimers()
	}
}

// unlock releases a shard, sets the clock to its first timer, and calls what follows from its steps.
func (h *Host) unlock(sh *shard) {
	if due, _, isSet := sh.core.Due(); isSet {
		h.clock.note(due)
	}
	var few [4]*outbox
	rest := sh.release(few[:0])
	sh.mu.Unlock()
	rest.run()
}

// unlocked is what follows from steps once the locks are released.
type unlocked struct {
	inline []*outbox
	after  []func()
}

// release takes the work that follows from the steps of a shard. The queues are copied to a buffer.
func (sh *shard) release(buf []*outbox) unlocked {
	u := unlocked{append(buf, sh.inline...), sh.after}
	clear(sh.inline)
	sh.inline = sh.inline[:0]
	sh.after, sh.lastBegin, sh.lastRecord = nil, nil, nil
	return u
}

func (u *unlocked) run() {
	for _, o := range u.inline {
		o.write()
	}
	for _, f := range u.after {
		f()
	}
}

// lockAll locks all shards, and fires the timers that are due.
func (h *Host) lockAll() time.Time {
	for i := range h.shards {
		h.shards[i].mu.Lock()
	}
	now := time.Now()
	h.fireDue(now)
	return now
}

func (h *Host) unlockAll() {
	if h.isOfferStale {
		h.isOfferStale = false
		for _, hc := range h.accepted {
			h.offer(hc)
		}
	}
	h.clock.clear() // what was due has fired, and no shard is unlocked
	if _, due, isSet := h.first(); isSet {
		h.clock.note(due)
	}
	var all unlocked
	for i := range h.shards {
		u := h.shards[i].release(nil)
		all.inline, all.after = append(all.inline, u.inline...), append(all.after, u.after...)
	}
	for i := range h.shards {
		h.shards[i].mu.Unlock()
	}
	all.run()
}

func (h *Host) fireTimers() {
	h.lockAll()
	h.unlockAll()
}

// fireDue fires the timers that are due in their order, those of all shards and those of the Host. All shards must be
// locked.
func (h *Host) fireDue(now time.Time) {
	var last time.Time
	for {
		sh, due, isSet := h.first()
		if len(h.judged) > 0 && (!isSet || due.After(now) || !due.Equal(last)) {
			h.continueCalls(now)
			continue // which may set timers
		}
		if !isSet || due.After(now) {
			return
		}
		last = due
		if sh != nil {
			h.step(sh, now, &core.Event{Kind: core.TimerFired})
			continue
		}
		h.timersMu.Lock()
		t := h.timers.Next(now)
		h.timersMu.Unlock()
		if t != nil {
			t.Event.(timerFunc)(now)
		}
	}
}

// first returns the first timer and its shard, or nil for one of the Host. All shards must be locked.
func (h *Host) first() (of *shard, due time.Time, isSet bool) {
	h.timersMu.Lock()
	due, seq, isSet := h.timers.First()
	h.timersMu.Unlock()
	for i := range h.shards {
		d, n, ok := h.shards[i].core.Due()
		if ok && (!isSet || d.Before(due) || d.Equal(due) && n < seq) {
			of, due, seq, isSet = &h.shards[i], d, n, true
		}
	}
	return of, due, isSet
}

// A timerFunc is the event of a timer of the Host. It is called with all shards locked.
type timerFunc func(now time.Time)

// setTimer sets a timer of the Host.
func (h *Host) setTimer(t *core.Timer, due time.Time) {
	h.timersMu.Lock()
	h.timers.Set(t, due)
	h.timersMu.Unlock()
	h.clock.note(due)
}

func (h *Host) stopTimer(t *core.Timer) {
	h.timersMu.Lock()
	h.timers.Stop(t)
	h.timersMu.Unlock()
}

// step makes a step of a locked shard, and does what follows from it.
func (h *Host) step(sh *shard, now time.Time, e *core.Event) {
	isNested := len(sh.effects) > 0
	busy := sh.core.Counts.Busy
	sh.effects = sh.core.Step(now, e, sh.effects)
	if isNested {
		return // the outer step continues with these effects
	}
	for i := 0; i < len(sh.effects); i++ {
		effect := sh.effects[i] // a nested step may move them
		h.do(sh, now, &effect)
	}
	clear(sh.effects)
	sh.effects = sh.effects[:0]
	if n := sh.core.Counts.Busy - busy; n != 0 { // once the last messages are queued
		h.drain.add(n)
	}
}

// broadcast gives all shards an event, and judges the calls that it concerns. All shards must be locked.
func (h *Host) broadcast(now time.Time, e *core.Event) {
	if e.Change != nil {
		e.Change = sharedChange(e.Change)
	}
	var all []core.Effect
	for i := range h.shards {
		all = h.shards[i].core.Step(now, e, all)
	}
	slices.SortStableFunc(all, func(a, b core.Effect) int { return cmp.Compare(seqOf(&a), seqOf(&b)) })
	for i := range all {
		h.do(nil, now, &all[i])
	}
	h.continueCalls(now)
	h.isOfferStale = true
}

// sharedChange returns a change that is made once for the Registry that all shards share.
func sharedChange(change func(r *core.Registry) *core.Registry) func(r *core.Registry) *core.Registry {
	var before, after *core.Registry
	return func(r *core.Registry) *core.Registry {
		if after == nil {
			before, after = r, change(r)
		}
		if r == before {
			return after
		}
		return change(r)
	}
}

// seqOf returns the order of the session of an effect.
func seqOf(e *core.Effect) uint64 {
	if e.Session == nil {
		return 0
	}
	return e.Session.Seq
}

// continueCalls continues calls of all shards in order of session creation, then of arrival (ALT-D24). All shards must be
// locked.
func (h *Host) continueCalls(now time.Time) {
	list := h.judged
	h.judged = nil
	slices.SortFunc(list, core.Compare)
	var begin, record *ledger.Claim // the claims of all shards are in one order
	for _, c := range slices.Compact(list) {
		sh := h.shardOf(c.Session().ID)
		sh.lastBegin, sh.lastRecord = begin, record
		h.step(sh, now, &core.Event{Kind: core.CallJudged, Call: c})
		begin, record = sh.lastBegin, sh.lastRecord
	}
}

// A clock wakes the Host up for its first timer. A time that was not read from the clock of this process, such as the
// expiry of a token, is compared by the wall clock, which may be set.
type clock struct {
	start time.Time
	next  atomic.Int64 // when the first timer is due, nanoseconds after start; noTimer: none is set
	wall  atomic.Int64 // likewise for the wall clock, Unix nanoseconds

	fire     func()
	mu       sync.Mutex
	timer    *time.Timer
	firesAt  time.Duration // of timer, after start
	isClosed bool
}

const noTimer = math.MaxInt64

func (c *clock) isDue(now time.Time) bool {
	return int64(now.Sub(c.start)) >= c.next.Load() || now.UnixNano() >= c.wall.Load()
}

// note makes the clock call fire at a time, or earlier.
func (c *clock) note(due time.Time) {
	next, at := &c.next, int64(due.Sub(c.start))
	if due == due.Round(0) {
		if due.Year() > 2200 { // beyond the range of nanoseconds
			return
		}
		next, at = &c.wall, due.UnixNano()
	}
	if at >= next.Load() {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if at >= next.Load() || c.isClosed {
		return
	}
	next.Store(at)
	wait := time.Until(due)
	firesAt := time.Since(c.start) + wait
	switch {
	case c.timer == nil:
		c.timer = time.AfterFunc(wait, c.fire)
	case firesAt < c.firesAt:
		c.timer.Reset(wait)
	default:
		return
	}
	c.firesAt = firesAt
}

// clear forgets the time of the next call.
func (c *clock) clear() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.next.Store(noTimer)
	c.wall.Store(noTimer)
	c.firesAt = noTimer
}

func (c *clock) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.isClosed = true
	c.next.Store(noTimer)
	c.wall.Store(noTimer)
	if c.timer != nil {
		c.timer.Stop()
	}
}

// A drain waits until no call is in flight.
type drain struct {
	busy      atomic.Int64 // calls in flight, ended ones whose chunks wait for connections, and requests; or from drained on
	isStarted atomic.Bool
	idle      chan struct{} // closed when the last call ends
}

// drained is added to busy when the last call has ended. From then on no request is handled.
const drained = math.MinInt64 / 2

// add counts calls.
func (d *drain) add(n int) {
	if d.busy.Add(int64(n)) == 0 && d.isStarted.Load() && d.busy.CompareAndSwap(0, drained) {
		close(d.idle)
	}
}

// enter counts a request until add(-1). It reports false if the connections are being closed: the request is not
// handled, and its client sends it to another Host (ALT-D45).
func (d *drain) enter() bool {
	if d.busy.Add(1) > 0 {
		return true
	}
	d.busy.Add(-1)
	return false
}

// count returns the number of calls and requests.
func (d *drain) count() int64 {
	n := d.busy.Load()
	if n < 0 {
		n -= drained
	}
	return n
}

// start makes the end of the last call close idle.
func (d *drain) start() {
	d.isStarted.Store(true)
	d.add(0)
}
