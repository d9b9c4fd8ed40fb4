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
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/store"
	"github.com/fivewire/fivewire/store/sqlstore"
)

// A content is all that a store answers.
type content struct {
	entries map[string]string
	records map[string]string // by stream and position
}

// fill stores entries and records of several sizes.
func fill(t testing.TB, s *sqlstore.Store, n int) {
	t.Helper()
	for i := range n {
		value := []byte(strings.Repeat(fmt.Sprintf("value %d ", i), 1+i%7*100))
		ttl := time.Duration(i%2) * time.Hour
		_, err := s.Create(t.Context(), fmt.Sprintf("key %03d", i), value, ttl)
		require.NoError(t, err)
		_, err = s.Append(t.Context(), fmt.Sprint("stream ", i%3), fmt.Sprint("id ", i), value, ttl)
		require.NoError(t, err)
	}
}

// readAll reads everything by each kind of call.
func readAll(ctx context.Context, s *sqlstore.Store, n int) (*content, error) {
	c := &content{map[string]string{}, map[string]string{}}
	for e, err := range s.List(ctx, "") {
		if err != nil {
			return nil, err
		}
		c.entries[e.Key] = fmt.Sprint(e.Revision, e.Expires, string(e.Value))
	}
	for i := range n {
		key := fmt.Sprintf("key %03d", i)
		e, err := s.Get(ctx, key)
		if err != nil && !errors.Is(err, store.ErrNotFound) {
			return nil, err
		}
		if got := fmt.Sprint(e.Revision, e.Expires, string(e.Value)); err == nil && got != c.entries[key] {
			return nil, fmt.Errorf("Get and List differ for %s: %w", key, store.ErrCorrupt)
		}
	}
	for i := range 3 {
		stream := fmt.Sprint("stream ", i)
		records, err := s.Read(ctx, stream, 0, 10*n)
		if err != nil {
			return nil, err
		}
		for _, r := range records {
			c.records[fmt.Sprint(stream, r.Seq)] = fmt.Sprint(r.ID, r.Time, r.Expires, string(r.Value))
		}
	}
	return c, nil
}

// flip changes one bit of a file, and keeps its time if it is to look untouched.
func flip(t testing.TB, path string, bit int64, keepTime bool) {
	t.Helper()
	info, err := os.Stat(path)
	require.NoError(t, err)
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	require.NoError(t, err)
	b := make([]byte, 1)
	_, err = f.ReadAt(b, bit/8)
	require.NoError(t, err)
	b[0] ^= 1 << (bit % 8)
	_, err = f.WriteAt(b, bit/8)
	require.NoError(t, err)
	require.NoError(t, f.Close())
	if keepTime {
		require.NoError(t, os.Chtimes(path, info.ModTime(), info.ModTime()))
	}
}

// copyFile copies a file with its time.
func copyFile(t testing.TB, from, to string) {
	t.Helper()
	data, err := os.ReadFile(from)
	if errors.Is(err, fs.ErrNotExist) {
		require.NoError(t, os.RemoveAll(to))
		return
	}
	require.NoError(t, err)
	info, err := os.Stat(from)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(to, data, 0o600))
	require.NoError(t, os.Chtimes(to, info.ModTime(), info.ModTime()))
}

// TestBitFlip: a closed file with one changed bit answers as before or with an error that names the
// damage: never another value, never less.
func TestBitFlip(t *testing.T) {
	const n = 60
	d := sqlite(t)
	s := d.open(t)
	fill(t, s, n)
	want, err := readAll(t.Context(), s, n)
	require.NoError(t, err)
	require.Len(t, want.entries, n)
	require.NoError(t, s.Close())
	info, err := os.Stat(d.url)
	require.NoError(t, err)
	bits := info.Size() * 8
	flipped := filepath.Join(t.TempDir(), "flipped.db")
	places := 300
	if testing.Short() {
		places = 60
	}
	refused := 0
	rng := rand.New(rand.NewPCG(1, 2))
	for i := range places {
		copyFile(t, d.url, flipped)
		copyFile(t, d.url+"-mark", flipped+"-mark")
		_ = os.Remove(flipped + "-wal")
		bit := rng.Int64N(bits)
		if i < places/4 {
			bit = rng.Int64N(8 * 4096) // the header and the definitions of tables
		}
		flip(t, flipped, bit, true)
		s, err := sqlstore.Open(t.Context(), flipped, nil)
		var got *content
		if err == nil {
			got, err = readAll(t.Context(), s, n)
			require.NoError(t, errors.Join(s.Close()), "bit %d", bit)
		}
		if err != nil {
			refused++
			continue
		}
		require.Equal(t, want, got, "bit %d", bit)
	}
	require.Greater(t, refused, places/2)
	t.Logf("%d of %d flips refused, the others harmless", refused, places)
}

