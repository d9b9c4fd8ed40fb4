// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package arc_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fivewire/fivewire/arc"
	"github.com/fivewire/fivewire/arc/arctest"
	"github.com/fivewire/fivewire/store"
	"github.com/stretchr/testify/require"
)

// failing is a store whose calls fail, from the nth on.
type failing struct {
	store.Store
	left atomic.Int64
}

var errStore = errors.New("secret: the disk is on fire")

func (f *failing) fail() error {
	if f.left.Add(-1) < 0 {
		return errStore
	}
	return nil
}

func (f *failing) Get(ctx context.Context, key string) (store.Entry, error) {
	if err := f.fail(); err != nil {
		return store.Entry{}, err
	}
	return f.Store.Get(ctx, key)
}

func (f *failing) Create(ctx context.Context, key string, value []byte, ttl time.Duration) (store.Revision, error) {
	if err := f.fail(); err != nil {
		return 0, err
	}
	return f.Store.Create(ctx, key, value, ttl)
}

func (f *failing) Update(ctx context.Context, key string, value []byte, rev store.Revision, ttl time.Duration) (store.Revision, error) {
	if err := f.fail(); err != nil {
		return 0, err
	}
	return f.Store.Update(ctx, key, value, rev, ttl)
}

func (f *failing) List(ctx context.Context, prefix string) iter.Seq2[store.Entry, error] {
	if err := f.fail(); err != nil {
		return func(yield func(store.Entry, error) bool) { yield(store.Entry{}, err) }
	}
	return f.Store.List(ctx, prefix)
}

func (f *failing) Append(ctx context.Context, stream, id string, value []byte, ttl time.Duration) (uint64, error) {
	if err := f.fail(); err != nil {
		return 0, err
	}
	return f.Store.Append(ctx, stream, id, value, ttl)
}

func (f *failing) Read(ctx context.Context, stream string, after uint64, limit int) ([]store.Record, error) {
	if err := f.fail(); err != nil {
		return nil, err
	}
	return f.Store.Read(ctx, stream, after, limit)
}

// Whatever a store does, callers get an answer that tells them nothing of it,
// and the server keeps serving.
func TestFailingStore(t *testing.T) {
	for n := range int64(40) {
		synctest.Test(t, func(t *testing.T) {
			db := &failing{Store: store.NewMemory()}
			db.left.Store(1 << 40)
			h := &hooks{}
			s := newServer(t, &arc.ServerOptions{Persistence: arc.Persistence{EnableResume: n%2 == 0, Store: db, ResultTTL: time.Duration(n%3) * time.Minute}, Webhook: h.options()})
			s.Register(arc.Agent{AgentInfo: arc.AgentInfo{AgentID: "a-01"}, Group: "g", ChatHandler: arctest.ScriptedChat("a", "b"),
				TaskHandler: arctest.ScriptedTask(arctest.AddMessage("m"), arctest.WaitInput("x"), arctest.AddArtifact("p", "q"))})
			id := createTask(t, s, "a-01", "x")
			synctest.Wait()
			require.Nil(t, startChat(s, "a-01", "c", "x").Error)
			db.left.Store(n)
			for _, body := range []string{
				call("chat.message", "g", `{"chatId":"c","message":`+hello("x")+`}`),
				call("task.subscribe", "a-01", fmt.Sprintf(`{"taskId":%q,"callbackUrl":"https://one.test/"}`, id)),
				call("task.send", "a-01", fmt.Sprintf(`{"taskId":%q,"message":%s}`, id, hello("x"))),
				call("task.info", "g", fmt.Sprintf(`{"taskId":%q}`, id)),
				call("task.create", "g", `{"initialMessage":`+hello("x")+`}`),
				streamed("a-01", "d", "x"),
				call("chat.end", "a-01", `{"chatId":"c"}`),
				call("task.cancel", "a-01", fmt.Sprintf(`{"taskId":%q}`, id)),
			} {
				rec := post(s, body)
				require.NotEmpty(t, rec.Body.String())
				require.NotContains(t, rec.Body.String(), "secret")
				synctest.Wait()
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			_ = s.WaitRecovered(ctx)
			db.left.Store(1 << 40)
			time.Sleep(time.Minute) // until the server has a lease
			require.NoError(t, s.Ready())
			require.Nil(t, startChat(s, "a-01", "after", "x").Error)
			createTask(t, s, "a-01", "x")
			require.NoError(t, s.Close())
			time.Sleep(time.Minute) // changes in doubt are repeated
		})
	}
}

func TestEstimate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var expected string
		var id string
		s := newServer(t, &arc.ServerOptions{OnTaskEvent: func(_ context.Context, _ string, n *arc.Notification) {
			if n.Event == arc.EventTaskStarted {
				expected = string(n.Data.EstimatedDuration)
			}
		}})
		s.Register(arc.Agent{AgentInfo: arc.AgentInfo{AgentID: "a-01"},
			TaskHandler: arc.TaskHandlerFunc(func(_ context.Context, run *arc.TaskRun) error {
				id = run.ID()
				return nil
			}),
			EstimateTask: func(_ context.Context, run *arc.TaskRun) time.Duration {
				if run.Message().Text() == "panic" {
					panic("no idea")
				}
				return 90 * time.Second
			}})
		task := createTask(t, s, "a-01", "x")
		synctest.Wait()
		require.Equal(t, "90000", expected)
		require.Equal(t, task, id)
		bad := createTask(t, s, "a-01", "panic")
		synctest.Wait()
		require.Equal(t, arc.TaskFailed, taskOf(t, s, "a-01", bad).Status)
	})
}

