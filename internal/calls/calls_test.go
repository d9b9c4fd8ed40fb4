// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package calls

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/fivewire/fivewire/internal/kit"
	"github.com/fivewire/fivewire/internal/race"
	"github.com/fivewire/fivewire/internal/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var errPeer = errors.New("tool failed")

// A log records the calls of OnSlot.
type log struct {
	mu   sync.Mutex
	list []string
}

func (l *log) onSlot(id string, isHeld bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.list = append(l.list, fmt.Sprint(id, " held=", isHeld))
}

// take returns the records since the last call.
func (l *log) take() []string {
	synctest.Wait()
	l.mu.Lock()
	defer l.mu.Unlock()
	list := l.list
	l.list = nil
	return list
}

func newTable(t *testing.T, o Options) (*Table[string], *log) {
	l := new(log)
	o.OnSlot = l.onSlot
	table := New[string](o)
	t.Cleanup(func() { table.FailAll(nil) })
	return table, l
}

func add(t *testing.T, table *Table[string], id string, d time.Duration) Call[string] {
	t.Helper()
	c, err := table.Add(id, time.Now().Add(d), "")
	require.NoError(t, err)
	return c
}

func requireStats(t require.TestingT, table *Table[string], inFlight int, late uint64) {
	n, l := table.Stats()
	require.Equal(t, inFlight, n, "slots in use")
	require.Equal(t, late, l, "late responses")
}

func TestWaitReturnsResponse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table, l := newTable(t, Options{})
		a, b := add(t, table, "a", time.Hour), add(t, table, "b", time.Hour)
		requireStats(t, table, 2, 0)
		time.AfterFunc(time.Second, func() { table.Complete("b", "response") })
		got, err := b.Wait(t.Context())
		require.NoError(t, err)
		require.Equal(t, "response", got)
		synctest.Wait() // the slot of b is released after its response
		require.True(t, table.Fail("a", errPeer))
		_, err = a.Wait(t.Context())
		require.Equal(t, errPeer, err)
		require.Equal(t, []string{"b held=false", "a held=false"}, l.take())
		require.False(t, a.e.timer.Stop(), "the timer of an ended call is stopped")
		requireStats(t, table, 0, 0)
	})
}

func TestWaitEventReturnsForTokens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table, _ := newTable(t, Options{})
		c, events := add(t, table, "a", time.Hour), make(chan struct{}, 1)
		for range 2 {
			events <- struct{}{}
			_, isEnded, err := c.WaitEvent(t.Context(), events)
			require.False(t, isEnded)
			require.NoError(t, err)
		}
		time.AfterFunc(time.Second, func() { table.Complete("a", "response") })
		got, isEnded, err := c.WaitEvent(t.Context(), events)
		require.True(t, isEnded)
		require.NoError(t, err)
		require.Equal(t, "response", got)
		_, _, err = c.WaitEvent(t.Context(), events)
		require.Equal(t, ErrReused, err)
	})
}

func TestGetReturnsPendingCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table := New[*int](Options{})
		defer table.FailAll(nil)
		v := new(int)
		c, err := table.Add("a", time.Time{}, v)
		require.NoError(t, err)
		got, ok := table.Get("a")
		require.True(t, ok)
		require.Same(t, v, got)
		_, ok = table.Get("b")
		require.False(t, ok)
		require.True(t, table.Cancel("a"))
		_, ok = table.Get("a")
		require.False(t, ok, "the call has ended")
		got, err = c.Wait(t.Context())
		require.Equal(t, context.Canceled, err)
		require.Same(t, v, got)
	})
}

// A call with a deadline of one second ends after one second although nothing arrives and the
// transport accepts nothing.
func TestCallEndsAtItsDeadlineOnSilentConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		blocked := make(chan struct{})
		table := New[string](Options{OnSlot: func(string, bool) { <-blocked }})
		start := time.Now()
		var all sync.WaitGroup
		for i := range 3 {
			// A deadline of the wall clock alone has its effect too.
			c, err := table.Add(strconv.Itoa(i), start.Add(time.Second).Round(0), "")
			require.NoError(t, err)
			all.Go(func() {
				_, err := c.Wait(context.Background())
				require.Equal(t, context.DeadlineExceeded, err)
				require.Equal(t, time.Second, time.Since(start))
			})
		}
		all.Wait()
		c, err := table.Add("", time.Time{}, "")
		require.NoError(t, err, "an empty id is an id")
		require.NotNil(t, c)
		c, err = table.Add("late", start, "")
		require.NoError(t, err)
		_, err = c.Wait(context.Background())
		require.Equal(t, context.DeadlineExceeded, err, "the deadline has passed before Add")
		requireStats(t, table, 5, 0)
		_, ok := table.Get("")
		require.True(t, ok)
		close(blocked)
		table.FailAll(nil)
	})
}

func TestCallWithoutDeadlineWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table, _ := newTable(t, Options{})
		c, err := table.Add("a", time.Time{}, "")
		require.NoError(t, err)
		time.AfterFunc(10000*time.Hour, func() { table.Complete("a", "x") })
		got, err := c.Wait(t.Context())
		require.NoError(t, err)
		require.Equal(t, "x", got)
	})
}

// Each local end sends a cancel, once, and the slot stays in use until the peer has responded to
// the call or to the cancel.
func TestCanceledCallDoesNotOccupyPeer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stop := errors.New("stopped")
		ends := map[string]func(table *Table[string], c Call[string]) error{
			"deadline": func(_ *Table[string], c Call[string]) error {
				_, err := c.Wait(t.Context())
				return err
			},
			"context": func(_ *Table[string], c Call[string]) error {
				ctx, cancel := context.WithCancelCause(t.Context())
				cancel(stop)
				_, err := c.Wait(ctx)
				return err
			},
			"cancel": func(table *Table[string], c Call[string]) error {
				require.True(t, table.Cancel("a"))
				_, err := c.Wait(t.Context())
				return err
			},
		}
		want := map[string]error{"deadline": context.DeadlineExceeded, "context": stop, "cancel": context.Canceled}
		for name, end := range ends {
			for _, response := range []func(*Table[string]) bool{
				func(table *Table[string]) bool { return table.Complete("a", "late") },
				func(table *Table[string]) bool { return table.Fail("a", errPeer) },
			} {
				table, l := newTable(t, Options{MaxPending: 1})
				c := add(t, table, "a", time.Second)
				require.Equal(t, want[name], end(table, c), name)
				require.Equal(t, []string{"a held=true"}, l.take(), name)
				require.False(t, table.Cancel("a"), "a second cancel is not sent")
				time.Sleep(4 * time.Minute)
				requireStats(t, table, 1, 0)
				_, err := table.Add("b", time.Time{}, "")
				require.Equal(t, ErrFull, err, "the peer holds the slot")
				_, err = table.Add("a", time.Time{}, "")
				require.Equal(t, ErrReused, err, "the peer knows the id")
				require.False(t, response(table))
				require.Equal(t, []string{"a held=false"}, l.take(), name)
				requireStats(t, table, 0, 1)
				add(t, table, "a", time.Second)
				time.Sleep(time.Hour)
			}
		}
	})
}

func TestHeldSlotIsFreedAfterHoldTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, hold := range []time.Duration{0, time.Second, -1} {
			table, l := newTable(t, Options{HoldTimeout: hold})
			add(t, table, "a", time.Second)
			time.Sleep(time.Second)
			require.Equal(t, []string{"a held=true"}, l.take())
			switch hold {
			case 0:
				time.Sleep(5*time.Minute - time.Second)
				require.Empty(t, l.take())
				time.Sleep(time.Second)
			case -1:
				time.Sleep(10000 * time.Hour)
				require.Empty(t, l.take(), "a negative bound is none")
				continue
			default:
				time.Sleep(hold)
			}
			require.Equal(t, []string{"a held=false"}, l.take())
			requireStats(t, table, 0, 0)
			require.False(t, table.Complete("a", ""))
			requireStats(t, table, 0, 1)
			require.Empty(t, l.take())
		}
	})
}

func TestTableIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for limit, want := range map[int]int{0: 1024, 7: 7, -1: 5000} {
			table, _ := newTable(t, Options{MaxPending: limit})
			n := 0
			for ; n < 5000; n++ {
				if _, err := table.Add(strconv.Itoa(n), time.Time{}, ""); err != nil {
					require.Equal(t, ErrFull, err)
					break
				}
			}
			require.Equal(t, want, n)
			require.True(t, table.Complete("0", ""))
			add(t, table, "x", time.Hour)
		}
	})
}

// Each call ends with the reason why the connection ended, not with "closed".
func TestFailAllGivesTheCause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cause := fmt.Errorf("exit status 2: %w", errPeer)
		table, l := newTable(t, Options{})
		a, b, canceled := add(t, table, "a", time.Hour), add(t, table, "b", time.Hour), add(t, table, "c", time.Hour)
		table.Cancel("c")
		result := make(chan error)
		go func() {
			_, err := a.Wait(t.Context())
			result <- err
		}()
		l.take()
		table.FailAll(cause)
		table.FailAll(errors.New("later"))
		require.Equal(t, cause, <-result)
		_, err := b.Wait(t.Context())
		require.Equal(t, cause, err)
		_, err = canceled.Wait(t.Context())
		require.Equal(t, context.Canceled, err)
		_, err = table.Add("d", time.Time{}, "")
		require.Equal(t, cause, err)
		require.Equal(t, []string{"a held=false", "b held=false", "c held=false"}, l.take())
		require.False(t, canceled.e.timer.Stop(), "no timer keeps the table in memory")
		requireStats(t, table, 0, 0)

		table, _ = newTable(t, Options{})
		table.FailAll(nil)
		_, err = table.Add("a", time.Time{}, "")
		require.Equal(t, ErrClosed, err)
	})
}

func TestResponseBeforeWaitIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table, _ := newTable(t, Options{})
		c := add(t, table, "a", time.Second)
		require.True(t, table.Complete("a", "response"))
		require.False(t, table.Complete("a", "again"))
		time.Sleep(time.Hour)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		got, err := c.Wait(ctx)
		require.NoError(t, err)
		require.Equal(t, "response", got)
		requireStats(t, table, 0, 1)
	})
}

// An entry that is used again belongs to its new call alone.
func TestEntryIsNotUsedAfterReuse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table, l := newTable(t, Options{})
		old := add(t, table, "a", time.Second)
		require.True(t, table.Complete("a", "1"))
		_, err := old.Wait(t.Context())
		require.NoError(t, err)
		c := add(t, table, "b", time.Hour)
		require.Same(t, old.e, c.e, "the entry is used again")
		_, err = old.Wait(t.Context())
		require.Equal(t, ErrReused, err)
		l.take()
		time.Sleep(time.Minute)
		old.e.timer.Reset(0) // as if it had fired for the first call just before Complete
		require.Empty(t, l.take(), "the deadline of the first call has no effect")
		require.True(t, table.Complete("b", "2"))
		got, err := c.Wait(t.Context())
		require.NoError(t, err)
		require.Equal(t, "2", got)
		_, err = c.Wait(t.Context())
		require.Equal(t, ErrReused, err)

		first := add(t, table, "a", time.Second)
		require.True(t, table.Complete("a", "3"))
		add(t, table, "a", time.Hour)
		time.Sleep(time.Minute)
		first.e.timer.Reset(0)
		synctest.Wait()
		_, ok := table.Get("a")
		require.True(t, ok, "a timer does not end a later call with the same id")

		expired := add(t, table, "c", time.Second)
		_, err = expired.Wait(t.Context())
		require.Equal(t, context.DeadlineExceeded, err)
		require.NotSame(t, expired.e, add(t, table, "d", time.Hour).e, "a held entry is not used again")
		require.False(t, table.Complete("c", "late"))
		require.NotSame(t, expired.e, add(t, table, "e", time.Hour).e)
	})
}

func TestFreeEntriesAreBounded(t *testing.T) {
	table := New[string](Options{})
	defer table.FailAll(nil)
	var calls []Call[string]
	for i := range 200 {
		calls = append(calls, add(t, table, strconv.Itoa(i), time.Hour))
	}
	for i, c := range calls {
		require.True(t, table.Complete(strconv.Itoa(i), "x"))
		_, _ = c.Wait(t.Context())
	}
	require.Len(t, table.free, 64)
	require.Empty(t, table.free[0].value, "a response is not kept")
}

// Calls, responses, cancels and deadlines at the same time give each call its response.
func TestConcurrentUse(t *testing.T) {
	table := New[string](Options{MaxPending: -1, HoldTimeout: time.Millisecond})
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			for k := range 500 {
				id := fmt.Sprint(i, " ", k)
				d := time.Hour
				if k%5 == 0 {
					d = time.Duration(k%50) * time.Microsecond
				}
				c := add(t, table, id, d)
				ctx, cancel := context.WithCancel(t.Context())
				all.Go(func() {
					switch k % 7 {
					case 0:
						cancel()
					case 1:
						table.Cancel(id)
					}
					table.Complete(id, id)
				})
				got, err := c.Wait(ctx)
				cancel()
				if err == nil && got != id || err != nil && got != "" {
					t.Errorf("got %q and %v, want the response %q or an error", got, err, id)
				}
			}
		})
	}
	all.Wait()
	table.FailAll(nil)
	requireStatsEmpty(t, table)
}

func requireStatsEmpty(t *testing.T, table *Table[string]) {
	t.Helper()
	n, _ := table.Stats()
	require.Zero(t, n)
}

// A modelCall is a call of the model: pending until its deadline, then held.
type modelCall struct {
	call     Call[string]
	deadline time.Time
	isHeld   bool
	want     error
	value    string
}

// TestTableAgainstModel compares a table with a map of calls.
func TestTableAgainstModel(t *testing.T) { testkit.CheckInBubble(t, runModel) }

