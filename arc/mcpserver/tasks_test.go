// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package mcpserver_test

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/arc"
	"github.com/fivewire/fivewire/arc/mcpserver"
	"github.com/fivewire/fivewire/store"
)

// The capabilities of clients.
const (
	both      = `{"extensions":{"io.modelcontextprotocol/tasks":{}},"elicitation":{}}`
	tasksOnly = `{"extensions":{"io.modelcontextprotocol/tasks":{}}}`
	elicits   = `{"elicitation":{"form":{}}}`
	neither   = `{}`
)

// A reply is the result or the error of a request.
type reply struct {
	Result struct {
		ResultType    string
		TaskID        string
		Status        string
		StatusMessage string
		CreatedAt     string
		LastUpdatedAt string
		TTL           *int64 `json:"ttlMs"`
		PollInterval  int64  `json:"pollIntervalMs"`
		RequestState  string
		InputRequests map[string]struct {
			Method string
			Params struct{ Message string }
		}
		Content           []struct{ Text string }
		StructuredContent struct{ TaskID, Status string }
		Result            struct {
			Content []struct{ Text string }
			IsError bool
		}
		Capabilities struct{ Extensions map[string]any }
	}
	Error struct {
		Code int
		Data json.RawMessage
	}
}

// rpc makes a request of version 2026-07-28.
func rpc(t *testing.T, h http.Handler, name, capabilities, method, params string) (r reply, text string) {
	t.Helper()
	meta := `"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientInfo":{"name":"t","version":"1"},` +
		`"io.modelcontextprotocol/clientCapabilities":` + capabilities + `}`
	if params != "" {
		params += ","
	}
	body := `{"jsonrpc":"2.0","id":1,"method":"` + method + `","params":{` + params + meta + `}}`
	req := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", strings.NewReader(body))
	for header, value := range map[string]string{"Content-Type": "application/json", "Accept": "application/json, text/event-stream",
		"Mcp-Protocol-Version": "2026-07-28", "Mcp-Method": method, "Authorization": "Bearer " + name} {
		req.Header.Set(header, value)
	}
	if method == "tools/call" {
		req.Header.Set("Mcp-Name", "worker-01")
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, req)
	text = w.Body.String()
	if _, data, ok := strings.Cut(text, "data: "); ok {
		text, _, _ = strings.Cut(data, "\n")
	}
	require.NoError(t, json.Unmarshal([]byte(text), &r), text)
	return r, text
}

// get polls a task until it has a status.
func get(t *testing.T, f *fixture, id, status string) reply {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; {
		r, text := rpc(t, f.handler, "alice", both, "tasks/get", `"taskId":"`+id+`"`)
		require.Zero(t, r.Error.Code, text)
		require.Equal(t, "complete", r.Result.ResultType)
		require.Equal(t, id, r.Result.TaskID)
		if r.Result.Status == status {
			return r
		}
		require.Equal(t, "working", r.Result.Status)
		require.True(t, time.Now().Before(deadline))
		time.Sleep(time.Millisecond)
	}
}

const call1 = `"name":"worker-01","arguments":{"message":`

// A client that supports tasks gets one for a call that takes long, reads it and cancels it.
func TestTask(t *testing.T) {
	f := newFixture(t, store.NewMemory(), &mcpserver.Options{TaskDelay: -1, PollInterval: 3 * time.Second})
	r, _ := rpc(t, f.handler, "alice", both, "server/discover", "")
	require.Contains(t, r.Result.Capabilities.Extensions, "io.modelcontextprotocol/tasks")

	r, text := rpc(t, f.handler, "alice", tasksOnly, "tools/call", call1+`"slow"}`)
	require.Equal(t, "task", r.Result.ResultType, text)
	require.Equal(t, "working", r.Result.Status)
	require.EqualValues(t, 3000, r.Result.PollInterval)
	require.Contains(t, text, `"ttlMs":null`)
	require.NotEmpty(t, r.Result.CreatedAt)
	require.NotEmpty(t, r.Result.LastUpdatedAt)
	id := <-f.started
	require.Equal(t, id, r.Result.TaskID)
	get(t, f, id, "working")
	for range 2 {
		r, text = rpc(t, f.handler, "alice", both, "tasks/cancel", `"taskId":"`+id+`"`)
		require.Equal(t, "complete", r.Result.ResultType, text)
	}
	require.ErrorIs(t, <-f.canceled, arc.ErrTaskAlreadyCanceled)
	require.NotNil(t, get(t, f, id, "cancelled").Result.TTL)
	require.Empty(t, f.started, "one task")
}

// No interval lets clients read a task without a pause.
func TestPollIntervalIsPositive(t *testing.T) {
	for interval, want := range map[time.Duration]int64{-time.Hour: 1000, -1: 1000, 0: 1000, 1: 1, 1500 * time.Microsecond: 2} {
		f := newFixture(t, store.NewMemory(), &mcpserver.Options{TaskDelay: -1, PollInterval: interval})
		r, text := rpc(t, f.handler, "alice", tasksOnly, "tools/call", call1+`"slow"}`)
		require.Equal(t, "task", r.Result.ResultType, text)
		require.Equal(t, want, r.Result.PollInterval)
	}
}

