// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package once_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/fivewire/fivewire/conformance/fault"
	"github.com/fivewire/fivewire/internal/guard"
	"github.com/fivewire/fivewire/internal/lease"
	"github.com/fivewire/fivewire/internal/once"
	"github.com/fivewire/fivewire/internal/race"
	"github.com/fivewire/fivewire/store"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const prefix = "test/"

// A process is an instance with its view of a shared store.
type process struct {
	*once.Table
	plan  *fault.Plan
	db    store.Store
	lease *lease.Lease
}

// newProcess starts an instance on db. The rules apply to the claims only.
func newProcess(t *testing.T, db store.Store, rules ...fault.Rule) *process {
	t.Helper()
	return startProcess(t, db, 15*time.Second, &fault.Plan{Seed: 1, Rules: rules})
}

func startProcess(t *testing.T, db store.Store, ttl time.Duration, plan *fault.Plan) *process {
	t.Helper()
	return startProcessWith(t, db, ttl, plan, once.Options{})
}

func startProcessWith(t *testing.T, db store.Store, ttl time.Duration, plan *fault.Plan, o once.Options) *process {
	t.Helper()
	for i := range plan.Rules {
		plan.Rules[i].Match = prefix + "once/"
	}
	p := &process{plan: plan, db: fault.Store(db, plan)}
	var err error
	p.lease, err = lease.Acquire(t.Context(), p.db, lease.Options{Prefix: prefix, TTL: ttl, Logger: discard})
	require.NoError(t, err)
	o.Prefix, o.Logger = prefix, discard
	p.Table = once.New(p.db, p.lease, o)
	t.Cleanup(func() {
		p.crash()
		p.plan.Close()
		time.Sleep(2 * time.Second) // repetitions in the background meet the closed store
	})
	return p
}

var discard = slog.New(slog.DiscardHandler)

// crash ends the process. Its changes in transit still land.
func (p *process) crash() {
	p.plan.Crash()
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	p.Close()
	_ = p.lease.Release(ctx)
}

func newMemory(t *testing.T, o once.Options) *once.Table {
	table := once.New(nil, nil, o)
	t.Cleanup(func() { table.Close() })
	return table
}

// eachTable runs f with a Table in memory and with one on a store.
func eachTable(t *testing.T, f func(t *testing.T, table *once.Table)) {
	t.Run("memory", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) { f(t, newMemory(t, once.Options{})) })
	})
	t.Run("store", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) { f(t, startProcess(t, store.NewMemory(), time.Hour, &fault.Plan{}).Table) })
	})
}

func key(id string) once.Key { return once.Key{Principal: "alice", Scope: "pay", ID: id} }

func atOnce(id string) once.Key {
	return once.Key{Principal: "alice", Scope: "pay", ID: id, NoWait: true}
}

// A counter is work that counts its runs and returns the number of its run.
type counter struct {
	mu     sync.Mutex
	claims []once.Claim
	delay  time.Duration
	err    error
	forget bool
}

func (c *counter) run(ctx context.Context, claim once.Claim) (once.Result, error) {
	c.mu.Lock()
	c.claims = append(c.claims, claim)
	n := len(c.claims)
	c.mu.Unlock()
	time.Sleep(c.delay)
	return once.Result{Data: fmt.Appendf(nil, "run %d", n), Forget: c.forget}, c.err
}

func (c *counter) count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.claims)
}

// requireDo calls Do and compares its results.
func requireDo(t *testing.T, table *once.Table, k once.Key, p once.Policy, c *counter, data string, isReplay bool) {
	t.Helper()
	got, replayed, err := table.Do(t.Context(), k, p, c.run)
	require.NoError(t, err)
	require.Equal(t, data, string(got))
	require.Equal(t, isReplay, replayed, "replayed")
}

