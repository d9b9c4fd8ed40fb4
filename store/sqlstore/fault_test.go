// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package sqlstore_test

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	_ "modernc.org/sqlite"

	"github.com/fivewire/fivewire/store"
	"github.com/fivewire/fivewire/store/sqlstore"
)

func TestOpenRefuses(t *testing.T) {
	for _, name := range []string{"", "sqlite:", ":memory:", "sqlite::memory:", "mysql://localhost/x"} {
		_, err := sqlstore.Open(t.Context(), name, nil)
		require.ErrorIs(t, err, store.ErrInvalid, "%q", name)
	}
	_, err := sqlstore.Open(t.Context(), "postgres://127.0.0.1:1/x", &sqlstore.Options{Schema: `x"; DROP TABLE y; --`})
	require.ErrorIs(t, err, store.ErrInvalid)
	_, err = sqlstore.Open(t.Context(), "postgres://somebody:secret@127.0.0.1:1/x?connect_timeout=1", nil)
	require.Error(t, err)
	require.NotContains(t, err.Error(), "secret")
	absent := filepath.Join(t.TempDir(), "no folder", "x.db")
	_, err = sqlstore.Open(t.Context(), absent, nil)
	require.EqualError(t, err, "sqlstore: open: "+absent+": open: no such file or directory")
	require.ErrorIs(t, err, fs.ErrNotExist)

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = sqlstore.Open(ctx, sqlite(t).url, nil)
	require.ErrorIs(t, err, context.Canceled)
}

// TestOpenEndsAtSilentServer: a server that accepts connections and never answers, as one that is stopped, does not
// keep Open.
func TestOpenEndsAtSilentServer(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	_, err = sqlstore.Open(ctx, "postgres://"+l.Addr().String()+"/x", &sqlstore.Options{OutageTimeout: 50 * time.Millisecond})
	require.Error(t, err)
	require.NoError(t, ctx.Err(), "only the context ends Open")
}

// TestFoundSchema: a user who may not create a schema uses one that exists.
func TestFoundSchema(t *testing.T) {
	d := postgres(t)
	u, err := url.Parse(d.url)
	require.NoError(t, err)
	role := "role_" + d.opts.Schema
	d.exec(t, "CREATE ROLE "+role+" LOGIN PASSWORD 'secret'; CREATE SCHEMA "+d.opts.Schema+" AUTHORIZATION "+role)
	t.Cleanup(func() { d.exec(t, "DROP OWNED BY "+role+"; DROP ROLE "+role) })
	u.User = url.UserPassword(role, "secret")
	s := (&database{url: u.String(), opts: d.opts}).open(t)
	_, err = s.Append(t.Context(), "s", "", nil, 0)
	require.NoError(t, err)
}

// TestFileMode: only the owner can read the file.
func TestFileMode(t *testing.T) {
	d := sqlite(t)
	s := d.open(t)
	_, err := s.Create(t.Context(), "k", nil, 0)
	require.NoError(t, err)
	for _, beside := range []string{"", "-wal", "-shm"} {
		info, err := os.Stat(d.url + beside)
		require.NoError(t, err)
		require.Equal(t, os.FileMode(0o600), info.Mode().Perm(), beside)
	}
}

func TestOpenNames(t *testing.T) {
	folder := t.TempDir()
	t.Chdir(folder)
	for name, file := range map[string]string{
		"a.db": "a.db", "sqlite:b.db": "b.db", "sqlite://" + folder + "/c.db": "c.db", folder + "/d.db": "d.db", "e?mode=memory": "e?mode=memory",
	} {
		s, err := sqlstore.Open(t.Context(), name, nil)
		require.NoError(t, err, name)
		_, err = s.Create(t.Context(), "k", nil, 0)
		require.NoError(t, err, name)
		require.NoError(t, s.Close())
		require.FileExists(t, filepath.Join(folder, file))
	}
}

