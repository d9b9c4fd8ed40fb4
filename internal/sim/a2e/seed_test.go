// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package a2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fivewire/fivewire/a2e"
	"github.com/fivewire/fivewire/a2e/memory"
	"github.com/fivewire/fivewire/a2e/tools"
	"github.com/fivewire/fivewire/internal/sim"
	"github.com/fivewire/fivewire/store"
)

func TestSeed(t *testing.T) {
	t.Run("a2e", func(t *testing.T) { sim.Seeds(t, profile(defect{})) })
	t.Run("store", func(t *testing.T) { sim.Seeds(t, profile(defect{hasStoreErrors: true})) })
}

// profile lets agents call tools, one or several at once, read events, cancel calls, and store entries.
func profile(d defect) func(*sim.World) {
	return func(s *sim.World) {
		w := newWorld(s, d)
		s.Play(40*time.Second, agents, 3*time.Second, func(c *sim.Client) { w.operate(c) })
		s.Settle()
		w.check()
	}
}

func (w *world) operate(c *sim.Client) {
	a := w.agent(c.ID)
	if a == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	_, err := w.Call(c.ID, "connect", func() (string, error) { return "", a.connect(ctx) })
	if err != nil {
		return
	}
	switch n := c.IntN(24); {
	case n < 4:
		w.store(ctx, c, a)
	case n < 9:
		w.note(c, a)
	case n == 9:
		w.finish(c, a)
	case n == 10:
		w.replace(c)
	case n < 13:
		w.call(c.ID, a, "wait", time.Duration(500+c.IntN(1500))*time.Millisecond)
	default:
		limit := time.Duration(1+c.IntN(20)) * time.Second
		var calls sync.WaitGroup
		count := 1 + c.IntN(2)
		if c.IntN(4) == 0 {
			count = perAgent + 2
		}
		for i := range count {
			tool := []string{"work", "count"}[c.IntN(2)]
			calls.Go(func() {
				_ = w.Sleep(ctx, time.Duration(i+1)*time.Millisecond)
				w.call(c.ID, a, tool, limit)
			})
		}
		calls.Wait()
	}
}

// call calls a tool once.
func (w *world) call(client int, a *agent, tool string, limit time.Duration) error {
	id := w.next("call")
	start := w.Now()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	var events []a2e.Event
	_, err := w.Call(client, tool+" "+id, func() (string, error) {
		r, err := a.tools.Call(ctx, &tools.CallRequest{ToolName: tool, Arguments: json.RawMessage(fmt.Sprintf(`{"id":%q}`, id)),
			Streaming: tool == "count"}, &a2e.CallOptions{OnEvent: func(e a2e.Event) {
			if e.Header().Kind == "progress" {
				events = append(events, e)
			}
		}})
		if err == nil && !r.Data.Success {
			err = errors.New("no success")
		}
		return "", err
	})
	w.called(id, tool, events, err, w.Now()-start-limit)
	return err
}

// store stores an entry in the memory of the agent.
func (w *world) store(ctx context.Context, c *sim.Client, a *agent) {
	key := w.next("e")
	_, _ = w.Call(c.ID, "store "+key, func() (string, error) {
		m, err := a.memory.Init(ctx, nil, nil)
		if err != nil {
			return "", err
		}
		r, err := a.memory.Store(ctx, &memory.StoreRequest{MemoryID: m.MemoryID, Entries: []json.RawMessage{
			json.RawMessage(fmt.Sprintf(`{"key":{"n":%q},"content":"x","tier":"episodic"}`, key))}}, nil)
		if err == nil && len(r.Stored) == 1 {
			w.stored(a.view.Node.Name(), key)
		}
		return "", err
	})
}

// check lets each agent call a tool and read its memory.
func (w *world) check() {
	w.checkHandlers()
	for i := range agents {
		if err := w.probe(i); err != nil {
			w.Failf("E7", "", "agent %d: %v", i, err)
		}
	}
}

// probe calls a tool and reads the memory of an agent. A connection that a fault has cut may fail once.
func (w *world) probe(n int) (err error) {
	a := w.agent(n)
	for range 3 {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		if err = a.connect(ctx); err == nil {
			err = w.call(n, a, "work", 30*time.Second)
		}
		var m *memory.InitResponse
		if err == nil {
			m, err = a.memory.Init(ctx, nil, nil)
		}
		var r *memory.RetrieveResponse
		if err == nil {
			r, err = a.memory.Retrieve(ctx, &memory.RetrieveRequest{MemoryID: m.MemoryID, Limit: 10000}, nil)
		}
		cancel()
		if err != nil {
			continue
		}
		var keys []string
		for _, raw := range r.Entries {
			var e struct{ Key struct{ N string } }
			if err := json.Unmarshal(raw, &e); err != nil {
				return err
			}
			keys = append(keys, e.Key.N)
		}
		w.remembered(a.view.Node.Name(), keys)
		return nil
	}
	return err
}

func TestBrokenVariantsAreFound(t *testing.T) {
	variants := map[string]struct {
		invariant string
		defect    defect
	}{
		"a call runs twice":         {"E1", defect{work: double}},
		"deadlines are ignored":     {"E2", defect{call: withoutDeadline}},
		"events have a gap":         {"E3", defect{count: gap}},
		"too many handlers run":     {"E4", defect{limit: 2 * perAgent}},
		"entries are lost":          {"E5", defect{store: func(s store.Store) store.Store { return &losing{s} }}},
		"notes are lost":            {"E8", defect{forgets: true}},
		"a handler does not end":    {"E6", defect{hang: func(w *world) { _ = w.Sleep(context.Background(), time.Hour) }}},
		"a tool waits for a record": {"E7", defect{work: func(context.Context, *world, string) error { return errDown }}},
		"a resource is over limit":  {"E9", defect{extraUse: 1 << 50}},
	}
	for name, v := range variants {
		t.Run(name, func(t *testing.T) { sim.Broken(t, v.invariant, profile(v.defect)) })
	}
}

func double(_ context.Context, w *world, id string) error {
	w.ran(id)
	return nil
}

func withoutDeadline(next a2e.CallFunc) a2e.CallFunc {
	return func(ctx context.Context, msgType string, body any, opts *a2e.CallOptions) (*a2e.Message, error) {
		return next(context.WithoutCancel(ctx), msgType, body, opts)
	}
}

func gap(call *a2e.Call) error {
	for _, i := range []int{0, 2} {
		if err := call.Emit("progress", map[string]int{"n": i}); err != nil {
			return err
		}
	}
	return nil
}

// A losing store makes changes of memories and loses them.
type losing struct{ store.Store }

func (l *losing) Create(ctx context.Context, key string, value []byte, ttl time.Duration) (store.Revision, error) {
	if strings.HasPrefix(key, "memory/") {
		return 1, nil
	}
	return l.Store.Create(ctx, key, value, ttl)
}
