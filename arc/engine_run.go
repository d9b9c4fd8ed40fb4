// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package arc

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"
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

// A TaskEstimator is a [TaskHandler] that estimates the duration of a task before
// it starts. The estimate is part of TASK_STARTED (ARC-127).
type TaskEstimator interface {
	EstimateTask(ctx context.Context, run *TaskRun) time.Duration
}

// A TaskRun is a running task. Its methods are safe for concurrent use. They fail
// after the end of the task: with [ErrTaskAlreadyCanceled] if it was canceled, with
// [ErrTaskAlreadyCompleted] if it was completed.
type TaskRun struct {
	engine        *taskEngine
	task          *liveTask
	call          Call // without its params
	placed        bool // it has a place at the agent
	initial       *Message
	recovered     bool
	input         chan *Message // from task.send
	inputPosition uint64        // position of the last input; guarded by task.mu
	done          <-chan struct{}
	cancel        context.CancelCauseFunc
}

// ID returns the task's id.
func (r *TaskRun) ID() string { return r.task.id }

// Message returns the message that the task began with.
func (r *TaskRun) Message() *Message { return r.initial }

// Priority returns how urgent the task is.
func (r *TaskRun) Priority() Priority { return r.state().priority }

// Metadata returns what the caller gave along, a JSON object, or nil.
func (r *TaskRun) Metadata() json.RawMessage { return r.state().metadata }

// Status returns the state of the task.
func (r *TaskRun) Status() TaskStatus { return r.state().status }

// CreatedAt returns when the task was created.
func (r *TaskRun) CreatedAt() time.Time { return r.state().created }

// Redelivered reports whether another process started the task before. The
// messages and artifacts that it added are part of the task.
func (r *TaskRun) Redelivered() bool { return r.recovered }

func (r *TaskRun) state() *taskState {
	r.task.mu.Lock()
	defer r.task.mu.Unlock()
	return r.task.state
}

// Task returns everything about the task, as task.info would.
func (r *TaskRun) Task(ctx context.Context) (*Task, error) {
	st := r.state()
	messages, artifacts, err := r.engine.items(ctx, taskItems(st.id))
	if err != nil {
		return nil, fmt.Errorf("arc: task: %w", err)
	}
	info := st.info(messages, artifacts, true, true)
	defer info.free() // what is decoded is a copy
	res, err := decodeResult(MethodTaskInfo, info.b)
	if err != nil {
		return nil, err
	}
	return res.Task, nil
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
	return r.apply(ctx, &change{action: taskAddMessage, at: at, message: &add})
}

// AddProgress adds a text message that reports progress to the caller.
func (r *TaskRun) AddProgress(ctx context.Context, format string, args ...any) error {
	return r.AddMessage(ctx, AgentText(fmt.Sprintf(format, args...)))
}

// AddArtifact adds something that the task produced. One without an id gets
// artifact-1, artifact-2 and so on, one without a time gets it.
func (r *TaskRun) AddArtifact(ctx context.Context, a *Artifact) error {
	add := *a
	at := now()
	if add.ID == "" {
		add.ID = fmt.Sprintf("artifact-%d", r.state().artifacts+1)
	}
	if add.Parts == nil {
		add.Parts = []Part{}
	}
	if add.CreatedAt == "" {
		add.CreatedAt = NewTimestamp(at)
	}
	return r.apply(ctx, &change{action: taskAddArtifact, at: at, artifact: &add})
}

// WaitInput waits for the next message of the caller and returns it. Until then
// the task is INPUT_REQUIRED. The text of required is sent to subscribers; a
// question to the caller is a message, added before.
//
// If ctx ends before the task, the task continues without the input, and WaitInput
// returns the error of ctx.
func (r *TaskRun) WaitInput(ctx context.Context, required string) (*Message, error) {
	if err := r.apply(ctx, &change{action: taskRequireInput, at: now(), required: required}); err != nil {
		return nil, err
	}
	select {
	case m := <-r.input:
		return m, nil
	case <-r.done:
	case <-ctx.Done():
	}
	err := r.resume(ctx)
	select {
	case m := <-r.input: // it came at the last moment
		return m, nil
	default:
	}
	if err != nil {
		return nil, err
	}
	return nil, context.Cause(ctx)
}

