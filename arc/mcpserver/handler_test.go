// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package mcpserver_test

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"iter"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/fivewire/fivewire/arc"
	"github.com/fivewire/fivewire/arc/mcpserver"
	"github.com/fivewire/fivewire/internal/kit"
	"github.com/fivewire/fivewire/store"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// eras are versions of the protocol.
var eras = []string{"2026-07-28", "2025-11-25", "2025-03-26"}

// A fixture is a handler in front of a server with one agent.
type fixture struct {
	engine   *arc.Server
	handler  http.Handler
	url      string
	started  chan string // ids of slow tasks
	canceled chan error
}

func newFixture(t *testing.T, db store.Store, opts *mcpserver.Options) *fixture {
	t.Helper()
	f := &fixture{started: make(chan string, 1), canceled: make(chan error, 1)}
	keys := map[string]*arc.Principal{}
	for _, name := range []string{"alice", "bob"} {
		keys[name] = &arc.Principal{ID: name, Scopes: arc.RequiredScopes(arc.MethodTaskCreate)}
	}
	auth, err := arc.APIKeyAuthenticator(keys)
	require.NoError(t, err)
	f.engine, err = arc.NewServer(&arc.ServerOptions{Logger: slog.New(slog.DiscardHandler), Auth: arc.Auth{Authenticator: auth},
		Persistence: arc.Persistence{Store: db}, Limits: arc.Limits{MaxMessage: 1 << 20}})
	require.NoError(t, err)
	t.Cleanup(func() { _ = f.engine.Close() })
	f.engine.HandleTasks("worker-01", arc.TaskHandlerFunc(f.work))
	f.handler, err = mcpserver.NewHandler(f.engine, []arc.AgentInfo{{AgentID: "worker-01", Name: "Worker", Description: "Works."}}, opts)
	require.NoError(t, err)
	server := httptest.NewServer(f.handler)
	t.Cleanup(server.Close)
	f.url = server.URL
	return f
}

func (f *fixture) work(ctx context.Context, run *arc.TaskRun) error {
	switch m := run.Message(); m.Text() {
	case "fail":
		return arc.Errorf(arc.ErrTaskExecutionFailed, "no paint")
	case "crash":
		panic("a failure")
	case "files":
		return run.AddArtifact(ctx, &arc.Artifact{Parts: []arc.Part{arc.ImagePart("image/png", []byte("i")), arc.AudioPart("audio/wav", []byte("a")),
			arc.FilePart("a b.txt", "text/plain", []byte("f")), {Type: arc.PartTypeImage, Content: "%"}, arc.TextPart("seen")}})
	case "ask":
		answer, err := run.WaitInput(ctx, "which color?")
		if err != nil {
			return err
		}
		return run.AddArtifact(ctx, &arc.Artifact{Parts: []arc.Part{arc.TextPart(answer.Text())}})
	case "slow":
		f.started <- run.ID()
		<-ctx.Done()
		f.canceled <- context.Cause(ctx)
		return ctx.Err()
	case "data":
		return run.AddArtifact(ctx, &arc.Artifact{Parts: []arc.Part{{Type: arc.PartTypeData, Content: m.Parts[1].Content}}})
	}
	return run.AddMessage(ctx, arc.AgentText("done"))
}

// A token authenticates each request.
type token struct {
	name string
	base *http.Transport
}

func (k *token) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+k.name)
	return k.base.RoundTrip(r)
}

func (f *fixture) dial(t *testing.T, name, version string, opts *mcp.ClientOptions) (*mcp.ClientSession, error) {
	t.Helper()
	transport := &token{name, &http.Transport{}}
	t.Cleanup(transport.base.CloseIdleConnections)
	s, err := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, opts).Connect(t.Context(),
		&mcp.StreamableClientTransport{Endpoint: f.url, HTTPClient: &http.Client{Transport: transport}, MaxRetries: -1, DisableStandaloneSSE: true},
		&mcp.ClientSessionOptions{ProtocolVersion: version})
	if err == nil {
		t.Cleanup(func() { _ = s.Close() })
	}
	return s, err
}

func call(t *testing.T, s *mcp.ClientSession, args map[string]any) (*mcp.CallToolResult, map[string]any) {
	t.Helper()
	res, err := s.CallTool(t.Context(), &mcp.CallToolParams{Name: "worker-01", Arguments: args})
	require.NoError(t, err)
	out, _ := res.StructuredContent.(map[string]any)
	return res, out
}

