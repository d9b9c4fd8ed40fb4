// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/fivewire/fivewire/arc/internal/wire"
	"github.com/fivewire/fivewire/internal/lease"
	"github.com/fivewire/fivewire/store"
)

// Tasks run the tasks of a server. The store holds the record of a task under one key, and its messages and artifacts
// in a stream. Each task in use also has an entry in memory, whose turn serializes the changes (ARC-D46).
type Tasks struct {
	*core
	webhooks *Webhooks
	router   *Router
	places   placeQueue

	mu     sync.Mutex
	live   map[string]*task      // guarded by mu
	parked map[string]parkedTask // by id; those of this process; guarded by mu
}

// A task is the entry of a task in use.
type task struct {
	id         string
	key, items string // in the store
	refs       int    // guarded by Tasks.mu; the run holds one

	turn    objectLock // held during a change, operations of the store included
	ticket  *ticket    // for a place; nil otherwise; guarded by turn
	effects orderly    // of changes
	buf     []byte     // of the record, reused with a private store, which copies it; guarded by turn

	mu      sync.Mutex // guards all that follows; rec, rev and run are also read with the turn
	rec     *record    // as last read or written; nil before
	rev     store.Revision
	run     *Run          // nil unless it runs in this process
	queued  uint64        // number of the newest event that is known to be queued
	changed chan struct{} // closed by the next change; nil unless the task is watched
}

// A parkedTask is a task of this process that waits without a run.
type parkedTask struct {
	owner lease.Owner // has the index entry, for the agent
	agent string
	limit *time.Timer
}

func newTasks(c *core, w *Webhooks, r *Router) *Tasks {
	e := &Tasks{core: c, webhooks: w, router: r, places: newPlaceQueue(c.opts.Places), live: map[string]*task{}, parked: map[string]parkedTask{}}
	w.endOf = e.endOf
	w.end = func(ctx context.Context, taskID, id string) error {
		return e.endSubscription(ctx, taskID, endedSub{ID: id})
	}
	w.reopen = e.reopenSubscription
	return e
}

// Serve takes over the unfinished tasks of failed processes for an agent that is served here, from now on.
func (e *Tasks) Serve(agent string) {
	e.lease.Adopt(taskKind(agent), func(ctx context.Context, id string, _, to lease.Owner) (lease.Found, error) {
		return e.adopt(ctx, agent, id, to)
	})
}

// taskKind is the kind of work of the tasks of an agent.
func taskKind(agent string) string { return "task:" + agent }

// acquire returns the entry of a task, which may not exist, and takes a reference to it.
func (e *Tasks) acquire(id string) *task {
	e.mu.Lock()
	defer e.mu.Unlock()
	t := e.live[id]
	if t == nil {
		names := taskPrefix + id + itemsPrefix + id
		n := len(taskPrefix) + len(id)
		t = &task{id: id, key: names[:n], items: names[n:]}
		e.live[id] = t
	}
	t.refs++
	return t
}

func (e *Tasks) release(t *task) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if t.refs--; t.refs == 0 {
		delete(e.live, t.id)
	}
}

// unlock unlocks a task and carries out the effects of its changes.
func (e *Tasks) unlock(t *task) {
	t.turn.Unlock()
	t.effects.run()
}

// A snapshot is what is known of a task at one moment.
type snapshot struct {
	rec *record
	rev store.Revision
	run *Run // in this process, or nil
}

// peek returns the record in memory.
func (t *task) peek() snapshot {
	t.mu.Lock()
	defer t.mu.Unlock()
	return snapshot{t.rec, t.rev, t.run}
}

// get returns the record of a task, that in memory if no other process changes it. It waits for no change.
func (e *Tasks) get(ctx context.Context, t *task) (snapshot, error) {
	s := t.peek()
	if s.rec != nil && !e.isShared && s.run != nil {
		return s, nil
	}
	entry, err := e.read(ctx, t.key)
	switch {
	case errors.Is(err, store.ErrNotFound):
		err = noTask(t.id)
	case err == nil && (s.rec == nil || s.rev != entry.Revision):
		s.rev = entry.Revision
		s.rec, err = e.decode(ctx, entry)
	}
	return s, err
}

