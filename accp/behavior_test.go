// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package accp_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"reflect"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coder/websocket"
	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/accp"
	"github.com/fivewire/fivewire/internal/kit"
	"github.com/fivewire/fivewire/internal/testkit"
	"github.com/fivewire/fivewire/store"
)

// The ReadTimeout of the http.Server is not prolonged.
func TestServerKeepsReadTimeoutOfHTTPServer(t *testing.T) {
	s, err := accp.NewServer("server", &accp.ServerOptions{Auth: accp.Auth{AllowAnonymous: true}})
	require.NoError(t, err)
	ts := httptest.NewUnstartedServer(s)
	ts.Config.ReadTimeout = 300 * time.Millisecond
	ts.Start()
	defer ts.Close()
	c, err := net.Dial("tcp", ts.Listener.Addr().String())
	require.NoError(t, err)
	defer c.Close()
	_, err = fmt.Fprint(c, "POST /accp/v1/frames HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/accp\r\nContent-Length: 1000\r\n\r\n")
	require.NoError(t, err)
	start := time.Now()
	stop := make(chan struct{})
	var work sync.WaitGroup
	work.Go(func() {
		for {
			select {
			case <-stop:
				return
			case <-time.After(50 * time.Millisecond):
				_, _ = c.Write([]byte("a"))
			}
		}
	})
	_, _ = io.Copy(io.Discard, c)
	close(stop)
	work.Wait()
	require.Less(t, time.Since(start), 10*time.Second, "without it, the default of 30 s applies")
	require.NoError(t, s.Close())
}

// An insecure URL is refused before a connection is made.
func TestClientRefusesInsecureURL(t *testing.T) {
	for _, u := range []string{"http://example.com/", "ws://example.com/", "http://10.0.0.1/"} {
		_, err := accp.NewClient(u, "a", nil)
		require.ErrorContains(t, err, "scheme", u)
		_, err = accp.NewClient(u, "a", &accp.ClientOptions{AllowInsecure: true})
		require.NoError(t, err, u)
	}
	for _, u := range []string{"http://localhost/", "ws://127.0.0.1/", "http://[::1]:80/", "https://example.com/", "wss://example.com/"} {
		_, err := accp.NewClient(u, "a", nil)
		require.NoError(t, err, u)
	}
}

// A failed connection, a wrong URL and a missing answer are three errors.
func TestFailedConnectionsNotFoundAndTimeoutsDiffer(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	ts := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		if r.URL.Path == "/none" {
			http.NotFound(w, r)
			return
		}
		<-r.Context().Done()
	}))
	defer ts.Close()
	require.NoError(t, l.Close()) // the server has another port
	tr := &http.Transport{}
	defer tr.CloseIdleConnections()
	call := func(url string) error {
		c, err := accp.NewClient(url, "a", &accp.ClientOptions{HTTPClient: &http.Client{Transport: tr}, Timing: accp.ClientTiming{Timeout: 300 * time.Millisecond},
			Retry: &accp.RetryPolicy{MaxAttempts: -1}})
		require.NoError(t, err)
		defer c.Close()
		_, err = c.Call(t.Context(), msg("req", "x"), nil)
		return err
	}
	for _, scheme := range []string{"http", "ws"} {
		err := call(scheme + "://" + l.Addr().String())
		require.ErrorIs(t, err, accp.ErrUnreachable)
		require.NotErrorIs(t, err, accp.ErrTimeout)
		var status *accp.CallError
		require.ErrorAs(t, call(scheme+strings.TrimPrefix(ts.URL, "http")+"/none"), &status)
		require.Equal(t, 404, status.Status)
	}
	err = call(ts.URL)
	require.ErrorIs(t, err, accp.ErrTimeout)
	require.NotErrorIs(t, err, accp.ErrUnreachable)
}

// A header of which a proxy may use another value than the server refuses the request.
// A client whose request is refused in a shutdown reaches another server, not this one on the same connection.
func TestShutdownEndsConnections(t *testing.T) {
	d := newDesk(t, nil)
	kit.CheckLeaves(t, d.Server, accp.FramesPath, d.Shutdown)
}

func TestServerRefusesRepeatedHeaders(t *testing.T) {
	d := newDesk(t, nil)
	for _, name := range []string{"Authorization", "Content-Type", "Content-Encoding", "Origin"} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, d.ts.URL+accp.FramesPath, strings.NewReader(string(frame("ping:x{}", 1))))
		require.NoError(t, err)
		r.Header.Set("Content-Type", accp.MediaType)
		r.Header[name] = []string{accp.MediaType, accp.MediaType}
		res, err := d.client.Do(r)
		require.NoError(t, err)
		require.NoError(t, res.Body.Close())
		require.Equal(t, http.StatusBadRequest, res.StatusCode, name)
	}
}

// A frame over the limit of the peer is refused before it is sent and fails alone.
func TestClientRefusesLargeOutput(t *testing.T) {
	d := newDesk(t, nil)
	o := &accp.ClientOptions{MaxOutput: 300, Session: accp.SessionOptions{Budget: accp.BudgetOff}}
	for _, c := range []caller{d.http(t, o), d.dial(t, o)} {
		_, err := c.Call(t.Context(), msg("req", "echo", accp.Param{Key: "k", Value: accp.Map(text("k", strings.Repeat("x", 400)))}), nil)
		require.ErrorIs(t, err, accp.ErrTooLarge)
		_, err = c.Call(t.Context(), msg("req", "echo"), nil)
		require.NoError(t, err, "no number is missing")
	}
}

func TestClientCloseIsFast(t *testing.T) {
	d := newDesk(t, nil)
	c := d.dial(t, nil)
	called := make(chan error)
	go func() {
		_, err := c.Call(t.Context(), msg("req", "slow"), nil)
		called <- err
	}()
	<-d.began
	start := time.Now()
	require.NoError(t, c.Close())
	require.Less(t, time.Since(start), 900*time.Millisecond, "a peer that answers is not waited for in vain")
	require.ErrorIs(t, <-called, accp.ErrClosed)
	_, err := c.Call(t.Context(), msg("req", "echo"), nil)
	require.ErrorIs(t, err, accp.ErrClosed)

	h := d.http(t, nil)
	go func() {
		_, err := h.Call(t.Context(), msg("req", "slow"), nil)
		called <- err
	}()
	<-d.began
	require.NoError(t, h.Close())
	require.ErrorIs(t, <-called, accp.ErrClosed)

	synctest.Test(t, func(t *testing.T) { // a peer that never closes
		p := newPipe()
		stop := p.serve(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			ws, err := websocket.Accept(w, r, nil)
			if err == nil {
				answerGreeting(ws)
				time.Sleep(10 * time.Second)
				_ = ws.CloseNow()
			}
		}))
		c, err := accp.Dial(t.Context(), "ws://localhost/", "client", &accp.ClientOptions{HTTPClient: p.client()})
		require.NoError(t, err)
		start := time.Now()
		require.NoError(t, c.Close())
		require.LessOrEqual(t, time.Since(start), time.Second)
		time.Sleep(10 * time.Second)
		stop()
	})
}

