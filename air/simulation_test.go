// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package air_test

import (
	"context"
	"crypto/rand"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	mathrand "math/rand/v2"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/air"
	"github.com/fivewire/fivewire/air/relay"
	"github.com/fivewire/fivewire/conformance/fault"
	"github.com/fivewire/fivewire/internal/race"
	"github.com/fivewire/fivewire/store"
)

var (
	simSeeds = flag.Int("air.seeds", 0, "number of simulated runs of two agents; zero means a few")
	simSeed  = flag.Uint64("air.seed", 0, "simulate this seed only")
)

// Two agents, a relay and a registry have faults of every kind: requests and store calls that fail before or
// after their effect, or hang; handlers that fail, panic or take too long; crashes of each process; a
// registry that knows no agent; rotated keys. In the end, each message that Send has accepted was
// handled, was refused permanently, is a dead letter, or failed in the outbox. It is handled
// twice only if it is marked as redelivered.
func TestMailSurvivesFaults(t *testing.T) {
	seeds := *simSeeds
	if seeds == 0 {
		seeds = 6
		if race.Enabled {
			seeds = 1
		}
	}
	first := uint64(1)
	if *simSeed != 0 {
		first, seeds = *simSeed, 1
	}
	for seed := first; seed < first+uint64(seeds); seed++ {
		ok := t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { newSimulation(t, seed).run() })
		})
		if !ok {
			t.Fatalf("try again with -run TestMailSurvivesFaults -air.seed %d", seed)
		}
	}
}

type simulation struct {
	*testing.T
	w        *world
	random   *mathrand.Rand // of the main goroutine
	isFaulty atomic.Bool
	rules    []fault.Rule
	seed     uint64
	stores   map[string]store.Store
	ids      map[string]*air.Identity
	plans    []*fault.Plan
	relay    atomic.Pointer[relay.Server]
	plan     *fault.Plan // of the relay

	mu       sync.Mutex
	handler  *mathrand.Rand
	handled  map[string]int
	refused  map[string]bool
	accepted map[string]bool // by Send
	events   []string
}

// A simProcess is one life of an agent.
type simProcess struct {
	*air.Agent
	plan      *fault.Plan
	isCrashed atomic.Bool
}

func newSimulation(t *testing.T, seed uint64) *simulation {
	s := &simulation{T: t, seed: seed, w: newWorld(t, nil), random: mathrand.New(mathrand.NewPCG(seed, 1)),
		handler: mathrand.New(mathrand.NewPCG(seed, 2)), stores: make(map[string]store.Store), ids: make(map[string]*air.Identity),
		handled: make(map[string]int), refused: make(map[string]bool), accepted: make(map[string]bool)}
	rates := []float64{-1, -1, 0.01, 0.05, 0.15}
	stores := "get|create|update|delete|list|append|read|ack"
	for _, r := range []fault.Rule{
		{Action: fault.ErrorBefore, Op: stores}, {Action: fault.ErrorAfter, Op: stores},
		{Action: fault.LandLater, Op: stores, Delay: 3 * time.Second}, {Action: fault.Hang, Op: stores, Delay: 20 * time.Second},
		{Action: fault.Delay, Op: stores, Delay: time.Second},
		{Action: fault.Drop, Op: "request"}, {Action: fault.Cut, Op: "request"}, {Action: fault.Duplicate, Op: "request"},
		{Action: fault.Hang, Op: "request", Delay: time.Minute}, {Action: fault.Delay, Op: "request", Delay: 5 * time.Second},
		{Action: fault.Truncate, Op: "request"}, // TLS finds corrupt bytes
	} {
		r.Probability = rates[s.random.IntN(len(rates))]
		r.When = func(string, string) bool { return s.isFaulty.Load() }
		s.rules = append(s.rules, r)
	}
	for i, name := range []string{"alice", "bob"} {
		s.stores[name], s.ids[name] = store.NewMemory(), s.w.join(t, i+1)
	}
	s.stores["relay"] = store.NewMemory()
	return s
}