// decode returns the record of an entry, with the first message among the items.
func (e *Tasks) decode(ctx context.Context, entry store.Entry) (*record, error) {
	r, err := decodeRecord(entry.Value)
	if err == nil && r.First != nil {
		r.Last, err = e.appendItem(ctx, taskItems(r.ID), firstID, 0, newItem(itemInput, r.First), 0)
		r.First = nil
	}
	return r, err
}

// loadLocked is get, and keeps the record in memory. t.turn must be held.
func (e *Tasks) loadLocked(ctx context.Context, t *task) (*record, error) {
	if t.rec != nil && !e.isShared && t.run != nil {
		return t.rec, nil
	}
	entry, err := e.read(ctx, t.key)
	if errors.Is(err, store.ErrNotFound) {
		return nil, noTask(t.id)
	}
	if err != nil {
		return nil, err
	}
	return e.decodeLocked(ctx, t, entry)
}

// decodeLocked keeps the record of an entry in memory, and ends a run that has lost it. t.turn must be held.
func (e *Tasks) decodeLocked(ctx context.Context, t *task, entry store.Entry) (*record, error) {
	if t.rec != nil && t.rev == entry.Revision {
		return t.rec, nil
	}
	r, err := e.decode(ctx, entry)
	if err != nil {
		return nil, err
	}
	t.setLocked(r, entry.Revision)
	switch run := t.run; {
	case run == nil:
	case r.IsFinal():
		run.work.Cancel(e.overCause(r))
	case r.Owner != run.owner:
		run.work.Cancel(ErrTakenOver)
	}
	return r, nil
}

// firstID is the deduplication id of the first message, which several processes may add.
const firstID = "first"

// setLocked sets the record and notifies those that watch the task. t.turn must be held.
func (t *task) setLocked(r *record, rev store.Revision) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.rec, t.rev = r, rev
	if t.changed != nil {
		close(t.changed)
		t.changed = nil
	}
}

// overCause is the cause of the context of a run whose task has ended.
func (e *Tasks) overCause(r *record) error {
	switch r.Status {
	case canceled:
		return e.opts.Canceled
	case completed:
		return e.opts.Completed
	}
	if faultCode(r.Fault) == wire.TaskTimeout {
		return e.opts.TimedOut
	}
	return fmt.Errorf("arc: the task of the handler is %s", r.Status)
}

// own returns the entry and the record of the task of a request, if the caller owns it. Tasks of other callers are
// reported as missing (ARC-D36).
func (e *Tasks) own(ctx context.Context, q *Request, id string) (*task, snapshot, error) {
	t := e.acquire(id)
	s, err := e.get(ctx, t)
	if err == nil && (s.rec.Agent != q.Agent || s.rec.Principal != q.Principal) {
		err = noTask(id)
	}
	if err != nil {
		e.release(t)
	}
	return t, s, err
}

