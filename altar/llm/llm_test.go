// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package llm

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/altar"
	"github.com/fivewire/fivewire/altar/internal/form"
	"github.com/fivewire/fivewire/internal/testkit"
)

type row struct {
	SKU string `json:"sku"`
	Qty int64  `json:"qty"`
}

// everything has a field of every type of parameter.
type everything struct {
	S    string            `json:"s"`
	I    int64             `json:"i"`
	F    float64           `json:"f"`
	B    bool              `json:"b"`
	Bin  []byte            `json:"bin"`
	Tags []string          `json:"tags"`
	Grid [][]int           `json:"grid"`
	Who  *row              `json:"who,omitempty"`
	Free json.RawMessage   `json:"free"`
	Map  map[string]string `json:"map"`
	When time.Time         `json:"when"`
}

func TestSchemaOfRoundTrip(t *testing.T) {
	c, err := altar.ContractOf[everything]("t")
	require.NoError(t, err)
	text := SchemaOf(c.Parameters)
	params, err := ParametersOf(text, nil)
	require.NoError(t, err)
	require.Equal(t, c.Parameters, params)
	require.Contains(t, string(text), `"contentEncoding":"base64"`)
	require.Contains(t, string(text), `"format":"int64"`)

	var s jsonschema.Schema
	require.NoError(t, json.Unmarshal(text, &s))
	resolved, err := s.Resolve(nil)
	require.NoError(t, err)
	good := map[string]any{"s": "x", "i": 1, "f": 1.5, "b": true, "bin": "AA==", "tags": []any{}, "grid": []any{}, "free": map[string]any{"z": 1},
		"map": map[string]any{}, "when": "2025-01-01T00:00:00Z"}
	require.NoError(t, resolved.Validate(good))
	good["unknown"] = 1
	require.Error(t, resolved.Validate(good), "closed")
}

func TestParametersOfRefusesConstraints(t *testing.T) {
	for _, tt := range []struct {
		text   string
		reason altar.Reason
		path   string
		column int
	}{
		{`{"type":"object","properties":{"a":{"type":"string","enum":["x"]}}}`, altar.Reason("unsupported_constraint"), "/properties/a/enum", 60},
		{`{"type":"object","properties":{"a":{"type":"integer","minimum":1}}}`, altar.Reason("unsupported_constraint"), "/properties/a/minimum", 64},
		{`{"type":"object","properties":{"a":{"type":"object","additionalProperties":{"type":"string"}}}}`,
			altar.Reason("unsupported_constraint"), "/properties/a/additionalProperties", 76},
		{`{"type":"object","unevaluatedProperties":{"type":"string"}}`, altar.Reason("unsupported_constraint"), "/unevaluatedProperties", 42},
		{`{"type":"object","dependencies":{"a":["b"]}}`, altar.Reason("unsupported_constraint"), "/dependencies", 33},
		{`{"type":"object","properties":{"a":{"$ref":"#/x"}}}`, altar.Reason("unsupported_constraint"), "/properties/a/$ref", 44},
		{`{"type":"object","properties":{"a":{"type":"string","pattern":"^-?(0|[1-9][0-9]{0,18})$"}}}`,
			altar.Reason("unsupported_constraint"), "/properties/a/pattern", 63},
		{`{"type":"object","properties":{"a":{"type":["string","integer"]}}}`, altar.Reason("invalid_type"), "/properties/a/type", 44},
		{`{"type":"object","properties":{"a":true}}`, altar.Reason("invalid_type"), "/properties/a/type", 36},
		{`{"type":"object","properties":{"a":{"type":["string","null"],"const":null}}}`, altar.Reason("unsupported_constraint"), "/properties/a/const", 70},
		{`{"type":"object","properties":{"a":{"type":"array"}}}`, altar.Reason("missing_field"), "/properties/a/items", 36},
		{`{"type":"object","required":["a"]}`, altar.Reason("invalid_value"), "/required/0", 30},
		{`{"type":"object","properties":[]}`, altar.Reason("wrong_type"), "/properties", 31},
		{`{"type":"string"}`, altar.Reason("invalid_type"), "/type", 9},
		{`[]`, altar.Reason("not_an_object"), "", 1},
	} {
		_, err := ParametersOf([]byte(tt.text), nil)
		var e *altar.ContractError
		require.ErrorAs(t, err, &e, tt.text)
		require.Equal(t, altar.ContractError{Reason: tt.reason, Path: tt.path, Line: 1, Column: tt.column}, *e, tt.text)
	}
	params, err := ParametersOf([]byte(`{"type":"object","properties":{"a":{"type":["integer","null"],"minimum":1}}}`), &ParametersOptions{Lossy: true})
	require.NoError(t, err)
	require.Equal(t, []altar.Parameter{{Name: "a", Type: "integer"}}, params)
	params, err = ParametersOf([]byte(`{"type":"object","properties":{"b":{"type":["integer","string"],"format":"int64","pattern":"^[0-9]+$"},`+
		`"a":{"type":"array","items":{"type":"number"},"uniqueItems":false},"o":{"type":"object","additionalProperties":{}}},`+
		`"required":["a"],"additionalProperties":false}`), nil)
	require.NoError(t, err)
	require.Equal(t, []altar.Parameter{{Name: "b", Type: "integer"}, {Name: "a", Type: "array[float]", Required: true}, {Name: "o", Type: "object"}}, params)
}

