// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/fivewire/fivewire/arc/internal/wire"
	"github.com/fivewire/fivewire/internal/strictjson"
	"github.com/fivewire/fivewire/store"
)

// eventTexts are the texts that notifications have for people.
var eventTexts = map[string]string{
	"TASK_CREATED": "Task created", "TASK_STARTED": "Task started", "TASK_PAUSED": "Task waits for input", "TASK_RESUMED": "Task resumed",
	"TASK_COMPLETED": "Task completed", "TASK_FAILED": "Task failed", "TASK_CANCELED": "Task canceled", "NEW_MESSAGE": "New message",
	"NEW_ARTIFACT": "New artifact", "STATUS_CHANGE": "Task status changed",
}

// event returns a notification of a change as the params of task.notification, with every member that belongs to it
// and is known (section d.5 of the reference).
func (r *record) event(name string, old *record, c *change) json.RawMessage {
	o := wire.Open(make([]byte, 0, 384+len(c.item)))
	o.Text("taskId", r.ID)
	o.Text("event", name)
	appendMoment(&o, "timestamp", c.At)
	o.Object("data")
	o.Text("status", r.Status)
	o.Text("message", eventTexts[name])
	switch name {
	case "TASK_CREATED":
		o.Text("priority", r.Priority)
		o.Text("assignedAgent", r.Agent)
		appendMoment(&o, "createdAt", r.Created)
	case "TASK_STARTED":
		appendMoment(&o, "startedAt", c.At)
		if c.expected > 0 {
			o.Int("estimatedDuration", c.expected.Milliseconds())
		}
	case "TASK_PAUSED":
		appendMoment(&o, "pausedAt", c.At)
		o.OptText("requiredInput", c.Required)
	case "TASK_RESUMED":
		appendMoment(&o, "resumedAt", c.At)
		o.Int("pauseDuration", max(c.At.Sub(old.Paused).Milliseconds(), 0))
	case "NEW_MESSAGE":
		o.Raw("messageContent", c.item)
	case "NEW_ARTIFACT":
		if at := strictjson.Value(c.item).Get("createdAt"); isTime(at) {
			o.Raw("createdAt", at)
		}
		o.Raw("artifact", c.item)
	case "STATUS_CHANGE":
		appendMoment(&o, "changedAt", c.At)
		if c.Action == Cancel {
			o.OptText("reason", c.Reason)
		}
		o.Text("previousStatus", old.Status)
	default:
		r.appendEnd(&o)
	}
	o.End()
	return o.Close()
}

func isTime(v strictjson.Value) bool {
	text, _ := v.Text()
	_, err := wire.ParseTime(text)
	return err == nil
}

// appendEnd appends what the three events of the end have.
func (r *record) appendEnd(o *wire.Object) {
	duration := max(r.Ended.Sub(r.Created).Milliseconds(), 0)
	switch r.Status {
	case completed:
		appendMoment(o, "completedAt", r.Ended)
		o.Int("duration", duration)
		o.Int("artifactCount", int64(r.Artifacts))
		o.Int("messageCount", int64(r.Messages))
	case failed:
		appendMoment(o, "failedAt", r.Ended)
		o.Int("duration", duration)
		if r.Fault != nil {
			o.Raw("error", r.Fault)
		}
	case canceled:
		appendMoment(o, "canceledAt", r.Ended)
		o.Text("canceledBy", r.CanceledBy)
		o.OptText("reason", r.Reason)
	}
}

// maxPending bounds the bytes of events in the record of a task.
const maxPending = 1 << 20

// addEvents adds the events of a change to the record, behind those that may not be queued yet, so that they survive
// this process. Without subscribers they are made for the hook only.
func (e *Tasks) addEvents(t *task, old, next *record, c *change, names []string) {
	next.Pending, next.PendingFrom = nil, 0
	if len(next.Subs) == 0 && len(e.opts.Webhooks.Static) == 0 && e.opts.Events == nil {
		return
	}
	fresh := make([]json.RawMessage, len(names))
	for i, name := range names {
		fresh[i] = next.event(name, old, c)
	}
	next.Pending, next.PendingFrom = fresh, next.Events+1-uint64(len(names))
	if old == nil || len(old.Pending) == 0 || t.flushed() >= old.Events || size(old.Pending) > maxPending {
		return
	}
	next.Pending, next.PendingFrom = append(slices.Clip(old.Pending), fresh...), old.PendingFrom
}