func textOf(res *mcp.CallToolResult) string { return res.Content[0].(*mcp.TextContent).Text }

// The SDK's client calls an agent in each version of the protocol: results, failures, questions and refusals.
func TestAgents(t *testing.T) {
	f := newFixture(t, nil, nil)
	for _, version := range eras {
		t.Run(version, func(t *testing.T) {
			progress := make(chan string, 10)
			s, err := f.dial(t, "alice", version, &mcp.ClientOptions{ProgressNotificationHandler: func(_ context.Context, r *mcp.ProgressNotificationClientRequest) {
				progress <- r.Params.Message
			}})
			require.NoError(t, err)
			list, err := s.ListTools(t.Context(), nil)
			require.NoError(t, err)
			require.Len(t, list.Tools, 1)
			require.Equal(t, "Works.", list.Tools[0].Description)
			require.NotNil(t, list.Tools[0].OutputSchema)

			params := &mcp.CallToolParams{Name: "worker-01", Arguments: map[string]any{"message": "paint"}}
			params.SetProgressToken("p")
			res, err := s.CallTool(t.Context(), params)
			require.NoError(t, err)
			require.Equal(t, "done", textOf(res))
			require.Equal(t, "COMPLETED", res.StructuredContent.(map[string]any)["status"])
			select {
			case text := <-progress:
				require.Equal(t, "done", text)
			case <-time.After(time.Minute):
				t.Fatal("no progress")
			}

			res, out := call(t, s, map[string]any{"message": "fail"})
			require.True(t, res.IsError)
			require.Equal(t, "FAILED", out["status"])
			require.Contains(t, textOf(res), "no paint")

			res, out = call(t, s, map[string]any{"message": "files"})
			require.Len(t, res.Content, 4)
			require.Equal(t, []byte("i"), res.Content[0].(*mcp.ImageContent).Data)
			require.Equal(t, []byte("a"), res.Content[1].(*mcp.AudioContent).Data)
			require.Equal(t, &mcp.ResourceContents{URI: fmt.Sprintf("arc:/%s/a%%20b.txt", out["taskId"]), MIMEType: "text/plain", Blob: []byte("f")},
				res.Content[2].(*mcp.EmbeddedResource).Resource)
			require.Equal(t, "seen", res.Content[3].(*mcp.TextContent).Text)
			require.NotContains(t, fmt.Sprint(out), base64.StdEncoding.EncodeToString([]byte("f")))

			res, out = call(t, s, map[string]any{"message": "ask"})
			require.False(t, res.IsError)
			require.Equal(t, "INPUT_REQUIRED", out["status"])
			require.Equal(t, "which color?", out["question"])
			id := out["taskId"]
			bob, err := f.dial(t, "bob", version, nil)
			require.NoError(t, err)
			res, _ = call(t, bob, map[string]any{"taskId": id})
			require.True(t, res.IsError, "the task of another principal")
			res, out = call(t, s, map[string]any{"taskId": id, "message": "red"})
			require.Equal(t, id, out["taskId"])
			require.Equal(t, "red", textOf(res))
			res, out = call(t, s, map[string]any{"taskId": id})
			require.Equal(t, id, out["taskId"])
			require.Equal(t, "red", textOf(res))

			res, out = call(t, s, map[string]any{"message": 1, "data": "x", "taskId": false, "cancel": "x", "a/b": 1})
			require.True(t, res.IsError)
			require.Len(t, out["errors"], 5)
			require.Contains(t, textOf(res), "\n/a~1b: unknown_parameter")
			for missing, args := range map[string][]map[string]any{
				"/message": {{}, {"data": map[string]any{}}, {"taskId": id, "data": map[string]any{"color": "red"}}},
				"/taskId":  {{"cancel": true}, {"message": "stop", "cancel": true}},
			} {
				for _, a := range args {
					res, _ = call(t, s, a)
					require.Contains(t, textOf(res), "\n"+missing+": missing_parameter")
				}
			}
			_, err = s.CallTool(t.Context(), &mcp.CallToolParams{Name: "unknown"})
			require.ErrorContains(t, err, "unknown tool")
		})
	}
}

