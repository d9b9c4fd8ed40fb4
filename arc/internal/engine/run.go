// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fivewire/fivewire/arc/internal/wire"
	"github.com/fivewire/fivewire/internal/guard"
	"github.com/fivewire/fivewire/internal/journal"
	"github.com/fivewire/fivewire/internal/lease"
	"github.com/fivewire/fivewire/internal/life"
	"github.com/fivewire/fivewire/internal/strictjson"
	"github.com/fivewire/fivewire/store"
)

// A Run is a running task. Its methods are safe for concurrent use. They fail after the end of the task.
type Run struct {
	e         *Tasks
	t         *task
	request   Request // without its params
	message   []byte
	metadata  []byte
	isRerun   bool
	owner     lease.Owner
	ctx       context.Context // of the request, without its end
	work      life.Work       // and context of the handler
	unwatch   func() bool     // ends the supervision of the lease; nil with a private store
	epoch     context.Context // of the lease; nil with a private store
	place     Place
	isWaiting atomic.Bool

	consumed int         // inputs; guarded by t.mu
	inputs   []uint64    // positions of those that were found and are not consumed; used by one WaitInput at a time
	readTo   uint64      // position of the last item among which they were found; likewise
	earlier  *replay     // nil until used; guarded by t.turn
	limit    *time.Timer // of the time in this state; guarded by t.turn

	placing  sync.Mutex // guards the two below
	hasPlace bool       // it has one of the places of running tasks; not while it waits
	hasEnded bool

	waiting sync.Mutex  // held for park and unpark
	waits   int         // of the handler, at once; guarded by waiting
	isLeft  atomic.Bool // to the next owner: a sleep has ended in a shutdown

	opening objectLock   // guards the two below
	journal *journal.Run // nil until opened
	isOver  bool         // the handler has ended
}

// Request returns the request that created the task.
func (r *Run) Request() *Request { return &r.request }

// Context returns the context of the handler.
func (r *Run) Context() context.Context { return &r.work }

// ID returns the id of the task.
func (r *Run) ID() string { return r.t.id }

// Message returns the initial message, and Metadata what the caller gave along, or nil.
func (r *Run) Message() []byte { return r.message }

// Metadata is the metadata of the task.
func (r *Run) Metadata() []byte { return r.metadata }

// Redelivered reports whether an earlier run of the task was cut off.
func (r *Run) Redelivered() bool { return r.isRerun }

// Priority returns how urgent the task is.
func (r *Run) Priority() string { return r.record().Priority }

func (r *Run) record() *record {
	return r.t.peek().rec
}

// Info returns the result of task.info.
func (r *Run) Info(ctx context.Context) ([]byte, error) {
	rec := r.record()
	list, err := r.e.readItems(ctx, r.t.items, 0, rec.Last)
	if err != nil {
		return nil, err
	}
	messages, artifacts := split(list)
	return rec.info(nil, messages, artifacts, &wire.TaskInfo{}), nil
}

// newRun returns a run of a task for the first time. ctx does not end.
func (e *Tasks) newRun(ctx context.Context, t *task, q *Request, message, metadata []byte) *Run {
	r := &Run{e: e, t: t, request: *q, message: message, metadata: metadata, ctx: ctx}
	r.request.Params = nil // it may be large
	r.place, q.Place.isKept = *q.Place, true
	r.request.Place = &r.place
	return r
}

// startLocked begins the run, which has a place. t.turn must be held.
func (r *Run) startLocked() {
	r.e.acquire(r.t.id)
	r.owner = r.t.rec.Owner
	r.hasPlace = true                                                // nothing else has the run yet
	if err := r.work.Start(r.ctx, r.e.life, life.Part); err != nil { // in a shutdown: the next server takes the task over
		r.releasePlaces()
		r.e.release(r.t)
		return
	}
	r.t.setRun(r)
	r.schedule(r.t.rec)
	if r.e.isShared {
		r.epoch = r.e.lease.Context()
		if r.e.lease.Owner() != r.owner {
			r.work.Cancel(lease.ErrLost)
		}
		r.unwatch = context.AfterFunc(r.epoch, func() { r.work.Cancel(context.Cause(r.epoch)) })
	}
	go r.work.Run("task handler", r.serve, func(error) {})
}

