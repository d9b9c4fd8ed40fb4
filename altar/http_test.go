// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package altar

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/altar/internal/transport"
)

// The wait for a missing or slow body is bounded, both while the body is read and after the request
// was refused.
func TestTricklingBodies(t *testing.T) {
	h := testHost(t, &HostOptions{Auth: Auth{Authenticator: keys()}, Timing: Timing{ReadTimeout: 300 * time.Millisecond}, Limits: Limits{MaxMessage: 4096}})
	addr := server(t, h).Listener.Addr().String()
	const good = "\r\nX-API-Key: key-user\r\nContent-Type: application/json"
	var wg sync.WaitGroup
	for _, head := range []string{
		"POST " + MessagesPath + " HTTP/1.1" + good + "\r\nContent-Length: 1000",
		"POST " + MessagesPath + " HTTP/1.1" + good + "\r\nTransfer-Encoding: chunked",
		"POST " + MessagesPath + " HTTP/1.1" + good + "\r\nContent-Length: 100000",
		"POST " + MessagesPath + " HTTP/1.1" + good + "\r\nAccept: text/plain\r\nContent-Length: 1000",
		"POST " + MessagesPath + " HTTP/1.1\r\nX-API-Key: key-user\r\nContent-Length: 1000",
		"POST " + MessagesPath + " HTTP/1.1\r\nContent-Length: 1000",
		"PUT " + MessagesPath + " HTTP/1.1\r\nTransfer-Encoding: chunked",
		"POST " + WebSocketPath + " HTTP/1.1\r\nContent-Length: 1000",
		"POST " + WebSocketPath + " HTTP/1.1\r\nX-API-Key: key-user\r\nSec-WebSocket-Protocol: " + transport.Subprotocol + "\r\nContent-Length: 1000",
		"GET /nowhere HTTP/1.1\r\nContent-Length: 1000",
	} {
		for _, trickles := range []bool{false, true} {
			wg.Go(func() {
				c, err := net.Dial("tcp", addr)
				if err != nil {
					t.Error(err)
					return
				}
				defer func() { _ = c.Close() }()
				body := "{"
				if strings.Contains(head, "chunked") {
					body = "fff\r\n{"
				}
				if _, err := io.WriteString(c, head+"\r\nHost: x\r\n\r\n"+body); err != nil {
					t.Error(err)
					return
				}
				done := make(chan struct{})
				defer close(done)
				if trickles {
					go func() {
						tick := time.NewTicker(50 * time.Millisecond)
						defer tick.Stop()
						for {
							select {
							case <-done:
								return
							case <-tick.C:
							}
							if _, err := io.WriteString(c, " "); err != nil {
								return
							}
						}
					}()
				}
				_ = c.SetReadDeadline(time.Now().Add(5 * time.Second))
				if _, err := io.Copy(io.Discard, c); err != nil && os.IsTimeout(err) {
					t.Errorf("the Host keeps the connection of %q", head)
				}
			})
		}
	}
	wg.Wait()
}

// The deadline is that of the body: a call and its stream may take longer.
func TestSlowCallAfterBody(t *testing.T) {
	s := start(t, httpTransport, &HostOptions{Timing: Timing{ReadTimeout: 100 * time.Millisecond}}, testRuntime("r1", nil))
	sess, err := s.c.CreateSession(t.Context(), nil)
	require.NoError(t, err)
	got, err := CallAs[string](t.Context(), sess, "wait", waitIn{300}, nil)
	require.NoError(t, err)
	require.Equal(t, "waited", got)
	n := 0
	for _, err := range StreamAs[int](t.Context(), sess, "ticks", nil, nil) {
		require.NoError(t, err)
		if n++; n == 4 {
			break
		}
	}
	require.Equal(t, 4, n)
	require.Eventually(t, func() bool { return s.h.Stats().InFlight == 0 }, time.Minute, time.Millisecond, "leaving the loop cancels the call")
}

