// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package altar

import "net/http"

// An Authenticator finds out who sends an HTTP request (ALT-134, ALT-135): it
// sees the header, the state of TLS and the address of the peer. Nil without an
// error means that nobody is known; an error, that what the request shows is not
// valid. The text of the error stays here.
type Authenticator interface {
	Authenticate(r *http.Request) (*Identity, error)
}

// AuthenticatorFunc makes an [Authenticator] of a function.
type AuthenticatorFunc func(r *http.Request) (*Identity, error)

// Authenticate calls f.
func (f AuthenticatorFunc) Authenticate(r *http.Request) (*Identity, error) { return f(r) }
