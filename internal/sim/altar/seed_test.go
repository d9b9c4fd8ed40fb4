// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package altar

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"path"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fivewire/fivewire/altar"
	"github.com/fivewire/fivewire/internal/race"
	"github.com/fivewire/fivewire/internal/sim"
	"github.com/fivewire/fivewire/store"
)

func TestSeed(t *testing.T) {
	t.Run("altar", func(t *testing.T) { sim.Seeds(t, profile(defect{})) })
	t.Run("store", func(t *testing.T) { sim.Seeds(t, profile(defect{hasStoreErrors: true})) })
}

// profile lets clients create and end sessions, and call tools with and without streams at all Hosts.
func profile(d defect) func(*sim.World) {
	return func(s *sim.World) {
		w := newWorld(s, d)
		s.Play(40*time.Second, 3, 3*time.Second, func(c *sim.Client) { w.operate(c) })
		s.Settle()
		w.check()
	}
}

func (w *world) operate(c *sim.Client) {
	limit := time.Duration(1+c.IntN(20)) * time.Second
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	start := w.Now()
	w.act(ctx, c)
	if late := w.Now() - start - limit; late > 5*time.Second {
		w.Failf("A7", "", "an operation of client %d ended %v after its deadline", c.ID, late)
	}
}

func (w *world) act(ctx context.Context, c *sim.Client) {
	open := w.open()
	switch n := c.IntN(12); {
	case len(open) == 0 || n == 0:
		w.create(ctx, c)
	case n == 1:
		w.destroy(ctx, c, open[c.IntN(len(open))])
	case n == 2:
		w.trespass(ctx, c, open[c.IntN(len(open))])
	case n < 5 && w.last() != nil:
		w.do(ctx, c, w.last())
	default:
		tool := []string{"once", "again", "count"}[c.IntN(3)]
		call := &call{id: w.next("call"), tool: tool, session: open[c.IntN(len(open))], n: c.IntN(8), isCollected: c.IntN(4) == 0}
		if c.IntN(12) == 0 {
			call.n = longStream + c.IntN(longStream)
		}
		w.begin(call)
		w.do(ctx, c, call)
	}
}

// last returns the last call that had an answer.
func (m *model) last() *call {
	m.mu.Lock()
	defer m.mu.Unlock()
	for i := len(m.list) - 1; i >= 0; i-- {
		if m.list[i].answered > 0 {
			return m.list[i]
		}
	}
	return nil
}

func (w *world) create(ctx context.Context, c *sim.Client) {
	id := w.next("s")
	_, _ = w.Call(c.ID, "create "+id, func() (string, error) {
		from := w.caller(c.ID)
		if from == nil {
			return "", errDown
		}
		ttl, expires := time.Hour, time.Duration(0)
		if c.IntN(3) == 0 {
			ttl = time.Duration(5+c.IntN(20)) * time.Second
			expires = w.Now() + ttl
		}
		s, err := from.alice[c.IntN(hosts)].CreateSession(ctx, &altar.CreateSessionParams{ID: id, TTL: ttl})
		if err == nil {
			w.created(&session{id: s.ID(), expires: expires})
		}
		return "", err
	})
}

func (w *world) destroy(ctx context.Context, c *sim.Client, s *session) {
	_, _ = w.Call(c.ID, "destroy "+s.id, func() (string, error) {
		from := w.caller(c.ID)
		if from == nil {
			return "", errDown
		}
		w.destroying(s)
		err := from.alice[c.IntN(hosts)].Session(s.id).Destroy(ctx)
		if err == nil {
			w.destroyed(s)
		}
		return "", err
	})
}

// trespass calls a tool in a session of another principal.
func (w *world) trespass(ctx context.Context, c *sim.Client, s *session) {
	_, _ = w.Call(c.ID, "trespass "+s.id, func() (string, error) {
		from := w.caller(c.ID)
		if from == nil {
			return "", errDown
		}
		_, err := from.bob[c.IntN(hosts)].Session(s.id).Call(ctx, "again", map[string]any{"key": "x"},
			&altar.CallOptions{InvocationID: w.next("theft")})
		var e *altar.Error
		if err == nil || errors.As(err, &e) && isOutcome(e) {
			w.Failf("A6", "", "another principal got into session %s: %v", s.id, err)
		}
		return "", err
	})
}