// Create starts a task and returns the result of task.create. The task exists then, and its work continues
// independently of the call. The message is behind Room. The result is appended to dst, if that has room.
func (e *Tasks) Create(ctx context.Context, q *Request, item, metadata []byte, priority string, dst []byte) (result []byte, err error) {
	at, message := Now(), item[Room:]
	r := &record{ID: q.Attempt.ID("task-"), Agent: q.Agent, Principal: q.Principal, Caller: q.Caller, TraceID: q.TraceID,
		Priority: priority, HasMetadata: metadata != nil,
		Task: Task{Status: submitted, Created: at, Updated: at, Messages: 1, Events: 1}}
	if e.isShared {
		r.Identity = q.Identity
		if q.Principal == "" {
			r.Account = q.Account
		}
	}
	if q.Attempt.IsRepeated && e.ledger.lookup(taskObject, r.ID) != nil { // created here before
		if result, err = e.accepted(ctx, r.ID, dst); !isCode(err, wire.TaskNotFound) {
			return result, err
		}
	}
	if err := e.ledger.add(taskObject, r.ID, q, len(message)+len(metadata)+itemBytes); err != nil {
		return nil, err
	}
	if q.Webhook != nil {
		sub := newSubscription(q, r)
		sub.Size = sub.size()
		if err := e.ledger.attach(r.ID, sub.Size, 1); err != nil {
			e.ledger.drop(taskObject, r.ID)
			return nil, err
		}
		r.Subs = []Subscription{sub}
	}
	undo := func() { e.ledger.drop(taskObject, r.ID) }
	defer func() {
		if undo != nil {
			undo()
		}
	}()
	if r.Owner, err = e.startWork(ctx, r.Agent, r.ID); err != nil {
		return nil, e.unavailable(q.Target, err)
	}
	durable := e.durable() // if it ends, the next owner of the index entry finds what was stored
	undo = func() {
		e.ledger.drop(taskObject, r.ID)
		e.finishWork(durable, r.Owner, r.Agent, r.ID)
	}
	t := e.acquire(r.ID)
	defer e.release(t)
	t.turn.Lock()
	defer e.unlock(t)
	ticket, err := e.places.enter(e, t, q, priorities[priority], false)
	if err != nil {
		return nil, err
	}
	finish := undo
	undo = func() {
		finish()
		e.places.undo(q.Account, ticket)
	}
	if err := e.storeLocked(durable, t, r, item, metadata); err != nil {
		return nil, e.unavailable(q.Target, err)
	}
	if t.rec.Owner != r.Owner || t.rec.Created != at { // an earlier attempt of the request has created it
		return t.rec.accepted(dst), nil
	}
	if err := e.persist(durable, func(ctx context.Context) error { return e.router.BindWork(ctx, q, "taskId", r.ID) }); err != nil {
		return nil, err
	}
	undo = nil
	e.emitLocked(t, nil, t.rec)
	run := e.newRun(ctx, t, q, message, metadata)
	if ticket == nil {
		run.startLocked()
	} else {
		e.queueLocked(t, ticket, run)
	}
	return t.rec.accepted(dst), nil
}

// accepted returns the result of the request that has created a task.
func (e *Tasks) accepted(ctx context.Context, id string, dst []byte) ([]byte, error) {
	t := e.acquire(id)
	defer e.release(t)
	s, err := e.get(ctx, t)
	if err != nil {
		return nil, err
	}
	return s.rec.accepted(dst), nil
}

// storeLocked stores a new task, unless an earlier attempt of the request has, and sets t.rec. t.turn must be held.
func (e *Tasks) storeLocked(ctx context.Context, t *task, r *record, item, metadata []byte) error {
	if metadata != nil {
		err := e.persist(ctx, func(ctx context.Context) error {
			_, err := e.db.Append(ctx, taskMetadata(r.ID), firstID, metadata, 0)
			return err
		})
		if err != nil && !errors.Is(err, store.ErrDuplicate) { // of an earlier attempt
			return err
		}
	}
	item[linkLen] = itemInput
	if e.isShared {
		r.First = item[Room:]
	} else {
		var err error
		if r.Last, err = e.appendItem(ctx, t.items, "", 0, item, 0); err != nil {
			return err
		}
	}
	e.addEvents(t, nil, r, &change{Change: Change{At: r.Created}}, []string{"TASK_CREATED"})
	isExisting := false
	entry, err := e.modify(ctx, t.key, 0, func(_ store.Entry, isFound bool) ([]byte, error) {
		if isExisting = isFound; isFound {
			return nil, store.ErrUnchanged
		}
		return e.encodeLocked(t, r), nil
	})
	switch {
	case err != nil:
		return err
	case isExisting:
		_, err = e.decodeLocked(ctx, t, entry)
		return err
	case e.isShared:
		stored := *r
		stored.First = nil
		err = e.persist(ctx, func(ctx context.Context) (err error) {
			stored.Last, err = e.appendItem(ctx, t.items, firstID, 0, item, 0)
			return err
		})
		r = &stored
	}
	t.setLocked(r, entry.Revision)
	return err
}

