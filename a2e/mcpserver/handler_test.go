// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package mcpserver_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/fivewire/fivewire/a2e"
	"github.com/fivewire/fivewire/a2e/mcpserver"
	"github.com/fivewire/fivewire/a2e/tools"
	"github.com/fivewire/fivewire/internal/kit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// eras are the versions of the protocol with and without sessions.
var eras = []string{"2026-07-28", "2025-11-25", "2025-03-26"}

type point struct {
	X int64  `json:"x"`
	Y *int64 `json:"y,omitempty" jsonschema:"the height"`
}

type ticket struct {
	ID     int64             `json:"id" jsonschema:"of the ticket"`
	Where  point             `json:"where,omitzero"`
	Points []point           `json:"points,omitempty"`
	Labels map[string]string `json:"labels,omitempty"`
}

// A fixture is a handler in front of a host.
type fixture struct {
	host     *a2e.Host
	handler  http.Handler
	url      string
	started  chan struct{} // of the tool wait
	canceled chan error    // its cause
}

func newFixture(t *testing.T, auth a2e.Auth, options *mcpserver.Options) *fixture {
	t.Helper()
	f := &fixture{started: make(chan struct{}, 1), canceled: make(chan error, 1)}
	discard := slog.New(slog.DiscardHandler)
	set, err := tools.NewSet(&tools.Options{Authorizer: func(_ context.Context, call *a2e.Call, tool *tools.Definition, _ json.RawMessage) bool {
		return tool.Name != "secret" || call.Session.Principal() != nil && call.Session.Principal().ID == "bob"
	}})
	require.NoError(t, err)
	tools.AddTool(set, "ticket", "Finds a ticket", func(_ context.Context, _ *a2e.Call, in ticket) (ticket, error) { return in, nil }, nil)
	tools.AddTool(set, "text/size of", "", func(_ context.Context, _ *a2e.Call, in struct{ Text string }) (int, error) { return len(in.Text), nil }, func(d *tools.Definition) {
		d.Idempotent = true
	})
	tools.AddTool(set, "secret", "", func(_ context.Context, call *a2e.Call, _ struct{}) (string, error) {
		return call.Session.OwnerID(), nil
	}, nil)
	tools.AddTool(set, "fail", "", func(context.Context, *a2e.Call, struct{}) (string, error) { return "", errors.New("the disk is full") }, nil)
	tools.AddTool(set, "steps", "", func(_ context.Context, call *a2e.Call, _ struct{}) (string, error) {
		return "done", errors.Join(call.Emit(a2e.EventProgress, map[string]any{"message": "half"}), call.Emit(a2e.EventProgress, map[string]any{"pct": 100}))
	}, nil)
	tools.AddTool(set, "flood", "", func(_ context.Context, call *a2e.Call, _ struct{}) (bool, error) {
		for range 2_000 {
			if err := call.Emit(a2e.EventProgress, nil); err != nil {
				return false, err
			}
		}
		return call.Streaming(), nil
	}, nil)
	tools.AddTool(set, "later", "", func(context.Context, *a2e.Call, struct{}) (string, error) { return "found", nil }, func(d *tools.Definition) {
		d.DeferLoading = true
	})
	tools.AddTool(set, "wait", "", func(ctx context.Context, _ *a2e.Call, _ struct{}) (string, error) {
		f.started <- struct{}{}
		<-ctx.Done()
		f.canceled <- context.Cause(ctx)
		return "", ctx.Err()
	}, nil)
	points := tools.Parameter{Name: "points", Type: "array"}
	require.NoError(t, points.Extra.Set("items", json.RawMessage(`{"type":"object","properties":{"x":{"name":"x","type":"integer","description":"","required":true},"y":{"name":"y","type":"any","description":""}}}`)))
	output := []tools.Parameter{{Name: "id", Type: "integer", Required: true}}
	set.Add(tools.Tool{Definition: tools.Definition{Name: "typed", OutputParameters: output,
		InputParameters: []tools.Parameter{{Name: "value", Type: "any"}, {Name: "size", Type: "integer", Enum: []string{"1", "2"}}, {Name: "color", Type: "string", Enum: []string{"1", "red"}},
			points}},
		Run: func(_ context.Context, _ *a2e.Call, arguments json.RawMessage) (any, error) {
			var in struct{ Value json.RawMessage }
			return in.Value, errors.Join(json.Unmarshal(arguments, &in))
		}})
	bridged := tools.Definition{Name: "bridged"}
	require.NoError(t, bridged.Extra.Set("input_schema", json.RawMessage(`{"type":"object","minProperties":1}`)))
	require.NoError(t, bridged.Extra.Set("title", "A bridge"))
	set.Add(tools.Tool{Definition: bridged, Run: func(context.Context, *a2e.Call, json.RawMessage) (any, error) {
		failed, code := "refused there", "quota"
		return &tools.Result{Error: &failed, ErrorCode: &code, Data: json.RawMessage(`{"left":0}`)}, nil
	}})
	odd := tools.Definition{Name: "odd"} // the SDK refuses its schema
	require.NoError(t, odd.Extra.Set("input_schema", json.RawMessage(`{"type":"object","properties":{"a":{"type":"object","x-mcp-header":"A"}}}`)))
	set.Add(tools.Tool{Definition: odd, Run: func(context.Context, *a2e.Call, json.RawMessage) (any, error) { return 1, nil }})
	region := tools.Definition{Name: "region"}
	require.NoError(t, region.Extra.Set("input_schema", json.RawMessage(`{"type":"object","properties":{"name":{"type":"string","x-mcp-header":"Region"}}}`)))
	set.Add(tools.Tool{Definition: region, Run: func(_ context.Context, _ *a2e.Call, in json.RawMessage) (any, error) { return in, nil }})
	set.Add(tools.Tool{Definition: tools.Definition{Name: "timeout"}, Run: func(_ context.Context, call *a2e.Call, _ json.RawMessage) (any, error) {
		return call.Message.Body.(*tools.CallRequest).Timeout, nil
	}})
	set.Add(tools.Tool{Definition: tools.Definition{Name: "summarized"}, Run: func(context.Context, *a2e.Call, json.RawMessage) (any, error) {
		return &tools.Result{Success: true, Summary: json.RawMessage(`"two lines"`), Data: json.RawMessage(`[1,2]`)}, nil
	}})
	f.host, err = a2e.NewHost(&a2e.HostOptions{Logger: discard, Auth: auth})
	require.NoError(t, err)
	f.host.AddPlugin(set.Plugin())
	t.Cleanup(func() { _ = f.host.Close() })
	o := mcpserver.Options{}
	if options != nil {
		o = *options
	}
	o.Logger = discard
	f.handler, err = mcpserver.NewHandler(f.host, &o)
	require.NoError(t, err)
	server := httptest.NewServer(f.handler)
	t.Cleanup(server.Close)
	f.url = server.URL
	return f
}

