// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package toolkits

import (
	"context"

	"github.com/fivewire/fivewire/a2e"
)

// A Client uses the toolkits of a host. It is safe for concurrent use. A nil request means a request
// with the defaults of the catalogue; requests are not changed.
type Client struct{ client *a2e.Client }

// NewClient returns a Client over c. It registers the types of the namespace with c.
func NewClient(c *a2e.Client) (*Client, error) {
	if err := c.Registry().Add(Types()...); err != nil {
		return nil, err
	}
	return &Client{client: c}, nil
}

// List sends "toolkit/list/req" and returns the answer.
func (c *Client) List(ctx context.Context, r *ListRequest, opts *a2e.CallOptions) (*ListResponse, error) {
	return a2e.CallAs[ListResponse](ctx, c.client, "toolkit/list/req", r, opts)
}

// Configure sends "toolkit/configure/req" and returns the answer.
func (c *Client) Configure(ctx context.Context, r *ConfigureRequest, opts *a2e.CallOptions) (*ConfigureResponse, error) {
	return a2e.CallAs[ConfigureResponse](ctx, c.client, "toolkit/configure/req", r, opts)
}
