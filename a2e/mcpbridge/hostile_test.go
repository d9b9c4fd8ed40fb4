// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package mcpbridge_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/a2e"
	"github.com/fivewire/fivewire/a2e/a2etest"
	"github.com/fivewire/fivewire/a2e/mcp"
	"github.com/fivewire/fivewire/a2e/mcpbridge"
	"github.com/fivewire/fivewire/a2e/tools"
)

// A call that the agent cancels also ends at the server, as does a call whose time limit has
// expired.
func TestCancel(t *testing.T) {
	for name, way := range ways() {
		if strings.HasPrefix(name, "stdio") {
			continue // this transport has no server to inspect
		}
		t.Run(name, func(t *testing.T) {
			hung := make(chan string, 10)
			config, opts := way(t, hung)
			r := newRig(t, opts)
			_, err := r.register(t, config)
			require.NoError(t, err)
			ctx, cancel := context.WithCancel(t.Context())
			failed := make(chan error, 1)
			go func() {
				_, err := r.call(ctx, "box__hang", `{}`, nil)
				failed <- err
			}()
			require.Equal(t, "began", <-hung)
			cancel()
			require.ErrorIs(t, <-failed, context.Canceled)
			require.Equal(t, "ended", <-hung)

			config["server_id"], config["timeout"] = "hasty", 1
			_, err = r.register(t, config)
			require.NoError(t, err)
			_, err = r.call(t.Context(), "hasty__hang", `{}`, nil)
			require.ErrorIs(t, err, a2e.ErrTimeout)
			require.Equal(t, "began", <-hung)
			require.Equal(t, "ended", <-hung)
			got, err := r.call(t.Context(), "hasty__soft", `{}`, nil)
			require.ErrorIs(t, err, a2e.ErrTool)
			require.NotNil(t, got, "the connection lives on")
		})
	}
}

// A session that ends closes its servers, even during a call.
func TestCloseInTheMiddle(t *testing.T) {
	hung := make(chan string, 10)
	config, opts := ways()["memory"](t, hung)
	r := newRig(t, opts)
	_, err := r.register(t, config)
	require.NoError(t, err)
	failed := make(chan error, 1)
	go func() {
		_, err := r.call(context.Background(), "box__hang", `{}`, nil)
		failed <- err
	}()
	require.Equal(t, "began", <-hung)
	unregistered, err := r.UnregisterServer(t.Context(), &mcp.ServerUnregisterRequest{ServerID: "box"}, nil)
	require.NoError(t, err)
	require.True(t, unregistered.OK)
	require.Error(t, <-failed)
	require.Equal(t, "ended", <-hung)
}

// A server that exits fails its running call, is listed as disconnected, and is started again for
// the next call if its configuration allows it.
func TestServerDeath(t *testing.T) {
	for _, again := range []bool{true, false} {
		t.Run(fmt.Sprintf("auto_reconnect=%t", again), func(t *testing.T) {
			config := childConfig(t, "server")
			config["auto_reconnect"] = again
			r := newRig(t, nil)
			_, err := r.register(t, config)
			require.NoError(t, err)
			_, err = r.call(t.Context(), "box__exit", `{}`, nil)
			var e *a2e.Error
			require.ErrorAs(t, err, &e)
			require.Equal(t, a2e.ErrMCPTransport, e.Code)
			require.True(t, e.Retryable)
			require.Eventually(t, func() bool {
				list, err := r.ListServers(t.Context(), &mcp.ServerListRequest{StatusFilter: mcp.StatusDisconnected}, nil)
				return err == nil && len(list.Servers) == 1
			}, 10*time.Second, 5*time.Millisecond)
			read, err := r.ReadResource(t.Context(), &mcp.ResourceReadRequest{URI: "box:///a"}, nil)
			if !again {
				require.ErrorIs(t, err, a2e.ErrMCPServerUnavailable)
				return
			}
			require.NoError(t, err)
			require.Len(t, read.Contents, 1)
			got, err := r.call(t.Context(), "box__echo", `{"x":1}`, nil)
			require.NoError(t, err)
			require.JSONEq(t, `{"x":1}`, string(got.Data))
			list, err := r.ListServers(t.Context(), &mcp.ServerListRequest{StatusFilter: mcp.StatusReady}, nil)
			require.NoError(t, err)
			require.Len(t, list.Servers, 1)
		})
	}
}

