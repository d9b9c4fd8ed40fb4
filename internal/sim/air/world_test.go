// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package air

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/fivewire/fivewire/air"
	"github.com/fivewire/fivewire/air/airtest"
	"github.com/fivewire/fivewire/air/relay"
	"github.com/fivewire/fivewire/conformance/fault"
	"github.com/fivewire/fivewire/internal/sim"
	"github.com/fivewire/fivewire/store"
)

const (
	agents       = 3
	registryAddr = "127.0.0.1:8081"
	relayAddr    = "127.0.0.1:8080"
)

var quiet = slog.New(slog.DiscardHandler)

// A world has a registry, a relay and agents.
type world struct {
	*sim.World
	*model
	broken   defect
	registry airtest.Registry
	relay    *sim.Node
	agents   []*sim.Node

	mu  sync.Mutex
	ids []*air.Identity // guarded by mu
}

// A defect is what a broken variant does.
type defect struct {
	store   func(s store.Store) store.Store
	client  func(rt http.RoundTripper) http.RoundTripper
	handler air.Middleware

	restarts bool // of all agents in the middle, which lose what they remember
	isSilent bool // no Counter is answered
	extraUse int64
}

func newWorld(w *sim.World, d defect) *world {
	w.UseNetwork(fault.Corrupt) // TLS makes it a cut
	v := &world{World: w, model: newModel(w), broken: d}
	w.Bound("M9", func(i sim.Instance) []sim.Use {
		switch p, _ := i.(*process); {
		case p == nil:
			return nil
		case p.relay != nil:
			return sim.Uses(p.relay.Usage(), d.extraUse)
		default:
			return sim.Uses(p.Inbox.Usage(), d.extraUse)
		}
	})
	for i := range agents {
		id, err := air.GenerateIdentity(airtest.DID(fmt.Sprintf("AIR-TEST-0000-%04d", i)))
		if err != nil {
			w.Failf("start", "", "%v", err)
		}
		v.ids = append(v.ids, id)
		v.registry.Register(id, v.endpoint(i, id))
	}
	w.Node("registry", func(v2 *sim.View) (sim.Instance, error) {
		end, err := v2.Serve(registryAddr, &v.registry)
		return closer(end), err
	})
	v.relay = w.Node("relay", v.startRelay)
	for i := range agents {
		_ = w.Sleep(context.Background(), 123_456_789)
		v.agents = append(v.agents, w.Node(fmt.Sprint("agent", i), func(v2 *sim.View) (sim.Instance, error) { return v.start(v2, i) }))
	}
	return v
}

// closer is the instance of a node without a state.
type closer func()

func (c closer) Close() { c() }

// directAddrs are the addresses of the agents that receive pushes.
var directAddrs = [agents]string{1: "127.0.0.1:8083", 2: "127.0.0.1:8082"}

// isDirect reports whether an agent receives pushes and has no mailbox: in some worlds the last two agents, else the last one.
func (w *world) isDirect(i int) bool {
	return i == agents-1 || i == agents-2 && w.hash(3, "direct") == 0
}

func (w *world) endpoint(i int, id *air.Identity) string {
	if w.isDirect(i) {
		return "http://" + directAddrs[i] + "/"
	}
	return "http://" + relayAddr + "/inbox/" + id.AIRID()
}

func (w *world) identity(i int) *air.Identity {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.ids[i]
}

// A process is one start of an agent or of the relay.
type process struct {
	*sim.View
	*air.Agent
	relay *relay.Server
	end   []func()
}

func (p *process) Close() {
	if p.Agent != nil {
		_ = p.Agent.Close()
	}
	if p.relay != nil {
		_ = p.relay.Close()
	}
	for _, f := range p.end {
		f()
	}
}

// use returns a resolver and a client over the network of a process.
func (w *world) use(p *process) (*air.Resolver, *http.Client, error) {
	doubled, closeDoubled := p.View.Transport(true)
	plain, closePlain := p.View.Transport(false)
	p.end = append(p.end, closeDoubled, closePlain)
	var rt http.RoundTripper = &split{doubled, plain}
	if w.hash(2, "reordered") == 0 {
		rt = w.reordered(rt)
	}
	if w.hash(4, "forgetful") == 0 {
		rt = w.forgetful(rt)
	}
	rt = paged(rt, func(envelopes []json.RawMessage) []json.RawMessage {
		w.pulled(p.Node.Name(), envelopes)
		return envelopes
	})
	if w.broken.client != nil {
		rt = w.broken.client(rt)
	}
	c := &http.Client{Transport: rt}
	r, err := air.NewResolver(&air.ResolverOptions{RegistryURL: "http://" + registryAddr, HTTPClient: c, AllowLoopback: true, Logger: quiet})
	return r, c, err
}

