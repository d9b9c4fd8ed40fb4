// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package arc_test

import (
	"context"
	"fmt"
	"iter"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/arc"
	"github.com/fivewire/fivewire/arc/arctest"
	"github.com/fivewire/fivewire/internal/testkit"
	"github.com/fivewire/fivewire/store"
)

// A closing server takes over no tasks, not even its own.
func TestRecoverWhileClosing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		list := make(chan struct{})
		db := &slowList{Store: store.NewMemory(), goOn: list}
		s := arc.MustServer(&arc.ServerOptions{Persistence: arc.Persistence{Store: db}})
		s.HandleTasks("a-01", arctest.ScriptedTask(arctest.WaitCanceled()))
		id := createTask(t, s, "a-01", "x")
		synctest.Wait()
		recovered := make(chan error)
		go func() {
			recovered <- s.WaitRecovered(t.Context())
		}()
		synctest.Wait()
		closed := make(chan error)
		go func() { closed <- s.Close() }()
		synctest.Wait()
		close(list)
		require.ErrorIs(t, <-recovered, arc.ErrClosed)
		require.NoError(t, <-closed)
		require.ErrorIs(t, s.WaitRecovered(t.Context()), arc.ErrClosed)
		next := newServer(t, &arc.ServerOptions{Persistence: arc.Persistence{Store: db.Store}})
		require.NoError(t, next.WaitRecovered(t.Context()))
		next.HandleTasks("a-01", arctest.ScriptedTask(arctest.WaitCanceled()))
		require.NoError(t, next.WaitRecovered(t.Context()))
		task := taskOf(t, next, "a-01", id)
		require.Equal(t, arc.TaskFailed, task.Status, "the closing server did not take it over")
		require.Equal(t, "Task interrupted", task.Reason)
	})
}

// A call that the end of the server cuts off is refused like a new one, so that its caller repeats it elsewhere; so is
// a message that waits for the turn of its chat.
func TestCallCutByShutdownIsUnavailable(t *testing.T) {
	for name, db := range map[string]store.Store{"memory": nil, "shared store": store.NewMemory()} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var log testkit.Log
				s := arc.MustServer(&arc.ServerOptions{Persistence: arc.Persistence{Store: db}, Logger: log.Logger()})
				s.HandleChats("a-01", arc.ChatHandlerFunc(func(ctx context.Context, turn *arc.ChatTurn, out *arc.ChatWriter) error {
					if turn.First {
						return out.Send("hello")
					}
					<-ctx.Done()
					return fmt.Errorf("cut: %w", ctx.Err())
				}))
				s.Handle("a-01", "debug.wait", arc.HandlerFunc(func(ctx context.Context, _ *arc.Call) (any, error) {
					<-ctx.Done()
					return nil, context.Cause(ctx)
				}))
				require.Nil(t, startChat(s, "a-01", "c", "x").Error)
				message := call("chat.message", "a-01", `{"chatId":"c","message":`+hello("x")+`}`)
				var calls sync.WaitGroup
				for _, body := range []string{message, message, call("debug.wait", "a-01", "{}")} {
					calls.Go(func() {
						rec := post(s, body)
						fault(t, rec, arc.ErrAgentNotAvailable)
						require.Equal(t, "5", rec.Header().Get("Retry-After"))
					})
				}
				synctest.Wait()
				require.NoError(t, s.Close())
				calls.Wait()
				require.Empty(t, log.String())
			})
		})
	}
}

// A stream that the end of the server cuts off ends with the same error, whatever the handler returns for the end of its
// context.
func TestStreamCutByShutdownIsUnavailable(t *testing.T) {
	for name, errorOf := range map[string]func(context.Context) error{"error": context.Context.Err, "cause": context.Cause} {
		for _, text := range []string{"", "piece"} {
			t.Run(name+" "+text, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					var log testkit.Log
					s := arc.MustServer(&arc.ServerOptions{Logger: log.Logger()})
					s.HandleChats("a-01", arc.ChatHandlerFunc(func(ctx context.Context, _ *arc.ChatTurn, out *arc.ChatWriter) error {
						if text != "" {
							require.NoError(t, out.Send(text))
						}
						<-ctx.Done()
						return errorOf(ctx)
					}))
					done := make(chan *httptest.ResponseRecorder)
					go func() { done <- post(s, streamed("a-01", "c", "x")) }()
					synctest.Wait()
					require.NoError(t, s.Close())
					require.Contains(t, (<-done).Body.String(), `"code":-41002`)
					require.Empty(t, log.String())
				})
			})
		}
	}
}

