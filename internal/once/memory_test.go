// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package once_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/fivewire/fivewire/internal/once"
	"github.com/fivewire/fivewire/internal/race"
)

// fill ends work of a principal with so many bytes.
func fill(t require.TestingT, table *once.Table, principal, id string, size int) {
	_, replayed, err := table.Do(context.Background(), once.Key{Principal: principal, ID: id}, once.AtMostOnce,
		func(context.Context, once.Claim) (once.Result, error) {
			return once.Result{Data: make([]byte, size)}, nil
		})
	require.NoError(t, err)
	require.False(t, replayed, "%s of %s", id, principal)
}

func requireState(t require.TestingT, table *once.Table, principal, id string, want once.State) {
	got, c, err := table.Peek(context.Background(), once.Key{Principal: principal, ID: id})
	require.NoError(t, err)
	require.Equal(t, want, got, "%s of %s", id, principal)
	require.False(t, c.Dropped, "%s of %s", id, principal)
}

// requireDropped requires that a key is known and its outcome is not retained.
func requireDropped(t require.TestingT, table *once.Table, principal, id string) {
	got, c, err := table.Peek(context.Background(), once.Key{Principal: principal, ID: id})
	require.NoError(t, err)
	require.Equal(t, once.StateDone, got, "%s of %s", id, principal)
	require.True(t, c.Dropped, "%s of %s", id, principal)
}

func requireUsage(t require.TestingT, table *once.Table, principal string, maxBytes, maxCount int) {
	bytes, count, slots, err := table.Usage(principal)
	require.NoError(t, err)
	require.LessOrEqual(t, bytes, maxBytes, "bytes of %q", principal)
	require.LessOrEqual(t, count, maxCount, "outcomes of %q", principal)
	require.LessOrEqual(t, slots, 2*maxCount+18, "slots of %q", principal)
}

func TestMemoryBoundsBytesOfPrincipal(t *testing.T) {
	table := newMemory(t, once.Options{})
	for i := range 40 {
		fill(t, table, "alice", fmt.Sprint(i), 1<<20)
		requireUsage(t, table, "alice", 16<<20, 20_000)
	}
	requireDropped(t, table, "alice", "24")
	requireState(t, table, "alice", "25", once.StateDone)
	requireDropped(t, table, "alice", "0")
}

func TestMemoryBoundsBytesOfAll(t *testing.T) {
	table := newMemory(t, once.Options{})
	for p := range 5 {
		for i := range 15 {
			fill(t, table, fmt.Sprint("tenant ", p), fmt.Sprint(i), 1<<20)
			requireUsage(t, table, "", 64<<20, 100_000)
		}
	}
	requireDropped(t, table, "tenant 4", "10") // the principal of the newest pays
	requireState(t, table, "tenant 4", "14", once.StateDone)
	requireState(t, table, "tenant 1", "0", once.StateDone)
	fill(t, table, "tenant 5", "0", 1<<20) // without other data, the oldest of all is removed
	requireState(t, table, "tenant 5", "0", once.StateDone)
	requireDropped(t, table, "tenant 0", "0")
	requireState(t, table, "tenant 0", "14", once.StateDone)
}

func TestMemoryBoundsCounts(t *testing.T) {
	table := newMemory(t, once.Options{})
	for i := range 20_100 {
		fill(t, table, "alice", fmt.Sprint(i), 1)
	}
	requireUsage(t, table, "alice", 16<<20, 20_000)
	requireState(t, table, "alice", "99", once.StateAbsent)
	requireState(t, table, "alice", "100", once.StateDone)
	for i := range 80_100 {
		fill(t, table, fmt.Sprint("tenant ", i%100), fmt.Sprint(i), 1)
	}
	requireUsage(t, table, "", 64<<20, 100_000)
	_, count, _, _ := table.Usage("")
	require.Equal(t, 100_000, count)
	requireState(t, table, "alice", "100", once.StateDone)
	fill(t, table, "newcomer", "1", 1)
	requireState(t, table, "alice", "100", once.StateAbsent)
	requireState(t, table, "newcomer", "1", once.StateDone)
}

