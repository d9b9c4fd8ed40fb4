// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package arc_test

import (
	"context"
	"fmt"
	"iter"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/arc"
	"github.com/fivewire/fivewire/internal/race"
	"github.com/fivewire/fivewire/store"
)

// A cluster is processes that share a store.
type cluster struct {
	t     *testing.T
	db    store.Store
	agent arc.Agent
}

// start starts a process; a crash of its store is a crash of the process.
func (c *cluster) start() (*arc.Server, *crashStore) {
	db := &crashStore{Store: c.db}
	s := newServer(c.t, &arc.ServerOptions{Persistence: arc.Persistence{Store: db, LeaseTTL: 3 * time.Second},
		Auth: arc.Auth{Authenticator: arc.BearerAuthenticator(arc.TokenVerifierFunc(func(context.Context, string) (*arc.Principal, error) {
			return &arc.Principal{ID: "user", Tenant: "t", Scopes: arc.RequiredScopes(arc.MethodTaskCreate), Claims: map[string]any{"role": "x"}}, nil
		}))}})
	s.Register(c.agent)
	return s, db
}

func newCluster(t *testing.T, h arc.TaskHandlerFunc) *cluster {
	return &cluster{t: t, db: store.NewMemory(), agent: arc.Agent{AgentInfo: arc.AgentInfo{AgentID: "a-01"}, TaskHandler: h}}
}

var bearer = []string{"Authorization", "Bearer x"}

func (c *cluster) create(s *arc.Server) string { return createTask(c.t, s, "a-01", "x", bearer...) }

func (c *cluster) task(s *arc.Server, id string) *arc.Task {
	return taskOf(c.t, s, "a-01", id, bearer...)
}

func (c *cluster) send(s *arc.Server, id, text string) *arc.Response {
	return answer(c.t, post(s, call("task.send", "a-01", fmt.Sprintf(`{"taskId":%q,"message":%s}`, id, hello(text))), bearer...))
}

// A run that was cut off is replayed: steps, messages and artifacts that are kept are not done again,
// and the caller is that of the creation.
func TestRerunRepeatsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var steps, runs atomic.Int32
		c := newCluster(t, func(ctx context.Context, run *arc.TaskRun) error {
			isFirst := runs.Add(1) == 1
			p := arc.CallFromContext(ctx).Principal
			require.Equal(t, "x", p.Claims["role"])
			require.Equal(t, "t", p.Tenant)
			require.Contains(t, p.Scopes, arc.ScopeTaskController)
			require.Equal(t, !isFirst, run.Redelivered())
			for i := range 3 {
				n, err := arc.Step(ctx, run, "count", func(context.Context, string) (int32, error) { return steps.Add(1), nil })
				if err != nil {
					return err
				}
				require.EqualValues(t, i+1, n)
				if err := run.AddProgress(ctx, "same"); err != nil {
					return err
				}
				if err := run.AddArtifact(ctx, &arc.Artifact{Name: "part"}); err != nil {
					return err
				}
				if err := run.AddArtifact(ctx, &arc.Artifact{ID: fmt.Sprint("own-", i)}); err != nil {
					return err
				}
				if isFirst && i == 1 {
					<-ctx.Done()
					return ctx.Err()
				}
			}
			require.ErrorContains(t, run.AddArtifact(ctx, &arc.Artifact{ID: "own-0"}), "used twice")
			return nil
		})
		first, db := c.start()
		id := c.create(first)
		synctest.Wait()
		require.Len(t, c.task(first, id).Messages, 3)
		db.crash()
		second, _ := c.start()
		time.Sleep(4 * time.Second)
		synctest.Wait()
		task := c.task(second, id)
		require.Equal(t, arc.TaskCompleted, task.Status)
		require.EqualValues(t, 3, steps.Load())
		require.EqualValues(t, 2, runs.Load())
		require.Len(t, task.Messages, 4)
		var ids []string
		for _, a := range task.Artifacts {
			ids = append(ids, a.ID)
		}
		require.Equal(t, []string{"artifact-1", "own-0", "artifact-3", "own-1", "artifact-5", "own-2"}, ids)
	})
}

