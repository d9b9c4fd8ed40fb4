// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package a2e_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/a2e"
	"github.com/fivewire/fivewire/a2e/catalogue"
	"github.com/fivewire/fivewire/a2e/learn"
	"github.com/fivewire/fivewire/a2e/mcp"
	"github.com/fivewire/fivewire/a2e/memory"
	"github.com/fivewire/fivewire/a2e/proc"
	"github.com/fivewire/fivewire/a2e/tools"
	"github.com/fivewire/fivewire/internal/strictjson"
)

// Every message that is made carries the base members (A2E-008, A2E-009,
// A2E-011, A2E-012, A2E-013, A2E-021).
func TestEnvelope(t *testing.T) {
	codec := a2e.NewCodec()
	seen := map[string]bool{}
	for range 100 {
		line, err := codec.Append(nil, a2e.NewMessage("ping", nil))
		require.NoError(t, err)
		require.Regexp(t, `^\{"a2e":"1.0","type":"ping","id":"[0-9a-f]{12}4[0-9a-f]{3}[89ab][0-9a-f]{15}","ts":\d+(\.\d{0,5}[1-9])?\}$`, string(line))
		m, err := codec.Decode(line)
		require.NoError(t, err)
		require.False(t, seen[m.ID])
		seen[m.ID] = true
		seconds, err := m.TS.Float64()
		require.NoError(t, err)
		require.WithinDuration(t, time.Now(), time.UnixMicro(int64(seconds*1e6)), time.Minute)
	}
}

// An invalid message is an error and leaves the buffer unchanged (A2E-020, A2E-023).
func TestAppendRefuses(t *testing.T) {
	codec := a2e.NewCodec(catalogue.Types()...)
	good := tools.CallRequest{ToolName: "t", Arguments: json.RawMessage(`{}`)}
	bad := func(change func(*tools.CallRequest)) *a2e.Message {
		r := good
		change(&r)
		return a2e.NewMessage("tool/call/req", &r)
	}
	for field, m := range map[string]*a2e.Message{
		"tool_name": bad(func(r *tools.CallRequest) { r.ToolName = "\xff" }),
		"arguments": bad(func(r *tools.CallRequest) { r.Arguments = json.RawMessage("1") }),
		"timeout":   a2e.NewMessage("proc/spawn/req", &proc.SpawnRequest{Timeout: -1}),
		"type":      a2e.NewMessage("a b", nil),
		"id":        {Type: "ping", TS: "1"},
		"ts":        {Type: "ping", ID: "i", TS: "NaN"},
		"body":      {Type: "ping", ID: "i", TS: "1", Body: 7},
		"data.data": a2e.NewMessage("tool/call/resp", &tools.CallResponse{Data: tools.Result{Data: json.RawMessage(`{"a":1,"a":2}`)}}),
		"feedbacks[0].correction": a2e.NewMessage("learn/feedback/req",
			&learn.FeedbackRequest{Feedbacks: []learn.Feedback{{Polarity: learn.PolarityCorrective}}}),
		"temperature": a2e.NewMessage("mcp/sample/req", &mcp.SampleRequest{Temperature: new(math.Inf(1))}),
	} {
		out, err := codec.Append([]byte("x"), m)
		var e *a2e.Error
		require.ErrorAs(t, err, &e, field)
		require.Equal(t, a2e.ErrSchemaViolation, e.Code, field)
		require.Equal(t, field, e.Field)
		require.Equal(t, "x", string(out))
	}
	out, err := codec.Append([]byte("x"), nil)
	require.ErrorIs(t, err, a2e.ErrInvalidMessage)
	require.Equal(t, "x", string(out))
	_, err = a2e.EncodeModel[tools.CallRequest](nil)
	require.ErrorIs(t, err, a2e.ErrSchemaViolation)
	for _, arguments := range []string{`[]`, `7`, `{`, `{} {}`} {
		_, err := codec.Append(nil, bad(func(r *tools.CallRequest) { r.Arguments = json.RawMessage(arguments) }))
		require.ErrorIs(t, err, a2e.ErrSchemaViolation, arguments)
	}
	small := &a2e.Codec{MaxMessage: 50, MaxOutput: 40}
	_, err = small.Append(nil, a2e.NewMessage("ping", nil))
	require.ErrorIs(t, err, a2e.ErrInvalidMessage)
}

