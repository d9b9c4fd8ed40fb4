// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package arc_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/arc"
)

// A page has at most 8 MiB, messages first and the first element always.
func TestPagesAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t, &arc.ServerOptions{Limits: arc.Limits{MaxMemoryPerSession: -1}})
		s.HandleTasks("a-01", arc.TaskHandlerFunc(func(ctx context.Context, run *arc.TaskRun) error {
			for i := range 3 {
				text := strings.Repeat("x", 3<<20)
				if i == 2 {
					text = strings.Repeat("x", 9<<20)
				}
				if err := run.AddMessage(ctx, arc.AgentText(text)); err != nil {
					return err
				}
			}
			return run.AddArtifact(ctx, &arc.Artifact{Name: "a"})
		}))
		id := createTask(t, s, "a-01", "x")
		synctest.Wait()
		for _, tt := range []struct {
			params              string
			messages, artifacts int
		}{
			{`"messagesAfter":0`, 3, 1}, {`"messagesAfter":1`, 2, 1}, {`"messagesAfter":3`, 1, 0}, {`"messagesAfter":4`, 0, 1},
			{`"includeMessages":false,"messagesAfter":0`, 0, 1}, {`"artifactsLimit":1,"messagesLimit":1`, 1, 1},
		} {
			task := result(t, post(s, call("task.info", "a-01", fmt.Sprintf(`{"taskId":%q,%s}`, id, tt.params))), "task.info").Task
			require.Len(t, task.Messages, tt.messages, tt.params)
			require.Len(t, task.Artifacts, tt.artifacts, tt.params)
			require.EqualValues(t, "4", task.MessageCount)
			require.EqualValues(t, "1", task.ArtifactCount)
		}
		whole := taskOf(t, s, "a-01", id)
		require.Len(t, whole.Messages, 4)
		require.Empty(t, whole.MessageCount)

		c, err := arc.NewClient("https://a.test/arc", "ui-01", &arc.ClientOptions{HTTPClient: &http.Client{Transport: inProcess{s}}})
		require.NoError(t, err)
		defer c.Close()
		res, err := c.WaitTask(t.Context(), "a-01", id, nil)
		require.NoError(t, err)
		require.Len(t, res.Task.Messages, 4)
		require.Len(t, res.Task.Artifacts, 1)
	})
}

// A task has at most 32 MiB: a further input is refused and changes nothing.
func TestFullTaskRefusesInput(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t, &arc.ServerOptions{Limits: arc.Limits{MaxMemoryPerSession: -1}})
		var full error
		s.HandleTasks("a-01", arc.TaskHandlerFunc(func(ctx context.Context, run *arc.TaskRun) error {
			for full == nil {
				full = run.AddMessage(ctx, arc.AgentText(strings.Repeat("x", 4<<20-200)))
			}
			_, err := run.WaitInput(ctx, "more")
			return err
		}))
		id := createTask(t, s, "a-01", "x")
		synctest.Wait()
		require.ErrorContains(t, full, "too many")
		e := fault(t, post(s, call("task.send", "a-01", fmt.Sprintf(`{"taskId":%q,"message":%s}`, id, hello(strings.Repeat("x", 4<<20))))), arc.ErrMessageTooLarge)
		require.JSONEq(t, fmt.Sprintf(`{"taskId":%q,"limit":33554432}`, id), string(e.Details))
		task := taskOf(t, s, "a-01", id)
		require.Equal(t, arc.TaskInputRequired, task.Status)
		require.Equal(t, 9, len(task.Messages))
	})
}
