// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package arc_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fivewire/fivewire/arc"
	"github.com/fivewire/fivewire/arc/arctest"
	"github.com/fivewire/fivewire/arc/discovery"
	"github.com/stretchr/testify/require"
)

// call is the text of a request.
func call(method, target, params string) string {
	return fmt.Sprintf(`{"arc":"1.0","id":"r1","method":%q,"requestAgent":"ui-01","targetAgent":%q,"params":%s}`, method, target, params)
}

func hello(text string) string {
	return fmt.Sprintf(`{"role":"user","parts":[{"type":"TextPart","content":%q}]}`, text)
}

// post sends a request straight to the handler.
func post(h http.Handler, body string, headers ...string) *httptest.ResponseRecorder {
	req := httptest.NewRequest(http.MethodPost, "/arc", strings.NewReader(body))
	req.Header.Set("Content-Type", arc.MediaType)
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	rec := httptest.NewRecorder()
	h.ServeHTTP(rec, req)
	return rec
}

// answer reads a response.
func answer(t testing.TB, rec *httptest.ResponseRecorder) *arc.Response {
	t.Helper()
	res, err := arc.DecodeResponse(rec.Body.Bytes(), "")
	require.NoError(t, err, rec.Body.String())
	return res
}

// fault demands an error with that code.
func fault(t testing.TB, rec *httptest.ResponseRecorder, code arc.Code) *arc.Error {
	t.Helper()
	res := answer(t, rec)
	require.NotNil(t, res.Error, rec.Body.String())
	require.Equal(t, code, res.Error.Code, res.Error.Message)
	return res.Error
}

// result demands a success of the method.
func result(t testing.TB, rec *httptest.ResponseRecorder, method string) *arc.Result {
	t.Helper()
	res := answer(t, rec)
	require.Nil(t, res.Error, rec.Body.String())
	got, err := arc.DecodeResult(method, res.Result)
	require.NoError(t, err)
	return got
}

func createTask(t testing.TB, h http.Handler, agent, text string, headers ...string) string {
	t.Helper()
	return result(t, post(h, call("task.create", agent, `{"initialMessage":`+hello(text)+`}`), headers...), "task.create").Task.ID
}

func taskOf(t testing.TB, h http.Handler, agent, id string, headers ...string) *arc.Task {
	t.Helper()
	return result(t, post(h, call("task.info", agent, fmt.Sprintf(`{"taskId":%q}`, id)), headers...), "task.info").Task
}

