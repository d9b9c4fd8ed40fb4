// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package streamlog

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/conformance/fault"
	"github.com/fivewire/fivewire/internal/lease"
	"github.com/fivewire/fivewire/store"
)

const logName = "x/streamlog/s"

// A process has a table and a lease in a store with faults.
type process struct {
	*Table
	plan  *fault.Plan
	lease *lease.Lease
}

func newProcess(t testing.TB, db store.Store, ttl time.Duration, rules ...fault.Rule) *process {
	t.Helper()
	p := &process{plan: &fault.Plan{Rules: rules}}
	view := fault.Store(db, p.plan)
	l, err := lease.Acquire(context.Background(), view, lease.Options{Prefix: "x/", TTL: ttl})
	require.NoError(t, err)
	p.lease, p.Table = l, New(view, l, "x/")
	t.Cleanup(p.stop)
	return p
}

// stop ends a process in order.
func (p *process) stop() {
	_ = p.lease.Release(context.Background())
	p.plan.Close()
}

// crash ends a process without any change of the store.
func (p *process) crash() {
	p.plan.Crash()
	p.stop()
}

// inProcesses runs f with processes on one store, the first of which has faults.
func inProcesses(t *testing.T, n int, f func(t *testing.T, db store.Store, p []*process), rules ...fault.Rule) {
	synctest.Test(t, func(t *testing.T) {
		t.Cleanup(func() { time.Sleep(2 * time.Minute) }) // changes in doubt are repeated for a minute
		db := store.NewMemory()
		processes := []*process{newProcess(t, db, 0, rules...)}
		for range n - 1 {
			processes = append(processes, newProcess(t, db, 0))
		}
		f(t, db, processes)
	})
}

func TestReadersInAllProcessesGetAllItems(t *testing.T) {
	inProcesses(t, 2, func(t *testing.T, db store.Store, p []*process) {
		w := newWriter(t, p[0].Table, Options{})
		readers := []*Reader{newReader(t, p[0].Table, 0), newReader(t, p[1].Table, 0)}
		go func() {
			for n := uint64(1); n <= 3000; n++ {
				_, err := w.Append(t.Context(), number(n))
				require.NoError(t, err)
				if n%100 == 0 {
					time.Sleep(100 * time.Millisecond)
				}
			}
			require.NoError(t, w.Finish(t.Context(), number(3001)))
		}()
		done := make(chan bool)
		go func() {
			requireEnd(t, readers[0], 0, 3001, io.EOF)
			close(done)
		}()
		requireEnd(t, readers[1], 0, 3001, io.EOF)
		<-done
		for _, process := range p { // all read from the store
			for _, after := range []uint64{0, 1, 99, 100, 101, 1500, 2999, 3000, 3001} {
				requireEnd(t, newReader(t, process.Table, after), after, 3001, io.EOF)
			}
			_, err := process.Read(t.Context(), "s", user, 3002)
			require.Equal(t, ErrAhead, err)
			_, err = process.Read(t.Context(), "s", user, 1<<64-1)
			require.Equal(t, ErrAhead, err)
			_, err = process.Read(t.Context(), "s", "another", 0)
			require.Equal(t, ErrUnknown, err)
			_, err = process.Read(t.Context(), "another", user, 0)
			require.Equal(t, ErrUnknown, err)
		}
		require.Zero(t, countStreams(p[0].Table))
		for e, err := range db.List(t.Context(), "x/work/") {
			t.Errorf("index entry %s of the ended stream (%v)", e.Key, err)
		}
	})
}

func TestStreamThatIsNotMovableIsNotContinued(t *testing.T) {
	inProcesses(t, 2, func(t *testing.T, db store.Store, p []*process) {
		w := newWriter(t, p[0].Table, Options{})
		_, err := p[1].Create(t.Context(), "s", user, Options{Movable: true})
		require.Equal(t, store.ErrExists, err)
		require.EqualValues(t, 3, appendItems(t, w, 1, 2))
		require.NoError(t, w.Finish(t.Context(), nil))
		requireEnd(t, newReader(t, p[1].Table, 0), 0, 2, io.EOF)
	})
}

func TestCutWithEmptyTextIsNoFinish(t *testing.T) {
	inProcesses(t, 2, func(t *testing.T, db store.Store, p []*process) {
		newWriter(t, p[0].Table, Options{}).Cut(errors.New(""))
		synctest.Wait()
		requireEnd(t, newReader(t, p[1].Table, 0), 0, 0, &CutError{N: 1, Cause: errors.New("unknown cause")})
	})
}

func TestRetentionInStoreIsAtLeastAMinute(t *testing.T) {
	inProcesses(t, 2, func(t *testing.T, db store.Store, p []*process) {
		w := newWriter(t, p[0].Table, Options{Retention: -1})
		require.NoError(t, w.Finish(t.Context(), number(1)))
		time.Sleep(59 * time.Second)
		requireEnd(t, newReader(t, p[1].Table, 0), 0, 1, io.EOF)
		time.Sleep(2 * time.Second)
		_, err := p[1].Read(t.Context(), "s", user, 0)
		require.Equal(t, ErrUnknown, err)
	})
}