// Close does not wait for a token source that ignores the end of its context.
func TestCloseDuringStuckTokenSource(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stuck := make(chan struct{})
		c, err := accp.NewClient("ws://localhost/", "client", &accp.ClientOptions{
			TokenSource: accp.TokenSourceFunc(func(context.Context) (string, error) {
				<-stuck
				return "", nil
			})})
		require.NoError(t, err)
		called := make(chan error)
		go func() {
			_, err := c.Call(t.Context(), msg("req", "work"), nil)
			called <- err
		}()
		synctest.Wait()
		time.AfterFunc(time.Minute, func() { close(stuck) })
		start := time.Now()
		require.NoError(t, c.Close())
		require.LessOrEqual(t, time.Since(start), time.Second)
		require.ErrorIs(t, <-called, accp.ErrClosed)
	})
}

// Against a server of this package, Close of a client takes no time, and that of the server at most a
// second although a handler ignores its context.
func TestCloseTakesAtMostOneSecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, err := accp.NewServer("server", &accp.ServerOptions{Auth: accp.Auth{AllowAnonymous: true},
			Logger: slog.New(slog.DiscardHandler)})
		require.NoError(t, err)
		release := make(chan struct{})
		s.Handle("req", "stuck", accp.HandlerFunc(func(context.Context, *accp.ReplyWriter, *accp.Message) error {
			<-release
			return nil
		}))
		p := newPipe()
		stop := p.serve(s)
		c, err := accp.Dial(t.Context(), "ws://localhost"+accp.WebSocketPath, "client", &accp.ClientOptions{HTTPClient: p.client()})
		require.NoError(t, err)
		called := make(chan error)
		go func() {
			_, err := c.Call(t.Context(), msg("req", "stuck"), nil)
			called <- err
		}()
		synctest.Wait()
		start := time.Now()
		require.NoError(t, c.Close())
		require.Less(t, time.Since(start), 100*time.Millisecond)
		require.ErrorIs(t, <-called, accp.ErrClosed)
		start = time.Now()
		require.NoError(t, s.Close())
		require.LessOrEqual(t, time.Since(start), time.Second)
		close(release)
		stop()
	})
}

// The first interceptor is outermost.
func TestInterceptorsWrapCalls(t *testing.T) {
	d := newDesk(t, nil)
	var names []string
	note := func(name string) accp.Interceptor {
		return func(next accp.CallFunc) accp.CallFunc {
			return func(ctx context.Context, m *accp.Message, o *accp.CallOptions) iter.Seq2[*accp.Message, error] {
				names = append(names, name)
				return next(ctx, m, o)
			}
		}
	}
	c := d.http(t, &accp.ClientOptions{Interceptors: []accp.Interceptor{note("outer"), note("inner")}})
	out, err := accp.CallAs[struct{ K string }](t.Context(), c, "echo", struct{ K string }{"v"}, nil)
	require.NoError(t, err)
	require.Equal(t, "v", out.K)
	require.Equal(t, []string{"outer", "inner"}, names)
}

// Handlers that ignore their context hold no shutdown.
func TestShutdownAndCloseReturnDespiteStuckHandlers(t *testing.T) {
	release := make(chan struct{})
	began := make(chan struct{}, 2)
	newStuck := func() *desk {
		d := newDesk(t, &accp.ServerOptions{Logger: slog.New(slog.DiscardHandler)})
		d.Handle("req", "stuck", accp.HandlerFunc(func(context.Context, *accp.ReplyWriter, *accp.Message) error {
			began <- struct{}{}
			<-release
			return nil
		}))
		for _, c := range []caller{d.http(t, nil), d.dial(t, nil)} {
			go func() { _, _ = c.Call(t.Context(), msg("req", "stuck"), nil) }()
			<-began
		}
		return d
	}
	d := newStuck()
	require.NoError(t, d.Ready())
	page := func() (int, string) {
		w := httptest.NewRecorder()
		d.DebugHandler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
		return w.Code, w.Body.String()
	}
	code, text := page()
	require.Equal(t, 200, code)
	require.Contains(t, text, "memory")
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, d.Shutdown(ctx), context.DeadlineExceeded)
	require.ErrorIs(t, d.Ready(), accp.ErrClosed)
	code, _ = page()
	require.Equal(t, http.StatusServiceUnavailable, code)
	placesOf := func(d *desk) int64 {
		for _, u := range d.Usage() {
			if u.Resource == "work" && u.Scope == "all" {
				return u.Used
			}
		}
		return -1
	}
	require.EqualValues(t, 2, placesOf(d), "they keep their places")
	other := newStuck()
	start := time.Now()
	require.NoError(t, other.Close())
	require.Less(t, time.Since(start), 3*time.Second)
	close(release)
	until(func() bool { return placesOf(d)+placesOf(other) == 0 })
}

// The error of another server is not passed on as one of this server.
func TestRemoteErrorIsNotPassedOn(t *testing.T) {
	d := newDesk(t, &accp.ServerOptions{Logger: slog.New(slog.DiscardHandler)})
	remote := &accp.Error{Code: accp.ErrPolicyDenied, Remote: true}
	d.Handle("req", "forward", accp.HandlerFunc(func(context.Context, *accp.ReplyWriter, *accp.Message) error {
		return fmt.Errorf("downstream: %w", remote)
	}))
	d.Handle("req", "wrap", accp.HandlerFunc(func(context.Context, *accp.ReplyWriter, *accp.Message) error {
		return &accp.Error{Code: accp.ErrPolicyDenied, Cause: remote}
	}))
	both(t, d, func(t *testing.T, c caller) {
		_, err := c.Call(t.Context(), msg("req", "forward"), nil)
		require.ErrorIs(t, err, accp.ErrInternal)
		_, err = c.Call(t.Context(), msg("req", "wrap"), nil)
		require.ErrorIs(t, err, accp.ErrPolicyDenied)
	})
}