func newServer(t testing.TB, opts *arc.ServerOptions) *arc.Server {
	t.Helper()
	s := arc.MustServer(opts)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

func echo(_ context.Context, c *arc.Call) (any, error) {
	return map[string]any{"params": c.Params, "agent": c.Agent}, nil
}

func TestOrderOfChecks(t *testing.T) {
	s := newServer(t, &arc.ServerOptions{
		Limits: arc.Limits{MaxMessage: 300, RequestRate: 0.001, RequestBurst: 6},
		Auth: arc.Auth{Authenticator: arc.BearerAuthenticator(arc.TokenVerifierFunc(func(_ context.Context, token string) (*arc.Principal, error) {
			if token != "good" {
				return nil, arc.ErrTokenInvalid
			}
			return &arc.Principal{ID: "p", AgentID: "ui-01", Scopes: []string{arc.ScopeTaskController, arc.ScopeAgentCaller}}, nil
		})), Authorizer: arc.AuthorizerFunc(func(_ context.Context, c *arc.Call) error {
			if c.Method == "debug.secret" {
				return errors.New("a secret cause")
			}
			return nil
		})},
	})
	s.HandleTasks("worker-01", arctest.ScriptedTask())
	// Each request has the fault that is expected and all later ones: the first
	// check that fails answers (ARC-D07).
	const foreign = `{"arc":"1.0","id":"r1","method":"chat.start","requestAgent":"other","targetAgent":"ghost","params":{}}`
	steps := []struct {
		name, body, token string
		status            int
		code              arc.Code
		id                arc.ID
	}{
		{"size before the token", strings.Repeat("x", 301), "bad", 413, arc.ErrMessageTooLarge, `"error"`},
		{"the token before JSON", "{", "bad", 401, arc.ErrTokenInvalid, `"error"`},
		{"the token, with the id that can be read", foreign, "bad", 401, arc.ErrTokenInvalid, `"r1"`},
		{"JSON before the envelope", "{", "good", 400, arc.ErrParse, `"error"`},
		{"the envelope before the limit", `{"arc":"1.0","id":7}`, "good", 400, arc.ErrMissingField, `7`},
		{"binding before scope", foreign, "good", 403, arc.ErrAgentAuthenticationFailed, `"r1"`},
		{"scope before the agent", strings.Replace(foreign, "other", "ui-01", 1), "good", 403, arc.ErrInsufficientScope, `"r1"`},
		{"authorization before the agent", call("debug.secret", "ghost", "{}"), "good", 403, arc.ErrPermissionDenied, `"r1"`},
		{"the agent before the method", call("nope.nope", "ghost", "{}"), "good", 404, arc.ErrAgentNotFound, `"r1"`},
		{"the method before params", call("nope.nope", "worker-01", "{}"), "good", 404, arc.ErrMethodNotFound, `"r1"`},
		{"params", call("task.create", "worker-01", `{}`), "good", 400, arc.ErrInvalidParams, `"r1"`},
		{"the limit before binding", foreign, "good", 429, arc.ErrRateLimitExceeded, `"r1"`},
	}
	for _, st := range steps {
		rec := post(s, st.body, "Authorization", "bEARER "+st.token)
		e := fault(t, rec, st.code)
		require.Equal(t, st.status, rec.Code, st.name)
		require.Equal(t, st.id, answer(t, rec).ID, st.name)
		require.NotContains(t, e.Message+string(e.Details), "a secret cause")
	}
	rec := post(s, call("task.info", "worker-01", "{}"))
	require.Equal(t, `Bearer realm="arc"`, rec.Header().Get("WWW-Authenticate"))
	rec = post(s, call("task.info", "worker-01", "{}"), "Authorization", "Bearer good")
	require.Equal(t, "60", rec.Header().Get("Retry-After"))
}

// The text of an error names the scopes that a call requires.
func TestInsufficientScopeText(t *testing.T) {
	e := &arc.Error{Code: arc.ErrInsufficientScope, Details: json.RawMessage(`{"required_scopes":["arc.chat.controller"]}`)}
	require.EqualError(t, e, `arc: Insufficient OAuth2 scope (-44003): requires ["arc.chat.controller"]`)
	require.EqualError(t, &arc.Error{Code: arc.ErrInsufficientScope}, "arc: Insufficient OAuth2 scope (-44003)")
}

func TestInsufficientScopeHeader(t *testing.T) {
	s := newServer(t, &arc.ServerOptions{Auth: arc.Auth{Authenticator: arc.BearerAuthenticator(arc.TokenVerifierFunc(func(context.Context, string) (*arc.Principal, error) {
		return &arc.Principal{ID: "p"}, nil
	}))}})
	rec := post(s, call("chat.start", "x", "{}"), "Authorization", "Bearer t")
	require.Equal(t, 403, rec.Code)
	require.Equal(t, `Bearer realm="arc", error="insufficient_scope", scope="arc.chat.controller arc.agent.caller"`, rec.Header().Get("WWW-Authenticate"))
}

func TestVerifierFailure(t *testing.T) {
	var log bytes.Buffer
	for _, verify := range []arc.TokenVerifierFunc{
		func(context.Context, string) (*arc.Principal, error) {
			return nil, errors.New("database password is hunter2")
		},
		func(context.Context, string) (*arc.Principal, error) { panic("hunter2") },
		func(context.Context, string) (*arc.Principal, error) { return nil, nil },
	} {
		s := newServer(t, &arc.ServerOptions{Auth: arc.Auth{Authenticator: arc.BearerAuthenticator(verify)}, Logger: slog.New(slog.NewTextHandler(&log, nil))})
		rec := post(s, call("task.info", "x", "{}"), "Authorization", "Bearer t")
		e := fault(t, rec, arc.ErrInternal)
		require.NotContains(t, rec.Body.String(), "hunter2")
		require.Contains(t, log.String(), strings.Trim(strings.TrimPrefix(string(e.Details), `{"errorId":`), `"}`))
	}
}

func TestMediaTypes(t *testing.T) {
	s := newServer(t, nil)
	s.Handle("a-01", "debug.echo", arc.HandlerFunc(echo))
	body := call("debug.echo", "a-01", "{}")
	for contentType, status := range map[string]int{
		"application/arc+json":                   200,
		"application/json":                       200,
		"text/event-stream":                      200,
		`APPLICATION/json; charset="UTF-8"; v=1`: 200,
		"application/json; charset=latin1":       415,
		"text/plain":                             415,
		"":                                       415,
		"application/arc+json, application/arc+json": 415,
	} {
		require.Equal(t, status, post(s, body, "Content-Type", contentType).Code, contentType)
	}
	require.Equal(t, 415, post(s, body, "Content-Encoding", "gzip").Code)
	require.Equal(t, 200, post(s, body, "Content-Encoding", "identity").Code)
	for accept, want := range map[string]string{
		"":                            arc.MediaType,
		"text/html":                   arc.MediaType,
		"application/json":            "application/json",
		"Application/JSON;q=1":        "application/json",
		"application/json-patch+json": arc.MediaType,
		"application/json, x/application/arc+json": "application/json",
		"application/arc+json, application/json":   arc.MediaType,
		"application/json, */*":                    arc.MediaType,
		"application/*, application/json":          arc.MediaType,
	} {
		require.Equal(t, want, post(s, body, "Accept", accept).Header().Get("Content-Type"), accept)
	}
}

func TestHTTPStatusOptions(t *testing.T) {
	s := newServer(t, &arc.ServerOptions{HTTPStatus: func(e *arc.Error) int { return 418 }, ID: "me", Path: "/x/arc/"})
	req := httptest.NewRequest(http.MethodPost, "/x/arc", strings.NewReader(call("a.b", "x", "{}")))
	req.Header.Set("Content-Type", arc.MediaType)
	rec := httptest.NewRecorder()
	s.ServeHTTP(rec, req)
	require.Equal(t, 418, rec.Code)
	require.Equal(t, "me", answer(t, rec).ResponseAgent)
	require.Equal(t, 404, post(s, "{}").Code)
}

func TestLegacyEnvelopeErrors(t *testing.T) {
	s := newServer(t, &arc.ServerOptions{LegacyErrors: true})
	fault(t, post(s, `{"arc":"2.0","id":1}`), arc.ErrInvalidRequest)
	fault(t, post(s, `{`), arc.ErrParse)
}

// ARC-D17: off by default, and then only for the origins that are named.
func TestCORS(t *testing.T) {
	const origin = "https://app.example"
	s := newServer(t, &arc.ServerOptions{AllowedOrigins: []string{origin}})
	preflight := func(h http.Handler, origin string) *httptest.ResponseRecorder {
		req := httptest.NewRequest(http.MethodOptions, "/arc", nil)
		req.Header.Set("Origin", origin)
		req.Header.Set("Access-Control-Request-Method", "POST")
		rec := httptest.NewRecorder()
		h.ServeHTTP(rec, req)
		return rec
	}
	rec := preflight(s, origin)
	require.Equal(t, 204, rec.Code)
	require.Equal(t, origin, rec.Header().Get("Access-Control-Allow-Origin"))
	require.Empty(t, rec.Header().Get("Access-Control-Allow-Credentials"))
	require.Equal(t, 405, preflight(s, "https://evil.example").Code)
	require.Empty(t, preflight(s, "https://evil.example").Header().Get("Access-Control-Allow-Origin"))
	require.Equal(t, origin, post(s, "{", "Origin", origin).Header().Get("Access-Control-Allow-Origin"))
	off := newServer(t, nil)
	require.Empty(t, post(off, "{", "Origin", origin).Header().Get("Access-Control-Allow-Origin"))
	require.Equal(t, 405, preflight(off, origin).Code)
}

// dribble is a body without a length.
type dribble struct {
	n    int64
	read int64
}

func (d *dribble) Read(p []byte) (int, error) {
	if d.read >= d.n {
		return 0, io.EOF
	}
	n := min(int64(len(p)), d.n-d.read)
	for i := range p[:n] {
		p[i] = ' '
	}
	d.read += n
	return int(n), nil
}

func TestBodyLimit(t *testing.T) {
	s := newServer(t, nil)
	send := func(length int64) (*httptest.ResponseRecorder, *dribble) {
		body := &dribble{n: 100 << 20}
		req := httptest.NewRequest(http.MethodPost, "/arc", body)
		req.ContentLength = length
		req.Header.Set("Content-Type", arc.MediaType)
		rec := httptest.NewRecorder()
		s.ServeHTTP(rec, req)
		return rec, body
	}
	rec, body := send(100 << 20)
	require.JSONEq(t, `{"limit":16777216}`, string(fault(t, rec, arc.ErrMessageTooLarge).Details))
	require.Zero(t, body.read, "what is declared too large is not read")
	rec, body = send(-1)
	fault(t, rec, arc.ErrMessageTooLarge)
	require.LessOrEqual(t, body.read, int64(arc.DefaultMaxMessage+1))
}

func TestHostileJSON(t *testing.T) {
	s := newServer(t, nil)
	start := time.Now()
	for _, open := range []string{"[", `{"a":`} {
		fault(t, post(s, strings.Repeat(open, 1_000_000)), arc.ErrInvalidRequest) // too deep before it is cut
	}
	deep := strings.Repeat("[", 1_000_000) + strings.Repeat("]", 1_000_000)
	fault(t, post(s, deep), arc.ErrInvalidRequest)
	fault(t, post(s, call("a.b", "x", `{"x":`+deep+`}`)), arc.ErrInvalidRequest)
	fault(t, post(s, `{"arc":"1.0","id":1,"id":2}`), arc.ErrInvalidRequest)
	fault(t, post(s, "\xef\xbb\xbf{}"), arc.ErrParse)
	fault(t, post(s, "{\"arc\":\"\xff\"}"), arc.ErrParse)
	require.Less(t, time.Since(start), 20*time.Second)
}

func TestHandlerFailures(t *testing.T) {
	var log bytes.Buffer
	s := newServer(t, &arc.ServerOptions{Logger: slog.New(slog.NewTextHandler(&log, nil))})
	handlers := map[string]arc.HandlerFunc{
		"fail.panic": func(context.Context, *arc.Call) (any, error) { panic("secret") },
		"fail.error": func(context.Context, *arc.Call) (any, error) { return nil, errors.New("secret") },
		"fail.list":  func(context.Context, *arc.Call) (any, error) { return []string{"secret"}, nil },
		"fail.text":  func(context.Context, *arc.Call) (any, error) { return json.RawMessage(`{"secret":`), nil },
		"fail.func":  func(context.Context, *arc.Call) (any, error) { return func() {}, nil },
		"fail.details": func(context.Context, *arc.Call) (any, error) {
			return nil, &arc.Error{Code: -42004, Message: "m", Details: json.RawMessage(`secret`)}
		},
	}
	for method, h := range handlers {
		s.Handle("a-01", method, h)
	}
	s.Handle("a-01", "ok.nil", arc.HandlerFunc(func(context.Context, *arc.Call) (any, error) { return nil, nil }))
	s.Handle("a-01", "ok.task", arc.HandlerFunc(func(context.Context, *arc.Call) (any, error) { return &arc.Task{ID: "t"}, nil }))
	s.Handle("a-01", "ok.code", arc.HandlerFunc(func(context.Context, *arc.Call) (any, error) {
		return nil, fmt.Errorf("secret: %w", arc.ErrTaskTimeout)
	}))
	s.Handle("a-01", "ok.wrapped", arc.HandlerFunc(func(context.Context, *arc.Call) (any, error) {
		return nil, fmt.Errorf("secret: %w", arc.Errorf(-1234567, "told"))
	}))
	for method := range handlers {
		log.Reset()
		rec := post(s, call(method, "a-01", "{}"))
		require.Equal(t, 500, rec.Code, method)
		e := fault(t, rec, arc.ErrInternal)
		require.Equal(t, "Internal error", e.Message)
		require.NotContains(t, rec.Body.String(), "secret")
		var d struct {
			ErrorID string `json:"errorId"`
		}
		require.NoError(t, json.Unmarshal(e.Details, &d))
		require.Contains(t, log.String(), d.ErrorID, method)
	}
	require.JSONEq(t, `{}`, string(answer(t, post(s, call("ok.nil", "a-01", "{}"))).Result))
	require.Contains(t, string(answer(t, post(s, call("ok.task", "a-01", "{}"))).Result), `"type":"task"`)
	require.Equal(t, "Task timeout", fault(t, post(s, call("ok.code", "a-01", "{}")), arc.ErrTaskTimeout).Message)
	require.Equal(t, "told", fault(t, post(s, call("ok.wrapped", "a-01", "{}")), -1234567).Message)
}

func TestMiddleware(t *testing.T) {
	var mu sync.Mutex
	var seen []string
	note := func(name string) arc.Middleware {
		return func(next arc.Handler) arc.Handler {
			return arc.HandlerFunc(func(ctx context.Context, c *arc.Call) (any, error) {
				mu.Lock()
				seen = append(seen, name+" "+c.Method)
				mu.Unlock()
				return next.ServeARC(ctx, c)
			})
		}
	}
	s := newServer(t, &arc.ServerOptions{Middleware: []arc.Middleware{note("outer"), note("inner")}})
	s.Register(arc.Agent{AgentInfo: arc.AgentInfo{AgentID: "a-01"}, Middleware: []arc.Middleware{note("agent")},
		ChatHandler: arctest.ScriptedChat("hi"), Methods: map[string]arc.Handler{"debug.echo": arc.HandlerFunc(echo)}})
	s.Handle("a-01", "debug.echo.v2", arc.HandlerFunc(echo))
	for _, m := range []string{"debug.echo", "debug.echo.v2"} {
		require.Nil(t, answer(t, post(s, call(m, "a-01", `{"n":1.50}`))).Error)
	}
	rec := post(s, call("chat.start", "a-01", `{"stream":true,"initialMessage":`+hello("x")+`}`))
	require.Equal(t, arc.MediaTypeStream, rec.Header().Get("Content-Type"))
	require.Equal(t, []string{
		"outer debug.echo", "inner debug.echo", "agent debug.echo",
		"outer debug.echo.v2", "inner debug.echo.v2", "agent debug.echo.v2",
		"outer chat.start", "inner chat.start", "agent chat.start",
	}, seen)
	// A version is a separate method (ARC-D51).
	fault(t, post(s, call("debug.echo.v3", "a-01", "{}")), arc.ErrMethodNotFound)
}

func TestRegistrationPanics(t *testing.T) {
	s := newServer(t, nil)
	s.HandleTasks("a-01", arctest.ScriptedTask())
	s.Register(arc.Agent{AgentInfo: arc.AgentInfo{AgentID: "g-01"}, Group: "g", TaskHandler: arctest.ScriptedTask()})
	for name, f := range map[string]func(){
		"twice":              func() { s.HandleTasks("a-01", arctest.ScriptedTask()) },
		"no id":              func() { s.HandleTasks("", arctest.ScriptedTask()) },
		"control character":  func() { s.HandleTasks("a\n", arctest.ScriptedTask()) },
		"named like a group": func() { s.HandleTasks("g", arctest.ScriptedTask()) },
		"group like an id":   func() { s.Register(arc.Agent{AgentInfo: arc.AgentInfo{AgentID: "n"}, Group: "a-01"}) },
		"one word":           func() { s.Handle("b-01", "echo", arc.HandlerFunc(echo)) },
		"bad word":           func() { s.Handle("a-01", "echo.a-b", arc.HandlerFunc(echo)) },
		"method twice":       func() { s.Handle("a-01", "task.info", arc.HandlerFunc(echo)) },
		"nil handler":        func() { s.Handle("a-01", "x.y", nil) },
		"nil function":       func() { s.Handle("a-01", "x.y", arc.HandlerFunc(nil)) },
		"nil task function":  func() { s.HandleTasks("c-01", arc.TaskHandlerFunc(nil)) },
		"nil chat function":  func() { s.HandleChats("c-01", arc.ChatHandlerFunc(nil)) },
		"nil field": func() {
			s.Register(arc.Agent{AgentInfo: arc.AgentInfo{AgentID: "c-01"}, NotificationHandler: arc.NotificationHandlerFunc(nil)})
		},
		"no UTF-8":       func() { s.HandleTasks("c\xff", arctest.ScriptedTask()) },
		"group no UTF-8": func() { s.Register(arc.Agent{AgentInfo: arc.AgentInfo{AgentID: "c-01"}, Group: "c\xff"}) },
		"nil middleware": func() {
			s.Register(arc.Agent{AgentInfo: arc.AgentInfo{AgentID: "c-01"}, TaskHandler: arctest.ScriptedTask(), Middleware: []arc.Middleware{nil}})
		},
		"no handler from middleware": func() {
			s.Register(arc.Agent{AgentInfo: arc.AgentInfo{AgentID: "c-01"}, TaskHandler: arctest.ScriptedTask(),
				Middleware: []arc.Middleware{func(arc.Handler) arc.Handler { return nil }}})
		},
	} {
		func() {
			defer func() {
				text := recover()
				require.Contains(t, text, "arc: ", name)
				if strings.HasPrefix(name, "nil ") {
					require.Contains(t, text, "nil", name)
				}
			}()
			f()
		}()
	}
	require.False(t, s.Unregister("c-01"))
	require.True(t, s.Unregister("a-01"))
	require.False(t, s.Unregister("a-01"))
	fault(t, post(s, call("task.info", "a-01", "{}")), arc.ErrAgentNotFound)
	s.HandleTasks("a-01", arctest.ScriptedTask())
}

func TestRegistryWhileServing(t *testing.T) {
	s := newServer(t, nil)
	s.HandleTasks("stays-01", arctest.ScriptedTask())
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			for range 100 {
				id := fmt.Sprintf("comes-%d", i)
				s.HandleTasks(id, arctest.ScriptedTask())
				s.Handle(id, "debug.echo", arc.HandlerFunc(echo))
				createTask(t, s, id, "x")
				s.SetHealthy(id, false)
				s.Unregister(id)
			}
		})
		wg.Go(func() {
			for range 100 {
				createTask(t, s, "stays-01", "x")
				s.Agents()
			}
		})
	}
	wg.Wait()
}