// The next connection has the subscriptions of the lost one. The agent is notified that a resource may have changed in
// between.
func TestReconnectRenewsSubscriptions(t *testing.T) {
	for _, version := range []string{"", "2025-06-18"} {
		local := newServer(nil)
		r := newRig(t, &mcpbridge.Options{Servers: map[string]*sdk.Server{"box": local}, ProtocolVersion: version})
		_, err := r.register(t, map[string]any{"server_id": "box", "name": "box", "transport": "memory"})
		require.NoError(t, err)
		for range 2 {
			_, err = r.SubscribeResource(t.Context(), &mcp.ResourceSubscribeRequest{URI: "box:///a"}, nil)
			require.NoError(t, err)
		}
		for s := range local.Sessions() {
			require.NoError(t, s.Close())
		}
		require.Eventually(t, func() bool {
			list, err := r.ListServers(t.Context(), &mcp.ServerListRequest{StatusFilter: mcp.StatusDisconnected}, nil)
			return err == nil && len(list.Servers) == 1
		}, 10*time.Second, 5*time.Millisecond)
		_, err = r.ReadResource(t.Context(), &mcp.ResourceReadRequest{URI: "box:///b"}, nil)
		require.NoError(t, err)
		require.JSONEq(t, `{"uri":"box:///a"}`, string(r.pushed(t, "notifications/resources/updated").Params))
		_, err = r.call(t.Context(), "box__touch", `{}`, nil)
		require.NoError(t, err)
		require.Contains(t, string(r.pushed(t, "notifications/resources/updated").Params), `"uri":"box:///a"`)
	}
}

// Subscriptions are renewed at the same time: a server that does not answer one of them delays no other.
func TestSubscriptionsAreRenewedTogether(t *testing.T) {
	renewed := make(chan struct{})
	isLost := false // written while no connection is open
	local := sdk.NewServer(&sdk.Implementation{Name: "box", Version: "1"}, &sdk.ServerOptions{
		SubscribeHandler: func(ctx context.Context, r *sdk.SubscribeRequest) error {
			switch {
			case !isLost:
			case r.Params.URI == "box:///last":
				close(renewed)
			default:
				select {
				case <-renewed:
				case <-ctx.Done():
				}
			}
			return nil
		},
		UnsubscribeHandler: func(context.Context, *sdk.UnsubscribeRequest) error { return nil },
	})
	local.AddResource(&sdk.Resource{URI: "box:///a", Name: "a"}, nil)
	r := newRig(t, &mcpbridge.Options{Servers: map[string]*sdk.Server{"box": local}, ProtocolVersion: "2025-06-18"})
	_, err := r.register(t, map[string]any{"server_id": "box", "name": "box", "transport": "memory"})
	require.NoError(t, err)
	uris := []string{"box:///a", "box:///b", "box:///last"}
	for _, uri := range uris {
		_, err = r.SubscribeResource(t.Context(), &mcp.ResourceSubscribeRequest{URI: uri}, nil)
		require.NoError(t, err)
	}
	for s := range local.Sessions() {
		require.NoError(t, s.Close())
	}
	isDisconnected := func() bool {
		list, err := r.ListServers(t.Context(), &mcp.ServerListRequest{StatusFilter: mcp.StatusDisconnected}, nil)
		return err == nil && len(list.Servers) == 1
	}
	require.Eventually(t, isDisconnected, 10*time.Second, 5*time.Millisecond)
	isLost = true
	_, err = r.ListResources(t.Context(), nil, nil)
	require.NoError(t, err)
	for range uris {
		r.pushed(t, "notifications/resources/updated")
	}
}

// The subscriptions of a server are bounded.
func TestSubscriptionsAreBounded(t *testing.T) {
	r := newRig(t, &mcpbridge.Options{Servers: map[string]*sdk.Server{"box": newServer(nil)}, MaxItems: 1})
	_, err := r.register(t, map[string]any{"server_id": "box", "name": "box", "transport": "memory"})
	require.NoError(t, err)
	for range 2 {
		_, err = r.SubscribeResource(t.Context(), &mcp.ResourceSubscribeRequest{URI: "box:///a"}, nil)
		require.NoError(t, err)
	}
	_, err = r.SubscribeResource(t.Context(), &mcp.ResourceSubscribeRequest{URI: "box:///b"}, nil)
	var e *a2e.Error
	require.ErrorAs(t, err, &e)
	require.Equal(t, a2e.ReasonOverloaded, e.Reason)
}

