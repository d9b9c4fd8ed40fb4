// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package arc_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/arc"
	"github.com/fivewire/fivewire/store"
)

// rerunAgent is an agent whose interrupted tasks all run again.
func rerunAgent(id string, h arc.TaskHandler) arc.Agent {
	return arc.Agent{AgentInfo: arc.AgentInfo{AgentID: id}, TaskHandler: h, RerunInterrupted: true}
}

// diesAnswering is the store of a process that crashes after the work of a request and before its
// answer is stored.
type diesAnswering struct{ crashStore }

func (d *diesAnswering) Update(ctx context.Context, key string, value []byte, rev store.Revision, ttl time.Duration) (store.Revision, error) {
	if strings.HasPrefix(key, "arc/once/") {
		d.crash()
	}
	return d.crashStore.Update(ctx, key, value, rev, ttl)
}

// A process crashes between a task.create and its answer. The client repeats the request, and
// another process answers with the existing task, which runs once.
func TestCreateTakenOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := store.NewMemory()
		var runs atomic.Int32
		start := func(s store.Store) *arc.Server {
			srv := newServer(t, &arc.ServerOptions{Persistence: arc.Persistence{Store: s, ResultTTL: 10 * time.Minute, LeaseTTL: 3 * time.Second}})
			srv.Register(rerunAgent("a-01", arc.TaskHandlerFunc(func(ctx context.Context, run *arc.TaskRun) error {
				if s != db {
					<-ctx.Done() // the process crashes early
					return context.Cause(ctx)
				}
				runs.Add(1)
				return nil
			})))
			return srv
		}
		dying := &diesAnswering{crashStore{Store: db}}
		a, b := start(dying), start(db)
		create := func(s *arc.Server, text string) string { return createTask(t, s, "a-01", text) }
		abandon(t, a, call("task.create", "a-01", `{"initialMessage":`+hello("x")+`}`))
		first, began := create(b, "x"), time.Now()
		require.Less(t, time.Since(began), time.Second)
		require.NoError(t, b.WaitRecovered(t.Context()))
		synctest.Wait()
		require.EqualValues(t, 1, runs.Load())
		require.Equal(t, arc.TaskCompleted, taskOf(t, b, "a-01", first).Status)
		require.Equal(t, first, create(b, "x"))
		require.NotEqual(t, first, create(b, "y"))
	})
}

// diesCreating is the store of a process that crashes after it created a task and before its first
// message is stored.
type diesCreating struct{ crashStore }

func (d *diesCreating) Append(ctx context.Context, stream, id string, value []byte, ttl time.Duration) (uint64, error) {
	if strings.HasPrefix(stream, "arc/items/") {
		d.crash()
	}
	return d.crashStore.Append(ctx, stream, id, value, ttl)
}

// A process crashes in the middle of a task.create: the task is complete from the first write.
func TestCreateCutShort(t *testing.T) {
	for _, asked := range []bool{false, true} { // before or after it is recovered
		synctest.Test(t, func(t *testing.T) {
			db := store.NewMemory()
			start := func(s store.Store) *arc.Server {
				srv := newServer(t, &arc.ServerOptions{Persistence: arc.Persistence{Store: s, ResultTTL: 10 * time.Minute, LeaseTTL: 3 * time.Second}})
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
			require.NoError(t, b.WaitRecovered(t.Context()))
			synctest.Wait()
			if !asked {
				create()
			}
			task := taskOf(t, b, "a-01", id)
			require.Equal(t, "x", task.Messages[0].Text())
			require.Equal(t, arc.TaskCompleted, task.Status)
			require.Len(t, task.Messages, 2)
			require.Equal(t, "did x", task.Messages[1].Text())
		})
	}
}

// A creation outlives a failure of the store in the middle: the task has its first message and runs, once.
func TestCreateOutlivesFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := &failsOnce{Store: store.NewMemory(), stream: "arc/items/"}
		s := newServer(t, &arc.ServerOptions{Persistence: arc.Persistence{Store: db}})
		var runs atomic.Int32
		s.HandleTasks("a-01", arc.TaskHandlerFunc(func(_ context.Context, run *arc.TaskRun) error {
			runs.Add(1)
			return nil
		}))
		id := createTask(t, s, "a-01", "x")
		require.True(t, db.failed.Load())
		synctest.Wait()
		task := taskOf(t, s, "a-01", id)
		require.Equal(t, arc.TaskCompleted, task.Status)
		require.Len(t, task.Messages, 1)
		require.EqualValues(t, 1, runs.Load())
	})
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