// ARC-D50, ARC-D67: what /agent-info, agent.getCapabilities and /health tell.
func TestDiscovery(t *testing.T) {
	get := func(s http.Handler, method, path string, headers ...string) *httptest.ResponseRecorder {
		req := httptest.NewRequest(method, path, nil)
		for i := 0; i < len(headers); i += 2 {
			req.Header.Set(headers[i], headers[i+1])
		}
		rec := httptest.NewRecorder()
		s.ServeHTTP(rec, req)
		return rec
	}
	s := newServer(t, &arc.ServerOptions{EnableHealth: true, AgentCard: []byte(`{"name":"n"}`), EnableCapabilities: true})
	s.Register(arc.Agent{AgentInfo: arc.AgentInfo{AgentID: "a-01", Version: "2.0.0", Prompt: "use me"}, TaskHandler: arctest.ScriptedTask()})
	for _, path := range []string{"/agent-info", "/arc/info", "/agent-info?agentId=a-01"} {
		rec := get(s, "GET", path)
		require.Equal(t, 200, rec.Code)
		require.JSONEq(t, `{"agentId":"a-01","capabilities":[],"prompt":"use me","version":"2.0.0","status":"active","endpoints":{"arc":"/arc"},
			"supportedMethods":["agent.getCapabilities","task.cancel","task.create","task.info","task.send","task.subscribe"]}`, rec.Body.String())
	}
	require.Contains(t, string(answer(t, post(s, call("agent.getCapabilities", "a-01", "{}"))).Result), `"agentId":"a-01"`)
	s.HandleChats("b-01", arctest.EchoChat())
	infos, err := arc.DecodeAgentInfo(get(s, "GET", "/agent-info").Body.Bytes())
	require.NoError(t, err)
	require.Len(t, infos, 2)
	require.Equal(t, "b-01", infos[1].AgentID)
	require.Equal(t, 404, get(s, "GET", "/agent-info?agentId=x").Code)
	rec := get(s, "POST", "/agent-info")
	require.Equal(t, 405, rec.Code)
	require.Equal(t, "GET, HEAD", rec.Header().Get("Allow"))
	require.JSONEq(t, `{"status":"healthy","server":"arc-server","agents":2}`, get(s, "GET", "/health").Body.String())
	require.JSONEq(t, `{"name":"n"}`, get(s, "GET", "/arc"+discovery.AgentCardPath).Body.String())

	s = newServer(t, &arc.ServerOptions{Auth: arc.Auth{DisableDiscovery: true}})
	for _, path := range []string{"/agent-info", "/health", "/arc/info", "/arc" + discovery.AgentCardPath} {
		require.Equal(t, 404, get(s, "GET", path).Code)
	}
	s = newServer(t, &arc.ServerOptions{Auth: arc.Auth{RequireForDiscovery: true, Authenticator: arc.BearerAuthenticator(arc.TokenVerifierFunc(func(_ context.Context, token string) (*arc.Principal, error) {
		return nil, arc.ErrTokenExpired
	}))}})
	rec = get(s, "GET", "/agent-info", "Authorization", "Bearer x")
	require.Equal(t, 401, rec.Code)
	require.Contains(t, rec.Body.String(), "-44004")
	require.Contains(t, rec.Header().Get("WWW-Authenticate"), "invalid_token")
}

