// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package learn is the namespace of learning: feedback and experience, statistics of components, and
// refinements that can be rolled back.
package learn

import (
	"encoding/json"

	"github.com/fivewire/fivewire/a2e"
)

// Capability is the capability that agents negotiate for this namespace.
const Capability = "learning"

// Types returns the types of the namespace with their models.
func Types() []a2e.Type {
	return []a2e.Type{
		a2e.TypeOf[FeedbackRequest]("learn/feedback/req"),
		a2e.TypeOf[FeedbackResponse]("learn/feedback/resp"),
		a2e.TypeOf[ExperienceRequest]("learn/experience/req"),
		a2e.TypeOf[ExperienceResponse]("learn/experience/resp"),
		a2e.TypeOf[AdaptRequest]("learn/adapt/req"),
		a2e.TypeOf[AdaptResponse]("learn/adapt/resp"),
		a2e.TypeOf[StatsRequest]("learn/stats/req"),
		a2e.TypeOf[StatsResponse]("learn/stats/resp"),
		a2e.TypeOf[RefinementPlanRequest]("learn/refinement/plan/req"),
		a2e.TypeOf[RefinementPlanResponse]("learn/refinement/plan/resp"),
		a2e.TypeOf[RefinementReviewRequest]("learn/refinement/review/req"),
		a2e.TypeOf[RefinementReviewResponse]("learn/refinement/review/resp"),
		a2e.TypeOf[RefinementApplyRequest]("learn/refinement/apply/req"),
		a2e.TypeOf[RefinementApplyResponse]("learn/refinement/apply/resp"),
		a2e.TypeOf[RefinementRollbackRequest]("learn/refinement/rollback/req"),
		a2e.TypeOf[RefinementRollbackResponse]("learn/refinement/rollback/resp"),
		a2e.TypeOf[RefinementHistoryRequest]("learn/refinement/history/req"),
		a2e.TypeOf[RefinementHistoryResponse]("learn/refinement/history/resp"),
	}
}

// A FeedbackRequest is the message "learn/feedback/req".
type FeedbackRequest struct {
	Feedbacks []Feedback `json:"feedbacks"`
}

// A FeedbackResponse is the message "learn/feedback/resp".
type FeedbackResponse struct {
	ReqID    string   `json:"req_id,omitzero" jsonmap:"always"` // the request answered
	Recorded int64    `json:"recorded,omitzero" jsonmap:"always"`
	NewScore *float64 `json:"new_score,omitzero"`
}

// An ExperienceRequest is the message "learn/experience/req".
type ExperienceRequest struct {
	Experiences []Experience `json:"experiences,omitzero" jsonmap:"always"`
}

// An ExperienceResponse is the message "learn/experience/resp".
type ExperienceResponse struct {
	ReqID  string `json:"req_id,omitzero" jsonmap:"always"` // the request answered
	Stored int64  `json:"stored,omitzero" jsonmap:"always"`
}

// An AdaptRequest is the message "learn/adapt/req".
type AdaptRequest struct {
	ComponentName string `json:"component_name,omitzero" jsonmap:"always"`
	Strategy      string `json:"strategy,omitzero" jsonmap:"default=ppo"`
}

// An AdaptResponse is the message "learn/adapt/resp".
type AdaptResponse struct {
	ReqID   string              `json:"req_id,omitzero" jsonmap:"always"` // the request answered
	Updated []PerformanceRecord `json:"updated,omitzero" jsonmap:"always"`
	Message string              `json:"message,omitzero" jsonmap:"always"`
}

// A StatsRequest is the message "learn/stats/req".
type StatsRequest struct {
	ComponentName string `json:"component_name,omitzero" jsonmap:"always"`
}

// A StatsResponse is the message "learn/stats/resp".
type StatsResponse struct {
	ReqID      string              `json:"req_id,omitzero" jsonmap:"always"` // the request answered
	Components []PerformanceRecord `json:"components,omitzero" jsonmap:"always"`
}

// A RefinementPlanRequest is the message "learn/refinement/plan/req".
type RefinementPlanRequest struct {
	ComponentName string `json:"component_name,omitzero" jsonmap:"always"`
	Scope         string `json:"scope,omitzero" jsonmap:"default=local"`
}

// A RefinementPlanResponse is the message "learn/refinement/plan/resp".
type RefinementPlanResponse struct {
	ReqID     string            `json:"req_id,omitzero" jsonmap:"always"` // the request answered
	PlanID    string            `json:"plan_id,omitzero" jsonmap:"always"`
	Proposals []json.RawMessage `json:"proposals,omitzero" jsonmap:"always,object"`
	Status    string            `json:"status,omitzero" jsonmap:"always"`
}

// A RefinementReviewRequest is the message "learn/refinement/review/req".
type RefinementReviewRequest struct {
	Proposal json.RawMessage `json:"proposal,omitzero" jsonmap:"always,object"`
}

// A RefinementReviewResponse is the message "learn/refinement/review/resp".
type RefinementReviewResponse struct {
	ReqID              string   `json:"req_id,omitzero" jsonmap:"always"` // the request answered
	Approved           bool     `json:"approved,omitzero" jsonmap:"always"`
	ConfidenceAdjusted float64  `json:"confidence_adjusted,omitzero" jsonmap:"always"`
	Reasons            []string `json:"reasons,omitzero" jsonmap:"always"`
	RiskLevel          string   `json:"risk_level,omitzero" jsonmap:"default=low"`
}

