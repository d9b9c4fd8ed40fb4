// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package accp implements the Agent Context Compression Protocol of draft-benzing-accp-00: compact
// text frames between agents, and sessions that hold their context in tiers.
//
// # Usage
//
// A [Codec] encodes and decodes frames:
//
//	var c accp.Codec
//	frame, err := c.Append(nil, &accp.Message{From: "planner", Intent: accp.IntentReq, Op: profile.OpSchedule,
//		Params: accp.Params{{Key: "task", Value: accp.String("login page")}}})
//	// @planner>req:schedule{task:\_login_page}
//
// A [Session] numbers, checks and orders frames, exchanges schemas, and makes checkpoints of its
// context. A [Server] answers frames over HTTP and WebSocket; a [Client] sends them:
//
//	keys, err := accp.APIKeyAuthenticator(map[string]*accp.Principal{key: {ID: "planner"}})
//	server, err := accp.NewServer("desk", &accp.ServerOptions{Auth: accp.Auth{Authenticator: keys}})
//	server.Handle(accp.IntentReq, profile.OpAnalyze, accp.HandlerFunc(analyze))
//	http.Handle("/accp/", server)
//
//	client, err := accp.NewClient("https://agents.example"+accp.FramesPath, "planner", nil)
//	answer, err := client.Call(ctx, m, nil)
//
// [Codec.DecodeRaw] and [Codec.AppendRaw] implement the grammar alone. [Registry], [StreamAssembler],
// [ScanFrames] and [MeasureFrame] need no session. [Marshal] and [Unmarshal] convert structs.
// tokenizer/README.md has the measured token savings.
//
// # Security
//
// [NewServer] requires an [Authenticator] or [Auth].AllowAnonymous. A session id and an agent-id are
// names and not secrets: without an [Authorizer], each caller may use all of them. Browser pages of
// other origins are refused unless named in AllowedOrigins. A [Client] refuses plain http and ws to
// other hosts unless AllowInsecure is set, and follows no redirects. [Limits] bound what one caller
// and all callers may use; [Server.Usage] returns the present use.
//
// A value cannot end its frame, hide characters, or refer to another session without
// [Session.AllowSession]. Its text remains untrusted: [Render] marks each value with its sender and
// key before a model reads it.
//
// # State
//
// With a Store in [Persistence], a session survives a restart, and several processes can serve it:
// numbers, replays, cancelled chains, hot messages, checkpoints, the shared state, schemas of peers
// and the outcomes of requests are stored before the answer is sent. The parts of an incomplete
// message are in memory only.
//
// A request is delivered at most once by its message id. A [Client] sends a message that may have
// been processed again only if it is idempotent by its intent or by [CallOptions].Idempotent. A
// [Server] runs a request whose process failed again only if its handler was registered by
// [Server.HandleIdempotent]. A cancel in another process takes effect with the next frame or
// [Session.Reload]. [Session.End] removes the stored data of a session; otherwise it expires after
// [SessionOptions].Retention.
//
// # Conformance
//
// Level 3, as proved by the suites of package conformance. Trace ids and counters of saved tokens are not
// implemented. The exchanges of one [Client] over HTTP run one after the other, or in separate sessions, because
// a session requires ordered frames.
//
// # Deviations
//
// The decisions are described in DECISIONS.md. A peer can observe:
//
//   - ACCP-D03: characters outside the grammar are escaped; [Codec].Portable writes a lossy form instead.
//   - ACCP-D15: output satisfies the strict grammar; [Codec].Lenient accepts the examples of the draft.
//   - ACCP-D38: a long message is split into frames with the metadata key part.
//   - ACCP-D46: sync:state carries a whole state in the param state.
//   - ACCP-D47: schemas have the additional member abbr, which is part of the hash.
//   - ACCP-D52: an error frame names the code and nothing else.
package accp
