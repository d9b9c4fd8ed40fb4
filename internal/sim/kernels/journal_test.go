// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package kernels

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/fivewire/fivewire/internal/journal"
	"github.com/fivewire/fivewire/internal/lease"
	"github.com/fivewire/fivewire/internal/sim"
	"github.com/fivewire/fivewire/store"
)

// A runs value is the model of the profile: inputs, and the results of the calls of the handlers.
type runs struct {
	w     *sim.World
	nodes []*sim.Node

	mu        sync.Mutex // guards all below
	created   int
	inputs    int
	delivered map[string][]string // acknowledged inputs, by id of the run
	consumed  map[string][]string // by id
	results   map[string]string   // of calls, by id and number
	returned  map[string]bool     // steps
}

// playJournal lets three nodes run handlers with steps, inputs, items and sleeps.
func playJournal(w *sim.World) {
	m := &runs{w: w, delivered: map[string][]string{}, consumed: map[string][]string{}, results: map[string]string{},
		returned: map[string]bool{}}
	m.nodes = startNodes(w, 3, m.start)
	w.Play(40*time.Second, 3, 2*time.Second, func(c *sim.Client) {
		h, ok := pick[*host](c.Rand, m.nodes)
		if !ok {
			return
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Duration(1+c.IntN(15))*time.Second)
		defer cancel()
		m.mu.Lock()
		id := fmt.Sprint(max(1, m.created-c.IntN(5)))
		isNew := c.IntN(4) == 0
		if isNew {
			m.created++
			id = fmt.Sprint(m.created)
		}
		m.mu.Unlock()
		if isNew {
			_, _ = w.Call(c.ID, "create "+id, func() (string, error) { return "", h.create(id) })
			return
		}
		m.deliver(ctx, c.ID, h, id)
	})
	if isChosen(w) {
		m.park()
	}
	m.finish()
	m.checkEnd()
}

// park parks the runs of an instance that wait, and ends the instance: others continue them.
func (m *runs) park() {
	m.w.Settle()
	if h, ok := m.nodes[2].Instance().(*host); ok {
		h.runs.Park()
		m.nodes[2].Crash()
		m.nodes[2].Restart()
	}
}

func (m *runs) deliver(ctx context.Context, client int, h *host, id string) {
	m.mu.Lock()
	m.inputs++
	input := fmt.Sprint("input ", m.inputs)
	m.mu.Unlock()
	_, err := m.w.Call(client, "deliver "+id, func() (string, error) {
		_, err := h.runs.Deliver(ctx, id, input, []byte(input), func(ctx context.Context) (lease.Owner, error) {
			r, err := h.get(ctx, id)
			return r.Owner, err
		})
		return "", err
	})
	if err == nil {
		m.mu.Lock()
		m.delivered[id] = append(m.delivered[id], input)
		m.mu.Unlock()
	}
}

// finish delivers inputs until each run has ended.
func (m *runs) finish() {
	for round := 0; ; round++ {
		m.w.Settle()
		h, ok := m.nodes[0].Instance().(*host)
		open := 0
		for id := range m.created {
			id := fmt.Sprint(id + 1)
			e, err := m.w.Data().Get(context.Background(), "run/"+id)
			if r := decodeRun(e); err == nil && r.Owner != "" && ok {
				open++
				m.deliver(context.Background(), 99, h, id)
			}
		}
		switch {
		case open == 0:
			return
		case round == 16:
			m.w.Failf("J2", "", "%d runs do not end", open)
			return
		}
	}
}

// A host is one instance of a node. It runs the handlers of its runs.
type host struct {
	epoch
	m    *runs
	runs *journal.Table
}

// A run is the record of a run.
type run struct {
	Owner  lease.Owner // empty after the end
	Result string
}

func decodeRun(e store.Entry) (r run) {
	_ = json.Unmarshal(content(e.Value), &r)
	return r
}

func (m *runs) start(v *sim.View) (sim.Instance, error) {
	e, err := acquire(v)
	if err != nil {
		return nil, err
	}
	h := &host{e, m, journal.New(v.Store, e.Lease, prefix, quiet)}
	h.Adopt("run", h.adopt)
	return h, nil
}

func (h *host) edit(ctx context.Context, id string, change func(r *run) error) error {
	_, err := store.Modify(ctx, h.Store, "run/"+id, 0, func(old store.Entry, _ bool) ([]byte, error) {
		var r run
		_ = json.Unmarshal(old.Value, &r)
		if err := change(&r); err != nil {
			return nil, err
		}
		return json.Marshal(r)
	})
	return err
}

func (h *host) get(ctx context.Context, id string) (run, error) {
	e, err := h.Store.Get(ctx, "run/"+id)
	return decodeRun(e), err
}

func (h *host) create(id string) error {
	ctx := h.Lease.Context()
	owner, err := h.Lease.Start(ctx, "run", id)
	if err != nil {
		return err
	}
	err = h.edit(ctx, id, func(r *run) error {
		if *r != (run{}) && r.Owner != owner {
			return store.ErrExists
		}
		r.Owner = owner
		return nil
	})
	if err == nil {
		go h.run(ctx, id, owner)
	}
	return err
}

