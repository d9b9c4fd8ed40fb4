// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package otela2e records the requests of agents and hosts of package a2e with OpenTelemetry.
//
// # Usage
//
//	tel, err := otela2e.New(nil) // the providers of package otel
//	agent, err := a2e.NewClient(conn, &a2e.ClientOptions{Interceptors: []a2e.Interceptor{tel.Interceptor()}})
//	host, err := a2e.NewHost(&a2e.HostOptions{Auth: auth, Middleware: []a2e.Middleware{tel.Middleware()}})
//	registration, err := tel.Observe(host)
//
// The call of a tool, a skill or a chain is one trace from the agent to the code of the host. Spans are named by the type
// of the message, or by the tool, and by at most 200 different values of each. Metrics are the durations of calls and
// handlers, the use and the bound of each resource, and the counters of the host.
//
// # Security
//
// No span and no metric has content, tokens or the text of an error. The trace context of an agent is accepted from every
// agent; a propagator that ignores it starts another trace.
//
// # State
//
// None.
//
// # Conformance
//
// The trace context is the correlation_id of a request, the caller's own trace id, unless it has one. Requests without
// this member begin another trace at the host. Attributes and metrics follow the GenAI and MCP conventions.
//
// # Deviations
//
// None.
package otela2e
