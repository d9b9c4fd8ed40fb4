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
	added, err := e.attach(t, sub)
	if err != nil {
		return sub, false, err
	}
	err = e.changeSubsLocked(e.durable(), t, func(r *record) (*record, error) {
		next := *r
		if err := added.addTo(&next, e.opts.MaxSubscriptions); err != nil {
			return nil, err
		}
		if !added.isKept {
			return nil, store.ErrUnchanged
		}
		return &next, nil
	})
	e.finishAddition(t, added, err)
	sub = added.Subscription
	if err == nil && t.rec.IsFinal() {
		err = e.queueLast(e.durable(), t.rec, &sub)
	}
	return sub, err == nil && !t.rec.IsFinal(), err
}

// An addition is a subscription that a change adds to a task.
type addition struct {
	Subscription
	size     int           // counted for it
	replaced *Subscription // nil without one
	isKept   bool          // the record has it
}

// attach counts a subscription before it is added. A call of finishAddition follows.
func (e *Tasks) attach(t *task, sub Subscription) (*addition, error) {
	sub.Size = sub.size()
	return &addition{Subscription: sub, size: sub.Size}, e.ledger.attach(t.id, sub.Size, 1)
}

// finishAddition ends the count of a subscription that was not added, and of a replaced one.
func (e *Tasks) finishAddition(t *task, a *addition, err error) {
	switch {
	case a == nil:
	case err != nil || !a.isKept:
		_ = e.ledger.attach(t.id, -a.size, -1) // always succeeds
	case a.replaced != nil:
		_ = e.ledger.attach(t.id, -a.replaced.Size, -1)
	}
}

// addTo adds the subscription to a record before the change, unless that has it or has ended.
func (a *addition) addTo(r *record, limit int) error {
	a.replaced, a.isKept = nil, false
	subs := r.Subs
	if i := slices.IndexFunc(subs, a.isInPlaceOf); i >= 0 {
		if old := &subs[i]; old.ID == a.ID || old.URL == a.URL && bytes.Equal(old.Dialect.Data, a.Dialect.Data) {
			a.Subscription = *old // by an earlier attempt
			return nil
		}
		a.replaced = &subs[i]
		a.Earlier = append(slices.Clone(a.replaced.Earlier[max(0, len(a.replaced.Earlier)-maxEarlier+1):]), a.replaced.ID)
		subs = slices.Delete(slices.Clone(subs), i, i+1)
	}
	switch {
	case r.IsFinal() && a.Dialect == nil:
		return nil
	case len(subs) >= limit:
		fault := wire.NewFault(wire.PermissionDenied, "taskId", r.ID)
		fault.Message = "Too many subscriptions"
		return fault
	}
	a.From, a.isKept = r.Events+1, true
	r.Subs = append(slices.Clip(subs), a.Subscription)
	return nil
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
	i := slices.IndexFunc(list, func(s Subscription) bool { return d.isSame(s.Dialect) })
	if i < 0 {
		return nil
	}
	s := &list[i]
	err = e.endSubscription(ctx, taskID, endedSub{ID: s.ID, IsRemoved: true, Earlier: s.Earlier})
	for _, id := range append(slices.Clip(s.Earlier), s.ID) {
		if err == nil {
			err = e.persist(e.durable(), func(ctx context.Context) error { return e.webhooks.noteRemoved(ctx, id) })
		}
	}
	return err
}