// TestBitFlipInLargeFile: a file that is not compared in full at Open, with damage that left no
// trace in its time, returns no other value. Verify finds a row that an index hides.
func TestBitFlipInLargeFile(t *testing.T) {
	const n = 60
	d := sqlite(t)
	s := d.open(t)
	fill(t, s, n)
	_, err := s.Create(t.Context(), "ballast", make([]byte, 5<<20), 0)
	require.NoError(t, err)
	want, err := readAll(t.Context(), s, n)
	require.NoError(t, err)
	require.NoError(t, s.Close())
	const bits = 8 << 18 // the ballast follows
	rng := rand.New(rand.NewPCG(3, 4))
	hidden := 0
	flipped := filepath.Join(t.TempDir(), "flipped.db")
	for range 40 {
		copyFile(t, d.url, flipped)
		copyFile(t, d.url+"-mark", flipped+"-mark")
		bit := rng.Int64N(bits)
		require.NoError(t, os.Chtimes(flipped, time.Now(), modTime(t, d.url)))
		flip(t, flipped, bit, true)
		s, err := sqlstore.Open(t.Context(), flipped, nil)
		if err != nil {
			continue
		}
		got, err := readAll(t.Context(), s, n)
		if err == nil && !equal(want, got) {
			for key, value := range got.entries {
				require.Equal(t, want.entries[key], value, "bit %d", bit)
			}
			for key, value := range got.records {
				require.Equal(t, want.records[key], value, "bit %d", bit)
			}
			hidden++
			report, err := s.Verify(t.Context())
			if err == nil {
				err = report.Err()
			}
			require.ErrorIs(t, err, store.ErrCorrupt, "bit %d", bit)
		}
		require.NoError(t, s.Close())
	}
	t.Logf("%d flips hide rows until Verify", hidden)
}

// TestHiddenRow: a key that is damaged in the index only cannot be found by its name. Open finds it in
// a small file, after an unclean end, and in a file that something else has written; Verify always.
func TestHiddenRow(t *testing.T) {
	for _, large := range []bool{false, true} {
		t.Run(fmt.Sprint("large=", large), func(t *testing.T) {
			d := sqlite(t)
			s := d.open(t)
			fill(t, s, 60)
			if large {
				_, err := s.Create(t.Context(), "ballast", make([]byte, 5<<20), 0)
				require.NoError(t, err)
			}
			require.NoError(t, s.Close())
			data, err := os.ReadFile(d.url)
			require.NoError(t, err)
			key := []byte("key 033")
			at := bytes.Index(data, key)
			require.Equal(t, 2, bytes.Count(data, key), "in the table and in the index")
			for range 2 {
				flipped := filepath.Join(t.TempDir(), "flipped.db")
				copyFile(t, d.url, flipped)
				copyFile(t, d.url+"-mark", flipped+"-mark")
				require.NoError(t, os.Chtimes(flipped, time.Now(), modTime(t, d.url)))
				flip(t, flipped, 8*int64(at+len(key)-1), true)
				s, err := sqlstore.Open(t.Context(), flipped, nil)
				if !large {
					require.ErrorIs(t, err, store.ErrCorrupt)
				} else {
					require.NoError(t, err)
					report, err := s.Verify(t.Context())
					require.NoError(t, err)
					require.ErrorIs(t, report.Err(), store.ErrCorrupt)
					require.NoError(t, s.Close())
					require.NoError(t, os.Chtimes(flipped, time.Now(), time.Now()))
					_, err = sqlstore.Open(t.Context(), flipped, nil)
					require.ErrorIs(t, err, store.ErrCorrupt, "something else has written the file")
				}
				at += len(key) + bytes.Index(data[at+len(key):], key)
			}
		})
	}
}