func TestNotificationHandler(t *testing.T) {
	s := newServer(t, nil)
	var got *arc.Notification
	s.Register(arc.Agent{AgentInfo: arc.AgentInfo{AgentID: "a-01"}, NotificationHandler: arc.NotificationHandlerFunc(func(_ context.Context, n *arc.Notification) error {
		got = n
		if n.TaskID == "bad" {
			return arc.Errorf(arc.ErrTaskNotFound, "which?")
		}
		return nil
	})})
	note := func(task string) string {
		return call("task.notification", "a-01", fmt.Sprintf(`{"taskId":%q,"event":"TASK_FAILED","timestamp":"2024-01-15T10:35:00Z","data":{"status":"FAILED","message":"m","reason":"r"}}`, task))
	}
	require.Nil(t, answer(t, post(s, note("t"))).Error)
	require.Equal(t, "r", got.Data.Reason)
	fault(t, post(s, note("bad")), arc.ErrTaskNotFound)
	require.Equal(t, "event", fault(t, post(s, strings.Replace(note("t"), "TASK_FAILED", "TASK_EXPLODED", 1)), arc.ErrInvalidParams).Field())
}

// An error of a resumable stream reaches the reader, in the stream or before it.
func TestResumeErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := arc.MustServer(&arc.ServerOptions{Persistence: arc.Persistence{EnableResume: true}, Timing: arc.Timing{Heartbeat: time.Second}})
		s.HandleChats("a-01", arc.ChatHandlerFunc(func(_ context.Context, turn *arc.ChatTurn, out *arc.ChatWriter) error {
			switch turn.Message.Text() {
			case "late":
				time.Sleep(5 * time.Second) // the stream has begun with a keep-alive
			case "after":
				if err := out.Send("x"); err != nil {
					return err
				}
			}
			return arc.Errorf(arc.ErrInvalidChatMessage, "no")
		}))
		mem := arctest.NewServer(t, s)
		for _, text := range []string{"late", "after"} {
			_, _, err := readStream(arc.NewStreamReader(open(t, t.Context(), mem, streamed("a-01", text, text)).Body, 0, nil))
			require.ErrorIs(t, err, arc.ErrInvalidChatMessage, text)
		}
	})
}

func TestHTTPServer(t *testing.T) {
	s := newServer(t, nil)
	h := s.HTTPServer("127.0.0.1:0")
	require.Equal(t, 10*time.Second, h.ReadHeaderTimeout)
	require.Zero(t, h.WriteTimeout)
	require.Same(t, s, h.Handler)
}

func TestHooksRefuse(t *testing.T) {
	var refuse error
	s := newServer(t, &arc.ServerOptions{Auth: arc.Auth{Authorizer: arc.AuthorizerFunc(func(context.Context, *arc.Call) error { return refuse })}})
	s.Handle("a-01", "debug.echo", arc.HandlerFunc(echo))
	for err, code := range map[error]arc.Code{
		errors.New("secret"):                     arc.ErrPermissionDenied,
		fmt.Errorf("x: %w", arc.ErrIPBlocked):    arc.ErrIPBlocked,
		arc.Errorf(arc.ErrPermissionDenied, "x"): arc.ErrPermissionDenied,
	} {
		refuse = err
		rec := post(s, call("debug.echo", "a-01", "{}"))
		fault(t, rec, code)
		require.NotContains(t, rec.Body.String(), "secret")
	}
	refuse = nil
	require.Nil(t, answer(t, post(s, call("debug.echo", "a-01", "{}"))).Error)
	var in struct{ N int }
	require.ErrorIs(t, (&arc.Call{Params: []byte(`{"N":"x"}`)}).Decode(&in), arc.ErrInvalidParams)
	require.NoError(t, (&arc.Call{Params: []byte(`{"N":3}`)}).Decode(&in))
	require.Nil(t, arc.CallFromContext(t.Context()))
}
