// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package natsstore_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/store"
	"github.com/fivewire/fivewire/store/natsstore"
	"github.com/fivewire/fivewire/store/natsstore/embedded"
	"github.com/fivewire/fivewire/store/storetest"
)

// names numbers the stores of tests that share servers.
var names atomic.Int64

func newName() string { return fmt.Sprint("t", names.Add(1)) }

// An opened is a store with the parameters to open it again.
type opened struct {
	*natsstore.Store
	name    string
	connect func(t *testing.T) *nats.Conn
}

func open(t *testing.T, name string, replicas int, connect func(t *testing.T) *nats.Conn) *opened {
	t.Helper()
	nc := connect(t)
	s, err := natsstore.New(context.Background(), nc, &natsstore.Options{StreamPrefix: name, Replicas: replicas})
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, s.Close())
		nc.Close()
	})
	return &opened{s, name, connect}
}

// suite runs the tests of all engines on the servers that connect leads to, with the data of one server in dir, if
// it is not empty.
func suite(t *testing.T, replicas int, dir string, connect func(t *testing.T) *nats.Conn) {
	name := newName()
	reopen := func(t *testing.T, s store.Store) store.Store {
		old := s.(*opened)
		return open(t, old.name, replicas, old.connect)
	}
	damage := func(t *testing.T, _ store.Store, value []byte) (store.Store, error) {
		return damaged(t, dir, name, value)
	}
	if dir == "" {
		damage = nil
	}
	storetest.Suite{
		Damage:   damage,
		MaxValue: maxValue(t, connect),
		Peer:     reopen,
		Reopen: func(t *testing.T, s store.Store) store.Store {
			require.NoError(t, s.(*opened).Close())
			return reopen(t, s)
		},
	}.Run(t, func(t *testing.T) store.Store {
		// Creating new streams for each test would take most of the time.
		s := open(t, name, replicas, connect)
		t.Cleanup(func() {
			nc := connect(t)
			defer nc.Close()
			for _, area := range []string{"_kv", "_log"} {
				_, err := nc.Request("$JS.API.STREAM.PURGE."+name+area, nil, 10*time.Second)
				require.NoError(t, err)
			}
		})
		return s
	})
}

// damaged opens a copy of the data in dir, with one bit of each occurrence of value changed.
func damaged(t *testing.T, dir, name string, value []byte) (store.Store, error) {
	damagedDir := t.TempDir()
	require.NoError(t, os.CopyFS(damagedDir, os.DirFS(dir)))
	blocks, err := filepath.Glob(filepath.Join(damagedDir, "jetstream", "*", "streams", name+"_*", "msgs", "*.blk"))
	require.NoError(t, err)
	changed, found := bytes.Clone(value), 0
	changed[0] ^= 1
	for _, path := range blocks {
		data, err := os.ReadFile(path)
		require.NoError(t, err)
		found += bytes.Count(data, value)
		require.NoError(t, os.WriteFile(path, bytes.ReplaceAll(data, value, changed), 0o600))
	}
	require.Equal(t, 2, found, "an entry and a record")
	s, err := embedded.Open(t.Context(), damagedDir, &natsstore.Options{StreamPrefix: name})
	if err == nil {
		t.Cleanup(func() { require.NoError(t, s.Close()) })
	}
	return s, err
}

func maxValue(t *testing.T, connect func(t *testing.T) *nats.Conn) int {
	nc := connect(t)
	defer nc.Close()
	return int(nc.MaxPayload()) - 4<<10
}

func startEmbedded(t *testing.T, opts *embedded.Options) *embedded.Server {
	t.Helper()
	srv, err := embedded.Start(t.TempDir(), opts)
	require.NoError(t, err)
	t.Cleanup(srv.Shutdown)
	return srv
}

func TestEmbeddedSuite(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	srv, err := embedded.Start(dir, nil)
	require.NoError(t, err)
	t.Cleanup(srv.Shutdown)
	suite(t, 0, dir, func(t *testing.T) *nats.Conn {
		nc, err := srv.Conn()
		require.NoError(t, err)
		return nc
	})
}
