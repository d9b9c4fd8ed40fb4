// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package toolkits

import (
	"cmp"
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

// Configure sends "toolkit/configure/req" and returns the answer. A configuration that was
// refused is an error. [ErrPartialConfig] reports one that was accepted in part.
func (c *Client) Configure(ctx context.Context, r *ConfigureRequest, opts *a2e.CallOptions) (*ConfigureResponse, error) {
	answer, err := a2e.CallAs[ConfigureResponse](ctx, c.client, "toolkit/configure/req", r, opts)
	if err == nil && answer.Status != StatusOK && answer.Status != "" {
		err = configError(answer)
	}
	return answer, err
}

func configError(answer *ConfigureResponse) error {
	text := ""
	if answer.Message != nil {
		text = *answer.Message
	}
	err := refused(cmp.Or(text, "the toolkit was not configured")).With("status", answer.Status)
	if answer.Status == StatusPartial {
		err.Cause = ErrPartialConfig
	}
	return err
}

// refused returns the error of an answer that reports a failure.
func refused(text string) *a2e.Error {
	return &a2e.Error{Code: a2e.ErrRuntime, Message: text, Capability: Capability, Remote: true}
}
