// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package wsconn

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/internal/httpx"
	"github.com/fivewire/fivewire/internal/netguard"
	"github.com/fivewire/fivewire/internal/race"
	"github.com/fivewire/fivewire/internal/retry"
)

// newEchoServer is a server on a loopback address that sends each message back.
func newEchoServer(t *testing.T, o *AcceptOptions) *httptest.Server {
	t.Helper()
	ts := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c, err := Accept(w, r, o)
		if err != nil {
			return
		}
		defer c.Close(CodeNormal, "")
		for {
			msg, err := c.Read(context.Background())
			if err != nil {
				return
			}
			if err := c.Write(context.Background(), msg); err != nil {
				return
			}
		}
	}))
	t.Cleanup(ts.Close)
	return ts
}

func wsURL(ts *httptest.Server) string { return "ws" + strings.TrimPrefix(ts.URL, "http") }

func TestDialOverNetwork(t *testing.T) {
	ts := newEchoServer(t, &AcceptOptions{Options: Options{Subprotocols: []string{"b.v2", "a.v1"}}})
	user := &http.Client{Timeout: time.Hour} // which would make the body unwritable
	for name, o := range map[string]*DialOptions{
		"defaults":    nil,
		"user":        {HTTP: httpx.ClientOptions{HTTPClient: user}},
		"guard":       {HTTP: httpx.ClientOptions{Guard: &netguard.Guard{AllowLoopback: true}}},
		"subprotocol": {Options: Options{Subprotocols: []string{"a.v1"}}},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			c, err := Dial(ctx, wsURL(ts), o)
			require.NoError(t, err)
			cancel() // bounds the handshake only
			want := ""
			if o != nil && len(o.Subprotocols) > 0 {
				want = "a.v1"
			}
			require.Equal(t, want, c.Subprotocol())
			for _, size := range []int{0, 100, 1 << 20} {
				msg := bytes.Repeat([]byte("x"), size)
				require.NoError(t, c.Write(t.Context(), msg))
				got, err := c.Read(t.Context())
				require.NoError(t, err)
				require.True(t, bytes.Equal(msg, got))
			}
			c.Close(CodeNormal, "")
		})
	}
	require.Equal(t, time.Hour, user.Timeout)
}

func TestRefuseOthers(t *testing.T) {
	ts := newEchoServer(t, &AcceptOptions{Options: Options{Subprotocols: []string{"a.v1"}}, RefuseOthers: true})
	for offer, want := range map[string]string{"": "", "a.v1": "a.v1", "b.v2,A.V1": "A.V1", "b.v2": "refused", "a.v11, ,b.v2": "refused"} {
		c, err := Dial(t.Context(), wsURL(ts), &DialOptions{Options: Options{Subprotocols: strings.Split(offer, ",")}})
		if want == "refused" {
			require.ErrorContains(t, err, "400", offer)
			continue
		}
		require.NoError(t, err, offer)
		require.Equal(t, want, c.Subprotocol())
		c.Close(CodeNormal, "")
	}
}

func TestDialOverTLS(t *testing.T) {
	ts := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c, err := Accept(w, r, nil)
		if err == nil {
			_ = c.Write(context.Background(), []byte("hello"))
			<-c.Done()
			c.Close(CodeNormal, "")
		}
	}))
	ts.EnableHTTP2 = true
	ts.StartTLS()
	defer ts.Close()
	o := &DialOptions{HTTP: httpx.ClientOptions{HTTPClient: ts.Client()}}
	c, err := Dial(t.Context(), "wss"+strings.TrimPrefix(ts.URL, "https"), o)
	require.NoError(t, err)
	got, err := c.Read(t.Context())
	require.NoError(t, err)
	require.Equal(t, "hello", string(got))
	c.Close(CodeNormal, "")
	ts.Client().CloseIdleConnections()
}

