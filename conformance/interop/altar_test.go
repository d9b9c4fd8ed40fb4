// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package interop_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fivewire/fivewire/altar"
	"github.com/fivewire/fivewire/altar/altartest"
	"github.com/stretchr/testify/require"
)

// An independent Altar client, Runtime and Host, written in Python from the specification, in place of each of ours.

const altarManifest = `{"version":"1.0.0","contracts":[
	{"name":"math/add","description":"Adds","parameters":[{"name":"a","type":"integer","required":true},{"name":"b","type":"integer","required":true},{"name":"note","type":"string"}]},
	{"name":"text/words","streaming":true,"parameters":[{"name":"text","type":"string","required":true}]},
	{"name":"types","parameters":[{"name":"f","type":"float"},{"name":"raw","type":"binary"},{"name":"deep","type":"array[array[object]]","properties":[{"name":"x","type":"boolean"}]},{"name":"free","type":"object"}]},
	{"name":"bad/status","parameters":[]},{"name":"bad/code","parameters":[]},
	{"name":"bad/gap","streaming":true,"parameters":[]},{"name":"bad/order","streaming":true,"parameters":[]},
	{"name":"wait","timeout_ms":10000,"parameters":[]}
]}`

// altarHost serves our Host over TCP, WebSocket and HTTP.
func altarHost(t *testing.T) (tcp, web string, host *altar.Host) {
	t.Helper()
	m, err := altar.DecodeManifest([]byte(altarManifest))
	require.NoError(t, err)
	alice := &altar.Principal{ID: "alice", Roles: []string{"user"}}
	keys, err := altar.APIKeyAuthenticator(map[string]*altar.Principal{"key": alice})
	require.NoError(t, err)
	host, err = altar.NewHost(m, &altar.HostOptions{
		ID:   "go-host",
		Auth: altar.Auth{Authorizer: altar.AuthorizerFunc(altar.AllowAll), Authenticator: keys},
	})
	require.NoError(t, err)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	var served sync.WaitGroup
	served.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			served.Go(func() { _ = host.Serve(ctx, altar.NewStreamConn(c, nil), alice) })
		}
	})
	ts := httptest.NewServer(host)
	t.Cleanup(func() {
		cancel()
		l.Close()
		require.NoError(t, host.Close())
		ts.Close()
		served.Wait()
	})
	return l.Addr().String(), ts.URL, host
}

var altarKey = map[string]string{"X-Api-Key": "key"}

// altarWires are the ways to reach a peer.
var altarWires = []string{"tcp", "ws"}

func altarAddress(wire, tcp, web string) string {
	if wire == "tcp" {
		return tcp
	}
	return "ws" + strings.TrimPrefix(web, "http")
}

