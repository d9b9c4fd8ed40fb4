// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

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
		a2e.TypeOf[SubagentAwaitRequest]("SUBAGENT_AWAIT_REQ"),
		a2e.TypeOf[SubagentAwaitResponse]("SUBAGENT_AWAIT_RESP"),
		a2e.TypeOf[SubagentMessageRequest]("SUBAGENT_MESSAGE_REQ"),
		a2e.TypeOf[SubagentMessageResponse]("SUBAGENT_MESSAGE_RESP"),
		a2e.TypeOf[SubagentListRequest]("SUBAGENT_LIST_REQ"),
		a2e.TypeOf[SubagentListResponse]("SUBAGENT_LIST_RESP"),
		a2e.TypeOf[SubagentCancelRequest]("SUBAGENT_CANCEL_REQ"),
		a2e.TypeOf[SubagentTerminateRequest]("SUBAGENT_TERMINATE_REQ"),
		a2e.TypeOf[SubagentMergeRequest]("SUBAGENT_MERGE_REQ"),
		a2e.TypeOf[SubagentMergeResponse]("SUBAGENT_MERGE_RESP"),
		a2e.TypeOf[SubagentEvent]("SUBAGENT_EVENT"),
	}
}

// A SpawnRequest is the message "multi_agent/spawn".
type SpawnRequest struct {
	Name     string          `a2e:"name,required"`
	Role     string          `a2e:"role"`
	Model    string          `a2e:"model,default=default"`
	MaxSteps int64           `a2e:"max_steps,default=20"`
	Metadata json.RawMessage `a2e:"metadata,object"`
}

// A SpawnResponse is the message "multi_agent/spawn/resp".
type SpawnResponse struct {
	ReqID      string `a2e:"req_id"` // the request answered
	SubagentID string `a2e:"subagent_id"`
	Status     string `a2e:"status"`
}

// RequestID returns ReqID.
func (s *SpawnResponse) RequestID() string { return s.ReqID }

// A DelegateRequest is the message "multi_agent/delegate".
type DelegateRequest struct {
	SubagentID      string   `a2e:"subagent_id,required"`
	TaskName        string   `a2e:"task_name,required"`
	Instruction     string   `a2e:"instruction,required"`
	SuccessCriteria []string `a2e:"success_criteria"`
}

// A DelegateResponse is the message "multi_agent/delegate/resp".
type DelegateResponse struct {
	ReqID    string `a2e:"req_id"` // the request answered
	Accepted bool   `a2e:"accepted,default=true"`
	Status   string `a2e:"status"`
}

// RequestID returns ReqID.
func (d *DelegateResponse) RequestID() string { return d.ReqID }

// An AwaitRequest is the message "multi_agent/await".
type AwaitRequest struct {
	SubagentID string `a2e:"subagent_id,required"`
}

// An AwaitResponse is the message "multi_agent/await/resp".
type AwaitResponse struct {
	ReqID      string          `a2e:"req_id"` // the request answered
	SubagentID string          `a2e:"subagent_id"`
	Status     string          `a2e:"status"`
	Result     json.RawMessage `a2e:"result,object,nullable"`
	Error      *string         `a2e:"error,nullable"`
}

// RequestID returns ReqID.
func (a *AwaitResponse) RequestID() string { return a.ReqID }

// A ListRequest is the message "multi_agent/list".
type ListRequest struct {
}

// A ListResponse is the message "multi_agent/list/resp".
type ListResponse struct {
	ReqID     string            `a2e:"req_id"` // the request answered
	Subagents []json.RawMessage `a2e:"subagents,object"`
}

// RequestID returns ReqID.
func (l *ListResponse) RequestID() string { return l.ReqID }

// A TerminateRequest is the message "multi_agent/terminate".
type TerminateRequest struct {
	SubagentID string `a2e:"subagent_id,required"`
}

// A TerminateResponse is the message "multi_agent/terminate/resp".
type TerminateResponse struct {
	ReqID      string `a2e:"req_id"` // the request answered
	Success    bool   `a2e:"success"`
	SubagentID string `a2e:"subagent_id"`
}

// RequestID returns ReqID.
func (t *TerminateResponse) RequestID() string { return t.ReqID }
