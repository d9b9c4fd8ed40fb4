// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package outbox

import (
	"context"
	"errors"
	"time"

	"github.com/fivewire/fivewire/internal/guard"
	"github.com/fivewire/fivewire/internal/lease"
	"github.com/fivewire/fivewire/store"
)

const (
	linger   = 10 * time.Second // of a sender with an empty queue
	endTTL   = 10 * time.Minute // of an ended record: a creation may land so late
	maxBatch = 64               // items in a turn, and ended items that the record does not count
	maxRead  = 1 << 20          // bytes in a turn, estimated
	never    = -1               // the next turn needs a signal
)

// A sender is the work of a stream in this instance, under one owner. It makes turns.
type sender struct {
	key      string
	owner    lease.Owner
	ctx      context.Context // of the epoch
	done     chan struct{}   // closed after the removal
	timer    *time.Timer     // of the next turn
	rev      store.Revision  // of rec; zero before it was read; used by the turn, as all up to stream
	head     head
	due      time.Time // of the head
	verdict  Verdict   // on the head, not carried out
	gone     Verdict   // on the stream
	emptied  time.Time // the queue is empty since then
	failures int       // turns in a row

	// Outbox.mu guards the following. The turn also reads rec without it.
	stream     string
	rec        record // as last read or written
	unsaved    counts // not in rec
	starts     int    // calls of Finish to be made
	state      senderState
	isOpen     bool // rec is present and not about to end
	isEnded    bool
	isSignaled bool        // since the begin of the turn
	isDelayed  bool        // signals begin no turn
	requester  lease.Owner // of another instance that calls Own
	isClosing  bool
}

type senderState uint8

const (
	stateWaiting senderState = iota
	stateDue
	stateRunning
)

// serve begins a turn of the sender of owner, which has to make starts more calls of Finish at its
// end. It returns nil after the end of the epoch or Shutdown.
func (o *Outbox) serve(key, stream string, owner lease.Owner, epoch context.Context, starts int) *sender {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.isClosed || epoch.Err() != nil {
		return nil
	}
	s := o.senders[key]
	if s == nil || s.owner != owner {
		if s != nil {
			o.removeLocked(s)
		}
		s = &sender{key: key, owner: owner, ctx: epoch, done: make(chan struct{})}
		s.timer = time.AfterFunc(time.Hour, func() { o.wake(s) })
		o.senders[key] = s
	}
	if o.owner != owner {
		o.owner = owner
		context.AfterFunc(epoch, o.sweep)
	}
	if s.stream == "" {
		s.stream = stream
	}
	s.starts += starts
	o.wakeLocked(s)
	return s
}

// sweep removes the senders of ended epochs.
func (o *Outbox) sweep() {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, s := range o.senders {
		if s.ctx.Err() != nil && s.state != stateRunning {
			o.removeLocked(s)
		}
	}
}

// removeLocked removes a sender. o.mu must be held.
func (o *Outbox) removeLocked(s *sender) {
	if o.senders[s.key] == s {
		delete(o.senders, s.key)
		s.timer.Stop()
		close(s.done)
	}
}

func (o *Outbox) wake(s *sender) {
	o.mu.Lock()
	defer o.mu.Unlock()
	s.isDelayed = false
	o.wakeLocked(s)
}

// wakeLocked begins a turn, or another one after the current one. o.mu must be held.
func (o *Outbox) wakeLocked(s *sender) {
	s.isSignaled = true
	if s.state == stateWaiting && (!s.isDelayed || s.requester != "") && o.senders[s.key] == s {
		s.timer.Stop()
		s.state = stateDue
		o.due = append(o.due, s)
		o.dispatchLocked()
	}
}

// dispatchLocked begins turns while places are free. o.mu must be held.
func (o *Outbox) dispatchLocked() {
	for o.running < maxAttempts && len(o.due) > 0 && !o.isClosed {
		s := o.due[0]
		o.due[0] = nil
		o.due = o.due[1:]
		o.running++
		s.state, s.isSignaled, s.isDelayed = stateRunning, false, false
		o.wg.Go(func() { o.run(s) })
	}
}

// run makes one turn and schedules the next.
func (o *Outbox) run(s *sender) {
	ctx, cancel := context.WithCancel(s.ctx)
	defer cancel()
	defer context.AfterFunc(o.base, cancel)()
	var delay time.Duration
	guard.Run("outbox turn", func() (err error) {
		delay, err = o.turn(ctx, s)
		if errors.Is(err, errTaken) {
			delay, err = o.end(ctx, s)
		}
		return err
	}, func(err error) {
		s.failures++
		if err == nil {
			s.failures = 0
		} else {
			delay = min(time.Second<<min(s.failures, 6), time.Minute)
		}
		if err != nil && ctx.Err() == nil {
			o.opts.Logger.WarnContext(ctx, "outbox: sender delayed", "stream", s.stream, "delay", delay, "err", err)
		}
		o.schedule(s, delay, err != nil)
	})
}

// schedule ends a turn and sets the time of the next.
func (o *Outbox) schedule(s *sender, delay time.Duration, isFailed bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.running--
	s.state, s.isDelayed = stateWaiting, s.isDelayed || isFailed
	if s.ctx.Err() != nil {
		o.removeLocked(s)
	}
	if delay == 0 || s.isSignaled {
		o.wakeLocked(s)
	}
	if delay > 0 && s.state == stateWaiting && o.senders[s.key] == s {
		s.timer.Reset(delay)
	}
	o.dispatchLocked()
}

// turn sends the items that are due and returns the delay of the next turn.
func (o *Outbox) turn(ctx context.Context, s *sender) (delay time.Duration, err error) {
	if s.rev == 0 {
		if err = o.load(ctx, s); err != nil {
			return 0, err
		}
	}
	o.mu.Lock()
	send, requester := o.funcs[kindOf(s.stream)], s.requester
	isChanged := s.unsaved.Sent > 0 || s.isClosing && s.rec.Own
	s.requester = ""
	o.mu.Unlock()
	switch {
	case requester != "":
		return 0, o.handOver(ctx, s, requester)
	case send == nil:
		return never, nil
	}
	n := maxRead * (s.rec.Puts - s.rec.Sent) / max(s.rec.Bytes, 1) // by their average size
	items, err := o.db.Read(ctx, o.path("items", s.key), 0, int(min(max(n, 1), maxBatch)))
	if err == nil && len(items) == 0 {
		return o.rest(ctx, s)
	}
	if err == nil && isChanged {
		_, err = o.save(ctx, s, saveBusy)
	}
	s.emptied = time.Time{}
	for i := 0; i < len(items) && delay == 0 && err == nil && o.mayContinue(ctx, s); i++ {
		delay, err = o.handle(ctx, s, send, items[i])
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	s.isDelayed = delay > 0
	return delay, err
}

// mayContinue reports whether a turn may make another attempt.
func (o *Outbox) mayContinue(ctx context.Context, s *sender) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return !o.isClosed && s.requester == "" && ctx.Err() == nil
}