// Numbers of every form (A2E-D11).
func TestNumbers(t *testing.T) {
	codec := a2e.NewCodec(catalogue.Types()...)
	decode := func(member string) (*a2e.Message, error) {
		return codec.Decode([]byte(`{"a2e":"1.0","type":"mcp/sample/req","id":"i","ts":1,` + member + `}`))
	}
	for text, want := range map[string]int64{"30": 30, "30.0": 30, "3e1": 30, "300e-1": 30, "-0": 0, "0e99": 0, "9223372036854775807": math.MaxInt64} {
		m, err := decode(`"max_tokens":` + text)
		require.NoError(t, err, text)
		require.Equal(t, want, *m.Body.(*mcp.SampleRequest).MaxTokens)
	}
	for text, reason := range map[string]string{"1.5": "type", "1e-1": "type", `"1"`: "type", "true": "type", "9223372036854775808": "value",
		"1e30": "value", "15e-1": "type", "100e-1000": "type", "1.50e1": "", "1e99999999999999999999": "value", "1e-99999999999999999999": "type"} {
		_, err := decode(`"max_tokens":` + text)
		if reason == "" {
			require.NoError(t, err, text)
			continue
		}
		var e *a2e.Error
		require.ErrorAs(t, err, &e, text)
		require.Equal(t, reason, e.Reason, text)
	}
	for text, want := range map[string]string{"1": "1", "1.0": "1", "0.1": "0.1", "1e21": "1e+21", "1e-7": "1e-7", "-0.0": "0", "1E2": "100",
		"5e-324": "5e-324", "123456789012345680000": "123456789012345680000", "0.000001": "0.000001"} {
		m, err := decode(`"temperature":` + text)
		require.NoError(t, err)
		line, err := codec.Append(nil, m)
		require.NoError(t, err)
		require.Contains(t, string(line), `"temperature":`+want+`,`, text)
	}
	_, err := decode(`"temperature":1e400`)
	require.ErrorContains(t, err, "value")
}

func TestReadNonFinite(t *testing.T) {
	codec := a2e.NewCodec(catalogue.Types()...)
	line := []byte(`{"a2e":"1.0","type":"memory/retrieve/resp","id":"NaN","ts":1,"entries":[{"s":NaN,"t":[-Infinity,Infinity]}]}`)
	_, err := codec.Decode(line)
	require.ErrorIs(t, err, a2e.ErrParse)
	codec.AllowNonFinite = true
	m, err := codec.Decode(line)
	require.NoError(t, err)
	require.Equal(t, "NaN", m.ID)
	out, err := codec.Append(nil, m)
	require.NoError(t, err)
	require.Contains(t, string(out), `{"s":null,"t":[null,null]}`)
}

// Null means absent where there is a default, unset where a member is nullable,
// and is an error where it is required and not free-form (A2E-D12).
func TestNull(t *testing.T) {
	codec := a2e.NewCodec(catalogue.Types()...)
	m, err := codec.Decode([]byte(message("tool/call/req", "i", `,"tool_name":"t","arguments":{},"timeout":null,"streaming":null,"session_id":null`)))
	require.NoError(t, err)
	require.Equal(t, &tools.CallRequest{ToolName: "t", Arguments: json.RawMessage(`{}`), Timeout: 30}, m.Body)
	m, err = codec.Decode([]byte(message("tool/call/resp", "i", `,"data":{"success":true,"tool_name":"t","duration_ms":1,"data":null,"error":null}`)))
	require.NoError(t, err)
	require.Nil(t, m.Body.(*tools.CallResponse).Data.Data)
	require.Nil(t, m.Body.(*tools.CallResponse).Data.Error)
	_, err = codec.Decode([]byte(message("tool/call/req", "i", `,"tool_name":null,"arguments":{}`)))
	require.ErrorContains(t, err, "required")
	m, err = codec.Decode([]byte(message("env/render/resp", "i", `,"render":null`)))
	require.NoError(t, err, "a required member of any kind may be null")
	out, err := codec.Append(nil, m)
	require.NoError(t, err)
	require.Contains(t, string(out), `"render":null`)
}

func TestEmitVersion(t *testing.T) {
	codec := &a2e.Codec{Dialect: a2e.Dialect{WriteVersion: true}}
	line, err := codec.Append(nil, &a2e.Message{Type: "ping", ID: "i", TS: "1", Body: nil})
	require.NoError(t, err)
	require.Equal(t, `{"a2e":"1.0","version":"1.0","type":"ping","id":"i","ts":1}`, string(line))
	line, err = codec.Append(nil, &a2e.Message{Type: "x/y", ID: "i", TS: "1"})
	require.NoError(t, err)
	require.Equal(t, `{"a2e":"1.0","version":"1.0","type":"x/y","id":"i","ts":1}`, string(line))
}

