// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package altar

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if runAttacks() {
		return
	}
	slog.SetDefault(slog.New(slog.DiscardHandler))
	// The server of net/http keeps a connection for half a second whose body it refused.
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("net/http.(*conn).closeWriteAndWait"))
}

const testManifest = `{"contracts":[
	{"name":"math/add","parameters":[{"name":"a","type":"integer","required":true},{"name":"b","type":"integer","required":true}]},
	{"name":"count","streaming":true,"parameters":[{"name":"n","type":"integer","required":true}]},
	{"name":"wait","parameters":[{"name":"ms","type":"integer","required":true}],"timeout_ms":60000},
	{"name":"get","idempotent":true,"parameters":[{"name":"key","type":"string","required":true}]},
	{"name":"fail"},
	{"name":"ticks","streaming":true,"timeout_ms":60000}]}`

type addIn struct {
	A int64 `json:"a"`
	B int64 `json:"b"`
}

type countIn struct {
	N int64 `json:"n"`
}

type waitIn struct {
	MS int64 `json:"ms"`
}

// testRuntime has all tools of the manifest.
func testRuntime(id string, opts *RuntimeOptions) *Runtime {
	rt := must(NewRuntime(id, opts))
	AddTool(rt, "math/add", func(_ context.Context, in addIn) (int64, error) { return in.A + in.B, nil })
	AddStreamTool(rt, "count", func(_ context.Context, in countIn, out *ChunkWriter) error {
		for i := range in.N {
			if err := out.Send(i); err != nil {
				return err
			}
		}
		return nil
	})
	AddTool(rt, "wait", func(ctx context.Context, in waitIn) (string, error) {
		t := time.NewTimer(time.Duration(in.MS) * time.Millisecond)
		defer t.Stop()
		select {
		case <-t.C:
			return "waited", nil
		case <-ctx.Done():
			return "", ctx.Err()
		}
	})
	rt.Handle("get", HandlerFunc(func(_ context.Context, call *ToolCall) (any, error) { return id, nil }))
	rt.Handle("fail", HandlerFunc(func(context.Context, *ToolCall) (any, error) { return nil, errors.New("disk full") }))
	rt.HandleStream("ticks", StreamHandlerFunc(func(ctx context.Context, _ *ToolCall, out *ChunkWriter) error {
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		for i := 0; ; i++ {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-tick.C:
			}
			if err := out.Send(i); err != nil {
				return err
			}
		}
	}))
	return rt
}

var (
	testUser    = &Principal{ID: "user", Tenant: "acme", Roles: []string{"user"}}
	testService = &Principal{ID: "service", Tenant: "acme"}
)

func testHost(t testing.TB, opts *HostOptions) *Host {
	t.Helper()
	m, err := DecodeManifest([]byte(testManifest))
	require.NoError(t, err)
	h, err := newHost(m, AuthorizerFunc(AllowAll), opts)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, h.Close()) })
	return h
}

// must returns a value that a constructor cannot refuse.
func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// newHost is [NewHost] whose Authenticator, unless opts has one, knows no principal.
func newHost(m *Manifest, auth Authorizer, opts *HostOptions) (*Host, error) {
	var o HostOptions
	if opts != nil {
		o = *opts
	}
	o.Auth.Authorizer = auth
	if o.Auth.Authenticator == nil {
		o.Auth.Authenticator = AuthenticatorFunc(func(*http.Request) (*Principal, error) { return nil, nil })
	}
	return NewHost(m, &o)
}

// A network opens connections to a Host in the name of an identity.
type network struct {
	name string
	dial func(t testing.TB, h *Host) func(id *Principal) Dialer
}

func pipeTransport(t testing.TB, h *Host) func(id *Principal) Dialer {
	var wg sync.WaitGroup
	t.Cleanup(wg.Wait)
	return func(id *Principal) Dialer {
		return func(context.Context) (Conn, error) {
			near, far := net.Pipe()
			wg.Go(func() { _ = h.Serve(context.Background(), NewStreamConn(far, nil), id) })
			return NewStreamConn(near, nil), nil
		}
	}
}

func directTransport(_ testing.TB, h *Host) func(id *Principal) Dialer {
	return func(id *Principal) Dialer {
		return func(context.Context) (Conn, error) { return h.Dial(id) }
	}
}

func tcpTransport(t testing.TB, h *Host) func(id *Principal) Dialer {
	var wg sync.WaitGroup
	t.Cleanup(wg.Wait)
	return func(id *Principal) Dialer {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		wg.Go(func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				wg.Go(func() { _ = h.Serve(context.Background(), NewStreamConn(c, nil), id) })
			}
		})
		t.Cleanup(func() { _ = l.Close() })
		return func(ctx context.Context) (Conn, error) {
			var d net.Dialer
			c, err := d.DialContext(ctx, "tcp", l.Addr().String())
			if err != nil {
				return nil, err
			}
			return NewStreamConn(c, nil), nil
		}
	}
}

