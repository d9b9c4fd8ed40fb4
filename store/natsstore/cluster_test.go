// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package natsstore_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/internal/testkit"
	"github.com/fivewire/fivewire/store/natsstore"
	"github.com/fivewire/fivewire/store/natsstore/embedded"
)

// A cluster is three servers in this process.
type cluster struct {
	dirs    [3]string
	clients [3]string // addresses for clients
	routes  []string

	mu    sync.Mutex
	nodes [3]*embedded.Server // guarded by mu; nil while stopped
}

func startCluster(t testing.TB) *cluster {
	t.Helper()
	c := &cluster{}
	for i := range c.dirs {
		c.dirs[i] = t.TempDir()
	}
	t.Cleanup(c.stopAll)
	err := c.tryStart(t)
	for range 9 { // another program may have taken a port
		if err == nil {
			break
		}
		t.Log(err)
		c.stopAll()
		err = c.tryStart(t)
	}
	require.NoError(t, err)
	c.ready(t)
	return c
}

// tryStart starts all servers on new addresses.
func (c *cluster) tryStart(t testing.TB) error {
	addrs := testkit.FreeAddresses(t, 6)
	copy(c.clients[:], addrs[:3])
	c.routes = addrs[3:]
	var errs [3]error
	var wg sync.WaitGroup
	for i := range c.nodes {
		wg.Go(func() { errs[i] = c.start(i) })
	}
	wg.Wait()
	return errors.Join(errs[:]...)
}

func (c *cluster) start(i int) error {
	srv, err := embedded.Start(c.dirs[i], &embedded.Options{
		Listen:     c.clients[i],
		MaxPayload: 1 << 20, // as servers have it by default
		Cluster:    &embedded.Cluster{Node: fmt.Sprint("node-", i), Listen: c.routes[i], Peers: c.routes},
	})
	if err != nil {
		return fmt.Errorf("node %d: %w", i, err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.nodes[i] = srv
	return nil
}

// restart starts a server that was stopped. While it was down, another program may have taken its
// port for a time.
func (c *cluster) restart(t testing.TB, i int) {
	t.Helper()
	var err error
	if !assert.Eventually(t, func() bool { err = c.start(i); return err == nil }, time.Minute, time.Second) {
		t.Error(err)
	}
}

func (c *cluster) stopAll() {
	var wg sync.WaitGroup
	for i := range c.nodes {
		wg.Go(func() { c.stop(i) })
	}
	wg.Wait()
}

func (c *cluster) stop(i int) {
	c.mu.Lock()
	srv := c.nodes[i]
	c.nodes[i] = nil
	c.mu.Unlock()
	if srv != nil {
		srv.Shutdown()
	}
}

// url names the clients' addresses, that of node i first.
func (c *cluster) url(i int) string {
	return fmt.Sprintf("nats://%s,nats://%s,nats://%s", c.clients[i%3], c.clients[(i+1)%3], c.clients[(i+2)%3])
}

func (c *cluster) connect(t testing.TB, i int) *nats.Conn {
	t.Helper()
	nc, err := nats.Connect(c.url(i), append(natsstore.DefaultConnOptions(), nats.DontRandomize())...)
	require.NoError(t, err)
	return nc
}

// ready waits until the servers have found each other.
func (c *cluster) ready(t testing.TB) {
	t.Helper()
	nc := c.connect(t, 0)
	defer nc.Close()
	js, err := jetstream.New(nc)
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		_, err := js.CreateOrUpdateStream(context.Background(), jetstream.StreamConfig{Name: "ready", Subjects: []string{"ready"}, Replicas: 3, Storage: jetstream.MemoryStorage})
		return err == nil
	}, time.Minute, 50*time.Millisecond)
	require.NoError(t, js.DeleteStream(context.Background(), "ready"))
}

func TestClusterSuite(t *testing.T) {
	t.Parallel()
	c := startCluster(t)
	n := 0
	suite(t, 0, "", func(t *testing.T) *nats.Conn {
		n++ // the handles of one store are at different servers
		return c.connect(t, n)
	})
}
