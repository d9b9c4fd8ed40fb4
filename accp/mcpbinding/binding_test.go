// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package mcpbinding_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/fivewire/fivewire/accp"
	"github.com/fivewire/fivewire/accp/internal/bindingtest"
	"github.com/fivewire/fivewire/accp/mcpbinding"
	"github.com/fivewire/fivewire/accp/profile"
	"github.com/fivewire/fivewire/store"
)

// stdioFlag makes this test program a server over its standard input and output.
const stdioFlag = "FIVEWIRE_MCP_STDIO"

func TestMain(m *testing.M) {
	if os.Getenv(stdioFlag) != "" {
		d, err := newDesk()
		if err == nil {
			err = d.mcp.Run(context.Background(), &mcp.StdioTransport{})
		}
		if err != nil && !errors.Is(err, context.Canceled) {
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

// A desk is an agent with tools, behind a server of MCP.
type desk struct {
	agent     *accp.Server
	mcp       *mcp.Server
	started   chan struct{} // gets a value when the tool wait begins
	cancelled chan struct{} // and when it was cancelled
}

func newDesk() (*desk, error) {
	agent, registry, err := bindingtest.NewServer()
	if err != nil {
		return nil, err
	}
	d := &desk{agent: agent, started: make(chan struct{}, 1), cancelled: make(chan struct{}, 1)}
	agent.Handle(accp.IntentReq, profile.OpTool, profile.NewToolHandler(map[string]profile.ToolFunc{
		"echo": func(_ context.Context, args accp.Params) (accp.Value, error) { return accp.Map(args...), nil },
		"boom": func(context.Context, accp.Params) (accp.Value, error) {
			return accp.Value{}, errors.New("secret path /var/lib")
		},
		"deny": func(context.Context, accp.Params) (accp.Value, error) { return accp.Value{}, accp.ErrPolicyDenied },
		"wait": func(ctx context.Context, _ accp.Params) (accp.Value, error) {
			d.started <- struct{}{}
			<-ctx.Done()
			d.cancelled <- struct{}{}
			return accp.Value{}, ctx.Err()
		},
	}))
	instructions, err := mcpbinding.Instructions("desk", registry)
	if err != nil {
		return nil, err
	}
	d.mcp = mcp.NewServer(&mcp.Implementation{Name: "desk", Version: "1"}, &mcp.ServerOptions{Instructions: "Be kind.\n" + instructions})
	for _, name := range []string{"echo", "boom", "deny", "wait", "unhandled"} {
		if err := mcpbinding.AddTools(d.mcp, agent, &mcp.Tool{Name: name, InputSchema: json.RawMessage(`{"type":"object"}`)}); err != nil {
			panic(err)
		}
	}
	return d, nil
}

// An over is a transport between a client and a desk.
type binding struct {
	name    string
	connect func(t *testing.T, server *mcp.Server) *mcp.ClientSession
}

var inMemory = binding{"in memory", func(t *testing.T, server *mcp.Server) *mcp.ClientSession {
	here, there := mcp.NewInMemoryTransports()
	ss, err := server.Connect(t.Context(), there, nil)
	require.NoError(t, err)
	t.Cleanup(func() { _ = ss.Wait() })
	return dial(t, here)
}}

var overHTTP = binding{"HTTP", func(t *testing.T, server *mcp.Server) *mcp.ClientSession {
	web := httptest.NewServer(mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server }, nil))
	client := &http.Client{Transport: &http.Transport{}}
	t.Cleanup(func() {
		client.CloseIdleConnections()
		web.Close()
	})
	return dial(t, &mcp.StreamableClientTransport{Endpoint: web.URL, HTTPClient: client})
}}

var overStdio = binding{"stdio", func(t *testing.T, _ *mcp.Server) *mcp.ClientSession {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), stdioFlag+"=1")
	return dial(t, &mcp.CommandTransport{Command: cmd})
}}

func dial(t *testing.T, transport mcp.Transport) *mcp.ClientSession {
	client := mcp.NewClient(&mcp.Implementation{Name: "planner agent", Version: "1"}, nil)
	cs, err := client.Connect(t.Context(), transport, nil)
	require.NoError(t, err)
	t.Cleanup(func() { _ = cs.Close() })
	return cs
}

func call(t *testing.T, name string, arguments accp.Value) *accp.Message {
	m, err := accp.NewMessage(accp.IntentReq, profile.OpTool, profile.SchemaTool, profile.ToolCall{Name: name, Arguments: arguments})
	require.NoError(t, err)
	return m
}

