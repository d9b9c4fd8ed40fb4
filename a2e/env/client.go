// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package env

import (
	"context"

	"github.com/fivewire/fivewire/a2e"
	"github.com/fivewire/fivewire/a2e/internal/wire"
)

// A Client asks a host for its environments. Its methods may be called from several
// goroutines. A nil request stands for one with the defaults of the catalogue;
// requests are not changed.
type Client struct{ client *a2e.Client }

// NewClient returns a Client that asks through c, and makes the types of the
// namespace known to it.
func NewClient(c *a2e.Client) (*Client, error) {
	if err := c.Registry().Add(Types()...); err != nil {
		return nil, err
	}
	return &Client{client: c}, nil
}

// Reset sends "env/reset/req" and returns the answer.
func (c *Client) Reset(ctx context.Context, r *ResetRequest, opts *a2e.CallOptions) (*ResetResponse, error) {
	return a2e.CallAs[ResetResponse](ctx, c.client, "env/reset/req", wire.OrNew(r), opts)
}

// Step sends "env/step/req" and returns the answer.
func (c *Client) Step(ctx context.Context, r *StepRequest, opts *a2e.CallOptions) (*StepResponse, error) {
	return a2e.CallAs[StepResponse](ctx, c.client, "env/step/req", wire.OrNew(r), opts)
}

// Observe sends "env/observe/req" and returns the answer.
func (c *Client) Observe(ctx context.Context, r *ObserveRequest, opts *a2e.CallOptions) (*ObserveResponse, error) {
	return a2e.CallAs[ObserveResponse](ctx, c.client, "env/observe/req", wire.OrNew(r), opts)
}

// Close sends "env/close/req" and returns the answer.
func (c *Client) Close(ctx context.Context, r *CloseRequest, opts *a2e.CallOptions) (*CloseResponse, error) {
	return a2e.CallAs[CloseResponse](ctx, c.client, "env/close/req", wire.OrNew(r), opts)
}

// GetSpace sends "env/space/req" and returns the answer.
func (c *Client) GetSpace(ctx context.Context, r *SpaceRequest, opts *a2e.CallOptions) (*SpaceResponse, error) {
	return a2e.CallAs[SpaceResponse](ctx, c.client, "env/space/req", wire.OrNew(r), opts)
}

// Render sends "env/render/req" and returns the answer.
func (c *Client) Render(ctx context.Context, r *RenderRequest, opts *a2e.CallOptions) (*RenderResponse, error) {
	return a2e.CallAs[RenderResponse](ctx, c.client, "env/render/req", wire.OrNew(r), opts)
}

// GetPlan sends "env/plan/req" and returns the answer.
func (c *Client) GetPlan(ctx context.Context, r *PlanRequest, opts *a2e.CallOptions) (*PlanResponse, error) {
	return a2e.CallAs[PlanResponse](ctx, c.client, "env/plan/req", wire.OrNew(r), opts)
}

// BatchStep sends "env/batch_step/req" and returns the answer.
func (c *Client) BatchStep(ctx context.Context, r *BatchStepRequest, opts *a2e.CallOptions) (*BatchStepResponse, error) {
	return a2e.CallAs[BatchStepResponse](ctx, c.client, "env/batch_step/req", wire.OrNew(r), opts)
}

// ListExperience sends "env/exp/list/req" and returns the answer.
func (c *Client) ListExperience(ctx context.Context, r *ExpListRequest, opts *a2e.CallOptions) (*ExpListResponse, error) {
	return a2e.CallAs[ExpListResponse](ctx, c.client, "env/exp/list/req", wire.OrNew(r), opts)
}
