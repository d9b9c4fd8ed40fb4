// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package subagents_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/fivewire/fivewire/a2e"
	"github.com/fivewire/fivewire/a2e/a2etest"
	"github.com/fivewire/fivewire/a2e/subagents"
	"github.com/fivewire/fivewire/internal/kit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func connect(t *testing.T) (*subagents.Client, *a2e.Client, *a2e.Host) {
	return connectWith(t, nil)
}

func connectWith(t *testing.T, log *slog.Logger) (*subagents.Client, *a2e.Client, *a2e.Host) {
	runner := subagents.RunnerFunc(func(ctx context.Context, agent *subagents.Agent, task *subagents.Task) (json.RawMessage, error) {
		switch task.Name {
		case "wait":
			<-ctx.Done()
			return nil, ctx.Err()
		case "linger":
			<-ctx.Done()
			time.Sleep(time.Minute)
			return json.RawMessage(`{"late":true}`), nil
		case "fail":
			return nil, errors.New("internal text")
		case "family":
			return family(ctx, agent)
		case "converse":
			return converse(ctx, agent)
		case "say":
			return nil, a2e.Errorf(a2e.ErrRuntime, "no model")
		case "panic":
			panic("as told")
		case "exit":
			runtime.Goexit()
		case "deaf":
			time.Sleep(time.Hour)
		case "list":
			return json.RawMessage(`[]`), nil
		}
		return json.RawMessage(`{"by":"` + agent.Config.Name + `"}`), nil
	})
	host := a2etest.NewHost(t, nil).AddPlugin(a2etest.Must(subagents.NewPlugin(runner, &subagents.Options{MaxAgents: 4, MaxDepth: 2, Logger: log})))
	client := a2etest.Connect(t, host, nil)
	c, err := subagents.NewClient(client)
	require.NoError(t, err)
	return c, client, host
}

func spawn(t *testing.T, c *subagents.Client, name string) string {
	r := new(subagents.SpawnRequest)
	r.Name, r.MaxSteps = name, new(int64(3))
	resp, err := c.Spawn(t.Context(), r, nil)
	require.NoError(t, err)
	require.Equal(t, subagents.StatusReady, resp.Status)
	return resp.SubagentID
}

// Delegating and awaiting, failures, limits (A2E-132).
func TestMultiAgent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var logged bytes.Buffer
		c, _, _ := connectWith(t, slog.New(slog.NewTextHandler(&logged, nil)))
		ctx := t.Context()
		id := spawn(t, c, "one")
		do := func(task string) *subagents.AwaitResponse {
			resp, err := c.Delegate(ctx, &subagents.DelegateRequest{SubagentID: id, TaskName: task}, nil)
			require.NoError(t, err)
			require.True(t, *resp.Accepted)
			got, err := c.Await(ctx, &subagents.AwaitRequest{SubagentID: id}, nil)
			if got.Error != nil { // a failed task is an error
				require.ErrorIs(t, err, a2e.ErrRuntime)
				require.ErrorContains(t, err, *got.Error)
				return got
			}
			require.NoError(t, err)
			return got
		}
		require.JSONEq(t, `{"by":"one"}`, string(do("work").Result))
		got := do("fail")
		require.Equal(t, subagents.StatusFailed, got.Status)
		require.Equal(t, "the task failed", *got.Error)
		require.Equal(t, "no model", *do("say").Error)
		_, err := c.Delegate(ctx, &subagents.DelegateRequest{SubagentID: id, TaskName: "work"}, nil)
		require.ErrorContains(t, err, "max_steps")
		id = spawn(t, c, "two")
		require.Equal(t, subagents.StatusFailed, do("panic").Status)
		require.Contains(t, logged.String(), "internal text")
		require.Contains(t, logged.String(), "as told")
		require.NotContains(t, logged.String(), "no model", "an error for the agent")
		require.Equal(t, subagents.StatusFailed, do("list").Status)
		start := time.Now()
		r := new(subagents.AwaitRequest)
		_, err = c.Delegate(ctx, &subagents.DelegateRequest{SubagentID: id, TaskName: "wait"}, nil)
		require.NoError(t, err)
		_, err = c.Delegate(ctx, &subagents.DelegateRequest{SubagentID: id, TaskName: "work"}, nil)
		require.ErrorContains(t, err, "busy")
		r.SubagentID = id
		got, err = c.Await(ctx, r, &a2e.CallOptions{Timeout: time.Hour})
		require.ErrorContains(t, err, "the time of the task is over")
		require.Equal(t, "the time of the task is over", *got.Error)
		require.Equal(t, 10*time.Minute, time.Since(start))

		done, err := c.Terminate(ctx, &subagents.TerminateRequest{SubagentID: id}, nil)
		require.NoError(t, err)
		require.True(t, done.Success)
		_, err = c.Delegate(ctx, &subagents.DelegateRequest{SubagentID: id, TaskName: "work"}, nil)
		require.ErrorContains(t, err, "terminated")
		synctest.Wait() // until its runner has returned, it counts
		for range 3 {
			spawn(t, c, "more")
		}
		_, err = c.Spawn(ctx, &subagents.SpawnRequest{Name: "too many"}, nil)
		require.ErrorContains(t, err, "too_many_subagents")
		list, err := c.List(ctx, nil, nil)
		require.NoError(t, err)
		require.Len(t, list.Subagents, 5)
		_, err = c.Await(ctx, &subagents.AwaitRequest{SubagentID: "sub_0"}, nil)
		require.ErrorContains(t, err, "unknown_subagent")
	})
}

