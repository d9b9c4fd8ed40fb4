// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package a2e_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/a2e"
	"github.com/fivewire/fivewire/a2e/a2etest"
	"github.com/fivewire/fivewire/a2e/chains"
	"github.com/fivewire/fivewire/a2e/tools"
)

// causeOf returns the reason of the end of a session.
func causeOf(t *testing.T, err error) a2e.CloseError {
	t.Helper()
	require.ErrorIs(t, err, a2e.ErrClosed)
	var e *a2e.CloseError
	require.ErrorAs(t, err, &e)
	return *e
}

// Connect to a child that ends has the exit status, the standard error and the first line
// (A2E-D60).
func TestConnectErrorHasExitOfChild(t *testing.T) {
	for command, want := range map[string]a2e.CloseError{
		"echo config.yaml: no such file >&2; exit 7": {Kind: "exit", Code: 7, Text: "config.yaml: no such file\n"},
		"echo hello":                      {Kind: "exit", Code: 0, Text: "hello"},
		"kill -KILL $$":                   {Kind: "exit", Code: -9},
		"exec <&-; sleep 0.1; echo hello": {Kind: "exit", Code: 0, Text: "hello"}, // after a failed write
	} {
		child, err := a2e.StartCommand(exec.Command("sh", "-c", command), nil)
		require.NoError(t, err)
		c := a2etest.Must(a2e.NewClient(child, nil))
		_, err = c.Connect(t.Context())
		require.Equal(t, want, causeOf(t, err), command)
		require.EqualError(t, err, "a2e: session closed: "+strings.TrimSuffix(fmt.Sprintf("child exited with status %d: %s", want.Code,
			strings.TrimSpace(want.Text)), ": "))
		_, err = c.Call(t.Context(), "ping", nil, nil)
		require.Equal(t, want, causeOf(t, err), command)
		_ = c.Close()
	}
}

// All calls of a session have the same reason.
func TestCallsAfterEndHaveItsReason(t *testing.T) {
	h := a2etest.NewHost(t, nil)
	agent, host := a2e.Pipe()
	c := a2etest.Must(a2e.NewClient(agent, nil))
	serve(t, h, host)
	_, err := c.Connect(t.Context())
	require.NoError(t, err)
	require.NoError(t, h.Close())
	<-c.Done()
	_, err = c.Call(t.Context(), "ping", nil, nil)
	require.Equal(t, "eof", causeOf(t, err).Kind)
	require.NoError(t, c.Close())
	require.Equal(t, "eof", causeOf(t, c.Send(t.Context(), "demo/event", nil)).Kind)

	h = a2etest.NewHost(t, &a2e.HostOptions{Auth: a2e.Auth{Authenticator: a2etest.KeyAuthenticator("s3cret")}})
	agent, host = a2e.Pipe()
	c = a2etest.Must(a2e.NewClient(agent, nil))
	serve(t, h, host)
	_, err = c.Connect(t.Context())
	require.Error(t, err)
	_, err = c.Connect(t.Context())
	require.Equal(t, a2e.CloseError{Kind: "refused", Text: "auth_failed"}, causeOf(t, err))

	agent, _ = a2e.Pipe()
	c = a2etest.Must(a2e.NewClient(agent, nil))
	require.NoError(t, c.Close())
	_, err = c.Connect(t.Context())
	require.Equal(t, "local", causeOf(t, err).Kind)
}

// A session that an HTTP host does not know ends with the status and the URL.
func TestUnknownHTTPSessionHasStatus(t *testing.T) {
	h := a2etest.NewHost(t, nil)
	inner := a2etest.Must(a2e.NewHTTPHandler(h, nil))
	var status atomic.Int64
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if code := status.Load(); code > 0 {
			w.WriteHeader(int(code))
			return
		}
		inner.ServeHTTP(w, r)
	}))
	defer web.Close()
	c := a2etest.Must(a2e.NewClient(a2etest.Must(a2e.DialHTTP(t.Context(), web.URL, nil)), nil))
	_, err := c.Connect(t.Context())
	require.NoError(t, err)
	status.Store(404)
	_, _, err = c.Ping(t.Context())
	require.Equal(t, a2e.CloseError{Kind: "http", Code: 404, Text: web.URL}, causeOf(t, err))
	require.NoError(t, c.Close())

	status.Store(503)
	c = a2etest.Must(a2e.NewClient(a2etest.Must(a2e.DialHTTP(t.Context(), web.URL, nil)), nil))
	_, err = c.Connect(t.Context())
	require.Equal(t, a2e.CloseError{Kind: "http", Code: 503, Text: web.URL}, causeOf(t, err))
	require.NoError(t, c.Close())

	refused := errors.New("connection refused")
	refuse := &http.Client{Transport: &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) {
		return nil, refused
	}}}
	c = a2etest.Must(a2e.NewClient(a2etest.Must(a2e.DialHTTP(t.Context(), web.URL, &a2e.HTTPDialOptions{HTTPClient: refuse})), nil))
	_, err = c.Connect(t.Context())
	require.EqualError(t, err, "a2e: session closed: http: "+web.URL+": connection refused")
	require.Equal(t, web.URL, causeOf(t, err).Text)
	require.ErrorIs(t, err, refused)
	require.NoError(t, c.Close())
	c = a2etest.Must(a2e.NewClient(a2etest.Must(a2e.DialHTTP(t.Context(), web.URL+"?token=s3cret",
		&a2e.HTTPDialOptions{HTTPClient: refuse})), nil))
	_, err = c.Connect(t.Context())
	require.Equal(t, web.URL, causeOf(t, err).Text, "without query")
	require.NoError(t, c.Close())
	require.NoError(t, h.Close())
}

