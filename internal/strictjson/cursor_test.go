// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package strictjson

import (
	stdjson "encoding/json"
	"errors"
	"fmt"
	"hash/maphash"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fivewire/fivewire/internal/race"
)

// readAny reads the current value with the methods of a cursor. Every value for which
// skip returns true is skipped, and every one for which raw returns true is read as text.
func readAny(c *Cursor, skip, raw func() bool) any {
	if skip() {
		return nil
	}
	if raw() {
		v, _, _ := c.Raw()
		return v.Any()
	}
	switch c.Kind() {
	case '{':
		out := map[string]any{}
		for c.Object(); c.Name(); {
			name := string(c.Key())
			out[name] = readAny(c, skip, raw)
		}
		return out
	case '[':
		out := []any{}
		for c.Array(); c.Element(); {
			out = append(out, readAny(c, skip, raw))
		}
		return out
	case '"':
		s, _ := c.Text()
		return s
	case '0':
		n, _ := c.Number()
		return stdjson.Number(n)
	case 'n':
		c.Null()
		return nil
	}
	b, _ := c.Bool()
	return b
}

func never() bool { return false }

// holdCursor holds the cursor to the answers of Check.
func holdCursor(t *testing.T, data []byte) {
	for _, o := range []Options{
		{MaxDepth: 40}, {MaxDepth: 3, MaxNames: 2, MaxName: 3}, {MaxBytes: 20},
		{LoneSurrogates: true, MaxNames: -1, MaxName: -1},
	} {
		bounds := o
		if bounds.MaxNames == 0 {
			bounds.MaxNames, bounds.MaxName = cursorMaxNames, cursorMaxName
		}
		v, want := Check(data, bounds)
		c := NewCursor(data, o)
		got := readAny(c, never, never)
		if want == nil {
			require.NoError(t, c.Err(), "%q", data)
		} else {
			require.Equal(t, want, c.Err(), "%q", data)
		}
		require.Equal(t, want != nil, c.Failed(), "%q", data)
		if want == nil {
			require.Equal(t, v.Any(), got, "%q", data)
		}
		for _, mode := range []struct{ skip, raw int }{{2, 3}, {3, 2}, {1, 1}, {5, 1}} {
			n := 0
			every := func(k int) func() bool {
				return func() bool {
					n++
					return n%k == 0
				}
			}
			c.Reset(data, o)
			readAny(c, every(mode.skip), every(mode.raw))
			err := c.Err()
			require.Equal(t, want == nil, err == nil, "%q: %v", data, err)
		}
	}
}

func TestCursorRefusesWhatCheckRefuses(t *testing.T) {
	for _, text := range scanTexts() {
		holdCursor(t, []byte(text))
	}
}

func FuzzCursor(f *testing.F) {
	for _, text := range scanTexts() {
		f.Add([]byte(text))
	}
	f.Fuzz(holdCursor)
}

func TestCursorBoundsNamesByDefault(t *testing.T) {
	for _, tt := range []struct {
		text string
		kind Kind
	}{
		{manyNames(1000), 0}, {manyNames(1001), Count}, {`[{"a":` + manyNames(1001) + `}]`, Count},
		{`{"` + strings.Repeat("n", 1024) + `":1}`, 0}, {`{"` + strings.Repeat("n", 1025) + `":1}`, Count},
	} {
		err := NewCursor([]byte(tt.text), Options{}).Err()
		var e *Error
		require.Equal(t, tt.kind != 0, errors.As(err, &e))
		if e != nil {
			require.Equal(t, tt.kind, e.Kind)
		}
		require.NoError(t, NewCursor([]byte(tt.text), Options{MaxNames: -1, MaxName: -1}).Err())
	}
}

func manyNames(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, `,"k%d":0`, i)
	}
	return "{" + b.String()[1:] + "}"
}

func TestCursorLeavesValuesOfOtherTypes(t *testing.T) {
	c := NewCursor([]byte(`{"a":"x","\u0062":[1,true,null,{}],"c":-1.50,"d":{"e":1}} `), Options{})
	require.Equal(t, byte('{'), c.Kind())
	require.False(t, c.Array())
	require.False(t, c.Null())
	_, ok := c.Text()
	require.False(t, ok)
	require.True(t, c.Object())
	require.True(t, c.Name())
	require.Equal(t, "a", string(c.Key()))
	_, ok = c.Bool()
	require.False(t, ok)
	_, ok = c.Number()
	require.False(t, ok)
	s, ok := c.Text()
	require.True(t, ok)
	require.Equal(t, "x", s)
	_, ok = c.Text()
	require.False(t, ok, "read twice")
	require.Zero(t, c.Kind())
	require.True(t, c.Name())
	require.Equal(t, "b", string(c.Key()))
	require.True(t, c.Array())
	require.False(t, c.Name(), "an array has no names")
	for range 4 {
		require.True(t, c.Element(), "elements that are not read are skipped")
	}
	require.False(t, c.Element())
	require.True(t, c.Name())
	n, ok := c.Number()
	require.True(t, ok)
	require.Equal(t, "-1.50", string(n))
	require.True(t, c.Name())
	raw, shape, ok := c.Raw()
	require.True(t, ok)
	require.Equal(t, `{"e":1}`, string(raw))
	require.Equal(t, Shape{Compact: true, Plain: true}, shape)
	require.False(t, c.Name())
	require.NoError(t, c.Err())
	require.False(t, c.Skip(), "behind the end")
	require.False(t, c.Name())
}