// TestOpenLink: all names of a database share one mark and one lock, also if the file was created through a link.
func TestOpenLink(t *testing.T) {
	folder := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(folder, "data"), 0o700))
	require.NoError(t, os.Symlink("data", filepath.Join(folder, "current")))
	file, link := filepath.Join(folder, "data", "state.db"), filepath.Join(folder, "link.db")
	require.NoError(t, os.Symlink("current/../data/state.db", link))
	for _, name := range []string{link, file, link} {
		s, err := sqlstore.Open(t.Context(), name, nil)
		require.NoError(t, err, name)
		_, err = s.Append(t.Context(), "s", "", nil, 0)
		require.NoError(t, err)
		require.NoError(t, s.Close())
		report, err := sqlstore.VerifyFile(t.Context(), name)
		require.NoError(t, err)
		require.NoError(t, report.Err())
	}
	require.NoFileExists(t, link+"-mark")
}

// TestOpenAtOnce: many open a new database at once, and one of them makes the
// tables.
func TestOpenAtOnce(t *testing.T) {
	each(t, func(t *testing.T, d *database) {
		const n = 8
		var stores [n]*sqlstore.Store
		var errs [n]error
		var wg sync.WaitGroup
		for i := range n {
			wg.Go(func() {
				opts := d.opts
				stores[i], errs[i] = sqlstore.Open(t.Context(), d.url, &opts)
			})
		}
		wg.Wait()
		require.NoError(t, errors.Join(errs[:]...))
		for i, s := range stores {
			_, err := s.Append(t.Context(), "s", "", fmt.Append(nil, i), 0)
			require.NoError(t, err)
			records, err := stores[n-1-i].Read(t.Context(), "s", 0, 0)
			require.NoError(t, err)
			require.Len(t, records, i+1)
		}
		for _, s := range stores {
			require.NoError(t, s.Close())
		}
	})
}

// execSQLite runs statements on the file, bypassing the store.
func execSQLite(t *testing.T, d *database, text string) {
	t.Helper()
	path := strings.NewReplacer("%", "%25", "?", "%3f", "#", "%23").Replace(d.url)
	db, err := sql.Open("sqlite", "file:"+path+"?_pragma=busy_timeout(5000)")
	require.NoError(t, err)
	defer db.Close()
	_, err = db.Exec(text)
	require.NoError(t, err)
}

func TestOpenOthers(t *testing.T) {
	d := sqlite(t)
	execSQLite(t, d, "CREATE TABLE theirs (x)")
	before, err := os.ReadFile(d.url)
	require.NoError(t, err)
	_, err = sqlstore.Open(t.Context(), d.url, nil)
	require.ErrorContains(t, err, "database of something else")
	after, err := os.ReadFile(d.url)
	require.NoError(t, err)
	require.True(t, bytes.Equal(before, after), "the refused file has changed")
	require.NoFileExists(t, d.url+"-mark")

	require.NoError(t, os.WriteFile(d.url, bytes.Repeat([]byte("no database "), 1000), 0o600))
	_, err = sqlstore.Open(t.Context(), d.url, nil)
	require.Error(t, err)
}

func TestOpenLater(t *testing.T) {
	each(t, func(t *testing.T, d *database) {
		require.NoError(t, d.open(t).Close())
		if d.opts.Schema == "" {
			execSQLite(t, d, "PRAGMA user_version = 1000")
		} else {
			d.exec(t, "INSERT INTO "+d.opts.Schema+".migrations (version) VALUES (1000)")
		}
		opts := d.opts
		_, err := sqlstore.Open(t.Context(), d.url, &opts)
		require.ErrorContains(t, err, "later version")
	})
}