func TestServerRequiresAuthentication(t *testing.T) {
	for _, o := range []*accp.ServerOptions{nil, {}} {
		_, err := accp.NewServer("server", o)
		require.ErrorContains(t, err, "AllowAnonymous")
	}
	for _, keys := range []map[string]*accp.Principal{nil, {"": {ID: "a"}}, {"k": nil}, {"k": {}}} {
		_, err := accp.APIKeyAuthenticator(keys)
		require.Error(t, err)
	}
	keys, err := accp.APIKeyAuthenticator(map[string]*accp.Principal{"secret": {ID: "a"}})
	require.NoError(t, err)
	var records []accp.AuditRecord
	var log bytes.Buffer
	s, err := accp.NewServer("server", &accp.ServerOptions{Auth: accp.Auth{Authenticator: keys},
		Audit:  func(_ context.Context, r *accp.AuditRecord) { records = append(records, *r) },
		Logger: slog.New(slog.NewTextHandler(&log, nil))})
	require.NoError(t, err)
	for i, tt := range []struct {
		path, authorization string
		status              int
	}{
		{accp.FramesPath, "", 401}, {accp.FramesPath, "Bearer wrong", 401}, {accp.WebSocketPath, "Bearer wrong", 401},
		{accp.FramesPath, "Bearer secret", 200},
	} {
		r := httptest.NewRequest(http.MethodPost, tt.path, strings.NewReader(string(frame("ping:x{}", 1))))
		r.Header.Set("Content-Type", accp.MediaType)
		r.Header.Set("Authorization", tt.authorization)
		w := httptest.NewRecorder()
		s.ServeHTTP(w, r)
		require.Equal(t, tt.status, w.Code)
		require.Len(t, records, i+1, "every request has a record")
		require.EqualValues(t, i+1, records[i].Seq)
		require.Equal(t, r.RemoteAddr, records[i].Peer)
		if tt.status == 401 {
			require.Equal(t, "refused", records[i].Outcome)
			require.Equal(t, "401", records[i].Code)
			require.NotContains(t, fmt.Sprint(records[i]), "wrong")
		}
	}
	last := records[3]
	require.Equal(t, []string{"a", "ping:x", "ok", "a"}, []string{last.Principal, last.Operation, last.Outcome, last.Sender})
	require.NotZero(t, last.Bytes)
	require.Equal(t, 3, strings.Count(log.String(), "level=WARN"), "each refusal is logged")
	require.NoError(t, s.Close())
}

// A connection ends with the authentication of its principal.
func TestConnectionEndsWithItsPrincipal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, err := accp.NewServer("server", &accp.ServerOptions{Auth: accp.Auth{
			Authenticator: accp.AuthenticatorFunc(func(*http.Request) (*accp.Principal, error) {
				return &accp.Principal{ID: "a", Expires: time.Now().Add(time.Minute)}, nil
			})}})
		require.NoError(t, err)
		p := newPipe()
		stop := p.serve(s)
		c, err := accp.Dial(t.Context(), "ws://localhost"+accp.WebSocketPath, "client", &accp.ClientOptions{HTTPClient: p.client()})
		require.NoError(t, err)
		start := time.Now()
		<-c.Done()
		require.Equal(t, time.Minute, time.Since(start))
		require.Equal(t, 1008, accp.CloseCode(c.Err()))
		require.NoError(t, c.Close())
		require.NoError(t, s.Close())
		stop()
	})
}

// A client whose token expires connects again with a new one, and a call that runs then has its result (ACCP-D75).
func TestClientConnectsAgainWhenItsTokenExpires(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, err := accp.NewServer("server", &accp.ServerOptions{Auth: accp.Auth{
			Authenticator: accp.BearerAuthenticator(accp.TokenVerifierFunc(func(_ context.Context, token string) (*accp.Principal, error) {
				expires, err := time.Parse(time.RFC3339Nano, token)
				return &accp.Principal{ID: "a", Expires: expires}, err
			}))}})
		require.NoError(t, err)
		ran := 0
		s.Handle("req", "work", accp.HandlerFunc(func(_ context.Context, w *accp.ReplyWriter, _ *accp.Message) error {
			ran++
			time.Sleep(20 * time.Second)
			return w.Send(msg("done", "work"))
		}))
		p := newPipe()
		stop := p.serve(s)
		tokens := accp.TokenSourceFunc(func(context.Context) (string, error) {
			return time.Now().Add(time.Minute).Format(time.RFC3339Nano), nil
		})
		c, err := accp.NewClient("ws://localhost"+accp.WebSocketPath, "client", &accp.ClientOptions{HTTPClient: p.client(), TokenSource: tokens})
		require.NoError(t, err)
		for i := range 5 {
			_, err = c.Call(t.Context(), msg("req", "work"), nil)
			require.NoError(t, err, i)
			require.Equal(t, i+1, ran)
			time.Sleep(30 * time.Second)
		}
		require.NoError(t, c.Close())
		require.NoError(t, s.Close())
		stop()
	})
}

// A server that fails or has no room, and a token source that fails, do not end the return of a client (ACCP-D75).
func TestClientReturnsToServerThatFails(t *testing.T) {
	for _, what := range []string{"store", "full", "token"} {
		synctest.Test(t, func(t *testing.T) {
			isFull := what == "full"
			kv, isRepaired := &flaky{Store: store.NewMemory()}, make(chan struct{})
			s := newUserServer(t, accp.ServerOptions{Persistence: accp.Persistence{Store: kv}, Limits: accp.Limits{MaxItemsPerPrincipal: 1}})
			s.Handle("req", "hold", accp.HandlerFunc(func(context.Context, *accp.ReplyWriter, *accp.Message) error {
				<-isRepaired
				return nil
			}))
			p := newPipe()
			stop := p.serve(s)
			returns := make(chan struct{}, 1)
			c, err := accp.NewClient("ws://localhost"+accp.WebSocketPath, "client", &accp.ClientOptions{HTTPClient: p.client(),
				Header: http.Header{"User": {"a"}}, Logger: slog.New(slog.DiscardHandler),
				TokenSource: accp.TokenSourceFunc(func(context.Context) (string, error) {
					if what == "token" && kv.fail.Load() {
						return "", errBroken
					}
					return "", nil
				}), OnReconnect: func(context.Context) { returns <- struct{}{} }})
			require.NoError(t, err)
			kv.fail.Store(true)
			time.AfterFunc(100*time.Millisecond, func() { kv.fail.Store(false) })
			_, err = c.Call(t.Context(), msg("req", "echo"), nil)
			require.NoError(t, err, "the first attempt to connect fails")
			kv.fail.Store(!isFull)
			c.Cut()
			synctest.Wait()
			if isFull {
				go s.post("a", "other", "req:hold{}") // replaces the idle session
			}
			time.Sleep(time.Minute)
			require.Empty(t, returns)
			kv.fail.Store(false)
			close(isRepaired)
			time.Sleep(time.Minute)
			require.Len(t, returns, 1)
			require.NoError(t, c.Close())
			stop()
		})
	}
}

// The calls that wait for a lost connection do not wait for the hook that reports its return.
func TestReconnectHookDelaysNoCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newUserServer(t, accp.ServerOptions{})
		p := newPipe()
		stop := p.serve(s)
		to := p.client()
		dial, isDown := to.Transport.(*http.Transport).DialContext, atomic.Bool{}
		to.Transport = &http.Transport{DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			if isDown.Load() {
				return nil, &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}
			}
			return dial(ctx, network, addr)
		}}
		answers, isReported := make(chan error), make(chan struct{})
		c, err := accp.NewClient("ws://localhost"+accp.WebSocketPath, "client", &accp.ClientOptions{HTTPClient: to,
			Header: http.Header{"User": {"a"}}, Logger: slog.New(slog.DiscardHandler), OnReconnect: func(context.Context) {
				require.NoError(t, <-answers)
				close(isReported)
			}})
		require.NoError(t, err)
		_, err = c.Call(t.Context(), msg("req", "echo"), nil)
		require.NoError(t, err)
		isDown.Store(true)
		c.Cut()
		synctest.Wait()
		go func() {
			_, err := c.Call(t.Context(), msg("req", "echo"), nil)
			answers <- err
		}()
		time.AfterFunc(10*time.Second, func() { isDown.Store(false) })
		start := time.Now()
		<-isReported
		require.Less(t, time.Since(start), 25*time.Second)
		require.NoError(t, c.Close())
		stop()
	})
}

