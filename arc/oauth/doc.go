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
// It is a module of its own, so that programs without it do not download what it
// stands on.
package oauth
