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
	"github.com/fivewire/fivewire/internal/state"
	"github.com/fivewire/fivewire/store"
)

const (
	maxTurns  = 64               // at once
	maxBatch  = 64               // items in a turn
	maxRead   = 1 << 20          // bytes in a turn, estimated
	linger    = 10 * time.Second // of a sender with an empty queue
	failDelay = 5 * time.Second  // after a failure of the store
	never     = -1               // the next turn needs a signal
)

var (
	errTaken   = errors.New("outbox: record ended or taken")
	errChanged = errors.New("outbox: record changed")
)

// A sender is the work of a stream in this instance, under one owner. It makes turns, and has no
// goroutine between them. Its state is that of the record, which each turn reads.
type sender struct {
	stream  string
	owner   lease.Owner
	epoch   context.Context
	done    chan struct{} // closed after the removal
	timer   *time.Timer   // of the next turn
	release func() bool   // of a turn at the end of the epoch

	// The turn uses the following without a lock.
	isLoaded bool
	letters  int            // dead ones
	idleRev  store.Revision // of the record when the queue was found empty
	idleTime time.Time

	// Outbox.mu guards the following. The turn also reads due without it.
	due        time.Time // no attempt earlier
	starts     int       // calls of lease.Finish to be made
	isActive   bool      // in Outbox.due or running
	isRunning  bool
	isSignaled bool // since the begin of the turn
	isWoken    bool // likewise, by Wake
	isLater    bool // due is that of Later
	isEnded    bool
	requester  lease.Owner // of another instance that calls Own
}

// serve begins a turn of the sender of owner, unless the first item is not due. The sender makes
// starts more calls of lease.Finish at its end. After the end of the epoch or Shutdown, serve
// returns nil.
func (o *Outbox) serve(stream string, owner lease.Owner, epoch context.Context, starts int) *sender {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.isClosed || epoch.Err() != nil {
		return nil
	}
	s := o.senders[stream]
	if s == nil || s.owner != owner {
		if s != nil {
			o.removeLocked(s)
		}
		s = &sender{stream: stream, owner: owner, epoch: epoch, done: make(chan struct{})}
		s.timer = time.AfterFunc(time.Hour, func() { o.signal(s) })
		s.release = context.AfterFunc(epoch, func() { o.signal(s) })
		o.senders[stream] = s
	}
	s.starts += starts
	s.isSignaled = true
	if !time.Now().Before(s.due) {
		o.signalLocked(s)
	}
	return s
}

// removeLocked removes a sender. o.mu must be held.
func (o *Outbox) removeLocked(s *sender) {
	if o.senders[s.stream] == s {
		delete(o.senders, s.stream)
		s.timer.Stop()
		s.release()
		close(s.done)
	}
}

func (o *Outbox) signal(s *sender) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.signalLocked(s)
}

// signalLocked begins a turn, after the current one if a turn is running. o.mu must be held.
func (o *Outbox) signalLocked(s *sender) {
	s.isSignaled = true
	if !s.isActive && o.senders[s.stream] == s {
		s.timer.Stop()
		s.isActive = true
		o.due = append(o.due, s)
		o.dispatchLocked()
	}
}

// Wake ends the delay of [Later] for a stream. It reports whether this instance is its sender.
func (o *Outbox) Wake(stream string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	s := o.senders[stream]
	if s == nil {
		return false
	}
	if s.isLater {
		s.due = time.Time{}
	}
	s.isWoken = true
	o.signalLocked(s)
	return true
}

// dispatchLocked begins turns while places are free. o.mu must be held.
func (o *Outbox) dispatchLocked() {
	for o.running < maxTurns && len(o.due) > 0 {
		s := o.due[0]
		o.due[0] = nil
		o.due = o.due[1:]
		if o.senders[s.stream] == s {
			o.running++
			s.isRunning, s.isSignaled, s.isWoken = true, false, false
			o.wg.Go(func() { o.run(s) })
		}
	}
}

// run makes one turn and schedules the next.
func (o *Outbox) run(s *sender) {
	ctx, cancel := context.WithCancel(s.epoch)
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
		if err != nil && ctx.Err() == nil {
			o.opts.Logger.WarnContext(ctx, "outbox: sender delayed", "stream", s.stream, "delay", failDelay, "err", err)
		}
		o.schedule(s, delay, err != nil)
	})
}

// schedule ends a turn and sets the time of the next.
func (o *Outbox) schedule(s *sender, delay time.Duration, isFailed bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.running--
	s.isActive, s.isRunning = false, false
	if isFailed {
		delay, s.isLater = failDelay, false
		s.due = time.Now().Add(max(delay, time.Until(s.due)))
	}
	switch {
	case s.epoch.Err() != nil || o.isClosed:
		o.removeLocked(s)
	case delay == 0, s.requester != "", s.isSignaled && !time.Now().Before(s.due):
		o.signalLocked(s)
	case delay > 0 && o.senders[s.stream] == s:
		s.timer.Reset(delay)
	}
	o.dispatchLocked()
}