// A client without delays does not dial a server that is down without a pause.
func TestClientWithoutDelaysPausesBetweenConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newUserServer(t, accp.ServerOptions{})
		p := newPipe()
		stop := p.serve(s)
		to := p.client()
		dial, dials := to.Transport.(*http.Transport).DialContext, 0
		to.Transport = &http.Transport{DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			dials++
			if dials == 1 {
				return dial(ctx, network, addr)
			} else if dials > 1000 { // so that the time of the test passes
				time.Sleep(time.Second)
			}
			return nil, &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}
		}}
		c, err := accp.NewClient("ws://localhost"+accp.WebSocketPath, "client", &accp.ClientOptions{HTTPClient: to,
			Header: http.Header{"User": {"a"}}, Logger: slog.New(slog.DiscardHandler), Retry: &accp.RetryPolicy{Base: -1}})
		require.NoError(t, err)
		_, err = c.Call(t.Context(), msg("req", "echo"), nil)
		require.NoError(t, err)
		c.Cut()
		time.Sleep(10 * time.Second)
		require.NoError(t, c.Close())
		synctest.Wait()
		require.Greater(t, dials, 50)
		require.Less(t, dials, 200)
		stop()
	})
}

// Calls to a peer that accepts connections and sends nothing end in their time, however many wait for the connection
// (ACCP-D78).
func TestCallsToSilentPeerEndInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		silent := &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) {
			conn, peer := net.Pipe()
			go func() { _, _ = io.Copy(io.Discard, peer) }()
			return conn, nil
		}}
		c, err := accp.NewClient("ws://localhost"+accp.WebSocketPath, "client", &accp.ClientOptions{
			HTTPClient: &http.Client{Transport: silent}, Logger: slog.New(slog.DiscardHandler)})
		require.NoError(t, err)
		start, calls := time.Now(), make(chan error, 20)
		for range cap(calls) {
			go func() {
				_, err := c.Call(t.Context(), msg("req", "echo"), &accp.CallOptions{Timeout: time.Second})
				calls <- err
			}()
		}
		for range cap(calls) {
			err := <-calls
			require.ErrorIs(t, err, accp.ErrUnreachable)
			require.NotErrorIs(t, err, accp.ErrTimeout)
		}
		require.Less(t, time.Since(start), 6*time.Second, "three attempts")
		require.NoError(t, c.Close())
	})
}

// While a peer accepts connections and does not answer the greeting, an exchange of the registries waits for its own
// time limit only, whatever other calls wait for. The next one opens another connection.
func TestSyncRegistryOfSilentPeerEndsInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, isSilent := newPipe(), atomic.Bool{}
		isSilent.Store(true)
		stop := p.serve(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			ws, err := websocket.Accept(w, r, nil)
			if err == nil && !isSilent.Load() {
				answerGreeting(ws)
			}
			for err == nil {
				_, _, err = ws.Read(context.Background())
			}
		}))
		c, err := accp.NewClient("ws://localhost/", "client", &accp.ClientOptions{HTTPClient: p.client(),
			Timing: accp.ClientTiming{Timeout: time.Second}, Retry: &accp.RetryPolicy{MaxAttempts: -1},
			Logger: slog.New(slog.DiscardHandler)})
		require.NoError(t, err)
		calls := make(chan error, 20)
		for range cap(calls) {
			go func() {
				_, err := c.Call(t.Context(), msg("req", "echo"), &accp.CallOptions{Timeout: time.Hour})
				calls <- err
			}()
		}
		synctest.Wait()
		start := time.Now()
		_, err = c.SyncRegistry(t.Context())
		require.Equal(t, time.Second, time.Since(start))
		require.ErrorIs(t, err, accp.ErrUnreachable)
		for range cap(calls) {
			require.ErrorIs(t, <-calls, accp.ErrUnreachable)
		}
		isSilent.Store(false)
		_, err = c.SyncRegistry(t.Context())
		require.NoError(t, err)
		require.NoError(t, c.Close())
		stop()
	})
}

// No delay is longer than Max and its random part.
func TestDelaysAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var posts []time.Time
		c, err := accp.NewClient("http://localhost"+accp.FramesPath, "client", &accp.ClientOptions{Retry: &accp.RetryPolicy{MaxAttempts: 4, Base: time.Minute, Max: 10 * time.Second},
			HTTPClient: &http.Client{Transport: roundTrips(func(*http.Request) (*http.Response, error) {
				posts = append(posts, time.Now())
				return nil, errors.New("lost")
			})}})
		require.NoError(t, err)
		_, err = c.Call(t.Context(), msg("ping", "heartbeat"), nil)
		require.Error(t, err)
		require.Len(t, posts, 4)
		for i, post := range posts[1:] {
			require.InDelta(t, 10, post.Sub(posts[i]).Seconds(), 2)
		}
		require.NoError(t, c.Close())
	})
}

// A client waits for the seconds or until the date that a server requests, at most for MaxRetryAfter (ACCP-D29).
func TestRetryAfterIsBounded(t *testing.T) {
	for name, tt := range map[string]struct {
		after func() string
		want  time.Duration // of the two delays between three attempts
	}{
		"seconds":  {func() string { return "7" }, 14 * time.Second},
		"date":     {func() string { return time.Now().Add(7 * time.Second).UTC().Format(http.TimeFormat) }, 14 * time.Second},
		"negative": {func() string { return "-7" }, 0},
		"95 years": {func() string { return "3000000000" }, 2 * time.Minute},
		"overflow": {func() string { return "18446744074" }, 2 * time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newPipe()
				stop := p.serve(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
					w.Header().Set("Retry-After", tt.after())
					w.Header().Set("Connection", "close")
					w.WriteHeader(http.StatusTooManyRequests)
				}))
				c, err := accp.NewClient("http://localhost"+accp.FramesPath, "client",
					&accp.ClientOptions{HTTPClient: p.client(), Retry: &accp.RetryPolicy{Base: -1}})
				require.NoError(t, err)
				start := time.Now()
				_, err = c.Call(t.Context(), msg("req", "work"), nil)
				require.ErrorIs(t, err, accp.ErrUnreachable)
				require.Equal(t, tt.want, time.Since(start))
				require.NoError(t, c.Close())
				stop()
			})
		})
	}
}