// A Python client and Runtime at our Host.
func TestAltarPythonAtOurHost(t *testing.T) {
	t.Parallel()
	for _, wire := range altarWires {
		t.Run(wire, func(t *testing.T) {
			t.Parallel()
			tcp, web, host := altarHost(t)
			at := altarAddress(wire, tcp, web)
			p := python(t, "altar_peer.py")

			require.Equal(t, `{"error":{"code":"INVALID_PARAMETERS","details":{"reason":"unsupported_version","supported":["1.0.0"]},"message":"*"},"request_id":"r1","type":"Error"}`,
				shape(t, p.do(request{"op": "runtime", "id": "py-old", "how": wire, "address": at, "headers": altarKey, "version": "2.0.0"}), "message"))
			require.Equal(t, `{"capabilities":["streaming","cancellation","session_events","deadlines"],"host_id":"go-host","protocol_version":"1.0.0","request_id":"r1","type":"AcknowledgeRuntime"}`,
				shape(t, p.do(request{"op": "runtime", "id": "py-1", "how": wire, "address": at, "headers": altarKey})))
			require.Equal(t, 1, host.Stats().Runtimes)

			p.do(request{"op": "connect", "name": "c", "how": wire, "address": at, "headers": altarKey})
			ask := func(m string) string {
				t.Helper()
				return shape(t, p.do(request{"op": "ask", "name": "c", "message": json.RawMessage(m)}), "message")
			}
			require.Equal(t, `{"request_id":"p","type":"Pong"}`, ask(`{"type":"Ping","request_id":"p"}`))
			require.Equal(t, `{"correlation_id":"co","request_id":"1","session_id":"s1","ttl_seconds":86400,"type":"SessionCreated"}`,
				ask(`{"type":"CreateSession","session_id":"s1","ttl_seconds":1e9,"security_context":{"principal_id":"alice","claims":{"role":"user"}},"request_id":"1","correlation_id":"co"}`))
			require.Equal(t, `{"error":{"code":"AUTHORIZATION_FAILED","details":{"reason":"principal_mismatch"},"message":"*"},"type":"Error"}`,
				ask(`{"type":"CreateSession","security_context":{"principal_id":"bob"}}`))
			require.Equal(t, `{"error":{"code":"INVALID_PARAMETERS","details":{"path":"/ttl_seconds","reason":"invalid_value"},"message":"*"},"type":"Error"}`,
				ask(`{"type":"CreateSession","ttl_seconds":1.5}`))
			require.Eventually(t, func() bool { // what a Runtime fulfils comes after its announcement
				return strings.Contains(ask(`{"type":"ListTools","session_id":"s1"}`), `"runtimes":["py-1"],"streaming":true}`)
			}, waitFor, tick)

			n := 0
			call := func(tool, params, more string) []json.RawMessage {
				t.Helper()
				n++
				var out []json.RawMessage
				p.into(&out, request{"op": "call", "name": "c", "message": json.RawMessage(fmt.Sprintf(
					`{"type":"ToolCall","invocation_id":"00000000-0000-4000-8000-%012d","session_id":"s1","tool_name":%q,"parameters":%s%s}`, n, tool, params, more))})
				return out
			}
			last := func(out []json.RawMessage) string {
				return shape(t, out[len(out)-1], "message", "invocation_id")
			}
			require.Equal(t, `{"correlation_id":"x","invocation_id":"*","payload":9223372036854775807,"runtime_metadata":{"execution_time_ms":1,"host":"py"},"status":"success","type":"ToolResult"}`,
				last(call("math/add", `{"a":9223372036854775806,"b":1.0,"note":null}`, `,"correlation_id":"x","metadata":{"traceparent":"00-1"},"timeout_ms":5000`)))
			require.Equal(t, `{"error":{"code":"EXECUTION_FAILED","details":{"sum":"18446744073709551614"},"message":"*"},"invocation_id":"*","status":"error","type":"ToolResult"}`,
				last(call("py-1/math/add", `{"a":9223372036854775807,"b":9223372036854775807}`, ``)))
			fault := func(code string, details string) string {
				return `{"error":{"code":"` + code + `","details":` + details + `,"message":"*"},"invocation_id":"*","status":"error","type":"ToolResult"}`
			}
			require.Equal(t, fault("INVALID_PARAMETERS", `{"errors":[{"expected":"integer","got":"number","path":"/a","reason":"not_integer"},{"expected":"integer","path":"/b","reason":"missing_required"},{"path":"/zz","reason":"unknown_parameter"}],"path":"/a","reason":"not_integer"}`),
				last(call("math/add", `{"a":1.5,"zz":null}`, ``)))
			require.Equal(t, fault("TOOL_NOT_FOUND", `{"reason":"unknown_contract"}`), last(call("no/such", `{}`, ``)))
			require.Equal(t, fault("TOOL_NOT_FOUND", `{"reason":"not_fulfilled"}`), last(call("types", `{}`, ``)))
			require.Equal(t, fault("INTERNAL_ERROR", `{"reason":"invalid_result"}`), last(call("bad/status", `{}`, ``)))
			require.Equal(t, fault("INTERNAL_ERROR", `{"reason":"chunk_gap"}`), last(call("bad/gap", `{}`, ``)))
			require.Equal(t, fault("EXECUTION_FAILED", `{"original_code":"OUT_OF_PAPER"}`), last(call("bad/code", `{}`, ``)))

			words := call("text/words", `{"text":"Grüße 😀 end"}`, ``)
			require.Len(t, words, 3)
			require.Equal(t, `{"chunk_id":1,"invocation_id":"*","is_final":false,"payload":"😀","type":"StreamChunk"}`, shape(t, words[1], "invocation_id"))
			require.Equal(t, `{"invocation_id":"*","payload":["a","b"],"status":"success","type":"ToolResult"}`, last(call("text/words", `{"text":"a b"}`, `,"accept_stream":false`)))
			failed := call("text/words", `{"text":"a fail"}`, ``)
			require.Len(t, failed, 2)
			require.Equal(t, `{"chunk_id":1,"error":{"code":"EXECUTION_FAILED","message":"*"},"invocation_id":"*","is_final":true,"type":"StreamChunk"}`, last(failed))
			ordered := call("bad/order", `{}`, ``)
			require.Len(t, ordered, 3, "chunks are put in order, and repeated ones dropped")
			require.Equal(t, `{"chunk_id":0,"invocation_id":"*","is_final":false,"payload":0,"type":"StreamChunk"}`, shape(t, ordered[0], "invocation_id"))

			// A repeated call returns the same outcome. The same id with other content is an error.
			duplicate := `{"type":"ToolCall","invocation_id":"00000000-0000-4000-8000-000000000001","session_id":"s1","tool_name":"math/add","parameters":`
			require.Contains(t, ask(duplicate+`{"b":1,"a":9223372036854775806,"note":null}}`), `"payload":9223372036854775807`)
			require.Equal(t, fault("INVALID_PARAMETERS", `{"reason":"invocation_id_reused"}`), strings.Replace(ask(duplicate+`{"a":1,"b":1}}`), `00000000-0000-4000-8000-000000000001`, `*`, 1))

			// Invalid frames are answered with an error, and the connection stays open.
			raw := func(text string) string {
				t.Helper()
				if wire == "tcp" {
					text += "\n"
				}
				p.do(request{"op": "send_raw", "name": "c", "text": text})
				return shape(t, p.do(request{"op": "receive", "name": "c"}), "message")
			}
			form := func(details string) string {
				return `{"error":{"code":"INVALID_PARAMETERS","details":` + details + `,"message":"*"},"type":"Error"}`
			}
			require.Equal(t, form(`{"reason":"malformed_json"}`), raw(`{"type":"Ping"} x`))
			require.Equal(t, form(`{"reason":"not_an_object"}`), raw(`[]`))
			require.Equal(t, form(`{"reason":"duplicate_key"}`), raw(`{"type":"Ping","t\u0079pe":"Ping"}`))
			require.Equal(t, form(`{"path":"/type","reason":"unknown_type"}`), raw(`{"type":"toolcall"}`))
			require.Equal(t, form(`{"reason":"wrong_role"}`), raw(`{"type":"AnnounceRuntime","runtime_id":"x","protocol_version":"1.0.0"}`))
			if wire == "ws" {
				require.Equal(t, form(`{"reason":"invalid_unicode"}`), raw(`{"type":"Ping","x":"\ud800"}`))
			}

			// The messages that the Runtime received.
			p.do(request{"op": "send", "name": "c", "message": json.RawMessage(`{"type":"ToolCall","invocation_id":"w-1","session_id":"s1","tool_name":"wait","parameters":{}}`)})
			require.Eventually(t, func() bool { return host.Stats().InFlight > 0 }, waitFor, tick)
			require.Equal(t, `{"error":{"code":"EXECUTION_FAILED","details":{"reason":"cancelled"},"message":"*"},"invocation_id":"w-1","status":"error","type":"ToolResult"}`,
				ask(`{"type":"CancelCall","invocation_id":"w-1","session_id":"s1"}`))
			require.Equal(t, `{"reason":"destroyed","request_id":"9","session_id":"s1","type":"SessionDestroyed"}`, ask(`{"type":"DestroySession","session_id":"s1","request_id":"9"}`))
			require.Equal(t, `{"error":{"code":"SESSION_INVALID","details":{"reason":"unknown_session"},"message":"*"},"type":"Error"}`, ask(`{"type":"ListTools","session_id":"s1"}`))
			var log strings.Builder
			require.Eventually(t, func() bool {
				log.Write(p.do(request{"op": "take"}))
				return strings.Contains(log.String(), `"SessionDestroyed"`) && strings.Contains(log.String(), `{"canceled": "w-1"}`)
			}, waitFor, tick)
			require.Contains(t, log.String(), `{"call": "math/add", "parameters": {"a": 9223372036854775806, "b": 1}, "timeout_ms": 5000, "metadata": {"traceparent": "00-1"}, "correlation_id": "x"}`,
				"parameters are normalised on their way")
			require.Contains(t, log.String(), `{"type": "RequestFulfillment", "session_id": "s1"}`)
			require.Contains(t, log.String(), `"fulfilled_tools": ["py-1/math/add", "py-1/text/words", "py-1/bad/status", "py-1/bad/gap", "py-1/bad/code", "py-1/bad/order", "py-1/wait"], "rejected_tools": [{"tool_name": "no/such"`)
			for _, reason := range []string{"cancelled", "protocol_error"} {
				require.Contains(t, log.String(), `"reason": "`+reason+`"`)
			}
			require.Equal(t, `[]`, string(p.do(request{"op": "violations"})))
		})
	}
}