func TestClose(t *testing.T) {
	each(t, func(t *testing.T, d *database) {
		s := d.open(t)
		waiting := make(chan error, 1)
		go func() { waiting <- s.Wait(t.Context(), "s", 0) }()
		_, err := s.Create(t.Context(), "k", nil, 0)
		require.NoError(t, err)

		// Close within a loop over the store, while others write.
		var wg sync.WaitGroup
		var written atomic.Int64
		for i := range 4 {
			wg.Go(func() {
				for n := 0; ; n++ {
					if _, err := s.Append(t.Context(), "busy", "", nil, 0); err != nil {
						if !errors.Is(err, store.ErrClosed) {
							t.Errorf("writer %d: %v", i, err)
						}
						return
					}
					written.Add(1)
				}
			})
		}
		for written.Load() < 20 {
			time.Sleep(time.Millisecond)
		}
		for _, err := range s.List(t.Context(), "") {
			require.NoError(t, err)
			require.NoError(t, s.Close())
		}
		wg.Wait()
		require.ErrorIs(t, <-waiting, store.ErrClosed)
		require.NoError(t, s.Close())
		_, err = s.Get(t.Context(), "k")
		require.ErrorIs(t, err, store.ErrClosed)
		for _, err := range s.List(t.Context(), "") {
			require.ErrorIs(t, err, store.ErrClosed)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err = s.Get(ctx, "k")
		require.ErrorIs(t, err, context.Canceled)

		records, err := d.open(t).Read(t.Context(), "busy", 0, 1_000_000)
		require.NoError(t, err)
		require.Len(t, records, int(written.Load()))
	})
}

// TestSweep: several processes together remove expired entries from the tables.
func TestSweep(t *testing.T) {
	each(t, func(t *testing.T, d *database) {
		d.opts.SweepInterval = 50 * time.Millisecond
		s := d.open(t)
		for range 2 {
			d.open(t)
		}
		const n = 1200 // more than one sweep takes at once
		var wg sync.WaitGroup
		for i := range 16 {
			wg.Go(func() {
				for j := i; j < n; j += 16 {
					_, err := s.Create(t.Context(), fmt.Sprint("k-", j), nil, time.Millisecond)
					if err == nil {
						_, err = s.Append(t.Context(), "s", fmt.Sprint("id-", j), nil, time.Millisecond)
					}
					if err != nil {
						t.Error(err)
					}
				}
			})
		}
		wg.Wait()
		_, err := s.Create(t.Context(), "stays", nil, time.Hour)
		require.NoError(t, err)
		_, err = s.Append(t.Context(), "s", "stays", nil, 0)
		require.NoError(t, err)
		require.Eventually(t, func() bool { return d.rows(t) == "1 1 1" }, time.Minute, 20*time.Millisecond)
	})
}

// rows counts what is in the tables.
func (d *database) rows(t *testing.T) (counts string) {
	t.Helper()
	const text = `SELECT (SELECT count(*) FROM %[1]sentries) || ' ' || (SELECT count(*) FROM %[1]srecords) || ' ' || (SELECT count(*) FROM %[1]sids)`
	if d.opts.Schema != "" {
		conn, err := pgx.Connect(t.Context(), d.url)
		require.NoError(t, err)
		defer conn.Close(context.Background())
		require.NoError(t, conn.QueryRow(t.Context(), fmt.Sprintf(text, d.opts.Schema+".")).Scan(&counts))
		return counts
	}
	path := strings.NewReplacer("%", "%25", "?", "%3f", "#", "%23").Replace(d.url)
	db, err := sql.Open("sqlite", "file:"+path+"?_pragma=busy_timeout(5000)")
	require.NoError(t, err)
	defer db.Close()
	require.NoError(t, db.QueryRow(fmt.Sprintf(text, "")).Scan(&counts))
	return counts
}

// TestReplayIsCheap: a call that changes nothing writes nothing to the disk. Otherwise a flood of
// duplicates would cost as much as new records.
func TestReplayIsCheap(t *testing.T) {
	d := sqlite(t)
	s := d.open(t)
	_, err := s.Create(t.Context(), "k", nil, 0)
	require.NoError(t, err)
	_, err = s.Append(t.Context(), "s", "id", nil, 0)
	require.NoError(t, err)
	before, err := os.ReadFile(d.url + "-wal")
	require.NoError(t, err)
	for range 10 {
		_, err = s.Create(t.Context(), "k", nil, 0)
		require.ErrorIs(t, err, store.ErrExists)
		_, err = s.Append(t.Context(), "s", "id", nil, 0)
		require.ErrorIs(t, err, store.ErrDuplicate)
		_, err = s.Update(t.Context(), "k", nil, 1000, 0)
		require.ErrorIs(t, err, store.ErrConflict)
	}
	later, err := os.ReadFile(d.url + "-wal")
	require.NoError(t, err)
	require.True(t, bytes.Equal(before, later), "the log of the database changed")
}

// TestClockOfAnother: a client of PostgreSQL whose clock is decades behind, as in a bubble of
// testing/synctest, agrees with the others on the expired entries.
func TestClockOfAnother(t *testing.T) {
	d := postgres(t)
	here := d.open(t)
	synctest.Test(t, func(t *testing.T) {
		there, err := sqlstore.Open(context.Background(), d.url, &d.opts)
		require.NoError(t, err)
		ctx := context.Background()
		require.Less(t, time.Now().Year(), 2020)
		_, err = there.Create(ctx, "k", nil, time.Hour)
		require.NoError(t, err)
		seq, err := there.Append(ctx, "s", "id", nil, time.Hour)
		require.NoError(t, err)
		e, err := there.Get(ctx, "k")
		require.NoError(t, err)
		require.Greater(t, e.Expires.Year(), 2020)
		records, err := there.Read(ctx, "s", seq-1, 1)
		require.NoError(t, err)
		require.Len(t, records, 1)
		require.Greater(t, records[0].Time.Year(), 2020)
		require.NoError(t, there.Close())
	})
	_, err := here.Create(t.Context(), "k", nil, time.Hour)
	require.ErrorIs(t, err, store.ErrExists)
	_, err = here.Append(t.Context(), "s", "id", nil, time.Hour)
	require.ErrorIs(t, err, store.ErrDuplicate)
}

// TestFullDisk: a write that does not fit fails, acknowledged data stays, and once space is free,
// writes succeed again.
func TestFullDisk(t *testing.T) {
	folder, _ := smallDisk(t, 8)
	d := &database{url: filepath.Join(folder, "state.db")}
	s, err := sqlstore.Open(t.Context(), d.url, nil)
	require.NoError(t, err)
	t.Cleanup(func() { _ = s.Close() }) // before the disk is taken away
	ballast := filepath.Join(folder, "ballast")
	require.NoError(t, os.WriteFile(ballast, make([]byte, 5<<20), 0o600))
	stored := map[string]store.Revision{}
	var failed error
	var mu sync.Mutex
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			for n := 0; ; n++ {
				key := fmt.Sprint("k-", i, "-", n)
				rev, err := s.Create(t.Context(), key, make([]byte, 10_000), 0)
				mu.Lock()
				if err != nil {
					failed = err
					mu.Unlock()
					return
				}
				stored[key] = rev
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	require.ErrorContains(t, failed, "full")
	require.NotEmpty(t, stored)
	check := func(s *sqlstore.Store) {
		n := 0
		for e, err := range s.List(t.Context(), "k-") {
			require.NoError(t, err)
			require.Equal(t, stored[e.Key], e.Revision, e.Key)
			n++
		}
		require.Len(t, stored, n)
	}
	check(s)
	require.NoError(t, os.Remove(ballast))
	for i := range 20 {
		key := fmt.Sprint("k-later-", i)
		stored[key], err = s.Create(t.Context(), key, make([]byte, 10_000), 0)
		require.NoError(t, err)
	}
	check(s)
	require.NoError(t, s.Close())
	reopened, err := sqlstore.Open(t.Context(), d.url, nil)
	require.NoError(t, err)
	check(reopened)
	require.NoError(t, reopened.Close())
}

// TestFullDiskIsEmptied: where no byte is left, Ack, Delete and Expire succeed, until writes do again.
func TestFullDiskIsEmptied(t *testing.T) {
	folder, _ := smallDisk(t, 8)
	s, err := sqlstore.Open(t.Context(), filepath.Join(folder, "state.db"), nil)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) }) // before the disk is taken away
	var seqs []uint64
	var keys []string
	for err == nil {
		var seq uint64
		if seq, err = s.Append(t.Context(), "s", fmt.Sprint(len(seqs)), make([]byte, 10_000), time.Hour); err == nil {
			seqs = append(seqs, seq)
			key := fmt.Sprint("k-", len(keys))
			if _, err = s.Create(t.Context(), key, make([]byte, 1000), 0); err == nil {
				keys = append(keys, key)
			}
		}
	}
	require.ErrorContains(t, err, "full")
	require.Greater(t, len(keys), 100)
	ballast, err := os.Create(filepath.Join(folder, "ballast"))
	require.NoError(t, err)
	for _, size := range []int{4096, 1} {
		for err == nil {
			_, err = ballast.Write(make([]byte, size))
		}
		err = nil
	}
	require.NoError(t, ballast.Close())
	require.NoError(t, s.Expire(t.Context(), "other", time.Hour))
	for i, seq := range seqs {
		require.NoError(t, s.Ack(t.Context(), "s", seq), i)
	}
	for _, key := range keys {
		require.NoError(t, s.Delete(t.Context(), key, 0), key)
	}
	require.NoError(t, s.Expire(t.Context(), "s", 0))
	for i := range 100 {
		_, err := s.Append(t.Context(), "s", fmt.Sprint("again ", i), make([]byte, 10_000), 0)
		require.NoError(t, err)
	}
	report, err := s.Verify(t.Context())
	require.NoError(t, err)
	require.NoError(t, report.Err())
}

