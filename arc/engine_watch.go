// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package arc

import (
	"cmp"
	"context"
	"errors"
	"iter"
	"time"

	"github.com/fivewire/fivewire/arc/internal/wire"
	"github.com/fivewire/fivewire/internal/budget"
	"github.com/fivewire/fivewire/internal/life"
	"github.com/fivewire/fivewire/internal/strictjson"
	"github.com/fivewire/fivewire/store"
)

// The delays between two reads of a watched task that another process may change, and of one that
// runs in this process.
const (
	minWatchDelay = 50 * time.Millisecond
	maxWatchDelay = time.Second
	ownWatchDelay = 5 * time.Second
)

// WatchTask answers a request about one task, such as task.create or task.info, and yields the task:
// first with all its messages and artifacts, and after changes again, with the new ones only. Several
// changes may be one. The sequence ends after the final state of the task, or with the error of the
// request, of a token that has expired, or of the end of ctx or of the server; an outage of the store is
// waited for. It may be ranged over once. A traceId of the task is a member of [Task.Extra].
func (s *Server) WatchTask(ctx context.Context, in *ServerRequest) iter.Seq2[*Task, error] {
	return func(yield func(*Task, error) bool) {
		x := &exchange{in: in}
		id, err := s.watched(ctx, x)
		if err != nil {
			yield(nil, err)
			return
		}
		work, err := s.life.Start(ctx, life.Idle)
		if err != nil {
			yield(nil, s.draining(x))
			return
		}
		defer work.Finish()
		watch := context.Context(work)
		if p := x.principal; p != nil && !p.Expires.IsZero() {
			var cancel context.CancelFunc
			expired := &Error{Code: ErrTokenExpired, Message: ErrTokenExpired.Message()}
			watch, cancel = context.WithDeadlineCause(watch, p.Expires, expired)
			defer cancel()
		}
		s.tasks.watch(watch, id, yield)
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

// A view is what a watcher has seen of a task, and is notified of.
type view struct {
	st      *taskState
	rev     store.Revision
	fresh   []store.Record // items since the view before
	changed <-chan struct{}
	isOwn   bool // no other process changes it
}

// watch yields a task until its end.
func (e *taskEngine) watch(ctx context.Context, id string, yield func(*Task, error) bool) {
	t := e.acquire(id)
	defer e.release(t)
	v := view{st: &taskState{}}
	for delay := minWatchDelay; ; delay = min(2*delay, maxWatchDelay) {
		seen := v.rev
		err := e.view(ctx, t, &v)
		if _, isFailure := errors.AsType[*storeFailure](err); err != nil && (!isFailure || ctx.Err() != nil) {
			yield(nil, cmp.Or(context.Cause(ctx), err))
			return
		}
		if v.rev != seen {
			task, err := v.st.task(split(v.fresh))
			if !yield(task, err) || err != nil || v.st.Status.Final() {
				return
			}
			delay = minWatchDelay
		}
		if v.isOwn {
			delay = ownWatchDelay
		}
		timer := time.NewTimer(delay)
		select {
		case <-v.changed:
		case <-timer.C:
		case <-ctx.Done():
		}
		timer.Stop()
		if ctx.Err() != nil {
			yield(nil, context.Cause(ctx))
			return
		}
	}
}

// view reads a task, and its new items if it has changed.
func (e *taskEngine) view(ctx context.Context, t *liveTask, v *view) error {
	t.mu.Lock()
	ok, err := e.loadLocked(ctx, t, e.s.isShared)
	if err == nil && !ok {
		err = idFault(ErrTaskNotFound, "taskId", t.id)
	}
	if err != nil {
		t.mu.Unlock()
		return err
	}
	if t.changed == nil {
		t.changed = make(chan struct{})
	}
	next := view{st: t.state, rev: t.rev, changed: t.changed, isOwn: !e.s.isShared || e.runsLocked(t)}
	t.mu.Unlock()
	if next.rev != v.rev {
		next.fresh, err = readItemsAfter(ctx, e.db, taskItems(t.id), v.st.last, next.st.last)
	}
	if err == nil {
		*v = next
	}
	return err
}

// signal notifies those that watch the task. t.mu must be held.
func (t *liveTask) signal() {
	if t.changed != nil {
		close(t.changed)
		t.changed = nil
	}
}

// task returns the state with messages and artifacts as task.info would, and with the traceId.
func (st *taskState) task(messages, artifacts []store.Record) (*Task, error) {
	info := st.info(messages, artifacts, &wire.TaskInfo{})
	defer info.free() // what is decoded is a copy
	res, err := decodeResult(MethodTaskInfo, info.b)
	if err != nil {
		return nil, err
	}
	if st.traceID != "" {
		res.Task.Extra = Extra{"traceId": strictjson.AppendString(nil, st.traceID)}
	}
	return res.Task, nil
}

// methodTaskList is the method that a request for [Server.ListTasks] has.
const methodTaskList = "task.list"

// ListTasks yields the tasks of the caller at an agent or a group, without messages and artifacts and in
// the order of their ids. The request, of which no params are read, has the method task.list, whose scopes
// are those of the other methods of tasks. Every stored task is read, and the list counts as a running
// handler of the caller.
func (s *Server) ListTasks(ctx context.Context, in *ServerRequest) iter.Seq2[*Task, error] {
	return func(yield func(*Task, error) bool) {
		x := &exchange{in: in, startTime: time.Now(), agent: s.opts.ID}
		fault := s.admitList(ctx, x)
		defer x.holds.release()
		if fault != nil {
			s.audit(ctx, x, s.failure(x, fault))
			yield(nil, fault)
			return
		}
		x.isRun = true
		defer s.audit(ctx, x, &x.a)
		for entry, err := range s.tasks.db.List(ctx, taskPrefix) {
			var task *Task
			var st *taskState
			if err == nil {
				st, err = decodeTask(entry.Value)
			}
			if err == nil {
				if st.principal != x.call.principalID() || !s.serves(x.call.TargetAgent, st.agent) {
					continue
				}
				task, err = st.task(nil, nil)
			}
			if !yield(task, err) || err != nil {
				return
			}
		}
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
	hold, err := s.scope(&x.call).Reserve(budget.Work, 1)
	if err != nil {
		return overBudget(x.call.TargetAgent, err)
	}
	x.holds[0] = hold
	return nil
}

// serves reports whether an agent is the called one or a member of the called group.
func (s *Server) serves(target, agent string) bool {
	e := s.registry.lookup(agent)
	return agent == target || e != nil && e.Group == target
}