// The older family, with children that a cancel reaches (A2E-133, A2E-D49).
func TestTree(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, client, _ := connect(t)
		ctx := t.Context()
		var events []*subagents.SubagentEvent
		client.OnPush("SUBAGENT_EVENT", func(m *a2e.Message) { events = append(events, m.Body.(*subagents.SubagentEvent)) })
		make := func(parent *string) (*subagents.SubagentSpawnResponse, error) {
			config := subagents.Config{}
			config.Name, config.Model = "n", "m"
			return c.SpawnSubagent(ctx, &subagents.SubagentSpawnRequest{Agent: config, ParentAgentID: parent}, nil)
		}
		root, err := make(nil)
		require.NoError(t, err)
		child, err := make(&root.SubagentID)
		require.NoError(t, err)
		_, err = make(&child.SubagentID)
		require.ErrorContains(t, err, "too_deep")
		for _, id := range []string{root.SubagentID, child.SubagentID} {
			_, err = c.DelegateSubagent(ctx, &subagents.SubagentDelegateRequest{SubagentID: id, Task: subagents.Task{Name: "wait"}}, nil)
			require.NoError(t, err)
		}
		require.NoError(t, c.CancelSubagent(ctx, &subagents.TerminateRequest{SubagentID: root.SubagentID}))
		got, err := c.AwaitSubagent(ctx, &subagents.AwaitRequest{SubagentID: child.SubagentID}, nil)
		require.NoError(t, err)
		require.Equal(t, subagents.StatusCancelled, got.Status)
		synctest.Wait()
		require.Len(t, events, 1)
		require.JSONEq(t, `{"status":"CANCELLED"}`, string(events[0].Content))
		_, err = c.DelegateSubagent(ctx, &subagents.SubagentDelegateRequest{SubagentID: child.SubagentID, Task: subagents.Task{Name: "work"}}, nil)
		require.NoError(t, err)
		_, err = c.AwaitSubagent(ctx, &subagents.AwaitRequest{SubagentID: child.SubagentID}, nil)
		require.NoError(t, err)
		merged, err := c.MergeSubagents(ctx, &subagents.SubagentMergeRequest{SubagentIDs: []string{root.SubagentID, child.SubagentID}}, nil)
		require.NoError(t, err)
		require.JSONEq(t, `{"`+root.SubagentID+`":null,"`+child.SubagentID+`":{"by":"n"}}`, string(merged.MergedResult))
		require.NoError(t, c.TerminateSubagent(ctx, &subagents.TerminateRequest{SubagentID: child.SubagentID}))
		synctest.Wait()
		list, err := c.ListSubagents(ctx, nil, nil)
		require.NoError(t, err)
		require.Len(t, list.Subagents, 2)
		require.Equal(t, root.SubagentID, *list.Subagents[1].ParentAgentID)
		require.Equal(t, subagents.StatusTerminated, list.Subagents[1].Status)
		require.NoError(t, c.CancelSubagent(ctx, &subagents.TerminateRequest{SubagentID: "nobody"}))
	})
}

