// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package a2e_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/a2e"
	"github.com/fivewire/fivewire/a2e/a2etest"
	"github.com/fivewire/fivewire/a2e/tools"
	"github.com/fivewire/fivewire/conformance/fault"
	"github.com/fivewire/fivewire/internal/testkit"
	"github.com/fivewire/fivewire/store"
)

// An effects counts what tools do, in all processes.
type effects struct {
	mu            sync.Mutex
	started, done map[string]int
}

func (e *effects) note(m map[string]int, id string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	m[id]++
}

// counts returns how often a call was started and finished.
func (e *effects) counts(id string) (started, done int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.started[id], e.done[id]
}

// A durableProcess is a host that can fail.
type durableProcess struct {
	host    *a2e.Host
	handler http.Handler
	plan    *fault.Plan
	ctx     context.Context // ends with its failure
	crash   context.CancelFunc
}

func newDurableProcess(t *testing.T, db store.Store, e *effects, p a2e.Persistence, rules []fault.Rule, plugins ...*a2e.Plugin) *durableProcess {
	d := &durableProcess{plan: &fault.Plan{Seed: rand.Uint64(), Rules: rules}}
	t.Cleanup(d.plan.Close)
	d.ctx, d.crash = context.WithCancel(context.Background())
	p.Store = fault.Store(db, d.plan)
	set := a2etest.Must(tools.NewSet(nil))
	set.Add(tools.Tool{Definition: tools.Definition{Name: "work", InputParameters: []tools.Parameter{{Name: "id", Type: "string", Required: true}}},
		Run: func(ctx context.Context, _ *a2e.Call, arguments json.RawMessage) (any, error) {
			var in struct{ ID string }
			if err := json.Unmarshal(arguments, &in); err != nil {
				return nil, err
			}
			if d.ctx.Err() != nil { // a failed process does nothing
				return nil, d.ctx.Err()
			}
			e.note(e.started, in.ID)
			select {
			case <-time.After(time.Duration(rand.IntN(40)) * time.Millisecond):
			case <-d.ctx.Done():
				return nil, d.ctx.Err()
			case <-ctx.Done():
				return nil, ctx.Err()
			}
			e.note(e.done, in.ID)
			return json.RawMessage(`{"id":"` + in.ID + `"}`), nil
		}})
	d.host = a2etest.NewHost(t, &a2e.HostOptions{Persistence: p, Logger: slog.Default()}, append(plugins, set.Plugin())...)
	d.handler = a2etest.Must(a2e.NewHTTPHandler(d.host, &a2e.HTTPHandlerOptions{AllowedHosts: []string{"a2e.test"}}))
	return d
}

// unreliable are the faults of a store.
func unreliable() []fault.Rule {
	return []fault.Rule{
		{Action: fault.Delay, Delay: 4 * time.Millisecond},
		{Action: fault.ErrorBefore, Probability: 0.003},
		{Action: fault.ErrorAfter, Probability: 0.003},
		{Action: fault.LandLater, Op: "create|update|append|delete|ack", Probability: 0.003, Delay: 30 * time.Millisecond},
	}
}

// kill ends a process without a change of the store.
func (d *durableProcess) kill() {
	d.plan.Crash()
	d.crash()
	go d.host.Close()
}

// A balancer sends each request to the next process.
type balancer struct {
	mu        sync.Mutex
	next      int
	processes []*durableProcess
}

func (b *balancer) set(i int, p *durableProcess) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.processes[i] = p
}

func (b *balancer) pick() *durableProcess {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.next++
	return b.processes[b.next%len(b.processes)]
}

