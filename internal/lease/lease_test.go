// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package lease_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/fivewire/fivewire/conformance/fault"
	"github.com/fivewire/fivewire/internal/lease"
	"github.com/fivewire/fivewire/internal/option"
	"github.com/fivewire/fivewire/internal/testkit"
	"github.com/fivewire/fivewire/store"
)

const ttl = 15 * time.Second

var quiet = slog.New(slog.DiscardHandler)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// acquire returns a lease that ends with the test.
func acquire(t *testing.T, db store.Store, o lease.Options) *lease.Lease {
	t.Helper()
	if o.Logger == nil {
		o.Logger = quiet
	}
	l, err := lease.Acquire(t.Context(), db, o)
	require.NoError(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = l.Release(ctx)
	})
	return l
}

// A worker keeps its records in memory, as a store of several processes would.
type worker struct {
	mu      sync.Mutex
	records map[string]lease.Owner // "" after the end
	adopted map[string]int
	calls   int       // of the function of Adopt
	at      time.Time // of the last adoption
}

func newWorker() *worker {
	return &worker{records: map[string]lease.Owner{}, adopted: map[string]int{}}
}

func (w *worker) create(t *testing.T, l *lease.Lease, ids ...string) {
	t.Helper()
	for _, id := range ids {
		owner, err := l.Start(t.Context(), "k", id)
		require.NoError(t, err)
		w.mu.Lock()
		w.records[id] = owner
		w.mu.Unlock()
	}
}

func (w *worker) adoptFor(l *lease.Lease) {
	l.Adopt("k", func(ctx context.Context, id string, from, to lease.Owner) (lease.Found, error) {
		for {
			w.mu.Lock()
			w.calls++
			owner, isPresent := w.records[id]
			w.mu.Unlock()
			isAlive, err := l.Alive(ctx, owner)
			switch {
			case err != nil:
				return 0, err
			case !isPresent:
				return lease.Absent, nil
			case owner == "":
				return lease.Ended, nil
			case isAlive:
				return lease.Held, nil
			case w.change(id, owner, to):
				return lease.Taken, nil
			}
		}
	})
}

// change is a compare-and-set of an owner.
func (w *worker) change(id string, from, to lease.Owner) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.records[id] != from {
		return false
	}
	w.records[id] = to
	w.adopted[id]++
	w.at = time.Now()
	return true
}

// owners returns the number of records of each owner.
func (w *worker) owners() map[lease.Owner]int {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := map[lease.Owner]int{}
	for _, owner := range w.records {
		n[owner]++
	}
	return n
}

func ids(n int) []string {
	list := make([]string, n)
	for i := range list {
		list[i] = fmt.Sprint(i)
	}
	return list
}

// advance sleeps and then waits until all goroutines block.
func advance(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// keys returns the keys below a prefix.
func keys(t *testing.T, db store.KV, prefix string) []string {
	t.Helper()
	var list []string
	for e, err := range db.List(t.Context(), prefix) {
		require.NoError(t, err)
		list = append(list, e.Key)
	}
	return list
}

// A countedStore counts its calls and the entries that lists yield.
type countedStore struct {
	store.Store
	reads, writes, entries, waits atomic.Int64
}

func (s *countedStore) calls() [4]int64 {
	return [4]int64{s.reads.Load(), s.writes.Load(), s.entries.Load(), s.waits.Load()}
}

func (s *countedStore) Get(ctx context.Context, key string) (store.Entry, error) {
	s.reads.Add(1)
	return s.Store.Get(ctx, key)
}

func (s *countedStore) Create(
	ctx context.Context, key string, value []byte, ttl time.Duration,
) (store.Revision, error) {
	s.writes.Add(1)
	return s.Store.Create(ctx, key, value, ttl)
}

func (s *countedStore) Update(
	ctx context.Context, key string, value []byte, rev store.Revision, ttl time.Duration,
) (store.Revision, error) {
	s.writes.Add(1)
	return s.Store.Update(ctx, key, value, rev, ttl)
}

func (s *countedStore) Delete(ctx context.Context, key string, rev store.Revision) error {
	s.writes.Add(1)
	return s.Store.Delete(ctx, key, rev)
}

func (s *countedStore) List(ctx context.Context, prefix string) iter.Seq2[store.Entry, error] {
	s.reads.Add(1)
	return func(yield func(store.Entry, error) bool) {
		for e, err := range s.Store.List(ctx, prefix) {
			s.entries.Add(1)
			if !yield(e, err) {
				return
			}
		}
	}
}

func (s *countedStore) Read(ctx context.Context, stream string, after uint64, limit int) ([]store.Record, error) {
	s.reads.Add(1)
	return s.Store.Read(ctx, stream, after, limit)
}

func (s *countedStore) Wait(ctx context.Context, stream string, after uint64) error {
	s.waits.Add(1)
	return s.Store.Wait(ctx, stream, after)
}

// outage makes a store fail while it is set.
func outage(db store.Store) (store.Store, *atomic.Bool) {
	var isAway atomic.Bool
	plan := &fault.Plan{Rules: []fault.Rule{{When: func(_, _ string) bool { return isAway.Load() }}}}
	return fault.Store(db, plan), &isAway
}

func TestLeaseSurvivesStoreOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db, isAway := outage(store.NewMemory())
		isLost, owners := false, 0
		l := acquire(t, db, lease.Options{InstanceID: "a", OnLost: func(context.Context) { isLost = true }, OnOwner: func() { owners++ }})
		w := newWorker()
		w.adoptFor(l)
		w.create(t, l, "1", "2")
		first, ctx := l.Owner(), l.Context()
		isAway.Store(true)
		advance(20 * time.Second)
		require.ErrorIs(t, context.Cause(ctx), lease.ErrLost)
		_, err := l.Start(t.Context(), "k", "3")
		require.ErrorIs(t, err, lease.ErrLost)
		isAlive, err := l.Alive(t.Context(), first)
		require.NoError(t, err)
		require.False(t, isAlive, "Alive after 20 s without a store")

		isAway.Store(false)
		advance(time.Second)
		require.NoError(t, l.Context().Err())
		require.NotEqual(t, first, l.Owner(), "owner after the outage")
		require.Equal(t, map[lease.Owner]int{l.Owner(): 2}, w.owners())
		require.False(t, isLost, "OnLost called")
		require.Equal(t, 1, owners, "calls of OnOwner")
		require.NoError(t, l.Finish(t.Context(), l.Owner(), "k", "1"))
		require.Equal(t, []string{"work/" + string(l.Owner()) + "/k/2"}, keys(t, db, "work/"))
	})
}

