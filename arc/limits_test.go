// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package arc_test

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/arc"
	"github.com/fivewire/fivewire/arc/arctest"
	"github.com/fivewire/fivewire/arc/internal/front"
	"github.com/fivewire/fivewire/internal/kit"
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

// Large responses that a caller does not read count for it: a further read is refused, and a call that has had an effect has
// little time. Other callers and small responses are not affected.
func TestUnreadResponsesAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		text := strings.Repeat("x", 20<<20)
		s := newServer(t, nil)
		s.Register(arc.Agent{AgentInfo: arc.AgentInfo{AgentID: "a-01"},
			TaskHandler: arc.TaskHandlerFunc(func(ctx context.Context, run *arc.TaskRun) error {
				return run.AddArtifact(ctx, &arc.Artifact{Parts: []arc.Part{arc.TextPart(text)}})
			}),
			Methods: map[string]arc.Handler{"debug.large": arc.HandlerFunc(func(context.Context, *arc.Call) (any, error) {
				return map[string]string{"text": text}, nil
			})}})
		info := call("task.info", "a-01", `{"taskId":"`+createTask(t, s, "a-01", "x")+`"}`)
		synctest.Wait()
		wait := make(chan struct{})
		var calls sync.WaitGroup
		send := func(address, body string) *kit.SlowReader {
			w := &kit.SlowReader{ResponseRecorder: httptest.NewRecorder(), Wait: wait}
			req := httptest.NewRequest(http.MethodPost, "/arc", strings.NewReader(body))
			req.Header.Set("Content-Type", arc.MediaType)
			req.RemoteAddr = address
			calls.Go(func() { s.ServeHTTP(w, req) })
			synctest.Wait()
			return w
		}
		const one, two = "192.0.2.1:1", "192.0.2.2:1"
		var read []*kit.SlowReader
		for range 3 {
			read = append(read, send(one, info))
		}
		used := func() (n int64) {
			for _, u := range s.Usage() {
				if u.Resource == "output" && u.Scope == "all" {
					n = u.Used
				}
			}
			return n
		}
		require.Greater(t, used(), int64(60<<20))
		refused, hasty, other := send(one, info), send(one, call("debug.large", "a-01", "{}")), send(two, info)
		small := send(one, strings.Replace(info, "}}", `,"includeArtifacts":false}}`, 1))
		start := time.Now()
		close(wait)
		calls.Wait()
		for _, w := range append(read, other, small, hasty) {
			require.Equal(t, http.StatusOK, w.Code)
		}
		require.Greater(t, len(other.Deadlines), 300, "one for each part")
		require.Equal(t, []time.Time{start.Add(30 * time.Second)}, hasty.Deadlines)
		require.Equal(t, http.StatusServiceUnavailable, refused.Code)
		require.NotEmpty(t, refused.Header().Get("Retry-After"))
		require.Contains(t, string(fault(t, refused.ResponseRecorder, arc.ErrAgentCapacityExceeded).Details), `"scope":"principal"`)
		require.Zero(t, used())
		require.Equal(t, http.StatusOK, send(one, info).Code)
	})
}

// The responses of a front count like those of the server.
func TestUnreadResponsesOfFrontAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		large := strings.Repeat("x", 20<<20)
		next := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			_, err := io.WriteString(w, large)
			assert.NoError(t, err)
			w.(http.Flusher).Flush()
		})
		h := front.New(newServer(t, nil), front.Options{Methods: http.MethodPost}, next)
		wait := make(chan struct{})
		var calls sync.WaitGroup
		send := func(address string) *kit.SlowReader {
			w := &kit.SlowReader{ResponseRecorder: httptest.NewRecorder(), Wait: wait}
			req := httptest.NewRequest(http.MethodPost, "/", strings.NewReader("{}"))
			req.Header.Set("Content-Type", "application/json")
			req.RemoteAddr = address
			calls.Go(func() { h.ServeHTTP(w, req) })
			synctest.Wait()
			return w
		}
		var counted []*kit.SlowReader
		for range 3 {
			counted = append(counted, send("192.0.2.1:1"))
		}
		hasty, other := send("192.0.2.1:1"), send("192.0.2.2:1")
		close(wait)
		calls.Wait()
		after := send("192.0.2.1:1")
		for _, w := range append(counted, other, after) {
			require.Greater(t, len(w.Deadlines), 300, "one for each part")
		}
		require.Len(t, hasty.Deadlines, 2, "that of the response and that of the flush")
		require.Equal(t, len(large), hasty.Body.Len())
	})
}
