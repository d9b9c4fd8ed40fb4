// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package mcpbridge_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/fivewire/fivewire/altar"
	"github.com/fivewire/fivewire/altar/altartest"
	"github.com/fivewire/fivewire/altar/mcpbridge"
)

func TestMain(m *testing.M) {
	if os.Getenv("MCPBRIDGE_CHILD") != "" {
		if err := newBox().server.Run(context.Background(), &sdk.StdioTransport{}); err != nil && !errors.Is(err, io.EOF) {
			fmt.Fprintln(os.Stderr, err)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

// A box is a server of the official SDK that counts the calls of its tools.
type box struct {
	server *sdk.Server
	runs   atomic.Int64
	hung   chan struct{}
	freed  chan struct{}
}

const noteSchema = `{"type":"object","required":["text","level"],"$defs":{"level":{"type":"integer","minimum":1,"maximum":5,"description":"How urgent"}},
	"properties":{"text":{"type":"string","description":"The note","maxLength":20},"level":{"$ref":"#/$defs/level"},
	"kind":{"enum":["todo","idea"],"default":"todo"},"due":{"anyOf":[{"type":"string","format":"date"},{"type":"null"}]},
	"meta":{"type":"object","minProperties":1,"maxProperties":3},"tags":{"type":"array","items":{"type":"string","minLength":1}}}}`

func newBox() *box {
	b := &box{hung: make(chan struct{}, 1), freed: make(chan struct{}, 1)}
	b.server = sdk.NewServer(&sdk.Implementation{Name: "box", Version: "1"}, nil)
	b.add("note", noteSchema, func(_ context.Context, r *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
		var in struct {
			Level int `json:"level"`
		}
		if err := json.Unmarshal(r.Params.Arguments, &in); err != nil || in.Level > 5 {
			return &sdk.CallToolResult{IsError: true, Content: []sdk.Content{&sdk.TextContent{Text: "level: at most 5"}}}, nil
		}
		return &sdk.CallToolResult{StructuredContent: map[string]any{"noted": r.Params.Arguments}}, nil
	})
	b.add("plain", `{"type":"object"}`, func(context.Context, *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
		return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: "done"}}}, nil
	})
	b.add("large", `{"type":"object"}`, func(context.Context, *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
		return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: "exact"}}, StructuredContent: json.RawMessage(`{"n":[9007199254740993]}`)}, nil
	})
	b.add("hang", `{"type":"object"}`, func(ctx context.Context, _ *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
		b.hung <- struct{}{}
		<-ctx.Done()
		b.freed <- struct{}{}
		return nil, ctx.Err()
	})
	b.add("exit", `{"type":"object"}`, func(context.Context, *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
		for s := range b.server.Sessions() {
			go func() { _ = s.Close() }()
		}
		return nil, errors.New("never sent")
	})
	b.add("union", `{"type":"object","properties":{"x":{"type":["string","integer"]}}}`, nil)
	return b
}

func (b *box) add(name, schema string, run sdk.ToolHandler) {
	b.server.AddTool(&sdk.Tool{Name: name, Description: "Text of the server", InputSchema: json.RawMessage(schema)},
		func(ctx context.Context, r *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
			b.runs.Add(1)
			return run(ctx, r)
		})
}

// dial connects to the box within the process.
func (b *box) dial(context.Context) (sdk.Transport, error) {
	client, server := sdk.NewInMemoryTransports()
	_, err := b.server.Connect(context.Background(), server, nil)
	return client, err
}

var discard = slog.New(slog.DiscardHandler)

func newBridge(t *testing.T, dial func(context.Context) (sdk.Transport, error), opts mcpbridge.Options) *mcpbridge.Bridge {
	opts.Prefix, opts.Logger = "box", discard
	b, err := mcpbridge.New(dial, &opts)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, b.Close()) })
	return b
}

// accept does what an operator does: it reads the tools, and pins those that a contract can express.
func accept(t *testing.T, dial func(context.Context) (sdk.Transport, error)) (*altar.Manifest, map[string]string) {
	tools, err := newBridge(t, dial, mcpbridge.Options{}).Tools(t.Context())
	require.NoError(t, err)
	require.Len(t, tools, 6)
	m, pins := &altar.Manifest{}, make(map[string]string)
	for i := range tools {
		if tools[i].Err == nil {
			m.Contracts = append(m.Contracts, &tools[i].Contract)
			pins[tools[i].Contract.Name] = tools[i].Digest
		}
	}
	require.Len(t, pins, 5)
	require.NotContains(t, pins, "box/union", "a choice of two types has no counterpart")
	return m, pins
}

