// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package jwtauth

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/altar"
	"github.com/fivewire/fivewire/internal/jwt/jwttest"
)

const home = "https://login.example"

// newVerifier returns a verifier of one issuer, with its key.
func newVerifier(t *testing.T, o VerifierOptions) (*Verifier, *jwttest.Issuer, *jwttest.Key) {
	t.Helper()
	key := jwttest.NewKey(t, "k1")
	issuer := jwttest.NewIssuer(home, key)
	o.HTTPClient = jwttest.Client(issuer)
	v, err := NewVerifier([]Issuer{{URL: home, Audience: "api"}}, &o)
	require.NoError(t, err)
	return v, issuer, key
}

func TestNewVerifierRefusesIncompleteIssuers(t *testing.T) {
	for name, bad := range map[string][]Issuer{
		"none":      nil,
		"URL":       {{Audience: "api"}},
		"audience":  {{URL: home}},
		"algorithm": {{URL: home, Audience: "api", Algorithms: []string{"HS256"}}},
	} {
		v, err := NewVerifier(bad, nil)
		require.Nil(t, v, name)
		require.ErrorContains(t, err, "jwtauth: ", name)
	}
	_, err := NewVerifier([]Issuer{{URL: home, Audience: AnyAudience}}, nil)
	require.NoError(t, err)
}

// All options reach the shared verifier.
func TestVerifierOptions(t *testing.T) {
	bound := map[string]any{"cnf": map[string]any{"jkt": "x"}}
	refused, issuer, key := newVerifier(t, VerifierOptions{})
	_, err := refused.VerifyToken(t.Context(), key.Sign(nil, issuer.Claims(bound)))
	require.ErrorIs(t, err, ErrTokenInvalid, "without Confirm")

	var log bytes.Buffer
	v, issuer, key := newVerifier(t, VerifierOptions{
		MinRefreshInterval: -1, KeyTTL: -1, Logger: slog.New(slog.NewTextHandler(&log, nil)),
		Confirm: func(context.Context, json.RawMessage) error { return nil },
	})
	issuer.Handle(jwttest.KeysPath, jwttest.Document(`{"keys":[1,`+key.JWK()+`]}`))
	_, err = v.VerifyToken(t.Context(), key.Sign(nil, issuer.Claims(bound)))
	require.NoError(t, err)
	require.Contains(t, log.String(), "jwt: keys skipped")
	for range 3 {
		_, err = v.VerifyToken(t.Context(), jwttest.NewKey(t, "k2").Sign(nil, issuer.Claims(nil)))
		require.ErrorIs(t, err, ErrTokenInvalid)
	}
	require.Len(t, issuer.Requests(), 5, "no interval")

	_, err = NewVerifier([]Issuer{{URL: "http://login.example", Audience: "api"}}, nil)
	require.Error(t, err)
	_, err = NewVerifier([]Issuer{{URL: "http://login.example", Audience: "api"}}, &VerifierOptions{AllowInsecure: true})
	require.NoError(t, err)
}

// A token becomes a principal (ALT-136).
func TestPrincipal(t *testing.T) {
	v, issuer, key := newVerifier(t, VerifierOptions{})
	exp := time.Now().Add(time.Hour).Truncate(time.Second)
	const id = home + "#caller"
	for _, tt := range []struct {
		more map[string]any
		want *altar.Principal
	}{
		{map[string]any{}, &altar.Principal{ID: id}},
		{
			map[string]any{"tenant_id": "acme", "roles": []any{"user", 1, "admin"}},
			&altar.Principal{ID: id, Tenant: "acme", Roles: []string{"user", "admin"}},
		},
		{map[string]any{"tenant_id": "", "roles": "admin"}, &altar.Principal{ID: id}},
		{map[string]any{"tenant_id": json.RawMessage("null"), "roles": map[string]any{"admin": 1}}, &altar.Principal{ID: id}},
		{map[string]any{"tenant_id": 42}, nil}, // or tenants 42 and 43 were one
		{map[string]any{"tenant_id": []string{"acme"}}, nil},
		{map[string]any{"sub": nil}, nil},
		{map[string]any{"sub": ""}, nil},
		{map[string]any{"sub": 7}, nil},
	} {
		tt.more["exp"] = exp.Unix()
		p, err := v.VerifyToken(t.Context(), key.Sign(nil, issuer.Claims(tt.more)))
		if tt.want == nil {
			require.Nil(t, p, tt.more)
			require.ErrorIs(t, err, ErrTokenInvalid, tt.more)
			require.NotErrorIs(t, err, ErrTokenExpired, tt.more)
			continue
		}
		tt.want.Expires = exp
		require.NoError(t, err, tt.more)
		require.Equal(t, tt.want, p, tt.more)
	}
	_, err := v.VerifyToken(t.Context(), key.Sign(nil, issuer.Claims(map[string]any{"exp": 1})))
	require.ErrorIs(t, err, ErrTokenExpired)
	require.ErrorIs(t, err, ErrTokenInvalid)
}

// An unavailable issuer is a retryable error, not an invalid token.
func TestUnavailableIssuer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v, issuer, key := newVerifier(t, VerifierOptions{})
		restore := issuer.Fail(jwttest.KeysPath, http.StatusBadGateway)
		_, err := v.VerifyToken(t.Context(), key.Sign(nil, issuer.Claims(nil)))
		require.ErrorIs(t, err, altar.ErrInternal)
		require.NotContains(t, err.Error(), home, "not for the caller")
		var e *altar.Error
		require.ErrorAs(t, err, &e)
		require.ErrorContains(t, e.Cause, home)
		restore()
		time.Sleep(30 * time.Second)
		_, err = v.VerifyToken(t.Context(), key.Sign(nil, issuer.Claims(nil)))
		require.NoError(t, err)
	})
}

// A Host admits callers with a token.
func TestHost(t *testing.T) {
	v, issuer, key := newVerifier(t, VerifierOptions{Principal: func(claims json.RawMessage) (*altar.Principal, error) {
		if strings.Contains(string(claims), "blocked") {
			return nil, errors.New("blocked")
		}
		return &altar.Principal{ID: "n", Roles: []string{"r"}}, nil
	}})
	manifest := &altar.Manifest{Contracts: []*altar.Contract{{Name: "t"}}}
	host, err := altar.NewHost(manifest, &altar.HostOptions{
		Auth: altar.Auth{Authenticator: altar.BearerAuthenticator(v), Authorizer: altar.RoleAuthorizer()}})
	require.NoError(t, err)
	defer func() { require.NoError(t, host.Close()) }()
	ts := httptest.NewServer(host)
	defer ts.Close()
	try := func(token string) error {
		c, err := altar.NewClient(func(ctx context.Context) (altar.Conn, error) {
			return altar.DialHTTP(ctx, ts.URL, &altar.HTTPDialOptions{Header: http.Header{"Authorization": {"Bearer " + token}}})
		}, nil)
		require.NoError(t, err)
		defer func() { _ = c.Close() }()
		_, err = c.CreateSession(t.Context(), nil)
		return err
	}
	require.NoError(t, try(key.Sign(nil, issuer.Claims(nil))))
	require.ErrorIs(t, try(key.Sign(nil, issuer.Claims(map[string]any{"blocked": true}))), altar.ReasonUnauthenticated)
	require.ErrorIs(t, try(key.Sign(nil, issuer.Claims(map[string]any{"aud": "x"}))), altar.ReasonUnauthenticated)
}
