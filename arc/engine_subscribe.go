// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package arc

import (
	"context"
	"errors"
	"slices"

	"github.com/fivewire/fivewire/store"
)

// subscribe registers a webhook for a task.
func (e *taskEngine) subscribe(ctx context.Context, call *Call) (any, error) {
	p, err := typed(call, (*reader).subscribe)
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
	if ok, err := e.load(ctx, t, false); err != nil {
		return nil, err
	} else if !ok {
		return nil, idFault(ErrTaskNotFound, "taskId", p.TaskID)
	}
	subs, err := e.subscriptions(ctx, t)
	if err != nil {
		return nil, err
	}
	if !call.isDuplicate && len(subs) >= e.s.opts.Limits.MaxSubscriptions+len(e.s.opts.StaticWebhooks) {
		return nil, &Error{Code: ErrPermissionDenied, Message: "Too many subscriptions",
			Details: idFault(ErrPermissionDenied, "taskId", p.TaskID).Details}
	}
	final := t.state.status.Final()
	sub := &subscription{agent: call.Agent, target: call.RequestAgent, traceID: or(t.state.traceID, call.TraceID), instance: e.s.opts.Persistence.InstanceID}
	sub.Subscription = Subscription{ID: call.id("sub-"), TaskID: t.id, CallbackURL: p.CallbackURL, Events: p.Events,
		CreatedAt: NewTimestamp(now()), Active: !final}
	stored := *sub
	stored.Active = true // until what is owed is sent
	b, err := stored.encode()
	if err != nil {
		return nil, err
	}
	_, err = e.db.Create(ctx, subKey(t.id, sub.ID), b, e.s.outbox.retention())
	if call.isDuplicate && errors.Is(err, store.ErrExists) {
		t.subs = nil // where it is already
		err = e.readAgain(ctx, sub)
	}
	if err != nil {
		return nil, err
	}
	if !final {
		if final, err = e.follow(ctx, t, sub); err != nil {
			return nil, errors.Join(err, e.db.Delete(ctx, subKey(t.id, sub.ID), 0))
		}
		sub.Active = !final
	}
	if final {
		events, first := t.state.lastEvents()
		for i, n := range events {
			if sub.wants(n.Event) {
				if err := e.s.outbox.put(ctx, sub, first+uint64(i), n); err != nil {
					return nil, err
				}
			}
		}
		e.s.outbox.finish(sub)
	}
	b, err = subscriptionResult(&sub.Subscription)
	return &ready{writer{b: b}}, err
}

// readAgain takes from the store what a subscription is that the same request has
// made already.
func (e *taskEngine) readAgain(ctx context.Context, sub *subscription) error {
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

// follow records a new subscriber in the state of a task, so that each later change
// reads the subscribers again. An earlier change is visible here. It returns true
// if the task has already ended.
func (e *taskEngine) follow(ctx context.Context, t *liveTask, sub *subscription) (isFinal bool, err error) {
	for {
		next := *t.state
		next.followed++
		err := e.save(ctx, t, &next)
		if err == nil {
			if t.subs != nil { // a copy, because readers may hold the old list
				t.subs = append(slices.Clip(slices.Clone(t.subs)), sub)
			}
			return false, nil
		}
		if !errors.Is(err, store.ErrConflict) {
			return false, err
		}
		switch ok, err := e.load(ctx, t, true); {
		case err != nil:
			return false, err
		case !ok:
			return false, idFault(ErrTaskNotFound, "taskId", t.id)
		case t.state.status.Final():
			return true, nil
		}
	}
}

// staticSubs are the webhooks of the configuration as they follow one task.
func (e *taskEngine) staticSubs(st *taskState) []*subscription {
	subs := []*subscription{}
	for _, w := range e.s.opts.StaticWebhooks {
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
