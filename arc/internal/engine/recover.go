// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/fivewire/fivewire/arc/internal/wire"
	"github.com/fivewire/fivewire/internal/lease"
	"github.com/fivewire/fivewire/store"
)

const taskTopic = "task" // of messages to the owner of a task

// listen reads a task again when another process has changed it.
func (e *Tasks) listen(data []byte) {
	id := string(data)
	e.mu.Lock()
	isHere := e.live[id] != nil
	if !isHere {
		_, isHere = e.parked[id]
	}
	e.mu.Unlock()
	if isHere {
		e.review(id)
	}
}

// review reads a task of this process again. It fails at its time limit, and leaves the process if that has lost it.
func (e *Tasks) review(id string) {
	// A cut ends the goroutine, and the next owner reads the task.
	_ = e.life.Go("task review", func(ctx context.Context) {
		t := e.acquire(id)
		defer e.release(t)
		t.turn.Lock()
		defer e.unlock(t)
		var r *record
		err := e.persist(ctx, func(ctx context.Context) (err error) {
			r, err = e.loadLocked(ctx, t)
			return err
		})
		switch {
		case isCode(err, wire.TaskNotFound), err == nil && (r.IsFinal() || r.Owner != e.lease.Owner()):
			e.unparkLocked(t)
			e.dismissLocked(t)
			return
		case err == nil && e.timeLeft(r) <= 0:
			err = e.failLocked(ctx, t, wire.TaskTimeout, "")
		case err == nil && r.IsParked:
			e.park(r)
		}
		if err != nil && ctx.Err() == nil {
			e.log.ErrorContext(ctx, "arc: task not reviewed", "task", id, "err", err)
			time.AfterFunc(outage, func() { e.review(id) })
		}
	})
}

// parkedReview is how often a process reads a task that waits in it without a run: another process that has it since may
// have failed before its notification.
const parkedReview = time.Hour

// park notes a task of this process that waits without a run, until unpark. It reports whether the task has no index entry
// of this epoch yet.
func (e *Tasks) park(r *record) (isNew bool) {
	id := r.ID
	e.mu.Lock()
	defer e.mu.Unlock()
	earlier, isParked := e.parked[id]
	if isParked {
		earlier.limit.Stop()
	}
	limit := e.timeLeft(r)
	if e.isShared {
		limit = min(limit, parkedReview)
	}
	e.parked[id] = parkedTask{r.Owner, r.Agent, time.AfterFunc(limit, func() { e.review(id) })}
	return !isParked || earlier.owner != r.Owner
}

// unparkLocked removes a parked task, which has ended or has another owner or a run, from the index. t.turn must be held.
func (e *Tasks) unparkLocked(t *task) {
	e.mu.Lock()
	p, isParked := e.parked[t.id]
	delete(e.parked, t.id)
	e.mu.Unlock()
	if !isParked {
		return
	}
	p.limit.Stop()
	rec := t.rec
	t.effects.add(func() {
		if rec == nil { // no longer in the store
			e.finishWork(e.durable(), p.owner, p.agent, t.id)
			return
		}
		e.finishTask(t, p.owner, rec)
	})
}

// timeLeft returns the rest of the time that a task may be in its state (ARC-D85). A wrong clock of another process
// does not extend it.
func (e *Tasks) timeLeft(r *record) time.Duration {
	const never = 100 * 365 * 24 * time.Hour
	limit := time.Duration(0)
	switch r.Status {
	case working:
		limit = e.opts.TaskTimeout
	case inputRequired:
		limit = e.opts.InputTimeout
	}
	if limit == 0 {
		return never
	}
	return min(limit, limit-Now().Sub(r.Moved))
}

// failLocked fails a task. t.turn must be held.
func (e *Tasks) failLocked(ctx context.Context, t *task, code int64, message string) error {
	fault := wire.NewFault(code, "taskId", t.id)
	fault.Message = message
	c := change{Change: Change{Action: Fail, At: Now()}}
	fault = e.opts.Fault(ctx, nil, fault)
	c.Reason, c.fault = fault.Message, fault.JSON()
	return e.applyLocked(e.durable(), t, &c)
}

