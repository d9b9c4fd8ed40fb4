// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package mcpserver serves the tools of an altar Host to clients of the Model Context Protocol over
// streamable HTTP, with the official Go SDK.
//
// # Usage
//
//	host, err := altar.NewHost(manifest, &altar.HostOptions{Auth: auth})
//	handler, err := mcpserver.NewHandler(host, &mcpserver.Options{Authenticator: auth.Authenticator})
//	http.Handle("/mcp", handler)
//
// # Security
//
// Each request is authenticated by its header before its body is read, and its body has a share of 64 MiB for a
// principal and of 256 MiB in all. A principal sees and calls what it may see and call at the Host: its
// Authorizer, limits and audit apply. Pages of other origins, ambiguous headers, and JSON with duplicate
// members or invalid UTF-8 are refused.
//
// # State
//
// The handler has none, and any process can serve any request. Each request has a session of the Host, which ends
// with it, so a Runtime that keeps data for a session keeps none between calls. The end of the HTTP request cancels
// the call; the SDK passes the notification notifications/cancelled of older versions to no other request. In a
// shutdown of the Host, requests are refused with the status 503, and their connections end.
//
// # Conformance
//
// MCP 2026-07-28, stateless, and the older versions that the SDK speaks. The names of tools are those that
// altar/llm gives to models, and the name of the contract is the title. A result is text, and an object is
// structured content too, with exact numbers. A refusal has isError, and names the path of each invalid
// parameter. The chunks of a streaming tool are progress notifications, and its result is one list or text. A
// contract has no schema of its result, so a tool has no output schema.
//
// # Deviations
//
// None.
package mcpserver
