// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package a2e_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/a2e"
	"github.com/fivewire/fivewire/a2e/a2etest"
	"github.com/fivewire/fivewire/a2e/catalogue"
	"github.com/fivewire/fivewire/a2e/env"
	"github.com/fivewire/fivewire/a2e/tools"
	"github.com/fivewire/fivewire/internal/kit"
)

// fakeHost answers each request line as answer says; "" is no answer.
func fakeHost(t *testing.T, answer func(m *a2e.Message) []string) io.ReadWriteCloser {
	agent, host := a2e.Pipe()
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer host.Close()
		in := bufio.NewScanner(host)
		codec := a2e.NewCodec(catalogue.Types()...)
		for in.Scan() {
			m, err := codec.Decode(in.Bytes())
			if err != nil || m.Type == "shutdown" {
				return
			}
			for _, line := range answer(m) {
				if _, err := io.WriteString(host, line+"\n"); err != nil {
					return
				}
			}
		}
	}()
	t.Cleanup(func() { <-done })
	return agent
}

// The dialect of the public Python SDK (P-01, P-02, P-13, P-17, P-22): no a2e
// member, ASCII escapes, clock numbers, answers without req_id, results with
// nulls, and unknown types refused as parse errors.
func TestDeployedHost(t *testing.T) {
	rw := fakeHost(t, func(m *a2e.Message) []string {
		base := func(msgType string) string {
			return `{"type": "` + msgType + `", "id": "63c352c64d2844de90a1d8af0f86ff3d", "version": "1.0", "ts": 1795226511.6664674`
		}
		req := `, "req_id": "` + m.ID + `"`
		switch m.Type {
		case "handshake/req":
			return []string{base("handshake/resp") + req + `, "session_id": "s", "accepted_caps": [{"capability": "tools", "enabled": true, "metadata": {"name": "tp"}},
				{"capability": "proc", "enabled": false, "metadata": {}}], "max_parallel": 0, "ok": true, "reason": ""}`}
		case "tool/call/req":
			return []string{base("tool/event") + req + `, "kind": "progress", "data": {"pct": 1}, "seq": 1795226511666}`,
				base("tool/call/resp") + req + `, "data": {"success": true, "tool_name": "t", "data": "\u00e9", "summary": null, "truncated": false,
				"exit_code": null, "error": null, "error_code": null, "duration_ms": 3, "events": []}, "created_at": 1.5}`}
		case "env/close/req":
			return []string{base("env/close/resp") + `, "closed": true}`}
		case "proc/status/req":
			return []string{base("proc/status/resp") + req + `, "proc_id": "p", "status": "completed", "error": ""}`}
		default:
			return []string{base("error") + req + `, "code": "parse_error", "message": "Unknown type ` + m.Type + `", "detail": {}, "retryable": false, "capability_name": ""}`}
		}
	})
	lines := strings.NewReplacer("\n", "", "\t", "")
	c := a2etest.Must(a2e.NewClient(rewriting{rw, lines}, &a2e.ClientOptions{Types: catalogue.Types()}))
	defer c.Close()
	_, err := c.Connect(t.Context())
	require.NoError(t, err)
	require.True(t, c.PeerInfo().VersionMember)
	require.True(t, c.HasCapability("tools"))
	require.False(t, c.HasCapability("proc"), "enabled:false is absent (A2E-052, A2E-059)")
	got, events, err := echo(t.Context(), c, "t", "1", true)
	require.NoError(t, err)
	require.Equal(t, `"\u00e9"`, got)
	require.Zero(t, events, "the number is the clock's")
	closed, err := a2e.CallAs[env.CloseResponse](t.Context(), c, "env/close/req", &env.CloseRequest{EpisodeID: "e"}, nil)
	require.NoError(t, err)
	require.True(t, *closed.Closed)
	require.True(t, c.Supports("env"))
	_, err = c.Call(t.Context(), "env/space/req", &env.SpaceRequest{EnvName: "x"}, nil)
	require.ErrorIs(t, err, a2e.ErrUnsupported)
	require.False(t, c.Supports("env"), "an unsupported namespace is recorded (A2E-002, A2E-D50)")
}

// rewriting lets a test write messages over several lines.
type rewriting struct {
	io.ReadWriteCloser
	r *strings.Replacer
}

func (w rewriting) Read(b []byte) (int, error) {
	n, err := w.ReadWriteCloser.Read(b)
	text := strings.ReplaceAll(string(b[:n]), "\n\t", "")
	return copy(b, text), err
}

// A retryable error is repeated for idempotent calls only (A2E-066, A2E-D30).
func TestRetry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls := 0
		var limits []a2e.Limit
		rw := fakeHost(t, func(m *a2e.Message) []string {
			if m.Type == "handshake/req" {
				return []string{message("handshake/resp", "r", `,"req_id":"`+m.ID+`"`)}
			}
			calls++
			limits = append(limits, m.Body.(*tools.CallRequest).Timeout)
			code, retryable := "timeout", "true"
			if calls == 3 {
				code, retryable = "tool_error", "false"
			}
			return []string{message("error", "e", `,"req_id":"`+m.ID+`","code":"`+code+`","retryable":`+retryable)}
		})
		c := a2etest.Must(a2e.NewClient(rw, nil))
		defer c.Close()
		_, err := c.Connect(t.Context())
		require.NoError(t, err)
		start := time.Now()
		r := new(tools.CallRequest)
		r.ToolName, r.Arguments, r.Timeout = "t", json.RawMessage(`{}`), 1
		_, err = c.Call(t.Context(), "tool/call/req", r, &a2e.CallOptions{Idempotent: true, Retry: &a2e.RetryPolicy{MaxAttempts: 5}})
		require.ErrorIs(t, err, a2e.ErrTool)
		require.Equal(t, 3, calls)
		require.Equal(t, 3*time.Second, time.Since(start), "1 and 2 seconds")
		require.Equal(t, []a2e.Limit{1, 2, 4}, limits, "a timeout raises the time")
		require.EqualValues(t, 1, r.Timeout, "the request is the caller's")
		calls = 0
		_, err = c.Call(t.Context(), "tool/call/req", r, &a2e.CallOptions{Retry: &a2e.RetryPolicy{}})
		require.ErrorIs(t, err, a2e.ErrTimeout)
		require.Equal(t, 1, calls)
	})
}