// The binding works over each transport of the SDK (ACCP-160).
func TestConversation(t *testing.T) {
	for _, o := range []binding{inMemory, overHTTP, overStdio} {
		t.Run(o.name, func(t *testing.T) {
			d, err := newDesk()
			require.NoError(t, err)
			cs := o.connect(t, d.mcp)
			c, err := mcpbinding.NewClient(cs, "planner", &accp.ClientOptions{SessionID: "s1"})
			require.NoError(t, err)

			// ACCP-163: what the instructions announce is taken over.
			synced, err := c.SyncRegistry(t.Context())
			require.NoError(t, err)
			require.True(t, synced)
			_, hasSchema := c.Session().Registry().Schema("MX")
			require.True(t, hasSchema)

			// ACCP-162, ACCP-140: the result is a done:tool frame in the chain of the request.
			dec, err := accp.Decimal("3.141592")
			require.NoError(t, err)
			arguments := accp.Map(
				accp.Param{Key: "text", Value: accp.String("two words, and | more\n")},
				accp.Param{Key: "big", Value: accp.Int(9007199254740993)},
				accp.Param{Key: "dec", Value: dec},
				accp.Param{Key: "list", Value: accp.Array(accp.Value{}, accp.Bool(true))})
			for i := range 3 {
				answer, err := c.Call(t.Context(), call(t, "echo", arguments), nil)
				require.NoError(t, err)
				require.Equal(t, accp.IntentDone, answer.Intent)
				require.Equal(t, "desk", answer.From)
				require.Equal(t, profile.SchemaTool, answer.Params.Text("schema"))
				require.NotEmpty(t, answer.Meta.CID)
				require.Equal(t, "s1", answer.Meta.SID)
				require.EqualValues(t, 2*i+5, answer.Meta.Seq.N) // the exchange of registries has four frames
				result, _ := answer.Params.Get("result")
				require.True(t, result.Equal(arguments), "%v", result)
			}
			require.NotEmpty(t, c.Session().Checkpoints()) // each done makes one

			// ACCP-141: errors come as codes, and nothing else of them comes.
			for name, want := range map[string]error{"boom": accp.ErrToolExecFailed, "deny": accp.ErrPolicyDenied, "unhandled": accp.ErrToolNotFound, "missing": accp.ErrToolNotFound} {
				c, err := mcpbinding.NewClient(cs, "planner", &accp.ClientOptions{Retry: &accp.RetryPolicy{MaxAttempts: -1}})
				require.NoError(t, err)
				_, err = c.Call(t.Context(), call(t, name, accp.Map()), nil)
				require.ErrorIs(t, err, want, name)
				require.NotContains(t, err.Error(), "secret")
			}

			// A frame in the resources of the server: only where it is in this process.
			if o.name == overStdio.name {
				return
			}
			sent, err := c.Session().Send(t.Context(), &accp.Message{Intent: accp.IntentDone, Op: profile.OpAnalyze})
			require.NoError(t, err)
			uri, err := mcpbinding.AddFrameResource(d.mcp, sent.Frames[0])
			require.NoError(t, err)
			require.Equal(t, "accp://frames/"+sent.Message.Meta.MID, uri)
			read, err := mcpbinding.ReadFrame(t.Context(), cs, uri)
			require.NoError(t, err)
			require.Equal(t, string(sent.Frames[0]), string(read))
			_, err = mcpbinding.ReadFrame(t.Context(), cs, "accp://frames/000000000000")
			require.Error(t, err)
		})
	}
}

// A call that is given up is cancelled at the tool.
func TestCancel(t *testing.T) {
	for _, o := range []binding{inMemory, overHTTP} {
		t.Run(o.name, func(t *testing.T) {
			d, err := newDesk()
			require.NoError(t, err)
			c, err := mcpbinding.NewClient(o.connect(t, d.mcp), "planner", nil)
			require.NoError(t, err)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			go func() {
				<-d.started
				cancel()
			}()
			_, err = c.Call(ctx, call(t, "wait", accp.Map()), nil)
			require.ErrorIs(t, err, accp.ErrTimeout)
			require.ErrorIs(t, err, context.Canceled)
			<-d.cancelled
		})
	}
}

// A connection that is lost is a missing answer.
func TestLostConnection(t *testing.T) {
	d, err := newDesk()
	require.NoError(t, err)
	cs := inMemory.connect(t, d.mcp)
	c, err := mcpbinding.NewClient(cs, "planner", &accp.ClientOptions{Retry: &accp.RetryPolicy{MaxAttempts: -1}})
	require.NoError(t, err)
	require.NoError(t, cs.Close())
	_, err = c.Call(t.Context(), call(t, "echo", accp.Map()), nil)
	require.ErrorIs(t, err, accp.ErrTimeout)
}

// plainText returns the only content of a plain result.
func plainText(t *testing.T, res *mcp.CallToolResult) string {
	t.Helper()
	require.Len(t, res.Content, 1)
	require.Empty(t, mcpbinding.ExtractFrames(res))
	return res.Content[0].(*mcp.TextContent).Text
}

// An MCP client without ACCP receives plain results, and frames only if it sends one (ACCP-D57).
func TestOrdinaryClient(t *testing.T) {
	d, err := newDesk()
	require.NoError(t, err)
	cs := inMemory.connect(t, d.mcp)
	res, err := cs.CallTool(t.Context(), &mcp.CallToolParams{Name: "echo", Arguments: map[string]any{"z": 1, "n": 2.5}})
	require.NoError(t, err)
	require.False(t, res.IsError)
	require.Equal(t, `{"n":2.5,"z":1}`, plainText(t, res))
	require.Equal(t, map[string]any{"n": 2.5, "z": 1.0}, res.StructuredContent)
	res, err = cs.CallTool(t.Context(), &mcp.CallToolParams{Name: "boom"})
	require.NoError(t, err)
	require.True(t, res.IsError)
	require.Equal(t, "E4002 tool_exec_failed", plainText(t, res))

	head := "@planner>req:tool{}[mid:00000000000a,seq:1,ts:1714000000]"
	res, err = cs.CallTool(t.Context(), &mcp.CallToolParams{Name: "echo", Arguments: map[string]any{"n": 1}, Meta: mcp.Meta{"accp/frame": head}})
	require.NoError(t, err)
	require.Len(t, res.Content, 1)
	e := res.Content[0].(*mcp.EmbeddedResource)
	require.Equal(t, accp.MediaType, e.Resource.MIMEType) // ACCP-161
	require.True(t, strings.HasPrefix(e.Resource.Text, "@desk>done:tool{res:{n:1}"), e.Resource.Text)
	m, err := new(accp.Codec).DecodeEnvelope(mcpbinding.ExtractFrames(res)[0])
	require.NoError(t, err)
	require.Equal(t, "accp://frames/"+m.Meta.MID, e.Resource.URI)
	require.Empty(t, m.Meta.SID) // a separate session

	// A value that exceeds a frame is refused, and the connection continues.
	deep := map[string]any{}
	for range 9 {
		deep = map[string]any{"d": deep}
	}
	for _, p := range []*mcp.CallToolParams{
		{Name: "echo", Arguments: deep},
		{Name: "echo", Arguments: map[string]any{"two words": 1}},
		{Name: "echo", Arguments: map[string]any{"big": strings.Repeat("x", 70000)}},
		{Name: "echo", Arguments: json.RawMessage(`{"a":1,"a":2}`)},
		{Name: "echo", Meta: mcp.Meta{"accp/frame": "no frame"}},
		{Name: "echo", Meta: mcp.Meta{"accp/frame": "@a>req:tool{}"}},
	} {
		_, err := cs.CallTool(t.Context(), p)
		require.Error(t, err, "%v", p)
	}
	_, err = cs.CallTool(t.Context(), &mcp.CallToolParams{Name: "echo"})
	require.NoError(t, err)
}

