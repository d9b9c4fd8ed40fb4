// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package arctest_test

import (
	"context"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/fivewire/fivewire/arc"
	"github.com/fivewire/fivewire/arc/arctest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func serve(t *testing.T, srv *arc.Server) *arc.Client {
	t.Helper()
	mem := arctest.NewServer(t, srv)
	client, err := arc.NewClient(mem.URL, "tester-01", &arc.ClientOptions{HTTPClient: mem.HTTPClient})
	require.NoError(t, err)
	return client
}

func start(t *testing.T, c *arc.Client) string {
	t.Helper()
	task, err := c.CreateTask(t.Context(), "a-01", &arc.CreateTaskParams{InitialMessage: arc.UserText("go")}, nil)
	require.NoError(t, err)
	return task.ID
}

func info(t *testing.T, c *arc.Client, id string) *arc.Task {
	t.Helper()
	task, err := c.GetTask(t.Context(), "a-01", &arc.TaskInfoParams{TaskID: id}, nil)
	require.NoError(t, err)
	return task
}

// A script goes step by step, and time that passes in it takes none.
func TestTask(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := newServer(t)
		srv.HandleTasks("a-01", arctest.ScriptedTask(arctest.AddMessage("which color?"), arctest.WaitInput("color"),
			arctest.Sleep(time.Hour), arctest.AddArtifact("picture", "red")))
		c := serve(t, srv)
		id := start(t, c)
		synctest.Wait()
		task := info(t, c, id)
		require.Equal(t, arc.TaskInputRequired, task.Status)
		require.Equal(t, "which color?", task.Messages[1].Text())

		require.NoError(t, c.SendTaskInput(t.Context(), "a-01", &arc.SendTaskParams{TaskID: id, Message: arc.UserText("red")}, nil))
		time.Sleep(time.Hour - time.Nanosecond)
		require.Equal(t, arc.TaskWorking, info(t, c, id).Status)
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		task = info(t, c, id)
		require.Equal(t, arc.TaskCompleted, task.Status)
		require.Equal(t, "picture", task.Artifacts[0].Name)
		require.Equal(t, "red", task.Artifacts[0].Parts[0].Content)
	})
}

// The first step that fails ends the task with its error.
func TestFail(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := newServer(t)
		srv.HandleTasks("a-01", arctest.ScriptedTask(arctest.Fail(arc.ErrPermissionDenied, "no paint left"), arctest.AddMessage("never said")))
		c := serve(t, srv)
		id := start(t, c)
		synctest.Wait()
		task := info(t, c, id)
		require.Equal(t, arc.TaskFailed, task.Status)
		require.ErrorIs(t, task.Error, arc.ErrPermissionDenied)
		require.Equal(t, "no paint left", task.Error.Message)
		require.Len(t, task.Messages, 1)
	})
}

// Steps that wait end when the task is canceled.
func TestCancel(t *testing.T) {
	for name, step := range map[string]arctest.Step{"hang": arctest.WaitCanceled(), "wait": arctest.Sleep(1000 * time.Hour), "ask": arctest.WaitInput("x")} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				srv := newServer(t)
				var endErr error
				srv.HandleTasks("a-01", arctest.ScriptedTask(func(ctx context.Context, run *arc.TaskRun) error {
					endErr = step(ctx, run)
					return endErr
				}))
				c := serve(t, srv)
				id := start(t, c)
				synctest.Wait()
				_, err := c.CancelTask(t.Context(), "a-01", &arc.CancelTaskParams{TaskID: id}, nil)
				require.NoError(t, err)
				synctest.Wait()
				require.ErrorIs(t, endErr, arc.ErrTaskAlreadyCanceled)
			})
		})
	}
}

func TestChat(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := newServer(t)
		srv.HandleChats("a-01", arctest.ScriptedChat("one ", "two"))
		srv.HandleChats("b-01", arctest.EchoChat())
		c := serve(t, srv)
		params := &arc.StartChatParams{InitialMessage: arc.UserText("hello")}
		var pieces []string
		for ev, err := range c.StreamChat(t.Context(), "a-01", params, nil) {
			require.NoError(t, err)
			if !ev.Done {
				pieces = append(pieces, ev.Text)
			}
		}
		require.Equal(t, []string{"one ", "two"}, pieces)
		chat, err := c.StartChat(t.Context(), "b-01", params, nil)
		require.NoError(t, err)
		require.Equal(t, "hello", chat.Message.Text())
	})
}

// Any handler can be served, and whatever host a request names, it gets there.
func TestServe(t *testing.T) {
	h := &closable{}
	t.Run("served", func(t *testing.T) {
		mem := arctest.NewServer(t, h)
		res, err := mem.HTTPClient.Get("http://elsewhere.example/x")
		require.NoError(t, err)
		require.NoError(t, res.Body.Close())
		require.Equal(t, http.StatusTeapot, res.StatusCode)
		require.Equal(t, "elsewhere.example", h.host)
		require.False(t, h.closed)

		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, mem.URL, nil)
		require.NoError(t, err)
		_, err = mem.HTTPClient.Do(req)
		require.ErrorIs(t, err, context.Canceled)
		require.NoError(t, mem.HTTPServer.Close())
		_, err = mem.HTTPClient.Get(mem.URL)
		require.Error(t, err, "the server is closed")
	})
	require.True(t, h.closed, "the handler is closed with the test")
}

type closable struct {
	host   string
	closed bool
}

func (c *closable) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c.host = r.Host
	w.WriteHeader(http.StatusTeapot)
}

func (c *closable) Close() error {
	c.closed = true
	return nil
}

// newServer returns a server for anonymous callers.
func newServer(t *testing.T) *arc.Server {
	t.Helper()
	srv, err := arc.NewServer(&arc.ServerOptions{Auth: arc.Auth{AllowAnonymous: true}})
	require.NoError(t, err)
	return srv
}
