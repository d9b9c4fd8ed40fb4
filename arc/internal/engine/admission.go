// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"sync"
	"time"

	"github.com/fivewire/fivewire/internal/budget"
)

// A Place is what a running call or task holds: the place at its agent and its reservations.
type Place struct {
	router *Router
	agent  string // empty without a place at an agent
	holds  [2]budget.Hold
	isKept bool // a task has taken it over
}

// runBytes is the memory of a running task.
const runBytes = 8 << 10

// Reserve takes units of a resource for a call.
func (p *Place) Reserve(scope *budget.Scope, r budget.Resource, n int64) (err error) {
	i := 0
	if p.holds[0] != (budget.Hold{}) {
		i = 1
	}
	p.holds[i], err = scope.Reserve(r, n)
	return err
}

// ReserveRun takes the resources of a running task.
func (p *Place) ReserveRun(scope *budget.Scope) error {
	err := p.Reserve(scope, budget.Items, 1)
	if err == nil {
		err = p.Reserve(scope, budget.Memory, runBytes)
	}
	if err != nil {
		p.releaseHolds()
	}
	return err
}

// Enter notes the place that a call has at an agent.
func (p *Place) Enter(r *Router, agent string) { p.router, p.agent = r, agent }

// IsKept reports whether a task has taken the place over.
func (p *Place) IsKept() bool { return p.isKept }

// Release gives everything back, unless a task has taken it over.
func (p *Place) Release() {
	if p.isKept {
		return
	}
	p.free()
	p.agent = ""
	p.releaseHolds()
}

func (p *Place) releaseHolds() {
	p.holds[0].Release()
	p.holds[1].Release()
	p.holds = [2]budget.Hold{}
}

// free gives the place at the agent back, and enter takes it again, free or not.
func (p *Place) free() {
	if p.agent != "" {
		p.router.Done(p.agent)
	}
}

func (p *Place) enter() {
	if p.agent != "" {
		p.router.Enter(p.agent)
	}
}

// placeRetry is the Retry-After of a refused task: the end of work is not known.
const placeRetry = 5 * time.Second

// A placeQueue has the places of running tasks of a process (ARC-D80).
type placeQueue struct {
	mu    *sync.Mutex
	queue *Places // guarded by mu
}

// A ticket is a task that waits for a place, without a goroutine.
type ticket struct {
	Ticket
	t   *task
	run *Run // nil until the task is created; guarded by t.turn
}

func newPlaceQueue(l Limits) placeQueue { return placeQueue{new(sync.Mutex), NewPlaces(l)} }

// enter takes a place for a task, or returns a ticket. An accepted task of a failed process is never refused.
func (p *placeQueue) enter(e *Tasks, t *task, q *Request, priority int, isAccepted bool) (*ticket, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.queue.Enter(q.Account) {
		return nil, nil
	}
	w := &ticket{t: t, Ticket: Ticket{Principal: q.Account, Priority: priority}}
	w.Start = func() { go e.begin(w) }
	return w, overPlaces(q.Target, p.queue.Wait(&w.Ticket, isAccepted))
}

func (p *placeQueue) resume(agent, account string, isBounded bool) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return overPlaces(agent, p.queue.Resume(account, isBounded))
}

// release gives a place back, and starts the next task.
func (p *placeQueue) release(account string) {
	p.mu.Lock()
	next := p.queue.Leave(account)
	p.mu.Unlock()
	if next != nil {
		next.Start()
	}
}

func (p *placeQueue) remove(t *ticket) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.queue.Remove(&t.Ticket)
}

// undo ends the admission of a task that is not created. If a ticket has got its place, begin gives the place back.
func (p *placeQueue) undo(account string, t *ticket) {
	if t == nil {
		p.release(account)
	} else {
		p.remove(t)
	}
}

func overPlaces(agent string, r *Refusal) error {
	if r == nil {
		return nil
	}
	limit := int64(r.Limit)
	return Refused(agent, &budget.Error{Resource: budget.Work, Scope: r.Scope, Limit: limit, Used: limit, RetryAfter: placeRetry})
}