// resume continues without input. If another process has just accepted an input,
// the task continues with it.
func (r *TaskRun) resume(ctx context.Context) error {
	err := r.apply(ctx, &change{action: taskResume, at: now()})
	if err == nil {
		return nil
	}
	r.task.mu.Lock()
	defer r.task.mu.Unlock()
	return errors.Join(err, r.engine.giveInput(context.WithoutCancel(ctx), r.task))
}

// deliver passes the message of a task.send, at a position among the items, to
// WaitInput. The state machine permits one for each call of WaitInput. task.mu
// must be held.
func (r *TaskRun) deliver(at uint64, m *Message) {
	r.inputPosition = at
	select {
	case r.input <- m:
	default:
	}
}

func (r *TaskRun) apply(ctx context.Context, c *change) error {
	r.task.mu.Lock()
	defer r.task.mu.Unlock()
	if isClosed(r.done) && r.engine.s.ctx.Err() != nil && !r.task.state.status.Final() {
		// Cut off with the server: the task waits for the next one as it is.
		return errServerClosed
	}
	if ctx.Done() != nil {
		ctx = context.WithoutCancel(ctx)
	}
	c.byRun = true
	return r.engine.apply(ctx, r.task, c)
}

// do is the goroutine of a task. The context base is what ctx is but never ends.
func (r *TaskRun) do(ctx, base context.Context, entry *agentEntry) {
	e := r.engine
	defer e.s.end(partOf)
	if r.placed {
		defer e.s.registry.router.Done(r.call.Agent)
	}
	defer e.release(r.task)
	stop := context.AfterFunc(e.s.ctx, func() { r.cancel(errServerClosed) })
	defer stop()
	defer r.cancel(context.Canceled)
	err := errGoexit
	defer func() { r.finish(ctx, base, err) }()
	if err = r.begin(ctx, base, entry.TaskHandler); err == nil {
		err = errGoexit
		err = r.work(ctx, entry.TaskHandler)
	}
}

// errGoexit is what is left of a handler that ended its goroutine.
var errGoexit = errors.New("arc: the handler of a task called runtime.Goexit")

func (r *TaskRun) begin(ctx, base context.Context, h TaskHandler) error {
	if r.recovered && r.state().status == TaskWorking {
		return nil
	}
	c := change{action: taskStart, at: now()}
	if est, ok := h.(TaskEstimator); ok {
		var err error
		if c.expected, err = r.estimate(ctx, est); err != nil {
			return err
		}
	}
	return r.apply(base, &c)
}

func (r *TaskRun) estimate(ctx context.Context, h TaskEstimator) (d time.Duration, err error) {
	defer recovered(&err)
	return h.EstimateTask(ctx, r), nil
}

func (r *TaskRun) work(ctx context.Context, h TaskHandler) (err error) {
	defer recovered(&err)
	return h.ServeTask(ctx, r)
}

// finish brings the task to its end.
func (r *TaskRun) finish(ctx, base context.Context, err error) {
	r.task.mu.Lock()
	defer r.task.mu.Unlock()
	defer func() { r.task.run = nil }()
	if r.task.state.status.Final() {
		return
	}
	if err != nil && errors.Is(context.Cause(ctx), errServerClosed) {
		return // the next server decides
	}
	c := change{action: taskComplete, at: now(), byRun: true}
	if err == nil {
		if err = r.engine.apply(base, r.task, &c); err == nil || r.task.state.status.Final() {
			return
		}
		if errors.Is(err, errTakenOver) {
			return // its work there decides
		}
		err = fmt.Errorf("arc: the handler of task %s returned while it was %s: %w", r.task.id, r.task.state.status, err)
		err = errors.New(err.Error()) // a fault of the handler, not one to be sent
	}
	c = change{action: taskFail, at: now(), byRun: true, fault: r.engine.s.faultOf(base, &r.call, err)}
	if err := r.engine.apply(base, r.task, &c); err != nil && !errors.Is(err, errTakenOver) && !r.task.state.status.Final() {
		r.engine.s.opts.Logger.ErrorContext(base, "arc: cannot keep the end of a task", "task", r.task.id, "error", err)
	}
}
