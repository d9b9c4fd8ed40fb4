// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package once_test

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/conformance/fault"
	"github.com/fivewire/fivewire/internal/lease"
	"github.com/fivewire/fivewire/internal/once"
	"github.com/fivewire/fivewire/store"
)

const writes = "create|update"

// A flag switches faults on.
type flag struct{ atomic.Bool }

func (f *flag) match(_, _ string) bool { return f.Load() }

// test runs f in a bubble with an empty store.
func test(t *testing.T, f func(t *testing.T, db store.Store)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { f(t, store.NewMemory()) })
}

func TestDoRunsOnceWhenAnswersAreLost(t *testing.T) {
	for _, p := range []once.Policy{once.AtMostOnce, once.Repeat} {
		test(t, func(t *testing.T, db store.Store) {
			one := newProcess(t, db, fault.Rule{Action: fault.ErrorAfter, Op: writes, Probability: 0.7})
			two := newProcess(t, db, fault.Rule{Action: fault.ErrorAfter, Op: writes, Probability: 0.7})
			c := &counter{delay: time.Second}
			var wg sync.WaitGroup
			for _, table := range []*once.Table{one.Table, two.Table, one.Table, two.Table} {
				wg.Go(func() {
					data, _, err := table.Do(t.Context(), key("1"), p, c.run)
					require.NoError(t, err)
					require.Equal(t, "run 1", string(data))
				})
			}
			wg.Wait()
			require.Equal(t, 1, c.count())
			require.Positive(t, one.plan.Count(fault.ErrorAfter)+two.plan.Count(fault.ErrorAfter))
		})
	}
}

// A repeated write that was made already is the write of this call, not one of another.
func TestDoFindsItsOwnWrites(t *testing.T) {
	test(t, func(t *testing.T, db store.Store) {
		p := newProcess(t, db, fault.Rule{Action: fault.ErrorAfter, Op: writes, Limit: 3})
		k := key("1")
		k.Aliases = []string{"x"}
		c := &counter{}
		requireDo(t, p.Table, k, once.Repeat, c, "run 1", false)
		require.Equal(t, 3, p.plan.Count(fault.ErrorAfter), "of the claim, the alias and the outcome")
		require.Equal(t, 1, c.claims[0].Attempt)
	})
}

// A waiter compares its digest also with that of a call whose claim is not written yet.
func TestDoRefusesOtherDigestAfterWait(t *testing.T) {
	test(t, func(t *testing.T, db store.Store) {
		p := newProcess(t, db, fault.Rule{Action: fault.Delay, Op: "create", Delay: time.Second})
		go p.Do(t.Context(), key("1"), once.AtMostOnce, new(counter).run)
		synctest.Wait()
		other := key("1")
		other.Digest[0] = 1
		_, _, err := p.Do(t.Context(), other, once.AtMostOnce, new(counter).run)
		require.ErrorIs(t, err, once.ErrReused)
	})
}

func TestDoDoesNotRecordStoreFailure(t *testing.T) {
	for _, kind := range []fault.Action{fault.ErrorBefore, fault.ErrorAfter, fault.LandLater, fault.Hang} {
		test(t, func(t *testing.T, db store.Store) {
			start := time.Now()
			isDown := func(_, _ string) bool { return time.Since(start) < time.Second }
			p := newProcess(t, db, fault.Rule{Action: kind, When: isDown})
			c := &counter{}
			ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
			defer cancel()
			_, _, err := p.Do(ctx, key("1"), once.AtMostOnce, c.run)
			require.ErrorIs(t, err, context.DeadlineExceeded)
			require.Equal(t, 500*time.Millisecond, time.Since(start))
			time.Sleep(time.Second)
			requireDo(t, p.Table, key("1"), once.AtMostOnce, c, "run 1", false)
			require.Less(t, time.Since(start), 15*time.Second)
		})
	}
}