// The first error of the text is reported, and a strict reader refuses the dialects (A2E-D02,
// A2E-D15).
func TestErrorSelection(t *testing.T) {
	codec := &a2e.Codec{MaxDepth: 3}
	for line, want := range map[string]string{
		`{"a":1,"a":2,}`:                   "duplicate_key",
		`{"a":1,,"a":2}`:                   "invalid_json",
		`{"a":[[[`:                         a2e.ReasonTooDeep,
		`{"a":[[],"b":[[[1]]]}`:            "invalid_json",
		`{"b":[[[1]]],"b":1}`:              a2e.ReasonTooDeep,
		`{"\u0061":1,"a":[[[`:              "duplicate_key",
		`{"a":tru}`:                        "invalid_json",
		`{"a":01}`:                         "invalid_json",
		`{"a" 1}`:                          "invalid_json",
		`{"a":1} x`:                        "invalid_json",
		"{\"a\":\"\x01\"}":                 "invalid_json",
		`{"a":"\q"}`:                       "invalid_json",
		`{"a":"`:                           "invalid_json",
		`{1:2}`:                            "invalid_json",
		`[1`:                               "invalid_json",
		`[1}`:                              "invalid_json",
		``:                                 "invalid_json",
		"{\"a\":\"\xff\",,":                "invalid_utf8",
		`7`:                                "not_object",
		strings.Repeat(`{"a":`, 1_000_000): a2e.ReasonTooDeep,
		strings.Repeat(`[`, 1_000_000):     a2e.ReasonTooDeep,
	} {
		_, err := codec.Decode([]byte(line))
		var e *a2e.Error
		require.ErrorAs(t, err, &e)
		require.Equal(t, want, e.Reason, "%.40q", line)
		require.Empty(t, e.ReqID)
	}
	strict := &a2e.Codec{Dialect: a2e.Dialect{Strict: true}}
	_, err := strict.Decode([]byte(`{"a2e":"1.0","type":"ping","id":"p1","ts":1}`))
	require.ErrorContains(t, err, "value")
	_, err = strict.Decode([]byte(`{"a2e":"1.0","type":"ping","id":"3F2504E04f8941d39a0c0305e82c3301","ts":1}`))
	require.NoError(t, err)
}

// Any chunking gives the same lines (A2E-006), and so do readers that fail in between.
func TestLineReaderGivesSameLinesForAnyChunking(t *testing.T) {
	text := strings.Repeat(`{"x":"é"}`+"\n", 3)
	for _, r := range []io.Reader{strings.NewReader(text), iotest.OneByteReader(strings.NewReader(text)),
		iotest.DataErrReader(strings.NewReader(text))} {
		in := a2e.NewLineReader(r, nil)
		for range 3 {
			line, err := in.Next()
			require.NoError(t, err)
			require.Equal(t, `{"x":"é"}`, string(line))
		}
		_, err := in.Next()
		require.ErrorIs(t, err, io.EOF)
	}
	_, err := a2e.NewLineReader(iotest.ErrReader(io.ErrNoProgress), nil).Next()
	require.ErrorIs(t, err, io.ErrNoProgress)
}

// The last line may lack its line feed if it cannot be a part of a longer one
// (A2E-D05).
func TestLastLine(t *testing.T) {
	for line, ok := range map[string]bool{`{"a":1}`: true, `{"a":1,"a":2}`: true, `{"a":[[[`: false, `[]`: false, `7`: false, `{"a":"\ud800"}`: false,
		strings.Repeat(`{"a":`, 20000) + "1" + strings.Repeat("}", 20000): true, strings.Repeat(`{"a":`, 20000): false} {
		got, err := a2e.NewLineReader(strings.NewReader(line), nil).Next()
		if ok {
			require.NoError(t, err)
			require.Equal(t, line, string(got))
		} else {
			require.ErrorContains(t, err, "truncated", "%.30q", line)
		}
		_, err = a2e.NewLineReader(strings.NewReader(line), &a2e.Codec{Dialect: a2e.Dialect{Strict: true}}).Next()
		require.ErrorContains(t, err, "truncated")
	}
}

