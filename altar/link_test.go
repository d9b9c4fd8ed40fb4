// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package altar

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"github.com/coder/websocket"
	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/altar/internal/core"
	"github.com/fivewire/fivewire/altar/internal/transport"
	"github.com/fivewire/fivewire/internal/kit"
	"github.com/fivewire/fivewire/internal/wsconn"
)

// countedDials counts the connections of a Dialer.
func countedDials(dial Dialer) (Dialer, *atomic.Int32) {
	n := new(atomic.Int32)
	return func(ctx context.Context) (Conn, error) {
		n.Add(1)
		return dial(ctx)
	}, n
}

type textIn struct {
	Text string `json:"text"`
}

// startEcho starts a system with a Runtime that has the tools of tests and "echo".
func startEcho(t *testing.T, opts *HostOptions) *system {
	t.Helper()
	return start(t, webSocketTransport, opts, testRuntime("r1", nil))
}

func TestClientRefusesTooLargeMessageAlone(t *testing.T) {
	s := startEcho(t, &HostOptions{Auth: Auth{Authenticator: keys()}, Limits: Limits{MaxMessage: 1000}})
	dial, dials := countedDials(s.dial(testUser))
	c := must(NewClient(dial, nil))
	defer func() { require.NoError(t, c.Close()) }()
	sess, err := c.CreateSession(t.Context(), nil)
	require.NoError(t, err)
	other := make(chan error, 1)
	go func() {
		_, err := sess.Call(t.Context(), "wait", waitIn{50}, nil)
		other <- err
	}()
	_, err = sess.Call(t.Context(), "math/add", textIn{strings.Repeat("x", 5000)}, nil)
	require.ErrorIs(t, err, reasonMessageTooLarge)
	require.ErrorIs(t, err, ErrTooLarge)
	require.ErrorIs(t, err, ErrInvalidParameters)
	_, err = c.CreateSession(t.Context(), &CreateSessionParams{Metadata: map[string]string{"k": strings.Repeat("x", 5000)}})
	require.ErrorIs(t, err, ErrTooLarge)
	require.NoError(t, <-other, "another call is not affected")
	require.Equal(t, int32(1), dials.Load(), "connections")
}

// A Host that does not announce its limit closes with 1009: then the largest call fails, and the
// others are repeated.
func TestClientFailsLargestCallAfterClose1009(t *testing.T) {
	t.Run("AtFirst", func(t *testing.T) { testClose1009(t, 1) })
	t.Run("AfterReconnect", func(t *testing.T) { testClose1009(t, 2) })
}

// testClose1009 has a Host that closes earlier connections normally at a large message, and answers only on
// later ones.
func testClose1009(t *testing.T, tooLargeAt int32) {
	var conns atomic.Int32
	ts := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n := conns.Add(1)
		limit := 1000
		if n < tooLargeAt {
			limit = 10_000
		}
		conn, err := wsconn.Accept(w, r, &wsconn.AcceptOptions{Options: wsconn.Options{MaxMessage: limit, Subprotocols: []string{transport.Subprotocol}}})
		if err != nil {
			return
		}
		defer conn.Close(wsconn.CodeNormal, "")
		for {
			data, err := conn.Read(context.Background())
			if err != nil || len(data) > 1000 {
				return
			}
			m, err := DecodeMessage(data, 0)
			if call, ok := m.(*ToolCall); err == nil && ok && n > tooLargeAt {
				out, _ := AppendMessage(nil, &ToolResult{InvocationID: call.InvocationID})
				_ = conn.Write(context.Background(), out)
			}
		}
	}))
	defer ts.Close()
	c := must(NewClient(func(ctx context.Context) (Conn, error) { return DialWebSocket(ctx, ts.URL, nil) }, nil))
	defer func() { require.NoError(t, c.Close()) }()
	small := make(chan error, 1)
	go func() {
		_, err := c.Session("s").Call(t.Context(), "small", nil, nil)
		small <- err
	}()
	for conns.Load() == 0 {
		time.Sleep(time.Millisecond)
	}
	_, err := c.Session("s").Call(t.Context(), "large", textIn{strings.Repeat("x", 5000)}, nil)
	require.ErrorIs(t, err, ErrTooLarge)
	require.NoError(t, <-small)
	require.Equal(t, tooLargeAt+1, conns.Load(), "connections")
}

