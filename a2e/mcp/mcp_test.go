// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package mcp_test

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/fivewire/fivewire/a2e"
	"github.com/fivewire/fivewire/a2e/a2etest"
	"github.com/fivewire/fivewire/a2e/chains"
	"github.com/fivewire/fivewire/a2e/mcp"
	"github.com/fivewire/fivewire/a2e/tools"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fake is an MCP server within the process.
type fake struct {
	notify func(string, json.RawMessage)
	closed *atomic.Int64
	down   error

	isSilent bool // lists no tools before ctx ends
}

func (f *fake) Info() mcp.ServerInfo { return mcp.ServerInfo{ServerName: "fake", ResourcesCount: 2} }

func (f *fake) Resources(_ context.Context, cursor string) ([]mcp.Resource, string, error) {
	if cursor == "2" {
		return []mcp.Resource{{URI: "file:///b"}}, "", nil
	}
	return []mcp.Resource{{URI: "file:///a"}, {URI: "file:///secret"}}, "2", nil
}

func (f *fake) ReadResource(_ context.Context, uri string) ([]mcp.ResourceContent, error) {
	if f.down != nil {
		return nil, f.down
	}
	if uri == "file:///b" {
		return nil, errors.New("connection lost to 10.0.0.1")
	}
	return []mcp.ResourceContent{{URI: uri, Type: "text", Text: "hello"}}, nil
}

func (f *fake) Subscribe(_ context.Context, uri string) error {
	f.notify("notifications/resources/updated", json.RawMessage(`{"uri":"`+uri+`"}`))
	return nil
}

func (f *fake) Prompts(context.Context, string) ([]mcp.Prompt, string, error) {
	return []mcp.Prompt{{Name: "greet"}}, "", nil
}

func (f *fake) Prompt(_ context.Context, name string, arguments json.RawMessage) (string, []mcp.PromptMessage, error) {
	if name != "greet" {
		return "", nil, a2e.Errorf(a2e.ErrMCPPromptNotFound, "no such prompt")
	}
	return "says hello", []mcp.PromptMessage{{Role: "user", Content: arguments}}, nil
}

