// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package arc

import (
	"context"
	"encoding/json"
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
		Data: NotificationData{Status: string(st.status), Message: eventText(ev)}}
}

func (e *taskEngine) createdEvent(st *taskState) *Notification {
	n := st.notification(EventTaskCreated, st.created)
	n.Data.Priority, n.Data.AssignedAgent, n.Data.CreatedAt = st.priority, st.agent, NewTimestamp(st.created)
	return n
}

// eventsOf makes the notifications of a change, each with every member that
// belongs to it and is known (section d.5 of the reference).
func (e *taskEngine) eventsOf(old, st *taskState, c *change, events []Event) []*Notification {
	list := make([]*Notification, 0, len(events))
	for _, ev := range events {
		list = append(list, e.eventOf(old, st, c, ev))
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
		d.ResumedAt, d.PauseDuration = at, millis(c.at.Sub(old.paused))
	case EventNewMessage:
		d.MessageContent = c.message
	case EventNewArtifact:
		d.Artifact = c.artifact
		if _, err := c.artifact.CreatedAt.Time(); err == nil {
			d.CreatedAt = c.artifact.CreatedAt
		}
	case EventStatusChange:
		d.ChangedAt, d.PreviousStatus, d.Reason = at, string(old.status), c.reason
	default:
		st.finalData(d)
	}
	return n
}

// finalData adds what the three events of the end tell.
func (st *taskState) finalData(d *NotificationData) {
	at := NewTimestamp(st.endTime)
	switch st.status {
	case TaskCompleted:
		d.CompletedAt, d.Duration = at, millis(st.endTime.Sub(st.created))
		d.ArtifactCount, d.MessageCount = json.Number(strconv.Itoa(st.artifacts)), json.Number(strconv.Itoa(st.messages))
	case TaskFailed:
		d.FailedAt, d.Duration = at, millis(st.endTime.Sub(st.created))
		if st.fault != nil {
			d.Error, _ = st.fault.MarshalJSON() // it was written before
		}
	case TaskCanceled:
		d.CanceledAt, d.CanceledBy, d.Reason = at, st.canceledBy, st.reason
	}
}

// lastEvents returns the events of the transition that ended a task, for later
// subscribers (ARC-D41), and the number of the first one.
func (st *taskState) lastEvents() ([]*Notification, uint64) {
	ev := EventTaskCompleted
	switch st.status {
	case TaskFailed:
		ev = EventTaskFailed
	case TaskCanceled:
		ev = EventTaskCanceled
	}
	end := st.notification(ev, st.endTime)
	st.finalData(&end.Data)
	moved := st.notification(EventStatusChange, st.endTime)
	moved.Data.ChangedAt, moved.Data.PreviousStatus = NewTimestamp(st.endTime), string(st.previous)
	if st.status == TaskCanceled {
		moved.Data.Reason = st.reason
	}
	return []*Notification{end, moved}, st.events - 1
}

// emit queues events, numbered from first, for all subscribers of a task. t.mu
// must be held, which keeps the order. Errors are logged and never fail the task
// (ARC-D44).
func (e *taskEngine) emit(ctx context.Context, t *liveTask, first uint64, events ...*Notification) {
	if e.s.opts.OnTaskEvent != nil {
		for _, n := range events {
			e.s.opts.OnTaskEvent(ctx, t.state.agent, n)
		}
	}
	subs, err := e.subscriptions(ctx, t)
	if err != nil {
		e.s.opts.Logger.ErrorContext(ctx, "arc: cannot read who follows a task", "task", t.id, "error", err)
	}
	for _, sub := range subs {
		for i, n := range events {
			if !sub.wants(n.Event) {
				continue
			}
			if err := e.s.outbox.put(ctx, sub, first+uint64(i), n); err != nil {
				e.s.opts.Logger.ErrorContext(ctx, "arc: cannot keep a notification", "task", t.id, "subscription", sub.ID, "error", err)
			}
		}
	}
}

// subscriptions returns who follows the task. It is called with the lock held.
func (e *taskEngine) subscriptions(ctx context.Context, t *liveTask) ([]*subscription, error) {
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
