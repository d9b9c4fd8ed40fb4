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
	"encoding/base64"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/altar"
	"github.com/fivewire/fivewire/internal/sparing"
)

// login is an authorization server with keys that can be changed.
type login struct {
	*httptest.Server
	fetched atomic.Int32
	broken  atomic.Bool
	huge    atomic.Bool

	mu   sync.Mutex
	keys []jose.JSONWebKey // public
}

func newLogin(t *testing.T) *login {
	t.Helper()
	l := &login{}
	mux := http.NewServeMux()
	mux.HandleFunc("/.well-known/openid-configuration", func(w http.ResponseWriter, _ *http.Request) {
		if l.broken.Load() {
			http.Error(w, "down", http.StatusBadGateway)
			return
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"issuer": l.URL, "jwks_uri": l.URL + "/keys"})
	})
	mux.HandleFunc("/keys", func(w http.ResponseWriter, _ *http.Request) {
		l.fetched.Add(1)
		switch {
		case l.broken.Load():
			http.Error(w, "down", http.StatusBadGateway)
			return
		case l.huge.Load():
			_, _ = w.Write([]byte(strings.Repeat(" ", sparing.MaxDocument+1)))
			return
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		_ = json.NewEncoder(w).Encode(jose.JSONWebKeySet{Keys: l.keys})
	})
	l.Server = httptest.NewServer(mux)
	t.Cleanup(l.Close)
	return l
}

// publish makes these the keys.
func (l *login) publish(keys map[string]crypto.Signer) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.keys = nil
	for id, k := range keys {
		l.keys = append(l.keys, jose.JSONWebKey{Key: k.Public(), KeyID: id})
	}
}

func newKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	return k
}

// sign makes a token of claims over the usual ones.
func (l *login) sign(t *testing.T, key any, kid string, alg jose.SignatureAlgorithm, claims map[string]any) string {
	t.Helper()
	all := map[string]any{"iss": l.URL, "aud": "tools", "sub": "planner", "exp": time.Now().Add(time.Hour).Unix()}
	for k, v := range claims {
		if v == nil {
			delete(all, k)
		} else {
			all[k] = v
		}
	}
	text, err := json.Marshal(all)
	require.NoError(t, err)
	s, err := jose.NewSigner(jose.SigningKey{Algorithm: alg, Key: key}, (&jose.SignerOptions{}).WithHeader("kid", kid))
	require.NoError(t, err)
	signed, err := s.Sign(text)
	require.NoError(t, err)
	token, err := signed.CompactSerialize()
	require.NoError(t, err)
	return token
}

