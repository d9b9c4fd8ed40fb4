// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"bytes"
	"cmp"
	"context"
	"slices"

	"github.com/fivewire/fivewire/arc/internal/wire"
	"github.com/fivewire/fivewire/store"
)

// Subscribe registers a webhook for a task and returns it. The check of its address may have to wait; only a caller
// who has the task gets so far.
func (e *Tasks) Subscribe(ctx context.Context, q *Request, p *wire.Subscribe, check func() error) (sub Subscription, isActive bool, err error) {
	t, s, err := e.own(ctx, q, p.TaskID)
	if err != nil {
		return sub, false, err
	}
	defer e.release(t)
	if err := check(); err != nil {
		return sub, false, err
	}
	t.turn.Lock()
	defer e.unlock(t)
	if sub = newSubscription(q, s.rec); q.Webhook == nil {
		sub.URL, sub.Events = p.CallbackURL, p.Events
	}
	sub.Size = sub.size()
	if err := e.ledger.attach(t.id, sub.Size, 1); err != nil {
		return sub, false, err
	}
	var replaced *Subscription
	isKept := false
	err = e.changeSubsLocked(e.durable(), t, func(r *record) (*record, error) {
		replaced, isKept = nil, false
		n := *r
		if i := slices.IndexFunc(r.Subs, sub.isInPlaceOf); i >= 0 {
			if old := &r.Subs[i]; old.ID == sub.ID || old.URL == sub.URL && bytes.Equal(old.Dialect.Data, sub.Dialect.Data) {
				sub = *old // by an earlier attempt
				return nil, store.ErrUnchanged
			}
			replaced = &r.Subs[i]
			n.Subs = slices.Delete(slices.Clone(r.Subs), i, i+1)
			sub.Earlier = append(slices.Clone(replaced.Earlier[max(0, len(replaced.Earlier)-maxEarlier+1):]), replaced.ID)
		}
		switch {
		case r.IsFinal() && sub.Dialect == nil:
			return nil, store.ErrUnchanged
		case len(n.Subs) >= e.opts.MaxSubscriptions:
			fault := wire.NewFault(wire.PermissionDenied, "taskId", r.ID)
			fault.Message = "Too many subscriptions"
			return nil, fault
		}
		sub.From = r.Events + 1
		n.Subs = append(slices.Clip(n.Subs), sub)
		isKept = true
		return &n, nil
	})
	switch {
	case err != nil || !isKept:
		_ = e.ledger.attach(t.id, -sub.Size, -1) // always succeeds
	case replaced != nil:
		_ = e.ledger.attach(t.id, -replaced.Size, -1)
	}
	if err == nil && t.rec.IsFinal() {
		err = e.queueLast(e.durable(), t.rec, &sub)
	}
	return sub, err == nil && !t.rec.IsFinal(), err
}

// newSubscription returns the subscription that a request adds to a task.
func newSubscription(q *Request, r *record) Subscription {
	sub := Subscription{ID: q.Attempt.ID("sub-"), Target: q.Caller, TraceID: cmp.Or(r.TraceID, q.TraceID), Created: Now()}
	if w := q.Webhook; w != nil {
		sub.URL, sub.Events, sub.Dialect = w.URL, w.Events, w.Dialect
	}
	return sub
}

// maxEarlier bounds the replaced subscriptions that a subscription knows.
const maxEarlier = 8

// isInPlaceOf reports whether two subscriptions of a task have the same id, or the same one in another protocol.
func (s *Subscription) isInPlaceOf(old Subscription) bool {
	return s.ID == old.ID || s.Dialect.isSame(old.Dialect)
}

func (d *Dialect) isSame(o *Dialect) bool {
	return d != nil && o != nil && d.Name == o.Name && d.ID == o.ID
}

func (s *Subscription) size() int {
	n := baseBytes + len(s.URL) + len(s.Target) + 16*len(s.Events)
	if s.Dialect != nil {
		n += len(s.Dialect.Data)
	}
	return n
}

// Subscriptions returns those of a task that have a dialect.
func (e *Tasks) Subscriptions(ctx context.Context, taskID, dialect string) (list []Subscription, err error) {
	t := e.acquire(taskID)
	defer e.release(t)
	s, err := e.get(ctx, t)
	if err != nil {
		return nil, err
	}
	for _, sub := range s.rec.Subs {
		if sub.Dialect != nil && sub.Dialect.Name == dialect {
			list = append(list, sub)
		}
	}
	return list, nil
}

// Unsubscribe removes a subscription of a task with a dialect. Its waiting notifications are not sent.
func (e *Tasks) Unsubscribe(ctx context.Context, taskID string, d *Dialect) error {
	list, err := e.Subscriptions(ctx, taskID, d.Name)
	if err != nil {
		return err
	}
	var removals []endedSub
	for _, s := range list {
		if d.isSame(s.Dialect) {
			for _, id := range append(slices.Clip(s.Earlier), s.ID) {
				removals = append(removals, endedSub{id, true})
			}
		}
	}
	if removals == nil {
		return nil
	}
	err = e.endSubscriptions(ctx, taskID, removals, func(s *Subscription) bool {
		return slices.Contains(removals, endedSub{s.ID, true})
	})
	for _, s := range removals {
		if err == nil {
			err = e.persist(e.durable(), func(ctx context.Context) error { return e.webhooks.noteRemoved(ctx, s.ID) })
		}
	}
	return err
}