func TestDoReplaysOutcome(t *testing.T) {
	eachTable(t, func(t *testing.T, table *once.Table) {
		c := &counter{}
		requireDo(t, table, key("1"), once.AtMostOnce, c, "run 1", false)
		requireDo(t, table, key("1"), once.Repeat, c, "run 1", true)
		requireDo(t, table, key("2"), once.Repeat, c, "run 2", false)
		require.Equal(t, 1, c.claims[0].Attempt)
		require.False(t, c.claims[0].Redelivered)
		require.Len(t, c.claims[0].Token, 26)
		require.NotEqual(t, c.claims[0].Token, c.claims[1].Token)
		for _, k := range []once.Key{
			{Principal: "bob", Scope: "pay", ID: "1"},
			{Principal: "alice", Scope: "pay1", ID: "1"},
			{Principal: "alicep", Scope: "ay", ID: "1"},
		} {
			_, replayed, err := table.Do(t.Context(), k, once.Repeat, c.run)
			require.NoError(t, err)
			require.False(t, replayed, "%+v is another key", k)
		}
	})
}

func TestDoRefusesOtherDigest(t *testing.T) {
	eachTable(t, func(t *testing.T, table *once.Table) {
		c := &counter{delay: time.Second}
		other := key("1")
		other.Digest[0] = 1
		go table.Do(t.Context(), key("1"), once.AtMostOnce, c.run)
		synctest.Wait()
		start := time.Now()
		_, _, err := table.Do(t.Context(), other, once.AtMostOnce, c.run)
		require.ErrorIs(t, err, once.ErrReused, "while it runs")
		require.Zero(t, time.Since(start), "wait")
		_, _, err = table.Peek(t.Context(), other)
		require.ErrorIs(t, err, once.ErrReused)
		time.Sleep(2 * time.Second)
		_, _, err = table.Do(t.Context(), other, once.AtMostOnce, c.run)
		require.ErrorIs(t, err, once.ErrReused, "after the end")
		require.Equal(t, 1, c.count())
	})
}

func TestDoRecordsErrorsAndPanics(t *testing.T) {
	eachTable(t, func(t *testing.T, table *once.Table) {
		cause := errors.New("no funds " + strings.Repeat("x", 2000))
		c := &counter{err: cause}
		data, replayed, err := table.Do(t.Context(), key("1"), once.Repeat, c.run)
		require.ErrorIs(t, err, once.ErrFailed)
		require.ErrorIs(t, err, cause)
		require.False(t, replayed)
		repeat, replayed, err2 := table.Do(t.Context(), key("1"), once.Repeat, c.run)
		require.ErrorIs(t, err2, once.ErrFailed)
		require.NotErrorIs(t, err2, cause)
		require.Equal(t, cause.Error()[:1024], err2.Error())
		require.Equal(t, err.Error(), err2.Error())
		require.Equal(t, data, repeat)
		require.True(t, replayed)

		_, _, err = table.Do(t.Context(), key("2"), once.Repeat, func(context.Context, once.Claim) (once.Result, error) {
			panic("no place")
		})
		var p *guard.PanicError
		require.ErrorAs(t, err, &p)
		require.ErrorIs(t, err, once.ErrFailed)
		_, replayed, err2 = table.Do(t.Context(), key("2"), once.Repeat, c.run)
		require.True(t, replayed)
		require.Equal(t, err.Error(), err2.Error())
		require.Equal(t, 1, c.count())
	})
}

// A waiter gets the outcome although the goroutine of the work has ended.
func TestDoRecordsGoexit(t *testing.T) {
	eachTable(t, func(t *testing.T, table *once.Table) {
		go table.Do(t.Context(), key("1"), once.Repeat, func(context.Context, once.Claim) (once.Result, error) {
			time.Sleep(time.Second)
			runtime.Goexit()
			return once.Result{}, nil
		})
		synctest.Wait()
		_, replayed, err := table.Do(t.Context(), key("1"), once.Repeat, new(counter).run)
		require.ErrorIs(t, err, once.ErrFailed)
		require.ErrorContains(t, err, "Goexit")
		require.True(t, replayed)
	})
}

