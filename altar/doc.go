// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package altar implements the Altar Protocol Specification (ATAP, Agent & Tool
// Arbitration Protocol) 1.0.0 DRAFT: a Host keeps the contracts of tools,
// Runtimes connect to it and fulfil them, clients call them in sessions, and
// the Host checks, authorises, routes and records every call.
//
// A [Host] needs contracts and somebody who decides about calls. It is an
// [net/http.Handler] for clients over HTTP and for everybody over WebSocket;
// [Host.Serve] takes any other [Conn], such as one of [NewNDJSON]:
//
//	m, err := altar.ParseManifest(manifest)
//	...
//	host, err := altar.NewHost(m, altar.AuthorizeRoles(rules...), &altar.HostOptions{
//		Authenticator: altar.AuthenticateAPIKeys(identities),
//	})
//	...
//	http.ListenAndServeTLS(addr, cert, key, host)
//
// A [Runtime] brings tools, typed or not:
//
//	rt := altar.NewRuntime("calc-01", nil)
//	altar.AddTool(rt, "math/add", func(ctx context.Context, in Sum) (int64, error) {
//		return in.A + in.B, nil
//	})
//	err := rt.RunDialer(ctx, dial)
//
// A [Client] calls them:
//
//	s, err := altar.NewClient(dial, nil).CreateSession(ctx, nil)
//	...
//	sum, err := altar.Call[int64](ctx, s, "math/add", Sum{A: 1, B: 2})
//	for n, err := range altar.Stream[int64](ctx, s, "count", params) {
//
// The parts can be used alone: [Decode] and [Append] for messages, [Validator]
// for parameters, [CallStream] for clients with a transport of their own.
//
// # Calls happen at most once
//
// The outcome of a call is recorded for five minutes under its invocation id.
// Whoever repeats a call with the same id joins it while it runs and gets its
// outcome afterwards; it never runs twice, unless its contract says that this
// does no harm. [Client] relies on that when it loses its connection: it
// repeats calls in flight, and streams go on where they stopped.
//
// # JSON
//
// Integers are exact over all 64 bits, binary is base64, a number that is no
// integer is refused for an integer. Input is read strictly: duplicate members,
// bad UTF-8 and excess depth are refused, while unknown fields are ignored.
//
// # Conformance
//
// Levels 1 and 2, as the embedded vectors of package conformance prove. The
// specification leaves open how messages are told apart, answered and carried;
// what this package does there is its own, with one flat JSON object per
// message and the name of the message in its member type.
//
// # Deviations
//
// None from the text. Messages and fields beyond it (SessionCreated,
// AcknowledgeFulfillment, ListTools, CancelCall, Ping, request_id and others)
// are only sent to peers that ask for them or must have an answer, and none of
// them has to be understood.
//
// # Not yet
//
// The state of a Host lives in its memory: sessions, recorded outcomes and the
// owners of runtime ids end with the process. After a restart every old session
// is unknown, so that no repeated call can run a second time.
//
// Verifiers for JSON Web Tokens stand behind [TokenVerifier], without one that
// fetches keys. There are no result contracts, no credit-based flow control, no
// circuit breaker, no interceptors, no calls from tools to other tools, and no
// command line.
package altar
