// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package natsroute_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/altar"
	"github.com/fivewire/fivewire/altar/natsroute"
	"github.com/fivewire/fivewire/conformance/fault"
	"github.com/fivewire/fivewire/store"
)

const rollingManifest = `{"contracts":[
	{"name":"once","parameters":[{"name":"key","type":"string","required":true},{"name":"ms","type":"integer","required":true}]},
	{"name":"again","idempotent":true,"parameters":[{"name":"key","type":"string","required":true},{"name":"ms","type":"integer","required":true}]},
	{"name":"chunks","streaming":true,"parameters":[{"name":"key","type":"string","required":true},{"name":"ms","type":"integer","required":true}]}]}`

const chunksOfStream = 20

var quiet = slog.New(slog.DiscardHandler)

type rollingIn struct {
	Key string `json:"key"`
	MS  int64  `json:"ms"`
}

// A balancer is one address for all Hosts: it connects to those that accept connections, in turn.
type balancer struct {
	l  net.Listener
	wg sync.WaitGroup

	mu     sync.Mutex
	hosts  []string          // addresses; guarded by mu
	next   int               // guarded by mu
	places map[string]string // address of the Host by that of the other side; guarded by mu
}

func newBalancer(t *testing.T) *balancer {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	b := &balancer{l: l, places: make(map[string]string)}
	b.wg.Go(func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			b.wg.Go(func() { b.serve(in) })
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		b.wg.Wait()
	})
	return b
}

// order returns the addresses of the Hosts, the next one first.
func (b *balancer) order() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.hosts) == 0 {
		return nil
	}
	b.next = (b.next + 1) % len(b.hosts)
	return append(slices.Clone(b.hosts[b.next:]), b.hosts[:b.next]...)
}

func (b *balancer) add(addr string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.hosts = append(b.hosts, addr)
}

func (b *balancer) remove(addr string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.hosts = slices.DeleteFunc(b.hosts, func(h string) bool { return h == addr })
}

func (b *balancer) serve(in net.Conn) {
	defer func() { _ = in.Close() }()
	for _, addr := range b.order() {
		out, err := net.DialTimeout("tcp", addr, time.Second)
		if err == nil {
			b.mu.Lock()
			b.places[in.RemoteAddr().String()] = addr
			b.mu.Unlock()
			join(in, out)
			return
		}
	}
}

// A place is the last connection of a peer to the balancer.
type place struct{ addr atomic.Value }

// isAt reports whether the last connection of a peer goes to a Host.
func (b *balancer) isAt(p *place, host string) bool {
	addr, _ := p.addr.Load().(string)
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.places[addr] == host
}

// join copies between two connections until either ends.
func join(a, b net.Conn) {
	var wg sync.WaitGroup
	for from, to := range map[net.Conn]net.Conn{a: b, b: a} {
		wg.Go(func() {
			buf := make([]byte, 32<<10)
			for {
				n, err := from.Read(buf)
				if _, wrong := to.Write(buf[:n]); wrong != nil || err != nil {
					break
				}
			}
			_, _ = a.Close(), b.Close()
		})
	}
	wg.Wait()
}

// A fleet is a set of Hosts on one store behind a balancer, with two Runtimes and their callers. The Hosts forward calls
// over one Cluster, or over the store.
type fleet struct {
	t        *testing.T
	url      string // of NATS; empty means over the store
	store    store.Store
	lease    time.Duration
	balancer *balancer
	hosts    map[string]*replica
	runtimes map[string]*replica

	mayLose bool // a session that is being made may be lost

	calls atomic.Int64

	mu      sync.Mutex
	runs    map[string]int         // of calls by key; guarded by mu
	at      map[string]string      // Runtime of each call; guarded by mu
	running map[string]runningCall // calls in flight, by key; guarded by mu
	met     map[string]bool        // calls that a kill has met; guarded by mu
	killed  []time.Time            // guarded by mu
	fails   []failure              // guarded by mu
}

