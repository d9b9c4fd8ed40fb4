// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package hook gives other packages access to parts of package altar that are not API. Package altar
// sets the variables when it is initialized.
package hook

import "encoding/json"

// Vector runs an operation of the test vectors that concerns no exported function.
var Vector func(op string, in json.RawMessage) (json.RawMessage, error)

// SessionIDs makes opts, an *altar.HostOptions, take the ids of sessions from next.
var SessionIDs func(opts any, next func() string)
