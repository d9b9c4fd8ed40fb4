// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package interop_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/a2aproject/a2a-go/v2/a2a"
	"github.com/a2aproject/a2a-go/v2/a2aclient"
	"github.com/a2aproject/a2a-go/v2/a2asrv"
	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/arc"
	"github.com/fivewire/fivewire/arc/a2abridge"
)

// An ARC agent behind the bridge, with the Python SDK of A2A 1.0 on the other side, in both directions.

// pythonEvent is an event of a stream, as the SDK writes it.
type pythonEvent struct {
	Task           *pythonTask
	StatusUpdate   *struct{ Status pythonStatus }
	ArtifactUpdate *struct{ Artifact pythonArtifact }
}

type pythonTask struct {
	ID, ContextID string
	Status        pythonStatus
	Artifacts     []pythonArtifact
}

type pythonStatus struct {
	State   string
	Message *struct{ Parts []struct{ Text string } }
}

type pythonArtifact struct {
	Name  string
	Parts []struct{ Text string }
}

func (s pythonStatus) String() string {
	text := strings.TrimPrefix(s.State, "TASK_STATE_")
	if s.Message != nil {
		text += " " + s.Message.Parts[0].Text
	}
	return text
}

// a2aPainter serves an agent that requests a color, with a signed card, and returns its URL and the key of the card.
func a2aPainter(t *testing.T) (url, key string) {
	t.Helper()
	keys, err := arc.APIKeyAuthenticator(map[string]*arc.Principal{"alice": {ID: "alice", Scopes: arc.RequiredScopes(arc.MethodTaskCreate)}})
	require.NoError(t, err)
	engine, err := arc.NewServer(&arc.ServerOptions{Auth: arc.Auth{Authenticator: keys}, Logger: slog.New(slog.DiscardHandler),
		Webhook: &arc.WebhookOptions{CallbackPolicy: arc.CallbackPolicy{AllowInsecure: true, AllowPrivate: true}}})
	require.NoError(t, err)
	t.Cleanup(func() { _ = engine.Close() })
	engine.HandleTasks("painter-01", arc.TaskHandlerFunc(func(ctx context.Context, run *arc.TaskRun) error {
		if run.Message().Text() == "wait" {
			<-ctx.Done()
			return ctx.Err()
		}
		if err := run.AddMessage(ctx, arc.AgentText("which color?")); err != nil {
			return err
		}
		answer, err := run.WaitInput(ctx, "a color")
		if err != nil {
			return err
		}
		return run.AddArtifact(ctx, &arc.Artifact{Name: "paint", Parts: []arc.Part{arc.TextPart(answer.Text())}})
	}))
	bridge, err := a2abridge.NewServer(engine, "painter-01", nil)
	require.NoError(t, err)
	mux := http.NewServeMux()
	mux.Handle("/rpc", bridge.JSONRPCHandler())
	mux.Handle("/rest/", http.StripPrefix("/rest", bridge.RESTHandler()))
	ts := httptest.NewServer(mux)
	t.Cleanup(ts.Close)
	card, err := a2abridge.NewCard(arc.AgentInfo{AgentID: "painter-01", Description: "Paints in Grün.", Capabilities: []string{"paint"}}, ts.URL+"/rpc", ts.URL+"/rest")
	require.NoError(t, err)
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	require.NoError(t, a2abridge.SignCard(card, private, "key-1"))
	mux.Handle(a2asrv.WellKnownAgentCardPath, a2asrv.NewStaticAgentCardHandler(card))
	public, err := x509.MarshalPKIXPublicKey(&private.PublicKey)
	require.NoError(t, err)
	return ts.URL, string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: public}))
}

