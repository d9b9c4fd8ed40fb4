// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package arc

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/fivewire/fivewire/arc/internal/engine"
	"github.com/fivewire/fivewire/arc/internal/wire"
	"github.com/fivewire/fivewire/internal/journal"
	"github.com/fivewire/fivewire/internal/lease"
	"github.com/fivewire/fivewire/store"
)

const (
	outage    = 10 * time.Second // longest time for a change of the store
	taskTopic = "task"           // of messages to the owner of a task
)

// taskKind is the kind of work of the tasks of an agent.
func taskKind(agent string) string { return "task:" + agent }

// acquireLease makes this process known to those that share the store.
func (s *Server) acquireLease() error {
	p := &s.opts.Persistence
	ctx, cancel := context.WithTimeout(context.Background(), outage)
	defer cancel()
	l, err := lease.Acquire(ctx, p.Store, lease.Options{Prefix: "arc/", InstanceID: p.InstanceID, TTL: p.LeaseTTL,
		Private: !s.isShared, Logger: s.opts.Logger, OnLost: func(context.Context) { _ = s.Close() }})
	if err != nil {
		return err
	}
	s.lease, s.runs = l, journal.New(p.Store, l, "arc/", s.opts.Logger)
	l.Listen(taskTopic, s.tasks.listen)
	s.outbox.open(l)
	return nil
}

// startWork enters work into the index of this process, before its record is created. With a
// private store no other process looks for it.
func (s *Server) startWork(ctx context.Context, kind, id string) (lease.Owner, error) {
	if !s.isShared {
		return s.lease.Owner(), nil
	}
	ctx, cancel := context.WithTimeout(ctx, outage)
	defer cancel()
	return s.lease.Start(ctx, kind, id)
}

// finishWork removes work from the index.
func (s *Server) finishWork(ctx context.Context, owner lease.Owner, kind, id string) {
	if !s.isShared {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, outage)
	defer cancel()
	if err := s.lease.Finish(ctx, owner, kind, id); err != nil {
		s.opts.Logger.WarnContext(ctx, "arc: index entry not removed", "kind", kind, "id", id, "err", err)
	}
}

// startTask and finishTask are startWork and finishWork for a task.
func (e *taskEngine) startTask(ctx context.Context, st *taskState) (lease.Owner, error) {
	if !e.s.isShared {
		return e.s.lease.Owner(), nil
	}
	return e.s.startWork(ctx, taskKind(st.agent), st.id)
}

func (e *taskEngine) finishTask(ctx context.Context, owner lease.Owner, st *taskState) {
	if e.s.isShared {
		e.s.finishWork(ctx, owner, taskKind(st.agent), st.id)
	}
}

// supervise ends the context of a run when this process loses the lease of its owner, until
// unsupervise is called.
func (r *TaskRun) supervise() {
	l := r.engine.s.lease
	if !r.engine.s.isShared {
		return
	}
	epoch := l.Context()
	if l.Owner() != r.owner {
		r.work.Cancel(lease.ErrLost)
	}
	r.epoch = epoch
	r.unsupervise = context.AfterFunc(epoch, func() { r.work.Cancel(context.Cause(epoch)) })
}

// unavailable returns the error of a process that has lost its lease.
func (s *Server) unavailable(agent string, err error) error {
	if !errors.Is(err, lease.ErrLost) && !errors.Is(err, lease.ErrClosed) {
		return err
	}
	fault := agentFault(ErrAgentNotAvailable, agent)
	fault.Cause = err
	return fault
}

// notifyOwner notifies an owner in another process of a change.
func (e *taskEngine) notifyOwner(ctx context.Context, st *taskState) {
	if st.Owner == e.s.lease.Owner() {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), outage)
	defer cancel()
	if err := e.s.lease.Tell(ctx, st.Owner, taskTopic, []byte(st.id)); err != nil {
		e.s.opts.Logger.WarnContext(ctx, "arc: process of task not notified", "task", st.id, "err", err)
	}
}

