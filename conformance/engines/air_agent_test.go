// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package engines

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/air"
	"github.com/fivewire/fivewire/store"
)

const (
	agentIdentityEnv = "ENGINES_AIR_IDENTITY"
	agentRegistryEnv = "ENGINES_AIR_REGISTRY"
	agentSinkEnv     = "ENGINES_AIR_SINK"
	agentRelayEnv    = "ENGINES_AIR_RELAY"
)

// agentState is what an agent has kept.
type agentState struct {
	Outbox  []string // ids
	Letters []string // ids of envelopes
}

// agentChild is an agent with direct delivery and a mailbox at a relay. Its handler takes longer than it waits, so that most pushes are
// queued. It fails for the type "bad", and reports each other envelope to the sink. A request to /send sends a
// message, and /state returns its state.
func agentChild(_ context.Context, s store.Store) error {
	id, err := air.LoadIdentity(os.Getenv(agentIdentityEnv))
	if err != nil {
		return err
	}
	resolver, err := air.NewResolver(&air.ResolverOptions{RegistryURL: os.Getenv(agentRegistryEnv), AllowLoopback: true})
	if err != nil {
		return err
	}
	agent, err := air.NewAgent(id, air.HandlerFunc(func(_ context.Context, d *air.Delivery) error {
		time.Sleep(rand.N(60 * time.Millisecond))
		if air.BodyType(d.Body) == "bad" {
			return errors.New("no such customer")
		}
		q := url.Values{"id": {d.Envelope.ID}, "redelivered": {strconv.FormatBool(d.Redelivered)}}
		res, err := http.Post(os.Getenv(agentSinkEnv)+"/act?"+q.Encode(), "", nil)
		if err != nil {
			return err
		}
		time.Sleep(rand.N(20 * time.Millisecond)) // a kill before the outcome is recorded
		return res.Body.Close()
	}), &air.AgentOptions{
		Resolver: resolver, Direct: true, BodyTypes: []string{air.AnyBodyType},
		Limits:      air.Limits{MaxAttempts: 1, RateLimit: -1, AddressRateLimit: -1},
		Timing:      air.Timing{PushWait: 10 * time.Millisecond, ResendEvery: 200 * time.Millisecond},
		Persistence: air.Persistence{Store: s, InstanceID: "agent"},
		Logger:      slog.New(slog.DiscardHandler),
	})
	if err != nil {
		return err
	}
	poller, err := air.NewPoller(agent.Inbox, os.Getenv(agentRelayEnv), &air.PollerOptions{
		PollInterval: 50 * time.Millisecond, AllowLoopback: true, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return err
	}
	go func() {
		for poller.Run(context.Background()) != nil {
			time.Sleep(50 * time.Millisecond) // it ends when the relay is down
		}
	}()
	mux := http.NewServeMux()
	mux.Handle("/inbox", agent.Handler())
	mux.HandleFunc("/send", func(w http.ResponseWriter, r *http.Request) {
		d := &air.Draft{ID: r.FormValue("id"), To: r.FormValue("to"), Body: &air.Raw{Type: "note", JSON: []byte(`{"type":"note"}`)}}
		ctx, cancel := context.WithTimeout(r.Context(), 300*time.Millisecond) // the rest is the outbox
		defer cancel()
		_, err := agent.Client.Send(ctx, d, nil)
		if err != nil && !errors.Is(err, air.ErrDeliveryFailed) { // perhaps it is not in the outbox
			w.WriteHeader(http.StatusInternalServerError)
		}
	})
	mux.HandleFunc("/state", func(w http.ResponseWriter, r *http.Request) {
		var state agentState
		list, err := agent.Outbox(r.Context())
		for _, m := range list {
			state.Outbox = append(state.Outbox, m.ID)
		}
		for letter, e := range agent.Inbox.DeadLetters(r.Context()) {
			err = errors.Join(err, e)
			state.Letters = append(state.Letters, letter.EnvelopeID)
		}
		if err != nil {
			w.WriteHeader(http.StatusInternalServerError)
			return
		}
		_ = json.NewEncoder(w).Encode(state)
	})
	return serveChild(mux)
}

// An agentHistory is what the peers of an agent have seen.
type agentHistory struct {
	*testing.T
	w     *world
	front *front // of the agent
	relay *front // with its mailbox
	peer  *air.Identity

	mu        sync.Mutex
	acts      map[string]int  // of the handler, by id
	arrived   map[string]bool // messages of the agent
	confirmed map[string]bool // pushes with 200 or 202
	bad       map[string]bool // of these, those that the handler refuses to take
	sent      map[string]bool // accepted by /send
}

// ServeHTTP is the sink and the inbox of the peer, which refuses some pushes.
func (h *agentHistory) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if r.URL.Path == "/act" {
		id := r.FormValue("id")
		h.acts[id]++
		if h.acts[id] > 1 && r.FormValue("redelivered") != "true" {
			h.Errorf("%s is handled twice", id)
		}
		return
	}
	data, err := io.ReadAll(r.Body)
	if err != nil || rand.N(6) == 0 {
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	e, err := air.DecodeEnvelope(data, &air.DecodeOptions{BodyTypes: []string{air.AnyBodyType}})
	if err != nil {
		h.Error(err)
		return
	}
	if h.arrived[e.ID] {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusConflict)
		_, _ = io.WriteString(w, `{"error":"Replay"}`)
		return
	}
	h.arrived[e.ID] = true
}

