// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package air implements the Agent-to-Agent (A2A) Messaging Protocol of the Agent Identity
// Registry, version draft-1: signed envelopes between agents, delivered directly or through a
// relay, and a negotiation of offers and counters. The protocol is not Google's A2A.
//
// # Usage
//
// An [Agent] sends and receives for an [Identity]:
//
//	id, err := air.LoadIdentity("agent.json")
//	...
//	agent, err := air.NewAgent(id, air.HandlerFunc(handle), &air.AgentOptions{Persistence: air.Persistence{Store: db}})
//	...
//	receipt, err := agent.Send(ctx, "did:wba:agentidentityregistry.org:agents:AIR-A1B2-C3D4-E5F6",
//		&air.Offer{Description: "Translate a page", Price: price, Expires: expires}, &air.SendOptions{Seal: true})
//	...
//	err = agent.Run(ctx) // fetches its mail from the relay in its document
//
// Its parts can be used alone: a [Client] sends, an [Inbox] receives and is the [net/http.Handler] for direct
// delivery, and a [Poller] fetches from a [github.com/fivewire/fivewire/air/relay.Server].
//
// A [Negotiation] makes the moves of one side of a thread. [Canonicalize], [Sign], [Verify]
// and [Seal] process raw JSON; [Identity.Open] opens a sealed body. Package [github.com/fivewire/fivewire/air/registry] registers
// agents, looks them up and rotates keys.
//
// # Security
//
// An inbox accepts signed envelopes of every agent in the registry; the member from is unverified
// until the signature has verified. A body that is not sealed can be read by every relay. To
// protect it, set [SendOptions].Seal, or [ClientOptions].RequireSealed to refuse plain bodies. A
// sealed body still shows who writes to whom, when, and in which thread, and an attacker with the
// recipient's key can open what was sent before.
//
// A relay can drop, delay and reorder. Set a time limit for every negotiation. A key that the
// registry has replaced is trusted for up to 70 seconds more, because documents are cached;
// [ResolverOptions].CacheTTL shortens this. One identity key serves for signing and, in another
// form, for sealing. That is what the specification intends.
//
// # State
//
// The store of an inbox keeps nonces, ids, threads, dead letters and queued pushes across restarts and
// for several processes; without one they are in memory. A relay delivers an envelope until it is
// acknowledged: when the handler took it, when it was refused permanently, or when it is a stored
// [DeadLetter]. The inbox passes each envelope to the handler once. If a process crashes in the
// handler, another one delivers the envelope again when the lease of the process has expired, with
// [Delivery].Redelivered set. A handler that must act at most once uses the envelope id as a key of its
// actions. A handler that fails is called again after a delay; only [Reject] refuses an envelope.
//
// With a store, a push whose handler takes longer than ten seconds is queued and answered with 202.
// A pushed copy of an envelope that is being handled waits for its outcome; a pulled copy is not
// acknowledged.
//
// # Conformance
//
// The label is draft-1-candidate, see [ConformanceLabel]: section 13 reserves version names for
// implementations tested by the specification's own CI, and draft-1 may change before version 1.
// The published signing and sealed-box vectors pass, and the published envelopes are valid under
// [ProfileSpec]. The header X-A2A-Version is v1, as the specification requires. Not implemented: a
// codec for messages of rooms.
//
// # Deviations
//
// DECISIONS.md has the reasons, and all other choices:
//
//   - Signatures over signature:null, as specified, and over the absent member, as deployed, both
//     verify (AIR-D10).
//   - Names are sorted by UTF-16 code units as in RFC 8785, not by code points (AIR-D01).
//   - Mail is acknowledged only after a final outcome; a poller drops a cursor that is refused
//     three times (AIR-D62, AIR-D63). Pulled mail over 300 seconds old becomes a dead letter (AIR-D68).
//   - A thread has at most 1,000 offers and counters, with prices of at most about 1,000 digits; a mailbox has at most
//     10,000 envelopes by default.
package air
