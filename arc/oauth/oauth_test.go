// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package oauth

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/arc"
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

// An issuer without an audience is refused (ARC-D82).
func TestNewVerifierRefusesIncompleteIssuers(t *testing.T) {
	for name, bad := range map[string][]Issuer{
		"none":      nil,
		"URL":       {{Audience: "api"}},
		"audience":  {{URL: home}},
		"algorithm": {{URL: home, Audience: "api", Algorithms: []string{"HS256"}}},
	} {
		v, err := NewVerifier(bad, nil)
		require.Nil(t, v, name)
		require.ErrorContains(t, err, "oauth: ", name)
	}
	_, err := NewVerifier([]Issuer{{URL: home, Audience: AnyAudience}}, nil)
	require.NoError(t, err)
}

// All options reach the shared verifier.
func TestVerifierOptions(t *testing.T) {
	bound := map[string]any{"cnf": map[string]any{"jkt": "x"}}
	refused, issuer, key := newVerifier(t, VerifierOptions{})
	_, err := refused.VerifyToken(t.Context(), key.Sign(nil, issuer.Claims(bound)))
	require.ErrorIs(t, err, arc.ErrTokenInvalid, "without Confirm")

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
		require.ErrorIs(t, err, arc.ErrTokenInvalid)
	}
	require.Len(t, issuer.Requests(), 5, "no interval")

	_, err = NewVerifier([]Issuer{{URL: "http://login.example", Audience: "api"}}, nil)
	require.Error(t, err)
	_, err = NewVerifier([]Issuer{{URL: "http://login.example", Audience: "api"}}, &VerifierOptions{AllowInsecure: true})
	require.NoError(t, err)
}

// A token becomes a principal with all its claims (ARC-D52, ARC-D53).
func TestPrincipal(t *testing.T) {
	v, issuer, key := newVerifier(t, VerifierOptions{})
	verify := func(more map[string]any) (*arc.Principal, error) {
		return v.VerifyToken(t.Context(), key.Sign(nil, issuer.Claims(more)))
	}
	exp := time.Now().Add(time.Hour).Truncate(time.Second)
	p, err := verify(map[string]any{
		"agent_id": "planner-01", "scope": "arc.task.controller arc.agent.caller", "n": json.Number("9007199254740993"), "exp": exp.Unix(),
	})
	require.NoError(t, err)
	require.Equal(t, home+"#caller", p.ID)
	require.Equal(t, "planner-01", p.AgentID)
	require.Equal(t, []string{arc.ScopeTaskController, arc.ScopeAgentCaller}, p.Scopes)
	require.Equal(t, json.Number("9007199254740993"), p.Claims["n"])
	require.WithinDuration(t, exp, p.Expires, 0)

	for _, free := range []map[string]any{nil, {"agent_id": json.RawMessage("null")}} {
		p, err = verify(free)
		require.NoError(t, err)
		require.Empty(t, p.AgentID)
		require.Empty(t, p.Scopes)
	}
	for _, bad := range []map[string]any{
		// Bound to no agent that can be compared.
		{"agent_id": 7}, {"agent_id": ""}, {"agent_id": []string{"planner-01"}}, {"agent_id": false},
		{"sub": nil}, {"sub": ""}, {"sub": 7}, {"sub": json.RawMessage("null")},
	} {
		p, err = verify(bad)
		require.Nil(t, p, bad)
		require.ErrorIs(t, err, arc.ErrTokenInvalid, bad)
		require.NotErrorIs(t, err, arc.ErrTokenExpired, bad)
	}
	_, err = verify(map[string]any{"exp": 1})
	require.ErrorIs(t, err, arc.ErrTokenExpired)

	v, issuer, key = newVerifier(t, VerifierOptions{Principal: func(claims json.RawMessage) (*arc.Principal, error) {
		if strings.Contains(string(claims), "blocked") {
			return nil, errors.New("blocked")
		}
		return &arc.Principal{ID: "own"}, nil
	}})
	p, err = verify(map[string]any{"sub": nil, "exp": exp.Unix()})
	require.NoError(t, err)
	require.Equal(t, "own", p.ID)
	require.WithinDuration(t, exp, p.Expires, 0)
	_, err = verify(map[string]any{"blocked": true})
	require.EqualError(t, err, "oauth: blocked")
}

