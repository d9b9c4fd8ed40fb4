// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/altar"
)

// The Host serves callers with a key, refuses others, and ends with its context.
func TestRun(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	r, w := io.Pipe()
	done := make(chan error, 1)
	go func() { done <- run(ctx, []string{"-addr", "127.0.0.1:0"}, w) }()
	lines := bufio.NewScanner(r)
	require.True(t, lines.Scan())
	url := "ws://" + strings.TrimPrefix(lines.Text(), "listening on http://")
	go func() { _, _ = io.Copy(io.Discard, r) }() // the log

	dial := func(key string) altar.Dialer {
		return func(ctx context.Context) (altar.Conn, error) {
			return altar.DialWebSocket(ctx, url, &altar.WebSocketDialOptions{Header: http.Header{altar.APIKeyHeader: {key}}})
		}
	}
	client, err := altar.NewClient(dial("example-client-key"), nil)
	require.NoError(t, err)
	defer client.Close()
	session, err := client.CreateSession(t.Context(), nil)
	require.NoError(t, err)
	_, err = session.Call(t.Context(), "text/upper", map[string]string{"text": "hello"}, nil)
	require.ErrorIs(t, err, altar.ErrToolNotFound, "no Runtime has connected")
	stranger, err := altar.NewClient(dial("wrong"), nil)
	require.NoError(t, err)
	defer stranger.Close()
	_, err = stranger.CreateSession(t.Context(), nil)
	require.Error(t, err)
	require.NoError(t, session.Destroy(t.Context()))
	require.NoError(t, client.Close())
	stop()
	require.NoError(t, <-done)
	require.Error(t, run(t.Context(), []string{"-nonsense"}, io.Discard))
}
