// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package interop_test

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/fivewire/fivewire/arc"
	"github.com/stretchr/testify/require"
)

// The Python package arc-sdk as the client of our server.

var arcVary = []string{"id", "createdAt", "updatedAt", "canceledAt", "completedAt", "failedAt", "closedAt", "timestamp", "taskId", "chatId", "subscriptionId", "errorId", "traceId"}

func say(text string) request {
	return request{"role": "user", "parts": []request{{"type": "TextPart", "content": text}}}
}

// arcServer serves the agents that Python asks.
func arcServer(t *testing.T, opts *arc.ServerOptions, pace <-chan struct{}) (string, *arc.Server) {
	t.Helper()
	if opts == nil {
		opts = &arc.ServerOptions{}
	}
	opts.EnableHealth = true
	if opts.Webhook == nil {
		opts.Webhook = &arc.WebhookOptions{CallbackPolicy: arc.CallbackPolicy{AllowInsecure: true, AllowPrivate: true}}
	}
	opts.Auth.AllowAnonymous = opts.Auth.Authenticator == nil
	srv, err := arc.NewServer(opts)
	require.NoError(t, err)
	srv.Register(arc.Agent{
		AgentInfo: arc.AgentInfo{AgentID: "echo-01", Version: "1.2.0", Capabilities: []string{"echo"}},
		TaskHandler: arc.TaskHandlerFunc(func(ctx context.Context, run *arc.TaskRun) error {
			answer := run.Message().Text()
			if answer == "ask" {
				m, err := run.WaitInput(ctx, "text")
				if err != nil {
					return err
				}
				answer = m.Text()
			}
			if answer == "wait" {
				<-ctx.Done()
				return context.Cause(ctx)
			}
			return run.AddArtifact(ctx, &arc.Artifact{Name: "echo", Parts: []arc.Part{arc.TextPart(answer)}})
		}),
		ChatHandler: arc.ChatHandlerFunc(func(ctx context.Context, turn *arc.ChatTurn, out *arc.ChatWriter) error {
			for i, piece := range strings.SplitAfter("echo: "+turn.Message.Text(), " ") {
				if i > 0 && pace != nil {
					select {
					case <-pace:
					case <-ctx.Done():
						return ctx.Err()
					}
				}
				if err := out.Send(piece); err != nil {
					return err
				}
			}
			if strings.HasSuffix(turn.Message.Text(), "break") {
				return arc.Errorf(arc.ErrChatTimeout, "too slow")
			}
			return nil
		}),
		NotificationHandler: arc.NotificationHandlerFunc(func(_ context.Context, n *arc.Notification) error {
			if n.Data.Status != string(arc.TaskCompleted) || n.Data.ArtifactCount != "2" {
				return arc.Errorf(arc.ErrInvalidParams, "unexpected data")
			}
			return nil
		}),
		Methods: map[string]arc.Handler{
			"debug.fail": arc.HandlerFunc(func(_ context.Context, call *arc.Call) (any, error) {
				var p struct {
					Code    arc.Code        `json:"code"`
					Details json.RawMessage `json:"details"`
				}
				if err := call.Decode(&p); err != nil {
					return nil, err
				}
				return nil, &arc.Error{Code: p.Code, Message: "asked for", Details: p.Details}
			}),
			"debug.echo": arc.HandlerFunc(func(_ context.Context, call *arc.Call) (any, error) {
				return map[string]any{"params": call.Params}, nil
			}),
		},
	})
	ts := httptest.NewServer(srv)
	t.Cleanup(func() {
		ts.Close()
		require.NoError(t, srv.Close())
	})
	return ts.URL + "/arc", srv
}

func arcPython(t *testing.T, endpoint, token string) *peer {
	t.Helper()
	p := python(t, "arc_client.py")
	p.do(request{"op": "open", "name": "c", "endpoint": endpoint, "agent": "py-client", "token": token})
	return p
}

