// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package oauth

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"time"

	"golang.org/x/oauth2"
	"golang.org/x/oauth2/clientcredentials"
)

// ClientCredentials says how an agent gets its access tokens: by the client
// credentials grant of OAuth 2.0.
type ClientCredentials struct {
	ClientID     string
	ClientSecret string
	TokenURL     string
	Scopes       []string // such as those in arc.ScopesTaskCaller, one by one
	Audience     string   // sent as the parameter audience, which some issuers want; empty sends none

	// HTTPClient asks for tokens. Nil means one with a timeout of 10 s.
	HTTPClient *http.Client
}

// A TokenSource gets access tokens and keeps each until shortly before it
// expires. It is a token source of an ARC client, and may be used by several
// goroutines: one of them asks for a token, the others wait for it.
type TokenSource struct {
	config clientcredentials.Config
	client *http.Client

	turn  chan struct{} // held by who asks
	mu    sync.Mutex
	token *oauth2.Token // guarded by mu
}

// NewTokenSource returns a source of tokens for these credentials. It does no
// I/O.
func NewTokenSource(c ClientCredentials) (*TokenSource, error) {
	if c.ClientID == "" || c.TokenURL == "" {
		return nil, errors.New("oauth: client credentials need an id and a token URL")
	}
	s := &TokenSource{client: c.HTTPClient, turn: make(chan struct{}, 1)}
	if s.client == nil {
		s.client = &http.Client{Timeout: 10 * time.Second}
	}
	s.config = clientcredentials.Config{ClientID: c.ClientID, ClientSecret: c.ClientSecret, TokenURL: c.TokenURL, Scopes: c.Scopes}
	if c.Audience != "" {
		s.config.EndpointParams = map[string][]string{"audience": {c.Audience}}
	}
	return s, nil
}

// Token returns a valid access token. The target agent does not matter: one token
// serves for all.
func (s *TokenSource) Token(ctx context.Context, _ string) (string, error) {
	if t := s.valid(); t != "" {
		return t, nil
	}
	select {
	case s.turn <- struct{}{}:
		defer func() { <-s.turn }()
	case <-ctx.Done():
		return "", context.Cause(ctx)
	}
	if t := s.valid(); t != "" { // somebody else got it meanwhile
		return t, nil
	}
	t, err := s.config.Token(context.WithValue(ctx, oauth2.HTTPClient, s.client))
	if err != nil {
		return "", err
	}
	s.mu.Lock()
	s.token = t
	s.mu.Unlock()
	return t.AccessToken, nil
}

// early is how long before its end a token is given up.
const early = 30 * time.Second

func (s *TokenSource) valid() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.token == nil || !s.token.Expiry.IsZero() && time.Until(s.token.Expiry) < early {
		return ""
	}
	return s.token.AccessToken
}

// Forget drops the token that is kept, for a server that refused it before its
// time.
func (s *TokenSource) Forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.token = nil
}