// A split transport doubles no push to an agent: the second copy is a replay, and a sender takes that as the answer
// to its first attempt for a refusal (AIR-D46).
type split struct{ doubled, plain http.RoundTripper }

func (s *split) RoundTrip(r *http.Request) (*http.Response, error) {
	if slices.Contains(directAddrs[1:], r.URL.Host) {
		return s.plain.RoundTrip(r)
	}
	return s.doubled.RoundTrip(r)
}

// reordered changes the order of the envelopes of each pulled page, and withholds one of four for 20 seconds, as a relay
// may, until the end of the faults.
func (w *world) reordered(rt http.RoundTripper) http.RoundTripper {
	return paged(rt, func(envelopes []json.RawMessage) []json.RawMessage {
		if w.IsCalm() {
			return envelopes
		}
		now := time.Now().Truncate(20 * time.Second)
		envelopes = slices.DeleteFunc(envelopes, func(e json.RawMessage) bool { return w.hash(4, "withheld", string(e), now) == 0 })
		slices.SortStableFunc(envelopes, func(a, b json.RawMessage) int {
			return w.hash(1000, string(a), now) - w.hash(1000, string(b), now)
		})
		return envelopes
	})
}

// paged changes the envelopes of pulled pages.
func paged(rt http.RoundTripper, change func(envelopes []json.RawMessage) []json.RawMessage) http.RoundTripper {
	return tripper(func(r *http.Request) (*http.Response, error) {
		res, err := rt.RoundTrip(r)
		if err != nil || res.StatusCode != http.StatusOK || !strings.HasSuffix(r.URL.Path, "/pull") {
			return res, err
		}
		data, err := io.ReadAll(res.Body)
		_ = res.Body.Close()
		var page struct {
			Envelopes []json.RawMessage `json:"envelopes"`
			Cursor    string            `json:"cursor"`
			HasMore   bool              `json:"has_more"`
		}
		if err == nil && json.Unmarshal(data, &page) == nil {
			page.Envelopes = change(page.Envelopes)
			data, _ = json.Marshal(page)
		}
		res.Body, res.ContentLength = io.NopCloser(bytes.NewReader(data)), int64(len(data))
		res.Header.Del("Content-Length")
		return res, err
	})
}

func (w *world) storeOf(v *sim.View) store.Store {
	if w.broken.store != nil {
		return w.broken.store(v.Store)
	}
	return v.Store
}

func (w *world) startRelay(v *sim.View) (sim.Instance, error) {
	p := &process{View: v}
	r, _, err := w.use(p)
	if err != nil {
		return nil, err
	}
	p.relay, err = relay.NewServer(&relay.ServerOptions{AnyRecipient: true, Logger: quiet, ClientAddr: address,
		Auth:        relay.Auth{AllowAnonymousPush: true, Resolver: r},
		Persistence: relay.Persistence{Store: w.storeOf(v)}})
	if err != nil {
		return nil, err
	}
	end, err := v.Serve(relayAddr, p.relay)
	if err != nil {
		p.Close()
		return nil, err
	}
	p.end = append(p.end, end)
	return p, nil
}

func address(*http.Request) string { return "192.0.2.1" }

