// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package fivewire is the root of a module that implements five agent protocols. It contains no
// code; import the package of the protocol that you need.
//
// ARC, Agent Remote Communication, is RPC between agents over HTTP: requests routed by agent id,
// tasks that outlive a request, chats that stream, and webhooks. See
// [github.com/fivewire/fivewire/arc].
//
// AIR exchanges signed and optionally sealed envelopes between agents of a registry: directly or
// through a relay, with negotiations on top. See [github.com/fivewire/fivewire/air].
//
// A2E, Agent-to-Environment, lets an agent drive a host of tools, memory, processes and more: one
// JSON object a line, over any byte stream, HTTP or WebSocket. See
// [github.com/fivewire/fivewire/a2e].
//
// Altar is arbitration: a host owns the contracts of tools, checks the calls of clients, routes
// each to the runtime that fulfills it, and runs no call twice. See
// [github.com/fivewire/fivewire/altar].
//
// ACCP, Agent Context Compression, uses compact frames and tiered context to reduce the number of
// tokens that a model reads. See [github.com/fivewire/fivewire/accp].
//
// Servers keep their state in the small interfaces of [github.com/fivewire/fivewire/store]. The
// vectors that all packages must pass, and a runner to test other implementations with, are in
// [github.com/fivewire/fivewire/conformance].
package fivewire
