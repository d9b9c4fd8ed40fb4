// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package mcpbinding carries ACCP frames over the Model Context Protocol, by the
// official Go SDK of that protocol.
//
// On the side of the tools, an [accp.Server] answers behind an [mcp.Server]. Its
// tools become tools of MCP, and each result holds the done:tool frame as an embedded
// resource of type application/accp (ACCP-161, ACCP-162):
//
//	agent, err := accp.NewServer("desk", nil)
//	agent.Handle(accp.IntentReq, accp.OpTool, accp.NewToolHandler(tools))
//	server := mcp.NewServer(info, &mcp.ServerOptions{Instructions: instructions})
//	mcpbinding.AddTools(server, agent, &mcp.Tool{Name: "search", InputSchema: schema})
//
// On the side that calls, [NewClient] makes an [accp.Client] of an MCP session: a
// req:tool frame becomes a tools/call, and what comes back is a message in the ACCP
// session, with all that this does: numbers, references, checkpoints, budgets.
// Servers that have never heard of ACCP can be called as well; the binding then
// writes the frame in their name.
//
// The registry of the server stands as a sync:registry frame in the instructions,
// which MCP clients put into the system prompt (ACCP-163); see [Instructions] and
// [accp.Client.SyncRegistry].
//
// # What goes over the wire
//
// Arguments are plain JSON and results are frames, as the draft has it. So that
// the answer can belong to the session and the chain of the request, the client
// sends the rest of the req:tool frame along, without name and arguments, as
// _meta["accp/frame"]. A server that does not know this ignores it, and a request
// without it is a session of its own.
//
// Both sessions keep the token limits of ACCP: a result, or arguments, of more than
// about 200 tokens are refused with [accp.ErrBudgetExceeded] unless the session has a
// shared store or NoBudget is set in its options. What servers without ACCP answer is
// not limited by tokens.
//
// MCP has no place for frames other than these. [accp.Client] gets
// [accp.ErrInvalidIntent] for what is not req:tool, sync:registry or cancel.
package mcpbinding
