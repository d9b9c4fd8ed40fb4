// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package planning

import (
	"encoding/json"

	"github.com/fivewire/fivewire/a2e"
)

// Capability is the capability that agents negotiate for this namespace.
const Capability = "planning"

// Types returns the types of the namespace with their models.
func Types() []a2e.Type {
	return []a2e.Type{
		a2e.TypeOf[PlanCreateRequest]("planning/plan/create"),
		a2e.TypeOf[PlanCreateResponse]("planning/plan/create/resp"),
		a2e.TypeOf[PlanListRequest]("planning/plan/list"),
		a2e.TypeOf[PlanListResponse]("planning/plan/list/resp"),
		a2e.TypeOf[TaskAddRequest]("planning/task/add"),
		a2e.TypeOf[TaskAddResponse]("planning/task/add/resp"),
		a2e.TypeOf[TaskUpdateRequest]("planning/task/update"),
		a2e.TypeOf[TaskUpdateResponse]("planning/task/update/resp"),
		a2e.TypeOf[TaskListRequest]("planning/task/list"),
		a2e.TypeOf[TaskListResponse]("planning/task/list/resp"),
		a2e.TypeOf[PlanBoardRequest]("planning/plan/board"),
		a2e.TypeOf[PlanBoardResponse]("planning/plan/board/resp"),
	}
}

// A PlanCreateRequest is the message "planning/plan/create".
type PlanCreateRequest struct {
	Name        string   `a2e:"name,default=default"`
	Columns     []string `a2e:"columns"`
	Description string   `a2e:"description"`
}

// A PlanCreateResponse is the message "planning/plan/create/resp".
type PlanCreateResponse struct {
	ReqID   string   `a2e:"req_id"` // the request answered
	Success bool     `a2e:"success"`
	PlanID  string   `a2e:"plan_id"`
	Columns []string `a2e:"columns"`
}

// RequestID returns ReqID.
func (p *PlanCreateResponse) RequestID() string { return p.ReqID }

// A PlanListRequest is the message "planning/plan/list".
type PlanListRequest struct {
}

// A PlanListResponse is the message "planning/plan/list/resp".
type PlanListResponse struct {
	ReqID string            `a2e:"req_id"` // the request answered
	Plans []json.RawMessage `a2e:"plans,object"`
}

// RequestID returns ReqID.
func (p *PlanListResponse) RequestID() string { return p.ReqID }

// A TaskAddRequest is the message "planning/task/add".
type TaskAddRequest struct {
	PlanID      string          `a2e:"plan_id,required"`
	Title       string          `a2e:"title,required"`
	Status      string          `a2e:"status,default=backlog"`
	Description string          `a2e:"description"`
	Assignee    string          `a2e:"assignee"`
	Deps        []string        `a2e:"deps"`
	Metadata    json.RawMessage `a2e:"metadata,object"`
}

// A TaskAddResponse is the message "planning/task/add/resp".
type TaskAddResponse struct {
	ReqID   string `a2e:"req_id"` // the request answered
	Success bool   `a2e:"success"`
	TaskID  string `a2e:"task_id"`
	Status  string `a2e:"status"`
}

// RequestID returns ReqID.
func (t *TaskAddResponse) RequestID() string { return t.ReqID }

// A TaskUpdateRequest is the message "planning/task/update".
type TaskUpdateRequest struct {
	PlanID   string   `a2e:"plan_id,required"`
	TaskID   string   `a2e:"task_id,required"`
	Status   string   `a2e:"status"`
	Assignee string   `a2e:"assignee"`
	Deps     []string `a2e:"deps"`
}

// A TaskUpdateResponse is the message "planning/task/update/resp".
type TaskUpdateResponse struct {
	ReqID   string `a2e:"req_id"` // the request answered
	Success bool   `a2e:"success"`
	TaskID  string `a2e:"task_id"`
}

// RequestID returns ReqID.
func (t *TaskUpdateResponse) RequestID() string { return t.ReqID }

// A TaskListRequest is the message "planning/task/list".
type TaskListRequest struct {
	PlanID string `a2e:"plan_id"`
	Status string `a2e:"status"`
}

// A TaskListResponse is the message "planning/task/list/resp".
type TaskListResponse struct {
	ReqID string            `a2e:"req_id"` // the request answered
	Tasks []json.RawMessage `a2e:"tasks,object"`
}

// RequestID returns ReqID.
func (t *TaskListResponse) RequestID() string { return t.ReqID }

// A PlanBoardRequest is the message "planning/plan/board".
type PlanBoardRequest struct {
	PlanID string `a2e:"plan_id"`
}

// A PlanBoardResponse is the message "planning/plan/board/resp".
type PlanBoardResponse struct {
	ReqID  string            `a2e:"req_id"` // the request answered
	Boards []json.RawMessage `a2e:"boards,object"`
}

// RequestID returns ReqID.
func (p *PlanBoardResponse) RequestID() string { return p.ReqID }
