// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package jwtauth verifies the bearer tokens of Runtimes and clients of an altar Host that are JSON
// Web Tokens, with the published keys of their issuers, for example OpenID Connect servers. It is a
// nested module, so that other programs do not download its dependencies.
//
// # Usage
//
//	verifier, err := jwtauth.NewVerifier([]jwtauth.Issuer{{
//		URL:      "https://login.example/realms/tools",
//		Audience: "https://tools.example",
//	}}, nil)
//	...
//	host, err := altar.NewHost(manifest, &altar.HostOptions{
//		Auth: altar.Auth{Authenticator: altar.BearerAuthenticator(verifier), Authorizer: authorizer},
//	})
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
// Bearer tokens of ALT-134 to ALT-136, with the JWS, JWK and JWC cases of Wycheproof. Encrypted
// tokens and the JSON serialization are refused.
//
// # Deviations
//
// exp, nbf and iat are integers below 2^53; a fraction is refused.
package jwtauth
