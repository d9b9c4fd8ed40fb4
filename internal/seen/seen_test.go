// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package seen

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/fivewire/fivewire/internal/race"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func number(i int) (k [16]byte) {
	binary.LittleEndian.PutUint64(k[:], uint64(i))
	return k
}

// A clock is the time of a window, in ms.
type clock struct{ at atomic.Int64 }

func newTestWindow(opts Options) (*Window, *clock) {
	w, c := New(opts), &clock{}
	c.at.Store(1_000_000)
	w.now = c.at.Load
	return w, c
}

func (c *clock) after(d time.Duration) time.Time { return time.UnixMilli(c.at.Load()).Add(d) }

func (c *clock) advance(d time.Duration) { c.at.Add(d.Milliseconds()) }

// A modelKey is a key that a window got.
type modelKey struct {
	principal, scope string
	key              int
	until            time.Time
}

// fits reports whether a principal may hold one more of these keys.
func fits(keys []modelKey, total, perPrincipal, perScope int, k modelKey) bool {
	all, own, scope := 0, 0, 0
	for _, o := range keys {
		all++
		if o.principal == k.principal {
			own++
			if o.scope == k.scope {
				scope++
			}
		}
	}
	free := total - all
	return scope < perScope && own < perPrincipal && (own+1 <= free-1 || own == 0 && free > 0)
}

func TestWindowFollowsModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		total := rapid.IntRange(16, 80).Draw(t, "total")
		perScope := rapid.IntRange(1, 5).Draw(t, "scope")
		perPrincipal := rapid.IntRange(0, 8).Draw(t, "principal")
		w, c := newTestWindow(Options{Total: total, PerPrincipal: perPrincipal, PerScope: perScope})
		perPrincipal = cmp.Or(perPrincipal, total/16)
		var keys []modelKey
		since := func(at time.Time) []modelKey {
			return slices.DeleteFunc(slices.Clone(keys), func(k modelKey) bool { return k.until.Before(at) })
		}
		t.Repeat(map[string]func(*rapid.T){
			"add": func(t *rapid.T) {
				k := modelKey{rapid.StringOfN(rapid.RuneFrom([]rune("abcdefghij")), 1, 2, -1).Draw(t, "principal"),
					rapid.SampledFrom([]string{"", "x", "y"}).Draw(t, "scope"), rapid.IntRange(0, 9).Draw(t, "key"),
					c.after(time.Duration(rapid.IntRange(-1, 5000).Draw(t, "until")) * time.Millisecond)}
				same := func(o modelKey) bool { return o.principal == k.principal && o.key == k.key }
				present := since(c.after(0))
				err := w.Add(k.principal, k.scope, number(k.key), k.until)
				switch {
				case slices.ContainsFunc(present, same):
					require.ErrorIs(t, err, ErrSeen)
				case err == nil:
					require.True(t, fits(present, total, perPrincipal, perScope, k), "added %v over a bound", k)
					keys = append(slices.DeleteFunc(keys, same), k)
				default:
					require.ErrorIs(t, err, ErrExhausted)
					recent := slices.DeleteFunc(since(c.after(-time.Second)), same)
					require.False(t, fits(recent, total, perPrincipal, perScope, k), "refused %v in a bound", k)
				}
			},
			"forget": func(t *rapid.T) {
				if len(keys) == 0 {
					t.Skip("no key")
				}
				i := rapid.IntRange(0, len(keys)-1).Draw(t, "i")
				w.Forget(keys[i].principal, number(keys[i].key))
				keys = slices.Delete(keys, i, i+1)
			},
			"wait": func(t *rapid.T) {
				c.advance(time.Duration(rapid.IntRange(0, 3000).Draw(t, "ms")) * time.Millisecond)
			},
			"": func(t *rapid.T) {
				require.GreaterOrEqual(t, w.Len(), len(since(c.after(0))))
				require.LessOrEqual(t, w.Len(), total)
			},
		})
	})
}

