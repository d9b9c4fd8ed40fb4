// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package fault

import (
	"context"
	"slices"
	"sync"
	"time"
)

// Crash ends the process in the eyes of the store: every call fails with ErrCrashed, those in
// progress too, whose changes may have been made. Data is kept, and pending changes of
// LandLater still arrive. A process that starts again has a new Plan.
func (p *Plan) Crash() {
	p.mu.Lock()
	calls := p.active
	p.active, p.crashed = nil, true
	p.mu.Unlock()
	for c := range calls {
		c.cancel()
	}
}

// Pause stops the process in the eyes of the store until Resume: calls in progress reach the
// store, but their answers are withheld; later calls are withheld too. A withheld call ends
// with its context.
func (p *Plan) Pause() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.resumed == nil {
		p.resumed = make(chan struct{})
	}
}

// Resume ends a Pause.
func (p *Plan) Resume() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.resumed != nil {
		close(p.resumed)
		p.resumed = nil
	}
}

// Flush makes the pending changes of LandLater in the order of their calls.
func (p *Plan) Flush() {
	for _, l := range p.pending() {
		l.fire()
		<-l.done
	}
}

// Close is Crash, drops the pending changes of LandLater, and waits for their goroutines.
func (p *Plan) Close() {
	p.Crash()
	for _, l := range p.pending() {
		l.cancel()
		<-l.done
	}
}

func (p *Plan) pending() []*landing {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.landings)
}

// A landing is a change that arrives later.
type landing struct {
	fire   func() // makes it arrive
	cancel context.CancelFunc
	done   chan struct{}
}

// land makes a change after delay. It reports false if too many changes are pending, or the
// process has crashed.
func (p *Plan) land(ctx context.Context, delay time.Duration, change func(ctx context.Context)) bool {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	fired := make(chan struct{})
	l := &landing{fire: sync.OnceFunc(func() { close(fired) }), cancel: cancel, done: make(chan struct{})}
	p.mu.Lock()
	isFull := p.crashed || len(p.landings) >= maxLandings
	if !isFull {
		p.landings = append(p.landings, l)
	}
	p.mu.Unlock()
	if isFull {
		cancel()
		return false
	}
	go func() {
		defer close(l.done)
		defer cancel()
		defer p.remove(l)
		timer := time.NewTimer(delay)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-fired:
		case <-ctx.Done():
			return
		}
		change(ctx)
	}()
	return true
}

func (p *Plan) remove(l *landing) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.landings = slices.DeleteFunc(p.landings, func(other *landing) bool { return other == l })
}

// enter begins a call. The returned context ends with ctx and at Crash, and must be released.
func (p *Plan) enter(ctx context.Context) (_ context.Context, release func(), err error) {
	if err := ctx.Err(); err != nil {
		return nil, nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	c := &call{cancel}
	p.mu.Lock()
	isCrashed := p.crashed
	if !isCrashed {
		if p.active == nil {
			p.active = make(map[*call]struct{})
		}
		p.active[c] = struct{}{}
	}
	p.mu.Unlock()
	if isCrashed {
		cancel()
		return nil, nil, ErrCrashed
	}
	release = func() {
		cancel()
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.active, c)
	}
	if err := p.hold(ctx); err != nil {
		release()
		return nil, nil, err
	}
	return ctx, release, nil
}

// hold waits for Resume if the process is paused.
func (p *Plan) hold(ctx context.Context) error {
	for {
		p.mu.Lock()
		isCrashed, resumed := p.crashed, p.resumed
		p.mu.Unlock()
		switch {
		case isCrashed:
			return ErrCrashed
		case resumed == nil:
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		}
		select {
		case <-resumed:
		case <-ctx.Done():
		}
	}
}
