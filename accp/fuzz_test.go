// Copyright 2026 The Fivewire Authors
// SPDX-License-Identifier: Apache-2.0

package accp_test

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/fivewire/fivewire/accp"
	"github.com/fivewire/fivewire/internal/strictjson"
)

// seeds adds every frame of the vectors.
func seeds(f *testing.F) {
	files, err := filepath.Glob("../conformance/testdata/accp/*.json")
	require.NoError(f, err)
	require.NotEmpty(f, files)
	var walk func(strictjson.Value)
	walk = func(v strictjson.Value) {
		for m := v.Members(); m.Next(); {
			walk(m.Value)
		}
		for e := v.Elements(); e.Next(); {
			walk(e.Value)
		}
		if s, ok := v.Text(); ok && strings.HasPrefix(s, "@") {
			f.Add([]byte(s))
		}
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		require.NoError(f, err)
		v, err := strictjson.Check(data, strictjson.Options{})
		require.NoError(f, err)
		walk(v)
	}
	for _, d := range draftFrames {
		f.Add([]byte(d.frame))
	}
}

// A decoded frame can be encoded and decoded again; the canonical form is stable; strict frames
// have the same meaning for both readers.
func FuzzParse(f *testing.F) {
	seeds(f)
	f.Fuzz(func(t *testing.T, frame []byte) {
		strict, lenient := accp.Codec{}, accp.Codec{Lenient: true}
		lm, lerr := lenient.DecodeRaw(frame)
		m, err := strict.DecodeRaw(frame)
		if err != nil {
			var e *accp.Error
			require.ErrorAs(t, err, &e)
			require.Nil(t, m)
		} else {
			require.NoError(t, lerr, "lenient accepts all that strict does")
			out, err := strict.AppendRaw(nil, m)
			require.NoError(t, err)
			decoded, err := strict.DecodeRaw(out)
			require.NoError(t, err)
			require.True(t, m.Equal(decoded))
			twice, err := strict.AppendRaw(nil, decoded)
			require.NoError(t, err)
			require.Equal(t, string(out), string(twice))
			text, err := json.Marshal(m)
			require.NoError(t, err)
			var back accp.Message
			require.NoError(t, back.UnmarshalJSON(text))
			require.True(t, m.Equal(&back), "%s", text)
			require.NotContains(t, strict.Explain(frame), "no frame")
		}
		if lerr != nil {
			return
		}
		out, err := strict.AppendRaw(nil, lm)
		if err != nil {
			return // names that only the lenient reader knows
		}
		decoded, err := strict.DecodeRaw(out)
		require.NoError(t, err, "%s", out)
		twice, err := strict.AppendRaw(nil, decoded)
		require.NoError(t, err)
		require.Equal(t, string(out), string(twice))
	})
}

// Decoding and encoding through the schemas is stable after one round.
func FuzzCanonical(f *testing.F) {
	seeds(f)
	f.Fuzz(func(t *testing.T, frame []byte) {
		c := accp.Codec{Lenient: true}
		m, err := c.Decode(frame)
		if err != nil {
			return
		}
		out, err := c.Append(nil, m)
		if err != nil {
			return
		}
		strict := accp.Codec{}
		decoded, err := strict.Decode(out)
		require.NoError(t, err, "%s", out)
		twice, err := strict.Append(nil, decoded)
		require.NoError(t, err)
		require.Equal(t, string(out), string(twice))
	})
}

// The scanner finds the frames that were written one after the other.
func FuzzScanner(f *testing.F) {
	seeds(f)
	f.Fuzz(func(t *testing.T, wire []byte) {
		s := accp.NewScanner(bytes.NewReader(wire), 0)
		total := 0
		for {
			frame, err := s.Next()
			if err != nil {
				break
			}
			total += len(frame)
			require.LessOrEqual(t, total, len(wire))
			require.Equal(t, byte('@'), frame[0])
		}
		var c accp.Codec
		if _, err := c.DecodeRaw(wire); err != nil {
			return
		}
		s = accp.NewScanner(bytes.NewReader(append(append(append([]byte{}, wire...), wire...), '\n')), 0)
		for range 2 {
			frame, err := s.Next()
			require.NoError(t, err)
			require.Equal(t, string(wire), string(frame))
		}
	})
}

// Generators of messages.

func names() *rapid.Generator[string] { return rapid.StringMatching(`[A-Za-z0-9_]{1,12}`) }

func texts() *rapid.Generator[string] {
	return rapid.OneOf(rapid.String(), rapid.StringMatching(`-?[0-9]{1,5}(\.[0-9]{1,3})?`),
		rapid.SampledFrom([]string{"", "true", "false", "null", "~", "$ctx.a", " ", "a_b c", `\e`, `\_x`, "\u202e", "@a>b:c{}", "a,b", "[x]"}))
}

