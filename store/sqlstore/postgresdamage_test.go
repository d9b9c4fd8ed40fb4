// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package sqlstore_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/store"
	"github.com/fivewire/fivewire/store/sqlstore"
)

// TestPostgresDamage: a change of any column is an error of each call that reads the row, hides no
// row, and is found by Verify.
func TestPostgresDamage(t *testing.T) {
	d := postgres(t)
	d.opts.SweepInterval = 10 * time.Millisecond
	s := d.open(t)
	for i, change := range []string{
		`entries SET content = 'y'`, `entries SET rev = rev + 1`, `entries SET expires = NULL`, `entries SET expires = now() - interval '1 hour'`,
		`entries SET expires = expires + interval '1 microsecond'`, `entries SET sum = sum # 1`,
		`records SET content = 'y'`, `records SET id = 'other'`, `records SET time = time + interval '1 microsecond'`, `records SET seq = seq + 1000000`,
		`records SET expires = NULL`, `records SET expires = now() - interval '1 hour'`,
		`ids SET position = position + 1`, `ids SET expires = NULL`, `ids SET expires = now() - interval '1 hour'`,
	} {
		table, _, _ := strings.Cut(change, " ")
		key, stream := fmt.Sprint("k", i), fmt.Sprint("s", i)
		_, err := s.Create(t.Context(), key, []byte("x"), 2*time.Hour)
		require.NoError(t, err)
		_, err = s.Append(t.Context(), stream, "id", []byte("x"), 2*time.Hour)
		require.NoError(t, err)
		require.NoError(t, s.Expire(t.Context(), stream, time.Hour))
		where := fmt.Sprintf(" WHERE stream = '%s'", stream)
		if table == "entries" {
			where = fmt.Sprintf(" WHERE key = '%s'", key)
		}
		report, err := s.Verify(t.Context())
		require.NoError(t, err)
		before := report.Damaged
		d.exec(t, "UPDATE "+d.opts.Schema+"."+change+where)
		switch table {
		case "entries":
			_, err = s.Get(t.Context(), key)
		case "records":
			_, err = s.Read(t.Context(), stream, 0, 10)
		case "ids":
			_, err = s.Append(t.Context(), stream, "id", nil, 0)
		}
		var damaged *store.CorruptError
		require.ErrorAs(t, err, &damaged, change)
		require.Contains(t, damaged.Path, d.opts.Schema)
		require.Equal(t, table == "entries", damaged.Key == key, change)
		require.Equal(t, table != "entries", damaged.Stream == stream, change)
		report, err = s.Verify(t.Context())
		require.NoError(t, err)
		require.Greater(t, report.Damaged, before, change)
	}
	time.Sleep(50 * time.Millisecond) // sweeps keep what is damaged
	require.Equal(t, "15 15 15", d.rows(t))
}

// TestPostgresFileDamage: a changed bit, or a missing page, in the file of a table is an error of each call that reads it, and is found
// by Verify. The first needs a server with checksums of its pages.
func TestPostgresFileDamage(t *testing.T) {
	control, dir := os.Getenv(postgresCtl), os.Getenv("FIVEWIRE_POSTGRES_DIR")
	if control == "" || dir == "" {
		t.Skipf("needs to stop PostgreSQL: %s is not set", postgresCtl)
	}
	for name, damage := range map[string]func(path string){
		"flip":     func(path string) { flip(t, path, 8*8192-9, false) }, // in the last row, which is stored first
		"truncate": func(path string) { require.NoError(t, os.Truncate(path, 0)) },
	} {
		t.Run(name, func(t *testing.T) {
			d := postgres(t)
			s := d.open(t)
			_, err := s.Create(t.Context(), "k", []byte("x"), 0)
			require.NoError(t, err)
			_, err = s.Append(t.Context(), "s", "id", []byte("x"), 0)
			require.NoError(t, err)
			require.NoError(t, s.Close())
			d.exec(t, fmt.Sprintf(`ANALYZE %[1]s.entries, %[1]s.records`, d.opts.Schema)) // a scan of one page is cheaper than its index
			conn, err := pgx.Connect(t.Context(), d.url)
			require.NoError(t, err)
			paths := make([]string, 2)
			for i, table := range []string{"entries", "records"} {
				require.NoError(t, conn.QueryRow(t.Context(), `SELECT pg_relation_filepath($1::regclass)`, d.opts.Schema+"."+table).Scan(&paths[i]))
			}
			require.NoError(t, conn.Close(t.Context()))
			require.NoError(t, exec.Command(control, "stop").Run())
			for _, path := range paths {
				damage(filepath.Join(dir, "data", path))
			}
			require.NoError(t, exec.Command(control, "start").Run())
			s = d.open(t)
			_, err = s.Get(t.Context(), "k")
			require.ErrorIs(t, err, store.ErrCorrupt)
			require.ErrorContains(t, err, d.opts.Schema)
			for _, err := range s.List(t.Context(), "") {
				require.ErrorIs(t, err, store.ErrCorrupt)
			}
			_, err = s.Read(t.Context(), "s", 0, 10)
			require.ErrorIs(t, err, store.ErrCorrupt)
			report, err := s.Verify(t.Context())
			require.NoError(t, err)
			require.ErrorIs(t, report.Err(), store.ErrCorrupt)
		})
	}
}

