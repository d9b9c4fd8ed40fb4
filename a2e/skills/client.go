// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package skills

import (
	"context"

	"github.com/fivewire/fivewire/a2e"
	"github.com/fivewire/fivewire/a2e/internal/wire"
)

// A Client asks a host for its skills. Its methods may be called from several
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

// Discover sends "skill/discover/req" and returns the answer.
func (c *Client) Discover(ctx context.Context, r *DiscoverRequest, opts *a2e.CallOptions) (*DiscoverResponse, error) {
	return a2e.CallAs[DiscoverResponse](ctx, c.client, "skill/discover/req", wire.OrNew(r), opts)
}

// Call sends "skill/call/req" and returns the answer.
func (c *Client) Call(ctx context.Context, r *CallRequest, opts *a2e.CallOptions) (*CallResponse, error) {
	return a2e.CallAs[CallResponse](ctx, c.client, "skill/call/req", wire.OrNew(r), opts)
}