func TestSyncWaitsUntilItemsAreStored(t *testing.T) {
	inProcesses(t, 2, func(t *testing.T, db store.Store, p []*process) {
		w := newWriter(t, p[0].Table, Options{Movable: true})
		last, err := w.Sync(t.Context())
		require.NoError(t, err)
		require.Zero(t, last)

		p[0].plan.Pause()
		for n := uint64(1); n <= 3; n++ {
			_, err := w.Append(t.Context(), number(n))
			require.NoError(t, err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		_, err = w.Sync(ctx)
		cancel()
		require.ErrorIs(t, err, context.DeadlineExceeded)
		p[0].plan.Resume()
		last, err = w.Sync(t.Context())
		require.NoError(t, err)
		require.EqualValues(t, 3, last)

		p[0].plan.Pause()
		_, err = w.Append(t.Context(), number(4))
		require.NoError(t, err)
		next := newWriter(t, p[1].Table, Options{Movable: true})
		last, err = next.Sync(t.Context())
		require.NoError(t, err)
		require.LessOrEqual(t, last, uint64(4))
		p[0].plan.Resume()
		if last == 3 {
			_, err = w.Sync(t.Context())
			require.ErrorIs(t, err, lease.ErrLost)
		}
	})
}

func TestReaderGetsItemWhenItIsStored(t *testing.T) {
	inProcesses(t, 1, func(t *testing.T, _ store.Store, p []*process) {
		w := newWriter(t, p[0].Table, Options{})
		r, start := newReader(t, p[0].Table, 0), time.Now()
		appendItems(t, w, 1, 1)
		require.Equal(t, start, time.Now(), "time of Append")
		_, err := p[0].Read(t.Context(), "s", user, 1)
		require.Equal(t, ErrAhead, err, "position of an item that is not stored")
		_, err = readItems(t, r, 0, 1)
		require.NoError(t, err)
		require.GreaterOrEqual(t, time.Since(start), 2*time.Second)
		require.Equal(t, 1, p[0].plan.Count(fault.Hang))
	}, fault.Rule{Action: fault.Hang, Op: "append", Match: logName, After: 1, Limit: 1, Delay: 2 * time.Second})
}

func TestItemsJoinWhileAppendIsInProgress(t *testing.T) {
	inProcesses(t, 1, func(t *testing.T, db store.Store, p []*process) {
		w := newWriter(t, p[0].Table, Options{})
		appendItems(t, w, 1, 1)
		synctest.Wait()
		require.EqualValues(t, 1025, appendItems(t, w, 2, 2000), "items in transit")
		require.Zero(t, w.Credit())
		require.NoError(t, w.Finish(t.Context(), nil))
		records, err := db.Read(t.Context(), logName, 0, 100)
		require.NoError(t, err)
		require.Equal(t, 4, len(records), "opening, first item, 910 items of 72 bytes, the rest with the end")
		for i, stored := range records {
			require.Equal(t, fmt.Sprint(i+1), stored.ID)
			require.LessOrEqual(t, len(stored.Value), maxBatch)
		}
	}, fault.Rule{Action: fault.Delay, Op: "append", Match: logName, Delay: time.Second})
}

func TestUnknownOutcomesLoseNoItem(t *testing.T) {
	for _, rule := range []fault.Rule{
		{Action: fault.ErrorBefore}, {Action: fault.ErrorAfter}, {Action: fault.LandLater}, {Action: fault.Hang, Delay: time.Hour},
	} {
		rule.Op, rule.Match, rule.Probability = "append|expire", logName, 0.5
		t.Run(fmt.Sprint(rule.Action), func(t *testing.T) {
			inProcesses(t, 2, func(t *testing.T, _ store.Store, p []*process) {
				w := newWriter(t, p[0].Table, Options{})
				readers := []*Reader{newReader(t, p[0].Table, 0), newReader(t, p[1].Table, 0)}
				go func() {
					for n := uint64(1); n <= 50; n++ {
						_, _ = w.Append(t.Context(), number(n))
						time.Sleep(50 * time.Millisecond)
					}
					_ = w.Finish(t.Context(), nil)
				}()
				for _, r := range readers {
					requireEnd(t, r, 0, 50, io.EOF)
				}
				require.GreaterOrEqual(t, p[0].plan.Count(rule.Action), 3)
			}, rule)
		})
	}
}

func TestReadersElsewhereHoldWriterBack(t *testing.T) {
	inProcesses(t, 2, func(t *testing.T, _ store.Store, p []*process) {
		w := newWriter(t, p[0].Table, Options{Window: 100 * windowItem, Resumable: true})
		r := newReader(t, p[1].Table, 0)
		time.Sleep(10 * time.Millisecond)
		require.EqualValues(t, 101, appendItems(t, w, 1, 200))
		_, err := readItems(t, r, 0, 50) // half a window: a notice at once
		require.NoError(t, err)
		time.Sleep(10 * time.Millisecond)
		require.EqualValues(t, 151, appendItems(t, w, 101, 200))
		_, err = readItems(t, r, 50, 60)
		require.NoError(t, err)
		require.EqualValues(t, 151, appendItems(t, w, 151, 200))
		time.Sleep(noticeInterval)
		_, err = readItems(t, r, 60, 61) // a second: a notice
		require.NoError(t, err)
		time.Sleep(10 * time.Millisecond)
		require.EqualValues(t, 162, appendItems(t, w, 151, 200))
		r.Close()
		time.Sleep(10 * time.Millisecond)
		require.EqualValues(t, 201, appendItems(t, w, 162, 200))
		_, err = r.Next(t.Context(), nil)
		require.Equal(t, ErrClosed, err)
		synctest.Wait()
		require.Len(t, w.s.cursors, 0)
	})
}

func TestReaderElsewhereThatWaitsStaysAttached(t *testing.T) {
	inProcesses(t, 2, func(t *testing.T, _ store.Store, p []*process) {
		w := newWriter(t, p[0].Table, Options{})
		r := newReader(t, p[1].Table, 0)
		go func() {
			time.Sleep(time.Hour)
			appendItems(t, w, 1, 1)
		}()
		items, err := r.Next(t.Context(), nil)
		require.NoError(t, err)
		require.Len(t, items, 1)
		start := time.Now()
		<-w.Done() // it calls Next no longer
		require.Greater(t, time.Since(start), 29*time.Second)
		require.Less(t, time.Since(start), 50*time.Second)
		requireEnd(t, r, 1, 1, &CutError{2, ErrNoReader})
	})
}

func TestSurvivorCutsStreamOfFailedProcess(t *testing.T) {
	var isAway atomic.Bool
	inProcesses(t, 3, func(t *testing.T, _ store.Store, p []*process) {
		w := newWriter(t, p[0].Table, Options{Resumable: true})
		local, r := newReader(t, p[0].Table, 0), newReader(t, p[1].Table, 0)
		appendItems(t, w, 1, 10)
		_, err := readItems(t, local, 0, 10)
		require.NoError(t, err)
		_, err = readItems(t, r, 0, 10)
		require.NoError(t, err)
		isAway.Store(true)
		appendItems(t, w, 11, 12) // never stored
		p[0].crash()
		start, end := time.Now(), &CutError{11, lease.ErrLost}
		requireEnd(t, r, 10, 10, end)
		require.LessOrEqual(t, time.Since(start), 22*time.Second)
		<-w.Done()
		_, err = w.Append(t.Context(), nil)
		require.Equal(t, lease.ErrLost, err)
		require.Equal(t, lease.ErrLost, w.Finish(t.Context(), nil))
		requireEnd(t, newReader(t, p[2].Table, 5), 5, 10, end)
		time.Sleep(5 * time.Minute)
		_, err = p[2].Read(t.Context(), "s", user, 0)
		require.Equal(t, ErrUnknown, err)
	}, fault.Rule{Op: "append", Match: logName, When: func(_, _ string) bool { return isAway.Load() }})
}

// The error of a writer whose store was closed, or has damaged data, names that.
func TestLossHasItsCause(t *testing.T) {
	inProcesses(t, 1, func(t *testing.T, _ store.Store, p []*process) {
		w := newWriter(t, p[0].Table, Options{})
		appendItems(t, w, 1, 1)
		p[0].plan.Crash()
		_, err := w.Append(t.Context(), number(2))
		require.NoError(t, err)
		<-w.Done()
		_, err = w.Append(t.Context(), number(3))
		require.ErrorIs(t, err, lease.ErrLost)
		require.ErrorIs(t, err, store.ErrClosed)
	})
}

// A process that was away from its store for longer than its lease gives its streams up, and its
// readers get the end from the store.
func TestReadersOfLostStreamFollowStore(t *testing.T) {
	for _, lost := range []uint64{0, 2} {
		var isAway atomic.Bool
		rule := fault.Rule{When: func(_, _ string) bool { return isAway.Load() }}
		inProcesses(t, 2, func(t *testing.T, _ store.Store, p []*process) {
			w := newWriter(t, p[0].Table, Options{})
			r := newReader(t, p[0].Table, 0)
			appendItems(t, w, 1, 10)
			_, err := readItems(t, r, 0, 10)
			require.NoError(t, err)
			isAway.Store(true)
			appendItems(t, w, 11, 10+lost)
			start := time.Now()
			<-w.Done()
			require.Less(t, time.Since(start), 15*time.Second)
			require.Equal(t, lease.ErrLost, w.Finish(t.Context(), nil))
			isAway.Store(false)
			last, err := readItems(t, r, 10, 10+lost) // an item in transit may still be stored
			for err == nil {
				_, err = tryNext(t, r, 1)
			}
			require.Equal(t, &CutError{last + 1, lease.ErrLost}, err)
			require.Zero(t, countStreams(p[0].Table))
		}, rule)
	}
}

func TestMovableStreamContinuesElsewhere(t *testing.T) {
	inProcesses(t, 2, func(t *testing.T, _ store.Store, p []*process) {
		o := Options{Movable: true, Resumable: true}
		old := newWriter(t, p[0].Table, o)
		readers := []*Reader{newReader(t, p[0].Table, 0), newReader(t, p[1].Table, 0)}
		appendItems(t, old, 1, 10)
		time.Sleep(time.Second)
		_, err := p[1].Create(t.Context(), "s", "another", o)
		require.Equal(t, store.ErrExists, err)
		_, err = p[1].Create(t.Context(), "s", user, Options{})
		require.Equal(t, store.ErrExists, err)
		w := newWriter(t, p[1].Table, o)
		appendItems(t, w, 11, 20)
		_, err = old.Append(t.Context(), number(11)) // accepted, but fenced
		require.NoError(t, err)
		<-old.Done()
		require.Equal(t, lease.ErrLost, old.Finish(t.Context(), nil))
		for _, r := range readers {
			_, err := readItems(t, r, 0, 20)
			require.NoError(t, err)
		}
		p[1].crash()
		second := newWriter(t, p[0].Table, o) // the object is back
		third := newWriter(t, p[0].Table, o)
		<-second.Done()
		appendItems(t, third, 21, 25)
		require.NoError(t, third.Finish(t.Context(), nil))
		requireEnd(t, readers[0], 20, 25, io.EOF)
		_, err = p[0].Create(t.Context(), "s", user, o)
		require.Equal(t, store.ErrExists, err)
	})
}

func TestCreateOfExistingStreamFails(t *testing.T) {
	inProcesses(t, 2, func(t *testing.T, db store.Store, p []*process) {
		w := newWriter(t, p[0].Table, Options{})
		for _, process := range p {
			_, err := process.Create(t.Context(), "s", user, Options{})
			require.Equal(t, store.ErrExists, err)
		}
		appendItems(t, w, 1, 1)
		require.NoError(t, w.Finish(t.Context(), nil))
		time.Sleep(time.Hour)
		w = newWriter(t, p[1].Table, Options{}) // the id is free
		appendItems(t, w, 1, 3)
		require.NoError(t, w.Finish(t.Context(), nil))
		requireEnd(t, newReader(t, p[0].Table, 0), 0, 3, io.EOF)
	})
}

func TestStoreIsTrimmedToRetain(t *testing.T) {
	testTrimmedStore(t, Options{Retain: 7200, Resumable: true})
}

func TestStoreIsTrimmedToRetainItems(t *testing.T) {
	testTrimmedStore(t, Options{RetainItems: 100, Resumable: true})
}

func testTrimmedStore(t *testing.T, o Options) {
	inProcesses(t, 2, func(t *testing.T, db store.Store, p []*process) {
		w := newWriter(t, p[0].Table, o)
		r := newReader(t, p[0].Table, 0)
		for n := uint64(1); n <= 1000; n++ {
			appendItems(t, w, n, n)
			_, err := readItems(t, r, n-1, n)
			require.NoError(t, err)
			time.Sleep(time.Millisecond)
			records, err := db.Read(t.Context(), logName, 0, 1000)
			require.NoError(t, err)
			require.LessOrEqual(t, len(records), 1+107)
			require.LessOrEqual(t, w.Size(), int64(107*72))
		}
		require.GreaterOrEqual(t, w.Size(), int64(100*72))
		for _, process := range p {
			_, err := process.Read(t.Context(), "s", user, 800)
			var gap *GapError
			require.ErrorAs(t, err, &gap)
			require.EqualValues(t, 801, gap.Want)
			_, err = readItems(t, newReader(t, process.Table, gap.First-1), gap.First-1, 1000)
			require.NoError(t, err)
			_, err = process.Read(t.Context(), "s", user, gap.First-2)
			require.Equal(t, &GapError{gap.First - 1, gap.First}, err)
		}
	})
}

func TestStoreIsNotTrimmedBeforeReadersElsewhere(t *testing.T) {
	inProcesses(t, 2, func(t *testing.T, _ store.Store, p []*process) {
		w := newWriter(t, p[0].Table, Options{Retain: 7200})
		r := newReader(t, p[1].Table, 0)
		synctest.Wait()
		for n := uint64(1); n <= 500; n++ {
			appendItems(t, w, n, n)
			synctest.Wait()
		}
		require.NoError(t, w.Finish(t.Context(), nil))
		requireEnd(t, r, 0, 500, io.EOF)
	})
}

func TestWriterWithoutReaderFillsStoreToRetain(t *testing.T) {
	inProcesses(t, 1, func(t *testing.T, db store.Store, p []*process) {
		w := newWriter(t, p[0].Table, Options{Retain: 2 << 20, Grace: -1, Window: 128 << 10})
		item := make([]byte, 16<<10)
		n := 0
		for ; ; n++ {
			if _, err := tryAppend(t, w, item); err != nil {
				break
			}
			synctest.Wait()
			require.LessOrEqual(t, heldBytes(w.s), uint64(1<<20+128<<10))
		}
		require.Equal(t, 127, n)
		r, got := newReader(t, p[0].Table, 0), 0
		for got < n { // from the store, then from memory
			items, err := tryNext(t, r, 10)
			require.NoError(t, err)
			require.EqualValues(t, got+1, items[0].N)
			got += len(items)
		}
		r.Close()
		for range n { // what was read is trimmed
			_, err := tryAppend(t, w, item)
			require.NoError(t, err)
			synctest.Wait()
		}
		_, err := tryAppend(t, w, item)
		require.ErrorIs(t, err, context.DeadlineExceeded)
	})
}

func TestRefusedItemCutsStream(t *testing.T) {
	inProcesses(t, 1, func(t *testing.T, _ store.Store, p []*process) {
		w := newWriter(t, p[0].Table, Options{Window: -1, Resumable: true})
		r := newReader(t, p[0].Table, 0)
		appendItems(t, w, 1, 1)
		synctest.Wait()
		_, err := w.Append(t.Context(), make([]byte, store.MaxValue+1))
		require.NoError(t, err)
		err = w.Finish(t.Context(), nil)
		require.ErrorIs(t, err, store.ErrInvalid)
		_, err = readItems(t, r, 0, 2)
		require.ErrorIs(t, err, store.ErrInvalid)
		var cut *CutError
		require.ErrorAs(t, err, &cut)
		require.EqualValues(t, 2, cut.N)
		r = newReader(t, p[0].Table, 0)
		_, err = readItems(t, r, 0, 2)
		require.ErrorAs(t, err, &cut)
		require.EqualError(t, cut.Cause, w.s.end.cause.Error())
	})
}

func TestCutIsStoredWithItsText(t *testing.T) {
	inProcesses(t, 2, func(t *testing.T, _ store.Store, p []*process) {
		w := newWriter(t, p[0].Table, Options{})
		local, r := newReader(t, p[0].Table, 0), newReader(t, p[1].Table, 0)
		appendItems(t, w, 1, 2)
		w.Cut(errTest)
		requireEnd(t, local, 0, 2, &CutError{3, errTest})
		requireEnd(t, r, 0, 2, &CutError{3, errors.New("test cause")})
		requireEnd(t, newReader(t, p[1].Table, 3), 2, 2, &CutError{3, errors.New("test cause")})
		_, err := p[1].Read(t.Context(), "s", user, 4)
		require.Equal(t, ErrAhead, err)
	})
}

// The end is stored, but its process fails before everything that follows from it.
func TestSurvivorFinishesEndedStream(t *testing.T) {
	inProcesses(t, 2, func(t *testing.T, db store.Store, p []*process) {
		w := newWriter(t, p[0].Table, Options{})
		appendItems(t, w, 1, 2)
		require.NoError(t, w.Finish(t.Context(), nil))
		p[0].crash()
		time.Sleep(time.Minute)
		requireEnd(t, newReader(t, p[1].Table, 0), 0, 2, io.EOF)
		time.Sleep(5 * time.Minute)
		_, err := p[1].Read(t.Context(), "s", user, 0)
		require.Equal(t, ErrUnknown, err)
	}, fault.Rule{Action: fault.ErrorBefore, Op: "expire"})
}

func TestLongStreamOutlivesTimeToLive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := store.NewMemory()
		p := []*process{newProcess(t, db, 24*time.Hour), newProcess(t, db, 24*time.Hour)}
		w := newWriter(t, p[0].Table, Options{Grace: -1})
		appendItems(t, w, 1, 2)
		time.Sleep(3 * keep)
		r := newReader(t, p[1].Table, 0)
		require.NoError(t, w.Finish(t.Context(), nil))
		requireEnd(t, r, 0, 2, io.EOF)
	})
}

