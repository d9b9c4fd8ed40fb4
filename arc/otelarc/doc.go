// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package otelarc records the calls, tasks, chats and webhooks of package arc with OpenTelemetry.
//
// # Usage
//
//	tel, err := otelarc.New(nil) // the providers of package otel
//	client, err := arc.NewClient(url, "planner-01", &arc.ClientOptions{
//		Interceptors: []arc.Interceptor{tel.Interceptor()}, StreamInterceptors: []arc.StreamInterceptor{tel.StreamInterceptor()}})
//	server, err := arc.NewServer(&arc.ServerOptions{Auth: auth, Middleware: []arc.Middleware{tel.Middleware()}})
//	server.HandleTasks("worker-01", tel.TaskHandler(worker))
//	receiver, err := webhook.NewReceiver(tel.NotificationHandler(watcher), secrets, nil)
//	registration, err := tel.Observe(server)
//
// Client, handler, task and webhook are one trace: its id is the traceId of the workflow. Spans are named by the
// operation and the agent, or by the method, and by at most 200 different values of each. Metrics are the
// durations of calls and handlers, and the use and the bound of each resource.
//
// # Security
//
// No span and no metric has content, tokens or the text of an error. The trace context of a caller is accepted from
// every caller. A propagator that ignores it leaves the traceId of the request, which selects the trace, too, but not
// whether its spans are sampled.
//
// # State
//
// A task that another process continues belongs to the trace of its workflow, without the span that created it.
//
// # Conformance
//
// Attributes and metrics follow the GenAI conventions (gen_ai.*), and jsonrpc.request.id, rpc.method, error.type and
// network.protocol.name where these have none.
//
// # Deviations
//
// Delivery attempts of webhooks have no span.
package otelarc
