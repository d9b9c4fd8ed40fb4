// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package oauth_test

import (
	"context"
	"crypto/ed25519"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"time"

	"github.com/fivewire/fivewire/arc"
	"github.com/fivewire/fivewire/arc/oauth"
)

// A client gets a token with its credentials, and a server checks it against the
// keys of the authorization server.
func Example() {
	login := httptest.NewServer(newLogin()) // yours is the one of your organisation
	defer login.Close()

	verifier, err := oauth.NewVerifier([]oauth.Issuer{{URL: login.URL, Audience: "https://agents.example/arc"}}, nil)
	if err != nil {
		log.Fatal(err)
	}
	srv, err := arc.NewServer(&arc.ServerOptions{Auth: arc.Auth{Authenticator: arc.BearerAuthenticator(verifier)}})
	if err != nil {
		log.Fatal(err)
	}
	defer srv.Close()
	srv.HandleTasks("writer", arc.TaskHandlerFunc(func(context.Context, *arc.TaskRun) error { return nil }))
	defer srv.Shutdown(context.Background())
	ts := httptest.NewServer(srv)
	defer ts.Close()

	create := func(scopes string) error {
		source, err := oauth.NewTokenSource(oauth.TokenSourceOptions{
			ClientID: "planner", ClientSecret: "secret", TokenURL: login.URL + "/token", Scopes: strings.Fields(scopes),
		})
		if err != nil {
			return err
		}
		c, err := arc.NewClient(ts.URL+"/arc", "planner", &arc.ClientOptions{TokenSource: source})
		if err != nil {
			return err
		}
		_, err = c.CreateTask(context.Background(), "writer", &arc.CreateTaskParams{InitialMessage: arc.UserText("Write.")}, nil)
		return err
	}
	fmt.Println("with the scopes of a task caller:", create("arc.task.controller arc.agent.caller"))
	fmt.Println("without them, refused:", errors.Is(create("profile"), arc.ErrInsufficientScope))
	// Output:
	// with the scopes of a task caller: <nil>
	// without them, refused: true
}

// newLogin is an authorization server that knows one client, and signs with Ed25519.
func newLogin() http.Handler {
	public, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		log.Fatal(err)
	}
	b64 := base64.RawURLEncoding.EncodeToString
	mux := http.NewServeMux()
	mux.HandleFunc("GET /.well-known/openid-configuration", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, `{"issuer":"http://%s","jwks_uri":"http://%[1]s/keys"}`, r.Host)
	})
	mux.HandleFunc("GET /keys", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, `{"keys":[{"kty":"OKP","crv":"Ed25519","kid":"k1","x":%q}]}`, b64(public))
	})
	mux.HandleFunc("POST /token", func(w http.ResponseWriter, r *http.Request) {
		id, secret, _ := r.BasicAuth()
		if id != "planner" || secret != "secret" {
			http.Error(w, `{"error":"invalid_client"}`, http.StatusUnauthorized)
			return
		}
		claims, _ := json.Marshal(map[string]any{
			"iss": "http://" + r.Host, "aud": "https://agents.example/arc", "sub": id, "agent_id": id,
			"scope": r.FormValue("scope"), "exp": time.Now().Add(time.Hour).Unix(),
		})
		token := b64([]byte(`{"alg":"EdDSA","kid":"k1"}`)) + "." + b64(claims)
		token += "." + b64(ed25519.Sign(private, []byte(token)))
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"access_token":%q,"token_type":"Bearer","expires_in":3600}`, token)
	})
	return mux
}
