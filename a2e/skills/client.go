// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package skills

import (
	"cmp"
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

// Call sends "skill/call/req" and returns the answer. A skill that failed is an error,
// with its data in the details.
func (c *Client) Call(ctx context.Context, r *CallRequest, opts *a2e.CallOptions) (*CallResponse, error) {
	answer, err := a2e.CallAs[CallResponse](ctx, c.client, "skill/call/req", r, opts)
	if err == nil {
		err = answer.failure()
	}
	return answer, err
}

// failure returns the error of a skill, or nil.
func (r *CallResponse) failure() error {
	var code, text string
	switch {
	case r.Error != nil:
		if m, err := a2e.ParseMembers(r.Error); err == nil {
			code, _ = m.Text("code")
			text, _ = m.Text("message")
		}
	case r.Data == nil || r.Data.Success:
		return nil
	default:
		if r.Data.Error != nil {
			text = *r.Data.Error
		}
		if r.Data.ErrorCode != nil {
			code = *r.Data.ErrorCode
		}
	}
	err := refused(cmp.Or(text, "the skill failed"))
	err.Code = cmp.Or(a2e.Code(code), a2e.ErrSkill)
	if r.Data != nil && r.Data.Data != nil {
		err = err.With("data", r.Data.Data)
	}
	return err
}

// refused returns the error of an answer that reports a failure.
func refused(text string) *a2e.Error {
	return &a2e.Error{Code: a2e.ErrRuntime, Message: text, Capability: Capability, Remote: true}
}
