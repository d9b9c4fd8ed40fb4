// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package arc_test

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
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

// beforeUpdate does something before keys of some prefix are updated.
type beforeUpdate struct {
	store.Store
	prefix string
	do     func()
}

func (b *beforeUpdate) Update(ctx context.Context, key string, value []byte, rev store.Revision, ttl time.Duration) (store.Revision, error) {
	if do := b.do; strings.HasPrefix(key, b.prefix) && do != nil {
		b.do = nil
		do()
	}
	return b.Store.Update(ctx, key, value, rev, ttl)
}

// storedTask returns the record of a task.
func storedTask(t *testing.T, db store.Store, id string) (r struct {
	Subs, EndedSubs []struct{ ID string }
}) {
	entry, err := db.Get(t.Context(), "arc/task/"+id)
	require.NoError(t, err)
	entry, err = store.Content(entry)
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(entry.Value, &r))
	return r
}

// twoProcesses returns two servers of one store, the first of which runs the tasks.
func twoProcesses(t *testing.T, h *hooks, task arc.TaskHandlerFunc) (a, b *arc.Server, bStore *beforeUpdate) {
	db := store.NewMemory()
	bStore = &beforeUpdate{Store: db, prefix: "arc/task/"}
	var servers []*arc.Server
	for _, s := range []store.Store{db, bStore} {
		srv := newServer(t, &arc.ServerOptions{Persistence: arc.Persistence{Store: s, LeaseTTL: 3 * time.Second}, Webhook: h.options()})
		srv.HandleTasks("a-01", task)
		servers = append(servers, srv)
	}
	return servers[0], servers[1], bStore
}

// An input that another process accepted reaches the task at once.
func TestInputFromOtherProcess(t *testing.T) {
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

// A task that another process canceled is canceled at every process at once, and its work ends.
func TestCancelFromOtherProcess(t *testing.T) {
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

// A subscriber at one process receives the later events of the other and always the end (ARC-D41),
// even if the other process missed the notice of the subscription.
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
				time.Sleep(time.Second)
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

// A subscriber receives no event from before its subscription, also if another process may not have queued that for the
// webhooks of the configuration.
func TestSubscriberReceivesLaterEventsOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &hooks{once: true}
		db := store.NewMemory()
		var servers []*arc.Server
		for range 2 {
			s := newServer(t, &arc.ServerOptions{Persistence: arc.Persistence{Store: db, LeaseTTL: 3 * time.Second},
				Webhook: h.withStatic(arc.StaticWebhook{ID: "ops", CallbackURL: "https://ops.test/", TargetAgent: "ops-01"})})
			s.HandleTasks("a-01", arctest.ScriptedTask(arctest.WaitInput("x")))
			servers = append(servers, s)
		}
		id := createTask(t, servers[0], "a-01", "x")
		synctest.Wait()
		subscribe(t, servers[1], "a-01", id, "https://one.test/", `["TASK_CREATED","TASK_STARTED","TASK_PAUSED","TASK_CANCELED"]`)
		require.Nil(t, cancelTask(servers[1], "a-01", id).Error)
		time.Sleep(time.Second)
		synctest.Wait()
		events := slices.DeleteFunc(h.take(), func(s string) bool { return strings.HasPrefix(s, "ops.test") })
		require.Equal(t, []string{"one.test TASK_CANCELED CANCELED"}, events)
	})
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

// A process keeps its lease while it reads all of its tasks slowly.
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
		var ids []string
		for range 10 {
			ids = append(ids, createTask(t, servers[0], "a-01", "x"))
		}
		synctest.Wait()
		slow.slow.Store(true)
		defer func() { // before the first server is closed: virtual time stops at a wait for a mutex
			slow.slow.Store(false)
			time.Sleep(2 * time.Second)
		}()
		for range 20 {
			time.Sleep(time.Second)
			require.NoError(t, servers[1].WaitRecovered(t.Context()))
			for _, id := range ids {
				require.Equal(t, arc.TaskWorking, taskOf(t, servers[1], "a-01", id).Status)
			}
		}
	})
}
