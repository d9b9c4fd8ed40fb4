// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package interop_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/fivewire/fivewire/arc"
	"github.com/fivewire/fivewire/arc/conversation"
	"github.com/fivewire/fivewire/arc/discovery"
	"github.com/fivewire/fivewire/arc/webhook"
	"github.com/stretchr/testify/require"
)

// Our client and the servers of the Python package arc-sdk.

// An arcPeer is one of those servers.
type arcPeer struct {
	*peer
	url    string
	client *arc.Client
}

func arcListen(t *testing.T, kind string, with request, opts *arc.ClientOptions) *arcPeer {
	t.Helper()
	p := &arcPeer{peer: python(t, "arc_server.py")}
	r := request{"op": "listen", "kind": kind}
	for k, v := range with {
		r[k] = v
	}
	p.into(&p.url, r)
	c, err := arc.NewClient(p.url+"/arc", "fivewire-01", opts)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	p.client = c
	return p
}

func arcCode(t *testing.T, err error) arc.Code {
	t.Helper()
	var e *arc.Error
	require.ErrorAs(t, err, &e)
	return e.Code
}

func TestARCPythonServers(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"standalone", "fastapi", "starlette"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			p := arcListen(t, kind, nil, nil)
			t.Run("tasks", func(t *testing.T) { arcServerTasks(t, p) })
			t.Run("chats", func(t *testing.T) { arcServerChats(t, p) })
			t.Run("streams", func(t *testing.T) { arcServerStreams(t, p) })
			t.Run("errors", func(t *testing.T) { arcServerErrors(t, p, kind) })
			t.Run("discovery", func(t *testing.T) { arcServerDiscovery(t, p, kind) })
		})
	}
}

func arcServerTasks(t *testing.T, p *arcPeer) {
	ctx := t.Context()
	events := make(chan *arc.Notification, 8)
	hook := arcReceiver(t, events, nil, &webhook.ReceiverOptions{AllowUnsigned: true})

	task, err := p.client.CreateTask(ctx, "py-echo", &arc.CreateTaskParams{InitialMessage: arc.UserText("ask"), Priority: arc.PriorityHigh}, &arc.CallOptions{TraceID: "trace-py"})
	require.NoError(t, err)
	require.Equal(t, arc.TaskInputRequired, task.Status)
	sub, err := p.client.SubscribeTask(ctx, "py-echo", &arc.SubscribeParams{TaskID: task.ID, CallbackURL: hook}, nil)
	require.NoError(t, err, "its result has the type subscription (ARC-D32)")
	require.True(t, sub.Active)
	require.Equal(t, []arc.Event{arc.EventTaskCompleted, arc.EventTaskFailed}, sub.Events)

	out, err := p.client.WaitTask(ctx, "py-echo", task.ID, nil)
	require.NoError(t, err)
	require.True(t, out.InputRequired)
	require.NoError(t, p.client.SendTaskInput(ctx, "py-echo", &arc.SendTaskParams{TaskID: task.ID, Message: arc.UserText("Grüße 😀")}, nil))
	out, err = p.client.WaitTask(ctx, "py-echo", task.ID, nil)
	require.NoError(t, err)
	require.Equal(t, arc.TaskCompleted, out.Task.Status)
	_, err = out.Task.CompletedAt.Time()
	require.NoError(t, err)
	require.Len(t, out.Task.Messages, 2)
	var data struct {
		Heard string `json:"heard"`
		N     int64  `json:"n"`
	}
	require.NoError(t, out.Task.Artifacts[0].Parts[0].DecodeData(&data), "its data parts hold objects (ARC-D60)")
	require.Equal(t, "Grüße 😀", data.Heard)
	require.EqualValues(t, int64(9007199254740993), data.N)

	n := receive(t, events)
	require.Equal(t, arc.EventTaskCompleted, n.Event)
	require.Equal(t, task.ID, n.TaskID)
	require.Equal(t, "COMPLETED", n.Data.Status)
	require.EqualValues(t, "12", n.Data.Duration)

	bare, err := p.client.GetTask(ctx, "py-echo", &arc.TaskInfoParams{TaskID: task.ID, OmitMessages: true, OmitArtifacts: true}, nil)
	require.NoError(t, err)
	require.Nil(t, bare.Messages)
	require.Nil(t, bare.Artifacts)

	other, err := p.client.CreateTask(ctx, "py-echo", &arc.CreateTaskParams{InitialMessage: arc.UserText("x")}, nil)
	require.NoError(t, err)
	canceled, err := p.client.CancelTask(ctx, "py-echo", &arc.CancelTaskParams{TaskID: other.ID, Reason: "enough"}, nil)
	require.NoError(t, err)
	require.Equal(t, arc.TaskCanceled, canceled.Status)
	require.Equal(t, "enough", canceled.Reason)

	require.NoError(t, p.client.Notify(ctx, "py-echo", &arc.Notification{TaskID: "t-1", Event: arc.EventTaskStarted,
		Timestamp: "2026-01-15T10:30:00Z", Data: arc.NotificationData{Status: "WORKING", Message: "begun"}}, nil))
	require.Equal(t, `[{"params":{"data":{"message":"begun","status":"WORKING"},"event":"TASK_STARTED","taskId":"t-1","timestamp":"2026-01-15T10:30:00Z"},"requestAgent":"fivewire-01","traceId":null}]`,
		shape(t, p.do(request{"op": "take", "what": "notifications"})))
}

