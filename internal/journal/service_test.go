// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package journal

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/fivewire/fivewire/conformance/fault"
	"github.com/fivewire/fivewire/internal/lease"
	"github.com/fivewire/fivewire/store"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A work is the record of a run.
type work struct {
	Owner  lease.Owner // empty after the end
	Result string
}

var errEnded = errors.New("ended")

// A process runs the handler of its service for each work that it owns.
type process struct {
	*Table
	db      store.Store
	plan    *fault.Plan
	lease   *lease.Lease
	handler func(ctx context.Context, p *process, r *Run) (string, error)
	o       RunOptions
	wg      sync.WaitGroup

	mu     sync.Mutex
	starts map[string]int // of handlers, by id
	parked map[string]int // runs that Adopt kept
}

// startsOf returns the number of starts of the handler of a work.
func (p *process) startsOf(id string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.starts[id]
}

func (p *process) parkedOf(id string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.parked[id]
}

type handler func(ctx context.Context, p *process, r *Run) (string, error)

func newProcess(t require.TestingT, db store.Store, h handler, rules ...fault.Rule) *process {
	p := &process{plan: &fault.Plan{Rules: rules}, handler: h, starts: map[string]int{}, parked: map[string]int{}}
	p.start(t, db, 0)
	return p
}

func (p *process) start(t require.TestingT, db store.Store, ttl time.Duration) {
	quiet := slog.New(slog.DiscardHandler)
	p.db = fault.Store(db, p.plan)
	l, err := lease.Acquire(context.Background(), p.db, lease.Options{Prefix: "x/", TTL: ttl, Logger: quiet})
	require.NoError(t, err)
	p.lease, p.Table = l, New(p.db, l, "x/", quiet)
	l.Adopt("work", p.adopt)
}

// create begins a work and runs its handler.
func (p *process) create(ctx context.Context, id string) error {
	epoch := p.lease.Context()
	owner, err := p.lease.Start(epoch, "work", id)
	if err != nil {
		return err
	}
	_, err = p.edit(epoch, id, func(w *work) error { // until the outcome is known, or a survivor takes over
		if w.Owner != owner && *w != (work{}) {
			return store.ErrExists
		}
		w.Owner = owner
		return nil
	})
	if err != nil && !errors.Is(err, store.ErrUnknown) {
		_ = p.lease.Finish(epoch, owner, "work", id)
	}
	if err == nil {
		p.wg.Go(func() { p.run(epoch, id, owner) })
	}
	return err
}

func (p *process) edit(ctx context.Context, id string, change func(w *work) error) (w work, err error) {
	_, err = store.Modify(ctx, p.db, "x/record/"+id, 0, func(old store.Entry, found bool) ([]byte, error) {
		w = work{}
		if found {
			_ = json.Unmarshal(old.Value, &w)
		}
		if err := change(&w); err != nil {
			return nil, err
		}
		return json.Marshal(w)
	})
	return w, err
}

func (p *process) get(ctx context.Context, id string) (w work, err error) {
	e, err := p.db.Get(ctx, "x/record/"+id)
	if err == nil {
		e, err = store.Content(e)
	}
	if err == nil {
		err = json.Unmarshal(e.Value, &w)
	}
	return w, err
}

