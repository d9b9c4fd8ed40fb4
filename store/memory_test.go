// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

// size is what a Memory holds, by kind.
type size struct {
	items, order, fresh, due        int // of keys
	streams, records, ids, dueInLog int
	waits, waiting                  int
}

// measure counts what m holds and checks that its parts agree.
func measure(t testing.TB, m *Memory) (n size) {
	t.Helper()
	for i := range m.kv {
		s := &m.kv[i]
		s.mu.Lock()
		n.items += len(s.items.m)
		n.fresh += len(s.fresh)
		n.due += len(s.expiries.heap)
		mortal, ordered, dropped := 0, 0, 0
		for key, it := range s.items.m {
			require.Equal(t, key, it.Key)
			require.NotEqual(t, nowhere, it.place)
			if !it.Expires.IsZero() {
				mortal++
			}
		}
		last := ""
		s.order.ascend("", func(it *item) bool {
			require.Less(t, last, it.Key)
			require.Same(t, s.items.m[it.Key], it)
			require.Equal(t, inOrder, it.place)
			last = it.Key
			ordered++
			return true
		})
		for _, it := range s.fresh {
			require.NotEqual(t, inOrder, it.place)
			if it.place == nowhere {
				require.Equal(t, item{place: nowhere}, *it, "something deleted is held")
				dropped++
			}
		}
		require.Equal(t, dropped, s.deletedFresh)
		for _, it := range s.fresh[len(s.fresh):cap(s.fresh)] {
			require.Nil(t, it, "something that is no longer fresh is held")
		}
		require.Len(t, s.items.m, ordered+len(s.fresh)-dropped)
		require.GreaterOrEqual(t, len(s.expiries.heap)-s.expiries.stale, mortal)
		n.order += ordered
		s.mu.Unlock()
	}
	for i := range m.log {
		s := &m.log[i]
		s.mu.Lock()
		n.streams += len(s.streams.m)
		n.dueInLog += len(s.expiries.heap)
		n.waits += len(s.waits)
		for _, w := range s.waits {
			n.waiting += w.n
		}
		mortal := map[*record]bool{}
		for name, st := range s.streams.m {
			require.Equal(t, name, st.name)
			idCount := len(st.ids.m)
			st.records.ascend(0, func(r *record) bool {
				require.Same(t, st, r.stream)
				if r.ID != "" {
					require.Same(t, st.ids.m[r.ID], r)
				}
				if !r.Expires.IsZero() {
					mortal[r] = true
				}
				n.records++
				idCount++
				return true
			})
			for id, r := range st.ids.m {
				require.Equal(t, id, r.ID)
				require.Same(t, st, r.stream)
				if _, unread := st.records.get(r.Seq); !unread {
					require.False(t, r.Expires.IsZero(), "an id is known for ever")
					require.Nil(t, r.Value, "the value of an acknowledged record is held")
				}
				if !r.Expires.IsZero() {
					mortal[r] = true
				}
			}
			n.ids += len(st.ids.m)
			require.NotZero(t, idCount, "stream %q is empty", name)
		}
		require.GreaterOrEqual(t, len(s.expiries.heap)-s.expiries.stale, len(mortal))
		for _, st := range s.free {
			require.True(t, st.records.empty() && len(st.ids.m) == 0 && st.name == "")
			require.LessOrEqual(t, st.ids.peak, chunkSize)
			require.LessOrEqual(t, cap(st.records.chunks), 4)
		}
		s.mu.Unlock()
	}
	return n
}

