// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"strings"
	"testing"
	"unicode/utf16"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/fivewire/fivewire/internal/strictjson"
)

func mustCheck(t *testing.T, text string) strictjson.Value {
	t.Helper()
	v, err := strictjson.Check([]byte(text), strictjson.Options{MaxDepth: maxDepth})
	require.NoError(t, err, text)
	return v
}

// compared returns the differences between the object want and an answer.
func compared(t *testing.T, want string, answer Answer, mem memory) []string {
	t.Helper()
	if mem == nil {
		mem = memory{}
	}
	g, err := normal("answer", answer)
	require.NoError(t, err)
	c := comparison{memory: mem}
	c.members("want", mustCheck(t, want), g.object, false)
	found := []string{}
	for _, d := range c.found {
		found = append(found, d.String())
	}
	return found
}

func raw(s string) json.RawMessage { return json.RawMessage(s) }

func TestCompare(t *testing.T) {
	yes := func(b bool) *bool { return &b }
	tests := []struct {
		name   string
		want   string
		answer Answer
		diffs  []string
	}{
		{name: "nothing", want: `{}`, answer: nil},
		{name: "text", want: `{"a":"x"}`, answer: Answer{"a": "x"}},
		{name: "text differs", want: `{"a":"x"}`, answer: Answer{"a": "X"}, diffs: []string{`want.a: want "x", got "X"`}},
		{name: "text is no number", want: `{"a":"1"}`, answer: Answer{"a": 1}, diffs: []string{`want.a: want "1", got 1`}},
		{name: "missing", want: `{"a":"x"}`, answer: Answer{}, diffs: []string{`want.a: want "x", got (absent)`}},
		{name: "null is not absent", want: `{"a":null}`, answer: Answer{}, diffs: []string{`want.a: want null, got (absent)`}},
		{name: "null", want: `{"a":null}`, answer: Answer{"a": nil}},
		{name: "too much", want: `{}`, answer: Answer{"a": 1}, diffs: []string{`want.a: want (absent), got 1`}},
		{name: "json not asked for", want: `{}`, answer: Answer{"json": raw(`[1]`)}, diffs: []string{`want.json: want (absent), got [1]`}},
		{name: "only if named", want: `{}`, answer: Answer{"a": Optional(1), "b": Optional(Optional(2))}},
		{name: "named", want: `{"a":2}`, answer: Answer{"a": Optional(1)}, diffs: []string{`want.a: want 2, got 1`}},
		{name: "only named", want: `{"b":2}`, answer: Answer{"a": 1, "b": 2}.Optional()},
		{name: "default", want: `{}`, answer: Answer{"a": Default([]string{}, []string{}), "b": Default(false, false)}},
		{name: "not the default", want: `{}`, answer: Answer{"b": Default(true, false)}, diffs: []string{`want.b: want (absent), which means false, got true`}},
		{name: "default named", want: `{"b":false}`, answer: Answer{"b": Default(false, false)}},
		{name: "list", want: `{"a":["x","y"]}`, answer: Answer{"a": []string{"x", "y"}}},
		{name: "list order", want: `{"a":["x","y"]}`, answer: Answer{"a": []any{"y", "x"}}, diffs: []string{`want.a[0]: want "x", got "y"`, `want.a[1]: want "y", got "x"`}},
		{name: "list short", want: `{"a":[1,2]}`, answer: Answer{"a": []int{1}}, diffs: []string{`want.a[1]: want 2, got (nothing)`}},
		{name: "list long", want: `{"a":[1]}`, answer: Answer{"a": []int{1, 2}}, diffs: []string{`want.a[1]: want (nothing), got 2`}},
		{name: "nil list is empty", want: `{"a":[]}`, answer: Answer{"a": []string(nil)}},
		{name: "list wanted", want: `{"a":[1]}`, answer: Answer{"a": 1}, diffs: []string{`want.a: want [1], got 1`}},
		{name: "list got", want: `{"a":1}`, answer: Answer{"a": []int{1}}, diffs: []string{`want.a: want 1, got [1]`}},
		{name: "object", want: `{"a":{"b":1}}`, answer: Answer{"a": Answer{"b": 1, "c": Optional(3)}}},
		{name: "object too much", want: `{"a":{"b":1}}`, answer: Answer{"a": map[string]int{"b": 1, "c": 3}}, diffs: []string{`want.a.c: want (absent), got 3`}},
		{name: "object wanted", want: `{"a":{}}`, answer: Answer{"a": true}, diffs: []string{`want.a: want {}, got true`}},
		{name: "object got", want: `{"a":"{}"}`, answer: Answer{"a": Answer{}}, diffs: []string{`want.a: want "{}", got {}`}},
		{name: "pointers", want: `{"a":true,"b":null}`, answer: Answer{"a": yes(true), "b": (*bool)(nil)}},
		{name: "integers", want: `{"a":18446744073709551615,"b":-9223372036854775808,"c":7}`, answer: Answer{"a": uint64(math.MaxUint64), "b": int64(math.MinInt64), "c": json.Number("7")}},
		{name: "integers that a float takes for equal", want: `{"a":9007199254740993}`, answer: Answer{"a": int64(9007199254740992)}, diffs: []string{`want.a: want 9007199254740993, got 9007199254740992`}},
		{name: "no matchers outside json", want: `{"a":"$string"}`, answer: Answer{"a": "x"}, diffs: []string{`want.a: want "$string" (there are matchers in json and jsonSubset only), got "x"`}},
		{name: "matcher as text", want: `{"a":"$string"}`, answer: Answer{"a": "$string"}},
		{name: "nested json", want: `{"out":[{"json":{"a":"$any"}},{"jsonSubset":{"b":1}}]}`, answer: Answer{"out": []Answer{{"json": raw(`{"a":[]}`)}, {"json": raw(`{"b":1,"c":2}`)}}}},
		{name: "nested json differs", want: `{"out":[{"json":{"b":1}}]}`, answer: Answer{"out": []Answer{{"json": raw(`{"b":1,"c":2}`)}}}, diffs: []string{`want.out[0].json.c: want (absent), got 2`}},
		{name: "list of json", want: `{"out":[]}`, answer: Answer{"out": []Answer{{"json": raw(`{}`)}}}, diffs: []string{`want.out[0]: want (nothing), got {"json":{}}`}},
		{name: "json from Go values", want: `{"json":{"a":["x",null,true]}}`, answer: Answer{"json": map[string]any{"a": []any{"x", nil, true}}}},
		{name: "json or null", want: `{"json":null}`, answer: Answer{"json": nil}},
		{name: "headers", want: `{"h":{"content-type":"text/plain","X-A":null,"x-many":"a, b"}}`, answer: Answer{"h": Headers{"Content-Type": {"text/plain"}, "X-Many": {"a", "b"}, "X-More": {"1"}}}},
		{name: "headers as written", want: `{"h":{"content-type":"t"}}`, answer: Answer{"h": Headers{"CONTENT-TYPE": {"t"}}}},
		{name: "headers differ", want: `{"h":{"A":"1","B":"2","C":null,"D":4}}`, answer: Answer{"h": Headers(http.Header{"A": {"2"}, "C": {"3"}, "D": {"4"}})}, diffs: []string{
			`want.h.A: want "1", got "2"`, `want.h.B: want "2", got (absent)`, `want.h.C: want (absent), got "3"`, `want.h.D: want 4, got "4"`}},
		{name: "no headers", want: `{"h":{"A":"1"}}`, answer: Answer{"h": Headers(nil)}, diffs: []string{`want.h.A: want "1", got (absent)`}},
		{name: "headers wanted otherwise", want: `{"h":1}`, answer: Answer{"h": Headers{"B": {"2", "3"}, "A": {"1"}}}, diffs: []string{`want.h: want 1, got {"A":"1","B":"2, 3"}`}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if tt.diffs == nil {
				tt.diffs = []string{}
			}
			require.Equal(t, tt.diffs, compared(t, tt.want, tt.answer, nil))
		})
	}
}

