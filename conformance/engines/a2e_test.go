// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package engines

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/a2e"
	"github.com/fivewire/fivewire/a2e/a2etest"
	"github.com/fivewire/fivewire/a2e/catalogue"
	"github.com/fivewire/fivewire/a2e/memory"
	"github.com/fivewire/fivewire/a2e/planning"
	"github.com/fivewire/fivewire/store"
)

// remember returns an agent's memory at a separate host.
func remember(t *testing.T, s store.Store, name string) (*memory.Client, string) {
	h := a2etest.NewHost(t, nil).AddPlugin(a2etest.Must(memory.NewPlugin(&memory.Options{Store: store.Sub(s, "a2e/")})))
	near, far := a2e.Pipe()
	served := make(chan error, 1)
	go func() { served <- h.Serve(context.Background(), far) }()
	c := a2etest.Must(a2e.NewClient(near, &a2e.ClientOptions{AgentID: name, Types: catalogue.Types(), Capabilities: h.Capabilities()}))
	t.Cleanup(func() {
		require.NoError(t, c.Close())
		<-served
	})
	_, err := c.Connect(t.Context())
	require.NoError(t, err)
	m, err := memory.NewClient(c)
	require.NoError(t, err)
	r := new(memory.InitRequest)
	r.Scope = a2e.OrderedObject[string]{{Name: "user", Value: "u1"}}
	resp, err := m.Init(t.Context(), r, nil)
	require.NoError(t, err)
	require.True(t, *resp.Success)
	return m, resp.MemoryID
}

// TestA2EMemory: entries that agents store at several hosts at once are available at each host:
// episodic memory to the agent, semantic memory to all agents.
func TestA2EMemory(t *testing.T) {
	each(t, func(t *testing.T, p *place) {
		const hosts, entries = 3, 10
		var wg sync.WaitGroup
		for i := range hosts {
			name := fmt.Sprint("agent-", i%2)
			m, id := remember(t, p.open(t), name)
			wg.Go(func() {
				for j := range entries {
					for _, tier := range []string{"episodic", "semantic"} {
						resp, err := m.Store(t.Context(), &memory.StoreRequest{MemoryID: id, Entries: []json.RawMessage{
							json.RawMessage(fmt.Sprintf(`{"key":{"host":%d,"n":%d},"content":"x","tier":%q}`, i, j, tier))}}, nil)
						if err != nil || len(resp.Stored) != 1 {
							t.Errorf("host %d: stored %v, %v", i, resp, err)
						}
					}
				}
			})
		}
		wg.Wait()
		for name, want := range map[string]int64{"agent-0": (2 + hosts) * entries, "agent-1": (1 + hosts) * entries, "nobody": hosts * entries} {
			m, id := remember(t, p.open(t), name)
			r := new(memory.RetrieveRequest)
			r.MemoryID = id
			resp, err := m.Retrieve(t.Context(), r, nil)
			require.NoError(t, err)
			require.Equal(t, want, resp.Total, name)
		}
	})
}

// TestA2ESnapshots: what a plugin saved at one host is found at another, and of
// several who save at once one is the last.
func TestA2ESnapshots(t *testing.T) {
	each(t, func(t *testing.T, p *place) {
		const hosts = 4
		var all [hosts]*a2e.Host
		for i := range all {
			all[i] = a2etest.NewHost(t, &a2e.HostOptions{Persistence: a2e.Persistence{Snapshots: p.open(t)}}, a2etest.Must(planning.NewPlugin(nil)))
		}
		plans := func(h *a2e.Host, name string) string {
			c := a2etest.Connect(t, h, &a2e.ClientOptions{AgentID: "ann"})
			if name != "" {
				if _, err := c.Call(t.Context(), "planning/plan/create", &planning.PlanCreateRequest{Name: name}, nil); err != nil {
					t.Error(err)
				}
			}
			m, err := c.Call(t.Context(), "planning/plan/list", nil, nil)
			if err == nil {
				err = c.Close()
			}
			if err != nil {
				t.Error(err)
				return ""
			}
			text, _ := (&a2e.Codec{}).Append(nil, m)
			return string(text)
		}
		save := func(h *a2e.Host, name string) {
			plans(h, name)
			if err := h.Shutdown(t.Context()); err != nil { // it waits for the snapshot
				t.Error(err)
			}
		}
		save(all[0], "first")
		var wg sync.WaitGroup
		for i, h := range all[1 : hosts-1] {
			wg.Go(func() { save(h, fmt.Sprint("host", i)) })
		}
		wg.Wait()
		last := plans(all[hosts-1], "")
		require.Contains(t, last, "first")
		require.Contains(t, last, "host")
	})
}
