// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package planning_test

import (
	"encoding/json"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/fivewire/fivewire/a2e"
	"github.com/fivewire/fivewire/a2e/a2etest"
	"github.com/fivewire/fivewire/a2e/planning"
	"github.com/fivewire/fivewire/internal/kit"
	"github.com/fivewire/fivewire/store"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A plan from creation to its board (A2E-129, A2E-130, A2E-131).
func TestPlanning(t *testing.T) {
	h := a2etest.NewHost(t, nil).AddPlugin(a2etest.Must(planning.NewPlugin(&planning.Options{MaxPlans: 2, MaxTasks: 3})))
	c, err := planning.NewClient(a2etest.Connect(t, h, nil))
	require.NoError(t, err)
	ctx := t.Context()
	plan, err := c.CreatePlan(ctx, nil, nil)
	require.NoError(t, err)
	require.Equal(t, []string{"backlog", "todo", "in_progress", "done"}, plan.Columns)
	own, err := c.CreatePlan(ctx, &planning.PlanCreateRequest{Name: "own", Columns: []string{"a"}}, nil)
	require.NoError(t, err)
	_, err = c.CreatePlan(ctx, nil, nil)
	require.ErrorIs(t, err, a2e.ErrRuntime)
	list, err := c.ListPlans(ctx, nil, nil)
	require.NoError(t, err)
	require.Equal(t, planning.Plan{PlanID: "plan-2", Name: "own", Columns: []string{"a"}}, list.Plans[1])

	r := new(planning.TaskAddRequest)
	r.PlanID, r.Title = plan.PlanID, "write"
	task, err := c.AddTask(ctx, r, nil)
	require.NoError(t, err)
	require.Equal(t, "backlog", task.Status)
	first, err := c.AddTask(ctx, &planning.TaskAddRequest{PlanID: own.PlanID, Title: "x", Status: new("")}, nil)
	require.NoError(t, err)
	require.Equal(t, "a", first.Status)
	_, err = c.UpdateTask(ctx, &planning.TaskUpdateRequest{PlanID: plan.PlanID, TaskID: task.TaskID, Status: "review"}, nil)
	require.NoError(t, err)
	_, err = c.UpdateTask(ctx, &planning.TaskUpdateRequest{PlanID: plan.PlanID, TaskID: task.TaskID, Assignee: "ann"}, nil)
	require.NoError(t, err)
	tasks, err := c.ListTasks(ctx, &planning.TaskListRequest{Status: "review"}, nil)
	require.NoError(t, err)
	require.Len(t, tasks.Tasks, 1)
	require.JSONEq(t, `{"task_id":"task-1","title":"write","status":"review","assignee":"ann","plan_id":"plan-1",
		"description":"","deps":[],"metadata":{}}`, text(t, &tasks.Tasks[0]))
	board, err := c.GetBoard(ctx, &planning.PlanBoardRequest{PlanID: plan.PlanID}, nil)
	require.NoError(t, err)
	require.JSONEq(t, `{"plan_id":"plan-1","name":"default","columns":["backlog","todo","in_progress","done"],"tasks":{
		"backlog":[],"todo":[],"in_progress":[],"done":[],
		"review":[{"task_id":"task-1","title":"write","status":"review","assignee":"ann","description":"","deps":[],"metadata":{}}]}}`, text(t, &board.Boards[0]))

	_, err = c.AddTask(ctx, r, nil)
	require.NoError(t, err)
	_, err = c.AddTask(ctx, r, nil)
	require.ErrorContains(t, err, "too_many_tasks")
	for _, err := range []error{
		second(c.UpdateTask(ctx, &planning.TaskUpdateRequest{PlanID: plan.PlanID, TaskID: "task-9"}, nil)),
		second(c.UpdateTask(ctx, &planning.TaskUpdateRequest{PlanID: "plan-9", TaskID: "task-1"}, nil)),
		second(c.ListTasks(ctx, &planning.TaskListRequest{PlanID: "plan-9"}, nil)),
		second(c.GetBoard(ctx, &planning.PlanBoardRequest{PlanID: "plan-9"}, nil)),
		second(c.AddTask(ctx, &planning.TaskAddRequest{PlanID: "plan-9", Title: "x"}, nil)),
	} {
		require.ErrorContains(t, err, "unknown_")
	}
}

// A dependency names another task of the plan and closes no cycle (A2E-D66).
func TestDependenciesFormNoCycle(t *testing.T) {
	h := a2etest.NewHost(t, nil).AddPlugin(a2etest.Must(planning.NewPlugin(nil)))
	c := a2etest.Must(planning.NewClient(a2etest.Connect(t, h, nil)))
	ctx := t.Context()
	for range 2 {
		_, err := c.CreatePlan(ctx, nil, nil)
		require.NoError(t, err)
	}
	add := func(plan string, deps ...string) error {
		_, err := c.AddTask(ctx, &planning.TaskAddRequest{PlanID: plan, Title: "t", Deps: deps}, nil)
		return err
	}
	update := func(task string, deps ...string) error {
		_, err := c.UpdateTask(ctx, &planning.TaskUpdateRequest{PlanID: "plan-1", TaskID: task, Deps: deps}, nil)
		return err
	}
	require.NoError(t, add("plan-1"))                     // task-1
	require.NoError(t, add("plan-1", "task-1"))           // task-2
	require.NoError(t, add("plan-1", "task-2", "task-1")) // task-3
	require.NoError(t, add("plan-2"))                     // task-4
	for field, err := range map[string]error{
		"deps[0]": update("task-1", "task-3"),
		"deps[1]": update("task-3", "task-1", "task-3"),
		"deps[2]": add("plan-1", "task-1", "task-2", "task-4"),
	} {
		var e *a2e.Error
		require.ErrorAs(t, err, &e)
		require.Equal(t, field, e.Field)
		require.Equal(t, a2e.ReasonValue, e.Reason)
	}
	require.NoError(t, update("task-3", "task-1"))
	require.NoError(t, update("task-2", "task-3"))
	require.Error(t, update("task-1", "task-2"))
}

func second[T any](_ T, err error) error { return err }

// text returns a model as JSON.
func text[T any](t *testing.T, model *T) string {
	t.Helper()
	raw, err := a2e.EncodeModel(model)
	require.NoError(t, err)
	return string(raw)
}

// The plans of a session are bounded in bytes, whatever their number.
func TestPlansAreBoundedInBytes(t *testing.T) {
	h := a2etest.NewHost(t, nil).AddPlugin(a2etest.Must(planning.NewPlugin(nil)))
	c, err := planning.NewClient(a2etest.Connect(t, h, nil))
	require.NoError(t, err)
	ctx, long := t.Context(), strings.Repeat("x", 1<<20)
	plan, err := c.CreatePlan(ctx, nil, nil)
	require.NoError(t, err)
	requireFull := func(err error) {
		t.Helper()
		var e *a2e.Error
		require.ErrorAs(t, err, &e)
		require.ErrorIs(t, err, a2e.ErrRuntime)
		require.Equal(t, a2e.ReasonOverloaded, e.Reason)
		require.False(t, e.Retryable)
	}
	add := func(r *planning.TaskAddRequest) error {
		r.PlanID = plan.PlanID
		_, err := c.AddTask(ctx, r, nil)
		return err
	}
	require.NoError(t, add(&planning.TaskAddRequest{Assignee: long, Description: long, Status: &long}))
	require.NoError(t, add(&planning.TaskAddRequest{Metadata: json.RawMessage(`{"a":"` + long + `"}`), Deps: slices.Repeat([]string{"task-1"}, 10_000)}))
	for range 11 {
		require.NoError(t, add(&planning.TaskAddRequest{Title: long}))
	}
	requireFull(add(&planning.TaskAddRequest{Title: long}))
	requireFull(add(&planning.TaskAddRequest{Deps: slices.Repeat([]string{"task-1"}, 50_000)}))
	_, err = c.CreatePlan(ctx, &planning.PlanCreateRequest{Columns: []string{long}}, nil)
	requireFull(err)
	update := &planning.TaskUpdateRequest{PlanID: plan.PlanID, TaskID: "task-3", Assignee: long}
	_, err = c.UpdateTask(ctx, update, nil)
	requireFull(err)
	update.TaskID, update.Assignee = "task-1", "ann"
	_, err = c.UpdateTask(ctx, update, nil)
	require.NoError(t, err)
	require.NoError(t, add(&planning.TaskAddRequest{Title: long}), "the space of the old assignee")
}

// The plans of all sessions of a principal share its bounds of the host, and those of another one do not (A2E-D66).
func TestPlansOfPrincipalAreBoundedTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		keys := a2etest.Must(a2e.APIKeyAuthenticator(map[string]*a2e.Principal{"key-a": {ID: "alice"}, "key-b": {ID: "bob"}}))
		h := a2etest.NewHost(t, &a2e.HostOptions{Auth: a2e.Auth{Authenticator: keys}, Limits: a2e.Limits{MaxMemoryPerPrincipal: 4 << 20}},
			a2etest.Must(planning.NewPlugin(nil)))
		long := strings.Repeat("x", 1<<20-1024)
		open := func(token string) (*a2e.Client, func() error) {
			own := a2etest.Connect(t, h, &a2e.ClientOptions{Token: token})
			c := a2etest.Must(planning.NewClient(own))
			plan, err := c.CreatePlan(t.Context(), nil, nil)
			require.NoError(t, err)
			return own, func() error {
				_, err := c.AddTask(t.Context(), &planning.TaskAddRequest{PlanID: plan.PlanID, Title: long}, nil)
				return err
			}
		}
		one, first := open("key-a")
		_, second := open("key-a")
		_, other := open("key-b")
		for range 2 {
			require.NoError(t, first())
			require.NoError(t, second())
		}
		err := first()
		var e *a2e.Error
		require.ErrorAs(t, err, &e)
		require.Equal(t, a2e.ReasonOverloaded, e.Reason)
		require.True(t, e.Retryable)
		require.JSONEq(t, `{"reason":"overloaded","resource":"memory","scope":"principal","retry_after":1}`, string(e.Details))
		require.Error(t, second())
		for range 4 {
			require.NoError(t, other())
		}
		require.NoError(t, one.Close())
		time.Sleep(time.Minute)
		for range 2 {
			require.NoError(t, second())
		}
		require.Error(t, second())
		require.NoError(t, h.Close())
		time.Sleep(time.Minute)
		for _, u := range h.Usage() {
			require.Zero(t, u.Used, "%+v", u)
		}
	})
}

