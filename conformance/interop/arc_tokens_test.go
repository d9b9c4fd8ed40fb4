// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package interop_test

import (
	"context"
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"math/big"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/fivewire/fivewire/arc"
	"github.com/fivewire/fivewire/arc/discovery"
	"github.com/fivewire/fivewire/arc/oauth"
	"github.com/stretchr/testify/require"
)

// An issuer is an authorization server: it publishes its key and gives tokens away.
type issuer struct {
	t   *testing.T
	key *rsa.PrivateKey
	url string
}

func b64(b []byte) string { return base64.RawURLEncoding.EncodeToString(b) }

func newIssuer(t *testing.T) *issuer {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	require.NoError(t, err)
	i := &issuer{t: t, key: key}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /jwks", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"keys":[{"kty":"RSA","use":"sig","alg":"RS256","kid":"k1","n":%q,"e":%q}]}`,
			b64(key.N.Bytes()), b64(big.NewInt(int64(key.E)).Bytes()))
	})
	mux.HandleFunc("POST /token", func(w http.ResponseWriter, r *http.Request) {
		if r.PostFormValue("grant_type") != "client_credentials" || r.PostFormValue("client_id") != "py" || r.PostFormValue("client_secret") != "s3cret" {
			http.Error(w, `{"error":"invalid_client"}`, http.StatusUnauthorized)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"access_token":%q,"token_type":"Bearer","expires_in":3600,"scope":%q}`, i.token(r.PostFormValue("scope"), time.Hour), r.PostFormValue("scope"))
	})
	ts := httptest.NewServer(mux)
	t.Cleanup(ts.Close)
	i.url = ts.URL
	return i
}

// token returns a signed token that ends after a while.
func (i *issuer) token(scope string, life time.Duration) string {
	now := time.Now()
	claims, err := json.Marshal(map[string]any{"iss": i.url, "sub": "caller", "aud": "agents", "scope": scope, "iat": now.Add(-2 * time.Hour).Unix(), "exp": now.Add(life).Unix()})
	require.NoError(i.t, err)
	text := b64([]byte(`{"alg":"RS256","kid":"k1","typ":"JWT"}`)) + "." + b64(claims)
	sum := sha256.Sum256([]byte(text))
	sig, err := rsa.SignPKCS1v15(rand.Reader, i.key, crypto.SHA256, sum[:])
	require.NoError(i.t, err)
	return text + "." + b64(sig)
}

// Tokens of our client, checked by the peer's server against the keys of an issuer.
func TestARCPythonServerTokens(t *testing.T) {
	t.Parallel()
	i := newIssuer(t)
	token := ""
	p := arcListen(t, "standalone", request{"jwks": i.url + "/jwks", "issuer": i.url, "audience": "agents"},
		// After its 500 the peer closes the connection, which can fail the next request on the same connection.
		&arc.ClientOptions{TokenSource: tokenFunc(&token), HTTPClient: &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}})
	f := p.fails(request{"op": "own_validator", "jwks": i.url + "/jwks", "issuer": i.url})
	require.Equal(t, "PyJWKClient.__init__() got an unexpected keyword argument 'cache_ttl'", f.Message, "if it works now, use it")
	create := func(scope string, life time.Duration) error {
		if scope != "" {
			token = i.token(scope, life)
		}
		_, err := p.client.CreateTask(t.Context(), "py-echo", &arc.CreateTaskParams{InitialMessage: arc.UserText("x")}, nil)
		return err
	}
	chat := func() error {
		_, _, err := stream(p.client, t.Context(), "py-echo", "x")
		return err
	}
	require.Equal(t, arc.ErrAuthenticationFailed, arcCode(t, create("", 0)), "no token")
	require.NoError(t, create("arc.task.controller arc.chat.controller arc.agent.caller", time.Hour))
	require.NoError(t, chat())
	require.NoError(t, create("arc.task.controller arc.agent.caller", time.Hour))

	// A missing scope makes its middleware fail over its own exception: a bare 500, and nothing is done.
	for _, err := range []error{chat(), create(arc.ScopeAgentCaller, time.Hour)} {
		var h *arc.HTTPError
		require.ErrorAs(t, err, &h)
		require.Equal(t, 500, h.Status)
		require.Equal(t, "Internal Server Error", h.Body)
	}

	// It has one code for all that is wrong with a token (ours are -44004 and -44005, ARC-D54).
	require.Equal(t, arc.ErrAuthenticationFailed, arcCode(t, create("arc.task.controller arc.chat.controller arc.agent.caller", -time.Hour)), "expired")
	token = "no.token.this"
	require.Equal(t, arc.ErrAuthenticationFailed, arcCode(t, create("", 0)))
	other := newIssuer(t)
	other.url = i.url
	token = other.token("arc.task.controller arc.chat.controller arc.agent.caller", time.Hour)
	require.Equal(t, arc.ErrAuthenticationFailed, arcCode(t, create("", 0)), "signed by somebody else")
}

func tokenFunc(token *string) arc.TokenSource {
	return arc.TokenSourceFunc(func(context.Context, string) (string, error) { return *token, nil })
}

// Tokens that the peer gets from an issuer, checked by our server against its keys.
func TestARCPythonClientTokens(t *testing.T) {
	t.Parallel()
	i := newIssuer(t)
	verifier, err := oauth.NewVerifier([]oauth.Issuer{{URL: i.url, Audience: "agents", KeysURL: i.url + "/jwks"}}, nil)
	require.NoError(t, err)
	endpoint, _ := arcServer(t, &arc.ServerOptions{Auth: arc.Auth{Authenticator: arc.BearerAuthenticator(verifier)}}, nil)
	p := python(t, "arc_client.py")
	try := func(token any, agent string) string {
		p.do(request{"op": "open", "name": "c", "endpoint": endpoint, "agent": "py-client", "token": token})
		_, f := p.try(request{"op": "call", "client": "c", "method": "task.create", "args": request{"target_agent": agent, "initial_message": say("x")}})
		if f == nil {
			return "ok"
		}
		return f.Class + " " + string(f.Code)
	}
	obtain := func(scope string) string {
		var token string
		p.into(&token, request{"op": "token", "url": i.url + "/token", "client_id": "py", "client_secret": "s3cret", "scope": scope})
		return token
	}
	require.Equal(t, "ok", try(obtain("arc.task.controller arc.agent.caller"), "echo-01"))
	// The peer tells by the HTTP status only that it was refused, and -44003 from -44002 not at all (ARC-D12).
	require.Equal(t, "AuthorizationError -44002", try(obtain("arc.chat.controller arc.agent.caller"), "echo-01"))
	require.Equal(t, "AuthenticationError -44001", try(nil, "echo-01"))
	require.Equal(t, "AuthenticationError -44001", try(nil, "nobody"), "strangers learn of no agent")
	require.Equal(t, "AuthenticationError -44001", try(i.token("arc.task.controller arc.chat.controller arc.agent.caller", -time.Hour), "echo-01"))
	require.Equal(t, "AuthenticationError -44001", try("no.token.this", "echo-01"))
	f := p.fails(request{"op": "token", "url": i.url + "/token", "client_id": "py", "client_secret": "wrong", "scope": ""})
	require.Equal(t, "AuthenticationError", f.Class)
}

// The peer has two forms of an agent card: the form that its schema requires, and the form that its builder returns.
func TestARCPythonCards(t *testing.T) {
	t.Parallel()
	p := python(t, "arc_client.py")
	ours := discovery.AgentCard{
		Name: "Confluence search", Description: "Finds pages", Version: "1.2.3", URL: "https://agents.example/arc", Visibility: "public",
		Provider:     discovery.CardProvider{Organization: "Example", Contact: "a@agents.example", Website: "https://agents.example"},
		Capabilities: discovery.CardCapabilities{Streaming: true, PushNotifications: true},
		AuthSchemes:  []string{"oauth2", "bearer", "apikey"}, AuthScopes: []string{arc.ScopeTaskController},
		Skills: []discovery.CardSkill{{Name: "search", Description: "full text"}},
		Tags:   []string{"docs"}, Category: "search", Popularity: "4.5", LastUpdated: "2026-01-15T10:30:00Z",
	}
	validate := func(c discovery.AgentCard) string {
		text, err := json.Marshal(c)
		require.NoError(t, err)
		return string(p.do(request{"op": "card_validate", "card": json.RawMessage(text)}))
	}
	require.NoError(t, ours.Validate())
	require.Equal(t, `true`, validate(ours))
	for name, spoil := range map[string]func(*discovery.AgentCard){
		"version":    func(c *discovery.AgentCard) { c.Version = "1.2" },
		"url":        func(c *discovery.AgentCard) { c.URL = "http://agents.example/arc" },
		"provider":   func(c *discovery.AgentCard) { c.Provider.Organization = "" },
		"visibility": func(c *discovery.AgentCard) { c.Visibility = "secret" },
		"scheme":     func(c *discovery.AgentCard) { c.AuthSchemes = []string{"basic"} },
		"popularity": func(c *discovery.AgentCard) { c.Popularity = "6" },
		"unknown":    func(c *discovery.AgentCard) { c.Extra = arc.Extra{"more": json.RawMessage("1")} },
		"name":       func(c *discovery.AgentCard) { c.Name = "" },
	} {
		bad := ours
		spoil(&bad)
		require.Error(t, bad.Validate(), name)
		peerResult := "false"
		if name == "provider" {
			peerResult = "true" // an organization without letters is one to the schema
		}
		require.Equal(t, peerResult, validate(bad), name)
	}

	// The card that our server serves, and the card that the peer builds. The schema of the peer refuses the second card.
	text, err := json.Marshal(ours)
	require.NoError(t, err)
	endpoint, _ := arcServer(t, &arc.ServerOptions{AgentCard: text}, nil)
	d, err := discovery.NewClient(nil, endpoint)
	require.NoError(t, err)
	defer d.Close()
	card, err := d.Card(t.Context(), endpoint)
	require.NoError(t, err)
	require.Equal(t, ours, *card)

	built := p.do(request{"op": "card_create", "agent_id": "py-echo", "name": "Py", "description": "echoes", "methods": []string{"chat.start"}, "api_url": "https://py.example/arc", "capabilities": []string{"echo"}})
	require.Equal(t, `false`, string(p.do(request{"op": "card_validate", "card": built})))
	card, err = discovery.DecodeAgentCard(built)
	require.NoError(t, err)
	require.Equal(t, "py-echo", card.AgentID)
	require.Equal(t, "https://py.example/arc", card.URL)
	require.Equal(t, []string{"chat.start"}, card.Methods)
	require.Error(t, card.Validate())
}
