// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package strictjson

import (
	"bytes"
	stdjson "encoding/json"
	"errors"
	"math/big"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/internal/race"
	"github.com/fivewire/fivewire/internal/testkit"
)

func TestCheck(t *testing.T) {
	nested := func(n int) string { return strings.Repeat("[", n) + strings.Repeat("]", n) }
	tests := []struct {
		name, in string
		o        Options
		kind     Kind // 0: accepted
		offset   int
		pointer  string
	}{
		{name: "object", in: ` {"a":1} ` + "\n"},
		{name: "scalar", in: `"x"`},
		{name: "empty", in: "", kind: Syntax},
		{name: "white space only", in: "  \n", kind: Syntax, offset: 3},
		{name: "byte order mark", in: "\ufeff{}", kind: Syntax},
		{name: "cut off", in: `{"a":`, kind: Syntax, offset: 5, pointer: "/a"},
		{name: "bare word", in: `{"a":tru}`, kind: Syntax, offset: 8, pointer: "/a"},
		{name: "leading zero", in: `[1,01]`, kind: Syntax, offset: 4},
		{name: "control character", in: "[\"a\x01\"]", kind: Syntax, offset: 3, pointer: "/0"},
		{name: "two values", in: `{} {}`, kind: Trailing, offset: 2},
		{name: "trailing word", in: `{}x`, kind: Trailing, offset: 2},
		{name: "duplicate", in: `{"a":1,"b":{"c":1,"c":2}}`, kind: Duplicate, offset: 18, pointer: "/b/c"},
		{name: "duplicate by escape", in: `{"ab":1,"\u0061b":2}`, kind: Duplicate, offset: 8, pointer: "/ab"},
		{name: "case tells apart", in: `{"a":1,"A":2}`},
		{name: "grammar before duplicates", in: `{"a":1,"a":2`, kind: Syntax, offset: 12},
		{name: "bad UTF-8", in: "{\"a\":\"é\xff\"}", kind: UTF8, offset: 8},
		{name: "overlong UTF-8", in: "\"\xc0\xaf\"", kind: UTF8, offset: 1},
		{name: "UTF-8 surrogate", in: "\"\xed\xa0\x80\"", o: Options{LoneSurrogates: true}, kind: UTF8, offset: 1},
		{name: "lone surrogate", in: `"\ud800"`, kind: Syntax, offset: 1},
		{name: "lone surrogate allowed", in: `"\ud800"`, o: Options{LoneSurrogates: true}},
		{name: "bad UTF-8 beside allowed surrogate", in: "\"\\ud800\xff\"", o: Options{LoneSurrogates: true}, kind: UTF8, offset: 7},
		{name: "depth at the limit", in: nested(3), o: Options{MaxDepth: 3}},
		{name: "depth beyond", in: nested(4), o: Options{MaxDepth: 3}, kind: Depth, offset: 3},
		{name: "many brackets side by side", in: "[" + strings.Repeat("{},", 200) + "{}]", o: Options{MaxDepth: 2}},
		{name: "brackets in strings", in: `["` + strings.Repeat(`[\"{`, 200) + `"]`, o: Options{MaxDepth: 1}},
		{name: "default depth", in: nested(128)},
		{name: "beyond default depth", in: nested(129), kind: Depth, offset: 128},
		{name: "far beyond", in: nested(200_000), kind: Depth, offset: 10000},
		{name: "unclosed and deep", in: strings.Repeat("[", 1_000_000), kind: Depth, offset: 10000},
		{name: "size", in: `"1234"`, o: Options{MaxBytes: 6}},
		{name: "oversize", in: `"12345"`, o: Options{MaxBytes: 6}, kind: TooLarge, offset: 6},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			v, err := Check([]byte(tt.in), tt.o)
			if tt.kind == 0 {
				require.NoError(t, err)
				require.Equal(t, strings.TrimSpace(tt.in), string(v))
				return
			}
			var e *Error
			require.ErrorAs(t, err, &e)
			require.Equal(t, tt.kind, e.Kind, err)
			require.Equal(t, tt.offset, e.Offset, err)
			require.Equal(t, tt.pointer, e.Pointer)
			require.NotEmpty(t, e.Error())
		})
	}
}

