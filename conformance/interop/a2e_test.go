// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package interop_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/a2e"
	"github.com/fivewire/fivewire/a2e/a2etest"
	"github.com/fivewire/fivewire/a2e/memory"
	"github.com/fivewire/fivewire/a2e/tools"
	"github.com/fivewire/fivewire/internal/testkit"
)

// An independent A2E host and agent, written in Python from the specification, against our client and host.

func a2eHost() *a2e.Host {
	set := a2etest.Must(tools.NewSet(nil))
	tools.AddTool(set, "add", "Adds", func(_ context.Context, _ *a2e.Call, in struct{ A, B int64 }) (int64, error) {
		return in.A + in.B, nil
	}, nil)
	tools.AddTool(set, "say", "Says it back", func(_ context.Context, call *a2e.Call, in struct{ Text string }) (string, error) {
		for i, word := range strings.Split(in.Text, " ") {
			if err := call.Emit("progress", map[string]any{"pct": i, "message": word}); err != nil {
				return "", err
			}
		}
		if in.Text == "fail" {
			return "", errors.New("it failed")
		}
		return in.Text, nil
	}, nil)
	tools.AddTool(set, "wait", "Waits", func(ctx context.Context, _ *a2e.Call, _ struct{}) (string, error) {
		<-ctx.Done()
		return "", ctx.Err()
	}, nil)
	return a2etest.Must(a2e.NewHost(&a2e.HostOptions{Auth: a2e.Auth{Authenticator: a2etest.KeyAuthenticator("secret")}})).AddPlugin(set.Plugin()).AddPlugin(a2etest.Must(memory.NewPlugin(nil)))
}

