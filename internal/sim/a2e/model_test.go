// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package a2e

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/fivewire/fivewire/a2e"
	"github.com/fivewire/fivewire/internal/sim"
)

// A model has what agents know: calls and their answers, events, and stored entries.
//
//	E1 A call runs at most once, and a successful one has run.
//	E2 A call ends by its deadline.
//	E3 The events of a call are a prefix of the sent ones, each once; a successful call has all.
//	E4 A session runs at most as many handlers as its limit.
//	E5 An acknowledged entry of the memory is there from then on, once.
//	E6 Two minutes after the end of its call no handler runs.
//	E8 The state of a plugin has the acknowledged changes of its session, and of an agent only its own, each once.
//	E7 Two minutes after the faults a session can be made, and its calls succeed.
//	E9 What a host holds is within its limits.
type model struct {
	sim      *sim.World
	isShared bool // a snapshot is that of all sessions of an agent

	mu       sync.Mutex // guards all below
	count    int
	runs     map[string]int      // by id of the call
	handlers map[string]int      // by session
	waiting  int                 // handlers of the tool wait
	entries  map[string]string   // acknowledged, by key: the agent
	notes    map[string][]string // acknowledged, by session
	lost     int                 // sessions that ended before their agent
}

func newModel(w *sim.World) *model {
	return &model{sim: w, isShared: w.Seed()%2 == 0, runs: map[string]int{}, handlers: map[string]int{}, entries: map[string]string{}, notes: map[string][]string{}}
}

func (m *model) next(name string) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.count++
	return fmt.Sprint(name, m.count)
}

// ran notes a run, holds it to E1, and returns the number of runs of all calls.
func (m *model) ran(id string) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.runs[id]++
	if m.runs[id] > 1 {
		m.sim.Failf("E1", "", "run %d of call %s", m.runs[id], id)
	}
	return len(m.runs)
}

// running notes a handler, and returns the function that notes its end.
func (m *model) running(session, tool string) (end func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.handlers[session]++
	if n := m.handlers[session]; n > perAgent && !m.sim.IsClockWrong() {
		m.sim.Failf("E4", "", "session %s runs %d handlers", session, n)
	}
	if tool == "wait" {
		m.waiting++
	}
	return func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.handlers[session]--
		if tool == "wait" {
			m.waiting--
		}
	}
}

// called holds a call to E1, E2 and E3.
func (m *model) called(id string, tool string, events []a2e.Event, err error, late time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if late > 5*time.Second {
		m.sim.Failf("E2", "", "call %s ended %v after its deadline", id, late)
	}
	if err == nil && m.runs[id] != 1 {
		m.sim.Failf("E1", "", "call %s succeeded after %d runs", id, m.runs[id])
	}
	var got []string
	for i, e := range events {
		got = append(got, string(e.Header().Data))
		if got[i] != fmt.Sprintf(`{"n":%d}`, i) || e.Order != a2e.OrderOK {
			m.sim.Failf("E3", "", "call %s has the events %q, the last one %s", id, got, e.Order)
		}
	}
	if err == nil && tool == "count" && len(events) != eventsOf {
		m.sim.Failf("E3", "", "call %s succeeded with the events %q", id, got)
	}
}

func (m *model) stored(agent, key string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.entries[key] = agent
}

// noteEnd notes a session that has ended before its agent.
func (m *model) noteEnd(id string, isCrashed bool) {
	if isCrashed {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.lost++
	m.sim.Event("", "lost", id, "")
}

// remembered holds the entries of an agent to E5.
func (m *model) remembered(agent string, keys []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	slices.Sort(keys)
	for i, key := range keys {
		if i > 0 && keys[i-1] == key {
			m.sim.Failf("E5", "", "agent %s has entry %s twice", agent, key)
		}
	}
	for key, owner := range m.entries {
		if owner == agent && !slices.Contains(keys, key) {
			m.sim.Failf("E5", "", "agent %s lost entry %s, has %q", agent, key, keys)
		}
	}
}

// notesOf returns the acknowledged notes of a session.
func (m *model) notesOf(session string) []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.notes[session])
}

// noted holds the notes that a request of an agent got to E8. earlier are the notes that were acknowledged before. Of
// several sessions of an agent with one snapshot, the last one determines it.
func (m *model) noted(agent, session, added string, earlier, got []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for i, note := range got {
		if !strings.HasPrefix(note, agent) || slices.Index(got, note) < i {
			m.sim.Failf("E8", "", "agent %s has the notes %q", agent, got)
		}
	}
	for _, note := range earlier {
		if !slices.Contains(got, note) && !m.isShared && !m.sim.HasFault(storeErrors...) {
			m.sim.Failf("E8", "", "session %s lost note %s, has %q", session, note, got)
		}
	}
	if added != "" {
		m.notes[session] = append(m.notes[session], added)
	}
}

// checkHandlers holds the handlers at the end to E6.
func (m *model) checkHandlers() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.waiting > 0 {
		m.sim.Failf("E6", "", "%d handlers wait", m.waiting)
	}
}