func arcCall(method string, args request) request {
	args["target_agent"] = "echo-01"
	return request{"op": "call", "client": "c", "method": method, "args": args}
}

func TestARCVersionOfPeer(t *testing.T) {
	t.Parallel()
	p := python(t, "arc_client.py")
	require.Equal(t, `"1.3.1"`, string(p.do(request{"op": "version"})))
}

func TestARCPythonClientTasks(t *testing.T) {
	t.Parallel()
	endpoint, _ := arcServer(t, nil, nil)
	p := arcPython(t, endpoint, "")
	task := func(result json.RawMessage) *arc.Task {
		r, err := arc.DecodeResponse(result, "")
		require.NoError(t, err)
		res, err := arc.DecodeResult(arc.MethodTaskInfo, r.Result)
		require.NoError(t, err)
		return res.Task
	}

	created := p.do(arcCall("task.create", request{"initial_message": say("ask"), "priority": "HIGH", "metadata": request{"n": 1}, "trace_id": "trace-1"}))
	require.Equal(t, `{"arc":"1.0","error":null,"id":"*","responseAgent":"echo-01","result":{"task":{"createdAt":"*","status":"SUBMITTED","taskId":"*"},"type":"task"},"targetAgent":"py-client","traceId":"*"}`,
		shape(t, created, arcVary...))
	require.Contains(t, string(created), `"traceId": "trace-1"`)
	id := task(created).ID

	info := func() *arc.Task { return task(p.do(arcCall("task.info", request{"task_id": id}))) }
	require.Eventually(t, func() bool { return info().Status == arc.TaskInputRequired }, waitFor, tick)
	require.Equal(t, `{"message":"Message received","success":true}`,
		member(t, p.do(arcCall("task.send", request{"task_id": id, "message": say("Grüße 🎉")})), "result"))
	require.Eventually(t, func() bool { return info().Status == arc.TaskCompleted }, waitFor, tick)
	done := info()
	require.Equal(t, "Grüße 🎉", done.Artifacts[0].Parts[0].Content)
	require.Len(t, done.Messages, 2)

	bare := p.do(arcCall("task.info", request{"task_id": id, "include_messages": false, "include_artifacts": false}))
	require.Equal(t, `{"task":{"completedAt":"*","createdAt":"*","status":"COMPLETED","taskId":"*","updatedAt":"*"},"type":"task"}`,
		shape(t, []byte(member(t, bare, "result")), arcVary...))

	other := task(p.do(arcCall("task.create", request{"initial_message": say("wait")}))).ID
	canceled := p.do(arcCall("task.cancel", request{"task_id": other, "reason": "enough"}))
	require.Equal(t, `{"task":{"canceledAt":"*","createdAt":"*","reason":"enough","status":"CANCELED","taskId":"*"},"type":"task"}`,
		shape(t, []byte(member(t, canceled, "result")), arcVary...))

	subscribed := p.do(arcCall("task.subscribe", request{"task_id": id, "callback_url": "http://127.0.0.1:1/hook", "events": []string{"NEW_MESSAGE"}}))
	require.Equal(t, `{"subscription":{"active":false,"callbackUrl":"http://127.0.0.1:1/hook","createdAt":"*","events":["NEW_MESSAGE"],"subscriptionId":"*","taskId":"*"},"type":"task"}`,
		shape(t, []byte(member(t, subscribed, "result")), arcVary...))

	notified := p.do(arcCall("task.notification", request{"task_id": "task-9", "event": "TASK_COMPLETED", "timestamp": "2026-01-15T10:30:00Z",
		"data": request{"status": "COMPLETED", "message": "done", "artifactCount": 2}}))
	require.Equal(t, `true`, member(t, []byte(member(t, notified, "result")), "success"))
}

