// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package altar

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/fivewire/fivewire/altar/nonfinite"
	"github.com/fivewire/fivewire/internal/guard"
	"github.com/fivewire/fivewire/internal/jsonmap"
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

	type loop struct {
		Next *loop `json:"next"`
	}
	type bad1 struct {
		C chan int `json:"c"`
	}
	type bad2 struct {
		M map[int]string `json:"m"`
	}
	type bad3 struct {
		N int `json:"n,string"`
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
	require.Panics(t, func() {
		AddTool(must(NewRuntime("r", nil)), "t", func(context.Context, int) (int, error) { return 0, nil })
	})
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
	v, err := newValidator(c, validation{})
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
		text, err := guard.Encode(x)
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
	v, err := newValidator(&Contract{Name: "t", Parameters: []Parameter{{Name: "a", Type: "array[integer]"}}}, validation{})
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
	require.Equal(t, "/k", e.StringDetail("path"))
	for in, reason := range map[string]Reason{`[]`: reasonNotAnObject, `{`: reasonMalformedJSON, `{"a":1,"a":2}`: reasonDuplicateKey, `{"a":"\ud800"}`: reasonInvalidUnicode,
		"{\"a\":\"\xff\"}": reasonInvalidUnicode, `{"a":` + strings.Repeat("[", 64) + strings.Repeat("]", 64) + `}`: reasonTooDeep} {
		_, err = v.Append(nil, []byte(in))
		require.ErrorIs(t, err, reason, in)
	}
}

// ALT-D13: an error lists an unknown name by its first 128 code points.
func TestUnknownNamesAreCut(t *testing.T) {
	v, err := newValidator(&Contract{Name: "t"}, validation{})
	require.NoError(t, err)
	_, err = v.Append(nil, []byte(`{"`+strings.Repeat("ü", 129)+`":1,"`+strings.Repeat("~", 128)+`":1}`))
	var e *Error
	require.ErrorAs(t, err, &e)
	whole, cut := "/"+strings.Repeat("~0", 128), "/"+strings.Repeat("ü", 128)+"…"
	require.Equal(t, []ParamError{{Path: whole, Reason: reasonUnknownParameter}, {Path: cut, Reason: reasonUnknownParameter}}, e.ParamErrors())
	require.Equal(t, whole+" unknown_parameter; "+cut+" unknown_parameter", e.Message)
}

// The error of a text has the place of the value and the name of the contract.
func TestContractErrorNamesPlaceAndContract(t *testing.T) {
	const head = "{\n  \"contracts\": [ {\"name\": \"a/b\"},\n    "
	for _, tt := range []struct {
		text string
		want ContractError
	}{
		{head + `{"name": "c", "ü": [1, {"x": 2}], "nme": 1} ] }`,
			ContractError{Reason: reasonUnknownField, Path: "/contracts/1/ü", Contract: "c", Line: 3, Column: 24}},
		{head + `{"name": "c", "parameters": [ {"name":"n","type":"int"} ]}]}`,
			ContractError{Reason: reasonInvalidType, Path: "/contracts/1/parameters/0/type", Contract: "c", Line: 3, Column: 54}},
		{head + `{"name":"c","parameters":[{"name":"n"}]}]}`,
			ContractError{Reason: reasonMissingField, Path: "/contracts/1/parameters/0/type", Contract: "c", Line: 3, Column: 31}},
		{head + `{"name":"a/b"}]}`,
			ContractError{Reason: reasonDuplicateName, Path: "/contracts/1/name", Contract: "a/b", Line: 3, Column: 13}},
		{head + `{"name":"c","description":}]}`, ContractError{Reason: reasonMalformedJSON, Contract: "c", Line: 3, Column: 31}},
		{head + `{"name":"c","x":1,"x":2}]}`, ContractError{Reason: reasonDuplicateKey, Contract: "c", Line: 3, Column: 23}},
		{head + `{"name":"c"`, ContractError{Reason: reasonMalformedJSON, Contract: "c", Line: 3, Column: 16}},
		{head + `{"name":"c`, ContractError{Reason: reasonMalformedJSON, Line: 3, Column: 15}},
		{head + `7]}`, ContractError{Reason: reasonWrongType, Path: "/contracts/1", Line: 3, Column: 5}},
		{"\n" + `{"contracts":[],"a~b/c":1}`, ContractError{Reason: reasonUnknownField, Path: "/a~0b~1c", Line: 2, Column: 25}},
		{`{"contracts":[],"version":"x"}`, ContractError{Reason: reasonInvalidValue, Path: "/version", Line: 1, Column: 27}},
		{``, ContractError{Reason: reasonMalformedJSON, Line: 1, Column: 1}},
	} {
		_, err := DecodeManifest([]byte(tt.text))
		var e *ContractError
		require.ErrorAs(t, err, &e, tt.text)
		require.Equal(t, tt.want, *e, tt.text)
	}
	_, err := DecodeContract([]byte("{\"name\":\"x\",\n\"streaming\":1}"))
	require.EqualError(t, err, `altar: contract "x": line 2, column 13: /streaming: wrong_type`)
}

