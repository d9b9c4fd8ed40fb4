// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package arc

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/fivewire/fivewire/store"
)

// toldTTL is the lifetime of messages between processes that share a store: changes
// to tasks that the receiver runs.
const toldTTL = time.Hour

func leaseKey(instance string) string   { return "arc/instance/" + instance }
func toldStream(instance string) string { return "arc/told/" + instance }

// presence is the goroutine by which a process is known to the others.
type presence struct {
	mu        sync.Mutex
	stop      context.CancelFunc // nil while there is none; guarded by mu
	done      chan struct{}
	isStopped bool // after leave; guarded by mu
}

// announce writes the lease of this process before its first task. A private store
// needs no lease.
func (e *taskEngine) announce() {
	if !e.s.shared {
		return
	}
	p := &e.presence
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stop != nil || p.isStopped {
		return
	}
	ctx, stop := context.WithCancel(context.Background())
	p.stop, p.done = stop, make(chan struct{})
	e.renew(ctx)
	var wg sync.WaitGroup
	wg.Go(func() { regularly(ctx, e.s.opts.Persistence.LeaseTTL/3, e.renew) })
	wg.Go(func() { regularly(ctx, e.s.opts.Persistence.LeaseTTL, e.lookAtAll) }) // by itself: it may take longer than a lease
	wg.Go(func() { e.listen(ctx) })
	go func() {
		wg.Wait()
		close(p.done)
	}()
}

// leave ends the presence: the tasks that are left may be taken over at once.
func (e *taskEngine) removeLease() {
	p := &e.presence
	p.mu.Lock()
	p.isStopped = true
	stop, done := p.stop, p.done
	p.mu.Unlock()
	if stop == nil {
		return
	}
	stop()
	<-done
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stop != nil {
		p.stop = nil
		if err := e.db.Delete(context.Background(), leaseKey(e.s.opts.Persistence.InstanceID), 0); err != nil {
			e.s.opts.Logger.Warn("arc: cannot give up the lease", "error", err)
		}
	}
}

// regularly does something again and again until ctx ends.
func regularly(ctx context.Context, d time.Duration, do func(context.Context)) {
	tick := time.NewTicker(d)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			do(ctx)
		case <-ctx.Done():
			return
		}
	}
}

// renew writes the lease unconditionally.
func (e *taskEngine) renew(ctx context.Context) {
	key := leaseKey(e.s.opts.Persistence.InstanceID)
	for {
		_, err := e.db.Create(ctx, key, nil, e.s.opts.Persistence.LeaseTTL)
		if errors.Is(err, store.ErrExists) {
			var entry store.Entry
			if entry, err = e.db.Get(ctx, key); err == nil {
				_, err = e.db.Update(ctx, key, nil, entry.Revision, e.s.opts.Persistence.LeaseTTL)
			}
			if errors.Is(err, store.ErrConflict) || errors.Is(err, store.ErrNotFound) {
				continue
			}
		}
		if err != nil && ctx.Err() == nil {
			e.s.opts.Logger.ErrorContext(ctx, "arc: cannot renew the lease", "error", err)
		}
		return
	}
}

// leaseExpired reports whether the lease of an instance has expired. Records under
// the id of this instance are from an earlier process, or known here.
func (e *taskEngine) leaseExpired(ctx context.Context, instance string) (bool, error) {
	if instance == e.s.opts.Persistence.InstanceID {
		return true, nil
	}
	_, err := e.db.Get(ctx, leaseKey(instance))
	if errors.Is(err, store.ErrNotFound) {
		return true, nil
	}
	return false, err
}

// tell lets the process that runs a task know at once that the task has changed.
// If this is lost, it looks by itself before long. It is called with the lock of
// the task held.
func (e *taskEngine) notifyOwner(ctx context.Context, t *liveTask) {
	if !e.s.shared || t.state.instance == e.s.opts.Persistence.InstanceID {
		return
	}
	_, err := e.db.Append(ctx, toldStream(t.state.instance), "", []byte(t.id), toldTTL)
	if err != nil {
		e.s.opts.Logger.WarnContext(ctx, "arc: cannot tell the process of a task", "task", t.id, "error", err)
	}
}

