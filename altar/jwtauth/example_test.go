// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package jwtauth_test

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
	"time"

	"github.com/fivewire/fivewire/altar/jwtauth"
)

// The verifier goes to [altar.BearerAuthenticator]; this is what it makes of tokens.
func ExampleNewVerifier() {
	public, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		log.Fatal(err)
	}
	b64 := base64.RawURLEncoding.EncodeToString
	keys := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(w, `{"keys":[{"kty":"OKP","crv":"Ed25519","kid":"k1","x":%q}]}`, b64(public))
	}))
	defer keys.Close()
	sign := func(claims map[string]any) string {
		text, _ := json.Marshal(claims)
		token := b64([]byte(`{"alg":"EdDSA","kid":"k1"}`)) + "." + b64(text)
		return token + "." + b64(ed25519.Sign(private, []byte(token)))
	}

	verifier, err := jwtauth.NewVerifier([]jwtauth.Issuer{{
		URL:      "https://login.example",
		Audience: "https://tools.example",
		KeysURL:  keys.URL, // without it, the issuer's discovery document names it
	}}, nil)
	if err != nil {
		log.Fatal(err)
	}
	claims := map[string]any{
		"iss": "https://login.example", "aud": "https://tools.example", "sub": "alice",
		"exp": time.Now().Add(time.Hour).Unix(),
	}
	id, err := verifier.VerifyToken(context.Background(), sign(claims))
	fmt.Println(id.ID, err)

	claims["exp"] = time.Now().Add(-time.Hour).Unix()
	_, err = verifier.VerifyToken(context.Background(), sign(claims))
	fmt.Println(errors.Is(err, jwtauth.ErrTokenExpired))
	// Output:
	// https://login.example#alice <nil>
	// true
}
