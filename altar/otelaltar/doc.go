// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package otelaltar records the calls of clients and the tools of Runtimes of package altar with OpenTelemetry.
//
// # Usage
//
//	tel, err := otelaltar.New(nil) // the providers of package otel
//	client, err := altar.NewClient(dial, &altar.ClientOptions{Interceptors: []altar.Interceptor{tel.Interceptor()}})
//	runtime, err := altar.NewRuntime("text-01", &altar.RuntimeOptions{Middleware: []altar.Middleware{tel.Middleware()},
//		StreamMiddleware: []altar.StreamMiddleware{tel.StreamMiddleware()}})
//	registration, err := tel.Observe(host)
//
// A call is one trace from the client over the Hosts to the tool; [Telemetry.Stream] does the same for a stream. Spans
// are named by the tool, and by at most 200 different ones. Metrics are the durations of calls and tools, the use and
// the bound of each resource, and the counters of the Host.
//
// # Security
//
// No span and no metric has content, tokens or the text of an error. The trace context of a client is accepted from every
// client; a propagator that ignores it starts another trace.
//
// # State
//
// None.
//
// # Conformance
//
// The trace context is metadata of a call, which Hosts pass on unchanged. Attributes and metrics follow the GenAI
// conventions.
//
// # Deviations
//
// A Host has no span.
package otelaltar
