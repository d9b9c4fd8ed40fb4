// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package altar

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/internal/kit"
	"github.com/fivewire/fivewire/internal/testkit"
)

func TestNewHostRefusesOpenHost(t *testing.T) {
	m := must(DecodeManifest([]byte(testManifest)))
	_, err := NewHost(m, nil)
	require.ErrorContains(t, err, "missing Authorizer")
	_, err = NewHost(m, &HostOptions{Auth: Auth{Authorizer: AuthorizerFunc(AllowAll)}})
	require.ErrorContains(t, err, "AllowAnonymous")
	h, err := NewHost(m, &HostOptions{Auth: Auth{Authorizer: AuthorizerFunc(AllowAll), AllowAnonymous: true}})
	require.NoError(t, err)
	require.NoError(t, h.Ready())
	require.NoError(t, h.Close())
	require.ErrorIs(t, h.Ready(), ErrClosed)
}

func TestAPIKeyAuthenticatorRefusesOpenTables(t *testing.T) {
	for _, keys := range []map[string]*Principal{nil, {"": testUser}, {"k": nil}, {"k": {}}} {
		_, err := APIKeyAuthenticator(keys)
		require.Error(t, err)
	}
}

func TestDialRefusesPlainHTTPToOtherHosts(t *testing.T) {
	for _, url := range []string{"http://tools.example", "http://192.0.2.1:80/altar/v1/messages", "tools.example", "ftp://tools.example"} {
		_, err := DialHTTP(t.Context(), url, nil)
		require.Error(t, err, url)
	}
	_, err := DialWebSocket(t.Context(), "ws://tools.example", &WebSocketDialOptions{HTTPClient: &http.Client{Transport: roundTripper(func(*http.Request) (*http.Response, error) {
		t.Error("dialed")
		return nil, io.EOF
	})}})
	require.Error(t, err)
	conn, err := DialHTTP(t.Context(), "http://tools.example", &HTTPDialOptions{AllowInsecure: true})
	require.NoError(t, err)
	require.NoError(t, conn.Close())
}

func TestHostKeepsReadTimeoutOfServer(t *testing.T) {
	h := testHost(t, &HostOptions{Auth: Auth{Authenticator: keys()}})
	testkit.ServeSlowBody(t, h, 300*time.Millisecond,
		"POST "+MessagesPath+" HTTP/1.1\r\nHost: x\r\nX-Api-Key: key-user\r\nContent-Type: application/json\r\n")
}

// A client whose request is refused in a shutdown reaches another server, not this one on the same connection.
func TestShutdownEndsConnections(t *testing.T) {
	h := testHost(t, nil)
	kit.CheckLeaves(t, h, MessagesPath, h.Shutdown)
}

func TestHostRefusesDoubledHeaders(t *testing.T) {
	h := testHost(t, &HostOptions{Auth: Auth{Authenticator: keys()}})
	for _, name := range []string{"Authorization", "Content-Type", "Origin", APIKeyHeader} {
		r := httptest.NewRequest(http.MethodPost, MessagesPath, strings.NewReader(`{"type":"Ping"}`))
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set(APIKeyHeader, "key-user")
		r.Header[name] = []string{"a", "b"}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		require.Equal(t, http.StatusBadRequest, w.Code, name)
	}
}

func TestRunWithReconnectEndsOnInvalidURL(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt := testRuntime("r1", nil)
		start := time.Now()
		err := rt.RunWithReconnect(t.Context(), func(ctx context.Context) (Conn, error) {
			return DialWebSocket(ctx, "ws://host:port:port", nil)
		})
		require.Error(t, err)
		require.Zero(t, time.Since(start))
	})
}

func TestRunWithReconnectReturnsLastDialError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt := testRuntime("r1", nil)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		failure := errors.New("no route")
		dials := 0
		err := rt.RunWithReconnect(ctx, func(context.Context) (Conn, error) {
			dials++
			return nil, &net.OpError{Op: "dial", Err: failure}
		})
		require.ErrorIs(t, err, failure)
		require.Greater(t, dials, 2)
	})
}

