// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/a2e"
	"github.com/fivewire/fivewire/a2e/memory"
	"github.com/fivewire/fivewire/a2e/proc"
	"github.com/fivewire/fivewire/a2e/tools"
)

func Example() {
	if err := run(context.Background(), os.Stdout, "", "", nil); err != nil {
		panic(err)
	}
	// Output:
	// tool: count_words: Count the words of a text
	// event: progress {"message":"counting"}
	// result: 3 words
	// remembered: "they were small"
	// process: hello
}

// The agent connects over HTTP and WebSocket with the token of a file.
func TestConnections(t *testing.T) {
	file := filepath.Join(t.TempDir(), "token")
	require.NoError(t, os.WriteFile(file, []byte("s3cret\n"), 0o600))
	token, err := readToken(file)
	require.NoError(t, err)
	keys, err := a2e.APIKeyAuthenticator(map[string]*a2e.Principal{"s3cret": {ID: "agent"}})
	require.NoError(t, err)
	host, err := a2e.NewHost(&a2e.HostOptions{Auth: a2e.Auth{Authenticator: keys}})
	require.NoError(t, err)
	t.Cleanup(func() { _ = host.Close() })
	set, err := tools.NewSet(nil)
	require.NoError(t, err)
	tools.AddTool(set, "count_words", "Count", countWords, nil)
	memories, err := memory.NewPlugin(nil)
	require.NoError(t, err)
	processes, err := proc.NewPlugin(&proc.Options{AllowedCommands: []string{"echo"}})
	require.NoError(t, err)
	host.AddPlugin(set.Plugin()).AddPlugin(memories).AddPlugin(processes)
	posts, err := a2e.NewHTTPHandler(host, nil)
	require.NoError(t, err)
	sockets, err := a2e.NewWebSocketHandler(host, nil)
	require.NoError(t, err)
	for scheme, handler := range map[string]http.Handler{"http": posts, "ws": sockets} {
		server := httptest.NewServer(handler)
		address := strings.Replace(server.URL, "http", scheme, 1)
		var out strings.Builder
		require.NoError(t, run(t.Context(), &out, address, token, nil))
		require.Contains(t, out.String(), "result: 3 words")
		require.ErrorContains(t, run(t.Context(), &out, address, "wrong", nil), a2e.RejectAuthFailed)
		server.Close()
		require.Error(t, run(t.Context(), &out, address, token, nil))
	}
}