func TestARCPythonClientChats(t *testing.T) {
	t.Parallel()
	endpoint, _ := arcServer(t, nil, nil)
	p := arcPython(t, endpoint, "")
	started := p.do(arcCall("chat.start", request{"initial_message": say("hello there"), "chat_id": "chat-of-mine", "metadata": request{"k": "v"}}))
	require.Equal(t, `{"chat":{"chatId":"*","createdAt":"*","message":{"parts":[{"content":"echo: hello there","type":"TextPart"}],"role":"agent","timestamp":"*"},"status":"ACTIVE"},"type":"chat"}`,
		shape(t, []byte(member(t, started, "result")), arcVary...))
	second := p.do(arcCall("chat.message", request{"chat_id": "chat-of-mine", "message": say("more")}))
	require.Contains(t, string(second), `"content": "echo: more"`)
	end := p.do(arcCall("chat.end", request{"chat_id": "chat-of-mine", "reason": "over"}))
	require.Equal(t, `{"chat":{"chatId":"*","closedAt":"*","createdAt":"*","reason":"over","status":"CLOSED"},"type":"chat"}`,
		shape(t, []byte(member(t, end, "result")), arcVary...))
	f := p.fails(arcCall("chat.message", request{"chat_id": "chat-of-mine", "message": say("more")}))
	require.Equal(t, "ARCChatError -43002 Chat already closed", f.String())
}

// The pieces of an answer reach the peer when they are written, not at the end.
func TestARCPythonClientStreams(t *testing.T) {
	t.Parallel()
	pace := make(chan struct{})
	endpoint, _ := arcServer(t, nil, pace)
	p := arcPython(t, endpoint, "")
	next := func() string {
		return shape(t, p.do(request{"op": "stream_next", "client": "c"}), "chatId")
	}
	for _, method := range []string{"chat.start", "chat.message"} {
		args := request{"target_agent": "echo-01", "chat_id": "chat-1", "initial_message": say("one two")}
		if method == "chat.message" {
			args = request{"target_agent": "echo-01", "chat_id": "chat-1", "message": say("one two")}
		}
		p.do(request{"op": "stream_open", "client": "c", "method": method, "args": args})
		require.Equal(t, `{"data":{"chatId":"*","message":{"parts":[{"content":"echo: ","type":"TextPart"}],"role":"agent"}},"event":"stream"}`, next())
		pace <- struct{}{}
		require.Equal(t, `{"data":{"chatId":"*","message":{"parts":[{"content":"one ","type":"TextPart"}],"role":"agent"}},"event":"stream"}`, next())
		pace <- struct{}{}
		require.Equal(t, `{"data":{"chatId":"*","message":{"parts":[{"content":"two","type":"TextPart"}],"role":"agent"}},"event":"stream"}`, next())
		require.Equal(t, `{"data":{"chatId":"*","done":true,"status":"ACTIVE"},"event":"done"}`, next())
		require.Equal(t, `null`, next())
	}

	// The peer receives a failure within a stream as an event, and no done event after it.
	p.do(request{"op": "stream_open", "client": "c", "method": "chat.start", "args": request{"target_agent": "echo-01", "initial_message": say("break")}})
	require.Contains(t, next(), `"echo: "`)
	pace <- struct{}{}
	require.Contains(t, next(), `"break"`)
	require.Equal(t, `{"data":{"chatId":"*","error":{"code":-43003,"message":"too slow"}},"event":"error"}`, next())
	require.Equal(t, `null`, next())

	// A failure before the first event is an ordinary ARC error. With HTTP 200 the peer ignores it, since it reads events
	// only. It reports any other status as a connection error.
	p.do(request{"op": "stream_open", "client": "c", "method": "chat.message", "args": request{"target_agent": "echo-01", "chat_id": "chat-none", "message": say("x")}})
	require.Equal(t, `null`, next())
	p.do(request{"op": "stream_open", "client": "c", "method": "chat.start", "args": request{"target_agent": "nobody", "initial_message": say("x")}})
	f := p.fails(request{"op": "stream_next", "client": "c"})
	require.Equal(t, "ConnectionError", f.Class)
	require.Contains(t, f.Message, "HTTP error: 404")
}