// As without a store, an open stream is not removed.
func TestRemoveLeavesOpenStreamInStore(t *testing.T) {
	inProcesses(t, 2, func(t *testing.T, db store.Store, p []*process) {
		w := newWriter(t, p[0].Table, Options{})
		require.NoError(t, p[0].Remove(t.Context(), "s"))
		appendItems(t, w, 1, 2)
		require.NoError(t, w.Finish(t.Context(), nil))
		requireEnd(t, newReader(t, p[1].Table, 0), 0, 2, io.EOF)
		require.NoError(t, p[0].Remove(t.Context(), "s"))
		for _, process := range p {
			_, err := process.Read(t.Context(), "s", user, 0)
			require.Equal(t, ErrUnknown, err)
		}
	})
}

// A stream whose end is not stored yet is removed afterwards, so that its id is free.
func TestRemoveAwaitsEnd(t *testing.T) {
	isSlow := false
	inProcesses(t, 2, func(t *testing.T, db store.Store, p []*process) {
		w := newWriter(t, p[0].Table, Options{})
		appendItems(t, w, 1, 2)
		synctest.Wait()
		isSlow = true
		w.Cut(errTest)
		require.NoError(t, p[0].Remove(t.Context(), "s"))
		isSlow = false
		time.Sleep(time.Minute)
		w = newWriter(t, p[0].Table, Options{})
		appendItems(t, w, 1, 3)
		require.NoError(t, w.Finish(t.Context(), nil))
		requireEnd(t, newReader(t, p[1].Table, 0), 0, 3, io.EOF)
	}, fault.Rule{Action: fault.Delay, Op: "append", Delay: 10 * time.Second, When: func(_, _ string) bool { return isSlow }})
}