// unnoticed is the time in which Hosts may send calls to a killed process.
const unnoticed = 5 * time.Second

// isMet reports whether a kill has met a call: one that was running, or that a Host has sent to the killed process
// before it noticed.
func (f *fleet) isMet(e *failure) bool {
	return f.met[e.key] || f.runs[e.key] == 0 && slices.ContainsFunc(f.killed, func(at time.Time) bool {
		return e.began.After(at) && e.began.Before(at.Add(unnoticed))
	})
}

// lastKill returns the time of the last kill before a time.
func (f *fleet) lastKill(before time.Time) (last time.Time) {
	for _, at := range f.killed {
		if at.Before(before) {
			last = at
		}
	}
	return last
}

// awaitMet waits until the calls that the last kill has met have ended: they are repeated only once (ALT-D24).
func (f *fleet) awaitMet() {
	f.t.Helper()
	require.Eventually(f.t, func() bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		end := f.killed[len(f.killed)-1].Add(unnoticed)
		for key, r := range f.running {
			if f.met[key] || r.began.Before(end) {
				return false
			}
		}
		return time.Now().After(end)
	}, time.Minute, time.Millisecond)
}

// A runningCall is a call in flight.
type runningCall struct {
	place *place // of the caller
	began time.Time
}

type failure struct {
	key   string
	err   error
	took  time.Duration
	began time.Time
}

// A replica is one process: stop ends it in order, kill does not.
type replica struct {
	stop, kill func()
	addr       string // of a Host
	place      *place // of a Runtime
}

// overBoth runs a test with Hosts that forward calls over NATS, and over their store.
func overBoth(t *testing.T, lease time.Duration, test func(t *testing.T, f *fleet)) {
	t.Run("NATS", func(t *testing.T) { test(t, newFleet(t, startServer(t).ClientURL(), lease)) })
	t.Run("store", func(t *testing.T) { test(t, newFleet(t, "", lease)) })
}

func newFleet(t *testing.T, url string, lease time.Duration) *fleet {
	f := &fleet{t: t, url: url, store: store.NewMemory(), lease: lease, balancer: newBalancer(t),
		hosts: make(map[string]*replica), runtimes: make(map[string]*replica), runs: make(map[string]int),
		at: make(map[string]string), running: make(map[string]runningCall), met: make(map[string]bool)}
	for _, id := range []string{"a", "b", "c"} {
		f.startHost(id)
	}
	for _, id := range []string{"r1", "r2"} {
		f.startRuntime(id)
	}
	return f
}

type dialerFunc func(network, address string) (net.Conn, error)

// Dial implements [nats.CustomDialer].
func (f dialerFunc) Dial(network, address string) (net.Conn, error) { return f(network, address) }

// connect adds the Cluster of a Host to its options, and returns the function that ends it.
func (f *fleet) connect(o *altar.HostOptions, plan *fault.Plan) (end func()) {
	if f.url == "" {
		return func() {}
	}
	t, dial := f.t, fault.Dialer(nil, plan)
	nc, err := nats.Connect(f.url, nats.MaxReconnects(-1), nats.ReconnectWait(20*time.Millisecond), nats.IgnoreDiscoveredServers(),
		nats.SetCustomDialer(dialerFunc(func(network, address string) (net.Conn, error) { return dial(context.Background(), network, address) })))
	require.NoError(t, err)
	cluster, err := natsroute.NewCluster(nc, &natsroute.Options{Logger: quiet})
	require.NoError(t, err)
	o.Cluster = cluster
	return func() {
		if err := cluster.Close(); err != nil {
			t.Errorf("cluster of %s: %v", o.ID, err)
		}
		nc.Close()
	}
}