func TestRuntimeResultTooLargeFailsAlone(t *testing.T) {
	rt := testRuntime("r1", nil)
	rt.names["math/add"].tool = HandlerFunc(func(context.Context, *ToolCall) (any, error) { return strings.Repeat("x", 5000), nil })
	s := start(t, webSocketTransport, &HostOptions{Auth: Auth{Authenticator: keys()}, Limits: Limits{MaxMessage: 1000}}, rt)
	sess := must(s.c.CreateSession(t.Context(), nil))
	for range 2 {
		_, err := sess.Call(t.Context(), "math/add", addIn{1, 2}, nil)
		require.ErrorIs(t, err, ErrInternal)
		require.ErrorIs(t, err, reasonMessageTooLarge)
	}
	require.Equal(t, 1, s.h.Stats().Runtimes)
}

func TestHostResultOverMaxOutputBecomesError(t *testing.T) {
	rt := testRuntime("r1", nil)
	rt.names["math/add"].tool = HandlerFunc(func(context.Context, *ToolCall) (any, error) { return strings.Repeat("x", 5000), nil })
	s := start(t, webSocketTransport, &HostOptions{Auth: Auth{Authenticator: keys()}, Limits: Limits{MaxOutput: 1000}}, rt)
	sess := must(s.c.CreateSession(t.Context(), nil))
	_, err := sess.Call(t.Context(), "math/add", addIn{1, 2}, nil)
	require.ErrorIs(t, err, ErrInternal)
	require.ErrorIs(t, err, reasonMessageTooLarge)
	require.NoError(t, s.c.Ping(t.Context()), "the connection continues")
}

// A Runtime with the id of another one replaces it, and the replaced one does not return.
func TestReplacedRuntimeEndsForGood(t *testing.T) {
	s := startEcho(t, &HostOptions{Auth: Auth{Authenticator: keys()}})
	dial, dials := countedDials(s.dial(testService))
	newer := testRuntime("r1", nil)
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- newer.RunWithReconnect(ctx, dial) }()
	require.ErrorIs(t, <-s.done[0], ReasonReplaced)
	require.Equal(t, []string{"r1"}, s.h.runtimeIDs())
	require.Equal(t, int32(1), dials.Load(), "connections")
	stop()
	require.NoError(t, <-done)
}

func TestWebSocketCloseCodesOfHost(t *testing.T) {
	h := testHost(t, &HostOptions{Auth: Auth{Authenticator: keys()}})
	ts := server(t, h)
	dial := func(id *Principal) *websocket.Conn {
		c, res, err := websocket.Dial(t.Context(), ts.URL+WebSocketPath,
			&websocket.DialOptions{HTTPClient: ts.Client(), HTTPHeader: keyOf(id), Subprotocols: []string{transport.Subprotocol}})
		require.NoError(t, err)
		require.Equal(t, "4194304", res.Header.Get("Altar-Max-Message"))
		return c
	}
	announce := func(c *websocket.Conn) {
		text := `{"type":"AnnounceRuntime","runtime_id":"r","protocol_version":"1.0.0"}`
		require.NoError(t, c.Write(t.Context(), websocket.MessageText, []byte(text)))
		_, data, err := c.Read(t.Context())
		require.NoError(t, err)
		require.Contains(t, string(data), "AcknowledgeRuntime")
	}
	closeCode := func(c *websocket.Conn) websocket.StatusCode {
		for {
			if _, _, err := c.Read(t.Context()); err != nil {
				return websocket.CloseStatus(err)
			}
		}
	}
	older, newer := dial(testService), dial(testService)
	announce(older)
	announce(newer)
	require.Equal(t, websocket.StatusCode(4001), closeCode(older))
	go func() { _ = h.Shutdown(context.Background()) }()
	require.Equal(t, websocket.StatusGoingAway, closeCode(newer))
}