// The lease of a running process has expired, and another process owns its task. Later changes by
// the first process have no effect, and the end of its handler does not end the task.
func TestTakenFromTheLiving(t *testing.T) {
	for name, seen := range map[string]error{"returns nil": nil, "returns an error": errors.New("lost")} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				db := store.NewMemory()
				const seemsDead = "arc/lease/first"
				started, goOn := make(chan struct{}), make(chan struct{})
				added := make(chan error, 1)
				a := newServer(t, &arc.ServerOptions{Persistence: arc.Persistence{Store: db, InstanceID: "first"}})
				a.Register(rerunAgent("a-01", arc.TaskHandlerFunc(func(ctx context.Context, run *arc.TaskRun) error {
					close(started)
					select {
					case <-goOn:
					case <-ctx.Done():
					}
					added <- run.AddMessage(ctx, arc.AgentText("too late"))
					<-ctx.Done()
					return seen
				})))
				resume := make(chan struct{})
				b := newServer(t, &arc.ServerOptions{Persistence: arc.Persistence{Store: db, InstanceID: "second"}})
				b.Register(rerunAgent("a-01", arc.TaskHandlerFunc(func(ctx context.Context, run *arc.TaskRun) error {
					select {
					case <-resume:
					case <-ctx.Done():
					}
					return run.AddMessage(ctx, arc.AgentText("in time"))
				})))
				id := createTask(t, a, "a-01", "x")
				<-started
				require.NoError(t, db.Delete(t.Context(), seemsDead, 0))
				require.NoError(t, b.WaitRecovered(t.Context()))

				close(goOn)
				require.ErrorContains(t, <-added, "taken over")
				synctest.Wait() // the first handler has returned
				require.Equal(t, arc.TaskWorking, taskOf(t, a, "a-01", id).Status)
				close(resume)
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

// lapsesSending is the store of a process whose lease expires while it gives an input to a task, and that crashes after it
// has changed the task.
type lapsesSending struct {
	crashStore
	lapse func() // nil before the input
	once  sync.Once
}

func (l *lapsesSending) Update(ctx context.Context, key string, value []byte, rev store.Revision, ttl time.Duration) (store.Revision, error) {
	if l.lapse == nil || !strings.HasPrefix(key, "arc/task/") {
		return l.crashStore.Update(ctx, key, value, rev, ttl)
	}
	l.once.Do(l.lapse)
	rev, err := l.crashStore.Update(ctx, key, value, rev, ttl)
	if err == nil {
		l.crash()
	}
	return rev, err
}

// The lease of a process expires while it accepts an input, and a survivor removes its index entry. Its change lands late,
// and it crashes: the survivor continues the task. The process of the input takes its own task back from the survivor, or
// the task is that of the survivor.
func TestInputAfterExpiryOfLease(t *testing.T) {
	for _, isOwn := range []bool{true, false} {
		t.Run(fmt.Sprint(isOwn), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				db := store.NewMemory()
				start := func(s store.Store, name string) *arc.Server {
					srv := newServer(t, &arc.ServerOptions{Persistence: arc.Persistence{Store: s, InstanceID: name, LeaseTTL: 3 * time.Second}})
					srv.HandleTasks("a-01", arc.TaskHandlerFunc(asking))
					return srv
				}
				lapsing := &lapsesSending{crashStore: crashStore{Store: db}}
				sender, survivor := start(lapsing, "first"), start(db, "second")
				owner := survivor
				if isOwn {
					owner = sender
				}
				id := createTask(t, owner, "a-01", "x")
				synctest.Wait()
				lapsing.lapse = func() {
					require.NoError(t, db.Delete(t.Context(), "arc/lease/first", 0))
					require.NoError(t, survivor.WaitRecovered(t.Context()))
				}
				send(sender, "a-01", id, "tea")
				time.Sleep(10 * time.Second)
				synctest.Wait()
				task := taskOf(t, survivor, "a-01", id)
				require.Equal(t, arc.TaskInputRequired, task.Status, "it waits for the second input")
				require.Equal(t, "got tea", task.Messages[2].Text())
			})
		})
	}
}

// The store refuses messages of handlers until the lease of the process is lost. The handlers return that error, and
// their tasks run again in the next epoch.
func TestTaskOutlivesEpoch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const tasks = 20
		db := &refusesAnswers{Store: store.NewMemory()}
		db.isAway.Store(true)
		s := newServer(t, &arc.ServerOptions{Persistence: arc.Persistence{Store: db, InstanceID: "first"}})
		s.Register(rerunAgent("a-01", arc.TaskHandlerFunc(func(ctx context.Context, run *arc.TaskRun) error {
			return run.AddMessage(ctx, arc.AgentText("done"))
		})))
		var ids []string
		for i := range tasks {
			ids = append(ids, createTask(t, s, "a-01", fmt.Sprint(i)))
		}
		synctest.Wait()
		require.NoError(t, db.Delete(t.Context(), "arc/lease/first", 0))
		time.Sleep(10 * time.Second) // the next renewal
		db.isAway.Store(false)
		time.Sleep(time.Minute)
		for _, id := range ids {
			task := taskOf(t, s, "a-01", id)
			require.Equal(t, arc.TaskCompleted, task.Status, "error: %v", task.Error)
			require.Len(t, task.Messages, 2)
		}
	})
}

