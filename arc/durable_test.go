// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package arc_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/arc"
	"github.com/fivewire/fivewire/arc/arctest"
	faults "github.com/fivewire/fivewire/conformance/fault"
	"github.com/fivewire/fivewire/store"
)

// createTaskWith creates a task with a further member of its params.
func createTaskWith(t *testing.T, s *arc.Server, agent, member string) string {
	t.Helper()
	return result(t, post(s, call("task.create", agent, `{"initialMessage":`+hello("x")+`,`+member+`}`)), "task.create").Task.ID
}

// bytesOf returns the bytes that one of n calls of f allocates.
func bytesOf(n int, f func()) float64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range n {
		f()
	}
	runtime.ReadMemStats(&after)
	return float64(after.TotalAlloc-before.TotalAlloc) / float64(n)
}

// An event costs the same with 4 MiB of metadata as without.
func TestMetadataCostsEventsNothing(t *testing.T) {
	cost := func(metadata string) float64 {
		var perEvent float64
		done := make(chan struct{})
		s := newServer(t, &arc.ServerOptions{Persistence: arc.Persistence{Store: store.NewMemory()}})
		s.HandleTasks("a-01", arc.TaskHandlerFunc(func(ctx context.Context, run *arc.TaskRun) error {
			defer close(done)
			require.Len(t, run.Metadata(), len(metadata))
			perEvent = bytesOf(200, func() { require.NoError(t, run.AddProgress(ctx, "x")) })
			return nil
		}))
		createTaskWith(t, s, "a-01", `"metadata":`+metadata)
		<-done
		return perEvent
	}
	without := cost(`{}`)
	with := cost(`{"x":"` + strings.Repeat("x", 4<<20) + `"}`)
	require.Less(t, with, 1.1*without+1<<10)
}

// Metadata survives a restart and expires with the task. The task continues after the lease of the failed process, or at once if
// no other process shares the store.
func TestMetadataSurvivesRestart(t *testing.T) {
	for _, p := range []arc.Persistence{{LeaseTTL: 3 * time.Second}, {SingleInstance: true}} {
		synctest.Test(t, func(t *testing.T) {
			db := store.NewMemory()
			var got []string
			start := func(db store.Store) *arc.Server {
				p.Store, p.TaskRetention = db, time.Hour
				s := newServer(t, &arc.ServerOptions{Persistence: p})
				s.HandleTasks("a-01", arc.TaskHandlerFunc(func(ctx context.Context, run *arc.TaskRun) error {
					got = append(got, string(run.Metadata()))
					_, err := run.WaitInput(ctx, "text")
					return err
				}))
				return s
			}
			dying := &crashStore{Store: db}
			id := createTaskWith(t, start(dying), "a-01", `"metadata":{"a":1}`)
			synctest.Wait()
			dying.crash()
			time.Sleep(p.LeaseTTL * 2)
			second := start(db)
			require.NoError(t, second.WaitRecovered(t.Context()))
			require.Nil(t, send(second, "a-01", id, "go on").Error)
			synctest.Wait()
			require.Equal(t, []string{`{"a":1}`, `{"a":1}`}, got)
			require.Equal(t, arc.TaskCompleted, taskOf(t, second, "a-01", id).Status)
			time.Sleep(2 * time.Hour)
			records, err := db.Read(t.Context(), "arc/metadata/"+id, 0, 1)
			require.NoError(t, err)
			require.Empty(t, records)
		})
	}
}