// Remove waits for all changes that an end makes in the store. They do not affect the next stream of that id.
func TestRemoveAwaitsLifeOfEndedLog(t *testing.T) {
	isFirst := true
	inProcesses(t, 2, func(t *testing.T, db store.Store, p []*process) {
		w := newWriter(t, p[0].Table, Options{})
		appendItems(t, w, 1, 2)
		require.NoError(t, w.Finish(t.Context(), nil))
		require.NoError(t, p[0].Remove(t.Context(), "s"))
		w = newWriter(t, p[0].Table, Options{Grace: -1})
		appendItems(t, w, 1, 3)
		time.Sleep(time.Hour)
		require.NoError(t, w.Finish(t.Context(), nil))
		requireEnd(t, newReader(t, p[1].Table, 0), 0, 3, io.EOF)
	}, fault.Rule{Action: fault.Delay, Op: "expire", Delay: 10 * time.Second, When: func(_, _ string) bool {
		defer func() { isFirst = false }()
		return isFirst
	}})
}

func TestReaderOfExpiredLogEnds(t *testing.T) {
	inProcesses(t, 2, func(t *testing.T, db store.Store, p []*process) {
		w := newWriter(t, p[0].Table, Options{Grace: -1})
		appendItems(t, w, 1, 2)
		r := newReader(t, p[1].Table, 0)
		_, err := readItems(t, r, 0, 2)
		require.NoError(t, err)
		require.NoError(t, db.Expire(t.Context(), logName, 0))
		requireEnd(t, r, 2, 2, ErrUnknown)
	})
}

