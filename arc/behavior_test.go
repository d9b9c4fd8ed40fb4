// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package arc_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/arc"
	"github.com/fivewire/fivewire/arc/arctest"
	"github.com/fivewire/fivewire/internal/kit"
	"github.com/fivewire/fivewire/internal/testkit"
	"github.com/fivewire/fivewire/store"
)

func TestServerReadTimeoutOfHTTPServerHolds(t *testing.T) {
	s := newServer(t, nil) // its own bound is a minute
	response := testkit.ServeSlowBody(t, s, 300*time.Millisecond, "POST /arc HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n")
	require.Contains(t, response, " 400 ")
}

// A client whose request is refused in a shutdown reaches another server, not this one on the same connection.
func TestShutdownEndsConnections(t *testing.T) {
	s := newServer(t, nil)
	kit.CheckLeaves(t, s, "/arc", s.Shutdown)
}

func TestServerRefusesRepeatedHeaders(t *testing.T) {
	s := newServer(t, nil)
	s.Handle("a-01", "debug.echo", arc.HandlerFunc(echo))
	for _, name := range []string{"Authorization", "Content-Type", "Content-Encoding", "Origin", "Last-Event-Id", "X-Arc-Path", "Traceparent"} {
		req := httptest.NewRequest(http.MethodPost, "/arc", strings.NewReader(call("debug.echo", "a-01", "{}")))
		req.Header.Set("Content-Type", arc.MediaType)
		req.Header[name] = []string{arc.MediaType, arc.MediaType}
		if name == "Origin" {
			req.Header[name] = []string{"http://example.com", "http://example.com"}
		}
		rec := httptest.NewRecorder()
		s.ServeHTTP(rec, req)
		require.Equal(t, http.StatusBadRequest, rec.Code, name)
	}
}

func TestClientMediaTypeIsExact(t *testing.T) {
	ts := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-streamx")
		_, _ = io.WriteString(w, "event: done\ndata: {\"chatId\":\"c\",\"status\":\"ACTIVE\",\"done\":true}\n\n")
	}))
	defer ts.Close()
	c, err := arc.NewClient(ts.URL, "me", nil)
	require.NoError(t, err)
	defer c.Close()
	for _, err := range c.StreamChat(t.Context(), "b", &arc.StartChatParams{InitialMessage: arc.UserText("x")}, nil) {
		require.Error(t, err)
	}
}

// hanging is a peer that never responds and ignores the end of its connection.
func hanging(t *testing.T) string {
	t.Helper()
	end := make(chan struct{})
	ts := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-end }))
	t.Cleanup(func() {
		close(end)
		ts.Close()
	})
	return ts.URL
}

func TestClientCloseEndsCalls(t *testing.T) {
	c, err := arc.NewClient(hanging(t), "me", nil)
	require.NoError(t, err)
	errs := make(chan error, 2)
	go func() {
		_, err := c.GetTask(context.Background(), "b", &arc.TaskInfoParams{TaskID: "t"}, nil)
		errs <- err
	}()
	go func() {
		for _, err := range c.StreamChat(context.Background(), "b", nil, nil) {
			errs <- err
			return
		}
	}()
	time.Sleep(50 * time.Millisecond) // until both wait; earlier is right as well
	begin := time.Now()
	require.NoError(t, c.Close())
	require.Less(t, time.Since(begin), time.Second)
	require.ErrorIs(t, <-errs, arc.ErrClosed)
	require.ErrorIs(t, <-errs, arc.ErrClosed)
	_, err = c.GetTask(t.Context(), "b", nil, nil)
	require.ErrorIs(t, err, arc.ErrClosed)
}

