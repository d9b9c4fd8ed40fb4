// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package hook gives package arctest access to parts of package arc that are not
// API. Package arc sets the variables when it is initialized.
package hook

import (
	"context"
	"encoding/json"
	"net/netip"
)

// Vector runs an operation of the test vectors that concerns no exported function.
var Vector func(op string, in json.RawMessage) (json.RawMessage, error)

// Webhooks makes the delays of opts, an *arc.WebhookOptions, exact and replaces the
// resolver of host names.
var Webhooks func(opts any, lookup func(ctx context.Context, network, host string) ([]netip.Addr, error))
