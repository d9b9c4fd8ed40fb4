// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package arc

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"sync"
	"time"

	"github.com/fivewire/fivewire/arc/internal/engine"
	"github.com/fivewire/fivewire/arc/internal/wire"
	"github.com/fivewire/fivewire/internal/budget"
	"github.com/fivewire/fivewire/internal/guard"
	"github.com/fivewire/fivewire/internal/jsonmap"
	"github.com/fivewire/fivewire/internal/life"
	"github.com/fivewire/fivewire/internal/strictjson"
)

// A TaskHandler does the work of tasks. ServeTask runs once for each task, in its
// own goroutine, and again if its process ended in the middle; see [Step]. Returning nil completes the task; an [*Error] fails it with that
// error; any other error, or a panic, fails it with an internal error whose cause
// is logged (ARC-D56).
//
// The context ends when the task is canceled, when it fails for another reason, or
// when the server is closed; [context.Cause] is [ErrTaskAlreadyCanceled] to [errors.Is]
// in the first case. The error of a [Client] with the context is then
// [context.Canceled] instead, since it is about another task. The context carries the
// workflow and the [Call] that created the task, without its params.
type TaskHandler interface {
	ServeTask(ctx context.Context, run *TaskRun) error
}

// A TaskHandlerFunc is a function that serves as a [TaskHandler].
type TaskHandlerFunc func(ctx context.Context, run *TaskRun) error

// ServeTask calls f.
func (f TaskHandlerFunc) ServeTask(ctx context.Context, run *TaskRun) error { return f(ctx, run) }

// A TaskRun is a running task. Its methods are safe for concurrent use. After the end of the
// task, [Step] and the methods that add or wait fail: with [ErrTaskAlreadyCanceled] if it was
// canceled, with [ErrTaskAlreadyCompleted] if it was completed.
type TaskRun struct {
	run     *engine.Run
	ctx     callCtx   // of the handler
	read    sync.Once // of the first message
	message *Message
}

// ID returns the task's id.
func (r *TaskRun) ID() string { return r.run.ID() }

// Message returns the message that the task began with.
func (r *TaskRun) Message() *Message {
	r.read.Do(func() { r.message, _ = read[Message](r.run.Message()) }) // it was checked before
	return r.message
}

// Priority returns how urgent the task is.
func (r *TaskRun) Priority() Priority { return Priority(r.run.Priority()) }

// Metadata returns what the caller gave along, a JSON object, or nil.
func (r *TaskRun) Metadata() json.RawMessage { return r.run.Metadata() }

// Redelivered reports whether an earlier run of the task was cut off. Inputs, steps, messages and
// artifacts of the earlier run are not done again; see [Step].
func (r *TaskRun) Redelivered() bool { return r.run.Redelivered() }

// Task returns everything about the task, as task.info would.
func (r *TaskRun) Task(ctx context.Context) (*Task, error) {
	info, err := r.run.Info(ctx)
	if err != nil {
		return nil, fmt.Errorf("arc: task: %w", err)
	}
	return taskIn(info)
}

// taskIn returns the task of a result.
func taskIn(result []byte) (*Task, error) { return read[Task](strictjson.Value(result).Get("task")) }

// AddMessage adds a message to the task. One without a role is the agent's, one
// without a timestamp gets it.
func (r *TaskRun) AddMessage(ctx context.Context, m *Message) error {
	if m == nil {
		return errNoMessage
	}
	add := *m
	if add.Role == "" {
		add.Role = RoleAgent
	}
	if add.Timestamp == "" {
		add.Timestamp = NewTimestamp(time.Now())
	}
	text, err := jsonmap.Append(nil, &add)
	if err != nil {
		return fmt.Errorf("arc: message: %w", err)
	}
	return public(r.run.AddMessage(text))
}

// Errors of handlers that pass nil.
var (
	errNoMessage  = errors.New("arc: message: nil")
	errNoArtifact = errors.New("arc: artifact: nil")
)

// AddProgress adds a text message that reports progress to the caller.
func (r *TaskRun) AddProgress(ctx context.Context, format string, args ...any) error {
	return r.AddMessage(ctx, AgentText(fmt.Sprintf(format, args...)))
}

// AddArtifact adds something that the task produced. One without an id gets
// artifact-1, artifact-2 and so on, one without a time gets it. An id that the run has used is an
// error.
func (r *TaskRun) AddArtifact(ctx context.Context, a *Artifact) error {
	if a == nil {
		return errNoArtifact
	}
	add := *a
	if add.Parts == nil {
		add.Parts = []Part{}
	}
	if add.CreatedAt == "" {
		add.CreatedAt = NewTimestamp(time.Now())
	}
	return public(r.run.AddArtifact(a.ID, func(id string) ([]byte, error) {
		add.ID = id
		text, err := jsonmap.Append(nil, &add)
		if err != nil {
			return nil, fmt.Errorf("arc: artifact: %w", err)
		}
		return text, nil
	}))
}

