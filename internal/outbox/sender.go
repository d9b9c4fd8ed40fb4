// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package outbox

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/fivewire/fivewire/internal/guard"
	"github.com/fivewire/fivewire/internal/lease"
	"github.com/fivewire/fivewire/store"
)

const (
	linger     = 10 * time.Second // of a sender with an empty queue
	freePeriod = 10 * time.Second // for another instance to call Own
	endTTL     = 10 * time.Minute // of an ended record: a creation may land so late
	maxUnsaved = 64               // ended items that the record does not count
	maxBatch   = 64               // items in a turn
	maxRead    = 1 << 20          // bytes in a turn, estimated
	maxText    = 1 << 10          // of an error in a record
)

// errTaken reports that another instance has the record.
var errTaken = errors.New("outbox: record taken")

// A Verdict is the outcome of an attempt. The zero Verdict is Retry after a second.
type Verdict struct {
	kind   verdictKind
	after  time.Duration
	reason string
	err    error
	text   string // of err
}

type verdictKind uint8

const (
	verdictRetry verdictKind = 1 + iota
	verdictDone
	verdictLater
	verdictDead
	verdictGone
)

// Done means that the item was sent.
func Done() Verdict { return Verdict{kind: verdictDone} }

// Retry means that the attempt failed with err and is repeated after a delay. Attempts and delay
// are stored. Zero means 1 s.
func Retry(after time.Duration, err error) Verdict {
	return Verdict{kind: verdictRetry, after: after, err: err}
}

// Later means that no attempt was made because of err, for example an open circuit breaker. The
// function is called again after a delay. Zero means 1 s.
func Later(after time.Duration, err error) Verdict {
	return Verdict{kind: verdictLater, after: after, err: err}
}

// Dead means that the item becomes a dead letter. A nil err keeps that of the last Retry.
func Dead(reason string, err error) Verdict {
	return Verdict{kind: verdictDead, reason: reason, err: err}
}

// Gone means that the receiver of the stream does not exist any longer: all items in the queue
// become dead letters, and the sender ends.
func Gone(err error) Verdict {
	return Verdict{kind: verdictGone, reason: "stream closed", err: err}
}

// A sender is the work of a stream in this instance, under one owner.
type sender struct {
	key      string
	owner    lease.Owner
	ctx      context.Context // of the epoch
	done     chan struct{}   // closed after the removal
	timer    *time.Timer     // begins a turn
	rev      store.Revision  // of rec; zero before it was read; used by the turn
	head     head            // used by the turn, as all up to mu
	due      time.Time       // of the head
	empty    time.Time       // when the queue was found empty
	freed    time.Time       // when rec.Free was set
	verdict  Verdict         // on the head, not yet carried out
	gone     Verdict         // on the stream
	failures int             // turns in a row

	// Outbox.mu guards the following. The turn writes rec and reads it without the lock.
	stream     string
	rec        record // as last read or written
	unsaved    counts // not in rec
	starts     int    // calls of Finish to be made
	state      senderState
	isOpen     bool // the record is present and not about to end
	isEnded    bool
	isSignaled bool // since the begin of the turn
	isDelayed  bool // the head waits
	isYielding bool // another instance requests the stream
	isClosing  bool
}

type senderState uint8

const (
	stateWaiting senderState = iota
	stateDue
	stateRunning
)

// err returns why a removed sender did not end.
func (s *sender) err() error {
	if s.isEnded {
		return nil
	}
	return cmp.Or(context.Cause(s.ctx), ErrClosed)
}

// serve makes sure that a sender of owner exists here and begins a turn. The sender makes starts
// more calls of Finish at its end. It returns nil after the end of the epoch or Shutdown.
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
	s.stream = cmp.Or(stream, s.stream)
	s.starts += starts
	o.wakeLocked(s)
	return s
}

// isServed reports whether a sender of owner with an index entry is here.
func (o *Outbox) isServed(key string, owner lease.Owner) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	s := o.senders[key]
	return s != nil && s.owner == owner && s.starts > 0
}

