// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package arc

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/fivewire/fivewire/arc/internal/engine"
	"github.com/fivewire/fivewire/internal/lease"
	"github.com/fivewire/fivewire/store"
)

// A change is something that happens to a task.
type change struct {
	action   engine.Action
	at       time.Time
	message  *Message
	artifact *Artifact
	reason   string // of a cancel or a pause
	by       string // the canceling agent
	required string // the input that is needed
	fault    *Error // why it failed
	expected time.Duration
	owner    lease.Owner // of the run that requests it, which may have lost the task; else empty
	claimant lease.Owner // becomes the owner if the task has no run and no live owner
	isNamed  bool        // the handler has chosen the id of the artifact

	attempt attempt // of the request
	inDoubt *effect // of the last write without an answer; otherwise nil
}

// An effect is the effect of a change on a task.
type effect struct {
	old   *taskState
	to    TaskStatus
	first uint64 // number of the first event
	list  []*Notification
}

// errTaskFull reports a task with too many items.
var errTaskFull = errors.New("arc: the task has too many messages and artifacts")

// maxTaskBytes bounds the messages and artifacts of a task (ARC-D79).
const maxTaskBytes = 32 << 20

// refusal is the error of a change that the machine refuses.
func (st *taskState) refusal(c *change, err error) error {
	full, isFull := errors.AsType[*engine.FullError](err)
	switch {
	case errors.Is(err, engine.ErrOwner):
		return errTakenOver
	case !isFull:
		return taskFault(st.id, st.Status, c.action)
	case c.action != engine.Send:
		return errTaskFull
	}
	d, _ := encode(func(w *writer) { // texts can always be written
		w.open()
		w.text("taskId", st.id)
		w.number("limit", full.Limit)
		w.close()
	})
	return &Error{Code: ErrMessageTooLarge, Message: ErrMessageTooLarge.Message(), Details: d}
}

// applyLocked makes a change by the machine of e.1, keeps it, and emits its events. It
// is called with the lock of the task held. The cost does not depend on what
// happened to the task before.
func (e *taskEngine) applyLocked(ctx context.Context, t *liveTask, c *change) error {
	var item *ready
	var err error
	switch {
	case c.message != nil && c.action == engine.Send:
		item, err = messageItem(itemInput, c.message)
	case c.message != nil:
		item, err = messageItem(itemMessage, c.message)
	case c.artifact != nil && c.isNamed:
		item, err = artifactItem(itemNamedArtifact, c.artifact)
	case c.artifact != nil:
		item, err = artifactItem(itemArtifact, c.artifact)
	}
	defer item.free()
	if err != nil {
		return err
	}
	if item == nil {
		return e.applyItemLocked(ctx, t, c, nil)
	}
	c.attempt = e.s.attemptOr(c.attempt)
	if err := e.s.ledger.grow(taskObject, t.id, len(item.b)+itemBytes); err != nil {
		return err
	}
	if err := e.applyItemLocked(ctx, t, c, item); err != nil {
		_ = e.s.ledger.grow(taskObject, t.id, -len(item.b)-itemBytes) // always succeeds
		return err
	}
	return nil
}

func (e *taskEngine) applyItemLocked(ctx context.Context, t *liveTask, c *change, item *ready) error {
	for {
		if isMade, err := e.settleLocked(ctx, t, c); isMade || err != nil {
			return err
		}
		old := t.state
		next, events, err := e.step(ctx, old, c, item)
		if err != nil {
			return err
		}
		first := old.Events + 1
		if item != nil {
			next.last, err = appendItem(ctx, e.db, t.items(), c.attempt.item(""), old.last, item.b, 0)
			if err != nil {
				return err
			}
			if c.action == engine.Send {
				next.input = next.last
			}
		}
		var list []*Notification
		if t.subs == nil || len(t.subs) > 0 || e.s.opts.OnTaskEvent != nil {
			list = e.eventsOf(old, next, c, events)
		}
		if err := e.noteEventsLocked(ctx, t, next, list); err != nil {
			return err
		}
		err = e.saveLocked(ctx, t, next)
		if err == nil {
			return e.publishLocked(ctx, t, old, first, list)
		}
		if !errors.Is(err, store.ErrConflict) {
			c.inDoubt = &effect{old, next.Status, first, list}
			return err
		}
	}
}

// settleLocked reads a record that may have changed, and reports whether an earlier attempt has made a change, whose
// effects then follow. t.mu must be held.
func (e *taskEngine) settleLocked(ctx context.Context, t *liveTask, c *change) (bool, error) {
	if t.isStale {
		if ok, err := e.loadLocked(ctx, t, true); err != nil {
			return false, err
		} else if !ok {
			return false, idFault(ErrTaskNotFound, "taskId", t.id)
		}
	}
	f := c.inDoubt
	if f == nil && !c.attempt.isRepeated {
		return false, nil
	}
	isMade, err := e.isMadeLocked(ctx, t, c)
	if !isMade || err != nil || f == nil {
		return isMade, err
	}
	c.inDoubt = nil
	return true, e.publishLocked(ctx, t, f.old, f.first, f.list)
}