// An event that is recorded and not queued when its process exits is sent by the next owner, in order
// and once, also if another process has added events before.
func TestRecordedEventsAreSent(t *testing.T) {
	for _, isEnd := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			db := store.NewMemory()
			h := &hooks{once: true}
			start := func(db store.Store) *arc.Server {
				s := newServer(t, &arc.ServerOptions{Persistence: arc.Persistence{Store: db, LeaseTTL: 3 * time.Second}, Webhook: h.withStatic(arc.StaticWebhook{ID: "all", CallbackURL: "https://all.test/", TargetAgent: "ops-01"})})
				s.HandleTasks("a-01", arc.TaskHandlerFunc(func(ctx context.Context, run *arc.TaskRun) error {
					if _, err := run.WaitInput(ctx, "text"); err != nil {
						return err
					}
					if err := run.AddArtifact(ctx, &arc.Artifact{Name: "one"}); err != nil {
						return err
					}
					if isEnd {
						return nil
					}
					_, err := run.WaitInput(ctx, "more")
					return err
				}))
				return s
			}
			dying := &crashStore{Store: db}
			first := start(dying)
			id := createTask(t, first, "a-01", "x")
			subscribe(t, first, "a-01", id, "https://one.test/", `["TASK_RESUMED","NEW_ARTIFACT","TASK_COMPLETED"]`)
			synctest.Wait()
			require.Equal(t, []string{"all.test TASK_CREATED SUBMITTED", "all.test TASK_STARTED WORKING", "all.test STATUS_CHANGE WORKING",
				"all.test TASK_PAUSED INPUT_REQUIRED", "all.test STATUS_CHANGE INPUT_REQUIRED"}, h.take())
			dying.mu.Lock()
			dying.at = "arc/outbox/items/" // the process exits before it queues the next event
			dying.mu.Unlock()
			send(first, "a-01", id, "go")
			synctest.Wait()
			second := start(db)
			time.Sleep(10 * time.Second)
			require.NoError(t, second.WaitRecovered(t.Context()))
			synctest.Wait()
			var one, all []string
			for _, line := range h.take() {
				if strings.HasPrefix(line, "one.test ") {
					one = append(one, strings.TrimPrefix(line, "one.test "))
				} else {
					all = append(all, strings.TrimPrefix(line, "all.test "))
				}
			}
			want := []string{"TASK_RESUMED WORKING", "NEW_ARTIFACT WORKING"}
			wantAll := []string{"NEW_MESSAGE WORKING", "TASK_RESUMED WORKING", "STATUS_CHANGE WORKING", "NEW_ARTIFACT WORKING",
				"TASK_PAUSED INPUT_REQUIRED", "STATUS_CHANGE INPUT_REQUIRED"}
			if isEnd {
				want = append(want, "TASK_COMPLETED COMPLETED")
				wantAll = append(wantAll[:4], "TASK_COMPLETED COMPLETED", "STATUS_CHANGE COMPLETED")
			}
			require.Equal(t, want, one)
			require.Equal(t, wantAll, all)
		})
	}
}

// A failure of the store delays a notification of a running task, which has no later event.
func TestEventIsQueuedAfterFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var isDown atomic.Bool
		plan := &faults.Plan{Seed: 1, Rules: []faults.Rule{{Op: "append", When: func(_, stream string) bool {
			return isDown.Load() && strings.HasPrefix(stream, "arc/outbox/items/")
		}}}}
		h := &hooks{}
		o := &arc.ServerOptions{Persistence: arc.Persistence{Store: faults.Store(store.NewMemory(), plan)}}
		o.Webhook = h.withStatic(arc.StaticWebhook{ID: "all", CallbackURL: "https://all.test/", TargetAgent: "ops-01"})
		s := newServer(t, o)
		s.HandleTasks("a-01", arc.TaskHandlerFunc(func(ctx context.Context, run *arc.TaskRun) error {
			time.Sleep(time.Second)
			isDown.Store(true)
			if err := run.AddProgress(ctx, "half"); err != nil {
				return err
			}
			<-ctx.Done()
			return ctx.Err()
		}))
		createTask(t, s, "a-01", "x")
		time.Sleep(time.Minute)
		require.Len(t, h.take(), 3)
		isDown.Store(false)
		time.Sleep(time.Minute)
		require.Equal(t, []string{"all.test NEW_MESSAGE WORKING"}, h.take())
	})
}

// The end of a task whose write the store refuses is written again.
func TestRefusedEndIsRepeated(t *testing.T) {
	for _, failure := range []error{nil, arc.Errorf(arc.ErrTaskExecutionFailed, "boom")} {
		synctest.Test(t, func(t *testing.T) {
			var isDown atomic.Bool
			plan := &faults.Plan{Seed: 1, Rules: []faults.Rule{{Op: "update", When: func(_, key string) bool {
				return isDown.Load() && strings.HasPrefix(key, "arc/task/")
			}}}}
			db := store.NewMemory()
			s := newServer(t, &arc.ServerOptions{Persistence: arc.Persistence{Store: faults.Store(db, plan)}})
			runs := 0
			s.HandleTasks("a-01", arc.TaskHandlerFunc(func(context.Context, *arc.TaskRun) error {
				runs++
				isDown.Store(true)
				return failure
			}))
			id := createTask(t, s, "a-01", "x")
			time.Sleep(30 * time.Second)
			require.Equal(t, arc.TaskWorking, taskOf(t, s, "a-01", id).Status)
			isDown.Store(false)
			time.Sleep(time.Minute)
			task := taskOf(t, s, "a-01", id)
			if failure == nil {
				require.Equal(t, arc.TaskCompleted, task.Status)
			} else {
				require.Equal(t, "boom", task.Error.Message)
			}
			require.Equal(t, 1, runs)
			isDown.Store(true)
			createTask(t, s, "a-01", "y")
			time.Sleep(time.Second)
			begin := time.Now()
			require.NoError(t, errors.Join(s.Close()))
			require.Less(t, time.Since(begin), 2*time.Second, fmt.Sprint(failure))
			isDown.Store(false)
			time.Sleep(time.Minute) // the change in doubt is repeated
		})
	}
}