func (f *fake) Tools(ctx context.Context) ([]tools.Tool, error) {
	if f.isSilent {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	if f.down != nil {
		return nil, f.down
	}
	run := func(_ context.Context, _ *a2e.Call, arguments json.RawMessage) (any, error) { return arguments, nil }
	return []tools.Tool{{Definition: tools.Definition{Name: "read"}, Run: run}, {Definition: tools.Definition{Name: "write"}, Run: run}}, nil
}

func (f *fake) Close() error { f.closed.Add(1); return nil }

func connect(t *testing.T, closed *atomic.Int64) (*mcp.Client, *a2e.Client) {
	connector := mcp.ConnectorFunc(func(_ context.Context, _ *a2e.Session, c *mcp.ServerConfig, notify func(string, json.RawMessage)) (mcp.Server, error) {
		switch c.Name {
		case "down":
			return nil, errors.New("dial tcp 10.0.0.1: refused")
		case "odd":
			return nil, a2e.Errorf(a2e.ErrMCPProtocol, "speaks something else")
		}
		return &fake{notify: notify, closed: closed, isSilent: c.Name == "silent", down: map[string]error{
			"failed": a2e.Errorf(a2e.ErrMCPServerUnavailable, "the MCP server cannot be reached"),
			"empty":  a2e.Errorf(a2e.ErrMCPResourceNotFound, "there is no such resource")}[c.Name]}, nil
	})
	b := a2etest.Must(mcp.NewBridge(connector, &mcp.Options{MaxServers: 2, Authorizer: func(_ *a2e.Session, c *mcp.ServerConfig) bool { return c.Name != "evil" }}))
	set := a2etest.Must(tools.NewSet(&tools.Options{SessionTools: b.Tools}))
	client := a2etest.Connect(t, a2etest.NewHost(t, nil).AddPlugin(b.Plugin()).AddPlugin(set.Plugin()), nil)
	c, err := mcp.NewClient(client)
	require.NoError(t, err)
	return c, client
}

// Servers are registered for a session, asked, and closed with it (A2E-122,
// A2E-124, A2E-125, A2E-126, A2E-128).
func TestServers(t *testing.T) {
	var closed atomic.Int64
	c, client := connect(t, &closed)
	ctx := t.Context()
	pushed := make(chan *mcp.ServerPush, 1)
	client.OnPush("mcp/server/push", func(m *a2e.Message) { pushed <- m.Body.(*mcp.ServerPush) })
	register := func(config string) (*mcp.ServerRegisterResponse, error) {
		return c.RegisterServer(ctx, &mcp.ServerRegisterRequest{Config: json.RawMessage(config)}, nil)
	}
	resp, err := register(`{"server_id":"fs","name":"good","resource_allow_list":["file:///a","file:///b"],"headers":{"Authorization":"s3cret"}}`)
	require.NoError(t, err)
	require.True(t, resp.OK, resp.Error)
	require.NotContains(t, string(resp.Server), "s3cret")
	require.Contains(t, string(resp.Server), `"status":"ready"`)
	for config, text := range map[string]string{`{"name":"evil"}`: "not allowed", `{"server_id":"fs"}`: "of this id"} {
		resp, err = register(config)
		require.ErrorContains(t, err, text)
		require.False(t, resp.OK)
		require.Contains(t, resp.Error, text)
	}
	_, err = register(`{"name":"down"}`)
	require.ErrorIs(t, err, a2e.ErrMCPServerUnavailable)
	require.NotContains(t, err.Error(), "10.0.0.1")
	_, err = register(`{"name":"odd"}`)
	require.ErrorIs(t, err, a2e.ErrMCPProtocol)
	_, err = register(`{"timeout":"x"}`)
	require.ErrorIs(t, err, a2e.ErrSchemaViolation)
	resp, err = register(`{"name":"second"}`)
	require.NoError(t, err)
	require.True(t, resp.OK)
	resp, err = register(`{}`)
	require.ErrorIs(t, err, a2e.ErrRuntime)
	require.Contains(t, resp.Error, "too many")

	list, err := c.ListServers(ctx, nil, nil)
	require.NoError(t, err)
	require.Len(t, list.Servers, 2)
	list, err = c.ListServers(ctx, &mcp.ServerListRequest{StatusFilter: mcp.StatusError}, nil)
	require.NoError(t, err)
	require.Empty(t, list.Servers)

	page, err := c.ListResources(ctx, &mcp.ResourceListRequest{ServerID: "fs"}, nil)
	require.NoError(t, err)
	require.Equal(t, "2", page.NextCursor)
	require.Len(t, page.Resources, 1, "the other one is not on the list")
	page, err = c.ListResources(ctx, &mcp.ResourceListRequest{ServerID: "fs", Cursor: page.NextCursor}, nil)
	require.NoError(t, err)
	require.Empty(t, page.NextCursor)
	read, err := c.ReadResource(ctx, &mcp.ResourceReadRequest{URI: "file:///a"}, nil)
	require.NoError(t, err)
	require.Equal(t, "fs", read.ServerID)
	require.Contains(t, string(read.Contents[0]), `"text":"hello"`)
	_, err = c.ReadResource(ctx, &mcp.ResourceReadRequest{URI: "file:///secret", ServerID: "fs"}, nil)
	require.ErrorIs(t, err, a2e.ErrMCPResourceNotFound)
	_, err = c.ReadResource(ctx, &mcp.ResourceReadRequest{URI: "file:///b", ServerID: "fs"}, nil)
	require.ErrorIs(t, err, a2e.ErrMCPTransport)
	_, err = c.ReadResource(ctx, &mcp.ResourceReadRequest{URI: "file:///a", ServerID: "none"}, nil)
	require.ErrorIs(t, err, a2e.ErrMCPServerNotFound)
	sub, err := c.SubscribeResource(ctx, &mcp.ResourceSubscribeRequest{URI: "file:///a", ServerID: "fs"}, nil)
	require.NoError(t, err)
	require.True(t, sub.OK)
	push := <-pushed
	require.Equal(t, "notifications/resources/updated", push.Method)
	require.Equal(t, "fs", push.ServerID)
	prompts, err := c.ListPrompts(ctx, nil, nil)
	require.NoError(t, err)
	require.Len(t, prompts.Prompts, 2)
	prompt, err := c.GetPrompt(ctx, &mcp.PromptGetRequest{Name: "greet", Arguments: json.RawMessage(`{"type":"text"}`)}, nil)
	require.NoError(t, err)
	require.JSONEq(t, `{"role":"user","content":{"type":"text"}}`, string(prompt.Messages[0]))
	_, err = c.GetPrompt(ctx, &mcp.PromptGetRequest{Name: "x"}, nil)
	require.ErrorIs(t, err, a2e.ErrMCPPromptNotFound)

	unregistered, err := c.UnregisterServer(ctx, &mcp.ServerUnregisterRequest{ServerID: "fs"}, nil)
	require.NoError(t, err)
	require.True(t, unregistered.OK)
	require.EqualValues(t, 1, closed.Load())
	_, err = c.UnregisterServer(ctx, &mcp.ServerUnregisterRequest{ServerID: "fs"}, nil)
	require.ErrorIs(t, err, a2e.ErrMCPServerNotFound)
}

// The tools of the servers are listed among those of the session, with prefixed names, only in
// sessions that registered the server (A2E-123, A2E-128).
func TestTools(t *testing.T) {
	var closed atomic.Int64
	c, client := connect(t, &closed)
	tc, err := tools.NewClient(client)
	require.NoError(t, err)
	ctx := t.Context()
	list, err := tc.List(ctx, nil, nil)
	require.NoError(t, err)
	require.Empty(t, list.Tools)
	_, err = c.RegisterServer(ctx, &mcp.ServerRegisterRequest{Config: json.RawMessage(`{"server_id":"fs","tool_allow_list":["read"]}`)}, nil)
	require.NoError(t, err)
	list, err = tc.List(ctx, nil, nil)
	require.NoError(t, err)
	require.Len(t, list.Tools, 1)
	require.Equal(t, "fs__read", list.Tools[0].Name)
	source, _ := list.Tools[0].Extra.Text("source")
	require.Equal(t, "mcp", source)
	r := new(tools.CallRequest)
	r.ToolName, r.Arguments = "fs__read", json.RawMessage(`{"x":1}`)
	resp, err := tc.Call(ctx, r, nil)
	require.NoError(t, err)
	require.JSONEq(t, `{"x":1}`, string(resp.Data.Data))
	r.ToolName = "fs__write"
	_, err = tc.Call(ctx, r, nil)
	require.ErrorIs(t, err, a2e.ErrUnknownTool)
}

// A server that is connected after the end of its session is closed.
func TestLateServerIsClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var closed atomic.Int64
		connector := mcp.ConnectorFunc(func(context.Context, *a2e.Session, *mcp.ServerConfig, func(string, json.RawMessage)) (mcp.Server, error) {
			time.Sleep(time.Minute)
			return &fake{closed: &closed}, nil
		})
		b := a2etest.Must(mcp.NewBridge(connector, &mcp.Options{Authorizer: func(*a2e.Session, *mcp.ServerConfig) bool { return true }}))
		client := a2etest.Connect(t, a2etest.NewHost(t, nil).AddPlugin(b.Plugin()), nil)
		c := a2etest.Must(mcp.NewClient(client))
		go func() {
			_, _ = c.RegisterServer(t.Context(), &mcp.ServerRegisterRequest{Config: json.RawMessage(`{"name":"slow"}`)}, nil)
		}()
		synctest.Wait()
		require.NoError(t, client.Close())
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		require.EqualValues(t, 1, closed.Load())
	})
}

