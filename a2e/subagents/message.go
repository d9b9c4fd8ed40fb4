// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package subagents is the namespace of subagents: a host runs tasks in them, and an agent spawns, awaits and
// stops them. Its capability is multi_agent.
package subagents

import (
	"encoding/json"

	"github.com/fivewire/fivewire/a2e"
)

// Capability is the capability that agents negotiate for this namespace.
const Capability = "multi_agent"

// Types returns the types of the namespace with their models.
func Types() []a2e.Type {
	return []a2e.Type{
		a2e.TypeOf[SpawnRequest]("multi_agent/spawn"),
		a2e.TypeOf[SpawnResponse]("multi_agent/spawn/resp"),
		a2e.TypeOf[DelegateRequest]("multi_agent/delegate"),
		a2e.TypeOf[DelegateResponse]("multi_agent/delegate/resp"),
		a2e.TypeOf[AwaitRequest]("multi_agent/await"),
		a2e.TypeOf[AwaitResponse]("multi_agent/await/resp"),
		a2e.TypeOf[ListRequest]("multi_agent/list"),
		a2e.TypeOf[ListResponse]("multi_agent/list/resp"),
		a2e.TypeOf[TerminateRequest]("multi_agent/terminate"),
		a2e.TypeOf[TerminateResponse]("multi_agent/terminate/resp"),
		a2e.TypeOf[SubagentSpawnRequest]("SUBAGENT_SPAWN_REQ"),
		a2e.TypeOf[SubagentSpawnResponse]("SUBAGENT_SPAWN_RESP"),
		a2e.TypeOf[SubagentDelegateRequest]("SUBAGENT_DELEGATE_REQ"),
		a2e.TypeOf[SubagentDelegateResponse]("SUBAGENT_DELEGATE_RESP"),
		a2e.TypeOf[AwaitRequest]("SUBAGENT_AWAIT_REQ"),
		a2e.TypeOf[SubagentAwaitResponse]("SUBAGENT_AWAIT_RESP"),
		a2e.TypeOf[SubagentMessageRequest]("SUBAGENT_MESSAGE_REQ"),
		a2e.TypeOf[SubagentMessageResponse]("SUBAGENT_MESSAGE_RESP"),
		a2e.TypeOf[ListRequest]("SUBAGENT_LIST_REQ"),
		a2e.TypeOf[SubagentListResponse]("SUBAGENT_LIST_RESP"),
		a2e.TypeOf[TerminateRequest]("SUBAGENT_CANCEL_REQ"),
		a2e.TypeOf[TerminateRequest]("SUBAGENT_TERMINATE_REQ"),
		a2e.TypeOf[SubagentMergeRequest]("SUBAGENT_MERGE_REQ"),
		a2e.TypeOf[SubagentMergeResponse]("SUBAGENT_MERGE_RESP"),
		a2e.TypeOf[SubagentEvent]("SUBAGENT_EVENT"),
	}
}

// A SpawnRequest is the message "multi_agent/spawn".
type SpawnRequest struct {
	Name     string          `json:"name"`
	Role     string          `json:"role,omitzero" jsonmap:"always"`
	Model    string          `json:"model,omitzero" jsonmap:"default=default"`
	MaxSteps *int64          `json:"max_steps,omitzero" jsonmap:"default=20"`
	Metadata json.RawMessage `json:"metadata,omitzero" jsonmap:"always,object"`
}

// A SpawnResponse is the message "multi_agent/spawn/resp".
type SpawnResponse struct {
	ReqID      string `json:"req_id,omitzero" jsonmap:"always"` // the request answered
	SubagentID string `json:"subagent_id,omitzero" jsonmap:"always"`
	Status     string `json:"status,omitzero" jsonmap:"always"`
}

// A DelegateRequest is the message "multi_agent/delegate".
type DelegateRequest struct {
	SubagentID      string   `json:"subagent_id"`
	TaskName        string   `json:"task_name"`
	Instruction     string   `json:"instruction"`
	SuccessCriteria []string `json:"success_criteria,omitzero" jsonmap:"always"`
}

// A DelegateResponse is the message "multi_agent/delegate/resp".
type DelegateResponse struct {
	ReqID    string `json:"req_id,omitzero" jsonmap:"always"` // the request answered
	Accepted *bool  `json:"accepted,omitzero" jsonmap:"default=true"`
	Status   string `json:"status,omitzero" jsonmap:"always"`
}

// An AwaitRequest is the message "multi_agent/await" and "SUBAGENT_AWAIT_REQ".
type AwaitRequest struct {
	SubagentID string `json:"subagent_id"`
}

// An AwaitResponse is the message "multi_agent/await/resp".
type AwaitResponse struct {
	ReqID      string          `json:"req_id,omitzero" jsonmap:"always"` // the request answered
	SubagentID string          `json:"subagent_id,omitzero" jsonmap:"always"`
	Status     string          `json:"status,omitzero" jsonmap:"always"`
	Result     json.RawMessage `json:"result,omitzero" jsonmap:"object"`
	Error      *string         `json:"error,omitzero"`
}

// A ListRequest is the message "multi_agent/list" and "SUBAGENT_LIST_REQ".
type ListRequest struct {
}

// A ListResponse is the message "multi_agent/list/resp".
type ListResponse struct {
	ReqID     string            `json:"req_id,omitzero" jsonmap:"always"` // the request answered
	Subagents []json.RawMessage `json:"subagents,omitzero" jsonmap:"always,object"`
}

// A TerminateRequest is the message "multi_agent/terminate", "SUBAGENT_CANCEL_REQ" and "SUBAGENT_TERMINATE_REQ".
type TerminateRequest struct {
	SubagentID string `json:"subagent_id"`
}

// A TerminateResponse is the message "multi_agent/terminate/resp".
type TerminateResponse struct {
	ReqID      string `json:"req_id,omitzero" jsonmap:"always"` // the request answered
	Success    bool   `json:"success,omitzero" jsonmap:"always"`
	SubagentID string `json:"subagent_id,omitzero" jsonmap:"always"`
}