// The Python client verifies the card and uses every method over both bindings.
func TestA2ABridgePythonClient(t *testing.T) {
	t.Parallel()
	url, key := a2aPainter(t)
	p := python(t, "a2a_peer.py")
	var kids []string
	p.into(&kids, request{"op": "verify", "url": url, "pem": key, "algorithm": "ES256"})
	require.Equal(t, []string{"key-1"}, kids)
	for _, binding := range []string{"JSONRPC", "HTTP+JSON"} {
		p.do(request{"op": "connect", "url": url, "binding": binding, "token": "alice"})
		message := func(text, task string) request {
			return request{"message": request{"messageId": rand.Text(), "role": "ROLE_USER", "taskId": task, "parts": []request{{"text": text}}}}
		}
		send := func(m request) (states []string, id string) {
			t.Helper()
			var events []pythonEvent
			p.into(&events, request{"op": "send", "message": m})
			for _, e := range events {
				switch {
				case e.Task != nil: // with its earlier events
					id = e.Task.ID
					for _, a := range e.Task.Artifacts {
						states = append(states, "artifact "+a.Parts[0].Text)
					}
					states = append(states, e.Task.Status.String())
				case e.StatusUpdate != nil:
					states = append(states, e.StatusUpdate.Status.String())
				case e.ArtifactUpdate != nil:
					states = append(states, "artifact "+e.ArtifactUpdate.Artifact.Parts[0].Text)
				}
			}
			return states, id
		}
		received := make(chan string, 20)
		hook := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			received <- r.Header.Get("X-A2A-Notification-Token") + " " + string(body)
		}))
		t.Cleanup(hook.Close)

		states, id := send(message("paint it", ""))
		require.Equal(t, "INPUT_REQUIRED which color?", states[len(states)-1], binding)
		var config struct{ ID, URL, Token string }
		p.into(&config, request{"op": "call", "name": "create_task_push_notification_config", "type": "TaskPushNotificationConfig",
			"request": request{"taskId": id, "url": hook.URL, "token": "tok"}})
		require.Equal(t, hook.URL, config.URL)
		p.into(&config, request{"op": "call", "name": "get_task_push_notification_config", "type": "GetTaskPushNotificationConfigRequest",
			"request": request{"taskId": id, "id": config.ID}})
		require.Equal(t, "tok", config.Token)
		states, _ = send(message("red", id))
		require.Equal(t, []string{"artifact red", "COMPLETED"}, states[len(states)-2:], binding)
		for seen := ""; !strings.Contains(seen, "TASK_STATE_COMPLETED"); {
			select {
			case seen = <-received:
				require.True(t, strings.HasPrefix(seen, "tok {"), seen)
			case <-time.After(waitFor):
				t.Fatal("no notification of the end")
			}
		}
		p.do(request{"op": "call", "name": "delete_task_push_notification_config", "type": "DeleteTaskPushNotificationConfigRequest",
			"request": request{"taskId": id, "id": config.ID}})

		var task pythonTask
		p.into(&task, request{"op": "call", "name": "get_task", "type": "GetTaskRequest", "request": request{"id": id}})
		require.Equal(t, "COMPLETED", task.Status.String())
		require.Equal(t, "red", task.Artifacts[0].Parts[0].Text)
		var list struct{ Tasks []pythonTask }
		p.into(&list, request{"op": "call", "name": "list_tasks", "type": "ListTasksRequest", "request": request{"pageSize": 10}})
		require.NotEmpty(t, list.Tasks)

		m := message("wait", "")
		m["configuration"] = request{"returnImmediately": true}
		waiting := make(chan []pythonEvent, 1)
		second := python(t, "a2a_peer.py")
		second.do(request{"op": "connect", "url": url, "binding": binding, "token": "alice"})
		go func() {
			var events []pythonEvent
			out, f := second.try(request{"op": "send", "message": m})
			if f == nil {
				_ = json.Unmarshal(out, &events)
			}
			waiting <- events
		}()
		for id = ""; id == ""; {
			list.Tasks = nil
			p.into(&list, request{"op": "call", "name": "list_tasks", "type": "ListTasksRequest", "request": request{"status": "TASK_STATE_WORKING"}})
			if len(list.Tasks) > 0 {
				id = list.Tasks[0].ID
			}
		}
		p.into(&task, request{"op": "call", "name": "cancel_task", "type": "CancelTaskRequest", "request": request{"id": id}})
		require.Equal(t, "CANCELED", task.Status.String())
		require.NotEmpty(t, <-waiting)
		f := p.fails(request{"op": "call", "name": "get_task", "type": "GetTaskRequest", "request": request{"id": "task-0"}})
		require.Equal(t, "TaskNotFoundError", f.Class, binding)
	}
}

// An agent of the Python server is an ARC agent, over both bindings.
func TestA2ABridgePythonServer(t *testing.T) {
	t.Parallel()
	p := python(t, "a2a_peer.py")
	var url string
	p.into(&url, request{"op": "listen"})
	card, err := a2aResolver.Resolve(t.Context(), url)
	require.NoError(t, err)
	for _, binding := range []a2a.TransportProtocol{a2a.TransportProtocolJSONRPC, a2a.TransportProtocolHTTPJSON} {
		h, err := a2abridge.NewHandler(card, &a2abridge.HandlerOptions{Client: []a2aclient.FactoryOption{a2aclient.WithJSONRPCTransport(http.DefaultClient),
			a2aclient.WithRESTTransport(http.DefaultClient), a2aclient.WithConfig(a2aclient.Config{PreferredTransports: []a2a.TransportProtocol{binding}})}})
		require.NoError(t, err)
		t.Cleanup(func() { _ = h.Close() })
		engine, err := arc.NewServer(&arc.ServerOptions{Auth: arc.Auth{AllowAnonymous: true}, Logger: slog.New(slog.DiscardHandler)})
		require.NoError(t, err)
		engine.HandleTasks("remote-01", h)
		ts := httptest.NewServer(engine)
		t.Cleanup(ts.Close)
		t.Cleanup(func() { _ = engine.Close() })
		client, err := arc.NewClient(ts.URL+"/arc", "tester-01", nil)
		require.NoError(t, err)
		t.Cleanup(func() { _ = client.Close() })
		create := func(text string) string {
			task, err := client.CreateTask(t.Context(), "remote-01", &arc.CreateTaskParams{InitialMessage: arc.UserText(text)}, nil)
			require.NoError(t, err)
			return task.ID
		}
		id := create("paint it")
		res, err := client.WaitTask(t.Context(), "remote-01", id, nil)
		require.NoError(t, err)
		require.True(t, res.InputRequired)
		require.Equal(t, "which color?", res.InputRequest().Text())
		require.NoError(t, client.SendTaskInput(t.Context(), "remote-01", &arc.SendTaskParams{TaskID: id, Message: arc.UserText("red")}, nil))
		res, err = client.WaitTask(t.Context(), "remote-01", id, nil)
		require.NoError(t, err)
		require.Equal(t, arc.TaskCompleted, res.Task.Status)
		require.Len(t, res.Task.Artifacts[0].Parts, 2, "two chunks")
		_, err = client.WaitTask(t.Context(), "remote-01", create("fail"), nil)
		require.ErrorIs(t, err, arc.ErrTaskExecutionFailed)
		id = create("wait")
		require.Eventually(t, func() bool {
			task, err := client.GetTask(t.Context(), "remote-01", &arc.TaskInfoParams{TaskID: id}, nil)
			return err == nil && task.Messages[len(task.Messages)-1].Text() == "waiting"
		}, waitFor, tick)
		_, err = client.CancelTask(t.Context(), "remote-01", &arc.CancelTaskParams{TaskID: id}, nil)
		require.NoError(t, err)
	}
}