// The envelope of the caller applies: replays, the time to live, and the authorization of sessions.
func TestEnvelope(t *testing.T) {
	d, err := newDesk()
	require.NoError(t, err)
	cs := inMemory.connect(t, d.mcp)
	with := func(meta string) (*mcp.CallToolResult, error) {
		return cs.CallTool(t.Context(), &mcp.CallToolParams{Name: "echo", Meta: mcp.Meta{"accp/frame": "@planner>req:tool{}[" + meta + "]"}})
	}
	code := func(meta string) accp.Code {
		res, err := with(meta)
		require.NoError(t, err)
		m, err := new(accp.Codec).Decode(mcpbinding.ExtractFrames(res)[0])
		require.NoError(t, err)
		require.Equal(t, res.IsError, m.Intent == accp.IntentFail)
		if e := accp.ErrorFromMessage(m); e != nil {
			return e.Code
		}
		return ""
	}
	require.Empty(t, code("mid:00000000000a,seq:1,ts:1714000000,sid:s9"))
	require.Equal(t, accp.ErrDuplicate, code("mid:00000000000a,seq:2,ts:1714000000,sid:s9"))
	require.Equal(t, accp.ErrSequenceGap, code("mid:00000000000b,seq:900,ts:1714000000,sid:s9"))
	require.Equal(t, accp.ErrPolicyDenied, code("mid:00000000000c,seq:1,ts:1714000000,sid:forbidden"))
	_, err = with("mid:00000000000d,seq:1,ts:1714000000,ttl:1") // long over
	require.ErrorContains(t, err, "no answer")
}

// The authorizer decides by the caller that the transport has authenticated (ACCP-D55).
func TestAuthorize(t *testing.T) {
	d, err := newDesk()
	require.NoError(t, err)
	web := httptest.NewServer(mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return d.mcp }, nil))
	t.Cleanup(web.Close)
	plain := &http.Transport{}
	t.Cleanup(plain.CloseIdleConnections)
	for _, tt := range []struct {
		transport http.RoundTripper
		want      error
	}{{plain, accp.ErrPolicyDenied}, {bindingtest.WithKey{Next: plain}, nil}} {
		cs := dial(t, &mcp.StreamableClientTransport{Endpoint: web.URL, HTTPClient: &http.Client{Transport: tt.transport}})
		c, err := mcpbinding.NewClient(cs, "planner", &accp.ClientOptions{SessionID: "forbidden"})
		require.NoError(t, err)
		_, err = c.Call(t.Context(), call(t, "echo", accp.Map()), nil)
		require.ErrorIs(t, err, tt.want)
	}
}

// References in arguments are resolved in the session of the caller (ACCP-133, ACCP-D57).
func TestReferences(t *testing.T) {
	d, err := newDesk()
	require.NoError(t, err)
	c, err := mcpbinding.NewClient(inMemory.connect(t, d.mcp), "planner", nil)
	require.NoError(t, err)
	require.NoError(t, c.Session().Put(t.Context(), accp.ScopeCold, "table", accp.String("1,2,3"), 0))
	nested := func(ref string) accp.Value {
		return accp.Map(accp.Param{Key: "in", Value: accp.Array(accp.Map(accp.Param{Key: "t", Value: accp.Ref(ref)}))})
	}
	answer, err := c.Call(t.Context(), call(t, "echo", nested("cold.table")), nil)
	require.NoError(t, err)
	result, _ := answer.Params.Get("result")
	raw, err := result.AppendJSON(nil)
	require.NoError(t, err)
	require.JSONEq(t, `{"in":[{"t":"1,2,3"}]}`, string(raw))
	_, err = c.Call(t.Context(), call(t, "echo", nested("cold.nothing")), nil)
	require.ErrorIs(t, err, accp.ErrRefNotFound)
	_, err = c.Call(t.Context(), call(t, "echo", nested("cold.other.table")), nil)
	require.ErrorIs(t, err, accp.ErrUnauthorizedRef)
	_, err = c.Call(t.Context(), call(t, "echo", accp.Int(1)), nil)
	require.ErrorIs(t, err, accp.ErrToolSchema)
}

