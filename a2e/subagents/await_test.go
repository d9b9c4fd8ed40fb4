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
