// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package oauth implements OAuth 2.0 and OpenID Connect for package arc (section 8 of the ARC
// specification): a server verifies JWT access tokens with the published keys of their issuers, and
// a client obtains tokens with client credentials. It is a nested module, so that other programs do
// not download its dependencies.
//
// # Usage
//
// A server:
//
//	verifier, err := oauth.NewVerifier([]oauth.Issuer{{
//		URL:      "https://login.example/realms/agents",
//		Audience: "https://agents.example/arc",
//	}}, nil)
//	...
//	srv := arc.NewServer(&arc.ServerOptions{Auth: arc.Auth{Authenticator: arc.BearerAuthenticator(verifier)}})
//
// A client:
//
//	source, err := oauth.NewTokenSource(oauth.TokenSourceOptions{
//		ClientID: "planner", ClientSecret: secret, TokenURL: "https://login.example/token",
//		Scopes: []string{arc.ScopeTaskController, arc.ScopeAgentCaller},
//	})
//	...
//	c, err := arc.NewClient(endpoint, "planner", &arc.ClientOptions{TokenSource: source})
//
// # Security
//
// Signature, issuer, audience and times of each token are verified, with a tolerance of 60 s for
// clocks. The audience is required; [AnyAudience] accepts tokens for other services. Keys come from
// the issuer only, never from a token. Symmetric algorithms and "none" are refused.
//
// A key verifies only if its type fits the algorithm, its use is absent or sig, its key_ops are
// absent or have verify, its alg is absent or that of the token, and an RSA modulus has 2,048 to
// 8,192 bits. Other keys of a set are skipped, counted and logged. At most 256 keys and 1 MiB are
// read. A token without kid is checked with at most 16 keys.
//
// A token that is bound to a key (RFC 8705, RFC 9449) is refused unless VerifierOptions.Confirm
// checks the proof of possession. Opaque tokens (RFC 7662) are not supported.
//
// # State
//
// Keys are kept in memory for VerifierOptions.KeyTTL and fetched again in the background after half
// of it, so a short outage of the issuer does not matter. Unknown keys and forged tokens cause at
// most one fetch per VerifierOptions.MinRefreshInterval. No persistent state is kept. The id of a
// principal is the issuer, "#" and sub, also with a single issuer, so another issuer renames no
// principal.
//
// # Conformance
//
// Tokens of ARC-168 and ARC-163, with the JWS, JWK and JWC cases of Wycheproof. Encrypted tokens
// and the JSON serialization are refused.
//
// # Deviations
//
//   - ARC-D52: scopes are read from the first of scope, scp, scopes and permissions.
//   - ARC-D53: agent_id names the only agent of a token.
//   - exp, nbf and iat are integers below 2^53; a fraction is refused.
package oauth
