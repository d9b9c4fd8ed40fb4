// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package accp speaks the Agent Context Compression Protocol of
// draft-benzing-accp-00: compact text frames that say what JSON or a sentence
// would take more tokens for, and sessions that keep context in tiers.
//
// A [Codec] reads and writes frames; its zero value is ready for use:
//
//	var c accp.Codec
//	frame, err := c.Encode(&accp.Message{From: "planner", Intent: accp.IntentReq, Op: accp.OpSchedule,
//		Params: accp.Params{{Key: "task", Value: accp.String("login page")}}})
//	// @planner>req:schedule{task:\_login_page}
//	...
//	m, err := c.Decode(frame)
//
// A [Session] numbers, checks and orders frames, exchanges registries of schemas,
// keeps hot, warm and cold context and makes checkpoints of it. [Server], [Client] and
// [Dial] carry sessions over HTTP and WebSocket:
//
//	client, err := accp.NewClient("https://agents.example"+accp.FramesPath, "planner", nil)
//	...
//	for word, err := range client.Stream(ctx, m) {
//
// Each step of the way can be used alone: [Codec.Parse] and [Codec.Format] work on the
// grammar only, [Registry], [Diff], [Apply], [Streams], [Scanner] and [MeasureFrame] need no
// session. [Marshal], [Unmarshal] and [SchemaOf] turn structs into messages.
//
// # Tokens
//
// A session counts tokens with [Approx], which needs no vocabulary and lies 2 to 10
// percent above o200k_base on frames. The module accp/tokenizer beside this package
// counts exactly. A frame alone saves less than the draft says: measured with
// o200k_base, the draft's own messages take 40 to 54 percent fewer tokens than a
// sentence and 11 to 34 percent fewer than compact JSON, without the envelope, which
// costs 33 tokens. What the draft claims is reached by checkpoints, references and
// deltas over a session: 80 percent over ten hops.
//
// # State
//
// With [SessionOptions].Store set, a session goes on after a restart and may be served
// by several processes: numbers, replays, cancelled chains, checkpoints, the shared
// state and the tiers lie there. A frame costs one write of a few kilobytes, and of
// the shared state, which is part of the record.
//
// # Trust
//
// What a peer writes can never end its frame early, hide characters or reach the state
// of another session, but it can talk to the model that reads it: use [Render], which
// marks who says what, and treat it as untrusted. A session id is a name and no
// secret; [ServerOptions].Authorize decides who may use it.
//
// # Conformance
//
// Level 3, as proved by the suites of package conformance; every requirement of the
// reference is named by a vector or a test.
//
// # Deviations
//
// The draft's examples do not agree with its grammar everywhere. What is written
// keeps to the strict grammar; a lenient reader ([Codec].Lenient) accepts every example.
// What the grammar cannot say, such as spaces, is escaped in a way that a peer which
// knows the draft only does not understand; [Codec].Portable writes for such a peer,
// with loss. Metadata key part and the params state and abbr are additions.
//
// HTTP does not keep the order that a session needs, so exchanges of one [Client] take
// turns, or run side by side in sessions of their own.
//
// # Speed
//
// Measured in turns with the simplest code that does the job (see the benchmarks
// named Pair), on four messages and a busy machine of two cores: a frame is parsed
// into memory used before in 2.0 to 2.5 times the time, without allocating (goal: 2),
// into a new message in 3.6 to 4.2 times the time with 3 allocations (goal: 3 and 3).
// A message whose keys are those of the wire is written in 3.1 to 4.7 times the time,
// and in 4.5 to 8 times with its keys shortened and its defaults left out, both without
// allocating. The goals for writing, 1.3 and 2, are missed for good: the floor copies
// text that it does not look at, while here every byte is checked for what must be
// escaped and every key for its place. Filling in the defaults of a schema costs 0.6
// of parsing (goal: 1) and 1 allocation.
//
// # Not yet
//
// Three things are in the memory of the process even if the session has a store: the
// frames of hot state that no checkpoint covers, a message of which parts are missing,
// and schemas that a peer sent, which has to greet again. What a session put into its
// store is never removed from there. Trace ids, counters of tokens saved against JSON,
// and replaying a session from its cold state are left to the application.
package accp
