// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package proc

import (
	"context"

	"github.com/fivewire/fivewire/a2e"
	"github.com/fivewire/fivewire/a2e/internal/wire"
)

// A Client asks a host for its processes. Its methods may be called from several
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

// Spawn sends "proc/spawn/req" and returns the answer.
func (c *Client) Spawn(ctx context.Context, r *SpawnRequest, opts *a2e.CallOptions) (*SpawnResponse, error) {
	copied := *wire.OrNew(r)
	if copied.SessionID == "" {
		copied.SessionID = c.client.SessionID()
	}
	return a2e.CallAs[SpawnResponse](ctx, c.client, "proc/spawn/req", &copied, opts)
}

// Write sends "proc/write/req" and returns the answer.
func (c *Client) Write(ctx context.Context, r *WriteRequest, opts *a2e.CallOptions) (*WriteResponse, error) {
	return a2e.CallAs[WriteResponse](ctx, c.client, "proc/write/req", wire.OrNew(r), opts)
}

// Kill sends "proc/kill/req" and returns the answer.
func (c *Client) Kill(ctx context.Context, r *KillRequest, opts *a2e.CallOptions) (*KillResponse, error) {
	return a2e.CallAs[KillResponse](ctx, c.client, "proc/kill/req", wire.OrNew(r), opts)
}

// GetStatus sends "proc/status/req" and returns the answer.
func (c *Client) GetStatus(ctx context.Context, r *StatusRequest, opts *a2e.CallOptions) (*StatusResponse, error) {
	return a2e.CallAs[StatusResponse](ctx, c.client, "proc/status/req", wire.OrNew(r), opts)
}