func check(t testing.TB, s string) Value {
	t.Helper()
	v, err := Check([]byte(s), Options{LoneSurrogates: true})
	require.NoError(t, err)
	return v
}

func TestWalk(t *testing.T) {
	v := check(t, ` { "a" : 1 , "b\u0022\\" : [ true , {"x":"]}\\\""} , "" ] , "n":null,"e":{} , "f":[ ] } `)
	var got []string
	for m := v.Members(); m.Next(); {
		got = append(got, string(m.Name)+"="+string(m.Value))
	}
	require.Equal(t, []string{`a=1`, `b"\=[ true , {"x":"]}\\\""} , "" ]`, `n=null`, `e={}`, `f=[ ]`}, got)
	got = nil
	for e := v.Get(`b"\`).Elements(); e.Next(); {
		got = append(got, string(e.Value))
	}
	require.Equal(t, []string{`true`, `{"x":"]}\\\""}`, `""`}, got)
	require.Nil(t, v.Get("A"))
	require.True(t, v.Get("n").Absent())
	require.True(t, v.Get("none").Absent())
	require.False(t, v.Get("e").Absent())
	require.Zero(t, v.Get("none").Kind())
	m := v.Get("a").Members()
	require.False(t, m.Next())
	e := v.Elements()
	require.False(t, e.Next())
	require.True(t, v.IsObject())
	require.True(t, v.Get("f").IsArray())
}

// A nested value is read once, not once for each level around it.
func TestAnyIsLinear(t *testing.T) {
	testkit.RequireLess(t, 20, 1, 127, func(levels int) time.Duration {
		text := strings.Repeat("[", levels) + strings.Repeat(" ", 1<<20) + "1" + strings.Repeat("]", levels)
		v := check(t, text)
		began := time.Now()
		v.Any()
		return time.Since(began)
	})
}

func TestScalars(t *testing.T) {
	s, ok := check(t, `"é\ud83d\ude00\ud800\n"`).Text()
	require.True(t, ok)
	require.Equal(t, "é😀\ufffd\n", s)
	b, ok := check(t, `"plain"`).TextBytes()
	require.True(t, ok)
	require.Equal(t, "plain", string(b))
	require.Equal(t, "xplainé\n", string(check(t, `"é\n"`).AppendText(check(t, `"plain"`).AppendText([]byte("x")))))
	require.Empty(t, check(t, `5`).AppendText(nil))
	_, ok = check(t, `1`).Text()
	require.False(t, ok)
	_, ok = check(t, `null`).TextBytes()
	require.False(t, ok)
	yes, ok := check(t, `true`).Bool()
	require.True(t, yes && ok)
	yes, ok = check(t, `false`).Bool()
	require.True(t, !yes && ok)
	_, ok = check(t, `"true"`).Bool()
	require.False(t, ok)
}

func TestInt(t *testing.T) {
	for in, want := range map[string]int64{
		"0": 0, "-0": 0, "0.00": 0, "0e999999999999999999999": 0, "7": 7, "-42001.0": -42001, "70e-1": 7, "1e3": 1000, "1E+2": 100,
		"9223372036854775807": 1<<63 - 1, "-9223372036854775808": -1 << 63, "9223372036854775807.000": 1<<63 - 1, "9e18": 9e18,
	} {
		n, ok := check(t, in).Int()
		require.True(t, ok, in)
		require.Equal(t, want, n, in)
	}
	for _, in := range []string{"1.5", "9223372036854775808", "1e19", "1e-1", "1e999999999999", "1e99999999999999999999", `"1"`, "null", "[1]"} {
		_, ok := check(t, in).Int()
		require.False(t, ok, in)
	}
}

func TestEqualNumbers(t *testing.T) {
	for _, tt := range []struct {
		a, b string
		want bool
	}{
		{"100", "1e2", true}, {"1.50", "15e-1", true}, {"0", "-0.0e5", true}, {"0.001", "1E-3", true},
		{"9007199254740993", "9007199254740992", false}, {"1", "-1", false}, {"1e999999999", "10e999999998", true},
		{"1e99999999999999999999", "1e99999999999999999999", true}, {"1e99999999999999999999", "10e99999999999999999998", true},
		{"1e99999999999999999999", "1e99999999999999999998", false}, {"1e99999999999999999999", "-10e99999999999999999998", false},
		{"1e1000000000000000000", "10E+999999999999999999", true}, {"0.1e-99999999999999999999", "1e-100000000000000000000", true},
		{"0e99999999999999999999", "0", true}, {"1e99999999999999999999", "2e99999999999999999999", false},
		{"1e9" + strings.Repeat("0", 1024), "10e8" + strings.Repeat("9", 1024), false}, // beyond the bound
		{"123456789012345678901234567890.5", "1234567890123456789012345678905e-1", true},
	} {
		require.Equal(t, tt.want, EqualNumbers(check(t, tt.a), check(t, tt.b)), "%s %s", tt.a, tt.b)
	}
}

func TestRounded(t *testing.T) {
	for text, want := range map[string]bool{
		`9007199254740991`: false, `9007199254740992`: true, `-9007199254740993`: true, `1.5`: false, `1e300`: true,
		`"9007199254740993"`: false, `null`: false, `[1,[9007199254740993]]`: true, `[1,true]`: false,
		`{"a":{"b":9007199254740993}}`: true, `{"a":{"b":0.1}}`: false,
	} {
		var x any
		require.NoError(t, stdjson.Unmarshal([]byte(text), &x))
		require.Equal(t, want, Rounded(x), text)
	}
}

func TestAppend(t *testing.T) {
	require.Equal(t, `x"a\n\u0000\"<é`+"\u2028"+`"`, string(AppendString([]byte("x"), "a\n\x00\"<é\u2028")))
	require.Equal(t, "\"\ufffd\"", string(AppendString(nil, []byte("\xff"))))
	require.Equal(t, `x{"a":[1.50,"\u0061\/",1E+2,-0],"b":"\ud800 "}`,
		string(AppendCompact([]byte("x"), check(t, "{ \"a\" : [ 1.50 ,\n\"\\u0061\\/\",1E+2,-0] , \"b\":\"\\ud800 \"}"))))
}

func TestDecode(t *testing.T) {
	type target struct {
		A  int64          `json:"a"`
		B  *string        `json:"b"`
		C  any            `json:"c"`
		D  time.Time      `json:"d"`
		N  stdjson.Number `json:"n"`
		R  stdjson.RawMessage
		By []byte `json:"by"`
	}
	var got target
	require.NoError(t, Decode(check(t, `{"a":9007199254740993,"A":5,"b":"x","c":{"k":[12345678901234567890.5,true,null,"s"]},
		"d":"2024-01-15T10:30:00Z","n":1e400,"R":{"x": 1},"by":"aGk=","zzz":1}`), &got))
	require.Equal(t, int64(9007199254740993), got.A, "exact, and A is another member")
	require.Equal(t, "x", *got.B)
	require.Equal(t, map[string]any{"k": []any{stdjson.Number("12345678901234567890.5"), true, nil, "s"}}, got.C)
	require.Equal(t, stdjson.Number("1e400"), got.N)
	require.Equal(t, "hi", string(got.By))
	require.JSONEq(t, `{"x":1}`, string(got.R))
	require.Equal(t, 2024, got.D.Year())

	require.Error(t, Decode(check(t, `{"a":1.5}`), &got))
	require.Error(t, Decode(check(t, `{"a":9223372036854775808}`), &got))
	require.Error(t, Decode(check(t, `{"n":"1"}`), &got))
	require.Error(t, Decode(check(t, `{}`), got))
	require.Error(t, Decode(check(t, `{}`), (*target)(nil)))
}

func TestAllocations(t *testing.T) {
	if race.Enabled {
		t.Skip("the race detector allocates")
	}
	in := []byte(`{"arc":"1.0","id":"msg_abc123","method":"task.create","params":{"a":[1,2,{"b":"cdefghijklmnop"}]}}`)
	var v Value
	n := testing.AllocsPerRun(100, func() {
		v, _ = Check(in, Options{LoneSurrogates: true})
		for m := v.Members(); m.Next(); {
			if string(m.Name) == "arc" && string(m.Value) != `"1.0"` {
				t.Fatal("wrong version")
			}
		}
	})
	require.LessOrEqual(t, n, 1.0)
}

// The laws: what is accepted is what encoding/json accepts, less what it lets
// pass; walking over it gives back every value; nothing panics.
func FuzzCheck(f *testing.F) {
	for _, s := range []string{`{}`, `{"a":[1,2.5e-3,{"b":"\u00e9\\\""}],"c":null}`, `[[],[[]]]`, `{"a":1,"a":2}`, "\"\xff\"", `"\ud800"`, ` 1 `, `{"":{}}`, `[1,]`, "1 2"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		keep := bytes.Clone(data)
		v, err := Check(data, Options{LoneSurrogates: true})
		require.Equal(t, keep, data)
		if err != nil {
			var e *Error
			require.True(t, errors.As(err, &e))
			require.True(t, e.Offset >= 0 && e.Offset <= len(data))
			return
		}
		require.True(t, stdjson.Valid(data))
		require.Equal(t, rebuild(v), string(AppendCompact(nil, v)))
		var std any
		dec := stdjson.NewDecoder(bytes.NewReader(data))
		dec.UseNumber()
		require.NoError(t, dec.Decode(&std))
		require.Equal(t, std, v.Any())
	})
}

func rebuild(v Value) string {
	var b strings.Builder
	switch v.Kind() {
	case '{':
		b.WriteByte('{')
		for m := v.Members(); m.Next(); {
			if b.Len() > 1 {
				b.WriteByte(',')
			}
			b.WriteString(string(m.Key) + ":" + rebuild(m.Value))
		}
		b.WriteByte('}')
	case '[':
		b.WriteByte('[')
		for e := v.Elements(); e.Next(); {
			if b.Len() > 1 {
				b.WriteByte(',')
			}
			b.WriteString(rebuild(e.Value))
		}
		b.WriteByte(']')
	default:
		return string(v)
	}
	return b.String()
}

func FuzzEqualNumbers(f *testing.F) {
	f.Add("1e2", "100")
	f.Add("-0.50", "-5e-1")
	f.Fuzz(func(t *testing.T, a, b string) {
		x, err1 := Check([]byte(a), Options{})
		y, err2 := Check([]byte(b), Options{})
		if err1 != nil || err2 != nil || x.Kind() != '0' || y.Kind() != '0' || len(a)+len(b) > 100 {
			return
		}
		p, ok1 := exponentIsSmall(x)
		q, ok2 := exponentIsSmall(y)
		if ok1 && ok2 {
			require.Equal(t, p.Cmp(q) == 0, EqualNumbers(x, y), "%s %s", a, b)
		}
	})
}

func exponentIsSmall(v Value) (*big.Rat, bool) {
	if d, ok := parseDecimal(v); !ok || d.exp > 500 || d.exp < -500 {
		return nil, false
	}
	if i := bytes.IndexAny(v, "eE"); i >= 0 && len(v)-i > 5 {
		return nil, false
	}
	return new(big.Rat).SetString(string(v))
}

func BenchmarkCheck(b *testing.B) {
	in := []byte(`{"arc":"1.0","id":"msg_abc123","method":"task.create","requestAgent":"finance-analyzer-01","targetAgent":"document-processor-03","params":{"initialMessage":{"role":"user","parts":[{"type":"TextPart","content":"Process report 7"}]},"priority":"HIGH","seq":9007199254740993,"score":0.925,"final":true}}`)
	b.ReportAllocs()
	for b.Loop() {
		v, err := Check(in, Options{LoneSurrogates: true})
		if err != nil {
			b.Fatal(err)
		}
		for m := v.Members(); m.Next(); {
			_ = m.Name
		}
	}
}