// run runs the handler and ends the work.
func (p *process) run(ctx context.Context, id string, owner lease.Owner) {
	r, err := p.Open(ctx, id, p.o)
	for errors.Is(err, ErrBusy) && ctx.Err() == nil { // a handler of an earlier epoch has not returned
		time.Sleep(time.Second)
		r, err = p.Open(ctx, id, p.o)
	}
	result := ""
	if err == nil {
		p.mu.Lock()
		p.starts[id]++
		p.mu.Unlock()
		result, err = p.handler(r.Context(), p, r)
		cause := context.Cause(r.Context())
		r.Close()
		if cause == ErrParked && p.isParking.Load() {
			return
		}
		if cause == ErrParked {
			_, _ = p.keep(ctx, id, owner)
			return
		}
		if cause != nil {
			return
		}
	}
	if err != nil {
		result = "error: " + err.Error()
	}
	for ctx.Err() == nil {
		_, err = p.edit(ctx, id, func(w *work) error {
			if w.Owner != owner {
				return lease.ErrLost
			}
			*w = work{Result: result}
			return nil
		})
		switch {
		case errors.Is(err, lease.ErrLost), errors.Is(err, store.ErrClosed):
			return
		case err == nil:
			_ = p.Expire(ctx, id, time.Hour)
			_ = p.lease.Finish(ctx, owner, "work", id)
			return
		}
		time.Sleep(time.Second)
	}
}

// keep keeps a work whose run waits, and runs the handler of another one.
func (p *process) keep(ctx context.Context, id string, owner lease.Owner) (isParked bool, err error) {
	isParked, _, err = p.Adopt(ctx, id, func() { p.wg.Go(func() { p.run(ctx, id, owner) }) })
	if err == nil && !isParked {
		p.wg.Go(func() { p.run(ctx, id, owner) })
	}
	if isParked {
		p.mu.Lock()
		p.parked[id]++
		p.mu.Unlock()
	}
	return isParked, err
}

func (p *process) adopt(ctx context.Context, id string, _, to lease.Owner) (lease.Found, error) {
	found := lease.Taken
	_, err := p.edit(ctx, id, func(w *work) error {
		found = lease.Taken
		isAlive, err := p.lease.Alive(ctx, w.Owner)
		switch {
		case err != nil:
			return err
		case *w == work{}:
			found = lease.Absent
			return store.ErrUnchanged
		case w.Owner == "":
			found = lease.Ended
			return store.ErrUnchanged
		case isAlive && w.Owner != to:
			found = lease.Held
			return store.ErrUnchanged
		}
		w.Owner = to
		return nil
	})
	if err == nil && found == lease.Ended {
		err = p.Expire(ctx, id, time.Hour)
	}
	if err != nil || found != lease.Taken {
		return found, err
	}
	_, err = p.keep(ctx, id, to)
	return found, err
}

func (p *process) deliver(ctx context.Context, id, inputID, data string) (bool, error) {
	return p.Deliver(ctx, id, inputID, []byte(data), func(ctx context.Context) (lease.Owner, error) {
		w, err := p.get(ctx, id)
		return w.Owner, err
	})
}

// shutdown ends a process in order.
func (p *process) shutdown() {
	p.Park()
	p.wg.Wait()
	_ = p.lease.Release(context.Background())
	p.plan.Close()
}

// crash ends a process without any change of the store.
func (p *process) crash() {
	p.plan.Crash()
	_ = p.lease.Release(context.Background())
	p.plan.Close()
}

// inProcesses runs f with processes on one store, the first of which has faults.
func inProcesses(t *testing.T, n int, h handler, f func(t *testing.T, p []*process), rules ...fault.Rule) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		t.Cleanup(func() { time.Sleep(2 * time.Minute) }) // changes in doubt are repeated for a minute
		db := store.NewMemory()
		processes := []*process{newProcess(t, db, h, rules...)}
		for range n - 1 {
			processes = append(processes, newProcess(t, db, h))
		}
		for _, p := range processes {
			t.Cleanup(p.crash)
		}
		f(t, processes)
	})
}

// requireResult waits for the end of a work.
func requireResult(t *testing.T, p *process, id, want string) {
	t.Helper()
	require.Equal(t, want, awaitResult(p, id, time.Minute), "result of %s", id)
}

func awaitResult(p *process, id string, limit time.Duration) string {
	for end := time.Now().Add(limit); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		w, err := p.get(context.Background(), id)
		if err == nil && w.Owner == "" {
			return w.Result
		}
	}
	return "not ended"
}