// The end of the context, and Close, end a pause between two attempts.
func TestRetryEndsEarly(t *testing.T) {
	overloaded := a2e.Errorf(a2e.ErrRuntime, "too busy")
	overloaded.Retryable = true
	why := errors.New("enough")
	for _, want := range []error{why, a2e.ErrClosed} {
		synctest.Test(t, func(t *testing.T) {
			c := a2etest.Connect(t, a2etest.NewHost(t, nil, &a2e.Plugin{Name: "demo", Capability: "demo", Routes: []a2e.Route{
				a2e.NewRoute("demo/ask/req", func(context.Context, *a2e.Call, *struct{}) (*struct{}, error) { return nil, overloaded })}}), nil)
			ctx, cancel := context.WithCancelCause(t.Context())
			time.AfterFunc(time.Second, func() {
				if want == a2e.ErrClosed {
					require.NoError(t, c.Close())
				}
				cancel(why)
			})
			start := time.Now()
			_, err := c.Call(ctx, "demo/ask/req", nil, &a2e.CallOptions{Idempotent: true, Retry: &a2e.RetryPolicy{Base: time.Hour, Max: time.Hour}})
			require.ErrorIs(t, err, want)
			require.Equal(t, time.Second, time.Since(start))
		})
	}
}

// A repetition waits as long as the host asks for, and a negative Max does not shorten the delays.
func TestRetryDelays(t *testing.T) {
	for _, tt := range []struct {
		policy a2e.RetryPolicy
		detail string
		want   time.Duration
	}{
		{a2e.RetryPolicy{MaxAttempts: 6}, `{}`, (1 + 2 + 4 + 8 + 16) * time.Second},
		{a2e.RetryPolicy{MaxAttempts: 8, Max: -1}, `{}`, 127 * time.Second},
		{a2e.RetryPolicy{MaxAttempts: 4, Base: -1}, `{}`, 0},
		{a2e.RetryPolicy{}, `{"retry_after":10}`, 20 * time.Second},
		{a2e.RetryPolicy{}, `{"retry_after":"10"}`, 3 * time.Second},
		{a2e.RetryPolicy{}, `{"retry_after":-1}`, 3 * time.Second},
		{a2e.RetryPolicy{MaxAttempts: 2}, `{"retry_after":1e9}`, 30 * time.Second},
	} {
		synctest.Test(t, func(t *testing.T) {
			c := connected(t, func(m *a2e.Message) []string {
				return []string{message("error", "e", `,"req_id":"`+m.ID+`","code":"runtime_error","retryable":true,"detail":`+tt.detail)}
			})
			start := time.Now()
			_, err := c.Call(t.Context(), "demo/ask/req", nil, &a2e.CallOptions{Idempotent: true, Retry: &tt.policy})
			require.ErrorIs(t, err, a2e.ErrRuntime)
			require.Equal(t, tt.want, time.Since(start), "%+v %s", tt.policy, tt.detail)
		})
	}
}

// Events can be taken one by one; leaving the loop ends the call; a reader that
// is too slow fails it rather than lose any.
func TestStream(t *testing.T) {
	t.Parallel() // it waits most of the time
	c := dial(t, transports()[0], echoHost(), &a2e.ClientOptions{Limits: a2e.ClientLimits{QueueLimit: 5}, Timing: a2e.ClientTiming{CloseTimeout: 50 * time.Millisecond}})
	begin := func(tool string) iter.Seq2[a2e.Event, error] {
		r := new(tools.CallRequest)
		r.ToolName, r.Arguments, r.Streaming, r.Timeout = tool, json.RawMessage(`{}`), true, 60
		return c.Stream(t.Context(), "tool/call/req", r, nil)
	}
	n := 0
	last := ""
	for ev, err := range begin("echo") {
		require.NoError(t, err)
		if n < 3 {
			require.EqualValues(t, n, ev.Header().Seq)
		}
		n++
		last = ev.Type
	}
	require.Equal(t, 4, n)
	require.Equal(t, "tool/call/resp", last)
	events := begin("echo")
	for range events {
		break
	}
	for _, err := range events {
		require.ErrorContains(t, err, "ranged over once only", "the call is not made again")
	}
	before := c.Stats().Dropped
	var failure error
	for _, err := range begin("flood") {
		require.Eventually(t, func() bool { return c.Stats().Dropped > before+10 }, time.Minute, time.Millisecond,
			"events of the call come late, so it has ended; of the one before there are fewer")
		failure = err
	}
	require.ErrorIs(t, failure, a2e.ErrSlowReader)
	for _, err := range begin("none") {
		require.ErrorIs(t, err, a2e.ErrUnknownTool)
	}
	for _, err := range c.Stream(t.Context(), "a b", nil, nil) {
		require.ErrorIs(t, err, a2e.ErrSchemaViolation)
	}
}

// A caller that takes its events keeps its call, however fast the host sends them; one that takes none loses it, and
// stops other calls for a moment only (A2E-D56).
func TestFastEvents(t *testing.T) {
	const events = 5000
	connect := func(t *testing.T) *a2e.Client {
		set := a2etest.Must(tools.NewSet(nil))
		tools.AddTool(set, "flood", "", func(_ context.Context, call *a2e.Call, _ struct{}) (any, error) {
			for range events {
				if err := call.Emit(a2e.EventProgress, map[string]int{}); err != nil {
					return nil, err
				}
			}
			return nil, nil
		}, nil)
		return a2etest.Connect(t, a2etest.NewHost(t, nil, set.Plugin()), nil)
	}
	flood := func(t *testing.T, c *a2e.Client, onEvent func(a2e.Event)) error {
		_, err := c.Call(t.Context(), "tool/call/req", &tools.CallRequest{ToolName: "flood", Streaming: true},
			&a2e.CallOptions{OnEvent: onEvent})
		return err
	}
	t.Run("taken", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			n := 0
			require.NoError(t, flood(t, connect(t), func(ev a2e.Event) {
				require.EqualValues(t, n, ev.Header().Seq)
				n++
				time.Sleep(10 * time.Microsecond) // the reader is faster
			}))
			require.Equal(t, events, n)
		})
	})
	t.Run("not taken", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			c, start := connect(t), time.Now()
			require.ErrorIs(t, flood(t, c, func(a2e.Event) {
				if time.Since(start) == 0 {
					time.Sleep(time.Nanosecond) // until the reader has no space
					_, _, err := c.Ping(t.Context())
					require.NoError(t, err)
					require.Equal(t, 100*time.Millisecond, time.Since(start))
				}
			}), a2e.ErrSlowReader)
		})
	})
}