// ARC-171, ARC-181, ARC-D70: every request is audited with its times, sizes and outcome, and
// without content or tokens.
func TestAudit(t *testing.T) {
	var records []arc.AuditRecord
	var log bytes.Buffer
	write := arc.AuditLog(slog.New(slog.NewTextHandler(&log, nil)))
	s := newServer(t, &arc.ServerOptions{Limits: arc.Limits{MaxMessage: 1000},
		Audit: func(ctx context.Context, r *arc.AuditRecord) { records = append(records, *r); write(ctx, r) },
		Auth: arc.Auth{Authenticator: arc.BearerAuthenticator(arc.TokenVerifierFunc(func(context.Context, string) (*arc.Principal, error) {
			return &arc.Principal{ID: "alice", Scopes: strings.Fields(arc.ScopesFullCaller)}, nil
		}))}})
	s.HandleChats("a-01", arctest.ScriptedChat("answer"))
	body := strings.Replace(call("chat.start", "a-01", `{"stream":true,"initialMessage":`+hello("question")+`}`), `"ui-01"`, `"ui\"\u2028x"`, 1)
	post(s, body, "Authorization", "Bearer token-text")
	post(s, strings.Repeat("x", 2000), "Authorization", "Bearer token-text")
	require.Len(t, records, 2)
	require.Equal(t, "alice", records[0].Principal)
	require.True(t, records[0].Streaming)
	require.EqualValues(t, len(body), records[0].Bytes)
	require.Greater(t, records[0].ResponseBytes, int64(50))
	require.Equal(t, "ok", records[0].Outcome)
	require.Equal(t, "chat.start", records[0].Operation)
	require.Empty(t, records[0].Code)
	require.Equal(t, "MessageTooLarge", records[1].Code)
	require.Equal(t, "refused", records[1].Outcome)
	require.Equal(t, []uint64{1, 2}, []uint64{records[0].Seq, records[1].Seq})
	for _, secret := range []string{"token-text", "question", "answer"} {
		require.NotContains(t, log.String(), secret) // ARC-D70
	}
	require.Equal(t, 2, strings.Count(log.String(), "\n"))
}

