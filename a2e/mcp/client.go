// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package mcp

import (
	"cmp"
	"context"

	"github.com/fivewire/fivewire/a2e"
)

// A Client uses the MCP servers of a host. It is safe for concurrent use. A nil request means a request
// with the defaults of the catalogue; requests are not changed.
type Client struct{ client *a2e.Client }

// NewClient returns a Client over c. It registers the types of the namespace with c.
func NewClient(c *a2e.Client) (*Client, error) {
	if err := c.Registry().Add(Types()...); err != nil {
		return nil, err
	}
	return &Client{client: c}, nil
}

// ListServers sends "mcp/server/list/req" and returns the answer.
func (c *Client) ListServers(ctx context.Context, r *ServerListRequest, opts *a2e.CallOptions) (*ServerListResponse, error) {
	return a2e.CallAs[ServerListResponse](ctx, c.client, "mcp/server/list/req", r, opts)
}

// RegisterServer sends "mcp/server/register/req" and returns the answer. A server that was not registered
// is an error.
func (c *Client) RegisterServer(ctx context.Context, r *ServerRegisterRequest, opts *a2e.CallOptions) (*ServerRegisterResponse, error) {
	answer, err := a2e.CallAs[ServerRegisterResponse](ctx, c.client, "mcp/server/register/req", r, opts)
	if err == nil && !answer.OK {
		err = refused(cmp.Or(answer.Error, "the server was not registered"))
	}
	return answer, err
}

// UnregisterServer sends "mcp/server/unregister/req" and returns the answer. A server that was not
// removed is an error.
func (c *Client) UnregisterServer(ctx context.Context, r *ServerUnregisterRequest, opts *a2e.CallOptions) (*ServerUnregisterResponse, error) {
	answer, err := a2e.CallAs[ServerUnregisterResponse](ctx, c.client, "mcp/server/unregister/req", r, opts)
	if err == nil && !answer.OK {
		err = refused("the server was not removed")
	}
	return answer, err
}

// ListResources sends "mcp/resource/list/req" and returns the answer.
func (c *Client) ListResources(ctx context.Context, r *ResourceListRequest, opts *a2e.CallOptions) (*ResourceListResponse, error) {
	return a2e.CallAs[ResourceListResponse](ctx, c.client, "mcp/resource/list/req", r, opts)
}

// ReadResource sends "mcp/resource/read/req" and returns the answer. A failed read is an error,
// with the read contents in its details.
func (c *Client) ReadResource(ctx context.Context, r *ResourceReadRequest, opts *a2e.CallOptions) (*ResourceReadResponse, error) {
	answer, err := a2e.CallAs[ResourceReadResponse](ctx, c.client, "mcp/resource/read/req", r, opts)
	if err == nil && answer.Error != "" {
		err = refused(cmp.Or(answer.Error, "the resource was not read")).With("contents", answer.Contents)
	}
	return answer, err
}

// SubscribeResource sends "mcp/resource/subscribe/req" and returns the answer. A refused
// subscription is an error.
func (c *Client) SubscribeResource(ctx context.Context, r *ResourceSubscribeRequest, opts *a2e.CallOptions) (*ResourceSubscribeResponse, error) {
	answer, err := a2e.CallAs[ResourceSubscribeResponse](ctx, c.client, "mcp/resource/subscribe/req", r, opts)
	if err == nil && !answer.OK {
		err = refused(cmp.Or(answer.Error, "the resource was not subscribed"))
	}
	return answer, err
}

// ListPrompts sends "mcp/prompt/list/req" and returns the answer.
func (c *Client) ListPrompts(ctx context.Context, r *PromptListRequest, opts *a2e.CallOptions) (*PromptListResponse, error) {
	return a2e.CallAs[PromptListResponse](ctx, c.client, "mcp/prompt/list/req", r, opts)
}

// GetPrompt sends "mcp/prompt/get/req" and returns the answer. A failed prompt is an error,
// with the messages in its details.
func (c *Client) GetPrompt(ctx context.Context, r *PromptGetRequest, opts *a2e.CallOptions) (*PromptGetResponse, error) {
	answer, err := a2e.CallAs[PromptGetResponse](ctx, c.client, "mcp/prompt/get/req", r, opts)
	if err == nil && answer.Error != "" {
		err = refused(cmp.Or(answer.Error, "the prompt was not read")).With("messages", answer.Messages)
	}
	return answer, err
}

// refused returns the error of an answer that reports a failure.
func refused(text string) *a2e.Error {
	return &a2e.Error{Code: a2e.ErrRuntime, Message: text, Capability: Capability, Remote: true}
}
