// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package air_test

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/air"
	"github.com/fivewire/fivewire/air/airtest"
	"github.com/fivewire/fivewire/air/relay"
	"github.com/fivewire/fivewire/internal/bench/pair"
	"github.com/fivewire/fivewire/internal/kit"
	"github.com/fivewire/fivewire/internal/race"
	"github.com/fivewire/fivewire/store"
)

var benchBody = &air.Raw{Type: "note", JSON: []byte(`{"text":"` + strings.Repeat("abcdefgh ", 70) + `","type":"note"}`)}

// A route has a sender and a recipient, which use one relay on the loopback interface.
type route struct {
	client  *air.Client
	poller  *air.Poller
	to      string
	handled int
}

func newRoutes(tb testing.TB, n int) []*route {
	net, err := airtest.NewNetwork(&airtest.Options{Relay: relay.ServerOptions{
		Limits:      relay.Limits{RateLimit: -1, AddressRateLimit: -1, MaxConcurrent: -1, MaxConcurrentPerPrincipal: -1, RequestRate: -1},
		Persistence: relay.Persistence{Retention: 3 * time.Second},
	}})
	require.NoError(tb, err)
	tb.Cleanup(net.Close)
	resolver, err := net.Resolver()
	require.NoError(tb, err)
	tb.Cleanup(func() { _ = resolver.Close() })
	var routes []*route
	for i := range n {
		r := &route{}
		alice, err := net.RegisterAgent(airIDOf(2 * i))
		require.NoError(tb, err)
		bob, err := net.RegisterAgent(airIDOf(2*i + 1))
		require.NoError(tb, err)
		r.to = bob.DID()
		in, err := air.NewInbox(bob, air.HandlerFunc(func(context.Context, *air.Delivery) error {
			r.handled++
			return nil
		}), &air.InboxOptions{Resolver: resolver, BodyTypes: []string{"note"}, Limits: air.Limits{MaxItems: -1, MaxItemsPerPrincipal: -1}})
		require.NoError(tb, err)
		tb.Cleanup(func() { _ = in.Close() })
		r.poller, err = air.NewPoller(in, net.Endpoint(bob), &air.PollerOptions{AllowLoopback: true})
		require.NoError(tb, err)
		tb.Cleanup(func() { _ = r.poller.Close() })
		r.client, err = air.NewClient(alice, &air.ClientOptions{Resolver: resolver, BodyTypes: []string{"note"}})
		require.NoError(tb, err)
		tb.Cleanup(func() { _ = r.client.Close() })
		require.NoError(tb, r.deliver())
		routes = append(routes, r)
	}
	return routes
}

// deliver sends a message, and pulls, handles and acknowledges it.
func (r *route) deliver() error {
	before := r.handled
	_, err := r.client.Send(context.Background(), &air.Draft{To: r.to, Body: benchBody}, nil)
	if err == nil {
		_, err = r.poller.Drain(context.Background())
	}
	if err == nil && r.handled != before+1 {
		err = errors.New("not handled")
	}
	return err
}

// The base makes three bare exchanges of the same size, one signature and its verification.
func BenchmarkDelivery(b *testing.B) {
	r := newRoutes(b, 1)[0]
	b.ReportAllocs()
	for b.Loop() {
		if err := r.deliver(); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkPairDelivery(b *testing.B) {
	r := newRoutes(b, 1)[0]
	answer := bytes.Repeat([]byte("a"), 1300)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		_, _ = io.Copy(io.Discard, req.Body)
		n := 80
		if req.Method == http.MethodGet {
			n = len(answer)
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(answer[:n])
	}))
	defer srv.Close()
	client := srv.Client()
	key := ed25519.NewKeyFromSeed(bytes.Repeat([]byte{7}, 32))
	public := key.Public().(ed25519.PublicKey)
	exchange := func(method string, size int) error {
		req, err := http.NewRequestWithContext(context.Background(), method, srv.URL, bytes.NewReader(answer[:size]))
		if err != nil {
			return err
		}
		req.Header.Set("Content-Type", "application/json")
		res, err := client.Do(req)
		if err != nil {
			return err
		}
		_, err = io.Copy(io.Discard, res.Body)
		return errors.Join(err, res.Body.Close())
	}
	pair.RatioCallers(b, 1, func(int64) error { return r.deliver() }, func(int64) error {
		err := exchange(http.MethodPost, 1200)
		if err == nil {
			err = exchange(http.MethodGet, 0)
		}
		if err == nil {
			err = exchange(http.MethodPost, 60)
		}
		if !ed25519.Verify(public, answer[:1200], ed25519.Sign(key, answer[:1200])) {
			return errors.New("not verified")
		}
		return err
	})
}

// The base is one sender and its recipient.
func BenchmarkPairDeliveryCallers(b *testing.B) {
	routes := newRoutes(b, 64)
	var mu sync.Mutex
	var took []time.Duration
	pair.Ratio(b, pair.Loop(func() {
		var wg sync.WaitGroup
		for _, r := range routes {
			wg.Go(func() {
				begin := time.Now()
				if err := r.deliver(); err != nil {
					b.Error(err)
				}
				mu.Lock()
				defer mu.Unlock()
				took = append(took, time.Since(begin))
			})
		}
		wg.Wait()
	}), pair.Loop(func() {
		for range routes {
			if err := routes[0].deliver(); err != nil {
				b.Fatal(err)
			}
		}
	}))
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)*99/100])/float64(took[len(took)/2]), "p99/p50")
}