func runModel(t *rapid.T) {
	const hold = 7 * time.Second
	limit := rapid.IntRange(1, 5).Draw(t, "limit")
	var late uint64
	cancels, free := map[string]int{}, 0
	var mu sync.Mutex
	table := New[string](Options{MaxPending: limit, HoldTimeout: hold, OnSlot: func(id string, isHeld bool) {
		mu.Lock()
		defer mu.Unlock()
		if isHeld {
			cancels[id]++
		} else {
			free++
		}
	}})
	defer table.FailAll(nil)
	listed, results := map[string]*modelCall{}, []*modelCall{}
	wantCancels, wantFree, serial := map[string]int{}, 0, 0
	finish := func(id, value string, err error) bool {
		c := listed[id]
		delete(listed, id)
		if c != nil {
			wantFree++
		}
		if c == nil || c.isHeld {
			late++
			return false
		}
		c.value, c.want = value, err
		results = append(results, c)
		return true
	}
	holdCall := func(id string, c *modelCall, at time.Time, err error) {
		c.isHeld, c.want, c.deadline = true, err, at.Add(hold)
		wantCancels[id]++
		results = append(results, c)
	}
	id := func(t *rapid.T) string {
		return rapid.SampledFrom([]string{"a", "b", "c", "d", "e", "f"}).Draw(t, "id")
	}
	t.Repeat(map[string]func(*rapid.T){
		"add": func(t *rapid.T) {
			id, d := id(t), time.Duration(rapid.IntRange(1, 20).Draw(t, "deadline"))*time.Second
			c, err := table.Add(id, time.Now().Add(d), "")
			switch {
			case listed[id] != nil:
				require.Equal(t, ErrReused, err)
			case len(listed) == limit:
				require.Equal(t, ErrFull, err)
			default:
				require.NoError(t, err)
				listed[id] = &modelCall{call: c, deadline: time.Now().Add(d)}
			}
		},
		"complete": func(t *rapid.T) {
			id := id(t)
			serial++
			value := strconv.Itoa(serial)
			require.Equal(t, finish(id, value, nil), table.Complete(id, value))
		},
		"fail": func(t *rapid.T) {
			id := id(t)
			require.Equal(t, finish(id, "", errPeer), table.Fail(id, errPeer))
		},
		"cancel": func(t *rapid.T) {
			id := id(t)
			c := listed[id]
			isPending := c != nil && !c.isHeld
			if isPending {
				holdCall(id, c, time.Now(), context.Canceled)
			}
			require.Equal(t, isPending, table.Cancel(id))
		},
		"sleep": func(t *rapid.T) {
			time.Sleep(time.Duration(rapid.IntRange(1, 10).Draw(t, "seconds")) * time.Second)
			synctest.Wait()
			for id, c := range listed {
				if !c.isHeld && !c.deadline.After(time.Now()) {
					holdCall(id, c, c.deadline, context.DeadlineExceeded)
				}
				if c.isHeld && !c.deadline.After(time.Now()) {
					delete(listed, id)
					wantFree++
				}
			}
		},
		"wait": func(t *rapid.T) {
			for _, c := range results {
				value, err := c.call.Wait(context.Background())
				require.Equal(t, c.want, err)
				require.Equal(t, c.value, value)
			}
			results = nil
		},
		"": func(t *rapid.T) {
			requireStats(t, table, len(listed), late)
			mu.Lock()
			defer mu.Unlock()
			require.Equal(t, wantCancels, cancels, "cancels")
			require.Equal(t, wantFree, free, "freed slots")
		},
	})
}

func TestCallAllocatesNothing(t *testing.T) {
	if race.Enabled {
		t.Skip("the race detector allocates")
	}
	table := New[*int](Options{})
	defer table.FailAll(nil)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	response := new(int)
	var calls [20]Call[*int]
	ids := [20]string{}
	for i := range ids {
		ids[i] = strconv.Itoa(i)
	}
	run := func() {
		deadline := time.Now().Add(time.Minute)
		for i, id := range ids {
			calls[i], _ = table.Add(id, deadline, nil)
		}
		for _, id := range ids {
			table.Complete(id, response)
		}
		for _, c := range calls {
			if v, err := c.Wait(ctx); v != response || err != nil {
				t.Fatal(v, err)
			}
		}
	}
	run()
	require.Zero(t, testing.AllocsPerRun(100, run))
}

func TestPendingCallNeedsAtMostOneKiB(t *testing.T) {
	if race.Enabled {
		t.Skip("the race detector allocates")
	}
	const n = 20000
	ids := make([]string, n)
	for i := range ids {
		ids[i] = fmt.Sprintf("%032d", i)
	}
	before := kit.Heap()
	table := New[string](Options{MaxPending: -1})
	for _, id := range ids {
		add(t, table, id, time.Hour)
	}
	per := (int(kit.Heap()) - int(before)) / n
	t.Logf("a pending call needs %d bytes", per)
	require.LessOrEqual(t, per, 1024)
	table.FailAll(nil)
	runtime.KeepAlive(ids)
}
