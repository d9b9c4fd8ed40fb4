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
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/a2e"
	"github.com/fivewire/fivewire/a2e/a2etest"
	"github.com/fivewire/fivewire/a2e/catalogue"
	a2emcp "github.com/fivewire/fivewire/a2e/mcp"
	"github.com/fivewire/fivewire/a2e/mcpbridge"
	"github.com/fivewire/fivewire/a2e/tools"
	"github.com/fivewire/fivewire/accp"
	"github.com/fivewire/fivewire/accp/mcpbinding"
	"github.com/fivewire/fivewire/accp/profile"
	"github.com/fivewire/fivewire/internal/testkit"
)

// ACCP over MCP, and MCP behind A2E, with the official TypeScript SDK on the other side.

// mcpDesk is an ACCP agent behind a server of MCP.
func mcpDesk() (*mcp.Server, error) {
	agent, err := accp.NewServer("desk", &accp.ServerOptions{Auth: accp.Auth{AllowAnonymous: true}})
	if err != nil {
		return nil, err
	}
	agent.Handle(accp.IntentReq, profile.OpTool, profile.NewToolHandler(map[string]profile.ToolFunc{
		"echo": func(_ context.Context, args accp.Params) (accp.Value, error) { return accp.Map(args...), nil },
		"boom": func(context.Context, accp.Params) (accp.Value, error) {
			return accp.Value{}, errors.New("secret path")
		},
	}))
	instructions, err := mcpbinding.Instructions("desk", nil)
	if err != nil {
		return nil, err
	}
	s := mcp.NewServer(&mcp.Implementation{Name: "desk", Version: "1.0.0"}, &mcp.ServerOptions{Instructions: instructions})
	for _, name := range []string{"echo", "boom"} {
		if err := mcpbinding.AddTools(s, agent, &mcp.Tool{Name: name, InputSchema: json.RawMessage(`{"type":"object"}`)}); err != nil {
			return nil, err
		}
	}
	_, err = mcpbinding.AddFrameResource(s, []byte(`@desk>ack:plan{}[mid:49679033e07c,seq:3,ts:1714000000]`))
	return s, err
}

func serveMCPDesk() int {
	s, err := mcpDesk()
	if err == nil {
		err = s.Run(context.Background(), &mcp.StdioTransport{})
	}
	if err != nil && !errors.Is(err, context.Canceled) {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// The TypeScript client calls the tools of an ACCP agent.
func TestMCPTypeScriptClient(t *testing.T) {
	t.Parallel()
	for _, over := range []string{"HTTP", "stdio"} {
		t.Run(over, func(t *testing.T) {
			t.Parallel()
			p := node(t, "mcp_client.mjs")
			connect := request{"op": "connect"}
			if over == "HTTP" {
				s, err := mcpDesk()
				require.NoError(t, err)
				ts := httptest.NewServer(mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return s }, nil))
				t.Cleanup(func() {
					ts.CloseClientConnections()
					ts.Close()
				})
				connect["url"] = ts.URL
			} else {
				self, err := os.Executable()
				require.NoError(t, err)
				connect["command"], connect["env"] = self, map[string]string{"FIVEWIRE_INTEROP_CHILD": "mcp"}
			}
			var hello struct {
				Server       struct{ Name string }
				Instructions string
			}
			p.into(&hello, connect)
			require.Equal(t, "desk", hello.Server.Name)
			require.Contains(t, hello.Instructions, "@desk>sync:registry{")
			require.Equal(t, `[{"inputSchema":{"type":"object"},"name":"boom"},{"inputSchema":{"type":"object"},"name":"echo"}]`, shape(t, p.do(request{"op": "tools"})))

			var result struct {
				IsError bool
				Content []struct {
					Type, Text string
				}
			}
			answer := func(name string, args request) string {
				t.Helper()
				result.Content, result.IsError = nil, false
				p.into(&result, request{"op": "call", "name": name, "args": args})
				require.Len(t, result.Content, 1)
				require.Equal(t, "text", result.Content[0].Type)
				return result.Content[0].Text
			}
			text := answer("echo", request{"text": "Grüße, 😀: {x}", "n": int64(9007199254740991), "list": []any{1, "a", nil, true}})
			require.False(t, result.IsError)
			require.JSONEq(t, `{"text":"Grüße, 😀: {x}","n":9007199254740991,"list":[1,"a",null,true]}`, text)
			require.Equal(t, "E4002 tool_exec_failed", answer("boom", request{}))
			require.True(t, result.IsError)
			f := p.fails(request{"op": "call", "name": "none", "args": request{}})
			require.Equal(t, "McpError", f.Class)
			require.Equal(t, "-32602", string(f.Code))

			var resources []struct{ URI, MimeType string }
			p.into(&resources, request{"op": "resources"})
			require.Len(t, resources, 1)
			var contents []struct{ Text string }
			p.into(&contents, request{"op": "read", "uri": resources[0].URI})
			require.Equal(t, `@desk>ack:plan{}[mid:49679033e07c,seq:3,ts:1714000000]`, contents[0].Text)
			p.do(request{"op": "close"})
		})
	}
}

