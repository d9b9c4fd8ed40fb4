// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package a2abridge_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/a2aproject/a2a-go/v2/a2aclient"
	"github.com/a2aproject/a2a-go/v2/a2asrv"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/fivewire/fivewire/arc"
	"github.com/fivewire/fivewire/arc/a2abridge"
	"github.com/fivewire/fivewire/arc/arctest"
	"github.com/fivewire/fivewire/conformance/fault"
	"github.com/fivewire/fivewire/internal/kit"
	"github.com/fivewire/fivewire/store"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var transports = []a2a.TransportProtocol{a2a.TransportProtocolJSONRPC, a2a.TransportProtocolHTTPJSON}

// A fixture is an agent behind a bridge, with a client for each transport.
type fixture struct {
	engine  *arc.Server
	mem     *arctest.Server
	clients map[a2a.TransportProtocol]*a2aclient.Client
}

func newFixture(t *testing.T, options *arc.ServerOptions, h arc.TaskHandlerFunc) *fixture {
	t.Helper()
	return newFixtureWithHeartbeat(t, options, h, 0)
}

func newFixtureWithHeartbeat(t *testing.T, options *arc.ServerOptions, h arc.TaskHandlerFunc, heartbeat time.Duration) *fixture {
	t.Helper()
	opts := arc.ServerOptions{Logger: slog.New(slog.DiscardHandler)}
	if options != nil {
		opts.Persistence, opts.Limits, opts.Webhook, opts.Auth = options.Persistence, options.Limits, options.Webhook, options.Auth
	}
	opts.Limits.MaxMessage = 8 << 20
	keys := map[string]*arc.Principal{"weak": {ID: "weak"}}
	for _, name := range []string{"alice", "bob"} {
		keys[name] = &arc.Principal{ID: name, Scopes: append(arc.RequiredScopes(arc.MethodTaskCreate), arc.RequiredScopes(arc.MethodChatStart)...)}
	}
	var err error
	opts.Auth.Authenticator, err = arc.APIKeyAuthenticator(keys)
	require.NoError(t, err)
	engine, err := arc.NewServer(&opts)
	require.NoError(t, err)
	engine.HandleTasks("worker-01", h)
	bridge, err := a2abridge.NewServer(engine, "worker-01", &a2abridge.ServerOptions{
		Tenants: map[string]string{"acme": "other-01"}, Heartbeat: heartbeat, ExtendedCard: &a2a.AgentCard{Name: "extended"}})
	require.NoError(t, err)
	mux := http.NewServeMux()
	mux.Handle("/rpc", bridge.JSONRPCHandler())
	mux.Handle("/rest/", http.StripPrefix("/rest", bridge.RESTHandler()))
	f := &fixture{engine: engine, mem: arctest.NewServer(t, closing{mux, engine}), clients: map[a2a.TransportProtocol]*a2aclient.Client{}}
	card, err := a2abridge.NewCard(arc.AgentInfo{AgentID: "worker-01", Capabilities: []string{"work"}}, "http://127.0.0.1/rpc", "http://127.0.0.1/rest")
	require.NoError(t, err)
	card.Capabilities.ExtendedAgentCard = true
	for _, protocol := range transports {
		f.clients[protocol], err = a2aclient.NewFromCard(t.Context(), card, a2aclient.WithConfig(a2aclient.Config{PreferredTransports: []a2a.TransportProtocol{protocol}}),
			a2aclient.WithJSONRPCTransport(f.mem.HTTPClient), a2aclient.WithRESTTransport(f.mem.HTTPClient))
		require.NoError(t, err)
	}
	return f
}

type closing struct {
	http.Handler
	engine *arc.Server
}

func (c closing) Close() error { return c.engine.Close() }

// as returns a context of a caller.
func as(ctx context.Context, name string) context.Context {
	return a2aclient.AttachServiceParams(ctx, a2aclient.ServiceParams{"Authorization": {"Bearer " + name}})
}

// eachTransport runs a test in a bubble for each transport.
func eachTransport(t *testing.T, test func(t *testing.T, protocol a2a.TransportProtocol)) {
	for _, protocol := range transports {
		t.Run(string(protocol), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { test(t, protocol) })
		})
	}
}

func message(text string) *a2a.Message {
	return a2a.NewMessage(a2a.MessageRoleUser, a2a.NewTextPart(text))
}

func textOf(m *a2a.Message) string {
	if m == nil || len(m.Parts) == 0 {
		return ""
	}
	return m.Parts[0].Text()
}

func sendTo(ctx context.Context, c *a2aclient.Client, m *a2a.Message) (*a2a.Task, error) {
	res, err := c.SendMessage(ctx, &a2a.SendMessageRequest{Message: m})
	if err != nil {
		return nil, err
	}
	return res.(*a2a.Task), nil
}

// ask asks for a color and returns it as an artifact.
func ask(ctx context.Context, run *arc.TaskRun) error {
	if err := run.AddMessage(ctx, arc.AgentText("which color?")); err != nil {
		return err
	}
	answer, err := run.WaitInput(ctx, "a color")
	if err != nil {
		return err
	}
	time.Sleep(time.Second)
	defer time.Sleep(time.Second)
	return run.AddArtifact(ctx, &arc.Artifact{Name: "paint", Parts: []arc.Part{arc.TextPart(answer.Text())}})
}