// A task that works for longer than a call is continued and canceled by its id.
func TestLongTask(t *testing.T) {
	f := newFixture(t, store.NewMemory(), &mcpserver.Options{MaxWait: 50 * time.Millisecond})
	s, err := f.dial(t, "alice", eras[0], nil)
	require.NoError(t, err)
	res, out := call(t, s, map[string]any{"message": "slow"})
	id := <-f.started
	for range 2 {
		require.False(t, res.IsError)
		require.Equal(t, id, out["taskId"])
		require.Contains(t, []any{"SUBMITTED", "WORKING"}, out["status"])
		res, out = call(t, s, map[string]any{"taskId": id})
	}
	_, out = call(t, s, map[string]any{"taskId": id, "cancel": true})
	require.Equal(t, "CANCELED", out["status"])
	require.ErrorIs(t, <-f.canceled, arc.ErrTaskAlreadyCanceled)
	require.Empty(t, f.started, "one task")
}

func (f *fixture) request(ctx context.Context, name, version, body string) *http.Request {
	req := httptest.NewRequestWithContext(ctx, http.MethodPost, "/", strings.NewReader(body))
	for header, value := range map[string]string{"Content-Type": "application/json", "Accept": "application/json, text/event-stream",
		"Mcp-Protocol-Version": version, "Mcp-Method": "tools/call", "Mcp-Name": "worker-01", "Authorization": "Bearer " + name} {
		req.Header.Set(header, value)
	}
	return req
}

// The end of a request cancels the task that it has started.
func TestCancel(t *testing.T) {
	f := newFixture(t, nil, nil)
	for _, version := range eras {
		body := `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"worker-01","arguments":{"message":"slow"},"_meta":{` +
			`"io.modelcontextprotocol/protocolVersion":"` + version + `","io.modelcontextprotocol/clientInfo":{"name":"t","version":"1"},` +
			`"io.modelcontextprotocol/clientCapabilities":{}}}}`
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			f.handler.ServeHTTP(httptest.NewRecorder(), f.request(ctx, "alice", version, body))
		}()
		<-f.started
		cancel()
		<-done
		require.ErrorIs(t, <-f.canceled, arc.ErrTaskAlreadyCanceled)
	}
}

// A call that the end of its process cuts off returns the id of the task, with which it continues at another process.
func TestShutdownInCall(t *testing.T) {
	db := store.NewMemory()
	f, next := newFixture(t, db, nil), newFixture(t, db, nil)
	done := make(chan *mcp.CallToolResult)
	s, err := f.dial(t, "alice", eras[1], nil)
	require.NoError(t, err)
	go func() {
		res, err := s.CallTool(t.Context(), &mcp.CallToolParams{Name: "worker-01", Arguments: map[string]any{"message": "slow"}})
		if err != nil {
			t.Error(err)
			res = &mcp.CallToolResult{IsError: true}
		}
		done <- res
	}()
	id := <-f.started
	require.NoError(t, f.engine.Close())
	res := <-done
	require.False(t, res.IsError, res)
	require.Equal(t, id, res.StructuredContent.(map[string]any)["taskId"])
	s, err = next.dial(t, "alice", eras[1], nil)
	require.NoError(t, err)
	_, out := call(t, s, map[string]any{"taskId": id})
	require.Equal(t, id, out["taskId"])
	require.Equal(t, "FAILED", out["status"], "the handler does not run again")
}

// A call whose task was created returns the id of the task, although the server refuses to wait for it.
func TestRefusedWait(t *testing.T) {
	f := newFixture(t, nil, nil)
	engine, err := arc.NewServer(&arc.ServerOptions{Auth: arc.Auth{AllowAnonymous: true}, Limits: arc.Limits{RequestRate: 1e-6, RequestBurst: 1}})
	require.NoError(t, err)
	defer engine.Close()
	engine.HandleTasks("worker-01", arc.TaskHandlerFunc(f.work))
	f.handler, err = mcpserver.NewHandler(engine, []arc.AgentInfo{{AgentID: "worker-01"}}, &mcpserver.Options{TaskDelay: time.Hour})
	require.NoError(t, err)
	r, text := rpc(t, f.handler, "", tasksOnly, "tools/call", call1+`"slow"}`)
	require.Equal(t, "working", r.Result.Status, text)
	require.Equal(t, <-f.started, r.Result.TaskID)
	require.NotEmpty(t, r.Result.CreatedAt)
	r, text = rpc(t, f.handler, "", tasksOnly, "tools/call", call1+`"slow"}`)
	require.Contains(t, text, "RateLimitExceeded", r)
}

