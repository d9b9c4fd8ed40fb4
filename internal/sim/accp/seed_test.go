// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package accp

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/fivewire/fivewire/accp"
	"github.com/fivewire/fivewire/internal/sim"
	"github.com/fivewire/fivewire/store"
)

func TestSeed(t *testing.T) {
	t.Run("accp", func(t *testing.T) { sim.Seeds(t, profile(defect{})) })
	t.Run("store", func(t *testing.T) { sim.Seeds(t, profile(defect{hasStoreErrors: true})) })
}

// profile lets agents send requests, store and read texts, and change the shared state.
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
	limit := time.Duration(1+c.IntN(20)) * time.Second
	switch n := c.IntN(10); {
	case n < 2:
		w.put(c.ID, a, limit)
	case n < 3 && len(a.texts) > 0:
		_ = w.get(c.ID, a, a.texts[c.IntN(len(a.texts))], limit)
	case n < 5:
		w.update(c.ID, a, limit)
	case n < 6:
		_ = w.read(c.ID, a, limit)
	default:
		_ = w.work(c.ID, a, limit)
	}
}

// call sends a message with an id, and returns a param of the answer.
func (w *world) call(client int, a *agent, m *accp.Message, limit time.Duration, key string) (answer accp.Value, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	if w.broken.hasNoLimit {
		ctx = context.WithoutCancel(ctx)
	}
	_, err = w.Call(client, m.Op+" "+m.Params.Text("id"), func() (string, error) {
		r, err := a.client.Call(ctx, m, nil)
		if err == nil {
			answer, _ = r.Params.Get(key)
		}
		return "", err
	})
	return answer, err
}

func message(intent accp.Intent, op, id string) *accp.Message {
	return &accp.Message{Intent: intent, Op: op, Params: accp.Params{{Key: "id", Value: accp.String(id)}}}
}

func (w *world) work(client int, a *agent, limit time.Duration) error {
	id := w.next("req")
	start := w.Now()
	answer, err := w.call(client, a, message(accp.IntentReq, accp.OpAnalyze, id), limit, "id")
	text, _ := answer.Text()
	w.called(id, text, err, w.Now()-start-limit)
	return err
}

func (w *world) put(client int, a *agent, limit time.Duration) {
	id := w.next("text")
	if _, err := w.call(client, a, message(accp.IntentReq, "put", id), limit, "id"); err == nil {
		a.texts = append(a.texts, id)
	}
}

func (w *world) get(client int, a *agent, id string, limit time.Duration) error {
	answer, err := w.call(client, a, message(accp.IntentQry, "get", id), limit, "text")
	text, _ := answer.Text()
	w.model.read(id, text, err)
	return err
}

// update adds one to the number of the state.
func (w *world) update(client int, a *agent, limit time.Duration) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	a.tried++
	_, err := w.Call(client, "update", func() (string, error) {
		return "", a.client.Update(ctx, func(state accp.Params) (accp.Params, error) {
			return state.Set("n", accp.Int(number(state)+1+w.broken.extraChange)), nil
		})
	})
	if err == nil {
		a.acked++
	}
}

func (w *world) read(client int, a *agent, limit time.Duration) error {
	answer, err := w.call(client, a, message(accp.IntentQry, "count", ""), limit, "n")
	if err != nil {
		return err
	}
	n, _ := answer.Int()
	w.counted(a.session, n)
	return nil
}

// check lets each agent send a request, and read its texts and its state at the servers.
func (w *world) check() {
	for i := range agents {
		a := w.agent(i)
		err := w.attempt(func() error { return w.work(i, a, 30*time.Second) })
		for _, id := range a.texts {
			if err == nil {
				err = w.attempt(func() error { return w.get(i, a, id, 30*time.Second) })
			}
		}
		for range servers {
			if err == nil {
				err = w.attempt(func() error { return w.read(i, a, 30*time.Second) })
			}
		}
		if err != nil {
			w.Failf("P6", "", "agent %d: %v", i, err)
		}
	}
}

// attempt makes a call three times, since one connection for each server may have been cut by a fault.
func (w *world) attempt(f func() error) (err error) {
	for range 3 {
		if err = f(); err == nil {
			break
		}
	}
	return err
}

func TestBrokenVariantsAreFound(t *testing.T) {
	variants := map[string]struct {
		invariant string
		defect    defect
	}{
		"a request runs twice":      {"P1", defect{work: double}},
		"a call has no deadline":    {"P2", defect{hasNoLimit: true}},
		"answers are mixed up":      {"P3", defect{answer: func(string) string { return "req1" }}},
		"changes are lost":          {"P5", defect{store: func(s store.Store) store.Store { return &losing{s, "/session/"} }}},
		"a change is applied twice": {"P5", defect{extraChange: 1}},
		"texts differ":              {"P4", defect{value: func(text string) string { return text + "x" }}},
		"a text is lost":            {"P4", defect{store: func(s store.Store) store.Store { return &losing{s, "text"} }}},
		"a request is refused":      {"P6", defect{work: func(*world, string) error { return errDown }}},
	}
	for name, v := range variants {
		t.Run(name, func(t *testing.T) { sim.Broken(t, v.invariant, profile(v.defect)) })
	}
}

func double(w *world, id string) error {
	w.ran(id)
	return nil
}

// A losing store loses new entries and records of some names.
type losing struct {
	store.Store
	part string
}

func (l *losing) Create(ctx context.Context, key string, value []byte, ttl time.Duration) (store.Revision, error) {
	if strings.Contains(key, l.part) {
		return 1, nil
	}
	return l.Store.Create(ctx, key, value, ttl)
}

func (l *losing) Append(ctx context.Context, stream, id string, value []byte, ttl time.Duration) (uint64, error) {
	if strings.Contains(stream, l.part) {
		return 1, nil
	}
	return l.Store.Append(ctx, stream, id, value, ttl)
}