// TestTokenRefusedOverHTTPIsNotSentOverWebSocket: the rule of both is the same.
func TestTokenRefusedOverHTTPIsNotSentOverWebSocket(t *testing.T) {
	var dials, secrets atomic.Int32
	dial := func(context.Context, string, string) (net.Conn, error) {
		dials.Add(1)
		return nil, errors.New("refused")
	}
	o := &DialOptions{HTTP: httpx.ClientOptions{
		HTTPClient: &http.Client{Transport: &http.Transport{DialContext: dial}},
		Secrets: func(context.Context, string, http.Header) error {
			secrets.Add(1)
			return nil
		},
	}}
	for _, raw := range []string{
		"ws://a.example/", "http://a.example/", "ws://10.0.0.1/", "ws://user:secret@localhost/",
		"ftp://localhost/", "localhost", "wss://",
	} {
		_, err := Dial(t.Context(), raw, o)
		require.ErrorIs(t, err, netguard.ErrForbidden, raw)
		require.Equal(t, retry.Permanent, retry.ClassOf(err))
		require.NotContains(t, err.Error(), "secret")
	}
	require.Zero(t, dials.Load())
	require.Zero(t, secrets.Load())

	o.HTTP.AllowInsecure = true
	_, err := Dial(t.Context(), "ws://a.example/?secret", o)
	require.ErrorIs(t, err, httpx.ErrConnect)
	require.Equal(t, retry.Unsent, retry.ClassOf(retry.Mark(err, retry.ClassOf(err), 0)))
	require.NotContains(t, err.Error(), "secret")
	require.Equal(t, int32(1), dials.Load())
	require.Equal(t, int32(1), secrets.Load())
}

func TestDialSendsSecretToItsOriginOnly(t *testing.T) {
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		t.Error("the redirect was followed")
	}))
	defer other.Close()
	got := ""
	ts := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got = r.Header.Get("Authorization") + r.Header.Get("X-A")
		http.Redirect(w, r, other.URL, http.StatusTemporaryRedirect)
	}))
	defer ts.Close()
	_, err := Dial(t.Context(), wsURL(ts), &DialOptions{Header: http.Header{"X-A": {"a"}}, HTTP: httpx.ClientOptions{
		Secrets: func(_ context.Context, origin string, h http.Header) error {
			require.Equal(t, ts.URL, origin)
			h.Set("Authorization", "token")
			return nil
		},
	}})
	var e *httpx.Error
	require.ErrorAs(t, err, &e)
	require.Equal(t, http.StatusTemporaryRedirect, e.Status)
	require.Equal(t, "tokena", got)
}

func TestDialGuardSeesAddress(t *testing.T) {
	ts := newEchoServer(t, nil)
	_, port, err := net.SplitHostPort(strings.TrimPrefix(ts.URL, "http://"))
	require.NoError(t, err)
	guard := &netguard.Guard{Lookup: func(context.Context, string, string) ([]netip.Addr, error) {
		return []netip.Addr{netip.MustParseAddr("127.0.0.1")}, nil
	}}
	o := &DialOptions{HTTP: httpx.ClientOptions{Guard: guard, AllowInsecure: true}}
	_, err = Dial(t.Context(), "ws://a.example:"+port, o)
	require.ErrorIs(t, err, netguard.ErrForbidden)
	require.Equal(t, retry.Permanent, retry.ClassOf(err))
}

func TestRefusedHandshakeIsStatus(t *testing.T) {
	status := 0
	ts := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Retry-After", "3")
		_ = httpx.Respond(w, status, "text/plain", []byte("why"), time.Minute)
	}))
	defer ts.Close()
	for code, class := range map[int]retry.Class{
		200: retry.Unknown, 401: retry.Permanent, 403: retry.Permanent, 404: retry.Permanent,
		429: retry.Refused, 503: retry.Refused,
	} {
		status = code
		_, err := Dial(t.Context(), wsURL(ts)+"/p?secret", nil)
		var e *httpx.Error
		require.ErrorAs(t, err, &e)
		require.Equal(t, code, e.Status)
		require.Equal(t, "why", string(e.Body))
		require.Equal(t, class, retry.ClassOf(err))
		want := fmt.Sprintf("wsconn: dial: GET %s/p: got status %d %s, want status 101", ts.URL, code, http.StatusText(code))
		require.EqualError(t, err, want)
	}
}

func TestDialRefusesWrongHandshake(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		n := newPipeNet()
		go func() {
			conn := <-n.conns
			_, _ = http.ReadRequest(bufio.NewReader(conn))
			_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"+
				"Sec-WebSocket-Accept: wrong\r\n\r\n")
			_, _ = io.Copy(io.Discard, conn)
		}()
		_, err := Dial(t.Context(), testURL, n.options(Options{}))
		require.ErrorContains(t, err, "Sec-WebSocket-Accept")
		require.Equal(t, retry.Permanent, retry.ClassOf(err))
	})
}

func TestDialEndsAtHandshakeTimeout(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		n := newPipeNet()
		go func() {
			conn := <-n.conns
			_, _ = io.Copy(io.Discard, conn)
		}()
		start := time.Now()
		_, err := Dial(t.Context(), testURL, n.options(Options{}))
		require.ErrorIs(t, err, httpx.ErrTimeout)
		require.Equal(t, 10*time.Second, time.Since(start))
		time.Sleep(time.Minute) // ends the goroutines of net/http
	})
}