func (f *fleet) startHost(id string) {
	t, plan := f.t, &fault.Plan{}
	m, err := altar.DecodeManifest([]byte(rollingManifest))
	require.NoError(t, err)
	o := &altar.HostOptions{ID: id, Logger: quiet,
		Auth: altar.Auth{Authorizer: altar.AuthorizerFunc(altar.AllowAll), Authenticator: altar.AuthenticatorFunc(func(r *http.Request) (*altar.Principal, error) {
			return &altar.Principal{ID: r.Header.Get(altar.APIKeyHeader)}, nil
		})},
		// A Runtime comes back after 20 other calls, which may take longer than the default on a slow machine.
		Timing:      altar.Timing{RuntimeGracePeriod: 30 * time.Second},
		Persistence: altar.Persistence{Store: fault.Store(f.store, plan), LeaseTTL: f.lease}}
	disconnect := f.connect(o, plan)
	h, err := altar.NewHost(m, o)
	require.NoError(t, err)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	addr := l.Addr().String()
	srv := &http.Server{Handler: h, ReadHeaderTimeout: 10 * time.Second, ErrorLog: slog.NewLogLogger(slog.DiscardHandler, 0)}
	served := make(chan error, 1)
	go func() { served <- srv.Serve(fault.Listener(l, plan)) }()
	f.balancer.add(addr)

	var end sync.Once
	finish := func(isOrderly bool) {
		end.Do(func() {
			ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
			defer cancel()
			if isOrderly { // the balancer still connects to it: it refuses
				if err := h.Shutdown(ctx); err != nil {
					t.Errorf("shutdown of %s: %v", id, err)
				}
			}
			f.balancer.remove(addr)
			_ = srv.Close()
			<-served
			_ = h.Close()
			disconnect()
		})
	}
	r := &replica{stop: func() { finish(true) }, addr: addr}
	r.kill = func() {
		plan.Crash()
		f.balancer.remove(addr)
		_ = l.Close()
	}
	t.Cleanup(func() { finish(false) })
	f.hosts[id] = r
}

// dial connects to a Host through the balancer.
func (f *fleet) dial(principal string, p *place, plan *fault.Plan) altar.Dialer {
	dial := fault.Dialer(nil, plan)
	client := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
		c, err := dial(ctx, network, address)
		if err == nil {
			p.addr.Store(c.LocalAddr().String())
		}
		return c, err
	}}}
	return func(ctx context.Context) (altar.Conn, error) {
		return altar.DialWebSocket(ctx, "ws://"+f.balancer.l.Addr().String(), &altar.WebSocketDialOptions{
			HTTPClient: client, Header: http.Header{altar.APIKeyHeader: {principal}}})
	}
}

func (f *fleet) startRuntime(id string) {
	plan, p := &fault.Plan{}, &place{}
	rt := must(altar.NewRuntime(id, &altar.RuntimeOptions{Logger: quiet}))
	run := func(ctx context.Context, in rollingIn, steps int, each func(i int) error) error {
		f.mu.Lock()
		f.runs[in.Key]++
		f.at[in.Key] = id
		f.mu.Unlock()
		for i := range steps {
			select {
			case <-time.After(time.Duration(in.MS) * time.Millisecond / time.Duration(steps)):
			case <-ctx.Done():
				return ctx.Err()
			}
			if err := each(i); err != nil {
				return err
			}
		}
		return nil
	}
	for _, name := range []string{"once", "again"} {
		altar.AddTool(rt, name, func(ctx context.Context, in rollingIn) (string, error) {
			return in.Key, run(ctx, in, 1, func(int) error { return nil })
		})
	}
	altar.AddStreamTool(rt, "chunks", func(ctx context.Context, in rollingIn, out *altar.ChunkWriter) error {
		return run(ctx, in, chunksOfStream, func(i int) error { return out.Send(i) })
	})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := rt.RunWithReconnect(ctx, f.dial("service", p, plan)); err != nil {
			f.t.Errorf("runtime %s: %v", id, err)
		}
	}()
	r := &replica{stop: func() { cancel(); <-done }, place: p, kill: plan.Crash}
	f.t.Cleanup(r.stop)
	f.runtimes[id] = r
}

