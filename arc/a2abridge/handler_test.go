// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package a2abridge_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
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
	"github.com/a2aproject/a2a-go/v2/a2asrv/eventqueue"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/arc"
	"github.com/fivewire/fivewire/arc/a2abridge"
	"github.com/fivewire/fivewire/arc/arctest"
	"github.com/fivewire/fivewire/store"
)

// cutting cuts each response after a minute, and sends the token of alice.
type cutting struct {
	next   http.RoundTripper
	cuts   atomic.Int64
	isDown atomic.Bool   // except for cancelations
	open   chan struct{} // responses wait for its close; nil means that they do not
}

type cutBody struct {
	io.ReadCloser
	timer  *time.Timer
	cancel context.CancelFunc
}

func (b cutBody) Close() error {
	b.timer.Stop()
	defer b.cancel()
	return b.ReadCloser.Close()
}

func (c *cutting) RoundTrip(r *http.Request) (*http.Response, error) {
	if c.isDown.Load() && !isCancelation(r) {
		return nil, errors.New("no route")
	}
	ctx, cancel := context.WithCancel(r.Context())
	r = r.Clone(ctx)
	r.Header.Set("Authorization", "Bearer alice")
	res, err := c.next.RoundTrip(r)
	if err != nil {
		cancel()
		return nil, err
	}
	if c.open != nil {
		select {
		case <-c.open:
		case <-ctx.Done():
			cancel()
			return nil, errors.Join(ctx.Err(), res.Body.Close())
		}
	}
	res.Body = cutBody{res.Body, time.AfterFunc(time.Minute, func() {
		c.cuts.Add(1)
		cancel()
	}), cancel}
	return res, nil
}

func isCancelation(r *http.Request) bool {
	if strings.HasSuffix(r.URL.Path, ":cancel") {
		return true
	}
	if r.GetBody == nil {
		return false
	}
	body, err := r.GetBody()
	if err != nil {
		return false
	}
	text, err := io.ReadAll(body)
	return err == nil && bytes.Contains(text, []byte(`"CancelTask"`))
}

// newRelay returns an ARC server whose agent is the remote one, and the client of that server.
func newRelay(t *testing.T, remote *arctest.Server, protocol a2a.TransportProtocol, p arc.Persistence) (*arc.Server, *arc.Client, *cutting) {
	t.Helper()
	card, err := a2abridge.NewCard(arc.AgentInfo{AgentID: "worker-01"}, "http://127.0.0.1/rpc", "http://127.0.0.1/rest")
	require.NoError(t, err)
	cut := &cutting{next: remote.HTTPClient.Transport}
	web := &http.Client{Transport: cut}
	h, err := a2abridge.NewHandler(card, &a2abridge.HandlerOptions{Client: []a2aclient.FactoryOption{a2aclient.WithJSONRPCTransport(web),
		a2aclient.WithRESTTransport(web), a2aclient.WithConfig(a2aclient.Config{PreferredTransports: []a2a.TransportProtocol{protocol}})}})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, h.Close()) })
	srv, err := arc.NewServer(&arc.ServerOptions{Auth: arc.Auth{AllowAnonymous: true}, Persistence: p, Logger: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	srv.HandleTasks("remote-01", h)
	mem := arctest.NewServer(t, srv)
	client, err := arc.NewClient(mem.URL, "tester-01", &arc.ClientOptions{HTTPClient: mem.HTTPClient})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, client.Close()) })
	return srv, client, cut
}