// rerunLocked runs the handler of a task of this process again, in the place that it has already if hasPlace. t.mu must
// be held.
func (e *Tasks) rerunLocked(ctx context.Context, t *task, hasPlace bool) error {
	rec := t.rec
	policy, isServed := e.opts.Agent(rec.Agent)
	if !isServed {
		return wire.NewFault(wire.AgentNotFound, "agentId", rec.Agent)
	}
	message, err := e.first(ctx, taskItems(rec.ID), Room)
	var metadata []byte
	if err == nil && rec.HasMetadata {
		metadata, err = e.first(ctx, taskMetadata(rec.ID), 0)
	}
	if err != nil {
		return err
	}
	owner, err := e.startWork(ctx, rec.Agent, t.id) // ends with the run
	if err != nil {
		return err
	}
	e.unparkLocked(t)
	if owner != rec.Owner {
		return ErrTakenOver
	}
	q := &Request{Method: "task.create", Agent: rec.Agent, Target: rec.Agent, Caller: rec.Caller, TraceID: rec.TraceID,
		Principal: rec.Principal, Account: rec.account(), Identity: rec.Identity, Place: new(Place), Tag: policy.Agent}
	_ = q.Place.ReserveRun(e.Scope(q.Account)) // an accepted task runs even over a bound
	q.Place.Enter(e.router, "")
	r := e.newRun(context.Background(), t, q, message, metadata)
	r.isRerun = rec.Status != submitted
	var w *ticket
	if !hasPlace {
		w, _ = e.places.enter(e, t, q, 0, true) // never refused
	}
	if w == nil {
		r.startLocked()
	} else {
		e.queueLocked(t, w, r)
	}
	return nil
}

// first returns the first value of a stream without its head.
func (e *Tasks) first(ctx context.Context, stream string, head int) ([]byte, error) {
	records, err := e.db.Read(ctx, stream, 0, 1)
	if err == nil && (len(records) == 0 || len(records[0].Value) < head) {
		err = fmt.Errorf("arc: beginning of %s: %w", stream, store.ErrNotFound)
	}
	if err != nil {
		return nil, err
	}
	return records[0].Value[head:], nil
}

// adopt takes over a task of a process that has failed, by its index entry for an agent.
func (e *Tasks) adopt(ctx context.Context, agent, id string, to lease.Owner) (lease.Found, error) {
	t := e.acquire(id)
	defer e.release(t)
	found, r, err := e.adoptRecord(ctx, t, agent, to)
	switch {
	case err == nil && found == lease.Absent:
		return found, e.db.Expire(ctx, taskMetadata(id), 0) // of a creation that was cut off
	case err == nil && r.Agent != agent:
		return found, nil
	}
	if err == nil && len(r.Pending) > 0 {
		err = e.queue(ctx, t, r)
	}
	if err == nil && found == lease.Ended {
		err = e.expireItems(ctx, t, r)
	}
	switch {
	case err != nil || found != lease.Held:
		return found, err
	case r.Owner != to: // it may not know an input that the failed process accepted
		return found, e.notify(ctx, r.Owner, taskTopic, id)
	}
	t.turn.Lock()
	defer e.unlock(t)
	switch {
	case t.rec.Owner != to || t.rec.IsFinal():
		return found, nil
	case t.run != nil, t.ticket != nil, t.rec.IsParked:
		return found, nil
	}
	return found, e.rerunLocked(ctx, t, false) // the run has its own entry
}

// adoptRecord makes a process the owner of a task, and returns Held if the task has a run or needs one. A creation that was
// repeated at another agent has left an entry for each of them; that of the agent of the record counts.
func (e *Tasks) adoptRecord(ctx context.Context, t *task, agent string, to lease.Owner) (lease.Found, *record, error) {
	t.turn.Lock()
	defer e.unlock(t)
	r, err := e.loadLocked(ctx, t)
	switch {
	case isCode(err, wire.TaskNotFound):
		return lease.Absent, nil, nil
	case err != nil:
		return 0, nil, err
	case r.Agent != agent:
		return lease.Held, r, nil
	case r.IsFinal():
		return lease.Ended, r, nil
	case r.Owner != to:
		isAlive, err := e.lease.Alive(ctx, r.Owner)
		if err != nil {
			return 0, nil, err
		}
		if isAlive {
			return lease.Held, r, e.touchLocked(ctx, t)
		}
	}
	switch {
	case t.run == nil:
		found, err := e.adoptLocked(ctx, t, to)
		return found, t.rec, err
	case t.run.owner == to:
		return lease.Held, r, e.touchLocked(ctx, t)
	}
	return 0, nil, ErrTakenOver // the handler of a lost epoch has not returned
}

// touchLocked writes the record of a task with a live owner again. A change by the failed process in transit
// fails, so the index entry of that may be removed. t.turn must be held.
func (e *Tasks) touchLocked(ctx context.Context, t *task) error {
	owner := t.rec.Owner
	return e.changeLocked(ctx, t, 0, func(r *record) (*record, error) {
		if r.Owner != owner || r.IsFinal() {
			return nil, store.ErrConflict // the next round reads it again
		}
		return r, nil
	})
}