// do makes a call at several Hosts with one id, until one answers.
func (w *world) do(ctx context.Context, c *sim.Client, call *call) {
	_, _ = w.Call(c.ID, call.tool+" "+call.id, func() (answer string, err error) {
		err = errDown
		for range 1 + c.IntN(3) {
			if from := w.caller(c.ID); from != nil {
				start := w.Now()
				answer, err = w.attempt(ctx, from.alice[c.IntN(hosts)], call, w.style(c))
				w.answered(call, start, answer, err)
			}
			if err == nil || ctx.Err() != nil {
				break
			}
			_ = w.Sleep(ctx, time.Duration(c.Int64N(int64(2*time.Second))))
		}
		return answer, err
	})
}

// A style is how a client reads a stream.
type style struct {
	pause  time.Duration // after each payload
	leaves int           // after so many payloads; 0: it does not
}

func (w *world) style(c *sim.Client) style {
	switch c.IntN(6) {
	case 2:
		return style{pause: time.Duration(c.Int64N(int64(400 * time.Millisecond)))}
	case 3:
		return style{leaves: 1 + c.IntN(5)}
	}
	return style{}
}

// errLeft is the error of a stream that its reader has left.
var errLeft = errors.New("left the stream")

func (w *world) attempt(ctx context.Context, client *altar.Client, c *call, how style) (string, error) {
	if w.broken.ignoresDeadline {
		ctx = context.WithoutCancel(ctx)
	}
	s := client.Session(c.session.id)
	o := &altar.CallOptions{InvocationID: c.id}
	params := map[string]any{"key": c.id}
	if c.tool == "count" {
		params["n"] = c.n
	}
	if c.tool != "count" || c.isCollected {
		r, err := s.Call(ctx, c.tool, params, o)
		switch {
		case err != nil:
			return "", err
		case c.tool != "count":
			return text(r.Payload), nil
		}
		var list []json.RawMessage
		if err := json.Unmarshal(r.Payload, &list); err != nil {
			return "", err
		}
		return w.streamed(c, list, nil), nil
	}
	var chunks []json.RawMessage
	var err error
	for raw, e := range s.Stream(ctx, "count", params, o) {
		if err = e; err == nil {
			chunks = append(chunks, raw)
			_ = w.Sleep(ctx, how.pause)
		}
		if how.leaves > 0 && len(chunks) == how.leaves {
			err = errLeft
			break
		}
	}
	return w.streamed(c, chunks, err), err
}

// check repeats all answered calls, tries ended sessions, and makes a call at each Host.
func (w *world) check() {
	c := &sim.Client{Rand: rand.New(rand.NewPCG(w.Seed(), 1)), Context: context.Background()}
	for _, call := range w.list {
		if call.answered > 0 && call.session.destroy == 0 && !call.session.mayHaveExpired(w.Now()) {
			w.repeat(c, call)
		}
	}
	for _, s := range w.sessions {
		if s.endedAt > 0 {
			late := &call{id: w.next("call"), tool: "again", session: s}
			w.begin(late)
			w.repeat(c, late)
		}
	}
	for i := range hosts {
		if err := w.probe(i); err != nil {
			w.Failf("A8", "", "host %d: %v", i, err)
		}
	}
	if w.Seed()%4 == 0 {
		w.expire()
	}
}

// expire lets the lifetime of all outcomes pass, without the messages of clients and Runtimes.
func (w *world) expire() {
	for _, n := range slices.Concat(w.callers, w.runtimes) {
		n.Crash()
	}
	_ = w.Sleep(context.Background(), resultTTL+2*time.Minute)
	for _, n := range w.hosts {
		if p, ok := n.Instance().(*process); ok {
			if kept := p.host.Stats().StoredResults; kept > 0 {
				w.Failf("A10", n.Name(), "%d outcomes or ids are kept", kept)
			}
		}
	}
}