func TestCompareJSON(t *testing.T) {
	const (
		same = iota
		onlySubset
		differ
	)
	deep := strings.Repeat("[", 2000) + strings.Repeat("]", 2000)
	tests := []struct {
		want, got string
		result    int
	}{
		{`{"a":1,"b":[2]}`, " { \"b\" : [ 2.0 ] ,\n \"a\" : 10e-1 } ", same},
		{`{"a":1}`, `{"a":1,"b":2}`, onlySubset},
		{`{"a":{"x":1}}`, `{"a":{"x":1,"y":2}}`, onlySubset},
		{`[{"x":1}]`, `[{"x":1,"y":2}]`, onlySubset},
		{`{"a":[]}`, `{"a":[1]}`, differ},
		{`{"a":[1,2]}`, `{"a":[1]}`, differ},
		{`{"a":null}`, `{}`, differ},
		{`{"a":null}`, `{"a":null}`, same},
		{`{}`, `{"a":null}`, onlySubset},
		{`{"a":0}`, `{"a":null}`, differ},
		{`{"a":false}`, `{"a":null}`, differ},
		{`{"a":true}`, `{"a":false}`, differ},
		{`{}`, `[]`, differ},
		{`[]`, `{}`, differ},
		{`"1"`, `1`, differ},
		{`1`, `"1"`, differ},
		{`9007199254740993`, `9007199254740992`, differ},
		{`9007199254740993`, `9007199254740993.0`, same},
		{`0.1`, `0.1000000000000000055511151231257827`, differ},
		{`1e400`, `1e401`, differ},
		{`1e999999999`, `10e999999998`, same},
		{`1e999999999`, `1e999999998`, differ},
		{`-0`, `0`, same},
		{`"é"`, `"\u00e9"`, same},
		{`"é"`, "\"e\u0301\"", differ}, // not normalised
		{`"\ud83d\ude00"`, `"😀"`, same},
		{deep, deep, same},
		{`{"A":1}`, `{"a":1}`, differ},

		{`"$any"`, `null`, same},
		{`{"a":"$any"}`, `{}`, differ},
		{`"$string"`, `"x"`, same},
		{`"$string"`, `""`, differ},
		{`"$string"`, `1`, differ},
		{`"$number"`, `-1e5`, same},
		{`"$number"`, `"1"`, differ},
		{`"$time"`, `"2024-01-15T10:30:00Z"`, same},
		{`"$time"`, `"2024-02-29t10:30:00.123456789012+05:30"`, same},
		{`"$time"`, `"2016-12-31T23:59:60Z"`, same}, // a leap second
		{`"$time"`, `"2023-02-29T10:30:00Z"`, differ},
		{`"$time"`, `"2024-01-15T10:30:00"`, differ},
		{`"$time"`, `"2024-01-15T24:00:00Z"`, differ},
		{`"$time"`, `"2024-01-15 10:30:00Z"`, differ},
		{`"$time"`, `"2024-01-15T10:30:00,5Z"`, differ},
		{`"$time"`, `1705314600`, differ},
		{`"$set:x"`, `"v"`, same},
		{`"$set:x"`, `""`, differ},
		{`"$set:x"`, `7`, differ},
		{`["$set:x","$get:x"]`, `["v","v"]`, same},
		{`["$set:x","$get:x"]`, `["v","w"]`, differ},
		{`{"b":"$set:x","a":"$get:x"}`, `{"a":"v","b":"v"}`, same}, // in the order of want
		{`"$get:y"`, `"v"`, differ},
		{`"$get:y"`, `""`, differ},
		{`"$42.30"`, `"$42.30"`, same},
		{`"$42.30"`, `"x"`, differ},
		{`{"$any":1}`, `{"a":1}`, differ}, // names are no matchers
	}
	for _, tt := range tests {
		t.Run(clip(tt.want + " " + tt.got)[:min(60, len(tt.want+tt.got))], func(t *testing.T) {
			exact := compared(t, `{"json":`+tt.want+`}`, Answer{"json": raw(tt.got)}, nil)
			subset := compared(t, `{"jsonSubset":`+tt.want+`}`, Answer{"json": raw(tt.got)}, nil)
			require.Equal(t, tt.result != same, len(exact) > 0, exact)
			require.Equal(t, tt.result == differ, len(subset) > 0, subset)
		})
	}
}