func TestMiddlewareAndInterceptorsFirstIsOutermost(t *testing.T) {
	var log []string
	layer := func(name string) arc.Middleware {
		return func(next arc.Handler) arc.Handler {
			return arc.HandlerFunc(func(ctx context.Context, c *arc.Call) (any, error) {
				log = append(log, name)
				return next.ServeARC(ctx, c)
			})
		}
	}
	client := func(name string) arc.Interceptor {
		return func(next arc.CallFunc) arc.CallFunc {
			return func(ctx context.Context, r *arc.ClientRequest) (*arc.Response, error) {
				log = append(log, name)
				return next(ctx, r)
			}
		}
	}
	s := newServer(t, &arc.ServerOptions{Middleware: []arc.Middleware{layer("s1"), layer("s2")}})
	s.Register(arc.Agent{AgentInfo: arc.AgentInfo{AgentID: "a"}, Middleware: []arc.Middleware{layer("a1"), layer("a2")},
		Methods: map[string]arc.Handler{"debug.echo": arc.HandlerFunc(echo)}})
	c, err := arc.NewClient("http://127.0.0.1/arc", "me", &arc.ClientOptions{Interceptors: []arc.Interceptor{client("c1"), client("c2")},
		HTTPClient: &http.Client{Transport: inProcess{s}}})
	require.NoError(t, err)
	_, err = c.Call(t.Context(), "a", "debug.echo", nil, nil)
	require.NoError(t, err)
	require.Equal(t, []string{"c1", "c2", "s1", "s2", "a1", "a2"}, log)
}

// inProcess is a transport to a handler.
type inProcess struct{ h http.Handler }

func (p inProcess) RoundTrip(r *http.Request) (*http.Response, error) {
	w := httptest.NewRecorder()
	p.h.ServeHTTP(w, r)
	return w.Result(), nil
}

// A panic in code of the user fails one request, with an answer, a log line and an audit record.
func TestServerHookThatPanicsFailsOneRequest(t *testing.T) {
	var log *testkit.Log
	var audited atomic.Int32
	base := func() *arc.ServerOptions {
		log = &testkit.Log{}
		audited.Store(0)
		return &arc.ServerOptions{Logger: log.Logger(), Limits: arc.Limits{RequestRate: 1},
			Auth:  arc.Auth{AllowAnonymous: true},
			Audit: func(context.Context, *arc.AuditRecord) { audited.Add(1) }}
	}
	testkit.Hooks(t, base, func(t *testing.T, o *arc.ServerOptions, h *testkit.Hook) {
		if h.Path != "Limits.RateKey" {
			o.Limits.RequestRate = 0
		}
		if h.Path == "Persistence.Store" {
			_, err := arc.NewServer(o)
			require.ErrorContains(t, err, "store panicked: Persistence.Store")
		}
		panics := h.Left.Swap(0) // the store panics after the start
		s := arc.MustServer(o)
		h.Left.Store(panics)
		s.HandleTasks("a-01", arctest.ScriptedTask())
		s.HandleChats("b-01", arctest.EchoChat())
		requests := []string{call("task.create", "a-01", `{"initialMessage":`+hello("x")+`}`), call("chat.start", "b-01", `{"initialMessage":`+hello("x")+`}`),
			call("nope.nope", "ghost", "{}")}
		for _, body := range requests {
			rec := post(s, body, "Authorization", "Bearer x")
			require.NotEmpty(t, rec.Body.String())
			answer(t, rec)
		}
		begin := time.Now()
		require.NoError(t, s.Close())
		require.Less(t, time.Since(begin), 2*time.Second)
		require.Contains(t, log.String(), "panicked: "+h.Path)
		require.Contains(t, log.String(), "stack=")
		if h.Path != "Audit" {
			require.EqualValues(t, len(requests), audited.Load())
		}
	}, reflect.TypeFor[arc.AuthenticatorFunc](), reflect.TypeFor[arc.AuthorizerFunc](), reflect.TypeFor[arc.HandlerFunc]())
}

type panicJSON struct{}

func (panicJSON) MarshalJSON() ([]byte, error) { panic("encoding") }

func TestHandlerThatPanicsFailsOneRequest(t *testing.T) {
	s := newServer(t, nil)
	boom := func() { panic("boom") }
	s.Handle("a", "panic.now", arc.HandlerFunc(func(context.Context, *arc.Call) (any, error) { boom(); return nil, nil }))
	s.Handle("a", "panic.json", arc.HandlerFunc(func(context.Context, *arc.Call) (any, error) { return panicJSON{}, nil }))
	s.HandleChats("c", arc.ChatHandlerFunc(func(_ context.Context, _ *arc.ChatTurn, out *arc.ChatWriter) error {
		_ = out.Send("x")
		boom()
		return nil
	}))
	for _, method := range []string{"panic.now", "panic.json"} {
		fault(t, post(s, call(method, "a", "{}")), arc.ErrInternal)
	}
	fault(t, post(s, call("chat.start", "c", `{"initialMessage":`+hello("x")+`}`)), arc.ErrInternal)
	rec := post(s, call("chat.start", "c", `{"stream":true,"initialMessage":`+hello("x")+`}`))
	require.Contains(t, rec.Body.String(), "-32603")
}

