// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package relay implements a relay of the A2A Messaging Protocol of the Agent Identity Registry: it
// stores envelopes for agents until they fetch and acknowledge them (section 7).
//
//	srv, err := relay.NewServer(&relay.ServerOptions{
//		Directory: relay.NewRegistryDirectory(resolver),
//		Auth:      relay.Auth{AllowAnonymousPush: true, InboxSecret: secretOf},
//	})
//	...
//	err = http.ListenAndServeTLS(addr, cert, key, srv)
package relay