// Claims that Retry keeps count like outcomes; the oldest is removed, not its state alone. A kept claim lives longer than an
// outcome behind it.
func TestMemoryBoundsKeptClaims(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table := newMemory(t, once.Options{MaxCount: 10, MaxBytes: 2000, RetryTTL: time.Hour})
		retry := func(id string, size int) {
			_, _, err := table.Do(t.Context(), once.Key{Principal: "alice", ID: id}, once.Repeat, func(context.Context, once.Claim) (once.Result, error) {
				return once.Result{Retry: true, Data: make([]byte, size)}, nil
			})
			require.NoError(t, err)
		}
		for i := range 20 {
			retry(fmt.Sprint(i), 1)
			requireUsage(t, table, "alice", 2000, 10)
		}
		requireState(t, table, "alice", "9", once.StateAbsent)
		requireState(t, table, "alice", "10", once.StateRunning)
		retry("large", 1900)
		requireUsage(t, table, "alice", 2000, 10)
		requireState(t, table, "alice", "10", once.StateAbsent)
		requireState(t, table, "alice", "large", once.StateRunning)
		retry("1", 1)
		fill(t, table, "alice", "2", 1)
		time.Sleep(5 * time.Minute)
		requireState(t, table, "alice", "1", once.StateRunning)
		requireState(t, table, "alice", "2", once.StateAbsent)
		time.Sleep(time.Hour)
		requireState(t, table, "alice", "1", once.StateAbsent)
	})
}

func TestMemoryShutsDownAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table, c := newMemory(t, once.Options{}), &counter{delay: time.Second}
		go table.Do(t.Context(), key("1"), once.Repeat, c.run)
		synctest.Wait()
		start := time.Now()
		require.NoError(t, table.Shutdown(t.Context()))
		require.Zero(t, time.Since(start))
		_, _, err := table.Do(t.Context(), key("2"), once.Repeat, c.run)
		require.ErrorIs(t, err, once.ErrClosed)
		time.Sleep(time.Second) // the work continues
		require.Equal(t, 1, c.count())
	})
}

// No number of ended calls refuses a new one.
func TestDoAcceptsCallsAfterManyEndedOnes(t *testing.T) {
	table := newMemory(t, once.Options{})
	count := 520_000
	if testing.Short() || race.Enabled {
		count = 150_000
	}
	for i := range count {
		fill(t, table, fmt.Sprint("tenant ", i%30), fmt.Sprint(i), 100)
	}
	for i := range 171 {
		fill(t, table, "large", fmt.Sprint(i), 1<<20)
	}
	fill(t, table, "large", "next", 1<<20)
	fill(t, table, "alice", "next", 100)
	requireUsage(t, table, "", 64<<20, 100_000)
	requireState(t, table, "alice", "next", once.StateDone)
}

// The queue of all outcomes stays short if those in its middle are removed.
func TestMemoryCompactsQueue(t *testing.T) {
	table := newMemory(t, once.Options{MaxCount: 10})
	fill(t, table, "alice", "1", 1)
	for i := range 1000 {
		fill(t, table, "bob", fmt.Sprint(i), 1)
		requireUsage(t, table, "", 64<<20, 11)
	}
	requireState(t, table, "alice", "1", once.StateDone)
}

func TestMemoryForgetsAfterRetention(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table := newMemory(t, once.Options{})
		for i := range 1000 {
			fill(t, table, fmt.Sprint(i%3), fmt.Sprint(i), 10)
		}
		time.Sleep(5*time.Minute - 1)
		requireState(t, table, "0", "0", once.StateDone)
		time.Sleep(time.Nanosecond)
		requireState(t, table, "0", "0", once.StateAbsent)
		names, principals := table.Names()
		require.Zero(t, names)
		require.Zero(t, principals)

		table = newMemory(t, once.Options{Retention: -1})
		fill(t, table, "0", "0", 10)
		fill(t, table, "0", "0", 10)
		names, _ = table.Names()
		require.Zero(t, names)
	})
}