func keys(t *testing.T) a2e.Auth {
	t.Helper()
	auth, err := a2e.APIKeyAuthenticator(map[string]*a2e.Principal{"key-a": {ID: "alice"}, "key-a2": {ID: "alice"}, "key-b": {ID: "bob"},
		"key-c": {ID: "alice", Tenant: "other"}})
	require.NoError(t, err)
	return a2e.Auth{Authenticator: auth}
}

// A bearer adds a token to requests.
type bearer string

func (b bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	if b != "" {
		r.Header.Set("Authorization", "Bearer "+string(b))
	}
	return http.DefaultTransport.RoundTrip(r)
}

// dial connects a client of the SDK.
func (f *fixture) dial(t *testing.T, key, era string, opts *mcp.ClientOptions) (*mcp.ClientSession, error) {
	t.Helper()
	client := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, opts)
	transport := &mcp.StreamableClientTransport{Endpoint: f.url, HTTPClient: &http.Client{Transport: bearer(key)}, MaxRetries: -1}
	s, err := client.Connect(t.Context(), transport, &mcp.ClientSessionOptions{ProtocolVersion: era})
	if err == nil {
		t.Cleanup(func() { _ = s.Close() })
	}
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	return s, err
}

// call calls a tool as alice.
func (f *fixture) call(t *testing.T, era, name, arguments string) *mcp.CallToolResult {
	t.Helper()
	s, err := f.dial(t, "key-a", era, nil)
	require.NoError(t, err)
	res, err := s.CallTool(t.Context(), &mcp.CallToolParams{Name: name, Arguments: json.RawMessage(arguments)})
	require.NoError(t, err)
	return res
}