// A claim that was refused, because its Create had no answer, does not block a repeat
// at another instance when it lands.
func TestDoReleasesClaimThatLandsLate(t *testing.T) {
	for _, pause := range []time.Duration{0, 2 * time.Second, 20 * time.Second} {
		test(t, func(t *testing.T, db store.Store) {
			start := time.Now()
			isDown := func(_, _ string) bool { return time.Since(start) < 200*time.Millisecond }
			late := fault.Rule{Action: fault.LandLater, Op: "create", When: isDown, Delay: 10 * time.Second}
			one := newProcess(t, db, late)
			two := newProcess(t, db)
			c := &counter{}
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			defer cancel()
			_, _, err := one.Do(ctx, key("1"), once.AtMostOnce, c.run)
			require.ErrorIs(t, err, context.DeadlineExceeded)
			require.Greater(t, one.plan.Count(fault.LandLater), 2)
			time.Sleep(pause)
			c.forget = true // so that each landing has the chance
			for range 20 {
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				_, replayed, err := two.Do(ctx, key("1"), once.AtMostOnce, c.run)
				require.NoError(t, err)
				require.False(t, replayed)
				time.Sleep(time.Second)
			}
		})
	}
}

func TestDoFollowsPolicyAfterCrash(t *testing.T) {
	test(t, func(t *testing.T, db store.Store) {
		one, two := newProcess(t, db), newProcess(t, db)
		c := &counter{delay: time.Minute}
		go one.Do(t.Context(), key("repeat"), once.Repeat, c.run)
		go one.Do(t.Context(), key("once"), once.AtMostOnce, c.run)
		synctest.Wait()
		owner := one.lease.Owner()
		one.crash()
		start := time.Now()
		c.delay = 0
		requireDo(t, two.Table, key("repeat"), once.Repeat, c, "run 3", false)
		require.Less(t, time.Since(start), 17*time.Second, "lease and the longest poll")
		require.Equal(t, once.Claim{Token: c.claims[2].Token, Attempt: 2, Redelivered: true, Failed: owner}, c.claims[2])
		require.Contains(t, []string{c.claims[0].Token, c.claims[1].Token}, c.claims[2].Token)
		for range 2 {
			_, replayed, err := two.Do(t.Context(), key("once"), once.AtMostOnce, c.run)
			require.ErrorIs(t, err, once.ErrLost)
			require.True(t, replayed)
		}
		_, replayed, err := two.Do(t.Context(), key("once"), once.Repeat, c.run)
		require.ErrorIs(t, err, once.ErrLost, "the outcome is recorded")
		require.True(t, replayed)
		time.Sleep(time.Minute)
	})
}

// A paused owner whose claim was taken over returns the outcome of the other instance.
func TestDoReturnsOutcomeOfOtherInstanceAfterPause(t *testing.T) {
	test(t, func(t *testing.T, db store.Store) {
		one, two := newProcess(t, db), newProcess(t, db)
		slow, fast := &counter{delay: time.Minute}, &counter{}
		var wg sync.WaitGroup
		wg.Go(func() {
			_, replayed, err := one.Do(t.Context(), key("once"), once.AtMostOnce, slow.run)
			require.ErrorIs(t, err, once.ErrLost)
			require.True(t, replayed)
		})
		wg.Go(func() {
			data, replayed, err := one.Do(t.Context(), key("repeat"), once.Repeat, slow.run)
			require.NoError(t, err)
			require.True(t, replayed)
			require.Equal(t, "run 1", string(data), "of the other instance")
		})
		synctest.Wait()
		one.plan.Pause()
		requireDo(t, two.Table, key("repeat"), once.Repeat, fast, "run 1", false)
		_, _, err := two.Do(t.Context(), key("once"), once.AtMostOnce, fast.run)
		require.ErrorIs(t, err, once.ErrLost)
		one.plan.Resume()
		wg.Wait()
	})
}

// The work of an instance without its lease ends with an error that is not recorded under
// Repeat, and the next call takes the claim over.
func TestDoHandsOverWhenLeaseEnds(t *testing.T) {
	test(t, func(t *testing.T, db store.Store) {
		one, two := newProcess(t, db), newProcess(t, db)
		var wg sync.WaitGroup
		wg.Go(func() {
			wait := func(ctx context.Context, c once.Claim) (once.Result, error) {
				<-ctx.Done()
				return once.Result{}, context.Cause(ctx)
			}
			_, _, err := one.Do(t.Context(), key("1"), once.Repeat, wait)
			require.ErrorIs(t, err, lease.ErrClosed)
			require.NotErrorIs(t, err, once.ErrFailed)
		})
		synctest.Wait()
		require.NoError(t, one.lease.Release(t.Context()))
		wg.Wait()
		c := &counter{}
		requireDo(t, two.Table, key("1"), once.Repeat, c, "run 1", false)
		require.Equal(t, 2, c.claims[0].Attempt)
		_, _, err := one.Do(t.Context(), key("2"), once.Repeat, c.run)
		require.ErrorIs(t, err, lease.ErrClosed, "no claim without a lease")
	})
}