// With several sessions, references are resolved in the session of the call, also those of its shared texts.
func TestReferencesOfConcurrentCalls(t *testing.T) {
	d, err := newDesk()
	require.NoError(t, err)
	c, err := mcpbinding.NewClient(inMemory.connect(t, d.mcp), "planner", &accp.ClientOptions{MaxConcurrent: 2,
		Session: accp.SessionOptions{Persistence: accp.Persistence{SharedStore: store.NewMemory()}}})
	require.NoError(t, err)
	require.NoError(t, c.Session().Put(t.Context(), accp.ScopeCold, "table", accp.String("1,2,3"), 0))
	long := accp.Map(accp.Param{Key: "long", Value: accp.String(strings.Repeat("x", 100))})
	ctx, cancel := context.WithCancel(t.Context())
	running := make(chan error, 1)
	go func() {
		_, err := c.Call(ctx, call(t, "wait", accp.Map()), nil)
		running <- err
	}()
	<-d.started // in the first session
	answer, err := c.Call(t.Context(), call(t, "echo", long), nil)
	require.NoError(t, err)
	result, _ := answer.Params.Get("result")
	require.True(t, result.Equal(long))
	_, err = c.Call(t.Context(), call(t, "echo", accp.Map(accp.Param{Key: "t", Value: accp.Ref("cold.table")})), nil)
	require.ErrorIs(t, err, accp.ErrRefNotFound, "an entry of the first session")
	cancel()
	require.ErrorIs(t, <-running, context.Canceled)
	<-d.cancelled
}

// Local answers, and calls that the server or the caller cancels, leave no gap in the numbers of
// the agent: the next call succeeds at once.
func TestNumbersHaveNoGaps(t *testing.T) {
	for _, perSender := range []bool{false, true} {
		options := accp.SessionOptions{SeqPerSender: perSender}
		agent, err := accp.NewServer("desk", &accp.ServerOptions{Auth: accp.Auth{AllowAnonymous: true}, Session: options})
		require.NoError(t, err)
		agent.Handle(accp.IntentReq, profile.OpTool, profile.NewToolHandler(map[string]profile.ToolFunc{
			"echo": func(_ context.Context, args accp.Params) (accp.Value, error) { return accp.Map(args...), nil },
			"boom": func(context.Context, accp.Params) (accp.Value, error) { return accp.Value{}, accp.ErrPolicyDenied },
		}))
		server := mcp.NewServer(&mcp.Implementation{Name: "x", Version: "1"}, nil)
		for _, name := range []string{"echo", "boom"} {
			if err := mcpbinding.AddTools(server, agent, &mcp.Tool{Name: name, InputSchema: json.RawMessage(`{"type":"object"}`)}); err != nil {
				panic(err)
			}
		}
		c, err := mcpbinding.NewClient(inMemory.connect(t, server), "planner", &accp.ClientOptions{Session: options, Retry: &accp.RetryPolicy{MaxAttempts: -1}})
		require.NoError(t, err)
		works := func() {
			t.Helper()
			answer, err := c.Call(t.Context(), call(t, "echo", accp.Map()), nil)
			require.NoError(t, err)
			require.Equal(t, "desk", answer.From)
		}
		works()
		for range 3 {
			for _, m := range []*accp.Message{
				call(t, "nowhere", accp.Map()),
				call(t, "boom", accp.Map()),
				call(t, "echo", accp.Map(accp.Param{Key: "r", Value: accp.Ref("cold.nothing")})),
				{Intent: accp.IntentReq, Op: profile.OpPlan},
			} {
				_, err := c.Call(t.Context(), m, nil)
				require.Error(t, err)
				require.NotErrorIs(t, err, accp.ErrSequenceGap)
			}
			_, err := c.SyncRegistry(t.Context())
			require.NoError(t, err)
		}
		works()
		works()
	}
}

// A call that is split for its tokens arrives whole.
func TestParts(t *testing.T) {
	d, err := newDesk()
	require.NoError(t, err)
	c, err := mcpbinding.NewClient(inMemory.connect(t, d.mcp), "planner", &accp.ClientOptions{Retry: &accp.RetryPolicy{MaxAttempts: -1}})
	require.NoError(t, err)
	for range 2 {
		m := call(t, "echo", accp.Map(accp.Param{Key: "k", Value: accp.Int(7)}))
		for _, key := range []string{"why1", "why2", "why3"} {
			m.Params = append(m.Params, accp.Param{Key: key, Value: accp.String(strings.Repeat("because of it ", 10))})
		}
		before := c.Session().Stats().Sent
		answer, err := c.Call(t.Context(), m, nil)
		require.NoError(t, err)
		result, _ := answer.Params.Get("result")
		require.Len(t, result.Entries(), 1)
		require.Greater(t, c.Session().Stats().Sent-before, int64(1))
	}
}

