// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package accp

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/fivewire/fivewire/accp"
	"github.com/fivewire/fivewire/conformance/fault"
	"github.com/fivewire/fivewire/internal/sim"
)

// A model has what agents know: requests and their answers, stored texts, and states.
//
//	P1 A request runs at most once, an answered one has run, and one that surely did not run has not run. A
//	   proxy that doubles a request can deliver one copy and report that the other one found no server. Then the
//	   error reports that nothing was processed (ACCP-D29, ACCP-D78), also if the client or the context ends then.
//	P2 A call ends by its deadline.
//	P3 An answer is that of its request.
//	P4 An acknowledged text of a tier is the same from then on.
//	P5 Each server has the acknowledged changes of a state, and each change at most once.
//	P6 Two minutes after the faults requests are answered.
//	A3 After a quiet Sync the agent and both servers have the same version and content of the state.
//	A4 A reference to a checkpoint resolves to its summary or to an error.
//	A5 A stream yields a prefix of its chunks, and all of them if it ends without an error.
//	A6 A session accepts no number of a sender twice.
//	A7 A server uses no more of a resource than its limit.
//	A8 A transaction runs at most once in all lives of its agent and of the servers, which all have one outcome.
//	A9 Each context for a model begins with the stable lines of the one before.
type model struct {
	sim *sim.World

	mu       sync.Mutex // guards all below
	count    int
	runs     map[string]int      // by id of the request
	unsent   map[string]bool     // requests that surely did not run
	accepted map[string]bool     // numbers of senders in sessions
	pending  map[string]string   // transactions by the name of the agent
	outcomes map[string]string   // of transactions
	contexts map[string][]string // by session
}

// A session is that of one start of an agent. One goroutine uses it.
type session struct {
	id           string
	texts        []string // acknowledged
	acked, tried int64    // changes of the state
}

func newModel(w *sim.World) *model {
	return &model{sim: w, runs: map[string]int{}, unsent: map[string]bool{}, accepted: map[string]bool{},
		pending: map[string]string{}, outcomes: map[string]string{}, contexts: map[string][]string{}}
}

func (m *model) newSession(id string) *session { return &session{id: id} }

func (m *model) next(name string) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.count++
	return fmt.Sprint(name, m.count)
}

// isLong reports whether a request has a long param.
func (m *model) isLong(id string) bool {
	return strings.HasSuffix(id, "3") || strings.HasSuffix(id, "7")
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

// called holds a request to P1, P2 and P3. isRefused reports that its last frame found no server.
func (m *model) called(id, answer string, err error, late time.Duration, isRefused bool) {
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
	case m.sim.HasFault(fault.Duplicate) && (isRefused || errors.Is(err, accp.ErrUnreachable)):
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

// streamed holds the chunks of a stream to A5.
func (m *model) streamed(id string, chunks []string, total int, err error) {
	for i, c := range chunks {
		if c != chunk(id, i) {
			m.sim.Failf("A5", "", "chunk %d of stream %s is %q", i, id, c)
		}
	}
	if err == nil && len(chunks) != total {
		m.sim.Failf("A5", "", "stream %s ended after %d of %d chunks", id, len(chunks), total)
	}
}

func chunk(id string, i int) string { return fmt.Sprint(id, "/", i) }

// resolved holds a reference to A4.
func (m *model) resolved(summary, text string, err error) {
	if err == nil && text != summary {
		m.sim.Failf("A4", "", "a reference to %q resolved to %q", summary, text)
	}
}

// accept holds the number of a message to A6.
func (m *model) accept(x *accp.Message) {
	name := fmt.Sprint(x.Meta.SID, "/", x.From, "/", x.Meta.Seq.N)
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.accepted[name] {
		m.sim.Failf("A6", "", "number %s was accepted twice", name)
	}
	m.accepted[name] = true
}

// transaction returns the id that an agent repeats until it has an outcome.
func (m *model) transaction(agent string) string {
	id := m.next("pay")
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.pending[agent] == "" {
		m.pending[agent] = id
	}
	return m.pending[agent]
}

// paid holds the outcome of a transaction to A8. ErrInternal is an outcome, too.
func (m *model) paid(agent, id, token string, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.runs[id] > 1 {
		m.sim.Failf("A8", "", "transaction %s ran %d times", id, m.runs[id])
	}
	if err != nil {
		if isAnswer(err) && errors.Is(err, accp.ErrInternal) {
			delete(m.pending, agent)
		}
		return
	}
	if before := m.outcomes[id]; m.runs[id] != 1 || before != "" && before != token {
		m.sim.Failf("A8", "", "transaction %s ran %d times, its outcomes are %q and %q", id, m.runs[id], before, token)
	}
	m.outcomes[id] = token
	if m.count%3 == 0 { // else the agent repeats it
		delete(m.pending, agent)
	}
}

// checkContext holds the context of a session to A9.
func (m *model) checkContext(session string, v accp.ContextView) {
	m.mu.Lock()
	defer m.mu.Unlock()
	before := m.contexts[session]
	if v.Stable > len(before) || !slices.Equal(v.Lines[:v.Stable], before[:v.Stable]) || !v.IsCut && v.Stable < len(before) {
		m.sim.Failf("A9", "", "session %s: %d stable lines of %d, cut: %v", session, v.Stable, len(before), v.IsCut)
	}
	m.contexts[session] = v.Lines
}