// A Connector that returns no server harms no other request of its session.
func TestConnectorReturnsNoServer(t *testing.T) {
	connector := mcp.ConnectorFunc(func(context.Context, *a2e.Session, *mcp.ServerConfig, func(string, json.RawMessage)) (mcp.Server, error) {
		return nil, nil
	})
	b := a2etest.Must(mcp.NewBridge(connector, &mcp.Options{Authorizer: func(*a2e.Session, *mcp.ServerConfig) bool { return true }}))
	c := a2etest.Must(mcp.NewClient(a2etest.Connect(t, a2etest.NewHost(t, nil).AddPlugin(b.Plugin()), nil)))
	_, err := c.RegisterServer(t.Context(), &mcp.ServerRegisterRequest{Config: json.RawMessage(`{"server_id":"a"}`)}, nil)
	require.ErrorIs(t, err, a2e.ErrMCPServerUnavailable)
	list, err := c.ListServers(t.Context(), nil, nil)
	require.NoError(t, err)
	require.Empty(t, list.Servers)
}

// The configuration of a server is bounded, because its session keeps it.
func TestConfigurationIsBounded(t *testing.T) {
	c, _ := connect(t, new(atomic.Int64))
	config := `{"name":"good","env":{"A":"` + strings.Repeat("x", 70<<10) + `"}}`
	resp, err := c.RegisterServer(t.Context(), &mcp.ServerRegisterRequest{Config: json.RawMessage(config)}, nil)
	require.ErrorContains(t, err, "too large")
	require.False(t, resp.OK)
}

