// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package a2e

import "github.com/fivewire/fivewire/a2e/internal/session"

// laneOfType returns the lane of a type of the catalogue.
func laneOfType(name string) session.Lane {
	switch name {
	case "multi_agent/await", "SUBAGENT_AWAIT_REQ":
		return session.LaneWaiting
	case "multi_agent/terminate", "multi_agent/list", "SUBAGENT_CANCEL_REQ", "SUBAGENT_TERMINATE_REQ",
		"SUBAGENT_LIST_REQ", "proc/kill/req", "proc/status/req":
		return session.LaneControl
	}
	return session.LaneOrdinary
}

func laneOf(r *Route) session.Lane {
	switch {
	case r.Control:
		return session.LaneControl
	case r.Waiting:
		return session.LaneWaiting
	}
	return laneOfType(r.Type.Name)
}

// objectNames returns the processes and subagents that a request names itself, for the control lane.
func objectNames(m *Message) (names []string) {
	for _, member := range [...]string{"proc_id", "subagent_id"} {
		if name := textMember(m, member); name != "" {
			names = append(names, name)
		}
	}
	return names
}
