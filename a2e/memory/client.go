// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package memory

import (
	"context"

	"github.com/fivewire/fivewire/a2e"
)

// A Client uses the memory of a host. It is safe for concurrent use. A nil request means a request
// with the defaults of the catalogue; requests are not changed.
type Client struct{ client *a2e.Client }

// NewClient returns a Client over c. It registers the types of the namespace with c.
func NewClient(c *a2e.Client) (*Client, error) {
	if err := c.Registry().Add(Types()...); err != nil {
		return nil, err
	}
	return &Client{client: c}, nil
}

// Init sends "memory/init/req" and returns the answer.
func (c *Client) Init(ctx context.Context, r *InitRequest, opts *a2e.CallOptions) (*InitResponse, error) {
	return a2e.CallAs[InitResponse](ctx, c.client, "memory/init/req", r, opts)
}

// Store sends "memory/store/req" and returns the answer. Refused entries are a [*StoreError].
func (c *Client) Store(ctx context.Context, r *StoreRequest, opts *a2e.CallOptions) (*StoreResponse, error) {
	answer, err := a2e.CallAs[StoreResponse](ctx, c.client, "memory/store/req", r, opts)
	if err == nil && len(answer.Errors) > 0 {
		err = &StoreError{Refused: answer.Errors, Stored: answer.Stored}
	}
	return answer, err
}

// Retrieve sends "memory/retrieve/req" and returns the answer.
func (c *Client) Retrieve(ctx context.Context, r *RetrieveRequest, opts *a2e.CallOptions) (*RetrieveResponse, error) {
	return a2e.CallAs[RetrieveResponse](ctx, c.client, "memory/retrieve/req", r, opts)
}

// Forget sends "memory/forget/req" and returns the answer.
func (c *Client) Forget(ctx context.Context, r *ForgetRequest, opts *a2e.CallOptions) (*ForgetResponse, error) {
	return a2e.CallAs[ForgetResponse](ctx, c.client, "memory/forget/req", r, opts)
}
