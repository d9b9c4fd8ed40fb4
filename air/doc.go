// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package air exchanges signed envelopes between agents of the Agent Identity
// Registry. It implements the Agent-to-Agent (A2A) Messaging Protocol, version
// draft-1: an agent finds another one in the registry, signs what it wants to say,
// and delivers it directly or through a relay that keeps it until it is fetched.
// On top of that stands a negotiation of offers and counters. (The protocol is
// not Google's A2A.)
//
// An agent that sends needs an [Identity] and a [Client]:
//
//	id, err := air.LoadIdentity("agent.json")
//	...
//	client, err := air.NewClient(id, nil)
//	...
//	receipt, err := client.Send(ctx, &air.Draft{
//		To: "did:wba:agentidentityregistry.org:agents:AIR-A1B2-C3D4-E5F6",
//		Body: &air.Offer{
//			Description: "Translate a page",
//			Price:       air.MinorUnits(500, "USD"),
//			Expires:     time.Now().Add(time.Hour),
//		},
//	}, &air.SendOptions{Seal: true})
//
// One that receives needs an [Inbox], which is an [net/http.Handler] for direct
// delivery, and a [Poller] if its mail is at a relay:
//
//	inbox, err := air.NewInbox(id, air.HandlerFunc(handle), &air.InboxOptions{Store: kv})
//	...
//	poller, err := air.NewPoller(inbox, "https://relay.example/inbox/AIR-A1B2-C3D4-E5F6", nil)
//	...
//	err = poller.Run(ctx)
//
// To register an agent, to look others up and to change a key, there is package
// [github.com/fivewire/fivewire/air/registry].
//
// A [Relay] is a handler too. A [Negotiation] makes the moves of one side of a
// thread. Below all that, [Canonicalize], [Sign], [Verify], [Seal] and
// [BoxKey.Open] work on raw JSON and can be used alone.
//
// # What a signature does not do
//
// A body that is not sealed can be read by every relay on its way. Put nothing
// into it that others may not know, or send it with [SendOptions].Seal; the option
// [ClientOptions].RequireSealed keeps you from forgetting. A sealed body still
// shows who writes to whom, when, and in which thread, and whoever gets hold of
// the recipient's key later can open what was sent before.
//
// A relay can drop, delay and reorder. Set a time limit of your own for every
// negotiation. A key that the registry has replaced is trusted for up to 70
// seconds more, because documents are cached; [ResolverOptions].TTL makes that
// shorter.
//
// One identity key serves for signing and, in another form, for sealing. That is
// what the specification intends.
//
// # Exactly once
//
// A relay delivers until it hears that an envelope was handled. The inbox keeps
// nonces and ids in its store and hands each envelope to the handler once, in
// whatever process. One gap is left that no inbox can close alone: if a
// process dies while the handler runs, nobody knows how far it came. Another one
// then gets the envelope with [Delivery].Again set, after the time that the handler
// may take. A handler that must act exactly once makes what it does depend on
// the id of the envelope, as a key in the same store for example.
//
// While one copy of an envelope is being handled, nobody is told that another one is a
// replay, since a sender takes that for a success: one that is pushed waits, but no
// longer than a handler may take, and is answered 500 Relay Error after that or if it
// came to another process; one that is pulled is not acknowledged.
//
// # Conformance
//
// The label is draft-1-candidate, which [ConformanceLabel] returns: section 13 of the
// specification reserves the name of a version to implementations that its own
// CI runs, and draft-1 may change before version 1. This package passes all 20
// published signing vectors and both published sealed-box vectors, and validates
// the 50 published envelopes under [ProfileSpec]. The header X-A2A-Version says v1
// because the specification demands it of the wire; it is no claim.
//
// # Deviations
//
// The specification signs an envelope whose member signature is null; every
// deployed peer, and the published vectors, sign it without that member. Both
// forms are verified, the first is made; [ProfileDeployed] makes the second
// (AIR-D10).
//
// Names are sorted by UTF-16 code units as RFC 8785 demands, not by code points
// (AIR-D01).
//
// A thread takes at most 1,000 offers and counters; beyond that the answer is a
// conflict.
//
// Pushing to a mailbox of the [Relay] that holds 10,000 envelopes is answered with
// 429 Rate Limited.
//
// A relay that refuses a cursor three times in a row is asked without one, since a
// pull that fails leaves the cursor as it is and the poller would otherwise ask in
// vain for ever (AIR-D62, AIR-D63). That is what a restart of the poller does.
//
// # Speed
//
// Ratios measured in turns on two shared cores; the benchmarks are in the package.
// Canonical JSON takes 0.65 to 0.89 of the plainest code that does the whole job (and
// is 2.8 to 4.2 times as fast as jsontext and 12 to 15 times as fast as gowebpki/jcs),
// verifying an envelope of 1 KB 1.07 to 1.09 of Ed25519 alone, signing 1.08. A push
// over HTTP takes 1.2 to 1.3 of a handler that stores nothing. Missed are:
//
//   - [ReplayWindow]: 1.6 of a map with a ring instead of 1.5, because it keeps two
//     names of each envelope and the map one; 1.2 to 1.8 times as fast as golang-lru
//     instead of 2, for the same reason; 64 callers do 0.66 to 0.85 of what one does
//     instead of 0.8, behind one lock of 0.1 µs for what takes 50 µs to verify.
//   - The queue of a relay in memory: 500,000 cycles a second are reached, but that
//     is 3.6 instead of 3 of a slice behind a lock. A third of it is the hash that
//     tells a second copy (AIR-D61).
//
// On a store that syncs every change in groups, the queue of a relay that is
// [RelayOptions].Alone takes 0.9 to 1.1 of two synced writes, and 1.8 of two writes
// without syncing; 16 callers do seven times as much as one. A relay that shares its
// store also writes down what it hands out (AIR-D62) and looks what others did to what
// it acknowledges, which makes that 1.5 and 2.4.
//
// # Not yet
//
// There is no codec for the messages of rooms, whose fields nobody has written down,
// no probe of peers, no lint and no export of transcripts.
package air