// The tools of a server are bounded in bytes, over all pages of its list.
func TestToolsAreBoundedInBytes(t *testing.T) {
	s := sdk.NewServer(&sdk.Implementation{Name: "box", Version: "1"}, &sdk.ServerOptions{PageSize: 1})
	for i := range 30 {
		sdk.AddTool(s, &sdk.Tool{Name: fmt.Sprintf("t%02d", i), Description: strings.Repeat("x", 100_000)},
			func(context.Context, *sdk.CallToolRequest, sumInput) (*sdk.CallToolResult, any, error) {
				return nil, nil, nil
			})
	}
	r := newRig(t, &mcpbridge.Options{Servers: map[string]*sdk.Server{"box": s}, MaxMessage: 1 << 20})
	_, err := r.register(t, map[string]any{"server_id": "box", "name": "box", "transport": "memory"})
	require.NoError(t, err)
	list, err := r.tools.List(t.Context(), nil, nil)
	require.NoError(t, err)
	require.Len(t, list.Tools, 10)
	require.Equal(t, "box__t09", list.Tools[9].Name)
}

// A server that cannot be reached is not dialed again for each call.
func TestReconnectWaits(t *testing.T) {
	local := newServer(nil)
	servers := map[string]*sdk.Server{"box": local}
	r := newRig(t, &mcpbridge.Options{Servers: servers})
	_, err := r.register(t, map[string]any{"server_id": "box", "name": "box", "transport": "memory"})
	require.NoError(t, err)
	for s := range local.Sessions() {
		require.NoError(t, s.Close())
	}
	status := func() string {
		list, err := r.ListServers(t.Context(), nil, nil)
		require.NoError(t, err)
		info, err := a2e.DecodeModel[mcp.ServerInfo](list.Servers[0], "")
		require.NoError(t, err)
		return info.Status
	}
	require.Eventually(t, func() bool { return status() == mcp.StatusDisconnected }, time.Minute, time.Millisecond)
	delete(servers, "box") // nothing reads it at the moment
	read := func() error {
		_, err := r.ReadResource(t.Context(), &mcp.ResourceReadRequest{URI: "box:///a", ServerID: "box"}, nil)
		return err
	}
	require.ErrorIs(t, read(), a2e.ErrMCPServerUnavailable)
	require.Equal(t, mcp.StatusError, status())
	servers["box"] = local
	require.ErrorIs(t, read(), a2e.ErrMCPServerUnavailable, "not tried again so soon")
	require.Eventually(t, func() bool { return read() == nil }, time.Minute, 50*time.Millisecond)
	require.Equal(t, mcp.StatusReady, status())
}

// Hostile children: no call hangs, no buffer grows without bound, no process remains.
func TestHostileChildren(t *testing.T) {
	for kind, limit := range map[string]time.Duration{"twins": 20 * time.Second, "endless": 20 * time.Second, "silent": 20 * time.Second} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, &mcpbridge.Options{MaxMessage: 1 << 20, DialTimeout: 2 * time.Second})
			start := time.Now()
			_, err := r.register(t, childConfig(t, kind))
			require.ErrorIs(t, err, a2e.ErrMCPServerUnavailable)
			require.Less(t, time.Since(start), limit)
		})
	}
	r := newRig(t, nil)
	config := childConfig(t, "server")
	config["cmd"] = []string{"/nonexistent/program"}
	_, err := r.register(t, config)
	require.ErrorIs(t, err, a2e.ErrMCPServerUnavailable)
	require.NotContains(t, err.Error(), "nonexistent")
}