// newSession makes a Host with the tools of a bridge, and a session of a client.
func newSession(t *testing.T, m *altar.Manifest, b *mcpbridge.Bridge) *altar.Session {
	host, err := altar.NewHost(m, &altar.HostOptions{Logger: discard, Auth: altar.Auth{AllowAnonymous: true, Authorizer: altar.AuthorizerFunc(altar.AllowAll)}})
	require.NoError(t, err)
	rt, err := altar.NewRuntime("bridge-1", &altar.RuntimeOptions{Logger: discard})
	require.NoError(t, err)
	require.NoError(t, b.AddTo(t.Context(), rt))
	conn, err := host.Dial(&altar.Principal{ID: "bridge"})
	require.NoError(t, err)
	done := make(chan error, 1)
	ctx, stop := context.WithCancel(context.Background())
	go func() { done <- rt.Run(ctx, conn) }()
	altartest.WaitTools(t, host, 1)
	client, err := altar.NewClient(func(context.Context) (altar.Conn, error) { return host.Dial(&altar.Principal{ID: "alice"}) }, nil)
	require.NoError(t, err)
	t.Cleanup(func() {
		_ = client.Close()
		stop()
		<-done
		_ = host.Close()
	})
	s, err := client.CreateSession(t.Context(), nil)
	require.NoError(t, err)
	return s
}

func call(t *testing.T, s *altar.Session, tool, params string) (string, error) {
	got, err := s.Call(t.Context(), tool, json.RawMessage(params), nil)
	if err != nil {
		return "", err
	}
	return string(got.Payload), nil
}

// The description of a parameter has the keywords that a contract cannot express.
func TestContracts(t *testing.T) {
	m, _ := accept(t, newBox().dial)
	contract := func(name string) *altar.Contract {
		i := slices.IndexFunc(m.Contracts, func(c *altar.Contract) bool { return c.Name == name })
		require.GreaterOrEqual(t, i, 0)
		return m.Contracts[i]
	}
	c := contract("box/note")
	require.Equal(t, "Text of the server", c.Description)
	text, err := json.Marshal(c.Parameters)
	require.NoError(t, err)
	require.JSONEq(t, `[
		{"name":"due","type":"string","description":"(format \"date\")"},
		{"name":"kind","type":"string","description":"(one of \"todo\",\"idea\"; default \"todo\")"},
		{"name":"level","type":"integer","required":true,"description":"How urgent (at least 1; at most 5)"},
		{"name":"meta","type":"object","description":"(properties at least 1; properties at most 3)"},
		{"name":"tags","type":"array[string]","description":"Each item: (characters at least 1)"},
		{"name":"text","type":"string","required":true,"description":"The note (characters at most 20)"}]`, string(text))
	require.Empty(t, contract("box/plain").Parameters)
}

// The tools of a server work over each transport of the SDK.
func TestTransports(t *testing.T) {
	for name, dial := range map[string]func(t *testing.T) func(context.Context) (sdk.Transport, error){
		"memory": func(*testing.T) func(context.Context) (sdk.Transport, error) { return newBox().dial },
		"stdio": func(*testing.T) func(context.Context) (sdk.Transport, error) {
			return func(ctx context.Context) (sdk.Transport, error) {
				cmd := exec.CommandContext(ctx, os.Args[0])
				cmd.Env = append(os.Environ(), "MCPBRIDGE_CHILD=1")
				return &sdk.CommandTransport{Command: cmd}, nil
			}
		},
		"http": func(t *testing.T) func(context.Context) (sdk.Transport, error) {
			b := newBox()
			srv := httptest.NewServer(sdk.NewStreamableHTTPHandler(func(*http.Request) *sdk.Server { return b.server }, nil))
			t.Cleanup(func() {
				http.DefaultTransport.(*http.Transport).CloseIdleConnections()
				srv.CloseClientConnections()
				srv.Close()
			})
			return func(context.Context) (sdk.Transport, error) {
				return &sdk.StreamableClientTransport{Endpoint: srv.URL}, nil
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			to := dial(t)
			m, pins := accept(t, to)
			s := newSession(t, m, newBridge(t, to, mcpbridge.Options{Pins: pins}))
			got, err := call(t, s, "box/note", `{"text":"x","level":2}`)
			require.NoError(t, err)
			require.JSONEq(t, `{"noted":{"text":"x","level":2}}`, got)
			got, err = call(t, s, "box/plain", `{}`)
			require.NoError(t, err)
			require.JSONEq(t, `[{"type":"text","text":"done"}]`, got)
			got, err = call(t, s, "box/large", `{}`)
			require.NoError(t, err)
			require.JSONEq(t, `[{"type":"text","text":"exact"}]`, got, "no rounded number")
			_, err = call(t, s, "box/note", `{"text":"x","level":"high"}`)
			require.ErrorIs(t, err, altar.ErrInvalidParameters, "the Host checks what a contract can express")
			_, err = call(t, s, "box/note", `{"text":"x","level":9}`)
			require.ErrorIs(t, err, altar.ErrExecutionFailed, "the server checks the rest")
			require.ErrorContains(t, err, "at most 5")
		})
	}
}