// TestSteadyKV: a steady rate of creations and removals uses a steady amount of memory, whichever
// way entries are removed.
func TestSteadyKV(t *testing.T) {
	const ttl = time.Minute
	for _, tt := range []struct {
		name string
		do   func(ctx context.Context, m *Memory, i int) error
	}{
		{"create", func(ctx context.Context, m *Memory, i int) error {
			_, err := m.Create(ctx, fmt.Sprint("k-", i), nil, ttl)
			return err
		}},
		{"create and list", func(ctx context.Context, m *Memory, i int) error {
			if i%100 == 0 {
				for range m.List(ctx, "none") {
					t.Error("List yields something")
				}
			}
			_, err := m.Create(ctx, fmt.Sprint("k-", i), nil, ttl)
			return err
		}},
		{"create and delete", func(ctx context.Context, m *Memory, i int) error {
			if _, err := m.Create(ctx, fmt.Sprint("k-", i), nil, 1000*ttl); err != nil {
				return err
			}
			return m.Delete(ctx, fmt.Sprint("k-", i-500), 0)
		}},
		{"create and update", func(ctx context.Context, m *Memory, i int) error {
			rev, err := m.Create(ctx, fmt.Sprint("k-", i), nil, 1000*ttl)
			for range 4 {
				if err == nil {
					rev, err = m.Update(ctx, fmt.Sprint("k-", i), nil, rev, ttl)
				}
			}
			return err
		}},
		{"update one", func(ctx context.Context, m *Memory, i int) error {
			e, err := m.Get(ctx, "one")
			if err != nil {
				_, err = m.Create(ctx, "one", nil, 1000*ttl)
				return err
			}
			_, err = m.Update(ctx, "one", nil, e.Revision, time.Duration(1000+i%7)*ttl)
			return err
		}},
		{"update for ever and back", func(ctx context.Context, m *Memory, i int) error {
			e, err := m.Get(ctx, "one")
			if err != nil {
				_, err = m.Create(ctx, "one", nil, 0)
				return err
			}
			_, err = m.Update(ctx, "one", nil, e.Revision, time.Duration(i%2)*1000*ttl)
			return err
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := NewMemory()
				const live = 600
				for i := range 20 * live {
					require.NoError(t, tt.do(t.Context(), m, i))
					time.Sleep(ttl / live)
					if i%live == 0 {
						n := measure(t, m)
						require.LessOrEqual(t, n.items, 2*live)
						require.LessOrEqual(t, n.order, 2*live)
						require.LessOrEqual(t, n.fresh, 4*live+shardCount*64)
						require.LessOrEqual(t, n.due, 4*live+shardCount*64)
					}
				}
			})
		})
	}
}

func TestSteadyLog(t *testing.T) {
	const ttl = time.Minute
	for _, tt := range []struct {
		name string
		do   func(ctx context.Context, m *Memory, i int) error
	}{
		{"one stream", func(ctx context.Context, m *Memory, i int) error {
			_, err := m.Append(ctx, "s", fmt.Sprint(i), nil, ttl)
			return err
		}},
		{"many streams", func(ctx context.Context, m *Memory, i int) error {
			_, err := m.Append(ctx, fmt.Sprint("s-", i), fmt.Sprint(i), nil, ttl)
			return err
		}},
		{"acknowledged", func(ctx context.Context, m *Memory, i int) error {
			seq, err := m.Append(ctx, "s", fmt.Sprint(i), []byte("x"), ttl)
			if err != nil {
				return err
			}
			return m.Ack(ctx, "s", seq)
		}},
		{"acknowledged long before the end", func(ctx context.Context, m *Memory, i int) error {
			seq, err := m.Append(ctx, fmt.Sprint("s-", i%3), "", []byte("x"), 1000*ttl)
			if err != nil {
				return err
			}
			return m.Ack(ctx, fmt.Sprint("s-", i%3), seq)
		}},
		{"expired by hand", func(ctx context.Context, m *Memory, i int) error {
			if _, err := m.Append(ctx, fmt.Sprint("s-", i%3), fmt.Sprint(i), nil, 1000*ttl); err != nil {
				return err
			}
			if i%100 == 0 {
				return m.Expire(ctx, fmt.Sprint("s-", i%3), time.Duration(i%2)*ttl)
			}
			return nil
		}},
		{"expired later and later", func(ctx context.Context, m *Memory, i int) error {
			if i == 0 {
				_, err := m.Append(ctx, "s", "id", nil, ttl)
				return err
			}
			return m.Expire(ctx, "s", 1000*ttl)
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := NewMemory()
				const live = 600
				for i := range 20 * live {
					require.NoError(t, tt.do(t.Context(), m, i))
					time.Sleep(ttl / live)
					if i%live == 0 {
						n := measure(t, m)
						require.LessOrEqual(t, n.streams, 2*live)
						require.LessOrEqual(t, n.records, 2*live)
						require.LessOrEqual(t, n.ids, 2*live)
						require.LessOrEqual(t, n.dueInLog, 4*live+shardCount*64)
					}
				}
			})
		})
	}
}