// A call of a type that gets no answer fails at once, at both ends.
func TestCallsNeedTypesOfRequests(t *testing.T) {
	refuses := func(err error) {
		var e *a2e.Error
		require.ErrorAs(t, err, &e)
		require.ErrorIs(t, e, a2e.ErrSchemaViolation)
		require.False(t, e.Remote)
	}
	h := a2etest.NewHost(t, nil, &a2e.Plugin{Name: "demo", Capability: "demo", Types: tools.Types(), Routes: []a2e.Route{
		a2e.NewRoute("demo/ask/req", func(ctx context.Context, call *a2e.Call, _ *struct{}) (*struct{}, error) {
			_, err := call.Session.Call(ctx, "tool/call/resp", nil)
			refuses(err)
			return nil, nil
		})}})
	c := a2etest.Connect(t, h, nil)
	for _, msgType := range []string{"tool/call/resp", "handshake/resp", "pong", "error"} {
		_, err := c.Call(t.Context(), msgType, nil, nil)
		refuses(err)
	}
	_, err := c.Call(t.Context(), "demo/ask/req", nil, nil)
	require.NoError(t, err)
}

// A host that exits fails the waiting calls, and the client stays closed (A2E-049).
func TestHostDies(t *testing.T) {
	agent, host := a2e.Pipe()
	h := echoHost()
	ctx, kill := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- h.Serve(ctx, host) }()
	c := a2etest.Must(a2e.NewClient(agent, &a2e.ClientOptions{Token: "s3cret", Capabilities: []string{"tools"}, Types: tools.Types()}))
	_, _, err := c.Ping(t.Context())
	require.ErrorIs(t, err, a2e.ErrNotConnected)
	require.ErrorIs(t, c.Send(t.Context(), "x/y", nil), a2e.ErrNotConnected)
	_, err = c.Connect(t.Context())
	require.NoError(t, err)
	failed := make(chan error, 2)
	for range 2 {
		go func() {
			_, _, err := echo(t.Context(), c, "wait", "1", false)
			failed <- err
		}()
	}
	time.Sleep(20 * time.Millisecond)
	kill()
	for range 2 {
		err := <-failed // answered at the last moment, or cut off
		require.True(t, errors.Is(err, a2e.ErrClosed) || errors.Is(err, a2e.ErrTimeout), "%v", err)
	}
	<-c.Done()
	require.ErrorIs(t, <-done, context.Canceled)
	_, _, err = c.Ping(t.Context())
	require.ErrorIs(t, err, a2e.ErrClosed)
	require.ErrorIs(t, c.Send(t.Context(), "x/y", nil), a2e.ErrClosed)
	require.NoError(t, c.Close())
	unused := a2etest.Must(a2e.NewClient(agent, nil))
	require.NoError(t, unused.Close())
}

// Shutdown waits for the client's own calls first (P-27).
func TestClientShutdown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := a2etest.NewHost(t, nil)
		h.AddPlugin(&a2e.Plugin{Name: "demo", Capability: "demo", Routes: []a2e.Route{
			a2e.NewRoute("demo/slow/req", func(context.Context, *a2e.Call, *struct{}) (*struct{}, error) {
				time.Sleep(20 * time.Second)
				return nil, nil
			})}})
		c := a2etest.Connect(t, h, nil)
		got := make(chan error, 1)
		go func() { _, err := c.Call(t.Context(), "demo/slow/req", &struct{}{}, nil); got <- err }()
		synctest.Wait()
		require.NoError(t, c.Shutdown(t.Context()))
		require.NoError(t, <-got)
		c = a2etest.Connect(t, h, nil)
		go func() { _, err := c.Call(t.Context(), "demo/slow/req", &struct{}{}, nil); got <- err }()
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		require.ErrorIs(t, c.Shutdown(ctx), context.DeadlineExceeded)
		require.ErrorIs(t, <-got, a2e.ErrClosed)
		time.Sleep(time.Minute)
	})
}

// Lines of a child that are not messages are skipped and logged (A2E-D43).
func TestNoise(t *testing.T) {
	var log bytes.Buffer
	rw := fakeHost(t, func(m *a2e.Message) []string {
		return []string{"Traceback: \xff", "line: " + message("handshake/resp", "r", `,"req_id":"`+m.ID+`"`), "line: goodbye"}
	})
	c := a2etest.Must(a2e.NewClient(rw, &a2e.ClientOptions{SkipNonJSON: true, StripPrefix: "line: ", Logger: slog.New(slog.NewTextHandler(&log, nil))}))
	_, err := c.Connect(t.Context())
	require.NoError(t, err)
	require.NoError(t, c.Close())
	require.Contains(t, log.String(), "Traceback")
}

// A panic of the transport of the user is the error of its connection.
func TestPanicOfTransportEndsConnection(t *testing.T) {
	conn, err := a2e.DialHTTP(t.Context(), "http://localhost", &a2e.HTTPDialOptions{HTTPClient: &http.Client{
		Transport: roundTrip(func(*http.Request) (*http.Response, error) { panic("broken transport") })}})
	require.NoError(t, err)
	c := a2etest.Must(a2e.NewClient(conn, nil))
	_, err = c.Connect(t.Context())
	require.ErrorContains(t, err, "HTTP client panicked: broken transport")
	require.NoError(t, c.Close())
}

// A panickingStream panics in one of its methods.
type panickingStream struct {
	io.ReadWriteCloser
	in string
}

func (p panickingStream) Read(b []byte) (int, error) {
	if p.in == "Read" {
		panic("a broken stream")
	}
	return p.ReadWriteCloser.Read(b)
}

func (p panickingStream) Write(b []byte) (int, error) {
	if p.in == "Write" {
		panic("a broken stream")
	}
	return p.ReadWriteCloser.Write(b)
}

