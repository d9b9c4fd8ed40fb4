// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package a2e

import (
	"slices"
	"time"

	"github.com/fivewire/fivewire/internal/strictjson"
)

// A lane is a class of requests with a separate bound (A2E-D55).
type lane uint8

const (
	laneOrdinary lane = iota
	laneWaiting       // waits for other work, without a slot
	laneControl       // stops or shows other work; does not queue
)

// maxControls is the number of control requests of a session that run at once.
const maxControls = 16

// laneOfType returns the lane of a type of the catalogue.
func laneOfType(name string) lane {
	switch name {
	case "multi_agent/await", "SUBAGENT_AWAIT_REQ":
		return laneWaiting
	case "multi_agent/terminate", "multi_agent/list", "SUBAGENT_CANCEL_REQ", "SUBAGENT_TERMINATE_REQ",
		"SUBAGENT_LIST_REQ", "proc/kill/req", "proc/status/req":
		return laneControl
	}
	return laneOrdinary
}

func laneOf(r *Route) lane {
	switch {
	case r.Control:
		return laneControl
	case r.Waiting:
		return laneWaiting
	}
	return laneOfType(r.Type.Name)
}

// hasRoomLocked reports whether a new call is within the bounds of its lane. s.mu must be held.
func (s *Session) hasRoomLocked(c *Call, canRun bool) bool {
	queued := int64(0)
	for _, q := range s.queue {
		if q.lane == c.lane {
			queued++
		}
	}
	limits := &s.host.opts.Limits
	if c.lane == laneWaiting {
		return queued+s.running[laneWaiting] < limits.MaxWaiting
	}
	return canRun || queued < limits.QueueLimitPerSession
}

// canStartLocked reports whether a call may start behind earlier calls that have not started
// (A2E-D27, A2E-D55). s.mu must be held.
func (s *Session) canStartLocked(c *Call, earlier []*Call) bool {
	switch c.lane {
	case laneControl:
		// an event, such as a grant of output, must not wait for a request that waits for it
		if s.running[laneControl] >= maxControls || !c.silent && slices.ContainsFunc(earlier, c.mustFollow) {
			return false
		}
	case laneOrdinary:
		if s.running[laneOrdinary] >= s.host.opts.Limits.MaxConcurrentPerSession {
			return false
		}
	}
	isTurn := c.lane == laneControl || !slices.ContainsFunc(earlier, func(q *Call) bool { return q.lane != laneControl })
	return isTurn && !s.isBlockedLocked(c)
}

// scheduleLocked starts the calls whose turn it is, in the order of arrival. s.mu must be held.
func (s *Session) scheduleLocked() {
	n, now := 0, time.Now()
	for _, c := range s.queue {
		// overdue is about to answer a call after its deadline
		if c.deadline.After(now) && s.canStartLocked(c, s.queue[:n]) {
			s.startCallLocked(c)
			continue
		}
		s.queue[n] = c
		n++
	}
	clear(s.queue[n:])
	s.queue = s.queue[:n]
}

// mustFollow reports whether a control request is about an object of an earlier request: a process
// or subagent that both name, or any one of the capability if c names none.
func (c *Call) mustFollow(earlier *Call) bool {
	ids := make([]string, 0, 2)
	for _, name := range [...]string{"proc_id", "subagent_id"} {
		if id := textMember(c.Message, name); id != "" {
			ids = append(ids, id)
		}
	}
	if len(ids) == 0 {
		return earlier.capability == c.capability
	}
	if earlier.in > 64<<10 {
		return true // a search costs too much
	}
	text, err := c.Session.host.codec.append(nil, earlier.Message)
	return err != nil || namesAny(text, ids)
}

// namesAny reports whether one of the texts is a string in v, at any depth.
func namesAny(v strictjson.Value, texts []string) bool {
	if s, ok := v.Text(); ok {
		return slices.Contains(texts, s)
	}
	for w := v.Members(); w.Next(); {
		if namesAny(w.Value, texts) {
			return true
		}
	}
	for e := v.Elements(); e.Next(); {
		if namesAny(e.Value, texts) {
			return true
		}
	}
	return false
}