// An evicted record leaves no name, and one that is not retained still refuses another
// digest.
func TestMemoryEvictsAliases(t *testing.T) {
	table := newMemory(t, once.Options{MaxCount: 1, MaxOutcome: -1})
	k := once.Key{ID: "1", Aliases: []string{"a", "b"}}
	_, _, err := table.Do(t.Context(), k, once.Repeat, new(counter).run)
	require.NoError(t, err)
	names, _ := table.Names()
	require.Equal(t, 3, names)
	fill(t, table, "", "2", 20<<20)
	names, _ = table.Names()
	require.Equal(t, 1, names)
	requireDropped(t, table, "", "2")
	_, _, err = table.Do(t.Context(), once.Key{ID: "2", Digest: [32]byte{1}}, once.Repeat, new(counter).run)
	require.ErrorIs(t, err, once.ErrReused)
	_, _, err = table.Do(t.Context(), once.Key{ID: "2"}, once.Repeat, new(counter).run)
	require.ErrorIs(t, err, once.ErrNotRetained)
}

// An outcome that the work does not keep is not retained, and its key runs nothing again.
func TestDropKeepsNoOutcome(t *testing.T) {
	table := newMemory(t, once.Options{})
	_, _, err := table.Do(t.Context(), once.Key{ID: "1"}, once.Repeat, func(context.Context, once.Claim) (once.Result, error) {
		return once.Result{Drop: true}, nil
	})
	require.NoError(t, err)
	requireDropped(t, table, "", "1")
	_, _, err = table.Do(t.Context(), once.Key{ID: "1"}, once.Repeat, new(counter).run)
	require.ErrorIs(t, err, once.ErrNotRetained)
}

// O4 and O5 with small bounds: what is retained stays within all bounds, and each new
// call runs.
func TestMemoryKeepsRandomBounds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		o := once.Options{
			MaxBytes: rapid.IntRange(1, 4000).Draw(t, "bytes"), MaxCount: rapid.IntRange(1, 20).Draw(t, "count"),
			TotalBytes: rapid.IntRange(1, 8000).Draw(t, "total bytes"), TotalCount: rapid.IntRange(1, 40).Draw(t, "total count"),
			MaxOutcome: 2000,
		}
		table := once.New(nil, nil, o)
		defer table.Close()
		for i := range 100 {
			p := strings.Repeat("p", rapid.IntRange(1, 4).Draw(t, "principal"))
			fill(t, table, p, fmt.Sprint(i), rapid.SampledFrom([]int{0, 10, 500, 1999, 2001}).Draw(t, "size"))
			requireUsage(t, table, p, o.MaxBytes, o.MaxCount)
			requireUsage(t, table, "", o.TotalBytes, o.TotalCount)
		}
	})
}

func TestMemoryWithoutBounds(t *testing.T) {
	if testing.Short() {
		t.Skip("100,000 outcomes")
	}
	table := newMemory(t, once.Options{MaxBytes: -1, MaxCount: -1, TotalBytes: -1, TotalCount: -1, MaxOutcome: -1})
	for i := range 101_000 {
		fill(t, table, "alice", fmt.Sprint(i), 700)
	}
	requireState(t, table, "alice", "0", once.StateDone)
}

// Size counts what is held, and nothing after its removal.
func TestSizeCountsRetainedOutcomes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table := once.New(nil, nil, once.Options{})
		defer table.Close()
		require.Zero(t, table.Size())
		for _, id := range []string{"a", "b"} {
			_, _, err := table.Do(t.Context(), once.Key{ID: id}, once.AtMostOnce, func(context.Context, once.Claim) (once.Result, error) {
				return once.Result{Data: make([]byte, 1000)}, nil
			})
			require.NoError(t, err)
			require.Greater(t, table.Size(), int64(1500), "its data and its entry")
			require.Less(t, table.Size(), int64(2000), "one outcome")
			time.Sleep(time.Hour)
		}
	})
}
