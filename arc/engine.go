// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package arc

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/fivewire/fivewire/arc/internal/engine"
	"github.com/fivewire/fivewire/internal/lease"
	"github.com/fivewire/fivewire/internal/life"
	"github.com/fivewire/fivewire/internal/strictjson"
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
	if s.opts.Auth.RejectSystemRole && m.Role == RoleSystem {
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
		requestAgent: call.RequestAgent, traceID: call.TraceID, priority: p.Priority, hasMetadata: p.Metadata != nil,
		Task: engine.Task[TaskStatus]{Status: TaskSubmitted, Created: at, Updated: at, Messages: 1, Events: 1}}
	if e.s.isShared {
		st.caller = encodePrincipal(call.Principal)
	}
	item, err := messageItem(itemInput, p.InitialMessage)
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
	w, err := e.admit(ctx, t, call, p.InitialMessage, p.Priority)
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
		e.startLocked(ctx, t, call, p.InitialMessage, false)
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
	isTried, isCreated := false, false
	return e.s.persist(ctx, func(ctx context.Context) error {
		if isCreated {
			return e.appendFirstLocked(ctx, t, st, item)
		}
		rev, err := e.db.Create(ctx, t.key(), record, 0)
		if err == nil {
			t.state, t.rev, isCreated = st, rev, true
			return e.appendFirstLocked(ctx, t, st, item)
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
	run.call.Params, run.call.out = nil, nil
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
	c := change{action: engine.Send, at: at, message: p.Message, itemID: call.claim.Token, isRepeated: call.claim.Redelivered, claimant: mine}
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

// accept keeps the input of a request, unless an earlier attempt of it has, and returns the state of the
// task. It may be repeated.
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
	p, err := typed(call, (*reader).cancelTask)
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
	c := change{action: engine.Cancel, at: now(), reason: p.Reason, by: call.RequestAgent}
	err = e.s.persist(ctx, func(ctx context.Context) error {
		t.mu.Lock()
		defer e.unlock(t)
		ok, err := e.loadLocked(ctx, t, e.s.isShared)
		switch {
		case err != nil:
			return err
		case !ok:
			return idFault(ErrTaskNotFound, "taskId", t.id)
		}
		if !call.claim.Redelivered || t.state.Status != TaskCanceled {
			err = e.applyLocked(ctx, t, &c)
		}
		st = t.state
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
	p, err := typed(call, (*reader).taskInfo)
	if err != nil {
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
	if p.isPaged() {
		messages, artifacts = p.page(messages, artifacts)
	}
	return st.info(messages, artifacts, &p), nil
}

// A change is something that happens to a task.
type change struct {
	action   engine.Action
	at       time.Time
	message  *Message
	artifact *Artifact
	reason   string // of a cancel or a pause
	by       string // the canceling agent
	itemID   string // of the message, if its request may be repeated
	required string // the input that is needed
	fault    *Error // why it failed
	expected time.Duration
	owner    lease.Owner // of the run that requests it, which may have lost the task; else empty
	claimant lease.Owner // becomes the owner if the task has no run and no live owner
	isNamed  bool        // the handler has chosen the id of the artifact

	isRepeated bool     // an earlier attempt of the request may have made it
	attempt    *attempt // the last attempt whose write had no answer; otherwise nil
}

// An attempt is a try to make a change.
type attempt struct {
	old   *taskState
	to    TaskStatus
	first uint64 // number of the first event
	list  []*Notification
	seqs  []uint64 // of the item, in this and earlier attempts
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
			next.last, err = appendItem(ctx, e.db, t.items(), c.itemID, old.last, item.b, 0)
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
			a := &attempt{old: old, to: next.Status, first: first, list: list, seqs: []uint64{next.last}}
			if c.attempt != nil {
				a.seqs = append(a.seqs, c.attempt.seqs...)
			}
			c.attempt = a
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
	a := c.attempt
	if a == nil && !c.isRepeated {
		return false, nil
	}
	isMade, err := e.isMadeLocked(ctx, t, c)
	if !isMade || err != nil || a == nil {
		return isMade, err
	}
	c.attempt = nil
	return true, e.publishLocked(ctx, t, a.old, a.first, a.list)
}

// isMadeLocked reports whether the record has a change that an earlier attempt tried. t.mu must be held.
func (e *taskEngine) isMadeLocked(ctx context.Context, t *liveTask, c *change) (bool, error) {
	st, a := t.state, c.attempt
	switch {
	case c.message != nil || c.artifact != nil:
		list, err := readItems(ctx, e.db, t.items(), st.last)
		return slices.ContainsFunc(list, func(r store.Record) bool {
			return a != nil && slices.Contains(a.seqs, r.Seq) || isItemOf(c.itemID, r)
		}), err
	case a == nil:
		return false, nil
	case a.to == TaskInputRequired:
		return st.Paused.Equal(c.at), nil
	case a.to.Final():
		return st.Status == a.to && st.Ended.Equal(c.at), nil
	}
	return st.Status == a.to && st.Moved.Equal(c.at), nil
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