// A server that fails has no listed tools, but a call of one of them and a read fail with its error.
func TestFailedServerIsTheError(t *testing.T) {
	c, client := connect(t, new(atomic.Int64))
	for _, config := range []string{`{"server_id":"a","name":"failed","tool_allow_list":["read"]}`, `{"server_id":"b","name":"empty"}`} {
		_, err := c.RegisterServer(t.Context(), &mcp.ServerRegisterRequest{Config: json.RawMessage(config)}, nil)
		require.NoError(t, err)
	}
	box := a2etest.Must(tools.NewClient(client))
	list, err := box.List(t.Context(), nil, nil)
	require.NoError(t, err)
	require.Empty(t, list.Tools)
	for name, want := range map[string]error{"a__read": a2e.ErrMCPServerUnavailable, "a__write": a2e.ErrUnknownTool, "read": a2e.ErrUnknownTool} {
		_, err = tools.CallAs[string](t.Context(), client, name, nil, nil)
		require.ErrorIs(t, err, want, name)
	}
	_, err = c.ReadResource(t.Context(), &mcp.ResourceReadRequest{URI: "file:///a"}, nil)
	require.ErrorIs(t, err, a2e.ErrMCPServerUnavailable)
}

// A server that does not answer delays the list of all tools for a short time only, and no call of another server.
func TestSilentServerDelaysNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, client := connect(t, new(atomic.Int64))
		for _, config := range []string{`{"server_id":"a","name":"silent"}`, `{"server_id":"b","name":"good"}`} {
			_, err := c.RegisterServer(t.Context(), &mcp.ServerRegisterRequest{Config: json.RawMessage(config)}, nil)
			require.NoError(t, err)
		}
		start := time.Now()
		_, err := tools.CallAs[map[string]any](t.Context(), client, "b__read", nil, nil)
		require.NoError(t, err)
		require.Zero(t, time.Since(start))
		list, err := a2etest.Must(tools.NewClient(client)).List(t.Context(), nil, nil)
		require.NoError(t, err)
		require.Len(t, list.Tools, 2)
		require.Equal(t, 10*time.Second, time.Since(start))
	})
}

