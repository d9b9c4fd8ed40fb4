// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package planning

import (
	"context"

	"github.com/fivewire/fivewire/a2e"
	"github.com/fivewire/fivewire/a2e/internal/wire"
)

// A Client asks a host for its plans. Its methods may be called from several
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

// CreatePlan sends "planning/plan/create" and returns the answer.
func (c *Client) CreatePlan(ctx context.Context, r *PlanCreateRequest, opts *a2e.CallOptions) (*PlanCreateResponse, error) {
	return a2e.CallAs[PlanCreateResponse](ctx, c.client, "planning/plan/create", wire.OrNew(r), opts)
}

// ListPlans sends "planning/plan/list" and returns the answer.
func (c *Client) ListPlans(ctx context.Context, r *PlanListRequest, opts *a2e.CallOptions) (*PlanListResponse, error) {
	return a2e.CallAs[PlanListResponse](ctx, c.client, "planning/plan/list", wire.OrNew(r), opts)
}

// AddTask sends "planning/task/add" and returns the answer.
func (c *Client) AddTask(ctx context.Context, r *TaskAddRequest, opts *a2e.CallOptions) (*TaskAddResponse, error) {
	return a2e.CallAs[TaskAddResponse](ctx, c.client, "planning/task/add", wire.OrNew(r), opts)
}

// UpdateTask sends "planning/task/update" and returns the answer.
func (c *Client) UpdateTask(ctx context.Context, r *TaskUpdateRequest, opts *a2e.CallOptions) (*TaskUpdateResponse, error) {
	return a2e.CallAs[TaskUpdateResponse](ctx, c.client, "planning/task/update", wire.OrNew(r), opts)
}

// ListTasks sends "planning/task/list" and returns the answer.
func (c *Client) ListTasks(ctx context.Context, r *TaskListRequest, opts *a2e.CallOptions) (*TaskListResponse, error) {
	return a2e.CallAs[TaskListResponse](ctx, c.client, "planning/task/list", wire.OrNew(r), opts)
}

// GetBoard sends "planning/plan/board" and returns the answer.
func (c *Client) GetBoard(ctx context.Context, r *PlanBoardRequest, opts *a2e.CallOptions) (*PlanBoardResponse, error) {
	return a2e.CallAs[PlanBoardResponse](ctx, c.client, "planning/plan/board", wire.OrNew(r), opts)
}