// Types can be added at any time, but not twice with other models, and base types
// stay what they are (A2E-025, A2E-026, A2E-027, A2E-028, A2E-037, A2E-038,
// A2E-039, A2E-074).
func TestRegistry(t *testing.T) {
	type move struct {
		Joint int64 `json:"joint"`
	}
	r := a2e.NewCodec().Types
	require.Len(t, r.Types(), 7)
	require.NoError(t, r.Add(a2e.TypeOf[move]("acme/robot/arm/move/req")))
	require.NoError(t, r.Add(a2e.TypeOf[move]("acme/robot/arm/move/req")))
	codec := &a2e.Codec{Types: r}
	m, err := codec.Decode([]byte(`{"a2e":"1.0","type":"acme/robot/arm/move/req","id":"i","ts":1,"joint":3,"x":1}`))
	require.NoError(t, err)
	require.Equal(t, &move{Joint: 3}, m.Body)
	require.Equal(t, json.RawMessage("1"), m.Extra.Get("x"))
	for name, types := range map[string]a2e.Type{
		"base":      a2e.TypeOf[move]("ping"),
		"illegal":   a2e.TypeOf[move]("a//b"),
		"spelling":  a2e.TypeOf[move]("env/spaces/req"),
		"other":     a2e.TypeOf[struct{}]("acme/robot/arm/move/req"),
		"modelless": {Name: "x/y"},
	} {
		require.Error(t, r.Add(types), name)
	}
	require.Panics(t, func() { a2e.NewCodec(a2e.TypeOf[move]("error")) })
	require.Panics(t, func() { a2e.TypeOf[int]("x/y") })
}

func TestTypeOfPanicsForModelsThatCannotBeRead(t *testing.T) {
	type noTag struct{ A string }
	type badOption struct {
		A string `json:"a" jsonmap:"whatever"`
	}
	type badDefault struct {
		A int `json:"a,omitzero" jsonmap:"default=x"`
	}
	type envelope struct {
		A chan int `json:"a"`
	}
	for _, f := range []func(){
		func() { a2e.TypeOf[noTag]("x/y") }, func() { a2e.TypeOf[badOption]("x/y") }, func() { a2e.TypeOf[badDefault]("x/y") },
		func() { a2e.TypeOf[envelope]("x/y") }, func() { a2e.TypeOf[[]int]("x/y") },
	} {
		require.Panics(t, f)
	}
}

// A model may use any Go type that has a JSON form.
func TestUserModel(t *testing.T) {
	type inner struct {
		N     int `json:"n"`
		Extra a2e.Members
	}
	type model struct {
		Map   map[string]any            `json:"map,omitzero"`
		When  time.Time                 `json:"when,omitzero" jsonmap:"always"`
		Inner *inner                    `json:"inner,omitzero"`
		Many  a2e.OrderedObject[inner]  `json:"many,omitzero" jsonmap:"always"`
		List  []inner                   `json:"list,omitzero" jsonmap:"always"`
		Flag  *bool                     `json:"flag,omitzero" jsonmap:"always"`
		Num   *float64                  `json:"num,omitzero"`
		Raws  []json.RawMessage         `json:"raws,omitzero" jsonmap:"always"`
		Deep  a2e.OrderedObject[string] `json:"deep,omitzero"`
		Plain struct {
			X int `json:"X"`
		} `json:"plain"`
	}
	text := `{"map":{"a":12345678901234567890},"when":"2026-01-02T03:04:05Z","inner":{"n":1,"more":[1.0]},"many":{"b":{"n":2},"a":{"n":3}},` +
		`"list":[{"n":4}],"flag":null,"num":1.5,"raws":[null,{"x":1e5}],"deep":{"z":"1","a":"2"},"plain":{"X":1}}`
	m, err := a2e.DecodeModel[model](json.RawMessage(text), "m")
	require.NoError(t, err)
	require.Equal(t, json.Number("12345678901234567890"), m.Map["a"])
	got, ok := m.Many.Get("a")
	require.True(t, ok)
	require.Equal(t, 3, got.N)
	_, ok = m.Many.Get("c")
	require.False(t, ok)
	require.Equal(t, []a2e.Member[string]{{Name: "z", Value: "1"}, {Name: "a", Value: "2"}}, []a2e.Member[string](m.Deep))
	out, err := a2e.EncodeModel(m)
	require.NoError(t, err)
	require.Equal(t, text, string(out))
	for bad, field := range map[string]string{`{"inner":{}}`: "m.inner.n", `{"many":{"b":{}}}`: "m.many.b.n", `{"list":[{"n":1},7]}`: "m.list[1]",
		`{"map":7}`: "m.map", `{"when":"x"}`: "m.when", `{"many":7}`: "m.many", `{"deep":{"a":7}}`: "m.deep.a", `[]`: "m", `{`: "m", `{"list":{}}`: "m.list",
		`{"flag":"x"}`: "m.flag"} {
		_, err := a2e.DecodeModel[model](json.RawMessage(bad), "m")
		var e *a2e.Error
		require.ErrorAs(t, err, &e, bad)
		require.Equal(t, field, e.Field)
	}
	_, err = a2e.EncodeModel(&model{Map: map[string]any{"f": func() {}}})
	require.Error(t, err)
}