// A misspelt matcher, or one in a place without matchers, is plain text, and the
// message reports that.
func TestCompareHints(t *testing.T) {
	answer := Answer{"json": raw(`{"a":"x"}`), "text": "x"}
	for want, diff := range map[string]string{
		`{"json":{"a":"$sting"},"text":"x"}`:    `want.json.a: want "$sting" (not a matcher), got "x"`,
		`{"json":{"a":"$set"},"text":"x"}`:      `want.json.a: want "$set" (not a matcher), got "x"`,
		`{"json":{"a":"$set:"},"text":"x"}`:     `want.json.a: want "$set:" (not a matcher), got "x"`,
		`{"json":{"a":"$get:"},"text":"x"}`:     `want.json.a: want "$get:" (not a matcher), got "x"`,
		`{"json":{"a":"$any:NAME"},"text":"x"}`: `want.json.a: want "$any:NAME" (not a matcher), got "x"`,
		`{"json":{"a":"$ 5"},"text":"x"}`:       `want.json.a: want "$ 5", got "x"`,
		`{"json":{"a":"x"},"text":"$string"}`:   `want.text: want "$string" (there are matchers in json and jsonSubset only), got "x"`,
		`{"json":{"a":"x"},"text":"$set:NAME"}`: `want.text: want "$set:NAME" (there are matchers in json and jsonSubset only), got "x"`,
		`{"json":{"a":"x"},"text":"$5"}`:        `want.text: want "$5", got "x"`,
	} {
		require.Equal(t, []string{diff}, compared(t, want, answer, nil))
	}
	// Text that resembles a matcher is still text.
	require.Empty(t, compared(t, `{"json":{"a":"$set","b":"$sting"},"text":"$string"}`, Answer{"json": raw(`{"a":"$set","b":"$sting"}`), "text": "$string"}, nil))
}

