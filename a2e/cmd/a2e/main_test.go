// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/a2e"
	"github.com/fivewire/fivewire/a2e/tools"
	"github.com/fivewire/fivewire/internal/command"
	"github.com/fivewire/fivewire/internal/command/commandtest"
)

const token = "correct-horse"

// newHost returns a host with one tool, for agents with the token.
func newHost(options ...func(*a2e.HostOptions)) (*a2e.Host, error) {
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
	opts := &a2e.HostOptions{Auth: a2e.Auth{Authenticator: keys}}
	for _, f := range options {
		f(opts)
	}
	host, err := a2e.NewHost(opts)
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

// The time limit of a call holds for the handshake with a silent host, too.
func TestTimeoutOfHandshake(t *testing.T) {
	near, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer near.Close()
	start := time.Now()
	status, _, stderr := do(t, "", "call", "-timeout", "1s", "-url", "http://"+near.Addr().String(), "tool/list")
	require.Equal(t, command.NotDone, status, stderr)
	require.Contains(t, stderr, "deadline exceeded")
	require.Less(t, time.Since(start), 20*time.Second)
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

// A recording is shown, filtered and played back to its host.
func TestInspect(t *testing.T) {
	_, webSocket := serve(t)
	t.Setenv(tokenVariable, token)
	file := filepath.Join(t.TempDir(), "session.ndjson")
	call := `{"tool_name":"upper","arguments":{"text":"hello"}}`
	status, _, stderr := do(t, "", "call", "-record", file, "-url", webSocket, "tool/call", call)
	require.Equal(t, command.Done, status, stderr)
	inspect := func(args ...string) []string {
		status, stdout, stderr := do(t, "", append(append([]string{"inspect"}, args...), file)...)
		require.Equal(t, command.Done, status, stderr)
		require.NotContains(t, stdout, token)
		return strings.Split(strings.TrimSuffix(stdout, "\n"), "\n")
	}
	all := inspect()
	require.GreaterOrEqual(t, len(all), 5, "two handshakes, a call with its answer, and a shutdown")
	require.Contains(t, all[0], `"auth_token":"***"`)
	calls := inspect("-type", "tool/*/*")
	require.Len(t, calls, 2)
	require.Contains(t, calls[0], "out")
	require.Contains(t, calls[1], `"data":"HELLO"`)
	require.Equal(t, calls[:1], inspect("-type", "tool/*/*", "-dir", "out"))
	_, id, _ := strings.Cut(calls[0], `"id":"`)
	require.Equal(t, calls, inspect("-id", id[:32]))
	require.Contains(t, inspect("-o", "json")[1], `"dir":`)

	var atHost bytes.Buffer
	host, err := newHost(func(o *a2e.HostOptions) { o.Record = func(string) io.Writer { return &atHost } })
	require.NoError(t, err)
	sockets, err := a2e.NewWebSocketHandler(host, nil)
	require.NoError(t, err)
	srv := httptest.NewServer(sockets)
	status, _, stderr = do(t, "", "call", "-url", "ws"+strings.TrimPrefix(srv.URL, "http"), "tool/call", call)
	require.Equal(t, command.Done, status, stderr)
	require.NoError(t, host.Close())
	srv.Close()
	require.NoError(t, os.WriteFile(file, atHost.Bytes(), 0o600))
	require.Contains(t, strings.Join(inspect("-replay", "-url", webSocket), ""), "messages as recorded")
	changed := strings.Replace(atHost.String(), "HELLO", "HALLO", 1)
	require.NoError(t, os.WriteFile(file, []byte(changed), 0o600))
	status, _, stderr = do(t, "", "inspect", "-replay", "-url", webSocket, file)
	require.Equal(t, command.Failed, status, stderr)
	require.Contains(t, stderr, "data.data")
	require.NoError(t, os.WriteFile(file, []byte("no recording\n"), 0o600))
	status, _, _ = do(t, "", "inspect", file)
	require.Equal(t, command.NotDone, status)
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
		[]string{"inspect"},
		[]string{"inspect", "-dir", "up", "file"},
		[]string{"inspect", "-type", "[", "file"},
	)
	commandtest.CheckRefusedAddress(t, program, "allow-insecure",
		[]string{"call", "-url", "http://192.0.2.1", "tool/list"},
		[]string{"call", "-url", "ws://192.0.2.1", "tool/list"},
		[]string{"repl", "-url", "ws://192.0.2.1"},
	)
	for _, url := range []string{"http://127.0.0.1:1", "ws://127.0.0.1:1", "http://example.com"} {
		status, _, stderr := do(t, "", "call", "-url", url, "tool/list")
		require.Equal(t, command.NotDone, status, stderr)
	}
}