// run runs the handler and ends the run.
func (h *host) run(ctx context.Context, id string, owner lease.Owner) {
	var r *journal.Run
	err := retry(ctx, h.m.w, func() (err error) { // a handler of an earlier epoch may not have returned
		r, err = h.runs.Open(ctx, id, journal.RunOptions{})
		return err
	})
	if err != nil {
		return
	}
	result, err := h.handle(r.Context(), id, r)
	isCut := r.Context().Err() != nil
	r.Close()
	if isCut || err != nil {
		return
	}
	err = retry(ctx, h.m.w, func() error {
		err := h.edit(ctx, id, func(r *run) error {
			if r.Owner != owner {
				return errTaken
			}
			*r = run{Result: result}
			return nil
		})
		if errors.Is(err, errTaken) {
			return nil
		}
		return err
	})
	if err == nil {
		_ = h.Finish(ctx, owner, "run", id)
	}
}

func (h *host) adopt(ctx context.Context, id string, _, to lease.Owner) (lease.Found, error) {
	found := lease.Taken
	err := h.edit(ctx, id, func(r *run) error {
		isAlive, err := h.Alive(ctx, r.Owner)
		found = lease.Taken
		switch {
		case err != nil:
			return err
		case *r == run{}:
			found = lease.Absent
		case r.Owner == "":
			found = lease.Ended
		case isAlive && r.Owner != to:
			found = lease.Held
		}
		if found != lease.Taken {
			return store.ErrUnchanged
		}
		r.Owner = to
		return nil
	})
	if err != nil || found != lease.Taken {
		return found, err
	}
	isParked, _, err := h.runs.Adopt(ctx, id, func() { h.run(ctx, id, to) })
	if err == nil && !isParked {
		go h.run(ctx, id, to)
	}
	return found, err
}

// handle runs the program of an id, up to 8 calls, and holds their results to J1.
func (h *host) handle(ctx context.Context, id string, r *journal.Run) (string, error) {
	m, program := h.m, clientOf(h.m.w, id, 0)
	var results []string
	for i := range 1 + program.IntN(8) {
		result, err := h.call(ctx, r, fmt.Sprint(id, " ", i), program)
		if err != nil {
			return "", err
		}
		key := fmt.Sprint(id, " ", i)
		m.mu.Lock()
		if old, isKnown := m.results[key]; isKnown && old != result {
			m.w.Failf("J1", h.Node.Name(), "call %s has results %q and %q", key, old, result)
		}
		m.results[key] = result
		m.mu.Unlock()
		results = append(results, result)
	}
	return strings.Join(results, " "), nil
}

// call makes one call of a program. The key has the id of the run and the number of the call.
func (h *host) call(ctx context.Context, r *journal.Run, key string, program *rand.Rand) (string, error) {
	m := h.m
	id, _, _ := strings.Cut(key, " ")
	name, length := fmt.Sprint(program.IntN(3)), time.Duration(program.IntN(10_000))*time.Millisecond
	switch program.IntN(5) {
	case 0:
		data, err := r.Await(ctx)
		m.mu.Lock()
		defer m.mu.Unlock()
		if err == nil && !slices.Contains(m.consumed[id], string(data)) {
			m.consumed[id] = append(m.consumed[id], string(data))
		}
		return string(data), err
	case 1:
		n, _, err := r.Emit(ctx, "k", "", []byte(name))
		return fmt.Sprint(n), err
	case 2:
		n, _, err := r.Emit(ctx, "k", name, nil)
		return fmt.Sprint(n), err
	case 3:
		return "", r.Sleep(ctx, name, length)
	}
	data, err := r.Step(ctx, name, func(ctx context.Context, stepID string) ([]byte, error) {
		m.mu.Lock()
		if m.returned[key] {
			m.w.Failf("J4", h.Node.Name(), "step %s runs again", key)
		}
		m.mu.Unlock()
		return []byte(stepID), m.w.Sleep(ctx, length)
	})
	m.mu.Lock()
	defer m.mu.Unlock()
	m.returned[key] = m.returned[key] || err == nil
	return string(data), err
}

// checkEnd holds the journals to J1, J2 and J3.
func (m *runs) checkEnd() {
	h, ok := m.nodes[0].Instance().(*host)
	if !ok {
		m.w.Failf("J2", "n0", "node does not start")
		return
	}
	ctx := context.Background()
	for i := range m.created {
		id := fmt.Sprint(i + 1)
		var inputs []string
		ids, numbers := map[string]bool{}, 0
		for item, err := range h.runs.Read(ctx, id) {
			switch {
			case err != nil:
				m.w.Failf("J3", "n0", "run %s: %v", id, err)
			case item.Kind == "":
				inputs = append(inputs, item.ID)
			default:
				numbers++
				if item.N != numbers || item.ID != "" && ids[item.ID] {
					m.w.Failf("J3", "n0", "run %s: item %d %q is visible twice", id, item.N, item.ID)
				}
				ids[item.ID] = true
			}
		}
		for _, input := range m.delivered[id] {
			if !slices.Contains(inputs, input) {
				m.w.Failf("J2", "n0", "run %s: acknowledged %s is lost", id, input)
			}
		}
		consumed := m.consumed[id]
		if len(consumed) > len(inputs) || !slices.Equal(consumed, inputs[:len(consumed)]) {
			m.w.Failf("J2", "n0", "run %s: inputs %q, consumed %q", id, inputs, consumed)
		}
		if err := h.runs.Expire(ctx, id, time.Minute); err != nil {
			m.w.Failf("J3", "n0", "run %s: expire: %v", id, err)
		}
	}
	if !isChosen(m.w) {
		return
	}
	m.w.Settle()
	for i := range m.created {
		for item, err := range h.runs.Read(ctx, fmt.Sprint(i+1)) {
			m.w.Failf("J3", "n0", "run %d: item %d after its expiry, %v", i+1, item.N, err)
		}
	}
}