// A client of the SDK uses each method over each transport.
func TestMethods(t *testing.T) {
	eachTransport(t, func(t *testing.T, protocol a2a.TransportProtocol) {
		f := newFixture(t, nil, ask)
		c, ctx := f.clients[protocol], as(t.Context(), "alice")
		first := message("paint it")
		first.ContextID = "room-1"
		task, err := sendTo(ctx, c, first)
		require.NoError(t, err)
		require.Equal(t, a2a.TaskStateInputRequired, task.Status.State)
		require.Equal(t, "which color?", textOf(task.Status.Message))
		require.Equal(t, "room-1", task.ContextID)

		got, err := c.GetTask(ctx, &a2a.GetTaskRequest{ID: task.ID})
		require.NoError(t, err)
		require.Equal(t, task, got)
		require.Len(t, got.History, 2)
		require.Equal(t, first.ID, got.History[0].ID)
		got, err = c.GetTask(ctx, &a2a.GetTaskRequest{ID: task.ID, HistoryLength: new(int)})
		require.NoError(t, err)
		require.Empty(t, got.History)

		answer := message("red")
		answer.TaskID, answer.ContextID = task.ID, "room-2"
		_, err = sendTo(ctx, c, answer)
		require.ErrorIs(t, err, a2a.ErrInvalidParams, "another context")
		answer.ContextID = "room-1"
		done, err := sendTo(ctx, c, answer)
		require.NoError(t, err)
		require.Equal(t, a2a.TaskStateCompleted, done.Status.State)
		require.Len(t, done.Artifacts, 1)
		require.Equal(t, "red", done.Artifacts[0].Parts[0].Text())
		require.Equal(t, "paint", done.Artifacts[0].Name)

		second := message("blue")
		second.TaskID = task.ID
		_, err = sendTo(ctx, c, second)
		require.ErrorIs(t, err, a2a.ErrUnsupportedOperation, "the task has ended")
		_, err = c.CancelTask(ctx, &a2a.CancelTaskRequest{ID: task.ID})
		require.ErrorIs(t, err, a2a.ErrTaskNotCancelable)
		for _, err := range c.SubscribeToTask(ctx, &a2a.SubscribeToTaskRequest{ID: task.ID}) {
			require.ErrorIs(t, err, a2a.ErrUnsupportedOperation)
		}
		_, err = c.GetTask(as(t.Context(), "bob"), &a2a.GetTaskRequest{ID: task.ID})
		require.ErrorIs(t, err, a2a.ErrTaskNotFound)
		_, err = c.GetTask(as(t.Context(), "weak"), &a2a.GetTaskRequest{ID: task.ID})
		require.ErrorIs(t, err, a2a.ErrUnauthorized)
		_, err = c.GetTask(as(t.Context(), "nobody"), &a2a.GetTaskRequest{ID: task.ID})
		require.ErrorIs(t, err, a2a.ErrUnauthenticated)
	})
}

// A list has the tasks of the caller, the last change first, in pages.
func TestListTasks(t *testing.T) {
	eachTransport(t, func(t *testing.T, protocol a2a.TransportProtocol) {
		f := newFixture(t, nil, func(ctx context.Context, run *arc.TaskRun) error {
			if run.Message().Text() == "fail" {
				return errors.New("failure")
			}
			return run.AddArtifact(ctx, &arc.Artifact{Parts: []arc.Part{arc.TextPart("x")}})
		})
		c, ctx := f.clients[protocol], as(t.Context(), "alice")
		var ids []a2a.TaskID
		for i, text := range []string{"a", "fail", "c", "d", "e"} {
			m := message(text)
			m.ContextID = fmt.Sprint("room-", i%2)
			task, err := sendTo(ctx, c, m)
			require.NoError(t, err)
			ids = append([]a2a.TaskID{task.ID}, ids...)
			time.Sleep(time.Second)
		}
		_, err := sendTo(as(t.Context(), "bob"), c, message("foreign"))
		require.NoError(t, err)
		var listed []a2a.TaskID
		req := &a2a.ListTasksRequest{PageSize: 2}
		for pages := 1; ; pages++ {
			res, err := c.ListTasks(ctx, req)
			require.NoError(t, err)
			require.Equal(t, 5, res.TotalSize)
			for _, task := range res.Tasks {
				require.Empty(t, task.History)
				require.Empty(t, task.Artifacts)
				listed = append(listed, task.ID)
			}
			if req.PageToken = res.NextPageToken; req.PageToken == "" {
				require.Equal(t, 3, pages)
				break
			}
		}
		require.Equal(t, ids, listed)
		one := 1
		for _, tt := range []struct {
			req  a2a.ListTasksRequest
			want int
		}{
			{a2a.ListTasksRequest{ContextID: "room-1"}, 2},
			{a2a.ListTasksRequest{Status: a2a.TaskStateFailed}, 1},
			{a2a.ListTasksRequest{IncludeArtifacts: true, HistoryLength: &one, Status: a2a.TaskStateCompleted}, 4},
		} {
			res, err := c.ListTasks(ctx, &tt.req)
			require.NoError(t, err)
			require.Len(t, res.Tasks, tt.want)
			for _, task := range res.Tasks {
				require.Equal(t, tt.req.IncludeArtifacts, len(task.Artifacts) == 1 && len(task.History) == 1)
			}
		}
		_, err = c.ListTasks(ctx, &a2a.ListTasksRequest{PageSize: 101})
		require.ErrorIs(t, err, a2a.ErrInvalidParams)
		_, err = c.ListTasks(ctx, &a2a.ListTasksRequest{PageToken: "*"})
		require.ErrorIs(t, err, a2a.ErrInvalidParams)
	})
}

// A slowList is a store with a function that is called after a list of the tasks.
type slowList struct {
	store.Store
	after func()
}

func (s slowList) List(ctx context.Context, prefix string) iter.Seq2[store.Entry, error] {
	return func(yield func(store.Entry, error) bool) {
		for e, err := range s.Store.List(ctx, prefix) {
			if !yield(e, err) {
				return
			}
		}
		if prefix == "arc/task/" {
			s.after()
		}
	}
}

