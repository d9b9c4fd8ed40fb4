// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package session holds the session of an agent on a host as pure steps (section e of the state machines, A2E-D26
// to A2E-D28, A2E-D35, A2E-D38, A2E-D55). A step takes an event and the time, changes the state and adds effects,
// which the caller carries out in their order. Nothing here starts a goroutine, takes a lock, reads a clock or
// encodes a message.
package session

import (
	"cmp"
	"slices"
	"strings"
	"time"
)

// A State is the phase of a session.
type State uint8

// The states of a session.
const (
	StateNew      State = iota // before the first successful handshake
	StateActive                // serves requests
	StateDraining              // finishes the admitted requests
	StateClosed
)

// A Reason is why a request is refused or fails.
type Reason uint8

// The reasons, except for the first those of an error to the agent.
const (
	ReasonNone Reason = iota
	ReasonDraining
	ReasonNoHandshake
	ReasonDuplicateID
	ReasonUnknownType
	ReasonNotNegotiated
	ReasonSessionID
	ReasonUnsupported
	ReasonOverBudget  // of the principal or the host
	ReasonOverloaded  // of the session
	ReasonShutDown    // the host refuses new work
	ReasonInterrupted // a failed host may have started it
	ReasonDeadline
	ReasonEnd // of the session
	ReasonCancelled

	reasonRepeated // in flight: no answer
	reasonReplied  // by a failed host: no answer
)

// An End is why a session closes.
type End uint8

// The ends of a session.
const (
	EndAgent     End = iota // a shutdown message, or the end of the input
	EndHost                 // the host shuts down
	EndRefused              // the last permitted handshake was refused
	EndHandshake            // no handshake in time
	EndEvicted              // a newer session needed the place of one without a handshake
	EndExpired              // the principal expired
	EndIdle                 // not used for too long
	EndCut                  // the connection failed, or the agent does not read
)

// Limits bound a session. All are positive.
type Limits struct {
	MaxConcurrent int64 // running ordinary requests
	MaxControl    int64 // running control requests
	MaxWaiting    int64 // requests of the waiting lane
	QueueLimit    int64 // requests of a lane that have not started
	MaxAttempts   int   // handshakes
	MaxAnswered   int   // kept ids of answered requests

	CallTimeout  time.Duration // of a request
	DrainTimeout time.Duration // zero means none
}

// An Effect is what the caller has to do. Call is nil for an end.
type Effect struct {
	Do     Do
	Call   *Call
	Reason Reason
	End    End
}

// Do names an effect.
type Do uint8

// The effects.
const (
	DoStart  Do = iota // call the handler
	DoRefuse           // answer a request that was not admitted with the reason
	DoFail             // answer an admitted request with the reason, and end its context
	DoFinish           // an admitted call is answered; behind its answer
	DoDrop             // count a message without effect
	DoClose            // close the session; the last effect
)

// A Session is the state of one session. The zero value is not ready; see [New].
type Session struct {
	limits Limits
	isOpen bool // requests are served before the handshake

	state    State
	id       string
	agentID  string
	accepted map[string]bool // capabilities
	cancels  bool            // the cancel extension is agreed
	attempts int             // refused handshakes

	calls     map[string]*Call // in flight, by key
	arrivals  []*Call          // the same in order of arrival
	queue     []*Call          // calls that wait for their start, in order of arrival
	running   [3]int64         // started calls whose handlers have not returned, by lane
	busy      map[string]bool  // objects of these calls
	answered  ids
	number    uint64 // of the last event
	drainEnd  time.Time
	end       End       // of the drain
	handshake time.Time // end of the wait for the first handshake, or zero
	expiry    time.Time // of the principal, or zero
	due       time.Time // not after the first deadline of a call, or zero

	replied, claimed map[string]struct{} // requests that a failed host answered or started; nil otherwise

	effects []Effect
}

// New returns a session that waits for its handshake until a time, zero for none. If open is not nil, it serves
// requests of these capabilities before it.
func New(limits Limits, open map[string]bool, handshake time.Time) *Session {
	return &Session{limits: limits, isOpen: open != nil, accepted: open, handshake: handshake, calls: map[string]*Call{},
		busy: map[string]bool{}, answered: ids{max: limits.MaxAnswered}}
}

// State returns the phase of the session.
func (s *Session) State() State { return s.state }

// InFlight returns the number of admitted calls without an answer.
func (s *Session) InFlight() int { return len(s.calls) }

// Effects returns the effects since the last call of it, valid until the next step.
func (s *Session) Effects() []Effect {
	done := s.effects
	s.effects = s.effects[:0]
	return done
}

func (s *Session) do(e Effect) { s.effects = append(s.effects, e) }

// Due returns when [Session.Tick] is to be called at the latest, or the zero time.
func (s *Session) Due() time.Time {
	due := s.due
	for _, t := range [...]time.Time{s.drainEnd, s.handshake, s.expiry} {
		if due.IsZero() || !t.IsZero() && t.Before(due) {
			due = t
		}
	}
	return due
}

// A Handshake is the outcome of an authenticated handshake request.
type Handshake struct {
	AgentID   string
	SessionID string          // of a new session
	Accepted  map[string]bool // capabilities
	Cancels   bool            // the cancel extension is agreed
	Expires   time.Time       // of the principal, or zero
	Refusal   Refusal         // by the host
}

// A Refusal is why a handshake fails.
type Refusal uint8