func arcServerChats(t *testing.T, p *arcPeer) {
	ctx := t.Context()
	chat, err := p.client.StartChat(ctx, "py-echo", &arc.StartChatParams{InitialMessage: arc.UserText("hello"), Metadata: []byte(`{"a":1}`)}, nil)
	require.NoError(t, err)
	require.Equal(t, arc.ChatActive, chat.Status)
	require.Equal(t, "echo: hello", chat.Message.Text())
	chat, err = p.client.SendChatMessage(ctx, "py-echo", &arc.ChatMessageParams{ChatID: chat.ID, Message: arc.UserText("more")}, nil)
	require.NoError(t, err)
	require.Equal(t, "echo: more", chat.Message.Text())
	chat, err = p.client.EndChat(ctx, "py-echo", &arc.EndChatParams{ChatID: chat.ID, Reason: "over"}, nil)
	require.NoError(t, err)
	require.Equal(t, arc.ChatClosed, chat.Status)
	require.Equal(t, "over", chat.Reason)
	_, err = p.client.SendChatMessage(ctx, "py-echo", &arc.ChatMessageParams{ChatID: chat.ID, Message: arc.UserText("late")}, nil)
	require.Equal(t, arc.ErrChatAlreadyClosed, arcCode(t, err))
	_, err = p.client.EndChat(ctx, "py-echo", &arc.EndChatParams{ChatID: "chat-none"}, nil)
	require.Equal(t, arc.ErrChatNotFound, arcCode(t, err))

	v, err := conversation.NewManager(p.client, nil)
	require.NoError(t, err)
	for _, text := range []string{"one", "two"} {
		chat, err = v.Send(ctx, "py-echo", arc.UserText(text), nil)
		require.NoError(t, err)
		require.Equal(t, "echo: "+text, chat.Message.Text())
	}
	require.NoError(t, v.Close(ctx))
}

// stream returns the pieces of a streamed response, its final status, and its error.
func stream(c *arc.Client, ctx context.Context, agent, text string) (pieces []string, status arc.ChatStatus, err error) {
	for ev, err := range c.StreamChat(ctx, agent, &arc.StartChatParams{InitialMessage: arc.UserText(text)}, nil) {
		if err != nil {
			return pieces, status, err
		}
		if ev.Done {
			status = ev.Status
			continue
		}
		pieces = append(pieces, ev.Text)
	}
	return pieces, status, nil
}

func arcServerStreams(t *testing.T, p *arcPeer) {
	ctx := t.Context()
	pieces, status, err := stream(p.client, ctx, "py-echo", "one two")
	require.NoError(t, err)
	require.Equal(t, []string{"echo:", " one", " two"}, pieces)
	require.Equal(t, arc.ChatActive, status)

	// Its stream of text reports a failure, and then an end with an invalid chat status (ARC-D22).
	pieces, _, err = stream(p.client, ctx, "py-echo", "break")
	require.Equal(t, arc.ErrInvalidChatMessage, arcCode(t, err))
	require.ErrorContains(t, err, "Stream error: the model is gone")
	require.Equal(t, []string{"partial "}, pieces)

	// Its stream of messages never ends: what is there counts as cut. Bare parts and text become messages (ARC-D28).
	pieces, _, err = stream(p.client, ctx, "py-parts", "x")
	require.ErrorIs(t, err, arc.ErrTruncated)
	require.Equal(t, []string{"first ", "second ", "third"}, pieces)

	// Its stream of events ends with an error that stands bare in the data.
	pieces, _, err = stream(p.client, ctx, "py-events", "x")
	require.Equal(t, arc.ErrInvalidChatMessage, arcCode(t, err))
	require.ErrorContains(t, err, "out of words")
	require.Equal(t, []string{"some "}, pieces)

	// An agent that does not stream answers with JSON (ARC-D24).
	pieces, status, err = stream(p.client, ctx, "py-whole", "x")
	require.NoError(t, err)
	require.Equal(t, []string{"all at once"}, pieces)
	require.Equal(t, arc.ChatClosed, status)

	_, _, err = stream(p.client, ctx, "nobody", "x")
	require.Equal(t, arc.ErrAgentNotFound, arcCode(t, err))
}