// A remote agent asks, answers and ends like a local agent, over streams that are cut.
func TestHandler(t *testing.T) {
	eachTransport(t, func(t *testing.T, protocol a2a.TransportProtocol) {
		canceled := 0
		f := newFixture(t, nil, func(ctx context.Context, run *arc.TaskRun) error {
			switch run.Message().Text() {
			case "reject":
				return a2abridge.Reject("not my trade")
			case "fail":
				return arc.Errorf(arc.ErrTaskExecutionFailed, "no paint")
			case "auth":
				if err := run.AddProgress(ctx, "sign in"); err != nil {
					return err
				}
				_, err := run.WaitInput(ctx, a2abridge.AuthRequired)
				return err
			case "wait":
				<-ctx.Done()
				canceled++
				return ctx.Err()
			}
			if err := run.AddProgress(ctx, "started"); err != nil {
				return err
			}
			if err := run.AddArtifact(ctx, &arc.Artifact{ID: "draft", Parts: []arc.Part{arc.TextPart("draft")}}); err != nil {
				return err
			}
			time.Sleep(5 * time.Minute)
			return ask(ctx, run)
		})
		_, client, cut := newRelay(t, f.mem, protocol, arc.Persistence{})
		ctx := t.Context()
		create := func(text string) string {
			task, err := client.CreateTask(ctx, "remote-01", &arc.CreateTaskParams{InitialMessage: arc.UserText(text)}, nil)
			require.NoError(t, err)
			return task.ID
		}
		id := create("paint it")
		res, err := client.WaitTask(ctx, "remote-01", id, nil)
		require.NoError(t, err)
		require.True(t, res.InputRequired)
		require.Equal(t, "which color?", res.InputRequest().Text())
		require.Positive(t, cut.cuts.Load())
		require.NoError(t, client.SendTaskInput(ctx, "remote-01", &arc.SendTaskParams{TaskID: id, Message: arc.UserText("red")}, nil))
		res, err = client.WaitTask(ctx, "remote-01", id, nil)
		require.NoError(t, err)
		require.Equal(t, arc.TaskCompleted, res.Task.Status)
		var texts []string
		for _, m := range res.Task.Messages {
			texts = append(texts, m.Text())
		}
		require.Equal(t, []string{"paint it", "started", "which color?", "red"}, texts)
		require.Len(t, res.Task.Artifacts, 2)
		require.Equal(t, "draft", res.Task.Artifacts[0].ID)
		require.Equal(t, "red", res.Task.Artifacts[1].Parts[0].Content)

		for text, want := range map[string]string{"reject": "not my trade", "fail": "no paint"} {
			res, err := client.WaitTask(ctx, "remote-01", create(text), nil)
			require.ErrorIs(t, err, arc.ErrTaskExecutionFailed)
			require.Equal(t, want, res.Task.Reason)
			require.Equal(t, text == "reject", strings.Contains(string(res.Task.Error.Details), "REJECTED"))
		}
		res, err = client.WaitTask(ctx, "remote-01", create("auth"), nil)
		require.NoError(t, err)
		require.Equal(t, a2abridge.AuthRequired, res.Task.Reason)

		id = create("wait")
		synctest.Wait()
		_, err = client.CancelTask(ctx, "remote-01", &arc.CancelTaskParams{TaskID: id}, nil)
		require.NoError(t, err)
		synctest.Wait()
		require.Equal(t, 1, canceled)
	})
}

// The end of a remote task that waits for input is that of the task.
func TestHandlerEndOfWaitingRemoteTask(t *testing.T) {
	eachTransport(t, func(t *testing.T, protocol a2a.TransportProtocol) {
		var remoteID atomic.Value
		f := newFixture(t, nil, func(ctx context.Context, run *arc.TaskRun) error {
			remoteID.Store(a2a.TaskID(run.ID()))
			return ask(ctx, run)
		})
		_, client, _ := newRelay(t, f.mem, protocol, arc.Persistence{})
		ctx := t.Context()
		task, err := client.CreateTask(ctx, "remote-01", &arc.CreateTaskParams{InitialMessage: arc.UserText("paint it")}, nil)
		require.NoError(t, err)
		time.Sleep(time.Hour)
		task, err = client.GetTask(ctx, "remote-01", &arc.TaskInfoParams{TaskID: task.ID}, nil)
		require.NoError(t, err)
		require.Equal(t, arc.TaskInputRequired, task.Status)
		_, err = f.clients[protocol].CancelTask(as(ctx, "alice"), &a2a.CancelTaskRequest{ID: remoteID.Load().(a2a.TaskID)})
		require.NoError(t, err)
		time.Sleep(5*time.Minute + time.Second)
		task, err = client.GetTask(ctx, "remote-01", &arc.TaskInfoParams{TaskID: task.ID}, nil)
		require.NoError(t, err)
		require.Equal(t, arc.TaskFailed, task.Status)
		require.EqualValues(t, arc.ErrTaskExecutionFailed, task.Error.Code)
	})
}

