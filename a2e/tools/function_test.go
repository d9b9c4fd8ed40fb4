// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package tools_test

import (
	"context"
	"encoding/json"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/a2e"
	"github.com/fivewire/fivewire/a2e/a2etest"
	"github.com/fivewire/fivewire/a2e/toolkits"
	"github.com/fivewire/fivewire/a2e/tools"
)

type row struct {
	ID   int    `json:"id"`
	Note string `json:"note,omitempty"`
}

type search struct {
	Tags  []string         `json:"tags,omitempty" jsonschema:"words to find"`
	Rows  []row            `json:"rows,omitempty"`
	Grid  [][]int          `json:"grid,omitempty"`
	Maybe []*int           `json:"maybe,omitempty"`
	Port  uint16           `json:"port,omitempty"`
	Sizes map[string]int32 `json:"sizes,omitempty"`
	Data  []byte           `json:"data,omitempty"`
	Host  netip.Addr       `json:"host,omitzero"`
	At    time.Time        `json:"at,omitzero"`
}

type found struct {
	Rows  []row          `json:"rows" jsonschema:"the rows"`
	Score float64        `json:"score"`
	Host  netip.Addr     `json:"host"`
	More  map[string]any `json:"more,omitempty"`
}

// searchTool returns a client of a tool, and its definition.
func searchTool(t *testing.T) (*tools.Client, tools.Definition) {
	set := a2etest.Must(tools.NewSet(nil))
	tools.AddTool(set, "search", "Finds rows", func(_ context.Context, _ *a2e.Call, in search) (found, error) {
		return found{Rows: in.Rows, Host: in.Host}, nil
	}, nil)
	tools.AddTool(set, "count", "", func(context.Context, *a2e.Call, struct{}) (int, error) { return 7, nil }, nil)
	tools.AddTool(set, "free", "", func(context.Context, *a2e.Call, struct{}) (any, error) { return nil, nil }, nil)
	tools.AddTool(set, "whole", "", func(context.Context, *a2e.Call, struct{}) (*tools.Result, error) {
		return &tools.Result{Success: true}, nil
	}, nil)
	c, err := tools.NewClient(a2etest.Connect(t, a2etest.NewHost(t, nil).AddPlugin(set.Plugin()), nil))
	require.NoError(t, err)
	list, err := c.List(t.Context(), nil, nil)
	require.NoError(t, err)
	require.Len(t, list.Tools, 4)
	require.JSONEq(t, `{"type":"integer"}`, string(list.Tools[1].Extra.Get("output_schema")))
	require.Empty(t, list.Tools[1].OutputParameters)
	require.Nil(t, list.Tools[2].Extra.Get("output_schema"), "any value")
	require.Nil(t, list.Tools[3].Extra.Get("output_schema"))
	return c, list.Tools[0]
}

// A definition lists the elements of arrays, the results, and the whole schemas (A2E-D68).
func TestDefinitionOfFunction(t *testing.T) {
	_, d := searchTool(t)
	in := map[string]tools.Parameter{}
	for _, p := range d.InputParameters {
		in[p.Name] = p
	}
	require.Equal(t, "words to find", in["tags"].Description)
	require.JSONEq(t, `{"type":"string"}`, string(in["tags"].Extra.Get("items")))
	require.JSONEq(t, `{"type":"object","properties":{"id":{"name":"id","type":"integer","description":"","required":true},`+
		`"note":{"name":"note","type":"string","description":"","required":false}}}`, string(in["rows"].Extra.Get("items")))
	for _, name := range []string{"grid", "maybe", "port"} {
		require.Nil(t, in[name].Extra.Get("items"), name)
	}
	require.Equal(t, []string{"string", "string", "string"}, []string{in["data"].Type, in["host"].Type, in["at"].Type})
	require.Len(t, d.OutputParameters, 4)
	require.Equal(t, "rows", d.OutputParameters[0].Name)
	require.Equal(t, "the rows", d.OutputParameters[0].Description)
	require.False(t, d.OutputParameters[0].Required, "a nil slice is null")
	require.True(t, d.OutputParameters[1].Required)
	require.NotNil(t, d.OutputParameters[0].Extra.Get("items"))
	require.JSONEq(t, `"string"`, string(member(t, d.Extra.Get("output_schema"), "properties", "host", "type")))
	require.JSONEq(t, `"integer"`, string(member(t, d.Extra.Get("input_schema"), "properties", "rows", "items", "properties", "id", "type")))
	require.JSONEq(t, `"array"`, string(member(t, d.Extra.Get("input_schema"), "properties", "rows", "type")))
	require.JSONEq(t, `["null","array"]`, string(member(t, d.Extra.Get("output_schema"), "properties", "rows", "type")))
	require.JSONEq(t, `["null","object"]`, string(member(t, d.Extra.Get("output_schema"), "properties", "more", "type")))
	require.JSONEq(t, `65535`, string(member(t, d.Extra.Get("input_schema"), "properties", "port", "maximum")))
}

func member(t *testing.T, raw json.RawMessage, path ...string) json.RawMessage {
	for _, name := range path {
		var object map[string]json.RawMessage
		require.NoError(t, json.Unmarshal(raw, &object), name)
		raw = object[name]
	}
	return raw
}

