// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package arc

import (
	"log/slog"
	"time"
)

// Parts of the package for external tests.
var (
	NewStreamReader = newStreamReader
)

// HasScopes reports whether scopes suffice for method.
func HasScopes(method string, scopes []string) bool { return checkScopes(method, scopes) == nil }

const (
	ScopesFullCaller  = ScopeTaskController + " " + ScopeChatController + " " + ScopeAgentCaller
	ScopesChatCaller  = ScopeChatController + " " + ScopeAgentCaller
	MediaTypeStream   = mediaTypeStream
	DefaultMaxMessage = 16 << 20
	DefaultChatIdle   = 24 * time.Hour
)

type (
	StreamReader = streamReader
)

// MustServer returns a server that accepts anonymous callers unless it has an
// authenticator.
func MustServer(opts *ServerOptions) *Server {
	var o ServerOptions
	if opts != nil {
		o = *opts
	}
	o.Auth.AllowAnonymous = true
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	s, err := NewServer(&o)
	if err != nil {
		panic(err)
	}
	return s
}
