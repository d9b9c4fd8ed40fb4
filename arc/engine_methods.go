// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package arc

import (
	"context"

	"github.com/fivewire/fivewire/arc/internal/engine"
	"github.com/fivewire/fivewire/arc/internal/wire"
	"github.com/fivewire/fivewire/store"
)

// own returns the task of a call, locked, if the caller owns it. Tasks of other
// callers are reported as missing (ARC-D36).
func (e *taskEngine) own(ctx context.Context, call *Call, id string) (*liveTask, error) {
	t := e.acquire(id)
	t.mu.Lock()
	ok, err := e.loadLocked(ctx, t, e.s.isShared) // what another process has answered holds here
	if ok && t.state.agent == call.Agent && t.state.principal == call.principalID() {
		return t, nil
	}
	t.mu.Unlock()
	e.release(t)
	if err == nil {
		err = idFault(ErrTaskNotFound, "taskId", id)
	}
	return nil, err
}

func (e *taskEngine) done(t *liveTask) {
	e.unlock(t)
	e.release(t)
}

// send gives a waiting task its input.
func (e *taskEngine) send(ctx context.Context, call *Call) (any, error) {
	p, err := wire.Read[wire.SendTask](call.Params)
	if err != nil {
		return nil, err
	}
	at := now()
	message, err := e.s.admit("message", &p.Message, at)
	if err != nil {
		return nil, err
	}
	t, err := e.own(ctx, call, p.TaskID)
	if err != nil {
		return nil, err
	}
	defer e.release(t)
	st, run := t.state, t.run
	t.mu.Unlock()
	ctx = context.WithoutCancel(ctx)
	undo, err := e.reservePlace(call, st, run)
	if err != nil {
		return nil, err
	}
	mine, err := e.startTask(ctx, st) // until the input is delivered
	if err != nil {
		undo()
		return nil, e.s.unavailable(call.TargetAgent, err)
	}
	defer e.finishTask(ctx, mine, st)
	c := change{action: engine.Send, at: at, message: message, attempt: call.attempt, claimant: mine}
	accepted := st
	err = e.s.persist(ctx, func(ctx context.Context) (err error) {
		accepted, err = e.accept(ctx, t, &c)
		return err
	})
	if err != nil {
		undo()
		return nil, err
	}
	if accepted.Owner != st.Owner {
		e.notifyOwner(ctx, st) // it does not have the task any longer
	}
	hasPlace := run == nil && (st.IsParked || st.Owner == mine)
	if err := e.s.persist(ctx, func(ctx context.Context) error { return e.deliver(ctx, t, accepted, hasPlace) }); err != nil {
		return nil, err
	}
	return ackOf("Message received"), nil
}

// accept makes the change of a request, unless an earlier attempt has made it, and returns the state of the task. It
// may be repeated.
func (e *taskEngine) accept(ctx context.Context, t *liveTask, c *change) (*taskState, error) {
	t.mu.Lock()
	defer e.unlock(t)
	ok, err := e.loadLocked(ctx, t, e.s.isShared)
	if err == nil && !ok {
		err = idFault(ErrTaskNotFound, "taskId", t.id)
	}
	if err == nil {
		err = e.applyLocked(ctx, t, c)
	}
	return t.state, err
}

// cancel ends a task at once; it does not wait for the work to stop (ARC-D46).
func (e *taskEngine) cancel(ctx context.Context, call *Call) (any, error) {
	p, err := wire.Read[wire.CancelTask](call.Params)
	if err != nil {
		return nil, err
	}
	t, err := e.own(ctx, call, p.TaskID)
	if err != nil {
		return nil, err
	}
	st := t.state
	t.mu.Unlock()
	defer e.release(t)
	if ctx = context.WithoutCancel(ctx); st.Owner != e.s.lease.Owner() {
		mine, err := e.startTask(ctx, st) // until the events are queued
		if err != nil {
			return nil, e.s.unavailable(call.TargetAgent, err)
		}
		defer e.finishTask(ctx, mine, st)
	}
	c := change{action: engine.Cancel, at: now(), reason: textOf(p.Reason), by: call.RequestAgent, attempt: call.attempt}
	err = e.s.persist(ctx, func(ctx context.Context) (err error) {
		st, err = e.accept(ctx, t, &c)
		return err
	})
	e.notifyOwner(ctx, st)
	if err != nil {
		return nil, err
	}
	return st.canceled(), nil
}

// info describes a task. It reads the items without the lock, so that a long task
// does not wait for its observers; an item that is added concurrently may be in
// the response.
func (e *taskEngine) info(ctx context.Context, call *Call) (any, error) {
	p := &call.out.taskInfo
	if err := wire.ReadInto(call.Params, p); err != nil {
		return nil, err
	}
	t, err := e.own(ctx, call, p.TaskID)
	if err != nil {
		return nil, err
	}
	st, stream := t.state, t.items() // the state is never changed, only replaced
	e.done(t)
	var messages, artifacts []store.Record
	if !p.OmitMessages || !p.OmitArtifacts {
		if messages, artifacts, err = e.items(ctx, stream, st.last); err != nil {
			return nil, err
		}
	}
	messages, artifacts = messages[:min(len(messages), st.Messages)], artifacts[:min(len(artifacts), st.Artifacts)]
	if p.IsPaged() {
		messages, artifacts = pageOf(p, messages, artifacts)
	}
	return st.info(messages, artifacts, p), nil
}