// A take-over whose caller leaves before the work runs does not block other instances.
func TestDoHandsOverTakeOverInDoubt(t *testing.T) {
	test(t, func(t *testing.T, db store.Store) {
		var isDown flag
		one, three := newProcess(t, db), newProcess(t, db)
		two := newProcess(t, db, fault.Rule{Action: fault.ErrorAfter, Op: "update", When: isDown.match})
		t.Cleanup(func() { time.Sleep(time.Minute) }) // until the work of one ends
		c := &counter{delay: time.Minute}
		go one.Do(t.Context(), key("1"), once.Repeat, c.run)
		synctest.Wait()
		one.crash()
		time.Sleep(20 * time.Second)
		isDown.Store(true)
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		_, _, err := two.Do(ctx, key("1"), once.Repeat, c.run)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		isDown.Store(false)
		ctx, cancel = context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		c.delay = 0
		_, replayed, err := three.Do(ctx, key("1"), once.Repeat, c.run)
		require.NoError(t, err)
		require.False(t, replayed)
		require.Equal(t, once.Claim{Token: c.claims[0].Token, Attempt: 3, Redelivered: true}, c.claims[1])
	})
}

// An outcome that the store does not take for the time of Retention is lost, and a repeat
// at the same instance runs again.
func TestDoGivesUpOutcomeAfterRetention(t *testing.T) {
	test(t, func(t *testing.T, db store.Store) {
		var isDown flag
		p := newProcess(t, db, fault.Rule{Op: "update", When: isDown.match})
		table := once.New(p.db, p.lease, once.Options{Prefix: prefix, Logger: discard, Retention: 20 * time.Minute})
		defer table.Close()
		c := &counter{}
		isDown.Store(true)
		start := time.Now()
		_, _, err := table.Do(t.Context(), key("1"), once.Repeat, c.run)
		require.ErrorIs(t, err, once.ErrLost)
		require.Equal(t, 20*time.Minute, time.Since(start))
		time.Sleep(2 * time.Minute) // the last repetition of the write ends after a minute
		isDown.Store(false)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		_, replayed, err := table.Do(ctx, key("1"), once.Repeat, c.run)
		require.NoError(t, err)
		require.False(t, replayed)
		require.Equal(t, once.Claim{Token: c.claims[0].Token, Attempt: 2, Redelivered: true}, c.claims[1])
	})
}

// An outcome in a store has no effect after Retention, although its record stays longer.
func TestDoRunsAgainAfterShortRetention(t *testing.T) {
	test(t, func(t *testing.T, db store.Store) {
		p, c := newProcess(t, db), &counter{}
		table := once.New(p.db, p.lease, once.Options{Prefix: prefix, Logger: discard, Retention: 5 * time.Minute})
		defer table.Close()
		requireDo(t, table, key("1"), once.AtMostOnce, c, "run 1", false)
		time.Sleep(5*time.Minute - time.Second)
		requireDo(t, table, key("1"), once.AtMostOnce, c, "run 1", true)
		time.Sleep(2 * time.Second)
		requireDo(t, table, key("1"), once.AtMostOnce, c, "run 2", false)
		requireDo(t, table, key("1"), once.AtMostOnce, c, "run 2", true)
	})
}

// StoreTimeout bounds the claim, and the wait for the record of an outcome under Repeat, but neither
// work nor the wait for another instance.
func TestStoreTimeoutBoundsStore(t *testing.T) {
	test(t, func(t *testing.T, db store.Store) {
		var noCreate, noUpdate flag
		p := newProcess(t, db, fault.Rule{Op: "create", When: noCreate.match}, fault.Rule{Op: "update", When: noUpdate.match})
		opts := once.Options{Prefix: prefix, Logger: discard, StoreTimeout: 3 * time.Second}
		table, c := once.New(p.db, p.lease, opts), &counter{delay: time.Minute}
		defer table.Close()
		noCreate.Store(true)
		start := time.Now()
		_, _, err := table.Do(t.Context(), key("1"), once.AtMostOnce, c.run)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Equal(t, 3*time.Second, time.Since(start))
		require.Zero(t, c.count())
		noCreate.Store(false)

		two := newProcess(t, db)
		other := once.New(two.db, two.lease, opts)
		defer other.Close()
		noUpdate.Store(true)
		results := make(chan error)
		start = time.Now()
		go func() {
			_, _, err := table.Do(t.Context(), key("2"), once.Repeat, c.run)
			results <- err
		}()
		synctest.Wait()
		go func() {
			_, replayed, err := other.Do(t.Context(), key("2"), once.Repeat, c.run)
			if err == nil && !replayed {
				err = errors.New("run twice")
			}
			results <- err
		}()
		require.ErrorIs(t, <-results, context.DeadlineExceeded)
		require.Equal(t, time.Minute+3*time.Second, time.Since(start))
		noUpdate.Store(false)
		require.NoError(t, <-results)
		require.Equal(t, 1, c.count())
	})
}