func modTime(t testing.TB, path string) time.Time {
	info, err := os.Stat(path)
	require.NoError(t, err)
	return info.ModTime()
}

func equal(a, b *content) bool { return fmt.Sprint(a) == fmt.Sprint(b) }

// TestCorruptErrorNamesRow: an error names file, stream, key and position, and other rows are served.
func TestCorruptErrorNamesRow(t *testing.T) {
	d := sqlite(t)
	s := d.open(t)
	rev, err := s.Create(t.Context(), "bad", []byte("x"), 0)
	require.NoError(t, err)
	_, err = s.Create(t.Context(), "good", []byte("y"), 0)
	require.NoError(t, err)
	seq, err := s.Append(t.Context(), "s", "id", []byte("x"), time.Hour)
	require.NoError(t, err)
	execSQLite(t, d, `UPDATE entries SET value = x'00' WHERE key = 'bad'`)
	execSQLite(t, d, `UPDATE records SET expires = 1`)
	execSQLite(t, d, `UPDATE ids SET seq = 77`)

	var damaged *store.CorruptError
	_, err = s.Get(t.Context(), "bad")
	require.ErrorAs(t, err, &damaged)
	require.Equal(t, store.CorruptError{Path: d.url, Key: "bad", Position: uint64(rev)}, *damaged)
	_, err = s.Get(t.Context(), "good")
	require.NoError(t, err)
	_, err = s.Read(t.Context(), "s", 0, 10)
	require.ErrorAs(t, err, &damaged, "an earlier expiry hides no record")
	require.Equal(t, store.CorruptError{Path: d.url, Stream: "s", Position: seq}, *damaged)
	require.ErrorIs(t, s.Wait(t.Context(), "s", 0), store.ErrCorrupt)
	_, err = s.Append(t.Context(), "s", "id", nil, 0)
	require.ErrorIs(t, err, store.ErrCorrupt)
	_, err = s.Append(t.Context(), "s", "other", nil, 0)
	require.NoError(t, err)

	report, err := s.Verify(t.Context())
	require.NoError(t, err)
	require.GreaterOrEqual(t, report.Damaged, 3)
	require.ErrorIs(t, report.Err(), store.ErrCorrupt)
}

// TestSweepKeepsDamagedExpiry: a row is removed only if its expiry is the stored one.
func TestSweepKeepsDamagedExpiry(t *testing.T) {
	d := sqlite(t)
	d.opts.SweepInterval = 10 * time.Millisecond
	s := d.open(t)
	_, err := s.Create(t.Context(), "damaged", nil, time.Hour)
	require.NoError(t, err)
	execSQLite(t, d, `UPDATE entries SET expires = 1`)
	_, err = s.Create(t.Context(), "expired", nil, time.Millisecond)
	require.NoError(t, err)
	require.Eventually(t, func() bool { return d.rows(t) == "1 0 0" }, time.Minute, 10*time.Millisecond)
	_, err = s.Get(t.Context(), "damaged")
	require.ErrorIs(t, err, store.ErrCorrupt)
	_, err = s.Create(t.Context(), "damaged", nil, 0)
	require.ErrorIs(t, err, store.ErrCorrupt)
}

// version1 makes a file with the tables of version 1.
func version1(t *testing.T, d *database, rows int) {
	t.Helper()
	text, err := os.ReadFile("testdata/sqlite1.sql")
	require.NoError(t, err)
	execSQLite(t, d, string(text)+fmt.Sprintf(`; PRAGMA user_version = 1; PRAGMA application_id = 0x46775354;
		WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < %d)
		INSERT INTO entries SELECT printf('key %%05d', i), i, NULL, 'value ' || i FROM n;
		WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < %[1]d)
		INSERT INTO records SELECT %[1]d + i, 's', 'id ' || i, 1000 * i, NULL, 'value ' || i FROM n;
		INSERT INTO ids SELECT 's', id, seq, NULL FROM records;
		UPDATE state SET last = 2 * %[1]d`, rows))
}