// slowList is a store whose lists take a while.
type slowList struct {
	store.Store
	goOn chan struct{}
}

func (s *slowList) List(ctx context.Context, prefix string) iter.Seq2[store.Entry, error] {
	return func(yield func(store.Entry, error) bool) {
		<-s.goOn
		s.Store.List(ctx, prefix)(yield)
	}
}

// Callers ask about a task while the server is shut down. Each of them is
// answered or refused, and when Shutdown has returned nothing is being done.
func TestAskedWhileDraining(t *testing.T) {
	var serving atomic.Int32
	count := func(next arc.Handler) arc.Handler {
		return arc.HandlerFunc(func(ctx context.Context, c *arc.Call) (any, error) {
			serving.Add(1)
			defer serving.Add(-1)
			return next.ServeARC(ctx, c)
		})
	}
	for range 100 {
		s := arc.MustServer(&arc.ServerOptions{Middleware: []arc.Middleware{count}})
		release := make(chan struct{})
		s.HandleTasks("a-01", arc.TaskHandlerFunc(func(context.Context, *arc.TaskRun) error {
			<-release
			return nil
		}))
		id := createTask(t, s, "a-01", "x")
		var asking sync.WaitGroup
		for range 4 {
			asking.Go(func() {
				for {
					rec := httptest.NewRecorder()
					req := httptest.NewRequest(http.MethodPost, "/arc", strings.NewReader(call("task.info", "a-01", fmt.Sprintf(`{"taskId":%q}`, id))))
					req.Header.Set("Content-Type", arc.MediaType)
					s.ServeHTTP(rec, req)
					if rec.Code != http.StatusOK {
						return
					}
				}
			})
		}
		close(release)
		require.NoError(t, s.Shutdown(t.Context()))
		require.Zero(t, serving.Load())
		asking.Wait()
	}
}

// A call that has had its effect when the server is cut off is answered, since its caller would repeat a refused one elsewhere.
func TestEffectBeforeCutIsAnswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var isSlow atomic.Bool
		slow := func(next arc.Handler) arc.Handler {
			return arc.HandlerFunc(func(ctx context.Context, c *arc.Call) (any, error) {
				result, err := next.ServeARC(ctx, c)
				if isSlow.Load() {
					<-ctx.Done()
				}
				return result, err
			})
		}
		p := arc.Persistence{Store: store.NewMemory()}
		s := newServer(t, &arc.ServerOptions{Persistence: p, Middleware: []arc.Middleware{slow}})
		s.HandleTasks("a-01", arctest.ScriptedTask(arctest.WaitInput("x")))
		s.HandleChats("b-01", arctest.EchoChat())
		id := createTask(t, s, "a-01", "x")
		synctest.Wait()
		isSlow.Store(true)
		bodies := []string{call("task.create", "a-01", `{"initialMessage":`+hello("x")+`}`), call("chat.start", "b-01", `{"initialMessage":`+hello("x")+`}`),
			call("task.send", "a-01", fmt.Sprintf(`{"taskId":%q,"message":%s}`, id, hello("x")))}
		responses := make([]*arc.ServerResponse, len(bodies))
		var calls sync.WaitGroup
		for i, body := range bodies {
			calls.Go(func() {
				responses[i] = s.ServeMessage(t.Context(), &arc.ServerRequest{Data: []byte(body)}, nil)
			})
		}
		synctest.Wait()
		require.NoError(t, s.Close())
		calls.Wait()
		for _, res := range responses {
			require.Nil(t, res.Error)
		}
	})
}
