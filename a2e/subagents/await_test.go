// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package subagents

import (
	"context"
	"encoding/json"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
)

// A request that waits for a task gets its result, even if the next task has begun since.
func TestAwaitReturnsTheResultOfItsTask(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &agent{id: "one"}
		c := &crew{agents: []*agent{a}}
		a.startLocked(func() {})
		got := make(chan agent, 1)
		go func() {
			end, err := c.wait(context.Background(), "one")
			if err == nil {
				got <- end
			}
			close(got)
		}()
		synctest.Wait()
		c.mu.Lock()
		c.endLocked(a, json.RawMessage(`{"n":1}`), nil)
		a.startLocked(func() {})
		c.mu.Unlock()
		end := <-got
		require.Equal(t, StatusCompleted, end.status)
		require.JSONEq(t, `{"n":1}`, string(end.result))
	})
}

// A task that has ended is waited for, and cannot be cancelled, after the next task of its agent has begun.
func TestEndedTaskIsNotTheNextOne(t *testing.T) {
	a := &agent{id: "one"}
	c := &crew{agents: []*agent{a}}
	a.startLocked(func() {})
	first := a.task
	c.endLocked(a, json.RawMessage(`{"n":1}`), nil)
	a.startLocked(func() { t.Error("the next task was cancelled") })
	end, err := c.waitFor(t.Context(), first)
	require.NoError(t, err)
	require.Equal(t, StatusCompleted, end.status)
	require.JSONEq(t, `{"n":1}`, string(end.result))
	c.cancel(first)
	require.Equal(t, StatusRunning, a.status)
}