// ALT-134 to ALT-136: what a token must be, and who it stands for.
func TestVerifier(t *testing.T) {
	l := newLogin(t)
	key := newKey(t)
	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	require.NoError(t, err)
	_, edKey, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(t, err)
	l.publish(map[string]crypto.Signer{"k1": key, "k2": rsaKey, "k3": edKey})
	v, err := NewVerifier([]Issuer{{URL: l.URL, Audience: "tools"}}, nil)
	require.NoError(t, err)
	id, err := v.VerifyToken(t.Context(), l.sign(t, key, "k1", jose.ES256, map[string]any{"tenant_id": "acme", "roles": []any{"user", 1, "admin"}}))
	require.NoError(t, err)
	require.Equal(t, &altar.Identity{Name: "planner", Tenant: "acme", Roles: []string{"user", "admin"}}, id)
	for kid, k := range map[string]jose.SigningKey{"k2": {Algorithm: jose.PS256, Key: rsaKey}, "k3": {Algorithm: jose.EdDSA, Key: edKey}} {
		_, err = v.VerifyToken(t.Context(), l.sign(t, k.Key, kid, k.Algorithm, map[string]any{"aud": []string{"x", "tools"}}))
		require.NoError(t, err, kid)
	}

	public, err := json.Marshal(jose.JSONWebKey{Key: key.Public()})
	require.NoError(t, err)
	for name, tt := range map[string]struct {
		token string
		want  error
	}{
		"expired":          {l.sign(t, key, "k1", jose.ES256, map[string]any{"exp": time.Now().Add(-time.Hour).Unix()}), ErrExpired},
		"no end":           {l.sign(t, key, "k1", jose.ES256, map[string]any{"exp": nil}), ErrExpired},
		"not yet":          {l.sign(t, key, "k1", jose.ES256, map[string]any{"nbf": time.Now().Add(time.Hour).Unix()}), ErrInvalid},
		"other audience":   {l.sign(t, key, "k1", jose.ES256, map[string]any{"aud": "elsewhere"}), ErrInvalid},
		"no audience":      {l.sign(t, key, "k1", jose.ES256, map[string]any{"aud": nil}), ErrInvalid},
		"other issuer":     {l.sign(t, key, "k1", jose.ES256, map[string]any{"iss": "https://other.example"}), ErrInvalid},
		"no issuer":        {l.sign(t, key, "k1", jose.ES256, map[string]any{"iss": nil}), ErrInvalid},
		"no subject":       {l.sign(t, key, "k1", jose.ES256, map[string]any{"sub": nil}), ErrInvalid},
		"forged":           {l.sign(t, newKey(t), "k1", jose.ES256, nil), ErrInvalid},
		"another's key":    {l.sign(t, key, "k2", jose.ES256, nil), ErrInvalid},
		"symmetric":        {l.sign(t, []byte(strings.Repeat("k", 32)), "k1", jose.HS256, nil), ErrInvalid},
		"public key as it": {l.sign(t, public, "k1", jose.HS256, nil), ErrInvalid},
		"no JWT":           {"opaque", ErrInvalid},
		"claims no JSON":   {"e30.e30x.e30", ErrInvalid},
		"claims no object": {"e30." + base64.RawURLEncoding.EncodeToString([]byte(`[]`)) + ".e30", ErrInvalid},
		"claims twice":     {"e30." + base64.RawURLEncoding.EncodeToString([]byte(`{"iss":"a","iss":"`+l.URL+`"}`)) + ".e30", ErrInvalid},
		"claims no Base64": {"e30.*.e30", ErrInvalid},
		"unsigned":         {"eyJhbGciOiJub25lIn0." + base64.RawURLEncoding.EncodeToString([]byte(`{"iss":"`+l.URL+`","sub":"x","aud":"tools","exp":9999999999}`)) + ".", ErrInvalid},
		"endless":          {strings.Repeat("a.", maxToken), ErrInvalid},
	} {
		_, err := v.VerifyToken(t.Context(), tt.token)
		require.ErrorIs(t, err, tt.want, name)
		var e *altar.Error
		require.False(t, errors.As(err, &e), name)
	}
	require.Equal(t, int32(1), l.fetched.Load(), "forged tokens do not become requests to the issuer")
}

// Only the algorithms that are named are accepted.
func TestAlgorithms(t *testing.T) {
	l := newLogin(t)
	key := newKey(t)
	l.publish(map[string]crypto.Signer{"k1": key})
	v, err := NewVerifier([]Issuer{{URL: l.URL, Algorithms: []string{"RS256"}}}, nil)
	require.NoError(t, err)
	_, err = v.VerifyToken(t.Context(), l.sign(t, key, "k1", jose.ES256, nil))
	require.ErrorIs(t, err, ErrInvalid)
}

// Keys change: new ones are found, withdrawn ones forgotten in time.
func TestRotation(t *testing.T) {
	l := newLogin(t)
	k1, k2 := newKey(t), newKey(t)
	l.publish(map[string]crypto.Signer{"k1": k1})
	const age = 500 * time.Millisecond
	v, err := NewVerifier([]Issuer{{URL: l.URL, Audience: "tools", KeysURL: l.URL + "/keys"}}, &VerifierOptions{MinRefresh: time.Nanosecond, MaxAge: age})
	require.NoError(t, err)
	one, two := l.sign(t, k1, "k1", jose.ES256, nil), l.sign(t, k2, "k2", jose.ES256, nil)
	_, err = v.VerifyToken(t.Context(), one)
	require.NoError(t, err)
	_, err = v.VerifyToken(t.Context(), two)
	require.ErrorIs(t, err, ErrInvalid)
	l.publish(map[string]crypto.Signer{"k1": k1, "k2": k2})
	require.Eventually(t, func() bool { // not at once: it may still look at the answer to the request before
		_, err := v.VerifyToken(t.Context(), two)
		return err == nil
	}, 10*time.Second, time.Millisecond, "a new key is found")
	_, err = v.VerifyToken(t.Context(), one)
	require.NoError(t, err)
	l.publish(map[string]crypto.Signer{"k2": k2})
	require.Eventually(t, func() bool {
		_, err := v.VerifyToken(t.Context(), one)
		return errors.Is(err, ErrInvalid)
	}, 10*time.Second, 20*time.Millisecond, "a key that was withdrawn is forgotten")
	_, err = v.VerifyToken(t.Context(), two)
	require.NoError(t, err)
}

