// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package chains_test

import (
	"context"
	"encoding/json"
	"errors"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/fivewire/fivewire/a2e"
	"github.com/fivewire/fivewire/a2e/a2etest"
	"github.com/fivewire/fivewire/a2e/chains"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func connect(t *testing.T) *chains.Client {
	h := a2etest.NewHost(t, nil).AddPlugin(a2etest.Must(chains.NewPlugin(&chains.Options{MaxItems: 3, MaxNodes: 10,
		Tool: func(ctx context.Context, _ *a2e.Call, name string, input json.RawMessage) (json.RawMessage, error) {
			switch name {
			case "fail":
				return nil, a2e.Errorf(a2e.ErrUnknownTool, "no such tool")
			case "break":
				return nil, errors.New("broken")
			case "garbled":
				return nil, errors.New("exit 1: \xff\xfe!")
			case "panic":
				panic("as told")
			case "exit":
				runtime.Goexit()
			case "wait":
				<-ctx.Done()
				return nil, ctx.Err()
			case "none":
				return nil, nil
			}
			return input, nil
		}})))
	c, err := chains.NewClient(a2etest.Connect(t, h, nil))
	require.NoError(t, err)
	return c
}

func node(id, name, next string, change func(*chains.Node)) chains.Node {
	n := new(chains.Node)
	n.NodeID, n.Kind, n.Name, n.NextNode = id, chains.NodeTool, name, next
	if change != nil {
		change(n)
	}
	return *n
}

func run(t *testing.T, c *chains.Client, input string, events *[]a2e.Event, nodes ...chains.Node) (*chains.Response, error) {
	r := new(chains.Request)
	r.ChainID, r.Nodes, r.EntryNode, r.InitialInput = "c0ffee00", nodes, nodes[0].NodeID, json.RawMessage(input)
	return checked(t)(c.Run(t.Context(), r, &a2e.CallOptions{OnEvent: func(e a2e.Event) {
		if events != nil {
			*events = append(*events, e)
		}
	}}))
}

// checked returns the answer of a failed chain without its error, which it checks.
func checked(t *testing.T) func(resp *chains.Response, err error) (*chains.Response, error) {
	return func(resp *chains.Response, err error) (*chains.Response, error) {
		if resp == nil || resp.Success {
			return resp, err
		}
		var want struct {
			Code            a2e.Code
			Message, Reason string
		}
		require.NoError(t, json.Unmarshal(resp.Error, &want))
		var e *a2e.Error
		require.ErrorAs(t, err, &e)
		require.Equal(t, []string{string(want.Code), want.Message, want.Reason}, []string{string(e.Code), e.Message, e.Reason})
		require.True(t, e.Remote)
		var details struct{ Outputs json.RawMessage }
		require.NoError(t, json.Unmarshal(e.Details, &details))
		require.Equal(t, string(resp.Outputs), string(details.Outputs))
		return resp, nil
	}
}

// A chain with tools, a branch and a map over a list (A2E-117, A2E-118, A2E-119,
// A2E-121).
func TestRun(t *testing.T) {
	c := connect(t)
	var events []a2e.Event
	resp, err := run(t, c, `{"list":[1,2,3],"go":true}`, &events,
		node("first", "echo", "choose", func(n *chains.Node) { n.InputMap = json.RawMessage(`{"all":"$.list","word":"x","deep":"$.list.1"}`) }),
		node("choose", "", "", func(n *chains.Node) {
			n.Kind, n.Condition, n.TrueNode, n.FalseNode = chains.NodeBranch, "$.go == true", "each", "never"
		}),
		node("each", "", "", func(n *chains.Node) { n.Kind, n.ItemsPath, n.MapNode = chains.NodeMap, "$.first.all", "one" }),
		node("one", "echo", "", func(n *chains.Node) { n.InputMap = json.RawMessage(`{"v":"$.item"}`) }),
		node("never", "fail", "", nil))
	require.NoError(t, err)
	require.True(t, resp.Success)
	require.JSONEq(t, `[{"v":1},{"v":2},{"v":3}]`, string(resp.FinalOutput))
	require.JSONEq(t, `{"first":{"all":[1,2,3],"word":"x","deep":2},"choose":true,"each":[{"v":1},{"v":2},{"v":3}]}`, string(resp.Outputs))
	require.EqualValues(t, 3, resp.NodesRun)
	require.Len(t, events, 6)
	for i, e := range events {
		body := e.Message.Body.(*chains.Event)
		require.EqualValues(t, i, body.Seq)
		require.Equal(t, []string{"start", "done"}[i%2], body.Phase)
		require.Equal(t, e.Header().ReqID, resp.ReqID)
	}
}

// on_error selects the step after a failure (A2E-120).
func TestOnError(t *testing.T) {
	c := connect(t)
	resp, err := run(t, c, `{}`, nil, node("a", "fail", "b", nil), node("b", "echo", "", nil))
	require.NoError(t, err)
	require.False(t, resp.Success)
	require.JSONEq(t, `{"code":"unknown_tool","message":"no such tool"}`, string(resp.Error))
	resp, err = run(t, c, `{}`, nil, node("a", "break", "b", func(n *chains.Node) { n.OnError = "skip" }), node("b", "none", "", nil))
	require.NoError(t, err)
	require.True(t, resp.Success)
	require.JSONEq(t, `{"b":null}`, string(resp.Outputs))
	var events []a2e.Event
	resp, err = run(t, c, `{}`, &events, node("a", "break", "b", func(n *chains.Node) { n.OnError = "c" }), node("b", "echo", "", nil),
		node("c", "echo", "", func(n *chains.Node) { n.Input = json.RawMessage(`{"literal":1}`) }))
	require.NoError(t, err)
	require.JSONEq(t, `{"literal":1}`, string(resp.FinalOutput))
	require.Equal(t, "error", events[1].Message.Body.(*chains.Event).Phase)
	resp, err = run(t, c, `{}`, &events, node("a", "garbled", "", nil))
	require.NoError(t, err)
	require.JSONEq(t, `{"code":"chain_node_error","message":"exit 1: !"}`, string(resp.Error))
	require.Equal(t, "exit 1: !", events[len(events)-1].Message.Body.(*chains.Event).Error)
	resp, err = run(t, c, `{}`, nil, node("a", "", "", func(n *chains.Node) { n.Kind = chains.NodeSkill }))
	require.NoError(t, err)
	require.Contains(t, string(resp.Error), "chain_node_error")
}

func TestMapFails(t *testing.T) {
	c := connect(t)
	each := func(path, tool string) []chains.Node {
		return []chains.Node{
			node("each", "", "", func(n *chains.Node) { n.Kind, n.ItemsPath, n.MapNode = chains.NodeMap, path, "one" }),
			node("one", tool, "", nil),
		}
	}
	for _, nodes := range [][]chains.Node{each("$.none", "echo"), each("$.long", "echo"), each("$.list", "panic"), each("$.list", "fail"), each("$.list", "exit"),
		{node("each", "", "", func(n *chains.Node) { n.Kind, n.ItemsPath, n.MapNode = chains.NodeMap, "$.list", "one" }),
			node("one", "", "", func(n *chains.Node) { n.Kind = chains.NodeBranch })}} {
		resp, err := run(t, c, `{"list":[1,2],"long":[1,2,3,4]}`, nil, nodes...)
		require.NoError(t, err)
		require.False(t, resp.Success)
	}
	resp, err := run(t, c, `{"list":[1,2]}`, nil, each("$.list", "echo")...)
	require.NoError(t, err)
	require.JSONEq(t, `[{"item":1},{"item":2}]`, string(resp.FinalOutput))
}

// Structural defects are errors before anything runs, and a chain has a time limit
// (A2E-116, A2E-153, A2E-D28).
func TestRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := connect(t)
		var events []a2e.Event
		_, err := run(t, c, `{}`, &events, node("a", "echo", "b", nil), node("b", "echo", "a", nil))
		require.ErrorIs(t, err, a2e.ErrChainCycle)
		require.Empty(t, events)
		for field, nodes := range map[string][]chains.Node{
			"nodes[1].node_id":   {node("a", "", "", nil), node("a", "", "", nil)},
			"nodes[0].kind":      {node("a", "", "", func(n *chains.Node) { n.Kind = "magic" })},
			"nodes[0].map_node":  {node("a", "", "", func(n *chains.Node) { n.Kind = "map" })},
			"nodes[0].next_node": {node("a", "", "zz", nil)},
			"nodes[0].on_error":  {node("a", "", "", func(n *chains.Node) { n.OnError = "zz" })},
		} {
			_, err := run(t, c, `{}`, nil, nodes...)
			var e *a2e.Error
			require.ErrorAs(t, err, &e)
			require.Equal(t, field, e.Field)
		}
		many := []chains.Node{}
		for i := range 11 {
			many = append(many, node(string(rune('a'+i)), "echo", "", nil))
		}
		_, err = run(t, c, `{}`, nil, many...)
		require.ErrorIs(t, err, a2e.ErrSchemaViolation)
		start := time.Now()
		_, err = run(t, c, `{}`, nil, node("a", "wait", "", nil))
		require.ErrorIs(t, err, a2e.ErrTimeout)
		require.Equal(t, 300*time.Second, time.Since(start))
	})
}