// Send gives a waiting task its input, a message.
func (e *Tasks) Send(ctx context.Context, q *Request, id string, message []byte) error {
	t, s, err := e.own(ctx, q, id)
	if err != nil {
		return err
	}
	defer e.release(t)
	r := s.rec
	place, err := e.reservePlace(q, r, s.run)
	if err != nil {
		return err
	}
	c := change{Change: Change{Action: Send, At: Now()}, kind: itemInput, item: message, attempt: q.Attempt.OrNew(e.isShared), request: q}
	defer e.leaveIndex(r, &c) // the input is delivered then
	if q.Webhook != nil {
		if c.added, err = e.attach(t, newSubscription(q, r)); err != nil {
			place.undo()
			return err
		}
	}
	accepted, err := e.accept(t, &c)
	e.finishAddition(t, c.added, err)
	if err != nil {
		place.undo()
		return err
	}
	if accepted.Owner != c.former { // it does not have the task any longer
		_ = e.notify(e.durable(), c.former, taskTopic, id) // it may have failed
	}
	return e.deliver(e.durable(), t, accepted, place)
}

// accept makes the change of a request, and returns the record of the task.
func (e *Tasks) accept(t *task, c *change) (*record, error) {
	t.turn.Lock()
	defer e.unlock(t)
	err := e.applyLocked(e.durable(), t, c)
	return t.rec, err
}

// deliver passes an accepted input to the run of a task, or runs the handler again if the task has none. It repeats
// this until the store answers.
func (e *Tasks) deliver(ctx context.Context, t *task, r *record, place heldPlace) error {
	isUsed := false
	defer func() {
		if !isUsed && place.isFree() {
			place.undo()
		}
	}()
	if r.Owner != e.lease.Owner() {
		return e.persist(ctx, func(ctx context.Context) error { return e.notify(ctx, r.Owner, taskTopic, t.id) })
	}
	return e.persist(ctx, func(ctx context.Context) error {
		t.turn.Lock()
		defer e.unlock(t)
		if t.run != nil || t.ticket != nil || t.rec.Status != working || t.rec.Owner != r.Owner {
			return nil
		}
		err := e.rerunLocked(ctx, t, place.isFree())
		isUsed = err == nil
		return err
	})
}

// Cancel ends a task at once; it does not wait for the work to stop (ARC-D46). It returns the result of task.cancel.
func (e *Tasks) Cancel(ctx context.Context, q *Request, id, reason string) ([]byte, error) {
	t, s, err := e.own(ctx, q, id)
	if err != nil {
		return nil, err
	}
	defer e.release(t)
	r := s.rec
	c := change{Change: Change{Action: Cancel, At: Now(), Reason: reason, By: q.Caller}, attempt: q.Attempt, request: q}
	defer e.leaveIndex(r, &c) // the events are queued then
	end, err := e.accept(t, &c)
	if notifyErr := e.notify(e.durable(), c.former, taskTopic, id); notifyErr != nil {
		e.log.WarnContext(ctx, "arc: process of task not notified", "task", id, "err", notifyErr)
	}
	if err != nil {
		return nil, err
	}
	return end.canceled(), nil
}

// Info appends the result of task.info to dst, if that has room. It reads the items without the lock, so that a long
// task does not wait for its observers.
func (e *Tasks) Info(ctx context.Context, q *Request, p *wire.TaskInfo, dst []byte) ([]byte, error) {
	t, s, err := e.own(ctx, q, p.TaskID)
	if err != nil {
		return nil, err
	}
	defer e.release(t)
	r := s.rec
	var messages, artifacts []store.Record
	if !p.OmitMessages || !p.OmitArtifacts {
		list, err := e.readItems(ctx, t.items, 0, r.Last)
		if err != nil {
			return nil, err
		}
		messages, artifacts = split(list)
	}
	if p.IsPaged() {
		messages, artifacts = pageOf(p, messages, artifacts)
	}
	return r.info(dst, messages, artifacts, p), nil
}

// AgentOf returns the agent that a task belongs to, or "".
func (e *Tasks) AgentOf(ctx context.Context, id string) (string, error) {
	entry, err := e.read(ctx, taskKey(id))
	if errors.Is(err, store.ErrNotFound) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	r, err := decodeRecord(entry.Value)
	if err != nil {
		return "", err
	}
	return r.Agent, nil
}
