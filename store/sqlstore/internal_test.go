// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package sqlstore

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"
	"modernc.org/sqlite"
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

	// The clock is set back. Sweeps continue, although the last sweep was in the future.
	ahead.Store(int64(-10 * time.Minute))
	_, err = one.Create(ctx, "swept later", nil, time.Millisecond)
	require.NoError(t, err)
	rows := func() (n int) {
		require.NoError(t, one.engine.(*sqliteDB).db.QueryRowContext(ctx, `SELECT count(*) FROM entries`).Scan(&n))
		return n
	}
	require.Eventually(t, func() bool { return rows() == 2 }, time.Minute, 5*time.Millisecond)
	ahead.Store(int64(10 * time.Minute))
	require.Eventually(t, func() bool { return rows() == 1 }, time.Minute, 5*time.Millisecond)
}

// TestBatch: one failing task of a shared transaction does not affect the others.
func TestBatch(t *testing.T) {
	ctx := t.Context()
	s, err := Open(ctx, filepath.Join(t.TempDir(), "state.db"), nil)
	require.NoError(t, err)
	defer s.Close()
	db := s.engine.(*sqliteDB)

	// The writer is held until all are in the queue.
	running, release := make(chan bool), make(chan bool)
	var wg sync.WaitGroup
	wg.Go(func() {
		err := db.write(ctx, 0, func(*tx) error {
			running <- true
			<-release
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	})
	<-running
	const n = 20
	var errs [n]error
	for i := range n {
		wg.Go(func() {
			errs[i] = db.write(ctx, 1, func(t *tx) error {
				if _, err := t.put(fmt.Sprint(i), false, []byte{}, 0); err != nil {
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

// TestCombiner: a task whose context ends before its turn is omitted, and a run ends early when all
// its callers have stopped waiting.
func TestCombiner(t *testing.T) {
	running := make(chan []string)
	stopped := make(chan error)
	c := newCombiner(func(ctx context.Context, key string, tasks []*task[string]) {
		var names []string
		for _, t := range tasks {
			names = append(names, t.of)
		}
		running <- names
		select {
		case <-ctx.Done():
			stopped <- ctx.Err()
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
	cancelled := start(ctx, "gone")
	queued(1)
	cancel()
	require.ErrorIs(t, <-cancelled, context.Canceled)
	ctx, cancel = context.WithCancel(context.Background())
	impatient := start(ctx, "impatient")
	queued(2)
	<-running
	require.NoError(t, <-first)
	require.Equal(t, []string{"impatient"}, <-running)
	cancel()
	require.ErrorIs(t, <-stopped, context.Canceled)
	require.ErrorIs(t, <-impatient, context.Canceled)
	c.wait()
	require.Empty(t, c.queues)
}

// TestRetry: what may have changed something is not done again.
func TestRetry(t *testing.T) {
	patient, impatient := &postgres{opts: &Options{OutageTimeout: time.Minute}}, &postgres{opts: &Options{}}
	calls := 0
	boom := errors.New("boom")
	require.ErrorIs(t, patient.retry(t.Context(), false, func() error { calls++; return boom }), boom)
	require.Equal(t, 1, calls, "a write of which nothing is known was repeated")
	calls = 0
	require.NoError(t, patient.retry(t.Context(), true, func() error {
		if calls++; calls < 3 {
			return boom
		}
		return nil
	}))
	require.ErrorIs(t, impatient.retry(t.Context(), true, func() error { return boom }), boom, "without patience")

	// A call that certainly changed nothing is repeated a limited number of times.
	calls = 0
	deadlock := &pgconn.PgError{Code: pgDeadlock}
	require.ErrorIs(t, impatient.retry(t.Context(), false, func() error { calls++; return deadlock }), deadlock)
	require.Equal(t, retries, calls)
	calls = 0
	other := &pgconn.PgError{Code: "23505"}
	require.ErrorIs(t, patient.retry(t.Context(), true, func() error { calls++; return other }), other)
	require.Equal(t, 1, calls)

	ctx, cancel := context.WithCancel(t.Context())
	calls = 0
	require.Error(t, patient.retry(ctx, true, func() error { calls++; cancel(); return boom }))
	require.Equal(t, 1, calls)
}

// TestMarkCost: appends that are less than markSteps write one high-water mark in each lag, however many they are.
func TestMarkCost(t *testing.T) {
	for isAsync, lag := range map[bool]time.Duration{false: 100 * time.Millisecond, true: time.Second} {
		s, err := Open(t.Context(), filepath.Join(t.TempDir(), "state.db"), &Options{AsyncCommit: isAsync})
		require.NoError(t, err)
		defer s.Close()
		m := s.engine.(*sqliteDB).marker
		marks := func() uint64 {
			m.mu.Lock()
			defer m.mu.Unlock()
			return m.mark.count
		}
		before, start := marks(), time.Now()
		for range 500 {
			_, err := s.Append(t.Context(), "s", "", nil, 0)
			require.NoError(t, err)
		}
		written := marks() - before
		require.LessOrEqual(t, written, uint64(time.Since(start)/lag)+1, "AsyncCommit: %v", isAsync)
	}
}

// TestMarkSlots: one damaged slot leaves the other one, and a new position is written at once if too
// many are behind.
func TestMarkSlots(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.db")
	s, err := Open(t.Context(), path, nil)
	require.NoError(t, err)
	db := s.engine.(*sqliteDB)
	require.NoError(t, db.write(t.Context(), 0, func(t *tx) error {
		_, err := t.next()
		t.state.last += markSteps
		return err
	}))
	read, err := db.marker.load()
	require.NoError(t, err)
	require.EqualValues(t, markSteps+1, read.last)
	require.NoError(t, db.marker.advance(markSteps+2))
	require.NoError(t, s.Close())

	b := []byte{0xff}
	for _, slot := range []int64{0, markSlot} {
		f, err := os.OpenFile(path+markSuffix, os.O_RDWR, 0)
		require.NoError(t, err)
		_, err = f.WriteAt(b, slot+20)
		require.NoError(t, err)
		require.NoError(t, f.Close())
		s, err := Open(t.Context(), path, nil)
		if slot == 0 {
			var loss *store.LossError // the mark is ahead by this test
			require.ErrorAs(t, err, &loss)
			continue
		}
		require.Nil(t, s)
		var damaged *store.CorruptError
		require.ErrorAs(t, err, &damaged)
		require.Equal(t, path+markSuffix, damaged.Path)
	}
	s, err = Open(t.Context(), path, &Options{AcceptLoss: true})
	require.NoError(t, err)
	seq, err := s.Append(t.Context(), "s", "", nil, 0)
	require.NoError(t, err)
	require.Greater(t, seq, uint64(unknownMargin))
	require.NoError(t, s.Close())
}

// A hangingEngine sends no answer to a sweep.
type hangingEngine struct {
	engine
	sweeps chan struct{}
}

func (e *hangingEngine) sweep(ctx context.Context) (more bool, err error) {
	select {
	case e.sweeps <- struct{}{}:
		<-ctx.Done()
	case <-ctx.Done():
	}
	return false, ctx.Err()
}

// TestSweepHangs: after a sweep without an answer the next one begins in its time, as over another connection.
func TestSweepHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &hangingEngine{sweeps: make(chan struct{})}
		s := &Store{engine: e, outage: defaultOutage, log: slog.New(slog.DiscardHandler)}
		go s.sweep(t.Context(), defaultSweep)
		for range 3 {
			<-e.sweeps
		}
	})
}

// TestShortIntervals: an interval of a nanosecond does not keep a processor busy.
func TestShortIntervals(t *testing.T) {
	for name, opts := range map[string]Options{"sweep": {SweepInterval: 1, PollInterval: time.Hour}, "poll": {PollInterval: 1}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var accesses atomic.Int64
				tooMany := make(chan struct{})
				count := func() {
					if accesses.Add(1) == 1000 {
						close(tooMany)
					}
				}
				function := fmt.Sprintf("count_%016x", rand.Uint64())
				sqlite.MustRegisterScalarFunction(function, 0, func(*sqlite.FunctionContext, []driver.Value) (driver.Value, error) {
					count()
					return int64(0), nil
				})
				opts.now = func() time.Time {
					count()
					return time.Now()
				}
				s, err := Open(t.Context(), filepath.Join(t.TempDir(), "state.db"), &opts)
				require.NoError(t, err)
				defer s.Close()
				db := s.engine.(*sqliteDB)
				require.NoError(t, db.readers.last.Close())
				db.readers.last, err = db.db.PrepareContext(t.Context(), `SELECT `+function+`()`)
				require.NoError(t, err)
				go func() { _ = s.Wait(t.Context(), "s", 0) }()
				select {
				case <-tooMany:
					t.Error("1000 accesses within 100 ms")
				case <-time.After(100 * time.Millisecond):
				}
			})
		})
	}
}

// TestPageBytes: a page of List ends with the value that completes its bytes, and List continues behind it.
func TestPageBytes(t *testing.T) {
	databases := map[string]string{"SQLite": filepath.Join(t.TempDir(), "state.db")}
	if url := os.Getenv("FIVEWIRE_POSTGRES"); url != "" {
		databases["PostgreSQL"] = url
	}
	for name, database := range databases {
		t.Run(name, func(t *testing.T) {
			schema := fmt.Sprintf("page_%016x", rand.Uint64())
			s, err := Open(t.Context(), database, &Options{Schema: schema})
			require.NoError(t, err)
			defer s.Close()
			if p, ok := s.engine.(*postgres); ok {
				defer func() {
					_, err := p.pool.Exec(t.Context(), "DROP SCHEMA "+schema+" CASCADE")
					require.NoError(t, err)
				}()
			}
			var want []string
			for i := range 16 {
				want = append(want, fmt.Sprintf("k/%02d", i))
				_, err := s.Create(t.Context(), want[i], make([]byte, listBytes/4+1), 0)
				require.NoError(t, err)
			}
			page, err := s.page(t.Context(), "", "", above(""), listMost)
			require.NoError(t, err)
			require.Len(t, page, 4)
			var got []string
			for e, err := range s.List(t.Context(), "") {
				require.NoError(t, err)
				got = append(got, e.Key)
			}
			require.Equal(t, want, got)
		})
	}
}

// TestDiskHangs: calls without a deadline end as unknown while nothing of SQLite answers, and
// succeed afterwards.
func TestDiskHangs(t *testing.T) {
	s, err := Open(t.Context(), filepath.Join(t.TempDir(), "state.db"), &Options{OutageTimeout: 100 * time.Millisecond, MaxConns: 1})
	require.NoError(t, err)
	defer s.Close()
	patient, cancel := context.WithTimeout(t.Context(), time.Minute) // for a slow machine
	defer cancel()
	_, err = s.Create(patient, "k", nil, 0)
	require.NoError(t, err)
	db := s.engine.(*sqliteDB)
	db.writing.Lock()
	reader, err := db.db.Conn(t.Context()) // the only one
	require.NoError(t, err)
	calls := []func() error{
		func() error { _, err := s.Get(t.Context(), "k"); return err },
		func() error { _, err := s.Read(t.Context(), "s", 0, 0); return err },
		func() error { _, err := s.Create(t.Context(), "new", nil, 0); return err },
		func() error { _, err := s.Append(t.Context(), "s", "id", nil, 0); return err },
		func() error { return s.Expire(t.Context(), "s", 0) },
	}
	for i, call := range calls {
		require.ErrorIs(t, call(), store.ErrUnknown, i)
	}
	db.writing.Unlock()
	require.NoError(t, reader.Close())
	_, err = s.Get(patient, "k")
	require.NoError(t, err)
	_, err = s.Append(patient, "s", "another id", nil, 0)
	require.NoError(t, err)
}

// TestCancelOnFullDisk: a call that waits for another one at the reserve ends with its context.
func TestCancelOnFullDisk(t *testing.T) {
	s, err := Open(t.Context(), filepath.Join(t.TempDir(), "state.db"), nil)
	require.NoError(t, err)
	defer s.Close()
	db := s.engine.(*sqliteDB)
	db.isSpent.Store(true)
	require.NoError(t, db.lockReserve(t.Context()))
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	_, err = s.Create(ctx, "k", nil, 0)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	db.unlockReserve()
	_, err = s.Create(t.Context(), "k", nil, 0)
	require.NoError(t, err)
}

func TestNilLoggerIsDefault(t *testing.T) {
	s, err := Open(t.Context(), filepath.Join(t.TempDir(), "state.db"), nil)
	require.NoError(t, err)
	defer s.Close()
	require.Same(t, slog.Default(), s.log)
}

// TestAbandonedRead: a read whose caller has left ends at the next row, and Close waits for it.
func TestAbandonedRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rows, gate := 0, make(chan struct{})
		name := fmt.Sprintf("gate_%016x", rand.Uint64())
		sqlite.MustRegisterScalarFunction(name, 0, func(*sqlite.FunctionContext, []driver.Value) (driver.Value, error) {
			rows++
			<-gate
			return int64(1), nil
		})
		s, err := Open(t.Context(), filepath.Join(t.TempDir(), "state.db"), nil)
		require.NoError(t, err)
		for range 50 {
			_, err := s.Append(t.Context(), "s", "", nil, 0)
			require.NoError(t, err)
		}
		db := s.engine.(*sqliteDB)
		require.NoError(t, db.readers.read.Close())
		db.readers.read, err = db.db.PrepareContext(t.Context(), `SELECT seq, id, time, expires, sum, value FROM records
			WHERE stream = ?1 AND seq > ?2 AND ?3 > 0 AND `+name+`() ORDER BY seq`)
		require.NoError(t, err)

		ctx, cancel := context.WithCancel(t.Context())
		read := make(chan error, 1)
		go func() {
			_, err := s.Read(ctx, "s", 0, 100)
			read <- err
		}()
		synctest.Wait()
		cancel()
		require.ErrorIs(t, <-read, context.Canceled)
		isClosed := make(chan error, 1)
		go func() { isClosed <- s.Close() }()
		synctest.Wait()
		require.Empty(t, isClosed, "Close returned before the read has ended")
		close(gate)
		require.NoError(t, <-isClosed)
		require.Less(t, rows, 3)
	})
}
