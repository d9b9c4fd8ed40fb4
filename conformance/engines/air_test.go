// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package engines

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/air"
	"github.com/fivewire/fivewire/air/airtest"
	"github.com/fivewire/fivewire/air/relay"
	"github.com/fivewire/fivewire/store"
)

func airID(n int) string { return fmt.Sprintf("AIR-TEST-%04d-%04d", n/10_000, n%10_000) }

func newRelay(s store.Store) *relay.Server {
	srv, err := relay.NewServer(&relay.ServerOptions{PageSize: 7, AnyRecipient: true, Auth: relay.Auth{AllowAnonymous: true}, Limits: relay.Limits{RateLimit: -1, AddressRateLimit: -1}, Persistence: relay.Persistence{Store: store.Sub(s, "relay/")}})
	if err != nil {
		panic(err) // the options are valid
	}
	return srv
}

func relayChild(_ context.Context, s store.Store) error {
	return serveChild(newRelay(s))
}

// A world has two agents, and a registry that knows them.
type world struct {
	registry   *airtest.Registry
	url        string
	alice, bob *air.Identity
}

func newWorld(t *testing.T) *world {
	w := &world{registry: &airtest.Registry{}}
	ts := httptest.NewServer(w.registry)
	t.Cleanup(ts.Close)
	w.url = ts.URL
	var err error
	w.alice, err = air.GenerateIdentity(airtest.DID(airID(1)))
	require.NoError(t, err)
	w.bob, err = air.GenerateIdentity(airtest.DID(airID(2)))
	require.NoError(t, err)
	w.registry.Register(w.alice, "")
	return w
}

// offer is a signed envelope from alice to bob.
func (w *world) offer(t *testing.T) []byte {
	d := &air.Draft{ID: air.NewID(), From: w.alice.DID(), To: w.bob.DID(), Time: time.Now(), ThreadID: air.NewID(),
		Body: &air.Offer{Description: "a chart", Price: air.MinorUnits(5, "USD"), Expires: time.Now().Add(time.Hour)}}
	e, err := air.NewEnvelope(d, w.alice.Signer(), nil)
	require.NoError(t, err)
	return e.Bytes()
}

// push returns the status of the relay, zero for none.
func (w *world) push(base string, envelope []byte) int {
	res, err := http.Post(base+"/inbox/"+w.bob.AIRID(), "application/json", bytes.NewReader(envelope))
	if err != nil {
		return 0
	}
	defer res.Body.Close()
	return res.StatusCode
}

// poller is a recipient: it handles each received id once.
func (w *world) poller(t *testing.T, s store.Store, endpoint string, calls *atomic.Int64) *air.Poller {
	resolver, err := air.NewResolver(&air.ResolverOptions{RegistryURL: w.url, AllowLoopback: true})
	require.NoError(t, err)
	in, err := air.NewInbox(w.bob, air.HandlerFunc(func(ctx context.Context, d *air.Delivery) error {
		calls.Add(1)
		_, err := s.Append(ctx, "acts", d.Envelope.ID, []byte(d.Envelope.ID), time.Hour)
		if errors.Is(err, store.ErrDuplicate) && d.Redelivered {
			return nil
		}
		return err
	}), &air.InboxOptions{Resolver: resolver, Persistence: air.Persistence{Store: store.Sub(s, "inbox/")}})
	require.NoError(t, err)
	p, err := air.NewPoller(in, endpoint, &air.PollerOptions{AllowLoopback: true, PollInterval: 5 * time.Millisecond})
	require.NoError(t, err)
	return p
}

// run lets it work until the test or the returned function ends it.
func run(t *testing.T, p *air.Poller) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = p.Run(ctx)
	}()
	var once sync.Once
	stop = func() { once.Do(func() { cancel(); <-done }) }
	t.Cleanup(stop)
	return stop
}

// TestAIRRelays: two relays serve one inbox, and two recipients share one replay
// window: each envelope is handed to the application once, wherever it was pushed
// and however often.
func TestAIRRelays(t *testing.T) {
	each(t, func(t *testing.T, p *place) {
		w := newWorld(t)
		var bases [2]string
		for i := range bases {
			r := newRelay(p.open(t))
			ts := httptest.NewServer(r)
			t.Cleanup(ts.Close)
			bases[i] = ts.URL
		}
		w.registry.Register(w.bob, bases[0]+"/inbox/"+w.bob.AIRID())
		var calls atomic.Int64
		s := p.open(t)
		for i := range bases {
			run(t, w.poller(t, p.open(t), bases[i]+"/inbox/"+w.bob.AIRID(), &calls))
		}
		const n = 60
		var pushing sync.WaitGroup
		for i := range 3 {
			pushing.Go(func() {
				for j := range n / 3 {
					envelope := w.offer(t)
					for k := range 2 { // and its copy at the other relay
						if status := w.push(bases[(i+j+k)%2], envelope); status != http.StatusAccepted && status != http.StatusOK && status != http.StatusConflict {
							t.Errorf("push: status %d", status)
						}
					}
				}
			})
		}
		pushing.Wait()
		soon(t, "all arrive", func() bool { return len(count(t, s, "acts")) == n })
		time.Sleep(50 * time.Millisecond) // room for a second call to show
		require.EqualValues(t, n, calls.Load(), "calls of the application")
	})
}

