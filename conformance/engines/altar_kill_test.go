// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package engines

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/altar"
	"github.com/fivewire/fivewire/store"
)

const (
	altarHostEnv    = "ENGINES_ALTAR_HOST"    // the id of the Host
	altarRuntimeEnv = "ENGINES_ALTAR_RUNTIME" // the id of the Runtime, the address of its Host, and the file of its runs
)

const killedContracts = `{"contracts":[{"name":"once"},{"name":"again","idempotent":true},{"name":"stream","streaming":true}]}`

var killedTools = []string{"once", "again", "stream"}

const killedChunks = 5 // of a stream

// altarChild serves a Host.
func altarChild(_ context.Context, s store.Store) error {
	host, err := altarHost(s)
	if err != nil {
		return err
	}
	return serveChild(host)
}

func altarHost(s store.Store) (*altar.Host, error) {
	m, err := altar.DecodeManifest([]byte(killedContracts))
	if err != nil {
		return nil, err
	}
	auth := altar.Auth{Authorizer: altar.AuthorizerFunc(altar.AllowAll), Authenticator: altar.AuthenticatorFunc(func(r *http.Request) (*altar.Principal, error) {
		return &altar.Principal{ID: r.Header.Get(altar.APIKeyHeader)}, nil
	})}
	return altar.NewHost(m, &altar.HostOptions{ID: os.Getenv(altarHostEnv), Auth: auth, Logger: quiet,
		Persistence: altar.Persistence{Store: store.Sub(s, "altar/")}})
}

// A hostPlace is the address of the process that has the id of a Host now.
type hostPlace struct{ address atomic.Value }

func (h *hostPlace) dial(key string) altar.Dialer {
	return func(ctx context.Context) (altar.Conn, error) {
		return altar.DialWebSocket(ctx, "ws://"+h.address.Load().(string), &altar.WebSocketDialOptions{Header: http.Header{altar.APIKeyHeader: {key}}})
	}
}

// altarRuntimeChild is a Runtime. It writes each run to a file before it answers.
func altarRuntimeChild(ctx context.Context, _ store.Store) error {
	id, address, file := "", "", ""
	if _, err := fmt.Sscan(os.Getenv(altarRuntimeEnv), &id, &address, &file); err != nil {
		return err
	}
	runs, err := os.OpenFile(file, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	rt, err := altar.NewRuntime(id, &altar.RuntimeOptions{Logger: quiet})
	if err != nil {
		return err
	}
	addKilledTools(rt, func(id string) error {
		_, err := fmt.Fprintln(runs, id)
		return err
	})
	h := &hostPlace{}
	h.address.Store(address)
	fmt.Println("started")
	return rt.RunWithReconnect(ctx, h.dial("service"))
}

// addKilledTools adds the tools, which call run first.
func addKilledTools(rt *altar.Runtime, run func(id string) error) {
	for _, name := range killedTools[:2] {
		rt.Handle(name, altar.HandlerFunc(func(_ context.Context, call *altar.ToolCall) (any, error) {
			if err := run(call.InvocationID); err != nil {
				return nil, err
			}
			time.Sleep(rand.N(20 * time.Millisecond))
			return rand.Uint64N(1 << 50), nil
		}))
	}
	rt.HandleStream("stream", altar.StreamHandlerFunc(func(_ context.Context, call *altar.ToolCall, out *altar.ChunkWriter) error {
		if err := run(call.InvocationID); err != nil {
			return err
		}
		for i := range killedChunks {
			if err := out.Send(i); err != nil {
				return err
			}
			time.Sleep(rand.N(8 * time.Millisecond))
		}
		return nil
	}))
}

// A callLog has the facts: the runs of each call in the Runtimes, and the outcomes of its caller.
type callLog struct {
	mu       sync.Mutex
	runs     map[string]int
	outcomes map[string]string // the payload of each successful call
	failed   map[string]bool
}

func (l *callLog) runtime(t *testing.T, id string) *altar.Runtime {
	rt, err := altar.NewRuntime(id, &altar.RuntimeOptions{Logger: quiet})
	require.NoError(t, err)
	addKilledTools(rt, func(id string) error {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.runs[id]++
		return nil
	})
	return rt
}

// answer makes a call and returns its payloads.
func answer(ctx context.Context, s *altar.Session, tool, id string) (string, error) {
	opts := &altar.CallOptions{InvocationID: id}
	if tool != "stream" {
		got, err := s.Call(ctx, tool, nil, opts)
		if err != nil {
			return "", err
		}
		return string(got.Payload), nil
	}
	n := 0
	for got, err := range altar.StreamAs[int](ctx, s, tool, nil, opts) {
		if err != nil {
			return "", err
		}
		if got != n {
			return "", fmt.Errorf("chunk %d, want %d", got, n)
		}
		n++
	}
	if n != killedChunks {
		return "", fmt.Errorf("%d chunks", n)
	}
	return fmt.Sprint(n), nil
}

// call makes a call until it has an outcome.
func (l *callLog) call(t *testing.T, s *altar.Session, tool, id string) {
	got, err := answer(t.Context(), s, tool, id)
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case err == nil:
		l.outcomes[id] = got
	case errors.Is(err, altar.ErrToolNotFound):
		t.Errorf("call %s: a tool that was fulfilled is unknown: %v", id, err)
	case errors.Is(err, altar.ErrRuntimeUnavailable):
		l.failed[id] = true
	default:
		t.Errorf("call %s: %v", id, err)
	}
}