// RoundTrip serves a request without a network.
func (b *balancer) RoundTrip(r *http.Request) (*http.Response, error) {
	p := b.pick()
	if p.ctx.Err() != nil {
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: errors.New("connection refused")}
	}
	in, out := io.Pipe()
	ctx, cancel := context.WithCancel(r.Context())
	stop := context.AfterFunc(p.ctx, func() {
		cancel()
		_ = out.CloseWithError(io.ErrUnexpectedEOF)
	})
	w := &pipeResponse{header: http.Header{}, body: out, ready: make(chan struct{})}
	local := &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 80}
	own := r.Clone(context.WithValue(ctx, http.LocalAddrContextKey, net.Addr(local)))
	own.RemoteAddr = "127.0.0.1:1000"
	if own.Body == nil {
		own.Body = http.NoBody
	}
	go func() {
		p.handler.ServeHTTP(w, own)
		w.WriteHeader(http.StatusOK)
		stop()
		_ = out.Close()
	}()
	select {
	case <-w.ready:
	case <-ctx.Done():
	}
	if ctx.Err() != nil {
		_ = in.Close()
		return nil, &net.OpError{Op: "read", Net: "tcp", Err: io.ErrUnexpectedEOF}
	}
	return &http.Response{StatusCode: w.status, Status: strconv.Itoa(w.status), Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Request: r, Header: w.header.Clone(), Body: in, ContentLength: -1}, nil
}

type pipeResponse struct {
	header http.Header
	body   *io.PipeWriter
	once   sync.Once
	status int
	ready  chan struct{}
}

func (w *pipeResponse) Header() http.Header { return w.header }

func (w *pipeResponse) WriteHeader(status int) {
	w.once.Do(func() {
		w.status = status
		close(w.ready)
	})
}

func (w *pipeResponse) Write(b []byte) (int, error) {
	w.WriteHeader(http.StatusOK)
	return w.body.Write(b)
}

func (w *pipeResponse) Flush() { w.WriteHeader(http.StatusOK) }

// connectDurable connects an agent; a host that fails during the handshake is tried again.
func connectDurable(t *testing.T, b *balancer) *a2e.Client {
	for range 20 {
		rw, err := a2e.DialHTTP(t.Context(), "http://a2e.test", &a2e.HTTPDialOptions{AllowInsecure: true,
			HTTPClient: &http.Client{Transport: b}, Logger: slog.New(slog.DiscardHandler)})
		require.NoError(t, err)
		c, err := a2e.NewClient(rw, &a2e.ClientOptions{Capabilities: []string{"tools"}, Types: tools.Types(), Logger: slog.New(slog.DiscardHandler)})
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		_, err = c.Connect(ctx)
		cancel()
		if err == nil {
			require.Contains(t, c.PeerInfo().Features, "resume")
			return c
		}
		_ = c.Close()
		time.Sleep(200 * time.Millisecond)
	}
	require.Fail(t, "no handshake succeeds")
	return nil
}

// An agent calls the tool until the end of the processes, and fails the test if a call is lost or runs
// twice.
func durableAgent(t *testing.T, b *balancer, e *effects, name string, until time.Time) (answered, interrupted int) {
	c := connectDurable(t, b)
	client := a2etest.Must(tools.NewClient(c))
	defer c.Close()
	for n := 0; time.Now().Before(until); n++ {
		id := fmt.Sprintf("%s-%d", name, n)
		_, err := client.Call(t.Context(), &tools.CallRequest{ToolName: "work", Arguments: json.RawMessage(`{"id":"` + id + `"}`)}, nil)
		started, done := e.counts(id)
		var refused *a2e.Error
		switch {
		case err == nil:
			if started != 1 || done != 1 {
				t.Errorf("%s succeeded: started %d times, done %d times", id, started, done)
			}
			answered++
		case errors.As(err, &refused) && refused.Reason == "interrupted":
			if started > 1 {
				t.Errorf("%s was interrupted: started %d times", id, started)
			}
			interrupted++
		default:
			t.Errorf("%s: %v", id, err)
			return answered, interrupted
		}
	}
	return answered, interrupted
}