// Only permitted addresses are reached (A2E-151, A2E-154).
func TestAddresses(t *testing.T) {
	requests := 0
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		requests++
		http.Redirect(w, r, "http://169.254.169.254/latest", http.StatusTemporaryRedirect)
	}))
	defer web.Close()
	strict, lax := newRig(t, nil), newRig(t, &mcpbridge.Options{AllowLoopback: true})
	for _, url := range []string{web.URL, "http://example.com/mcp", "https://127.0.0.1/mcp", "https://localhost/mcp", "https://10.0.0.1/mcp",
		"https://169.254.169.254/", "https://user:pw@example.com/", "ftp://example.com/", "https://0x7f.1/", "nonsense", ""} {
		_, err := strict.register(t, map[string]any{"transport": "http", "url": url})
		require.ErrorIs(t, err, a2e.ErrSchemaViolation, url)
	}
	require.Zero(t, requests)
	_, err := lax.register(t, map[string]any{"transport": "http", "url": web.URL, "headers": map[string]string{"Authorization": "s3cret"}})
	require.ErrorIs(t, err, a2e.ErrMCPServerUnavailable)
	require.NotContains(t, err.Error(), "s3cret")
	require.NotZero(t, requests)
	for _, config := range []map[string]any{{"transport": "ws", "url": "wss://example.com"}, {"transport": "stdio"}, {"transport": "memory", "name": "x"}} {
		_, err := lax.register(t, config)
		require.ErrorIs(t, err, a2e.ErrSchemaViolation)
	}
}

// The older transport lets the server choose where messages go: the headers of
// the configuration do not go there with them.
func TestHeadersStayHome(t *testing.T) {
	leaked := make(chan string, 10)
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { leaked <- r.Header.Get("X-Key") }))
	defer other.Close()
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("X-Key") != "k" {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		fmt.Fprintf(w, "event: endpoint\ndata: %s/messages\n\n", other.URL)
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	}))
	defer web.Close()
	r := newRig(t, &mcpbridge.Options{AllowLoopback: true, DialTimeout: time.Second})
	_, err := r.register(t, map[string]any{"transport": "sse", "url": web.URL, "headers": map[string]string{"X-Key": "k"}})
	require.Error(t, err)
	select {
	case key := <-leaked:
		require.Empty(t, key)
	default: // the SDK did not even go there
	}
}

// Answers are bounded and strict over HTTP too.
func TestHostileHTTP(t *testing.T) {
	for name, body := range map[string]string{
		"long":  `{"jsonrpc":"2.0","id":1,"result":{"x":"` + strings.Repeat("x", 2<<20) + `"}}`,
		"twins": `{"jsonrpc":"2.0","id":1,"result":{},"result":{}}`,
		"deep":  strings.Repeat("[", 1000) + strings.Repeat("]", 1000),
		"none":  "",
	} {
		t.Run(name, func(t *testing.T) {
			web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Content-Type", "application/json")
				_, _ = w.Write([]byte(body))
			}))
			defer web.Close()
			r := newRig(t, &mcpbridge.Options{AllowLoopback: true, MaxMessage: 1 << 20, DialTimeout: 2 * time.Second})
			_, err := r.register(t, map[string]any{"transport": "http", "url": web.URL})
			require.ErrorIs(t, err, a2e.ErrMCPServerUnavailable)
		})
	}
}

// Servers request the model and the roots of the agent (A2E-127, A2E-128).
func TestAskingTheAgent(t *testing.T) {
	config, opts := ways()["stdio"](t, nil)
	r := newRig(t, opts)
	_, err := r.register(t, config)
	require.NoError(t, err)
	_, err = r.call(t.Context(), "box__think", `{}`, nil)
	require.Error(t, err, "the agent has no model yet")
	r.agent.Handle("mcp/sample/req", func(_ context.Context, m *a2e.Message) (any, error) {
		q := m.Body.(*mcp.SampleRequest)
		if q.SystemPrompt != "be brief" || *q.MaxTokens != 7 || *q.Temperature != 0.5 || len(q.Messages) != 1 || q.ServerID != "box" {
			return nil, fmt.Errorf("odd request: %+v", q)
		}
		return &mcp.SampleResponse{Role: "assistant", Model: "m-1", StopReason: "endTurn", Content: json.RawMessage(`{"type":"text","text":"because"}`)}, nil
	})
	got, err := r.call(t.Context(), "box__think", `{}`, nil)
	require.NoError(t, err)
	require.Equal(t, `"because\nm-1"`, string(got.Summary))
	r.agent.Handle("mcp/sample/req", func(context.Context, *a2e.Message) (any, error) {
		return &mcp.SampleResponse{Content: json.RawMessage(`{"type":"riddle"}`)}, nil
	})
	_, err = r.call(t.Context(), "box__think", `{}`, nil)
	require.Error(t, err)
	r.agent.Handle("mcp/root/list/req", func(context.Context, *a2e.Message) (any, error) {
		return &mcp.RootListResponse{Roots: []json.RawMessage{json.RawMessage(`{"uri":"file:///home/project","name":"project"}`)}}, nil
	})
	got, err = r.call(t.Context(), "box__where", `{}`, nil)
	require.NoError(t, err)
	require.Equal(t, `"file:///home/project"`, string(got.Summary))

	opts.DisableSampling, opts.DisableRoots = true, true
	r = newRig(t, opts)
	_, err = r.register(t, config)
	require.NoError(t, err)
	_, err = r.call(t.Context(), "box__think", `{}`, nil)
	require.Error(t, err)
}