func size(events []json.RawMessage) (n int) {
	for _, ev := range events {
		n += len(ev)
	}
	return n
}

// emitLocked passes the events of a change on when the task is unlocked, in their order. t.turn must be held.
func (e *Tasks) emitLocked(t *task, old, r *record) {
	after := uint64(0)
	if old != nil {
		after = old.Events
	}
	if e.opts.Events != nil {
		for i, ev := range r.Pending {
			if r.PendingFrom+uint64(i) > after {
				t.effects.add(func() { e.opts.Events(context.Background(), r.Agent, ev) })
			}
		}
	}
	if len(r.Subs)+len(e.opts.Webhooks.Static) > 0 && len(r.Pending) > 0 {
		t.effects.add(func() {
			if err := e.queue(e.durable(), t, r); err != nil {
				e.log.ErrorContext(e.durable(), "arc: notification not stored", "task", t.id, "err", err)
			}
		})
	}
}

// queue queues the pending events of a record for all subscribers. Their numbers prevent duplicates, and each call
// queues all that may be missing, which keeps the order.
func (e *Tasks) queue(ctx context.Context, t *task, r *record) error {
	first := max(r.PendingFrom, t.flushed()+1)
	err := e.persist(ctx, func(ctx context.Context) (err error) {
		for _, sub := range e.subscribers(r) {
			err = errors.Join(err, e.webhooks.putAll(ctx, r, &sub, first))
		}
		return err
	})
	if err == nil {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.queued = max(t.queued, r.Events)
	}
	return err
}

// flushed returns the number of the newest queued event.
func (t *task) flushed() uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.queued
}

// queueLast queues the events of the transition that ended a task for a later subscriber (ARC-D41).
func (e *Tasks) queueLast(ctx context.Context, r *record, sub *Subscription) error {
	last := *r
	last.Pending, last.PendingFrom = nil, r.Events-1
	late := *sub
	late.From = 0
	old := &record{Task: Task{Status: r.Previous}}
	end := &change{Change: Change{Action: endings[r.Status], At: r.Ended, Reason: r.Reason}}
	for _, name := range transitions[r.Previous][end.Action].emit {
		last.Pending = append(last.Pending, r.event(name, old, end))
	}
	return e.persist(ctx, func(ctx context.Context) error { return e.webhooks.putAll(ctx, &last, &late, last.PendingFrom) })
}

// endings are the actions that end a task.
var endings = map[string]Action{completed: Complete, failed: Fail, canceled: Cancel}

// subscribers are the webhooks that follow a task, those of the configuration first.
func (e *Tasks) subscribers(r *record) []Subscription {
	static := e.opts.Webhooks.Static
	if len(static) == 0 {
		return r.Subs
	}
	subs := make([]Subscription, 0, len(static)+len(r.Subs))
	for _, s := range static {
		s.isStatic, s.TraceID = true, r.TraceID
		subs = append(subs, s)
	}
	return append(subs, r.Subs...)
}

// endOf returns the end of the subscription of a notification, or nil.
func (e *Tasks) endOf(ctx context.Context, taskID, id string) (*endedSub, error) {
	t := e.acquire(taskID)
	defer e.release(t)
	s, err := e.get(ctx, t)
	switch {
	case isCode(err, wire.TaskNotFound): // its last notifications are still sent
	case err != nil:
		return nil, err
	default:
		list := s.rec.EndedSubs
		if i := slices.IndexFunc(list, func(s endedSub) bool { return s.ID == id || slices.Contains(s.Earlier, id) }); i >= 0 {
			return &list[i], nil
		}
		if len(list) < maxEnded {
			return nil, nil
		}
	}
	if _, err = e.db.Get(ctx, removedKey(id)); errors.Is(err, store.ErrNotFound) {
		return nil, nil
	}
	return &endedSub{ID: id, IsRemoved: true}, err
}

// maxEnded bounds the ended subscriptions that a task knows.
const maxEnded = 64

// errRemoved refuses the dead letter of a subscription that its subscriber has removed.
var errRemoved = errors.New("the subscription was removed")

