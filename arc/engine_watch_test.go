// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package arc_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/arc"
	"github.com/fivewire/fivewire/arc/arctest"
	"github.com/fivewire/fivewire/store"
)

// watch collects what WatchTask yields: states with the texts of new messages and the ids of new artifacts.
func watch(ctx context.Context, s *arc.Server, in *arc.ServerRequest) (seen []string, err error) {
	for task, err := range s.WatchTask(ctx, in) {
		if err != nil {
			return seen, err
		}
		line := string(task.Status)
		for _, m := range task.Messages {
			line += " " + m.Text()
		}
		for _, a := range task.Artifacts {
			line += " " + a.ID
		}
		seen = append(seen, line)
	}
	return seen, nil
}

func infoOf(id string) *arc.ServerRequest {
	return &arc.ServerRequest{Data: []byte(call("task.info", "a-01", fmt.Sprintf(`{"taskId":%q,"includeMessages":false,"includeArtifacts":false}`, id)))}
}

var watchedSteps = arctest.ScriptedTask(arctest.Sleep(time.Second), arctest.AddMessage("one"), arctest.WaitInput("x"),
	arctest.AddMessage("two"), arctest.Sleep(time.Second), arctest.AddArtifact("out", "text"), arctest.Sleep(time.Second))

// A watched task is yielded with its new items, in the process that runs it and in another one.
func TestWatchTask(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := store.NewMemory()
		var servers [3]*arc.Server
		for i, p := range []arc.Persistence{{Store: db}, {Store: db}, {}} {
			servers[i] = newServer(t, &arc.ServerOptions{Persistence: p})
			servers[i].HandleTasks("a-01", watchedSteps)
		}
		own, other, private := servers[0], servers[1], servers[2]
		for _, pair := range [][2]*arc.Server{{own, own}, {own, other}, {private, private}} {
			id := createTask(t, pair[0], "a-01", "go")
			var seen []string
			var err error
			var wg sync.WaitGroup
			wg.Go(func() { seen, err = watch(t.Context(), pair[1], infoOf(id)) })
			time.Sleep(5 * time.Second)
			require.Nil(t, send(pair[0], "a-01", id, "red").Error)
			start := time.Now()
			wg.Wait()
			late := time.Since(start) - 2*time.Second // the steps after the input
			require.True(t, late == 0 || pair[1] == other && late <= time.Second, late)
			require.NoError(t, err)
			require.Equal(t, "COMPLETED", seen[len(seen)-1])
			texts := strings.Join(seen, ",")
			for _, want := range []string{"go", " one", " red", " two", " artifact-1"} {
				require.Equal(t, 1, strings.Count(texts, want), "%q in %s", want, texts)
			}
			require.Contains(t, texts, "INPUT_REQUIRED")
		}
	})
}

// The watchers of a caller are bounded. One more has no effect, whether it makes the task or only reads it, unless it
// only wants the first state.
func TestWatchTaskIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		keys := map[string]*arc.Principal{}
		for _, name := range []string{"alice", "bob"} {
			keys[name] = &arc.Principal{ID: name, Scopes: arc.RequiredScopes("task.create")}
		}
		auth, err := arc.APIKeyAuthenticator(keys)
		require.NoError(t, err)
		s := newServer(t, &arc.ServerOptions{Auth: arc.Auth{Authenticator: auth}, Limits: arc.Limits{QueueLimitPerPrincipal: 2}})
		s.HandleTasks("a-01", arctest.ScriptedTask(arctest.WaitInput("x")))
		create := func(name string) *arc.ServerRequest {
			return &arc.ServerRequest{Authorization: "Bearer " + name, Data: []byte(call("task.create", "a-01", `{"initialMessage":`+hello("go")+`}`))}
		}
		ctx, cancel := context.WithCancel(t.Context())
		ids := make(chan string, 2)
		var watchers sync.WaitGroup
		for range 2 {
			watchers.Go(func() {
				for task, err := range s.WatchTask(ctx, create("alice")) {
					if err == nil && task.Status == arc.TaskInputRequired {
						ids <- task.ID
					}
				}
			})
		}
		id := <-ids
		synctest.Wait()
		_, err = watch(t.Context(), s, create("alice"))
		require.ErrorIs(t, err, arc.ErrAgentCapacityExceeded)
		e, _ := errors.AsType[*arc.Error](err)
		require.JSONEq(t, `{"agentId":"a-01","resource":"waiting","scope":"principal","retryAfter":1}`, string(e.Details))
		list := 0
		for _, err := range s.ListTasks(t.Context(), &arc.ServerRequest{Authorization: "Bearer alice", Data: []byte(call("task.list", "a-01", "{}"))}) {
			require.NoError(t, err)
			list++
		}
		require.Equal(t, 2, list)

		in := infoOf(id)
		in.Authorization = "Bearer alice"
		seen, err := watch(t.Context(), s, in)
		require.ErrorIs(t, err, arc.ErrAgentCapacityExceeded)
		require.Equal(t, []string{"INPUT_REQUIRED go"}, seen)
		for task, err := range s.WatchTask(t.Context(), in) {
			require.NoError(t, err)
			require.Equal(t, id, task.ID)
			break
		}
		for _, err := range s.WatchTask(t.Context(), create("bob")) {
			require.NoError(t, err)
			break
		}
		cancel()
		watchers.Wait()
		for task, err := range s.WatchTask(t.Context(), create("alice")) {
			require.NoError(t, err)
			if task.Status == arc.TaskInputRequired {
				break
			}
		}
		for _, u := range s.Usage() {
			if u.Resource == "waiting" {
				require.Zero(t, u.Used)
			}
		}
	})
}