func arcServerErrors(t *testing.T, p *arcPeer, kind string) {
	ctx := t.Context()
	create := func(agent, text string) error {
		_, err := p.client.CreateTask(ctx, agent, &arc.CreateTaskParams{InitialMessage: arc.UserText(text)}, &arc.CallOptions{TraceID: "trace-e"})
		return err
	}
	detailsOf := func(err error) string {
		var e *arc.Error
		require.ErrorAs(t, err, &e)
		return shape(t, e.Details, "errorId")
	}
	err := create("nobody", "x")
	require.ErrorIs(t, err, arc.ErrAgentNotFound)
	require.Equal(t, `{"availableAgents":["py-echo","py-parts","py-whole","py-events"],"requestedAgent":"nobody"}`, detailsOf(err), "it lists who else is there")
	_, err = p.client.Call(ctx, "py-echo", "no.such", nil, nil)
	require.ErrorIs(t, err, arc.ErrMethodNotFound)
	_, err = p.client.GetTask(ctx, "py-echo", &arc.TaskInfoParams{TaskID: "task-none"}, nil)
	require.ErrorIs(t, err, arc.ErrTaskNotFound)
	require.Equal(t, `{"task_id":"task-none"}`, detailsOf(err))
	require.ErrorIs(t, create("py-echo", "busy"), arc.ErrRateLimitExceeded)
	require.ErrorIs(t, create("py-echo", "away"), arc.ErrAgentNotAvailable)
	err = create("py-echo", "crash")
	require.ErrorIs(t, err, arc.ErrInternal)
	require.Equal(t, `{"errorId":"*"}`, detailsOf(err))
	require.ErrorIs(t, p.client.SendTaskInput(ctx, "py-echo", &arc.SendTaskParams{TaskID: "task-none", Message: arc.UserText("x")}, nil), arc.ErrTaskNotFound)

	// Errors that the peer returns before it calls an agent, with their HTTP status.
	post := func(body string) (int, string) {
		res, err := http.Post(p.url+"/arc/", arc.MediaType, strings.NewReader(body))
		require.NoError(t, err)
		defer res.Body.Close()
		return res.StatusCode, readAll(t, res.Body)
	}
	if kind == "standalone" {
		post = func(body string) (int, string) {
			res, err := http.Post(p.url+"/arc", arc.MediaType, strings.NewReader(body))
			require.NoError(t, err)
			defer res.Body.Close()
			return res.StatusCode, readAll(t, res.Body)
		}
	}
	const whole = `{"arc":"1.0","id":7,"method":"task.info","requestAgent":"a","targetAgent":"py-echo","params":{"taskId":"none"}}`
	tests := []struct {
		name, body string
		status     int // of the standalone server
		router     int // of the routers
		code       arc.Code
		id         string
	}{
		{"version", strings.Replace(whole, `"1.0"`, `"2.0"`, 1), 400, 500, arc.ErrInvalidVersion, `7`},
		{"field", strings.Replace(whole, `"method":"task.info",`, ``, 1), 400, 400, arc.ErrInvalidRequest, `7`},
		{"array", `[` + whole + `]`, 400, 400, arc.ErrInvalidRequest, ``},
		{"no JSON", `{"arc"`, 400, 400, arc.ErrParse, `"error"`},
		{"agent", strings.Replace(whole, `py-echo`, `nobody`, 1), 404, 404, arc.ErrAgentNotFound, `7`},
		{"method", strings.Replace(whole, `task.info`, `no.such`, 1), 404, 404, arc.ErrMethodNotFound, `7`},
		{"own", whole, 400, 500, arc.ErrTaskNotFound, `7`},
		{"params", strings.Replace(whole, `{"taskId":"none"}`, `[]`, 1), 500, 500, arc.ErrInternal, `7`},
		{"large id", strings.Replace(whole, `"id":7`, `"id":123456789012345678901234567890`, 1), 400, 500, arc.ErrTaskNotFound, `123456789012345678901234567890`},
	}
	for _, tt := range tests {
		status, body := post(tt.body)
		want := tt.status
		if kind != "standalone" {
			want = tt.router
		}
		require.Equal(t, want, status, "%s: %s", tt.name, body)
		r, err := arc.DecodeResponse([]byte(body), "")
		require.NoError(t, err, "%s: %s", tt.name, body)
		require.Equal(t, tt.code, r.Error.Code, "%s: %s", tt.name, body)
		if tt.id == "" && kind == "standalone" {
			continue // a random one
		}
		if tt.id == "" {
			tt.id = `"error"`
		}
		require.Equal(t, arc.ID(tt.id), r.ID, tt.name)
	}
}