// The exceptions of the peer for the errors of each family. The peer reads the code only if the HTTP status is 200. For
// every other status it drops code and details (ARC-D12).
func TestARCPythonClientErrors(t *testing.T) {
	t.Parallel()
	tests := []struct {
		code    arc.Code
		details string
		always  string // with every answer 200
		mapped  string // with the statuses of ARC-D12
	}{
		{arc.ErrParse, `{}`, "ParseError -32700", "InvalidRequestError -32600"},
		{arc.ErrInvalidRequest, `{}`, "InvalidRequestError -32600", "InvalidRequestError -32600"},
		{arc.ErrMethodNotFound, `{}`, "MethodNotFoundError -32601", "MethodNotFoundError -32601"},
		{arc.ErrInvalidParams, `{}`, "InvalidParamsError -32602", "InvalidRequestError -32600"},
		{arc.ErrInternal, `{}`, "InternalError -32603", "ARCException "},
		{arc.ErrAgentNotFound, `{"agentId":"a"}`, "AgentNotFoundError -41001", "MethodNotFoundError -32601"},
		{arc.ErrAgentNotAvailable, `{"agentId":"a"}`, "AgentNotAvailableError -41002", "ARCException "},
		{arc.ErrAgentTimeout, ``, "ARCAgentError -41006", "ARCException "},
		{arc.ErrTaskNotFound, `{"taskId":"t"}`, "TaskNotFoundError -42001", "TaskNotFoundError -42001"},
		{arc.ErrTaskAlreadyCompleted, ``, "ARCTaskError -42002", "ARCTaskError -42002"},
		{arc.ErrInvalidTaskPriority, ``, "ARCTaskError -42010", "ARCTaskError -42010"},
		{arc.ErrChatNotFound, `{"chatId":"c"}`, "ChatNotFoundError -43001", "ChatNotFoundError -43001"},
		{arc.ErrChatBufferOverflow, ``, "ARCChatError -43006", "ARCChatError -43006"},
		{arc.ErrAuthenticationFailed, `{}`, "AuthenticationError -44001", "AuthenticationError -44001"},
		{arc.ErrAuthorizationFailed, `{}`, "AuthorizationError -44002", "AuthorizationError -44002"},
		{arc.ErrInsufficientScope, `{"required_scopes":["a"],"provided_scopes":[]}`, "InsufficientScopeError -44003", "AuthorizationError -44002"},
		{arc.ErrTokenExpired, `{}`, "TokenExpiredError -44004", "AuthenticationError -44001"},
		{arc.ErrRateLimitExceeded, ``, "ARCSecurityError -44007", "ARCSecurityError -44007"},
		{arc.ErrMissingField, ``, "ARCProtocolError -45002", "InvalidRequestError -32600"},
		{arc.ErrMessageTooLarge, ``, "ARCProtocolError -45004", "ARCException "},
		{-46001, ``, "ARCException ", "ARCException "},
		// Without details the peer fails over its own reading of some codes, which is why ours always have some (ARC-D55).
		{arc.ErrAgentNotFound, ``, "AttributeError ", "MethodNotFoundError -32601"},
		{arc.ErrTaskNotFound, ``, "AttributeError ", "AttributeError "},
		{arc.ErrChatNotFound, ``, "AttributeError ", "AttributeError "},
	}
	run := func(t *testing.T, opts *arc.ServerOptions, want func(i int) string) {
		endpoint, _ := arcServer(t, opts, nil)
		p := arcPython(t, endpoint, "")
		for i, tt := range tests {
			params := request{"code": int64(tt.code)}
			if tt.details != "" {
				params["details"] = json.RawMessage(tt.details)
			}
			f := p.fails(request{"op": "send", "client": "c", "method": "debug.fail", "target": "echo-01", "params": params})
			require.Equal(t, want(i), f.Class+" "+string(f.Code), "%d %s", tt.code, tt.details)
		}
	}
	python := &arc.ServerOptions{ProfileFor: func(http.Header, string) arc.Profile { return arc.ProfilePythonSDK }}
	t.Run("profile", func(t *testing.T) {
		run(t, python, func(i int) string { return tests[i].always })
	})
	t.Run("mapped", func(t *testing.T) {
		run(t, nil, func(i int) string { return tests[i].mapped })
	})
	t.Run("by the server", func(t *testing.T) {
		endpoint, _ := arcServer(t, python, nil)
		p := arcPython(t, endpoint, "")
		send := func(method, target string, params request) string {
			f := p.fails(request{"op": "send", "client": "c", "method": method, "target": target, "params": params})
			return f.Class + " " + string(f.Code) + " " + string(f.Details)
		}
		// The peer adds its own members to the details, and drops the details of the RPC codes.
		require.Equal(t, `AgentNotFoundError -41001 {"agentId": "nobody", "agent_id": "nobody"}`, send("task.info", "nobody", request{"taskId": "t"}))
		require.Equal(t, `MethodNotFoundError -32601 {}`, send("no.such", "echo-01", request{}))
		require.Equal(t, `TaskNotFoundError -42001 {"taskId": "t", "task_id": "t"}`, send("task.info", "echo-01", request{"taskId": "t"}))
		require.Equal(t, `ChatNotFoundError -43001 {"chatId": "t", "chat_id": "t"}`, send("chat.end", "echo-01", request{"chatId": "t"}))
		require.Equal(t, `InvalidParamsError -32602 {}`, send("task.info", "echo-01", request{}))
	})
}