func (p panickingStream) Close() error {
	_ = p.ReadWriteCloser.Close()
	if p.in == "Close" {
		panic("a broken stream")
	}
	return nil
}

// A panic of the stream of the user, on one side or on the other, is the end of its connection.
func TestPanicOfStreamEndsConnection(t *testing.T) {
	for _, in := range []string{"Read", "Write", "Close"} {
		for _, isHost := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				h := a2etest.NewHost(t, nil)
				hostEnd, clientEnd := net.Pipe()
				ends := [2]io.ReadWriteCloser{hostEnd, panickingStream{clientEnd, in}}
				if isHost {
					ends = [2]io.ReadWriteCloser{panickingStream{hostEnd, in}, clientEnd}
				}
				served := make(chan error, 1)
				go func() { served <- h.Serve(t.Context(), ends[0]) }()
				c := a2etest.Must(a2e.NewClient(ends[1], nil))
				_, err := c.Connect(t.Context())
				require.Equal(t, in == "Close", err == nil, "%s %v", in, err)
				require.NoError(t, c.Close())
				<-served
			})
		}
	}
}

// The stream of an HTTP session breaks and comes back without loss (A2E-137,
// A2E-138, A2E-D13, A2E-D42).
func TestHTTPReconnect(t *testing.T) {
	t.Parallel() // it waits most of the time
	if testing.Short() {
		t.Skip("waits for a reconnect")
	}
	inner := a2etest.Must(a2e.NewHTTPHandler(echoHost(), &a2e.HTTPHandlerOptions{Heartbeat: time.Second}))
	var streams, posts atomic.Int64
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/stream":
			if streams.Add(1) == 1 { // the first one breaks after a moment
				ctx, cancel := context.WithTimeout(r.Context(), 100*time.Millisecond)
				defer cancel()
				r = r.WithContext(ctx)
			}
		case "/send":
			if posts.Add(1) == 3 { // one is taken, but its answer is lost
				inner.ServeHTTP(httptest.NewRecorder(), r)
				w.WriteHeader(http.StatusBadGateway)
				return
			}
		}
		inner.ServeHTTP(w, r)
	}))
	t.Cleanup(web.Close)
	tr := transport{name: "http", dial: func(_ context.Context, t *testing.T, _ *a2e.Host) io.ReadWriteCloser {
		conn, err := a2e.DialHTTP(t.Context(), web.URL, nil)
		require.NoError(t, err)
		return conn
	}}
	c := dial(t, tr, nil, nil)
	time.Sleep(150 * time.Millisecond)
	for i := range 5 {
		n := string(rune('0' + i))
		got, events, err := echo(t.Context(), c, "echo", n, true)
		require.NoError(t, err)
		require.Equal(t, `{"n":`+n+`}`, got)
		require.Equal(t, 3, events)
	}
	require.GreaterOrEqual(t, streams.Load(), int64(2))
	require.LessOrEqual(t, c.Stats().Dropped, uint64(1), "the repeated post may be told that it was answered already")
}

func TestDialHTTPRefuses(t *testing.T) {
	for _, url := range []string{"ftp://x", "://", "http://example.com", "http://"} {
		_, err := a2e.DialHTTP(t.Context(), url, nil)
		require.Error(t, err, "%s (A2E-154)", url)
	}
	for _, answer := range []string{`{}`, `{"session_id":""}`, `{"session_id":"a\u0007b"}`, `no`, `{"session_id":7}`} {
		web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, answer) }))
		c := a2etest.Must(a2e.NewClient(a2etest.Must(a2e.DialHTTP(t.Context(), web.URL, nil)), nil))
		_, err := c.Connect(t.Context())
		require.ErrorContains(t, err, "open session", answer)
		require.NoError(t, c.Close())
		web.Close()
	}
}

// Pages of other origins and rebound names stay out; sessions are counted and
// dropped (A2E-D41, A2E-134, A2E-135).
func TestHTTPServer(t *testing.T) {
	h := a2etest.NewHost(t, &a2e.HostOptions{Limits: a2e.Limits{MaxItems: 1, MaxMessage: 1000}})
	web := httptest.NewServer(a2etest.Must(a2e.NewHTTPHandler(h, &a2e.HTTPHandlerOptions{AllowedOrigins: []string{"https://app.example"}})))
	defer web.Close()
	do := func(method, path, body string, change func(*http.Request)) (int, string) {
		r, err := http.NewRequest(method, web.URL+path, strings.NewReader(body))
		require.NoError(t, err)
		if change != nil {
			change(r)
		}
		resp, err := http.DefaultClient.Do(r)
		require.NoError(t, err)
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		return resp.StatusCode, string(text)
	}
	for origin, want := range map[string]int{"": 200, web.URL: 200, "https://app.example": 200, "https://evil.example": 403, "null": 403} {
		status, _ := do("GET", "/health", "", func(r *http.Request) {
			if origin != "" {
				r.Header.Set("Origin", origin)
			}
		})
		require.Equal(t, want, status, origin)
	}
	for host, want := range map[string]int{"localhost": 200, "localhost:1": 200, "[::1]:80": 200, "127.9.9.9": 200, "evil.example": 403, "evil.example:80": 403} {
		status, _ := do("GET", "/health", "", func(r *http.Request) { r.Host = host })
		require.Equal(t, want, status, host)
	}
	status, body := do("POST", "/session", "", nil)
	require.Equal(t, 200, status)
	var session struct {
		ID string `json:"session_id"`
	}
	require.NoError(t, json.Unmarshal([]byte(body), &session))
	with := func(r *http.Request) { r.Header.Set("X-Session-Id", session.ID) }
	status, _ = do("POST", "/send", message("handshake/req", "h", `,"agent_id":"t"`), with)
	require.Equal(t, 200, status)
	status, _ = do("POST", "/session", "", nil)
	require.Equal(t, 503, status)
	status, body = do("POST", "/send", strings.Repeat("x", 1002), with)
	require.Equal(t, 413, status)
	require.JSONEq(t, `{"detail":"Message too large"}`, body)
	status, _ = do("POST", "/send", strings.Repeat("x", 1000), with)
	require.Equal(t, 200, status)
	for method, path := range map[string]string{"PUT": "/session", "DELETE": "/send", "POST": "/stream", "HEAD": "/health"} {
		status, _ = do(method, path, "", nil)
		require.Equal(t, 405, status)
	}
	status, _ = do("DELETE", "/session", "", with)
	require.Equal(t, 200, status)
	status, _ = do("POST", "/send", "{}", with)
	require.Equal(t, 404, status)
	require.Empty(t, h.Sessions())
	require.NoError(t, h.Close())
	status, _ = do("POST", "/session", "", nil)
	require.Equal(t, 503, status)
}