// reopenSubscription removes the note of the end of a subscription, so that its notifications are sent again.
func (e *Tasks) reopenSubscription(ctx context.Context, taskID, id string) error {
	end, err := e.endOf(ctx, taskID, id)
	switch {
	case err != nil || end == nil:
		return err
	case end.IsRemoved:
		return errRemoved
	}
	t := e.acquire(taskID)
	defer e.release(t)
	t.turn.Lock()
	defer e.unlock(t)
	return e.changeSubsLocked(ctx, t, func(r *record) (*record, error) {
		n := *r
		n.EndedSubs = slices.DeleteFunc(slices.Clone(r.EndedSubs), func(s endedSub) bool { return s.ID == id && !s.IsRemoved })
		return &n, nil
	})
}

// endSubscription ends a subscription of a task, and notes that.
func (e *Tasks) endSubscription(ctx context.Context, taskID string, end endedSub) error {
	t := e.acquire(taskID)
	defer e.release(t)
	t.turn.Lock()
	defer e.unlock(t)
	var old *Subscription
	err := e.changeSubsLocked(ctx, t, func(r *record) (*record, error) {
		n := *r
		old = nil
		if i := slices.IndexFunc(r.Subs, func(s Subscription) bool { return s.ID == end.ID }); i >= 0 {
			old = &r.Subs[i]
			n.Subs = slices.Delete(slices.Clone(r.Subs), i, i+1)
		}
		n.EndedSubs = append(slices.Clip(r.EndedSubs), end)
		n.EndedSubs = n.EndedSubs[max(0, len(n.EndedSubs)-maxEnded):]
		return &n, nil
	})
	if isCode(err, wire.TaskNotFound) {
		return nil
	}
	if err == nil && old != nil {
		_ = e.ledger.attach(t.id, -old.Size, -1) // always succeeds
	}
	return err
}

// changeSubsLocked changes the subscriptions of a task, and keeps its lifetime. t.turn must be held.
func (e *Tasks) changeSubsLocked(ctx context.Context, t *task, f func(r *record) (*record, error)) error {
	r, err := e.loadLocked(ctx, t)
	for err == nil {
		ttl, isFinal := time.Duration(0), r.IsFinal()
		if isFinal {
			if _, err = f(r); err == nil { // else lifeLeft must not write the record
				ttl, err = e.lifeLeft(ctx, t)
			}
			if errors.Is(err, store.ErrUnchanged) {
				return nil
			}
			if err != nil {
				break
			}
		}
		err = e.changeLocked(ctx, t, ttl, func(r *record) (*record, error) {
			if r.IsFinal() != isFinal {
				return nil, errEnded
			}
			return f(r)
		})
		if !errors.Is(err, errEnded) {
			break
		}
		r, err = e.loadLocked(ctx, t)
	}
	return err
}

// lifeLeft returns the remaining lifetime of the record of an ended task, by the clock of the store; zero means no end.
// That clock is not known: the expiry of a write of the record shows it. t.turn must be held.
func (e *Tasks) lifeLeft(ctx context.Context, t *task) (time.Duration, error) {
	entry, err := e.read(ctx, t.key)
	switch {
	case errors.Is(err, store.ErrNotFound):
		return 0, noTask(t.id)
	case err != nil || entry.Expires.IsZero():
		return 0, err
	}
	retention := e.opts.TaskRetention
	written := entry
	err = e.changeLocked(ctx, t, retention, func(r *record) (*record, error) { return r, nil })
	if err == nil {
		written, err = e.read(ctx, t.key)
	}
	return min(max(retention-written.Expires.Sub(entry.Expires), time.Second), retention), err
}

// errEnded reports a task that has ended since it was read.
var errEnded = errors.New("arc: the task has ended")

// An orderly runs functions one after the other, in the order in which they are added.
type orderly struct {
	mu        sync.Mutex
	list      []func() // guarded by mu
	isRunning bool     // guarded by mu
}

func (o *orderly) add(f func()) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.list = append(o.list, f)
}

// run runs the added functions. If another goroutine runs them, that one continues with the new ones.
func (o *orderly) run() {
	isFirst := true
	for {
		o.mu.Lock()
		if isFirst && o.isRunning || len(o.list) == 0 {
			o.isRunning = o.isRunning && isFirst
			o.mu.Unlock()
			return
		}
		list := o.list
		o.list, o.isRunning, isFirst = nil, true, false
		o.mu.Unlock()
		o.runAll(list)
	}
}

func (o *orderly) runAll(list []func()) {
	isDone := false
	defer func() {
		if !isDone { // runtime.Goexit in a hook
			o.mu.Lock()
			defer o.mu.Unlock()
			o.isRunning = false
		}
	}()
	for _, f := range list {
		f()
	}
	isDone = true
}
