// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/altar"
	"github.com/fivewire/fivewire/internal/command"
	"github.com/fivewire/fivewire/internal/command/commandtest"
	"github.com/fivewire/fivewire/internal/testkit"
)

// do runs the command with an input.
func do(t *testing.T, in string, args ...string) (status int, stdout, stderr string) {
	t.Helper()
	return commandtest.Do(t, program, in, args...)
}

const contracts = `{"version":"1.0.0","contracts":[
	{"name":"text/upper","description":"Writes in capitals","parameters":[{"name":"text","type":"string"}]},
	{"name":"text/none","description":"Fails","parameters":[]}]}`

// manifestFile returns a file with two contracts.
func manifestFile(t *testing.T) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "tools.json")
	require.NoError(t, os.WriteFile(file, []byte(contracts), 0o600))
	return file
}

// serve starts altar serve, and returns its URL.
func serve(t *testing.T, args ...string) (url string) {
	t.Helper()
	return "ws://" + commandtest.Serve(t, program, append([]string{"serve", "-manifest", manifestFile(t)}, args...)...)
}

// until repeats the command until it succeeds: a Runtime connects in the background.
func until(t *testing.T, want string, args ...string) (stdout string) {
	t.Helper()
	require.Eventually(t, func() bool {
		_, stdout, _ = do(t, "", args...)
		return strings.Contains(stdout, want)
	}, time.Minute, 10*time.Millisecond)
	return stdout
}

func TestServeAndCall(t *testing.T) {
	url := serve(t, "-exec", "text/upper=tr a-z A-Z", "-exec", "text/none=echo secret >&2; exit 3", "-allow-anonymous")
	tools := until(t, "text/upper(text): Writes in capitals\n", "tools", url)
	require.Contains(t, tools, "text/none(): Fails\n")

	status, stdout, stderr := do(t, "", "call", url, "text/upper", `{"text":"hello"}`)
	require.Equal(t, command.Done, status, stderr)
	require.Equal(t, `{"TEXT":"HELLO"}`+"\n", stdout)
	status, stdout, stderr = do(t, `{"text":"input"}`, "call", "-stream", "-o", "json", url, "text/upper")
	require.Equal(t, command.Done, status, stderr)
	require.Equal(t, `{"TEXT":"INPUT"}`+"\n", stdout)

	for _, tt := range []struct {
		tool, parameters, stderr string
		status                   int
	}{
		{"text/upper", `{"txet":1}`, "txet", command.Failed},
		{"text/none", `{}`, "EXECUTION_FAILED", command.Failed},
		{"text/absent", `{}`, "TOOL_NOT_FOUND", command.Failed},
		{"text/upper", `{`, "not JSON", command.NotDone},
	} {
		status, stdout, stderr := do(t, "", "call", url, tt.tool, tt.parameters)
		require.Equal(t, tt.status, status, stdout+stderr)
		require.Contains(t, stderr, tt.stderr)
		require.NotContains(t, stderr, "secret")
	}
}

// A client may call a command when the address is printed.
func TestServeAnnouncesToolsFirst(t *testing.T) {
	for range 20 { // the Runtime of the commands and the call race
		t.Run("", func(t *testing.T) {
			url := serve(t, "-exec", "text/upper=cat", "-exec", "text/none=cat", "-allow-anonymous")
			status, tools, stderr := do(t, "", "tools", url)
			require.Equal(t, command.Done, status, stderr)
			require.Equal(t, 2, strings.Count(tools, "\n"), tools)
		})
	}
}

type textParameters struct {
	Text string `json:"text"`
}

// The session of a call outlives it, so that a late call has its own error.
func TestCallTimeoutIsNotThatOfSession(t *testing.T) {
	url := serve(t, "-exec", "text/none=sleep 30", "-allow-anonymous")
	until(t, "text/none", "tools", url)
	status, _, stderr := do(t, "{}", "call", "-timeout", "1s", url, "text/none")
	require.NotEqual(t, command.Done, status)
	require.NotContains(t, stderr, "SESSION_INVALID")
}

