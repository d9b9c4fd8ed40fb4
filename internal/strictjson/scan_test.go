// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package strictjson

import (
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
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
		`{"x":{"a":1},"a":1,"y":{"a":2,"a":3}}`, `{"a":1,"\u0061":2}`, `{"\u0061":2}`, `{"\u0061":1,"a":2}`, `{"\u0061":1,"\u0061":2}`, `{"\u0061":{"a":1},"b":{"a":1}}`, "0", "-0", "01", "-", "1.", ".1", "1.5", "1e5", "1E+5", "1e", "1e+", "-1.5e-7", "00", "1x", "--1",
		`"`, `""`, `"a`, `"\n\"\\\/\b\f\r\t"`, `"\x"`, `"\`, `"\u12"`, `"\u123g"`, `"\u00e9"`, `"\ud800"`, `"\udc00"`, `"\ud83d\ude00"`, `"\ud83d\u0041"`, `"\ud83dx"`, `"\ud83d\ud83d"`,
		"\"\x00\"", "\"\x1f\"", "\"\x7f\"", "\"\x80\"", "\"é\"", "\"\xc3\"", "\"aaaaaaa\xc3\"", "\"\xed\xa0\x80\"", "\"\xff\"", "\"aaaaaaaaé\"", "\"aaaaaaa\x00aa\"", "\"aaaaaaaa\\\"a\"",
		"\xef\xbb\xbf1", "1 1", "{} {}", "[1]]", " \t\r\n1\n", "\v1", `["` + strings.Repeat("a", 100) + `"]`,
		many(3), many(32), many(33), many(200), "[" + many(32) + "," + many(32) + "]", `{"a":` + many(32) + `,"b":` + many(31) + "}",
		strings.Repeat("[", 40) + strings.Repeat("]", 40), strings.Repeat("[", 41) + strings.Repeat("]", 41),
		strings.Repeat(`{"a":`, 50) + "1" + strings.Repeat("}", 50),
	}
}

// holdScan compares the scanner with jsontext, and its spans with a walk over the text.
func holdScan(t *testing.T, data []byte) {
	const limit = 40
	for _, lone := range []bool{false, true} {
		_, err := Check(data, Options{MaxDepth: limit, LoneSurrogates: lone})
		require.Equal(t, validByJSONText(data, limit, lone), err == nil, "%q: %v", data, err)
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

// validByJSONText is the reference for the scanner.
func validByJSONText(data []byte, limit int, lone bool) bool {
	var opts []jsontext.Options
	if lone {
		opts = append(opts, jsontext.AllowInvalidUTF8(true))
	}
	return utf8.Valid(data) && jsontext.Value(data).IsValid(opts...) && maxDepth(data) <= limit
}

func maxDepth(data []byte) int {
	deepest := 0
	for i, c := range data {
		if c == '{' || c == '[' {
			deepest = max(deepest, depth(data[:i+1]))
		}
	}
	return deepest
}

func TestScannerAcceptsTheDepthOfJSONText(t *testing.T) {
	deep := strings.Repeat("[", jsontextDepth) + strings.Repeat("]", jsontextDepth)
	_, err := Check([]byte(deep), Options{MaxDepth: 2 * jsontextDepth})
	require.NoError(t, err)
	_, err = Check([]byte("["+deep+"]"), Options{MaxDepth: 2 * jsontextDepth})
	var e *Error
	require.ErrorAs(t, err, &e)
	require.Equal(t, Depth, e.Kind)
}

// Names are bounded where a bound is set, and equal names are found in objects of any size.
func TestCheckRefusesNames(t *testing.T) {
	many := func(n int, last string) string {
		var b strings.Builder
		for i := range n - 1 {
			fmt.Fprintf(&b, `"k%d":{"k%d":0},`, i, i)
		}
		return "{" + b.String() + `"` + last + `":1}`
	}
	long := `{"` + strings.Repeat("n", 1025) + `":1}`
	tests := []struct {
		name, in string
		o        Options
		kind     Kind
	}{
		{"many without a bound", many(5000, "last"), Options{}, 0},
		{"at the bound", many(1000, "last"), Options{MaxNames: 1000}, 0},
		{"over the bound", many(1001, "last"), Options{MaxNames: 1000}, Count},
		{"long without a bound", long, Options{}, 0},
		{"long", long, Options{MaxName: 1024}, Count},
		{"a bound ends the scan", many(1001, "k7"), Options{MaxNames: 1000}, Count},
		{"a duplicate comes before a bound of the depth", `[[{"a":1,"a":1}]]`, Options{MaxDepth: 1}, Duplicate},
		{"duplicate among few", many(20, "k7"), Options{}, Duplicate},
		{"duplicate among many", many(5000, "k7"), Options{}, Duplicate},
		{"duplicate by escape among many", many(5000, `\u006b4000`), Options{}, Duplicate},
		{"the same names in two large objects", "[" + many(100, "x") + "," + many(100, "x") + "," + many(300, "x") + "]", Options{}, 0},
		{"a duplicate behind a large one in a large one", many(100, "x")[:len(many(100, "x"))-1] + `,"z":` + many(100, "x") + `,"k7":1}`, Options{}, Duplicate},
		{"a name behind a large one in a large one", many(100, "x")[:len(many(100, "x"))-1] + `,"z":` + many(100, "x") + `,"y":1}`, Options{}, 0},
		{"large in large", `{"a":` + many(100, "x") + `,` + many(100, "y")[1:len(many(100, "y"))-1] + `,"z":` + many(100, "k7") + `}`, Options{}, Duplicate},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := Check([]byte(tt.in), tt.o)
			if tt.kind == 0 {
				require.NoError(t, err)
				return
			}
			var e *Error
			require.ErrorAs(t, err, &e)
			require.Equal(t, tt.kind, e.Kind)
		})
	}
}

// The names of an object are dropped where it ends.
func TestScannerDropsNamesOfClosedObjects(t *testing.T) {
	object := strings.ReplaceAll(manyNames(100), "k", `\u006b`)
	text := "[" + strings.Repeat(object+",", 100) + `{"a":` + object + "}]"
	var s scanner
	s.reset(Options{})
	_, _, end := s.all([]byte(text), nil)
	require.Equal(t, len(text), end)
	require.Zero(t, s.top)
	require.Empty(t, s.decoded)
	require.Empty(t, s.tables)
	require.Less(t, cap(s.decoded), 2*len(object))
}

func TestSurveyAllocates(t *testing.T) {
	text := []byte(`{"a":1,"b":{"c":"d"},"e":[1,2]}`)
	require.Zero(t, testing.AllocsPerRun(100, func() {
		var buf [8]Span
		if _, _, spans, err := Survey(text, Options{}, buf[:0]); err != nil || len(spans) != 3 {
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