// call makes a call of one kind, and notes its failure.
func (f *fleet) call(s *altar.Session, p *place, kind int, key string) {
	start := time.Now()
	f.mu.Lock()
	f.running[key] = runningCall{p, start}
	f.mu.Unlock()
	err := func() error {
		in := rollingIn{key, rand.Int64N(300)}
		ctx := f.t.Context()
		switch kind {
		case 0:
			return echoed(altar.CallAs[string](ctx, s, "once", in, nil))(key)
		case 1:
			return echoed(altar.CallAs[string](ctx, s, "again", in, nil))(key)
		case 2:
			return echoed(altar.CallAs[string](ctx, s, fmt.Sprintf("r%d/once", 1+rand.IntN(2)), in, nil))(key)
		}
		n := int64(0)
		for got, err := range altar.StreamAs[int64](ctx, s, "chunks", rollingIn{key, 1000}, nil) {
			if err != nil {
				return err
			}
			if got != n {
				return fmt.Errorf("chunk %d, want %d", got, n)
			}
			n++
		}
		if n != chunksOfStream {
			return fmt.Errorf("%d chunks", n)
		}
		return nil
	}()
	f.calls.Add(1)
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.running, key)
	if err != nil {
		f.fails = append(f.fails, failure{key, err, time.Since(start), start})
	}
}

func echoed(got string, err error) func(want string) error {
	return func(want string) error {
		if err == nil && got != want {
			return errors.New("the result of another call")
		}
		return err
	}
}

// run makes calls in 64 goroutines, each with its own connection, until the returned function is called.
func (f *fleet) run() (stop func()) {
	ctx, cancel := context.WithCancel(f.t.Context())
	var wg sync.WaitGroup
	for i := range 64 {
		wg.Go(func() {
			p := &place{}
			c := must(altar.NewClient(f.dial(fmt.Sprint("user-", i%8), p, nil), &altar.ClientOptions{Logger: quiet}))
			defer func() { _ = c.Close() }()
			var s *altar.Session
			for n := 0; ctx.Err() == nil; n++ {
				if n%8 == 0 {
					var err error
					s, err = c.CreateSession(f.t.Context(), nil)
					for f.mayLose && errors.Is(err, altar.ErrDisconnected) {
						s, err = c.CreateSession(f.t.Context(), nil)
					}
					if err != nil {
						f.t.Errorf("session of caller %d: %v", i, err)
						return
					}
				}
				f.call(s, p, i%4, fmt.Sprintf("%d-%d-%d", i%4, i, n))
			}
		})
	}
	return func() {
		cancel()
		wg.Wait()
	}
}

// kill ends a process, and notes the calls that run on it, through it, or on a Runtime that is connected to it. So may
// those that no Runtime has begun.
func (f *fleet) kill(r *replica) {
	f.mu.Lock()
	defer f.mu.Unlock()
	lost := map[string]bool{"": true} // Runtimes
	for id, rt := range f.runtimes {
		lost[id] = rt == r || r.addr != "" && f.balancer.isAt(rt.place, r.addr)
	}
	for key, call := range f.running {
		f.met[key] = f.met[key] || lost[f.at[key]] || r.addr != "" && f.balancer.isAt(call.place, r.addr)
	}
	f.killed = append(f.killed, time.Now())
	r.kill()
}

// ranOnce fails if a call that is not idempotent ran twice.
func (f *fleet) ranOnce() {
	for key, n := range f.runs {
		if n > 1 && key[0] != '1' {
			f.t.Errorf("call %s ran %d times", key, n)
		}
	}
}

// goOn waits until some calls have ended.
func (f *fleet) goOn(n int64) {
	f.t.Helper()
	until := f.calls.Load() + n
	require.Eventually(f.t, func() bool { return f.calls.Load() >= until }, time.Minute, time.Millisecond)
}