// MCP servers without ACCP answer too.
func TestOrdinaryServer(t *testing.T) {
	server := mcp.NewServer(&mcp.Implementation{Name: "calc server", Version: "1"}, nil)
	server.AddTool(&mcp.Tool{Name: "double", InputSchema: json.RawMessage(`{"type":"object"}`)}, func(_ context.Context, r *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		if string(r.Params.Arguments) != `{"n":9007199254740993}` {
			return nil, errors.New("wrong arguments")
		}
		const result = `{"double":18014398509481986}`
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: result}}, StructuredContent: json.RawMessage(result)}, nil
	})
	mcp.AddTool(server, &mcp.Tool{Name: "say"}, func(context.Context, *mcp.CallToolRequest, struct{}) (*mcp.CallToolResult, any, error) {
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: "two words"}}}, nil, nil
	})
	mcp.AddTool(server, &mcp.Tool{Name: "picture"}, func(context.Context, *mcp.CallToolRequest, struct{}) (*mcp.CallToolResult, any, error) {
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.ImageContent{MIMEType: "image/png", Data: []byte{1}}}}, nil, nil
	})
	mcp.AddTool(server, &mcp.Tool{Name: "fails"}, func(context.Context, *mcp.CallToolRequest, struct{}) (*mcp.CallToolResult, any, error) {
		return nil, nil, errors.New("file not found")
	})
	mcp.AddTool(server, &mcp.Tool{Name: "picky"}, func(context.Context, *mcp.CallToolRequest, struct{}) (*mcp.CallToolResult, any, error) {
		return nil, nil, errors.New("MCP error -32602: Input validation error") // as the TypeScript SDK refuses
	})
	mcp.AddTool(server, &mcp.Tool{Name: "typed"}, func(context.Context, *mcp.CallToolRequest, struct{ N string }) (*mcp.CallToolResult, any, error) {
		return nil, nil, errors.New("called with invalid arguments") // the Go SDK refuses before
	})
	mcp.AddTool(server, &mcp.Tool{Name: "huge"}, func(context.Context, *mcp.CallToolRequest, struct{}) (*mcp.CallToolResult, any, error) {
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: strings.Repeat("x", 5<<20)}}}, nil, nil
	})
	cs := inMemory.connect(t, server)
	c, err := mcpbinding.NewClient(cs, "planner", &accp.ClientOptions{Retry: &accp.RetryPolicy{MaxAttempts: -1}})
	require.NoError(t, err)
	synced, err := c.SyncRegistry(t.Context())
	require.NoError(t, err)
	require.False(t, synced)

	number := accp.Map(accp.Param{Key: "n", Value: accp.Int(9007199254740993)})
	for name, want := range map[string]string{"double": `{"double":18014398509481986}`, "say": `"two words"`, "picture": `[{"type":"image","mimeType":"image/png","data":"AQ=="}]`} {
		arguments := accp.Map()
		if name == "double" {
			arguments = number
		}
		answer, err := c.Call(t.Context(), call(t, name, arguments), nil)
		require.NoError(t, err, name)
		require.Equal(t, "calc_server", answer.From)
		require.Equal(t, name, answer.Params.Text("tool_name"))
		require.Equal(t, c.Session().ID(), answer.Meta.SID)
		result, _ := answer.Params.Get("result")
		raw, err := result.AppendJSON(nil)
		require.NoError(t, err)
		require.JSONEq(t, want, string(raw))
		if name == "double" {
			require.Equal(t, want, string(raw)) // exactly
		}
	}

	var perr *accp.Error
	_, err = c.Call(t.Context(), call(t, "fails", accp.Map()), nil)
	require.ErrorAs(t, err, &perr)
	require.Equal(t, accp.ErrToolExecFailed, perr.Code)
	require.Equal(t, "file not found", perr.Message) // the model has to see it
	_, err = c.Call(t.Context(), call(t, "picky", accp.Map()), nil)
	require.ErrorIs(t, err, accp.ErrToolSchema)
	_, err = c.Call(t.Context(), call(t, "typed", number), nil)
	require.ErrorIs(t, err, accp.ErrToolSchema)
	_, err = c.Call(t.Context(), call(t, "huge", accp.Map()), nil)
	require.ErrorIs(t, err, accp.ErrToolExecFailed)
	_, err = c.Call(t.Context(), call(t, "nowhere", accp.Map()), nil)
	require.ErrorIs(t, err, accp.ErrToolNotFound)
	_, err = c.Call(t.Context(), &accp.Message{Intent: accp.IntentReq, Op: profile.OpPlan}, nil)
	require.ErrorIs(t, err, accp.ErrInvalidIntent)
	ack, err := c.Call(t.Context(), &accp.Message{Intent: accp.IntentCancel, Op: profile.OpTool, Meta: &accp.Meta{CID: "000000000001"}}, nil)
	require.NoError(t, err)
	require.Nil(t, ack) // which belongs to the chain that has just ended
}

// A server without tools, and one that refuses invalid arguments.
func TestRefusals(t *testing.T) {
	server := mcp.NewServer(&mcp.Implementation{Name: "picky", Version: "1"}, nil)
	c, err := mcpbinding.NewClient(inMemory.connect(t, server), "planner", &accp.ClientOptions{Retry: &accp.RetryPolicy{MaxAttempts: -1}, Session: accp.SessionOptions{SeqPerSender: true}})
	require.NoError(t, err)
	for range 2 { // the answers count for themselves
		_, err = c.Call(t.Context(), call(t, "any", accp.Map()), nil)
		require.ErrorIs(t, err, accp.ErrToolNotFound)
	}

	d, err := newDesk()
	require.NoError(t, err)
	c, err = mcpbinding.NewClient(inMemory.connect(t, d.mcp), "planner", &accp.ClientOptions{Retry: &accp.RetryPolicy{MaxAttempts: -1}})
	require.NoError(t, err)
	_, err = c.Call(t.Context(), call(t, "echo", accp.Map(accp.Param{Key: "k", Value: accp.Map()})), nil)
	require.NoError(t, err)
}

// Each side of a session may count its own frames (ACCP-D24).
func TestSeqPerSender(t *testing.T) {
	options := accp.SessionOptions{SeqPerSender: true}
	agent, err := accp.NewServer("desk", &accp.ServerOptions{Auth: accp.Auth{AllowAnonymous: true}, Session: options})
	require.NoError(t, err)
	agent.Handle(accp.IntentReq, profile.OpTool, profile.NewToolHandler(map[string]profile.ToolFunc{
		"echo": func(_ context.Context, args accp.Params) (accp.Value, error) { return accp.Map(args...), nil },
	}))
	instructions, err := mcpbinding.Instructions("desk", nil)
	require.NoError(t, err)
	server := mcp.NewServer(&mcp.Implementation{Name: "x", Version: "1"}, &mcp.ServerOptions{Instructions: instructions})
	if err := mcpbinding.AddTools(server, agent, &mcp.Tool{Name: "echo", InputSchema: json.RawMessage(`{"type":"object"}`)}); err != nil {
		panic(err)
	}
	c, err := mcpbinding.NewClient(inMemory.connect(t, server), "planner", &accp.ClientOptions{Session: options})
	require.NoError(t, err)
	synced, err := c.SyncRegistry(t.Context())
	require.NoError(t, err)
	require.True(t, synced)
	for range 3 {
		_, err := c.Call(t.Context(), call(t, "echo", accp.Map()), nil)
		require.NoError(t, err)
	}
}