// A server admits callers with a token, and wants a scope and the agent that the token names
// (ARC-168, ARC-163, ARC-D53, ARC-D54).
func TestServer(t *testing.T) {
	v, issuer, key := newVerifier(t, VerifierOptions{})
	srv, err := arc.NewServer(&arc.ServerOptions{Auth: arc.Auth{Authenticator: arc.BearerAuthenticator(v)}})
	require.NoError(t, err)
	srv.HandleTasks("writer-01", arc.TaskHandlerFunc(func(ctx context.Context, run *arc.TaskRun) error { return nil }))
	ts := httptest.NewServer(srv)
	defer ts.Close()
	defer func() { require.NoError(t, srv.Shutdown(context.Background())) }()
	try := func(token string) error {
		source := arc.TokenSourceFunc(func(context.Context, string) (string, error) { return token, nil })
		c, err := arc.NewClient(ts.URL+"/arc", "planner-01", &arc.ClientOptions{TokenSource: source})
		require.NoError(t, err)
		_, err = c.CreateTask(t.Context(), "writer-01", &arc.CreateTaskParams{InitialMessage: arc.UserText("x")}, nil)
		return err
	}
	sign := func(more map[string]any) string {
		all := map[string]any{"scope": "arc.task.controller arc.agent.caller"}
		maps.Copy(all, more)
		return key.Sign(nil, issuer.Claims(all))
	}
	token := sign(nil)
	require.NoError(t, try(token))
	require.NoError(t, try(sign(map[string]any{"agent_id": "planner-01"})))
	require.ErrorIs(t, try(sign(map[string]any{"agent_id": "planner-02"})), arc.ErrAgentAuthenticationFailed)
	require.ErrorIs(t, try(sign(map[string]any{"scope": arc.ScopeAgentCaller})), arc.ErrInsufficientScope)
	require.ErrorIs(t, try(sign(map[string]any{"exp": 1})), arc.ErrTokenExpired)
	require.ErrorIs(t, try(token[:len(token)-4]), arc.ErrTokenInvalid)

	// The JSON form of a signature, which HTTP carries as well.
	parts := strings.Split(token, ".")
	text, err := json.Marshal(map[string]string{"payload": parts[1], "protected": parts[0], "signature": parts[2]})
	require.NoError(t, err)
	require.ErrorIs(t, try(string(text)), arc.ErrTokenInvalid)

	// The validity of this token is unknown, so the error is not about the token.
	v, issuer, key = newVerifier(t, VerifierOptions{})
	issuer.Fail(jwttest.DiscoveryPath, http.StatusBadGateway)
	_, err = v.VerifyToken(t.Context(), sign(nil))
	require.ErrorContains(t, err, home+jwttest.DiscoveryPath)
	require.NotErrorIs(t, err, arc.ErrTokenInvalid)
}

// login issues tokens for client credentials.
type login struct {
	*httptest.Server
	issued atomic.Int32
}

func newLogin(t *testing.T) *login {
	t.Helper()
	l := &login{}
	mux := http.NewServeMux()
	mux.HandleFunc("/token", func(w http.ResponseWriter, r *http.Request) {
		l.issued.Add(1)
		id, secret, _ := r.BasicAuth()
		form := r.FormValue("audience") + " " + r.FormValue("scope")
		if id != "agent" || secret != "pass" || form != "arc "+"arc.task.controller arc.agent.caller" {
			http.Error(w, `{"error":"invalid_client"}`, http.StatusUnauthorized)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(map[string]any{"access_token": "tok", "token_type": "Bearer", "expires_in": 3600})
	})
	l.Server = httptest.NewServer(mux)
	t.Cleanup(l.Close)
	return l
}

func TestTokenSource(t *testing.T) {
	l := newLogin(t)
	c := TokenSourceOptions{
		ClientID: "agent", ClientSecret: "pass", TokenURL: l.URL + "/token", Audience: "arc",
		Scopes: strings.Fields("arc.task.controller arc.agent.caller"),
	}
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
	require.Equal(t, int32(1), l.issued.Load(), "one request")
	s.(arc.TokenInvalidator).InvalidateToken("any", "tok")
	_, err = s.Token(t.Context(), "any")
	require.NoError(t, err)
	require.Equal(t, int32(2), l.issued.Load())

	c.ClientSecret = "wrong"
	s, err = NewTokenSource(c)
	require.NoError(t, err)
	_, err = s.Token(t.Context(), "any")
	require.Error(t, err)
	require.NotContains(t, err.Error(), "wrong")
	_, err = NewTokenSource(TokenSourceOptions{})
	require.Error(t, err)
}

// A secret is never sent to another server.
func TestTokenSourceFollowsNoRedirect(t *testing.T) {
	requests := make(chan string, 10)
	other := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		requests <- r.Header.Get("Authorization") + string(body)
	}))
	defer other.Close()
	for _, status := range []int{
		http.StatusFound, http.StatusSeeOther, http.StatusTemporaryRedirect, http.StatusPermanentRedirect,
	} {
		first := httptest.NewServer(http.RedirectHandler(other.URL, status))
		defer first.Close()
		for _, own := range []*http.Client{nil, {}} {
			s, err := NewTokenSource(TokenSourceOptions{ClientID: "agent", ClientSecret: "pass", TokenURL: first.URL, HTTPClient: own})
			require.NoError(t, err)
			_, err = s.Token(t.Context(), "any")
			require.ErrorContains(t, err, strconv.Itoa(status))
			require.Empty(t, requests)
			require.True(t, own == nil || own.CheckRedirect == nil, "the client of the user is modified")
		}
	}
}

// A secret is never sent unencrypted to another machine unless that is permitted.
func TestTokenSourceRefusesInsecureURL(t *testing.T) {
	for _, url := range []string{"http://login.example/token", "login.example/token", "https://user@login.example/token"} {
		_, err := NewTokenSource(TokenSourceOptions{ClientID: "agent", ClientSecret: "pass", TokenURL: url})
		require.ErrorContains(t, err, "oauth: token URL", url)
	}
	_, err := NewTokenSource(TokenSourceOptions{ClientID: "agent", TokenURL: "http://login.example/token", AllowInsecure: true})
	require.NoError(t, err)
}