// TestNothingLeft: removed entries leave no memory behind.
func TestNothingLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, ctx := NewMemory(), t.Context()
		const n = 5000
		for i := range n {
			_, err := m.Create(ctx, fmt.Sprint("mortal-", i), []byte("x"), time.Minute)
			require.NoError(t, err)
			_, err = m.Create(ctx, fmt.Sprint("deleted-", i), []byte("x"), time.Hour)
			require.NoError(t, err)
			_, err = m.Append(ctx, fmt.Sprint("mortal-", i%50), fmt.Sprint(i), []byte("x"), time.Minute)
			require.NoError(t, err)
			_, err = m.Append(ctx, fmt.Sprint("acked-", i), fmt.Sprint(i), []byte("x"), 0)
			require.NoError(t, err)
			_, err = m.Append(ctx, "dropped", fmt.Sprint(i), []byte("x"), time.Hour)
			require.NoError(t, err)
			seq, err := m.Append(ctx, "done", fmt.Sprint(i), []byte("x"), time.Minute)
			require.NoError(t, err)
			require.NoError(t, m.Ack(ctx, "done", seq))
		}
		for i := range n {
			require.NoError(t, m.Delete(ctx, fmt.Sprint("deleted-", i), 0))
			records, err := m.Read(ctx, fmt.Sprint("acked-", i), 0, 1)
			require.NoError(t, err)
			require.NoError(t, m.Ack(ctx, fmt.Sprint("acked-", i), records[0].Seq))
		}
		require.NoError(t, m.Expire(ctx, "dropped", 0))
		time.Sleep(time.Minute)

		// Reads are enough if they meet expired entries often enough: a read removes as many
		// entries as it meets, though not the same ones.
		for range 10 {
			for range m.List(ctx, "") {
				t.Error("List yields something")
			}
			for i := range 50 {
				records, err := m.Read(ctx, fmt.Sprint("mortal-", i), 0, n)
				require.NoError(t, err)
				require.Empty(t, records)
			}
			// Only writers meet the ids of acknowledged records.
			for range n / trimMost {
				require.NoError(t, m.Ack(ctx, "done", 1))
			}
		}
		got := measure(t, m)
		require.Zero(t, size{got.items, got.order, got.fresh, 0, got.streams, got.records, got.ids, 0, got.waits, got.waiting})
		require.LessOrEqual(t, got.due+got.dueInLog, 2*shardCount*64) // the stale that are not worth a pass
	})
}

// TestLargeStreamsGo: an empty stream is kept for reuse only if it is small, however it became
// large.
func TestLargeStreamsGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, ctx := NewMemory(), t.Context()
		for i := range 500 {
			seq, err := m.Append(ctx, "ids", fmt.Sprint(i), nil, time.Minute)
			require.NoError(t, err)
			require.NoError(t, m.Ack(ctx, "ids", seq))
			_, err = m.Append(ctx, "records", "", nil, 0)
			require.NoError(t, err)
		}
		require.NoError(t, m.Expire(ctx, "records", 0))
		time.Sleep(time.Minute)
		for range 500 / trimMost {
			require.NoError(t, m.Ack(ctx, "ids", 1))
		}
		require.NoError(t, m.Ack(ctx, "ids", 1))
		require.Zero(t, measure(t, m).streams) // which includes the kept streams
	})
}

// TestPassedAreTrimmed: readers that pass what has expired remove as much, so
// that no garbage is passed again and again.
func TestPassedAreTrimmed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, ctx := NewMemory(), t.Context()
		for range 1000 {
			_, err := m.Append(ctx, "s", "", nil, time.Second)
			require.NoError(t, err)
		}
		time.Sleep(time.Second)
		ctx, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		require.ErrorIs(t, m.Wait(ctx, "s", 0), context.DeadlineExceeded)
		require.Equal(t, size{}, measure(t, m))
	})
}