// A body above the limit is refused by its length, without being read (ALT-D05).
func TestBodyTooLarge(t *testing.T) {
	h := testHost(t, &HostOptions{Auth: Auth{Authenticator: keys()}, Limits: Limits{MaxMessage: 4096}})
	ts := server(t, h)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, ts.URL+MessagesPath, strings.NewReader(strings.Repeat(" ", 5000)))
	require.NoError(t, err)
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set(APIKeyHeader, "key-user")
	res, err := ts.Client().Do(req)
	require.NoError(t, err)
	defer func() { _ = res.Body.Close() }()
	require.Equal(t, http.StatusRequestEntityTooLarge, res.StatusCode)
}

// A client that does not read its response occupies the Host only until WriteTimeout.
func TestUnreadAnswer(t *testing.T) {
	rt := must(NewRuntime("r1", &RuntimeOptions{MaxMessage: 128 << 20}))
	rt.Handle("get", HandlerFunc(func(context.Context, *ToolCall) (any, error) { return strings.Repeat("x", 64<<20), nil }))
	s := start(t, directTransport, &HostOptions{Timing: Timing{WriteTimeout: 200 * time.Millisecond}, Limits: Limits{MaxMessage: 128 << 20}}, rt)
	ts := server(t, s.h)
	w := connect(t, s.h, testUser)
	w.session("s")
	conn, err := net.Dial("tcp", ts.Listener.Addr().String())
	require.NoError(t, err)
	defer func() { require.NoError(t, conn.Close()) }()
	require.NoError(t, conn.(*net.TCPConn).SetReadBuffer(4096))
	body := `{"type":"ToolCall","invocation_id":"i","session_id":"s","tool_name":"get","parameters":{"key":"k"}}`
	_, err = fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\n%s: key-user\r\nContent-Length: %d\r\n\r\n%s",
		MessagesPath, APIKeyHeader, len(body), body)
	require.NoError(t, err)
	busy := func() int {
		n := 0
		for _, hc := range s.h.conns.list(false) {
			if hc.isHTTP() {
				n++
			}
		}
		return n
	}
	require.Eventually(t, func() bool { return s.h.Stats().Succeeded == 1 }, time.Minute, time.Millisecond)
	require.Eventually(t, func() bool { return busy() == 0 }, time.Minute, time.Millisecond)
}

// A message sent during Close is delivered or refused, and no request outlives Close.
func TestSendWhileClosing(t *testing.T) {
	client := &http.Client{Transport: roundTripper(func(r *http.Request) (*http.Response, error) {
		<-r.Context().Done()
		return nil, r.Context().Err()
	})}
	for range 300 {
		c := must(DialHTTP(t.Context(), "https://host", &HTTPDialOptions{HTTPClient: client}))
		var wg sync.WaitGroup
		for range 3 {
			wg.Go(func() {
				if err := c.Send(&Ping{}); err != nil && !errors.Is(err, ErrClosed) {
					t.Error(err)
				}
			})
		}
		wg.Go(func() {
			if err := c.Close(); err != nil {
				t.Error(err)
			}
		})
		wg.Wait()
		require.ErrorIs(t, c.Send(&Ping{}), ErrClosed)
	}
}

