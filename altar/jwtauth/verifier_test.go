// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package jwtauth

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/altar"
	"github.com/fivewire/fivewire/internal/tokens/tokenstest"
)

const home = "https://login.example"

// Every kind of key that issuers have, as a library of theirs publishes and uses
// it, over real HTTP.
func TestKinds(t *testing.T) {
	p256, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	p384, err := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	require.NoError(t, err)
	p521, err := ecdsa.GenerateKey(elliptic.P521(), rand.Reader)
	require.NoError(t, err)
	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	require.NoError(t, err)
	_, edKey, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(t, err)
	var set jose.JSONWebKeySet
	for id, k := range map[string]crypto.Signer{"p256": p256, "p384": p384, "p521": p521, "rsa": rsaKey, "ed": edKey} {
		set.Keys = append(set.Keys, jose.JSONWebKey{Key: k.Public(), KeyID: id, Use: "sig"})
	}
	mux := http.NewServeMux()
	login := httptest.NewServer(mux)
	defer login.Close()
	mux.HandleFunc("/realms/a/.well-known/openid-configuration", func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(map[string]any{"issuer": login.URL + "/realms/a/", "jwks_uri": login.URL + "/keys"})
	})
	mux.HandleFunc("/keys", func(w http.ResponseWriter, _ *http.Request) { _ = json.NewEncoder(w).Encode(set) })
	v, err := NewVerifier([]Issuer{{URL: login.URL + "/realms/a/", Audience: "tools"}}, nil)
	require.NoError(t, err)
	sign := func(alg jose.SignatureAlgorithm, keyID string, key any) string {
		t.Helper()
		claims, err := json.Marshal(map[string]any{"iss": login.URL + "/realms/a/", "aud": []string{"x", "tools"}, "sub": "planner", "exp": time.Now().Add(time.Hour).Unix()})
		require.NoError(t, err)
		s, err := jose.NewSigner(jose.SigningKey{Algorithm: alg, Key: key}, (&jose.SignerOptions{}).WithHeader("kid", keyID))
		require.NoError(t, err)
		signed, err := s.Sign(claims)
		require.NoError(t, err)
		token, err := signed.CompactSerialize()
		require.NoError(t, err)
		return token
	}
	for _, k := range []struct {
		alg jose.SignatureAlgorithm
		id  string
		key any
	}{{jose.ES256, "p256", p256}, {jose.ES384, "p384", p384}, {jose.ES512, "p521", p521}, {jose.EdDSA, "ed", edKey}, {jose.RS256, "rsa", rsaKey},
		{jose.RS384, "rsa", rsaKey}, {jose.RS512, "rsa", rsaKey}, {jose.PS256, "rsa", rsaKey}, {jose.PS384, "rsa", rsaKey}, {jose.PS512, "rsa", rsaKey}} {
		id, err := v.VerifyToken(t.Context(), sign(k.alg, k.id, k.key))
		require.NoError(t, err, k.alg)
		require.Equal(t, "planner", id.ID)
		for _, other := range []string{"p256", "p384", "p521", "rsa", "ed"} {
			if other != k.id {
				_, err = v.VerifyToken(t.Context(), sign(k.alg, other, k.key))
				require.ErrorIs(t, err, ErrTokenInvalid, "%s under the name of %s", k.alg, other)
			}
		}
	}
	pem := x509.MarshalPKCS1PublicKey(&rsaKey.PublicKey)
	_, err = v.VerifyToken(t.Context(), sign(jose.HS256, "rsa", pem))
	require.ErrorIs(t, err, ErrTokenInvalid, "the public key as a secret")
}

// A token becomes an identity (ALT-136).
func TestIdentity(t *testing.T) {
	var net tokenstest.Network
	key := tokenstest.NewKey(t, "k1")
	login := tokenstest.NewIssuer(&net, home, key)
	v, err := NewVerifier([]Issuer{{URL: home, Audience: "api"}}, &VerifierOptions{HTTPClient: net.Client()})
	require.NoError(t, err)
	for _, tt := range []struct {
		more map[string]any
		want *altar.Principal
	}{
		{nil, &altar.Principal{ID: "caller"}},
		{map[string]any{"tenant_id": "acme", "roles": []any{"user", 1, "admin"}}, &altar.Principal{ID: "caller", Tenant: "acme", Roles: []string{"user", "admin"}}},
		{map[string]any{"tenant_id": "", "roles": "admin"}, &altar.Principal{ID: "caller"}},
		{map[string]any{"tenant_id": json.RawMessage("null"), "roles": map[string]any{"admin": 1}}, &altar.Principal{ID: "caller"}},
		{map[string]any{"tenant_id": 42}, nil}, // or tenants 42 and 43 were one
		{map[string]any{"tenant_id": []string{"acme"}}, nil},
		{map[string]any{"sub": nil}, nil},
		{map[string]any{"sub": ""}, nil},
		{map[string]any{"sub": 7}, nil},
	} {
		id, err := v.VerifyToken(t.Context(), key.Sign(nil, login.Claims(tt.more)))
		require.Equal(t, tt.want, id, tt.more)
		if tt.want == nil {
			require.ErrorIs(t, err, ErrTokenInvalid, tt.more)
			require.NotErrorIs(t, err, ErrTokenExpired, tt.more)
		}
	}
	_, err = v.VerifyToken(t.Context(), key.Sign(nil, login.Claims(map[string]any{"exp": 1})))
	require.ErrorIs(t, err, ErrTokenExpired)
	require.ErrorIs(t, err, ErrTokenInvalid)
}

