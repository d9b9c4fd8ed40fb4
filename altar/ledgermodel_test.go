// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package altar

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	inject "github.com/fivewire/fivewire/conformance/fault"
	"github.com/fivewire/fivewire/internal/race"
	"github.com/fivewire/fivewire/store"
)

// Two Hosts share a store that fails, answers late, loses answers and makes changes later. They crash,
// come back under their ids, and pause. A naive model of each invocation id holds: a call that is
// not idempotent runs once, an answer is that of a run with the same parameters, and after the faults
// each call has one answer.
func TestLedgerModel(t *testing.T) {
	runs, answers, seeds := 0, 0, uint64(40)
	if race.Enabled {
		seeds = 10
	}
	for seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := &ledgerModel{t: t, db: store.NewMemory(), r: rand.New(rand.NewPCG(seed, 11)), runs: map[string][]string{}}
				m.run(seed)
				runs += len(m.runs)
				answers += m.answered
			})
		})
	}
	require.Greater(t, runs, 10*int(seeds))
	require.Greater(t, answers, 50*int(seeds))
}

type ledgerModel struct {
	t     *testing.T
	db    store.Store
	r     *rand.Rand
	hosts [2]*modelHost
	sent  int

	mu       sync.Mutex
	runs     map[string][]string // payloads by invocation id
	answered int
}

type modelHost struct {
	plan    *inject.Plan
	h       *Host
	wire    *wire
	wg      sync.WaitGroup
	waiting map[string]string // tool and parameters by invocation id; guarded by ledgerModel.mu
}

func (m *ledgerModel) boot(i int, seed uint64) {
	n := &modelHost{plan: &inject.Plan{Seed: seed*100 + uint64(m.sent), Rules: []inject.Rule{
		{Action: inject.ErrorBefore, Probability: 0.03}, {Action: inject.ErrorAfter, Probability: 0.03},
		{Action: inject.LandLater, Probability: 0.03, Delay: 3 * time.Second}, {Action: inject.Delay, Probability: 0.1, Delay: time.Second},
		{Action: inject.Hang, Probability: 0.01, Delay: 2 * time.Second}}}, waiting: map[string]string{}}
	n.h = testHost(m.t, &HostOptions{Logger: slog.New(slog.DiscardHandler), ID: fmt.Sprint("h", i),
		Persistence: Persistence{Store: inject.Store(m.db, n.plan), StoreTimeout: 2 * time.Second, LeaseTTL: 6 * time.Second}})
	rt := must(NewRuntime(fmt.Sprint("r", i), nil))
	for _, tool := range []string{"math/add", "get"} {
		rt.Handle(tool, HandlerFunc(func(ctx context.Context, call *ToolCall) (any, error) {
			m.mu.Lock()
			payload := fmt.Sprintf("%s %s %d", tool, call.Parameters, len(m.runs[call.InvocationID]))
			m.runs[call.InvocationID] = append(m.runs[call.InvocationID], payload)
			pause := time.NewTimer(time.Duration(len(m.runs)%7) * 500 * time.Millisecond)
			m.mu.Unlock()
			defer pause.Stop()
			select {
			case <-pause.C:
				return payload, nil
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}))
	}
	n.wg.Go(func() {
		for { // the Host refuses it while the store fails
			conn, err := n.h.Dial(testService)
			if err != nil {
				return
			}
			_ = rt.Run(context.Background(), conn)
			_ = conn.Close()
			time.Sleep(100 * time.Millisecond)
		}
	})
	n.wire = connect(m.t, n.h, testUser)
	n.wg.Go(func() { m.read(n) })
	m.hosts[i] = n
}

// read compares the answers with the runs.
func (m *ledgerModel) read(n *modelHost) {
	for {
		received, err := n.wire.conn.Receive()
		if err != nil {
			return
		}
		var id, payload string
		switch a := received.(type) {
		case *ToolResult:
			id = a.InvocationID
			_ = json.Unmarshal(a.Payload, &payload)
		default: // of the session
			continue
		}
		m.mu.Lock()
		what, isWaiting := n.waiting[id]
		delete(n.waiting, id)
		m.answered++
		if !isWaiting {
			m.t.Errorf("%s: two answers", id)
		}
		isRun := payload == ""
		for _, run := range m.runs[id] {
			isRun = isRun || run == payload && run[:len(what)] == what
		}
		if !isRun {
			m.t.Errorf("%s: %q is the answer to %q, but it ran as %q", id, payload, what, m.runs[id])
		}
		m.mu.Unlock()
	}
}

func (m *ledgerModel) stop(n *modelHost, isCrash bool) {
	if isCrash {
		n.plan.Crash()
	}
	require.NoError(m.t, n.h.Close())
	n.wg.Wait()
	n.plan.Close()
}

// call sends a call unless the connection waits for one with that id.
func (m *ledgerModel) call(n *modelHost) {
	k := max(0, m.sent/3-m.r.IntN(5))
	id, tool, params := fmt.Sprint("i", k), "math/add", fmt.Sprintf(`{"a":%d,"b":1}`, max(0, m.r.IntN(8)-6))
	if k%3 == 0 {
		tool, params = "get", `{"key":"k"}`
	}
	m.mu.Lock()
	isWaiting := n.waiting[id] != ""
	if !isWaiting {
		n.waiting[id] = tool + " " + params
	}
	m.mu.Unlock()
	m.sent++
	if !isWaiting {
		n.wire.send(call(id, tool, params))
	}
}

func (m *ledgerModel) run(seed uint64) {
	first := testHost(m.t, &HostOptions{ID: "first", Persistence: Persistence{Store: m.db}})
	connect(m.t, first, testUser).session("s")
	require.NoError(m.t, first.Close())
	for i := range m.hosts {
		m.boot(i, seed)
		synctest.Wait()
	}
	for range 150 {
		i := m.r.IntN(len(m.hosts))
		n := m.hosts[i]
		switch p := m.r.IntN(100); {
		case p < 80:
			m.call(n)
		case p < 83:
			m.stop(n, p > 80)
			m.boot(i, seed)
		case p < 86:
			n.plan.Pause()
			time.AfterFunc(time.Duration(m.r.IntN(12))*time.Second, n.plan.Resume)
		default:
			time.Sleep(time.Duration(m.r.IntN(2000)) * time.Millisecond)
		}
	}
	time.Sleep(5 * time.Minute)
	synctest.Wait()
	m.mu.Lock()
	for id, runs := range m.runs {
		if runs[0][:3] != "get" && len(runs) > 1 {
			m.t.Errorf("%s ran %d times: %q", id, len(runs), runs)
		}
	}
	for _, n := range m.hosts {
		require.Empty(m.t, n.waiting, "calls without an answer")
	}
	m.mu.Unlock()
	for _, n := range m.hosts {
		require.Zero(m.t, n.h.Stats().InFlight)
		m.stop(n, false)
	}
	time.Sleep(3 * time.Minute) // changes in doubt are repeated for a minute
}