// end removes a sender without a record, unless a new record may exist.
func (o *Outbox) end(ctx context.Context, s *sender) (delay time.Duration, err error) {
	o.mu.Lock()
	if s.isSignaled {
		o.mu.Unlock()
		s.isLoaded = false
		return 0, nil
	}
	s.isEnded = true
	o.removeLocked(s)
	o.mu.Unlock()
	for range s.starts {
		_ = o.lease.Finish(ctx, s.owner, workKind(s.stream), s.stream) // or it is repeated
	}
	return never, nil
}

// turn sends the items that are due and returns the delay of the next turn.
func (o *Outbox) turn(ctx context.Context, s *sender) (wait time.Duration, err error) {
	rec, rev, err := o.load(ctx, s)
	if err != nil {
		return 0, err
	}
	o.mu.Lock()
	send, requester := o.funcs[kindOf(s.stream)], s.requester
	s.requester = ""
	o.mu.Unlock()
	switch {
	case requester != "":
		return 0, o.handOver(ctx, s, requester)
	case send == nil:
		return never, nil
	}
	limit := maxRead * (rec.Puts - rec.Sent) / max(rec.Bytes, 1) // by their average size
	items, err := o.db.Read(ctx, o.path("items", s.stream), 0, int(min(max(limit, 1), maxBatch)))
	if err == nil && len(items) == 0 {
		return o.rest(ctx, s, rec, rev)
	}
	var sent []uint64
	for i, r := range items {
		if r.Seq > rec.Seq { // else its Ack is missing
			wait = time.Until(s.due)
			if wait > 0 || i > 0 && !o.mayContinue(ctx, s) {
				break
			}
			a := &attempt{rec: rec, stored: r, send: send, isBusy: i < len(items)-1}
			err = o.attempt(ctx, s, a)
			rec, wait = a.rec, a.wait
		}
		if wait > 0 || err != nil {
			break
		}
		sent = append(sent, r.Seq)
	}
	wait = max(wait, 0)
	if len(sent) > 0 {
		err = errors.Join(err, o.ack(ctx, s.stream, sent))
	}
	return wait, err
}

func (o *Outbox) ack(ctx context.Context, stream string, seqs []uint64) error {
	return state.Change(ctx, func(ctx context.Context) error {
		return o.db.Ack(ctx, o.path("items", stream), seqs...)
	})
}

// mayContinue reports whether a turn may make another attempt.
func (o *Outbox) mayContinue(ctx context.Context, s *sender) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return !o.isClosed && s.requester == "" && ctx.Err() == nil
}

// load reads the record. If it has no owner, load writes it, so that no creation in doubt can land
// later.
func (o *Outbox) load(ctx context.Context, s *sender) (record, store.Revision, error) {
	rec, rev, err := o.edit(ctx, s.stream, state.LandTime, func(rec *record, _ store.Revision) error {
		if rec.Owner != "" {
			return store.ErrUnchanged
		}
		return nil
	})
	if err == nil && rec.Owner != s.owner {
		err = errTaken
	}
	if err != nil {
		return rec, rev, err
	}
	if !s.isLoaded {
		o.mu.Lock()
		defer o.mu.Unlock()
		s.due = time.Now().Add(min(rec.Delay, time.Until(rec.Next)))
		s.isLoaded = true
	}
	return rec, rev, nil
}

// own changes the record, unless it has another owner.
func (o *Outbox) own(ctx context.Context, s *sender, ttl time.Duration, change changeFunc) (record, error) {
	rec, _, err := o.edit(ctx, s.stream, ttl, func(rec *record, rev store.Revision) error {
		if rec.Owner != s.owner {
			return errTaken
		}
		return change(rec, rev)
	})
	return rec, err
}

// rest ends the sender if the queue has been empty for a while. An owned stream is renewed instead.
func (o *Outbox) rest(ctx context.Context, s *sender, rec record, rev store.Revision) (wait time.Duration, err error) {
	if s.idleRev != rev {
		s.idleRev, s.idleTime = rev, time.Now()
	}
	period, ttl := linger, 2*o.life
	switch rec.Mode {
	case modeOwned:
		period = o.life / 2
	case modeClosing, modeGone:
		period = 0
	}
	wait = time.Until(s.idleTime.Add(period))
	lost := rec.Puts - rec.Sent
	if !rec.Busy && lost == 0 && wait > 0 {
		return wait, nil
	}
	isEnd := wait <= 0 && rec.Mode != modeOwned
	if isEnd {
		ttl = state.LandTime
	}
	_, err = o.own(ctx, s, ttl, func(rec *record, now store.Revision) error {
		if now != rev {
			return errChanged
		}
		rec.Busy, rec.Sent, rec.Bytes, rec.head = false, rec.Puts, 0, head{Last: rec.Last}
		if isEnd {
			rec.Owner, rec.Mode, rec.Last = "", modeLinger, ""
		}
		return nil
	})
	switch {
	case errors.Is(err, errChanged):
		return 0, nil
	case err == nil && lost > 0:
		o.opts.Logger.ErrorContext(ctx, "outbox: items lost", "stream", s.stream, "lost", lost, "puts", rec.Puts)
	}
	if err == nil && isEnd {
		return o.end(ctx, s)
	}
	return 0, err
}