// No process can end a stream whose log has expired, so its reader does not try that without limit.
func TestReaderOfExpiredLogOfFailedProcessEnds(t *testing.T) {
	inProcesses(t, 2, func(t *testing.T, db store.Store, p []*process) {
		w := newWriter(t, p[0].Table, Options{Grace: -1})
		appendItems(t, w, 1, 2)
		r := newReader(t, p[1].Table, 0)
		_, err := readItems(t, r, 0, 2)
		require.NoError(t, err)
		p[0].crash()
		require.NoError(t, db.Expire(t.Context(), logName, 0))
		requireEnd(t, r, 2, 2, ErrUnknown)
	})
}

func TestReadOfLogThatExpiresIsUnknown(t *testing.T) {
	var db store.Store
	reads := 0
	expire := func(op, name string) bool {
		if op == "read" && name == logName {
			reads++
		}
		if reads == 2 {
			_ = db.Expire(context.Background(), logName, 0)
		}
		return false
	}
	inProcesses(t, 2, func(t *testing.T, memory store.Store, p []*process) {
		db = memory
		appendItems(t, newWriter(t, p[1].Table, Options{Grace: -1}), 1, 10)
		synctest.Wait()
		_, err := p[0].Read(t.Context(), "s", user, 5)
		require.Equal(t, ErrUnknown, err)
	}, fault.Rule{When: expire})
}