func TestWindowOneSenderCannotExhaustItForAll(t *testing.T) {
	w, c := newTestWindow(Options{})
	added := 0
	for i := range 70_000 {
		err := w.Add("mallory", fmt.Sprint(i%1000), number(i), c.after(time.Hour))
		if err == nil {
			added++
			continue
		}
		require.ErrorIs(t, err, ErrExhausted)
	}
	require.Equal(t, 62_500, added, "a sixteenth")
	for i := range 10_000 {
		require.NoError(t, w.Add("alice", "thread", number(i), c.after(time.Hour)))
	}
	require.ErrorIs(t, w.Add("alice", "thread", number(-1), c.after(time.Hour)), ErrExhausted)
	require.NoError(t, w.Add("alice", "other thread", number(-1), c.after(time.Hour)))
}

func TestWindowLeavesRoomForNewSenders(t *testing.T) {
	w, c := newTestWindow(Options{Total: 1600, PerScope: -1})
	for i := range 100 {
		sender := fmt.Sprint("sender ", i)
		err := w.Add(sender, "", number(0), c.after(time.Hour))
		require.True(t, err == nil || i > 20, "no room for sender %d", i)
		for k := range 100 {
			_ = w.Add(sender, "", number(k), c.after(time.Hour))
		}
	}
	require.LessOrEqual(t, w.Len(), 1600)
}

func TestWindowHoldsKeyUntilItsTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := New(Options{})
		until := time.Now().Add(time.Minute)
		require.NoError(t, w.Add("alice", "", number(1), until))
		for i := range 10_000 { // do not evict it
			require.NoError(t, w.Add("alice", fmt.Sprint(i%10), number(100+i), time.Now().Add(time.Millisecond)))
			time.Sleep(time.Millisecond)
		}
		time.Sleep(time.Until(until))
		require.ErrorIs(t, w.Add("alice", "", number(1), until), ErrSeen)
		time.Sleep(time.Millisecond)
		require.NoError(t, w.Add("alice", "", number(1), until.Add(time.Minute)))
		require.ErrorIs(t, w.Add("alice", "", number(1), until), ErrSeen)
	})
}

func TestWindowSeparatesPrincipals(t *testing.T) {
	w, c := newTestWindow(Options{})
	require.NoError(t, w.Add("mallory", "", number(1), c.after(time.Hour)))
	require.NoError(t, w.Add("alice", "", number(1), c.after(time.Hour)), "mallory cannot use up a key of alice")
	require.ErrorIs(t, w.Add("alice", "other", number(1), c.after(time.Hour)), ErrSeen)
}

func TestForgetPermitsKeyAgain(t *testing.T) {
	w, c := newTestWindow(Options{PerScope: 1})
	w.Forget("alice", number(1))
	require.NoError(t, w.Add("alice", "", number(1), c.after(time.Hour)))
	w.Forget("bob", number(1))
	require.ErrorIs(t, w.Add("alice", "", number(1), c.after(time.Hour)), ErrSeen)
	require.ErrorIs(t, w.Add("alice", "", number(2), c.after(time.Hour)), ErrExhausted)
	w.Forget("alice", number(1))
	w.Forget("alice", number(1))
	require.Zero(t, w.Len())
	require.NoError(t, w.Add("alice", "", number(1), c.after(time.Hour)))
}

// A held key can be held for longer or shorter, whichever map it is in, without another count of its scope.
func TestRenewMovesTimeOfHeldKey(t *testing.T) {
	for _, isLonger := range []bool{true, false} {
		w, c := newTestWindow(Options{PerScope: 2, Total: 1000})
		require.NoError(t, w.Add("a", "", number(1), c.after(time.Minute)))
		require.False(t, w.Renew("a", number(2), c.after(time.Hour)))
		require.NoError(t, w.Add("a", "", number(2), c.after(time.Minute)))
		for range lookEvery { // the keys are in the older map
			require.ErrorIs(t, w.Add("a", "", number(1), c.after(time.Minute)), ErrSeen)
		}
		want := 30 * time.Second
		if isLonger {
			want = 10 * time.Minute
		}
		require.True(t, w.Renew("a", number(1), c.after(want)))
		c.advance(want)
		for i := range 4 * lookEvery {
			_ = w.Add("b", "", number(100+i), c.after(time.Second))
		}
		require.ErrorIs(t, w.Add("a", "", number(1), c.after(time.Minute)), ErrSeen)
		c.advance(time.Millisecond)
		require.NoError(t, w.Add("a", "", number(1), c.after(time.Minute)))
	}
}