// A claim whose alias another one took before the work ran is free again.
func TestDoReleasesClaimWhoseAliasIsTaken(t *testing.T) {
	test(t, func(t *testing.T, db store.Store) {
		isAlias := func(_, key string) bool { return strings.HasSuffix(key, "/x") }
		one := newProcess(t, db, fault.Rule{Action: fault.Hang, When: isAlias})
		two, c := newProcess(t, db), &counter{}
		first, second := key("1"), key("2")
		first.Aliases, second.Aliases = []string{"x"}, []string{"x"}
		go one.Do(t.Context(), first, once.Repeat, c.run)
		synctest.Wait()
		one.crash()
		requireDo(t, two.Table, second, once.Repeat, c, "run 1", false)
		requireDo(t, two.Table, first, once.Repeat, c, "run 1", true)
		requireDo(t, two.Table, key("1"), once.Repeat, c, "run 2", false)
		require.Equal(t, 1, c.claims[1].Attempt)
	})
}

func TestDoReturnsOutcomeUnderAtMostOnceWithoutStore(t *testing.T) {
	test(t, func(t *testing.T, db store.Store) {
		var isDown flag
		p := newProcess(t, db, fault.Rule{Op: "update", When: isDown.match})
		c := &counter{delay: time.Second}
		isDown.Store(true)
		start := time.Now()
		requireDo(t, p.Table, key("1"), once.AtMostOnce, c, "run 1", false)
		require.Less(t, time.Since(start), 3*time.Second)

		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		_, _, err := p.Do(ctx, key("1"), once.AtMostOnce, c.run)
		require.ErrorIs(t, err, context.DeadlineExceeded, "a repeat waits until the outcome is recorded")
		time.AfterFunc(time.Hour, func() { isDown.Store(false) })
		requireDo(t, p.Table, key("1"), once.AtMostOnce, c, "run 1", true)
		requireDo(t, newProcess(t, db).Table, key("1"), once.AtMostOnce, c, "run 1", true)
	})
}

func TestDoReturnsOutcomeUnderRepeatOnlyIfRecorded(t *testing.T) {
	test(t, func(t *testing.T, db store.Store) {
		var isDown flag
		p := newProcess(t, db, fault.Rule{Op: "update", When: isDown.match})
		c := &counter{delay: time.Second}
		isDown.Store(true)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		_, _, err := p.Do(ctx, key("1"), once.Repeat, c.run)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		isDown.Store(false)
		requireDo(t, p.Table, key("1"), once.Repeat, c, "run 1", true)
	})
}

// While the store takes no outcomes, only so many calls begin.
func TestDoBoundsOutcomesInDoubt(t *testing.T) {
	test(t, func(t *testing.T, db store.Store) {
		var isDown flag
		p := newProcess(t, db, fault.Rule{Op: "update", When: isDown.match})
		isDown.Store(true)
		ctx, cancel := context.WithCancel(t.Context())
		n, err := 0, error(nil)
		for ; err == nil && n < 5000; n++ {
			k := key(string(rune('\u4e00' + n)))
			_, _, err = p.Do(ctx, k, once.AtMostOnce, func(context.Context, once.Claim) (once.Result, error) {
				cancel() // the caller leaves
				return once.Result{}, nil
			})
			ctx, cancel = context.WithCancel(t.Context())
		}
		cancel()
		require.ErrorIs(t, err, once.ErrBusy)
		require.Equal(t, 4097, n)
		isDown.Store(false)
		time.Sleep(time.Minute)
		requireDo(t, p.Table, key("1"), once.AtMostOnce, new(counter), "run 1", false)
	})
}

