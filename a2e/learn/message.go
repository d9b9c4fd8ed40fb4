// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

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
	Feedbacks []Feedback `a2e:"feedbacks,required"`
}

// A FeedbackResponse is the message "learn/feedback/resp".
type FeedbackResponse struct {
	ReqID    string   `a2e:"req_id"` // the request answered
	Recorded int64    `a2e:"recorded"`
	NewScore *float64 `a2e:"new_score,nullable"`
}

// RequestID returns ReqID.
func (f *FeedbackResponse) RequestID() string { return f.ReqID }

// An ExperienceRequest is the message "learn/experience/req".
type ExperienceRequest struct {
	Experiences []Experience `a2e:"experiences"`
}

// An ExperienceResponse is the message "learn/experience/resp".
type ExperienceResponse struct {
	ReqID  string `a2e:"req_id"` // the request answered
	Stored int64  `a2e:"stored"`
}

// RequestID returns ReqID.
func (e *ExperienceResponse) RequestID() string { return e.ReqID }

// An AdaptRequest is the message "learn/adapt/req".
type AdaptRequest struct {
	ComponentName string `a2e:"component_name"`
	Strategy      string `a2e:"strategy,default=ppo"`
}

// An AdaptResponse is the message "learn/adapt/resp".
type AdaptResponse struct {
	ReqID   string            `a2e:"req_id"` // the request answered
	Updated []json.RawMessage `a2e:"updated,object"`
	Message string            `a2e:"message"`
}

// RequestID returns ReqID.
func (a *AdaptResponse) RequestID() string { return a.ReqID }

// A StatsRequest is the message "learn/stats/req".
type StatsRequest struct {
	ComponentName string `a2e:"component_name"`
}

// A StatsResponse is the message "learn/stats/resp".
type StatsResponse struct {
	ReqID      string            `a2e:"req_id"` // the request answered
	Components []json.RawMessage `a2e:"components,object"`
}

// RequestID returns ReqID.
func (s *StatsResponse) RequestID() string { return s.ReqID }

// A RefinementPlanRequest is the message "learn/refinement/plan/req".
type RefinementPlanRequest struct {
	ComponentName string `a2e:"component_name"`
	Scope         string `a2e:"scope,default=local"`
}

// A RefinementPlanResponse is the message "learn/refinement/plan/resp".
type RefinementPlanResponse struct {
	ReqID     string            `a2e:"req_id"` // the request answered
	PlanID    string            `a2e:"plan_id"`
	Proposals []json.RawMessage `a2e:"proposals,object"`
	Status    string            `a2e:"status"`
}

// RequestID returns ReqID.
func (r *RefinementPlanResponse) RequestID() string { return r.ReqID }

// A RefinementReviewRequest is the message "learn/refinement/review/req".
type RefinementReviewRequest struct {
	Proposal json.RawMessage `a2e:"proposal,object"`
}

// A RefinementReviewResponse is the message "learn/refinement/review/resp".
type RefinementReviewResponse struct {
	ReqID              string   `a2e:"req_id"` // the request answered
	Approved           bool     `a2e:"approved"`
	ConfidenceAdjusted float64  `a2e:"confidence_adjusted"`
	Reasons            []string `a2e:"reasons"`
	RiskLevel          string   `a2e:"risk_level,default=low"`
}

// RequestID returns ReqID.
func (r *RefinementReviewResponse) RequestID() string { return r.ReqID }

// A RefinementApplyRequest is the message "learn/refinement/apply/req".
type RefinementApplyRequest struct {
	Proposal json.RawMessage `a2e:"proposal,object"`
}

// A RefinementApplyResponse is the message "learn/refinement/apply/resp".
type RefinementApplyResponse struct {
	ReqID             string `a2e:"req_id"` // the request answered
	RefinementID      string `a2e:"refinement_id"`
	AppliedEdits      int64  `a2e:"applied_edits"`
	FailedEdits       int64  `a2e:"failed_edits"`
	RollbackAvailable bool   `a2e:"rollback_available"`
	Error             string `a2e:"error"`
}

