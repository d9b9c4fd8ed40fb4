// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package strictjson

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// scanTexts are texts of every kind, good and bad.
func scanTexts() []string {
	many := func(n int) string {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, `,"k%d":%d`, i, i)
		}
		return "{" + b.String()[1:] + "}"
	}
	return []string{
		"", " ", "null", "true", "false", "nul", "truex", "[]", "[ ]", "[1,2]", "[1 , 2 ]", "[1,]", "[,1]", "[1 2]", "{}", "{ }",
		`{"a":1}`, `{"a" : 1 , "b":[{}]}`, `{"a":1,}`, `{,"a":1}`, `{"a"}`, `{"a":}`, `{a:1}`, `{"a":1 "b":2}`, `{"a":1,"a":2}`, `{"a":{"a":1},"b":1}`,
		`{"x":{"a":1},"a":1,"y":{"a":2,"a":3}}`, `{"a":1,"\u0061":2}`, `{"\u0061":2}`, "0", "-0", "01", "-", "1.", ".1", "1.5", "1e5", "1E+5", "1e", "1e+", "-1.5e-7", "00", "1x", "--1",
		`"`, `""`, `"a`, `"\n\"\\\/\b\f\r\t"`, `"\x"`, `"\`, `"\u12"`, `"\u123g"`, `"\u00e9"`, `"\ud800"`, `"\udc00"`, `"\ud83d\ude00"`, `"\ud83d\u0041"`, `"\ud83dx"`, `"\ud83d\ud83d"`,
		"\"\x00\"", "\"\x1f\"", "\"\x7f\"", "\"\x80\"", "\"é\"", "\"\xc3\"", "\"aaaaaaa\xc3\"", "\"\xed\xa0\x80\"", "\"\xff\"", "\"aaaaaaaaé\"", "\"aaaaaaa\x00aa\"", "\"aaaaaaaa\\\"a\"",
		"\xef\xbb\xbf1", "1 1", "{} {}", "[1]]", " \t\r\n1\n", "\v1", `["` + strings.Repeat("a", 100) + `"]`,
		many(3), many(32), many(33), many(200), "[" + many(32) + "," + many(32) + "]", `{"a":` + many(32) + `,"b":` + many(31) + "}",
		strings.Repeat("[", 40) + strings.Repeat("]", 40), strings.Repeat("[", 41) + strings.Repeat("]", 41),
		strings.Repeat(`{"a":`, 50) + "1" + strings.Repeat("}", 50),
	}
}

// holdScan holds the scanner to what jsontext says, and what it tells of a text to
// what the walk over it does.
func holdScan(t *testing.T, data []byte) {
	const limit = 40
	if surelyValid(data, limit) {
		require.True(t, valid(data, false), "%q", data)
		require.LessOrEqual(t, depth(data, limit), limit, "%q", data)
	}
	v, shape, spans, err := Survey(data, Options{MaxDepth: limit}, []Span{})
	w, err2 := Check(data, Options{MaxDepth: limit})
	require.Equal(t, err2, err, "%q", data)
	require.Equal(t, w, v, "%q", data)
	if err != nil {
		require.Empty(t, spans)
		return
	}
	i := 0
	for m := v.Members(); m.Next(); i++ {
		require.Less(t, i, len(spans), "%q", data)
		s := spans[i]
		require.Equal(t, string(m.Key), string(v[s.Name:s.NameEnd]))
		require.Equal(t, string(m.Value), string(v[s.Value:s.ValueEnd]))
		if !s.Escaped {
			require.Equal(t, string(m.Name), string(v[s.Name+1:s.NameEnd-1]))
		}
	}
	require.Len(t, spans, i, "%q", data)
	if shape.Compact {
		require.Equal(t, string(v), string(AppendCompact(nil, v)), "%q", data)
	}
	if shape.Plain {
		for _, c := range v {
			require.True(t, c < 0x80 && c != '\\', "%q", data)
		}
	}
}

func TestSurvey(t *testing.T) {
	for _, text := range scanTexts() {
		holdScan(t, []byte(text))
	}
	_, shape, spans, err := Survey([]byte(` {"a":1,"b":["x"]} `), Options{}, []Span{})
	require.NoError(t, err)
	require.Equal(t, Shape{Compact: true, Plain: true}, shape)
	require.Equal(t, []Span{{Name: 1, NameEnd: 4, Value: 5, ValueEnd: 6}, {Name: 7, NameEnd: 10, Value: 11, ValueEnd: 16}}, spans)
	_, shape, _, err = Survey([]byte(`{"a": "é"}`), Options{}, []Span{})
	require.NoError(t, err)
	require.Equal(t, Shape{}, shape)
	_, _, spans, err = Survey([]byte(`{"\u0061":1}`), Options{}, []Span{})
	require.NoError(t, err)
	require.Equal(t, []Span{{Name: 1, NameEnd: 9, Value: 10, ValueEnd: 11, Escaped: true}}, spans)
	_, shape, spans, err = Survey([]byte(`{"a":1}`), Options{}, nil)
	require.NoError(t, err)
	require.True(t, shape.Plain)
	require.Nil(t, spans, "not asked for")
	_, _, _, err = Survey([]byte(`{}`), Options{MaxBytes: 1}, []Span{})
	require.ErrorAs(t, err, new(*Error))
}

// What is usual is scanned, not asked of jsontext: the speed depends on it.
func TestSurelyValid(t *testing.T) {
	for _, text := range []string{`{"a2e":"1.0","type":"tool/call/req","id":"x","ts":1.5,"arguments":{"a":[1,-2.5e3,true,null,"é\n"]}}`,
		" [ ] ", `"\ud83d\ude00"`, "-0", scanTexts()[len(scanTexts())-4]} {
		require.True(t, surelyValid([]byte(text), 128), text)
	}
	deep := strings.Repeat("[", jsontextDepth) + strings.Repeat("]", jsontextDepth)
	require.True(t, surelyValid([]byte(deep), jsontextDepth))
	require.True(t, valid([]byte(deep), false))
	require.False(t, surelyValid([]byte("["+deep+"]"), jsontextDepth))
}

func TestSurveyAllocates(t *testing.T) {
	text := []byte(`{"a":1,"b":{"c":"d"},"e":[1,2]}`)
	require.Zero(t, testing.AllocsPerRun(100, func() {
		var room [8]Span
		if _, _, spans, err := Survey(text, Options{}, room[:0]); err != nil || len(spans) != 3 {
			panic(err)
		}
	}))
}

func FuzzSurvey(f *testing.F) {
	for _, text := range scanTexts() {
		f.Add([]byte(text))
	}
	f.Fuzz(holdScan)
}

func BenchmarkCheck300B(b *testing.B) {
	text := []byte(`{"a2e":"1.0","type":"tool/call/req","id":"0000000000000000000000000000002a","ts":1716886800.25,"session_id":"finance-analyzer-01",` +
		`"tool_name":"web_search","arguments":{"query":"quarterly revenue by region and every risk","max":10,"exact":true,"lang":"en"},` +
		`"correlation_id":"0000000000000000000000000000002a","streaming":false,"timeout":30}`)
	b.SetBytes(int64(len(text)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Check(text, Options{}); err != nil {
			b.Fatal(err)
		}
	}
}