func TestCompareRemembersAcrossAnswers(t *testing.T) {
	mem := memory{}
	require.Empty(t, compared(t, `{"json":{"id":"$set:t"}}`, Answer{"json": raw(`{"id":"a-1"}`)}, mem))
	require.Empty(t, compared(t, `{"json":["$get:t"]}`, Answer{"json": raw(`["a-1"]`)}, mem))
	require.Equal(t, []string{`want.json[0]: want "$get:t" = "a-1", got "a-2"`},
		compared(t, `{"json":["$get:t"]}`, Answer{"json": raw(`["a-2"]`)}, mem))
	require.Equal(t, []string{`want.json: want "$get:u" (nothing is remembered under this name), got "a-2"`},
		compared(t, `{"json":"$get:u"}`, Answer{"json": raw(`"a-2"`)}, mem))
	require.Empty(t, compared(t, `{"json":"$set:t"}`, Answer{"json": raw(`"a-3"`)}, mem))
	require.Equal(t, "a-3", mem["t"], "remembering again replaces")
}

func TestAnswerRefuses(t *testing.T) {
	for _, v := range []any{
		1.5, []byte("x"), struct{}{}, map[int]string{1: "x"}, make(chan int), "\xff", []any{"\xff"}, []float64{1},
		raw(`{"a":1,"a":2}`), raw(`{`), raw(``), raw("\"\xff\""), json.Number("1x"), []any{Optional(1)}, Optional(1.5),
		Default(1, 1.5), failingMarshaler{},
	} {
		_, err := normal("answer", Answer{"a": v})
		require.Error(t, err, fmt.Sprintf("%T %v", v, v))
	}
	_, err := normal("answer", Optional(1))
	require.Error(t, err)
}

