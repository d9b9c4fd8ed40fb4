// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package accp

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/fivewire/fivewire/accp"
	"github.com/fivewire/fivewire/conformance/fault"
	"github.com/fivewire/fivewire/internal/sim"
)

// A model has what agents know: requests and their answers, stored texts, and states.
//
//	P1 A request runs at most once, an answered one has run, and one that surely did not run has not run. A
//	   proxy that doubles a request can deliver one copy and report that the other one found no server.
//	P2 A call ends by its deadline.
//	P3 An answer is that of its request.
//	P4 An acknowledged text of a tier is the same from then on.
//	P5 Each server has the acknowledged changes of a state, and each change at most once.
//	P6 Two minutes after the faults requests are answered.
type model struct {
	sim *sim.World

	mu     sync.Mutex // guards all below
	count  int
	runs   map[string]int  // by id of the request
	unsent map[string]bool // requests that surely did not run
}

// A session is that of one start of an agent. One goroutine uses it.
type session struct {
	id           string
	texts        []string // acknowledged
	acked, tried int64    // changes of the state
}

func newModel(w *sim.World) *model {
	return &model{sim: w, runs: map[string]int{}, unsent: map[string]bool{}}
}

func (m *model) newSession(id string) *session { return &session{id: id} }

func (m *model) next(name string) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.count++
	return fmt.Sprint(name, m.count)
}

// ran notes a run, holds it to P1, and returns the number of runs of all requests.
func (m *model) ran(id string) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.runs[id]++
	if m.runs[id] > 1 || m.unsent[id] {
		m.sim.Failf("P1", "", "run %d of request %s, which surely did not run: %v", m.runs[id], id, m.unsent[id])
	}
	return len(m.runs)
}

// called holds a request to P1, P2 and P3.
func (m *model) called(id, answer string, err error, late time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if late > 5*time.Second {
		m.sim.Failf("P2", "", "request %s ended %v after its deadline", id, late)
	}
	var failed *accp.CallError
	switch {
	case err == nil && m.runs[id] != 1:
		m.sim.Failf("P1", "", "request %s was answered after %d runs", id, m.runs[id])
	case err == nil && answer != id:
		m.sim.Failf("P3", "", "request %s was answered %q", id, answer)
	case m.sim.HasFault(fault.Duplicate) && errors.Is(err, accp.ErrUnreachable):
	case errors.As(err, &failed) && !failed.MayHaveRun:
		if m.unsent[id] = true; m.runs[id] > 0 && !isAnswer(err) {
			m.sim.Failf("P1", "", "request %s ran, and its error says that it did not: %v", id, err)
		}
	}
}

// isAnswer reports whether an error was received from the server.
func isAnswer(err error) bool {
	var remote *accp.Error
	return errors.As(err, &remote) && remote.Remote
}

// read holds a text of a tier to P4.
func (m *model) read(id, text string, err error) {
	if err == nil && text != id || errors.Is(err, accp.ErrRefNotFound) {
		m.sim.Failf("P4", "", "text %s is %q: %v", id, text, err)
	}
}

// counted holds the number of the state of a server to P5.
func (m *model) counted(s *session, n int64) {
	if n < s.acked || n > s.tried {
		m.sim.Failf("P5", "", "session %s: state %d, acknowledged %d, tried %d", s.id, n, s.acked, s.tried)
	}
}
