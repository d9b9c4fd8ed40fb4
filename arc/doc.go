// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package arc lets agents ask each other for work over HTTP. It implements the
// ARC Protocol Specification 1.0 of January 2025: requests and answers routed by
// agent id, tasks that outlive a request, chats that stream, webhooks, and many
// agents behind one endpoint.
//
// An agent that asks needs a [Client]:
//
//	c, err := arc.NewClient("https://agents.example/arc", "planner-01", nil)
//	...
//	task, err := c.CreateTask(ctx, "translator-02", &arc.CreateTaskParams{
//		InitialMessage: arc.UserText("Translate the attached contract."),
//	})
//	...
//	outcome, err := c.Wait(ctx, "translator-02", task.ID, nil)
//
// Agents that answer share a [Server], which is an [net/http.Handler]:
//
//	srv := arc.NewServer(nil)
//	srv.HandleTasks("translator-02", arc.TaskHandlerFunc(translate))
//	srv.HandleChats("tutor-01", arc.ChatHandlerFunc(tutor))
//	http.Handle("/", srv)
//
// A program that is told of tasks elsewhere has a [WebhookReceiver]. Who only
// wants to read or write messages uses [DecodeRequest], [AppendRequest],
// [DecodeResponse], [AppendResponse], [StreamReader] and [StreamEncoder], which
// know nothing of servers and clients.
//
// # Security
//
// A server without [ServerOptions.Verifier] lets everybody in. With one, every
// request needs a token with the scopes of section 8, tasks and chats belong to
// the token's principal, and nobody learns of those of others. The module
// github.com/fivewire/fivewire/arc/oauth verifies JWTs.
//
// Everything that comes from a peer is untrusted, and bounded in size, depth and
// number: texts, file names, error messages, agent ids. Callback URLs are held to
// a [CallbackPolicy] when a client subscribes, and the address is looked at again
// when the connection is made. A server belongs behind TLS; a client refuses
// plain http to other machines.
//
// # State
//
// Tasks, chats, subscriptions and what is to be sent to webhooks are kept in
// [ServerOptions.Persistence.Store], by default in memory. With a store that outlives the
// process, [Server.WaitRecovered] takes up after a restart what was interrupted. Several
// processes may share one, behind a proxy that gives each request to any of them;
// each then calls Recover every now and then, and takes over what a process was
// doing that has been silent for [ServerOptions.Persistence.LeaseTTL]. The calls of one chat have
// to reach one process at a time.
//
// Subscribers are told at least once of what happened to a task and was put into the
// outbox, which is done as soon as the task is written. Of what a process did not
// get to put there before it died, Recover makes up for the end of a task, for all
// but [ServerOptions.StaticWebhooks].
//
// With [ServerOptions.Persistence.ResultTTL] a request may be sent again after its process
// died (ARC-D48), and what it did to tasks, chats and subscriptions is not done twice:
// a task.create finds its task, a task.send its input, a chat.message its answer if
// that was kept. What is not ours to keep may happen again: the handler of a chat
// whose answer was not kept, and that of a method of your own, are called once more.
// Streamed answers are not kept at all, and a request counts as being answered for
// as long as answers are kept, a minute at least.
//
// # Conformance
//
// Core (all nine methods, errors, discovery, security) and Streaming, client and
// server, as proved by the vectors of package conformance.
//
// # Deviations
//
// Where the specification contradicts itself or is silent, the package does what
// deployed peers understand:
//
//   - task.subscribe answers with type "task", as the specification says; both
//     that and the "subscription" of the Python SDK are read (ARC-D32).
//   - chat.message answers with a chat, not with success (ARC-D31).
//   - Faults of the envelope have the codes of the protocol family, not -32600;
//     [ServerOptions.LegacyErrors] gives the older one (ARC-D06).
//   - A failed stream ends with an error event and without a done event (ARC-D22).
//   - An unknown version of a method is refused, never served by an older one
//     (ARC-D51).
//   - Webhooks are complete ARC requests; [WebhookOptions.WritePythonMembers] adds the members
//     that the Python SDK looks for (ARC-D42).
//
// # Goals missed
//
// Ratios vary by a tenth from run to run; the counts of allocations are tests.
//
//   - Reading the head of a request of 300 bytes takes 1.7 times as long as
//     hand-written code that does only that, not one and a half times: it checks all
//     of the text for what JSON allows and for equal names. For 2 KB it takes 1.2
//     times as long, for 64 KB less than that code.
//   - A call over HTTP, client and server with typed params and a look at a task,
//     takes 1.2 to 1.4 times as long as net/http with hand-written JSON, not 1.15
//     times, and 9.5 KB, not 8, in 94 allocations (the goal was 95). About a third
//     of the rest is checking JSON; the deadline of a call costs seven allocations
//     inside context. A method that must not run twice takes 1.4 to 1.5 times as
//     long: to know whether a request that failed was seen, its body goes out by
//     itself.
//   - A stream of 100 events needs 273 allocations, one for each event and 173 for
//     the call, not 190 in all. Its time is 0.7 of one flush for each event (the goal
//     was 1.2).
//   - A task in process, from its creation through its run to its end, takes 36
//     allocations and 6 to 10 µs, not the 6 allocations and the time of one new key in
//     a map: it is written to the store three times and runs in a goroutine that can
//     be canceled. Looking at one takes 4 allocations and 2 µs, of which most is the
//     envelope, not 3 and twice the time of a look into a map.
package arc