// silentPeer accepts connections, and neither answers nor closes.
func silentPeer(t *testing.T) (addr string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var mu sync.Mutex
	var conns []net.Conn
	t.Cleanup(func() {
		_ = l.Close()
		mu.Lock()
		defer mu.Unlock()
		for _, c := range conns {
			_ = c.Close()
		}
	})
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			conns = append(conns, c)
			mu.Unlock()
		}
	}()
	return l.Addr().String()
}

// requireWithin requires that one of five calls takes at most a duration: a busy machine may delay some of them.
func requireWithin(t *testing.T, bound time.Duration, f func() time.Duration) {
	t.Helper()
	took := f()
	for range 4 {
		if took > bound {
			took = min(took, f())
		}
	}
	require.LessOrEqual(t, took, bound)
}

func TestClientCloseIsQuick(t *testing.T) {
	for _, tr := range transports {
		t.Run(tr.name, func(t *testing.T) {
			s := start(t, tr.dial, &HostOptions{Auth: Auth{Authenticator: keys()}}, testRuntime("r1", nil))
			requireWithin(t, 100*time.Millisecond, func() time.Duration {
				c := must(NewClient(s.dial(testUser), nil))
				sess, err := c.CreateSession(t.Context(), nil)
				require.NoError(t, err)
				called := make(chan error, 1)
				before := s.h.Stats().Dispatched
				go func() {
					_, err := sess.Call(t.Context(), "wait", waitIn{60_000}, nil)
					called <- err
				}()
				for s.h.Stats().Dispatched == before {
					time.Sleep(time.Millisecond)
				}
				start := time.Now()
				require.NoError(t, c.Close())
				took := time.Since(start)
				require.ErrorIs(t, <-called, ErrClosed)
				return took
			})
			for s.h.Stats().InFlight > 0 { // its calls are cancelled at once
				time.Sleep(time.Millisecond)
			}
		})
	}
}

// ALT-D36: the heartbeat of a client is a message. There is no WebSocket ping as well.
func TestWebSocketClientHasOneHeartbeat(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var messages, pings atomic.Int32
		opts := &websocket.AcceptOptions{Subprotocols: []string{transport.Subprotocol},
			OnPingReceived: func(context.Context, []byte) bool { return pings.Add(1) > 0 }}
		srv := kit.Serve(t, "altar", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			conn, err := websocket.Accept(w, r, opts)
			if err != nil {
				return
			}
			defer conn.CloseNow()
			pong := must(AppendMessage(nil, &Pong{}))
			for {
				if _, _, err := conn.Read(r.Context()); err != nil {
					return
				}
				messages.Add(1)
				_ = conn.Write(r.Context(), websocket.MessageText, pong)
			}
		}))
		c := must(NewClient(func(ctx context.Context) (Conn, error) {
			return DialWebSocket(ctx, "ws://localhost", &WebSocketDialOptions{HTTPClient: srv.Client})
		}, nil))
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute+time.Second)
		defer cancel()
		require.ErrorIs(t, c.Ping(ctx), context.DeadlineExceeded) // the Pong has no id
		require.Equal(t, int32(1+4), messages.Load())
		require.Zero(t, pings.Load())
		require.NoError(t, c.Close())
	})
}