// The event of a cancellation has the status of the subagent, which is another one if no task was running.
func TestCancelReportsTheStatus(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := a2etest.NewHost(t, nil, a2etest.Must(subagents.NewPlugin(subagents.RunnerFunc(
			func(context.Context, *subagents.Agent, *subagents.Task) (json.RawMessage, error) { return nil, nil }), nil)))
		client := a2etest.Connect(t, h, nil)
		c := a2etest.Must(subagents.NewClient(client))
		var got []string
		client.OnPush("SUBAGENT_EVENT", func(m *a2e.Message) { got = append(got, string(m.Body.(*subagents.SubagentEvent).Content)) })
		id := spawn(t, c, "one")
		cancel := &subagents.TerminateRequest{SubagentID: id}
		require.NoError(t, c.CancelSubagent(t.Context(), cancel))
		synctest.Wait()
		_, err := c.Delegate(t.Context(), &subagents.DelegateRequest{SubagentID: id}, nil)
		require.NoError(t, err)
		_, err = c.Await(t.Context(), &subagents.AwaitRequest{SubagentID: id}, nil)
		require.NoError(t, err)
		require.NoError(t, c.CancelSubagent(t.Context(), cancel))
		synctest.Wait()
		require.Equal(t, []string{`{"status":"READY"}`, `{"status":"COMPLETED"}`}, got)
	})
}

// A cancelled subagent gets no other task before its runner has returned, and its late result is
// ignored.
func TestTaskAfterCancel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _, _ := connect(t)
		ctx := t.Context()
		id := spawn(t, c, "one")
		delegate := func(task string) error {
			_, err := c.Delegate(ctx, &subagents.DelegateRequest{SubagentID: id, TaskName: task}, nil)
			return err
		}
		await := func() *subagents.AwaitResponse {
			got, err := c.Await(ctx, &subagents.AwaitRequest{SubagentID: id}, nil)
			if got.Error != nil { // a failed task is an error
				require.ErrorIs(t, err, a2e.ErrRuntime)
				require.ErrorContains(t, err, *got.Error)
				return got
			}
			require.NoError(t, err)
			return got
		}
		require.NoError(t, delegate("linger"))
		synctest.Wait()
		require.NoError(t, c.CancelSubagent(ctx, &subagents.TerminateRequest{SubagentID: id}))
		require.ErrorContains(t, delegate("work"), "busy")
		got := await()
		require.Equal(t, subagents.StatusCancelled, got.Status)
		require.Nil(t, got.Result)
		time.Sleep(time.Hour) // the runner returns
		require.NoError(t, delegate("work"))
		require.JSONEq(t, `{"by":"one"}`, string(await().Result))
	})
}

// family spawns a child and lets it work, fail and run out of time.
func family(ctx context.Context, agent *subagents.Agent) (json.RawMessage, error) {
	child, err := agent.Spawn(&subagents.Config{Name: "child"})
	if err != nil {
		return nil, err
	}
	if _, err := child.Spawn(nil); err == nil {
		return nil, errors.New("a grandchild below the deepest level")
	}
	if _, err := child.Run(ctx, &subagents.Task{Name: "fail"}); err == nil || err.Error() != "subagents: child: FAILED: the task failed" {
		return nil, fmt.Errorf("failed task: %w", err)
	}
	short, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	if _, err := child.Run(short, &subagents.Task{Name: "wait"}); !errors.Is(err, context.DeadlineExceeded) {
		return nil, fmt.Errorf("task beyond its time: %w", err)
	}
	time.Sleep(time.Second) // the runner of the child returns
	if err := agent.Emit(ctx, "progress", map[string]int{"done": 1}); err != nil {
		return nil, err
	}
	return child.Run(ctx, nil)
}

// converse returns the contents of two messages.
func converse(ctx context.Context, agent *subagents.Agent) (json.RawMessage, error) {
	var contents []json.RawMessage
	for range 2 {
		m, err := agent.Receive(ctx)
		if err != nil {
			return nil, err
		}
		contents = append(contents, m.Message.Content)
	}
	return json.Marshal(map[string][]json.RawMessage{"by " + agent.ID[:4]: contents})
}

