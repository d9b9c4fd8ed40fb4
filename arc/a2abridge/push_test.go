// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package a2abridge_test

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/a2aproject/a2a-go/v2/a2aclient"
	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/arc"
	"github.com/fivewire/fivewire/arc/a2abridge"
	"github.com/fivewire/fivewire/arc/arctest"
	"github.com/fivewire/fivewire/arc/internal/signature"
	"github.com/fivewire/fivewire/store"
)

// A receiver is the transport of webhooks, and their receiver.
type receiver struct {
	mu     sync.Mutex
	events []string // guarded by mu
	faults []string // guarded by mu
	isDown bool     // guarded by mu
}

const webhookSecret = "a-secret-of-the-webhooks-of-the-test"

// options returns the options of a server whose webhooks go to r. The host private.example has a private address.
func (r *receiver) options(p arc.Persistence) *arc.ServerOptions {
	w := &arc.WebhookOptions{Transport: r, Secrets: func(context.Context, string, string) ([]arc.WebhookSecret, error) {
		return []arc.WebhookSecret{webhookSecret}, nil
	}}
	arctest.ExactWebhooks(w, func(_ context.Context, _, host string) ([]netip.Addr, error) {
		if host == "private.example" {
			return []netip.Addr{netip.MustParseAddr("10.0.0.1")}, nil
		}
		return []netip.Addr{netip.MustParseAddr("203.0.114.1")}, nil
	})
	return &arc.ServerOptions{Persistence: p, Webhook: w}
}

func (r *receiver) RoundTrip(req *http.Request) (*http.Response, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	status := http.StatusOK
	if r.isDown {
		status = http.StatusServiceUnavailable
	}
	res := &http.Response{StatusCode: status, Header: http.Header{}, Body: http.NoBody, Request: req}
	body, err := io.ReadAll(req.Body)
	if err != nil || r.isDown {
		return res, err
	}
	if !signature.VerifyStandard(req.Header, []string{webhookSecret}, time.Now(), time.Minute, body) {
		r.faults = append(r.faults, "the signature is wrong")
	}
	var event a2a.StreamResponse
	if err := json.Unmarshal(body, &event); err != nil {
		r.faults = append(r.faults, err.Error())
		return res, nil
	}
	list, _, err := collect(func(yield func(a2a.Event, error) bool) { yield(event.Event, nil) })
	if err != nil {
		r.faults = append(r.faults, err.Error())
	}
	text := strings.Join(append(list, req.URL.Host, req.Header.Get("X-A2A-Notification-Token"), req.Header.Get("Authorization"), event.TaskInfo().ContextID), " | ")
	r.events = append(r.events, text)
	return res, nil
}

// take returns the received events after the requests of the present time.
func (r *receiver) take(t *testing.T) []string {
	t.Helper()
	synctest.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	require.Empty(t, r.faults)
	events := r.events
	r.events = nil
	return events
}

func (r *receiver) setDown(isDown bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.isDown = isDown
}

