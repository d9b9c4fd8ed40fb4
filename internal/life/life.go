// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package life starts, drains and cuts the work of a server or a client.
package life

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fivewire/fivewire/internal/guard"
)

// ErrClosed is the default error of Start in a shutdown, and cause of contexts that it cuts.
var ErrClosed = errors.New("life: closed")

// A Kind is how a shutdown treats work.
type Kind uint8

const (
	Request  Kind = iota // refused in a shutdown, which waits for its end
	Part                 // like Request, but accepted as long as a Request or a Part runs
	Query                // like Part, but work of other kinds does not start because of it
	Idle                 // like Request, but a shutdown does not wait for it
	loop                 // accepted until the cut; a shutdown does not wait for it
	numKinds = iota
)

// Options has the hooks of a shutdown, in their order. They honor their contexts.
type Options struct {
	Notify  func(ctx context.Context) // notifies the peers, when Start refuses requests
	Flush   func(ctx context.Context) // empties the queues, after a drain
	Release func(ctx context.Context) // releases the leases, unless work is stuck
	Abandon func(ctx context.Context) // lets the leases expire, if work is stuck; ctx has ended
	Finish  func(ctx context.Context) // after Abandon, once the stuck work has ended
	Grace   time.Duration             // for work to end after a cut; zero means 1 s
	Logger  *slog.Logger              // nil means slog.Default()
	Closed  error                     // replaces ErrClosed, if not nil
}

// A Life counts work. All methods are safe for concurrent use.
type Life struct {
	opts                 Options
	ctx, drained, empty  context.Context // until the cut; until nothing runs; until no work is left
	cancel               context.CancelCauseFunc
	setDrained, setEmpty context.CancelFunc
	done                 chan struct{} // closed at the end of the shutdown
	onPanic              func(error)   // logPanic, made once
	late                 atomic.Int64

	isDraining atomic.Bool // changes with mu locked

	mu         sync.Mutex // guards all below, and all Works
	isCut      bool
	running    [numKinds]int // not parked
	works      map[*Work]struct{}
	hasTimer   bool      // of a report
	nextReport time.Time // at the earliest
}

// New returns a Life.
func New(opts Options) *Life {
	opts.Grace = cmp.Or(opts.Grace, time.Second)
	opts.Logger = cmp.Or(opts.Logger, slog.Default())
	opts.Closed = cmp.Or(opts.Closed, ErrClosed)
	l := &Life{opts: opts, works: map[*Work]struct{}{}, done: make(chan struct{})}
	l.onPanic = l.logPanic
	l.ctx, l.cancel = context.WithCancelCause(context.Background())
	l.drained, l.setDrained = context.WithCancel(context.Background())
	l.empty, l.setEmpty = context.WithCancel(context.Background())
	return l
}

// Start is [Work.Start] of a new Work.
func (l *Life) Start(ctx context.Context, kind Kind) (*Work, error) {
	w := &Work{}
	if err := w.Start(ctx, l, kind); err != nil {
		return nil, err
	}
	return w, nil
}

// Go runs f in a goroutine. The cut ends its context; a drain does not wait for it.
func (l *Life) Go(what string, f func(ctx context.Context)) error {
	w, err := l.Start(l.ctx, loop)
	if err != nil {
		return err
	}
	go func() {
		w.Run(what, func(ctx context.Context) error {
			f(ctx)
			return nil
		}, l.onPanic)
	}()
	return nil
}

// Ready returns [ErrClosed] once a shutdown has begun.
func (l *Life) Ready() error {
	if l.isDraining.Load() {
		return l.opts.Closed
	}
	return nil
}

// Shutdown refuses new work, waits for running work and calls the hooks. If ctx ends
// first, it cuts all work and returns the error of ctx at once.
func (l *Life) Shutdown(ctx context.Context) error {
	l.drain()
	select {
	case <-l.done:
		return nil
	case <-ctx.Done():
		l.cut()
		return ctx.Err()
	}
}

// Close cuts all work and waits for its end, at most for the grace period.
func (l *Life) Close() error {
	l.drain()
	l.cut()
	select {
	case <-l.done:
	case <-time.After(l.opts.Grace):
	}
	return nil
}

// drain begins a shutdown, if none has begun.
func (l *Life) drain() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.isDraining.Swap(true) {
		l.checkLocked()
		go l.shutdown()
	}
}

func (l *Life) shutdown() {
	defer close(l.done)
	l.call(l.ctx, "notify", l.opts.Notify)
	select {
	case <-l.drained.Done():
		l.call(l.ctx, "flush", l.opts.Flush)
	case <-l.ctx.Done():
	}
	l.cut()
	ctx, cancel := context.WithTimeout(context.Background(), l.opts.Grace)
	defer cancel()
	select {
	case <-l.empty.Done():
		l.call(ctx, "release", l.opts.Release)
	case <-ctx.Done():
		l.report(true)
		l.call(ctx, "abandon", l.opts.Abandon)
		context.AfterFunc(l.empty, func() { l.call(context.Background(), "finish", l.opts.Finish) })
	}
}

func (l *Life) call(ctx context.Context, what string, hook func(ctx context.Context)) {
	if hook != nil {
		l.logPanic(guard.Call(what, func() error {
			hook(ctx)
			return nil
		}))
	}
}

// cut ends the contexts of all work.
func (l *Life) cut() {
	l.mu.Lock()
	works := slices.Collect(maps.Keys(l.works))
	for _, w := range works {
		if w.cutAt.IsZero() {
			w.cutAt = time.Now()
		}
	}
	l.isCut = true
	l.checkLocked()
	l.mu.Unlock()
	for _, w := range works {
		w.End(&l.opts.Closed)
	}
	l.cancel(l.opts.Closed)
}

// checkLocked notices the end of a drain and of all work. l.mu must be held.
func (l *Life) checkLocked() {
	if l.isDraining.Load() && l.running[Request]+l.running[Part]+l.running[Query] == 0 {
		l.setDrained()
	}
	if l.isCut && len(l.works) == 0 {
		l.setEmpty()
	}
}

func (l *Life) logPanic(err error) {
	var p *guard.PanicError
	if errors.As(err, &p) {
		l.opts.Logger.ErrorContext(context.Background(), "life: panic recovered", "err", err, "stack", string(p.Stack))
	}
}