// A list omits a task whose retention ends while it is made.
func TestListTasksOmitsRemoved(t *testing.T) {
	eachTransport(t, func(t *testing.T, protocol a2a.TransportProtocol) {
		f := newFixture(t, &arc.ServerOptions{Persistence: arc.Persistence{TaskRetention: time.Minute,
			Store: slowList{store.NewMemory(), func() { time.Sleep(time.Minute) }}}},
			func(ctx context.Context, run *arc.TaskRun) error {
				if run.Message().Text() == "wait" {
					<-ctx.Done()
				}
				return ctx.Err()
			})
		c, ctx := f.clients[protocol], as(t.Context(), "alice")
		var id a2a.TaskID
		for _, text := range []string{"first", "wait", "last"} {
			m := message(text)
			m.ContextID = text
			res, err := c.SendMessage(ctx, &a2a.SendMessageRequest{Message: m, Config: &a2a.SendMessageConfig{ReturnImmediately: true}})
			require.NoError(t, err)
			if text == "wait" {
				id = res.TaskInfo().TaskID
			}
			time.Sleep(time.Second)
		}
		one := 1
		res, err := c.ListTasks(ctx, &a2a.ListTasksRequest{HistoryLength: &one})
		require.NoError(t, err)
		require.Len(t, res.Tasks, 1)
		require.Equal(t, id, res.Tasks[0].ID)
		require.Len(t, res.Tasks[0].History, 1)
		require.Equal(t, 1, res.TotalSize)
	})
}

// A list keeps no more tasks than its page, however many there are.
func TestListTasksKeepsOnePage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var after int64
		f := newFixture(t, &arc.ServerOptions{Persistence: arc.Persistence{Store: slowList{store.NewMemory(), func() {
			after = kit.Heap()
		}}}}, func(context.Context, *arc.TaskRun) error { return nil })
		bridge, err := a2abridge.NewServer(f.engine, "worker-01", nil)
		require.NoError(t, err)
		ctx := direct(t.Context(), "alice")
		const tasks = 1000
		last := make(map[a2a.TaskID]bool)
		for i := range tasks {
			m := message("x")
			m.ContextID = strings.Repeat("c", 256)
			res, err := bridge.SendMessage(ctx, &a2a.SendMessageRequest{Message: m})
			require.NoError(t, err)
			if i >= tasks-3 {
				last[res.TaskInfo().TaskID] = true
			}
			time.Sleep(time.Millisecond)
		}
		before := kit.Heap()
		res, err := bridge.ListTasks(ctx, &a2a.ListTasksRequest{PageSize: 3})
		require.NoError(t, err)
		require.Less(t, after-before, int64(tasks*256))
		require.Equal(t, tasks, res.TotalSize)
		require.Len(t, res.Tasks, 3)
		for _, task := range res.Tasks {
			require.True(t, last[task.ID])
		}
	})
}

// direct returns a context of a caller for the methods of a Server.
func direct(ctx context.Context, name string) context.Context {
	ctx, _ = a2asrv.NewCallContext(ctx, a2asrv.NewServiceParams(map[string][]string{
		"Authorization": {"Bearer " + name}, a2a.SvcParamVersion: {string(a2a.Version)}}))
	return ctx
}

// collect returns the events of a stream as texts.
func collect(events iter.Seq2[a2a.Event, error]) (list []string, id a2a.TaskID, err error) {
	for e, err := range events {
		if err != nil {
			return list, id, err
		}
		switch e := e.(type) {
		case *a2a.Task:
			id = e.ID
			list = append(list, fmt.Sprintf("task %s %d", strings.TrimPrefix(string(e.Status.State), "TASK_STATE_"), len(e.History)))
		case *a2a.TaskStatusUpdateEvent:
			list = append(list, strings.TrimSpace(strings.TrimPrefix(string(e.Status.State), "TASK_STATE_")+" "+textOf(e.Status.Message)))
		case *a2a.TaskArtifactUpdateEvent:
			list = append(list, fmt.Sprintf("artifact %s %t %t", e.Artifact.Parts[0].Text(), e.Append, e.LastChunk))
		}
	}
	return list, id, nil
}

// A stream begins with the task and has each message, artifact and state once. Another caller of the same task sees it too.
func TestStreams(t *testing.T) {
	eachTransport(t, func(t *testing.T, protocol a2a.TransportProtocol) {
		f := newFixture(t, nil, func(ctx context.Context, run *arc.TaskRun) error {
			time.Sleep(time.Second)
			if err := run.AddProgress(ctx, "half"); err != nil {
				return err
			}
			time.Sleep(time.Second)
			return ask(ctx, run)
		})
		c, ctx := f.clients[protocol], as(t.Context(), "alice")
		list, id, err := collect(c.SendStreamingMessage(ctx, &a2a.SendMessageRequest{Message: message("go")}))
		require.NoError(t, err)
		require.Contains(t, []string{"task SUBMITTED 1", "task WORKING 1"}, list[0])
		rest := list[1:]
		if list[0] == "task SUBMITTED 1" {
			require.Equal(t, "WORKING", rest[0])
			rest = rest[1:]
		}
		require.Equal(t, []string{"WORKING half"}, rest[:1])
		require.Equal(t, "INPUT_REQUIRED which color?", rest[len(rest)-1])

		var followed []string
		var followErr error
		var wg sync.WaitGroup
		wg.Go(func() {
			followed, _, followErr = collect(c.SubscribeToTask(ctx, &a2a.SubscribeToTaskRequest{ID: id}))
		})
		synctest.Wait()
		answer := message("red")
		answer.TaskID = id
		list, _, err = collect(c.SendStreamingMessage(ctx, &a2a.SendMessageRequest{Message: answer}))
		require.NoError(t, err)
		wg.Wait()
		require.NoError(t, followErr)
		require.Equal(t, []string{"task WORKING 4", "artifact red false true", "COMPLETED"}, list)
		require.Equal(t, []string{"task INPUT_REQUIRED 3", "WORKING", "artifact red false true", "COMPLETED"}, followed)
	})
}