func TestMembers(t *testing.T) {
	var m a2e.Members
	require.NoError(t, m.Set("b", 1))
	require.NoError(t, m.Set("a", json.RawMessage(`{"x":1.0}`)))
	require.NoError(t, m.Set("b", "two"))
	require.Error(t, m.Set("c", json.RawMessage(`{`)))
	require.Error(t, m.Set("c", func() {}))
	text, err := m.MarshalJSON()
	require.NoError(t, err)
	require.Equal(t, `{"b":"two","a":{"x":1.0}}`, string(text))
	var names []string
	for name := range m.All() {
		names = append(names, name)
		if name == "b" {
			continue
		}
		break
	}
	require.Equal(t, []string{"b", "a"}, names)
	_, err = a2e.ParseMembers([]byte(`[]`))
	require.Error(t, err)
	_, err = a2e.ParseMembers([]byte(`{"a":1,"a":1}`))
	require.Error(t, err)
	empty, err := a2e.Members{}.MarshalJSON()
	require.NoError(t, err)
	require.Equal(t, `{}`, string(empty))
}

func TestErrors(t *testing.T) {
	e := a2e.Errorf(a2e.ErrTool, "reading: %w", io.ErrUnexpectedEOF).With("path", "x").With("n", 1)
	require.ErrorIs(t, e, io.ErrUnexpectedEOF)
	require.ErrorIs(t, e, a2e.ErrTool)
	require.JSONEq(t, `{"path":"x","n":1}`, string(e.Details))
	require.True(t, e.Retryable)
	require.Equal(t, "a2e: tool_error: reading: unexpected EOF", e.Error())
	both := a2e.Errorf(a2e.ErrTool, "%w, then %w", io.ErrUnexpectedEOF, io.ErrShortWrite)
	require.Equal(t, "unexpected EOF, then short write", both.Message)
	require.ErrorIs(t, both, io.ErrUnexpectedEOF)
	require.ErrorIs(t, both, io.ErrShortWrite)
	require.Equal(t, "a2e: parse_error", a2e.ErrParse.Error())
	require.ErrorContains(t, &a2e.HandshakeError{Reason: "auth_failed"}, "auth_failed")
	for _, unsupported := range []*a2e.Error{
		{Code: a2e.ErrInvalidMessage, Reason: "unknown_type"}, {Code: a2e.ErrInvalidMessage, Reason: a2e.ReasonUnsupported},
		{Code: a2e.ErrUnknownType}, {Code: a2e.ErrParse, Message: "Unknown type env/space/req"},
	} {
		require.True(t, errors.Is(unsupported, a2e.ErrUnsupported), "%v (A2E-D17)", unsupported)
	}
	require.NotErrorIs(t, &a2e.Error{Code: a2e.ErrParse, Message: "no JSON"}, a2e.ErrUnsupported)
	require.True(t, a2e.Errorf(a2e.ErrTool, "").Retryable)
	require.False(t, a2e.Errorf("TOOL_ERROR", "").Retryable, "codes are compared exactly (A2E-D30)")
}

// vectorLines returns the lines of all vectors, to begin fuzzing with.
func vectorLines(f *testing.F) []string {
	files, err := filepath.Glob("../conformance/testdata/a2e/*.json")
	require.NoError(f, err)
	require.NotEmpty(f, files)
	var lines []string
	for _, file := range files {
		data, err := os.ReadFile(file)
		require.NoError(f, err)
		var v any
		require.NoError(f, json.Unmarshal(data, &v))
		var walk func(any)
		walk = func(v any) {
			switch v := v.(type) {
			case map[string]any:
				for _, e := range v {
					walk(e)
				}
			case []any:
				for _, e := range v {
					walk(e)
				}
			case string:
				if strings.HasPrefix(strings.TrimSpace(v), "{") {
					lines = append(lines, v)
				}
			}
		}
		walk(v)
	}
	return lines
}

