// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package arc

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/fivewire/fivewire/arc/internal/engine"
	"github.com/fivewire/fivewire/internal/guard"
	"github.com/fivewire/fivewire/internal/journal"
	"github.com/fivewire/fivewire/internal/lease"
	"github.com/fivewire/fivewire/internal/life"
	"github.com/fivewire/fivewire/store"
)

// A TaskHandler does the work of tasks. ServeTask runs once for each task, in its
// own goroutine. Returning nil completes the task; an [*Error] fails it with that
// error; any other error, or a panic, fails it with an internal error whose cause
// is logged (ARC-D56).
//
// The context ends when the task is canceled, when it fails for another reason, or
// when the server is closed; [context.Cause] is [ErrTaskAlreadyCanceled] in the
// first case. It carries the workflow and the [Call] that created the task, without
// its params.
type TaskHandler interface {
	ServeTask(ctx context.Context, run *TaskRun) error
}

// A TaskHandlerFunc is a function that serves as a [TaskHandler].
type TaskHandlerFunc func(ctx context.Context, run *TaskRun) error

// ServeTask calls f.
func (f TaskHandlerFunc) ServeTask(ctx context.Context, run *TaskRun) error { return f(ctx, run) }

// A TaskRun is a running task. Its methods are safe for concurrent use. They fail
// after the end of the task: with [ErrTaskAlreadyCanceled] if it was canceled, with
// [ErrTaskAlreadyCompleted] if it was completed.
type TaskRun struct {
	engine      *taskEngine
	task        *liveTask
	call        Call // without its params
	owner       lease.Owner
	epoch       context.Context // of the lease; nil with a private store
	unsupervise func() bool     // ends supervise; nil with a private store
	placed      bool            // it has a place at the agent
	initial     *Message
	metadata    json.RawMessage
	recovered   bool
	consumed    int          // inputs; guarded by task.mu
	earlier     *replay      // nil until used; guarded by task.mu
	limit       *time.Timer  // of the time in this state; guarded by task.mu
	opening     objectLock   // guards the two below
	journal     *journal.Run // nil until opened
	isOver      bool         // the handler has ended
	base        callCtx      // of the task; it does not end
	work        life.Work    // and context of the handler
	holds       holds
	principal   string      // whose place it has
	hasPlace    atomic.Bool // it does; not while it waits for input
}

// ID returns the task's id.
func (r *TaskRun) ID() string { return r.task.id }

// Message returns the message that the task began with.
func (r *TaskRun) Message() *Message { return r.initial }

// Priority returns how urgent the task is.
func (r *TaskRun) Priority() Priority { return r.state().priority }

// Metadata returns what the caller gave along, a JSON object, or nil.
func (r *TaskRun) Metadata() json.RawMessage { return r.metadata }

// Redelivered reports whether an earlier run of the task was cut off. Inputs, steps, messages and
// artifacts of the earlier run are not done again; see [Step].
func (r *TaskRun) Redelivered() bool { return r.recovered }

func (r *TaskRun) state() *taskState {
	r.task.mu.Lock()
	defer r.task.mu.Unlock()
	return r.task.state
}

// Task returns everything about the task, as task.info would.
func (r *TaskRun) Task(ctx context.Context) (*Task, error) {
	st := r.state()
	messages, artifacts, err := r.engine.items(ctx, taskItems(st.id), st.last)
	if err != nil {
		return nil, fmt.Errorf("arc: task: %w", err)
	}
	return st.task(messages, artifacts)
}

// AddMessage adds a message to the task. One without a role is the agent's, one
// without a timestamp gets it.
func (r *TaskRun) AddMessage(ctx context.Context, m *Message) error {
	add := *m
	at := now()
	if add.Role == "" {
		add.Role = RoleAgent
	}
	if add.Timestamp == "" {
		add.Timestamp = NewTimestamp(at)
	}
	return r.add(ctx, &change{action: engine.AddMessage, at: at, message: &add})
}

// AddProgress adds a text message that reports progress to the caller.
func (r *TaskRun) AddProgress(ctx context.Context, format string, args ...any) error {
	return r.AddMessage(ctx, AgentText(fmt.Sprintf(format, args...)))
}

