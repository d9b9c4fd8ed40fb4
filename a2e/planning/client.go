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

// PlanCreate sends "planning/plan/create" and returns the answer.
func (c *Client) PlanCreate(ctx context.Context, r *PlanCreateRequest, opts *a2e.CallOptions) (*PlanCreateResponse, error) {
	return a2e.Ask[PlanCreateResponse](ctx, c.client, "planning/plan/create", wire.OrNew(r), opts)
}

// PlanList sends "planning/plan/list" and returns the answer.
func (c *Client) PlanList(ctx context.Context, r *PlanListRequest, opts *a2e.CallOptions) (*PlanListResponse, error) {
	return a2e.Ask[PlanListResponse](ctx, c.client, "planning/plan/list", wire.OrNew(r), opts)
}

// TaskAdd sends "planning/task/add" and returns the answer.
func (c *Client) TaskAdd(ctx context.Context, r *TaskAddRequest, opts *a2e.CallOptions) (*TaskAddResponse, error) {
	return a2e.Ask[TaskAddResponse](ctx, c.client, "planning/task/add", wire.OrNew(r), opts)
}

// TaskUpdate sends "planning/task/update" and returns the answer.
func (c *Client) TaskUpdate(ctx context.Context, r *TaskUpdateRequest, opts *a2e.CallOptions) (*TaskUpdateResponse, error) {
	return a2e.Ask[TaskUpdateResponse](ctx, c.client, "planning/task/update", wire.OrNew(r), opts)
}

// TaskList sends "planning/task/list" and returns the answer.
func (c *Client) TaskList(ctx context.Context, r *TaskListRequest, opts *a2e.CallOptions) (*TaskListResponse, error) {
	return a2e.Ask[TaskListResponse](ctx, c.client, "planning/task/list", wire.OrNew(r), opts)
}

// PlanBoard sends "planning/plan/board" and returns the answer.
func (c *Client) PlanBoard(ctx context.Context, r *PlanBoardRequest, opts *a2e.CallOptions) (*PlanBoardResponse, error) {
	return a2e.Ask[PlanBoardResponse](ctx, c.client, "planning/plan/board", wire.OrNew(r), opts)
}