// A RefinementApplyRequest is the message "learn/refinement/apply/req".
type RefinementApplyRequest struct {
	Proposal json.RawMessage `json:"proposal,omitzero" jsonmap:"always,object"`
}

// A RefinementApplyResponse is the message "learn/refinement/apply/resp".
type RefinementApplyResponse struct {
	ReqID             string `json:"req_id,omitzero" jsonmap:"always"` // the request answered
	RefinementID      string `json:"refinement_id,omitzero" jsonmap:"always"`
	AppliedEdits      int64  `json:"applied_edits,omitzero" jsonmap:"always"`
	FailedEdits       int64  `json:"failed_edits,omitzero" jsonmap:"always"`
	RollbackAvailable bool   `json:"rollback_available,omitzero" jsonmap:"always"`
	Error             string `json:"error,omitzero" jsonmap:"always"`
}

// A RefinementRollbackRequest is the message "learn/refinement/rollback/req".
type RefinementRollbackRequest struct {
	RefinementID string `json:"refinement_id,omitzero" jsonmap:"always"`
}

// A RefinementRollbackResponse is the message "learn/refinement/rollback/resp".
type RefinementRollbackResponse struct {
	ReqID        string `json:"req_id,omitzero" jsonmap:"always"` // the request answered
	RefinementID string `json:"refinement_id,omitzero" jsonmap:"always"`
	RolledBack   bool   `json:"rolled_back,omitzero" jsonmap:"always"`
	Error        string `json:"error,omitzero" jsonmap:"always"`
}

// A RefinementHistoryRequest is the message "learn/refinement/history/req".
type RefinementHistoryRequest struct {
}

// A RefinementHistoryResponse is the message "learn/refinement/history/resp".
type RefinementHistoryResponse struct {
	ReqID   string            `json:"req_id,omitzero" jsonmap:"always"` // the request answered
	Entries []json.RawMessage `json:"entries,omitzero" jsonmap:"always,object"`
}

// A RatedTurn is what was rated.
type RatedTurn struct {
	Prompt      string          `json:"prompt"`
	Response    string          `json:"response"`
	Model       string          `json:"model"`
	Environment json.RawMessage `json:"environment,omitzero" jsonmap:"unset"`
	Version     *string         `json:"version,omitzero"`

	Extra a2e.Members // what the catalogue does not name
}

// A Feedback rates one turn of an agent.
type Feedback struct {
	FeedbackID     string     `json:"feedback_id,omitzero" jsonmap:"always"`
	CorrelationID  string     `json:"correlation_id,omitzero" jsonmap:"always"` // the caller's own trace id
	SessionID      string     `json:"session_id,omitzero" jsonmap:"always"`     // of the handshake; empty means the current session
	RatedTurn      *RatedTurn `json:"rated_turn,omitzero" jsonmap:"always"`
	Polarity       string     `json:"polarity"`
	Score          float64    `json:"score,omitzero" jsonmap:"always"`
	Dimension      string     `json:"dimension,omitzero" jsonmap:"default=helpfulness"`
	Confidence     *float64   `json:"confidence,omitzero" jsonmap:"default=1"`
	Comment        string     `json:"comment,omitzero" jsonmap:"always"`
	Correction     string     `json:"correction,omitzero" jsonmap:"always"`
	CorrectionSpan []int64    `json:"correction_span,omitzero"`
	Source         string     `json:"source,omitzero" jsonmap:"default=human"`
	AnnotatorID    string     `json:"annotator_id,omitzero" jsonmap:"always"`
	Ts             *float64   `json:"ts,omitzero"` // Unix seconds

	Extra a2e.Members // what the catalogue does not name
}

// An Experience is one transition of an environment.
type Experience struct {
	ExperienceID string          `json:"experience_id,omitzero" jsonmap:"always"`
	State        json.RawMessage `json:"state,omitzero" jsonmap:"always,object"`
	Action       json.RawMessage `json:"action,omitzero" jsonmap:"always,object"`
	Reward       float64         `json:"reward,omitzero" jsonmap:"always"`
	NextState    json.RawMessage `json:"next_state,omitzero" jsonmap:"always,object"`
	Done         bool            `json:"done,omitzero" jsonmap:"always"`
	EpisodeID    string          `json:"episode_id,omitzero" jsonmap:"always"`
	Step         int64           `json:"step,omitzero" jsonmap:"always"`
	Ts           *float64        `json:"ts,omitzero"` // Unix seconds

	Extra a2e.Members // what the catalogue does not name
}

// A PerformanceRecord sums up how one component did.
type PerformanceRecord struct {
	ComponentName string  `json:"component_name"`
	CallsTotal    int64   `json:"calls_total,omitzero" jsonmap:"always"`
	CallsSuccess  int64   `json:"calls_success,omitzero" jsonmap:"always"`
	CallsFailed   int64   `json:"calls_failed,omitzero" jsonmap:"always"`
	AvgDurationMs float64 `json:"avg_duration_ms,omitzero" jsonmap:"always"`
	AvgScore      float64 `json:"avg_score,omitzero" jsonmap:"always"`
	LastCalled    float64 `json:"last_called,omitzero" jsonmap:"always"`
	P95DurationMs float64 `json:"p95_duration_ms,omitzero" jsonmap:"always"`

	Extra a2e.Members // what the catalogue does not name
}
