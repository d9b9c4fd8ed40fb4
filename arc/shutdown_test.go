// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package arc_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/arc"
)

// Callers ask about a task while the server is shut down. Each of them is
// answered or refused, and when Shutdown has returned nothing is being done.
func TestAskedWhileDraining(t *testing.T) {
	var serving atomic.Int32
	count := func(next arc.Handler) arc.Handler {
		return arc.HandlerFunc(func(ctx context.Context, c *arc.Call) (any, error) {
			serving.Add(1)
			defer serving.Add(-1)
			return next.HandleARC(ctx, c)
		})
	}
	for range 100 {
		s := arc.NewServer(&arc.ServerOptions{Middleware: []arc.Middleware{count}})
		release := make(chan struct{})
		s.HandleTasks("a-01", arc.TaskFunc(func(context.Context, *arc.TaskRun) error {
			<-release
			return nil
		}))
		id := createTask(t, s, "a-01", "x")
		var asking sync.WaitGroup
		for range 4 {
			asking.Go(func() {
				for {
					rec := httptest.NewRecorder()
					req := httptest.NewRequest(http.MethodPost, "/arc", strings.NewReader(call("task.info", "a-01", fmt.Sprintf(`{"taskId":%q}`, id))))
					req.Header.Set("Content-Type", arc.MediaType)
					s.ServeHTTP(rec, req)
					if rec.Code != http.StatusOK {
						return
					}
				}
			})
		}
		close(release)
		require.NoError(t, s.Shutdown(t.Context()))
		require.Zero(t, serving.Load())
		asking.Wait()
	}
}
