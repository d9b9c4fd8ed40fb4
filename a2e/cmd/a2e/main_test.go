// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/a2e"
	"github.com/fivewire/fivewire/a2e/tools"
	"github.com/fivewire/fivewire/internal/command"
	"github.com/fivewire/fivewire/internal/command/commandtest"
)

const token = "correct-horse"

// newHost returns a host with one tool, for agents with the token.
func newHost() (*a2e.Host, error) {
	set, err := tools.NewSet(nil)
	if err != nil {
		return nil, err
	}
	tools.AddTool(set, "upper", "Writes in capitals", func(_ context.Context, call *a2e.Call, in struct {
		Text string `json:"text"`
	}) (string, error) {
		if err := call.Emit(a2e.EventProgress, map[string]any{"message": "writing"}); err != nil {
			return "", err
		}
		return strings.ToUpper(in.Text), nil
	}, nil)
	keys, err := a2e.APIKeyAuthenticator(map[string]*a2e.Principal{token: {ID: "planner"}})
	if err != nil {
		return nil, err
	}
	host, err := a2e.NewHost(&a2e.HostOptions{Auth: a2e.Auth{Authenticator: keys}})
	if err != nil {
		return nil, err
	}
	return host.AddPlugin(set.Plugin()), nil
}

// TestMain is a host over the standard streams if the variable is set.
func TestMain(m *testing.M) {
	if os.Getenv("A2E_TEST_HOST") == "" {
		os.Exit(m.Run())
	}
	host, err := newHost()
	if err == nil {
		err = host.Serve(context.Background(), a2e.Stdio())
	}
	if err != nil {
		os.Exit(1)
	}
}

// do runs the command with an input.
func do(t *testing.T, in string, args ...string) (status int, stdout, stderr string) {
	t.Helper()
	return commandtest.Do(t, program, in, args...)
}

// serve serves the host over HTTP and WebSocket.
func serve(t *testing.T) (url, webSocket string) {
	t.Helper()
	host, err := newHost()
	require.NoError(t, err)
	streams, err := a2e.NewHTTPHandler(host, nil)
	require.NoError(t, err)
	sockets, err := a2e.NewWebSocketHandler(host, nil)
	require.NoError(t, err)
	mux := http.NewServeMux()
	mux.Handle("/", streams)
	mux.Handle("/ws", sockets)
	srv := httptest.NewServer(mux)
	t.Cleanup(func() {
		require.NoError(t, host.Close())
		srv.Close()
	})
	return srv.URL, "ws" + strings.TrimPrefix(srv.URL, "http") + "/ws"
}

func TestCall(t *testing.T) {
	url, webSocket := serve(t)
	file := filepath.Join(t.TempDir(), "token")
	require.NoError(t, os.WriteFile(file, []byte(token+"\n"), 0o600))
	targets := [][]string{{"-url", url}, {"-url", webSocket}}
	if runtime.GOOS != "windows" {
		targets = append(targets, []string{"-exec", "A2E_TEST_HOST=1 exec '" + os.Args[0] + "'"})
	}
	for _, target := range targets {
		args := append([]string{"call", "-token-file", file}, target...)
		status, stdout, stderr := do(t, "", append(args, "tool/call", `{"tool_name":"upper","arguments":{"text":"hello"},"streaming":true}`)...)
		require.Equal(t, command.Done, status, stderr)
		lines := strings.Split(strings.TrimSpace(stdout), "\n")
		require.Len(t, lines, 2, stdout)
		require.Contains(t, lines[0], `"type":"tool/event"`)
		require.Contains(t, lines[1], `"data":"HELLO"`)

		status, stdout, stderr = do(t, `{"tool_name":"absent","arguments":{}}`, append(args, "tool/call/req", "-")...)
		require.Equal(t, command.Failed, status, stdout+stderr)
		require.NotContains(t, stderr, token)
	}
	status, stdout, stderr := do(t, "", "call", "-url", webSocket, "tool/list")
	require.Equal(t, command.Failed, status, "without a token: %s", stdout+stderr)
}

// A session continues after a call that failed, and the exit status reports the failure.
func TestREPL(t *testing.T) {
	_, webSocket := serve(t)
	t.Setenv(tokenVariable, token)
	status, stdout, stderr := do(t, "tool/list\n\ntool/fly {}\ntool/call {\ntool/call {\"tool_name\":\"upper\",\"arguments\":{\"text\":\"two\"}}\n", "repl", "-url", webSocket)
	require.Equal(t, command.Failed, status, stderr)
	require.Contains(t, stdout, `"name":"upper"`)
	require.Contains(t, stdout, `"data":"TWO"`)
	require.Contains(t, stderr, "2 calls failed")
	status, _, stderr = do(t, "tool/list\n", "repl", "-url", webSocket)
	require.Equal(t, command.Done, status, stderr)
}

func TestHelpAndUsage(t *testing.T) {
	commandtest.CheckHelp(t, program)
	commandtest.CheckUsage(t, program,
		[]string{"call"},
		[]string{"call", "tool/list"},
		[]string{"call", "-url", "http://127.0.0.1:1", "-exec", "cat", "tool/list"},
		[]string{"call", "-url", "http://127.0.0.1:1", "tool/call", "null"},
		[]string{"call", "-url", "http://127.0.0.1:1", "tool/call", `{"tool_name":7}`},
		[]string{"call", "-url", "http://127.0.0.1:1", "tool/fly"},
		[]string{"repl", "tool/list"},
	)
	for _, url := range []string{"http://127.0.0.1:1", "ws://127.0.0.1:1", "http://example.com"} {
		status, _, stderr := do(t, "", "call", "-url", url, "tool/list")
		require.Equal(t, command.NotDone, status, stderr)
	}
}
