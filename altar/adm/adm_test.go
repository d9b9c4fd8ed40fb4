// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package adm

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/altar"
	"github.com/fivewire/fivewire/internal/testkit"
)

// Section c: calls and results of the ADM data model.
func TestDecodeCallAndResult(t *testing.T) {
	call, err := DecodeCall([]byte(`{"call_id":"c1","name":"get_weather","args":{"n":9007199254740993}}`), "s")
	require.NoError(t, err)
	require.Equal(t, &altar.ToolCall{InvocationID: "c1", SessionID: "s", ToolName: "get_weather", Parameters: json.RawMessage(`{"n":9007199254740993}`)}, call)
	call, err = DecodeCall([]byte(`{"call_id":"c1","name":"f"}`), "s")
	require.NoError(t, err)
	require.Equal(t, "{}", string(call.Parameters))
	for in, reason := range map[string]altar.Reason{`{"call_id":" ","name":"f"}`: altar.Reason("invalid_value"), `{"call_id":"c","name":" "}`: altar.Reason("invalid_value"),
		`{"name":"f"}`: altar.Reason("missing_field"), `{"call_id":"c","name":"f","x":1}`: altar.Reason("unknown_field"), `{"call_id":"c","name":"f","args":[]}`: altar.Reason("wrong_type"), `[`: altar.Reason("malformed_json")} {
		_, err := DecodeCall([]byte(in), "s")
		require.ErrorIs(t, err, reason, in)
	}
	for _, r := range []*altar.ToolResult{
		{InvocationID: "c", Payload: json.RawMessage(`{"a":1}`)}, {InvocationID: "c", Payload: json.RawMessage("null")},
		{InvocationID: "c", Error: &altar.Error{Code: altar.ErrExecutionFailed, Message: "no \"luck\""}},
	} {
		back, err := DecodeResult(AppendResult(nil, r))
		require.NoError(t, err)
		require.Equal(t, r, back)
	}
	require.Equal(t, `{"call_id":"c","content":null,"is_error":false}`, string(AppendResult(nil, &altar.ToolResult{InvocationID: "c"})))
	_, err = DecodeResult([]byte(`{"call_id":"c","content":"text","is_error":true}`))
	require.ErrorIs(t, err, altar.Reason("wrong_type"))
	_, err = DecodeResult([]byte(`]`))
	require.ErrorIs(t, err, altar.Reason("malformed_json"))
}