func (t *task) setRun(r *Run) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.run = r
}

var errGoexit = errors.New("arc: the handler of a task called runtime.Goexit")

// serve is the goroutine of a task.
func (r *Run) serve(context.Context) error {
	defer r.e.release(r.t)
	defer r.releasePlaces()
	if r.unwatch != nil {
		defer r.unwatch()
	}
	err := errGoexit
	defer func() {
		if err == nil && r.record().Status == inputRequired { // the end of the run ends the wait for the input
			err = errReturned(r.t.id, inputRequired)
		}
		r.closeJournal()
		r.finish(err)
	}()
	if err = r.begin(); err == nil {
		err = errGoexit
		err = guard.Call("task handler", func() error { return r.e.opts.Serve(r) })
	}
	return nil
}

func errReturned(id, status string) error {
	return fmt.Errorf("arc: the handler of task %s returned while it was %s", id, status)
}

func (r *Run) begin() (err error) {
	if r.isRerun && r.record().Status == working {
		return nil
	}
	c := change{Change: Change{Action: Start, At: Now()}}
	if c.expected, err = r.e.opts.Estimate(r); err != nil {
		return err
	}
	return r.apply(&c)
}

// apply makes a change by the run.
func (r *Run) apply(c *change) error {
	r.t.turn.Lock()
	defer r.e.unlock(r.t)
	return r.applyLocked(c)
}

// applyLocked makes a change by the run. t.turn must be held.
func (r *Run) applyLocked(c *change) error {
	if errors.Is(context.Cause(&r.work), r.e.opts.Closed) && !r.t.rec.IsFinal() {
		return r.e.opts.Closed // cut off with the server: the task waits for the next one as it is
	}
	c.Owner = r.owner
	c.attempt = c.attempt.OrNew(r.e.isShared)
	ctx, cancel := r.durable()
	defer cancel()
	return r.e.applyLocked(ctx, r.t, c)
}

// durable returns the context of changes by the run, which ends with the lease and when the server is cut off.
func (r *Run) durable() (context.Context, func()) {
	ctx := r.e.durable()
	if !r.e.isShared {
		return ctx, func() {}
	}
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(&r.work, func() {
		if cause := context.Cause(&r.work); errors.Is(cause, r.e.opts.Closed) {
			cancel(cause)
		}
	})
	return ctx, func() {
		stop()
		cancel(nil)
	}
}

// AddMessage adds a message, as JSON, unless an earlier run has added it.
func (r *Run) AddMessage(text []byte) error {
	c := change{Change: Change{Action: AddMessage, At: Now()}, kind: itemMessage, item: text}
	r.t.turn.Lock()
	defer r.e.unlock(r.t)
	if r.isRerun {
		p, err := r.replayLocked()
		if err != nil || p.match(itemMessage, text) {
			return err
		}
	}
	return r.applyLocked(&c)
}

// AddArtifact adds an artifact unless an earlier run has added it. The function returns it as JSON with an id; an
// empty one is replaced.
func (r *Run) AddArtifact(id string, encode func(id string) ([]byte, error)) error {
	text, err := encode(id)
	if err != nil {
		return err
	}
	c := change{Change: Change{Action: AddArtifact, At: Now()}, kind: itemNamedArtifact, item: text}
	r.t.turn.Lock()
	defer r.e.unlock(r.t)
	p, err := r.replayLocked()
	if err != nil {
		return err
	}
	if id != "" {
		if isEarlier, err := p.use(id); isEarlier || err != nil {
			return err
		}
		if err = r.applyLocked(&c); err != nil {
			delete(p.names, id)
		}
		return err
	}
	if p.match(itemArtifact, text) {
		return nil
	}
	id = p.name(r.t.rec.Artifacts + 1)
	if c.item, err = encode(id); err != nil {
		return err
	}
	c.kind = itemArtifact
	if err = r.applyLocked(&c); err == nil {
		p.names[id] = false
	}
	return err
}

