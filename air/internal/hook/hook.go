// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package hook connects the packages below air to unexported parts of package air, which
// sets the functions when it is initialized.
package hook

import (
	"encoding/json"
)

// Vector runs an operation of the test vectors.
var Vector func(op string, in json.RawMessage) (json.RawMessage, error)

// Jitter replaces the source of random numbers in *air.ResolverOptions or *air.PollerOptions.
var Jitter func(opts any, random func() float64)

// IgnoreThreads makes an inbox of *air.InboxOptions pass each move to its handler, whatever happened in the thread.
var IgnoreThreads func(opts any)

// Apply changes a *air.Thread by a message with an air.Body, or returns an *air.Error and leaves it unchanged. A
// body outside negotiations changes nothing.
var Apply func(thread any, isOwn bool, id, inReplyTo string, body any) error

// A Header has the members of an envelope that a relay needs.
type Header struct{ ID, From, To string }

// DecodeHeader validates what a relay validates (section g): the top-level members as in
// air.ProfileInterop, and the body as JSON with a type only. It verifies no signature. The error is
// an *air.Error.
var DecodeHeader func(data []byte) (*Header, error)