// An unavailable issuer is a retryable error, not an invalid token.
func TestIssuerDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var net tokenstest.Network
		key := tokenstest.NewKey(t, "k1")
		login := tokenstest.NewIssuer(&net, home, key)
		for _, keysURL := range []string{"", home + "/keys"} {
			v, err := NewVerifier([]Issuer{{URL: home, KeysURL: keysURL}}, &VerifierOptions{HTTPClient: net.Client()})
			require.NoError(t, err)
			up := login.Down(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusBadGateway) })
			_, err = v.VerifyToken(t.Context(), key.Sign(nil, login.Claims(nil)))
			require.ErrorIs(t, err, altar.ErrInternal)
			require.NotContains(t, err.Error(), home, "which is nothing for the caller")
			up()
			time.Sleep(30 * time.Second)
			_, err = v.VerifyToken(t.Context(), key.Sign(nil, login.Claims(nil)))
			require.NoError(t, err)
		}
	})
}

// A Host that lets in who has a token.
func TestHost(t *testing.T) {
	var net tokenstest.Network
	key := tokenstest.NewKey(t, "k1")
	login := tokenstest.NewIssuer(&net, home, key)
	v, err := NewVerifier([]Issuer{{URL: home, Audience: "api"}}, &VerifierOptions{HTTPClient: net.Client(), Principal: func(claims json.RawMessage) (*altar.Principal, error) {
		if strings.Contains(string(claims), "blocked") {
			return nil, errors.New("blocked")
		}
		return &altar.Principal{ID: "n", Roles: []string{"r"}}, nil
	}})
	require.NoError(t, err)
	host, err := altar.NewHost(&altar.Manifest{Contracts: []*altar.Contract{{Name: "t"}}}, altar.RoleAuthorizer(), &altar.HostOptions{
		Auth: altar.Auth{Authenticator: altar.BearerAuthenticator(v)}})
	require.NoError(t, err)
	defer func() { require.NoError(t, host.Close()) }()
	ts := httptest.NewServer(host)
	defer ts.Close()
	try := func(token string) error {
		c := altar.NewClient(func(context.Context) (altar.Conn, error) {
			return altar.NewHTTP(ts.URL, &altar.HTTPDialOptions{Header: http.Header{"Authorization": {"Bearer " + token}}}), nil
		}, nil)
		defer func() { _ = c.Close() }()
		_, err := c.CreateSession(t.Context(), nil)
		return err
	}
	require.NoError(t, try(key.Sign(nil, login.Claims(nil))))
	require.ErrorIs(t, try(key.Sign(nil, login.Claims(map[string]any{"blocked": true}))), altar.ReasonUnauthenticated)
	require.ErrorIs(t, try(key.Sign(nil, login.Claims(map[string]any{"aud": "x"}))), altar.ReasonUnauthenticated)
}

// No token passes, whatever its header and claims, unless the key of the issuer has signed it, and
// none that another decoder could read as a token of another principal.
func FuzzVerifyToken(f *testing.F) {
	const claims = `{"iss":"` + home + `","aud":"api","sub":"caller","exp":99999999999}`
	for _, header := range []string{`{"alg":"ES256","kid":"k1"}`, `{"alg":"none"}`, `{"alg":"HS256","kid":"k1"}`, `{"alg":"ES256","jwk":{"kty":"EC"}}`, `{"alg":"ES256","crit":["b64"],"b64":false}`} {
		f.Add(header, claims, true)
		f.Add(header, claims, false)
	}
	f.Add(`{"alg":"ES256","kid":"k1"}`, `{"iss":"`+home+`","aud":["x","api"],"sub":"caller","exp":1,"Exp":99999999999,"nbf":0}`, true)
	var net tokenstest.Network
	key, thief := tokenstest.NewKey(f, "k1"), tokenstest.NewKey(f, "k1")
	tokenstest.NewIssuer(&net, home, key)
	v, err := NewVerifier([]Issuer{{URL: home, Audience: "api", KeysURL: home + "/keys"}}, &VerifierOptions{HTTPClient: net.Client(), KeyTTL: 24 * time.Hour})
	require.NoError(f, err)
	f.Fuzz(func(t *testing.T, header, claims string, own bool) {
		by := thief
		if own {
			by = key
		}
		id, err := v.VerifyToken(t.Context(), by.Sign(header, claims))
		if err != nil {
			require.Nil(t, id)
			require.ErrorIs(t, err, ErrTokenInvalid)
			return
		}
		require.True(t, own)
		var read struct {
			Iss, Sub string
			Exp      float64
		}
		require.NoError(t, json.Unmarshal([]byte(claims), &read))
		require.Equal(t, home, read.Iss)
		require.Greater(t, read.Exp, float64(time.Now().Unix()-1))
		require.NotEmpty(t, id.ID)
	})
}