type roundTripper func(r *http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// The bodies that arrive count for the memory of their principal. Another principal is not refused for them.
func TestMemoryOfArrivingBodies(t *testing.T) {
	h := testHost(t, &HostOptions{Auth: Auth{Authenticator: keys()}, Limits: Limits{MaxMemoryPerPrincipal: 4 << 20}})
	addr := server(t, h).Listener.Addr().String()
	post := func(key string, announced int, body string) net.Conn {
		c, err := net.Dial("tcp", addr)
		require.NoError(t, err)
		t.Cleanup(func() { _ = c.Close() })
		_, err = fmt.Fprintf(c, "POST %s HTTP/1.1\r\nHost: x\r\nX-API-Key: %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s",
			MessagesPath, key, announced, body)
		require.NoError(t, err)
		return c
	}
	status := func(c net.Conn) int {
		res, err := http.ReadResponse(bufio.NewReader(c), nil)
		require.NoError(t, err)
		require.NoError(t, res.Body.Close())
		return res.StatusCode
	}
	used := func() (n int64) {
		for _, u := range h.Usage() {
			if u.Resource == "memory" && u.Scope == "all" {
				n = u.Used
			}
		}
		return n
	}
	slow := post("key-user", 4<<20, "{")
	require.Eventually(t, func() bool { return used() == 4<<20 }, 10*time.Second, time.Millisecond)
	ping := `{"type":"Ping"}`
	require.Equal(t, http.StatusServiceUnavailable, status(post("key-user", len(ping), ping)))
	require.Equal(t, http.StatusOK, status(post("key-service", len(ping), ping)))
	require.NoError(t, slow.Close())
	require.Eventually(t, func() bool { return used() == 0 }, 10*time.Second, time.Millisecond)
	require.Equal(t, http.StatusRequestEntityTooLarge, status(post("key-user", 1<<30, ping)))
}

// A web page reaches a Host over HTTP only from its own origin, even if the name of the page resolves to a loopback
// address (ALT-D04).
func TestMessagesOfPages(t *testing.T) {
	h := testHost(t, &HostOptions{Auth: Auth{AllowAnonymous: true}, AllowedOrigins: []string{"https://friend.example"}, AllowedHosts: []string{"tools.test"}})
	web := server(t, h)
	_, port, err := net.SplitHostPort(web.Listener.Addr().String())
	require.NoError(t, err)
	for _, c := range []struct {
		host, origin string
		want         int
	}{
		{"127.0.0.1:" + port, "", http.StatusOK}, // not a page
		{"127.0.0.1:" + port, "http://127.0.0.1:" + port, http.StatusOK},
		{"localhost:" + port, "http://localhost:" + port, http.StatusOK},
		{"tools.test:" + port, "http://tools.test:" + port, http.StatusOK},
		{"localhost:" + port, "https://friend.example", http.StatusOK},
		{"localhost:" + port, "https://evil.example", http.StatusForbidden},
		{"localhost:" + port, "null", http.StatusForbidden},
		{"evil.example:" + port, "http://evil.example:" + port, http.StatusForbidden},
	} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, web.URL+MessagesPath, strings.NewReader(`{"type":"Ping"}`))
		require.NoError(t, err)
		r.Host = c.host
		r.Header.Set("Content-Type", "application/json")
		if c.origin != "" {
			r.Header.Set("Origin", c.origin)
		}
		res, err := web.Client().Do(r)
		require.NoError(t, err)
		body, err := io.ReadAll(res.Body)
		require.NoError(t, err)
		require.NoError(t, res.Body.Close())
		require.Equal(t, c.want, res.StatusCode, "%s: %s", c.host, c.origin)
		if c.want == http.StatusForbidden {
			m, err := DecodeMessage(body, 0)
			require.NoError(t, err)
			require.ErrorIs(t, m.(*ErrorMessage).Err, ReasonDenied)
		}
	}
}

// A slowReader is a response to a client that takes 64 KiB in ten seconds.
type slowReader struct {
	*httptest.ResponseRecorder
	deadline time.Time
}

func (w *slowReader) SetWriteDeadline(t time.Time) error {
	w.deadline = t
	return nil
}

func (w *slowReader) Write(p []byte) (int, error) {
	time.Sleep(10 * time.Second * time.Duration(len(p)) / (64 << 10))
	if !w.deadline.IsZero() && time.Now().After(w.deadline) {
		return 0, os.ErrDeadlineExceeded
	}
	return w.ResponseRecorder.Write(p)
}

// A client that reads slowly, but never stops, gets a long result over HTTP in whole.
func TestSlowReaderOfLongResult(t *testing.T) {
	for _, kind := range []string{transport.TypeJSON, transport.TypeNDJSON, transport.TypeSSE} {
		synctest.Test(t, func(t *testing.T) {
			h := testHost(t, &HostOptions{Auth: Auth{AllowAnonymous: true}})
			rt := attachRuntime(t, h, testService, "r1", "math/add")
			post := func(w http.ResponseWriter, m Message) {
				text, err := AppendMessage(nil, m)
				require.NoError(t, err)
				r := httptest.NewRequest(http.MethodPost, MessagesPath, bytes.NewReader(text))
				r.Header.Set("Content-Type", transport.TypeJSON)
				r.Header.Set("Accept", kind)
				h.ServeHTTP(w, r)
			}
			post(httptest.NewRecorder(), &CreateSession{SessionID: "s"})
			long := strings.Repeat("x", 1<<20)
			w := &slowReader{ResponseRecorder: httptest.NewRecorder()}
			done := make(chan struct{})
			go func() {
				defer close(done)
				post(w, add("i", "s"))
			}()
			m, err := rt.conn.Receive()
			for ; err == nil && typeOf(m) != "ToolCall"; m, err = rt.conn.Receive() {
			}
			require.NoError(t, err)
			rt.send(&ToolResult{InvocationID: "i", Payload: []byte(`"` + long + `"`)})
			<-done
			require.True(t, strings.Contains(w.Body.String(), long), kind)
		})
	}
}

