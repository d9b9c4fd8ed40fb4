// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package arc_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fivewire/fivewire/arc"
	"github.com/fivewire/fivewire/arc/arctest"
	"github.com/fivewire/fivewire/internal/testkit"
	"github.com/fivewire/fivewire/store"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func send(h http.Handler, agent, id, text string) *arc.Response {
	rec := post(h, call("task.send", agent, fmt.Sprintf(`{"taskId":%q,"message":%s}`, id, hello(text))))
	res, _ := arc.DecodeResponse(rec.Body.Bytes(), "")
	return res
}

func cancelTask(h http.Handler, agent, id string) *arc.Response {
	rec := post(h, call("task.cancel", agent, fmt.Sprintf(`{"taskId":%q,"reason":"enough"}`, id)))
	res, _ := arc.DecodeResponse(rec.Body.Bytes(), "")
	return res
}

func TestTaskLife(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var events []string
		s := newServer(t, &arc.ServerOptions{OnTaskEvent: func(_ context.Context, agent string, n *arc.Notification) {
			events = append(events, fmt.Sprintf("%s %s %s", agent, n.Event, n.Data.Status))
		}})
		s.HandleTasks("a-01", arctest.ScriptedTask(arctest.AddMessage("which?"), arctest.WaitInput("color"), arctest.Sleep(time.Minute), arctest.AddArtifact("out", "text")))
		id := createTask(t, s, "a-01", "go")
		synctest.Wait()
		require.Equal(t, arc.TaskInputRequired, taskOf(t, s, "a-01", id).Status)
		time.Sleep(time.Second)
		require.Nil(t, send(s, "a-01", id, "red").Error)
		require.ErrorIs(t, send(s, "a-01", id, "blue").Error, arc.ErrInvalidTaskTransition)
		synctest.Wait()
		require.Equal(t, arc.TaskWorking, taskOf(t, s, "a-01", id).Status)
		time.Sleep(2 * time.Minute)
		task := taskOf(t, s, "a-01", id)
		require.Equal(t, arc.TaskCompleted, task.Status)
		require.Len(t, task.Messages, 3)
		require.Len(t, task.Artifacts, 1)
		require.Equal(t, "artifact-1", task.Artifacts[0].ID)
		require.Equal(t, []string{"a-01 TASK_CREATED SUBMITTED", "a-01 TASK_STARTED WORKING", "a-01 STATUS_CHANGE WORKING",
			"a-01 NEW_MESSAGE WORKING", "a-01 TASK_PAUSED INPUT_REQUIRED", "a-01 STATUS_CHANGE INPUT_REQUIRED",
			"a-01 NEW_MESSAGE WORKING", "a-01 TASK_RESUMED WORKING", "a-01 STATUS_CHANGE WORKING",
			"a-01 NEW_ARTIFACT WORKING", "a-01 TASK_COMPLETED COMPLETED", "a-01 STATUS_CHANGE COMPLETED"}, events)
		// Closed tasks are kept for a day.
		time.Sleep(23 * time.Hour)
		require.Len(t, taskOf(t, s, "a-01", id).Messages, 3)
		time.Sleep(2 * time.Hour)
		fault(t, post(s, call("task.info", "a-01", fmt.Sprintf(`{"taskId":%q}`, id))), arc.ErrTaskNotFound)
	})
}

func TestSecondWaitInputIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t, nil)
		s.HandleTasks("a-01", arc.TaskHandlerFunc(func(ctx context.Context, run *arc.TaskRun) error {
			first := make(chan error)
			go func() {
				_, err := run.WaitInput(ctx, "x")
				first <- err
			}()
			time.Sleep(time.Second)
			_, err := run.WaitInput(ctx, "y")
			require.EqualError(t, err, "arc: wait for input: another call waits")
			return <-first
		}))
		id := createTask(t, s, "a-01", "x")
		time.Sleep(2 * time.Second)
		require.Nil(t, send(s, "a-01", id, "red").Error)
		synctest.Wait()
		require.Equal(t, arc.TaskCompleted, taskOf(t, s, "a-01", id).Status)
	})
}

func TestTaskRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t, nil)
		var errAfterEnd error
		s.HandleTasks("a-01", arc.TaskHandlerFunc(func(ctx context.Context, run *arc.TaskRun) error {
			require.Equal(t, "ui-01", arc.CallFromContext(ctx).RequestAgent)
			require.Equal(t, "w-1", arc.TraceIDFromContext(ctx))
			require.Equal(t, arc.PriorityHigh, run.Priority())
			require.Equal(t, `{"deadline":1e400}`, string(run.Metadata()))
			require.False(t, run.Redelivered())
			require.NoError(t, run.AddProgress(ctx, "%d%%", 50))
			// The input does not arrive in time: the task continues without it.
			wait, cancel := context.WithTimeout(ctx, time.Second)
			_, err := run.WaitInput(wait, "x")
			cancel()
			require.ErrorIs(t, err, context.DeadlineExceeded)
			task, err := run.Task(ctx)
			require.NoError(t, err)
			require.Equal(t, arc.TaskWorking, task.Status)
			require.Equal(t, "50%", task.Messages[1].Text())
			require.Error(t, run.AddArtifact(ctx, &arc.Artifact{Parts: []arc.Part{{Type: arc.PartTypeData, Data: json.RawMessage(`{`)}}}))
			_, errAfterEnd = run.WaitInput(ctx, "y")
			require.ErrorIs(t, run.AddMessage(ctx, arc.AgentText("late")), arc.ErrTaskAlreadyCanceled)
			require.ErrorIs(t, context.Cause(ctx), arc.ErrTaskAlreadyCanceled)
			return errors.New("ignored")
		}))
		body := strings.Replace(call("task.create", "a-01", `{"priority":"HIGH","metadata":{"deadline":1e400},"initialMessage":`+hello("x")+`}`), `"id"`, `"traceId":"w-1","id"`, 1)
		id := result(t, post(s, body), "task.create").Task.ID
		time.Sleep(time.Minute)
		require.Nil(t, cancelTask(s, "a-01", id).Error)
		synctest.Wait()
		require.ErrorIs(t, errAfterEnd, arc.ErrTaskAlreadyCanceled)
		task := taskOf(t, s, "a-01", id)
		require.Equal(t, arc.TaskCanceled, task.Status)
		require.Equal(t, "enough", task.Reason)
		require.Len(t, task.Messages, 2)
		require.Empty(t, task.Artifacts)
	})
}

func TestTaskFailures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		s := newServer(t, &arc.ServerOptions{Logger: slog.New(slog.NewTextHandler(&log, nil)), Limits: arc.Limits{MaxTaskItems: 3}})
		s.HandleTasks("panic-01", arc.TaskHandlerFunc(func(context.Context, *arc.TaskRun) error { panic("secret") }))
		s.HandleTasks("error-01", arc.TaskHandlerFunc(func(context.Context, *arc.TaskRun) error { return errors.New("secret") }))
		s.HandleTasks("told-01", arctest.ScriptedTask(arctest.Fail(arc.ErrTaskDeadlineExceeded, "too late")))
		s.HandleTasks("full-01", arctest.ScriptedTask(arctest.AddMessage("1"), arctest.AddMessage("2"), arctest.AddMessage("3")))
		s.HandleTasks("left-01", arc.TaskHandlerFunc(func(ctx context.Context, run *arc.TaskRun) error {
			wait, cancel := context.WithCancel(ctx)
			go func() { _, _ = run.WaitInput(wait, "x") }()
			time.Sleep(time.Second)
			_ = cancel // it returns while a question is open
			return nil
		}))
		for agent, code := range map[string]arc.Code{"panic-01": arc.ErrInternal, "error-01": arc.ErrInternal,
			"told-01": arc.ErrTaskDeadlineExceeded, "full-01": arc.ErrInternal, "left-01": arc.ErrInternal} {
			id := createTask(t, s, agent, "x")
			time.Sleep(2 * time.Second)
			task := taskOf(t, s, agent, id)
			require.Equal(t, arc.TaskFailed, task.Status, agent)
			require.Equal(t, code, task.Error.Code, agent)
			require.NotContains(t, task.Reason+string(task.Error.Details), "secret")
			require.NotEmpty(t, task.FailedAt)
		}
		require.Contains(t, log.String(), "secret")
	})
}