// refusesAnswers is a store that takes no items of tasks but the first ones while it is away.
type refusesAnswers struct {
	store.Store
	isAway atomic.Bool
}

func (r *refusesAnswers) Append(ctx context.Context, stream, id string, value []byte, ttl time.Duration) (uint64, error) {
	if strings.HasPrefix(stream, "arc/items/") && !strings.HasPrefix(id, "first") && r.isAway.Load() {
		return 0, errors.New("the store is away")
	}
	return r.Store.Append(ctx, stream, id, value, ttl)
}

// keepsIndex is the store of a process that cannot remove index entries.
type keepsIndex struct{ crashStore }

func (k *keepsIndex) Delete(ctx context.Context, key string, rev store.Revision) error {
	if strings.HasPrefix(key, "arc/work/") {
		return errors.New("no connection")
	}
	return k.crashStore.Delete(ctx, key, rev)
}

// Two failed processes have left an index entry for a waiting task. The third one, which takes both over, removes its own
// entry at the end of the task.
func TestWaitingTaskOfTwoEntries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := store.NewMemory()
		start := func(s store.Store) *arc.Server {
			srv := newServer(t, &arc.ServerOptions{Persistence: arc.Persistence{Store: s, LeaseTTL: 3 * time.Second}})
			srv.HandleTasks("a-01", arc.TaskHandlerFunc(func(ctx context.Context, run *arc.TaskRun) error {
				_, err := run.WaitInput(ctx, "more")
				return err
			}))
			return srv
		}
		var id string
		for range 2 {
			failing := &keepsIndex{crashStore{Store: db}}
			s := start(failing)
			if id == "" {
				id = createTask(t, s, "a-01", "x")
			}
			time.Sleep(5 * time.Second)
			require.Equal(t, arc.TaskInputRequired, taskOf(t, s, "a-01", id).Status)
			failing.crash()
			require.NoError(t, s.Close())
		}
		time.Sleep(10 * time.Second)
		last := start(db)
		time.Sleep(10 * time.Second)
		require.Nil(t, cancelTask(last, "a-01", id).Error)
		time.Sleep(10 * time.Second)
		for e := range db.List(t.Context(), "arc/work/") {
			t.Errorf("the index has %s", e.Key)
		}
	})
}

// tellsNothing is the store of a process whose messages to other processes do not arrive.
type tellsNothing struct{ beforeUpdate }

func (s *tellsNothing) Append(ctx context.Context, stream, id string, value []byte, ttl time.Duration) (uint64, error) {
	if strings.HasPrefix(stream, "arc/tell/") {
		return 0, errors.New("no connection")
	}
	return s.beforeUpdate.Append(ctx, stream, id, value, ttl)
}

// A waiting task that continues in the process of its input leaves nothing in the process that kept it: neither if that has
// taken it over while the input arrived, nor, after a while, if it is not notified of the input.
func TestWaitingTaskLeavesItsKeeper(t *testing.T) {
	for _, name := range []string{"kept by another since", "not told", "not told until the record is gone"} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newCluster(t, asking)
				first, _ := c.start()
				id := c.create(first)
				synctest.Wait()
				require.NoError(t, first.Shutdown(t.Context()))
				keep := func() *arc.Server {
					keeper, _ := c.start()
					require.NoError(t, keeper.WaitRecovered(t.Context()))
					return keeper
				}
				keeper, common := keep(), c.db
				db := beforeUpdate{Store: common, prefix: "arc/task/"}
				wait := time.Second
				if strings.HasPrefix(name, "not told") {
					c.db = &tellsNothing{db}
					wait = 2 * time.Hour
				} else {
					db.do = func() {
						require.NoError(t, keeper.Shutdown(t.Context()))
						c.db = common
						keep()
					}
					c.db = &db
				}
				last, _ := c.start()
				for range 2 {
					require.Nil(t, c.send(last, id, "tea").Error)
					synctest.Wait()
				}
				require.Equal(t, arc.TaskCompleted, c.task(last, id).Status)
				if strings.HasSuffix(name, "gone") {
					record, err := common.Get(t.Context(), "arc/task/"+id)
					require.NoError(t, err)
					require.NoError(t, common.Delete(t.Context(), record.Key, record.Revision))
				}
				time.Sleep(wait)
				for e := range common.List(t.Context(), "arc/work/") {
					t.Errorf("the index has %s", e.Key)
				}
			})
		})
	}
}
