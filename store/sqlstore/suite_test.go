// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package sqlstore_test

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/fivewire/fivewire/store"
	"github.com/fivewire/fivewire/store/sqlstore"
	"github.com/fivewire/fivewire/store/storetest"
)

// A database is one that tests open as often as they like.
type database struct {
	url  string
	opts sqlstore.Options
}

// open opens it until the end of the test.
func (d *database) open(t testing.TB) *sqlstore.Store {
	t.Helper()
	opts := d.opts
	s, err := sqlstore.Open(t.Context(), d.url, &opts)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

// sqlite is a new file.
func sqlite(t testing.TB) *database {
	return &database{url: filepath.Join(t.TempDir(), "state with ?odd #name%20.db")}
}

// postgresEnv names the database that tests may fill with anything, and
// postgresCtl the program that stops and starts its server. .ci/postgres
// provides both.
const (
	postgresEnv = "FIVEWIRE_POSTGRES"
	postgresCtl = "FIVEWIRE_POSTGRES_CTL"
)

func postgresURL(t testing.TB) string {
	t.Helper()
	url := os.Getenv(postgresEnv)
	if url == "" {
		t.Skipf("needs PostgreSQL: %s is not set; eval \"$(.ci/postgres start)\" starts one and sets it", postgresEnv)
	}
	return url
}

// postgres returns a new schema, which is dropped after the test.
func postgres(t testing.TB) *database {
	t.Helper()
	d := &database{url: postgresURL(t), opts: sqlstore.Options{Schema: fmt.Sprintf("test_%016x", rand.Uint64())}}
	t.Cleanup(func() { d.exec(t, "DROP SCHEMA IF EXISTS "+d.opts.Schema+" CASCADE") })
	return d
}

// exec runs a statement on PostgreSQL, bypassing the store.
func (d *database) exec(t testing.TB, text string) {
	t.Helper()
	conn, err := pgx.Connect(context.Background(), d.url)
	require.NoError(t, err)
	defer conn.Close(context.Background())
	_, err = conn.Exec(context.Background(), text)
	require.NoError(t, err)
}

// engines are the databases that every test has to work on.
var engines = []struct {
	name   string
	create func(t testing.TB) *database
}{{"SQLite", sqlite}, {"PostgreSQL", postgres}}

// each runs a test on every engine.
func each(t *testing.T, test func(t *testing.T, d *database)) {
	for _, e := range engines {
		t.Run(e.name, func(t *testing.T) { test(t, e.create(t)) })
	}
}

func TestSuite(t *testing.T) {
	each(t, func(t *testing.T, d *database) {
		t.Parallel() // it mostly waits, for the disk and for things to expire
		create := sqlite
		if d.opts.Schema != "" {
			create = postgres
		}
		var databases sync.Map // by store
		open := func(t *testing.T, d *database) store.Store {
			s := d.open(t)
			databases.Store(s, d)
			return s
		}
		of := func(s store.Store) *database {
			d, _ := databases.Load(s)
			return d.(*database)
		}
		damage := func(t *testing.T, s store.Store, value []byte) (store.Store, error) {
			path := filepath.Join(t.TempDir(), "damaged.db")
			require.NoError(t, s.(*sqlstore.Store).Backup(t.Context(), path))
			data, err := os.ReadFile(path)
			require.NoError(t, err)
			changed := bytes.Clone(value)
			changed[0] ^= 1
			require.NoError(t, os.WriteFile(path, bytes.ReplaceAll(data, value, changed), 0o600))
			damaged, err := sqlstore.Open(t.Context(), path, nil)
			if err != nil {
				return nil, err
			}
			t.Cleanup(func() { require.NoError(t, damaged.Close()) })
			return damaged, nil
		}
		if d.opts.Schema != "" {
			damage = func(t *testing.T, s store.Store, value []byte) (store.Store, error) {
				copied := postgres(t)
				damaged := copied.open(t)
				changed := bytes.Clone(value)
				changed[0] ^= 1
				for _, table := range []string{"entries", "records", "ids"} {
					copied.exec(t, fmt.Sprintf(`INSERT INTO %s.%s SELECT * FROM %s.%[2]s`, copied.opts.Schema, table, of(s).opts.Schema))
				}
				for _, table := range []string{"entries", "records"} {
					copied.exec(t, fmt.Sprintf(`UPDATE %s.%s SET content = '\x%x' WHERE content = '\x%x'`, copied.opts.Schema, table, changed, value))
				}
				return damaged, nil
			}
		}
		storetest.Suite{
			Damage: damage,
			Peer:   func(t *testing.T, s store.Store) store.Store { return open(t, of(s)) },
			Reopen: func(t *testing.T, s store.Store) store.Store {
				require.NoError(t, s.(*sqlstore.Store).Close())
				return open(t, of(s))
			},
		}.Run(t, func(t *testing.T) store.Store { return open(t, create(t)) })
	})
}

func TestMain(m *testing.M) {
	storetest.CrashWorkerMain(openCrashed)
	goleak.VerifyTestMain(m)
}