// replayLocked returns the items of earlier runs. t.turn must be held.
func (r *Run) replayLocked() (*replay, error) {
	if r.earlier == nil {
		var list []store.Record
		if r.isRerun {
			err := r.e.persist(r.e.durable(), func(ctx context.Context) (err error) {
				list, err = r.e.readItems(ctx, r.t.items, 0, r.t.rec.Last)
				return err
			})
			if err != nil {
				return nil, err
			}
		}
		r.earlier = newReplay(list)
	}
	return r.earlier, nil
}

// Step runs f once in the life of a task and returns its result.
func (r *Run) Step(ctx context.Context, name string, f func(ctx context.Context, stepID string) ([]byte, error)) ([]byte, error) {
	j, err := r.openJournal()
	if err != nil {
		return nil, err
	}
	return j.Step(ctx, name, f)
}

// Sleep waits for d once in the life of a task: a later run waits for the rest. While it sleeps, the run needs no place, and no
// shutdown waits for it.
func (r *Run) Sleep(ctx context.Context, name string, d time.Duration) error {
	j, err := r.openJournal()
	if err == nil {
		err = j.Sleep(ctx, name, d)
	}
	if err == nil && r.isLeft.Load() {
		return r.e.opts.Closed
	}
	return err
}

// onWait is called before and after each wait of the journal.
func (r *Run) onWait(isWaiting bool) {
	if isWaiting {
		r.park()
	} else if r.unpark() != nil {
		r.isLeft.Store(true)
	}
}

// openJournal opens the journal of the run before its first use. The record has to mention it (ARC-D74).
func (r *Run) openJournal() (*journal.Run, error) {
	r.opening.Lock()
	defer r.opening.Unlock()
	switch {
	case r.isOver:
		return nil, r.refusal()
	case r.journal != nil:
		return r.journal, nil
	}
	if err := r.noteJournal(); err != nil {
		return nil, err
	}
	j, err := r.e.steps.Open(&r.work, r.t.id, journal.RunOptions{OnWait: r.onWait})
	if err == nil {
		r.journal = j
	}
	return j, err
}

// refusal returns the error of a run whose handler has ended.
func (r *Run) refusal() error {
	r.t.turn.Lock()
	defer r.e.unlock(r.t)
	if rec := r.t.rec; rec.IsFinal() {
		return TaskRefusal(rec.ID, rec.Status, Resume)
	}
	return r.e.opts.Closed
}

func (r *Run) noteJournal() error {
	r.t.turn.Lock()
	defer r.e.unlock(r.t)
	if r.t.rec.IsJournaled {
		return nil
	}
	ctx, cancel := r.durable()
	defer cancel()
	return r.e.changeLocked(ctx, r.t, 0, func(rec *record) (*record, error) {
		switch {
		case rec.Owner != r.owner:
			return nil, ErrTakenOver
		case rec.IsFinal(): // it has a lifetime
			return nil, TaskRefusal(rec.ID, rec.Status, Resume)
		}
		next := *rec
		next.IsJournaled = true
		return &next, nil
	})
}

// closeJournal closes the journal, which the handler must not open later.
func (r *Run) closeJournal() {
	r.opening.Lock()
	defer r.opening.Unlock()
	r.isOver = true
	if r.journal != nil {
		r.journal.Close()
	}
}

// The delays before the end of a task is written again after a failure of the store.
const (
	minEndDelay = 100 * time.Millisecond
	maxEndDelay = 30 * time.Second
)

// finish brings the task to its end. It repeats the change until the store takes it or the process loses the task.
func (r *Run) finish(err error) {
	defer r.detach()
	c := change{Change: Change{Action: Complete, At: Now()}}
	if err != nil {
		r.fail(&c, &r.work, err) // the error of an ended context is no failure
	}
	for delay := minEndDelay; ; delay = min(2*delay, maxEndDelay) {
		failed := r.end(&c, err)
		if failed == nil {
			return
		}
		r.e.log.WarnContext(r.ctx, "arc: end of task not stored", "task", r.t.id, "delay", delay, "err", failed)
		select {
		case <-time.After(delay):
		case <-r.work.Done(): // the server was closed, or another request has ended the task
			if failed = r.end(&c, failed); failed != nil {
				r.e.log.ErrorContext(r.ctx, "arc: task not ended", "task", r.t.id, "err", failed)
			}
			return
		}
	}
}