// WaitInput waits for the next message of the caller and returns it. Until then the task is
// INPUT_REQUIRED, and the text of required is the reason in its state and in TASK_PAUSED; a question
// to the caller is a message, added before. A waiting task survives its process: the handler runs
// again when the input comes, and the n-th WaitInput returns the n-th input.
//
// If ctx ends before the task, the task continues without the input, and WaitInput
// returns the error of ctx.
func (r *TaskRun) WaitInput(ctx context.Context, required string) (*Message, error) {
	text, err := r.run.WaitInput(ctx, required)
	if err != nil {
		return nil, public(err)
	}
	return read[Message](text)
}

// Sleep waits for d. If the process ends before, the handler runs again in any process that serves the agent, and Sleep waits for
// the rest. The n-th Sleep of a name is the same one in each run. The task stays WORKING, so its time limit counts, and other tasks
// may take its place. No shutdown waits for it, whatever other goroutines of the handler do.
func (r *TaskRun) Sleep(ctx context.Context, name string, d time.Duration) error {
	return public(r.run.Sleep(ctx, name, d))
}

// Step runs f once in the life of a task and returns its result, which is JSON of at most 1 MiB. If the
// process ends, the task runs again from the beginning in any process that serves the agent, and a
// Step with a kept result returns that without running f. An error of f is not kept. If the process ends
// before the result is kept, f runs again with the same stepID, which other services can take as an
// idempotency key. The n-th Step of a name has the n-th result of that name; a task has at most 10,000
// steps, and as many inputs.
func Step[T any](ctx context.Context, r *TaskRun, name string, f func(ctx context.Context, stepID string) (T, error)) (T, error) {
	var result T
	data, err := r.run.Step(ctx, name, func(ctx context.Context, stepID string) ([]byte, error) {
		v, err := f(ctx, stepID)
		if err != nil {
			return nil, err
		}
		return guard.Encode(v)
	})
	if err != nil {
		return result, public(err)
	}
	v, err := wire.Check(data)
	if err == nil {
		err = strictjson.Decode(v, &result)
	}
	if err != nil {
		return result, fmt.Errorf("arc: step %s: %w", name, err)
	}
	return result, nil
}

// public returns an error of package engine as users see it.
func public(err error) error {
	if f, ok := err.(*wire.Fault); ok { //nolint:errorlint // a wrapped one keeps its text
		return asError(f)
	}
	return err
}

// serveTask runs the handler of a task.
func (s *Server) serveTask(run *engine.Run) error {
	r, err := s.runOf(run)
	if err != nil {
		return err
	}
	return agentOf(run.Request()).TaskHandler.ServeTask(&r.ctx, r)
}

// estimateTask returns the estimated duration of a task, or zero.
func (s *Server) estimateTask(run *engine.Run) (d time.Duration, err error) {
	estimate := agentOf(run.Request()).EstimateTask
	if estimate == nil {
		return 0, nil
	}
	r, err := s.runOf(run)
	if err != nil {
		return 0, err
	}
	err = guard.Call("task estimator", func() error {
		d = estimate(&r.ctx, r)
		return nil
	})
	return d, err
}

// runOf returns a run as its handler sees it.
func (s *Server) runOf(run *engine.Run) (*TaskRun, error) {
	if _, isFirst := run.Request().Tag.(*Call); !isFirst { // the message comes from the store
		if _, err := read[Message](run.Message()); err != nil {
			return nil, fmt.Errorf("arc: first message of task %s: %w", run.ID(), err)
		}
	}
	return &TaskRun{run: run, ctx: callCtx{Context: run.Context(), call: s.callOf(run.Request())}}, nil
}

// callOf returns the call that created a task, without its params. In another process it is made of the record.
func (s *Server) callOf(q *engine.Request) *Call {
	if call, ok := q.Tag.(*Call); ok {
		return call
	}
	call := &Call{Method: q.Method, RequestAgent: q.Caller, TargetAgent: q.Target, Agent: q.Agent, TraceID: q.TraceID, Params: []byte("{}"),
		Principal: decodePrincipal(q.Identity)}
	if call.Principal == nil && q.Principal != "" {
		call.Principal = &Principal{ID: q.Principal}
	}
	return call
}

