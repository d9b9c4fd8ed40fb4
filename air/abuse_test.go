// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package air_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/air"
	"github.com/fivewire/fivewire/air/airtest"
	"github.com/fivewire/fivewire/air/relay"
	"github.com/fivewire/fivewire/internal/kit"
	"github.com/fivewire/fivewire/internal/race"
)

// The published bound for abuse.
const (
	abuseDelay   = 120 * time.Second
	abuseMemory  = 64 << 20
	abuseLookups = 16
)

// A siege is a registry, a relay and a direct inbox under attack. Lookups take 50 ms.
type siege struct {
	registry airtest.Registry
	relay    *relay.Server
	direct   http.Handler

	mu      sync.Mutex
	sent    map[string]time.Time // of honest messages that are not handled, by text; guarded by mu
	longest time.Duration        // guarded by mu
	handled int                  // guarded by mu
}

// A caller is a transport with an address.
type caller struct {
	siege *siege
	addr  string

	lookups gauge
}

func (c *caller) RoundTrip(req *http.Request) (*http.Response, error) {
	var h http.Handler = c.siege.relay
	switch req.URL.Host {
	case "agentidentityregistry.org":
		h = &c.siege.registry
		defer c.lookups.count()()
		time.Sleep(50 * time.Millisecond)
	case "direct.example":
		h = c.siege.direct
	}
	in := req.Clone(req.Context())
	if in.Body == nil {
		in.Body = http.NoBody
	}
	in.RemoteAddr = c.addr + ":1"
	rec := httptest.NewRecorder()
	h.ServeHTTP(rec, in)
	return rec.Result(), nil
}