func arcServerDiscovery(t *testing.T, p *arcPeer, kind string) {
	d, err := discovery.NewClient(nil, p.url+"/arc")
	require.NoError(t, err)
	defer d.Close()
	found, err := d.Agents(t.Context())
	require.NoError(t, err)
	ids := map[string]discovery.Agent{}
	for _, a := range found {
		ids[a.AgentID] = a
	}
	require.Len(t, ids, 4)
	require.Len(t, ids["py-echo"].SupportedMethods, 9)
	require.Equal(t, "active", ids["py-parts"].Status)
	found, err = d.Find(t.Context(), discovery.AgentQuery{Method: arc.MethodTaskSubscribe})
	require.NoError(t, err)
	require.Len(t, found, 1)

	// The discovered agent can be called. The routers give their path inside the application as the endpoint.
	c, err := arc.NewClient(found[0].URL, "fivewire-01", nil)
	require.NoError(t, err)
	defer c.Close()
	chat, err := c.StartChat(t.Context(), "py-echo", &arc.StartChatParams{InitialMessage: arc.UserText("found")}, nil)
	require.NoError(t, err, "%s", found[0].URL)
	require.Equal(t, "echo: found", chat.Message.Text())
	if kind != "standalone" {
		return
	}
	res, err := http.Get(p.url + "/health")
	require.NoError(t, err)
	defer res.Body.Close()
	require.Equal(t, `{"agents":4,"server":"py-server","status":"ok"}`, shape(t, []byte(readAll(t, res.Body))))
}

// arcReceiver serves a webhook that hands what it gets to a channel.
func arcReceiver(t *testing.T, events chan<- *arc.Notification, secrets []arc.WebhookSecret, opts *webhook.ReceiverOptions) string {
	t.Helper()
	r, err := webhook.NewReceiver(arc.NotificationHandlerFunc(func(_ context.Context, n *arc.Notification) error {
		events <- n
		return nil
	}), secrets, opts)
	require.NoError(t, err)
	ts := httptest.NewServer(r)
	t.Cleanup(ts.Close)
	return ts.URL + "/hook"
}

func receive[T any](t *testing.T, c <-chan T) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(waitFor):
		require.FailNow(t, "nothing came")
		panic("unreachable")
	}
}