// ALT-D42: a name for models depends on the contract alone, and no two tools share one.
func TestToolNames(t *testing.T) {
	long := strings.Repeat("x", 64)
	list := []altar.ToolInfo{{Name: "math/add"}, {Name: "math__add"}, {Name: long + "/a"}, {Name: long + "/b"}, {Name: "v1.2"}, {Name: long}, {Name: "_a/b"}}
	tools, err := Tools(list, Anthropic, nil)
	require.NoError(t, err)
	names := map[string]bool{}
	for i, tool := range tools {
		require.Regexp(t, `^[A-Za-z_][A-Za-z0-9_-]{0,63}$`, tool.Name)
		require.Equal(t, list[i].Name, tool.Contract)
		names[tool.Name] = true
		alone, err := Tools(list[i:i+1], Gemini, &ToolsOptions{Strict: true})
		require.NoError(t, err)
		require.Equal(t, tool.Name, alone[0].Name)
	}
	require.Len(t, names, len(list))
	require.Equal(t, "math__add", tools[0].Name)
	require.Equal(t, long, tools[5].Name)

	rewritten := tools[1].Name
	for _, tt := range []struct {
		list []altar.ToolInfo
		want altar.ContractError
	}{
		{[]altar.ToolInfo{{Name: "math__add"}, {Name: "math__add"}}, altar.ContractError{Contract: "math__add", Path: "/name"}},
		{[]altar.ToolInfo{{Name: "a"}, {Name: "b", Parameters: []altar.Parameter{{Name: "x", Type: "array[object]", Properties: []altar.Parameter{
			{Name: "ä b", Type: "string"}, {Name: form.ModelParameter("ä b"), Type: "string"}}}}}},
			altar.ContractError{Contract: "b", Path: "/parameters/0/properties/1/name"}},
	} {
		_, err = Tools(tt.list, Anthropic, nil)
		var e *altar.ContractError
		require.ErrorAs(t, err, &e)
		tt.want.Reason = altar.Reason("duplicate_name")
		require.Equal(t, tt.want, *e)
	}
	require.Equal(t, "math__add_"+rewritten[len(rewritten)-8:], rewritten)
	_, err = Tools(nil, "nobody", nil)
	require.ErrorContains(t, err, `unknown vendor "nobody"`)
}

