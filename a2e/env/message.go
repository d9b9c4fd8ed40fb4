// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package env is the namespace of environments: an agent resets one to begin an episode, and drives it with
// actions.
package env

import (
	"encoding/json"

	"github.com/fivewire/fivewire/a2e"
)

// Capability is the capability that agents negotiate for this namespace.
const Capability = "env"

// Types returns the types of the namespace with their models.
func Types() []a2e.Type {
	return []a2e.Type{
		a2e.TypeOf[ResetRequest]("env/reset/req"),
		a2e.TypeOf[ResetResponse]("env/reset/resp"),
		a2e.TypeOf[StepRequest]("env/step/req"),
		a2e.TypeOf[StepResponse]("env/step/resp"),
		a2e.TypeOf[ObserveRequest]("env/observe/req"),
		a2e.TypeOf[ObserveResponse]("env/observe/resp"),
		a2e.TypeOf[CloseRequest]("env/close/req"),
		a2e.TypeOf[CloseResponse]("env/close/resp"),
		a2e.TypeOf[SpaceRequest]("env/space/req"),
		a2e.TypeOf[SpaceResponse]("env/space/resp"),
		a2e.TypeOf[RenderRequest]("env/render/req"),
		a2e.TypeOf[RenderResponse]("env/render/resp"),
		a2e.TypeOf[PlanRequest]("env/plan/req"),
		a2e.TypeOf[PlanResponse]("env/plan/resp"),
		a2e.TypeOf[BatchStepRequest]("env/batch_step/req"),
		a2e.TypeOf[BatchStepResponse]("env/batch_step/resp"),
		a2e.TypeOf[ExpListRequest]("env/exp/list/req"),
		a2e.TypeOf[ExpListResponse]("env/exp/list/resp"),
		a2e.TypeOf[StatePush]("env/state/push"),
	}
}

// A ResetRequest is the message "env/reset/req".
type ResetRequest struct {
	EnvName string          `json:"env_name"`
	Seed    *int64          `json:"seed,omitzero"` // for episodes that can be repeated
	Options json.RawMessage `json:"options,omitzero" jsonmap:"always,object"`
}

// A ResetResponse is the message "env/reset/resp".
type ResetResponse struct {
	ReqID string      `json:"req_id,omitzero" jsonmap:"always"` // the request answered
	Obs   Observation `json:"obs"`
}

// A StepRequest is the message "env/step/req".
type StepRequest struct {
	EpisodeID string          `json:"episode_id"`
	Action    json.RawMessage `json:"action" jsonmap:"object"`
}

// A StepResponse is the message "env/step/resp".
type StepResponse struct {
	ReqID string      `json:"req_id,omitzero" jsonmap:"always"` // the request answered
	Obs   Observation `json:"obs"`
}

// An ObserveRequest is the message "env/observe/req".
type ObserveRequest struct {
	EpisodeID string `json:"episode_id"`
}

// An ObserveResponse is the message "env/observe/resp".
type ObserveResponse struct {
	ReqID string      `json:"req_id,omitzero" jsonmap:"always"` // the request answered
	Obs   Observation `json:"obs"`
}

// A CloseRequest is the message "env/close/req".
type CloseRequest struct {
	EpisodeID string `json:"episode_id"`
}

// A CloseResponse is the message "env/close/resp".
type CloseResponse struct {
	ReqID  string `json:"req_id,omitzero" jsonmap:"always"` // the request answered
	Closed *bool  `json:"closed,omitzero" jsonmap:"default=true"`
}

// A SpaceRequest is the message "env/space/req".
type SpaceRequest struct {
	EnvName string `json:"env_name"`
}

// A SpaceResponse is the message "env/space/resp".
type SpaceResponse struct {
	ReqID       string          `json:"req_id,omitzero" jsonmap:"always"` // the request answered
	ActionSpace json.RawMessage `json:"action_space" jsonmap:"object"`
	StateSchema json.RawMessage `json:"state_schema" jsonmap:"object"`
}

// A RenderRequest is the message "env/render/req".
type RenderRequest struct {
	EpisodeID string `json:"episode_id"`
	Mode      string `json:"mode,omitzero" jsonmap:"default=screenshot"`
}