// The peer signs another text than it sends; [webhook.ReceiverOptions.AllowPythonSignatures] knows which.
func TestARCPythonSendsWebhooks(t *testing.T) {
	t.Parallel()
	p := python(t, "arc_client.py")
	events := make(chan *arc.Notification, 8)
	const secret = "a secret of both"
	send := func(url, with string) (string, bool) {
		var out struct {
			Outcome map[string]int `json:"outcome"`
			Active  bool           `json:"active"`
		}
		p.into(&out, request{"op": "webhook_send", "agent": "py-echo", "secret": with, "url": url, "task": "task-1", "event": "NEW_MESSAGE", "trace": "trace-1",
			"data": request{"status": "WORKING", "message": "Grüße: 😀 \u2028, \"a\": [1, 2.50, 1e30]", "messageContent": request{"role": "agent", "parts": []request{{"type": "TextPart", "content": "naïve: ✓, {}"}}}}})
		switch {
		case out.Outcome["delivered"] == 1:
			return "delivered", out.Active
		case out.Outcome["failed"] == 1:
			return "failed", out.Active
		}
		return "none", out.Active
	}
	got, _ := send(arcReceiver(t, events, []arc.WebhookSecret{secret}, &webhook.ReceiverOptions{AllowPythonSignatures: true}), secret)
	require.Equal(t, "delivered", got)
	n := receive(t, events)
	require.Equal(t, "task-1", n.TaskID)
	require.Equal(t, "naïve: ✓, {}", n.Data.MessageContent.Text())
	require.Equal(t, "Grüße: 😀 \u2028, \"a\": [1, 2.50, 1e30]", n.Data.Message)

	// The exact bytes are not what it signed.
	got, _ = send(arcReceiver(t, events, []arc.WebhookSecret{secret}, nil), secret)
	require.Equal(t, "failed", got)
	got, _ = send(arcReceiver(t, events, []arc.WebhookSecret{secret}, &webhook.ReceiverOptions{AllowPythonSignatures: true}), "another secret")
	require.Equal(t, "failed", got)
	got, _ = send(arcReceiver(t, events, []arc.WebhookSecret{secret}, &webhook.ReceiverOptions{AllowPythonSignatures: true}), "")
	require.Equal(t, "failed", got)
	require.Empty(t, events)

	goneServer := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusGone) }))
	defer goneServer.Close()
	got, active := send(goneServer.URL, secret)
	require.Equal(t, "failed", got)
	require.False(t, active, "it stops after 410, as ours does")

	// Verification with the package fails.
	f := p.fails(request{"op": "webhook_verify", "secret": secret, "payload": "{}", "signature": "sha256=x"})
	require.Equal(t, "NameError", f.Class)
	require.Equal(t, `true`, string(p.do(request{"op": "webhook_verify", "secret": nil, "payload": "{}", "signature": "sha256=x"})), "without a secret everything is right")
	require.Equal(t, `"`+webhook.Sign([]byte(secret), []byte(`{"ä": 1}`))+`"`, string(p.do(request{"op": "webhook_signature", "secret": secret, "payload": `{"ä": 1}`})))
}

// Our notifications, with the members that a receiver of the peer's looks for.
func TestARCPythonReceivesWebhooks(t *testing.T) {
	t.Parallel()
	const secret = "a secret of both"
	receiver := python(t, "arc_server.py")
	var hook string
	receiver.into(&hook, request{"op": "receive_webhooks", "secret": secret})
	for _, flat := range []bool{false, true} {
		endpoint, _ := arcServer(t, &arc.ServerOptions{Webhook: &arc.WebhookOptions{
			CallbackPolicy: arc.CallbackPolicy{AllowInsecure: true, AllowPrivate: true},
			Secrets: func(context.Context, string, string) ([]arc.WebhookSecret, error) {
				return []arc.WebhookSecret{secret}, nil
			},
			WritePythonMembers: flat,
		}}, nil)
		p := arcPython(t, endpoint, "")
		created := p.do(arcCall("task.create", request{"initial_message": say("ask"), "trace_id": "trace-7"}))
		id := strings.Trim(member(t, []byte(member(t, []byte(member(t, created, "result")), "task")), "taskId"), `"`)
		p.do(arcCall("task.subscribe", request{"task_id": id, "callback_url": hook + "/hook"}))
		require.Eventually(t, func() bool {
			_, f := p.try(arcCall("task.send", request{"task_id": id, "message": say("Grüße 😀")}))
			return f == nil
		}, waitFor, tick)
		var got []struct {
			Signed      bool           `json:"signed"`
			Header      string         `json:"header"`
			ContentType string         `json:"contentType"`
			Flat        map[string]any `json:"flat"`
			Params      map[string]any `json:"params"`
		}
		require.Eventually(t, func() bool {
			receiver.into(&got, request{"op": "take", "what": "hooks"})
			return len(got) > 0
		}, waitFor, tick)
		require.True(t, got[0].Signed, "its signature over the bytes of the body is ours")
		require.Equal(t, "TASK_COMPLETED", got[0].Header)
		require.Equal(t, arc.MediaType, got[0].ContentType)
		require.Equal(t, id, got[0].Params["taskId"])
		require.Equal(t, "task.notification", got[0].Flat["method"])
		require.Equal(t, "trace-7", got[0].Flat["traceId"])
		if flat {
			require.Equal(t, id, got[0].Flat["taskId"])
			require.Equal(t, "TASK_COMPLETED", got[0].Flat["event"])
			require.Equal(t, got[0].Params["timestamp"], got[0].Flat["timestamp"])
			require.Equal(t, got[0].Params["data"], got[0].Flat["data"])
			require.NotNil(t, got[0].Flat["subscriptionId"])
		} else {
			require.Nil(t, got[0].Flat["taskId"])
		}
	}
}