// A map node runs MaxConcurrent items at a time, 4 by default, and its outputs have the order of the items (A2E-D48).
func TestMapRunsItemsAtATime(t *testing.T) {
	for limit, want := range map[int]int{0: 4, 1: 1, 3: 3, -1: 10} {
		synctest.Test(t, func(t *testing.T) {
			var mu sync.Mutex
			running, peak := 0, 0
			count := func(n int) {
				mu.Lock()
				defer mu.Unlock()
				running += n
				peak = max(peak, running)
			}
			p := a2etest.Must(chains.NewPlugin(&chains.Options{MaxConcurrent: limit,
				Tool: func(_ context.Context, _ *a2e.Call, _ string, input json.RawMessage) (json.RawMessage, error) {
					count(1)
					defer count(-1)
					time.Sleep(time.Duration(len(input)) * time.Second)
					return input, nil
				}}))
			c := a2etest.Must(chains.NewClient(a2etest.Connect(t, a2etest.NewHost(t, nil, p), nil)))
			each := node("each", "", "", func(n *chains.Node) { n.Kind, n.ItemsPath, n.MapNode = chains.NodeMap, "$.list", "one" })
			resp, err := run(t, c, `{"list":[1000,2,3,4,5,6,7,8,9,10]}`, nil, each, node("one", "", "", nil))
			require.NoError(t, err)
			var outputs []struct{ Item int }
			require.NoError(t, json.Unmarshal(resp.FinalOutput, &outputs))
			require.Equal(t, []struct{ Item int }{{1000}, {2}, {3}, {4}, {5}, {6}, {7}, {8}, {9}, {10}}, outputs)
			require.Equal(t, want, peak, "limit %d", limit)
		})
	}
}