// A page of large tasks is short.
func TestListLargeTasks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		big := strings.Repeat("x", 9<<20)
		f := newFixture(t, nil, func(ctx context.Context, run *arc.TaskRun) error {
			return run.AddArtifact(ctx, &arc.Artifact{Parts: []arc.Part{arc.TextPart(big)}})
		})
		c, ctx := f.clients[a2a.TransportProtocolJSONRPC], as(t.Context(), "alice")
		for range 3 {
			_, err := c.SendMessage(ctx, &a2a.SendMessageRequest{Message: message("go"), Config: &a2a.SendMessageConfig{ReturnImmediately: true}})
			require.NoError(t, err)
			time.Sleep(time.Second)
		}
		ids := map[a2a.TaskID]bool{}
		req := &a2a.ListTasksRequest{IncludeArtifacts: true}
		for _, want := range []int{2, 1} {
			res, err := c.ListTasks(ctx, req)
			require.NoError(t, err)
			require.Len(t, res.Tasks, want)
			for _, task := range res.Tasks {
				require.Len(t, task.Artifacts[0].Parts[0].Text(), len(big))
				ids[task.ID] = true
			}
			req.PageToken = res.NextPageToken
		}
		require.Empty(t, req.PageToken)
		require.Len(t, ids, 3)
		res, err := c.ListTasks(ctx, &a2a.ListTasksRequest{})
		require.NoError(t, err)
		require.Len(t, res.Tasks, 3)
	})
}

// An artifact of 6 MiB is one event of a stream, and a part of the task.
func TestLargeArtifact(t *testing.T) {
	eachTransport(t, func(t *testing.T, protocol a2a.TransportProtocol) {
		big := []byte(strings.Repeat("0123456789abcdef", 6<<20/16))
		f := newFixture(t, nil, func(ctx context.Context, run *arc.TaskRun) error {
			time.Sleep(time.Second)
			return run.AddArtifact(ctx, &arc.Artifact{ID: "big", Parts: []arc.Part{arc.FilePart("big.bin", "application/octet-stream", big)}})
		})
		c, ctx := f.clients[protocol], as(t.Context(), "alice")
		var id a2a.TaskID
		artifacts := 0
		for e, err := range c.SendStreamingMessage(ctx, &a2a.SendMessageRequest{Message: message("go")}) {
			require.NoError(t, err)
			id = e.TaskInfo().TaskID
			if e, ok := e.(*a2a.TaskArtifactUpdateEvent); ok {
				artifacts++
				require.True(t, bytes.Equal(big, e.Artifact.Parts[0].Raw()))
			}
		}
		require.Equal(t, 1, artifacts)
		task, err := c.GetTask(ctx, &a2a.GetTaskRequest{ID: id})
		require.NoError(t, err)
		require.True(t, bytes.Equal(big, task.Artifacts[0].Parts[0].Raw()))
	})
}

// The streams of a caller are bounded. One more is refused, and a message in it has no effect.
func TestStreamsAreBounded(t *testing.T) {
	eachTransport(t, func(t *testing.T, protocol a2a.TransportProtocol) {
		f := newFixture(t, &arc.ServerOptions{Limits: arc.Limits{QueueLimitPerPrincipal: 1}}, ask)
		c, ctx := f.clients[protocol], as(t.Context(), "alice")
		task, err := sendTo(ctx, c, message("go"))
		require.NoError(t, err)
		first, cancel := context.WithCancel(ctx)
		var streams sync.WaitGroup
		streams.Go(func() { _, _, _ = collect(c.SubscribeToTask(first, &a2a.SubscribeToTaskRequest{ID: task.ID})) })
		synctest.Wait()
		list, _, err := collect(c.SubscribeToTask(ctx, &a2a.SubscribeToTaskRequest{ID: task.ID}))
		require.ErrorContains(t, err, "Agent capacity exceeded")
		require.Equal(t, []string{"task INPUT_REQUIRED 2"}, list)
		answer := message("red")
		answer.TaskID = task.ID
		_, err = c.SendMessage(ctx, &a2a.SendMessageRequest{Message: answer})
		require.ErrorContains(t, err, "Agent capacity exceeded")
		other, err := c.SendMessage(ctx, &a2a.SendMessageRequest{Message: message("go"), Config: &a2a.SendMessageConfig{ReturnImmediately: true}})
		require.NoError(t, err, "it does not wait")
		require.NotEqual(t, task.ID, other.TaskInfo().TaskID)
		task, err = c.GetTask(ctx, &a2a.GetTaskRequest{ID: task.ID})
		require.NoError(t, err)
		require.Equal(t, a2a.TaskStateInputRequired, task.Status.State)
		cancel()
		streams.Wait()
		synctest.Wait() // the server sees its end
		task, err = sendTo(ctx, c, answer)
		require.NoError(t, err)
		require.Equal(t, a2a.TaskStateCompleted, task.Status.State)
	})
}

// A waiting stream does not keep what it has sent.
func TestStreamKeepsNoContent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const size = 4 << 20
		f := newFixture(t, nil, func(ctx context.Context, run *arc.TaskRun) error {
			if err := run.AddArtifact(ctx, &arc.Artifact{Parts: []arc.Part{arc.TextPart(strings.Repeat("x", size))}}); err != nil {
				return err
			}
			_, err := run.WaitInput(ctx, "x")
			return err
		})
		bridge, err := a2abridge.NewServer(f.engine, "worker-01", nil)
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(direct(t.Context(), "alice"))
		res, err := bridge.SendMessage(ctx, &a2a.SendMessageRequest{Message: message("go")})
		require.NoError(t, err)
		id := res.TaskInfo().TaskID
		res = nil
		before := kit.Heap()
		var streams sync.WaitGroup
		for range 8 {
			streams.Go(func() {
				for range bridge.SubscribeToTask(ctx, &a2a.SubscribeToTaskRequest{ID: id}) {
				}
			})
		}
		synctest.Wait()
		require.Less(t, kit.Heap()-before, int64(2*size))
		cancel()
		streams.Wait()
	})
}