// A server without a capability does not affect the lists of other servers.
func TestMissingCapabilities(t *testing.T) {
	bare := sdk.NewServer(&sdk.Implementation{Name: "bare", Version: "1"}, &sdk.ServerOptions{Capabilities: &sdk.ServerCapabilities{}})
	r := newRig(t, &mcpbridge.Options{Servers: map[string]*sdk.Server{"bare": bare, "box": newServer(nil)}})
	for _, name := range []string{"bare", "box"} {
		resp, err := r.register(t, map[string]any{"server_id": name, "name": name, "transport": "memory"})
		require.NoError(t, err)
		require.True(t, resp.OK)
	}
	list, err := r.ListResources(t.Context(), nil, nil)
	require.NoError(t, err)
	require.Len(t, list.Resources, 2)
	prompts, err := r.ListPrompts(t.Context(), nil, nil)
	require.NoError(t, err)
	require.Len(t, prompts.Prompts, 1)
	_, err = r.ListResources(t.Context(), &mcp.ResourceListRequest{ServerID: "bare"}, nil)
	require.ErrorIs(t, err, a2e.ErrMCPCapabilityMissing)
	_, err = r.ListPrompts(t.Context(), &mcp.PromptListRequest{ServerID: "bare"}, nil)
	require.ErrorIs(t, err, a2e.ErrMCPCapabilityMissing)
	all, err := r.tools.List(t.Context(), nil, nil)
	require.NoError(t, err)
	require.Len(t, all.Tools, 12)
}

// Schemas become parameters as far as A2E has words for them.
func TestParameters(t *testing.T) {
	s := sdk.NewServer(&sdk.Implementation{Name: "s", Version: "1"}, nil)
	s.AddTool(&sdk.Tool{Name: "t", InputSchema: json.RawMessage(`{"type":"object","required":["z"],"properties":{
		"z":{"type":["string","null"],"enum":["a",1]},"any":true,"both":{"type":["string","integer"]},
		"o":{"type":"object","required":["i"],"properties":{"i":{"type":"integer"}}}}}`)},
		func(context.Context, *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
			return &sdk.CallToolResult{}, nil
		})
	r := newRig(t, &mcpbridge.Options{Servers: map[string]*sdk.Server{"s": s}})
	_, err := r.register(t, map[string]any{"server_id": "s", "name": "s", "transport": "memory"})
	require.NoError(t, err)
	list, err := r.tools.List(t.Context(), nil, nil)
	require.NoError(t, err)
	got := list.Tools[0].InputParameters
	require.Len(t, got, 4)
	require.Equal(t, tools.Parameter{Name: "z", Type: "string", Required: true, Enum: []string{"a", "1"}}, got[0])
	require.Equal(t, tools.Parameter{Name: "any", Type: "any"}, got[1])
	require.Equal(t, tools.Parameter{Name: "both", Type: "any"}, got[2])
	require.Equal(t, "o", got[3].Name)
	require.Equal(t, tools.Parameter{Name: "i", Type: "integer", Required: true}, got[3].Properties[0].Value)
	_, err = r.call(t.Context(), "s__t", `{"z":"b"}`, nil)
	require.ErrorIs(t, err, a2e.ErrSchemaViolation)
	result, err := r.call(t.Context(), "s__t", `{"z":"a"}`, nil)
	require.NoError(t, err)
	require.Equal(t, `[]`, string(result.Data))
	require.Nil(t, result.Summary)
}