// listen reads a task again when another process has changed it.
func (e *taskEngine) listen(data []byte) {
	id := string(data)
	e.mu.Lock()
	isHere := e.live[id] != nil
	if !isHere {
		_, isHere = e.parked[id]
	}
	e.mu.Unlock()
	if isHere { // a cut ends the goroutine, and the next owner reads the task
		_ = e.s.life.Go("task notice", func(ctx context.Context) { e.lookAgain(ctx, id) })
	}
}

// lookAgain reads a task of this process again.
func (e *taskEngine) lookAgain(ctx context.Context, id string) {
	t := e.acquire(id)
	defer e.release(t)
	t.mu.Lock()
	defer t.mu.Unlock()
	ok, err := e.loadLocked(ctx, t, true)
	if err != nil && ctx.Err() == nil {
		e.s.opts.Logger.ErrorContext(ctx, "arc: task not read", "task", id, "err", err)
	}
	if ok && (t.state.Status.Final() || t.state.Owner != e.s.lease.Owner()) {
		e.unpark(ctx, t.state)
		e.dismissLocked(ctx, t)
	}
}

// park notes a task of this process that waits without a run, until unpark.
func (e *taskEngine) park(st *taskState) {
	id := st.id
	e.mu.Lock()
	defer e.mu.Unlock()
	if earlier, isParked := e.parked[id]; isParked { // in an epoch that was lost
		earlier.limit.Stop()
	}
	e.parked[id] = parkedTask{st.Owner, time.AfterFunc(e.timeLeft(st), func() { e.expire(id) })}
}

// unpark removes a parked task, which has ended or has another owner, from the index.
func (e *taskEngine) unpark(ctx context.Context, st *taskState) {
	e.mu.Lock()
	p, isParked := e.parked[st.id]
	delete(e.parked, st.id)
	e.mu.Unlock()
	if isParked {
		p.limit.Stop()
		e.finishTask(ctx, p.owner, st)
	}
}

// timeLeft returns the rest of the time that a task may be in its state (ARC-D85). A wrong clock of
// another process does not extend it.
func (e *taskEngine) timeLeft(st *taskState) time.Duration {
	const never = 100 * 365 * 24 * time.Hour
	limit := time.Duration(0)
	switch st.Status {
	case TaskWorking:
		limit = e.s.opts.Timing.TaskTimeout
	case TaskInputRequired:
		limit = e.s.opts.Timing.InputTimeout
	}
	if limit == 0 {
		return never
	}
	return min(limit, limit-time.Since(st.Moved))
}

// schedule starts the time limit of a state. The lock of the task must be held.
func (r *TaskRun) schedule(st *taskState) {
	switch {
	case r == nil || st.Status == TaskSubmitted:
	case r.limit != nil:
		r.limit.Reset(r.engine.timeLeft(st))
	default:
		r.limit = time.AfterFunc(r.engine.timeLeft(st), func() { r.engine.expire(r.task.id) })
	}
}

// expire fails a task at its time limit.
func (e *taskEngine) expire(id string) {
	_ = e.s.life.Go("task time limit", func(ctx context.Context) {
		t := e.acquire(id)
		defer e.release(t)
		t.mu.Lock()
		defer e.unlock(t)
		ok, err := e.loadLocked(ctx, t, e.s.isShared || t.state == nil)
		if err == nil && ok && t.state.Owner == e.s.lease.Owner() && !t.state.Status.Final() && e.timeLeft(t.state) <= 0 {
			err = e.applyLocked(ctx, t, &change{action: engine.Fail, at: now(), fault: idFault(ErrTaskTimeout, "taskId", id)})
		}
		if err != nil && ctx.Err() == nil {
			e.s.opts.Logger.ErrorContext(ctx, "arc: task not ended at its time limit", "task", id, "err", err)
			time.AfterFunc(outage, func() { e.expire(id) })
		}
	})
}

// deliver passes the accepted input of a task to its run, and runs the handler again if the task has
// none. It may be repeated.
func (e *taskEngine) deliver(ctx context.Context, t *liveTask, st *taskState, hasPlace bool) error {
	if st.input == 0 || st.Status.Final() {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, outage)
	defer cancel()
	position := strconv.FormatUint(st.input, 10)
	_, err := e.s.runs.Deliver(ctx, st.id, position, []byte(position), func(context.Context) (lease.Owner, error) { return st.Owner, nil })
	if err != nil || st.Owner != e.s.lease.Owner() {
		return err
	}
	t.mu.Lock()
	defer e.unlock(t)
	if t.run != nil || t.waiting != nil || t.state.Status != TaskWorking || t.state.Owner != st.Owner {
		return nil
	}
	return e.rerunLocked(ctx, t, hasPlace)
}

