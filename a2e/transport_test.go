// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package a2e_test

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/a2e"
	"github.com/fivewire/fivewire/a2e/a2etest"
	"github.com/fivewire/fivewire/a2e/tools"
)

// A transport gives a connection to a fresh host of echoHost, which ends with
// the test.
type transport struct {
	name string
	dial func(ctx context.Context, t *testing.T, h *a2e.Host) io.ReadWriteCloser
}

func transports() []transport {
	return []transport{
		{"memory", func(ctx context.Context, t *testing.T, h *a2e.Host) io.ReadWriteCloser {
			agent, host := a2e.Pipe()
			serveUntil(ctx, t, h, host)
			return agent
		}},
		{"net.Pipe", func(ctx context.Context, t *testing.T, h *a2e.Host) io.ReadWriteCloser {
			agent, host := net.Pipe()
			serveUntil(ctx, t, h, host)
			return agent
		}},
		{"os.Pipe", func(ctx context.Context, t *testing.T, h *a2e.Host) io.ReadWriteCloser {
			r1, w1, err := os.Pipe()
			require.NoError(t, err)
			r2, w2, err := os.Pipe()
			require.NoError(t, err)
			serveUntil(ctx, t, h, a2e.Join(r1, w2))
			return a2e.Join(r2, w1)
		}},
		{"tcp", func(ctx context.Context, t *testing.T, h *a2e.Host) io.ReadWriteCloser {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			require.NoError(t, err)
			listen(ctx, t, h, l)
			conn, err := net.Dial("tcp", l.Addr().String())
			require.NoError(t, err)
			return conn
		}},
		{"unix", func(ctx context.Context, t *testing.T, h *a2e.Host) io.ReadWriteCloser {
			l, err := net.Listen("unix", filepath.Join(t.TempDir(), "a2e"))
			require.NoError(t, err)
			listen(ctx, t, h, l)
			conn, err := net.Dial("unix", l.Addr().String())
			require.NoError(t, err)
			return conn
		}},
		{"tls", func(ctx context.Context, t *testing.T, h *a2e.Host) io.ReadWriteCloser {
			web := httptest.NewUnstartedServer(nil) // for its certificate
			web.StartTLS()
			t.Cleanup(web.Close)
			l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: web.TLS.Certificates})
			require.NoError(t, err)
			listen(ctx, t, h, l)
			conn, err := tls.Dial("tcp", l.Addr().String(), &tls.Config{InsecureSkipVerify: true})
			require.NoError(t, err)
			return conn
		}},
		{"http", func(ctx context.Context, t *testing.T, h *a2e.Host) io.ReadWriteCloser {
			web := webServer(ctx, t, a2etest.Must(a2e.NewHTTPHandler(h, nil)))
			conn, err := a2e.DialHTTP(t.Context(), web.URL, nil)
			require.NoError(t, err)
			return conn
		}},
		{"websocket", func(ctx context.Context, t *testing.T, h *a2e.Host) io.ReadWriteCloser {
			web := webServer(ctx, t, a2etest.Must(a2e.NewWebSocketHandler(h, nil)))
			conn, err := a2e.DialWebSocket(t.Context(), "ws"+web.URL[4:], nil)
			require.NoError(t, err)
			return conn
		}},
		{"child", func(_ context.Context, t *testing.T, _ *a2e.Host) io.ReadWriteCloser {
			exe, err := os.Executable()
			require.NoError(t, err)
			cmd := exec.Command(exe)
			cmd.Env = append(os.Environ(), "A2E_TEST_CHILD=host")
			child, err := a2e.StartCommand(cmd, nil)
			require.NoError(t, err)
			return child
		}},
	}
}

// webServer serves h until ctx ends, which cuts all connections.
func webServer(ctx context.Context, t *testing.T, h http.Handler) *httptest.Server {
	web := httptest.NewUnstartedServer(h)
	l := &cuttable{Listener: web.Listener}
	web.Listener = l
	web.Start()
	t.Cleanup(web.Close)
	stop := context.AfterFunc(ctx, l.cut)
	t.Cleanup(func() { stop() })
	return web
}

// cuttable is a listener that can cut the connections it accepted.
type cuttable struct {
	net.Listener
	mu    sync.Mutex
	conns []net.Conn
}

func (l *cuttable) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err == nil {
		l.mu.Lock()
		l.conns = append(l.conns, c)
		l.mu.Unlock()
	}
	return c, err
}

func (l *cuttable) cut() {
	_ = l.Close()
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range l.conns {
		_ = c.Close()
	}
}

func serve(t *testing.T, h *a2e.Host, rw io.ReadWriteCloser) {
	serveUntil(context.Background(), t, h, rw)
}

func serveUntil(ctx context.Context, t *testing.T, h *a2e.Host, rw io.ReadWriteCloser) {
	done := make(chan struct{})
	go func() { defer close(done); _ = h.Serve(ctx, rw) }()
	t.Cleanup(func() { <-done })
}

func listen(ctx context.Context, t *testing.T, h *a2e.Host, l net.Listener) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() { defer close(done); _ = h.ServeListener(ctx, l) }()
	t.Cleanup(func() { cancel(); <-done })
}