func TestReaderDoesNotContinueInLaterStreamOfSameID(t *testing.T) {
	inProcesses(t, 2, func(t *testing.T, db store.Store, p []*process) {
		w := newWriter(t, p[0].Table, Options{Grace: -1})
		appendItems(t, w, 1, 2)
		r := newReader(t, p[1].Table, 0)
		_, err := readItems(t, r, 0, 2)
		require.NoError(t, err)
		require.NoError(t, db.Expire(t.Context(), logName, 0))
		appendItems(t, newWriter(t, p[1].Table, Options{}), 1, 5)
		requireEnd(t, r, 2, 2, ErrUnknown)
	})
}

// A record without items that was trimmed before a reader has read it leaves no gap.
func TestReaderContinuesAfterTrimmedFence(t *testing.T) {
	inProcesses(t, 3, func(t *testing.T, db store.Store, p []*process) {
		o := Options{Movable: true, Grace: -1, Retain: -1}
		appendItems(t, newWriter(t, p[0].Table, o), 1, 2)
		r := newReader(t, p[2].Table, 0)
		_, err := readItems(t, r, 0, 2)
		require.NoError(t, err)
		w := newWriter(t, p[1].Table, o)
		_, err = readItems(t, newReader(t, p[1].Table, 0), 0, 2)
		require.NoError(t, err)
		appendItems(t, w, 3, 3)
		synctest.Wait()
		page, err := db.Read(t.Context(), logName, 0, 10)
		require.NoError(t, err)
		require.Len(t, page, 2, "the opening and the last item")
		_, err = readItems(t, r, 2, 3)
		require.NoError(t, err)
	})
}