func TestDoKeepsClaimOfLongWork(t *testing.T) {
	test(t, func(t *testing.T, db store.Store) {
		one := startProcess(t, db, time.Hour, &fault.Plan{})
		two := startProcess(t, db, time.Hour, &fault.Plan{})
		c := &counter{delay: 60 * time.Hour}
		k := key("1")
		k.Aliases = []string{"alias"}
		go one.Do(t.Context(), k, once.AtMostOnce, c.run)
		synctest.Wait()
		time.Sleep(59 * time.Hour)
		requireDo(t, two.Table, key("alias"), once.AtMostOnce, c, "run 1", true)
		time.Sleep(23 * time.Hour)
		requireDo(t, two.Table, key("alias"), once.AtMostOnce, c, "run 1", true)
		time.Sleep(2 * time.Hour)
		c.delay = 0
		requireDo(t, two.Table, key("alias"), once.AtMostOnce, c, "run 2", false)
		time.Sleep(30 * time.Hour)
		for e, err := range db.List(t.Context(), prefix+"once/") {
			require.NoError(t, err)
			t.Error("left in the store:", e.Key)
		}
	})
}

// A pin outlives a claim in doubt and the renewal of the claim.
func TestPinIsKept(t *testing.T) {
	for _, inDoubt := range []bool{true, false} {
		test(t, func(t *testing.T, db store.Store) {
			plan, c := &fault.Plan{}, &counter{delay: 14 * time.Hour, forget: true}
			if inDoubt {
				plan.Rules, c.delay = []fault.Rule{{Action: fault.ErrorAfter, Op: "create", Limit: 1}}, time.Second
			}
			one, two := startProcess(t, db, time.Hour, plan), startProcess(t, db, time.Hour, &fault.Plan{})
			go one.Do(t.Context(), key("1"), once.AtMostOnce, c.run)
			synctest.Wait()
			require.Equal(t, inDoubt, c.count() == 0)
			k := key("1")
			k.Pin = true
			state, _, err := two.Peek(t.Context(), k)
			require.NoError(t, err)
			require.Equal(t, once.StateRunning, state)
			_, _, err = two.Do(t.Context(), key("1"), once.AtMostOnce, c.run)
			require.ErrorIs(t, err, once.ErrLost)
			require.Equal(t, 1, c.count())
		})
	}
}

// Another instance has taken the claim over, and this one does not know it yet.
func TestPinReturnsStoredStateOfLostClaim(t *testing.T) {
	test(t, func(t *testing.T, db store.Store) {
		one, two := startProcess(t, db, time.Hour, &fault.Plan{}), startProcess(t, db, time.Hour, &fault.Plan{})
		go one.Do(t.Context(), key("1"), once.AtMostOnce, (&counter{delay: time.Minute}).run)
		synctest.Wait()
		name, _, _ := strings.Cut(string(one.lease.Owner()), "@")
		e, err := db.Get(t.Context(), prefix+"lease/"+name)
		require.NoError(t, err)
		require.NoError(t, db.Delete(t.Context(), e.Key, e.Revision))
		_, _, err = two.Do(t.Context(), key("1"), once.AtMostOnce, (&counter{}).run)
		require.ErrorIs(t, err, once.ErrLost)
		k := key("1")
		k.Pin = true
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		state, _, err := one.Peek(ctx, k)
		time.Sleep(time.Minute)
		require.NoError(t, err)
		require.Equal(t, once.StateDone, state)
	})
}

func TestDoDropsOutcomeTooLargeForStore(t *testing.T) {
	test(t, func(t *testing.T, db store.Store) {
		p := newProcess(t, smallStore{db})
		c := &counter{}
		big := func(context.Context, once.Claim) (once.Result, error) {
			return once.Result{Data: make([]byte, 2000)}, nil
		}
		data, _, err := p.Do(t.Context(), key("1"), once.Repeat, big)
		require.NoError(t, err)
		require.Len(t, data, 2000)
		_, _, err = p.Do(t.Context(), key("1"), once.Repeat, c.run)
		require.ErrorIs(t, err, once.ErrNotRetained)
	})
}

// A smallStore takes values of up to 1,000 bytes.
type smallStore struct{ store.Store }