// A task that one side cancels ends the handler and the streams of both sides.
func TestCancel(t *testing.T) {
	eachTransport(t, func(t *testing.T, protocol a2a.TransportProtocol) {
		var causes []error
		f := newFixture(t, nil, func(ctx context.Context, run *arc.TaskRun) error {
			<-ctx.Done()
			causes = append(causes, context.Cause(ctx))
			return ctx.Err()
		})
		c, ctx := f.clients[protocol], as(t.Context(), "alice")
		client, err := arc.NewClient(f.mem.URL, "tester-01", &arc.ClientOptions{TokenSource: arc.StaticTokenSource("alice"),
			HTTPClient: arctest.NewServer(t, f.engine).HTTPClient})
		require.NoError(t, err)
		defer client.Close()
		for _, cancel := range []func(id a2a.TaskID) error{
			func(id a2a.TaskID) error {
				task, err := c.CancelTask(ctx, &a2a.CancelTaskRequest{ID: id})
				if err == nil {
					require.Equal(t, a2a.TaskStateCanceled, task.Status.State)
				}
				return err
			},
			func(id a2a.TaskID) error {
				_, err := client.CancelTask(t.Context(), "worker-01", &arc.CancelTaskParams{TaskID: string(id), Reason: "enough"}, nil)
				return err
			},
		} {
			var last string
			for e, err := range c.SendStreamingMessage(ctx, &a2a.SendMessageRequest{Message: message("go")}) {
				require.NoError(t, err)
				switch e := e.(type) {
				case *a2a.Task:
					synctest.Wait()
					require.NoError(t, cancel(e.ID))
				case *a2a.TaskStatusUpdateEvent:
					last = string(e.Status.State)
				}
			}
			require.Equal(t, string(a2a.TaskStateCanceled), last)
		}
		synctest.Wait()
		require.Len(t, causes, 2)
		for _, cause := range causes {
			require.ErrorIs(t, cause, arc.ErrTaskAlreadyCanceled)
		}
	})
}

// A message that 8 callers send 100 times is handled once. It is not that of another principal.
func TestMessageOnce(t *testing.T) {
	eachTransport(t, func(t *testing.T, protocol a2a.TransportProtocol) {
		var runs atomic.Int64
		f := newFixture(t, nil, func(context.Context, *arc.TaskRun) error {
			runs.Add(1)
			return nil
		})
		c, m := f.clients[protocol], message("go")
		var ids sync.Map
		var failures atomic.Int64
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				for range 100 {
					task, err := sendTo(as(t.Context(), "alice"), c, m)
					if err != nil {
						failures.Add(1)
						continue
					}
					ids.Store(task.ID, true)
				}
			})
		}
		wg.Wait()
		count := 0
		ids.Range(func(any, any) bool { count++; return true })
		require.Zero(t, failures.Load())
		require.Equal(t, 1, count)
		require.EqualValues(t, 1, runs.Load())
		_, err := sendTo(as(t.Context(), "bob"), c, m)
		require.NoError(t, err)
		require.EqualValues(t, 2, runs.Load())
		other := *m
		other.Parts = message("other").Parts
		_, err = sendTo(as(t.Context(), "alice"), c, &other)
		require.ErrorIs(t, err, a2a.ErrInvalidParams)
	})
}

// Parts, ids, metadata and the prompt of each kind arrive in the handler and come back.
func TestMapping(t *testing.T) {
	eachTransport(t, func(t *testing.T, protocol a2a.TransportProtocol) {
		big := strings.Repeat("0123456789abcdef", 5<<20/16)
		var got *arc.Message
		var trace, metadata string
		f := newFixture(t, nil, func(ctx context.Context, run *arc.TaskRun) error {
			got, trace, metadata = run.Message(), arc.TraceIDFromContext(ctx), string(run.Metadata())
			answer := *got
			answer.Role = arc.RoleAgent
			if err := run.AddMessage(ctx, &answer); err != nil {
				return err
			}
			return run.AddArtifact(ctx, &arc.Artifact{ID: "big", Parts: []arc.Part{arc.FilePart("big.bin", "application/octet-stream", []byte(big))}})
		})
		m := message("hello")
		m.ContextID, m.Metadata, m.Extensions, m.ReferenceTasks = "room-1", map[string]any{"k": "v"}, []string{"https://x.example/e"}, []a2a.TaskID{"t-0"}
		image := a2a.NewRawPart([]byte{0xff, 0xfe})
		image.MediaType, image.Filename, image.Metadata = "image/png", "a.png", map[string]any{"w": "2"}
		m.Parts = append(m.Parts, image, a2a.NewRawPart([]byte("file")), a2a.NewDataPart(map[string]any{"list": []any{"x", true}}),
			a2a.NewFileURLPart("https://files.example/a", "text/csv"))
		res, err := f.clients[protocol].SendMessage(as(t.Context(), "alice"), &a2a.SendMessageRequest{Message: m, Metadata: map[string]any{"budget": "5"}})
		require.NoError(t, err)
		task := res.(*a2a.Task)
		require.Equal(t, "room-1", trace)
		require.JSONEq(t, `{"budget":"5"}`, metadata)
		require.Equal(t, []arc.PartType{"TextPart", "ImagePart", "FilePart", "DataPart", "FilePart"},
			[]arc.PartType{got.Parts[0].Type, got.Parts[1].Type, got.Parts[2].Type, got.Parts[3].Type, got.Parts[4].Type})
		require.Equal(t, `"https://files.example/a"`, string(got.Parts[4].Extra["url"]))
		sent := *m
		sent.TaskID = task.ID
		require.Equal(t, &sent, task.History[0])
		require.Equal(t, a2a.MessageRoleAgent, task.History[1].Role)
		require.Equal(t, m.Parts, task.History[1].Parts)
		require.Equal(t, big, string(task.Artifacts[0].Parts[0].Raw()))
		require.Equal(t, "big.bin", task.Artifacts[0].Parts[0].Filename)
	})
}

