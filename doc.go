// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package fivewire is the root of a module that speaks five agent protocols.
// There is no code in it; import the package of the protocol that you need.
//
// ARC, Agent Remote Communication, is RPC between agents over HTTP: requests
// routed by agent id, tasks that outlive a request, chats that stream, and
// webhooks. See [github.com/fivewire/fivewire/arc].
//
// What servers have to remember goes through the small interfaces of
// [github.com/fivewire/fivewire/store]. The vectors that all packages are held to,
// and a runner to test other implementations with, are in
// [github.com/fivewire/fivewire/conformance].
package fivewire