// A runner spawns children within the depth, and emits events (A2E-D66).
func TestRunnerSpawnsAndEmits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, client, _ := connect(t)
		ctx := t.Context()
		var events []*subagents.SubagentEvent
		client.OnPush("SUBAGENT_EVENT", func(m *a2e.Message) { events = append(events, m.Body.(*subagents.SubagentEvent)) })
		id := spawn(t, c, "parent")
		_, err := c.Delegate(ctx, &subagents.DelegateRequest{SubagentID: id, TaskName: "family"}, nil)
		require.NoError(t, err)
		got, err := c.Await(ctx, &subagents.AwaitRequest{SubagentID: id}, nil)
		require.NoError(t, err)
		require.Nil(t, got.Error)
		require.JSONEq(t, `{"by":"child"}`, string(got.Result))
		synctest.Wait()
		require.Len(t, events, 1)
		require.Equal(t, id, events[0].SubagentID)
		require.Equal(t, "progress", events[0].Event)
		require.JSONEq(t, `{"done":1}`, string(events[0].Content))
		list, err := c.ListSubagents(ctx, nil, nil)
		require.NoError(t, err)
		require.Len(t, list.Subagents, 2)
		require.Equal(t, id, *list.Subagents[1].ParentAgentID)

		_, err = c.Delegate(ctx, &subagents.DelegateRequest{SubagentID: id, TaskName: "family"}, nil)
		require.NoError(t, err)
		synctest.Wait() // its child waits
		_, err = c.Terminate(ctx, &subagents.TerminateRequest{SubagentID: id}, nil)
		require.NoError(t, err)
		synctest.Wait()
		list, err = c.ListSubagents(ctx, nil, nil)
		require.NoError(t, err)
		for _, info := range list.Subagents {
			require.Equal(t, subagents.StatusTerminated, info.Status, "the children end with their parent")
		}
	})
}

// A runner receives the messages to its subagent in order, within bounds (A2E-D66).
func TestRunnerReceivesMessages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _, _ := connect(t)
		ctx := t.Context()
		id := spawn(t, c, "one")
		send := func(to, content string) error {
			_, err := c.MessageSubagent(ctx, &subagents.SubagentMessageRequest{FromSubagentID: "root", ToSubagentID: to,
				Message: subagents.Payload{Type: "text", Content: json.RawMessage(content)}}, nil)
			return err
		}
		require.NoError(t, send(id, `"before"`))
		_, err := c.Delegate(ctx, &subagents.DelegateRequest{SubagentID: id, TaskName: "converse"}, nil)
		require.NoError(t, err)
		synctest.Wait() // the runner waits for the second message
		require.NoError(t, send(id, `{"n":1}`))
		got, err := c.Await(ctx, &subagents.AwaitRequest{SubagentID: id}, nil)
		require.NoError(t, err)
		require.JSONEq(t, `{"by sub_":["before",{"n":1}]}`, string(got.Result))

		require.ErrorContains(t, send("sub_0", `1`), "unknown_subagent")
		for range 100 {
			require.NoError(t, send(id, `1`))
		}
		var full *a2e.Error
		require.ErrorAs(t, send(id, `1`), &full)
		require.Equal(t, a2e.ReasonOverloaded, full.Reason)
		require.True(t, full.Retryable)
		other := spawn(t, c, "two")
		require.NoError(t, send(other, `"`+strings.Repeat("x", 600<<10)+`"`))
		require.ErrorContains(t, send(other, `"`+strings.Repeat("x", 600<<10)+`"`), a2e.ReasonOverloaded)
		_, err = c.Terminate(ctx, &subagents.TerminateRequest{SubagentID: other}, nil)
		require.NoError(t, err)
		require.ErrorContains(t, send(other, `1`), "terminated")
	})
}

