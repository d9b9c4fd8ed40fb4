// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

//lint:file-ignore SA1019 servers still support the deprecated features of MCP

package mcpbridge_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/fivewire/fivewire/a2e"
	"github.com/fivewire/fivewire/a2e/a2etest"
	"github.com/fivewire/fivewire/a2e/catalogue"
	"github.com/fivewire/fivewire/a2e/mcp"
	"github.com/fivewire/fivewire/a2e/mcpbridge"
	"github.com/fivewire/fivewire/a2e/tools"
)

func TestMain(m *testing.M) {
	switch os.Getenv("MCPBRIDGE_CHILD") {
	case "server":
		if err := newServer(nil).Run(context.Background(), &sdk.StdioTransport{}); err != nil && !errors.Is(err, io.EOF) {
			fmt.Fprintln(os.Stderr, err)
		}
		os.Exit(0)
	case "noisy":
		fmt.Println("starting ...")
		_ = newServer(nil).Run(context.Background(), &sdk.StdioTransport{})
		os.Exit(0)
	case "twins":
		var line [1]byte
		_, _ = os.Stdin.Read(line[:])
		fmt.Println(`{"jsonrpc":"2.0","id":1,"result":{},"result":{}}`)
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	case "endless":
		fmt.Print("{\"x\":\"")
		for range 100 {
			fmt.Print(strings.Repeat("x", 1<<16))
		}
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	case "silent":
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

type sumInput struct {
	A int64 `json:"a" jsonschema:"the first one"`
	B int64 `json:"b"`
}

// newServer is a server of the official SDK with a bit of everything. Hanging
// calls tell on hung, if it is not nil, that they began and ended.
func newServer(hung chan string) *sdk.Server {
	s := sdk.NewServer(&sdk.Implementation{Name: "box", Version: "2.1"}, &sdk.ServerOptions{
		SubscribeHandler:   func(context.Context, *sdk.SubscribeRequest) error { return nil },
		UnsubscribeHandler: func(context.Context, *sdk.UnsubscribeRequest) error { return nil },
	})
	sdk.AddTool(s, &sdk.Tool{Name: "sum", Description: "Add", Annotations: &sdk.ToolAnnotations{IdempotentHint: true}},
		func(_ context.Context, _ *sdk.CallToolRequest, in sumInput) (*sdk.CallToolResult, map[string]any, error) {
			return nil, map[string]any{"sum": in.A + in.B}, nil
		})
	object := map[string]any{"type": "object"}
	add := func(name string, run func(context.Context, *sdk.CallToolRequest) (*sdk.CallToolResult, error)) {
		s.AddTool(&sdk.Tool{Name: name, InputSchema: object}, run)
	}
	text := func(s string) []sdk.Content { return []sdk.Content{&sdk.TextContent{Text: s}} }
	add("echo", func(_ context.Context, r *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
		return &sdk.CallToolResult{Content: text(string(r.Params.Arguments)), StructuredContent: r.Params.Arguments}, nil
	})
	add("rounded", func(_ context.Context, r *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
		return &sdk.CallToolResult{Content: text("see there"), StructuredContent: r.Params.Arguments}, nil
	})
	add("soft", func(context.Context, *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
		return &sdk.CallToolResult{IsError: true, Content: text("no luck")}, nil
	})
	add("picture", func(context.Context, *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
		return &sdk.CallToolResult{Content: []sdk.Content{&sdk.ImageContent{MIMEType: "image/png", Data: []byte{1, 2}}}}, nil
	})
	add("steps", func(ctx context.Context, r *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
		token := r.Params.GetProgressToken()
		for i := range 3 {
			if token != nil {
				_ = r.Session.NotifyProgress(ctx, &sdk.ProgressNotificationParams{ProgressToken: token, Progress: float64(i + 1), Total: 4, Message: "on it"})
			}
		}
		time.Sleep(50 * time.Millisecond) // so that they are usually handed on before the result
		return &sdk.CallToolResult{Content: text("done")}, nil
	})
	add("hang", func(ctx context.Context, _ *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
		if hung != nil {
			hung <- "began"
		}
		<-ctx.Done()
		if hung != nil {
			hung <- "ended"
		}
		return nil, ctx.Err()
	})
	add("exit", func(context.Context, *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
		os.Exit(3)
		return nil, nil
	})
	add("grow", func(context.Context, *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
		add2 := &sdk.Tool{Name: "grown", InputSchema: object}
		s.AddTool(add2, func(context.Context, *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
			return &sdk.CallToolResult{Content: text("I am new")}, nil
		})
		return &sdk.CallToolResult{Content: text("ok")}, nil
	})
	add("touch", func(ctx context.Context, _ *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
		return &sdk.CallToolResult{Content: text("ok")}, s.ResourceUpdated(ctx, &sdk.ResourceUpdatedNotificationParams{URI: "box:///a"})
	})
	add("think", func(ctx context.Context, r *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
		got, err := r.Session.CreateMessage(ctx, &sdk.CreateMessageParams{MaxTokens: 7, SystemPrompt: "be brief", Temperature: 0.5,
			Messages: []*sdk.SamplingMessage{{Role: "user", Content: &sdk.TextContent{Text: "why?"}}}})
		if err != nil {
			return nil, err
		}
		return &sdk.CallToolResult{Content: []sdk.Content{got.Content, &sdk.TextContent{Text: got.Model}}}, nil
	})
	add("where", func(ctx context.Context, r *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
		got, err := r.Session.ListRoots(ctx, nil)
		if err != nil {
			return nil, err
		}
		return &sdk.CallToolResult{Content: text(got.Roots[0].URI)}, nil
	})
	s.AddResource(&sdk.Resource{URI: "box:///a", Name: "a", MIMEType: "text/plain", Title: "The first", Size: 5,
		Annotations: &sdk.Annotations{Priority: 1}}, func(_ context.Context, r *sdk.ReadResourceRequest) (*sdk.ReadResourceResult, error) {
		return &sdk.ReadResourceResult{Contents: []*sdk.ResourceContents{{URI: r.Params.URI, Text: "hello"}}}, nil
	})
	s.AddResource(&sdk.Resource{URI: "box:///b", Name: "b"}, func(_ context.Context, r *sdk.ReadResourceRequest) (*sdk.ReadResourceResult, error) {
		return &sdk.ReadResourceResult{Contents: []*sdk.ResourceContents{{URI: r.Params.URI, Blob: []byte("\x00\x01")}}}, nil
	})
	s.AddPrompt(&sdk.Prompt{Name: "greet", Title: "Greeting", Description: "Say hello", Arguments: []*sdk.PromptArgument{{Name: "name", Required: true}}},
		func(_ context.Context, r *sdk.GetPromptRequest) (*sdk.GetPromptResult, error) {
			return &sdk.GetPromptResult{Description: "a greeting", Messages: []*sdk.PromptMessage{
				{Role: "user", Content: &sdk.TextContent{Text: "Hello " + r.Params.Arguments["name"]}}}}, nil
		})
	return s
}

// A rig is an agent with a host that has a bridge.
type rig struct {
	*mcp.Client
	agent *a2e.Client
	tools *tools.Client
	push  chan *mcp.ServerPush
}

func newRig(t *testing.T, opts *mcpbridge.Options) *rig {
	var o mcpbridge.Options
	if opts != nil {
		o = *opts
	}
	if testing.Verbose() {
		o.Logger = slog.New(slog.NewTextHandler(t.Output(), nil))
	}
	bridge := a2etest.Must(mcp.NewBridge(a2etest.Must(mcpbridge.NewConnector(&o)), &mcp.Options{Authorizer: func(*a2e.Session, *mcp.ServerConfig) bool { return true }}))
	set := a2etest.Must(tools.NewSet(&tools.Options{SessionTools: bridge.Tools}))
	host := a2etest.NewHost(t, nil).AddPlugin(bridge.Plugin()).AddPlugin(set.Plugin())
	x, y := a2e.Pipe()
	served := make(chan error, 1)
	go func() { served <- host.Serve(context.Background(), y) }()
	c := a2etest.Must(a2e.NewClient(x, &a2e.ClientOptions{Capabilities: []string{"mcp", "tools", "cancel"}, Types: catalogue.Types()}))
	r := &rig{agent: c, push: make(chan *mcp.ServerPush, 100)}
	c.OnPush("mcp/server/push", func(m *a2e.Message) { r.push <- m.Body.(*mcp.ServerPush) })
	t.Cleanup(func() {
		require.NoError(t, c.Close())
		<-served
	})
	_, err := c.Connect(t.Context())
	require.NoError(t, err)
	r.Client, err = mcp.NewClient(c)
	require.NoError(t, err)
	r.tools, err = tools.NewClient(c)
	require.NoError(t, err)
	return r
}

func (r *rig) register(t *testing.T, config any) (*mcp.ServerRegisterResponse, error) {
	raw, err := json.Marshal(config)
	require.NoError(t, err)
	return r.RegisterServer(t.Context(), &mcp.ServerRegisterRequest{Config: raw}, nil)
}

func (r *rig) call(ctx context.Context, tool, arguments string, opts *a2e.CallOptions) (*tools.Result, error) {
	q := new(tools.CallRequest)
	q.ToolName, q.Arguments, q.Streaming = tool, json.RawMessage(arguments), opts != nil && opts.OnEvent != nil
	resp, err := r.tools.Call(ctx, q, opts)
	if resp == nil {
		return nil, err
	}
	return &resp.Data, err
}

func (r *rig) pushed(t *testing.T, method string) *mcp.ServerPush {
	t.Helper()
	for {
		select {
		case p := <-r.push:
			if p.Method == method {
				return p
			}
		case <-time.After(10 * time.Second):
			t.Fatalf("no %s", method)
		}
	}
}

func childConfig(t *testing.T, kind string) map[string]any {
	exe, err := os.Executable()
	require.NoError(t, err)
	return map[string]any{"server_id": "box", "name": "box", "transport": "stdio", "cmd": []string{exe}, "env": map[string]string{"MCPBRIDGE_CHILD": kind}}
}

// ways are the transports with a real server behind each.
func ways() map[string]func(t *testing.T, hung chan string) (map[string]any, *mcpbridge.Options) {
	return map[string]func(t *testing.T, hung chan string) (map[string]any, *mcpbridge.Options){
		"memory": func(_ *testing.T, hung chan string) (map[string]any, *mcpbridge.Options) {
			return map[string]any{"server_id": "box", "name": "box", "transport": "memory"},
				&mcpbridge.Options{Servers: map[string]*sdk.Server{"box": newServer(hung)}}
		},
		"memory of the last version": func(_ *testing.T, hung chan string) (map[string]any, *mcpbridge.Options) {
			return map[string]any{"server_id": "box", "name": "box", "transport": "memory"},
				&mcpbridge.Options{ProtocolVersion: "2025-11-25", Servers: map[string]*sdk.Server{"box": newServer(hung)}}
		},
		"stdio": func(t *testing.T, _ chan string) (map[string]any, *mcpbridge.Options) {
			return childConfig(t, "server"), &mcpbridge.Options{ProtocolVersion: "2025-11-25"}
		},
		"stdio with noise": func(t *testing.T, _ chan string) (map[string]any, *mcpbridge.Options) {
			return childConfig(t, "noisy"), nil
		},
		"http": func(t *testing.T, hung chan string) (map[string]any, *mcpbridge.Options) {
			s := newServer(hung)
			web := httptest.NewServer(sdk.NewStreamableHTTPHandler(func(r *httpRequest) *sdk.Server {
				if r.Header.Get("X-Key") != "k" {
					return nil
				}
				return s
			}, nil))
			t.Cleanup(web.Close)
			return map[string]any{"server_id": "box", "name": "box", "transport": "http", "url": web.URL, "headers": map[string]string{"X-Key": "k"}},
				&mcpbridge.Options{AllowLoopback: true, ProtocolVersion: "2025-11-25"}
		},
		"sse": func(t *testing.T, hung chan string) (map[string]any, *mcpbridge.Options) {
			s := newServer(hung)
			web := httptest.NewServer(sdk.NewSSEHandler(func(*httpRequest) *sdk.Server { return s }, nil))
			t.Cleanup(web.Close)
			return map[string]any{"server_id": "box", "name": "box", "transport": "sse", "url": web.URL},
				&mcpbridge.Options{AllowLoopback: true, ProtocolVersion: "2025-11-25"}
		},
	}
}

// All messages of the namespace work with a real server over each transport (A2E-122, A2E-123,
// A2E-124, A2E-125).
func TestServers(t *testing.T) {
	for name, way := range ways() {
		t.Run(name, func(t *testing.T) {
			config, opts := way(t, nil)
			r := newRig(t, opts)
			ctx := t.Context()
			resp, err := r.register(t, config)
			require.NoError(t, err)
			require.True(t, resp.OK, resp.Error)
			info, err := a2e.DecodeModel[mcp.ServerInfo](resp.Server, "server")
			require.NoError(t, err)
			require.Equal(t, "ready", info.Status)
			require.Equal(t, "box", info.ServerName)
			require.Equal(t, "2.1", info.ServerVersion)
			require.NotEmpty(t, info.MCPVersion)
			require.EqualValues(t, 12, info.ToolsCount)
			require.EqualValues(t, 2, info.ResourcesCount)
			require.EqualValues(t, 1, info.PromptsCount)

			list, err := r.tools.List(ctx, &tools.ListRequest{Query: "sum"}, nil)
			require.NoError(t, err)
			require.Len(t, list.Tools, 1)
			sum := list.Tools[0]
			require.Equal(t, "box__sum", sum.Name)
			require.True(t, sum.Idempotent)
			require.Equal(t, []string{"a", "b"}, []string{sum.InputParameters[0].Name, sum.InputParameters[1].Name})
			require.Equal(t, "integer", sum.InputParameters[0].Type)
			require.Equal(t, "the first one", sum.InputParameters[0].Description)
			require.True(t, sum.InputParameters[0].Required)
			require.NotNil(t, sum.Extra.Get("input_schema"))

			got, err := r.call(ctx, "box__sum", `{"a":9007199254740,"b":4}`, nil)
			require.NoError(t, err)
			require.Equal(t, `{"sum":9007199254744}`, string(got.Data))
			got, err = r.call(ctx, "box__echo", `{"n":123456789012345678901,"x":[0.10,null,true,{"y":"z"}]}`, nil)
			require.NoError(t, err)
			require.Equal(t, `{"n":123456789012345678901,"x":[0.10,null,true,{"y":"z"}]}`, string(got.Data), "exact in both directions")
			got, err = r.call(ctx, "box__rounded", `{"n":123456789012345678901}`, nil)
			require.NoError(t, err)
			require.JSONEq(t, `[{"type":"text","text":"see there"}]`, string(got.Data), "better none than a wrong number")
			got, err = r.call(ctx, "box__rounded", `{"n":12}`, nil)
			require.NoError(t, err)
			require.JSONEq(t, `{"n":12}`, string(got.Data))
			got, err = r.call(ctx, "box__picture", `{}`, nil)
			require.NoError(t, err)
			require.JSONEq(t, `[{"type":"image","mimeType":"image/png","data":"AQI="}]`, string(got.Data))
			got, err = r.call(ctx, "box__soft", `{}`, nil)
			require.ErrorIs(t, err, a2e.ErrTool)
			require.False(t, got.Success)
			require.Equal(t, "no luck", *got.Error)
			require.ErrorIs(t, got.Err(), a2e.ErrTool)
			_, err = r.call(ctx, "box__sum", `{"a":1}`, nil)
			require.ErrorIs(t, err, a2e.ErrSchemaViolation)
			_, err = r.call(ctx, "box__none", `{}`, nil)
			require.ErrorIs(t, err, a2e.ErrUnknownTool)

			resources, err := r.ListResources(ctx, nil, nil)
			require.NoError(t, err)
			require.Len(t, resources.Resources, 2)
			require.JSONEq(t, `{"uri":"box:///a","name":"a","description":"","mime_type":"text/plain","server_id":"box",`+
				`"annotations":{"priority":1},"title":"The first","size":5}`, string(resources.Resources[0]))
			read, err := r.ReadResource(ctx, &mcp.ResourceReadRequest{URI: "box:///a"}, nil)
			require.NoError(t, err)
			require.JSONEq(t, `{"uri":"box:///a","mime_type":"text/plain","text":"hello","blob":"","type":"text"}`, string(read.Contents[0]))
			read, err = r.ReadResource(ctx, &mcp.ResourceReadRequest{URI: "box:///b", ServerID: "box"}, nil)
			require.NoError(t, err)
			require.JSONEq(t, `{"uri":"box:///b","mime_type":"application/octet-stream","text":"","blob":"AAE=","type":"blob"}`, string(read.Contents[0]))
			_, err = r.ReadResource(ctx, &mcp.ResourceReadRequest{URI: "box:///none"}, nil)
			require.ErrorIs(t, err, a2e.ErrMCPResourceNotFound)
			prompts, err := r.ListPrompts(ctx, nil, nil)
			require.NoError(t, err)
			require.JSONEq(t, `{"name":"greet","description":"Say hello","server_id":"box","arguments":[{"name":"name","required":true}],"title":"Greeting"}`,
				string(prompts.Prompts[0]))
			prompt, err := r.GetPrompt(ctx, &mcp.PromptGetRequest{Name: "greet", Arguments: json.RawMessage(`{"name":"Ann","n":1}`)}, nil)
			require.NoError(t, err)
			require.Equal(t, "a greeting", prompt.Description)
			require.JSONEq(t, `{"role":"user","content":{"type":"text","text":"Hello Ann"}}`, string(prompt.Messages[0]))
			_, err = r.GetPrompt(ctx, &mcp.PromptGetRequest{Name: "none"}, nil)
			require.ErrorIs(t, err, a2e.ErrMCPPromptNotFound)

			var all sync.WaitGroup
			for i := range 20 {
				all.Go(func() {
					n := fmt.Sprint(i)
					got, err := r.call(ctx, "box__echo", `{"n":`+n+`}`, nil)
					if err != nil || string(got.Data) != `{"n":`+n+`}` {
						t.Errorf("%d: %v %v", i, got, err)
					}
				})
			}
			all.Wait()
			unregistered, err := r.UnregisterServer(ctx, &mcp.ServerUnregisterRequest{ServerID: "box"}, nil)
			require.NoError(t, err)
			require.True(t, unregistered.OK)
			_, err = r.call(ctx, "box__echo", `{}`, nil)
			require.ErrorIs(t, err, a2e.ErrUnknownTool)
		})
	}
}

// Progress becomes events of the call, changes become pushes, and new tools are available at once
// (A2E-126).
func TestNotifications(t *testing.T) {
	for name, way := range ways() {
		t.Run(name, func(t *testing.T) {
			config, opts := way(t, nil)
			r := newRig(t, opts)
			ctx := t.Context()
			_, err := r.register(t, config)
			require.NoError(t, err)
			seen := 0
			_, err = r.call(ctx, "box__steps", `{}`, &a2e.CallOptions{OnEvent: func(e a2e.Event) {
				require.Equal(t, a2e.OrderOK, e.Order)
				seen++
				require.JSONEq(t, fmt.Sprintf(`{"pct":%d,"progress":%d,"total":4,"message":"on it"}`, 25*seen, seen), string(e.Header().Data))
			}})
			require.NoError(t, err)
			for seen < 3 { // the SDK forwards them concurrently with the result; later ones are dropped
				seen++
				require.Contains(t, string(r.pushed(t, "notifications/progress").Params), fmt.Sprintf(`"progress":%d,`, seen))
			}
			_, err = r.call(ctx, "box__grow", `{}`, nil)
			require.NoError(t, err)
			push := r.pushed(t, "notifications/tools/list_changed")
			require.Equal(t, "box", push.ServerID)
			got, err := r.call(ctx, "box__grown", `{}`, nil)
			require.NoError(t, err)
			require.Equal(t, `"I am new"`, string(got.Summary))
			sub, err := r.SubscribeResource(ctx, &mcp.ResourceSubscribeRequest{URI: "box:///a"}, nil)
			require.NoError(t, err)
			require.True(t, sub.OK)
			_, err = r.call(ctx, "box__touch", `{}`, nil)
			require.NoError(t, err)
			push = r.pushed(t, "notifications/resources/updated")
			require.Contains(t, string(push.Params), `"uri":"box:///a"`)
		})
	}
}

type httpRequest = http.Request
