// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package jwtauth verifies the bearer tokens of the Runtimes and clients of an
// altar Host that are JSON Web Tokens, against the keys of their issuers, such as
// the servers of OpenID Connect:
//
//	verifier, err := jwtauth.NewVerifier([]jwtauth.Issuer{{
//		URL:      "https://login.example/realms/tools",
//		Audience: "https://tools.example",
//	}}, nil)
//	...
//	host, err := altar.NewHost(manifest, authorizer, &altar.HostOptions{
//		Authenticator: altar.BearerAuthenticator(verifier),
//	})
//
// Keys are fetched when the first token comes, again when a token names one that
// is not known, and now and then, so that a key that its issuer has withdrawn
// does not open anything for long.
//
// It is a module of its own, so that programs without it do not download what it
// stands on.
//
// # Not yet
//
// Tokens that are bound to a key of their owner (RFC 8705, RFC 9449) pass as
// bearer tokens: the owner is not asked for a proof.
package jwtauth