// The hook may use the task whose event it gets.
// A handler that returns the error of its context after the end of the task or of the server has not failed.
func TestEndedContextIsNoFailure(t *testing.T) {
	for _, end := range []func(s *arc.Server, id string){
		func(s *arc.Server, id string) { post(s, call("task.cancel", "a-01", fmt.Sprintf(`{"taskId":%q}`, id))) },
		func(s *arc.Server, _ string) { _ = s.Close() },
	} {
		synctest.Test(t, func(t *testing.T) {
			var log testkit.Log
			s := newServer(t, &arc.ServerOptions{Logger: log.Logger()})
			s.HandleTasks("a-01", arc.TaskHandlerFunc(func(ctx context.Context, _ *arc.TaskRun) error {
				<-ctx.Done()
				return fmt.Errorf("work: %w", ctx.Err())
			}))
			id := createTask(t, s, "a-01", "x")
			synctest.Wait()
			end(s, id)
			synctest.Wait()
			require.NotContains(t, log.String(), "level=ERROR")
		})
	}
}

func TestTaskEventHookRunsWithoutLock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s *arc.Server
		var events []arc.Event
		s = newServer(t, &arc.ServerOptions{OnTaskEvent: func(_ context.Context, agent string, n *arc.Notification) {
			events = append(events, n.Event)
			if n.Event == arc.EventTaskStarted {
				require.Equal(t, arc.TaskWorking, taskOf(t, s, agent, n.TaskID).Status)
				require.Nil(t, cancelTask(s, agent, n.TaskID).Error)
			}
		}})
		s.HandleTasks("a-01", arctest.ScriptedTask(arctest.WaitCanceled()))
		createTask(t, s, "a-01", "x")
		synctest.Wait()
		require.Equal(t, []arc.Event{arc.EventTaskCreated, arc.EventTaskStarted, arc.EventStatusChange, arc.EventTaskCanceled, arc.EventStatusChange}, events)
	})
}

// Of two who cancel at once exactly one does (ARC-D46).
func TestConcurrentCancel(t *testing.T) {
	s := newServer(t, nil)
	s.HandleTasks("a-01", arctest.ScriptedTask(arctest.WaitCanceled()))
	for range 20 {
		id := createTask(t, s, "a-01", "x")
		var wg sync.WaitGroup
		var mu sync.Mutex
		won := 0
		for range 8 {
			wg.Go(func() {
				res := cancelTask(s, "a-01", id)
				mu.Lock()
				defer mu.Unlock()
				if res.Error == nil {
					won++
				} else if !errors.Is(res.Error, arc.ErrTaskAlreadyCanceled) {
					won += 100
				}
			})
		}
		wg.Wait()
		require.Equal(t, 1, won)
	}
}

func TestOwnership(t *testing.T) {
	s := newServer(t, &arc.ServerOptions{Auth: arc.Auth{Authenticator: arc.BearerAuthenticator(arc.TokenVerifierFunc(func(_ context.Context, token string) (*arc.Principal, error) {
		return &arc.Principal{ID: token, Scopes: strings.Fields(arc.ScopesFullCaller)}, nil
	}))}})
	s.Register(arc.Agent{AgentInfo: arc.AgentInfo{AgentID: "a-01"}, TaskHandler: arctest.ScriptedTask(arctest.WaitCanceled()), ChatHandler: arctest.EchoChat()})
	alice, bob := []string{"Authorization", "Bearer alice"}, []string{"Authorization", "Bearer bob"}
	id := createTask(t, s, "a-01", "x", alice...)
	for _, method := range []string{"task.info", "task.cancel"} {
		foreign := fault(t, post(s, call(method, "a-01", fmt.Sprintf(`{"taskId":%q}`, id)), bob...), arc.ErrTaskNotFound)
		absent := fault(t, post(s, call(method, "a-01", fmt.Sprintf(`{"taskId":%q}`, "nope")), bob...), arc.ErrTaskNotFound)
		require.Equal(t, strings.Replace(string(foreign.Details), id, "nope", 1), string(absent.Details))
	}
	// The same chat id is another chat for another principal (ARC-D34).
	start := call("chat.start", "a-01", `{"chatId":"c","initialMessage":`+hello("hi")+`}`)
	result(t, post(s, start, alice...), "chat.start")
	result(t, post(s, start, bob...), "chat.start")
	result(t, post(s, call("chat.end", "a-01", `{"chatId":"c"}`), bob...), "chat.end")
	result(t, post(s, call("chat.message", "a-01", `{"chatId":"c","message":`+hello("still there")+`}`), alice...), "chat.message")
}