func TestCursorFindsMemberAhead(t *testing.T) {
	for text, want := range map[string]string{
		`{"type":1}`: "1", `{"a":{"type":2},"b":"\"type","type" : [3]}`: "[3]", `{"\u0074ype":4,"a":1}`: "4",
		`{}`: "", `[]`: "", `{"a":"type"}`: "", `{"type`: "", `{"a"`: "", `{"a":`: "", `{"a":1,`: "", `{"\`: "", `{1`: "", `{"a":,"type":5`: "5",
	} {
		c := NewCursor([]byte(text), Options{})
		v, ok := c.Find("type")
		require.Equal(t, want, string(v), text)
		require.Equal(t, want != "", ok, text)
	}
}

func TestCursorSharesStrings(t *testing.T) {
	long := strings.Repeat("x", maxRecent+1)
	text := []byte(`["abc","abc","` + long + `","","é\n"]`)
	var shared Strings
	var got []string
	read := func() {
		c := NewCursor(text, Options{})
		c.Share(&shared)
		got = got[:0]
		for c.Array(); c.Element(); {
			s, _ := c.Text()
			got = append(got, s)
		}
		require.NoError(t, c.Err())
	}
	read()
	require.Equal(t, []string{"abc", "abc", long, "", "é\n"}, got)
	place := func(s string) *[2]string {
		return &shared.recent[maphash.String(shared.seed, s)%uint64(len(shared.recent))]
	}
	other := ""
	for i := 0; place(other) != place("abc"); i++ {
		other = fmt.Sprint("other ", i)
	}
	for _, pair := range shared.recent {
		for _, s := range pair {
			require.LessOrEqual(t, len(s), maxRecent, "a long string stays")
		}
	}
	if !race.Enabled {
		c, texts := NewCursor(nil, Options{}), [][]byte{[]byte(`"abc"`), []byte(`"` + other + `"`)}
		require.Zero(t, testing.AllocsPerRun(100, func() {
			for i, want := range []string{"abc", other} {
				c.Reset(texts[i], Options{})
				c.Share(&shared)
				if s, ok := c.Text(); !ok || s != want {
					panic(s)
				}
			}
		}), "two strings with one hash")
	}
}

func TestCursorAllocatesNothing(t *testing.T) {
	if race.Enabled {
		t.Skip("the race detector allocates")
	}
	text := []byte(`{"a":1,"b":{"c":"d","e":[true,null,[[]]]},"f":[1,2.5,{"g":"é"}]}`)
	c := NewCursor(nil, Options{})
	require.Zero(t, testing.AllocsPerRun(100, func() {
		c.Reset(text, Options{})
		for c.Object(); c.Name(); {
			switch string(c.Key()) {
			case "b":
				for c.Object(); c.Name(); {
					c.TextBytes()
				}
			case "f":
				for c.Array(); c.Element(); {
					c.Number()
				}
			}
		}
		if c.Failed() {
			panic("refused")
		}
	}))
}

func TestValueUint(t *testing.T) {
	for text, want := range map[string]uint64{"0": 0, "-0": 0, "18446744073709551615": 1<<64 - 1, "1e19": 1e19, "18446744073709551615.0": 1<<64 - 1, "7": 7} {
		n, ok := check(t, text).Uint()
		require.True(t, ok, text)
		require.Equal(t, want, n, text)
	}
	for _, text := range []string{"-1", "18446744073709551616", "1.5", "1e20", `"1"`, "1e99999999999999999999"} {
		_, ok := check(t, text).Uint()
		require.False(t, ok, text)
	}
}

func TestValueIsIntegral(t *testing.T) {
	for text, want := range map[string]bool{
		"0": true, "1.0": true, "15e-1": false, "150e-1": true, "1e400": true, "1e-400": false, "0.0e-5": true, `"1"`: false,
		"1e99999999999999999999": true, "1e-99999999999999999999": false, "1.5e99999999999999999999": true,
		"1e" + strings.Repeat("9", 2000): true, "1e-" + strings.Repeat("9", 2000): false,
	} {
		require.Equal(t, want, check(t, text).IsIntegral(), text)
	}
}

func TestEqual(t *testing.T) {
	for _, tt := range []struct {
		a, b           string
		want, wantText bool
	}{
		{"1", "1.0", true, false}, {"1e400", "10e399", true, false}, {"9007199254740993", "9007199254740992", false, false}, {"0", "-0", true, false},
		{`"a"`, `"\u0061"`, true, true}, {`"a"`, `"b"`, false, false}, {"null", "null", true, true}, {"true", "false", false, false},
		{`{"a":1,"b":[2]}`, `{ "b" : [ 2 ] , "\u0061" : 1 }`, true, true}, {`{"a":1}`, `{"a":1,"b":2}`, false, false}, {`{"a":1}`, `{"b":1}`, false, false},
		{"[1,2]", "[2,1]", false, false}, {"[1]", "[1,1]", false, false}, {"[]", "{}", false, false}, {"[ ]", "[]", true, true}, {"[[1]]", "[[1.0]]", true, false},
	} {
		require.Equal(t, tt.want, Equal(check(t, tt.a), check(t, tt.b)), "%s %s", tt.a, tt.b)
		require.Equal(t, tt.want, Equal(check(t, tt.b), check(t, tt.a)), "%s %s", tt.b, tt.a)
		require.Equal(t, tt.wantText, EqualText(check(t, tt.a), check(t, tt.b)), "%s %s", tt.a, tt.b)
	}
	require.True(t, Equal(nil, nil))
	require.False(t, Equal(nil, check(t, "null")))
}

// shapes are texts of about n bytes of every shape that costs a reader much.
func shapes(n int) map[string]string {
	members := func(per int, name string) string {
		var one strings.Builder
		for i := range per {
			fmt.Fprintf(&one, name+":0,", i)
		}
		object := "{" + strings.TrimSuffix(one.String(), ",") + "},"
		return "[" + strings.TrimSuffix(strings.Repeat(object, n/len(object)), ",") + "]"
	}
	return map[string]string{
		"names":         strings.TrimSuffix(strings.TrimPrefix(members(n/14, `"%d"`), "["), "]"),
		"many names":    members(1000, `"%d"`),
		"some names":    members(32, `"%d"`),
		"escaped names": members(1000, `"\u0061%d"`),
		"long names":    members(100, `"`+strings.Repeat("x", 1000)+`%d"`),
		"strings":       "[" + strings.Repeat(`"é\n",`, n/8) + `""]`,
		"one string":    `"` + strings.Repeat(`\\`, n/2) + `"`,
		"numbers":       "[" + strings.Repeat("1e5,", n/4) + "1]",
		"long number":   strings.Repeat("1", n),
		"arrays":        "[" + strings.Repeat("[],", n/3) + "1]",
		"deep":          "[" + strings.Repeat(strings.Repeat("[", 100)+strings.Repeat("]", 100)+",", n/201) + "1]",
		"deep objects":  "[" + strings.Repeat(strings.Repeat(`{"a":`, 100)+"1"+strings.Repeat("}", 100)+",", n/602) + "1]",
		"too deep":      strings.Repeat("[", n),
		"space":         strings.Repeat(" ", n) + "1",
		"cut off":       "[" + strings.Repeat(`{"a":"b"},`, n/10),
		"duplicate":     strings.TrimSuffix(strings.TrimPrefix(members(n/14, `"%d"`), "["), "}]") + `,"7":1}`,
	}
}

// TestLinearTime reads 16 MiB of any shape and compares the time with that of one eighth.
func TestLinearTime(t *testing.T) {
	if race.Enabled || testing.Short() {
		t.Skip("measures time")
	}
	const size = 16 << 20
	small, large := shapes(size/8), shapes(size)
	run := func(text string) time.Duration {
		data := []byte(text)
		start := time.Now()
		_ = NewCursor(data, Options{}).Err()
		_, _ = Check(data, Options{})
		return time.Since(start)
	}
	for name, text := range large {
		require.Eventually(t, func() bool { // a busy machine can delay one of these, but not all of them
			a, b := run(small[name]), run(text)
			t.Logf("%-14s %8.1f ms", name, float64(b.Microseconds())/1000)
			return b < 32*a+200*time.Millisecond
		}, time.Minute, time.Millisecond, name)
	}
}

// Strings of one block need one allocation, and long ones are not parts of it.
func TestCursorMakesStringsOfBlocks(t *testing.T) {
	if race.Enabled {
		t.Skip("the race detector allocates")
	}
	s := Strings{Block: 1024}
	c := NewCursor(nil, Options{})
	long := strings.Repeat("x", 300)
	texts := [][]byte{[]byte(`"0123456789"`), []byte(`""`), []byte(`"` + long + `"`)}
	read := func(text []byte) string {
		c.Reset(text, Options{})
		c.Share(&s)
		got, _ := c.Text()
		return got
	}
	require.Equal(t, "0123456789", read(texts[0]))
	require.Empty(t, read(texts[1]))
	require.Equal(t, long, read(texts[2]))
	require.Zero(t, testing.AllocsPerRun(90, func() { read(texts[0]) }), "one for 102 strings")
	require.Equal(t, 1.0, testing.AllocsPerRun(90, func() { read(texts[2]) }))
	first := read(texts[0])
	for range 1000 {
		read([]byte(`"abcdefghij"`))
	}
	require.Equal(t, "0123456789", first)
}