// Work that ends its goroutine has the result that its caller prepares for that.
func TestDoRecordsResultForGoexit(t *testing.T) {
	eachTable(t, func(t *testing.T, table *once.Table) {
		k := key("1")
		k.Exit = &once.Result{}
		done := make(chan struct{})
		go func() {
			defer close(done)
			_, _, _ = table.Do(t.Context(), k, once.Repeat, func(context.Context, once.Claim) (once.Result, error) {
				*k.Exit = once.Result{Retry: true, Data: []byte("half")}
				runtime.Goexit()
				return once.Result{}, nil
			})
		}()
		<-done
		c := &counter{}
		requireDo(t, table, key("1"), once.Repeat, c, "run 1", false)
		require.Equal(t, 2, c.claims[0].Attempt)
		require.Equal(t, "half", string(c.claims[0].State))
	})
}

func TestDoForgets(t *testing.T) {
	eachTable(t, func(t *testing.T, table *once.Table) {
		c := &counter{forget: true}
		requireDo(t, table, key("1"), once.AtMostOnce, c, "run 1", false)
		c.err = errors.New("overload")
		_, _, err := table.Do(t.Context(), key("1"), once.AtMostOnce, c.run)
		require.EqualError(t, err, "overload")
		require.NotErrorIs(t, err, once.ErrFailed)
		c.forget, c.err = false, nil
		requireDo(t, table, key("1"), once.AtMostOnce, c, "run 3", false)
		requireDo(t, table, key("1"), once.AtMostOnce, c, "run 3", true)
		for _, claim := range c.claims {
			require.Equal(t, 1, claim.Attempt)
		}
	})
}

// Work whose claim is pinned while it runs has the outcome ErrLost if it ends without one, also for waiting calls. A pin
// without a claim, after the end, or of another digest has no effect.
func TestPinnedClaimIsNotForgotten(t *testing.T) {
	test := func(t *testing.T, first, second *once.Table) {
		for _, forget := range []bool{true, false} {
			id := fmt.Sprint(forget)
			c := &counter{delay: time.Minute, forget: forget}
			pin := func(want once.State) {
				t.Helper()
				k := once.Key{Principal: "alice", Scope: "pay", ID: "pinning", Aliases: []string{"x" + id}, Pin: true}
				state, _, err := second.Peek(t.Context(), k)
				require.NoError(t, err)
				require.Equal(t, want, state)
			}
			k := key(id)
			k.Aliases = []string{"x" + id}
			pin(once.StateAbsent)
			var wg sync.WaitGroup
			defer wg.Wait()
			wg.Go(func() {
				data, replayed, err := first.Do(t.Context(), k, once.AtMostOnce, c.run)
				require.NoError(t, err)
				require.Equal(t, "run 1", string(data))
				require.False(t, replayed)
			})
			time.Sleep(10 * time.Second)
			other := k
			other.Digest[0], other.Pin = 1, true
			_, _, err := second.Peek(t.Context(), other)
			require.ErrorIs(t, err, once.ErrReused)
			pin(once.StateRunning)
			pin(once.StateRunning)
			for _, table := range []*once.Table{first, second, first, second} {
				data, replayed, err := table.Do(t.Context(), k, once.AtMostOnce, c.run)
				require.True(t, replayed)
				if forget {
					require.ErrorIs(t, err, once.ErrLost)
				} else {
					require.NoError(t, err)
					require.Equal(t, "run 1", string(data))
				}
				pin(once.StateDone)
			}
			require.Equal(t, 1, c.count())
		}
	}
	eachTable(t, func(t *testing.T, table *once.Table) { test(t, table, table) })
	synctest.Test(t, func(t *testing.T) {
		db := store.NewMemory()
		test(t, newProcess(t, db).Table, newProcess(t, db).Table)
	})
	for _, action := range []fault.Action{fault.ErrorBefore, fault.ErrorAfter, fault.LandLater, fault.Hang, fault.Conflict} {
		for i := range 2 {
			synctest.Test(t, func(t *testing.T) {
				db := store.NewMemory()
				rules := [2][]fault.Rule{}
				rules[i] = []fault.Rule{{Action: action, Op: writes, Probability: 0.5, Delay: time.Second}}
				test(t, newProcess(t, db, rules[0]...).Table, newProcess(t, db, rules[1]...).Table)
			})
		}
	}
}