// calls makes calls of all tools until done is closed.
func (l *callLog) calls(t *testing.T, s *altar.Session, caller int, done <-chan struct{}) {
	for n := 0; ; n++ {
		select {
		case <-done:
			return
		default:
		}
		tool := killedTools[n%len(killedTools)]
		l.call(t, s, tool, fmt.Sprintf("%s-%d-%d", tool, caller, n))
	}
}

func toolOf(id string) string {
	tool, _, _ := strings.Cut(id, "-")
	return tool
}

// ranOnce fails if a call that is not idempotent ran twice.
func (l *callLog) ranOnce(t *testing.T) {
	for id, n := range l.runs {
		require.True(t, n == 1 || n > 1 && toolOf(id) == "again", "%s ran %d times", id, n)
	}
}

// killedRounds is the number of faults in a test.
func killedRounds(t *testing.T, d disturbance) int {
	if os.Getenv("FIVEWIRE_LONG") != "" {
		return d.rounds(t, 20)
	}
	return d.rounds(t, 6)
}

// TestALTARKilled disturbs Hosts on one store while clients of both call tools. No call that is not idempotent runs twice,
// every call keeps its outcome at every Host, and no tool is forgotten (ALT-D22, ALT-D47).
func TestALTARKilled(t *testing.T) {
	eachDisturbed(t, func(t *testing.T, p *place, d disturbance) {
		const hosts = 2
		log := &callLog{runs: map[string]int{}, outcomes: map[string]string{}, failed: map[string]bool{}}
		places, children := make([]*hostPlace, hosts), make([]*child, hosts)
		ctx, stop := context.WithCancel(t.Context())
		var runtimes sync.WaitGroup
		defer runtimes.Wait()
		defer stop()
		for i := range hosts {
			places[i] = &hostPlace{}
			t.Setenv(altarHostEnv, fmt.Sprint("host-", i))
			children[i] = p.start(t, "altar")
			places[i].address.Store(children[i].address)
			rt := log.runtime(t, fmt.Sprint("runtime-", i))
			runtimes.Go(func() { _ = rt.RunWithReconnect(ctx, places[i].dial("service")) })
		}
		sessions := make([]*altar.Session, hosts)
		for i := range hosts {
			c, err := altar.NewClient(places[i].dial("alice"), &altar.ClientOptions{Logger: quiet})
			require.NoError(t, err)
			defer func() { require.NoError(t, c.Close()) }()
			if i == 0 {
				_, err = c.CreateSession(ctx, &altar.CreateSessionParams{ID: "s", TTL: time.Hour})
				require.NoError(t, err)
			}
			sessions[i] = c.Session("s")
			soon(t, "its Runtime is known", func() bool {
				tools, err := sessions[i].ListTools(ctx)
				return err == nil && len(tools) == len(killedTools)
			})
		}

		done := make(chan struct{})
		var callers sync.WaitGroup
		for i := range 8 {
			callers.Go(func() { log.calls(t, sessions[i%hosts], i, done) })
		}
		rounds := killedRounds(t, d)
		for round := range rounds {
			time.Sleep(100*time.Millisecond + rand.N(200*time.Millisecond))
			i := round % hosts
			t.Setenv(altarHostEnv, fmt.Sprint("host-", i))
			children[i] = d.apply(t, p, children[i], "altar")
			places[i].address.Store(children[i].address)
		}
		close(done)
		callers.Wait()

		require.NotEmpty(t, log.outcomes)
		log.ranOnce(t)
		ran := maps.Clone(log.runs)
		for id, payload := range log.outcomes {
			require.Positive(t, log.runs[id], id)
			for _, s := range sessions { // an outcome runs nothing, at either Host
				got, err := answer(ctx, s, toolOf(id), id)
				require.NoError(t, err, id)
				require.Equal(t, payload, got, id)
			}
		}
		require.Equal(t, ran, log.runs, "an outcome runs nothing")
		for id := range log.failed {
			if toolOf(id) == "again" {
				continue
			}
			for _, s := range sessions {
				_, _ = answer(ctx, s, toolOf(id), id) // it may not have been dispatched before
			}
			require.LessOrEqual(t, log.runs[id], 1, "%s ran twice", id)
		}
		recordService(t, p, "ALTAR", hosts, d.name, rounds, len(log.outcomes))
		t.Logf("%d outcomes, %d calls failed", len(log.outcomes), len(log.failed))
	})
}