// A task ends when its runner exits or its time has expired. After the session, the host names the plugin of a runner that
// does not stop.
func TestDeafRunner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, client, host := connect(t)
		id := spawn(t, c, "deaf")
		_, err := c.Delegate(t.Context(), &subagents.DelegateRequest{SubagentID: id, TaskName: "exit"}, nil)
		require.NoError(t, err)
		_, err = c.Await(t.Context(), &subagents.AwaitRequest{SubagentID: id}, nil)
		require.ErrorContains(t, err, "the task failed")
		_, err = c.Delegate(t.Context(), &subagents.DelegateRequest{SubagentID: id, TaskName: "deaf"}, nil)
		require.NoError(t, err)
		start := time.Now()
		got, err := c.Await(t.Context(), &subagents.AwaitRequest{SubagentID: id}, &a2e.CallOptions{Timeout: time.Hour})
		require.ErrorContains(t, err, "the time of the task is over")
		require.Equal(t, subagents.StatusFailed, got.Status)
		require.Equal(t, 10*time.Minute, time.Since(start))
		_, err = c.Delegate(t.Context(), &subagents.DelegateRequest{SubagentID: id, TaskName: "work"}, nil)
		require.ErrorContains(t, err, "busy")
		require.NoError(t, client.Close())
		time.Sleep(2 * time.Second)
		require.Equal(t, []a2e.StuckHandler{{Type: "plugin multi_agent", Duration: 2 * time.Second}}, host.Stuck())
		time.Sleep(time.Hour)
		require.Empty(t, host.Stuck())
	})
}

// A task has the time of its config, at most MaxRunTime.
func TestTimeOfTask(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := a2etest.NewHost(t, nil, a2etest.Must(subagents.NewPlugin(subagents.RunnerFunc(
			func(ctx context.Context, _ *subagents.Agent, _ *subagents.Task) (json.RawMessage, error) {
				<-ctx.Done()
				return nil, ctx.Err()
			}), &subagents.Options{MaxRunTime: 2500 * time.Millisecond})))
		c := a2etest.Must(subagents.NewClient(a2etest.Connect(t, h, nil)))
		for seconds, want := range map[int64]time.Duration{1: time.Second, 2: 2 * time.Second, 3: 2500 * time.Millisecond, 0: 2500 * time.Millisecond} {
			config := subagents.Config{Name: "n", Model: "m", TimeoutSeconds: &seconds}
			spawned, err := c.SpawnSubagent(t.Context(), &subagents.SubagentSpawnRequest{Agent: config}, nil)
			require.NoError(t, err)
			start := time.Now()
			_, err = c.Delegate(t.Context(), &subagents.DelegateRequest{SubagentID: spawned.SubagentID, TaskName: "wait"}, nil)
			require.NoError(t, err)
			_, err = c.Await(t.Context(), &subagents.AwaitRequest{SubagentID: spawned.SubagentID}, nil)
			require.ErrorContains(t, err, "the time of the task is over")
			require.Equal(t, want, time.Since(start), "%d s", seconds)
		}
	})
}

// A terminated subagent counts for MaxAgents until its runner has returned, so that an agent does not collect runners
// by terminating them.
func TestRunnersAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _, _ := connect(t)
		ctx, refused := t.Context(), 0
		for range 50 {
			r, err := c.Spawn(ctx, &subagents.SpawnRequest{Name: "a"}, nil)
			if err != nil {
				require.ErrorContains(t, err, "too many")
				refused++
				continue
			}
			_, err = c.Delegate(ctx, &subagents.DelegateRequest{SubagentID: r.SubagentID, TaskName: "linger"}, nil)
			require.NoError(t, err)
			_, err = c.Terminate(ctx, &subagents.TerminateRequest{SubagentID: r.SubagentID}, nil)
			require.NoError(t, err)
		}
		require.Equal(t, 46, refused)
		time.Sleep(2 * time.Minute)
		spawn(t, c, "b")
	})
}

// A merge costs as much as its results, however often the request names them.
func TestMergeOfRepeatedNamesIsLinear(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _, _ := connect(t)
		ids := make([]string, 20_000)
		id := spawn(t, c, strings.Repeat("n", 20_000))
		_, err := c.Delegate(t.Context(), &subagents.DelegateRequest{SubagentID: id}, nil)
		require.NoError(t, err)
		_, err = c.Await(t.Context(), &subagents.AwaitRequest{SubagentID: id}, nil)
		require.NoError(t, err)
		for i := range ids {
			ids[i] = id
		}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		merged, err := c.MergeSubagents(t.Context(), &subagents.SubagentMergeRequest{SubagentIDs: ids}, nil)
		runtime.ReadMemStats(&after)
		require.NoError(t, err)
		require.Len(t, string(merged.MergedResult), len(`{"`+id+`":{"by":""}}`)+20_000)
		require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(64<<20))
	})
}