// Numbers and text of every plane come back as they went.
func TestARCPythonClientValues(t *testing.T) {
	t.Parallel()
	endpoint, _ := arcServer(t, nil, nil)
	p := arcPython(t, endpoint, "")
	params := `{"big":123456789012345678901234567890,"text":"\u0000\u001f é 漢 😀 \ud83c\udf89\u2028","deep":[[[]],{"":null}],"neg":-0.0,"exp":1e-7}`
	out := p.do(request{"op": "send", "client": "c", "method": "debug.echo", "target": "echo-01", "params": json.RawMessage(params)})
	echoed := member(t, []byte(member(t, out, "result")), "params")
	require.Equal(t, `{"big":123456789012345678901234567890,"deep":[[[]],{"":null}],"exp":1e-07,"neg":-0.0,"text":"\u0000\u001f é 漢 😀 🎉\u2028"}`, echoed)
}

// The peer's helper that keeps a chat with each agent.
func TestARCPythonClientThreads(t *testing.T) {
	t.Parallel()
	endpoint, _ := arcServer(t, nil, nil)
	p := arcPython(t, endpoint, "")
	send := func(text string) string {
		return string(p.do(request{"op": "thread_send", "client": "c", "agent": "echo-01", "message": say(text)}))
	}
	require.Contains(t, send("one"), `"echo: one"`)
	var first, second string
	p.into(&first, request{"op": "thread_id", "client": "c", "agent": "echo-01"})
	require.Contains(t, send("two"), `"echo: two"`)
	p.into(&second, request{"op": "thread_id", "client": "c", "agent": "echo-01"})
	require.Equal(t, first, second)

	// The peer does not start a new chat after the end of a chat.
	p.do(arcCall("chat.end", request{"chat_id": first}))
	f := p.fails(request{"op": "thread_send", "client": "c", "agent": "echo-01", "message": say("three")})
	require.Equal(t, "ARCChatError -43002 Chat already closed", f.String(), "it begins anew after -43001 only")

	// On streams it takes the iterator for an answer.
	f = p.fails(request{"op": "thread_send", "client": "c", "agent": "echo-02", "message": say("x"), "stream": true})
	require.Equal(t, "TypeError", f.Class)
	require.Equal(t, `{"echo-01":false}`, shape(t, p.do(request{"op": "thread_cleanup", "client": "c"})))
}
