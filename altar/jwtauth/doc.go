// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package jwtauth verifies the bearer tokens of Runtimes and clients of an altar Host
// that are JSON Web Tokens, with the keys of their issuers, such as OpenID Connect
// servers.
//
// # Usage
//
//	verifier, err := jwtauth.NewVerifier([]jwtauth.Issuer{{
//		URL:      "https://login.example/realms/tools",
//		Audience: "https://tools.example",
//	}}, nil)
//	...
//	host, err := altar.NewHost(manifest, authorizer, &altar.HostOptions{
//		Auth: altar.Auth{Authenticator: altar.BearerAuthenticator(verifier)},
//	})
//
// # Security
//
// The signature, issuer, audience and times of every token are verified. Symmetric
// algorithms and "none" are refused. Sender-constrained tokens (RFC 8705, RFC 9449) are
// accepted as bearer tokens, without a proof of possession.
//
// # State
//
// Keys are fetched for the first token, for a token with an unknown key, and before
// VerifierOptions.KeyTTL expires, so that a withdrawn key expires. They are kept in
// memory only.
//
// # Conformance
//
// Bearer tokens of ALT-134 to ALT-136.
//
// # Deviations
//
// None.
package jwtauth
