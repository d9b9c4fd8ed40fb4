// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package a2abinding carries ACCP frames over the Agent2Agent protocol with its official Go SDK:
// version 1.0, and version 0.3 through the compatibility package a2acompat/a2av0 of the SDK.
//
// # Usage
//
// On the server, [NewExecutor] returns an A2A executor for an [accp.Server]. It works with every
// transport of the SDK:
//
//	agent, err := accp.NewServer("desk", &accp.ServerOptions{Auth: auth})
//	agent.Handle(accp.IntentReq, profile.OpAnalyze, accp.HandlerFunc(analyze))
//	executor, err := a2abinding.NewExecutor(agent)
//	http.Handle("/a2a", a2asrv.NewJSONRPCHandler(a2asrv.NewHandler(executor)))
//	http.Handle("/a2a/v0", a2av0.NewJSONRPCHandler(a2asrv.NewHandler(executor))) // version 0.3
//
// On the client, [NewClient] returns an [accp.Client] for a client of the SDK, with the whole
// session: numbers, references, checkpoints, budgets and retries.
//
// # Wire format
//
// A frame is a text part of media type application/accp. A req frame creates a task, and the
// answering frames determine its state (ACCP-D58): ack and stream are working, wait and esc
// input-required, done completed, fail failed, and cancel canceled. A task that is answered by ack
// alone ends as completed. The frames are in the messages of these states; each chunk of a stream is
// a part of one artifact. Frames of other intents, and all parts of a split message but the last, are
// answered by a message and create no task.
//
// When a caller leaves a running call, its task is cancelled. When a task is cancelled, the context
// of the handler ends.
package a2abinding