func asking(ctx context.Context, run *arc.TaskRun) error {
	for range 2 {
		m, err := run.WaitInput(ctx, "text")
		if err != nil {
			return err
		}
		if err := run.AddMessage(ctx, arc.AgentText("got "+m.Text())); err != nil {
			return err
		}
	}
	return nil
}

// A task that waits holds no shutdown, and after it no goroutine. It continues in the process that
// receives its input, and nothing is left of it in the process that kept it.
func TestWaitingTaskLivesThroughDeployments(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, asking)
		first, _ := c.start()
		id := c.create(first)
		synctest.Wait()
		for range 3 {
			begin := time.Now()
			require.NoError(t, first.Shutdown(t.Context()))
			require.Zero(t, time.Since(begin))
			first, _ = c.start()
			require.NoError(t, first.WaitRecovered(t.Context()))
			require.Equal(t, arc.TaskInputRequired, c.task(first, id).Status)
			require.Equal(t, "text", c.task(first, id).Reason)
		}
		stacks := make([]byte, 1<<20)
		require.NotContains(t, string(stacks[:runtime.Stack(stacks, true)]), "ServeTask")
		second, _ := c.start()
		for i, text := range []string{"tea", "milk"} {
			require.Nil(t, c.send(second, id, text).Error)
			synctest.Wait()
			require.Equal(t, "got "+text, c.task(first, id).Messages[2*i+2].Text())
		}
		require.Equal(t, arc.TaskCompleted, c.task(first, id).Status)
		for e, err := range c.db.List(t.Context(), "arc/work/") {
			require.NoError(t, err)
			t.Errorf("index entry left: %s", e.Key)
		}
	})
}

// An input that was acknowledged has its effect, and one that was accepted reaches the task if the
// process of the sender fails before it has passed the input on.
func TestAcceptedInputIsNotLost(t *testing.T) {
	for _, at := range []string{"arc/journal/", "arc/tell/", ""} {
		t.Run(at, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newCluster(t, asking)
				owner, ownerStore := c.start()
				id := c.create(owner)
				synctest.Wait()
				sender, db := c.start()
				db.at = at
				res := c.send(sender, id, "tea")
				if at == "" {
					require.Nil(t, res.Error)
					ownerStore.crash()
				}
				other, _ := c.start()
				time.Sleep(5 * time.Second)
				synctest.Wait()
				task := c.task(other, id)
				require.Equal(t, arc.TaskInputRequired, task.Status, "it waits for the second input")
				require.Len(t, task.Messages, 3)
				require.Equal(t, "got tea", task.Messages[2].Text())
			})
		})
	}
}

// A meter counts the entries that a store lists.
type meter struct {
	store.Store
	listed atomic.Int64
}

func (m *meter) List(ctx context.Context, prefix string) iter.Seq2[store.Entry, error] {
	return func(yield func(store.Entry, error) bool) {
		m.Store.List(ctx, prefix)(func(e store.Entry, err error) bool {
			m.listed.Add(1)
			return yield(e, err)
		})
	}
}

// A take-over does not depend on the number of finished tasks.
func TestTakeOverCostsUnfinishedWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := &meter{Store: store.NewMemory()}
		c := newCluster(t, func(ctx context.Context, run *arc.TaskRun) error {
			if run.Message().Text() == "x" {
				<-ctx.Done()
			}
			return context.Cause(ctx)
		})
		c.db = db
		first, crash := c.start()
		for range 500 {
			createTask(t, first, "a-01", "done", bearer...)
		}
		id := c.create(first)
		synctest.Wait()
		crash.crash()
		second, _ := c.start()
		db.listed.Store(0)
		time.Sleep(4 * time.Second)
		synctest.Wait()
		require.Equal(t, arc.TaskFailed, c.task(second, id).Status)
		require.Less(t, db.listed.Load(), int64(100))
	})
}

