// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package life

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/fivewire/fivewire/internal/guard"
	"github.com/fivewire/fivewire/internal/race"
	"github.com/fivewire/fivewire/internal/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var discard = slog.New(slog.DiscardHandler)

func start(t *testing.T, l *Life, kind Kind) *Work {
	t.Helper()
	w, err := l.Start(t.Context(), kind)
	require.NoError(t, err)
	return w
}

// run runs a handler in a goroutine and drops its error.
func run(w *Work, f func(ctx context.Context)) {
	go w.Run("handler", func(ctx context.Context) error {
		f(ctx)
		return nil
	}, func(error) {})
}

// ignore is a handler that ignores its context.
func ignore(d time.Duration) func(context.Context) {
	return func(context.Context) { time.Sleep(d) }
}

func requireTook(t *testing.T, began time.Time, want time.Duration) {
	t.Helper()
	require.Equal(t, want, time.Since(began), "the time it took")
}

func TestShutdownWaitsForRunningWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := New(Options{})
		w := start(t, l, Request)
		var err error
		run(w, func(ctx context.Context) {
			time.Sleep(time.Minute)
			err = ctx.Err()
		})
		began := time.Now()
		require.NoError(t, l.Ready())
		require.NoError(t, l.Shutdown(t.Context()))
		requireTook(t, began, time.Minute)
		require.NoError(t, err, "the context of running work does not end before the drain")
		require.ErrorIs(t, w.Err(), context.Canceled)
		require.Zero(t, l.Late())
		require.ErrorIs(t, l.Ready(), ErrClosed)
		require.NoError(t, l.Shutdown(t.Context()))
		require.NoError(t, l.Close())
		requireTook(t, began, time.Minute)
	})
}

func TestShutdownRefusesNewWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := New(Options{})
		request := start(t, l, Request)
		go func() { _ = l.Shutdown(t.Context()) }()
		synctest.Wait()
		requireKinds := func(when string, want map[Kind]bool) {
			t.Helper()
			for kind, isAccepted := range want {
				w, err := l.Start(t.Context(), kind)
				require.Equal(t, isAccepted, err == nil, "%s: kind %d", when, kind)
				if err == nil {
					defer w.Finish()
				} else {
					require.ErrorIs(t, err, ErrClosed)
				}
			}
		}
		requireKinds("a request runs", map[Kind]bool{Request: false, Idle: false, Part: true, Query: true})
		part := start(t, l, Part)
		request.Finish()
		requireKinds("a part runs", map[Kind]bool{Request: false, Idle: false, Part: true, Query: true})
		query := start(t, l, Query)
		part.Finish()
		synctest.Wait()
		requireKinds("a query runs", map[Kind]bool{Request: false, Idle: false, Part: false, Query: false})
		require.NoError(t, query.Err(), "the shutdown waits for a running query")
		query.Finish()
		<-l.done
	})
}

func TestShutdownDoesNotWaitForParkedWorkAndIdleConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := New(Options{})
		var cause error
		parked := start(t, l, Request)
		run(parked, func(ctx context.Context) {
			parked.Park()
			parked.Park()
			<-ctx.Done()
			cause = context.Cause(ctx)
			require.ErrorIs(t, parked.Resume(), ErrClosed)
		})
		for range 10 {
			run(start(t, l, Idle), func(ctx context.Context) { <-ctx.Done() })
		}
		require.NoError(t, l.Go("loop", func(ctx context.Context) { <-ctx.Done() }))
		synctest.Wait()
		began := time.Now()
		require.NoError(t, l.Shutdown(t.Context()))
		requireTook(t, began, 0)
		require.ErrorIs(t, cause, ErrClosed)
		require.ErrorIs(t, l.Go("loop", func(context.Context) {}), ErrClosed)
	})
}

func TestResumedWorkHoldsShutdown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := New(Options{})
		w := start(t, l, Request)
		w.Park()
		require.NoError(t, w.Resume())
		require.NoError(t, w.Resume())
		go func() {
			time.Sleep(time.Minute)
			w.Finish()
		}()
		began := time.Now()
		require.NoError(t, l.Shutdown(t.Context()))
		requireTook(t, began, time.Minute)
	})
}

func TestShutdownReturnsAtEndOfContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := New(Options{Logger: discard})
		w := start(t, l, Request)
		run(w, ignore(time.Hour))
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		began := time.Now()
		require.ErrorIs(t, l.Shutdown(ctx), context.DeadlineExceeded)
		requireTook(t, began, 5*time.Second)
		require.ErrorIs(t, context.Cause(w), ErrClosed)
		time.Sleep(time.Hour)
	})
}

func TestCloseWaitsAtMostASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := New(Options{Logger: discard})
		returned := false
		run(start(t, l, Request), func(ctx context.Context) {
			<-ctx.Done()
			time.Sleep(500 * time.Millisecond)
			returned = true
		})
		began := time.Now()
		require.NoError(t, l.Close())
		requireTook(t, began, 500*time.Millisecond)
		require.True(t, returned, "work that honors its context returns before Close")

		l = New(Options{Logger: discard})
		run(start(t, l, Request), ignore(10*time.Second))
		began = time.Now()
		require.NoError(t, l.Close())
		requireTook(t, began, time.Second)
		require.NoError(t, l.Close())
		requireTook(t, began, time.Second)
		time.Sleep(10 * time.Second)
	})
}

// The connection waits for its peer and ignores its context.
func TestCloseDoesNotWaitForPeerThatNeverCloses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := New(Options{Logger: discard})
		run(start(t, l, Idle), ignore(10*time.Second))
		require.NoError(t, l.Go("reader", ignore(10*time.Second)))
		began := time.Now()
		require.NoError(t, l.Close())
		requireTook(t, began, time.Second)
		time.Sleep(10 * time.Second)
	})
}

func TestServeShutdownAndCloseAlwaysReturn(t *testing.T) {
	for name, end := range map[string]func(l *Life){
		"Close": func(l *Life) { _ = l.Close() },
		"Shutdown": func(l *Life) {
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			defer cancel()
			_ = l.Shutdown(ctx)
		},
		"both": func(l *Life) {
			go func() { _ = l.Shutdown(context.Background()) }()
			_ = l.Close()
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				hook := func(context.Context) { time.Sleep(time.Minute) }
				l := New(Options{Logger: discard, Notify: hook, Flush: hook, Release: hook})
				for kind := range Kind(numKinds) {
					run(start(t, l, kind), ignore(time.Minute))
				}
				var serving sync.WaitGroup
				serving.Go(func() { <-start(t, l, Idle).Done() })
				synctest.Wait()
				began := time.Now()
				end(l)
				serving.Wait()
				requireTook(t, began, time.Second)
				time.Sleep(time.Hour)
			})
		})
	}
}

// A journal collects what goroutines do.
type journal struct {
	mu    sync.Mutex
	texts []string
}

func (j *journal) add(text string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.texts = append(j.texts, text)
}

func TestShutdownKeepsOrderOfItsSteps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var steps journal
		var l *Life
		step := func(name string) func(context.Context) {
			return func(ctx context.Context) {
				_, err := l.Start(ctx, Request)
				require.ErrorIs(t, err, ErrClosed)
				require.NoError(t, ctx.Err())
				err = l.Go("helper", func(context.Context) {})
				require.Equal(t, name == "release", err != nil, "goroutines start until the cut: %v", err)
				steps.add(name)
			}
		}
		l = New(Options{Notify: step("notify"), Flush: step("flush"), Release: step("release")})
		run(start(t, l, Request), func(context.Context) {
			time.Sleep(time.Second)
			steps.add("request returned")
		})
		run(start(t, l, Idle), func(ctx context.Context) {
			<-ctx.Done()
			steps.add("connection cut")
		})
		require.NoError(t, l.Shutdown(t.Context()))
		require.Equal(t, []string{"notify", "request returned", "flush", "connection cut", "release"}, steps.texts)
		require.Zero(t, l.Late(), "a connection has no result")
	})
}

func TestShutdownDoesNotReleaseLeaseOfStuckWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var released, abandoned, finished atomic.Bool
		l := New(Options{Logger: discard, Release: func(context.Context) { released.Store(true) },
			Abandon: func(ctx context.Context) { abandoned.Store(ctx.Err() != nil) },
			Finish:  func(ctx context.Context) { finished.Store(ctx.Err() == nil) }})
		run(start(t, l, Request), ignore(time.Hour))
		require.NoError(t, l.Close())
		synctest.Wait()
		require.False(t, released.Load())
		require.True(t, abandoned.Load())
		require.False(t, finished.Load())
		time.Sleep(time.Hour)
		synctest.Wait()
		require.True(t, finished.Load())
		require.False(t, released.Load(), "the lease is left to expire")
	})
}

