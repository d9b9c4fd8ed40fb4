// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package air

import (
	"context"
)

// A SendFunc signs a message and delivers it, as [Client.Send] does. It is called concurrently.
type SendFunc func(ctx context.Context, draft *Draft, opts *SendOptions) (*Receipt, error)

// An Interceptor wraps the sending of every message of a [Client], for example for logs, budgets or
// approval. It must change a copy of the draft. To intercept requests, use the transport of
// [ClientOptions].HTTPClient.
type Interceptor func(SendFunc) SendFunc