func TestPathGuard(t *testing.T) {
	s := newServer(t, &arc.ServerOptions{Auth: arc.Auth{RejectCycles: true}})
	var path []string
	s.Handle("b-01", "debug.echo", arc.HandlerFunc(func(ctx context.Context, _ *arc.Call) (any, error) {
		path = arc.CallFromContext(ctx).AgentPath
		return nil, nil
	}))
	require.Nil(t, answer(t, post(s, call("debug.echo", "b-01", "{}"), "X-ARC-Path", "a%2C01, c-01")).Error)
	require.Equal(t, []string{"a,01", "c-01"}, path)
	fault(t, post(s, call("debug.echo", "b-01", "{}"), "X-ARC-Path", "a-01,b-01"), arc.ErrCircularReference)
	fault(t, post(s, call("debug.echo", "b-01", "{}"), "X-ARC-Path", strings.Repeat("a,", 33)+"a"), arc.ErrCircularReference)
}

func TestIdempotency(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t, &arc.ServerOptions{Persistence: arc.Persistence{ResultTTL: 10 * time.Minute}})
		runs := 0
		s.Handle("a-01", "count.up", arc.HandlerFunc(func(context.Context, *arc.Call) (any, error) {
			runs++
			time.Sleep(time.Second)
			if runs == 4 {
				return nil, arc.Errorf(arc.ErrTaskTimeout, "late")
			}
			return map[string]int{"runs": runs}, nil
		}))
		var wg sync.WaitGroup
		for range 5 { // at once: one runs, the others wait for it
			wg.Go(func() {
				require.JSONEq(t, `{"runs":1}`, string(answer(t, post(s, call("count.up", "a-01", `{"x":1}`))).Result))
			})
		}
		wg.Wait()
		require.JSONEq(t, `{"runs":1}`, string(answer(t, post(s, call("count.up", "a-01", `{ "x" : 1 }`))).Result))
		require.JSONEq(t, `{"runs":2}`, string(answer(t, post(s, call("count.up", "a-01", `{"x":2}`))).Result))
		time.Sleep(11 * time.Minute)
		require.JSONEq(t, `{"runs":3}`, string(answer(t, post(s, call("count.up", "a-01", `{"x":1}`))).Result))
		for range 2 { // an error is an answer too
			rec := post(s, call("count.up", "a-01", `{"x":3}`))
			require.Equal(t, "late", fault(t, rec, arc.ErrTaskTimeout).Message)
		}
		require.Equal(t, 4, runs)
	})
}