// TestReadOnlyDisk: a read-only disk serves reads, and writes fail at once.
func TestReadOnlyDisk(t *testing.T) {
	folder, readOnly := smallDisk(t, 8)
	url := filepath.Join(folder, "state.db")
	s, err := sqlstore.Open(t.Context(), url, nil)
	require.NoError(t, err)
	rev, err := s.Create(t.Context(), "k", []byte("x"), 0)
	require.NoError(t, err)
	seq, err := s.Append(t.Context(), "s", "id", []byte("y"), 0)
	require.NoError(t, err)
	require.NoError(t, s.Close())
	readOnly()
	_, err = sqlstore.Open(t.Context(), filepath.Join(folder, "new.db"), nil)
	require.ErrorContains(t, err, filepath.Join(folder, "new.db"))
	require.ErrorIs(t, err, syscall.EROFS)
	var log strings.Builder
	s, err = sqlstore.Open(t.Context(), url, &sqlstore.Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
	require.NoError(t, err)
	defer s.Close()
	require.Contains(t, log.String(), "read-only file opened", "a program that writes fails later")
	_, err = s.Create(t.Context(), "new", nil, 0)
	require.ErrorContains(t, err, "readonly")
	_, err = s.Append(t.Context(), "s", "", nil, 0)
	require.ErrorContains(t, err, "readonly")
	require.ErrorContains(t, s.Delete(t.Context(), "k", rev), "readonly")
	e, err := s.Get(t.Context(), "k")
	require.NoError(t, err)
	require.Equal(t, "x", string(e.Value))
	records, err := s.Read(t.Context(), "s", 0, 0)
	require.NoError(t, err)
	require.Len(t, records, 1)
	require.Equal(t, seq, records[0].Seq)
	report, err := s.Verify(t.Context())
	require.NoError(t, err)
	require.NoError(t, report.Err())
}

// TestBusy: a writer waits for other writers, for at most the timeout.
func TestBusy(t *testing.T) {
	d := sqlite(t)
	d.opts.BusyTimeout = 50 * time.Millisecond
	s := d.open(t)
	path := strings.NewReplacer("%", "%25", "?", "%3f", "#", "%23").Replace(d.url)
	db, err := sql.Open("sqlite", "file:"+path)
	require.NoError(t, err)
	defer db.Close()
	conn, err := db.Conn(t.Context())
	require.NoError(t, err)
	defer conn.Close()
	_, err = conn.ExecContext(t.Context(), "BEGIN IMMEDIATE")
	require.NoError(t, err)
	_, err = s.Create(t.Context(), "k", nil, 0)
	require.ErrorContains(t, err, "locked")

	// The context of the caller ends earlier. The outcome is then unknown, so the key is not
	// used again.
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	_, err = s.Create(ctx, "unknown", nil, 0)
	require.ErrorIs(t, err, context.DeadlineExceeded)

	// Readers are not affected, and writes succeed afterwards.
	_, err = s.Get(t.Context(), "k")
	require.ErrorIs(t, err, store.ErrNotFound)
	_, err = conn.ExecContext(t.Context(), "ROLLBACK")
	require.NoError(t, err)
	_, err = s.Create(t.Context(), "k", nil, 0)
	require.NoError(t, err)
}

// TestTwoBusyProcesses: two stores that write without a pause both get on.
func TestTwoBusyProcesses(t *testing.T) {
	each(t, func(t *testing.T, d *database) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		var written [2]atomic.Int64
		var wg sync.WaitGroup
		for i := range written {
			s := d.open(t)
			for range 8 {
				wg.Go(func() {
					for ctx.Err() == nil {
						if _, err := s.Append(t.Context(), "s", "", nil, 0); err != nil {
							t.Error(err)
							return
						}
						written[i].Add(1)
					}
				})
			}
		}
		wg.Wait()
		a, b := written[0].Load(), written[1].Load()
		t.Logf("%d and %d writes", a, b)
		require.Greater(t, min(a, b), max(a, b)/20, "one of two processes starves")
	})
}