func TestClientCloseAgainstSilentPeer(t *testing.T) {
	addr, end := silentPeer(t), make(chan struct{})
	t.Cleanup(func() { close(end) })
	for name, dial := range map[string]Dialer{
		"stream": func(context.Context) (Conn, error) {
			c, err := net.Dial("tcp", addr)
			if err != nil {
				return nil, err
			}
			return NewStreamConn(c, nil), nil
		},
		"websocket": func(ctx context.Context) (Conn, error) { return DialWebSocket(ctx, "ws://"+addr, nil) },
		"http":      func(ctx context.Context) (Conn, error) { return DialHTTP(ctx, "http://"+addr, nil) },
		"dialer": func(context.Context) (Conn, error) {
			<-end
			return nil, io.EOF
		},
	} {
		t.Run(name, func(t *testing.T) {
			requireWithin(t, 1100*time.Millisecond, func() time.Duration {
				c := must(NewClient(dial, nil))
				called := make(chan error, 1)
				go func() { called <- c.Ping(context.Background()) }()
				time.Sleep(10 * time.Millisecond) // it need not have begun
				start := time.Now()
				require.NoError(t, c.Close())
				took := time.Since(start)
				require.Error(t, <-called)
				return took
			})
		})
	}
}

// stuckConn is a connection of a program whose Close does not end Receive.
type stuckConn struct{ *scripted }

func (stuckConn) Close() error { return nil }

func TestClientCloseLeavesConnectionThatDoesNotEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conn := stuckConn{newScripted(func(Message) {})}
		c := must(NewClient(func(context.Context) (Conn, error) { return conn, nil }, nil))
		go func() { _ = c.Ping(context.Background()) }()
		synctest.Wait()
		start := time.Now()
		require.NoError(t, c.Close())
		require.LessOrEqual(t, time.Since(start), 2*time.Second)
		require.NoError(t, conn.scripted.Close())
	})
}

// A call with a timeout ends on a silent connection.
func TestCallTimeoutOnSilentConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var last Message
		conn := newScripted(func(m Message) { last = m })
		c := must(NewClient(func(context.Context) (Conn, error) { return conn, nil }, &ClientOptions{Heartbeat: -1}))
		start := time.Now()
		_, err := c.Session("s").Call(t.Context(), "tool", nil, &CallOptions{Timeout: time.Second})
		require.ErrorIs(t, err, ErrExecutionTimeout)
		require.Equal(t, 6*time.Second, time.Since(start))
		synctest.Wait()
		require.Equal(t, "CancelCall", typeOf(last))
		require.NoError(t, c.Close())
	})
}

func TestClientNamesFailureOfRequest(t *testing.T) {
	ping := func(ctx context.Context, url string) error {
		c := must(NewClient(func(ctx context.Context) (Conn, error) { return DialHTTP(ctx, url, nil) }, nil))
		defer func() { require.NoError(t, c.Close()) }()
		return c.Ping(ctx)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, l.Close())
	require.ErrorIs(t, ping(t.Context(), "http://"+l.Addr().String()), syscall.ECONNREFUSED)

	ts := httptest.NewServer(http.NotFoundHandler())
	defer ts.Close()
	err = ping(t.Context(), ts.URL)
	require.ErrorContains(t, err, "404")
	require.NotErrorIs(t, err, syscall.ECONNREFUSED)

	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, ping(ctx, "http://"+silentPeer(t)), context.DeadlineExceeded)
}

// A call to a server that is no Host ends with the status, not after ReconnectTimeout.
func TestCallEndsOnPermanentStatus(t *testing.T) {
	ts := httptest.NewServer(http.NotFoundHandler())
	defer ts.Close()
	dial, dials := countedDials(func(ctx context.Context) (Conn, error) { return DialHTTP(ctx, ts.URL, nil) })
	c := must(NewClient(dial, nil))
	defer func() { require.NoError(t, c.Close()) }()
	_, err := c.Session("s").Call(t.Context(), "tool", nil, nil)
	require.ErrorContains(t, err, "404")
	require.Equal(t, int32(1), dials.Load())
}