// push pushes an envelope to the agent, or to its relay.
func (h *agentHistory) push(from *air.Identity, url, bodyType string) {
	d := &air.Draft{ID: air.NewID(), From: from.DID(), To: h.w.bob.DID(), Time: time.Now(), ThreadID: air.NewID(),
		Body: &air.Raw{Type: bodyType, JSON: []byte(`{"type":"` + bodyType + `"}`)}}
	e, err := air.NewEnvelope(d, from.Signer(), &air.EnvelopeOptions{BodyTypes: []string{air.AnyBodyType}})
	if err != nil {
		h.Error(err)
		return
	}
	res, err := http.Post(url, "application/json", bytes.NewReader(e.Bytes()))
	if err != nil {
		return
	}
	_ = res.Body.Close()
	if res.StatusCode == http.StatusOK || res.StatusCode == http.StatusAccepted {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.confirmed[d.ID], h.bad[d.ID] = true, bodyType == "bad"
	}
}

// send lets the agent send a message.
func (h *agentHistory) send() {
	id := air.NewID()
	res, err := http.Get(h.front.URL + "/send?" + url.Values{"id": {id}, "to": {h.peer.DID()}}.Encode())
	if err != nil {
		return
	}
	_ = res.Body.Close()
	if res.StatusCode == http.StatusOK {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.sent[id] = true
	}
}