func TestDamagedLogIsReported(t *testing.T) {
	inProcesses(t, 2, func(t *testing.T, db store.Store, p []*process) {
		w := newWriter(t, p[0].Table, Options{Grace: -1})
		var positions []uint64
		for n := uint64(1); n <= 9; n++ {
			appendItems(t, w, n, n)
			synctest.Wait()
			positions = append(positions, w.s.log.segments[n-1].pos)
		}
		r := newReader(t, p[1].Table, 0)
		require.NoError(t, db.Ack(t.Context(), logName, positions[4]))
		requireEnd(t, r, 0, 4, &GapError{5, 6})
		_, err := p[1].Read(t.Context(), "s", user, 4)
		require.Equal(t, &GapError{5, 6}, err)
		r = newReader(t, p[1].Table, 7)
		_, err = db.Append(t.Context(), logName, "99", []byte("\x07"), time.Hour)
		require.NoError(t, err)
		_, err = readItems(t, r, 7, 10)
		require.ErrorContains(t, err, `record "99" at position`)
		require.ErrorContains(t, err, "format 7, want format 1")
		_, second := r.Next(t.Context(), nil)
		require.Equal(t, err, second)
	})
}

// Bisection finds a position with few reads.
func TestReadElsewhereFindsNumberByBisection(t *testing.T) {
	var reads atomic.Int64
	count := func(op, name string) bool {
		if op == "read" && strings.HasPrefix(name, logName) {
			reads.Add(1)
		}
		return false
	}
	inProcesses(t, 2, func(t *testing.T, _ store.Store, p []*process) {
		w := newWriter(t, p[1].Table, Options{Grace: -1})
		for n := uint64(1); n <= 5000; n++ {
			appendItems(t, w, n, n)
			synctest.Wait()
		}
		for _, after := range []uint64{0, 1, 2, 700, 4321, 4999, 5000} {
			reads.Store(0)
			r := newReader(t, p[0].Table, after)
			require.LessOrEqual(t, reads.Load(), int64(30), "reads to find item %d", after)
			_, err := readItems(t, r, after, min(after+10, 5000))
			require.NoError(t, err)
			r.Close()
		}
	}, fault.Rule{When: count})
}

func TestReadersElsewhereAreBounded(t *testing.T) {
	inProcesses(t, 1, func(t *testing.T, _ store.Store, p []*process) {
		w := newWriter(t, p[0].Table, Options{Grace: -1})
		for n := range maxReaders + 100 {
			p[0].receive(fmt.Appendf(nil, `{"Key":"cw==","Reader":"%d","At":9}`, n))
		}
		p[0].receive([]byte("{"))
		p[0].receive([]byte(`{"Key":"cw=="}`))
		p[0].receive([]byte(`{"Key":"dA==","Reader":"1"}`))
		require.Len(t, w.s.cursors, maxReaders)
		require.Zero(t, w.s.cursors[0].at, "position ahead of the stream")
	})
}

func TestFenceGivesUpAgainstWriterThatAppends(t *testing.T) {
	var appends atomic.Int64
	rival := func(ctx context.Context, db store.Store, name string) error {
		records, err := db.Read(ctx, name, 0, 1000)
		if err != nil || len(records) == 0 {
			return err
		}
		r := record{Writer: "rival", First: 1, items: [][]byte{nil}}
		if appends.Add(1) > 1 {
			r.First = uint64(appends.Load())
		}
		value, _ := r.encode()
		_, err = db.Append(ctx, name, fmt.Sprint(len(records)+1), value, 0)
		return err
	}
	inProcesses(t, 2, func(t *testing.T, _ store.Store, p []*process) {
		newWriter(t, p[1].Table, Options{Movable: true})
		_, err := p[0].Create(t.Context(), "s", user, Options{Movable: true})
		require.Equal(t, store.ErrConflict, err)
		require.EqualValues(t, maxFences+1, appends.Load())
	}, fault.Rule{Action: fault.Conflict, Op: "append", Match: logName, Rival: rival})
}

