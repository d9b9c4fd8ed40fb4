// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package oauth

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"golang.org/x/oauth2"
	"golang.org/x/oauth2/clientcredentials"

	"github.com/fivewire/fivewire/arc"
	"github.com/fivewire/fivewire/internal/netguard"
)

// TokenSourceOptions configure the client credentials grant of OAuth 2.0.
type TokenSourceOptions struct {
	ClientID     string
	ClientSecret string
	TokenURL     string
	Scopes       []string // such as arc.ScopeTaskController
	Audience     string   // sent as the parameter audience, which some issuers want; empty sends none

	// AllowInsecure permits a TokenURL with http on another host than this host, which
	// gets the secret unencrypted.
	AllowInsecure bool

	// HTTPClient requests the tokens. Redirects are never followed, since they would
	// receive the secret. Nil means one with a timeout of 10 s.
	HTTPClient *http.Client
}

// NewTokenSource returns a source of tokens for [arc.ClientOptions], which gets
// one when it is needed and keeps it until shortly before it expires. It does no
// I/O.
func NewTokenSource(c TokenSourceOptions) (arc.TokenSource, error) {
	if c.ClientID == "" || c.TokenURL == "" {
		return nil, errors.New("oauth: client credentials need an id and a token URL")
	}
	hosts := &netguard.Guard{AllowLoopback: true, AllowPrivate: true} // the operator names the host
	if _, err := hosts.URL(c.TokenURL, c.AllowInsecure); err != nil {
		return nil, fmt.Errorf("oauth: token URL: %w", err)
	}
	client := http.Client{Timeout: 10 * time.Second}
	if c.HTTPClient != nil {
		client = *c.HTTPClient
	}
	client.CheckRedirect = netguard.NoRedirect
	config := clientcredentials.Config{
		ClientID: c.ClientID, ClientSecret: c.ClientSecret, TokenURL: c.TokenURL, Scopes: c.Scopes,
	}
	if c.Audience != "" {
		config.EndpointParams = map[string][]string{"audience": {c.Audience}}
	}
	return arc.NewRefreshingTokens(func(ctx context.Context) (string, time.Time, error) {
		t, err := config.Token(context.WithValue(ctx, oauth2.HTTPClient, &client))
		if err != nil {
			return "", time.Time{}, err
		}
		return t.AccessToken, t.Expiry, nil
	}, 0), nil
}
