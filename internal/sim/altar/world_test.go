// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package altar

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/fivewire/fivewire/altar"
	"github.com/fivewire/fivewire/conformance/fault"
	"github.com/fivewire/fivewire/internal/sim"
	"github.com/fivewire/fivewire/store"
)

const (
	hosts    = 3
	runtimes = 2
	callers  = 2

	longStream = 50 // payloads
	resultTTL  = 10 * time.Minute
)

const manifest = `{"contracts":[
	{"name":"once","parameters":[{"name":"key","type":"string","required":true}]},
	{"name":"again","idempotent":true,"parameters":[{"name":"key","type":"string","required":true}]},
	{"name":"count","streaming":true,"parameters":[{"name":"key","type":"string","required":true},
		{"name":"n","type":"integer","required":true}]}]}`

var quiet = slog.New(slog.DiscardHandler)

// errDown is the error of a call from a client that has crashed.
var errDown = errors.New("client is down")

// A world has three Hosts that share a store, two Runtimes and two clients, each connected to every Host.
type world struct {
	*sim.World
	*model
	broken  defect
	variety variety
	callers []*sim.Node
	hosts   []*sim.Node

	runtimes []*sim.Node
}

// A defect is what a broken variant does.
type defect struct {
	store  func(s store.Store, w *world) store.Store
	result func(call *altar.ToolCall, w *world) (any, error)
	stream func(out *altar.ChunkWriter, n int) error

	hasStoreErrors  bool
	isOnePrincipal  bool // all clients are alice
	ignoresDeadline bool // of the context of a call
	extraUse        int64
	extraTTL        time.Duration
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
	v := &world{World: w, model: newModel(w), broken: d, variety: newVariety(w.Seed())}
	w.Bound("A9", func(i sim.Instance) []sim.Use {
		if p, ok := i.(*process); ok && p.host != nil {
			return sim.Uses(p.host.Usage(), d.extraUse)
		}
		return nil
	})
	for i := range hosts {
		v.hosts = append(v.hosts, w.Node(fmt.Sprint("h", i), v.startHost))
		_ = w.Sleep(context.Background(), 123_456_789)
	}
	for i := range runtimes {
		v.runtimes = append(v.runtimes, w.Node(fmt.Sprint("r", i), v.startRuntime))
	}
	for i := range callers {
		v.callers = append(v.callers, w.Node(fmt.Sprint("c", i), startCaller))
	}
	return v
}

// A process is one start of a node. Its goroutines end after cancel.
type process struct {
	host *altar.Host
	end  []func()
	wg   sync.WaitGroup
}

func (p *process) Close() {
	for _, f := range p.end {
		f()
	}
	p.wg.Wait()
}

// startHost starts a Host that listens at NAME:PRINCIPAL for each principal.
func (w *world) startHost(v *sim.View) (sim.Instance, error) {
	m, err := altar.DecodeManifest([]byte(manifest))
	if err != nil {
		return nil, err
	}
	db := v.Store
	if w.broken.store != nil {
		db = w.broken.store(db, w)
	}
	o := &altar.HostOptions{
		ID: v.Node.Name(), Auth: altar.Auth{Authorizer: altar.AuthorizerFunc(altar.AllowAll), AllowAnonymous: true},
		Persistence: altar.Persistence{Store: db, ResultTTL: resultTTL + w.broken.extraTTL}, Logger: quiet,
	}
	w.variety.adjust(o)
	h, err := altar.NewHost(m, o)
	if err != nil {
		return nil, err
	}
	p := &process{host: h, end: []func(){func() { _ = h.Close() }}}
	for _, id := range []string{"tools", "alice", "bob"} {
		l, err := v.Listen(v.Node.Name() + ":" + id)
		if err != nil {
			p.Close()
			return nil, err
		}
		p.end = append(p.end, func() { _ = l.Close() })
		if id == "bob" && w.broken.isOnePrincipal {
			id = "alice"
		}
		p.wg.Go(func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				p.wg.Go(func() {
					conn := altar.NewStreamConn(c, nil)
					if id == "tools" {
						conn = &watched{Conn: conn, w: w, name: v.Node.Name(), received: w.Now()}
					}
					_ = h.Serve(v.Context, conn, &altar.Principal{ID: id})
				})
			}
		})
	}
	return p, nil
}

