// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package accp

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/fivewire/fivewire/accp"
	"github.com/fivewire/fivewire/accp/profile"
	"github.com/fivewire/fivewire/internal/sim"
	"github.com/fivewire/fivewire/store"
)

func TestSeed(t *testing.T) {
	t.Run("accp", func(t *testing.T) { sim.Seeds(t, scenario(defect{})) })
	t.Run("store", func(t *testing.T) { sim.Seeds(t, scenario(defect{hasStoreErrors: true})) })
}

// scenario lets agents send requests, store and read texts, and change the shared state.
func scenario(d defect) func(*sim.World) {
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
	switch n := c.IntN(14); {
	case n < 2:
		w.put(c.ID, a, limit)
	case n < 3 && len(a.texts) > 0:
		_ = w.get(c.ID, a, a.texts[c.IntN(len(a.texts))], limit)
	case n < 5:
		w.update(c.ID, a, limit)
	case n < 6:
		_ = w.read(c.ID, a, limit)
	case n < 8:
		w.stream(c.ID, a, c.IntN(6)+1, limit)
	case n < 10:
		_ = w.pay(c.ID, a, limit)
	case n < 11:
		w.refer(c.ID, a, limit)
	default:
		_ = w.work(c.ID, a, limit)
	}
	view := a.client.Session().ModelContext(400, 200)
	view.Stable += w.broken.extraStable
	w.checkContext(a.id, view)
}

// stream reads the chunks of an answer.
func (w *world) stream(client int, a *agent, total int, limit time.Duration) {
	id := w.next("stream")
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	m := message(accp.IntentReq, profile.OpGenerate, id)
	m.Params = m.Params.Set("total", accp.Int(int64(total)))
	var chunks []string
	_, err := w.Call(client, m.Op+" "+id, func() (string, error) {
		for v, err := range a.client.Stream(ctx, m, nil) {
			if err != nil {
				return "", err
			}
			text, _ := v.Text()
			chunks = append(chunks, text)
		}
		return "", nil
	})
	w.streamed(id, chunks, total, err)
}

// pay makes the transaction of the agent, or repeats it.
func (w *world) pay(client int, a *agent, limit time.Duration) error {
	id := w.transaction(a.name)
	m := message(accp.IntentReq, profile.OpTransaction, id)
	m.Params = accp.Params{{Key: "schema", Value: accp.String(profile.SchemaTransaction)}, {Key: "transaction_id", Value: accp.String(id)}}
	token, err := w.call(client, a, m, limit, "reference")
	text, _ := token.Text()
	if w.broken.token != nil {
		text = w.broken.token(w, text)
	}
	w.paid(a.name, id, text, err)
	return err
}

// refer sends a reference to the summary of a new checkpoint.
func (w *world) refer(client int, a *agent, limit time.Duration) {
	cp, err := a.client.Session().Checkpoint(context.Background())
	if err != nil || cp.ID == "" {
		return
	}
	m := message(accp.IntentQry, "echo", cp.ID)
	m.Params = m.Params.Set("value", accp.Ref("warm."+cp.ID))
	text, err := w.call(client, a, m, limit, "text")
	got, _ := text.Text()
	w.resolved(cp.Summary, got, err)
}

// converge changes the state, and compares it with that of the servers.
func (w *world) converge(client int, a *agent) error {
	_, state := a.client.Session().State()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if err := a.client.Sync(ctx, state.Set("end", accp.String(w.next("end")))); err != nil {
		return err
	}
	for range servers {
		other, err := w.call(client, a, message(accp.IntentQry, "whole", ""), 30*time.Second, "text")
		if err != nil {
			return err
		}
		text, _ := other.Text()
		if own := stateText(a.client.Session()); own != text {
			w.Failf("A3", "", "agent %d has the state %s, a server %s", client, own, text)
		}
	}
	return nil
}

// stateText returns the version and the content of the state of a session.
func stateText(s *accp.Session) string {
	version, state := s.State()
	text, _ := accp.Map(state...).AppendJSON(nil)
	return fmt.Sprint(version, " ", string(text))
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
		switch {
		case err != nil:
			return "", err
		case r == nil:
			w.Failf("P3", "", "%s has no answer and no error", m.Op)
		default:
			answer, _ = r.Params.Get(key)
		}
		return "", nil
	})
	return answer, err
}

func message(intent accp.Intent, op, id string) *accp.Message {
	return &accp.Message{Intent: intent, Op: op, Params: accp.Params{{Key: "id", Value: accp.String(id)}}}
}

func (w *world) work(client int, a *agent, limit time.Duration) error {
	id := w.next("req")
	start := w.Now()
	m := message(accp.IntentReq, profile.OpAnalyze, id)
	if w.isLong(id) { // so that records are compacted
		m.Params = m.Params.Set("pad", accp.String(strings.Repeat("x", 30<<10)))
	}
	answer, err := w.call(client, a, m, limit, "id")
	text, _ := answer.Text()
	w.called(id, text, err, w.Now()-start-limit, a.out.isRefused.Load())
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
		if err == nil {
			err = w.attempt(func() error { return w.pay(i, a, 30*time.Second) })
		}
		if err == nil {
			err = w.attempt(func() error { return w.converge(i, a) })
		}
		if err != nil && !(isAnswer(err) && errors.Is(err, accp.ErrInternal)) {
			w.Failf("P6", "", "agent %d: %v", i, err)
		}
	}
	for i := range agents {
		for _, n := range w.servers {
			p, _ := n.Instance().(*process)
			if session, ok := p.Session(w.agent(i).id); ok && session.End(context.Background(), nil) != nil {
				w.Failf("P6", "", "the session of agent %d does not end", i)
			}
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
		"a request runs twice":            {"P1", defect{work: double}},
		"a call has no deadline":          {"P2", defect{hasNoLimit: true}},
		"answers are mixed up":            {"P3", defect{answer: func(string) string { return "req1" }}},
		"changes are lost":                {"P5", defect{store: func(s store.Store) store.Store { return &losing{s, "/session/"} }}},
		"a change is applied twice":       {"P5", defect{extraChange: 1}},
		"texts differ":                    {"P4", defect{value: func(text string) string { return text + "x" }}},
		"a text is lost":                  {"P4", defect{store: func(s store.Store) store.Store { return &losing{s, "text"} }}},
		"a request is refused":            {"P6", defect{work: func(*world, string) error { return accp.ErrPolicyDenied }}},
		"states differ":                   {"A3", defect{stateText: func(text string) string { return text + "x" }}},
		"a summary is another one":        {"A4", defect{summary: func(text string) string { return text + "x" }}},
		"a chunk is lost":                 {"A5", defect{hasNoLastChunk: true}},
		"a number is used twice":          {"A6", defect{accept: 2}},
		"a resource is over its limit":    {"A7", defect{extraUse: 1 << 50}},
		"a transaction is repeated":       {"P1", defect{pay: double}},
		"the record of a request is lost": {"P1", defect{store: func(s store.Store) store.Store { return &losing{s, "/once/"} }}},
		"outcomes differ":                 {"A8", defect{token: func(w *world, text string) string { return text + w.next("x") }}},
		"a context loses a line":          {"A9", defect{extraStable: 1}},
	}
	for name, v := range variants {
		t.Run(name, func(t *testing.T) { sim.Broken(t, v.invariant, scenario(v.defect)) })
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
