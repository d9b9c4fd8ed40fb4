// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package skills

import (
	"context"

	"github.com/fivewire/fivewire/a2e"
)

// A Client uses the skills of a host. It is safe for concurrent use. A nil request means a request
// with the defaults of the catalogue; requests are not changed.
type Client struct{ client *a2e.Client }

// NewClient returns a Client over c. It registers the types of the namespace with c.
func NewClient(c *a2e.Client) (*Client, error) {
	if err := c.Registry().Add(Types()...); err != nil {
		return nil, err
	}
	return &Client{client: c}, nil
}

// Discover sends "skill/discover/req" and returns the answer.
func (c *Client) Discover(ctx context.Context, r *DiscoverRequest, opts *a2e.CallOptions) (*DiscoverResponse, error) {
	return a2e.CallAs[DiscoverResponse](ctx, c.client, "skill/discover/req", r, opts)
}

// Call sends "skill/call/req" and returns the answer.
func (c *Client) Call(ctx context.Context, r *CallRequest, opts *a2e.CallOptions) (*CallResponse, error) {
	return a2e.CallAs[CallResponse](ctx, c.client, "skill/call/req", r, opts)
}