// The server has no goroutine for an unused journal, and Step outside of a running task is an error.
func TestStepAfterTheEnd(t *testing.T) {
	s := newServer(t, nil)
	var run *arc.TaskRun
	s.HandleTasks("a-01", arc.TaskHandlerFunc(func(_ context.Context, r *arc.TaskRun) error {
		run = r
		return nil
	}))
	id := createTask(t, s, "a-01", "x")
	require.Eventually(t, func() bool { return taskOf(t, s, "a-01", id).Status == arc.TaskCompleted }, time.Minute, time.Millisecond)
	require.NoError(t, s.Shutdown(t.Context()))
	_, err := arc.Step(t.Context(), run, "late", func(context.Context, string) (int, error) { return 1, nil })
	require.Error(t, err)
	require.False(t, strings.Contains(err.Error(), "panic"))
}

// A step whose result is not kept runs again with the same id, and its error is not kept.
func TestStepKeepsNoError(t *testing.T) {
	s := newServer(t, nil)
	s.HandleTasks("a-01", arc.TaskHandlerFunc(func(ctx context.Context, run *arc.TaskRun) error {
		var ids []string
		for i := range 2 {
			_, err := arc.Step(ctx, run, "s", func(_ context.Context, stepID string) (string, error) {
				ids = append(ids, stepID)
				if i == 0 {
					return "", arc.ErrPermissionDenied
				}
				return stepID, nil
			})
			require.Equal(t, i == 0, err != nil)
		}
		require.Equal(t, ids[0], ids[1])
		return nil
	}))
	id := createTask(t, s, "a-01", "x")
	require.Eventually(t, func() bool { return taskOf(t, s, "a-01", id).Status.Final() }, time.Minute, time.Millisecond)
	require.Equal(t, arc.TaskCompleted, taskOf(t, s, "a-01", id).Status)
}

// A sleep lasts once: a deployment does not wait for it, and the process that continues the task waits for the rest of it.
func TestSleepLastsOnce(t *testing.T) {
	for _, isCrash := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			var steps atomic.Int32
			c := newCluster(t, func(ctx context.Context, run *arc.TaskRun) error {
				for range 2 {
					if _, err := arc.Step(ctx, run, "count", func(context.Context, string) (int32, error) { return steps.Add(1), nil }); err != nil {
						return err
					}
					if err := run.Sleep(ctx, "nap", 20*time.Minute); err != nil {
						return err
					}
				}
				return nil
			})
			begin := time.Now()
			first, db := c.start()
			id := c.create(first)
			time.Sleep(5 * time.Minute)
			if isCrash {
				db.crash()
			} else {
				require.NoError(t, first.Shutdown(t.Context()))
				require.Equal(t, 5*time.Minute, time.Since(begin))
			}
			second, _ := c.start()
			time.Sleep(40*time.Minute - time.Since(begin) - time.Millisecond)
			require.Equal(t, arc.TaskWorking, c.task(second, id).Status)
			require.EqualValues(t, 2, steps.Load())
			time.Sleep(time.Second)
			require.Equal(t, arc.TaskCompleted, c.task(second, id).Status)
		})
	}
}

// A sleeping task has no place, so that another one runs, and its cancellation wakes it.
func TestSleepingTaskHasNoPlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t, &arc.ServerOptions{Limits: arc.Limits{MaxTasks: 1}})
		results := make(chan error, 2)
		s.HandleTasks("a-01", arc.TaskHandlerFunc(func(ctx context.Context, run *arc.TaskRun) error {
			err := run.Sleep(ctx, "nap", 10*time.Minute)
			results <- err
			return err
		}))
		first, second := createTask(t, s, "a-01", "x"), createTask(t, s, "a-01", "y")
		synctest.Wait()
		require.Equal(t, arc.TaskWorking, taskOf(t, s, "a-01", second).Status)
		require.Nil(t, cancelTask(s, "a-01", first).Error)
		synctest.Wait()
		require.Error(t, <-results)
		time.Sleep(10 * time.Minute)
		require.NoError(t, <-results)
		synctest.Wait()
		require.Equal(t, arc.TaskCompleted, taskOf(t, s, "a-01", second).Status)
	})
}