// A call after one that is to be tried again is another attempt of its claim, with the data of that one, also in another
// instance and with further aliases.
func TestDoRetries(t *testing.T) {
	test := func(t *testing.T, first, second *once.Table, p once.Policy) {
		var claims []once.Claim
		attempt := func(table *once.Table, isRetried bool, aliases ...string) {
			k := atOnce("1")
			k.Aliases = aliases
			_, _, err := table.Do(t.Context(), k, p, func(_ context.Context, c once.Claim) (once.Result, error) {
				claims = append(claims, c)
				return once.Result{Retry: isRetried, Data: []byte{byte(len(claims))}}, nil
			})
			require.NoError(t, err)
			time.Sleep(time.Minute) // the end is written behind
		}
		attempt(first, true, "a")
		attempt(second, true, "b")
		state, claim, err := first.Peek(t.Context(), key("b"))
		require.NoError(t, err)
		require.Equal(t, once.StateRunning, state)
		require.Equal(t, []any{true, []byte{2}, 2}, []any{claim.Kept, claim.State, claim.Attempt})
		attempt(first, false, "b")
		attempt(second, true, "a") // gets the outcome
		require.Len(t, claims, 3)
		for i, c := range claims {
			want := once.Claim{Token: claims[0].Token, Attempt: i + 1, Redelivered: i > 0, Kept: i > 0}
			if i > 0 {
				want.State = []byte{byte(i)}
			}
			require.Equal(t, want, c)
		}
	}
	for _, policy := range []once.Policy{once.Repeat, once.AtMostOnce} {
		synctest.Test(t, func(t *testing.T) {
			table := newMemory(t, once.Options{})
			test(t, table, table, policy)
		})
		synctest.Test(t, func(t *testing.T) {
			db := store.NewMemory()
			start := func() *once.Table { return startProcess(t, db, time.Hour, &fault.Plan{}).Table }
			test(t, start(), start(), policy)
		})
	}
}

// A claim that Retry keeps stays for RetryTTL, also if its last attempt was cut off. The next attempt then has its data.
func TestDoKeepsStateAfterCrash(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db, opts := store.NewMemory(), once.Options{Retention: time.Minute, RetryTTL: 48 * time.Hour}
		retry := func(context.Context, once.Claim) (once.Result, error) {
			return once.Result{Retry: true, Data: []byte("state")}, nil
		}
		one, two := startProcessWith(t, db, 15*time.Second, &fault.Plan{}, opts), startProcessWith(t, db, 15*time.Second, &fault.Plan{}, opts)
		_, _, err := one.Do(t.Context(), key("1"), once.Repeat, retry)
		require.NoError(t, err)
		go one.Do(t.Context(), key("1"), once.Repeat, func(context.Context, once.Claim) (once.Result, error) {
			time.Sleep(time.Hour)
			return once.Result{}, nil
		})
		synctest.Wait()
		var c once.Claim
		for _, p := range []*process{one, two} {
			var err error
			_, c, err = p.Peek(t.Context(), key("1"))
			require.NoError(t, err)
			require.Equal(t, []any{2, "state", false, false}, []any{c.Attempt, string(c.State), c.Kept, c.Lost})
		}
		owner := one.lease.Owner()
		one.crash()
		time.Sleep(time.Minute)
		_, c, err = two.Peek(t.Context(), key("1"))
		require.NoError(t, err)
		require.Equal(t, []any{false, true}, []any{c.Kept, c.Lost})
		time.Sleep(46 * time.Hour)
		_, _, err = two.Do(t.Context(), atOnce("1"), once.Repeat, func(_ context.Context, claim once.Claim) (once.Result, error) {
			c = claim
			return once.Result{}, nil
		})
		require.NoError(t, err)
		require.Equal(t, once.Claim{Token: c.Token, Attempt: 3, Redelivered: true, State: []byte("state"), Failed: owner}, c)
	})
}