var priorities = map[string]int{"URGENT": 2, "HIGH": 1, "LOW": -1}

// queueLocked keeps a run until its task gets a place. t.turn must be held.
func (e *Tasks) queueLocked(t *task, w *ticket, r *Run) {
	w.run, t.ticket = r, w
	r.owner = t.rec.Owner
	e.acquire(t.id)
}

// begin runs a task that has got its place, unless it has ended, has another owner or was not created.
func (e *Tasks) begin(w *ticket) {
	t := w.t
	t.turn.Lock()
	defer e.unlock(t)
	if w.run != nil {
		defer e.release(t)
	}
	if w.run != nil && t.ticket == w && t.rec.Owner != w.run.owner {
		e.dismissLocked(t)
	}
	if w.run == nil || t.ticket != w {
		e.places.release(w.Principal)
		return
	}
	t.ticket = nil
	w.run.startLocked()
}

// dismissLocked removes a waiting task that has ended or has another owner. t.turn must be held.
func (e *Tasks) dismissLocked(t *task) {
	w := t.ticket
	if w == nil {
		return
	}
	t.ticket = nil
	w.run.place.Release()
	owner, rec := w.run.owner, t.rec
	t.effects.add(func() { e.finishTask(t, owner, rec) })
	if e.places.remove(w) { // otherwise begin gives the place and the reference back
		e.release(t)
	}
}

// pausePlace gives the places of a run back, if it has them.
func (r *Run) pausePlace() {
	r.placing.Lock()
	had := r.hasPlace
	r.hasPlace = false
	r.placing.Unlock()
	if had {
		r.place.free()
		r.e.places.release(r.request.Account)
	}
}

// returnPlace is pausePlace for a run that has not continued. It continues after a change of its task.
func (r *Run) returnPlace() {
	r.t.turn.Lock()
	defer r.e.unlock(r.t)
	if r.t.run != r || r.t.rec.Status == inputRequired {
		r.pausePlace()
	}
}

// resumePlace takes the places for a run that has its input, free or not.
func (r *Run) resumePlace() { _, _ = r.takePlace(false) }

func (r *Run) takePlace(isBounded bool) (isTaken bool, err error) {
	r.placing.Lock()
	defer r.placing.Unlock()
	if r.hasPlace || r.hasEnded {
		return false, nil
	}
	if err := r.e.places.resume(r.request.Target, r.request.Account, isBounded); err != nil {
		return false, err
	}
	r.place.enter()
	r.hasPlace = true
	return true, nil
}

// releasePlaces ends what a run holds. It takes nothing later.
func (r *Run) releasePlaces() {
	r.placing.Lock()
	r.hasEnded = true
	r.placing.Unlock()
	r.pausePlace()
	r.place.releaseHolds()
}

// A heldPlace is the place that a message has taken for the task that it resumes. The zero value has no place.
type heldPlace struct {
	e       *Tasks
	run     *Run // that has it, or nil
	account string
}

// reservePlace takes the place of a task of this process that a message resumes.
func (e *Tasks) reservePlace(q *Request, r *record, run *Run) (heldPlace, error) {
	switch {
	case r.Status != inputRequired, r.Owner != e.lease.Owner() && !r.IsParked:
		return heldPlace{}, nil
	case run != nil:
		isTaken, err := run.takePlace(true)
		if !isTaken {
			return heldPlace{}, err
		}
		return heldPlace{e, run, ""}, nil
	}
	account := r.account()
	if err := e.places.resume(q.Target, account, true); err != nil {
		return heldPlace{}, err
	}
	return heldPlace{e, nil, account}, nil
}

// undo gives the place back, unless the run has continued since.
func (h heldPlace) undo() {
	switch {
	case h.run != nil:
		h.run.returnPlace()
	case h.e != nil:
		h.e.places.release(h.account)
	}
}

// isFree reports whether the place is not that of a run.
func (h heldPlace) isFree() bool { return h.e != nil && h.run == nil }