// A repeat of a call does not reach the server.
func TestAtMostOnce(t *testing.T) {
	b := newBox()
	m, pins := accept(t, b.dial)
	s := newSession(t, m, newBridge(t, b.dial, mcpbridge.Options{Pins: pins}))
	for range 3 {
		_, err := s.Call(t.Context(), "box/plain", nil, &altar.CallOptions{InvocationID: "one"})
		require.NoError(t, err)
	}
	require.EqualValues(t, 1, b.runs.Load())
}

// Only pinned tools are offered, and a pin that does not fit adds nothing.
func TestPins(t *testing.T) {
	b := newBox()
	m, pins := accept(t, b.dial)
	s := newSession(t, m, newBridge(t, b.dial, mcpbridge.Options{Pins: map[string]string{"box/plain": pins["box/plain"]}}))
	_, err := call(t, s, "box/plain", `{}`)
	require.NoError(t, err)
	_, err = call(t, s, "box/large", `{}`)
	require.ErrorIs(t, err, altar.ErrToolNotFound)

	rt, err := altar.NewRuntime("r", nil)
	require.NoError(t, err)
	bad := map[string]string{"box/plain": "00", "box/none": "00", "box/union": "00", "box/large": pins["box/large"]}
	err = newBridge(t, b.dial, mcpbridge.Options{Pins: bad}).AddTo(t.Context(), rt)
	require.ErrorContains(t, err, "box/plain: digest "+pins["box/plain"]+" is not the pinned one")
	require.ErrorContains(t, err, "box/none: the server does not have it")
	require.ErrorContains(t, err, "box/union: ")
	require.NotContains(t, err.Error(), "box/large")
}

// A tool whose schema changes while the bridge runs is refused, and is accepted again once it is as before.
func TestChangedTool(t *testing.T) {
	b := newBox()
	m, pins := accept(t, b.dial)
	s := newSession(t, m, newBridge(t, b.dial, mcpbridge.Options{Pins: pins}))
	_, err := call(t, s, "box/plain", `{}`)
	require.NoError(t, err)
	run := func(context.Context, *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
		return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: "other"}}}, nil
	}
	b.add("plain", `{"type":"object","properties":{"secret":{"type":"string"}}}`, run)
	require.Eventually(t, func() bool {
		_, err = call(t, s, "box/plain", `{}`)
		return err != nil
	}, time.Minute, time.Millisecond)
	require.ErrorIs(t, err, altar.ErrExecutionFailed)
	require.ErrorIs(t, err, altar.Reason("tool_changed"))
	before := b.runs.Load()
	_, err = call(t, s, "box/plain", `{}`)
	require.ErrorIs(t, err, altar.Reason("tool_changed"))
	require.Equal(t, before, b.runs.Load(), "a changed tool is not called")
	_, err = call(t, s, "box/large", `{}`)
	require.NoError(t, err, "other tools go on")
	b.add("plain", `{"type":"object"}`, run)
	require.Eventually(t, func() bool {
		_, err := call(t, s, "box/plain", `{}`)
		return err == nil
	}, time.Minute, time.Millisecond)
}

// The text of the server in an error is cut.
func TestLongError(t *testing.T) {
	b := newBox()
	b.add("plain", `{"type":"object"}`, func(context.Context, *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
		return nil, errors.New(strings.Repeat("ä", 5000))
	})
	m, pins := accept(t, b.dial)
	_, err := call(t, newSession(t, m, newBridge(t, b.dial, mcpbridge.Options{Pins: pins})), "box/plain", `{}`)
	require.ErrorIs(t, err, altar.ErrExecutionFailed)
	require.Equal(t, 1000, strings.Count(err.Error(), "ä"))
}

// The end of a call at the Host cancels it at the server.
func TestCancel(t *testing.T) {
	b := newBox()
	m, pins := accept(t, b.dial)
	s := newSession(t, m, newBridge(t, b.dial, mcpbridge.Options{Pins: pins}))
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-b.hung
		cancel()
	}()
	_, err := s.Call(ctx, "box/hang", nil, nil)
	require.ErrorIs(t, err, context.Canceled)
	<-b.freed
}