func TestClientHookThatPanicsFailsOneCall(t *testing.T) {
	s := newServer(t, nil)
	s.Handle("a", "debug.echo", arc.HandlerFunc(echo))
	good := &http.Client{Transport: inProcess{s}}
	for name, o := range map[string]*arc.ClientOptions{
		"TokenSource": {HTTPClient: good, TokenSource: arc.TokenSourceFunc(func(context.Context, string) (string, error) { panic("x") })},
		"Interceptors": {HTTPClient: good, Interceptors: []arc.Interceptor{func(arc.CallFunc) arc.CallFunc {
			return func(context.Context, *arc.ClientRequest) (*arc.Response, error) { panic("x") }
		}}},
		"HTTPClient": {HTTPClient: &http.Client{Transport: panicTransport{}}},
	} {
		c, err := arc.NewClient("http://127.0.0.1/arc", "me", o)
		require.NoError(t, err)
		_, err = c.Call(t.Context(), "a", "debug.echo", nil, nil)
		require.ErrorContains(t, err, "panicked: x", name)
		require.NoError(t, c.Close())
	}
	c, err := arc.NewClient("http://127.0.0.1/arc", "me", &arc.ClientOptions{HTTPClient: good, TraceParent: func(context.Context) string { panic("x") }})
	require.NoError(t, err)
	_, err = c.Call(t.Context(), "a", "debug.echo", nil, nil)
	require.NoError(t, err, "a failed trace is no failed call")
	_, err = c.Call(t.Context(), "a", "debug.echo", panicJSON{}, nil)
	require.ErrorContains(t, err, "panicked: encoding")
	_, err = c.CreateTask(t.Context(), "a", nil, nil)
	require.Error(t, err)
}

func TestStreamInterceptorThatPanicsFailsOneStream(t *testing.T) {
	s := newServer(t, nil)
	s.HandleChats("a", arctest.EchoChat())
	stream := func(i arc.StreamInterceptor) (events int, last error) {
		c, err := arc.NewClient("http://127.0.0.1/arc", "me", &arc.ClientOptions{HTTPClient: &http.Client{Transport: inProcess{s}},
			StreamInterceptors: []arc.StreamInterceptor{i}})
		require.NoError(t, err)
		defer c.Close()
		for ev, err := range c.StreamChat(t.Context(), "a", &arc.StartChatParams{InitialMessage: arc.UserText("x")}, nil) {
			if last = err; ev != nil {
				events++
			}
		}
		return events, last
	}
	_, err := stream(func(arc.StreamFunc) arc.StreamFunc {
		return func(context.Context, *arc.ClientRequest) iter.Seq2[*arc.ChatEvent, error] { panic("x") }
	})
	require.ErrorContains(t, err, "stream interceptor panicked: x")
	within := func(next arc.StreamFunc) arc.StreamFunc {
		return func(ctx context.Context, out *arc.ClientRequest) iter.Seq2[*arc.ChatEvent, error] {
			return func(yield func(*arc.ChatEvent, error) bool) {
				next(ctx, out)(yield)
				panic("y")
			}
		}
	}
	n, err := stream(within)
	require.ErrorContains(t, err, "stream interceptor panicked: y")
	require.Positive(t, n)
	require.PanicsWithValue(t, "loop", func() {
		c, err := arc.NewClient("http://127.0.0.1/arc", "me", &arc.ClientOptions{HTTPClient: &http.Client{Transport: inProcess{s}},
			StreamInterceptors: []arc.StreamInterceptor{within}})
		require.NoError(t, err)
		defer c.Close()
		for range c.StreamChat(t.Context(), "a", &arc.StartChatParams{InitialMessage: arc.UserText("x")}, nil) {
			panic("loop")
		}
	}, "a panic of the loop is not recovered")
}