// A plainWriter cannot be hijacked.
type plainWriter struct{ http.ResponseWriter }

// A wrappedWriter can, by Unwrap.
type wrappedWriter struct{ http.ResponseWriter }

func (w wrappedWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func handshake(header http.Header) *http.Request {
	r := httptest.NewRequest("GET", "http://a.example/", nil)
	r.Header = http.Header{
		"Connection": {"Upgrade"}, "Upgrade": {"websocket"}, "Sec-Websocket-Version": {"13"},
		"Sec-Websocket-Key": {"AAAAAAAAAAAAAAAAAAAAAA=="},
	}
	for name, values := range header {
		r.Header[name] = values
	}
	return r
}

func TestAcceptRefusalIsStatus(t *testing.T) {
	listed := httpx.Origins{AllowedOrigins: []string{"https://app.example"}}
	for _, tt := range []struct {
		header http.Header
		o      AcceptOptions
		status int
	}{
		{http.Header{"Origin": {"https://evil.example"}}, AcceptOptions{Origins: listed}, 403},
		{http.Header{"Origin": {"https://app.example.org"}}, AcceptOptions{Origins: listed}, 403},
		{http.Header{"Origin": {"https://evil.example"}}, AcceptOptions{}, 403},
		{http.Header{"Origin": {"https://app.example", "https://app.example"}}, AcceptOptions{Origins: listed}, 400},
		{http.Header{"Authorization": {"a", "b"}}, AcceptOptions{}, 400},
		{nil, AcceptOptions{Expires: time.Now()}, 401},
		{http.Header{"Origin": {"https://app.example"}}, AcceptOptions{Origins: listed}, 501}, // a recorder
		{http.Header{"Origin": {"http://a.example"}}, AcceptOptions{}, 501},
		{nil, AcceptOptions{Expires: time.Now().Add(time.Hour)}, 501},
	} {
		w := httptest.NewRecorder()
		_, err := Accept(wrappedWriter{plainWriter{w}}, handshake(tt.header), &tt.o)
		require.Error(t, err)
		require.Equal(t, tt.status, w.Code, "%+v: %v", tt, err)
		var e *httpx.Error
		require.ErrorAs(t, err, &e)
		require.Equal(t, tt.status, e.Status)
		require.NotEmpty(t, w.Body.String())
	}
}

func TestAcceptRefusesOtherRequests(t *testing.T) {
	ts := newEchoServer(t, nil)
	for _, tt := range []struct {
		header string
		status int
	}{{"Upgrade", 426}, {"Sec-WebSocket-Version", 400}, {"Sec-WebSocket-Key", 400}} {
		r := handshake(nil)
		r.Header.Del(tt.header)
		r.URL.Host, r.RequestURI = strings.TrimPrefix(ts.URL, "http://"), ""
		res, err := ts.Client().Do(r)
		require.NoError(t, err)
		res.Body.Close()
		require.Equal(t, tt.status, res.StatusCode, "without %s", tt.header)
	}
}

func TestAcceptAllowsListedOrigin(t *testing.T) {
	ts := newEchoServer(t, &AcceptOptions{Origins: httpx.Origins{AllowedOrigins: []string{"https://app.example"}}})
	for origin, status := range map[string]int{"https://app.example": 0, ts.URL: 0, "https://evil.example": 403} {
		c, err := Dial(t.Context(), wsURL(ts), &DialOptions{Header: http.Header{"Origin": {origin}}})
		if status == 0 {
			require.NoError(t, err, origin)
			c.Close(CodeNormal, "")
			continue
		}
		var e *httpx.Error
		require.ErrorAs(t, err, &e)
		require.Equal(t, status, e.Status)
	}
}

func TestAcceptBoundsBodyOfOtherRequests(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		n, _, stop := newPipeServer(nil)
		defer stop()
		conn, err := n.dial(t.Context(), "", "")
		require.NoError(t, err)
		defer conn.Close()
		start := time.Now()
		_, err = io.WriteString(conn, "POST / HTTP/1.1\r\nHost: a.example\r\nContent-Length: 10\r\n\r\n123")
		require.NoError(t, err)
		res, err := http.ReadResponse(bufio.NewReader(conn), nil)
		require.NoError(t, err)
		require.Equal(t, http.StatusUpgradeRequired, res.StatusCode)
		require.Equal(t, 10*time.Second, time.Since(start))
	})
}