// Many short texts count as the memory that they need.
func TestListsOfSubagentsAreBounded(t *testing.T) {
	h := a2etest.NewHost(t, nil, a2etest.Must(subagents.NewPlugin(subagents.RunnerFunc(
		func(context.Context, *subagents.Agent, *subagents.Task) (json.RawMessage, error) { return nil, nil }), nil)))
	c := a2etest.Must(subagents.NewClient(a2etest.Connect(t, h, nil)))
	n := 0
	for ; n < 10; n++ {
		config := subagents.Config{Name: "n", Model: "m", Capabilities: slices.Repeat([]string{"a"}, 200_000)} // 3.8 MiB
		if _, err := c.SpawnSubagent(t.Context(), &subagents.SubagentSpawnRequest{Agent: config}, nil); err != nil {
			require.ErrorIs(t, err, a2e.ErrRuntime)
			break
		}
	}
	require.Equal(t, 4, n)
}

// The configurations, tasks and results of the subagents of a session are bounded in bytes. Ended subagents make
// room (A2E-D66).
func TestSubagentsAreBoundedInBytes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		h := a2etest.NewHost(t, nil)
		h.AddPlugin(a2etest.Must(subagents.NewPlugin(subagents.RunnerFunc(func(ctx context.Context, _ *subagents.Agent, task *subagents.Task) (json.RawMessage, error) {
			switch task.Name {
			case "hold":
				<-release
			case "talk":
				return json.RawMessage(`{"text":"` + strings.Repeat("x", len(task.Instruction)) + `"}`), nil
			}
			return nil, nil
		}), nil)))
		c := a2etest.Must(subagents.NewClient(a2etest.Connect(t, h, nil)))
		long := strings.Repeat("x", 3<<20)
		requireFull := func(err error) {
			t.Helper()
			var e *a2e.Error
			require.ErrorAs(t, err, &e)
			require.Equal(t, a2e.ReasonOverloaded, e.Reason)
			require.True(t, e.Retryable)
		}
		one, two := spawn(t, c, "one"), spawn(t, c, "two")
		delegate := func(id, name string) error {
			_, err := c.Delegate(t.Context(), &subagents.DelegateRequest{SubagentID: id, TaskName: name, Instruction: long}, nil)
			return err
		}
		await := func(id string) error {
			_, err := c.Await(t.Context(), &subagents.AwaitRequest{SubagentID: id}, nil)
			return err
		}
		require.NoError(t, delegate(one, "hold"))
		var ids []string
		for range 3 {
			ids = append(ids, spawnWith(t, c, long))
		}
		require.NoError(t, delegate(two, "hold"))
		_, err := c.Spawn(t.Context(), &subagents.SpawnRequest{Name: long}, nil)
		requireFull(err)
		requireFull(delegate(ids[0], "hold"))
		close(release)
		require.NoError(t, await(one))
		require.NoError(t, await(two))
		require.NoError(t, delegate(one, "talk"))
		require.NoError(t, await(one))
		require.NoError(t, delegate(two, "talk"))
		require.ErrorContains(t, await(two), "the result is too large", "12 MiB, the task and the result")
		for _, id := range ids {
			_, err := c.Terminate(t.Context(), &subagents.TerminateRequest{SubagentID: id}, nil)
			require.NoError(t, err)
		}
		for range 3 {
			spawnWith(t, c, long)
		}
		_, err = c.Terminate(t.Context(), &subagents.TerminateRequest{SubagentID: ids[0]}, nil)
		require.ErrorContains(t, err, "no such subagent")
	})
}

