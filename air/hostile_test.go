// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package air_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/air"
	"github.com/fivewire/fivewire/air/relay"
	"github.com/fivewire/fivewire/internal/kit"
	"github.com/fivewire/fivewire/internal/race"
)

// A gauge counts concurrent calls.
type gauge struct{ running, peak atomic.Int64 }

// count counts a call until the result is called.
func (g *gauge) count() (end func()) {
	n := g.running.Add(1)
	for m := g.peak.Load(); n > m && !g.peak.CompareAndSwap(m, n); m = g.peak.Load() {
	}
	return func() { g.running.Add(-1) }
}

// Three thousand pushes of 60 KB to invented mailboxes from one address, as fast as its limit permits, cost
// the relay at most 64 MiB, and another address has room (AIR-D86).
func TestRelayBoundsHeapOfInventedMailboxes(t *testing.T) {
	if race.Enabled {
		t.Skip("the race detector needs memory")
	}
	synctest.Test(t, func(t *testing.T) {
		srv, err := relay.NewServer(&relay.ServerOptions{AnyRecipient: true, Logger: slog.New(slog.DiscardHandler),
			Auth: relay.Auth{AllowAnonymous: true, AllowAnonymousPush: true}})
		require.NoError(t, err)
		w := newWorld(t, nil)
		alice, bob := w.join(t, 1), w.join(t, 2)
		base := string(signedOffer(t, alice, bob.DID(), nil))
		base = strings.Replace(base, `"nonce"`, `"junk":"`+strings.Repeat("x", 59_000)+`","nonce"`, 1)
		hostile, codes := relayCaller{srv, "198.51.100.1"}, map[int]int{}
		before := kit.Heap()
		for i := range 3000 {
			to := fmt.Sprintf("AIR-FA1E-%04d-0000", i)
			codes[hostile.do("POST", "/inbox/"+to, strings.ReplaceAll(base, bob.AIRID(), to)).Code]++
			time.Sleep(100 * time.Millisecond)
		}
		require.LessOrEqual(t, kit.Heap()-before, int64(64<<20))
		require.Positive(t, codes[202])
		require.Positive(t, codes[429])
		require.Equal(t, 3000, codes[202]+codes[429])
		push(t, srv, bob.AIRID(), signedOffer(t, alice, bob.DID(), nil))
		require.Len(t, pull(t, srv, "/inbox/"+bob.AIRID()+"/pull").Envelopes, 1)
		require.NoError(t, srv.Close())
	})
}

// A relay whose pages never end costs a bounded number of requests, lookups at a time and bytes, and the
// poller ends when it is closed (AIR-D65).
func TestPollerWithEndlessPages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, nil)
		alice, bob := w.join(t, 1), w.join(t, 2)
		base := string(signedOffer(t, alice, bob.DID(), nil))
		id := idOf(t, []byte(base))
		var pages atomic.Int64
		var lookups gauge
		n := 0
		client := &http.Client{Transport: roundTripper(func(r *http.Request) (*http.Response, error) {
			switch {
			case strings.HasSuffix(r.URL.Path, "/did-document"):
				defer lookups.count()()
				time.Sleep(time.Millisecond)
				return w.RoundTrip(r)
			case !strings.HasSuffix(r.URL.Path, "/pull"):
				return w.RoundTrip(r)
			}
			pages.Add(1)
			items := make([]string, 50)
			for i := range items {
				n++
				items[i] = strings.ReplaceAll(base, alice.AIRID(), fmt.Sprintf("AIR-FA1E-%04d-%04d", n/10_000, n%10_000))
				items[i] = strings.Replace(items[i], id, fmt.Sprintf("%s%06d", id[:len(id)-6], n), 1)
			}
			text := fmt.Sprintf(`{"envelopes":[%s],"cursor":"%d","has_more":true}`, strings.Join(items, ","), n)
			return &http.Response{StatusCode: 200, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(text)), Request: r}, nil
		})}
		resolver, err := air.NewResolver(&air.ResolverOptions{HTTPClient: client, Logger: slog.New(slog.DiscardHandler)})
		require.NoError(t, err)
		a, err := air.NewAgent(bob, air.HandlerFunc(func(context.Context, *air.Delivery) error { return nil }),
			&air.AgentOptions{Resolver: resolver, HTTPClient: client, Logger: slog.New(slog.DiscardHandler)})
		require.NoError(t, err)
		before := kit.Heap()
		var running sync.WaitGroup
		running.Go(func() { _ = a.Run(t.Context()) })
		time.Sleep(time.Minute)
		synctest.Wait()
		// A drain has 1,000 envelopes, that is 20 pages, and the next one begins after 4 seconds or more.
		require.Greater(t, pages.Load(), int64(100))
		require.LessOrEqual(t, pages.Load(), int64(20*16))
		require.LessOrEqual(t, lookups.peak.Load(), int64(16))
		if !race.Enabled {
			require.LessOrEqual(t, kit.Heap()-before, int64(64<<20))
		}
		require.NoError(t, a.Close())
		running.Wait()
	})
}

// While the registry answers no lookup, an agent asks at most 16 times at once, ends its drains, and loses no
// mail (AIR-D40, AIR-D81).
func TestAgentWhileRegistryHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const senders = 40
		w := newWorld(t, &relay.ServerOptions{Limits: relay.Limits{RateLimit: -1, AddressRateLimit: -1}})
		bobID := w.join(t, 999)
		for i := range senders {
			push(t, w.relay, bobID.AIRID(), signedOffer(t, w.join(t, i), bobID.DID(), nil))
		}
		var lookups gauge
		var isHanging atomic.Bool
		w.setFail(func(r *http.Request) error {
			if !strings.HasSuffix(r.URL.Path, "/did-document") || !isHanging.Load() || strings.Contains(r.URL.Path, bobID.AIRID()) {
				return nil
			}
			defer lookups.count()()
			<-r.Context().Done()
			return r.Context().Err()
		})
		isHanging.Store(true)
		bob := w.agent(t, bobID, air.AgentOptions{Logger: slog.New(slog.DiscardHandler)}, nil)
		time.Sleep(30 * time.Minute)
		require.Empty(t, bob.list())
		require.Positive(t, lookups.peak.Load())
		require.LessOrEqual(t, lookups.peak.Load(), int64(16))
		require.Len(t, pull(t, w.relay, "/inbox/"+bobID.AIRID()+"/pull").Envelopes, senders)
		isHanging.Store(false)
		time.Sleep(5 * time.Minute)
		require.Len(t, bob.list(), senders)
		require.Empty(t, pull(t, w.relay, "/inbox/"+bobID.AIRID()+"/pull").Envelopes)
	})
}