// state asks the agent, and returns the first reason why its mail is not in order.
func (h *agentHistory) state() string {
	res, err := http.Get(h.front.URL + "/state")
	if err != nil {
		return err.Error()
	}
	defer res.Body.Close()
	var state agentState
	if err := json.NewDecoder(res.Body).Decode(&state); err != nil {
		return err.Error()
	}
	letters := make(map[string]bool)
	for _, id := range state.Letters {
		letters[id] = true
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for id := range h.sent {
		if !h.arrived[id] {
			return fmt.Sprintf("sent %s has not arrived, outbox %v", id, state.Outbox)
		}
	}
	for id := range h.confirmed {
		switch {
		case h.bad[id] && !letters[id]:
			return fmt.Sprintf("%s is no dead letter", id)
		case !h.bad[id] && h.acts[id] == 0:
			return fmt.Sprintf("%s is not handled", id)
		}
	}
	if len(state.Outbox) > 0 {
		return fmt.Sprintf("in the outbox: %v", state.Outbox)
	}
	return ""
}

// An agent and its relay are killed, stopped or cut off while four senders push, and the agent queues, pulls, stores and sends. Each
// envelope that either has confirmed is handled, or a dead letter, and each message that the agent has accepted
// arrives. An envelope is handled twice only if it is marked.
func TestAIRAgentKilled(t *testing.T) {
	eachDisturbed(t, func(t *testing.T, p *place, d disturbance) {
		if os.Getenv("FIVEWIRE_LONG") == "" && !strings.HasPrefix(p.name, "sqlite") {
			t.Skip("long form only: set FIVEWIRE_LONG")
		}
		h := &agentHistory{T: t, w: newWorld(t), front: newFront(t), relay: newFront(t), acts: map[string]int{}, arrived: map[string]bool{},
			confirmed: map[string]bool{}, bad: map[string]bool{}, sent: map[string]bool{}}
		sink := httptest.NewServer(h)
		t.Cleanup(sink.Close)
		var err error
		h.peer, err = air.GenerateIdentity("did:wba:agentidentityregistry.org:agents:" + airID(3))
		require.NoError(t, err)
		h.w.registry.Register(h.peer, sink.URL+"/peer")
		h.w.registry.Register(h.w.bob, h.front.URL+"/inbox")
		file := filepath.Join(t.TempDir(), "agent.json")
		require.NoError(t, air.SaveIdentity(file, h.w.bob))
		t.Setenv(agentIdentityEnv, file)
		t.Setenv(agentRegistryEnv, h.w.url)
		t.Setenv(agentSinkEnv, sink.URL)
		mailbox := h.relay.URL + "/inbox/" + h.w.bob.AIRID()
		t.Setenv(agentRelayEnv, mailbox)
		relayPlace := &place{name: "sqlite " + filepath.Join(t.TempDir(), "relay.db")}
		relay := relayPlace.start(t, "relay")
		h.relay.put(relay.address)
		agent := p.start(t, "agent")
		h.front.put(agent.address)
		stop := make(chan struct{})
		var load sync.WaitGroup
		repeat := func(pause time.Duration, f func()) {
			load.Go(func() {
				for {
					select {
					case <-stop:
						return
					default:
						f()
						time.Sleep(pause)
					}
				}
			})
		}
		for i, url := range []string{h.front.URL + "/inbox", h.front.URL + "/inbox", mailbox, mailbox} {
			sender, err := air.GenerateIdentity("did:wba:agentidentityregistry.org:agents:" + airID(10+i))
			require.NoError(t, err)
			h.w.registry.Register(sender, "")
			bodyType, pause := "good", 20*time.Millisecond
			if i%2 == 1 {
				bodyType, pause = "bad", 200*time.Millisecond
			}
			repeat(pause, func() { h.push(sender, url, bodyType) })
		}
		repeat(120*time.Millisecond, h.send)
		rounds := d.rounds(t, 5)
		if os.Getenv("FIVEWIRE_LONG") != "" {
			rounds = d.rounds(t, 20)
		}
		for range rounds {
			time.Sleep(500*time.Millisecond + rand.N(time.Second))
			if !p.isWired { // the engine of the relay has no server
				relay = d.apply(t, relayPlace, relay, "relay")
				h.relay.put(relay.address)
			}
			agent = d.apply(t, p, agent, "agent")
			h.front.put(agent.address)
		}
		time.Sleep(500 * time.Millisecond)
		close(stop)
		load.Wait()
		h.mu.Lock()
		require.NotEmpty(t, h.confirmed)
		require.NotEmpty(t, h.sent)
		accepted := len(h.confirmed) + len(h.sent)
		t.Logf("%d pushes confirmed, %d messages sent", len(h.confirmed), len(h.sent))
		h.mu.Unlock()
		why := ""
		for deadline := time.Now().Add(60 * time.Second); time.Now().Before(deadline); time.Sleep(200 * time.Millisecond) {
			if why = h.state(); why == "" {
				recordService(t, p, "AIR agent", 1, d.name, rounds, accepted)
				return
			}
		}
		t.Fatal(why)
	})
}