// Wait ends with the running attempt, here or in another instance, and claims nothing. A call with NoWait is the next
// attempt then.
func TestWaitFollowsAttempt(t *testing.T) {
	test := func(t *testing.T, first, second *once.Table) {
		state, _, _, err := second.Wait(t.Context(), key("1"))
		require.NoError(t, err)
		require.Equal(t, once.StateAbsent, state)
		for _, isRetried := range []bool{true, false} {
			go first.Do(t.Context(), key("1"), once.Repeat, func(context.Context, once.Claim) (once.Result, error) {
				time.Sleep(time.Second)
				return once.Result{Data: []byte("data"), Retry: isRetried}, nil
			})
			synctest.Wait()
			short, cancel := context.WithTimeout(t.Context(), time.Millisecond)
			defer cancel()
			_, _, _, err := second.Wait(short, key("1"))
			require.ErrorIs(t, err, context.DeadlineExceeded)
			start := time.Now()
			state, c, data, err := second.Wait(t.Context(), key("1"))
			require.NoError(t, err)
			require.GreaterOrEqual(t, time.Since(start), 999*time.Millisecond)
			if isRetried {
				require.Equal(t, []any{once.StateRunning, true, "data"}, []any{state, c.Kept, string(c.State)})
			} else {
				require.Equal(t, []any{once.StateDone, "data"}, []any{state, string(data)})
			}
		}
	}
	synctest.Test(t, func(t *testing.T) {
		table := newMemory(t, once.Options{})
		test(t, table, table)
	})
	synctest.Test(t, func(t *testing.T) {
		db := store.NewMemory()
		first := startProcess(t, db, time.Hour, &fault.Plan{}).Table
		test(t, first, first)
	})
	synctest.Test(t, func(t *testing.T) {
		db := store.NewMemory()
		test(t, startProcess(t, db, time.Hour, &fault.Plan{}).Table, startProcess(t, db, time.Hour, &fault.Plan{}).Table)
	})
}

// Until the store has taken the end of an attempt that is to be tried again, a call with NoWait waits for it.
func TestNoWaitFollowsRetry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		plan := &fault.Plan{Rules: []fault.Rule{{Op: "update", Action: fault.Delay, Delay: time.Second}}}
		table := startProcess(t, store.NewMemory(), time.Hour, plan).Table
		for n := range 3 {
			_, _, err := table.Do(t.Context(), atOnce("1"), once.Repeat, func(_ context.Context, c once.Claim) (once.Result, error) {
				require.Equal(t, n+1, c.Attempt)
				return once.Result{Retry: true}, nil
			})
			require.NoError(t, err)
		}
	})
	synctest.Test(t, func(t *testing.T) { // but not for longer than for another answer of the store
		plan := &fault.Plan{Rules: []fault.Rule{{Op: "update", Action: fault.Hang, Delay: time.Hour}}}
		table := startProcess(t, store.NewMemory(), time.Hour, plan).Table
		retried := func(context.Context, once.Claim) (once.Result, error) { return once.Result{Retry: true}, nil }
		go table.Do(t.Context(), key("1"), once.Repeat, retried)
		synctest.Wait()
		start := time.Now()
		_, _, err := table.Do(t.Context(), atOnce("1"), once.Repeat, retried)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Equal(t, 10*time.Second, time.Since(start))
	})
}

// With NoWait no call waits for another one.
func TestDoRefusesWhileRunning(t *testing.T) {
	eachTable(t, func(t *testing.T, table *once.Table) {
		c := &counter{delay: time.Second}
		go table.Do(t.Context(), key("1"), once.Repeat, c.run)
		synctest.Wait()
		start := time.Now()
		_, _, err := table.Do(t.Context(), atOnce("1"), once.Repeat, c.run)
		require.ErrorIs(t, err, once.ErrBusy)
		require.Zero(t, time.Since(start))
		time.Sleep(2 * time.Second)
		requireDo(t, table, atOnce("1"), once.Repeat, c, "run 1", true)
	})
	synctest.Test(t, func(t *testing.T) {
		db := store.NewMemory()
		first, second := startProcess(t, db, time.Hour, &fault.Plan{}).Table, startProcess(t, db, time.Hour, &fault.Plan{}).Table
		c := &counter{delay: time.Second}
		go first.Do(t.Context(), key("1"), once.Repeat, c.run)
		synctest.Wait()
		_, _, err := second.Do(t.Context(), atOnce("1"), once.Repeat, c.run)
		require.ErrorIs(t, err, once.ErrBusy)
		time.Sleep(2 * time.Second)
		requireDo(t, second, atOnce("1"), once.Repeat, c, "run 1", true)
	})
}

