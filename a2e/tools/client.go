// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package tools

import (
	"context"

	"github.com/fivewire/fivewire/a2e"
)

// A Client uses the tools of a host. It is safe for concurrent use. A nil request means a request
// with the defaults of the catalogue; requests are not changed.
type Client struct{ client *a2e.Client }

// NewClient returns a Client over c. It registers the types of the namespace with c.
func NewClient(c *a2e.Client) (*Client, error) {
	if err := c.Registry().Add(Types()...); err != nil {
		return nil, err
	}
	return &Client{client: c}, nil
}

// List sends "tool/list/req" and returns the answer.
func (c *Client) List(ctx context.Context, r *ListRequest, opts *a2e.CallOptions) (*ListResponse, error) {
	return a2e.CallAs[ListResponse](ctx, c.client, "tool/list/req", r, opts)
}

// Call sends "tool/call/req" and returns the answer.
func (c *Client) Call(ctx context.Context, r *CallRequest, opts *a2e.CallOptions) (*CallResponse, error) {
	return a2e.CallAs[CallResponse](ctx, c.client, "tool/call/req", r, opts)
}