// A session that is not used, or not read, ends (A2E-D40, A2E-D42).
func TestHTTPSessionEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := a2etest.NewHost(t, &a2e.HostOptions{Timing: a2e.Timing{SessionIdleTimeout: time.Minute, HandshakeTimeout: -1}, Limits: a2e.Limits{MaxReplayEvents: 2, QueueLimitPerSession: 1}})
		handler := a2etest.Must(a2e.NewHTTPHandler(h, nil))
		do := func(method, path, secret, body string) (int, string) {
			r := httptest.NewRequest(method, path, strings.NewReader(body))
			if secret != "" {
				r.Header.Set("X-Session-Id", secret)
			}
			w := httptest.NewRecorder()
			handler.ServeHTTP(w, r)
			synctest.Wait()
			return w.Code, w.Body.String()
		}
		open := func() string {
			_, body := do("POST", "/session", "", "")
			return body[len(`{"session_id":"`) : len(body)-2]
		}
		idle := open()
		time.Sleep(59 * time.Second)
		status, _ := do("POST", "/send", idle, "")
		require.Equal(t, 200, status)
		time.Sleep(59 * time.Second)
		status, _ = do("POST", "/send", idle, "")
		require.Equal(t, 200, status, "using it keeps it")
		time.Sleep(61 * time.Second)
		status, _ = do("POST", "/send", idle, "")
		require.Equal(t, 404, status)
		unread := open()
		for i := range 4 {
			status, _ = do("POST", "/send", unread, message("ping", string(rune('a'+i)), ""))
			require.Equal(t, 200, status)
		}
		status, _ = do("POST", "/send", unread, "")
		require.Equal(t, 404, status, "closed rather than anything dropped silently")
		status, body := do("GET", "/stream", unread, "")
		require.Equal(t, 200, status)
		require.Equal(t, 3, strings.Count(body, "data: "), "what was there can still be read")
		status, _ = do("GET", "/stream", unread, "")
		require.Equal(t, 404, status)
		require.NoError(t, h.Close())
	})
}

// The error of a call lists the events before it (A2E-067).
func TestEventsOfError(t *testing.T) {
	set := a2etest.Must(tools.NewSet(nil))
	tools.AddTool(set, "try", "", func(_ context.Context, call *a2e.Call, _ struct{}) (any, error) {
		for range 3 {
			if err := call.Emit(a2e.EventLog, map[string]string{"message": "trying"}); err != nil {
				return nil, err
			}
		}
		return nil, errors.New("failed on purpose")
	}, nil)
	c := a2etest.Connect(t, a2etest.NewHost(t, nil).AddPlugin(set.Plugin()), nil)
	_, _, err := echo(t.Context(), c, "try", "1", true)
	var e *a2e.Error
	require.ErrorAs(t, err, &e)
	require.Len(t, e.Events, 3)
	require.EqualValues(t, 2, e.Events[2].Header().Seq)
}

// connected returns a connected client and a host that answers requests with the lines of answer
// only.
func connected(t *testing.T, answer func(m *a2e.Message) []string) *a2e.Client {
	c := a2etest.Must(a2e.NewClient(fakeHost(t, func(m *a2e.Message) []string {
		if m.Type == "handshake/req" {
			return []string{message("handshake/resp", "h", `,"req_id":"`+m.ID+`","session_id":"s","max_parallel":4,"ok":true`)}
		}
		return answer(m)
	}), &a2e.ClientOptions{Types: catalogue.Types()}))
	t.Cleanup(func() { _ = c.Close() })
	_, err := c.Connect(t.Context())
	require.NoError(t, err)
	return c
}

// A call whose context has ended sends nothing: the host might act on it.
func TestNothingIsSentInVain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var received atomic.Int32
		c := connected(t, func(*a2e.Message) []string { received.Add(1); return nil })
		endedCtx, cancel := context.WithCancelCause(t.Context())
		why := errors.New("why")
		cancel(why)
		_, err := c.Call(endedCtx, "tool/list/req", &tools.ListRequest{}, nil)
		require.ErrorIs(t, err, why)
		for _, err := range c.Stream(endedCtx, "tool/list/req", &tools.ListRequest{}, nil) {
			require.ErrorIs(t, err, why)
		}
		require.ErrorIs(t, c.Send(endedCtx, "demo/note/event", nil), why)
		synctest.Wait()
		require.Zero(t, received.Load())
	})
}

// Send blocks while the host does not read, so that the queue stays bounded.
func TestSendWaitsForTheHost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		block := make(chan struct{})
		c := connected(t, func(*a2e.Message) []string { <-block; return nil })
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		text, err := json.Marshal(strings.Repeat("x", 60_000))
		require.NoError(t, err)
		var members a2e.Members
		require.NoError(t, members.Set("text", json.RawMessage(text)))
		sent := 0
		for ; err == nil; sent++ {
			err = c.Send(ctx, "demo/note/event", members)
		}
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Less(t, sent*60_000, 4<<20)
		close(block)
	})
}

// A second handshake that fails leaves the session and its calls as they are (A2E-D24).
func TestSecondHandshakeFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		shaken := false
		c := a2etest.Must(a2e.NewClient(fakeHost(t, func(m *a2e.Message) []string {
			if m.Type == "handshake/req" && shaken {
				return nil
			}
			if m.Type == "handshake/req" {
				shaken = true
				return []string{message("handshake/resp", "h", `,"req_id":"`+m.ID+`","max_parallel":4`)}
			}
			return []string{message("tool/list/resp", "a", `,"req_id":"`+m.ID+`"`)}
		}), &a2e.ClientOptions{Types: catalogue.Types()}))
		defer c.Close()
		_, err := c.Connect(t.Context())
		require.NoError(t, err)
		_, err = c.Connect(t.Context())
		require.ErrorIs(t, err, context.DeadlineExceeded)
		_, err = c.Call(t.Context(), "tool/list/req", &tools.ListRequest{}, nil)
		require.NoError(t, err)
	})
}