// Each state has its counterpart, and a tenant has its agent.
func TestStates(t *testing.T) {
	eachTransport(t, func(t *testing.T, protocol a2a.TransportProtocol) {
		f := newFixture(t, nil, func(ctx context.Context, run *arc.TaskRun) error {
			switch run.Message().Text() {
			case "reject":
				return a2abridge.Reject("not my trade")
			case "fail":
				return arc.Errorf(arc.ErrTaskExecutionFailed, "no paint")
			case "auth":
				_, err := run.WaitInput(ctx, a2abridge.AuthRequired)
				return err
			case "slow":
				time.Sleep(time.Second)
			case "wait":
				_, err := run.WaitInput(ctx, "a color")
				return err
			}
			return nil
		})
		f.engine.HandleTasks("other-01", arctest.ScriptedTask(arctest.AddMessage("other")))
		c, ctx := f.clients[protocol], as(t.Context(), "alice")
		for text, want := range map[string]string{"reject": "REJECTED not my trade", "fail": "FAILED no paint", "done": "COMPLETED",
			"auth": "AUTH_REQUIRED authentication required", "wait": "INPUT_REQUIRED a color"} {
			task, err := sendTo(ctx, c, message(text))
			require.NoError(t, err)
			require.Equal(t, want, strings.TrimSpace(strings.TrimPrefix(string(task.Status.State), "TASK_STATE_")+" "+textOf(task.Status.Message)))
		}
		res, err := c.SendMessage(ctx, &a2a.SendMessageRequest{Message: message("slow"), Config: &a2a.SendMessageConfig{ReturnImmediately: true}})
		require.NoError(t, err)
		require.Contains(t, []a2a.TaskState{a2a.TaskStateSubmitted, a2a.TaskStateWorking}, res.(*a2a.Task).Status.State)
		if protocol == a2a.TransportProtocolJSONRPC { // the SDK puts the tenant of the other one into the path
			res, err = c.SendMessage(ctx, &a2a.SendMessageRequest{Tenant: "acme", Message: message("x")})
			require.NoError(t, err)
			require.Equal(t, "other", textOf(res.(*a2a.Task).History[1]))
			_, err = c.SendMessage(ctx, &a2a.SendMessageRequest{Tenant: "unknown", Message: message("x"),
				Config: &a2a.SendMessageConfig{ReturnImmediately: true}})
			require.ErrorIs(t, err, a2a.ErrInvalidParams)
			_, err = c.SendMessage(ctx, &a2a.SendMessageRequest{Tenant: "unknown", Message: message("x")})
			require.ErrorIs(t, err, a2a.ErrInvalidParams)
		}
	})
}

// A task outlives its process, which is killed in the middle: a subscriber at the next process gets the result.
func TestNextProcess(t *testing.T) {
	eachTransport(t, func(t *testing.T, protocol a2a.TransportProtocol) {
		db := store.NewMemory()
		var steps, runs atomic.Int64
		work := func(ctx context.Context, run *arc.TaskRun) error {
			runs.Add(1)
			text, err := arc.Step(ctx, run, "step", func(context.Context, string) (string, error) {
				steps.Add(1)
				return "kept", nil
			})
			if err != nil {
				return err
			}
			select {
			case <-time.After(time.Minute):
			case <-ctx.Done():
				return ctx.Err()
			}
			return run.AddArtifact(ctx, &arc.Artifact{Parts: []arc.Part{arc.TextPart(text)}})
		}
		process := func() (*fixture, *fault.Plan) {
			plan := &fault.Plan{}
			t.Cleanup(plan.Close)
			p := arc.Persistence{Store: fault.Store(db, plan), LeaseTTL: 3 * time.Second}
			return newFixture(t, &arc.ServerOptions{Persistence: p}, work), plan
		}
		first, plan := process()
		ctx := as(t.Context(), "alice")
		m := message("go")
		var id a2a.TaskID
		for e, err := range first.clients[protocol].SendStreamingMessage(ctx, &a2a.SendMessageRequest{Message: m}) {
			if err != nil {
				break
			}
			id = e.TaskInfo().TaskID
			time.Sleep(time.Second)
			plan.Crash() // nothing that it does reaches the store
			time.Sleep(time.Second)
			break
		}
		next, _ := process()
		list, _, err := collect(next.clients[protocol].SubscribeToTask(ctx, &a2a.SubscribeToTaskRequest{ID: id}))
		require.NoError(t, err)
		require.Equal(t, []string{"artifact kept false true", "COMPLETED"}, list[len(list)-2:])
		require.EqualValues(t, 1, steps.Load())
		require.EqualValues(t, 2, runs.Load())
		task, err := sendTo(ctx, next.clients[protocol], m)
		require.NoError(t, err)
		require.Equal(t, id, task.ID, "a repeated message finds its task")
		require.EqualValues(t, 2, runs.Load())
	})
}