// A caller over its budget is refused with a hint, and others are not.
func TestBudgetRefusesOneCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, err := accp.NewServer("server", &accp.ServerOptions{Auth: accp.Auth{
			Authenticator: accp.AuthenticatorFunc(func(r *http.Request) (*accp.Principal, error) {
				return &accp.Principal{ID: r.Header.Get("User")}, nil
			})}, Limits: accp.Limits{MaxConcurrentPerPrincipal: 1, QueueLimitPerPrincipal: 1, RequestRate: 5}})
		require.NoError(t, err)
		release := make(chan struct{})
		s.Handle("req", "wait", accp.HandlerFunc(func(context.Context, *accp.ReplyWriter, *accp.Message) error {
			<-release
			return nil
		}))
		post := func(user, sid string) *httptest.ResponseRecorder {
			r := httptest.NewRequest(http.MethodPost, accp.FramesPath, strings.NewReader(string(frame("req:wait{}", 1, "sid:"+sid))))
			r.Header.Set("Content-Type", accp.MediaType)
			r.Header.Set("User", user)
			w := httptest.NewRecorder()
			s.ServeHTTP(w, r)
			return w
		}
		for _, sid := range []string{"a1", "a2"} { // one runs, one waits
			go post("a", sid)
		}
		synctest.Wait()
		w := post("a", "a3")
		require.Equal(t, http.StatusServiceUnavailable, w.Code)
		require.NotEmpty(t, w.Header().Get("Retry-After"))
		require.Zero(t, w.Body.Len(), "nothing of the frame was used")
		done := make(chan int, 1)
		go func() { done <- post("b", "b1").Code }()
		synctest.Wait()
		used := map[string]int64{}
		for _, u := range s.Usage() {
			used[u.Resource+" "+u.Scope] = u.Used
		}
		require.EqualValues(t, 2, used["work all"])
		require.EqualValues(t, 1, used["work principal"])
		close(release)
		require.Equal(t, 200, <-done)
		synctest.Wait()
		for range 5 {
			post("c", "c1")
		}
		require.Equal(t, http.StatusServiceUnavailable, post("c", "c1").Code, "the rate")
		require.NoError(t, s.Close())
	})
}

// Over a connection, a message above the rate is refused in its session, and the numbers continue.
func TestRateOfMessagesOfConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newUserServer(t, accp.ServerOptions{Limits: accp.Limits{RequestRate: 1, RequestBurst: 5}})
		p := newPipe()
		stop := p.serve(s)
		dial := func(user string) *accp.Client {
			c, err := accp.Dial(t.Context(), "ws://localhost"+accp.WebSocketPath, "client", &accp.ClientOptions{HTTPClient: p.client(),
				Header: http.Header{"User": {user}}, Retry: &accp.RetryPolicy{MaxAttempts: -1}})
			require.NoError(t, err)
			return c
		}
		a, b := dial("a"), dial("b")
		for range 4 { // after the handshake
			_, err := a.Call(t.Context(), msg("req", "echo"), nil)
			require.NoError(t, err)
		}
		for range 3 {
			_, err := a.Call(t.Context(), msg("req", "echo"), nil)
			require.ErrorIs(t, err, accp.ErrBudgetExceeded)
		}
		_, err := b.Call(t.Context(), msg("req", "echo"), nil)
		require.NoError(t, err)
		time.Sleep(time.Second)
		_, err = a.Call(t.Context(), msg("req", "echo"), nil)
		require.NoError(t, err)
		require.NoError(t, a.Close())
		require.NoError(t, b.Close())
		stop()
	})
}

// Over a connection, a message without a place is refused in its session.
func TestBudgetRefusesMessageOfConnection(t *testing.T) {
	d := newDesk(t, &accp.ServerOptions{Limits: accp.Limits{MaxConcurrentPerSession: 1, QueueLimitPerSession: 1}})
	c := d.dial(t, nil)
	ctx, cancel := context.WithCancel(t.Context())
	var work sync.WaitGroup
	var refused atomic.Int64
	for range 5 {
		work.Go(func() {
			if _, err := c.Call(ctx, msg("req", "slow"), nil); errors.Is(err, accp.ErrBudgetExceeded) {
				refused.Add(1)
			}
		})
	}
	until(func() bool { return refused.Load() == 3 })
	_, err := c.Call(t.Context(), msg("ping", "heartbeat"), nil)
	require.NoError(t, err, "the connection continues")
	cancel()
	work.Wait()
}

// A handler that ends its goroutine fails its call at once, and gives its place back.
func TestExitOfHandlerIsFailedCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var audited atomic.Int32
		s, err := accp.NewServer("server", &accp.ServerOptions{Auth: accp.Auth{AllowAnonymous: true},
			Limits: accp.Limits{MaxConcurrentPerSession: 1, QueueLimitPerSession: 1},
			Audit: func(_ context.Context, r *accp.AuditRecord) {
				if r.Operation == "req:exit" {
					audited.Add(1)
				}
			}})
		require.NoError(t, err)
		s.Handle("req", "exit", accp.HandlerFunc(func(context.Context, *accp.ReplyWriter, *accp.Message) error {
			runtime.Goexit()
			return nil
		}))
		p := newPipe()
		stop := p.serve(s)
		c, err := accp.NewClient("ws://localhost"+accp.WebSocketPath, "client", &accp.ClientOptions{HTTPClient: p.client(),
			Retry: &accp.RetryPolicy{MaxAttempts: -1}})
		require.NoError(t, err)
		start := time.Now()
		for range 3 {
			_, err := c.Call(t.Context(), msg("req", "exit"), nil)
			require.ErrorIs(t, err, accp.ErrInternal)
		}
		synctest.Wait()
		require.Zero(t, time.Since(start))
		require.EqualValues(t, 3, audited.Load())
		require.NoError(t, c.Close())
		require.NoError(t, s.Close())
		stop()
	})
}

// newSlowPair returns a client and a server whose handler of req:slow sends a chunk, waits for the end of its context and
// passes on the cause.
func newSlowPair(t *testing.T, path string, opts accp.ClientOptions, conn func(net.Conn) net.Conn) (*accp.Client, chan error) {
	t.Helper()
	s, err := accp.NewServer("server", &accp.ServerOptions{Auth: accp.Auth{AllowAnonymous: true}})
	require.NoError(t, err)
	causes := make(chan error, 1000)
	s.Handle("req", "slow", accp.HandlerFunc(func(ctx context.Context, w *accp.ReplyWriter, m *accp.Message) error {
		_ = w.Send(chunk(m.Op, 0, 2, accp.Int(0)))
		<-ctx.Done()
		causes <- context.Cause(ctx)
		return ctx.Err()
	}))
	p := newPipe()
	stop := p.serve(s)
	opts.HTTPClient = p.client()
	transport := opts.HTTPClient.Transport.(*http.Transport)
	if dial := transport.DialContext; conn != nil {
		transport.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
			c, err := dial(ctx, network, addr)
			if err != nil {
				return nil, err
			}
			return conn(c), nil
		}
	}
	scheme := "http"
	if path == accp.WebSocketPath {
		scheme = "ws"
	}
	c, err := accp.NewClient(scheme+"://localhost"+path, "client", &opts)
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, c.Close())
		require.NoError(t, s.Close())
		transport.CloseIdleConnections()
		stop()
	})
	return c, causes
}