// A question is an input request of its task, which one response answers.
func TestTaskQuestion(t *testing.T) {
	f := newFixture(t, nil, &mcpserver.Options{TaskDelay: time.Minute})
	r, text := rpc(t, f.handler, "alice", both, "tools/call", call1+`"ask"}`)
	require.Equal(t, "task", r.Result.ResultType, text)
	id := r.Result.TaskID
	r = get(t, f, id, "input_required")
	require.Equal(t, "elicitation/create", r.Result.InputRequests["question-1"].Method)
	require.Equal(t, "which color?", r.Result.InputRequests["question-1"].Params.Message)
	update := func(responses string) {
		t.Helper()
		r, text := rpc(t, f.handler, "alice", both, "tasks/update", `"taskId":"`+id+`","inputResponses":`+responses)
		require.Equal(t, "complete", r.Result.ResultType, text)
	}
	update(`{"question-2":{"action":"accept","content":{"answer":"blue"}}}`)
	update(`{"question-0":{"unknown":true},"other":1}`)
	r, text = rpc(t, f.handler, "alice", both, "tasks/update", `"taskId":"`+id+`","inputResponses":{"question-1":1}`)
	require.Equal(t, -32602, r.Error.Code, text)
	get(t, f, id, "input_required")
	update(`{"question-1":{"action":"accept","content":{"answer":"red"}}}`)
	update(`{"question-1":{"action":"accept","content":{"answer":"blue"}}}`)
	r = get(t, f, id, "completed")
	require.Equal(t, "red", r.Result.Result.Content[0].Text)
	require.InDelta(t, (24 * time.Hour).Milliseconds(), *r.Result.TTL, 60_000)

	r, _ = rpc(t, f.handler, "alice", both, "tools/call", call1+`"ask"}`)
	id = r.Result.TaskID
	update(`{"question-1":{"action":"decline"}}`)
	require.Equal(t, "the question was declined", get(t, f, id, "cancelled").Result.StatusMessage)
}

// A task that ends soon is a plain result, and a failure is a result of a task.
func TestTaskResults(t *testing.T) {
	f := newFixture(t, nil, nil)
	r, text := rpc(t, f.handler, "alice", both, "tools/call", call1+`"paint"}`)
	require.Equal(t, "complete", r.Result.ResultType, text)
	require.Equal(t, "done", r.Result.Content[0].Text)
	id := r.Result.StructuredContent.TaskID
	require.Equal(t, "done", get(t, f, id, "completed").Result.Result.Content[0].Text)
	r, _ = rpc(t, f.handler, "alice", both, "tools/call", call1+`"fail"}`)
	require.True(t, get(t, f, r.Result.StructuredContent.TaskID, "completed").Result.Result.IsError)
	r, _ = rpc(t, f.handler, "alice", both, "tools/call", call1+`"crash"}`)
	id = r.Result.StructuredContent.TaskID
	require.Nil(t, get(t, f, id, "failed").Result.Result.Content)
	_, text = rpc(t, f.handler, "alice", both, "tasks/get", `"taskId":"`+id+`"`)
	require.Contains(t, text, `"error":{"code":-32603,"message":"Internal error"}`)
}

// A request whose header names another task is refused.
func TestTaskHeader(t *testing.T) {
	f := newFixture(t, nil, nil)
	r, _ := rpc(t, f.handler, "alice", both, "tools/call", call1+`"ask"}`)
	id := r.Result.TaskID
	named := func(name string) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			r.Header.Set("Mcp-Name", name)
			f.handler.ServeHTTP(w, r)
		})
	}
	for _, method := range []string{"tasks/get", "tasks/update", "tasks/cancel"} {
		r, text := rpc(t, named(id), "alice", both, method, `"taskId":"`+id+`"`)
		require.Equal(t, "complete", r.Result.ResultType, text)
		r, text = rpc(t, named("task-0"), "alice", both, method, `"taskId":"`+id+`"`)
		require.Equal(t, -32020, r.Error.Code, text)
	}
}

