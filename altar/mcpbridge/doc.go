// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package mcpbridge makes the tools of a server of the Model Context Protocol those of a Runtime, with the official Go
// SDK. The authorization, audit, limits and records of the Host are then in front of a server that has none.
//
// # Usage
//
//	bridge, err := mcpbridge.New(func(context.Context) (mcp.Transport, error) {
//		return &mcp.CommandTransport{Command: exec.Command("notes-server")}, nil
//	}, &mcpbridge.Options{Prefix: "notes", Pins: map[string]string{"notes/add": digest}})
//	err = bridge.AddTo(ctx, runtime)
//	err = runtime.RunWithReconnect(ctx, dial)
//
// [Bridge.Tools] returns the tools of the server as contracts. The operator reads them, writes the accepted ones into
// the manifest of the Host, and pins their digests.
//
// # Security
//
// A server cannot change what was accepted. Only pinned tools are offered. The digest of a tool is that of
// its name and its schemas, and it is compared when the tool is added, after each connection, and after the server
// has announced a change: a call of a changed tool is refused before it is sent. Models see the description in the
// manifest, never that of the server. Text of the server in the error of a call is cut after 1,000 characters. The
// transport is the choice of the operator, and so are the rights of a process that it starts.
//
// # State
//
// A Bridge has one connection to the server, made by the first use. A lost connection fails the calls in
// flight as RUNTIME_UNAVAILABLE, and the next call connects again. No call is sent twice: a repeat is decided by
// the Host.
//
// # Conformance
//
// The versions of MCP that the SDK speaks. The server checks the keywords that a contract cannot express. Of them enum,
// const, default, format, pattern and bounds are added to the description of their parameter. References within a
// schema and a choice between one type and null are resolved. A tool with a schema that has no counterpart has
// [Tool.Err], and cannot be pinned. A result is the structured content of the server, or else the list of its content
// blocks. The end of a call at the Host cancels the request at the server.
//
// # Deviations
//
// The SDK reads structured content as floating-point numbers. Content with an integer that a double cannot hold
// is returned as content blocks.
package mcpbridge
