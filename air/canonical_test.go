// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package air_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf16"

	"github.com/cyberphone/json-canonicalization/go/src/webpki.org/jsoncanonicalizer"
	"github.com/stretchr/testify/require"
	"golang.org/x/text/unicode/norm"
	"pgregory.net/rapid"

	"github.com/fivewire/fivewire/air"
	"github.com/fivewire/fivewire/internal/strictjson"
)

// The order of the faults is fixed: what comes first in the list wins, wherever in
// the text it stands (section f; AIR-063..068, AIR-074, AIR-D02, AIR-D05, AIR-D07, AIR-D08).
func TestCanonicalizeFaults(t *testing.T) {
	deep := func(n int) string { return strings.Repeat("[", n) + strings.Repeat("]", n) }
	tests := []struct {
		name, text string
		want       air.Code
	}{
		{"nothing", "", air.ErrInvalidJSON},
		{"white space only", " \n", air.ErrInvalidJSON},
		{"two values", "1 2", air.ErrInvalidJSON},
		{"byte order mark", "\ufeff{}", air.ErrInvalidJSON},
		{"comment", "{} // x", air.ErrInvalidJSON},
		{"trailing comma", `{"a":1,}`, air.ErrInvalidJSON},
		{"trailing comma in a list", `[1,]`, air.ErrInvalidJSON},
		{"missing colon", `{"a" 1}`, air.ErrInvalidJSON},
		{"name is no string", `{1:1}`, air.ErrInvalidJSON},
		{"single quotes", `{'a':1}`, air.ErrInvalidJSON},
		{"leading zero", "01", air.ErrInvalidJSON},
		{"minus alone", "-", air.ErrInvalidJSON},
		{"plus", "+1", air.ErrInvalidJSON},
		{"point without digits", "1.", air.ErrInvalidJSON},
		{"exponent without digits", "1e+", air.ErrInvalidJSON},
		{"point first", ".5", air.ErrInvalidJSON},
		{"NaN", "NaN", air.ErrInvalidJSON},
		{"hexadecimal", "0x10", air.ErrInvalidJSON},
		{"half a word", "tru", air.ErrInvalidJSON},
		{"word too long", "nulll", air.ErrInvalidJSON},
		{"control character", "\"a\nb\"", air.ErrInvalidJSON},
		{"open string", `"abc`, air.ErrInvalidJSON},
		{"open string with an escape", `"abc\`, air.ErrInvalidJSON},
		{"unknown escape", `"\x41"`, air.ErrInvalidJSON},
		{"short escape", `"\u12"`, air.ErrInvalidJSON},
		{"escape of other letters", `"\u12g4"`, air.ErrInvalidJSON},
		{"bad UTF-8", "\"\xff\"", air.ErrInvalidJSON},
		{"bad UTF-8 in a name", "{\"\xff\":1}", air.ErrInvalidJSON},
		{"overlong", "\"\xc0\xaf\"", air.ErrInvalidJSON},
		{"encoded surrogate", "\"\xed\xa0\x80\"", air.ErrInvalidJSON},
		{"beyond Unicode", "\"\xf4\x90\x80\x80\"", air.ErrInvalidJSON},
		{"lone high surrogate", `"\ud800"`, air.ErrInvalidJSON},
		{"lone low surrogate", `"\udc00"`, air.ErrInvalidJSON},
		{"surrogates the wrong way round", `"\udc00\ud800"`, air.ErrInvalidJSON},
		{"high surrogate before text", `"\ud800x"`, air.ErrInvalidJSON},
		{"lone surrogate in a name", `{"\ud800":1}`, air.ErrInvalidJSON},
		{"65 lists", deep(65), air.ErrInvalidJSON},
		{"65 objects", strings.Repeat(`{"a":`, 65) + "1" + strings.Repeat("}", 65), air.ErrInvalidJSON},
		{"open list", "[1", air.ErrInvalidJSON},
		{"open object", `{"a":1`, air.ErrInvalidJSON},
		{"closed by the other bracket", `[1}`, air.ErrInvalidJSON},
		{"duplicate", `{"a":1,"a":1}`, air.ErrDuplicateKey},
		{"duplicate not side by side", `{"b":1,"a":2,"b":3}`, air.ErrDuplicateKey},
		{"duplicate in sorted text", `{"a":1,"b":2,"b":3,"c":4}`, air.ErrDuplicateKey},
		{"duplicate after unescaping", `{"a":1,"\u0061":2}`, air.ErrDuplicateKey},
		{"duplicate with escapes in both", `{"\n":1,"\u000a":2}`, air.ErrDuplicateKey},
		{"duplicate after composing", `{"é":1,"e\u0301":2}`, air.ErrDuplicateKey},
		{"duplicate among many", manyMembers(40, true), air.ErrDuplicateKey},
		{"point", "1.0", air.ErrFloatForbidden},
		{"exponent", "0e0", air.ErrFloatForbidden},
		{"both", "[-1.5E-3]", air.ErrFloatForbidden},
		{"float, then duplicate", `[1.5,{"a":1,"a":2}]`, air.ErrDuplicateKey},
		{"float, duplicate, then no JSON", `[1.5,{"a":1,"a":2}`, air.ErrInvalidJSON},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			out, err := air.Canonicalize([]byte(tt.text))
			require.ErrorIs(t, err, tt.want)
			require.Nil(t, out)
		})
	}
}

func manyMembers(n int, twice bool) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, `,"k%03d":%d`, n-i, i)
	}
	if twice {
		b.WriteString(`,"k007":0`)
	}
	return "{" + b.String()[1:] + "}"
}

// Integers beyond 2^53 stand among them: the pins of other languages are not all fit
// for those (AIR-162).
func TestCanonicalizeResults(t *testing.T) {
	tests := []struct{ name, text, want string }{
		{"many members", manyMembers(20, false), ""},
		{"names that need escapes", `{"\\":1,"\"":2,"\u0001":3,"b":4,"a\\b":5,"a":6}`, `{"\u0001":3,"\"":2,"\\":1,"a":6,"a\\b":5,"b":4}`},
		{"empty name", `{"a":1,"":2}`, `{"":2,"a":1}`},
		{"64 objects", strings.Repeat(`{"a":`, 64) + "1" + strings.Repeat("}", 64), strings.Repeat(`{"a":`, 64) + "1" + strings.Repeat("}", 64)},
		{"supplementary before private use", `{"\ue000":1,"\ud83d\ude00":2,"\uffff":3}`, "{\"😀\":2,\"\ue000\":1,\"\uffff\":3}"},
		{"names keep their form", `{"e\u0301":"e\u0301"}`, "{\"e\u0301\":\"é\"}"},
		{"Kelvin sign", `"\u212a"`, `"K"`},
		{"minus zero in a list", `[-0,0,-10]`, `[0,0,-10]`},
		{"large integers", `[9007199254740993,-18446744073709551617]`, `[9007199254740993,-18446744073709551617]`},
		{"scalars", ` [ true , false , null ] `, `[true,false,null]`},
		{"delete is no control character here", "\"\x7f\"", "\"\x7f\""},
		{"solidus", `"\/"`, `"/"`},
		{"NUL", `"\u0000"`, `"\u0000"`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			out, err := air.Canonicalize([]byte(tt.text))
			require.NoError(t, err)
			if tt.want != "" {
				require.Equal(t, tt.want, string(out))
			}
			second, err := air.AppendCanonical([]byte("x"), out)
			require.NoError(t, err)
			require.Equal(t, "x"+string(out), string(second))
		})
	}
}

// value draws a JSON value as text, written with random white space and escapes.
func value(depth int) *rapid.Generator[string] {
	return rapid.Custom(func(t *rapid.T) string {
		ws := rapid.SampledFrom([]string{"", "", " ", "\n\t"})
		kind := rapid.IntRange(0, 5).Draw(t, "kind")
		if depth == 0 && kind > 3 {
			kind = 0
		}
		switch kind {
		case 0:
			return fmt.Sprint(rapid.Int64Range(-1<<53, 1<<53).Draw(t, "int"))
		case 1:
			return rapid.SampledFrom([]string{"true", "false", "null", "0", "-0"}).Draw(t, "word")
		case 2, 3:
			return quote(t)
		case 4:
			var items []string
			for range rapid.IntRange(0, 4).Draw(t, "n") {
				items = append(items, ws.Draw(t, "ws")+value(depth-1).Draw(t, "v")+ws.Draw(t, "ws"))
			}
			return "[" + strings.Join(items, ",") + "]"
		}
		var items []string
		seen := map[string]bool{}
		for range rapid.IntRange(0, 6).Draw(t, "n") {
			name := quote(t)
			var s string
			if err := json.Unmarshal([]byte(name), &s); err != nil {
				t.Fatal(err)
			}
			if k := norm.NFC.String(s); seen[k] {
				continue
			} else {
				seen[k] = true
			}
			items = append(items, ws.Draw(t, "ws")+name+ws.Draw(t, "ws")+":"+ws.Draw(t, "ws")+value(depth-1).Draw(t, "v")+ws.Draw(t, "ws"))
		}
		return "{" + strings.Join(items, ",") + "}"
	})
}

// quote draws a string in some spelling.
func quote(t *rapid.T) string {
	var b strings.Builder
	b.WriteByte('"')
	runes := rapid.SliceOfN(rapid.OneOf(
		rapid.Rune(),
		rapid.RuneFrom([]rune("abcé한\u0301\u0323😀\ue000\uffff\"\\\n/\x00\x1f")),
	), 0, 8).Draw(t, "text")
	for _, r := range runes {
		esc := rapid.IntRange(0, 4).Draw(t, "esc") == 0
		switch {
		case r == '"' || r == '\\':
			b.WriteString(`\` + string(r))
		case r < 0x20 || esc && r < 0x10000:
			fmt.Fprintf(&b, `\u%04X`, r)
		case esc:
			hi, lo := utf16.EncodeRune(r)
			fmt.Fprintf(&b, `\u%04x\u%04x`, hi, lo)
		default:
			b.WriteRune(r)
		}
	}
	b.WriteByte('"')
	return b.String()
}

// Canonicalisation is idempotent, keeps the meaning, and agrees with the oracle on
// all that the oracle does exactly: integers up to 2^53 and text that is in NFC
// already.
func TestCanonicalizeLaws(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := value(4).Draw(t, "json")
		out, err := air.Canonicalize([]byte(text))
		if err != nil {
			t.Fatalf("%q: %v", text, err)
		}
		second, err := air.Canonicalize(out)
		if err != nil || !bytes.Equal(second, out) {
			t.Fatalf("%q is not stable: %q, %v", out, second, err)
		}
		out = fmt.Appendf(nil, `{"x":%s}`, out) // the oracle takes containers only
		want, err := jsoncanonicalizer.Transform(out)
		if err != nil {
			t.Fatalf("the oracle refuses %q: %v", out, err)
		}
		if string(want) != string(out) {
			t.Fatalf("got  %q\nwant %q", out, want)
		}
		a, err := strictjson.Check([]byte(text), strictjson.Options{})
		if err != nil {
			t.Fatal(err)
		}
		b, err := strictjson.Check(second, strictjson.Options{})
		if err != nil {
			t.Fatal(err)
		}
		if x, y := normalized(a.Any()), b.Any(); fmt.Sprintf("%#v", x) != fmt.Sprintf("%#v", y) {
			t.Fatalf("%#v became %#v", x, y)
		}
	})
}

// normalized applies to a decoded value what canonicalisation changes in it.
func normalized(v any) any {
	switch v := v.(type) {
	case string:
		return norm.NFC.String(v)
	case json.Number:
		if v == "-0" {
			return json.Number("0")
		}
	case []any:
		for i := range v {
			v[i] = normalized(v[i])
		}
	case map[string]any:
		for k := range v {
			v[k] = normalized(v[k])
		}
	}
	return v
}

// vectorInputs calls f with every raw input of the vectors, to seed fuzzing.
func vectorInputs(t testing.TB, f func(data []byte)) {
	files, err := filepath.Glob("../conformance/testdata/air/*.json")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, name := range files {
		data, err := os.ReadFile(name)
		require.NoError(t, err)
		var file struct {
			Cases []struct{ In map[string]any }
		}
		require.NoError(t, json.Unmarshal(data, &file))
		for _, c := range file.Cases {
			for _, member := range []string{"wire", "envelope", "body", "document", "multibase"} {
				if s, ok := c.In[member].(string); ok {
					f([]byte(s))
				}
			}
		}
	}
}

func FuzzCanonicalize(f *testing.F) {
	vectorInputs(f, func(data []byte) { f.Add(data) })
	f.Fuzz(func(t *testing.T, text []byte) {
		out, err := air.Canonicalize(text)
		_, strictErr := strictjson.Check(text, strictjson.Options{MaxDepth: 64})
		if err != nil {
			var e *air.Error
			require.ErrorAs(t, err, &e)
			if e.Code == air.ErrInvalidJSON {
				require.Error(t, strictErr) // two readers, one opinion
			}
			return
		}
		require.NoError(t, strictErr)
		second, err := air.Canonicalize(out)
		require.NoError(t, err)
		require.Equal(t, string(out), string(second))
	})
}
