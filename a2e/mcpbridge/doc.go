// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package mcpbridge connects A2E hosts to MCP servers through the official Go
// SDK of that protocol. It is the connector that package a2e/mcp asks for
// (A2E-122 to A2E-128):
//
//	bridge := mcp.NewBridge(mcpbridge.NewConnector(nil), &mcp.Options{
//		AllowServer: func(_ *a2e.Session, c *mcp.ServerConfig) bool {
//			return c.Transport == "stdio" && slices.Equal(c.Cmd, allowed)
//		},
//	})
//	set := tools.NewSet(&tools.Options{Session: bridge.Tools})
//	host := a2e.NewHost(nil).Add(bridge.Plugin()).Add(set.Plugin())
//
// The transports of a [mcp.ServerConfig] are "stdio", a child process; "http",
// the streamable transport, also called "streamable_http"; "sse", the one before
// it; and "memory", one of [Options.Servers] by the name of the configuration.
// There is no "ws": the SDK has none.
//
// # Safety
//
// A child gets a few variables of the host's environment and those of its
// configuration, runs in a process group of its own, and is ended as package a2e
// ends children. What it prints must be JSON with unique member names, in lines
// of bounded length; other lines are logged and passed over. Over HTTP only
// public addresses are asked, redirects are not followed, plain text goes to
// this host only, and the headers of a configuration go to its own address only.
//
// # Deviations
//
// The SDK reads numbers of structured content as floats. Where the text of a
// result says the same as its structured content, as servers are asked to do,
// the text is taken, in which numbers are exact. Otherwise structured content
// with numbers that a float cannot tell apart from others is left out, and the
// data of the result are its content blocks.
//
// A result that comes as an event stream is read by the SDK alone, which lets
// the last of two equal member names win.
//
// A progress notification that the SDK hands on after the result of its call is
// dropped: nothing follows an answer.
package mcpbridge