// The fence of an epoch does not wait for OnOwner.
func TestSlowOnOwnerDelaysNoFence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db, isAway := outage(store.NewMemory())
		called := make(chan time.Time, 1)
		var once sync.Once
		l := acquire(t, db, lease.Options{InstanceID: "a", OnOwner: func() {
			once.Do(func() {
				called <- time.Now()
				time.Sleep(time.Minute)
			})
		}})
		isAway.Store(true)
		advance(20 * time.Second)
		isAway.Store(false)
		begin := <-called
		ctx := l.Context()
		isAway.Store(true)
		<-ctx.Done()
		require.LessOrEqual(t, time.Since(begin), 13*time.Second, "end of the epoch")
		isAway.Store(false)
		time.Sleep(time.Minute) // OnOwner has returned
	})
}

func TestLeaseBridgesShortStoreOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db, isAway := outage(store.NewMemory())
		l := acquire(t, db, lease.Options{})
		for range 20 {
			ctx := l.Context()
			isAway.Store(true)
			advance(6 * time.Second)
			isAway.Store(false)
			advance(time.Second)
			require.NoError(t, ctx.Err(), "epoch after an outage of 6 s")
		}
	})
}

func TestLeaseIsFencedAtFiveSixthsOfTTL(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db, isAway := outage(store.NewMemory())
		l := acquire(t, db, lease.Options{})
		isAway.Store(true)
		ctx, start := l.Context(), time.Now()
		<-ctx.Done()
		require.Equal(t, ttl*5/6, time.Since(start), "time from the last renewal to the fence")
	})
}

func TestLongestLeaseIsHeld(t *testing.T) {
	for _, d := range []time.Duration{100 * 365 * 24 * time.Hour, option.Off, math.MaxInt64} {
		synctest.Test(t, func(t *testing.T) {
			var updates atomic.Int64
			count := func(string, string) bool { updates.Add(1); return false }
			db := fault.Store(store.NewMemory(), &fault.Plan{Rules: []fault.Rule{{Op: "update", When: count, Action: fault.ErrorBefore}}})
			l := acquire(t, db, lease.Options{TTL: d})
			first := l.Context()
			time.Sleep(time.Hour)
			require.NoError(t, first.Err(), d)
			require.Less(t, updates.Load(), int64(10), d)
		})
	}
}

// A lease of 15 ns, where a unit was forgotten, would end before each renewal.
func TestShortestLeaseIsHeld(t *testing.T) {
	for _, d := range []time.Duration{1, 15} {
		synctest.Test(t, func(t *testing.T) {
			l := acquire(t, store.NewMemory(), lease.Options{TTL: d})
			first := l.Context()
			time.Sleep(time.Minute)
			require.NoError(t, first.Err())
		})
	}
}

func TestStoppedProcessLosesItsWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db, plan := store.NewMemory(), &fault.Plan{}
		a := acquire(t, fault.Store(db, plan), lease.Options{})
		b := acquire(t, db, lease.Options{})
		w := newWorker()
		w.adoptFor(a)
		w.adoptFor(b)
		w.create(t, a, "1")
		first := a.Owner()
		advance(time.Minute)
		plan.Pause()
		advance(20 * time.Second)
		require.Equal(t, map[lease.Owner]int{b.Owner(): 1}, w.owners())
		plan.Resume()
		advance(ttl)
		require.NoError(t, a.Finish(t.Context(), first, "k", "1"), "Finish of an epoch that has ended")
		require.NoError(t, a.Context().Err())
		require.NotEqual(t, first, a.Owner())
		isAlive, err := b.Alive(t.Context(), first)
		require.NoError(t, err)
		require.False(t, isAlive, "first epoch is alive")
		require.Equal(t, map[lease.Owner]int{b.Owner(): 1}, w.owners())
	})
}

func TestTakeOverEndsWithinFourThirdsOfTTL(t *testing.T) {
	for i := range 20 {
		synctest.Test(t, func(t *testing.T) {
			db, plan := store.NewMemory(), &fault.Plan{}
			a := acquire(t, fault.Store(db, plan), lease.Options{})
			w := newWorker()
			w.create(t, a, ids(20)...)
			advance(time.Duration(i) * 777 * time.Millisecond)
			w.adoptFor(acquire(t, db, lease.Options{}))
			w.adoptFor(acquire(t, db, lease.Options{}))
			advance(time.Duration(i) * 333 * time.Millisecond)
			plan.Crash()
			start := time.Now()
			advance(ttl + ttl/3)
			require.Len(t, w.adopted, 20, "adopted records")
			require.LessOrEqual(t, w.at.Sub(start), ttl+ttl/3)
			require.Zero(t, w.owners()[a.Owner()])
		})
	}
}

func TestReleaseHandsWorkOverAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := store.NewMemory()
		a, b := acquire(t, db, lease.Options{}), acquire(t, db, lease.Options{})
		w := newWorker()
		w.adoptFor(b)
		w.create(t, a, ids(100)...)
		advance(time.Minute)
		start, ctx := time.Now(), a.Context()
		require.NoError(t, a.Release(t.Context()))
		synctest.Wait()
		require.Equal(t, start, time.Now())
		require.Equal(t, map[lease.Owner]int{b.Owner(): 100}, w.owners())
		require.ErrorIs(t, context.Cause(ctx), lease.ErrClosed)
		_, err := a.Start(t.Context(), "k", "1")
		require.ErrorIs(t, err, lease.ErrClosed)
		require.ErrorIs(t, a.Tell(t.Context(), b.Owner(), "t", nil), lease.ErrClosed)
		require.ErrorIs(t, a.WaitRecovered(t.Context()), lease.ErrClosed)
		require.NoError(t, a.Release(t.Context()), "second Release")
		advance(2 * time.Hour)
		require.Equal(t, []string{"owner/" + string(b.Owner())}, keys(t, db, "owner/"))
	})
}

func TestReleaseReturnsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := store.NewMemory()
		a, b := acquire(t, db, lease.Options{}), acquire(t, db, lease.Options{})
		newWorker().create(t, a, "1")
		require.NoError(t, a.Release(t.Context()))
		end := make(chan struct{})
		b.Adopt("k", func(context.Context, string, lease.Owner, lease.Owner) (lease.Found, error) {
			<-end
			return lease.Absent, nil
		})
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		require.ErrorIs(t, b.Release(ctx), context.DeadlineExceeded)
		require.Len(t, keys(t, db, "lease/"), 1, "leases")
		close(end)
	})
}

func TestNewerProcessWins(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := store.NewMemory()
		var calls, errorRecords atomic.Int64
		var a *lease.Lease
		logger := slog.New(errorCounter{slog.DiscardHandler, &errorRecords})
		a = acquire(t, db, lease.Options{InstanceID: "x/y", Logger: logger, OnLost: func(ctx context.Context) {
			calls.Add(1)
			if err := a.Release(ctx); err != nil {
				t.Errorf("Release: got %v, want nil", err)
			}
			panic("hook")
		}})
		w := newWorker()
		w.adoptFor(a)
		w.create(t, a, "1")
		advance(time.Minute)
		b := acquire(t, db, lease.Options{InstanceID: "x/y"})
		w.adoptFor(b)
		require.NoError(t, b.WaitRecovered(t.Context()))
		require.Equal(t, map[lease.Owner]int{b.Owner(): 1}, w.owners(), "work of the earlier epoch")
		require.NoError(t, a.Context().Err(), "before the next renewal")
		owner := b.Owner()
		advance(time.Hour)
		require.ErrorIs(t, context.Cause(a.Context()), lease.ErrLost)
		_, err := a.Start(t.Context(), "k", "2")
		require.ErrorIs(t, err, lease.ErrLost)
		require.EqualValues(t, 1, calls.Load(), "calls of OnLost")
		require.EqualValues(t, 2, errorRecords.Load(), "Error records: lease lost, hook failed")
		require.NoError(t, b.Context().Err())
		require.Equal(t, owner, b.Owner(), "Release leaves the lease of the newer process")
	})
}

func TestRoundWithoutLeaseAdoptsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db, w := store.NewMemory(), newWorker()
		a := acquire(t, db, lease.Options{InstanceID: "a"})
		b := acquire(t, db, lease.Options{InstanceID: "a"})
		w.create(t, b, "1")
		first := a.Owner()
		require.NoError(t, b.Release(t.Context()))
		w.adoptFor(a)
		synctest.Wait()
		w.mu.Lock()
		calls := w.calls
		w.mu.Unlock()
		require.Zero(t, calls, "calls before the next renewal")
		advance(ttl)
		require.NotEqual(t, first, a.Owner())
		require.Equal(t, map[lease.Owner]int{a.Owner(): 1}, w.owners())
	})
}

type errorCounter struct {
	slog.Handler
	n *atomic.Int64
}

func (c errorCounter) Enabled(context.Context, slog.Level) bool { return true }

func (c errorCounter) Handle(_ context.Context, r slog.Record) error {
	if r.Level >= slog.LevelError {
		c.n.Add(1)
	}
	return nil
}

func TestSurvivorsAdoptManyEntries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 10_000
		db, w := store.NewMemory(), newWorker()
		a := acquire(t, db, lease.Options{})
		w.create(t, a, ids(n)...)
		plan := &fault.Plan{Rules: []fault.Rule{{Action: fault.Delay, Delay: 2 * time.Millisecond}}}
		for range 3 {
			w.adoptFor(acquire(t, fault.Store(db, plan), lease.Options{}))
		}
		advance(time.Minute)
		start := time.Now()
		require.NoError(t, a.Release(t.Context()))
		advance(20 * time.Second)
		require.Len(t, w.adopted, n, "adopted records")
		require.Less(t, w.at.Sub(start), 10*time.Second)
		for id, times := range w.adopted {
			require.Equal(t, 1, times, "adoptions of %s", id)
		}
		require.Len(t, keys(t, db, "work/"), n, "index entries")
		require.Less(t, w.calls, n*5/4, "calls for %d records", n)
	})
}

// The owners of the last hour, each of which leaves an entry for that time, do not delay a
// take-over on a slow store.
func TestManyEarlierOwnersDelayNoTakeOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db, w := store.NewMemory(), newWorker()
		for i := range 500 {
			_, err := store.Modify(t.Context(), db, fmt.Sprint("owner/earlier@", i), time.Hour, func(store.Entry, bool) ([]byte, error) { return []byte{}, nil })
			require.NoError(t, err)
		}
		plan := &fault.Plan{Rules: []fault.Rule{{Action: fault.Delay, Delay: 100 * time.Millisecond, Op: "list"}}}
		a, b := acquire(t, db, lease.Options{}), acquire(t, fault.Store(db, plan), lease.Options{})
		w.adoptFor(b)
		w.create(t, a, ids(10)...)
		require.NoError(t, a.Release(t.Context()))
		ctx, cancel := context.WithTimeout(t.Context(), ttl)
		defer cancel()
		require.NoError(t, b.WaitRecovered(ctx))
		require.Len(t, w.adopted, 10)
	})
}

func TestRoundCostsNothingForFinishedAndRunningWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db, w := &countedStore{Store: store.NewMemory()}, newWorker()
		a, b := acquire(t, db, lease.Options{}), acquire(t, db, lease.Options{})
		w.adoptFor(a)
		w.adoptFor(b)
		cost := func() (delta [4]int64) {
			require.NoError(t, b.WaitRecovered(t.Context()))
			synctest.Wait()
			before := db.calls()
			advance(10 * time.Minute)
			for i, n := range db.calls() {
				delta[i] = n - before[i]
			}
			return delta
		}
		idle := cost()
		require.LessOrEqual(t, idle[0]+idle[1], int64(2*130*4), "calls of two instances in 10 minutes")
		require.Zero(t, idle[3], "Waits that returned")
		w.create(t, a, ids(20_000)...)
		for _, id := range ids(10_000) {
			require.NoError(t, a.Finish(t.Context(), a.Owner(), "k", id))
		}
		loaded := cost()
		for i := range idle {
			require.InDelta(t, idle[i], loaded[i], float64(idle[i])/10, "count %d, idle %v, loaded %v", i, idle, loaded)
		}
	})
}

func TestStartsOfOneItemAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db, ctx := store.NewMemory(), t.Context()
		l := acquire(t, db, lease.Options{Prefix: "p/"})
		long := strings.Repeat("x/", 500)
		for range 3 {
			owner, err := l.Start(ctx, "k", long)
			require.NoError(t, err)
			require.Equal(t, l.Owner(), owner)
		}
		for range 2 {
			require.NoError(t, l.Finish(ctx, l.Owner(), "k", long))
		}
		require.Len(t, keys(t, db, "p/work/"+string(l.Owner())+"/k/"), 1, "entries after 3 Starts and 2 Finishes")
		require.NoError(t, l.Finish(ctx, l.Owner(), "k", long))
		require.Empty(t, keys(t, db, "p/work/"))
		require.Error(t, l.Finish(ctx, l.Owner(), "k", long), "Finish without Start")
	})
}

// From the return of Start to the call of Finish the entry is present.
// An instance whose lease seemed expired has its entry again after a further Start, with a new revision, so that a
// deletion of the earlier entry fails.
func TestFurtherStartWritesTheEntryAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db, ctx := store.NewMemory(), t.Context()
		l := acquire(t, db, lease.Options{Prefix: "p/"})
		owner, err := l.Start(ctx, "k", "x")
		require.NoError(t, err)
		key := "p/work/" + string(owner) + "/k/x"
		old, err := db.Get(ctx, key)
		require.NoError(t, err)
		_, err = l.Start(ctx, "k", "x")
		require.NoError(t, err)
		require.ErrorIs(t, db.Delete(ctx, key, old.Revision), store.ErrConflict)
		require.NoError(t, db.Delete(ctx, key, 0))
		_, err = l.Start(ctx, "k", "x")
		require.NoError(t, err)
		require.Len(t, keys(t, db, key), 1)
		for range 3 {
			require.NoError(t, l.Finish(ctx, owner, "k", "x"))
		}
		require.Empty(t, keys(t, db, "p/work/"))
	})
}

func TestConcurrentStartsKeepTheirEntry(t *testing.T) {
	for seed := range uint64(20) {
		synctest.Test(t, func(t *testing.T) {
			db := store.NewMemory()
			plan := &fault.Plan{Seed: seed, Rules: []fault.Rule{
				{Action: fault.Delay, Match: "work/", Probability: 0.5, Delay: 3 * time.Second},
				{Action: fault.LandLater, Op: "delete", Match: "work/", Probability: 0.3, Delay: 10 * time.Second},
				{Action: fault.ErrorAfter, Match: "work/", Probability: 0.1},
			}}
			l := acquire(t, fault.Store(db, plan), lease.Options{})
			var wg sync.WaitGroup
			for i := range 3 {
				wg.Go(func() {
					for range 30 {
						time.Sleep(time.Duration(i) * 7 * time.Second)
						owner, err := l.Start(t.Context(), "k", "1")
						if err != nil {
							continue
						}
						for range 4 {
							if _, err := db.Get(t.Context(), "work/"+string(owner)+"/k/1"); err != nil {
								t.Errorf("seed %d: entry between Start and Finish: got %v, want nil", seed, err)
							}
							time.Sleep(time.Duration(i) * 3 * time.Second)
						}
						if err := l.Finish(t.Context(), owner, "k", "1"); err != nil {
							t.Errorf("Finish: got %v, want nil", err)
						}
					}
				})
			}
			wg.Wait()
			plan.Flush()
			_ = l.Release(t.Context())
			time.Sleep(time.Hour) // repetitions in the background end
		})
	}
}

// The entry of a Start that failed may still be created behind it. It is not left in the store.
func TestEntryOfFailedStartDoesNotStay(t *testing.T) {
	for _, isPrivate := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			db := store.NewMemory()
			isWork := func(_, key string) bool { return strings.HasPrefix(key, "work/") }
			plan := &fault.Plan{Rules: []fault.Rule{{Action: fault.Hang, Op: "create", When: isWork, Delay: 20 * time.Second, Limit: 2}}}
			l := acquire(t, fault.Store(db, plan), lease.Options{Private: isPrivate})
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			_, err := l.Start(ctx, "kind", "1")
			require.ErrorIs(t, err, store.ErrUnknown)
			synctest.Wait() // until the creation is repeated
			owner, err := l.Start(t.Context(), "kind", "1")
			require.NoError(t, err)
			require.NoError(t, l.Finish(t.Context(), owner, "kind", "1"))
			time.Sleep(time.Hour)
			for e, err := range db.List(t.Context(), "work/") {
				require.NoError(t, err)
				t.Errorf("%s", e.Key)
			}
		})
	}
}

func TestFinishedEntryIsDeletedAfterOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db, ctx := store.NewMemory(), t.Context()
		var isAway atomic.Bool
		match := func(_, name string) bool { return isAway.Load() && strings.HasPrefix(name, "work/") }
		l := acquire(t, fault.Store(db, &fault.Plan{Rules: []fault.Rule{{When: match}}}), lease.Options{})
		newWorker().create(t, l, "1")
		synctest.Wait()
		isAway.Store(true)
		require.NoError(t, l.Finish(ctx, l.Owner(), "k", "1"))
		limited, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		_, err := l.Start(limited, "k", "2")
		require.Error(t, err)
		isAway.Store(false)
		require.Len(t, keys(t, db, "work/"), 1)
		advance(ttl)
		require.Empty(t, keys(t, db, "work/"))
	})
}