// fail makes the change of the end one of a failure.
func (r *Run) fail(c *change, ctx context.Context, err error) {
	c.Action = Fail
	f := r.e.opts.Fault(ctx, &r.request, err)
	c.Reason, c.fault = f.Message, f.JSON()
}

// end makes the change of the end. It returns an error if the store does not take it.
func (r *Run) end(c *change, err error) error {
	r.t.turn.Lock()
	defer r.e.unlock(r.t)
	if r.t.rec.IsFinal() || err != nil && r.isCut() {
		return nil // in the second case the next owner decides
	}
	c.Owner = r.owner
	ctx, cancel := r.durable()
	defer cancel()
	err = r.e.applyLocked(ctx, r.t, c)
	if c.Action == Complete && isCode(err, wire.InvalidTaskTransition) {
		r.fail(c, r.ctx, errReturned(r.t.id, r.t.rec.Status))
		err = r.e.applyLocked(ctx, r.t, c)
	}
	if _, isRefused := errors.AsType[*wire.Fault](err); isRefused || errors.Is(err, ErrTakenOver) || r.t.rec.IsFinal() {
		return nil // its work in another process decides, or the task has ended
	}
	return err
}

// isCut reports whether the work was cut off with its process or epoch, or by another owner. A change that failed with
// the epoch may return before the work is canceled.
func (r *Run) isCut() bool {
	cause := context.Cause(&r.work)
	return errors.Is(cause, r.e.opts.Closed) || errors.Is(cause, lease.ErrLost) || errors.Is(cause, ErrTakenOver) ||
		r.epoch != nil && r.epoch.Err() != nil
}

// detach removes the run from its task.
func (r *Run) detach() {
	e, t := r.e, r.t
	t.turn.Lock()
	defer e.unlock(t)
	t.setRun(nil)
	if r.limit != nil {
		r.limit.Stop()
	}
	rec := t.rec
	switch {
	case !e.isShared:
	case rec.IsFinal() || rec.Owner != r.owner:
		t.effects.add(func() { e.finishTask(t, r.owner, rec) })
	case errors.Is(context.Cause(&r.work), ErrTakenOver): // and given back, by an input that came here
		_ = e.life.Go("task taken back", func(ctx context.Context) {
			_ = e.persist(ctx, func(ctx context.Context) error {
				_, err := e.adopt(ctx, rec.Agent, t.id, r.owner)
				return err
			})
		})
	}
}

// finishTask removes a task from the index, after its events and its messages. After an error the next owner of the entry
// does that.
func (e *Tasks) finishTask(t *task, owner lease.Owner, r *record) {
	if len(r.Pending) > 0 && t.flushed() < r.Events {
		if err := e.queue(e.durable(), t, r); err != nil {
			return
		}
	}
	if r.IsFinal() {
		err := e.persist(e.durable(), func(ctx context.Context) error { return e.expireItems(ctx, t, r) })
		if err != nil {
			return
		}
	}
	e.finishWork(e.durable(), owner, r.Agent, r.ID)
}

// schedule starts the time limit of a state. t.turn must be held.
func (r *Run) schedule(rec *record) {
	switch {
	case r == nil || rec.Status == submitted:
	case r.limit != nil:
		r.limit.Reset(r.e.timeLeft(rec))
	default:
		r.limit = time.AfterFunc(r.e.timeLeft(rec), func() { r.e.review(rec.ID) })
	}
}

// isCode reports whether an error is a fault with a code.
func isCode(err error, code int64) bool {
	f, ok := errors.AsType[*wire.Fault](err)
	return ok && f.Code == code
}

func faultCode(fault json.RawMessage) int64 {
	code, _ := strictjson.Value(fault).Get("code").Int()
	return code
}