type panicTransport struct{}

func (panicTransport) RoundTrip(*http.Request) (*http.Response, error) { panic("x") }

func TestShutdownReturnsThoughHandlersIgnoreTheirContexts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log testkit.Log
		s := arc.MustServer(&arc.ServerOptions{Logger: log.Logger()})
		release := make(chan struct{})
		s.Handle("a", "debug.hang", arc.HandlerFunc(func(context.Context, *arc.Call) (any, error) { <-release; return nil, nil }))
		s.HandleTasks("b", arc.TaskHandlerFunc(func(context.Context, *arc.TaskRun) error { <-release; return nil }))
		createTask(t, s, "b", "x")
		responses := make(chan *arc.ServerResponse, 1)
		go func() {
			responses <- s.ServeMessage(context.Background(), &arc.ServerRequest{Data: []byte(call("debug.hang", "a", "{}"))}, nil)
		}()
		synctest.Wait()
		require.NoError(t, s.Ready())
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		begin := time.Now()
		require.ErrorIs(t, s.Shutdown(ctx), context.DeadlineExceeded)
		require.Equal(t, 3*time.Second, time.Since(begin))
		require.ErrorIs(t, s.Ready(), arc.ErrClosed)
		begin = time.Now()
		require.NoError(t, s.Close())
		require.LessOrEqual(t, time.Since(begin), time.Second)
		time.Sleep(time.Minute)
		require.Equal(t, 2, strings.Count(log.String(), "ignores the end of its context"), "each handler once")
		close(release)
		require.Equal(t, arc.ErrAgentNotAvailable, (<-responses).Error.Code, "a late result is dropped")
		synctest.Wait()
	})
}

func TestRemoteErrorIsNotOneOfThisServer(t *testing.T) {
	s := newServer(t, nil)
	remote := &arc.Error{Code: arc.ErrTokenInvalid, Message: "stale", Remote: true}
	var err error
	s.Handle("a", "debug.ask", arc.HandlerFunc(func(context.Context, *arc.Call) (any, error) { return nil, err }))
	for _, e := range []error{remote, fmt.Errorf("asking b: %w", remote), &arc.TaskError{Task: &arc.Task{Status: arc.TaskFailed, Error: remote}}} {
		err = e
		fault(t, post(s, call("debug.ask", "a", "{}")), arc.ErrInternal)
	}
	err = &arc.Error{Code: arc.ErrPermissionDenied, Message: "not for you", Cause: remote}
	require.Equal(t, "not for you", fault(t, post(s, call("debug.ask", "a", "{}")), arc.ErrPermissionDenied).Message)
}

// An error that Errorf formats wraps all errors of %w.
func TestErrorfWrapsAllErrors(t *testing.T) {
	first, second := errors.New("first"), &arc.HTTPError{Status: 502}
	e := arc.Errorf(arc.ErrAgentUnreachable, "%w, then %w", first, second)
	require.Equal(t, "first, then arc: HTTP status 502 Bad Gateway", e.Message)
	require.ErrorIs(t, e, first)
	require.ErrorIs(t, e, arc.ErrAgentUnreachable)
	var httpError *arc.HTTPError
	require.ErrorAs(t, e, &httpError)
	require.Equal(t, e.Message, e.Cause.Error())
	require.Equal(t, first, arc.Errorf(arc.ErrInternal, "x: %w", first).Cause)
	require.NoError(t, arc.Errorf(arc.ErrInternal, "x").Cause)
	require.NoError(t, arc.Errorf(arc.ErrInternal, "%w", nil).Cause)
}

func TestConstructorsRefuseOpenServersAndEmptySecrets(t *testing.T) {
	_, err := arc.NewServer(nil)
	require.ErrorContains(t, err, "AllowAnonymous")
	_, err = arc.NewServer(&arc.ServerOptions{})
	require.Error(t, err)
	for _, keys := range []map[string]*arc.Principal{nil, {"": {ID: "p"}}, {"k": nil}, {"k": {}}} {
		_, err := arc.APIKeyAuthenticator(keys)
		require.Error(t, err)
	}
	keys, err := arc.APIKeyAuthenticator(map[string]*arc.Principal{"key-1": {ID: "p", Scopes: []string{arc.ScopeAgentCaller}}})
	require.NoError(t, err)
	s := newServer(t, &arc.ServerOptions{Auth: arc.Auth{Authenticator: keys}})
	s.Handle("a", "debug.echo", arc.HandlerFunc(echo))
	for token, status := range map[string]int{"Bearer key-1": 200, "Bearer key-2": 401, "Bearer ": 401, "": 401} {
		require.Equal(t, status, post(s, call("debug.echo", "a", "{}"), "Authorization", token).Code, token)
	}
}