// Every decoded message can be encoded with the same meaning: a generic message exactly as
// received, a typed message with its defaults filled in, and encoding is idempotent (A2E-030,
// A2E-041, A2E-D18).
func FuzzCodec(f *testing.F) {
	for _, line := range vectorLines(f) {
		f.Add([]byte(line))
	}
	codec := a2e.NewCodec(catalogue.Types()...)
	plain := a2e.NewCodec()
	f.Fuzz(func(t *testing.T, line []byte) {
		for _, c := range []*a2e.Codec{codec, plain} {
			m, err := c.Decode(line)
			if err != nil {
				var e *a2e.Error
				require.ErrorAs(t, err, &e)
				require.Contains(t, []a2e.Code{a2e.ErrParse, a2e.ErrInvalidMessage, a2e.ErrSchemaViolation, a2e.ErrVersionMismatch}, e.Code)
				continue
			}
			out, err := c.Append(nil, m)
			require.NoError(t, err)
			require.NotContains(t, string(out), "\n")
			for _, r := range []string{"\u2028", "\u2029", "\u0085"} {
				require.NotContains(t, string(out), r)
			}
			require.NoError(t, a2e.Lossless(m, line, out), "%s", out)
			decoded, err := c.Decode(out)
			require.NoError(t, err)
			twice, err := c.Append(nil, decoded)
			require.NoError(t, err)
			require.Equal(t, string(out), string(twice))
		}
	})
}

// Every message is written without loss, whatever its type, including exact numbers and unknown
// members in their places (A2E-014, A2E-041, A2E-D18).
func TestLossless(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	codec := a2e.NewCodec(catalogue.Types()...)
	for _, ty := range codec.Types.Types() {
		read := 0
		for range 100 {
			line := a2e.RandomLine(r, &ty)
			m, err := codec.Decode(line)
			if err != nil { // checks of members go beyond their types
				require.ErrorIs(t, err, a2e.ErrSchemaViolation, "%s", line)
				continue
			}
			read++
			require.NotNil(t, m.Body)
			out, err := codec.Append(nil, m)
			require.NoError(t, err)
			require.NoError(t, a2e.Lossless(m, line, out), "%s\n%s", line, out)
		}
		require.Greater(t, read, 8, ty.Name)
	}
}

// The models have the wire form for encoding/json, except for unknown members of inner objects and the events of a
// result: a model that encoding/json has written and read is the same one (A2E-D63).
func TestModelsKeepTheirValuesInEncodingJSON(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 8))
	codec := a2e.NewCodec(catalogue.Types()...)
	for _, ty := range codec.Types.Types() {
		checked := 0
		for range 100 {
			m, err := codec.Decode(a2e.RandomLine(r, &ty))
			if err != nil {
				continue
			}
			wanted, err := codec.Append(nil, m)
			require.NoError(t, err)
			text, err := json.Marshal(m.Body)
			require.NoError(t, err)
			if strings.Contains(string(text), `"events":[{`) {
				continue
			}
			checked++
			sources := [][]byte{text}
			if !strings.Contains(string(text), `"Extra":{"`) {
				sources = append(sources, wanted)
			}
			for _, source := range sources {
				reread := *m
				reread.Body = reflect.New(reflect.TypeOf(m.Body).Elem()).Interface()
				require.NoError(t, json.Unmarshal(source, reread.Body), "%s", source)
				got, err := codec.Append(nil, &reread)
				require.NoError(t, err)
				require.Equal(t, string(wanted), string(got), "%s", source)
			}
		}
		require.Greater(t, checked, 4, ty.Name)
	}
}