// A task that sleeps and waits for input at once waits until both have ended: it has no place, and no shutdown waits for it.
func TestTaskSleepsAndWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t, &arc.ServerOptions{Limits: arc.Limits{MaxTasks: 1}, Persistence: arc.Persistence{Store: store.NewMemory()}})
		s.HandleTasks("a-01", arc.TaskHandlerFunc(func(ctx context.Context, run *arc.TaskRun) error {
			var reminder sync.WaitGroup
			defer reminder.Wait()
			reminder.Go(func() {
				if run.Sleep(ctx, "reminder", 10*time.Minute) == nil {
					_ = run.AddProgress(ctx, "still waiting")
				}
			})
			_, err := run.WaitInput(ctx, "more")
			return err
		}))
		ids := []string{createTask(t, s, "a-01", "x"), createTask(t, s, "a-01", "y"), createTask(t, s, "a-01", "z")}
		synctest.Wait()
		require.Nil(t, send(s, "a-01", ids[0], "early").Error)
		time.Sleep(20 * time.Minute)
		require.Equal(t, arc.TaskCompleted, taskOf(t, s, "a-01", ids[0]).Status)
		for _, id := range ids[1:] {
			task := taskOf(t, s, "a-01", id)
			require.Equal(t, arc.TaskInputRequired, task.Status)
			require.Equal(t, "still waiting", task.Messages[1].Text())
		}
		require.Nil(t, send(s, "a-01", ids[1], "late").Error)
		synctest.Wait()
		require.Equal(t, arc.TaskCompleted, taskOf(t, s, "a-01", ids[1]).Status)
		begin := time.Now()
		require.NoError(t, s.Shutdown(t.Context()))
		require.Equal(t, begin, time.Now())
	})
}

// A sleep that has ended gives no place back when the handler runs again.
func TestPastSleepKeepsPlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		memory := store.NewMemory()
		rerun, end := make(chan struct{}), make(chan struct{})
		start := func(db store.Store) *arc.Server {
			s := newServer(t, &arc.ServerOptions{Limits: arc.Limits{MaxTasks: 1}, Persistence: arc.Persistence{Store: db, LeaseTTL: 3 * time.Second}})
			s.HandleTasks("a-01", arc.TaskHandlerFunc(func(ctx context.Context, run *arc.TaskRun) error {
				if run.Redelivered() {
					<-rerun
				}
				if err := run.Sleep(ctx, "nap", time.Second); err != nil {
					return err
				}
				select {
				case <-end:
					return nil
				case <-ctx.Done():
					return ctx.Err()
				}
			}))
			return s
		}
		db := &crashStore{Store: memory}
		id := createTask(t, start(db), "a-01", "x")
		time.Sleep(2 * time.Second)
		db.crash()
		second := start(memory)
		time.Sleep(5 * time.Second)
		queued := createTask(t, second, "a-01", "y")
		close(rerun)
		time.Sleep(5 * time.Second)
		require.Equal(t, arc.TaskWorking, taskOf(t, second, "a-01", id).Status)
		require.Equal(t, arc.TaskSubmitted, taskOf(t, second, "a-01", queued).Status)
		close(end)
		time.Sleep(2 * time.Second)
		require.Equal(t, arc.TaskCompleted, taskOf(t, second, "a-01", queued).Status)
	})
}