// A violation names the innermost part, and the wanted and the received type or value (A2E-D68).
func TestViolationsOfArguments(t *testing.T) {
	c, _ := searchTool(t)
	for arguments, want := range map[string]struct{ field, reason, text string }{
		`{"tags":["a",5]}`:           {"arguments.tags[1]", "type", "arguments.tags[1] has another type, want string, got number"},
		`{"tags":[null]}`:            {"arguments.tags[0]", "type", "arguments.tags[0] has another type, want string, got null"},
		`{"tags":"a"}`:               {"arguments.tags", "type", "arguments.tags has another type, want array, got string"},
		`{"rows":[{"id":1},{}]}`:     {"arguments.rows[1].id", "required", "arguments.rows[1].id is required, want integer"},
		`{"grid":[[1],[2,"x"]]}`:     {"arguments.grid[1][1]", "type", "arguments.grid[1][1] has another type, want integer, got string"},
		`{"maybe":[null,"x"]}`:       {"arguments.maybe[1]", "type", "arguments.maybe[1] has another type, want null or integer, got string"},
		`{"port":70000}`:             {"arguments.port", "value", "arguments.port has a value that is not allowed, want 0 to 65535, got 70000"},
		`{"sizes":{"a":1,"b":true}}`: {"arguments.sizes.b", "type", "arguments.sizes.b has another type, want integer, got boolean"},
		`{"host":"nowhere"}`:         {"arguments", "value", `arguments has a value that is not allowed: ParseAddr("nowhere"): unable to parse IP`},
		`{"rows":[{"id":1e30}]}`:     {"arguments.rows[0].id", "value", "arguments.rows[0].id has a value that is not allowed, want int, got 1e30"},
	} {
		_, err := c.Call(t.Context(), &tools.CallRequest{ToolName: "search", Arguments: json.RawMessage(arguments)}, nil)
		var e *a2e.Error
		require.ErrorAs(t, err, &e, arguments)
		require.ErrorIs(t, err, a2e.ErrSchemaViolation)
		require.Equal(t, []string{want.field, want.reason, want.text}, []string{e.Field, e.Reason, e.Message}, arguments)
	}
	resp, err := c.Call(t.Context(), &tools.CallRequest{ToolName: "search", Arguments: json.RawMessage(
		`{"rows":[{"id":1,"note":null,"unknown":2}],"grid":[null,[1]],"maybe":[null,1],"data":"AAE=","host":"::1","at":"2026-01-02T03:04:05Z"}`)}, nil)
	require.NoError(t, err)
	require.JSONEq(t, `{"rows":[{"id":1}],"score":0,"host":"::1"}`, string(resp.Data.Data))
	enum := []tools.Parameter{{Name: "mode", Type: "string", Enum: []string{"a", "b"}}}
	err = tools.ValidateArguments(enum, json.RawMessage(`{"mode":"c"}`))
	require.ErrorContains(t, err, "arguments.mode has a value that is not allowed, want one of a, b, got c")
	require.ErrorContains(t, tools.ValidateArguments(enum, json.RawMessage(`[]`)), "want object, got array")
}

// The tools of a toolkit appear in the sessions that have configured it (A2E-D68).
func TestToolsOfToolkits(t *testing.T) {
	set := a2etest.Must(tools.NewSet(nil))
	for _, name := range []string{"send", "both", "fixed", "plain"} {
		tools.AddTool(set, name, "", func(context.Context, *a2e.Call, struct{}) (string, error) { return name, nil }, nil)
	}
	kits, err := toolkits.NewPlugin([]toolkits.Toolkit{
		{Definition: toolkits.Definition{Name: "mail", Tools: []string{"send", "both"}, Schema: json.RawMessage(`{"required":["key"]}`)}},
		{Definition: toolkits.Definition{Name: "other", Tools: []string{"both"}}},
		{Definition: toolkits.Definition{Name: "ready", Tools: []string{"fixed"}, Configured: true}},
	}, nil)
	require.NoError(t, err)
	h := a2etest.NewHost(t, nil).AddPlugin(set.Plugin()).AddPlugin(kits)
	agent := a2etest.Connect(t, h, nil)
	names := func(agent *a2e.Client) (names []string) {
		c, err := tools.NewClient(agent)
		require.NoError(t, err)
		list, err := c.List(t.Context(), nil, nil)
		require.NoError(t, err)
		for i := range list.Tools {
			names = append(names, list.Tools[i].Name)
		}
		return names
	}
	configure := func(name, config, status string) {
		c, err := toolkits.NewClient(agent)
		require.NoError(t, err)
		resp, err := c.Configure(t.Context(), &toolkits.ConfigureRequest{ToolkitName: name, Config: json.RawMessage(config)}, nil)
		require.Equal(t, status != toolkits.StatusOK, err != nil)
		require.Equal(t, status, resp.Status)
	}
	require.Equal(t, []string{"fixed", "plain"}, names(agent))
	_, err = tools.CallAs[string](t.Context(), agent, "send", nil, nil)
	var e *a2e.Error
	require.ErrorAs(t, err, &e)
	require.Equal(t, []string{string(a2e.ErrToolDenied), "not_configured"}, []string{string(e.Code), e.Reason})
	configure("mail", `{}`, toolkits.StatusError)
	require.Equal(t, []string{"fixed", "plain"}, names(agent))
	configure("other", `{}`, toolkits.StatusOK)
	require.Equal(t, []string{"both", "fixed", "plain"}, names(agent))
	configure("mail", `{"key":"k"}`, toolkits.StatusOK)
	require.Equal(t, []string{"send", "both", "fixed", "plain"}, names(agent))
	got, err := tools.CallAs[string](t.Context(), agent, "send", nil, nil)
	require.NoError(t, err)
	require.Equal(t, "send", got)
	require.Equal(t, []string{"fixed", "plain"}, names(a2etest.Connect(t, h, nil)), "sessions share no configuration")
}
