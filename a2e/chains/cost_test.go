// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package chains_test

import (
	"context"
	"encoding/json"
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/a2e"
	"github.com/fivewire/fivewire/a2e/a2etest"
	"github.com/fivewire/fivewire/a2e/chains"
)

// connectMeasured returns a client of a host with a tool that returns its input, and the bytes that the
// handler of the last chain allocated.
func connectMeasured(t *testing.T, tool chains.Executor) (*chains.Client, *uint64) {
	allocated := new(uint64)
	measure := func(next a2e.Handler) a2e.Handler {
		return a2e.HandlerFunc(func(ctx context.Context, call *a2e.Call) (any, error) {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			answer, err := next.ServeA2E(ctx, call)
			runtime.ReadMemStats(&after)
			*allocated = after.TotalAlloc - before.TotalAlloc
			return answer, err
		})
	}
	h := a2etest.NewHost(t, &a2e.HostOptions{Middleware: []a2e.Middleware{measure}}).AddPlugin(a2etest.Must(chains.NewPlugin(&chains.Options{Tool: tool})))
	c, err := chains.NewClient(a2etest.Connect(t, h, &a2e.ClientOptions{Limits: a2e.ClientLimits{MaxMessage: 64 << 20}}))
	require.NoError(t, err)
	return c, allocated
}

func echo(_ context.Context, _ *a2e.Call, _ string, input json.RawMessage) (json.RawMessage, error) {
	return input, nil
}

// runQuiet runs a chain without events.
func runQuiet(t *testing.T, c *chains.Client, input string, nodes []chains.Node) (*chains.Response, error) {
	return checked(t)(c.Run(t.Context(), &chains.Request{Nodes: nodes, EntryNode: nodes[0].NodeID, InitialInput: json.RawMessage(input), Streaming: new(false)}, nil))
}

// largeInput returns an object of 8 MiB with a list of objects.
func largeInput(items int) string {
	var b strings.Builder
	b.WriteString(`{"list":[`)
	for i := range items {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, `{"n":%d,"text":"%s"}`, i, strings.Repeat("x", 8<<20/items-30))
	}
	b.WriteString(`],"few":[1,2,3]}`)
	return b.String()
}

// A chain allocates in proportion to its input and outputs, and a node nothing for members it does not name
// (A2E-D64).
func TestChainsAllocateLinearly(t *testing.T) {
	c, allocated := connectMeasured(t, echo)
	input := largeInput(1000)
	nodes := make([]chains.Node, 1000)
	for i := range nodes {
		nodes[i] = node(fmt.Sprintf("n%d", i), "echo", fmt.Sprintf("n%d", i+1), func(n *chains.Node) {
			n.InputMap = json.RawMessage(fmt.Sprintf(`{"n":"$.list.%d.n","few":"$.few.1","before":"$.n%d.n"}`, i, i-1))
		})
		if i%10 == 9 {
			nodes[i].Kind, nodes[i].Condition, nodes[i].TrueNode = chains.NodeBranch, fmt.Sprintf("$.list.%d.n == %d", i, i), nodes[i].NextNode
		}
	}
	nodes[999].NextNode, nodes[999].TrueNode = "", ""
	resp, err := runQuiet(t, c, input, nodes)
	require.NoError(t, err)
	require.True(t, resp.Success, string(resp.Error))
	require.EqualValues(t, 1000, resp.NodesRun)
	require.Less(t, *allocated, uint64(4*(len(input)+len(resp.Outputs))+1000*64<<10))

	nodes = []chains.Node{
		node("each", "", "", func(n *chains.Node) { n.Kind, n.ItemsPath, n.MapNode = chains.NodeMap, "$.list", "one" }),
		node("one", "echo", "", func(n *chains.Node) { n.InputMap = json.RawMessage(`{"n":"$.item.n"}`) }),
	}
	resp, err = runQuiet(t, c, input, nodes)
	require.NoError(t, err)
	require.True(t, resp.Success, string(resp.Error))
	require.Contains(t, string(resp.Outputs), `{"n":999}]`)
	require.Less(t, *allocated, uint64(4*(len(input)+len(resp.Outputs))+2*64<<10))
}

// Many paths into one large list do not walk it each time (A2E-D64).
func TestPathsAreIndexed(t *testing.T) {
	c, _ := connectMeasured(t, echo)
	var b strings.Builder
	const paths = 50_000
	for i := range paths {
		fmt.Fprintf(&b, `,"m%d":"$.list.%d.n"`, i, i)
	}
	nodes := []chains.Node{node("a", "echo", "", func(n *chains.Node) { n.InputMap = json.RawMessage("{" + b.String()[1:] + "}") })}
	resp, err := c.Run(t.Context(), &chains.Request{Nodes: nodes, EntryNode: "a", InitialInput: json.RawMessage(largeInput(paths)),
		Streaming: new(false), Timeout: 30}, nil) // without an index 50,000 walks over 4 MiB
	require.NoError(t, err)
	require.True(t, resp.Success, string(resp.Error))
	require.True(t, strings.HasSuffix(string(resp.FinalOutput), fmt.Sprintf(`"m%d":%d}`, paths-1, paths-1)))
}

