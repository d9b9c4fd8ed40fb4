// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package arc_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/arc"
	"github.com/fivewire/fivewire/store"
)

// diesAnswering is the store of a process that dies when it has done what a
// request asks for and is about to keep the answer.
type diesAnswering struct{ crashStore }

func (d *diesAnswering) Update(ctx context.Context, key string, value []byte, rev store.Revision, ttl time.Duration) (store.Revision, error) {
	if strings.HasPrefix(key, "arc/answer/") {
		d.crash()
	}
	return d.crashStore.Update(ctx, key, value, rev, ttl)
}

// A process dies between a task.create and its answer. The client asks again, and
// another process answers with the task that is there, which runs once.
func TestCreateTakenOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := store.NewMemory()
		var runs atomic.Int32
		start := func(s store.Store) *arc.Server {
			srv := newServer(t, &arc.ServerOptions{Persistence: arc.Persistence{Store: s, ResultTTL: 10 * time.Minute, LeaseTTL: 3 * time.Second}, RerunTasks: true})
			srv.HandleTasks("a-01", arc.TaskHandlerFunc(func(ctx context.Context, run *arc.TaskRun) error {
				if run.Redelivered() {
					runs.Add(1)
				} else {
					<-ctx.Done() // the process dies before it gets far
				}
				return nil
			}))
			return srv
		}
		dying := &diesAnswering{crashStore{Store: db}}
		a, b := start(dying), start(db)
		create := func(s *arc.Server, text string) string { return createTask(t, s, "a-01", text) }
		first, asked := create(a, "x"), time.Now()
		require.Equal(t, first, create(b, "x"))
		require.Less(t, time.Since(asked), 4*time.Second, "no longer than the dead one counts as alive")
		n, err := b.WaitRecovered(t.Context())
		require.NoError(t, err)
		require.Equal(t, 1, n)
		synctest.Wait()
		require.EqualValues(t, 1, runs.Load())
		require.Equal(t, arc.TaskCompleted, taskOf(t, b, "a-01", first).Status)
		require.Equal(t, first, create(b, "x"))
		require.NotEqual(t, first, create(b, "y"))
	})
}

// diesCreating is the store of a process that dies when it has begun a task and
// is about to keep its first message.
type diesCreating struct{ crashStore }

func (d *diesCreating) Append(ctx context.Context, stream, id string, value []byte, ttl time.Duration) (uint64, error) {
	if strings.HasPrefix(stream, "arc/items/") {
		d.crash()
	}
	return d.crashStore.Append(ctx, stream, id, value, ttl)
}

// A process dies in the middle of a task.create: the task is whole from the first
// write on.
func TestCreateCutShort(t *testing.T) {
	for _, rerun := range []bool{false, true} {
		for _, asked := range []bool{false, true} { // before or after it is recovered
			synctest.Test(t, func(t *testing.T) {
				db := store.NewMemory()
				start := func(s store.Store) *arc.Server {
					srv := newServer(t, &arc.ServerOptions{Persistence: arc.Persistence{Store: s, ResultTTL: 10 * time.Minute, LeaseTTL: 3 * time.Second}, RerunTasks: rerun})
					srv.HandleTasks("a-01", arc.TaskHandlerFunc(func(ctx context.Context, run *arc.TaskRun) error {
						return run.AddMessage(ctx, arc.AgentText("did "+run.Message().Text()))
					}))
					return srv
				}
				request := call("task.create", "a-01", `{"initialMessage":`+hello("x")+`}`)
				fault(t, post(start(&diesCreating{crashStore{Store: db}}), request), arc.ErrInternal)
				time.Sleep(4 * time.Second)
				b := start(db)
				id := ""
				create := func() { id = result(t, post(b, request), "task.create").Task.ID }
				if asked {
					create()
				}
				n, err := b.WaitRecovered(t.Context())
				require.NoError(t, err)
				require.Equal(t, 1, n)
				synctest.Wait()
				if !asked {
					create()
				}
				task := taskOf(t, b, "a-01", id)
				require.Equal(t, "x", task.Messages[0].Text())
				if rerun {
					require.Equal(t, arc.TaskCompleted, task.Status)
					require.Len(t, task.Messages, 2)
					require.Equal(t, "did x", task.Messages[1].Text())
				} else {
					require.Equal(t, arc.TaskFailed, task.Status)
					require.Len(t, task.Messages, 1)
				}
			})
		}
	}
}