func TestFailedHandlerRunsOnce(t *testing.T) {
	var runs atomic.Int32
	s := newServer(t, nil)
	s.Handle("a", "debug.fail", arc.HandlerFunc(func(context.Context, *arc.Call) (any, error) {
		runs.Add(1)
		return nil, errors.New("no")
	}))
	c, err := arc.NewClient("http://127.0.0.1/arc", "me", &arc.ClientOptions{HTTPClient: &http.Client{Transport: inProcess{s}}, Idempotent: true})
	require.NoError(t, err)
	_, err = c.Call(t.Context(), "a", "debug.fail", nil, nil)
	require.ErrorIs(t, err, arc.ErrInternal)
	require.EqualValues(t, 1, runs.Load())
}

func TestBudgetRefusesOneCallerOnly(t *testing.T) {
	keys, err := arc.APIKeyAuthenticator(map[string]*arc.Principal{"k1": {ID: "p1", Scopes: []string{arc.ScopeAgentCaller, arc.ScopeTaskController}},
		"k2": {ID: "p2", Scopes: []string{arc.ScopeAgentCaller}}})
	require.NoError(t, err)
	s := newServer(t, &arc.ServerOptions{Auth: arc.Auth{Authenticator: keys},
		Limits: arc.Limits{MaxConcurrentPerPrincipal: 1, MaxItemsPerPrincipal: 1}})
	running, release := make(chan struct{}, 4), make(chan struct{})
	s.Handle("a", "debug.hang", arc.HandlerFunc(func(context.Context, *arc.Call) (any, error) {
		running <- struct{}{}
		<-release
		return nil, nil
	}))
	s.HandleTasks("b", arctest.ScriptedTask(arctest.WaitCanceled()))
	var wg sync.WaitGroup
	hang := func(key string) {
		wg.Go(func() {
			require.Equal(t, 200, post(s, call("debug.hang", "a", "{}"), "Authorization", "Bearer "+key).Code)
		})
		<-running
	}
	hang("k1")
	for _, body := range []string{call("debug.hang", "a", "{}")} {
		rec := post(s, body, "Authorization", "Bearer k1")
		e := fault(t, rec, arc.ErrAgentCapacityExceeded)
		require.Equal(t, http.StatusServiceUnavailable, rec.Code)
		require.NotEmpty(t, rec.Header().Get("Retry-After"))
		require.Contains(t, string(e.Details), `"resource":"work","scope":"principal"`)
	}
	hang("k2") // another principal has its own place
	var work []arc.Usage
	for _, u := range s.Usage() {
		if u.Resource == "work" {
			work = append(work, u)
		}
	}
	require.Contains(t, work, arc.Usage{Resource: "work", Scope: "all", Used: 2, Limit: 1024})
	require.Contains(t, work, arc.Usage{Resource: "work", Scope: "principal", Used: 1, Limit: 1})
	create := call("task.create", "b", `{"initialMessage":`+hello("x")+`}`)
	require.Equal(t, 200, post(s, create, "Authorization", "Bearer k1").Code)
	fault(t, post(s, create, "Authorization", "Bearer k1"), arc.ErrAgentCapacityExceeded)
	close(release)
	wg.Wait()
	require.NoError(t, s.Close())
	for _, u := range s.Usage() {
		require.Zero(t, u.Used, "%v: everything is released", u)
	}
}

