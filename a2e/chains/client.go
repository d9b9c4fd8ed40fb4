// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package chains

import (
	"context"

	"github.com/fivewire/fivewire/a2e"
)

// A Client uses the chains of a host. It is safe for concurrent use. A nil request means a request
// with the defaults of the catalogue; requests are not changed.
type Client struct{ client *a2e.Client }

// NewClient returns a Client over c. It registers the types of the namespace with c.
func NewClient(c *a2e.Client) (*Client, error) {
	if err := c.Registry().Add(Types()...); err != nil {
		return nil, err
	}
	return &Client{client: c}, nil
}

// Run sends "chain/req" and returns the answer.
func (c *Client) Run(ctx context.Context, r *Request, opts *a2e.CallOptions) (*Response, error) {
	return a2e.CallAs[Response](ctx, c.client, "chain/req", r, opts)
}