// A silentListener accepts connections whose output is lost once it is silent.
type silentListener struct {
	net.Listener
	isSilent atomic.Bool
}

func (l *silentListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	return &silentConn{conn, l}, err
}

type silentConn struct {
	net.Conn
	listener *silentListener
}

func (c *silentConn) Write(p []byte) (int, error) {
	if c.listener.isSilent.Load() {
		return len(p), nil
	}
	return c.Conn.Write(p)
}

// silentHost starts a Host that can be silenced.
func silentHost(t *testing.T, authorize func(listener *silentListener, r *altar.AuthorizeRequest)) (host *altar.Host, listener *silentListener, url string) {
	t.Helper()
	manifest, err := altar.DecodeManifest([]byte(contracts))
	require.NoError(t, err)
	listener = &silentListener{}
	host, err = altar.NewHost(manifest, &altar.HostOptions{
		Auth: altar.Auth{AllowAnonymous: true, Authorizer: altar.AuthorizerFunc(func(_ context.Context, r *altar.AuthorizeRequest) error {
			authorize(listener, r)
			return nil
		})},
	})
	require.NoError(t, err)
	t.Cleanup(func() { _ = host.Close() })
	web := httptest.NewUnstartedServer(host)
	listener.Listener = web.Listener
	web.Listener = listener
	web.Start()
	t.Cleanup(web.Close)
	return host, listener, "ws" + strings.TrimPrefix(web.URL, "http")
}

// The time limit holds for a list of tools, too.
func TestTimeoutOfTools(t *testing.T) {
	var isLast atomic.Bool
	host, _, url := silentHost(t, func(listener *silentListener, _ *altar.AuthorizeRequest) { listener.isSilent.Store(isLast.Load()) })
	rt, err := altar.NewRuntime("silent-01", nil)
	require.NoError(t, err)
	rt.Handle("text/none", altar.HandlerFunc(func(context.Context, *altar.ToolCall) (any, error) { return nil, nil }))
	conn, err := host.Dial(&altar.Principal{ID: "runtime"})
	require.NoError(t, err)
	go func() { _ = rt.Run(t.Context(), conn) }()
	until(t, "text/none", "tools", url)
	isLast.Store(true)
	start := time.Now()
	status, _, stderr := do(t, "", "tools", "-timeout", "1s", url)
	require.Equal(t, command.NotDone, status, stderr)
	require.Contains(t, stderr, "deadline exceeded")
	require.Less(t, time.Since(start), 20*time.Second)
}

// The end of a session at a Host that does not answer is bounded.
func TestInterruptEndsCallOfSilentHost(t *testing.T) {
	host, listener, url := silentHost(t, func(*silentListener, *altar.AuthorizeRequest) {})

	ctx, cancel := context.WithCancel(t.Context())
	rt, err := altar.NewRuntime("silent-01", nil)
	require.NoError(t, err)
	rt.Handle("text/none", altar.HandlerFunc(func(context.Context, *altar.ToolCall) (any, error) {
		listener.isSilent.Store(true)
		cancel()
		return "lost", nil
	}))
	conn, err := host.Dial(&altar.Principal{ID: "runtime"})
	require.NoError(t, err)
	go func() { _ = rt.Run(context.WithoutCancel(ctx), conn) }()
	until(t, "text/none", "tools", url)

	start := time.Now()
	status := program.Run(ctx, []string{"call", url, "text/none", "{}"}, &command.IO{Out: io.Discard, Err: io.Discard})
	require.Equal(t, command.NotDone, status)
	require.Less(t, time.Since(start), 20*time.Second, "the end of the session is bounded")
}

