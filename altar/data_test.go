// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package altar

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/fivewire/fivewire/internal/strictjson"
)

// everything is a struct of every type of the specification (ALT-005, ALT-024).
type everything struct {
	S     string           `json:"s" description:"a text"`
	I     int64            `json:"i"`
	F     float64          `json:"f"`
	B     bool             `json:"b"`
	Bin   []byte           `json:"bin"`
	Tags  []string         `json:"tags"`
	Grid  [][]int64        `json:"grid"`
	Who   *person          `json:"who"`
	Items []person         `json:"items,omitempty"`
	Free  json.RawMessage  `json:"free"`
	Map   map[string]int64 `json:"map"`
	When  time.Time        `json:"when"`
	skip  int
	Skip  int `json:"-"`
	embedded
}

type person struct {
	Name string `json:"name" jsonschema:"how they are called"`
	Age  *int64 `json:"age"`
}

type embedded struct {
	Extra *string `json:"extra"`
}

func TestContractFor(t *testing.T) {
	c, err := ContractOf[*everything]("t")
	require.NoError(t, err)
	people := []Parameter{{Name: "name", Type: "string", Required: true, Description: "how they are called"}, {Name: "age", Type: "integer"}}
	require.Equal(t, []Parameter{
		{Name: "s", Type: "string", Required: true, Description: "a text"}, {Name: "i", Type: "integer", Required: true},
		{Name: "f", Type: "float", Required: true}, {Name: "b", Type: "boolean", Required: true}, {Name: "bin", Type: "binary", Required: true},
		{Name: "tags", Type: "array[string]", Required: true}, {Name: "grid", Type: "array[array[integer]]", Required: true},
		{Name: "who", Type: "object", Properties: people}, {Name: "items", Type: "array[object]", Properties: people},
		{Name: "free", Type: "object", Required: true}, {Name: "map", Type: "object", Required: true}, {Name: "when", Type: "string", Required: true},
		{Name: "extra", Type: "string"},
	}, c.Parameters)
	_ = everything{}.skip

	type loop struct{ Next *loop }
	type bad1 struct{ C chan int }
	type bad2 struct{ M map[int]string }
	type bad3 struct {
		N int `json:",string"`
	}
	for _, f := range []func() error{
		func() error { _, err := ContractOf[loop]("t"); return err },
		func() error { _, err := ContractOf[bad1]("t"); return err },
		func() error { _, err := ContractOf[bad2]("t"); return err },
		func() error { _, err := ContractOf[bad3]("t"); return err },
		func() error { _, err := ContractOf[int]("t"); return err },
		func() error { _, err := ContractOf[person]("not a name"); return err },
	} {
		require.Error(t, f())
	}
	require.Panics(t, func() { AddTool(NewRuntime("r", nil), "t", func(context.Context, int) (int, error) { return 0, nil }) })
}

// The law: whatever validates can be decoded into the contract's Go type and
// back without loss (ALT-031, ALT-032, ALT-034, ALT-D07 to ALT-D11).
func TestValidatedRoundTrip(t *testing.T) {
	type in struct {
		S    string      `json:"s"`
		I    int64       `json:"i"`
		F    float64     `json:"f"`
		Bin  []byte      `json:"bin"`
		Grid [][]int64   `json:"grid"`
		Fs   [][]float64 `json:"fs"`
		Sub  []person    `json:"sub"`
	}
	c, err := ContractOf[in]("t")
	require.NoError(t, err)
	v, err := NewValidator(c, nil)
	require.NoError(t, err)
	rapid.Check(t, func(t *rapid.T) {
		x := in{
			S: rapid.String().Draw(t, "s"), I: rapid.Int64().Draw(t, "i"),
			F:   rapid.Float64().Filter(func(f float64) bool { return !math.IsInf(f, 0) && !math.IsNaN(f) }).Draw(t, "f"),
			Bin: rapid.SliceOf(rapid.Byte()).Draw(t, "bin"), Grid: rapid.SliceOf(rapid.SliceOf(rapid.Int64())).Draw(t, "grid"),
			Fs: rapid.SliceOf(rapid.SliceOf(rapid.Float64Range(-1e300, 1e300))).Draw(t, "fs"),
			Sub: rapid.SliceOf(rapid.Custom(func(t *rapid.T) person {
				return person{Name: rapid.String().Draw(t, "name"), Age: rapid.Ptr(rapid.Int64(), true).Draw(t, "age")}
			})).Draw(t, "sub"),
		}
		x.S = strings.ToValidUTF8(x.S, "?")
		text, err := strictjson.Encode(x)
		require.NoError(t, err)
		normal, err := v.Append(nil, text)
		require.NoError(t, err)
		var back in
		require.NoError(t, (&ToolCall{Parameters: normal}).Decode(&back))
		require.Equal(t, x, back)
		second, err := v.Append(nil, normal)
		require.NoError(t, err)
		require.Equal(t, string(normal), string(second), "the normal form is a fixed point")
	})
}