// A sequence begins with the request, and ends with its caller, its token and its server.
func TestWatchTaskEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		keys := map[string]*arc.Principal{}
		for _, name := range []string{"alice", "bob"} {
			keys[name] = &arc.Principal{ID: name, Scopes: arc.RequiredScopes("task.create"), Expires: time.Now().Add(time.Hour)}
		}
		auth, err := arc.APIKeyAuthenticator(keys)
		require.NoError(t, err)
		s := newServer(t, &arc.ServerOptions{Auth: arc.Auth{Authenticator: auth}})
		s.HandleTasks("a-01", arctest.ScriptedTask(arctest.WaitInput("x")))
		create := &arc.ServerRequest{Authorization: "Bearer alice", Data: []byte(call("task.create", "a-01", `{"initialMessage":`+hello("go")+`}`))}
		var id string
		for task, err := range s.WatchTask(t.Context(), create) {
			require.NoError(t, err)
			id = task.ID
			break
		}
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		in := infoOf(id)
		in.Authorization = "Bearer alice"
		seen, err := watch(ctx, s, in)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Equal(t, []string{"INPUT_REQUIRED go"}, seen)

		in.Authorization = "Bearer bob"
		_, err = watch(t.Context(), s, in)
		require.ErrorIs(t, err, arc.ErrTaskNotFound)
		_, err = watch(t.Context(), s, &arc.ServerRequest{Data: create.Data})
		require.ErrorIs(t, err, arc.ErrAuthenticationFailed)

		in.Authorization = "Bearer alice"
		start := time.Now()
		_, err = watch(t.Context(), s, in)
		require.ErrorIs(t, err, arc.ErrTokenExpired)
		require.Equal(t, time.Hour-time.Second, time.Since(start))

		open := newServer(t, nil)
		open.HandleTasks("a-01", arctest.ScriptedTask(arctest.WaitInput("x")))
		id = createTask(t, open, "a-01", "go")
		time.AfterFunc(time.Second, func() { _ = open.Close() })
		_, err = watch(t.Context(), open, infoOf(id))
		require.ErrorIs(t, err, arc.ErrClosed)
	})
}