// listen handles messages of other processes.
func (e *taskEngine) listen(ctx context.Context) {
	stream := toldStream(e.s.opts.Persistence.InstanceID)
	for ctx.Err() == nil {
		err := e.db.Wait(ctx, stream, 0)
		var records []store.Record
		if err == nil {
			records, err = e.db.Read(ctx, stream, 0, itemPage)
		}
		for _, rec := range records {
			e.reloadTask(ctx, string(rec.Value))
			if err == nil {
				err = e.db.Ack(ctx, stream, rec.Seq)
			}
		}
		if err != nil && ctx.Err() == nil {
			e.s.opts.Logger.ErrorContext(ctx, "arc: cannot hear other processes", "error", err)
			select { // an engine that fails at once must not keep us busy
			case <-time.After(time.Second):
			case <-ctx.Done():
			}
		}
	}
}

// reloadTask reads a task again after another process has changed it.
func (e *taskEngine) reloadTask(ctx context.Context, id string) {
	t := e.acquire(id)
	defer e.release(t)
	e.lookAgain(ctx, t)
}

// lookAtAll reads all running tasks again: a message may be lost when its sender
// exits.
func (e *taskEngine) lookAtAll(ctx context.Context) {
	e.mu.Lock()
	all := make([]*liveTask, 0, len(e.live))
	for _, t := range e.live {
		t.refs++
		all = append(all, t)
	}
	e.mu.Unlock()
	for _, t := range all {
		if ctx.Err() == nil {
			e.lookAgain(ctx, t)
		}
		e.release(t)
	}
}

// lookAgain tells the work of a task what other processes did to the task.
func (e *taskEngine) lookAgain(ctx context.Context, t *liveTask) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.run == nil {
		return
	}
	ok, err := e.load(ctx, t, true)
	if ok {
		err = e.giveInput(ctx, t)
	}
	if err != nil && ctx.Err() == nil {
		e.s.opts.Logger.ErrorContext(ctx, "arc: cannot read a task again", "task", t.id, "error", err)
	}
}

// giveInput gives the work of a task the message that another process took for
// it. It is called with the lock of the task held.
func (e *taskEngine) giveInput(ctx context.Context, t *liveTask) error {
	if !e.runs(t) || t.state.input <= t.run.inputPosition {
		return nil
	}
	records, err := e.db.Read(ctx, t.items(), t.state.input-1, 1)
	if err != nil || len(records) == 0 || records[0].Seq != t.state.input {
		return err
	}
	m, err := itemOf(records[0])
	if err == nil && m != nil {
		t.run.deliver(t.state.input, m)
	}
	return err
}

// WaitRecovered takes over the work of processes whose lease has expired:
// unfinished tasks fail, or run again ([ServerOptions.RerunTasks]), and undelivered
// notifications are sent. It returns the number of adopted tasks.
//
// Call it once after all agents are registered. The lease of a process ends with
// its shutdown, when a new process with the same InstanceID calls WaitRecovered, or
// LeaseTTL after its last renewal. Where several processes share a store, call it
// periodically. Tasks of agents that are not registered here are left unchanged.
func (s *Server) WaitRecovered(ctx context.Context) (int, error) {
	if !s.begin(newWork) {
		return 0, errServerClosed
	}
	defer s.end(newWork)
	e := s.tasks
	e.announce()
	n := 0
	dead := map[string]bool{s.opts.Persistence.InstanceID: true}
	isDead := func(instance string) (bool, error) {
		if d, ok := dead[instance]; ok {
			return d, nil
		}
		expired, err := e.leaseExpired(ctx, instance)
		if err == nil {
			dead[instance] = expired
		}
		return expired, err
	}
	for entry, err := range s.opts.Persistence.Store.List(ctx, taskPrefix) {
		if err != nil {
			return n, fmt.Errorf("arc: recover: %w", err)
		}
		st, err := decodeTask(entry.Value)
		if err != nil {
			s.opts.Logger.ErrorContext(ctx, "arc: cannot read a task", "key", entry.Key, "error", err)
			continue
		}
		expired, err := isDead(st.instance)
		if err != nil {
			return n, fmt.Errorf("arc: recover: %w", err)
		}
		if !expired {
			continue
		}
		took, err := e.recoverTask(ctx, st.id, st.instance)
		if err != nil {
			return n, fmt.Errorf("arc: recover: task %s: %w", st.id, err)
		}
		if took {
			n++
		}
	}
	return n, s.recoverOutbox(ctx, isDead)
}