// adoptLocked makes a process the owner of a task: a task that has begun no work begins, one that waits continues to
// wait without a run, and one whose work was cut off runs again or fails (ARC-D74). t.turn must be held.
func (e *Tasks) adoptLocked(ctx context.Context, t *task, to lease.Owner) (lease.Found, error) {
	policy, isServed := e.opts.Agent(t.rec.Agent)
	if !isServed {
		return 0, wire.NewFault(wire.AgentNotFound, "agentId", t.rec.Agent)
	}
	former := t.rec.Owner
	var fate Fate
	err := e.changeLocked(ctx, t, 0, func(r *record) (*record, error) {
		if r.Owner != former || r.IsFinal() {
			return nil, store.ErrConflict // the next round reads it again
		}
		next := *r
		next.Task, fate = r.Adopt(to, policy)
		return &next, nil
	})
	if err != nil {
		return 0, err
	}
	switch fate {
	case Waits:
		if err := e.keepSteps(ctx, t.rec); err != nil {
			return 0, err
		}
		if e.park(t.rec) {
			return lease.Taken, nil
		}
		return lease.Held, nil
	case Runs:
		return lease.Held, nil
	}
	return lease.Ended, e.failLocked(ctx, t, wire.TaskExecutionFailed, "Task interrupted")
}

// stepsLife is how long the steps of a task are kept at least after its run has ended with its process: a run renews them.
const stepsLife = 15 * 24 * time.Hour

// keepSteps keeps the steps of a task that waits without a run for as long as it may wait.
func (e *Tasks) keepSteps(ctx context.Context, r *record) error {
	left := e.timeLeft(r)
	if left < stepsLife {
		return nil
	}
	return e.steps.Expire(ctx, r.ID, left+stepsLife)
}

// The delays between two reads of a watched task that another process may change, and of one that runs in this
// process.
const (
	minWatchDelay = 50 * time.Millisecond
	maxWatchDelay = time.Second
	ownWatchDelay = 5 * time.Second
)

// lastReadTime bounds the last read of a watched task that has ended in a shutdown: a part of the time that the shutdown
// leaves for running work.
const lastReadTime = 500 * time.Millisecond

// Watch yields the result of task.info, with the traceId as a member of the task: first with all messages and
// artifacts, and after changes again, with the new ones only, until the final state. It waits for the end of an outage
// of the store. A change in this process is yielded although a shutdown has ended ctx since.
func (e *Tasks) Watch(ctx context.Context, id string, yield func(info []byte, err error) bool) {
	t := e.acquire(id)
	defer e.release(t)
	read, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	isCut := func() bool { return errors.Is(context.Cause(ctx), e.opts.Closed) }
	defer context.AfterFunc(ctx, func() {
		if isCut() {
			time.AfterFunc(lastReadTime, stop)
		} else {
			stop()
		}
	})()
	seen := snapshot{rec: &record{}}
	for delay := minWatchDelay; ; delay = min(2*delay, maxWatchDelay) {
		changed := t.watch() // before the record is read
		now, err := e.get(read, t)
		var fresh []store.Record
		if err == nil && now.rev != seen.rev {
			fresh, err = e.readItems(read, taskItems(id), seen.rec.Last, now.rec.Last)
		}
		_, isFailure := errors.AsType[*storeFailure](err)
		switch {
		case err != nil && (!isFailure || ctx.Err() != nil):
			yield(nil, cmp.Or(context.Cause(ctx), err))
			return
		case err == nil && now.rev != seen.rev:
			messages, artifacts := split(fresh)
			if !yield(now.rec.traced(messages, artifacts, &wire.TaskInfo{}), nil) || now.rec.IsFinal() {
				return
			}
			seen, delay = now, minWatchDelay
		}
		if !e.isShared || now.run != nil && now.rec != nil && now.run.owner == now.rec.Owner { // no other process changes it
			delay = ownWatchDelay
		}
		timer := time.NewTimer(delay)
		select {
		case <-changed:
		case <-timer.C:
		case <-ctx.Done():
		}
		timer.Stop()
		if ctx.Err() != nil && !(isCut() && isClosed(changed)) {
			yield(nil, context.Cause(ctx))
			return
		}
	}
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// watch returns a channel that is closed by the next change in this process.
func (t *task) watch() <-chan struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.changed == nil {
		t.changed = make(chan struct{})
	}
	return t.changed
}

// traced is the task of task.info with its traceId.
func (r *record) traced(messages, artifacts []store.Record, p *wire.TaskInfo) []byte {
	b := r.info(nil, messages, artifacts, p)
	if r.TraceID == "" {
		return b
	}
	o := wire.Object{B: b[:len(b)-2]} // inside the task
	o.Text("traceId", r.TraceID)
	o.End()
	return o.Close()
}

// List yields the task.info of the tasks of a principal, without messages and artifacts, at agents that it selects.
func (e *Tasks) List(ctx context.Context, principal string, selects func(agent string) bool, yield func(info []byte, err error) bool) {
	bare := &wire.TaskInfo{OmitMessages: true, OmitArtifacts: true}
	for entry, err := range e.db.List(ctx, taskPrefix) {
		var r *record
		if err == nil && e.isShared {
			entry, err = store.Content(entry)
		}
		if err == nil {
			r, err = decodeRecord(entry.Value)
		}
		if err != nil {
			yield(nil, err)
			return
		}
		if r.Principal == principal && selects(r.Agent) && !yield(r.traced(nil, nil, bare), nil) {
			return
		}
	}
}