// isMadeLocked reports whether the record has a change whose write had no answer, or that an earlier attempt of the
// request has made. t.mu must be held.
func (e *taskEngine) isMadeLocked(ctx context.Context, t *liveTask, c *change) (bool, error) {
	st, f := t.state, c.inDoubt
	switch {
	case c.message != nil || c.artifact != nil:
		list, err := readItems(ctx, e.db, t.items(), st.last)
		return c.attempt.find(list, "") >= 0, err
	case f == nil:
		return c.action == engine.Cancel && st.Status == TaskCanceled, nil
	case f.to == TaskInputRequired:
		return st.Paused.Equal(c.at), nil
	case f.to.Final():
		return st.Status == f.to && st.Ended.Equal(c.at), nil
	}
	return st.Status == f.to && st.Moved.Equal(c.at), nil
}

// errTakenOver is what a handler sees whose task now runs in another process,
// which took this one for dead.
var errTakenOver = errors.New("arc: the task was taken over by another process")

// runsLocked reports whether a task runs in this process. It is called with the lock of
// the task held.
func (e *taskEngine) runsLocked(t *liveTask) bool {
	return t.run != nil && t.state.Owner == t.run.owner
}

// step returns the state after a change, and the names of its events.
func (e *taskEngine) step(ctx context.Context, st *taskState, c *change, item *ready) (*taskState, []string, error) {
	isClaim, err := e.claims(ctx, st, c)
	if err != nil {
		return nil, nil, err
	}
	event := engine.Change{Action: c.action, At: c.at, Reason: c.reason, By: c.by, Required: c.required, Owner: c.owner}
	if isClaim {
		event.Claimant = c.claimant
	}
	if item != nil {
		event.Size = len(item.b)
	}
	if c.fault != nil {
		event.Reason = c.fault.Message
	}
	task, events, err := st.Step(&event, engine.Bounds{Bytes: maxTaskBytes, Items: e.s.opts.Limits.MaxTaskItems})
	if err != nil {
		return nil, nil, st.refusal(c, err)
	}
	next := *st
	next.Task = task
	if task.Status.Final() {
		next.fault = c.fault
	}
	return &next, events, nil
}

// publishLocked does what follows a change that is kept.
func (e *taskEngine) publishLocked(ctx context.Context, t *liveTask, old *taskState, first uint64, events []*Notification) error {
	if ctx.Done() != nil { // that of an attempt
		ctx = context.WithoutCancel(ctx)
	}
	e.emitLocked(ctx, t, first, events...)
	if !t.state.Status.Final() {
		t.run.schedule(t.state)
		return nil
	}
	if t.run != nil {
		t.run.work.Cancel(taskOver(t.state))
	} else {
		e.unpark(ctx, t.state)
		e.dismissLocked(ctx, t)
	}
	for _, sub := range t.subs {
		t.after(func() { e.s.outbox.finish(ctx, sub) })
	}
	e.s.ledger.end(taskObject, t.id, e.s.opts.Persistence.TaskRetention)
	err := e.db.Expire(ctx, t.items(), e.s.opts.Persistence.TaskRetention)
	if t.state.hasMetadata {
		err = errors.Join(err, e.db.Expire(ctx, taskMetadata(t.id), e.s.opts.Persistence.TaskRetention))
	}
	if t.state.IsJournaled { // it expires without this, too
		_ = e.s.life.Go("journal", func(ctx context.Context) { _ = e.s.runs.Expire(ctx, t.id, journalRetention) })
	}
	if err != nil {
		e.s.opts.Logger.WarnContext(ctx, "arc: finished task not expired", "task", old.id, "err", err)
	}
	return nil
}

// journalRetention is the time for which a late run of an ended task finds its journal.
const journalRetention = time.Hour

// claims reports whether a change makes its process the owner of a task (ARC-D76).
func (e *taskEngine) claims(ctx context.Context, st *taskState, c *change) (bool, error) {
	if c.claimant == "" || st.Owner == c.claimant {
		return false, nil
	}
	if st.IsParked {
		return true, nil
	}
	isAlive, err := e.s.lease.Alive(ctx, st.Owner)
	return !isAlive, err
}

// editLocked changes the state of a task without an event. t.mu must be held.
func (e *taskEngine) editLocked(ctx context.Context, t *liveTask, edit func(st *taskState) error) error {
	for {
		if _, err := e.settleLocked(ctx, t, &change{}); err != nil {
			return err
		}
		next := *t.state
		if err := edit(&next); err != nil {
			return err
		}
		if err := e.saveLocked(ctx, t, &next); !errors.Is(err, store.ErrConflict) {
			return err
		}
	}
}

// taskOver is the cause of a task's context that ends.
func taskOver(st *taskState) error {
	switch {
	case st.Status == TaskCanceled:
		return ErrTaskAlreadyCanceled
	case st.Status == TaskCompleted:
		return ErrTaskAlreadyCompleted
	case st.fault != nil && st.fault.Code == ErrTaskTimeout:
		return ErrTaskTimeout
	}
	return fmt.Errorf("arc: the task is %s", st.Status)
}
