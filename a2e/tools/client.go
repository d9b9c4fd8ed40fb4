// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package tools

import (
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/fivewire/fivewire/a2e"
	"github.com/fivewire/fivewire/a2e/internal/wire"
	"github.com/fivewire/fivewire/internal/guard"
	"github.com/fivewire/fivewire/internal/strictjson"
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

// Call sends "tool/call/req" and returns the answer. A tool that failed is the error of [Result.Err],
// with its data in the details.
func (c *Client) Call(ctx context.Context, r *CallRequest, opts *a2e.CallOptions) (*CallResponse, error) {
	answer, err := a2e.CallAs[CallResponse](ctx, c.client, "tool/call/req", r, opts)
	var failed *a2e.Error
	if err != nil || !errors.As(answer.Data.Err(), &failed) {
		return answer, err
	}
	failed.Remote = true
	if answer.Data.Data != nil {
		failed = failed.With("data", answer.Data.Data)
	}
	return answer, failed
}

// CallAs calls a tool with arguments that encoding/json writes as an object, and decodes its result
// into Out. Nil means no arguments. The tool sends events if opts has OnEvent, and has the time of opts.Timeout. If the tool fails, the
// error is that of [Result.Err], and Out has what its result contains.
func CallAs[Out any](ctx context.Context, c *a2e.Client, name string, in any, opts *a2e.CallOptions) (out Out, err error) {
	if in == nil {
		in = struct{}{}
	}
	arguments, err := guard.Encode(in)
	if err != nil {
		return out, fmt.Errorf("tools: arguments of %s: %w", name, err)
	}
	client, err := NewClient(c)
	if err != nil {
		return out, err
	}
	r := &CallRequest{ToolName: name, Arguments: arguments, Streaming: opts != nil && opts.OnEvent != nil}
	if opts != nil && opts.Timeout > 0 {
		r.Timeout = a2e.Limit(math.Ceil(opts.Timeout.Seconds()))
	}
	answer, failure := client.Call(ctx, r, opts)
	if answer == nil || answer.Data.Data == nil {
		return out, failure
	}
	result, err := wire.CheckJSON(answer.Data.Data)
	if err == nil {
		err = strictjson.Decode(result, &out)
	}
	if err != nil && failure == nil {
		return out, fmt.Errorf("tools: result of %s: %w", name, err)
	}
	return out, failure
}
