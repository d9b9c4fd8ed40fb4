// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package planning

import (
	"context"

	"github.com/fivewire/fivewire/a2e"
)

// A Client uses the plans of a host. It is safe for concurrent use. A nil request means a request
// with the defaults of the catalogue; requests are not changed.
type Client struct{ client *a2e.Client }

// NewClient returns a Client over c. It registers the types of the namespace with c.
func NewClient(c *a2e.Client) (*Client, error) {
	if err := c.Registry().Add(Types()...); err != nil {
		return nil, err
	}
	return &Client{client: c}, nil
}

// CreatePlan sends "planning/plan/create" and returns the answer. A plan that was not created is
// an error.
func (c *Client) CreatePlan(ctx context.Context, r *PlanCreateRequest, opts *a2e.CallOptions) (*PlanCreateResponse, error) {
	answer, err := a2e.CallAs[PlanCreateResponse](ctx, c.client, "planning/plan/create", r, opts)
	if err == nil && !answer.Success {
		err = refused("the plan was not created")
	}
	return answer, err
}

// ListPlans sends "planning/plan/list" and returns the answer.
func (c *Client) ListPlans(ctx context.Context, r *PlanListRequest, opts *a2e.CallOptions) (*PlanListResponse, error) {
	return a2e.CallAs[PlanListResponse](ctx, c.client, "planning/plan/list", r, opts)
}

// AddTask sends "planning/task/add" and returns the answer. A task that was not added is an
// error.
func (c *Client) AddTask(ctx context.Context, r *TaskAddRequest, opts *a2e.CallOptions) (*TaskAddResponse, error) {
	answer, err := a2e.CallAs[TaskAddResponse](ctx, c.client, "planning/task/add", r, opts)
	if err == nil && !answer.Success {
		err = refused("the task was not added")
	}
	return answer, err
}

// UpdateTask sends "planning/task/update" and returns the answer. A task that was not updated
// is an error.
func (c *Client) UpdateTask(ctx context.Context, r *TaskUpdateRequest, opts *a2e.CallOptions) (*TaskUpdateResponse, error) {
	answer, err := a2e.CallAs[TaskUpdateResponse](ctx, c.client, "planning/task/update", r, opts)
	if err == nil && !answer.Success {
		err = refused("the task was not updated")
	}
	return answer, err
}

// ListTasks sends "planning/task/list" and returns the answer.
func (c *Client) ListTasks(ctx context.Context, r *TaskListRequest, opts *a2e.CallOptions) (*TaskListResponse, error) {
	return a2e.CallAs[TaskListResponse](ctx, c.client, "planning/task/list", r, opts)
}

// GetBoard sends "planning/plan/board" and returns the answer.
func (c *Client) GetBoard(ctx context.Context, r *PlanBoardRequest, opts *a2e.CallOptions) (*PlanBoardResponse, error) {
	return a2e.CallAs[PlanBoardResponse](ctx, c.client, "planning/plan/board", r, opts)
}

// refused returns the error of an answer that reports a failure.
func refused(text string) *a2e.Error {
	return &a2e.Error{Code: a2e.ErrRuntime, Message: text, Capability: Capability, Remote: true}
}
