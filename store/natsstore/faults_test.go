// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package natsstore_test

import (
	"context"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/store"
	"github.com/fivewire/fivewire/store/natsstore"
	"github.com/fivewire/fivewire/store/natsstore/embedded"
	"github.com/fivewire/fivewire/store/storetest"
)

// roundsOf returns how often a fault is injected: few times, or as set in the environment.
func roundsOf(few int) int {
	if n, err := strconv.Atoi(os.Getenv("FIVEWIRE_FAULT_ROUNDS")); err == nil && n > 0 {
		return n
	}
	return few
}

// TestNodeStops stops and restarts one server of three while services connected to all of them
// continue.
func TestNodeStops(t *testing.T) {
	t.Parallel()
	c := startCluster(t)
	var stores []store.Store
	for i := range 3 {
		nc := c.connect(t, i)
		defer nc.Close()
		s, err := natsstore.New(t.Context(), nc, nil)
		require.NoError(t, err)
		defer func() { require.NoError(t, s.Close()) }()
		stores = append(stores, s)
	}
	ctx, stop := context.WithCancel(t.Context())
	tr := newTraffic(ctx, stores...)
	ran := make(chan struct{})
	go func() { defer close(ran); tr.run() }()
	goesOn := func(what string) {
		t.Helper()
		before := tr.made.Load()
		require.Eventually(t, func() bool { return tr.made.Load() > before+100 }, time.Minute, 10*time.Millisecond, what)
	}
	goesOn("at first")
	for round := range roundsOf(1) {
		i := (round + rand.IntN(3)) % 3
		c.stop(i)
		goesOn("without one server")
		c.restart(t, i)
		goesOn("with it back")
	}
	stop()
	<-ran
	tr.check(t, stores[0])
}

// A cutter is a proxy in front of a server that cuts connections in the middle of a message.
type cutter struct {
	l  net.Listener
	to string
	wg sync.WaitGroup

	mu    sync.Mutex
	conns map[net.Conn]bool // guarded by mu
}

func newCutter(t *testing.T, to string) *cutter {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	c := &cutter{l: l, to: to, conns: map[net.Conn]bool{}}
	c.wg.Go(c.accept)
	t.Cleanup(func() {
		_ = l.Close()
		c.cut()
		c.wg.Wait()
	})
	return c
}

func (c *cutter) accept() {
	for {
		in, err := c.l.Accept()
		if err != nil {
			return
		}
		out, err := net.Dial("tcp", c.to)
		if err != nil {
			_ = in.Close()
			continue
		}
		c.mu.Lock()
		c.conns[in], c.conns[out] = true, true
		c.mu.Unlock()
		for from, to := range map[net.Conn]net.Conn{in: out, out: in} {
			c.wg.Go(func() {
				_, _ = io.Copy(to, from)
				_, _ = to.Close(), from.Close()
			})
		}
	}
}

func (c *cutter) cut() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for conn := range c.conns {
		_ = conn.Close()
	}
	clear(c.conns)
}

// TestConnectionsCut cuts the connections of some services again and again, on a
// single server and on three.
func TestConnectionsCut(t *testing.T) {
	t.Parallel()
	t.Run("Server", func(t *testing.T) {
		t.Parallel()
		srv := startEmbedded(t, &embedded.Options{Listen: "127.0.0.1:0"})
		addr := srv.URL()[len("nats://"):]
		testCut(t, addr, addr)
	})
	t.Run("Cluster", func(t *testing.T) {
		t.Parallel()
		c := startCluster(t)
		testCut(t, c.clients[0], c.clients[1])
	})
}

func testCut(t *testing.T, first, second string) {
	cut := newCutter(t, first)
	var stores []store.Store
	for _, addr := range []string{cut.l.Addr().String(), second} {
		s, err := natsstore.Open(t.Context(), "nats://"+addr, &natsstore.Options{ConnOptions: []nats.Option{nats.IgnoreDiscoveredServers()}})
		require.NoError(t, err)
		defer func() { require.NoError(t, s.Close()) }()
		stores = append(stores, s)
	}
	ctx, stop := context.WithCancel(t.Context())
	tr := newTraffic(ctx, stores...)
	ran := make(chan struct{})
	go func() { defer close(ran); tr.run() }()
	for range roundsOf(8) {
		before := tr.made.Load()
		require.Eventually(t, func() bool { return tr.made.Load() > before+20 }, time.Minute, time.Millisecond)
		time.Sleep(rand.N(100 * time.Millisecond)) // any moment will do
		cut.cut()
	}
	stop()
	<-ran
	tr.check(t, stores[1])
}

// TestProcessesKilled kills processes that use a cluster while one server of it stops and restarts.
func TestProcessesKilled(t *testing.T) {
	t.Parallel()
	c := startCluster(t)
	// The streams are made before: a worker killed in the middle of that would
	// leave the next one to do it.
	s, err := natsstore.Open(t.Context(), c.url(0), nil)
	require.NoError(t, err)
	defer func() { require.NoError(t, s.Close()) }()
	crash := storetest.CrashTest{
		Database:       c.url(0),
		Rounds:         roundsOf(3),
		WorkerLifetime: 400 * time.Millisecond,
		InjectFault: func(_ context.Context, round int) error {
			if round%3 == 1 {
				c.stop(round % 2)
				c.restart(t, round%2)
			}
			return nil
		},
	}
	require.NoError(t, crash.Run(t.Context(), s))
}
