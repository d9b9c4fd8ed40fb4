// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package sqlstore

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/fivewire/fivewire/store"
)

func TestAbove(t *testing.T) {
	for prefix, want := range map[string]string{
		"a": "b", "a/": "a0", "a\x7f": "a\u0080", "\u07ff": "\u0800", "\ud7ff": "\ue000", "\uffff": "\U00010000",
		"a\U0010ffff": "b", "": highest, "\U0010ffff\U0010ffff": highest,
	} {
		require.Equal(t, want, above(prefix), "%q", prefix)
	}
	rapid.Check(t, func(t *rapid.T) {
		letters := rapid.RuneFrom([]rune("a\x01\x7f\u0080\u07ff\u0800\ud7ff\ue000\uffff\U00010000\U0010ffff"))
		prefix := rapid.StringOf(letters).Draw(t, "prefix")
		key := rapid.OneOf(rapid.StringOf(letters), rapid.Map(rapid.StringOf(letters), func(s string) string { return prefix + s })).Draw(t, "key")
		limit := above(prefix)
		require.True(t, utf8.ValidString(limit))
		require.Equal(t, strings.HasPrefix(key, prefix), prefix <= key && key < limit)
		require.Less(t, key, after(key))
		require.LessOrEqual(t, after(key), key+"\x01")
	})
}

func TestMicros(t *testing.T) {
	for ttl, want := range map[time.Duration]int64{0: 0, 1: 1, 999: 1, 1000: 1, 1001: 2, time.Second: 1e6, 1<<63 - 1: 9223372036854776} {
		require.Equal(t, want, micros(ttl), "%v", ttl)
	}
}

// TestClockSetBack: with SQLite the clock is that of the machine, and that of two
// processes may still differ where one read it before it was set. Order, revisions
// and ids do not depend on it.
func TestClockSetBack(t *testing.T) {
	ctx := t.Context()
	path := filepath.Join(t.TempDir(), "state.db")
	var ahead atomic.Int64
	clock := func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }
	one, err := Open(ctx, path, &Options{now: clock, SweepInterval: 20 * time.Millisecond})
	require.NoError(t, err)
	defer one.Close()
	two, err := Open(ctx, path, &Options{SweepInterval: time.Hour})
	require.NoError(t, err)
	defer two.Close()

	ahead.Store(int64(10 * time.Minute))
	var last uint64
	revs := map[store.Revision]bool{}
	rev, err := one.Create(ctx, "n", nil, 0)
	require.NoError(t, err)
	for i := range 20 {
		s := []*Store{one, two}[i%2]
		seq, err := s.Append(ctx, "s", fmt.Sprint(i), nil, time.Hour)
		require.NoError(t, err)
		require.Greater(t, seq, last)
		last = seq
		_, err = []*Store{two, one}[i%2].Append(ctx, "s", fmt.Sprint(i), nil, time.Hour)
		require.ErrorIs(t, err, store.ErrDuplicate)
		rev, err = s.Update(ctx, "n", nil, rev, 0)
		require.NoError(t, err)
		require.False(t, revs[rev])
		revs[rev] = true
	}
	_, err = one.Create(ctx, "swept", nil, time.Millisecond)
	require.NoError(t, err)

	// The clock goes back. Sweeps go on, although the last one is in the future.
	ahead.Store(int64(-10 * time.Minute))
	_, err = one.Create(ctx, "swept later", nil, time.Millisecond)
	require.NoError(t, err)
	rows := func() (n int) {
		require.NoError(t, one.engine.(*sqliteDB).db.QueryRowContext(ctx, `SELECT count(*) FROM entries`).Scan(&n))
		return n
	}
	require.Eventually(t, func() bool { return rows() == 2 }, 10*time.Second, 5*time.Millisecond)
	ahead.Store(int64(10 * time.Minute))
	require.Eventually(t, func() bool { return rows() == 1 }, 10*time.Second, 5*time.Millisecond)
}