// holdLaws checks the laws of reading and writing for one line. The decoder and the reference refuse
// the same lines, with the path of the first invalid member. A written message reads as the same
// message, and the second text is the first one, unknown members included.
func holdLaws(t *testing.T, codec *a2e.Codec, line []byte) (isRead bool) {
	v, err := strictjson.Check(line, strictjson.Options{MaxDepth: 256})
	if err != nil || !v.IsObject() {
		return false
	}
	name, _ := v.Get("type").Text()
	ty := codec.Types.Lookup(name)
	if ty == nil || bigExponent.Match(line) {
		return false
	}
	path, reason := a2e.FirstFault(ty, v.Any().(map[string]any))
	m, err := codec.Decode(line)
	if err != nil {
		var e *a2e.Error
		require.ErrorAs(t, err, &e)
		if e.Code == a2e.ErrVersionMismatch {
			e.Field, e.Reason = "a2e", a2e.ReasonValue
		}
		require.Equal(t, path+" "+reason, e.Field+" "+e.Reason, "%s", line)
		return false
	}
	require.Empty(t, path+reason, "%s", line)
	first, err := codec.Append(nil, m)
	require.NoError(t, err)
	reread, err := codec.Decode(first)
	require.NoError(t, err, "%s", first)
	second, err := codec.Append(nil, reread)
	require.NoError(t, err)
	require.Equal(t, string(first), string(second))
	third, err := codec.Decode(second)
	require.NoError(t, err)
	require.Equal(t, reread.Body, third.Body, "%s", first)
	require.Equal(t, reread.Extra, third.Extra)
	return true
}

// bigExponent matches numbers that the reference cannot hold.
var bigExponent = regexp.MustCompile(`[eE][-+]?[0-9]{4}`)

func TestModelsHoldLaws(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	codec := a2e.NewCodec(catalogue.Types()...)
	read, refused := 0, 0
	for _, ty := range codec.Types.Types() {
		for range 60 {
			if holdLaws(t, codec, a2e.RandomBadLine(r, &ty)) {
				read++
			} else {
				refused++
			}
		}
	}
	require.Greater(t, read, 1000)
	require.Greater(t, refused, 1000)
}

func FuzzModels(f *testing.F) {
	for _, line := range vectorLines(f) {
		f.Add([]byte(line))
	}
	r := rand.New(rand.NewPCG(5, 6))
	codec := a2e.NewCodec(catalogue.Types()...)
	for _, ty := range codec.Types.Types() {
		f.Add(a2e.RandomBadLine(r, &ty))
	}
	f.Fuzz(func(t *testing.T, line []byte) { holdLaws(t, codec, line) })
}

// A literal without limits has the defaults of the protocol; zeros behind pointers are sent (A2E-D63).
func TestZeroMeansDefault(t *testing.T) {
	codec := a2e.NewCodec(catalogue.Types()...)
	for want, m := range map[string]*a2e.Message{
		`"tool_name":"t","arguments":{},"correlation_id":"","streaming":false,"timeout":30}`: a2e.NewMessage("tool/call/req", &tools.CallRequest{ToolName: "t"}),
		`"streaming":false,"timeout":0}`:                                       a2e.NewMessage("tool/call/req", &tools.CallRequest{ToolName: "t", Timeout: a2e.LimitZero}),
		`"limit":10,"min_score":0}`:                                            a2e.NewMessage("memory/retrieve/req", &memory.RetrieveRequest{MemoryID: "mem-1"}),
		`"temperature":0,"max_tokens":1024,"stop_sequences":[],"metadata":{}}`: a2e.NewMessage("mcp/sample/req", &mcp.SampleRequest{Temperature: new(0.0)}),
		`"include_deferred":false}`:                                            a2e.NewMessage("tool/list/req", &tools.ListRequest{}),
	} {
		line, err := codec.Append(nil, m)
		require.NoError(t, err)
		require.Contains(t, string(line), want)
		reread, err := codec.Decode(line)
		require.NoError(t, err)
		out, err := codec.Append(nil, reread)
		require.NoError(t, err)
		require.Equal(t, string(line), string(out))
	}
	require.Equal(t, 30*time.Second, (&tools.CallRequest{}).TimeLimit())
	require.Zero(t, (&tools.CallRequest{Timeout: a2e.LimitZero}).TimeLimit())
}

func TestErrorsNameWantedAndGot(t *testing.T) {
	codec := a2e.NewCodec(catalogue.Types()...)
	for members, want := range map[string]string{
		`,"tool_name":7,"arguments":{}`:                 "tool_name has another type, want string, got number",
		`,"tool_name":"t","arguments":[]`:               "arguments has another type, want object, got array",
		`,"tool_name":"t"`:                              "arguments is required, want object",
		`,"tool_name":"t","arguments":{},"timeout":-1`:  "timeout has a value that is not allowed, want an integer from 0, got number",
		`,"tool_name":"t","arguments":{},"timeout":1.5`: "timeout has another type, want integer, got number",
	} {
		_, err := codec.Decode([]byte(message("tool/call/req", "i", members)))
		var e *a2e.Error
		require.ErrorAs(t, err, &e)
		require.Equal(t, want, e.Message)
	}
}