// ARC-010, ARC-D47: instances of one type share the load, each up to its capacity.
func TestCapacityAndGroups(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t, nil)
		for _, id := range []string{"g-01", "g-02"} {
			s.Register(arc.Agent{AgentInfo: arc.AgentInfo{AgentID: id}, Group: "g", MaxConcurrent: 1,
				TaskHandler: arctest.ScriptedTask(arctest.WaitCanceled()), ChatHandler: arctest.EchoChat(),
				Methods: map[string]arc.Handler{"make.chat": arc.HandlerFunc(func(_ context.Context, c *arc.Call) (any, error) {
					return &arc.Chat{ID: "custom", Reason: c.Agent}, nil
				}), "see.chat": arc.HandlerFunc(echo)}})
		}
		// A task keeps its place until it ends.
		first := answer(t, post(s, call("task.create", "g", `{"initialMessage":`+hello("x")+`}`)))
		require.Equal(t, "g-01", first.ResponseAgent)
		one, err := arc.DecodeResult("task.create", first.Result)
		require.NoError(t, err)
		second := createTask(t, s, "g", "x")
		synctest.Wait()
		fault(t, post(s, call("task.create", "g", `{"initialMessage":`+hello("x")+`}`)), arc.ErrAgentCapacityExceeded)
		fault(t, post(s, call("chat.start", "g-02", `{"initialMessage":`+hello("x")+`}`)), arc.ErrAgentCapacityExceeded)
		require.Equal(t, 1, s.Agents()[0].InFlight)
		// Requests about a task need no slot, and go to its instance.
		for range 3 {
			res := answer(t, post(s, call("task.info", "g", fmt.Sprintf(`{"taskId":%q}`, one.Task.ID))))
			require.Equal(t, "g-01", res.ResponseAgent)
			require.Nil(t, res.Error)
		}
		require.Nil(t, cancelTask(s, "g", one.Task.ID).Error)
		require.Nil(t, cancelTask(s, "g", second).Error)
		synctest.Wait()
		require.Zero(t, s.Agents()[0].InFlight+s.Agents()[1].InFlight)
		// A task that was started under an instance's own name is found through
		// the group.
		third := createTask(t, s, "g-02", "x")
		require.Equal(t, "g-02", answer(t, post(s, call("task.info", "g", fmt.Sprintf(`{"taskId":%q}`, third)))).ResponseAgent)
		require.Nil(t, cancelTask(s, "g", third).Error)
		synctest.Wait()
		// One instance serves all messages of a chat.
		res := answer(t, post(s, call("chat.start", "g", `{"chatId":"c","initialMessage":`+hello("x")+`}`)))
		owner := res.ResponseAgent
		for range 3 {
			res := answer(t, post(s, call("chat.message", "g", `{"chatId":"c","message":`+hello("x")+`}`)))
			require.Equal(t, owner, res.ResponseAgent)
			require.Nil(t, res.Error)
		}
		res = answer(t, post(s, call("make.chat", "g", `{}`)))
		require.Equal(t, res.ResponseAgent, answer(t, post(s, call("see.chat", "g", `{"chatId":"custom"}`))).ResponseAgent)
		require.True(t, s.SetHealthy(owner, false))
		e := fault(t, post(s, call("chat.message", "g", `{"chatId":"c","message":`+hello("x")+`}`)), arc.ErrAgentNotAvailable)
		require.JSONEq(t, `{"agentId":"g"}`, string(e.Details))
		s.Unregister(owner)
		fault(t, post(s, call("chat.message", "g", `{"chatId":"c","message":`+hello("x")+`}`)), arc.ErrAgentNotAvailable)
	})
}

