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
	"github.com/fivewire/fivewire/arc/arctest"
	"github.com/fivewire/fivewire/store"
)

// deaf is the store of a process that hears nothing of what others tell it.
type deaf struct{ store.Store }

func (d deaf) Wait(ctx context.Context, stream string, after uint64) error {
	if strings.HasPrefix(stream, "arc/told/") {
		<-ctx.Done()
		return ctx.Err()
	}
	return d.Store.Wait(ctx, stream, after)
}

// beforeCreate does something before keys of some prefix are created.
type beforeCreate struct {
	store.Store
	prefix string
	do     func()
}

func (b *beforeCreate) Create(ctx context.Context, key string, value []byte, ttl time.Duration) (store.Revision, error) {
	if strings.HasPrefix(key, b.prefix) && b.do != nil {
		b.do()
	}
	return b.Store.Create(ctx, key, value, ttl)
}

// twoProcesses returns two servers of one store, the first of which runs the
// tasks and does not hear the second.
func twoProcesses(t *testing.T, h *hooks, task arc.TaskHandlerFunc) (a, b *arc.Server, bStore *beforeCreate) {
	db := store.NewMemory()
	bStore = &beforeCreate{Store: db, prefix: "arc/sub/"}
	var servers []*arc.Server
	for _, s := range []store.Store{deaf{db}, bStore} {
		srv := newServer(t, &arc.ServerOptions{Persistence: arc.Persistence{Store: s, LeaseTTL: 3 * time.Second}, Webhook: h.options()})
		srv.HandleTasks("a-01", task)
		servers = append(servers, srv)
	}
	return servers[0], servers[1], bStore
}

// An input that another process took gets to the task though nobody said so.
func TestInputUnheard(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b, _ := twoProcesses(t, &hooks{}, func(ctx context.Context, run *arc.TaskRun) error {
			for range 2 {
				m, err := run.WaitInput(ctx, "x")
				if err != nil {
					return err
				}
				if err := run.AddMessage(ctx, arc.AgentText("got "+m.Text())); err != nil {
					return err
				}
			}
			return nil
		})
		id := createTask(t, a, "a-01", "x")
		for _, text := range []string{"tea", "milk"} {
			synctest.Wait()
			require.Nil(t, send(b, "a-01", id, text).Error)
			time.Sleep(4 * time.Second)
			synctest.Wait()
		}
		task := taskOf(t, b, "a-01", id)
		require.Equal(t, arc.TaskCompleted, task.Status)
		require.Len(t, task.Messages, 5)
		require.Equal(t, "got tea", task.Messages[2].Text())
		require.Equal(t, "got milk", task.Messages[4].Text())
	})
}

// The task gives up waiting at the moment when another process took its input:
// it gets that, and does not take it for the next one.
func TestInputAtTheLastMoment(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b, _ := twoProcesses(t, &hooks{}, func(ctx context.Context, run *arc.TaskRun) error {
			short, cancel := context.WithTimeout(ctx, time.Second)
			defer cancel()
			for range 2 {
				m, err := run.WaitInput(short, "x")
				if err != nil {
					return err
				}
				if err := run.AddMessage(ctx, arc.AgentText("got "+m.Text())); err != nil {
					return err
				}
				short = ctx
			}
			return nil
		})
		id := createTask(t, a, "a-01", "x")
		synctest.Wait()
		require.Nil(t, send(b, "a-01", id, "tea").Error)
		time.Sleep(1100 * time.Millisecond)
		task := taskOf(t, b, "a-01", id)
		require.Equal(t, arc.TaskInputRequired, task.Status)
		require.Equal(t, "got tea", task.Messages[2].Text())
		time.Sleep(10 * time.Second)
		require.Equal(t, arc.TaskInputRequired, taskOf(t, b, "a-01", id).Status)
		require.Nil(t, send(b, "a-01", id, "milk").Error)
		time.Sleep(4 * time.Second)
		task = taskOf(t, b, "a-01", id)
		require.Equal(t, arc.TaskCompleted, task.Status)
		require.Equal(t, "got milk", task.Messages[4].Text())
	})
}

