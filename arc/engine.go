// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package arc

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"sync"
	"time"

	"github.com/fivewire/fivewire/arc/internal/engine"
	"github.com/fivewire/fivewire/arc/internal/wire"
	"github.com/fivewire/fivewire/internal/lease"
	"github.com/fivewire/fivewire/internal/life"
	"github.com/fivewire/fivewire/store"
)

// A taskEngine runs the tasks of a server. The store holds the state of a task
// under one key, and its messages and artifacts in a stream. Each task in use also
// has an entry in memory, whose lock serializes the operations on it (ARC-D46).
type taskEngine struct {
	s  *Server
	db store.Store

	mu     sync.Mutex
	live   map[string]*liveTask  // guarded by mu
	parked map[string]parkedTask // by id; those of this process; guarded by mu
	places *places
}

// A liveTask is a task that is being run or talked about.
type liveTask struct {
	id   string
	refs int // guarded by taskEngine.mu; the run holds one

	mu      objectLock // guards all that follows
	keys    string     // in the store, one after the other; made when they are needed
	state   *taskState // nil until loaded
	rev     store.Revision
	isStale bool            // a write had no answer, so the record may have changed
	subs    []*subscription // nil until loaded
	run     *TaskRun        // nil unless it runs in this process
	queued  uint64          // number of the newest event that is known to be queued
	data    json.RawMessage // its metadata, if it runs here or waits for a place
	waiting *waitingTask    // for a place; nil otherwise

	changed     chan struct{} // closed by the next change; nil unless the task is watched
	pending     []func()      // to be run without the lock, in order
	isNotifying bool          // a goroutine runs them
}

func newTaskEngine(s *Server) *taskEngine {
	return &taskEngine{s: s, db: s.opts.Persistence.Store, live: map[string]*liveTask{}, parked: map[string]parkedTask{}, places: newPlaces(&s.opts.Limits)}
}