// An invalid error fails the call that it names, and is not answered (A2E-D37).
func TestInvalidErrorFailsItsCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		answered := false
		c := connected(t, func(m *a2e.Message) []string {
			if m.Type == "error" {
				answered = true
				return nil
			}
			return []string{message("error", "e", `,"req_id":"`+m.ID+`"`)} // without code
		})
		start := time.Now()
		_, err := c.Call(t.Context(), "tool/list/req", &tools.ListRequest{}, nil)
		require.ErrorIs(t, err, a2e.ErrInvalidResponse)
		require.ErrorIs(t, err, a2e.ErrSchemaViolation)
		require.Zero(t, time.Since(start))
		require.EqualValues(t, 1, c.Stats().Dropped)
		synctest.Wait()
		require.False(t, answered)
	})
}

// A message of the host that is too large for the connection fails its call at once, and the session continues. A host
// that knows the limit does not send it (A2E-D06, A2E-D57).
func TestTooLargeOverNetworks(t *testing.T) {
	t.Parallel()
	h := echoHost()
	defer h.Close()
	web := httptest.NewServer(a2etest.Must(a2e.NewHTTPHandler(h, nil)))
	defer web.Close()
	sockets := httptest.NewServer(a2etest.Must(a2e.NewWebSocketHandler(h, nil)))
	defer sockets.Close()
	for name, dial := range map[string]func() (io.ReadWriteCloser, error){
		"http": func() (io.ReadWriteCloser, error) {
			return a2e.DialHTTP(t.Context(), web.URL, &a2e.HTTPDialOptions{MaxMessage: 10_000})
		},
		"websocket": func() (io.ReadWriteCloser, error) {
			return a2e.DialWebSocket(t.Context(), sockets.URL, &a2e.WebSocketDialOptions{MaxMessage: 10_000})
		},
	} {
		for _, extensions := range [][]string{nil, {}} {
			t.Run(fmt.Sprint(name, extensions == nil), func(t *testing.T) {
				conn, err := dial()
				require.NoError(t, err)
				c := a2etest.Must(a2e.NewClient(conn, &a2e.ClientOptions{Token: "s3cret", Capabilities: []string{"tools"}, Types: tools.Types(),
					Extensions: extensions, Timing: a2e.ClientTiming{CloseTimeout: 50 * time.Millisecond}}))
				defer c.Close()
				_, err = c.Connect(t.Context())
				require.NoError(t, err)
				for _, size := range []int{20_000, 70_000} {
					_, _, err = echo(t.Context(), c, "echo", `"`+strings.Repeat("x", size)+`"`, false)
					var e *a2e.Error
					require.ErrorAs(t, err, &e)
					require.Equal(t, a2e.ReasonTooLarge, e.Reason)
					require.JSONEq(t, `10000`, string(a2etest.Must(a2e.ParseMembers(e.Details)).Get("limit")))
					require.Equal(t, extensions == nil, e.Remote, "a host that knows the limit")
					require.Equal(t, extensions != nil, errors.Is(err, a2e.ErrInvalidResponse))
					got, _, err := echo(t.Context(), c, "echo", "7", false)
					require.NoError(t, err)
					require.JSONEq(t, `{"n":7}`, got)
				}
			})
		}
	}
}

// A host that numbers its messages gets the next request without a delay after a message that is too large.
func TestMessagesAfterTooLargeOnes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const messages = 40 // every second one is too large
		host := roundTrip(func(r *http.Request) (*http.Response, error) {
			if r.Method != http.MethodGet {
				return &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"application/json"}},
					Body: io.NopCloser(strings.NewReader(`{"session_id":"s","taken":true}`))}, nil
			}
			var text strings.Builder
			last, _ := strconv.Atoi(r.Header.Get("Last-Event-ID"))
			for i := last + 1; i <= messages; i++ {
				fmt.Fprintf(&text, "id: %d\ndata: %s\n\n", i, strings.Repeat("x", 10+i%2*5000))
			}
			return &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"text/event-stream"}},
				Body: io.NopCloser(strings.NewReader(text.String()))}, nil
		})
		conn, err := a2e.DialHTTP(t.Context(), "http://localhost", &a2e.HTTPDialOptions{
			HTTPClient: &http.Client{Transport: host}, MaxMessage: 1000, Logger: slog.New(slog.DiscardHandler)})
		require.NoError(t, err)
		_, err = io.WriteString(conn, "{}\n")
		require.NoError(t, err)
		start := time.Now()
		in := bufio.NewReader(conn)
		for i := range messages {
			line, err := in.ReadString('\n')
			require.NoError(t, err)
			if i%2 == 0 {
				require.Greater(t, len(line), 4096, "the beginning names the request")
			} else {
				require.Len(t, line, 11)
			}
		}
		require.Less(t, time.Since(start), 2*time.Second, "only the first stream had no message before")
		require.NoError(t, conn.Close())
	})
}

// A scriptedHost is an HTTP host of one session, which answers its handshake by the first stream that it accepts.
type scriptedHost struct {
	stream        func(n int) (status int) // of the nth stream; 0 to answer nothing
	send          func(n int) (status int) // of the nth message, with a long Retry-After; nil for 200
	streams, sent int
	handshake     struct{ ID string }
}

func (h *scriptedHost) RoundTrip(r *http.Request) (*http.Response, error) {
	resp := &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"application/json"}}}
	body := `{"session_id":"s","taken":true}`
	switch {
	case r.Method == http.MethodGet:
		h.streams++
		if resp.StatusCode = h.stream(h.streams); resp.StatusCode == 0 {
			<-r.Context().Done()
			return nil, r.Context().Err()
		}
		resp.Header.Set("Content-Type", "text/event-stream")
		body = "data: " + message("handshake/resp", "h", `,"ok":true,"features":["resume"],"req_id":"`+h.handshake.ID+`"`) + "\n\n"
	case r.URL.Path == "/send" && h.send != nil:
		h.sent++
		resp.StatusCode = h.send(h.sent)
		resp.Header.Set("Retry-After", "3600")
	case r.URL.Path == "/session" && r.Body != nil:
		if err := json.NewDecoder(r.Body).Decode(&h.handshake); err != nil {
			return nil, err
		}
	}
	resp.Body = io.NopCloser(strings.NewReader(body))
	return resp, nil
}