func TestHostCloseLeavesHookThatIgnoresItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		h, err := newHost(must(DecodeManifest([]byte(testManifest))), AuthorizerFunc(func(context.Context, *AuthorizeRequest) error {
			<-release
			return nil
		}), nil)
		require.NoError(t, err)
		near, far := net.Pipe()
		served := make(chan error, 1)
		go func() { served <- h.Serve(context.Background(), NewStreamConn(far, nil), testUser) }()
		in := bufio.NewReader(near)
		_, err = io.WriteString(near, `{"type":"CreateSession","session_id":"s"}`+"\n")
		require.NoError(t, err)
		_, err = in.ReadString('\n')
		require.NoError(t, err)
		_, err = io.WriteString(near, `{"type":"ToolCall","invocation_id":"i","session_id":"s","tool_name":"fail"}`+"\n")
		require.NoError(t, err)
		synctest.Wait()
		start := time.Now()
		require.NoError(t, h.Close())
		require.LessOrEqual(t, time.Since(start), time.Second)
		close(release)
		<-served
		_ = near.Close()
	})
}

func TestRuntimeReturnsAlthoughToolIgnoresItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		rt := must(NewRuntime("r1", &RuntimeOptions{Timing: RuntimeTiming{DrainTimeout: 5 * time.Second}}))
		var started atomic.Bool
		rt.Handle("get", HandlerFunc(func(context.Context, *ToolCall) (any, error) {
			started.Store(true)
			<-release
			return nil, nil
		}))
		h := testHost(t, nil)
		conn := must(h.Dial(testService))
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- rt.Run(ctx, conn) }()
		synctest.Wait()
		c := must(NewClient(directTransport(t, h)(testUser), nil))
		s := must(c.CreateSession(t.Context(), nil))
		go func() { _, _ = s.Call(t.Context(), "get", map[string]string{"key": "k"}, nil) }()
		synctest.Wait()
		require.True(t, started.Load())
		start := time.Now()
		stop()
		<-done
		require.LessOrEqual(t, time.Since(start), 7*time.Second)
		close(release)
		require.NoError(t, c.Close())
		synctest.Wait()
	})
}

// An error of another server is no error of the tool, unless the tool wraps it.
func TestToolReturnsErrorOfOtherServer(t *testing.T) {
	var result error
	rt := must(NewRuntime("r1", nil))
	rt.Handle("get", HandlerFunc(func(context.Context, *ToolCall) (any, error) { return nil, result }))
	s := start(t, pipeTransport, nil, rt)
	sess, err := s.c.CreateSession(t.Context(), nil)
	require.NoError(t, err)
	call := func() *Error {
		_, err := sess.Call(t.Context(), "get", map[string]string{"key": "k"}, nil)
		var e *Error
		require.ErrorAs(t, err, &e)
		require.True(t, e.Remote)
		return e
	}
	foreign := remote(errUnauthenticated())
	result = fmt.Errorf("downstream: %w", foreign)
	require.ErrorIs(t, call(), ErrInternal)
	result = &Error{Code: ErrExecutionFailed, Message: "downstream refused", Cause: foreign}
	require.ErrorIs(t, call(), ErrExecutionFailed)
}

func TestDialerPanicIsAnError(t *testing.T) {
	c := must(NewClient(func(context.Context) (Conn, error) { panic("a secret") }, nil))
	require.ErrorContains(t, c.Ping(t.Context()), "Dialer panicked")
	require.NoError(t, c.Close())
	rt := testRuntime("r1", nil)
	require.ErrorContains(t, rt.RunWithReconnect(t.Context(), func(context.Context) (Conn, error) { panic("a secret") }), "Dialer panicked")
}

// A Dialer or a TokenSource that ends its goroutine, as a failed assertion of a test does, keeps no caller waiting.
func TestDialerEndsItsGoroutine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := testHost(t, nil)
		for what, c := range map[string]*Client{
			"Dialer": must(NewClient(func(context.Context) (Conn, error) { runtime.Goexit(); return nil, nil }, nil)),
			"TokenSource": must(NewClient(directTransport(t, h)(testUser), &ClientOptions{
				TokenSource: TokenSourceFunc(func(context.Context) (string, error) { runtime.Goexit(); return "", nil })})),
		} {
			require.ErrorContains(t, c.Ping(t.Context()), what+" panicked: ")
			require.NoError(t, c.Close())
		}
	})
}

// A misspelt name in ResultTypes would remove a check.
func TestResultTypeWithoutContractIsLogged(t *testing.T) {
	var log testkit.Log
	testHost(t, &HostOptions{Logger: log.Logger(), ResultTypes: map[string]Parameter{"math/add": {Type: "integer"}, "math/ad": {Type: "integer"}}})
	require.Contains(t, log.String(), `"altar: result type without a contract" contract=math/ad`)
	require.Equal(t, 1, strings.Count(log.String(), "without a contract"))
}