// rerunLocked runs the handler of a task of this process again. t.mu must be held.
func (e *taskEngine) rerunLocked(ctx context.Context, t *liveTask, hasPlace bool) error {
	entry := e.s.registry.lookup(t.state.agent)
	if entry == nil || entry.TaskHandler == nil {
		return agentFault(ErrAgentNotFound, t.state.agent)
	}
	initial, err := e.firstMessage(ctx, t.state)
	if err != nil {
		return err
	}
	if initial == nil {
		return fmt.Errorf("arc: task %s has no first message", t.id)
	}
	if t.data, err = e.readMetadata(ctx, t.state); err != nil {
		return err
	}
	owner, err := e.startTask(ctx, t.state) // ends with the run
	if err != nil {
		return err
	}
	e.unpark(ctx, t.state)
	if owner != t.state.Owner {
		return errTakenOver
	}
	call := &Call{Method: MethodTaskCreate, RequestAgent: t.state.requestAgent, TargetAgent: t.state.agent,
		Agent: t.state.agent, TraceID: t.state.traceID, Params: []byte("{}"), entry: entry, Principal: decodePrincipal(t.state.caller)}
	if call.Principal == nil && t.state.principal != "" {
		call.Principal = &Principal{ID: t.state.principal}
	}
	_ = call.run.reserve(e.s.scope(call)) // an accepted task runs even over a bound
	free := context.WithoutCancel(ctx)
	isRerun := t.state.Status != TaskSubmitted
	if hasPlace || e.places.enter(budgetName(call)) {
		e.startLocked(free, e.acquire(t.id), call, initial, isRerun)
		return nil
	}
	w := newWaiting(e, free, e.acquire(t.id), call, initial)
	w.recovered = isRerun
	t.waiting = w
	return e.places.wait(w, true)
}

// WaitRecovered waits until the unfinished work that failed processes have left, for agents that are
// registered here, is taken over. A process takes work over by itself: when an agent is registered, and
// every third of LeaseTTL. Work of agents that are not registered here is left unchanged.
func (s *Server) WaitRecovered(ctx context.Context) error {
	if err := s.lease.WaitRecovered(ctx); err != nil {
		return fmt.Errorf("arc: recover: %w", err)
	}
	return nil
}

// adopt takes over a task of a process that has failed.
func (e *taskEngine) adopt(ctx context.Context, id string, _, to lease.Owner) (lease.Found, error) {
	t := e.acquire(id)
	defer e.release(t)
	found, st, err := e.adoptRecord(ctx, t, to)
	if err == nil && found != lease.Absent {
		err = e.queueAgain(ctx, t)
	}
	switch {
	case err == nil && found == lease.Absent:
		return found, e.db.Expire(ctx, taskMetadata(id), 0) // of a creation that was cut off
	case err == nil && found == lease.Ended:
		return found, e.repeatEnd(ctx, t, st)
	case err != nil || found != lease.Held:
		return found, err
	case st.input != 0 || st.Owner != to: // the failed process may have accepted an input
		return found, e.deliver(ctx, t, st, false)
	}
	t.mu.Lock()
	defer e.unlock(t)
	if t.run != nil || t.waiting != nil || t.state.Owner != to || t.state.Status.Final() {
		return found, nil
	}
	return found, e.rerunLocked(ctx, t, false) // the run has its own entry
}

// adoptRecord makes a process the owner of a task, and returns Held if the task has a run or needs
// one.
func (e *taskEngine) adoptRecord(ctx context.Context, t *liveTask, to lease.Owner) (lease.Found, *taskState, error) {
	t.mu.Lock()
	defer e.unlock(t)
	ok, err := e.loadLocked(ctx, t, true)
	switch {
	case err != nil:
		return 0, nil, err
	case !ok:
		return lease.Absent, nil, nil
	case t.state.Status.Final():
		return lease.Ended, t.state, nil
	case t.state.Owner != to:
		isAlive, err := e.s.lease.Alive(ctx, t.state.Owner)
		if err != nil || isAlive {
			return lease.Held, t.state, err
		}
	}
	switch {
	case t.run == nil:
		found, err := e.adoptLocked(ctx, t, to)
		return found, t.state, err
	case t.run.owner == to:
		return lease.Held, t.state, nil
	}
	return 0, nil, errTakenOver // the handler of a lost epoch has not returned
}