// ALT-D43: the schemas are JSON Schema, and an instance of them becomes the parameters again.
func TestToolsAndArguments(t *testing.T) {
	params := []altar.Parameter{
		{Name: "n", Type: "array[array[integer]]"},
		{Name: "größe", Type: "object", Properties: []altar.Parameter{{Name: "i/j", Type: "integer", Required: true}}},
		{Name: "free", Type: "array[object]", Description: "anything"},
		{Name: "s", Type: "string", Required: true},
	}
	for _, vendor := range []Vendor{OpenAIChat, OpenAIResponses, Anthropic, Gemini} {
		for _, strict := range []bool{false, true} {
			tools, err := Tools([]altar.ToolInfo{{Name: "t", Parameters: params}}, vendor, &ToolsOptions{Strict: strict})
			require.NoError(t, err)
			text, err := json.Marshal(tools)
			require.NoError(t, err)
			require.Equal(t, "["+string(tools[0].JSON)+"]", string(text))
			var parts struct {
				Schema     *jsonschema.Schema `json:"input_schema"`
				JSONSchema *jsonschema.Schema `json:"parametersJsonSchema"`
				Parameters *jsonschema.Schema `json:"parameters"`
				Function   struct {
					Parameters *jsonschema.Schema `json:"parameters"`
				} `json:"function"`
			}
			require.NoError(t, json.Unmarshal(tools[0].JSON, &parts))
			schema := cmp.Or(parts.Schema, parts.JSONSchema, parts.Parameters, parts.Function.Parameters)
			resolved, err := schema.Resolve(nil)
			require.NoError(t, err)
			free, n, size := `[{"z":1}]`, `[[1],[2]]`, `{"`+form.ModelParameter("i/j")+`":-5}`
			if strict && vendor != Gemini {
				free = `["{\"z\":1}"]`
				n = "null"
			}
			written := `{"n":` + n + `,"` + form.ModelParameter("größe") + `":` + size + `,"free":` + free + `,"s":"7"}`
			var instance any
			require.NoError(t, json.Unmarshal([]byte(written), &instance))
			require.NoError(t, resolved.Validate(instance), "%s %s", vendor, schema)
			args, err := Arguments(tools[0].Parameters, []byte(written))
			require.NoError(t, err)
			require.Equal(t, `{"n":`+n+`,"größe":{"i/j":-5},"free":[{"z":1}],"s":"7"}`, string(args))
		}
	}
	args, err := Arguments(params, []byte(`{"n":[["9007199254740993", 2, "x"], "3"],"größe":{"i/j":"-5"},"free":["{", "[]", "{\"a\": 1}"],"s":"7","u":"8"}`))
	require.NoError(t, err)
	require.Equal(t, `{"n":[[9007199254740993,2,"x"],"3"],"größe":{"i/j":-5},"free":["{","[]",{"a":1}],"s":"7","u":"8"}`, string(args))
	for text, reason := range map[string]altar.Reason{`[]`: altar.Reason("not_an_object"), `{`: altar.Reason("malformed_json"), `{"s":1,"s":2}`: altar.Reason("duplicate_key"),
		`{"größe":{},"` + form.ModelParameter("größe") + `":{}}`: altar.Reason("duplicate_key")} {
		_, err = Arguments(params, []byte(text))
		require.ErrorIs(t, err, reason)
		require.ErrorIs(t, err, altar.ErrInvalidParameters)
	}
	args, err = Arguments(params, []byte("\t\n"))
	require.NoError(t, err)
	require.Equal(t, "{}", string(args))
}

// Each member of the arguments costs the same, however many parameters a tool has.
func TestArgumentsAreLinear(t *testing.T) {
	cost := func(n int) float64 {
		var params []altar.Parameter
		members := []string{}
		for i := range n {
			params = append(params, altar.Parameter{Name: fmt.Sprintf("p/%d", i), Type: "string"}) // which is rewritten for models
			members = append(members, fmt.Sprintf(`"unknown %d":1`, i))
		}
		rows := []altar.Parameter{{Name: "rows", Type: "array[object]", Properties: params}}
		row := "{" + strings.Join(members, ",") + "}"
		return testing.AllocsPerRun(1, func() {
			_, err := Arguments(rows, []byte(`{"rows":[`+row+`,`+row+`]}`))
			require.NoError(t, err)
		})
	}
	require.Less(t, cost(200), 20*cost(10)+1000)
}