// The caller of Create leaves while the store does not answer: the stream is cut, and its id is free.
func TestStreamIsCutIfCallerLeavesDuringCreate(t *testing.T) {
	inProcesses(t, 2, func(t *testing.T, db store.Store, p []*process) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		start := time.Now()
		_, err := p[0].Create(ctx, "s", user, Options{})
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Equal(t, time.Second, time.Since(start))
		time.Sleep(10 * time.Second)
		requireEnd(t, newReader(t, p[1].Table, 0), 0, 0, &CutError{1, errors.New(context.DeadlineExceeded.Error())})
		for e := range db.List(t.Context(), "x/work/") {
			t.Errorf("index entry %s of the ended stream", e.Key)
		}
		time.Sleep(time.Hour)
		newWriter(t, p[1].Table, Options{})
	}, fault.Rule{Action: fault.Hang, Op: "append", Match: logName, Limit: 1, Delay: 5 * time.Second})
}

// A process that is fenced and has not noticed it yet serves positions that only the log has.
func TestFencedProcessReadsStore(t *testing.T) {
	inProcesses(t, 2, func(t *testing.T, _ store.Store, p []*process) {
		o := Options{Movable: true, Grace: -1}
		old := newWriter(t, p[0].Table, o)
		appendItems(t, old, 1, 10)
		synctest.Wait()
		w := newWriter(t, p[1].Table, o)
		appendItems(t, w, 11, 20)
		synctest.Wait()
		_, err := readItems(t, newReader(t, p[0].Table, 15), 15, 20)
		require.NoError(t, err)
		_, err = p[0].Read(t.Context(), "s", user, 21)
		require.Equal(t, ErrAhead, err)
	})
}

// A stream that is lost to another process, or at the end of the lease, has no timer, which may be due in years and
// keeps the items.
func TestLostStreamHasNoTimer(t *testing.T) {
	for _, o := range []Options{{Movable: true, Grace: -1}, {Movable: true, SlowTimeout: -1}} {
		for _, lose := range []func(t *testing.T, p []*process, w *Writer){
			func(t *testing.T, p []*process, w *Writer) {
				appendItems(t, newWriter(t, p[1].Table, o), 2, 2)
				_, err := w.Append(t.Context(), number(2)) // fenced
				require.NoError(t, err)
			},
			func(t *testing.T, p []*process, _ *Writer) { require.NoError(t, p[0].lease.Release(t.Context())) },
		} {
			inProcesses(t, 2, func(t *testing.T, _ store.Store, p []*process) {
				w := newWriter(t, p[0].Table, o)
				appendItems(t, w, 1, 1)
				if o.SlowTimeout < 0 {
					newReader(t, p[0].Table, 0)
				}
				synctest.Wait()
				lose(t, p, w)
				<-w.Done()
				synctest.Wait()
				require.False(t, w.s.timer.Stop(), "the timer runs")
			})
		}
	}
}

type panickingStore struct {
	store.Store
	isOn   atomic.Bool
	isExit bool // it ends the goroutine instead
}

func (s *panickingStore) Append(
	ctx context.Context, stream, id string, value []byte, ttl time.Duration,
) (uint64, error) {
	if s.isOn.Load() && strings.HasPrefix(stream, logName) {
		if s.isExit {
			runtime.Goexit()
		}
		panic("test")
	}
	return s.Store.Append(ctx, stream, id, value, ttl)
}

func TestPanicOfStoreIsUnknownOutcome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := &panickingStore{Store: store.NewMemory()}
		p := newProcess(t, db, 0)
		w := newWriter(t, p.Table, Options{})
		r := newReader(t, p.Table, 0)
		db.isOn.Store(true)
		appendItems(t, w, 1, 1)
		time.Sleep(5 * time.Second)
		require.Zero(t, visible(w.s))
		db.isOn.Store(false)
		require.NoError(t, w.Finish(t.Context(), nil))
		requireEnd(t, r, 0, 1, io.EOF)
	})
}

// A store that ends the goroutine of a flush ends the stream. Finish and Remove return.
func TestStoreThatEndsFlushEndsStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := &panickingStore{Store: store.NewMemory(), isExit: true}
		p := newProcess(t, db, 0)
		w := newWriter(t, p.Table, Options{})
		db.isOn.Store(true)
		appendItems(t, w, 1, 1)
		require.ErrorIs(t, w.Finish(t.Context(), nil), lease.ErrLost)
		require.NoError(t, p.Remove(t.Context(), "s"))
	})
}

func FuzzDecodeReturnsEncodedRecord(f *testing.F) {
	r := record{Writer: "w", Owner: "o@1", First: 7, IsEnd: true, Cause: "c", items: [][]byte{[]byte("a"), {}}}
	value, err := r.encode()
	require.NoError(f, err)
	f.Add(value)
	f.Add([]byte("\x01\x02{}"))
	f.Fuzz(func(t *testing.T, value []byte) {
		r, err := decode(store.Record{ID: "1", Value: value})
		if err != nil {
			return
		}
		value, err = r.encode()
		require.NoError(t, err)
		second, err := decode(store.Record{ID: "1", Value: value})
		require.NoError(t, err)
		require.Equal(t, r, second)
	})
}
