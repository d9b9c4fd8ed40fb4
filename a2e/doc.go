// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package a2e lets an agent drive an environment host. It implements the A2E
// Protocol 1.0: one flat JSON object a line, a handshake that agrees on
// capabilities, then requests, answers and events of those capabilities.
//
// A host holds plugins and serves sessions over any byte stream, HTTP or
// WebSocket. A tool is a Go function:
//
//	set := tools.NewSet(nil)
//	tools.AddFunc(set, "add", "Add two integers",
//		func(ctx context.Context, call *a2e.Call, in struct{ A, B int64 }) (int64, error) {
//			return in.A + in.B, nil
//		}, nil)
//	host := a2e.NewHost(&a2e.HostOptions{Tokens: []string{token}}).Add(set.Plugin())
//	err := host.Serve(ctx, a2e.Stdio())
//
// An agent has a [Client] over the same transports:
//
//	child, err := a2e.StartCommand(exec.Command("./host"), nil)
//	...
//	c := a2e.NewClient(child, &a2e.ClientOptions{Token: token, Capabilities: []string{"tools"}})
//	_, err = c.Connect(ctx)
//	...
//	tc, err := tools.NewClient(c)
//	...
//	answer, err := tc.Call(ctx, request, nil)
//
// Each namespace is a package of its own below this one, with its messages, a
// typed client and a plugin that does the real thing: tools, toolkits, memory,
// proc, env, learn, skills, chains, mcp, planning and subagents. Package
// catalogue joins the types of all of them. The nested module mcpbridge connects
// package mcp to real MCP servers.
//
// # Models
//
// A message is an envelope and a body, a struct whose fields have a2e tags. A
// struct literal says exactly what it holds, zeros included; [New] gives one
// with the defaults of the catalogue. Types of one's own work like published
// ones: see [TypeOf], [NewRoute] and [Ask]. Messages of unknown types are kept
// as they came, exact numbers and the order of their members included.
//
// # Transports
//
// Whatever is an [io.ReadWriteCloser] carries a session: [Pipe] within the
// process, [Stdio], [StartCommand] for a child, network connections with or
// without TLS ([Host.ServeListener]), [DialHTTP] and [NewHTTPHandler] for HTTP
// with server-sent events, [DialWebSocket] and [WebSocketHandler].
//
// # Conformance
//
// The whole of the Message Format page, and of the companion pages what the
// vectors of the suites framing, envelope, typed, roundtrip, encode, types,
// errors, events, tools, chain, sse, lifecycle, host, client and http prove.
//
// # Deviations
//
// The wire value of tool and MCP error codes is that of deployed hosts, not the
// spelling of the companion list. The extension "cancel" is offered to agents
// that ask for it; nobody else sees anything of it.
//
// # Snapshots
//
// States of plugins end with their session, unless the host keeps snapshots
// ([HostOptions.Snapshots]): then plans and episodes, and whatever a [Plugin]
// of one's own saves, are there again for the next session of the same agent.
// Memories, feedback and experiences are in a store anyway.
//
// # Not yet
//
// Record and replay, the tamper-evident audit chain and the capability firewall
// of the reference are not here.
package a2e