// A call over the bound of waiting calls does not wait: one that has created a task returns its id, and an answer to a
// task is refused.
func TestWaitingCallsAreBounded(t *testing.T) {
	f := newFixture(t, nil, nil)
	engine, err := arc.NewServer(&arc.ServerOptions{Auth: arc.Auth{AllowAnonymous: true}, Limits: arc.Limits{QueueLimitPerPrincipal: 1}})
	require.NoError(t, err)
	defer engine.Close()
	engine.HandleTasks("worker-01", arc.TaskHandlerFunc(f.work))
	f.handler, err = mcpserver.NewHandler(engine, []arc.AgentInfo{{AgentID: "worker-01"}}, &mcpserver.Options{TaskDelay: time.Hour})
	require.NoError(t, err)
	in := &arc.ServerRequest{RemoteAddr: "192.0.2.1:1"}
	in.Data, err = arc.AppendRequest(nil, &arc.Request{ID: arc.NewID(), Method: arc.MethodTaskCreate, RequestAgent: "tester-01", TargetAgent: "worker-01",
		Params: json.RawMessage(`{"initialMessage":{"role":"user","parts":[{"type":"TextPart","content":"ask"}]}}`)})
	require.NoError(t, err)
	next, stop := iter.Pull2(engine.WatchTask(t.Context(), in))
	defer stop()
	task, err, ok := next()
	require.True(t, ok)
	require.NoError(t, err)
	r, text := rpc(t, f.handler, "", tasksOnly, "tools/call", call1+`"slow"}`)
	require.Equal(t, "working", r.Result.Status, text)
	require.Equal(t, <-f.started, r.Result.TaskID)
	r, text = rpc(t, f.handler, "", tasksOnly, "tools/call", call1+`"red","taskId":"`+task.ID+`"}`)
	require.Contains(t, text, "AgentCapacityExceeded", r)
}

// Numbers keep each digit on the wire.
func TestExactNumbers(t *testing.T) {
	f := newFixture(t, nil, nil)
	w := httptest.NewRecorder()
	body := `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"worker-01","arguments":{"message":"data","data":{"id":9007199254740993}}}}`
	f.handler.ServeHTTP(w, f.request(t.Context(), "alice", eras[1], body))
	require.Contains(t, w.Body.String(), `"text":"{\"id\":9007199254740993}"`)
}

// errBody fails a test that reads it.
type errBody struct{ t *testing.T }

func (b errBody) Read([]byte) (int, error) {
	b.t.Error("the body was read")
	return 0, io.ErrUnexpectedEOF
}

// Strangers are refused before their body is read, and so is a body that is too large or not JSON in order.
func TestRefusals(t *testing.T) {
	f := newFixture(t, nil, nil)
	for _, tt := range []struct {
		name, body string
		length     int64
		want       int
	}{
		{"nobody", "", 1000, http.StatusUnauthorized},
		{"alice", "", 2 << 20, http.StatusRequestEntityTooLarge},
		{"alice", `{"jsonrpc":"2.0","jsonrpc":"2.0"}`, 33, http.StatusBadRequest},
	} {
		req := f.request(t.Context(), tt.name, eras[0], tt.body)
		if tt.body == "" {
			req.Body = io.NopCloser(errBody{t})
		}
		req.ContentLength = tt.length
		w := httptest.NewRecorder()
		f.handler.ServeHTTP(w, req)
		require.Equal(t, tt.want, w.Code)
	}
	_, err := f.dial(t, "nobody", eras[0], nil)
	require.Error(t, err)
	_, err = mcpserver.NewHandler(nil, []arc.AgentInfo{{AgentID: "a"}}, nil)
	require.Error(t, err)
	_, err = mcpserver.NewHandler(f.engine, []arc.AgentInfo{{AgentID: "a b"}}, nil)
	require.Error(t, err)
	_, err = mcpserver.NewHandler(f.engine, []arc.AgentInfo{{AgentID: "a"}, {AgentID: "a"}}, nil)
	require.ErrorContains(t, err, `"a" is listed twice`)
}

// A client whose request is refused in a shutdown reaches another server, not this one on the same connection.
func TestShutdownEndsConnections(t *testing.T) {
	f := newFixture(t, nil, nil)
	kit.CheckPostLeaves(t, f.handler, http.Header{"Authorization": {"Bearer alice"}},
		`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"worker-01","arguments":{"message":"data"}}}`, f.engine.Shutdown)
}