func TestEntryWithoutRecordStaysForLateCreate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db, w := store.NewMemory(), newWorker()
		a, b := acquire(t, db, lease.Options{}), acquire(t, db, lease.Options{})
		for _, id := range []string{"late", "never"} {
			_, err := a.Start(t.Context(), "k", id)
			require.NoError(t, err)
		}
		require.NoError(t, a.Release(t.Context()))
		w.adoptFor(b)
		advance(9 * time.Minute)
		require.Len(t, keys(t, db, "work/"+string(a.Owner())), 2)
		w.mu.Lock()
		w.records["late"] = a.Owner()
		w.mu.Unlock()
		advance(2 * time.Minute)
		require.Equal(t, map[lease.Owner]int{b.Owner(): 1}, w.owners())
		require.Equal(t, []string{"work/" + string(b.Owner()) + "/k/late"}, keys(t, db, "work/"))
	})
}

func TestEntryOfOwnerThatWasAliveShortlyBeforeIsTaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db, w := store.NewMemory(), newWorker()
		a, b := acquire(t, db, lease.Options{}), acquire(t, db, lease.Options{})
		w.create(t, a, "1")
		w.adoptFor(b)
		isAlive, err := b.Alive(t.Context(), a.Owner())
		require.NoError(t, err)
		require.True(t, isAlive)
		require.NoError(t, a.Release(t.Context()))
		synctest.Wait()
		require.Equal(t, map[lease.Owner]int{b.Owner(): 1}, w.owners())
	})
}

func TestWorkOfOldEpochIsAdopted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db, plan, w := store.NewMemory(), &fault.Plan{}, newWorker()
		a, b := acquire(t, fault.Store(db, plan), lease.Options{}), acquire(t, db, lease.Options{})
		w.adoptFor(b)
		w.create(t, a, "1")
		advance(3 * time.Hour)
		plan.Crash()
		advance(ttl + ttl/3)
		require.Equal(t, map[lease.Owner]int{b.Owner(): 1}, w.owners())
	})
}

// An entry and a record that land half an hour after the end of their owner are adopted, and the
// owner entry stays as long as the entry does.
func TestLateEntryOfOwnerWithoutEntriesIsAdopted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db, w, other := store.NewMemory(), newWorker(), newWorker()
		a, b := acquire(t, db, lease.Options{}), acquire(t, db, lease.Options{})
		w.adoptFor(b)
		require.NoError(t, a.Release(t.Context()))
		advance(30 * time.Minute)
		for _, kind := range []string{"k", "other"} {
			_, err := store.Modify(t.Context(), db, "work/"+string(a.Owner())+"/"+kind+"/1", 0,
				func(store.Entry, bool) ([]byte, error) { return []byte("1"), nil })
			require.NoError(t, err)
		}
		w.mu.Lock()
		w.records["1"], other.records["1"] = a.Owner(), a.Owner()
		w.mu.Unlock()
		advance(ttl)
		require.Equal(t, map[lease.Owner]int{b.Owner(): 1}, w.owners())
		advance(2 * time.Hour)
		b.Adopt("other", func(_ context.Context, id string, from, to lease.Owner) (lease.Found, error) {
			other.change(id, from, to)
			return lease.Taken, nil
		})
		advance(ttl)
		require.Equal(t, map[lease.Owner]int{b.Owner(): 1}, other.owners())
		advance(2 * time.Hour)
		require.Equal(t, []string{"owner/" + string(b.Owner())}, keys(t, db, "owner/"))
	})
}

// An attempt of an earlier epoch is not another process.
func TestFailedAttemptIsReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var isAway atomic.Bool
		m := store.NewMemory()
		plan := &fault.Plan{Rules: []fault.Rule{
			{Action: fault.ErrorAfter, Op: "update", When: func(_, name string) bool { return isAway.Load() }},
		}}
		l := acquire(t, fault.Store(m, plan), lease.Options{OnLost: func(context.Context) { t.Error("OnLost called") }})
		first, holders := l.Owner(), map[string]bool{}
		isAway.Store(true)
		for range 300 {
			advance(time.Second)
			for e, err := range m.List(t.Context(), "lease/") {
				require.NoError(t, err)
				e, err = store.Content(e)
				require.NoError(t, err)
				holders[string(e.Value)] = len(e.Value) > 0
			}
		}
		require.ErrorIs(t, context.Cause(l.Context()), lease.ErrLost)
		isAway.Store(false)
		advance(time.Minute)
		require.NoError(t, l.Context().Err())
		require.NotEqual(t, first, l.Owner())
		require.Greater(t, len(holders), 1, "epochs with a lease")
		advance(2 * time.Hour)
		require.Equal(t, []string{"owner/" + string(l.Owner())}, keys(t, m, "owner/"))
	})
}

// A Create of a failed Acquire that is made after the expiry of a later lease names no other process.
func TestLateCreateOfFailedAcquireIsIgnored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := &lateCreates{Memory: store.NewMemory()}
		db.isAway.Store(true)
		o := lease.Options{InstanceID: "a", OnLost: func(context.Context) { t.Error("OnLost called") }, Logger: quiet}
		_, err := lease.Acquire(t.Context(), db, o)
		require.Error(t, err)
		db.isAway.Store(false)
		l, other := acquire(t, db, o), acquire(t, db, lease.Options{InstanceID: "b"})
		first := l.Owner()
		_, err = other.Start(t.Context(), "k", "1")
		require.NoError(t, err)
		synctest.Wait() // the store has repeated the Create of the failed Acquire
		require.NoError(t, db.Delete(t.Context(), "lease/a", 0))
		db.land(t)
		require.NoError(t, other.Release(t.Context()))
		messages, err := db.Read(t.Context(), "tell/", 0, 0)
		require.NoError(t, err)
		require.Empty(t, messages, "messages to no owner")
		advance(ttl)
		require.NotEqual(t, first, l.Owner())
		_, err = l.Start(t.Context(), "k", "2")
		require.NoError(t, err)
	})
}

// lateCreates gives no answer to Creates of leases while it is away, and makes them later.
type lateCreates struct {
	*store.Memory
	isAway atomic.Bool
	mu     sync.Mutex
	late   []store.Entry
}

