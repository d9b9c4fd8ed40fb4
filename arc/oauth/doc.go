// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package oauth implements OAuth 2.0 and OpenID Connect for package arc (section 8
// of the ARC specification): a server verifies JWT access tokens with the keys of
// their issuers, and a client obtains tokens with client credentials.
//
//	verifier, err := oauth.NewVerifier([]oauth.Issuer{{
//		URL:      "https://login.example/realms/agents",
//		Audience: "https://agents.example/arc",
//	}}, nil)
//	...
//	srv := arc.NewServer(&arc.ServerOptions{Verifier: verifier})
//
// Keys are fetched with the first token, when a token names an unknown key, and
// periodically, so that a withdrawn key soon stops verifying tokens.
//
// It is a nested module, so that other programs do not download its dependencies.
//
// # Limitations
//
// Opaque tokens (RFC 7662) are not supported. Tokens bound to a key (RFC 8705,
// RFC 9449) are accepted as bearer tokens, without a proof of possession.
package oauth
