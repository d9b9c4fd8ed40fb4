// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package life

import (
	"bytes"
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync/atomic"
	"time"

	"github.com/fivewire/fivewire/internal/guard"
	"github.com/fivewire/fivewire/internal/lazy"
)

const (
	maxReport      = 16          // log records of one report
	reportInterval = time.Minute // except for the report of a shutdown
	maxDump        = 4 << 20
	maxStack       = 64 << 10
)

// A Work is a piece of work, and its context. The context ends with that of Start, at
// its timeout, by Cut, by Finish, and at the cut of the Life.
type Work struct {
	Timeout      time.Duration // of the context; set before Start, zero means none
	TimeoutCause error         // cause of the end at the timeout

	lazy.Context
	life       *Life
	kind       Kind
	releases   []func()
	isFinished atomic.Bool

	what      string // guarded by life.mu, like all below
	isParked  bool
	hasResult bool
	cutAt     time.Time // zero: not cut
	isLogged  bool
}

// Start counts the work of a zero Work, until its Finish, or returns [ErrClosed].
func (w *Work) Start(ctx context.Context, l *Life, kind Kind) error {
	w.life, w.kind = l, kind
	w.Begin(ctx, w.Timeout, w.TimeoutCause)
	l.mu.Lock()
	isAlone := l.running[Request]+l.running[Part] == 0
	isNew := kind == Request || kind == Idle || isAlone && kind != loop
	isAccepted := !l.isCut && !(l.isDraining.Load() && isNew)
	if isAccepted {
		l.works[w] = struct{}{}
		l.running[kind]++
	}
	l.mu.Unlock()
	if !isAccepted {
		w.End(&l.opts.Closed)
		return l.opts.Closed
	}
	return nil
}

// Keep adds a function that Finish calls, to release a place or an ordering key. Keep
// is not called during Run or Finish.
func (w *Work) Keep(release func()) { w.releases = append(w.releases, release) }

// Run calls the handler f, then done with its error or with a *guard.PanicError, and
// then Finish. The result of a handler that returns after a cut is dropped and counted.
//
//go:noinline
func (w *Work) Run(what string, f func(ctx context.Context) error, done func(err error)) {
	w.life.mu.Lock()
	w.what = what
	w.life.mu.Unlock()
	defer w.Finish()
	guard.Run(what, func() error { return f(w) }, func(err error) {
		w.life.mu.Lock()
		w.hasResult = w.cutAt.IsZero()
		w.life.mu.Unlock()
		switch {
		case w.hasResult:
			done(err)
		case w.kind < Idle:
			w.life.late.Add(1)
			fallthrough
		default:
			w.life.logPanic(err)
		}
	})
}

// Finish ends the work, once the handler has returned. Further calls have no effect.
func (w *Work) Finish() {
	if w.isFinished.Swap(true) {
		return
	}
	w.End(&lazy.Canceled)
	for _, release := range slices.Backward(w.releases) {
		release()
	}
	l := w.life
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.works, w)
	if !w.isParked {
		l.running[w.kind]--
	}
	l.checkLocked()
}

// Cut ends the context of the work and reports whether it drops the result of the
// handler, so that the caller has to answer. Finish still waits for the handler.
func (w *Work) Cut(cause error) bool {
	w.life.mu.Lock()
	isCut := !w.hasResult && !w.isFinished.Load() && w.cutAt.IsZero()
	if isCut {
		w.cutAt = time.Now()
		w.life.reportLaterLocked()
	}
	w.life.mu.Unlock()
	if isCut {
		w.End(&cause)
	}
	return isCut
}

// Park marks work that waits for an event from outside. No shutdown waits for it.
func (w *Work) Park() { _ = w.park(true) }

// Resume ends Park. In a shutdown it returns ErrClosed, and the work stays parked.
func (w *Work) Resume() error { return w.park(false) }

func (w *Work) park(isParked bool) error {
	l := w.life
	l.mu.Lock()
	defer l.mu.Unlock()
	if !isParked && l.isDraining.Load() {
		return w.life.opts.Closed
	}
	if _, ok := l.works[w]; !ok || w.isParked == isParked {
		return nil
	}
	w.isParked = isParked
	if isParked {
		l.running[w.kind]--
	} else {
		l.running[w.kind]++
	}
	l.checkLocked()
	return nil
}

// Late returns the number of dropped results.
func (l *Life) Late() int64 { return l.late.Load() }

// A StuckWork ignores the end of its context for longer than the grace period.
type StuckWork struct {
	What     string        // of Run
	Duration time.Duration // since the cut
}

// Stuck returns the work that ignores the end of its context.
func (l *Life) Stuck() []StuckWork {
	l.mu.Lock()
	defer l.mu.Unlock()
	var list []StuckWork
	for w := range l.works {
		if d := time.Since(w.cutAt); !w.cutAt.IsZero() && d >= l.opts.Grace {
			list = append(list, StuckWork{w.what, d})
		}
	}
	return list
}

// reportLaterLocked plans a report, if none is planned. l.mu must be held.
func (l *Life) reportLaterLocked() {
	if !l.hasTimer {
		l.hasTimer = true
		time.AfterFunc(max(l.opts.Grace, time.Until(l.nextReport)), func() { l.report(false) })
	}
}

// report logs stuck work, each once and with its stack. All stacks come from one dump
// of the goroutines, and there is one dump in an interval or at the end of a shutdown.
func (l *Life) report(isLast bool) {
	l.mu.Lock()
	l.hasTimer = l.hasTimer && isLast
	now := time.Now()
	var stuck []*Work
	isMore := false
	for w := range l.works {
		switch {
		case w.cutAt.IsZero() || w.isLogged:
		case len(stuck) < maxReport && now.Sub(w.cutAt) >= l.opts.Grace:
			w.isLogged = true
			stuck = append(stuck, w)
		default:
			isMore = true
		}
	}
	if len(stuck) > 0 {
		l.nextReport = now.Add(reportInterval)
	}
	if isMore {
		l.reportLaterLocked()
	}
	l.mu.Unlock()
	if len(stuck) == 0 {
		return
	}
	dump := make([]byte, maxDump)
	dump = dump[:runtime.Stack(dump, true)]
	for _, w := range stuck {
		l.opts.Logger.ErrorContext(w.Parent(), "life: handler ignores the end of its context",
			"what", w.what, "duration", now.Sub(w.cutAt), "stack", w.stack(dump))
	}
}

// stack returns the goroutine that calls Run with w: a dump shows arguments.
func (w *Work) stack(dump []byte) string {
	call := fmt.Appendf(nil, "life.(*Work).Run(%p", w)
	for goroutine := range bytes.SplitSeq(dump, []byte("\n\n")) {
		_, after, ok := bytes.Cut(goroutine, call)
		if ok && bytes.IndexAny(after, ",?)") == 0 {
			return string(goroutine[:min(len(goroutine), maxStack)])
		}
	}
	return ""
}