// TestMigration: a file without checksums gets them at Open, also if Opens before were interrupted.
func TestMigration(t *testing.T) {
	d := sqlite(t)
	const rows = 2100
	version1(t, d, rows)
	interrupted := 0
	for wait := time.Millisecond; ; wait += 2 * time.Millisecond {
		ctx, cancel := context.WithTimeout(t.Context(), wait)
		s, err := sqlstore.Open(ctx, d.url, nil)
		cancel()
		if err == nil {
			require.NoError(t, s.Close())
			break
		}
		interrupted++
	}
	require.Positive(t, interrupted)
	s := d.open(t)
	n := 0
	for e, err := range s.List(t.Context(), "") {
		n++
		require.NoError(t, err)
		require.Equal(t, fmt.Sprint("value ", n), string(e.Value))
		require.Equal(t, store.Revision(n), e.Revision)
	}
	require.Equal(t, rows, n)
	records, err := s.Read(t.Context(), "s", 0, 10*rows)
	require.NoError(t, err)
	require.Len(t, records, rows)
	require.Equal(t, fmt.Sprint("id ", rows), records[rows-1].ID)
	_, err = s.Append(t.Context(), "s", "id 5", nil, 0)
	require.ErrorIs(t, err, store.ErrDuplicate)
	seq, err := s.Append(t.Context(), "s", "", nil, 0)
	require.NoError(t, err)
	require.EqualValues(t, 2*rows+1, seq)
	report, err := s.Verify(t.Context())
	require.NoError(t, err)
	require.NoError(t, report.Err())
	t.Logf("%d interrupted", interrupted)
}

// lose opens a database that has lost data, and checks that it is refused, that AcceptLoss
// opens it, and that no position is given again.
func lose(t *testing.T, url string, highest uint64) *store.LossError {
	t.Helper()
	_, err := sqlstore.Open(t.Context(), url, nil)
	var loss *store.LossError
	require.ErrorAs(t, err, &loss)
	require.ErrorIs(t, err, store.ErrCorrupt)
	require.Equal(t, url, loss.Path)
	s, err := sqlstore.Open(t.Context(), url, &sqlstore.Options{AcceptLoss: true})
	require.NoError(t, err)
	seq, err := s.Append(t.Context(), "s", "", nil, 0)
	require.NoError(t, err)
	require.Greater(t, seq, highest)
	rev, err := s.Create(t.Context(), "after", nil, 0)
	require.NoError(t, err)
	require.Greater(t, uint64(rev), seq)
	require.NoError(t, s.Close())
	s, err = sqlstore.Open(t.Context(), url, nil)
	require.NoError(t, err)
	require.NoError(t, s.Close())
	return loss
}

// tryOpen opens and closes a file.
func tryOpen(t *testing.T, url string) error {
	t.Helper()
	s, err := sqlstore.Open(t.Context(), url, nil)
	if err == nil {
		err = s.Close()
	}
	return err
}

// appendN appends records and returns the last position.
func appendN(t testing.TB, s store.Store, n int) (seq uint64) {
	t.Helper()
	var err error
	for range n {
		seq, err = s.Append(t.Context(), "s", "", []byte("x"), 0)
		require.NoError(t, err)
	}
	return seq
}

// TestLostLog: a copy of the file without its log lacks all 60 records, and the mark refuses it.
func TestLostLog(t *testing.T) {
	d := sqlite(t)
	s := d.open(t)
	highest := appendN(t, s, 60) // fewer than SQLite moves to the database at once
	moved := filepath.Join(t.TempDir(), "state.db")
	require.Eventually(t, func() bool {
		copyFile(t, d.url, moved)
		copyFile(t, d.url+"-mark", moved+"-mark")
		err := tryOpen(t, moved)
		var loss *store.LossError
		return errors.As(err, &loss) && loss.Want == highest
	}, 10*time.Second, 20*time.Millisecond)
	loss := lose(t, moved, highest)
	require.Zero(t, loss.Have, "all 60 of 60 records are in the log")

	// With the file alone, the number of missing records is unknown.
	require.NoError(t, s.Close())
	alone := filepath.Join(t.TempDir(), "alone.db")
	copyFile(t, d.url, alone)
	loss = lose(t, alone, highest)
	require.Equal(t, highest, loss.Have)
	require.Zero(t, loss.Want)
}

