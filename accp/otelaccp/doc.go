// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package otelaccp records the messages of clients and servers of package accp with OpenTelemetry.
//
// # Usage
//
//	tel, err := otelaccp.New(nil) // the providers of package otel
//	client, err := accp.NewClient(url, "planner", &accp.ClientOptions{Interceptors: []accp.Interceptor{tel.Interceptor()}})
//	server, err := accp.NewServer("desk", &accp.ServerOptions{Auth: auth, Middleware: []accp.Middleware{tel.Middleware()}})
//	registration, err := tel.Observe(server)
//
// A message and its answers are one trace from the client to the handler. Spans are named by intent and operation, or by
// the tool, and by at most 200 different values of each. Metrics are the durations of calls and handlers, the use and
// the bound of each resource, and the tokens and counters of sessions.
//
// # Security
//
// No span and no metric has content, tokens or the text of an error. The trace context of a client is accepted from every
// client; a propagator without fields ignores it and starts another trace.
//
// # State
//
// None.
//
// # Conformance
//
// The trace context is the key traceparent in the metadata of a frame, which costs about 36 tokens. Fields of other
// propagators are keys with underscores for hyphens. Attributes and metrics follow the GenAI conventions.
//
// # Deviations
//
// None.
package otelaccp
