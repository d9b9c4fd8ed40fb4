// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package tools_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/fivewire/fivewire/a2e"
	"github.com/fivewire/fivewire/a2e/a2etest"
	"github.com/fivewire/fivewire/a2e/tools"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type addIn struct {
	A    json.Number `json:"a" jsonschema:"the first number"`
	B    int64       `json:"b"`
	Mode string      `json:"mode,omitempty"`
	Deep *struct {
		X int `json:"x"`
	} `json:"deep,omitempty"`
}

type addOut struct {
	Sum  string `json:"sum"`
	Mode string `json:"mode"`
}

func newHost(t *testing.T) (*tools.Set, *tools.Client) {
	set := a2etest.Must(tools.NewSet(&tools.Options{Authorizer: func(_ context.Context, call *a2e.Call, d *tools.Definition, _ json.RawMessage) bool {
		return d.Name != "secret"
	}}))
	tools.AddTool(set, "add", "Add numbers", func(_ context.Context, call *a2e.Call, in addIn) (addOut, error) {
		if in.B == 13 {
			return addOut{}, errors.New("unlucky")
		}
		return addOut{Sum: in.A.String() + "+" + string(rune('0'+in.B)), Mode: in.Mode}, call.Emit(a2e.EventProgress, map[string]int{"pct": 100})
	}, func(d *tools.Definition) { d.Tags = []string{"Math"}; d.Idempotent = true })
	tools.AddTool(set, "secret", "Hidden", func(context.Context, *a2e.Call, struct{}) (any, error) { return nil, nil },
		func(d *tools.Definition) { d.DeferLoading = true })
	c := a2etest.Connect(t, a2etest.NewHost(t, nil).AddPlugin(set.Plugin()), nil)
	client, err := tools.NewClient(c)
	require.NoError(t, err)
	return set, client
}

// A tool is a Go function: parameters from its struct, arguments held against
// them and the schema (A2E-029, A2E-082, A2E-084, A2E-085).
func TestAddFunc(t *testing.T) {
	set, c := newHost(t)
	d := set.Definitions()[0]
	require.Len(t, d.InputParameters, 4)
	require.Equal(t, "a", d.InputParameters[0].Name)
	require.Equal(t, "number", d.InputParameters[0].Type)
	require.Equal(t, "the first number", d.InputParameters[0].Description)
	require.True(t, d.InputParameters[0].Required)
	require.False(t, d.InputParameters[2].Required)
	require.Equal(t, "x", d.InputParameters[3].Properties[0].Name)

	call := func(args string, streaming bool) (*tools.CallResponse, []a2e.Event, error) {
		r := new(tools.CallRequest)
		r.ToolName, r.Arguments, r.Streaming, r.CorrelationID = "add", json.RawMessage(args), streaming, "turn-1"
		var events []a2e.Event
		resp, err := c.Call(t.Context(), r, &a2e.CallOptions{OnEvent: func(e a2e.Event) { events = append(events, e) }})
		return resp, events, err
	}
	resp, events, err := call(`{"a":123456789012345678901234567890,"b":2,"mode":null,"unknown":1}`, true)
	require.NoError(t, err)
	require.NoError(t, resp.Data.Err())
	require.JSONEq(t, `{"sum":"123456789012345678901234567890+2","mode":""}`, string(resp.Data.Data))
	require.NotNil(t, resp.CreatedAt)
	require.Len(t, events, 1)
	require.Equal(t, "progress", events[0].Header().Kind)
	_, events, err = call(`{"a":1,"b":2}`, false)
	require.NoError(t, err)
	require.Empty(t, events)

	for args, field := range map[string]string{
		`{"b":2}`:                       "arguments.a",
		`{"a":"1","b":2}`:               "arguments.a",
		`{"a":1,"b":2.5}`:               "arguments.b",
		`{"a":1,"b":2,"deep":{}}`:       "arguments.deep.x",
		`{"a":1,"b":1e30}`:              "arguments.b",
		`{"a":1,"b":2,"deep":{"x":{}}}`: "arguments.deep.x",
	} {
		_, _, err = call(args, false)
		var e *a2e.Error
		require.ErrorAs(t, err, &e, args)
		require.Equal(t, a2e.ErrSchemaViolation, e.Code, args)
		require.Equal(t, field, e.Field, args)
		require.Equal(t, "tools", e.Capability)
	}
	_, _, err = call(`{"a":1,"b":13}`, false)
	var e *a2e.Error
	require.ErrorAs(t, err, &e)
	require.ErrorIs(t, err, a2e.ErrTool)
	require.Equal(t, "unlucky", e.Message)
	require.True(t, e.Retryable, "the tool is idempotent (A2E-086)")
}

