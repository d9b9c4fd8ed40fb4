// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package a2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fivewire/fivewire/a2e"
	"github.com/fivewire/fivewire/a2e/memory"
	"github.com/fivewire/fivewire/a2e/tools"
	"github.com/fivewire/fivewire/conformance/fault"
	"github.com/fivewire/fivewire/internal/sim"
	"github.com/fivewire/fivewire/store"
)

const (
	hosts     = 2
	agents    = 3
	perAgent  = 4 // handlers of a session at once
	eventsOf  = 5 // of one call of the tool count
	agentHost = "http://a2e.test"
	leaseTTL  = 5 * time.Second
)

var quiet = slog.New(slog.DiscardHandler)

// errDown is the error of a call from an agent that has crashed.
var errDown = errors.New("agent is down")

// A world has hosts that share a store, and agents whose requests go to the hosts in turn.
type world struct {
	*sim.World
	*model
	broken defect
	hosts  []*sim.Node
	agents []*sim.Node
}

// A defect is what a broken variant does.
type defect struct {
	store func(s store.Store) store.Store
	count func(call *a2e.Call) error
	work  func(ctx context.Context, w *world, id string) error
	hang  func(w *world)
	call  a2e.Interceptor
	limit int64 // of the handlers of a session; zero for the default

	hasStoreErrors bool
	forgets        bool // the first note of a snapshot
	extraUse       int64
}

// storeErrors are the faults after which a change of the store is in doubt or was not made.
var storeErrors = []fault.Action{
	fault.ErrorBefore, fault.ErrorAfter, fault.LandLater, fault.Hang, fault.Full, fault.Conflict,
}

func newWorld(w *sim.World, d defect) *world {
	except := []fault.Action{fault.Corrupt} // TLS makes it a cut
	if !d.hasStoreErrors {
		except = append(except, storeErrors...)
	}
	w.UseNetwork(except...)
	v := &world{World: w, model: newModel(w), broken: d}
	w.Bound("E9", func(i sim.Instance) []sim.Use {
		if p, ok := i.(*process); ok {
			return sim.Uses(p.host.Usage(), d.extraUse)
		}
		return nil
	})
	for i := range hosts {
		v.hosts = append(v.hosts, w.Node(fmt.Sprint("h", i), v.startHost))
		_ = w.Sleep(context.Background(), 123_456_789)
	}
	for i := range agents {
		v.agents = append(v.agents, w.Node(fmt.Sprint("c", i), v.startAgent))
	}
	return v
}

// A process is one start of a host.
type process struct {
	host *a2e.Host
	end  []func()
}

func (p *process) Close() {
	for _, f := range p.end {
		f()
	}
}

func (w *world) startHost(v *sim.View) (sim.Instance, error) {
	db := v.Store
	if w.broken.store != nil {
		db = w.broken.store(db)
	}
	set, err := tools.NewSet(nil)
	if err != nil {
		return nil, err
	}
	id := []tools.Parameter{{Name: "id", Type: "string", Required: true}}
	for name, run := range map[string]func(ctx context.Context, call *a2e.Call, id string) (any, error){
		"work": w.serveWork, "count": w.serveCount, "wait": w.serveWait,
	} {
		set.Add(tools.Tool{Definition: tools.Definition{Name: name, InputParameters: id},
			Run: func(ctx context.Context, call *a2e.Call, arguments json.RawMessage) (any, error) {
				var in struct{ ID string }
				if err := json.Unmarshal(arguments, &in); err != nil {
					return nil, err
				}
				if v.IsCrashed() {
					return nil, errDown
				}
				defer w.running(call.Session.ID(), name)()
				w.CheckBounds()
				return run(ctx, call, in.ID)
			}})
	}
	plugin, err := memory.NewPlugin(&memory.Options{Store: store.Sub(db, "memory/")})
	if err != nil {
		return nil, err
	}
	o := &a2e.HostOptions{Auth: a2e.Auth{AllowAnonymous: true}, Logger: quiet,
		Limits:      a2e.Limits{MaxConcurrentPerSession: w.broken.limit},
		Persistence: a2e.Persistence{Store: store.Sub(db, "a2e/"), InstanceID: v.InstanceID(), LeaseTTL: leaseTTL}}
	w.keepNotes(o, db)
	h, err := a2e.NewHost(o)
	if err != nil {
		return nil, err
	}
	p := &process{host: h, end: []func(){func() { _ = h.Close() }}}
	x, err := a2e.NewHTTPHandler(h.AddPlugin(set.Plugin()).AddPlugin(plugin).AddPlugin(w.notePlugin()), nil)
	if err == nil {
		var end func()
		end, err = v.Serve(v.Node.Name()+":80", x)
		p.end = append(p.end, end)
	}
	if err != nil {
		p.end = p.end[:1]
		p.Close()
		return nil, err
	}
	return p, nil
}