// The configuration of a message gets each event of its task, signed, with its token and credentials.
func TestPushOfMessage(t *testing.T) {
	eachTransport(t, func(t *testing.T, protocol a2a.TransportProtocol) {
		r := &receiver{}
		runs := 0
		f := newFixture(t, r.options(arc.Persistence{}), func(ctx context.Context, run *arc.TaskRun) error {
			runs++
			if run.Message().Text() == "refuse" {
				return a2abridge.Reject("not my trade")
			}
			return ask(ctx, run)
		})
		c, ctx := f.clients[protocol], as(t.Context(), "alice")
		m := message("paint it")
		m.ContextID = "room-1"
		config := &a2a.SendMessageConfig{PushConfig: &a2a.PushConfig{URL: "https://hooks.example/x", Token: "tok",
			Auth: &a2a.PushAuthInfo{Scheme: "Bearer", Credentials: "cred"}}}
		const tail = " | hooks.example | tok | Bearer cred | room-1"
		var task *a2a.Task
		for range 2 { // a repeated message has one configuration
			res, err := c.SendMessage(ctx, &a2a.SendMessageRequest{Message: m, Config: config})
			require.NoError(t, err)
			task = res.(*a2a.Task)
		}
		require.Equal(t, []string{"WORKING" + tail, "WORKING which color?" + tail, "INPUT_REQUIRED a color" + tail}, r.take(t))
		answer := message("red")
		answer.TaskID = task.ID
		_, err := sendTo(ctx, c, answer)
		require.NoError(t, err)
		time.Sleep(time.Second)
		require.Equal(t, []string{"WORKING" + tail, "artifact red false true" + tail, "COMPLETED" + tail}, r.take(t))

		config.PushConfig = &a2a.PushConfig{URL: "https://hooks.example/y"}
		_, err = c.SendMessage(ctx, &a2a.SendMessageRequest{Message: message("refuse"), Config: config})
		require.NoError(t, err)
		events := r.take(t)
		require.Contains(t, events[len(events)-1], "REJECTED not my trade | hooks.example |  |  | task-")
		require.Equal(t, 2, runs)
		for _, url := range []string{"https://private.example/", "http://hooks.example/", "https://127.0.0.1/", "not a url"} {
			config.PushConfig = &a2a.PushConfig{URL: url}
			_, err = c.SendMessage(ctx, &a2a.SendMessageRequest{Message: message("paint it"), Config: config})
			require.ErrorIs(t, err, a2a.ErrInvalidParams, url)
		}
		require.Equal(t, 2, runs, "a refused configuration creates no task")
	})
}

// Configurations are made, read, listed, replaced and deleted by the owner of the task.
func TestPushConfigs(t *testing.T) {
	eachTransport(t, func(t *testing.T, protocol a2a.TransportProtocol) {
		r := &receiver{}
		f := newFixture(t, r.options(arc.Persistence{}), ask)
		c, ctx := f.clients[protocol], as(t.Context(), "alice")
		task, err := sendTo(ctx, c, message("paint it"))
		require.NoError(t, err)
		first, err := c.CreateTaskPushConfig(ctx, &a2a.PushConfig{TaskID: task.ID, URL: "https://one.example/"})
		require.NoError(t, err)
		require.NotEmpty(t, first.ID)
		for _, url := range []string{"https://two.example/", "https://three.example/"} {
			want := &a2a.PushConfig{TaskID: task.ID, ID: "a", URL: url, Token: "tok", Auth: &a2a.PushAuthInfo{Scheme: "Basic", Credentials: "eA=="}}
			made, err := c.CreateTaskPushConfig(ctx, want)
			require.NoError(t, err)
			require.Equal(t, want, made)
			got, err := c.GetTaskPushConfig(ctx, &a2a.GetTaskPushConfigRequest{TaskID: task.ID, ID: "a"})
			require.NoError(t, err)
			require.Equal(t, want, got)
		}
		list, err := c.ListTaskPushConfigs(ctx, &a2a.ListTaskPushConfigRequest{TaskID: task.ID})
		require.NoError(t, err)
		require.Len(t, list, 2)
		require.Equal(t, "https://three.example/", list[0].URL)
		_, err = c.CreateTaskPushConfig(ctx, &a2a.PushConfig{TaskID: task.ID, ID: "b", URL: "https://four.example/"})
		require.NoError(t, err)
		require.NoError(t, c.DeleteTaskPushConfig(ctx, &a2a.DeleteTaskPushConfigRequest{TaskID: task.ID, ID: "b"}))
		require.NoError(t, c.DeleteTaskPushConfig(ctx, &a2a.DeleteTaskPushConfigRequest{TaskID: task.ID, ID: "b"}))
		_, err = c.GetTaskPushConfig(ctx, &a2a.GetTaskPushConfigRequest{TaskID: task.ID, ID: "b"})
		require.ErrorIs(t, err, a2a.ErrTaskNotFound)

		bob := as(t.Context(), "bob")
		_, err = c.CreateTaskPushConfig(bob, &a2a.PushConfig{TaskID: task.ID, URL: "https://evil.example/"})
		require.ErrorIs(t, err, a2a.ErrTaskNotFound)
		_, err = c.GetTaskPushConfig(bob, &a2a.GetTaskPushConfigRequest{TaskID: task.ID, ID: "a"})
		require.ErrorIs(t, err, a2a.ErrTaskNotFound)
		require.ErrorIs(t, c.DeleteTaskPushConfig(bob, &a2a.DeleteTaskPushConfigRequest{TaskID: task.ID, ID: "a"}), a2a.ErrTaskNotFound)
		for _, config := range []a2a.PushConfig{{URL: "https://x.example/", Token: "a\nb"}, {URL: "https://x.example/", Token: strings.Repeat("x", 9<<10)},
			{URL: "https://private.example/"}, {}} {
			config.TaskID = task.ID
			_, err = c.CreateTaskPushConfig(ctx, &config)
			require.ErrorIs(t, err, a2a.ErrInvalidParams)
			if config.URL == "https://private.example/" {
				require.ErrorContains(t, err, "Invalid params: callbackUrl: address", "the reason")
			}
		}

		answer := message("red")
		answer.TaskID = task.ID
		_, err = sendTo(ctx, c, answer)
		require.NoError(t, err)
		time.Sleep(time.Second)
		hosts := map[string]int{}
		for _, event := range r.take(t) {
			hosts[strings.Split(event, " | ")[1]]++
		}
		require.Equal(t, map[string]int{"one.example": 3, "three.example": 3}, hosts)
	})
}

