// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package subagents

import (
	"encoding/json"

	"github.com/fivewire/fivewire/a2e"
)

// A SubagentSpawnRequest is the message "SUBAGENT_SPAWN_REQ".
type SubagentSpawnRequest struct {
	Agent         Config  `json:"agent"`
	ParentAgentID *string `json:"parent_agent_id,omitzero"`
	RootAgentID   *string `json:"root_agent_id,omitzero"`
}

// A SubagentSpawnResponse is the message "SUBAGENT_SPAWN_RESP".
type SubagentSpawnResponse struct {
	ReqID      string `json:"req_id,omitzero" jsonmap:"always"` // the request answered
	SubagentID string `json:"subagent_id"`
	Status     string `json:"status"`
}

// A SubagentDelegateRequest is the message "SUBAGENT_DELEGATE_REQ".
type SubagentDelegateRequest struct {
	SubagentID string `json:"subagent_id"`
	Task       Task   `json:"task"`
}

// A SubagentDelegateResponse is the message "SUBAGENT_DELEGATE_RESP".
type SubagentDelegateResponse struct {
	ReqID    string `json:"req_id,omitzero" jsonmap:"always"` // the request answered
	Accepted *bool  `json:"accepted,omitzero" jsonmap:"default=true"`
	Status   string `json:"status"`
}

// A SubagentAwaitResponse is the message "SUBAGENT_AWAIT_RESP".
type SubagentAwaitResponse struct {
	ReqID      string          `json:"req_id,omitzero" jsonmap:"always"` // the request answered
	SubagentID string          `json:"subagent_id"`
	Status     string          `json:"status"`
	Result     json.RawMessage `json:"result,omitzero" jsonmap:"object"`
	Error      *string         `json:"error,omitzero"`
}

// A SubagentMessageRequest is the message "SUBAGENT_MESSAGE_REQ".
type SubagentMessageRequest struct {
	FromSubagentID string  `json:"from_subagent_id"`
	ToSubagentID   string  `json:"to_subagent_id"`
	Message        Payload `json:"message"`
}

// A SubagentMessageResponse is the message "SUBAGENT_MESSAGE_RESP".
type SubagentMessageResponse struct {
	ReqID     string `json:"req_id,omitzero" jsonmap:"always"` // the request answered
	Delivered *bool  `json:"delivered,omitzero" jsonmap:"default=true"`
}

// A SubagentListResponse is the message "SUBAGENT_LIST_RESP".
type SubagentListResponse struct {
	ReqID     string `json:"req_id,omitzero" jsonmap:"always"` // the request answered
	Subagents []Info `json:"subagents"`
}

// A SubagentMergeRequest is the message "SUBAGENT_MERGE_REQ".
type SubagentMergeRequest struct {
	SubagentIDs []string `json:"subagent_ids"`
	Strategy    string   `json:"strategy,omitzero" jsonmap:"default=hierarchical_summary"`
}

// A SubagentMergeResponse is the message "SUBAGENT_MERGE_RESP".
type SubagentMergeResponse struct {
	ReqID        string          `json:"req_id,omitzero" jsonmap:"always"` // the request answered
	MergedResult json.RawMessage `json:"merged_result" jsonmap:"object"`
}

// A SubagentEvent is the message "SUBAGENT_EVENT".
type SubagentEvent struct {
	SubagentID string          `json:"subagent_id"`
	Event      string          `json:"event"`
	Content    json.RawMessage `json:"content,omitzero" jsonmap:"always,object"`
}

// A Config limits a subagent.
type Config struct {
	Name           string          `json:"name"`
	Role           *string         `json:"role,omitzero"`
	Model          string          `json:"model"`
	SystemPrompt   *string         `json:"system_prompt,omitzero"`
	Capabilities   []string        `json:"capabilities,omitzero" jsonmap:"always"`
	MemoryScope    string          `json:"memory_scope,omitzero" jsonmap:"default=shared"`
	ToolScope      string          `json:"tool_scope,omitzero" jsonmap:"default=restricted"`
	MaxSteps       *int64          `json:"max_steps,omitzero" jsonmap:"default=40"`
	TimeoutSeconds *int64          `json:"timeout_seconds,omitzero" jsonmap:"default=600"`
	Metadata       json.RawMessage `json:"metadata,omitzero" jsonmap:"always,object"`

	Extra a2e.Members // what the catalogue does not name
}

// A Task is one task of a subagent.
type Task struct {
	Name            string          `json:"name"`
	Instruction     string          `json:"instruction"`
	SuccessCriteria []string        `json:"success_criteria,omitzero" jsonmap:"always"`
	Metadata        json.RawMessage `json:"metadata,omitzero" jsonmap:"always,object"`

	Extra a2e.Members // what the catalogue does not name
}

// An Info is the state of one subagent.
type Info struct {
	SubagentID    string  `json:"subagent_id"`
	Name          string  `json:"name"`
	Status        string  `json:"status"`
	ParentAgentID *string `json:"parent_agent_id,omitzero"`
	RootAgentID   *string `json:"root_agent_id,omitzero"`
	Depth         int64   `json:"depth,omitzero" jsonmap:"always"`
	Config        Config  `json:"config"`

	Extra a2e.Members // what the catalogue does not name
}

// A Payload is the content of a message between subagents.
type Payload struct {
	Type    string          `json:"type"`
	Content json.RawMessage `json:"content"`

	Extra a2e.Members // what the catalogue does not name
}

// A SourceRef names the source of an object.
type SourceRef struct {
	SessionID    *string `json:"session_id,omitzero"` // of the handshake; empty means the current session
	TrajectoryID *string `json:"trajectory_id,omitzero"`
	TurnID       *string `json:"turn_id,omitzero"`

	Extra a2e.Members // what the catalogue does not name
}
