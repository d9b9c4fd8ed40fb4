// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package planning_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/fivewire/fivewire/a2e"
	"github.com/fivewire/fivewire/a2e/internal/a2etest"
	"github.com/fivewire/fivewire/a2e/planning"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A plan from creation to its board (A2E-129, A2E-130, A2E-131).
func TestPlanning(t *testing.T) {
	h := a2e.NewHost(nil).AddPlugin(planning.NewPlugin(&planning.Options{MaxPlans: 2, MaxTasks: 3}))
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
	require.JSONEq(t, `{"plan_id":"plan-2","name":"own","columns":["a"]}`, string(list.Plans[1]))

	r := a2e.New[planning.TaskAddRequest]()
	r.PlanID, r.Title = plan.PlanID, "write"
	task, err := c.AddTask(ctx, r, nil)
	require.NoError(t, err)
	require.Equal(t, "backlog", task.Status)
	first, err := c.AddTask(ctx, &planning.TaskAddRequest{PlanID: own.PlanID, Title: "x"}, nil)
	require.NoError(t, err)
	require.Equal(t, "a", first.Status)
	_, err = c.UpdateTask(ctx, &planning.TaskUpdateRequest{PlanID: plan.PlanID, TaskID: task.TaskID, Status: "review", Deps: []string{"task-2"}}, nil)
	require.NoError(t, err)
	_, err = c.UpdateTask(ctx, &planning.TaskUpdateRequest{PlanID: plan.PlanID, TaskID: task.TaskID, Assignee: "ann"}, nil)
	require.NoError(t, err)
	tasks, err := c.ListTasks(ctx, &planning.TaskListRequest{Status: "review"}, nil)
	require.NoError(t, err)
	require.Len(t, tasks.Tasks, 1)
	require.JSONEq(t, `{"task_id":"task-1","title":"write","status":"review","assignee":"ann","plan_id":"plan-1"}`, string(tasks.Tasks[0]))
	board, err := c.GetBoard(ctx, &planning.PlanBoardRequest{PlanID: plan.PlanID}, nil)
	require.NoError(t, err)
	require.JSONEq(t, `{"plan_id":"plan-1","name":"default","columns":["backlog","todo","in_progress","done"],"tasks":{
		"backlog":[],"todo":[],"in_progress":[],"done":[],
		"review":[{"task_id":"task-1","title":"write","status":"review","assignee":"ann"}]}}`, string(board.Boards[0]))

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

func second[T any](_ T, err error) error { return err }