func (s *siege) agent(t *testing.T, id *air.Identity, addr string, isDirect bool) (*air.Agent, *caller) {
	c := &caller{siege: s, addr: addr}
	client := &http.Client{Transport: c}
	r, err := air.NewResolver(&air.ResolverOptions{HTTPClient: client, Logger: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	a, err := air.NewAgent(id, air.HandlerFunc(s.handle), &air.AgentOptions{
		Resolver: r, HTTPClient: client, BodyTypes: []string{"note"}, Direct: isDirect, Logger: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	return a, c
}

func (s *siege) handle(_ context.Context, d *air.Delivery) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if at, ok := s.sent[string(d.BodyJSON)]; ok {
		delete(s.sent, string(d.BodyJSON))
		s.longest = max(s.longest, time.Since(at))
		s.handled++
	}
	return nil
}

// note sends an honest message.
func (s *siege) note(ctx context.Context, from *air.Agent, to *air.Identity, n int) error {
	body := fmt.Sprintf(`{"n":%d,"to":"%s","type":"note"}`, n, to.AIRID())
	s.mu.Lock()
	s.sent[body] = time.Now()
	s.mu.Unlock()
	_, err := from.Send(ctx, to.DID(), &air.Raw{Type: "note", JSON: []byte(body)}, nil)
	return err
}

// attack posts as fast as the limits permit, and faster, until ctx ends.
func (s *siege) attack(ctx context.Context, addr, url string, pause time.Duration, next func(n int) string) {
	c := &caller{siege: s, addr: addr}
	for n := 0; ctx.Err() == nil; n++ {
		req, err := http.NewRequest(http.MethodPost, url, strings.NewReader(next(n)))
		if err == nil {
			_, _ = c.RoundTrip(req)
		}
		time.Sleep(pause)
	}
}

// One hostile address and one hostile registered agent, with a full mailbox and lookups of 50 ms, delay an
// honest message by at most 120 s, cost at most 64 MiB and 16 lookups at a time, at the relay with its
// poller and at a direct inbox.
func TestAbuseIsBounded(t *testing.T) {
	if race.Enabled {
		t.Skip("the race detector needs memory")
	}
	length := 4 * time.Minute
	if os.Getenv("FIVEWIRE_LONG") != "" {
		length = time.Hour
	}
	synctest.Test(t, func(t *testing.T) {
		s := &siege{sent: make(map[string]time.Time)}
		join := func(n int, endpoint string) *air.Identity {
			id, err := air.GenerateIdentity(airtest.DID(airIDOf(n)))
			require.NoError(t, err)
			s.registry.Register(id, strings.Replace(endpoint, "*", id.AIRID(), 1))
			return id
		}
		const mailbox, inbox = "https://relay.example/inbox/*", "https://direct.example/"
		aliceID, bobID, carolID, malloryID := join(1, mailbox), join(2, mailbox), join(3, inbox), join(4, mailbox)
		keys := &caller{siege: s, addr: "192.0.2.9"}
		resolver, err := air.NewResolver(&air.ResolverOptions{HTTPClient: &http.Client{Transport: keys}})
		require.NoError(t, err)
		s.relay, err = relay.NewServer(&relay.ServerOptions{AnyRecipient: true, Logger: slog.New(slog.DiscardHandler),
			Auth: relay.Auth{AllowAnonymousPush: true, Resolver: resolver}})
		require.NoError(t, err)
		alice, _ := s.agent(t, aliceID, "192.0.2.1", false)
		bob, bobCalls := s.agent(t, bobID, "192.0.2.2", false)
		carol, carolCalls := s.agent(t, carolID, "192.0.2.3", true)
		s.direct = carol.Handler()

		var running sync.WaitGroup
		ctx, cancel := context.WithCancel(t.Context())
		before := kit.Heap()

		large := strings.Repeat("x", 55_000)
		forged := func(to *air.Identity) func(n int) string {
			base := string(signedOffer(t, aliceID, to.DID(), nil))
			id := idOf(t, []byte(base))
			return func(n int) string {
				text := strings.ReplaceAll(base, aliceID.DID(), airtest.DID(fmt.Sprintf("AIR-FA1E-%04d-%04d", n/10_000, n%10_000)))
				text = strings.Replace(text, id, fmt.Sprintf("%s%06d", id[:len(id)-6], n%1_000_000), 1)
				if n%2 == 0 { // fills the mailbox
					text = strings.Replace(text, `"nonce"`, `"junk":"`+large+`","nonce"`, 1)
				}
				return text
			}
		}
		genuine := func(to *air.Identity) func(n int) string {
			return func(int) string { return string(signedOffer(t, malloryID, to.DID(), nil)) }
		}
		for _, to := range []*air.Identity{bobID, carolID} {
			url := strings.Replace(mailbox, "*", to.AIRID(), 1)
			if to == carolID {
				url = inbox
			}
			running.Go(func() { s.attack(ctx, "198.51.100.1", url, 40*time.Millisecond, forged(to)) })
			running.Go(func() { s.attack(ctx, "198.51.100.2", url, 200*time.Millisecond, genuine(to)) })
		}
		time.Sleep(2 * time.Minute) // without pulls, so that the mailbox becomes full
		synctest.Wait()
		require.Greater(t, s.relay.Stats().QueuedBytes, int64(31<<20), "the mailbox has room for the address")
		running.Go(func() { _ = bob.Run(ctx) })

		var peak int64
		for n := 0; time.Duration(n)*10*time.Second < length; n++ {
			for _, to := range []*air.Identity{bobID, carolID} {
				running.Go(func() {
					if err := s.note(ctx, alice, to, n); err != nil {
						t.Error(err)
					}
				})
			}
			time.Sleep(10 * time.Second)
			if n%12 == 0 {
				peak = max(peak, kit.Heap()-before)
			}
		}
		time.Sleep(abuseDelay)
		peak = max(peak, kit.Heap()-before)
		cancel()
		running.Wait()
		s.mu.Lock()
		defer s.mu.Unlock()
		t.Logf("%d honest messages, longest delay %v, memory %d MiB, %d and %d lookups at a time", s.handled, s.longest, peak>>20, bobCalls.lookups.peak.Load(), carolCalls.lookups.peak.Load())
		require.Empty(t, s.sent, "honest messages that were not handled")
		require.LessOrEqual(t, s.longest, abuseDelay)
		require.LessOrEqual(t, peak, int64(abuseMemory))
		require.LessOrEqual(t, max(bobCalls.lookups.peak.Load(), carolCalls.lookups.peak.Load(), keys.lookups.peak.Load()), int64(abuseLookups))
		for _, a := range []*air.Agent{alice, bob, carol} {
			require.NoError(t, a.Close())
		}
		require.NoError(t, s.relay.Close())
		require.NoError(t, resolver.Close())
	})
}
