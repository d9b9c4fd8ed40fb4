// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/a2e"
	"github.com/fivewire/fivewire/a2e/a2etest"
	"github.com/fivewire/fivewire/a2e/tools"
)

// The token is that of a file that only its owner may read.
func TestToken(t *testing.T) {
	file := filepath.Join(t.TempDir(), "token")
	require.NoError(t, os.WriteFile(file, []byte("s3cret\n"), 0o600))
	token, err := readToken(file)
	require.NoError(t, err)
	require.Equal(t, "s3cret", token)
	if runtime.GOOS != "windows" {
		require.NoError(t, os.Chmod(file, 0o640))
		_, err = readToken(file)
		require.ErrorContains(t, err, "only its owner")
		require.NoError(t, os.Chmod(file, 0o600))
	}
	require.NoError(t, os.WriteFile(file, []byte("\n"), 0o600))
	_, err = readToken(file)
	require.ErrorContains(t, err, "want a token")
	_, err = readToken(file + "2")
	require.ErrorIs(t, err, os.ErrNotExist)
	token, err = readToken("")
	require.NoError(t, err)
	require.Empty(t, token)
}

// The example serves over HTTP and ends with its context.
func TestHTTP(t *testing.T) {
	host, err := newHost("", "s3cret", nil)
	require.NoError(t, err)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- serveHTTP(ctx, l, host) }()
	conn, err := a2e.DialHTTP(t.Context(), "http://"+l.Addr().String(), nil)
	require.NoError(t, err)
	c := a2etest.Must(a2e.NewClient(conn, &a2e.ClientOptions{Token: "s3cret", Capabilities: []string{"tools", "memory", "proc"}}))
	_, err = c.Connect(t.Context())
	require.NoError(t, err)
	tc, err := tools.NewClient(c)
	require.NoError(t, err)
	r := new(tools.CallRequest)
	r.ToolName, r.Arguments = "count_words", json.RawMessage(`{"text":"two words"}`)
	resp, err := tc.Call(t.Context(), r, nil)
	require.NoError(t, err)
	require.JSONEq(t, `{"words":2,"letters":9}`, string(resp.Data.Data))
	r.Arguments = json.RawMessage(`{"text":""}`)
	_, err = tc.Call(t.Context(), r, nil)
	require.ErrorIs(t, err, a2e.ErrTool)
	require.NoError(t, c.Close())
	cancel()
	require.NoError(t, <-done)
	require.Error(t, run(t.Context(), "127.0.0.1:0", "", "", nil), "HTTP needs a token")
}
