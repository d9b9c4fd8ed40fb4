// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package learn

import (
	"cmp"
	"context"

	"github.com/fivewire/fivewire/a2e"
)

// A Client uses the feedback and refinements of a host. It is safe for concurrent use. A nil request means a request
// with the defaults of the catalogue; requests are not changed.
type Client struct{ client *a2e.Client }

// NewClient returns a Client over c. It registers the types of the namespace with c.
func NewClient(c *a2e.Client) (*Client, error) {
	if err := c.Registry().Add(Types()...); err != nil {
		return nil, err
	}
	return &Client{client: c}, nil
}

// RecordFeedback sends "learn/feedback/req" and returns the answer.
func (c *Client) RecordFeedback(ctx context.Context, r *FeedbackRequest, opts *a2e.CallOptions) (*FeedbackResponse, error) {
	return a2e.CallAs[FeedbackResponse](ctx, c.client, "learn/feedback/req", r, opts)
}

// RecordExperience sends "learn/experience/req" and returns the answer.
func (c *Client) RecordExperience(ctx context.Context, r *ExperienceRequest, opts *a2e.CallOptions) (*ExperienceResponse, error) {
	return a2e.CallAs[ExperienceResponse](ctx, c.client, "learn/experience/req", r, opts)
}

// Adapt sends "learn/adapt/req" and returns the answer.
func (c *Client) Adapt(ctx context.Context, r *AdaptRequest, opts *a2e.CallOptions) (*AdaptResponse, error) {
	return a2e.CallAs[AdaptResponse](ctx, c.client, "learn/adapt/req", r, opts)
}

// GetStats sends "learn/stats/req" and returns the answer.
func (c *Client) GetStats(ctx context.Context, r *StatsRequest, opts *a2e.CallOptions) (*StatsResponse, error) {
	return a2e.CallAs[StatsResponse](ctx, c.client, "learn/stats/req", r, opts)
}

// PlanRefinement sends "learn/refinement/plan/req" and returns the answer.
func (c *Client) PlanRefinement(ctx context.Context, r *RefinementPlanRequest, opts *a2e.CallOptions) (*RefinementPlanResponse, error) {
	return a2e.CallAs[RefinementPlanResponse](ctx, c.client, "learn/refinement/plan/req", r, opts)
}

// ReviewRefinement sends "learn/refinement/review/req" and returns the answer.
func (c *Client) ReviewRefinement(ctx context.Context, r *RefinementReviewRequest, opts *a2e.CallOptions) (*RefinementReviewResponse, error) {
	return a2e.CallAs[RefinementReviewResponse](ctx, c.client, "learn/refinement/review/req", r, opts)
}

// ApplyRefinement sends "learn/refinement/apply/req" and returns the answer. Failed edits are an
// error, with the number of applied edits in its details.
func (c *Client) ApplyRefinement(ctx context.Context, r *RefinementApplyRequest, opts *a2e.CallOptions) (*RefinementApplyResponse, error) {
	answer, err := a2e.CallAs[RefinementApplyResponse](ctx, c.client, "learn/refinement/apply/req", r, opts)
	if err == nil && (answer.Error != "" || answer.FailedEdits > 0) {
		err = refused(cmp.Or(answer.Error, "edits failed")).With("applied_edits", answer.AppliedEdits).With("refinement_id", answer.RefinementID)
	}
	return answer, err
}

// RollbackRefinement sends "learn/refinement/rollback/req" and returns the answer. A refinement
// that was not rolled back is an error.
func (c *Client) RollbackRefinement(ctx context.Context, r *RefinementRollbackRequest, opts *a2e.CallOptions) (*RefinementRollbackResponse, error) {
	answer, err := a2e.CallAs[RefinementRollbackResponse](ctx, c.client, "learn/refinement/rollback/req", r, opts)
	if err == nil && !answer.RolledBack {
		err = refused(cmp.Or(answer.Error, "the refinement was not rolled back"))
	}
	return answer, err
}

// ListRefinements sends "learn/refinement/history/req" and returns the answer.
func (c *Client) ListRefinements(ctx context.Context, r *RefinementHistoryRequest, opts *a2e.CallOptions) (*RefinementHistoryResponse, error) {
	return a2e.CallAs[RefinementHistoryResponse](ctx, c.client, "learn/refinement/history/req", r, opts)
}

// refused returns the error of an answer that reports a failure.
func refused(text string) *a2e.Error {
	return &a2e.Error{Code: a2e.ErrRuntime, Message: text, Capability: Capability, Remote: true}
}