// A server that is connected after its request was canceled is closed, because the agent has no answer. It may be registered
// again.
func TestServerOfCanceledRequestIsClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var closed atomic.Int64
		connector := mcp.ConnectorFunc(func(ctx context.Context, _ *a2e.Session, c *mcp.ServerConfig, _ func(string, json.RawMessage)) (mcp.Server, error) {
			if c.Name == "slow" {
				<-ctx.Done()
			}
			return &fake{closed: &closed}, nil
		})
		b := a2etest.Must(mcp.NewBridge(connector, &mcp.Options{Authorizer: func(*a2e.Session, *mcp.ServerConfig) bool { return true }}))
		client := a2etest.Connect(t, a2etest.NewHost(t, nil, b.Plugin()), &a2e.ClientOptions{Capabilities: []string{"mcp", "cancel"}})
		c := a2etest.Must(mcp.NewClient(client))
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := c.RegisterServer(ctx, &mcp.ServerRegisterRequest{Config: json.RawMessage(`{"server_id":"fs","name":"slow"}`)}, nil)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		synctest.Wait()
		require.EqualValues(t, 1, closed.Load())
		_, err = c.RegisterServer(t.Context(), &mcp.ServerRegisterRequest{Config: json.RawMessage(`{"server_id":"fs"}`)}, nil)
		require.NoError(t, err)
		require.NoError(t, client.Close())
	})
}

// sudden is a server whose Close takes long and panics.
type sudden struct{ fake }

func (s *sudden) Close() error {
	time.Sleep(time.Minute)
	panic("broken")
}

// A server whose Close takes long or panics keeps no other one open at the end of a session.
func TestServersAreClosedApart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var closed atomic.Int64
		connector := mcp.ConnectorFunc(func(_ context.Context, _ *a2e.Session, c *mcp.ServerConfig, _ func(string, json.RawMessage)) (mcp.Server, error) {
			if c.Name == "sudden" {
				return &sudden{}, nil
			}
			return &fake{closed: &closed}, nil
		})
		b := a2etest.Must(mcp.NewBridge(connector, &mcp.Options{Authorizer: func(*a2e.Session, *mcp.ServerConfig) bool { return true }}))
		client := a2etest.Connect(t, a2etest.NewHost(t, nil, b.Plugin()), nil)
		c := a2etest.Must(mcp.NewClient(client))
		for _, config := range []string{`{"name":"sudden"}`, `{"name":"good"}`} {
			_, err := c.RegisterServer(t.Context(), &mcp.ServerRegisterRequest{Config: json.RawMessage(config)}, nil)
			require.NoError(t, err)
		}
		require.NoError(t, client.Close())
		synctest.Wait()
		require.EqualValues(t, 1, closed.Load())
		time.Sleep(time.Hour)
	})
}