func (s smallStore) Update(
	ctx context.Context, key string, value []byte, rev store.Revision, ttl time.Duration,
) (store.Revision, error) {
	if len(value) > 1000 {
		return 0, store.ErrInvalid
	}
	return s.Store.Update(ctx, key, value, rev, ttl)
}

func TestDoRefusesOtherFormat(t *testing.T) {
	test(t, func(t *testing.T, db store.Store) {
		p := newProcess(t, db)
		digest := base64.StdEncoding.EncodeToString(make([]byte, 32))
		doneWithoutOutcome := fmt.Sprintf("\x01{\"Kind\":2,\"Digest\":%q}\n", digest)
		for _, value := range []string{doneWithoutOutcome, "", "\x02{}", "\x01{", "\x01", "\x01{}\n"} {
			_, err := db.Create(t.Context(), prefix+"once/alice/pay/1", []byte(value), time.Second)
			require.NoError(t, err)
			_, _, err = p.Do(t.Context(), key("1"), once.Repeat, new(counter).run)
			require.ErrorContains(t, err, "stored value", "stored %q", value)
			_, _, err = p.Peek(t.Context(), key("1"))
			require.Error(t, err, "stored %q", value)
			time.Sleep(time.Second)
		}
	})
}

// Work that ends shortly after Close is recorded.
func TestDoRecordsOutcomeAfterClose(t *testing.T) {
	test(t, func(t *testing.T, db store.Store) {
		p, c := newProcess(t, db), &counter{delay: time.Second}
		var wg sync.WaitGroup
		wg.Go(func() { requireDo(t, p.Table, key("1"), once.Repeat, c, "run 1", false) })
		synctest.Wait()
		require.NoError(t, p.Table.Close())
		wg.Wait()
		requireDo(t, newProcess(t, db).Table, key("1"), once.Repeat, c, "run 1", true)
	})
}

// A claim lives as long as its work, also while Shutdown waits for that.
func TestShutdownRenewsClaims(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := store.NewMemory()
		one, two := startProcess(t, db, time.Hour, &fault.Plan{}), startProcess(t, db, time.Hour, &fault.Plan{})
		go one.Do(t.Context(), key("1"), once.Repeat, func(context.Context, once.Claim) (once.Result, error) {
			time.Sleep(90 * time.Hour)
			return once.Result{}, nil
		})
		synctest.Wait()
		done := make(chan error, 1)
		go func() { done <- one.Table.Shutdown(context.Background()) }()
		time.Sleep(80 * time.Hour)
		state, _, err := two.Peek(t.Context(), key("1"))
		require.NoError(t, err)
		require.Equal(t, once.StateRunning, state)
		require.NoError(t, <-done)
	})
}

// Shutdown lets work end, and waits until its end is stored, as long as its context allows.
func TestShutdownStoresEnd(t *testing.T) {
	for _, wait := range []time.Duration{time.Minute, time.Millisecond} {
		test(t, func(t *testing.T, db store.Store) {
			p := newProcess(t, db, fault.Rule{Action: fault.Delay, Op: "update", Delay: time.Second})
			go p.Do(t.Context(), key("1"), once.Repeat, func(context.Context, once.Claim) (once.Result, error) {
				time.Sleep(time.Second)
				return once.Result{Retry: true, Data: []byte("state")}, nil
			})
			synctest.Wait()
			ctx, cancel := context.WithTimeout(t.Context(), wait)
			defer cancel()
			start := time.Now()
			if err := p.Table.Shutdown(ctx); wait > time.Second {
				require.NoError(t, err)
				require.Greater(t, time.Since(start), time.Second)
			} else {
				require.ErrorIs(t, err, context.DeadlineExceeded)
				require.Equal(t, wait, time.Since(start))
			}
			_, _, err := p.Do(t.Context(), key("2"), once.Repeat, new(counter).run)
			require.ErrorIs(t, err, once.ErrClosed)
			_, claim, err := newProcess(t, db).Peek(t.Context(), key("1"))
			require.NoError(t, err)
			require.Equal(t, wait > time.Second, claim.Kept)
		})
	}
}