// hooks takes notifications.
type hooks struct {
	mu   sync.Mutex
	got  []string
	fail func(n int) (int, error)
	n    int

	once bool // count each delivery once, as a receiver does
	seen map[string]bool
}

func (h *hooks) RoundTrip(req *http.Request) (*http.Response, error) {
	body, err := io.ReadAll(req.Body)
	if err != nil {
		return nil, err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.n++
	status := 200
	if h.fail != nil {
		if status, err = h.fail(h.n); err != nil {
			return nil, err
		}
	}
	delivery := req.Header.Get("X-ARC-Delivery")
	if h.seen == nil {
		h.seen = map[string]bool{}
	}
	if status/100 == 2 && !(h.once && h.seen[delivery]) {
		h.seen[delivery] = true
		r, err := arc.DecodeRequest(body)
		if err != nil {
			return nil, err
		}
		var n arc.Notification
		if err := n.UnmarshalJSON(r.Params); err != nil {
			return nil, err
		}
		h.got = append(h.got, fmt.Sprintf("%s %s %s", req.URL.Host, n.Event, n.Data.Status))
	}
	return &http.Response{StatusCode: status, Header: http.Header{}, Body: http.NoBody, Request: req}, nil
}

// count returns the number of requests.
func (h *hooks) count() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.n
}

func (h *hooks) take() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	got := h.got
	h.got = nil
	return got
}

func (h *hooks) options() *arc.WebhookOptions {
	o := &arc.WebhookOptions{Transport: h}
	arctest.ExactWebhooks(o, func(context.Context, string, string) ([]netip.Addr, error) {
		return []netip.Addr{netip.MustParseAddr("93.184.216.34")}, nil
	})
	return o
}

// withStatic is options with a webhook of all tasks.
func (h *hooks) withStatic(w arc.StaticWebhook) *arc.WebhookOptions {
	o := h.options()
	o.Static = []arc.StaticWebhook{w}
	return o
}

func subscribe(t testing.TB, h http.Handler, agent, task, url, events string) *arc.Subscription {
	t.Helper()
	return result(t, post(h, call("task.subscribe", agent, fmt.Sprintf(`{"taskId":%q,"callbackUrl":%q,"events":%s}`, task, url, events))), "task.subscribe").Subscription
}

func TestNotifications(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &hooks{}
		s := newServer(t, &arc.ServerOptions{Webhook: h.withStatic(arc.StaticWebhook{ID: "ops", CallbackURL: "https://ops.test/", TargetAgent: "ops-01", Events: []arc.Event{arc.EventTaskCreated, arc.EventTaskFailed}}), Limits: arc.Limits{MaxSubscriptions: 2}})
		s.HandleTasks("a-01", arctest.ScriptedTask(arctest.WaitInput("x"), arctest.AddMessage("m"), arctest.AddArtifact("p", "q"), arctest.Fail(arc.ErrTaskExecutionFailed, "boom")))
		id := createTask(t, s, "a-01", "x")
		synctest.Wait()
		require.Equal(t, []string{"ops.test TASK_CREATED SUBMITTED"}, h.take())
		require.True(t, subscribe(t, s, "a-01", id, "https://one.test/", `["NEW_MESSAGE","NEW_ARTIFACT","TASK_RESUMED","STATUS_CHANGE"]`).Active)
		subscribe(t, s, "a-01", id, "https://two.test/", `[]`)
		fault(t, post(s, call("task.subscribe", "a-01", fmt.Sprintf(`{"taskId":%q,"callbackUrl":"https://three.test/"}`, id))), arc.ErrPermissionDenied)
		require.Nil(t, send(s, "a-01", id, "in").Error)
		time.Sleep(time.Second) // a put and its sender may change one record at once
		synctest.Wait()
		var one, two, ops []string
		for _, line := range h.take() {
			host, rest, _ := strings.Cut(line, " ")
			switch host {
			case "one.test":
				one = append(one, rest)
			case "two.test":
				two = append(two, rest)
			case "ops.test":
				ops = append(ops, rest)
			}
		}
		require.Equal(t, []string{"NEW_MESSAGE WORKING", "TASK_RESUMED WORKING", "STATUS_CHANGE WORKING", "NEW_MESSAGE WORKING",
			"NEW_ARTIFACT WORKING", "STATUS_CHANGE FAILED"}, one)
		require.Equal(t, []string{"TASK_FAILED FAILED"}, two)
		require.Equal(t, []string{"TASK_FAILED FAILED"}, ops)
	})
}