// The events of an end that is recorded and not queued are sent to static webhooks as well.
func TestRecordedEndIsSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := store.NewMemory()
		h := &hooks{once: true}
		dying := &crashStore{Store: db}
		start := func(db store.Store) *arc.Server {
			s := newServer(t, &arc.ServerOptions{Persistence: arc.Persistence{Store: db, LeaseTTL: 3 * time.Second}, Webhook: h.withStatic(arc.StaticWebhook{ID: "all", CallbackURL: "https://all.test/", TargetAgent: "ops-01"})})
			s.HandleTasks("a-01", arc.TaskHandlerFunc(func(context.Context, *arc.TaskRun) error {
				time.Sleep(time.Second)
				dying.mu.Lock()
				defer dying.mu.Unlock()
				dying.at = "arc/outbox/items/"
				return nil
			}))
			return s
		}
		createTask(t, start(dying), "a-01", "x")
		time.Sleep(500 * time.Millisecond)
		require.Len(t, h.take(), 3)
		time.Sleep(time.Second)
		second := start(db)
		time.Sleep(10 * time.Second)
		require.NoError(t, second.WaitRecovered(t.Context()))
		synctest.Wait()
		require.Equal(t, []string{"all.test TASK_COMPLETED COMPLETED", "all.test STATUS_CHANGE COMPLETED"}, h.take())
	})
}

// A readCounter counts the records that are read.
type readCounter struct {
	store.Store
	records atomic.Int64
}

func (c *readCounter) Read(ctx context.Context, stream string, after uint64, limit int) ([]store.Record, error) {
	page, err := c.Store.Read(ctx, stream, after, limit)
	c.records.Add(int64(len(page)))
	return page, err
}

// The cost of an input does not depend on the inputs before it. A handler that runs again after a restart, and gets all
// inputs again, reads each a fixed number of times.
func TestWaitInputReadsNewInputsOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := &readCounter{Store: store.NewMemory()}
		start := func() *arc.Server {
			s := newServer(t, &arc.ServerOptions{Persistence: arc.Persistence{Store: db}})
			s.HandleTasks("a-01", arc.TaskHandlerFunc(func(ctx context.Context, run *arc.TaskRun) error {
				for {
					if _, err := run.WaitInput(ctx, "more"); err != nil {
						return err
					}
				}
			}))
			return s
		}
		s := start()
		id := createTask(t, s, "a-01", "go")
		reads := func(inputs int) int64 {
			start := db.records.Load()
			for range inputs {
				synctest.Wait()
				require.Nil(t, send(s, "a-01", id, "more").Error)
			}
			synctest.Wait()
			return db.records.Load() - start
		}
		first := reads(20)
		require.LessOrEqual(t, reads(20), first)
		restart := func() int64 {
			require.NoError(t, s.Close())
			s = start()
			time.Sleep(time.Minute)
			return reads(1)
		}
		first = restart() // 41 inputs
		reads(122)
		require.LessOrEqual(t, restart(), 4*first) // 164 inputs
	})
}

// A step after the end of a task is refused, and the task is removed in time.
func TestStepAfterEnd(t *testing.T) {
	for _, db := range []store.Store{nil, store.NewMemory()} {
		synctest.Test(t, func(t *testing.T) {
			s := newServer(t, &arc.ServerOptions{Persistence: arc.Persistence{Store: db, TaskRetention: time.Minute}})
			results := make(chan error, 1)
			s.HandleTasks("a-01", arc.TaskHandlerFunc(func(ctx context.Context, run *arc.TaskRun) error {
				<-ctx.Done()
				_, err := arc.Step(ctx, run, "x", func(context.Context, string) (int, error) { return 1, nil })
				results <- err
				return err
			}))
			id := createTask(t, s, "a-01", "x")
			synctest.Wait()
			require.Nil(t, cancelTask(s, "a-01", id).Error)
			time.Sleep(2 * time.Minute)
			require.ErrorIs(t, <-results, arc.ErrTaskAlreadyCanceled)
			fault(t, post(s, call("task.info", "a-01", `{"taskId":"`+id+`"}`)), arc.ErrTaskNotFound)
		})
	}
}