// A heldWriter is the writer of a response whose reader takes nothing until the end of a wait.
type heldWriter struct {
	*httptest.ResponseRecorder
	wait chan struct{}
}

func (w heldWriter) Write(b []byte) (int, error) {
	<-w.wait
	return w.ResponseRecorder.Write(b)
}

// Large responses that a principal does not read count for it. One more is an error, and a repeat has the result later.
func TestUnreadResponsesAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		auth := must(APIKeyAuthenticator(map[string]*Principal{"key-user": testUser, "key-other": testOther}))
		h := testHost(t, &HostOptions{Auth: Auth{Authenticator: auth}, Limits: Limits{MaxMemoryPerPrincipal: 8 << 20}})
		r := attachRuntime(t, h, testService, "r1", "math/add")
		w, other := connect(t, h, testUser), connect(t, h, testOther)
		w.session("s")
		other.session("t")
		payload := json.RawMessage(`"` + strings.Repeat("x", 3<<20) + `"`)
		wait := make(chan struct{})
		var responses sync.WaitGroup
		call := func(session, key, id string, runs bool) heldWriter {
			out := heldWriter{httptest.NewRecorder(), wait}
			req := httptest.NewRequest(http.MethodPost, MessagesPath, strings.NewReader(string(must(appendMessage(nil, add(id, session), true)))))
			req.Header.Set("Content-Type", "application/json")
			req.Header.Set(APIKeyHeader, key)
			responses.Go(func() { h.ServeHTTP(out, req) })
			if runs {
				next[*ToolCall](r)
				r.send(&ToolResult{InvocationID: id, Payload: payload})
			}
			synctest.Wait()
			return out
		}
		result := func(w heldWriter) *ToolResult {
			m, err := DecodeMessage(w.Body.Bytes(), 4<<20)
			require.NoError(t, err, w.Body.String()[:min(200, w.Body.Len())])
			return m.(*ToolResult)
		}
		one, two := call("s", "key-user", "one", true), call("s", "key-user", "two", true)
		excess, alone := call("s", "key-user", "over", true), call("t", "key-other", "alone", true)
		close(wait)
		responses.Wait()
		for _, w := range []heldWriter{one, two, alone} {
			require.Len(t, result(w).Payload, len(payload))
		}
		require.ErrorIs(t, result(excess).Error, reasonSlowConsumer)
		require.Zero(t, usage(h, "memory", "all").Used)
		repeat := call("s", "key-user", "over", false)
		responses.Wait()
		require.Len(t, result(repeat).Payload, len(payload))
	})
}

// A cutBody ends with an error after n bytes.
type cutBody struct {
	io.ReadCloser
	n int
}

func (b *cutBody) Read(p []byte) (int, error) {
	if b.n <= 0 {
		return 0, io.ErrUnexpectedEOF
	}
	n, err := b.ReadCloser.Read(p[:min(len(p), b.n)])
	b.n -= n
	return n, err
}