// By default 32 webhooks follow a task.
func TestSubscriptionsOfTaskAreBounded(t *testing.T) {
	s := newServer(t, &arc.ServerOptions{Webhook: (&hooks{}).options()})
	s.HandleTasks("a-01", arctest.ScriptedTask(arctest.WaitCanceled()))
	id := createTask(t, s, "a-01", "x")
	for i := range 32 {
		subscribe(t, s, "a-01", id, fmt.Sprintf("https://%d.test/", i), `[]`)
	}
	fault(t, post(s, call("task.subscribe", "a-01", fmt.Sprintf(`{"taskId":%q,"callbackUrl":"https://more.test/"}`, id))), arc.ErrPermissionDenied)
}

// A webhook that answers 410 does not affect the task and receives no more requests.
func TestDeadWebhook(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &hooks{fail: func(n int) (int, error) {
			if n == 1 {
				return 410, nil
			}
			return 200, nil
		}}
		s := newServer(t, &arc.ServerOptions{Webhook: h.options()})
		s.HandleTasks("a-01", arctest.ScriptedTask(arctest.Sleep(time.Second), arctest.AddMessage("1"), arctest.Sleep(time.Second), arctest.AddMessage("2")))
		id := createTask(t, s, "a-01", "x")
		subscribe(t, s, "a-01", id, "https://gone.test/", `["NEW_MESSAGE","TASK_COMPLETED"]`)
		time.Sleep(time.Minute)
		require.Equal(t, arc.TaskCompleted, taskOf(t, s, "a-01", id).Status)
		require.Equal(t, 1, h.n)
		require.Empty(t, h.take())
	})
}

func TestShutdown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := arc.MustServer(nil)
		s.Register(arc.Agent{AgentInfo: arc.AgentInfo{AgentID: "a-01"}, TaskHandler: arctest.ScriptedTask(arctest.Sleep(time.Minute)),
			Methods: map[string]arc.Handler{"debug.echo": arc.HandlerFunc(echo)}})
		id := createTask(t, s, "a-01", "x")
		done := make(chan error)
		go func() { done <- s.Shutdown(t.Context()) }()
		synctest.Wait()
		rec := post(s, call("task.create", "a-01", `{"initialMessage":`+hello("x")+`}`))
		require.Equal(t, 503, rec.Code)
		require.Equal(t, "5", rec.Header().Get("Retry-After"))
		fault(t, rec, arc.ErrAgentNotAvailable)
		fault(t, post(s, call("debug.echo", "a-01", `{}`)), arc.ErrAgentNotAvailable)
		require.Equal(t, arc.TaskWorking, taskOf(t, s, "a-01", id).Status) // tasks can be read during a shutdown
		require.NoError(t, <-done)
		require.NoError(t, s.Close())

		s = arc.MustServer(nil)
		s.HandleTasks("a-01", arctest.ScriptedTask(arctest.WaitCanceled()))
		createTask(t, s, "a-01", "x")
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		require.ErrorIs(t, s.Shutdown(ctx), context.DeadlineExceeded)
	})
}

// crashStore stops a server like a crash of its process: the store receives no more calls.
type crashStore struct {
	store.Store
	mu   sync.Mutex
	dead bool
	at   string // prefix of a stream; an Append to it is a crash
}

var errDead = fmt.Errorf("the process has exited: %w", store.ErrClosed)

func (c *crashStore) crash() { c.mu.Lock(); c.dead = true; c.mu.Unlock() }
func (c *crashStore) ok() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.dead {
		return errDead
	}
	return nil
}

