// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package a2e implements the A2E Protocol 1.0: an agent drives an environment host with
// newline-delimited JSON messages. A handshake negotiates capabilities; requests, answers and
// events of those capabilities follow.
//
// # Usage
//
// A [Host] holds plugins and serves sessions. A tool is a Go function:
//
//	set, err := tools.NewSet(nil)
//	...
//	tools.AddTool(set, "add", "Add two integers",
//		func(ctx context.Context, call *a2e.Call, in struct{ A, B int64 }) (int64, error) {
//			return in.A + in.B, nil
//		}, nil)
//	keys, err := a2e.APIKeyAuthenticator(map[string]*a2e.Principal{token: {ID: "planner"}})
//	...
//	host, err := a2e.NewHost(&a2e.HostOptions{Auth: a2e.Auth{Authenticator: keys}})
//	...
//	err = host.AddPlugin(set.Plugin()).Serve(ctx, a2e.Stdio())
//
// A [Client] is the agent's side, over the same transports:
//
//	child, err := a2e.StartCommand(exec.Command("./host"), nil)
//	...
//	c, err := a2e.NewClient(child, &a2e.ClientOptions{Token: token, Capabilities: []string{"tools"}})
//	...
//	_, err = c.Connect(ctx)
//	...
//	sum, err := tools.CallAs[int64](ctx, c, "add", map[string]int{"A": 1, "B": 2}, nil)
//
// Any [io.ReadWriteCloser] carries a session: [Pipe] within the process, [Stdio], [StartCommand]
// for a child, network connections ([Host.ServeListener]), [DialHTTP] and [NewHTTPHandler] for HTTP
// with server-sent events, [DialWebSocket] and [NewWebSocketHandler].
//
// Each namespace is a package below this one, with its messages, a typed client and a plugin:
// tools, toolkits, memory, proc, env, learn, skills, chains, mcp, planning and subagents. Package
// catalogue has the types of all of them. The nested module mcpserver serves tools to clients of
// MCP, and mcpbridge connects package mcp to MCP servers.
//
// A message is an envelope and a body, a struct whose fields have json tags. A zero
// means the default of the catalogue, such as a time limit of 30 seconds; members with another zero
// are pointers or a [Limit]. For additional types see [TypeOf], [NewRoute] and [CallAs]. Messages of unknown types keep exact numbers and the
// order of their members.
//
// # Security
//
// A [Host] needs an [Authenticator], unless AllowAnonymous of [Auth] admits every agent. The agent
// id of a handshake is a claim; only a [Principal] is verified. Requests before the handshake are
// refused unless SkipHandshake is set. Messages are bounded in size and depth and read strictly:
// duplicate members and invalid UTF-8 are refused. [Limits] bound the sessions, calls and queues.
// Plain http and ws are refused by [DialHTTP] and [DialWebSocket] except on loopback;
// [NewHTTPHandler] and [NewWebSocketHandler] refuse pages of other origins and DNS rebinding.
//
// # State
//
// An HTTP session survives broken connections: lost messages are replayed, and a repeated request
// does not run twice. With the Store of [Persistence] it also survives its host: another process on
// the store continues it, and a request that had started fails as interrupted (A2E-D67). All other
// sessions and calls are in memory and end with their host. With Snapshots of [Persistence], the
// states of plugins such as plans and episodes are saved at the end of a session and restored in the
// next session of the same agent. Memories, feedback and experiences are kept in a store of package
// store.
//
// # Conformance
//
// The Message Format page completely, and the parts of the companion pages that the vectors of
// package conformance prove. Not implemented: the tamper-evident audit chain and the capability
// firewall.
//
// # Deviations
//
// DECISIONS.md has all choices. A peer can observe these:
//
//   - The member version may replace a2e, and an id need not be a UUID, unless Strict is set
//     (A2E-D02).
//   - An object with duplicate members is refused (A2E-D08).
//   - A repeated request is dropped or refused, and never runs twice (A2E-D13).
//   - Responses, errors and events are never answered, not even if they are invalid (A2E-D16).
//   - Alternative spellings of deployed peers are accepted (A2E-D20).
//   - The extension "cancel" is available to agents that request it (A2E-D38).
//   - The wire values of tool and MCP error codes are those of deployed hosts.
package a2e