// A loop that ends its goroutine cancels the chain at the peer, and a second loop over the answers sends nothing.
func TestExitOfLoopCancelsCall(t *testing.T) {
	for path, atMost := range map[string]time.Duration{
		accp.FramesPath:    50 * time.Millisecond, // of net/http from Go 1.27 on: it reads the rest of a closed body
		accp.WebSocketPath: 0,
	} {
		synctest.Test(t, func(t *testing.T) {
			c, causes := newSlowPair(t, path, accp.ClientOptions{}, nil)
			start := time.Now()
			answers := c.Replies(t.Context(), msg("req", "slow"), nil)
			go func() {
				for range answers {
					runtime.Goexit()
				}
			}()
			require.Error(t, <-causes, path)
			for _, err := range answers {
				require.ErrorContains(t, err, "once only", path)
			}
			synctest.Wait()
			require.Empty(t, causes, path)
			require.LessOrEqual(t, time.Since(start), atMost, path)
		})
	}
}

// Close ends a call over HTTP that waits for an exchange in whose loop the caller is.
func TestCloseEndsWaitingCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _ := newSlowPair(t, accp.FramesPath, accp.ClientOptions{}, nil)
		release := make(chan struct{})
		go func() {
			for range c.Replies(t.Context(), msg("req", "slow"), nil) {
				<-release
			}
		}()
		synctest.Wait()
		start, waiting := time.Now(), make(chan error)
		go func() {
			_, err := c.Call(t.Context(), msg("req", "slow"), nil)
			waiting <- err
		}()
		synctest.Wait()
		go c.Close()
		require.ErrorIs(t, <-waiting, accp.ErrClosed)
		require.ErrorIs(t, c.Sync(t.Context(), nil), accp.ErrClosed)
		require.Zero(t, time.Since(start))
		close(release)
	})
}

// A stuckConn takes no bytes once isStuck is set.
type stuckConn struct {
	net.Conn
	isStuck *atomic.Bool
	closed  chan struct{}
	once    sync.Once
}

func (c *stuckConn) Write(b []byte) (int, error) {
	if c.isStuck.Load() {
		<-c.closed
		return 0, net.ErrClosed
	}
	return c.Conn.Write(b)
}

func (c *stuckConn) Close() error {
	c.once.Do(func() { close(c.closed) })
	return c.Conn.Close()
}

// A canceled call does not wait for a peer that takes no bytes.
func TestCanceledCallReturnsThoughPeerIsStuck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var isStuck atomic.Bool
		c, _ := newSlowPair(t, accp.WebSocketPath, accp.ClientOptions{}, func(conn net.Conn) net.Conn {
			return &stuckConn{Conn: conn, isStuck: &isStuck, closed: make(chan struct{})}
		})
		calls := make(chan error, 200)
		call := func(ctx context.Context) {
			_, err := c.Call(ctx, msg("req", "slow", text("t", strings.Repeat("x", 100000))), nil)
			calls <- err
		}
		ctx, cancel := context.WithCancel(t.Context())
		go call(ctx)
		synctest.Wait()
		isStuck.Store(true)
		others, stop := context.WithCancel(t.Context())
		for range cap(calls) - 1 { // they fill the queue
			go call(others)
		}
		synctest.Wait()
		start := time.Now()
		cancel()
		require.ErrorIs(t, <-calls, context.Canceled)
		require.Less(t, time.Since(start), time.Second)
		stop()
		for range cap(calls) - 1 {
			require.Error(t, <-calls)
		}
	})
}

// adapters make a panicking value of each interface of the options.
var adapters = []reflect.Type{reflect.TypeFor[accp.AuthenticatorFunc](), reflect.TypeFor[accp.AuthorizerFunc](),
	reflect.TypeFor[accp.HandlerFunc](), reflect.TypeFor[accp.TokenSourceFunc](), reflect.TypeFor[accp.TokenCounterFunc]()}

// A panic of user code is one failed request: the next request is answered, and Close returns.
func TestPanicsOfServerOptionsAreFailedRequests(t *testing.T) {
	var log *testkit.Log
	var records atomic.Int64
	base := func() *accp.ServerOptions {
		log = &testkit.Log{}
		records.Store(0)
		return &accp.ServerOptions{Auth: accp.Auth{AllowAnonymous: true}, Logger: log.Logger(),
			Audit: func(context.Context, *accp.AuditRecord) { records.Add(1) }}
	}
	testkit.Hooks(t, base, func(t *testing.T, o *accp.ServerOptions, h *testkit.Hook) {
		s, err := accp.NewServer("server", o)
		if err != nil {
			return // refused by the constructor
		}
		s.Handle("req", "echo", accp.HandlerFunc(func(_ context.Context, w *accp.ReplyWriter, m *accp.Message) error {
			return w.SendResult(m.Params)
		}))
		ts := httptest.NewServer(s)
		defer ts.Close()
		tr := &http.Transport{}
		defer tr.CloseIdleConnections()
		for _, url := range []string{ts.URL + accp.FramesPath, "ws" + strings.TrimPrefix(ts.URL, "http") + accp.WebSocketPath} {
			c, err := accp.NewClient(url, "client", &accp.ClientOptions{HTTPClient: &http.Client{Transport: tr},
				Timing: accp.ClientTiming{Timeout: 500 * time.Millisecond}, Retry: &accp.RetryPolicy{MaxAttempts: -1}})
			require.NoError(t, err)
			for range 2 {
				_, err := c.Call(t.Context(), msg("req", "echo", text("schema", "TX"), text("currency", "x")), nil)
				if url[0] == 'h' { // a connection ends if its first frame fails
					require.NotErrorIs(t, err, accp.ErrUnreachable)
				}
				_, err = c.Call(t.Context(), msg("done", "x"), nil) // a checkpoint
				_ = err
			}
			require.NoError(t, c.Close())
		}
		if h.Path != "Session.Persistence.SharedStore" && h.Path != "Persistence.SharedStore" {
			require.Contains(t, log.String(), h.Path)
		}
		if h.Path != "Audit" {
			require.NotZero(t, records.Load())
		}
		start := time.Now()
		require.NoError(t, s.Close())
		require.Less(t, time.Since(start), 3*time.Second)
	}, adapters...)
}

func TestPanicsOfClientOptionsAreFailedCalls(t *testing.T) {
	d := newDesk(t, &accp.ServerOptions{Logger: slog.New(slog.DiscardHandler)})
	d.Handle("req", "ask", accp.HandlerFunc(func(_ context.Context, w *accp.ReplyWriter, m *accp.Message) error {
		if err := w.Send(msg("req", "other")); err != nil {
			return err
		}
		return w.SendResult(nil)
	}))
	base := func() *accp.ClientOptions {
		return &accp.ClientOptions{HTTPClient: d.client, Timing: accp.ClientTiming{Timeout: 500 * time.Millisecond}, Retry: &accp.RetryPolicy{MaxAttempts: -1},
			Logger: (&testkit.Log{}).Logger()}
	}
	testkit.Hooks(t, base, func(t *testing.T, o *accp.ClientOptions, _ *testkit.Hook) {
		for _, url := range []string{d.ts.URL + accp.FramesPath, "ws" + strings.TrimPrefix(d.ts.URL, "http") + accp.WebSocketPath} {
			c, err := accp.NewClient(url, "client", o)
			if err != nil {
				continue
			}
			for range 2 {
				_, _ = c.Call(t.Context(), msg("req", "ask", text("schema", "TX"), text("currency", "x")), nil)
			}
			start := time.Now()
			require.NoError(t, c.Close())
			require.Less(t, time.Since(start), 3*time.Second)
		}
	}, adapters...)
}

