// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"io"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/altar"
	"github.com/fivewire/fivewire/altar/altartest"
)

// The Runtime serves both tools at a Host, and ends with its context.
func TestRun(t *testing.T) {
	contracts, err := altar.DecodeManifest([]byte(`{"contracts": [
		{"name": "text/upper", "parameters": [{"name": "text", "type": "string", "required": true}]},
		{"name": "text/words", "parameters": [{"name": "text", "type": "string", "required": true}], "streaming": true}]}`))
	require.NoError(t, err)
	keys, err := altar.APIKeyAuthenticator(map[string]*altar.Principal{"example-runtime-key": {ID: "text-service"}})
	require.NoError(t, err)
	host, err := altar.NewHost(contracts, &altar.HostOptions{Auth: altar.Auth{
		Authorizer: altar.AuthorizerFunc(altar.AllowAll), Authenticator: keys,
	}})
	require.NoError(t, err)
	web := httptest.NewServer(host)
	defer web.Close()
	defer host.Close()

	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- run(ctx, []string{"-url", "ws" + strings.TrimPrefix(web.URL, "http")}, io.Discard) }()
	for host.Stats().Runtimes == 0 {
		select {
		case err := <-done:
			t.Fatal(err)
		case <-time.After(time.Millisecond):
		}
	}
	altartest.WaitTools(t, host, 2)
	client, err := altar.NewClient(func(context.Context) (altar.Conn, error) { return host.Dial(&altar.Principal{ID: "you"}) }, nil)
	require.NoError(t, err)
	defer client.Close()
	session, err := client.CreateSession(t.Context(), nil)
	require.NoError(t, err)
	upper, err := altar.CallAs[string](t.Context(), session, "text/upper", text{Text: "hello"}, nil)
	require.NoError(t, err)
	require.Equal(t, "HELLO", upper)
	var words []string
	for word, err := range altar.StreamAs[string](t.Context(), session, "text/words", text{Text: "one two"}, nil) {
		require.NoError(t, err)
		words = append(words, word)
	}
	require.Equal(t, []string{"one", "two"}, words)
	stop()
	require.NoError(t, <-done)
}
