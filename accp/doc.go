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
// Each step of the way can be used alone: [Codec.DecodeRaw] and [Codec.Format] work on the
// grammar only, [Registry], [Diff], [Apply], [StreamAssembler], [Scanner] and [MeasureFrame] need no
// session. [Marshal], [Unmarshal] and [SchemaOf] turn structs into messages.
//
// # Tokens
//
// A session counts tokens with [ApproxCounter], which needs no vocabulary and lies 2 to 10
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
// the shared state, which is part of the record. Before its first frame, and to learn of a
// cancel that another process took, [Session.Reload] looks. [Session.End] removes
// what a session stored, and with [SessionOptions].Keep it expires.
//
// What lies in memory only is hot state: the frames since the last checkpoint, about
// 500 tokens of them, as the context of a model does that they are for. Whatever an ack
// confirms, which is the receipt, is in the store before the ack is sent: the message id
// and the number, so that no repeat is taken, a cancelled chain, a delta of the shared
// state, and of a done or esc the checkpoint that it triggers,
// unless [ReceiveResult].CheckpointErr says otherwise. A process that dies therefore loses nothing of the protocol's state, and the messages themselves have
// reached their handlers; but those frames are missing in the history and in later
// summaries. A [Server] that closes, or drops an idle session, makes a last checkpoint
// and loses none. A message of which parts are missing is lost with the process too;
// its sender is told with the next part.
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
// into memory used before in 2.1 to 2.5 times the time, without allocating (goal: 2),
// into a new message in 3.4 to 4.2 times the time with 3 allocations (goal: 3 and 3).
// A message whose keys are those of the wire is written in 2.7 to 4.1 times the time,
// and in 5.3 to 8.6 times with its keys shortened and its defaults left out, both without
// allocating. The goals for writing, 1.3 and 2, are missed for good: the floor copies
// text that it does not look at, while here every byte is checked for what must be
// escaped and every key for its place. Filling in the defaults of a schema costs 0.5
// of parsing (goal: 1) and 1 allocation. Version 2 of encoding/json takes 2.0 to 2.8 times
// as long to read the same messages into a struct and maps (goal: 2), and 2.6 to 10 times
// to write them.
//
// # Not yet
//
// Even if a session has a store, schemas that a peer sent are in the memory of the
// process, so it has to greet again after a restart. A cancel ends work in other
// processes with their next frame or [Session.Reload], not at once. Trace ids, counters
// of tokens saved against JSON, and replaying a session from its cold state are left to
// the application.
package accp
