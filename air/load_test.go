// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package air_test

import (
	"context"
	"os"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/air"
	"github.com/fivewire/fivewire/air/airtest"
	"github.com/fivewire/fivewire/air/relay"
	"github.com/fivewire/fivewire/internal/race"
)

// Many envelopes through a relay and an inbox over real connections: nothing is
// lost, and goroutines, memory and file descriptors stay flat. AIR_LOAD sets their
// number; 100000 is a good one for a long run.
func TestLoad(t *testing.T) {
	total := 5000
	if testing.Short() || race.Enabled {
		total = 500
	}
	if s := os.Getenv("AIR_LOAD"); s != "" {
		var err error
		total, err = strconv.Atoi(s)
		require.NoError(t, err)
	}
	net, err := airtest.NewNetwork(&airtest.Options{Relay: relay.ServerOptions{PageSize: 200, Limits: relay.Limits{RateLimit: -1, AddressRateLimit: -1}, Persistence: relay.Persistence{Retention: time.Minute}}})
	require.NoError(t, err)
	defer net.Close()
	resolver, err := net.Resolver()
	require.NoError(t, err)
	bob, err := net.RegisterAgent(airIDOf(0))
	require.NoError(t, err)
	var handled atomic.Int64
	in, err := air.NewInbox(bob, air.HandlerFunc(func(context.Context, *air.Delivery) error {
		handled.Add(1)
		return nil
	}), &air.InboxOptions{Resolver: resolver, BodyTypes: []string{"note"}, Limits: air.Limits{MaxReplayEntries: 1 << 20}})
	require.NoError(t, err)
	poller, err := air.NewPoller(in, net.Endpoint(bob), &air.PollerOptions{AllowLoopback: true, PollInterval: 2 * time.Millisecond})
	require.NoError(t, err)

	const senders = 8
	var clients []*air.Client
	for i := range senders {
		id, err := net.RegisterAgent(airIDOf(1 + i))
		require.NoError(t, err)
		c, err := air.NewClient(id, &air.ClientOptions{Resolver: resolver, BodyTypes: []string{"note"}})
		require.NoError(t, err)
		clients = append(clients, c)
	}
	send := func(n int) {
		want := handled.Load() + int64(n)
		var wg sync.WaitGroup
		for i, c := range clients {
			wg.Go(func() {
				thread := air.NewID()
				for range n / senders {
					_, err := c.Send(context.Background(), &air.Draft{To: bob.DID(), ThreadID: thread,
						Body: &air.Raw{Type: "note", JSON: []byte(`{"type":"note"}`)}}, &air.SendOptions{Seal: i == 0})
					if err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		ctx, cancel := context.WithCancel(context.Background())
		wg.Go(func() {
			for handled.Load() < want && ctx.Err() == nil && !t.Failed() {
				if _, err := poller.Drain(ctx); err != nil {
					t.Error(err)
				}
			}
		})
		wg.Wait()
		cancel()
	}
	measure := func() (goroutines, fds int, heap uint64) {
		for range 3 {
			runtime.GC()
		}
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		entries, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			entries = nil // not on this system
		}
		return runtime.NumGoroutine(), len(entries), m.HeapInuse
	}
	round := total / 5 / senders * senders
	send(round)
	g0, f0, h0 := measure()
	for range 4 {
		send(round)
	}
	g1, f1, h1 := measure()
	require.Equal(t, int64(5*round), handled.Load())
	require.LessOrEqual(t, g1, g0+20)
	require.LessOrEqual(t, f1, f0+20)
	// Replay protection needs some 200 bytes an envelope for five minutes. The relay keeps the
	// hashes of acknowledged mail for a minute here.
	require.Less(t, h1, h0+uint64(4*round)*600+(16<<20))
	t.Logf("%d envelopes: goroutines %d to %d, descriptors %d to %d, heap %d to %d KB", 5*round, g0, g1, f0, f1, h0>>10, h1>>10)
}