// isRunning reports whether a turn of an earlier owner is running here.
func (o *Outbox) isRunning(key string, owner lease.Owner) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	s := o.senders[key]
	return s != nil && s.owner != owner && s.state == stateRunning
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

// wakeLocked begins a turn, or another one after the current turn. o.mu must be held.
func (o *Outbox) wakeLocked(s *sender) {
	s.isSignaled = true
	if s.state == stateWaiting && (!s.isDelayed || s.isYielding) && o.senders[s.key] == s {
		s.timer.Stop()
		s.state = stateDue
		o.due = append(o.due, s)
		o.dispatchLocked()
	}
}

// dispatchLocked begins turns while places are free. o.mu must be held.
func (o *Outbox) dispatchLocked() {
	for o.running < maxSenders && len(o.due) > 0 && !o.isClosed {
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
	wait := time.Duration(0)
	guard.Run("turn", func() (err error) {
		wait, err = o.turn(ctx, s)
		if errors.Is(err, errTaken) {
			wait, err = o.end(ctx, s)
		}
		return err
	}, func(err error) {
		o.mu.Lock()
		defer o.mu.Unlock()
		o.running--
		s.state, s.failures = stateWaiting, s.failures+1
		switch {
		case s.ctx.Err() != nil:
			o.removeLocked(s)
		case err != nil:
			s.isDelayed = true
			wait = min(time.Second<<min(s.failures, 6), time.Minute)
			o.opts.Logger.WarnContext(ctx, "outbox: sender delayed", "stream", s.stream, "delay", wait, "err", err)
		default:
			s.failures = 0
		}
		if wait == 0 || s.isSignaled {
			o.wakeLocked(s)
		}
		if wait > 0 && s.state == stateWaiting && o.senders[s.key] == s {
			s.timer.Reset(wait)
		}
		o.dispatchLocked()
	})
}

// turn sends the items that are due and returns when the next turn begins.
func (o *Outbox) turn(ctx context.Context, s *sender) (time.Duration, error) {
	if s.rev == 0 {
		isHere, err := o.load(ctx, s)
		if err != nil || !isHere {
			return 0, cmp.Or(err, errTaken)
		}
	}
	o.mu.Lock()
	send, isYielding := o.funcs[kindOf(s.stream)], s.isYielding
	s.isYielding = false
	o.mu.Unlock()
	if isYielding || s.rec.Free {
		wait, err := o.yield(ctx, s, isYielding)
		if wait > 0 || err != nil {
			return wait, err
		}
	}
	if send == nil {
		return never, nil
	}
	items, err := o.db.Read(ctx, o.path("items", s.key), 0, s.batch())
	if err != nil {
		return 0, err
	}
	if len(items) == 0 {
		return o.rest(ctx, s)
	}
	s.empty = time.Time{}
	for _, item := range items {
		wait, err := o.handle(ctx, s, send, item)
		if wait > 0 || err != nil {
			o.delay(s)
			return wait, err
		}
		if !o.mayContinue(s) {
			return 0, nil
		}
	}
	o.mu.Lock()
	isBehind := o.isBehindLocked(s)
	o.mu.Unlock()
	if isBehind {
		_, err = o.save(ctx, s, saveBusy)
	}
	return 0, err
}

// batch returns how many items to read: few if they are large.
func (s *sender) batch() int {
	n, bytes := s.rec.Puts-s.rec.Sent, s.rec.Bytes
	return int(min(max(maxRead*n/max(bytes, 1), 1), maxBatch))
}

func (o *Outbox) delay(s *sender) {
	o.mu.Lock()
	defer o.mu.Unlock()
	s.isDelayed = true
}

// mayContinue reports whether a turn may go to the next item.
func (o *Outbox) mayContinue(s *sender) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return !o.isClosed && !s.isYielding && s.ctx.Err() == nil
}

// isBehindLocked reports whether the record counts too many ended items. o.mu must be held.
func (o *Outbox) isBehindLocked(s *sender) bool {
	return s.unsaved.Sent >= min(maxUnsaved, max(o.opts.MaxItems/8, 1)) || -s.unsaved.Bytes >= o.opts.MaxBytes/8
}
