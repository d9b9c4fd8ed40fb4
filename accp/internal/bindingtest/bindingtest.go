// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

// Package bindingtest has the server and the client of the tests of the bindings.
package bindingtest

import (
	"context"
	"errors"
	"net/http"

	"github.com/fivewire/fivewire/accp"
)

const keyHeader = "X-Key"

// NewServer returns a server with the schema "metric", and its registry. The id of a caller is
// "key " and its key; only the caller "key right" may use the session "forbidden".
func NewServer() (*accp.Server, *accp.Registry, error) {
	registry := accp.NewRegistry()
	metric := accp.Schema{Name: "metric", Code: "MX", Version: 1, Fields: []string{"name", "level"}, Abbr: map[string]string{"lv": "level"}}
	if err := registry.Register(metric); err != nil {
		return nil, nil, err
	}
	s, err := accp.NewServer("desk", &accp.ServerOptions{
		Session: accp.SessionOptions{Registry: registry},
		Auth: accp.Auth{
			Authenticator: accp.AuthenticatorFunc(func(r *http.Request) (*accp.Principal, error) {
				return &accp.Principal{ID: "key " + r.Header.Get(keyHeader)}, nil
			}),
			Authorizer: accp.AuthorizerFunc(func(ctx context.Context, m *accp.Message) error {
				if m.Meta.SID == "forbidden" && accp.PrincipalFromContext(ctx).ID != "key right" {
					return errors.New("not yours")
				}
				return nil
			}),
		},
	})
	return s, registry, err
}

// WithKey is a transport that sends the key "right".
type WithKey struct{ Next http.RoundTripper }

// RoundTrip sends a copy of r with the key.
func (k WithKey) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set(keyHeader, "right")
	return k.Next.RoundTrip(r)
}