func (s *lateCreates) Create(ctx context.Context, key string, value []byte, ttl time.Duration) (store.Revision, error) {
	if !s.isAway.Load() || !strings.HasPrefix(key, "lease/") {
		return s.Memory.Create(ctx, key, value, ttl)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.late = append(s.late, store.Entry{Key: key, Value: slices.Clone(value)})
	return 0, errors.New("no answer")
}

// land makes the first of the late Creates, which lets the others fail.
func (s *lateCreates) land(t *testing.T) {
	s.mu.Lock()
	defer s.mu.Unlock()
	require.NotEmpty(t, s.late, "late Creates")
	_, err := s.Memory.Create(t.Context(), s.late[0].Key, s.late[0].Value, ttl)
	require.NoError(t, err)
}

func TestLeaseThatExpiresDuringAcquireIsWrittenAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := &shortLeases{Memory: store.NewMemory(), t: t, n: 3}
		l := acquire(t, db, lease.Options{InstanceID: "a"})
		require.Zero(t, db.n)
		advance(ttl)
		require.NoError(t, l.Context().Err())
	})
}

// shortLeases lets the first n leases expire at once.
type shortLeases struct {
	*store.Memory
	t *testing.T
	n int
}

func (s *shortLeases) Create(ctx context.Context, key string, value []byte, ttl time.Duration) (store.Revision, error) {
	rev, err := s.Memory.Create(ctx, key, value, ttl)
	if err != nil || !strings.HasPrefix(key, "lease/") {
		return rev, err
	}
	if e, err := store.Content(store.Entry{Value: value}); err != nil || len(e.Value) > 0 {
		s.t.Errorf("Create of a lease: got %q, %v, want no owner", e.Value, err)
	}
	if s.n > 0 {
		s.n--
		err = s.Delete(ctx, key, rev)
	}
	return rev, err
}

// A slow answer of an earlier moment does not make a failed owner alive again.
func TestFailedOwnerStaysFailed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, w := store.NewMemory(), newWorker()
		a := acquire(t, m, lease.Options{InstanceID: "a"})
		b := acquire(t, slowAnswers{m}, lease.Options{})
		w.create(t, a, "1")
		go func() {
			isAlive, err := b.Alive(t.Context(), a.Owner())
			if isAlive || err != nil {
				t.Errorf("Alive: got %v, %v, want false, nil", isAlive, err)
			}
		}()
		synctest.Wait()
		require.NoError(t, a.Release(t.Context()))
		b.Adopt("k", func(ctx context.Context, id string, from, to lease.Owner) (lease.Found, error) {
			pause(time.Second + 1)
			isAlive, err := b.Alive(ctx, from)
			if isAlive || err != nil {
				t.Errorf("Alive: got %v, %v, want false, nil", isAlive, err)
			}
			return lease.Ended, err
		})
		advance(ttl)
	})
}

func pause(d time.Duration) { <-time.After(d) }

// slowAnswers delays the answers about the lease of instance a.
type slowAnswers struct{ *store.Memory }

func (s slowAnswers) Get(ctx context.Context, key string) (store.Entry, error) {
	e, err := s.Memory.Get(ctx, key)
	if key == "lease/a" {
		pause(time.Second)
	}
	return e, err
}

func TestDeletedLeaseEndsTheEpoch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db, w := store.NewMemory(), newWorker()
		l := acquire(t, db, lease.Options{InstanceID: "a"})
		w.adoptFor(l)
		w.create(t, l, "1")
		ctx := l.Context()
		require.NoError(t, db.Delete(t.Context(), "lease/a", 0))
		advance(ttl / 2)
		require.ErrorIs(t, context.Cause(ctx), lease.ErrLost)
		require.Equal(t, map[lease.Owner]int{l.Owner(): 1}, w.owners())
	})
}

func TestKindWithoutFunctionStays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := store.NewMemory()
		a, b := acquire(t, db, lease.Options{}), acquire(t, db, lease.Options{})
		_, err := a.Start(t.Context(), "other", "1")
		require.NoError(t, err)
		require.NoError(t, a.Release(t.Context()))
		newWorker().adoptFor(b)
		advance(3 * time.Hour)
		require.Len(t, keys(t, db, "work/"+string(a.Owner())+"/other/"), 1)
		var from lease.Owner
		b.Adopt("other", func(_ context.Context, _ string, owner, _ lease.Owner) (lease.Found, error) {
			from = owner
			return lease.Ended, nil
		})
		synctest.Wait()
		require.Equal(t, a.Owner(), from)
		require.Empty(t, keys(t, db, "work/"))
	})
}

// A function whose change has landed without an answer is called again here, even after
// another instance has deleted the old entry.
func TestAdoptionWithoutAnswerIsRepeated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db, w := store.NewMemory(), newWorker()
		a, b, c := acquire(t, db, lease.Options{}), acquire(t, db, lease.Options{}), acquire(t, db, lease.Options{})
		w.create(t, a, "1")
		var calls atomic.Int64
		b.Adopt("k", func(_ context.Context, id string, from, to lease.Owner) (lease.Found, error) {
			w.mu.Lock()
			defer w.mu.Unlock()
			switch calls.Add(1) {
			case 1:
				w.records[id] = to
				return 0, errors.New("no answer")
			case 2:
				panic("no answer")
			case 3:
				return lease.Taken + 99, nil
			}
			require.Equal(t, to, w.records[id])
			return lease.Taken, nil
		})
		synctest.Wait()
		require.NoError(t, a.Release(t.Context()))
		synctest.Wait()
		require.EqualValues(t, 1, calls.Load())
		w.adoptFor(c)
		synctest.Wait()
		require.Equal(t, []string{"work/" + string(b.Owner()) + "/k/1"}, keys(t, db, "work/"))
		advance(2 * ttl)
		require.EqualValues(t, 4, calls.Load())
		require.NoError(t, b.Finish(t.Context(), b.Owner(), "k", "1"))
		advance(ttl)
		require.EqualValues(t, 4, calls.Load())
		require.Empty(t, keys(t, db, "work/"))
	})
}