// admit checks what an option refuses in a message of a caller (ARC-D62), and
// stamps it. It returns the message behind the room that package engine needs.
func (s *Server) admit(call *Call, field string, m *wire.Message) ([]byte, error) {
	if s.opts.Auth.RejectSystemRole && m.Role == string(RoleSystem) {
		return nil, fieldError(ErrInvalidParams, field+".role", "must not be system")
	}
	if m.Timestamp == nil {
		call.x.stamp = string(NewTimestamp(time.Now()))
		m.Timestamp = &call.x.stamp
	}
	return wire.JSON(make([]byte, engine.Room, engine.Room+len(call.Params)+64), m), nil
}

// taskMethods serve the tasks of agents.
func (s *Server) taskMethods() map[string]Handler {
	return map[string]Handler{MethodTaskCreate: handlerOf(s.createTask), MethodTaskSend: handlerOf(s.sendTask), MethodTaskInfo: HandlerFunc(s.taskInfo),
		MethodTaskCancel: handlerOf(s.cancelTask), MethodTaskSubscribe: handlerOf(s.subscribeTask)}
}

// handlerOf returns a handler that reads the params of its method.
func handlerOf[P any](f func(ctx context.Context, call *Call, p *P) (any, error)) Handler {
	return HandlerFunc(func(ctx context.Context, call *Call) (any, error) {
		p, err := wire.Read[P](call.Params)
		if err != nil {
			return nil, err
		}
		return f(ctx, call, p)
	})
}

func (s *Server) createTask(ctx context.Context, call *Call, p *wire.CreateTask) (any, error) {
	message, err := s.admit(call, "initialMessage", &p.InitialMessage)
	if err != nil {
		return nil, err
	}
	q := call.x.request(call)
	if s.engine.IsShared() {
		q.Identity = encodePrincipal(call.Principal)
	}
	if err := s.checkWebhook(ctx, q); err != nil {
		return nil, err
	}
	created := *call
	created.Params, created.Header, created.x = nil, nil, nil // the request, which may be large, does not live as long as the task
	q.Tag = &created
	return call.ready(s.engine.Tasks.Create(context.WithoutCancel(ctx), q, message, bytesOf(p.Metadata), string(p.Priority), call.x.scratch[:0]))
}

func (s *Server) sendTask(ctx context.Context, call *Call, p *wire.SendTask) (any, error) {
	q := call.x.request(call)
	message, err := s.admit(call, "message", &p.Message)
	if err == nil {
		err = s.checkWebhook(ctx, q)
	}
	if err == nil {
		err = s.engine.Tasks.Send(ctx, q, p.TaskID, message[engine.Room:])
	}
	return ackOf("Message received"), err
}

// checkWebhook refuses the callback URL of a webhook that a request adds.
func (s *Server) checkWebhook(ctx context.Context, q *engine.Request) error {
	if q.Webhook == nil {
		return nil
	}
	return s.sender.check(ctx, q.Webhook.URL)
}

func (s *Server) taskInfo(ctx context.Context, call *Call) (any, error) {
	p := &call.x.info
	if err := wire.ReadInto(call.Params, p); err != nil {
		return nil, err
	}
	return call.ready(s.engine.Tasks.Info(ctx, call.x.request(call), p, call.x.scratch[:0]))
}

func (s *Server) cancelTask(ctx context.Context, call *Call, p *wire.CancelTask) (any, error) {
	return call.ready(s.engine.Tasks.Cancel(ctx, call.x.request(call), p.TaskID, textOf(p.Reason)))
}

func (s *Server) subscribeTask(ctx context.Context, call *Call, p *wire.Subscribe) (any, error) {
	sub, isActive, err := s.engine.Tasks.Subscribe(ctx, call.x.request(call), p, func() error { return s.sender.check(ctx, p.CallbackURL) })
	if err != nil {
		return nil, err
	}
	return call.ready(typedResult(subscriptionType(call.x.profile), "subscription", &Subscription{ID: sub.ID, TaskID: p.TaskID,
		CallbackURL: sub.URL, Events: eventList(sub.Events), CreatedAt: NewTimestamp(sub.Created.Time()), Active: isActive}))
}

// A ready is a result that is a compact JSON object.
type ready struct{ text []byte }

// ready returns the result of the call.
func (c *Call) ready(text []byte, err error) (any, error) {
	c.x.result.text = text
	return &c.x.result, err
}

// ackOf is the acknowledgment of ARC-040.
func ackOf(message string) *ready {
	o := wire.Open(nil)
	o.Bool("success", true)
	o.Text("message", message)
	return &ready{o.Close()}
}

