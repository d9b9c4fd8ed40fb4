// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package air

import "context"

// A Sender signs a message and delivers it, as [Client.Send] does. It may be called
// from several goroutines.
type Sender interface {
	Send(ctx context.Context, draft *Draft, opts *SendOptions) (*Receipt, error)
}

// SenderFunc makes a function a [Sender].
type SenderFunc func(ctx context.Context, draft *Draft, opts *SendOptions) (*Receipt, error)

// Send calls f.
func (f SenderFunc) Send(ctx context.Context, draft *Draft, opts *SendOptions) (*Receipt, error) {
	return f(ctx, draft, opts)
}

// SendMiddleware wraps what a [Client] does with every message, for logs, budgets or
// approval for example. What it changes in a draft it changes in a copy. The
// requests themselves are for the transport of [ClientOptions].HTTPClient.
type SendMiddleware func(Sender) Sender