// Plans for which the principal has no space are restored later.
func TestPlansOverBoundAreRestoredLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := a2etest.NewHost(t, &a2e.HostOptions{Auth: a2e.Auth{Authenticator: a2etest.KeyAuthenticator("key")}, Limits: a2e.Limits{MaxMemoryPerPrincipal: 4 << 20},
			Persistence: a2e.Persistence{Snapshots: store.NewMemory()}}, a2etest.Must(planning.NewPlugin(nil)))
		open := func() (*a2e.Client, *planning.Client) {
			own := a2etest.Connect(t, h, &a2e.ClientOptions{Token: "key"})
			return own, a2etest.Must(planning.NewClient(own))
		}
		end := func(c *a2e.Client) {
			require.NoError(t, c.Close())
			time.Sleep(time.Minute)
		}
		first, c := open()
		for i := range 3 {
			_, err := c.CreatePlan(t.Context(), &planning.PlanCreateRequest{Name: strings.Repeat("x", 1<<20-1024)}, nil)
			require.NoError(t, err, i)
		}
		end(first)
		second, c := open()
		list, err := c.ListPlans(t.Context(), nil, nil)
		require.NoError(t, err)
		require.Len(t, list.Plans, 3)
		third, c := open()
		_, err = c.ListPlans(t.Context(), nil, nil)
		var e *a2e.Error
		require.ErrorAs(t, err, &e)
		require.Equal(t, a2e.ReasonOverloaded, e.Reason)
		end(second)
		list, err = c.ListPlans(t.Context(), nil, nil)
		require.NoError(t, err)
		require.Len(t, list.Plans, 3)
		end(third)
	})
}