// A key that a state or one of its maps has twice is refused, and nothing is sent.
func TestStateWithDuplicateKeyIsRefused(t *testing.T) {
	d := newDesk(t, nil)
	c := d.http(t, nil)
	one, two := accp.Param{Key: "a", Value: accp.Int(1)}, accp.Param{Key: "a", Value: accp.Int(2)}
	for _, state := range []accp.Params{{one, two}, {{Key: "m", Value: accp.Map(one, two)}},
		{{Key: "m", Value: accp.Map(one)}, {Key: "m", Value: accp.Map(two)}}} {
		require.ErrorIs(t, c.Sync(t.Context(), state), accp.ErrParse)
		require.ErrorIs(t, c.Update(t.Context(), func(accp.Params) (accp.Params, error) { return state, nil }), accp.ErrParse)
		version, _ := c.Session().State()
		require.Zero(t, version)
	}
	require.NoError(t, c.Sync(t.Context(), accp.Params{two}))
}

// A call with an intent that has no answer ends when the frame is sent, also in the chain of an open call.
func TestCallsWithoutAnswer(t *testing.T) {
	d := newDesk(t, nil)
	both(t, d, func(t *testing.T, c caller) {
		for _, intent := range []accp.Intent{accp.IntentAck, "pong"} {
			answer, err := c.Call(t.Context(), msg(intent, "echo"), &accp.CallOptions{Timeout: time.Hour})
			require.NoError(t, err)
			require.Nil(t, answer)
		}
	})
	c := d.dial(t, nil)
	m := msg("req", "slow")
	m.Meta = &accp.Meta{CID: "chain"}
	ctx, cancel := context.WithCancel(t.Context())
	var work sync.WaitGroup
	work.Go(func() { _, _ = c.Call(ctx, m, nil) })
	<-d.began
	receipt := msg("ack", "slow")
	receipt.Meta = &accp.Meta{CID: "chain"}
	_, err := c.Call(t.Context(), receipt, nil)
	require.NoError(t, err)
	cancel()
	work.Wait()
}

// A param without a key is refused, and not omitted.
func TestParamWithoutKeyIsRefused(t *testing.T) {
	m := msg("req", "echo", text("", "lost"), text("k", "v"))
	var c accp.Codec
	_, err := c.Append(nil, m)
	require.ErrorIs(t, err, accp.ErrParse)
	_, err = newDesk(t, nil).http(t, nil).Call(t.Context(), m, nil)
	require.ErrorIs(t, err, accp.ErrParse)
}

// A panickingTransport panics in its first round trip, or in the first read of a response.
type panickingTransport struct {
	base    http.RoundTripper
	inBody  bool
	isSpent atomic.Bool
}

func (p *panickingTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	if !p.inBody && !p.isSpent.Swap(true) {
		panic("broken transport")
	}
	res, err := p.base.RoundTrip(r)
	if err == nil && p.inBody && !p.isSpent.Swap(true) {
		res.Body = panickingBody{res.Body}
	}
	return res, err
}

type panickingBody struct{ io.ReadCloser }

func (panickingBody) Read([]byte) (int, error) { panic("broken body") }

// A panic of the transport of the user is one failed call, and the next call succeeds.
func TestPanicOfTransportIsFailedCall(t *testing.T) {
	d := newDesk(t, nil)
	for _, tt := range []struct {
		url    string
		inBody bool
	}{
		{d.ts.URL + accp.FramesPath, false},
		{d.ts.URL + accp.FramesPath, true},
		{"ws" + strings.TrimPrefix(d.ts.URL, "http") + accp.WebSocketPath, false},
	} {
		var log testkit.Log
		c, err := accp.NewClient(tt.url, "client", &accp.ClientOptions{Logger: log.Logger(), Retry: &accp.RetryPolicy{MaxAttempts: -1},
			HTTPClient: &http.Client{Transport: &panickingTransport{base: d.client.Transport, inBody: tt.inBody}}})
		require.NoError(t, err)
		_, err = c.Call(t.Context(), msg("req", "echo"), nil)
		require.ErrorIs(t, err, accp.ErrInternal, tt.url)
		require.Contains(t, log.String(), "stack=")
		_, err = c.Call(t.Context(), msg("req", "echo"), nil)
		require.NoError(t, err)
		require.NoError(t, c.Close())
	}
}

// A panic of the token source is a failed attempt that is logged, and the frame has not been sent.
func TestPanicOfTokenSourceIsLogged(t *testing.T) {
	d := newDesk(t, nil)
	for _, url := range []string{d.ts.URL + accp.FramesPath, "ws" + strings.TrimPrefix(d.ts.URL, "http") + accp.WebSocketPath} {
		var log testkit.Log
		c, err := accp.NewClient(url, "client", &accp.ClientOptions{HTTPClient: d.client, Logger: log.Logger(), Retry: &accp.RetryPolicy{MaxAttempts: -1},
			TokenSource: accp.TokenSourceFunc(func(context.Context) (string, error) { panic("no vault") })})
		require.NoError(t, err)
		_, err = c.Call(t.Context(), msg("req", "echo"), nil)
		require.ErrorIs(t, err, accp.ErrUnreachable)
		require.Contains(t, log.String(), "stack=")
		var failed *accp.CallError
		require.ErrorAs(t, err, &failed)
		require.False(t, failed.MayHaveRun)
		require.NoError(t, c.Close())
	}
}

func TestPanicOfUpdateIsFailedCall(t *testing.T) {
	d := newDesk(t, nil)
	var log testkit.Log
	c := d.http(t, &accp.ClientOptions{Logger: log.Logger()})
	require.ErrorIs(t, c.Update(t.Context(), func(accp.Params) (accp.Params, error) { panic("no plan") }), accp.ErrInternal)
	require.Contains(t, log.String(), "stack=")
	require.NoError(t, c.Update(t.Context(), func(accp.Params) (accp.Params, error) { return accp.Params{text("k", "v")}, nil }))
}