// The methods of tasks need the extension, a question needs a form, and a task belongs to its caller.
func TestTaskErrors(t *testing.T) {
	f := newFixture(t, nil, &mcpserver.Options{TaskDelay: time.Minute})
	f.engine.HandleTasks("other-01", arc.TaskHandlerFunc(f.work))
	two, err := mcpserver.NewHandler(f.engine, []arc.AgentInfo{{AgentID: "worker-01"}, {AgentID: "third-01"}}, nil)
	require.NoError(t, err)
	r, _ := rpc(t, f.handler, "alice", both, "tools/call", call1+`"ask"}`)
	id := r.Result.TaskID
	for _, method := range []string{"tasks/get", "tasks/update", "tasks/cancel"} {
		r, text := rpc(t, f.handler, "alice", elicits, method, `"taskId":"`+id+`"`)
		require.Equal(t, -32021, r.Error.Code, text)
		require.JSONEq(t, `{"requiredCapabilities":{"extensions":{"io.modelcontextprotocol/tasks":{}}}}`, string(r.Error.Data))
		for _, h := range []http.Handler{f.handler, two} {
			r, text = rpc(t, h, "bob", both, method, `"taskId":"`+id+`"`)
			require.Equal(t, -32602, r.Error.Code, text)
			r, text = rpc(t, h, "alice", both, method, `"taskId":"task-0"`)
			require.Equal(t, -32602, r.Error.Code, text)
			r, text = rpc(t, h, "alice", both, method, "")
			require.Equal(t, -32602, r.Error.Code, text)
		}
	}
	r, text := rpc(t, f.handler, "alice", tasksOnly, "tasks/get", `"taskId":"`+id+`"`)
	require.Equal(t, -32021, r.Error.Code, text)
	require.JSONEq(t, `{"requiredCapabilities":{"elicitation":{"form":{}}}}`, string(r.Error.Data))
	r, text = rpc(t, two, "alice", both, "tasks/get", `"taskId":"`+id+`"`)
	require.Equal(t, "input_required", r.Result.Status, text)

	foreign, err := mcpserver.NewHandler(f.engine, []arc.AgentInfo{{AgentID: "other-01"}, {AgentID: "third-01"}}, nil)
	require.NoError(t, err)
	r, text = rpc(t, foreign, "alice", both, "tasks/get", `"taskId":"`+id+`"`)
	require.Equal(t, -32602, r.Error.Code, "an agent without a tool: %s", text)
}

// A client that shows forms, but has no tasks, answers a question by a repeated call: by itself, and once.
func TestRepeatedCallAnswersTask(t *testing.T) {
	f := newFixture(t, nil, nil)
	var questions []string
	s, err := f.dial(t, "alice", eras[0], &mcp.ClientOptions{ElicitationHandler: func(_ context.Context, r *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
		questions = append(questions, r.Params.Message)
		return &mcp.ElicitResult{Action: "accept", Content: map[string]any{"answer": "red"}}, nil
	}})
	require.NoError(t, err)
	res, out := call(t, s, map[string]any{"message": "ask"})
	require.Equal(t, []string{"which color?"}, questions)
	require.Equal(t, "red", textOf(res))
	require.Equal(t, "COMPLETED", out["status"])

	r, text := rpc(t, f.handler, "alice", elicits, "tools/call", call1+`"ask"}`)
	require.Equal(t, "input_required", r.Result.ResultType, text)
	id := r.Result.RequestState
	repeated := call1 + `"ask"},"requestState":"` + id + `","inputResponses":{"question-1":{"action":"accept","content":{"answer":"red"}}}`
	r, text = rpc(t, f.handler, "bob", elicits, "tools/call", repeated)
	require.Equal(t, -32602, r.Error.Code, "the task of another principal: %s", text)
	for _, other := range []string{id + "-x", id[:len(id)-1], id + "1", "x", "/question-1", strings.Replace(id, "question-1", "question-01", 1)} {
		r, text = rpc(t, f.handler, "alice", elicits, "tools/call", strings.Replace(repeated, id, other, 1))
		require.Equal(t, -32602, r.Error.Code, "state %q: %s", other, text)
	}
	for range 2 {
		r, text = rpc(t, f.handler, "alice", elicits, "tools/call", repeated)
		require.Equal(t, "complete", r.Result.ResultType, text)
		require.Equal(t, id, r.Result.StructuredContent.TaskID+"/question-1")
		require.Equal(t, "red", r.Result.Content[0].Text)
	}
	r, text = rpc(t, f.handler, "alice", neither, "tools/call", call1+`"ask"}`)
	require.Equal(t, "complete", r.Result.ResultType, text)
	require.Equal(t, "INPUT_REQUIRED", r.Result.StructuredContent.Status)
}

// reads counts the reads of a store.
type reads struct {
	store.Store
	n atomic.Int64
}

func (r *reads) Get(ctx context.Context, key string) (store.Entry, error) {
	r.n.Add(1)
	return r.Store.Get(ctx, key)
}

func (r *reads) Read(ctx context.Context, stream string, after uint64, limit int) ([]store.Record, error) {
	r.n.Add(1)
	return r.Store.Read(ctx, stream, after, limit)
}

// A poll of a working task is one read of the store.
func TestPollIsOneRead(t *testing.T) {
	db := &reads{Store: store.NewMemory()}
	f := newFixture(t, db, &mcpserver.Options{TaskDelay: -1})
	r, _ := rpc(t, f.handler, "alice", both, "tools/call", call1+`"slow"}`)
	<-f.started
	next := newFixture(t, db, nil) // another process
	for range 3 {
		before := db.n.Load()
		r, text := rpc(t, next.handler, "alice", both, "tasks/get", `"taskId":"`+r.Result.TaskID+`"`)
		require.Equal(t, "working", r.Result.Status, text)
		require.LessOrEqual(t, db.n.Load()-before, int64(1))
	}
}