// Deferred tools are found only by asking for them (A2E-078, A2E-079, A2E-080,
// A2E-081).
func TestListAndPolicy(t *testing.T) {
	set, c := newHost(t)
	list, err := c.List(t.Context(), nil, nil)
	require.NoError(t, err)
	require.Len(t, list.Tools, 1)
	r := new(tools.ListRequest)
	r.IncludeDeferred, r.Query = true, "HIDD"
	list, err = c.List(t.Context(), r, nil)
	require.NoError(t, err)
	require.Equal(t, "secret", list.Tools[0].Name)
	r.Query, r.FilterTags = "", []string{"mATH"}
	list, err = c.List(t.Context(), r, nil)
	require.NoError(t, err)
	require.Equal(t, "add", list.Tools[0].Name)

	q := new(tools.CallRequest)
	q.ToolName, q.Arguments = "secret", json.RawMessage(`{}`)
	_, err = c.Call(t.Context(), q, nil)
	require.ErrorIs(t, err, a2e.ErrToolDenied)
	set.Remove("secret")
	_, err = c.Call(t.Context(), q, nil)
	require.ErrorIs(t, err, a2e.ErrUnknownTool)
	require.Panics(t, func() { set.Add(tools.Tool{}) })
	require.Panics(t, func() { set.Add(tools.Tool{Definition: tools.Definition{Name: "add"}}) })
}

func TestSearchKind(t *testing.T) {
	var with a2e.Members
	require.NoError(t, with.Set("kind", "shell"))
	list := []tools.Definition{{Name: "a", Extra: with}, {Name: "b"}}
	found := tools.FilterDefinitions(list, &tools.ListRequest{FilterKind: "web"})
	require.Len(t, found, 1, "tools without a kind pass (A2E-D33)")
	require.Equal(t, "b", found[0].Name)
	require.Len(t, tools.FilterDefinitions(list, &tools.ListRequest{FilterKind: "shell"}), 2)
}

func TestResultErr(t *testing.T) {
	text, code := "broken", "custom_code"
	err := (&tools.Result{Error: &text, ErrorCode: &code}).Err()
	require.ErrorIs(t, err, a2e.Code("custom_code"))
	require.ErrorContains(t, err, "broken")
	require.NoError(t, (&tools.Result{Success: true}).Err())
}

// The tools of a session may be the same list each time: it is not changed.
func TestSessionToolsStay(t *testing.T) {
	run := func(context.Context, *a2e.Call, json.RawMessage) (any, error) { return nil, nil }
	own := func(name string) tools.Tool { return tools.Tool{Definition: tools.Definition{Name: name}, Run: run} }
	list := []tools.Tool{own("taken"), own("mine")}
	set := a2etest.Must(tools.NewSet(&tools.Options{SessionTools: func(context.Context, *a2e.Call) []tools.Tool { return list }}))
	set.Add(own("taken"))
	c, err := tools.NewClient(a2etest.Connect(t, a2etest.NewHost(t, nil).AddPlugin(set.Plugin()), nil))
	require.NoError(t, err)
	for range 2 {
		resp, err := c.List(t.Context(), nil, nil)
		require.NoError(t, err)
		require.Len(t, resp.Tools, 2)
	}
	require.Equal(t, "taken", list[0].Definition.Name)
	require.Equal(t, "mine", list[1].Definition.Name)
}

// Null means absent at every depth of the parameters (A2E-D32), and is kept where
// there are none.
func TestNestedNulls(t *testing.T) {
	type inner struct {
		N int             `json:"n,omitempty"`
		X json.RawMessage `json:"x,omitempty"`
	}
	type input struct {
		In   inner          `json:"in"`
		Free map[string]any `json:"free,omitempty"`
	}
	set := a2etest.Must(tools.NewSet(nil))
	tools.AddTool(set, "nested", "Takes an object", func(_ context.Context, _ *a2e.Call, in input) (input, error) { return in, nil }, nil)
	c, err := tools.NewClient(a2etest.Connect(t, a2etest.NewHost(t, nil).AddPlugin(set.Plugin()), nil))
	require.NoError(t, err)
	r := new(tools.CallRequest)
	r.ToolName, r.Arguments = "nested", json.RawMessage(`{"in":{"n":null},"free":{"a":null}}`)
	resp, err := c.Call(t.Context(), r, nil)
	require.NoError(t, err)
	require.JSONEq(t, `{"in":{},"free":{"a":null}}`, string(resp.Data.Data))
}

// Strict mode holds for events inside results.
func TestStrictCodecRefusesDialectsOfEventsInResults(t *testing.T) {
	const hex = "3F2504E04f8941d39a0c0305e82c3301"
	line := func(version, id string) []byte {
		return fmt.Appendf(nil, `{"a2e":"1.0","type":"tool/call/resp","id":%q,"ts":1,"req_id":%q,"data":{"success":true,"tool_name":"t",`+
			`"duration_ms":1,"events":[{%q:"1.0","type":"event/progress","id":%q,"ts":1,"kind":"progress","req_id":%q,"data":{}}]}}`,
			hex, hex, version, id, hex)
	}
	strict, lenient := a2e.NewCodec(tools.Types()...), a2e.NewCodec(tools.Types()...)
	strict.Strict = true
	for _, tt := range []struct{ version, id, field string }{
		{"a2e", hex, ""}, {"version", hex, "data.events[0].a2e"}, {"a2e", "e1", "data.events[0].id"},
	} {
		_, err := lenient.Decode(line(tt.version, tt.id))
		require.NoError(t, err)
		_, err = strict.Decode(line(tt.version, tt.id))
		if tt.field == "" {
			require.NoError(t, err)
			continue
		}
		var e *a2e.Error
		require.ErrorAs(t, err, &e)
		require.Equal(t, tt.field, e.Field)
	}
}