// A handler may answer with several frames: each is one item of the result, and the last one
// determines its status.
func TestSeveralFrames(t *testing.T) {
	agent, err := accp.NewServer("desk", &accp.ServerOptions{Auth: accp.Auth{AllowAnonymous: true}})
	require.NoError(t, err)
	agent.Handle(accp.IntentReq, profile.OpTool, accp.HandlerFunc(func(_ context.Context, w *accp.ReplyWriter, m *accp.Message) error {
		for i := range 3 {
			final := i == 2 && m.Params.Text("tool_name") != "stops"
			chunk, err := accp.NewMessage(accp.IntentStream, m.Op, profile.SchemaStream, profile.Chunk{Index: int64(i), Data: accp.Int(int64(i)), Final: final})
			if err != nil {
				return err
			}
			if err := w.Send(chunk); err != nil {
				return err
			}
		}
		if m.Params.Text("tool_name") == "fails" {
			return accp.ErrToolExecFailed
		}
		return nil
	}))

	server := mcp.NewServer(&mcp.Implementation{Name: "x", Version: "1"}, nil)
	for _, name := range []string{"counts", "fails", "stops"} {
		if err := mcpbinding.AddTools(server, agent, &mcp.Tool{Name: name, InputSchema: json.RawMessage(`{"type":"object"}`)}); err != nil {
			panic(err)
		}
	}
	cs := inMemory.connect(t, server)
	res, err := cs.CallTool(t.Context(), &mcp.CallToolParams{Name: "counts"})
	require.NoError(t, err)
	require.False(t, res.IsError)
	require.Equal(t, "[0,1,2]", plainText(t, res))
	res, err = cs.CallTool(t.Context(), &mcp.CallToolParams{Name: "fails"})
	require.NoError(t, err)
	require.True(t, res.IsError)
	require.Equal(t, "E4002 tool_exec_failed", plainText(t, res))
	res, err = cs.CallTool(t.Context(), &mcp.CallToolParams{Name: "stops"})
	require.NoError(t, err)
	require.True(t, res.IsError, "the stream has no final chunk")
	require.Equal(t, "E4002 tool_exec_failed", plainText(t, res))
	head := "@planner>req:tool{}[mid:00000000000a,seq:1,ts:1714000000]"
	res, err = cs.CallTool(t.Context(), &mcp.CallToolParams{Name: "fails", Meta: mcp.Meta{"accp/frame": head}})
	require.NoError(t, err)
	require.True(t, res.IsError)
	require.Len(t, mcpbinding.ExtractFrames(res), 4)

	c, err := mcpbinding.NewClient(cs, "planner", &accp.ClientOptions{Retry: &accp.RetryPolicy{MaxAttempts: -1}})
	require.NoError(t, err)
	n := 0
	for v, err := range c.Stream(t.Context(), call(t, "counts", accp.Map()), nil) {
		require.NoError(t, err)
		got, _ := v.Int()
		require.EqualValues(t, n, got)
		n++
	}
	require.Equal(t, 3, n)
	var last error
	for _, err := range c.Replies(t.Context(), call(t, "fails", accp.Map()), nil) {
		last = err
	}
	require.ErrorIs(t, last, accp.ErrToolExecFailed)
	for _, err := range c.Stream(t.Context(), call(t, "stops", accp.Map()), nil) {
		last = err
	}
	require.ErrorIs(t, last, accp.ErrTruncated)
}

// Long results travel inline, or in a store that both sides read, unless the token limits are enforced
// (ACCP-D37).
func TestLongResults(t *testing.T) {
	long := strings.Repeat("a long text that costs many tokens ", 60)
	shared := store.NewMemory()
	for name, tt := range map[string]struct {
		options accp.SessionOptions
		want    error
	}{
		"by default":   {accp.SessionOptions{}, nil},
		"enforced":     {accp.SessionOptions{Budget: accp.BudgetEnforce}, accp.ErrBudgetExceeded},
		"inline":       {accp.SessionOptions{Budget: accp.BudgetOff}, nil},
		"by reference": {accp.SessionOptions{Persistence: accp.Persistence{SharedStore: shared}}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			o := &accp.ServerOptions{Auth: accp.Auth{AllowAnonymous: true}, Session: tt.options,
				Persistence: tt.options.Persistence}
			o.Session.Persistence = accp.Persistence{}
			agent, err := accp.NewServer("desk", o)
			require.NoError(t, err)
			agent.Handle(accp.IntentReq, profile.OpTool, profile.NewToolHandler(map[string]profile.ToolFunc{
				"tell": func(context.Context, accp.Params) (accp.Value, error) { return accp.String(long), nil },
			}))
			server := mcp.NewServer(&mcp.Implementation{Name: "x", Version: "1"}, nil)
			if err := mcpbinding.AddTools(server, agent, &mcp.Tool{Name: "tell", InputSchema: json.RawMessage(`{"type":"object"}`)}); err != nil {
				panic(err)
			}
			c, err := mcpbinding.NewClient(inMemory.connect(t, server), "planner", &accp.ClientOptions{Retry: &accp.RetryPolicy{MaxAttempts: -1}, Session: tt.options})
			require.NoError(t, err)
			answer, err := c.Call(t.Context(), call(t, "tell", accp.Map()), nil)
			if tt.want != nil {
				require.ErrorIs(t, err, tt.want)
				return
			}
			require.NoError(t, err)
			require.Equal(t, long, answer.Params.Text("result"))
		})
	}
}

