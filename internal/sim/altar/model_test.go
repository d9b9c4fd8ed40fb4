// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package altar

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/fivewire/fivewire/altar"
	"github.com/fivewire/fivewire/conformance/fault"
	"github.com/fivewire/fivewire/internal/sim"
)

// A model has what clients know: sessions, calls and their answers.
//
//	A1 A call of a contract that is not idempotent runs at most once; another one at most once more for each fault.
//	A2 All successful answers of a call are equal, and are those of a run.
//	A3 A call that has succeeded does not fail later, unless the store failed or its clock is wrong. A call that is not
//	   idempotent is answered a second after its end, although a slow store has not recorded its outcome.
//	A4 A stream is a prefix of its numbers, and a complete one has all of them.
//	A5 A session that a Host has acknowledged is valid at all Hosts until its end, and has ended at all Hosts after it.
//	A6 Another principal does not get into a session.
//	A7 A call ends by its deadline.
//	A8 Two minutes after the faults each Host runs calls.
//	A9 What a Host holds is within its limits.
//	A10 A Host keeps no outcome and no invocation id for longer than their lifetime.
//	R1 A Runtime from which nothing was received for three heartbeats and the next one gets no call.
type model struct {
	sim *sim.World

	mu       sync.Mutex // guards all below
	count    int
	calls    int // of tools
	sessions []*session
	list     []*call
	runs     map[string]int // by invocation id
}

type session struct {
	id      string
	expires time.Duration // at the earliest; 0: after the run
	destroy time.Duration // 0: not tried
	endedAt time.Duration // acknowledged; 0: not ended
}

func (s *session) mayHaveExpired(now time.Duration) bool { return s.expires > 0 && now >= s.expires }

type call struct {
	id, tool string
	session  *session
	n        int // of a stream

	isCollected bool // into one result: a repeat is the same request
	answer      string
	answered    time.Duration // end of the first successful call
}

func newModel(w *sim.World) *model { return &model{sim: w, runs: map[string]int{}} }

func (m *model) next(name string) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.count++
	return fmt.Sprint(name, m.count)
}

// number returns the number of a run of a tool.
func (m *model) number() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.calls++
	return m.calls
}

// ran notes a run and holds it to A1.
func (m *model) ran(id string) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.runs[id]++
	runs := m.runs[id]
	for _, c := range m.list {
		if c.id == id && runs > 1 && (c.tool != "again" || runs > 1+m.sim.FaultCount()) {
			m.sim.Failf("A1", "", "run %d of call %s of tool %s", runs, id, c.tool)
		}
	}
	return runs
}

// runsOf returns the number of runs of a call.
func (m *model) runsOf(id string) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.runs[id]
}

func (m *model) created(s *session) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.sessions = append(m.sessions, s)
}

// toolOf returns the tool of a call, or nothing.
func (m *model) toolOf(id string) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, c := range m.list {
		if c.id == id {
			return c.tool
		}
	}
	return ""
}

func (m *model) begin(c *call) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.list = append(m.list, c)
}

// destroying notes the first attempt to end a session.
func (m *model) destroying(s *session) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if s.destroy == 0 {
		s.destroy = m.sim.Now()
	}
}

func (m *model) destroyed(s *session) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if s.endedAt == 0 {
		s.endedAt = m.sim.Now()
	}
}

// isDoubtful reports whether the run has faults that permit a call to lose its outcome.
func (m *model) isDoubtful(c *call) bool {
	return m.sim.IsClockWrong() || m.sim.HasFault(storeErrors...) || c.tool != "again" && m.sim.HasFault(fault.Delay)
}

// answered holds the answer of a call to A2, A3 and A5. The attempt began at start.
func (m *model) answered(c *call, start time.Duration, answer string, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var remote *altar.Error
	switch {
	case err == nil && c.answered > 0 && answer != c.answer:
		m.sim.Failf("A2", "", "call %s: answers %q and %q", c.id, c.answer, answer)
	case err == nil:
		m.succeededLocked(c, start, answer)
	case !errors.As(err, &remote) || !remote.Remote:
	case remote.Code == altar.ErrSessionInvalid:
		if c.session.destroy == 0 && !c.session.mayHaveExpired(m.sim.Now()) && !m.sim.IsClockWrong() {
			m.sim.Failf("A5", "", "session %s of call %s is not valid: %v", c.session.id, c.id, err)
		}
	case c.answered > 0 && c.answered < start && isOutcome(remote) && !m.isDoubtful(c):
		m.sim.Failf("A3", "", "call %s had the answer %q, and failed later: %v", c.id, c.answer, err)
	}
}

// succeededLocked notes a successful answer. m.mu must be held.
func (m *model) succeededLocked(c *call, start time.Duration, answer string) {
	if c.answered == 0 {
		c.answered, c.answer = m.sim.Now(), answer
	}
	if m.runs[c.id] == 0 {
		m.sim.Failf("A2", "", "call %s was answered and has not run", c.id)
	}
	if s := c.session; s.endedAt > 0 && s.endedAt+2*time.Minute < start && !m.sim.IsClockWrong() {
		m.sim.Failf("A5", "", "call %s ran in session %s, which ended at %v", c.id, s.id, s.endedAt)
	}
}

// isOutcome reports whether an error is the outcome of the call, and not a refusal of this attempt or its cancellation
// by a client whose context has ended.
func isOutcome(e *altar.Error) bool {
	return e.Code == altar.ErrExecutionFailed && e.Reason() != altar.ReasonCancelled || e.Code == altar.ErrExecutionTimeout ||
		e.Code == altar.ErrRuntimeUnavailable && e.Reason() == altar.ReasonDisconnected
}

// streamed holds the payloads of a stream to A4, and returns its answer.
func (m *model) streamed(c *call, chunks []json.RawMessage, err error) string {
	got := make([]string, len(chunks))
	for i, raw := range chunks {
		got[i] = number(raw)
		if got[i] != strconv.Itoa(i) {
			m.sim.Failf("A4", "", "call %s: payloads %q", c.id, got[:i+1])
		}
	}
	if err == nil && len(got) != c.n {
		m.sim.Failf("A4", "", "call %s ended after %d of %d payloads", c.id, len(got), c.n)
	}
	return fmt.Sprint(got)
}

// number returns the number of a payload of a stream.
func number(raw json.RawMessage) string {
	if s := text(raw); s != "" {
		before, _, _ := strings.Cut(s, " ")
		return before
	}
	return string(raw)
}

// open returns the sessions that no client has tried to end and that have not expired.
func (m *model) open() []*session {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(m.sessions), func(s *session) bool { return s.destroy > 0 || s.mayHaveExpired(m.sim.Now()) })
}
