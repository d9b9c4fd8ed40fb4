// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package toolkits

import (
	"context"

	"github.com/fivewire/fivewire/a2e"
	"github.com/fivewire/fivewire/a2e/internal/wire"
)

// A Client asks a host for its toolkits. Its methods may be called from several
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

// List sends "toolkit/list/req" and returns the answer.
func (c *Client) List(ctx context.Context, r *ListRequest, opts *a2e.CallOptions) (*ListResponse, error) {
	return a2e.CallAs[ListResponse](ctx, c.client, "toolkit/list/req", wire.OrNew(r), opts)
}

// Configure sends "toolkit/configure/req" and returns the answer.
func (c *Client) Configure(ctx context.Context, r *ConfigureRequest, opts *a2e.CallOptions) (*ConfigureResponse, error) {
	return a2e.CallAs[ConfigureResponse](ctx, c.client, "toolkit/configure/req", wire.OrNew(r), opts)
}