func (c *crashStore) Update(ctx context.Context, key string, value []byte, rev store.Revision, ttl time.Duration) (store.Revision, error) {
	if err := c.ok(); err != nil {
		return 0, err
	}
	return c.Store.Update(ctx, key, value, rev, ttl)
}

func (c *crashStore) Create(ctx context.Context, key string, value []byte, ttl time.Duration) (store.Revision, error) {
	if err := c.ok(); err != nil {
		return 0, err
	}
	return c.Store.Create(ctx, key, value, ttl)
}

func (c *crashStore) Append(ctx context.Context, stream, id string, value []byte, ttl time.Duration) (uint64, error) {
	if c.at != "" && strings.HasPrefix(stream, c.at) {
		c.crash()
	}
	if err := c.ok(); err != nil {
		return 0, err
	}
	return c.Store.Append(ctx, stream, id, value, ttl)
}

func (c *crashStore) Delete(ctx context.Context, key string, rev store.Revision) error {
	if err := c.ok(); err != nil {
		return err
	}
	return c.Store.Delete(ctx, key, rev)
}

func (c *crashStore) Ack(ctx context.Context, stream string, seqs ...uint64) error {
	if err := c.ok(); err != nil {
		return err
	}
	return c.Store.Ack(ctx, stream, seqs...)
}

func TestRecoverAfterCrash(t *testing.T) {
	for _, rerun := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			db := store.NewMemory()
			h := &hooks{fail: func(int) (int, error) { return 0, errors.New("no network") }}
			first := &crashStore{Store: db}
			a := newServer(t, &arc.ServerOptions{Persistence: arc.Persistence{Store: first}, Webhook: h.options()})
			a.HandleTasks("a-01", arctest.ScriptedTask(arctest.AddMessage("half"), arctest.WaitInput("more"), arctest.WaitCanceled()))
			a.HandleTasks("other-01", arctest.ScriptedTask(arctest.WaitCanceled()))
			working, waiting := createTask(t, a, "a-01", "w"), createTask(t, a, "a-01", "i")
			other := createTask(t, a, "other-01", "o")
			synctest.Wait()
			require.Nil(t, send(a, "a-01", working, "go on").Error)
			subscribe(t, a, "a-01", working, "https://one.test/", `["NEW_MESSAGE","TASK_COMPLETED","TASK_FAILED"]`)
			finished := createTask(t, a, "a-01", "c")
			subscribe(t, a, "a-01", finished, "https://two.test/", `["TASK_CANCELED"]`)
			require.Nil(t, cancelTask(a, "a-01", finished).Error)
			synctest.Wait()
			first.crash()

			h.mu.Lock()
			h.fail = nil
			h.mu.Unlock()
			b := newServer(t, &arc.ServerOptions{Persistence: arc.Persistence{Store: db}, Webhook: h.options()})
			var reruns atomic.Int32
			b.Register(arc.Agent{AgentInfo: arc.AgentInfo{AgentID: "a-01"}, FailInterrupted: !rerun, TaskHandler: arc.TaskHandlerFunc(func(ctx context.Context, run *arc.TaskRun) error {
				require.True(t, run.Redelivered())
				reruns.Add(1)
				return run.AddArtifact(ctx, &arc.Artifact{Name: "whole", Parts: []arc.Part{arc.TextPart(run.Message().Text())}})
			})})
			require.NoError(t, b.WaitRecovered(t.Context()))
			time.Sleep(21 * time.Second)
			require.NoError(t, b.WaitRecovered(t.Context()))
			time.Sleep(time.Second)
			for _, id := range []string{working, waiting} {
				task := taskOf(t, b, "a-01", id)
				if id == waiting {
					require.Equal(t, arc.TaskInputRequired, task.Status)
				} else if rerun {
					require.Equal(t, arc.TaskCompleted, task.Status)
					require.Len(t, task.Artifacts, 1)
				} else {
					require.Equal(t, arc.TaskFailed, task.Status)
					require.Equal(t, arc.ErrTaskExecutionFailed, task.Error.Code)
				}
				require.Equal(t, "half", task.Messages[1].Text(), "nothing that was acknowledged is lost")
			}
			got := h.take()
			require.Contains(t, got, "two.test TASK_CANCELED CANCELED")
			if rerun {
				require.Equal(t, int32(1), reruns.Load())
				require.Contains(t, got, "one.test TASK_COMPLETED COMPLETED")
			} else {
				require.Contains(t, got, "one.test TASK_FAILED FAILED")
			}
			// An agent that is not here is left to a process that has it.
			c := newServer(t, &arc.ServerOptions{Persistence: arc.Persistence{Store: db}})
			c.HandleTasks("other-01", arctest.ScriptedTask())
			require.NoError(t, c.WaitRecovered(t.Context()))
			require.Equal(t, arc.TaskFailed, taskOf(t, c, "other-01", other).Status)
			require.NoError(t, c.WaitRecovered(t.Context()))
		})
	}
}