func (w *world) serveWork(ctx context.Context, _ *a2e.Call, id string) (any, error) {
	run := w.ran(id)
	if w.broken.work != nil {
		return nil, w.broken.work(ctx, w, id)
	}
	if err := w.Sleep(ctx, time.Duration(run%5)*400*time.Millisecond); err != nil {
		return nil, err
	}
	return json.RawMessage(fmt.Sprintf(`{"id":%q}`, id)), nil
}

// serveCount sends events with the numbers below eventsOf.
func (w *world) serveCount(ctx context.Context, call *a2e.Call, id string) (any, error) {
	w.ran(id)
	if w.broken.count != nil {
		return nil, w.broken.count(call)
	}
	for i := range eventsOf {
		if err := call.Emit("progress", map[string]int{"n": i}); err != nil {
			return nil, err
		}
		if err := w.Sleep(ctx, 150*time.Millisecond); err != nil {
			return nil, err
		}
	}
	return json.RawMessage(fmt.Sprintf(`{"id":%q}`, id)), nil
}

// serveWait runs until the end of the call.
func (w *world) serveWait(ctx context.Context, _ *a2e.Call, _ string) (any, error) {
	if w.broken.hang != nil {
		w.broken.hang(w)
		return nil, nil
	}
	<-ctx.Done()
	return nil, ctx.Err()
}

// An agent is one start of an agent, whose session survives the hosts. Its methods are for one goroutine.
type agent struct {
	w      *world
	view   *sim.View
	rt     http.RoundTripper
	end    func()
	mu     sync.Mutex  // guards client against Close, which runs during an operation
	client *a2e.Client // nil: not connected
	tools  *tools.Client
	memory *memory.Client
}

func (w *world) startAgent(v *sim.View) (sim.Instance, error) {
	rt, end := v.Transport(true)
	return &agent{w: w, view: v, rt: &balancer{next: rt}, end: end}, nil
}

func (a *agent) Close() {
	a.mu.Lock()
	c := a.client
	a.mu.Unlock()
	if c != nil {
		_ = c.Close()
	}
	a.end()
}

// A balancer sends each request to the next host.
type balancer struct {
	next  http.RoundTripper
	count atomic.Int64
}

func (b *balancer) RoundTrip(r *http.Request) (*http.Response, error) {
	own := r.Clone(r.Context())
	own.Host = r.URL.Host
	own.URL.Host = fmt.Sprintf("h%d:80", b.count.Add(1)%hosts)
	return b.next.RoundTrip(own)
}

// connect makes a session unless there is one.
func (a *agent) connect(ctx context.Context) error {
	if a.client != nil {
		select {
		case <-a.client.Done():
			a.w.noteEnd(a.client.SessionID(), a.view.IsCrashed())
			_ = a.client.Close()
		default:
			return nil
		}
	}
	rw, err := a2e.DialHTTP(ctx, agentHost, &a2e.HTTPDialOptions{AllowInsecure: true, HTTPClient: &http.Client{Transport: a.rt}, Logger: quiet})
	if err != nil {
		return err
	}
	opts := &a2e.ClientOptions{AgentID: a.view.Node.Name(), Capabilities: []string{tools.Capability, memory.Capability, "notes"},
		Types: slices.Concat(tools.Types(), memory.Types(), noteTypes()), Logger: quiet}
	if a.w.broken.call != nil {
		opts.Interceptors = []a2e.Interceptor{a.w.broken.call}
	}
	c, err := a2e.NewClient(rw, opts)
	if err == nil {
		_, err = c.Connect(ctx)
	}
	if err == nil {
		a.tools, err = tools.NewClient(c)
	}
	if err == nil {
		a.memory, err = memory.NewClient(c)
	}
	if err != nil {
		_ = c.Close()
		c = nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.client = c
	return err
}

// agent returns the running agent of a number, or nil.
func (w *world) agent(n int) *agent {
	a, _ := w.agents[n%len(w.agents)].Instance().(*agent)
	return a
}