// start starts an agent.
func (w *world) start(v *sim.View, i int) (sim.Instance, error) {
	p := &process{View: v}
	r, c, err := w.use(p)
	if err != nil {
		return nil, err
	}
	var h air.Handler = air.HandlerFunc(func(ctx context.Context, d *air.Delivery) error { return w.serve(ctx, p, d) })
	if w.broken.handler != nil {
		h = w.broken.handler(h)
	}
	p.Agent, err = air.NewAgent(w.identity(i), h, &air.AgentOptions{
		Interceptors: []air.Interceptor{w.noted(i)},
		Resolver:     r, HTTPClient: c, BodyTypes: []string{noteType}, Logger: quiet,
		Direct: w.isDirect(i), Limits: air.Limits{MaxAttempts: 6}, Persistence: air.Persistence{Store: w.storeOf(v), InstanceID: v.InstanceID()}, Timing: air.Timing{MaxPullAge: 24 * time.Hour, ResendEvery: 20 * time.Second},
		PublishKey: func(_ context.Context, next *air.Identity) error {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.ids[i] = next
			w.rotate(next.DID())
			w.registry.Register(next, w.endpoint(i, next))
			return nil
		},
		OnOutcome: func(_ context.Context, o *air.ReceiveResult) { w.outcome(p.Node.Name(), o) },
	})
	if err != nil {
		return nil, err
	}
	if w.isDirect(i) {
		end, err := v.Serve(directAddrs[i], p.Handler())
		if err != nil {
			p.Close()
			return nil, err
		}
		p.end = append(p.end, end)
	}
	go w.run(p)
	return p, nil
}

// run runs an agent again after permanent failures, such as a registry that does not have the agent.
func (w *world) run(p *process) {
	for {
		if err := p.Run(context.Background()); errors.Is(err, air.ErrClosed) {
			return
		}
		_ = w.Sleep(p.Context, time.Second)
	}
}

// noted gives each message of an agent its id, and notes it before it is sent.
func (w *world) noted(i int) air.Interceptor {
	return func(send air.SendFunc) air.SendFunc {
		return func(ctx context.Context, draft *air.Draft, opts *air.SendOptions) (*air.Receipt, error) {
			d := *draft
			d.ID = cmp.Or(d.ID, air.NewID())
			w.make(w.identity(i).DID(), &d)
			return send(ctx, &d, opts)
		}
	}
}

// slowTimes are longer than PushWait, and than HandlerTimeout.
var slowTimes = []time.Duration{20 * time.Second, 70 * time.Second}

var errHandler = errors.New("handler failed")

// serve is the handler of all agents. In the time of the faults it fails now and then. It answers an Offer by a
// Counter, and that by an Accept.
func (w *world) serve(ctx context.Context, p *process, d *air.Delivery) error {
	name, id := p.Node.Name(), d.Envelope.ID
	w.CheckBounds()
	kind := w.called(name, d)
	err := w.answer(ctx, p, d, kind)
	w.Event(name, "handled", id, fmt.Sprint(err == nil))
	if !p.IsCrashed() && (err == nil || kind == kindReject) {
		w.finished(id, err == nil)
	}
	return err
}

// isNaive reports whether the handlers return the errors of their answers.
func (w *world) isNaive() bool { return w.hash(2, "naive") == 0 }

func (w *world) answer(ctx context.Context, p *process, d *air.Delivery, kind kind) (err error) {
	if kind == kindReject {
		return air.Reject(air.ErrBadRequest, "not wanted")
	}
	if !w.IsCalm() {
		switch kind {
		case kindFail:
			return errHandler
		case kindPanic:
			panic("handler")
		case kindSlow:
			_ = w.Sleep(context.Background(), slowTimes[w.hash(2, d.Envelope.ID)])
		case kindRemote:
			return &air.Error{Code: air.ErrUnauthorized, Remote: true}
		}
	}
	offer, isOffer := d.Body.(*air.Offer)
	isHopeless := isOffer && offer.Description == hopeless && !w.redelivers()
	if isHopeless || p.IsCrashed() || ctx.Err() != nil {
		return errHandler
	}
	n := p.NewNegotiation(d.Envelope.From, d.Envelope.ThreadID, false)
	switch b := d.Body.(type) {
	case *air.Offer:
		if b.Description != "" {
			return nil
		}
		_, err = n.Counter(ctx, "less", b.Price, time.Now().Add(24*time.Hour))
	case *air.Counter:
		if w.broken.isSilent {
			return nil
		}
		_, err = n.Accept(ctx)
	}
	if w.isNaive() {
		return err
	}
	if errors.Is(err, air.ErrDeliveryFailed) && !p.IsCrashed() || errors.Is(err, air.ErrConflict) ||
		errors.Is(err, air.ErrNotYourMove) || errors.Is(err, air.ErrThreadClosed) {
		return nil // queued, or answered before
	}
	return err
}