// ALT-D13: at most sixteen faults, however many there are.
func TestFaultsAreBounded(t *testing.T) {
	v, err := NewValidator(&Contract{Name: "t", Parameters: []Parameter{{Name: "a", Type: "array[integer]"}}}, nil)
	require.NoError(t, err)
	_, err = v.Append(nil, []byte(`{"a":[`+strings.Repeat(`"x",`, 1000)+`1],"z":1}`))
	var e *Error
	require.ErrorAs(t, err, &e)
	require.Len(t, e.ParamErrors(), 16)
	var many strings.Builder
	for i := range 1000 {
		many.WriteString(`"` + strings.Repeat("k", i+1) + `":1,`)
	}
	_, err = v.Append(nil, []byte(`{`+many.String()+`"a":[]}`))
	require.ErrorAs(t, err, &e)
	require.Len(t, e.ParamErrors(), 16)
	require.Equal(t, "/k", e.Path())
	for in, reason := range map[string]Reason{`[]`: ReasonNotAnObject, `{`: ReasonMalformedJSON, `{"a":1,"a":2}`: ReasonDuplicateKey, `{"a":"\ud800"}`: ReasonInvalidUnicode,
		"{\"a\":\"\xff\"}": ReasonInvalidUnicode, `{"a":` + strings.Repeat("[", 64) + strings.Repeat("]", 64) + `}`: ReasonTooDeep} {
		_, err = v.Append(nil, []byte(in))
		require.ErrorIs(t, err, reason, in)
	}
}

// A contract with many parameters is found by an index.
func TestManyParameters(t *testing.T) {
	c := &Contract{Name: "t"}
	in, want := `{"q":1`, `{`
	for i := range 40 {
		name := strings.Repeat("p", i+1)
		c.Parameters = append(c.Parameters, Parameter{Name: name, Type: "boolean"})
		in += `,"` + name + `":true`
		if i > 0 {
			want += ","
		}
		want += `"` + name + `":true`
	}
	v, err := NewValidator(c, &ValidationOptions{DropUnknown: true})
	require.NoError(t, err)
	out, err := v.Append(nil, []byte(in+"}"))
	require.NoError(t, err)
	require.Equal(t, want+"}", string(out))
}

func TestContractValidate(t *testing.T) {
	for _, tt := range []struct {
		c      Contract
		reason Reason
		path   string
	}{
		{Contract{Name: "a", Timeout: time.Microsecond}, ReasonInvalidValue, "/timeout_ms"},
		{Contract{Name: "a", Timeout: 25 * time.Hour}, ReasonInvalidValue, "/timeout_ms"},
		{Contract{}, ReasonInvalidName, "/name"},
		{Contract{Name: "a", Metadata: json.RawMessage(`{`)}, ReasonMalformedJSON, ""},
		{Contract{Name: "a", Metadata: json.RawMessage(`[]`)}, ReasonWrongType, "/metadata"},
		{Contract{Name: "a", Parameters: []Parameter{{Name: "x", Type: "any"}}}, ReasonInvalidType, "/parameters/0/type"},
	} {
		err := tt.c.Validate()
		var e *ContractError
		require.ErrorAs(t, err, &e)
		require.Equal(t, ContractError{tt.reason, tt.path}, *e)
		require.ErrorIs(t, err, tt.reason)
		require.NotEmpty(t, e.Error())
	}
	m := &Manifest{Version: "1", Contracts: []*Contract{{Name: "a"}}}
	require.ErrorIs(t, m.Validate(), ReasonInvalidValue)
	m = &Manifest{Contracts: []*Contract{{Name: "a"}, nil}}
	require.ErrorIs(t, m.Validate(), ReasonWrongType)
	m = &Manifest{Version: "1.0", Contracts: []*Contract{{Name: "a"}, {Name: "b"}}, Metadata: json.RawMessage(`{"x":1}`)}
	require.NoError(t, m.Validate())
	require.NotNil(t, m.Contract("b"))
	require.Nil(t, m.Contract("c"))
	text, err := json.Marshal(m)
	require.NoError(t, err)
	reread, err := DecodeManifest(text)
	require.NoError(t, err)
	require.Equal(t, m.Version, reread.Version)
	require.Len(t, reread.Contracts, 2)
	_, err = NewHost(&Manifest{Contracts: []*Contract{{Name: "a", Streaming: true}}}, AuthorizerFunc(AllowAll), &HostOptions{Level: 1})
	require.ErrorIs(t, err, ReasonInvalidValue)
	_, err = NewHost(m, nil, nil)
	require.Error(t, err, "ALT-137: an Authorizer is mandatory")
	_, err = NewHost(m, AuthorizerFunc(AllowAll), &HostOptions{ProtocolVersion: "one"})
	require.Error(t, err)
}