// The refusals; Accepted means none.
const (
	Accepted Refusal = iota
	RefusedAuth
	RefusedCapabilities
	RefusedVersion
	RefusedServer
)

// Handshake processes a handshake and returns its outcome (A2E-D22 to A2E-D24). The caller answers it before it
// carries out the effects.
func (s *Session) Handshake(h *Handshake) Refusal {
	refusal := h.Refusal
	switch {
	case s.state == StateDraining:
		refusal = RefusedServer
	case refusal == RefusedServer || refusal == RefusedVersion:
	case refusal == RefusedAuth, s.state == StateActive && h.AgentID != s.agentID:
		refusal = RefusedAuth
	}
	if refusal == Accepted {
		if s.state == StateNew {
			s.begin(h)
		}
		s.agree(h)
		return Accepted
	}
	if s.state == StateNew {
		if s.attempts++; s.attempts >= s.limits.MaxAttempts {
			s.cutOff(EndRefused) // a session without handshake may have work in flight
		}
	}
	return refusal
}

func (s *Session) begin(h *Handshake) {
	s.state, s.id, s.agentID, s.handshake = StateActive, h.SessionID, h.AgentID, time.Time{}
}

func (s *Session) agree(h *Handshake) {
	s.accepted, s.cancels, s.expiry = h.Accepted, h.Cancels, h.Expires
}

// Resume makes the session that of a failed host. Requests in replied were answered there, and those in claimed may
// have started; both count until Recovered.
func (s *Session) Resume(h *Handshake, replied, claimed map[string]struct{}) {
	s.begin(h)
	s.agree(h)
	s.replied, s.claimed = replied, claimed
	for id := range replied {
		s.answered.add(id)
	}
}

// Recovered ends the recovery of the session of a failed host.
func (s *Session) Recovered() { s.replied, s.claimed = nil, nil }

// Evict closes a session before its handshake, and reports whether it was one.
func (s *Session) Evict(end End) bool {
	if s.state != StateNew {
		return false
	}
	s.close(end)
	return true
}

// Drain refuses new requests, and closes the session when the admitted ones are answered, or after the timeout
// (A2E-D35).
func (s *Session) Drain(now time.Time, timeout time.Duration, end End) {
	if s.state == StateClosed || s.state == StateDraining && timeout > 0 {
		return
	}
	if len(s.calls) == 0 {
		s.close(end)
		return
	}
	timeout = min(timeout, s.limits.DrainTimeout)
	if timeout <= 0 {
		s.cutOff(end)
		return
	}
	s.state, s.drainEnd, s.end = StateDraining, now.Add(timeout), end
}

// HandOver leaves the calls that have not started to another host.
func (s *Session) HandOver() {
	if s.state != StateActive {
		return
	}
	queue := s.queue
	s.queue = nil
	for _, c := range queue {
		c.isAnswered = true
		s.remove(c)
		s.do(Effect{Do: DoFinish, Call: c, Reason: ReasonInterrupted})
	}
}

// cutOff answers every unfinished call in the order of arrival, and closes the session.
func (s *Session) cutOff(end End) {
	s.queue = nil // keeps calls from starting
	for _, c := range slices.Clone(s.arrivals) {
		s.fail(c, ReasonEnd)
	}
	s.close(end)
}

func (s *Session) close(end End) {
	if s.state == StateClosed {
		return
	}
	s.state, s.queue = StateClosed, nil
	s.drainEnd, s.handshake, s.expiry, s.due = time.Time{}, time.Time{}, time.Time{}, time.Time{}
	s.do(Effect{Do: DoClose, End: end})
}

// Tick carries out what is due (A2E-D28, A2E-D35, A2E-D61).
func (s *Session) Tick(now time.Time) {
	switch {
	case !s.handshake.IsZero() && !s.handshake.After(now):
		s.Evict(EndHandshake)
		return
	case !s.drainEnd.IsZero() && !s.drainEnd.After(now):
		s.cutOff(s.end)
		return
	case !s.expiry.IsZero() && !s.expiry.After(now):
		s.cutOff(EndExpired)
		return
	case s.due.IsZero() || s.due.After(now):
		return
	}
	s.due = time.Time{}
	isOverdue := func(c *Call) bool { return !c.deadline.After(now) }
	s.queue = slices.DeleteFunc(s.queue, isOverdue) // keeps these calls from starting
	for _, c := range slices.Clone(s.arrivals) {
		if isOverdue(c) && s.state != StateClosed {
			s.fail(c, ReasonDeadline)
		}
	}
	s.schedule(now)
	for _, c := range s.arrivals {
		s.setDue(c.deadline)
	}
}

func (s *Session) setDue(t time.Time) {
	if s.due.IsZero() || t.Before(s.due) {
		s.due = t
	}
}

// ids are the last added ones, as many as max.
type ids struct {
	max  int
	set  map[string]struct{}
	ring []string
	next int
}

func (r *ids) has(id string) bool {
	_, ok := r.set[id]
	return ok
}

func (r *ids) add(id string) {
	if r.has(id) {
		return
	}
	id = strings.Clone(id) // it shares the memory of its whole message
	if r.set == nil {
		r.set = make(map[string]struct{})
	}
	if len(r.ring) < cmp.Or(r.max, 1) {
		r.ring = append(r.ring, id)
	} else {
		delete(r.set, r.ring[r.next])
		r.ring[r.next] = id
		r.next = (r.next + 1) % len(r.ring)
	}
	r.set[id] = struct{}{}
}
