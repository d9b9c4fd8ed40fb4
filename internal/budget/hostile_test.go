// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package budget

import (
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/internal/race"
)

func stranger(i int) string {
	return Anonymous(fmt.Sprintf("[2001:db8:%x:%x::1]:80", i/65536, i%65536))
}

// skipIfSlow skips a test of many calls, which the race detector slows down tenfold.
// The other tests have concurrent calls for it.
func skipIfSlow(t *testing.T) {
	t.Helper()
	if race.Enabled {
		t.Skip("many calls")
	}
}

func TestSixtyAnonymousRequestsCannotHold930MB(t *testing.T) {
	b := New(Limits{Memory: Limit{All: 256 << 20}, Logger: discard}, nil)
	for i := range 60 {
		_, _ = b.Scope(stranger(i), "").Reserve(Memory, 930<<20/60)
	}
	used := b.usage()[Memory].used.All
	require.LessOrEqual(t, used, int64(128<<20))
	require.Positive(t, used)
	reserve(t, b.Scope("alice", ""), Memory, 32<<20)
}

func TestFiftyThousandCreatesDoNotStartAsManyHandlers(t *testing.T) {
	skipIfSlow(t)
	synctest.Test(t, func(t *testing.T) {
		b := New(Limits{Logger: discard}, nil)
		var running, refused, finished atomic.Int64
		for i := range 50_000 {
			go func() {
				h, err := b.Scope("alice", fmt.Sprint(i%100)).Acquire(t.Context())
				if err != nil {
					refused.Add(1)
					return
				}
				if running.Add(1) > 256 {
					t.Error("more than 256 handlers run")
				}
				time.Sleep(time.Second)
				running.Add(-1)
				finished.Add(1)
				h.Release()
			}()
		}
		synctest.Wait()
		require.EqualValues(t, 256, running.Load())
		require.EqualValues(t, 1_024, b.usage()[Waiting].used.All)
		require.EqualValues(t, 50_000-256-1_024, refused.Load(), "refused at once")
		time.Sleep(time.Minute)
		require.EqualValues(t, 256+1_024, finished.Load())
		requireEmpty(t, b)
	})
}

func TestTenThousandRequestsDoNotLockOutOtherCallers(t *testing.T) {
	skipIfSlow(t)
	synctest.Test(t, func(t *testing.T) {
		b := New(Limits{Logger: discard}, nil)
		for i := range 10_000 {
			go func() {
				principal := []string{"mallory", stranger(i)}[i%2]
				if h, err := b.Scope(principal, "").Acquire(t.Context()); err == nil {
					time.Sleep(time.Hour)
					h.Release()
				}
			}()
		}
		synctest.Wait()
		start := time.Now()
		for i := range 100 {
			s := b.Scope(fmt.Sprint("caller ", i), "")
			reserve(t, s, Memory, 1<<20)
			acquire(t, s)
		}
		require.Zero(t, time.Since(start), "others get places at once")
		time.Sleep(24 * time.Hour)
	})
}

func TestStrangersCannotHoldMailboxesAndBytesWithoutEnd(t *testing.T) {
	skipIfSlow(t)
	b := New(Limits{Logger: discard}, nil)
	for i := range 100_000 {
		s := b.Scope(stranger(i), "")
		_, _ = s.Reserve(Items, 1)
		_, _ = s.Reserve(Storage, 1<<20)
		_, _ = s.Reserve(Memory, 1<<10)
		_, _ = s.Reserve(Unauthenticated, 1)
	}
	usage := b.usage()
	require.EqualValues(t, 50_000, usage[Items].used.All)
	require.LessOrEqual(t, usage[Memory].used.All, usage[Memory].limit.All/2)
	require.LessOrEqual(t, usage[Storage].used.All, int64(1<<30), "without a bound of all, the bound of a principal")
	require.EqualValues(t, 256, usage[Unauthenticated].used.All)
	for range 10_000 {
		reserve(t, b.Scope("alice", ""), Items, 1)
	}
}

func TestQueueIsBoundedInBytes(t *testing.T) {
	b := New(Limits{Logger: discard}, nil)
	s := b.Scope("alice", "session")
	messages := 0
	for range 1_000 { // fewer than the bound of items
		h, err := s.Reserve(Items, 1)
		require.NoError(t, err)
		if _, err := s.Reserve(Memory, 1<<20+64); err != nil {
			h.Release()
			continue
		}
		messages++
	}
	require.Equal(t, 15, messages)
	require.LessOrEqual(t, b.usage()[Memory].used.Session, int64(16<<20))
	require.EqualValues(t, messages, b.usage()[Items].used.All)
}

// With fixed bounds, four principals of 64 MiB would fill 256 MiB.
func TestFourPrincipalsDoNotLockOutTheFifth(t *testing.T) {
	b := New(Limits{Memory: Limit{-1, 64 << 20, 256 << 20}, Logger: discard}, nil)
	for i := range 4 {
		s := b.Scope(fmt.Sprint(i), "")
		for range 64 {
			_, _ = s.Reserve(Memory, 1<<20)
		}
	}
	for range 8 {
		reserve(t, b.Scope("fifth", ""), Memory, 1<<20)
	}
}