// Calls that wait for work without an outcome run it, one after the other.
func TestDoRunsWaitersAfterForget(t *testing.T) {
	eachTable(t, func(t *testing.T, table *once.Table) {
		c := &counter{delay: time.Second, forget: true}
		var wg sync.WaitGroup
		start := time.Now()
		for range 5 {
			wg.Go(func() {
				_, replayed, err := table.Do(t.Context(), key("1"), once.AtMostOnce, c.run)
				require.NoError(t, err)
				require.False(t, replayed)
			})
		}
		wg.Wait()
		require.Equal(t, 5, c.count())
		require.Equal(t, 5*time.Second, time.Since(start))
	})
}

// An exitingStore ends the goroutine of the first change of a claim by an operation.
type exitingStore struct {
	store.Store
	op      string
	hasLeft atomic.Bool
}

func (s *exitingStore) Create(ctx context.Context, key string, value []byte, ttl time.Duration) (store.Revision, error) {
	s.exit("create", key)
	return s.Store.Create(ctx, key, value, ttl)
}

func (s *exitingStore) Update(ctx context.Context, key string, value []byte, rev store.Revision, ttl time.Duration) (store.Revision, error) {
	s.exit("update", key)
	return s.Store.Update(ctx, key, value, rev, ttl)
}

func (s *exitingStore) exit(op, key string) {
	if op == s.op && strings.HasPrefix(key, prefix+"once/") && !s.hasLeft.Swap(true) {
		time.Sleep(time.Second)
		runtime.Goexit()
	}
}

// A store that ends the goroutine of a call, at its claim or at the record of its outcome, does not hold the waiting ones.
func TestDoReleasesWaitersOfEndedGoroutine(t *testing.T) {
	for op, want := range map[string]error{"create": nil, "update": once.ErrLost} {
		synctest.Test(t, func(t *testing.T) {
			p := newProcess(t, &exitingStore{Store: store.NewMemory(), op: op})
			c := &counter{}
			call := func() (outcome chan error) {
				outcome = make(chan error, 1)
				go func() {
					_, _, err := p.Do(t.Context(), key("1"), once.AtMostOnce, c.run)
					outcome <- err
				}()
				synctest.Wait()
				return outcome
			}
			first, waiting := call(), call()
			if op == "update" {
				require.NoError(t, <-first, "of the work")
			}
			select {
			case err := <-waiting:
				require.ErrorIs(t, err, want)
			case <-time.After(time.Minute):
				t.Error("the waiting call is held after the", op)
			}
			require.Equal(t, 1, c.count())
		})
	}
}

func TestDoBoundsWaiters(t *testing.T) {
	eachTable(t, func(t *testing.T, table *once.Table) {
		c := &counter{delay: time.Second}
		var wg sync.WaitGroup
		for range 65 {
			wg.Go(func() {
				data, _, err := table.Do(t.Context(), key("1"), once.AtMostOnce, c.run)
				require.NoError(t, err)
				require.Equal(t, "run 1", string(data))
			})
		}
		synctest.Wait()
		_, _, err := table.Do(t.Context(), key("1"), once.AtMostOnce, c.run)
		require.ErrorIs(t, err, once.ErrBusy)
		wg.Wait()
		requireDo(t, table, key("1"), once.AtMostOnce, c, "run 1", true)
	})
}