// If a caller disconnects during a call, its repeated request runs the handler again.
func TestIdempotencyAfterDisconnect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t, &arc.ServerOptions{Persistence: arc.Persistence{ResultTTL: time.Minute}})
		runs := 0
		s.Handle("a-01", "count.up", arc.HandlerFunc(func(ctx context.Context, _ *arc.Call) (any, error) {
			runs++
			select {
			case <-time.After(time.Second):
				return nil, nil
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}))
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		in := &arc.ServerRequest{Data: []byte(call("count.up", "a-01", `{}`))}
		require.NotNil(t, s.ServeMessage(ctx, in, nil).Error)
		require.Nil(t, s.ServeMessage(t.Context(), in, nil).Error)
		require.Equal(t, 2, runs)
	})
}

func TestRateLimitPerPrincipal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t, &arc.ServerOptions{Limits: arc.Limits{RequestRate: 2, RequestBurst: 1},
			Auth: arc.Auth{Authenticator: arc.BearerAuthenticator(arc.TokenVerifierFunc(func(_ context.Context, token string) (*arc.Principal, error) {
				return &arc.Principal{ID: token, Scopes: []string{arc.ScopeAgentCaller}}, nil
			}))}})
		s.Handle("a-01", "debug.echo", arc.HandlerFunc(echo))
		ask := func(token, agent string) *httptest.ResponseRecorder {
			return post(s, strings.Replace(call("debug.echo", "a-01", "{}"), "ui-01", agent, 1), "Authorization", "Bearer "+token)
		}
		require.Equal(t, 200, ask("p1", "x").Code)
		// Another requestAgent does not help: it is the principal who is bounded.
		require.Equal(t, 429, ask("p1", "y").Code)
		require.Equal(t, "1", ask("p1", "y").Header().Get("Retry-After"))
		require.Equal(t, 200, ask("p2", "x").Code)
		time.Sleep(500 * time.Millisecond)
		require.Equal(t, 200, ask("p1", "x").Code)
	})
}