// TestOlderCopy: the file of an earlier time in place of the current one.
func TestOlderCopy(t *testing.T) {
	d := sqlite(t)
	s := d.open(t)
	before := appendN(t, s, 10)
	require.NoError(t, s.Close())
	older := filepath.Join(t.TempDir(), "older.db")
	copyFile(t, d.url, older)
	s = d.open(t)
	highest := appendN(t, s, 10)
	require.NoError(t, s.Close())
	copyFile(t, older, d.url)
	loss := lose(t, d.url, highest)
	require.Equal(t, before, loss.Have)
	require.Equal(t, highest, loss.Want)
}

// TestTruncated: at every length the file is refused.
func TestTruncated(t *testing.T) {
	d := sqlite(t)
	s := d.open(t)
	fill(t, s, 20)
	highest := appendN(t, s, 10)
	require.NoError(t, s.Close())
	info, err := os.Stat(d.url)
	require.NoError(t, err)
	cut := filepath.Join(t.TempDir(), "cut.db")
	for _, size := range []int64{0, 1, 100, 4096, 8192, info.Size() / 2, info.Size() - 4096, info.Size() - 1} {
		copyFile(t, d.url, cut)
		copyFile(t, d.url+"-mark", cut+"-mark")
		require.NoError(t, os.Truncate(cut, size))
		_, err := sqlstore.Open(t.Context(), cut, nil)
		require.ErrorIs(t, err, store.ErrCorrupt, "%d bytes", size)
		require.ErrorContains(t, err, cut)
	}
	require.NoError(t, os.Remove(cut))
	lose(t, cut, highest)
}

// TestCutLog: a log whose end is damaged, as after a kill, loses acknowledged records.
func TestCutLog(t *testing.T) {
	d := sqlite(t)
	s := d.open(t)
	highest := appendN(t, s, 50)
	var loss *store.LossError
	killed := filepath.Join(t.TempDir(), "killed.db")
	require.Eventually(t, func() bool {
		for _, beside := range []string{"", "-wal", "-mark"} {
			copyFile(t, d.url+beside, killed+beside)
		}
		info, err := os.Stat(killed + "-wal")
		require.NoError(t, err)
		flip(t, killed+"-wal", info.Size()/2*8, false)
		err = tryOpen(t, killed)
		return errors.As(err, &loss) && loss.Want == highest
	}, 10*time.Second, 20*time.Millisecond)
	require.Equal(t, highest, loss.Want)
	require.Positive(t, loss.Have)
	lose(t, killed, highest)
}

// TestReplacedWhileOpen: the highest position of a live store falls. Each call that finds fewer rows than it may return is an
// error then.
func TestReplacedWhileOpen(t *testing.T) {
	d := sqlite(t)
	s := d.open(t)
	highest := appendN(t, s, 10)
	waiting := make(chan error, 1)
	go func() { waiting <- s.Wait(t.Context(), "s", highest) }()
	older := &database{url: filepath.Join(t.TempDir(), "older.db")}
	require.NoError(t, older.open(t).Close())
	var row string
	db, err := sql.Open("sqlite", older.url)
	require.NoError(t, err)
	require.NoError(t, db.QueryRow(`SELECT 'last = ' || last || ', swept = ' || swept || ', sum = ' || sum FROM state`).Scan(&row))
	require.NoError(t, db.Close())
	execSQLite(t, d, `DELETE FROM records WHERE seq > 5; UPDATE state SET `+row)
	for name, call := range map[string]func() error{
		"append": func() error { _, err := s.Append(t.Context(), "s", "", nil, 0); return err },
		"get":    func() error { _, err := s.Get(t.Context(), "k"); return err },
		"read":   func() error { _, err := s.Read(t.Context(), "s", 0, 10); return err },
		"wait":   func() error { return s.Wait(t.Context(), "s", 5) },
		"waiter": func() error { return <-waiting },
		"list": func() error {
			for _, err := range s.List(t.Context(), "") {
				return err
			}
			return nil
		},
	} {
		var loss *store.LossError
		require.ErrorAs(t, call(), &loss, name)
		require.Equal(t, highest, loss.Want, name)
	}
	records, err := s.Read(t.Context(), "s", 0, 5)
	require.NoError(t, err)
	require.Len(t, records, 5)
}