// everything is the command of the reference server of MCP, which has a bit of all.
func everything(t *testing.T, args ...string) []string {
	t.Helper()
	return append([]string{filepath.Join(peersDir(), "bin", "node"), filepath.Join(peers(t, "node"), "node", "node_modules", "@modelcontextprotocol", "server-everything", "dist", "index.js")}, args...)
}

func mcpCall(t *testing.T, c *accp.Client, name string, args ...accp.Param) (*accp.Message, error) {
	t.Helper()
	m, err := accp.NewMessage(accp.IntentReq, profile.OpTool, profile.SchemaTool, profile.ToolCall{Name: name, Arguments: accp.Map(args...)})
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	return c.Call(ctx, m, nil)
}

func mcpConnect(t *testing.T, cmd *exec.Cmd) *accp.Client {
	t.Helper()
	var output testkit.Log
	cmd.Stderr = &output
	session, err := mcp.NewClient(&mcp.Implementation{Name: "planner", Version: "1"}, nil).Connect(t.Context(), &mcp.CommandTransport{Command: cmd}, nil)
	require.NoError(t, err)
	t.Cleanup(func() {
		_ = session.Close()
		if t.Failed() {
			t.Logf("the server said: %s", tail(output.String(), 1500))
		}
	})
	c, err := mcpbinding.NewClient(session, "planner", nil)
	require.NoError(t, err)
	return c
}

// Our client calls tools of TypeScript servers: one that answers with frames, and one without support for frames.
func TestMCPTypeScriptServers(t *testing.T) {
	t.Parallel()
	text := func(s string) accp.Param { return accp.Param{Key: "text", Value: accp.String(s)} }
	t.Run("with frames", func(t *testing.T) {
		t.Parallel()
		c := mcpConnect(t, nodeCommand(t, "mcp_server.mjs"))
		m, err := mcpCall(t, c, "twice", text("grüße {x}"))
		require.NoError(t, err)
		require.Equal(t, "tsdesk done grüße {x} grüße {x}", m.From+" "+string(m.Intent)+" "+m.Params.Text("result"))
		m, err = mcpCall(t, c, "plain", text("hi"))
		require.NoError(t, err)
		require.Equal(t, "hi!", m.Params.Text("result"))
	})
	t.Run("server-everything", func(t *testing.T) {
		t.Parallel()
		argv := everything(t, "stdio")
		c := mcpConnect(t, exec.Command(argv[0], argv[1:]...))
		m, err := mcpCall(t, c, "echo", accp.Param{Key: "message", Value: accp.String("Grüße 😀, {x}")})
		require.NoError(t, err)
		require.Equal(t, accp.IntentDone, m.Intent)
		require.Equal(t, "Echo: Grüße 😀, {x}", m.Params.Text("result"))
		m, err = mcpCall(t, c, "get-sum", accp.Param{Key: "a", Value: accp.Int(2)}, accp.Param{Key: "b", Value: accp.Int(40)})
		require.NoError(t, err)
		require.Equal(t, "The sum of 2 and 40 is 42.", m.Params.Text("result"))
		m, err = mcpCall(t, c, "get-structured-content", accp.Param{Key: "location", Value: accp.String("Chicago")})
		require.NoError(t, err)
		back, err := json.Marshal(m.Params)
		require.NoError(t, err)
		require.JSONEq(t, `{"temperature":36,"conditions":"Light rain / drizzle","humidity":82}`, member(t, back, "result"))
		_, err = mcpCall(t, c, "none")
		require.ErrorIs(t, err, accp.ErrToolNotFound)
		_, err = mcpCall(t, c, "get-sum", accp.Param{Key: "a", Value: accp.String("x")})
		require.ErrorIs(t, err, accp.ErrToolSchema)
	})
}

