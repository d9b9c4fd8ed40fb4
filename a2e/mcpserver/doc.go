// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package mcpserver serves the tools of an A2E host to clients of the Model Context Protocol over
// streamable HTTP, with the official Go SDK.
//
// # Usage
//
//	host, err := a2e.NewHost(&a2e.HostOptions{Auth: a2e.Auth{Authenticator: keys}})
//	host.AddPlugin(set.Plugin())
//	handler, err := mcpserver.NewHandler(host, nil)
//	http.Handle("/mcp", handler)
//
// # Security
//
// The bearer token of a request is the token of a handshake with the host, whose Authenticator, Authorizer,
// limits and audit apply. The handshake precedes the body, whose memory has a share of 64 MiB for a principal and
// of 256 MiB in all. Pages of other origins, ambiguous headers, and JSON with duplicate members or invalid UTF-8
// are refused.
//
// # State
//
// The handler has none, and any process can serve any request. Each request has a session of the host, which ends
// with it, so nothing that a tool keeps for a session remains between calls; what it keeps for the principal does.
// The end of the HTTP request cancels the call. In a shutdown of the host, requests are refused with the status 503,
// and their connections end.
//
// # Conformance
//
// MCP 2026-07-28, stateless, and the older versions that the SDK speaks. The parameters of a tool are its input
// schema, and its output parameters, if it has any, its output schema; a result that does not match them is
// refused. A character that MCP does not allow in the name of a tool is replaced by "_", and such a name ends with
// a part of its hash; then the name of the host is the title. Tools with deferred loading are not listed, but can
// be called. The data of a result are text, after the summary, and structured content if they are an object, with
// exact numbers. A refusal has isError, and names the path of an invalid argument. Events are progress
// notifications.
//
// # Deviations
//
// None.
package mcpserver
