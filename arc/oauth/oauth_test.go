// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package oauth

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
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

	"github.com/fivewire/fivewire/arc"
)

// login is an authorization server.
type login struct {
	*httptest.Server
	key     *ecdsa.PrivateKey
	fetched atomic.Int32
	issued  atomic.Int32
	broken  atomic.Bool
}

func newLogin(t *testing.T) *login {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	l := &login{key: key}
	mux := http.NewServeMux()
	mux.HandleFunc("/.well-known/openid-configuration", func(w http.ResponseWriter, _ *http.Request) {
		json.NewEncoder(w).Encode(map[string]any{"issuer": l.URL, "jwks_uri": l.URL + "/keys"})
	})
	mux.HandleFunc("/keys", func(w http.ResponseWriter, _ *http.Request) {
		l.fetched.Add(1)
		if l.broken.Load() {
			http.Error(w, "down", http.StatusBadGateway)
			return
		}
		json.NewEncoder(w).Encode(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: key.Public(), KeyID: "k1", Algorithm: "ES256"}}})
	})
	mux.HandleFunc("/token", func(w http.ResponseWriter, r *http.Request) {
		l.issued.Add(1)
		id, secret, _ := r.BasicAuth()
		if id != "agent" || secret != "pass" || r.FormValue("audience") != "arc" || r.FormValue("scope") != arc.ScopesTaskCaller {
			http.Error(w, `{"error":"invalid_client"}`, http.StatusUnauthorized)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		json.NewEncoder(w).Encode(map[string]any{"access_token": "tok", "token_type": "Bearer", "expires_in": 3600})
	})
	l.Server = httptest.NewServer(mux)
	t.Cleanup(l.Close)
	return l
}

// sign makes a token of claims over the usual ones.
func (l *login) sign(t *testing.T, key any, alg jose.SignatureAlgorithm, claims map[string]any) string {
	t.Helper()
	all := map[string]any{"iss": l.URL, "aud": "arc", "sub": "planner", "exp": time.Now().Add(time.Hour).Unix(), "scope": arc.ScopesTaskCaller}
	for k, v := range claims {
		if v == nil {
			delete(all, k)
		} else {
			all[k] = v
		}
	}
	text, err := json.Marshal(all)
	require.NoError(t, err)
	s, err := jose.NewSigner(jose.SigningKey{Algorithm: alg, Key: key}, (&jose.SignerOptions{}).WithHeader("kid", "k1"))
	require.NoError(t, err)
	signed, err := s.Sign(text)
	require.NoError(t, err)
	token, err := signed.CompactSerialize()
	require.NoError(t, err)
	return token
}

// ARC-168, D-52 to D-54: what a token must be.
func TestVerifier(t *testing.T) {
	l := newLogin(t)
	v, err := NewVerifier([]Issuer{{URL: l.URL, Audience: "arc"}}, nil)
	require.NoError(t, err)
	p, err := v.VerifyToken(t.Context(), l.sign(t, l.key, jose.ES256, map[string]any{"agent_id": "planner-01", "n": json.Number("9007199254740993")}))
	require.NoError(t, err)
	require.Equal(t, "planner", p.ID)
	require.Equal(t, "planner-01", p.AgentID)
	require.Equal(t, []string{arc.ScopeTaskController, arc.ScopeAgentCaller}, p.Scopes)
	require.Contains(t, string(p.Claims), "9007199254740993")

	other, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	for name, tt := range map[string]struct {
		token string
		want  error
	}{
		"expired":          {l.sign(t, l.key, jose.ES256, map[string]any{"exp": time.Now().Add(-time.Hour).Unix()}), arc.ErrTokenExpired},
		"not yet":          {l.sign(t, l.key, jose.ES256, map[string]any{"nbf": time.Now().Add(time.Hour).Unix()}), arc.ErrTokenInvalid},
		"other audience":   {l.sign(t, l.key, jose.ES256, map[string]any{"aud": "elsewhere"}), arc.ErrTokenInvalid},
		"other issuer":     {l.sign(t, l.key, jose.ES256, map[string]any{"iss": "https://other.example"}), arc.ErrTokenInvalid},
		"no subject":       {l.sign(t, l.key, jose.ES256, map[string]any{"sub": nil}), arc.ErrTokenInvalid},
		"no end":           {l.sign(t, l.key, jose.ES256, map[string]any{"exp": nil}), arc.ErrTokenExpired},
		"forged":           {l.sign(t, other, jose.ES256, nil), arc.ErrTokenInvalid},
		"symmetric":        {l.sign(t, []byte(strings.Repeat("k", 32)), jose.HS256, nil), arc.ErrTokenInvalid},
		"no JWT":           {"opaque", arc.ErrTokenInvalid},
		"claims no JSON":   {"e30.e30x.e30", arc.ErrTokenInvalid},
		"claims no Base64": {"e30.*.e30", arc.ErrTokenInvalid},
		"unsigned":         {unsigned(l), arc.ErrTokenInvalid},
		"endless":          {strings.Repeat("a.", maxToken), arc.ErrTokenInvalid},
	} {
		_, err := v.VerifyToken(t.Context(), tt.token)
		require.ErrorIs(t, err, tt.want, name)
	}
	require.LessOrEqual(t, l.fetched.Load(), int32(1), "forged tokens do not become requests to the issuer")
}