// TestALTARHostsForward calls a Runtime at a Host through another Host on its store: calls, and streams without a lost or
// doubled chunk.
func TestALTARHostsForward(t *testing.T) {
	eachShared(t, func(t *testing.T, p *place) {
		places := make([]*hostPlace, 2)
		for i := range places {
			t.Setenv(altarHostEnv, fmt.Sprint("host-", i))
			host, err := altarHost(p.open(t))
			require.NoError(t, err)
			web := httptest.NewServer(host)
			defer web.Close()
			defer func() { require.NoError(t, host.Close()) }()
			places[i] = &hostPlace{}
			places[i].address.Store(strings.TrimPrefix(web.URL, "http://"))
		}
		log := &callLog{runs: map[string]int{}, outcomes: map[string]string{}, failed: map[string]bool{}}
		ctx, stop := context.WithCancel(t.Context())
		var runtimes sync.WaitGroup
		defer runtimes.Wait()
		defer stop()
		rt := log.runtime(t, "runtime")
		runtimes.Go(func() { _ = rt.RunWithReconnect(ctx, places[0].dial("service")) })
		c, err := altar.NewClient(places[1].dial("alice"), &altar.ClientOptions{Logger: quiet})
		require.NoError(t, err)
		defer func() { require.NoError(t, c.Close()) }()
		s, err := c.CreateSession(ctx, nil)
		require.NoError(t, err)
		soon(t, "the Runtime is known", func() bool {
			tools, err := s.ListTools(ctx)
			return err == nil && len(tools) == len(killedTools)
		})
		var callers sync.WaitGroup
		for i := range 8 {
			callers.Go(func() {
				for n := range 10 {
					for _, tool := range killedTools {
						log.call(t, s, tool, fmt.Sprint(tool, "-", i, "-", n))
					}
				}
			})
		}
		callers.Wait()
		require.Empty(t, log.failed)
		require.Len(t, log.outcomes, 80*len(killedTools))
		log.ranOnce(t)
	})
}

// TestALTARRuntimesKilled kills Runtimes of a Host, which dial again. No call that is not idempotent runs twice, none is
// refused as if its tool did not exist, and those that fail are disconnected (ALT-D24).
func TestALTARRuntimesKilled(t *testing.T) {
	p := engines[1].create(t) // SQLite
	file := filepath.Join(t.TempDir(), "runs")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	t.Setenv(altarHostEnv, "host")
	host, err := altarHost(p.open(t))
	require.NoError(t, err)
	web := httptest.NewServer(host)
	defer web.Close()
	defer func() { require.NoError(t, host.Close()) }()
	address := strings.TrimPrefix(web.URL, "http://")
	children := make([]*child, 2)
	env := func(i int) { t.Setenv(altarRuntimeEnv, fmt.Sprintf("runtime-%d %s %s", i, address, file)) }
	for i := range children {
		env(i)
		children[i] = p.start(t, "altar runtime")
	}
	at := &hostPlace{}
	at.address.Store(address)
	c, err := altar.NewClient(at.dial("alice"), &altar.ClientOptions{Logger: quiet})
	require.NoError(t, err)
	defer func() { require.NoError(t, c.Close()) }()
	s, err := c.CreateSession(t.Context(), nil)
	require.NoError(t, err)
	soon(t, "both Runtimes are known", func() bool {
		tools, err := s.ListTools(t.Context())
		return err == nil && len(tools) == len(killedTools) && len(tools[0].Runtimes) == len(children)
	})
	log := &callLog{runs: map[string]int{}, outcomes: map[string]string{}, failed: map[string]bool{}}
	done := make(chan struct{})
	var callers sync.WaitGroup
	for i := range 8 {
		callers.Go(func() { log.calls(t, s, i, done) })
	}
	for round := range killedRounds(t, kill9) {
		time.Sleep(100*time.Millisecond + rand.N(200*time.Millisecond))
		i := round % len(children)
		env(i)
		children[i] = kill9.apply(t, p, children[i], "altar runtime")
	}
	close(done)
	callers.Wait()
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	for id := range strings.Lines(string(text)) {
		log.runs[strings.TrimSpace(id)]++
	}
	log.ranOnce(t)
	for id := range log.outcomes {
		require.Positive(t, log.runs[id], id)
	}
	require.Greater(t, len(log.outcomes), 100)
	t.Logf("%d outcomes, %d calls failed", len(log.outcomes), len(log.failed))
}