func TestWaitRecoveredNeedsWholeRound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db, isAway := outage(store.NewMemory())
		l := acquire(t, db, lease.Options{})
		require.NoError(t, l.WaitRecovered(t.Context()))
		isAway.Store(true)
		recovered := make(chan error, 1)
		go func() { recovered <- l.WaitRecovered(t.Context()) }()
		advance(ttl / 2)
		require.Empty(t, recovered, "no round was whole")
		isAway.Store(false)
		advance(ttl)
		require.Len(t, recovered, 1)
		require.NoError(t, <-recovered)
	})
}

func TestContextOfAdoptionEndsWithTheEpoch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := store.NewMemory()
		a := acquire(t, m, lease.Options{})
		newWorker().create(t, a, "1")
		require.NoError(t, a.Release(t.Context()))
		db, isAway := outage(m)
		b := acquire(t, db, lease.Options{})
		ends := make(chan error, 10)
		b.Adopt("k", func(ctx context.Context, _ string, _, _ lease.Owner) (lease.Found, error) {
			<-ctx.Done()
			ends <- context.Cause(ctx)
			return 0, context.Cause(ctx)
		})
		advance(10 * ttl)
		require.Empty(t, ends)
		isAway.Store(true)
		advance(ttl)
		require.Len(t, ends, 1)
		require.Equal(t, lease.ErrLost, <-ends)
	})
}

func TestAdoptionThatFinishesLeavesNoEntry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := store.NewMemory()
		a, b := acquire(t, db, lease.Options{}), acquire(t, db, lease.Options{})
		newWorker().create(t, a, "1")
		require.NoError(t, a.Release(t.Context()))
		b.Adopt("k", func(ctx context.Context, id string, _, to lease.Owner) (lease.Found, error) {
			return lease.Taken, b.Finish(ctx, to, "k", id)
		})
		advance(ttl)
		require.Empty(t, keys(t, db, "work/"))
	})
}

func TestAliveIsCached(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db, ctx := &countedStore{Store: store.NewMemory()}, t.Context()
		a, b := acquire(t, db, lease.Options{}), acquire(t, db, lease.Options{})
		require.NoError(t, b.WaitRecovered(ctx))
		synctest.Wait() // for the reads of the scan
		check := func(want bool, reads int64) {
			t.Helper()
			before := db.reads.Load()
			for range 100 {
				isAlive, err := b.Alive(ctx, a.Owner())
				require.NoError(t, err)
				require.Equal(t, want, isAlive, "Alive")
			}
			require.Equal(t, reads, db.reads.Load()-before, "reads")
		}
		check(true, 1)
		advance(ttl/10 - 1)
		check(true, 0)
		advance(1)
		check(true, 1)
		require.NoError(t, a.Release(ctx))
		advance(ttl / 10)
		check(false, 1)
		advance(time.Hour)
		check(false, 0)
		for _, owner := range []lease.Owner{"", "x", "@", "a@b"} {
			isAlive, err := b.Alive(ctx, owner)
			require.NoError(t, err)
			require.False(t, isAlive, "owner %q is alive", owner)
		}
		for i := range 10_000 {
			_, err := b.Alive(ctx, lease.Owner(fmt.Sprint(i)))
			require.NoError(t, err)
		}
	})
}

func TestPrivateLeaseNeedsNoRenewal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db, w := &countedStore{Store: store.NewMemory()}, newWorker()
		a, err := lease.Acquire(t.Context(), db, lease.Options{Private: true, Logger: quiet})
		require.NoError(t, err)
		w.create(t, a, "1")
		ctx, writes := a.Context(), db.writes.Load()
		advance(time.Hour)
		require.NoError(t, ctx.Err())
		require.Equal(t, writes, db.writes.Load(), "writes in an idle hour")
		calls := db.calls()
		advance(time.Hour)
		require.Equal(t, calls, db.calls(), "calls in an idle hour")
		require.Zero(t, db.waits.Load(), "Waits")

		b := acquire(t, db, lease.Options{Private: true})
		w.adoptFor(b)
		require.NoError(t, b.WaitRecovered(t.Context()))
		require.Equal(t, map[lease.Owner]int{b.Owner(): 1}, w.owners(), "work of an earlier process")
		var got string
		b.Listen("t", func(data []byte) { got = string(data) })
		require.NoError(t, b.Tell(t.Context(), b.Owner(), "t", []byte("hello")))
		synctest.Wait()
		require.Equal(t, "hello", got)
		require.Zero(t, db.waits.Load(), "Waits")
		require.NoError(t, a.Release(t.Context()))
	})
}

func TestPrivateLeaseRepeatsFailedAdoption(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db, w := store.NewMemory(), newWorker()
		a := acquire(t, db, lease.Options{Private: true})
		w.create(t, a, "1")
		b, calls := acquire(t, db, lease.Options{Private: true}), 0
		b.Adopt("k", func(context.Context, string, lease.Owner, lease.Owner) (lease.Found, error) {
			if calls++; calls < 3 {
				return 0, errors.New("failed")
			}
			return lease.Ended, nil
		})
		advance(2 * ttl)
		require.Equal(t, 3, calls)
		require.Empty(t, keys(t, db, "work/"))
	})
}

func TestTellKeepsOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 3000
		db := store.NewMemory()
		plan := &fault.Plan{Rules: []fault.Rule{
			{Action: fault.ErrorAfter, Op: "append", Probability: 0.2},
			{Action: fault.ErrorBefore, Op: "append|read|wait|ack", Probability: 0.2},
		}}
		a := acquire(t, fault.Store(db, plan), lease.Options{})
		b := acquire(t, fault.Store(db, plan), lease.Options{})
		for _, to := range []*lease.Lease{a, b} {
			var got []string
			to.Listen("t", func(data []byte) { got = append(got, string(data)) })
			to.Listen("panic", func([]byte) { panic("message") })
			for i := range n {
				require.NoError(t, a.Tell(t.Context(), to.Owner(), "t", []byte(fmt.Sprint(i))))
				require.NoError(t, a.Tell(t.Context(), to.Owner(), "unknown", nil))
				if i%1000 == 0 {
					require.NoError(t, a.Tell(t.Context(), to.Owner(), "panic", nil))
				}
				if i%200 == 0 {
					synctest.Wait()
				}
			}
			advance(time.Minute)
			synctest.Wait()
			require.Equal(t, ids(n), got)
		}
	})
}