func (s *simulation) note(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.events = append(s.events, time.Now().Format("15:04:05 ")+fmt.Sprintf(format, args...))
}

func (s *simulation) newPlan() *fault.Plan {
	p := &fault.Plan{Seed: s.random.Uint64(), Rules: s.rules}
	s.plans = append(s.plans, p)
	return p
}

var simLog = slog.New(slog.DiscardHandler)

// startRelay starts a relay, after a crash of the earlier one.
func (s *simulation) startRelay() {
	if s.plan != nil {
		s.plan.Crash()
		_ = s.relay.Load().Close()
	}
	s.plan = s.newPlan()
	resolver, err := air.NewResolver(&air.ResolverOptions{HTTPClient: s.w.http(), Logger: simLog})
	require.NoError(s, err)
	r, err := relay.NewServer(&relay.ServerOptions{AnyRecipient: true, Logger: simLog,
		Auth:        relay.Auth{AllowAnonymousPush: true, Resolver: resolver},
		Persistence: relay.Persistence{Store: fault.Store(s.stores["relay"], s.plan)}})
	require.NoError(s, err)
	s.relay.Store(r)
}

// start starts an agent as a new process.
func (s *simulation) start(name string) *simProcess {
	p := &simProcess{plan: s.newPlan()}
	hc := &http.Client{Transport: fault.RoundTripper(s.w, p.plan)}
	resolver, err := air.NewResolver(&air.ResolverOptions{HTTPClient: hc, Logger: simLog})
	require.NoError(s, err)
	p.Agent, err = air.NewAgent(s.ids[name], air.HandlerFunc(func(ctx context.Context, d *air.Delivery) error {
		return s.handle(ctx, p, d)
	}), &air.AgentOptions{
		Resolver: resolver, HTTPClient: hc, BodyTypes: []string{"note"}, Logger: simLog, ResendEvery: time.Minute,
		Persistence: air.Persistence{Store: fault.Store(s.stores[name], p.plan)}, Timing: air.Timing{MaxPullAge: 24 * time.Hour},
		PublishKey: func(_ context.Context, next *air.Identity) error {
			s.w.registry.Register(next, s.w.endpoint(next))
			s.ids[name] = next
			return nil
		},
		OnOutcome: func(_ context.Context, r *air.ReceiveResult) {
			if r.Class == air.ClassRefused && r.Envelope != nil {
				s.note("%s refused %s: %v", name, r.Envelope.ID, r.Err)
				s.mu.Lock()
				s.refused[r.Envelope.ID] = true
				s.mu.Unlock()
			}
		},
	})
	require.NoError(s, err)
	go func() {
		for { // a supervisor
			err := p.Run(context.Background())
			if errors.Is(err, air.ErrClosed) {
				return
			}
			s.note("%s: run ended: %v", name, err)
			time.Sleep(time.Second)
		}
	}()
	return p
}

// crash ends a process without a word, as kill -9 does.
func (s *simulation) crash(p *simProcess) {
	p.isCrashed.Store(true)
	p.plan.Crash()
	go func() { _ = p.Close() }()
}

var errSim = errors.New("the handler fails")

func (s *simulation) handle(ctx context.Context, p *simProcess, d *air.Delivery) error {
	id := d.Envelope.ID
	s.mu.Lock()
	kind := s.handler.IntN(10)
	slow := time.Duration(s.handler.IntN(90)) * time.Second
	s.mu.Unlock()
	if s.isFaulty.Load() {
		switch kind {
		case 0:
			return errSim
		case 1:
			panic("handler")
		case 2:
			time.Sleep(slow)
		case 3:
			return air.Errorf(air.ErrUnauthorized, "of another service")
		}
	}
	if p.isCrashed.Load() || ctx.Err() != nil {
		return errSim
	}
	s.note("handled %s, redelivered %v", id, d.Redelivered)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.handled[id]++
	if s.handled[id] > 1 && !d.Redelivered {
		s.Errorf("%s is handled twice", id)
	}
	if kind == 4 && s.isFaulty.Load() { // before the outcome is recorded
		p.isCrashed.Store(true)
		p.plan.Crash()
	}
	return nil
}

