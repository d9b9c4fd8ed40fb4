// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package arc

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/fivewire/fivewire/internal/strictjson"
	"github.com/fivewire/fivewire/store"
)

// A taskEngine runs the tasks of a server. The store holds the state of a task
// under one key, and its messages and artifacts in a stream. Each task in use also
// has an entry in memory, whose lock serializes the operations on it (ARC-D46).
type taskEngine struct {
	s  *Server
	db store.Store

	mu   sync.Mutex
	live map[string]*liveTask // guarded by mu

	presence presence
}

// A liveTask is a task that is being run or talked about.
type liveTask struct {
	id   string
	refs int // guarded by taskEngine.mu; the run holds one

	mu    sync.Mutex // guards all that follows
	keys  string     // in the store, one after the other; made when they are needed
	state *taskState // nil until loaded
	rev   store.Revision
	subs  []*subscription // nil until loaded
	run   *TaskRun        // nil unless it runs in this process
}

func newTaskEngine(s *Server) *taskEngine {
	return &taskEngine{s: s, db: s.opts.Persistence.Store, live: map[string]*liveTask{}}
}

// acquire returns the entry of a task, which may not exist, and takes a
// reference to it.
func (e *taskEngine) acquire(id string) *liveTask {
	e.mu.Lock()
	defer e.mu.Unlock()
	t := e.live[id]
	if t == nil {
		t = &liveTask{id: id}
		e.live[id] = t
	}
	t.refs++
	return t
}

func (e *taskEngine) release(t *liveTask) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if t.refs--; t.refs == 0 {
		delete(e.live, t.id)
	}
}

// key and items name the task and its items in the store. They are called with
// the lock of the task held.
func (t *liveTask) key() string { return t.bothKeys()[:len(taskPrefix)+len(t.id)] }

func (t *liveTask) items() string { return t.bothKeys()[len(taskPrefix)+len(t.id):] }

func (t *liveTask) bothKeys() string {
	if t.keys == "" {
		t.keys = taskPrefix + t.id + itemsPrefix + t.id
	}
	return t.keys
}