// serveA2EHost is what the test binary does as the child of the Python agent.
func serveA2EHost() int {
	if err := a2eHost().Serve(context.Background(), a2e.Stdio()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

type a2eAnswer struct {
	Messages   []json.RawMessage `json:"messages"`
	End        bool              `json:"end"`
	Violations []string          `json:"violations"`
}

// last returns the last message of an answer without what differs from run to run.
func (a *a2eAnswer) last(t *testing.T, vary ...string) string {
	t.Helper()
	require.NotEmpty(t, a.Messages, "end: %v %q", a.End, a.Violations)
	return shape(t, a.Messages[len(a.Messages)-1], append(vary, "id", "ts", "req_id", "created_at", "duration_ms", "session_id", "message", "memory_id")...)
}

func TestA2EPythonAgent(t *testing.T) {
	t.Parallel()
	t.Run("stdio", func(t *testing.T) {
		t.Parallel()
		self, err := os.Executable()
		require.NoError(t, err)
		p := python(t, "a2e_agent.py")
		p.do(request{"op": "spawn", "name": "a", "argv": []string{self}, "env": map[string]string{"FIVEWIRE_INTEROP_CHILD": "a2e", "PATH": os.Getenv("PATH")}})
		a2eAgent(t, p, false)
		require.Equal(t, `{"result":0,"violations":[]}`, shape(t, p.do(request{"op": "end", "name": "a"})), "the exit code of our host")
	})
	t.Run("HTTP", func(t *testing.T) {
		t.Parallel()
		host := a2eHost()
		ts := httptest.NewServer(a2etest.Must(a2e.NewHTTPHandler(host, nil)))
		defer ts.Close()
		defer host.Close()
		p := python(t, "a2e_agent.py")
		p.do(request{"op": "connect", "name": "a", "url": ts.URL})
		a2eAgent(t, p, true)
		require.Equal(t, `{"result":404,"violations":[]}`, shape(t, p.do(request{"op": "end", "name": "a"})), "the session is over")
	})
}

func a2eAgent(t *testing.T, p *peer, http bool) {
	ask := func(kind string, members request) *a2eAnswer {
		t.Helper()
		r := request{"op": "ask", "name": "a", "type": kind}
		for k, v := range members {
			r[k] = v
		}
		var a a2eAnswer
		p.into(&a, r)
		return &a
	}
	raw := func(text, req string) *a2eAnswer {
		t.Helper()
		var a a2eAnswer
		p.into(&a, request{"op": "raw", "name": "a", "data": []byte(text), "req": req})
		return &a
	}
	fault := func(a *a2eAnswer) string {
		t.Helper()
		require.NotEmpty(t, a.Messages, "end: %v %q", a.End, a.Violations)
		var e struct {
			Type, Code string
			Detail     json.RawMessage
			Retryable  bool
			Capability string `json:"capability_name"`
		}
		require.NoError(t, json.Unmarshal(a.Messages[len(a.Messages)-1], &e))
		require.Equal(t, "error", e.Type, "%s", a.Messages[len(a.Messages)-1])
		return fmt.Sprintf("%s %s %v %s", e.Code, shape(t, e.Detail), e.Retryable, e.Capability)
	}
	list := request{"filter_kind": "", "filter_tags": []string{}, "query": "", "include_deferred": false}
	hello := func(token string) request {
		return request{"agent_id": "py-agent", "agent_caps": []string{"tools", "env", "x-own", "streaming"}, "auth_token": token}
	}
	require.Equal(t, `unauthorized {"reason":"no_handshake"} false tools`, fault(ask("tool/list/req", list)))
	require.Equal(t, `{"a2e":"1.0","id":"*","req_id":"*","ts":"*","type":"pong","uptime_seconds":"*"}`, ask("ping", nil).last(t, "uptime_seconds"))
	require.Equal(t, `{"a2e":"1.0","accepted_caps":[],"id":"*","max_parallel":0,"ok":false,"reason":"auth_failed","req_id":"*","session_id":"*","ts":"*","type":"handshake/resp"}`,
		ask("handshake/req", hello("wrong")).last(t))
	require.Equal(t, `{"a2e":"1.0","accepted_caps":[],"id":"*","max_parallel":0,"ok":false,"reason":"version_mismatch","req_id":"*","session_id":"*","ts":"*","type":"handshake/resp"}`,
		raw(`{"a2e":"2.0","type":"handshake/req","id":"h1","ts":1,"agent_id":"","agent_caps":[],"auth_token":"secret"}`+"\n", "h1").last(t))
	require.Equal(t, `{"a2e":"1.0","accepted_caps":[{"capability":"tools","enabled":true,"metadata":{"exclusive":false,"name":"tools","priority":0,"type":"tools"}}],"id":"*","max_parallel":4,"ok":true,"reason":"","req_id":"*","session_id":"*","ts":"*","type":"handshake/resp"}`,
		ask("handshake/req", hello("secret")).last(t))

	require.Contains(t, ask("tool/list/req", list).last(t), `"input_parameters":[{"description":"","name":"A","required":true,"type":"integer"},{"description":"","name":"B","required":true,"type":"integer"}]`)
	call := func(tool string, arguments string, more request) *a2eAnswer {
		t.Helper()
		r := request{"session_id": "", "tool_name": tool, "arguments": json.RawMessage(arguments), "correlation_id": "turn-1", "streaming": false, "timeout": 30}
		for k, v := range more {
			r[k] = v
		}
		return ask("tool/call/req", r)
	}
	require.Equal(t, `{"a2e":"1.0","created_at":"*","data":{"data":9223372036854775807,"duration_ms":"*","events":[],"success":true,"tool_name":"add","truncated":false},"id":"*","req_id":"*","ts":"*","type":"tool/call/resp"}`,
		call("add", `{"A":9223372036854775806,"B":1}`, nil).last(t))
	reply := call("say", `{"Text":"Grüße \u2028 😀 \u0085\u0000"}`, request{"streaming": true})
	require.Len(t, reply.Messages, 5)
	require.Equal(t, `{"a2e":"1.0","data":{"message":"*","pct":2},"id":"*","kind":"progress","req_id":"*","seq":2,"ts":"*","type":"tool/event"}`, shape(t, reply.Messages[2], "id", "ts", "req_id", "message"))
	require.Contains(t, reply.last(t), `"data":"Grüße \u2028 😀 `+"\u0085"+`\u0000"`)
	require.Len(t, call("say", `{"Text":"a b c"}`, nil).Messages, 1, "no events unless they are asked for")
	require.Equal(t, `tool_error {"tool_name":"say"} false tools`, fault(call("say", `{"Text":"fail"}`, nil)))
	require.Equal(t, `unknown_tool {"tool_name":"none"} false tools`, fault(call("none", `{}`, nil)))
	require.Equal(t, `schema_violation {"field":"arguments.B","reason":"required"} false tools`, fault(call("add", `{"A":1}`, nil)))
	require.Equal(t, `schema_violation {"field":"arguments.A","reason":"type"} false tools`, fault(call("add", `{"A":1.5,"B":2}`, nil)))
	require.Equal(t, `timeout {"reason":"deadline"} true tools`, fault(call("wait", `{}`, request{"timeout": 1})))
	require.Equal(t, `unauthorized {"reason":"session_id"} false tools`, fault(call("add", `{"A":1,"B":2}`, request{"session_id": strings.Repeat("0", 32)})))
	require.Equal(t, `capability_missing {"reason":"not_negotiated"} false memory`, fault(ask("memory/init/req", request{"namespace": "n", "scope": request{}, "metadata": request{}})))
	require.Equal(t, `invalid_message {"reason":"unknown_type","type":"demo/greet/req"} false `, fault(ask("demo/greet/req", request{"x": 1})))
	repeated := request{"id": strings.Repeat("ab", 16)}
	for k, v := range list {
		repeated[k] = v
	}
	require.Contains(t, ask("tool/list/req", repeated).last(t), `"type":"tool/list/resp"`)
	require.Equal(t, `invalid_message {"reason":"duplicate_id"} false `, fault(ask("tool/list/req", repeated)))

	// Bytes that no encoder makes. HTTP bodies are lines as well.
	require.Equal(t, `parse_error {"reason":"invalid_json"} false `, fault(raw(`{"a2e":"1.0",`+"\n", "")))
	require.Equal(t, `parse_error {"reason":"invalid_utf8"} false `, fault(raw("{\"a2e\":\"\xff\"}\n", "")))
	require.Equal(t, `invalid_message {"reason":"not_object"} false `, fault(raw("[]\n", "")))
	require.Equal(t, `invalid_message {"reason":"duplicate_key"} false `, fault(raw(`{"a2e":"1.0","type":"ping","id":"x","ts":1,"type":"ping"}`+"\n", "")))
	require.Equal(t, `schema_violation {"field":"ts","reason":"required"} false `, fault(raw(`{"a2e":"1.0","type":"ping","id":"x"}`+"\n", "x")))
	require.Equal(t, `version_mismatch {} false `, fault(raw(`{"a2e":"1.1","type":"ping","id":"x2","ts":1}`+"\n", "x2")))
	require.Contains(t, raw("\n \t\r\n"+`{ "version" : "1.0" , "type":"ping", "id":"spaced", "ts": 1e0 }`+"\r\n", "spaced").last(t), `"type":"pong"`)

	// Several at once: each is answered once, whatever the order.
	var requests []request
	for i := range 8 {
		requests = append(requests, request{"type": "tool/call/req", "session_id": "", "tool_name": "add", "arguments": request{"A": i, "B": 100}, "correlation_id": "", "streaming": false, "timeout": 30})
	}
	if !http {
		var got []struct {
			Request int
			Answer  struct{ Data struct{ Data int } }
		}
		p.into(&got, request{"op": "many", "name": "a", "requests": requests})
		require.Len(t, got, 8)
		for _, g := range got {
			require.Equal(t, 100+g.Request, g.Answer.Data.Data)
		}
	} else {
		// The stream breaks off and is taken up again, and nothing is lost or comes twice.
		p.do(request{"op": "break_off", "name": "a"})
		require.Contains(t, call("add", `{"A":1,"B":2}`, nil).last(t), `"data":3`)
	}

	// Another set of capabilities, and the memory of the session.
	second := hello("secret")
	second["agent_caps"] = []string{"memory"}
	require.Contains(t, ask("handshake/req", second).last(t), `"capability":"memory"`)
	require.Equal(t, `capability_missing {"reason":"not_negotiated"} false tools`, fault(ask("tool/list/req", list)))
	inited := ask("memory/init/req", request{"namespace": "n", "scope": request{"user": "u"}, "metadata": request{}})
	var id struct {
		MemoryID string `json:"memory_id"`
	}
	require.NoError(t, json.Unmarshal(inited.Messages[0], &id))
	entry := func(key, content string) json.RawMessage {
		return json.RawMessage(`{"key":` + key + `,"content":` + content + `,"tier":"working","tags":["t"],"source":"turn-1","score":1,"ttl":0}`)
	}
	require.Equal(t, `{"a2e":"1.0","errors":["entries[2].tier: value"],"id":"*","req_id":"*","stored":[{"k":1},{"k":[1,{"z":null}]}],"ts":"*","type":"memory/store/resp"}`,
		ask("memory/store/req", request{"memory_id": id.MemoryID, "entries": []json.RawMessage{entry(`{"k":1}`, `"one"`), entry(`{"k":[1,{"z":null}]}`, `123456789012345678901234567890`), json.RawMessage(`{"key":{},"content":1,"tier":"none"}`)}}).last(t))
	require.Contains(t, ask("memory/retrieve/req", request{"memory_id": id.MemoryID, "keys": []json.RawMessage{json.RawMessage(`{"k":[1.0,{"z":null}]}`)}, "query": "", "tags": []string{}, "tier": "", "limit": 10, "min_score": 0}).last(t),
		`"content":123456789012345678901234567890,`)
	require.True(t, ask("shutdown", request{"timeout": 1}).End)
}

func TestA2EPythonHost(t *testing.T) {
	t.Parallel()
	t.Run("stdio", func(t *testing.T) {
		t.Parallel()
		bin := filepath.Join(peers(t, "python"), "python", "bin", "python")
		var output testkit.Log
		a2eClient(t, false, func() io.ReadWriteCloser {
			cmd := exec.Command(bin, "-B", filepath.Join("peers", "python", "a2e_host.py"), "stdio")
			rw, err := a2e.StartCommand(cmd, &a2e.CommandOptions{Logger: slog.New(slog.NewTextHandler(&output, nil))})
			require.NoError(t, err)
			return rw
		})
		require.NotContains(t, output.String(), "violation")
		require.NotContains(t, output.String(), "Traceback")
	})
	t.Run("HTTP", func(t *testing.T) {
		t.Parallel()
		p := python(t, "a2e_host.py")
		var url string
		p.into(&url, request{"op": "listen"})
		a2eClient(t, true, func() io.ReadWriteCloser {
			rw, err := a2e.DialHTTP(t.Context(), url, nil)
			require.NoError(t, err)
			return rw
		})
		require.Equal(t, `[]`, string(p.do(request{"op": "violations"})))
	})
}

func a2eClient(t *testing.T, http bool, dial func() io.ReadWriteCloser) {
	ctx := t.Context()
	stranger := a2etest.Must(a2e.NewClient(dial(), &a2e.ClientOptions{Token: "wrong", Capabilities: []string{"tools"}}))
	_, err := stranger.Connect(ctx)
	var refused *a2e.HandshakeError
	require.ErrorAs(t, err, &refused)
	require.Equal(t, a2e.RejectAuthFailed, refused.Reason)
	_ = stranger.Close()

	c := a2etest.Must(a2e.NewClient(dial(), &a2e.ClientOptions{Token: "secret", AgentID: "go-agent", Capabilities: []string{"tools", "memory"}}))
	defer c.Close()
	hello, err := c.Connect(ctx)
	require.NoError(t, err)
	require.EqualValues(t, 2, *hello.MaxParallel)
	require.True(t, c.HasCapability("tools"))
	require.False(t, c.HasCapability("memory"))
	_, pong, err := c.Ping(ctx)
	require.NoError(t, err)
	require.GreaterOrEqual(t, pong.UptimeSeconds, 0.0)

	tc, err := tools.NewClient(c)
	require.NoError(t, err)
	listed, err := tc.List(ctx, nil, nil)
	require.NoError(t, err)
	require.Len(t, listed.Tools, 2)
	kept, _ := json.Marshal(listed.Tools[1].Extra)
	require.Contains(t, fmt.Sprintf("%s %v", kept, listed.Tools[1].Extra), "x_unknown")
	listed, err = tc.List(ctx, &tools.ListRequest{Query: "ad"}, nil)
	require.NoError(t, err)
	require.Len(t, listed.Tools, 1)

	call := func(tool, arguments string, streaming bool, onEvent func(a2e.Event)) (*tools.CallResponse, error) {
		r := new(tools.CallRequest)
		r.SessionID, r.ToolName, r.Arguments, r.Streaming = hello.SessionID, tool, json.RawMessage(arguments), streaming
		return tc.Call(ctx, r, &a2e.CallOptions{OnEvent: onEvent, Timeout: 20 * time.Second})
	}
	out, err := call("add", `{"a":123456789012345678901234567890,"b":1}`, false, nil)
	require.NoError(t, err)
	require.Equal(t, "123456789012345678901234567891", string(out.Data.Data))
	var words []string
	out, err = call("say", `{"text":"Grüße 😀 \u2028 \u0085 cut"}`, true, func(ev a2e.Event) {
		require.EqualValues(t, "ok", fmt.Sprint(ev.Order))
		var d struct{ Message string }
		require.NoError(t, json.Unmarshal(ev.Header().Data, &d))
		words = append(words, d.Message)
	})
	require.NoError(t, err, "over HTTP the stream was cut between, and read on from where it was")
	require.Equal(t, []string{"Grüße", "😀", "\u2028", "\u0085", "cut"}, words)
	require.JSONEq(t, `{"said":"Grüße 😀 \u2028 \u0085 cut"}`, string(out.Data.Data))

	_, err = call("say", `{"text":"fail"}`, false, nil)
	var e *a2e.Error
	require.ErrorAs(t, err, &e)
	require.True(t, e.Remote && e.Retryable)
	require.Equal(t, "tool_error it failed tools", string(e.Code)+" "+e.Message+" "+e.Capability)
	require.Equal(t, `{"why":["a",1]}`, shape(t, e.Details))
	out, err = call("say", `{"text":"unsuccessful"}`, false, nil)
	require.ErrorIs(t, err, a2e.Code("tool_error"))
	require.False(t, out.Data.Success)
	_, err = call("none", `{}`, false, nil)
	require.ErrorIs(t, err, a2e.Code("unknown_tool"))
	_, err = c.Call(ctx, "demo/greet/req", nil, nil)
	require.ErrorIs(t, err, a2e.ErrUnsupported)

	var wg sync.WaitGroup
	for i := range 16 {
		wg.Go(func() {
			out, err := call("add", fmt.Sprintf(`{"a":%d,"b":1000}`, i), false, nil)
			if err != nil || string(out.Data.Data) != fmt.Sprint(1000+i) {
				t.Errorf("%d: %v %v", i, out, err)
			}
		})
	}
	wg.Wait()
	require.Zero(t, c.Stats().Dropped)
	require.NoError(t, c.Close())
}
