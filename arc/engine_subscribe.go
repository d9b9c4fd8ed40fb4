// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package arc

import (
	"cmp"
	"context"
	"errors"
	"slices"

	"github.com/fivewire/fivewire/arc/internal/wire"
	"github.com/fivewire/fivewire/store"
)

// subscribe registers a webhook for a task.
func (e *taskEngine) subscribe(ctx context.Context, call *Call) (any, error) {
	p, err := wire.Read[wire.Subscribe](call.Params)
	if err != nil {
		return nil, err
	}
	t, err := e.own(ctx, call, p.TaskID)
	if err != nil {
		return nil, err
	}
	// The check may ask the name service, and the task must not wait for that.
	// Only who has a task gets so far.
	t.mu.Unlock()
	defer e.release(t)
	if err := e.s.outbox.send.check(ctx, p.CallbackURL); err != nil {
		return nil, err
	}
	ctx = context.WithoutCancel(ctx)
	t.mu.Lock()
	defer t.mu.Unlock()
	if ok, err := e.loadLocked(ctx, t, false); err != nil {
		return nil, err
	} else if !ok {
		return nil, idFault(ErrTaskNotFound, "taskId", p.TaskID)
	}
	subs, err := e.subscriptionsLocked(ctx, t)
	if err != nil {
		return nil, err
	}
	sub := e.newSubscription(call, t.state, p)
	isKept := slices.ContainsFunc(subs, func(s *subscription) bool { return s.ID == sub.ID })
	if !isKept && len(subs) >= e.s.opts.Limits.MaxSubscriptions+len(e.s.outbox.static) {
		return nil, &Error{Code: ErrPermissionDenied, Message: "Too many subscriptions",
			Details: idFault(ErrPermissionDenied, "taskId", p.TaskID).Details}
	}
	final := t.state.Status.Final()
	isNew, err := e.keepSubscription(ctx, call, sub)
	if err != nil {
		return nil, err
	}
	if !isNew {
		t.subs = nil
	}
	sub.Active = !final
	if !final {
		if final, err = e.followLocked(ctx, t, sub); err != nil {
			e.s.ledger.remove(subscriptionObject, subKey(t.id, sub.ID))
			return nil, err // a repeated request finds the subscription
		}
		sub.Active = !final
	}
	if final {
		st := t.state
		t.mu.Unlock() // a change of the queue may have to wait
		err = e.queueEnd(ctx, []*subscription{sub}, st)
		t.mu.Lock()
		if err != nil {
			return nil, err
		}
	}
	b, err := typedResult(subscriptionType(call.out.profile), "subscription", &sub.Subscription)
	return &ready{writer{b: b}}, err
}

// newSubscription returns the subscription that a call makes to a task.
func (e *taskEngine) newSubscription(call *Call, st *taskState, p *wire.Subscribe) *subscription {
	if sub := dialectSub(call, st); sub != nil {
		return sub
	}
	sub := &subscription{agent: call.Agent, target: call.RequestAgent, traceID: cmp.Or(st.traceID, call.TraceID)}
	sub.Subscription = Subscription{ID: call.id("sub-"), TaskID: st.id, CallbackURL: p.CallbackURL, Events: eventList(p.Events),
		CreatedAt: NewTimestamp(now()), Active: true}
	return sub
}

// keepSubscription stores a subscription, which is active until what is owed is sent. It reads one that an earlier attempt
// of the request has created, and replaces one in another protocol; then it returns false.
func (e *taskEngine) keepSubscription(ctx context.Context, call *Call, sub *subscription) (isNew bool, err error) {
	b, err := sub.encode()
	if err != nil {
		return false, err
	}
	key := subKey(sub.TaskID, sub.ID)
	if err := e.s.ledger.add(subscriptionObject, key, call, len(b)); err != nil {
		return false, err
	}
	_, err = e.db.Create(ctx, key, b, e.s.outbox.retention())
	isNew = err == nil
	switch isExisting := errors.Is(err, store.ErrExists); {
	case isExisting && sub.dialect.name == "":
		err = e.readSubscription(ctx, sub)
	case isExisting:
		err = e.s.outbox.change(ctx, sub, func(stored *subscription) { *stored = *sub })
	}
	if err != nil {
		e.s.ledger.remove(subscriptionObject, key)
		return false, err
	}
	e.s.ledger.renew(subscriptionObject, key, e.s.outbox.retention())
	return isNew, nil
}

// readSubscription replaces a subscription by the stored one.
func (e *taskEngine) readSubscription(ctx context.Context, sub *subscription) error {
	entry, err := e.db.Get(ctx, subKey(sub.TaskID, sub.ID))
	if err != nil {
		return err
	}
	stored, err := decodeSubscription(entry.Value)
	if err != nil {
		return err
	}
	stored.Active = sub.Active
	*sub = *stored
	return nil
}

// followLocked records a new subscriber in the state of a task, so that each later change
// reads the subscribers again. An earlier change is visible here. It returns true
// if the task has already ended.
func (e *taskEngine) followLocked(ctx context.Context, t *liveTask, sub *subscription) (isFinal bool, err error) {
	err = e.s.persist(ctx, func(ctx context.Context) error {
		return e.editLocked(ctx, t, func(st *taskState) error {
			if isFinal = st.Status.Final(); isFinal {
				return ErrTaskAlreadyCompleted
			}
			st.followed++
			return nil
		})
	})
	switch {
	case isFinal:
		return true, nil
	case err == nil && t.subs != nil: // a copy, because readers may hold the old list
		t.subs = append(slices.Clip(slices.Clone(t.subs)), sub)
	}
	return false, err
}

// staticSubs are the webhooks of the configuration as they follow one task.
func (e *taskEngine) staticSubs(st *taskState) []*subscription {
	subs := []*subscription{}
	for _, w := range e.s.outbox.static {
		events := w.Events
		if len(events) == 0 {
			events = []Event{EventTaskCreated, EventTaskStarted, EventTaskPaused, EventTaskResumed, EventTaskCompleted,
				EventTaskFailed, EventTaskCanceled, EventNewMessage, EventNewArtifact, EventStatusChange}
		}
		sub := &subscription{agent: st.agent, target: w.TargetAgent, traceID: st.traceID, static: true}
		sub.Subscription = Subscription{ID: w.ID, TaskID: st.id, CallbackURL: w.CallbackURL, Events: events, Active: true}
		subs = append(subs, sub)
	}
	return subs
}

// forget takes a subscription that is over from its task. It may be called while
// the task is locked, so it does its work in the list alone.
func (e *taskEngine) forget(sub *subscription) {
	e.mu.Lock()
	t := e.live[sub.TaskID]
	if t != nil {
		t.refs++
	}
	e.mu.Unlock()
	if t == nil {
		return
	}
	defer e.release(t)
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.subs != nil {
		t.subs = slices.DeleteFunc(slices.Clone(t.subs), func(s *subscription) bool { return s.ID == sub.ID })
	}
}
