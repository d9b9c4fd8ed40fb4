// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package otelair records the messages, inboxes and relays of package air with OpenTelemetry.
//
// # Usage
//
//	tel, err := otelair.New(nil) // the providers of package otel
//	client, err := air.NewClient(identity, &air.ClientOptions{Interceptors: []air.Interceptor{tel.Interceptor()}})
//	inbox, err := air.NewInbox(identity, handler, &air.InboxOptions{Middleware: []air.Middleware{tel.Middleware()}})
//	server, err := relay.NewServer(&relay.ServerOptions{Auth: auth, Middleware: []relay.Middleware{tel.RelayMiddleware()}})
//	registration, err := tel.Observe(inbox)
//
// A signed envelope has no room for a trace context. The spans of the sender and of the recipient are in two traces, and
// have a link to one context, which is derived from the id of the envelope. Spans are named by the type of the body, and
// by at most 200 different ones. Metrics are the durations of messages and handlers, the use and the bound of each
// resource, and the counters of the relay.
//
// # Security
//
// No span and no metric has content, addresses or the text of an error.
//
// # State
//
// None.
//
// # Conformance
//
// Attributes and metrics follow the GenAI and messaging conventions.
//
// # Deviations
//
// None.
package otelair
