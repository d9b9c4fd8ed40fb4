// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package mcpbinding carries ACCP frames over the Model Context Protocol with its official Go SDK.
//
// # Usage
//
// On the server, an [accp.Server] answers behind an [mcp.Server]. Its tools become MCP tools. A host
// without ACCP receives plain results, a client of this package the done:tool frame as an embedded
// resource of type application/accp:
//
//	agent, err := accp.NewServer("desk", &accp.ServerOptions{Auth: auth})
//	agent.Handle(accp.IntentReq, profile.OpTool, profile.NewToolHandler(tools))
//	server := mcp.NewServer(info, &mcp.ServerOptions{Instructions: instructions})
//	err = mcpbinding.AddTools(server, agent, &mcp.Tool{Name: "search", InputSchema: schema})
//
// On the client, [NewClient] returns an [accp.Client] for an MCP session: a req:tool frame becomes
// a tools/call, and the result becomes a message of the ACCP session, with numbers, references,
// checkpoints and budgets. The client can also call servers without ACCP; the binding then writes
// the frames in the name of the server.
//
// The instructions of a server, which MCP clients put into the system prompt, contain its registry
// as a sync:registry frame; see [Instructions] and [accp.Client.SyncRegistry].
//
// # Wire format
//
// Arguments are plain JSON, and are validated against the input schema of the tool. The client sends the
// rest of the req:tool frame, without name and arguments, as _meta["accp/frame"], which places the answer
// into the session and the chain of the request, and requests frames as the result. Other servers ignore
// it. A request without it has a separate session and a plain result: a string as it is, another value
// as JSON. A plain host cannot resolve references, so its server needs no shared store.
//
// A result above the limits of a frame is several frames, at most 4 MiB. With [accp.BudgetEnforce] on the server,
// more than about 200 tokens are [accp.ErrBudgetExceeded]. A longer result of a server without ACCP is
// [accp.ErrToolExecFailed].
//
// MCP carries no other frames. For intents other than req:tool, sync:registry and cancel,
// [accp.Client] returns [accp.ErrInvalidIntent].
package mcpbinding
