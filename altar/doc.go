// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package altar implements the Altar Protocol Specification (ATAP, Agent & Tool
// Arbitration Protocol) 1.0.0 DRAFT. A Host keeps the contracts of tools. Runtimes
// connect to it and fulfil the contracts, clients call the tools in sessions, and the
// Host checks, authorizes, routes and records every call.
//
// # Usage
//
// A [Host] needs a manifest of contracts and an [Authorizer]. It is an
// [net/http.Handler] for clients over HTTP and for all peers over WebSocket;
// [Host.Serve] serves any other [Conn], such as one of [NewStreamConn]:
//
//	m, err := altar.DecodeManifest(manifest)
//	...
//	keys, err := altar.APIKeyAuthenticator(map[string]*altar.Principal{key: {ID: "alice"}})
//	...
//	host, err := altar.NewHost(m, &altar.HostOptions{Auth: altar.Auth{
//		Authenticator: keys,
//		Authorizer:    altar.RoleAuthorizer(rules...),
//	}})
//	...
//	http.ListenAndServeTLS(addr, cert, key, host)
//
// A [Runtime] provides tools, typed or untyped:
//
//	rt, err := altar.NewRuntime("calc-01", nil)
//	...
//	altar.AddTool(rt, "math/add", func(ctx context.Context, in Sum) (int64, error) {
//		return in.A + in.B, nil
//	})
//	err = rt.RunWithReconnect(ctx, dial)
//
// A [Client] calls them:
//
//	c, err := altar.NewClient(dial, nil)
//	...
//	s, err := c.CreateSession(ctx, nil)
//	...
//	sum, err := altar.CallAs[int64](ctx, s, "math/add", Sum{A: 1, B: 2}, nil)
//	for n, err := range altar.StreamAs[int64](ctx, s, "count", params, nil) {
//
// To encode or decode messages only, use [DecodeMessage] and [AppendMessage].
//
// # Security
//
// A Host refuses requests without a principal unless AllowAnonymous of [Auth] is set;
// [NewHost] fails without an Authenticator and without AllowAnonymous. Clients refuse
// http and ws to other hosts than this host unless AllowInsecure is set.
// The transport authenticates: API keys, bearer tokens, client certificates or a
// custom [Authenticator]. The [Authorizer] decides about every call, and an open
// session belongs to the principal that created it. The module
// github.com/fivewire/fivewire/altar/jwtauth verifies JWTs.
//
// A connection ends when its principal expires. An error of another server is sent to a
// peer only if a handler wraps it.
//
// Messages are bounded in size and depth and read strictly: duplicate members and bad
// UTF-8 are refused, unknown fields are ignored. Only the contracts of the Host decide
// about parameters; integers are exact over 64 bits. Hosts of a cluster
// trust each other. A Host belongs behind TLS.
//
// # State
//
// A call runs at most once, unless its contract is idempotent. Its outcome is kept
// under its invocation id for ResultTTL of [Persistence]; a repeated call joins the
// running call or gets the recorded outcome. A [Client] that loses its connection
// repeats its calls in flight and continues its streams.
//
// Without a store, all state is in memory. With a [store.Store], sessions, owners of
// runtime ids, intents to run calls and outcomes survive a restart, and several Hosts
// may share them. The intent is written before dispatch. If that write fails, the call
// does not run and gets INTERNAL_ERROR. Streams are recorded when they end. Quotas
// apply to each Host separately.
//
// Each Host holds a lease. The calls of a Host whose lease has expired have failed
// with RUNTIME_UNAVAILABLE, unless their contract is idempotent. Each Host needs a
// unique ID and keeps it across restarts; a Host whose ID another process takes refuses
// calls permanently.
//
// Hosts on one store forward calls to the Runtimes that are connected to another of them:
// over the store, or over a Cluster such as that of altar/natsroute, which writes nothing there.
//
// # Conformance
//
// Levels 1 and 2, as proved by the vectors of package conformance. Not implemented:
// calls from tools to other tools.
//
// # Deviations
//
// None from the text. The specification does not define framing, correlation and
// transports; DECISIONS.md has the choices:
//
//   - A message is one flat JSON object with its name in the member type (ALT-D01).
//   - Additional messages and fields, such as SessionCreated, ListTools, CancelCall,
//     Ping and request_id, are sent only to peers that request or announce them.
package altar