// Tasks that a shutdown interrupted are available to the next server at once.
func TestRecoverAfterShutdown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := store.NewMemory()
		a := arc.MustServer(&arc.ServerOptions{Persistence: arc.Persistence{Store: db}})
		a.Register(rerunAgent("a-01", arctest.ScriptedTask(arctest.WaitCanceled())))
		id := createTask(t, a, "a-01", "x")
		synctest.Wait()
		require.NoError(t, a.Close())
		b := newServer(t, &arc.ServerOptions{Persistence: arc.Persistence{Store: db}})
		b.Register(rerunAgent("a-01", arctest.ScriptedTask(arctest.AddArtifact("out", "done"))))
		require.NoError(t, b.WaitRecovered(t.Context()))
		synctest.Wait()
		require.Equal(t, arc.TaskCompleted, taskOf(t, b, "a-01", id).Status)
	})
}

// Processes that share a store act on each other's tasks. Both may send a pending notification: a
// receiver sees each delivery at least once.
func TestTwoProcesses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := store.NewMemory()
		h := &hooks{once: true}
		a := newServer(t, &arc.ServerOptions{Persistence: arc.Persistence{Store: db}, Webhook: h.options()})
		b := newServer(t, &arc.ServerOptions{Persistence: arc.Persistence{Store: db}, Webhook: h.options()})
		var cause error
		for _, s := range []*arc.Server{a, b} {
			s.HandleTasks("a-01", arc.TaskHandlerFunc(func(ctx context.Context, run *arc.TaskRun) error {
				m, err := run.WaitInput(ctx, "x")
				if err != nil {
					return err
				}
				if err := run.AddMessage(ctx, arc.AgentText("got "+m.Text())); err != nil {
					return err
				}
				<-ctx.Done()
				cause = context.Cause(ctx)
				return nil
			}))
		}
		id := createTask(t, a, "a-01", "x")
		synctest.Wait()
		subscribe(t, b, "a-01", id, "https://one.test/", `["NEW_MESSAGE","TASK_CANCELED"]`)
		synctest.Wait()
		require.Nil(t, send(b, "a-01", id, "tea").Error)
		synctest.Wait()
		task := taskOf(t, b, "a-01", id)
		require.Equal(t, "got tea", task.Messages[2].Text())
		require.Nil(t, cancelTask(b, "a-01", id).Error)
		synctest.Wait()
		require.ErrorIs(t, cause, arc.ErrTaskAlreadyCanceled)
		require.Equal(t, []string{"one.test NEW_MESSAGE WORKING", "one.test NEW_MESSAGE WORKING", "one.test TASK_CANCELED CANCELED"}, h.take())
	})
}

// The cost of an event does not grow with the task.
func TestLongTask(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	s := arc.MustServer(nil)
	defer s.Close()
	var allocs []float64
	done := make(chan struct{})
	s.HandleTasks("a-01", arc.TaskHandlerFunc(func(ctx context.Context, run *arc.TaskRun) error {
		defer close(done)
		for range 3 {
			allocs = append(allocs, testing.AllocsPerRun(500, func() { _ = run.AddMessage(ctx, arc.AgentText("m")) }))
		}
		return nil
	}))
	id := createTask(t, s, "a-01", "x")
	<-done
	require.InDelta(t, allocs[0], allocs[2], 2)
	require.Len(t, taskOf(t, s, "a-01", id).Messages, 1504)
}