func values(depth int) *rapid.Generator[accp.Value] {
	return rapid.Custom(func(t *rapid.T) accp.Value {
		top := 7
		if depth == 0 {
			top = 5
		}
		switch rapid.IntRange(0, top).Draw(t, "kind") {
		case 0:
			return accp.Null()
		case 1:
			return accp.Bool(rapid.Bool().Draw(t, "bool"))
		case 2:
			return accp.Int(rapid.Int64().Draw(t, "int"))
		case 3:
			v, err := accp.Decimal(rapid.StringMatching(`-?[0-9]{1,9}\.[0-9]{1,6}`).Draw(t, "decimal"))
			require.NoError(t, err)
			return v
		case 4:
			return accp.String(texts().Draw(t, "text"))
		case 5:
			return accp.Ref(rapid.StringMatching(`[a-z]{1,4}(\.[a-z0-9_]{1,4}){0,2}`).Draw(t, "ref"))
		case 6:
			return accp.Array(rapid.SliceOfN(values(depth-1), 0, 4).Draw(t, "array")...)
		}
		return accp.Map(params(depth-1).Draw(t, "map")...)
	})
}

func params(depth int) *rapid.Generator[accp.Params] {
	return rapid.Custom(func(t *rapid.T) accp.Params {
		var out accp.Params
		for _, k := range rapid.SliceOfNDistinct(names(), 0, 5, rapid.ID).Draw(t, "keys") {
			out = append(out, accp.Param{Key: k, Value: values(depth).Draw(t, "value")})
		}
		return out
	})
}

var someIntents = []accp.Intent{"req", "done", "fail", "wait", "esc", "comp", "sync", "qry", "ack", "cancel", "stream", "end", "ping", "pong"}

func messages() *rapid.Generator[*accp.Message] {
	return rapid.Custom(func(t *rapid.T) *accp.Message {
		m := &accp.Message{From: names().Draw(t, "from"), Intent: rapid.SampledFrom(someIntents).Draw(t, "intent"),
			Op: names().Draw(t, "op"), Params: params(4).Draw(t, "params")}
		if rapid.Bool().Draw(t, "meta") {
			m.Meta = &accp.Meta{MID: rapid.StringMatching(`[0-9a-f]{12}`).Draw(t, "mid"),
				Seq: accp.NewOptionalInt(rapid.Int64Range(0, 1<<62).Draw(t, "seq")), CID: texts().Draw(t, "cid"), SID: texts().Draw(t, "sid")}
		}
		return m
	})
}

// Any message comes back as it was (ACCP-026, ACCP-D06), and equal messages have
// one encoding, whatever the order of their params (ACCP-D12).
func TestEveryMessageSurvives(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var c accp.Codec
		m := messages().Draw(t, "message")
		frame, err := c.AppendRaw(nil, m)
		require.NoError(t, err)
		back, err := c.DecodeRaw(frame)
		require.NoError(t, err, "%s", frame)
		require.True(t, m.Equal(back), "%s", frame)
		shuffled := *m
		shuffled.Params = rapid.Permutation(m.Params).Draw(t, "order")
		second, err := c.AppendRaw(nil, &shuffled)
		require.NoError(t, err)
		require.Equal(t, string(frame), string(second))
		for _, r := range string(frame) {
			require.False(t, r <= ' ' || r == 0x7f, "no white space in a frame (ACCP-029)")
		}
		var f accp.Frame
		require.NoError(t, c.DecodeFrame(frame, &f))
		require.True(t, m.Equal(f.Message()))
		require.True(t, m.Equal(f.Message()))
	})
}

// A difference, applied, gives the new state (ACCP-098, ACCP-099, ACCP-D44).
func TestDiffApplies(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		before := accp.Apply(nil, params(3).Draw(t, "old"))
		after := accp.Apply(nil, params(3).Draw(t, "new"))
		delta := accp.Diff(before, after)
		require.True(t, accp.Apply(before, delta).Equal(after))
		require.Empty(t, accp.Diff(after, after))
		require.True(t, accp.Apply(after, delta).Equal(after), "applying twice changes nothing more")
	})
}

// Plain JSON goes in and comes out with its exact numbers (ACCP-D57).
func TestPlainJSON(t *testing.T) {
	for in, want := range map[string]string{
		`{"a":[1,-0,1.50,true,null,"x"]}`: `{"a":[1,0,1.5,true,null,"x"]}`,
		`123456789012345678901234567890`:  `123456789012345678901234567890`,
		`1e3`:                             `1000.0`,
		`-1.25E-3`:                        `-0.00125`,
		`0e99`:                            `0.0`,
		`1.0`:                             `1.0`,
	} {
		v, err := accp.FromJSON([]byte(in))
		require.NoError(t, err, in)
		out, err := v.AppendJSON(nil)
		require.NoError(t, err)
		require.Equal(t, want, string(out))
	}
	for _, in := range []string{`1e1001`, `1e-99999`, `{"a":1,"a":2}`, `[`, `"\ud800"`} {
		_, err := accp.FromJSON([]byte(in))
		require.Error(t, err, in)
	}
	_, err := accp.Array(accp.Ref("ctx.a")).AppendJSON(nil)
	require.ErrorIs(t, err, accp.ErrRefNotFound)
}