// CallAs encodes the arguments and decodes the result; it returns the result of a failed tool too.
func TestCallAs(t *testing.T) {
	set := a2etest.Must(tools.NewSet(nil))
	tools.AddTool(set, "double", "", func(_ context.Context, call *a2e.Call, in struct{ N int }) (map[string]int, error) {
		return map[string]int{"n": 2 * in.N}, call.Emit(a2e.EventProgress, map[string]int{"pct": 50})
	}, nil)
	reason := "broken"
	for name, result := range map[string]any{
		"partly":  &tools.Result{ToolName: "partly", Data: json.RawMessage(`{"n":1}`), Error: &reason},
		"wrong":   &tools.Result{ToolName: "wrong", Data: json.RawMessage(`["no object"]`), Error: &reason},
		"nothing": nil,
		"text":    "no number",
	} {
		set.Add(tools.Tool{Definition: tools.Definition{Name: name}, Run: func(context.Context, *a2e.Call, json.RawMessage) (any, error) {
			return result, nil
		}})
	}
	c := a2etest.Connect(t, a2etest.NewHost(t, nil).AddPlugin(set.Plugin()), nil)
	type out struct {
		N int `json:"n"`
	}
	events := 0
	got, err := tools.CallAs[out](t.Context(), c, "double", struct{ N int }{21}, &a2e.CallOptions{OnEvent: func(a2e.Event) { events++ }})
	require.NoError(t, err)
	require.Equal(t, out{42}, got)
	require.Equal(t, 1, events)
	got, err = tools.CallAs[out](t.Context(), c, "partly", nil, nil)
	require.ErrorIs(t, err, a2e.ErrTool)
	require.ErrorContains(t, err, "broken")
	require.Equal(t, out{1}, got)
	_, err = tools.CallAs[out](t.Context(), c, "wrong", nil, nil)
	require.ErrorIs(t, err, a2e.ErrTool)
	got, err = tools.CallAs[out](t.Context(), c, "nothing", map[string]any{}, nil)
	require.NoError(t, err)
	require.Zero(t, got)
	_, err = tools.CallAs[int](t.Context(), c, "text", nil, nil)
	require.ErrorContains(t, err, "tools: result of text: ")
	_, err = tools.CallAs[out](t.Context(), c, "double", func() {}, nil)
	require.ErrorContains(t, err, "tools: arguments of double: ")
	_, err = tools.CallAs[out](t.Context(), c, "missing", nil, nil)
	require.ErrorIs(t, err, a2e.ErrUnknownTool)
}

// The time limit of a call is that of its request, too.
func TestCallAsTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		set := a2etest.Must(tools.NewSet(nil))
		tools.AddTool(set, "slow", "", func(ctx context.Context, _ *a2e.Call, _ struct{}) (string, error) {
			select {
			case <-time.After(35 * time.Second):
				return "done", nil
			case <-ctx.Done():
				return "", ctx.Err()
			}
		}, nil)
		c := a2etest.Connect(t, a2etest.NewHost(t, nil).AddPlugin(set.Plugin()), nil)
		_, err := tools.CallAs[string](t.Context(), c, "slow", nil, nil)
		require.ErrorIs(t, err, a2e.ErrTimeout, "30 s")
		_, err = tools.CallAs[string](t.Context(), c, "slow", nil, &a2e.CallOptions{Timeout: time.Minute})
		require.NoError(t, err)
		start := time.Now()
		_, err = tools.CallAs[string](t.Context(), c, "slow", nil, &a2e.CallOptions{Timeout: 1500 * time.Millisecond})
		require.Error(t, err)
		require.Equal(t, 1500*time.Millisecond, time.Since(start))
	})
}

// The items of a parameter are read once, not for each array.
func TestItemsAreReadOnce(t *testing.T) {
	extra := a2e.Members{}
	require.NoError(t, extra.Set("items", json.RawMessage(`{"type":"array","items":{"type":"object","properties":{"a":{"name":"a","type":"string","description":""}}}}`)))
	parameters := []tools.Parameter{{Name: "x", Type: "array", Extra: extra}}
	arguments := json.RawMessage(`{"x":[` + strings.Repeat("[],", 1000) + `[{"a":"b"}]]}`)
	allocs := testing.AllocsPerRun(5, func() { require.NoError(t, tools.ValidateArguments(parameters, arguments)) })
	require.Less(t, allocs, 4000.0)
}