// TestBatch: in a transaction that one of several breaks, the others do not
// suffer.
func TestBatch(t *testing.T) {
	ctx := t.Context()
	s, err := Open(ctx, filepath.Join(t.TempDir(), "state.db"), nil)
	require.NoError(t, err)
	defer s.Close()
	db := s.engine.(*sqliteDB)

	// The writer is held until all are in the queue.
	held, release := make(chan bool), make(chan bool)
	var wg sync.WaitGroup
	wg.Go(func() {
		err := db.write(ctx, 0, func(*tx) error {
			held <- true
			<-release
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	})
	<-held
	const n = 20
	var errs [n]error
	for i := range n {
		wg.Go(func() {
			errs[i] = db.write(ctx, 1, func(t *tx) error {
				if _, err := t.exec(`INSERT INTO entries (key, rev, value) VALUES (?1, 1, x'')`, fmt.Sprint(i)); err != nil {
					return err
				}
				if i%7 == 3 {
					_, err := t.exec(`INSERT INTO nowhere VALUES (1)`)
					return err
				}
				return nil
			})
		})
	}
	all := func() bool {
		db.queue.mu.Lock()
		defer db.queue.mu.Unlock()
		return len(db.queue.queues[""]) == n
	}
	for deadline := time.Now().Add(30 * time.Second); !all() && time.Now().Before(deadline); {
		time.Sleep(time.Millisecond)
	}
	complete := all()
	close(release)
	wg.Wait()
	require.True(t, complete, "the tasks are not in the queue")
	var want []string
	for i, err := range errs {
		if i%7 == 3 {
			require.ErrorContains(t, err, "nowhere")
			continue
		}
		require.NoError(t, err)
		want = append(want, fmt.Sprint(i))
	}
	var got []string
	for e, err := range s.List(ctx, "") {
		require.NoError(t, err)
		got = append(got, e.Key)
	}
	slices.Sort(want)
	require.Equal(t, want, got)
}

// TestCombiner: whose context ends before his turn is left out, and who is in the
// middle need not stay to the end, which nobody awaits any more.
func TestCombiner(t *testing.T) {
	running := make(chan []string)
	ended := make(chan error)
	c := newCombiner(func(ctx context.Context, key string, tasks []*task[string]) {
		var names []string
		for _, t := range tasks {
			names = append(names, t.of)
		}
		running <- names
		select {
		case <-ctx.Done():
			ended <- ctx.Err()
		case running <- nil:
		}
	})
	life, die := context.WithCancel(context.Background())
	defer die()
	start := func(ctx context.Context, name string) <-chan error {
		done := make(chan error, 1)
		go func() {
			_, err := c.do(ctx, life, "key", 1, name)
			done <- err
		}()
		return done
	}
	queued := func(n int) {
		require.Eventually(t, func() bool {
			c.mu.Lock()
			defer c.mu.Unlock()
			return len(c.queues["key"]) == n
		}, 10*time.Second, time.Millisecond)
	}
	first := start(context.Background(), "first")
	require.Equal(t, []string{"first"}, <-running)
	ctx, cancel := context.WithCancel(context.Background())
	gone := start(ctx, "gone")
	queued(1)
	cancel()
	require.ErrorIs(t, <-gone, context.Canceled)
	ctx, cancel = context.WithCancel(context.Background())
	impatient := start(ctx, "impatient")
	queued(2)
	<-running
	require.NoError(t, <-first)
	require.Equal(t, []string{"impatient"}, <-running)
	cancel()
	require.ErrorIs(t, <-ended, context.Canceled)
	require.ErrorIs(t, <-impatient, context.Canceled)
	c.wait()
	require.Empty(t, c.queues)
}

// TestRetry: what may have changed something is not done again.
func TestRetry(t *testing.T) {
	calls := 0
	boom := errors.New("boom")
	require.ErrorIs(t, retry(t.Context(), false, time.Minute, func() error { calls++; return boom }), boom)
	require.Equal(t, 1, calls, "a write of which nothing is known was repeated")
	calls = 0
	require.NoError(t, retry(t.Context(), true, time.Minute, func() error {
		if calls++; calls < 3 {
			return boom
		}
		return nil
	}))
	require.ErrorIs(t, retry(t.Context(), true, 0, func() error { return boom }), boom, "without patience")

	// What is certain to have changed nothing is tried again, but not for ever.
	calls = 0
	deadlock := &pgconn.PgError{Code: pgDeadlock}
	require.ErrorIs(t, retry(t.Context(), false, 0, func() error { calls++; return deadlock }), deadlock)
	require.Equal(t, retries, calls)
	calls = 0
	other := &pgconn.PgError{Code: "23505"}
	require.ErrorIs(t, retry(t.Context(), true, time.Minute, func() error { calls++; return other }), other)
	require.Equal(t, 1, calls)

	ctx, cancel := context.WithCancel(t.Context())
	calls = 0
	require.Error(t, retry(ctx, true, time.Minute, func() error { calls++; cancel(); return boom }))
	require.Equal(t, 1, calls)
}
