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

// errTaken reports that the sender has no record any longer.
var errTaken = errors.New("outbox: record taken")

// load reads the record. If it is absent, no creation in doubt can land after load.
func (o *Outbox) load(ctx context.Context, s *sender) error {
	rec, rev, err := o.edit(ctx, s.key, endTTL, func(_ *record, rev store.Revision) error {
		if rev != 0 {
			return store.ErrUnchanged
		}
		return nil
	})
	if err != nil || rec.Owner != s.owner {
		return cmp.Or(err, errTaken)
	}
	o.mu.Lock()
	s.stream = rec.Stream
	needsEntry := !rec.Own && s.starts == 0
	o.mu.Unlock()
	if needsEntry {
		if err = o.startWork(ctx, rec.Stream, s.owner); err != nil {
			return err
		}
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if needsEntry {
		s.starts++
	}
	s.rec, s.rev, s.isOpen = rec, rev, true
	s.head, s.due = rec.head, time.Now().Add(min(rec.Delay, time.Until(rec.Next)))
	return nil
}

// A saveMode is a change of the record besides the state of the sender.
type saveMode uint8

const (
	saveBusy saveMode = iota
	saveIdle          // if no item was put since the record was last read
	saveEnd           // likewise
)

// save writes the state of the sender. It fails with errTaken if the record has another owner. If
// the condition of the mode does not hold, save reads the record and reports false.
func (o *Outbox) save(ctx context.Context, s *sender, mode saveMode) (isSaved bool, err error) {
	o.mu.Lock()
	unsaved := s.unsaved
	isSaved = mode < saveIdle || !s.isSignaled
	s.isOpen = mode < saveEnd || !isSaved
	o.mu.Unlock()
	if !isSaved {
		return false, nil
	}
	ttl, lost := o.recordTTL(), int64(0)
	if mode == saveEnd {
		ttl = endTTL
	}
	rec, rev, err := o.edit(ctx, s.key, ttl, func(rec *record, rev store.Revision) error {
		o.mu.Lock()
		isOwn := rec.Own && !s.isClosing
		o.mu.Unlock()
		isSaved = mode < saveIdle || rev == s.rev && (mode < saveEnd || !isOwn || s.gone.kind != 0)
		switch {
		case rec.Owner != s.owner:
			return errTaken
		case !isSaved:
			return store.ErrUnchanged
		}
		rec.add(unsaved)
		rec.head, rec.Saved = s.head, time.Now()
		rec.Own, rec.Busy = isOwn, mode == saveBusy
		if mode >= saveIdle {
			lost = rec.settle()
		}
		if mode == saveEnd {
			rec.Owner = ""
		}
		return nil
	})
	if err != nil {
		return false, err
	}
	o.mu.Lock()
	s.rec, s.rev = rec, rev
	s.isOpen = rec.Owner == s.owner
	if isSaved {
		s.unsaved.add(counts{-unsaved.Puts, -unsaved.Sent, -unsaved.Bytes})
	}
	o.mu.Unlock()
	if lost > 0 {
		o.opts.Logger.ErrorContext(ctx, "outbox: items lost", "stream", s.stream, "lost", lost, "puts", rec.Puts)
	}
	return isSaved, nil
}

// rest ends the sender if the queue has been empty for a while.
func (o *Outbox) rest(ctx context.Context, s *sender) (delay time.Duration, err error) {
	now, period := time.Now(), linger
	if s.emptied.IsZero() {
		s.emptied = now
	}
	o.mu.Lock()
	isOwn := s.rec.Own && s.gone.kind == 0
	isSettled := !s.rec.Busy && s.rec.Slack == 0 && s.unsaved.Sent == 0 && !(s.rec.Own && s.isClosing)
	switch {
	case isOwn:
		period = o.life / 2 // then the record is renewed
	case s.isClosing, s.gone.kind != 0:
		period = 0
	}
	o.mu.Unlock()
	delay = s.emptied.Add(period).Sub(now)
	switch {
	case !isSettled || isOwn && delay <= 0:
		s.emptied = time.Time{}
		_, err = o.save(ctx, s, saveIdle)
		return 0, err
	case delay > 0:
		return delay, nil
	}
	isSaved, err := o.save(ctx, s, saveEnd)
	if err != nil || !isSaved {
		return 0, err
	}
	return o.end(ctx, s)
}

// end removes a sender without a record, unless a new record may exist.
func (o *Outbox) end(ctx context.Context, s *sender) (delay time.Duration, err error) {
	o.mu.Lock()
	if s.isSignaled {
		s.rev, s.isOpen = 0, false // load reads the new record
		o.mu.Unlock()
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

// handOver makes another instance the sender, which has called Own.
func (o *Outbox) handOver(ctx context.Context, s *sender, to lease.Owner) error {
	if _, err := o.save(ctx, s, saveBusy); err != nil {
		return err
	}
	s.rev = 0 // no attempt before load
	_, _, err := o.edit(ctx, s.key, o.recordTTL(), func(rec *record, _ store.Revision) error {
		if rec.Owner != s.owner {
			return errTaken
		}
		rec.Owner, rec.Own, rec.Busy = to, true, false
		return nil
	})
	if err == nil {
		err = o.lease.Tell(ctx, to, topic, []byte(s.key)) // Own may have returned
	}
	return err
}

// handle makes an attempt on the head, if it is due, and carries out the verdict. It returns how
// long the head waits; zero means that the head left the queue.
func (o *Outbox) handle(ctx context.Context, s *sender, send sendFunc, r store.Record) (wait time.Duration, err error) {
	if s.head.Seq != r.Seq {
		s.head, s.verdict, s.due = head{Seq: r.Seq}, Verdict{}, time.Time{}
	}
	if wait = time.Until(s.due); wait > 0 {
		return wait, nil
	}
	if s.verdict.kind == 0 {
		err = o.attempt(ctx, s, send, r)
	}
	if err == nil {
		wait, err = o.conclude(ctx, s, r)
	}
	if err == nil {
		s.verdict = Verdict{}
	}
	return wait, err
}

// attempt calls the function, if the lease allows it.
func (o *Outbox) attempt(ctx context.Context, s *sender, send sendFunc, r store.Record) error {
	h, data, err := decode(r.Value)
	if err != nil {
		s.verdict = Verdict{kind: verdictDead, reason: "item not readable", text: err.Error()}
		return nil
	}
	if s.gone.kind != 0 {
		s.verdict = s.gone
		return nil
	}
	isAlive, err := o.lease.Alive(ctx, s.owner)
	if err == nil && !isAlive {
		err = lease.ErrLost
	}
	if err = cmp.Or(err, context.Cause(ctx)); err != nil {
		return err
	}
	item := Item{Stream: s.stream, ID: h.ID, Seq: r.Seq, Attempt: s.head.Attempt + 1, Data: data, First: r.Time}
	guard.Run("outbox function", func() error {
		v := send(ctx, item)
		if v.err != nil {
			v.text = cut(v.err.Error())
		}
		s.verdict = v
		return nil
	}, func(err error) {
		if p, ok := errors.AsType[*guard.PanicError](err); ok {
			s.verdict = Verdict{kind: verdictDead, reason: "function panicked", text: err.Error()}
			o.opts.Logger.ErrorContext(ctx, "outbox: function panicked", "stream", s.stream, "err", err, "stack", string(p.Stack))
		}
		s.verdict.kind = cmp.Or(s.verdict.kind, verdictRetry)
		if s.verdict.kind != verdictLater {
			s.head.Attempt++
		}
	})
	return nil
}

// conclude carries out the verdict on the head.
func (o *Outbox) conclude(ctx context.Context, s *sender, r store.Record) (wait time.Duration, err error) {
	v := s.verdict
	isWaiting := v.kind == verdictRetry || v.kind == verdictLater
	wait = min(cmp.Or(max(v.after, 0), time.Second), o.opts.MaxAge-time.Since(r.Time))
	if isWaiting && wait > 0 {
		if v.kind == verdictRetry {
			s.head.Delay, s.head.Next, s.head.Last = wait, time.Now().Add(wait), v.text
			o.opts.Logger.WarnContext(ctx, "outbox: attempt failed", "stream", s.stream, "attempt", s.head.Attempt,
				"delay", wait, "err", v.text)
			_, err = o.save(ctx, s, saveBusy)
		}
		if err == nil {
			s.due = time.Now().Add(wait)
		}
		return wait, err
	}
	if isWaiting {
		v.reason = "maximum age reached"
	}
	if v.kind != verdictDone {
		err = o.bury(ctx, s, r, v)
	}
	if err == nil {
		err = o.ack(ctx, "items", s.key, r.Seq)
	}
	if err != nil {
		return 0, err
	}
	if v.kind == verdictGone {
		s.gone = v
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	s.unsaved.add(counts{Sent: 1, Bytes: -size(r.Value)})
	return 0, nil
}