// handOver makes another instance the sender, which has called Own.
func (o *Outbox) handOver(ctx context.Context, s *sender, to lease.Owner) error {
	_, err := o.own(ctx, s, 2*o.life, func(rec *record, _ store.Revision) error {
		rec.Owner, rec.Mode, rec.Busy = to, modeOwned, false
		return nil
	})
	if err == nil {
		err = o.lease.Tell(ctx, to, topic, []byte("/"+s.stream)) // Own may have returned
	}
	return err
}

// An attempt is that on the first item of the queue, and its outcome.
type attempt struct {
	Item
	rec     record // as last read or written
	stored  store.Record
	send    sendFunc
	isBusy  bool // more items follow in the turn
	verdict Verdict
	wait    time.Duration // of the item; zero means that it left the queue
}

// attempt makes an attempt and carries out the verdict.
func (o *Outbox) attempt(ctx context.Context, s *sender, a *attempt) (err error) {
	a.Data, err = state.DecodeWith(a.stored.Value, &a.Item)
	a.Stream, a.Seq, a.Attempt, a.First = s.stream, a.stored.Seq, a.rec.Attempt, a.stored.Time
	if now := time.Now(); a.First.After(now) { // the clock of the store is ahead
		a.First = now
	}
	switch {
	case err != nil:
		a.Data, a.verdict = a.stored.Value, Dead("item not readable", err)
		return o.conclude(ctx, s, a)
	case a.rec.Mode == modeGone:
		a.verdict = Dead(reasonGone, nil)
		return o.conclude(ctx, s, a)
	}
	isAlive, err := o.lease.Alive(ctx, s.owner)
	if err != nil || !isAlive || ctx.Err() != nil {
		return cmp.Or(ctx.Err(), err, lease.ErrLost)
	}
	a.Attempt++
	guard.Run("outbox function", func() error {
		a.verdict = a.send(ctx, a.Item)
		return nil
	}, func(panicked error) {
		if p, ok := errors.AsType[*guard.PanicError](panicked); ok {
			a.verdict = Dead("function panicked", panicked)
			o.opts.Logger.ErrorContext(ctx, "outbox: function panicked", "stream", s.stream, "err", p,
				"stack", string(p.Stack))
		}
		if a.verdict.kind == verdictLater {
			a.Attempt--
		}
		err = o.conclude(ctx, s, a)
	})
	return err
}

// conclude carries out the verdict. It repeats that while the store fails, since the attempt must
// not be repeated.
func (o *Outbox) conclude(ctx context.Context, s *sender, a *attempt) error {
	v := a.verdict
	if v.kind == verdictRetry || v.kind == verdictLater {
		a.wait = max(0, min(cmp.Or(max(v.after, 0), time.Second), o.opts.MaxAge-time.Since(a.First)))
	}
	for delay := 100 * time.Millisecond; ; delay = min(2*delay, failDelay) {
		err := o.save(ctx, s, a)
		if err == nil || errors.Is(err, errTaken) || await(ctx, time.After(delay)) != nil {
			return err
		}
	}
}

// save changes the record after an attempt: the item waits, or it leaves the queue.
func (o *Outbox) save(ctx context.Context, s *sender, a *attempt) (err error) {
	v, next := a.verdict, time.Now().Add(a.wait)
	if a.wait > 0 {
		o.mu.Lock()
		s.isLater = v.kind == verdictLater
		if !s.isLater || !s.isWoken {
			s.due = next
		}
		o.mu.Unlock()
	}
	switch {
	case a.wait > 0 && v.kind == verdictLater:
		return nil
	case a.wait == 0 && v.kind != verdictDone:
		err = o.addLetter(ctx, s, a)
	}
	if err == nil && v.kind == verdictGone && a.rec.Mode == modeOwned {
		_, err = o.startWork(ctx, s) // for the survivors
	}
	if err != nil {
		return err
	}
	rec, err := o.own(ctx, s, 2*o.life, func(rec *record, _ store.Revision) error {
		switch {
		case a.wait > 0:
			rec.head = head{a.Attempt, a.wait, next, v.last}
			return nil
		case rec.Seq >= a.Seq: // by an earlier change
			return store.ErrUnchanged
		case v.kind == verdictGone:
			rec.Mode, rec.Last = modeGone, v.last
		}
		rec.pop(a.stored, a.isBusy)
		return nil
	})
	if err == nil {
		a.rec = rec
	}
	return err
}
