// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package session

import (
	"slices"
	"strconv"
	"time"

	"github.com/fivewire/fivewire/internal/strictjson"
)

// A Lane is a class of requests with a separate bound (A2E-D55).
type Lane uint8

// The lanes.
const (
	LaneOrdinary Lane = iota
	LaneWaiting       // waits for other work, without a slot
	LaneControl       // stops or shows other work; does not queue
)

// A Call is a request or an event of the agent.
type Call struct {
	ID         string // of a request
	IsEvent    bool   // it gets no answer
	Lane       Lane
	Objects    []string      // calls with a common one do not run at the same time
	Names      []string      // of the process or subagent that a control request is about
	Capability string        // that it belongs to, or empty
	Timeout    time.Duration // that the request names; zero for none
	Arrived    time.Time
	Text       []byte // of the request, in which names are looked up until it starts; nil has any name
	Owner      any    // of the caller

	// For the checks only.
	IsKnown      bool   // a registered type or one of the catalogue
	HasRoute     bool   // a handler serves the type; of an unknown type the fallback
	SessionID    string // that the request names, or empty
	IsOverBudget bool   // the host has no room for it
	IsShutDown   bool   // the host starts no work

	key        string
	deadline   time.Time
	isStarted  bool
	isAnswered bool
	seq        int64 // of the next event
}

// A check refuses a request. The table has those of A2E-D26 in their order, behind those of the base types.
type check struct {
	reason  Reason
	applies func(s *Session, c *Call) bool
}

var checks = [...]check{
	{reasonReplied, func(s *Session, c *Call) bool { return s.IsReplied(c.ID) }},
	{ReasonInterrupted, func(s *Session, c *Call) bool { return s.isClaimed(c.ID) }},
	{ReasonDraining, func(s *Session, _ *Call) bool { return s.state == StateDraining }},
	{ReasonNoHandshake, func(s *Session, _ *Call) bool { return s.state == StateNew && !s.isOpen }},
	{reasonRepeated, func(s *Session, c *Call) bool { return s.calls[c.ID] != nil }},
	{ReasonDuplicateID, func(s *Session, c *Call) bool { return s.answered.has(c.ID) }},
	{ReasonUnknownType, func(_ *Session, c *Call) bool { return !c.IsKnown && !c.HasRoute }},
	{ReasonNotNegotiated, func(s *Session, c *Call) bool { return c.IsKnown && !s.accepts(c.Capability) }},
	{ReasonSessionID, func(s *Session, c *Call) bool { return c.IsKnown && c.SessionID != "" && c.SessionID != s.id }},
	{ReasonUnsupported, func(_ *Session, c *Call) bool { return !c.HasRoute }},
	{ReasonOverBudget, func(_ *Session, c *Call) bool { return c.IsOverBudget }},
	{ReasonOverloaded, func(s *Session, c *Call) bool { return !s.hasRoom(c) }},
	{ReasonShutDown, func(_ *Session, c *Call) bool { return c.IsShutDown }},
}

// eventChecks are those of an event. An event that one applies to is dropped (A2E-D16).
var eventChecks = [...]check{
	{reasonReplied, func(s *Session, c *Call) bool { return s.IsReplied(c.ID) || s.isClaimed(c.ID) }},
	{ReasonNoHandshake, func(s *Session, _ *Call) bool { return s.state != StateActive && !(s.state == StateNew && s.isOpen) }},
	{ReasonUnsupported, func(_ *Session, c *Call) bool { return !c.HasRoute }},
	{ReasonNotNegotiated, func(s *Session, c *Call) bool { return !s.accepts(c.Capability) }},
	{ReasonOverBudget, func(_ *Session, c *Call) bool { return c.IsOverBudget }},
	{ReasonOverloaded, func(s *Session, c *Call) bool { return !s.hasRoom(c) }},
	{ReasonShutDown, func(_ *Session, c *Call) bool { return c.IsShutDown }},
}