// A response over HTTP that is cut off interrupts no other one, and its stream continues after the received chunks.
func TestCutResponseInterruptsNoOther(t *testing.T) {
	rt := testRuntime("r1", nil)
	running := make(chan struct{})
	rt.names["ticks"].stream = StreamHandlerFunc(func(_ context.Context, _ *ToolCall, out *ChunkWriter) error {
		if err := out.Send("begun"); err != nil {
			return err
		}
		<-running
		return out.Send("done")
	})
	h := testHost(t, &HostOptions{Auth: Auth{Authenticator: keys()}})
	ts := server(t, h)
	var others, cuts atomic.Int64
	client := &http.Client{Transport: roundTripper(func(r *http.Request) (*http.Response, error) {
		body, err := r.GetBody()
		if err != nil {
			return nil, err
		}
		text, _ := io.ReadAll(body)
		if strings.Contains(string(text), `"ticks"`) {
			others.Add(1)
		}
		res, err := ts.Client().Transport.RoundTrip(r)
		if err == nil && strings.Contains(string(text), `"count"`) {
			cuts.Add(1)
			res.Body = &cutBody{res.Body, 1000}
		}
		return res, err
	})}
	s := &system{h: h, dial: pipeTransport(t, h)}
	s.run(t, rt)
	defer func() { s.stop[0](); <-s.done[0] }()
	c := must(NewClient(func(context.Context) (Conn, error) {
		return DialHTTP(t.Context(), ts.URL, &HTTPDialOptions{HTTPClient: client, Header: keyOf(testUser)})
	}, nil))
	defer c.Close()
	sess, err := c.CreateSession(t.Context(), nil)
	require.NoError(t, err)
	first, other := make(chan struct{}), make(chan error, 1)
	go func() {
		n := 0
		var err error
		for _, err = range sess.Stream(t.Context(), "ticks", nil, nil) {
			if n++; n == 1 {
				close(first)
			}
		}
		other <- err
	}()
	<-first
	n := int64(0)
	for payload, err := range StreamAs[int64](t.Context(), sess, "count", countIn{100}, nil) {
		require.NoError(t, err)
		require.Equal(t, n, payload)
		n++
	}
	require.Equal(t, int64(100), n)
	close(running)
	require.NoError(t, <-other)
	require.Greater(t, cuts.Load(), int64(3))
	require.Equal(t, int64(1), others.Load())
}

// A pipeListener accepts connections in memory.
type pipeListener struct {
	net.Listener // of the address
	conns        chan net.Conn
	closed       context.Context
	close        context.CancelFunc
}

func (l *pipeListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed.Done():
		return nil, net.ErrClosed
	}
}

func (l *pipeListener) Close() error {
	l.close()
	return nil
}

func (l *pipeListener) dial(context.Context, string, string) (net.Conn, error) {
	near, far := net.Pipe()
	l.conns <- far
	return near, nil
}

// A reader that pauses for longer than WriteTimeout loses its response over HTTP, and no chunk (ALT-D37).
func TestPauseOverHTTPLosesNoChunk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const chunks = 1000
		rt := testRuntime("r1", nil)
		text := strings.Repeat("x", 5000)
		rt.names["count"].stream = StreamHandlerFunc(func(_ context.Context, _ *ToolCall, out *ChunkWriter) error {
			for range chunks {
				if err := out.Send(text); err != nil {
					return err
				}
			}
			return nil
		})
		h := testHost(t, &HostOptions{Auth: Auth{Authenticator: keys()}})
		s := &system{h: h, dial: pipeTransport(t, h)}
		s.run(t, rt)
		defer func() { s.stop[0](); <-s.done[0] }()
		closed, end := context.WithCancel(t.Context())
		l := &pipeListener{conns: make(chan net.Conn), closed: closed, close: end}
		srv := &http.Server{Handler: h}
		go func() { _ = srv.Serve(l) }()
		defer func() { _ = srv.Close() }()
		client := &http.Client{Transport: &http.Transport{DialContext: l.dial}}
		defer client.CloseIdleConnections()
		c := must(NewClient(func(context.Context) (Conn, error) {
			return DialHTTP(t.Context(), "http://localhost", &HTTPDialOptions{HTTPClient: client, Header: keyOf(testUser)})
		}, nil))
		defer c.Close()
		sess, err := c.CreateSession(t.Context(), nil)
		require.NoError(t, err)
		n := 0
		for _, err := range sess.Stream(t.Context(), "count", countIn{1}, nil) {
			require.NoError(t, err)
			if n++; n%400 == 1 {
				time.Sleep(40 * time.Second)
			}
		}
		require.Equal(t, chunks, n)
	})
}