func textOf(res *mcp.CallToolResult) string {
	var list []string
	for _, c := range res.Content {
		if t, ok := c.(*mcp.TextContent); ok {
			list = append(list, t.Text)
		}
	}
	return strings.Join(list, "|")
}

func TestTools(t *testing.T) {
	f := newFixture(t, keys(t), nil)
	for _, era := range eras {
		t.Run(era, func(t *testing.T) {
			s, err := f.dial(t, "key-a", era, nil)
			require.NoError(t, err)
			list, err := s.ListTools(t.Context(), nil)
			require.NoError(t, err)
			schemas := map[string]string{}
			for _, tool := range list.Tools {
				text, err := json.Marshal(tool.InputSchema)
				require.NoError(t, err)
				schemas[tool.Name] = string(text)
				switch tool.Name {
				case "typed":
					out, err := json.Marshal(tool.OutputSchema)
					require.NoError(t, err)
					require.JSONEq(t, `{"type":"object","properties":{"id":{"type":"integer"}},"required":["id"]}`, string(out))
				case "bridged":
					require.Equal(t, "A bridge", tool.Title)
				case "ticket":
					require.Equal(t, "Finds a ticket", tool.Description)
					out, err := json.Marshal(tool.OutputSchema)
					require.NoError(t, err)
					require.Contains(t, string(out), `"required":["id"]`)
				case "text_size_of_a29d99ee":
					require.Equal(t, "text/size of", tool.Title)
					require.True(t, tool.Annotations.IdempotentHint)
				}
			}
			require.NotContains(t, schemas, "later")
			require.NotContains(t, schemas, "odd")
			require.Contains(t, schemas, "text_size_of_a29d99ee")
			place := `{"type":"object","properties":{"x":{"type":"integer"},"y":{"type":"integer","description":"the height"}},"required":["x"]}`
			require.JSONEq(t, `{"type":"object","required":["id"],"properties":{"id":{"type":"integer","description":"of the ticket"},"where":`+place+`,
				"points":{"type":"array","items":`+place+`},"labels":{"type":"object","additionalProperties":{"type":"string"}}}}`, schemas["ticket"])
			require.JSONEq(t, `{"type":"object","properties":{"value":{},"size":{"type":"integer","enum":[1,2]},"color":{"type":"string","enum":["1","red"]},
				"points":{"type":"array","items":{"type":"object","properties":{"x":{"type":"integer"},"y":{}},"required":["x"]}}}}`, schemas["typed"])
			require.JSONEq(t, `{"type":"object","minProperties":1}`, schemas["bridged"])

			require.Equal(t, "5", textOf(f.call(t, era, "text_size_of_a29d99ee", `{"Text":"hello"}`)))
			require.Equal(t, `"found"`, `"`+textOf(f.call(t, era, "later", `{}`))+`"`)
			res := f.call(t, era, "ticket", `{"id":9007199254740993}`)
			require.False(t, res.IsError)
			require.Contains(t, textOf(res), "9007199254740993")
			require.NotNil(t, res.StructuredContent)
			require.Equal(t, "two lines|[1,2]", textOf(f.call(t, era, "summarized", `{}`)))
			_, err = s.CallTool(t.Context(), &mcp.CallToolParams{Name: "absent"})
			require.ErrorContains(t, err, `unknown tool "absent"`)
		})
	}
}