// Notifications that no process could send are sent by the next one, once it serves A2A clients, except those of a
// deleted configuration.
func TestPushNextProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &receiver{isDown: true}
		p := arc.Persistence{Store: store.NewMemory(), LeaseTTL: 3 * time.Second}
		first := newFixture(t, r.options(p), ask)
		c, ctx := first.clients[a2a.TransportProtocolJSONRPC], as(t.Context(), "alice")
		task, err := sendTo(ctx, c, message("paint it"))
		require.NoError(t, err)
		for _, name := range []string{"kept", "deleted"} {
			_, err = c.CreateTaskPushConfig(ctx, &a2a.PushConfig{TaskID: task.ID, ID: name, URL: "https://" + name + ".example/"})
			require.NoError(t, err)
		}
		answer := message("red")
		answer.TaskID = task.ID
		_, err = sendTo(ctx, c, answer)
		require.NoError(t, err)
		require.NoError(t, c.DeleteTaskPushConfig(ctx, &a2a.DeleteTaskPushConfigRequest{TaskID: task.ID, ID: "deleted"}))
		time.Sleep(time.Second)
		require.NoError(t, first.engine.Close())
		r.setDown(false)

		o := r.options(p)
		o.Auth.AllowAnonymous = true
		engine, err := arc.NewServer(o)
		require.NoError(t, err)
		defer engine.Close()
		time.Sleep(time.Minute)
		require.Empty(t, r.take(t), "no process writes the form")
		_, err = a2abridge.NewServer(engine, "worker-01", nil)
		require.NoError(t, err)
		time.Sleep(5 * time.Minute)
		var events []string
		for _, event := range r.take(t) {
			parts := strings.Split(event, " | ")
			events = append(events, parts[0]+" at "+parts[1])
		}
		require.Equal(t, []string{"WORKING at kept.example", "artifact red false true at kept.example", "COMPLETED at kept.example"}, events)
		for l, err := range engine.DeadLetters(t.Context()) {
			require.NoError(t, err)
			t.Errorf("dead letter %v", l)
		}
	})
}