// keys is an Authenticator for the tests: the key is the name.
func keys() Authenticator {
	return must(APIKeyAuthenticator(map[string]*Principal{"key-user": testUser, "key-service": testService}))
}

func server(t testing.TB, h *Host) *httptest.Server {
	ts := httptest.NewServer(h)
	t.Cleanup(func() { _ = h.Close(); ts.Close() })
	return ts
}

func keyOf(id *Principal) http.Header { return http.Header{APIKeyHeader: {"key-" + id.ID}} }

func webSocketTransport(t testing.TB, h *Host) func(id *Principal) Dialer {
	ts := server(t, h)
	return func(id *Principal) Dialer {
		return func(ctx context.Context) (Conn, error) {
			return DialWebSocket(ctx, ts.URL, &WebSocketDialOptions{HTTPClient: ts.Client(), Header: keyOf(id)})
		}
	}
}

// httpTransport uses HTTP for clients, and pipes for Runtimes, which HTTP does
// not carry.
func httpTransport(t testing.TB, h *Host) func(id *Principal) Dialer {
	ts := server(t, h)
	pipes := pipeTransport(t, h)
	return func(id *Principal) Dialer {
		if id == testService {
			return pipes(id)
		}
		return func(context.Context) (Conn, error) {
			return DialHTTP(t.Context(), ts.URL, &HTTPDialOptions{HTTPClient: ts.Client(), Header: keyOf(id)})
		}
	}
}

var transports = []network{
	{"direct", directTransport}, {"pipe", pipeTransport}, {"tcp", tcpTransport},
	{"websocket", webSocketTransport}, {"http", httpTransport},
}

// system is a Host with Runtimes and a client.
type system struct {
	h    *Host
	c    *Client
	dial func(id *Principal) Dialer
	stop []context.CancelFunc // of the Runtimes
	done []chan error
}

func start(t testing.TB, tr func(testing.TB, *Host) func(*Principal) Dialer, opts *HostOptions, runtimes ...*Runtime) *system {
	t.Helper()
	var o HostOptions
	if opts != nil {
		o = *opts
	}
	o.Auth.Authenticator = keys()
	s := &system{h: testHost(t, &o)}
	s.dial = tr(t, s.h)
	for _, rt := range runtimes {
		s.run(t, rt)
	}
	s.c = must(NewClient(s.dial(testUser), nil))
	t.Cleanup(func() {
		require.NoError(t, s.c.Close())
		for i, stop := range s.stop {
			stop()
			<-s.done[i]
		}
	})
	return s
}

func (s *system) run(t testing.TB, rt *Runtime) {
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	s.stop, s.done = append(s.stop, stop), append(s.done, done)
	want := s.h.Stats().Runtimes + 1
	go func() {
		done <- rt.RunWithReconnect(ctx, s.dial(testService))
		close(done)
	}()
	for range 5000 {
		if s.h.Stats().Runtimes >= want {
			return
		}
		time.Sleep(time.Millisecond)
	}
	require.FailNow(t, "the Runtime does not connect")
}