// Requests that the SDK would accept are refused: other versions, other origins, ambiguous JSON, and large bodies. A deletion has a result.
func TestRefusals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, nil, ask)
		made, err := sendTo(as(t.Context(), "alice"), f.clients[a2a.TransportProtocolJSONRPC], message("paint it"))
		require.NoError(t, err)
		task := string(made.ID)
		body := `{"jsonrpc":"2.0","id":1,"method":"GetTask","params":{"id":"t"}}`
		for _, tt := range []struct {
			name, path, body string
			header           map[string]string
			status           int
			want             string
		}{
			{"no version", "/rpc", body, nil, 200, `-32009`},
			{"REST, no version", "/rest/tasks/t", "", nil, 400, "VERSION_NOT_SUPPORTED"},
			{"REST, version 0.3", "/rest/tasks/t", "", map[string]string{"A2A-Version": "0.3"}, 400, "VERSION_NOT_SUPPORTED"},
			{"REST, unknown version", "/rest/tasks/t", "", map[string]string{"A2A-Version": "2.0"}, 400, "VERSION_NOT_SUPPORTED"},
			{"REST, version 1.0", "/rest/tasks/t", "", map[string]string{"A2A-Version": "1.0"}, 404, "TASK_NOT_FOUND"},
			{"REST, version in the query", "/rest/tasks/t?A2A-Version=1.0", "", nil, 404, "TASK_NOT_FOUND"},
			{"version 0.3", "/rpc", body, map[string]string{"A2A-Version": "0.3"}, 200, `-32009`},
			{"unknown version", "/rpc", body, map[string]string{"A2A-Version": "9"}, 200, `-32009`},
			{"version 1.0", "/rpc", body, map[string]string{"A2A-Version": "1.0"}, 200, `-32001`},
			{"version in the query", "/rpc?A2A-Version=1.0", body, nil, 200, `-32001`},
			{"a result of nothing", "/rpc", `{"jsonrpc":"2.0","id":1,"method":"DeleteTaskPushNotificationConfig","params":{"taskId":"` + task + `","id":"x"}}`,
				map[string]string{"A2A-Version": "1.0"}, 200, `"result":{}`},
			{"REST, a result of nothing", "/rest/tasks/" + task + "/pushNotificationConfigs/x", "", map[string]string{"A2A-Version": "1.0"}, 200, "{}"},
			{"REST, an error of it", "/rest/tasks/t/pushNotificationConfigs/x", "", map[string]string{"A2A-Version": "1.0"}, 404, "TASK_NOT_FOUND"},
			{"an error of it", "/rpc", `{"jsonrpc":"2.0","id":1,"method":"DeleteTaskPushNotificationConfig","params":{"taskId":"t","id":"x"}}`,
				map[string]string{"A2A-Version": "1.0"}, 200, `-32001`},
			{"a stream of a message that names it", "/rpc", `{"jsonrpc":"2.0","id":1,"method":"SendStreamingMessage","params":{"message":` +
				`{"messageId":"m","role":"ROLE_USER","parts":[{"text":"DeleteTaskPushNotificationConfig"}]}}}`,
				map[string]string{"A2A-Version": "1.0"}, 200, `data: {`},
			{"origin", "/rpc", body, map[string]string{"A2A-Version": "1.0", "Origin": "https://evil.example"}, 403, "origin"},
			{"duplicate member", "/rpc", `{"jsonrpc":"2.0","id":1,"id":2}`, nil, 400, "JSON"},
			{"invalid UTF-8", "/rpc", "{\"jsonrpc\":\"\xff\"}", nil, 400, "JSON"},
			{"large body", "/rpc", `{"x":"` + strings.Repeat("x", 8<<20) + `"}`, nil, 413, "large"},
		} {
			method := http.MethodPost
			if tt.body == "" {
				method = http.MethodGet
			}
			if strings.Contains(tt.path, "pushNotificationConfigs") {
				method = http.MethodDelete
			}
			req, err := http.NewRequestWithContext(t.Context(), method, "http://127.0.0.1"+tt.path, strings.NewReader(tt.body))
			require.NoError(t, err)
			req.Header.Set("Authorization", "Bearer alice")
			for name, value := range tt.header {
				req.Header.Set(name, value)
			}
			res, err := f.mem.HTTPClient.Do(req)
			require.NoError(t, err, tt.name)
			text, err := io.ReadAll(res.Body)
			require.NoError(t, err)
			require.NoError(t, res.Body.Close())
			require.Equal(t, tt.status, res.StatusCode, "%s: %s", tt.name, text)
			require.Contains(t, string(text), tt.want, tt.name)
		}
		time.Sleep(time.Second) // net/http closes the connection of the large body
	})
}

// deadlines records the deadline of each write.
type deadlines struct {
	*httptest.ResponseRecorder
	last    time.Time
	list    []time.Time
	largest int
}

func (d *deadlines) SetWriteDeadline(at time.Time) error {
	d.last = at
	return nil
}

func (d *deadlines) Write(b []byte) (int, error) {
	d.list, d.largest = append(d.list, d.last), max(d.largest, len(b))
	return d.ResponseRecorder.Write(b)
}

// Each part of a stream has the write timeout.
func TestWriteTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, nil, func(ctx context.Context, run *arc.TaskRun) error {
			time.Sleep(time.Minute)
			return run.AddProgress(ctx, "%s", strings.Repeat("x", 200<<10))
		})
		body := `{"jsonrpc":"2.0","id":1,"method":"SendStreamingMessage","params":{"message":{"messageId":"m","role":"ROLE_USER","parts":[{"text":"x"}]}}}`
		req := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/rpc", strings.NewReader(body))
		req.Header.Set("Authorization", "Bearer alice")
		req.Header.Set("A2A-Version", "1.0")
		w := &deadlines{ResponseRecorder: httptest.NewRecorder()}
		start := time.Now()
		f.mem.HTTPServer.Handler.ServeHTTP(w, req)
		require.Contains(t, w.Body.String(), "COMPLETED")
		require.Equal(t, 64<<10, w.largest)
		require.Equal(t, start.Add(30*time.Second), w.list[0])
		require.Equal(t, start.Add(90*time.Second), w.list[len(w.list)-1])
	})
}