// The files that a crash leaves of a backup do not refuse the next one, which does not use them.
func TestBackupAfterCrash(t *testing.T) {
	s := sqlite(t).open(t)
	fill(t, s, 20)
	backup := filepath.Join(t.TempDir(), "backup.db")
	for _, suffix := range []string{".partial", ".partial-journal"} {
		require.NoError(t, os.WriteFile(backup+suffix, []byte("half a copy"), 0o600))
	}
	require.NoError(t, s.Backup(t.Context(), backup))
	text, err := os.ReadFile(backup + ".partial")
	require.NoError(t, err)
	require.Equal(t, "half a copy", string(text))
	report, err := sqlstore.VerifyFile(t.Context(), backup)
	require.NoError(t, err)
	require.NoError(t, report.Err())
}

// One of several backups to a file succeeds, the others are refused, and none leaves another file.
func TestBackupsToOneFile(t *testing.T) {
	s := sqlite(t).open(t)
	fill(t, s, 20)
	backup := filepath.Join(t.TempDir(), "backup.db")
	var errs [4]error
	var wg sync.WaitGroup
	for i := range errs {
		wg.Go(func() { errs[i] = s.Backup(t.Context(), backup) })
	}
	wg.Wait()
	done := 0
	for _, err := range errs {
		if err == nil {
			done++
			continue
		}
		require.ErrorIs(t, err, fs.ErrExist)
	}
	require.Equal(t, 1, done)
	report, err := sqlstore.VerifyFile(t.Context(), backup)
	require.NoError(t, err)
	require.NoError(t, report.Err())
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, s.Backup(canceled, backup+"2"), context.Canceled)
	files, err := os.ReadDir(filepath.Dir(backup))
	require.NoError(t, err)
	for _, f := range files {
		require.NotContains(t, f.Name(), ".partial")
	}
}

// TestBackup: a backup under load has a prefix of the records of each writer, and can be restored.
func TestBackup(t *testing.T) {
	d := sqlite(t)
	s := d.open(t)
	fill(t, s, 20)
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	var acknowledged [4]int
	for i := range acknowledged {
		wg.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				if _, err := s.Append(t.Context(), fmt.Sprint("writer ", i), fmt.Sprint(n), nil, 0); err != nil {
					t.Error(err)
					return
				}
				acknowledged[i] = n + 1
			}
		})
	}
	backup := filepath.Join(t.TempDir(), "backup.db")
	time.Sleep(20 * time.Millisecond)
	require.NoError(t, s.Backup(t.Context(), backup))
	require.ErrorIs(t, s.Backup(t.Context(), backup), fs.ErrExist)
	cancel()
	wg.Wait()
	highest := appendN(t, s, 1)
	require.NoError(t, s.Close())
	info, err := os.Stat(backup)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode().Perm())

	// Elsewhere, the copy is a separate store.
	restored := filepath.Join(t.TempDir(), "restored.db")
	copyFile(t, backup, restored)
	other, err := sqlstore.Open(t.Context(), restored, nil)
	require.NoError(t, err)
	c, err := readAll(t.Context(), other, 20)
	require.NoError(t, err)
	require.Len(t, c.entries, 20)
	for i, n := range acknowledged {
		records, err := other.Read(t.Context(), fmt.Sprint("writer ", i), 0, 1_000_000)
		require.NoError(t, err)
		require.LessOrEqual(t, len(records), n)
		for j, r := range records {
			require.Equal(t, fmt.Sprint(j), r.ID)
		}
	}
	require.NoError(t, other.Close())

	// In place of the original, positions continue after the highest one that was ever given.
	copyFile(t, backup, d.url)
	lose(t, d.url, highest)
}
