// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package mcpbridge connects A2E hosts to MCP servers through the official Go SDK of that protocol.
// It is a connector of package a2e/mcp (A2E-122 to A2E-128).
//
// # Usage
//
//	connector, err := mcpbridge.NewConnector(nil)
//	...
//	bridge, err := mcp.NewBridge(connector, &mcp.Options{
//		Authorizer: func(_ *a2e.Session, c *mcp.ServerConfig) bool {
//			return c.Transport == "stdio" && slices.Equal(c.Cmd, allowed)
//		},
//	})
//	...
//	set, err := tools.NewSet(&tools.Options{SessionTools: bridge.Tools})
//	...
//	host.AddPlugin(bridge.Plugin()).AddPlugin(set.Plugin())
//
// The transports of a [mcp.ServerConfig] are "stdio", a child process; "http", the streamable
// transport, also called "streamable_http"; "sse", the transport of older servers; and "memory",
// one of [Options.Servers] by the name of the configuration. The SDK has no "ws".
//
// # Security
//
// A child gets the variables of [Options.InheritedEnv] and of its configuration, and runs in a
// separate process group, which ends with the session. Lines of its output that begin with neither a
// brace nor a bracket are logged and skipped. A message that is too long, invalid or has a member
// twice ends the connection. HTTP requests are sent to public addresses only and follow no redirect.
// Plain http is permitted to loopback addresses only, and the headers of a configuration are sent to
// its own address only.
//
// # State
//
// A bridge keeps no state beyond the session. A lost connection is replaced at the next call if the
// configuration sets auto_reconnect. The next connection renews the subscriptions to resources, and the
// agent gets notifications/resources/updated for each, because a change in between was not reported.
//
// # Conformance
//
// Tests against servers of the SDK prove A2E-122 to A2E-128 over each transport.
//
// # Deviations
//
// The SDK reads numbers of structured content as floats. If the text of a result has the same value
// as its structured content, as servers should ensure, the data are taken from the text, in which
// numbers are exact. Otherwise structured content with numbers that a float does not represent
// exactly is omitted, and the data of the result are its content blocks.
//
// A result that arrives as an event stream is read by the SDK alone, which accepts equal member
// names and uses the last one.
//
// A progress notification that the SDK forwards after the result of its call is dropped, because no
// event follows an answer.
package mcpbridge