// A stream of signed envelopes of one sender, and their recipient.
type receiver struct {
	in   *air.Inbox
	next atomic.Int64
	made [][]byte
}

func newReceiver(tb testing.TB, n int) *receiver {
	var registry airtest.Registry
	srv := httptest.NewServer(&registry)
	tb.Cleanup(srv.Close)
	resolver, err := air.NewResolver(&air.ResolverOptions{RegistryURL: srv.URL, AllowLoopback: true})
	require.NoError(tb, err)
	tb.Cleanup(func() { _ = resolver.Close() })
	key := ed25519.NewKeyFromSeed(bytes.Repeat([]byte{7}, 32))
	alice, err := air.NewIdentity(airtest.DID(airIDOf(0)), key.Seed())
	require.NoError(tb, err)
	bob, err := air.GenerateIdentity(airtest.DID(airIDOf(1)))
	require.NoError(tb, err)
	registry.Register(alice, "https://example.org/inbox")
	r := &receiver{}
	r.in, err = air.NewInbox(bob, air.HandlerFunc(func(context.Context, *air.Delivery) error { return nil }), &air.InboxOptions{
		Resolver: resolver, BodyTypes: []string{"note"}, Limits: air.Limits{MaxItems: -1, MaxItemsPerPrincipal: -1},
	})
	require.NoError(tb, err)
	tb.Cleanup(func() { _ = r.in.Close() })
	for range n {
		env, err := air.NewEnvelope(&air.Draft{ID: air.NewID(), From: alice.DID(), To: bob.DID(), ThreadID: air.NewID(), Time: time.Now(), Body: benchBody},
			key, &air.EnvelopeOptions{BodyTypes: []string{"note"}})
		require.NoError(tb, err)
		r.made = append(r.made, env.Bytes())
	}
	require.NoError(tb, r.receive(true))
	return r
}

func (r *receiver) receive(pulled bool) error {
	o := r.in.Receive(context.Background(), r.made[r.next.Add(1)-1], pulled)
	if o.Err != nil || o.Delivery == nil && pulled {
		return fmt.Errorf("not delivered: %w", o.Err)
	}
	return nil
}

// The base is the verification of the signature alone.
func BenchmarkPairReceive(b *testing.B) {
	key := ed25519.NewKeyFromSeed(bytes.Repeat([]byte{7}, 32))
	public := key.Public().(ed25519.PublicKey)
	for _, pulled := range []bool{true, false} {
		b.Run(fmt.Sprintf("pulled=%v", pulled), func(b *testing.B) {
			r := newReceiver(b, 40_000)
			text, err := air.Canonicalize(r.made[0])
			require.NoError(b, err)
			signature := ed25519.Sign(key, text)
			pair.Ratio(b, pair.Loop(func() {
				if err := r.receive(pulled); err != nil {
					b.Fatal(err)
				}
			}), pair.Loop(func() { ed25519.Verify(public, text, signature) }))
		})
	}
}

// A delivery, and an envelope of a sender whose document is cached, have bounded allocations.
func TestDeliveryAllocations(t *testing.T) {
	if race.Enabled {
		t.Skip("the race detector allocates")
	}
	const runs = 200
	r := newRoutes(t, 1)[0]
	for range 20 {
		require.NoError(t, r.deliver())
	}
	var err error
	count := func(f func() error) float64 {
		return testing.AllocsPerRun(runs, func() { err = errors.Join(err, f()) })
	}
	require.LessOrEqual(t, count(r.deliver), 450.0)
	in := newReceiver(t, 2*runs+10)
	require.LessOrEqual(t, count(func() error { return in.receive(true) }), 20.0)
	require.NoError(t, err)
}

// An agent without traffic takes a bounded amount of memory: without a store, with a private store, and with a store that
// it shares, where it renews a lease.
func TestIdleAgentIsSmall(t *testing.T) {
	if race.Enabled {
		t.Skip("the race detector allocates")
	}
	const n = 200
	resolver, err := air.NewResolver(&air.ResolverOptions{RegistryURL: "http://127.0.0.1:1", AllowLoopback: true})
	require.NoError(t, err)
	defer func() { require.NoError(t, resolver.Close()) }()
	db := store.NewMemory()
	for _, c := range []struct {
		persistence air.Persistence
		bound       int64
	}{
		{air.Persistence{}, 24 << 10},
		{air.Persistence{Store: db, SingleInstance: true}, 28 << 10},
		{air.Persistence{Store: db}, 36 << 10},
	} {
		var agents []*air.Agent
		before := kit.HeapAndStacks()
		for i := range n {
			id, err := air.GenerateIdentity(airtest.DID(airIDOf(i)))
			require.NoError(t, err)
			a, err := air.NewAgent(id, air.HandlerFunc(func(context.Context, *air.Delivery) error { return nil }),
				&air.AgentOptions{Resolver: resolver, Persistence: c.persistence})
			require.NoError(t, err)
			agents = append(agents, a)
		}
		each := (kit.HeapAndStacks() - before) / n
		t.Logf("%d bytes", each)
		require.Less(t, each, c.bound)
		for _, a := range agents {
			require.NoError(t, a.Close())
		}
	}
}