// TestPostgresMigration: tables without checksums get them at Open, and processes of the earlier
// version fail from then on.
func TestPostgresMigration(t *testing.T) {
	d := postgres(t)
	text, err := os.ReadFile("migrations/postgres1.sql")
	require.NoError(t, err)
	d.exec(t, strings.ReplaceAll(`CREATE SCHEMA {schema}; CREATE TABLE {schema}.migrations (version integer PRIMARY KEY, applied timestamptz NOT NULL DEFAULT now());
		INSERT INTO {schema}.migrations (version) VALUES (1);`+string(text)+`;
		INSERT INTO {schema}.entries SELECT 'key ' || i, nextval('{schema}.positions'), now() + interval '1 hour', convert_to('value ' || i, 'UTF8') FROM generate_series(1, 250) i;
		INSERT INTO {schema}.records SELECT 's', nextval('{schema}.positions'), 'id ' || i, now(), NULL, convert_to('value ' || i, 'UTF8') FROM generate_series(1, 250) i;
		INSERT INTO {schema}.ids SELECT stream, id, seq, expires FROM {schema}.records`, "{schema}", d.opts.Schema))
	s := d.open(t)
	for i := range 250 {
		e, err := s.Get(t.Context(), fmt.Sprint("key ", i+1))
		require.NoError(t, err)
		require.Equal(t, fmt.Sprint("value ", i+1), string(e.Value))
	}
	records, err := s.Read(t.Context(), "s", 0, 1000)
	require.NoError(t, err)
	require.Len(t, records, 250)
	_, err = s.Append(t.Context(), "s", "id 7", nil, 0)
	require.ErrorIs(t, err, store.ErrDuplicate)
	report, err := s.Verify(t.Context())
	require.NoError(t, err)
	require.NoError(t, report.Err())
	require.Equal(t, []int{250, 250, 250}, []int{report.Entries, report.Records, report.IDs})
}

// TestPostgresMark: a server whose data ends before the mark is refused. With AcceptLoss no position or revision
// is given again. While the store is open, a position that was given before is an error.
func TestPostgresMark(t *testing.T) {
	d := postgres(t)
	d.opts.MarkFile = filepath.Join(t.TempDir(), "mark")
	write := func(s *sqlstore.Store) (seq, rev uint64) {
		for range 20 {
			var err error
			seq, err = s.Append(t.Context(), "s", "", []byte("x"), 0)
			require.NoError(t, err)
			r, err := s.Create(t.Context(), fmt.Sprint("k", seq), nil, 0)
			require.NoError(t, err)
			rev = uint64(r)
		}
		return seq, rev
	}
	s := d.open(t)
	seq, rev := write(s)
	require.NoError(t, s.Close())
	restore := func() { // the data of an earlier time
		d.exec(t, fmt.Sprintf("DELETE FROM %[1]s.records WHERE seq > 10; DELETE FROM %[1]s.entries WHERE rev > 10; SELECT setval('%[1]s.positions', 10)", d.opts.Schema))
	}
	restore()
	opts := d.opts
	_, err := sqlstore.Open(t.Context(), d.url, &opts)
	var loss *store.LossError
	require.ErrorAs(t, err, &loss)
	require.Equal(t, []uint64{10, max(seq, rev)}, []uint64{loss.Have, loss.Want})
	whole, err := os.ReadFile(d.opts.MarkFile)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(d.opts.MarkFile, []byte("no mark"), 0o600))
	for range 2 {
		_, err = sqlstore.Open(t.Context(), d.url, &opts)
		require.ErrorIs(t, err, store.ErrCorrupt)
	}
	require.NoError(t, os.WriteFile(d.opts.MarkFile, whole, 0o600))
	d.opts.AcceptLoss = true
	s = d.open(t)
	next, nextRev := write(s)
	require.Greater(t, min(next, nextRev)-40, max(seq, rev))
	report, err := s.Verify(t.Context())
	require.NoError(t, err)
	require.NoError(t, report.Err())

	restore()
	report, err = s.Verify(t.Context())
	require.NoError(t, err)
	require.Equal(t, 1, report.Damaged)
	_, err = s.Append(t.Context(), "s", "", nil, 0)
	require.ErrorAs(t, err, &loss)
	require.EqualValues(t, max(next, nextRev), loss.Want)
	_, err = s.Create(t.Context(), "k", nil, 0)
	require.ErrorAs(t, err, &loss)
	e, err := s.Get(t.Context(), "k")
	require.NoError(t, err)
	_, err = s.Update(t.Context(), "k", nil, e.Revision, 0)
	require.ErrorAs(t, err, &loss)
}

// A server that was restored while the store is open is refused for reads, too.
func TestPostgresLossWhileOpen(t *testing.T) {
	d := postgres(t)
	d.url += "&application_name=" + d.opts.Schema
	s := d.open(t)
	highest := appendN(t, s, 20)
	d.exec(t, fmt.Sprintf("DELETE FROM %[1]s.records WHERE seq > 10; SELECT setval('%[1]s.positions', 10)", d.opts.Schema))
	d.exec(t, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND application_name = '`+d.opts.Schema+`'`)
	var loss *store.LossError
	for range 2 {
		_, err := s.Read(t.Context(), "s", 0, 100)
		require.ErrorAs(t, err, &loss)
		require.Equal(t, []uint64{10, highest}, []uint64{loss.Have, loss.Want})
	}
}