// adoptLocked makes a process the owner of a task: a task that has begun no work begins, one that waits
// continues to wait without a run, and one whose work was cut off runs again or fails (ARC-D74).
// t.mu must be held.
func (e *taskEngine) adoptLocked(ctx context.Context, t *liveTask, to lease.Owner) (lease.Found, error) {
	entry := e.s.registry.lookup(t.state.agent)
	if entry == nil {
		return 0, agentFault(ErrAgentNotFound, t.state.agent)
	}
	mine := *t.state
	task, fate := mine.Adopt(to, engine.Policy{AlwaysRerun: entry.RerunInterrupted, AlwaysFail: entry.FailInterrupted})
	mine.Task = task
	if err := e.saveLocked(ctx, t, &mine); err != nil {
		return 0, err // after a conflict the next round reads it again
	}
	switch fate {
	case engine.Waits:
		e.park(&mine)
		return lease.Taken, nil
	case engine.Runs:
		return lease.Held, nil
	}
	fault := idFault(ErrTaskExecutionFailed, "taskId", t.id)
	fault.Message = "Task interrupted"
	return lease.Ended, e.applyLocked(ctx, t, &change{action: engine.Fail, at: now(), fault: fault})
}

// firstMessage returns the initial message of a task, or nil if it is missing.
func (e *taskEngine) firstMessage(ctx context.Context, st *taskState) (*Message, error) {
	records, err := e.db.Read(ctx, taskItems(st.id), 0, 1)
	if err != nil || len(records) == 0 {
		return nil, err
	}
	return itemOf(records[0])
}

// keepMetadata stores the metadata of a task that is to be created, and readMetadata reads it.
func (e *taskEngine) keepMetadata(ctx context.Context, st *taskState, metadata json.RawMessage) error {
	if !st.hasMetadata {
		return nil
	}
	_, err := e.db.Append(ctx, taskMetadata(st.id), firstID, metadata, 0)
	if errors.Is(err, store.ErrDuplicate) { // of an earlier attempt of the request
		err = nil
	}
	return err
}

func (e *taskEngine) readMetadata(ctx context.Context, st *taskState) (json.RawMessage, error) {
	if !st.hasMetadata {
		return nil, nil
	}
	records, err := e.db.Read(ctx, taskMetadata(st.id), 0, 1)
	if err == nil && len(records) == 0 {
		err = fmt.Errorf("arc: metadata of task %s: %w", st.id, store.ErrNotFound)
	}
	if err != nil {
		return nil, err
	}
	return records[0].Value, nil
}

// itemOf reads a message of a task.
func itemOf(rec store.Record) (*Message, error) {
	if len(rec.Value) < itemHead {
		return nil, nil
	}
	v, err := wire.Check(rec.Value[itemHead:])
	if err != nil {
		return nil, err
	}
	return read[Message](v)
}

// repeatEnd queues the final events of a task whose end may be stored but not yet queued.
func (e *taskEngine) repeatEnd(ctx context.Context, t *liveTask, st *taskState) error {
	t.mu.Lock()
	t.subs = nil
	subs, err := e.subscriptionsLocked(ctx, t)
	t.mu.Unlock()
	return errors.Join(err, e.queueEnd(ctx, subs, st))
}

// queueEnd queues the final events of a task again. Their numbers prevent duplicates.
func (e *taskEngine) queueEnd(ctx context.Context, subs []*subscription, st *taskState) error {
	var err error
	events, first := st.lastEvents()
	for _, sub := range subs {
		if !sub.static {
			err = errors.Join(err, e.s.outbox.putAll(ctx, sub, first, events))
			e.s.outbox.finish(ctx, sub)
		}
	}
	return err
}