// inDurableProcesses runs agents while processes fail, one after the other, and start again.
func inDurableProcesses(t *testing.T, processes, agents, kills int, pause, down time.Duration, persistence func(i int) a2e.Persistence) {
	synctest.Test(t, func(t *testing.T) {
		db, e := store.NewMemory(), &effects{started: map[string]int{}, done: map[string]int{}}
		b := &balancer{}
		for i := range processes {
			b.processes = append(b.processes, newDurableProcess(t, db, e, persistence(i), unreliable()))
		}
		synctest.Wait()
		until := time.Now().Add(time.Duration(kills) * (pause + down))
		var wg sync.WaitGroup
		answered, interrupted := make([]int, agents), make([]int, agents)
		for i := range agents {
			wg.Go(func() { answered[i], interrupted[i] = durableAgent(t, b, e, fmt.Sprintf("agent%d", i), until) })
		}
		for k := range kills {
			time.Sleep(pause/2 + time.Duration(rand.Int64N(int64(pause))))
			i := k % processes
			b.processes[i].kill()
			time.Sleep(down)
			b.set(i, newDurableProcess(t, db, e, persistence(i), unreliable()))
		}
		wg.Wait()
		for _, p := range slices.Clone(b.processes) {
			require.NoError(t, p.host.Close())
		}
		total, lost := 0, 0
		for i := range agents {
			total, lost = total+answered[i], lost+interrupted[i]
		}
		t.Logf("%d calls answered, %d interrupted", total, lost)
		require.Greater(t, total, agents*kills/4)
		require.Positive(t, lost, "no process failed during a call")
	})
}

// A host that fails and starts again continues its sessions: no call is lost, none runs twice
// (A2E-D67).
func TestSessionsSurviveTheirHost(t *testing.T) {
	for _, p := range []a2e.Persistence{{InstanceID: "one"}, {SingleInstance: true}} {
		inDurableProcesses(t, 1, 4, 12, 2*time.Second, 50*time.Millisecond, func(int) a2e.Persistence { return p })
	}
}

// A host that shares the store with no other continues the sessions of the last one without waiting for a lease.
func TestSingleInstanceWaitsForNoLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db, e := store.NewMemory(), &effects{started: map[string]int{}, done: map[string]int{}}
		start := func() *durableProcess {
			return newDurableProcess(t, db, e, a2e.Persistence{SingleInstance: true, LeaseTTL: time.Hour}, nil)
		}
		b := &balancer{processes: []*durableProcess{start()}}
		c := connectDurable(t, b)
		client := a2etest.Must(tools.NewClient(c))
		b.pick().kill()
		b.set(0, start())
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		_, err := client.Call(ctx, &tools.CallRequest{ToolName: "work", Arguments: json.RawMessage(`{"id":"a"}`)}, nil)
		require.NoError(t, err)
		require.NoError(t, c.Close())
		require.NoError(t, b.pick().host.Close())
	})
}

// Each request goes to another one of two hosts on one store, and the survivor takes the sessions of a
// failed one over (A2E-D67).
func TestSessionsMoveToTheOtherHost(t *testing.T) {
	inDurableProcesses(t, 2, 4, 10, 3*time.Second, 2*time.Second, func(int) a2e.Persistence {
		return a2e.Persistence{LeaseTTL: time.Second}
	})
}

// A panic of the store, in whatever access, is one failed access: later calls succeed.
func TestPanicOfStoreFailsOneAccess(t *testing.T) {
	isLast := false
	for skip := int64(0); !isLast; skip++ {
		synctest.Test(t, func(t *testing.T) {
			db, hook := testkit.PanickingStore(store.NewMemory(), skip)
			p := newDurableProcess(t, db, &effects{started: map[string]int{}, done: map[string]int{}}, a2e.Persistence{}, nil)
			b := &balancer{processes: []*durableProcess{p}}
			c := connectDurable(t, b)
			client := a2etest.Must(tools.NewClient(c))
			call := func(id string) error {
				_, err := client.Call(t.Context(), &tools.CallRequest{ToolName: "work", Arguments: json.RawMessage(`{"id":"` + id + `"}`)}, nil)
				return err
			}
			for i := range 3 { // the panic fails one of these at most
				_ = call(strconv.Itoa(i))
				time.Sleep(20 * time.Second)
			}
			isLast = hook.Count.Load() == 0
			hook.Left.Store(0)
			require.NoError(t, call("last"), skip)
			require.NoError(t, c.Close())
			require.NoError(t, p.host.Close())
		})
	}
}