// recoverTask takes over one task of a process whose lease has expired.
func (e *taskEngine) recoverTask(ctx context.Context, id, from string) (bool, error) {
	t := e.acquire(id)
	kept := false
	defer func() {
		if !kept {
			e.release(t)
		}
	}()
	t.mu.Lock()
	defer t.mu.Unlock()
	if e.s.ctx.Err() != nil {
		return false, errServerClosed // what runs no more is for the next server
	}
	if ok, err := e.load(ctx, t, true); !ok || t.run != nil {
		return false, err
	}
	if t.state.instance != from {
		return false, nil // another process was faster
	}
	if t.state.status.Final() {
		// The end may be stored but not yet queued for subscribers.
		return false, e.tellEnd(ctx, t)
	}
	entry := e.s.registry.lookup(t.state.agent)
	if entry == nil || entry.TaskHandler == nil {
		return false, nil
	}
	mine := *t.state
	mine.instance = e.s.opts.Persistence.InstanceID
	if err := e.save(ctx, t, &mine); err != nil {
		if errors.Is(err, store.ErrConflict) {
			return false, nil // another process was faster
		}
		return false, err
	}
	var initial *Message
	if e.s.opts.RerunTasks {
		var err error
		if initial, err = e.firstMessage(ctx, t.state); err != nil {
			return false, err
		}
	}
	if initial == nil {
		fault := idFault(ErrTaskExecutionFailed, "taskId", id)
		fault.Message = "Task interrupted by a restart"
		return true, e.apply(ctx, t, &change{action: taskFail, at: now(), fault: fault})
	}
	if t.state.status == TaskInputRequired {
		if err := e.apply(ctx, t, &change{action: taskResume, at: now()}); err != nil {
			return false, err
		}
	}
	call := &Call{Method: MethodTaskCreate, RequestAgent: t.state.requestAgent, TargetAgent: t.state.agent,
		Agent: t.state.agent, TraceID: t.state.traceID, Params: []byte("{}"), entry: entry}
	if t.state.principal != "" {
		call.Principal = &Principal{ID: t.state.principal}
	}
	e.start(context.WithoutCancel(ctx), t, call, initial, true)
	kept = true
	return true, nil
}

// firstMessage returns the initial message of a task, or nil if it is missing.
func (e *taskEngine) firstMessage(ctx context.Context, st *taskState) (*Message, error) {
	records, err := e.db.Read(ctx, taskItems(st.id), 0, 1)
	if err != nil || len(records) == 0 {
		return nil, err
	}
	return itemOf(records[0])
}

// itemOf reads a message of a task.
func itemOf(rec store.Record) (*Message, error) {
	if len(rec.Value) == 0 {
		return nil, nil
	}
	v, err := checkJSON(rec.Value[1:])
	if err != nil {
		return nil, err
	}
	lenient := reader{lenient: true}
	return lenient.message(v), nil
}

// tellEnd queues the final events of a task again. Their numbers prevent
// duplicates.
func (e *taskEngine) tellEnd(ctx context.Context, t *liveTask) error {
	t.subs = nil
	subs, err := e.subscriptions(ctx, t)
	if err != nil {
		return err
	}
	events, first := t.state.lastEvents()
	for _, sub := range subs {
		if sub.static {
			continue
		}
		for i, n := range events {
			if !sub.wants(n.Event) {
				continue
			}
			if err := e.s.outbox.put(ctx, sub, first+uint64(i), n); err != nil {
				return err
			}
		}
		e.s.outbox.finish(sub)
	}
	return nil
}

// recoverOutbox sends the notifications left by processes whose lease has expired,
// and those for static webhooks.
func (s *Server) recoverOutbox(ctx context.Context, isDead func(string) (bool, error)) error {
	for entry, err := range s.opts.Persistence.Store.List(ctx, "arc/sub/") {
		if err != nil {
			return fmt.Errorf("arc: recover: %w", err)
		}
		sub, err := decodeSubscription(entry.Value)
		if err != nil || !sub.Active {
			continue
		}
		if expired, err := isDead(sub.instance); err != nil {
			return fmt.Errorf("arc: recover: %w", err)
		} else if expired {
			s.outbox.signal(sub, func(*sender) {})
		}
	}
	for _, w := range s.opts.StaticWebhooks {
		sub := &subscription{target: w.TargetAgent, static: true}
		sub.ID, sub.CallbackURL, sub.Active = w.ID, w.CallbackURL, true
		s.outbox.signal(sub, func(*sender) {})
	}
	return nil
}