// The contexts of Notify and Flush end with the cut, and that of Release after the grace period. Nothing is flushed
// without a drain.
func TestHooksEndWithTheirContexts(t *testing.T) {
	for _, tt := range []struct {
		slow  string
		took  time.Duration
		steps []string
	}{
		{"notify", 5 * time.Second, []string{"notify", "release"}},
		{"request", 5 * time.Second, []string{"notify", "release"}},
		{"flush", 5 * time.Second, []string{"notify", "flush", "release"}},
		{"release", time.Second, []string{"notify", "flush", "release"}},
	} {
		t.Run(tt.slow, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var steps journal
				hook := func(name string) func(context.Context) {
					return func(ctx context.Context) {
						if name == tt.slow {
							<-ctx.Done()
						}
						steps.add(name)
					}
				}
				l := New(Options{Logger: discard, Notify: hook("notify"), Flush: hook("flush"), Release: hook("release")})
				if len(tt.steps) == 2 {
					run(start(t, l, Request), ignore(5500*time.Millisecond))
				}
				ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
				defer cancel()
				began := time.Now()
				require.Equal(t, tt.slow == "release", l.Shutdown(ctx) == nil)
				requireTook(t, began, tt.took)
				<-l.done
				require.Equal(t, tt.steps, steps.texts)
			})
		})
	}
}

func TestHookThatPanicsDoesNotEndShutdown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log testkit.Log
		hook := func(context.Context) { panic("no hook") }
		l := New(Options{Notify: hook, Flush: hook, Release: hook, Logger: log.Logger()})
		require.NoError(t, l.Go("loop", func(context.Context) { panic("no loop") }))
		require.NoError(t, l.Go("loop", func(context.Context) { runtime.Goexit() }))
		synctest.Wait() // before the cut
		require.NoError(t, l.Shutdown(t.Context()))
		for _, text := range []string{"notify panicked", "flush panicked", "release panicked", "loop panicked", "Goexit"} {
			require.Contains(t, log.String(), text)
		}
	})
}

func TestLateResultIsDroppedAndCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log testkit.Log
		l := New(Options{Logger: log.Logger()})
		results := 0
		done := func(error) { results++ }
		w := start(t, l, Request)
		go w.Run("slow", func(context.Context) error {
			time.Sleep(500 * time.Millisecond)
			return nil
		}, done)
		synctest.Wait()
		timeout := errors.New("time limit")
		require.True(t, w.Cut(timeout))
		require.False(t, w.Cut(timeout), "one caller answers")
		require.ErrorIs(t, context.Cause(w), timeout)
		time.Sleep(time.Second)
		require.Zero(t, results)
		require.EqualValues(t, 1, l.Late())

		w = start(t, l, Request)
		w.Run("panics late", func(context.Context) error {
			w.Cut(timeout)
			panic("late panic")
		}, done)
		require.Zero(t, results)
		require.EqualValues(t, 2, l.Late())
		require.Contains(t, log.String(), "late panic")

		w = start(t, l, Request)
		w.Run("in time", func(context.Context) error { return timeout }, func(err error) {
			require.Equal(t, timeout, err)
			require.False(t, w.Cut(timeout), "the result is on its way")
			results++
		})
		require.False(t, w.Cut(timeout))
		require.Equal(t, 1, results)
		require.EqualValues(t, 2, l.Late())
		require.Empty(t, l.works)
	})
}

// With one place, five handlers must not run at a time because of time limits, nor
// three on one object.
func TestTimeLimitDoesNotFreePlaceOfRunningHandler(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := New(Options{Logger: discard})
		place, object := make(chan struct{}, 1), make(chan struct{}, 1)
		var running, finished atomic.Int32
		for range 5 {
			go func() {
				place <- struct{}{}
				object <- struct{}{}
				w := start(t, l, Request)
				w.Keep(func() { <-place })
				w.Keep(func() { <-object })
				run(w, func(context.Context) {
					if n := running.Add(1); n > 1 {
						t.Errorf("%d handlers run", n)
					}
					time.Sleep(time.Minute) // ignores the time limit
					running.Add(-1)
					finished.Add(1)
				})
				time.Sleep(time.Second)
				require.True(t, w.Cut(context.DeadlineExceeded))
			}()
		}
		for i := range int32(5) {
			time.Sleep(30 * time.Second)
			require.EqualValues(t, 1, running.Load())
			require.Equal(t, i, finished.Load())
			time.Sleep(30 * time.Second)
		}
		synctest.Wait()
		require.EqualValues(t, 5, finished.Load())
		require.EqualValues(t, 5, l.Late())
	})
}

func TestStuckListsWorkThatIgnoresItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log testkit.Log
		l := New(Options{Logger: log.Logger()})
		w := start(t, l, Request)
		run(w, stuckHandler)
		run(start(t, l, Request), ignore(time.Hour)) // not cut
		time.Sleep(time.Minute)
		require.Empty(t, l.Stuck())
		w.Cut(context.DeadlineExceeded)
		require.Empty(t, l.Stuck(), "work has a second to return")
		time.Sleep(2 * time.Second)
		require.Equal(t, []StuckWork{{"handler", 2 * time.Second}}, l.Stuck())
		require.Equal(t, 1, strings.Count(log.String(), "level=ERROR"), "one record: %s", log.String())
		require.Contains(t, log.String(), "life.stuckHandler")
		require.NotContains(t, log.String(), "life.ignore", "only the stack of the handler")
		time.Sleep(50 * time.Minute)
		require.Len(t, l.Stuck(), 1)
		_ = l.Close()
		require.ElementsMatch(t, []StuckWork{{"handler", 50*time.Minute + 3*time.Second}, {"handler", time.Second}}, l.Stuck(),
			"a later cut is not the first one")
		time.Sleep(time.Hour)
		require.Empty(t, l.Stuck())
		require.Equal(t, 1, strings.Count(log.String(), "stuckHandler("), "each handler is logged once")
	})
}

//go:noinline
func stuckHandler(context.Context) { time.Sleep(time.Hour) }

func TestReportOfStuckWorkIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log testkit.Log
		l := New(Options{Logger: log.Logger()})
		records := func() int { return strings.Count(log.String(), "level=ERROR") }
		for range 40 {
			w := start(t, l, Request)
			run(w, ignore(24*time.Hour))
			w.Cut(context.DeadlineExceeded)
		}
		time.Sleep(2 * time.Second)
		require.Equal(t, 16, records())
		time.Sleep(30 * time.Second)
		require.Equal(t, 16, records(), "one dump of the goroutines a minute")
		time.Sleep(time.Minute)
		require.Equal(t, 32, records())
		_ = l.Close()
		synctest.Wait()
		require.Equal(t, 40, records(), "and one at the end of a shutdown")
		require.Len(t, l.Stuck(), 40)
		require.Equal(t, 40, strings.Count(log.String(), "time.Sleep("))
		time.Sleep(24 * time.Hour)
		require.Equal(t, 40, records())
	})
}

func TestWorkContextEndsWithItsParent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := New(Options{})
		ctx, cancel := context.WithCancel(context.WithValue(t.Context(), discard, "value"))
		w, err := l.Start(ctx, Request)
		require.NoError(t, err)
		require.Equal(t, "value", w.Value(discard))
		cancel()
		require.ErrorIs(t, w.Err(), context.Canceled)
		w.Run("handler", func(context.Context) error { return nil }, func(error) {})
		require.Zero(t, l.Late(), "the end of the request is no cut")
	})
}

func TestRunCountsGoexitAsPanic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := New(Options{})
		w := start(t, l, Request)
		var got error
		go w.Run("handler", func(context.Context) error {
			runtime.Goexit()
			return nil
		}, func(err error) { got = err })
		synctest.Wait()
		var p *guard.PanicError
		require.ErrorAs(t, got, &p)
		require.NoError(t, l.Shutdown(t.Context()))
	})
}

func TestFinishIsIdempotent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := New(Options{})
		w := start(t, l, Request)
		released := ""
		for i := range 3 {
			w.Keep(func() { released += fmt.Sprint(i) })
		}
		other := start(t, l, Request)
		w.Finish()
		w.Finish()
		w.Park()
		require.Equal(t, 1, l.running[Request])
		require.NoError(t, w.Resume())
		require.Equal(t, "210", released)
		require.Equal(t, 1, l.running[Request])
		other.Park()
		other.Finish()
		require.Zero(t, l.running[Request])
		require.NoError(t, l.Shutdown(t.Context()))
	})
}

func TestLifeWithConcurrentCalls(t *testing.T) {
	l := New(Options{Logger: discard})
	var wg sync.WaitGroup
	var results, cuts, refused atomic.Int64
	for i := range 1000 {
		wg.Go(func() {
			w, err := l.Start(t.Context(), Request)
			if err != nil {
				refused.Add(1)
				return
			}
			wg.Go(func() {
				if i%2 == 0 && w.Cut(context.Canceled) {
					cuts.Add(1)
				}
			})
			w.Run("handler", func(context.Context) error {
				runtime.Gosched()
				return nil
			}, func(error) { results.Add(1) })
		})
		if i == 900 {
			wg.Go(func() { _ = l.Shutdown(t.Context()) })
		}
	}
	wg.Wait()
	require.EqualValues(t, 1000, results.Load()+cuts.Load()+refused.Load(), "each work has one result")
	require.Equal(t, cuts.Load(), l.Late())
	<-l.done
}

func TestTimeoutEndsContextOfWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := New(Options{})
		late := errors.New("late")
		w := &Work{Timeout: time.Minute, TimeoutCause: late}
		require.NoError(t, w.Start(t.Context(), l, Request))
		end, ok := w.Deadline()
		require.True(t, ok)
		require.Equal(t, time.Minute, time.Until(end))
		child, cancel := context.WithCancel(w)
		defer cancel()
		time.Sleep(time.Minute - 1)
		require.NoError(t, w.Err())
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		require.Equal(t, context.DeadlineExceeded, w.Err())
		require.Equal(t, late, context.Cause(w))
		require.Equal(t, late, context.Cause(child))
		w.Finish()
		require.Equal(t, context.DeadlineExceeded, w.Err(), "the first end counts")

		w = &Work{Timeout: time.Minute, TimeoutCause: late} // nothing has called its Done
		require.NoError(t, w.Start(t.Context(), l, Request))
		time.Sleep(time.Minute)
		require.Equal(t, context.DeadlineExceeded, w.Err())
		require.Equal(t, late, context.Cause(w))
		w.Finish()
		require.Equal(t, context.DeadlineExceeded, w.Err())

		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		w = &Work{Timeout: time.Minute, TimeoutCause: late}
		require.NoError(t, w.Start(ctx, l, Request))
		end, _ = w.Deadline()
		require.Equal(t, time.Second, time.Until(end), "the first deadline counts")
		w.Finish()
		time.Sleep(time.Hour)
		require.Equal(t, context.Canceled, w.Err(), "finished work has no timeout")
	})
}

// A context whose Done is called for the first time after its end, or never, is like any other.
func TestContextOfWorkEndsWithoutDone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := New(Options{Logger: discard})
		cause := errors.New("cut")
		ctx, cancel := context.WithCancelCause(context.WithValue(t.Context(), discard, "value"))
		cut, finished, canceled := start(t, l, Request), start(t, l, Request), start(t, l, Request)
		inner, err := l.Start(ctx, Request)
		require.NoError(t, err)
		for _, w := range []*Work{cut, finished, canceled, inner} {
			require.NoError(t, w.Err())
			require.NoError(t, context.Cause(w))
		}
		cut.Cut(cause)
		finished.Finish()
		cancel(cause)
		require.NoError(t, l.Close())
		for w, want := range map[*Work]error{cut: cause, finished: context.Canceled, canceled: ErrClosed, inner: cause} {
			require.Equal(t, context.Canceled, w.Err())
			require.Equal(t, want, context.Cause(w))
			child, cancel := context.WithCancel(w)
			require.Equal(t, want, context.Cause(child))
			cancel()
			<-w.Done()
		}
		require.Equal(t, "value", inner.Value(discard))
		for _, w := range []*Work{cut, canceled, inner} {
			w.Finish()
		}
	})
}

func TestContextOfWorkWithConcurrentCalls(t *testing.T) {
	l := New(Options{Logger: discard})
	for range 1000 {
		w := start(t, l, Request)
		var wg sync.WaitGroup
		wg.Go(func() { <-w.Done() })
		wg.Go(func() { _, _ = context.Cause(w), w.Err() })
		wg.Go(func() { w.Cut(ErrClosed) })
		wg.Wait()
		require.Equal(t, ErrClosed, context.Cause(w))
		w.Finish()
	}
}

func TestStartAllocatesOnlyAContext(t *testing.T) {
	if race.Enabled {
		t.Skip("the race detector allocates")
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	child := func(ctx context.Context) {
		_, cancel := context.WithCancelCause(ctx)
		cancel(nil)
	}
	l := New(Options{})
	run := func(f func(ctx context.Context) error) {
		w, _ := l.Start(ctx, Request)
		w.Run("handler", f, func(error) {})
	}
	got := testing.AllocsPerRun(1000, func() { run(func(ctx context.Context) error { return ctx.Err() }) })
	require.LessOrEqual(t, got, 1.0, "a Work, which is a context")
	got = testing.AllocsPerRun(1000, func() {
		w := &Work{Timeout: time.Hour, TimeoutCause: context.DeadlineExceeded}
		_ = w.Start(ctx, l, Request)
		w.Run("handler", func(ctx context.Context) error { return ctx.Err() }, func(error) {})
	})
	require.LessOrEqual(t, got, 1.0, "its timeout needs no timer before Done")

	floor := testing.AllocsPerRun(1000, func() {
		ctx, cancel := context.WithCancelCause(ctx)
		child(ctx)
		cancel(nil)
	})
	got = testing.AllocsPerRun(1000, func() {
		run(func(ctx context.Context) error {
			child(ctx)
			return nil
		})
	})
	require.LessOrEqual(t, got, floor+1, "a Work and its cancelable part")
}
