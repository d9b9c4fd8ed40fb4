// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

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
	EnvName string          `a2e:"env_name,required"`
	Seed    *int64          `a2e:"seed,nullable"` // for episodes that can be repeated
	Options json.RawMessage `a2e:"options,object"`
}

// A ResetResponse is the message "env/reset/resp".
type ResetResponse struct {
	ReqID string      `a2e:"req_id"` // the request answered
	Obs   Observation `a2e:"obs,required"`
}

// RequestID returns ReqID.
func (r *ResetResponse) RequestID() string { return r.ReqID }

// A StepRequest is the message "env/step/req".
type StepRequest struct {
	EpisodeID string          `a2e:"episode_id,required"`
	Action    json.RawMessage `a2e:"action,object,required"`
}

// A StepResponse is the message "env/step/resp".
type StepResponse struct {
	ReqID string      `a2e:"req_id"` // the request answered
	Obs   Observation `a2e:"obs,required"`
}

// RequestID returns ReqID.
func (s *StepResponse) RequestID() string { return s.ReqID }

// An ObserveRequest is the message "env/observe/req".
type ObserveRequest struct {
	EpisodeID string `a2e:"episode_id,required"`
}

// An ObserveResponse is the message "env/observe/resp".
type ObserveResponse struct {
	ReqID string      `a2e:"req_id"` // the request answered
	Obs   Observation `a2e:"obs,required"`
}

// RequestID returns ReqID.
func (o *ObserveResponse) RequestID() string { return o.ReqID }

// A CloseRequest is the message "env/close/req".
type CloseRequest struct {
	EpisodeID string `a2e:"episode_id,required"`
}

// A CloseResponse is the message "env/close/resp".
type CloseResponse struct {
	ReqID  string `a2e:"req_id"` // the request answered
	Closed bool   `a2e:"closed,default=true"`
}

// RequestID returns ReqID.
func (c *CloseResponse) RequestID() string { return c.ReqID }

// A SpaceRequest is the message "env/space/req".
type SpaceRequest struct {
	EnvName string `a2e:"env_name,required"`
}

// A SpaceResponse is the message "env/space/resp".
type SpaceResponse struct {
	ReqID       string          `a2e:"req_id"` // the request answered
	ActionSpace json.RawMessage `a2e:"action_space,object,required"`
	StateSchema json.RawMessage `a2e:"state_schema,object,required"`
}

// RequestID returns ReqID.
func (s *SpaceResponse) RequestID() string { return s.ReqID }

// A RenderRequest is the message "env/render/req".
type RenderRequest struct {
	EpisodeID string `a2e:"episode_id,required"`
	Mode      string `a2e:"mode,default=screenshot"`
}

// A RenderResponse is the message "env/render/resp".
type RenderResponse struct {
	ReqID  string          `a2e:"req_id"` // the request answered
	Render json.RawMessage `a2e:"render,required"`
}

// RequestID returns ReqID.
func (r *RenderResponse) RequestID() string { return r.ReqID }

// A PlanRequest is the message "env/plan/req".
type PlanRequest struct {
	EpisodeID *string         `a2e:"episode_id,nullable"`
	State     json.RawMessage `a2e:"state,object,nullable"`
}

// A PlanResponse is the message "env/plan/resp".
type PlanResponse struct {
	ReqID            string            `a2e:"req_id"` // the request answered
	SuggestedActions []json.RawMessage `a2e:"suggested_actions,object"`
}

// RequestID returns ReqID.
func (p *PlanResponse) RequestID() string { return p.ReqID }

// A BatchStepRequest is the message "env/batch_step/req".
type BatchStepRequest struct {
	EpisodeIDs []string          `a2e:"episode_ids,required"`
	Actions    []json.RawMessage `a2e:"actions,object,required,check"`
}

// A BatchStepResponse is the message "env/batch_step/resp".
type BatchStepResponse struct {
	ReqID   string            `a2e:"req_id"` // the request answered
	Results []json.RawMessage `a2e:"results,object,required"`
}

// RequestID returns ReqID.
func (b *BatchStepResponse) RequestID() string { return b.ReqID }

// An ExpListRequest is the message "env/exp/list/req".
type ExpListRequest struct {
	EpisodeID string `a2e:"episode_id"`
	Limit     int64  `a2e:"limit,default=100,min=0"`
}

// An ExpListResponse is the message "env/exp/list/resp".
type ExpListResponse struct {
	ReqID    string            `a2e:"req_id"` // the request answered
	Episodes []json.RawMessage `a2e:"episodes,object"`
}

// RequestID returns ReqID.
func (e *ExpListResponse) RequestID() string { return e.ReqID }

// A StatePush is the message "env/state/push".
type StatePush struct {
	EpisodeID  string          `a2e:"episode_id,required"`
	StepID     int64           `a2e:"step_id,required"`
	ActionID   *string         `a2e:"action_id,nullable"`
	EventType  string          `a2e:"event_type,required"`
	Reason     string          `a2e:"reason"`
	Delta      json.RawMessage `a2e:"delta,object"`
	Reward     *float64        `a2e:"reward,nullable"`
	RewardInfo json.RawMessage `a2e:"reward_info,object"`
	Terminal   bool            `a2e:"terminal"`
}

// An Observation is what the agent sees of an environment after a step.
type Observation struct {
	EpisodeID string          `a2e:"episode_id,required"`
	StepNum   int64           `a2e:"step_num,required"`
	State     json.RawMessage `a2e:"state,object,required"`
	Done      bool            `a2e:"done"`
	Truncated bool            `a2e:"truncated"` // something was cut off
	Reward    *float64        `a2e:"reward,nullable"`
	CreatedAt *float64        `a2e:"created_at,nullable"` // Unix seconds
	Metadata  json.RawMessage `a2e:"metadata,object"`

	Extra a2e.Members // what the catalogue does not name
}

// An Action is what an agent does in an environment.
type Action struct {
	ActionType string          `a2e:"action_type,required"`
	Payload    json.RawMessage `a2e:"payload,object,alt=emptylist"`
	Metadata   json.RawMessage `a2e:"metadata,object"`

	Extra a2e.Members // what the catalogue does not name
}

// An Event is one thing that happened in an environment.
type Event struct {
	EventID   string          `a2e:"event_id"`
	Type      string          `a2e:"type,required"`
	EpisodeID string          `a2e:"episode_id,required"`
	StepID    int64           `a2e:"step_id,required"`
	ActionID  *string         `a2e:"action_id,nullable"`
	Payload   json.RawMessage `a2e:"payload,object"`
	Timestamp *float64        `a2e:"timestamp,nullable"` // Unix seconds
	Metadata  json.RawMessage `a2e:"metadata,object"`

	Extra a2e.Members // what the catalogue does not name
}