// A call of each vendor is read, and its result has the form in which the vendor takes it back.
func TestCallAndResult(t *testing.T) {
	refusal := altar.Errorf(altar.ErrInvalidParameters, altar.Reason("wrong_type"), "/n wrong_type")
	for _, tt := range []struct {
		vendor              Vendor
		call                string
		text, number, error string
	}{
		{OpenAIChat, `{"id":"c1","type":"function","function":{"name":"t","arguments":"{\"n\":1}"}}`,
			`{"role":"tool","tool_call_id":"c1","content":"two \"words\""}`,
			`{"role":"tool","tool_call_id":"c1","content":"{\"a\":9007199254740993}"}`,
			`{"role":"tool","tool_call_id":"c1","content":"{\"error\":\"INVALID_PARAMETERS: /n wrong_type\"}"}`},
		{OpenAIResponses, `{"type":"function_call","id":"fc","call_id":"c1","name":"t","arguments":"{\"n\":1}"}`,
			`{"type":"function_call_output","call_id":"c1","output":"two \"words\""}`,
			`{"type":"function_call_output","call_id":"c1","output":"{\"a\":9007199254740993}"}`,
			`{"type":"function_call_output","call_id":"c1","output":"{\"error\":\"INVALID_PARAMETERS: /n wrong_type\"}"}`},
		{Anthropic, `{"type":"tool_use","id":"c1","name":"t","input":{"n": 1}}`,
			`{"type":"tool_result","tool_use_id":"c1","content":[{"type":"text","text":"two \"words\""}]}`,
			`{"type":"tool_result","tool_use_id":"c1","content":[{"type":"text","text":"{\"a\":9007199254740993}"}]}`,
			`{"type":"tool_result","tool_use_id":"c1","content":[{"type":"text","text":"INVALID_PARAMETERS: /n wrong_type"}],"is_error":true}`},
		{Gemini, `{"functionCall":{"id":"c1","name":"t","args":{"n":1}}}`,
			`{"functionResponse":{"id":"c1","name":"t","response":{"output":"two \"words\""}}}`,
			`{"functionResponse":{"id":"c1","name":"t","response":{"output":{"a":9007199254740993}}}}`,
			`{"functionResponse":{"id":"c1","name":"t","response":{"error":"INVALID_PARAMETERS: /n wrong_type"}}}`},
	} {
		call, err := DecodeCall(tt.vendor, []byte(tt.call))
		require.NoError(t, err)
		require.Equal(t, &Call{ID: "c1", Name: "t", Arguments: json.RawMessage(`{"n":1}`)}, call)
		for want, got := range map[string]func() (json.RawMessage, error){
			tt.text: func() (json.RawMessage, error) {
				return Result(tt.vendor, call, json.RawMessage(`"two \"words\""`), nil)
			},
			tt.number: func() (json.RawMessage, error) {
				return Result(tt.vendor, call, json.RawMessage(`{"a": 9007199254740993}`), nil)
			},
			tt.error: func() (json.RawMessage, error) { return Result(tt.vendor, call, nil, refusal) },
		} {
			out, err := got()
			require.NoError(t, err)
			require.Equal(t, want, string(out))
		}
		_, err = Result(tt.vendor, call, json.RawMessage(`{`), nil)
		require.Error(t, err)
		for _, bad := range []string{`{}`, `[]`, `{"id":"1"}`} {
			_, err = DecodeCall(tt.vendor, []byte(bad))
			require.Error(t, err)
		}
	}
	call, err := DecodeCall(Gemini, []byte(`{"functionCall":{"name":"ping"}}`))
	require.NoError(t, err)
	require.Equal(t, &Call{Name: "ping"}, call)
	out, err := Result(Gemini, call, nil, nil)
	require.NoError(t, err)
	require.Equal(t, `{"functionResponse":{"name":"ping","response":{"output":null}}}`, string(out))
	for _, vendor := range []Vendor{OpenAIChat, OpenAIResponses, Anthropic, Gemini} {
		out, err = Result(vendor, call, nil, errors.New(""))
		require.NoError(t, err)
		require.Contains(t, string(out), "the call failed")
	}
	_, err = DecodeCall("x", nil)
	require.Error(t, err)
	_, err = Result("x", call, nil, nil)
	require.Error(t, err)
}