// RequestID returns ReqID.
func (r *RefinementApplyResponse) RequestID() string { return r.ReqID }

// A RefinementRollbackRequest is the message "learn/refinement/rollback/req".
type RefinementRollbackRequest struct {
	RefinementID string `a2e:"refinement_id"`
}

// A RefinementRollbackResponse is the message "learn/refinement/rollback/resp".
type RefinementRollbackResponse struct {
	ReqID        string `a2e:"req_id"` // the request answered
	RefinementID string `a2e:"refinement_id"`
	RolledBack   bool   `a2e:"rolled_back"`
	Error        string `a2e:"error"`
}

// RequestID returns ReqID.
func (r *RefinementRollbackResponse) RequestID() string { return r.ReqID }

// A RefinementHistoryRequest is the message "learn/refinement/history/req".
type RefinementHistoryRequest struct {
}

// A RefinementHistoryResponse is the message "learn/refinement/history/resp".
type RefinementHistoryResponse struct {
	ReqID   string            `a2e:"req_id"` // the request answered
	Entries []json.RawMessage `a2e:"entries,object"`
}

// RequestID returns ReqID.
func (r *RefinementHistoryResponse) RequestID() string { return r.ReqID }

// A RatedTurn is what was rated.
type RatedTurn struct {
	Prompt      string          `a2e:"prompt,required"`
	Response    string          `a2e:"response,required"`
	Model       string          `a2e:"model,required"`
	Environment json.RawMessage `a2e:"environment,nullable"`
	Version     *string         `a2e:"version,nullable"`

	Extra a2e.Members // what the catalogue does not name
}

// A Feedback rates one turn of an agent.
type Feedback struct {
	FeedbackID     string     `a2e:"feedback_id"`
	CorrelationID  string     `a2e:"correlation_id"` // the caller's own trace id
	SessionID      string     `a2e:"session_id"`     // of the handshake; empty for the one at hand
	RatedTurn      *RatedTurn `a2e:"rated_turn,null"`
	Polarity       string     `a2e:"polarity,required"`
	Score          float64    `a2e:"score,min=-1,max=1"`
	Dimension      string     `a2e:"dimension,default=helpfulness"`
	Confidence     float64    `a2e:"confidence,default=1,min=0,max=1"`
	Comment        string     `a2e:"comment"`
	Correction     string     `a2e:"correction,check"`
	CorrectionSpan []int64    `a2e:"correction_span,nullable,check"`
	Source         string     `a2e:"source,default=human"`
	AnnotatorID    string     `a2e:"annotator_id"`
	Ts             *float64   `a2e:"ts,nullable"` // Unix seconds

	Extra a2e.Members // what the catalogue does not name
}

// An Experience is one transition of an environment.
type Experience struct {
	ExperienceID string          `a2e:"experience_id"`
	State        json.RawMessage `a2e:"state,object"`
	Action       json.RawMessage `a2e:"action,object"`
	Reward       float64         `a2e:"reward"`
	NextState    json.RawMessage `a2e:"next_state,object"`
	Done         bool            `a2e:"done"`
	EpisodeID    string          `a2e:"episode_id"`
	Step         int64           `a2e:"step"`
	Ts           *float64        `a2e:"ts,nullable"` // Unix seconds

	Extra a2e.Members // what the catalogue does not name
}

// A PerformanceRecord sums up how one component did.
type PerformanceRecord struct {
	ComponentName string  `a2e:"component_name,required"`
	CallsTotal    int64   `a2e:"calls_total"`
	CallsSuccess  int64   `a2e:"calls_success"`
	CallsFailed   int64   `a2e:"calls_failed"`
	AvgDurationMs float64 `a2e:"avg_duration_ms"`
	AvgScore      float64 `a2e:"avg_score"`
	LastCalled    float64 `a2e:"last_called"`
	P95DurationMs float64 `a2e:"p95_duration_ms"`

	Extra a2e.Members // what the catalogue does not name
}