// A task that ends in a shutdown is yielded with its final state, also to a watcher that begins then. The shutdown does
// not wait for the watchers of a task that waits for input.
func TestWatchTaskInShutdown(t *testing.T) {
	for _, db := range []store.Store{nil, store.NewMemory()} {
		for range 20 { // the end of the task and that of its watchers are one moment
			synctest.Test(t, func(t *testing.T) {
				s := newServer(t, &arc.ServerOptions{Persistence: arc.Persistence{Store: db}})
				s.HandleTasks("a-01", arctest.ScriptedTask(arctest.Sleep(2*time.Second), arctest.AddArtifact("out", "text")))
				s.HandleTasks("a-02", arctest.ScriptedTask(arctest.WaitInput("x")))
				id, waiting := createTask(t, s, "a-01", "go"), createTask(t, s, "a-02", "go")
				var wg sync.WaitGroup
				follow := func() {
					wg.Go(func() {
						seen, err := watch(t.Context(), s, infoOf(id))
						require.NoError(t, err)
						require.Contains(t, seen[len(seen)-1], "COMPLETED")
					})
				}
				follow()
				wg.Go(func() {
					_, err := watch(t.Context(), s, &arc.ServerRequest{Data: []byte(call("task.info", "a-02", fmt.Sprintf(`{"taskId":%q}`, waiting)))})
					require.ErrorIs(t, err, arc.ErrClosed)
				})
				time.Sleep(time.Second)
				wg.Go(func() { require.NoError(t, s.Shutdown(context.Background())) })
				synctest.Wait()
				follow()
				start := time.Now()
				wg.Wait()
				require.Equal(t, time.Second, time.Since(start))
			})
		}
	}
}

// The tasks of all instances of a group are in the order of their ids.
func TestListTasksOfGroup(t *testing.T) {
	s := newServer(t, nil)
	for _, id := range []string{"a-01", "a-02"} {
		s.Register(arc.Agent{AgentInfo: arc.AgentInfo{AgentID: id}, Group: "g", TaskHandler: arctest.ScriptedTask()})
	}
	for range 20 {
		createTask(t, s, "g", "x")
	}
	var ids []string
	for task, err := range s.ListTasks(t.Context(), &arc.ServerRequest{Data: []byte(call("task.list", "g", `{}`))}) {
		require.NoError(t, err)
		ids = append(ids, task.ID)
	}
	require.Len(t, ids, 20)
	require.IsIncreasing(t, ids)
}

// A caller lists its own tasks of an agent, with the traceId of each.
func TestListTasks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		keys := map[string]*arc.Principal{"weak": {ID: "weak", Scopes: []string{arc.ScopeAgentCaller}}}
		for _, name := range []string{"alice", "bob"} {
			keys[name] = &arc.Principal{ID: name, Scopes: arc.RequiredScopes("task.create")}
		}
		auth, err := arc.APIKeyAuthenticator(keys)
		require.NoError(t, err)
		records := 0
		s := newServer(t, &arc.ServerOptions{Auth: arc.Auth{Authenticator: auth}, Limits: arc.Limits{MaxConcurrentPerPrincipal: 1},
			Audit: func(_ context.Context, r *arc.AuditRecord) {
				if r.Operation == "task.list" {
					records++
				}
			}})
		s.HandleTasks("a-01", arctest.ScriptedTask())
		s.HandleTasks("b-01", arctest.ScriptedTask())
		want := map[string]bool{}
		for _, name := range []string{"alice", "bob"} {
			for _, agent := range []string{"a-01", "b-01"} {
				body := strings.Replace(call("task.create", agent, `{"initialMessage":`+hello("x")+`}`), `"id"`, `"traceId":"w-1","id"`, 1)
				id := result(t, post(s, body, "Authorization", "Bearer "+name), "task.create").Task.ID
				want[id] = name == "alice" && agent == "a-01"
			}
		}
		synctest.Wait()
		list := func(token, method, agent string) (ids []string, err error) {
			in := &arc.ServerRequest{Authorization: "Bearer " + token, Data: []byte(call(method, agent, `{}`))}
			for task, err := range s.ListTasks(t.Context(), in) {
				if err != nil {
					return ids, err
				}
				require.Equal(t, arc.TaskCompleted, task.Status)
				require.Nil(t, task.Messages, "left out")
				require.Nil(t, task.Artifacts, "left out")
				require.Equal(t, `"w-1"`, string(task.Extra["traceId"]))
				ids = append(ids, task.ID)
			}
			return ids, nil
		}
		ids, err := list("alice", "task.list", "a-01")
		require.NoError(t, err)
		require.Len(t, ids, 1)
		require.True(t, want[ids[0]])
		for _, c := range []struct {
			token, method, agent string
			code                 arc.Code
		}{
			{"weak", "task.list", "a-01", arc.ErrInsufficientScope},
			{"none", "task.list", "a-01", arc.ErrTokenInvalid},
			{"alice", "task.list", "c-01", arc.ErrAgentNotFound},
			{"alice", "task.info", "a-01", arc.ErrMethodNotFound},
		} {
			_, err := list(c.token, c.method, c.agent)
			require.ErrorIs(t, err, c.code, c)
		}
		in := &arc.ServerRequest{Authorization: "Bearer alice", Data: []byte(call("task.list", "a-01", `{}`))}
		for range s.ListTasks(t.Context(), in) {
			for _, err := range s.ListTasks(t.Context(), in) {
				require.ErrorIs(t, err, arc.ErrAgentCapacityExceeded)
			}
		}
		require.Equal(t, 5, records)
	})
}