// A task that is canceled before the answer to its first message cancels the remote one, whose id the answer has, and
// ends although there is no answer.
func TestHandlerCanceledDuringFirstMessage(t *testing.T) {
	eachTransport(t, func(t *testing.T, protocol a2a.TransportProtocol) {
		for _, isAnswered := range []bool{true, false} {
			var causes []error
			f := newFixture(t, nil, func(ctx context.Context, run *arc.TaskRun) error {
				<-ctx.Done()
				causes = append(causes, context.Cause(ctx))
				return ctx.Err()
			})
			srv, client, cut := newRelay(t, f.mem, protocol, arc.Persistence{})
			cut.open = make(chan struct{})
			task, err := client.CreateTask(t.Context(), "remote-01", &arc.CreateTaskParams{InitialMessage: arc.UserText("x")}, nil)
			require.NoError(t, err)
			synctest.Wait()
			_, err = client.CancelTask(t.Context(), "remote-01", &arc.CancelTaskParams{TaskID: task.ID}, nil)
			require.NoError(t, err)
			synctest.Wait()
			require.Empty(t, causes)
			if isAnswered {
				close(cut.open)
				synctest.Wait()
				require.Len(t, causes, 1)
				require.ErrorIs(t, causes[0], arc.ErrTaskAlreadyCanceled)
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			require.NoError(t, srv.Shutdown(ctx), "the handler ends")
			cancel()
		}
	})
}

// A task that fails for a reason of this side cancels the remote one.
func TestHandlerFailureCancels(t *testing.T) {
	eachTransport(t, func(t *testing.T, protocol a2a.TransportProtocol) {
		var causes []error
		f := newFixture(t, nil, func(ctx context.Context, _ *arc.TaskRun) error {
			<-ctx.Done()
			causes = append(causes, context.Cause(ctx))
			return ctx.Err()
		})
		_, client, cut := newRelay(t, f.mem, protocol, arc.Persistence{})
		task, err := client.CreateTask(t.Context(), "remote-01", &arc.CreateTaskParams{InitialMessage: arc.UserText("x")}, nil)
		require.NoError(t, err)
		synctest.Wait()
		cut.isDown.Store(true)
		_, err = client.WaitTask(t.Context(), "remote-01", task.ID, nil)
		require.ErrorIs(t, err, arc.ErrTaskExecutionFailed)
		synctest.Wait()
		require.Len(t, causes, 1)
		require.ErrorIs(t, causes[0], arc.ErrTaskAlreadyCanceled)
	})
}

// The next process continues with the same remote task.
func TestHandlerNextProcess(t *testing.T) {
	eachTransport(t, func(t *testing.T, protocol a2a.TransportProtocol) {
		var runs atomic.Int64
		f := newFixture(t, nil, func(ctx context.Context, run *arc.TaskRun) error {
			runs.Add(1)
			data, err := arc.DataPart(map[string]any{"b": 1.5, "a": []string{"<é>"}})
			if err != nil {
				return err
			}
			draft := &arc.Artifact{ID: "draft", Name: "draft", Metadata: json.RawMessage(`{"n":9007199254740993}`), Parts: []arc.Part{data,
				arc.TextPart("text"), arc.FilePart("a b.txt", "text/plain", []byte("f")), arc.ImagePart("image/png", []byte("i"))}}
			if err := run.AddArtifact(ctx, draft); err != nil {
				return err
			}
			return ask(ctx, run)
		})
		p := arc.Persistence{Store: store.NewMemory(), LeaseTTL: 3 * time.Second}
		first, client, _ := newRelay(t, f.mem, protocol, p)
		task, err := client.CreateTask(t.Context(), "remote-01", &arc.CreateTaskParams{InitialMessage: arc.UserText("x")}, nil)
		require.NoError(t, err)
		_, err = client.WaitTask(t.Context(), "remote-01", task.ID, nil)
		require.NoError(t, err)
		require.NoError(t, first.Close())
		_, client, _ = newRelay(t, f.mem, protocol, p)
		require.NoError(t, client.SendTaskInput(t.Context(), "remote-01", &arc.SendTaskParams{TaskID: task.ID, Message: arc.UserText("red")}, nil))
		res, err := client.WaitTask(t.Context(), "remote-01", task.ID, nil)
		require.NoError(t, err)
		require.Len(t, res.Task.Artifacts, 2)
		require.Len(t, res.Task.Artifacts[0].Parts, 4)
		require.Equal(t, "red", res.Task.Artifacts[1].Parts[0].Content)
		require.Len(t, res.Task.Messages, 3)
		require.EqualValues(t, 1, runs.Load())
	})
}

// An agent that is not reached, at once or later, fails the task.
func TestHandlerFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, nil, func(ctx context.Context, _ *arc.TaskRun) error {
			<-ctx.Done()
			return ctx.Err()
		})
		_, client, cut := newRelay(t, f.mem, a2a.TransportProtocolJSONRPC, arc.Persistence{})
		for _, isDown := range []bool{false, true} {
			cut.isDown.Store(isDown)
			task, err := client.CreateTask(t.Context(), "remote-01", &arc.CreateTaskParams{InitialMessage: arc.UserText("x")}, nil)
			require.NoError(t, err)
			synctest.Wait()
			cut.isDown.Store(true)
			ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
			_, err = client.WaitTask(ctx, "remote-01", task.ID, nil)
			cancel()
			require.ErrorIs(t, err, arc.ErrTaskExecutionFailed)
		}
		_, err := a2abridge.NewHandler(nil, nil)
		require.Error(t, err)
	})
}

