// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package oauth

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/arc"
	"github.com/fivewire/fivewire/internal/tokens/tokenstest"
)

const home = "https://login.example"

// A token becomes a principal with all that it says (ARC-D52, ARC-D53).
func TestPrincipal(t *testing.T) {
	var net tokenstest.Network
	key := tokenstest.NewKey(t, "k1")
	login := tokenstest.NewIssuer(&net, home, key)
	v, err := NewVerifier([]Issuer{{URL: home, Audience: "api"}}, &VerifierOptions{HTTPClient: net.Client()})
	require.NoError(t, err)
	verify := func(more map[string]any) (*arc.Principal, error) {
		return v.VerifyToken(t.Context(), key.Sign(nil, login.Claims(more)))
	}
	p, err := verify(map[string]any{"agent_id": "planner-01", "scope": arc.ScopesTaskCaller, "n": json.Number("9007199254740993")})
	require.NoError(t, err)
	require.Equal(t, "caller", p.ID)
	require.Equal(t, "planner-01", p.AgentID)
	require.Equal(t, []string{arc.ScopeTaskController, arc.ScopeAgentCaller}, p.Scopes)
	require.Contains(t, string(p.Claims), "9007199254740993")

	for _, free := range []map[string]any{nil, {"agent_id": json.RawMessage("null")}} {
		p, err = verify(free)
		require.NoError(t, err)
		require.Empty(t, p.AgentID)
		require.Empty(t, p.Scopes)
	}
	for _, bad := range []map[string]any{
		{"agent_id": 7}, {"agent_id": ""}, {"agent_id": []string{"planner-01"}}, {"agent_id": false}, // bound, but to whom?
		{"sub": nil}, {"sub": ""}, {"sub": 7}, {"sub": json.RawMessage("null")},
	} {
		p, err = verify(bad)
		require.Nil(t, p, bad)
		require.ErrorIs(t, err, arc.ErrTokenInvalid, bad)
	}

	v, err = NewVerifier([]Issuer{{URL: home, KeysURL: home + "/keys"}}, &VerifierOptions{HTTPClient: net.Client(), Principal: func(claims json.RawMessage) (*arc.Principal, error) {
		return nil, errors.New("seen " + string(claims)[:1])
	}})
	require.NoError(t, err)
	_, err = verify(map[string]any{"sub": nil})
	require.EqualError(t, err, "seen {")
}

// A server that lets in who has a token, and asks for a scope and the agent that
// the token is bound to (ARC-168, ARC-163, ARC-D53, ARC-D54).
func TestServer(t *testing.T) {
	var net tokenstest.Network
	key := tokenstest.NewKey(t, "k1")
	login := tokenstest.NewIssuer(&net, home, key)
	v, err := NewVerifier([]Issuer{{URL: home, Audience: "api"}}, &VerifierOptions{HTTPClient: net.Client()})
	require.NoError(t, err)
	srv := arc.NewServer(&arc.ServerOptions{Verifier: v})
	srv.HandleTasks("writer-01", arc.TaskHandlerFunc(func(ctx context.Context, run *arc.TaskRun) error { return nil }))
	ts := httptest.NewServer(srv)
	defer ts.Close()
	defer func() { require.NoError(t, srv.Shutdown(context.Background())) }()
	try := func(token string) error {
		c, err := arc.NewClient(ts.URL+"/arc", "planner-01", &arc.ClientOptions{TokenSource: arc.TokenSourceFunc(func(context.Context, string) (string, error) { return token, nil })})
		require.NoError(t, err)
		_, err = c.CreateTask(t.Context(), "writer-01", &arc.CreateTaskParams{InitialMessage: arc.UserText("x")})
		return err
	}
	sign := func(more map[string]any) string {
		all := map[string]any{"scope": arc.ScopesTaskCaller}
		maps.Copy(all, more)
		return key.Sign(nil, login.Claims(all))
	}
	token := sign(nil)
	require.NoError(t, try(token))
	require.NoError(t, try(sign(map[string]any{"agent_id": "planner-01"})))
	require.ErrorIs(t, try(sign(map[string]any{"agent_id": "planner-02"})), arc.ErrAgentAuthenticationFailed)
	require.ErrorIs(t, try(sign(map[string]any{"scope": arc.ScopeAgentCaller})), arc.ErrInsufficientScope)
	require.ErrorIs(t, try(sign(map[string]any{"exp": 1})), arc.ErrTokenExpired)
	require.ErrorIs(t, try(token[:len(token)-4]), arc.ErrTokenInvalid)

	// Other claims than the signed ones, in a form of signature that HTTP carries as well as the other.
	parts := strings.Split(token, ".")
	text, err := json.Marshal(map[string]string{"payload": parts[1], "protected": parts[0], "signature": parts[2],
		"x": "." + strings.Split(tokenstest.NewKey(t, "k1").Sign(nil, login.Claims(map[string]any{"sub": "admin", "scope": arc.ScopesTaskCaller})), ".")[1] + "."})
	require.NoError(t, err)
	require.ErrorIs(t, try(string(text)), arc.ErrTokenInvalid)

	// The validity of this token is unknown, so the error is not about the token.
	login.Down(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusBadGateway) })
	v, err = NewVerifier([]Issuer{{URL: home, Audience: "api"}}, &VerifierOptions{HTTPClient: net.Client()})
	require.NoError(t, err)
	_, err = v.VerifyToken(t.Context(), token)
	require.ErrorContains(t, err, "discovery of "+home)
	require.NotErrorIs(t, err, arc.ErrTokenInvalid)
}

// login gives tokens away for client credentials.
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
		if id != "agent" || secret != "pass" || r.FormValue("audience") != "arc" || r.FormValue("scope") != arc.ScopesTaskCaller {
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
	c := TokenSourceOptions{ClientID: "agent", ClientSecret: "pass", TokenURL: l.URL + "/token", Audience: "arc", Scopes: strings.Fields(arc.ScopesTaskCaller)}
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
	for _, status := range []int{http.StatusFound, http.StatusSeeOther, http.StatusTemporaryRedirect, http.StatusPermanentRedirect} {
		first := httptest.NewServer(http.RedirectHandler(other.URL, status))
		defer first.Close()
		s, err := NewTokenSource(TokenSourceOptions{ClientID: "agent", ClientSecret: "pass", TokenURL: first.URL})
		require.NoError(t, err)
		_, err = s.Token(t.Context(), "any")
		require.ErrorContains(t, err, strconv.Itoa(status))
		require.Empty(t, requests)
	}
}