// Zero and negative values of all options are valid: the default, and no bound. Session.Persistence
// and Session.MaxMemory are refused: they belong to Persistence and Limits.
func TestOptionsAcceptZeroAndNegativeValues(t *testing.T) {
	testkit.Numbers(t, func() *accp.ServerOptions {
		return &accp.ServerOptions{Auth: accp.Auth{AllowAnonymous: true}}
	}, func(t *testing.T, o *accp.ServerOptions) {
		s, err := accp.NewServer("server", o)
		if p := o.Session.Persistence; p.Retention != 0 || p.LeaseTTL != 0 || o.Session.MaxMemory != 0 {
			require.Error(t, err)
			return
		}
		require.NoError(t, err)
		r := httptest.NewRequest(http.MethodPost, accp.FramesPath, strings.NewReader(string(frame("ping:x{}", 1, "sid:a"))))
		r.Header.Set("Content-Type", accp.MediaType)
		w := httptest.NewRecorder()
		s.ServeHTTP(w, r)
		require.Equal(t, 200, w.Code)
		require.NoError(t, s.Close())
	})
	d := newDesk(t, nil)
	testkit.Numbers(t, func() *accp.ClientOptions {
		return &accp.ClientOptions{HTTPClient: d.client}
	}, func(t *testing.T, o *accp.ClientOptions) {
		for _, url := range []string{d.ts.URL + accp.FramesPath, "ws" + strings.TrimPrefix(d.ts.URL, "http") + accp.WebSocketPath} {
			c, err := accp.NewClient(url, "client", o)
			require.NoError(t, err)
			_, err = c.Call(t.Context(), msg("req", "echo"), nil)
			require.NoError(t, err)
			require.NoError(t, c.Close())
		}
	})
}

// A handler with structs gets and sends params. It does not run for params of another form, and its errors reach the caller.
func TestTypedHandlersAndCalls(t *testing.T) {
	type order struct {
		Item  string `json:"item"`
		Count int    `json:"count"`
	}
	type receipt struct {
		Total string `json:"total" accp:"dec"`
	}
	d := newDesk(t, nil)
	runs := 0
	d.Handle(accp.IntentReq, "order", accp.HandlerOf(func(_ context.Context, in order) (receipt, error) {
		if runs++; in.Item == "" {
			return receipt{}, accp.Errorf(accp.ErrPolicyDenied, "no item")
		}
		return receipt{fmt.Sprintf("%d.25", in.Count)}, nil
	}))
	c := d.http(t, nil)
	out, err := accp.CallAs[receipt](t.Context(), c, "order", order{"pen", 3}, nil)
	require.NoError(t, err)
	require.Equal(t, receipt{"3.25"}, out)
	_, err = accp.CallAs[receipt](t.Context(), c, "order", order{}, nil)
	require.ErrorIs(t, err, accp.ErrPolicyDenied)
	require.Equal(t, 2, runs)
	_, err = accp.CallAs[receipt](t.Context(), c, "order", struct{ Count string }{"many"}, nil)
	require.ErrorIs(t, err, accp.ErrInvalidType)
	require.Equal(t, 2, runs)
}

// A type that no params fit is an error before the request, and a panic when the handler is made.
func TestTypesThatAreNoStructsAreRefusedEarly(t *testing.T) {
	d := newDesk(t, nil)
	runs := 0
	d.Handle(accp.IntentReq, "tally", accp.HandlerFunc(func(context.Context, *accp.ReplyWriter, *accp.Message) error {
		runs++
		return nil
	}))
	c := d.http(t, nil)
	ask := struct{ Text string }{"x"}
	_, err := accp.CallAs[int](t.Context(), c, "tally", ask, nil)
	require.ErrorContains(t, err, "int")
	_, err = accp.CallAs[*struct{ N int }](t.Context(), c, "tally", ask, nil)
	require.Error(t, err)
	_, err = accp.CallAs[struct {
		N int `json:"not a name"`
	}](t.Context(), c, "tally", ask, nil)
	require.ErrorContains(t, err, "not a name")
	_, err = accp.CallAs[struct{ N int }](t.Context(), c, "tally", "x", nil)
	require.Error(t, err)
	require.Zero(t, runs)

	type pair struct{ A, B int }
	require.PanicsWithValue(t, "accp: HandlerOf: nil function", func() { accp.HandlerOf[pair, pair](nil) })
	require.PanicsWithValue(t, "accp: HandlerOf: int is not a struct", func() {
		accp.HandlerOf(func(context.Context, int) (pair, error) { return pair{}, nil })
	})
	require.PanicsWithValue(t, "accp: HandlerOf: []string is not a struct", func() {
		accp.HandlerOf(func(context.Context, pair) ([]string, error) { return nil, nil })
	})
	require.PanicsWithValue(t, "accp: HandlerOf: *accp_test.pair is not a struct", func() {
		accp.HandlerOf(func(context.Context, *pair) (pair, error) { return pair{}, nil })
	})
	d.Handle(accp.IntentReq, "pointer", accp.HandlerOf(func(_ context.Context, in pair) (*pair, error) { return &in, nil }))
	d.Handle(accp.IntentReq, "any", accp.HandlerOf(func(_ context.Context, in pair) (any, error) { return in, nil }))
	for _, op := range []string{"pointer", "any"} {
		out, err := accp.CallAs[pair](t.Context(), c, op, pair{1, 2}, nil)
		require.NoError(t, err)
		require.Equal(t, pair{1, 2}, out)
	}
}

// A nil function in place of a handler panics when it is registered; one in place of a verifier is named in the log.
func TestNilFunctionsOfUser(t *testing.T) {
	var log testkit.Log
	s, err := accp.NewServer("server", &accp.ServerOptions{Auth: accp.Auth{Authenticator: accp.BearerAuthenticator(nil)}, Logger: log.Logger()})
	require.NoError(t, err)
	require.PanicsWithValue(t, "accp: nil handler for req:x", func() { s.Handle("req", "x", accp.HandlerFunc(nil)) })
	require.PanicsWithValue(t, "accp: nil handler for req:x", func() { s.Handle("req", "x", nil) })
	r := httptest.NewRequest(http.MethodPost, accp.FramesPath, strings.NewReader("@a>ping:x{}"))
	r.Header.Set("Content-Type", accp.MediaType)
	r.Header.Set("Authorization", "Bearer x")
	w := httptest.NewRecorder()
	s.ServeHTTP(w, r)
	require.Equal(t, http.StatusInternalServerError, w.Code)
	require.Contains(t, log.String(), "nil TokenVerifier")
	require.NoError(t, s.Close())
	_, err = accp.NewServer("server", &accp.ServerOptions{Auth: accp.Auth{AllowAnonymous: true}, Middleware: []accp.Middleware{nil}})
	require.EqualError(t, err, "accp: new server: nil Middleware")
}

// The nil that Call returns for a message without an answer is no message of any kind.
func TestNilMessages(t *testing.T) {
	var c accp.Codec
	var streams accp.StreamAssembler
	for name, f := range map[string]func() ([]byte, error){
		"append":     func() ([]byte, error) { return c.Append([]byte("x"), nil) },
		"append raw": func() ([]byte, error) { return c.AppendRaw([]byte("x"), nil) },
		"add":        func() ([]byte, error) { _, _, err := streams.Add(nil); return []byte("x"), err },
	} {
		b, err := f()
		require.ErrorIs(t, err, accp.ErrInvalidType, name)
		require.Equal(t, "x", string(b), name)
	}
	require.Nil(t, accp.ErrorFromMessage(nil))
	require.Empty(t, accp.Render(nil))
}