// The subagents of all sessions of a principal share its bounds of the host. Ended ones make room (A2E-D66).
func TestSubagentsOfPrincipalAreBoundedTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := a2etest.NewHost(t, &a2e.HostOptions{Auth: a2e.Auth{Authenticator: a2etest.KeyAuthenticator("key")}, Limits: a2e.Limits{MaxMemoryPerPrincipal: 4 << 20}},
			a2etest.Must(subagents.NewPlugin(subagents.RunnerFunc(func(context.Context, *subagents.Agent, *subagents.Task) (json.RawMessage, error) {
				return json.RawMessage(`{"text":"` + strings.Repeat("x", 2<<20) + `"}`), nil
			}), nil)))
		open := func() *subagents.Client {
			return a2etest.Must(subagents.NewClient(a2etest.Connect(t, h, &a2e.ClientOptions{Token: "key"})))
		}
		one, two := open(), open()
		long := strings.Repeat("x", 1<<20-1024)
		refuses := func(c *subagents.Client) {
			t.Helper()
			_, err := c.Spawn(t.Context(), &subagents.SpawnRequest{Name: long}, nil)
			var e *a2e.Error
			require.ErrorAs(t, err, &e)
			require.Equal(t, a2e.ReasonOverloaded, e.Reason)
			require.True(t, e.Retryable)
		}
		first := spawnWith(t, one, long)
		for _, c := range []*subagents.Client{one, two} {
			spawnWith(t, c, long)
		}
		small := spawnWith(t, two, "small")
		_, err := two.Delegate(t.Context(), &subagents.DelegateRequest{SubagentID: small}, nil)
		require.NoError(t, err)
		_, err = two.Await(t.Context(), &subagents.AwaitRequest{SubagentID: small}, nil)
		require.ErrorContains(t, err, "the result is too large")
		spawnWith(t, two, long)
		refuses(one)
		refuses(two)
		_, err = one.Terminate(t.Context(), &subagents.TerminateRequest{SubagentID: first}, nil)
		require.NoError(t, err)
		refuses(two)
		spawnWith(t, one, long)
		refuses(two)
		require.NoError(t, h.Close())
		time.Sleep(time.Minute)
		for _, u := range h.Usage() {
			require.Zero(t, u.Used, "%+v", u)
		}
	})
}

func spawnWith(t *testing.T, c *subagents.Client, name string) string {
	t.Helper()
	resp, err := c.Spawn(t.Context(), &subagents.SpawnRequest{Name: name}, nil)
	require.NoError(t, err)
	return resp.SubagentID
}

// A terminated subagent whose runner continues gets no children, which would not end with it.
func TestTerminatedSubagentHasNoNewChildren(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		spawned := make(chan error, 1)
		h := a2etest.NewHost(t, nil).AddPlugin(a2etest.Must(subagents.NewPlugin(subagents.RunnerFunc(
			func(ctx context.Context, agent *subagents.Agent, _ *subagents.Task) (json.RawMessage, error) {
				<-ctx.Done()
				_, err := agent.Spawn(nil)
				spawned <- err
				return nil, err
			}), nil)))
		c := a2etest.Must(subagents.NewClient(a2etest.Connect(t, h, nil)))
		id := spawn(t, c, "one")
		_, err := c.Delegate(t.Context(), &subagents.DelegateRequest{SubagentID: id}, nil)
		require.NoError(t, err)
		_, err = c.Terminate(t.Context(), &subagents.TerminateRequest{SubagentID: id}, nil)
		require.NoError(t, err)
		require.ErrorContains(t, <-spawned, "has ended")
	})
}

// A message that its subagent has received is not kept.
func TestReceivedMessagesAreFreed(t *testing.T) {
	received, start := make(chan struct{}), make(chan struct{})
	h := a2etest.NewHost(t, nil, a2etest.Must(subagents.NewPlugin(subagents.RunnerFunc(
		func(ctx context.Context, agent *subagents.Agent, _ *subagents.Task) (json.RawMessage, error) {
			<-start
			for {
				if _, err := agent.Receive(ctx); err != nil {
					return nil, err
				}
				received <- struct{}{}
			}
		}), nil)))
	c := a2etest.Must(subagents.NewClient(a2etest.Connect(t, h, nil)))
	id := spawn(t, c, "one")
	send := func(content string) {
		_, err := c.MessageSubagent(t.Context(), &subagents.SubagentMessageRequest{FromSubagentID: "root", ToSubagentID: id,
			Message: subagents.Payload{Type: "text", Content: json.RawMessage(`"` + content + `"`)}}, nil)
		require.NoError(t, err)
	}
	_, err := c.Delegate(t.Context(), &subagents.DelegateRequest{SubagentID: id, TaskName: "receive"}, nil)
	require.NoError(t, err)
	for range 100 {
		send("small")
	}
	close(start)
	for range 100 {
		<-received
	}
	before := kit.Heap()
	for range 20 {
		send(strings.Repeat("x", 1_000_000))
		<-received
	}
	require.Less(t, kit.Heap()-before, int64(8<<20))
}