// A Python client over HTTP, in the three forms of an answer, with a Go Runtime behind.
func TestAltarPythonOverHTTP(t *testing.T) {
	t.Parallel()
	_, web, host := altarHost(t)
	altarRuntime(t, func(context.Context) (altar.Conn, error) { return host.Dial(&altar.Principal{ID: "tools"}) })
	altartest.WaitTools(t, host, 2)
	p := python(t, "altar_peer.py")
	post := func(message, accept string, headers map[string]string) string {
		t.Helper()
		return shape(t, p.do(request{"op": "post", "url": web, "message": json.RawMessage(message), "accept": accept, "headers": headers}), "message", "execution_time_ms")
	}
	require.Equal(t, `{"messages":[{"error":{"code":"AUTHORIZATION_FAILED","details":{"reason":"unauthenticated"},"message":"*"},"type":"Error"}],"status":401,"type":"application/json"}`,
		post(`{"type":"CreateSession"}`, "", nil))
	require.Equal(t, `{"messages":[{"session_id":"h1","ttl_seconds":60,"type":"SessionCreated"}],"status":200,"type":"application/json"}`,
		post(`{"type":"CreateSession","session_id":"h1","ttl_seconds":60}`, "", altarKey))
	add := `{"type":"ToolCall","invocation_id":"h-1","session_id":"h1","tool_name":"math/add","parameters":{"a":-9223372036854775808,"b":0}}`
	const sum = `{"messages":[{"invocation_id":"h-1","payload":-9223372036854775808,"runtime_metadata":{"execution_time_ms":"*"},"status":"success","type":"ToolResult"}],"status":200,"type":"`
	require.Equal(t, sum+`application/json"}`, post(add, "*/*", altarKey))
	require.Equal(t, sum+`application/x-ndjson"}`, post(add, "application/x-ndjson", altarKey), "once more is the same outcome")
	require.Equal(t, sum+`text/event-stream"}`, post(add, "text/event-stream", altarKey))
	words := `{"type":"ToolCall","invocation_id":"h-2","session_id":"h1","tool_name":"text/words","parameters":{"text":"a\u2028 b"}}`
	require.Equal(t, "{\"messages\":[{\"chunk_id\":0,\"invocation_id\":\"h-2\",\"is_final\":false,\"payload\":\"a\\u2028\",\"type\":\"StreamChunk\"},{\"chunk_id\":1,\"invocation_id\":\"h-2\",\"is_final\":false,\"payload\":\"b\",\"type\":\"StreamChunk\"},{\"chunk_id\":2,\"invocation_id\":\"h-2\",\"is_final\":true,\"type\":\"StreamChunk\"}],\"status\":200,\"type\":\"text/event-stream\"}",
		post(words, "text/event-stream", altarKey))
	require.Contains(t, post(words, "application/json", altarKey), `"payload":["a\u2028","b"]`)
	require.Equal(t, `{"messages":[{"error":{"code":"SESSION_INVALID","details":{"reason":"unknown_session"},"message":"*"},"type":"Error"}],"status":404,"type":"application/json"}`,
		post(`{"type":"ListTools","session_id":"none"}`, "", altarKey))
	require.Contains(t, post(`{"type":"Pong"}`, "", altarKey), `"reason":"wrong_transport"`)
	require.Contains(t, post(add, "image/png", altarKey), `"status":406`)
	require.Equal(t, `{"messages":[],"status":202,"type":""}`, post(`{"type":"CancelCall","invocation_id":"h-1","session_id":"h1"}`, "", altarKey))
}