// A task does not keep the message that it came with.
func TestPlansKeepNoMessages(t *testing.T) {
	h := a2etest.NewHost(t, nil).AddPlugin(a2etest.Must(planning.NewPlugin(nil)))
	c := a2etest.Connect(t, h, nil)
	plan, err := a2e.CallAs[planning.PlanCreateResponse](t.Context(), c, "planning/plan/create", a2e.Members{}, nil)
	require.NoError(t, err)
	before := kit.Heap()
	for range 50 {
		body := a2e.Members{}
		for name, value := range map[string]any{"plan_id": plan.PlanID, "title": "t", "metadata": map[string]int{"a": 1}, "pad": strings.Repeat("x", 1<<20)} {
			require.NoError(t, body.Set(name, value))
		}
		_, err := c.Call(t.Context(), "planning/task/add", body, nil)
		require.NoError(t, err)
	}
	require.Less(t, kit.Heap()-before, int64(20<<20))
}

// The dependencies of dependencies are visited once.
func TestManyDependenciesAreChecked(t *testing.T) {
	h := a2etest.NewHost(t, nil).AddPlugin(a2etest.Must(planning.NewPlugin(nil)))
	c, err := planning.NewClient(a2etest.Connect(t, h, nil))
	require.NoError(t, err)
	ctx, opts := t.Context(), &a2e.CallOptions{Timeout: 20 * time.Second}
	plan, err := c.CreatePlan(ctx, nil, nil)
	require.NoError(t, err)
	const tasks, each = 4, 100_000
	for i := range tasks {
		r := &planning.TaskAddRequest{PlanID: plan.PlanID, Title: "t"}
		if i > 0 {
			r.Deps = slices.Repeat([]string{"task-" + strconv.Itoa(i)}, each)
		}
		_, err = c.AddTask(ctx, r, opts)
		require.NoError(t, err)
	}
	deps := append(slices.Repeat([]string{"task-2"}, each), "task-4")
	_, err = c.UpdateTask(ctx, &planning.TaskUpdateRequest{PlanID: plan.PlanID, TaskID: "task-3", Deps: deps}, opts)
	var e *a2e.Error
	require.ErrorAs(t, err, &e)
	require.Equal(t, "deps[100000]", e.Field)
}