// FuzzDecode: what was read can be written and read again, and everything that
// is refused is refused in the protocol's own terms.
func FuzzDecode(f *testing.F) {
	for _, s := range []string{
		`{"type":"AnnounceRuntime","runtime_id":"py-1","language":"python","protocol_version":"1.0.0","capabilities":["streaming"],"request_id":"1"}`,
		`{"type":"ToolCall","invocation_id":"i","session_id":"s1","tool_name":"py-1/math/add","parameters":{"a":1,"b":[2.50,"\u00e9\/"]},"accept_stream":false,"resume_from":2}`,
		`{"type":"ToolResult","invocation_id":"i","status":"error","error":{"type":"X","details":{}}}`,
		`{"type":"ToolResult","invocation_id":"i","status":"success","payload":{"a": [1]},"runtime_metadata":{"execution_time_ms":4}}`,
		`{"type":"StreamChunk","invocation_id":"i","chunk_id":3.0,"error":5}`, `{"type":"Error","error":{"code":"SESSION_INVALID","message":"no","details":{"reason":"x"}}}`,
		`{"type":"CreateSession","session_id":"","ttl_seconds":60,"security_context":{"claims":{"role":"guest"}}}`,
		`{"type":"AcknowledgeFulfillment","session_id":"s","fulfilled_tools":[],"rejected_tools":[{"tool_name":"x","error":{"code":"TOOL_NOT_FOUND"}}]}`,
		`{"type":"ToolList","session_id":"s","tools":[{"name":"a","parameters":[{"name":"p","type":"object","properties":[{"name":"q","type":"x"}]}],"runtimes":["r"]}]}`,
		`{"type":"FulfillTools","session_id":"*","tool_names":["a"],"replace":true}`, `{"type":"CancelCall","invocation_id":"i","session_id":"s"}`, `{"type":"Ping"}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, frame []byte) {
		m, err := DecodeMessage(frame, nil)
		if err != nil {
			var e *DecodeError
			require.ErrorAs(t, err, &e)
			require.ErrorIs(t, err, ErrInvalidParameters)
			require.NotEmpty(t, e.Err.Reason())
			return
		}
		out, err := AppendMessage(nil, m)
		require.NoError(t, err)
		require.NotContains(t, string(out), "\n")
		reread, err := DecodeMessage(out, &DecodeOptions{Strict: true})
		require.NoError(t, err, "what is emitted is strict")
		out2, err := AppendMessage(nil, reread)
		require.NoError(t, err)
		require.Equal(t, string(out), string(out2))
		own, bad, err := vet(m)
		require.NoError(t, err)
		require.Nil(t, bad)
		out3, err := AppendMessage(nil, own)
		require.NoError(t, err)
		require.Equal(t, string(out), string(out3), "in process as over a wire")
	})
}

// FuzzParams: what is accepted is a fixed point, and nothing panics.
func FuzzParams(f *testing.F) {
	c, err := ContractOf[everything]("t")
	require.NoError(f, err)
	for i := range c.Parameters {
		c.Parameters[i].Required = false
	}
	v, err := NewValidator(c, &ValidationOptions{AllowNonFinite: true})
	require.NoError(f, err)
	f.Add([]byte(`{"s":"é\u0041","i":1e2,"f":-0.0,"b":true,"bin":"_-8","grid":[[1.0],[]],"who":{"name":"x","age":null},"free":{"a":[null,1e2]}}`))
	f.Add([]byte(`{"f":"NaN","i":1e999999999999}`))
	f.Fuzz(func(t *testing.T, in []byte) {
		out, err := v.Append(nil, in)
		if err != nil {
			var e *Error
			require.ErrorAs(t, err, &e)
			require.Equal(t, ErrInvalidParameters, e.Code)
			return
		}
		second, err := v.Append(nil, out)
		require.NoError(t, err)
		require.Equal(t, string(out), string(second))
	})
}

// FuzzContract: a contract that is accepted is written and read again as the same.
func FuzzContract(f *testing.F) {
	f.Add([]byte(`{"name":"a/b","parameters":[{"name":"rows","type":"array[array[object]]","properties":[{"name":"x","type":"float","required":true}]}],"timeout_ms":5,"metadata":{"k":1}}`))
	f.Add([]byte(`{"name":"f","parameters":{"type":"OBJECT","properties":{"m":{"type":"ARRAY","items":{"type":"NUMBER"}}},"required":["m"]}}`))
	f.Fuzz(func(t *testing.T, in []byte) {
		c, err := DecodeContract(in)
		if err == nil {
			require.NoError(t, c.Validate())
			reread, err := DecodeContract(c.appendJSON(nil))
			require.NoError(t, err)
			require.Equal(t, c, reread)
			params, err := FromJSONSchema(JSONSchema(c.Parameters, nil), nil)
			require.NoError(t, err)
			require.Equal(t, string(appendParameters(nil, c.Parameters)), string(appendParameters(nil, params)))
		} else {
			var e *ContractError
			require.ErrorAs(t, err, &e)
		}
		list, err := ImportADM(in, &ADMOptions{Lossy: true})
		for _, c := range list {
			require.NoError(t, c.Validate())
		}
		var e *ContractError
		require.True(t, err == nil || errors.As(err, &e))
	})
}

func TestJSONSchema(t *testing.T) {
	c, err := ContractOf[everything]("t")
	require.NoError(t, err)
	s := JSONSchema(c.Parameters, nil)
	text, err := json.Marshal(s)
	require.NoError(t, err)
	var back jsonschema.Schema
	require.NoError(t, json.Unmarshal(text, &back))
	params, err := FromJSONSchema(&back, nil)
	require.NoError(t, err)
	require.Len(t, params, len(c.Parameters))
	params, err = FromJSONSchema(s, nil)
	require.NoError(t, err)
	require.Equal(t, c.Parameters, params)
	require.Contains(t, string(text), `"contentEncoding":"base64"`)
	require.Contains(t, string(text), `"format":"int64"`)

	resolved, err := s.Resolve(nil)
	require.NoError(t, err)
	good := map[string]any{"s": "x", "i": 1, "f": 1.5, "b": true, "bin": "AA==", "tags": []any{}, "grid": []any{}, "free": map[string]any{"z": 1},
		"map": map[string]any{}, "when": "2025-01-01T00:00:00Z"}
	require.NoError(t, resolved.Validate(good))
	good["unknown"] = 1
	require.Error(t, resolved.Validate(good), "closed")

	for _, tt := range []struct {
		text   string
		reason Reason
		path   string
	}{
		{`{"type":"object","properties":{"a":{"type":"string","enum":["x"]}}}`, ReasonUnsupportedConstraint, "/properties/a/enum"},
		{`{"type":"object","properties":{"a":{"type":"integer","minimum":1}}}`, ReasonUnsupportedConstraint, "/properties/a/minimum"},
		{`{"type":"object","properties":{"a":{"$ref":"#/x"}}}`, ReasonUnsupportedConstraint, "/properties/a/$ref"},
		{`{"type":"object","properties":{"a":{"type":["string","integer"]}}}`, ReasonInvalidType, "/properties/a/type"},
		{`{"type":"object","properties":{"a":{"type":"array"}}}`, ReasonMissingField, "/properties/a/items"},
		{`{"type":"object","required":["a"]}`, ReasonInvalidValue, "/required/0"},
		{`{"type":"string"}`, ReasonInvalidType, "/type"},
	} {
		var s jsonschema.Schema
		require.NoError(t, json.Unmarshal([]byte(tt.text), &s))
		_, err := FromJSONSchema(&s, nil)
		var e *ContractError
		require.ErrorAs(t, err, &e, tt.text)
		require.Equal(t, ContractError{tt.reason, tt.path}, *e, tt.text)
	}
	var lossy jsonschema.Schema
	require.NoError(t, json.Unmarshal([]byte(`{"type":"object","properties":{"a":{"type":["integer","null"],"minimum":1}}}`), &lossy))
	params, err = FromJSONSchema(&lossy, &FromJSONSchemaOptions{Lossy: true})
	require.NoError(t, err)
	require.Equal(t, []Parameter{{Name: "a", Type: "integer"}}, params)
}

func TestModelTools(t *testing.T) {
	long := strings.Repeat("x", 64)
	params := []Parameter{{Name: "n", Type: "array[integer]"}, {Name: "o", Type: "object", Properties: []Parameter{{Name: "i", Type: "integer"}}}, {Name: "s", Type: "string"}}
	tools, names := ModelTools([]ToolInfo{{Name: "math/add", Parameters: params}, {Name: "math__add"}, {Name: long + "/a"}, {Name: long + "/b"}, {Name: "v1.2"}}, &SchemaOptions{IntegerStrings: true})
	require.Len(t, names, 5)
	for _, tool := range tools {
		require.Regexp(t, `^[A-Za-z0-9_-]{1,64}$`, tool.Name)
		require.NotEmpty(t, names[tool.Name])
	}
	require.Equal(t, "math/add", names["math__add"])
	text, err := json.Marshal(tools[0])
	require.NoError(t, err)
	require.Contains(t, string(text), `["integer","string"]`)
	back, err := FromJSONSchema(tools[0].Parameters, nil)
	require.NoError(t, err)
	require.Equal(t, params, back)
	args, err := ModelArguments(params, []byte(`{"n":["9007199254740993", 2, "x"],"o":{"i":"-5","z":"1"},"s":"7","u":"8"}`))
	require.NoError(t, err)
	require.Equal(t, `{"n":[9007199254740993,2,"x"],"o":{"i":-5,"z":"1"},"s":"7","u":"8"}`, string(args))
	_, err = ModelArguments(params, []byte(`[]`))
	require.ErrorIs(t, err, ReasonNotAnObject)
}

// Section c: calls and results of the ADM data model.
func TestADMCalls(t *testing.T) {
	call, err := ParseADMCall([]byte(`{"call_id":"c1","name":"get_weather","args":{"n":9007199254740993}}`), "s")
	require.NoError(t, err)
	require.Equal(t, &ToolCall{InvocationID: "c1", SessionID: "s", ToolName: "get_weather", Parameters: json.RawMessage(`{"n":9007199254740993}`)}, call)
	call, err = ParseADMCall([]byte(`{"call_id":"c1","name":"f"}`), "s")
	require.NoError(t, err)
	require.Equal(t, "{}", string(call.Parameters))
	for in, reason := range map[string]Reason{`{"call_id":" ","name":"f"}`: ReasonInvalidValue, `{"call_id":"c","name":" "}`: ReasonInvalidValue,
		`{"name":"f"}`: ReasonMissingField, `{"call_id":"c","name":"f","x":1}`: ReasonUnknownField, `{"call_id":"c","name":"f","args":[]}`: ReasonWrongType, `[`: ReasonMalformedJSON} {
		_, err := ParseADMCall([]byte(in), "s")
		require.ErrorIs(t, err, reason, in)
	}
	for _, r := range []*ToolResult{
		{InvocationID: "c", Payload: json.RawMessage(`{"a":1}`)}, {InvocationID: "c", Payload: json.RawMessage("null")},
		{InvocationID: "c", Error: &Error{Code: ErrExecutionFailed, Message: "no \"luck\""}},
	} {
		back, err := ParseADMResult(AppendADMResult(nil, r))
		require.NoError(t, err)
		require.Equal(t, r, back)
	}
	require.Equal(t, `{"call_id":"c","content":null,"is_error":false}`, string(AppendADMResult(nil, &ToolResult{InvocationID: "c"})))
	_, err = ParseADMResult([]byte(`{"call_id":"c","content":"text","is_error":true}`))
	require.ErrorIs(t, err, ReasonWrongType)
	_, err = ParseADMResult([]byte(`]`))
	require.ErrorIs(t, err, ReasonMalformedJSON)
}

// The defects of peers that must not come back, section h: an endless number
// answers at once, a name with a line break is no name.
func TestPeerDefects(t *testing.T) {
	v, err := NewValidator(&Contract{Name: "t", Parameters: []Parameter{{Name: "v", Type: "integer"}, {Name: "f", Type: "float"}}}, nil)
	require.NoError(t, err)
	for in, reason := range map[string]Reason{`1e999999999999999999999`: ReasonOutOfRange, `1e-999999999999999999999`: ReasonNotInteger, `1.5e400`: ReasonOutOfRange,
		`15e-1`: ReasonNotInteger, `100.10`: ReasonNotInteger, `"1"`: ReasonWrongType, `true`: ReasonWrongType, `-9223372036854775809`: ReasonOutOfRange,
		`0.5e999999999999999999999`: ReasonOutOfRange, `12345678901234567890123e-3`: ReasonNotInteger} {
		_, err := v.Append(nil, []byte(`{"v":`+in+`}`))
		require.ErrorIs(t, err, reason, in)
	}
	for in, want := range map[string]string{`9223372036854775807.0`: "9223372036854775807", `-92233720368547758080e-1`: "-9223372036854775808", `0e999999999999`: "0", `1000e-3`: "1"} {
		out, err := v.Append(nil, []byte(`{"v":`+in+`}`))
		require.NoError(t, err, in)
		require.Equal(t, `{"v":`+want+`}`, string(out))
	}
	for in, want := range map[string]string{"1e-7": "1e-7", "0.000001": "0.000001", "1e21": "1e+21", "123456789012345680000": "123456789012345680000", "-0": "-0", "1e-10": "1e-10", "5e-324": "5e-324", "1.7976931348623157e308": "1.7976931348623157e+308"} {
		out, err := v.Append(nil, []byte(`{"f":`+in+`}`))
		require.NoError(t, err, in)
		require.Equal(t, `{"f":`+want+`}`, string(out))
	}
	require.False(t, validIdentifier("a\n"))
	require.False(t, validContractName("a\n"))
	require.False(t, validInvocationID("a\n"))
}

func TestErrors(t *testing.T) {
	e := fault(ErrInternal, ReasonChunkGap, "/x", "gone")
	require.ErrorIs(t, e, ErrInternal)
	require.ErrorIs(t, e, ReasonChunkGap)
	require.NotErrorIs(t, e, ErrExecutionFailed)
	require.Equal(t, "altar: INTERNAL_ERROR (chunk_gap): gone", e.Error())
	require.Equal(t, "/x", e.Path())
	require.Equal(t, "altar: chunk_gap", ReasonChunkGap.Error())
	require.Equal(t, "altar: INTERNAL_ERROR", ErrInternal.Error())
	cause := errors.New("cause")
	require.ErrorIs(t, &Error{Code: ErrInternal, Cause: cause}, cause)
	require.Nil(t, (&Error{Details: json.RawMessage("{")}).ParamErrors())
	m := &ErrorMessage{Err: e}
	require.ErrorIs(t, m, ReasonChunkGap)
	require.Equal(t, e.Error(), m.Error())
	require.Equal(t, `{"a":"b","c":2}`, string(addMember([]byte(`{"c":1,"a":"b"}`), "c", []byte("2"))))
}

// AppendMessage refuses invalid messages.
func TestAppendRefuses(t *testing.T) {
	for _, tt := range []struct {
		m    Message
		path string
	}{
		{nil, "/type"},
		{&AnnounceRuntime{RuntimeID: "a/b"}, "/runtime_id"},
		{&AnnounceRuntime{RuntimeID: "a", Language: "\xff"}, "/language"},
		{&AnnounceRuntime{RuntimeID: "a", Capabilities: []string{"\xff"}}, "/capabilities/0"},
		{&CreateSession{TTLSeconds: -1}, "/ttl_seconds"},
		{&CreateSession{Metadata: map[string]string{"k": "\xff"}}, "/metadata/k"},
		{&SessionDestroyed{SessionID: "s", Reason: "bored"}, "/reason"},
		{&ToolCall{InvocationID: "i", Parameters: json.RawMessage("[]")}, "/parameters"},
		{&ToolCall{InvocationID: "i", Parameters: json.RawMessage("{\"a\":1}\n{")}, "/parameters"},
		{&ToolCall{InvocationID: "i", SessionID: "\xff"}, "/session_id"},
		{&ToolCall{InvocationID: "i", Header: Header{RequestID: "a\nb"}}, "/request_id"},
		{&ToolResult{InvocationID: "i", Payload: json.RawMessage("1"), Error: errChunkGap()}, "/payload"},
		{&ToolResult{InvocationID: "i", Error: &Error{Message: "x"}}, "/error/code"},
		{&ToolResult{InvocationID: "i", Error: &Error{Code: ErrInternal}}, "/error/message"},
		{&ToolResult{InvocationID: "i", Error: &Error{Code: ErrInternal, Message: "x", Details: json.RawMessage("1")}}, "/error/details"},
		{&ToolResult{InvocationID: "i", RuntimeMetadata: json.RawMessage("1")}, "/runtime_metadata"},
		{&StreamChunk{InvocationID: "i"}, "/payload"},
		{&StreamChunk{InvocationID: "i", ChunkID: -1, IsFinal: true}, "/chunk_id"},
		{&StreamChunk{InvocationID: "i", Error: errChunkGap()}, "/is_final"},
		{&ErrorMessage{}, "/error"},
		{&AcknowledgeFulfillment{Rejected: []RejectedTool{{}}}, "/rejected_tools/0/error"},
	} {
		out, err := AppendMessage([]byte("keep"), tt.m)
		var e *Error
		require.ErrorAs(t, err, &e)
		require.Equal(t, tt.path, e.Path())
		require.Equal(t, "keep", string(out))
	}
	out, err := AppendMessage(nil, &CreateSession{SecurityContext: &SecurityContext{}})
	require.NoError(t, err)
	require.Equal(t, `{"type":"CreateSession","security_context":{}}`, string(out))
	require.True(t, bytes.Equal(appendText(nil, []byte(`{ "a" : "x\\" }`)), []byte(`{"a":"x\\"}`)))
}

// ALT-D09: not a number and the infinities, where both sides agreed on strings.
func TestNonFinite(t *testing.T) {
	on := ValidationOptions{AllowNonFinite: true}
	type in struct {
		V []NonFinite `json:"v"`
	}
	rt := NewRuntime("r1", &RuntimeOptions{Validation: on})
	AddTool(rt, "floats", func(_ context.Context, x in) ([]NonFinite, error) { return x.V, nil })
	m := &Manifest{Contracts: []*Contract{{Name: "floats", Parameters: []Parameter{{Name: "v", Type: "array[float]", Required: true}}}}}
	for _, opts := range []*HostOptions{{Validation: on}, nil} {
		h, err := NewHost(m, AuthorizerFunc(AllowAll), opts)
		require.NoError(t, err)
		conn, err := h.Dial(testService)
		require.NoError(t, err)
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- rt.Run(ctx, conn) }()
		for len(h.Runtimes()) == 0 {
			time.Sleep(time.Millisecond)
		}
		c := NewClient(func(context.Context) (Conn, error) { return h.Dial(testUser) }, nil)
		s, err := c.CreateSession(ctx, nil)
		require.NoError(t, err)
		sent := []NonFinite{1.5, NonFinite(math.Inf(1)), NonFinite(math.Inf(-1)), -0.25}
		got, err := CallAs[[]NonFinite](ctx, s, "floats", in{sent})
		if opts != nil {
			require.NoError(t, err)
			require.Equal(t, sent, got)
			got, err = CallAs[[]NonFinite](ctx, s, "floats", in{[]NonFinite{NonFinite(math.NaN())}})
			require.NoError(t, err)
			require.True(t, math.IsNaN(float64(got[0])))
		} else {
			require.ErrorIs(t, err, ReasonWrongType)
		}
		require.NoError(t, c.Close())
		stop()
		require.NoError(t, <-done)
		require.NoError(t, h.Close())
	}
	var f NonFinite
	require.Error(t, json.Unmarshal([]byte(`"1"`), &f))
}
