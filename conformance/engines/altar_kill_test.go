// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package engines

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/altar"
	"github.com/fivewire/fivewire/store"
)

const altarHostEnv = "ENGINES_ALTAR_HOST" // the id of the Host

const killedContracts = `{"contracts":[{"name":"once"},{"name":"again","idempotent":true}]}`

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

// A callLog has the facts: the runs of each call in the Runtimes, which survive, and the outcomes of its caller.
type callLog struct {
	mu       sync.Mutex
	runs     map[string]int
	outcomes map[string]string // the payload of each successful call
	failed   map[string]bool
}

func (l *callLog) runtime(t *testing.T, id string) *altar.Runtime {
	rt, err := altar.NewRuntime(id, &altar.RuntimeOptions{Logger: quiet})
	require.NoError(t, err)
	for _, name := range []string{"once", "again"} {
		rt.Handle(name, altar.HandlerFunc(func(_ context.Context, call *altar.ToolCall) (any, error) {
			l.mu.Lock()
			l.runs[call.InvocationID]++
			l.mu.Unlock()
			time.Sleep(rand.N(20 * time.Millisecond))
			return rand.Uint64N(1 << 50), nil
		}))
	}
	return rt
}

// call makes a call until it has an outcome.
func (l *callLog) call(t *testing.T, s *altar.Session, tool, id string) {
	got, err := s.Call(t.Context(), tool, nil, &altar.CallOptions{InvocationID: id})
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case err == nil:
		l.outcomes[id] = string(got.Payload)
	case errors.Is(err, altar.ErrToolNotFound):
		t.Errorf("call %s: a tool that was fulfilled is unknown: %v", id, err)
	case errors.Is(err, altar.ErrRuntimeUnavailable):
		l.failed[id] = true
	default:
		t.Errorf("call %s: %v", id, err)
	}
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
				return err == nil && len(tools) == 2
			})
		}

		done := make(chan struct{})
		var callers sync.WaitGroup
		for i := range 2 * hosts {
			callers.Go(func() {
				for n := 0; ; n++ {
					select {
					case <-done:
						return
					default:
					}
					log.call(t, sessions[i%hosts], []string{"once", "again"}[n%2], fmt.Sprintf("%s-%d-%d", []string{"once", "again"}[n%2], i, n))
				}
			})
		}
		rounds := d.rounds(t, 6)
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
		for id, n := range log.runs {
			require.True(t, n == 1 || n > 1 && id[:5] == "again", "%s ran %d times", id, n)
		}
		ran := maps.Clone(log.runs)
		for id, payload := range log.outcomes {
			require.Positive(t, log.runs[id], id)
			for _, s := range sessions { // an outcome runs nothing, at either Host
				tool := "once"
				if id[:5] == "again" {
					tool = "again"
				}
				got, err := s.Call(ctx, tool, json.RawMessage("{}"), &altar.CallOptions{InvocationID: id})
				require.NoError(t, err, id)
				require.Equal(t, payload, string(got.Payload), id)
			}
		}
		require.Equal(t, ran, log.runs, "an outcome runs nothing")
		for id := range log.failed {
			if id[:5] == "again" {
				continue
			}
			for _, s := range sessions {
				_, _ = s.Call(ctx, "once", nil, &altar.CallOptions{InvocationID: id}) // it may not have been dispatched before
			}
			require.LessOrEqual(t, log.runs[id], 1, "%s ran twice", id)
		}
		recordService(t, p, "ALTAR", hosts, d.name, rounds, len(log.outcomes))
		t.Logf("%d outcomes, %d calls failed", len(log.outcomes), len(log.failed))
	})
}