// Anonymous callers at different addresses have separate keys.
func TestRequestKeyOfAnonymousCaller(t *testing.T) {
	s := newServer(t, nil)
	s.HandleTasks("a-01", arctest.ScriptedTask())
	create := func(addr, text string) (id string, err *arc.Error) {
		res := s.ServeMessage(t.Context(), &arc.ServerRequest{RemoteAddr: addr, RequestKey: "1",
			Data: []byte(call("task.create", "a-01", `{"initialMessage":`+hello(text)+`}`))}, nil)
		return string(res.Data), res.Error
	}
	first, _ := create("192.0.2.1:1000", "x")
	repeated, _ := create("192.0.2.1:2000", "x")
	require.Equal(t, first, repeated)
	other, _ := create("192.0.2.2:1000", "x")
	require.NotEqual(t, first, other, "the task of another caller")
	_, err := create("192.0.2.3:1000", "y")
	require.Nil(t, err)
}

// A request with a key runs once in a day, with any number of callers, and its key has one content.
func TestRequestKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		auth, err := arc.APIKeyAuthenticator(map[string]*arc.Principal{
			"alice": {ID: "alice", Scopes: arc.RequiredScopes("task.create")}, "bob": {ID: "bob", Scopes: arc.RequiredScopes("task.create")}})
		require.NoError(t, err)
		for _, p := range []arc.Persistence{{}, {Store: store.NewMemory()}, {ResultTTL: time.Hour}, {Store: store.NewMemory(), ResultTTL: time.Minute}} {
			var runs atomic.Int64
			s := newServer(t, &arc.ServerOptions{Auth: arc.Auth{Authenticator: auth}, Persistence: p})
			s.HandleTasks("a-01", arc.TaskHandlerFunc(func(context.Context, *arc.TaskRun) error {
				runs.Add(1)
				return nil
			}))
			create := func(token, key, text string) error {
				res := s.ServeMessage(t.Context(), &arc.ServerRequest{Authorization: "Bearer " + token, RequestKey: key,
					Data: []byte(call("task.create", "a-01", `{"initialMessage":`+hello(text)+`}`))}, nil)
				if res.Error == nil {
					return nil
				}
				return res.Error
			}
			var wg sync.WaitGroup
			var failed atomic.Int64
			for range 8 {
				wg.Go(func() {
					for range 12 {
						if create("alice", "m-1", "x") != nil {
							failed.Add(1)
						}
					}
				})
			}
			wg.Wait()
			synctest.Wait()
			require.Zero(t, failed.Load())
			require.EqualValues(t, 1, runs.Load())
			require.True(t, errors.Is(create("alice", "m-1", "y"), arc.ErrInvalidParams), "the key has other content")
			require.NoError(t, create("bob", "m-1", "y"))
			require.NoError(t, create("alice", "m-2", "x"))
			time.Sleep(23 * time.Hour)
			require.NoError(t, create("alice", "m-1", "x"))
			synctest.Wait()
			require.EqualValues(t, 3, runs.Load())
		}
	})
}

// A second loop over the changes of a task does not create another task.
func TestWatchTaskOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t, nil)
		var runs atomic.Int32
		s.HandleTasks("a-01", arc.TaskHandlerFunc(func(context.Context, *arc.TaskRun) error { runs.Add(1); return nil }))
		changes := s.WatchTask(t.Context(), &arc.ServerRequest{Data: []byte(call("task.create", "a-01", `{"initialMessage":`+hello("go")+`}`))})
		for _, err := range changes {
			require.NoError(t, err)
		}
		for _, err := range changes {
			require.ErrorContains(t, err, "ranged over once only")
		}
		synctest.Wait()
		require.EqualValues(t, 1, runs.Load())
	})
}