// The handshake is the body of the request that creates the session. A host that ignores or refuses
// the body gets it by /send (A2E-D61).
func TestHTTPHandshakeCreatesSession(t *testing.T) {
	for name, c := range map[string]struct {
		dropsBody, refusesBody bool
		want                   []string
	}{
		"taken":   {false, false, []string{"/session true"}},
		"ignored": {true, false, []string{"/session true", "/send true"}},
		"refused": {false, true, []string{"/session true", "/session false", "/send true"}},
	} {
		var mu sync.Mutex
		var posts []string
		h := a2etest.NewHost(t, nil)
		inner := a2etest.Must(a2e.NewHTTPHandler(h, nil))
		web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodPost {
				body, err := io.ReadAll(r.Body)
				require.NoError(t, err)
				mu.Lock()
				posts = append(posts, fmt.Sprint(r.URL.Path, " ", bytes.Contains(body, []byte("handshake/req"))))
				mu.Unlock()
				if r.URL.Path == "/session" && len(body) > 0 {
					if c.refusesBody {
						w.WriteHeader(http.StatusUnprocessableEntity)
						return
					}
					if c.dropsBody {
						body = nil
					}
				}
				r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
			}
			inner.ServeHTTP(w, r)
		}))
		client := a2etest.Must(a2e.NewClient(a2etest.Must(a2e.DialHTTP(t.Context(), web.URL, nil)), nil))
		_, err := client.Connect(t.Context())
		require.NoError(t, err, name)
		mu.Lock()
		require.Equal(t, c.want, posts, name)
		mu.Unlock()
		require.NoError(t, client.Close())
		require.NoError(t, h.Close())
		web.Close()
	}
}

// The error of a capability that the agent does not have names the option that requests it.
func TestMissingCapabilityNamesItsOption(t *testing.T) {
	h := a2etest.NewHost(t, nil).AddPlugin(a2etest.Must(chains.NewPlugin(nil))).AddPlugin(a2etest.Must(tools.NewSet(nil)).Plugin())
	c := a2etest.Connect(t, h, &a2e.ClientOptions{Capabilities: []string{"tools"}})
	_, err := c.Call(t.Context(), "chain/req", &chains.Request{}, nil)
	require.ErrorIs(t, err, a2e.ErrCapabilityMissing)
	require.ErrorContains(t, err, "the capability chains was not negotiated")
	require.ErrorContains(t, err, "ClientOptions.Capabilities")
}

// Without a logger, the standard error of a child goes to slog.Default().
func TestStandardErrorOfChildIsLogged(t *testing.T) {
	before := slog.Default()
	defer slog.SetDefault(before)
	var log strings.Builder
	slog.SetDefault(slog.New(slog.NewTextHandler(&log, nil)))
	child, err := a2e.StartCommand(exec.Command("sh", "-c", "echo no such file >&2"), nil)
	require.NoError(t, err)
	require.NoError(t, child.Close())
	require.Contains(t, log.String(), `stderr="no such file"`)
}

// The end of a child does not wait for a process that has left its group and holds its outputs.
func TestCommandEndsAlthoughItsOutputsAreHeld(t *testing.T) {
	if _, err := exec.LookPath("setsid"); err != nil {
		t.Skip(err)
	}
	child, err := a2e.StartCommand(exec.Command("sh", "-c", "setsid sh -c 'echo $$; exec sleep 600' & exec cat"),
		&a2e.CommandOptions{CloseTimeout: time.Millisecond, KillTimeout: time.Millisecond})
	require.NoError(t, err)
	line, err := bufio.NewReader(child).ReadString('\n')
	require.NoError(t, err)
	pid, err := strconv.Atoi(strings.TrimSpace(line))
	require.NoError(t, err)
	holder, err := os.FindProcess(pid)
	require.NoError(t, err)
	defer func() { _ = holder.Kill() }()
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = child.Close()
	}()
	select {
	case <-done:
	case <-time.After(20 * time.Second):
		t.Error("the child has not ended")
	}
}