func (w *world) repeat(c *sim.Client, call *call) {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	w.do(ctx, c, call)
}

// probe creates a session at a Host and calls a tool in it. A connection that a fault has cut may fail once.
func (w *world) probe(host int) (err error) {
	client := w.caller(0).alice[host]
	for range 3 {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		s := &session{id: w.next("s")}
		_, err = client.CreateSession(ctx, &altar.CreateSessionParams{ID: s.id, TTL: time.Hour})
		if err == nil {
			call := &call{id: w.next("call"), tool: "once", session: s}
			w.begin(call)
			start := w.Now()
			var answer string
			answer, err = w.attempt(ctx, client, call, style{})
			w.answered(call, start, answer, err)
		}
		cancel()
		if err == nil {
			return nil
		}
	}
	return err
}

func TestBrokenVariantsAreFound(t *testing.T) {
	variants := map[string]struct {
		invariant string
		defect    defect
	}{
		"records of calls are lost": {"A1", defect{store: func(s store.Store, w *world) store.Store { return &losing{s, w, "once"} }}},
		"results differ": {"A2", defect{result: different,
			store: func(s store.Store, w *world) store.Store { return &losing{s, w, "again"} }}},
		"a repeat fails": {"A3", defect{result: failing,
			store: func(s store.Store, w *world) store.Store { return &losing{s, w, "again"} }}},
		"a stream has a gap":             {"A4", defect{stream: gap}},
		"the ends of sessions are lost":  {"A5", defect{store: func(s store.Store, w *world) store.Store { return &endless{s} }}},
		"all clients have one principal": {"A6", defect{isOnePrincipal: true}},
		"a client ignores its deadline":  {"A7", defect{ignoresDeadline: true}},
		"a tool waits for something":     {"A8", defect{result: stuck}},
		"a resource is over its limit":   {"A9", defect{extraUse: 1 << 50}},
		"outcomes are kept for too long": {"A10", defect{extraTTL: time.Hour}},
	}
	for name, v := range variants {
		t.Run(name, func(t *testing.T) { sim.Broken(t, v.invariant, profile(v.defect)) })
	}
}

func TestMutantsAreFound(t *testing.T) {
	if race.Enabled || testing.Short() {
		t.Skip("builds the package with all mutants")
	}
	sim.Mutants(t, "../../..")
}

func different(call *altar.ToolCall, w *world) (any, error) { return fmt.Sprint(w.number()), nil }

// failing fails each run of a call but the first.
func failing(call *altar.ToolCall, w *world) (any, error) {
	if w.runsOf(call.InvocationID) > 1 {
		return nil, errors.New("second run")
	}
	return "first run", nil
}

func stuck(*altar.ToolCall, *world) (any, error) { return nil, errors.New("stuck") }

func gap(out *altar.ChunkWriter, n int) error {
	for i := range n {
		if i == 2 {
			continue
		}
		if err := out.Send(i); err != nil {
			return err
		}
	}
	return nil
}

// A losing store loses the records of the calls of a tool.
type losing struct {
	store.Store
	w    *world
	tool string
}

func (l *losing) isLost(key string) bool {
	return strings.Contains(key, "once/") && l.w.toolOf(path.Base(key)) == l.tool
}

func (l *losing) Create(ctx context.Context, key string, value []byte, ttl time.Duration) (store.Revision, error) {
	if l.isLost(key) {
		return 1, nil
	}
	return l.Store.Create(ctx, key, value, ttl)
}

func (l *losing) Update(ctx context.Context, key string, value []byte, rev store.Revision, ttl time.Duration) (store.Revision, error) {
	if l.isLost(key) {
		return rev + 1, nil
	}
	return l.Store.Update(ctx, key, value, rev, ttl)
}

// An endless store loses the ends of sessions.
type endless struct{ store.Store }

func (e *endless) Update(ctx context.Context, key string, value []byte, rev store.Revision, ttl time.Duration) (store.Revision, error) {
	if strings.HasPrefix(key, "altar/session/") {
		return rev + 1, nil
	}
	return e.Store.Update(ctx, key, value, rev, ttl)
}