// A goroutine that outlives the handler of a completed task gets the same error from all that a run can do.
func TestRunOfCompletedTask(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t, nil)
		results := make(chan []error, 1)
		s.HandleTasks("a-01", arc.TaskHandlerFunc(func(ctx context.Context, run *arc.TaskRun) error {
			go func() {
				time.Sleep(time.Second)
				ctx := context.WithoutCancel(ctx)
				_, errStep := arc.Step(ctx, run, "x", func(context.Context, string) (int, error) { return 1, nil })
				_, errWait := run.WaitInput(ctx, "x")
				results <- []error{run.AddMessage(ctx, arc.AgentText("late")), run.AddArtifact(ctx, &arc.Artifact{}),
					run.Sleep(ctx, "x", time.Second), errStep, errWait}
			}()
			return run.Sleep(ctx, "x", time.Millisecond)
		}))
		createTask(t, s, "a-01", "x")
		for _, err := range <-results {
			require.ErrorIs(t, err, arc.ErrTaskAlreadyCompleted)
		}
	})
}

// The steps of a task are kept as long as it waits for its input, over a restart.
func TestStepsOfLongWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := store.NewMemory()
		var steps atomic.Int32
		start := func() *arc.Server {
			s := newServer(t, &arc.ServerOptions{Persistence: arc.Persistence{Store: db, LeaseTTL: 24 * time.Hour},
				Timing: arc.Timing{InputTimeout: -1}})
			s.HandleTasks("a-01", arc.TaskHandlerFunc(func(ctx context.Context, run *arc.TaskRun) error {
				_, err := arc.Step(ctx, run, "x", func(context.Context, string) (int32, error) { return steps.Add(1), nil })
				if err == nil {
					_, err = run.WaitInput(ctx, "more")
				}
				return err
			}))
			return s
		}
		first := start()
		id := createTask(t, first, "a-01", "x")
		synctest.Wait()
		require.NoError(t, first.Close())
		second := start()
		require.NoError(t, second.WaitRecovered(t.Context()))
		time.Sleep(40 * 24 * time.Hour)
		require.Nil(t, send(second, "a-01", id, "y").Error)
		synctest.Wait()
		require.Equal(t, arc.TaskCompleted, taskOf(t, second, "a-01", id).Status)
		require.EqualValues(t, 1, steps.Load())
	})
}

// messagesIn returns how many messages a stream has.
func messagesIn(t *testing.T, db store.Store, stream string) int {
	t.Helper()
	list, err := db.Read(t.Context(), stream, 0, 10)
	require.NoError(t, err)
	return len(list)
}

// Without an end of their retention, tasks and chats keep their messages.
func TestKeptTasksAndChats(t *testing.T) {
	for _, db := range []store.Store{nil, store.NewMemory()} {
		synctest.Test(t, func(t *testing.T) {
			s := newServer(t, &arc.ServerOptions{Persistence: arc.Persistence{Store: db, TaskRetention: -1, ChatRetention: -1}})
			s.HandleTasks("a-01", arctest.ScriptedTask(arctest.AddMessage("half")))
			s.HandleChats("a-01", counting(0))
			id := createTask(t, s, "a-01", "x")
			startChat(s, "a-01", "c-1", "x")
			require.Nil(t, endChat(s, "a-01", "c-1").Error)
			time.Sleep(time.Minute)
			require.Len(t, taskOf(t, s, "a-01", id).Messages, 2)
			if db == nil {
				return
			}
			for e, err := range db.List(t.Context(), "arc/chat/") {
				require.NoError(t, err)
				require.Equal(t, 2, messagesIn(t, db, strings.Replace(e.Key, "/chat/", "/said/", 1)))
			}
		})
	}
}

// The messages of an ended task are removed in time, although the store fails for a while.
func TestRemovalAfterFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := store.NewMemory()
		plan := &faults.Plan{Rules: []faults.Rule{{Op: "expire", Match: "arc/items/", Limit: 3, Action: faults.ErrorBefore}}}
		s := newServer(t, &arc.ServerOptions{Persistence: arc.Persistence{
			Store: faults.Store(db, plan), TaskRetention: time.Hour}})
		s.HandleTasks("a-01", arctest.ScriptedTask(arctest.AddMessage("half")))
		id := createTask(t, s, "a-01", "x")
		time.Sleep(time.Minute)
		require.Equal(t, 2, messagesIn(t, db, "arc/items/"+id))
		time.Sleep(time.Hour)
		require.Zero(t, messagesIn(t, db, "arc/items/"+id))
	})
}