type failingMarshaler struct{}

func (failingMarshaler) MarshalJSON() ([]byte, error) { return nil, http.ErrAbortHandler }

type marshaler struct{}

func (marshaler) MarshalJSON() ([]byte, error) { return []byte(`[1, "<"]`), nil }

// A vector cannot hold a lone surrogate, so one in an answer compares as U+FFFD,
// at every place where text is compared.
func TestCompareTakesLoneSurrogatesAsReplacementCharacters(t *testing.T) {
	lone := raw(`{"a":["\ud800x"],"\udc00":"\ud800\ud800"}`)
	whole := `{"a":["\ufffdx"],"\ufffd":"\ufffd\ufffd"}`
	require.Empty(t, compared(t, `{"json":`+whole+`}`, Answer{"json": lone}, nil))
	require.Empty(t, compared(t, `{"jsonSubset":`+whole+`}`, Answer{"json": lone}, nil))
	require.Empty(t, compared(t, `{"text":"\ufffd"}`, Answer{"text": raw(`"\udfff"`)}, nil))
	require.Empty(t, compared(t, `{"json":"\ud83d\ude00"}`, Answer{"json": raw(`"\ud83d\ude00"`)}, nil))
	require.Len(t, compared(t, `{"json":"x"}`, Answer{"json": raw(`"\ud800"`)}, nil), 1)
	require.Len(t, compared(t, `{"json":"\ufffd"}`, Answer{"json": raw(`"\ud83d\ude00"`)}, nil), 1)

	mem := memory{}
	require.Empty(t, compared(t, `{"json":"$set:t"}`, Answer{"json": raw(`"a\udc00"`)}, mem))
	require.Equal(t, memory{"t": "a\uFFFD"}, mem)
}

func TestAnswerText(t *testing.T) {
	g, err := normal("answer", Answer{"z": marshaler{}, "a": mustCheck(t, " 1"), "m": Answer{"list": []any{Headers{}, nil}}})
	require.NoError(t, err)
	require.JSONEq(t, `{"a":1,"m":{"list":[{},null]},"z":[1,"<"]}`, string(g.text()))
	require.Equal(t, byte('{'), g.text()[0])
}

func TestFill(t *testing.T) {
	mem := memory{"t": "a\"1", "c_2": "${t}", "task-1.id": "T", "the name": "N"}
	tests := []struct{ in, want, err string }{
		{in: `{"a":"$get:t"}`, want: `{"a":"a\"1"}`},
		{in: `{"a":"x${t}y${c_2}"}`, want: `{"a":"xa\"1y${t}"}`}, // inserted text is not filled again
		{in: `{"b":[{"wire":"{\"id\":\"${t}\"}"},1.0,null,[]]}`, want: `{"b":[{"wire":"{\"id\":\"a\"1\"}"},1.0,null,[]]}`},
		{in: `"\u0024{t}"`, want: `"a\"1"`},
		{in: `"${ID}"`, want: `"${ID}"`},
		{in: `"$ $get $get: t ${} ${a b} $t"`, want: `"$ $get $get: t ${} ${a b} $t"`},
		{in: `{"a":"${task-1.id} ${the name}","b":"$get:the name"}`, want: `{"a":"T N","b":"N"}`},                // $set takes any name
		{in: `{"a":"${task-2.id} ${user.name} ${jndi:x}"}`, want: `{"a":"${task-2.id} ${user.name} ${jndi:x}"}`}, // nor is this more than text
		{in: `{"${t}":1}`, want: `{"${t}":1}`},
		{in: `"plain \u00e9 \/"`, want: `"plain \u00e9 \/"`},
		{in: `{"a":["$get:no"]}`, err: `step.a[0]: nothing is remembered under "no"`},
		{in: `{"a":"x${no}${nope}"}`, err: `step.a: nothing is remembered under "no"`},
	}
	for _, tt := range tests {
		t.Run(tt.in, func(t *testing.T) {
			out, err := mem.fill("step", mustCheck(t, tt.in), []string{"ID"})
			if tt.err != "" {
				require.EqualError(t, err, tt.err)
				return
			}
			require.NoError(t, err)
			require.Equal(t, tt.want, string(out))
		})
	}
}