// An audit record has the beginning of a long text that a peer has sent.
func TestAuditRecordsAreShort(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var records []*AuditRecord
		h := testHost(t, &HostOptions{Audit: func(_ context.Context, r *AuditRecord) { records = append(records, r) }})
		w, rt := connect(t, h, testUser), attachRuntime(t, h, testService, "r1", "get")
		long := strings.Repeat("é", 1<<20)
		w.send(&DestroySession{SessionID: long})
		w.send(&CreateSession{SessionID: long})
		w.send(add("i", long))
		w.send(&CancelCall{SessionID: long, InvocationID: "i"})
		w.send(&ToolCall{InvocationID: "j", SessionID: "s", ToolName: long})
		rt.send(&FulfillTools{SessionID: allSessions, ToolNames: []string{long}})
		synctest.Wait()
		require.Len(t, records, 8)
		for _, r := range records {
			text, err := json.Marshal(r)
			require.NoError(t, err)
			require.Less(t, len(text), 4<<10, r.Operation)
			require.True(t, utf8.ValidString(r.SessionID))
		}
	})
}

func TestAuditNumbersRecords(t *testing.T) {
	var records []*AuditRecord
	h := testHost(t, &HostOptions{Auth: Auth{Authenticator: keys()}, Audit: func(_ context.Context, r *AuditRecord) { records = append(records, r) }})
	r := httptest.NewRequest(http.MethodPost, MessagesPath, strings.NewReader(`{"type":"Ping"}`))
	r.Header.Set(APIKeyHeader, "wrong")
	h.ServeHTTP(httptest.NewRecorder(), r)
	c := connect(t, h, testUser)
	c.session("s")
	c.send(&ToolCall{InvocationID: "i", SessionID: "none", ToolName: "fail"})
	require.NoError(t, h.Close())
	require.Len(t, records, 3)
	for i, want := range []AuditRecord{
		{Operation: "auth.refused", Outcome: "refused", Code: "AUTHORIZATION_FAILED", Peer: r.RemoteAddr},
		{Operation: "session.created", Outcome: "ok", Object: "s", Principal: "user"},
		{Operation: "call.refused", Outcome: "refused", Code: "SESSION_INVALID", Object: "i", Principal: "user"},
	} {
		got := records[i]
		require.Equal(t, uint64(i+1), got.Seq)
		require.Equal(t, want, AuditRecord{Operation: got.Operation, Outcome: got.Outcome, Code: got.Code, Peer: got.Peer, Object: got.Object, Principal: got.Principal})
	}
	var log testkit.Log
	AuditLog(log.Logger())(t.Context(), records[1])
	require.Contains(t, log.String(), "altar: request handled")
	require.Contains(t, log.String(), "altar.operation=session.created altar.object=s altar.outcome=ok")
}

func TestHostEndsConnectionOfExpiredPrincipal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := testHost(t, nil)
		near, far := net.Pipe()
		id := &Principal{ID: "user", Expires: time.Now().Add(time.Minute)}
		served := make(chan error, 1)
		go func() { served <- h.Serve(context.Background(), NewStreamConn(far, nil), id) }()
		start := time.Now()
		line, err := bufio.NewReader(near).ReadString('\n')
		require.NoError(t, err)
		require.Contains(t, line, "credentials_expired")
		require.Equal(t, time.Minute, time.Since(start))
		<-served
		require.NoError(t, near.Close())
	})
}

// Every duration and bound may be negative or zero.
func TestOptionsAcceptNegativeAndZero(t *testing.T) {
	use := func(t *testing.T, host *HostOptions, runtime *RuntimeOptions, client *ClientOptions) {
		s := start(t, pipeTransport, host, testRuntime("r1", runtime))
		c := must(NewClient(s.dial(testUser), client))
		sess, err := c.CreateSession(t.Context(), nil)
		require.NoError(t, err)
		got, err := CallAs[int64](t.Context(), sess, "math/add", addIn{1, 2}, nil)
		require.NoError(t, err)
		require.Equal(t, int64(3), got)
		require.NoError(t, c.Close())
	}
	testkit.Numbers(t, func() *HostOptions { return &HostOptions{} }, func(t *testing.T, o *HostOptions) { use(t, o, nil, nil) }, "Level")
	testkit.Numbers(t, func() *RuntimeOptions { return &RuntimeOptions{} }, func(t *testing.T, o *RuntimeOptions) { use(t, nil, o, nil) }, "Level")
	testkit.Numbers(t, func() *ClientOptions { return &ClientOptions{} }, func(t *testing.T, o *ClientOptions) { use(t, nil, nil, o) })
}