// Concurrent calls of several sessions do not mix their numbers and parts, and each session learns the schemas.
func TestConcurrentCalls(t *testing.T) {
	for _, perSender := range []bool{false, true} {
		d, err := newDesk()
		require.NoError(t, err)
		c, err := mcpbinding.NewClient(inMemory.connect(t, d.mcp), "planner", &accp.ClientOptions{MaxConcurrent: 4,
			Session: accp.SessionOptions{SeqPerSender: perSender}, Retry: &accp.RetryPolicy{MaxAttempts: -1}})
		require.NoError(t, err)
		isSynced, err := c.SyncRegistry(t.Context())
		require.NoError(t, err)
		require.True(t, isSynced)
		results := make(chan error, 100)
		for k := range int64(cap(results)) {
			m := call(t, "echo", accp.Map(accp.Param{Key: "k", Value: accp.Int(k)}))
			for _, key := range []string{"why1", "why2", "why3"} {
				m.Params = append(m.Params, accp.Param{Key: key, Value: accp.String(strings.Repeat("because of it ", 10))})
			}
			go func() {
				answer, err := c.Call(t.Context(), m, nil)
				if err == nil {
					result, _ := answer.Params.Get("result")
					if !result.Equal(accp.Map(accp.Param{Key: "k", Value: accp.Int(k)})) {
						err = fmt.Errorf("call %d returned %v", k, result)
					}
				}
				results <- err
			}()
		}
		for range cap(results) {
			require.NoError(t, <-results)
		}
		require.NoError(t, c.Close())
	}
}

// Results of 1 MiB arrive whole: as text at plain hosts, in parts at clients of ACCP, and from servers
// without ACCP (ACCP-D57, ACCP-D73).
func TestLargeResults(t *testing.T) {
	large := strings.Repeat("a line of text\n", 1<<20/15)
	agent, err := accp.NewServer("desk", &accp.ServerOptions{Auth: accp.Auth{AllowAnonymous: true}})
	require.NoError(t, err)
	agent.Handle(accp.IntentReq, profile.OpTool, profile.NewToolHandler(map[string]profile.ToolFunc{
		"tell": func(context.Context, accp.Params) (accp.Value, error) { return accp.String(large), nil },
	}))
	desk := mcp.NewServer(&mcp.Implementation{Name: "x", Version: "1"}, nil)
	tool := &mcp.Tool{Name: "tell", InputSchema: json.RawMessage(`{"type":"object"}`)}
	require.NoError(t, mcpbinding.AddTools(desk, agent, tool))
	cs := inMemory.connect(t, desk)
	res, err := cs.CallTool(t.Context(), &mcp.CallToolParams{Name: "tell"})
	require.NoError(t, err)
	require.Equal(t, large, plainText(t, res))

	ordinary := mcp.NewServer(&mcp.Implementation{Name: "y", Version: "1"}, nil)
	ordinary.AddTool(tool, func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: large}}}, nil
	})
	for name, session := range map[string]*mcp.ClientSession{"desk": cs, "ordinary": inMemory.connect(t, ordinary)} {
		c, err := mcpbinding.NewClient(session, "planner", &accp.ClientOptions{Retry: &accp.RetryPolicy{MaxAttempts: -1}})
		require.NoError(t, err)
		for range 2 {
			answer, err := c.Call(t.Context(), call(t, "tell", accp.Map()), nil)
			require.NoError(t, err, name)
			require.Equal(t, large, answer.Params.Text("result"), name)
		}
	}

	large = strings.Repeat(large, 5)
	c, err := mcpbinding.NewClient(inMemory.connect(t, ordinary), "planner", &accp.ClientOptions{Retry: &accp.RetryPolicy{MaxAttempts: -1}})
	require.NoError(t, err)
	_, err = c.Call(t.Context(), call(t, "tell", accp.Map()), nil)
	require.ErrorIs(t, err, accp.ErrToolExecFailed, "more than 4 MiB")
}

// One struct describes a tool to models, by the descriptions in its jsonschema tags, and has its arguments.
func TestStructDescribesTool(t *testing.T) {
	type question struct {
		City string `json:"city" jsonschema:"the name of a city"`
		Days int    `json:"days,omitempty" jsonschema:"how many days" accp:"default=1"`
	}
	agent, err := accp.NewServer("desk", &accp.ServerOptions{Auth: accp.Auth{AllowAnonymous: true}})
	require.NoError(t, err)
	agent.Handle(accp.IntentReq, profile.OpTool, profile.NewToolHandler(map[string]profile.ToolFunc{
		"weather": func(_ context.Context, args accp.Params) (accp.Value, error) {
			q := question{Days: 1}
			if err := accp.Unmarshal(args, &q); err != nil {
				return accp.Value{}, err
			}
			return accp.String(fmt.Sprint(q.City, " ", q.Days)), nil
		},
	}))
	schema, err := jsonschema.For[question](nil)
	require.NoError(t, err)
	require.Equal(t, "the name of a city", schema.Properties["city"].Description)
	server := mcp.NewServer(&mcp.Implementation{Name: "x", Version: "1"}, nil)
	require.NoError(t, mcpbinding.AddTools(server, agent, &mcp.Tool{Name: "weather", InputSchema: schema}))
	cs := inMemory.connect(t, server)
	for want, arguments := range map[string]any{"Oslo 1": question{City: "Oslo"}, "Oslo 3": question{City: "Oslo", Days: 3}, "E4003 .+": map[string]any{}} {
		res, err := cs.CallTool(t.Context(), &mcp.CallToolParams{Name: "weather", Arguments: arguments})
		require.NoError(t, err)
		require.Regexp(t, "^"+want+"$", plainText(t, res))
	}
	params, err := accp.Marshal(question{City: "Oslo"})
	require.NoError(t, err)
	require.Equal(t, "[{city Oslo}]", fmt.Sprint(params), "descriptions are no part of a message")
}