// A chain holds at most MaxBytes: a larger input is refused, and an output above it ends the chain with
// the outputs before it (A2E-D64).
func TestChainBytes(t *testing.T) {
	mebibyte := json.RawMessage(`"` + strings.Repeat("x", 1<<20-2) + `"`)
	c, allocated := connectMeasured(t, func(context.Context, *a2e.Call, string, json.RawMessage) (json.RawMessage, error) {
		return mebibyte, nil
	})
	nodes := make([]chains.Node, 60)
	for i := range nodes {
		nodes[i] = node(fmt.Sprintf("n%d", i), "large", fmt.Sprintf("n%d", i+1), func(n *chains.Node) { n.OnError = "skip" })
	}
	nodes[59].NextNode = ""
	resp, err := runQuiet(t, c, `{}`, nodes)
	require.NoError(t, err)
	require.False(t, resp.Success)
	require.JSONEq(t, `{"code":"chain_node_error","message":"the output is above the 16777216 bytes of a chain","reason":"too_large"}`, string(resp.Error))
	require.EqualValues(t, 16, resp.NodesRun)
	var outputs map[string]string
	require.NoError(t, json.Unmarshal(resp.Outputs, &outputs))
	require.Len(t, outputs, 15)
	require.Less(t, *allocated, uint64(60<<20))

	resp, err = runQuiet(t, c, `{"list":[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20]}`, []chains.Node{
		node("each", "", "", func(n *chains.Node) {
			n.Kind, n.ItemsPath, n.MapNode, n.OnError = chains.NodeMap, "$.list", "one", "skip"
		}),
		node("one", "large", "", nil)})
	require.NoError(t, err)
	require.Contains(t, string(resp.Error), `"too_large"`)
	require.JSONEq(t, `{}`, string(resp.Outputs))

	resp, err = runQuiet(t, c, fmt.Sprintf(`{"x":%s}`, mebibyte), []chains.Node{node("a", "large", "", func(n *chains.Node) {
		n.InputMap = json.RawMessage(`{"0":"$.x"` + strings.Join(manyMembers(20), "") + `}`)
	})})
	require.NoError(t, err)
	require.Contains(t, string(resp.Error), "the input is above")

	small, err := chains.NewClient(a2etest.Connect(t, a2etest.NewHost(t, nil).AddPlugin(a2etest.Must(chains.NewPlugin(&chains.Options{Tool: echo, MaxBytes: 20}))), nil))
	require.NoError(t, err)
	_, err = runQuiet(t, small, `{"x":"0123456789abcdef"}`, []chains.Node{node("a", "echo", "", nil)})
	var e *a2e.Error
	require.ErrorAs(t, err, &e)
	require.Equal(t, []string{"initial_input", a2e.ReasonValue}, []string{e.Field, e.Reason})
	require.ErrorContains(t, err, "want at most 20 bytes, got 24")
	resp, err = runQuiet(t, small, `{"x":"0123456789"}`, []chains.Node{node("a", "echo", "", nil)})
	require.NoError(t, err)
	require.True(t, resp.Success)
	for literal, isTooLarge := range map[string]bool{`{"x":"0123456789ab"}`: false, `{"x":"0123456789abc"}`: true} {
		echoed := node("a", "echo", "", func(n *chains.Node) { n.Input, n.OnError = json.RawMessage(literal), chains.OnErrorSkip })
		resp, err = runQuiet(t, small, `{}`, []chains.Node{echoed})
		require.NoError(t, err)
		require.Equal(t, isTooLarge, string(resp.Outputs) == `{}` && resp.Success, "%s: %s", literal, resp.Error)
	}
}

// The outputs of running chains are in the bounds of their principal, and end with the chains.
func TestOutputsAreInBoundsOfPrincipal(t *testing.T) {
	large := func(context.Context, *a2e.Call, string, json.RawMessage) (json.RawMessage, error) {
		return json.RawMessage(`"` + strings.Repeat("x", 1<<20-2) + `"`), nil
	}
	h := a2etest.NewHost(t, &a2e.HostOptions{Auth: a2e.Auth{Authenticator: a2etest.KeyAuthenticator("key")}, Limits: a2e.Limits{MaxMemoryPerPrincipal: 4 << 20}},
		a2etest.Must(chains.NewPlugin(&chains.Options{Tool: large})))
	c := a2etest.Must(chains.NewClient(a2etest.Connect(t, h, &a2e.ClientOptions{Token: "key"})))
	nodes := make([]chains.Node, 6)
	for i := range nodes {
		nodes[i] = node(fmt.Sprintf("n%d", i), "large", fmt.Sprintf("n%d", i+1), func(n *chains.Node) { n.OnError = "skip" })
	}
	nodes[5].NextNode = ""
	for range 2 {
		resp, err := runQuiet(t, c, `{}`, nodes)
		require.NoError(t, err)
		require.False(t, resp.Success)
		require.JSONEq(t, `{"code":"runtime_error","message":"over the limit of memory","reason":"overloaded"}`, string(resp.Error))
		require.EqualValues(t, 5, resp.NodesRun)
	}
}

func manyMembers(n int) (list []string) {
	for i := range n {
		list = append(list, fmt.Sprintf(`,"m%d":"$.x"`, i))
	}
	return list
}
