// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package arc implements the ARC Protocol Specification 1.0: remote calls between
// agents over HTTP, routed by agent id, with tasks, streamed chats and webhooks.
//
// # Usage
//
// A calling agent needs a [Client]:
//
//	c, err := arc.NewClient("https://agents.example/arc", "planner-01", nil)
//	...
//	task, err := c.CreateTask(ctx, "translator-02", &arc.CreateTaskParams{
//		InitialMessage: arc.UserText("Translate the attached contract."),
//	}, nil)
//	...
//	result, err := c.WaitTask(ctx, "translator-02", task.ID, nil)
//
// Agents share a [Server], which is an [net/http.Handler]:
//
//	srv, err := arc.NewServer(&arc.ServerOptions{Auth: arc.Auth{Authenticator: arc.BearerAuthenticator(verifier)}})
//	...
//	srv.HandleTasks("translator-02", arc.TaskHandlerFunc(translate))
//	srv.HandleChats("tutor-01", arc.ChatHandlerFunc(tutor))
//	http.Handle("/", srv)
//
// Package arc/webhook receives task notifications, arc/discovery finds agents, and
// arc/conversation keeps chats. To encode or decode messages only, use [DecodeRequest],
// [AppendRequest], [DecodeResponse] and [AppendResponse].
//
// # Security
//
// [NewServer] fails without an [Authenticator], unless [Auth] has AllowAnonymous. Every
// request needs a token with the scopes of section 8, tasks and chats belong to the
// principal of the token, and a principal cannot see another principal's tasks. Streams
// end when the token of their principal expires. The module
// github.com/fivewire/fivewire/arc/oauth verifies JWTs.
//
// [Limits] bound what a principal, or the address of an anonymous caller, may hold. One
// caller's excess is refused with [ErrAgentCapacityExceeded] and leaves room for others.
//
// All input from a peer is untrusted and bounded in size, depth and number: texts,
// file names, error messages, agent ids. Callback URLs are checked against a
// [CallbackPolicy] when a client subscribes, and their addresses again for each
// connection. A server belongs behind TLS; a client refuses plain http except to the
// loopback interface.
//
// # State
//
// Tasks, chats, subscriptions and queued notifications are kept in the store of
// [Persistence], by default in memory. Several processes may share a durable store
// behind a proxy that routes each request to any of them, and take over the unfinished
// work of processes whose lease has expired, also after a restart. A task continues by
// running its handler again, which repeats no [Step], sleep, input, message or artifact.
//
// Subscribers receive each event at least once. The write of a task contains its new
// events, which are queued directly afterwards. If the process exits in between, the
// next owner of the task queues them.
//
// With ResultTTL of [Persistence] a request may be repeated after its process has
// exited (ARC-D48), and its effects on tasks, chats and subscriptions are not
// doubled: a repeated task.create finds its task, task.send its input, chat.message
// its stored answer. The handler of a chat without a stored answer, and the handler
// of a custom method, run again. A streamed answer is repeated with EnableResume only.
//
// # Conformance
//
// Core (all nine methods, errors, discovery, security) and Streaming, client and
// server, as proved by the vectors of package conformance.
//
// # Deviations
//
// Where the specification contradicts itself or is silent, the package follows
// deployed peers; DECISIONS.md has the reasons:
//
//   - task.subscribe returns type "task", as the specification says; the type
//     "subscription" of the Python SDK is also accepted (ARC-D32).
//   - chat.message returns a chat, not success (ARC-D31).
//   - Invalid envelopes get the error codes of the protocol family, not -32600;
//     [ServerOptions.LegacyErrors] selects the older code (ARC-D06).
//   - A failed stream ends with an error event and without a done event (ARC-D22).
//   - An unknown version of a method is refused, never served by an older one
//     (ARC-D51).
//   - Webhooks are complete ARC requests; [WebhookOptions.WritePythonMembers] adds the
//     members that the Python SDK reads (ARC-D42).
package arc