// TestManyWaits: a wait costs at most a map entry, which the last waiter removes.
func TestManyWaits(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	m := NewMemory()
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	const streams, each = 500, 4
	for i := range streams * each {
		wg.Go(func() {
			err := m.Wait(ctx, fmt.Sprint("s-", i%streams), 0)
			if i%streams < 10 {
				require.NoError(t, err)
			} else {
				require.ErrorIs(t, err, context.Canceled)
			}
		})
	}
	for measure(t, m).waiting < streams*each {
		runtime.Gosched()
	}
	require.Equal(t, streams, measure(t, m).waits)
	for i := range 10 {
		_, err := m.Append(ctx, fmt.Sprint("s-", i), "", nil, 0)
		require.NoError(t, err)
	}
	require.Equal(t, streams-10, measure(t, m).waits)
	cancel() // also for notified waiters that do not run yet
	wg.Wait()
	require.Zero(t, measure(t, m).waits)
}

// TestChaos runs all operations concurrently, so that the race detector sees them, and checks
// afterwards that all parts agree.
func TestChaos(t *testing.T) {
	m := NewMemory()
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			random := rand.New(rand.NewPCG(uint64(i), 1))
			ctx := t.Context()
			for range 3000 {
				key := fmt.Sprint("k-", random.IntN(40))
				id := fmt.Sprint(random.IntN(40))
				ttl := time.Duration(random.IntN(3)) * 50 * time.Microsecond
				switch random.IntN(10) {
				case 0, 1:
					_, _ = m.Create(ctx, key, []byte(key), ttl)
				case 2:
					if e, err := m.Get(ctx, key); err == nil {
						_, _ = m.Update(ctx, key, []byte(key), e.Revision, ttl)
					}
				case 3:
					_ = m.Delete(ctx, key, 0)
				case 4:
					for e, err := range m.List(ctx, "k-1") {
						if err != nil || string(e.Value) != e.Key {
							t.Errorf("List yields %q, %v for %q", e.Value, err, e.Key)
						}
					}
				case 5, 6:
					_, _ = m.Append(ctx, key, id, []byte(key), ttl)
				case 7, 8:
					records, err := m.Read(ctx, key, 0, 3)
					if err != nil {
						t.Error(err)
					}
					for _, r := range records {
						if string(r.Value) != key {
							t.Errorf("stream %q yields %q", key, r.Value)
						}
						_ = m.Ack(ctx, key, r.Seq)
					}
				case 9:
					_ = m.Expire(ctx, key, ttl)
				}
			}
		})
	}
	wg.Wait()
	measure(t, m)
}

// TestExpiredInTheWay: names and ids are free when they have expired, although
// so many have that they are still held.
func TestExpiredInTheWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, ctx := NewMemory(), t.Context()
		const n = 2000
		last := uint64(0)
		for range 3 {
			for i := n; i > 0; i-- { // the last entry to expire comes first
				_, err := m.Create(ctx, fmt.Sprint(i), nil, time.Minute+time.Duration(i))
				require.NoError(t, err)
				seq, err := m.Append(ctx, "s", fmt.Sprint(i), nil, time.Minute+time.Duration(i))
				require.NoError(t, err)
				require.Greater(t, seq, last)
				last = seq
			}
			size := measure(t, m)
			require.Equal(t, n, size.ids)
			require.Equal(t, n, size.items)
			time.Sleep(2 * time.Minute)
		}
		require.NoError(t, m.Expire(ctx, "s", time.Hour))
		records, err := m.Read(ctx, "s", 0, 1)
		require.NoError(t, err)
		require.Empty(t, records, "something came back")
		require.Zero(t, measure(t, m).streams)
	})
}

// TestListInParts lists more than fits into one part, among keys that change.
func TestListInParts(t *testing.T) {
	m, ctx := NewMemory(), t.Context()
	const n = 4 * listMost * shardCount
	key := func(i int) string { return fmt.Sprintf("k/%06d", i) }
	for i := range n {
		_, err := m.Create(ctx, key(i*7919%n), nil, 0)
		require.NoError(t, err)
		_, err = m.Create(ctx, "other"+key(i), nil, 0)
		require.NoError(t, err)
	}
	next := 0
	for e, err := range m.List(ctx, "k/") {
		require.NoError(t, err)
		require.Equal(t, key(next), e.Key)
		// Listed entries are deleted; new neighbours may be listed then.
		require.NoError(t, m.Delete(ctx, e.Key, e.Revision))
		_, err := m.Create(ctx, key(next/2)+"+", nil, 0) // behind the loop
		if err != nil {
			require.ErrorIs(t, err, ErrExists)
		}
		next++
	}
	require.Equal(t, n, next)
	require.Equal(t, n+n/2, measure(t, m).items)
}