// A new task costs the same in a large plan.
func TestAddedTaskCostsNotThePlan(t *testing.T) {
	h := a2etest.NewHost(t, nil).AddPlugin(a2etest.Must(planning.NewPlugin(nil)))
	c, err := planning.NewClient(a2etest.Connect(t, h, nil))
	require.NoError(t, err)
	plan, err := c.CreatePlan(t.Context(), nil, nil)
	require.NoError(t, err)
	add := func(n int) {
		for range n {
			_, err := c.AddTask(t.Context(), &planning.TaskAddRequest{PlanID: plan.PlanID, Title: "t"}, nil)
			require.NoError(t, err)
		}
	}
	add(2000)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	add(100)
	runtime.ReadMemStats(&after)
	require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(100*50<<10), "bytes allocated")
}

// A board has each column once, also for a plan that names one twice: its tasks are the members of an object.
func TestBoardHasEachColumnOnce(t *testing.T) {
	h := a2etest.NewHost(t, nil, a2etest.Must(planning.NewPlugin(nil)))
	c := a2etest.Must(planning.NewClient(a2etest.Connect(t, h, nil)))
	plan, err := c.CreatePlan(t.Context(), &planning.PlanCreateRequest{Columns: []string{"a", "b", "a"}}, nil)
	require.NoError(t, err)
	_, err = c.AddTask(t.Context(), &planning.TaskAddRequest{PlanID: plan.PlanID, Title: "x", Status: new("a")}, nil)
	require.NoError(t, err)
	board, err := c.GetBoard(t.Context(), &planning.PlanBoardRequest{PlanID: plan.PlanID}, nil)
	require.NoError(t, err)
	require.Len(t, board.Boards[0].Tasks, 2)
	tasks, _ := board.Boards[0].Tasks.Get("a")
	require.Len(t, tasks, 1)
}
