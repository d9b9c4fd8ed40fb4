// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package mcp

import (
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

// RegisterServer sends "mcp/server/register/req" and returns the answer.
func (c *Client) RegisterServer(ctx context.Context, r *ServerRegisterRequest, opts *a2e.CallOptions) (*ServerRegisterResponse, error) {
	return a2e.CallAs[ServerRegisterResponse](ctx, c.client, "mcp/server/register/req", r, opts)
}

// UnregisterServer sends "mcp/server/unregister/req" and returns the answer.
func (c *Client) UnregisterServer(ctx context.Context, r *ServerUnregisterRequest, opts *a2e.CallOptions) (*ServerUnregisterResponse, error) {
	return a2e.CallAs[ServerUnregisterResponse](ctx, c.client, "mcp/server/unregister/req", r, opts)
}

// ListResources sends "mcp/resource/list/req" and returns the answer.
func (c *Client) ListResources(ctx context.Context, r *ResourceListRequest, opts *a2e.CallOptions) (*ResourceListResponse, error) {
	return a2e.CallAs[ResourceListResponse](ctx, c.client, "mcp/resource/list/req", r, opts)
}

// ReadResource sends "mcp/resource/read/req" and returns the answer.
func (c *Client) ReadResource(ctx context.Context, r *ResourceReadRequest, opts *a2e.CallOptions) (*ResourceReadResponse, error) {
	return a2e.CallAs[ResourceReadResponse](ctx, c.client, "mcp/resource/read/req", r, opts)
}

// SubscribeResource sends "mcp/resource/subscribe/req" and returns the answer.
func (c *Client) SubscribeResource(ctx context.Context, r *ResourceSubscribeRequest, opts *a2e.CallOptions) (*ResourceSubscribeResponse, error) {
	return a2e.CallAs[ResourceSubscribeResponse](ctx, c.client, "mcp/resource/subscribe/req", r, opts)
}

// ListPrompts sends "mcp/prompt/list/req" and returns the answer.
func (c *Client) ListPrompts(ctx context.Context, r *PromptListRequest, opts *a2e.CallOptions) (*PromptListResponse, error) {
	return a2e.CallAs[PromptListResponse](ctx, c.client, "mcp/prompt/list/req", r, opts)
}

// GetPrompt sends "mcp/prompt/get/req" and returns the answer.
func (c *Client) GetPrompt(ctx context.Context, r *PromptGetRequest, opts *a2e.CallOptions) (*PromptGetResponse, error) {
	return a2e.CallAs[PromptGetResponse](ctx, c.client, "mcp/prompt/get/req", r, opts)
}