// A parameter that a schema puts in a header too has the same value there.
func TestParameterHeader(t *testing.T) {
	f := newFixture(t, a2e.Auth{AllowAnonymous: true}, nil)
	post := func(tool, value string) int {
		body := `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"` + tool + `","arguments":{"name":"west"},` +
			`"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientInfo":{"name":"t","version":"1"},` +
			`"io.modelcontextprotocol/clientCapabilities":{}}}}`
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", strings.NewReader(body))
		for name, v := range map[string]string{"Content-Type": "application/json", "Accept": "application/json, text/event-stream",
			"Mcp-Protocol-Version": "2026-07-28", "Mcp-Method": "tools/call", "Mcp-Name": tool, "Mcp-Param-Region": value} {
			r.Header.Set(name, v)
		}
		w := httptest.NewRecorder()
		f.handler.ServeHTTP(w, r)
		return w.Code
	}
	require.Equal(t, http.StatusOK, post("region", "west"))
	require.Equal(t, http.StatusBadRequest, post("region", "east"))
	require.Equal(t, http.StatusBadRequest, post("region", ""))
	require.Equal(t, http.StatusOK, post("odd", "east"), "the SDK refuses its schema")
}

// A number of structured content is exact on the wire, where a client of another language reads it.
func TestExactNumbers(t *testing.T) {
	f := newFixture(t, keys(t), nil)
	status, body := f.post(t, "key-a", `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"ticket","arguments":{"id":9007199254740993}}}`)
	require.Equal(t, http.StatusOK, status)
	require.Contains(t, body, `"structuredContent":{"id":9007199254740993`)
}

func TestRefusals(t *testing.T) {
	f := newFixture(t, keys(t), nil)
	for _, tt := range []struct{ tool, arguments, text string }{
		{"ticket", `{}`, "schema_violation: |/id: required"},
		{"typed", `{"points":[{"x":1},{"x":"a"}]}`, "schema_violation: |/points/1/x: type"},
		{"typed", `{"value":{"id":"one"}}`, "tool_error: the result does not match the output schema"},
		{"typed", `{"value":7}`, "tool_error: the result does not match the output schema"},
		{"fail", `{}`, "the disk is full"},
		{"secret", `{}`, "the tool is not allowed here"},
		{"bridged", `{"a":1}`, "quota: refused there"},
	} {
		res := f.call(t, eras[0], tt.tool, tt.arguments)
		require.True(t, res.IsError, "%v", tt)
		for part := range strings.SplitSeq(tt.text, "|") {
			require.Contains(t, textOf(res), part, "%v", tt)
		}
	}
	res := f.call(t, eras[0], "typed", `{"value":{"id":5}}`)
	require.False(t, res.IsError)
	require.Equal(t, map[string]any{"id": 5.0}, res.StructuredContent)
}

// The time limit of a call is the option in seconds, rounded up.
func TestTimeoutOfCalls(t *testing.T) {
	for timeout, want := range map[time.Duration]string{
		0: "30", time.Millisecond: "1", 90*time.Second + 1: "91", math.MaxInt64: "9223372037", -1: "0", -time.Hour: "0",
	} {
		f := newFixture(t, keys(t), &mcpserver.Options{Timeout: timeout})
		require.Equal(t, want, textOf(f.call(t, eras[0], "timeout", "{}")), "%d", timeout)
	}
}

func TestProgress(t *testing.T) {
	f := newFixture(t, keys(t), nil)
	for _, era := range eras {
		notes := make(chan string, 8)
		s, err := f.dial(t, "key-a", era, &mcp.ClientOptions{ProgressNotificationHandler: func(_ context.Context, r *mcp.ProgressNotificationClientRequest) {
			notes <- r.Params.Message
		}})
		require.NoError(t, err)
		params := &mcp.CallToolParams{Name: "steps"}
		params.SetProgressToken("p")
		res, err := s.CallTool(t.Context(), params)
		require.NoError(t, err)
		require.Equal(t, "done", textOf(res))
		require.Eventually(t, func() bool { return len(notes) == 2 }, time.Minute, time.Millisecond)
		got := []string{<-notes, <-notes}
		slices.Sort(got) // the SDK may call the handler in another order
		require.Equal(t, []string{"half", `{"pct":100}`}, got, era)
	}
}