func (s *simulation) run() {
	defer func() {
		if s.Failed() {
			for _, e := range s.events {
				s.Log(e)
			}
		}
	}()
	s.w.relay = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { s.relay.Load().ServeHTTP(w, r) })
	s.startRelay()
	alice, bob := s.start("alice"), s.start("bob")
	s.isFaulty.Store(true)
	var sends sync.WaitGroup
	threads := []string{air.NewID(), air.NewID(), air.NewID()}
	for range 60 {
		time.Sleep(time.Duration(s.random.IntN(40_000)) * time.Millisecond)
		if bob.isCrashed.Load() {
			s.note("bob has crashed behind a handler")
			s.crash(bob)
			bob = s.start("bob")
		}
		switch s.random.IntN(20) {
		case 0:
			s.note("bob crashes")
			s.crash(bob)
			bob = s.start("bob")
		case 1:
			s.note("alice crashes")
			s.crash(alice)
			alice = s.start("alice")
		case 2:
			s.note("the relay crashes")
			s.startRelay()
		case 3:
			status := []int{404, 503, 0, 0}[s.random.IntN(4)]
			s.note("the registry answers %d", status)
			s.w.registry.SetFailure(status)
		case 4:
			p := []*simProcess{alice, bob}[s.random.IntN(2)]
			seed := make([]byte, 32)
			_, _ = rand.Read(seed)
			s.note("rotation: %v", p.Rotate(context.Background(), seed))
		case 5:
			s.note("bob is offline")
			s.crash(bob)
			time.Sleep(20 * time.Minute)
			bob = s.start("bob")
		default:
			d := &air.Draft{ID: air.NewID(), To: s.ids["bob"].DID(), ThreadID: threads[s.random.IntN(3)],
				Body: &air.Raw{Type: "note", JSON: []byte(`{"type":"note"}`)}}
			seal, p := s.random.IntN(2) == 0, alice
			sends.Go(func() { s.send(p, d, seal) })
		}
	}
	sends.Wait()
	s.note("the faults end")
	s.isFaulty.Store(false)
	s.w.registry.SetFailure(0)
	if bob.isCrashed.Load() {
		s.crash(bob)
		bob = s.start("bob")
	}
	time.Sleep(2 * time.Hour)
	s.check(alice, bob)
	for _, p := range []*simProcess{alice, bob} {
		require.NoError(s, p.Shutdown(s.Context()))
	}
	_ = s.relay.Load().Close()
	for _, p := range s.plans {
		p.Close()
	}
	time.Sleep(5 * time.Minute) // the end of changes in doubt
}

// send sends a message. It is accepted if it was delivered, or is in the outbox.
func (s *simulation) send(p *simProcess, d *air.Draft, seal bool) {
	_, err := p.Client.Send(context.Background(), d, &air.SendOptions{Seal: seal})
	s.note("sent %s, sealed %v: %v", d.ID, seal, err)
	var e *air.Error
	isAccepted := err == nil || errors.As(err, &e) && e.Code == air.ErrDeliveryFailed && !p.isCrashed.Load()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.accepted[d.ID] = isAccepted
}

// check compares the accepted messages with their outcomes.
func (s *simulation) check(alice, bob *simProcess) {
	outcome := make(map[string]string)
	list, err := alice.Outbox(s.Context())
	require.NoError(s, err)
	for _, m := range list {
		outcome[m.ID] = "failed in the outbox: " + string(m.Code)
		if m.Failed.IsZero() {
			s.Errorf("%s stays in the outbox: %s", m.ID, m.Code)
		}
	}
	for letter, err := range bob.Inbox.DeadLetters(s.Context()) {
		require.NoError(s, err)
		outcome[letter.EnvelopeID] = "dead letter"
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, isAccepted := range s.accepted {
		if isAccepted && s.handled[id] == 0 && !s.refused[id] && outcome[id] == "" {
			s.Errorf("%s is lost", id)
		}
	}
	require.Zero(s, s.relay.Load().Stats().Queued, "mail stays at the relay")
}