// A signature in its JSON form may carry whatever else somebody writes into it,
// two full stops with other claims between them included: whom the token stands
// for must be read from what is signed.
func TestClaimsBesideTheSignedOnes(t *testing.T) {
	l := newLogin(t)
	v, err := NewVerifier([]Issuer{{URL: l.URL, Audience: "arc"}}, nil)
	require.NoError(t, err)
	own := l.sign(t, l.key, jose.ES256, nil)
	_, err = v.VerifyToken(t.Context(), own)
	require.NoError(t, err)
	parts := strings.Split(own, ".")
	other := base64.RawURLEncoding.EncodeToString([]byte(`{"iss":"` + l.URL + `","sub":"admin","scope":"` + arc.ScopesFullProcessor + `"}`))
	text, err := json.Marshal(map[string]string{"payload": parts[1], "protected": parts[0], "signature": parts[2], "x": "." + other + "."})
	require.NoError(t, err)
	p, err := v.VerifyToken(t.Context(), string(text))
	require.Nil(t, p)
	require.ErrorIs(t, err, arc.ErrTokenInvalid)
}

func unsigned(l *login) string {
	return "eyJhbGciOiJub25lIn0." + base64.RawURLEncoding.EncodeToString([]byte(`{"iss":"`+l.URL+`","sub":"x","aud":"arc","exp":9999999999}`)) + "."
}

func TestVerifierKeysDown(t *testing.T) {
	l := newLogin(t)
	l.broken.Store(true)
	v, err := NewVerifier([]Issuer{{URL: l.URL, Audience: "arc", KeysURL: l.URL + "/keys"}, {URL: "https://second.example", KeysURL: "https://second.example/keys"}}, &VerifierOptions{MinRefresh: time.Nanosecond})
	require.NoError(t, err)
	token := l.sign(t, l.key, jose.ES256, nil)
	_, err = v.VerifyToken(t.Context(), token)
	require.Error(t, err)
	require.NotErrorIs(t, err, arc.ErrTokenInvalid, "nobody knows whether it is")
	l.broken.Store(false)
	p, err := v.VerifyToken(t.Context(), token)
	require.NoError(t, err)
	require.Equal(t, l.URL+" planner", p.ID, "two issuers may know two people of one name")

	gone, err := NewVerifier([]Issuer{{URL: l.URL + "/nowhere"}}, nil)
	require.NoError(t, err)
	_, err = gone.VerifyToken(t.Context(), l.sign(t, l.key, jose.ES256, map[string]any{"iss": l.URL + "/nowhere"}))
	require.ErrorContains(t, err, "discovery")
}

func TestVerifierOptions(t *testing.T) {
	for _, bad := range [][]Issuer{nil, {{}}, {{URL: "a"}, {URL: "a"}}, {{URL: "a", Algorithms: []string{"HS256"}}}, {{URL: "a", Algorithms: []string{"none"}}}} {
		_, err := NewVerifier(bad, nil)
		require.Error(t, err)
	}
	l := newLogin(t)
	v, err := NewVerifier([]Issuer{{URL: l.URL}}, &VerifierOptions{Principal: func(claims json.RawMessage) (*arc.Principal, error) {
		return nil, errors.New("seen " + string(claims)[:1])
	}})
	require.NoError(t, err)
	_, err = v.VerifyToken(t.Context(), l.sign(t, l.key, jose.ES256, nil))
	require.EqualError(t, err, "seen {")
}

func TestTokenSource(t *testing.T) {
	l := newLogin(t)
	c := ClientCredentials{ClientID: "agent", ClientSecret: "pass", TokenURL: l.URL + "/token", Audience: "arc", Scopes: strings.Fields(arc.ScopesTaskCaller)}
	s, err := NewTokenSource(c)
	require.NoError(t, err)
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			if tok, err := s.Token(context.Background(), "any"); tok != "tok" || err != nil {
				t.Error(tok, err)
			}
		})
	}
	wg.Wait()
	require.Equal(t, int32(1), l.issued.Load(), "one asks for all")
	s.InvalidateToken("any", "tok")
	_, err = s.Token(t.Context(), "any")
	require.NoError(t, err)
	require.Equal(t, int32(2), l.issued.Load())

	c.ClientSecret = "wrong"
	s, err = NewTokenSource(c)
	require.NoError(t, err)
	_, err = s.Token(t.Context(), "any")
	require.Error(t, err)
	require.NotContains(t, err.Error(), "wrong")
	_, err = NewTokenSource(ClientCredentials{})
	require.Error(t, err)
}