// A tool may send many events. Without a token for the progress it sends none.
func TestManyEvents(t *testing.T) {
	f := newFixture(t, keys(t), nil)
	for _, era := range eras {
		s, err := f.dial(t, "key-a", era, nil)
		require.NoError(t, err)
		for token, want := range map[string]string{"": "false", "p": "true"} {
			params := &mcp.CallToolParams{Name: "flood"}
			if token != "" {
				params.SetProgressToken(token)
			}
			res, err := s.CallTool(t.Context(), params)
			require.NoError(t, err, token)
			require.Equal(t, want, textOf(res))
		}
	}
}

// The end of a request cancels the call at the host.
func TestCancel(t *testing.T) {
	f := newFixture(t, keys(t), nil)
	body := `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"wait","arguments":{}}}`
	ctx, cancel := context.WithCancel(t.Context())
	req := f.request(t, "key-a", body).WithContext(ctx)
	result := make(chan error, 1)
	go func() {
		res, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
		if err == nil {
			_, err = io.Copy(io.Discard, res.Body)
			_ = res.Body.Close()
		}
		result <- err
	}()
	<-f.started
	require.Len(t, f.host.Sessions(), 1)
	cancel()
	require.Error(t, <-result)
	select {
	case cause := <-f.canceled:
		require.Error(t, cause)
	case <-time.After(time.Minute):
		t.Fatal("the tool was not canceled")
	}
	require.Eventually(t, func() bool { return len(f.host.Sessions()) == 0 }, time.Minute, time.Millisecond)
}

// request returns a request of the era without sessions.
func (f *fixture) request(t *testing.T, key, body string) *http.Request {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, f.url, strings.NewReader(body))
	require.NoError(t, err)
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json, text/event-stream")
	req.Header.Set("Mcp-Protocol-Version", "2025-11-25")
	if key != "" {
		req.Header.Set("Authorization", "Bearer "+key)
	}
	return req
}

func (f *fixture) post(t *testing.T, key, body string) (int, string) {
	t.Helper()
	res, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(f.request(t, key, body))
	require.NoError(t, err)
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	require.NoError(t, err)
	return res.StatusCode, string(text)
}

// The scheme of a token is Bearer in any letter case, and no other one.
func TestSchemeOfToken(t *testing.T) {
	f := newFixture(t, keys(t), nil)
	for header, want := range map[string]int{"bearer key-a": http.StatusBadRequest, "BEARER  key-a": http.StatusBadRequest,
		"key-a": http.StatusUnauthorized, "Basic key-a": http.StatusUnauthorized} {
		req := httptest.NewRequest(http.MethodPost, f.url, strings.NewReader("{"))
		req.Header.Set("Authorization", header)
		w := httptest.NewRecorder()
		f.handler.ServeHTTP(w, req)
		require.Equal(t, want, w.Code, header)
	}
}

// Strangers are refused before their body is read, by the Authenticator of the host.
func TestAuthentication(t *testing.T) {
	f := newFixture(t, keys(t), nil)
	for _, key := range []string{"", "wrong"} {
		req := httptest.NewRequest(http.MethodPost, f.url, unread{t})
		req.Header.Set("Authorization", "Bearer "+key)
		w := httptest.NewRecorder()
		f.handler.ServeHTTP(w, req)
		require.Equal(t, http.StatusUnauthorized, w.Code)
		_, err := f.dial(t, key, eras[0], nil)
		require.Error(t, err)
	}
	call := `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"secret","arguments":{}}}`
	_, body := f.post(t, "key-b", call)
	require.Contains(t, body, "bob")
	status, _ := f.post(t, "key-a", `{"jsonrpc":"2.0","jsonrpc":"2.0"}`)
	require.Equal(t, http.StatusBadRequest, status)
	require.Eventually(t, func() bool { return len(f.host.Sessions()) == 0 }, time.Minute, time.Millisecond)

	open := newFixture(t, a2e.Auth{AllowAnonymous: true}, nil)
	_, err := open.dial(t, "", eras[0], nil)
	require.NoError(t, err)
	_, err = mcpserver.NewHandler(nil, nil)
	require.Error(t, err)
}