// AddArtifact adds something that the task produced. One without an id gets
// artifact-1, artifact-2 and so on, one without a time gets it. An id that the run has used is an
// error.
func (r *TaskRun) AddArtifact(ctx context.Context, a *Artifact) error {
	add := *a
	at := now()
	if add.Parts == nil {
		add.Parts = []Part{}
	}
	if add.CreatedAt == "" {
		add.CreatedAt = NewTimestamp(at)
	}
	return r.add(ctx, &change{action: engine.AddArtifact, at: at, artifact: &add, isNamed: add.ID != ""})
}

// add adds an item unless an earlier run has added it.
func (r *TaskRun) add(ctx context.Context, c *change) error {
	isFound := false // it is not, and has its id
	return r.engine.s.persist(context.WithoutCancel(ctx), func(ctx context.Context) error {
		r.task.mu.Lock()
		defer r.engine.unlock(r.task)
		if c.artifact == nil && !r.recovered {
			return r.applyLocked(ctx, c)
		}
		p, err := r.replayLocked(ctx)
		if err != nil {
			return err
		}
		if !isFound {
			isReplayed, err := p.find(c, r.task.state.Artifacts+1)
			if isReplayed || err != nil {
				return err
			}
			isFound = true
		}
		err = r.applyLocked(ctx, c)
		if err == nil && c.artifact != nil {
			p.names[c.artifact.ID] = false
		}
		return err
	})
}

// find reports whether an earlier run has added an item, and gives an id to artifact number n.
func (p *replay) find(c *change, n int) (bool, error) {
	var item *ready
	var err error
	switch {
	case c.isNamed:
		isEarlier, isTaken := p.names[c.artifact.ID]
		if isTaken && !isEarlier {
			return false, fmt.Errorf("arc: artifact id %q used twice", c.artifact.ID)
		}
		p.names[c.artifact.ID] = false
		return isEarlier, nil
	case c.artifact != nil:
		item, err = artifactItem(itemArtifact, c.artifact)
	default:
		item, err = messageItem(itemMessage, c.message)
	}
	defer item.free()
	if err != nil || p.match(item.b[linkLen:]) {
		return err == nil, err
	}
	if c.artifact != nil {
		c.artifact.ID = p.name(n)
	}
	return false, nil
}

func (r *TaskRun) apply(ctx context.Context, c *change) error {
	return r.engine.s.persist(ctx, func(ctx context.Context) error {
		r.task.mu.Lock()
		defer r.engine.unlock(r.task)
		return r.applyLocked(ctx, c)
	})
}

// applyLocked makes a change by the run. The lock of the task must be held.
func (r *TaskRun) applyLocked(ctx context.Context, c *change) error {
	if errors.Is(context.Cause(&r.work), ErrClosed) && !r.task.state.Status.Final() {
		// Cut off with the server: the task waits for the next one as it is.
		return ErrClosed
	}
	c.owner = r.owner
	return r.engine.applyLocked(ctx, r.task, c)
}

// serve is the goroutine of a task.
func (r *TaskRun) serve() {
	r.work.Run("task handler", func(context.Context) error {
		r.do(r.call.entry.TaskHandler)
		return nil
	}, func(error) {})
}

func (r *TaskRun) do(h TaskHandler) {
	e := r.engine
	defer r.pausePlace()
	defer r.holds.release()
	if r.placed {
		defer e.s.registry.router.Done(r.call.Agent)
	}
	defer e.release(r.task)
	if r.unsupervise != nil {
		defer r.unsupervise()
	}
	err := errGoexit
	defer func() {
		if err == nil && r.state().Status == TaskInputRequired { // closing the journal ends the wait for the input
			err = errReturned(r.task.id, TaskInputRequired)
		}
		r.closeJournal()
		r.finish(err)
	}()
	if err = r.begin(); err == nil {
		err = errGoexit
		err = guard.Call("task handler", func() error { return h.ServeTask(&r.work, r) })
	}
}

// errGoexit is what is left of a handler that ended its goroutine.
var errGoexit = errors.New("arc: the handler of a task called runtime.Goexit")

func (r *TaskRun) begin() error {
	if r.recovered && r.state().Status == TaskWorking {
		return nil
	}
	c := change{action: engine.Start, at: now()}
	if estimate := r.call.entry.EstimateTask; estimate != nil {
		err := guard.Call("task estimator", func() error {
			c.expected = estimate(&r.work, r)
			return nil
		})
		if err != nil {
			return err
		}
	}
	return r.apply(&r.base, &c)
}