// An A2E agent uses the reference server through a host with a bridge.
func TestMCPBridgeToServerEverything(t *testing.T) {
	t.Parallel()
	for _, over := range []string{"stdio", "http"} {
		t.Run(over, func(t *testing.T) {
			t.Parallel()
			config := map[string]any{"server_id": "all", "name": "everything", "transport": over}
			if over == "stdio" {
				config["cmd"] = everything(t, "stdio")
			} else {
				argv := everything(t, "streamableHttp")
				addr := testkit.FreeAddress(t)
				_, port, err := net.SplitHostPort(addr)
				require.NoError(t, err)
				cmd := exec.Command(argv[0], argv[1:]...)
				cmd.Env = append(os.Environ(), "PORT="+port)
				var output testkit.Log
				cmd.Stderr, cmd.WaitDelay = &output, 10*time.Second
				require.NoError(t, cmd.Start())
				t.Cleanup(func() {
					_ = cmd.Process.Kill()
					_ = cmd.Wait()
				})
				require.Eventually(t, func() bool {
					c, err := net.Dial("tcp", addr)
					if err == nil {
						_ = c.Close()
					}
					return err == nil
				}, 30*time.Second, 5*tick, "%s", &output)
				config["url"] = "http://localhost:" + port + "/mcp"
			}
			bridge := a2etest.Must(a2emcp.NewBridge(a2etest.Must(mcpbridge.NewConnector(&mcpbridge.Options{AllowLoopback: true})),
				&a2emcp.Options{Authorizer: func(*a2e.Session, *a2emcp.ServerConfig) bool { return true }}))
			set := a2etest.Must(tools.NewSet(&tools.Options{SessionTools: bridge.Tools}))
			host := a2etest.NewHost(t, nil).AddPlugin(bridge.Plugin()).AddPlugin(set.Plugin())
			here, there := a2e.Pipe()
			served := make(chan error, 1)
			go func() { served <- host.Serve(context.Background(), there) }()
			c := a2etest.Must(a2e.NewClient(here, &a2e.ClientOptions{Capabilities: []string{"mcp", "tools"}, Types: catalogue.Types()}))
			t.Cleanup(func() {
				require.NoError(t, c.Close())
				<-served
			})
			ctx := t.Context()
			_, err := c.Connect(ctx)
			require.NoError(t, err)
			mc, err := a2emcp.NewClient(c)
			require.NoError(t, err)
			tc, err := tools.NewClient(c)
			require.NoError(t, err)
			raw, err := json.Marshal(config)
			require.NoError(t, err)
			registered, err := mc.RegisterServer(ctx, &a2emcp.ServerRegisterRequest{Config: raw}, nil)
			require.NoError(t, err)
			require.True(t, registered.OK, registered.Error)

			listed, err := tc.List(ctx, nil, nil)
			require.NoError(t, err)
			names := map[string]tools.Definition{}
			for _, d := range listed.Tools {
				names[d.Name] = d
			}
			require.Contains(t, names, "all__echo")
			require.True(t, names["all__echo"].Idempotent)
			require.Equal(t, "message string Message to echo", names["all__echo"].InputParameters[0].Name+" "+names["all__echo"].InputParameters[0].Type+" "+names["all__echo"].InputParameters[0].Description)
			call := func(tool, args string) (*tools.CallResponse, error) {
				r := new(tools.CallRequest)
				r.ToolName, r.Arguments = tool, json.RawMessage(args)
				return tc.Call(ctx, r, nil)
			}
			out, err := call("all__echo", `{"message":"Grüße 😀"}`)
			require.NoError(t, err)
			require.Contains(t, string(out.Data.Data), "Echo: Grüße 😀")
			out, err = call("all__get-structured-content", `{"location":"New York"}`)
			require.NoError(t, err)
			require.JSONEq(t, `{"temperature":33,"conditions":"Cloudy","humidity":82}`, string(out.Data.Data))
			out, err = call("all__get-tiny-image", `{}`)
			require.NoError(t, err)
			require.Contains(t, string(out.Data.Data), `"mimeType":"image/png"`)
			_, err = call("all__get-sum", `{"a":"x","b":1}`)
			require.ErrorIs(t, err, a2e.Code("schema_violation"))
			_, err = call("all__none", `{}`)
			require.ErrorIs(t, err, a2e.Code("unknown_tool"))

			res, err := mc.ListResources(ctx, &a2emcp.ResourceListRequest{ServerID: "all"}, nil)
			require.NoError(t, err)
			require.NotEmpty(t, res.Resources)
			require.Contains(t, string(res.Resources[0]), "demo://")
			uri := strings.Trim(member(t, res.Resources[0], "uri"), `"`)
			read, err := mc.ReadResource(ctx, &a2emcp.ResourceReadRequest{ServerID: "all", URI: uri}, nil)
			require.NoError(t, err)
			require.NotEmpty(t, read.Contents)
			prompts, err := mc.ListPrompts(ctx, &a2emcp.PromptListRequest{ServerID: "all"}, nil)
			require.NoError(t, err)
			require.NotEmpty(t, prompts.Prompts)
			got, err := mc.GetPrompt(ctx, &a2emcp.PromptGetRequest{ServerID: "all", Name: "simple-prompt"}, nil)
			require.NoError(t, err)
			require.NotEmpty(t, got.Messages)
		})
	}
}