// Configurations, which have secrets, are read and deleted by callers that may use task.subscribe.
func TestPushConfigsNeedPermission(t *testing.T) {
	eachTransport(t, func(t *testing.T, protocol a2a.TransportProtocol) {
		isReader := false
		o := (&receiver{}).options(arc.Persistence{})
		o.Auth.Authorizer = arc.AuthorizerFunc(func(_ context.Context, call *arc.Call) error {
			if isReader && call.Method != arc.MethodTaskInfo {
				return arc.ErrPermissionDenied
			}
			return nil
		})
		c, ctx := newFixture(t, o, ask).clients[protocol], as(t.Context(), "alice")
		task, err := sendTo(ctx, c, message("paint it"))
		require.NoError(t, err)
		configure(t, c, ctx, task, "https://one.example/")
		isReader = true
		_, err = c.GetTask(ctx, &a2a.GetTaskRequest{ID: task.ID})
		require.NoError(t, err)
		_, err = c.GetTaskPushConfig(ctx, &a2a.GetTaskPushConfigRequest{TaskID: task.ID, ID: "x"})
		require.ErrorIs(t, err, a2a.ErrUnauthorized)
		_, err = c.ListTaskPushConfigs(ctx, &a2a.ListTaskPushConfigRequest{TaskID: task.ID})
		require.ErrorIs(t, err, a2a.ErrUnauthorized)
		require.ErrorIs(t, c.DeleteTaskPushConfig(ctx, &a2a.DeleteTaskPushConfigRequest{TaskID: task.ID, ID: "x"}), a2a.ErrUnauthorized)
		isReader = false
		list, err := c.ListTaskPushConfigs(ctx, &a2a.ListTaskPushConfigRequest{TaskID: task.ID})
		require.NoError(t, err)
		require.Len(t, list, 1)
	})
}

// endedTask returns a task that has ended while its configuration with the id "x" was at a receiver that is down.
func endedTask(t *testing.T, c *a2aclient.Client, ctx context.Context, url string) *a2a.Task {
	t.Helper()
	task, err := sendTo(ctx, c, message("paint it"))
	require.NoError(t, err)
	configure(t, c, ctx, task, url)
	answer := message("red")
	answer.TaskID = task.ID
	_, err = sendTo(ctx, c, answer)
	require.NoError(t, err)
	time.Sleep(time.Second)
	return task
}

func configure(t *testing.T, c *a2aclient.Client, ctx context.Context, task *a2a.Task, url string) {
	t.Helper()
	_, err := c.CreateTaskPushConfig(ctx, &a2a.PushConfig{TaskID: task.ID, ID: "x", URL: url})
	require.NoError(t, err)
}

// The waiting notifications of a deleted configuration are not sent after the removal of their task either.
func TestPushOfDeletedConfigAndRemovedTask(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &receiver{isDown: true}
		f := newFixture(t, r.options(arc.Persistence{TaskRetention: time.Minute}), ask)
		c, ctx := f.clients[a2a.TransportProtocolJSONRPC], as(t.Context(), "alice")
		task := endedTask(t, c, ctx, "https://one.example/")
		time.Sleep(30 * time.Second)
		require.NoError(t, c.DeleteTaskPushConfig(ctx, &a2a.DeleteTaskPushConfigRequest{TaskID: task.ID, ID: "x"}))
		time.Sleep(35 * time.Second)
		_, err := c.GetTask(ctx, &a2a.GetTaskRequest{ID: task.ID})
		require.ErrorIs(t, err, a2a.ErrTaskNotFound)
		r.setDown(false)
		time.Sleep(24 * time.Hour)
		require.Empty(t, r.take(t))
	})
}