func TestRefusedDialKeepsNoConnection(t *testing.T) {
	closed := make(chan struct{}, 1)
	ts := httptest.NewUnstartedServer(http.NotFoundHandler())
	ts.Config.ConnState = func(_ net.Conn, s http.ConnState) {
		if s == http.StateClosed {
			closed <- struct{}{}
		}
	}
	ts.Start()
	defer ts.Close()
	_, err := Dial(t.Context(), wsURL(ts), nil)
	require.Error(t, err)
	select {
	case <-closed:
	case <-time.After(time.Minute):
		t.Error("the connection is idle")
	}
}

func TestAcceptUnwrapsWriter(t *testing.T) {
	ts := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c, err := Accept(wrappedWriter{w}, r, nil)
		require.NoError(t, err)
		c.Close(CodeShutdown, "")
	}))
	defer ts.Close()
	c, err := Dial(t.Context(), wsURL(ts), nil)
	require.NoError(t, err)
	defer c.Close(CodeNormal, "")
	_, err = c.Read(t.Context())
	var e *CloseError
	require.ErrorAs(t, err, &e)
	require.Equal(t, CodeShutdown, e.Code)
}

func TestExpiredAuthenticationEndsConnection(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		o := &AcceptOptions{Expires: time.Now().Add(time.Hour + 7*time.Second), ExpiredReason: "TOKEN_EXPIRED"}
		a, b := newPair(t, Options{}, o)
		for i := range 59 {
			exchange(t, a, b, fmt.Append(nil, i))
			time.Sleep(time.Minute)
		}
		took, err := waitDone(t, a)
		require.Equal(t, 67*time.Second, took, "between two pings")
		var e *CloseError
		require.ErrorAs(t, err, &e)
		require.Equal(t, CloseError{CodeNotAllowed, "TOKEN_EXPIRED"}, *e)
		require.Equal(t, retry.Permanent, retry.ClassOf(err))
		_, err = b.Read(t.Context())
		require.ErrorIs(t, err, ErrClosed)
		require.ErrorContains(t, err, "expired")
	})
}

// TestServerTimeoutsDoNotEndConnection: net/http lifts the deadlines of an upgraded connection.
func TestServerTimeoutsDoNotEndConnection(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		n := newPipeNet()
		accepted := make(chan *Conn, 1)
		srv := &http.Server{ReadTimeout: time.Second, WriteTimeout: time.Second, IdleTimeout: time.Second}
		srv.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			c, err := Accept(w, r, nil)
			require.NoError(t, err)
			accepted <- c
		})
		served := make(chan struct{})
		go func() {
			defer close(served)
			_ = srv.Serve(n)
		}()
		a, err := Dial(t.Context(), testURL, n.options(Options{}))
		require.NoError(t, err)
		b := <-accepted
		time.Sleep(time.Hour)
		exchange(t, a, b, []byte("m"))
		exchange(t, b, a, []byte("m"))
		a.Close(CodeNormal, "")
		b.Close(CodeNormal, "")
		_ = srv.Close()
		<-served
	})
}

func TestMessagesAllocateLittle(t *testing.T) {
	if race.Enabled {
		t.Skip("the race detector allocates")
	}
	ts := newEchoServer(t, nil)
	c, err := Dial(t.Context(), wsURL(ts), nil)
	require.NoError(t, err)
	defer c.Close(CodeNormal, "")
	msg, ctx := make([]byte, 1000), context.Background()
	allocs := testing.AllocsPerRun(500, func() {
		if err := c.Write(ctx, msg); err != nil {
			t.Error(err)
		}
		if _, err := c.Read(ctx); err != nil {
			t.Error(err)
		}
	})
	t.Logf("%v allocations for two messages", allocs)
	require.LessOrEqual(t, allocs, 8.0, "want 3 for a sent message and 1 for a received one")
}

func TestLimitHeaderLowersMaxOutput(t *testing.T) {
	const header = "X-Limit"
	ts := newEchoServer(t, &AcceptOptions{Options: Options{MaxMessage: 100, LimitHeader: header}})
	for want, o := range map[int]Options{
		100:      {LimitHeader: header},
		50:       {LimitHeader: header, MaxOutput: 50},
		16 << 20: {},
	} {
		c, err := Dial(t.Context(), wsURL(ts), &DialOptions{Options: o})
		require.NoError(t, err)
		require.Equal(t, want, c.MaxOutput())
		c.Close(CodeNormal, "")
	}
}