// altarRuntime runs our Runtime until the test ends. The channel receives the context error of each canceled call.
func altarRuntime(t *testing.T, dial altar.Dialer) <-chan error {
	t.Helper()
	rt, err := altar.NewRuntime("go-1", nil)
	require.NoError(t, err)
	canceled := make(chan error, 1)
	rt.Handle("math/add", altar.HandlerFunc(func(_ context.Context, call *altar.ToolCall) (any, error) {
		var in struct {
			A int64 `json:"a"`
			B int64 `json:"b"`
		}
		if err := json.Unmarshal(call.Parameters, &in); err != nil {
			return nil, err
		}
		if in.B == 13 {
			return nil, errors.New("unlucky")
		}
		return in.A + in.B, nil
	}))
	altar.AddStreamTool(rt, "text/words", func(ctx context.Context, in struct {
		Text string `json:"text"`
	}, out *altar.ChunkWriter) error {
		for _, w := range strings.Split(in.Text, " ") {
			if w == "wait" {
				<-ctx.Done()
				canceled <- ctx.Err()
				return ctx.Err()
			}
			if err := out.Send(w); err != nil {
				return err
			}
		}
		return nil
	})
	ctx, cancel := context.WithCancel(t.Context())
	var done sync.WaitGroup
	done.Go(func() { _ = rt.RunWithReconnect(ctx, dial) })
	t.Cleanup(func() {
		cancel()
		done.Wait()
	})
	return canceled
}