// connectTo connects to a local server.
func connectTo(t *testing.T, local *sdk.Server, notify func(method string)) mcp.Server {
	c := a2etest.Must(mcpbridge.NewConnector(&mcpbridge.Options{Servers: map[string]*sdk.Server{"box": local}}))
	s, err := c.Connect(t.Context(), nil, &mcp.ServerConfig{ServerID: "box", Name: "box", Transport: "memory"}, func(method string, _ json.RawMessage) {
		if notify != nil {
			notify(method)
		}
	})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

// hold makes calls of a method of a server, or of all, report on the first channel and wait until the second is closed.
func hold(local *sdk.Server, method string, isOn *atomic.Bool, began chan<- struct{}, end <-chan struct{}) {
	local.AddReceivingMiddleware(func(next sdk.MethodHandler) sdk.MethodHandler {
		return func(ctx context.Context, m string, r sdk.Request) (sdk.Result, error) {
			if (m == method || method == "") && isOn.Load() {
				began <- struct{}{}
				select {
				case <-end:
				case <-ctx.Done():
					return nil, ctx.Err()
				}
			}
			return next(ctx, m, r)
		}
	})
}

// A request that is canceled while it waits for a new connection does not fail the others that wait for it.
func TestCanceledReconnectFailsNoOther(t *testing.T) {
	local, isOn, began, end := newServer(nil), &atomic.Bool{}, make(chan struct{}, 10), make(chan struct{})
	hold(local, "", isOn, began, end)
	s := connectTo(t, local, nil)
	isOn.Store(true)
	for session := range local.Sessions() {
		require.NoError(t, session.Close())
	}
	require.Eventually(t, func() bool { return s.Info().Status == mcp.StatusDisconnected }, time.Minute, time.Millisecond)
	ctx, cancel := context.WithCancel(t.Context())
	read := func(ctx context.Context) <-chan error {
		result := make(chan error, 1)
		go func() {
			_, err := s.ReadResource(ctx, "box:///a")
			result <- err
		}()
		return result
	}
	first := read(ctx)
	<-began
	second := read(t.Context())
	cancel()
	require.ErrorIs(t, <-first, context.Canceled)
	close(end)
	require.NoError(t, <-second)
}

// A request that waits for the list of tools of another one waits until its own context ends.
func TestListOfToolsEndsWithItsContext(t *testing.T) {
	local, isOn, began, end := newServer(nil), &atomic.Bool{}, make(chan struct{}, 10), make(chan struct{})
	hold(local, "tools/list", isOn, began, end)
	changed := make(chan struct{})
	s := connectTo(t, local, func(method string) {
		if method == "notifications/tools/list_changed" {
			close(changed)
		}
	})
	isOn.Store(true)
	local.RemoveTools("exit")
	<-changed
	first := make(chan error, 1)
	go func() {
		_, err := s.(mcp.ToolServer).Tools(t.Context())
		first <- err
	}()
	<-began
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for range 20 { // a select with several ready cases chooses any
		_, err := s.(mcp.ToolServer).Tools(ctx)
		require.ErrorIs(t, err, context.Canceled)
	}
	close(end)
	require.NoError(t, <-first)
}

// A subscription that is canceled while it waits for the server does not fail another one to the same resource.
func TestCanceledSubscriptionFailsNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		end := make(chan struct{})
		local := sdk.NewServer(&sdk.Implementation{Name: "box", Version: "1"}, &sdk.ServerOptions{
			SubscribeHandler: func(ctx context.Context, _ *sdk.SubscribeRequest) error {
				select {
				case <-end:
				case <-ctx.Done():
				}
				return nil
			},
			UnsubscribeHandler: func(context.Context, *sdk.UnsubscribeRequest) error { return nil },
		})
		local.AddResource(&sdk.Resource{URI: "box:///a", Name: "a"}, nil)
		s := connectTo(t, local, nil)
		subscribe := func(ctx context.Context) <-chan error {
			result := make(chan error, 1)
			go func() { result <- s.Subscribe(ctx, "box:///a") }()
			synctest.Wait()
			return result
		}
		ctx, cancel := context.WithCancel(t.Context())
		first, second := subscribe(ctx), subscribe(t.Context())
		cancel()
		require.ErrorIs(t, <-first, context.Canceled)
		close(end)
		require.NoError(t, <-second)
	})
}
