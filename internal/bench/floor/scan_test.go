// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package floor

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/internal/bench/sample"
)

// texts are JSON and near misses.
var texts = []string{
	`{}`, `[]`, ` [1,2.5,-0,1e9,"a\u00e9\n"] `, `{"a":{"b":[true,false,null]}}`, `{ "a" : [ ] , "b" : { } }`, `"가나"`,
	`0`, `-0`, `10`, `0.5`, `1E+2`, `1e-2`, `"\"\\\/\b\f\n\r\t\u12aF"`, `"` + strings.Repeat("x", 100) + `"`,
	``, ` `, `01`, `-`, `1.`, `.5`, `1e`, `1e+`, `+1`, `"\x"`, `"\u12g4"`, `"\u12"`, `"\`, `"`, `"abcdefgh`, "\"\x01\"", "\"1234567\x1f\"",
	`{"a"}`, `{"a":}`, `{a:1}`, `{"a":1,}`, `{"a":1`, `{"a" 1}`, `{"a":1]`, `[1,]`, `[1 2]`, `[1`, `[`, `{`, `tru`, `nul`, `truex`, `{"a":1}x`, `1 2`,
	strings.Repeat("[", 900) + strings.Repeat("]", 900),
}

func TestValidAgreesWithEncodingJSON(t *testing.T) {
	for _, s := range texts {
		require.Equal(t, json.Valid([]byte(s)), Valid([]byte(s)), "%q", s)
	}
	for _, s := range sample.Sizes {
		require.True(t, Valid(sample.Encode(sample.New(s.N))))
	}
}

func TestValidIsStricter(t *testing.T) {
	require.False(t, Valid([]byte("\"\xff\"")), "no UTF-8")
	require.False(t, Valid([]byte(strings.Repeat("[", 1002)+strings.Repeat("]", 1002))), "too deep")
	require.True(t, Valid([]byte(strings.Repeat("[", 1001)+strings.Repeat("]", 1001))))
}

// depth returns how deep brackets outside of strings nest.
func depth(s []byte) (deepest int) {
	n, quoted := 0, false
	for i := 0; i < len(s); i++ {
		switch {
		case quoted && s[i] == '\\':
			i++
		case s[i] == '"':
			quoted = !quoted
		case quoted:
		case s[i] == '[' || s[i] == '{':
			n++
			deepest = max(deepest, n)
		case s[i] == ']' || s[i] == '}':
			n--
		}
	}
	return deepest
}

func FuzzValid(f *testing.F) {
	for _, s := range texts {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, s []byte) {
		if depth(s) > 1000 {
			return
		}
		require.Equal(t, json.Valid(s) && utf8.Valid(s), Valid(s))
	})
}

func TestPeel(t *testing.T) {
	in := []byte(` {"x": [1], "arc":"1.0", "id": 7,"method":"task.create","requestAgent":"a","targetAgent":"b","traceId":"t","params":{"k":"v"}} `)
	var h Head
	require.NoError(t, Peel(in, &h))
	require.Equal(t, Head{
		ARC: []byte(`"1.0"`), ID: []byte(`7`), Method: []byte(`"task.create"`), From: []byte(`"a"`), To: []byte(`"b"`),
		Trace: []byte(`"t"`), Params: []byte(`{"k":"v"}`),
	}, h)

	require.NoError(t, Peel(sample.Encode(sample.New(2048)), &h))
	require.Equal(t, `"task.create"`, string(h.Method))
	require.True(t, json.Valid(h.Params))
	require.Zero(t, testing.AllocsPerRun(10, func() { Peel(in, &h) }))
}

func FuzzPeel(f *testing.F) {
	for _, s := range texts {
		f.Add([]byte(s))
	}
	f.Add(sample.Encode(sample.New(300)))
	f.Add([]byte("{\"\xab\":1}"))
	f.Fuzz(func(t *testing.T, s []byte) {
		var h Head
		err := Peel(s, &h)
		if depth(s) > 1000 {
			return
		}
		// An object without members is no message.
		object := Valid(s) && bytes.HasPrefix(bytes.TrimLeft(s, " \t\r\n"), []byte("{")) && !bytes.HasPrefix(bytes.TrimLeft(bytes.TrimLeft(s, " \t\r\n")[1:], " \t\r\n"), []byte("}"))
		require.Equal(t, object, err == nil)
		if err != nil {
			return
		}
		for _, v := range [][]byte{h.ARC, h.ID, h.Method, h.From, h.To, h.Trace, h.Params} {
			require.True(t, v == nil || Valid(v))
		}
	})
}

func TestTypeOf(t *testing.T) {
	for in, want := range map[string]string{
		`{"a2e":"1.0","type":"tool/call/req","id":"x"}`: "tool/call/req",
		`{"type":1,"type":"b"}`:                         "b",
		`{"type":"a"`:                                   "a", // the rest is not read
		`{"x":{"type":"inner"}}`:                        "",
		`{"x":01,"type":"a"}`:                           "",
		`{"x":1 "type":"a"}`:                            "",
		`{"x" 1,"type":"a"}`:                            "",
		`{x:1,"type":"a"}`:                              "",
		"{\"\xff\":1,\"type\":\"a\"}":                   "",
		`{"x`:                                           "",
		`["type","a"]`:                                  "",
		`{}`:                                            "",
		``:                                              "",
	} {
		require.Equal(t, want, string(TypeOf([]byte(in))), in)
	}
}