// A task whose creation fails is not there.
func TestCreateFails(t *testing.T) {
	db := &failsOnce{Store: store.NewMemory(), stream: "arc/items/"}
	s := newServer(t, &arc.ServerOptions{Persistence: arc.Persistence{Store: db}, RerunTasks: true})
	s.HandleTasks("a-01", arc.TaskHandlerFunc(func(context.Context, *arc.TaskRun) error { panic("it was not created") }))
	fault(t, post(s, call("task.create", "a-01", `{"initialMessage":`+hello("x")+`}`)), arc.ErrInternal)
	n, err := s.WaitRecovered(t.Context())
	require.NoError(t, err)
	require.Zero(t, n)
	for e, err := range db.List(t.Context(), "arc/task/") {
		require.NoError(t, err)
		t.Errorf("left behind: %s", e.Key)
	}
}

// failsOnce is a store whose first Append to some streams fails.
type failsOnce struct {
	store.Store
	stream string
	failed atomic.Bool
}

func (f *failsOnce) Append(ctx context.Context, stream, id string, value []byte, ttl time.Duration) (uint64, error) {
	if strings.HasPrefix(stream, f.stream) && !f.failed.Swap(true) {
		return 0, errors.New("the store is away")
	}
	return f.Store.Append(ctx, stream, id, value, ttl)
}

// A process seems dead, because its lease is gone, and lives: another one has
// taken its task over. What the first one's work still does to the task has no
// effect, and its end is not the task's.
func TestTakenFromTheLiving(t *testing.T) {
	for name, seen := range map[string]error{"returns nil": nil, "returns an error": errors.New("lost")} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				db := store.NewMemory()
				const seemsDead = "arc/instance/first"
				begun, goOn := make(chan struct{}), make(chan struct{})
				added := make(chan error, 1)
				a := newServer(t, &arc.ServerOptions{Persistence: arc.Persistence{Store: db, InstanceID: "first"}, RerunTasks: true})
				a.HandleTasks("a-01", arc.TaskHandlerFunc(func(ctx context.Context, run *arc.TaskRun) error {
					close(begun)
					select {
					case <-goOn:
					case <-ctx.Done():
					}
					added <- run.AddMessage(ctx, arc.AgentText("too late"))
					<-ctx.Done()
					return seen
				}))
				again := make(chan struct{})
				b := newServer(t, &arc.ServerOptions{Persistence: arc.Persistence{Store: db, InstanceID: "second"}, RerunTasks: true})
				b.HandleTasks("a-01", arc.TaskHandlerFunc(func(ctx context.Context, run *arc.TaskRun) error {
					select {
					case <-again:
					case <-ctx.Done():
					}
					return run.AddMessage(ctx, arc.AgentText("in time"))
				}))
				id := createTask(t, a, "a-01", "x")
				<-begun
				require.NoError(t, db.Delete(t.Context(), seemsDead, 0))
				n, err := b.WaitRecovered(t.Context())
				require.NoError(t, err)
				require.Equal(t, 1, n)

				close(goOn)
				require.ErrorContains(t, <-added, "taken over")
				synctest.Wait() // the first handler has returned
				require.Equal(t, arc.TaskWorking, taskOf(t, a, "a-01", id).Status)
				close(again)
				synctest.Wait()
				for _, s := range []*arc.Server{a, b} {
					task := taskOf(t, s, "a-01", id)
					require.Equal(t, arc.TaskCompleted, task.Status)
					require.Len(t, task.Messages, 2)
					require.Equal(t, "in time", task.Messages[1].Text())
				}
			})
		})
	}
}