// A wait that a handler leaves in another goroutine ends with the task, and takes no place.
func TestWaitEndsWithHandler(t *testing.T) {
	for name, wait := range map[string]func(ctx context.Context, run *arc.TaskRun) error{
		"sleep": func(ctx context.Context, run *arc.TaskRun) error { return run.Sleep(ctx, "nap", time.Hour) },
		"input": func(ctx context.Context, run *arc.TaskRun) error {
			_, err := run.WaitInput(ctx, "more")
			return err
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := newServer(t, &arc.ServerOptions{Limits: arc.Limits{MaxTasks: 1}})
			results := make(chan error, 3)
			s.HandleTasks("a-01", arc.TaskHandlerFunc(func(_ context.Context, run *arc.TaskRun) error {
				go func() { results <- wait(context.Background(), run) }()
				time.Sleep(time.Second)
				return nil
			}))
			for range 3 {
				id := createTask(t, s, "a-01", "x")
				time.Sleep(2 * time.Second)
				require.Contains(t, []arc.TaskStatus{arc.TaskCompleted, arc.TaskFailed}, taskOf(t, s, "a-01", id).Status, name)
				require.Error(t, <-results, name)
			}
		})
	}
}

// The time limit of a task counts while it sleeps.
func TestSleepEndsAtTaskTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t, &arc.ServerOptions{Timing: arc.Timing{TaskTimeout: time.Minute}})
		s.HandleTasks("a-01", arc.TaskHandlerFunc(func(ctx context.Context, run *arc.TaskRun) error { return run.Sleep(ctx, "nap", time.Hour) }))
		id := createTask(t, s, "a-01", "x")
		time.Sleep(time.Minute + time.Second)
		require.Equal(t, arc.ErrTaskTimeout, taskOf(t, s, "a-01", id).Error.Code)
	})
}

// A task has at most 10,000 steps.
func TestStepsOfTaskAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t, nil)
		runs := 0
		s.HandleTasks("a-01", arc.TaskHandlerFunc(func(ctx context.Context, run *arc.TaskRun) error {
			for {
				if _, err := arc.Step(ctx, run, "s", func(context.Context, string) (int, error) { runs++; return 0, nil }); err != nil {
					return err
				}
			}
		}))
		id := createTask(t, s, "a-01", "x")
		synctest.Wait()
		require.Equal(t, arc.TaskFailed, taskOf(t, s, "a-01", id).Status)
		require.InDelta(t, 10_000, runs, 1) // the journal has an entry of the run
	})
}

// A task has at most 10,000 inputs, however often its handler waits for one.
func TestInputsOfTaskAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t, nil)
		s.HandleTasks("a-01", arc.TaskHandlerFunc(func(ctx context.Context, run *arc.TaskRun) error {
			for {
				if _, err := run.WaitInput(ctx, "more"); err != nil {
					return err
				}
			}
		}))
		id := createTask(t, s, "a-01", "x")
		synctest.Wait()
		n := 0
		for ; n <= 10_000 && send(s, "a-01", id, "x").Error == nil; n++ {
			synctest.Wait()
		}
		require.Equal(t, 10_000, n)
		require.Equal(t, arc.TaskFailed, taskOf(t, s, "a-01", id).Status)
	})
}

// A task has at most 100,000 messages and artifacts, or as many as MaxTaskItems permits.
func TestItemsOfTaskAreBounded(t *testing.T) {
	for limit, want := range map[int]int{0: 100_000, 7: 7} {
		if limit == 0 && race.Enabled { // which makes so many slow
			continue
		}
		synctest.Test(t, func(t *testing.T) {
			s := newServer(t, &arc.ServerOptions{Limits: arc.Limits{MaxTaskItems: limit}})
			n := 1 // the initial message
			s.HandleTasks("a-01", arc.TaskHandlerFunc(func(ctx context.Context, run *arc.TaskRun) error {
				for ; n <= want; n += 2 {
					if err := run.AddMessage(ctx, arc.AgentText("x")); err != nil {
						return err
					}
					if err := run.AddArtifact(ctx, &arc.Artifact{Parts: []arc.Part{arc.TextPart("x")}}); err != nil {
						n++
						return err
					}
				}
				return nil
			}))
			id := createTask(t, s, "a-01", "x")
			synctest.Wait()
			require.Equal(t, want, n)
			task := taskOf(t, s, "a-01", id)
			require.Equal(t, arc.TaskFailed, task.Status)
			require.Equal(t, want, len(task.Messages)+len(task.Artifacts))
		})
	}
}
