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
//	tools.AddTool(set, "add", "Add two integers",
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
// ones: see [TypeOf], [NewRoute] and [CallAs]. Messages of unknown types are kept
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
// ([HostOptions.Persistence.Snapshots]): then plans and episodes, and whatever a [Plugin]
// of one's own saves, are there again for the next session of the same agent.
// Memories, feedback and experiences are in a store anyway.
//
// # Performance
//
// Measured in turns with hand-written code that does the least that the job
// allows (benchmarks Pair...), on two shared cores; in brackets the goal. Reading a
// message of 300 bytes takes 2.4 to 3.2 times as long as splitting and validating
// it (2.2), with 2 allocations; one of an unknown type 1.6 to 2.4 times (1.2), with
// 1: equal names, which the base does not look for, are found in the same pass.
// Writing one takes 10 to 12 times as long as appending its text unchecked (2), without
// allocation: more than half of it is the check that text is UTF-8 and raw JSON is
// JSON. What was read here is checked again when it is written, because a part of
// raw JSON that was read need not be JSON, and nothing tells the part from the whole. A
// call within the process takes 4 to 5 times as long as the least one (2.0), over
// pipes of the system 2.0 to 2.8 times with one caller (1.8) and 3.5 to 6 times with
// 64 (2.2), with at most 14 allocations on both ends together; a call crosses
// two goroutines more, those that write for the client and that run the handler,
// so that neither a slow host nor a slow handler holds up anybody else. Finding
// the call of an answer takes 1.3 to 1.5 times a map and a ring (1.5), without allocation.
//
// # Not yet
//
// Record and replay, the tamper-evident audit chain and the capability firewall
// of the reference are not here.
package a2e
