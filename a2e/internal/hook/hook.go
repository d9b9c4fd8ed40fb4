// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package hook gives other packages of the module access to parts of package a2e that are not
// API. Package a2e sets the variables when it is initialized.
package hook

import (
	"context"
	"encoding/json"
)

// Vector runs an operation of the test vectors that concerns no exported function.
var Vector func(op string, in json.RawMessage) (json.RawMessage, error)

// Handshake makes the handshake of c, an *a2e.Client, with r, an *a2e.HandshakeRequest. It returns an *a2e.Message.
var Handshake func(ctx context.Context, c, r any) (any, error)

type lateKey struct{}

// WithLate returns the context of a call whose answer the caller needs also after a local end of the call: the call
// waits up to 5 s for it, and then body is set to that of the answer, but not to an error.
func WithLate(ctx context.Context, body *any) context.Context {
	return context.WithValue(ctx, lateKey{}, body)
}

// Late returns the variable of WithLate, or nil.
func Late(ctx context.Context) *any {
	body, _ := ctx.Value(lateKey{}).(*any)
	return body
}

type toolKey struct{}

// WithTool returns a context for the tools of a session, of which only the one with that name is needed.
func WithTool(ctx context.Context, name string) context.Context {
	return context.WithValue(ctx, toolKey{}, name)
}

// Tool returns the name of WithTool, or "".
func Tool(ctx context.Context) string {
	name, _ := ctx.Value(toolKey{}).(string)
	return name
}

// Serve passes a message of the handler of parent, an *a2e.Call, to the plugins of its session as if
// the agent had sent it, and returns the body of the answer.
var Serve func(ctx context.Context, parent any, msgType string, body any) (any, error)

// IsAnswered reports whether the agent gets the result of the handler of call, an *a2e.Call. It is final when the context
// of the handler has ended.
var IsAnswered func(call any) bool

// State returns the state of the plugin for a capability in the session of call, an *a2e.Call. It is
// nil without such a plugin.
var State func(ctx context.Context, call any, capability string) (any, error)
