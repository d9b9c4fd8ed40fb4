// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package floor

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/text/unicode/norm"

	"github.com/fivewire/fivewire/internal/bench/sample"
)

// canonical lists texts and their canonical form. An empty want is a text that must be refused.
var canonical = []struct{ name, in, want string }{
	{"order", `{"b":1,"a":{"d":2,"c":[]}}`, `{"a":{"c":[],"d":2},"b":1}`},
	{"long and short names", `{"ab":1,"a":2,"":3}`, `{"":3,"a":2,"ab":1}`},
	{"integer above 2^53", `{"n":9007199254740993}`, `{"n":9007199254740993}`},
	{"minus zero", `-0`, `0`},
	{"duplicate", `{"a":1,"b":2,"a":3}`, ""},
	{"duplicate beside", `{"a":1,"a":3}`, ""},
	{"duplicate by escape", `{"a":1,"\u0061":3}`, ""},
	{"duplicate by normalisation", "{\"e\u0301\":1,\"\u00e9\":3}", ""},
	{"UTF-16 order", "{\"\uff5e\":1,\"\U0001F600\":2}", "{\"\U0001F600\":2,\"\uff5e\":1}"},
	{"UTF-16 order, same beginning", "{\"\uff5eb\":1,\"\uff5ea\":2,\"\uff5e\":3}", "{\"\uff5e\":3,\"\uff5ea\":2,\"\uff5eb\":1}"},
	{"escapes", `{"a":"\u00e9\/\u000f\b\f\n\r\t\"\\\u2028"}`, "{\"a\":\"é/\\u000f\\b\\f\\n\\r\\t\\\"\\\\\u2028\"}"},
	{"escaped names", `{"\n":1,"\"":2,"a\\b":3}`, `{"\n":1,"\"":2,"a\\b":3}`},
	{"surrogate pair", `"\ud83d\ude00"`, "\"\U0001F600\""},
	{"normalisation", "{\"a\":\"e\u0301\"}", "{\"a\":\"é\"}"},
	{"Korean", `"가나다"`, `"가나다"`},
	{"white space", " { \"a\" : [ 1 , 2 ] , \"b\" : { } } ", `{"a":[1,2],"b":{}}`},
	{"literals", `[true,false,null]`, `[true,false,null]`},
	{"float", `{"a":1.5}`, ""},
	{"exponent", `{"a":1e2}`, ""},
	{"lone surrogate", `{"a":"\ud800"}`, ""},
	{"two first surrogates", `"\ud800\ud800"`, ""},
	{"bad UTF-8", "\"\xff\"", ""},
	{"bad string", `["\x"]`, ""},
	{"bad name", `{a:1}`, ""},
	{"bad name text", `{"\x":1}`, ""},
	{"bad literal", `tru`, ""},
	{"no colon", `{"a" 1}`, ""},
	{"no value", `{"a":}`, ""},
	{"no comma", `{"a":1 "b":2}`, ""},
	{"no comma in array", `[1 2]`, ""},
	{"text after", `{} x`, ""},
	{"nothing", ``, ""},
	{"too deep", strings.Repeat("[", 1002), ""},
}

func TestCanon(t *testing.T) {
	var c Canon // used again, after errors too
	for _, tt := range canonical {
		t.Run(tt.name, func(t *testing.T) {
			out, err := c.Append([]byte("before"), []byte(tt.in))
			require.Equal(t, tt.want == "", err != nil)
			require.Equal(t, "before"+tt.want, string(out))
		})
	}
}

func TestCanonSignature(t *testing.T) {
	c := Canon{NullSig: true}
	out, err := c.Append(nil, []byte(`{"signature":"zabc","body":{"signature":"inner"}}`))
	require.NoError(t, err)
	require.Equal(t, `{"body":{"signature":"inner"},"signature":null}`, string(out))
	require.Equal(t, "zabc", string(c.Sig))
	for _, bad := range []string{`{"signature":null}`, `{"signature":"z}`, `{"signature":`} {
		_, err = c.Append(nil, []byte(bad))
		require.Error(t, err, bad)
	}
}

func TestCanonAllocs(t *testing.T) {
	for _, korean := range []bool{false, true} {
		in := sample.Envelope(16<<10, korean)
		var c Canon
		dst, err := c.Append(nil, in)
		require.NoError(t, err)
		require.Zero(t, testing.AllocsPerRun(10, func() { dst, _ = c.Append(dst[:0], in) }))
	}
}

func FuzzCanon(f *testing.F) {
	for _, tt := range canonical {
		f.Add([]byte(tt.in))
	}
	f.Add(sample.Envelope(1<<10, true))
	f.Fuzz(func(t *testing.T, s []byte) {
		var c Canon
		out, err := c.Append(nil, s)
		if err != nil {
			require.Empty(t, out)
			return
		}
		require.True(t, Valid(s))
		require.True(t, Valid(out))
		require.True(t, norm.NFC.IsNormal(out))
		second, err := c.Append(nil, out)
		require.NoError(t, err)
		require.Equal(t, string(out), string(second), "canonical text stays as it is")
		if norm.NFC.IsNormal(s) && !strings.Contains(string(s), `\u`) {
			require.Equal(t, decode(t, s), decode(t, out), "the meaning stays the same")
		}
	})
}

// decode reads JSON with exact numbers.
func decode(t *testing.T, s []byte) (v any) {
	dec := json.NewDecoder(strings.NewReader(strings.ReplaceAll(string(s), "-0", "0")))
	dec.UseNumber()
	require.NoError(t, dec.Decode(&v))
	return v
}

func FuzzQuickNFC(f *testing.F) {
	for _, s := range []string{"plain", "é", "e\u0301", "가나다", "\u1100\u1161", "漢字", "\u0300", "\U0001F600", "\ufb33"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if s = strings.ToValidUTF8(s, ""); QuickNFC([]byte(s)) {
			require.True(t, norm.NFC.IsNormalString(s))
		}
	})
}

// Every character that QuickNFC lets pass is stable, alone and after any other.
func TestQuickNFCByCharacter(t *testing.T) {
	n := 0
	for r := rune(0); r <= 0x10ffff; r++ {
		s := string(r)
		if r >= 0xd800 && r <= 0xdfff || !QuickNFC([]byte(s)) {
			continue
		}
		n++
		p := norm.NFC.PropertiesString(s)
		require.True(t, norm.NFC.IsNormalString(s) && p.BoundaryBefore() && p.CCC() == 0, "%U", r)
	}
	require.Equal(t, 0x300+(0xd7a3-0xac00+1)+(0x9fff-0x4e00+1), n)
}

func TestSamplesAreMessages(t *testing.T) {
	var c Canon
	for _, korean := range []bool{false, true} {
		out, err := c.Append(nil, sample.Envelope(1<<10, korean))
		require.NoError(t, err)
		require.True(t, json.Valid(out))
	}
}