// TestAIRThreads: two processes of one agent share its negotiations. Each sees what
// the other did, and of two moves at the same time one is made and sent.
func TestAIRThreads(t *testing.T) {
	each(t, func(t *testing.T, p *place) {
		ctx := t.Context()
		w := newWorld(t)
		ts := httptest.NewServer(newRelay(store.NewMemory()))
		t.Cleanup(ts.Close)
		w.registry.Register(w.bob, ts.URL+"/inbox/"+w.bob.AIRID())
		var clients [2]*air.Client
		for i := range clients {
			resolver, err := air.NewResolver(&air.ResolverOptions{RegistryURL: w.url, AllowLoopback: true})
			require.NoError(t, err)
			threads, err := air.NewThreadStore(w.alice.DID(), &air.ThreadStoreOptions{Store: store.Sub(p.open(t), "threads/")})
			require.NoError(t, err)
			clients[i], err = air.NewClient(w.alice, &air.ClientOptions{Resolver: resolver, ThreadStore: threads, DisableSelfCheck: true})
			require.NoError(t, err)
		}
		for range 10 {
			first := clients[0].NewNegotiation(w.bob.DID(), "", false)
			_, err := first.Offer(ctx, "a chart", air.MinorUnits(5, "USD"), time.Now().Add(time.Hour))
			require.NoError(t, err)
			second := clients[1].NewNegotiation(w.bob.DID(), first.ThreadID(), false)
			th, err := second.Thread(ctx)
			require.NoError(t, err)
			require.Len(t, th.Moves, 1)

			var errs [2]error
			var wg sync.WaitGroup
			for i, n := range []*air.Negotiation{first, second} {
				wg.Go(func() { _, errs[i] = n.Withdraw(ctx, "changed my mind") })
			}
			wg.Wait()
			if errs[0] != nil {
				errs[0], errs[1] = errs[1], errs[0]
			}
			require.NoError(t, errs[0], "one of the two moves is made")
			require.True(t, errors.Is(errs[1], air.ErrThreadClosed) || errors.Is(errs[1], air.ErrConflict), "the other is refused: %v", errs[1])
			for _, n := range []*air.Negotiation{first, second} {
				th, err := n.Thread(ctx)
				require.NoError(t, err)
				require.Equal(t, air.ThreadWithdrawn, th.State)
			}
		}
	})
}

// TestAIRKilled kills relays while mail comes in: what was confirmed arrives, and
// is acted on once.
func TestAIRKilled(t *testing.T) {
	eachDisturbed(t, func(t *testing.T, p *place, d disturbance) {
		w := newWorld(t)
		f := newFront(t)
		w.registry.Register(w.bob, f.URL+"/inbox/"+w.bob.AIRID())
		relays := []*child{p.start(t, "relay"), p.start(t, "relay")}
		f.put(relays[0].address)
		s := p.open(t)
		var calls atomic.Int64
		for range 2 {
			run(t, w.poller(t, p.open(t), f.URL+"/inbox/"+w.bob.AIRID(), &calls))
		}
		stop := make(chan struct{})
		var mu sync.Mutex
		confirmed := map[string]bool{}
		var pushing sync.WaitGroup
		for range 2 {
			pushing.Go(func() {
				for {
					select {
					case <-stop:
						return
					default:
					}
					envelope := w.offer(t)
					if w.push(f.URL, envelope) == http.StatusAccepted {
						e, err := air.DecodeEnvelope(envelope, nil)
						if err != nil {
							t.Error(err)
							return
						}
						mu.Lock()
						confirmed[e.ID] = true
						mu.Unlock()
					}
				}
			})
		}
		for round := range d.rounds(t, 4) {
			time.Sleep(50*time.Millisecond + rand.N(100*time.Millisecond))
			dies, lives := round%2, relays[1-round%2].address
			time.AfterFunc(10*time.Millisecond, func() { f.put(lives) })
			relays[dies] = d.apply(t, p, relays[dies], "relay")
		}
		close(stop)
		pushing.Wait()
		require.NotEmpty(t, confirmed)
		// Delivery continues, however large the backlog is.
		missing := func() (n int) {
			acts := count(t, s, "acts")
			for id := range confirmed {
				if acts[id] == 0 {
					n++
				}
			}
			return n
		}
		for left := missing(); left > 0; {
			before := left
			soon(t, fmt.Sprintf("the next of %d that were confirmed, of which %d are missing", len(confirmed), left), func() bool {
				left = missing()
				return left < before
			})
		}
		for id, n := range count(t, s, "acts") {
			require.Equal(t, 1, n, "envelope %s", id)
		}
		recordService(t, p, "AIR relay", len(relays), d.name, d.rounds(t, 4), len(confirmed))
		t.Logf("%d envelopes confirmed, %d calls of the application", len(confirmed), calls.Load())
	})
}