func TestInvalidAgentCardIsRefused(t *testing.T) {
	for _, card := range []string{"", "card", "[]"} {
		_, err := arc.NewServer(&arc.ServerOptions{Auth: arc.Auth{AllowAnonymous: true}, AgentCard: []byte(card)})
		require.EqualError(t, err, "arc: server: AgentCard is not a JSON object", card)
	}
}

// Handlers of one agent may be registered one by one, in any order.
func TestHandlersExtendAnAgent(t *testing.T) {
	for first := range 3 {
		s := newServer(t, nil)
		handle := []func(){
			func() { s.HandleTasks("a", arctest.ScriptedTask(arctest.AddMessage("m"))) },
			func() { s.HandleChats("a", arctest.EchoChat()) },
			func() { s.Handle("a", "debug.echo", arc.HandlerFunc(echo)) },
		}
		for i := range handle {
			handle[(first+i)%3]()
		}
		for i, body := range []string{call("task.create", "a", `{"initialMessage":`+hello("x")+`}`),
			call("chat.start", "a", `{"initialMessage":`+hello("x")+`}`), call("debug.echo", "a", "{}")} {
			res := answer(t, post(s, body))
			require.Nil(t, res.Error, body)
			require.Panics(t, handle[i], "it is served already")
		}
		for _, agent := range []string{"a", "b"} {
			require.Panics(t, func() { s.HandleTasks(agent, nil) })
			require.Panics(t, func() { s.HandleChats(agent, nil) })
		}
	}
}