// FuzzParameters: the parameters of a contract pass through a schema unchanged.
func FuzzParameters(f *testing.F) {
	f.Add([]byte(`{"name":"a/b","parameters":[{"name":"rows","type":"array[array[object]]","properties":[{"name":"x","type":"float","required":true}]}]}`))
	f.Fuzz(func(t *testing.T, in []byte) {
		c, err := altar.DecodeContract(in)
		if err != nil {
			return
		}
		want, err := json.Marshal(c)
		require.NoError(t, err)
		c.Parameters, err = ParametersOf(SchemaOf(c.Parameters), nil)
		require.NoError(t, err)
		got, err := json.Marshal(c)
		require.NoError(t, err)
		require.Equal(t, string(want), string(got))
	})
}

// FuzzArguments: arguments become one object that a Host can read, or are refused.
func FuzzArguments(f *testing.F) {
	f.Add([]byte(`{"a b":"5","free":"{\"x\":1}","rows":[{"i":"7"}]}`))
	f.Fuzz(func(t *testing.T, in []byte) {
		params := []altar.Parameter{{Name: "a b", Type: "integer"}, {Name: "free", Type: "object"},
			{Name: "rows", Type: "array[object]", Properties: []altar.Parameter{{Name: "i", Type: "integer"}}}}
		out, err := Arguments(params, in)
		if err != nil {
			require.ErrorIs(t, err, altar.ErrInvalidParameters)
			return
		}
		_, reason := form.Check(out, maxDepth)
		require.Empty(t, reason)
		second, err := Arguments(params, out)
		require.NoError(t, err)
		require.Equal(t, string(out), string(second))
	})
}

// With text for integers, an integer above 2^53 survives a vendor that decodes arguments as float64.
func TestTextIntegers(t *testing.T) {
	params := []altar.Parameter{{Name: "id", Type: "integer", Required: true, Description: "number"}, {Name: "list", Type: "array[integer]"}}
	for _, vendor := range []Vendor{OpenAIChat, OpenAIResponses, Anthropic, Gemini} {
		tools, err := Tools([]altar.ToolInfo{{Name: "t", Parameters: params}}, vendor, &ToolsOptions{TextIntegers: true})
		require.NoError(t, err)
		require.Contains(t, string(tools[0].JSON), `"properties":{"id":{"type":"string","description":"number (integer)"},`+
			`"list":{"type":"array","description":"(integer)","items":{"type":"string"}}}`)
	}
	var decoded any // as an SDK does
	require.NoError(t, json.Unmarshal([]byte(`{"id":"9007199254740993","list":["1","-9223372036854775808"]}`), &decoded))
	text, err := json.Marshal(decoded)
	require.NoError(t, err)
	arguments, err := Arguments(params, text)
	require.NoError(t, err)
	require.JSONEq(t, `{"id":9007199254740993,"list":[1,-9223372036854775808]}`, string(arguments))
	require.Contains(t, string(arguments), "9007199254740993")
}

func TestParametersOfIsLinear(t *testing.T) {
	testkit.RequiredNamesAreLinear(t, func(schema string) error {
		_, err := ParametersOf([]byte(schema), nil)
		return err
	})
}