// dial returns the way of a node to a Host as a principal.
func dial(v *sim.View, host int, principal string) altar.Dialer {
	return func(ctx context.Context) (altar.Conn, error) {
		c, err := v.Dial(ctx, "", fmt.Sprintf("h%d:%s", host, principal))
		if err != nil {
			return nil, err
		}
		return altar.NewStreamConn(c, nil), nil
	}
}

// startRuntime starts a Runtime process, with an id for each Host.
func (w *world) startRuntime(v *sim.View) (sim.Instance, error) {
	ctx, cancel := context.WithCancel(context.Background())
	p := &process{end: []func(){cancel}}
	for i := range hosts {
		o := &altar.RuntimeOptions{
			Logger: quiet, Retry: &altar.RetryPolicy{Max: 2 * time.Second}, Timing: altar.RuntimeTiming{DrainTimeout: time.Second},
		}
		w.variety.adjustRuntime(o)
		name := fmt.Sprintf("%s-h%d", v.Node.Name(), i)
		rt, err := altar.NewRuntime(name, o)
		if err != nil {
			p.Close()
			return nil, err
		}
		rt.Handle("once", altar.HandlerFunc(w.serveCall))
		rt.Handle("again", altar.HandlerFunc(w.serveCall))
		rt.HandleStream("count", altar.StreamHandlerFunc(w.serveStream))
		dialer := dial(v, i, "tools")
		if w.variety.isDisordered {
			dialer = w.disordered(name, dialer)
		}
		p.wg.Go(func() { _ = rt.RunWithReconnect(ctx, dialer) })
	}
	return p, nil
}

func (w *world) disordered(name string, next altar.Dialer) altar.Dialer {
	return func(ctx context.Context) (altar.Conn, error) {
		c, err := next(ctx)
		if err != nil {
			return nil, err
		}
		return &disordered{Conn: c, w: w.World, name: name}, nil
	}
}

// serveCall takes up to two seconds. Its result names the run.
func (w *world) serveCall(ctx context.Context, call *altar.ToolCall) (any, error) {
	run := w.ran(call.InvocationID)
	w.CheckBounds()
	if w.broken.result != nil {
		return w.broken.result(call, w)
	}
	if err := w.Sleep(ctx, time.Duration(w.number()%5)*500*time.Millisecond); err != nil {
		return nil, err
	}
	return fmt.Sprintf("%s run %d", call.InvocationID, run), nil
}

// serveStream sends the numbers below n.
func (w *world) serveStream(ctx context.Context, call *altar.ToolCall, out *altar.ChunkWriter) error {
	w.ran(call.InvocationID)
	w.CheckBounds()
	var in struct {
		N int `json:"n"`
	}
	if err := call.Decode(&in); err != nil {
		return err
	}
	if w.broken.stream != nil {
		return w.broken.stream(out, in.N)
	}
	for i := range in.N {
		if err := out.Send(payload(i, in.N)); err != nil {
			return err
		}
		if err := w.Sleep(ctx, time.Duration(i%4*8/max(8, in.N))*100*time.Millisecond); err != nil {
			return err
		}
	}
	return nil
}

// payload returns a payload of a stream of n: its number, or in a long stream a long text that begins with it.
func payload(i, n int) any {
	if n < longStream {
		return i
	}
	return fmt.Sprintf("%d %01000d", i, 0)
}

// A caller is one start of a client, with a connection to each Host for each principal.
type caller struct{ alice, bob []*altar.Client }

func (c *caller) Close() {
	for _, client := range append(c.alice, c.bob...) {
		_ = client.Close()
	}
}

func startCaller(v *sim.View) (sim.Instance, error) {
	c := &caller{}
	for i := range hosts {
		for _, p := range []string{"alice", "bob"} {
			client, err := altar.NewClient(dial(v, i, p), &altar.ClientOptions{Logger: quiet, DialTimeout: 5 * time.Second})
			if err != nil {
				c.Close()
				return nil, err
			}
			if p == "alice" {
				c.alice = append(c.alice, client)
			} else {
				c.bob = append(c.bob, client)
			}
		}
	}
	return c, nil
}

// caller returns the running client of a number, or nil.
func (w *world) caller(n int) *caller {
	c, _ := w.callers[n%len(w.callers)].Instance().(*caller)
	return c
}

// text decodes a JSON string.
func text(raw json.RawMessage) string {
	var s string
	_ = json.Unmarshal(raw, &s)
	return s
}