// finishWorkLocked removes the task from the index, after its notifications. The lock of the task
// must be held.
func (r *TaskRun) finishWorkLocked(st *taskState) {
	if st.unqueued == nil && len(r.task.pending) == 0 && !r.task.isNotifying {
		r.engine.finishTask(&r.base, r.owner, st)
		return
	}
	r.task.after(func() { r.finishWork(st) })
}

// finishWork removes the task from the index after its events, which another process may have left. After an error
// the next owner of the entry queues them.
func (r *TaskRun) finishWork(st *taskState) {
	r.task.mu.Lock()
	isQueued := st.unqueued == nil || r.task.queued >= st.Events
	r.task.mu.Unlock()
	if isQueued || r.engine.s.persist(&r.base, func(ctx context.Context) error { return r.engine.queueAgain(ctx, r.task) }) == nil {
		r.engine.finishTask(&r.base, r.owner, st)
	}
}

// endDelays are the delays before the end of a task is written again after a failure of the store.
const (
	minEndDelay = 100 * time.Millisecond
	maxEndDelay = 30 * time.Second
)

// finish brings the task to its end. It repeats the change until the store takes it or the process
// loses the task.
func (r *TaskRun) finish(err error) {
	defer r.release()
	c := change{action: engine.Complete, at: now(), owner: r.owner}
	if err != nil {
		c.action, c.fault = engine.Fail, r.engine.s.faultOf(&r.work, &r.call, err) // the error of an ended context is no failure
	}
	for delay := minEndDelay; ; delay = min(2*delay, maxEndDelay) {
		failed := r.end(&c, err)
		if failed == nil {
			return
		}
		r.engine.s.opts.Logger.WarnContext(&r.base, "arc: end of task not stored", "task", r.task.id, "delay", delay, "err", failed)
		select {
		case <-time.After(delay):
		case <-r.work.Done(): // the server was closed, or another request has ended the task
			if failed = r.end(&c, failed); failed != nil {
				r.engine.s.opts.Logger.ErrorContext(&r.base, "arc: task not ended", "task", r.task.id, "err", failed)
			}
			return
		}
	}
}

// end makes the change of the end. It returns an error if the store does not take it.
func (r *TaskRun) end(c *change, err error) error {
	r.task.mu.Lock()
	defer r.engine.unlock(r.task)
	if r.task.state.Status.Final() {
		return nil
	}
	if err != nil && r.isCut() {
		return nil // the next owner decides
	}
	err = r.engine.applyLocked(&r.base, r.task, c)
	if err == nil {
		return nil
	}
	if c.action == engine.Complete && errors.Is(err, ErrInvalidTaskTransition) {
		err = errReturned(r.task.id, r.task.state.Status)
		c.action, c.fault = engine.Fail, r.engine.s.faultOf(&r.base, &r.call, err)
		err = r.engine.applyLocked(&r.base, r.task, c)
	}
	var refused *Error
	if errors.Is(err, errTakenOver) || errors.As(err, &refused) || r.task.state.Status.Final() {
		return nil // its work in another process decides, or the task has ended
	}
	return err
}

func errReturned(id string, status TaskStatus) error {
	return fmt.Errorf("arc: the handler of task %s returned while it was %s", id, status)
}

// isCut reports whether the work was cut off with its process or epoch, or by another owner. A change that failed with
// the epoch may return before the work is canceled.
func (r *TaskRun) isCut() bool {
	cause := context.Cause(&r.work)
	return errors.Is(cause, ErrClosed) || errors.Is(cause, lease.ErrLost) || errors.Is(cause, errTakenOver) ||
		r.epoch != nil && r.epoch.Err() != nil
}

// release removes the run from its task.
func (r *TaskRun) release() {
	r.task.mu.Lock()
	defer r.engine.unlock(r.task)
	r.task.run = nil
	if r.limit != nil {
		r.limit.Stop()
	}
	st := r.task.state
	switch {
	case st.Status.Final() || st.Owner != r.owner:
		r.finishWorkLocked(st)
	case errors.Is(context.Cause(&r.work), errTakenOver): // and given back, by an input that came here
		e, id, owner := r.engine, r.task.id, r.owner
		_ = e.s.life.Go("task taken back", func(ctx context.Context) {
			_ = store.Persist(ctx, func(ctx context.Context) error {
				_, err := e.adopt(ctx, id, owner, owner)
				return err
			})
		})
	}
}