func TestDebugHandlerShowsState(t *testing.T) {
	s := newServer(t, nil)
	s.HandleTasks("a", arctest.ScriptedTask(arctest.WaitCanceled()))
	createTask(t, s, "a", "x")
	page := func() *httptest.ResponseRecorder {
		rec := httptest.NewRecorder()
		s.DebugHandler().ServeHTTP(rec, httptest.NewRequest(http.MethodGet, "/", nil))
		return rec
	}
	rec := page()
	require.Equal(t, http.StatusOK, rec.Code)
	require.Contains(t, rec.Body.String(), "arc: arc-server: ready\n")
	require.Regexp(t, `items +all +1 +100000 +0.0`, rec.Body.String())
	require.NoError(t, s.Close())
	require.Equal(t, http.StatusServiceUnavailable, page().Code)
}

func TestStreamEndsWhenPrincipalExpires(t *testing.T) {
	for _, resume := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			p := &arc.Principal{ID: "p", Scopes: strings.Fields(arc.ScopesFullCaller), Expires: time.Now().Add(time.Minute)}
			s := newServer(t, &arc.ServerOptions{Persistence: arc.Persistence{EnableResume: resume, StreamRetention: time.Second},
				Auth: arc.Auth{Authenticator: arc.AuthenticatorFunc(func(context.Context, *arc.ServerRequest) (*arc.Principal, error) { return p, nil })}})
			s.HandleChats("c", arc.ChatHandlerFunc(func(ctx context.Context, _ *arc.ChatTurn, out *arc.ChatWriter) error {
				if err := out.Send("x"); err != nil {
					return err
				}
				<-ctx.Done()
				return ctx.Err()
			}))
			mem := arctest.NewServer(t, http.HandlerFunc(s.ServeHTTP))
			c, err := arc.NewClient(mem.URL, "me", &arc.ClientOptions{HTTPClient: mem.HTTPClient, IdleTimeout: -1})
			require.NoError(t, err)
			begin := time.Now()
			var last error
			for _, err := range c.StreamChat(t.Context(), "c", &arc.StartChatParams{InitialMessage: arc.UserText("x")}, nil) {
				last = err
			}
			require.ErrorIs(t, last, arc.ErrTokenExpired)
			require.Equal(t, time.Minute, time.Since(begin))
			_, err = c.StartChat(t.Context(), "c", &arc.StartChatParams{InitialMessage: arc.UserText("x")}, nil)
			require.ErrorIs(t, err, arc.ErrTokenExpired)
			require.NoError(t, c.Close())
		})
	}
}

// The constructor accepts each number at -1 and 0, and a task, a chat and a stream work.
func TestServerOptionsAcceptMinusOneAndZero(t *testing.T) {
	testkit.Numbers(t, func() *arc.ServerOptions {
		return &arc.ServerOptions{Persistence: arc.Persistence{EnableResume: true, Store: store.NewMemory()}}
	}, func(t *testing.T, o *arc.ServerOptions) {
		s := arc.MustServer(o)
		s.HandleTasks("a", arctest.ScriptedTask(arctest.AddMessage("m")))
		s.HandleChats("c", arctest.ScriptedChat("x", "y"))
		createTask(t, s, "a", "x")
		require.Equal(t, "xy", chatOf(t, startChat(s, "c", "c1", "x")).Message.Text())
		text, _, err := readStream(arc.NewStreamReader(post(s, call("chat.start", "c", `{"stream":true,"initialMessage":`+hello("x")+`}`)).Body, 0, nil))
		require.NoError(t, err)
		require.Equal(t, "xy", text)
		require.NoError(t, s.Close())
	})
}

func TestClientOptionsAcceptMinusOneAndZero(t *testing.T) {
	s := newServer(t, nil)
	s.HandleChats("c", arctest.ScriptedChat("x", "y"))
	testkit.Numbers(t, func() *arc.ClientOptions {
		return &arc.ClientOptions{HTTPClient: &http.Client{Transport: inProcess{s}}}
	}, func(t *testing.T, o *arc.ClientOptions) {
		c, err := arc.NewClient("http://127.0.0.1/arc", "me", o)
		require.NoError(t, err)
		text := ""
		for ev, err := range c.StreamChat(t.Context(), "c", &arc.StartChatParams{InitialMessage: arc.UserText("x")}, nil) {
			require.NoError(t, err)
			text += ev.Text
		}
		require.Equal(t, "xy", text)
		require.NoError(t, c.Close())
	})
}
