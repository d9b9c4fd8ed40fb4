// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package altar

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"

	"github.com/fivewire/fivewire/internal/auth"
)

// An Authenticator authenticates the sender of an HTTP request (ALT-134, ALT-135) from its header,
// TLS state and peer address. A nil principal without an error means an anonymous caller; an error
// means invalid credentials. The text of the error is not sent.
type Authenticator interface {
	Authenticate(r *http.Request) (*Principal, error)
}

// AuthenticatorFunc makes an [Authenticator] of a function.
type AuthenticatorFunc func(r *http.Request) (*Principal, error)

// Authenticate calls f.
func (f AuthenticatorFunc) Authenticate(r *http.Request) (*Principal, error) { return f(r) }

var errBadCredentials = errors.New("altar: invalid credentials")

// AnyAuthenticator asks one Authenticator after the other, and takes the first
// answer that is not nil, an error included.
func AnyAuthenticator(list ...Authenticator) Authenticator {
	return AuthenticatorFunc(func(r *http.Request) (*Principal, error) {
		for _, a := range list {
			if id, err := a.Authenticate(r); id != nil || err != nil {
				return id, err
			}
		}
		return nil, nil
	})
}

// APIKeyHeader is the header in which [APIKeyAuthenticator] looks for a key, before the bearer token.
const APIKeyHeader = "X-Api-Key"

// APIKeyAuthenticator returns an [Authenticator] of callers with one of the given keys in the header
// X-Api-Key or as a bearer token. Keys must be random and may not be empty.
func APIKeyAuthenticator(keys map[string]*Principal) (Authenticator, error) {
	table, err := auth.NewKeys(keys, func(p *Principal) string { return p.ID })
	if err != nil {
		return nil, fmt.Errorf("altar: %w", err)
	}
	return AuthenticatorFunc(func(r *http.Request) (*Principal, error) {
		key := r.Header.Get(APIKeyHeader)
		if key == "" {
			var ok bool
			if key, ok = auth.Bearer(r.Header.Get("Authorization")); !ok {
				return nil, nil
			}
		}
		p := table.Find(key)
		if p == nil {
			return nil, errBadCredentials
		}
		return p, nil
	}), nil
}

// A TokenVerifier checks a bearer token, such as a JSON Web Token: signature,
// issuer, audience and time. The libraries that this takes stay out of this
// package.
type TokenVerifier interface {
	VerifyToken(ctx context.Context, token string) (*Principal, error)
}

// TokenVerifierFunc makes a [TokenVerifier] of a function.
type TokenVerifierFunc func(ctx context.Context, token string) (*Principal, error)

// VerifyToken calls f.
func (f TokenVerifierFunc) VerifyToken(ctx context.Context, token string) (*Principal, error) {
	return f(ctx, token)
}

// BearerAuthenticator returns an [Authenticator] for bearer tokens.
func BearerAuthenticator(v TokenVerifier) Authenticator {
	return AuthenticatorFunc(func(r *http.Request) (*Principal, error) {
		token, ok := auth.Bearer(r.Header.Get("Authorization"))
		if !ok {
			return nil, nil
		}
		if v == nil {
			return nil, errors.New("altar: no TokenVerifier")
		}
		id, err := v.VerifyToken(r.Context(), token)
		if err == nil && id == nil {
			err = errBadCredentials
		}
		if err != nil {
			return nil, err
		}
		return id, nil
	})
}

// CertificateAuthenticator returns an [Authenticator] for client certificates. The function
// identify maps a certificate to its principal, or to nil if it has none. Only certificates
// verified by the TLS server count, so its ClientAuth must be VerifyClientCertIfGiven or
// RequireAndVerifyClientCert.
func CertificateAuthenticator(identify func(leaf *x509.Certificate) (*Principal, error)) Authenticator {
	return AuthenticatorFunc(func(r *http.Request) (*Principal, error) {
		if r.TLS == nil || len(r.TLS.PeerCertificates) == 0 {
			return nil, nil
		}
		if len(r.TLS.VerifiedChains) == 0 || len(r.TLS.VerifiedChains[0]) == 0 {
			return nil, errors.New("altar: client certificate not verified")
		}
		id, err := identify(r.TLS.VerifiedChains[0][0])
		if err == nil && id == nil {
			err = errBadCredentials
		}
		if err != nil {
			return nil, err
		}
		return id, nil
	})
}