// A parkedTask is a task of this process that waits without a run.
type parkedTask struct {
	owner lease.Owner // has the index entry
	limit *time.Timer
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

// loadLocked reads the state from the store, unless the task runs in this process, whose
// copy is then good enough for a change: a save fails if another process was
// faster. It is called with the lock of the task held. It returns false if there
// is none.
func (e *taskEngine) loadLocked(ctx context.Context, t *liveTask, reload bool) (bool, error) {
	if t.state != nil && !reload && !t.isStale && e.runsLocked(t) {
		return true, nil
	}
	entry, err := e.db.Get(ctx, t.key())
	if errors.Is(err, store.ErrNotFound) {
		if t.isStale = false; t.run == nil { // otherwise its run still uses it
			t.state = nil
		}
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if t.state != nil && t.rev == entry.Revision {
		t.isStale = false
		return true, nil
	}
	st, err := decodeTask(entry.Value)
	if err == nil {
		err = e.keepFirstLocked(ctx, t, st)
	}
	if err != nil {
		return false, err
	}
	if t.state != nil && t.state.followed != st.followed {
		t.subs = nil // subscribed through another process
	}
	t.state, t.rev, t.isStale = st, entry.Revision, false
	t.signal()
	if t.run != nil && st.Status.Final() {
		t.run.work.Cancel(taskOver(st))
	} else if t.run != nil && st.Owner != t.run.owner {
		t.run.work.Cancel(errTakenOver)
	}
	return true, nil
}

// saveLocked writes a changed state. After a conflict, another process has changed the
// task, and the caller reads it again.
func (e *taskEngine) saveLocked(ctx context.Context, t *liveTask, next *taskState) error {
	w := newReady()
	defer w.free()
	if next.write(&w.writer); w.err != nil {
		return w.err
	}
	var ttl time.Duration
	if next.Status.Final() {
		ttl = e.s.opts.Persistence.TaskRetention
	}
	rev, err := e.db.Update(ctx, t.key(), w.b, t.rev, ttl)
	if err != nil {
		t.isStale = true
		return err
	}
	t.state, t.rev = next, rev
	t.signal()
	return nil
}

// agentOf returns the agent that a task belongs to, or "".
func (e *taskEngine) agentOf(ctx context.Context, id string) (string, error) {
	t := e.acquire(id)
	defer e.release(t)
	t.mu.Lock()
	defer t.mu.Unlock()
	if ok, err := e.loadLocked(ctx, t, false); !ok {
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

// admit checks what an option refuses in a message of a caller (ARC-D62), and
// stamps it.
func (s *Server) admit(field string, in *wire.Message, at time.Time) (*Message, error) {
	if s.opts.Auth.RejectSystemRole && in.Role == string(RoleSystem) {
		return nil, fieldError(ErrInvalidParams, field+".role", "must not be system")
	}
	m, err := read[Message](wire.JSON(in))
	if err == nil && m.Timestamp == "" {
		m.Timestamp = NewTimestamp(at)
	}
	return m, err
}

// create starts a task. The task exists when the response is sent, and its work
// continues independently of the call.
func (e *taskEngine) create(ctx context.Context, call *Call) (any, error) {
	p, err := wire.Read[wire.CreateTask](call.Params)
	if err != nil {
		return nil, err
	}
	at := now()
	initial, err := e.s.admit("initialMessage", &p.InitialMessage, at)
	if err != nil {
		return nil, err
	}
	ctx = context.WithoutCancel(ctx) // a caller that left does not leave half a task
	st := &taskState{id: call.id("task-"), agent: call.Agent, principal: call.principalID(),
		requestAgent: call.RequestAgent, traceID: call.TraceID, priority: Priority(p.Priority), hasMetadata: p.Metadata != nil,
		Task: engine.Task[TaskStatus]{Status: TaskSubmitted, Created: at, Updated: at, Messages: 1, Events: 1}}
	if e.s.isShared {
		st.caller = encodePrincipal(call.Principal)
	}
	item, err := messageItem(itemInput, initial)
	defer item.free()
	if err != nil {
		return nil, err
	}
	if err := e.s.ledger.add(taskObject, st.id, call, len(item.b)+len(p.Metadata)+itemBytes); err != nil {
		return nil, err
	}
	if st.Owner, err = e.startTask(ctx, st); err != nil {
		e.s.ledger.remove(taskObject, st.id)
		return nil, e.s.unavailable(call.TargetAgent, err)
	}
	isCreated := false
	defer e.finishUnless(ctx, st, &isCreated)
	if err := e.keepMetadata(ctx, st, p.Metadata); err != nil {
		e.s.ledger.remove(taskObject, st.id)
		return nil, err
	}
	st.first = item.b[itemHead:]
	subs := e.staticSubs(st)
	if sub, err := e.subscribeNew(ctx, call, st); err != nil {
		e.s.ledger.remove(taskObject, st.id)
		return nil, err
	} else if sub != nil {
		subs = append(subs, sub)
	}
	if len(subs) > 0 && e.s.isShared {
		st.unqueuedFrom, st.unqueued = 1, encodeEvents([]*Notification{e.createdEvent(st)})
	}
	record := newReady()
	defer record.free()
	if st.write(&record.writer); record.err != nil {
		e.s.ledger.remove(taskObject, st.id)
		return nil, record.err
	}
	t := e.acquire(st.id)
	t.mu.Lock()
	w, err := e.admit(ctx, t, call, initial, Priority(p.Priority))
	if err != nil {
		e.s.ledger.remove(taskObject, st.id)
		t.mu.Unlock()
		e.release(t)
		return nil, err
	}
	defer e.leaveUnless(call, w, &isCreated)
	err = e.storeLocked(ctx, t, st, record.b, item.b)
	if err == nil && t.state != st { // an earlier attempt of the request has created it
		defer e.release(t)
		defer t.mu.Unlock()
		return t.state.accepted(), nil
	}
	if err == nil {
		err = e.s.persist(ctx, func(ctx context.Context) error { return e.s.bindWork(ctx, call, "taskId", st.id) })
	}
	if err != nil { // the next owner of the index entry finds what was stored
		e.s.ledger.remove(taskObject, st.id)
		t.mu.Unlock()
		e.release(t)
		return nil, err
	}
	isCreated = true
	t.subs, t.data = subs, p.Metadata
	answer := st.accepted()
	if len(t.subs) > 0 || e.s.opts.OnTaskEvent != nil {
		e.emitLocked(ctx, t, 1, e.createdEvent(st))
	}
	if w == nil {
		e.startLocked(ctx, t, call, initial, false)
	} else {
		t.waiting, call.out.keeps = w, true
	}
	e.unlock(t)
	return answer, nil
}

// finishUnless removes a task from the index unless it was created.
func (e *taskEngine) finishUnless(ctx context.Context, st *taskState, isCreated *bool) {
	if !*isCreated {
		e.finishTask(ctx, st.Owner, st)
	}
}

// leaveUnless gives the place of a task back unless it was created.
func (e *taskEngine) leaveUnless(call *Call, w *waitingTask, isCreated *bool) {
	switch {
	case *isCreated:
	case w == nil || !e.places.remove(w):
		e.places.release(budgetName(call))
	}
}

// storeLocked stores a new task. If an earlier attempt of the request has created the task, t.state is not st; the
// process that recovers the task runs or fails it. t.mu must be held.
func (e *taskEngine) storeLocked(ctx context.Context, t *liveTask, st *taskState, record, item []byte) error {
	isTried := false
	err := e.s.persist(ctx, func(ctx context.Context) error {
		rev, err := e.db.Create(ctx, t.key(), record, 0)
		if err == nil {
			t.state, t.rev = st, rev
		}
		if !errors.Is(err, store.ErrExists) {
			isTried = true
			return err
		}
		ok, err := e.loadLocked(ctx, t, true)
		if err != nil || !ok {
			return cmp.Or(err, errTaskGone)
		}
		if isTried && t.state.Owner == st.Owner && t.state.Created.Equal(st.Created) && t.state.Status == TaskSubmitted {
			*st = *t.state // it is from here
			t.state = st
		}
		return nil
	})
	if err != nil || t.state != st || st.first == nil {
		return err
	}
	return e.s.persist(ctx, func(ctx context.Context) error { return e.appendFirstLocked(ctx, t, st, item) })
}

// errTaskGone reports a task that was there a moment ago.
var errTaskGone = errors.New("arc: task no longer stored")

// startLocked begins to run a task, whose reference it takes over. It is called with
// the lock of the task held, and with a context that never ends.
func (e *taskEngine) startLocked(ctx context.Context, t *liveTask, call *Call, initial *Message, recovered bool) {
	run := &TaskRun{engine: e, task: t, call: *call, owner: t.state.Owner, initial: initial, metadata: t.data, recovered: recovered, holds: call.run}
	run.principal, run.placed = budgetName(call), call.isPlaced
	run.hasPlace.Store(true)
	if call.out != nil {
		call.out.keeps, run.placed = true, true
	}
	// The request, which may be large, does not live as long as the task.
	run.call.Params, run.call.Header, run.call.out = nil, nil, nil
	run.base = callCtx{Context: ctx, call: &run.call}
	if err := run.work.Start(&run.base, e.s.life, life.Part); err != nil { // in a shutdown: the next server takes the task over
		e.places.release(run.principal)
		e.release(t)
		return
	}
	t.run = run
	run.schedule(t.state)
	run.supervise()
	go run.serve()
}
