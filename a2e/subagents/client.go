// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package subagents

import (
	"cmp"
	"context"
	"encoding/json"

	"github.com/fivewire/fivewire/a2e"
)

// A Client uses the subagents of a host. It is safe for concurrent use. A nil request means a request
// with the defaults of the catalogue; requests are not changed.
type Client struct{ client *a2e.Client }

// NewClient returns a Client over c. It registers the types of the namespace with c.
func NewClient(c *a2e.Client) (*Client, error) {
	if err := c.Registry().Add(Types()...); err != nil {
		return nil, err
	}
	return &Client{client: c}, nil
}

// Spawn sends "multi_agent/spawn" and returns the answer.
func (c *Client) Spawn(ctx context.Context, r *SpawnRequest, opts *a2e.CallOptions) (*SpawnResponse, error) {
	return a2e.CallAs[SpawnResponse](ctx, c.client, "multi_agent/spawn", r, opts)
}

// Delegate sends "multi_agent/delegate" and returns the answer. A task that was not accepted
// is an error.
func (c *Client) Delegate(ctx context.Context, r *DelegateRequest, opts *a2e.CallOptions) (*DelegateResponse, error) {
	answer, err := a2e.CallAs[DelegateResponse](ctx, c.client, "multi_agent/delegate", r, opts)
	if err == nil && !isTrue(answer.Accepted) {
		err = refused("the task was not accepted").With("status", answer.Status)
	}
	return answer, err
}

// Await sends "multi_agent/await" and returns the answer. A failed task is an error, with
// its status and its result in the details.
func (c *Client) Await(ctx context.Context, r *AwaitRequest, opts *a2e.CallOptions) (*AwaitResponse, error) {
	answer, err := a2e.CallAs[AwaitResponse](ctx, c.client, "multi_agent/await", r, opts)
	if err == nil && answer.Error != nil && *answer.Error != "" {
		err = failedTask(answer.Status, *answer.Error, answer.Result)
	}
	return answer, err
}

// List sends "multi_agent/list" and returns the answer.
func (c *Client) List(ctx context.Context, r *ListRequest, opts *a2e.CallOptions) (*ListResponse, error) {
	return a2e.CallAs[ListResponse](ctx, c.client, "multi_agent/list", r, opts)
}

// Terminate sends "multi_agent/terminate" and returns the answer. A subagent that was not
// terminated is an error.
func (c *Client) Terminate(ctx context.Context, r *TerminateRequest, opts *a2e.CallOptions) (*TerminateResponse, error) {
	answer, err := a2e.CallAs[TerminateResponse](ctx, c.client, "multi_agent/terminate", r, opts)
	if err == nil && !answer.Success {
		err = refused("the subagent was not terminated")
	}
	return answer, err
}

// SpawnSubagent sends "SUBAGENT_SPAWN_REQ" and returns the answer.
func (c *Client) SpawnSubagent(ctx context.Context, r *SubagentSpawnRequest, opts *a2e.CallOptions) (*SubagentSpawnResponse, error) {
	return a2e.CallAs[SubagentSpawnResponse](ctx, c.client, "SUBAGENT_SPAWN_REQ", r, opts)
}

// DelegateSubagent sends "SUBAGENT_DELEGATE_REQ" and returns the answer. A task that was not
// accepted is an error.
func (c *Client) DelegateSubagent(ctx context.Context, r *SubagentDelegateRequest, opts *a2e.CallOptions) (*SubagentDelegateResponse, error) {
	answer, err := a2e.CallAs[SubagentDelegateResponse](ctx, c.client, "SUBAGENT_DELEGATE_REQ", r, opts)
	if err == nil && !isTrue(answer.Accepted) {
		err = refused("the task was not accepted").With("status", answer.Status)
	}
	return answer, err
}

// AwaitSubagent sends "SUBAGENT_AWAIT_REQ" and returns the answer. A failed task is an
// error, with its status and its result in the details.
func (c *Client) AwaitSubagent(ctx context.Context, r *AwaitRequest, opts *a2e.CallOptions) (*SubagentAwaitResponse, error) {
	answer, err := a2e.CallAs[SubagentAwaitResponse](ctx, c.client, "SUBAGENT_AWAIT_REQ", r, opts)
	if err == nil && answer.Error != nil && *answer.Error != "" {
		err = failedTask(answer.Status, *answer.Error, answer.Result)
	}
	return answer, err
}

// MessageSubagent sends "SUBAGENT_MESSAGE_REQ" and returns the answer. A message that was
// not delivered is an error.
func (c *Client) MessageSubagent(ctx context.Context, r *SubagentMessageRequest, opts *a2e.CallOptions) (*SubagentMessageResponse, error) {
	answer, err := a2e.CallAs[SubagentMessageResponse](ctx, c.client, "SUBAGENT_MESSAGE_REQ", r, opts)
	if err == nil && !isTrue(answer.Delivered) {
		err = refused("the message was not delivered")
	}
	return answer, err
}

// ListSubagents sends "SUBAGENT_LIST_REQ" and returns the answer.
func (c *Client) ListSubagents(ctx context.Context, r *ListRequest, opts *a2e.CallOptions) (*SubagentListResponse, error) {
	return a2e.CallAs[SubagentListResponse](ctx, c.client, "SUBAGENT_LIST_REQ", r, opts)
}

// CancelSubagent sends "SUBAGENT_CANCEL_REQ". Only a failure is answered, by an error that names no
// waiting call; the outcome arrives as an event.
func (c *Client) CancelSubagent(ctx context.Context, r *TerminateRequest) error {
	return c.client.Send(ctx, "SUBAGENT_CANCEL_REQ", r)
}

// TerminateSubagent sends "SUBAGENT_TERMINATE_REQ". Only a failure is answered, by an error that
// names no waiting call; the outcome arrives as an event.
func (c *Client) TerminateSubagent(ctx context.Context, r *TerminateRequest) error {
	return c.client.Send(ctx, "SUBAGENT_TERMINATE_REQ", r)
}

// MergeSubagents sends "SUBAGENT_MERGE_REQ" and returns the answer.
func (c *Client) MergeSubagents(ctx context.Context, r *SubagentMergeRequest, opts *a2e.CallOptions) (*SubagentMergeResponse, error) {
	return a2e.CallAs[SubagentMergeResponse](ctx, c.client, "SUBAGENT_MERGE_REQ", r, opts)
}

func isTrue(b *bool) bool { return b == nil || *b }

// failedTask returns the error of a task.
func failedTask(status, text string, result json.RawMessage) *a2e.Error {
	err := refused(cmp.Or(text, "the task failed")).With("status", status)
	if result != nil {
		err = err.With("result", result)
	}
	return err
}

// refused returns the error of an answer that reports a failure.
func refused(text string) *a2e.Error {
	return &a2e.Error{Code: a2e.ErrRuntime, Message: text, Capability: Capability, Remote: true}
}