// ALT-002, ALT-004: the same on every transport, with all three roles and both
// levels: ALT-003, ALT-010, ALT-016, ALT-018, ALT-021, ALT-025, ALT-090.
func TestTransports(t *testing.T) {
	for _, tr := range transports {
		t.Run(tr.name, func(t *testing.T) {
			s := start(t, tr.dial, nil, testRuntime("r1", nil))
			ctx := t.Context()
			sess, err := s.c.CreateSession(ctx, &CreateSessionParams{ID: "work", TTL: time.Minute})
			require.NoError(t, err)
			require.Equal(t, "work", sess.ID())
			require.Equal(t, time.Minute, sess.TTL())

			sum, err := CallAs[int64](ctx, sess, "math/add", addIn{math.MaxInt64 - 1, 1}, nil)
			require.NoError(t, err)
			require.Equal(t, int64(math.MaxInt64), sum)

			r, err := sess.Call(ctx, "r1/math/add", addIn{1, 2}, &CallOptions{CorrelationID: "k", Metadata: map[string]string{"traceparent": "00-x"}})
			require.NoError(t, err)
			require.Equal(t, "3", string(r.Payload))
			require.Contains(t, string(r.RuntimeMetadata), "execution_time_ms")

			var got []int64
			for n, err := range StreamAs[int64](ctx, sess, "count", countIn{100}, nil) {
				require.NoError(t, err)
				got = append(got, n)
			}
			require.Len(t, got, 100)
			for i, n := range got {
				require.Equal(t, int64(i), n)
			}
			list, err := CallAs[[]int64](ctx, sess, "count", countIn{3}, nil) // collected
			require.NoError(t, err)
			require.Equal(t, []int64{0, 1, 2}, list)
			for n, err := range sess.Stream(ctx, "math/add", addIn{1, 1}, nil) { // a result in place of a stream
				require.NoError(t, err)
				require.Equal(t, "2", string(n))
			}

			_, err = sess.Call(ctx, "fail", nil, nil)
			require.ErrorIs(t, err, ErrExecutionFailed)
			require.ErrorContains(t, err, "disk full")
			_, err = sess.Call(ctx, "math/add", map[string]any{"a": 1.5, "c": 1}, nil)
			var e *Error
			require.ErrorAs(t, err, &e)
			require.Equal(t, []ParamError{
				{Path: "/a", Reason: reasonNotInteger, Expected: "integer", Got: "number"},
				{Path: "/b", Reason: reasonMissingRequired, Expected: "integer"},
				{Path: "/c", Reason: reasonUnknownParameter},
			}, e.ParamErrors())
			require.ErrorContains(t, err, "/a not_integer (expected integer, got number); /b missing_required (expected integer); /c unknown_parameter")
			_, err = sess.Call(ctx, "nothing", nil, nil)
			require.ErrorIs(t, err, ReasonUnknownContract)

			tools, err := sess.ListTools(ctx)
			require.NoError(t, err)
			require.Len(t, tools, 6)
			require.Equal(t, []string{"r1"}, tools[0].Runtimes)

			for n, err := range sess.Stream(ctx, "ticks", nil, nil) {
				require.NoError(t, err)
				if string(n) == "1" {
					break // ends the work of the Runtime
				}
			}
			require.NoError(t, s.c.Ping(ctx))
			require.NoError(t, sess.Destroy(ctx))
			_, err = sess.Call(ctx, "math/add", addIn{1, 2}, nil)
			require.ErrorIs(t, err, ErrSessionInvalid)
			require.ErrorIs(t, sess.Destroy(ctx), ReasonUnknownSession)
			s.empty(t)
		})
	}
}

// empty waits until nothing is in flight at the Host.
func (s *system) empty(t testing.TB) {
	t.Helper()
	for range 2000 {
		if s.h.Stats().InFlight == 0 {
			return
		}
		time.Sleep(time.Millisecond)
	}
	require.Zero(t, s.h.Stats().InFlight)
}

func TestCallTimeoutAndCancel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t, pipeTransport, nil, testRuntime("r1", nil))
		sess, err := s.c.CreateSession(t.Context(), nil)
		require.NoError(t, err)
		start := time.Now()
		_, err = sess.Call(t.Context(), "wait", waitIn{5000}, &CallOptions{Timeout: time.Second})
		require.ErrorIs(t, err, ErrExecutionTimeout)
		require.ErrorIs(t, err, ReasonDeadline)
		require.Equal(t, time.Second, time.Since(start))

		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err = sess.Call(ctx, "wait", waitIn{5000}, nil)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		synctest.Wait()
		require.Zero(t, s.h.Stats().InFlight, "cancelled at the Host, too")

		// Timeout bounds a stream as a whole (ALT-D25).
		start = time.Now()
		for _, err = range sess.Stream(t.Context(), "ticks", nil, &CallOptions{Timeout: 1050 * time.Millisecond}) {
		}
		require.ErrorIs(t, err, ReasonDeadline)
		require.Equal(t, 1050*time.Millisecond, time.Since(start))
	})
}

func TestManyCallsAtOnce(t *testing.T) {
	s := start(t, pipeTransport, nil, testRuntime("r1", nil), testRuntime("r2", nil))
	sess, err := s.c.CreateSession(t.Context(), nil)
	require.NoError(t, err)
	var wg sync.WaitGroup
	errs := make(chan error, 200)
	for i := range 200 {
		wg.Go(func() {
			got, err := CallAs[int64](t.Context(), sess, "math/add", addIn{int64(i), 1}, nil)
			if err == nil && got != int64(i)+1 {
				err = fmt.Errorf("%d: %d", i, got)
			}
			errs <- err
		})
	}
	wg.Wait()
	for range 200 {
		require.NoError(t, <-errs)
	}
	st := s.h.Stats()
	require.Equal(t, uint64(200), st.Succeeded)
	require.Zero(t, st.InFlight)
}

func raw(v any) json.RawMessage {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return b
}
