// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package a2abridge serves an agent of an arc.Server to clients of the Agent2Agent protocol 1.0, and makes
// an A2A agent an agent of an arc.Server, with the official Go SDK.
//
// # Usage
//
//	engine, err := arc.NewServer(&arc.ServerOptions{Auth: auth, Persistence: arc.Persistence{Store: db}})
//	engine.HandleTasks("worker-01", handler)
//	bridge, err := a2abridge.NewServer(engine, "worker-01", nil)
//	card, err := a2abridge.NewCard(arc.AgentInfo{Name: "Worker"}, "https://agents.example/a2a", "")
//	err = a2abridge.SignCard(card, key, "key-1")
//	http.Handle("/a2a", bridge.JSONRPCHandler())
//	http.Handle("/", bridge.RESTHandler())
//	http.Handle(a2asrv.WellKnownAgentCardPath, a2asrv.NewStaticAgentCardHandler(card))
//
// [Server] is also an a2asrv.RequestHandler, for other transports of the SDK. In the other direction a
// [Handler] gives the tasks of an ARC agent to an A2A agent:
//
//	handler, err := a2abridge.NewHandler(card, nil)
//	engine.HandleTasks("remote-01", handler)
//
// # Security
//
// Each request passes the checks of the arc.Server: its Authenticator, scopes, Authorizer, limits, middleware
// and audit. A task belongs to the principal of its token in both protocols. The handlers authenticate
// before they read a body and reserve its memory from the budget of the arc.Server, whose limits, timeouts and
// origins are theirs. They refuse JSON with duplicate members or invalid UTF-8. The URL
// of a part is never fetched. The SDK decodes the numbers of data parts as float64.
//
// The URL of a push configuration is checked like each webhook of the arc.Server, when it is made and for each
// connection, and its notifications have the signatures of those webhooks besides the token and the credentials of the
// configuration. These are kept in the store, and the owner of the task can read them if it may use task.subscribe.
//
// # State
//
// A task is one task of the arc.Server, in its store: any process that shares the store serves it, and a
// restart of a process does not end it. A message is received once: a repeated messageId of the same
// caller gets the task of the first one, for a day, and one with other content is refused.
//
// # Mapping
//
//   - The tenant selects the agent. The contextId is the traceId; without one it is the id of the task.
//   - A message without a taskId creates a task. A message with one is the input of a waiting task.
//   - If an agent has chats and no tasks, a message is answered by a message. The contextId is the id of the chat, which
//     begins with its first message.
//   - States are equal. [Reject] ends a task as rejected, which ARC clients see as failed, and WaitInput with
//     [AuthRequired] waits as auth-required.
//   - Text, data and raw parts are text, data and file, image or audio parts. A url part is a file part without
//     content and with the member url. messageId, extensions, referenceTaskIds and metadata are members of
//     the message with these names.
//   - An artifact is one update with lastChunk. A message of the agent is a status update. A [Handler] adds an
//     artifact when the remote task waits or ends, and again with another id if it has changed since.
//   - A push configuration is a subscription to the task, and needs the permission for task.subscribe. One in a message
//     is added with the message, or not at all, and misses no event from then on. Each event of a stream is a
//     notification, which is repeated like all webhooks of the arc.Server.
//
// # Conformance
//
// All methods of A2A 1.0 over JSON-RPC and HTTP+JSON. A page of ListTasks with messages or artifacts ends early after
// 16 MiB of them. Requests of another version, such as 0.3, or without one are refused with VersionNotSupportedError.
//
// # Deviations
//
// The answer of a chat is one message, also in a stream.
package a2abridge
