// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package mcp

import (
	"context"

	"github.com/fivewire/fivewire/a2e"
	"github.com/fivewire/fivewire/a2e/internal/wire"
)

// A Client asks a host for its MCP servers. Its methods may be called from several
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

// ServerList sends "mcp/server/list/req" and returns the answer.
func (c *Client) ServerList(ctx context.Context, r *ServerListRequest, opts *a2e.CallOptions) (*ServerListResponse, error) {
	return a2e.Ask[ServerListResponse](ctx, c.client, "mcp/server/list/req", wire.OrNew(r), opts)
}

// ServerRegister sends "mcp/server/register/req" and returns the answer.
func (c *Client) ServerRegister(ctx context.Context, r *ServerRegisterRequest, opts *a2e.CallOptions) (*ServerRegisterResponse, error) {
	return a2e.Ask[ServerRegisterResponse](ctx, c.client, "mcp/server/register/req", wire.OrNew(r), opts)
}

// ServerUnregister sends "mcp/server/unregister/req" and returns the answer.
func (c *Client) ServerUnregister(ctx context.Context, r *ServerUnregisterRequest, opts *a2e.CallOptions) (*ServerUnregisterResponse, error) {
	return a2e.Ask[ServerUnregisterResponse](ctx, c.client, "mcp/server/unregister/req", wire.OrNew(r), opts)
}

// ResourceList sends "mcp/resource/list/req" and returns the answer.
func (c *Client) ResourceList(ctx context.Context, r *ResourceListRequest, opts *a2e.CallOptions) (*ResourceListResponse, error) {
	return a2e.Ask[ResourceListResponse](ctx, c.client, "mcp/resource/list/req", wire.OrNew(r), opts)
}

// ResourceRead sends "mcp/resource/read/req" and returns the answer.
func (c *Client) ResourceRead(ctx context.Context, r *ResourceReadRequest, opts *a2e.CallOptions) (*ResourceReadResponse, error) {
	return a2e.Ask[ResourceReadResponse](ctx, c.client, "mcp/resource/read/req", wire.OrNew(r), opts)
}

// ResourceSubscribe sends "mcp/resource/subscribe/req" and returns the answer.
func (c *Client) ResourceSubscribe(ctx context.Context, r *ResourceSubscribeRequest, opts *a2e.CallOptions) (*ResourceSubscribeResponse, error) {
	return a2e.Ask[ResourceSubscribeResponse](ctx, c.client, "mcp/resource/subscribe/req", wire.OrNew(r), opts)
}

// PromptList sends "mcp/prompt/list/req" and returns the answer.
func (c *Client) PromptList(ctx context.Context, r *PromptListRequest, opts *a2e.CallOptions) (*PromptListResponse, error) {
	return a2e.Ask[PromptListResponse](ctx, c.client, "mcp/prompt/list/req", wire.OrNew(r), opts)
}

// PromptGet sends "mcp/prompt/get/req" and returns the answer.
func (c *Client) PromptGet(ctx context.Context, r *PromptGetRequest, opts *a2e.CallOptions) (*PromptGetResponse, error) {
	return a2e.Ask[PromptGetResponse](ctx, c.client, "mcp/prompt/get/req", wire.OrNew(r), opts)
}
