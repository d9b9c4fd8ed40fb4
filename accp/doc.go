// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package accp speaks the Agent Context Compression Protocol of
// draft-benzing-accp-00: compact text frames that say what JSON or a sentence
// would take more tokens for, and sessions that keep context in tiers.
//
// A [Codec] reads and writes frames; its zero value is ready for use. A [Session]
// numbers, checks and answers them, exchanges registries, keeps hot, warm and cold
// context and makes checkpoints. [Server] and [Client] carry frames over HTTP,
// and [Dial] and the server over WebSocket.
//
// # Deviations
//
// The draft's examples do not agree with its grammar everywhere. What is written
// keeps to the strict grammar; a lenient reader accepts every example.
//
// # Not yet
//
// The package passes the vectors of its suites in package conformance, and is not
// finished beyond them: [Client] and [Dial] have not been run by any test. Sequence
// numbers and the replay window are in memory, also where the tiers are not. Missing
// are: tests by requirement for the tiers,
// checkpoints, profiles and bindings; tokenizers (a [TokenCounter] of your own, or
// [LoadBPE] with a vocabulary of your own, can be used); the bindings to the
// official SDKs of MCP and A2A; examples; benchmarks, and the table of tokens for
// the scenarios of the draft's appendix A. Do not rely on the API staying as it is.
package accp