// Types can be taken apart whatever they are (A2E-D14).
func FuzzParseType(f *testing.F) {
	for _, name := range []string{"tool/call/req", "SUBAGENT_X_REQ", "a//b", "/", "", "planning/plan/create", "x/y/z"} {
		f.Add(name)
	}
	f.Fuzz(func(t *testing.T, name string) {
		p := a2e.ParseType(name)
		joined := p.Namespace
		if strings.Contains(name, "/") {
			joined += "/" + p.Verb
		}
		if p.Suffix != "" {
			joined += "/" + p.Suffix
		}
		require.Equal(t, name, joined)
		if p.Response != "" {
			require.Equal(t, a2e.KindRequest, p.Kind)
			require.Equal(t, a2e.KindResponse, a2e.KindOf(p.Response))
		}
	})
}

// A registry needs no constructor.
func TestZeroRegistry(t *testing.T) {
	var r a2e.Registry
	codec := a2e.Codec{Types: &r}
	line := []byte(`{"a2e":"1.0","type":"ping","id":"7c9e6679-7425-40de-944b-e07fc1f90ae7","ts":1}`)
	m, err := codec.Decode(line)
	require.NoError(t, err)
	require.Equal(t, "ping", m.Type)
	bases := len(r.Types())
	require.Nil(t, r.Lookup("tool/call/req"))
	require.NoError(t, r.Add(a2e.TypeOf[tools.CallRequest]("tool/call/req")))
	require.NotNil(t, r.Lookup("tool/call/req"))
	require.Len(t, r.Types(), bases+1)
}

func TestFormsOfEnvelopeAreReadAlike(t *testing.T) {
	const id = "0000000000000000000000000000002a"
	codec := a2e.NewCodec(tools.Types()...)
	for name, form := range map[string]string{
		"usual":   `{"a2e":"1.0","type":"%s","id":"%s","ts":1.5,"tool_name":"x","arguments":{},"pad":"%s"}`,
		"spaces":  `{"a2e": "1.0", "type": "%s", "id": "%s", "ts": 1.5, "tool_name": "x", "arguments": {}, "pad": "%s"}`,
		"escapes": `{"a2e":"1.0","\u0074ype":"%s","\u0069d":"%s","ts":1.5,"tool_name":"x","arguments":{},"pad":"%s"}`,
		"order":   `{"tool_name":"x","arguments":{},"ts":1.5,"type":"%s","id":"%s","a2e":"1.0","pad":"%s"}`,
		"version": `{"version":"1.0","type":"%s","id":"%s","ts":1.5,"tool_name":"x","arguments":{},"pad":"%s"}`,
		"name":    `{"a2e":"1.0","type":"\u0074%[1]s","id":"%[2]s","ts":1.5,"tool_name":"x","arguments":{},"pad":"%[3]s"}`,
	} {
		for _, msgType := range []string{"tool/call/req", "test/unknown/req"} {
			for _, pad := range []string{"", strings.Repeat("x", 5000)} {
				written := msgType
				if name == "name" {
					written = msgType[1:]
				}
				m, err := codec.Decode(fmt.Appendf(nil, form, written, id, pad))
				require.NoError(t, err, name)
				require.Equal(t, msgType, m.Type, name)
				require.Equal(t, id, m.ID, name)
				require.Equal(t, json.Number("1.5"), m.TS, name)
				require.Equal(t, msgType == "tool/call/req", m.Body != nil, name)
				text, ok := m.Extra.Text("pad")
				require.True(t, ok, name)
				require.Equal(t, pad, text, name)
			}
		}
	}
}

func TestMessageWithManyMembersIsRead(t *testing.T) {
	line := []byte(`{"a2e":"1.0","type":"test/unknown/req"`)
	for i := range 200 {
		line = fmt.Appendf(line, `,"m%d":%d`, i, i)
	}
	m, err := new(a2e.Codec).Decode(append(line, `,"id":"x","ts":1}`...))
	require.NoError(t, err)
	require.Equal(t, "x", m.ID)
	require.Equal(t, "199", string(m.Extra.Get("m199")))
}
