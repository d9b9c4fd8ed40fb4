// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package memory

import (
	"context"

	"github.com/fivewire/fivewire/a2e"
	"github.com/fivewire/fivewire/a2e/internal/wire"
)

// A Client asks a host for its memory. Its methods may be called from several
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

// Init sends "memory/init/req" and returns the answer.
func (c *Client) Init(ctx context.Context, r *InitRequest, opts *a2e.CallOptions) (*InitResponse, error) {
	return a2e.CallAs[InitResponse](ctx, c.client, "memory/init/req", wire.OrNew(r), opts)
}

// Store sends "memory/store/req" and returns the answer.
func (c *Client) Store(ctx context.Context, r *StoreRequest, opts *a2e.CallOptions) (*StoreResponse, error) {
	return a2e.CallAs[StoreResponse](ctx, c.client, "memory/store/req", wire.OrNew(r), opts)
}

// Retrieve sends "memory/retrieve/req" and returns the answer.
func (c *Client) Retrieve(ctx context.Context, r *RetrieveRequest, opts *a2e.CallOptions) (*RetrieveResponse, error) {
	return a2e.CallAs[RetrieveResponse](ctx, c.client, "memory/retrieve/req", wire.OrNew(r), opts)
}

// Forget sends "memory/forget/req" and returns the answer.
func (c *Client) Forget(ctx context.Context, r *ForgetRequest, opts *a2e.CallOptions) (*ForgetResponse, error) {
	return a2e.CallAs[ForgetResponse](ctx, c.client, "memory/forget/req", wire.OrNew(r), opts)
}