func (h *scriptedHost) dial(t *testing.T) *a2e.Client {
	conn, err := a2e.DialHTTP(t.Context(), "http://localhost", &a2e.HTTPDialOptions{
		HTTPClient: &http.Client{Transport: h}, Logger: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	return a2etest.Must(a2e.NewClient(conn, nil))
}

// A session that only receives ends with a stream that the host, or a proxy of it, refuses permanently
// (A2E-D60). A status that a deployment explains is tried again once a stream was open.
func TestRefusedStreamEndsSession(t *testing.T) {
	statuses := []struct {
		status         int
		isEnd, isFirst bool
	}{{401, true, false}, {403, true, false}, {404, true, false}, {410, true, false}, {405, false, false}, {503, false, false},
		{401, true, true}, {405, true, true}, {503, false, true}}
	for _, s := range statuses {
		synctest.Test(t, func(t *testing.T) {
			host := &scriptedHost{stream: func(n int) int {
				if isRefused := n == 1 == s.isFirst; isRefused {
					return s.status
				}
				return http.StatusOK
			}}
			c := host.dial(t)
			_, err := c.Connect(t.Context())
			if !s.isFirst {
				require.NoError(t, err)
				time.Sleep(10 * time.Minute)
				_, _, err = c.Ping(t.Context())
			}
			if s.isEnd {
				require.Equal(t, a2e.CloseError{Kind: "http", Code: s.status, Text: "http://localhost"}, causeOf(t, err))
				require.Less(t, host.streams, 3)
			} else {
				require.NotErrorIs(t, err, a2e.ErrClosed, s.status)
			}
			require.NoError(t, c.Close())
		})
	}
}

// firstStream accepts the first stream only.
func firstStream(n int) (status int) {
	if n > 1 {
		return 0
	}
	return http.StatusOK
}

// A host that is away for longer than the client waits gets the message again with pauses, until the client gives up
// (A2E-D67).
func TestLongRetryAfter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		host := &scriptedHost{stream: firstStream}
		c := host.dial(t)
		_, err := c.Connect(t.Context())
		require.NoError(t, err)
		host.send = func(n int) int {
			if n > 1000 { // so that the time of the test passes
				time.Sleep(10 * time.Second)
			}
			return http.StatusServiceUnavailable
		}
		start := time.Now()
		require.NoError(t, c.Send(t.Context(), "demo/event", nil))
		<-c.Done()
		require.Equal(t, a2e.CloseError{Kind: "http", Code: 503, Text: "http://localhost"}, causeOf(t, c.Send(t.Context(), "demo/event", nil)))
		require.GreaterOrEqual(t, time.Since(start), time.Minute, "ResumeTimeout")
		synctest.Wait()
		require.Less(t, host.sent, 30)
		require.NoError(t, c.Close())
		time.Sleep(time.Minute) // a request is in progress
	})
}

// The messages that wait together for a slow network are not one slow write.
func TestManyMessagesOverSlowNetwork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		host := &scriptedHost{stream: firstStream}
		c := host.dial(t)
		_, err := c.Connect(t.Context())
		require.NoError(t, err)
		host.send = func(int) int {
			time.Sleep(time.Second)
			return http.StatusOK
		}
		const messages = 100
		for range messages {
			require.NoError(t, c.Send(t.Context(), "demo/event", nil))
		}
		time.Sleep(messages * 2 * time.Second)
		synctest.Wait()
		require.Equal(t, messages, host.sent)
		require.NoError(t, c.Close())
		time.Sleep(time.Minute) // a request is in progress
	})
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// A lostStream delivers the first read of a body and loses the rest, as after the loss of a connection without a sign.
type lostStream struct {
	io.ReadCloser
	ctx   context.Context
	reads int
}

func (b *lostStream) Read(p []byte) (int, error) {
	if b.reads++; b.reads > 1 {
		go func() { _, _ = io.Copy(io.Discard, b.ReadCloser) }() // into the buffers of the network
		<-b.ctx.Done()
		return 0, b.ctx.Err()
	}
	return b.ReadCloser.Read(p)
}

// connectLosing connects over HTTP to a host, and loses the first stream after the answer to the handshake.
func connectLosing(t *testing.T, h *a2e.Host, extensions []string) *a2e.Client {
	srv := kit.Serve(t, "a2e", a2etest.Must(a2e.NewHTTPHandler(h, nil)))
	isLost := false
	srv.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTrip(func(r *http.Request) (*http.Response, error) {
			resp, err := next.RoundTrip(r)
			if err == nil && r.Method == http.MethodGet && !isLost {
				isLost = true
				resp.Body = &lostStream{ReadCloser: resp.Body, ctx: r.Context()}
			}
			return resp, err
		})
	})
	conn, err := a2e.DialHTTP(t.Context(), "http://localhost?key=s3cret", &a2e.HTTPDialOptions{HTTPClient: srv.Client})
	require.NoError(t, err)
	c, err := a2e.NewClient(conn, &a2e.ClientOptions{Capabilities: []string{"tools"}, Extensions: extensions})
	require.NoError(t, err)
	_, err = c.Connect(t.Context())
	require.NoError(t, err)
	return c
}

// A client opens a stream again that is lost without a sign, and gets the answers of the meantime.
func TestStreamLostWithoutASignIsOpenedAgain(t *testing.T) {
	for _, extensions := range [][]string{nil, {}} {
		synctest.Test(t, func(t *testing.T) {
			set := a2etest.Must(tools.NewSet(nil))
			tools.AddTool(set, "greet", "", func(context.Context, *a2e.Call, struct{}) (string, error) { return "hello", nil }, nil)
			h := a2etest.NewHost(t, nil, set.Plugin())
			c := connectLosing(t, h, extensions)
			defer c.Close()
			got, err := tools.CallAs[string](t.Context(), c, "greet", nil, &a2e.CallOptions{Timeout: time.Minute})
			require.NoError(t, err)
			require.Equal(t, "hello", got)
		})
	}
}