// Clients and Runtimes have a key each, and a client announces no Runtime.
func TestKeys(t *testing.T) {
	files := make(map[string]string)
	for _, name := range []string{"client", "runtime"} {
		files[name] = filepath.Join(t.TempDir(), name)
		require.NoError(t, os.WriteFile(files[name], []byte("key-of-"+name+"\n"), 0o600))
	}
	url := serve(t, "-key-file", files["client"], "-runtime-key-file", files["runtime"])
	status, _, stderr := do(t, "", "tools", "-timeout", "5s", url)
	require.NotEqual(t, command.Done, status, stderr)
	status, stdout, stderr := do(t, "", "tools", "-key-file", files["client"], url)
	require.Equal(t, command.Done, status, stderr)
	require.Empty(t, stdout)

	run := func(key string) error {
		rt, err := altar.NewRuntime("other-01", nil)
		require.NoError(t, err)
		altar.AddTool(rt, "text/upper", func(context.Context, textParameters) (string, error) { return "UPPER", nil })
		conn, err := altar.DialWebSocket(t.Context(), url, &altar.WebSocketDialOptions{Header: http.Header{altar.APIKeyHeader: {key}}})
		require.NoError(t, err)
		return rt.Run(t.Context(), conn)
	}
	require.ErrorIs(t, run("key-of-client"), altar.ErrAuthorizationFailed)
	go func() { _ = run("key-of-runtime") }()
	until(t, "text/upper", "tools", "-key-file", files["client"], url)
	t.Setenv(clientVariable, "key-of-client")
	require.Equal(t, `"UPPER"`+"\n", until(t, "UPPER", "call", url, "text/upper", `{"text":"x"}`))
}

func TestHelpAndUsage(t *testing.T) {
	commandtest.CheckHelp(t, program)
	manifest := manifestFile(t)
	commandtest.CheckUsage(t, program,
		[]string{"tools"},
		[]string{"call", "ws://127.0.0.1:1"},
		[]string{"serve"},
		[]string{"serve", "-manifest", manifest},
		[]string{"serve", "-manifest", manifest, "-allow-anonymous", "-exec", "text/upper"},
		[]string{"serve", "-manifest", manifest, "-allow-anonymous", "-exec", "text/absent=cat"},
		[]string{"serve", "-manifest", manifest, "-allow-anonymous", "-exec", "text/none=cat", "-exec", "text/none=tac"},
	)
	commandtest.CheckRefusedAddress(t, program, "allow-insecure",
		[]string{"tools", "ws://192.0.2.1"},
		[]string{"call", "http://192.0.2.1", "text/upper", "{}"},
	)
}

// A Host that cannot be reached at first is not dialed until the client gives up.
func TestUnreachableHostFailsSoon(t *testing.T) {
	address := testkit.FreeAddress(t)
	for _, args := range [][]string{{"tools", "ws://" + address}, {"call", "ws://" + address, "text/upper", "{}"}} {
		t.Run(args[0], func(t *testing.T) {
			t.Parallel()
			status, _, stderr := do(t, "", args...)
			require.Equal(t, command.NotDone, status, stderr)
			require.Contains(t, stderr, "altar "+args[0]+": altar: connect: altar: dial: ")
			require.Contains(t, stderr, address)
			require.NotContains(t, stderr, "deadline exceeded")
		})
	}
}

// A Host may start at the same time.
func TestHostStartsAfterCommand(t *testing.T) {
	address := testkit.FreeAddress(t)
	logs, in, err := os.Pipe()
	require.NoError(t, err)
	defer logs.Close()
	var out bytes.Buffer
	status := make(chan int, 1)
	go func() {
		status <- program.Run(t.Context(), []string{"tools", "ws://" + address}, &command.IO{Out: &out, Err: in})
		_ = in.Close()
	}()
	line, err := bufio.NewReader(logs).ReadString('\n')
	require.NoError(t, err)
	require.Contains(t, line, "connection failed")
	host := serve(t, "-allow-anonymous", "-exec", "text/upper=cat", "-addr", address)
	require.Equal(t, "ws://"+address, host)
	require.Equal(t, command.Done, <-status)
}
