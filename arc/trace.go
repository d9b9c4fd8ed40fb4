// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package arc

import "context"

type traceKey struct{}

// ContextWithTraceID returns a context that carries the id of a workflow. Every
// call made with it, and every call that a handler makes with the context it was
// given, belongs to that workflow (ARC-012, ARC-178).
func ContextWithTraceID(ctx context.Context, traceID string) context.Context {
	return context.WithValue(ctx, traceKey{}, traceID)
}

// TraceIDFromContext returns the id of the workflow that ctx belongs to, or "".
func TraceIDFromContext(ctx context.Context) string {
	id, _ := ctx.Value(traceKey{}).(string)
	return id
}