// A client whose host has dropped the messages of a lost stream ends the session: calls fail, instead of waiting for an
// answer that is lost.
func TestLostMessagesEndTheSession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := a2etest.NewHost(t, &a2e.HostOptions{Limits: a2e.Limits{MaxReplayEvents: 10}}, a2etest.Must(tools.NewSet(nil)).Plugin())
		c := connectLosing(t, h, nil)
		defer c.Close()
		events := 0
		c.OnMessage(func(*a2e.Message) { events++ })
		for range 20 {
			require.NoError(t, h.Sessions()[0].Send(t.Context(), "demo/event", nil))
		}
		_, err := c.Call(t.Context(), "tool/list/req", nil, &a2e.CallOptions{Timeout: time.Minute})
		require.EqualError(t, err, "a2e: session closed: http: http://localhost: stream continues at message 13 after message 1")
		require.Equal(t, "http", causeOf(t, err).Kind)
		require.Zero(t, events)
	})
}

// A host that sends a message that is too large on every stream gets requests at the rate of the backoff.
func TestTooLargeMessageOnEveryStream(t *testing.T) {
	for id, tooMany := range map[string]int{"": 100, "id: 7\n": 100, "id: x\n": 100, "id: 6\ndata: {}\n\nid: 7\n": 300} {
		synctest.Test(t, func(t *testing.T) {
			streams := 0
			host := roundTrip(func(r *http.Request) (*http.Response, error) {
				body := `{"session_id":"s","taken":true}`
				h := http.Header{"Content-Type": {"application/json"}}
				if r.Method == http.MethodGet {
					h.Set("Content-Type", "text/event-stream")
					body = id + "data: " + strings.Repeat("x", 5000) + "\n\n"
					if streams++; streams == tooMany {
						<-r.Context().Done() // so that the time of the test passes
						return nil, r.Context().Err()
					}
				}
				return &http.Response{StatusCode: http.StatusOK, Header: h, Body: io.NopCloser(strings.NewReader(body))}, nil
			})
			conn, err := a2e.DialHTTP(t.Context(), "http://localhost", &a2e.HTTPDialOptions{
				HTTPClient: &http.Client{Transport: host}, MaxMessage: 1000, Logger: slog.New(slog.DiscardHandler)})
			require.NoError(t, err)
			_, err = io.WriteString(conn, "{}\n")
			require.NoError(t, err)
			go func() { _, _ = io.Copy(io.Discard, conn) }()
			time.Sleep(time.Minute)
			require.NoError(t, conn.Close())
			require.Greater(t, streams, 2)
			require.Less(t, streams, tooMany, id)
		})
	}
}

// A web page whose name resolves to this machine gets no WebSocket; other clients and allowed pages
// do.
func TestWebSocketHandlerRefusesRebinding(t *testing.T) {
	dial := func(origin string, opts *a2e.WebSocketOptions) error {
		h := a2etest.NewHost(t, nil)
		web := httptest.NewServer(a2etest.Must(a2e.NewWebSocketHandler(h, opts)))
		defer web.Close()
		header := http.Header{}
		if origin != "" {
			header.Set("Origin", origin)
		}
		to := &http.Transport{DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, network, web.Listener.Addr().String())
		}}
		conn, err := a2e.DialWebSocket(t.Context(), "ws://evil.example", &a2e.WebSocketDialOptions{
			HTTPClient: &http.Client{Transport: to}, Header: header, AllowInsecure: true})
		if err == nil {
			require.NoError(t, conn.Close())
		}
		require.NoError(t, h.Close())
		return err
	}
	require.ErrorContains(t, dial("http://evil.example", nil), "403")
	require.NoError(t, dial("", nil))
	require.NoError(t, dial("http://evil.example", &a2e.WebSocketOptions{AllowedOrigins: []string{"http://evil.example"}}))
	require.NoError(t, dial("http://evil.example", &a2e.WebSocketOptions{AllowedHosts: []string{"evil.example"}}))
}

// Calls that end together with a failed one, as in a group, do not change its error, nor what is known of the host.
func TestCauseOfEndedContextIsUnchanged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := connected(t, func(m *a2e.Message) []string {
			if m.Type != "gadget/use/req" {
				return []string{message("tool/event", "e", `,"kind":"log","req_id":"`+m.ID+`","seq":0`)}
			}
			return []string{message("error", "e", `,"req_id":"`+m.ID+`","code":"invalid_message","message":"m","detail":{"reason":"unknown_type"}`)}
		})
		_, failure := c.Call(t.Context(), "gadget/use/req", nil, nil)
		var e *a2e.Error
		require.ErrorAs(t, failure, &e)
		require.Empty(t, e.Events)
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(time.Second, func() { cancel(failure) })
		_, err := c.Call(ctx, "tool/call/req", &tools.CallRequest{ToolName: "t", Streaming: true}, nil)
		require.Equal(t, failure, err)
		require.Empty(t, e.Events, "those of another call")
		require.True(t, c.Supports("tool"))
		require.False(t, c.Supports("gadget"))
	})
}

// A stream that ends inside a message is truncated, for the calls of a client and for Serve of a host.
func TestStreamEndsInsideMessage(t *testing.T) {
	peer, rw := net.Pipe()
	go func() {
		_, _ = bufio.NewReader(peer).ReadString('\n')
		_, _ = io.WriteString(peer, `{"a2e":"1.0","type":"handshake/resp","id":"`)
		_ = peer.Close()
	}()
	c := a2etest.Must(a2e.NewClient(rw, nil))
	_, err := c.Connect(t.Context())
	require.ErrorIs(t, err, a2e.ErrTruncated)
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)
	require.NoError(t, c.Close())

	agent, rw := net.Pipe()
	go func() {
		_, _ = io.WriteString(agent, `{"a2e":"1.0","type":`)
		_ = agent.Close()
	}()
	require.ErrorIs(t, a2etest.NewHost(t, nil).Serve(t.Context(), rw), a2e.ErrTruncated)

	_, err = new(a2e.Codec).Decode([]byte(`{"a2e":"1.0","type":"`))
	require.NotErrorIs(t, err, a2e.ErrTruncated, "a whole line")
}
