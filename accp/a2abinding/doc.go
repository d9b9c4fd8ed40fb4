// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package a2abinding carries ACCP frames over the Agent2Agent protocol, by the
// official Go SDK of version 0.3 of that protocol.
//
// On the side that answers, [NewExecutor] makes the executor of an A2A agent of an
// [accp.Server]; over which transport the SDK serves it does not matter:
//
//	agent, err := accp.NewServer("desk", nil)
//	agent.HandleFunc(accp.IntentReq, accp.OpAnalyze, analyze)
//	handler := a2asrv.NewHandler(a2abinding.NewExecutor(agent))
//	http.Handle("/a2a", a2asrv.NewJSONRPCHandler(handler))
//
// On the side that asks, [NewClient] makes an [accp.Client] of a client of the SDK, so
// that all of ACCP's session is there: numbers, references, checkpoints, budgets,
// tries.
//
// # What goes over the wire
//
// A frame is a text part of media type application/accp (ACCP-164). A req frame
// creates a task, whose state follows the frames that answer it (ACCP-165, ACCP-D58): ack
// and stream are working, wait and esc input-required, done completed, fail failed
// and cancel canceled. The frames stand in the messages of these states, but for
// the chunks of streams: each is a part of one artifact (ACCP-166). Frames of all
// other intents, and all parts of a split message but the last, are answered by a
// message and make no task.
//
// When a caller leaves a call that is not finished, its task is cancelled; when a task
// is cancelled, the handler's context ends.
package a2abinding