func TestTokenSourceAuthenticatesRequestsAndHandshakes(t *testing.T) {
	h := testHost(t, &HostOptions{Auth: Auth{Authenticator: keys()}})
	ts := server(t, h)
	key := strings.TrimPrefix(keyOf(testUser).Get(APIKeyHeader), "")
	source := TokenSourceFunc(func(context.Context) (string, error) { return key, nil })
	for name, dial := range map[string]Dialer{
		"http": func(ctx context.Context) (Conn, error) {
			return DialHTTP(ctx, ts.URL, &HTTPDialOptions{HTTPClient: ts.Client(), TokenSource: source})
		},
		"websocket": func(ctx context.Context) (Conn, error) {
			return DialWebSocket(ctx, ts.URL, &WebSocketDialOptions{HTTPClient: ts.Client(), TokenSource: source})
		},
	} {
		c := must(NewClient(dial, nil))
		_, err := c.CreateSession(t.Context(), nil)
		require.NoError(t, err, name)
		require.NoError(t, c.Close())
	}
	failed := errors.New("no token")
	source = func(context.Context) (string, error) { return "", failed }
	_, err := DialWebSocket(t.Context(), ts.URL, &WebSocketDialOptions{HTTPClient: ts.Client(), TokenSource: source})
	require.ErrorIs(t, err, failed)
	source = func(context.Context) (string, error) { panic("no token") }
	_, err = DialWebSocket(t.Context(), ts.URL, &WebSocketDialOptions{HTTPClient: ts.Client(), TokenSource: source})
	require.ErrorContains(t, err, "panic")
}

// A Conn of a program that panics ends its connection alone.
type panickingConn struct{ *scripted }

func (panickingConn) Receive() (Message, error) { panic("a secret") }

func TestPanicOfConnEndsConnectionAlone(t *testing.T) {
	h := testHost(t, nil)
	err := h.Serve(t.Context(), panickingConn{newScripted(func(Message) {})}, testUser)
	require.ErrorContains(t, err, "panic")
	require.Zero(t, h.Stats().Connections)
	err = testRuntime("r1", nil).Run(t.Context(), panickingConn{newScripted(func(Message) {})})
	require.ErrorContains(t, err, "panic")
	require.NotErrorIs(t, err, io.EOF)
}

// A program that passes no Conn or no manifest gets an error at once.
func TestNilArgumentsAreErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := testHost(t, nil)
		rt := testRuntime("r1", nil)
		noConn := func(context.Context) (Conn, error) { return nil, nil }
		c, err := NewClient(noConn, nil)
		require.NoError(t, err)
		defer c.Close()
		start := time.Now()
		require.ErrorContains(t, c.Ping(t.Context()), "nil Conn")
		require.ErrorContains(t, rt.RunWithReconnect(t.Context(), noConn), "nil Conn")
		require.ErrorContains(t, rt.RunWithReconnect(t.Context(), nil), "missing Dialer")
		require.ErrorContains(t, rt.Run(t.Context(), nil), "nil Conn")
		require.ErrorContains(t, h.Serve(t.Context(), nil, testUser), "nil Conn")
		require.ErrorContains(t, rt.Run(t.Context(), NewStreamConn(nil, nil)), "nil Conn")
		require.ErrorContains(t, h.Serve(t.Context(), NewStreamConn(nil, nil), testUser), "nil Conn")
		require.Zero(t, time.Since(start))
		_, err = newHost(nil, AuthorizerFunc(AllowAll), &HostOptions{})
		require.ErrorContains(t, err, "missing Manifest")
		require.ErrorContains(t, h.ReplaceManifest(nil), "missing Manifest")
	})
}

// beforeJump returns a time of the clock of this process as it was read before the wall clock was set forward.
func beforeJump(t *testing.T, at time.Time, jump time.Duration) time.Time {
	moved := at
	*(*uint64)(unsafe.Pointer(&moved)) -= uint64(jump/time.Second) << 30 // the seconds of the wall clock
	if moved.Sub(at) != 0 || moved.Round(0).Sub(at.Round(0)) != -jump {
		t.Skip("package time has another representation")
	}
	return moved
}