// ALT-D44: results are read in both forms, whatever their errors look like.
func TestDecodeResultForms(t *testing.T) {
	for in, want := range map[string]altar.Error{
		`{"is_error":true,"content":{"error":"no luck","x":1},"took":3}`:                                       {Message: "no luck"},
		`{"is_error":true,"content":{"error":{"message":"m","type":"SESSION_INVALID"}}}`:                       {Code: altar.ErrSessionInvalid, Message: "m"},
		`{"is_error":true,"content":{"error":{"message":"","details":{"a": 1}}}}`:                              {Message: `{"message":"","details":{"a":1}}`, Details: json.RawMessage(`{"a":1}`)},
		`{"is_error":true,"content":{"error":[1, 2]}}`:                                                         {Message: `[1,2]`},
		`{"status":"ERROR","error":"plain","content":{"error":"other"}}`:                                       {Message: "plain"},
		`{"status":"ERROR","error":{"message":"m","type":"EXECUTION_FAILED","details":{"original_code":"A"}}}`: {Message: "m", Details: json.RawMessage(`{"original_code":"A"}`)},
		`{"status":"ERROR","error":{"message":"m","type":"B","details":{"original_code":"A","k":"v"}}}`:        {Message: "m", Details: json.RawMessage(`{"k":"v","original_code":"B"}`)},
		`{"status":"ERROR","error":{"message":"m","details":"text"}}`:                                          {Message: "m", Details: json.RawMessage(`{"details":"text"}`)},
		`{"status":"ERROR","error":""}`:                                                                        {Message: `""`},
	} {
		if want.Code == "" {
			want.Code = altar.ErrExecutionFailed
		}
		r, err := DecodeResult([]byte(in))
		require.NoError(t, err, in)
		require.Equal(t, &altar.ToolResult{Error: &want}, r, in)
	}
	for in, want := range map[string]string{`{}`: "null", `{"status":"SUCCESS","is_error":true,"content":[1, 2]}`: "[1,2]", `{"status":null,"content":"x","error":"y"}`: `"x"`} {
		r, err := DecodeResult([]byte(in))
		require.NoError(t, err, in)
		require.Equal(t, &altar.ToolResult{Payload: json.RawMessage(want)}, r, in)
	}
	for in, want := range map[string]altar.ContractError{
		`{"status":"DONE"}`:                  {Reason: altar.Reason("invalid_value"), Path: "/status"},
		`{"status":1}`:                       {Reason: altar.Reason("wrong_type"), Path: "/status"},
		`{"status":"ERROR"}`:                 {Reason: altar.Reason("missing_field"), Path: "/error"},
		`{"is_error":true}`:                  {Reason: altar.Reason("missing_field"), Path: "/content/error"},
		`{"is_error":true,"content":"text"}`: {Reason: altar.Reason("wrong_type"), Path: "/content"},
		`{"is_error":"yes"}`:                 {Reason: altar.Reason("wrong_type"), Path: "/is_error"},
		`{"call_id":7}`:                      {Reason: altar.Reason("wrong_type"), Path: "/call_id"},
		`{"call_id":"c","call_id":"d"}`:      {Reason: altar.Reason("duplicate_key")},
	} {
		_, err := DecodeResult([]byte(in))
		var e *altar.ContractError
		require.ErrorAs(t, err, &e, in)
		require.Equal(t, want, *e, in)
	}
}

// The short form of parameters, and the bounds of a lossy import.
func TestImportForms(t *testing.T) {
	list, err := Import([]byte(`{"name":"f","parameters":{"z":"STRING","a":"object","items":"number"}}`), nil)
	require.NoError(t, err)
	require.Equal(t, []altar.Parameter{{Name: "a", Type: "object"}, {Name: "items", Type: "float"}, {Name: "z", Type: "string"}}, list[0].Parameters)
	for in, want := range map[string]altar.ContractError{
		`{"name":"f","parameters":{"a":"STRING","b":{"type":"STRING"}}}`: {Reason: altar.Reason("missing_field"), Path: "/parameters/type", Column: 26},
		`{"name":"f","parameters":{"a":"text"}}`:                         {Reason: altar.Reason("missing_field"), Path: "/parameters/type", Column: 26},
		`{"name":"f","parameters":{"a":"array"}}`:                        {Reason: altar.Reason("missing_field"), Path: "/parameters/a/items", Column: 31},
		`{"name":"f","parameters":{"type":"string"}}`:                    {Reason: altar.Reason("invalid_type"), Path: "/parameters/type", Column: 34},
		`{"name":"f","parameters":{"":"string"}}`:                        {Reason: altar.Reason("invalid_name"), Path: "/parameters/", Column: 30},
		`{"name":"f","returns":{}}`:                                      {Reason: altar.Reason("unknown_field"), Path: "/returns", Column: 23},
		`{"name":"f","parameters":{"type":"OBJECT","title":"t"}}`:        {Reason: altar.Reason("unsupported_constraint"), Path: "/parameters/title", Column: 51},
		`{"name":"f",`: {Reason: altar.Reason("malformed_json"), Column: 13},
	} {
		_, err := Import([]byte(in), nil)
		var e *altar.ContractError
		require.ErrorAs(t, err, &e, in)
		want.Line = 1
		require.Equal(t, want, *e, in)
	}
	_, err = Import([]byte(`{"name":"f","parameters":{"a":"text"}}`), &ImportOptions{Lossy: true})
	require.ErrorIs(t, err, altar.Reason("missing_field"))
}