func TestTellReportsMessageNotAccepted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, ctx := store.NewMemory(), t.Context()
		db, isAway := outage(m)
		a, b := acquire(t, db, lease.Options{}), acquire(t, m, lease.Options{})
		var got []string
		end := make(chan struct{})
		b.Listen("t", func(data []byte) { got = append(got, string(data)) })
		a.Listen("block", func([]byte) { <-end })
		isAway.Store(true)
		limited, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		require.ErrorIs(t, a.Tell(limited, b.Owner(), "t", []byte("lost")), store.ErrUnknown)
		require.ErrorIs(t, a.Tell(ctx, b.Owner(), "t", make([]byte, 1025)), store.ErrInvalid)
		require.ErrorIs(t, a.Tell(ctx, b.Owner(), "", nil), store.ErrInvalid)
		require.ErrorIs(t, a.Tell(ctx, b.Owner(), strings.Repeat("t", 256), nil), store.ErrInvalid)
		require.NoError(t, b.Tell(ctx, a.Owner(), strings.Repeat("t", 255), make([]byte, 1024)))
		accepted := 0
		limited, cancel = context.WithTimeout(ctx, time.Second)
		defer cancel()
		for err := a.Tell(limited, a.Owner(), "block", nil); err == nil; err = a.Tell(limited, a.Owner(), "block", nil) {
			accepted++
			synctest.Wait()
		}
		require.Equal(t, 64+1, accepted, "messages to a blocked function")
		close(end)
		time.Sleep(2 * time.Minute) // a repetition without a caller ends
		isAway.Store(false)
		synctest.Wait()
		require.Empty(t, got)
	})
}

func TestTellReachesTheNewEpochOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, ctx := store.NewMemory(), t.Context()
		db, isAway := outage(m)
		a, b := acquire(t, db, lease.Options{}), acquire(t, m, lease.Options{})
		var got []string
		a.Listen("t", func(data []byte) { got = append(got, string(data)) })
		first := a.Owner()
		require.NoError(t, b.Tell(ctx, first, "t", []byte("1")))
		synctest.Wait()
		isAway.Store(true)
		advance(20 * time.Second)
		isAway.Store(false)
		advance(ttl)
		require.NoError(t, b.Tell(ctx, first, "t", []byte("2")))
		require.NoError(t, b.Tell(ctx, a.Owner(), "t", []byte("3")))
		synctest.Wait()
		require.Equal(t, []string{"1", "3"}, got)
		advance(time.Hour)
		records, err := m.Read(ctx, "tell/"+string(first), 0, 0)
		require.NoError(t, err)
		require.Empty(t, records, "messages to an epoch that has ended")
	})
}

func TestOwnersAreThoseWithLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := store.NewMemory()
		var want []lease.Owner
		leases := map[lease.Owner]*lease.Lease{}
		for range 20 {
			l := acquire(t, db, lease.Options{})
			want = append(want, l.Owner())
			leases[l.Owner()] = l
		}
		slices.Sort(want)
		got, err := leases[want[0]].Owners(t.Context())
		require.NoError(t, err)
		require.Equal(t, want, got)
		require.NoError(t, leases[want[1]].Release(t.Context()))
		got, err = leases[want[0]].Owners(t.Context())
		require.NoError(t, err)
		require.Equal(t, slices.Delete(want, 1, 2), got)
		got, err = acquire(t, store.NewMemory(), lease.Options{Private: true}).Owners(t.Context())
		require.NoError(t, err)
		require.Empty(t, got)
	})
}

func TestContextBoundsAcquireOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		l, err := lease.Acquire(ctx, store.NewMemory(), lease.Options{Logger: quiet})
		require.NoError(t, err)
		cancel()
		advance(10 * ttl)
		require.NoError(t, l.Context().Err())
		_, err = l.Start(t.Context(), "k", "1")
		require.NoError(t, err)
		require.NoError(t, l.Release(t.Context()))
	})
}

func TestAcquireReportsStoreError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db, isAway := outage(store.NewMemory())
		isAway.Store(true)
		start := time.Now()
		_, err := lease.Acquire(t.Context(), db, lease.Options{Logger: quiet})
		require.ErrorIs(t, err, fault.ErrInjected)
		require.Less(t, time.Since(start), ttl)
	})
}

func TestClosedStoreEndsTheLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		plan := &fault.Plan{}
		l := acquire(t, fault.Store(store.NewMemory(), plan), lease.Options{OnLost: func(context.Context) {
			t.Error("OnLost called for a closed store")
		}})
		plan.Crash()
		advance(ttl)
		require.ErrorIs(t, context.Cause(l.Context()), lease.ErrLost)
	})
}

// A panic of the store, in whatever access, fails that access alone: the lease stays, and the work of a failed process is adopted.
func TestPanicOfStoreFailsOneAccess(t *testing.T) {
	isLast := false
	for skip := int64(0); !isLast; skip++ {
		synctest.Test(t, func(t *testing.T) {
			memory, plan := store.NewMemory(), &fault.Plan{}
			t.Cleanup(plan.Close)
			failed := acquire(t, fault.Store(memory, plan), lease.Options{})
			_, err := failed.Start(t.Context(), "task", "a")
			require.NoError(t, err)
			plan.Crash()
			db, hook := testkit.PanickingStore(memory, skip)
			l, err := lease.Acquire(t.Context(), db, lease.Options{Logger: quiet, InstanceID: "next"})
			if err != nil {
				require.NotZero(t, hook.Count.Load(), err)
				return
			}
			var adopted atomic.Int32
			l.Adopt("task", func(context.Context, string, lease.Owner, lease.Owner) (lease.Found, error) {
				adopted.Add(1)
				return lease.Ended, nil
			})
			time.Sleep(10 * ttl)
			require.NoError(t, l.Context().Err(), skip)
			require.NotZero(t, adopted.Load(), skip)
			beforeRelease := hook.Count.Load()
			err = l.Release(t.Context())
			isLast = hook.Count.Load() == 0
			if err != nil {
				require.NotEqual(t, beforeRelease, hook.Count.Load(), err)
				require.ErrorContains(t, err, "store panicked", skip)
			}
		})
	}
}