// When the issuer is down, the caller is told to try again, and not that its
// token is wrong.
func TestIssuerDown(t *testing.T) {
	l := newLogin(t)
	key := newKey(t)
	l.publish(map[string]crypto.Signer{"k1": key})
	token := l.sign(t, key, "k1", jose.ES256, nil)
	for _, keysURL := range []string{"", l.URL + "/keys"} {
		v, err := NewVerifier([]Issuer{{URL: l.URL, KeysURL: keysURL}, {URL: "https://second.example"}}, &VerifierOptions{MinRefresh: time.Nanosecond})
		require.NoError(t, err)
		l.broken.Store(true)
		_, err = v.VerifyToken(t.Context(), token)
		require.ErrorIs(t, err, altar.ErrInternal)
		l.broken.Store(false)
		l.huge.Store(true)
		_, err = v.VerifyToken(t.Context(), token)
		require.ErrorIs(t, err, altar.ErrInternal)
		l.huge.Store(false)
		gone, cancel := context.WithCancel(t.Context())
		cancel()
		_, err = v.VerifyToken(gone, token)
		require.ErrorIs(t, err, altar.ErrInternal)
		id, err := v.VerifyToken(t.Context(), token)
		require.NoError(t, err)
		require.Equal(t, l.URL+" planner", id.Name, "two issuers may know somebody of that name")
	}
}

func TestNewVerifierRefuses(t *testing.T) {
	for _, issuers := range [][]Issuer{nil, {{}}, {{URL: "a"}, {URL: "a"}}, {{URL: "a", Algorithms: []string{"HS256"}}}, {{URL: "a", Algorithms: []string{"none"}}}} {
		_, err := NewVerifier(issuers, nil)
		require.Error(t, err)
	}
}

// A Host that lets in who has a token.
func TestHost(t *testing.T) {
	l := newLogin(t)
	key := newKey(t)
	l.publish(map[string]crypto.Signer{"k1": key})
	v, err := NewVerifier([]Issuer{{URL: l.URL, Audience: "tools"}}, &VerifierOptions{Identity: func(claims json.RawMessage) (*altar.Identity, error) {
		if strings.Contains(string(claims), "blocked") {
			return nil, errors.New("blocked")
		}
		return &altar.Identity{Name: "n", Roles: []string{"r"}}, nil
	}})
	require.NoError(t, err)
	host, err := altar.NewHost(&altar.Manifest{Contracts: []*altar.Contract{{Name: "t"}}}, altar.AuthorizeRoles(), &altar.HostOptions{
		Authenticator: altar.AuthenticateTokens(v)})
	require.NoError(t, err)
	defer func() { require.NoError(t, host.Close()) }()
	ts := httptest.NewServer(host)
	defer ts.Close()
	try := func(token string) error {
		c := altar.NewClient(func(context.Context) (altar.Conn, error) {
			return altar.NewHTTP(ts.URL, &altar.HTTPOptions{Header: http.Header{"Authorization": {"Bearer " + token}}}), nil
		}, nil)
		defer func() { _ = c.Close() }()
		_, err := c.CreateSession(t.Context(), nil)
		return err
	}
	require.NoError(t, try(l.sign(t, key, "k1", jose.ES256, nil)))
	require.ErrorIs(t, try(l.sign(t, key, "k1", jose.ES256, map[string]any{"blocked": true})), altar.ReasonUnauthenticated)
	require.ErrorIs(t, try(l.sign(t, key, "k1", jose.ES256, map[string]any{"aud": "x"})), altar.ReasonUnauthenticated)
}