// IsReplied reports whether a failed host answered the message with an id.
func (s *Session) IsReplied(id string) bool {
	_, ok := s.replied[id]
	return ok || s.replied != nil && s.answered.has(id)
}

func (s *Session) isClaimed(id string) bool {
	_, ok := s.claimed[id]
	return ok
}

func (s *Session) accepts(capability string) bool { return capability == "" || s.accepted[capability] }

// Accepts reports whether a capability was accepted in the handshake.
func (s *Session) Accepts(capability string) bool {
	return s.state != StateNew && s.accepted[capability]
}

// Receive processes a request or an event, and reports whether it was admitted.
func (s *Session) Receive(now time.Time, c *Call) bool {
	if s.state == StateClosed {
		return false
	}
	table := checks[:]
	if c.IsEvent {
		table = eventChecks[:]
	}
	for i := range table {
		if table[i].applies(s, c) {
			s.refuse(c, table[i].reason)
			return false
		}
	}
	s.admit(now, c)
	return true
}

func (s *Session) refuse(c *Call, reason Reason) {
	switch {
	case reason == reasonReplied:
	case c.IsEvent, reason == reasonRepeated:
		s.do(Effect{Do: DoDrop})
	default:
		s.answered.add(c.ID)
		s.do(Effect{Do: DoRefuse, Call: c, Reason: reason})
	}
}

func (s *Session) admit(now time.Time, c *Call) {
	c.key = c.ID
	if c.IsEvent {
		s.number++
		c.key = "\xff" + strconv.FormatUint(s.number, 10) // no id of a request, which is valid UTF-8
	}
	limit := s.limits.CallTimeout
	if c.Timeout > 0 {
		limit = min(limit, c.Timeout)
	}
	c.deadline = c.Arrived.Add(limit)
	s.setDue(c.deadline)
	s.calls[c.key] = c
	s.arrivals = append(s.arrivals, c)
	s.queue = append(s.queue, c)
	s.schedule(now)
}

// hasRoom reports whether a new call is within the bounds of its lane.
func (s *Session) hasRoom(c *Call) bool {
	queued := int64(0)
	for _, q := range s.queue {
		if q.Lane == c.Lane {
			queued++
		}
	}
	if c.Lane == LaneWaiting {
		return queued+s.running[LaneWaiting] < s.limits.MaxWaiting
	}
	return queued < s.limits.QueueLimit || s.canStart(c, s.queue)
}

// A rule keeps a call from starting behind calls that have not started (A2E-D27, A2E-D55).
type rule func(s *Session, c *Call, earlier []*Call) bool

var rules = [...][]rule{
	LaneOrdinary: {isSlotless, isBehind, isBusy},
	LaneWaiting:  {isBehind, isBusy},
	LaneControl:  {isControlled, follows, isBusy},
}

func isSlotless(s *Session, _ *Call, _ []*Call) bool {
	return s.running[LaneOrdinary] >= s.limits.MaxConcurrent
}

func isControlled(s *Session, _ *Call, _ []*Call) bool {
	return s.running[LaneControl] >= s.limits.MaxControl
}

func isBehind(_ *Session, _ *Call, earlier []*Call) bool {
	return slices.ContainsFunc(earlier, func(q *Call) bool { return q.Lane != LaneControl })
}

// follows reports whether a control request is about the process or subagent of an earlier request, or, if it names
// none, about its capability. An event, such as a grant of output, does not wait for a request that waits for it.
func follows(_ *Session, c *Call, earlier []*Call) bool {
	return !c.IsEvent && slices.ContainsFunc(earlier, func(q *Call) bool {
		if len(c.Names) == 0 {
			return q.Capability == c.Capability
		}
		return q.Text == nil || hasText(q.Text, c.Names)
	})
}