func TestMiddlewareMayUseServerWhenMethodIsAdded(t *testing.T) {
	var s *arc.Server
	s = newServer(t, &arc.ServerOptions{Middleware: []arc.Middleware{func(next arc.Handler) arc.Handler {
		require.LessOrEqual(t, len(s.Agents()), 1)
		return next
	}}})
	s.Handle("a", "debug.echo", arc.HandlerFunc(echo))
	s.HandleTasks("a", arctest.ScriptedTask())
	require.Nil(t, answer(t, post(s, call("task.create", "a", `{"initialMessage":`+hello("x")+`}`))).Error)
}

// HandleTasks and HandleChats skip the methods that the agent excludes.
func TestHandlersKeepExclusions(t *testing.T) {
	s := newServer(t, nil)
	s.Register(arc.Agent{AgentInfo: arc.AgentInfo{AgentID: "a"}, ExcludedMethods: []string{"task.cancel"}, StatelessChats: true,
		Methods: map[string]arc.Handler{"debug.echo": arc.HandlerFunc(echo)}})
	s.HandleTasks("a", arctest.ScriptedTask())
	s.HandleChats("a", arctest.EchoChat())
	for _, method := range []string{"task.cancel", "chat.end", "chat.message"} {
		fault(t, post(s, call(method, "a", "{}")), arc.ErrMethodNotFound)
	}
	require.Nil(t, answer(t, post(s, call("chat.start", "a", `{"initialMessage":`+hello("x")+`}`))).Error)
}