// Servers that are connected at once are in the bound, so that an agent starts no more programs than MaxServers, and none
// twice.
func TestServersConnectedAtOnceAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var closed, started atomic.Int64
		connector := mcp.ConnectorFunc(func(_ context.Context, _ *a2e.Session, c *mcp.ServerConfig, _ func(string, json.RawMessage)) (mcp.Server, error) {
			started.Add(1)
			time.Sleep(time.Second)
			if c.Name == "broken" {
				panic("as told")
			}
			return &fake{closed: &closed}, nil
		})
		b := a2etest.Must(mcp.NewBridge(connector, &mcp.Options{MaxServers: 2, Authorizer: func(*a2e.Session, *mcp.ServerConfig) bool { return true }}))
		h := a2etest.NewHost(t, &a2e.HostOptions{Logger: slog.New(slog.DiscardHandler)}, b.Plugin())
		c := a2etest.Must(mcp.NewClient(a2etest.Connect(t, h, nil)))
		register := func(configs ...string) (failed []string) {
			errs := make(chan error, len(configs))
			for _, config := range configs {
				go func() {
					_, err := c.RegisterServer(t.Context(), &mcp.ServerRegisterRequest{Config: json.RawMessage(config)}, nil)
					errs <- err
				}()
				synctest.Wait()
			}
			for range configs {
				if err := <-errs; err != nil {
					failed = append(failed, err.Error())
				}
			}
			return failed
		}
		require.Len(t, register(`{"name":"broken"}`, `{"server_id":"a","name":"broken"}`), 2)
		require.Equal(t, []string{"a2e: runtime_error: there is a server of this id"}, register(`{"server_id":"a"}`, `{"server_id":"a"}`))
		require.EqualValues(t, 3, started.Load())
		require.Equal(t, []string{"a2e: runtime_error: too many servers"}, register(`{"server_id":"b"}`, `{"server_id":"c"}`))
		require.EqualValues(t, 4, started.Load())
		_, err := c.UnregisterServer(t.Context(), &mcp.ServerUnregisterRequest{ServerID: "a"}, nil)
		require.NoError(t, err)
		require.Empty(t, register(`{"server_id":"a"}`))
		require.EqualValues(t, 1, closed.Load())
	})
}

// A tool of a server that a chain or another tool runs is like one that the agent calls: a silent server does not delay it,
// and a server that fails is its error.
func TestToolsOfServersRunInsideOfCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		connector := mcp.ConnectorFunc(func(_ context.Context, _ *a2e.Session, c *mcp.ServerConfig, _ func(string, json.RawMessage)) (mcp.Server, error) {
			down := map[string]error{"failed": a2e.Errorf(a2e.ErrMCPServerUnavailable, "the MCP server cannot be reached")}[c.ServerID]
			return &fake{closed: new(atomic.Int64), isSilent: c.ServerID == "silent", down: down}, nil
		})
		b := a2etest.Must(mcp.NewBridge(connector, &mcp.Options{Authorizer: func(*a2e.Session, *mcp.ServerConfig) bool { return true }}))
		set := a2etest.Must(tools.NewSet(&tools.Options{SessionTools: b.Tools}))
		tools.AddTool(set, "outer", "", func(ctx context.Context, call *a2e.Call, in struct{ Name string }) (*tools.Result, error) {
			return set.Run(ctx, call, in.Name, json.RawMessage(`{"x":1}`))
		}, nil)
		h := a2etest.NewHost(t, nil, b.Plugin(), set.Plugin(), a2etest.Must(chains.NewPlugin(&chains.Options{Tool: set.Execute})))
		agent := a2etest.Connect(t, h, nil)
		c := a2etest.Must(mcp.NewClient(agent))
		for _, id := range []string{"silent", "good", "failed"} {
			_, err := c.RegisterServer(t.Context(), &mcp.ServerRegisterRequest{Config: json.RawMessage(`{"server_id":"` + id + `"}`)}, nil)
			require.NoError(t, err)
		}
		start := time.Now()
		for name, run := range map[string]func(name string) error{
			"tool": func(name string) error {
				_, err := tools.CallAs[map[string]int](t.Context(), agent, "outer", map[string]string{"Name": name}, nil)
				return err
			},
			"chain": func(name string) error {
				n := chains.Node{NodeID: "a", Kind: chains.NodeTool, Name: name, Input: json.RawMessage(`{"x":1}`)}
				_, err := a2etest.Must(chains.NewClient(agent)).Run(t.Context(), &chains.Request{Nodes: []chains.Node{n}, EntryNode: "a"}, nil)
				return err
			},
		} {
			require.NoError(t, run("good__read"), name)
			require.ErrorIs(t, run("failed__read"), a2e.ErrMCPServerUnavailable, name)
			require.ErrorIs(t, run("good__fly"), a2e.ErrUnknownTool, name)
			require.ErrorIs(t, run("fly"), a2e.ErrUnknownTool, name)
		}
		require.Zero(t, time.Since(start))
	})
}