// FuzzExport: export and import give the parameters back, but binary and the order of properties.
func FuzzExport(f *testing.F) {
	f.Add([]byte(`{"name":"a/b.c","description":"d","parameters":[{"name":"z","type":"binary","required":true},{"name":"rows","type":"array[array[object]]",` +
		`"description":"r","properties":[{"name":"x","type":"float","required":true},{"name":"b","type":"array[binary]","description":"data"}]},{"name":"free","type":"object"}]}`))
	f.Add([]byte(`{"name":"p"}`))
	f.Fuzz(func(t *testing.T, in []byte) {
		c, err := altar.DecodeContract(in)
		if err != nil {
			return
		}
		text, err := Export(&altar.Manifest{Contracts: []*altar.Contract{c}})
		require.NoError(t, err)
		list, err := Import(text, nil)
		if err != nil {
			require.ErrorIs(t, err, altar.Reason("too_deep"), "a schema is nested deeper than a contract")
			return
		}
		require.Len(t, list, 1)
		require.Equal(t, c.Description, list[0].Description)
		require.Equal(t, expected(c.Parameters), expected(list[0].Parameters))
	})
}

// expected returns parameters as an import returns them: sorted, and with text in place of bytes.
func expected(params []altar.Parameter) []altar.Parameter {
	out := []altar.Parameter{}
	for _, p := range params {
		if strings.Contains(p.Type, "binary") {
			p.Type = strings.ReplaceAll(p.Type, "binary", "string")
			p.Description = strings.TrimSpace(p.Description + " (base64)")
		}
		p.Properties = expected(p.Properties)
		out = append(out, p)
	}
	slices.SortFunc(out, func(a, b altar.Parameter) int { return strings.Compare(a.Name, b.Name) })
	return out
}

// Two contracts with one name for models cannot be exported.
func TestExportRefusesEqualNames(t *testing.T) {
	list := []*altar.Contract{{Name: "a_b"}, {Name: "a.b"}, {Name: "c"}}
	text, err := Export(&altar.Manifest{Contracts: list})
	require.NoError(t, err)
	require.Contains(t, string(text), `{"version":"1.0.0","tools":[{"function_declarations":[{"name":"a_b",`)
	back, err := Import(text, nil)
	require.NoError(t, err)
	list = append(list, &altar.Contract{Name: back[1].Name})
	_, err = Export(&altar.Manifest{Contracts: list})
	var e *altar.ContractError
	require.ErrorAs(t, err, &e)
	require.Equal(t, altar.ContractError{Reason: altar.Reason("duplicate_name"), Path: "/contracts/3/name", Contract: back[1].Name}, *e)
	_, err = Export(&altar.Manifest{Contracts: []*altar.Contract{{Name: "a"}, {Name: "a"}}})
	require.ErrorIs(t, err, altar.Reason("duplicate_name"))
}

// FuzzImport: every imported contract is valid, and every refusal has a reason.
func FuzzImport(f *testing.F) {
	f.Add([]byte(`{"name":"f","parameters":{"type":"OBJECT","properties":{"m":{"type":"ARRAY","items":{"type":"NUMBER"}}},"required":["m"]}}`))
	f.Fuzz(func(t *testing.T, in []byte) {
		list, err := Import(in, &ImportOptions{Lossy: true})
		for _, c := range list {
			require.NoError(t, c.Validate())
		}
		if err != nil {
			var e *altar.ContractError
			require.ErrorAs(t, err, &e)
		}
	})
}

func TestImportIsLinear(t *testing.T) {
	testkit.RequiredNamesAreLinear(t, func(schema string) error {
		_, err := Import([]byte(`{"name":"f","parameters":`+schema+`}`), nil)
		return err
	})
}
