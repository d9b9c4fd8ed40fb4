// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package planning is the namespace of plans: tasks with dependencies, which boards show by their statuses.
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
	Name        string   `json:"name,omitzero" jsonmap:"default=default"`
	Columns     []string `json:"columns,omitzero" jsonmap:"always"`
	Description string   `json:"description,omitzero" jsonmap:"always"`
}

// A PlanCreateResponse is the message "planning/plan/create/resp".
type PlanCreateResponse struct {
	ReqID   string   `json:"req_id,omitzero" jsonmap:"always"` // the request answered
	Success bool     `json:"success,omitzero" jsonmap:"always"`
	PlanID  string   `json:"plan_id,omitzero" jsonmap:"always"`
	Columns []string `json:"columns,omitzero" jsonmap:"always"`
}

// A PlanListRequest is the message "planning/plan/list".
type PlanListRequest struct {
}

// A PlanListResponse is the message "planning/plan/list/resp".
type PlanListResponse struct {
	ReqID string `json:"req_id,omitzero" jsonmap:"always"` // the request answered
	Plans []Plan `json:"plans,omitzero" jsonmap:"always"`
}

// A Plan is one plan of a session.
type Plan struct {
	PlanID  string   `json:"plan_id,omitzero" jsonmap:"always"`
	Name    string   `json:"name,omitzero" jsonmap:"always"`
	Columns []string `json:"columns,omitzero" jsonmap:"always"`

	Extra a2e.Members // what the catalogue does not name
}

// A TaskAddRequest is the message "planning/task/add".
type TaskAddRequest struct {
	PlanID      string          `json:"plan_id"`
	Title       string          `json:"title"`
	Status      *string         `json:"status,omitzero" jsonmap:"default=backlog"` // empty means the first column
	Description string          `json:"description,omitzero" jsonmap:"always"`
	Assignee    string          `json:"assignee,omitzero" jsonmap:"always"`
	Deps        []string        `json:"deps,omitzero" jsonmap:"always"`
	Metadata    json.RawMessage `json:"metadata,omitzero" jsonmap:"always,object"`
}

// A TaskAddResponse is the message "planning/task/add/resp".
type TaskAddResponse struct {
	ReqID   string `json:"req_id,omitzero" jsonmap:"always"` // the request answered
	Success bool   `json:"success,omitzero" jsonmap:"always"`
	TaskID  string `json:"task_id,omitzero" jsonmap:"always"`
	Status  string `json:"status,omitzero" jsonmap:"always"`
}

// A TaskUpdateRequest is the message "planning/task/update".
type TaskUpdateRequest struct {
	PlanID   string   `json:"plan_id"`
	TaskID   string   `json:"task_id"`
	Status   string   `json:"status,omitzero" jsonmap:"always"`
	Assignee string   `json:"assignee,omitzero" jsonmap:"always"`
	Deps     []string `json:"deps,omitzero" jsonmap:"always"`
}

// A TaskUpdateResponse is the message "planning/task/update/resp".
type TaskUpdateResponse struct {
	ReqID   string `json:"req_id,omitzero" jsonmap:"always"` // the request answered
	Success bool   `json:"success,omitzero" jsonmap:"always"`
	TaskID  string `json:"task_id,omitzero" jsonmap:"always"`
}

// A TaskListRequest is the message "planning/task/list".
type TaskListRequest struct {
	PlanID string `json:"plan_id,omitzero" jsonmap:"always"`
	Status string `json:"status,omitzero" jsonmap:"always"`
}

// A TaskListResponse is the message "planning/task/list/resp".
type TaskListResponse struct {
	ReqID string `json:"req_id,omitzero" jsonmap:"always"` // the request answered
	Tasks []Task `json:"tasks,omitzero" jsonmap:"always"`
}

// A Task is one task of a plan.
type Task struct {
	TaskID      string          `json:"task_id,omitzero" jsonmap:"always"`
	Title       string          `json:"title,omitzero" jsonmap:"always"`
	Status      string          `json:"status,omitzero" jsonmap:"always"`
	Assignee    string          `json:"assignee,omitzero" jsonmap:"always"`
	PlanID      string          `json:"plan_id,omitzero"` // empty on a board
	Description string          `json:"description,omitzero" jsonmap:"always"`
	Deps        []string        `json:"deps,omitzero" jsonmap:"always"`
	Metadata    json.RawMessage `json:"metadata,omitzero" jsonmap:"always,object"`

	Extra a2e.Members // what the catalogue does not name
}

// A PlanBoardRequest is the message "planning/plan/board".
type PlanBoardRequest struct {
	PlanID string `json:"plan_id,omitzero" jsonmap:"always"`
}

// A PlanBoardResponse is the message "planning/plan/board/resp".
type PlanBoardResponse struct {
	ReqID  string  `json:"req_id,omitzero" jsonmap:"always"` // the request answered
	Boards []Board `json:"boards,omitzero" jsonmap:"always"`
}

// A Board is a plan with its tasks by column.
type Board struct {
	PlanID  string                    `json:"plan_id,omitzero" jsonmap:"always"`
	Name    string                    `json:"name,omitzero" jsonmap:"always"`
	Columns []string                  `json:"columns,omitzero" jsonmap:"always"`
	Tasks   a2e.OrderedObject[[]Task] `json:"tasks,omitzero" jsonmap:"always"`

	Extra a2e.Members // what the catalogue does not name
}