// hasText reports whether one of the texts is a string in v, at any depth.
func hasText(v strictjson.Value, texts []string) bool {
	if s, ok := v.Text(); ok {
		return slices.Contains(texts, s)
	}
	for w := v.Members(); w.Next(); {
		if hasText(w.Value, texts) {
			return true
		}
	}
	for e := v.Elements(); e.Next(); {
		if hasText(e.Value, texts) {
			return true
		}
	}
	return false
}

func isBusy(s *Session, c *Call, _ []*Call) bool {
	return slices.ContainsFunc(c.Objects, func(object string) bool { return s.busy[object] })
}

func (s *Session) canStart(c *Call, earlier []*Call) bool {
	return !slices.ContainsFunc(rules[c.Lane], func(r rule) bool { return r(s, c, earlier) })
}

// schedule starts the calls whose turn it is, in the order of arrival.
func (s *Session) schedule(now time.Time) {
	n := 0
	for _, c := range s.queue {
		if c.deadline.After(now) && s.canStart(c, s.queue[:n]) { // else Tick is about to answer it
			s.start(c)
			continue
		}
		s.queue[n] = c
		n++
	}
	clear(s.queue[n:])
	s.queue = s.queue[:n]
}

func (s *Session) start(c *Call) {
	c.isStarted, c.Text = true, nil
	s.running[c.Lane]++
	for _, object := range c.Objects {
		s.busy[object] = true
	}
	s.do(Effect{Do: DoStart, Call: c})
}

// Return frees the slot and the objects of a call whose handler has returned, also of one that was answered before
// (A2E-D27).
func (s *Session) Return(now time.Time, c *Call) {
	s.running[c.Lane]--
	for _, object := range c.Objects {
		delete(s.busy, object)
	}
	s.scheduleOpen(now)
}

func (s *Session) scheduleOpen(now time.Time) {
	if s.state != StateClosed {
		s.schedule(now)
	}
}

// IsAnswered reports whether a call takes no answer and no event.
func (s *Session) IsAnswered(c *Call) bool { return c.isAnswered }

// Seq returns the number of the next event of a call.
func (s *Session) Seq(c *Call) int64 { return c.seq }

// Emit notes that an event of a call is sent.
func (s *Session) Emit(c *Call) { c.seq++ }

// Answer notes that the answer of the handler, if there is one, is sent. It returns false for a call that was
// answered before.
func (s *Session) Answer(c *Call) bool {
	if c.isAnswered {
		return false
	}
	s.finish(c, ReasonNone)
	return true
}

// Cancel ends a call of the agent (A2E-D38).
func (s *Session) Cancel(now time.Time, id string) {
	c := s.calls[id]
	if c == nil || c.IsEvent {
		s.do(Effect{Do: DoDrop})
		return
	}
	s.fail(c, ReasonCancelled)
	s.scheduleOpen(now)
}

// Cancels reports whether the cancel extension is agreed.
func (s *Session) Cancels() bool { return s.cancels && s.state != StateClosed }

// fail answers a call with an error.
func (s *Session) fail(c *Call, reason Reason) {
	s.do(Effect{Do: DoFail, Call: c, Reason: reason})
	s.finish(c, reason)
}

// finish removes an answered call. Its slot is taken until Return.
func (s *Session) finish(c *Call, reason Reason) {
	c.isAnswered = true
	if !c.IsEvent {
		s.answered.add(c.ID)
	}
	s.remove(c)
	s.do(Effect{Do: DoFinish, Call: c, Reason: reason})
	if s.state == StateDraining && len(s.calls) == 0 {
		s.close(s.end)
	}
}

func (s *Session) remove(c *Call) {
	delete(s.calls, c.key)
	s.arrivals = without(s.arrivals, c)
	if !c.isStarted {
		s.queue = without(s.queue, c)
	}
}

func without(list []*Call, c *Call) []*Call {
	if i := slices.Index(list, c); i >= 0 {
		return slices.Delete(list, i, i+1)
	}
	return list
}

// IsStarted reports whether the handler of a call was started.
func (c *Call) IsStarted() bool { return c.isStarted }
