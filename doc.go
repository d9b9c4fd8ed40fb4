// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package fivewire is the root of a module that speaks five agent protocols.
// There is no code in it; import the package of the protocol that you need.
//
// ARC, Agent Remote Communication, is RPC between agents over HTTP: requests
// routed by agent id, tasks that outlive a request, chats that stream, and
// webhooks. See [github.com/fivewire/fivewire/arc].
//
// AIR exchanges signed envelopes, sealed where that is wanted, between agents of
// a registry: directly or through a relay, with negotiations on top. See
// [github.com/fivewire/fivewire/air].
//
// A2E, Agent-to-Environment, lets an agent drive a host of tools, memory,
// processes and more: one JSON object a line, over any byte stream, HTTP or
// WebSocket. See [github.com/fivewire/fivewire/a2e].
//
// Altar is arbitration: a host owns the contracts of tools, checks and routes
// the calls of clients to the runtimes that fulfil them, and runs none of them
// twice. See [github.com/fivewire/fivewire/altar].
//
// ACCP, Agent Context Compression, says in compact frames and tiered context
// what would take a model more tokens to read. See
// [github.com/fivewire/fivewire/accp].
//
// What servers have to remember goes through the small interfaces of
// [github.com/fivewire/fivewire/store]. The vectors that all packages are held to,
// and a runner to test other implementations with, are in
// [github.com/fivewire/fivewire/conformance].
package fivewire