// Arguments that violate the input schema of a tool do not reach it (ACCP-D57).
func TestArgumentsAreValidated(t *testing.T) {
	agent, err := accp.NewServer("desk", &accp.ServerOptions{Auth: accp.Auth{AllowAnonymous: true}})
	require.NoError(t, err)
	ran := 0
	agent.Handle(accp.IntentReq, profile.OpTool, profile.NewToolHandler(map[string]profile.ToolFunc{
		"add": func(context.Context, accp.Params) (accp.Value, error) {
			ran++
			return accp.String("HELLO"), nil
		},
	}))
	server := mcp.NewServer(&mcp.Implementation{Name: "x", Version: "1"}, nil)
	schema := `{"type":"object","required":["n"],"properties":{"n":{"type":"integer"},"s":{"type":"string"}},"additionalProperties":false}`
	require.NoError(t, mcpbinding.AddTools(server, agent, &mcp.Tool{Name: "add", InputSchema: json.RawMessage(schema)}))
	cs := inMemory.connect(t, server)
	c, err := mcpbinding.NewClient(cs, "planner", &accp.ClientOptions{Retry: &accp.RetryPolicy{MaxAttempts: -1}})
	require.NoError(t, err)
	for _, bad := range []string{``, `{}`, `{"n":"1"}`, `{"n":1.5}`, `{"n":1,"m":2}`, `{"n":1,"s":3}`} {
		p := &mcp.CallToolParams{Name: "add"}
		if bad != "" {
			p.Arguments = json.RawMessage(bad)
		}
		res, err := cs.CallTool(t.Context(), p)
		require.NoError(t, err, bad)
		require.True(t, res.IsError)
		require.Regexp(t, "^E4003 .+", plainText(t, res))
		arguments := accp.Map()
		if bad != "" {
			arguments, err = accp.FromJSON([]byte(bad))
			require.NoError(t, err)
		}
		_, err = c.Call(t.Context(), call(t, "add", arguments), nil)
		require.ErrorIs(t, err, accp.ErrToolSchema, bad)
	}
	require.Zero(t, ran)
	res, err := cs.CallTool(t.Context(), &mcp.CallToolParams{Name: "add", Arguments: map[string]any{"n": int64(9007199254740993)}})
	require.NoError(t, err)
	require.Equal(t, "HELLO", plainText(t, res))
	_, err = c.Call(t.Context(), call(t, "add", accp.Map(accp.Param{Key: "n", Value: accp.Int(1)})), nil)
	require.NoError(t, err)
	require.Equal(t, 2, ran)
	require.Error(t, mcpbinding.AddTools(server, agent, &mcp.Tool{Name: "bad", InputSchema: json.RawMessage(`{"type":"object","properties":{"n":{"$ref":"#/x"}}}`)}))
}

func TestFramesAreChecked(t *testing.T) {
	_, err := mcpbinding.ResourceContents([]byte("@a>req:plan{}"))
	require.ErrorIs(t, err, accp.ErrParse) // no envelope
	_, err = mcpbinding.ToolResult([]byte("nonsense"))
	require.ErrorIs(t, err, accp.ErrParse)
	_, err = mcpbinding.AddFrameResource(mcp.NewServer(&mcp.Implementation{Name: "x"}, nil), []byte("nonsense"))
	require.ErrorIs(t, err, accp.ErrParse)
	_, err = mcpbinding.Instructions("not a name", nil)
	require.ErrorIs(t, err, accp.ErrParse)

	server := mcp.NewServer(&mcp.Implementation{Name: "x", Version: "1"}, nil)
	add := func(uri, mime, text string) {
		server.AddResource(&mcp.Resource{URI: uri, Name: uri}, func(context.Context, *mcp.ReadResourceRequest) (*mcp.ReadResourceResult, error) {
			return &mcp.ReadResourceResult{Contents: []*mcp.ResourceContents{{URI: uri, MIMEType: mime, Text: text}}}, nil
		})
	}
	add("accp://frames/plain", "text/plain", "@a>req:plan{}")
	add("accp://frames/bad", accp.MediaType, "@a>req")
	add("accp://frames/good", "Application/ACCP; charset=utf-8", "@a>req:plan{}")
	cs := inMemory.connect(t, server)
	_, err = mcpbinding.ReadFrame(t.Context(), cs, "accp://frames/plain")
	require.ErrorIs(t, err, accp.ErrInvalidType)
	_, err = mcpbinding.ReadFrame(t.Context(), cs, "accp://frames/bad")
	require.ErrorIs(t, err, accp.ErrParse)
	frame, err := mcpbinding.ReadFrame(t.Context(), cs, "accp://frames/good")
	require.NoError(t, err)
	require.Equal(t, "@a>req:plan{}", string(frame))
}

func TestConstructorsRequireTheirPeers(t *testing.T) {
	_, err := mcpbinding.NewToolHandler(nil, nil)
	require.ErrorContains(t, err, "no server")
	require.ErrorContains(t, mcpbinding.AddTools(nil, nil, &mcp.Tool{}), "no server")
	_, err = mcpbinding.NewClient(nil, "planner", nil)
	require.ErrorContains(t, err, "no MCP session")
}
