// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package arc_test

import (
	"context"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/arc"
	"github.com/fivewire/fivewire/arc/arctest"
	"github.com/fivewire/fivewire/store"
)

// The time limits of work and of waiting hold across restarts, and begin again with each pause.
func TestTimeLimitsOfTasks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := store.NewMemory()
		var cause error
		start := func() *arc.Server {
			s := newServer(t, &arc.ServerOptions{Persistence: arc.Persistence{Store: db},
				Timing: arc.Timing{TaskTimeout: time.Hour, InputTimeout: 3 * time.Hour}})
			s.HandleTasks("a-01", arctest.ScriptedTask(arctest.Sleep(59*time.Minute), arctest.WaitInput("x"), func(ctx context.Context, _ *arc.TaskRun) error {
				<-ctx.Done()
				cause = context.Cause(ctx)
				return cause
			}))
			return s
		}
		first := start()
		working, waiting := createTask(t, first, "a-01", "x"), createTask(t, first, "a-01", "y")
		time.Sleep(90 * time.Minute)
		require.Nil(t, send(first, "a-01", working, "x").Error)
		time.Sleep(59 * time.Minute)
		require.Equal(t, arc.TaskWorking, taskOf(t, first, "a-01", working).Status)
		time.Sleep(time.Minute)
		synctest.Wait()
		require.ErrorIs(t, cause, arc.ErrTaskTimeout)
		task := taskOf(t, first, "a-01", working)
		require.Equal(t, arc.TaskFailed, task.Status)
		require.Equal(t, arc.ErrTaskTimeout, task.Error.Code)
		require.NoError(t, first.Shutdown(t.Context()))

		second := start()
		require.NoError(t, second.WaitRecovered(t.Context()))
		time.Sleep(89*time.Minute - time.Second) // 59 min of work and 3 h
		require.Equal(t, arc.TaskInputRequired, taskOf(t, second, "a-01", waiting).Status)
		time.Sleep(time.Second)
		synctest.Wait()
		require.Equal(t, arc.ErrTaskTimeout, taskOf(t, second, "a-01", waiting).Error.Code)
	})
}

// A negative limit means no limit.
func TestTasksWithoutTimeLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t, &arc.ServerOptions{Timing: arc.Timing{TaskTimeout: -1, InputTimeout: -1}})
		s.HandleTasks("a-01", arctest.ScriptedTask(arctest.WaitInput("x"), arctest.WaitCanceled()))
		id := createTask(t, s, "a-01", "x")
		time.Sleep(20 * 24 * time.Hour)
		require.Nil(t, send(s, "a-01", id, "x").Error)
		time.Sleep(20 * 24 * time.Hour)
		require.Equal(t, arc.TaskWorking, taskOf(t, s, "a-01", id).Status)
	})
}

// A response that a later attempt may not get is not kept for a repeated request.
func TestPassingErrorsAreNotKept(t *testing.T) {
	for code, isKept := range map[arc.Code]bool{arc.ErrInternal: false, arc.ErrAgentNotAvailable: false, arc.ErrAgentTimeout: false,
		arc.ErrChatBufferOverflow: false, arc.ErrTokenExpired: false, arc.ErrRateLimitExceeded: false, arc.ErrPermissionDenied: true,
		arc.ErrTaskExecutionFailed: true, arc.ErrInvalidParams: true} {
		s := newServer(t, &arc.ServerOptions{Persistence: arc.Persistence{ResultTTL: time.Minute}})
		calls := 0
		s.Handle("a-01", "x.y", arc.HandlerFunc(func(context.Context, *arc.Call) (any, error) {
			calls++
			return nil, code
		}))
		for range 2 {
			rec := post(s, call("x.y", "a-01", "{}"))
			fault(t, rec, code)
			if rec.Code == http.StatusServiceUnavailable {
				require.Equal(t, "5", rec.Header().Get("Retry-After"))
			}
		}
		require.Equal(t, isKept, calls == 1, "%d", code)
	}
}