// ALT-D39: what a caller cannot notice does not count, and all else does.
func TestContractDigest(t *testing.T) {
	c := Contract{Name: "t", Parameters: []Parameter{{Name: "o", Type: "object", Properties: []Parameter{{Name: "p", Type: "float"}}}}}
	want := c.digest()
	require.Regexp(t, "^[0-9a-f]{64}$", want)
	same := c
	same.Description, same.Timeout, same.Metadata = "d", time.Second, json.RawMessage(`{}`)
	same.Parameters = []Parameter{{Name: "o", Type: "object", Description: "d", Properties: []Parameter{{Name: "p", Type: "float", Description: "d"}}}}
	require.Equal(t, want, same.digest())
	for _, change := range []func(c *Contract){
		func(c *Contract) { c.Name = "u" },
		func(c *Contract) { c.Streaming = true },
		func(c *Contract) { c.Idempotent = true },
		func(c *Contract) { c.Parameters = nil },
		func(c *Contract) {
			c.Parameters = []Parameter{{Name: "o", Type: "object", Properties: []Parameter{{Name: "p", Type: "float", Required: true}}}}
		},
	} {
		other := c
		change(&other)
		require.NotEqual(t, want, other.digest())
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
	v, err := newValidator(c, validation{dropUnknown: true})
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
		{Contract{Name: "a", Timeout: time.Microsecond}, reasonInvalidValue, "/timeout_ms"},
		{Contract{Name: "a", Timeout: 25 * time.Hour}, reasonInvalidValue, "/timeout_ms"},
		{Contract{}, reasonInvalidName, "/name"},
		{Contract{Name: "a", Metadata: json.RawMessage(`{`)}, reasonMalformedJSON, ""},
		{Contract{Name: "a", Metadata: json.RawMessage(`[]`)}, reasonWrongType, "/metadata"},
		{Contract{Name: "a", Parameters: []Parameter{{Name: "x", Type: "any"}}}, reasonInvalidType, "/parameters/0/type"},
	} {
		err := tt.c.Validate()
		var e *ContractError
		require.ErrorAs(t, err, &e)
		require.Equal(t, ContractError{Reason: tt.reason, Path: tt.path, Contract: tt.c.Name}, *e)
		require.ErrorIs(t, err, tt.reason)
		require.NotEmpty(t, e.Error())
	}
	m := &Manifest{Version: "1", Contracts: []*Contract{{Name: "a"}}}
	require.ErrorIs(t, m.Validate(), reasonInvalidValue)
	m = &Manifest{Contracts: []*Contract{{Name: "a"}, nil}}
	require.ErrorIs(t, m.Validate(), reasonWrongType)
	m = &Manifest{Version: "1.0", Contracts: []*Contract{{Name: "a"}, {Name: "b"}}, Metadata: json.RawMessage(`{"x":1}`)}
	require.NoError(t, m.Validate())
	require.NotNil(t, m.contract("b"))
	require.Nil(t, m.contract("c"))
	text, err := json.Marshal(m)
	require.NoError(t, err)
	reread, err := DecodeManifest(text)
	require.NoError(t, err)
	require.Equal(t, m.Version, reread.Version)
	require.Len(t, reread.Contracts, 2)
	_, err = newHost(&Manifest{Contracts: []*Contract{{Name: "a", Streaming: true}}}, AuthorizerFunc(AllowAll), &HostOptions{Level: 1})
	require.ErrorIs(t, err, reasonInvalidValue)
	_, err = newHost(m, nil, &HostOptions{Auth: Auth{AllowAnonymous: true}})
	require.Error(t, err, "ALT-137: an Authorizer is mandatory")
	_, err = newHost(m, AuthorizerFunc(AllowAll), &HostOptions{ProtocolVersion: "one"})
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
		m, err := DecodeMessage(frame, 0)
		if err != nil {
			var e *badFrame
			require.ErrorAs(t, err, &e)
			require.ErrorIs(t, err, ErrInvalidParameters)
			require.NotEmpty(t, e.Err.Reason())
			return
		}
		out, err := AppendMessage(nil, m)
		require.NoError(t, err)
		require.NotContains(t, string(out), "\n")
		reread, err := decodeMessage(out, decodeOptions{isStrict: true})
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
	v, err := newValidator(c, validation{allowNonFinite: true})
	require.NoError(f, err)
	f.Add([]byte(`{"s":"é\u0041","i":1e2,"f":-0.0,"b":true,"bin":"_-8","grid":[[1.0],[]],"who":{"name":"x","age":null},"free":{"a":[null,1e2]}}`))
	f.Add([]byte(`{"f":"NaN","i":1e999999999999}`))
	f.Add([]byte(`{"s":"é","i":-12,"f":-0.5,"b":true,"grid":[[1,2.5],[]],"who":{"name":"x"}}`))
	f.Add([]byte(`{"i":-0,"f":1.50}`))
	f.Add([]byte(`{"s":"a\\","i":1234567890123456789}`))
	f.Fuzz(func(t *testing.T, in []byte) {
		out, err := v.Append(nil, in)
		if text, reason := check(in, 0); reason == "" && v.root.normalEnd(text, 0) == len(text) {
			n := normalizer{opts: v.opts}
			n.object(&v.root, text)
			require.Empty(t, n.faults)
			require.Equal(t, string(text), string(n.dst))
		}
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

// Parameters in normal form are known without a second walk; others are not taken for them.
func TestNormalEnd(t *testing.T) {
	c, err := DecodeContract([]byte(`{"name":"t","parameters":[{"name":"s","type":"string","required":true},{"name":"i","type":"integer"},{"name":"f","type":"float"},
		{"name":"b","type":"boolean"},{"name":"l","type":"array[array[integer]]"},{"name":"o","type":"object","properties":[{"name":"x","type":"float","required":true}]},
		{"name":"free","type":"object"},{"name":"bin","type":"binary"}]}`))
	require.NoError(t, err)
	v, err := newValidator(c, validation{})
	require.NoError(t, err)
	for _, in := range []string{`{"s":""}`, `{"s":"é }"}`, `{"s":"a","i":0}`, `{"s":"a","i":-100000000000000000,"f":-0,"b":false}`, `{"s":"a","f":1e+21,"l":[]}`,
		`{"s":"a","f":0.1,"l":[[],[1,2]],"o":{"x":1.5}}`, `{"s":"a","b":true}`} {
		require.Equal(t, len(in), v.root.normalEnd([]byte(in), 0), in)
		out, err := v.normalized(json.RawMessage(in))
		require.NoError(t, err)
		require.Equal(t, in, string(out))
	}
	for _, in := range []string{``, `[]`, `{}`, `{"i":1,"s":"a"}`, `{"s":"a","i":1.0}`, `{"s":"a","i":-0}`, `{"s":"a","i":1e2}`, `{"s":"a","i":null}`, `{"s":"a","f":1.0}`, `{"s":"a","f":1e21}`,
		`{"s":"a","f":1e999}`, `{"s":"a","f":"NaN"}`, `{"s":1}`, `{"s":"\u0041"}`, `{"s":"\""}`, `{"s": "a"}`, `{"s":"a" }`, `{"s":"a","l":[ ]}`, `{"s":"a","l":[1]}`, `{"s":"a","l":[[1] ,[2]]}`, `{"s":"a","o":{}}`,
		`{"s":"a","o":{"x":1,"y":2}}`, `{"s":"a","u":1}`, `{"s":"a","free":{ }}`, `{"s":"a","bin":"_w"}`, `{"s":"a","b":null}`, `{"s":"a","l":{}}`, `{"s":"a","i":-1e2,"f":-1e-7}`} {
		require.Negative(t, v.root.normalEnd([]byte(in), 0), in)
	}
}

// FuzzContract: a contract that is accepted is written and read again as the same.
func FuzzContract(f *testing.F) {
	f.Add([]byte(`{"name":"a/b","parameters":[{"name":"rows","type":"array[array[object]]","properties":[{"name":"x","type":"float","required":true}]}],"timeout_ms":5,"metadata":{"k":1}}`))
	f.Fuzz(func(t *testing.T, in []byte) {
		c, err := DecodeContract(in)
		if err == nil {
			require.NoError(t, c.Validate())
			reread, err := DecodeContract(c.appendJSON(nil))
			require.NoError(t, err)
			require.Equal(t, c, reread)
		} else {
			var e *ContractError
			require.ErrorAs(t, err, &e)
		}
	})
}

// The defects of peers that must not come back, section h: an endless number
// answers at once, a name with a line break is no name.
func TestPeerDefects(t *testing.T) {
	v, err := newValidator(&Contract{Name: "t", Parameters: []Parameter{{Name: "v", Type: "integer"}, {Name: "f", Type: "float"}}}, validation{})
	require.NoError(t, err)
	for in, reason := range map[string]Reason{`1e999999999999999999999`: reasonOutOfRange, `1e-999999999999999999999`: reasonNotInteger, `1.5e400`: reasonOutOfRange,
		`15e-1`: reasonNotInteger, `100.10`: reasonNotInteger, `"1"`: reasonWrongType, `true`: reasonWrongType, `-9223372036854775809`: reasonOutOfRange,
		`0.5e999999999999999999999`: reasonOutOfRange, `12345678901234567890123e-3`: reasonNotInteger} {
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
	e := fault(ErrInternal, reasonChunkGap, "/x", "gone")
	require.ErrorIs(t, e, ErrInternal)
	require.ErrorIs(t, e, reasonChunkGap)
	require.NotErrorIs(t, e, ErrExecutionFailed)
	require.Equal(t, "altar: INTERNAL_ERROR (chunk_gap): gone", e.Error())
	require.Equal(t, "/x", e.StringDetail("path"))
	require.Equal(t, "altar: chunk_gap", reasonChunkGap.Error())
	require.Equal(t, "altar: INTERNAL_ERROR", ErrInternal.Error())
	cause := errors.New("cause")
	require.ErrorIs(t, &Error{Code: ErrInternal, Cause: cause}, cause)
	require.Nil(t, (&Error{Details: json.RawMessage("{")}).ParamErrors())
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
		{&ToolCall{InvocationID: "i", header: header{RequestID: "a\nb"}}, "/request_id"},
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
		require.Equal(t, tt.path, e.StringDetail("path"))
		require.Equal(t, "keep", string(out))
	}
	out, err := AppendMessage(nil, &CreateSession{SecurityContext: &SecurityContext{}})
	require.NoError(t, err)
	require.Equal(t, `{"type":"CreateSession","security_context":{}}`, string(out))
	require.True(t, bytes.Equal(appendText(nil, []byte(`{ "a" : "x\\" }`)), []byte(`{"a":"x\\"}`)))
}

// ALT-D09: not a number and the infinities, where both sides agreed on strings.
func TestNonFinite(t *testing.T) {
	type in struct {
		V []nonfinite.Float `json:"v"`
	}
	rt := must(NewRuntime("r1", &RuntimeOptions{AllowNonFinite: true}))
	AddTool(rt, "floats", func(_ context.Context, x in) ([]nonfinite.Float, error) { return x.V, nil })
	m := &Manifest{Contracts: []*Contract{{Name: "floats", Parameters: []Parameter{{Name: "v", Type: "array[float]", Required: true}}}}}
	for _, opts := range []*HostOptions{{AllowNonFinite: true}, nil} {
		h, err := newHost(m, AuthorizerFunc(AllowAll), opts)
		require.NoError(t, err)
		conn, err := h.Dial(testService)
		require.NoError(t, err)
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- rt.Run(ctx, conn) }()
		for h.Stats().Runtimes == 0 {
			time.Sleep(time.Millisecond)
		}
		c := must(NewClient(func(context.Context) (Conn, error) { return h.Dial(testUser) }, nil))
		s, err := c.CreateSession(ctx, nil)
		require.NoError(t, err)
		sent := []nonfinite.Float{1.5, nonfinite.Float(math.Inf(1)), nonfinite.Float(math.Inf(-1)), -0.25}
		got, err := CallAs[[]nonfinite.Float](ctx, s, "floats", in{sent}, nil)
		if opts != nil {
			require.NoError(t, err)
			require.Equal(t, sent, got)
			got, err = CallAs[[]nonfinite.Float](ctx, s, "floats", in{[]nonfinite.Float{nonfinite.Float(math.NaN())}}, nil)
			require.NoError(t, err)
			require.True(t, math.IsNaN(float64(got[0])))
		} else {
			require.ErrorIs(t, err, reasonWrongType)
		}
		require.NoError(t, c.Close())
		stop()
		require.NoError(t, <-done)
		require.NoError(t, h.Close())
	}
	var f nonfinite.Float
	require.Error(t, json.Unmarshal([]byte(`"1"`), &f))
}

// Objects with too many names are refused where they are received, and where they are sent.
func TestMessagesBoundNames(t *testing.T) {
	object := func(n int) json.RawMessage {
		out := []byte{'{'}
		for i := range n {
			out = fmt.Appendf(out, `"%d":0,`, i)
		}
		return append(out[:len(out)-1], '}')
	}
	call := ToolCall{InvocationID: "i", SessionID: "s", ToolName: "t", Parameters: object(1000)}
	frame, err := AppendMessage(nil, &call)
	require.NoError(t, err)
	_, err = DecodeMessage(frame, 0)
	require.NoError(t, err)
	call.Parameters = object(1001)
	_, err = AppendMessage(nil, &call)
	require.ErrorIs(t, err, reasonInvalidValue)
	frame, err = appendMessage(nil, &call, true)
	require.NoError(t, err)
	_, err = DecodeMessage(frame, 0)
	require.ErrorIs(t, err, reasonMessageTooLarge)
	_, _, err = vet(&call)
	require.ErrorIs(t, err, reasonInvalidValue, "within one process")
}

// Faults are found in the order of the type, whatever the order of the text is.
func TestDecodeMessageNamesFirstFault(t *testing.T) {
	for frame, want := range map[string]string{
		`{"correlation_id":1,"timeout_ms":0,"parameters":[],"session_id":"s","type":"ToolCall","tool_name":"t","invocation_id":"i"}`: "/parameters",
		`{"correlation_id":1,"timeout_ms":0,"session_id":"s","type":"ToolCall","tool_name":"t","invocation_id":"i"}`:                 "/timeout_ms",
		`{"correlation_id":1,"invocation_id":"i","session_id":"s","type":"ToolCall"}`:                                                "/tool_name",
		`{"request_id":"","correlation_id":1,"type":"Ping"}`:                                                                         "/request_id",
		`{"tools":[{"name":"n","parameters":[{"name":"p"}]}],"session_id":"s","type":"ToolList"}`:                                    "/tools/0/parameters/0/type",
		`{"is_final":1,"chunk_id":1.5,"invocation_id":"i","type":"StreamChunk"}`:                                                     "/chunk_id",
		`{"metadata":{"a":"b","c/d":null},"runtime_id":"r","protocol_version":"1","type":"AnnounceRuntime"}`:                         "/metadata/c~1d",
	} {
		_, err := DecodeMessage([]byte(frame), 0)
		var e *badFrame
		require.ErrorAs(t, err, &e, frame)
		require.Equal(t, want, e.Err.StringDetail("path"), frame)
	}
}

// The hand-written writer of calls and jsonmap have the same output.
func TestAppendToolCallAgreesWithJSONMap(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		text := rapid.StringMatching(`[a-z"\\\\é]{0,6}`)
		m := &ToolCall{
			InvocationID:  rapid.StringMatching(`[!-~]{1,9}`).Draw(rt, "id"),
			SessionID:     text.Draw(rt, "session"),
			ToolName:      text.Draw(rt, "tool"),
			Parameters:    json.RawMessage(`{"a":1}`),
			TimeoutMS:     rapid.Int64Range(0, 3).Draw(rt, "timeout"),
			CollectChunks: rapid.Bool().Draw(rt, "collect"),
			ResumeFrom:    rapid.Int64Range(0, 3).Draw(rt, "resume"),
			header:        header{CorrelationID: text.Draw(rt, "correlation")},
		}
		if rapid.Bool().Draw(rt, "has metadata") {
			m.Metadata = rapid.MapOfN(text, text, 0, 3).Draw(rt, "metadata")
		}
		got, err := AppendMessage(nil, m)
		require.NoError(rt, err)
		body, err := jsonmap.Append(nil, (*toolCall)(m))
		require.NoError(rt, err)
		require.Equal(rt, `{"type":"ToolCall",`+string(body[1:]), string(got))
	})
}