// The waiting notifications of a deleted configuration are not sent, however many others are deleted later.
func TestPushOfOneOfManyDeletedConfigs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &receiver{isDown: true}
		f := newFixture(t, r.options(arc.Persistence{}), ask)
		c, ctx := f.clients[a2a.TransportProtocolJSONRPC], as(t.Context(), "alice")
		task := endedTask(t, c, ctx, "https://one.example/")
		time.Sleep(time.Minute) // it waits in the second queue
		require.NoError(t, c.DeleteTaskPushConfig(ctx, &a2a.DeleteTaskPushConfigRequest{TaskID: task.ID, ID: "x"}))
		for range 70 {
			configure(t, c, ctx, task, "https://two.example/")
			require.NoError(t, c.DeleteTaskPushConfig(ctx, &a2a.DeleteTaskPushConfigRequest{TaskID: task.ID, ID: "x"}))
		}
		r.setDown(false)
		time.Sleep(24 * time.Hour)
		for _, event := range r.take(t) {
			require.NotContains(t, event, "one.example")
		}
	})
}

// A configuration that is made again, or replaced, gets the end of its task once. The notifications that waited for a
// deleted one are not sent.
func TestPushConfigMadeAgain(t *testing.T) {
	for name, tt := range map[string]struct {
		isDeleted, isReplaced bool
		url                   string
		want                  map[string]int // events by host
	}{
		"deleted":              {true, false, "https://two.example/", map[string]int{"two.example": 1}},
		"deleted, same":        {true, false, "https://one.example/", map[string]int{"one.example": 1}},
		"replaced":             {false, false, "https://two.example/", map[string]int{"one.example": 3, "two.example": 1}},
		"same":                 {false, false, "https://one.example/", map[string]int{"one.example": 3}},
		"replaced and deleted": {true, true, "https://two.example/", map[string]int{"two.example": 1}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := &receiver{isDown: true}
				f := newFixture(t, r.options(arc.Persistence{}), ask)
				c, ctx := f.clients[a2a.TransportProtocolJSONRPC], as(t.Context(), "alice")
				task := endedTask(t, c, ctx, "https://one.example/")
				if tt.isReplaced {
					configure(t, c, ctx, task, "https://three.example/")
				}
				if tt.isDeleted {
					require.NoError(t, c.DeleteTaskPushConfig(ctx, &a2a.DeleteTaskPushConfigRequest{TaskID: task.ID, ID: "x"}))
				}
				synctest.Wait() // no attempt is in progress
				configure(t, c, ctx, task, tt.url)
				synctest.Wait()
				r.setDown(false)
				time.Sleep(time.Hour)
				hosts := map[string]int{}
				for _, event := range r.take(t) {
					hosts[strings.Split(event, " | ")[1]]++
				}
				require.Equal(t, tt.want, hosts)
			})
		})
	}
}

// The configuration of a message is added with the message or not at all.
func TestPushOfRefusedMessage(t *testing.T) {
	eachTransport(t, func(t *testing.T, protocol a2a.TransportProtocol) {
		r := &receiver{}
		f := newFixture(t, r.options(arc.Persistence{}), ask)
		c, ctx := f.clients[protocol], as(t.Context(), "alice")
		task, err := sendTo(ctx, c, message("paint it"))
		require.NoError(t, err)
		configure(t, c, ctx, task, "https://one.example/")
		send := func(text string) error {
			m := message(text)
			m.TaskID = task.ID
			_, err := c.SendMessage(ctx, &a2a.SendMessageRequest{Message: m, Config: &a2a.SendMessageConfig{
				PushConfig: &a2a.PushConfig{ID: "x", URL: "https://" + text + ".example/"}}})
			return err
		}
		configs := func() (urls []string) {
			list, err := c.ListTaskPushConfigs(ctx, &a2a.ListTaskPushConfigRequest{TaskID: task.ID})
			require.NoError(t, err)
			for _, config := range list {
				urls = append(urls, config.URL)
			}
			return urls
		}
		require.NoError(t, send("red"))
		require.Equal(t, []string{"https://red.example/"}, configs())
		time.Sleep(time.Second)
		hosts := map[string]int{}
		for _, event := range r.take(t) {
			hosts[strings.Split(event, " | ")[1]]++
		}
		require.Equal(t, map[string]int{"red.example": 3}, hosts)
		require.ErrorIs(t, send("late"), a2a.ErrUnsupportedOperation)
		require.ErrorIs(t, send("private"), a2a.ErrInvalidParams)
		require.Equal(t, []string{"https://red.example/"}, configs())
	})
}