// slowRequest sends the header of a request, and returns the writer of its body and the status.
func slowRequest(t *testing.T, f *fixture, token string, length int64) (*io.PipeWriter, chan int) {
	t.Helper()
	r, w := io.Pipe()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://127.0.0.1/rpc", r)
	require.NoError(t, err)
	req.ContentLength = length
	req.Header.Set("Authorization", "Bearer "+token)
	req.Header.Set("A2A-Version", "1.0")
	status := make(chan int, 1)
	go func() {
		res, err := f.mem.HTTPClient.Do(req)
		if err != nil {
			status <- 0
			return
		}
		_, _ = io.Copy(io.Discard, res.Body)
		_ = res.Body.Close()
		status <- res.StatusCode
	}()
	return w, status
}

// memoryOf returns the bytes that all requests have.
func memoryOf(f *fixture) (n int64) {
	for _, u := range f.engine.Usage() {
		if u.Resource == "memory" && u.Scope == "all" {
			n = u.Used
		}
	}
	return n
}

// Bodies that arrive slowly have room in the budget of the server before they are read: strangers have none at all,
// a caller has its share, and another caller is served.
func TestSlowBodies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		options := &arc.ServerOptions{Limits: arc.Limits{MaxMemory: 64 << 20, MaxMemoryPerPrincipal: 16 << 20}}
		f := newFixture(t, options, func(context.Context, *arc.TaskRun) error { return nil })
		for range 50 {
			w, status := slowRequest(t, f, "nobody", 8<<20)
			require.Equal(t, http.StatusUnauthorized, <-status)
			_ = w.Close()
		}
		require.Zero(t, memoryOf(f))
		var open []*io.PipeWriter
		refused := 0
		for range 50 {
			w, status := slowRequest(t, f, "alice", 4<<20)
			t.Cleanup(func() { _ = w.Close() })
			synctest.Wait()
			select {
			case code := <-status:
				require.Equal(t, http.StatusServiceUnavailable, code)
				refused++
			default:
				open = append(open, w)
			}
		}
		require.Len(t, open, 4)
		require.Equal(t, 46, refused)
		require.EqualValues(t, 4*4<<20, memoryOf(f))
		unknown, status := slowRequest(t, f, "bob", -1)
		_, err := unknown.Write([]byte(`"` + strings.Repeat("x", 1<<20)))
		require.NoError(t, err)
		synctest.Wait()
		require.Greater(t, memoryOf(f), int64(4*4<<20+1<<20), "a body without a length grows its share")
		_ = unknown.Close()
		require.Equal(t, http.StatusBadRequest, <-status)
		_, err = sendTo(as(t.Context(), "bob"), f.clients[transports[0]], message("hello"))
		require.NoError(t, err)
		for _, w := range open {
			_ = w.CloseWithError(io.ErrUnexpectedEOF)
		}
		time.Sleep(time.Minute)
		require.Less(t, memoryOf(f), int64(1<<20), "what is left is the task")
	})
}

// A negative heartbeat sends no comments.
func TestNegativeHeartbeat(t *testing.T) {
	for heartbeat, want := range map[time.Duration]int{-1: 0, 0: 19, time.Minute: 4} {
		eachTransport(t, func(t *testing.T, protocol a2a.TransportProtocol) {
			f := newFixtureWithHeartbeat(t, nil, func(ctx context.Context, run *arc.TaskRun) error {
				time.Sleep(5*time.Minute - time.Second)
				return nil
			}, heartbeat)
			path, body := "/rest/message:stream", `{"message":{"messageId":"m","role":"ROLE_USER","parts":[{"text":"x"}]}}`
			if protocol == a2a.TransportProtocolJSONRPC {
				path, body = "/rpc", `{"jsonrpc":"2.0","id":1,"method":"SendStreamingMessage","params":`+body+`}`
			}
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://127.0.0.1"+path, strings.NewReader(body))
			require.NoError(t, err)
			req.Header.Set("Authorization", "Bearer alice")
			req.Header.Set("A2A-Version", "1.0")
			res, err := f.mem.HTTPClient.Do(req)
			require.NoError(t, err)
			text, err := io.ReadAll(res.Body)
			require.NoError(t, err)
			require.NoError(t, res.Body.Close())
			require.Contains(t, string(text), "COMPLETED")
			require.Equal(t, want, strings.Count(string(text), "\n:")+strings.Count(string(text[:1]), ":"), "%s", text)
		})
	}
}

// A constructor needs what it serves.
func TestConstructors(t *testing.T) {
	_, err := a2abridge.NewServer(nil, "worker-01", nil)
	require.Error(t, err)
	_, err = a2abridge.NewCard(arc.AgentInfo{AgentID: "worker-01"}, "", "")
	require.Error(t, err)
	_, err = a2abridge.NewCard(arc.AgentInfo{}, "http://127.0.0.1/", "")
	require.Error(t, err)
}

// A client whose request is refused in a shutdown reaches another server, not this one on the same connection.
func TestShutdownEndsConnections(t *testing.T) {
	engine, err := arc.NewServer(&arc.ServerOptions{Auth: arc.Auth{AllowAnonymous: true}})
	require.NoError(t, err)
	engine.HandleTasks("worker-01", arc.TaskHandlerFunc(func(context.Context, *arc.TaskRun) error { return nil }))
	bridge, err := a2abridge.NewServer(engine, "worker-01", nil)
	require.NoError(t, err)
	kit.CheckPostLeaves(t, bridge.JSONRPCHandler(), http.Header{"A2A-Version": {"1.0"}}, `{"jsonrpc":"2.0","id":1,"method":"SendStreamingMessage",`+
		`"params":{"message":{"messageId":"m","role":"ROLE_USER","parts":[{"text":"x"}]}}}`, engine.Shutdown)
}
