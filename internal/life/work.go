// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package life

import (
	"bytes"
	"context"
	"fmt"
	"runtime"
	"slices"
	"time"

	"github.com/fivewire/fivewire/internal/guard"
)

const (
	maxReport      = 16          // log records of one report
	reportInterval = time.Minute // between two reports, except for that of a shutdown
	maxDump        = 4 << 20
	maxStack       = 64 << 10
)

// A Work is a piece of work, and its context. The context ends with that of Start, by
// Cut, by Finish, and at the cut of the Life.
type Work struct {
	context.Context
	life       *Life
	kind       Kind
	cancel     context.CancelCauseFunc
	what       string
	isParked   bool
	isSettled  bool // has a result in time
	isFinished bool
	cutAt      time.Time // zero: not cut
	isLogged   bool
	releases   []func()
}

// A StuckWork has ignored the end of its context for longer than the grace period.
type StuckWork struct {
	What     string        // of Run
	Duration time.Duration // since the cut
}

// Keep adds a function that Finish calls, to release a place or an ordering key.
func (w *Work) Keep(release func()) {
	w.life.mu.Lock()
	defer w.life.mu.Unlock()
	w.releases = append(w.releases, release)
}

// Run calls the handler f and then done with its error, or with a *guard.PanicError.
// It drops and counts the result of a handler that returns after a cut. In the end it
// calls Finish.
//
//go:noinline
func (w *Work) Run(what string, f func(ctx context.Context) error, done func(err error)) {
	w.life.mu.Lock()
	w.what = what
	w.life.mu.Unlock()
	defer w.Finish()
	guard.Run(what, func() error { return f(w) }, func(err error) {
		if w.settle() {
			done(err)
		} else {
			w.life.logPanic(err)
		}
	})
}

// settle reports whether a result is in time. After that, Cut has no effect.
func (w *Work) settle() bool {
	w.life.mu.Lock()
	defer w.life.mu.Unlock()
	w.isSettled = w.cutAt.IsZero()
	if !w.isSettled && w.kind != Idle {
		w.life.late++
	}
	return w.isSettled
}

// Finish ends the work, once the handler has returned. Further calls have no effect.
func (w *Work) Finish() {
	l := w.life
	l.mu.Lock()
	releases := w.releases
	w.releases = nil
	isFirst := !w.isFinished
	w.isFinished = true
	l.mu.Unlock()
	if !isFirst {
		return
	}
	w.cancel(nil)
	for _, release := range slices.Backward(releases) {
		release()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.works, w)
	if !w.isParked {
		l.running[w.kind]--
	}
	l.checkLocked()
}

// Cut ends the context of the work and reports whether its result, if any, will be
// dropped. The caller then answers instead. The work keeps what it holds.
func (w *Work) Cut(cause error) bool {
	l := w.life
	l.mu.Lock()
	isCut := !w.isSettled && !w.isFinished && w.cutAt.IsZero()
	if isCut {
		w.cutAt = time.Now()
		l.reportLaterLocked(l.opts.Grace)
	}
	l.mu.Unlock()
	if isCut {
		w.cancel(cause)
	}
	return isCut
}

// Park marks work that waits for an event from outside. No shutdown waits for it.
func (w *Work) Park() {
	w.life.mu.Lock()
	defer w.life.mu.Unlock()
	if !w.isParked && !w.isFinished {
		w.isParked = true
		w.life.running[w.kind]--
		w.life.checkLocked()
	}
}

// Resume ends Park. In a shutdown it returns [ErrClosed], and the work stays parked.
func (w *Work) Resume() error {
	w.life.mu.Lock()
	defer w.life.mu.Unlock()
	if w.life.isDraining {
		return ErrClosed
	}
	if w.isParked && !w.isFinished {
		w.isParked = false
		w.life.running[w.kind]++
	}
	return nil
}

// Late returns the number of dropped results.
func (l *Life) Late() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.late
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
func (l *Life) reportLaterLocked(after time.Duration) {
	if !l.hasTimer {
		l.hasTimer = true
		time.AfterFunc(max(after, time.Until(l.nextReport)), func() { l.report(false) })
	}
}

// report logs stuck work, each once and with its stack. All stacks come from one dump
// of the goroutines, and there is one dump in an interval or at the end of a shutdown.
func (l *Life) report(isLast bool) {
	l.mu.Lock()
	l.hasTimer = l.hasTimer && isLast
	now := time.Now()
	var stuck []*Work
	rest := 0
	for w := range l.works {
		switch {
		case w.cutAt.IsZero() || w.isLogged:
		case now.Sub(w.cutAt) >= l.opts.Grace && len(stuck) < maxReport:
			w.isLogged = true
			stuck = append(stuck, w)
		default:
			rest++
		}
	}
	if len(stuck) > 0 {
		l.nextReport = now.Add(reportInterval)
	}
	if rest > 0 {
		l.reportLaterLocked(l.opts.Grace)
	}
	l.mu.Unlock()
	if len(stuck) == 0 {
		return
	}
	dump := make([]byte, maxDump)
	dump = dump[:runtime.Stack(dump, true)]
	for _, w := range stuck {
		l.opts.Logger.Error("life: handler ignores the end of its context",
			"what", w.what, "duration", now.Sub(w.cutAt), "stack", w.stack(dump))
	}
}

// stack returns the goroutine that calls Run with w. Arguments of functions are part
// of a dump, so the goroutines need no label.
func (w *Work) stack(dump []byte) string {
	call := fmt.Appendf(nil, "life.(*Work).Run(%p", w)
	for goroutine := range bytes.SplitSeq(dump, []byte("\n\n")) {
		_, after, ok := bytes.Cut(goroutine, call)
		if ok && len(after) > 0 && bytes.IndexByte([]byte(",?)"), after[0]) >= 0 {
			return string(goroutine[:min(len(goroutine), maxStack)])
		}
	}
	return ""
}