// WatchTask answers a request about one task, such as task.create or task.info, and yields the task:
// first with all its messages and artifacts, and after changes again, with the new ones only. Several
// changes may be one. The sequence ends after the final state of the task, or with the error of the
// request, of a token that has expired, or of the end of ctx or of the server; an outage of the store is
// waited for. A task that ends in the shutdown of the server is yielded with its final state. The sequence may be
// ranged over once. A traceId of the task is a member of [Task.Extra].
//
// The sequences of a caller count against the QueueLimit of [Limits] while they wait. Over it, a task.create or
// task.send is refused and has no effect; another request yields the task once before the error.
func (s *Server) WatchTask(ctx context.Context, in *ServerRequest) iter.Seq2[*Task, error] {
	return guard.Once(func(yield func(*Task, error) bool) {
		x := &exchange{in: orZero(in), isWatched: true}
		defer func() { x.watch.Release() }()
		id, err := s.watched(ctx, x)
		if err != nil {
			yield(nil, err)
			return
		}
		work, err := s.life.Start(ctx, life.Query)
		if err != nil {
			yield(nil, s.draining(x))
			return
		}
		defer work.Finish()
		work.Park() // a shutdown waits for tasks and not for their watchers
		watch, cancel := x.untilExpiry(work)
		defer cancel()
		s.engine.Tasks.Watch(watch, id, yieldTasks(func(task *Task, err error) bool {
			if !yield(task, err) || err != nil || task.Status.Final() {
				return false
			}
			if fault := s.reserveWatch(x); fault != nil {
				yield(nil, fault)
				return false
			}
			return true
		}))
	}, errStreamUsed)
}

// reserveWatch counts the watcher of x, once.
func (s *Server) reserveWatch(x *exchange) *Error {
	if x.watch != (budget.Hold{}) {
		return nil
	}
	var err error
	if x.watch, err = s.scope(&x.call).Reserve(budget.Waiting, 1); err != nil {
		return asError(engine.Refused(x.call.TargetAgent, err))
	}
	return nil
}

// yieldTasks yields the tasks of results.
func yieldTasks(yield func(*Task, error) bool) func([]byte, error) bool {
	return func(info []byte, err error) bool {
		var task *Task
		if err == nil {
			task, err = taskIn(info)
		}
		return yield(task, public(err)) && err == nil
	}
}

// watched answers the request of x and returns the task that it is about.
func (s *Server) watched(ctx context.Context, x *exchange) (id string, err error) {
	res := s.exchange(ctx, x)
	if res.Error != nil {
		return "", res.Error
	}
	if x.req.Method != MethodTaskCreate {
		if _, id = workOf(&x.call); id == "" {
			err = methodFault(x.call.TargetAgent, x.req.Method)
		}
		return id, err
	}
	answer, err := DecodeResponse(res.Data, "")
	if err != nil {
		return "", err
	}
	result, err := decodeResult(MethodTaskCreate, answer.Result)
	if err != nil {
		return "", err
	}
	return result.Task.ID, nil
}

// methodTaskList is the method that a request for [Server.ListTasks] has.
const methodTaskList = "task.list"

// ListTasks yields the tasks of the caller at an agent or a group, without messages and artifacts and in
// the order of their ids. The request, of which no params are read, has the method task.list, whose scopes
// are those of the other methods of tasks. Every stored task is read, and the list counts as a running
// handler of the caller.
func (s *Server) ListTasks(ctx context.Context, in *ServerRequest) iter.Seq2[*Task, error] {
	return func(yield func(*Task, error) bool) {
		x := &exchange{in: orZero(in), startTime: time.Now(), agent: s.opts.ID}
		fault := s.admitList(ctx, x)
		defer x.place.Release()
		if fault != nil {
			s.audit(ctx, x, s.failure(x, fault))
			yield(nil, fault)
			return
		}
		x.isRun = true
		defer s.audit(ctx, x, &x.a)
		target := x.call.TargetAgent
		s.engine.Tasks.List(ctx, x.call.principalID(), func(agent string) bool {
			e := s.registry.lookup(agent)
			return agent == target || e != nil && e.Group == target
		}, yieldTasks(yield))
	}
}

// admitList checks a request for a list of tasks.
func (s *Server) admitList(ctx context.Context, x *exchange) (fault *Error) {
	if x.principal, fault = s.authenticate(ctx, x); fault != nil {
		return fault
	}
	if fault = s.decode(ctx, x); fault != nil {
		return fault
	}
	if x.req.Method != methodTaskList {
		return methodFault(x.req.TargetAgent, x.req.Method)
	}
	if fault = s.checkCall(ctx, x); fault != nil {
		return fault
	}
	if isKnown, _, _ := s.registry.method(x.call.TargetAgent, methodTaskList); !isKnown {
		return agentFault(ErrAgentNotFound, x.call.TargetAgent)
	}
	if err := x.place.Reserve(s.scope(&x.call), budget.Work, 1); err != nil {
		return asError(engine.Refused(x.call.TargetAgent, err))
	}
	return nil
}
