// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package oauth joins package arc to OAuth 2.0 and OpenID Connect (section 8 of
// the ARC specification): a server checks access tokens that are JWTs against the
// keys of their issuers, and a client gets tokens with client credentials.
//
//	verifier, err := oauth.NewVerifier([]oauth.Issuer{{
//		URL:      "https://login.example/realms/agents",
//		Audience: "https://agents.example/arc",
//	}}, nil)
//	...
//	srv := arc.NewServer(&arc.ServerOptions{Verifier: verifier})
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
// Tokens that are no JWTs cannot be checked (RFC 7662), and of those that are
// bound to a key of their owner (RFC 8705, RFC 9449) the owner is not asked for
// a proof: they pass as what they are without it, bearer tokens.
package oauth
