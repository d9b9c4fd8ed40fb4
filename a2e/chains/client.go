// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package chains

import (
	"cmp"
	"context"

	"github.com/fivewire/fivewire/a2e"
	"github.com/fivewire/fivewire/a2e/internal/wire"
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

// Run sends "chain/req" and returns the answer. A failed chain is an error, with
// the outputs of its nodes in the details.
func (c *Client) Run(ctx context.Context, r *Request, opts *a2e.CallOptions) (*Response, error) {
	answer, err := a2e.CallAs[Response](ctx, c.client, "chain/req", r, opts)
	if err == nil && !answer.Success {
		err = failedChain(answer)
	}
	return answer, err
}

func failedChain(answer *Response) *a2e.Error {
	member := func(name string) string {
		v, err := wire.CheckJSON(answer.Error)
		if err != nil {
			return ""
		}
		text, _ := v.Get(name).Text()
		return text
	}
	err := refused(cmp.Or(member("message"), "the chain failed"))
	err.Code, err.Reason = cmp.Or(a2e.Code(member("code")), a2e.ErrChainNode), member("reason")
	if answer.Outputs != nil {
		err = err.With("outputs", answer.Outputs)
	}
	return err
}

// refused returns the error of an answer that reports a failure.
func refused(text string) *a2e.Error {
	return &a2e.Error{Code: a2e.ErrRuntime, Message: text, Capability: Capability, Remote: true}
}