func echoHost() *a2e.Host {
	set := a2etest.Must(tools.NewSet(nil))
	d := new(tools.Definition)
	d.Name = "echo"
	set.Add(tools.Tool{Definition: *d, Run: func(ctx context.Context, call *a2e.Call, arguments json.RawMessage) (any, error) {
		for i := range 3 {
			if !call.Streaming() {
				break // what makes the data is not to be measured
			}
			if err := call.Emit(a2e.EventProgress, map[string]int{"pct": 50 * i}); err != nil {
				return nil, err
			}
		}
		return arguments, nil
	}})
	wait := new(tools.Definition)
	wait.Name = "wait"
	enough, end := context.WithCancel(context.Background())
	set.Add(tools.Tool{Definition: *wait, Run: func(ctx context.Context, _ *a2e.Call, _ json.RawMessage) (any, error) {
		select {
		case <-ctx.Done():
		case <-enough.Done():
		}
		return nil, ctx.Err()
	}})
	stop := new(tools.Definition)
	stop.Name = "enough"
	set.Add(tools.Tool{Definition: *stop, Run: func(context.Context, *a2e.Call, json.RawMessage) (any, error) { end(); return nil, nil }})
	flood := new(tools.Definition)
	flood.Name = "flood"
	set.Add(tools.Tool{Definition: *flood, Run: func(ctx context.Context, call *a2e.Call, _ json.RawMessage) (any, error) {
		big := map[string]string{"x": string(make([]byte, 10000))}
		for ctx.Err() == nil {
			if err := call.Emit(a2e.EventLog, big); err != nil {
				return nil, err
			}
		}
		return nil, ctx.Err()
	}})
	return a2etest.Must(a2e.NewHost(&a2e.HostOptions{Auth: a2e.Auth{Authenticator: a2etest.KeyAuthenticator("s3cret")}, Limits: a2e.Limits{MaxConcurrentPerSession: 64, QueueLimitPerSession: 1000, MaxReplayEvents: 5000}})).AddPlugin(set.Plugin())
}

// childHost is the main function of the test binary as a child: it serves its parent, and prints a
// line that is not a message.
func childHost() {
	fmt.Println("HOST READY")
	h := echoHost()
	if os.Getenv("A2E_TEST_HOST") == "load" {
		h = loadHost()
	}
	_ = h.Serve(context.Background(), a2e.Stdio())
}

func dial(t *testing.T, tr transport, h *a2e.Host, opts *a2e.ClientOptions) *a2e.Client {
	o := a2e.ClientOptions{}
	if opts != nil {
		o = *opts
	}
	o.Token, o.Capabilities, o.Types = "s3cret", []string{"tools"}, tools.Types()
	c := a2etest.Must(a2e.NewClient(tr.dial(context.Background(), t, h), &o))
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	_, err := c.Connect(t.Context())
	require.NoError(t, err)
	return c
}

func echo(ctx context.Context, c *a2e.Client, tool, n string, streaming bool) (string, int, error) {
	r := new(tools.CallRequest)
	r.ToolName, r.Arguments, r.Streaming = tool, json.RawMessage(`{"n":`+n+`}`), streaming
	if tool == "wait" {
		r.Timeout = 1 // so that closing does not wait for it long
	}
	events := 0
	resp, err := a2e.CallAs[tools.CallResponse](ctx, c, "tool/call/req", r, &a2e.CallOptions{OnEvent: func(e a2e.Event) {
		if e.Order == a2e.OrderOK && e.Header().Seq == int64(events) {
			events++
		}
	}})
	if err != nil {
		return "", events, err
	}
	return string(resp.Data.Data), events, nil
}

// Every transport carries the same conversation (A2E-003, A2E-139, A2E-140,
// A2E-D44): handshake, ping, calls with events, many at a time, and a close that
// leaves nothing behind.
func TestTransports(t *testing.T) {
	for _, tr := range transports() {
		t.Run(tr.name, func(t *testing.T) {
			t.Parallel()
			c := dial(t, tr, echoHost(), nil)
			require.True(t, c.HasCapability("tools"))
			require.NotEmpty(t, c.SessionID())
			_, pong, err := c.Ping(t.Context())
			require.NoError(t, err)
			require.GreaterOrEqual(t, pong.UptimeSeconds, 0.0)
			big := `"` + string(fill(200_000)) + `"`
			got, _, err := echo(t.Context(), c, "echo", big, false)
			require.NoError(t, err)
			require.Equal(t, `{"n":`+big+`}`, got)
			var all sync.WaitGroup
			for i := range 50 {
				all.Go(func() {
					n := strconv.Itoa(i)
					got, events, err := echo(t.Context(), c, "echo", n, i%2 == 0)
					if err != nil || got != `{"n":`+n+`}` || i%2 == 0 && events != 3 {
						t.Errorf("call %d: %q, %d events, %v", i, got, events, err)
					}
				})
			}
			all.Wait()
			require.Zero(t, c.Stats().Dropped)
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
			defer cancel()
			_, _, err = echo(ctx, c, "wait", "1", false)
			require.ErrorIs(t, err, context.DeadlineExceeded)
			_, _, err = c.Ping(t.Context())
			require.NoError(t, err, "a cancelled call leaves the session alone (A2E-D38)")
			_, _, err = echo(t.Context(), c, "enough", "1", false)
			require.NoError(t, err, "so that closing does not wait for it")
		})
	}
}

func fill(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = 'a' + byte(i%26)
	}
	return b
}