// A Host whose wall clock is set forward, as after the sleep of a machine, neither waits for its timers nor loses its
// connections.
func TestWallClockIsSetForward(t *testing.T) {
	h := testHost(t, nil)
	timer := core.Timer{Event: timerFunc(func(time.Time) {})}
	h.setTimer(&timer, beforeJump(t, time.Now().Add(30*time.Second), time.Hour))
	start := time.Now()
	w := connect(t, h, testUser)
	w.session("s")
	require.Less(t, time.Since(start), 20*time.Second)

	past := time.Now().Add(-time.Second)
	hc := &hostConn{h: h}
	hc.received(beforeJump(t, past, time.Hour))
	require.Less(t, time.Since(hc.lastReceived()), 30*time.Second)
	stream, reader := core.NewStream(0), &core.Reader{}
	require.True(t, stream.Attach(reader, 0, 0, beforeJump(t, past.Add(-time.Second), time.Hour)))
	stream.Accept(core.Chunk{}, beforeJump(t, past, time.Hour))
	since, isStalled := stream.Stalled(reader)
	require.True(t, isStalled)
	require.Less(t, time.Since(since), 30*time.Second)
}

// The expiry of a token counts by the wall clock.
func TestTimersOfTheWallClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := testHost(t, nil)
		var fired []int
		timers := [4]core.Timer{}
		for i, due := range []time.Time{
			time.Now().Add(3 * time.Second), time.Now().Add(time.Second).Round(0), time.Now().Add(2 * time.Second).Round(0), time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC),
		} {
			timers[i].Event = timerFunc(func(time.Time) { fired = append(fired, i) })
			h.setTimer(&timers[i], due)
		}
		time.Sleep(3500 * time.Millisecond)
		h.lockAll()
		defer h.unlockAll()
		require.Equal(t, []int{1, 2, 0}, fired)
	})
}

// A function that is nil is refused when it is given.
func TestNilFunctionsAreRefused(t *testing.T) {
	_, err := NewClient(func(context.Context) (Conn, error) { return nil, nil }, &ClientOptions{Interceptors: []Interceptor{nil}})
	require.EqualError(t, err, "altar: client: nil Interceptor")
	_, err = NewClient(func(context.Context) (Conn, error) { return nil, nil },
		&ClientOptions{Interceptors: []Interceptor{func(CallFunc) CallFunc { return nil }}})
	require.EqualError(t, err, "altar: client: interceptor returned no function")
	for _, o := range []RuntimeOptions{{Middleware: []Middleware{nil}}, {StreamMiddleware: []StreamMiddleware{nil}}} {
		_, err = NewRuntime("r1", &o)
		require.EqualError(t, err, "altar: runtime: nil Middleware")
	}
	rt := must(NewRuntime("r1", nil))
	for text, add := range map[string]func(){
		`altar: the tool "a" has no handler`: func() { rt.Handle("a", HandlerFunc(nil)) },
		`altar: the tool "b" has no handler`: func() { rt.HandleStream("b", StreamHandlerFunc(nil)) },
		`altar: the tool "c" has no handler`: func() { AddTool[struct{}, int](rt, "c", nil) },
		`altar: the tool "d" has no handler`: func() { AddStreamTool[struct{}](rt, "d", nil) },
		`altar: nil Contract`:                func() { rt.HandleContract(nil, HandlerFunc(nil)) },
		`altar: the middleware of tool "e" returned no handler`: func() {
			rt := must(NewRuntime("r1", &RuntimeOptions{Middleware: []Middleware{func(Handler) Handler { return nil }}}))
			rt.Handle("e", HandlerFunc(func(context.Context, *ToolCall) (any, error) { return nil, nil }))
		},
	} {
		require.PanicsWithValue(t, text, add)
	}
	r := httptest.NewRequest(http.MethodPost, MessagesPath, nil)
	r.Header.Set("Authorization", "Bearer token")
	_, err = BearerAuthenticator(nil).Authenticate(r)
	require.EqualError(t, err, "altar: no TokenVerifier")
}