func TestClip(t *testing.T) {
	require.Equal(t, "short", clip("short"))
	long := clip(strings.Repeat("é", 1000))
	require.Less(t, len(long), 450)
	require.Contains(t, long, "(2000 bytes)")
}

// aValue draws a JSON value, written in two ways that mean the same, and a third
// text that differs from them in one place.
func aValue(t *rapid.T, depth int) (one, two, other string) {
	space := rapid.SampledFrom([]string{"", " ", "\n\t"}).Draw(t, "space")
	limit := 5
	if depth == 0 {
		limit = 3
	}
	switch rapid.IntRange(0, limit).Draw(t, "kind") {
	case 0:
		return "null", space + "null", "false"
	case 1:
		return "true", "true" + space, "null"
	case 2:
		n := rapid.Int64().Filter(func(n int64) bool { return n != 0 }).Draw(t, "n")
		e := rapid.IntRange(-400, 400).Draw(t, "exponent")
		return fmt.Sprintf("%de%d", n, e), fmt.Sprintf("%d00.0E%d", n, e-2), fmt.Sprintf("%d.5e%d", n, e)
	case 3:
		s := rapid.StringMatching(`[a-z"\\/é😀 ]{0,8}`).Draw(t, "s")
		escaped := ""
		for _, u := range utf16.Encode([]rune(s)) {
			escaped += fmt.Sprintf(`\u%04X`, u)
		}
		return string(strictjson.AppendString(nil, s)), `"` + escaped + `"`, string(strictjson.AppendString(nil, s+"x"))
	case 4:
		var a, b, c []string
		n := rapid.IntRange(0, 4).Draw(t, "elements")
		changed := rapid.IntRange(0, n).Draw(t, "changed")
		for i := range n {
			one, two, other := aValue(t, depth-1)
			if i != changed {
				other = one
			}
			a, b, c = append(a, one), append(b, space+two), append(c, other)
		}
		if changed == n {
			c = append(c, "null")
		}
		list := func(s []string) string { return "[" + strings.Join(s, ",") + "]" }
		return list(a), list(b), list(c)
	default:
		var a, b, c []string
		n := rapid.IntRange(0, 4).Draw(t, "members")
		changed := rapid.IntRange(0, n).Draw(t, "changed")
		for i := range n {
			one, two, other := aValue(t, depth-1)
			if i != changed {
				other = one
			}
			name := fmt.Sprintf(`"%c":`, 'a'+i)
			a = append(a, name+one)
			b = append([]string{space + name + space + two}, b...)
			c = append(c, name+other)
		}
		if changed == n {
			c = append(c, `"z":null`)
		}
		object := func(s []string) string { return "{" + strings.Join(s, ",") + "}" }
		return object(a), object(b), object(c)
	}
}

func TestCompareJSONLaws(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		one, two, other := aValue(rt, 3)
		for _, subset := range []string{"json", "jsonSubset"} {
			require.Empty(rt, compared(t, `{"`+subset+`":`+one+`}`, Answer{"json": raw(two)}, nil))
			require.Empty(rt, compared(t, `{"`+subset+`":`+two+`}`, Answer{"json": raw(one)}, nil))
		}
		require.NotEmpty(rt, compared(t, `{"json":`+one+`}`, Answer{"json": raw(other)}, nil))
		require.NotEmpty(rt, compared(t, `{"json":`+other+`}`, Answer{"json": raw(one)}, nil))
		require.True(rt, strictjson.Equal(mustCheck(t, one), mustCheck(t, two)))
		require.False(rt, strictjson.Equal(mustCheck(t, one), mustCheck(t, other)))
	})
}