// A claim that Retry keeps stays when a call of it has the alias of another claim.
func TestDoKeepsStateOfClaimWhoseAliasIsTaken(t *testing.T) {
	test(t, func(t *testing.T, db store.Store) {
		p := newProcess(t, db)
		do := func(id, alias, state string) (seen string) {
			k := once.Key{ID: id, Aliases: []string{alias}}
			_, _, err := p.Do(t.Context(), k, once.Repeat, func(_ context.Context, c once.Claim) (once.Result, error) {
				seen = string(c.State)
				return once.Result{Retry: true, Data: []byte(state)}, nil
			})
			require.NoError(t, err)
			return seen
		}
		do("1", "x", "one")
		do("2", "y", "two")
		require.Equal(t, "two", do("1", "y", "two"))
		require.Equal(t, "one", do("1", "x", "one"))
	})
}

// Two keys with an alias in common, at two instances at the same time, run once.
func TestDoJoinsAliasesOfTwoInstances(t *testing.T) {
	for _, keys := range [][2]once.Key{
		{{ID: "1", Aliases: []string{"x"}}, {ID: "2", Aliases: []string{"x"}}},
		{{ID: "1", Aliases: []string{"x", "y"}}, {ID: "2", Aliases: []string{"y", "x"}}},
		{{ID: "1", Aliases: []string{"2"}}, {ID: "2", Aliases: []string{"1"}}},
		{{ID: "1", Aliases: []string{"2"}}, {ID: "2"}},
	} {
		test(t, func(t *testing.T, db store.Store) {
			slow := func() fault.Rule { return fault.Rule{Action: fault.Delay, Delay: 20 * time.Millisecond} }
			one, two := newProcess(t, db, slow()), newProcess(t, db, slow())
			two.plan.Seed = 2
			c := &counter{delay: time.Second}
			var wg sync.WaitGroup
			replays := 0
			for i, p := range []*process{one, two} {
				wg.Go(func() {
					data, replayed, err := p.Do(t.Context(), keys[i], once.AtMostOnce, c.run)
					require.NoError(t, err)
					require.Equal(t, "run 1", string(data))
					if replayed {
						replays++
					}
				})
			}
			wg.Wait()
			require.Equal(t, 1, c.count(), "runs of %+v", keys)
			require.Equal(t, 1, replays)
		})
	}
}

// Work that lost its claim in the store keeps all names that its callers used, until it ends.
func TestDoKeepsNamesOfLostClaim(t *testing.T) {
	test(t, func(t *testing.T, db store.Store) {
		crashed, one, two := newProcess(t, db), newProcess(t, db), newProcess(t, db)
		slow, fast := &counter{delay: time.Minute}, &counter{forget: true}
		k, other := key("1"), key("2")
		k.Aliases, other.Aliases = []string{"x"}, []string{"x"}
		go crashed.Do(t.Context(), k, once.Repeat, slow.run)
		synctest.Wait()
		crashed.crash()
		time.Sleep(20 * time.Second)
		start := time.Now()
		go one.Do(t.Context(), other, once.Repeat, slow.run)
		time.Sleep(time.Second)
		require.Equal(t, 2, slow.count())
		one.plan.Pause()
		requireDo(t, two.Table, k, once.Repeat, fast, "run 1", false)
		one.plan.Resume()
		for _, id := range []string{"2", "x"} {
			noWait := key(id)
			noWait.NoWait = true
			_, _, err := one.Do(t.Context(), noWait, once.Repeat, fast.run)
			require.ErrorIs(t, err, once.ErrBusy, id)
		}
		fast.forget = false
		requireDo(t, one.Table, other, once.Repeat, fast, "run 2", false)
		require.GreaterOrEqual(t, time.Since(start), slow.delay)
	})
}

// An alias of a claim that is absent is free.
func TestDoTakesAliasOfForgottenClaim(t *testing.T) {
	test(t, func(t *testing.T, db store.Store) {
		one, two := newProcess(t, db), newProcess(t, db)
		c := &counter{forget: true}
		k := key("1")
		k.Aliases = []string{"x"}
		requireDo(t, one.Table, k, once.AtMostOnce, c, "run 1", false)
		c.forget = false
		k.ID = "2"
		requireDo(t, two.Table, k, once.AtMostOnce, c, "run 2", false)
		requireDo(t, one.Table, k, once.AtMostOnce, c, "run 2", true)
		k.ID = "1"
		requireDo(t, one.Table, k, once.AtMostOnce, c, "run 2", true)
		requireDo(t, one.Table, key("x"), once.AtMostOnce, c, "run 2", true)
		requireDo(t, one.Table, key("1"), once.AtMostOnce, c, "run 3", false)
		c.forget = true
		k.ID, k.Aliases = "3", []string{"y"}
		requireDo(t, one.Table, k, once.AtMostOnce, c, "run 4", false)
		c.forget = false
		requireDo(t, one.Table, key("3"), once.AtMostOnce, c, "run 5", false) // another claim, without the alias
		requireDo(t, two.Table, key("y"), once.AtMostOnce, c, "run 6", false)
		k.ID, k.Aliases, k.Digest[0] = "none", []string{"x"}, 1
		_, _, err := one.Peek(t.Context(), k)
		require.ErrorIs(t, err, once.ErrReused)
	})
}