// A message with a configuration needs the permission and the method for subscriptions.
func TestPushOfMessageNeedsPermission(t *testing.T) {
	eachTransport(t, func(t *testing.T, protocol a2a.TransportProtocol) {
		runs := 0
		o := (&receiver{}).options(arc.Persistence{})
		o.Auth.Authorizer = arc.AuthorizerFunc(func(_ context.Context, call *arc.Call) error {
			if call.Method == arc.MethodTaskSubscribe {
				return arc.ErrPermissionDenied
			}
			return nil
		})
		c, ctx := newFixture(t, o, func(ctx context.Context, run *arc.TaskRun) error {
			runs++
			return ask(ctx, run)
		}).clients[protocol], as(t.Context(), "alice")
		config := &a2a.SendMessageConfig{PushConfig: &a2a.PushConfig{URL: "https://one.example/"}}
		_, err := c.SendMessage(ctx, &a2a.SendMessageRequest{Message: message("paint it"), Config: config})
		require.ErrorIs(t, err, a2a.ErrUnauthorized)
		require.Zero(t, runs)
		task, err := sendTo(ctx, c, message("paint it"))
		require.NoError(t, err)
		answer := message("red")
		answer.TaskID = task.ID
		_, err = c.SendMessage(ctx, &a2a.SendMessageRequest{Message: answer, Config: config})
		require.ErrorIs(t, err, a2a.ErrUnauthorized)
	})
}

func TestPushOfMessageToAgentWithoutSubscriptions(t *testing.T) {
	eachTransport(t, func(t *testing.T, protocol a2a.TransportProtocol) {
		f := newFixture(t, (&receiver{}).options(arc.Persistence{}), ask)
		f.engine.Unregister("worker-01")
		f.engine.Register(arc.Agent{AgentInfo: arc.AgentInfo{AgentID: "worker-01"}, TaskHandler: arc.TaskHandlerFunc(ask),
			ExcludedMethods: []string{arc.MethodTaskSubscribe}})
		c, ctx := f.clients[protocol], as(t.Context(), "alice")
		_, err := c.SendMessage(ctx, &a2a.SendMessageRequest{Message: message("paint it"),
			Config: &a2a.SendMessageConfig{PushConfig: &a2a.PushConfig{URL: "https://one.example/"}}})
		require.ErrorIs(t, err, a2a.ErrPushNotificationNotSupported)
	})
}

// The dead letter of a deleted configuration is not sent again.
func TestPushOfDeletedConfigIsNotRedelivered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &receiver{isDown: true}
		f := newFixture(t, r.options(arc.Persistence{}), ask)
		c, ctx := f.clients[a2a.TransportProtocolJSONRPC], as(t.Context(), "alice")
		task := endedTask(t, c, ctx, "https://one.example/")
		time.Sleep(23 * time.Hour)
		require.NoError(t, c.DeleteTaskPushConfig(ctx, &a2a.DeleteTaskPushConfigRequest{TaskID: task.ID, ID: "x"}))
		letters := func() (ids []string) {
			for l, err := range f.engine.DeadLetters(t.Context()) {
				require.NoError(t, err)
				ids = append(ids, l.ID)
			}
			return ids
		}
		require.Len(t, letters(), 3)
		for range 3 {
			require.EqualError(t, f.engine.Redeliver(t.Context(), letters()[0]), "arc: redeliver: the subscription was removed")
			require.Len(t, letters(), 3)
			time.Sleep(12 * 24 * time.Hour) // the task has been removed since
		}
	})
}