// Our client and Runtime at a Host that knows the flows of the specification, and both together.
func TestAltarAtPythonHost(t *testing.T) {
	t.Parallel()
	for _, wire := range altarWires {
		t.Run(wire, func(t *testing.T) {
			t.Parallel()
			p := python(t, "altar_peer.py")
			at := map[string]string{}
			p.into(&at, request{"op": "host"})
			dial := func(ctx context.Context) (altar.Conn, error) {
				if wire == "ws" {
					return altar.DialWebSocket(ctx, at["ws"], &altar.WebSocketDialOptions{Header: http.Header{"X-Api-Key": {"key"}}})
				}
				c, err := new(net.Dialer).DialContext(ctx, "tcp", at["tcp"])
				if err != nil {
					return nil, err
				}
				return altar.NewStreamConn(c, nil), nil
			}
			canceled := altarRuntime(t, dial)
			c, err := altar.NewClient(dial, nil)
			require.NoError(t, err)
			defer c.Close()
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			defer cancel()
			require.NoError(t, c.Ping(ctx))
			var s *altar.Session
			var tools []altar.ToolInfo
			require.Eventually(t, func() bool {
				var err error
				s, err = c.CreateSession(ctx, &altar.CreateSessionParams{TTL: 90 * time.Second})
				require.NoError(t, err)
				require.Equal(t, 90*time.Second, s.TTL())
				for range 20 {
					tools, err = s.ListTools(ctx)
					require.NoError(t, err)
					if len(tools) == 2 {
						return true
					}
				}
				return false
			}, waitFor, 10*tick, "the Runtime is there")
			require.Equal(t, []string{"go-1"}, tools[0].Runtimes)

			res, err := s.Call(ctx, "math/add", map[string]any{"a": int64(9223372036854775806), "b": 1}, &altar.CallOptions{Metadata: map[string]string{"k": "v"}, Timeout: 5 * time.Second})
			require.NoError(t, err)
			require.Equal(t, "9223372036854775807", string(res.Payload))
			require.Contains(t, string(res.RuntimeMetadata), "execution_time_ms")
			sum, err := altar.CallAs[int64](ctx, s, "go-1/math/add", map[string]any{"a": 1, "b": 2}, nil)
			require.NoError(t, err)
			require.EqualValues(t, 3, sum)
			_, err = s.Call(ctx, "math/add", map[string]any{"a": 1, "b": 13}, nil)
			require.ErrorIs(t, err, altar.ErrExecutionFailed)
			require.ErrorContains(t, err, "unlucky")
			_, err = s.Call(ctx, "none", nil, nil)
			var e *altar.Error
			require.ErrorAs(t, err, &e)
			require.Equal(t, altar.Reason("unknown_contract"), e.Reason())

			var words []string
			for w, err := range altar.StreamAs[string](ctx, s, "text/words", map[string]any{"text": "Grüße 😀 \u2028 end"}, nil) {
				require.NoError(t, err)
				words = append(words, w)
			}
			require.Equal(t, []string{"Grüße", "😀", "\u2028", "end"}, words)

			// Leaving a stream cancels its call, all the way to the Runtime.
			for w, err := range altar.StreamAs[string](ctx, s, "text/words", map[string]any{"text": "one wait"}, nil) {
				require.NoError(t, err)
				require.Equal(t, "one", w)
				break
			}
			require.ErrorIs(t, receive(t, canceled), context.Canceled)
			require.NoError(t, s.Destroy(ctx))
			_, err = s.Call(ctx, "math/add", map[string]any{"a": 1, "b": 2}, nil)
			require.ErrorIs(t, err, altar.ErrSessionInvalid)
			require.Equal(t, `[]`, string(p.do(request{"op": "violations"})))
		})
	}
}
