// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package arc

import (
	"context"
	"math"
	"sync"
	"time"

	"github.com/fivewire/fivewire/arc/internal/engine"
	"github.com/fivewire/fivewire/internal/budget"
)

// placeRetry is the Retry-After of a refused task: the end of work is not known.
const placeRetry = 5 * time.Second

// places are the places of running tasks of a process (ARC-D80).
type places struct {
	mu    sync.Mutex
	queue *engine.Places // guarded by mu
}

// A waitingTask is a task without a run that waits for a place.
type waitingTask struct {
	engine.Ticket
	ctx       context.Context
	call      Call // without its params
	initial   *Message
	recovered bool
}

func newPlaces(l *Limits) *places {
	bound := func(n, standard int64) int {
		switch {
		case n < 0:
			return math.MaxInt / 4
		case n == 0:
			return int(standard)
		}
		return int(min(n, math.MaxInt/4))
	}
	return &places{queue: engine.NewPlaces(engine.Limits{
		Running: bound(l.MaxTasks, 1024), RunningPerPrincipal: bound(l.MaxTasksPerPrincipal, 256),
		Waiting: bound(l.TaskQueueLimit, 8192), WaitingPerPrincipal: bound(l.TaskQueueLimitPerPrincipal, 1024)})}
}

func (p *places) enter(principal string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.queue.Enter(principal)
}

// wait queues a task. An accepted one of a failed process is never refused.
func (p *places) wait(w *waitingTask, isAccepted bool) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.refusal(w.call.TargetAgent, p.queue.Wait(&w.Ticket, isAccepted))
}

func (p *places) resume(agent, principal string, isBounded bool) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.refusal(agent, p.queue.Resume(principal, isBounded))
}

// release gives a place back and starts the next task.
func (p *places) release(principal string) {
	p.mu.Lock()
	next := p.queue.Leave(principal)
	p.mu.Unlock()
	if next != nil {
		next.Start()
	}
}

func (p *places) remove(w *waitingTask) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.queue.Remove(&w.Ticket)
}

func (p *places) refusal(agent string, r *engine.Refusal) error {
	if r == nil {
		return nil
	}
	limit := int64(r.Limit)
	return overBudget(agent, &budget.Error{Resource: budget.Work, Scope: r.Scope, Limit: limit, Used: limit, RetryAfter: placeRetry})
}

// admit takes a place for a task, or queues it.
func (e *taskEngine) admit(ctx context.Context, t *liveTask, call *Call, initial *Message, priority Priority) (*waitingTask, error) {
	if e.places.enter(budgetName(call)) {
		return nil, nil
	}
	w := newWaiting(e, ctx, t, call, initial)
	switch priority {
	case PriorityUrgent:
		w.Priority = 2
	case PriorityHigh:
		w.Priority = 1
	case PriorityLow:
		w.Priority = -1
	}
	return w, e.places.wait(w, false)
}

func newWaiting(e *taskEngine, ctx context.Context, t *liveTask, call *Call, initial *Message) *waitingTask {
	w := &waitingTask{ctx: ctx, call: *call, initial: initial}
	w.call.Params, w.call.out, w.call.isPlaced = nil, nil, call.out != nil
	w.Principal = budgetName(call)
	w.Start = func() { go e.begin(t, w) }
	return w
}

// begin runs a task that has got its place, unless it has ended or was not created.
func (e *taskEngine) begin(t *liveTask, w *waitingTask) {
	t.mu.Lock()
	defer e.unlock(t)
	if t.waiting != w {
		e.places.release(w.Principal)
		return
	}
	t.waiting = nil
	e.startLocked(w.ctx, t, &w.call, w.initial, w.recovered)
}

// dismissLocked removes a waiting task that has ended. t.mu must be held.
func (e *taskEngine) dismissLocked(ctx context.Context, t *liveTask) {
	w := t.waiting
	if w == nil {
		return
	}
	t.waiting = nil
	e.places.remove(w) // otherwise begin gives the place back
	w.call.run.release()
	if w.call.isPlaced {
		e.s.registry.router.Done(w.call.Agent)
	}
	e.finishTask(ctx, t.state.Owner, t.state)
	e.release(t)
}

// pausePlace gives the place of a waiting run back.
func (r *TaskRun) pausePlace() {
	if r.hasPlace.CompareAndSwap(true, false) {
		r.engine.places.release(r.principal)
	}
}

// resumePlace takes a place for a run that has its input.
func (r *TaskRun) resumePlace(isBounded bool) (isTaken bool, err error) {
	if !r.hasPlace.CompareAndSwap(false, true) {
		return false, nil
	}
	if err := r.engine.places.resume(r.call.Agent, r.principal, isBounded); err != nil {
		r.hasPlace.Store(false)
		return false, err
	}
	return true, nil
}

// reservePlace takes the place of a task of this process that a message resumes. The returned function
// gives it back.
func (e *taskEngine) reservePlace(call *Call, st *taskState, run *TaskRun) (undo func(), err error) {
	isHere := st.Owner == e.s.lease.Owner()
	switch {
	case st.Status != TaskInputRequired, !isHere && !st.IsParked:
		return func() {}, nil
	case run != nil:
		isTaken, err := run.resumePlace(true)
		if isTaken {
			return run.pausePlace, nil
		}
		return func() {}, err
	}
	principal := budgetName(call)
	if err := e.places.resume(call.TargetAgent, principal, true); err != nil {
		return nil, err
	}
	return func() { e.places.release(principal) }, nil
}