// A caller does not wait for a store that does not answer before the work begins.
func TestDoGivesClaimUpWithoutStore(t *testing.T) {
	test(t, func(t *testing.T, db store.Store) {
		down := &flag{}
		p := newProcess(t, db, fault.Rule{Op: "create|get", When: down.match})
		down.Store(true)
		start, c := time.Now(), &counter{}
		_, _, err := p.Do(t.Context(), key("1"), once.Repeat, c.run)
		require.Error(t, err)
		require.Less(t, time.Since(start), 11*time.Second)
		down.Store(false)
		time.Sleep(time.Minute) // the claim in doubt is released
		requireDo(t, p.Table, key("1"), once.Repeat, c, "run 1", false)
	})
}

// A repeat waits for a store that does not answer as long as the first call, and for work as long as it runs.
func TestRepeatDoesNotWaitForHangingStore(t *testing.T) {
	cases := []struct {
		name   string
		opts   once.Options
		policy once.Policy
		work   *counter
		down   string
		wait   time.Duration // of the repeat after the end of work
	}{
		{"claim", once.Options{}, once.AtMostOnce, &counter{}, "create", 10 * time.Second},
		{"claim with a bound", once.Options{StoreTimeout: 3 * time.Second}, once.Repeat, &counter{}, "create", 3 * time.Second},
		{"no outcome", once.Options{}, once.Repeat, &counter{forget: true, delay: time.Hour}, "update", 10 * time.Second},
		{"outcome", once.Options{StoreTimeout: 3 * time.Second}, once.Repeat, &counter{delay: time.Hour}, "update", 3 * time.Second},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			test(t, func(t *testing.T, db store.Store) {
				plan := &fault.Plan{Rules: []fault.Rule{{Op: c.down, Action: fault.Hang}}}
				p := startProcessWith(t, db, time.Hour*24, plan, c.opts)
				start := time.Now()
				go p.Do(t.Context(), key("1"), c.policy, c.work.run)
				synctest.Wait()
				if c.work.delay == 0 {
					time.Sleep(c.wait)
					synctest.Wait() // the first call has failed
					start = time.Now()
				}
				_, _, err := p.Do(t.Context(), key("1"), c.policy, c.work.run)
				require.ErrorIs(t, err, context.DeadlineExceeded)
				require.Equal(t, c.work.delay+c.wait, time.Since(start))
			})
		})
	}
}

// slowAnswers is a store whose updates of claims land at once and are answered later.
type slowAnswers struct{ store.Store }

func (s slowAnswers) Update(ctx context.Context, key string, value []byte, rev store.Revision, ttl time.Duration) (store.Revision, error) {
	rev, err := s.Store.Update(ctx, key, value, rev, ttl)
	if strings.HasPrefix(key, prefix+"once/") {
		time.Sleep(5 * time.Second)
	}
	return rev, err
}

// After the end of work, Peek finds the claim in the store, which another instance may have by then.
func TestPeekAfterTheEndOfWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := store.NewMemory()
		one, two := newProcess(t, slowAnswers{db}), newProcess(t, db)
		var wg sync.WaitGroup
		wg.Go(func() {
			_, _, err := one.Do(t.Context(), key("1"), once.AtMostOnce, (&counter{forget: true}).run)
			require.NoError(t, err)
		})
		synctest.Wait()
		c := &counter{delay: time.Second}
		wg.Go(func() { requireDo(t, two.Table, key("1"), once.AtMostOnce, c, "run 1", false) })
		synctest.Wait()
		state, claim, err := one.Peek(t.Context(), key("1"))
		require.NoError(t, err)
		require.Equal(t, once.StateRunning, state)
		require.Equal(t, c.claims[0], claim)
		wg.Wait()
	})
}