// A RenderResponse is the message "env/render/resp".
type RenderResponse struct {
	ReqID  string          `json:"req_id,omitzero" jsonmap:"always"` // the request answered
	Render json.RawMessage `json:"render"`
}

// A PlanRequest is the message "env/plan/req".
type PlanRequest struct {
	EpisodeID *string         `json:"episode_id,omitzero"`
	State     json.RawMessage `json:"state,omitzero" jsonmap:"object"`
}

// A PlanResponse is the message "env/plan/resp".
type PlanResponse struct {
	ReqID            string   `json:"req_id,omitzero" jsonmap:"always"` // the request answered
	SuggestedActions []Action `json:"suggested_actions,omitzero" jsonmap:"always"`
}

// A BatchStepRequest is the message "env/batch_step/req".
type BatchStepRequest struct {
	EpisodeIDs []string          `json:"episode_ids"`
	Actions    []json.RawMessage `json:"actions" jsonmap:"object"`
}

// A BatchStepResponse is the message "env/batch_step/resp".
type BatchStepResponse struct {
	ReqID   string            `json:"req_id,omitzero" jsonmap:"always"` // the request answered
	Results []json.RawMessage `json:"results" jsonmap:"object"`
}

// An ExpListRequest is the message "env/exp/list/req".
type ExpListRequest struct {
	EpisodeID string    `json:"episode_id,omitzero" jsonmap:"always"`
	Limit     a2e.Limit `json:"limit,omitzero" jsonmap:"default=100"`
}

// An ExpListResponse is the message "env/exp/list/resp".
type ExpListResponse struct {
	ReqID    string            `json:"req_id,omitzero" jsonmap:"always"` // the request answered
	Episodes []json.RawMessage `json:"episodes,omitzero" jsonmap:"always,object"`
}

// A StatePush is the message "env/state/push".
type StatePush struct {
	EpisodeID  string          `json:"episode_id"`
	StepID     int64           `json:"step_id"`
	ActionID   *string         `json:"action_id,omitzero"`
	EventType  string          `json:"event_type"`
	Reason     string          `json:"reason,omitzero" jsonmap:"always"`
	Delta      json.RawMessage `json:"delta,omitzero" jsonmap:"always,object"`
	Reward     *float64        `json:"reward,omitzero"`
	RewardInfo json.RawMessage `json:"reward_info,omitzero" jsonmap:"always,object"`
	Terminal   bool            `json:"terminal,omitzero" jsonmap:"always"`
}

// An Observation is what the agent sees of an environment after a step.
type Observation struct {
	EpisodeID string          `json:"episode_id"`
	StepNum   int64           `json:"step_num"`
	State     json.RawMessage `json:"state" jsonmap:"object"`
	Done      bool            `json:"done,omitzero" jsonmap:"always"`
	Truncated bool            `json:"truncated,omitzero" jsonmap:"always"` // something was cut off
	Reward    *float64        `json:"reward,omitzero"`
	CreatedAt *float64        `json:"created_at,omitzero"` // Unix seconds
	Metadata  json.RawMessage `json:"metadata,omitzero" jsonmap:"always,object"`

	Extra a2e.Members // what the catalogue does not name
}

// An Action is what an agent does in an environment.
type Action struct {
	ActionType string          `json:"action_type"`
	Payload    json.RawMessage `json:"payload,omitzero" jsonmap:"always,object"`
	Metadata   json.RawMessage `json:"metadata,omitzero" jsonmap:"always,object"`

	Extra a2e.Members // what the catalogue does not name
}

// An Event is one thing that happened in an environment.
type Event struct {
	EventID   string          `json:"event_id,omitzero" jsonmap:"always"`
	Type      string          `json:"type"`
	EpisodeID string          `json:"episode_id"`
	StepID    int64           `json:"step_id"`
	ActionID  *string         `json:"action_id,omitzero"`
	Payload   json.RawMessage `json:"payload,omitzero" jsonmap:"always,object"`
	Timestamp *float64        `json:"timestamp,omitzero"` // Unix seconds
	Metadata  json.RawMessage `json:"metadata,omitzero" jsonmap:"always,object"`

	Extra a2e.Members // what the catalogue does not name
}