// An agent whose response does not end fails the task.
func TestHandlerEndlessResponse(t *testing.T) {
	const limit = 128 << 20
	var sent int
	closed := make(chan struct{})
	remote := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		defer close(closed)
		w.Header().Set("Content-Type", "application/json")
		text := []byte(`{"jsonrpc":"2.0","result":{"task":{"id":"`)
		for sent < limit {
			n, err := w.Write(text)
			if err != nil {
				return
			}
			sent += n
			text = bytes.Repeat([]byte("x"), 1<<20)
		}
	}))
	defer remote.Close()
	card, err := a2abridge.NewCard(arc.AgentInfo{AgentID: "worker-01"}, remote.URL, "")
	require.NoError(t, err)
	h, err := a2abridge.NewHandler(card, nil)
	require.NoError(t, err)
	defer h.Close()
	srv, err := arc.NewServer(&arc.ServerOptions{Auth: arc.Auth{AllowAnonymous: true}, Logger: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	srv.HandleTasks("remote-01", h)
	mem := arctest.NewServer(t, srv)
	client, err := arc.NewClient(mem.URL, "tester-01", &arc.ClientOptions{HTTPClient: mem.HTTPClient})
	require.NoError(t, err)
	defer client.Close()
	task, err := client.CreateTask(t.Context(), "remote-01", &arc.CreateTaskParams{InitialMessage: arc.UserText("x")}, nil)
	require.NoError(t, err)
	_, err = client.WaitTask(t.Context(), "remote-01", task.ID, &arc.WaitOptions{MinPollInterval: time.Millisecond, MaxPollInterval: 10 * time.Millisecond})
	require.ErrorIs(t, err, arc.ErrInternal)
	<-closed
	require.Less(t, sent, limit)
}

// An executor is an agent of the SDK.
type executor struct{ canceled chan a2a.TaskID }

func (executor) Execute(ctx context.Context, ec *a2asrv.ExecutorContext) iter.Seq2[a2a.Event, error] {
	return func(yield func(a2a.Event, error) bool) {
		status := func(state a2a.TaskState, text string) bool {
			return yield(a2a.NewStatusUpdateEvent(ec, state, a2a.NewMessageForTask(a2a.MessageRoleAgent, ec, a2a.NewTextPart(text))), nil)
		}
		// chunks sends an artifact in n parts.
		chunks := func(id a2a.ArtifactID, n int, text string) {
			for i := range n {
				e := a2a.NewArtifactUpdateEvent(ec, id, a2a.NewTextPart(text))
				e.Append, e.LastChunk, e.Artifact.Name = i > 0, i == n-1, string(id)
				if !yield(e, nil) {
					return
				}
			}
		}
		text := textOf(ec.Message)
		switch {
		case ec.StoredTask != nil:
			if text == "more" {
				e := a2a.NewArtifactUpdateEvent(ec, "draft", a2a.NewTextPart("red"))
				e.Append = true
				if !yield(e, nil) {
					return
				}
			}
			chunks("paint", 1, text)
			status(a2a.TaskStateCompleted, "done")
			return
		case text == "reply":
			yield(a2a.NewMessage(a2a.MessageRoleAgent, a2a.NewTextPart("no task")), nil)
			return
		case text == "long reply":
			yield(a2a.NewMessage(a2a.MessageRoleAgent, a2a.NewTextPart(strings.Repeat("x", 1<<20))), nil)
			return
		}
		if !yield(a2a.NewSubmittedTask(ec, ec.Message), nil) || !status(a2a.TaskStateWorking, "started") {
			return
		}
		switch text {
		case "wait":
			<-ctx.Done()
		case "fail":
			status(a2a.TaskStateFailed, "no paint")
		case "big":
			chunks("big", 2, strings.Repeat("x", 3<<20))
			status(a2a.TaskStateCompleted, "done")
		default:
			chunks("draft", 2, "draft ")
			status(a2a.TaskStateInputRequired, "which color?")
		}
	}
}

func (e executor) Cancel(_ context.Context, ec *a2asrv.ExecutorContext) iter.Seq2[a2a.Event, error] {
	return func(yield func(a2a.Event, error) bool) {
		yield(a2a.NewStatusUpdateEvent(ec, a2a.TaskStateCanceled, nil), nil)
		e.canceled <- ec.TaskID
	}
}

// queues destroys all queues at the end of a test. The SDK forgets one whose subscriber arrives between the destruction
// of the queue and the removal of its execution.
type queues struct {
	eventqueue.Manager
	ids sync.Map
}

func newQueues(t *testing.T) *queues {
	q := &queues{Manager: eventqueue.NewInMemoryManager()}
	t.Cleanup(func() {
		for id := range q.ids.Range {
			assert.NoError(t, q.Destroy(context.Background(), id.(a2a.TaskID)))
		}
	})
	return q
}

func (q *queues) CreateReader(ctx context.Context, id a2a.TaskID) (eventqueue.Reader, error) {
	q.ids.Store(id, nil)
	return q.Manager.CreateReader(ctx, id)
}

// An agent of the SDK's server asks, answers and ends like a local agent; its artifacts in chunks are whole here.
func TestHandlerWithServerOfSDK(t *testing.T) {
	for _, protocol := range transports {
		t.Run(string(protocol), func(t *testing.T) {
			canceled := make(chan a2a.TaskID, 1)
			remote := a2asrv.NewHandler(executor{canceled}, a2asrv.WithEventQueueManager(newQueues(t)))
			mux := http.NewServeMux()
			mux.Handle("/rpc", a2asrv.NewJSONRPCHandler(remote))
			mux.Handle("/rest/", http.StripPrefix("/rest", a2asrv.NewRESTHandler(remote)))
			_, client, _ := newRelay(t, arctest.NewServer(t, mux), protocol, arc.Persistence{})
			ctx := t.Context()
			wait := &arc.WaitOptions{MinPollInterval: time.Millisecond, MaxPollInterval: 10 * time.Millisecond}
			create := func(text string) string {
				task, err := client.CreateTask(ctx, "remote-01", &arc.CreateTaskParams{InitialMessage: arc.UserText(text)}, nil)
				require.NoError(t, err)
				return task.ID
			}
			id := create("paint it")
			res, err := client.WaitTask(ctx, "remote-01", id, wait)
			require.NoError(t, err)
			require.True(t, res.InputRequired)
			require.Equal(t, "which color?", res.Task.Reason)
			require.NoError(t, client.SendTaskInput(ctx, "remote-01", &arc.SendTaskParams{TaskID: id, Message: arc.UserText("red")}, nil))
			res, err = client.WaitTask(ctx, "remote-01", id, wait)
			require.NoError(t, err)
			require.Equal(t, arc.TaskCompleted, res.Task.Status)
			require.Equal(t, []string{"draft", "paint"}, []string{res.Task.Artifacts[0].Name, res.Task.Artifacts[1].Name})
			require.Len(t, res.Task.Artifacts[0].Parts, 2)
			require.Equal(t, "red", res.Task.Artifacts[1].Parts[0].Content)

			id = create("paint it")
			_, err = client.WaitTask(ctx, "remote-01", id, wait)
			require.NoError(t, err)
			require.NoError(t, client.SendTaskInput(ctx, "remote-01", &arc.SendTaskParams{TaskID: id, Message: arc.UserText("more")}, nil))
			res, err = client.WaitTask(ctx, "remote-01", id, wait)
			require.NoError(t, err)
			require.Len(t, res.Task.Artifacts, 3, "the changed artifact arrives again")
			require.Equal(t, "draft-2", res.Task.Artifacts[1].ID)
			require.Len(t, res.Task.Artifacts[1].Parts, 3)

			res, err = client.WaitTask(ctx, "remote-01", create("reply"), wait)
			require.NoError(t, err)
			require.Equal(t, "no task", res.Task.Messages[1].Text())
			res, err = client.WaitTask(ctx, "remote-01", create("long reply"), wait)
			require.NoError(t, err)
			require.Len(t, res.Task.Messages[1].Text(), 1<<20)
			res, err = client.WaitTask(ctx, "remote-01", create("big"), wait)
			require.NoError(t, err)
			require.Len(t, res.Task.Artifacts[0].Parts, 2)
			_, err = client.WaitTask(ctx, "remote-01", create("fail"), wait)
			require.ErrorIs(t, err, arc.ErrTaskExecutionFailed)

			id = create("wait")
			for text := ""; text != "started"; time.Sleep(time.Millisecond) {
				task, err := client.GetTask(ctx, "remote-01", &arc.TaskInfoParams{TaskID: id}, nil)
				require.NoError(t, err)
				text = task.Messages[len(task.Messages)-1].Text()
			}
			_, err = client.CancelTask(ctx, "remote-01", &arc.CancelTaskParams{TaskID: id}, nil)
			require.NoError(t, err)
			require.NotEmpty(t, <-canceled)
		})
	}
}