func TestDoWaiterLeavesWithItsContext(t *testing.T) {
	eachTable(t, func(t *testing.T, table *once.Table) {
		c := &counter{delay: time.Minute}
		done := make(chan struct{})
		go func() {
			defer close(done)
			table.Do(t.Context(), key("1"), once.AtMostOnce, c.run)
		}()
		synctest.Wait()
		for range 100 { // a waiter that has left has no place
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
			_, _, err := table.Do(ctx, key("1"), once.AtMostOnce, c.run)
			require.ErrorIs(t, err, context.DeadlineExceeded)
			cancel()
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, _, err := table.Do(ctx, key("2"), once.AtMostOnce, c.run)
		require.ErrorIs(t, err, context.Canceled)
		require.Equal(t, 1, c.count())
		<-done
		requireDo(t, table, key("2"), once.AtMostOnce, &counter{}, "run 1", false) // nothing recorded before it began
	})
}

func TestDoJoinsAliases(t *testing.T) {
	eachTable(t, func(t *testing.T, table *once.Table) {
		c := &counter{delay: time.Second}
		k := key("triple 1")
		k.Aliases = []string{"id 1", "", "id 1", "triple 1"}
		var wg sync.WaitGroup
		wg.Go(func() { requireDo(t, table, k, once.AtMostOnce, c, "run 1", false) })
		synctest.Wait()
		other := key("triple 2")
		other.Aliases = []string{"id 1"}
		requireDo(t, table, other, once.AtMostOnce, c, "run 1", true)
		requireDo(t, table, other, once.AtMostOnce, c, "run 1", true)
		requireDo(t, table, key("id 1"), once.AtMostOnce, c, "run 1", true)
		requireDo(t, table, key("triple 1"), once.AtMostOnce, c, "run 1", true)
		other.Digest[0] = 1
		_, _, err := table.Do(t.Context(), other, once.AtMostOnce, c.run)
		require.ErrorIs(t, err, once.ErrReused)
		requireDo(t, table, key("triple 2"), once.AtMostOnce, c, "run 2", false)
		wg.Wait()
		state, _, err := table.Peek(t.Context(), key("id 1"))
		require.NoError(t, err)
		require.Equal(t, once.StateDone, state)
	})
}

func TestPeek(t *testing.T) {
	eachTable(t, func(t *testing.T, table *once.Table) {
		c := &counter{delay: time.Second}
		requirePeek := func(want once.State) {
			t.Helper()
			got, claim, err := table.Peek(t.Context(), key("1"))
			require.NoError(t, err)
			require.Equal(t, want, got)
			if want == once.StateAbsent {
				require.Zero(t, claim)
			} else {
				require.Equal(t, c.claims[0], claim)
			}
		}
		requirePeek(once.StateAbsent)
		go table.Do(t.Context(), key("1"), once.Repeat, c.run)
		synctest.Wait()
		requirePeek(once.StateRunning)
		time.Sleep(2 * time.Second)
		requirePeek(once.StateDone)
		time.Sleep(25 * time.Hour)
		requirePeek(once.StateAbsent)
	})
}

func TestDoKeepsTooLargeOutcomeAsNotRetained(t *testing.T) {
	eachTable(t, func(t *testing.T, table *once.Table) {
		big := func(context.Context, once.Claim) (once.Result, error) {
			return once.Result{Data: make([]byte, 1<<20+1)}, nil
		}
		data, _, err := table.Do(t.Context(), key("1"), once.Repeat, big)
		require.NoError(t, err)
		require.Len(t, data, 1<<20+1)
		_, _, err = table.Do(t.Context(), key("1"), once.Repeat, big)
		require.ErrorIs(t, err, once.ErrNotRetained)
		state, c, err := table.Peek(t.Context(), key("1"))
		require.NoError(t, err)
		require.Equal(t, []any{once.StateDone, true}, []any{state, c.Dropped})
	})
}

func TestCloseEndsWaiters(t *testing.T) {
	eachTable(t, func(t *testing.T, table *once.Table) {
		var wg sync.WaitGroup
		wg.Go(func() {
			data, _, err := table.Do(t.Context(), key("1"), once.AtMostOnce, (&counter{delay: time.Second}).run)
			require.NoError(t, err)
			require.Equal(t, "run 1", string(data))
		})
		synctest.Wait()
		wg.Go(func() {
			_, _, err := table.Do(t.Context(), key("1"), once.AtMostOnce, new(counter).run)
			require.ErrorIs(t, err, once.ErrClosed)
		})
		synctest.Wait()
		require.NoError(t, table.Close())
		require.NoError(t, table.Close())
		wg.Wait()
		_, _, err := table.Do(t.Context(), key("2"), once.AtMostOnce, new(counter).run)
		require.ErrorIs(t, err, once.ErrClosed)
	})
}

func TestDoRunsEachCallWithEmptyID(t *testing.T) {
	eachTable(t, func(t *testing.T, table *once.Table) {
		c := &counter{}
		for i := range 3 {
			requireDo(t, table, key(""), once.AtMostOnce, c, fmt.Sprintf("run %d", i+1), false)
		}
		k := key("")
		k.Aliases = []string{""}
		requireDo(t, table, k, once.AtMostOnce, c, "run 4", false)
		for i := range 3 { // nor is an empty alias one
			k := key(fmt.Sprint(i))
			k.Aliases = []string{""}
			requireDo(t, table, k, once.AtMostOnce, c, fmt.Sprintf("run %d", i+5), false)
		}
	})
}

func TestDoCopiesSmallData(t *testing.T) {
	table := newMemory(t, once.Options{})
	var buffers []weak.Pointer[byte]
	work := func(context.Context, once.Claim) (once.Result, error) {
		buf := make([]byte, 4<<20)
		buffers = append(buffers, weak.Make(&buf[0]))
		return once.Result{Data: buf[:20:20]}, nil
	}
	for i := range 8 {
		_, _, err := table.Do(t.Context(), key(fmt.Sprint(i)), once.AtMostOnce, work)
		require.NoError(t, err)
	}
	for range 10 {
		runtime.GC()
	}
	for i, p := range buffers {
		require.Nil(t, p.Value(), "the buffer of outcome %d is still held", i)
	}
	data, replayed, err := table.Do(t.Context(), key("7"), once.AtMostOnce, new(counter).run)
	require.NoError(t, err)
	require.True(t, replayed)
	require.Len(t, data, 20)
}

func TestDoAllocatesFourTimesInMemory(t *testing.T) {
	if race.Enabled {
		t.Skip("the race detector allocates")
	}
	table := newMemory(t, once.Options{})
	ids := make([]string, 30_000)
	for i := range ids {
		ids[i] = fmt.Sprint("request ", i)
	}
	n := 0
	ctx := t.Context()
	got := testing.AllocsPerRun(20_000, func() {
		_, _, err := table.Do(ctx, key(ids[n]), once.AtMostOnce, benchWork)
		if err != nil {
			t.Fatal(err)
		}
		n++
	})
	require.LessOrEqual(t, got, 4.0, "allocations of a call")
	repeat := testing.AllocsPerRun(1000, func() { table.Do(ctx, key("request 9"), once.AtMostOnce, benchWork) })
	require.Zero(t, repeat, "allocations of a repeat")
}

func TestDoAllocatesInStore(t *testing.T) {
	if race.Enabled {
		t.Skip("the race detector allocates")
	}
	db := store.NewMemory()
	own, err := lease.Acquire(t.Context(), db, lease.Options{Prefix: prefix, Logger: discard})
	require.NoError(t, err)
	defer func() { _ = own.Release(t.Context()) }()
	table := once.New(db, own, once.Options{Prefix: prefix, Logger: discard})
	defer table.Close()
	n := 0
	got := testing.AllocsPerRun(5000, func() {
		_, _, err := table.Do(t.Context(), key(strconv.Itoa(n)), once.AtMostOnce, benchWork)
		if err != nil {
			t.Fatal(err)
		}
		n++
	})
	require.LessOrEqual(t, got, 40.0, "allocations of a call")
}