// A task that another process canceled is over for everybody at once, and its
// work ends soon.
func TestCancelUnheard(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var cause error
		a, b, _ := twoProcesses(t, &hooks{}, func(ctx context.Context, run *arc.TaskRun) error {
			<-ctx.Done()
			cause = context.Cause(ctx)
			return nil
		})
		id := createTask(t, a, "a-01", "x")
		synctest.Wait()
		require.Nil(t, cancelTask(b, "a-01", id).Error)
		require.Equal(t, arc.TaskCanceled, taskOf(t, a, "a-01", id).Status)
		time.Sleep(4 * time.Second)
		synctest.Wait()
		require.ErrorIs(t, cause, arc.ErrTaskAlreadyCanceled)
	})
}

// Work that touches a task which another process canceled ends at once.
func TestCancelNoticed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var cause error
		goOn := make(chan struct{})
		a, b, _ := twoProcesses(t, &hooks{}, func(ctx context.Context, run *arc.TaskRun) error {
			select {
			case <-goOn:
			case <-ctx.Done():
			}
			if err := run.AddProgress(ctx, "half"); !errors.Is(err, arc.ErrTaskAlreadyCanceled) {
				return err
			}
			select {
			case <-ctx.Done():
				cause = context.Cause(ctx)
			default:
			}
			return nil
		})
		id := createTask(t, a, "a-01", "x")
		synctest.Wait()
		require.Nil(t, cancelTask(b, "a-01", id).Error)
		close(goOn)
		synctest.Wait()
		require.ErrorIs(t, cause, arc.ErrTaskAlreadyCanceled)
	})
}

// Who subscribes at one process is told of what happens at the other from then
// on, whether that one heard of it or not, and of the end in any case (ARC-D41).
func TestSubscribeElsewhere(t *testing.T) {
	for name, during := range map[string]bool{"the task ends afterwards": false, "the task ends meanwhile": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				goOn := make(chan struct{})
				h := &hooks{once: true}
				a, b, bStore := twoProcesses(t, h, func(ctx context.Context, run *arc.TaskRun) error {
					if err := run.AddProgress(ctx, "begun"); err != nil { // so that it knows its subscribers
						return err
					}
					select {
					case <-goOn:
					case <-ctx.Done():
					}
					return run.AddProgress(ctx, "half")
				})
				id := createTask(t, a, "a-01", "x")
				synctest.Wait()
				finish := func() {
					close(goOn)
					synctest.Wait()
				}
				if during {
					bStore.do = finish
				}
				subscribe(t, b, "a-01", id, "https://one.test/", `["NEW_MESSAGE","TASK_COMPLETED"]`)
				if !during {
					finish()
				}
				synctest.Wait()
				got := h.take()
				require.Equal(t, "one.test TASK_COMPLETED COMPLETED", got[len(got)-1])
				if !during {
					require.Contains(t, got, "one.test NEW_MESSAGE WORKING")
				}
			})
		})
	}
}

// slowTasks is the store of a process to which it takes a second to read a task.
type slowTasks struct {
	store.Store
	slow atomic.Bool
}

func (s *slowTasks) Get(ctx context.Context, key string) (store.Entry, error) {
	if s.slow.Load() && strings.HasPrefix(key, "arc/task/") {
		time.Sleep(time.Second)
	}
	return s.Store.Get(ctx, key)
}

// A process that takes long to look at all of its tasks counts as alive meanwhile.
func TestLeaseWhileLooking(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := store.NewMemory()
		slow := &slowTasks{Store: db}
		var servers []*arc.Server
		for _, s := range []store.Store{slow, db} {
			srv := newServer(t, &arc.ServerOptions{Persistence: arc.Persistence{Store: s, LeaseTTL: 3 * time.Second}})
			srv.HandleTasks("a-01", arctest.ScriptedTask(arctest.WaitCanceled()))
			servers = append(servers, srv)
		}
		for range 10 {
			createTask(t, servers[0], "a-01", "x")
		}
		synctest.Wait()
		slow.slow.Store(true)
		defer func() { // before the first server is closed: nobody waits for a mutex in virtual time
			slow.slow.Store(false)
			time.Sleep(2 * time.Second)
		}()
		for range 20 {
			time.Sleep(time.Second)
			n, err := servers[1].WaitRecovered(t.Context())
			require.NoError(t, err)
			require.Zero(t, n)
		}
	})
}