// A lost connection fails its calls as unavailable, and the next call has a new one.
func TestLostConnection(t *testing.T) {
	b := newBox()
	m, pins := accept(t, b.dial)
	s := newSession(t, m, newBridge(t, b.dial, mcpbridge.Options{Pins: pins}))
	_, err := call(t, s, "box/exit", `{}`)
	require.Error(t, err)
	for err != nil { // the loss may not be noticed yet
		require.True(t, errors.Is(err, altar.ErrRuntimeUnavailable) || errors.Is(err, altar.ErrExecutionFailed), "%v", err)
		_, err = call(t, s, "box/plain", `{}`)
	}
	require.GreaterOrEqual(t, b.runs.Load(), int64(2))
}

// A call in flight on a connection that is cut is unavailable. The next call has a new connection.
func TestCutConnection(t *testing.T) {
	b := newBox()
	m, pins := accept(t, b.dial)
	cut := make(chan func() error, 10)
	dial := func(ctx context.Context) (sdk.Transport, error) {
		near, far := net.Pipe()
		cut <- far.Close
		_, err := b.server.Connect(ctx, &sdk.IOTransport{Reader: far, Writer: far}, nil)
		return &sdk.IOTransport{Reader: near, Writer: near}, err
	}
	s := newSession(t, m, newBridge(t, dial, mcpbridge.Options{Pins: pins}))
	first := <-cut
	go func() {
		<-b.hung
		_ = first()
		<-b.freed
	}()
	_, err := call(t, s, "box/hang", `{}`)
	require.ErrorIs(t, err, altar.ErrRuntimeUnavailable)
	require.ErrorIs(t, err, altar.ReasonDisconnected)
	for len(cut) == 0 { // the bridge may not have noticed the loss
		_, err = call(t, s, "box/plain", `{}`)
		require.True(t, err == nil || errors.Is(err, altar.ErrRuntimeUnavailable), "%v", err)
	}
	require.NoError(t, err)
}

func TestUnusableServer(t *testing.T) {
	_, err := mcpbridge.New(nil, nil)
	require.Error(t, err)
	broken := newBridge(t, func(context.Context) (sdk.Transport, error) { return nil, errors.New("no server") }, mcpbridge.Options{})
	_, err = broken.Tools(t.Context())
	require.ErrorContains(t, err, "no server")
	b := newBox()
	for i := range 10 {
		b.add(fmt.Sprint("extra", i), `{"type":"object"}`, nil)
	}
	_, err = newBridge(t, b.dial, mcpbridge.Options{MaxTools: 10}).Tools(t.Context())
	require.ErrorContains(t, err, "more than 10 tools")
	closed := newBridge(t, b.dial, mcpbridge.Options{})
	require.NoError(t, closed.Close())
	_, err = closed.Tools(t.Context())
	require.ErrorIs(t, err, altar.ErrClosed)
}

// A schema that refers to itself, or that is invalid, is a fault of its tool alone.
func TestHostileSchemas(t *testing.T) {
	b := newBox()
	deep := strings.Repeat(`{"type":"array","items":`, 60) + `{"type":"string"}` + strings.Repeat("}", 60)
	var repeated strings.Builder
	for i := range 300 {
		fmt.Fprintf(&repeated, `,"x%d":{"$ref":"#/properties/x"}`, i)
	}
	for name, schema := range map[string]string{
		"endless": `{"type":"object","properties":{"x":{"$ref":"#/properties/x"}}}`,
		"inner":   `{"type":"object","properties":{"x":{"type":"object","properties":{"x":{"$ref":"#/properties/x"}}}}}`,
		"branches": `{"type":"object","properties":{"x":{"type":"object","properties":{"and":{"$ref":"#/properties/x"},` +
			`"or":{"$ref":"#/properties/x"},"not":{"$ref":"#/properties/x"}}}}}`,
		"foreign":  `{"type":"object","properties":{"x":{"$ref":"https://example.com/schema"}}}`,
		"deep":     `{"type":"object","properties":{"x":` + deep + `}}`,
		"required": `{"type":"object","required":["y"]}`,
		"repeated": `{"type":"object","properties":{"x":{"type":"string","description":"` + strings.Repeat("x", 64<<10) + `"}` + repeated.String() + `}}`,
	} {
		b.add(name, schema, nil)
	}
	tools, err := newBridge(t, b.dial, mcpbridge.Options{}).Tools(t.Context())
	require.NoError(t, err)
	require.Len(t, tools, 13)
	faults := 0
	for _, tool := range tools {
		if tool.Err != nil {
			faults++
		}
	}
	require.Equal(t, 8, faults)
}