// unread is a body that must not be read.
type unread struct{ t *testing.T }

func (u unread) Read([]byte) (int, error) {
	u.t.Error("the body was read")
	return 0, io.EOF
}

// serve answers a request from an address, with a body of an announced length.
func (f *fixture) serve(key, address string, body io.Reader, length int64) int {
	req := httptest.NewRequest(http.MethodPost, f.url, body)
	req.ContentLength, req.RemoteAddr = length, address
	req.Header.Set("Authorization", "Bearer "+key)
	w := httptest.NewRecorder()
	f.handler.ServeHTTP(w, req)
	return w.Code
}

// A slowBody blocks until its end.
type slowBody struct{ started, end chan struct{} }

func (b *slowBody) Read([]byte) (int, error) {
	close(b.started)
	<-b.end
	return 0, io.ErrUnexpectedEOF
}

// A principal has one share of the memory for bodies, whatever its tokens and addresses are.
func TestSharesOfPrincipals(t *testing.T) {
	f := newFixture(t, keys(t), &mcpserver.Options{MaxMessage: -1})
	slow := &slowBody{make(chan struct{}), make(chan struct{})}
	status := make(chan int)
	go func() { status <- f.serve("key-a", "192.0.2.1:1000", slow, 60<<20) }()
	<-slow.started
	require.Equal(t, http.StatusServiceUnavailable, f.serve("key-a2", "192.0.2.2:1000", strings.NewReader("{"), 10<<20))
	require.Equal(t, http.StatusBadRequest, f.serve("key-b", "192.0.2.1:1000", strings.NewReader("{"), 10<<20))
	require.Equal(t, http.StatusBadRequest, f.serve("key-c", "192.0.2.1:1000", strings.NewReader("{"), 10<<20), "of another tenant")
	close(slow.end)
	require.Equal(t, http.StatusBadRequest, <-status)
	require.Equal(t, http.StatusServiceUnavailable, f.serve("key-a", "192.0.2.1:1000", zeros{}, -1), "the share is the bound")
	require.NoError(t, f.host.Close())
	require.Equal(t, http.StatusServiceUnavailable, f.serve("key-a", "192.0.2.1:1000", strings.NewReader("{}"), 2), "the host is closed")
}

// zeros are endless.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) { return len(p), nil }

// A client whose request is refused in a shutdown reaches another server, not this one on the same connection.
func TestShutdownEndsConnections(t *testing.T) {
	f := newFixture(t, keys(t), nil)
	status := kit.CheckPostLeaves(t, f.handler, http.Header{"Authorization": {"Bearer key-a"}},
		`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"secret"}}`, f.host.Shutdown)
	require.Equal(t, http.StatusServiceUnavailable, status)
}

// The call of a tool does not need the definitions of all others, which may be too large for one message.
func TestCallNeedsOneDefinition(t *testing.T) {
	f := &fixture{}
	set, err := tools.NewSet(nil)
	require.NoError(t, err)
	for i := range 1000 {
		set.Add(tools.Tool{Definition: tools.Definition{Name: fmt.Sprint("t", i), Description: strings.Repeat("x", 1000)},
			Run: func(context.Context, *a2e.Call, json.RawMessage) (any, error) { return i, nil }})
	}
	host, err := a2e.NewHost(&a2e.HostOptions{Auth: keys(t)})
	require.NoError(t, err)
	t.Cleanup(func() { _ = host.Close() })
	host.AddPlugin(set.Plugin())
	f.handler, err = mcpserver.NewHandler(host, &mcpserver.Options{MaxOutput: 64 << 10})
	require.NoError(t, err)
	server := httptest.NewServer(f.handler)
	t.Cleanup(server.Close)
	f.url = server.URL
	require.Equal(t, "777", textOf(f.call(t, eras[0], "t777", `{}`)))
}