// TestKeepsNoText: a key may be a piece of a long message, which must not stay
// in memory because of it.
func TestKeepsNoText(t *testing.T) {
	m, ctx := NewMemory(), t.Context()
	message := "key and stream and id in one text"
	key, stream, id := message[:3], message[8:14], message[19:21]
	_, err := m.Create(ctx, key, nil, 0)
	require.NoError(t, err)
	_, err = m.Append(ctx, stream, id, nil, 0)
	require.NoError(t, err)
	e, err := m.Get(ctx, "key")
	require.NoError(t, err)
	records, err := m.Read(ctx, "stream", 0, 1)
	require.NoError(t, err)
	require.Equal(t, key, e.Key)
	require.Equal(t, id, records[0].ID)
	require.NotSame(t, unsafe.StringData(key), unsafe.StringData(e.Key))
	require.NotSame(t, unsafe.StringData(id), unsafe.StringData(records[0].ID))
	require.NotSame(t, unsafe.StringData(stream), unsafe.StringData(m.logOf(stream).stream(stream).name))
}

// TestBurst: what a burst took is given back.
func TestBurst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, ctx := NewMemory(), t.Context()
		const n = 200_000
		for i := range n {
			_, err := m.Create(ctx, fmt.Sprint(i), nil, time.Minute)
			require.NoError(t, err)
		}
		time.Sleep(time.Minute)
		for i := range n / 8 {
			_, err := m.Create(ctx, fmt.Sprint("later-", i), nil, time.Minute)
			require.NoError(t, err)
		}
		time.Sleep(time.Minute)
		for i := range n / 8 {
			// A thousand names, so that each shard gets some of them, whatever the seed: only a
			// write removes expired entries.
			_, err := m.Create(ctx, fmt.Sprint("last-", i%1000), nil, time.Second)
			if err != nil {
				require.ErrorIs(t, err, ErrExists)
			}
			time.Sleep(time.Second / 10)
		}
		measure(t, m)
		for i := range m.kv {
			require.LessOrEqual(t, cap(m.kv[i].expiries.heap), smallTable)
			require.LessOrEqual(t, cap(m.kv[i].fresh), n/shardCount/8)
			require.LessOrEqual(t, m.kv[i].items.peak, n/shardCount/8)
		}
	})
}

// TestOlderThanTheClock: a store may be older than the clock that it is used with,
// as one made for a whole test binary.
func TestOlderThanTheClock(t *testing.T) {
	m := NewMemory()
	_, err := m.Create(t.Context(), "before", nil, time.Hour)
	require.NoError(t, err)
	_, err = m.Append(t.Context(), "s", "", nil, time.Hour)
	require.NoError(t, err)
	synctest.Test(t, func(t *testing.T) {
		for _, key := range []string{"a", "b", "c", "d", "e", "f", "g", "h"} {
			_, err := m.Create(t.Context(), key, nil, time.Minute)
			require.NoError(t, err)
			_, err = m.Append(t.Context(), key, "", nil, time.Minute)
			require.NoError(t, err)
		}
		time.Sleep(time.Minute)
		_, err := m.Get(t.Context(), "a")
		require.ErrorIs(t, err, ErrNotFound)
		records, err := m.Read(t.Context(), "a", 0, 1)
		require.NoError(t, err)
		require.Empty(t, records)
		measure(t, m)
	})
	_, err = m.Get(t.Context(), "before")
	require.NoError(t, err)
}

// A step of the wall clock removes nothing, also where an entry expires beyond the range of monotonic times.
func TestMemoryIgnoresStepsOfTheClock(t *testing.T) {
	m := NewMemory()
	_, err := m.Create(t.Context(), "first", nil, math.MaxInt64)
	require.NoError(t, err)
	s := m.kvOf("first")
	key := "second"
	for m.kvOf(key) != s {
		key += "."
	}
	_, err = m.Create(t.Context(), key, nil, time.Minute)
	require.NoError(t, err)
	now := time.Now()
	(*struct{ wall uint64 })(unsafe.Pointer(&now)).wall += 3600 << 30 // an hour ahead
	s.mu.Lock()
	s.trim(now, trimMost)
	s.mu.Unlock()
	_, err = m.Get(t.Context(), key)
	require.NoError(t, err)
}