// awaitTools waits until all tools are known everywhere.
func (f *fleet) awaitTools() {
	f.t.Helper()
	c := must(altar.NewClient(f.dial("user", &place{}, nil), &altar.ClientOptions{Logger: quiet}))
	defer func() { _ = c.Close() }()
	s, err := c.CreateSession(f.t.Context(), nil)
	require.NoError(f.t, err)
	require.Eventually(f.t, func() bool {
		tools, err := s.ListTools(f.t.Context())
		return err == nil && len(tools) == 3 && len(tools[0].Runtimes) == 2
	}, 20*time.Second, 5*time.Millisecond)
}

func rounds() int {
	if os.Getenv("FIVEWIRE_LONG") != "" {
		return 10
	}
	return 1
}

// Three Hosts on one store and two Runtimes are replaced one after the other, and no call fails or runs twice.
func TestRolling(t *testing.T) { overBoth(t, 0, replaceAll) }

func replaceAll(t *testing.T, f *fleet) {
	f.awaitTools()
	stop := f.run()
	f.goOn(64)
	for range rounds() {
		for _, id := range []string{"a", "b", "c"} {
			f.hosts[id].stop()
			f.goOn(20)
			f.startHost(id)
			f.goOn(20)
		}
		for _, id := range []string{"r1", "r2"} {
			f.runtimes[id].stop()
			f.goOn(20)
			f.startRuntime(id)
			f.goOn(20)
		}
	}
	stop()
	for _, e := range f.fails {
		t.Errorf("call %s after %v: %v", e.key, e.took, e.err)
	}
	f.ranOnce()
	t.Logf("%d calls", f.calls.Load())
}

// Hosts and Runtimes are killed: only calls that this meets fail, as disconnected within 25 seconds. Idempotent ones are
// repeated and do not fail, and no others run twice.
func TestRollingKilled(t *testing.T) {
	lease, hosts, runtimes := 2*time.Second, []string{"a"}, []string{"r1"}
	if os.Getenv("FIVEWIRE_LONG") != "" {
		lease, hosts, runtimes = 0, []string{"a", "b", "c"}, []string{"r1", "r2"}
	}
	overBoth(t, lease, func(t *testing.T, f *fleet) { killAll(t, f, hosts, runtimes) })
}

func killAll(t *testing.T, f *fleet, hosts, runtimes []string) {
	f.mayLose = true
	f.awaitTools()
	stop := f.run()
	f.goOn(64)
	for range rounds() {
		for _, id := range hosts {
			f.kill(f.hosts[id])
			f.goOn(20)
			f.startHost(id)
			f.goOn(50)
			f.awaitMet()
		}
		for _, id := range runtimes {
			f.kill(f.runtimes[id])
			f.goOn(20)
			f.startRuntime(id)
			f.goOn(50)
			f.awaitMet()
		}
	}
	stop()
	repeated := 0 // idempotent calls that a kill has met and that did not fail
	for key := range f.met {
		if f.met[key] && key[0] == '1' {
			repeated++
		}
	}
	for _, e := range f.fails {
		isRepeatable := e.key[0] == '1'
		if isRepeatable && f.met[e.key] {
			repeated--
		}
		if !f.isMet(&e) || isRepeatable || e.took > 25*time.Second || !errors.Is(e.err, altar.ReasonDisconnected) {
			t.Errorf("call %s (met: %v, runs: %d), begun %v after the last kill, took %v: %v",
				e.key, f.isMet(&e), f.runs[e.key], e.began.Sub(f.lastKill(e.began)), e.took, e.err)
		}
	}
	require.Positive(t, repeated, "idempotent calls that survived a kill")
	f.ranOnce()
	t.Logf("%d calls, %d failed", f.calls.Load(), len(f.fails))
}