func TestWindowCountsRepeatedKeyOnce(t *testing.T) {
	w, c := newTestWindow(Options{})
	for range lookEvery - 1 {
		require.NoError(t, w.Add("alice", "", number(1), c.after(time.Second)))
		c.advance(2 * time.Second)
		require.Equal(t, 1, w.Len())
	}
}

func TestAddAdmitsOneOfConcurrentCalls(t *testing.T) {
	w, c := newTestWindow(Options{})
	for i := range 100 {
		var added atomic.Int32
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				if w.Add("alice", "", number(i), c.after(time.Hour)) == nil {
					added.Add(1)
				}
			})
		}
		wg.Wait()
		require.EqualValues(t, 1, added.Load())
	}
}

func TestWindowStaysInTotalWithConcurrentCalls(t *testing.T) {
	w, c := newTestWindow(Options{Total: 160, PerScope: -1})
	var wg sync.WaitGroup
	for i := range 32 {
		wg.Go(func() {
			for k := range 100 {
				_ = w.Add(fmt.Sprint(i), "", number(k), c.after(time.Hour))
			}
		})
	}
	wg.Wait()
	require.LessOrEqual(t, w.Len(), 160)
	require.Greater(t, w.Len(), 80)
}

func TestWindowReturnsRoomOfSmallShardAtOnce(t *testing.T) {
	w, c := newTestWindow(Options{PerScope: 1})
	at := c.at.Load()
	require.NoError(t, w.Add("p", "s", [16]byte{1}, time.UnixMilli(at+9)))
	c.at.Store(at + 9)
	require.ErrorIs(t, w.Add("p", "s", [16]byte{2}, time.UnixMilli(at+99)), ErrExhausted)
	c.at.Store(at + 10)
	require.NoError(t, w.Add("p", "s", [16]byte{2}, time.UnixMilli(at+99)))
}

func TestWindowReturnsRoomOfExpiredKeys(t *testing.T) {
	w, c := newTestWindow(Options{Total: 16_000, PerScope: -1})
	for i := range 16_000 {
		_ = w.Add(fmt.Sprint("sender ", i/1000), "", number(i), c.after(time.Second))
	}
	full := w.Len()
	require.Greater(t, full, 14_000)
	c.advance(2 * time.Second)
	for i := range 1000 { // from one shard, which needs the room of the others
		require.NoError(t, w.Add("alice", "", number(i), c.after(time.Second)))
	}
	require.Equal(t, 1000, w.Len())
}

func TestWindowKeepsNoOwnerWithoutKeys(t *testing.T) {
	w, c := newTestWindow(Options{})
	for i := range 10_000 {
		require.NoError(t, w.Add("alice", fmt.Sprint(i), number(i), c.after(time.Second)))
	}
	c.advance(2 * time.Second)
	for i := range 3 * lookEvery {
		require.NoError(t, w.Add("alice", "last", number(i), c.after(0)))
		c.advance(2 * time.Second)
	}
	owners, keys := 0, 0
	for i := range w.shards {
		s := &w.shards[i]
		owners += len(s.owners)
		keys += len(s.keys) + len(s.old)
		require.Nil(t, s.free, "a list of unused owners after a peak")
	}
	require.LessOrEqual(t, owners, 2)
	require.LessOrEqual(t, keys, 3*lookEvery)
}

func TestWindowWithoutBounds(t *testing.T) {
	w, c := newTestWindow(Options{Total: -1, PerScope: -1})
	for i := range 100_000 {
		require.NoError(t, w.Add("alice", "", number(i), c.after(time.Hour)))
	}
}

func TestAddAllocatesNothingAtSteadyState(t *testing.T) {
	if race.Enabled {
		t.Skip("the race detector allocates")
	}
	w, c := newTestWindow(Options{})
	i := 0
	add := func() {
		i++
		c.advance(time.Millisecond)
		if err := w.Add("alice", "thread", number(i), c.after(time.Second)); err != nil {
			t.Error(err)
		}
	}
	for range 10_000 {
		add()
	}
	require.Zero(t, testing.AllocsPerRun(20_000, add))
}