// load reads the state from the store, unless the task runs in this process, whose
// copy is then good enough for a change: a save fails if another process was
// faster. It is called with the lock of the task held. It returns false if there
// is none.
func (e *taskEngine) load(ctx context.Context, t *liveTask, reload bool) (bool, error) {
	if t.state != nil && !reload && e.runs(t) {
		return true, nil
	}
	entry, err := e.db.Get(ctx, t.key())
	if errors.Is(err, store.ErrNotFound) {
		if t.run == nil { // otherwise its run still uses it
			t.state = nil
		}
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if t.state != nil && t.rev == entry.Revision {
		return true, nil
	}
	st, err := decodeTask(entry.Value)
	if err == nil {
		err = e.keepFirst(ctx, t, st)
	}
	if err != nil {
		return false, err
	}
	if t.state != nil && t.state.followed != st.followed {
		t.subs = nil // subscribed through another process
	}
	t.state, t.rev = st, entry.Revision
	if t.run != nil && st.status.Final() {
		t.run.cancel(taskOver(st.status))
	} else if t.run != nil && st.instance != e.s.opts.Persistence.InstanceID {
		t.run.cancel(errTakenOver)
	}
	return true, nil
}

// save writes a changed state. After a conflict, another process has changed the
// task, and the caller reads it again.
func (e *taskEngine) save(ctx context.Context, t *liveTask, next *taskState) error {
	w := newReady()
	defer w.free()
	if next.write(&w.writer); w.err != nil {
		return w.err
	}
	var ttl time.Duration
	if next.status.Final() {
		ttl = e.s.opts.Persistence.TaskRetention
	}
	rev, err := e.db.Update(ctx, t.key(), w.b, t.rev, ttl)
	if err != nil {
		return err
	}
	t.state, t.rev = next, rev
	return nil
}

// agentOf returns the agent that a task belongs to, or "".
func (e *taskEngine) agentOf(ctx context.Context, id string) (string, error) {
	t := e.acquire(id)
	defer e.release(t)
	t.mu.Lock()
	defer t.mu.Unlock()
	if ok, err := e.load(ctx, t, false); !ok {
		return "", err
	}
	return t.state.agent, nil
}

// handler serves one of the task methods.
func (e *taskEngine) handler(method string) Handler {
	switch method {
	case MethodTaskCreate:
		return HandlerFunc(e.create)
	case MethodTaskSend:
		return HandlerFunc(e.send)
	case MethodTaskInfo:
		return HandlerFunc(e.info)
	case MethodTaskCancel:
		return HandlerFunc(e.cancel)
	}
	return HandlerFunc(e.subscribe)
}

// typed reads the params of a standard method.
func typed[P any](call *Call, read func(*reader, strictjson.Value) P) (p P, fault error) {
	v, f := paramsOf(call.Params)
	if f != nil {
		return p, f
	}
	r := newReader(false)
	defer r.free()
	if p = read(r, v); r.fault != nil {
		return p, r.fault
	}
	return p, nil
}

// admit checks what an option refuses in a message of a caller (ARC-D62), and
// stamps it.
func (s *Server) admit(field string, m *Message, at time.Time) error {
	if s.opts.RejectSystemRole && m.Role == RoleSystem {
		return fieldError(ErrInvalidParams, field+".role", "must not be system")
	}
	if m.Timestamp == "" {
		m.Timestamp = NewTimestamp(at)
	}
	return nil
}

// create starts a task. The task exists when the response is sent, and its work
// continues independently of the call.
func (e *taskEngine) create(ctx context.Context, call *Call) (any, error) {
	p, err := typed(call, (*reader).createTask)
	if err != nil {
		return nil, err
	}
	at := now()
	if err := e.s.admit("initialMessage", p.InitialMessage, at); err != nil {
		return nil, err
	}
	ctx = context.WithoutCancel(ctx) // a caller that left does not leave half a task
	st := &taskState{id: call.id("task-"), agent: call.Agent, principal: call.principalID(),
		requestAgent: call.RequestAgent, traceID: call.TraceID, status: TaskSubmitted, created: at, updated: at,
		priority: p.Priority, metadata: p.Metadata, messages: 1, events: 1, instance: e.s.opts.Persistence.InstanceID}
	item, err := messageItem(p.InitialMessage)
	defer item.free()
	if err != nil {
		return nil, err
	}
	st.first = item.b[1:]
	w := newReady()
	defer w.free()
	if st.write(&w.writer); w.err != nil {
		return nil, w.err
	}
	e.announce()
	t := e.acquire(st.id)
	t.mu.Lock()
	rev, err := e.db.Create(ctx, t.key(), w.b, 0)
	if call.isDuplicate && errors.Is(err, store.ErrExists) {
		defer e.release(t)
		defer t.mu.Unlock()
		return e.repeatCreate(ctx, t, call)
	}
	if err == nil {
		err = e.appendFirst(ctx, t, st, item.b)
		if err == nil {
			err = e.s.bindWork(ctx, call, "taskId", st.id)
		}
		if err != nil { // the task stays unknown to all callers
			err = errors.Join(err, e.db.Delete(ctx, t.key(), rev), e.db.Expire(ctx, t.items(), 0))
		}
	}
	if err != nil {
		t.mu.Unlock()
		e.release(t)
		return nil, err
	}
	t.state, t.rev = st, rev
	t.subs = e.staticSubs(st)
	answer := st.accepted()
	if len(t.subs) > 0 || e.s.opts.OnTaskEvent != nil {
		e.emit(ctx, t, 1, e.createdEvent(st))
	}
	e.start(ctx, t, call, p.InitialMessage, false)
	t.mu.Unlock()
	return answer, nil
}

// repeatCreate answers a repeated request whose first process created the task and
// exited before the response. The process that recovers the task runs or fails it.
// t.mu must be held.
func (e *taskEngine) repeatCreate(ctx context.Context, t *liveTask, call *Call) (any, error) {
	ok, err := e.load(ctx, t, true)
	if err != nil || !ok {
		return nil, errors.Join(err, errTaskGone)
	}
	call.out.agent = t.state.agent // of a group, the instance that has the task (ARC-D04)
	return t.state.accepted(), nil
}

// errTaskGone reports a task that was there a moment ago.
var errTaskGone = errors.New("arc: task no longer stored")

// start begins to run a task, whose reference it takes over. It is called with
// the lock of the task held, and with a context that never ends.
func (e *taskEngine) start(ctx context.Context, t *liveTask, call *Call, initial *Message, recovered bool) {
	run := &TaskRun{engine: e, task: t, call: *call, initial: initial, recovered: recovered, input: make(chan *Message, 1),
		inputPosition: t.state.input}
	if call.out != nil {
		call.out.keeps, run.placed = true, true
	}
	// The request, which may be large, does not live as long as the task.
	run.call.Params, run.call.out = nil, nil
	base := &callCtx{Context: ctx, call: &run.call}
	runCtx, cancel := context.WithCancelCause(base)
	run.cancel, run.done = cancel, runCtx.Done()
	t.run = run
	e.s.begin(partOf) // the call that starts it is counted, so this cannot fail
	go run.do(runCtx, base, call.entry)
}

// own returns the task of a call, locked, if the caller owns it. Tasks of other
// callers are reported as missing (ARC-D36).
func (e *taskEngine) own(ctx context.Context, call *Call, id string) (*liveTask, error) {
	t := e.acquire(id)
	t.mu.Lock()
	ok, err := e.load(ctx, t, e.s.shared) // what another process has answered holds here
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
	t.mu.Unlock()
	e.release(t)
}

// send gives a waiting task its input.
func (e *taskEngine) send(ctx context.Context, call *Call) (any, error) {
	p, err := typed(call, (*reader).sendTask)
	if err != nil {
		return nil, err
	}
	at := now()
	if err := e.s.admit("message", p.Message, at); err != nil {
		return nil, err
	}
	t, err := e.own(ctx, call, p.TaskID)
	if err != nil {
		return nil, err
	}
	defer e.done(t)
	change := change{action: taskSend, at: at, message: p.Message, mark: call.mark}
	done := false
	if call.isDuplicate {
		if done, err = e.sent(ctx, t, call.mark); err != nil {
			return nil, err
		}
	}
	if !done {
		if err := e.apply(context.WithoutCancel(ctx), t, &change); err != nil {
			return nil, err
		}
	}
	if e.runs(t) && !done {
		t.run.deliver(t.state.input, p.Message)
	} else {
		e.notifyOwner(ctx, t)
	}
	return ackOf("Message received"), nil
}

// cancel ends a task at once; it does not wait for the work to stop (ARC-D46).
func (e *taskEngine) cancel(ctx context.Context, call *Call) (any, error) {
	p, err := typed(call, (*reader).cancelTask)
	if err != nil {
		return nil, err
	}
	t, err := e.own(ctx, call, p.TaskID)
	if err != nil {
		return nil, err
	}
	defer e.done(t)
	if call.isDuplicate && t.state.status == TaskCanceled && t.state.mark == call.mark {
		return t.state.canceled(), nil
	}
	change := change{action: taskCancel, at: now(), reason: p.Reason, by: call.RequestAgent, mark: call.mark}
	if err := e.apply(context.WithoutCancel(ctx), t, &change); err != nil {
		return nil, err
	}
	if !e.runs(t) {
		e.notifyOwner(ctx, t)
	}
	return t.state.canceled(), nil
}

// info describes a task. It reads the items without the lock, so that a long task
// does not wait for its observers; an item that is added concurrently may be in
// the response.
func (e *taskEngine) info(ctx context.Context, call *Call) (any, error) {
	p, err := typed(call, (*reader).taskInfo)
	if err != nil {
		return nil, err
	}
	t, err := e.own(ctx, call, p.TaskID)
	if err != nil {
		return nil, err
	}
	st, stream := t.state, "" // the state is never changed, only replaced
	if !p.OmitMessages || !p.OmitArtifacts {
		stream = t.items()
	}
	e.done(t)
	var messages, artifacts []store.Record
	if stream != "" {
		if messages, artifacts, err = e.items(ctx, stream); err != nil {
			return nil, err
		}
	}
	return st.info(messages, artifacts, !p.OmitMessages, !p.OmitArtifacts), nil
}

// A change is something that happens to a task.
type change struct {
	action   TaskAction
	at       time.Time
	message  *Message
	artifact *Artifact
	reason   string // of a cancel or a pause
	by       string // the canceling agent
	mark     string // of the request
	required string // the input that is needed
	fault    *Error // why it failed
	expected time.Duration
	byRun    bool // requested by the run, which may have lost the task
}

// errTaskFull reports a task with too many items.
var errTaskFull = errors.New("arc: the task has too many messages and artifacts")

// apply makes a change by the machine of e.1, keeps it, and emits its events. It
// is called with the lock of the task held. The cost does not depend on what
// happened to the task before.
func (e *taskEngine) apply(ctx context.Context, t *liveTask, c *change) error {
	var item *ready
	var err error
	switch {
	case c.message != nil:
		item, err = messageItem(c.message)
	case c.artifact != nil:
		item, err = artifactItem(c.artifact)
	}
	defer item.free()
	if err != nil {
		return err
	}
	for {
		if c.byRun && t.state.instance != e.s.opts.Persistence.InstanceID {
			return errTakenOver
		}
		old := t.state
		to, events, err := old.status.Next(c.action)
		if err != nil {
			return taskFault(old.id, old.status, c.action, err.(Code))
		}
		if item != nil && old.messages+old.artifacts >= e.s.opts.Limits.MaxTaskItems {
			return errTaskFull
		}
		next := old.after(to, c)
		first := next.events + 1
		next.events += uint64(len(events))
		var seq uint64
		if item != nil {
			seq, err = e.db.Append(ctx, t.items(), c.mark, item.b, 0)
			if err != nil && !errors.Is(err, store.ErrDuplicate) { // a duplicate is left from a process that exited
				return err
			}
			if c.action == taskSend {
				next.input = seq
			}
		}
		err = e.save(ctx, t, next)
		if err == nil {
			return e.publish(ctx, t, old, c, first, events)
		}
		if item != nil { // the task has changed concurrently
			if ackErr := e.db.Ack(ctx, t.items(), seq); ackErr != nil {
				return errors.Join(err, ackErr)
			}
		}
		if !errors.Is(err, store.ErrConflict) {
			return err
		}
		if ok, err := e.load(ctx, t, true); err != nil {
			return err
		} else if !ok {
			return idFault(ErrTaskNotFound, "taskId", old.id)
		}
	}
}

// errTakenOver is what a handler sees whose task now runs in another process,
// which took this one for dead.
var errTakenOver = errors.New("arc: the task was taken over by another process")

// runs reports whether a task runs in this process. It is called with the lock of
// the task held.
func (e *taskEngine) runs(t *liveTask) bool {
	return t.run != nil && t.state.instance == e.s.opts.Persistence.InstanceID
}

// after is the state after a change.
func (st *taskState) after(to TaskStatus, c *change) *taskState {
	next := *st
	next.updated = c.at
	if c.message != nil {
		next.messages++
	}
	if c.artifact != nil {
		next.artifacts++
	}
	if to == st.status {
		return &next
	}
	next.previous, next.status = st.status, to
	switch to {
	case TaskInputRequired:
		next.paused = c.at
	case TaskCompleted, TaskFailed, TaskCanceled:
		next.endTime, next.reason, next.canceledBy, next.mark, next.fault = c.at, c.reason, c.by, c.mark, c.fault
		if c.fault != nil {
			next.reason = c.fault.Message
		}
	}
	return &next
}

// settle does what follows a change that is kept.
func (e *taskEngine) publish(ctx context.Context, t *liveTask, old *taskState, c *change, first uint64, events []Event) error {
	if t.subs == nil || len(t.subs) > 0 || e.s.opts.OnTaskEvent != nil {
		e.emit(ctx, t, first, e.eventsOf(old, t.state, c, events)...)
	}
	if !t.state.status.Final() {
		return nil
	}
	if t.run != nil {
		t.run.cancel(taskOver(t.state.status))
	}
	for _, sub := range t.subs {
		e.s.outbox.finish(sub)
	}
	if err := e.db.Expire(ctx, t.items(), e.s.opts.Persistence.TaskRetention); err != nil {
		e.s.opts.Logger.WarnContext(ctx, "arc: a finished task stays in the store", "task", old.id, "error", err)
	}
	return nil
}

// taskOver is the cause of a task's context that ends.
func taskOver(s TaskStatus) error {
	switch s {
	case TaskCanceled:
		return ErrTaskAlreadyCanceled
	case TaskCompleted:
		return ErrTaskAlreadyCompleted
	}
	return fmt.Errorf("arc: the task is %s", s)
}
