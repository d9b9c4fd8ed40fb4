// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package arc

import (
	"github.com/fivewire/fivewire/arc/internal/wire"

	"context"
	"encoding/json"
	"errors"
	"slices"
	"strconv"
	"time"
)

// The texts that notifications have for people.
func eventText(ev Event) string {
	switch ev {
	case EventTaskCreated:
		return "Task created"
	case EventTaskStarted:
		return "Task started"
	case EventTaskPaused:
		return "Task waits for input"
	case EventTaskResumed:
		return "Task resumed"
	case EventTaskCompleted:
		return "Task completed"
	case EventTaskFailed:
		return "Task failed"
	case EventTaskCanceled:
		return "Task canceled"
	case EventNewMessage:
		return "New message"
	case EventNewArtifact:
		return "New artifact"
	}
	return "Task status changed"
}

// notification is the part that all events have.
func (st *taskState) notification(ev Event, at time.Time) *Notification {
	return &Notification{TaskID: st.id, Event: ev, Timestamp: NewTimestamp(at),
		Data: NotificationData{Status: string(st.Status), Message: eventText(ev)}}
}

func (e *taskEngine) createdEvent(st *taskState) *Notification {
	n := st.notification(EventTaskCreated, st.Created)
	n.Data.Priority, n.Data.AssignedAgent, n.Data.CreatedAt = st.priority, st.agent, NewTimestamp(st.Created)
	return n
}

// eventsOf makes the notifications of a change, each with every member that
// belongs to it and is known (section d.5 of the reference).
func (e *taskEngine) eventsOf(old, st *taskState, c *change, events []string) []*Notification {
	list := make([]*Notification, 0, len(events))
	for _, ev := range events {
		list = append(list, e.eventOf(old, st, c, Event(ev)))
	}
	return list
}

func (e *taskEngine) eventOf(old, st *taskState, c *change, ev Event) *Notification {
	n := st.notification(ev, c.at)
	d, at := &n.Data, NewTimestamp(c.at)
	switch ev {
	case EventTaskStarted:
		d.StartedAt = at
		if c.expected > 0 {
			d.EstimatedDuration = millis(c.expected)
		}
	case EventTaskPaused:
		d.PausedAt, d.RequiredInput = at, c.required
	case EventTaskResumed:
		d.ResumedAt, d.PauseDuration = at, millis(c.at.Sub(old.Paused))
	case EventNewMessage:
		d.MessageContent = c.message
	case EventNewArtifact:
		d.Artifact = c.artifact
		if _, err := c.artifact.CreatedAt.Time(); err == nil {
			d.CreatedAt = c.artifact.CreatedAt
		}
	case EventStatusChange:
		d.ChangedAt, d.PreviousStatus, d.Reason = at, string(old.Status), c.reason
	default:
		st.finalData(d)
	}
	return n
}

// finalData adds what the three events of the end tell.
func (st *taskState) finalData(d *NotificationData) {
	at := NewTimestamp(st.Ended)
	switch st.Status {
	case TaskCompleted:
		d.CompletedAt, d.Duration = at, millis(st.Ended.Sub(st.Created))
		d.ArtifactCount, d.MessageCount = json.Number(strconv.Itoa(st.Artifacts)), json.Number(strconv.Itoa(st.Messages))
	case TaskFailed:
		d.FailedAt, d.Duration = at, millis(st.Ended.Sub(st.Created))
		if st.fault != nil {
			d.Error, _ = st.fault.MarshalJSON() // it was written before
		}
	case TaskCanceled:
		d.CanceledAt, d.CanceledBy, d.Reason = at, st.CanceledBy, st.Reason
	}
}

// lastEvents returns the events of the transition that ended a task, for later
// subscribers (ARC-D41), and the number of the first one.
func (st *taskState) lastEvents() ([]*Notification, uint64) {
	ev := EventTaskCompleted
	switch st.Status {
	case TaskFailed:
		ev = EventTaskFailed
	case TaskCanceled:
		ev = EventTaskCanceled
	}
	end := st.notification(ev, st.Ended)
	st.finalData(&end.Data)
	moved := st.notification(EventStatusChange, st.Ended)
	moved.Data.ChangedAt, moved.Data.PreviousStatus = NewTimestamp(st.Ended), string(st.Previous)
	if st.Status == TaskCanceled {
		moved.Data.Reason = st.Reason
	}
	return []*Notification{end, moved}, st.Events - 1
}

// emitLocked queues events, numbered from first, for all subscribers of a task, after it is
// unlocked. t.mu must be held, which keeps the order. Errors are logged and never fail the task
// (ARC-D44).
func (e *taskEngine) emitLocked(ctx context.Context, t *liveTask, first uint64, events ...*Notification) {
	if e.s.opts.OnTaskEvent != nil {
		agent := t.state.agent
		for _, n := range events {
			t.after(func() {
				e.s.hook(ctx, "task event hook", func(ctx context.Context) { e.s.opts.OnTaskEvent(ctx, agent, n) })
			})
		}
	}
	if len(t.subs) == 0 || len(events) == 0 {
		return
	}
	subs, last := t.subs, first+uint64(len(events))-1
	t.after(func() { e.queue(ctx, t, subs, first, last, events) })
}

