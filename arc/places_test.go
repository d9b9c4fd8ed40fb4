// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package arc_test

import (
	"context"
	"fmt"
	"net/http"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/arc"
	"github.com/fivewire/fivewire/arc/arctest"
	"github.com/fivewire/fivewire/store"
)

// Waiting tasks have no goroutine, the queue is bounded, and each task runs in its turn.
func TestWaitingTasksHaveNoGoroutine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t, nil)
		release := make(chan struct{})
		var running atomic.Int32
		s.HandleTasks("a-01", arc.TaskHandlerFunc(func(ctx context.Context, _ *arc.TaskRun) error {
			running.Add(1)
			select {
			case <-release:
			case <-ctx.Done():
			}
			return nil
		}))
		before := runtime.NumGoroutine()
		var ids []string
		for range 256 + 1024 {
			ids = append(ids, createTask(t, s, "a-01", "x"))
		}
		synctest.Wait()
		require.EqualValues(t, 256, running.Load())
		require.Less(t, runtime.NumGoroutine()-before, 300)
		rec := post(s, call("task.create", "a-01", `{"initialMessage":`+hello("x")+`}`))
		require.Equal(t, http.StatusServiceUnavailable, rec.Code)
		require.Equal(t, "5", rec.Header().Get("Retry-After"))
		e := fault(t, rec, arc.ErrAgentCapacityExceeded)
		require.Contains(t, string(e.Details), `"resource":"work","scope":"principal"`)
		require.Nil(t, cancelTask(s, "a-01", ids[1000]).Error)
		ids = append(ids, createTask(t, s, "a-01", "x"))
		close(release)
		synctest.Wait()
		for i, id := range ids {
			want := arc.TaskCompleted
			if i == 1000 {
				want = arc.TaskCanceled
			}
			require.Equal(t, want, taskOf(t, s, "a-01", id).Status)
		}
		require.LessOrEqual(t, runtime.NumGoroutine(), before)
		require.Zero(t, usageOf(s, "items", "all").Used)
	})
}

// slowCreate is a store that takes 5 s to create a task.
type slowCreate struct{ store.Store }

func (s slowCreate) Create(ctx context.Context, key string, value []byte, ttl time.Duration) (store.Revision, error) {
	if strings.HasPrefix(key, "arc/task/") {
		time.Sleep(5 * time.Second)
	}
	return s.Store.Create(ctx, key, value, ttl)
}

// A task gets a place that becomes free while the task is being created.
func TestPlaceDuringCreation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t, &arc.ServerOptions{Persistence: arc.Persistence{Store: slowCreate{store.NewMemory()}}, Limits: arc.Limits{MaxTasks: 1}})
		s.HandleTasks("a-01", arctest.ScriptedTask(arctest.Sleep(2*time.Second)))
		createTask(t, s, "a-01", "x")
		id := createTask(t, s, "a-01", "y") // waits; before it exists, the first task ends
		time.Sleep(3 * time.Second)
		require.Equal(t, arc.TaskCompleted, taskOf(t, s, "a-01", id).Status)
		createTask(t, s, "a-01", "z")
		time.Sleep(3 * time.Second)
		require.Zero(t, usageOf(s, "items", "all").Used)
	})
}

// Tasks that a process takes over wait for a place, before new tasks.
func TestSurvivorHasPlacesToo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := store.NewMemory()
		start := func(tasks int64) *arc.Server {
			s := newServer(t, &arc.ServerOptions{Persistence: arc.Persistence{Store: db}, Limits: arc.Limits{MaxTasks: tasks}})
			s.Register(rerunAgent("a-01", arctest.ScriptedTask(arctest.Sleep(time.Minute))))
			return s
		}
		first := start(10)
		var ids []string
		for i := range 3 {
			ids = append(ids, createTask(t, first, "a-01", fmt.Sprint(i)))
		}
		synctest.Wait()
		require.NoError(t, first.Close())
		second := start(1)
		require.NoError(t, second.WaitRecovered(t.Context()))
		last := createTask(t, second, "a-01", "x")
		for i := range 3 {
			time.Sleep(time.Minute)
			synctest.Wait()
			done := 0
			for _, id := range ids {
				if taskOf(t, second, "a-01", id).Status == arc.TaskCompleted {
					done++
				}
			}
			require.Equal(t, i+1, done)
			require.NotEqual(t, arc.TaskCompleted, taskOf(t, second, "a-01", last).Status)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		require.Equal(t, arc.TaskCompleted, taskOf(t, second, "a-01", last).Status)
	})
}

// from returns a handler of requests from an address.
func from(address string, h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.RemoteAddr = address
		h.ServeHTTP(w, r)
	})
}

// A task of a failed process that waits for a place runs, although its agent has been removed since.
func TestWaitingTaskOfRemovedAgent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := store.NewMemory()
		first := &crashStore{Store: db}
		h := arc.TaskHandlerFunc(func(ctx context.Context, run *arc.TaskRun) error {
			_, err := arc.Step(ctx, run, "one", func(context.Context, string) (int, error) { return 1, nil })
			time.Sleep(time.Minute)
			return err
		})
		a := newServer(t, &arc.ServerOptions{Persistence: arc.Persistence{Store: first, LeaseTTL: 3 * time.Second}})
		b := newServer(t, &arc.ServerOptions{Persistence: arc.Persistence{Store: db, LeaseTTL: 3 * time.Second}, Limits: arc.Limits{MaxTasks: 1}})
		a.HandleTasks("a-01", h)
		b.HandleTasks("a-01", h)
		ids := []string{createTask(t, a, "a-01", "x"), createTask(t, a, "a-01", "x")}
		synctest.Wait()
		first.crash()
		time.Sleep(20 * time.Second)
		require.True(t, b.Unregister("a-01"))
		time.Sleep(3 * time.Minute)
		b.HandleTasks("a-01", h)
		for _, id := range ids {
			require.Equal(t, arc.TaskCompleted, taskOf(t, b, "a-01", id).Status)
		}
	})
}

// The place of a task that an input resumes after a restart is one of its owner, also for an input of another caller.
func TestPlaceOfInputFromElsewhere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := store.NewMemory()
		start := func() *arc.Server {
			s := newServer(t, &arc.ServerOptions{Persistence: arc.Persistence{Store: db},
				Limits: arc.Limits{MaxTasksPerPrincipal: 1}})
			s.HandleTasks("a-01", arc.TaskHandlerFunc(func(ctx context.Context, run *arc.TaskRun) error {
				if run.Message().Text() == "x" {
					_, err := run.WaitInput(ctx, "more")
					return err
				}
				return nil
			}))
			return s
		}
		one, two := "192.0.2.1:1", "192.0.2.2:1"
		first := start()
		id := createTask(t, from(one, first), "a-01", "x")
		synctest.Wait()
		require.NoError(t, first.Close())
		second := start()
		require.NoError(t, second.WaitRecovered(t.Context()))
		require.Nil(t, send(from(two, second), "a-01", id, "y").Error)
		synctest.Wait()
		require.Equal(t, arc.TaskCompleted, taskOf(t, second, "a-01", id).Status)
		for range 3 {
			id = createTask(t, from(two, second), "a-01", "z")
			synctest.Wait()
			require.Equal(t, arc.TaskCompleted, taskOf(t, second, "a-01", id).Status)
		}
	})
}
