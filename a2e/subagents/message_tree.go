// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package subagents

import (
	"encoding/json"

	"github.com/fivewire/fivewire/a2e"
)

// A SubagentSpawnRequest is the message "SUBAGENT_SPAWN_REQ".
type SubagentSpawnRequest struct {
	Agent         Config  `a2e:"agent,required"`
	ParentAgentID *string `a2e:"parent_agent_id,nullable"`
	RootAgentID   *string `a2e:"root_agent_id,nullable"`
}

// A SubagentSpawnResponse is the message "SUBAGENT_SPAWN_RESP".
type SubagentSpawnResponse struct {
	ReqID      string `a2e:"req_id"` // the request answered
	SubagentID string `a2e:"subagent_id,required"`
	Status     string `a2e:"status,required"`
}

// RequestID returns ReqID.
func (s *SubagentSpawnResponse) RequestID() string { return s.ReqID }

// A SubagentDelegateRequest is the message "SUBAGENT_DELEGATE_REQ".
type SubagentDelegateRequest struct {
	SubagentID string `a2e:"subagent_id,required"`
	Task       Task   `a2e:"task,required"`
}

// A SubagentDelegateResponse is the message "SUBAGENT_DELEGATE_RESP".
type SubagentDelegateResponse struct {
	ReqID    string `a2e:"req_id"` // the request answered
	Accepted bool   `a2e:"accepted,default=true"`
	Status   string `a2e:"status,required"`
}

// RequestID returns ReqID.
func (s *SubagentDelegateResponse) RequestID() string { return s.ReqID }

// A SubagentAwaitRequest is the message "SUBAGENT_AWAIT_REQ".
type SubagentAwaitRequest struct {
	SubagentID string `a2e:"subagent_id,required"`
}

// A SubagentAwaitResponse is the message "SUBAGENT_AWAIT_RESP".
type SubagentAwaitResponse struct {
	ReqID      string          `a2e:"req_id"` // the request answered
	SubagentID string          `a2e:"subagent_id,required"`
	Status     string          `a2e:"status,required"`
	Result     json.RawMessage `a2e:"result,object,nullable"`
	Error      *string         `a2e:"error,nullable"`
}

// RequestID returns ReqID.
func (s *SubagentAwaitResponse) RequestID() string { return s.ReqID }

// A SubagentMessageRequest is the message "SUBAGENT_MESSAGE_REQ".
type SubagentMessageRequest struct {
	FromSubagentID string  `a2e:"from_subagent_id,required"`
	ToSubagentID   string  `a2e:"to_subagent_id,required"`
	Message        Payload `a2e:"message,required"`
}

// A SubagentMessageResponse is the message "SUBAGENT_MESSAGE_RESP".
type SubagentMessageResponse struct {
	ReqID     string `a2e:"req_id"` // the request answered
	Delivered bool   `a2e:"delivered,default=true"`
}

// RequestID returns ReqID.
func (s *SubagentMessageResponse) RequestID() string { return s.ReqID }

// A SubagentListRequest is the message "SUBAGENT_LIST_REQ".
type SubagentListRequest struct {
}

// A SubagentListResponse is the message "SUBAGENT_LIST_RESP".
type SubagentListResponse struct {
	ReqID     string `a2e:"req_id"` // the request answered
	Subagents []Info `a2e:"subagents,required"`
}

// RequestID returns ReqID.
func (s *SubagentListResponse) RequestID() string { return s.ReqID }

// A SubagentCancelRequest is the message "SUBAGENT_CANCEL_REQ".
type SubagentCancelRequest struct {
	SubagentID string `a2e:"subagent_id,required"`
}

// A SubagentTerminateRequest is the message "SUBAGENT_TERMINATE_REQ".
type SubagentTerminateRequest struct {
	SubagentID string `a2e:"subagent_id,required"`
}

// A SubagentMergeRequest is the message "SUBAGENT_MERGE_REQ".
type SubagentMergeRequest struct {
	SubagentIDs []string `a2e:"subagent_ids,required"`
	Strategy    string   `a2e:"strategy,default=hierarchical_summary"`
}

// A SubagentMergeResponse is the message "SUBAGENT_MERGE_RESP".
type SubagentMergeResponse struct {
	ReqID        string          `a2e:"req_id"` // the request answered
	MergedResult json.RawMessage `a2e:"merged_result,object,required"`
}

// RequestID returns ReqID.
func (s *SubagentMergeResponse) RequestID() string { return s.ReqID }

// A SubagentEvent is the message "SUBAGENT_EVENT".
type SubagentEvent struct {
	SubagentID string          `a2e:"subagent_id,required"`
	Event      string          `a2e:"event,required"`
	Content    json.RawMessage `a2e:"content,object"`
}

// A Config says what a subagent may do.
type Config struct {
	Name           string          `a2e:"name,required"`
	Role           *string         `a2e:"role,nullable"`
	Model          string          `a2e:"model,required"`
	SystemPrompt   *string         `a2e:"system_prompt,nullable"`
	Capabilities   []string        `a2e:"capabilities"`
	MemoryScope    string          `a2e:"memory_scope,default=shared"`
	ToolScope      string          `a2e:"tool_scope,default=restricted"`
	MaxSteps       int64           `a2e:"max_steps,default=40"`
	TimeoutSeconds int64           `a2e:"timeout_seconds,default=600"`
	Metadata       json.RawMessage `a2e:"metadata,object"`

	Extra a2e.Members // what the catalogue does not name
}

// A Task is what a subagent is asked to do.
type Task struct {
	Name            string          `a2e:"name,required"`
	Instruction     string          `a2e:"instruction,required"`
	SuccessCriteria []string        `a2e:"success_criteria"`
	Metadata        json.RawMessage `a2e:"metadata,object"`

	Extra a2e.Members // what the catalogue does not name
}

// An Info tells how one subagent is.
type Info struct {
	SubagentID    string  `a2e:"subagent_id,required"`
	Name          string  `a2e:"name,required"`
	Status        string  `a2e:"status,required"`
	ParentAgentID *string `a2e:"parent_agent_id,nullable"`
	RootAgentID   *string `a2e:"root_agent_id,nullable"`
	Depth         int64   `a2e:"depth"`
	Config        Config  `a2e:"config,required"`

	Extra a2e.Members // what the catalogue does not name
}

// A Payload is what one subagent tells another.
type Payload struct {
	Type    string          `a2e:"type,required"`
	Content json.RawMessage `a2e:"content,required"`

	Extra a2e.Members // what the catalogue does not name
}

// A SourceRef tells where something comes from.
type SourceRef struct {
	SessionID    *string `a2e:"session_id,nullable"` // of the handshake; empty for the one at hand
	TrajectoryID *string `a2e:"trajectory_id,nullable"`
	TurnID       *string `a2e:"turn_id,nullable"`

	Extra a2e.Members // what the catalogue does not name
}