// queue queues events for subscribers, after those before them that may not be queued.
func (e *taskEngine) queue(ctx context.Context, t *liveTask, subs []*subscription, first, last uint64, events []*Notification) {
	t.mu.Lock()
	isLate := t.queued+1 < first && t.state != nil && t.state.unqueued != nil && t.state.unqueuedFrom < first
	t.mu.Unlock()
	err := e.s.persist(ctx, func(ctx context.Context) (err error) {
		if isLate {
			return e.queueAgain(ctx, t)
		}
		for _, sub := range subs {
			err = errors.Join(err, e.s.outbox.putAll(ctx, sub, first, events))
		}
		return err
	})
	if err != nil {
		e.s.opts.Logger.ErrorContext(ctx, "arc: notification not stored", "task", t.id, "err", err)
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.queued = max(t.queued, last)
}

// maxUnqueued bounds the bytes of events in the record of a task.
const maxUnqueued = 1 << 20

// noteEventsLocked adds events to a changed state, after those that may not be queued yet, so that they
// survive this process. t.mu must be held.
func (e *taskEngine) noteEventsLocked(ctx context.Context, t *liveTask, next *taskState, events []*Notification) error {
	next.unqueued, next.unqueuedFrom = nil, 0
	if len(events) == 0 {
		return nil
	}
	subs, err := e.subscriptionsLocked(ctx, t)
	if len(subs) == 0 || err != nil || !e.s.isShared {
		return err
	}
	next.unqueued, next.unqueuedFrom = encodeEvents(events), t.state.Events+1
	if old := t.state.unqueued; old != nil && t.queued < t.state.Events && len(old) <= maxUnqueued {
		next.unqueued = append(append(slices.Clone(old[:len(old)-1]), ','), next.unqueued[1:]...)
		next.unqueuedFrom = t.state.unqueuedFrom
	}
	return nil
}

// encodeEvents returns events as JSON.
func encodeEvents(events []*Notification) json.RawMessage {
	b, _ := encode(func(w *writer) { // what a task has can be written
		for i, n := range events {
			w.b = append(w.b, "[,"[min(i, 1)])
			w.object("event", n)
		}
		w.b = append(w.b, ']')
	})
	return b
}

// queueAgain queues the events of a task that its former owner may not have queued. Their numbers
// prevent duplicates.
func (e *taskEngine) queueAgain(ctx context.Context, t *liveTask) error {
	t.mu.Lock()
	st, stored := t.state, json.RawMessage(nil)
	if st != nil {
		stored = st.unqueued
	}
	if stored == nil {
		t.mu.Unlock()
		return nil
	}
	subs, err := e.subscriptionsLocked(ctx, t)
	t.mu.Unlock()
	v, failed := wire.Check(stored)
	if err = errors.Join(err, failed); err != nil {
		return err
	}
	var events []*Notification
	for list := v.Elements(); list.Next(); {
		n, err := read[Notification](list.Value)
		if err != nil {
			return err
		}
		events = append(events, n)
	}
	for _, sub := range subs {
		err = errors.Join(err, e.s.outbox.putAll(ctx, sub, st.unqueuedFrom, events))
	}
	return err
}

// after adds a function that runs after the task is unlocked, in order. t.mu must be held.
func (t *liveTask) after(f func()) { t.pending = append(t.pending, f) }

// unlock unlocks a task and runs its pending functions. If another goroutine is running those of
// this task, that one continues with them, which keeps the order.
func (e *taskEngine) unlock(t *liveTask) {
	isFirst := len(t.pending) > 0 && !t.isNotifying
	t.isNotifying = t.isNotifying || isFirst
	t.mu.Unlock()
	for isFirst {
		isFirst = t.runPending()
	}
}

// runPending runs the pending functions, and returns false if there are none.
func (t *liveTask) runPending() bool {
	t.mu.Lock()
	pending := t.pending
	t.pending, t.isNotifying = nil, len(pending) > 0
	t.mu.Unlock()
	returned := false
	defer func() {
		if !returned { // runtime.Goexit in the hook
			t.mu.Lock()
			defer t.mu.Unlock()
			t.isNotifying = false
		}
	}()
	for _, f := range pending {
		f()
	}
	returned = true
	return len(pending) > 0
}

// subscriptionsLocked returns who follows the task. It is called with the lock held.
func (e *taskEngine) subscriptionsLocked(ctx context.Context, t *liveTask) ([]*subscription, error) {
	if t.subs != nil {
		return t.subs, nil
	}
	subs := e.staticSubs(t.state)
	for entry, err := range e.db.List(ctx, subsPrefix(t.id)) {
		if err != nil {
			return subs, err
		}
		sub, err := decodeSubscription(entry.Value)
		if err != nil {
			return subs, err
		}
		if sub.Active {
			subs = append(subs, sub)
		}
	}
	t.subs = subs
	return subs, nil
}
